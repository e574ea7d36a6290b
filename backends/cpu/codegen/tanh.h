
static inline float tanh_of_float(float x)
{
    const float size = fabsf(x), t = size > 9.25f ? 9.25f : size;
    union { float x; uint32_t bits; } shifted = {multiply_add(t, 0x1.715476p+1f, 0x1.8p23f)}, scale;
    const float n = shifted.x - 0x1.8p23f;
    const float s = multiply_add(n, -0x1.62e430p-2f, t);
    float q = 0x1.38980ap-7f;
    q = multiply_add(q, s, 0x1.6d1daap-5f);
    q = multiply_add(q, s, 0x1.1152d0p-3f);
    q = multiply_add(q, s, 0x1.55550cp-2f);
    q = multiply_add(q, s, 0x1.555530p-1f);
    q = multiply_add(q, s, 1.0f);
    scale.bits = (shifted.bits << 23) + (127u << 23);
    const float p = multiply_add(q * s, s, s);
    const float h = multiply_add(p, scale.x, multiply_add(scale.x, 0.5f, -0.5f));
    const float near = h > 1 ? 1 : h;
    return copysignf(multiply_add(-near, near / (h + 1), near), x);
}

static inline double tanh_of_double(double x)
{
    const double size = fabs(x), t = size > 20.0 ? 20.0 : size;
    union { double x; uint64_t bits; } shifted = {multiply_add_double(t, 0x1.71547652b82fep+1, 0x1.8p52)}, scale;
    const double n = shifted.x - 0x1.8p52;
    const double s = multiply_add_double(n, -0x1.cf79abc9e3b3ap-41, multiply_add_double(n, -0x1.62e42fefap-2, t));
    double q = 0x1.e632765afd646p-19;
    q = multiply_add_double(q, s, 0x1.af4dd02c66a35p-16);
    q = multiply_add_double(q, s, 0x1.2802241f3b20fp-13);
    q = multiply_add_double(q, s, 0x1.71de023f44ab0p-11);
    q = multiply_add_double(q, s, 0x1.a019f39780be8p-9);
    q = multiply_add_double(q, s, 0x1.a01a01abe30e2p-7);
    q = multiply_add_double(q, s, 0x1.6c16c16f0a097p-5);
    q = multiply_add_double(q, s, 0x1.11111111100e6p-3);
    q = multiply_add_double(q, s, 0x1.5555555554d3dp-2);
    q = multiply_add_double(q, s, 0x1.5555555555557p-1);
    q = multiply_add_double(q, s, 1.0);
    scale.bits = (shifted.bits << 52) + (1023ull << 52);
    const double p = multiply_add_double(q * s, s, s);
    const double h = multiply_add_double(p, scale.x, multiply_add_double(scale.x, 0.5, -0.5));
    const double near = h > 1 ? 1 : h;
    return copysign(multiply_add_double(-near, near / (h + 1), near), x);
}

#undef tanh
#define tanh(x) _Generic((x), float: tanh_of_float, default: tanh_of_double)(x)
