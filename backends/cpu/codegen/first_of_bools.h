
#define IS_LITTLE (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)

static inline int64_t first_of_bools(const uint8_t *x, int64_t n, int is_true)
{
    const uint64_t low = 0x7f7f7f7f7f7f7f7f, high = ~low;
    int64_t i = 0;
    for (; i + 256 <= n; i += 256) {
        uint8_t found = 0;
        #pragma omp simd reduction(| : found)
        for (int j = 0; j < 256; j++)
            found |= is_true ? x[i + j] : x[i + j] == 0;
        if (found)
            break;
    }
    for (; i + 8 <= n; i += 8) {
        uint64_t bytes;
        __builtin_memcpy(&bytes, x + i, 8);
        bytes = ((((bytes & low) + low) | bytes) ^ (is_true ? 0 : high)) & high;
        if (bytes)
            return i + (IS_LITTLE ? __builtin_ctzll(bytes) : __builtin_clzll(bytes)) / 8;
    }
    while (i < n && (x[i] != 0) != is_true)
        i++;
    return i;
}
