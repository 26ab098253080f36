/* all_reduce_ring.c: every rank owns a slice; partial sums travel once round the ring and the finished slices once
 * more. Fewest bytes per link, and every link is used in one direction by one stream: for large data on many ranks.
 * Patarasu and Yuan 2009. Pieces of all slices follow each other in a pipeline of WINDOW, so that what arrives is
 * reduced and passed on while it is in cache; TMP holds WINDOW pieces of size-2 slices, less than 3 * size * chunk. */
#include "regroup_algorithm.h"

#define WINDOW 4u

/* Step indexes of the piece that last used a place in the window, by slice: the reader of IN, the send of a partial
 * value, and the arrival of the final value. */
typedef struct ids {
    uint32_t *reduced, *sent, *came;
} ids_t;

typedef struct ring {
    rg_schedule_t *s;
    uint32_t n, r, pieces;
    uint64_t piece_max;
    ids_t ids[WINDOW];
} ring_t;

static rg_span_t piece_of(const ring_t *x, rg_buf_t buf, uint32_t slice, uint32_t p) {
    rg_span_t whole = rg_span(buf, 0, x->s->desc.count);
    return rg_span_part(rg_span_part(whole, x->n, slice), x->pieces, p);
}

/* Where the partial value that rank r sends at tick t lives. */
static rg_span_t tmp_of(const ring_t *x, uint32_t t, uint32_t p, uint64_t len) {
    uint64_t place = (uint64_t)(p % WINDOW) * (x->n - 2) + (t - 1);
    return rg_span(RG_BUF_TMP, place * x->piece_max, len);
}

/* Tick t < n-1 of piece p: pass a partial value to the right, add what comes from the left. */
static void reduce_scatter(ring_t *x, uint32_t p, uint32_t t) {
    uint32_t n = x->n, r = x->r, right = (r + 1) % n, left = (r + n - 1) % n;
    uint32_t give = (r + n - t) % n, take = (r + n - t - 1) % n;
    ids_t *w = &x->ids[p % WINDOW];
    rg_span_t in = piece_of(x, RG_BUF_IN, give, p);
    if (in.len != 0) {
        /* Not before the piece that had this place in the window is back: bounds what is under way. */
        uint32_t dep = t == 0 ? w->came[(r + 2) % n] : w->reduced[give];
        w->sent[give] = rg_sched_send(x->s, right, t == 0 ? in : tmp_of(x, t, p, in.len), &dep, 1);
    }
    in = piece_of(x, RG_BUF_IN, take, p);
    if (in.len == 0) return;
    /* What arrives is the part of the fold to the left of this rank. With two ranks that would make the two slices
     * differ in order; there it is rank order. */
    uint32_t flags = (t == 0 ? 0 : RG_STEP_WIRE_ACC) | (n > 2 || r == 1 ? RG_STEP_SWAP : 0);
    /* The place in TMP is free when its last value has been sent, and consumed: the final value that came back was
     * made from it. The last tick writes no TMP; it keeps its turn only so that few receives are posted at a time. */
    uint32_t deps[2] = { w->sent[take], w->came[take] };
    if (t == n - 2) deps[0] = w->reduced[take];
    if (t == n - 2)
        w->reduced[take] =
            rg_sched_recv_reduce(x->s, left, piece_of(x, RG_BUF_OUT, take, p), in, flags | RG_STEP_FINAL, deps, 2);
    else w->reduced[take] = rg_sched_recv_reduce(x->s, left, tmp_of(x, t + 1, p, in.len), in, flags, deps, 2);
}

/* Tick t >= n-1: pass final values on. */
static void all_gather(ring_t *x, uint32_t p, uint32_t t) {
    uint32_t n = x->n, r = x->r, u = t - (n - 1);
    uint32_t give = (r + 1 + n - u) % n, take = (r + n - u) % n;
    ids_t *w = &x->ids[p % WINDOW];
    rg_span_t out = piece_of(x, RG_BUF_OUT, give, p);
    if (out.len != 0) rg_sched_send(x->s, (r + 1) % n, out, u == 0 ? &w->reduced[give] : &w->came[give], 1);
    out = piece_of(x, RG_BUF_OUT, take, p);
    /* In place this covers IN, which the first send or a reduction has read. */
    if (out.len != 0)
        w->came[take] = rg_sched_recv(x->s, (r + n - 1) % n, out, 0, u == 0 ? &w->sent[take] : &w->reduced[take], 1);
}

static int applies(const rg_coll_desc_t *d) { return !d->rank_order || d->size <= 2; }

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)d->count * d->elem_size, each = (double)d->chunk * d->elem_size * n;
    double pieces = bytes > each ? bytes / each : 1;
    return rg_cost(m, 2 * (n - 1), 2 * (n - 1) * pieces, 2 * (n - 1) / n * bytes, (n - 1) / n * bytes);
}

static uint64_t chunk(const rg_coll_desc_t *d) {
    uint64_t slice = d->count / d->size * d->elem_size, bytes = slice / 2;
    bytes = bytes < 65536 ? 65536 : bytes > 262144 ? 262144 : bytes;
    return bytes / d->elem_size;
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size, ticks = 2 * n - 2;
    rg_span_t slice = rg_span_part(rg_span(RG_BUF_IN, 0, d->count), n, 0);
    ring_t x = { .s = s, .n = n, .r = d->rank };
    x.pieces = rg_sched_pieces(slice.len, d->chunk, 4 * (uint64_t)n);
    x.piece_max = rg_span_part(slice, x.pieces, 0).len;
    for (uint32_t i = 0; i < WINDOW; i++) {
        uint32_t *ids = rg_sched_scratch(s, 3 * (size_t)n);
        if (ids == NULL) return s->error;
        x.ids[i] = (ids_t){ ids, ids + n, ids + 2 * n };
    }
    /* A new piece enters every `skew` ticks: WINDOW of them are under way and the oldest has left when its place is
     * needed. The younger goes first: what it sends is ready, what the older passes on has yet to arrive. */
    uint32_t skew = (ticks + WINDOW - 1) / WINDOW;
    for (uint32_t tick = 0; tick < (x.pieces - 1) * skew + ticks; tick++) {
        uint32_t young = tick / skew < x.pieces - 1 ? tick / skew : x.pieces - 1;
        for (uint32_t p = young + 1; p-- > 0 && tick - p * skew < ticks;) {
            uint32_t t = tick - p * skew;
            if (t < n - 1) reduce_scatter(&x, p, t);
            else all_gather(&x, p, t);
        }
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_all_reduce_ring = {
    .name = "ring",
    .kind = RG_KIND_ALL_REDUCE,
    .source = "Patarasu, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009",
    .applies = applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
