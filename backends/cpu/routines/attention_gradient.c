/* The gradient of attention; included after attention.c. */

/* A thread's scratch memory. Weights and slopes have a row for each key and a column for each query of all panels. The
   "across" arrays are consecutive transposed panels. The other arrays are rows, padded to whole panels. */
typedef struct {
    T *weights, *slopes, *scaled_across, *deltas_across, *of_query_across, *scaled, *deltas, *sums, *along, *of_key,
        *of_value, *end;
} memory;

static word whole(word columns) { return (columns + WIDTH - 1) / WIDTH * WIDTH; }

/* Not a power of two, so that the elements of a column are spread over the cache's sets. */
static word pitch_of(const attention *p) { return p->panels * WIDTH + LANES; }

static memory laid_out(const attention *p, T *begin)
{
    const word queries = p->panels * WIDTH, features = whole(p->features), width = whole(p->width);
    memory m = {.weights = begin};
    m.slopes = m.weights + KEYS * pitch_of(p);
    m.scaled_across = m.slopes + KEYS * pitch_of(p);
    m.deltas_across = m.scaled_across + queries * p->features;
    m.of_query_across = m.deltas_across + queries * p->width;
    m.scaled = m.of_query_across + queries * p->features;
    m.deltas = m.scaled + queries * features;
    m.sums = m.deltas + queries * width;
    m.along = m.sums + queries;
    m.of_key = m.along + queries;
    m.of_value = m.of_key + p->keys * features;
    m.end = m.of_value + p->keys * width;
    return m;
}

/* Replace scores by weights, and the products of deltas and values by the derivatives by scores. */
static void slope(T *weights, T *slopes, word pitch, word rows, const T *sums, const T *along)
{
    for (word r = 0; r < rows; r++, weights += pitch, slopes += pitch)
        for (int i = 0; i < WIDTH; i++) {
            const T weight = exp(weights[i] - sums[i]);
            weights[i] = weight;
            slopes[i] = weight * (slopes[i] - along[i]);
        }
}

/* Copy the operands of a range of queries: transposed panels, rows, and one number a query; 0 beyond the last query. */
static void fetch(const attention *p, const T *const *x, const memory *m, word query, word lanes)
{
    const word features = whole(p->features), width = whole(p->width), all = whole(lanes);
    for (word i = 0; i < all; i += WIDTH) {
        const T *queries = x[0] + (query + i) * p->row[0], *deltas = x[3] + (query + i) * p->row[3];
        across(p, 0, queries, p->features, lanes - i, p->scale, m->scaled_across + i * p->features);
        across(p, 3, deltas, p->width, lanes - i, 1, m->deltas_across + i * p->width);
    }
    memset(m->of_query_across, 0, all * p->features * sizeof(T));
    memset(m->scaled, 0, all * features * sizeof(T));
    memset(m->deltas, 0, all * width * sizeof(T));
    for (word i = 0; i < all; i++) {
        m->along[i] = i < lanes ? x[4][(query + i) * p->row[4]] : 0;
        m->sums[i] = i < lanes ? x[5][(query + i) * p->row[5]] : 0;
    }
    for (word i = 0; i < lanes; i++) {
        for (word f = 0; f < p->features; f++)
            m->scaled[i * features + f] = x[0][(query + i) * p->row[0] + f * p->column[0]] * (T)p->scale;
        for (word f = 0; f < p->width; f++)
            m->deltas[i * width + f] = x[3][(query + i) * p->row[3] + f * p->column[3]];
    }
}

/* Compute the tile of a range of keys and the queries copied before. */
static void meet(const attention *p, const T *const *x, const memory *m, word query, word lanes, word first, word rows)
{
    const word pitch = pitch_of(p), features = whole(p->features), width = whole(p->width), all = whole(lanes);
    const strides by_keys = {p->row[1], p->column[1], WIDTH, pitch};
    const strides by_values = {p->row[2], p->column[2], WIDTH, pitch};
    const strides of_queries = {p->column[1], p->row[1], pitch, WIDTH};
    const strides of_keys = {pitch, 1, features, features}, of_values = {pitch, 1, width, width};
    const T *keys = x[1] + first * p->row[1], *values = x[2] + first * p->row[2];
    for (word i = 0; i < all; i += WIDTH) {
        T *weights = m->weights + i, *slopes = m->slopes + i;
        const word seen = p->causal ? least(query + i + WIDTH - first, rows) : rows, count = seen > 0 ? seen : 0;
        column(&by_keys, keys, m->scaled_across + i * p->features, weights, count, p->features, 0);
        column(&by_values, values, m->deltas_across + i * p->width, slopes, count, p->width, 0);
        hide(p, x[MASK], weights, pitch, count, first, query + i);
        slope(weights, slopes, pitch, count, m->sums + i, m->along + i);
        for (word r = count; r < rows; r++)
            for (int lane = 0; lane < WIDTH; lane++)
                weights[r * pitch + lane] = slopes[r * pitch + lane] = 0;
        column(&of_queries, keys, slopes, m->of_query_across + i * p->features, p->features, count, 1);
    }
    for (word f = 0; f < features; f += WIDTH)
        column(&of_keys, m->slopes, m->scaled + f, m->of_key + first * features + f, rows, all, 1);
    for (word f = 0; f < width; f += WIDTH)
        column(&of_values, m->weights, m->deltas + f, m->of_value + first * width + f, rows, all, 1);
}

static void tasks(const void *problem, int64_t begin, int64_t end, int64_t thread)
{
    const attention *p = problem;
    const memory m = laid_out(p, (T *)(p->scratch + thread * p->scratch_size));
    const word features = whole(p->features), width = whole(p->width);
    for (word head = begin; head < end; head++) {
        const T *x[OPERANDS];
        find(p, head, x);
        T *of_query = (T *)p->out[0] + head * p->queries * p->features;
        T *of_key = (T *)p->out[1] + head * p->keys * p->features;
        T *of_value = (T *)p->out[2] + head * p->keys * p->width;
        memset(m.of_key, 0, p->keys * (features + width) * sizeof(T));
        for (word query = 0; query < p->queries; query += p->panels * WIDTH) {
            const word lanes = least(p->queries - query, p->panels * WIDTH);
            const word last = p->causal ? least(p->keys, query + lanes) : p->keys;
            fetch(p, x, &m, query, lanes);
            for (word first = 0; first < last; first += KEYS)
                meet(p, x, &m, query, lanes, first, least(last - first, KEYS));
            for (word i = 0; i < lanes; i++)
                for (word f = 0; f < p->features; f++)
                    of_query[(query + i) * p->features + f] =
                        m.of_query_across[(i / WIDTH * p->features + f) * WIDTH + i % WIDTH] * (T)p->scale;
        }
        for (word j = 0; j < p->keys; j++) {
            memcpy(of_key + j * p->features, m.of_key + j * features, p->features * sizeof(T));
            memcpy(of_value + j * p->width, m.of_value + j * width, p->width * sizeof(T));
        }
    }
}

/* The size of a thread's scratch memory in bytes. */
int64_t scratch_bytes(const void *problem) { return (int64_t)laid_out(problem, NULL).end; }

int64_t attend(const void *problem)
{
    const attention *p = problem;
    ((sharing *)p->share)(tasks, p, heads(p), p->threads);
    return 0;
}
