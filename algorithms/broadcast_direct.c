/* broadcast_direct.c: the root sends to everybody. One hop, at the price of n-1 times the bytes at the root: for small
 * data on few ranks. No TMP. Nothing that was sent is ever written again. */
#include "regroup_algorithm.h"

/* Receives posted ahead. */
#define WINDOW 8u

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)d->count * d->elem_size, pieces = (double)d->count / (double)d->chunk, peers = d->size - 1.0;
    if (pieces < 1) pieces = 1;
    /* All of it is the root's work, however many cores the others leave idle. */
    return m->alpha + peers * (rg_cost(m, 0, pieces, bytes, 0) / (m->sharing > 1 ? m->sharing : 1));
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 131072 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size, pieces = rg_sched_pieces(d->count, d->chunk, n), came[WINDOW];
    for (uint32_t i = 0; i < WINDOW; i++) came[i] = RG_NO_STEP;
    for (uint32_t p = 0; p < pieces; p++) {
        rg_span_t out = rg_span_part(rg_span(RG_BUF_OUT, 0, d->count), pieces, p),
                  in = rg_span(RG_BUF_IN, out.off, out.len);
        if (out.len == 0) continue;
        if (d->rank != d->root) {
            came[p % WINDOW] = rg_sched_recv(s, d->root, out, 0, &came[p % WINDOW], 1);
            continue;
        }
        for (uint32_t i = 1; i < n; i++) rg_sched_send(s, (d->root + i) % n, in, NULL, 0);
        rg_sched_copy(s, out, in, 0, NULL, 0);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_broadcast_direct = {
    .name = "direct",
    .kind = RG_KIND_BROADCAST,
    .source = "folklore: linear broadcast",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
