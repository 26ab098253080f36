/* reduce_scatter_rhd.c: recursive halving for any number of ranks. Segments are numbered by their distance above this
 * rank. A round that begins with partial values for the distances below `have` ends with those of half of them, rounded
 * up: the upper ones go to the rank as far above as they begin, and the like comes from below and is folded. A
 * logarithmic number of rounds, every segment sent once: for small and middle data. Large data goes in pieces of all
 * segments together.
 * TMP holds WINDOW pieces of half of the segments: min(total / 2, WINDOW * chunk) elements, about. No zero copy beyond
 * WINDOW pieces: nothing says that a peer has consumed what was sent from a place that is used again. */
#include "segments.h"

#define WINDOW 2u
#define ROUNDS_MAX 32u

typedef struct halving {
    rg_schedule_t *s;
    const rg_coll_desc_t *d;
    uint32_t n, pieces, p;
    uint64_t place_max;                    /* of a place in TMP */
    uint32_t used[WINDOW][ROUNDS_MAX + 1]; /* what must be over before the place is used again */
    uint32_t bound[ROUNDS_MAX];            /* distances that there are partial values for after each round */
    uint64_t begin[ROUNDS_MAX];
    uint32_t *folded, n_folded; /* the folds that partial values at hand were made by */
} halving_t;

static rg_span_t in_of(const halving_t *x, uint32_t far) {
    return seg_piece(x->d, RG_BUF_IN, seg_rank(x->d, (uint64_t)x->d->rank + far), x->pieces, x->p);
}

/* Where the partial value of a distance begins in the place; for the bounds of rounds and those right below them. */
static uint64_t begin_of(const halving_t *x, uint32_t far) {
    if (far == 0) return 0;
    uint32_t round = 0;
    while (x->bound[round] > far + 1) round++;
    return x->begin[round] - (x->bound[round] == far ? 0 : in_of(x, far).len);
}

/* Fills that in: a rank's segments may have any lengths. */
static void find_bounds(halving_t *x) {
    uint32_t n_bounds = 0;
    for (uint32_t have = x->n; have > 1;) x->bound[n_bounds++] = have = have / 2 + have % 2;
    uint64_t at = 0;
    for (uint32_t far = 0, k = n_bounds; far < x->bound[0];) {
        at += in_of(x, far++).len;
        if (far == x->bound[k - 1]) x->begin[--k] = at;
    }
}

/* Of the distances from lo to end-1, both of which are bounds of rounds or one below. */
static rg_span_t partial_of(const halving_t *x, uint32_t lo, uint32_t end) {
    uint64_t from = begin_of(x, lo);
    return rg_span(RG_BUF_TMP, (x->p % WINDOW) * x->place_max + from, begin_of(x, end) - from);
}

static rg_span_t final_of(const halving_t *x) {
    return rg_span_part(rg_span(RG_BUF_OUT, 0, rg_seg_len(x->d, x->d->rank)), x->pieces, x->p);
}

static uint32_t flags_for(const halving_t *x, uint32_t from, uint32_t keep, int partial) {
    return (partial ? RG_STEP_WIRE_ACC : 0) | (keep == 1 ? RG_STEP_FINAL : 0) | (from < x->d->rank ? RG_STEP_SWAP : 0);
}

/* The first round works on IN, run by run, because it has no copies in one place of what it gives. */
static void first_round(halving_t *x, uint32_t keep) {
    uint32_t n = x->n, to = seg_rank(x->d, (uint64_t)x->d->rank + keep), from = seg_rank(x->d, x->d->rank + (n - keep));
    const uint32_t *used = x->used[x->p % WINDOW];
    rg_span_t acc = partial_of(x, 0, n - keep), in;
    for (uint32_t far = keep, some; far < n; far += some) {
        some = seg_run(x->d, RG_BUF_IN, seg_rank(x->d, (uint64_t)x->d->rank + far), n - far, x->pieces, x->p, &in);
        if (in.len != 0) rg_sched_send(x->s, to, in, NULL, 0);
    }
    x->n_folded = 0;
    for (uint32_t far = 0, some; far < n - keep; far += some) {
        some =
            seg_run(x->d, RG_BUF_IN, seg_rank(x->d, (uint64_t)x->d->rank + far), n - keep - far, x->pieces, x->p, &in);
        rg_span_t dst = keep == 1 ? final_of(x) : rg_span(RG_BUF_TMP, acc.off, in.len);
        acc.off += in.len;
        if (in.len != 0)
            x->folded[x->n_folded++] =
                rg_sched_recv_reduce(x->s, from, dst, in, flags_for(x, from, keep, 0), used, ROUNDS_MAX + 1);
    }
    /* Of an odd number the middle one has no partner yet; from here on it is a partial value like the others. */
    in = in_of(x, keep - 1);
    if (n - keep < keep && in.len != 0)
        x->folded[x->n_folded++] = rg_sched_copy(x->s, partial_of(x, keep - 1, keep), in, 0, used, ROUNDS_MAX + 1);
}

static void later_round(halving_t *x, uint32_t round, uint32_t have, uint32_t keep) {
    uint32_t to = seg_rank(x->d, (uint64_t)x->d->rank + keep), from = seg_rank(x->d, x->d->rank + (x->n - keep));
    uint32_t *used = x->used[x->p % WINDOW];
    rg_span_t give = partial_of(x, keep, have), mine = partial_of(x, 0, have - keep), dst = mine;
    used[round] = give.len == 0 ? RG_NO_STEP : rg_sched_send(x->s, to, give, x->folded, x->n_folded);
    if (mine.len == 0) return;
    if (keep == 1) dst = final_of(x);
    x->folded[0] = rg_sched_recv_reduce(x->s, from, dst, mine, flags_for(x, from, keep, 1), x->folded, x->n_folded);
    x->n_folded = 1;
}

static void piece(halving_t *x) {
    uint32_t *used = x->used[x->p % WINDOW], round = 0;
    find_bounds(x);
    for (uint32_t have = x->n; have > 1; round++) {
        uint32_t keep = have / 2 + have % 2;
        if (round == 0) first_round(x, keep);
        else later_round(x, round, have, keep);
        have = keep;
    }
    /* All other folds come before the last one; where that has no length, what there is stands for it. */
    for (uint32_t i = 0; i < x->n_folded; i++) used[ROUNDS_MAX] = x->folded[i];
    used[0] = RG_NO_STEP;
}

static int applies(const rg_coll_desc_t *d) { return !d->rank_order || d->size <= 2; }

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, rounds = seg_rounds(d->size), bytes = (n - 1) / n * seg_bytes(d);
    double each = (double)d->chunk * d->elem_size, pieces = bytes / 2 > each ? bytes / 2 / each : 1;
    /* The first round has a second message where it wraps, or one for each segment. */
    double messages = seg_dense(d) && pieces <= 1 ? rounds + 1 : (n / 2 + rounds) * pieces;
    return rg_cost(m, rounds, seg_messages(bytes, messages), SEG_ROUNDS_COST * bytes, bytes);
}

/* A round folds before the next can begin, and pieces overlap that. */
static uint64_t chunk(const rg_coll_desc_t *d) { return 1048576 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size, half = n / 2 + n % 2;
    uint64_t largest = rg_seg_max(d);
    halving_t x = { .s = s, .d = d, .n = n, .pieces = 1 };
    largest = largest > UINT64_MAX / half ? UINT64_MAX : largest * half;
    x.folded = rg_sched_scratch(s, (size_t)n + 1);
    if (x.folded == NULL) return s->error;
    x.pieces = rg_sched_pieces(largest, d->chunk, 2 * (uint64_t)n);
    /* The first pieces of all segments are the longest. */
    for (uint32_t far = 0; far < half; far++) x.place_max += in_of(&x, far).len;
    for (uint32_t w = 0; w < WINDOW; w++)
        for (uint32_t i = 0; i <= ROUNDS_MAX; i++) x.used[w][i] = RG_NO_STEP;
    for (x.p = 0; x.p < x.pieces; x.p++) piece(&x);
    if (x.pieces <= WINDOW) s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_reduce_scatter_rhd = {
    .name = "rhd",
    .kind = RG_KIND_REDUCE_SCATTER,
    .source = "Traeff: Optimal, non-pipelined reduce-scatter and allreduce algorithms, 2024; for powers of two "
              "Thakur, Rabenseifner, Gropp 2005",
    .applies = applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
