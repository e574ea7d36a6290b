extern "C" __global__ void __launch_bounds__(128) attention(
    const __half *query,
    const __half *key,
    const __half *value,
    const bool *mask,
    __half *out,
    float *sums,
    long long query_0,
    long long query_1,
    long long query_rows,
    long long key_0,
    long long key_1,
    long long key_rows,
    long long value_0,
    long long value_1,
    long long value_rows,
    long long mask_0,
    long long mask_1,
    long long mask_rows,
    long long out_0,
    long long out_1,
    long long out_rows,
    long long sums_0,
    long long sums_1,
    long long sums_rows,
    long long mask_columns,
    long long n1,
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
    const int block = (blocks - 1 - (int)(blockIdx.x % blocks)) * BLOCK;
    const int first = block + warp * 16 * M;
    long long index = blockIdx.x / blocks;
    const long long i1 = index % n1;
    index /= n1;
    query += i1 * query_1;
    key += i1 * key_1;
    value += i1 * value_1;
    mask += i1 * mask_1;
    out += i1 * out_1;
    sums += i1 * sums_1;
    const long long i0 = index;
    query += i0 * query_0;
    key += i0 * key_0;
    value += i0 * value_0;
    mask += i0 * mask_0;
    out += i0 * out_0;
    sums += i0 * sums_0;
    __half *const query_tile = (__half *)memory;
    __half *const key_tile = query_tile + BLOCK * 72;
    __half *const value_tile = key_tile + 2 * STEP * 72;
    float found[M][8][4] = {}, top[M][2], total[M][2], decay[M][2];
    #pragma unroll
    for (int m = 0; m < M; m++)
    #pragma unroll
    for (int h = 0; h < 2; h++)
    {
        top[m][h] = -INFINITY, total[m][h] = 0;
    }
    const int begin = 0, end = min(columns, block + BLOCK);
    copy_tile<BLOCK, 64, 128>(query_tile, query + (long long)block * query_rows, query_rows, queries - (long long)block, features);
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
        if (start + STEP > columns || start + STEP > first + 1)
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
                const int row = first + m * 16 + h * 8 + lane / 4;
                const int column = start + n * 8 + lane % 4 * 2 + e;
                if (column >= columns || column > row)
                    scores[m][n][2 * h + e] = -INFINITY;
            }
        }
        {
            constexpr int N = STEP / 8;
            {
                const float v2 = -INFINITY;
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
                        const int row = first + m * 16 + h * 8 + lane / 4, column = start + n * 8 + lane % 4 * 2 + e;
                        const bool is_inside = row < rows && column < columns;
                        const bool v0 = mask[is_inside ? row * mask_rows + column * mask_columns : 0];
                        const float v1 = scores[m][n][2 * h + e];
                        const float v3 = (float)(v0 != 0 ? v1 : v2);
                        scores[m][n][2 * h + e] = v3;
                    }
                }
            }
        }
        {
            constexpr int N = STEP / 8;
            {
                const auto join5 = [](float x, float y) { return largest(x, y); };
                const auto join15 = [](float x, float y) { return x + y; };
                const double v3 = (double)(-INFINITY);
                const double v4 = (double)(0.0);
                #pragma unroll
                for (int m = 0; m < M; m++)
                #pragma unroll
                for (int h = 0; h < 2; h++)
                {
                    float *const x1 = &top[m][h];
                    float *const x2 = &total[m][h];
                    float *const x3 = &top[m][h];
                    float *const x5 = &decay[m][h];
                    float *const x6 = &total[m][h];
                    const float v1 = x1[0];
                    const float v2 = x2[0];
                    const float v8_1 = (float)v4;
                    const float v8 = (float)(v8_1);
                    float r5 = -INFINITY;
                    #pragma unroll
                    for (int n = 0; n < N; n++)
                    #pragma unroll
                    for (int e = 0; e < 2; e++)
                    {
                        const float v0 = scores[m][n][2 * h + e];
                        r5 = largest(r5, v0);
                    }
                    r5 = over_lanes(r5, join5, 4);
                    const float v5 = (float)(r5);
                    const float v6 = (float)((v1 < v5 ? v5 : v1) + (v5 != v5 ? v5 : (float)-0.0));
                    const float v7_1 = (float)v3;
                    const bool v7 = (bool)(v6 == v7_1);
                    const float v9 = (float)(v7 != 0 ? v8 : v6);
                    const float v12 = (float)(v1 - v9);
                    const float v13 = (float)(near_exp(v12));
                    const float v14 = (float)(v2 * v13);
                    float r15 = 0;
                    #pragma unroll
                    for (int n = 0; n < N; n++)
                    #pragma unroll
                    for (int e = 0; e < 2; e++)
                    {
                        const float v0 = scores[m][n][2 * h + e];
                        const float v10 = (float)(v0 - v9);
                        const float v11 = (float)(near_exp(v10));
                        r15 = r15 + v11;
                        scores[m][n][2 * h + e] = v11;
                    }
                    r15 = over_lanes(r15, join15, 4);
                    const float v15 = (float)(r15);
                    const float v16 = (float)(v14 + v15);
                    x3[0] = v6;
                    x5[0] = v13;
                    x6[0] = v16;
                }
            }
        }
        bool decays = false;
        #pragma unroll
        for (int m = 0; m < M; m++)
        #pragma unroll
        for (int h = 0; h < 2; h++)
        {
            decays |= decay[m][h] != 1;
        }
        if (__any_sync(~0u, decays))
        {
            constexpr int N = 8;
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
                        const float v0 = found[m][n][2 * h + e];
                        const float v1 = decay[m][h];
                        const float v2 = (float)(v0 * v1);
                        found[m][n][2 * h + e] = v2;
                    }
                }
            }
        }
        multiply_products(found, scores, value_now);
        buffer ^= 1;
    }
    float sum[M][2];
    {
        constexpr int N = 8;
        float between8[M][2];
        {
            const double v2 = (double)(0.0);
            const double v3 = (double)(1.0);
            const double v4 = (double)(INFINITY);
            #pragma unroll
            for (int m = 0; m < M; m++)
            #pragma unroll
            for (int h = 0; h < 2; h++)
            {
                const float v0 = total[m][h];
                const float v1 = top[m][h];
                const float v5_1 = (float)v2;
                const bool v5 = (bool)(v0 == v5_1);
                const float v6_1 = (float)v3;
                const float v6 = (float)(v6_1);
                const float v7 = (float)(v5 != 0 ? v6 : v0);
                const float v8_1 = (float)v4;
                const float v8 = (float)(v8_1);
                const float v9 = (float)(log(v7));
                const float v10 = (float)(v9 + v1);
                const float v11 = (float)(v5 != 0 ? v8 : v10);
                between8[m][h] = v7;
                sum[m][h] = v11;
            }
        }
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
                    const float v0 = found[m][n][2 * h + e];
                    const float v1 = between8[m][h];
                    const float v2 = (float)(near_quotient(v0, v1));
                    found[m][n][2 * h + e] = v2;
                }
            }
        }
    }
    store_products(out + (long long)first * out_rows, found, 1.0f, out_rows, rows - first, values);
    #pragma unroll
    for (int m = 0; m < M; m++)
    #pragma unroll
    for (int h = 0; h < 2; h++)
    {
        const int row = first + m * 16 + h * 8 + lane / 4;
        if (lane % 4 == 0 && row < rows) sums[row * sums_rows] = sum[m][h];
    }
}
