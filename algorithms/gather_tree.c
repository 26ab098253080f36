/* gather_tree.c: up a binomial tree to the root, each rank with the segments of all below it. A logarithmic number of
 * hops and one message from every rank: for small data on many ranks. TMP holds the segments of a rank's subtree, at
 * most half of all; so it is for no more than BYTES_MAX in all. The root takes segments straight to their places, in a
 * message for each run of them that lies in one place. Nothing that was sent is written again. */
#include "segments.h"

/* More than this is not small, and would be sent log2(n) times. */
#define BYTES_MAX 16777216.0

static int applies(const rg_coll_desc_t *d) { return seg_bytes(d) <= BYTES_MAX; }

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, rounds = seg_rounds(d->size), bytes = (n - 1) / n * seg_bytes(d);
    double messages = seg_messages(bytes, seg_dense(d) ? rounds : n - 1);
    /* All of it is the root's work; where ranks share cores the sum over all of them counts too, in which every segment
     * is sent half the rounds on the average. */
    if (m->sharing <= 1) return rg_cost(m, rounds, messages, bytes, 0);
    double share = 1 / m->sharing > rounds / 2 / n ? 1 / m->sharing : rounds / 2 / n;
    return rg_cost(m, rounds, share * messages, share * bytes, 0);
}

/* The segments of the n ranks from number v on, as the root has them: gives the next run, of some segments. */
static uint32_t run(const rg_coll_desc_t *d, uint32_t v, uint32_t n, rg_span_t *span) {
    return seg_run(d, RG_BUF_OUT, seg_rank(d, (uint64_t)d->root + v), n, 1, 0, span);
}

static void at_root(rg_schedule_t *s, const rg_coll_desc_t *d) {
    rg_span_t span = rg_seg(d, RG_BUF_OUT, d->root);
    if (span.len != 0) rg_sched_copy(s, span, rg_span(RG_BUF_IN, 0, span.len), 0, NULL, 0);
    for (uint64_t child = 1; child < d->size; child *= 2) {
        uint32_t n = d->size - child < child ? (uint32_t)(d->size - child) : (uint32_t)child;
        for (uint32_t i = 0, some; i < n; i += some) {
            some = run(d, (uint32_t)child + i, n - i, &span);
            if (span.len != 0) rg_sched_recv(s, seg_rank(d, d->root + child), span, 0, NULL, 0);
        }
    }
}

/* Number v: the own segment and those of the children lie in TMP in the order of numbers. */
static void below_root(rg_schedule_t *s, const rg_coll_desc_t *d, uint32_t v, uint32_t *came) {
    uint32_t reach = v & (~v + 1), n = 1, n_came = 0, parent = seg_rank(d, (uint64_t)d->root + (v - reach));
    uint64_t own = rg_seg_len(d, d->rank), at = own;
    rg_span_t in = rg_span(RG_BUF_IN, 0, own);
    for (uint32_t step = 1; step < reach && step < d->size - v; step *= 2) {
        uint32_t below = d->size - v - step < step ? d->size - v - step : step;
        uint64_t len = 0;
        for (uint32_t i = 0; i < below; i++) len += rg_seg_len(d, seg_rank(d, (uint64_t)d->root + v + step + i));
        if (len != 0)
            came[n_came++] =
                rg_sched_recv(s, seg_rank(d, (uint64_t)d->rank + step), rg_span(RG_BUF_TMP, at, len), 0, NULL, 0);
        at += len;
        n += below;
    }
    int leaf = n == 1;
    if (!leaf && own != 0) came[n_came++] = rg_sched_copy(s, rg_span(RG_BUF_TMP, 0, own), in, 0, NULL, 0);
    rg_span_t all = leaf ? in : rg_span(RG_BUF_TMP, 0, at);
    if (parent != d->root) {
        if (all.len != 0) rg_sched_send(s, parent, all, came, n_came);
        return;
    }
    for (uint32_t i = 0, some; i < n; i += some) {
        rg_span_t span;
        some = run(d, v + i, n - i, &span);
        all.len = span.len;
        if (all.len != 0) rg_sched_send(s, parent, all, came, n_came);
        all.off += all.len;
    }
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t v = seg_rank(d, (uint64_t)d->rank + d->size - d->root), *came = rg_sched_scratch(s, 40);
    if (came == NULL) return s->error;
    if (v == 0) at_root(s, d);
    else below_root(s, d, v, came);
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_gather_tree = {
    .name = "tree",
    .kind = RG_KIND_GATHER,
    .source = "folklore: binomial tree; see Thakur, Rabenseifner, Gropp 2005",
    .applies = applies,
    .cost = cost,
    .build = build,
};
