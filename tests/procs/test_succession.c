/* test_succession.c: the office of a coordinator that dies, stops or is cut off, with real processes: who takes it
 * over, who gets it back, who must stop, and what the others notice of it, which is nothing. check_coordinator_kills.c
 * does the same at random moments. It relies on succession.h, and on network namespaces for what is cut off. */
#include "net.h"
#include "succession.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEEN(cond, ...)                                                                                                \
    ((cond) || (fprintf(stderr, "%s: %s: ", __func__, #cond), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), 0))

static struct succ *running(const char *name, int *ok) {
    struct succ *s = succ_new(name, 1);
    succ_list(s, 1);
    *ok = SEEN(!succ_coordinator(s, 0, 0), "no coordinator");
    for (int i = 0; i < SUCC_N; i++) succ_member(s, i);
    *ok = *ok && SEEN(succ_up(s, SUCC_N, 20), "no group");
    return s;
}

static int ended(struct succ *s, int ok) {
    ok = succ_clean(s) && ok;
    succ_free(s);
    return ok;
}

/* A member takes over, and lets newcomers in, who find it by the list of addresses. */
static int taken_over(void) {
    int ok;
    struct succ *s = running("takeover", &ok);
    uint64_t at = procs_now();
    succ_kill_coordinator(s, 0);
    ok = ok && SEEN(PROCS_WAIT(succ_office(s) >= 0, 15), "nobody took over");
    ok = ok && SEEN((double)(procs_now() - at) / 1e6 < SUCC_TAKEOVER_MS + 1000 + procs_late_ms(at), "it took %.0f ms",
                    (double)(procs_now() - at) / 1e6);
    succ_member(s, SUCC_N);
    ok = ok && SEEN(succ_up(s, SUCC_N + 1, 10), "the newcomer is not in");
    return ended(s, ok && succ_moves(s, 20, 10));
}

/* The member that holds the office dies: another one takes it. */
static int host_dies(void) {
    int ok;
    struct succ *s = running("host", &ok);
    succ_kill_coordinator(s, 0);
    ok = ok && SEEN(PROCS_WAIT(succ_office(s) >= 0, 15), "nobody took over");
    int first = succ_office(s);
    if (first >= 0) succ_kill_member(s, first);
    ok = ok && SEEN(succ_up(s, SUCC_N - 1, 10), "the others do not go on");
    ok = ok && SEEN(PROCS_WAIT(succ_office(s) >= 0, 15) && succ_office(s) != first, "nobody took over from it");
    return ended(s, ok);
}

/* One that is started anew at the old address while a member holds the office gets it back, and can use it. */
static int given_back(void) {
    int ok;
    struct succ *s = running("back", &ok);
    succ_kill_coordinator(s, 0);
    ok = ok && SEEN(PROCS_WAIT(succ_office(s) >= 0, 15), "nobody took over");
    ok = ok && !succ_coordinator(s, 0, 0) && SEEN(PROCS_WAIT(succ_office(s) < 0, 15), "a member still holds it");
    ok = ok && succ_moves(s, 20, 10);
    succ_kill_member(s, 1);
    ok = ok && SEEN(succ_up(s, SUCC_N - 1, 10), "the others do not go on");
    return ended(s, ok);
}

/* What a stopped coordinator misses is done without it; when it goes on it follows, and harms nobody. */
static int stopped(void) {
    int ok;
    struct succ *s = running("stopped", &ok);
    kill(s->co[0], SIGSTOP);
    ok = ok && SEEN(PROCS_WAIT(succ_office(s) >= 0, 15), "nobody took over");
    succ_kill_member(s, 2);
    ok = ok && SEEN(succ_up(s, SUCC_N - 1, 10), "the others do not go on");
    kill(s->co[0], SIGCONT);
    ok = ok && SEEN(PROCS_WAIT(succ_office(s) < 0, 15), "it does not get its office back") && succ_moves(s, 20, 10);
    succ_member(s, 2);
    ok = ok && SEEN(succ_up(s, SUCC_N, 10), "the newcomer is not in");
    return ended(s, ok);
}

/* What is at the coordinator's address when the members come back to it is another group of their name, of a newcomer
 * that founded it meanwhile: it cannot take them, so the office stays with the member that has it. */
static int second_group(void) {
    int ok;
    struct succ *s = running("second", &ok);
    succ_kill_coordinator(s, 0);
    for (int i = 0; i < SUCC_N; i++) kill(s->m[i].pid, SIGSTOP);
    ok = ok && !succ_coordinator(s, 0, 0);
    succ_member(s, SUCC_N);
    ok = ok && SEEN(PROCS_WAIT(s->m[SUCC_N].contributors == 1, 10), "no second group");
    for (int i = 0; i < SUCC_N; i++) kill(s->m[i].pid, SIGCONT);
    ok = ok && SEEN(PROCS_WAIT(succ_office(s) >= 0, 15), "nobody took over");
    int host = succ_office(s);
    ok = ok && SEEN(!PROCS_WAIT(succ_office(s) != host, 2 * SUCC_HEARTBEAT_MS / 1000.0), "it was given away");
    succ_kill_member(s, host ? 0 : 1);
    ok = ok && SEEN(PROCS_WAIT(s->m[host < 0 ? 0 : host].contributors == SUCC_N - 1, 10), "the others do not go on");
    return ended(s, ok && succ_moves(s, 20, 10));
}

/* A standby serves only when the other does not. */
static int standby(void) {
    int ok;
    struct succ *s = running("standby", &ok);
    char *json = NULL, address[64];
    rg_error_t err;
    ok = ok && !succ_coordinator(s, 1, 1);
    snprintf(address, sizeof address, "127.0.0.1:%d", s->port[1]);
    ok = ok && SEEN(!rg_coordinator_status(address, 2000, &json, &err) && strstr(json, "\"serves\":false"), "%s",
                    json ? json : err.text);
    rg_free(json);
    succ_kill_coordinator(s, 0);
    succ_kill_member(s, 3);
    ok = ok && SEEN(succ_up(s, SUCC_N - 1, 10), "the standby has not taken over");
    json = NULL;
    ok = ok && SEEN(!rg_coordinator_status(s->list, 2000, &json, &err) && strstr(json, "\"serves\":true") &&
                        strstr(json, "\"holder\":\"coordinator\""),
                    "%s", json ? json : err.text);
    rg_free(json);
    ok = ok && SEEN(succ_office(s) < 0, "a member took over");
    return ended(s, ok && succ_moves(s, 20, 10));
}

/* Three of four die at once with the coordinator: the last one has no quorum, stops in time and says what that means;
 * its input is intact (the rig looks). */
static int minority(void) {
    int ok;
    struct succ *s = running("minority", &ok);
    succ_kill_coordinator(s, 0);
    for (int i = 0; i < 3; i++) succ_kill_member(s, i);
    uint64_t at = procs_now();
    ok = ok && SEEN(PROCS_WAIT(s->m[3].ended, 15), "it waits for ever");
    ok = ok && SEEN(s->m[3].status == RG_ERR_NO_QUORUM && s->m[3].stale && !s->m[3].wrong, "stale %u: %s",
                    s->m[3].stale, s->m[3].text);
    double ms = (double)(procs_now() - at) / 1e6;
    ok = ok && SEEN(ms < SUCC_TAKEOVER_MS + 6 * SUCC_HEARTBEAT_MS + procs_late_ms(at), "after %.0f ms", ms);
    succ_free(s);
    return ok;
}

/* ---- Cut off --------------------------------------------------------------------------------------------------- */

/* Members 0 to 3 on nodes 0 to 2 and the last two on one, the coordinator on node 3 of a routed net. */
static struct succ *spread(struct net *t, const char *name, int *ok) {
    struct succ *s = succ_new(name, 1);
    for (int i = 0; i < SUCC_N; i++) {
        s->ns[i] = t->node[i < 2 ? i : 2];
        net_v4(t, i < 2 ? i : 2, s->host[i]);
    }
    s->ns[SUCC_SLOTS] = s->ns[SUCC_SLOTS + 1] = t->node[3];
    net_v4(t, 3, s->host[SUCC_SLOTS]);
    net_v4(t, 3, s->host[SUCC_SLOTS + 1]);
    succ_list(s, 0);
    *ok = SEEN(!succ_coordinator(s, 0, 0), "no coordinator");
    for (int i = 0; i < SUCC_N; i++) succ_member(s, i);
    *ok = *ok && SEEN(succ_up(s, SUCC_N, 20), "no group");
    return s;
}

/* The coordinator's packets vanish: members take over; when they flow again it gets its office back. */
static int coordinator_cut_off(struct net *t) {
    int ok;
    struct succ *s = spread(t, "cut", &ok);
    net_cut(t, 3);
    ok = ok && SEEN(PROCS_WAIT(succ_office(s) >= 0, 15), "nobody took over");
    succ_kill_member(s, 3);
    ok = ok && SEEN(succ_up(s, SUCC_N - 1, 10), "the others do not go on");
    net_heal(t, 3);
    ok = ok && SEEN(PROCS_WAIT(succ_office(s) < 0, 10), "it does not get its office back");
    return ended(s, ok && succ_moves(s, 20, 10));
}

/* One member is cut off from all: the others expel it and go on, and it stops. */
static int member_cut_off(struct net *t) {
    int ok;
    struct succ *s = spread(t, "alone", &ok);
    net_cut(t, 0);
    ok = ok && SEEN(PROCS_WAIT(s->m[1].contributors == 3 && s->m[2].contributors == 3, 15), "the others do not go on");
    ok = ok && SEEN(PROCS_WAIT(s->m[0].ended, 15), "the one that was cut off waits for ever");
    ok = ok && SEEN(s->m[0].status == RG_ERR_NO_QUORUM && s->m[0].stale && !s->m[0].wrong, "%s", s->m[0].text);
    net_heal(t, 0);
    succ_kill_member(s, 0);
    return ended(s, ok && succ_moves(s, 20, 10));
}

static void cut_cases(void) {
    struct net t;
    const char *why = net_unavailable();
    if (why) {
        procs_skipped++;
        printf("skip   succession__cut_off: %s\n", why);
        return;
    }
    if (net_open(&t, 4, NET_V4, 0)) {
        procs_case("succession__cut_off__network", 0);
        return;
    }
    procs_case("succession__coordinator_cut_off__members_take_over_and_give_back", coordinator_cut_off(&t));
    procs_case("succession__member_cut_off__stops_without_quorum_and_others_go_on", member_cut_off(&t));
    net_close(&t);
}

/* ---- The process that a group was formed with ------------------------------------------------------------------- */

#define RANKS 3
struct hosted {
    rg_unique_id_t id;
    volatile int have_id, status[RANKS];
    volatile uint32_t world[RANKS];
    volatile uint64_t ops[RANKS];
    char text[RANKS][256];
};

static int rank_body(int rank, void *arg) {
    struct hosted *h = arg;
    rg_config_t cfg = RG_CONFIG_INIT;
    rg_group_t *g = NULL;
    rg_error_t err = { 0 };
    setenv("RG_HEARTBEAT_MS", "600", 1);
    setenv("RG_SUCCESSION", "on", 1);
    if (rank == 0) {
        PROCS_REQUIRE(rg_unique_id(&h->id, &err) == RG_OK, "%s", err.text);
        h->have_id = 1;
    }
    PROCS_REQUIRE(PROCS_WAIT(h->have_id, 10), "no id");
    PROCS_REQUIRE(rg_group_init_rank(RANKS, (uint32_t)rank, &h->id, &cfg, &g, &err) == RG_OK, "%s", err.text);
    for (;;) {
        float x = 1;
        rg_result_t res = RG_RESULT_INIT;
        rg_opts_t opts = RG_OPTS_INIT;
        opts.result = &res;
        rg_status_t st = rg_all_reduce(g, &x, &x, 1, RG_F32, RG_SUM, &opts, NULL);
        if (st) snprintf(h->text[rank], sizeof h->text[rank], "%s", res.text);
        if ((h->status[rank] = st)) return 1;
        h->world[rank] = res.contributors;
        h->ops[rank]++;
    }
}

/* Rank 0 dies with the coordinator that it has made: the two others go on, and lose nothing. */
static int founder_dies(void) {
    struct hosted *h = procs_shared(sizeof *h);
    pid_t pids[RANKS];
    int ok = 1;
    for (int i = 0; i < RANKS; i++) pids[i] = procs_fork(rank_body, i, h);
    for (int i = 0; i < RANKS; i++) ok = ok && SEEN(PROCS_WAIT(h->world[i] == RANKS, 20), "rank %d", i);
    kill(pids[0], SIGKILL);
    for (int i = 1; i < RANKS; i++)
        ok = ok && SEEN(PROCS_WAIT(h->world[i] == RANKS - 1 || h->status[i], 10) && !h->status[i], "rank %d: %s", i,
                        h->text[i]);
    for (int i = 0; i < RANKS; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    return ok;
}

void test_succession(void) {
    static const struct {
        const char *name;
        int (*run)(void);
    } cases[] = {
        { "succession__coordinator_killed__a_member_takes_over", taken_over },
        { "succession__member_with_the_office_killed__another_takes_over", host_dies },
        { "succession__coordinator_back_at_its_address__gets_its_office_back", given_back },
        { "succession__coordinator_stopped__members_go_on_without_it", stopped },
        { "succession__another_group_at_the_coordinators_address__the_office_stays", second_group },
        { "succession__standby__takes_the_groups_of_the_other", standby },
        { "succession__minority__stops_with_no_quorum_and_says_stale", minority },
        { "succession__founding_process_killed__the_others_go_on", founder_dies },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (procs_wanted(cases[i].name)) procs_case(cases[i].name, cases[i].run());
    cut_cases();
}
