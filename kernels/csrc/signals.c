/* The best tokens of rows of logits, and sums of exponentials. */
#include "common.h"

enum { SPAN = 128 }; /* tokens whose maximum is looked at first */

INLINE __m512 logits_at(const bf16 *row, int at, int vocab) {
    int some = up_to_16(vocab - at);
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), (1u << some) - 1, load_some(row + at, some));
}

/* Puts a value behind those that are as good, and drops the last. */
INLINE void insert(float *values, int64_t *ids, int count, float value, int64_t id) {
    int at = count - 1;
    for (; at > 0 && value > values[at - 1]; at--) {
        values[at] = values[at - 1];
        ids[at] = ids[at - 1];
    }
    values[at] = value;
    ids[at] = id;
}

/* The `count` best of a row, best first and of equals the first; NaN for the best value where one is NaN. They are in
 * the spans with the `count` best maxima. */
static void find_best(const bf16 *row, int vocab, int count, float *peaks, float *values, int64_t *ids) {
    int spans = (vocab + SPAN - 1) / SPAN;
    __mmask16 broken = 0;
    for (int i = 0; i < count; i++) values[i] = -INFINITY, ids[i] = i;
    for (int s = 0; s < spans; s++) {
        int end = vocab - s * SPAN < SPAN ? vocab : (s + 1) * SPAN;
        __m512 most = _mm512_set1_ps(-INFINITY);
        for (int at = s * SPAN; at < end; at += 16) {
            __m512 x = logits_at(row, at, vocab);
            broken |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
            most = _mm512_max_ps(most, x);
        }
        peaks[s] = _mm512_reduce_max_ps(most);
        if (peaks[s] > values[count - 1]) insert(values, ids, count, peaks[s], s);
    }
    float least = values[count - 1];
    for (int i = 0; i < count; i++) values[i] = -INFINITY, ids[i] = i;
    for (int s = 0; s < spans; s++) {
        if (!(peaks[s] >= least && peaks[s] > values[count - 1])) continue;
        int end = vocab - s * SPAN < SPAN ? vocab : (s + 1) * SPAN;
        for (int at = s * SPAN; at < end; at += 16) {
            float x[16];
            __m512 part = logits_at(row, at, vocab);
            unsigned better = _mm512_cmp_ps_mask(part, _mm512_set1_ps(values[count - 1]), _CMP_GT_OQ);
            if (!better) continue;
            _mm512_storeu_ps(x, part);
            for (; better; better &= better - 1) {
                int lane = __builtin_ctz(better);
                if (x[lane] > values[count - 1]) insert(values, ids, count, x[lane], at + lane);
            }
        }
    }
    if (broken) values[0] = NAN;
}

/* ids, values [rows, count] of the best tokens of logits [rows, vocab]. */
EXPORT void best_tokens(const bf16 *logits, ptrdiff_t row, int rows, int vocab, int count, int64_t *ids, float *values,
                        int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > 1)
    for (int i = 0; i < rows; i++) {
        float peaks[(vocab + SPAN - 1) / SPAN];
        find_best(logits + i * row, vocab, count, peaks, values + (ptrdiff_t)i * count, ids + (ptrdiff_t)i * count);
    }
}

/* sums [rows, 2] of e^d and d e^d over the tokens of every row, d being how far a logit lies below the row's best. */
EXPORT void exponential_sums(const bf16 *logits, ptrdiff_t row, const float *best, ptrdiff_t best_row, int rows,
                             int vocab, float *sums, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > 1)
    for (int i = 0; i < rows; i++) {
        __m512 total = _mm512_setzero_ps(), spread = _mm512_setzero_ps(), base = _mm512_set1_ps(best[i * best_row]);
        for (int at = 0; at < vocab; at += 16) {
            __mmask16 there = (1u << up_to_16(vocab - at)) - 1;
            __m512 below = _mm512_sub_ps(logits_at(logits + i * row, at, vocab), base);
            below = _mm512_max_ps(_mm512_set1_ps(LEAST), below); /* the second operand where one is NaN */
            __m512 weight = _mm512_maskz_mov_ps(there, exp2_ps(_mm512_mul_ps(below, _mm512_set1_ps(LOG2_E))));
            total = _mm512_add_ps(total, weight);
            spread = _mm512_fmadd_ps(below, weight, spread);
        }
        sums[2 * i] = _mm512_reduce_add_ps(total);
        sums[2 * i + 1] = _mm512_reduce_add_ps(spread);
    }
}
