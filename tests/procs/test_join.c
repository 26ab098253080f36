/* test_join.c: newcomers enter at boundaries of a running group. The boundary where one enters may stall the members
 * for 2 ms (median over several joins; this machine has few cores, so single values are not held against it); a
 * candidate that is stopped or killed while it joins costs the members nothing. */
#include "procs.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEMBERS 2
#define JOINS 9
#define SLOTS (MEMBERS + JOINS + 8)

struct join {
    char address[128];
    volatile uint64_t rounds[SLOTS];
    volatile uint32_t world;
    volatile int n_stalls;
    volatile double stall_ms[64]; /* the longest stall over members of each boundary where somebody entered */
    volatile uint64_t stall_at[64];
    volatile double
        worst_quiet_ms; /* longest boundary where nobody entered, beyond what the host was late, since reset */
    volatile int joined[SLOTS], joining[SLOTS], end;
};

static int round_of(struct join *s, int index, rg_group_t *g, int *over) {
    float x[20000];
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t opts = RG_OPTS_INIT;
    rg_change_t c = RG_CHANGE_INIT;
    opts.result = &res;
    for (int i = 0; i < 20000; i++) x[i] = 1;
    if (index == 0 && s->end) x[0] = 1000;
    rg_status_t st = rg_all_reduce(g, x, x, 20000, RG_F32, RG_SUM, &opts, NULL);
    PROCS_REQUIRE(st == RG_OK, "member %d: %s %s", index, rg_status_name(st), res.text);
    PROCS_REQUIRE(x[1] == (float)res.contributors, "sum %g of %u", x[1], res.contributors);
    *over = x[0] >= 1000;
    uint64_t t = procs_now();
    st = rg_group_boundary(g, &c);
    PROCS_REQUIRE(st == RG_OK, "member %d: boundary: %s", index, rg_status_name(st));
    double ms = (double)c.stalled_ns / 1e6 - procs_late_ms(t);
    if (index < MEMBERS && c.joined) {
        int k = s->n_stalls;
        if (k && s->stall_at[k - 1] == c.boundary) {
            if (ms > s->stall_ms[k - 1]) s->stall_ms[k - 1] = ms;
        } else if (k < 64) {
            s->stall_ms[k] = ms;
            s->stall_at[k] = c.boundary;
            s->n_stalls = k + 1;
        }
    } else if (index < MEMBERS && ms > s->worst_quiet_ms) s->worst_quiet_ms = ms;
    s->world = c.world_size;
    s->rounds[index]++;
    return 0;
}

static int member(int index, void *arg) {
    struct join *s = arg;
    rg_group_t *g = NULL;
    rg_error_t err;
    int over = 0;
    rg_config_t cfg = procs_config(s->address, "join", index < MEMBERS ? MEMBERS : 1, (uint32_t)index);
    s->joining[index] = 1;
    PROCS_REQUIRE(rg_group_join(&cfg, &g, &err) == RG_OK, "join: %s", err.text);
    s->joined[index] = 1;
    while (!over)
        if (round_of(s, index, g, &over)) return 1;
    rg_status_t st = rg_group_leave(g);
    rg_group_destroy(g);
    return st != RG_OK;
}

static double median(const volatile double *v, int n) {
    double s[64] = { 0 };
    for (int i = 0; i < n && i < 64; i++) {
        int k = i;
        for (; k > 0 && s[k - 1] > v[i]; k--) s[k] = s[k - 1];
        s[k] = v[i];
    }
    return s[n / 2 < 64 ? n / 2 : 63];
}

#define SEEN(cond, what) ((cond) || (fprintf(stderr, "test_join: %s\n", what), 0))

static int start(struct join **out, struct procs_coordinator *co, pid_t *pids) {
    struct join *s = *out = procs_shared(sizeof *s);
    if (procs_coordinator_start(co, 1000)) return 0;
    memcpy(s->address, co->address, sizeof s->address);
    for (int i = 0; i < MEMBERS; i++) pids[i] = procs_fork(member, i, s);
    return SEEN(PROCS_WAIT(s->rounds[0] > 20 && s->rounds[1] > 20, 20), "the group does not start");
}

/* One after the other, each killed again so that the group stays small. */
static int newcomers(void) {
    struct procs_coordinator co;
    struct join *s;
    pid_t pids[SLOTS];
    int ok = start(&s, &co, pids);
    for (int j = 0; ok && j < JOINS; j++) {
        int i = MEMBERS + j;
        pids[i] = procs_fork(member, i, s);
        ok = SEEN(PROCS_WAIT(s->rounds[i] > 5, 20), "a newcomer does not enter");
        kill(pids[i], SIGKILL);
        procs_end(pids[i], 5);
        ok = ok && SEEN(PROCS_WAIT(s->world == MEMBERS, 20), "a killed member is not missed");
    }
    double m = median(s->stall_ms, s->n_stalls);
    ok = ok && SEEN(s->n_stalls == JOINS, "not every entry was seen at a boundary");
    printf("       stall at the boundary of entry: median %.3f ms over %d joins\n", m, s->n_stalls);
    ok = ok && SEEN(m <= 2, "members were stalled for more than 2 ms");
    s->end = 1;
    for (int i = 0; i < MEMBERS; i++) ok = procs_end(pids[i], 20) == 0 && ok;
    return procs_coordinator_stop(&co) == 0 && ok;
}

/* Candidates are stopped, or killed, at different moments of joining; the members' rounds go on all the while. A
 * candidate that got in before the signal reached it is a lost member like any other and not counted. */
static int bad_candidates(int sig) {
    struct procs_coordinator co;
    struct join *s;
    pid_t pids[SLOTS];
    int ok = start(&s, &co, pids), stalled = 0;
    for (int j = 0; ok && j < 8; j++) {
        int i = MEMBERS + j;
        uint64_t before = s->rounds[0];
        s->worst_quiet_ms = 0;
        pids[i] = procs_fork(member, i, s);
        ok = SEEN(PROCS_WAIT(s->joining[i], 10), "the candidate does not start");
        uint64_t until = procs_now() + (uint64_t)j * 300000;
        while (procs_now() < until) {}
        kill(pids[i], sig);
        int entered = s->joined[i] || s->world > MEMBERS;
        /* More than the heartbeat deadline, so that the coordinator has given the candidate up. */
        until = procs_now() + (sig == SIGSTOP ? 1600000000ull : 200000000ull);
        PROCS_WAIT(procs_now() >= until, 3);
        entered |= s->world > MEMBERS || s->joined[i];
        ok = ok && SEEN(PROCS_WAIT(s->rounds[0] > before + 50, 10), "the members do not go on");
        if (!entered && s->world == MEMBERS && s->n_stalls == 0) stalled += s->worst_quiet_ms > 50;
        kill(pids[i], SIGKILL);
        procs_end(pids[i], 5);
        ok = ok && SEEN(PROCS_WAIT(s->world == MEMBERS, 20), "the candidate stays");
        s->n_stalls = 0;
    }
    ok = ok && SEEN(stalled <= 1, "candidates cost the members time");
    s->end = 1;
    for (int i = 0; i < MEMBERS; i++) ok = procs_end(pids[i], 20) == 0 && ok;
    return procs_coordinator_stop(&co) == 0 && ok;
}

/* Several at once enter, one after the other or together. */
static int crowd(void) {
    struct procs_coordinator co;
    struct join *s;
    pid_t pids[SLOTS];
    int ok = start(&s, &co, pids);
    for (int i = MEMBERS; i < MEMBERS + 4; i++) pids[i] = procs_fork(member, i, s);
    ok = ok && SEEN(PROCS_WAIT(s->world == MEMBERS + 4, 30), "four newcomers do not all enter");
    s->end = 1;
    for (int i = 0; i < MEMBERS + 4; i++) ok = procs_end(pids[i], 20) == 0 && ok;
    return procs_coordinator_stop(&co) == 0 && ok;
}

void test_join(void) {
    procs_case("join__one_after_the_other__members_stall_at_most_2_ms", newcomers());
    procs_case("join__four_at_once__all_enter", crowd());
    procs_case("join__candidates_killed__cost_nothing", bad_candidates(SIGKILL));
    procs_case("join__candidates_stopped__cost_nothing", bad_candidates(SIGSTOP));
}
