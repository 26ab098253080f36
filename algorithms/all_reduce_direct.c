/* all_reduce_direct.c: one shot. Everybody sends everything to everybody, and each reduces all of it in rank order, so
 * that all have the same bits. One hop, at the price of (n-1) times the bytes: for small data.
 * The parts travel as partial values, so that any number of them can arrive before their turn; TMP holds WINDOW pieces
 * of all n ranks. No zero copy: nothing says that a peer has consumed a piece when its place in TMP is used again. */
#include "regroup_algorithm.h"

#define WINDOW 4u
/* More than this times the ranks is not small, and would want as much TMP. */
#define BYTES_MAX (64u << 20)
/* Up to here two through shared memory take half as long as by two hops (4 KiB 1.9 us, 3.5; 16 KiB 3.9, 6.4). */
#define PAIR_CHEAP 16384

typedef struct shot {
    rg_schedule_t *s;
    uint32_t n, r, pieces;
    uint64_t piece_max;
    uint32_t *sent[WINDOW]; /* by peer: the send of the own part */
    uint32_t *came;         /* by peer: the arrival, of the piece at hand */
    uint32_t fin[WINDOW];
} shot_t;

static rg_span_t piece_of(const shot_t *x, rg_buf_t buf, uint32_t p) {
    return rg_span_part(rg_span(buf, 0, x->s->desc.count), x->pieces, p);
}

static rg_span_t tmp_of(const shot_t *x, uint32_t rank, uint32_t p, uint64_t len) {
    return rg_span(RG_BUF_TMP, ((uint64_t)(p % WINDOW) * x->n + rank) * x->piece_max, len);
}

/* Two ranks fold what arrives with IN on its way. What is sent is a copy: sent from IN, in place, neither could begin
 * to receive before the other has received. */
static void pair(shot_t *x, uint32_t p) {
    uint32_t w = p % WINDOW, peer = 1 - x->r;
    rg_span_t in = piece_of(x, RG_BUF_IN, p), own = tmp_of(x, 0, p, in.len);
    uint32_t deps[2] = { x->sent[w][0], x->fin[w] };
    uint32_t copied = rg_sched_copy(x->s, own, in, 0, deps, 2);
    x->sent[w][0] = rg_sched_send(x->s, peer, own, &copied, 1);
    x->fin[w] = rg_sched_recv_reduce(x->s, peer, piece_of(x, RG_BUF_OUT, p), in,
                                     RG_STEP_WIRE_ACC | RG_STEP_FINAL | (x->r == 1 ? RG_STEP_SWAP : 0), &copied, 1);
}

static void many(shot_t *x, uint32_t p) {
    uint32_t n = x->n, r = x->r, w = p % WINDOW;
    rg_span_t in = piece_of(x, RG_BUF_IN, p), own = tmp_of(x, r, p, in.len);
    /* The place is free when the sends from it are done and the fold that used it too. */
    x->sent[w][r] = x->fin[w];
    uint32_t copied = rg_sched_copy(x->s, own, in, 0, x->sent[w], n);
    for (uint32_t i = 1; i < n; i++) x->sent[w][(r + i) % n] = rg_sched_send(x->s, (r + i) % n, own, &copied, 1);
    for (uint32_t i = 1; i < n; i++) {
        uint32_t from = (r + n - i) % n;
        x->came[from] = rg_sched_recv(x->s, from, tmp_of(x, from, p, in.len), RG_STEP_WIRE_ACC, &x->fin[w], 1);
    }
    x->came[r] = copied;
    /* The fold lives in the place of the first rank that is not this one: the own part is still being sent. */
    rg_span_t acc = tmp_of(x, r == 0 ? 1 : 0, p, in.len), sum = tmp_of(x, 0, p, in.len);
    uint32_t done = x->came[0];
    for (uint32_t q = 1; q < n; q++) {
        uint32_t deps[2] = { done, x->came[q] };
        done = rg_sched_reduce(x->s, q == n - 1 ? piece_of(x, RG_BUF_OUT, p) : acc, sum, tmp_of(x, q, p, in.len),
                               q == n - 1 ? RG_STEP_FINAL : 0, deps, 2);
        sum = acc;
    }
    x->fin[w] = done;
}

static int applies(const rg_coll_desc_t *d) { return d->count <= BYTES_MAX / d->acc_size; }

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)d->count * d->acc_size;
    /* The own part is copied, all parts are folded, and nothing of that overlaps with the messages: as measured, six
     * times what a byte costs that is reduced on arrival; but no more than that where it stays in caches that ranks
     * share, and where two fold little as it comes. */
    int cheap = m->work > 0 || (d->size == 2 && bytes <= PAIR_CHEAP);
    return rg_cost(m, 1, n - 1, (n - 1) * bytes, (cheap ? 1 : 6) * n * bytes);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 65536 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size;
    if (d->count == 0) return RG_OK;
    shot_t x = { .s = s, .n = n, .r = d->rank };
    x.pieces = rg_sched_pieces(d->count, d->chunk, 3 * (uint64_t)n);
    x.piece_max = piece_of(&x, RG_BUF_IN, 0).len;
    x.came = rg_sched_scratch(s, n);
    for (uint32_t i = 0; i < WINDOW; i++) {
        x.fin[i] = RG_NO_STEP;
        x.sent[i] = rg_sched_scratch(s, n);
        if (x.sent[i] == NULL) return s->error;
    }
    for (uint32_t p = 0; p < x.pieces; p++) {
        if (piece_of(&x, RG_BUF_IN, p).len == 0) continue;
        if (n == 2) pair(&x, p);
        else many(&x, p);
    }
    return s->error;
}

const rg_algorithm_t rg_alg_all_reduce_direct = {
    .name = "direct",
    .kind = RG_KIND_ALL_REDUCE,
    .source = "folklore: all-to-all broadcast, then a local fold in rank order",
    .applies = applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
