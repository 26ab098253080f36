/* broadcast_tree.c: down a binomial tree. A logarithmic number of hops: for small data on many ranks. Larger data goes
 * in pieces, so that a rank passes one on while the next arrives. No TMP, and nothing that was sent is written
 * again. */
#include "regroup_algorithm.h"

/* Receives posted ahead. */
#define WINDOW 8u

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)d->count * d->elem_size, pieces = (double)d->count / (double)d->chunk, depth = 0;
    for (uint32_t i = 1; i < d->size; i *= 2) depth++;
    if (pieces < 1) pieces = 1;
    /* The root sends all of it `depth` times; where ranks share cores the sum over all ranks counts, which is once
     * each. */
    double share = m->sharing > 1 ? 1 : depth;
    return rg_cost(m, depth, share * pieces, share * bytes, 0);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 131072 / d->elem_size; }

static void piece(rg_schedule_t *s, const rg_coll_desc_t *d, rg_span_t out, uint32_t *came) {
    uint32_t n = d->size, v = (d->rank + n - d->root) % n; /* numbered from the root */
    uint32_t reach = v & (~v + 1);                         /* v's children are v+1, v+2, v+4 ... below v+reach */
    if (v == 0)
        for (reach = 1; reach < n; reach *= 2) continue;
    rg_span_t from = rg_span(v == 0 ? RG_BUF_IN : RG_BUF_OUT, out.off, out.len);
    if (v == 0) rg_sched_copy(s, out, from, 0, NULL, 0);
    else *came = rg_sched_recv(s, (v - reach + d->root) % n, out, 0, came, 1);
    /* The largest subtree first: it has the longest way to go. */
    for (uint32_t step = reach / 2; step > 0; step /= 2)
        if (v + step < n) rg_sched_send(s, (v + step + d->root) % n, from, came, 1);
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t pieces = rg_sched_pieces(d->count, d->chunk, 16), came[WINDOW];
    for (uint32_t i = 0; i < WINDOW; i++) came[i] = RG_NO_STEP;
    for (uint32_t p = 0; p < pieces; p++) {
        rg_span_t out = rg_span_part(rg_span(RG_BUF_OUT, 0, d->count), pieces, p);
        if (out.len != 0) piece(s, d, out, &came[p % WINDOW]);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_broadcast_tree = {
    .name = "tree",
    .kind = RG_KIND_BROADCAST,
    .source = "folklore: binomial tree; see Thakur, Rabenseifner, Gropp 2005",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
