/* The forward pass of attention; included after attention.c. */

/* The running maxima and sums of a panel of queries. */
typedef struct { T top[WIDTH], total[WIDTH]; } state;

/* Replace the scores of a tile by weights, update the running maximum and sum, and rescale the earlier sums. */
static void soften(T (*scores)[WIDTH], word rows, state *s, T (*found)[WIDTH], word width)
{
    T top[WIDTH], shift[WIDTH], decay[WIDTH], total[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        top[i] = s->top[i];
    for (word r = 0; r < rows; r++)
        for (int i = 0; i < WIDTH; i++)
            top[i] = top[i] > scores[r][i] ? top[i] : scores[r][i];
    for (int i = 0; i < WIDTH; i++) {
        shift[i] = top[i] == -INFINITY ? 0 : top[i];
        decay[i] = exp(s->top[i] - shift[i]);
        total[i] = s->total[i] * decay[i];
        s->top[i] = top[i];
    }
    for (word r = 0; r < rows; r++)
        for (int i = 0; i < WIDTH; i++) {
            const T weight = exp(scores[r][i] - shift[i]);
            scores[r][i] = weight;
            total[i] += weight;
        }
    for (int i = 0; i < WIDTH; i++)
        s->total[i] = total[i];
    for (word f = 0; f < width; f++)
        for (int i = 0; i < WIDTH; i++)
            found[f][i] *= decay[i];
}

/* Compute the panels of a range of queries of one head. */
static void compute(const attention *p, const T *const *x, T *out, T *sums, word query, T *scratch)
{
    const word lanes = least(p->queries - query, p->panels * WIDTH), panels = (lanes + WIDTH - 1) / WIDTH;
    T(*scores)[WIDTH] = (T(*)[WIDTH])scratch, (*scaled)[WIDTH] = scores + KEYS;
    T(*found)[WIDTH] = scaled + panels * p->features;
    state *states = (state *)(found + panels * p->width);
    const strides by_keys = {p->row[1], p->column[1], WIDTH, WIDTH};
    const strides by_values = {p->column[2], p->row[2], WIDTH, WIDTH};
    const word last = p->causal ? least(p->keys, query + lanes) : p->keys;
    memset(found, 0, panels * p->width * sizeof *found);
    for (word k = 0; k < panels; k++) {
        const T *from = x[0] + (query + k * WIDTH) * p->row[0];
        across(p, 0, from, p->features, lanes - k * WIDTH, p->scale, *(scaled + k * p->features));
        for (int i = 0; i < WIDTH; i++)
            states[k].top[i] = -INFINITY, states[k].total[i] = 0;
    }
    for (word first = 0; first < last; first += KEYS)
        for (word k = 0; k < panels; k++) {
            const word begin = query + k * WIDTH, stop = p->causal ? least(last, begin + WIDTH) : last;
            const word rows = least(stop - first, KEYS);
            if (rows < 1)
                continue;
            const T *keys = x[1] + first * p->row[1], *values = x[2] + first * p->row[2];
            column(&by_keys, keys, *(scaled + k * p->features), *scores, rows, p->features, 0);
            hide(p, x[MASK], *scores, WIDTH, rows, first, begin);
            soften(scores, rows, states + k, found + k * p->width, p->width);
            column(&by_values, values, *scores, *(found + k * p->width), p->width, rows, 1);
        }
    for (word lane = 0; lane < lanes; lane++) {
        const state *s = states + lane / WIDTH;
        const T top = s->top[lane % WIDTH], total = s->total[lane % WIDTH];
        const T *from = *(found + lane / WIDTH * p->width) + lane % WIDTH;
        T *to = out + (query + lane) * p->width;
        for (word f = 0; f < p->width; f++)
            to[f] = from[f * WIDTH] / (total == 0 ? 1 : total);
        sums[query + lane] = total == 0 ? INFINITY : log(total) + top;
    }
}

static void tasks(const void *problem, int64_t begin, int64_t end, int64_t thread)
{
    const attention *p = problem;
    const word size = p->panels * WIDTH, count = (p->queries + size - 1) / size;
    for (word task = begin; task < end; task++) {
        const word head = task / count;
        const T *x[OPERANDS];
        find(p, head, x);
        T *out = (T *)p->out[0] + head * p->queries * p->width, *sums = (T *)p->out[1] + head * p->queries;
        compute(p, x, out, sums, task % count * size, (T *)(p->scratch + thread * p->scratch_size));
    }
}

/* The size of a thread's scratch memory in bytes. */
int64_t scratch_bytes(const void *problem)
{
    const attention *p = problem;
    return (KEYS + p->panels * (p->features + p->width)) * WIDTH * sizeof(T) + p->panels * sizeof(state);
}

int64_t attend(const void *problem)
{
    const attention *p = problem;
    const word size = p->panels * WIDTH;
    ((sharing *)p->share)(tasks, p, heads(p) * ((p->queries + size - 1) / size), p->threads);
    return 0;
}
