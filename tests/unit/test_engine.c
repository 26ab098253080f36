/* test_engine.c: groups of threads without faults: every algorithm, type and awkward count against a reference, the
 * settings that change how an operation runs, several threads on one handle, requests in different orders, limits and
 * wrong calls. Faults are in test_engine_faults.c. It relies on tools/pattern.c for results known without the library.
 */
#include "engine_rig.h"

#include "engine/group.h"
#include "tools/pattern.c" /* the very same code as the command's */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEDIUM 100003u
#define LARGE (RIG_SLOW > 4 ? MEDIUM : 1000003u)

static const char *const transports[] = { "inproc", "tcp" };

/* ---- Every algorithm, type, count ------------------------------------------------------------------------------ */

static const rg_op_t ops_of_type[RG_DTYPE_COUNT] = { RG_SUM, RG_MAX, RG_MIN, RG_SUM, RG_PROD,
                                                     RG_SUM, RG_SUM, RG_AVG, RG_AVG, RG_SUM };

struct buffers {
    uint8_t *in, *out, *all;
};

static int one_reduce(rig_member_t *m, uint8_t *mem, rg_dtype_t t, uint64_t count, int in_place) {
    uint32_t n = m->rig->n;
    size_t bytes = count * rg_dtype_size(t), skew = count % 3; /* unaligned pointers as well */
    uint8_t *out = mem + 64 + skew, *in = in_place ? out : mem + 192 + bytes + skew;
    rg_op_t op = ops_of_type[t];
    out[-1] = out[bytes] = 0xee;
    if (!in_place) memset(out, 0x55, bytes);
    pattern_fill(t, op, m->index, in, count);
    rg_status_t st = rg_all_reduce(m->g, in, out, count, t, op, NULL, NULL);
    uint64_t wrong = st == RG_OK ? pattern_count_wrong(t, op, n, out, count) : count + 1;
    if (!in_place) { /* the input is as it was */
        pattern_fill(t, op, m->index, mem + 320 + 2 * bytes, count);
        wrong += memcmp(in, mem + 320 + 2 * bytes, bytes) != 0;
    }
    RIG_NEED(m, !wrong && out[-1] == 0xee && out[bytes] == 0xee,
             "all_reduce %s %s of %llu elements on %u members%s: %s (%s), %llu wrong, bounds %02x %02x",
             rg_dtype_name(t), rg_op_name(op), (unsigned long long)count, n, in_place ? " in place" : "",
             rg_status_name(st), rig_errmsg(m), (unsigned long long)wrong, out[-1], out[bytes]);
    return 0;
}

/* A reference that the reductions share no code with, on values that are not small integers. Rounding differs by the
 * order of additions, so it is compared with a bound; that all members have equal bits is compared exactly. */
static int random_floats(rig_member_t *m, struct buffers *b, uint64_t count) {
    float *in = (float *)(void *)b->in, *out = (float *)(void *)b->out, *all = (float *)(void *)b->all;
    uint64_t seed = 17;
    for (uint64_t i = 0; i < count; i++) out[i] = 0;
    for (uint32_t r = 0; r < m->rig->n; r++)
        for (uint64_t i = 0; i < count; i++) {
            float x = (float)((double)(rig_random(&seed) >> 40) / (1 << 24) - 0.5);
            if (r == m->index) in[i] = x;
            all[i] = r ? all[i] + x : x;
        }
    RIG_OK(m, rg_all_reduce(m->g, in, out, count, RG_F32, RG_SUM, NULL, NULL));
    for (uint64_t i = 0; i < count; i++) {
        float d = out[i] - all[i];
        RIG_NEED(m, d < 1e-5f && d > -1e-5f, "element %llu is %g, expected %g", (unsigned long long)i, out[i], all[i]);
    }
    memcpy(all, out, count * sizeof *all);
    RIG_OK(m, rg_broadcast(m->g, all, count, RG_F32, 0, NULL, NULL));
    RIG_NEED(m, !memcmp(all, out, count * sizeof *all), "other bits than rank 0");
    return 0;
}

/* arg: NULL for the largest count too. */
static int every_type(rig_member_t *m, void *arg) {
    uint32_t n = m->rig->n, large = arg ? MEDIUM : LARGE;
    const uint64_t counts[] = { 0, 1, n - 1, n, n + 1, 4099, large };
    uint8_t *mem = malloc(3 * (size_t)LARGE * 8 + 1024);
    RIG_NEED(m, mem, "memory");
    struct buffers b = { mem, mem + (size_t)LARGE * 4, mem + (size_t)LARGE * 8 };
    int bad = 0;
    for (int t = 0; t < RG_DTYPE_COUNT && !bad; t++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts && !bad; c++)
            for (int in_place = 0; in_place < 2 && !bad; in_place++)
                bad = one_reduce(m, mem, (rg_dtype_t)t, counts[c], in_place);
    bad = bad || random_floats(m, &b, 1) || random_floats(m, &b, 20011);
    for (uint32_t root = 0; root < n && !bad; root++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts && !bad; c++) {
            rg_dtype_t t = (rg_dtype_t)((c + root) % RG_DTYPE_COUNT);
            pattern_fill(t, RG_SUM, m->index, mem, counts[c]);
            rg_status_t st = rg_broadcast(m->g, mem, counts[c], t, root, NULL, NULL);
            if (st != RG_OK || pattern_count_as(t, root, mem, counts[c]))
                bad = rig_complain(m, __FILE__, __LINE__, "broadcast of %llu from %u: %s (%s)",
                                   (unsigned long long)counts[c], root, rg_status_name(st), rig_errmsg(m));
        }
    free(mem);
    if (bad) return 1;
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    RIG_OK(m, rg_group_leave(m->g));
    return 0;
}

static void run_algorithm(const char *transport, const char *name, uint32_t rails) {
    static const uint32_t sizes[] = { 3, 2, 5 };
    for (size_t i = 0; i < (rails > 1 || RIG_SLOW > 4 ? 1 : 3); i++) {
        rg_config_t c = RG_CONFIG_INIT;
        c.algorithm = name;
        c.rails = rails;
        rig_run(sizes[i], transport, &c, every_type, sizes[i] > 3 ? &c : NULL);
    }
}

Test(engine, ring__every_type_and_count__as_the_reference) {
    run_algorithm("inproc", "all_reduce=ring,broadcast=ring", 1);
    run_algorithm("tcp", "all_reduce=ring,broadcast=ring", 1);
    run_algorithm("tcp", "all_reduce=ring,broadcast=ring", 3);
}

Test(engine, rhd__every_type_and_count__as_the_reference) {
    run_algorithm("inproc", "all_reduce=rhd,broadcast=tree", 1);
    run_algorithm("tcp", "all_reduce=rhd,broadcast=tree", 1);
    run_algorithm("tcp", "all_reduce=rhd,broadcast=tree", 3);
}

Test(engine, direct__every_type_and_count__as_the_reference) {
    run_algorithm("inproc", "all_reduce=direct,broadcast=direct", 1);
    run_algorithm("tcp", "all_reduce=direct,broadcast=direct", 1);
    run_algorithm("tcp", "all_reduce=direct,broadcast=direct", 3);
}

Test(engine, direct2__every_type_and_count__as_the_reference) {
    run_algorithm("inproc", "all_reduce=direct2", 1);
    run_algorithm("tcp", "all_reduce=direct2", 1);
    run_algorithm("tcp", "all_reduce=direct2", 3);
}

Test(engine, tree__every_type_and_count__as_the_reference) {
    run_algorithm("inproc", "all_reduce=tree,broadcast=tree", 1);
    run_algorithm("tcp", "all_reduce=tree,broadcast=tree", 1);
    run_algorithm("tcp", "all_reduce=tree,broadcast=tree", 3);
}

/* ---- Settings -------------------------------------------------------------------------------------------------- */

static void set_small_only(rg_config_t *c) { c->small_bytes = 64u << 20; }
static void set_large_only(rg_config_t *c) { c->small_bytes = 1; }
static void set_odd_chunk(rg_config_t *c) { c->chunk_bytes = 4099; }
static void set_spin(rg_config_t *c) { c->spin_us = 1; }
static void set_long_spin(rg_config_t *c) { c->spin_us = 3000; }
static void set_no_thread(rg_config_t *c) { c->progress_thread = RG_OFF; }
static void set_no_undo(rg_config_t *c) { c->undo = RG_OFF; }
static void set_deterministic(rg_config_t *c) { c->deterministic = RG_ON; }
static void set_small_buffers(rg_config_t *c) { c->socket_buffer_bytes = 65536; }

static void run_with(void (*set)(rg_config_t *)) {
    for (size_t i = 0; i < 2; i++) {
        rg_config_t c = RG_CONFIG_INIT;
        set(&c);
        rig_run(3, transports[i], &c, every_type, &c);
    }
}

Test(engine, small_bytes_huge__every_type__as_the_reference) { run_with(set_small_only); }
Test(engine, small_bytes_one__every_type__as_the_reference) { run_with(set_large_only); }
Test(engine, odd_chunk__every_type__as_the_reference) { run_with(set_odd_chunk); }
Test(engine, hardly_any_spin__every_type__as_the_reference) { run_with(set_spin); }
Test(engine, long_spin__every_type__as_the_reference) { run_with(set_long_spin); }
Test(engine, no_progress_thread__every_type__as_the_reference) { run_with(set_no_thread); }
Test(engine, no_undo__every_type__as_the_reference) { run_with(set_no_undo); }
Test(engine, deterministic__every_type__as_the_reference) { run_with(set_deterministic); }
Test(engine, small_socket_buffers__every_type__as_the_reference) { run_with(set_small_buffers); }

Test(engine, one_member__every_type__as_the_reference) {
    rg_config_t c = RG_CONFIG_INIT;
    for (size_t i = 0; i < 2; i++) {
        rig_run(1, transports[i], NULL, every_type, NULL);
        c.small_bytes = 1;
        rig_run(1, transports[i], &c, every_type, NULL);
    }
}

/* ---- Several threads on one handle ----------------------------------------------------------------------------- */

#define LANES 4
#define LANE_ROUNDS (RIG_SLOW > 1 ? 40 : 150)

typedef struct lane {
    rig_member_t *m;
    uint32_t tag;
    int bad;
} lane_t;

/* The outcome of one operation by the way of the lane: blocking, wait, or test in a loop. */
static rg_status_t lane_call(lane_t *l, float *x, uint64_t count) {
    rg_opts_t o = RG_OPTS_INIT;
    rg_request_t *req = NULL;
    rg_status_t st;
    o.tag = l->tag;
    if (l->tag % 3 == 1) return rg_all_reduce(l->m->g, x, x, count, RG_F32, RG_SUM, &o, NULL);
    if ((st = rg_all_reduce(l->m->g, x, x, count, RG_F32, RG_SUM, &o, &req)) != RG_OK) return st;
    if (l->tag % 3 == 2) return rg_wait(req, NULL);
    while ((st = rg_test(req, NULL)) == RG_AGAIN) {}
    return st;
}

static void *lane_main(void *arg) {
    lane_t *l = arg;
    float *x = malloc(60000 * sizeof *x);
    for (uint32_t i = 0; x && i < LANE_ROUNDS && !l->bad; i++) {
        uint64_t count = i % 10 == 9 ? 60000 : 1 + (i * 59 + l->tag * 7) % 3000;
        pattern_fill(RG_F32, RG_SUM, l->m->index, x, count);
        rg_status_t st = lane_call(l, x, count);
        l->bad = st != RG_OK || pattern_count_wrong(RG_F32, RG_SUM, l->m->rig->n, x, count);
        if (l->bad)
            rig_complain(l->m, __FILE__, __LINE__, "tag %u round %u: %s (%s)", l->tag, i, rg_status_name(st),
                         rig_errmsg(l->m));
    }
    free(x);
    return NULL;
}

static int lanes(rig_member_t *m, void *arg) {
    lane_t lane[LANES];
    pthread_t thread[LANES];
    (void)arg;
    for (uint32_t i = 0; i < LANES; i++) {
        lane[i] = (lane_t){ m, i + 1, 0 };
        RIG_NEED(m, !pthread_create(&thread[i], NULL, lane_main, &lane[i]), "thread");
    }
    /* Meanwhile this thread asks and meets: information never waits for operations. */
    for (uint32_t i = 0; i < LANE_ROUNDS && !m->bad; i++) {
        rg_info_t info = RG_INFO_INIT;
        uint64_t id = 0;
        char text[64];
        float x = 1;
        rg_group_errmsg(m->g, text, sizeof text);
        if (rg_group_info(m->g, &info) != RG_OK || info.rank != m->index ||
            rg_group_member(m->g, m->index, &id) != RG_OK || id != info.member_id)
            rig_complain(m, __FILE__, __LINE__, "information is wrong");
        if (rg_all_reduce(m->g, &x, &x, 1, RG_F32, RG_SUM, NULL, NULL) != RG_OK || x != (float)m->rig->n)
            rig_complain(m, __FILE__, __LINE__, "small operation: %g (%s)", x, rig_errmsg(m));
    }
    for (uint32_t i = 0; i < LANES; i++) pthread_join(thread[i], NULL);
    if (m->bad) return 1;
    RIG_OK(m, rg_group_leave(m->g));
    return 0;
}

Test(engine, threads__blocking_waiting_and_testing_at_once__all_right) {
    rg_config_t c = RG_CONFIG_INIT;
    for (size_t i = 0; i < 2; i++) rig_run(3, transports[i], NULL, lanes, NULL);
    c.progress_thread = RG_OFF;
    for (size_t i = 0; i < 2; i++) rig_run(2, transports[i], &c, lanes, NULL);
}

/* ---- Requests -------------------------------------------------------------------------------------------------- */

#define FLIGHT 8
static const uint64_t flight_counts[FLIGHT] = { 1, 60000, 7, 20000, 0, 30000, 1024, 10001 };

static int flight(rig_member_t *m, int tagged, int turn_issue, int turn_wait, int by_test) {
    float *buf[FLIGHT];
    rg_request_t *req[FLIGHT] = { NULL };
    for (int i = 0; i < FLIGHT; i++) {
        buf[i] = malloc(flight_counts[i] * 4 + 4);
        pattern_fill(RG_F32, RG_SUM, m->index, buf[i], flight_counts[i]);
    }
    for (int k = 0; k < FLIGHT; k++) {
        int i = (k * turn_issue + (tagged ? (int)m->index * 3 : 0)) % FLIGHT;
        rg_opts_t o = RG_OPTS_INIT;
        o.tag = tagged ? 1000u * (uint32_t)i + 1 : 0;
        RIG_OK(m, rg_all_reduce(m->g, buf[i], buf[i], flight_counts[i], RG_F32, RG_SUM, &o, &req[i]));
    }
    for (int k = 0; k < FLIGHT; k++) {
        int i = (k * turn_wait + (int)m->index) % FLIGHT;
        rg_result_t res = RG_RESULT_INIT;
        rg_status_t st = RG_AGAIN;
        if (!by_test) st = rg_wait(req[i], &res);
        while (st == RG_AGAIN) st = rg_test(req[i], &res);
        uint64_t wrong = pattern_count_wrong(RG_F32, RG_SUM, m->rig->n, buf[i], flight_counts[i]);
        RIG_NEED(m, st == RG_OK && !wrong && res.contributors == m->rig->n, "operation %d: %s %s, %llu wrong", i,
                 rg_status_name(st), res.text, (unsigned long long)wrong);
        free(buf[i]);
    }
    return 0;
}

static int in_flight(rig_member_t *m, void *arg) {
    (void)arg;
    for (int i = 0; i < 5; i++)
        if (flight(m, 0, 1, 1, 0) || flight(m, 0, 1, 7, 1) || flight(m, 1, 5, 3, 0) || flight(m, 1, 7, 1, 1) ||
            flight(m, 1, m->index & 1 ? 7 : 1, 5, 1))
            return 1;
    RIG_OK(m, rg_group_leave(m->g));
    return 0;
}

Test(engine, requests__issued_and_awaited_in_other_orders__all_right) {
    rg_config_t c = RG_CONFIG_INIT;
    for (size_t i = 0; i < 2; i++) rig_run(3, transports[i], NULL, in_flight, NULL);
    c.progress_thread = RG_OFF;
    for (size_t i = 0; i < 2; i++) rig_run(3, transports[i], &c, in_flight, NULL);
}

/* Member 0 issues and stays away; the others' blocking calls need its part, which its own thread must do. */
static int stays_away(rig_member_t *m, void *arg) {
    float *x = malloc(300000 * sizeof *x);
    rg_request_t *req = NULL;
    (void)arg;
    for (uint32_t i = 0; i < 10; i++) {
        pattern_fill(RG_F32, RG_SUM, m->index, x, 300000);
        if (m->index) {
            RIG_OK(m, rg_all_reduce(m->g, x, x, 300000, RG_F32, RG_SUM, NULL, NULL));
        } else {
            RIG_OK(m, rg_all_reduce(m->g, x, x, 300000, RG_F32, RG_SUM, NULL, &req));
            if (i % 2) rg_test(req, NULL) == RG_AGAIN ? (void)0 : (void)(req = NULL);
        }
        if (rig_gate(m, i, m->rig->n)) return 1; /* the others are through */
        if (!m->index && req) RIG_OK(m, rg_wait(req, NULL));
        RIG_NEED(m, !pattern_count_wrong(RG_F32, RG_SUM, m->rig->n, x, 300000), "wrong");
    }
    free(x);
    RIG_OK(m, rg_group_leave(m->g));
    return 0;
}

Test(engine, request__caller_computes_meanwhile__others_are_not_held_up) {
    for (size_t i = 0; i < 2; i++) rig_run(3, transports[i], NULL, stays_away, NULL);
}

/* ---- Limits ---------------------------------------------------------------------------------------------------- */

/* Member 0 issues until no more is taken. What is kept for others counts as well, so member 1 may have to wait for some
 * before it can issue as many. */
static int too_many(rig_member_t *m, void *arg) {
    static rg_request_t *req[2][RG_CORE_MAX_OPS + 1];
    uint32_t *issued = arg;
    char text[256];
    for (uint32_t round = 0; round < 2; round++) {
        uint32_t n = 0, waited = 0;
        rg_status_t st = RG_OK;
        if (m->index == 1 && rig_gate(m, round, 2)) return 1;
        while (m->index == 0 && n <= RG_CORE_MAX_OPS && (st = rg_barrier(m->g, NULL, &req[0][n])) == RG_OK) n++;
        if (m->index == 0) {
            RIG_NEED(m, st == RG_ERR_RESOURCE && n >= RG_CORE_MAX_OPS - 70 && !req[0][n], "%u, then %s", n,
                     rg_status_name(st));
            RIG_NEED(m, rg_group_errmsg(m->g, text, sizeof text) && strstr(text, "512"), "text: %s", text);
            *issued = n;
            rig_pass(m, round);
        }
        while (m->index == 1 && n < *issued) {
            st = rg_barrier(m->g, NULL, &req[1][n]);
            RIG_NEED(m, st == RG_OK || (st == RG_ERR_RESOURCE && waited < n), "%s", rig_errmsg(m));
            if (st == RG_OK) n++;
            else RIG_OK(m, rg_wait(req[1][waited++], NULL));
        }
        while (waited < n) RIG_OK(m, rg_wait(req[m->index][waited++], NULL));
        RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    }
    RIG_OK(m, rg_group_leave(m->g));
    return 0;
}

Test(engine, requests__more_than_the_limit__refused_and_the_rest_is_right) {
    uint32_t issued = 0;
    for (size_t i = 0; i < 2; i++) rig_run(2, transports[i], NULL, too_many, &issued);
}

static uint32_t count_blocks(const rg_group_t *g) {
    uint32_t n = 0;
    for (int i = 0; i < RG_BLOCK_CLASSES; i++)
        for (const rg_block_t *b = g->blocks[i]; b; b = b->next) n++;
    return n;
}

/* What a group keeps for reuse depends on how much is in flight, not on how much was done. */
static int no_growth(rig_member_t *m, void *arg) {
    float *x = calloc(700000, sizeof *x);
    uint32_t ops = 0, blocks = 0;
    (void)arg;
    for (uint32_t i = 0; i < 600; i++) {
        uint64_t count = 1 + i * 7919u % (i % 20 ? 5000u : 700000u);
        RIG_OK(m, rg_all_reduce(m->g, x, x, count, RG_F32, RG_SUM, NULL, NULL));
        if (i % 50 == 49) RIG_OK(m, rg_group_boundary(m->g, NULL));
        pthread_mutex_lock(&m->g->lock);
        if (i == 300) ops = m->g->n_ops, blocks = count_blocks(m->g);
        int grown = i > 300 && (m->g->n_ops > ops || count_blocks(m->g) > blocks + 64 || m->g->n_plans > 128);
        pthread_mutex_unlock(&m->g->lock);
        RIG_NEED(m, !grown, "after %u: %u operations (%u), %u blocks (%u), %u plans", i, m->g->n_ops, ops,
                 count_blocks(m->g), blocks, m->g->n_plans);
    }
    free(x);
    RIG_OK(m, rg_group_leave(m->g));
    return 0;
}

Test(engine, memory__many_sizes__does_not_grow) { rig_run(2, "tcp", NULL, no_growth, NULL); }

/* Members that never pause must show in the roll what they send, as idle ones do. */
static int busy_roll(rig_member_t *m, void *arg) {
    uint64_t until = rig_now() + 10ull * RIG_SLOW * 1000000000u;
    float stop = 0, x[2000] = { 0 };
    (void)arg;
    while (stop == 0) {
        for (uint32_t i = 0; i < 100; i++) RIG_OK(m, rg_all_reduce(m->g, x, x, 2000, RG_F32, RG_SUM, NULL, NULL));
        if (m->index == 0) {
            char *json = NULL;
            RIG_OK(m, rg_coordinator_status(m->rig->address, 5000, &json, NULL));
            if (!strstr(json, "\"bytes_sent\":0,")) stop = 1;
            rg_free(json);
            if (rig_now() > until) stop = 2;
        }
        RIG_OK(m, rg_all_reduce(m->g, &stop, &stop, 1, RG_F32, RG_MAX, NULL, NULL));
    }
    RIG_NEED(m, stop == 1, "the roll says that nothing was sent");
    RIG_OK(m, rg_group_leave(m->g));
    return 0;
}

Test(engine, roll__members_that_never_pause__says_what_they_sent) { rig_run(2, "tcp", NULL, busy_roll, NULL); }

/* Six idle sizes that nobody wants any more must not keep the seventh from being kept. */
static int large_blocks(rig_member_t *m, void *arg) {
    (void)arg;
    pthread_mutex_lock(&m->g->lock);
    rg_block_t *b[8];
    for (size_t i = 0; i < 8; i++) b[i] = rg_block_get(m->g, (i + 1) << 21);
    for (size_t i = 0; i < 8; i++) rg_block_put(m->g, b[i]);
    void *last = b[7]->p;
    rg_block_t *again = rg_block_get(m->g, (size_t)8 << 21);
    int same = again->p == last;
    rg_block_put(m->g, again);
    uint32_t n = count_blocks(m->g);
    pthread_mutex_unlock(&m->g->lock);
    RIG_NEED(m, same, "the block that was used last was given up");
    RIG_NEED(m, n <= 6, "%u blocks are kept", n);
    return 0;
}

Test(engine, memory__large_sizes_that_change__the_latest_stay) { rig_run(1, "inproc", NULL, large_blocks, NULL); }

/* ---- Wrong calls ----------------------------------------------------------------------------------------------- */

Test(engine, ids_and_ranks__wrong__refused_with_text) {
    rg_unique_id_t id = { "RG1 nonsense" };
    rg_group_t *g = (rg_group_t *)&id;
    rg_error_t err;
    cr_assert_eq(rg_unique_id(NULL, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_group_init_rank(2, 0, NULL, NULL, &g, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_group_init_rank(2, 0, &id, NULL, NULL, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_group_init_rank(0, 0, &id, NULL, &g, &err), RG_ERR_INVALID);
    cr_assert_null(g);
    cr_assert_eq(rg_group_init_rank(2, 2, &id, NULL, &g, &err), RG_ERR_INVALID);
    cr_assert(strstr(err.text, "rank 2 of 2"), "%s", err.text);
    cr_assert_eq(rg_group_init_rank(2, 0, &id, NULL, &g, &err), RG_ERR_INVALID);
    cr_assert(strstr(err.text, "rg_unique_id"), "%s", err.text);
    memset(&id, 'x', sizeof id);
    cr_assert_eq(rg_group_init_rank(1, 0, &id, NULL, &g, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_group_init_rank(1, 0, &id, NULL, &g, NULL), RG_ERR_INVALID);
    cr_assert_eq(rg_unique_id(&id, &err), RG_OK, "%s", err.text);
    cr_assert_eq(rg_group_init_rank(1, 0, &id, NULL, &g, &err), RG_OK, "%s", err.text);
    cr_assert_eq(rg_barrier(g, NULL, NULL), RG_OK);
    rg_group_destroy(g);
}

Test(engine, join__wrong_settings__refused_with_text) {
    rg_config_t c = RG_CONFIG_INIT;
    rg_group_t *g = NULL;
    rg_error_t err;
    uint64_t begin = rig_now();
    c.coordinator = "127.0.0.1:1";
    c.join_timeout_ms = 300;
    cr_assert_eq(rg_group_join(&c, NULL, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_group_join(&c, &g, &err), RG_ERR_COORDINATOR);
    cr_assert(strstr(err.text, "127.0.0.1:1") && strstr(err.text, "300 ms"), "%s", err.text);
    cr_assert_lt(rig_now() - begin, 2000000000u * RIG_SLOW);
    c.transport = "pigeon";
    cr_assert_eq(rg_group_join(&c, &g, &err), RG_ERR_NOTSUP);
    cr_assert(strstr(err.text, "pigeon"), "%s", err.text);
    c.transport = NULL;
    c.coordinator = "no port";
    cr_assert_neq(rg_group_join(&c, &g, &err), RG_OK);
    c.struct_size = 3;
    cr_assert_eq(rg_group_join(&c, &g, &err), RG_ERR_INVALID);
    cr_assert_null(g);
}

/* A name that does not exist is refused before anybody is asked for anything: there is no coordinator here. */
Test(engine, algorithm__unknown_name__refused_by_the_join) {
    static const char *const bad[][2] = { { "all_reduce=quantum", "it has direct" },
                                          { "ring,broadcast=none", "it has direct" },
                                          { "quantum", "all_reduce: direct" },
                                          { "all_to_none=ring", "no operation" } };
    rg_config_t c = RG_CONFIG_INIT;
    c.coordinator = "127.0.0.1:1";
    c.join_timeout_ms = 20000;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rg_error_t err = { RG_OK, 0, "" };
        rg_group_t *g = NULL;
        c.algorithm = bad[i][0];
        cr_assert_eq(rg_group_join(&c, &g, &err), RG_ERR_INVALID, "%s", err.text);
        cr_assert(!g && strstr(err.text, bad[i][1]) && strstr(err.text, "RG_ALGORITHM"), "%s", err.text);
    }
}

Test(engine, transport__unknown_name__refused_with_what_auto_takes) {
    rg_config_t c = RG_CONFIG_INIT;
    rg_error_t err = { RG_OK, 0, "" };
    rg_group_t *g = NULL;
    c.coordinator = "127.0.0.1:1";
    c.transport = "carrier-pigeon";
    cr_assert_eq(rg_group_join(&c, &g, &err), RG_ERR_NOTSUP);
    cr_assert(!g && strstr(err.text, "carrier-pigeon") && strstr(err.text, "RDMA where both have a device, else TCP"),
              "%s", err.text);
}

/* One that is not made for a group of this size is told by the operation, and only that operation fails. */
static int wrong_algorithm(rig_member_t *m, void *arg) {
    float x[2] = { 1, 2 };
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    o.result = &res;
    rg_status_t st = rg_all_reduce(m->g, x, x, 2, RG_F32, RG_SUM, &o, NULL);
    RIG_NEED(m, st == RG_ERR_NOTSUP && strstr(res.text, "on 3 members"), "%s %s", rg_status_name(st), res.text);
    RIG_NEED(m, x[0] == 1 && x[1] == 2, "input");
    RIG_OK(m, rg_group_boundary(m->g, NULL));
    return 0;
}

Test(engine, algorithm__not_for_this_group__operation_says_so) {
    rg_config_t c = RG_CONFIG_INIT;
    c.algorithm = "all_reduce=hier";
    rig_run(3, "inproc", &c, wrong_algorithm, NULL);
}

static int wrong_calls(rig_member_t *m, void *arg) {
    float x[8] = { 0 };
    rg_request_t *req = (rg_request_t *)x;
    rg_opts_t o = RG_OPTS_INIT;
    rg_result_t res = { 0 }, told = RG_RESULT_INIT;
    (void)arg;
    RIG_NEED(m, rg_all_reduce(m->g, x, x + 1, 4, RG_F32, RG_SUM, NULL, &req) == RG_ERR_INVALID && !req, "overlap");
    RIG_NEED(m, strstr(rig_errmsg(m), "overlap"), "%s", rig_errmsg(m));
    RIG_NEED(m, rg_all_reduce(m->g, NULL, x, 4, RG_F32, RG_SUM, NULL, NULL) == RG_ERR_INVALID, "NULL");
    RIG_NEED(m, rg_broadcast(m->g, x, 1, RG_F32, m->rig->n, NULL, NULL) == RG_ERR_INVALID, "root");
    RIG_NEED(m, strstr(rig_errmsg(m), "ranks 0 to"), "%s", rig_errmsg(m));
    o.result = &res; /* not initialised */
    RIG_NEED(m, rg_barrier(m->g, &o, NULL) == RG_ERR_INVALID, "result without a size");
    /* The result says what the call says, and why, also when there was no operation. */
    o.result = &told;
    RIG_NEED(m, rg_all_reduce(m->g, x, x, 4, (rg_dtype_t)99, RG_SUM, &o, NULL) == RG_ERR_INVALID, "type");
    RIG_NEED(m, told.status == RG_ERR_INVALID && strstr(told.text, "element type"), "%s", told.text);
    RIG_NEED(m, rg_broadcast(m->g, x, 1, RG_F32, m->rig->n, &o, NULL) == RG_ERR_INVALID, "root");
    RIG_NEED(m, told.status == RG_ERR_INVALID && strstr(told.text, "ranks 0 to"), "%s", told.text);
    RIG_NEED(m,
             rg_barrier(NULL, NULL, NULL) == RG_ERR_INVALID && rg_wait(NULL, NULL) == RG_ERR_INVALID &&
                 rg_test(NULL, NULL) == RG_ERR_INVALID && rg_cancel(NULL) == RG_ERR_INVALID &&
                 rg_group_abort(NULL) == RG_ERR_INVALID && rg_group_leave(NULL) == RG_ERR_INVALID &&
                 rg_group_boundary(NULL, NULL) == RG_ERR_INVALID && rg_group_errmsg(NULL, NULL, 0) == 0,
             "NULL handles");
    rg_group_destroy(NULL);
    RIG_OK(m, rg_barrier(m->g, NULL, &req));
    RIG_NEED(m, rg_wait(req, &res) == RG_ERR_INVALID, "the request is kept when the result cannot be filled");
    RIG_OK(m, rg_wait(req, NULL));
    RIG_NEED(m,
             rg_wait(req, NULL) == RG_ERR_CLOSED && rg_test(req, NULL) == RG_ERR_CLOSED &&
                 rg_cancel(req) == RG_ERR_CLOSED,
             "a finished request");
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    RIG_OK(m, rg_group_leave(m->g));
    RIG_NEED(m,
             rg_barrier(m->g, NULL, NULL) == RG_ERR_CLOSED && rg_group_boundary(m->g, NULL) == RG_ERR_CLOSED &&
                 rg_group_leave(m->g) == RG_ERR_CLOSED &&
                 rg_group_info(m->g, &(rg_info_t)RG_INFO_INIT) == RG_ERR_CLOSED,
             "a group that was left");
    return 0;
}

Test(engine, calls__wrong_arguments__refused_and_the_group_goes_on) {
    for (size_t i = 0; i < 2; i++) rig_run(2, transports[i], NULL, wrong_calls, NULL);
}
