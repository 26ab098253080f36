/* test_cases_limits.c: what runs out: address space, locked memory, room on a disk; and a program that uses the library
 * from all its threads at once, or gives a group up with operations in flight. It relies on the members of env.h. It
 * must not fill anything of the host: disks are small ones in a mount namespace of their own. */
#include "cases.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

static rlim_t address_space(void) {
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%lu", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

static int limit_memory(uint64_t spare) {
    struct rlimit lim = { address_space() + spare, address_space() + spare };
    return setrlimit(RLIMIT_AS, &lim);
}

#define TIGHT_COUNT (1u << 20)
#define CALLS 4

struct tight {
    char address[128];
    const char *transport;
    uint32_t spare_kb;
    volatile int joined[2], status[2][CALLS], gone;
    float in[2][TIGHT_COUNT], out[2][TIGHT_COUNT];
};

static int is_shortage(int st) { return st == RG_ERR_NOMEM || st == RG_ERR_RESOURCE || st == RG_ERR_SYSTEM; }

/* Member 1 has so much address space more than it has now. Either it cannot join and says why, or both get one outcome
 * of each operation, and what fails leaves inputs as they were. */
static int tight_body(int index, void *arg) {
    struct tight *t = arg;
    char name[32];
    rg_group_t *g = NULL;
    rg_error_t err = { 0 };
    snprintf(name, sizeof name, "tight%u", t->spare_kb);
    rg_config_t cfg = procs_config(t->address, name, 1, (uint32_t)index);
    cfg.transport = t->transport;
    cfg.join_timeout_ms = 3000;
    cfg.op_timeout_ms = 3000;
    for (uint32_t i = 0; i < TIGHT_COUNT; i++) t->in[index][i] = (float)(i % 13 + 1);
    if (index) PROCS_REQUIRE(PROCS_WAIT(t->joined[0], 10), "the first one");
    if (index) PROCS_REQUIRE(!limit_memory((uint64_t)t->spare_kb << 10), "setrlimit");
    rg_status_t st = rg_group_join(&cfg, &g, &err);
    t->joined[index] = st ? -1 : 1;
    if (st) {
        PROCS_REQUIRE(index && (is_shortage(st) || st == RG_ERR_TIMEOUT) && err.text[0] && !g,
                      "member %d, %u KiB: %s: %s", index, t->spare_kb, rg_status_name(st), err.text);
        return 0;
    }
    if (!index) { /* up to the boundary at which the other one enters, and no further */
        rg_change_t c = RG_CHANGE_INIT;
        while (!c.joined && t->joined[1] >= 0 && !t->gone) {
            PROCS_REQUIRE(rg_group_boundary(g, &c) == RG_OK, "boundary");
            procs_nap();
        }
        PROCS_REQUIRE(PROCS_WAIT(t->joined[1], 10), "the other one neither enters nor gives up");
    }
    for (int k = 0; k < CALLS && t->joined[1] > 0; k++) {
        float *out = k == CALLS - 1 ? t->in[index] : t->out[index];
        rg_status_t got = rg_all_reduce(g, t->in[index], out, k % 2 ? TIGHT_COUNT : 1000, RG_F32, RG_SUM, NULL, NULL);
        t->status[index][k] = got;
        if (got == RG_ERR_NOMEM) break;
    }
    if (index) t->gone = 1;
    (void)rg_group_leave(g);
    rg_group_destroy(g);
    return 0;
}

/* A call for which there was no memory from the start was not made: the other member then goes on alone. */
static int tight_judge(const struct tight *t) {
    int ok = 1;
    for (int k = 0; k < CALLS && t->joined[1] > 0; k++) {
        int st0 = t->status[0][k], st1 = t->status[1][k], last = k == CALLS - 1;
        const float *a = last ? t->in[0] : t->out[0], *b = last ? t->in[1] : t->out[1];
        if (st1 == RG_ERR_NOMEM && st0 != st1)
            return ENV_SEEN(st0 == RG_OK || st0 == RG_ERR_TIMEOUT, "call %d: %d beside one not made", k, st0);
        ok = ENV_SEEN(st0 == st1, "%s, %u KiB, call %d: %d beside %d", t->transport, t->spare_kb, k, st0, st1) && ok;
        if (st0 == RG_OK) ok = ENV_SEEN(!memcmp(a, b, 4000) && a[1] == 4, "call %d: a result is wrong", k) && ok;
        else
            ok = ENV_SEEN(t->in[0][5] == 6 && t->in[1][TIGHT_COUNT - 1] == (float)((TIGHT_COUNT - 1) % 13 + 1),
                          "%u KiB, call %d: an input is not intact", t->spare_kb, k) &&
                 ok;
        if (st0 == RG_ERR_NOMEM) break;
    }
    return ok;
}

static int tight_memory(const char *transport) {
    static const uint32_t spare_kb[] = { 0,     64,    1024,  4096,  8192,  12000, 16384, 17000, 17500, 18000,
                                         18484, 19000, 20000, 21000, 22000, 23000, 24000, 32768, 65536, 262144 };
    struct procs_coordinator co;
    int ok = !env_coordinator(&co, 0, "127.0.0.1:0", 1000), joined = 0, refused = 0;
    struct tight *t = procs_shared(sizeof *t);
    if (!ok) return 0;
    for (size_t i = 0; ok && i < sizeof spare_kb / sizeof *spare_kb; i++) {
        pid_t pids[2];
        memset(t, 0, sizeof *t);
        memcpy(t->address, co.address, sizeof t->address);
        t->transport = transport;
        t->spare_kb = spare_kb[i];
        for (int k = 0; k < 2; k++) pids[k] = procs_fork(tight_body, k, t);
        for (int k = 0; k < 2; k++) {
            int rc = procs_end(pids[k], 25);
            ok = ENV_SEEN(rc == 0, "%s, %u KiB: member %d ended with %d", transport, spare_kb[i], k, rc) && ok;
        }
        ok = ok && tight_judge(t);
        joined += t->joined[1] > 0;
        refused += t->joined[1] < 0;
    }
    ok = ok && ENV_SEEN(joined && refused, "%d joined, %d did not", joined, refused);
    return procs_coordinator_stop(&co) == 0 && ok;
}

/* A limit of nothing for locked memory, and one of files that are smaller than any message. */
static int limited_body(rg_group_t *g, int rank, int n, void *arg) {
    (void)arg;
    for (int round = 0; round < 5; round++) {
        void *v;
        PROCS_REQUIRE(rg_alloc(TIGHT_COUNT * sizeof(float), &v, NULL) == RG_OK, "rg_alloc");
        float *x = v;
        for (uint32_t i = 0; i < TIGHT_COUNT; i++) x[i] = (float)(rank + 1);
        rg_status_t st = rg_all_reduce(g, x, x, TIGHT_COUNT, RG_F32, RG_SUM, NULL, NULL);
        PROCS_REQUIRE(st == RG_OK && x[TIGHT_COUNT - 1] == (float)(n * (n + 1) / 2), "%s", rg_status_name(st));
        rg_free_memory(v);
    }
    return rg_group_leave(g) != RG_OK;
}

static int no_locked_memory_main(int index, void *arg) {
    struct rlimit none = { 0, 0 };
    (void)index;
    (void)arg;
    PROCS_REQUIRE(!setrlimit(RLIMIT_MEMLOCK, &none), "setrlimit");
    return procs_cluster(3, limited_body, NULL, 20);
}

/* ---- A disk that is full ---------------------------------------------------------------------------------------- */

#define STATE_BYTES (2u << 20)

/* In a mount namespace of its own: a state that does not fit beside the one that is there, while a group works. */
static int full_disk_main(int index, void *arg) {
    static uint8_t data[STATE_BYTES], back[STATE_BYTES];
    const char *path = "/mnt/state";
    rg_state_t *s, *t;
    rg_error_t err = { 0 };
    (void)index;
    (void)arg;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", "/mnt", "tmpfs", 0, "size=3m"))
        return 77;
    for (uint32_t i = 0; i < STATE_BYTES; i++) data[i] = (uint8_t)(i * 7 + i / 1000);
    PROCS_REQUIRE(!rg_state_create(&s, &err) && !rg_state_add(s, "w", data, STATE_BYTES, RG_U8, &err), "%s", err.text);
    PROCS_REQUIRE(!rg_state_set_revision(s, 1), "revision");
    PROCS_REQUIRE(rg_state_save(s, path, &err) == RG_OK, "%s", err.text);
    data[5] ^= 0xff;
    PROCS_REQUIRE(!rg_state_set_revision(s, 2), "revision");
    rg_status_t st = rg_state_save(s, path, &err);
    PROCS_REQUIRE(st == RG_ERR_SYSTEM && strstr(err.text, path) && strstr(err.text, "space"), "%s: %s",
                  rg_status_name(st), err.text);
    PROCS_REQUIRE(!rg_state_create(&t, &err) && !rg_state_add(t, "w", back, STATE_BYTES, RG_U8, &err), "%s", err.text);
    PROCS_REQUIRE(rg_state_load(t, path, &err) == RG_OK && rg_state_revision(t) == 1, "%s", err.text);
    back[5] ^= 0xff;
    PROCS_REQUIRE(!memcmp(back, data, STATE_BYTES), "the file that was there is not the old one");
    rg_state_destroy(s);
    rg_state_destroy(t);
    return 0;
}

/* ---- Threads ---------------------------------------------------------------------------------------------------- */

#define LANES 4

struct lane {
    const char *address;
    int index, lane, bad;
    pthread_t thread, looker;
    rg_group_t *g;
    int over; /* atomic, as bad is */
};

static void is_bad(struct lane *l, int bad) { __atomic_fetch_or(&l->bad, bad, __ATOMIC_SEQ_CST); }

/* Asks a group about itself all the while. */
static void *look(void *arg) {
    struct lane *l = arg;
    char text[128];
    uint64_t id;
    while (!__atomic_load_n(&l->over, __ATOMIC_SEQ_CST)) {
        rg_info_t info = RG_INFO_INIT;
        if (rg_group_info(l->g, &info) || info.world_size > 2) is_bad(l, 1);
        (void)rg_group_member(l->g, 0, &id);
        (void)rg_group_errmsg(l->g, text, sizeof text);
        sched_yield();
    }
    return NULL;
}

/* Each thread has a group of its own, again and again; joining, working and going away of all of them overlap. */
static void *lane_main(void *arg) {
    struct lane *l = arg;
    static _Thread_local float x[30000];
    for (int round = 0; round < 8 && !__atomic_load_n(&l->bad, __ATOMIC_SEQ_CST); round++) {
        char name[32];
        rg_error_t err;
        snprintf(name, sizeof name, "lane%d-%d", l->lane, round);
        rg_config_t cfg = procs_config(l->address, name, 2, (uint32_t)l->index);
        cfg.transport = l->lane % 2 ? "tcp" : "auto";
        if (rg_group_join(&cfg, &l->g, &err) != RG_OK) {
            fprintf(stderr, "lane %d, round %d: %s\n", l->lane, round, err.text);
            is_bad(l, 1);
            break;
        }
        __atomic_store_n(&l->over, 0, __ATOMIC_SEQ_CST);
        if (pthread_create(&l->looker, NULL, look, l)) is_bad(l, 1);
        for (int i = 0; i < 10 && !__atomic_load_n(&l->bad, __ATOMIC_SEQ_CST); i++) {
            for (int k = 0; k < 30000; k++) x[k] = (float)(l->lane + 1);
            is_bad(l, rg_all_reduce(l->g, x, x, i % 2 ? 30000 : 10, RG_F32, RG_SUM, NULL, NULL) != RG_OK);
            is_bad(l, x[9] != (float)(2 * (l->lane + 1)));
        }
        __atomic_store_n(&l->over, 1, __ATOMIC_SEQ_CST);
        pthread_join(l->looker, NULL);
        if (round % 2) is_bad(l, rg_group_leave(l->g) != RG_OK);
        else is_bad(l, rg_barrier(l->g, NULL, NULL) != RG_OK); /* else the first to go would be a loss to the other */
        rg_group_destroy(l->g);
    }
    return NULL;
}

static int lanes_body(int index, void *arg) {
    struct lane lanes[LANES] = { 0 };
    int bad = 0;
    for (int i = 0; i < LANES; i++) {
        lanes[i] = (struct lane){ .address = arg, .index = index, .lane = i };
        PROCS_REQUIRE(!pthread_create(&lanes[i].thread, NULL, lane_main, &lanes[i]), "thread");
    }
    for (int i = 0; i < LANES; i++) {
        pthread_join(lanes[i].thread, NULL);
        bad |= lanes[i].bad;
    }
    PROCS_REQUIRE(!bad, "a thread's group failed");
    return 0;
}

static int lanes(void) {
    struct procs_coordinator co;
    pid_t pids[2];
    int ok = !env_coordinator(&co, 0, "127.0.0.1:0", 2000);
    if (!ok) return 0;
    for (int i = 0; i < 2; i++) pids[i] = procs_fork(lanes_body, i, co.address);
    for (int i = 0; i < 2; i++) ok = procs_end(pids[i], 60) == 0 && ok;
    return procs_coordinator_stop(&co) == 0 && ok;
}

/* ---- Given up with operations in flight ---------------------------------------------------------------------------
 */

/* The last member starts operations and destroys its handle at once; the others get an outcome of each in time. */
static int given_up(rg_group_t *g, int rank, int n, void *arg) {
    static float x[4][200000];
    volatile int *outcome = arg;
    rg_request_t *req;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 200000; k++) x[i][k] = 1;
    if (rank == n - 1) {
        for (int i = 0; i < 4; i++)
            PROCS_REQUIRE(rg_all_reduce(g, x[i], x[i], 200000, RG_F32, RG_SUM, NULL, &req) == RG_OK, "issue");
        return 0; /* the harness destroys the group */
    }
    uint64_t t = procs_now();
    for (int i = 0; i < 4; i++) {
        rg_result_t res = RG_RESULT_INIT;
        rg_opts_t opts = RG_OPTS_INIT;
        opts.result = &res;
        rg_status_t st = rg_all_reduce(g, x[i], x[i], 200000, RG_F32, RG_SUM, &opts, NULL);
        PROCS_REQUIRE(st == RG_OK && x[i][7] == (float)res.contributors && x[i][199999] == x[i][7], "%s, %g of %u",
                      rg_status_name(st), (double)x[i][7], res.contributors);
        outcome[4 * rank + i] = (int)res.contributors;
    }
    PROCS_REQUIRE((double)(procs_now() - t) / 1e6 < 3000 + procs_late_ms(t), "it took %.0f ms",
                  (double)(procs_now() - t) / 1e6);
    PROCS_REQUIRE(rg_barrier(g, NULL, NULL) == RG_OK, "barrier");
    for (int i = 0; i < 4; i++)
        PROCS_REQUIRE(outcome[i] == outcome[4 + i], "call %d: %d and %d contributors", i, outcome[i], outcome[4 + i]);
    return rg_group_leave(g) != RG_OK;
}

/* An end that says 77 is a place where this cannot be tried. */
static void place_case(const char *name, int (*body)(int, void *), const char *why) {
    if (!procs_wanted(name)) return;
    int rc = procs_end(procs_fork(body, 0, NULL), 40);
    if (rc == 77) env_skip(name, why);
    else procs_case(name, rc == 0);
}

void cases_limits(void) {
    static const char *const transports[] = { "tcp", "shm" };
    char name[128];
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "env__address_space_limited_%s__one_outcome_or_a_clean_refusal", transports[i]);
        if (!procs_wanted(name)) continue;
        if (CASES_SANITIZED) env_skip(name, "a sanitizer needs terabytes of address space");
        else procs_case(name, tight_memory(transports[i]));
    }
    place_case("case_33__no_locked_memory__works", no_locked_memory_main, "");
    place_case("env__disk_full__state_file_as_it_was", full_disk_main, "no mount namespace here");
    CASE("env__threads_with_a_group_each__join_work_and_go_at_once", lanes());
    CASE("case_18__handle_destroyed_with_operations_in_flight__others_agree_in_time",
         procs_cluster(3, given_up, procs_shared(4096), 30) == 0);
}
