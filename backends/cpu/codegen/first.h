static inline int64_t first_NAME(const TYPE *x, TYPE value, int64_t n)
{
    (void)value;
    for (int64_t start = 0; start < n; start += SEARCHED) {
        const COUNTER m = n - start < SEARCHED ? (COUNTER)(n - start) : SEARCHED;
        const TYPE *const y = x + start;
        INDEX at = (INDEX)(m - 1);
        #pragma omp simd reduction(min : at)
        for (COUNTER j = 0; j < m; j++) {
            const INDEX here = IS_FOUND ? (INDEX)j : (INDEX)(m - 1);
            at = here < at ? here : at;
        }
        const COUNTER j = at;
        if (IS_FOUND)
            return start + at;
    }
    return 0;
}
