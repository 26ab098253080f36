/* test_refused.c: calls that one member's library refuses for their arguments while the others make them: they end for
 * all, and what that member calls next never meets what the others called before. Relies on engine_rig.h. */
#include "engine_rig.h"
#include "regroup_quant.h"
#include "regroup_sparse.h"

#include <criterion/criterion.h>

#include <sched.h>
#include <string.h>

static const char *const transports[] = { "inproc", "shm", "tcp" };

/* Member 1 is refused its first call. The second is like the first: it must not be taken for it. */
static int first_is_refused(rig_member_t *m, void *arg) {
    (void)arg;
    float a[4], out[4] = { 0 };
    rg_opts_t o = RG_OPTS_INIT;
    rg_result_t res = RG_RESULT_INIT;
    o.result = &res;
    o.timeout_ms = 20000;
    int bad = m->index == 1;
    for (int i = 0; i < 4; i++) a[i] = (float)(m->index + 1);
    rg_status_t st = rg_all_reduce(m->g, bad ? NULL : a, out, 4, RG_F32, RG_SUM, &o, NULL);
    if (bad) RIG_NEED(m, st == RG_ERR_INVALID && strstr(res.text, "in is NULL"), "%s %s", rg_status_name(st), res.text);
    else
        RIG_NEED(m, st == RG_ERR_MISMATCH && strstr(res.text, "rank 1") && strstr(res.text, "in is NULL"), "%s %s",
                 rg_status_name(st), res.text);
    for (int i = 0; i < 4; i++) RIG_NEED(m, out[i] == 0.0f, "the output was written");
    for (int i = 0; i < 4; i++) a[i] = (float)(10 * (m->index + 1));
    st = rg_all_reduce(m->g, a, out, 4, RG_F32, RG_SUM, &o, NULL);
    RIG_NEED(m, st == RG_OK && out[0] == 60.0f && out[3] == 60.0f, "%s %s %g", rg_status_name(st), res.text,
             (double)out[0]);
    return 0;
}

Test(refused, one_member_is_refused_a_call__the_others_are_told_and_the_next_one_is_whole) {
    for (size_t t = 0; t < sizeof transports / sizeof *transports; t++)
        rig_run(3, transports[t], NULL, first_is_refused, NULL);
}

/* ---- Every way to refuse ----------------------------------------------------------------------------------------- */

/* Member `bad` makes one call that is refused; the others make the same one as it should be. */
typedef rg_status_t (*wrong_fn)(rig_member_t *m, rg_group_t *g, int bad, const rg_opts_t *o, float *x, float *out);

static rg_status_t wrong_type(rig_member_t *m, rg_group_t *g, int bad, const rg_opts_t *o, float *x, float *out) {
    (void)m;
    return rg_all_reduce(g, x, out, 4, bad ? (rg_dtype_t)99 : RG_F32, RG_SUM, o, NULL);
}
static rg_status_t wrong_operator(rig_member_t *m, rg_group_t *g, int bad, const rg_opts_t *o, float *x, float *out) {
    (void)m;
    return rg_all_reduce(g, x, out, 4, RG_F32, bad ? (rg_op_t)77 : RG_SUM, o, NULL);
}
static rg_status_t wrong_average(rig_member_t *m, rg_group_t *g, int bad, const rg_opts_t *o, float *x, float *out) {
    (void)m;
    return rg_all_reduce(g, x, out, 4, bad ? RG_I32 : RG_F32, RG_AVG, o, NULL);
}
static rg_status_t wrong_root(rig_member_t *m, rg_group_t *g, int bad, const rg_opts_t *o, float *x, float *out) {
    (void)m, (void)out;
    return rg_broadcast(g, x, 4, RG_F32, bad ? 9 : 0, o, NULL);
}
static rg_status_t wrong_overlap(rig_member_t *m, rg_group_t *g, int bad, const rg_opts_t *o, float *x, float *out) {
    (void)m;
    return rg_all_reduce(g, x, bad ? x + 1 : out, 4, RG_F32, RG_SUM, o, NULL);
}
static rg_status_t wrong_counts(rig_member_t *m, rg_group_t *g, int bad, const rg_opts_t *o, float *x, float *out) {
    static const uint64_t counts[RIG_MAX] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    (void)m;
    return rg_all_gather_v(g, x, out, bad ? NULL : counts, NULL, RG_F32, o, NULL);
}
static rg_status_t wrong_flags(rig_member_t *m, rg_group_t *g, int bad, const rg_opts_t *o, float *x, float *out) {
    rg_opts_t p = *o;
    (void)m;
    p.flags = bad ? 4 : 0;
    return rg_all_reduce(g, x, out, 4, RG_F32, RG_SUM, &p, NULL);
}
static rg_status_t wrong_options(rig_member_t *m, rg_group_t *g, int bad, const rg_opts_t *o, float *x, float *out) {
    rg_opts_t p = *o;
    (void)m;
    if (bad) p.struct_size = 0;
    return rg_all_reduce(g, x, out, 4, RG_F32, RG_SUM, &p, NULL);
}
static rg_status_t wrong_list(rig_member_t *m, rg_group_t *g, int bad, const rg_opts_t *o, float *x, float *out) {
    const void *in[1] = { bad ? NULL : x };
    void *to[1] = { out };
    static const uint64_t counts[1] = { 4 };
    (void)m;
    return rg_all_reduce_list(g, in, to, counts, 1, RG_F32, RG_SUM, o, NULL);
}
static rg_status_t wrong_barrier(rig_member_t *m, rg_group_t *g, int bad, const rg_opts_t *o, float *x, float *out) {
    rg_opts_t p = *o;
    (void)m, (void)x, (void)out;
    if (bad) p.on_fault = (rg_on_fault_t)9;
    return rg_barrier(g, &p, NULL);
}
static rg_status_t wrong_request(rig_member_t *m, rg_group_t *g, int bad, const rg_opts_t *o, float *x, float *out) {
    rg_request_t *req = NULL;
    (void)m;
    rg_status_t st = rg_all_reduce(g, bad ? NULL : x, out, 4, RG_F32, RG_SUM, o, &req);
    if (bad) return req ? RG_ERR_BUG : st;
    return st == RG_OK ? rg_wait(req, NULL) : st;
}
static const wrong_fn wrongs[] = { wrong_type,    wrong_operator, wrong_average, wrong_root,
                                   wrong_overlap, wrong_counts,   wrong_flags,   wrong_options,
                                   wrong_list,    wrong_barrier,  wrong_request };

typedef struct where {
    uint32_t tag;
    int child;
} where_t;

static int each_is_refused(rig_member_t *m, void *arg) {
    const where_t *w = arg;
    rg_group_t *g = m->g;
    rg_opts_t o = RG_OPTS_INIT;
    o.tag = w->tag;
    o.timeout_ms = 30000;
    if (w->child) RIG_OK(m, rg_group_split(m->g, 0, m->index, NULL, &g));
    for (uint32_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        float x[8], out[8] = { 0 };
        int bad = m->index == i % m->rig->n;
        for (int k = 0; k < 8; k++) x[k] = (float)(m->index + 1);
        rg_status_t st = wrongs[i](m, g, bad, &o, x, out);
        RIG_NEED(m, bad ? st == RG_ERR_INVALID || st == RG_ERR_NOTSUP : st == RG_ERR_MISMATCH, "%u: %s", i,
                 rg_status_name(st));
        for (int k = 0; k < 8; k++) x[k] = (float)(100 * i + m->index);
        st = rg_all_reduce(g, x, out, 4, RG_F32, RG_SUM, &o, NULL);
        RIG_NEED(m, st == RG_OK && out[0] == (float)(300 * i + 3), "%u: then: %s %g", i, rg_status_name(st),
                 (double)out[0]);
    }
    if (w->child) rg_group_destroy(g);
    return 0;
}

Test(refused, every_way_to_refuse__the_others_get_a_mismatch_and_the_next_call_is_whole) {
    where_t w[] = { { 0, 0 }, { 7, 0 }, { 0, 1 }, { 7, 1 } };
    for (size_t i = 0; i < sizeof w / sizeof *w; i++)
        rig_run(3, i % 2 ? "tcp" : "inproc", NULL, each_is_refused, &w[i]);
}

/* All make the same mistake: all are told what it is, and go on. */
static int all_are_refused(rig_member_t *m, void *arg) {
    int x[4] = { 1, 1, 1, 1 };
    rg_request_t *req;
    (void)arg;
    for (int i = 0; i < 3; i++) {
        RIG_NEED(m, rg_all_reduce(m->g, x, x, 4, RG_I32, RG_AVG, NULL, NULL) == RG_ERR_NOTSUP, "blocking");
        RIG_NEED(m, strstr(rig_errmsg(m), "average of integers"), "%s", rig_errmsg(m));
        RIG_NEED(m, rg_all_reduce(m->g, x, x, 4, RG_I32, RG_AVG, NULL, &req) == RG_ERR_NOTSUP && !req, "a request");
        RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    }
    RIG_OK(m, rg_all_reduce(m->g, x, x, 4, RG_I32, RG_SUM, NULL, NULL));
    RIG_NEED(m, x[0] == 3, "%d", x[0]);
    return 0;
}

Test(refused, all_make_the_same_mistake__all_are_told_and_go_on) { rig_run(3, "inproc", NULL, all_are_refused, NULL); }

/* Member 0 sends three messages, of which the second cannot be sent; member 1 must not take the third for it. */
static int message_is_refused(rig_member_t *m, void *arg) {
    int batch = *(int *)arg;
    float a[3] = { 1, 2, 3 }, b[3] = { 0 };
    rg_status_t st[3], end = RG_OK;
    if (batch) RIG_OK(m, rg_batch_begin(m->g));
    for (int i = 0; i < 3; i++) {
        int bad = m->index == 0 && i == 1;
        rg_opts_t o = RG_OPTS_INIT;
        o.flags = bad && batch == 2; /* seen when it is noted */
        st[i] = m->index == 0 ? rg_send(m->g, bad && batch != 2 ? NULL : &a[i], 1, RG_F32, 1, &o, NULL)
                              : rg_recv(m->g, &b[i], 1, RG_F32, 0, NULL, NULL);
    }
    if (batch) end = rg_batch_end(m->g, NULL);
    rg_status_t own = m->index ? RG_ERR_MISMATCH : batch == 2 ? RG_ERR_NOTSUP : RG_ERR_INVALID;
    if (!batch) RIG_NEED(m, st[0] == RG_OK && st[1] == own && st[2] == RG_OK, "%d %d %d", st[0], st[1], st[2]);
    else RIG_NEED(m, end == own, "%s: %s", rg_status_name(end), rig_errmsg(m));
    if (m->index)
        RIG_NEED(m, b[0] == 1.0f && b[1] == 0.0f && b[2] == 3.0f, "%g %g %g", (double)b[0], (double)b[1], (double)b[2]);
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    return 0;
}

Test(refused, a_message__alone_or_in_a_batch__its_other_end_is_told_and_the_others_arrive) {
    for (int batch = 0; batch < 3; batch++) rig_run(2, batch ? "tcp" : "inproc", NULL, message_is_refused, &batch);
}

/* ---- Calls that are made of operations ----------------------------------------------------------------------------
 */

typedef struct made {
    rg_quantiser_t *quant;
    rg_sparse_reducer_t *sparse;
    rg_topk_reducer_t *topk;
    rg_state_t *state;
} made_t;

static rg_status_t made_call(rig_member_t *m, made_t *t, uint32_t i, int bad, float *x, float *out) {
    rg_seeded_how_t how = RG_SEEDED_HOW_INIT;
    rg_group_t *child = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    rg_state_opts_t so = RG_STATE_OPTS_INIT;
    rg_status_t st;
    how.count = 8;
    o.timeout_ms = 30000;
    switch (i) {
    case 0: return rg_quant_all_reduce(t->quant, bad ? NULL : x, out, 64, RG_SUM, &o);
    case 1: return rg_quant_all_gather(t->quant, bad ? NULL : x, out, 16, &o);
    case 2: return rg_topk_all_reduce(t->topk, bad ? NULL : x, out, 64, RG_SPARSE_SUM, &o);
    case 3: return rg_seeded_all_reduce(t->sparse, bad ? NULL : x, out, 64, RG_F32, &how, &o);
    case 4:
        o.flags = 0;
        if (bad) o.scale = 2;
        return rg_quant_all_reduce(t->quant, x, out, 64, RG_SUM, &o);
    case 5:
        if (bad) o.tag = 3;
        st = rg_group_split(m->g, 0, 0, &o, &child);
        rg_group_destroy(child);
        return st;
    default: so.rule = bad ? (rg_state_rule_t)9 : RG_STATE_POPULAR; return rg_state_sync(m->g, t->state, &so, NULL);
    }
}

static int made_is_refused(rig_member_t *m, void *arg) {
    made_t t = { 0 };
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I8);
    rg_topk_t k = RG_TOPK_INIT;
    float kept[4] = { 0 };
    rg_error_t err;
    (void)arg;
    k.k = 4;
    RIG_OK(m, rg_quantiser_create(m->g, &q, NULL, &t.quant, NULL));
    RIG_OK(m, rg_topk_reducer_create(m->g, &k, NULL, &t.topk, NULL));
    RIG_OK(m, rg_sparse_reducer_create(m->g, &t.sparse, NULL));
    RIG_OK(m, rg_state_create(&t.state, &err));
    RIG_OK(m, rg_state_add(t.state, "w", kept, 4, RG_F32, &err));
    for (uint32_t i = 0; i < 7; i++) {
        float x[64], out[256] = { 0 };
        int bad = m->index == i % m->rig->n;
        for (int j = 0; j < 64; j++) x[j] = 1.0f;
        rg_status_t st = made_call(m, &t, i, bad, x, out);
        RIG_NEED(m, bad ? st == RG_ERR_INVALID || st == RG_ERR_NOTSUP : st == RG_ERR_MISMATCH, "%u: %s", i,
                 rg_status_name(st));
        for (int j = 0; j < 256; j++) RIG_NEED(m, out[j] == 0.0f, "%u: the output was written", i);
        for (int j = 0; j < 64; j++) x[j] = 2.0f;
        st = made_call(m, &t, i, 0, x, out);
        RIG_NEED(m, st == RG_OK, "%u: then: %s: %s", i, rg_status_name(st), rig_errmsg(m));
        if (i == 0) RIG_NEED(m, out[0] > 5.5f && out[0] < 6.5f, "%g", (double)out[0]);
        RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    }
    rg_quantiser_destroy(t.quant);
    rg_topk_reducer_destroy(t.topk);
    rg_sparse_reducer_destroy(t.sparse);
    rg_state_destroy(t.state);
    return 0;
}

Test(refused, calls_made_of_operations__the_others_get_a_mismatch_and_the_next_call_is_whole) {
    rig_run(3, "inproc", NULL, made_is_refused, NULL);
    rig_run(3, "tcp", NULL, made_is_refused, NULL);
}

/* ---- Calls that do not block, and what else is refused before it is queued ----------------------------------------
 */

/* Begins call i and waits for it; `bad` makes it one that is refused before it is in the queue. */
static rg_status_t later_call(made_t *t, uint32_t i, int bad, float *x, float *out) {
    rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
    rg_seeded_how_t seeded = RG_SEEDED_HOW_INIT;
    rg_quant_request_t *q = NULL;
    rg_sparse_request_t *s = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    rg_status_t st;
    seeded.count = 8;
    o.tag = 5 + i % 2;
    o.timeout_ms = 30000;
    rg_sparse_t in = RG_SPARSE_INIT, to = RG_SPARSE_INIT;
    in.n = to.n = in.values = to.values = 64;
    in.dtype = to.dtype = RG_F32;
    in.index = to.index = RG_INDEX_DENSE;
    in.val = x, to.val = out;
    if (bad && i % 2) o.struct_size = 0;
    switch (i / 2) {
    case 0: st = rg_quant_iall_reduce(t->quant, x, out, 64, RG_SUM, &o, bad && i % 2 == 0 ? NULL : &q); break;
    case 1: st = rg_quant_iall_gather(t->quant, x, out, 16, &o, bad && i % 2 == 0 ? NULL : &q); break;
    case 2: st = rg_topk_iall_reduce(t->topk, x, out, 64, RG_SPARSE_SUM, &o, bad && i % 2 == 0 ? NULL : &s); break;
    case 3:
        st = rg_seeded_iall_reduce(t->sparse, x, out, 64, RG_F32, &seeded, &o, bad && i % 2 == 0 ? NULL : &s);
        break;
    default:
        if (bad && i % 2 == 0) how.op = (rg_sparse_op_t)99;
        st = rg_sparse_iall_reduce(t->sparse, i == 10 && bad ? NULL : &in, &to, &how, &o, &s);
        break;
    }
    if (st == RG_OK) st = q ? rg_quant_wait(q, NULL) : rg_sparse_wait(s, NULL);
    return st;
}

static int made_start(rig_member_t *m, made_t *t) {
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I8);
    rg_topk_t k = RG_TOPK_INIT;
    k.k = 4;
    RIG_OK(m, rg_quantiser_create(m->g, &q, NULL, &t->quant, NULL));
    RIG_OK(m, rg_topk_reducer_create(m->g, &k, NULL, &t->topk, NULL));
    RIG_OK(m, rg_sparse_reducer_create(m->g, &t->sparse, NULL));
    return 0;
}

static void made_end(made_t *t) {
    rg_quantiser_destroy(t->quant);
    rg_topk_reducer_destroy(t->topk);
    rg_sparse_reducer_destroy(t->sparse);
}

static int later_is_refused(rig_member_t *m, void *arg) {
    made_t t = { 0 };
    (void)arg;
    if (made_start(m, &t)) return 1;
    for (uint32_t i = 0; i < 11; i++) {
        float x[64], out[256] = { 0 };
        int bad = m->index == i % m->rig->n;
        for (int j = 0; j < 64; j++) x[j] = 1.0f;
        rg_status_t st = later_call(&t, i, bad, x, out);
        RIG_NEED(m, st == (bad ? RG_ERR_INVALID : RG_ERR_MISMATCH), "%u: %s: %s", i, rg_status_name(st), rig_errmsg(m));
        for (int j = 0; j < 256; j++) RIG_NEED(m, out[j] == 0.0f, "%u: the output was written", i);
        for (int j = 0; j < 64; j++) x[j] = 2.0f;
        st = later_call(&t, i, 0, x, out);
        RIG_NEED(m, st == RG_OK, "%u: then: %s: %s", i, rg_status_name(st), rig_errmsg(m));
        if (i < 2 || i > 7) RIG_NEED(m, out[0] > 5.5f && out[0] < 6.5f, "%u: %g", i, (double)out[0]);
        RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    }
    made_end(&t);
    return 0;
}

Test(refused, calls_that_do_not_block__before_they_are_queued__the_others_get_a_mismatch_and_the_next_is_whole,
     .timeout = 120) {
    rig_run(3, "inproc", NULL, later_is_refused, NULL);
    rig_run(3, "tcp", NULL, later_is_refused, NULL);
}

/* Member 0 makes a call of a reducer that is busy with one of the same tag: it is refused behind that one. */
static int busy_is_refused(rig_member_t *m, void *arg) {
    rg_quantiser_t *z;
    rg_quant_request_t *req;
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I8);
    rg_opts_t o = RG_OPTS_INIT;
    float x[64], out[64], sums[3][64] = { { 0 } };
    rg_status_t st;
    (void)arg;
    o.tag = 9;
    o.timeout_ms = 30000;
    RIG_OK(m, rg_quantiser_create(m->g, &q, NULL, &z, NULL));
    for (int k = 0; k < 64; k++) x[k] = 1.0f;
    RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate"); /* the other one's handle is there */
    if (m->index == 0) {
        RIG_OK(m, rg_quant_iall_reduce(z, x, sums[0], 64, RG_SUM, &o, &req));
        RIG_NEED(m, rg_quant_all_reduce(z, x, out, 64, RG_SUM, &o) == RG_ERR_INVALID, "not busy");
        RIG_NEED(m, strstr(rig_errmsg(m), "one call at a time"), "%s", rig_errmsg(m));
    } else {
        uint64_t give_up = rig_now() + 20000000000ull;
        char said[256] = "";
        while (!strstr(said, "one call at a time") && rig_now() < give_up) {
            sched_yield();
            rg_group_errmsg(m->rig->member[0].g, said, sizeof said);
        }
        RIG_OK(m, rg_quant_iall_reduce(z, x, sums[0], 64, RG_SUM, &o, &req));
    }
    RIG_OK(m, rg_quant_wait(req, NULL));
    if (m->index == 1) {
        st = rg_quant_all_reduce(z, x, sums[1], 64, RG_SUM, &o);
        RIG_NEED(m, st == RG_ERR_MISMATCH, "%s: %s", rg_status_name(st), rig_errmsg(m));
    }
    for (int k = 0; k < 64; k++) x[k] = 2.0f;
    RIG_OK(m, rg_quant_all_reduce(z, x, sums[2], 64, RG_SUM, &o));
    RIG_NEED(m, sums[0][0] > 1.5f && sums[0][0] < 2.5f && sums[2][0] > 3.5f && sums[2][0] < 4.5f, "%g %g",
             (double)sums[0][0], (double)sums[2][0]);
    rg_quantiser_destroy(z);
    return 0;
}

Test(refused, a_call_of_a_busy_quantiser__is_refused_behind_those_that_are_queued, .timeout = 100) {
    rig_run(2, "inproc", NULL, busy_is_refused, NULL);
}

/* With as many operations as a member may have in flight there is no place for a call that is refused: it is told so,
 * as its next one would be taken for it. */
#define FLYING 512

static int no_place(rig_member_t *m, void *arg) {
    made_t t = { 0 };
    static float got[FLYING];
    rg_request_t *req[FLYING];
    rg_group_t *child = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    float x[64] = { 0 }, out[64];
    (void)arg;
    if (made_start(m, &t)) return 1;
    if (m->index == 1) {
        for (int i = 0; i < FLYING; i++) RIG_OK(m, rg_recv(m->g, &got[i], 1, RG_F32, 0, NULL, &req[i]));
        rg_status_t st[5];
        st[0] = rg_all_reduce(m->g, NULL, out, 64, RG_F32, RG_SUM, NULL, NULL);
        st[1] = rg_quant_all_reduce(t.quant, NULL, out, 64, RG_SUM, NULL);
        st[2] = rg_group_split(m->g, 0, 0, NULL, NULL);
        st[3] = rg_state_sync(m->g, NULL, NULL, NULL);
        o.tag = 3;
        st[4] = rg_group_split(m->g, 0, 0, &o, &child);
        for (int i = 0; i < 5; i++) RIG_NEED(m, st[i] == RG_ERR_RESOURCE, "%d: %s", i, rg_status_name(st[i]));
    }
    RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    for (int i = 0; i < FLYING; i++) {
        float v = (float)i;
        if (m->index == 0) RIG_OK(m, rg_send(m->g, &v, 1, RG_F32, 1, NULL, NULL));
        else RIG_OK(m, rg_wait(req[i], NULL));
    }
    RIG_OK(m, rg_quant_all_reduce(t.quant, x, out, 64, RG_SUM, NULL));
    made_end(&t);
    return 0;
}

Test(refused, calls_made_of_operations_where_no_more_can_be_in_flight__have_no_place_and_say_so, .timeout = 100) {
    rig_run(2, "inproc", NULL, no_place, NULL);
}

/* ---- Two members, that know the shape of what they do -------------------------------------------------------------
 */

static rg_status_t of_two(rig_member_t *m, uint32_t kind, const float *in, float *out) {
    rg_opts_t o = RG_OPTS_INIT;
    o.timeout_ms = 30000;
    switch (kind) {
    case 0: return rg_all_gather(m->g, in, out, 16, RG_F32, &o, NULL);
    case 1: return rg_reduce_scatter(m->g, in, out, 16, RG_F32, RG_SUM, &o, NULL);
    default: return rg_all_to_all(m->g, in, out, 16, RG_F32, &o, NULL);
    }
}

static int two_are_refused(rig_member_t *m, void *arg) {
    int in_place = *(int *)arg;
    for (uint32_t kind = 0; kind < 3; kind++)
        for (uint32_t turn = 0; turn < 12; turn++) {
            int refused = turn % 3 == 2, bad = refused && m->index == turn / 3 % 2;
            float a[32], b[32] = { 0 }, *in = a, *out = in_place ? a : b;
            float own = (float)(100 * turn + 10 * m->index), other = (float)(100 * turn + 10 * (1 - m->index));
            for (int i = 0; i < 32; i++) a[i] = own;
            if (in_place && kind == 0) in = a + 16 * m->index;
            if (in_place && kind == 1) out = a + 16 * m->index;
            rg_status_t st = of_two(m, kind, bad ? NULL : in, out);
            RIG_NEED(m,
                     st == (bad       ? RG_ERR_INVALID
                            : refused ? RG_ERR_MISMATCH
                                      : RG_OK),
                     "%u.%u: %s: %s", kind, turn, rg_status_name(st), rig_errmsg(m));
            for (int i = 0; refused && i < 32; i++)
                RIG_NEED(m, a[i] == own, "%u.%u: the input is not whole", kind, turn);
            if (refused) continue;
            float mine = out[kind == 1 ? 0 : 16 * m->index], others = out[kind == 1 ? 0 : 16 * (1 - m->index)];
            if (kind == 1) RIG_NEED(m, mine == own + other, "%u.%u: %g", kind, turn, (double)mine);
            else RIG_NEED(m, mine == own && others == other, "%u.%u: %g %g", kind, turn, (double)mine, (double)others);
        }
    return 0;
}

Test(refused, of_two_members_one_is_refused__the_other_one_s_input_is_whole_and_so_is_the_next_call, .timeout = 60) {
    for (int in_place = 0; in_place < 2; in_place++)
        for (size_t t = 0; t < sizeof transports / sizeof *transports; t++)
            rig_run(2, transports[t], NULL, two_are_refused, &in_place);
}
