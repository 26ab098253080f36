/* reduce_scatter_ring.c: the partial value of each segment travels once round the ring and ends at its owner. Fewest
 * bytes, and every link is used in one direction by one stream: for large data on many ranks. The first half of the
 * all-reduce of Patarasu and Yuan 2009. Pieces of all segments follow each other in a pipeline of WINDOW, so that what
 * arrives is reduced and passed on while it is in cache; TMP holds WINDOW pieces of size-2 segments, less than
 * 3 * size * chunk elements for segments that are alike. */
#include "regroup_algorithm.h"

#define WINDOW 4u

typedef struct ring {
    rg_schedule_t *s;
    uint32_t n, r, pieces;
    uint64_t piece_max;
    /* By segment, for each place in the window: the step that made the partial value, and the one that passed it on. */
    uint32_t *made[WINDOW], *sent[WINDOW];
} ring_t;

static rg_span_t piece_of(const ring_t *x, uint32_t owner, uint32_t p) {
    return rg_span_part(rg_seg(&x->s->desc, RG_BUF_IN, owner), x->pieces, p);
}

/* Where the partial value that rank r sends at tick t lives. */
static rg_span_t tmp_of(const ring_t *x, uint32_t t, uint32_t p, uint64_t len) {
    uint64_t place = (uint64_t)(p % WINDOW) * (x->n - 2) + (t - 1);
    return rg_span(RG_BUF_TMP, place * x->piece_max, len);
}

/* Tick t of piece p: pass a partial value to the right, add what comes from the left. */
static void tick_of(ring_t *x, uint32_t p, uint32_t t) {
    uint32_t n = x->n, r = x->r, right = (r + 1) % n, left = (r + n - 1) % n, w = p % WINDOW;
    uint32_t give = (r + 2 * n - 1 - t) % n, take = (r + 2 * n - 2 - t) % n;
    rg_span_t in = piece_of(x, give, p);
    if (in.len != 0)
        x->sent[w][give] = rg_sched_send(x->s, right, t == 0 ? in : tmp_of(x, t, p, in.len),
                                         t == 0 ? NULL : &x->made[w][give], t == 0 ? 0 : 1);
    in = piece_of(x, take, p);
    if (in.len == 0) return;
    /* What arrives is the part of the fold to the left of this rank; of two ranks only the second has a left. */
    uint32_t flags = (t == 0 ? 0 : RG_STEP_WIRE_ACC) | (n > 2 || r == 1 ? RG_STEP_SWAP : 0);
    if (t == n - 2) {
        /* The turn of the piece before it in this place bounds how many receives are posted. */
        rg_span_t whole = rg_seg(&x->s->desc, RG_BUF_IN, r), out = rg_span(RG_BUF_OUT, in.off - whole.off, in.len);
        x->made[w][take] = rg_sched_recv_reduce(x->s, left, out, in, flags | RG_STEP_FINAL, &x->made[w][take], 1);
    } else {
        /* The place in TMP is free when its last value has been sent. */
        x->made[w][take] =
            rg_sched_recv_reduce(x->s, left, tmp_of(x, t + 1, p, in.len), in, flags, &x->sent[w][take], 1);
    }
}

static int applies(const rg_coll_desc_t *d) { return !d->rank_order || d->size <= 2; }

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)rg_seg_total(d) * d->elem_size, each = (double)d->chunk * d->elem_size * n;
    double pieces = bytes > each ? bytes / each : 1;
    return rg_cost(m, n - 1, (n - 1) * pieces, (n - 1) / n * bytes, (n - 1) / n * bytes);
}

static uint64_t chunk(const rg_coll_desc_t *d) {
    uint64_t bytes = rg_seg_max(d) * d->elem_size / 2;
    bytes = bytes < 65536 ? 65536 : bytes > 262144 ? 262144 : bytes;
    return bytes / d->elem_size;
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size, ticks = n - 1;
    uint64_t longest = rg_seg_max(d);
    ring_t x = { .s = s, .n = n, .r = d->rank };
    x.pieces = rg_sched_pieces(longest, d->chunk, 2 * (uint64_t)n);
    x.piece_max = rg_span_part(rg_span(RG_BUF_IN, 0, longest), x.pieces, 0).len;
    for (uint32_t i = 0; i < WINDOW; i++) {
        uint32_t *ids = rg_sched_scratch(s, 2 * (size_t)n);
        if (ids == NULL) return s->error;
        x.made[i] = ids;
        x.sent[i] = ids + n;
    }
    /* A new piece enters every `skew` ticks: WINDOW of them are under way and the oldest has left when its place is
     * needed. The younger goes first: what it sends is ready, what the older passes on has yet to arrive. */
    uint32_t skew = (ticks + WINDOW - 1) / WINDOW;
    for (uint64_t tick = 0; tick < (uint64_t)(x.pieces - 1) * skew + ticks; tick++) {
        uint32_t young = tick / skew < x.pieces - 1 ? (uint32_t)(tick / skew) : x.pieces - 1;
        for (uint32_t p = young + 1; p-- > 0 && tick - (uint64_t)p * skew < ticks;)
            tick_of(&x, p, (uint32_t)(tick - (uint64_t)p * skew));
    }
    return s->error;
}

const rg_algorithm_t rg_alg_reduce_scatter_ring = {
    .name = "ring",
    .kind = RG_KIND_REDUCE_SCATTER,
    .source = "Patarasu, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009",
    .applies = applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
