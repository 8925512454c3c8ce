/* Attention of a step's rows over the K/V cache, into which the step's own K/V are written first. A row sees keys below
 * its limit, and keys of its own segment [low, high). Each row's result depends on its own keys alone: sums go over keys
 * in blocks that begin at multiples of BLOCK, whatever other rows share the work. */
#pragma once
#include "panel.h"

enum { BLOCK = 64, TOGETHER = 8 };

/* [16 keys, 32 numbers] to [16 pairs of numbers, 16 keys]. */
INLINE void transpose(const bf16 *from, ptrdiff_t row, int keys, bf16 *to) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = i < keys ? _mm512_loadu_si512(from + i * row) : _mm512_setzero_si512();
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
            a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            b[i + j] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0x88);
            b[i + j + 4] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        _mm512_storeu_si512(to + 32 * j, _mm512_shuffle_i32x4(b[j], b[j + 8], 0x88));
        _mm512_storeu_si512(to + 32 * (j + 8), _mm512_shuffle_i32x4(b[j], b[j + 8], 0xdd));
    }
}

typedef struct {
    int limit, low, high;
} Rule;

INLINE __mmask16 seen(Rule rule, int key) {
    __m512i keys = _mm512_add_epi32(_mm512_set1_epi32(key), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __mmask16 below = _mm512_cmplt_epi32_mask(keys, _mm512_set1_epi32(rule.limit));
    __mmask16 own = _mm512_cmpge_epi32_mask(keys, _mm512_set1_epi32(rule.low)) &
                    _mm512_cmplt_epi32_mask(keys, _mm512_set1_epi32(rule.high));
    return below | own;
}

/* scores [count, BLOCK] of `count` queries against 16 keys. */
INLINE void score(const int count, const bf16 *q, int width, const bf16 *keys, float *scores) {
    __m512 sums[TOGETHER];
    for (int i = 0; i < count; i++) sums[i] = _mm512_setzero_ps();
    for (int d = 0; d < width; d += 2) {
        __m512i pairs = _mm512_load_si512(keys + 16 * d);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) sums[i] = dot_pairs(sums[i], both(q + i * width + d), pairs);
    }
    for (int i = 0; i < count; i++) _mm512_store_ps(scores + i * BLOCK, sums[i]);
}

static void score_all(int queries, const bf16 *q, int width, const bf16 *keys, float *scores) {
    for (int at = 0; at < queries; at += TOGETHER)
        switch (queries - at < TOGETHER ? queries - at : TOGETHER) {
#define CASE(N) case N: score(N, q + at * width, width, keys, scores + at * BLOCK); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
        }
}

/* acc [queries, width] += weights [queries, BLOCK] times values [BLOCK / 2, width, 2]. */
static void absorb(int queries, const bf16 *weights, const bf16 *values, int width, int pairs, float *acc) {
    for (int at = 0; at < queries; at += TOGETHER) {
        int count = queries - at < TOGETHER ? queries - at : TOGETHER;
        for (int d = 0; d < width; d += 32)
            multiply_any(count, 0, weights + at * BLOCK, BLOCK, values + 2 * d, 2 * width, pairs, NULL,
                         acc + at * width + d, width);
    }
}

/* Scores [BLOCK] of one query's keys from `first` on to weights 2^(score - max). The past, `total` and acc [width], fades
 * where a better score appears. */
static void soften(float *scores, bf16 *weights, Rule rule, int first, int count, float scale, float *best,
                   float *total, float *acc, int width) {
    __m512 most = _mm512_set1_ps(*best);
    int whole = first + count <= rule.limit && count % 16 == 0, any = 0;
    for (int i = 0; i < count; i += 16) {
        __mmask16 mask = whole ? 0xffff : seen(rule, first + i);
        __m512 s = _mm512_mask_mul_ps(_mm512_set1_ps(-INFINITY), mask, _mm512_load_ps(scores + i), _mm512_set1_ps(scale));
        _mm512_store_ps(scores + i, s);
        most = _mm512_max_ps(s, most);
        any |= mask;
    }
    if (!any) {
        for (int i = 0; i < count; i += 16) store16(weights + i, _mm512_setzero_ps());
        return;
    }
    float top = _mm512_reduce_max_ps(most);
    __m512 sum = _mm512_setzero_ps(), base = _mm512_set1_ps(top);
    for (int i = 0; i < count; i += 16) {
        __m512 w = exp2_ps(_mm512_sub_ps(_mm512_load_ps(scores + i), base));
        sum = _mm512_add_ps(sum, w);
        store16(weights + i, w);
    }
    float fade = *best == top ? 1.0f : *best == -INFINITY ? 0.0f : exp2f(*best - top);
    for (int d = 0; d < width && fade != 1.0f; d += 16)
        _mm512_store_ps(acc + d, _mm512_mul_ps(_mm512_load_ps(acc + d), _mm512_set1_ps(fade)));
    *total = *total * fade + _mm512_reduce_add_ps(sum);
    *best = top;
}

/* Values of two keys side by side: [32 numbers, 2], the numbers in the order that `finish` undoes. */
INLINE void interleave(const bf16 *from, ptrdiff_t row, int width, int keys, bf16 *to) {
    for (int key = 0; key < keys; key += 2)
        for (int d = 0; d < width; d += 32) {
            __m512i a = _mm512_loadu_si512(from + key * row + d);
            __m512i b = key + 1 < keys ? _mm512_loadu_si512(from + (key + 1) * row + d) : _mm512_setzero_si512();
            _mm512_store_si512(to + key * width + 2 * d, _mm512_unpacklo_epi16(a, b));
            _mm512_store_si512(to + key * width + 2 * d + 32, _mm512_unpackhi_epi16(a, b));
        }
}

/* acc [width] over `total`, in bfloat16 and in order again. */
INLINE void finish(const float *acc, float total, int width, bf16 *out) {
    __m512 share = _mm512_set1_ps(1.0f / total);
    const __m512i order = _mm512_set_epi16(31, 30, 29, 28, 15, 14, 13, 12, 27, 26, 25, 24, 11, 10, 9, 8, 23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    for (int d = 0; d < width; d += 32) {
        __m512 low = _mm512_mul_ps(_mm512_load_ps(acc + d), share), high = _mm512_mul_ps(_mm512_load_ps(acc + d + 16), share);
        __m512i made = _mm512_inserti64x4(_mm512_castsi256_si512(narrow(low)), narrow(high), 1);
        _mm512_storeu_si512(out + d, _mm512_permutexvar_epi16(order, made));
    }
}

/* Asks for what will be read soon. */
INLINE void fetch(const bf16 *from, int count) {
    for (int i = 0; i < count; i += 32) _mm_prefetch((const char *)(from + i), _MM_HINT_T0);
}

typedef struct {
    const bf16 *q, *k, *v; /* k, v: of one slot and K/V head, [keys, width] */
    bf16 *out;
    ptrdiff_t q_row, out_row; /* q, out: at the first of `group` heads */
    const int32_t *rows, *rules; /* flat row numbers; limit, low, high of every flat row */
    int count, group, width;
    float scale;
} Task;

static void attend(const Task *t) {
    bf16 q[QUERIES * WIDEST] __attribute__((aligned(64))), keys[BLOCK * WIDEST] __attribute__((aligned(64)));
    bf16 values[BLOCK * WIDEST] __attribute__((aligned(64))), weights[QUERIES * BLOCK] __attribute__((aligned(64)));
    float acc[QUERIES * WIDEST] __attribute__((aligned(64))), scores[QUERIES * BLOCK] __attribute__((aligned(64)));
    float best[QUERIES], total[QUERIES];
    Rule rules[QUERIES];
    int queries = t->count * t->group, width = t->width, causal = 0, reach = 0, lowest = INT32_MAX;
    for (int i = 0; i < queries; i++) {
        int row = t->rows[i / t->group];
        Rule rule = {t->rules[3 * row], t->rules[3 * row + 1], t->rules[3 * row + 2]};
        rules[i] = rule;
        causal = causal > rule.limit ? causal : rule.limit;
        if (rule.high > rule.low) {
            reach = reach > rule.high ? reach : rule.high;
            lowest = lowest < rule.low ? lowest : rule.low;
        }
        best[i] = -INFINITY;
        total[i] = 0;
        for (int d = 0; d < width; d += 32) {
            _mm512_store_si512(q + i * width + d, _mm512_loadu_si512(t->q + row * t->q_row + (i % t->group) * width + d));
            _mm512_store_ps(acc + i * width + d, _mm512_setzero_ps());
            _mm512_store_ps(acc + i * width + d + 16, _mm512_setzero_ps());
        }
    }
    reach = reach > causal ? reach : causal;
    for (int first = 0; first < reach; first += BLOCK) {
        int count = reach - first < BLOCK ? reach - first : BLOCK;
        if (first >= causal && first + count <= lowest) continue; /* no row looks here */
        for (int at = 0; at < count; at += 16) {
            fetch(t->v + (ptrdiff_t)(first + at) * width, 16 * width);
            fetch(t->k + (ptrdiff_t)(first + at + BLOCK) * width, 16 * width);
            for (int d = 0; d < width; d += 32)
                transpose(t->k + (ptrdiff_t)(first + at) * width + d, width, count - at, keys + 16 * d);
            score_all(queries, q, width, keys, scores + at);
        }
        interleave(t->v + (ptrdiff_t)first * width, width, width, count, values);
        for (int i = 0; i < queries; i++)
            soften(scores + i * BLOCK, weights + i * BLOCK, rules[i], first, count, t->scale, best + i, total + i,
                   acc + i * width, width);
        absorb(queries, weights, values, width, (count + 1) / 2, acc);
    }
    for (int i = 0; i < queries; i++) {
        int row = t->rows[i / t->group];
        finish(acc + i * width, total[i], width, t->out + row * t->out_row + (i % t->group) * width);
    }
}

/* What a step attends to: its rows in `order` of their keys, limit, low and high of every flat row in `rules`, and
 * `count` tiles [3]: slot, first place in `order` and number of rows. `scale` holds log2(e). */
typedef struct {
    const int32_t *order, *rules, *tiles;
    int count;
    float scale;
} Seen;

/* One thread's part, inside a parallel region. q [rows, kv_heads * group, width], out the same and dense; k, v [slots,
 * kv_heads, keys, width] of one layer. */
static inline void attend_rows(const bf16 *q, ptrdiff_t q_row, const bf16 *k, const bf16 *v, ptrdiff_t slot,
                               ptrdiff_t head, bf16 *out, const Seen *step, int kv_heads, int group, int width) {
#pragma omp for schedule(dynamic, 1)
    for (int i = 0; i < step->count * kv_heads; i++) {
        const int32_t *tile = step->tiles + i / kv_heads * 3;
        ptrdiff_t kv_head = i % kv_heads, mine = tile[0] * slot + kv_head * head, first = kv_head * group * width;
        Task task = {q + first, k + mine, v + mine, out + first, q_row, (ptrdiff_t)kv_heads * group * width,
                     step->order + tile[1], step->rules, tile[2], group, width, step->scale};
        attend(&task);
    }
}
