/* Small operations on rows, and K/V on their way into the cache. */
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

/* Writes k and v [rows, kv_heads, width] to their places in one layer's cache
 * [slots, kv_heads, keys, width]. Rows from `drafts` on get 0 for what is not finite. */
EXPORT void store_kv(const bf16 *k, ptrdiff_t k_row, const bf16 *v, ptrdiff_t v_row, bf16 *k_cache, bf16 *v_cache,
                     ptrdiff_t slot, ptrdiff_t head, const int64_t *slots, const int64_t *keys, int rows, int drafts,
                     int kv_heads, int width) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    for (int i = 0; i < rows; i++)
        for (int h = 0; h < kv_heads; h++)
            for (int d = 0; d < width; d += 32) {
                ptrdiff_t from = h * width + d, to = slots[i] * slot + h * head + keys[i] * width + d;
                __m512i a = _mm512_loadu_si512(k + i * k_row + from), b = _mm512_loadu_si512(v + i * v_row + from);
                if (i >= drafts) {
                    a = _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(_mm512_and_si512(a, exponent), exponent), a);
                    b = _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(_mm512_and_si512(b, exponent), exponent), b);
                }
                _mm512_storeu_si512(k_cache + to, a);
                _mm512_storeu_si512(v_cache + to, b);
            }
}
