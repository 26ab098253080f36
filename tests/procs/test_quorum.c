/* test_quorum.c: quorum reductions of real processes. Members are killed at random moments, the one that decides among
 * them, and all that stay must have got the same outcome of every round. One is stopped: the others go on at their
 * pace, and it catches up. What members got is noted in shared memory by round. */
#include "procs.h"
#include "regroup_quorum.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define N 5
#define ROUNDS 20000
#define COUNT 3000
#define COUNT_MOST 150000 /* several pieces */

struct quorum {
    char address[128], group[32];
    rg_quorum_config_t c;
    volatile int end;
    volatile uint64_t at[N]; /* rounds passed */
    volatile uint64_t worst_wait_ns, included[N];
    uint64_t hash[N][ROUNDS];
};

static uint64_t hash_of(const float *x, uint64_t count, const rg_quorum_result_t *r) {
    uint64_t h = 14695981039346656037u ^ r->decided_by;
    for (uint32_t i = 0; i < r->contributors && i < N; i++) h = (h ^ r->contributor_ids[i]) * 1099511628211u;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t b;
        memcpy(&b, &x[i], sizeof b);
        h = (h ^ b) * 1099511628211u;
    }
    return h | 1;
}

static int rounds(struct quorum *s, rg_quorum_t *q, int index) {
    static float x[COUNT_MOST], out[COUNT_MOST];
    uint64_t ids[N];
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    r.contributor_ids = ids;
    r.contributor_cap = N;
    for (uint64_t round = 1; round < ROUNDS && !s->end; round++) {
        procs_nap();
        for (uint64_t i = 0; i < s->c.count; i++) x[i] = (float)(index + 1) * 0.1f + (float)(round % 1000);
        rg_status_t st = rg_quorum_reduce(q, x, out, NULL, 20000, &r);
        if (s->end) break;           /* some have left by now */
        if (st == RG_ERR_RESOURCE) { /* so far behind, on a busy host */
            PROCS_REQUIRE(rg_quorum_seek(q, r.newest + 1) == RG_OK, "seek");
            round = r.newest;
            continue;
        }
        PROCS_REQUIRE(st == RG_OK && r.round == round, "member %d, round %llu: %s %s", index, (unsigned long long)round,
                      rg_status_name(st), r.text);
        s->hash[index][round] = hash_of(out, s->c.count, &r);
        if (index == 0 && r.waited_ns > s->worst_wait_ns) s->worst_wait_ns = r.waited_ns;
        s->included[index] += r.included;
        s->at[index] = round;
    }
    return 0;
}

static int member(int index, void *arg) {
    struct quorum *s = arg;
    rg_group_t *g = NULL;
    rg_quorum_t *q;
    rg_error_t err;
    rg_config_t cfg = procs_config(s->address, s->group, N, (uint32_t)index);
    PROCS_REQUIRE(rg_group_join(&cfg, &g, &err) == RG_OK, "join: %s", err.text);
    PROCS_REQUIRE(rg_quorum_create(g, &s->c, &q, &err) == RG_OK, "create: %s", err.text);
    int rc = rounds(s, q, index);
    PROCS_REQUIRE(PROCS_WAIT(s->end, 60), "no end");
    rg_quorum_destroy(q);
    rg_group_destroy(g);
    return rc;
}

/* Every round that one of those who stayed has passed has one outcome. `from`: the members before have died. */
static int alike(const struct quorum *s, int from, uint64_t *checked, int planted) {
    for (uint64_t r = 1; r < ROUNDS; r++) {
        uint64_t h = 0;
        for (int i = from; i < N; i++) {
            if (!s->hash[i][r]) continue;
            if (h && s->hash[i][r] != h) {
                if (!planted)
                    fprintf(stderr, "test_quorum: round %llu differs at member %d\n", (unsigned long long)r, i);
                return 0;
            }
            h = s->hash[i][r];
            ++*checked;
        }
    }
    return 1;
}

static rg_quorum_config_t config(uint32_t k, uint32_t grace_us) {
    rg_quorum_config_t c = RG_QUORUM_CONFIG_INIT;
    c.count = COUNT;
    c.op = RG_AVG;
    c.at_least = k;
    c.grace_us = grace_us;
    c.history = 64;
    return c;
}

static int begin(struct quorum *s, struct procs_coordinator *co, uint32_t heartbeat_ms, rg_quorum_config_t c,
                 pid_t *pids) {
    if (procs_coordinator_start(co, heartbeat_ms)) return 0;
    memset(s, 0, sizeof *s);
    memcpy(s->address, co->address, sizeof s->address);
    memcpy(s->group, "quorum", 7);
    s->c = c;
    for (int i = 0; i < N; i++) pids[i] = procs_fork(member, i, s);
    return 1;
}

static int finish(struct quorum *s, struct procs_coordinator *co, const pid_t *pids, int from) {
    int ok = 1;
    s->end = 1;
    for (int i = from; i < N; i++) ok = procs_end(pids[i], 30) == 0 && ok;
    return procs_coordinator_stop(co) == 0 && ok;
}

/* Members 0, 1 and 2, who decide one after the other, are killed at moments that the seed says. */
static int killed(struct quorum *s, uint32_t k, unsigned seed, uint64_t *checked) {
    struct procs_coordinator co;
    pid_t pids[N];
    int ok = 1;
    unsigned state = seed * 2654435761u + 1;
    if (!begin(s, &co, 5000, config(k, 2000), pids)) return 0; /* who is killed is missed at once */
    for (int i = 0; i < 3 && ok; i++) {
        uint64_t to = s->at[N - 1] + 5 + (state = state * 1103515245u + 12345u) / 65536 % 20;
        ok = PROCS_WAIT(s->at[N - 1] >= to, 20);
        uint64_t until = procs_now() + (state = state * 1103515245u + 12345u) / 65536 % 3000 * 1000;
        while (procs_now() < until) {}
        kill(pids[i], SIGKILL);
        procs_end(pids[i], 10);
    }
    uint64_t was = s->at[N - 1];
    ok = ok && PROCS_WAIT(s->at[N - 1] >= was + 20 && s->at[N - 2] >= was + 20, 20);
    if (!ok) fprintf(stderr, "test_quorum: seed %u: no progress\n", seed);
    ok = finish(s, &co, pids, 3) && ok;
    return alike(s, 3, checked, 0) && ok;
}

static int kills(void) {
    struct quorum *s = procs_shared(sizeof *s);
    uint64_t checked = 0;
    int ok = 1;
    for (unsigned seed = 1; seed <= 6 && ok; seed++) ok = killed(s, 1 + seed % 2, seed, &checked);
    s->hash[3][7] ^= 2;
    ok = ok && !alike(s, 3, &checked, 1); /* the planted difference is found */
    printf("       %llu outcomes of rounds compared\n", (unsigned long long)checked);
    return ok;
}

static int stopped(void) {
    struct quorum *s = procs_shared(sizeof *s);
    struct procs_coordinator co;
    pid_t pids[N];
    uint64_t checked = 0;
    if (!begin(s, &co, 20000, config(2, 10000), pids)) return 0;
    int ok = PROCS_WAIT(s->at[0] > 20 && s->at[N - 1] > 20, 20);
    uint64_t first = s->at[0], until = procs_now() + 500000000u;
    PROCS_WAIT(procs_now() >= until, 2);
    uint64_t before = s->at[0] - first;
    kill(pids[N - 1], SIGSTOP);
    s->worst_wait_ns = 0;
    first = s->at[0];
    /* No more rounds than are kept, so that it gets all of them afterwards. */
    until = procs_now() + 500000000u;
    ok = ok && PROCS_WAIT((procs_now() >= until && s->at[0] >= first + 20) || s->at[0] >= first + 50, 15);
    double pace = (double)(s->at[0] - first) / ((double)(procs_now() + 500000000u - until) / 5e8);
    kill(pids[N - 1], SIGCONT);
    uint64_t worst = s->worst_wait_ns, included = s->included[N - 1];
    ok = ok && PROCS_WAIT(s->included[N - 1] > included + 20, 20); /* it is back */
    printf(
        "       rounds in half a second: %llu before, %.0f meanwhile; longest wait of a round %.1f ms, grace 10 ms\n",
        (unsigned long long)before, pace, (double)worst / 1e6);
    /* How fast is a matter of measuring (bench_quorum); here they have gone on within less than a heartbeat. */
    ok = ok && worst < 10000000000u;
    ok = finish(s, &co, pids, 0) && ok;
    return alike(s, 0, &checked, 0) && ok;
}

/* The one that decides is stopped, for much less than a heartbeat, with the options that a program has that says
 * nothing about it: another one goes on in its place, and it comes back. */
static int decider_stopped(void) {
    struct quorum *s = procs_shared(sizeof *s);
    struct procs_coordinator co;
    pid_t pids[N];
    uint64_t checked = 0;
    if (!begin(s, &co, 25000, config(2, 10000), pids)) return 0;
    int ok = PROCS_WAIT(s->at[0] > 20 && s->at[N - 1] > 20, 20);
    kill(pids[0], SIGSTOP);
    uint64_t was = s->at[N - 1], since = procs_now(), included = s->included[0];
    int moved = PROCS_WAIT(s->at[N - 1] >= was + 20, 12);
    uint64_t took = procs_now() - since;
    kill(pids[0], SIGCONT);
    if (!moved) fprintf(stderr, "test_quorum: nobody decides in place of the first member\n");
    ok = ok && moved && PROCS_WAIT(s->included[0] > included + 20, 20);
    printf("       20 rounds without the first member in %.1f s\n", (double)took / 1e9);
    ok = finish(s, &co, pids, 0) && ok;
    return alike(s, 0, &checked, 0) && ok;
}

static unsigned draw(unsigned *state, unsigned below) {
    *state = *state * 1103515245u + 12345u;
    return *state / 65536 % below;
}

/* Members are stopped and continued at random, the one that decides more often than others, and one is killed, while
 * the deciding may be taken over within a view: nobody is expelled for it, and all that stay have the same outcomes. */
static int chaos(struct quorum *s, unsigned seed, uint64_t *checked, uint64_t *meanwhile) {
    struct procs_coordinator co;
    pid_t pids[N];
    unsigned state = seed * 2654435761u + 7;
    rg_quorum_config_t c = config(1 + seed % 3, 1000);
    c.takeover_us = 30000;
    if (seed % 2) c.count = COUNT_MOST;
    if (!begin(s, &co, 8000, c, pids)) return 0;
    int ok = PROCS_WAIT(s->at[0] > 5 && s->at[N - 1] > 5, 20);
    for (int i = 0; i < 12 && ok; i++) {
        int victim = draw(&state, 2) ? 0 : (int)draw(&state, N),
            other = draw(&state, 4) ? victim : (int)draw(&state, N);
        uint64_t until = procs_now() + draw(&state, 60) * 1000000u;
        while (procs_now() < until) procs_nap();
        kill(pids[victim], SIGSTOP);
        kill(pids[other], SIGSTOP);
        uint64_t was = s->at[N - 1];
        until = procs_now() + (20 + draw(&state, 150)) * 1000000u;
        while (procs_now() < until) procs_nap();
        /* On a busy host a round may take longer than that; for less than a heartbeat it may. */
        if (victim == 0 && other == 0) {
            PROCS_WAIT(s->at[N - 1] > was, 3);
            *meanwhile += s->at[N - 1] - was;
        }
        kill(pids[victim], SIGCONT);
        kill(pids[other], SIGCONT);
    }
    kill(pids[0], SIGKILL);
    procs_end(pids[0], 10);
    uint64_t was = s->at[N - 1];
    ok = ok && PROCS_WAIT(s->at[N - 1] >= was + 10 && s->at[1] >= was + 10, 20);
    if (!ok) fprintf(stderr, "test_quorum: chaos, seed %u: no progress\n", seed);
    ok = finish(s, &co, pids, 1) && ok;
    return alike(s, 1, checked, 0) && ok;
}

static int taken_over(void) {
    struct quorum *s = procs_shared(sizeof *s);
    uint64_t checked = 0, meanwhile = 0;
    int ok = 1;
    unsigned from = getenv("SEED") ? (unsigned)strtoul(getenv("SEED"), NULL, 0) : 1;
    for (unsigned seed = from; seed < from + 3 && ok; seed++) ok = chaos(s, seed, &checked, &meanwhile);
    printf("       %llu outcomes of rounds compared; %llu rounds while the first member was stopped\n",
           (unsigned long long)checked, (unsigned long long)meanwhile);
    return ok && meanwhile > 10;
}

void test_quorum(void) {
    procs_case("quorum__members_stopped_at_random_with_takeover__one_outcome_and_no_stall", taken_over());
    procs_case("quorum__members_that_decide_are_killed__one_outcome_for_all_who_stay", kills());
    procs_case("quorum__the_one_that_decides_stopped_default_options__another_one_decides", decider_stopped());
    procs_case("quorum__one_member_stopped__others_keep_their_pace_and_it_catches_up", stopped());
}
