
static inline float float_of(uint32_t bits)
{
    union { uint32_t bits; float x; } both = {bits};
    return both.x;
}

static inline uint32_t bits_of(float x)
{
    union { float x; uint32_t bits; } both = {x};
    return both.bits;
}
