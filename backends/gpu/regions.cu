// Region pooling: the index of each bin's maximum in the images, -1 of an empty bin; a thread for each.
//
// T is the type of elements, A that of comparisons, and Index that of indices. The B boxes are divided into R by S bins;
// N, C, H and W are the sizes of the images. The strides of x are x0 to x3 along N, C, H and W, those of y are y0 to y3
// along boxes, C, R and S. Bounds are computed in float64, as on the CPU.

__device__ __forceinline__ void bounds(
    double first, double last, double scale, Index bin, Index bins, Index limit, Index &from, Index &until)
{
    const double begin = rint(first * scale), extent = rint(last * scale) - begin + 1;
    const double step = (extent > 1 ? extent : 1) / bins;
    from = (Index)fmin(fmax(begin + floor(bin * step), 0.0), (double)limit);
    until = (Index)fmin(fmax(begin + ceil((bin + 1) * step), 0.0), (double)limit);
}

extern "C" __global__ void __launch_bounds__(256) regions(
    const T *__restrict__ x, const double *__restrict__ boxes, long long *__restrict__ y, const Index total,
    const Index B, const Index N, const Index C, const Index H, const Index W, const Index R, const Index S,
    const Index x0, const Index x1, const Index x2, const Index x3,
    const Index y0, const Index y1, const Index y2, const Index y3, const double scale)
{
    for (Index at = blockIdx.x * (Index)256 + threadIdx.x; at < total; at += gridDim.x * (Index)256) {
        const double *const box = boxes + at / y0 % B * 5;
        const Index c = at / y1 % C, r = at / y2 % R, s = at / y3 % S;
        const bool is_there = box[0] >= 0 && box[0] < N;
        Index top, bottom, left, right;
        bounds(box[2], box[4], scale, r, R, H, top, bottom);
        bounds(box[1], box[3], scale, s, S, W, left, right);
        const Index image = (is_there ? (Index)box[0] : 0) * x0 + c * x1;
        A best = 0;
        long long found = -1;
        for (Index i = top; i < bottom && is_there; i++)
            for (Index j = left; j < right; j++) {
                const Index position = image + i * x2 + j * x3;
                const A value = (A)x[position];
                const bool is_better = found < 0 || value > best || (value != value && best == best);
                found = is_better ? position : found;
                best = is_better ? value : best;
            }
        y[at] = found;
    }
}
