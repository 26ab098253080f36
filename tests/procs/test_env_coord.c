/* test_env_coord.c: the coordinator and the start of a job: a coordinator that dies, stops or comes back as another; a
 * rank that never comes, dies or fails while the others wait; ports that are fixed, taken or left to the kernel; a job
 * that starts in the ruins of the one before. */
#include "env.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 3
#define T_MS 1000u /* on a busy host processes wait for their turn */

static double ms_since(uint64_t from, uint64_t to) { return to > from ? (double)(to - from) / 1e6 : 0; }

static void wait_ms(unsigned ms) {
    uint64_t until = procs_now() + ms * 1000000ull;
    PROCS_WAIT(procs_now() >= until, ms / 1000.0 + 1);
}

/* A port that is free now, held open until *fd is closed. */
static int some_port(int *fd) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof a;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || bind(*fd, (struct sockaddr *)&a, sizeof a) || getsockname(*fd, (struct sockaddr *)&a, &len))
        return 0;
    return ntohs(a.sin_port);
}

/* ---- A coordinator that is gone -------------------------------------------------------------------------------- */

struct job {
    struct procs_coordinator co;
    struct env *e;
    pid_t pids[N];
    char listen[64];
};

static int job_start(struct job *j, const char *name) {
    memset(j, 0, sizeof *j);
    snprintf(j->listen, sizeof j->listen, "127.0.0.1:%d", procs_free_port());
    if (env_coordinator(&j->co, 0, j->listen, T_MS)) return 0;
    j->e = env_new(name, N, 60000);
    snprintf(j->e->address, sizeof j->e->address, "%s", j->co.address);
    env_start(j->e, j->pids);
    return env_running(j->e, 20, 20);
}

static int nobody_lost(struct env *e) {
    int ok = 1;
    for (uint32_t i = 0; i < e->n; i++)
        ok = ENV_SEEN(e->m[i].contributors == e->n && !e->m[i].status && !e->m[i].changed_ns, "member %u: %s", i,
                      e->m[i].text) &&
             ok;
    return ok;
}

/* Every survivor's call has ended by then, or by how late the host was meanwhile after it, with an error that names the
 * coordinator as the reason. */
static int survivors_told(struct env *e, uint64_t at, double bound_ms) {
    int ok = 1;
    for (int i = 0; i < N - 1; i++) {
        struct env_member *m = &e->m[i];
        PROCS_WAIT(m->ended_ns, bound_ms / 1000 + 5);
        double ms = ms_since(at, m->ended_ns ? m->ended_ns : procs_now());
        ok = ENV_SEEN(m->ended_ns && ms < bound_ms + procs_late_ms(at), "member %d: %s after %.0f ms of %.0f", i,
                      m->ended_ns ? "ended" : "nothing", ms, bound_ms) &&
             ok;
        ok = ok && ENV_SEEN(m->status == RG_ERR_COORDINATOR && strstr(m->text, "coordinator"), "member %d: %s: %s", i,
                            rg_status_name((rg_status_t)m->status), m->text);
    }
    return ok;
}

static int job_abandon(struct job *j, int ok, int bury_coordinator) {
    env_kill(j->pids, N);
    if (bury_coordinator) ok = procs_coordinator_stop(&j->co) == 0 && ok;
    env_free(j->e);
    return ok;
}

/* By authority nobody takes the place of a coordinator (test_succession.c has what is so otherwise). */
static int by_authority(int (*run)(void)) {
    const char *was = getenv("RG_SUCCESSION");
    char kept[16];
    if (was) snprintf(kept, sizeof kept, "%s", was);
    setenv("RG_SUCCESSION", "off", 1);
    int ok = run();
    if (was) setenv("RG_SUCCESSION", kept, 1);
    else unsetenv("RG_SUCCESSION");
    return ok;
}

/* Operations go on for several heartbeats; then a member dies and nobody is there to decide. */
static int killed_then_a_member_(void) {
    struct job j;
    int ok = job_start(&j, "orphans");
    env_coordinator_kill(&j.co);
    wait_ms(3 * T_MS);
    ok = ok && env_running(j.e, 50, 10) && nobody_lost(j.e);
    uint64_t at = procs_now();
    kill(j.pids[N - 1], SIGKILL);
    ok = ok && survivors_told(j.e, at, T_MS + 1000);
    return job_abandon(&j, ok, 0);
}

static int killed_with_a_member_(void) {
    struct job j;
    int ok = job_start(&j, "both");
    uint64_t at = procs_now();
    env_coordinator_kill(&j.co);
    kill(j.pids[N - 1], SIGKILL);
    ok = ok && survivors_told(j.e, at, 2 * T_MS + 1000);
    return job_abandon(&j, ok, 0);
}

/* The member dies while nobody calls: the next call says so. */
static int killed_and_idle_(void) {
    struct job j;
    int ok = job_start(&j, "idle");
    env_coordinator_kill(&j.co);
    j.e->idle = 1;
    for (int i = 0; i < N; i++) ok = ok && PROCS_WAIT(j.e->m[i].idles, 20);
    wait_ms(2 * T_MS);
    kill(j.pids[N - 1], SIGKILL);
    wait_ms(100);
    uint64_t at = procs_now();
    j.e->idle = 0;
    ok = ok && survivors_told(j.e, at, T_MS + 1000);
    return job_abandon(&j, ok, 0);
}

/* Another coordinator takes the port: it cannot know the group, and is no help when a member dies. */
static int replaced_then_a_member_(void) {
    struct job j;
    int ok = job_start(&j, "anew");
    env_coordinator_kill(&j.co);
    ok = ok && ENV_SEEN(!env_coordinator(&j.co, 0, j.listen, T_MS), "%s is not free", j.listen);
    wait_ms(3 * T_MS);
    ok = ok && env_running(j.e, 50, 10) && nobody_lost(j.e);
    uint64_t at = procs_now();
    kill(j.pids[N - 1], SIGKILL);
    ok = ok && survivors_told(j.e, at, 2 * T_MS + 1000);
    return job_abandon(&j, ok, ok);
}

static int killed_then_a_member(void) { return by_authority(killed_then_a_member_); }
static int killed_with_a_member(void) { return by_authority(killed_with_a_member_); }
static int killed_and_idle(void) { return by_authority(killed_and_idle_); }
static int replaced_then_a_member(void) { return by_authority(replaced_then_a_member_); }

static int killed_then_all_leave(void) {
    struct job j;
    int ok = job_start(&j, "leave");
    env_coordinator_kill(&j.co);
    wait_ms(T_MS);
    ok = ok && env_running(j.e, 20, 10) && nobody_lost(j.e);
    uint64_t at = procs_now();
    if (ok) ok = env_end(j.e, j.pids, 0);
    else env_kill(j.pids, N);
    ok = ok && ENV_SEEN(ms_since(at, procs_now()) < 2 * T_MS + 1000 + procs_late_ms(at), "leaving took %.0f ms",
                        ms_since(at, procs_now()));
    env_free(j.e);
    return ok;
}

/* A coordinator that was stopped finds everybody silent when it comes back, and holds it against nobody. */
static int stopped_and_back(void) {
    struct job j;
    int ok = job_start(&j, "asleep");
    kill(j.co.pid, SIGSTOP);
    wait_ms(3 * T_MS);
    kill(j.co.pid, SIGCONT);
    wait_ms(2 * T_MS);
    ok = ok && env_running(j.e, 50, 10) && nobody_lost(j.e);
    if (ok) ok = env_end(j.e, j.pids, 0);
    else env_kill(j.pids, N);
    env_free(j.e);
    return procs_coordinator_stop(&j.co) == 0 && ok;
}

/* A member dies while the coordinator is stopped for less than the heartbeat: the others go on after it. */
static int stopped_while_a_member_dies(void) {
    struct job j;
    int ok = job_start(&j, "nap");
    kill(j.co.pid, SIGSTOP);
    kill(j.pids[N - 1], SIGKILL);
    wait_ms(T_MS / 3);
    kill(j.co.pid, SIGCONT);
    for (int i = 0; i < N - 1; i++)
        ok = ok && ENV_SEEN(PROCS_WAIT(j.e->m[i].contributors == N - 1, 20), "member %d: %s %s", i,
                            rg_status_name((rg_status_t)j.e->m[i].status), j.e->m[i].text);
    j.e->n = N - 1;
    if (ok) ok = env_end(j.e, j.pids, 0);
    else env_kill(j.pids, N - 1);
    waitpid(j.pids[N - 1], NULL, 0);
    env_free(j.e);
    return procs_coordinator_stop(&j.co) == 0 && ok;
}

/* ---- Ranks that do not come ------------------------------------------------------------------------------------ */

struct init {
    rg_unique_id_t id;
    volatile int have_id, ended[N], status[N], world[N];
    volatile uint64_t began_ns[N], ended_ns[N];
    const char *interface[N];
    uint32_t join_timeout_ms;
    char text[N][512];
};

/* Rank 0 hosts the coordinator, so it stays until the others have ended. */
static int init_rank(int index, void *arg) {
    struct init *s = arg;
    rg_config_t cfg = RG_CONFIG_INIT;
    rg_group_t *g = NULL;
    rg_info_t info = RG_INFO_INIT;
    rg_error_t err = { 0 };
    int rank = index % N;
    if (rank == 0) {
        PROCS_REQUIRE(rg_unique_id(&s->id, &err) == RG_OK, "%s", err.text);
        s->have_id = 1;
    }
    PROCS_REQUIRE(PROCS_WAIT(s->have_id, 20), "no id");
    cfg.join_timeout_ms = s->join_timeout_ms;
    cfg.interface = s->interface[rank];
    s->began_ns[rank] = procs_now();
    rg_status_t st = rg_group_init_rank(N, (uint32_t)rank, &s->id, &cfg, &g, &err);
    s->ended_ns[rank] = procs_now();
    s->status[rank] = st;
    memcpy(s->text[rank], err.text, sizeof s->text[rank]);
    if (g && !rg_group_info(g, &info)) s->world[rank] = (int)info.world_size;
    s->ended[rank] = 1;
    /* Whoever leaves makes the world smaller that the others are about to look at. */
    for (int i = 0; i < N && st == RG_OK; i++) PROCS_REQUIRE(PROCS_WAIT(s->ended[i], 20), "rank %d has not joined", i);
    if (rank == 0) PROCS_REQUIRE(PROCS_WAIT(s->ended[N - 1] || s->ended[0] == 2, 30), "the last rank");
    rg_group_destroy(g);
    return 0;
}

static int timed_out(struct init *s, int rank, const char *missing) {
    double ms = ms_since(s->began_ns[rank], s->ended_ns[rank]);
    return ENV_SEEN(
        s->status[rank] == RG_ERR_TIMEOUT && strstr(s->text[rank], missing) && ms > 0.8 * s->join_timeout_ms &&
            ms < 1.2 * s->join_timeout_ms + 100 + procs_late_ms(s->began_ns[rank]),
        "rank %d: %s after %.0f ms: %s", rank, rg_status_name((rg_status_t)s->status[rank]), ms, s->text[rank]);
}

static struct init *init_new(uint32_t join_timeout_ms) {
    struct init *s = procs_shared(sizeof *s);
    s->join_timeout_ms = join_timeout_ms;
    setenv("RG_HEARTBEAT_MS", "800", 1);
    return s;
}

/* Rank 1 never comes, rank 2 is struck by a signal while it waits: rank 0 is told that both are missing. */
static int struck_while_waiting(int sig) {
    struct init *s = init_new(3000); /* the coordinator must miss it before that, by its heartbeat */
    pid_t zero = procs_fork(init_rank, 0, s), two = procs_fork(init_rank, 2, s);
    int ok = PROCS_WAIT(s->began_ns[2], 20);
    wait_ms(300);
    kill(two, sig);
    ok = ok && ENV_SEEN(PROCS_WAIT(s->ended[0], 10), "rank 0 still waits") && timed_out(s, 0, "missing ranks: 1, 2");
    s->ended[0] = 2;
    kill(two, SIGKILL);
    waitpid(two, NULL, 0);
    ok = procs_end(zero, 20) == 0 && ok;
    unsetenv("RG_HEARTBEAT_MS");
    return ok;
}

static int killed_while_waiting(void) { return struck_while_waiting(SIGKILL); }
static int stopped_while_waiting(void) { return struck_while_waiting(SIGSTOP); }

/* Rank 1 cannot even start: it says why at once, and the others say that it is missing. Rank 2, which came later, finds
 * that rank 0 has given up meanwhile. */
static int one_rank_fails(void) {
    struct init *s = init_new(1200);
    pid_t pids[N];
    s->interface[1] = "wlan7";
    pids[0] = procs_fork(init_rank, 0, s);
    pids[1] = procs_fork(init_rank, 1, s);
    int ok = PROCS_WAIT(s->began_ns[0], 20);
    wait_ms(500);
    pids[2] = procs_fork(init_rank, 2, s);
    ok = ok && ENV_SEEN(PROCS_WAIT(s->ended[1], 10) && s->status[1] == RG_ERR_INVALID && strstr(s->text[1], "wlan7"),
                        "rank 1: %s", s->text[1]);
    for (int i = 0; i < N; i++) ok = procs_end(pids[i], 20) == 0 && ok;
    unsetenv("RG_HEARTBEAT_MS");
    return ok && timed_out(s, 0, "missing ranks: 1") && timed_out(s, 2, "missing ranks: 0, 1");
}

/* A rank that dies while it waits may be started again in time. */
static int replaced_while_waiting(void) {
    struct init *s = init_new(20000);
    pid_t zero = procs_fork(init_rank, 0, s), two = procs_fork(init_rank, 2, s), one;
    int ok = PROCS_WAIT(s->began_ns[2], 20);
    wait_ms(200);
    kill(two, SIGKILL);
    waitpid(two, NULL, 0);
    two = procs_fork(init_rank, 2, s);
    one = procs_fork(init_rank, 1, s);
    ok = procs_end(one, 30) == 0 && ok;
    ok = procs_end(two, 30) == 0 && ok;
    ok = procs_end(zero, 30) == 0 && ok;
    for (int i = 0; i < N; i++)
        ok = ENV_SEEN(s->status[i] == RG_OK && s->world[i] == N, "rank %d of %d: %s", i, s->world[i], s->text[i]) && ok;
    unsetenv("RG_HEARTBEAT_MS");
    return ok;
}

/* ---- Ports ----------------------------------------------------------------------------------------------------- */

static int taken_port_body(int index, void *arg) {
    int fd, port = some_port(&fd);
    char text[64], listen_at[80];
    rg_error_t err = { 0 };
    rg_coordinator_config_t cc = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co = NULL;
    rg_group_t *g = NULL;
    (void)index;
    (void)arg;
    PROCS_REQUIRE(port && !listen(fd, 4), "no port");
    snprintf(text, sizeof text, "127.0.0.1:%d", port);
    cc.listen = text;
    rg_status_t st = rg_coordinator_start(&cc, &co, &err);
    PROCS_REQUIRE(st == RG_ERR_SYSTEM && !co && strstr(err.text, text) && strstr(err.text, "in use"), "%s: %s",
                  rg_status_name(st), err.text);
    snprintf(listen_at, sizeof listen_at, ":%d", port); /* taken on one of many addresses is taken */
    cc.listen = listen_at;
    st = rg_coordinator_start(&cc, &co, &err);
    PROCS_REQUIRE(st == RG_ERR_SYSTEM && !co && strstr(err.text, listen_at) && strstr(err.text, "in use"), "%s: %s",
                  rg_status_name(st), err.text);
    cc.listen = "127.0.0.1:0";
    PROCS_REQUIRE(rg_coordinator_start(&cc, &co, &err) == RG_OK, "%s", err.text);
    rg_config_t cfg = procs_config(rg_coordinator_address(co), "ports", 1, 0);
    cfg.listen_port = (uint32_t)port;
    st = rg_group_join(&cfg, &g, &err);
    PROCS_REQUIRE(st == RG_ERR_SYSTEM && !g && strstr(err.text, text) && strstr(err.text, "in use"), "%s: %s",
                  rg_status_name(st), err.text);
    close(fd);
    PROCS_REQUIRE(rg_group_join(&cfg, &g, &err) == RG_OK, "after it was freed: %s", err.text);
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    PROCS_REQUIRE(!connect(fd, (struct sockaddr *)&a, sizeof a), "nobody listens on the port that was chosen");
    close(fd);
    rg_group_destroy(g);
    rg_coordinator_stop(co);
    return 0;
}

static int port_zero_body(int index, void *arg) {
    static const char *const ways[] = { "127.0.0.1:0", ":0", "localhost:0", NULL };
    (void)index;
    (void)arg;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        rg_coordinator_config_t cc = RG_COORDINATOR_CONFIG_INIT;
        rg_coordinator_t *co = NULL;
        rg_error_t err = { 0 };
        char *json = NULL;
        cc.listen = ways[i];
        if (!ways[i]) setenv("RG_COORDINATOR_LISTEN", "127.0.0.1:0", 1);
        PROCS_REQUIRE(rg_coordinator_start(&cc, &co, &err) == RG_OK, "%s", err.text);
        const char *colon = strrchr(rg_coordinator_address(co), ':');
        PROCS_REQUIRE(colon && atoi(colon + 1) > 0, "\"%s\" says nothing", rg_coordinator_address(co));
        PROCS_REQUIRE(rg_coordinator_status(rg_coordinator_address(co), 2000, &json, &err) == RG_OK, "%s", err.text);
        rg_free(json);
        rg_coordinator_stop(co);
    }
    return 0;
}

/* Jobs on the same ports, one in the ruins of the other: started at once, never joined by the one that was left. */
static int restarted_on_fixed_ports(void) {
    struct env *old = env_new("fixed", N, 20000);
    pid_t left = 0;
    int ok = 1, rounds = 15, port = procs_free_port(), one = procs_free_port(), two = procs_free_port();
    char listen_at[64];
    snprintf(listen_at, sizeof listen_at, "127.0.0.1:%d", port);
    for (int k = 0; ok && k < rounds; k++) {
        struct env *e = k ? env_new("fixed", 2, 20000) : old;
        struct procs_coordinator co;
        pid_t pids[N];
        if (!ENV_SEEN(!env_coordinator(&co, 0, listen_at, T_MS), "round %d: no coordinator", k)) return 0;
        snprintf(e->address, sizeof e->address, "%s", co.address);
        e->port[0] = (uint32_t)one;
        e->port[1] = (uint32_t)two;
        env_start(e, pids);
        ok = env_running(e, 20, 20);
        for (uint32_t i = 0; ok && i < e->n; i++)
            ok = ENV_SEEN(e->m[i].contributors == e->n && !e->m[i].wrong, "round %d: %u contributors", k,
                          e->m[i].contributors);
        env_coordinator_kill(&co);
        env_kill(pids, 2);
        if (k == 0) left = pids[2];
        else env_free(e);
    }
    ok = ok && ENV_SEEN(PROCS_WAIT(old->m[2].ended_ns, 20), "the one that was left still waits");
    ok = ok && ENV_SEEN(old->m[2].status != RG_OK && old->m[2].joins == 1, "it ended with %s: %s",
                        rg_status_name((rg_status_t)old->m[2].status), old->m[2].text);
    kill(left, SIGKILL);
    waitpid(left, NULL, 0);
    env_free(old);
    return ok;
}

static int alone(int (*body)(int, void *)) { return procs_end(procs_fork(body, 0, NULL), 20) == 0; }
static int taken_port(void) { return alone(taken_port_body); }
static int port_zero(void) { return alone(port_zero_body); }

void env_coordinator_cases(void) {
    static const struct {
        const char *name;
        int (*run)(void);
    } cases[] = {
        { "env__coordinator_killed_then_a_member__survivors_told_in_time", killed_then_a_member },
        { "env__coordinator_killed_with_a_member__survivors_told_in_time", killed_with_a_member },
        { "env__coordinator_killed_and_a_member_while_idle__next_call_says_so", killed_and_idle },
        { "env__coordinator_replaced_then_a_member__survivors_told_in_time", replaced_then_a_member },
        { "env__coordinator_killed__all_leave_in_order", killed_then_all_leave },
        { "env__coordinator_stopped_and_continued__nobody_is_lost", stopped_and_back },
        { "env__coordinator_stopped_while_a_member_dies__others_go_on", stopped_while_a_member_dies },
        { "env__rank_killed_while_waiting__named_as_missing", killed_while_waiting },
        { "env__rank_stopped_while_waiting__named_as_missing", stopped_while_waiting },
        { "env__rank_that_cannot_start__says_why_and_is_missed", one_rank_fails },
        { "env__rank_replaced_while_waiting__group_forms", replaced_while_waiting },
        { "env__port_in_use__text_has_the_address", taken_port },
        { "env__port_zero__actual_port_is_told", port_zero },
        { "env__restarted_on_fixed_ports__never_meets_the_old_job", restarted_on_fixed_ports },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) PROCS_RUN(cases[i].name, cases[i].run());
}
