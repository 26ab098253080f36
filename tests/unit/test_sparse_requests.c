/* test_sparse_requests.c: sparse and quantised calls in the background: the same bits as calls that block, beside the
 * program's own operations, in any order of waiting; cancelled by one member at any moment, deadlines, reducers that
 * are busy or go while something runs. Relies on engine_rig.h. It must not depend on who of two threads is first. */
#include "engine_rig.h"
#include "regroup_sparse.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define LEN 20000u
#define DEPTH 4u

/* What a member has of a list: every element with one chance in 16. */
typedef struct lists {
    rg_sparse_t in, out;
    uint32_t idx[LEN], got[LEN];
    float val[LEN], sums[LEN];
} lists_t;

static float some(uint64_t seed, uint32_t member, uint64_t i) {
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + member * 0xbf58476d1ce4e5b9ull + i * 0x94d049bb133111ebull;
    return (float)((double)(rig_random(&x) >> 40) * 0x1p-22 - 2);
}

static void fill(lists_t *l, uint64_t seed, uint32_t member) {
    static const rg_sparse_t first = RG_SPARSE_INIT;
    l->in = l->out = first;
    for (uint32_t i = 0; i < LEN; i++)
        if (some(seed + 9, member, i) < -1.75f) {
            l->idx[l->in.values] = i;
            l->val[l->in.values++] = some(seed, member, i);
        }
    l->in.n = l->out.n = LEN;
    l->in.idx = l->idx, l->in.val = l->val;
    l->out.values = LEN, l->out.idx = l->got, l->out.val = l->sums;
    memset(l->sums, 0x77, sizeof l->sums);
}

/* ---- As calls that block ----------------------------------------------------------------------------------------- */

static int own_operations(rig_member_t *m) {
    for (uint64_t k = 1; k <= 20; k++) {
        uint64_t sum = 0;
        RIG_OK(m, rg_all_reduce(m->g, &k, &sum, 1, RG_U64, RG_SUM, NULL, NULL));
        RIG_NEED(m, sum == k * m->rig->n, "%u", (unsigned)sum);
    }
    return 0;
}

static int collect(rig_member_t *m, rg_sparse_request_t *const *req, uint32_t n) {
    for (uint32_t d = n; d-- > 0;) { /* in another order than they end in */
        rg_result_t r = RG_RESULT_INIT;
        rg_status_t st = RG_AGAIN;
        uint64_t ids[RIG_MAX] = { 0 };
        r.contributor_ids = ids;
        r.contributor_cap = RIG_MAX;
        if (d % 2 == 0) st = rg_sparse_wait(req[d], &r);
        else
            while ((st = rg_sparse_test(req[d], &r)) == RG_AGAIN) sched_yield();
        RIG_NEED(m, st == RG_OK && r.status == RG_OK && r.contributors == m->rig->n && ids[0] != 0,
                 "request %u: %s: %s", d, rg_status_name(st), r.text);
    }
    return 0;
}

static int beside(rig_member_t *m, void *arg) {
    lists_t *l = calloc(DEPTH + 1, sizeof *l);
    rg_sparse_request_t *req[DEPTH];
    rg_sparse_reducer_t *z = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    RIG_NEED(m, rg_sparse_iall_reduce(z, &l[0].in, &l[0].out, NULL, &o, req) == RG_ERR_INVALID && req[0] == NULL,
             "tag");
    RIG_NEED(m, strstr(rig_errmsg(m), "tag"), "%s", rig_errmsg(m));
    o.tag = 71;
    RIG_NEED(m, rg_sparse_iall_reduce(z, NULL, &l[0].out, NULL, &o, req) == RG_ERR_INVALID, "no list");
    RIG_NEED(m, rg_sparse_iall_reduce(z, &l[0].in, &l[0].out, NULL, &o, NULL) == RG_ERR_INVALID, "no request");
    for (uint64_t round = 0; round < 3; round++) {
        for (uint32_t d = 0; d < DEPTH; d++) {
            rg_sparse_how_t how = RG_SPARSE_HOW_INIT; /* gone before the call's turn comes */
            how.algorithm = (rg_sparse_algorithm_t)(d + round % 2);
            fill(&l[d], 10 * round + d, m->index);
            rg_sparse_t in = l[d].in;
            RIG_OK(m, rg_sparse_iall_reduce(z, &in, &l[d].out, &how, &o, &req[d]));
        }
        if (own_operations(m) || collect(m, req, DEPTH)) return 1;
        for (uint32_t d = 0; d < DEPTH; d++) {
            fill(&l[DEPTH], 10 * round + d, m->index);
            RIG_OK(m, rg_sparse_all_reduce(z, &l[DEPTH].in, &l[DEPTH].out, NULL, NULL));
            RIG_NEED(m, l[d].out.values == l[DEPTH].out.values && l[d].out.values > LEN / 16, "%u values for %u",
                     (unsigned)l[d].out.values, (unsigned)l[DEPTH].out.values);
            RIG_NEED(m, memcmp(l[d].got, l[DEPTH].got, l[d].out.values * 4) == 0, "places");
            RIG_NEED(m, memcmp(l[d].sums, l[DEPTH].sums, l[d].out.values * 4) == 0, "sums");
        }
    }
    rg_sparse_reducer_destroy(z);
    free(l);
    return rig_gate(m, 0, m->rig->n);
}

Test(sparse, requests__lists_beside_other_operations__as_blocking_calls, .timeout = 100) {
    rig_run(3, "inproc", NULL, beside, NULL);
    rig_run(2, "tcp", NULL, beside, NULL);
}

/* Requests of the other two kinds, of two reducers at a time. */
static int kinds(rig_member_t *m, void *arg) {
    float *in = malloc(LEN * sizeof *in), *out = calloc(4 * LEN, sizeof *out);
    rg_sparse_request_t *req[4];
    rg_sparse_reducer_t *z = NULL;
    rg_topk_reducer_t *t[2] = { NULL, NULL };
    rg_topk_t form = RG_TOPK_INIT;
    rg_feedback_t feedback = RG_FEEDBACK_INIT;
    rg_seeded_how_t how = RG_SEEDED_HOW_INIT;
    rg_opts_t o = RG_OPTS_INIT, p = RG_OPTS_INIT;
    (void)arg;
    how.count = LEN / 10, how.seed = 5;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (int k = 0; k < 2; k++) RIG_OK(m, rg_topk_reducer_create(m->g, &form, &feedback, &t[k], NULL));
    o.tag = 72, p.tag = 73;
    for (uint64_t round = 0; round < 4; round++) {
        for (uint64_t i = 0; i < LEN; i++) in[i] = some(round, m->index, i);
        memset(out, 0, 4 * LEN * sizeof *out);
        RIG_OK(m, rg_seeded_iall_reduce(z, in, out, LEN, RG_F32, &how, &o, &req[0]));
        RIG_OK(m, rg_topk_iall_reduce(t[0], in, out + LEN, LEN, RG_SPARSE_AVG_WORLD, &p, &req[1]));
        if (own_operations(m) || collect(m, req, 2)) return 1;
        RIG_OK(m, rg_seeded_all_reduce(z, in, out + 2 * LEN, LEN, RG_F32, &how, NULL));
        RIG_OK(m, rg_topk_all_reduce(t[1], in, out + 3 * LEN, LEN, RG_SPARSE_AVG_WORLD, NULL));
        RIG_NEED(m, memcmp(out, out + 2 * LEN, 2 * LEN * sizeof *out) == 0, "round %u: not the same", (unsigned)round);
        uint64_t a = 0, b = 0;
        const float *x = rg_topk_kept(t[0], &a), *y = rg_topk_kept(t[1], &b);
        RIG_NEED(m, a == LEN && b == LEN && memcmp(x, y, LEN * sizeof *x) == 0, "what is kept");
    }
    rg_sparse_reducer_destroy(z);
    for (int k = 0; k < 2; k++) rg_topk_reducer_destroy(t[k]);
    free(in), free(out);
    return rig_gate(m, 0, m->rig->n);
}

Test(sparse, requests__seeds_and_topk_at_the_same_time__as_blocking_calls, .timeout = 100) {
    rig_run(3, "inproc", NULL, kinds, NULL);
}

/* ---- Cancelled --------------------------------------------------------------------------------------------------- */

static void idle(uint64_t us) {
    uint64_t until = rig_now() + us * 1000;
    while (rig_now() < until) sched_yield();
}

/* How many members ended with this; all call it. */
static int agreed(rig_member_t *m, rg_status_t st) {
    int32_t v[2] = { st, -st }, most[2];
    RIG_OK(m, rg_all_reduce(m->g, v, most, 2, RG_I32, RG_MAX, NULL, NULL));
    RIG_NEED(m, most[0] == -most[1], "%s here, others otherwise", rg_status_name(st));
    RIG_NEED(m, st == RG_OK || st == RG_ERR_CANCELLED, "%s: %s", rg_status_name(st), rig_errmsg(m));
    return 0;
}

/* Rank 1 cancels the second of three requests. The first and the third are as if nothing had been. */
static int cancels(rig_member_t *m, void *arg) {
    const uint64_t *after_us = arg;
    lists_t *l = calloc(3, sizeof *l);
    rg_sparse_request_t *req[3];
    rg_sparse_reducer_t *z = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    rg_result_t r = RG_RESULT_INIT;
    o.tag = 74;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (uint32_t d = 0; d < 3; d++) {
        fill(&l[d], d, m->index);
        RIG_OK(m, rg_sparse_iall_reduce(z, &l[d].in, &l[d].out, NULL, &o, &req[d]));
    }
    if (m->index == 1) {
        idle(*after_us);
        RIG_OK(m, rg_sparse_cancel(req[1]));
    }
    RIG_OK(m, rg_sparse_wait(req[0], NULL));
    rg_status_t st = rg_sparse_wait(req[1], &r);
    RIG_NEED(m, st == r.status && (st == RG_OK || r.text[0] != 0), "%s without a text", rg_status_name(st));
    RIG_OK(m, rg_sparse_wait(req[2], NULL));
    if (agreed(m, st)) return 1;
    uint32_t untouched;
    memcpy(&untouched, l[1].sums, 4);
    if (st != RG_OK) RIG_NEED(m, untouched == 0x77777777u, "the result was written");
    RIG_NEED(m, l[0].out.values > LEN / 16 && l[2].out.values > LEN / 16, "no results");
    rg_sparse_reducer_destroy(z);
    free(l);
    return rig_gate(m, 0, m->rig->n);
}

Test(sparse, requests__one_cancelled_at_any_moment__ends_alike_and_the_others_succeed, .timeout = 100) {
    for (uint64_t k = 0; k < 12; k++) {
        uint64_t after_us = k * k * 20;
        rig_run(3, "inproc", NULL, cancels, &after_us);
    }
}

/* Rank 0 begins when the others' calls have ended, which they cannot have before rank 1 cancels them: all get
 * CANCELLED, with feedback as it was. */
static int cancels_for_sure(rig_member_t *m, void *arg) {
    float *in = malloc(LEN * sizeof *in), *out = calloc(LEN, sizeof *out), was;
    rg_topk_reducer_t *t = NULL;
    rg_quantiser_t *q = NULL;
    rg_topk_t form = RG_TOPK_INIT;
    rg_quant_t int8 = RG_QUANT_INIT(RG_WIRE_I8);
    rg_feedback_t feedback = RG_FEEDBACK_INIT;
    rg_sparse_request_t *req = NULL;
    rg_quant_request_t *dense = NULL;
    rg_opts_t o = RG_OPTS_INIT, p = RG_OPTS_INIT;
    uint64_t n;
    (void)arg;
    o.tag = 75, p.tag = 76;
    for (uint64_t i = 0; i < LEN; i++) in[i] = some(3, m->index, i);
    RIG_OK(m, rg_topk_reducer_create(m->g, &form, &feedback, &t, NULL));
    RIG_OK(m, rg_quantiser_create(m->g, &int8, &feedback, &q, NULL));
    RIG_OK(m, rg_topk_all_reduce(t, in, out, LEN, RG_SPARSE_SUM, NULL));
    RIG_OK(m, rg_quant_all_reduce(q, in, out, LEN, RG_SUM, NULL));
    was = rg_topk_kept(t, &n)[7] + rg_quantiser_kept(q, &n)[7];
    if (m->index == 0) RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    RIG_OK(m, rg_topk_iall_reduce(t, in, out, LEN, RG_SPARSE_SUM, &o, &req));
    RIG_OK(m, rg_quant_iall_reduce(q, in, out, LEN, RG_SUM, &p, &dense));
    if (m->index == 1) {
        RIG_NEED(m, rg_sparse_test(req, NULL) == RG_AGAIN && rg_quant_test(dense, NULL) == RG_AGAIN,
                 "cannot have ended");
        RIG_OK(m, rg_sparse_cancel(req));
        RIG_OK(m, rg_quant_cancel(dense));
    }
    RIG_NEED(m, rg_sparse_wait(req, NULL) == RG_ERR_CANCELLED, "top-k: %s", rig_errmsg(m));
    RIG_NEED(m, rg_quant_wait(dense, NULL) == RG_ERR_CANCELLED, "quantised: %s", rig_errmsg(m));
    if (m->index != 0) RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    RIG_NEED(m, was == rg_topk_kept(t, &n)[7] + rg_quantiser_kept(q, &n)[7], "what is kept has changed");
    RIG_OK(m, rg_topk_all_reduce(t, in, out, LEN, RG_SPARSE_SUM, NULL));
    RIG_OK(m, rg_quant_all_reduce(q, in, out, LEN, RG_SUM, NULL));
    RIG_NEED(m, rg_sparse_cancel(NULL) == RG_ERR_INVALID && rg_quant_cancel(NULL) == RG_ERR_INVALID, "NULL");
    rg_topk_reducer_destroy(t);
    rg_quantiser_destroy(q);
    free(in), free(out);
    return rig_gate(m, 1, m->rig->n);
}

Test(sparse, requests__cancelled_before_all_have_begun__cancelled_everywhere_and_feedback_kept, .timeout = 60) {
    rig_run(3, "inproc", NULL, cancels_for_sure, NULL);
}

/* ---- Beside an operation that is cancelled ----------------------------------------------------------------------- */

typedef struct kinds_of_call {
    lists_t l[2]; /* as they are, and quantised */
    float in[LEN], out[4][LEN];
    rg_sparse_reducer_t *z[3];
    rg_topk_reducer_t *t;
    rg_quantiser_t *q[2];
    rg_sparse_request_t *req[4];
    rg_quant_request_t *dense[2];
} kinds_of_call_t;

/* One of each kind of call, that ends with PEER_LOST if somebody is lost. */
static int begin_all(rig_member_t *m, kinds_of_call_t *c) {
    rg_quant_t int8 = RG_QUANT_INIT(RG_WIRE_I8);
    rg_sparse_how_t coded = RG_SPARSE_HOW_INIT;
    rg_seeded_how_t seeded = RG_SEEDED_HOW_INIT;
    rg_opts_t o[6];
    for (uint32_t k = 0; k < 6; k++) {
        static const rg_opts_t first = RG_OPTS_INIT;
        o[k] = first;
        o[k].tag = 80 + k, o[k].on_fault = RG_RETURN;
    }
    coded.quant = &int8, seeded.count = 100;
    RIG_OK(m, rg_sparse_iall_reduce(c->z[0], &c->l[0].in, &c->l[0].out, NULL, &o[0], &c->req[0]));
    RIG_OK(m, rg_sparse_iall_reduce(c->z[1], &c->l[1].in, &c->l[1].out, &coded, &o[1], &c->req[1]));
    RIG_OK(m, rg_seeded_iall_reduce(c->z[2], c->in, c->out[0], LEN, RG_F32, &seeded, &o[2], &c->req[2]));
    RIG_OK(m, rg_topk_iall_reduce(c->t, c->in, c->out[1], LEN, RG_SPARSE_SUM, &o[3], &c->req[3]));
    RIG_OK(m, rg_quant_iall_reduce(c->q[0], c->in, c->out[2], LEN, RG_SUM, &o[4], &c->dense[0]));
    RIG_OK(m, rg_quant_iall_reduce(c->q[1], c->in, c->out[3], LEN, RG_SUM, &o[5], &c->dense[1]));
    return 0;
}

static int end_all(rig_member_t *m, kinds_of_call_t *c) {
    for (uint32_t k = 0; k < 6; k++) {
        rg_result_t r = RG_RESULT_INIT;
        rg_status_t st = k < 4 ? rg_sparse_wait(c->req[k], &r) : rg_quant_wait(c->dense[k - 4], &r);
        RIG_NEED(m, st == RG_OK && r.contributors == m->rig->n, "call %u: %s: %s", k, rg_status_name(st), r.text);
    }
    for (uint32_t k = 0; k < 4; k++) RIG_NEED(m, rig_alike(m, c->out[k], LEN), "result %u", k);
    for (uint32_t k = 0; k < 2; k++)
        RIG_NEED(m, c->l[k].out.values > LEN / 16 && rig_alike(m, c->l[k].sums, LEN), "list %u", k);
    return 0;
}

/* Rank 2 begins the calls in the view that an operation has left behind that rank 1 cancelled; the others had begun
 * them before. */
static int beside_cancelled(rig_member_t *m, void *arg) {
    kinds_of_call_t *c = calloc(1, sizeof *c);
    rg_quant_t form[2] = { RG_QUANT_INIT(RG_WIRE_I8), RG_QUANT_INIT(RG_WIRE_I8) };
    rg_topk_t topk = RG_TOPK_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    rg_request_t *odd = NULL;
    rg_info_t before = RG_INFO_INIT, after = RG_INFO_INIT;
    (void)arg;
    o.tag = 79;
    form[1].form = RG_QUANT_INTEGER;
    fill(&c->l[0], 1, m->index), fill(&c->l[1], 2, m->index);
    for (uint64_t i = 0; i < LEN; i++) c->in[i] = some(3, m->index, i);
    for (uint32_t k = 0; k < 3; k++) RIG_OK(m, rg_sparse_reducer_create(m->g, &c->z[k], NULL));
    RIG_OK(m, rg_topk_reducer_create(m->g, &topk, NULL, &c->t, NULL));
    for (uint32_t k = 0; k < 2; k++) RIG_OK(m, rg_quantiser_create(m->g, &form[k], NULL, &c->q[k], NULL));
    RIG_OK(m, rg_group_info(m->g, &before));
    if (m->index == 2) RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    if (m->index != 2 && begin_all(m, c)) return 1;
    RIG_OK(m, rg_barrier(m->g, &o, &odd));
    if (m->index == 1) RIG_OK(m, rg_cancel(odd));
    RIG_NEED(m, rg_wait(odd, NULL) == RG_ERR_CANCELLED, "%s", rig_errmsg(m));
    if (m->index != 2) RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    RIG_OK(m, rg_group_info(m->g, &after));
    RIG_NEED(m, after.epoch != before.epoch && after.world_size == m->rig->n, "the scene: the view has not changed");
    if (m->index == 2 && begin_all(m, c)) return 1;
    if (end_all(m, c)) return 1;
    for (uint32_t k = 0; k < 3; k++) rg_sparse_reducer_destroy(c->z[k]);
    for (uint32_t k = 0; k < 2; k++) rg_quantiser_destroy(c->q[k]);
    rg_topk_reducer_destroy(c->t);
    free(c);
    return rig_gate(m, 1, m->rig->n);
}

Test(sparse, requests__beside_an_operation_that_is_cancelled__nobody_is_lost, .timeout = 60) {
    rig_run(3, "inproc", NULL, beside_cancelled, NULL);
}

/* ---- Deadlines, and reducers that are busy ----------------------------------------------------------------------- */

static int late(rig_member_t *m, void *arg) {
    lists_t *l = calloc(1, sizeof *l);
    rg_sparse_reducer_t *z = NULL;
    rg_sparse_request_t *req = NULL;
    rg_seeded_how_t how = RG_SEEDED_HOW_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    o.tag = 77;
    fill(l, 1, m->index);
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    if (m->index == 0) {
        RIG_OK(m, rg_sparse_iall_reduce(z, &l->in, &l->out, NULL, &o, &req));
        RIG_NEED(m, rg_sparse_all_reduce(z, &l->in, &l->out, NULL, NULL) == RG_ERR_INVALID, "not busy");
        RIG_NEED(m, strstr(rig_errmsg(m), "one call at a time"), "%s", rig_errmsg(m));
        RIG_NEED(m, rg_seeded_all_reduce(z, l->val, l->sums, 4, RG_F32, &how, NULL) == RG_ERR_INVALID, "not busy");
    }
    RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    if (m->index != 0) RIG_OK(m, rg_sparse_iall_reduce(z, &l->in, &l->out, NULL, &o, &req));
    RIG_OK(m, rg_sparse_wait(req, NULL));
    if (m->index == 0) { /* nobody else calls these: one ends by its deadline, the last never begins */
        rg_result_t r = RG_RESULT_INIT;
        uint64_t start = rig_now();
        o.timeout_ms = 200;
        RIG_OK(m, rg_sparse_iall_reduce(z, &l->in, &l->out, NULL, &o, &req));
        rg_status_t st = rg_sparse_wait(req, &r);
        RIG_NEED(m, st == RG_ERR_TIMEOUT && r.text[0] != 0, "%s: %s", rg_status_name(st), r.text);
        RIG_NEED(m, (double)(rig_now() - start) / 1e6 < 10000 * RIG_SLOW + rig_late_ms(start), "late");
        RIG_OK(m, rg_sparse_iall_reduce(z, &l->in, &l->out, NULL, &o, &req));
        RIG_OK(m, rg_sparse_iall_reduce(z, &l->in, &l->out, NULL, &o, &req));
    }
    rg_sparse_reducer_destroy(z);
    free(l);
    return rig_gate(m, 1, m->rig->n);
}

Test(sparse, requests__late_or_of_a_busy_reducer__ended_by_the_deadline_or_refused, .timeout = 60) {
    rig_run(2, "inproc", NULL, late, NULL);
}
