/* Vectors of bfloat16 and float32 in AVX-512. All tensors are row-major; strides are in numbers. PANEL, GROUP, QUERIES and
 * WIDEST come from the compiler's command line (recguide.kernels.native). */
#pragma once
#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

typedef uint16_t bf16;
#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define LOG2_E 1.44269504f
#define LEAST -87.0f /* e to this is the least normal number of float32 */

INLINE __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

/* How many of a vector's 16 numbers are left. */
INLINE int up_to_16(int left) { return left < 16 ? left : 16; }

INLINE __m512 load_some(const bf16 *x, int count) { return widen(_mm256_maskz_loadu_epi16((1u << count) - 1, x)); }

#ifdef __AVX512BF16__
INLINE __m256i narrow(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

/* sums += a0 b0 + a1 b1 of every pair. */
INLINE __m512 dot_pairs(__m512 sums, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sums, (__m512bh)a, (__m512bh)b);
}
#else /* the same in plain AVX-512: half of the speed where arithmetic counts, all of it where reading does */
INLINE __m256i narrow(__m512 x) {
    __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 broken = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, broken, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

INLINE __m512 dot_pairs(__m512 sums, __m512i a, __m512i b) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512 a1 = _mm512_castsi512_ps(_mm512_and_si512(a, upper)), a0 = _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
    __m512 b1 = _mm512_castsi512_ps(_mm512_and_si512(b, upper)), b0 = _mm512_castsi512_ps(_mm512_slli_epi32(b, 16));
    return _mm512_fmadd_ps(a0, b0, _mm512_fmadd_ps(a1, b1, sums));
}
#endif

INLINE void store16(bf16 *x, __m512 value) { _mm256_storeu_si256((__m256i *)x, narrow(value)); }

INLINE void store_some(bf16 *x, __m512 value, int count) {
    _mm256_mask_storeu_epi16(x, (1u << count) - 1, narrow(value));
}

INLINE __m512i both(const bf16 *x) { return _mm512_set1_epi32(*(const int32_t *)x); } /* a pair, 16 times */

/* 2^x to 2e-7; 0 for -infinity, NaN for NaN. */
INLINE __m512 exp2_ps(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x); /* the second operand where one is NaN */
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, whole), y = _mm512_set1_ps(1.54035304e-4f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.33335581e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.61812911e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.55041087e-2f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.40226507e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.93147181e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, whole);
}

INLINE __m512 silu(__m512 x) {
    __m512 power = exp2_ps(_mm512_mul_ps(x, _mm512_set1_ps(-LOG2_E)));
    return _mm512_div_ps(x, _mm512_add_ps(power, _mm512_set1_ps(1.0f)));
}

/* y = x / sqrt(mean(x^2) + eps) * weight of one row [width]. */
INLINE void normalise(const bf16 *x, const float *weight, int width, float eps, bf16 *y) {
    __m512 sum = _mm512_setzero_ps();
    for (int d = 0; d < width; d += 16) {
        __m512 part = load_some(x + d, up_to_16(width - d));
        sum = _mm512_fmadd_ps(part, part, sum);
    }
    __m512 root = _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(sum) / width + eps));
    for (int d = 0; d < width; d += 16) {
        int some = up_to_16(width - d);
        __m512 scale = _mm512_mul_ps(root, _mm512_maskz_loadu_ps((1u << some) - 1, weight + d));
        store_some(y + d, _mm512_mul_ps(load_some(x + d, some), scale), some);
    }
}
