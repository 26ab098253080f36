/* all_gather_bruck.c: in round k every rank gives the segments that it has, its own and those of the ranks above, to
 * the rank 2^k below. The number of rounds is logarithmic for any number of ranks, and every segment is sent once: for
 * small and middle data. Segments go straight to their places in OUT, so there is no TMP and nothing to turn around at
 * the end; what wraps around the last rank is a second message, and where offsets or lengths are given every segment
 * is a message. Nothing that was sent is written again. */
#include "segments.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, rounds = seg_rounds(d->size), bytes = (n - 1) / n * seg_bytes(d);
    if (seg_shared_tcp(d, m) && seg_dense(d)) return rg_cost(m, rounds, 1.5 * rounds, bytes, 0);
    /* About half of the messages wrap. */
    return rg_cost(m, rounds, seg_messages(bytes, seg_dense(d) ? 1.5 * rounds : n - 1), SEG_ROUNDS_COST * bytes, 0);
}

/* Gives the n segments from this rank's own up. have[i] is how that of rank r + i came. */
static void give(rg_schedule_t *s, const rg_coll_desc_t *d, uint32_t to, uint32_t n, const uint32_t *have) {
    for (uint32_t i = 0, some; i < n; i += some) {
        rg_span_t span;
        some = seg_run(d, RG_BUF_OUT, seg_rank(d, (uint64_t)d->rank + i), n - i, 1, 0, &span);
        if (n == 1) span.buf = RG_BUF_IN, span.off = 0;
        if (span.len != 0) rg_sched_send(s, to, span, have + i, n == 1 ? 0 : some);
    }
}

static void take(rg_schedule_t *s, const rg_coll_desc_t *d, uint32_t from, uint32_t n, uint32_t *have) {
    for (uint32_t i = 0, some; i < n; i += some) {
        rg_span_t span;
        uint32_t came = RG_NO_STEP;
        some = seg_run(d, RG_BUF_OUT, seg_rank(d, (uint64_t)from + i), n - i, 1, 0, &span);
        if (span.len != 0) came = rg_sched_recv(s, from, span, 0, NULL, 0);
        /* One of a run stands for all of it. */
        have[i] = came;
    }
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size, *have = rg_sched_scratch(s, n);
    if (have == NULL) return s->error;
    rg_span_t own = rg_seg(d, RG_BUF_OUT, d->rank);
    if (own.len != 0) have[0] = rg_sched_copy(s, own, rg_span(RG_BUF_IN, 0, own.len), 0, NULL, 0);
    for (uint64_t far = 1; far < n; far *= 2) {
        uint32_t some = n - far < far ? (uint32_t)(n - far) : (uint32_t)far;
        give(s, d, seg_rank(d, d->rank + n - far), some, have);
        take(s, d, seg_rank(d, d->rank + far), some, have + far);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_all_gather_bruck = {
    .name = "bruck",
    .kind = RG_KIND_ALL_GATHER,
    .source = "Bruck, Ho, Kipnis, Upfal, Weathersby: Efficient algorithms for all-to-all communications in "
              "multiport message-passing systems, 1997",
    .cost = cost,
    .build = build,
};
