extern "C" __global__ void __launch_bounds__(128) by_query(
    const __half *query,
    const __half *key,
    const __half *value,
    const __half *delta,
    const float *along,
    const float *sums,
    __half *of_query,
    long long query_0,
    long long query_rows,
    long long key_0,
    long long key_rows,
    long long value_0,
    long long value_rows,
    long long delta_0,
    long long delta_rows,
    long long along_0,
    long long along_rows,
    long long sums_0,
    long long sums_rows,
    long long of_query_0,
    long long of_query_rows,
    long long queries,
    long long keys,
    long long features,
    long long values,
    float factor)
{
    constexpr int M = 2, BLOCK = 128, STEP = 32;
    extern __shared__ __align__(16) unsigned char memory[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int rows = (int)queries, columns = (int)keys;
    const int blocks = (rows + BLOCK - 1) / BLOCK;
    const int block = (int)(blockIdx.x % blocks) * BLOCK;
    const int first = block + warp * 16 * M;
    long long index = blockIdx.x / blocks;
    const long long i0 = index;
    query += i0 * query_0;
    key += i0 * key_0;
    value += i0 * value_0;
    delta += i0 * delta_0;
    along += i0 * along_0;
    sums += i0 * sums_0;
    of_query += i0 * of_query_0;
    __half *const query_tile = (__half *)memory;
    __half *const delta_tile = query_tile + BLOCK * 72;
    __half *const key_tile = delta_tile + BLOCK * 72;
    __half *const value_tile = key_tile + 2 * STEP * 72;
    float by_query[M][8][4] = {}, sum[M][2], share[M][2];
    #pragma unroll
    for (int m = 0; m < M; m++)
    #pragma unroll
    for (int h = 0; h < 2; h++)
    {
        const int row = first + m * 16 + h * 8 + lane / 4;
        sum[m][h] = row < rows ? sums[row * sums_rows] : INFINITY;
        share[m][h] = row < rows ? along[row * along_rows] : 0;
    }
    const int begin = 0, end = columns;
    copy_tile<BLOCK, 64, 128>(query_tile, query + (long long)block * query_rows, query_rows, queries - (long long)block, features);
    copy_tile<BLOCK, 64, 128>(delta_tile, delta + (long long)block * delta_rows, delta_rows, queries - (long long)block, values);
    if (begin < end)
    {
        copy_tile<STEP, 64, 128>(key_tile + 0 * STEP * 72, key + (long long)begin * key_rows, key_rows, keys - (long long)begin, features);
        copy_tile<STEP, 64, 128>(value_tile + 0 * STEP * 72, value + (long long)begin * value_rows, value_rows, keys - (long long)begin, values);
        commit_copies();
    }
    int buffer = 0;
    #pragma unroll 1
    for (int start = begin; start < end; start += STEP)
    {
        wait_for_copies<0>();
        __syncthreads();
        const __half *const key_now = key_tile + buffer * STEP * 72;
        const __half *const value_now = value_tile + buffer * STEP * 72;
        if (start + STEP < end)
        {
            copy_tile<STEP, 64, 128>(key_tile + (buffer ^ 1) * STEP * 72, key + (long long)(start + STEP) * key_rows, key_rows, keys - (long long)(start + STEP), features);
            copy_tile<STEP, 64, 128>(value_tile + (buffer ^ 1) * STEP * 72, value + (long long)(start + STEP) * value_rows, value_rows, keys - (long long)(start + STEP), values);
            commit_copies();
        }
        float scores[M][STEP / 8][4] = {};
        multiply_rows<64>(scores, query_tile + warp * 16 * M * 72, key_now);
        #pragma unroll
        for (int m = 0; m < M; m++)
        #pragma unroll
        for (int n = 0; n < STEP / 8; n++)
        #pragma unroll
        for (int h = 0; h < 2; h++)
        #pragma unroll
        for (int e = 0; e < 2; e++)
        {
            scores[m][n][2 * h + e] *= factor;
        }
        if (start + STEP > columns)
        {
            #pragma unroll
            for (int m = 0; m < M; m++)
            #pragma unroll
            for (int n = 0; n < STEP / 8; n++)
            #pragma unroll
            for (int h = 0; h < 2; h++)
            #pragma unroll
            for (int e = 0; e < 2; e++)
            {
                const int column = start + n * 8 + lane % 4 * 2 + e;
                if (column >= columns)
                    scores[m][n][2 * h + e] = -INFINITY;
            }
        }
        float slopes[M][STEP / 8][4] = {};
        multiply_rows<64>(slopes, delta_tile + warp * 16 * M * 72, value_now);
        {
            constexpr int N = STEP / 8;
            {
                #pragma unroll
                for (int m = 0; m < M; m++)
                #pragma unroll
                for (int h = 0; h < 2; h++)
                {
                    #pragma unroll
                    for (int n = 0; n < N; n++)
                    #pragma unroll
                    for (int e = 0; e < 2; e++)
                    {
                        const float v0 = scores[m][n][2 * h + e];
                        const float v1 = sum[m][h];
                        const float v2 = slopes[m][n][2 * h + e];
                        const float v3 = share[m][h];
                        const float v4 = (float)(v0 - v1);
                        const float v5 = (float)(near_exp(v4));
                        const float v6 = (float)(v2 - v3);
                        const float v7 = (float)(v5 * v6);
                        scores[m][n][2 * h + e] = v5;
                        slopes[m][n][2 * h + e] = v7;
                    }
                }
            }
        }
        multiply_products(by_query, slopes, key_now);
        buffer ^= 1;
    }
    store_products(of_query + (long long)first * of_query_rows, by_query, factor, of_query_rows, rows - first, features);
}
