/* p2p_direct.c: one message from rank 0 to rank 1, in pieces so that many rails can carry it. No TMP. Nothing that was
 * sent is ever written again. */
#include "pieces.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)d->count * d->elem_size, pieces = (double)d->count / (double)d->chunk;
    return rg_cost(m, 1, pieces < 1 ? 1 : pieces, bytes, 0);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 1048576 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    streams_t x;
    if (!streams_begin(&x, s, d->count)) return s->error;
    for (uint32_t p = 0; p < x.most; p++) {
        if (d->rank == 0) stream_send(&x, 1, rg_span(RG_BUF_IN, 0, d->count), p);
        else stream_recv(&x, 0, rg_span(RG_BUF_OUT, 0, d->count), p);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_p2p_direct = {
    .name = "direct",
    .kind = RG_KIND_P2P,
    .source = "folklore: a message",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
