/* collective.c: collectives of which quantised bytes travel: the quantiser, the calls, and what they have in common. A
 * reduction brings a slice of the sum to each member in one of several ways (reduce.c, integer.c); an all-gather then
 * takes what the owners encoded to everybody. Relies on the public operations ending alike on all members (parts.h);
 * must not touch the caller's output before the last part has ended well. */
#include "quant/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Quantisers --------------------------------------------------------------------------------------------- */

static rg_status_t check_form(uint32_t form, rg_wire_t wire, rg_error_t *err) {
    if (form >= RG_QUANT_FORM_COUNT)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_quantiser_create: there is no form %u; see rg_quant_form_t", form);
    if (form == RG_QUANT_INTEGER && !rg_integer_can(wire))
        return rg_fail(err, RG_ERR_NOTSUP, 0,
                       "rg_quantiser_create: %s has no sums of integers; int8, int4 and ternary have",
                       rg_wire_name(wire));
    return RG_OK;
}

/* What the caller leaves open is asked of the environment. */
static rg_status_t choose_forms(rg_quantiser_t *z, rg_error_t *err) {
    static const char *const kinds[] = {
        [RG_QUANT_ALL_REDUCE] = "all_reduce", [RG_QUANT_REDUCE_SCATTER] = "reduce_scatter"
    };
    const char *list = getenv("RG_QUANT_ALGORITHM");
    rg_status_t st = RG_OK;
    for (int kind = RG_QUANT_ALL_REDUCE; kind <= RG_QUANT_REDUCE_SCATTER && st == RG_OK; kind++) {
        char text[256];
        z->forms[kind] = z->q.form;
        if (z->q.form == RG_QUANT_AUTO && list != NULL) {
            z->forms[kind] = rg_form_of_list(list, kinds[kind], text, sizeof text);
            if (z->forms[kind] == UINT32_MAX) return rg_fail(err, RG_ERR_INVALID, 0, "%s", text);
        }
        st = check_form(z->forms[kind], z->q.wire, err);
    }
    return st;
}

static rg_status_t check_create(const rg_group_t *group, const rg_quant_t *q, const rg_feedback_t *feedback,
                                rg_quantiser_t *const *out, rg_error_t *err) {
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
    return RG_OK;
}

rg_status_t rg_quantiser_create(rg_group_t *group, const rg_quant_t *q, const rg_feedback_t *feedback,
                                rg_quantiser_t **out, rg_error_t *err) {
    rg_status_t st = check_create(group, q, feedback, out, err);
    if (st != RG_OK) return st;
    rg_quantiser_t *z = calloc(1, sizeof *z);
    if (z == NULL) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_quantiser_create: no memory");
    z->g = group;
    z->q = *q;
    z->feeds = feedback != NULL;
    if (feedback != NULL) z->f = *feedback;
    if (z->f.beta == 0.0f) z->f.beta = 1.0f;
    st = choose_forms(z, err);
    if (st == RG_OK) *out = z;
    else free(z);
    return st;
}

void rg_quantiser_destroy(rg_quantiser_t *z) {
    if (z == NULL) return;
    rg_later_end(z->queue);
    free(z->kept);
    free(z->next);
    free(z->out.p);
    free(z->in.p);
    free(z->sum.p);
    free(z->piece.p);
    free(z->scales.p);
    free(z->sizes);
    free(z->near.host);
    free(z);
}

double rg_quantiser_bound(const rg_quantiser_t *z) { return z != NULL ? z->bound : 0; }

rg_quant_form_t rg_quantiser_form(const rg_quantiser_t *z) {
    return z != NULL ? (rg_quant_form_t)z->form : RG_QUANT_AUTO;
}

float *rg_quantiser_kept(rg_quantiser_t *z, uint64_t *n) {
    if (n != NULL) *n = z != NULL ? z->n_kept : 0;
    return z != NULL ? z->kept : NULL;
}

rg_status_t rg_quantiser_keep(rg_quantiser_t *z, uint64_t n) {
    if (z == NULL || !z->feeds) return RG_ERR_INVALID;
    return rg_floats_for(&z->kept, &z->n_kept, n) ? RG_OK : RG_ERR_NOMEM;
}

/* ---- To everybody ------------------------------------------------------------------------------------------- */

static uint64_t gathered_bytes(const rg_quant_job_t *a, uint32_t r) {
    uint64_t n = rg_slice_len(a, r);
    return RG_HEAD_BYTES + (a->form == RG_QUANT_INTEGER ? rg_integer_bytes(a, n) : rg_quant_bytes(a->z->q.wire, n));
}

/* This rank's slice, in z->sum or `v`, to everybody; z->in then has all of them, from in_at[] on. */
static rg_status_t gather(rg_quant_job_t *a, const float *v, float *kept, double bound) {
    rg_quantiser_t *z = a->z;
    uint32_t me = a->f.rank;
    uint64_t all = 0;
    for (uint32_t r = 0; r < a->f.n; r++) {
        a->in_len[r] = gathered_bytes(a, r);
        a->in_at[r] = all;
        all += a->in_len[r];
    }
    if (!rg_room_for(&z->out, a->in_len[me]) || !rg_room_for(&z->in, all)) return rg_frame_no_memory(&a->f);
    a->finite = 1;
    if (a->form == RG_QUANT_INTEGER) rg_integer_put(a, z->out.p);
    else rg_part_say(a, z->out.p, v, rg_slice_at(a, me), rg_slice_len(a, me), kept, bound);
    z->calls++;
    rg_status_t st = rg_frame_ended(&a->f, rg_all_gather_v(z->g, z->out.p, z->in.p, a->in_len, a->in_at, RG_U8,
                                                           rg_frame_opts(&a->f), rg_frame_req(&a->f)));
    return st != RG_OK ? st : rg_parts_judge(a, a->in_at);
}

/* The largest bound of all slices, and their values. */
static void take_all(rg_quant_job_t *a) {
    rg_quantiser_t *z = a->z;
    a->bound = 0;
    for (uint32_t r = 0; r < a->f.n; r++) {
        const uint8_t *from = z->in.p + a->in_at[r];
        float *to = a->out + rg_slice_at(a, r);
        a->bound = fmax(a->bound, rg_part_head(from).bound);
        if (a->form == RG_QUANT_INTEGER) rg_integer_get(a, r, from, to);
        else rg_quant_decode(z->q.wire, from + RG_HEAD_BYTES, rg_slice_len(a, r), to);
    }
}

/* ---- Attempts ----------------------------------------------------------------------------------------------- */

/* Elements that slices of an all-reduce are cut in: whole blocks, and not too small. */
static uint64_t unit_of(const rg_quant_job_t *a) {
    uint64_t block = rg_quant_block(a->z->q.wire);
    if (a->form == RG_QUANT_INTEGER && block != 0) return 256;
    return block > 64 ? block : block > 1 ? 64 : 320;
}

static uint64_t call_of(const rg_quant_job_t *a) {
    const rg_quant_t *q = &a->z->q;
    uint32_t scale;
    memcpy(&scale, &q->scale, sizeof scale);
    uint64_t h = rg_frame_mix(rg_frame_mix((uint64_t)a->kind, a->count), a->op);
    return rg_frame_mix(rg_frame_mix(rg_frame_mix(rg_frame_mix(h, q->wire), q->flags), scale), a->form);
}

/* Of the form that was asked for, or the cheaper one. One member has nobody to go any way to. */
static uint32_t form_of(const rg_quant_job_t *a, uint64_t elems) {
    uint32_t form = a->z->forms[a->kind];
    if (a->kind == RG_QUANT_ALL_GATHER || (a->f.n == 1 && form != RG_QUANT_INTEGER)) return RG_QUANT_DIRECT;
    if (form != RG_QUANT_AUTO) return form;
    return rg_form_choose(&a->z->near, a->f.n, elems, rg_quant_bytes(a->z->q.wire, elems), &a->model);
}

/* m = beta * kept + x, for n elements. NULL: no memory. */
static float *with_kept(rg_quantiser_t *z, const float *x, uint64_t n) {
    if (!rg_floats_for(&z->next, &z->n_next, n)) return NULL;
    int has = z->n_kept == n && z->kept != NULL;
    for (uint64_t i = 0; i < n; i++) z->next[i] = has ? z->f.beta * z->kept[i] + x[i] : x[i];
    return z->next;
}

static rg_status_t scatter(rg_quant_job_t *a, const float *v, float *kept) {
    switch (a->form) {
    case RG_QUANT_RING: return rg_scatter_ring(a, v, kept);
    case RG_QUANT_TWO_LEVEL: return rg_scatter_two_level(a, v, kept);
    case RG_QUANT_INTEGER: return rg_scatter_integer(a, v, kept);
    default: return rg_scatter_direct(a, v, kept);
    }
}

static rg_status_t attempt(rg_quant_job_t *a) {
    rg_quantiser_t *z = a->z;
    rg_status_t st = rg_frame_shape(&a->f);
    if (st != RG_OK) return st;
    uint64_t whole = a->kind == RG_QUANT_REDUCE_SCATTER ? a->count * a->f.n : a->count;
    const float *v = a->in;
    float *kept = NULL;
    if (!rg_parts_begin(a, a->f.n)) return rg_frame_no_memory(&a->f);
    a->form = form_of(a, whole);
    a->unit = unit_of(a);
    a->call = call_of(a);
    a->bound = 0;
    if (z->feeds) {
        uint64_t block = rg_quant_block(z->q.wire);
        v = kept = with_kept(z, a->in, whole);
        if (v == NULL || !rg_room_for(&z->piece, (block == 0 ? whole : 256) * sizeof *v))
            return rg_frame_no_memory(&a->f);
    }
    if (a->kind == RG_QUANT_ALL_GATHER) {
        st = gather(a, v, kept, 0);
    } else {
        float *sum;
        st = scatter(a, v, kept);
        sum = (float *)z->sum.p;
        if (a->op == RG_AVG) a->bound /= a->f.n;
        for (uint64_t i = 0;
             st == RG_OK && a->op == RG_AVG && a->form != RG_QUANT_INTEGER && i < rg_slice_len(a, a->f.rank); i++)
            sum[i] /= (float)a->f.n;
        if (st == RG_OK && a->kind == RG_QUANT_ALL_REDUCE) st = gather(a, sum, NULL, a->bound);
    }
    if (st != RG_OK) return st;
    if (a->kind != RG_QUANT_REDUCE_SCATTER) take_all(a);
    else if (a->form == RG_QUANT_INTEGER) rg_integer_values(a, a->out);
    else if (a->count != 0) memcpy(a->out, z->sum.p, (size_t)a->count * sizeof *a->out);
    return RG_OK;
}

/* ---- Calls -------------------------------------------------------------------------------------------------- */

static rg_status_t check(rg_quant_job_t *a) {
    if (a->op != RG_SUM && a->op != RG_AVG)
        return rg_frame_refuse(&a->f, RG_ERR_NOTSUP, "%s %s: quantised reductions are sums and averages", a->f.name,
                               rg_op_name(a->op));
    if (a->count != 0 && (a->in == NULL || a->out == NULL))
        return rg_frame_refuse(&a->f, RG_ERR_INVALID, "%s: %s is NULL", a->f.name, a->in == NULL ? "in" : "out");
    if (a->count > UINT64_MAX / 64 / (1u << 20))
        return rg_frame_refuse(&a->f, RG_ERR_INVALID, "%s: %llu elements are more than any memory", a->f.name,
                               (unsigned long long)a->count);
    return RG_OK;
}

static void keep(rg_quantiser_t *z) {
    float *t = z->kept;
    uint64_t n = z->n_kept;
    z->kept = z->next, z->n_kept = z->n_next;
    z->next = t, z->n_next = n;
}

rg_status_t rg_quant_run(rg_quantiser_t *z, int kind, const float *in, float *out, uint64_t count, rg_op_t op,
                         const rg_opts_t *opts, rg_stop_t *stop) {
    static const char *const names[] = { "", "quantised all_reduce", "quantised reduce_scatter",
                                         "quantised all_gather" };
    rg_quant_job_t a = { .z = z, .kind = kind, .in = in, .out = out, .count = count, .op = op };
    rg_status_t st = rg_frame_open(&a.f, z->g, names[kind], opts);
    if (st == RG_OK) st = check(&a);
    if (st != RG_OK) return rg_frame_refused(&a.f, st, kind == RG_QUANT_ALL_REDUCE);
    a.f.stop = stop;
    uint64_t first = z->calls;
    do {
        z->calls = first; /* what is done again is rounded as it was */
        st = attempt(&a);
    } while (rg_frame_more(&a.f, st, kind == RG_QUANT_ALL_REDUCE));
    z->calls = first + 2 * (uint64_t)RG_MAX_LINKS; /* more than exchanges in a call */
    if (st == RG_OK) {
        z->bound = a.bound;
        z->form = a.form;
        if (z->feeds) keep(z);
    }
    return rg_frame_close(&a.f, st);
}

static rg_status_t call(rg_quantiser_t *z, int kind, const float *in, float *out, uint64_t count, rg_op_t op,
                        const rg_opts_t *opts) {
    if (z == NULL) return RG_ERR_INVALID;
    if (rg_later_busy(z->queue)) {
        rg_refuse(z->g, RG_ERR_INVALID,
                  "a quantiser does one call at a time: wait for its requests, or use another quantiser");
        return rg_later_turn_down(z->queue, z->g, opts, RG_ERR_INVALID, kind == RG_QUANT_ALL_REDUCE);
    }
    return rg_quant_run(z, kind, in, out, count, op, opts, NULL);
}

rg_status_t rg_quant_all_reduce(rg_quantiser_t *z, const float *in, float *out, uint64_t count, rg_op_t op,
                                const rg_opts_t *opts) {
    return call(z, RG_QUANT_ALL_REDUCE, in, out, count, op, opts);
}

rg_status_t rg_quant_reduce_scatter(rg_quantiser_t *z, const float *in, float *out, uint64_t count, rg_op_t op,
                                    const rg_opts_t *opts) {
    return call(z, RG_QUANT_REDUCE_SCATTER, in, out, count, op, opts);
}

rg_status_t rg_quant_all_gather(rg_quantiser_t *z, const float *in, float *out, uint64_t count, const rg_opts_t *opts) {
    return call(z, RG_QUANT_ALL_GATHER, in, out, count, RG_SUM, opts);
}
