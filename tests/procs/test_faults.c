/* test_faults.c: the public interface when members end: leave, abort, destroy with operations in flight, death by
 * SIGKILL, joins that cannot succeed, ranks that are taken, and a thousand groups one after the other. */
#include "procs.h"

#include "tools/pattern.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct meet {
    volatile int count[8];
    char address[128];
    rg_unique_id_t id;
};

static int sum_of(rg_group_t *g, uint32_t *contributors) {
    float x[64];
    rg_opts_t opts = RG_OPTS_INIT;
    rg_result_t res = RG_RESULT_INIT;
    opts.result = &res;
    for (int i = 0; i < 64; i++) x[i] = 1;
    rg_status_t s = rg_all_reduce(g, x, x, 64, RG_F32, RG_SUM, &opts, NULL);
    PROCS_REQUIRE(s == RG_OK, "%s %s", rg_status_name(s), res.text);
    *contributors = res.contributors;
    PROCS_REQUIRE(x[0] == (float)res.contributors && x[63] == x[0], "sum %g of %u", x[0], res.contributors);
    return 0;
}

/* Goes on until only `want` members contribute. */
static int shrink_to(rg_group_t *g, uint32_t want) {
    uint64_t until = procs_now() + 20000000000ull;
    uint32_t got = 0;
    while (got != want && procs_now() < until)
        if (sum_of(g, &got)) return 1;
    PROCS_REQUIRE(got == want, "%u contributors, expected %u", got, want);
    return 0;
}

static int leaving(rg_group_t *g, int rank, int n, void *arg) {
    uint32_t c;
    (void)arg;
    if (sum_of(g, &c)) return 1;
    PROCS_REQUIRE(c == (uint32_t)n, "%u", c);
    if (rank == n - 1) {
        float x = 0;
        PROCS_REQUIRE(rg_group_leave(g) == RG_OK, "leave");
        rg_status_t s = rg_all_reduce(g, &x, &x, 1, RG_F32, RG_SUM, NULL, NULL);
        PROCS_REQUIRE(s == RG_ERR_CLOSED, "after leaving: %s", rg_status_name(s));
        return 0;
    }
    return shrink_to(g, (uint32_t)n - 1) || rg_group_leave(g) != RG_OK;
}

/* Rank 1 dies in mid operation of small all-reduces; the others go on, all with the same contributors each time. */
static int dying(rg_group_t *g, int rank, int n, void *arg) {
    uint32_t c;
    (void)arg;
    for (int i = 0; i < 50; i++)
        if (sum_of(g, &c)) return 1;
    if (rank == 1) kill(getpid(), SIGKILL);
    if (shrink_to(g, (uint32_t)n - 1)) return 1;
    for (int i = 0; i < 50; i++)
        if (sum_of(g, &c)) return 1;
    return rg_group_leave(g) != RG_OK;
}

static int returned(rg_group_t *g, int rank, int n, void *arg) {
    struct meet *m = arg;
    static float x[200000], y[200000];
    rg_opts_t opts = RG_OPTS_INIT;
    rg_result_t res = RG_RESULT_INIT;
    uint32_t c;
    opts.result = &res;
    opts.on_fault = RG_RETURN;
    pattern_fill(RG_F32, RG_SUM, (uint32_t)rank, x, 200000);
    memcpy(y, x, sizeof x);
    if (sum_of(g, &c)) return 1;
    if (rank == 1) { /* dies when the others are inside the call, which it never makes */
        if (!PROCS_WAIT(m->count[0] == n - 1, 20)) return 1;
        kill(getpid(), SIGKILL);
    }
    __atomic_add_fetch(&m->count[0], 1, __ATOMIC_SEQ_CST);
    rg_status_t s = rg_all_reduce(g, x, x, 200000, RG_F32, RG_SUM, &opts, NULL);
    PROCS_REQUIRE(s == RG_ERR_PEER_LOST, "%s %s", rg_status_name(s), res.text);
    PROCS_REQUIRE(res.text[0] && res.lost_member, "no text or nobody to blame");
    PROCS_REQUIRE(!memcmp(x, y, sizeof x), "input");
    if (sum_of(g, &c)) return 1;
    PROCS_REQUIRE(c == (uint32_t)n - 1, "%u contributors", c);
    return rg_group_leave(g) != RG_OK;
}

static int lost_root(rg_group_t *g, int rank, int n, void *arg) {
    struct meet *m = arg;
    float x[50000] = { 0 };
    uint32_t c;
    if (sum_of(g, &c)) return 1;
    if (rank == 1) {
        if (!PROCS_WAIT(m->count[0] == n - 1, 20)) return 1;
        kill(getpid(), SIGKILL);
    }
    __atomic_add_fetch(&m->count[0], 1, __ATOMIC_SEQ_CST);
    rg_status_t s = rg_broadcast(g, x, 50000, RG_F32, 1, NULL, NULL);
    PROCS_REQUIRE(s == RG_ERR_ROOT_LOST, "%s", rg_status_name(s));
    return sum_of(g, &c) || c != (uint32_t)n - 1 || rg_group_leave(g) != RG_OK;
}

struct aborter {
    rg_group_t *g;
    struct meet *m;
    uint64_t at_ns;
};

static void *abort_main(void *arg) {
    struct aborter *a = arg;
    PROCS_WAIT(__atomic_load_n(&a->m->count[1], __ATOMIC_SEQ_CST) == 1, 20);
    a->at_ns = procs_now();
    rg_group_abort(a->g);
    return NULL;
}

/* Rank 0 waits in a call that the others do not make, and is freed by its own second thread. */
static int aborting(rg_group_t *g, int rank, int n, void *arg) {
    struct meet *m = arg;
    float x[64];
    uint32_t c;
    if (sum_of(g, &c)) return 1;
    if (rank) {
        if (!PROCS_WAIT(__atomic_load_n(&m->count[2], __ATOMIC_SEQ_CST) == 1, 20)) return 1;
        return shrink_to(g, (uint32_t)n - 1) || rg_group_leave(g) != RG_OK;
    }
    struct aborter a = { g, m, 0 };
    pthread_t t;
    for (int i = 0; i < 64; i++) x[i] = 1;
    PROCS_REQUIRE(!pthread_create(&t, NULL, abort_main, &a), "thread");
    __atomic_store_n(&m->count[1], 1, __ATOMIC_SEQ_CST);
    rg_status_t s = rg_all_reduce(g, x, x, 64, RG_F32, RG_SUM, NULL, NULL); /* as sum_of() does */
    uint64_t now = procs_now();
    pthread_join(t, NULL);
    __atomic_store_n(&m->count[2], 1, __ATOMIC_SEQ_CST);
    PROCS_REQUIRE(s == RG_ERR_ABORTED, "%s", rg_status_name(s));
    PROCS_REQUIRE((double)(now - a.at_ns) / 1e6 < 200 + procs_late_ms(a.at_ns), "%.1f ms after the abort",
                  (double)(now - a.at_ns) / 1e6);
    s = rg_barrier(g, NULL, NULL);
    PROCS_REQUIRE(s == RG_ERR_ABORTED, "after the abort: %s", rg_status_name(s));
    return 0;
}

static int destroying(rg_group_t *g, int rank, int n, void *arg) {
    static float x[4][300000];
    rg_request_t *req[4];
    (void)arg;
    (void)n;
    for (int i = 0; i < 4; i++)
        PROCS_REQUIRE(rg_all_reduce(g, x[i], x[i], 300000, RG_F32, RG_SUM, NULL, &req[i]) == RG_OK, "issue");
    (void)rank;
    return 0; /* the harness destroys the group with all four in flight */
}

/* ---- Joining that fails ---------------------------------------------------------------------------------------- */

static int join_alone(int index, void *arg) {
    struct meet *m = arg;
    rg_config_t cfg = procs_config(m->address, "short", 3, (uint32_t)index);
    rg_group_t *g = NULL;
    rg_error_t err;
    cfg.join_timeout_ms = 800;
    uint64_t t = procs_now();
    rg_status_t s = rg_group_join(&cfg, &g, &err);
    double ms = (double)(procs_now() - t) / 1e6;
    PROCS_REQUIRE(s == RG_ERR_TIMEOUT && !g, "%s", rg_status_name(s));
    PROCS_REQUIRE(ms > 640 && ms < 1200 + procs_late_ms(t), "after %.0f ms", ms);
    /* The other one may have given up a moment earlier. */
    PROCS_REQUIRE(strstr(err.text, "2 of 3") || strstr(err.text, "1 of 3"), "does not say how many: %s", err.text);
    return 0;
}

static int fixed_rank(int index, void *arg) {
    struct meet *m = arg;
    static const uint32_t rank_of[] = { 0, 2 }; /* 1 never comes */
    rg_config_t cfg = RG_CONFIG_INIT;
    rg_group_t *g = NULL;
    rg_error_t err;
    if (index == 0) {
        PROCS_REQUIRE(rg_unique_id(&m->id, &err) == RG_OK, "%s", err.text);
        m->count[0] = 1;
    }
    PROCS_REQUIRE(PROCS_WAIT(m->count[0], 10), "no id");
    cfg.join_timeout_ms = 1000;
    rg_status_t s = rg_group_init_rank(3, rank_of[index], &m->id, &cfg, &g, &err);
    __atomic_add_fetch(&m->count[1], 1, __ATOMIC_SEQ_CST);
    PROCS_REQUIRE(PROCS_WAIT(m->count[1] == 2, 10), "the other"); /* rank 0 hosts the coordinator */
    PROCS_REQUIRE(s == RG_ERR_TIMEOUT, "%s %s", rg_status_name(s), err.text);
    PROCS_REQUIRE(strstr(err.text, "1"), "does not name rank 1: %s", err.text);
    return 0;
}

static int init_rank(int index, void *arg) {
    struct meet *m = arg;
    rg_group_t *g = NULL;
    rg_error_t err;
    rg_info_t info = RG_INFO_INIT;
    uint32_t rank = (uint32_t)(2 - index), c;
    if (index == 0) {
        PROCS_REQUIRE(rg_unique_id(&m->id, &err) == RG_OK, "%s", err.text);
        m->count[0] = 1;
    }
    PROCS_REQUIRE(PROCS_WAIT(m->count[0], 10), "no id");
    rg_status_t s = rg_group_init_rank(3, rank, &m->id, NULL, &g, &err);
    PROCS_REQUIRE(s == RG_OK, "%s", err.text);
    PROCS_REQUIRE(rg_group_info(g, &info) == RG_OK && info.rank == rank && info.world_size == 3, "rank %u of %u",
                  info.rank, info.world_size);
    if (sum_of(g, &c) || c != 3) return 1;
    __atomic_add_fetch(&m->count[1], 1, __ATOMIC_SEQ_CST);
    PROCS_REQUIRE(PROCS_WAIT(m->count[1] == 3, 10), "the others"); /* before anybody takes the coordinator away */
    rg_group_destroy(g);
    return 0;
}

/* Of two that claim rank 0 one is refused; the other's group then lacks nobody. */
static int same_rank(int index, void *arg) {
    struct meet *m = arg;
    rg_config_t cfg = RG_CONFIG_INIT;
    rg_group_t *g = NULL;
    rg_error_t err;
    if (index == 0) {
        PROCS_REQUIRE(rg_unique_id(&m->id, &err) == RG_OK, "%s", err.text);
        m->count[0] = 1;
    }
    PROCS_REQUIRE(PROCS_WAIT(m->count[0], 10), "no id");
    cfg.join_timeout_ms = 10000;
    if (index == 2) PROCS_REQUIRE(PROCS_WAIT(m->count[2] == 1, 10), "nobody was refused");
    rg_status_t s = rg_group_init_rank(2, index == 2, &m->id, &cfg, &g, &err);
    if (s == RG_ERR_REFUSED) {
        PROCS_REQUIRE(strstr(err.text, "rank"), "%s", err.text);
        __atomic_add_fetch(&m->count[2], 1, __ATOMIC_SEQ_CST);
    } else PROCS_REQUIRE(s == RG_OK, "%s %s", rg_status_name(s), err.text);
    __atomic_add_fetch(&m->count[1], 1, __ATOMIC_SEQ_CST);
    PROCS_REQUIRE(PROCS_WAIT(m->count[1] == 3, 10), "the others");
    rg_group_destroy(g);
    return 0;
}

static int nobody_there(int index, void *arg) {
    rg_config_t cfg = procs_config("127.0.0.1:1", "none", 1, 0);
    rg_group_t *g = NULL;
    rg_error_t err;
    (void)index;
    (void)arg;
    cfg.join_timeout_ms = 500;
    rg_status_t s = rg_group_join(&cfg, &g, &err);
    PROCS_REQUIRE(s == RG_ERR_COORDINATOR || s == RG_ERR_TIMEOUT, "%s", rg_status_name(s));
    PROCS_REQUIRE(strstr(err.text, "127.0.0.1:1"), "the text lacks the address: %s", err.text);
    return 0;
}

static int thousand(int index, void *arg) {
    struct meet *m = arg;
    int fds = 0, tasks = 0;
    long rss = 0;
    float x = 1;
    (void)index;
    for (int i = 0; i < 1000; i++) {
        char name[32];
        rg_config_t cfg = procs_config(m->address, name, 1, 0);
        rg_group_t *g = NULL;
        rg_error_t err;
        snprintf(name, sizeof name, "g%d", i % 50 ? i % 3 : i);
        rg_status_t s = rg_group_join(&cfg, &g, &err);
        PROCS_REQUIRE(s == RG_OK, "group %d: %s", i, err.text);
        s = rg_all_reduce(g, &x, &x, 1, RG_F32, RG_SUM, NULL, NULL);
        PROCS_REQUIRE(s == RG_OK && x == 1, "operation of group %d: %s", i, rg_status_name(s));
        if (i % 50) rg_group_leave(g); /* one that does not say good-bye is waited for as long as a heartbeat */
        rg_group_destroy(g);
        if (i == 100) {
            fds = procs_count_fds(getpid());
            tasks = procs_count_threads(getpid());
            rss = procs_rss_kb(getpid());
        }
    }
    PROCS_REQUIRE(PROCS_WAIT(procs_count_fds(getpid()) == fds, 5), "descriptors %d, then %d", fds,
                  procs_count_fds(getpid()));
    PROCS_REQUIRE(PROCS_WAIT(procs_count_threads(getpid()) == tasks, 5), "threads %d, then %d", tasks,
                  procs_count_threads(getpid()));
    PROCS_REQUIRE(procs_rss_kb(getpid()) < rss + 4096, "%ld KiB, then %ld", rss, procs_rss_kb(getpid()));
    return 0;
}

/* ---- */

static int processes(int n, int (*body)(int, void *), int with_coordinator, double seconds) {
    struct meet *m = procs_shared(sizeof *m);
    struct procs_coordinator co;
    pid_t pids[8];
    int bad = 0;
    if (with_coordinator && procs_coordinator_start(&co, 0)) return 1;
    if (with_coordinator) memcpy(m->address, co.address, sizeof m->address);
    for (int i = 0; i < n; i++) pids[i] = procs_fork(body, i, m);
    for (int i = 0; i < n; i++) bad += procs_end(pids[i], seconds) != 0;
    if (with_coordinator) bad += procs_coordinator_stop(&co) != 0;
    return bad;
}

void test_api_faults(void) {
    static const struct {
        const char *name;
        procs_body body;
        int min, max, bad; /* members that are meant to end badly */
    } cases[] = {
        { "leave__others_go_on", leaving, 2, 4, 0 },
        { "death__small_operations_go_on", dying, 2, 4, 1 },
        { "death_under_return__same_error_and_input_intact", returned, 2, 4, 1 },
        { "death_of_the_root__said_so", lost_root, 2, 4, 1 },
        { "abort_from_a_thread__bounded", aborting, 2, 3, 0 },
        { "destroy_with_operations_in_flight__ends", destroying, 1, 4, 0 },
    };
    char name[128];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int n = cases[i].min; n <= cases[i].max; n++) {
            void *arg = procs_shared(4096);
            snprintf(name, sizeof name, "faults__%s__%d", cases[i].name, n);
            if (procs_wanted(name)) procs_case(name, procs_cluster(n, cases[i].body, arg, 60) == cases[i].bad);
        }
    procs_case("faults__join_timeout__says_how_many_are_missing", processes(2, join_alone, 1, 20) == 0);
    procs_case("faults__init_rank_timeout__names_the_missing_rank", processes(2, fixed_rank, 0, 20) == 0);
    procs_case("faults__init_rank__ranks_as_given", processes(3, init_rank, 0, 20) == 0);
    procs_case("faults__same_rank_twice__one_is_refused", processes(3, same_rank, 0, 30) == 0);
    procs_case("faults__no_coordinator__text_has_its_address", processes(1, nobody_there, 0, 10) == 0);
    procs_case("faults__thousand_groups__nothing_grows", processes(1, thousand, 1, 120) == 0);
}
