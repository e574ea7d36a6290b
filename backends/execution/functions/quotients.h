INLINE unsigned long long upper_product(unsigned long long a, unsigned long long b)
{
    const unsigned long long low = a & 0xffffffffu, high = a >> 32, right = b & 0xffffffffu, left = b >> 32;
    const unsigned long long first = low * left + (low * right >> 32), second = high * right + (first & 0xffffffffu);
    return high * left + (first >> 32) + (second >> 32);
}

INLINE unsigned long long quotient_of_uint64(unsigned long long a, unsigned long long b)
{
    const unsigned long long near = upper_product(a, ~0ULL / (b + (b == 0))), rest = a - near * b;
    const unsigned long long found = near + (rest >= b) + ((rest >= b) & (rest - b >= b));
    return b == 0 ? 0 : found;
}

INLINE long long quotient_of_int64(long long a, long long b)
{
    const unsigned long long divisor = b < 0 ? 0ULL - (unsigned long long)b : (unsigned long long)b;
    const unsigned long long size = a < 0 ? 0ULL - (unsigned long long)a : (unsigned long long)a;
    const unsigned long long falls = (a != 0) & ((a < 0) != (b < 0)) & (b != 0);
    return (long long)(quotient_of_uint64(size - falls, divisor) ^ (0 - falls));
}
