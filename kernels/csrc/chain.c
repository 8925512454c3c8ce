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

/* What the chain knows. embedding, head [vocab, hidden]; tokens [rank, 2 hidden] and up [hidden, rank] in panels; `weight` and
 * `eps` of the norm of embeddings. Per row: lead [rows, rank], base and ids [rows, candidates]. */
typedef struct {
    const bf16 *embedding, *head, *tokens, *up;
    const float *weight;
    const bf16 *lead;
    const float *base;
    const int64_t *ids;
    float eps;
    int rows, candidates, hidden, rank;
} Chain;

/* One thread's part, inside a parallel region: scores [count, candidates] of the rows at[count] = base + head[ids] . up
 * silu(tokens seen + lead), where seen are the embeddings of before [count, 2], normalised. work [count, 3 hidden + rank] is
 * left to the caller. At most GROUP rows. */
static inline void score_rows(const Chain *c, const int64_t *at, const int64_t *before, int count, bf16 *work, float *scores) {
    int hidden = c->hidden, rank = c->rank, candidates = c->candidates;
    bf16 *seen = work, *inner = seen + (ptrdiff_t)count * 2 * hidden, *moved = inner + (ptrdiff_t)count * rank;
    float sums[GROUP * PANEL] __attribute__((aligned(64)));
#pragma omp for schedule(static)
    for (int i = 0; i < 2 * count; i++)
        normalise(c->embedding + before[i] * hidden, c->weight, hidden, c->eps, seen + (ptrdiff_t)i * hidden);
#pragma omp for schedule(static)
    for (int p = 0; p < (rank + PANEL - 1) / PANEL; p++) {
        clear(sums, count);
        panel(seen, 2 * hidden, count, nth(c->tokens, p, hidden), hidden, sums);
        for (int i = 0; i < count; i++)
            for (int r = p * PANEL; r < rank && r < (p + 1) * PANEL; r += 16) {
                int some = up_to_16(rank - r);
                __m512 x = _mm512_load_ps(sums + i * PANEL + r - p * PANEL);
                x = _mm512_add_ps(x, load_some(c->lead + at[i] * rank + r, some));
                store_some(inner + (ptrdiff_t)i * rank + r, silu(x), some);
            }
    }
#pragma omp for schedule(static)
    for (int p = 0; p < (hidden + PANEL - 1) / PANEL; p++) {
        clear(sums, count);
        panel(inner, rank, count, nth(c->up, p, rank / 2), rank / 2, sums);
        put(sums, moved, hidden, count, hidden, p, 0);
    }
#pragma omp for schedule(static)
    for (int i = 0; i < count * candidates; i++) {
        ptrdiff_t from = at[i / candidates] * candidates + i % candidates;
        scores[i] = c->base[from] + dot(moved + (ptrdiff_t)(i / candidates) * hidden, c->head + c->ids[from] * hidden, hidden);
    }
}

/* scores [rows, candidates] of all rows behind before [rows, 2]. `order` is 0, 1, ... */
EXPORT void chain_scores(const Chain *c, const int64_t *order, const int64_t *before, bf16 *work, float *scores,
                         int threads) {
#pragma omp parallel num_threads(threads)
    score_rows(c, order, before, c->rows, work, scores);
}

/* Rows that hang together: `count` of them from `first` on, behind the tokens before [2], the nearer one first. */
typedef struct {
    int64_t first, count, before[2];
} Line;

/* The two best of a row's candidates (of equals the first; NaN is best), as `made` rounds to bfloat16, their
 * probabilities, the entropy, and whether the best score is finite: best [2], figures [4]. */
static inline void choose(const float *made, const int64_t *ids, int candidates, int64_t *best, float *figures) {
    float scores[candidates], total = 0, spread = 0;
    int place = 0, next = -1;
    for (int j = 0; j < candidates; j += 16) {
        __mmask16 some = (1u << up_to_16(candidates - j)) - 1;
        _mm512_mask_storeu_ps(scores + j, some, widen(narrow(_mm512_maskz_loadu_ps(some, made + j))));
    }
    for (int j = 1; j < candidates; j++) /* NaN is never less */
        if (scores[place] == scores[place] && !(scores[j] <= scores[place])) place = j;
    for (int j = 0; j < candidates; j++)
        if (j != place && (next < 0 || scores[j] > scores[next])) next = j;
    float first = scores[place], second = scores[next];
    for (int j = 0; j < candidates; j++) {
        float below = fmaxf(scores[j] - first, LEAST), weight = expf(below);
        total += weight;
        spread += below * weight;
    }
    best[0] = ids[place], best[1] = ids[next];
    figures[0] = 1 / total, figures[1] = expf(second - first) / total;
    figures[2] = logf(total) - spread / total, figures[3] = isfinite(first);
}

/* Every row of every line takes its best candidate, knowing those before it; best [rows, 2] and figures [rows, 4] as in
 * choose. At most GROUP lines; work and made [lines, candidates] are left to the caller. */
EXPORT void chain_follow(const Chain *c, const Line *lines, int count, bf16 *work, float *made, int64_t *best,
                         float *figures, int threads) {
    int candidates = c->candidates, live = 0, level = 0;
    int64_t at[GROUP], before[2 * GROUP];
#pragma omp parallel num_threads(threads)
    while (1) {
#pragma omp single
        {
            live = 0;
            for (int i = 0; i < count; i++)
                if (lines[i].count > level) {
                    int64_t row = lines[i].first + level;
                    at[live] = row;
                    before[2 * live] = level ? best[2 * row - 2] : lines[i].before[0];
                    before[2 * live + 1] = level > 1 ? best[2 * row - 4] : lines[i].before[level ? 0 : 1];
                    live++;
                }
            level++;
        }
        if (!live) break;
        score_rows(c, at, before, live, work, made);
#pragma omp single
        for (int i = 0; i < live; i++)
            choose(made + (ptrdiff_t)i * candidates, c->ids + at[i] * candidates, candidates, best + 2 * at[i],
                   figures + 4 * at[i]);
    }
}
