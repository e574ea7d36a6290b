/* Sort rows stably: their elements, and the indices of these. */
static void $name(const int64_t *a)
{
    const $type *x = (const $type *)(intptr_t)a[0];
    $type *sorted = ($type *)(intptr_t)a[1];
    int64_t *at = (int64_t *)(intptr_t)a[2], *const work = (int64_t *)(intptr_t)a[3];
    const int64_t rows = a[4], size = a[5];
    for (int64_t row = 0; row < rows; row++, x += size, sorted += size, at += size) {
        for (int64_t i = 0; i < size; i++)
            at[i] = i;
        for (int64_t width = 1; width < size; width *= 2)
            for (int64_t begin = 0; begin + width < size; begin += 2 * width) {
                const int64_t end = begin + 2 * width < size ? begin + 2 * width : size;
                memcpy(work, at + begin, (size_t)width * sizeof *work);
                for (int64_t left = 0, right = begin + width, to = begin; left < width;) {
                    const int is_right = right < end && $before(x[at[right]], x[work[left]]);
                    at[to++] = is_right ? at[right++] : work[left++];
                }
            }
        for (int64_t i = 0; i < size; i++)
            sorted[i] = x[at[i]];
    }
}
