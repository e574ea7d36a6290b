/* The tile operations of backends/gpu/codegen/functions/tiles.cuh: lanes exchange registers at a barrier of their warp. */

// Of what is kept here for all blocks, sanitizers are to see nothing.
#define CUDA_ON_CPU_UNSEEN __attribute__((no_sanitize("thread"), no_sanitize("address"), noinline, optimize("O2")))

namespace cuda_on_cpu {

// The operands of a lane that its warp sees: the halves of its registers as floats, or the address of a row.
struct Shown { float a[4][2], b[2][2]; const unsigned short *row; };
inline Shown shown[1024];

// Copies of a thread that it has not waited for; those of an earlier block, which was ended, are forgotten.
struct Copy { uint4 value, *to; unsigned group; };
struct Copies { Copy at[256]; unsigned count, group, block; };
inline Copies copies[1024];
extern unsigned blocks_begun;

CUDA_ON_CPU_UNSEEN inline Copies &own_copies()
{
    Copies &own = copies[threadIdx.x];
    if (own.block != blocks_begun) own.count = own.group = 0, own.block = blocks_begun;
    return own;
}

CUDA_ON_CPU_UNSEEN inline void remember(uint4 *to, uint4 value)
{
    Copies &own = own_copies();
    own.at[own.count++ % 256] = {value, to, own.group};
}

CUDA_ON_CPU_UNSEEN inline void commit() { own_copies().group++; }

// The next copy that is complete when a number of groups are pending; without an address if there is none.
CUDA_ON_CPU_UNSEEN inline Copy next_complete(unsigned pending)
{
    Copies &own = own_copies();
    if (!own.count || own.at[0].group + pending >= own.group) return {};
    const Copy found = own.at[0];
    own.count--;
    for (unsigned i = 0; i < own.count; i++) own.at[i] = own.at[i + 1];
    return found;
}

CUDA_ON_CPU_UNSEEN inline void show(const void *row) { shown[threadIdx.x].row = (const unsigned short *)row; }

CUDA_ON_CPU_UNSEEN inline const unsigned short *shown_row(unsigned lane)
{
    return shown[threadIdx.x / 32 * 32 + lane].row;
}

inline void load(unsigned (&x)[4], const void *row, bool transposes)
{
    show((const uint4 *)row);
    warp_barrier(__LINE__);
    const unsigned first = threadIdx.x % 32 / 4, second = threadIdx.x % 4 * 2;
    for (unsigned matrix = 0; matrix < 4; matrix++) {
        unsigned pair[2];
        for (unsigned e = 0; e < 2; e++)
            pair[e] = transposes ? shown_row(matrix * 8 + second + e)[first] : shown_row(matrix * 8 + first)[second + e];
        x[matrix] = pair[0] | pair[1] << 16;
    }
    warp_barrier(__LINE__);
}

CUDA_ON_CPU_UNSEEN inline void show(unsigned place, float low, float high)
{
    float *const to = place < 4 ? shown[threadIdx.x].a[place] : shown[threadIdx.x].b[place - 4];
    to[0] = low, to[1] = high;
}

CUDA_ON_CPU_UNSEEN inline float product(float added, unsigned i)
{
    const unsigned lane = threadIdx.x % 32;
    const Shown *const warp = shown + threadIdx.x / 32 * 32;
    double sum = added;
    for (unsigned k = 0; k < 16; k++) {
        const Shown &row = warp[lane / 4 * 4 + k % 8 / 2], &column = warp[(lane % 4 * 2 + i % 2) * 4 + k % 8 / 2];
        sum += (double)row.a[k / 8 * 2 + i / 2][k % 2] * column.b[k / 8][k % 2];
    }
    return (float)sum;
}

}  // namespace cuda_on_cpu

/* Odd threads copy when they wait, the others at once: a device may do either. */
static inline void copy_async(void *to, const void *from, bool is_inside)
{
    uint4 value = make_uint4(0, 0, 0, 0);
    if (is_inside) value = *(const uint4 *)from;
    if (threadIdx.x % 2) cuda_on_cpu::remember((uint4 *)to, value);
    else *(uint4 *)to = value;
}

static inline void commit_copies() { cuda_on_cpu::commit(); }

template <int PENDING> static inline void wait_for_copies()
{
    while (true) {
        const cuda_on_cpu::Copy copy = cuda_on_cpu::next_complete(PENDING);
        if (!copy.to) return;
        *copy.to = copy.value;
    }
}

static inline void load_matrices(unsigned (&x)[4], const void *row) { cuda_on_cpu::load(x, row, false); }
static inline void load_matrices_transposed(unsigned (&x)[4], const void *row) { cuda_on_cpu::load(x, row, true); }

template <class T> static inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    const unsigned registers[6] = {a[0], a[1], a[2], a[3], b0, b1};
    for (unsigned i = 0; i < 6; i++)
        cuda_on_cpu::show(i, T::of_bits(registers[i] & 0xffff), T::of_bits(registers[i] >> 16));
    cuda_on_cpu::warp_barrier(__LINE__);
    for (unsigned i = 0; i < 4; i++) c[i] = cuda_on_cpu::product(c[i], i);
    cuda_on_cpu::warp_barrier(__LINE__);
}
