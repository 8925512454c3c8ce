/* One product, with or without an adapter. */
#include "product.h"

/* As multiply_rows. */
EXPORT void linear(const bf16 *x, ptrdiff_t x_row, const Weights *weights, bf16 *y, ptrdiff_t y_row, int rows, int onto,
                   const Factors *factors, int split, bf16 *low, int threads) {
#pragma omp parallel num_threads(threads)
    multiply_rows(x, x_row, weights, y, y_row, rows, onto, factors, split, low);
}
