/* test_engine_faults.c: groups of threads whose members are cancelled, late, aborted, leave, come back or die in mid
 * operation. To die here is rg_group_abort(): to the others a sudden death. What must hold: survivors agree on status,
 * contributors and bits, inputs are intact after an error, no buffer is touched after it was given back, every call
 * ends in time. It relies on engine_rig.h; moments of death are spun for, never slept for. */
#include "engine_rig.h"

#include "api.h"
#include "engine/lifecycle.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

static const char *const transports[] = { "inproc", "tcp" };

/* What member `id` puts in: small integers, so that sums are exact whatever the order, and no two members alike. */
static float value_of(uint64_t id, uint64_t i) { return (float)(1 + (id * 37 + i) % 101); }

static void fill(float *x, uint64_t count, uint64_t id) {
    for (uint64_t i = 0; i < count; i++) x[i] = value_of(id, i);
}

static int is_input(const float *x, uint64_t count, uint64_t id) {
    for (uint64_t i = 0; i < count; i++)
        if (x[i] != value_of(id, i)) return 0;
    return 1;
}

static int is_sum(const float *x, uint64_t count, const uint64_t *ids, uint32_t n) {
    float want[101];
    for (uint64_t i = 0; i < 101; i++) {
        want[i] = 0;
        for (uint32_t k = 0; k < n; k++) want[i] += value_of(ids[k], i);
    }
    for (uint64_t i = 0; i < count; i++)
        if (x[i] != want[i % 101]) return 0;
    return 1;
}

static uint64_t own_id(rig_member_t *m) {
    rg_info_t info = RG_INFO_INIT;
    rg_group_info(m->g, &info);
    return info.member_id;
}

static int sum_now(rig_member_t *m, uint64_t count, rg_result_t *res, uint64_t *ids) {
    float *x = malloc((count + 1) * sizeof *x);
    rg_opts_t o = RG_OPTS_INIT;
    *res = (rg_result_t)RG_RESULT_INIT;
    res->contributor_ids = ids;
    res->contributor_cap = RIG_MAX;
    o.result = res;
    fill(x, count, own_id(m));
    rg_status_t st = rg_all_reduce(m->g, x, x, count, RG_F32, RG_SUM, &o, NULL);
    int right = st == RG_OK && is_sum(x, count, ids, res->contributors);
    free(x);
    RIG_NEED(m, right, "sum of %llu: %s %s, %u contributors", (unsigned long long)count, rg_status_name(st), res->text,
             res->contributors);
    return 0;
}

/* Operations until exactly `want` members contribute. */
static int settle_at(rig_member_t *m, uint32_t want) {
    rg_result_t res;
    uint64_t ids[RIG_MAX], until = rig_now() + 30000000000ull;
    do {
        if (sum_now(m, 100, &res, ids)) return 1;
    } while (res.contributors != want && rig_now() < until);
    RIG_NEED(m, res.contributors == want, "%u contributors, not %u", res.contributors, want);
    return 0;
}

/* ---- Cancel and deadlines -------------------------------------------------------------------------------------- */

/* Member 0 does not call; member 1 cancels; all get CANCELLED, and member 0 when it calls at last. */
static int cancelled(rig_member_t *m, void *arg) {
    uint32_t n = m->rig->n, round = 0;
    float *x = malloc(200000 * sizeof *x);
    (void)arg;
    for (uint64_t count = 10; count <= 200000; count *= 20, round++)
        for (uint32_t tag = 0; tag < 2; tag++) {
            rg_opts_t o = RG_OPTS_INIT;
            rg_result_t res = RG_RESULT_INIT;
            rg_request_t *req = NULL;
            uint32_t gate = round * 2 + tag;
            uint64_t id = own_id(m);
            o.tag = tag;
            fill(x, count, id);
            if (m->index == 0 && rig_gate(m, gate, n)) return 1; /* the others have their answer */
            RIG_OK(m, rg_all_reduce(m->g, x, x, count, RG_F32, RG_SUM, &o, &req));
            if (m->index == 1) RIG_OK(m, rg_cancel(req));
            rg_status_t st = rg_wait(req, &res);
            RIG_NEED(m, st == RG_ERR_CANCELLED && res.status == st && res.text[0], "%s %s", rg_status_name(st),
                     res.text);
            RIG_NEED(m, is_input(x, count, id), "the input of a cancelled operation was changed");
            if (m->index) rig_pass(m, gate);
            rg_result_t after;
            uint64_t ids[RIG_MAX];
            if (sum_now(m, 1000, &after, ids)) return 1;
            RIG_NEED(m, after.contributors == n, "somebody was lost");
        }
    free(x);
    RIG_OK(m, rg_group_leave(m->g));
    return 0;
}

Test(engine_faults, cancel__every_member_gets_it__inputs_intact) {
    for (size_t i = 0; i < 2; i++) rig_run(3, transports[i], NULL, cancelled, NULL);
}

/* A cancel that comes too late or just in time: one outcome for all. */
static int cancel_races(rig_member_t *m, void *arg) {
    uint32_t n = m->rig->n;
    int *outcome = arg;
    float *x = malloc(50000 * sizeof *x);
    uint64_t seed = rig_seed(5), ids[RIG_MAX];
    for (uint32_t k = 0; k < n; k++) rg_group_member(m->g, k, &ids[k]);
    for (uint32_t i = 0; i < 30; i++) {
        uint64_t count = i % 2 ? 50000 : 500, wait = rig_random(&seed) % 300000;
        rg_request_t *req = NULL;
        fill(x, count, own_id(m));
        RIG_OK(m, rg_all_reduce(m->g, x, x, count, RG_F32, RG_SUM, NULL, &req));
        for (uint64_t t = rig_now(); m->index == i % n && rig_now() - t < wait;) {}
        if (m->index == i % n) RIG_OK(m, rg_cancel(req));
        rg_status_t st = rg_wait(req, NULL);
        RIG_NEED(m, st == RG_OK || st == RG_ERR_CANCELLED, "%s", rg_status_name(st));
        RIG_NEED(m, st ? is_input(x, count, own_id(m)) : is_sum(x, count, ids, n), "%s: contents", rg_status_name(st));
        outcome[i * RIG_MAX + m->index] = st;
        if (rig_gate(m, i, n)) return 1;
        for (uint32_t k = 0; k < n; k++)
            RIG_NEED(m, outcome[i * RIG_MAX + k] == (int)st, "members %u and %u disagree in round %u", m->index, k, i);
    }
    free(x);
    return 0;
}

Test(engine_faults, cancel__races_with_completion__one_outcome) {
    static int outcome[64 * RIG_MAX];
    for (size_t i = 0; i < 2; i++) rig_run(3, transports[i], NULL, cancel_races, outcome);
}

/* The deadline holds whoever drives: a blocking call, a wait behind another thread's call, a request that is tested. */
static int late(rig_member_t *m, void *arg) {
    float x[500];
    rg_opts_t o = RG_OPTS_INIT;
    rg_result_t res = RG_RESULT_INIT;
    uint64_t id = own_id(m);
    (void)arg;
    for (uint32_t round = 0; round < 3; round++) {
        rg_request_t *req = NULL;
        rg_status_t st;
        o.timeout_ms = 300;
        o.result = &res;
        fill(x, 500, id);
        if (m->index == 0 && rig_gate(m, round, m->rig->n)) return 1;
        uint64_t begin = rig_now();
        if (round == 0) {
            st = rg_all_reduce(m->g, x, x, 500, RG_F32, RG_SUM, &o, NULL);
        } else {
            RIG_OK(m, rg_all_reduce(m->g, x, x, 500, RG_F32, RG_SUM, &o, &req));
            do st = round == 1 ? rg_wait(req, &res) : rg_test(req, &res);
            while (st == RG_AGAIN);
        }
        double ms = (double)(rig_now() - begin) / 1e6;
        RIG_NEED(m, st == RG_ERR_TIMEOUT && strstr(res.text, "deadline"), "%s %s", rg_status_name(st), res.text);
        RIG_NEED(m, is_input(x, 500, id), "input");
        RIG_NEED(m, ms < (m->index ? 300 : 0) + 250 * RIG_SLOW + rig_late_ms(begin), "after %.0f ms", ms);
        if (m->index) {
            RIG_NEED(m, ms > 290, "after %.0f ms", ms);
            rig_pass(m, round);
        }
        uint64_t ids[RIG_MAX];
        if (sum_now(m, 1000, &res, ids)) return 1;
    }
    return 0;
}

Test(engine_faults, deadline__passes__in_time_and_everywhere) {
    for (size_t i = 0; i < 2; i++) rig_run(3, transports[i], NULL, late, NULL);
}

/* ---- A result that the other one has shown ---------------------------------------------------------------------- */

typedef struct shown {
    rg_kind_t kind;
    uint64_t count;
    int in_place, scaled;
} shown_t;

#define SHOWN_MOST 4096u /* elements of a segment */

/* Element i of segment `seg` of the result at rank r. */
static float shown_value(const shown_t *w, const uint64_t *ids, uint32_t r, uint32_t seg, uint64_t i) {
    if (w->kind == RG_KIND_ALL_GATHER) return value_of(ids[seg], i);
    if (w->kind == RG_KIND_ALL_TO_ALL) return value_of(ids[seg], r * w->count + i);
    return (w->scaled ? 2 : 1) * value_of(ids[0], r * w->count + i) + value_of(ids[1], r * w->count + i);
}

static int is_shown(const shown_t *w, const uint64_t *ids, uint32_t r, const float *out) {
    for (uint32_t seg = 0; seg < (w->kind == RG_KIND_REDUCE_SCATTER ? 1u : 2u); seg++)
        for (uint64_t i = 0; i < w->count; i++)
            if (out[seg * w->count + i] != shown_value(w, ids, r, seg, i)) return 0;
    return 1;
}

/* Where input and output are: of one buffer in place. */
static void shown_buffers(const shown_t *w, uint32_t r, float *a, float *b, float **in, float **out) {
    *in = a;
    *out = w->in_place ? a : b;
    if (w->in_place && w->kind == RG_KIND_ALL_GATHER) *in = a + r * w->count;
    if (w->in_place && w->kind == RG_KIND_REDUCE_SCATTER) *out = a + r * w->count;
}

/* Member 1 has sent, and is held up until member 0 has its result and has written over all of its input; then it
 * cancels, and is behind the fence before it looks at what member 0 sent. What member 0 has shown it must get. */
static int shown_already(rig_member_t *m, void *arg) {
    const shown_t *w = arg;
    static _Thread_local float a[2 * SHOWN_MOST], b[2 * SHOWN_MOST];
    uint64_t ids[RIG_MAX], n = w->count * (w->kind == RG_KIND_ALL_GATHER ? 1 : 2), until = rig_now() + 30000000000ull;
    rg_result_t res;
    if (sum_now(m, 10, &res, ids)) return 1;
    for (uint32_t turn = 0; turn < 3; turn++) { /* the first two are only to have been called before */
        float *in, *out;
        rg_opts_t o = RG_OPTS_INIT, resolved;
        shown_buffers(w, m->index, a, b, &in, &out);
        memset(a, 0, sizeof a);
        memset(b, 0, sizeof b);
        fill(in, n, ids[m->index]);
        if (w->scaled && m->index == 0) o.scale = 2;
        const rg_call_t c = { .kind = w->kind, .in = in, .out = out, .count = w->count, .dtype = RG_F32, .op = RG_SUM };
        if (turn < 2 || m->index == 0) {
            if (turn == 2 && rig_gate(m, 0, 2)) return 1;
            RIG_OK(m, rg_call_run(m->g, &c, &o, NULL));
            RIG_NEED(m, is_shown(w, ids, m->index, out), "kind %d: not the result", (int)w->kind);
            memset(a, 0xee, sizeof a);
            if (turn == 2) rig_pass(m, 1);
            continue;
        }
        rg_request_t *op;
        RIG_OK(m, rg_call_opts(m->g, &c, &o, 0, &resolved));
        rg_lock(m->g);
        rg_status_t st = rg_call_make(m->g, &c, &resolved, &op);
        if (st == RG_OK) st = rg_op_submit(op);
        int bad = st != RG_OK || rig_gate(m, 0, 2) || rig_gate(m, 1, 2);
        if (!bad) {
            rg_op_fail(op, RG_ERR_CANCELLED, ids[1], "cancelled by a member");
            while (op->executing && rig_now() < until) rg_control_poll(m->g, rg_os_now_ns());
        }
        rg_unlock(m->g);
        RIG_NEED(m, !bad && rig_now() < until, "%s, or no fence", rg_status_name(st));
        rg_result_t got = RG_RESULT_INIT;
        st = rg_wait(op, &got);
        RIG_NEED(m, st == RG_OK && got.retries == 0 && got.contributors == 2, "kind %d: %s %s", (int)w->kind,
                 rg_status_name(st), got.text);
        RIG_NEED(m, is_shown(w, ids, 1, out), "kind %d: not what the other one has shown", (int)w->kind);
    }
    return sum_now(m, 10, &res, ids);
}

Test(engine_faults, cancel__the_other_of_two_has_shown_its_result__gets_the_same) {
    static const rg_kind_t kinds[] = { RG_KIND_ALL_GATHER, RG_KIND_REDUCE_SCATTER, RG_KIND_ALL_TO_ALL };
    static const uint64_t counts[] = { 1, 700, SHOWN_MOST };
    for (uint32_t i = 0; i < 36; i++) {
        shown_t w = { kinds[i % 3], counts[i / 3 % 3], (int)(i / 9 % 2), 0 };
        w.scaled = w.kind == RG_KIND_REDUCE_SCATTER && i / 9 % 3 == 0;
        rig_run(2, i / 18 ? "shm" : "tcp", NULL, shown_already, &w);
    }
}

/* ---- Without a coordinator ------------------------------------------------------------------------------------- */

/* The coordinator is stopped. Operations go on; one that cannot end does so by its deadline and what a lost
 * coordinator takes to be noticed, and its buffer is the caller's: what the late member sends then must not land there.
 */
static int no_coordinator(rig_member_t *m, void *arg) {
    uint64_t count = *(uint64_t *)arg, id = own_id(m), ids[RIG_MAX];
    float *x = malloc(count * sizeof *x);
    rg_opts_t o = RG_OPTS_INIT;
    rg_result_t res;
    if (sum_now(m, 1000, &res, ids)) return 1;
    if (rig_gate(m, 0, m->rig->n)) return 1;
    if (m->index == 0) {
        rg_coordinator_stop(m->rig->coordinator);
        m->rig->coordinator = NULL;
    }
    if (rig_gate(m, 1, m->rig->n)) return 1;
    for (int i = 0; i < 10; i++)
        if (sum_now(m, i * 3000 + 10, &res, ids)) return 1;
    fill(x, count, id);
    o.timeout_ms = 200;
    if (m->index == 0 && rig_gate(m, 2, m->rig->n)) return 1;
    uint64_t begin = rig_now();
    rg_status_t st = rg_all_reduce(m->g, x, x, count, RG_F32, RG_SUM, &o, NULL);
    double ms = (double)(rig_now() - begin) / 1e6;
    double limit = 200 + m->rig->config.heartbeat_ms * 2 + 500.0 * RIG_SLOW + rig_late_ms(begin);
    /* The late one may find all that it needs for a small result. */
    RIG_NEED(m, (st != RG_OK || m->index == 0) && ms < limit, "%s after %.0f ms", rg_status_name(st), ms);
    RIG_NEED(m, st == RG_OK || is_input(x, count, id), "input");
    memset(x, 0x7e, count * sizeof *x); /* the buffer is ours: whatever comes from now on has no place to go */
    if (m->index) rig_pass(m, 2);
    if (rig_gate(m, 3, m->rig->n)) return 1;
    st = rg_all_reduce(m->g, NULL, NULL, 0, RG_F32, RG_SUM, &o, NULL); /* moves what is to be moved */
    for (uint64_t i = 0; i < count * sizeof *x; i++)
        RIG_NEED(m, ((uint8_t *)x)[i] == 0x7e, "a buffer was written after its operation had ended (then %s)",
                 rg_status_name(st));
    if (rig_gate(m, 4, m->rig->n)) return 1;
    begin = rig_now();
    rg_group_leave(m->g);
    RIG_NEED(m, (double)(rig_now() - begin) / 1e6 < 5000 * RIG_SLOW + rig_late_ms(begin), "leaving took %.0f ms",
             (rig_now() - begin) / 1e6);
    free(x);
    return 0;
}

Test(engine_faults, coordinator_lost__calls_end_in_time_and_buffers_are_given_back) {
    static const uint64_t counts[] = { 100, 300000 };
    rg_config_t c = RG_CONFIG_INIT;
    c.heartbeat_ms = 1200; /* and operations have three of it, also where others use the processors */
    c.op_timeout_ms = 3 * c.heartbeat_ms;
    setenv("RG_SUCCESSION", "off", 1); /* with it a member would take over */
    for (size_t i = 0; i < 4; i++) {
        uint64_t count = counts[i / 2];
        rig_run(3, transports[i % 2], &c, no_coordinator, &count);
    }
    unsetenv("RG_SUCCESSION");
}

/* ---- Abort and leave from another thread ------------------------------------------------------------------------ */

typedef struct waiter {
    rig_member_t *m;
    int how; /* 0 blocking, 1 wait, 2 test, 3 another blocking one (waits behind the first) */
    rg_status_t st;
    uint64_t ended;
    float *x;
    int intact;
} waiter_t;

#define WAITERS 4
#define WAITER_COUNT 100000u

static void *waiter_main(void *arg) {
    waiter_t *w = arg;
    rg_opts_t o = RG_OPTS_INIT;
    rg_request_t *req = NULL;
    o.tag = 10 + (uint32_t)w->how;
    uint64_t count = w->how == 2 ? 100 : WAITER_COUNT;
    fill(w->x, count, 3);
    rig_pass(w->m, 9);
    w->st = rg_all_reduce(w->m->g, w->x, w->x, count, RG_F32, RG_SUM, &o, w->how % 3 ? &req : NULL);
    if (req && w->how == 1) w->st = rg_wait(req, NULL);
    if (req && w->how == 2)
        while ((w->st = rg_test(req, NULL)) == RG_AGAIN) {}
    w->ended = rig_now();
    w->intact = is_input(w->x, count, 3);
    memset(w->x, 0x7e, WAITER_COUNT * sizeof *w->x);
    return NULL;
}

/* Ends member 0 while four of its threads wait for operations that member 1 has not called; those calls end with
 * `want` at once, their inputs intact, and nothing is written there when the others go on. */
static int end_under_waiters(rig_member_t *m, int leave, rg_status_t want) {
    if (m->index == 1) {
        if (rig_gate(m, 0, 2)) return 1;
        return settle_at(m, 1);
    }
    waiter_t w[WAITERS];
    pthread_t thread[WAITERS];
    rg_opts_t short_time = RG_OPTS_INIT;
    for (int i = 0; i < WAITERS; i++) {
        w[i] = (waiter_t){ m, i, RG_OK, 0, malloc(WAITER_COUNT * sizeof(float)), 0 };
        RIG_NEED(m, !pthread_create(&thread[i], NULL, waiter_main, &w[i]), "thread");
    }
    if (rig_gate(m, 9, WAITERS + 1)) return 1;
    short_time.tag = 30;
    short_time.timeout_ms = 20; /* then all of them have made their calls, and some have been started anew */
    rg_barrier(m->g, &short_time, NULL);
    uint64_t begin = rig_now();
    rg_status_t st = leave ? rg_group_leave(m->g) : rg_group_abort(m->g);
    for (int i = 0; i < WAITERS; i++) pthread_join(thread[i], NULL);
    RIG_NEED(m, st == RG_OK, "%s", rg_status_name(st));
    for (int i = 0; i < WAITERS; i++) {
        RIG_NEED(m, w[i].st == want, "thread %d: %s", i, rg_status_name(w[i].st));
        RIG_NEED(m, w[i].intact, "thread %d: input", i);
        RIG_NEED(m, (double)w[i].ended < (double)begin + 1e6 * (200 * RIG_SLOW + rig_late_ms(begin)),
                 "thread %d: after %.0f ms", i, (double)(w[i].ended - begin) / 1e6);
        for (uint32_t k = 0; k < WAITER_COUNT * sizeof(float); k++)
            RIG_NEED(m, ((uint8_t *)w[i].x)[k] == 0x7e, "thread %d: written to after its end", i);
        free(w[i].x);
    }
    RIG_NEED(m, rg_barrier(m->g, NULL, NULL) == want && rg_group_boundary(m->g, NULL) == want, "goes on");
    rig_pass(m, 0);
    return 0;
}

static int abort_body(rig_member_t *m, void *arg) {
    (void)arg;
    return end_under_waiters(m, 0, RG_ERR_ABORTED);
}

static int leave_body(rig_member_t *m, void *arg) {
    (void)arg;
    return end_under_waiters(m, 1, RG_ERR_CLOSED);
}

Test(engine_faults, abort__threads_wait__all_end_at_once) {
    for (size_t i = 0; i < 2; i++) rig_run(2, transports[i], NULL, abort_body, NULL);
}

Test(engine_faults, leave__threads_wait__all_end_at_once) {
    for (size_t i = 0; i < 2; i++) rig_run(2, transports[i], NULL, leave_body, NULL);
}

/* Another member stands still, so that neither is known what it still needs nor does a view without the one that leaves
 * come: the call ends within the operation deadline all the same. */
static int leave_beside_a_stopped_one(rig_member_t *m, void *arg) {
    rg_result_t res;
    uint64_t ids[RIG_MAX];
    (void)arg;
    if (sum_now(m, 10, &res, ids)) return 1;
    if (m->index == 1) {
        rg_lock(m->g);
        int bad = rig_gate(m, 0, 2) || rig_gate(m, 1, 2);
        rg_unlock(m->g);
        return bad;
    }
    if (rig_gate(m, 0, 2)) return 1;
    uint64_t begin = rig_now();
    RIG_OK(m, rg_group_leave(m->g));
    double ms = (double)(rig_now() - begin) / 1e6;
    RIG_NEED(m, ms < 1400 * RIG_SLOW + rig_late_ms(begin), "leaving took %.0f ms", ms);
    return rig_gate(m, 1, 2);
}

Test(engine_faults, leave__another_one_stands_still__within_the_operation_deadline) {
    rg_config_t config = RG_CONFIG_INIT;
    config.op_timeout_ms = 400 * RIG_SLOW;
    rig_run(2, "tcp", &config, leave_beside_a_stopped_one, NULL);
}

/* All leave at once after all kinds of operations: nobody waits for a time-out. */
static int leave_together(rig_member_t *m, void *arg) {
    rg_result_t res;
    uint64_t ids[RIG_MAX];
    (void)arg;
    if (sum_now(m, 100000, &res, ids) || sum_now(m, 10, &res, ids)) return 1;
    uint64_t begin = rig_now();
    RIG_OK(m, rg_group_leave(m->g));
    double ms = (double)(rig_now() - begin) / 1e6;
    RIG_NEED(m, ms < 500 * RIG_SLOW + rig_late_ms(begin), "leaving took %.0f ms", ms);
    return 0;
}

Test(engine_faults, leave__all_at_once__nobody_waits_for_a_heartbeat) {
    for (uint32_t i = 0; i < 20; i++) rig_run(1 + i % 4, transports[i % 2], NULL, leave_together, NULL);
}

/* ---- Death in mid operation ------------------------------------------------------------------------------------ */

#define ROUNDS (RIG_SLOW > 1 ? 12 : 40)

typedef struct deaths {
    rg_on_fault_t on_fault;
    int in_place;
    rg_switch_t undo;
    /* by round and member */
    rg_status_t status[64][RIG_MAX];
    uint32_t contributors[64][RIG_MAX];
    uint64_t ids[64][RIG_MAX][RIG_MAX];
    uint32_t completed, failed;
} deaths_t;

typedef struct killer {
    rig_member_t *m;
    uint64_t after_ns;
} killer_t;

static void *killer_main(void *arg) {
    killer_t *k = arg;
    for (uint64_t t = rig_now(); rig_now() - t < k->after_ns;) {}
    rg_group_abort(k->m->g);
    return NULL;
}

/* Boundaries until all n contribute again. A sum tells everybody the same, which the boundaries' own view of who is
 * there need not: one member may pass before a loss is known and another after. */
static int together_again(rig_member_t *m) {
    uint64_t until = rig_now() + 30000000000ull * RIG_SLOW, ids[RIG_MAX];
    rg_change_t c = RG_CHANGE_INIT;
    rg_result_t res;
    do {
        RIG_OK(m, rg_group_boundary(m->g, &c));
        if (sum_now(m, 100, &res, ids)) return 1;
    } while (res.contributors != m->rig->n && rig_now() < until);
    RIG_NEED(m, res.contributors == m->rig->n, "still %u members", c.world_size);
    return 0;
}

static rg_status_t doomed_call(rig_member_t *m, const deaths_t *d, float *in, float *out, uint64_t count,
                               rg_result_t *res, uint64_t *ids, int as_request) {
    rg_opts_t o = RG_OPTS_INIT;
    rg_request_t *req = NULL;
    *res = (rg_result_t)RG_RESULT_INIT;
    res->contributor_ids = ids;
    res->contributor_cap = RIG_MAX;
    o.on_fault = d->on_fault;
    o.result = res;
    rg_status_t st = rg_all_reduce(m->g, in, out, count, RG_F32, RG_SUM, &o, as_request ? &req : NULL);
    return req ? rg_wait(req, res) : st;
}

static int judge(rig_member_t *m, deaths_t *d, uint32_t round, uint32_t victim) {
    for (uint32_t k = 0; k < m->rig->n; k++) {
        if (k == victim || k == m->index) continue;
        int same = d->status[round][k] == d->status[round][m->index];
        if (same && d->status[round][k] == RG_OK)
            same = d->contributors[round][k] == d->contributors[round][m->index] &&
                   !memcmp(d->ids[round][k], d->ids[round][m->index], d->contributors[round][k] * sizeof(uint64_t));
        RIG_NEED(m, same, "round %u: members %u and %u disagree: %s of %u, %s of %u", round, m->index, k,
                 rg_status_name(d->status[round][m->index]), d->contributors[round][m->index],
                 rg_status_name(d->status[round][k]), d->contributors[round][k]);
    }
    return 0;
}

static int survivor_round(rig_member_t *m, deaths_t *d, uint32_t round, float *x, uint64_t count) {
    rg_result_t res;
    uint64_t *ids = d->ids[round][m->index], id = own_id(m);
    float *out = d->in_place ? x : x + count;
    fill(x, count, id);
    rg_status_t st = doomed_call(m, d, x, out, count, &res, ids, (int)(round + m->index) % 2);
    d->status[round][m->index] = st;
    d->contributors[round][m->index] = res.contributors;
    int expected = st == RG_OK || (st == RG_ERR_PEER_LOST && (d->on_fault == RG_RETURN || d->undo == RG_OFF));
    RIG_NEED(m, expected, "round %u: %s %s", round, rg_status_name(st), res.text);
    if (st == RG_OK)
        RIG_NEED(m, is_sum(out, count, ids, res.contributors), "round %u: wrong sum of %llu over %u, started %u times",
                 round, (unsigned long long)count, res.contributors, res.retries + 1);
    if (st != RG_OK) RIG_NEED(m, res.text[0], "no text");
    if ((st != RG_OK && d->undo != RG_OFF) || !d->in_place)
        RIG_NEED(m, is_input(x, count, id), "round %u: %s, input not intact", round, rg_status_name(st));
    __atomic_add_fetch(st == RG_OK ? &d->completed : &d->failed, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static int victim_round(rig_member_t *m, deaths_t *d, uint32_t round, float *x, uint64_t count, uint64_t after) {
    killer_t k = { m, after };
    pthread_t thread;
    rg_result_t res;
    uint64_t ids[RIG_MAX];
    float *out = d->in_place ? x : x + count;
    fill(x, count, own_id(m));
    RIG_NEED(m, !pthread_create(&thread, NULL, killer_main, &k), "thread");
    rg_status_t st = doomed_call(m, d, x, out, count, &res, ids, (int)round % 2);
    pthread_join(thread, NULL);
    RIG_NEED(m, st == RG_OK || st == RG_ERR_ABORTED, "the victim got %s", rg_status_name(st));
    rg_group_destroy(m->g);
    m->g = rig_join(m, 1);
    return !m->g || sum_now(m, 100, &res, ids);
}

static int dying(rig_member_t *m, void *arg) {
    deaths_t *d = arg;
    static const uint64_t counts[] = { 1, 1000, 16384, 16385, 250000, 1000000 };
    uint64_t seed = rig_seed(11) + (uint64_t)d->on_fault * 100 + (uint64_t)d->in_place;
    float *x = malloc(2 * 1000000 * sizeof *x);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t r = rig_random(&seed), count = counts[r % 6],
                 after = rig_random(&seed) % (count * 4 * RIG_SLOW + 100000);
        uint32_t victim = (uint32_t)(r >> 20) % m->rig->n;
        if (m->index == victim ? victim_round(m, d, round, x, count, after) : survivor_round(m, d, round, x, count))
            return 1;
        if (m->index != victim && together_again(m)) return 1;
        if (rig_gate(m, round, m->rig->n) || (m->index != victim && judge(m, d, round, victim))) return 1;
    }
    free(x);
    return 0;
}

static void run_deaths(uint32_t n, const char *transport, rg_on_fault_t on_fault, int in_place, rg_switch_t undo,
                       const char *algorithm) {
    static deaths_t d;
    rg_config_t c = RG_CONFIG_INIT;
    memset(&d, 0, sizeof d);
    d.on_fault = on_fault;
    d.in_place = in_place;
    d.undo = c.undo = undo;
    c.algorithm = algorithm;
    rig_run(n, transport, &c, dying, &d);
    cr_assert(d.completed + d.failed == ROUNDS * (n - 1));
}

Test(engine_faults, death__retry_in_place__survivors_agree) {
    for (size_t i = 0; i < 2; i++) run_deaths(3, transports[i], RG_RETRY, 1, RG_ON, NULL);
    run_deaths(4, "tcp", RG_RETRY, 1, RG_ON, "all_reduce=ring");
}
Test(engine_faults, death__retry__survivors_agree) {
    for (size_t i = 0; i < 2; i++) run_deaths(3, transports[i], RG_RETRY, 0, RG_ON, NULL);
    run_deaths(2, "tcp", RG_RETRY, 0, RG_ON, NULL);
}
Test(engine_faults, death__return_in_place__survivors_agree_and_inputs_are_intact) {
    for (size_t i = 0; i < 2; i++) run_deaths(3, transports[i], RG_RETURN, 1, RG_ON, NULL);
    run_deaths(4, "tcp", RG_RETURN, 1, RG_ON, "all_reduce=rhd");
}
Test(engine_faults, death__return__survivors_agree_and_inputs_are_intact) {
    for (size_t i = 0; i < 2; i++) run_deaths(3, transports[i], RG_RETURN, 0, RG_ON, NULL);
}
Test(engine_faults, death__without_undo__no_wrong_sum) {
    for (size_t i = 0; i < 2; i++) run_deaths(3, transports[i], RG_RETRY, 1, RG_OFF, NULL);
}

/* ---- Death under several threads ------------------------------------------------------------------------------- */

#define LANES 4
#define LANE_OPS (RIG_SLOW > 1 ? 60u : 120u)

typedef struct lanes {
    uint32_t victim;
    uint64_t after_ns;
    rg_status_t status[LANES][256][RIG_MAX];
    uint32_t contributors[LANES][256][RIG_MAX];
} lanes_t;

typedef struct lane {
    rig_member_t *m;
    lanes_t *all;
    uint32_t number; /* and tag: lane 0 has small results that are committed at once */
} lane_t;

static rg_status_t lane_call(const lane_t *l, uint32_t i, float *x, uint64_t count, rg_result_t *res) {
    rg_opts_t o = RG_OPTS_INIT;
    rg_request_t *req = NULL, **how = (l->number + i) % 3 ? &req : NULL;
    o.tag = l->number;
    o.result = res;
    o.on_fault = l->number % 2 ? RG_RETURN : RG_RETRY;
    rg_status_t st = i % 4 == 3 ? rg_broadcast(l->m->g, x, count, RG_F32, 0, &o, how)
                                : rg_all_reduce(l->m->g, x, x, count, RG_F32, RG_SUM, &o, how);
    if (req && (l->number + i) % 3 == 1) return rg_wait(req, res);
    while (req && (st = rg_test(req, res)) == RG_AGAIN) {}
    return st;
}

/* What is in x after the call. The root of a broadcast is the first contributor. */
static int lane_right(uint32_t i, rg_status_t st, const float *x, uint64_t count, uint64_t id, const rg_result_t *res) {
    if (st == RG_OK && i % 4 == 3) return is_input(x, count, res->contributor_ids[0]);
    if (st == RG_OK) return is_sum(x, count, res->contributor_ids, res->contributors);
    return (st == RG_ERR_PEER_LOST || (st == RG_ERR_ROOT_LOST && i % 4 == 3)) && (i % 4 == 3 || is_input(x, count, id));
}

static void *lane_main(void *arg) {
    lane_t *l = arg;
    uint64_t ids[RIG_MAX], id = own_id(l->m);
    float *x = malloc(40000 * sizeof *x);
    for (uint32_t i = 0; i < LANE_OPS && !l->m->bad; i++) {
        uint64_t count = i % 7 == 6 ? 40000 : 1 + (i * 131 + l->number) % 2000;
        rg_result_t res = RG_RESULT_INIT;
        res.contributor_ids = ids;
        res.contributor_cap = RIG_MAX;
        fill(x, count, id);
        rg_status_t st = lane_call(l, i, x, count, &res);
        l->all->status[l->number][i][l->m->index] = st;
        l->all->contributors[l->number][i][l->m->index] = st ? 0 : res.contributors;
        if (l->m->index == l->all->victim && st == RG_ERR_ABORTED) break;
        if (!lane_right(i, st, x, count, id, &res))
            rig_complain(l->m, __FILE__, __LINE__, "lane %u operation %u of %llu: %s %s", l->number, i,
                         (unsigned long long)count, rg_status_name(st), res.text);
    }
    free(x);
    return NULL;
}

static int lanes(rig_member_t *m, void *arg) {
    lanes_t *all = arg;
    lane_t lane[LANES];
    pthread_t thread[LANES + 1];
    killer_t k = { m, all->after_ns };
    int dies = m->index == all->victim;
    if (rig_gate(m, 0, m->rig->n)) return 1;
    for (uint32_t i = 0; i < LANES; i++) {
        lane[i] = (lane_t){ m, all, i };
        RIG_NEED(m, !pthread_create(&thread[i], NULL, lane_main, &lane[i]), "thread");
    }
    if (dies) RIG_NEED(m, !pthread_create(&thread[LANES], NULL, killer_main, &k), "thread");
    for (uint32_t i = 0; i < LANES + (uint32_t)dies; i++) pthread_join(thread[i], NULL);
    if (m->bad || rig_gate(m, 1, m->rig->n) || dies) return m->bad;
    for (uint32_t l = 0; l < LANES; l++)
        for (uint32_t i = 0; i < LANE_OPS; i++)
            for (uint32_t o = 0; o < m->rig->n; o++)
                RIG_NEED(m,
                         o == all->victim || (all->status[l][i][o] == all->status[l][i][m->index] &&
                                              all->contributors[l][i][o] == all->contributors[l][i][m->index]),
                         "lane %u operation %u: %s of %u here, %s of %u at member %u", l, i,
                         rg_status_name(all->status[l][i][m->index]), all->contributors[l][i][m->index],
                         rg_status_name(all->status[l][i][o]), all->contributors[l][i][o], o);
    return 0;
}

Test(engine_faults, death__under_several_threads__survivors_agree) {
    static lanes_t all;
    uint64_t seed = rig_seed(99);
    for (uint32_t i = 0; i < (RIG_SLOW > 1 ? 6 : 10); i++) {
        memset(&all, 0, sizeof all);
        all.victim = (uint32_t)(rig_random(&seed) % 3);
        all.after_ns = rig_random(&seed) % 60000000;
        rig_run(3, transports[i % 2], NULL, lanes, &all);
    }
}

/* ---- What this process lacks ------------------------------------------------------------------------------------- */

static int never(void *arg) {
    (void)arg;
    return 0;
}

static int is_up(void *arg) {
    const rg_group_t *g = arg;
    return g->control.fd >= 0 && !g->control.connecting;
}

/* The coordinator serves, but this process has no descriptor for a connection to it. */
static int no_descriptors(rig_member_t *m, void *arg) {
    rg_group_t *g = rg_root(m->g);
    struct rlimit was, none;
    (void)arg;
    RIG_NEED(m, getrlimit(RLIMIT_NOFILE, &was) == 0, "getrlimit");
    none = was;
    none.rlim_cur = 1;
    rg_lock(g);
    setrlimit(RLIMIT_NOFILE, &none);
    shutdown(g->control.fd, SHUT_RDWR);
    g->control.tried = 0;
    rg_drive(g, never, NULL, rig_now() + 300000000u);
    uint32_t tried = g->control.tried;
    int fd = g->control.fd;
    setrlimit(RLIMIT_NOFILE, &was);
    rg_drive(g, is_up, g, rig_now() + 20000000000u);
    int up = is_up(g);
    rg_unlock(g);
    RIG_NEED(m, fd < 0 && tried == 0, "an address counts as tried that nobody could ask (descriptor %d)", fd);
    RIG_NEED(m, up, "it does not come back");
    return 0;
}

Test(engine_faults, no_descriptors_for_the_coordinator__says_nothing_of_it__comes_back) {
    rig_run(1, "inproc", NULL, no_descriptors, NULL);
}
