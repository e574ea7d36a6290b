/* Copy elements of arrays (outer, size, inner) at indices of the middle axis, which each of the outer has its own of or
   not; 1 if one is out of range. */
static int take(const int64_t *a)
{
    const char *const x = (const char *)(intptr_t)a[0];
    const int64_t *const indices = (const int64_t *)(intptr_t)a[1];
    char *to = (char *)(intptr_t)a[2];
    const int64_t outer = a[3], size = a[4], count = a[5], bytes = a[6], own = a[7], least = a[8];
    for (int64_t i = 0; i < (own ? outer : 1) * count; i++)
        if (indices[i] < least || indices[i] >= size)
            return 1;
    for (int64_t i = 0; i < outer; i++)
        for (int64_t j = 0; j < count; j++, to += bytes) {
            const int64_t at = indices[own * i * count + j];
            memcpy(to, x + (i * size + at + (at < 0 ? size : 0)) * bytes, (size_t)bytes);
        }
    return 0;
}
