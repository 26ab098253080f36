/* reduce_double_tree.c: half of the data goes up each of two binary trees over all but the root, in which the inner
 * ranks of one are the leaves of the other; the root takes both halves from the roots of the trees. Nobody sends or
 * receives more than about the data once, with a logarithmic number of hops: for middle to large data on many ranks.
 * TMP holds WINDOW pieces at inner ranks, for each tree. No zero copy beyond WINDOW pieces: nothing says that a parent
 * has consumed one when its place is used again. */
#include "double_tree.h"

#define WINDOW 4u

typedef struct half {
    dtree_node_t node;
    uint32_t inner; /* bit i: child i sends a partial value */
    uint32_t sent[WINDOW];
} half_t;

typedef struct trees {
    rg_schedule_t *s;
    const rg_coll_desc_t *d;
    uint32_t pieces;
    uint64_t piece_max;
    half_t half[2];
} trees_t;

/* Everybody but the root has a number from 0 to n-2 in the trees. */
static uint32_t rank_of(const rg_coll_desc_t *d, uint32_t number) {
    return (uint32_t)(((uint64_t)d->root + 1 + number) % d->size);
}

/* Of two ranks the lower one's value is to the left: that is rank order. */
static uint32_t flags_for(const rg_coll_desc_t *d, uint32_t from, int partial) {
    return (partial ? RG_STEP_WIRE_ACC : 0) | (from < d->rank ? RG_STEP_SWAP : 0);
}

static void piece(trees_t *x, uint32_t t, uint32_t p, rg_span_t value) {
    const rg_coll_desc_t *d = x->d;
    half_t *h = &x->half[t];
    if (d->rank == d->root) {
        uint32_t top = dtree_root(t, d->size - 1), from = rank_of(d, top);
        int partial = dtree_node(t, d->size - 1, top).n_children != 0;
        rg_sched_recv_reduce(x->s, from, rg_span(RG_BUF_OUT, value.off, value.len), value,
                             flags_for(d, from, partial) | RG_STEP_FINAL, NULL, 0);
        return;
    }
    rg_span_t acc = rg_span(RG_BUF_TMP, ((uint64_t)t * WINDOW + p % WINDOW) * x->piece_max, value.len);
    uint32_t *sent = &h->sent[p % WINDOW], dep = *sent;
    for (uint32_t i = 0; i < h->node.n_children; i++) {
        uint32_t from = rank_of(d, h->node.child[i]);
        dep = rg_sched_recv_reduce(x->s, from, acc, value, flags_for(d, from, (int)(h->inner >> i & 1)), &dep, 1);
        value = acc;
    }
    *sent = rg_sched_send(x->s, h->node.parent == DTREE_NONE ? d->root : rank_of(d, h->node.parent), value, &dep, 1);
}

static int applies(const rg_coll_desc_t *d) { return !d->rank_order || d->size <= 2; }

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)d->count * d->elem_size, each = (double)d->chunk * d->elem_size;
    double pieces = bytes > 2 * each ? bytes / (2 * each) : 1, depth = dtree_depth(d->size - 1) + 1.0;
    if (2 * each > bytes) each = bytes / 2;
    /* An inner rank has three messages a piece and one as a leaf; the sum over all is two sent each. The first piece
     * has to go all the way, and waits for a second message at every hop. */
    return rg_cost(m, depth, (m->sharing > 1 ? 2 : 4) * pieces + depth, bytes, bytes) +
           2 * (depth - 1) * each * m->beta;
}

static uint64_t chunk(const rg_coll_desc_t *d) {
    uint64_t bytes = d->count / 16 * d->elem_size;
    bytes = bytes < 32768 ? 32768 : bytes > 131072 ? 131072 : bytes;
    return bytes / d->elem_size;
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    rg_span_t all = rg_span(RG_BUF_IN, 0, d->count), first = rg_span_part(all, 2, 0);
    uint32_t number = (uint32_t)(((uint64_t)d->rank + d->size - d->root - 1) % d->size);
    trees_t x = { .s = s, .d = d, .pieces = rg_sched_pieces(first.len, d->chunk, 6) };
    x.piece_max = rg_span_part(first, x.pieces, 0).len;
    for (uint32_t t = 0; t < 2 && d->rank != d->root; t++) {
        half_t *h = &x.half[t];
        h->node = dtree_node(t, d->size - 1, number);
        for (uint32_t i = 0; i < h->node.n_children; i++)
            if (dtree_node(t, d->size - 1, h->node.child[i]).n_children != 0) h->inner |= 1u << i;
        for (uint32_t i = 0; i < WINDOW; i++) h->sent[i] = RG_NO_STEP;
    }
    for (uint32_t p = 0; p < x.pieces; p++)
        for (uint32_t t = 0; t < 2; t++) {
            rg_span_t value = rg_span_part(rg_span_part(all, 2, t), x.pieces, p);
            if (value.len != 0) piece(&x, t, p, value);
        }
    if (x.pieces <= WINDOW) s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_reduce_double_tree = {
    .name = "double_tree",
    .kind = RG_KIND_REDUCE,
    .source = "Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009",
    .applies = applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
