/* test_collectives.c: every kind of operation on groups of threads: all types and awkward counts, in place and not,
 * with segments that differ, rows, lists, factors and weights, against a plain computation on small integers. The whole
 * memory around the buffers is compared as well, so that a byte written beside them shows. Faults: survivors must agree
 * on every outcome, and what was not a success must leave the input as it was. It relies on engine_rig.h. */
#include "engine_rig.h"

#include "engine/group.h"
#include "tools/pattern.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_MAX 3
#define GUARD 64
#define SEG_STEP 131u

static double value(uint32_t rank, uint64_t i) { return (double)((rank * 7 + i * 3 + i / 5) % 3); }

/* ---- A call and what must come of it ----------------------------------------------------------------------------- */

typedef struct row_shape {
    uint64_t row, pitch; /* 0: one piece */
} row_shape_t;

typedef struct area {
    uint8_t *mem, *was; /* with guards; what it was before the call */
    size_t bytes;
    uint8_t *base;
} area_t;

typedef struct trial {
    rg_kind_t kind;
    rg_dtype_t t;
    rg_op_t op;
    uint32_t n, rank, root;
    uint64_t count;
    int v, in_place, list; /* list: number of buffers, 0: not a list */
    uint64_t counts[RIG_MAX], offs[RIG_MAX];
    uint64_t in_counts[RIG_MAX], in_offs[RIG_MAX];
    uint64_t list_counts[LIST_MAX];
    row_shape_t in_rows, out_rows;
    area_t in[LIST_MAX], out[LIST_MAX];
    uint32_t skew;
} trial_t;

static int segmented(rg_kind_t k) {
    return k == RG_KIND_ALL_GATHER || k == RG_KIND_REDUCE_SCATTER || k == RG_KIND_GATHER || k == RG_KIND_SCATTER ||
           k == RG_KIND_ALL_TO_ALL;
}
static int in_is_whole(rg_kind_t k) {
    return k == RG_KIND_REDUCE_SCATTER || k == RG_KIND_SCATTER || k == RG_KIND_ALL_TO_ALL;
}
static int out_is_whole(rg_kind_t k) {
    return k == RG_KIND_ALL_GATHER || k == RG_KIND_GATHER || k == RG_KIND_ALL_TO_ALL;
}

static int has_in(const trial_t *x) {
    return (x->kind != RG_KIND_BROADCAST && x->kind != RG_KIND_SCATTER) || x->rank == x->root;
}
static int has_out(const trial_t *x) {
    return (x->kind != RG_KIND_REDUCE && x->kind != RG_KIND_GATHER) || x->rank == x->root;
}

/* Elements of segment s of IN or OUT, in buffer b of a list, and where they start. */
static uint64_t seg_len(const trial_t *x, int in, uint32_t s, int b) {
    if (x->list) return x->list_counts[b];
    if (!x->v) return x->count;
    return in && x->kind == RG_KIND_ALL_TO_ALL ? x->in_counts[s] : x->counts[s];
}
static uint64_t seg_off(const trial_t *x, int in, uint32_t s, int b) {
    if (!x->v) return seg_len(x, in, s, b) * s;
    return in && x->kind == RG_KIND_ALL_TO_ALL ? x->in_offs[s] : x->offs[s];
}
static int is_whole(const trial_t *x, int in) { return in ? in_is_whole(x->kind) : out_is_whole(x->kind); }
static uint32_t segs(const trial_t *x, int in) { return is_whole(x, in) ? x->n : 1; }
/* Which segment of a buffer with one segment only. */
static uint32_t seg_name(const trial_t *x, int in, uint32_t s) { return is_whole(x, in) ? s : x->rank; }

static uint64_t elems(const trial_t *x, int in, int b) {
    if (!segmented(x->kind)) return x->list ? x->list_counts[b] : x->count;
    if (!is_whole(x, in)) return seg_len(x, in, x->rank, b);
    uint64_t most = 0;
    for (uint32_t s = 0; s < x->n; s++) {
        uint64_t end = seg_off(x, in, s, b) + seg_len(x, in, s, b);
        if (seg_len(x, in, s, b) && end > most) most = end;
    }
    return most;
}

/* What member r has for element i of segment s (of buffer b). */
static double given(uint32_t r, uint32_t s, uint64_t i, int b) { return value(r, s * SEG_STEP + i + (uint64_t)b * 17); }

static double expected(const trial_t *x, uint32_t s, uint64_t i, int b) {
    double sum = 0;
    switch (x->kind) {
    case RG_KIND_ALL_REDUCE:
    case RG_KIND_REDUCE:
        for (uint32_t r = 0; r < x->n; r++) sum += given(r, 0, i, b);
        return sum;
    case RG_KIND_REDUCE_SCATTER:
        for (uint32_t r = 0; r < x->n; r++) sum += given(r, x->rank, i, b);
        return sum;
    case RG_KIND_BROADCAST: return given(x->root, 0, i, b);
    case RG_KIND_SCATTER: return given(x->root, x->rank, i, b);
    case RG_KIND_ALL_TO_ALL: return given(s, x->rank, i, b);
    default: return given(s, 0, i, b); /* gather */
    }
}

static uint8_t *at(const area_t *a, row_shape_t rows, uint64_t i, size_t elem) {
    if (rows.row) i = i / rows.row * rows.pitch + i % rows.row;
    return a->base + i * elem;
}

static size_t extent(row_shape_t rows, uint64_t n) {
    return n == 0 ? 0 : rows.row ? (n - 1) / rows.row * rows.pitch + (n - 1) % rows.row + 1 : n;
}

static void area_make(area_t *a, size_t bytes, uint32_t skew, int side) {
    a->bytes = bytes + 2 * GUARD + 8;
    a->mem = malloc(a->bytes);
    a->was = malloc(a->bytes);
    memset(a->mem, side ? 0xb7 : 0xa5, a->bytes);
    a->base = a->mem + GUARD + skew;
}

static void put(const trial_t *x, uint8_t *p, double v) { pattern_store(x->t, p, v); }

/* Lays out and fills the buffers of one call. */
static void trial_make(trial_t *x) {
    size_t elem = rg_dtype_size(x->t);
    for (int b = 0; b < (x->list ? x->list : 1); b++) {
        uint64_t in = elems(x, 1, b), out = elems(x, 0, b);
        area_make(&x->out[b], extent(x->out_rows, out) * elem, x->skew, 0);
        area_make(&x->in[b], extent(x->in_rows, in) * elem, x->skew, 1);
        if (x->in_place && has_in(x) && has_out(x)) {
            int w = in_is_whole(x->kind);
            area_t *whole = w ? &x->in[b] : &x->out[b], *part = w ? &x->out[b] : &x->in[b];
            uint64_t off =
                !segmented(x->kind) || x->kind == RG_KIND_ALL_TO_ALL ? 0 : seg_off(x, in_is_whole(x->kind), x->rank, b);
            part->base = whole->base + off * elem;
        }
        if (!has_in(x)) continue;
        for (uint32_t s = 0; s < segs(x, 1); s++)
            for (uint64_t i = 0, len = segmented(x->kind) ? seg_len(x, 1, seg_name(x, 1, s), b) : in; i < len; i++) {
                uint64_t off = is_whole(x, 1) ? seg_off(x, 1, s, b) : 0;
                uint32_t name = in_is_whole(x->kind) ? s : 0;
                put(x, at(&x->in[b], x->in_rows, off + i, elem), given(x->rank, name, i, b));
            }
    }
    for (int b = 0; b < (x->list ? x->list : 1); b++) {
        memcpy(x->in[b].was, x->in[b].mem, x->in[b].bytes);
        memcpy(x->out[b].was, x->out[b].mem, x->out[b].bytes);
    }
}

static uint8_t *was_at(const trial_t *x, const uint8_t *p, int b) {
    const area_t *a = p >= x->in[b].mem && p < x->in[b].mem + x->in[b].bytes ? &x->in[b] : &x->out[b];
    return a->was + (p - a->mem);
}

/* Puts what is expected into the image of before, and compares all of the memory. 1: as it must be. */
static int trial_right(trial_t *x) {
    size_t elem = rg_dtype_size(x->t);
    int right = 1;
    for (int b = 0; b < (x->list ? x->list : 1); b++) {
        for (uint32_t s = 0; has_out(x) && s < segs(x, 0); s++)
            for (uint64_t i = 0, len = segmented(x->kind) ? seg_len(x, 0, seg_name(x, 0, s), b) : elems(x, 0, b);
                 i < len; i++) {
                uint64_t off = is_whole(x, 0) ? seg_off(x, 0, s, b) : 0;
                put(x, was_at(x, at(&x->out[b], x->out_rows, off + i, elem), b), expected(x, s, i, b));
            }
        right &= !memcmp(x->in[b].mem, x->in[b].was, x->in[b].bytes);
        right &= !memcmp(x->out[b].mem, x->out[b].was, x->out[b].bytes);
    }
    return right;
}

/* After an error: inputs are as they were, and so is everything that no element of OUT is in. */
static int trial_intact(trial_t *x) {
    size_t elem = rg_dtype_size(x->t);
    int right = 1;
    for (int b = 0; b < (x->list ? x->list : 1); b++) {
        int same = x->in_place && has_in(x) && has_out(x);
        for (uint32_t s = 0; !same && has_out(x) && s < segs(x, 0); s++)
            for (uint64_t i = 0, len = segmented(x->kind) ? seg_len(x, 0, seg_name(x, 0, s), b) : elems(x, 0, b);
                 i < len; i++) {
                uint64_t off = is_whole(x, 0) ? seg_off(x, 0, s, b) : 0;
                uint8_t *p = at(&x->out[b], x->out_rows, off + i, elem);
                memcpy(was_at(x, p, b), p, elem);
            }
        if (same && out_is_whole(x->kind) && x->kind != RG_KIND_ALL_TO_ALL) { /* the own segment alone is input */
            for (uint64_t i = 0; i < elems(x, 1, b); i++) {
                uint8_t *p = at(&x->in[b], x->in_rows, i, elem);
                right &= !memcmp(p, was_at(x, p, b), elem);
            }
            continue;
        }
        right &= !memcmp(x->in[b].mem, x->in[b].was, x->in[b].bytes);
        if (x->kind != RG_KIND_BROADCAST || !same) right &= !memcmp(x->out[b].mem, x->out[b].was, x->out[b].bytes);
    }
    return right;
}

static void trial_free(trial_t *x) {
    for (int b = 0; b < (x->list ? x->list : 1); b++) {
        free(x->in[b].mem);
        free(x->in[b].was);
        free(x->out[b].mem);
        free(x->out[b].was);
    }
}

static rg_status_t call_list(rg_group_t *g, trial_t *x, const rg_opts_t *o, rg_request_t **req) {
    const void *in[LIST_MAX];
    void *out[LIST_MAX];
    uint32_t n = (uint32_t)x->list;
    for (uint32_t b = 0; b < n; b++) {
        in[b] = x->in[b].base;
        out[b] = x->out[b].base;
    }
    switch (x->kind) {
    case RG_KIND_BROADCAST: return rg_broadcast_list(g, out, x->list_counts, n, x->t, x->root, o, req);
    case RG_KIND_ALL_GATHER: return rg_all_gather_list(g, in, out, x->list_counts, n, x->t, o, req);
    case RG_KIND_REDUCE_SCATTER: return rg_reduce_scatter_list(g, in, out, x->list_counts, n, x->t, x->op, o, req);
    default: return rg_all_reduce_list(g, in, out, x->list_counts, n, x->t, x->op, o, req);
    }
}

static rg_status_t call_v(rg_group_t *g, trial_t *x, const rg_opts_t *o, rg_request_t **req) {
    const void *in = x->in[0].base;
    void *out = x->out[0].base;
    switch (x->kind) {
    case RG_KIND_ALL_GATHER: return rg_all_gather_v(g, in, out, x->counts, x->offs, x->t, o, req);
    case RG_KIND_REDUCE_SCATTER: return rg_reduce_scatter_v(g, in, out, x->counts, x->offs, x->t, x->op, o, req);
    case RG_KIND_GATHER: return rg_gather_v(g, in, out, x->counts, x->offs, x->t, x->root, o, req);
    case RG_KIND_SCATTER: return rg_scatter_v(g, in, out, x->counts, x->offs, x->t, x->root, o, req);
    default: return rg_all_to_all_v(g, in, x->in_counts, x->in_offs, out, x->counts, x->offs, x->t, o, req);
    }
}

static rg_status_t call(rg_group_t *g, trial_t *x, const rg_opts_t *opts, rg_request_t **req) {
    rg_opts_t o = opts ? *opts : (rg_opts_t)RG_OPTS_INIT;
    const rg_strided_t in_rows = { x->in_rows.row, x->in_rows.pitch },
                       out_rows = { x->out_rows.row, x->out_rows.pitch };
    const void *in = x->in[0].base;
    void *out = x->out[0].base;
    if (x->in_rows.row) o.in_strided = &in_rows;
    if (x->out_rows.row) o.out_strided = &out_rows;
    if (x->list) return call_list(g, x, &o, req);
    if (x->v) return call_v(g, x, &o, req);
    switch (x->kind) {
    case RG_KIND_ALL_REDUCE: return rg_all_reduce(g, in, out, x->count, x->t, x->op, &o, req);
    case RG_KIND_REDUCE: return rg_reduce(g, in, out, x->count, x->t, x->op, x->root, &o, req);
    case RG_KIND_BROADCAST: return rg_broadcast(g, out, x->count, x->t, x->root, &o, req);
    case RG_KIND_ALL_GATHER: return rg_all_gather(g, in, out, x->count, x->t, &o, req);
    case RG_KIND_REDUCE_SCATTER: return rg_reduce_scatter(g, in, out, x->count, x->t, x->op, &o, req);
    case RG_KIND_GATHER: return rg_gather(g, in, out, x->count, x->t, x->root, &o, req);
    case RG_KIND_SCATTER: return rg_scatter(g, in, out, x->count, x->t, x->root, &o, req);
    default: return rg_all_to_all(g, in, out, x->count, x->t, &o, req);
    }
}

static const rg_kind_t kinds[] = { RG_KIND_ALL_REDUCE, RG_KIND_BROADCAST, RG_KIND_ALL_GATHER, RG_KIND_REDUCE_SCATTER,
                                   RG_KIND_REDUCE,     RG_KIND_GATHER,    RG_KIND_SCATTER,    RG_KIND_ALL_TO_ALL };
#define KINDS (sizeof kinds / sizeof *kinds)

/* ---- Random shapes ----------------------------------------------------------------------------------------------- */

/* Lengths between two members, equal for who sends and who receives. */
static uint64_t pair_count(uint64_t seed, uint32_t from, uint32_t to, uint64_t most) {
    uint64_t s = seed ^ (from * 1000003u + to * 7919u);
    uint64_t x = rig_random(&s);
    return x % 3 == 0 ? 0 : (x >> 8) % (most + 1);
}

static void spread(uint64_t *state, const uint64_t *counts, uint64_t *offs, uint32_t n) {
    uint64_t off = rig_random(state) % 3;
    uint32_t first = (uint32_t)(rig_random(state) % n); /* in a turned order, with gaps */
    for (uint32_t k = 0; k < n; k++) {
        offs[(first + k) % n] = off;
        off += counts[(first + k) % n] + rig_random(state) % 4;
    }
}

/* The same on all members but for what depends on the rank. */
static void trial_random(trial_t *x, uint64_t seed, uint32_t n, uint32_t rank, uint64_t most, uint32_t forms) {
    uint64_t s = seed, own = seed * 31 + rank;
    memset(x, 0, sizeof *x);
    x->kind = kinds[rig_random(&s) % KINDS];
    x->t = (rg_dtype_t)(rig_random(&s) % RG_DTYPE_COUNT);
    x->op = RG_SUM;
    x->n = n;
    x->rank = rank;
    x->root = (uint32_t)(rig_random(&s) % n);
    x->count = rig_random(&s) % 4 == 0 ? rig_random(&s) % 6 : rig_random(&s) % (most + 1);
    x->in_place = x->kind == RG_KIND_BROADCAST || rig_random(&s) % 3 == 0;
    uint32_t form = (uint32_t)(rig_random(&s) % forms);
    x->skew = (uint32_t)(rig_random(&own) % 8);
    if (form == 1 && segmented(x->kind)) {
        x->v = 1;
        for (uint32_t r = 0; r < n; r++) {
            int all = x->kind == RG_KIND_ALL_TO_ALL;
            x->counts[r] = all ? pair_count(seed, r, rank, x->count) : pair_count(seed, r, r, x->count);
            x->in_counts[r] = pair_count(seed, rank, r, x->count);
        }
        spread(&own, x->counts, x->offs, n);
        spread(&own, x->in_counts, x->in_offs, n);
        if (x->kind == RG_KIND_ALL_TO_ALL) x->in_place = 0; /* counts differ */
    } else if (form == 2 && (x->kind == RG_KIND_ALL_REDUCE || x->kind == RG_KIND_BROADCAST ||
                             x->kind == RG_KIND_ALL_GATHER || x->kind == RG_KIND_REDUCE_SCATTER)) {
        x->list = 1 + (int)(rig_random(&s) % LIST_MAX);
        for (int b = 0; b < x->list; b++) x->list_counts[b] = rig_random(&s) % 4 ? rig_random(&s) % (most / 2 + 1) : 0;
    } else if (form == 3) {
        if (rig_random(&own) % 3) x->out_rows.row = 1 + rig_random(&own) % 9;
        x->out_rows.pitch = x->out_rows.row ? x->out_rows.row + rig_random(&own) % 5 : 0;
        if (rig_random(&own) % 3) x->in_rows.row = 1 + rig_random(&own) % 9;
        x->in_rows.pitch = x->in_rows.row ? x->in_rows.row + rig_random(&own) % 5 : 0;
        if (x->in_place) { /* both must be laid out alike, and a segment must begin with a row: only whole buffers here
                            */
            x->in_rows = x->out_rows;
            if (segmented(x->kind) && x->kind != RG_KIND_ALL_TO_ALL) x->in_place = 0;
        }
        if (x->kind == RG_KIND_BROADCAST) x->in_rows = x->out_rows;
    }
}

static const char *trial_text(const trial_t *x, char *buf, size_t cap) {
    snprintf(buf, cap, "%s %s of %llu, root %u, rank %u of %u,%s%s list %d, rows %llu/%llu and %llu/%llu",
             rg_kind_name(x->kind), rg_dtype_name(x->t), (unsigned long long)x->count, x->root, x->rank, x->n,
             x->in_place ? " in place," : "", x->v ? " segments," : "", x->list, (unsigned long long)x->in_rows.row,
             (unsigned long long)x->in_rows.pitch, (unsigned long long)x->out_rows.row,
             (unsigned long long)x->out_rows.pitch);
    return buf;
}

struct plan {
    uint64_t seed, most;
    uint32_t rounds, forms;
};

static int random_calls(rig_member_t *m, void *arg) {
    const struct plan *p = arg;
    char text[256];
    for (uint32_t i = 0; i < p->rounds; i++) {
        trial_t x;
        trial_random(&x, p->seed * 100000 + i, m->rig->n, m->index, p->most, p->forms);
        trial_make(&x);
        rg_status_t st = call(m->g, &x, NULL, NULL);
        int right = st == RG_OK && trial_right(&x);
        trial_free(&x);
        RIG_NEED(m, right, "call %u: %s: %s (%s)", i, trial_text(&x, text, sizeof text), rg_status_name(st),
                 rig_errmsg(m));
    }
    RIG_OK(m, rg_group_leave(m->g));
    return 0;
}

static void run_random(const char *transport, uint64_t base, uint64_t most, uint32_t rounds, uint32_t small_bytes) {
    for (uint32_t n = 1; n <= 5; n++) {
        struct plan p = { rig_seed(base + n), most, rounds / RIG_SLOW + 1, 4 };
        rg_config_t c = RG_CONFIG_INIT;
        c.small_bytes = small_bytes;
        rig_run(n, transport, &c, random_calls, &p);
    }
}

Test(collectives, every_kind_and_form__small__as_the_reference, .timeout = 120) { run_random("inproc", 1, 40, 600, 0); }

/* Everything ends with the barrier, and pipelines in pieces. */
Test(collectives, every_kind_and_form__as_if_large__as_the_reference, .timeout = 120) {
    run_random("inproc", 11, 300, 400, 8);
}

Test(collectives, every_kind_and_form__large__as_the_reference, .timeout = 120) {
    run_random("inproc", 21, 60000, 40, 0);
}

Test(collectives, every_kind_and_form__tcp__as_the_reference, .timeout = 120) { run_random("tcp", 31, 3000, 150, 64); }

Test(collectives, every_kind_and_form__shared_memory__as_the_reference, .timeout = 120) {
    run_random("shm", 41, 3000, 150, 64);
    run_random("shm", 51, 60000, 30, 0);
}

/* ---- Factors and weights ----------------------------------------------------------------------------------------- */

static int near(double a, double b, double part) {
    double d = a > b ? a - b : b - a, m = b < 0 ? -b : b;
    return d <= part * m + 1e-300;
}

/* Scaled before by member, scaled after, and weighted, of every reducing kind, in place and not. */
static int scaled_one(rig_member_t *m, rg_kind_t kind, rg_op_t op, uint64_t count, int in_place, int weighted) {
    uint32_t n = m->rig->n, me = m->index;
    uint64_t in_n = kind == RG_KIND_REDUCE_SCATTER ? count * n : count;
    double *in = malloc((in_n + 1) * sizeof *in), *was = malloc((in_n + 1) * sizeof *in),
           *apart = malloc((count + 1) * sizeof *in);
    double *out = !in_place ? apart : kind == RG_KIND_REDUCE_SCATTER ? in + me * count : in, weights = 0;
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    o.result = &res;
    o.scale = 0.5 + me;
    o.scale_after = weighted ? 0 : 4;
    o.weighted = weighted ? RG_ON : RG_OFF;
    o.weight = me == 1 ? 0 : me + 1;
    for (uint64_t i = 0; i < in_n; i++) in[i] = was[i] = 1 + value(me, i);
    if (weighted && me == 1) in[0] = was[0] = __builtin_nan(""); /* counts for nothing */
    rg_status_t st = kind == RG_KIND_ALL_REDUCE ? rg_all_reduce(m->g, in, out, count, RG_F64, op, &o, NULL)
                     : kind == RG_KIND_REDUCE   ? rg_reduce(m->g, in, out, count, RG_F64, op, n - 1, &o, NULL)
                                                : rg_reduce_scatter(m->g, in, out, count, RG_F64, op, &o, NULL);
    for (uint32_t r = 0; r < n; r++) weights += r == 1 ? 0 : r + 1;
    uint64_t wrong = 0, first = kind == RG_KIND_REDUCE_SCATTER ? me * count : 0;
    for (uint64_t i = 0; i < count && (kind != RG_KIND_REDUCE || me == n - 1); i++) {
        double sum = 0;
        for (uint32_t r = 0; r < n; r++) {
            double x = (1 + value(r, first + i)) * (0.5 + r);
            sum += !weighted ? x : r == 1 ? 0 : x * ((r + 1) / weights);
        }
        if (!weighted) sum *= op == RG_AVG ? 4.0 / n : 4.0;
        wrong += !near(out[i], sum, 1e-12);
    }
    for (uint64_t i = 0; i < in_n; i++) { /* what no result covers is as it was */
        int covered = in_place && (kind != RG_KIND_REDUCE || me == n - 1) && i >= first && i < first + count;
        wrong += !covered && memcmp(&in[i], &was[i], sizeof *in) != 0;
    }
    free(in);
    free(was);
    free(apart);
    RIG_NEED(m, st == RG_OK && !wrong, "%s %s of %llu%s%s: %s (%s), %llu wrong", rg_kind_name(kind), rg_op_name(op),
             (unsigned long long)count, in_place ? " in place" : "", weighted ? " weighted" : "", rg_status_name(st),
             rig_errmsg(m), (unsigned long long)wrong);
    RIG_NEED(m, res.weight_sum == (weighted ? weights : 0), "weight_sum is %g", res.weight_sum);
    return 0;
}

static int scaled_all(rig_member_t *m, void *arg) {
    static const rg_kind_t of[] = { RG_KIND_ALL_REDUCE, RG_KIND_REDUCE, RG_KIND_REDUCE_SCATTER };
    static const uint64_t counts[] = { 0, 1, 100, 20000 };
    (void)arg;
    for (int k = 0; k < 3; k++)
        for (int c = 0; c < 4; c++)
            for (int how = 0; how < 6; how++)
                if (scaled_one(m, of[k], how < 2 ? RG_SUM : RG_AVG, counts[c], how & 1, how >= 4)) return 1;
    return 0;
}

Test(collectives, scale_and_weight__every_reduction__as_the_reference) {
    for (uint32_t n = 1; n <= 4; n++) rig_run(n, "inproc", NULL, scaled_all, NULL);
}

/* Equal weights give back what all have, down to the smallest number of the type and up to the greatest. */
static int average_alike(rig_member_t *m, rg_kind_t kind, rg_dtype_t type, uint16_t code, uint64_t count) {
    size_t z = rg_dtype_size(type), n = m->rig->n * count;
    uint8_t *in = malloc(n * z), *out = calloc(n, z);
    rg_opts_t o = RG_OPTS_INIT;
    rg_status_t st;
    o.weighted = RG_ON;
    o.weight = 0.7;
    for (size_t i = 0; i < n; i++) memcpy(in + i * z, &code, z);
    if (kind == RG_KIND_ALL_REDUCE) st = rg_all_reduce(m->g, in, out, n, type, RG_AVG, &o, NULL);
    else st = rg_reduce_scatter(m->g, in, out, n = count, type, RG_AVG, &o, NULL);
    int same = st == RG_OK && !memcmp(in, out, n * z);
    uint16_t got = 0;
    memcpy(&got, out, z);
    free(in);
    free(out);
    RIG_NEED(m, same, "kind %d, %s, code 0x%x, %llu elements: %s, first 0x%x", kind, rg_dtype_name(type), code,
             (unsigned long long)count, rg_status_name(st), got);
    return 0;
}

static int averages_alike(rig_member_t *m, void *arg) {
    static const struct {
        rg_dtype_t type;
        uint16_t smallest, one, greatest;
    } of[] = { { RG_F8E4M3, 1, 0x38, 0x7e },
               { RG_F8E5M2, 1, 0x3c, 0x7b },
               { RG_F16, 1, 0x3c00, 0x7bff },
               { RG_BF16, 0x0400, 0x3f80, 0x7f7f } };
    (void)arg;
    for (int k = 0; k < 2; k++)
        for (int t = 0; t < 4; t++)
            for (uint64_t count = 1; count <= 30000; count *= 30000) {
                rg_kind_t kind = k ? RG_KIND_REDUCE_SCATTER : RG_KIND_ALL_REDUCE;
                if (average_alike(m, kind, of[t].type, of[t].smallest, count)) return 1;
                if (average_alike(m, kind, of[t].type, of[t].one, count)) return 1;
                if (average_alike(m, kind, of[t].type, of[t].greatest, count)) return 1;
            }
    return rig_gate(m, 0, m->rig->n); /* a reduce-scatter is not made again when somebody goes */
}

Test(collectives, equal_weights_and_values__narrow_types__the_value) {
    for (uint32_t n = 1; n <= 8; n++) rig_run(n, "inproc", NULL, averages_alike, NULL);
}

static int weights_of_nothing(rig_member_t *m, void *arg) {
    (void)arg;
    for (uint64_t count = 1; count < 100000; count *= 50) {
        float *x = malloc(count * sizeof *x);
        rg_opts_t o = RG_OPTS_INIT;
        o.weighted = RG_ON;
        for (uint64_t i = 0; i < count; i++) x[i] = 7;
        rg_status_t st = rg_all_reduce(m->g, x, x, count, RG_F32, RG_AVG, &o, NULL);
        int intact = x[0] == 7 && x[count - 1] == 7;
        free(x);
        RIG_NEED(m, st == RG_ERR_INVALID && intact, "%s, %s", rg_status_name(st), intact ? "intact" : "overwritten");
        RIG_NEED(m, strstr(rig_errmsg(m), "weights"), "text: %s", rig_errmsg(m));
    }
    return 0;
}

Test(collectives, all_weights_zero__invalid_everywhere_and_inputs_intact) {
    rig_run(3, "inproc", NULL, weights_of_nothing, NULL);
}

/* ---- Wrong calls ------------------------------------------------------------------------------------------------- */

#define REFUSED(m, call, status, word)                                                                                 \
    do {                                                                                                               \
        rg_status_t got_ = (call);                                                                                     \
        RIG_NEED(m, got_ == (status) && strstr(rig_errmsg(m), word), "%s: %s (%s)", #call, rg_status_name(got_),       \
                 rig_errmsg(m));                                                                                       \
    } while (0)

static int wrong_calls(rig_member_t *m, void *arg) {
    rg_group_t *g = m->g;
    float a[64] = { 0 }, b[64];
    int32_t k[8] = { 0 };
    uint64_t counts[2] = { 4, 4 }, offs[2] = { 0, 2 }, huge[2] = { 1ull << 61, 1ull << 61 };
    const rg_strided_t flat = { 8, 4 };
    (void)arg;
    REFUSED(m, rg_all_gather(g, NULL, b, 4, RG_F32, NULL, NULL), RG_ERR_INVALID, "NULL");
    REFUSED(m, rg_all_gather(g, b + 1, b, 4, RG_F32, NULL, NULL), RG_ERR_INVALID, "overlap");
    REFUSED(m, rg_all_gather_v(g, a, b, NULL, NULL, RG_F32, NULL, NULL), RG_ERR_INVALID, "counts");
    REFUSED(m, rg_all_gather_v(g, a, b, counts, offs, RG_F32, NULL, NULL), RG_ERR_INVALID, "overlap");
    REFUSED(m, rg_all_gather_v(g, a, b, huge, NULL, RG_F32, NULL, NULL), RG_ERR_INVALID, "memory");
    REFUSED(m, rg_all_to_all(g, a, b, UINT64_MAX / 2, RG_F32, NULL, NULL), RG_ERR_INVALID, "memory");
    REFUSED(m, rg_reduce(g, a, b, 4, RG_F32, RG_SUM, 2, NULL, NULL), RG_ERR_INVALID, "ranks 0 to 1");
    REFUSED(m, rg_send(g, a, 4, RG_F32, 9, NULL, NULL), RG_ERR_INVALID, "ranks 0 to 1");
    REFUSED(m, rg_reduce_scatter(g, k, k + 4, 2, RG_I32, RG_AVG, NULL, NULL), RG_ERR_NOTSUP, "integers");
    rg_opts_t o = RG_OPTS_INIT;
    o.scale = 2;
    REFUSED(m, rg_all_reduce(g, a, b, 4, RG_F32, RG_MIN, &o, NULL), RG_ERR_NOTSUP, "sums");
    REFUSED(m, rg_all_reduce(g, k, k, 4, RG_I32, RG_SUM, &o, NULL), RG_ERR_NOTSUP, "floating");
    REFUSED(m, rg_all_gather(g, a, b, 4, RG_F32, &o, NULL), RG_ERR_NOTSUP, "reductions");
    o.scale = 0;
    o.weighted = RG_ON;
    REFUSED(m, rg_all_reduce(g, a, b, 4, RG_F32, RG_SUM, &o, NULL), RG_ERR_INVALID, "RG_AVG");
    o.weight = -1;
    REFUSED(m, rg_all_reduce(g, a, b, 4, RG_F32, RG_AVG, &o, NULL), RG_ERR_INVALID, "weight");
    o = (rg_opts_t)RG_OPTS_INIT;
    o.in_strided = &flat;
    REFUSED(m, rg_all_reduce(g, a, b, 16, RG_F32, RG_SUM, &o, NULL), RG_ERR_INVALID, "pitch");
    o.in_strided = NULL;
    o.flags = 1;
    REFUSED(m, rg_barrier(g, &o, NULL), RG_ERR_NOTSUP, "flags");
    const void *in[2] = { a, a + 8 };
    void *out[2] = { b, b + 4 };
    uint64_t list_counts[2] = { 8, 8 };
    REFUSED(m, rg_all_reduce_list(g, in, out, list_counts, 2, RG_F32, RG_SUM, NULL, NULL), RG_ERR_INVALID, "overlap");
    RIG_OK(m, rg_all_reduce_list(g, NULL, NULL, NULL, 0, RG_F32, RG_SUM, NULL, NULL));
    RIG_OK(m, rg_all_to_all(g, NULL, NULL, 0, RG_F32, NULL, NULL));
    return 0;
}

Test(collectives, wrong_arguments__refused_with_the_reason) { rig_run(2, "inproc", NULL, wrong_calls, NULL); }

/* What programs have there where nothing is sent: -1, or what was left in the memory. */
static int offsets_of_nothing(rig_member_t *m, void *arg) {
    float a[4] = { 1, 2, 3, 4 }, b[4] = { 0 };
    uint64_t counts[2] = { 0, 3 }, offs[2] = { UINT64_MAX, 1 }, last[2] = { 1, 1 }, after[2] = { 3, 0 };
    uint64_t first[2] = { 2, 0 }, beyond[2] = { 2, UINT64_MAX - 1 }, none[2] = { 0, 0 };
    (void)arg;
    RIG_OK(m, rg_all_gather_v(m->g, a, b, counts, offs, RG_F32, NULL, NULL));
    RIG_NEED(m, b[0] == 0 && b[1] == 1 && b[3] == 3, "all_gather_v: %g %g %g %g", b[0], b[1], b[2], b[3]);
    RIG_OK(m, rg_reduce_scatter_v(m->g, a, b, first, beyond, RG_F32, RG_SUM, NULL, NULL));
    RIG_NEED(m, m->index || (b[0] == 6 && b[1] == 8), "reduce_scatter_v: %g %g", b[0], b[1]);
    RIG_OK(m, rg_gather_v(m->g, a, b, counts, offs, RG_F32, 0, NULL, NULL));
    RIG_OK(m, rg_scatter_v(m->g, a, b, first, beyond, RG_F32, 0, NULL, NULL));
    RIG_OK(m, rg_all_to_all_v(m->g, a, none, beyond, b, none, offs, RG_F32, NULL, NULL));
    RIG_OK(m, rg_all_to_all_v(m->g, a, last, after, b, last, NULL, RG_F32, NULL, NULL));
    RIG_NEED(m, b[0] == (m->index ? 1 : 4) && b[1] == b[0], "all_to_all_v: %g %g", b[0], b[1]);
    return 0;
}

Test(collectives, segments_without_elements__their_offsets_are_no_matter) {
    rig_run(2, "inproc", NULL, offsets_of_nothing, NULL);
}

/* ---- Different calls --------------------------------------------------------------------------------------------- */

/* What member 2 calls differs from what the others call, in one way after the other. */
static rg_status_t differing(rig_member_t *m, int how, float *in, float *out) {
    rg_group_t *g = m->g;
    int odd = m->index == 2;
    uint64_t counts[3] = { 5, odd && how == 3 ? 7u : 6u, 7 }, list[2] = { odd ? 3u : 4u, odd ? 5u : 4u };
    const void *ins[2] = { in, in + 10 };
    void *outs[2] = { out, out + 10 };
    uint64_t to[3] = { 4, 4, 4 }, from[3] = { 4, 4, 4 };
    rg_opts_t o = RG_OPTS_INIT;
    switch (how) {
    case 0: return rg_all_gather(g, in, out, odd ? 8 : 9, RG_F32, NULL, NULL);
    case 1:
        return odd ? rg_all_to_all(g, in, out, 9, RG_F32, NULL, NULL)
                   : rg_all_gather(g, in, out, 9, RG_F32, NULL, NULL);
    case 2: return rg_reduce(g, in, out, 9, RG_F32, RG_SUM, odd, NULL, NULL);
    case 3: return rg_all_gather_v(g, in, out, counts, NULL, RG_F32, NULL, NULL);
    case 4: return rg_all_reduce_list(g, ins, outs, list, 2, RG_F32, RG_SUM, NULL, NULL);
    case 5: /* what 2 sends to 0 is not what 0 expects */
        if (odd) to[0] = 5;
        return rg_all_to_all_v(g, in, to, NULL, out, from, NULL, RG_F32, NULL, NULL);
    case 6: /* something and nothing */
        if (odd) to[1] = 0;
        return rg_all_to_all_v(g, in, to, NULL, out, from, NULL, RG_F32, NULL, NULL);
    case 7: o.scale_after = odd ? 2 : 3; return rg_all_reduce(g, in, out, 9, RG_F32, RG_SUM, &o, NULL);
    default:
        o.weighted = odd ? RG_ON : RG_OFF;
        o.weight = 1;
        return rg_all_reduce(g, in, out, 9, RG_F32, RG_AVG, &o, NULL);
    }
}

static int mismatched(rig_member_t *m, void *arg) {
    (void)arg;
    for (int how = 0; how < 9; how++) {
        float in[64], out[64];
        for (int i = 0; i < 64; i++) in[i] = out[i] = (float)i;
        rg_status_t st = differing(m, how, in, out);
        RIG_NEED(m, st == RG_ERR_MISMATCH, "difference %d: %s (%s)", how, rg_status_name(st), rig_errmsg(m));
        for (int i = 0; i < 64; i++) RIG_NEED(m, in[i] == (float)i, "difference %d: the input is overwritten", how);
        const char *word = how == 5 || how == 6 ? "number of elements" : "; rank";
        RIG_NEED(m, strstr(rig_errmsg(m), word), "difference %d: %s", how, rig_errmsg(m));
        RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    }
    return 0;
}

Test(collectives, different_calls__mismatch_everywhere, .timeout = 60) {
    rig_run(3, "inproc", NULL, mismatched, NULL);
    rig_run(3, "tcp", NULL, mismatched, NULL);
}

/* Each waits for another one, and nobody sends anything. */
static int all_wait(rig_member_t *m, void *arg) {
    float in[2000], out[2000];
    rg_info_t info = RG_INFO_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    rg_group_info(m->g, &info);
    o.timeout_ms = 50000;
    for (int i = 0; i < 2000; i++) in[i] = (float)i;
    for (int how = 0; how < 2; how++) {
        uint32_t root = (info.rank + 1) % info.world_size;
        uint64_t from = rig_now();
        rg_status_t st = how ? rg_scatter(m->g, in, out, 2000, RG_F32, root, &o, NULL)
                             : rg_broadcast(m->g, in, 2000, RG_F32, root, &o, NULL);
        uint64_t took = rig_now() - from;
        RIG_NEED(m, st == RG_ERR_MISMATCH && strstr(rig_errmsg(m), "; rank"), "%s (%s)", rg_status_name(st),
                 rig_errmsg(m));
        RIG_NEED(m, (double)took / 1e6 < 25000 + rig_late_ms(from), "after %llu ms",
                 (unsigned long long)(took / 1000000));
        for (int i = 0; i < 2000; i++) RIG_NEED(m, in[i] == (float)i, "the input is overwritten");
        RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    }
    return 0;
}

Test(collectives, another_root_each_and_nobody_sends__mismatch_long_before_the_deadline, .timeout = 100) {
    static const char *const by[] = { "inproc", "tcp", "shm" };
    for (int i = 0; i < 3; i++)
        for (uint32_t n = 2; n <= 3; n++) rig_run(n, by[i], NULL, all_wait, NULL);
}

/* ---- Faults ------------------------------------------------------------------------------------------------------ */

#define FAULT_OPS 60

struct outcomes {
    pthread_mutex_t lock;
    uint64_t seed, most;
    uint32_t victim, after; /* operation in which it dies */
    struct {
        int known;
        rg_status_t st;
        uint32_t contributors;
    } op[FAULT_OPS];
};

static int same_outcome(rig_member_t *m, struct outcomes *o, uint32_t i, rg_status_t st, uint32_t contributors) {
    pthread_mutex_lock(&o->lock);
    if (!o->op[i].known) {
        o->op[i].known = 1;
        o->op[i].st = st;
        o->op[i].contributors = contributors;
    }
    rg_status_t want = o->op[i].st;
    uint32_t n = o->op[i].contributors;
    pthread_mutex_unlock(&o->lock);
    RIG_NEED(m, st == want && (st != RG_OK || n == contributors), "operation %u: %s of %u here, %s of %u elsewhere", i,
             rg_status_name(st), contributors, rg_status_name(want), n);
    return 0;
}

/* What is to be hit: mostly what writes over its own input, and takes a while. */
static void fault_trial(const struct outcomes *o, uint32_t i, trial_t *x, uint32_t n, uint32_t rank) {
    static const rg_kind_t over[] = { RG_KIND_ALL_REDUCE, RG_KIND_REDUCE, RG_KIND_REDUCE_SCATTER, RG_KIND_ALL_TO_ALL };
    uint64_t s = o->seed;
    trial_random(x, o->seed * 1000 + i, n, rank, o->most, 4);
    if (i != o->after || o->seed % 3 == 0) return;
    memset(x, 0, sizeof *x);
    *x = (trial_t){ .kind = over[rig_random(&s) % 4], .t = RG_F32, .op = RG_SUM, .n = n, .rank = rank };
    x->count = o->most;
    x->in_place = 1;
}

/* A call with the world as it is; whoever is lost meanwhile changes what was asked for, not what is judged here. */
static int faulty_call(rig_member_t *m, struct outcomes *o, uint32_t i) {
    trial_t x;
    char text[256];
    uint64_t ids[RIG_MAX];
    rg_info_t info = RG_INFO_INIT;
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t opts = RG_OPTS_INIT;
    RIG_OK(m, rg_group_info(m->g, &info));
    uint32_t n = info.world_size;
    fault_trial(o, i, &x, n, info.rank);
    res.contributor_ids = ids;
    res.contributor_cap = RIG_MAX;
    opts.result = &res;
    opts.on_fault = RG_RETURN; /* retried reductions would need the reference of those who are left */
    trial_make(&x);
    rg_status_t st = call(m->g, &x, &opts, NULL);
    int bad = 0;
    if (st == RG_OK && res.contributors == n) bad = !trial_right(&x);
    else if (st != RG_OK) bad = !trial_intact(&x);
    trial_free(&x);
    RIG_NEED(m, !bad, "operation %u: %s: %s: memory is not what it must be", i, trial_text(&x, text, sizeof text),
             rg_status_name(st));
    RIG_NEED(m, st == RG_OK || st == RG_ERR_PEER_LOST || st == RG_ERR_ROOT_LOST || st == RG_ERR_MISMATCH,
             "operation %u: %s: %s (%s)", i, trial_text(&x, text, sizeof text), rg_status_name(st), res.text);
    if (same_outcome(m, o, i, st, res.contributors)) return 1;
    do RIG_OK(m, rg_group_info(m->g, &info)); /* the next one is called by ranks that all know */
    while (i == o->after && info.world_size == m->rig->n);
    return 0;
}

/* To die is to be aborted by another thread, at some moment of an operation. */
static void *killer(void *arg) {
    rig_member_t *m = arg;
    struct outcomes *o = m->rig->arg;
    uint64_t s = o->seed * 77, until = rig_now() + rig_random(&s) % 300000;
    while (rig_now() < until) {}
    rg_group_abort(m->g);
    return NULL;
}

static int faulty(rig_member_t *m, void *arg) {
    struct outcomes *o = arg;
    pthread_t t;
    int dying = m->index == o->victim;
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    for (uint32_t i = 0; i < FAULT_OPS; i++) {
        if (dying && i == o->after) {
            trial_t x;
            fault_trial(o, i, &x, m->rig->n, m->index);
            trial_make(&x);
            pthread_create(&t, NULL, killer, m);
            rg_status_t st = call(m->g, &x, NULL, NULL);
            pthread_join(t, NULL);
            int intact = st == RG_OK || trial_intact(&x);
            trial_free(&x);
            RIG_NEED(m, intact, "the dying member's input is not intact");
            return 0;
        }
        if (faulty_call(m, o, i)) return 1;
    }
    return rig_gate(m, 0, m->rig->n - 1); /* to go is to die, to those who have not finished */
}

Test(collectives, member_dies_in_any_kind__same_outcome_for_all_and_memory_intact, .timeout = 240) {
    for (uint32_t round = 0; round < 24 / RIG_SLOW + 1; round++) {
        struct outcomes o = { .lock = PTHREAD_MUTEX_INITIALIZER,
                              .seed = rig_seed(500 + round),
                              .most = round % 2 ? 300 : 30000,
                              .victim = round % 4,
                              .after = 3 + round % 20 };
        rg_config_t c = RG_CONFIG_INIT;
        c.small_bytes = round % 3 ? 64 : 0;
        rig_run(4, round % 4 == 3 ? "tcp" : round % 4 == 2 ? "shm" : "inproc", &c, faulty, &o);
    }
}

/* ---- Deadlines and cancellations --------------------------------------------------------------------------------- */

/* Every member has a deadline of its own, or cancels, or comes late: there is one outcome all the same. */
static int hasty(rig_member_t *m, void *arg) {
    struct outcomes *o = arg;
    uint64_t s = o->seed * 31 + m->index;
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    for (uint32_t i = 0; i < FAULT_OPS; i++) {
        trial_t x;
        char text[256];
        rg_request_t *req = NULL;
        rg_result_t res = RG_RESULT_INIT;
        rg_opts_t opts = RG_OPTS_INIT;
        trial_random(&x, o->seed * 1000 + i, m->rig->n, m->index, o->most, 4);
        trial_make(&x);
        uint64_t how = i % 3 ? rig_random(&s) : 0, until = rig_now() + (how >> 32) % 3000000;
        if (how % 4 == 1) opts.timeout_ms = 1 + how % 3;
        while (how % 4 == 2 && rig_now() < until) sched_yield();
        rg_status_t st = call(m->g, &x, &opts, &req);
        if (st == RG_OK && how % 4 == 3) st = rg_cancel(req);
        if (st == RG_OK) st = rg_wait(req, &res);
        int bad = st == RG_OK ? !trial_right(&x) : !trial_intact(&x);
        trial_free(&x);
        RIG_NEED(m, !bad && (st == RG_OK || st == RG_ERR_TIMEOUT || st == RG_ERR_CANCELLED),
                 "operation %u: %s: %s (%s)", i, trial_text(&x, text, sizeof text), rg_status_name(st), res.text);
        if (same_outcome(m, o, i, st, res.contributors)) return 1;
    }
    return rig_gate(m, 0, m->rig->n);
}

Test(collectives, own_deadlines_and_cancellations__same_outcome_for_all_and_memory_intact, .timeout = 120) {
    for (uint32_t round = 0; round < 12 / RIG_SLOW + 1; round++) {
        struct outcomes o = { .lock = PTHREAD_MUTEX_INITIALIZER,
                              .seed = rig_seed(900 + round),
                              .most = round % 2 ? 300 : 30000 };
        rg_config_t c = RG_CONFIG_INIT;
        c.small_bytes = round % 3 ? 64 : 0;
        rig_run(2 + round % 3, round % 4 == 3 ? "tcp" : round % 4 == 2 ? "shm" : "inproc", &c, hasty, &o);
    }
}

/* ---- Shapes of an earlier view ----------------------------------------------------------------------------------- */

/* Member 2 goes between two operations, one of which goes on without it and says so only to who asks. Who did not ask
 * would gather segments of the wrong members: the next operation with segments ends, once, for all. */
static int unaware(rig_member_t *m, void *arg) {
    float x = 1, sum = 0, all[3] = { -1, -1, -1 };
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    rg_info_t info = RG_INFO_INIT;
    (void)arg;
    o.result = &res;
    RIG_OK(m, rg_all_gather(m->g, &x, all, 1, RG_F32, NULL, NULL));
    if (m->index == 2) {
        RIG_OK(m, rg_group_abort(m->g));
        return 0;
    }
    for (sum = 3; sum != 2;) RIG_OK(m, rg_all_reduce(m->g, &x, &sum, 1, RG_F32, RG_SUM, NULL, NULL));
    if (m->index == 0) RIG_OK(m, rg_group_info(m->g, &info)); /* knows, and is told as well */
    all[0] = all[1] = all[2] = -1;
    rg_status_t st = rg_all_gather(m->g, &x, all, 1, RG_F32, NULL, NULL);
    RIG_NEED(m, st == RG_ERR_PEER_LOST && all[2] == -1, "%s", rg_status_name(st));
    st = rg_all_gather(m->g, &x, all, 1, RG_F32, &o, NULL);
    RIG_NEED(m, st == RG_OK && res.contributors == 2 && all[1] == 1 && all[2] == -1, "%s", rg_status_name(st));
    return 0;
}

Test(collectives, world_has_shrunk_unnoticed__operation_with_segments_ends_once) {
    rig_run(3, "inproc", NULL, unaware, NULL);
}
