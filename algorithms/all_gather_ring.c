/* all_gather_ring.c: every segment travels once round the ring, and is passed on as it comes, piece by piece. Fewest
 * bytes, and every link is used in one direction by one stream: for large data on many ranks. The second half of the
 * all-reduce of Patarasu and Yuan 2009. No TMP. Nothing that was sent is ever written again. */
#include "regroup_algorithm.h"

/* Receives posted ahead. */
#define WINDOW 8u

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)rg_seg_total(d) * d->elem_size, each = (double)d->chunk * d->elem_size * n;
    double pieces = bytes > each ? bytes / each : 1;
    return rg_cost(m, n - 1, (n - 1) * pieces, (n - 1) / n * bytes, 0);
}

static uint64_t chunk(const rg_coll_desc_t *d) {
    uint64_t bytes = rg_seg_max(d) * d->elem_size / 2;
    bytes = bytes < 65536 ? 65536 : bytes > 262144 ? 262144 : bytes;
    return bytes / d->elem_size;
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size, r = d->rank, right = (r + 1) % n, left = (r + n - 1) % n;
    uint32_t most = rg_sched_pieces(rg_seg_max(d), d->chunk, 2 * (uint64_t)n), recent[WINDOW], k = 0;
    uint32_t *came = rg_sched_scratch(s, 2 * (size_t)most), *next = came + most; /* pieces of the segment at hand */
    if (came == NULL) return s->error;
    for (uint32_t i = 0; i < WINDOW; i++) recent[i] = RG_NO_STEP;
    rg_span_t own = rg_seg(d, RG_BUF_OUT, r), in = rg_span(RG_BUF_IN, 0, own.len);
    for (uint32_t t = 0; t < n - 1; t++) {
        rg_span_t give = t == 0 ? in : rg_seg(d, RG_BUF_OUT, (r + n - t) % n);
        rg_span_t take = rg_seg(d, RG_BUF_OUT, (r + 2 * n - t - 1) % n);
        uint32_t out = rg_sched_pieces(give.len, d->chunk, 2 * (uint64_t)n);
        uint32_t back = rg_sched_pieces(take.len, d->chunk, 2 * (uint64_t)n);
        for (uint32_t p = 0; p < out || p < back; p++) {
            rg_span_t x = p < out ? rg_span_part(give, out, p) : rg_span(RG_BUF_OUT, 0, 0);
            if (x.len != 0) rg_sched_send(s, right, x, &came[p], 1);
            x = p < back ? rg_span_part(take, back, p) : rg_span(RG_BUF_OUT, 0, 0);
            if (x.len != 0) {
                next[p] = recent[k % WINDOW] = rg_sched_recv(s, left, x, 0, &recent[k % WINDOW], 1);
                k++;
            }
        }
        if (t == 0 && own.len != 0) rg_sched_copy(s, own, in, 0, NULL, 0);
        uint32_t *swap = came;
        came = next;
        next = swap;
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_all_gather_ring = {
    .name = "ring",
    .kind = RG_KIND_ALL_GATHER,
    .source = "Patarasu, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
