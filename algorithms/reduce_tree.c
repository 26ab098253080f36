/* reduce_tree.c: up a binomial tree to the root. Every rank but the root sends once, with a logarithmic number of hops:
 * for small data. Larger data goes in pieces, so that a rank folds one while the next arrives. TMP holds WINDOW pieces
 * at ranks that have others below them. No zero copy beyond WINDOW pieces: nothing says that a parent has consumed one
 * when its place is used again. */
#include "regroup_algorithm.h"

#define WINDOW 4u

typedef struct tree {
    rg_schedule_t *s;
    uint32_t n, v, root, pieces; /* v: number from the root */
    uint64_t piece_max;
    uint32_t done[WINDOW]; /* the send to the parent, or at the root the last fold */
} tree_t;

static uint32_t rank_of(const tree_t *x, uint32_t v) { return (uint32_t)(((uint64_t)x->root + v) % x->n); }

/* The children of v are v + 1, v + 2, v + 4 and so on below v + reach. */
static uint32_t reach_of(const tree_t *x, uint32_t v) {
    uint32_t reach = v & (~v + 1);
    if (v == 0)
        for (reach = 1; reach < x->n - reach; reach *= 2) continue;
    return v == 0 ? 2 * reach : reach;
}

static void piece(tree_t *x, uint32_t p) {
    uint32_t *done = &x->done[p % WINDOW], dep = *done, reach = reach_of(x, x->v);
    rg_span_t value = rg_span_part(rg_span(RG_BUF_IN, 0, x->s->desc.count), x->pieces, p);
    rg_span_t out = rg_span(RG_BUF_OUT, value.off, value.len);
    rg_span_t acc = rg_span(RG_BUF_TMP, (p % WINDOW) * x->piece_max, value.len);
    /* The smallest subtree first: it is ready first. */
    for (uint32_t step = 1; step < reach && step < x->n - x->v; step *= 2) {
        uint32_t child = x->v + step, from = rank_of(x, child);
        int last = x->v == 0 && step >= x->n - step, inner = reach_of(x, child) > 1 && child + 1 < x->n;
        uint32_t flags =
            (inner ? RG_STEP_WIRE_ACC : 0) | (last ? RG_STEP_FINAL : 0) | (from < x->s->desc.rank ? RG_STEP_SWAP : 0);
        dep = rg_sched_recv_reduce(x->s, from, last ? out : acc, value, flags, &dep, 1);
        value = acc;
    }
    if (x->v != 0) dep = rg_sched_send(x->s, rank_of(x, x->v - reach), value, &dep, 1);
    *done = dep;
}

static int applies(const rg_coll_desc_t *d) { return !d->rank_order || d->size <= 2; }

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)d->count * d->elem_size, pieces = (double)d->count / (double)d->chunk,
           depth = 0;
    for (uint64_t i = 1; i < d->size; i *= 2) depth++;
    if (pieces < 1) pieces = 1;
    /* The root takes all of it `depth` times; where ranks share cores the sum over all ranks counts, which is once
     * each. */
    double share = m->sharing > 1 ? (n - 1) / n : depth;
    return rg_cost(m, depth, share * pieces, share * bytes, share * bytes);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 131072 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    if (d->count == 0) return RG_OK;
    tree_t x = { .s = s, .n = d->size, .root = d->root };
    x.v = (uint32_t)(((uint64_t)d->rank + d->size - d->root) % d->size);
    x.pieces = rg_sched_pieces(d->count, d->chunk, 16);
    x.piece_max = rg_span_part(rg_span(RG_BUF_IN, 0, d->count), x.pieces, 0).len;
    for (uint32_t i = 0; i < WINDOW; i++) x.done[i] = RG_NO_STEP;
    for (uint32_t p = 0; p < x.pieces; p++)
        if (rg_span_part(rg_span(RG_BUF_IN, 0, d->count), x.pieces, p).len != 0) piece(&x, p);
    if (x.pieces <= WINDOW) s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_reduce_tree = {
    .name = "tree",
    .kind = RG_KIND_REDUCE,
    .source = "folklore: binomial tree; see Thakur, Rabenseifner, Gropp 2005",
    .applies = applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
