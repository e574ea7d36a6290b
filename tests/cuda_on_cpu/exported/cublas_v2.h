/* cuBLAS's products for exported functions, by sums in order. */
#pragma once

#include "cuda_runtime_api.h"

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
typedef struct cublasContext *cublasHandle_t;

static inline cublasStatus_t cublasCreate(cublasHandle_t *) { return CUBLAS_STATUS_SUCCESS; }
static inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }

template <class T>
static cublasStatus_t multiply(cublasOperation_t x_op, cublasOperation_t y_op, int rows, int columns, int inner, T one,
                               const T *x, int x_lead, long long x_step, const T *y, int y_lead, long long y_step, T zero,
                               T *out, int out_lead, long long out_step, int count)
{
    if (x_lead < (x_op == CUBLAS_OP_N ? rows : inner) || y_lead < (y_op == CUBLAS_OP_N ? inner : columns) || out_lead < rows)
        return (cublasStatus_t)7;
    for (int n = 0; n < count; n++, x += x_step, y += y_step, out += out_step)
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j++) {
                T sum = zero;
                for (int k = 0; k < inner; k++)
                    sum += x[x_op == CUBLAS_OP_N ? i + k * x_lead : k + i * x_lead] *
                           y[y_op == CUBLAS_OP_N ? k + j * y_lead : j + k * y_lead];
                out[i + j * out_lead] = one * sum;
            }
    return CUBLAS_STATUS_SUCCESS;
}

#define CUBLAS_GEMM(T, letter)                                                                                        \
    static inline cublasStatus_t cublas##letter##gemmStridedBatched(                                                  \
        cublasHandle_t, cublasOperation_t x_op, cublasOperation_t y_op, int rows, int columns, int inner, const T *one, \
        const T *x, int x_lead, long long x_step, const T *y, int y_lead, long long y_step, const T *zero, T *out,    \
        int out_lead, long long out_step, int count)                                                                  \
    {                                                                                                                 \
        return multiply(x_op, y_op, rows, columns, inner, *one, x, x_lead, x_step, y, y_lead, y_step, *zero, out,     \
                        out_lead, out_step, count);                                                                   \
    }

CUBLAS_GEMM(float, S)
CUBLAS_GEMM(double, D)
