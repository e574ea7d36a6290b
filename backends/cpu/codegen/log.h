
static inline float log_of_float(float x)
{
    union { float x; uint32_t bits; } whole = {x}, integer;
    const int is_small = whole.bits < 1u << 23;
    integer.x = (float)(int32_t)whole.bits;
    whole.bits = is_small ? integer.bits : whole.bits;
    const uint32_t above = whole.bits - 0x3f3504f3u;
    float k = (float)((int32_t)above >> 23) - (is_small ? 149.0f : 0.0f);
    whole.bits -= above & 0xff800000u;
    const float f = whole.x - 1.0f;
    float q = -0x1.3838e4p-4f;
    q = multiply_add(q, f, 0x1.084bdep-3f);
    q = multiply_add(q, f, -0x1.0f3748p-3f);
    q = multiply_add(q, f, 0x1.2270fcp-3f);
    q = multiply_add(q, f, -0x1.54275ap-3f);
    q = multiply_add(q, f, 0x1.99a3fcp-3f);
    q = multiply_add(q, f, -0x1.000428p-2f);
    q = multiply_add(q, f, 0x1.555550p-2f);
    q = multiply_add(q, f, -0x1.fffff8p-2f);
    k = x < INFINITY ? k : x;
    k = x < 0 ? NAN : k;
    k = x == 0 ? -INFINITY : k;
    return multiply_add(k, 0x1.62e4p-1f, multiply_add(k, 0x1.7f7d1cp-20f, q * (f * f)) + f);
}

static inline double log_of_double(double x)
{
    union { double x; uint64_t bits; } whole = {x}, integer = {x}, power;
    const int is_small = whole.bits < 1ull << 52;
    integer.bits |= (1023ull + 52ull) << 52;
    integer.x -= 0x1p52;
    whole.bits = is_small ? integer.bits : whole.bits;
    const uint64_t above = whole.bits - 0x3fe6a09e667f3bcdu + (2048ull << 52);
    power.bits = (1023ull + 52ull) << 52 | above >> 52;
    whole.bits -= (above & 0xfff0000000000000u) - (2048ull << 52);
    double k = power.x - (is_small ? 0x1p52 + 2048 + 1074 : 0x1p52 + 2048);
    const double f = whole.x - 1, square = 0.5 * f * f, s = f / (2 + f), z = s * s;
    double q = 0x1.2b584aae78a57p-3;
    q = multiply_add_double(q, z, 0x1.39fe606542ddep-3);
    q = multiply_add_double(q, z, 0x1.7462b4ab2ef6bp-3);
    q = multiply_add_double(q, z, 0x1.c71c62e5800a1p-3);
    q = multiply_add_double(q, z, 0x1.2492492df148dp-2);
    q = multiply_add_double(q, z, 0x1.99999999952e2p-2);
    q = multiply_add_double(q, z, 0x1.5555555555558p-1);
    k = x < INFINITY ? k : x;
    k = x < 0 ? NAN : k;
    k = x == 0 ? -INFINITY : k;
    const double rest = multiply_add_double(s, multiply_add_double(q, z, square), k * 0x1.cf79abc9e3b3ap-40) - square;
    return multiply_add_double(k, 0x1.62e42fefap-1, rest + f);
}

#undef log
#define log(x) _Generic((x), float: log_of_float, default: log_of_double)(x)
