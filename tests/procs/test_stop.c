/* test_stop.c: a member that is stopped by SIGSTOP is found within the heartbeat deadline and the group goes on; when
 * it is continued it learns that it was expelled, and joins again. Also that a short stop harms nobody. */
#include "procs.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N 3

struct stop {
    char address[128];
    volatile uint64_t ops[N];      /* operations completed */
    volatile uint64_t worst_ns[N]; /* longest operation since it was reset */
    volatile uint32_t last_contributors[N];
    volatile int expelled, rejoined, end;
};

/* Operations without end; the first member tells the others by its data that the end has come, so that all make the
 * same number of calls. */
static int work(struct stop *s, int index, rg_group_t *g) {
    float x[5000];
    for (;;) {
        rg_result_t res = RG_RESULT_INIT;
        rg_opts_t opts = RG_OPTS_INIT;
        opts.result = &res;
        for (int i = 0; i < 5000; i++) x[i] = 1;
        x[0] = index == 0 && s->end ? 1000 : 1;
        uint64_t t = procs_now();
        rg_status_t st = rg_all_reduce(g, x, x, 5000, RG_F32, RG_SUM, &opts, NULL);
        t = procs_now() - t;
        if (st == RG_ERR_EXPELLED && index == N - 1) return 2;
        PROCS_REQUIRE(st == RG_OK, "member %d: %s %s", index, rg_status_name(st), res.text);
        PROCS_REQUIRE(x[1] == (float)res.contributors, "sum %g of %u", x[1], res.contributors);
        if (t > s->worst_ns[index]) s->worst_ns[index] = t;
        s->last_contributors[index] = res.contributors;
        __atomic_add_fetch(&s->ops[index], 1, __ATOMIC_SEQ_CST);
        if (x[0] >= 1000) break;
        st = rg_group_boundary(g, NULL);
        if (st == RG_ERR_EXPELLED && index == N - 1) return 2;
        PROCS_REQUIRE(st == RG_OK, "member %d: boundary: %s", index, rg_status_name(st));
    }
    return rg_group_leave(g) != RG_OK;
}

static int member(int index, void *arg) {
    struct stop *s = arg;
    rg_group_t *g = NULL;
    rg_error_t err;
    rg_config_t cfg = procs_config(s->address, "stop", N, (uint32_t)index);
    PROCS_REQUIRE(rg_group_join(&cfg, &g, &err) == RG_OK, "join: %s", err.text);
    int rc = work(s, index, g);
    rg_group_destroy(g);
    if (rc != 2) return rc;
    s->expelled = 1;
    cfg.min_size = 1;
    PROCS_REQUIRE(rg_group_join(&cfg, &g, &err) == RG_OK, "joining again: %s", err.text);
    s->rejoined = 1;
    rc = work(s, index, g);
    rg_group_destroy(g);
    return rc;
}

#define SEEN(cond, what) ((cond) || (fprintf(stderr, "test_stop: %s\n", what), 0))

static int stop_and_continue(uint32_t heartbeat_ms) {
    struct stop *s = procs_shared(sizeof *s);
    struct procs_coordinator co;
    pid_t pids[N];
    uint32_t deadline = heartbeat_ms ? heartbeat_ms : 2000;
    int ok;
    if (procs_coordinator_start(&co, heartbeat_ms)) return 0;
    memcpy(s->address, co.address, sizeof s->address);
    for (int i = 0; i < N; i++) pids[i] = procs_fork(member, i, s);
    ok = SEEN(PROCS_WAIT(s->ops[0] > 20 && s->ops[N - 1] > 20, 20), "the group does not start");
    for (int i = 0; i < N; i++) s->worst_ns[i] = 0;
    uint64_t t = procs_now();
    kill(pids[N - 1], SIGSTOP);
    ok = ok && SEEN(PROCS_WAIT(s->last_contributors[0] == N - 1 && s->last_contributors[1] == N - 1, 30), "not found");
    double ms = (double)(procs_now() - t) / 1e6;
    /* A heartbeat may have been sent just before the stop: not earlier than that, not later than the deadline and what
     * a view change and two cores need, and what the host was late meanwhile. */
    ok = ok && SEEN(ms > deadline * 0.5 && ms < deadline * 1.25 + 250 + procs_late_ms(t),
                    "not found within the heartbeat deadline");
    if (!ok) fprintf(stderr, "test_stop: %.0f ms with a heartbeat of %u ms\n", ms, deadline);
    else printf("       the others go on after %.0f ms, heartbeat %u ms\n", ms, deadline);
    uint64_t ops = s->ops[0];
    ok = ok && SEEN(PROCS_WAIT(s->ops[0] > ops + 20, 10), "the others do not go on");
    kill(pids[N - 1], SIGCONT);
    ok = ok && SEEN(PROCS_WAIT(s->expelled, 10), "the continued member is not told");
    ok = ok && SEEN(PROCS_WAIT(s->rejoined, 20), "it cannot join again");
    ok = ok && SEEN(PROCS_WAIT(s->last_contributors[0] == N, 10), "it does not contribute again");
    s->end = 1;
    for (int i = 0; i < N; i++) ok = procs_end(pids[i], 20) == 0 && ok;
    return procs_coordinator_stop(&co) == 0 && ok;
}

/* Stopped for a third of the deadline: everybody waits, nobody is lost. */
static int short_stop(void) {
    struct stop *s = procs_shared(sizeof *s);
    struct procs_coordinator co;
    pid_t pids[N];
    int ok;
    if (procs_coordinator_start(&co, 3000)) return 0;
    memcpy(s->address, co.address, sizeof s->address);
    for (int i = 0; i < N; i++) pids[i] = procs_fork(member, i, s);
    ok = SEEN(PROCS_WAIT(s->ops[0] > 20 && s->ops[N - 1] > 20, 20), "the group does not start");
    kill(pids[N - 1], SIGSTOP);
    uint64_t until = procs_now() + 1000000000ull;
    PROCS_WAIT(procs_now() >= until, 2);
    kill(pids[N - 1], SIGCONT);
    uint64_t ops = s->ops[0];
    ok = ok && SEEN(PROCS_WAIT(s->ops[0] > ops + 50, 10), "no progress after a short stop");
    ok = ok && SEEN(!s->expelled && s->last_contributors[0] == N, "a member was lost");
    s->end = 1;
    for (int i = 0; i < N; i++) ok = procs_end(pids[i], 20) == 0 && ok;
    return procs_coordinator_stop(&co) == 0 && ok;
}

void test_stop(void) {
    procs_case("stop__heartbeat_500_ms__found_in_time_expelled_and_back", stop_and_continue(500));
    procs_case("stop__default_heartbeat__found_in_time_expelled_and_back", stop_and_continue(0));
    procs_case("stop__shorter_than_the_deadline__nobody_is_lost", short_stop());
}
