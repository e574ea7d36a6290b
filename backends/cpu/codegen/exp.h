
static inline float exp_of_float(float x)
{
    const float t = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
    union { float x; uint32_t bits; } shifted = {multiply_add(t, 0x1.715476p-1f, 0x1.8p23f)}, scale, found;
    const float n = shifted.x - 0x1.8p23f;
    const float s = multiply_add(n, -0x1.7f7d1cp-20f, multiply_add(n, -0x1.62e4p-1f, t * 0.5f));
    float q = 0x1.6850e4p-10f;
    q = multiply_add(q, s, 0x1.123bccp-7f);
    q = multiply_add(q, s, 0x1.555b98p-5f);
    q = multiply_add(q, s, 0x1.55548ep-3f);
    q = multiply_add(q, s, 0x1.fffff8p-2f);
    const int is_small = t < -0x1.5d58ap6f;
    scale.bits = (shifted.bits << 23) + ((is_small ? 127u + 75u : 127u) << 23);
    const float root = (multiply_add(q * s, s, s) + 1.0f) * scale.x;
    found.x = root * root + (is_small ? 0x1p24f : 0);
    found.bits -= is_small ? (127u + 24u) << 23 : 0;
    return found.x;
}

static inline double exp_of_double(double x)
{
    const double t = x < -746.0 ? -746.0 : x;
    union { double x; uint64_t bits; } shifted = {multiply_add_double(t, 0x1.71547652b82fep+0, 0x1.8p52)}, found;
    const double n = shifted.x - 0x1.8p52;
    const double s = multiply_add_double(n, -0x1.cf79abc9e3b3ap-40, multiply_add_double(n, -0x1.62e42fefap-1, t));
    double q = 0x1.af38a9b0ec855p-26;
    q = multiply_add_double(q, s, 0x1.289185613a3d6p-22);
    q = multiply_add_double(q, s, 0x1.71de0dae63bb3p-19);
    q = multiply_add_double(q, s, 0x1.a019b90d2ae7ap-16);
    q = multiply_add_double(q, s, 0x1.a01a01a7c41d5p-13);
    q = multiply_add_double(q, s, 0x1.6c16c1788bd90p-10);
    q = multiply_add_double(q, s, 0x1.11111111109b3p-7);
    q = multiply_add_double(q, s, 0x1.5555555553d63p-5);
    q = multiply_add_double(q, s, 0x1.5555555555556p-3);
    q = multiply_add_double(q, s, 0x1.0000000000001p-1);
    const int is_small = t < -0x1.6232bdd7abcd2p9;
    found.x = multiply_add_double(q * s, s, s) + 1.0;
    found.bits += (shifted.bits << 52) + (is_small ? 1076ull << 52 : 0);
    found.x += is_small ? 0x1p54 : 0;
    found.bits -= is_small ? (1023ull + 54ull) << 52 : 0;
    return x <= 0x1.62e42fefa39efp9 ? found.x : x + INFINITY;
}

#undef exp
#define exp(x) _Generic((x), float: exp_of_float, default: exp_of_double)(x)
