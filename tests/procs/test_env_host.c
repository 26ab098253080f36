/* test_env_host.c: limits of one host and of numbers: more than 2^31 elements, few descriptors, deadlines from every
 * place where one can be set, and loops that must not leak. It relies on /proc to look at processes. */
#include "env.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- More than 2^31 elements ----------------------------------------------------------------------------------- */

#define HUGE_COUNT ((1ull << 31) + 7)

static const uint64_t marked[] = { 0, 1, (1ull << 31) - 1, 1ull << 31, (1ull << 31) + 3, HUGE_COUNT - 1 };
#define MARKS (sizeof marked / sizeof *marked)

/* Zeroes that take no memory until they are written. */
static int8_t *sparse(void) {
    void *p = mmap(NULL, HUGE_COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    madvise(p, HUGE_COUNT, MADV_HUGEPAGE); /* one fault for 2 MiB of zeroes, read or written */
    return p;
}

/* Marks that are not as wanted, and bytes besides them that are not 0. */
static uint64_t count_wrong(const int8_t *x, const int8_t *want) {
    uint64_t wrong = 0, filled = 0, expected = 0;
    const uint64_t *words = (const uint64_t *)(const void *)x;
    for (uint64_t i = 0; i < HUGE_COUNT / 8; i++)
        if (words[i])
            for (uint64_t k = 8 * i; k < 8 * i + 8; k++) filled += x[k] != 0;
    for (uint64_t k = HUGE_COUNT / 8 * 8; k < HUGE_COUNT; k++) filled += x[k] != 0;
    for (size_t k = 0; k < MARKS; k++) {
        wrong += x[marked[k]] != want[k];
        expected += x[marked[k]] != 0;
    }
    return wrong + filled - expected;
}

static int huge_body(rg_group_t *g, int rank, int n, void *arg) {
    int8_t want[MARKS], *in = sparse(), *out = sparse();
    rg_opts_t opts = RG_OPTS_INIT;
    rg_result_t res = RG_RESULT_INIT;
    (void)arg;
    opts.result = &res;
    PROCS_REQUIRE(in && out, "address space");
    for (size_t k = 0; k < MARKS; k++) {
        in[marked[k]] = (int8_t)(k + 1 + 10 * (size_t)rank);
        want[k] = (int8_t)((int)(k + 1) * n + 5 * n * (n - 1));
    }
    rg_status_t st = rg_all_reduce(g, in, out, HUGE_COUNT, RG_I8, RG_SUM, &opts, NULL);
    PROCS_REQUIRE(st == RG_OK && res.contributors == (uint32_t)n, "%s %s", rg_status_name(st), res.text);
    PROCS_REQUIRE(res.bytes_received > (1ull << 31), "%llu bytes received", (unsigned long long)res.bytes_received);
    PROCS_REQUIRE(!count_wrong(out, want), "a result is wrong");
    /* Planted: one byte more must be seen. */
    out[HUGE_COUNT - 3] = 1;
    PROCS_REQUIRE(count_wrong(out, want), "the check does not see a byte that is wrong");
    out[HUGE_COUNT - 3] = 0;
    for (size_t k = 0; k < MARKS; k++) {
        out[marked[k]] = (int8_t)(rank == 1 ? 100 + k : 7);
        want[k] = (int8_t)(100 + k);
    }
    st = rg_broadcast(g, out, HUGE_COUNT, RG_U8, 1, &opts, NULL);
    PROCS_REQUIRE(st == RG_OK, "%s %s", rg_status_name(st), res.text);
    PROCS_REQUIRE(!count_wrong(out, want), "a broadcast result is wrong");
    munmap(in, HUGE_COUNT);
    munmap(out, HUGE_COUNT);
    return rg_group_leave(g) != RG_OK;
}

static uint64_t memory_available(void) {
    char line[128];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1) break;
    if (f) fclose(f);
    return kb * 1024;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

static void huge(void) {
    static const char name[] = "env__more_than_2_31_elements__right_to_the_last";
    if (!procs_wanted(name)) return;
    if (SANITIZED) {
        env_skip(name, "a sanitizer would keep a shadow of every byte");
        return;
    }
    uint64_t need = 7ull << 30, have = memory_available();
    char why[96];
    snprintf(why, sizeof why, "needs %.0f GiB of memory, there are %.1f", (double)need / 0x1p30, (double)have / 0x1p30);
    if (have < need) {
        env_skip(name, why);
        return;
    }
    rg_config_t cfg = procs_config(NULL, NULL, 0, 0);
    cfg.op_timeout_ms = 60000;
    procs_case(name, procs_cluster_with(&cfg, 2, huge_body, NULL, 120) == 0);
}

/* ---- Descriptors ----------------------------------------------------------------------------------------------- */

/* A soft limit that is too low is raised as far as the hard one allows. */
static int soft_limit(rg_group_t *g, int rank, int n, void *arg) {
    struct rlimit lim;
    float x = 1;
    (void)rank;
    (void)arg;
    PROCS_REQUIRE(!getrlimit(RLIMIT_NOFILE, &lim) && lim.rlim_cur > 64, "the soft limit is still %llu",
                  (unsigned long long)lim.rlim_cur);
    PROCS_REQUIRE(rg_all_reduce(g, &x, &x, 1, RG_F32, RG_SUM, NULL, NULL) == RG_OK && x == (float)n, "operation");
    return rg_group_leave(g) != RG_OK;
}

static int open_fds(void) {
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Limits soft and hard for this process, beyond the descriptors that it has: they are the lowest ones. */
static int leave_spare(int spare) {
    struct rlimit lim = { (rlim_t)(open_fds() + spare), (rlim_t)(open_fds() + spare) };
    return setrlimit(RLIMIT_NOFILE, &lim);
}

struct scarce {
    char address[128];
    volatile int joined[2];
    volatile uint32_t timeout_ms; /* of a join that may be in vain */
};

/* With so many descriptors to spare: 0 when it works, 10 when it was refused cleanly, 1 when something is wrong. */
static int scarce_member(int spare, void *arg) {
    struct scarce *s = arg;
    char name[32] = "";
    rg_config_t cfg = procs_config(s->address, name, 1, 0);
    rg_group_t *g = NULL;
    rg_error_t err = { 0 };
    float x = 1;
    snprintf(name, sizeof name, "scarce%d", spare);
    cfg.join_timeout_ms = s->timeout_ms;
    PROCS_REQUIRE(!leave_spare(spare), "setrlimit");
    int before = open_fds();
    uint64_t t = procs_now();
    rg_status_t st = rg_group_join(&cfg, &g, &err);
    uint32_t enough_ms = 500 + 20 * (uint32_t)((procs_now() - t) / 1000000);
    if (!st && s->timeout_ms > enough_ms) s->timeout_ms = enough_ms;
    if (!st) PROCS_REQUIRE(rg_all_reduce(g, &x, &x, 1, RG_F32, RG_SUM, NULL, NULL) == RG_OK, "operation");
    rg_group_destroy(g);
    PROCS_REQUIRE(open_fds() == before, "spare %d: %d descriptors, %d before", spare, open_fds(), before);
    if (!st) return 0;
    PROCS_REQUIRE(!g && (strstr(err.text, "open files") || strstr(err.text, "ulimit")), "spare %d: %s: %s", spare,
                  rg_status_name(st), err.text);
    return 10;
}

/* Every limit from enough to nothing: each member works or says why not, and leaves nothing open. What a join takes
 * here is known from those that work when the first one is tried that may not. */
static int few_descriptors(void) {
    struct scarce *s = procs_shared(sizeof *s);
    struct procs_coordinator co;
    int ok = !env_coordinator(&co, 0, "127.0.0.1:0", 2000), worked = 0, refused = 0;
    if (!ok) return 0;
    memcpy(s->address, co.address, sizeof s->address);
    s->timeout_ms = 20000;
    for (int spare = 16; ok && spare >= 0; spare--) {
        int rc = procs_end(procs_fork(scarce_member, spare, s), 30);
        ok = ENV_SEEN(rc == 10 || (rc == 0 && !refused), "%d to spare ended with %d after %d that were refused", spare,
                      rc, refused);
        worked += rc == 0;
        refused += rc == 10;
    }
    ok = ok && ENV_SEEN(worked && refused > 2, "%d worked, %d were refused", worked, refused);
    return procs_coordinator_stop(&co) == 0 && ok;
}

/* Enough for itself, not for its links: the join ends in time and says so. The one with enough is not hurt. */
static int short_of_links_body(int index, void *arg) {
    struct scarce *s = arg;
    rg_config_t cfg = procs_config(s->address, "links", 2, (uint32_t)index);
    rg_group_t *g = NULL;
    rg_error_t err = { 0 };
    cfg.join_timeout_ms = index ? 2500 : 6000; /* its end must not be the other's reason */
    cfg.rails = 16;
    cfg.transport = "tcp";
    PROCS_REQUIRE(index == 0 || !leave_spare(14), "setrlimit");
    PROCS_REQUIRE(index == 0 || PROCS_WAIT(s->joined[0], 5), "the first one");
    s->joined[index] = 1;
    uint64_t t = procs_now();
    rg_status_t st = rg_group_join(&cfg, &g, &err);
    double ms = (double)(procs_now() - t) / 1e6;
    PROCS_REQUIRE(st == RG_ERR_TIMEOUT && ms < 1.5 * cfg.join_timeout_ms + procs_late_ms(t), "%s after %.0f ms: %s",
                  rg_status_name(st), ms, err.text);
    PROCS_REQUIRE(index == 0 || strstr(err.text, "open files"), "%s", err.text);
    return 0;
}

static int short_of_links(void) {
    struct scarce *s = procs_shared(sizeof *s);
    struct procs_coordinator co;
    pid_t pids[2];
    int ok = !env_coordinator(&co, 0, "127.0.0.1:0", 2000);
    if (!ok) return 0;
    memcpy(s->address, co.address, sizeof s->address);
    for (int i = 0; i < 2; i++) pids[i] = procs_fork(short_of_links_body, i, s);
    for (int i = 0; i < 2; i++) ok = procs_end(pids[i], 20) == 0 && ok;
    return procs_coordinator_stop(&co) == 0 && ok;
}

static int raised_limit(void) {
    struct rlimit was, low;
    rg_config_t cfg = procs_config(NULL, NULL, 0, 0);
    cfg.rails = 4;
    if (getrlimit(RLIMIT_NOFILE, &was)) return 0;
    low = was;
    low.rlim_cur = 64;
    if (setrlimit(RLIMIT_NOFILE, &low)) return 0;
    int ok = procs_cluster_with(&cfg, 4, soft_limit, NULL, 20) == 0;
    return !setrlimit(RLIMIT_NOFILE, &was) && ok;
}

/* ---- Deadlines ------------------------------------------------------------------------------------------------- */

struct deadlines {
    volatile int stage; /* of member 0: how many of its calls have timed out */
};

/* What was asked for, give or take a fifth, and what the host was late meanwhile. */
static int took(double ms, double asked, double late) { return ms > asked * 0.95 && ms < asked * 1.2 + 60 + late; }

#define TIMED(call, asked)                                                                                             \
    ({                                                                                                                 \
        uint64_t timed_ = procs_now();                                                                                 \
        rg_status_t st_ = (call);                                                                                      \
        double ms_ = (double)(procs_now() - timed_) / 1e6;                                                             \
        PROCS_REQUIRE(st_ == RG_ERR_TIMEOUT && took(ms_, asked, procs_late_ms(timed_)),                                \
                      "%s after %.0f ms, asked for %d", rg_status_name(st_), ms_, asked);                              \
    })

#define OWN_MS 500 /* what the configuration says */

/* Member 0 calls, member 1 does not, until all has timed out. What member 1 then calls has ended already, and both go
 * on together. */
static int deadline_body(rg_group_t *g, int rank, int n, void *arg) {
    struct deadlines *d = arg;
    float x[100] = { 0 }, y = 1;
    rg_opts_t opts = RG_OPTS_INIT;
    rg_request_t *req[2];
    PROCS_REQUIRE(!took(310, 200, 0) && !took(300, 400, 0) && took(210, 200, 0) && took(310, 200, 20),
                  "planted: the measure sees nothing");
    if (rank == 0) {
        opts.timeout_ms = 200;
        TIMED(rg_all_reduce(g, x, x, 100, RG_F32, RG_SUM, &opts, NULL), 200);
        TIMED(rg_broadcast(g, x, 100, RG_F32, 1, NULL, NULL), OWN_MS);
        opts.timeout_ms = 700;
        TIMED(rg_barrier(g, &opts, NULL), 700);
        /* Each request has its own. */
        opts.timeout_ms = 400;
        uint64_t t = procs_now();
        PROCS_REQUIRE(rg_all_reduce(g, x, x, 100, RG_F32, RG_SUM, &opts, &req[0]) == RG_OK, "issue");
        opts.timeout_ms = 150;
        PROCS_REQUIRE(rg_all_reduce(g, &y, &y, 1, RG_F32, RG_SUM, &opts, &req[1]) == RG_OK, "issue");
        TIMED(rg_wait(req[1], NULL), 150);
        rg_status_t st = rg_wait(req[0], NULL);
        double ms = (double)(procs_now() - t) / 1e6;
        PROCS_REQUIRE(st == RG_ERR_TIMEOUT && took(ms, 400, procs_late_ms(t)), "%s after %.0f ms", rg_status_name(st),
                      ms);
        d->stage = 1;
    } else {
        PROCS_REQUIRE(PROCS_WAIT(d->stage, 20), "member 0");
        uint64_t t = procs_now();
        rg_status_t st[5] = { rg_all_reduce(g, x, x, 100, RG_F32, RG_SUM, NULL, NULL),
                              rg_broadcast(g, x, 100, RG_F32, 1, NULL, NULL), rg_barrier(g, NULL, NULL),
                              rg_all_reduce(g, x, x, 100, RG_F32, RG_SUM, NULL, NULL),
                              rg_all_reduce(g, &y, &y, 1, RG_F32, RG_SUM, NULL, NULL) };
        for (int i = 0; i < 5; i++) PROCS_REQUIRE(st[i] == RG_ERR_TIMEOUT, "call %d: %s", i, rg_status_name(st[i]));
        PROCS_REQUIRE((double)(procs_now() - t) / 1e6 < OWN_MS + procs_late_ms(t), "what has ended was waited for");
    }
    y = 1;
    opts.timeout_ms = 30000; /* on a busy host the other one may be late */
    rg_status_t st = rg_all_reduce(g, &y, &y, 1, RG_F32, RG_SUM, &opts, NULL);
    PROCS_REQUIRE(st == RG_OK && y == (float)n, "afterwards: %s", rg_status_name(st));
    return rg_group_leave(g) != RG_OK;
}

static int deadlines(int by_environment) {
    rg_config_t cfg = procs_config(NULL, NULL, 0, 0);
    cfg.op_timeout_ms = by_environment ? 0 : OWN_MS;
    if (by_environment) setenv("RG_OP_TIMEOUT_MS", "500", 1);
    int ok = procs_cluster_with(&cfg, 2, deadline_body, procs_shared(sizeof(struct deadlines)), 30) == 0;
    unsetenv("RG_OP_TIMEOUT_MS");
    return ok;
}

/* ---- Leaks ----------------------------------------------------------------------------------------------------- */

struct rounds {
    char address[128];
    int planted;
    volatile int done[2];
};

#define ROUNDS 120
#define SLACK_KB 3072

static int rounds_body(int index, void *arg) {
    struct rounds *r = arg;
    struct procs_usage was = { 0 };
    static float x[30000];
    for (int k = 0; k < ROUNDS; k++) {
        char name[32];
        snprintf(name, sizeof name, "round%d", k);
        rg_config_t cfg = procs_config(r->address, name, 2, (uint32_t)index);
        rg_group_t *g = NULL;
        rg_error_t err;
        PROCS_REQUIRE(rg_group_join(&cfg, &g, &err) == RG_OK, "round %d: %s", k, err.text);
        for (int i = 0; i < 4; i++) {
            rg_status_t st = rg_all_reduce(g, x, x, i % 2 ? 1 : 30000, RG_F32, RG_SUM, NULL, NULL);
            PROCS_REQUIRE(st == RG_OK, "round %d: %s", k, rg_status_name(st));
        }
        if (k % 3) PROCS_REQUIRE(rg_group_leave(g) == RG_OK, "leave");
        rg_group_destroy(g);
        if (r->planted && k > 30) PROCS_REQUIRE(dup(0) >= 0, "dup");
        if (k == 30) was = procs_usage_of(getpid());
        if (r->planted && k == 34) break;
    }
    struct procs_usage is;
    int bad = procs_keeps(getpid(), was, &is, SLACK_KB);
    if (bad && !r->planted)
        fprintf(stderr, "member %d: %d, then %d descriptors; %d, then %d threads; %ld, then %ld KiB\n", index, was.fds,
                is.fds, was.threads, is.threads, was.rss_kb, is.rss_kb);
    return bad;
}

/* Groups one after the other, each with another name: neither members nor coordinator keep anything of them. */
static int rounds(int planted) {
    struct rounds *r = procs_shared(sizeof *r);
    struct procs_coordinator co;
    pid_t pids[2];
    int ok = 1;
    r->planted = planted;
    if (env_coordinator(&co, 0, "127.0.0.1:0", 2000)) return 0;
    memcpy(r->address, co.address, sizeof r->address);
    struct procs_usage was = procs_usage_of(co.pid);
    for (int i = 0; i < 2; i++) pids[i] = procs_fork(rounds_body, i, r);
    for (int i = 0; i < 2; i++) ok = procs_end(pids[i], 180) == planted && ok;
    ok = ok && ENV_SEEN(PROCS_WAIT(procs_count_fds(co.pid) <= was.fds, 5), "the coordinator keeps descriptors");
    /* Of members that went without a word it waits a heartbeat for their return. */
    ok = ok && ENV_SEEN(PROCS_WAIT(!procs_grown(was, procs_usage_of(co.pid), 2 * SLACK_KB), 5),
                        "the coordinator grew from %ld to %ld KiB", was.rss_kb, procs_rss_kb(co.pid));
    return procs_coordinator_stop(&co) == 0 && ok;
}

#define SMALL_OPS 60000

static int small_body(rg_group_t *g, int rank, int n, void *arg) {
    struct procs_usage was = { 0 };
    (void)arg;
    for (int i = 0; i < SMALL_OPS; i++) {
        uint32_t x[4] = { (uint32_t)i, 1, 2, 3 };
        rg_status_t st = i % 5 == 4 ? rg_broadcast(g, x, 4, RG_U32, (uint32_t)(i / 5 % n), NULL, NULL)
                                    : rg_all_reduce(g, x, x, 4, RG_U32, RG_SUM, NULL, NULL);
        PROCS_REQUIRE(st == RG_OK && x[0] == (uint32_t)(i % 5 == 4 ? i : i * n), "operation %d: %s", i,
                      rg_status_name(st));
        if (i % 1000 == 999) PROCS_REQUIRE(rg_group_boundary(g, NULL) == RG_OK, "boundary");
        if (i == SMALL_OPS / 4) was = procs_usage_of(getpid());
    }
    struct procs_usage is;
    /* A sanitizer holds freed memory back for a while. */
    PROCS_REQUIRE(!procs_keeps(getpid(), was, &is, SANITIZED ? SLACK_KB : 1024),
                  "member %d: %d, then %d descriptors; %ld, then %ld KiB", rank, was.fds, is.fds, was.rss_kb,
                  is.rss_kb);
    return rg_group_leave(g) != RG_OK;
}

void env_host_cases(void) {
    PROCS_RUN("env__planted_late_host__seen", procs_host_planted());
    huge();
    PROCS_RUN("env__soft_limit_of_descriptors__raised", raised_limit());
    PROCS_RUN("env__few_descriptors__works_or_says_why", few_descriptors());
    PROCS_RUN("env__too_few_descriptors_for_its_links__says_so_in_time", short_of_links());
    PROCS_RUN("env__deadlines_of_calls_and_configuration__kept", deadlines(0));
    PROCS_RUN("env__deadline_from_the_environment__kept", deadlines(1));
    PROCS_RUN("env__groups_one_after_the_other__nothing_grows", rounds(0));
    PROCS_RUN("env__planted_leak__seen", rounds(1));
    PROCS_RUN("env__many_small_operations__nothing_grows", procs_cluster(2, small_body, NULL, 60) == 0);
}
