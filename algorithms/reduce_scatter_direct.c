/* reduce_scatter_direct.c: everybody sends everybody else its part of the other's segment, and each rank combines what
 * arrives. One hop and as few bytes as any: for few ranks at any size, and the only one that keeps rank order. The
 * first half of the direct exchange that Thakur, Rabenseifner and Gropp 2005 describe. TMP holds WINDOW pieces (in rank
 * order WINDOW more for every owner at rank 0), whatever the size of the data. */
#include "owner_fold.h"

/* Pieces under way. */
#define WINDOW 4u

typedef struct shot {
    rg_schedule_t *s;
    uint32_t n, r, pieces;
    int ordered;
    uint64_t piece_max;
    uint32_t *sent;       /* by owner and place in the window: what rank 0 gave from TMP */
    uint32_t fin[WINDOW]; /* the final value of this rank's own piece */
} shot_t;

static rg_span_t piece_of(const shot_t *x, uint32_t owner, uint32_t p) {
    return rg_span_part(rg_seg(&x->s->desc, RG_BUF_IN, owner), x->pieces, p);
}

static rg_span_t tmp_of(const shot_t *x, uint32_t place, uint32_t p, uint64_t len) {
    return rg_span(RG_BUF_TMP, ((uint64_t)place * WINDOW + p % WINDOW) * x->piece_max, len);
}

/* This rank's part of everybody's piece p. The owner right below comes first, because this rank is the first that it
 * waits for. Nothing is given before the own piece WINDOW earlier is finished, so that all ranks stay near each other
 * and what is under way stays in cache. */
static void give(shot_t *x, uint32_t p) {
    const uint32_t *turn = &x->fin[p % WINDOW];
    for (uint32_t i = 1; i < x->n; i++) {
        uint32_t owner = (x->r + x->n - i) % x->n;
        rg_span_t part = piece_of(x, owner, p);
        if (part.len == 0) continue;
        if (x->r != 0 || !owner_begins_elsewhere(x->ordered, x->n, owner)) {
            rg_sched_send(x->s, owner, part, turn, 1);
            continue;
        }
        uint32_t *last = &x->sent[(size_t)owner * WINDOW + p % WINDOW];
        rg_span_t acc = tmp_of(x, owner, p, part.len);
        uint32_t deps[2] = { *last, *turn };
        uint32_t copied = rg_sched_copy(x->s, acc, part, 0, deps, 2);
        *last = rg_sched_send(x->s, owner, acc, &copied, 1);
    }
}

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)rg_seg_total(d) * d->elem_size, each = (double)d->chunk * d->elem_size * n;
    double pieces = bytes > each ? bytes / each : 1;
    /* Many streams that end at one port at once get in each other's way; the ring's do not. */
    double crowd = n > 8 ? 1 + 0.01 * (n - 8) : 1;
    /* On shared cores what is read has gone cold by the time its reader has its turn; the ring reads what its neighbour
     * has just written (16 MiB over 4 members on 2 cores: 14 ms, and 5 ms by the ring). */
    if (m->sharing > 1) crowd *= 2;
    return rg_cost(m, 1, (n - 1) * pieces, (n - 1) / n * bytes * crowd, (n - 1) / n * bytes);
}

static uint64_t chunk(const rg_coll_desc_t *d) {
    uint64_t bytes = rg_seg_max(d) * d->elem_size / 2;
    bytes = bytes < 65536 ? 65536 : bytes > 262144 ? 262144 : bytes;
    return bytes / d->elem_size;
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint64_t longest = rg_seg_max(d);
    shot_t x = { .s = s, .n = d->size, .r = d->rank, .ordered = d->rank_order != 0 };
    x.pieces = rg_sched_pieces(longest, d->chunk, 3 * (uint64_t)d->size);
    x.piece_max = rg_span_part(rg_span(RG_BUF_IN, 0, longest), x.pieces, 0).len;
    x.sent = rg_sched_scratch(s, (size_t)WINDOW * d->size);
    if (x.sent == NULL) return s->error;
    for (uint32_t i = 0; i < WINDOW; i++) x.fin[i] = RG_NO_STEP;
    for (uint32_t p = 0; p < x.pieces; p++) {
        give(&x, p);
        rg_span_t in = piece_of(&x, d->rank, p), whole = rg_seg(d, RG_BUF_IN, d->rank);
        if (in.len == 0) continue;
        rg_span_t out = rg_span(RG_BUF_OUT, in.off - whole.off, in.len);
        x.fin[p % WINDOW] = owner_fold(s, x.ordered, out, in, tmp_of(&x, 0, p, in.len), x.fin[p % WINDOW]);
    }
    /* What rank 0 gives from TMP in rank order is written over when it has left, not when it has arrived. */
    if (!x.ordered || d->rank != 0) s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_reduce_scatter_direct = {
    .name = "direct",
    .kind = RG_KIND_REDUCE_SCATTER,
    .source = "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
