/* collective.c: collectives of which quantised bytes travel, made of two operations of the group: an all-to-all that
 * brings every member's encoded share of a slice to the slice's owner, and an all-gather of what the owners made of
 * them. Every part begins with a head that says what its sender takes the call for, so that all members come to one
 * conclusion from the same heads. Relies on the public operations ending alike on all members, and on the codecs; must
 * not touch the caller's output before the last part has ended well. */
#include "assume.h"
#include "api.h"
#include "config.h"
#include "regroup_quant.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Calls that did not fit together because one of them knew of a loss and another did not are made again; if it was the
 * arguments that differ, they differ again. */
#define FITS 3

typedef struct head {
    uint64_t call;  /* hash of what is done with how many elements in which form */
    uint64_t epoch; /* of the members for whom the shares were cut */
    double bound;
    uint32_t finite;
} head_t;

/* Of a head before its part: its fields in this order, the lowest byte first, and four bytes of 0. */
#define HEAD_BYTES 32u

/* Growing memory. */
typedef struct room {
    uint8_t *p;
    uint64_t cap;
} room_t;

struct rg_quantiser {
    rg_group_t *g;
    rg_quant_t q;
    rg_feedback_t f;
    int feeds;
    uint64_t calls; /* numbers what is encoded, for stochastic rounding */
    double bound;
    float *kept, *next; /* next: m, and then what will be kept */
    uint64_t n_kept, n_next;
    room_t out, in, sum, piece;
    uint64_t *sizes; /* four arrays of cap_n */
    uint32_t cap_n;
};

/* One attempt. */
typedef struct attempt {
    rg_quantiser_t *z;
    const char *name;
    const float *in;
    uint64_t count, unit, call;
    rg_op_t op;
    int equal; /* slices are segments of count elements, not parts of count */
    uint32_t n, rank;
    uint64_t epoch;
    double bound;
    uint64_t deadline;
    int finite; /* all that this member puts in, which its heads to everybody say */
    rg_opts_t o;
    rg_result_t r;
} attempt_t;

/* ---- Memory ------------------------------------------------------------------------------------------------- */

static int room_for(room_t *r, uint64_t bytes) {
    if (bytes <= r->cap) return 1;
    if (bytes > SIZE_MAX) return 0;
    free(r->p);
    r->p = malloc((size_t)bytes);
    r->cap = r->p != NULL ? bytes : 0;
    return r->p != NULL;
}

static void put_u64(uint8_t *to, uint64_t v) {
    for (int i = 0; i < 8; i++) to[i] = (uint8_t)(v >> 8 * i);
}

static uint64_t get_u64(const uint8_t *from) {
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v |= (uint64_t)from[i] << 8 * i;
    return v;
}

static void put_head(uint8_t *to, const head_t *h) {
    uint64_t bound;
    memcpy(&bound, &h->bound, sizeof bound);
    put_u64(to, h->call);
    put_u64(to + 8, h->epoch);
    put_u64(to + 16, bound);
    put_u64(to + 24, h->finite);
}

/* A bound that is no number, which no sender of this library makes, counts as one that says nothing. */
static head_t get_head(const uint8_t *from) {
    head_t h = { .call = get_u64(from), .epoch = get_u64(from + 8), .finite = (uint32_t)get_u64(from + 24) };
    uint64_t bound = get_u64(from + 16);
    memcpy(&h.bound, &bound, sizeof bound);
    if (!(h.bound >= 0)) h.bound = INFINITY;
    return h;
}

static int floats_for(float **p, uint64_t *have, uint64_t n) {
    if (*have == n) return 1;
    if (n > SIZE_MAX / sizeof **p) return 0;
    float *v = calloc(n != 0 ? (size_t)n : 1, sizeof *v);
    if (v == NULL) return 0;
    free(*p);
    *p = v;
    *have = n;
    return 1;
}

static int sizes_for(rg_quantiser_t *z, uint32_t n) {
    if (n <= z->cap_n) return 1;
    uint64_t *v = malloc(4 * (size_t)n * sizeof *v);
    if (v == NULL) return 0;
    free(z->sizes);
    z->sizes = v;
    z->cap_n = n;
    return 1;
}

rg_status_t rg_quantiser_create(rg_group_t *group, const rg_quant_t *q, const rg_feedback_t *feedback,
                                rg_quantiser_t **out, rg_error_t *err) {
    if (out == NULL || group == NULL || q == NULL)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_quantiser_create: %s is NULL",
                       out == NULL     ? "out"
                       : group == NULL ? "group"
                                       : "q");
    if (q->size != sizeof *q || (feedback != NULL && feedback->size != sizeof *feedback))
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_quantiser_create: %s is not initialised: use %s",
                       q->size != sizeof *q ? "q" : "feedback",
                       q->size != sizeof *q ? "RG_QUANT_INIT" : "RG_FEEDBACK_INIT");
    float x = 0;
    uint8_t w[16];
    if (rg_quant_encode(q, 0, 0, &x, 1, w) != RG_OK)
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "rg_quantiser_create: wire form %d, flags %#x, scale %g: one of them is unknown or not allowed",
                       (int)q->wire, q->flags, (double)q->scale);
    if (feedback != NULL && (!isfinite(feedback->beta) || !(feedback->clip >= 0) || isinf(feedback->clip)))
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "rg_quantiser_create: beta and clip are finite, and clip is not negative");
    rg_quantiser_t *z = calloc(1, sizeof *z);
    if (z == NULL) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_quantiser_create: no memory");
    z->g = group;
    z->q = *q;
    z->feeds = feedback != NULL;
    if (feedback != NULL) z->f = *feedback;
    if (z->f.beta == 0.0f) z->f.beta = 1.0f;
    *out = z;
    return RG_OK;
}

void rg_quantiser_destroy(rg_quantiser_t *z) {
    if (z == NULL) return;
    free(z->kept);
    free(z->next);
    free(z->out.p);
    free(z->in.p);
    free(z->sum.p);
    free(z->piece.p);
    free(z->sizes);
    free(z);
}

double rg_quantiser_bound(const rg_quantiser_t *z) { return z != NULL ? z->bound : 0; }

float *rg_quantiser_kept(rg_quantiser_t *z, uint64_t *n) {
    if (n != NULL) *n = z != NULL ? z->n_kept : 0;
    return z != NULL ? z->kept : NULL;
}

rg_status_t rg_quantiser_keep(rg_quantiser_t *z, uint64_t n) {
    if (z == NULL || !z->feeds) return RG_ERR_INVALID;
    return floats_for(&z->kept, &z->n_kept, n) ? RG_OK : RG_ERR_NOMEM;
}

/* ---- Slices ------------------------------------------------------------------------------------------------- */

/* Where slice r begins: whole units shared out evenly, the first ranks having one more where it does not divide. */
static uint64_t slice_at(const attempt_t *a, uint32_t r) {
    if (a->equal) return a->count * r;
    RG_ASSUME(a->n); /* a group has members */
    uint64_t units = a->count / a->unit + (a->count % a->unit != 0), each = units / a->n, more = units % a->n;
    uint64_t at = (each * r + (r < more ? r : more)) * a->unit;
    return at < a->count ? at : a->count;
}

static uint64_t slice_len(const attempt_t *a, uint32_t r) { return slice_at(a, r + 1) - slice_at(a, r); }

/* Of a head and the encoded slice. */
static uint64_t part_bytes(const attempt_t *a, uint32_t r) {
    return HEAD_BYTES + rg_quant_bytes(a->z->q.wire, slice_len(a, r));
}

static uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

static uint64_t call_of(const attempt_t *a, uint64_t kind) {
    uint32_t scale;
    memcpy(&scale, &a->z->q.scale, sizeof scale);
    return mix(mix(mix(mix(mix(kind, a->count), a->op), a->z->q.wire), a->z->q.flags), scale);
}

/* ---- Saying and hearing ------------------------------------------------------------------------------------- */

/* How many of n elements are decoded at a time to see what is to be kept: a block, which may be all. */
static uint64_t piece_of(const rg_quantiser_t *z, uint64_t n) {
    uint64_t block = rg_quant_block(z->q.wire);
    return block == 0 ? n : block > 1 ? block : 256;
}

/* Encodes a slice of v behind a head; 0 when it is not finite. What is kept of it for the next time replaces it where
 * there is feedback; z->piece has room for a block. */
static int say(attempt_t *a, uint8_t *to, const float *v, uint64_t first, uint64_t n, float *kept) {
    rg_quantiser_t *z = a->z;
    head_t h = { .call = a->call, .epoch = a->epoch };
    uint8_t *w = to + HEAD_BYTES;
    h.finite = rg_quant_encode(&z->q, z->calls, first, v, n, w) == RG_OK;
    if (h.finite) h.bound = rg_quant_bound(&z->q, w, n);
    put_head(to, &h);
    if (kept == NULL || !h.finite) return h.finite;
    uint64_t step = piece_of(z, n);
    float *dec = (float *)z->piece.p;
    for (uint64_t i = 0; i < n; i += step) {
        uint64_t many = n - i < step ? n - i : step;
        rg_quant_decode(z->q.wire, w + rg_quant_bytes(z->q.wire, i), many, dec);
        for (uint64_t k = 0; k < many; k++) {
            float left = kept[i + k] - dec[k], clip = z->f.clip;
            if (!isfinite(left)) left = 0;
            if (clip > 0.0f) left = left < -clip ? -clip : left > clip ? clip : left;
            kept[i + k] = left;
        }
    }
    return 1;
}

/* What the heads say, all together; they are the same for everybody. at[r] is where rank r's is. RG_ERR_PEER_LOST: cut
 * for other views than this one, to be done again. */
static rg_status_t judge(attempt_t *a, const uint8_t *in, const uint64_t *at) {
    rg_status_t st = RG_OK;
    a->bound = 0;
    for (uint32_t r = 0; r < a->n; r++) {
        head_t h = { .call = a->call, .epoch = a->r.epoch, .finite = (uint32_t)a->finite };
        if (at[r] != UINT64_MAX) h = get_head(in + at[r]);
        if (h.epoch != a->r.epoch) return RG_ERR_PEER_LOST;
        if (h.call != a->call && st != RG_ERR_MISMATCH)
            st = rg_refuse(a->z->g, RG_ERR_MISMATCH,
                           "%s: rank %u calls it with another count, operator or wire form than rank %u", a->name, r,
                           a->rank);
        else if (!h.finite && st == RG_OK)
            st =
                rg_refuse(a->z->g, RG_ERR_INVALID,
                          "%s: rank %u has a value that is not finite; RG_QUANT_SATURATE would replace it", a->name, r);
        a->bound += h.bound;
    }
    return st;
}

/* What an operation of the group ended with, and whether it was in the view that this attempt is for. */
static rg_status_t ended(attempt_t *a, rg_status_t st) {
    if (st == RG_OK && (a->r.epoch != a->epoch || a->r.contributors != a->n)) return RG_ERR_PEER_LOST;
    return st;
}

/* What is left of the call's time, for its next part. Nobody stays away when there is none: the others may have some,
 * and wait; the operation itself ends at once then. */
static const rg_opts_t *in_time(attempt_t *a) {
    uint64_t now = rg_os_now_ns(), left = a->deadline > now ? (a->deadline - now) / 1000000 : 0;
    a->o.timeout_ms = left > 1 ? (uint32_t)left : 1;
    return &a->o;
}

static rg_status_t no_memory(attempt_t *a) { return rg_refuse(a->z->g, RG_ERR_NOMEM, "%s: no memory", a->name); }

/* Puts this member's own share of its slice into the sum, as it is, but for what RG_QUANT_SATURATE replaces. */
static void add_own(const attempt_t *a, float *sum, const float *v, uint64_t n) {
    if (!(a->z->q.flags & RG_QUANT_SATURATE)) {
        for (uint64_t i = 0; i < n; i++) sum[i] += v[i];
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        float most = copysignf(FLT_MAX, v[i]);
        sum[i] += isnan(v[i]) ? 0.0f : isinf(v[i]) ? most : v[i];
    }
}

/* Whether what is added as it is may be: all of it is finite, or will be. */
static int own_finite(const attempt_t *a, const float *v, uint64_t n) {
    int finite = 1;
    for (uint64_t i = 0; i < n; i++) finite &= isfinite(v[i]) != 0;
    return finite || (a->z->q.flags & RG_QUANT_SATURATE) != 0;
}

/* ---- The two parts ------------------------------------------------------------------------------------------ */

/* Everybody's share of this rank's slice, which becomes their sum (or average) in z->sum. Memory is taken before
 * anything is sent: a member that has none does not take part, and the others end by their deadline. */
static rg_status_t scatter(attempt_t *a, const float *v, float *kept) {
    rg_quantiser_t *z = a->z;
    uint64_t *out = z->sizes, *out_at = out + a->n, *in = out_at + a->n, *in_at = in + a->n, all_out = 0, all_in = 0;
    for (uint32_t r = 0; r < a->n; r++) {
        out[r] = r == a->rank ? 0 : part_bytes(a, r);
        in[r] = r == a->rank ? 0 : part_bytes(a, a->rank);
        out_at[r] = all_out;
        in_at[r] = all_in;
        all_out += out[r];
        all_in += in[r];
    }
    uint64_t mine = slice_len(a, a->rank), from = slice_at(a, a->rank);
    if (!room_for(&z->out, all_out) || !room_for(&z->in, all_in) || !room_for(&z->sum, mine * sizeof(float)))
        return no_memory(a);
    a->finite = own_finite(a, v + from, mine);
    for (uint32_t r = 0; r < a->n; r++) {
        uint64_t at = slice_at(a, r), n = slice_len(a, r);
        if (r != a->rank) a->finite &= say(a, z->out.p + out_at[r], v + at, at, n, kept != NULL ? kept + at : NULL);
    }
    /* Who gets a part that may be used has to know of the others too. */
    for (uint32_t r = 0; r < a->n; r++) {
        if (r == a->rank) continue;
        head_t h = get_head(z->out.p + out_at[r]);
        h.finite = (uint32_t)a->finite;
        put_head(z->out.p + out_at[r], &h);
    }
    z->calls++;
    rg_status_t st =
        ended(a, rg_all_to_all_v(z->g, z->out.p, out, out_at, z->in.p, in, in_at, RG_U8, in_time(a), NULL));
    if (st != RG_OK) return st;
    in_at[a->rank] = UINT64_MAX;
    st = judge(a, z->in.p, in_at);
    float *sum = (float *)z->sum.p;
    if (mine) memset(sum, 0, (size_t)mine * sizeof *sum); /* with nothing to sum there may be no memory */
    for (uint32_t r = 0; st == RG_OK && r < a->n; r++) {
        if (r == a->rank) add_own(a, sum, v + from, mine);
        else rg_quant_decode_add(z->q.wire, z->in.p + in_at[r] + HEAD_BYTES, mine, sum);
    }
    for (uint64_t i = 0; st == RG_OK && a->op == RG_AVG && i < mine; i++) sum[i] /= (float)a->n;
    if (a->op == RG_AVG) a->bound /= a->n;
    /* What is exact leaves nothing to be kept. */
    if (kept != NULL) memset(kept + from, 0, (size_t)mine * sizeof *kept);
    return st;
}

/* This rank's slice, in z->sum or `v`, to everybody; z->in then has all of them, from in_at[] on. */
static rg_status_t gather(attempt_t *a, const float *v, float *kept, double bound) {
    rg_quantiser_t *z = a->z;
    uint64_t *in = z->sizes, *in_at = in + a->n, all = 0;
    for (uint32_t r = 0; r < a->n; r++) {
        in[r] = part_bytes(a, r);
        in_at[r] = all;
        all += in[r];
    }
    if (!room_for(&z->out, in[a->rank]) || !room_for(&z->in, all)) return no_memory(a);
    say(a, z->out.p, v, slice_at(a, a->rank), slice_len(a, a->rank), kept);
    z->calls++;
    head_t h = get_head(z->out.p);
    h.bound += bound;
    put_head(z->out.p, &h);
    rg_status_t st = ended(a, rg_all_gather_v(z->g, z->out.p, z->in.p, in, in_at, RG_U8, in_time(a), NULL));
    return st != RG_OK ? st : judge(a, z->in.p, in_at);
}

/* The largest bound of all slices, and their values. */
static void take_all(attempt_t *a, float *out) {
    rg_quantiser_t *z = a->z;
    const uint64_t *in_at = z->sizes + a->n;
    a->bound = 0;
    for (uint32_t r = 0; r < a->n; r++) {
        a->bound = fmax(a->bound, get_head(z->in.p + in_at[r]).bound);
        rg_quant_decode(z->q.wire, z->in.p + in_at[r] + HEAD_BYTES, slice_len(a, r), out + slice_at(a, r));
    }
}

/* ---- Calls -------------------------------------------------------------------------------------------------- */

enum { ALL_REDUCE = 1, REDUCE_SCATTER, ALL_GATHER };

/* m = beta * kept + x, for n elements. NULL: no memory. */
static float *with_kept(rg_quantiser_t *z, const float *x, uint64_t n) {
    if (!floats_for(&z->next, &z->n_next, n)) return NULL;
    int has = z->n_kept == n && z->kept != NULL;
    for (uint64_t i = 0; i < n; i++) z->next[i] = has ? z->f.beta * z->kept[i] + x[i] : x[i];
    return z->next;
}

static rg_status_t attempt(attempt_t *a, int kind, float *out) {
    rg_quantiser_t *z = a->z;
    rg_status_t st = rg_shape(z->g, &a->n, &a->rank, &a->epoch);
    if (st != RG_OK) return st;
    a->call = call_of(a, (uint64_t)kind);
    uint64_t whole = kind == REDUCE_SCATTER ? a->count * a->n : a->count;
    const float *v = a->in;
    float *kept = NULL;
    if (!sizes_for(z, a->n)) return no_memory(a);
    if (z->feeds) {
        v = kept = with_kept(z, a->in, whole);
        if (v == NULL || !room_for(&z->piece, piece_of(z, whole) * sizeof *v)) return no_memory(a);
    }
    if (kind != ALL_GATHER) st = scatter(a, v, kept);
    if (st == RG_OK && kind == ALL_REDUCE) st = gather(a, (float *)z->sum.p, NULL, a->bound);
    if (st == RG_OK && kind == ALL_GATHER) st = gather(a, v, kept, 0);
    if (st != RG_OK) return st;
    if (kind == REDUCE_SCATTER) memcpy(out, z->sum.p, (size_t)a->count * sizeof *out);
    else take_all(a, out);
    return RG_OK;
}

static rg_status_t check(attempt_t *a, const float *out, const rg_opts_t *opts) {
    rg_group_t *g = a->z->g;
    static const rg_opts_t defaults = RG_OPTS_INIT;
    rg_error_t err;
    rg_status_t st =
        rg_struct_in(&a->o, sizeof a->o, RG_OPTS_SIZE_FIRST, opts != NULL ? opts : &defaults, "rg_opts", &err);
    if (st != RG_OK) return rg_refuse(g, st, "%s", err.text);
    if (a->o.in_strided != NULL || a->o.out_strided != NULL || a->o.scale != 0.0 || a->o.scale_after != 0.0 ||
        a->o.weighted == RG_ON)
        return rg_refuse(g, RG_ERR_NOTSUP, "%s: of the options, tag, timeout_ms, on_fault and result are supported",
                         a->name);
    if (a->op != RG_SUM && a->op != RG_AVG)
        return rg_refuse(g, RG_ERR_NOTSUP, "%s %s: quantised reductions are sums and averages", a->name,
                         rg_op_name(a->op));
    if (a->count != 0 && (a->in == NULL || out == NULL))
        return rg_refuse(g, RG_ERR_INVALID, "%s: %s is NULL", a->name, a->in == NULL ? "in" : "out");
    if (a->count > UINT64_MAX / 64 / (1u << 20))
        return rg_refuse(g, RG_ERR_INVALID, "%s: %llu elements are more than any memory", a->name,
                         (unsigned long long)a->count);
    return RG_OK;
}

static rg_status_t call(rg_quantiser_t *z, const char *name, int kind, const float *in, float *out, uint64_t count,
                        rg_op_t op, const rg_opts_t *opts) {
    if (z == NULL) return RG_ERR_INVALID;
    attempt_t a = { .z = z, .name = name, .in = in, .count = count, .op = op, .equal = kind != ALL_REDUCE };
    rg_status_t st = check(&a, out, opts);
    if (st != RG_OK) return st;
    uint64_t block = rg_quant_block(z->q.wire);
    a.unit = block > 64 ? block : block > 1 ? 64 : 320;
    rg_result_t *result = a.o.result, first = RG_RESULT_INIT;
    a.r = first;
    if (result != NULL && rg_result_check(result, NULL) != RG_OK)
        return rg_refuse(z->g, RG_ERR_INVALID, "%s: opts.result is not initialised: use RG_RESULT_INIT", name);
    if (result != NULL) {
        a.r.contributor_ids = result->contributor_ids;
        a.r.contributor_cap = result->contributor_cap;
    }
    rg_on_fault_t on_fault = a.o.on_fault != 0 ? a.o.on_fault : rg_root(z->g)->cfg.on_fault;
    uint64_t limit_ms = a.o.timeout_ms != 0 ? a.o.timeout_ms : rg_root(z->g)->cfg.op_timeout_ms;
    a.deadline = rg_os_now_ns() + limit_ms * 1000000;
    a.o.result = &a.r;
    a.o.on_fault = RG_RETURN;
    uint64_t start = 0;
    uint32_t again = 0;
    for (int unfit = 0;; again++) {
        st = attempt(&a, kind, out);
        if (start == 0) start = a.r.start_ns;
        if (st == RG_ERR_MISMATCH && ++unfit < FITS) continue;
        if (st != RG_ERR_PEER_LOST || on_fault == RG_RETURN || kind != ALL_REDUCE) break;
    }
    if (st == RG_OK) {
        z->bound = a.bound;
        if (z->feeds) {
            float *t = z->kept;
            uint64_t n = z->n_kept;
            z->kept = z->next, z->n_kept = z->n_next;
            z->next = t, z->n_next = n;
        }
    }
    if (result != NULL) {
        a.r.status = st;
        a.r.retries = again;
        a.r.start_ns = start;
        if (st != RG_OK && a.r.text[0] == 0) rg_group_errmsg(z->g, a.r.text, sizeof a.r.text);
        rg_result_out(result, &a.r, a.r.contributor_ids, a.r.contributors);
    }
    return st;
}

rg_status_t rg_quant_all_reduce(rg_quantiser_t *z, const float *in, float *out, uint64_t count, rg_op_t op,
                                const rg_opts_t *opts) {
    return call(z, "quantised all_reduce", ALL_REDUCE, in, out, count, op, opts);
}

rg_status_t rg_quant_reduce_scatter(rg_quantiser_t *z, const float *in, float *out, uint64_t count, rg_op_t op,
                                    const rg_opts_t *opts) {
    return call(z, "quantised reduce_scatter", REDUCE_SCATTER, in, out, count, op, opts);
}

rg_status_t rg_quant_all_gather(rg_quantiser_t *z, const float *in, float *out, uint64_t count, const rg_opts_t *opts) {
    return call(z, "quantised all_gather", ALL_GATHER, in, out, count, RG_SUM, opts);
}
