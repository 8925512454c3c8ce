/* All decoder layers of a step in one go: between products, threads only wait for each other. */
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

/* hidden [rows, size] is what layers add to; cos, sin [rows, width] as in rotate_row. An adapter serves rows from `split`
 * on. K/V caches [layers, slots, kv_heads, keys, width]; row i stands at keys[i] of slots[i], and is a draft from
 * `drafts` on. Left to the caller: normed [rows, size], mixed [rows, outputs of qkv], turned [rows, heads + kv_heads,
 * width], attended [rows, heads, width], pair [rows, 2 inner], gated [rows, inner], low (multiply_rows). */
typedef struct {
    bf16 *hidden;
    const bf16 *cos, *sin;
    bf16 *k, *v;
    ptrdiff_t layer, slot, head;
    const int64_t *slots, *keys;
    const Seen *seen;
    bf16 *normed, *mixed, *turned, *attended, *pair, *gated, *low;
    int rows, size, split, drafts, heads, kv_heads, width;
    float eps;
} Step;

static inline void multiply_by(const Map *map, const bf16 *x, bf16 *y, int onto, const Step *s) {
    multiply_rows(x, 2 * map->weights->pairs, map->weights, y, map->weights->outputs, s->rows, onto, map->factors, s->split,
                  s->low);
}

static inline void normalise_rows(const float *weight, const Step *s) {
    ptrdiff_t size = s->size;
#pragma omp for schedule(static)
    for (int i = 0; i < s->rows; i++) normalise(s->hidden + i * size, weight, size, s->eps, s->normed + i * size);
}

/* One thread's part of a layer with its own caches k and v. */
static inline void layer(const Layer *l, bf16 *k, bf16 *v, const Step *s) {
    int width = s->width, turns = s->heads + s->kv_heads, inner = l->gate_up.weights->outputs / 2;
    ptrdiff_t mixed_row = l->qkv.weights->outputs, turned_row = (ptrdiff_t)turns * width;
    normalise_rows(l->input_norm, s);
    multiply_by(&l->qkv, s->normed, s->mixed, 0, s);
#pragma omp for schedule(static)
    for (ptrdiff_t i = 0; i < s->rows; i++) {
        const bf16 *mixed = s->mixed + i * mixed_row;
        bf16 *turned = s->turned + i * turned_row;
        ptrdiff_t to = s->slots[i] * s->slot + s->keys[i] * width;
        rotate_row(mixed, s->cos + i * width, s->sin + i * width, turns, width, turned);
        store_row(turned + s->heads * width, mixed + turned_row, k + to, v + to, s->head, s->kv_heads, width, i >= s->drafts);
    }
    attend_rows(s->turned, turned_row, k, v, s->slot, s->head, s->attended, s->seen, s->kv_heads, s->heads / s->kv_heads,
                width);
    multiply_by(&l->o, s->attended, s->hidden, 1, s);
    normalise_rows(l->post_norm, s);
    multiply_by(&l->gate_up, s->normed, s->pair, 0, s);
#pragma omp for schedule(static)
    for (ptrdiff_t i = 0; i < s->rows; i++) gate_row(s->pair + i * 2 * inner, inner, s->gated + i * inner);
    multiply_by(&l->down, s->gated, s->hidden, 1, s);
}

/* Hidden states of a step's rows after `count` layers. */
EXPORT void decoder_layers(const Layer *layers, int count, const Step *step, int threads) {
#pragma omp parallel num_threads(threads)
    for (int i = 0; i < count; i++) layer(layers + i, step->k + i * step->layer, step->v + i * step->layer, step);
}
