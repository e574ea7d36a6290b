
static inline float pow_of_float(float x, float y)
{
    const float size = fabsf(x), end = size == 0 ? INFINITY : size;
    const float grown = (size > 0) & (size < INFINITY) ? y : y * end;
    const float exponent = (y == 0) | (size == 1) ? 0 : grown;
    union { float x; uint32_t bits; } whole = {size}, integer;
    const int is_small = whole.bits < 1u << 23;
    integer.x = (float)(int32_t)whole.bits;
    whole.bits = is_small ? integer.bits : whole.bits;
    const uint32_t above = whole.bits - 0x3f3504f3u;
    const int32_t k = ((int32_t)above >> 23) - (is_small ? 149 : 0);
    whole.bits -= above & 0xff800000u;
    const double f = whole.x - 1.0f;
    double p = 0x1.3ce89511a19a3p-4;
    p = multiply_add_double(p, f, -0x1.2488e4a6f84f7p-3);
    p = multiply_add_double(p, f, 0x1.2871e149f45b6p-3);
    p = multiply_add_double(p, f, -0x1.252f39942daf7p-3);
    p = multiply_add_double(p, f, 0x1.45291a18ddf89p-3);
    p = multiply_add_double(p, f, -0x1.714170dd95ccfp-3);
    p = multiply_add_double(p, f, 0x1.a63f4450b65e9p-3);
    p = multiply_add_double(p, f, -0x1.ec72b59549070p-3);
    p = multiply_add_double(p, f, 0x1.277651fc80a55p-2);
    p = multiply_add_double(p, f, -0x1.71547097a4630p-2);
    p = multiply_add_double(p, f, 0x1.ec709ebb934f6p-2);
    p = multiply_add_double(p, f, -0x1.715476565d308p-1);
    p = multiply_add_double(p, f, 0x1.71547652a1e8ep+0);
    const double t = exponent * multiply_add_double(p, f, k), limited = t > 130 ? 130 : t;
    const double e = limited < -160 ? -160 : limited;
    union { double x; uint64_t bits; } shifted = {e + 0x1.8p52}, power;
    const double r = e - (shifted.x - 0x1.8p52);
    double q = 0x1.41fbbbc413930p-13;
    q = multiply_add_double(q, r, 0x1.5f3e530925ea5p-10);
    q = multiply_add_double(q, r, 0x1.3b2d4cf2585bap-7);
    q = multiply_add_double(q, r, 0x1.c6aee88e5a44ep-5);
    q = multiply_add_double(q, r, 0x1.ebfbdc3c2f3e2p-3);
    q = multiply_add_double(q, r, 0x1.62e430af274a6p-1);
    q = multiply_add_double(q, r, 1.0);
    power.x = q;
    power.bits += shifted.bits << 52;
    const float middle = y * 0.5f;
    const int is_whole = truncf(y) == y;
    const uint32_t odd = is_whole & (truncf(middle) != middle) ? 1u << 31 : 0;
    whole.x = x;
    integer.x = (float)power.x;
    integer.bits ^= whole.bits & odd;
    return (x < 0) & (size != INFINITY) & !is_whole ? NAN : integer.x;
}

#undef pow
#define pow(x, y) _Generic((x), float: pow_of_float, default: pow)(x, y)
