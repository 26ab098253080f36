/* all_to_all_direct.c: everybody sends everybody its segment, all at once, each rank beginning with its neighbour so
 * that nobody is everybody's first. One hop and no byte too many: for few ranks at any size, and for segments that
 * differ. No TMP. Nothing that was sent is ever written again. */
#include "pieces.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)rg_seg_total(d) * d->elem_size, each = (double)d->chunk * d->elem_size * n;
    double pieces = bytes > each ? bytes / each : 1;
    /* Many streams that end at one port at once get in each other's way. */
    double crowd = n > 8 ? 1 + 0.01 * (n - 8) : 1;
    return rg_cost(m, 1, (n - 1) * pieces, (n - 1) / n * bytes * crowd, 0);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 262144 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size, r = d->rank;
    uint64_t longest = rg_seg_max(d);
    for (uint32_t i = 0; i < n; i++)
        if (rg_seg_in(d, i).len > longest) longest = rg_seg_in(d, i).len;
    streams_t x;
    if (!streams_begin(&x, s, longest)) return s->error;
    for (uint32_t p = 0; p < x.most; p++) {
        for (uint32_t i = 1; i < n; i++) {
            uint32_t from = (r + n - i) % n, to = (r + i) % n;
            stream_send(&x, to, rg_seg_in(d, to), p);
            stream_recv(&x, from, rg_seg(d, RG_BUF_OUT, from), p);
        }
        rg_span_t own = rg_seg_in(d, r);
        if (p == 0 && own.len != 0) rg_sched_copy(s, rg_seg(d, RG_BUF_OUT, r), own, 0, NULL, 0);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_all_to_all_direct = {
    .name = "direct",
    .kind = RG_KIND_ALL_TO_ALL,
    .source = "folklore: linear exchange",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
