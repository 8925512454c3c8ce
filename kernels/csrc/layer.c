/* What a decoder layer does on both sides of attention, each in one go: between products threads only wait for each other. */
#include "product.h"
#include "rows.h"

/* mixed [rows, outputs] = norm(hidden) qkv^T, and its first `heads` (queries and keys) of `width`, rotated, in turned [rows,
 * heads, width]. hidden and normed [rows, size] are dense, cos, sin [rows, width]; normed and low (see multiply_rows) are left
 * to the caller. */
EXPORT void before_attention(const bf16 *hidden, int rows, int size, const float *norm, float eps, const Weights *qkv,
                             const Factors *factors, int split, const bf16 *cos, const bf16 *sin, int heads, int width,
                             bf16 *normed, bf16 *mixed, bf16 *turned, bf16 *low, int threads) {
    int outputs = qkv->outputs;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (ptrdiff_t i = 0; i < rows; i++) normalise(hidden + i * size, norm, size, eps, normed + i * size);
        multiply_rows(normed, size, qkv, mixed, outputs, rows, 0, factors, split, low);
#pragma omp for schedule(static)
        for (ptrdiff_t i = 0; i < rows; i++)
            rotate_row(mixed + i * outputs, cos + i * width, sin + i * width, heads, width, turned + i * heads * width);
    }
}

/* hidden [rows, size] += attended o^T, then += (silu(gate) * up) down^T, gate and up [rows, inner] being norm(hidden)
 * gate_up^T. attended is dense; normed, pair [rows, 2 inner], gated [rows, inner] and low are left to the caller. */
EXPORT void after_attention(const bf16 *attended, bf16 *hidden, int rows, int size, const Weights *o,
                            const Factors *o_factors, const float *norm, float eps, const Weights *gate_up,
                            const Factors *gate_up_factors, const Weights *down, const Factors *down_factors, int split,
                            bf16 *normed, bf16 *pair, bf16 *gated, bf16 *low, int threads) {
    int inner = gate_up->outputs / 2;
#pragma omp parallel num_threads(threads)
    {
        multiply_rows(attended, 2 * o->pairs, o, hidden, size, rows, 1, o_factors, split, low);
#pragma omp for schedule(static)
        for (ptrdiff_t i = 0; i < rows; i++) normalise(hidden + i * size, norm, size, eps, normed + i * size);
        multiply_rows(normed, size, gate_up, pair, 2 * inner, rows, 0, gate_up_factors, split, low);
#pragma omp for schedule(static)
        for (ptrdiff_t i = 0; i < rows; i++) gate_row(pair + i * 2 * inner, inner, gated + i * inner);
        multiply_rows(gated, inner, down, hidden, size, rows, 1, down_factors, split, low);
    }
}
