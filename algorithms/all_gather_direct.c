/* all_gather_direct.c: everybody sends its segment to everybody. One hop and as few bytes as any, at the price of n-1
 * messages: for few ranks at any size. No TMP. Nothing that was sent is ever written again. */
#include "pieces.h"
#include "segments.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)rg_seg_total(d) * d->elem_size, each = (double)d->chunk * d->elem_size * n;
    double pieces = bytes > each ? bytes / each : 1;
    /* Many streams that end at one port at once get in each other's way; the ring's do not. */
    double crowd = n > 8 ? 1 + 0.01 * (n - 8) : 1;
    /* So they do on shared cores, as long as the data stay in cache (segments.h). */
    if (seg_shared_tcp(d, m)) crowd *= 1.3;
    return rg_cost(m, 1, (n - 1) * pieces, (n - 1) / n * bytes * crowd, 0);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 262144 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size, r = d->rank;
    rg_span_t own = rg_seg(d, RG_BUF_OUT, r), in = rg_span(RG_BUF_IN, 0, own.len);
    streams_t x;
    if (!streams_begin(&x, s, rg_seg_max(d))) return s->error;
    for (uint32_t p = 0; p < x.most; p++) {
        for (uint32_t i = 1; i < n; i++) {
            uint32_t from = (r + n - i) % n;
            stream_send(&x, (r + i) % n, in, p);
            stream_recv(&x, from, rg_seg(d, RG_BUF_OUT, from), p);
        }
        if (p == 0 && own.len != 0) rg_sched_copy(s, own, in, 0, NULL, 0);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_all_gather_direct = {
    .name = "direct",
    .kind = RG_KIND_ALL_GATHER,
    .source = "folklore: linear all-gather",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
