/* test_cases_env.c: what a host does to a program: signals that interrupt everything, forks and execs, clocks that
 * jump, everybody stopped at once, processors that others use, memory and disks that are full, standard error that
 * nobody reads. It relies on the members of env.h and on test_cases_clock.c for clocks; it must not change anything of
 * the host itself: what would is done in a namespace or in the process alone. */
#include "cases.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void wait_ms(unsigned ms) {
    uint64_t until = procs_now() + ms * 1000000ull;
    PROCS_WAIT(procs_now() >= until, ms / 1000.0 + 1);
}

/* ---- A running group ------------------------------------------------------------------------------------------- */

struct job {
    struct procs_coordinator co;
    struct env *e;
    pid_t pids[ENV_MEMBERS];
};

static int job_open(struct job *j, uint32_t n, uint32_t count, uint32_t heartbeat_ms, const char *transport) {
    memset(j, 0, sizeof *j);
    if (env_coordinator(&j->co, 0, "127.0.0.1:0", heartbeat_ms)) return 0;
    j->e = env_new("cases", n, count);
    j->e->cfg.transport = transport;
    snprintf(j->e->address, sizeof j->e->address, "%s", j->co.address);
    return 1;
}

static int job_close(struct job *j, int ok, unsigned expected_bad) {
    if (ok) ok = env_end(j->e, j->pids, expected_bad);
    else env_kill(j->pids, j->e->n);
    ok = procs_coordinator_stop(&j->co) == 0 && ok;
    env_free(j->e);
    return ok;
}

/* All members still contribute and none has seen a change of the membership. */
static int nobody_lost(const struct env *e) {
    int ok = 1;
    for (uint32_t i = 0; i < e->n; i++)
        ok =
            ENV_SEEN(e->m[i].contributors == e->n && !e->m[i].status && !e->m[i].changed_ns && !e->m[i].wrong,
                     "member %u: %u contribute, status %d %s", i, e->m[i].contributors, e->m[i].status, e->m[i].text) &&
            ok;
    return ok;
}

static int has_ended(pid_t pid) {
    siginfo_t si = { 0 };
    return !waitid(P_PID, (id_t)pid, &si, WEXITED | WNOHANG | WNOWAIT) && si.si_pid == pid;
}

/* ---- Signals that interrupt every call -------------------------------------------------------------------------- */

struct storm {
    volatile pid_t target[ENV_MEMBERS + 1];
    volatile unsigned long sent, handled;
    volatile int over;
};
static struct storm *storm;

static void count_signal(int sig) {
    (void)sig;
    __atomic_add_fetch(&storm->handled, 1, __ATOMIC_RELAXED);
}

/* Sends a signal to every thread of every target, again and again, those of the library among them. */
static int storm_main(int index, void *arg) {
    struct storm *s = arg;
    (void)index;
    while (!s->over) {
        for (int i = 0; i <= ENV_MEMBERS; i++) {
            char path[64];
            pid_t pid = s->target[i];
            if (!pid) continue;
            snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
            DIR *d = opendir(path);
            if (!d) continue;
            for (struct dirent *t; (t = readdir(d));)
                if (t->d_name[0] != '.' && !syscall(SYS_tgkill, pid, atoi(t->d_name), SIGUSR1)) s->sent++;
            closedir(d);
        }
        poll(NULL, 0, 1);
    }
    return 0;
}

static int signals(const char *transport) {
    struct sigaction count = { .sa_handler = count_signal }, was; /* without SA_RESTART */
    struct job j;
    storm = procs_shared(sizeof *storm);
    if (sigaction(SIGUSR1, &count, &was)) return 0; /* the children inherit it */
    int ok = job_open(&j, 3, 100000, 2000, transport);
    storm->target[ENV_MEMBERS] = j.co.pid;
    pid_t pid = procs_fork(storm_main, 0, storm);
    for (uint32_t i = 0; ok && i < j.e->n; i++) /* joined in the storm */
        storm->target[i] = j.pids[i] = procs_fork(env_member, (int)i, j.e);
    ok = ok && env_running(j.e, 200, 30) && nobody_lost(j.e);
    ok = ok &&
         ENV_SEEN(PROCS_WAIT(storm->handled > 2000, 10), "only %lu of %lu signals came", storm->handled, storm->sent);
    ok = ok && env_running(j.e, 200, 30) && nobody_lost(j.e);
    j.e->end = 1; /* left in it, too */
    for (uint32_t i = 0; ok && i < j.e->n; i++)
        ok = ENV_SEEN(PROCS_WAIT(has_ended(j.pids[i]), 10), "member %u stays", i);
    storm->over = 1;
    ok = procs_end(pid, 5) == 0 && ok;
    sigaction(SIGUSR1, &was, NULL);
    return job_close(&j, ok, 0);
}

/* ---- fork and exec ---------------------------------------------------------------------------------------------- */

/* Descriptors that a program executed by this process would get, beyond those that it had before. */
static int left_open(const char *before) {
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) {
        int flags = fcntl(fd, F_GETFD);
        n += flags >= 0 && !(flags & FD_CLOEXEC) && !before[fd];
    }
    return n;
}

static int exec_body(int index, void *arg) {
    struct env *e = arg;
    static float x[200000];
    char before[1024] = { 0 };
    rg_config_t cfg = procs_config(e->address, "exec", 2, (uint32_t)index);
    rg_coordinator_config_t co_cfg = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co;
    rg_group_t *g;
    rg_error_t err;
    cfg.transport = e->cfg.transport;
    for (int fd = 0; fd < 1024; fd++) before[fd] = fcntl(fd, F_GETFD) >= 0;
    PROCS_REQUIRE(rg_coordinator_start(&co_cfg, &co, &err) == RG_OK, "%s", err.text);
    PROCS_REQUIRE(rg_group_join(&cfg, &g, &err) == RG_OK, "%s", err.text);
    for (int i = 0; i < 3; i++)
        PROCS_REQUIRE(rg_all_reduce(g, x, x, 200000, RG_F32, RG_SUM, NULL, NULL) == RG_OK, "operation");
    PROCS_REQUIRE(!left_open(before), "%d descriptors would stay open in an executed program", left_open(before));
    int fd = dup(0);
    PROCS_REQUIRE(left_open(before) == 1, "planted: a descriptor that stays open is not seen");
    close(fd);
    rg_status_t st = rg_group_leave(g);
    rg_group_destroy(g);
    rg_coordinator_stop(co);
    return st != RG_OK;
}

static int executed(const char *transport) {
    struct job j;
    int ok = job_open(&j, 2, 1, 2000, transport);
    for (int i = 0; ok && i < 2; i++) j.pids[i] = procs_fork(exec_body, i, j.e);
    for (int i = 0; ok && i < 2; i++) ok = procs_end(j.pids[i], 20) == 0;
    ok = procs_coordinator_stop(&j.co) == 0 && ok;
    env_free(j.e);
    return ok;
}

struct parent {
    struct env *e;
    int executes;
    volatile pid_t child;
};

/* A member that has a child, which outlives it. */
static int parent_body(int index, void *arg) {
    struct parent *p = arg;
    if (index == 2) {
        static char *argv[] = { "sleep", "15", NULL };
        pid_t pid = -1;
        rg_group_t *g;
        rg_error_t err;
        rg_config_t cfg = p->e->cfg;
        float *x = calloc(p->e->count, sizeof *x);
        cfg.coordinator = p->e->address;
        cfg.group = p->e->group;
        cfg.order = 2;
        cfg.min_size = 3;
        PROCS_REQUIRE(x && rg_group_join(&cfg, &g, &err) == RG_OK, "%s", err.text);
        for (int i = 0; i < 100; i++) {
            for (uint32_t k = 0; k < p->e->count; k++) x[k] = 1;
            PROCS_REQUIRE(rg_all_reduce(g, x, x, p->e->count, RG_F32, RG_SUM, NULL, NULL) == RG_OK, "operation");
            PROCS_REQUIRE(rg_group_boundary(g, NULL) == RG_OK, "boundary");
            if (i != 50) continue;
            if (p->executes) PROCS_REQUIRE(!posix_spawnp(&pid, "sleep", NULL, NULL, argv, environ), "spawn");
            else if ((pid = fork()) == 0) {
                poll(NULL, 0, 15000);
                _exit(0);
            }
            p->child = pid;
        }
        kill(getpid(), SIGKILL);
    }
    return env_member(index, p->e);
}

/* Killed while a child of it lives. With exec the connections close with the member, and the others know at once; a
 * child by fork alone holds them open, so that silence tells. */
static int outlived(int executes, uint32_t heartbeat_ms, double bound_ms) {
    struct job j;
    struct parent *p = procs_shared(sizeof *p);
    if (!job_open(&j, 3, 5000, heartbeat_ms, "tcp")) return 0;
    p->e = j.e;
    p->executes = executes;
    for (int i = 0; i < 3; i++) j.pids[i] = procs_fork(parent_body, i, p);
    int status, ok = ENV_SEEN(PROCS_WAIT(has_ended(j.pids[2]), 20) && p->child > 0, "it does not get there");
    uint64_t t = procs_now();
    ok = ok && ENV_SEEN(PROCS_WAIT(j.e->m[0].contributors == 2 && j.e->m[1].contributors == 2, 10), "not missed");
    double ms = (double)(procs_now() - t) / 1e6;
    ok = ok && ENV_SEEN(ms < bound_ms + procs_late_ms(t), "missed after %.0f ms", ms);
    printf("       a member killed while %s lives: missed after %.0f ms, heartbeat %u ms\n",
           executes ? "an executed child" : "a forked child", ms, heartbeat_ms);
    if (p->child > 0) kill(p->child, SIGKILL);
    waitpid(j.pids[2], &status, 0);
    if (ok) {
        ok = env_running(j.e, 0, 1);
        j.e->end = 1;
        for (int i = 0; i < 2; i++) ok = procs_end(j.pids[i], 20) == 0 && ok;
    } else env_kill(j.pids, 2);
    ok = procs_coordinator_stop(&j.co) == 0 && ok;
    env_free(j.e);
    return ok;
}

/* A child that runs the ordinary end of a program, with the parent's handle still open; and one that joins anew. */
static int child_ends(rg_group_t *g, int rank, int n, void *arg) {
    struct env *e = arg;
    static float x[100000];
    for (int round = 0; round < 6; round++) {
        pid_t pid = rank == 1 ? fork() : -1;
        if (pid == 0) {
            rg_config_t cfg = procs_config(e->address, "children", 1, 0);
            rg_group_t *own = NULL;
            float y = 7;
            alarm(20);
            if (round % 3 == 1) rg_group_destroy(g);
            if (round % 3 == 2 && (rg_group_join(&cfg, &own, NULL) ||
                                   rg_all_reduce(own, &y, &y, 1, RG_F32, RG_SUM, NULL, NULL) || rg_group_leave(own)))
                _exit(5);
            rg_group_destroy(own);
            fflush(NULL);
            if (round % 2) _exit(0);
            exit(0);
        }
        for (int i = 0; i < 20; i++) {
            for (int k = 0; k < 100000; k++) x[k] = 1;
            rg_status_t st = rg_all_reduce(g, x, x, 100000, RG_F32, RG_SUM, NULL, NULL);
            PROCS_REQUIRE(st == RG_OK && x[0] == (float)n && x[99999] == (float)n, "round %d: %s, %g", round,
                          rg_status_name(st), (double)x[0]);
        }
        if (pid > 0) {
            int rc = procs_end(pid, 20);
            PROCS_REQUIRE(rc == 0, "child %d ended with %d", round, rc);
        }
    }
    return rg_group_leave(g) != RG_OK;
}

static int children(void) {
    struct procs_coordinator co;
    struct env *e = env_new("children", 2, 1);
    if (env_coordinator(&co, 0, "127.0.0.1:0", 2000)) return 0;
    snprintf(e->address, sizeof e->address, "%s", co.address);
    int ok = procs_cluster(3, child_ends, e, 60) == 0;
    ok = procs_coordinator_stop(&co) == 0 && ok;
    env_free(e);
    return ok;
}

/* Forked at any moment of what other threads do in the library. */
static int lanes_over; /* atomic */

static void *use_memory(void *arg) {
    static char kept[64][4096];
    char *mine = kept[(size_t)(uintptr_t)arg];
    while (!__atomic_load_n(&lanes_over, __ATOMIC_SEQ_CST)) {
        void *p; /* some do nothing but wait for each other's lock */
        if ((uintptr_t)arg == 0 && rg_alloc(4096, &p, NULL) == RG_OK) rg_free_memory(p);
        if (rg_register(mine, 4096, NULL) == RG_OK) rg_unregister(mine);
    }
    return NULL;
}

/* Exit code 0 when nothing hangs that a child may do: memory of its own, a group of its own. */
static int busy_child(const char *address, rg_coordinator_t *parents) {
    static char own[4096];
    rg_config_t cfg = procs_config(address, "", 1, 0);
    rg_group_t *g = NULL;
    char name[32];
    void *p;
    alarm(20);
    if (rg_alloc(10000, &p, NULL) || rg_register(own, sizeof own, NULL) || rg_unregister(own)) return 2;
    rg_free_memory(p);
    snprintf(name, sizeof name, "busy%d", (int)getpid());
    cfg.group = name;
    if (rg_group_join(&cfg, &g, NULL) || rg_barrier(g, NULL, NULL) || rg_group_leave(g)) return 3;
    rg_group_destroy(g);
    rg_coordinator_stop(parents); /* nothing happens */
    return 0;
}

static int forks_when_busy(int index, void *arg) {
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co;
    pthread_t thread[4];
    char *json;
    (void)index;
    (void)arg;
    PROCS_REQUIRE(rg_coordinator_start(&cfg, &co, NULL) == RG_OK, "coordinator");
    for (int i = 0; i < 4; i++)
        PROCS_REQUIRE(!pthread_create(&thread[i], NULL, use_memory, (void *)(uintptr_t)i), "thread");
    for (int k = 0; k < 40; k++) {
        pid_t pid = fork();
        if (pid == 0) _exit(busy_child(rg_coordinator_address(co), co));
        int rc = procs_end(pid, 25);
        PROCS_REQUIRE(rc == 0, "child %d ended with %d", k, rc);
    }
    __atomic_store_n(&lanes_over, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    PROCS_REQUIRE(rg_coordinator_status(rg_coordinator_address(co), 2000, &json, NULL) == RG_OK,
                  "the parent's coordinator does not answer any more");
    rg_free(json);
    rg_coordinator_stop(co);
    return 0;
}

/* ---- Clocks ----------------------------------------------------------------------------------------------------- */

/* The wall clock of every process goes back and forth by hours while they work and wait. */
static int wall_clock(void) {
    struct job j;
    if (!cases_clock_init()) return 0;
    int ok = job_open(&j, 3, 20000, 2000, "auto");
    if (ok) env_start(j.e, j.pids);
    ok = ok && env_running(j.e, 20, 20);
    for (int i = 0; ok && i < 40; i++) {
        cases_clock_jump((i % 2 ? -1 : 1) * (int64_t)(1 + i % 7) * 3600);
        wait_ms(30);
        ok = env_running(j.e, 1, 20);
    }
    cases_clock_jump(0);
    ok = ok && nobody_lost(j.e);
    return job_close(&j, ok, 0);
}

/* A deadline of half a second takes that long whichever way the wall clock goes meanwhile. */
static int deadline_body(rg_group_t *g, int rank, int n, void *arg) {
    volatile int *done = arg;
    float x = 1;
    rg_opts_t opts = RG_OPTS_INIT;
    rg_result_t res = RG_RESULT_INIT;
    (void)n;
    opts.timeout_ms = 500;
    opts.result = &res;
    if (rank == 0) {
        for (int way = -1; way <= 1; way += 2) {
            rg_request_t *req;
            uint64_t t = procs_now();
            PROCS_REQUIRE(rg_all_reduce(g, &x, &x, 1, RG_F32, RG_SUM, &opts, &req) == RG_OK, "issue");
            cases_clock_jump(way * 86400);
            rg_status_t st = rg_wait(req, &res);
            double ms = (double)(procs_now() - t) / 1e6;
            double most = 1200 + procs_late_ms(t);
            PROCS_REQUIRE(st == RG_ERR_TIMEOUT && ms > 450 && ms < most, "%s after %.0f ms", rg_status_name(st), ms);
            PROCS_REQUIRE((double)(res.end_ns - res.start_ns) / 1e6 < most, "it says that it took %llu ns",
                          (unsigned long long)(res.end_ns - res.start_ns));
            cases_clock_jump(0);
        }
        *done = 1;
    } else {
        PROCS_REQUIRE(PROCS_WAIT(*done, 10), "member 0");
        for (int i = 0; i < 2; i++) (void)rg_all_reduce(g, &x, &x, 1, RG_F32, RG_SUM, NULL, NULL);
    }
    PROCS_REQUIRE(rg_barrier(g, NULL, NULL) == RG_OK, "barrier");
    return rg_group_leave(g) != RG_OK;
}

/* Members whose monotonic clocks are days apart, as those of two hosts are. */
static int in_other_time(int index, void *arg) {
    struct env *e = arg;
    int status = 0;
    char text[64];
    if (index) {
        if (unshare(CLONE_NEWTIME)) return 77;
        int fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
        int len = snprintf(text, sizeof text, "monotonic %d 0\n", 864000 * index);
        if (fd < 0 || write(fd, text, (size_t)len) != len) return 77;
        close(fd);
    }
    pid_t pid = fork(); /* only children are in it */
    if (pid == 0) _exit(env_member(index, e));
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 9;
}

static void other_time(const char *name) {
    struct job j;
    int rc = 0, ok = job_open(&j, 3, 20000, 1500, "tcp");
    for (int i = 0; ok && i < 3; i++) j.pids[i] = procs_fork(in_other_time, i, j.e);
    PROCS_WAIT(j.e->m[0].ops > 10 || waitpid(j.pids[1], &rc, WNOHANG) == j.pids[1], 20);
    if (WIFEXITED(rc) && WEXITSTATUS(rc) == 77) {
        env_skip(name, "no time namespaces here");
        env_kill(j.pids, 3);
        procs_coordinator_stop(&j.co);
        return;
    }
    ok = ok && env_running(j.e, 50, 20);
    wait_ms(3200);
    ok = ok && env_running(j.e, 50, 20) && nobody_lost(j.e);
    j.e->end = 1;
    for (int i = 0; i < 3; i++) ok = procs_end(j.pids[i], 20) == 0 && ok;
    procs_case(name, procs_coordinator_stop(&j.co) == 0 && ok);
    env_free(j.e);
}

/* ---- Everybody stopped, everybody busy --------------------------------------------------------------------------- */

/* A laptop that was closed: all processes stop for several heartbeats and go on. Nobody can be blamed. */
static int all_stopped(int coordinator_last) {
    struct job j;
    int ok = job_open(&j, 3, 20000, 1000, "auto");
    if (ok) env_start(j.e, j.pids);
    ok = ok && env_running(j.e, 20, 20);
    for (int round = 0; ok && round < 2; round++) {
        for (int i = 0; i < 3; i++) kill(j.pids[i], SIGSTOP);
        kill(j.co.pid, SIGSTOP);
        wait_ms(2000);
        if (!coordinator_last) kill(j.co.pid, SIGCONT);
        for (int i = 0; i < 3; i++) kill(j.pids[(i + round) % 3], SIGCONT);
        if (coordinator_last) kill(j.co.pid, SIGCONT);
        ok = env_running(j.e, 50, 10);
        wait_ms(1200);
    }
    ok = ok && env_running(j.e, 50, 10) && nobody_lost(j.e);
    if (!ok) {
        kill(j.co.pid, SIGCONT);
        for (int i = 0; i < 3; i++) kill(j.pids[i], SIGCONT);
    }
    return job_close(&j, ok, 0);
}

static int spin(int index, void *arg) {
    volatile int *over = arg;
    (void)index;
    while (!*over) {}
    return 0;
}

#define SPINNERS_PER_CORE 12

/* Far more work than processors: slow, but nobody is taken for dead. */
static int starved(void) {
    volatile int *over = procs_shared(sizeof *over);
    pid_t pids[SPINNERS_PER_CORE * 4];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n = SPINNERS_PER_CORE * (int)(cores > 4 ? 4 : cores);
    struct job j;
    int ok = job_open(&j, 4, 20000, 2000, "auto");
    for (int i = 0; i < n; i++) pids[i] = procs_fork(spin, i, (void *)over);
    if (ok) env_start(j.e, j.pids);
    ok = ok && env_running(j.e, 5, 60);
    uint64_t ops = j.e->m[0].ops, until = procs_now() + 2000000000u;
    PROCS_WAIT(procs_now() > until, 8);
    ok = ok && env_running(j.e, 2, 60) && nobody_lost(j.e);
    printf("       %d spinning processes on %ld processors: %llu operations in 2 s, the longest took %.0f ms\n", n,
           cores, (unsigned long long)(j.e->m[0].ops - ops), (double)j.e->m[0].worst_ns / 1e6);
    *over = 1;
    for (int i = 0; i < n; i++) ok = procs_end(pids[i], 20) == 0 && ok;
    return job_close(&j, ok, 0);
}

/* ---- Standard error that nobody reads ---------------------------------------------------------------------------- */

static int logs_into_nothing(int index, void *arg) {
    struct env *e = arg;
    int p[2];
    setenv("RG_LOG", "debug", 1);
    if (pipe(p) || dup2(p[1], STDERR_FILENO) < 0) return 9;
    close(p[0]);
    close(p[1]);
    signal(SIGPIPE, SIG_DFL);
    return env_member(index, e);
}

/* The library writes its log, its sockets break, and no signal comes of it: the default of SIGPIPE is death. */
static int no_sigpipe(void) {
    struct job j;
    int ok = job_open(&j, 3, 20000, 3000, "tcp");
    for (int i = 0; ok && i < 3; i++) j.pids[i] = procs_fork(logs_into_nothing, i, j.e);
    ok = ok && env_running(j.e, 20, 20);
    kill(j.pids[2], SIGKILL);
    ok = ok && ENV_SEEN(PROCS_WAIT(j.e->m[0].contributors == 2 && j.e->m[1].contributors == 2, 10), "status %d %s",
                        j.e->m[0].status, j.e->m[0].text);
    return job_close(&j, ok, 1u << 2);
}

void cases_env(void) {
    static const char *const transports[] = { "tcp", "shm" };
    char name[128];
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "env__signals_in_every_thread_%s__every_call_works", transports[i]);
        if (procs_wanted(name)) procs_case(name, signals(transports[i]));
        snprintf(name, sizeof name, "env__executed_program_%s__inherits_no_descriptor", transports[i]);
        if (procs_wanted(name)) procs_case(name, executed(transports[i]));
    }
    CASE("env__killed_while_an_executed_child_lives__missed_at_once", outlived(1, 4000, 1500)); /* not by silence */
    CASE("env__killed_while_a_forked_child_lives__missed_by_silence", outlived(0, 800, 1800));
    if (CASES_NO_THREADS_IN_CHILDREN)
        env_skip("env__forked_...", "ThreadSanitizer allows a child of threads no thread");
    else {
        CASE("env__forked_children_end_or_join_anew__parent_unharmed", children());
        /* Seen: a child waits for AddressSanitizer's own allocator, whose lock another thread of the parent had. */
        const char *busy = "env__forked_while_threads_use_memory__children_do_not_hang";
        if (CASES_SANITIZED) env_skip(busy, "AddressSanitizer's allocator may be locked for ever in such a child");
        else CASE(busy, procs_end(procs_fork(forks_when_busy, 0, NULL), 60) == 0);
    }
    CASE("env__wall_clock_jumps__nobody_is_lost", wall_clock());
    CASE("env__wall_clock_jumps__deadlines_hold",
         cases_clock_init() && procs_cluster(2, deadline_body, procs_shared(64), 30) == 0);
    if (procs_wanted("env__monotonic_clocks_days_apart__works")) other_time("env__monotonic_clocks_days_apart__works");
    CASE("env__all_stopped_coordinator_first_to_go_on__nobody_is_lost", all_stopped(0));
    CASE("env__all_stopped_coordinator_last_to_go_on__nobody_is_lost", all_stopped(1));
    CASE("env__many_spinning_processes__nobody_is_lost", starved());
    CASE("env__log_and_sockets_without_a_reader__no_sigpipe", no_sigpipe());
}
