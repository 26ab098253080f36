/* test_shm.c: members that share memory, in hostile places: killed and stopped peers, /dev/shm that is tiny, read-only
 * or not there, members in namespaces of their own. Results must be right, nothing may be left behind, and a peer that
 * cannot be reached by shared memory costs one line of log. Relies on the members of env.h; what needs root is skipped
 * without it. It must not touch the host's own /dev/shm. */
#include "env.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

static int *lines; /* shared: why shared memory was not used, of all members */

static void heard(void *user, rg_log_level_t level, const char *line) {
    (void)user;
    if (level <= RG_LOG_WARN && strstr(line, "cannot be used with it")) __atomic_fetch_add(lines, 1, __ATOMIC_RELAXED);
}

static int entries(const char *path) {
    int n = 0;
    DIR *d = opendir(path);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static struct env *members(struct procs_coordinator *co, const char *transport, uint32_t n, uint32_t count) {
    if (env_coordinator(co, 0, "127.0.0.1:0", 2000)) return NULL;
    struct env *e = env_new("shm", n, count);
    snprintf(e->address, sizeof e->address, "%s", co->address);
    e->cfg.transport = transport;
    e->cfg.log_fn = heard;
    e->cfg.log_level = RG_LOG_WARN;
    return e;
}

/* The last of three is hit; the others go on without it, with no more descriptors than before. */
static int goes_on_without(int sig, uint32_t count) {
    struct procs_coordinator co;
    pid_t pids[ENV_MEMBERS];
    int left = entries("/dev/shm");
    struct env *e = members(&co, "shm", 3, count);
    if (!e) return 0;
    env_start(e, pids);
    int ok = ENV_SEEN(env_running(e, 20, 20), "the members do not work: %s", e->m[0].text);
    int before = procs_count_fds(pids[0]);
    kill(pids[2], sig);
    ok = ok && ENV_SEEN(PROCS_WAIT(e->m[0].contributors == 2 && e->m[1].contributors == 2, 10), "nobody goes on");
    uint64_t ops = e->m[0].ops;
    ok = ok && ENV_SEEN(PROCS_WAIT(e->m[0].ops > ops + 20, 10), "it does not go on for long");
    ok = ok && ENV_SEEN(PROCS_WAIT(procs_count_fds(pids[0]) < before, 5), "%d descriptors, %d before",
                        procs_count_fds(pids[0]), before);
    if (sig == SIGSTOP) kill(pids[2], SIGKILL);
    if (ok) ok = env_end(e, pids, 1u << 2);
    else env_kill(pids, 3);
    ok = procs_coordinator_stop(&co) == 0 && ok;
    env_free(e);
    return ok && ENV_SEEN(entries("/dev/shm") == left, "%d files, %d before", entries("/dev/shm"), left);
}

/* ---- /dev/shm ---- */

static int sums(rg_group_t *g, int rank, int n, void *arg) {
    enum { COUNT = 300000 };
    void *v;
    (void)arg;
    PROCS_REQUIRE(rg_alloc(COUNT * sizeof(float), &v, NULL) == RG_OK, "rg_alloc");
    float *x = v;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < COUNT; i++) x[i] = (float)(rank + 1 + i % 5);
        PROCS_REQUIRE(rg_all_reduce(g, x, x, COUNT, RG_F32, RG_SUM, NULL, NULL) == RG_OK, "all-reduce");
        for (int i = 0; i < COUNT; i++)
            PROCS_REQUIRE(x[i] == (float)(n * (n + 1) / 2 + n * (i % 5)), "element %d is %g", i, (double)x[i]);
    }
    rg_status_t st = rg_group_leave(g);
    rg_free_memory(x);
    return st != RG_OK;
}

enum place { TINY, READ_ONLY, GONE };

static int in_place(int what, void *arg) {
    (void)arg;
    rg_config_t cfg = procs_config(NULL, NULL, 0, 0);
    cfg.transport = "shm";
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return 77;
    int rc = what == TINY        ? mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=4k")
             : what == READ_ONLY ? mount("tmpfs", "/dev/shm", "tmpfs", MS_RDONLY, NULL)
                                 : umount2("/dev/shm", MNT_DETACH);
    if (rc) return 77;
    return procs_cluster_with(&cfg, 2, sums, NULL, 20);
}

static void place_case(const char *name, enum place what) {
    int rc = procs_end(procs_fork(in_place, what, NULL), 40);
    if (rc == 77) env_skip(name, "no mount namespace here");
    else procs_case(name, rc == 0);
}

/* ---- Namespaces ---- */

static int two_networks(void) {
    struct procs_coordinator co;
    struct net t;
    pid_t pids[ENV_MEMBERS];
    char v4[64];
    if (net_open(&t, 2, NET_V4, 1)) return 0;
    if (env_coordinator(&co, t.node[0], "0.0.0.0:0", 2000)) {
        net_close(&t);
        return 0;
    }
    struct env *e = env_new("shm", 2, 20000);
    snprintf(e->address, sizeof e->address, "%s%s", net_v4(&t, 0, v4), strrchr(co.address, ':'));
    for (int i = 0; i < 2; i++) e->ns[i] = t.node[i];
    e->cfg.transport = "auto";
    e->cfg.log_fn = heard;
    e->cfg.log_level = RG_LOG_WARN;
    *lines = 0;
    env_start(e, pids);
    int ok = ENV_SEEN(env_running(e, 20, 20), "%s %s", e->m[0].text, e->m[1].text);
    ok = ok && ENV_SEEN(*lines == 1, "%d lines", *lines);
    if (ok) ok = env_end(e, pids, 0);
    else env_kill(pids, 2);
    ok = procs_coordinator_stop(&co) == 0 && ok;
    net_close(&t);
    env_free(e);
    return ok;
}

static int in_own_pids(int index, void *arg) {
    int status = 0;
    if (unshare(CLONE_NEWPID)) return 77;
    pid_t pid = fork();
    if (pid == 0) _exit(env_member(index, arg));
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 9;
}

#if defined(__SANITIZE_ADDRESS__)
#define LEAKS_ARE_LOOKED_FOR 1
#else
#define LEAKS_ARE_LOOKED_FOR 0
#endif

static int two_pid_namespaces(void) {
    struct procs_coordinator co;
    pid_t pids[ENV_MEMBERS];
    struct env *e = members(&co, "auto", 2, 200000);
    if (!e) return 0;
    *lines = 0;
    for (int i = 0; i < 2; i++) pids[i] = procs_fork(in_own_pids, i, e);
    int ok = ENV_SEEN(env_running(e, 20, 20), "%s %s", e->m[0].text, e->m[1].text);
    ok = ok && ENV_SEEN(*lines <= 1, "%d lines", *lines);
    e->end = 1;
    for (int i = 0; i < 2; i++) {
        int rc = procs_end(pids[i], 20);
        ok = ENV_SEEN(rc == 0 && !e->m[i].wrong, "member %d ended with %d, %d wrong", i, rc, e->m[i].wrong) && ok;
    }
    ok = procs_coordinator_stop(&co) == 0 && ok;
    env_free(e);
    return ok;
}

/* ---- The first thread ends ------------------------------------------------------------------------------------- */

/* A second thread of the program, when the kernel has nothing of the first one any more but its number, through which
 * it looks at the memory of a process. */
static void *alone_main(void *group) {
    enum { COUNT = 1 << 18 };
    static float in[COUNT], out[COUNT];
    char path[64], line[512], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
    for (uint64_t end = procs_now() + 10000000000ull; state != 'Z' && procs_now() < end;) {
        FILE *f = fopen(path, "r");
        const char *name_ends = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
        if (name_ends && name_ends[1]) state = name_ends[2];
        if (f) fclose(f);
    }
    int wrong = pthread_detach(pthread_self()) != 0 || state != 'Z'; /* nobody is left who could wait for it */
    rg_opts_t opts = RG_OPTS_INIT;
    opts.timeout_ms = 5000;
    for (int i = 0; i < COUNT; i++) in[i] = 1;
    for (int round = 0; round < 4 && !wrong; round++) {
        wrong = rg_all_reduce(group, in, out, COUNT, RG_F32, RG_SUM, &opts, NULL) != RG_OK || out[COUNT - 1] != 2;
        wrong |= rg_broadcast(group, out, COUNT, RG_F32, 1, &opts, NULL) != RG_OK;
    }
    wrong |= rg_group_leave(group) != RG_OK;
    rg_group_destroy(group);
    _exit(wrong);
}

static int first_thread_ends(rg_group_t *g, int rank, int n, void *arg) {
    pthread_t t;
    (void)rank;
    (void)n;
    (void)arg;
    PROCS_REQUIRE(!pthread_create(&t, NULL, alone_main, g), "thread");
    pthread_exit(NULL);
}

static int without_first_threads(void) {
    rg_config_t cfg = procs_config(NULL, NULL, 0, 0);
    cfg.transport = "shm";
    return procs_cluster_with(&cfg, 2, first_thread_ends, NULL, 60) == 0;
}

void test_shm(void) {
    const char *why = net_unavailable();
    lines = procs_shared(sizeof *lines);
    procs_case("shm__member_killed_large_operations__others_go_on_and_nothing_is_left",
               goes_on_without(SIGKILL, 500000));
    procs_case("shm__member_killed_small_operations__others_go_on_and_nothing_is_left", goes_on_without(SIGKILL, 100));
    procs_case("shm__member_stopped__others_go_on", goes_on_without(SIGSTOP, 500000));
    PROCS_RUN("shm__first_threads_end__others_of_their_processes_go_on", without_first_threads());
    place_case("shm__dev_shm_tiny__works", TINY);
    place_case("shm__dev_shm_read_only__works", READ_ONLY);
    place_case("shm__dev_shm_gone__works", GONE);
    if (why) {
        env_skip("shm__two_network_namespaces__tcp_and_one_line", why);
        env_skip("shm__two_pid_namespaces__right", why);
        return;
    }
    procs_case("shm__two_network_namespaces__tcp_and_one_line", two_networks());
    if (LEAKS_ARE_LOOKED_FOR)
        env_skip("shm__two_pid_namespaces__right", "LeakSanitizer cannot work in a pid namespace of its own");
    else procs_case("shm__two_pid_namespaces__right", two_pid_namespaces());
}
