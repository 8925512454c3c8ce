/* Small operations on one row: each is one pass, with float32 arithmetic and one rounding at the end. */
#pragma once
#include "common.h"

/* y [width] = silu(gate) * up. x [2 width]: gate, then up. */
INLINE void gate_row(const bf16 *x, int width, bf16 *y) {
    for (int d = 0; d < width; d += 16) {
        int some = up_to_16(width - d);
        __m512 gate = load_some(x + d, some), up = load_some(x + width + d, some);
        store_some(y + d, _mm512_mul_ps(silu(gate), up), some);
    }
}

/* y = x [heads, width] rotated: pairs are (i, i + width/2). cos, sin [width]; the first half of sin carries a minus,
 * which is left out here. */
INLINE void rotate_row(const bf16 *x, const bf16 *cos, const bf16 *sin, int heads, int width, bf16 *y) {
    int half = width / 2;
    for (int h = 0; h < heads; h++)
        for (int d = 0; d < half; d += 16) {
            int some = up_to_16(half - d);
            const bf16 *from = x + h * width + d;
            bf16 *to = y + h * width + d;
            __m512 c = load_some(cos + d, some), a = load_some(from, some);
            __m512 s = load_some(sin + half + d, some), b = load_some(from + half, some);
            store_some(to, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)), some);
            store_some(to + half, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)), some);
        }
}
