/* all_gather_star.c: all give their segment to rank 0, which sends all of them to all. Two hops and 2(n-1) messages in
 * the whole group, where others need n times as many as there are rounds: for small data on ranks that share cores.
 * A rank gets its own segment back with the others. No TMP, and what rank 0 sends is not written again. */
#include "segments.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = seg_bytes(d), messages = (n - 1) * (seg_dense(d) ? 2 : n), share = n - 1;
    /* Rank 0 does it all. Where ranks share cores the sum over all of them counts, spread over the ranks, but no less
     * than what rank 0 has to do on its core: half of that. */
    if (m->sharing > 1) share = (n - 1) * (m->sharing > n / 2 ? 1 / n : 0.5 / m->sharing);
    double moved = share * (1 + 1 / n) * bytes;
    if (seg_shared_tcp(d, m)) moved *= 2; /* bytes, unlike switches, have to pass its core one after the other */
    return rg_cost(m, 2, share / (n - 1) * seg_messages(bytes * n, messages), moved, 0);
}

static void hub(rg_schedule_t *s, const rg_coll_desc_t *d, uint32_t *have) {
    uint32_t n = d->size;
    rg_span_t own = rg_seg(d, RG_BUF_OUT, 0);
    if (own.len != 0) have[0] = rg_sched_copy(s, own, rg_span(RG_BUF_IN, 0, own.len), 0, NULL, 0);
    for (uint32_t r = 1; r < n; r++) {
        rg_span_t span = rg_seg(d, RG_BUF_OUT, r);
        if (span.len != 0) have[r] = rg_sched_recv(s, r, span, 0, NULL, 0);
    }
    for (uint32_t r = 1; r < n; r++)
        for (uint32_t i = 0, some; i < n; i += some) {
            rg_span_t span;
            some = seg_run(d, RG_BUF_OUT, i, n - i, 1, 0, &span);
            if (span.len != 0) rg_sched_send(s, r, span, have + i, some);
        }
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size, *have = rg_sched_scratch(s, n), sent = RG_NO_STEP;
    if (have == NULL) return s->error;
    s->flags |= RG_SCHED_ZERO_COPY;
    if (d->rank == 0) {
        hub(s, d, have);
        return s->error;
    }
    uint64_t own = rg_seg_len(d, d->rank);
    if (own != 0) sent = rg_sched_send(s, 0, rg_span(RG_BUF_IN, 0, own), NULL, 0);
    for (uint32_t i = 0, some; i < n; i += some) {
        rg_span_t span;
        some = seg_run(d, RG_BUF_OUT, i, n - i, 1, 0, &span);
        /* In place the own segment is covered, by the same values. */
        if (span.len != 0) rg_sched_recv(s, 0, span, 0, &sent, 1);
    }
    return s->error;
}

const rg_algorithm_t rg_alg_all_gather_star = {
    .name = "star",
    .kind = RG_KIND_ALL_GATHER,
    .source = "folklore: gather to one rank and broadcast from it",
    .cost = cost,
    .build = build,
};
