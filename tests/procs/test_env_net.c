/* test_env_net.c: links that die without a word, while operations run and while nobody does anything, between members
 * and towards the coordinator; links that are slow; members that are slow. Whoever is gone is missed in time by all,
 * whoever is only slow by nobody. Each host is a network namespace (net.h). */
#include "env.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define N 3
#define VICTIM 2

enum cut { WHOLE_HOST, TWO_MEMBERS, COORDINATOR, NOTHING };

/* The coordinator has node 0 for itself, member i has node i + 1. */
struct place {
    struct net net;
    struct procs_coordinator co;
    struct env *e;
    pid_t pids[N];
    uint32_t heartbeat_ms;
};

static int place_open(struct place *p, uint32_t heartbeat_ms, uint32_t count, int bridged) {
    char v4[64], listen[80];
    memset(p, 0, sizeof *p);
    p->heartbeat_ms = heartbeat_ms;
    if (net_open(&p->net, N + 1, NET_V4, bridged)) return 0;
    snprintf(listen, sizeof listen, "%s:0", net_v4(&p->net, 0, v4));
    if (env_coordinator(&p->co, p->net.node[0], listen, heartbeat_ms)) return 0;
    p->e = env_new("net", N, count);
    snprintf(p->e->address, sizeof p->e->address, "%s", p->co.address);
    for (int i = 0; i < N; i++) p->e->ns[i] = p->net.node[i + 1];
    return 1;
}

static int place_close(struct place *p, int ok) {
    ok = procs_coordinator_stop(&p->co) == 0 && ok;
    net_close(&p->net);
    env_free(p->e);
    return ok;
}

static int cut(struct place *p, enum cut what, int heal) {
    struct net *t = &p->net;
    int a = what == TWO_MEMBERS ? VICTIM : 0, b = VICTIM + 1;
    if (what == NOTHING) return 0;
    if (what == WHOLE_HOST) return heal ? net_heal(t, b) : net_cut(t, b);
    return heal ? net_heal_pair(t, a, b) : net_cut_pair(t, a, b);
}

static double since(uint64_t from, uint64_t to) { return to > from ? (double)(to - from) / 1e6 : 0; }

/* All who stay know within the heartbeat time and a second that one is missing; and what the host was late by. */
static int known_in_time(struct place *p, uint64_t at) {
    double bound = p->heartbeat_ms + 1000.0;
    for (int i = 0; i < VICTIM; i++) {
        struct env_member *m = &p->e->m[i];
        PROCS_WAIT(m->changed_ns, bound / 1000 + 5);
        if (!ENV_SEEN(m->changed_ns && since(at, m->changed_ns) < bound + procs_late_ms(at),
                      "member %d knows %s after %.0f ms", i, m->changed_ns ? "it" : "nothing",
                      since(at, m->changed_ns ? m->changed_ns : procs_now())))
            return 0;
        if (!ENV_SEEN(since(at, m->changed_ns) > p->heartbeat_ms * 0.5, "member %d knew after %.0f ms", i,
                      since(at, m->changed_ns)))
            return 0;
    }
    printf("       known after %.0f and %.0f ms, heartbeat %u ms\n", since(at, p->e->m[0].changed_ns),
           since(at, p->e->m[1].changed_ns), p->heartbeat_ms);
    return 1;
}

static int succession(void) {
    const char *v = getenv("RG_SUCCESSION");
    return v && !strcmp(v, "on");
}

/* The one that is cut off ends its call by an error in time, and comes back when the way is open again. With succession
 * it looks for another office before (S3 of docs/protocol.md). */
static int victim_returns(struct place *p, enum cut what, uint64_t at) {
    struct env_member *v = &p->e->m[VICTIM];
    double bound = (succession() ? 6.0 : 2.0) * p->heartbeat_ms + 1000;
    int ok = ENV_SEEN(PROCS_WAIT(v->ended_ns, bound / 1000 + 5), "the victim's call has not ended");
    ok = ok &&
         ENV_SEEN(v->status == (succession() ? RG_ERR_NO_QUORUM : RG_ERR_COORDINATOR) || v->status == RG_ERR_EXPELLED,
                  "%s: %s", rg_status_name((rg_status_t)v->status), v->text);
    ok = ok && ENV_SEEN(v->text[0], "an error without a text");
    uint64_t from = v->called_ns > at ? v->called_ns : at;
    ok = ok && ENV_SEEN(since(from, v->ended_ns) < bound + procs_late_ms(from), "its call took %.0f ms",
                        since(from, v->ended_ns));
    ok = !cut(p, what, 1) && ok;
    p->e->rejoin = 1;
    return ok && ENV_SEEN(PROCS_WAIT(v->joins == 2 && p->e->m[0].contributors == N, 20),
                          "the victim is not back: %s %s", rg_status_name((rg_status_t)v->status), v->text);
}

static int half_open(enum cut what, int idle, uint32_t heartbeat_ms, int bridged) {
    struct place p;
    /* Large enough for a ring, in which every pair has something to say. */
    if (!place_open(&p, heartbeat_ms, what == TWO_MEMBERS ? 1u << 20 : 100000, bridged)) return 0;
    struct env *e = p.e;
    env_start(e, p.pids);
    int ok = env_running(e, 20, 20);
    if (idle) {
        e->idle = 1;
        for (int i = 0; i < N; i++) ok = ok && PROCS_WAIT(e->m[i].idles, 10);
    }
    uint64_t at = procs_now();
    ok = ok && !cut(&p, what, 0) && known_in_time(&p, at);
    e->idle = 0;
    ok = ok && victim_returns(&p, what, at);
    if (ok) ok = env_running(e, 20, 20);
    if (ok) ok = env_end(e, p.pids, 0);
    else env_kill(p.pids, N);
    return place_close(&p, ok);
}

/* Nothing is cut: a check that found something here would find it always. */
static int planted_no_cut(void) {
    struct place p;
    if (!place_open(&p, 800, 1000, 0)) return 0;
    env_start(p.e, p.pids);
    int ok = env_running(p.e, 20, 20);
    uint64_t at = procs_now();
    for (int i = 0; i < VICTIM; i++) ok = ok && !PROCS_WAIT(p.e->m[i].changed_ns, 1);
    ok = ok && since(at, procs_now()) > 1800;
    ok = env_end(p.e, p.pids, 0) && ok;
    return place_close(&p, ok);
}

/* A candidate whose host vanishes while it joins holds up nobody, and its time-out is bounded. */
static int cut_while_joining(void) {
    struct place p;
    if (!place_open(&p, 2000, 1000, 0)) return 0;
    struct env *e = p.e;
    e->cfg.join_timeout_ms = 1500;
    int ok = !cut(&p, WHOLE_HOST, 0);
    uint64_t at = procs_now();
    e->n = 2;
    env_start(e, p.pids);
    p.pids[VICTIM] = procs_fork(env_member, VICTIM, e);
    ok = ok && env_running(e, 20, 10);
    ok = ok && ENV_SEEN(PROCS_WAIT(e->m[VICTIM].ended_ns, 4), "it still waits");
    ok = ok && ENV_SEEN(since(at, e->m[VICTIM].ended_ns) < 2000 + procs_late_ms(at) &&
                            e->m[VICTIM].status == RG_ERR_COORDINATOR && strstr(e->m[VICTIM].text, e->address),
                        "%s after %.0f ms: %s", rg_status_name((rg_status_t)e->m[VICTIM].status),
                        since(at, e->m[VICTIM].ended_ns), e->m[VICTIM].text);
    ok = env_end(e, p.pids, 0) && ok;
    ok = procs_end(p.pids[VICTIM], 5) == 4 && ok;
    return place_close(&p, ok);
}

/* Two members that cannot reach each other, while both reach the coordinator: the time-out says which address. */
static int blocked_pair_while_joining(void) {
    struct place p;
    char v4[64];
    if (!place_open(&p, 600, 1000, 0)) return 0;
    struct env *e = p.e;
    e->cfg.join_timeout_ms = 2500;
    int ok = !net_cut_pair(&p.net, 1, 2), named = 0;
    e->n = 2;
    env_start(e, p.pids);
    for (int i = 0; i < 2; i++) {
        ok = ENV_SEEN(procs_end(p.pids[i], 20) == 4 && e->m[i].status == RG_ERR_TIMEOUT, "member %d: %s %s", i,
                      rg_status_name((rg_status_t)e->m[i].status), e->m[i].text) &&
             ok;
        named += strstr(e->m[i].text, net_v4(&p.net, 2 - i, v4)) != NULL;
    }
    ok = ok && ENV_SEEN(named, "nobody names the other's address: \"%s\", \"%s\"", e->m[0].text, e->m[1].text);
    return place_close(&p, ok);
}

/* ---- Slow, not gone -------------------------------------------------------------------------------------------- */

static int nobody_was_lost(struct env *e) {
    int ok = 1;
    for (uint32_t i = 0; i < e->n; i++)
        ok = ENV_SEEN(!e->m[i].changed_ns && e->m[i].contributors == e->n && !e->m[i].status,
                      "member %u: %u contributors, %s %s", i, e->m[i].contributors,
                      rg_status_name((rg_status_t)e->m[i].status), e->m[i].text) &&
             ok;
    return ok;
}

/* An operation that lasts several heartbeats because one host has a slow line. */
static int slow_line(void) {
    struct place p;
    if (!place_open(&p, 500, 2u << 20, 1)) return 0;
    struct env *e = p.e;
    env_start(e, p.pids);
    int ok = env_running(e, 2, 20);
    long before = e->m[0].rss_kb;
    for (int i = 0; i < N; i++) e->m[i].worst_ns = 0;
    const char *shape = "qdisc add dev %s root tbf rate 60mbit burst 64k limit 256k\n";
    char name[16];
    snprintf(name, sizeof name, "p%d", VICTIM + 1);
    ok = ok && !net_batch(p.net.hub, "tc", shape, name) && !net_batch(p.net.node[VICTIM + 1], "tc", shape, "eth0");
    ok = ok && env_running(e, 2, 40);
    ok = ok &&
         ENV_SEEN(e->m[0].worst_ns > 1000000000ull, "the line is not slow: %.0f ms", (double)e->m[0].worst_ns / 1e6);
    ok = ok && nobody_was_lost(e);
    for (int i = 0; i < N; i++)
        ok = ok && ENV_SEEN(e->m[i].rss_kb < before + 64 * 1024, "member %d grew from %ld to %ld KiB", i, before,
                            e->m[i].rss_kb);
    snprintf(name, sizeof name, "p%d", VICTIM + 1);
    net_batch(p.net.hub, "tc", "qdisc del dev %s root\n", name);
    net_batch(p.net.node[VICTIM + 1], "tc", "qdisc del dev eth0 root\n");
    if (ok) ok = env_end(e, p.pids, 0);
    else env_kill(p.pids, N);
    return place_close(&p, ok);
}

static void wait_ms(unsigned ms) {
    uint64_t until = procs_now() + ms * 1000000ull;
    PROCS_WAIT(procs_now() >= until, ms / 1000.0 + 1);
}

/* Two members hear nothing of each other for less than the heartbeat, and have nothing to say to each other just then.
 * What the kernel asks of its own accord once a second is lost on the way. */
static int cut_for_a_moment(uint32_t heartbeat_ms, unsigned cut_ms, int times) {
    struct place p;
    if (!place_open(&p, heartbeat_ms, 1000, 0)) return 0;
    struct env *e = p.e;
    env_start(e, p.pids);
    int ok = env_running(e, 5, 20);
    e->idle = 1;
    for (int i = 0; i < N; i++) ok = ok && PROCS_WAIT(e->m[i].idles, 10);
    for (int i = 0; i < times && ok; i++) {
        wait_ms(1100);
        ok = ok && !cut(&p, TWO_MEMBERS, 0);
        wait_ms(cut_ms);
        ok = !cut(&p, TWO_MEMBERS, 1) && ok;
        wait_ms(1500);
    }
    e->idle = 0;
    ok = ok && env_running(e, 5, 20) && nobody_was_lost(e);
    if (ok) ok = env_end(e, p.pids, 0);
    else env_kill(p.pids, N);
    return place_close(&p, ok);
}

static int cut_shortly(void) { return cut_for_a_moment(2900, 1100, 2); }
static int cut_for_longer(void) { return cut_for_a_moment(2000, 1200, 4); }
static int cut_for_most_of_it(void) { return cut_for_a_moment(8000, 5600, 1); }

/* Stopped again and again for less than the heartbeat, in the middle of large operations. */
static int stopped_again_and_again(void) {
    struct procs_coordinator co;
    struct env *e = env_new("stops", N, 2u << 20);
    pid_t pids[N];
    if (env_coordinator(&co, 0, "127.0.0.1:0", 2000)) return 0;
    snprintf(e->address, sizeof e->address, "%s", co.address);
    env_start(e, pids);
    int ok = env_running(e, 3, 20);
    long before = e->m[0].rss_kb;
    for (int i = 0; i < 4 && ok; i++) {
        kill(pids[i % N], SIGSTOP);
        wait_ms(1000);
        kill(pids[i % N], SIGCONT);
        ok = env_running(e, 1, 20);
    }
    ok = ok && nobody_was_lost(e);
    for (int i = 0; i < N; i++)
        ok = ok && ENV_SEEN(e->m[i].rss_kb < before + 64 * 1024, "member %d grew from %ld to %ld KiB", i, before,
                            e->m[i].rss_kb);
    if (ok) ok = env_end(e, pids, 0);
    else env_kill(pids, N);
    env_free(e);
    return procs_coordinator_stop(&co) == 0 && ok;
}

/* Kernel buffers of next to nothing: many turns for every message, and still all of it arrives. */
static int tiny_buffers(void) {
    struct procs_coordinator co;
    struct env *e = env_new("tiny", N, 8000);
    pid_t pids[N];
    if (env_coordinator(&co, 0, "127.0.0.1:0", 4000)) return 0;
    snprintf(e->address, sizeof e->address, "%s", co.address);
    e->cfg.socket_buffer_bytes = 32768;
    env_start(e, pids);
    int ok = env_running(e, 3, 30) && nobody_was_lost(e);
    if (ok) ok = env_end(e, pids, 0);
    else env_kill(pids, N);
    env_free(e);
    return procs_coordinator_stop(&co) == 0 && ok;
}

struct straggle {
    volatile int posted;
    volatile int64_t grown; /* KiB, of the one that comes late */
};

#define BIG (8u << 20)
#define FLOOD 6

/* One member starts six large operations; the other does not call for two heartbeats. It holds next to nothing of
 * what is sent to it meanwhile, is not taken for dead, and gets everything right when it comes. */
static int straggler(rg_group_t *g, int rank, int n, void *arg) {
    struct straggle *s = arg;
    rg_request_t *req[FLOOD];
    float *x[FLOOD], warm[2] = { 1, 1 };
    PROCS_REQUIRE(rg_all_reduce(g, warm, warm, 2, RG_F32, RG_SUM, NULL, NULL) == RG_OK, "warm");
    for (int k = 0; k < FLOOD; k++) {
        x[k] = malloc(BIG * sizeof(float));
        PROCS_REQUIRE(x[k], "memory");
        for (uint32_t i = 0; i < BIG; i++) x[k][i] = (float)(k + rank);
    }
    long before = procs_rss_kb(getpid());
    if (rank) {
        PROCS_REQUIRE(PROCS_WAIT(s->posted, 20), "nothing was posted");
        wait_ms(2200);
        s->grown = procs_rss_kb(getpid()) - before;
    }
    for (int k = 0; k < FLOOD; k++)
        PROCS_REQUIRE(rg_all_reduce(g, x[k], x[k], BIG, RG_F32, RG_SUM, NULL, &req[k]) == RG_OK, "issue");
    if (!rank) {
        s->posted = 1;
        wait_ms(2000);
    }
    for (int k = 0; k < FLOOD; k++) {
        rg_result_t res = RG_RESULT_INIT;
        rg_status_t st = rg_wait(req[k], &res);
        PROCS_REQUIRE(st == RG_OK && res.contributors == (uint32_t)n, "%s %s", rg_status_name(st), res.text);
        for (uint32_t i = 0; i < BIG; i += 1001)
            PROCS_REQUIRE(x[k][i] == (float)(2 * k + 1), "operation %d: element %u is %g", k, i, (double)x[k][i]);
    }
    if (rank) PROCS_REQUIRE(s->grown < 40 * 1024, "it held %lld KiB unasked", (long long)s->grown);
    for (int k = 0; k < FLOOD; k++) free(x[k]);
    return rg_group_leave(g) != RG_OK;
}

static int late_caller(void) {
    struct straggle *s = procs_shared(sizeof *s);
    setenv("RG_HEARTBEAT_MS", "1000", 1);
    int ok = procs_cluster(2, straggler, s, 40) == 0;
    unsetenv("RG_HEARTBEAT_MS");
    return ok;
}

void env_net_cases(void) {
    static const struct {
        const char *name;
        enum cut what;
        int idle;
        uint32_t heartbeat_ms;
        int bridged;
    } cuts[] = {
        { "env__host_cut_off_in_operation__known_in_time", WHOLE_HOST, 0, 800, 0 },
        { "env__cable_pulled_in_operation__known_in_time", WHOLE_HOST, 0, 800, 1 },
        { "env__host_cut_off_while_idle__known_in_time", WHOLE_HOST, 1, 800, 0 },
        { "env__two_members_cut_in_operation__one_goes_in_time", TWO_MEMBERS, 0, 800, 0 },
        { "env__two_members_cut_while_idle__one_goes_in_time", TWO_MEMBERS, 1, 2000, 0 },
        { "env__two_members_cut_while_idle_short_heartbeat__one_goes_in_time", TWO_MEMBERS, 1, 800, 0 },
        { "env__coordinator_link_cut_in_operation__known_in_time", COORDINATOR, 0, 800, 0 },
        { "env__coordinator_link_cut_while_idle__known_in_time", COORDINATOR, 1, 800, 0 },
    };
    const char *why = net_unavailable();
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        if (why) env_skip(cuts[i].name, why);
        else PROCS_RUN(cuts[i].name, half_open(cuts[i].what, cuts[i].idle, cuts[i].heartbeat_ms, cuts[i].bridged));
    }
    static const struct {
        const char *name;
        int (*run)(void);
    } rest[] = {
        { "env__planted_no_cut__nobody_missed", planted_no_cut },
        { "env__host_cut_off_while_joining__others_go_on", cut_while_joining },
        { "env__members_cannot_reach_each_other__join_names_the_address", blocked_pair_while_joining },
        { "env__slow_line__nobody_is_lost_and_memory_bounded", slow_line },
        { "env__two_members_cut_while_idle_for_less_than_the_heartbeat__nobody_is_lost", cut_shortly },
        { "env__two_members_cut_while_idle_for_longer_than_half_of_it__nobody_is_lost", cut_for_longer },
        { "env__two_members_cut_while_idle_for_most_of_the_heartbeat__nobody_is_lost", cut_for_most_of_it },
    };
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        if (why) env_skip(rest[i].name, why);
        else PROCS_RUN(rest[i].name, rest[i].run());
    }
    PROCS_RUN("env__stopped_for_less_than_the_heartbeat__nobody_is_lost", stopped_again_and_again());
    PROCS_RUN("env__tiny_socket_buffers__results_right", tiny_buffers());
    PROCS_RUN("env__late_caller__not_lost_and_memory_bounded", late_caller());
}
