/* Small operations on one row: each is one pass, with float32 arithmetic and one rounding at the end; and a row's K/V on
 * their way into the cache. */
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

/* k and v [kv_heads, width] of one row to its place in one layer's cache, where heads are `head` apart. A draft gets 0 for
 * what is not finite. */
INLINE void store_row(const bf16 *k, const bf16 *v, bf16 *k_cache, bf16 *v_cache, ptrdiff_t head, int kv_heads, int width,
                      int draft) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    for (int h = 0; h < kv_heads; h++)
        for (int d = 0; d < width; d += 32) {
            __m512i a = _mm512_loadu_si512(k + h * width + d), b = _mm512_loadu_si512(v + h * width + d);
            if (draft) {
                a = _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(_mm512_and_si512(a, exponent), exponent), a);
                b = _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(_mm512_and_si512(b, exponent), exponent), b);
            }
            _mm512_storeu_si512(k_cache + h * head + d, a);
            _mm512_storeu_si512(v_cache + h * head + d, b);
        }
}
