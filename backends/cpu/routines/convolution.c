/* Convolutions: tiles of matrix products whose operands are packed into the cache.

   An image has four axes of positions here, and channels. Axis 3 is contiguous in
   packed memory: the last spatial one, or the batch of a layout that has it last.
   A convolution, and each phase of its derivative by images, computes

       out[q, o] = sum over taps t and channels c of weights[t, c, o] * x[q * step + offset(t), c]

   with zeros outside x. A block of positions is packed with its halo, so that all
   taps read the same memory: no im2col matrix is made. A tile, accumulated in
   registers, is the product of a row of positions and a panel of outputs. A panel
   has as many outputs as one or two vectors hold.

   A driver defines PANEL, the vectors of outputs in a panel, 1 or 2; and DIRECT as 1 for the functions of few outputs,
   which are a library of their own, as most networks need only one of the two. */

#include "vectors.h"
#include "transpose.h"

enum { WIDTH = PANEL * LANES, AXES = 4, MOST_ROWS = 7, FEW = 4, SHORT = 16 };

typedef struct {
    word share, threads, scratch, scratch_bytes;
    word x, out, weights, next;                      /* addresses; the weights are packed */
    word groups, inputs, outputs, taps;              /* inputs and outputs of a group */
    word parts, splits;                              /* tasks: parts of the blocks, splits of the outputs */
    word size[AXES], count[AXES], block[AXES];       /* of x, of out, and of a block of out */
    word step[AXES], low[AXES], span[AXES];          /* x's steps; the lowest offset of taps, and their extent */
    word x_stride[AXES], x_channel, x_group;         /* in elements */
    word out_stride[AXES], out_channel, out_group;
    word offsets[];                                  /* of each tap along each axis, from the lowest */
} problem;

/* A packed block with its halo. */
typedef struct {
    word from[AXES], count[AXES]; /* the first position, and how many */
    word step[AXES], extent[AXES], stride[AXES];
    word channel, phases, length; /* strides of channels; axis 3 in phases of its step, each of a length */
} block;

static word blocks(const problem *p)
{
    word total = 1;
    for (int i = 0; i < AXES; i++)
        total *= (p->count[i] + p->block[i] - 1) / p->block[i];
    return total;
}

/* The geometry of block `number`, packed with channels before or after axis 3. */
static block block_of(const problem *p, word number, word channels, int behind)
{
    block b;
    for (int i = AXES - 1; i >= 0; i--) {
        const word all = (p->count[i] + p->block[i] - 1) / p->block[i];
        b.from[i] = number % all * p->block[i];
        b.count[i] = least(p->block[i], p->count[i] - b.from[i]);
        number /= all;
        b.step[i] = least(p->step[i], p->span[i]); /* positions that no tap reads are not packed */
        b.extent[i] = (b.count[i] - 1) * b.step[i] + p->span[i];
    }
    b.phases = behind ? 1 : b.step[3];
    b.length = behind ? b.extent[3] : b.count[3] + (p->span[3] - 1) / p->step[3];
    b.channel = behind ? 1 : b.phases * b.length;
    b.stride[3] = behind ? channels : 1;
    b.stride[2] = channels * b.phases * b.length;
    b.stride[1] = b.extent[2] * b.stride[2];
    b.stride[0] = b.extent[1] * b.stride[1];
    return b;
}

/* The position in x of a packed position along an axis. */
static word source(const problem *p, const block *b, int axis, word position)
{
    return (b->from[axis] + position / b->step[axis]) * p->step[axis] + position % b->step[axis] + p->low[axis];
}
/* The same where the windows overlap: packed positions are contiguous in x. */
static word source_of(const problem *p, const block *b, int axis, word position)
{
    if (p->step[axis] > p->span[axis])
        return source(p, b, axis, position);
    return b->from[axis] * p->step[axis] + position + p->low[axis];
}

static word offset_of(const problem *p, const block *b, word tap, int behind)
{
    const word *at = p->offsets + tap * AXES;
    const word last = behind ? at[3] * b->stride[3] : at[3] % b->step[3] * b->length + at[3] / b->step[3];
    return at[0] * b->stride[0] + at[1] * b->stride[1] + at[2] * b->stride[2] + last;
}

/* Copy a row of one channel: `count` elements, of which the first is at `begin` of x, at a stride of `step`. */
static void copy_row(T *to, word to_step, const T *from, word stride, word begin, word step, word size, word count)
{
    const word first = begin < 0 ? least(count, (-begin + step - 1) / step) : 0;
    const word last = begin >= size ? first : most(first, least(count, (size - 1 - begin) / step + 1));
    from += begin * stride;
    stride *= step;
    for (word i = 0; i < first; i++)
        to[i * to_step] = 0;
    if (to_step == 1 && stride == 1)
        memcpy(to + first, from + first, (last - first) * sizeof(T));
    else if (to_step == 1 && stride == 2) /* by shuffles */
        for (word i = first; i < last; i++)
            to[i] = from[i * 2];
    else
        for (word i = first; i < last; i++)
            to[i * to_step] = from[i * stride];
    for (word i = last; i < count; i++)
        to[i * to_step] = 0;
}

/* Copy a row of at most SHORT elements of each channel. */
static void copy_short_rows(T *to, word to_channel, const T *from, word channel, word step, word count, word channels)
{
    for (word c = 0; c < channels; c++, to += to_channel, from += channel)
        if (step == 1)
            copy_few(to, from, count);
        else if (step == 2 && count == 4)
            to[0] = from[0], to[1] = from[2], to[2] = from[4], to[3] = from[6];
        else
            for (word i = 0; i < count; i++)
                to[i] = from[i * step];
}

/* Pack all channels of a row: for each phase of axis 3 in a line of its own, or with channels behind positions. */
static void pack_row(const problem *p, const block *b, const T *x, word channels, T *to, int behind)
{
    const word begin = b->from[3] * p->step[3] + p->low[3], size = p->size[3], stride = p->x_stride[3];
    const int has_gaps = p->step[3] > p->span[3]; /* positions that no tap reads */
    if (behind && has_gaps) {
        for (word c = 0; c < channels; c++)
            for (word at = 0; at < p->span[3]; at++)
                copy_row(to + at * channels + c, p->span[3] * channels, x + c * p->x_channel, stride, begin + at,
                         p->step[3], size, b->count[3]);
        return;
    }
    const word step = behind ? 1 : p->step[3], length = b->length;
    const int is_short = !behind && length <= SHORT && (p->x_channel != 1 || channels == 1);
    if (is_short) /* calls for each end of a row would take longer than the row */
        memset(to, 0, channels * b->channel * sizeof(T));
    for (word phase = 0; phase < b->phases; phase++) {
        const word from = begin + phase;
        const word first = from < 0 ? least(length, (-from + step - 1) / step) : 0;
        const word last = from >= size ? first : most(first, least(length, (size - 1 - from) / step + 1));
        const T *source = x + (from + first * step) * stride;
        T *line = to + phase * length;
        if (behind) {
            memset(to, 0, first * channels * sizeof(T));
            memset(to + last * channels, 0, (length - last) * channels * sizeof(T));
            if (p->x_channel == 1)
                for (word i = first; i < last; i++)
                    memcpy(to + i * channels, source + (i - first) * stride, channels * sizeof(T));
            else if (stride == 1)
                transpose(source, p->x_channel, to + first * channels, channels, channels, last - first);
            else
                for (word c = 0; c < channels; c++)
                    copy_row(to + c, channels, x + c * p->x_channel, stride, from, 1, size, length);
        } else if (is_short)
            copy_short_rows(line + first, b->channel, source, p->x_channel, step * stride, last - first, channels);
        else if (p->x_channel == 1 && channels > 1) {
            for (word c = 0; c < channels; c++) {
                memset(line + c * b->channel, 0, first * sizeof(T));
                memset(line + c * b->channel + last, 0, (length - last) * sizeof(T));
            }
            transpose(source, step * stride, line + first, b->channel, last - first, channels);
        } else
            for (word c = 0; c < channels; c++)
                copy_row(line + c * b->channel, 1, x + c * p->x_channel, stride, from, step, size, length);
    }
}

/* Pack a block of x, channels from x on. */
static void pack(const problem *p, const block *b, const T *x, word channels, T *to, int behind)
{
    for (word i = 0; i < b->extent[0]; i++)
        for (word j = 0; j < b->extent[1]; j++)
            for (word k = 0; k < b->extent[2]; k++) {
                const word at[3] = {source_of(p, b, 0, i), source_of(p, b, 1, j), source_of(p, b, 2, k)};
                T *row = to + i * b->stride[0] + j * b->stride[1] + k * b->stride[2];
                const T *from = x;
                int inside = 1;
                for (int axis = 0; axis < 3; axis++) {
                    inside = inside && at[axis] >= 0 && at[axis] < p->size[axis];
                    from += at[axis] * p->x_stride[axis];
                }
                if (!inside) {
                    memset(row, 0, channels * b->phases * b->length * sizeof(T));
                    continue;
                }
                pack_row(p, b, from, channels, row, behind);
            }
}

#define SUMS(s) vector first##s = {0}, second##s = {0};
#define LOADED(s) \
    if (s < R * C) { \
        first##s = load(c + s * WIDTH); \
        if (PANEL > 1) \
            second##s = load(c + s * WIDTH + LANES); \
    }
#define MULTIPLIED(s) \
    if (s < R * C) { \
        const T x = row[s / C][at + s % C]; \
        first##s += weights * x; \
        if (PANEL > 1) \
            second##s += others * x; \
    }
#define SAVED(s) \
    if (s < R * C) { \
        save(c + s * WIDTH, first##s); \
        if (PANEL > 1) \
            save(c + s * WIDTH + LANES, second##s); \
    }

/* c[r, i] (+)= sum over u and k of a[u, k] * b[rows[r] + offsets[u] + k * step + i], vectors of WIDTH. */
static inline __attribute__((always_inline)) void product(const T *a, const T *b, const word *rows, const word *offsets,
                                                          word outer, word inner, word step, T *c, int adds,
                                                          const int R, const int C)
{
    EACH_SUM(SUMS)
    const T *row[MOST_ROWS];
    for (int r = 0; r < R; r++)
        row[r] = b + rows[r];
    if (adds) {
        EACH_SUM(LOADED)
    }
    for (word u = 0; u < outer; u++) {
        word at = offsets[u];
        for (word k = 0; k < inner; k++, at += step, a += WIDTH) {
            const vector weights = load(a), others = PANEL > 1 ? load(a + LANES) : weights;
            EACH_SUM(MULTIPLIED)
        }
    }
    EACH_SUM(SAVED)
}

#define SIZE(R, C) \
    case R * 16 + C: \
        if (R * C <= TILE) \
            product(a, b, rows, offsets, outer, inner, step, c, adds, R * C <= TILE ? R : 1, R * C <= TILE ? C : 1); \
        return;

/* Not cloned for constant `adds`: GCC would take twice as long for the same inner loops. */
#if defined __GNUC__ && !defined __clang__
__attribute__((noclone))
#endif
static void tile(const T *a, const T *b, const word *rows, const word *offsets, word outer, word inner, word step, T *c,
                 int adds, int R, int C)
{
    switch (R * 16 + C) {
        SIZE(1, 1) SIZE(1, 2) SIZE(1, 3) SIZE(1, 4) SIZE(1, 5) SIZE(1, 6) SIZE(1, 7)
        SIZE(1, 8) SIZE(1, 9) SIZE(1, 10) SIZE(1, 11) SIZE(1, 12) SIZE(1, 13) SIZE(1, 14)
        SIZE(2, 1) SIZE(2, 2) SIZE(2, 3) SIZE(2, 4) SIZE(2, 5) SIZE(2, 6) SIZE(2, 7)
        SIZE(3, 4) SIZE(4, 1) SIZE(4, 2) SIZE(4, 3)
        SIZE(7, 1) SIZE(7, 2)
    }
}

/* The columns of tiles that share a row of `count` about equally. */
static int columns_of(word count)
{
    const word tiles = (count + TILE - 1) / TILE;
    return (int)((count + tiles - 1) / tiles);
}

/* The most rows, up to a number, of a tile of a number of columns. */
static int rows_of(word rows, int columns)
{
    static const int heights[] = {7, 4, 3, 2};
    for (int i = 0; i < 4; i++)
        if (rows >= heights[i] && heights[i] * columns <= TILE && (heights[i] != 3 || columns == 4))
            return heights[i];
    return 1;
}

/* The offsets of a block's rows in packed memory and in out. */
static void find_rows(const problem *p, const block *b, word row, int count, word *packed, word *out)
{
    for (int r = 0; r < count; r++) {
        const word k = (row + r) % b->count[2], j = (row + r) / b->count[2] % b->count[1];
        const word i = (row + r) / b->count[2] / b->count[1];
        packed[r] = i * b->step[0] * b->stride[0] + j * b->step[1] * b->stride[1] + k * b->step[2] * b->stride[2];
        out[r] = (b->from[0] + i) * p->out_stride[0] + (b->from[1] + j) * p->out_stride[1]
                 + (b->from[2] + k) * p->out_stride[2];
    }
}

/* Held sums, a vector of outputs for each position, and the runs of positions that are contiguous in out. */
enum { HELD = 64 + TILE };
typedef struct {
    _Alignas(BYTES) T sums[HELD * WIDTH];
    word to[HELD], length[HELD], runs, positions;
} held;

static void hold(held *h, word to, word length, word step)
{
    if (h->runs && h->to[h->runs - 1] + h->length[h->runs - 1] * step == to)
        h->length[h->runs - 1] += length;
    else
        h->to[h->runs] = to, h->length[h->runs++] = length;
    h->positions += length;
}

/* Write the held sums: many positions at once, so that each cache line of out is written once. */
static void flush(const problem *p, held *h, T *out, word outputs)
{
    const word step = p->out_stride[3], channel = p->out_channel;
    const T *sums = h->sums;
    for (word run = 0; run < h->runs; run++) {
        const word length = h->length[run];
        T *to = out + h->to[run];
        if (channel == 1)
            for (word i = 0; i < length; i++)
                memcpy(to + i * step, sums + i * WIDTH, outputs * sizeof(T));
        else if (step == 1)
            transpose(sums, WIDTH, to, channel, length, outputs);
        else
            for (word o = 0; o < outputs; o++)
                for (word i = 0; i < length; i++)
                    to[o * channel + i * step] = sums[i * WIDTH + o];
        sums += length * WIDTH;
    }
    h->runs = h->positions = 0;
}

static void products(const problem *p, const block *b, const T *packed, const word *offsets, word group, word first,
                     word last)
{
    const word rows = b->count[0] * b->count[1] * b->count[2], panels = (p->outputs + WIDTH - 1) / WIDTH;
    const int columns = columns_of(b->count[3]);
    /* With few channels the outer loop is over channels: an inner loop over them would be too short. */
    const word outer = p->inputs > FEW ? p->taps : p->taps * p->inputs, inner = p->inputs > FEW ? p->inputs : 1;
    held h = {.runs = 0, .positions = 0};
    for (word panel = first; panel < last; panel++) {
        const T *weights = (const T *)p->weights + (group * panels + panel) * p->taps * p->inputs * WIDTH;
        const word outputs = least(WIDTH, p->outputs - panel * WIDTH);
        T *out = (T *)p->out + group * p->out_group + panel * WIDTH * p->out_channel + b->from[3] * p->out_stride[3];
        for (word row = 0; row < rows;) {
            const int R = rows_of(rows - row, columns);
            word at[MOST_ROWS], to[MOST_ROWS];
            find_rows(p, b, row, R, at, to);
            for (word column = 0; column < b->count[3]; column += columns) {
                const int C = (int)least(columns, b->count[3] - column);
                T *sums = h.sums + h.positions * WIDTH;
                tile(weights, packed + column, at, offsets, outer, inner, b->channel, sums, 0, R, C);
                for (int r = 0; r < R; r++)
                    hold(&h, to[r] + column * p->out_stride[3], C, p->out_stride[3]);
                if (h.positions > HELD - TILE)
                    flush(p, &h, out, outputs);
            }
            row += R;
        }
        flush(p, &h, out, outputs);
    }
}

static void convolve_tasks(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const problem *p = state;
    T *packed = (T *)(p->scratch + thread * p->scratch_bytes);
    const word panels = (p->outputs + WIDTH - 1) / WIDTH, all = blocks(p);
    for (word task = begin; task < end; task++) {
        const word split = task % p->splits, number = task / p->splits % all, group = task / p->splits / all;
        const block b = block_of(p, number, p->inputs, 0);
        const word steps = p->inputs > FEW ? 1 : p->inputs;
        word offsets[p->taps * steps];
        for (word tap = 0; tap < p->taps; tap++)
            for (word c = 0; c < steps; c++)
                offsets[tap * steps + c] = offset_of(p, &b, tap, 0) + c * b.channel;
        pack(p, &b, (const T *)p->x + group * p->x_group, p->inputs, packed, 0);
        products(p, &b, packed, offsets, group, panels * split / p->splits, panels * (split + 1) / p->splits);
    }
}

#if !DIRECT
void convolve(const problem *p)
{
    ((sharing *)p->share)(convolve_tasks, p, blocks(p) * p->groups * p->splits, p->threads);
}
#endif

/* Weights as panels of WIDTH outputs: [group][panel][tap][input][output]. */
typedef struct {
    word share, threads, weights, packed, groups, inputs, outputs, taps, group, output, input, parts;
    word offsets[];
} panels;

/* Whether the weights of all inputs are contiguous for each tap. */
static int are_rows(const word *offsets, word taps, word input)
{
    for (word tap = 0; tap < taps; tap++)
        if (offsets[tap] != tap)
            return 0;
    return input == taps;
}

/* Pack a whole panel from rows of weights, transposed in registers; returns the number of inputs packed. */
static word rows_of_panel(const panels *p, const T *from, T *to)
{
    const word inputs = p->inputs / LANES * LANES;
    for (word i = 0; i < inputs; i += LANES)
        for (word at = i * p->taps; at < (i + LANES) * p->taps; at += LANES)
            for (int v = 0; v < PANEL; v++) {
                vector block[LANES];
                for (int k = 0; k < LANES; k++)
                    block[k] = load(from + (v * LANES + k) * p->output + at);
                turn(block);
                for (int k = 0; k < LANES; k++)
                    save(to + ((at + k) % p->taps * p->inputs + (at + k) / p->taps) * WIDTH + v * LANES, block[k]);
            }
    return inputs;
}

static void panel_tasks(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const panels *p = state;
    const word count = (p->outputs + WIDTH - 1) / WIDTH;
    for (word task = begin; task < end; task++) {
        const word group = task / count, panel = task % count, outputs = least(WIDTH, p->outputs - panel * WIDTH);
        const T *from = (const T *)p->weights + group * p->group + panel * WIDTH * p->output;
        T *to = (T *)p->packed + task * p->taps * p->inputs * WIDTH;
        const word first = outputs == WIDTH && are_rows(p->offsets, p->taps, p->input) ? rows_of_panel(p, from, to) : 0;
        for (word i = first; i < p->inputs; i++)
            for (word tap = 0; tap < p->taps; tap++) {
                T *row = to + (tap * p->inputs + i) * WIDTH;
                const T *column = from + i * p->input + p->offsets[tap];
                for (word o = 0; o < outputs; o++)
                    row[o] = column[o * p->output];
                for (word o = outputs; o < WIDTH; o++)
                    row[o] = 0;
            }
    }
}

/* The number of outputs of a panel. */
int64_t panel_width(const void *nothing)
{
    return WIDTH;
}

#if !DIRECT
void pack_weights(const panels *p)
{
    ((sharing *)p->share)(panel_tasks, p, p->groups * ((p->outputs + WIDTH - 1) / WIDTH), p->threads);
}
#endif

/* Pack the deltas of a panel's outputs: [position][output]. */
static void pack_deltas(const problem *p, const block *b, const T *delta, word outputs, T *to)
{
    const word rows = b->count[0] * b->count[1] * b->count[2], step = p->out_stride[3], channel = p->out_channel;
    const int joins = b->count[3] * step == p->out_stride[2]; /* rows along axis 2 are contiguous */
    const word lines = joins ? b->count[2] : 1, count = lines * b->count[3];
    for (word row = 0; row < rows; row += lines, to += count * WIDTH) {
        word at, from;
        find_rows(p, b, row, 1, &at, &from);
        const T *first = delta + from + b->from[3] * step;
        if (step == 1)
            transpose(first, channel, to, WIDTH, outputs, count);
        else if (channel == 1)
            for (word i = 0; i < count; i++)
                memcpy(to + i * WIDTH, first + i * step, outputs * sizeof(T));
        else
            for (word o = 0; o < outputs; o++)
                for (word i = 0; i < count; i++)
                    to[i * WIDTH + o] = first[i * step + o * channel];
        if (outputs < WIDTH)
            for (word i = 0; i < count; i++)
                memset(to + i * WIDTH + outputs, 0, (WIDTH - outputs) * sizeof(T));
    }
}

static void add_products(const problem *p, const block *b, const T *packed, const T *deltas, const word *rows, T *sums,
                         int adds)
{
    const word count = b->count[0] * b->count[1] * b->count[2];
    const int columns = columns_of(p->inputs);
    for (word tap = 0; tap < p->taps;) {
        const int R = columns == p->inputs ? rows_of(p->taps - tap, columns) : 1;
        word at[MOST_ROWS];
        for (int r = 0; r < R; r++)
            at[r] = offset_of(p, b, tap + r, 1);
        for (word c = 0; c < p->inputs; c += columns)
            tile(deltas, packed + c, at, rows, count, b->count[3], b->step[3] * b->stride[3],
                 sums + (tap * p->inputs + c) * WIDTH, adds, R, (int)least(columns, p->inputs - c));
        tap += R;
    }
}

/* Each part of the blocks has its own sums. They are added up in a fixed order, so results are deterministic. */
static void correlate_tasks(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const problem *p = state;
    T *packed = (T *)(p->scratch + thread * p->scratch_bytes);
    const word count = (p->outputs + WIDTH - 1) / WIDTH, all = blocks(p), panel_size = p->taps * p->inputs * WIDTH;
    word volume = p->inputs;
    for (int i = 0; i < AXES; i++)
        volume *= (p->block[i] - 1) * least(p->step[i], p->span[i]) + p->span[i];
    T *deltas = packed + (volume + WIDTH - 1) / WIDTH * WIDTH;
    for (word task = begin; task < end; task++) {
        const word split = task % p->splits, part = task / p->splits % p->parts, group = task / p->splits / p->parts;
        const word first = all * part / p->parts;
        for (word number = first; number < all * (part + 1) / p->parts; number++) {
            const block b = block_of(p, number, p->inputs, 1);
            const word lines = b.count[0] * b.count[1] * b.count[2];
            word rows[lines], to;
            for (word row = 0; row < lines; row++)
                find_rows(p, &b, row, 1, rows + row, &to);
            pack(p, &b, (const T *)p->x + group * p->x_group, p->inputs, packed, 1);
            for (word panel = count * split / p->splits; panel < count * (split + 1) / p->splits; panel++) {
                const T *delta = (const T *)p->out + group * p->out_group + panel * WIDTH * p->out_channel;
                pack_deltas(p, &b, delta, least(WIDTH, p->outputs - panel * WIDTH), deltas);
                T *sums = (T *)p->weights + ((part * p->groups + group) * count + panel) * panel_size;
                add_products(p, &b, packed, deltas, rows, sums, number > first);
            }
        }
    }
}

#if !DIRECT
void correlate(const problem *p)
{
    ((sharing *)p->share)(correlate_tasks, p, p->groups * p->parts * p->splits, p->threads);
}
#endif

/* Add up the sums of all parts, from panels to the layout of the weights. */
static vector sum_of(const panels *p, const T *row, word group)
{
    vector sum = load(row);
    for (word part = 1; part < p->parts; part++)
        sum += load(row + part * p->groups * group);
    return sum;
}

static void total_tasks(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const panels *p = state;
    const word count = (p->outputs + WIDTH - 1) / WIDTH, size = p->taps * p->inputs * WIDTH;
    for (word task = begin; task < end; task++) {
        const word group = task / count, panel = task % count, outputs = least(WIDTH, p->outputs - panel * WIDTH);
        T *to = (T *)p->weights + group * p->group + panel * WIDTH * p->output;
        const T *from = (const T *)p->packed + task * size;
        word first = 0;
        if (outputs == WIDTH && are_rows(p->offsets, p->taps, p->input)) {
            first = p->inputs / LANES * LANES;
            for (word at = 0; at < first * p->taps; at += LANES)
                for (int v = 0; v < PANEL; v++) {
                    vector block[LANES];
                    for (int k = 0; k < LANES; k++) {
                        const word row = (at + k) % p->taps * p->inputs + (at + k) / p->taps;
                        block[k] = sum_of(p, from + row * WIDTH + v * LANES, count * size);
                    }
                    turn(block);
                    for (int k = 0; k < LANES; k++)
                        save(to + (v * LANES + k) * p->output + at, block[k]);
                }
        }
        for (word i = first; i < p->inputs; i++)
            for (word tap = 0; tap < p->taps; tap++) {
                const T *row = from + (tap * p->inputs + i) * WIDTH;
                T *column = to + i * p->input + p->offsets[tap];
                T sums[WIDTH];
                for (int v = 0; v < PANEL; v++)
                    save(sums + v * LANES, sum_of(p, row + v * LANES, count * size));
                for (word o = 0; o < outputs; o++)
                    column[o * p->output] = sums[o];
            }
    }
}

#if !DIRECT
void add_parts(const panels *p)
{
    ((sharing *)p->share)(total_tasks, p, p->groups * ((p->outputs + WIDTH - 1) / WIDTH), p->threads);
}
#endif

#if DIRECT
#include "direct_convolution.c"
#endif
