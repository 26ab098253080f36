/* all_reduce_tree.c: up a binary tree and down again, in pieces. Few hops and at most three neighbours for any number
 * of ranks, twice the bytes through the inner ones: for many ranks and small to middle data. TMP holds WINDOW pieces
 * at inner ranks. */
#include "regroup_algorithm.h"

#define WINDOW 4u

/* Step indexes of the piece that last used a place in the window. `read`: the first reader of IN; `up`: the send to
 * the parent; `done`: the arrival of the final value, or at the root its making. */
typedef struct ids {
    uint32_t read, up, done;
} ids_t;

typedef struct tree {
    rg_schedule_t *s;
    uint32_t r, pieces, n_children;
    uint64_t piece_max;
    ids_t ids[WINDOW];
} tree_t;

static rg_span_t piece_of(const tree_t *x, rg_buf_t buf, uint32_t p) {
    return rg_span_part(rg_span(buf, 0, x->s->desc.count), x->pieces, p);
}

/* Fold the children's values into the own one and pass it to the parent. */
static void up(tree_t *x, uint32_t p) {
    ids_t *w = &x->ids[p % WINDOW];
    rg_span_t value = piece_of(x, RG_BUF_IN, p), acc = rg_span(RG_BUF_TMP, (p % WINDOW) * x->piece_max, value.len);
    uint32_t parent = (x->r - 1) / 2;
    /* The final value came back, so the parent has consumed what was in this place. */
    uint32_t deps[2] = { w->up, w->done }, n = 2;
    for (uint32_t i = 0; i < x->n_children; i++) {
        int last = x->r == 0 && i + 1 == x->n_children;
        uint32_t flags =
            (2 * (2 * x->r + 1 + i) + 1 < x->s->desc.size ? RG_STEP_WIRE_ACC : 0) | (last ? RG_STEP_FINAL : 0);
        deps[0] = rg_sched_recv_reduce(x->s, 2 * x->r + 1 + i, last ? piece_of(x, RG_BUF_OUT, p) : acc, value, flags,
                                       deps, n);
        if (i == 0) w->read = deps[0];
        value = acc;
        n = 1;
    }
    if (x->r == 0) {
        w->done = deps[0];
        return;
    }
    w->up = rg_sched_send(x->s, parent, value, deps, n);
    if (x->n_children == 0) w->read = w->up;
}

static void down(tree_t *x, uint32_t p) {
    ids_t *w = &x->ids[p % WINDOW];
    rg_span_t out = piece_of(x, RG_BUF_OUT, p);
    if (x->r != 0) w->done = rg_sched_recv(x->s, (x->r - 1) / 2, out, 0, &w->read, 1);
    for (uint32_t i = 0; i < x->n_children; i++) rg_sched_send(x->s, 2 * x->r + 1 + i, out, &w->done, 1);
}

static int applies(const rg_coll_desc_t *d) { return !d->rank_order || d->size <= 2; }

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)d->count * d->elem_size, pieces = (double)d->count / (double)d->chunk, depth = 0;
    double each = (double)d->chunk * d->elem_size < bytes ? (double)d->chunk * d->elem_size : bytes;
    for (uint32_t i = d->size; i > 1; i /= 2) depth++;
    if (pieces < 1) pieces = 1;
    /* Where ranks share cores the sum over all ranks counts, which is two messages sent each; else the inner ones'. */
    int mean = m->sharing > 1 || d->size == 2;
    double share = mean ? 2 : 3;
    /* The first piece has to go all the way. */
    return rg_cost(m, 2 * depth, (mean ? 2 : 6) * pieces, share * bytes, share / 2 * bytes) +
           (2 * depth - 1) * each * m->beta;
}

static uint64_t chunk(const rg_coll_desc_t *d) {
    uint64_t bytes = d->count * d->elem_size / 16;
    bytes = bytes < 32768 ? 32768 : bytes > 131072 ? 131072 : bytes;
    return bytes / d->elem_size;
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    if (d->count == 0) return RG_OK;
    tree_t x = { .s = s, .r = d->rank };
    x.n_children = 2 * x.r + 2 < d->size ? 2 : 2 * x.r + 1 < d->size ? 1 : 0;
    x.pieces = rg_sched_pieces(d->count, d->chunk, 6);
    x.piece_max = piece_of(&x, RG_BUF_IN, 0).len;
    for (uint32_t i = 0; i < WINDOW; i++) x.ids[i] = (ids_t){ RG_NO_STEP, RG_NO_STEP, RG_NO_STEP };
    for (uint32_t tick = 0; tick <= x.pieces; tick++) {
        if (tick < x.pieces && piece_of(&x, RG_BUF_IN, tick).len != 0) up(&x, tick);
        if (tick > 0 && piece_of(&x, RG_BUF_IN, tick - 1).len != 0) down(&x, tick - 1);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_all_reduce_tree = {
    .name = "tree",
    .kind = RG_KIND_ALL_REDUCE,
    .source = "folklore: reduction up a pipelined binary tree, broadcast down it",
    .applies = applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
