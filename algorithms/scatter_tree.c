/* scatter_tree.c: down a binomial tree from the root, each rank passing on the segments of all below it. A logarithmic
 * number of hops and one message to every rank: for small data on many ranks. TMP holds the segments of a rank's
 * subtree, at most half of all; so it is for no more than BYTES_MAX in all. The root gives segments straight from their
 * places, in a message for each run of them that lies in one place. Nothing that was sent is written again: what a rank
 * takes for itself goes to OUT only after that. */
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

static uint32_t run(const rg_coll_desc_t *d, uint32_t v, uint32_t n, rg_span_t *span) {
    return seg_run(d, RG_BUF_IN, seg_rank(d, (uint64_t)d->root + v), n, 1, 0, span);
}

static void at_root(rg_schedule_t *s, const rg_coll_desc_t *d) {
    rg_span_t span = rg_seg(d, RG_BUF_IN, d->root);
    uint32_t child = 1;
    while (child < d->size - child) child *= 2;
    /* The largest subtree first: it has the longest way to go. */
    for (; child > 0; child /= 2) {
        uint32_t n = d->size - child < child ? d->size - child : child;
        for (uint32_t i = 0, some; i < n; i += some) {
            rg_span_t part;
            some = run(d, child + i, n - i, &part);
            if (part.len != 0) rg_sched_send(s, seg_rank(d, (uint64_t)d->root + child), part, NULL, 0);
        }
    }
    if (span.len != 0) rg_sched_copy(s, rg_span(RG_BUF_OUT, 0, span.len), span, 0, NULL, 0);
}

/* The segments of number v and all below it, in TMP in the order of numbers; a leaf's goes to OUT. Writes how they came
 * and returns in how many messages. */
static uint32_t receive(rg_schedule_t *s, const rg_coll_desc_t *d, uint32_t v, uint32_t n, uint32_t *came) {
    uint32_t parent = seg_rank(d, (uint64_t)d->root + (v & (v - 1))), n_came = 0;
    rg_span_t all = rg_span(n == 1 ? RG_BUF_OUT : RG_BUF_TMP, 0, 0);
    for (uint32_t i = 0, some; i < n; i += some) {
        rg_span_t span;
        some = run(d, v + i, parent == d->root ? n - i : 1, &span);
        all.len += span.len;
        if (parent != d->root && i + 1 < n) continue;
        if (all.len != 0) came[n_came++] = rg_sched_recv(s, parent, all, 0, NULL, 0);
        all.off += all.len;
        all.len = 0;
    }
    return n_came;
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t v = seg_rank(d, (uint64_t)d->rank + d->size - d->root), reach = v & (~v + 1), *came;
    s->flags |= RG_SCHED_ZERO_COPY;
    if (v == 0) {
        at_root(s, d);
        return s->error;
    }
    uint32_t n = d->size - v < reach ? d->size - v : reach, n_came;
    came = rg_sched_scratch(s, n);
    if (came == NULL) return s->error;
    n_came = receive(s, d, v, n, came);
    for (uint32_t step = reach / 2; step > 0; step /= 2) {
        if (step >= n) continue;
        uint32_t end = n < 2 * step ? n : 2 * step;
        rg_span_t part = rg_span(RG_BUF_TMP, 0, 0);
        for (uint32_t i = 0; i < end; i++) {
            uint64_t len = rg_seg_len(d, seg_rank(d, (uint64_t)d->rank + i));
            if (i < step) part.off += len;
            else part.len += len;
        }
        if (part.len != 0) rg_sched_send(s, seg_rank(d, (uint64_t)d->rank + step), part, came, n_came);
    }
    rg_span_t own = rg_span(RG_BUF_TMP, 0, rg_seg_len(d, d->rank));
    if (n > 1 && own.len != 0) rg_sched_copy(s, rg_span(RG_BUF_OUT, 0, own.len), own, 0, came, n_came);
    return s->error;
}

const rg_algorithm_t rg_alg_scatter_tree = {
    .name = "tree",
    .kind = RG_KIND_SCATTER,
    .source = "folklore: binomial tree; see Thakur, Rabenseifner, Gropp 2005",
    .applies = applies,
    .cost = cost,
    .build = build,
};
