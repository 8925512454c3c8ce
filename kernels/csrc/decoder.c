/* A step's rows from tokens to the last norm, in one go: between products, threads only wait for each other. */
#include <string.h>

#include "attention.h"
#include "product.h"
#include "rows.h"

typedef struct {
    const Weights *weights;
    const Factors *factors; /* NULL: no adapter */
} Map;

typedef struct {
    const float *input_norm, *post_norm;
    Map qkv, o, gate_up, down;
} Layer;

/* embedding [vocab, size]; `norm` and `eps` of the norm behind the last layer. */
typedef struct {
    const Layer *layers;
    const bf16 *embedding;
    const float *norm;
    uint64_t vocab;
    int count, size, heads, kv_heads, width;
    float eps;
} Decoder;

/* What row i is: tokens[i] (from vocab on: `mask` [size]) at positions[i], for which cos, sin [positions, width] as in
 * rotate_row. Its K/V stand at keys[i] of slots[i] in caches [layers, slots, kv_heads, keys, width]; it is a draft from
 * `drafts` on, and served by an adapter from `split` on. Left to the caller: hidden, normed [rows, size], mixed [rows, outputs
 * of qkv], turned [rows, heads + kv_heads, width], attended [rows, heads, width], pair [rows, 2 inner], gated [rows,
 * inner], low (multiply_rows). */
typedef struct {
    const int64_t *tokens, *positions, *slots, *keys;
    const bf16 *mask, *cos, *sin;
    bf16 *k, *v;
    ptrdiff_t layer, slot, head;
    const Seen *seen;
    bf16 *hidden, *normed, *mixed, *turned, *attended, *pair, *gated, *low;
    int rows, split, drafts;
} Step;

static inline void multiply_by(const Map *map, const bf16 *x, bf16 *y, int onto, const Step *s) {
    multiply_rows(x, 2 * map->weights->pairs, map->weights, y, map->weights->outputs, s->rows, onto, map->factors, s->split,
                  s->low);
}

static inline void normalise_rows(const float *weight, const Decoder *d, const Step *s) {
    ptrdiff_t size = d->size;
#pragma omp for schedule(static)
    for (int i = 0; i < s->rows; i++) normalise(s->hidden + i * size, weight, size, d->eps, s->normed + i * size);
}

/* One thread's part of a layer with its own caches k and v. */
static inline void run_layer(const Layer *l, bf16 *k, bf16 *v, const Decoder *d, const Step *s) {
    int width = d->width, turns = d->heads + d->kv_heads, inner = l->gate_up.weights->outputs / 2;
    ptrdiff_t mixed_row = l->qkv.weights->outputs, turned_row = (ptrdiff_t)turns * width;
    normalise_rows(l->input_norm, d, s);
    multiply_by(&l->qkv, s->normed, s->mixed, 0, s);
#pragma omp for schedule(static)
    for (int i = 0; i < s->rows; i++) {
        const bf16 *mixed = s->mixed + i * mixed_row;
        bf16 *turned = s->turned + i * turned_row;
        ptrdiff_t to = s->slots[i] * s->slot + s->keys[i] * width, angle = s->positions[i] * width;
        rotate_row(mixed, s->cos + angle, s->sin + angle, turns, width, turned);
        store_row(turned + d->heads * width, mixed + turned_row, k + to, v + to, s->head, d->kv_heads, width, i >= s->drafts);
    }
    attend_rows(s->turned, turned_row, k, v, s->slot, s->head, s->attended, s->seen, d->kv_heads, d->heads / d->kv_heads,
                width);
    multiply_by(&l->o, s->attended, s->hidden, 1, s);
    normalise_rows(l->post_norm, d, s);
    multiply_by(&l->gate_up, s->normed, s->pair, 0, s);
#pragma omp for schedule(static)
    for (ptrdiff_t i = 0; i < s->rows; i++) gate_row(s->pair + i * 2 * inner, inner, s->gated + i * inner);
    multiply_by(&l->down, s->gated, s->hidden, 1, s);
}

/* `normed` of a step's rows behind all layers. */
EXPORT void decode(const Decoder *d, const Step *s, int threads) {
    ptrdiff_t size = d->size;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int i = 0; i < s->rows; i++) {
            uint64_t token = s->tokens[i];
            memcpy(s->hidden + i * size, token < d->vocab ? d->embedding + token * size : s->mask, size * sizeof(bf16));
        }
        for (int i = 0; i < d->count; i++) run_layer(d->layers + i, s->k + i * s->layer, s->v + i * s->layer, d, s);
        normalise_rows(d->norm, d, s);
    }
}
