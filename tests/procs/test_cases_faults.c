/* test_cases_faults.c: the numbered cases about members that go and come: kills without end, everybody killed, jobs
 * on the ports of the job before, groups that shrink and grow, deadlines of sub-groups, and the loops that must not
 * leak. Each has a short form and, in `procs cases-long`, the full one. It relies on the members of env.h. */
#include "cases.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t dice = 88172645463325252ull;

static uint32_t random_below(uint32_t n) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (uint32_t)(dice >> 20) % n;
}

static void wait_us(uint32_t us) {
    uint64_t until = procs_now() + (uint64_t)us * 1000;
    while (procs_now() < until) {}
}

static void forget(struct env_member *m) { memset((void *)m, 0, sizeof *m); }

/* ---- 14: killed at any moment -------------------------------------------------------------------------------------
 */

/* A third member is killed at a random moment of an operation and replaced, again and again. The two that stay know it
 * in time, every result is that of those who are named, and they keep nothing of the dead. */
static int killed_again_and_again(int kills, uint32_t count, const char *transport) {
    struct procs_coordinator co;
    pid_t pids[ENV_MEMBERS];
    struct procs_usage was[2] = { { 0 }, { 0 } };
    double worst = 0, sum = 0;
    if (env_coordinator(&co, 0, "127.0.0.1:0", 2000)) return 0;
    struct env *e = env_new("killed", 3, count);
    snprintf(e->address, sizeof e->address, "%s", co.address);
    e->cfg.transport = transport;
    e->cfg.op_timeout_ms = 60000;
    env_start(e, pids);
    int ok = env_running(e, 2, 60);
    for (int k = 0; ok && k < kills; k++) {
        uint64_t ops = e->m[0].ops;
        ok = ENV_SEEN(PROCS_WAIT(e->m[0].contributors == 3 && e->m[1].contributors == 3 && e->m[0].ops > ops, 30),
                      "round %d: the third one does not contribute", k);
        wait_us(random_below(count > 1000000 ? 200000 : 20000));
        uint64_t t = procs_now();
        kill(pids[2], SIGKILL);
        ok = ok && ENV_SEEN(PROCS_WAIT(e->m[0].contributors == 2 && e->m[1].contributors == 2, 20),
                            "round %d: %u and %u contribute, status %d %d", k, e->m[0].contributors,
                            e->m[1].contributors, e->m[0].status, e->m[1].status);
        double ms = (double)(procs_now() - t) / 1e6;
        sum += ms;
        if (ms - procs_late_ms(t) > worst) worst = ms - procs_late_ms(t);
        waitpid(pids[2], NULL, 0);
        forget(&e->m[2]);
        pids[2] = procs_fork(env_member, 2, e);
        ok = ok && env_running(e, 3, 60);
        if (k == kills / 4)
            for (int i = 0; i < 2; i++) was[i] = procs_usage_of(pids[i]);
    }
    for (int i = 0; ok && i < 2; i++) {
        struct procs_usage is;
        ok = ENV_SEEN(!procs_keeps(pids[i], was[i], &is, 4096 + (long)count / 256),
                      "member %d: %d, then %d descriptors; %d, then %d threads; %ld, then %ld KiB", i, was[i].fds,
                      is.fds, was[i].threads, is.threads, was[i].rss_kb, is.rss_kb);
    }
    printf("       %d kills in operations of %u MiB (%s): first result without the dead after %.1f ms, at most %.1f "
           "beyond what the host was "
           "late\n",
           kills, count >> 18, transport, sum / kills, worst);
    /* The heartbeat and a second, and what the operation itself takes anew on a host that is busy. */
    ok = ok && ENV_SEEN(worst < 3000 + 30.0 * (count >> 18), "it took %.0f ms", worst);
    if (ok) ok = env_end(e, pids, 0);
    else env_kill(pids, 3);
    ok = procs_coordinator_stop(&co) == 0 && ok;
    env_free(e);
    return ok;
}

/* ---- 30: everybody killed -----------------------------------------------------------------------------------------
 */

static int entries(const char *path) {
    int n = 0;
    DIR *d = opendir(path);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

/* All members are killed and start anew under the same name, with the same coordinator: nothing of them is left. */
static int all_killed(int rounds) {
    struct procs_coordinator co;
    pid_t pids[ENV_MEMBERS];
    int ok = 1, left = entries("/dev/shm");
    struct procs_usage was = { 0 };
    if (env_coordinator(&co, 0, "127.0.0.1:0", 1500)) return 0;
    struct env *e = env_new("again", 3, 100000);
    snprintf(e->address, sizeof e->address, "%s", co.address);
    e->cfg.transport = "shm";
    for (int k = 0; ok && k < rounds; k++) {
        for (int i = 0; i < 3; i++) forget(&e->m[i]);
        env_start(e, pids);
        ok = env_running(e, 5, 10);
        wait_us(random_below(5000));
        env_kill(pids, 3);
        if (k == 1) was = procs_usage_of(co.pid);
    }
    ok = ok && ENV_SEEN(entries("/dev/shm") == left, "%d files in /dev/shm, %d before", entries("/dev/shm"), left);
    ok = ok &&
         ENV_SEEN(PROCS_WAIT(!procs_grown(was, procs_usage_of(co.pid), 4096), 5), "the coordinator keeps something");
    ok = procs_coordinator_stop(&co) == 0 && ok;
    env_free(e);
    return ok;
}

/* ---- 22: the ports of the job before ------------------------------------------------------------------------------
 */

/* Job after job with the same name and ports. Some of each linger, with their connections and their coordinator gone.
 */
static int same_ports(int rounds) {
    uint32_t port[2] = { (uint32_t)procs_free_port(), (uint32_t)procs_free_port() };
    char listen_at[64];
    pid_t lingering = 0;
    int ok = 1;
    snprintf(listen_at, sizeof listen_at, "127.0.0.1:%d", procs_free_port());
    for (int k = 0; ok && k < rounds; k++) {
        struct procs_coordinator co;
        pid_t pids[ENV_MEMBERS];
        struct env *e = env_new("ports", 3, 5000);
        ok = ENV_SEEN(!env_coordinator(&co, 0, listen_at, 2000), "round %d: no coordinator", k);
        if (!ok) break;
        snprintf(e->address, sizeof e->address, "%s", co.address);
        for (int i = 0; i < 2; i++) e->port[i] = port[i];
        env_start(e, pids);
        ok = env_running(e, 10, 10);
        for (int i = 0; ok && i < 3; i++)
            ok = ENV_SEEN(e->m[i].contributors == 3 && !e->m[i].wrong, "round %d: %u contribute", k,
                          e->m[i].contributors);
        if (lingering) kill(lingering, SIGKILL), waitpid(lingering, NULL, 0);
        env_coordinator_kill(&co);
        env_kill(pids, 2);
        lingering = pids[2];
        env_free(e);
    }
    if (lingering) kill(lingering, SIGKILL), waitpid(lingering, NULL, 0);
    return ok;
}

/* ---- 38: deadlines of a sub-group ----------------------------------------------------------------------------------
 */

static int took(double ms, double asked, double late) { return ms > 0.8 * asked && ms < 1.2 * asked + 300 + late; }

/* A child has the parent's deadline, unless the call has another one. The other member calls when it is over. */
static int child_deadlines(rg_group_t *g, int rank, int n, void *arg) {
    volatile int *over = arg;
    rg_group_t *child;
    rg_opts_t opts = RG_OPTS_INIT;
    (void)n;
    PROCS_REQUIRE(took(100, 100, 0) && !took(700, 300, 30) && !took(70, 100, 0) && took(700, 300, 50),
                  "planted: the measure sees nothing");
    PROCS_REQUIRE(rg_group_split(g, 0, (uint32_t)rank, NULL, &child) == RG_OK, "split");
    for (int own = 0; own < 2; own++) {
        double asked = own ? 150 : 400;
        opts.timeout_ms = own ? 150 : 0;
        if (rank) PROCS_REQUIRE(PROCS_WAIT(*over > own, 10), "member 0");
        uint64_t t = procs_now();
        rg_status_t st = rg_barrier(child, &opts, NULL);
        double ms = (double)(procs_now() - t) / 1e6;
        PROCS_REQUIRE(st == RG_ERR_TIMEOUT && (rank || took(ms, asked, procs_late_ms(t))), "%s after %.0f ms of %.0f",
                      rg_status_name(st), ms, asked);
        if (!rank) *over = own + 1;
    }
    opts.timeout_ms = 30000; /* on a busy host the other one may be late */
    PROCS_REQUIRE(rg_barrier(child, &opts, NULL) == RG_OK, "afterwards");
    rg_group_destroy(child);
    return rg_group_leave(g) != RG_OK;
}

static int sub_group_deadlines(void) {
    rg_config_t cfg = procs_config(NULL, NULL, 0, 0);
    cfg.op_timeout_ms = 400;
    return procs_cluster_with(&cfg, 2, child_deadlines, procs_shared(64), 20) == 0;
}

/* ---- 39: loops ------------------------------------------------------------------------------------------------------
 */

struct loop {
    char address[128];
    int groups, operations;
};

static int loop_body(int index, void *arg) {
    struct loop *l = arg;
    struct procs_usage was = { 0 }, before = { 0 }, is;
    int steps = 0; /* quarters of the groups after the first in which memory grew */
    static float x[20000];
    for (int k = 0; k < l->groups; k++) {
        char name[32];
        rg_group_t *g = NULL;
        rg_error_t err;
        snprintf(name, sizeof name, "loop%d", k);
        rg_config_t cfg = procs_config(l->address, name, 2, (uint32_t)index);
        PROCS_REQUIRE(rg_group_join(&cfg, &g, &err) == RG_OK, "group %d: %s", k, err.text);
        for (int i = 0; i < l->operations; i++) {
            rg_status_t st = rg_all_reduce(g, x, x, i % 1000 == 7 ? 20000 : 4, RG_F32, RG_SUM, NULL, NULL);
            PROCS_REQUIRE(st == RG_OK, "group %d, operation %d: %s", k, i, rg_status_name(st));
            if (i % 1000 == 999) PROCS_REQUIRE(rg_group_boundary(g, NULL) == RG_OK, "boundary");
            if (l->groups == 1 && i == l->operations / 4) was = procs_usage_of(getpid());
        }
        if (l->groups == 1) {
            PROCS_REQUIRE(!procs_keeps(getpid(), was, &is, 2048), "%d, then %d descriptors; %ld, then %ld KiB", was.fds,
                          is.fds, was.rss_kb, is.rss_kb);
        }
        PROCS_REQUIRE(rg_group_leave(g) == RG_OK, "leave");
        rg_group_destroy(g);
        if (l->groups == 1 || (k + 1) % (l->groups / 4)) continue;
        struct procs_usage here = procs_usage_of(getpid());
        if (k + 1 == l->groups / 4) was = before = here;
        steps += here.rss_kb > before.rss_kb + 1024;
        before = here;
    }
    /* The C library's heap takes a step of the size of one group's tables once, when it sees that such blocks come
     * again; what is left behind by each group is there in every quarter. */
    PROCS_REQUIRE(l->groups == 1 || (!procs_keeps(getpid(), was, &is, 32768) && steps < 2),
                  "%d, then %d descriptors; %d, then %d threads; %ld, then %ld KiB in %d steps", was.fds, is.fds,
                  was.threads, is.threads, was.rss_kb, is.rss_kb, steps);
    return 0;
}

static int loops(int groups, int operations) {
    struct loop *l = procs_shared(sizeof *l);
    struct procs_coordinator co;
    pid_t pids[2];
    int ok = !env_coordinator(&co, 0, "127.0.0.1:0", 2000);
    if (!ok) return 0;
    memcpy(l->address, co.address, sizeof l->address);
    l->groups = groups;
    l->operations = operations;
    for (int i = 0; i < 2; i++) pids[i] = procs_fork(loop_body, i, l);
    for (int i = 0; i < 2; i++) ok = procs_end(pids[i], 900) == 0 && ok;
    return procs_coordinator_stop(&co) == 0 && ok;
}

/* ---- 40: shrinking and growing --------------------------------------------------------------------------------------
 */

/* Whether the members named by the bits of `there` all contribute, with the ranks that they should have: those who stay
 * move up, those who come are the last. */
static int ranks_are(struct env *e, const int *order, uint32_t n) {
    for (uint32_t r = 0; r < n; r++) {
        struct env_member *m = &e->m[order[r]];
        if (!ENV_SEEN(PROCS_WAIT(m->contributors == n && m->rank == r, 20), "member %d: rank %u of %u, wanted %u of %u",
                      order[r], m->rank, m->contributors, r, n))
            return 0;
    }
    return 1;
}

static int shrink_and_grow(int rounds) {
    struct procs_coordinator co;
    pid_t pids[ENV_MEMBERS];
    int order[ENV_MEMBERS] = { 0, 1, 2, 3 };
    if (env_coordinator(&co, 0, "127.0.0.1:0", 3000)) return 0;
    struct env *e = env_new("shrink", 4, 20000);
    snprintf(e->address, sizeof e->address, "%s", co.address);
    env_start(e, pids);
    int ok = env_running(e, 10, 20) && ranks_are(e, order, 4);
    for (int k = 0; ok && k < rounds; k++) {
        int one = order[1], other = order[2];
        kill(pids[one], SIGKILL); /* one in the middle */
        waitpid(pids[one], NULL, 0);
        int three[3] = { order[0], order[2], order[3] };
        if (k % 2 == 0) ok = ranks_are(e, three, 3) && env_running(e, 0, 1);
        else { /* and another one while the group sorts itself out */ wait_us(random_below(4000));
            kill(pids[other], SIGKILL);
            waitpid(pids[other], NULL, 0);
            int two[2] = { order[0], order[3] };
            ok = ranks_are(e, two, 2);
            forget(&e->m[other]);
            pids[other] = procs_fork(env_member, other, e);
            int again[3] = { order[0], order[3], other };
            ok = ok && ranks_are(e, again, 3);
            memcpy(three, again, sizeof three);
        }
        forget(&e->m[one]);
        pids[one] = procs_fork(env_member, one, e);
        memcpy(order, three, sizeof three);
        order[3] = one;
        ok = ok && ranks_are(e, order, 4);
    }
    if (ok) ok = env_end(e, pids, 0);
    else env_kill(pids, 4);
    ok = procs_coordinator_stop(&co) == 0 && ok;
    env_free(e);
    return ok;
}

/* Two groups of one name at two coordinators, as after a split that nobody noticed: they never meet, and a member of
 * the one that asks the other coordinator is a newcomer there. */
static int two_of_one_name(void) {
    struct procs_coordinator co[2];
    struct env *e[2];
    pid_t pids[2][ENV_MEMBERS];
    int ok = 1;
    for (int i = 0; i < 2; i++) {
        if (env_coordinator(&co[i], 0, "127.0.0.1:0", 1500)) return 0;
        e[i] = env_new("twins", 2, 20000);
        snprintf(e[i]->address, sizeof e[i]->address, "%s", co[i].address);
        env_start(e[i], pids[i]);
    }
    for (int i = 0; i < 2; i++) ok = env_running(e[i], 50, 20) && ok;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            ok =
                ENV_SEEN(e[i]->m[k].contributors == 2 && !e[i]->m[k].wrong, "%u contribute", e[i]->m[k].contributors) &&
                ok;
    env_coordinator_kill(&co[0]);
    kill(pids[0][1], SIGKILL);
    waitpid(pids[0][1], NULL, 0);
    ok = ok && ENV_SEEN(PROCS_WAIT(e[0]->m[0].ended_ns, 15), "the one whose group is gone waits");
    snprintf(e[0]->address, sizeof e[0]->address, "%s", co[1].address);
    e[0]->rejoin = 1;
    ok = ok && ENV_SEEN(PROCS_WAIT(e[1]->m[0].contributors == 3 && e[0]->m[0].contributors == 3, 10),
                        "%u contribute, status %d %s", e[1]->m[0].contributors, e[0]->m[0].status, e[0]->m[0].text);
    env_kill(pids[0], 1);
    ok = ok &&
         ENV_SEEN(PROCS_WAIT(e[1]->m[0].contributors == 2 && e[1]->m[1].contributors == 2, 10), "it is not missed");
    if (ok) ok = env_end(e[1], pids[1], 0);
    else env_kill(pids[1], 2);
    ok = procs_coordinator_stop(&co[1]) == 0 && ok;
    for (int i = 0; i < 2; i++) env_free(e[i]);
    return ok;
}

/* ---- 50 and 51: reports from elsewhere -------------------------------------------------------------------------- */

#define COLUMNS 3

/* An all-reduce until only `want` members have a share in it. */
static int until_share(rg_group_t *g, uint32_t want, const char *what) {
    uint64_t until = procs_now() + 20000000000ull, late = procs_late_ns();
    uint32_t got = 0;
    while (got != want && procs_now() < until + procs_late_ns() - late) {
        float x = 1;
        rg_result_t res = RG_RESULT_INIT;
        rg_opts_t opts = RG_OPTS_INIT;
        opts.result = &res;
        rg_status_t st = rg_all_reduce(g, &x, &x, 1, RG_F32, RG_SUM, &opts, NULL);
        PROCS_REQUIRE(st == RG_OK && x == (float)res.contributors, "%s: %s %s", what, rg_status_name(st), res.text);
        got = res.contributors;
    }
    PROCS_REQUIRE(got == want, "%s: %u have a share, wanted %u", what, got, want);
    return 0;
}

/* Rows and columns overlap; one member of each row dies at the same moment. Whoever is left has a row and a column that
 * work, in whatever order they are used: members of one row do not wait for each other's columns. */
static int rows_and_columns(rg_group_t *g, int rank, int n, void *arg) {
    volatile int *ready = arg;
    static const int dies[] = { 1, 5 };
    int row = rank / COLUMNS, column = rank % COLUMNS;
    rg_group_t *mine[2];
    uint32_t left[2] = { COLUMNS, (uint32_t)(n / COLUMNS) };
    PROCS_REQUIRE(!rg_group_split(g, (uint32_t)row, (uint32_t)rank, NULL, &mine[0]), "rows");
    PROCS_REQUIRE(!rg_group_split(g, (uint32_t)column, (uint32_t)rank, NULL, &mine[1]), "columns");
    for (int i = 0; i < 2; i++)
        if (until_share(mine[i], left[i], "before")) return 1;
    __atomic_add_fetch(ready, 1, __ATOMIC_SEQ_CST);
    PROCS_REQUIRE(PROCS_WAIT(*ready == n, 20), "the others");
    for (int k = 0; k < 2; k++) {
        if (rank == dies[k]) kill(getpid(), SIGKILL);
        left[0] -= dies[k] / COLUMNS == row;
        left[1] -= dies[k] % COLUMNS == column;
    }
    for (int i = 0; i < 4; i++) { /* half of the members begin with their column */
        int which = (i + rank) % 2;
        if (until_share(mine[which], left[which], which ? "column" : "row")) return 1;
    }
    if (until_share(g, (uint32_t)n - 2, "all")) return 1;
    for (int i = 0; i < 2; i++) rg_group_destroy(mine[i]);
    return rg_group_leave(g) != RG_OK;
}

/* A process that ends right after its last message: what it was told has arrived is there for the other one. */
static int sent_and_gone(rg_group_t *g, int rank, int n, void *arg) {
    static const uint64_t counts[] = { 1, 1000, 50000, 1000000 };
    static float x[1000000];
    volatile int *gone = arg;
    (void)n;
    for (int k = 0; k < 4; k++) {
        for (uint64_t i = 0; i < counts[k]; i++) x[i] = rank ? 0 : (float)(i % 999 + 1);
        rg_status_t st =
            rank ? rg_recv(g, x, counts[k], RG_F32, 0, NULL, NULL) : rg_send(g, x, counts[k], RG_F32, 1, NULL, NULL);
        PROCS_REQUIRE(st == RG_OK, "message %d: %s", k, rg_status_name(st));
        for (uint64_t i = 0; i < counts[k]; i++) PROCS_REQUIRE(x[i] == (float)(i % 999 + 1), "message %d", k);
    }
    rg_request_t *req = NULL;
    if (rank) {
        PROCS_REQUIRE(rg_recv(g, x, 1000, RG_F32, 0, NULL, &req) == RG_OK, "receive");
        PROCS_REQUIRE(PROCS_WAIT(*gone, 10), "the sender");
        PROCS_REQUIRE(rg_wait(req, NULL) == RG_OK, "a message that its sender knows to have arrived");
        return rg_group_leave(g) != RG_OK;
    }
    PROCS_REQUIRE(rg_send(g, x, 1000, RG_F32, 1, NULL, NULL) == RG_OK, "send");
    *gone = 1;
    _exit(0); /* without a word */
}

void cases_faults(void) {
    CASE("case_14__killed_in_operations_over_tcp__known_and_nothing_kept", killed_again_and_again(12, 1u << 18, "tcp"));
    CASE("case_14__killed_in_operations_through_shm__known_and_nothing_kept",
         killed_again_and_again(12, 1u << 18, "shm"));
    CASE("case_22__jobs_on_the_same_ports__never_meet", same_ports(4));
    CASE("case_30__all_killed_again_and_again__nothing_is_left", all_killed(4));
    CASE("case_38__deadlines_of_a_sub_group__kept", sub_group_deadlines());
    CASE("case_39__groups_one_after_the_other__nothing_grows", loops(40, 5));
    CASE("case_40__shrinks_and_grows__ranks_and_results_right", shrink_and_grow(4));
    CASE("case_40__two_groups_of_one_name__never_meet", two_of_one_name());
    CASE("case_50__two_die_in_overlapping_sub_groups__rows_and_columns_go_on",
         procs_cluster(2 * COLUMNS, rows_and_columns, procs_shared(64), 40) == 2);
    CASE("case_51__sender_ends_after_its_last_message__message_is_there",
         procs_cluster(2, sent_and_gone, procs_shared(64), 30) == 0);
}

/* KILL_BYTES in the environment: the size of the operations that are hit, 256 MiB unless it says otherwise. */
static uint32_t hit_count(void) {
    const char *text = getenv("KILL_BYTES");
    unsigned long bytes = text && *text ? strtoul(text, NULL, 0) : 256ul << 20;
    return (uint32_t)(bytes / sizeof(float) < 8 ? 8 : bytes / sizeof(float));
}

void cases_faults_long(void) {
    CASE("case_14__hundred_kills_over_tcp__known_and_nothing_kept", killed_again_and_again(100, hit_count(), "tcp"));
    CASE("case_14__hundred_kills_through_shm__known_and_nothing_kept", killed_again_and_again(100, hit_count(), "shm"));
    CASE("case_22__two_hundred_jobs_on_the_same_ports__never_meet", same_ports(200));
    CASE("case_30__all_killed_fifty_times__nothing_is_left", all_killed(50));
    CASE("case_39__thousand_groups__nothing_grows", loops(1000, 20));
    CASE("case_39__million_small_operations__nothing_grows", loops(1, 1000000));
    CASE("case_40__shrinks_and_grows_fifty_times__ranks_and_results_right", shrink_and_grow(50));
}
