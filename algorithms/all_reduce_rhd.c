/* all_reduce_rhd.c: recursive halving, then doubling (Rabenseifner). The number of hops is logarithmic and the bytes
 * are near the least: for middle sizes on many ranks. When the number of ranks is no power of two, the first ranks
 * pair up: the even one of a pair gives all it has to the odd one and gets the result at the end. The data is cut into
 * blocks of 2*chunk that go through the stages in a pipeline of WINDOW; TMP holds WINDOW blocks. */
#include "regroup_algorithm.h"

#define WINDOW 4u
#define STAGES_MAX 32u

/* Step indexes of the block that last used a place in the window: by stage, what was given, the fold of what came, and
 * the arrival of final values; what the pairing made. */
typedef struct ids {
    uint32_t sent[STAGES_MAX], folded[STAGES_MAX], came[STAGES_MAX], paired;
} ids_t;

typedef struct rhd {
    rg_schedule_t *s;
    uint32_t r, pairs, stages, cores; /* cores: the power of two that goes through the stages */
    uint32_t v;                       /* number among them; UINT32_MAX for one that only gives and gets */
    uint32_t blocks;
    uint64_t block_max;
    ids_t ids[WINDOW];
} rhd_t;

static rg_span_t block_of(const rhd_t *x, rg_buf_t buf, uint32_t b) {
    return rg_span_part(rg_span(buf, 0, x->s->desc.count), x->blocks, b);
}

/* Parts lo to lo+n-1 of a block, of as many parts as there are in the stages. */
static rg_span_t parts_of(const rhd_t *x, rg_buf_t buf, uint32_t b, uint32_t lo, uint32_t n) {
    rg_span_t block = block_of(x, RG_BUF_OUT, b);
    rg_span_t first = rg_span_part(block, x->cores, lo), last = rg_span_part(block, x->cores, lo + n - 1);
    rg_span_t span = rg_span(buf, first.off, last.off + last.len - first.off);
    if (buf == RG_BUF_TMP) span.off = span.off - block.off + (b % WINDOW) * x->block_max;
    return span;
}

static uint32_t rank_of(const rhd_t *x, uint32_t v) { return v < x->pairs ? 2 * v + 1 : v + x->pairs; }

/* What stage j of the halving folds into: its own input, unless a pairing or a stage before has made more of it. */
static rg_buf_t partial_of(const rhd_t *x, uint32_t v, uint32_t j) {
    return j == 0 && v >= x->pairs ? RG_BUF_IN : RG_BUF_TMP;
}

/* All that must be over before a place in the window is used anew: sends from it, and the return of the final values,
 * which says that they were consumed. Returns how many were written. */
static uint32_t place_free(const rhd_t *x, const ids_t *w, uint32_t *deps) {
    uint32_t n = 0;
    for (uint32_t j = 0; j < x->stages; j++) {
        deps[n++] = w->sent[j];
        deps[n++] = w->folded[j];
        deps[n++] = w->came[j];
    }
    return n;
}

static void pair_up(rhd_t *x, uint32_t b) {
    ids_t *w = &x->ids[b % WINDOW];
    rg_span_t in = block_of(x, RG_BUF_IN, b);
    uint32_t deps[3 * STAGES_MAX];
    if (x->v == UINT32_MAX) {
        w->sent[0] = rg_sched_send(x->s, x->r + 1, in, w->came, 1);
    } else if (x->v < x->pairs) {
        rg_span_t acc = parts_of(x, RG_BUF_TMP, b, 0, x->cores);
        w->paired = rg_sched_recv_reduce(x->s, x->r - 1, acc, in, RG_STEP_SWAP, deps, place_free(x, w, deps));
    }
}

/* Stage j: of 2*half parts keep the half that this rank's number lies in, give the other to the rank that keeps
 * that. */
static void halve(rhd_t *x, uint32_t b, uint32_t j) {
    if (x->v == UINT32_MAX) return;
    ids_t *w = &x->ids[b % WINDOW];
    uint32_t half = x->cores >> (j + 1), keep = x->v & ~(half - 1), give = keep ^ half, other = x->v ^ half;
    rg_span_t mine = parts_of(x, partial_of(x, x->v, j), b, keep, half);
    rg_span_t theirs = parts_of(x, partial_of(x, x->v, j), b, give, half);
    uint32_t deps[3 * STAGES_MAX], n = 1;
    deps[0] = j == 0 ? w->paired : w->folded[j - 1];
    if (partial_of(x, x->v, j) == RG_BUF_IN) n = place_free(x, w, deps);
    uint32_t sent = RG_NO_STEP, folded = RG_NO_STEP;
    if (theirs.len != 0) sent = rg_sched_send(x->s, rank_of(x, other), theirs, deps, n);
    if (mine.len != 0) {
        uint32_t last = j + 1 == x->stages;
        uint32_t flags = (partial_of(x, other, j) == RG_BUF_TMP ? RG_STEP_WIRE_ACC : 0) | (last ? RG_STEP_FINAL : 0) |
                         (other < x->v ? RG_STEP_SWAP : 0);
        folded = rg_sched_recv_reduce(x->s, rank_of(x, other),
                                      parts_of(x, last ? RG_BUF_OUT : RG_BUF_TMP, b, keep, half), mine, flags, deps, n);
    }
    w->sent[j] = sent;
    w->folded[j] = folded;
}

/* Stage j backwards: give the final values that this rank has, get the other half's. */
static void join(rhd_t *x, uint32_t b, uint32_t j) {
    if (x->v == UINT32_MAX) return;
    ids_t *w = &x->ids[b % WINDOW];
    uint32_t half = x->cores >> (j + 1), have = x->v & ~(half - 1), want = have ^ half, peer = rank_of(x, x->v ^ half);
    rg_span_t mine = parts_of(x, RG_BUF_OUT, b, have, half), theirs = parts_of(x, RG_BUF_OUT, b, want, half);
    uint32_t deps[STAGES_MAX + 1], n = 0;
    deps[n++] = w->folded[x->stages - 1];
    for (uint32_t i = j + 1; i < x->stages; i++) deps[n++] = w->came[i];
    if (mine.len != 0) rg_sched_send(x->s, peer, mine, deps, n);
    /* What came[j] still holds is the block before in this place: its arrival has long been waited for. */
    w->came[j] = theirs.len == 0 ? RG_NO_STEP : rg_sched_recv(x->s, peer, theirs, 0, &w->sent[j], 1);
}

static void hand_back(rhd_t *x, uint32_t b) {
    ids_t *w = &x->ids[b % WINDOW];
    rg_span_t out = block_of(x, RG_BUF_OUT, b);
    if (x->v == UINT32_MAX) {
        w->came[0] = rg_sched_recv(x->s, x->r + 1, out, 0, w->sent, 1);
    } else if (x->v < x->pairs) {
        uint32_t deps[STAGES_MAX + 1], n = 0;
        deps[n++] = w->folded[x->stages - 1];
        for (uint32_t i = 0; i < x->stages; i++) deps[n++] = w->came[i];
        rg_sched_send(x->s, x->r - 1, out, deps, n);
    }
}

static void stage(rhd_t *x, uint32_t b, uint32_t t) {
    if (t == 0) pair_up(x, b);
    else if (t <= x->stages) halve(x, b, t - 1);
    else if (t <= 2 * x->stages) join(x, b, 2 * x->stages - t);
    else hand_back(x, b);
}

static uint32_t stages_for(uint32_t n) {
    uint32_t stages = 0;
    while ((n >> (stages + 1)) != 0) stages++;
    return stages;
}

static int applies(const rg_coll_desc_t *d) { return !d->rank_order || d->size <= 2; }

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double stages = stages_for(d->size), cores = (double)(1u << stages_for(d->size)),
           bytes = (double)d->count * d->elem_size;
    double odd = d->size > cores ? 1 : 0, blocks = bytes / (2.0 * (double)d->chunk * d->elem_size);
    if (blocks < 1) blocks = 1;
    /* The paired ranks wait for their share twice, and their bytes are on the way of all others. */
    return rg_cost(m, 2 * (stages + odd), 2 * (stages + odd) * blocks, (2 * (cores - 1) / cores + odd) * bytes,
                   ((cores - 1) / cores + odd) * bytes);
}

static uint64_t chunk(const rg_coll_desc_t *d) {
    uint64_t bytes = d->count * d->elem_size / 32;
    bytes = bytes < 65536 ? 65536 : bytes > 262144 ? 262144 : bytes;
    return bytes / d->elem_size;
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    if (d->count == 0) return RG_OK;
    rhd_t x = { .s = s, .r = d->rank, .stages = stages_for(d->size) };
    x.cores = 1u << x.stages;
    x.pairs = d->size - x.cores;
    x.v = x.r >= 2 * x.pairs ? x.r - x.pairs : x.r % 2 == 1 ? x.r / 2 : UINT32_MAX;
    /* The first message of a block, the largest, is one chunk. */
    x.blocks =
        rg_sched_pieces(d->count, d->chunk > UINT64_MAX / 2 ? d->chunk : 2 * d->chunk, 4 * (uint64_t)x.stages + 4);
    x.block_max = block_of(&x, RG_BUF_IN, 0).len;
    for (uint32_t i = 0; i < WINDOW; i++) {
        x.ids[i].paired = RG_NO_STEP;
        for (uint32_t j = 0; j < STAGES_MAX; j++) x.ids[i].sent[j] = x.ids[i].folded[j] = x.ids[i].came[j] = RG_NO_STEP;
    }
    uint32_t ticks = 2 * x.stages + 2, skew = (ticks + WINDOW - 1) / WINDOW;
    for (uint32_t tick = 0; tick < (x.blocks - 1) * skew + ticks; tick++) {
        uint32_t young = tick / skew < x.blocks - 1 ? tick / skew : x.blocks - 1;
        for (uint32_t b = young + 1; b-- > 0 && tick - b * skew < ticks;)
            if (block_of(&x, RG_BUF_IN, b).len != 0) stage(&x, b, tick - b * skew);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_all_reduce_rhd = {
    .name = "rhd",
    .kind = RG_KIND_ALL_REDUCE,
    .source = "Rabenseifner: Optimization of collective reduction operations, 2004",
    .applies = applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
