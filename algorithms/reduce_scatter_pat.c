/* reduce_scatter_pat.c: every segment is reduced up a binomial tree of its own to the rank it is for, and the trees of
 * all ranks, which are one tree turned around, run in the same order (parallel trees). That order finishes one subtree
 * before it begins the next, so that a rank has at most one partial value at each depth of the tree, whatever the
 * number of ranks. As few bytes as the ring, to a logarithmic number of neighbours, and the first of them are through
 * after a logarithmic number of hops: for middle and large data on many ranks. TMP holds WINDOW pieces for each depth:
 * WINDOW * log2(n) * min(segment, chunk) elements. No zero copy: nothing says that a peer has consumed what was sent
 * from a place that is used again. */
#include "segments.h"

#define WINDOW 4u
#define DEPTH_MAX 32u

/* In the tree of a segment a rank has the number that tells how far above the segment's own rank it is. The parent of a
 * number is what is left without its lowest bit. */
typedef struct pat {
    rg_schedule_t *s;
    const rg_coll_desc_t *d;
    uint32_t n, pieces, p;
    uint64_t piece_max;
    uint32_t sent[DEPTH_MAX + 1][WINDOW], used[DEPTH_MAX + 1]; /* by depth: last use of each place, uses in all */
} pat_t;

/* The partial value of one number, while its children come in. */
typedef struct partial {
    rg_span_t in, value;
    uint32_t place, dep;
} partial_t;

static partial_t begin(const pat_t *x, uint32_t number) {
    uint32_t rank = seg_rank(x->d, (uint64_t)x->d->rank + x->n - number);
    partial_t v = { .in = seg_piece(x->d, RG_BUF_IN, rank, x->pieces, x->p), .place = UINT32_MAX, .dep = RG_NO_STEP };
    v.value = v.in;
    return v;
}

/* Folds what the child `number + step` sends; at the root the last child makes the final value. */
static void take(pat_t *x, partial_t *v, uint32_t number, uint32_t step, uint32_t depth) {
    uint32_t from = seg_rank(x->d, (uint64_t)x->d->rank + step), child = number + step;
    int last = number == 0 && step >= x->n - step, inner = step > 1 && child + 1 < x->n;
    uint32_t flags =
        (inner ? RG_STEP_WIRE_ACC : 0) | (last ? RG_STEP_FINAL : 0) | (from < x->d->rank ? RG_STEP_SWAP : 0);
    if (v->in.len == 0) return;
    if (v->place == UINT32_MAX && !last) {
        v->place = x->used[depth]++ % WINDOW;
        v->dep = x->sent[depth][v->place];
    }
    rg_span_t dst = last ? rg_span_part(rg_span(RG_BUF_OUT, 0, rg_seg_len(x->d, x->d->rank)), x->pieces, x->p)
                         : rg_span(RG_BUF_TMP, ((uint64_t)depth * WINDOW + v->place) * x->piece_max, v->in.len);
    v->dep = rg_sched_recv_reduce(x->s, from, dst, v->value, flags, &v->dep, 1);
    v->value = dst;
    if (last && v->place != UINT32_MAX) x->sent[depth][v->place] = v->dep;
}

/* All below `number`, whose children are at distances below `reach`, and then the way from it to its parent. */
static void subtree(pat_t *x, uint32_t number, uint32_t reach, uint32_t depth) {
    partial_t v = begin(x, number);
    for (uint32_t step = 1; step < reach && step < x->n - number; step *= 2) {
        subtree(x, number + step, step, depth + 1);
        take(x, &v, number, step, depth);
    }
    if (number == 0 || v.in.len == 0) return;
    uint32_t sent = rg_sched_send(x->s, seg_rank(x->d, (uint64_t)x->d->rank + x->n - reach), v.value, &v.dep, 1);
    if (v.place != UINT32_MAX) x->sent[depth][v.place] = sent;
}

static int applies(const rg_coll_desc_t *d) { return !d->rank_order || d->size <= 2; }

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (n - 1) / n * seg_bytes(d), each = (double)d->chunk * d->elem_size;
    double pieces = seg_bytes(d) / n > each ? seg_bytes(d) / n / each : 1;
    double crowd = m->sharing > 1 ? 2 : 1; /* as in reduce_scatter_direct.c */
    return rg_cost(m, seg_rounds(d->size), (n - 1) * pieces, crowd * bytes, bytes);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 131072 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    pat_t x = { .s = s, .d = d, .n = d->size };
    rg_span_t longest = rg_span(RG_BUF_TMP, 0, rg_seg_max(d));
    x.pieces = rg_sched_pieces(longest.len, d->chunk, 2 * (uint64_t)x.n);
    x.piece_max = rg_span_part(longest, x.pieces, 0).len;
    for (uint32_t i = 0; i <= DEPTH_MAX; i++)
        for (uint32_t w = 0; w < WINDOW; w++) x.sent[i][w] = RG_NO_STEP;
    for (x.p = 0; x.p < x.pieces; x.p++) subtree(&x, 0, UINT32_MAX, 0);
    return s->error;
}

const rg_algorithm_t rg_alg_reduce_scatter_pat = {
    .name = "pat",
    .kind = RG_KIND_REDUCE_SCATTER,
    .source = "Jeaugey: PAT: a new algorithm for all-gather and reduce-scatter operations at scale, 2025",
    .applies = applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
