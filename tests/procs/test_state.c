/* test_state.c: shared states of real processes: donors are killed while a newcomer fetches, a newcomer enters a
 * running group whose content changes at every step, and a group that lost everyone comes back from a file. Every byte
 * is checked against what it must be. Relies on procs.h; the moments of kills come from a seed (RG_TEST_SEED). */
#include "procs.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEMBERS 4
#define PIECES 48u
#define BYTES ((uint64_t)PIECES << 20)

struct space {
    char address[128], path[128];
    atomic_int in_sync; /* members that are about to call */
    atomic_uint steps[MEMBERS];
    atomic_int end;
    uint32_t lost;               /* members that are killed */
    volatile uint64_t *newcomer; /* what one has fetched so far */
    volatile uint64_t received[MEMBERS];
    volatile uint32_t retries[MEMBERS];
};

static uint64_t word_of(uint64_t seed, uint64_t i) { return (seed * 0x9e3779b97f4a7c15u + i) * 0xbf58476d1ce4e5b9u; }

static void fill(uint64_t *p, uint64_t bytes, uint64_t seed) {
    for (uint64_t i = 0; i < bytes / 8; i++) p[i] = word_of(seed, i);
}
static int is(const uint64_t *p, uint64_t bytes, uint64_t seed) {
    for (uint64_t i = 0; i < bytes / 8; i++)
        if (p[i] != word_of(seed, i)) return 0;
    return 1;
}

static int open_state(rg_state_t **s, uint64_t **p, uint64_t bytes) {
    rg_error_t err;
    *p = malloc(bytes);
    return *p && rg_state_create(s, &err) == RG_OK && rg_state_add(*s, "w", *p, bytes / 8, RG_U64, &err) == RG_OK;
}

static int close_all(rg_group_t *g, rg_state_t *s, uint64_t *p) {
    rg_status_t st = rg_group_leave(g);
    rg_group_destroy(g);
    rg_state_destroy(s);
    free(p);
    return st != RG_OK;
}

static pid_t *start(struct space **out, struct procs_coordinator *co, int n, int (*body)(int, void *)) {
    static pid_t pids[MEMBERS];
    struct space *s = *out = procs_shared(sizeof *s);
    if (procs_coordinator_start(co, 1000)) return NULL;
    memcpy(s->address, co->address, sizeof s->address);
    for (int i = 0; i < n; i++) pids[i] = procs_fork(body, i, s);
    return pids;
}

/* ---- Donors are killed
 * ----------------------------------------------------------------------------------------------- */

/* All but the last have the content. */
static int fetcher(int index, void *arg) {
    struct space *x = arg;
    rg_group_t *g = NULL;
    rg_error_t err;
    rg_state_t *s;
    uint64_t *p;
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    int has = index < MEMBERS - 1;
    rg_config_t cfg = procs_config(x->address, "state", MEMBERS, (uint32_t)index);
    PROCS_REQUIRE(open_state(&s, &p, BYTES), "no state");
    fill(p, BYTES, has ? 1 : 2);
    rg_state_set_revision(s, has ? 7 : 0);
    PROCS_REQUIRE(rg_group_join(&cfg, &g, &err) == RG_OK, "join: %s", err.text);
    o.in_place = x->lost % 2 ? RG_ON : RG_OFF;
    o.buffer_bytes = 4u << 20;
    atomic_fetch_add(&x->in_sync, 1);
    rg_status_t st = rg_state_sync(g, s, &o, &r);
    PROCS_REQUIRE(st == RG_OK, "member %d: %s: %s", index, rg_status_name(st), r.text);
    PROCS_REQUIRE(is(p, BYTES, 1) && rg_state_revision(s) == 7, "member %d: wrong content", index);
    PROCS_REQUIRE(r.rejected == 0 && r.bytes_received == r.pieces_received << 20, "member %d: odd counts", index);
    x->received[index] = r.pieces_received;
    x->retries[index] = r.retries;
    return close_all(g, s, p);
}

static int kill_donors(uint32_t lost, uint64_t after_us, uint32_t *met) {
    struct procs_coordinator co;
    struct space *s;
    pid_t *pids = start(&s, &co, MEMBERS, fetcher);
    if (!pids) return 0;
    s->lost = lost;
    int ok = PROCS_WAIT(s->in_sync == MEMBERS, 30);
    uint64_t until = procs_now() + after_us * 1000;
    while (procs_now() < until) {}
    for (uint32_t i = 0; i < lost; i++) kill(pids[i], SIGKILL);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        int rc = procs_end(pids[i], 30);
        ok = ok && (rc == 0 || (i < lost && rc == 256 + SIGKILL));
    }
    uint64_t got = s->received[MEMBERS - 1];
    *met += s->retries[MEMBERS - 1] != 0;
    /* Only what was under way may have come twice: two rounds of four buffers of 1 MiB. */
    if (got < PIECES || got > PIECES + 8) {
        fprintf(stderr, "test_state: %llu pieces came for %u\n", (unsigned long long)got, PIECES);
        ok = 0;
    }
    return procs_coordinator_stop(&co) == 0 && ok;
}

static int donors(void) {
    const char *text = getenv("RG_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : 1;
    uint32_t met = 0;
    int ok = 1;
    for (uint32_t k = 0; k < 6 && ok; k++) ok = kill_donors(1 + k % 2, (word_of(seed, k) >> 20) % 40000, &met);
    printf("       %u of 6 kills met a call under way\n", met);
    return ok;
}

/* ---- A newcomer in a running group
 * ----------------------------------------------------------------------------------- */

#define SMALL (3u << 20)

/* Content at step k is that of seed k; the revision is the step. */
static int stepper(int index, void *arg) {
    struct space *x = arg;
    rg_group_t *g = NULL;
    rg_error_t err;
    rg_state_t *s;
    uint64_t *p, step = 0;
    rg_change_t c = RG_CHANGE_INIT;
    c.joined = 1;
    rg_config_t cfg = procs_config(x->address, "state", index < 2 ? 2 : 1, (uint32_t)index);
    PROCS_REQUIRE(open_state(&s, &p, SMALL), "no state");
    fill(p, SMALL, index < 2 ? 0 : 99);
    PROCS_REQUIRE(rg_group_join(&cfg, &g, &err) == RG_OK, "join: %s", err.text);
    for (int64_t over = 0; !over;) {
        rg_state_result_t r = RG_STATE_RESULT_INIT;
        rg_status_t st = c.joined ? rg_state_sync(g, s, NULL, &r) : RG_OK;
        PROCS_REQUIRE(st == RG_OK, "member %d: %s: %s", index, rg_status_name(st), r.text);
        step = rg_state_revision(s);
        PROCS_REQUIRE(is(p, SMALL, step), "member %d: wrong content at step %llu", index, (unsigned long long)step);
        over = atomic_load(&x->end);
        st = rg_all_reduce(g, &over, &over, 1, RG_I64, RG_MAX, NULL, NULL);
        PROCS_REQUIRE(st == RG_OK, "member %d: %s", index, rg_status_name(st));
        fill(p, SMALL, ++step);
        rg_state_set_revision(s, step);
        atomic_fetch_add(&x->steps[index], 1);
        st = rg_group_boundary(g, &c);
        PROCS_REQUIRE(st == RG_OK, "member %d: boundary: %s", index, rg_status_name(st));
    }
    return close_all(g, s, p);
}

static int newcomers(void) {
    struct procs_coordinator co;
    struct space *s;
    pid_t *pids = start(&s, &co, 2, stepper);
    if (!pids) return 0;
    int ok = PROCS_WAIT(s->steps[0] > 5 && s->steps[1] > 5, 20);
    for (int i = 2; i < MEMBERS && ok; i++) {
        pids[i] = procs_fork(stepper, i, s);
        ok = PROCS_WAIT(s->steps[i] > 5, 30);
    }
    atomic_store(&s->end, 1);
    for (int i = 0; i < MEMBERS; i++) ok = procs_end(pids[i], 30) == 0 && ok;
    return procs_coordinator_stop(&co) == 0 && ok;
}

/* ---- A newcomer that fetches while the others work, and loses some of them
 * ----------------------------------------------------------------------------------------------- */

#define RATE (40u << 20) /* of each donor, so that the fetch takes long enough to be met */

static int work(int index, struct space *x, rg_group_t *g, rg_state_t *s, const uint64_t *p, int joined) {
    rg_change_t c = RG_CHANGE_INIT;
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    o.touched_only = RG_ON;
    c.joined = joined != 0;
    for (int64_t over = 0; !over;) {
        rg_state_result_t r = RG_STATE_RESULT_INIT;
        rg_status_t st = c.joined ? rg_state_sync(g, s, &o, &r) : RG_OK;
        PROCS_REQUIRE(st == RG_OK, "member %d: %s: %s", index, rg_status_name(st), r.text);
        if (c.joined) PROCS_REQUIRE(is(p, BYTES, 1), "member %d: wrong content", index);
        if (c.joined) x->received[index] += r.pieces_received;
        over = atomic_load(&x->end);
        st = rg_all_reduce(g, &over, &over, 1, RG_I64, RG_MAX, NULL, NULL);
        PROCS_REQUIRE(st == RG_OK, "member %d: %s", index, rg_status_name(st));
        atomic_fetch_add(&x->steps[index], 1);
        st = rg_group_boundary(g, &c);
        PROCS_REQUIRE(st == RG_OK, "member %d: boundary: %s", index, rg_status_name(st));
    }
    return 0;
}

/* All but the last have the content and give it. */
static int background(int index, void *arg) {
    struct space *x = arg;
    rg_group_t *g = NULL;
    rg_error_t err;
    rg_state_t *s;
    uint64_t *p;
    rg_state_serve_opts_t so = RG_STATE_SERVE_OPTS_INIT;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    int has = index < MEMBERS - 1;
    rg_config_t cfg = procs_config(x->address, "background", has ? MEMBERS - 1 : 1, (uint32_t)index);
    PROCS_REQUIRE(rg_state_create(&s, &err) == RG_OK, "no state");
    p = has ? malloc(BYTES) : (uint64_t *)(uintptr_t)x->newcomer;
    PROCS_REQUIRE(rg_state_add(s, "w", p, BYTES / 8, RG_U64, &err) == RG_OK, "no tensor: %s", err.text);
    fill(p, BYTES, has ? 1 : 2);
    rg_state_set_revision(s, has ? 7 : 0);
    so.bytes_per_s = RATE;
    if (has) {
        PROCS_REQUIRE(rg_group_join(&cfg, &g, &err) == RG_OK, "join: %s", err.text);
        PROCS_REQUIRE(rg_state_serve(g, s, &so) == RG_OK, "serve");
    } else {
        PROCS_REQUIRE(rg_state_join(&cfg, s, NULL, &g, &r, &err) == RG_OK, "join: %s", err.text);
        PROCS_REQUIRE(r.revision == 7 && r.rejected == 0 && is(p, BYTES, 1), "fetched revision %llu, %u refused",
                      (unsigned long long)r.revision, r.rejected);
        x->received[index] = r.pieces_received;
        x->retries[index] = r.retries;
    }
    return work(index, x, g, s, p, !has) || close_all(g, s, has ? p : NULL);
}

static int kill_givers(uint32_t lost, uint64_t at_piece, uint32_t *met) {
    struct procs_coordinator co;
    struct space *s;
    volatile uint64_t *newcomer = procs_shared(BYTES);
    pid_t *pids = start(&s, &co, MEMBERS - 1, background);
    if (!pids) return 0;
    s->newcomer = newcomer;
    int ok = PROCS_WAIT(s->steps[0] > 5 && s->steps[1] > 5 && s->steps[2] > 5, 20);
    pids[MEMBERS - 1] = procs_fork(background, MEMBERS - 1, s);
    ok = ok && PROCS_WAIT(newcomer[at_piece << 17] == word_of(1, at_piece << 17), 40);
    for (uint32_t i = 0; i < lost; i++) kill(pids[i], SIGKILL);
    ok = ok && PROCS_WAIT(s->steps[MEMBERS - 1] > 5, 40);
    atomic_store(&s->end, 1);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        int rc = procs_end(pids[i], 30);
        ok = ok && (rc == 0 || (i < lost && rc == 256 + SIGKILL));
    }
    *met += s->retries[MEMBERS - 1];
    if (s->received[MEMBERS - 1] != PIECES) {
        fprintf(stderr, "test_state: %llu pieces came for %u\n", (unsigned long long)s->received[MEMBERS - 1], PIECES);
        ok = 0;
    }
    return procs_coordinator_stop(&co) == 0 && ok;
}

static int givers(void) {
    const char *text = getenv("RG_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : 1;
    uint32_t met = 0;
    int ok = 1;
    for (uint32_t k = 0; k < 3 && ok; k++) ok = kill_givers(k % 3, (word_of(seed, k) >> 20) % (PIECES / 2), &met);
    printf("       %u members of 3 were lost after they had given something\n", met);
    return ok;
}

/* ---- Back from a file
 * ------------------------------------------------------------------------------------------------ */

/* The first life ends with a kill of all; in the second one member has the file. */
static int saver(int index, void *arg) {
    struct space *x = arg;
    rg_group_t *g = NULL;
    rg_error_t err;
    rg_state_t *s;
    uint64_t *p;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    int second = atomic_load(&x->end);
    rg_config_t cfg = procs_config(x->address, second ? "second" : "first", 2, (uint32_t)index);
    PROCS_REQUIRE(open_state(&s, &p, SMALL), "no state");
    fill(p, SMALL, second ? 50 : 3);
    if (!second || index == 1) rg_state_set_revision(s, second ? 0 : 12);
    if (second && index == 1) PROCS_REQUIRE(rg_state_load(s, x->path, &err) == RG_OK, "load: %s", err.text);
    PROCS_REQUIRE(rg_group_join(&cfg, &g, &err) == RG_OK, "join: %s", err.text);
    PROCS_REQUIRE(rg_state_sync(g, s, NULL, &r) == RG_OK, "sync: %s", r.text);
    PROCS_REQUIRE(is(p, SMALL, 3) && rg_state_revision(s) == 12, "member %d: wrong content", index);
    if (second) return close_all(g, s, p);
    if (index == 0) PROCS_REQUIRE(rg_state_save(s, x->path, &err) == RG_OK, "save: %s", err.text);
    atomic_fetch_add(&x->in_sync, 1);
    for (;;) pause(); /* until it is killed */
}

static int from_file(void) {
    struct procs_coordinator co;
    struct space *s = procs_shared(sizeof *s);
    pid_t pids[2];
    if (procs_coordinator_start(&co, 1000)) return 0;
    memcpy(s->address, co.address, sizeof s->address);
    snprintf(s->path, sizeof s->path, "/tmp/regroup-state-%ld", (long)getpid());
    for (int i = 0; i < 2; i++) pids[i] = procs_fork(saver, i, s);
    int ok = PROCS_WAIT(s->in_sync == 2, 30);
    for (int i = 0; i < 2; i++) {
        kill(pids[i], SIGKILL);
        procs_end(pids[i], 5);
    }
    atomic_store(&s->end, 1);
    for (int i = 0; i < 2; i++) pids[i] = procs_fork(saver, i, s);
    for (int i = 0; i < 2; i++) ok = procs_end(pids[i], 30) == 0 && ok;
    unlink(s->path);
    return procs_coordinator_stop(&co) == 0 && ok;
}

void test_state(void) {
    static const struct {
        const char *name;
        int (*run)(void);
    } cases[] = { { "state__donors_killed_in_mid_fetch__only_what_was_under_way_comes_twice", donors },
                  { "state__newcomers_in_a_running_group__have_its_content_at_every_step", newcomers },
                  { "state__givers_killed_while_a_newcomer_fetches__nothing_comes_twice", givers },
                  { "state__all_members_lost__a_new_group_goes_on_from_the_file", from_file } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (procs_wanted(cases[i].name)) procs_case(cases[i].name, cases[i].run());
}
