/* broadcast_scatter_all_gather.c: the root scatters slices down a binomial tree, then all pass them around a ring until
 * everybody has all (van de Geijn). What a rank has from the scattering is not sent to it again. Every rank sends about
 * twice the data, and the root no more than others: for large data where a chain of pieces would take too long to
 * fill. Data beyond chunk * n goes in blocks, one behind the other. No TMP; nothing that was sent is written again. */
#include "regroup_algorithm.h"

/* Receives posted ahead. */
#define WINDOW 16u

typedef struct vdg {
    rg_schedule_t *s;
    uint32_t n, v, root, blocks; /* v: number from the root */
    uint32_t *have;              /* by slice of the block at hand: how it came */
    uint32_t came[WINDOW], n_came;
} vdg_t;

static rg_span_t block_of(const vdg_t *x, rg_buf_t buf, uint32_t b) {
    return rg_span_part(rg_span(buf, 0, x->s->desc.count), x->blocks, b);
}

static rg_span_t slices_of(const vdg_t *x, rg_buf_t buf, uint32_t b, uint32_t lo, uint32_t end) {
    rg_span_t block = block_of(x, buf, b), first = rg_span_part(block, x->n, lo),
              last = rg_span_part(block, x->n, end - 1);
    return rg_span(buf, first.off, last.off + last.len - first.off);
}

static uint32_t rank_of(const vdg_t *x, uint32_t v) { return (uint32_t)(((uint64_t)x->root + v) % x->n); }

/* The scattering gives v the slices from v to below this. */
static uint32_t end_of(const vdg_t *x, uint32_t v) {
    uint32_t reach = v & (~v + 1);
    return v == 0 || reach > x->n - v ? x->n : v + reach;
}

static int scattered_to(const vdg_t *x, uint32_t v, uint32_t slice) { return slice >= v && slice < end_of(x, v); }

static uint32_t receive(vdg_t *x, uint32_t from, rg_span_t out) {
    uint32_t *place = &x->came[x->n_came++ % WINDOW];
    *place = rg_sched_recv(x->s, from, out, 0, place, 1);
    return *place;
}

static void scatter(vdg_t *x, uint32_t b) {
    uint32_t end = end_of(x, x->v), came = RG_NO_STEP, reach = x->v & (~x->v + 1);
    rg_span_t mine = slices_of(x, RG_BUF_OUT, b, x->v, end);
    if (x->v == 0) {
        for (reach = 1; reach < x->n; reach *= 2) continue;
        rg_sched_copy(x->s, mine, slices_of(x, RG_BUF_IN, b, 0, x->n), 0, NULL, 0);
    } else if (mine.len != 0) {
        came = receive(x, rank_of(x, x->v - reach), mine);
    }
    for (uint32_t i = x->v; i < end; i++) x->have[i] = came;
    for (uint32_t step = reach / 2; step > 0; step /= 2) {
        if (step >= x->n - x->v) continue;
        uint32_t child = x->v + step;
        rg_span_t part = slices_of(x, x->v == 0 ? RG_BUF_IN : RG_BUF_OUT, b, child, end_of(x, child));
        if (part.len != 0) rg_sched_send(x->s, rank_of(x, child), part, &came, 1);
    }
}

static void pass_around(vdg_t *x, uint32_t b) {
    uint32_t next = x->v + 1;
    for (uint32_t k = 0; k + 1 < x->n; k++) {
        uint32_t give = (x->v + x->n - k) % x->n, take = (x->v + x->n - k - 1) % x->n;
        rg_span_t out = slices_of(x, x->v == 0 ? RG_BUF_IN : RG_BUF_OUT, b, give, give + 1);
        if (next < x->n && out.len != 0 && !scattered_to(x, next, give))
            rg_sched_send(x->s, rank_of(x, next), out, &x->have[give], 1);
        out = slices_of(x, RG_BUF_OUT, b, take, take + 1);
        if (out.len != 0 && !scattered_to(x, x->v, take)) x->have[take] = receive(x, rank_of(x, x->v - 1), out);
    }
}

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, bytes = (double)d->count * d->elem_size, each = (double)d->chunk * d->elem_size * n, depth = 0;
    double blocks = bytes > each ? bytes / each : 1;
    for (uint64_t i = 1; i < d->size; i *= 2) depth++;
    /* The busiest sends every element twice. Over all ranks together each is received once by everybody, but while the
     * data is scattered few have work. */
    double share = m->sharing > 1 ? 1.25 : 2;
    return rg_cost(m, depth + n - 1, 2 * (n - 1) * blocks, share * (n - 1) / n * bytes, 0);
}

static uint64_t chunk(const rg_coll_desc_t *d) {
    uint64_t bytes = d->count / d->size / 4 * d->elem_size;
    bytes = bytes < 65536 ? 65536 : bytes > 131072 ? 131072 : bytes;
    return bytes / d->elem_size;
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    if (d->count == 0) return RG_OK;
    uint32_t n = d->size;
    vdg_t x = { .s = s, .n = n, .v = (uint32_t)(((uint64_t)d->rank + n - d->root) % n), .root = d->root };
    x.blocks = rg_sched_pieces(d->count, d->chunk > UINT64_MAX / n ? UINT64_MAX : d->chunk * n, 2 * (uint64_t)n);
    x.have = rg_sched_scratch(s, n);
    if (x.have == NULL) return s->error;
    for (uint32_t i = 0; i < WINDOW; i++) x.came[i] = RG_NO_STEP;
    for (uint32_t b = 0; b < x.blocks; b++) {
        scatter(&x, b);
        pass_around(&x, b);
    }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_broadcast_scatter_all_gather = {
    .name = "scatter_all_gather",
    .kind = RG_KIND_BROADCAST,
    .source =
        "Barnett, Gupta, Payne, Shuler, van de Geijn, Watts: Interprocessor collective communication library, 1994",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
