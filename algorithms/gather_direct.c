/* gather_direct.c: everybody sends its segment to the root, which has to take all of it in any case. One hop and no
 * byte too many; only with very many small segments does a tree save the root messages. No TMP. Nothing that was sent
 * is ever written again. */
#include "pieces.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)rg_seg_total(d) * d->elem_size, each = (double)d->chunk * d->elem_size * n;
    double pieces = bytes > each ? bytes / each : 1;
    /* All of it is the root's work, however many cores the others leave idle. */
    return m->alpha + rg_cost(m, 0, (n - 1) * pieces, (n - 1) / n * bytes, 0) / (m->sharing > 1 ? m->sharing : 1);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 262144 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size;
    rg_span_t in = rg_span(RG_BUF_IN, 0, rg_seg_len(d, d->rank));
    streams_t x;
    if (!streams_begin(&x, s, rg_seg_max(d))) return s->error;
    for (uint32_t p = 0; p < x.most; p++) {
        if (d->rank != d->root) {
            stream_send(&x, d->root, in, p);
            continue;
        }
        for (uint32_t i = 1; i < n; i++) {
            uint32_t from = (d->root + i) % n;
            stream_recv(&x, from, rg_seg(d, RG_BUF_OUT, from), p);
        }
        if (p == 0 && in.len != 0) rg_sched_copy(s, rg_seg(d, RG_BUF_OUT, d->rank), in, 0, NULL, 0);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_gather_direct = {
    .name = "direct",
    .kind = RG_KIND_GATHER,
    .source = "folklore: linear gather",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
