/* Rows times a panel of 32 outputs. In a panel, two inputs of all 32 outputs stand side by side, in the order in which
 * they are read (recguide.kernels.native.pack). A sum is taken over the inputs in order, whatever the number of rows: a
 * row's result does not depend on the others. */
#pragma once
#include "common.h"

enum { MOST = 12, CHUNK = 96, AHEAD = 4096 };

/* sums [count, 32] += x [count, 2 pairs] w, where w holds 32 pairs of numbers w_step apart; rows of sums are sums_row
 * apart. `lines` cache lines from `ahead` on are asked for per pair. */
INLINE void multiply(const int count, const int lines, const bf16 *x, ptrdiff_t x_row, const bf16 *w, ptrdiff_t w_step,
                     int pairs, const char *ahead, float *sums, ptrdiff_t sums_row) {
    __m512 low[MOST], high[MOST];
    for (int i = 0; i < count; i++) {
        low[i] = _mm512_load_ps(sums + i * sums_row);
        high[i] = _mm512_load_ps(sums + i * sums_row + 16);
    }
    for (int p = 0; p < pairs; p++) {
        for (int line = 0; line < lines; line++) _mm_prefetch(ahead + 64 * (lines * p + line), _MM_HINT_T0);
        __m512i w_low = _mm512_loadu_si512(w + p * w_step), w_high = _mm512_loadu_si512(w + p * w_step + 32);
#pragma GCC unroll 16
        for (int i = 0; i < count; i++) {
            __m512i pair = both(x + i * x_row + 2 * p);
            low[i] = dot_pairs(low[i], pair, w_low);
            high[i] = dot_pairs(high[i], pair, w_high);
        }
    }
    for (int i = 0; i < count; i++) {
        _mm512_store_ps(sums + i * sums_row, low[i]);
        _mm512_store_ps(sums + i * sums_row + 16, high[i]);
    }
}

/* The same for 1 to MOST rows. */
INLINE void multiply_any(int count, const int lines, const bf16 *x, ptrdiff_t x_row, const bf16 *w, ptrdiff_t w_step,
                         int pairs, const char *ahead, float *sums, ptrdiff_t sums_row) {
    switch (count) {
#define CASE(N) case N: multiply(N, lines, x, x_row, w, w_step, pairs, ahead, sums, sums_row); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
    }
}

/* sums [rows, 32] += up to GROUP rows times one panel. More than MOST rows take turns on a part of it that stays in the
 * first cache, and ask for the next part meanwhile. */
static inline void panel(const bf16 *x, ptrdiff_t x_row, int rows, const bf16 *w, int pairs, float *sums) {
    int turns = (rows + MOST - 1) / MOST, part = turns == 1 ? pairs : CHUNK;
    for (int from = 0; from < pairs; from += part) {
        int here = pairs - from < part ? pairs - from : part;
        const bf16 *inside = w + (ptrdiff_t)from * 2 * PANEL;
        const char *next = (const char *)(inside + (ptrdiff_t)here * 2 * PANEL);
        for (int turn = 0, first = 0; turn < turns; turn++) {
            int count = (rows - first + turns - turn - 1) / (turns - turn);
            const bf16 *mine = x + first * x_row + 2 * from;
            if (turns == 1)
                multiply_any(count, 2, mine, x_row, inside, 2 * PANEL, here, (const char *)inside + AHEAD, sums, PANEL);
            else
                multiply_any(count, 1, mine, x_row, inside, 2 * PANEL, here, next + 64 * here * (turn & 1),
                             sums + first * PANEL, PANEL);
            first += count;
        }
    }
}

INLINE const bf16 *nth(const bf16 *w, int p, int pairs) { return w + (ptrdiff_t)p * pairs * 2 * PANEL; }

INLINE void clear(float *sums, int rows) {
    for (int i = 0; i < rows * PANEL; i += 16) _mm512_store_ps(sums + i, _mm512_setzero_ps());
}

/* Sums of one panel to y [rows, outputs]; where `onto`, y is added to. */
INLINE void put(const float *sums, bf16 *y, ptrdiff_t y_row, int rows, int outputs, int p, int onto) {
    int left = outputs - p * PANEL < PANEL ? outputs - p * PANEL : PANEL;
    for (int i = 0; i < rows; i++)
        for (int at = 0; at < left; at += 16) {
            int some = up_to_16(left - at);
            bf16 *to = y + i * y_row + p * PANEL + at;
            __m512 value = _mm512_load_ps(sums + i * PANEL + at);
            store_some(to, onto ? _mm512_add_ps(value, load_some(to, some)) : value, some);
        }
}
