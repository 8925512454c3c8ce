/* y = x w^T for few rows, as fast as the weights can be read: one thread's part of it. All threads of a team call it, inside
 * a parallel region; what they made is there for all when it returns. */
#pragma once
#include "panel.h"

/* A packed weight: [panels of outputs, pairs, 32, 2]. */
typedef struct {
    const bf16 *w;
    int outputs, pairs;
} Weights;

/* An adapter's factors: down [panels of ranks, pairs, 32, 2], up [panels of outputs, rank_pairs, 32, 2]. Outputs of panel
 * p take the ranks from offsets[p] on. */
typedef struct {
    const bf16 *down, *up;
    const int32_t *offsets;
    int ranks, rank_pairs;
} Factors;

/* x [rows, 2 pairs], y [rows, outputs]; where `onto`, y is added to. Rows from `split` on are served by an adapter, too
 * (none where `factors` is NULL): low = x down^T, y += low up^T. low [rows - split, ranks] is left to the caller. */
static inline void multiply_rows(const bf16 *x, ptrdiff_t x_row, const Weights *weights, bf16 *y, ptrdiff_t y_row,
                                 int rows, int onto, const Factors *factors, int split, bf16 *low) {
    float sums[GROUP * PANEL] __attribute__((aligned(64)));
    int pairs = weights->pairs, outputs = weights->outputs, ranks = factors ? factors->ranks : 0;
    if (!factors) split = rows;
    for (int first = split; first < rows; first += GROUP) {
        int count = rows - first < GROUP ? rows - first : GROUP;
#pragma omp for schedule(static)
        for (int p = 0; p < (ranks + PANEL - 1) / PANEL; p++) {
            clear(sums, count);
            panel(x + first * x_row, x_row, count, nth(factors->down, p, pairs), pairs, sums);
            put(sums, low + (ptrdiff_t)(first - split) * ranks, ranks, count, ranks, p, 0);
        }
    }
    for (int first = 0; first < rows; first += GROUP) {
        int count = rows - first < GROUP ? rows - first : GROUP;
        int skip = split <= first ? 0 : split - first < count ? split - first : count;
#pragma omp for schedule(static) nowait
        for (int p = 0; p < (outputs + PANEL - 1) / PANEL; p++) {
            clear(sums, count);
            panel(x + first * x_row, x_row, count, nth(weights->w, p, pairs), pairs, sums);
            if (skip < count)
                panel(low + (ptrdiff_t)(first + skip - split) * ranks + factors->offsets[p], ranks, count - skip,
                      nth(factors->up, p, factors->rank_pairs), factors->rank_pairs, sums + skip * PANEL);
            put(sums, y + first * y_row, y_row, count, outputs, p, onto);
        }
    }
#pragma omp barrier
}
