/* all_reduce_star.c: all send to rank 0, which folds in rank order and sends the result to all. Two hops and 2(n-1)
 * messages in the whole group, the fewest there can be, at the price of (n-1) times the data at rank 0: for small data
 * where the number of messages counts, because ranks share cores, or two hops are the best there is. Larger data goes
 * in pieces. TMP holds WINDOW pieces at rank 0, and none elsewhere. */
#include "regroup_algorithm.h"

#define WINDOW 4u

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)d->count * d->elem_size, each = (double)d->chunk * d->elem_size;
    double pieces = bytes > each ? bytes / each : 1;
    /* Rank 0 does it all. Where ranks share cores the sum over all of them counts, spread over the ranks, but no less
     * than what rank 0 has to do on its core: half of that. */
    double share = 2 * (n - 1);
    if (m->sharing > 1) share = (n - 1) * (m->sharing > n / 2 ? 2 / n : 1 / m->sharing);
    return rg_cost(m, 2, share * pieces, share * bytes, share / 2 * bytes);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 65536 / d->elem_size; }

/* Rank 0: fold, then give away. Returns the making of the final value. */
static uint32_t hub(rg_schedule_t *s, const rg_coll_desc_t *d, rg_span_t out, rg_span_t acc, uint32_t free) {
    rg_span_t value = rg_span(RG_BUF_IN, out.off, out.len);
    uint32_t dep = free;
    for (uint32_t r = 1; r < d->size; r++) {
        int last = r + 1 == d->size;
        dep = rg_sched_recv_reduce(s, r, last ? out : acc, value, last ? RG_STEP_FINAL : 0, &dep, 1);
        value = acc;
    }
    for (uint32_t r = 1; r < d->size; r++) rg_sched_send(s, r, out, &dep, 1);
    return dep;
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t pieces = rg_sched_pieces(d->count, d->chunk, 2 * (uint64_t)d->size), done[WINDOW];
    rg_span_t all = rg_span(RG_BUF_OUT, 0, d->count);
    uint64_t piece_max = rg_span_part(all, pieces, 0).len;
    for (uint32_t i = 0; i < WINDOW; i++) done[i] = RG_NO_STEP;
    for (uint32_t p = 0; p < pieces; p++) {
        uint32_t w = p % WINDOW;
        rg_span_t out = rg_span_part(all, pieces, p);
        if (out.len == 0) continue;
        if (d->rank == 0) {
            done[w] = hub(s, d, out, rg_span(RG_BUF_TMP, w * piece_max, out.len), done[w]);
            continue;
        }
        /* The window bounds what is under way; in place the result covers what was sent. */
        uint32_t sent = rg_sched_send(s, 0, rg_span(RG_BUF_IN, out.off, out.len), &done[w], 1);
        done[w] = rg_sched_recv(s, 0, out, 0, &sent, 1);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_all_reduce_star = {
    .name = "star",
    .kind = RG_KIND_ALL_REDUCE,
    .source = "folklore: linear reduction to one rank and linear broadcast from it",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
