/* Direct convolutions, for groups of few outputs: vectors hold positions, and each weight is a scalar. */

enum { VECTORS = 4, TAPS = 12 };

/* Compute one output on rows of positions, with vectors along a row; the weights are [tap][input] here. */
static inline __attribute__((always_inline)) void direct(const T *x, const word *rows, const word *offsets, word taps,
                                                         word inputs, word channel, const T *weights, T *out,
                                                         const int R, const int V)
{
    vector sum[R][V];
    const T *row[R];
    for (int r = 0; r < R; r++) {
        row[r] = x + rows[r];
        for (int v = 0; v < V; v++)
            sum[r][v] = (vector){0};
    }
    for (word tap = 0; tap < taps; tap++) {
        word at = offsets[tap];
        for (word c = 0; c < inputs; c++, at += channel) {
            const T weight = *weights++;
            for (int r = 0; r < R; r++)
                for (int v = 0; v < V; v++)
                    sum[r][v] += load(row[r] + at + v * LANES) * weight;
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            save(out + (r * VECTORS + v) * LANES, sum[r][v]);
}

#define ROWS(R, V)     case R * 16 + V:         direct(x, rows, offsets, p->taps, p->inputs, b->channel, weights, sums, R, V);         break;

/* Compute one output on a block. */
static void direct_block(const problem *p, const block *b, const T *packed, const word *offsets, const T *weights,
                         T *out)
{
    const word count = b->count[0] * b->count[1] * b->count[2], step = p->out_stride[3];
    for (word begin = 0; begin < count;) {
        const int R = count - begin >= 4 ? 4 : 1;
        word rows[4], to[4];
        find_rows(p, b, begin, R, rows, to);
        for (word column = 0; column < b->count[3]; column += VECTORS * LANES) {
            const word width = least(VECTORS * LANES, b->count[3] - column);
            const T *x = packed + column;
            _Alignas(BYTES) T sums[4 * VECTORS * LANES];
            switch (R * 16 + (width + LANES - 1) / LANES) {
                ROWS(1, 1) ROWS(1, 2) ROWS(1, 3) ROWS(1, 4) ROWS(4, 1) ROWS(4, 2) ROWS(4, 3) ROWS(4, 4)
            }
            for (int r = 0; r < R; r++) {
                T *line = out + to[r] + column * step;
                const T *from = sums + r * VECTORS * LANES;
                if (step == 1 && width % LANES == 0)
                    for (word i = 0; i < width; i += LANES)
                        save(line + i, load(from + i));
                else if (step == 1)
                    memcpy(line, from, width * sizeof(T));
                else
                    for (word i = 0; i < width; i++)
                        line[i * step] = from[i];
            }
        }
        begin += R;
    }
}

static void direct_tasks(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    /* The following problems have equally many tasks and write the interleaved positions, in the same cache lines. */
    const problem *p = state;
    for (word task = begin; task < end; p = p->next ? (const problem *)p->next : (task++, state)) {
        T *packed = (T *)(p->scratch + thread * p->scratch_bytes);
        const word group = task % p->groups;
        const block b = block_of(p, task / p->groups, p->inputs, 0);
        word offsets[p->taps];
        for (word tap = 0; tap < p->taps; tap++)
            offsets[tap] = offset_of(p, &b, tap, 0);
        pack(p, &b, (const T *)p->x + group * p->x_group, p->inputs, packed, 0);
        for (word o = 0; o < p->outputs; o++) {
            const T *weights = (const T *)p->weights + (group * p->outputs + o) * p->taps * p->inputs;
            T *out = (T *)p->out + group * p->out_group + o * p->out_channel + b.from[3] * p->out_stride[3];
            direct_block(p, &b, packed, offsets, weights, out);
        }
    }
}

void convolve_directly(const problem *p)
{
    ((sharing *)p->share)(direct_tasks, p, blocks(p) * p->groups, p->threads);
}

/* Sum all taps of one input and one output of a group over a block, a dozen taps at a time. */
static void direct_sums(const problem *p, const block *b, const T *packed, const T *deltas, word width, T *sums)
{
    const word rows = b->count[0] * b->count[1] * b->count[2];
    bits valid;
    for (int i = 0; i < LANES; i++)
        valid[i] = i < b->count[3] % LANES ? -1 : 0;
    for (word first = 0; first < p->taps; first += TAPS) {
        const word taps = least(TAPS, p->taps - first);
        word offsets[TAPS];
        vector sum[TAPS] = {{0}};
        for (word tap = 0; tap < TAPS; tap++)
            offsets[tap] = offset_of(p, b, first + least(tap, taps - 1), 0);
        for (word row = 0; row < rows; row++) {
            word at, to;
            find_rows(p, b, row, 1, &at, &to);
            for (word i = 0; i < width; i += LANES) {
                const vector delta = load(deltas + row * width + i);
                const T *from = packed + at + i;
                if (i + LANES > b->count[3]) /* memory beyond the row may hold infinities */
                    for (int tap = 0; tap < TAPS; tap++)
                        sum[tap] += (vector)((bits)load(from + offsets[tap]) & valid) * delta;
                else if (taps <= 9)
                    for (int tap = 0; tap < 9; tap++)
                        sum[tap] += load(from + offsets[tap]) * delta;
                else
                    for (int tap = 0; tap < TAPS; tap++)
                        sum[tap] += load(from + offsets[tap]) * delta;
            }
        }
        for (word tap = 0; tap < taps; tap++) {
            T lanes[LANES], total = 0;
            save(lanes, sum[tap]);
            for (int i = 0; i < LANES; i++)
                total += lanes[i];
            sums[first + tap] += total;
        }
    }
}

/* One task for each group sums its weights, [output][input][tap], over all blocks in order. */
static void direct_weight_tasks(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const problem *p = state;
    T *packed = (T *)(p->scratch + thread * p->scratch_bytes);
    const word all = blocks(p);
    for (word group = begin; group < end; group++)
        for (word number = 0; number < all; number++) {
            const block b = block_of(p, number, p->inputs, 0);
            const word rows = b.count[0] * b.count[1] * b.count[2];
            const word width = (b.count[3] + LANES - 1) / LANES * LANES;
            T *deltas = packed + b.stride[0] * b.extent[0] + LANES;
            pack(p, &b, (const T *)p->x + group * p->x_group, p->inputs, packed, 0);
            for (word o = 0; o < p->outputs; o++) {
                for (word row = 0; row < rows; row++) {
                    word at, from;
                    find_rows(p, &b, row, 1, &at, &from);
                    const T *delta = (const T *)p->out + group * p->out_group + o * p->out_channel + from;
                    copy_row(deltas + row * width, 1, delta, p->out_stride[3], b.from[3], 1, b.from[3] + b.count[3],
                             width);
                }
                for (word c = 0; c < p->inputs; c++)
                    direct_sums(p, &b, packed + c * b.channel, deltas, width,
                                (T *)p->weights + ((group * p->outputs + o) * p->inputs + c) * p->taps);
            }
        }
}

void correlate_directly(const problem *p)
{
    ((sharing *)p->share)(direct_weight_tasks, p, p->groups, p->threads);
}

/* Depthwise convolutions with contiguous channels: vectors hold groups, which are read in place.
   The weights are [tap][group]. */

/* An offset is negative in an image with negative strides. */
#define OUTSIDE INT64_MIN

/* The offset in x of a tap of a row of positions, along the first three axes; OUTSIDE if it is outside x. */
static word row_of_tap(const problem *p, const word *at, const word *tap)
{
    word offset = 0;
    for (int axis = 0; axis < 3; axis++) {
        const word position = at[axis] * p->step[axis] + p->low[axis] + tap[axis];
        if (position < 0 || position >= p->size[axis])
            return OUTSIDE;
        offset += position * p->x_stride[axis];
    }
    return offset;
}

/* A vector of the first numbers, padded with zeros. */
static vector some(const T *from, word count)
{
    if (count >= LANES)
        return load(from);
    T few[LANES] = {0};
    copy_few(few, from, count);
    return load(few);
}

static void channel_tasks(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const problem *p = state;
    (void)thread;
    for (word task = begin; task < end; task++) {
        const word at[3] = {task / p->count[2] / p->count[1], task / p->count[2] % p->count[1], task % p->count[2]};
        word rows[p->taps];
        for (word tap = 0; tap < p->taps; tap++)
            rows[tap] = row_of_tap(p, at, p->offsets + tap * AXES);
        T *out = (T *)p->out + at[0] * p->out_stride[0] + at[1] * p->out_stride[1] + at[2] * p->out_stride[2];
        for (word column = 0; column < p->count[3]; column++, out += p->out_stride[3]) {
            const T *from[p->taps], *weights[p->taps];
            word found = 0;
            for (word tap = 0; tap < p->taps; tap++) {
                const word position = column * p->step[3] + p->low[3] + p->offsets[tap * AXES + 3];
                if (rows[tap] != OUTSIDE && position >= 0 && position < p->size[3]) {
                    from[found] = (const T *)p->x + rows[tap] + position * p->x_stride[3];
                    weights[found++] = (const T *)p->weights + tap * p->groups;
                }
            }
            word c = 0;
            for (; c + VECTORS * LANES <= p->groups; c += VECTORS * LANES) {
                vector sum[VECTORS] = {{0}};
                for (word i = 0; i < found; i++)
                    for (int v = 0; v < VECTORS; v++)
                        sum[v] += load(from[i] + c + v * LANES) * load(weights[i] + c + v * LANES);
                for (int v = 0; v < VECTORS; v++)
                    save(out + c + v * LANES, sum[v]);
            }
            for (; c < p->groups; c += LANES) {
                const word count = least(LANES, p->groups - c);
                vector sum = {0};
                for (word i = 0; i < found; i++)
                    sum += some(from[i] + c, count) * some(weights[i] + c, count);
                T sums[LANES];
                save(sums, sum);
                memcpy(out + c, sums, count * sizeof(T));
            }
        }
    }
}

void convolve_channels(const problem *p)
{
    ((sharing *)p->share)(channel_tasks, p, p->count[0] * p->count[1] * p->count[2], p->threads);
}

static void channel_weight_tasks(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const problem *p = state;
    (void)thread;
    for (word task = begin; task < end; task++) {
        const word first = task * LANES, count = least(LANES, p->groups - first);
        for (word row = 0; row < p->count[0] * p->count[1] * p->count[2]; row++) {
            const word at[3] = {row / p->count[2] / p->count[1], row / p->count[2] % p->count[1], row % p->count[2]};
            const T *delta = (const T *)p->out + first;
            for (int axis = 0; axis < 3; axis++)
                delta += at[axis] * p->out_stride[axis];
            for (word tap = 0; tap < p->taps; tap++) {
                const word there = row_of_tap(p, at, p->offsets + tap * AXES);
                if (there == OUTSIDE)
                    continue;
                const word step = p->step[3], offset = p->low[3] + p->offsets[tap * AXES + 3];
                const word low = offset < 0 ? (-offset + step - 1) / step : 0;
                const word high = offset >= p->size[3] ? 0 : least(p->count[3], (p->size[3] - 1 - offset) / step + 1);
                const T *x = (const T *)p->x + first + there + offset * p->x_stride[3];
                vector sum[VECTORS] = {{0}};
                word i = low;
                for (; count == LANES && i + VECTORS <= high; i += VECTORS)
                    for (int v = 0; v < VECTORS; v++)
                        sum[v] += load(x + (i + v) * step * p->x_stride[3]) * load(delta + (i + v) * p->out_stride[3]);
                for (; i < high; i++)
                    sum[0] += some(x + i * step * p->x_stride[3], count) * some(delta + i * p->out_stride[3], count);
                for (int v = 1; v < VECTORS; v++)
                    sum[0] += sum[v];
                T *weights = (T *)p->weights + tap * p->groups + first, sums[LANES];
                save(sums, sum[0]);
                for (word c = 0; c < count; c++)
                    weights[c] += sums[c];
            }
        }
    }
}

void correlate_channels(const problem *p)
{
    ((sharing *)p->share)(channel_weight_tasks, p, (p->groups + LANES - 1) / LANES, p->threads);
}
