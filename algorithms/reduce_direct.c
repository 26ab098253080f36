/* reduce_direct.c: everybody sends its data to the root, which combines it, piece by piece. One hop, at the price of
 * n-1 times the bytes and all of the work at the root: for small data on few ranks, and the one that keeps rank order.
 * TMP holds WINDOW pieces at the root, and at rank 0 when it has to begin the fold for another. */
#include "owner_fold.h"

/* Pieces under way. */
#define WINDOW 4u

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)d->count * d->elem_size, pieces = (double)d->count / (double)d->chunk, peers = d->size - 1.0;
    if (pieces < 1) pieces = 1;
    /* All of it is the root's work, however many cores the others leave idle. */
    return m->alpha + peers * (rg_cost(m, 0, pieces, bytes, bytes) / (m->sharing > 1 ? m->sharing : 1));
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 131072 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size, pieces = rg_sched_pieces(d->count, d->chunk, n), last[WINDOW];
    int ordered = d->rank_order != 0, partial = d->rank == 0 && owner_begins_elsewhere(ordered, n, d->root);
    uint64_t piece_max = rg_span_part(rg_span(RG_BUF_IN, 0, d->count), pieces, 0).len;
    for (uint32_t i = 0; i < WINDOW; i++) last[i] = RG_NO_STEP;
    for (uint32_t p = 0; p < pieces; p++) {
        rg_span_t in = rg_span_part(rg_span(RG_BUF_IN, 0, d->count), pieces, p);
        rg_span_t acc = rg_span(RG_BUF_TMP, p % WINDOW * piece_max, in.len);
        uint32_t *dep = &last[p % WINDOW];
        if (in.len == 0) continue;
        if (d->rank == d->root) {
            *dep = owner_fold(s, ordered, rg_span(RG_BUF_OUT, in.off, in.len), in, acc, *dep);
        } else if (partial) {
            uint32_t copied = rg_sched_copy(s, acc, in, 0, dep, 1);
            *dep = rg_sched_send(s, d->root, acc, &copied, 1);
        } else {
            rg_sched_send(s, d->root, in, NULL, 0);
        }
    }
    /* TMP is written over when what was in it has left, not when it has arrived. */
    if (!partial) s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_reduce_direct = {
    .name = "direct",
    .kind = RG_KIND_REDUCE,
    .source = "folklore: linear reduce",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
