
typedef uint16_t bfloat;

static inline float from_bfloat(bfloat b)
{
    return float_of((uint32_t)b << 16);
}

static inline float rounded_bfloat_float(float x)
{
    const uint32_t bits = bits_of(x), near = bits + (bits >> 16 & 1u) + 0x7fffu;
    return float_of(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x00400000u : near) & 0xffff0000u);
}

static inline float rounded_bfloat_double(double x)
{
    const double size = fabs(x);
    union { double x; int64_t bits; } power = {size}, unit;
    power.bits &= 0x7ff0000000000000;
    const int64_t least = power.bits > 0x3810000000000000 ? power.bits : 0x3810000000000000;
    unit.bits = (least < 0x47f0000000000000 ? least : 0x47f0000000000000) + 0x02d0000000000000;
    return copysignf((float)(size + unit.x - unit.x), (float)x);
}

#define rounded_bfloat(x) _Generic((x), float: rounded_bfloat_float, default: rounded_bfloat_double)(x)
#define to_bfloat(x) (bfloat)(bits_of(rounded_bfloat(x)) >> 16)
