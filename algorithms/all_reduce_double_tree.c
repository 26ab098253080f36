/* all_reduce_double_tree.c: half of the data is reduced up one binary tree and broadcast down it, the other half over a
 * second tree in which the inner ranks of the first are leaves. Everybody sends about twice the data, as with the ring,
 * with a logarithmic number of hops: for middle to large data on many ranks. Pieces of `chunk` elements follow each
 * other. TMP holds a window of pieces for each tree in which a rank is inner: at most 2 * max(4, 2 * depth) pieces,
 * however large the data is. */
#include "double_tree.h"

#define WINDOW_MIN 4u
#define WINDOW_MAX 32u

/* Step indexes of the piece that last used a place in the window. `read`: the first reader of IN; `up`: the send to
 * the parent; `done`: the arrival of the final value, or at the root its making. */
typedef struct ids {
    uint32_t read, up, done;
} ids_t;

typedef struct half {
    dtree_node_t node;
    uint32_t inner; /* bit i: child i passes on what it folded, so a partial value comes from it */
    ids_t ids[WINDOW_MAX];
} half_t;

typedef struct trees {
    rg_schedule_t *s;
    uint32_t pieces, window;
    uint64_t piece_max;
    half_t half[2];
} trees_t;

static rg_span_t piece_of(const trees_t *x, rg_buf_t buf, uint32_t t, uint32_t p) {
    return rg_span_part(rg_span_part(rg_span(buf, 0, x->s->desc.count), 2, t), x->pieces, p);
}

/* Fold the children's values into the own one and pass it to the parent. */
static void up(trees_t *x, uint32_t t, uint32_t p) {
    half_t *h = &x->half[t];
    ids_t *w = &h->ids[p % x->window];
    rg_span_t value = piece_of(x, RG_BUF_IN, t, p);
    rg_span_t acc = rg_span(RG_BUF_TMP, ((uint64_t)t * x->window + p % x->window) * x->piece_max, value.len);
    int root = h->node.parent == DTREE_NONE;
    /* The final value came back, so the parent has consumed what was in this place. */
    uint32_t deps[2] = { w->up, w->done }, n = 2;
    for (uint32_t i = 0; i < h->node.n_children; i++) {
        int last = root && i + 1 == h->node.n_children;
        /* The lower rank to the left: of two ranks that is rank order. */
        uint32_t flags = (h->inner >> i & 1 ? RG_STEP_WIRE_ACC : 0) | (last ? RG_STEP_FINAL : 0) |
                         (h->node.child[i] < x->s->desc.rank ? RG_STEP_SWAP : 0);
        deps[0] = rg_sched_recv_reduce(x->s, h->node.child[i], last ? piece_of(x, RG_BUF_OUT, t, p) : acc, value, flags,
                                       deps, n);
        if (i == 0) w->read = deps[0];
        value = acc;
        n = 1;
    }
    if (root) {
        w->done = deps[0];
        return;
    }
    w->up = rg_sched_send(x->s, h->node.parent, value, deps, n);
    if (h->node.n_children == 0) w->read = w->up;
}

static void down(trees_t *x, uint32_t t, uint32_t p) {
    half_t *h = &x->half[t];
    ids_t *w = &h->ids[p % x->window];
    rg_span_t out = piece_of(x, RG_BUF_OUT, t, p);
    if (h->node.parent != DTREE_NONE) w->done = rg_sched_recv(x->s, h->node.parent, out, 0, &w->read, 1);
    for (uint32_t i = 0; i < h->node.n_children; i++) rg_sched_send(x->s, h->node.child[i], out, &w->done, 1);
}

static int applies(const rg_coll_desc_t *d) { return !d->rank_order || d->size <= 2; }

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)d->count * d->elem_size, each = (double)d->chunk * d->elem_size;
    double pieces = bytes > 2 * each ? bytes / (2 * each) : 1, depth = dtree_depth(d->size);
    if (2 * each > bytes) each = bytes / 2;
    /* An inner rank has six messages a piece, and two as a leaf of the other tree; where ranks share cores the sum over
     * all of them counts, which is four sent each. The first piece has to go all the way, and waits for a second
     * message at every hop. */
    return rg_cost(m, 2 * depth, (m->sharing > 1 ? 4 : 8) * pieces + 2 * depth, 2 * (n - 1) / n * bytes,
                   (n - 1) / n * bytes) +
           2 * depth * each * m->beta;
}

static uint64_t chunk(const rg_coll_desc_t *d) {
    uint64_t bytes = d->count / 16 * d->elem_size;
    bytes = bytes < 32768 ? 32768 : bytes > 131072 ? 131072 : bytes;
    return bytes / d->elem_size;
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    if (d->count == 0) return RG_OK;
    trees_t x = { .s = s, .window = 2 * dtree_depth(d->size) };
    rg_span_t first = rg_span_part(rg_span(RG_BUF_IN, 0, d->count), 2, 0);
    if (x.window < WINDOW_MIN) x.window = WINDOW_MIN;
    if (x.window > WINDOW_MAX) x.window = WINDOW_MAX;
    x.pieces = rg_sched_pieces(first.len, d->chunk, 8);
    x.piece_max = rg_span_part(first, x.pieces, 0).len;
    for (uint32_t t = 0; t < 2; t++) {
        half_t *h = &x.half[t];
        h->node = dtree_node(t, d->size, d->rank);
        for (uint32_t i = 0; i < h->node.n_children; i++)
            if (dtree_node(t, d->size, h->node.child[i]).n_children != 0) h->inner |= 1u << i;
        for (uint32_t i = 0; i < WINDOW_MAX; i++) h->ids[i] = (ids_t){ RG_NO_STEP, RG_NO_STEP, RG_NO_STEP };
    }
    /* The way down is half a window behind the way up: two ranks may be neighbours in both trees, and what goes up must
     * not queue behind what has yet to come down. */
    uint32_t lag = x.window / 2;
    for (uint32_t tick = 0; tick < x.pieces + lag; tick++) {
        for (uint32_t t = 0; t < 2; t++)
            if (tick < x.pieces && piece_of(&x, RG_BUF_IN, t, tick).len != 0) up(&x, t, tick);
        for (uint32_t t = 0; t < 2; t++)
            if (tick >= lag && piece_of(&x, RG_BUF_IN, t, tick - lag).len != 0) down(&x, t, tick - lag);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_all_reduce_double_tree = {
    .name = "double_tree",
    .kind = RG_KIND_ALL_REDUCE,
    .source = "Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009",
    .applies = applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
