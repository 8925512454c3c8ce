/* Attention alone. */
#include "attention.h"

/* As attend_rows. */
EXPORT void attention(const bf16 *q, ptrdiff_t q_row, const bf16 *k, const bf16 *v, ptrdiff_t slot, ptrdiff_t head,
                      bf16 *out, const Seen *step, int kv_heads, int group, int width, int threads) {
#pragma omp parallel num_threads(threads)
    attend_rows(q, q_row, k, v, slot, head, out, step, kv_heads, group, width);
}
