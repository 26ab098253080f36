/* all_gather_pat.c: every rank's segment goes down a binomial tree of its own, to the farthest ranks first, and the
 * trees of all ranks run in the same rounds (parallel aggregated trees). The rounds are logarithmic for any number of
 * ranks. Most segments go between near ranks, where Bruck's way round sends most of them far: for small and middle data
 * where ranks that are near in number are near in the network.
 * Up to PACKED bytes in all the segments of a round travel together: TMP holds all of them once, in the order of
 * arrival, in which what is sent next lies in one place. More than that goes straight to OUT, each segment in a message
 * of its own, without TMP. What is sent is never written again. */
#include "segments.h"

#define PACKED 65536.0

/* A segment is named by its distance: how far its owner is below this rank. It comes from the rank below by the lowest
 * bit of that, and goes to those above by lower bits. */
typedef struct pat {
    rg_schedule_t *s;
    const rg_coll_desc_t *d;
    uint32_t *far, *have; /* distances in the order of arrival; how each came */
    uint32_t n_far;
} pat_t;

static int packed(const rg_coll_desc_t *d) { return seg_bytes(d) <= PACKED; }

static uint32_t owner_of(const pat_t *x, uint32_t far) {
    return seg_rank(x->d, (uint64_t)x->d->rank + x->d->size - far);
}

static uint32_t top_of(uint32_t n) {
    uint32_t top = 1;
    while (top < n - top) top *= 2;
    return top;
}

static void own_segment(pat_t *x) {
    rg_span_t own = rg_seg(x->d, RG_BUF_OUT, x->d->rank), in = rg_span(RG_BUF_IN, 0, own.len);
    if (own.len != 0) rg_sched_copy(x->s, own, in, 0, NULL, 0);
    if (own.len != 0 && packed(x->d)) x->have[0] = rg_sched_copy(x->s, rg_span(RG_BUF_TMP, 0, own.len), in, 0, NULL, 0);
    x->far[0] = 0;
    x->n_far = 1;
}

/* One round, each segment by itself. */
static void round_single(pat_t *x, uint32_t step) {
    uint32_t n = x->d->size, before = x->n_far;
    for (uint32_t i = 0; i < before; i++) {
        uint32_t far = x->far[i];
        if (far >= n - step) continue;
        rg_span_t span = rg_seg(x->d, RG_BUF_OUT, owner_of(x, far)),
                  out = rg_seg(x->d, RG_BUF_OUT, owner_of(x, far + step));
        if (far == 0) span = rg_span(RG_BUF_IN, 0, span.len);
        if (span.len != 0) rg_sched_send(x->s, seg_rank(x->d, (uint64_t)x->d->rank + step), span, &x->have[i], 1);
        x->far[x->n_far] = far + step;
        if (out.len != 0)
            x->have[x->n_far] = rg_sched_recv(x->s, seg_rank(x->d, (uint64_t)x->d->rank + n - step), out, 0, NULL, 0);
        x->n_far++;
    }
}

/* Where the segment that arrived as number i begins in TMP. */
static uint64_t place_of(const pat_t *x, uint32_t i) {
    uint64_t at = 0;
    for (uint32_t k = 0; k < i; k++) at += rg_seg_len(x->d, owner_of(x, x->far[k]));
    return at;
}

/* Numbers lo to end-1, all that have arrived in one place, go up by `step` in one message, and as many come. */
static void exchange(pat_t *x, uint32_t step, uint32_t lo, uint32_t end) {
    uint32_t n = x->d->size, first = x->n_far;
    if (lo == end) return;
    for (uint32_t i = lo; i < end; i++) x->far[x->n_far++] = x->far[i] + step;
    uint64_t from = place_of(x, lo), to = place_of(x, first);
    rg_span_t give = rg_span(RG_BUF_TMP, from, place_of(x, end) - from);
    rg_span_t take = rg_span(RG_BUF_TMP, to, place_of(x, x->n_far) - to);
    uint32_t came = RG_NO_STEP;
    if (give.len != 0) rg_sched_send(x->s, seg_rank(x->d, (uint64_t)x->d->rank + step), give, x->have + lo, end - lo);
    if (take.len != 0) came = rg_sched_recv(x->s, seg_rank(x->d, (uint64_t)x->d->rank + n - step), take, 0, NULL, 0);
    for (uint32_t i = first; i < x->n_far; i++) {
        rg_span_t out = rg_seg(x->d, RG_BUF_OUT, owner_of(x, x->far[i]));
        x->have[i] = came;
        if (out.len != 0) rg_sched_copy(x->s, out, rg_span(RG_BUF_TMP, to, out.len), 0, &came, 1);
        to += out.len;
    }
}

/* One round, all segments together; at most one of them, that of the farthest rank, may have nobody to go to. */
static void round_packed(pat_t *x, uint32_t step) {
    uint32_t before = x->n_far, stays = before;
    for (uint32_t i = 0; i < before; i++)
        if (x->far[i] >= x->d->size - step) stays = i;
    exchange(x, step, 0, stays);
    if (stays < before) exchange(x, step, stays + 1, before);
}

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, rounds = seg_rounds(d->size), bytes = (n - 1) / n * seg_bytes(d);
    /* Packed, everything is written once more, from cache. */
    return rg_cost(m, rounds, seg_messages(bytes, packed(d) ? 1.5 * rounds : n - 1), SEG_ROUNDS_COST * bytes,
                   packed(d) ? bytes : 0);
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    pat_t x = { .s = s, .d = d, .far = rg_sched_scratch(s, d->size), .have = rg_sched_scratch(s, d->size) };
    if (x.far == NULL || x.have == NULL) return s->error;
    own_segment(&x);
    for (uint32_t step = top_of(d->size); step > 0; step /= 2) {
        if (packed(d)) round_packed(&x, step);
        else round_single(&x, step);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_all_gather_pat = {
    .name = "pat",
    .kind = RG_KIND_ALL_GATHER,
    .source = "Jeaugey: PAT: a new algorithm for all-gather and reduce-scatter operations at scale, 2025",
    .cost = cost,
    .build = build,
};
