/* broadcast_ring.c: along a chain from the root, in pieces. Every rank sends and receives everything once, at the same
 * time: for large data. No TMP. Nothing that was sent is ever written again. */
#include "regroup_algorithm.h"

/* Receives posted ahead. */
#define WINDOW 8u

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)d->count * d->elem_size, each = (double)d->chunk * d->elem_size;
    double pieces = bytes > each ? bytes / each : 1;
    if (each > bytes) each = bytes;
    /* The first piece goes all the way before the last rank has anything. */
    return rg_cost(m, d->size - 1.0, pieces, bytes, 0) + (d->size - 2.0) * each * m->beta;
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 131072 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size, r = d->rank, v = (r + n - d->root) % n;
    uint32_t pieces = rg_sched_pieces(d->count, d->chunk, 2), came[WINDOW];
    for (uint32_t i = 0; i < WINDOW; i++) came[i] = RG_NO_STEP;
    for (uint32_t p = 0; p < pieces; p++) {
        rg_span_t out = rg_span_part(rg_span(RG_BUF_OUT, 0, d->count), pieces, p);
        rg_span_t from = rg_span(v == 0 ? RG_BUF_IN : RG_BUF_OUT, out.off, out.len);
        uint32_t *last = &came[p % WINDOW];
        if (out.len == 0) continue;
        if (v == 0) rg_sched_copy(s, out, from, 0, NULL, 0);
        else *last = rg_sched_recv(s, (r + n - 1) % n, out, 0, last, 1);
        if (v + 1 < n) rg_sched_send(s, (r + 1) % n, from, last, 1);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_broadcast_ring = {
    .name = "ring",
    .kind = RG_KIND_BROADCAST,
    .source = "folklore: pipelined chain",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
