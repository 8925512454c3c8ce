/* The chain's scores: candidates of draft rows once the two tokens before each are known (recguide.models.chain). */
#include "panel.h"

INLINE float dot(const bf16 *a, const bf16 *b, int count) {
    __m512 sum = _mm512_setzero_ps();
    for (int d = 0; d < count; d += 32) {
        __mmask32 there = count - d < 32 ? (1u << (count - d)) - 1 : 0xffffffff;
        sum = dot_pairs(sum, _mm512_maskz_loadu_epi16(there, a + d), _mm512_maskz_loadu_epi16(there, b + d));
    }
    return _mm512_reduce_add_ps(sum);
}

/* scores [rows, candidates] = base + head[ids] . up silu(tokens seen + lead), where seen are the embeddings of the
 * tokens before, normalised with `weight`. before [rows, 2]; lead [rows, rank]; tokens [rank, 2 hidden] and up [hidden, rank] in
 * panels; work [rows, 3 hidden + rank] is left to the caller to give away. At most GROUP rows. */
EXPORT void chain_scores(const int64_t *before, const bf16 *embedding, const bf16 *lead, const bf16 *tokens,
                         const bf16 *up, const float *base, const int64_t *ids, const bf16 *head, float *scores,
                         const float *weight, float eps, bf16 *work, int rows, int candidates, int hidden, int rank,
                         int threads) {
    bf16 *seen = work, *inner = seen + (ptrdiff_t)rows * 2 * hidden, *moved = inner + (ptrdiff_t)rows * rank;
#pragma omp parallel num_threads(threads)
    {
        float sums[GROUP * PANEL] __attribute__((aligned(64)));
#pragma omp for schedule(static)
        for (int i = 0; i < 2 * rows; i++)
            normalise(embedding + before[i] * hidden, weight, hidden, eps, seen + (ptrdiff_t)i * hidden);
#pragma omp for schedule(static)
        for (int p = 0; p < (rank + PANEL - 1) / PANEL; p++) {
            clear(sums, rows);
            panel(seen, 2 * hidden, rows, nth(tokens, p, hidden), hidden, sums);
            for (int i = 0; i < rows; i++)
                for (int at = p * PANEL; at < rank && at < (p + 1) * PANEL; at += 16) {
                    int some = up_to_16(rank - at);
                    __m512 x = _mm512_load_ps(sums + i * PANEL + at - p * PANEL);
                    x = _mm512_add_ps(x, load_some(lead + (ptrdiff_t)i * rank + at, some));
                    store_some(inner + (ptrdiff_t)i * rank + at, silu(x), some);
                }
        }
#pragma omp for schedule(static)
        for (int p = 0; p < (hidden + PANEL - 1) / PANEL; p++) {
            clear(sums, rows);
            panel(inner, rank, rows, nth(up, p, rank / 2), rank / 2, sums);
            put(sums, moved, hidden, rows, hidden, p, 0);
        }
#pragma omp for schedule(static)
        for (int i = 0; i < rows * candidates; i++)
            scores[i] = base[i] + dot(moved + (ptrdiff_t)(i / candidates) * hidden, head + ids[i] * hidden, hidden);
    }
}
