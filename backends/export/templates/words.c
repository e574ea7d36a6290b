/* An address within an array, by its bytes, as a kernel takes it. */
#define AT(array, bytes) ((int64_t)(intptr_t)((const char *)(array) + (bytes)))

/* Whole cache lines; the larger of two numbers. */
#define LINES(bytes) (((bytes) + 63) / 64 * 64)
#define GREATER(a, b) ((a) > (b) ? (a) : (b))

static inline int64_t word_of(double number)
{
    int64_t word;
    memcpy(&word, &number, sizeof word);
    return word;
}
