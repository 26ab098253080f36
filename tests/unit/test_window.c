/* test_window.c: windows: that a read shows one moment and an addition is done once and as a whole, while others read
 * and add, pieces of any size; locks, counts, members that die or have no window, and what is refused. It relies on
 * engine_rig.h. */
#include "engine_rig.h"

#include "regroup_window.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 3
#define ELEMS 200000u /* several pieces */

static uint64_t id_of(rig_member_t *m, uint32_t rank) {
    uint64_t id = 0;
    rg_group_member(m->g, rank, &id);
    return id;
}

/* Everybody adds ones to everybody's window, as a whole and to its ends, and reads meanwhile. */
static int all_add(rig_member_t *m, void *arg) {
    uint32_t rounds = *(uint32_t *)arg;
    float *mine = calloc(ELEMS, 4), *x = malloc(ELEMS * 4);
    rg_window_t *w;
    int bad = 0;
    RIG_OK(m, rg_window_register(m->g, 5, mine, ELEMS, &w, NULL));
    for (uint32_t i = 0; i < ELEMS; i++) x[i] = 0.5f;
    for (uint32_t r = 0; !bad && r < rounds; r++)
        for (uint32_t to = 0; !bad && to < N; to++) {
            uint64_t version = 0, peer = id_of(m, (to + m->index) % N);
            for (uint32_t i = 0; i < ELEMS; i++) x[i] = 0.5f;
            rg_status_t st = rg_window_accumulate(w, peer, 0, ELEMS, x, 2, 0);
            if (st == RG_OK) st = rg_window_get(w, peer, 0, ELEMS, x, 0, &version);
            if (st != RG_OK) bad = rig_complain(m, __FILE__, __LINE__, "%s", rig_errmsg(m));
            for (uint32_t i = 0; !bad && i < ELEMS; i++)
                if (x[i] != (float)version || version < r + 1)
                    bad = rig_complain(m, __FILE__, __LINE__, "element %u is %g in version %llu", i, (double)x[i],
                                       (unsigned long long)version);
        }
    if (!bad && rg_window_wait(w, N * rounds, 0) != RG_OK)
        bad = rig_complain(m, __FILE__, __LINE__, "%s", rig_errmsg(m));
    rg_window_lock(w);
    for (uint32_t i = 0; !bad && i < ELEMS; i++)
        if (mine[i] != (float)(N * rounds)) bad = rig_complain(m, __FILE__, __LINE__, "element %u", i);
    rg_window_unlock(w);
    if (!bad && rg_window_count(w) != N * rounds) bad = rig_complain(m, __FILE__, __LINE__, "the count");
    if (!bad) bad = rig_gate(m, 0, N);
    rg_window_destroy(w);
    free(mine);
    free(x);
    return bad;
}

static void run_all_add(const char *transport, uint32_t rounds) { rig_run(N, transport, NULL, all_add, &rounds); }

Test(window, all_add_and_read__tcp__whole_and_once) { run_all_add("tcp", 8); }
Test(window, all_add_and_read__shared_memory__whole_and_once) { run_all_add("shm", 8); }

static int limits(rig_member_t *m, void *arg) {
    (void)arg;
    float mine[10] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }, x[10] = { 0 };
    rg_window_t *w, *other;
    rg_error_t err;
    uint64_t version = 9;
    RIG_OK(m, rg_window_register(m->g, 1, mine, m->index ? 10 : 0, &w, &err));
    RIG_NEED(m, rg_window_register(m->g, 1, mine, 3, &other, &err) == RG_ERR_INVALID && strstr(err.text, "in use"),
             "%s", err.text);
    RIG_NEED(m, rg_window_register(m->g, 2, NULL, 3, &other, &err) == RG_ERR_INVALID, "no memory");
    if (rig_gate(m, 0, 2)) return 1;
    uint64_t peer = id_of(m, 1 - m->index), beyond = m->index ? 0 : 10;
    RIG_NEED(m, rg_window_get(w, peer, beyond, 1, x, 0, NULL) == RG_ERR_INVALID && strstr(rig_errmsg(m), "beyond"),
             "%s", rig_errmsg(m));
    RIG_NEED(m, rg_window_accumulate(w, peer, beyond, 1, x, 1, 0) == RG_ERR_INVALID, "beyond its end");
    RIG_NEED(m, rg_window_get(w, peer, UINT64_MAX, 1, x, 0, NULL) == RG_ERR_INVALID, "far beyond");
    RIG_NEED(m, rg_window_get(w, peer, 0, 1, NULL, 0, NULL) == RG_ERR_INVALID, "to is NULL");
    RIG_NEED(m, rg_window_get(w, 999999, 0, 1, x, 0, NULL) == RG_ERR_PEER_LOST, "no such member");
    RIG_OK(m, rg_window_get(w, peer, beyond, 0, NULL, 0, &version));
    RIG_NEED(m, version == 0, "version");
    RIG_NEED(m, rg_window_wait(w, 1, 30) == RG_ERR_TIMEOUT, "nothing was added");
    if (!m->index) {
        RIG_OK(m, rg_window_get(w, peer, 7, 3, x, 0, NULL));
        RIG_NEED(m, x[0] == 8 && x[2] == 10, "%g", (double)x[0]);
    } else {
        RIG_NEED(m, rg_window_get(w, id_of(m, 1), 8, 3, x, 0, NULL) == RG_ERR_INVALID, "beyond the own end");
        RIG_OK(m, rg_window_get(w, id_of(m, 1), 8, 2, x, 0, NULL));
        RIG_NEED(m, x[1] == 10, "%g", (double)x[1]);
    }
    if (rig_gate(m, 1, 2)) return 1;
    rg_window_destroy(w);
    rg_window_destroy(NULL);
    if (rig_gate(m, 2, 2)) return 1;
    if (!m->index) { /* the other one has none any more */
        RIG_OK(m, rg_window_register(m->g, 1, mine, 0, &w, &err));
        RIG_NEED(m, rg_window_get(w, peer, 0, 1, x, 100, NULL) == RG_ERR_TIMEOUT && strstr(rig_errmsg(m), "no window"),
                 "%s", rig_errmsg(m));
        rg_window_destroy(w);
    }
    return rig_gate(m, 3, 2);
}

Test(window, limits_and_bad_calls__two_members__are_refused) { rig_run(2, "tcp", NULL, limits, NULL); }

/* The owner holds the lock: readers wait, and see what it wrote as a whole; then it dies. */
static int locked(rig_member_t *m, void *arg) {
    (void)arg;
    float mine[100] = { 0 }, x[100];
    rg_window_t *w;
    RIG_OK(m, rg_window_register(m->g, 1, mine, 100, &w, NULL));
    uint64_t owner = id_of(m, 0);
    if (!m->index) rg_window_lock(w);
    if (rig_gate(m, 0, N)) return 1;
    if (!m->index) {
        for (int i = 0; i < 100; i++) mine[i] = 7;
        rg_window_unlock(w);
    } else {
        RIG_OK(m, rg_window_get(w, owner, 0, 100, x, 0, NULL));
        for (int i = 0; i < 100; i++) RIG_NEED(m, x[i] == 7, "element %d is %g", i, (double)x[i]);
    }
    if (rig_gate(m, 1, N)) return 1;
    if (!m->index) {
        rg_window_lock(w); /* so that the others are in the middle of it */
        if (rig_gate(m, 2, N)) return 1;
        rg_window_unlock(w);
        rg_group_destroy(m->g);
        m->g = NULL;
        RIG_NEED(m, rg_window_get(w, owner, 0, 1, x, 0, NULL) == RG_ERR_CLOSED, "the group is gone");
    } else {
        rig_pass(m, 2);
        rg_status_t st = RG_OK;
        while (st == RG_OK) st = rg_window_accumulate(w, owner, 0, 100, x, 1, 0);
        RIG_NEED(m, st == RG_ERR_PEER_LOST, "%s: %s", rg_status_name(st), rig_errmsg(m));
    }
    rg_window_destroy(w);
    return 0;
}

typedef struct holder {
    rg_window_t *w;
    atomic_int locked, asked;
} holder_t;

static void *hold_until_asked(void *arg) {
    holder_t *h = arg;
    rg_window_lock(h->w);
    atomic_store(&h->locked, 1);
    while (!atomic_load(&h->asked)) sched_yield();
    rg_window_unlock(h->w);
    return NULL;
}

/* The program's lock is on for its own calls too, which end in time all the same, of the thread that has it as well. */
static int own_locked(rig_member_t *m, void *arg) {
    (void)arg;
    float mine[4] = { 1, 2, 3, 4 }, x[4] = { 0 };
    rg_window_t *w;
    RIG_OK(m, rg_window_register(m->g, 1, mine, 4, &w, NULL));
    uint64_t self = id_of(m, 0);
    rg_window_lock(w);
    RIG_NEED(m, rg_window_get(w, self, 0, 4, x, 30, NULL) == RG_ERR_TIMEOUT && strstr(rig_errmsg(m), "locked"), "%s",
             rig_errmsg(m));
    RIG_NEED(m, rg_window_accumulate(w, self, 0, 4, x, 1, 30) == RG_ERR_TIMEOUT, "%s", rig_errmsg(m));
    RIG_NEED(m, x[0] == 0 && rg_window_count(w) == 0, "a call that was too late did something");
    rg_window_unlock(w);
    holder_t h = { .w = w };
    pthread_t t;
    RIG_NEED(m, pthread_create(&t, NULL, hold_until_asked, &h) == 0, "no thread");
    while (!atomic_load(&h.locked)) sched_yield();
    atomic_store(&h.asked, 1);
    rg_status_t st = rg_window_accumulate(w, self, 0, 4, mine, 1, 0);
    pthread_join(t, NULL);
    RIG_OK(m, st);
    RIG_OK(m, rg_window_get(w, self, 0, 4, x, 0, NULL));
    RIG_NEED(m, x[3] == 8 && rg_window_count(w) == 1, "%g", (double)x[3]);
    rg_window_lock(w); /* the end of the group ends them at once */
    rg_group_abort(m->g);
    RIG_NEED(m, rg_window_get(w, self, 0, 4, x, 60000, NULL) == RG_ERR_ABORTED, "%s", rig_errmsg(m));
    rg_window_unlock(w);
    rg_window_destroy(w);
    return 0;
}

Test(window, own_calls_while_it_is_locked__end_in_time) { rig_run(1, "tcp", NULL, own_locked, NULL); }

/* Another thread of the parent's has the lock at the fork: there is nobody in the child who would give it back. */
static int forked(rig_member_t *m, void *arg) {
    (void)arg;
    float mine[4] = { 0 };
    rg_window_t *w;
    int status = 0;
    RIG_OK(m, rg_window_register(m->g, 1, mine, 4, &w, NULL));
    rg_window_lock(w);
    pid_t child = fork();
    if (!child) {
        alarm(10);
        rg_window_lock(w);
        rg_window_unlock(w);
        rg_window_lock(w);
        _exit(7);
    }
    RIG_NEED(m, waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7, "status %#x",
             (unsigned)status);
    rg_window_unlock(w);
    rg_window_destroy(w);
    return 0;
}

Test(window, locked_while_it_forks__child__does_not_wait) { rig_run(1, "tcp", NULL, forked, NULL); }

Test(window, owner_locks_and_dies__readers_wait_then_peer_lost) {
    rg_config_t config = RG_CONFIG_INIT;
    config.heartbeat_ms = 1000 * RIG_SLOW;
    rig_run(N, "tcp", &config, locked, NULL);
}
