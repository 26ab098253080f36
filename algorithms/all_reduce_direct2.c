/* all_reduce_direct2.c: two shots. Every rank owns a slice: all send it their part of it, it reduces and sends the
 * final value to all. As few bytes as the ring with two hops instead of 2(n-1): for middle and large data on few
 * ranks. It is the reduce-scatter and all-gather by direct exchange that Thakur, Rabenseifner and Gropp 2005 describe,
 * put together piece by piece. Members that are known to be
 * slower than others own less (rg_share_part). TMP holds WINDOW pieces (two more per rank to write to, in rank order).
 */
#include "owner_fold.h"

/* Pieces under way, and how many pieces the second shot runs behind the first. */
#define WINDOW 4u
#define LAG 1u

typedef struct shots {
    rg_schedule_t *s;
    uint32_t n, r, pieces, ordered;
    uint64_t piece_max;
    uint32_t *sent[WINDOW], *came[WINDOW]; /* by owner: what was given to it, what came back */
    uint32_t fin[WINDOW];                  /* the final value of this rank's own piece */
} shots_t;

static rg_span_t piece_of(const shots_t *x, rg_buf_t buf, uint32_t slice, uint32_t p) {
    rg_span_t whole = rg_span(buf, 0, x->s->desc.count);
    const uint32_t *rate = x->s->desc.topo != NULL ? x->s->desc.topo->rate : NULL;
    return rg_span_part(rg_share_part(whole, rate, x->n, slice), x->pieces, p);
}

static rg_span_t tmp_of(const shots_t *x, uint32_t place, uint32_t p, uint64_t len) {
    return rg_span(RG_BUF_TMP, ((uint64_t)place * WINDOW + p % WINDOW) * x->piece_max, len);
}

/* First shot, giving: this rank's part of everybody's piece p. The owner right below comes first, because this rank is
 * the first that it waits for. */
static void give(shots_t *x, uint32_t p) {
    uint32_t w = p % WINDOW;
    for (uint32_t i = 1; i < x->n; i++) {
        uint32_t owner = (x->r + x->n - i) % x->n;
        rg_span_t part = piece_of(x, RG_BUF_IN, owner, p);
        if (part.len == 0) continue;
        /* Bounds what is under way; and then the place in TMP is free as well, for what came was made from it. */
        uint32_t deps[2] = { x->came[w][owner], x->sent[w][owner] };
        if (x->r == 0 && owner_begins_elsewhere(x->ordered != 0, x->n, owner)) {
            rg_span_t acc = tmp_of(x, owner, p, part.len);
            deps[0] = rg_sched_copy(x->s, acc, part, 0, deps, 2);
            part = acc;
        }
        x->sent[w][owner] = rg_sched_send(x->s, owner, part, deps, 1);
    }
}

/* First shot, taking: fold everybody's part of this rank's own piece p. */
static void take(shots_t *x, uint32_t p) {
    uint32_t w = p % WINDOW;
    rg_span_t in = piece_of(x, RG_BUF_IN, x->r, p), out = piece_of(x, RG_BUF_OUT, x->r, p);
    if (in.len == 0) return;
    x->fin[w] = owner_fold(x->s, x->ordered != 0, out, in, tmp_of(x, 0, p, in.len), x->fin[w]);
}

/* Second shot: the final value of the own piece to all, theirs from all. */
static void spread(shots_t *x, uint32_t p) {
    uint32_t w = p % WINDOW;
    rg_span_t own = piece_of(x, RG_BUF_OUT, x->r, p);
    for (uint32_t i = 1; i < x->n && own.len != 0; i++) rg_sched_send(x->s, (x->r + i) % x->n, own, &x->fin[w], 1);
    for (uint32_t i = 1; i < x->n; i++) {
        uint32_t owner = (x->r + x->n - i) % x->n;
        rg_span_t out = piece_of(x, RG_BUF_OUT, owner, p);
        /* In place this covers what was given away. */
        if (out.len != 0) x->came[w][owner] = rg_sched_recv(x->s, owner, out, 0, &x->sent[w][owner], 1);
    }
}

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)d->count * d->elem_size, each = (double)d->chunk * d->elem_size * n;
    double pieces = bytes > each ? bytes / each : 1;
    /* Many streams that end at one port at once get in each other's way; the ring's do not. */
    double crowd = n > 8 ? 1 + 0.01 * (n - 8) : 1;
    if (d->topo != NULL && d->topo->rate != NULL && m->beta > 0) {
        double shared = rg_share_seconds(d->topo->rate, d->size, bytes) / m->beta;
        return rg_cost(m, 2, 2 * (n - 1) * pieces, shared * crowd, (n - 1) / n * bytes);
    }
    return rg_cost(m, 2, 2 * (n - 1) * pieces, 2 * (n - 1) / n * bytes * crowd, (n - 1) / n * bytes);
}

static uint64_t chunk(const rg_coll_desc_t *d) {
    uint64_t slice = d->count / d->size * d->elem_size, bytes = slice / 2;
    bytes = bytes < 65536 ? 65536 : bytes > 262144 ? 262144 : bytes;
    /* What the slow one sends has to be back early, for what it receives is as much. */
    if (d->topo != NULL && d->topo->rate != NULL) bytes = 65536;
    return bytes / d->elem_size;
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size;
    rg_span_t slice = rg_span(RG_BUF_IN, 0, 0);
    shots_t x = { .s = s, .n = n, .r = d->rank, .ordered = d->rank_order || n == 2 };
    for (uint32_t i = 0; i < n; i++) {
        rg_span_t own = rg_share_part(rg_span(RG_BUF_IN, 0, d->count), d->topo != NULL ? d->topo->rate : NULL, n, i);
        if (own.len > slice.len) slice = own;
    }
    x.pieces = rg_sched_pieces(slice.len, d->chunk, 4 * (uint64_t)n);
    x.piece_max = rg_span_part(slice, x.pieces, 0).len;
    for (uint32_t i = 0; i < WINDOW; i++) {
        x.sent[i] = rg_sched_scratch(s, 2 * (size_t)n);
        if (x.sent[i] == NULL) return s->error;
        x.came[i] = x.sent[i] + n;
        x.fin[i] = RG_NO_STEP;
    }
    for (uint32_t tick = 0; tick < x.pieces + LAG; tick++) {
        if (tick < x.pieces) {
            give(&x, tick);
            take(&x, tick);
        }
        if (tick >= LAG) spread(&x, tick - LAG);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_all_reduce_direct2 = {
    .name = "direct2",
    .kind = RG_KIND_ALL_REDUCE,
    .source = "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
