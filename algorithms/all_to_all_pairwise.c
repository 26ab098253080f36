/* all_to_all_pairwise.c: n-1 rounds; in round i every rank sends to the one i above it and receives from the one i
 * below, so that each has one stream out and one in, however many ranks there are: for large data. WINDOW rounds
 * overlap, so that no link waits for the end of the round before. What goes to one rank goes in pieces of `chunk`
 * elements, and the pieces count in the window. No TMP; nothing that was sent is written again. */
#include "segments.h"

/* Messages under way in either direction. */
#define WINDOW 4u

typedef struct window {
    uint32_t sent[WINDOW], came[WINDOW], n_sent, n_came;
} window_t;

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)d->count * d->elem_size, each = (double)d->chunk * d->elem_size;
    double pieces = bytes > each ? bytes / each : 1;
    return rg_cost(m, (n - 1) / WINDOW + 1, (n - 1) * pieces, (n - 1) * bytes, 0);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 262144 / d->elem_size; }

/* How many pieces a segment goes in: both ends say the same, for they know its length. */
static uint32_t pieces_of(const rg_coll_desc_t *d, uint64_t len) {
    return rg_sched_pieces(len, d->chunk, 2 * (uint64_t)d->size);
}

static void exchange(rg_schedule_t *s, const rg_coll_desc_t *d, uint32_t far, window_t *w) {
    uint32_t to = seg_rank(d, (uint64_t)d->rank + far), from = seg_rank(d, (uint64_t)d->rank + d->size - far);
    rg_span_t in = rg_seg_in(d, to), out = rg_seg(d, RG_BUF_OUT, from);
    uint32_t n_in = pieces_of(d, in.len), n_out = pieces_of(d, out.len);
    for (uint32_t p = 0; p < n_in || p < n_out; p++) {
        rg_span_t give = rg_span_part(in, n_in, p < n_in ? p : 0), take = rg_span_part(out, n_out, p < n_out ? p : 0);
        /* A send follows what arrived a window ago and not only what was sent then: all ranks stay in step. */
        uint32_t *sent = &w->sent[w->n_sent % WINDOW], *came = &w->came[w->n_came % WINDOW];
        uint32_t deps[2] = { *sent, *came };
        if (p < n_out && take.len != 0) {
            *came = rg_sched_recv(s, from, take, 0, came, 1);
            w->n_came++;
        }
        if (p < n_in && give.len != 0) {
            *sent = rg_sched_send(s, to, give, deps, 2);
            w->n_sent++;
        }
    }
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    window_t w = { .n_sent = 0, .n_came = 0 };
    for (uint32_t i = 0; i < WINDOW; i++) w.sent[i] = w.came[i] = RG_NO_STEP;
    rg_span_t own = rg_seg_in(d, d->rank), out = rg_seg(d, RG_BUF_OUT, d->rank);
    for (uint32_t far = 1; far < d->size; far++) exchange(s, d, far, &w);
    /* Last, while the messages are on their way. */
    if (own.len != 0) rg_sched_copy(s, out, own, 0, NULL, 0);
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_all_to_all_pairwise = {
    .name = "pairwise",
    .kind = RG_KIND_ALL_TO_ALL,
    .source = "folklore: pairwise exchange; see Thakur, Rabenseifner, Gropp 2005",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
