/* y = x w^T for few rows: as fast as the weights can be read. */
#include "panel.h"

/* x [rows, 2 pairs], w [panels of outputs, pairs, 32, 2], y [rows, outputs]; where `onto`, y is added to. Rows from
 * `split` on are served by an adapter, too: low = x down^T, y += low up^T. down [panels of ranks, pairs, 32, 2]; up
 * [panels of outputs, rank_pairs, 32, 2]: outputs of panel p take the ranks from offsets[p] on. low [rows - split,
 * ranks] is left to the caller to give away. */
EXPORT void adapted_linear(const bf16 *x, ptrdiff_t x_row, const bf16 *w, bf16 *y, ptrdiff_t y_row, int rows,
                           int outputs, int pairs, int onto, int split, const bf16 *down, int ranks, const bf16 *up,
                           int rank_pairs, const int32_t *offsets, bf16 *low, int threads) {
#pragma omp parallel num_threads(threads)
    {
        float sums[GROUP * PANEL] __attribute__((aligned(64)));
        for (int first = split; first < rows; first += GROUP) {
            int count = rows - first < GROUP ? rows - first : GROUP;
#pragma omp for schedule(static)
            for (int p = 0; p < (ranks + PANEL - 1) / PANEL; p++) {
                clear(sums, count);
                panel(x + first * x_row, x_row, count, nth(down, p, pairs), pairs, sums);
                put(sums, low + (ptrdiff_t)(first - split) * ranks, ranks, count, ranks, p, 0);
            }
        }
        for (int first = 0; first < rows; first += GROUP) {
            int count = rows - first < GROUP ? rows - first : GROUP;
            int skip = split <= first ? 0 : split - first < count ? split - first : count;
#pragma omp for schedule(static) nowait
            for (int p = 0; p < (outputs + PANEL - 1) / PANEL; p++) {
                clear(sums, count);
                panel(x + first * x_row, x_row, count, nth(w, p, pairs), pairs, sums);
                if (skip < count)
                    panel(low + (ptrdiff_t)(first + skip - split) * ranks + offsets[p], ranks, count - skip,
                          nth(up, p, rank_pairs), rank_pairs, sums + skip * PANEL);
                put(sums, y + first * y_row, y_row, count, outputs, p, onto);
            }
        }
    }
}

/* The same without an adapter. */
EXPORT void linear(const bf16 *x, ptrdiff_t x_row, const bf16 *w, bf16 *y, ptrdiff_t y_row, int rows, int outputs,
                   int pairs, int onto, int threads) {
    adapted_linear(x, x_row, w, y, y_row, rows, outputs, pairs, onto, rows, NULL, 0, NULL, 0, NULL, NULL, threads);
}
