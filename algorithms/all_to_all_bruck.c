/* all_to_all_bruck.c: blocks are numbered by how far above this rank they have to go, and travel along the bits of that
 * number: in round k all blocks with bit k set go 2^k up, in one message. A logarithmic number of messages, for which
 * every block is sent half as many times as there are rounds: for small blocks of equal length on many ranks. Where
 * lengths are given, a rank would have to know those of all the others, so it does not apply.
 * TMP holds twice what a rank sends: all blocks as they wait, and half of them on their way out and in; so it is for no
 * more than BYTES_MAX in all. No zero copy: nothing says that a message has been consumed when its place is used
 * again. */
#include "segments.h"

/* What all blocks of a rank may have together. */
#define BYTES_MAX 1048576.0
#define ROUNDS_MAX 32u

typedef struct bruck {
    rg_schedule_t *s;
    const rg_coll_desc_t *d;
    uint32_t n;
    uint64_t len;
    uint32_t *at; /* by block: what put it where it waits */
    uint32_t *packed, *unpacked, n_packed, n_unpacked;
    uint32_t sent;
} bruck_t;

/* Blocks lo to lo+n-1 as they wait; blocks of a message that goes out (0) or comes in (1). */
static rg_span_t waiting(const bruck_t *x, uint32_t lo, uint32_t n) {
    return rg_span(RG_BUF_TMP, lo * x->len, n * x->len);
}

static rg_span_t passage(const bruck_t *x, uint32_t way, uint32_t lo, uint32_t n) {
    return rg_span(RG_BUF_TMP, (x->n + (uint64_t)way * (x->n / 2) + lo) * x->len, n * x->len);
}

static void all_to_places(bruck_t *x) {
    for (uint32_t i = 1, some; i < x->n; i += some) {
        uint32_t rank = seg_rank(x->d, (uint64_t)x->d->rank + i),
                 left = x->n - rank < x->n - i ? x->n - rank : x->n - i;
        rg_span_t in = rg_seg_in(x->d, rank);
        some = x->d->in_offs == NULL ? left : 1;
        in.len = some * x->len;
        uint32_t put = rg_sched_copy(x->s, waiting(x, i, some), in, 0, NULL, 0);
        for (uint32_t k = i; k < i + some; k++) x->at[k] = put;
    }
}

/* Copies a run of waiting blocks, which came by at most one step for each round so far, behind each other. */
static void pack(bruck_t *x, uint32_t lo, uint32_t n, uint32_t place) {
    uint32_t deps[ROUNDS_MAX + 2], n_deps = 0;
    deps[n_deps++] = x->sent;
    for (uint32_t i = lo; i < lo + n; i++)
        if (n_deps == 1 || deps[n_deps - 1] != x->at[i]) deps[n_deps++] = x->at[i];
    x->packed[x->n_packed++] = rg_sched_copy(x->s, passage(x, 0, place, n), waiting(x, lo, n), 0, deps, n_deps);
}

/* What came goes where it waits for higher bits, which the lowest run has none of: it is where it had to go. */
static void unpack(bruck_t *x, uint32_t lo, uint32_t n, uint32_t place, uint32_t bit, uint32_t run, uint32_t came) {
    if (lo != bit) {
        uint32_t deps[2] = { came, x->packed[run] };
        uint32_t put = rg_sched_copy(x->s, waiting(x, lo, n), passage(x, 1, place, n), 0, deps, 2);
        for (uint32_t i = lo; i < lo + n; i++) x->at[i] = put;
        x->unpacked[x->n_unpacked++] = put;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        rg_span_t out = rg_seg(x->d, RG_BUF_OUT, seg_rank(x->d, (uint64_t)x->d->rank + x->n - lo - i));
        x->unpacked[x->n_unpacked++] = rg_sched_copy(x->s, out, passage(x, 1, place + i, 1), 0, &came, 1);
    }
}

static uint32_t run_of(const bruck_t *x, uint32_t lo, uint32_t bit) { return x->n - lo < bit ? x->n - lo : bit; }

static void exchange(bruck_t *x, uint32_t bit) {
    uint32_t to = seg_rank(x->d, (uint64_t)x->d->rank + bit), from = seg_rank(x->d, x->d->rank + (x->n - bit));
    uint32_t total = 0, run = 0;
    x->n_packed = 0;
    for (uint64_t lo = bit; lo < x->n; lo += 2 * (uint64_t)bit) {
        uint32_t n = run_of(x, (uint32_t)lo, bit);
        pack(x, (uint32_t)lo, n, total);
        total += n;
    }
    x->sent = rg_sched_send(x->s, to, passage(x, 0, 0, total), x->packed, x->n_packed);
    uint32_t came = rg_sched_recv(x->s, from, passage(x, 1, 0, total), 0, x->unpacked, x->n_unpacked);
    x->n_unpacked = total = 0;
    for (uint64_t lo = bit; lo < x->n; lo += 2 * (uint64_t)bit) {
        uint32_t n = run_of(x, (uint32_t)lo, bit);
        unpack(x, (uint32_t)lo, n, total, bit, run++, came);
        total += n;
    }
}

static int applies(const rg_coll_desc_t *d) {
    return d->lens == NULL && d->in_lens == NULL && seg_bytes(d) <= BYTES_MAX;
}

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double rounds = seg_rounds(d->size), bytes = rounds / 2 * seg_bytes(d);
    /* Every byte is copied out of the way and back, and once more at either end; from cache, about as fast as it is
     * reduced. */
    return rg_cost(m, rounds, rounds, bytes, 2 * bytes + 2 * seg_bytes(d));
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    bruck_t x = { .s = s, .d = d, .n = d->size, .len = d->count, .sent = RG_NO_STEP };
    if (d->count == 0) return RG_OK;
    x.at = rg_sched_scratch(s, d->size);
    x.packed = rg_sched_scratch(s, d->size);
    x.unpacked = rg_sched_scratch(s, d->size);
    if (x.at == NULL || x.packed == NULL || x.unpacked == NULL) return s->error;
    all_to_places(&x);
    for (uint64_t bit = 1; bit < d->size; bit *= 2) exchange(&x, (uint32_t)bit);
    rg_sched_copy(s, rg_seg(d, RG_BUF_OUT, d->rank), rg_seg_in(d, d->rank), 0, NULL, 0);
    return s->error;
}

const rg_algorithm_t rg_alg_all_to_all_bruck = {
    .name = "bruck",
    .kind = RG_KIND_ALL_TO_ALL,
    .source = "Bruck, Ho, Kipnis, Upfal, Weathersby: Efficient algorithms for all-to-all communications in "
              "multiport message-passing systems, 1997",
    .applies = applies,
    .cost = cost,
    .build = build,
};
