/* Small operations on rows. */
#include "rows.h"

enum { FEW = 16 }; /* rows that one thread does sooner than two can share them */

/* y = x / sqrt(mean(x^2) + eps) * weight. x, y [rows, width], weight float32. */
EXPORT void rms_norm(const bf16 *x, ptrdiff_t x_row, const float *weight, float eps, bf16 *y, int rows, int width,
                     int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > FEW)
    for (int i = 0; i < rows; i++) normalise(x + i * x_row, weight, width, eps, y + (ptrdiff_t)i * width);
}

/* gate_row of x [rows, 2 width]; y [rows, width]. */
EXPORT void silu_product(const bf16 *x, ptrdiff_t x_row, bf16 *y, int rows, int width, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > FEW)
    for (int i = 0; i < rows; i++) gate_row(x + i * x_row, width, y + (ptrdiff_t)i * width);
}

/* rotate_row of x [rows, heads, width] and its cos, sin [rows, width]; y like x, dense. */
EXPORT void rotate(const bf16 *x, ptrdiff_t x_row, const bf16 *cos, const bf16 *sin, bf16 *y, int rows, int heads,
                   int width, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > FEW)
    for (ptrdiff_t i = 0; i < rows; i++)
        rotate_row(x + i * x_row, cos + i * width, sin + i * width, heads, width, y + i * heads * width);
}

/* store_row of k and v [rows, kv_heads, width]; `slots` and `keys` of every row. Rows from `drafts` on are drafts. */
EXPORT void store_kv(const bf16 *k, ptrdiff_t k_row, const bf16 *v, ptrdiff_t v_row, bf16 *k_cache, bf16 *v_cache,
                     ptrdiff_t slot, ptrdiff_t head, const int64_t *slots, const int64_t *keys, int rows, int drafts,
                     int kv_heads, int width) {
    for (int i = 0; i < rows; i++) {
        ptrdiff_t to = slots[i] * slot + keys[i] * width;
        store_row(k + i * k_row, v + i * v_row, k_cache + to, v_cache + to, head, kv_heads, width, i >= drafts);
    }
}
