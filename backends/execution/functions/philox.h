INLINE unsigned long long philox_pair(unsigned long long seed, unsigned long long counter, long long half)
{
    unsigned int a = (unsigned int)counter, b = (unsigned int)(counter >> 32), c = 0, d = 0;
    unsigned int k = (unsigned int)seed, l = (unsigned int)(seed >> 32);
    NUMBERS;
    ROUNDS
    return half ? (unsigned long long)d << 32 | c : (unsigned long long)b << 32 | a;
}

INLINE float philox_uniform32(unsigned long long seed, unsigned long long counter, long long i)
{
    const unsigned long long pair = philox_pair(seed, counter + (unsigned long long)(i >> 2), i >> 1 & 1);
    return (float)(int)((unsigned int)(i & 1 ? pair >> 32 : pair) >> 8) * 0x1p-24f;
}

INLINE double philox_uniform64(unsigned long long seed, unsigned long long counter, long long i)
{
    const unsigned long long pair = philox_pair(seed, counter + (unsigned long long)(i >> 1), i & 1);
    return (double)(long long)(pair >> 11) * 0x1p-53;
}

INLINE float philox_normal32(unsigned long long seed, unsigned long long counter, long long i)
{
    const unsigned long long pair = philox_pair(seed, counter + (unsigned long long)(i >> 2), i >> 1 & 1);
    const float radius = sqrt(log((float)(unsigned int)pair * 0x1p-32f + 0x1p-33f) * -2.0f);
    const float angle = (float)(int)(unsigned int)(pair >> 32) * 0x1.921fb60000000p-30f;
    const float x = cos(angle), y = sin(angle);
    return radius * (i & 1 ? y : x);
}

INLINE double philox_normal64(unsigned long long seed, unsigned long long counter, long long i)
{
    const unsigned long long block = counter + (unsigned long long)(i >> 1);
    const double first = (double)(long long)(philox_pair(seed, block, 0) >> 11);
    const double second = (double)(long long)(philox_pair(seed, block, 1) >> 11);
    const double angle = second * 6.975736996017264e-16 - 3.141592653589793;
    const double x = cos(angle), y = sin(angle);
    return sqrt(log((first + 1.0) * 0x1p-53) * -2.0) * (i & 1 ? y : x);
}
