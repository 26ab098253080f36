/* test_lent_window.c: windows whose memory the transport lends, so that others read it without its owner: reads still
 * show one moment and the right number of additions, wait for the owner's lock, and see nothing of a window that is
 * gone; memory that was not told of is read by messages. It relies on engine_rig.h, and on the transport inproc, which
 * reads while others write, as adapters do. */
#include "engine_rig.h"

#include "../../transports/inproc_hooks.h"
#include "engine/group.h"
#include "regroup_window.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define N 3
#define ELEMS 200000u

static uint64_t id_of(rig_member_t *m, uint32_t rank) {
    uint64_t id = 0;
    rg_group_member(m->g, rank, &id);
    return id;
}

/* Reads that needed nobody's processor but this one's. */
static uint64_t lent_reads(rig_member_t *m) {
    rg_lock(m->g);
    uint64_t n = m->g->lent_reads;
    rg_unlock(m->g);
    return n;
}

static float *lendable(uint64_t n) {
    void *p = NULL;
    if (rg_alloc(n * 4, &p, NULL) != RG_OK) return NULL;
    memset(p, 0, n * 4);
    return p;
}

/* All add ones to all windows and read them all the time, until everything has been added; owners write to their own,
 * too, all elements alike. `arg`: whether the memory is such as can be lent. */
static int all_add(rig_member_t *m, void *arg) {
    const uint32_t rounds = 4 + 24 / RIG_SLOW;
    int lends = *(int *)arg, bad = 0;
    float *mine = lends ? lendable(ELEMS) : calloc(ELEMS, 4), *x = malloc(ELEMS * 4), *ones = malloc(ELEMS * 4);
    rg_window_t *w;
    uint64_t reads = 0;
    for (uint32_t i = 0; i < ELEMS; i++) ones[i] = 1;
    RIG_OK(m, rg_window_register(m->g, 5, mine, ELEMS, &w, NULL));
    if (rig_gate(m, 0, N)) return 1;
    for (uint32_t r = 0; !bad && r < rounds; r++)
        for (uint32_t to = 1; !bad && to < N; to++) {
            uint64_t version = 0, peer = id_of(m, (to + m->index) % N);
            rg_status_t st = rg_window_accumulate(w, peer, 0, ELEMS, ones, 1, 0);
            for (uint32_t k = 0; st == RG_OK && !bad && k < 5; k++, reads++) {
                uint32_t first = k * 1000, n = ELEMS - first;
                st = rg_window_get(w, peer, first, n, x, 0, &version);
                if (st != RG_OK) break;
                for (uint32_t i = 0; !bad && i < n; i++)
                    if (x[i] != x[0] || (double)x[0] < (double)version || version < r + 1)
                        bad = rig_complain(m, __FILE__, __LINE__, "element %u is %g, the first %g, version %llu", i,
                                           (double)x[i], (double)x[0], (unsigned long long)version);
            }
            if (!bad && st != RG_OK) bad = rig_complain(m, __FILE__, __LINE__, "%s", rig_errmsg(m));
            rg_window_lock(w);
            for (uint32_t i = 0; i < ELEMS; i++) mine[i] += 1;
            rg_window_unlock(w);
        }
    if (!bad && rg_window_wait(w, (N - 1) * rounds, 0) != RG_OK)
        bad = rig_complain(m, __FILE__, __LINE__, "%s", rig_errmsg(m));
    for (uint32_t i = 0; !bad && i < ELEMS; i++)
        if (mine[i] != (float)(2 * (N - 1) * rounds)) bad = rig_complain(m, __FILE__, __LINE__, "element %u", i);
    uint64_t lent = lent_reads(m);
    if (!bad && lends && lent < reads / 10)
        bad = rig_complain(m, __FILE__, __LINE__, "%llu of %llu reads without the owner", (unsigned long long)lent,
                           (unsigned long long)reads);
    if (!bad && !lends && lent) bad = rig_complain(m, __FILE__, __LINE__, "memory was lent that was not told of");
    if (!bad) bad = rig_gate(m, 1, N);
    rg_window_destroy(w);
    if (lends) rg_free_memory(mine);
    else free(mine);
    free(x);
    free(ones);
    return bad;
}

Test(lent_window, all_add_and_write_while_all_read__each_read_shows_one_moment) {
    int lends = 1;
    rig_run(N, "inproc", NULL, all_add, &lends);
}

Test(lent_window, memory_that_was_not_told_of__goes_by_messages) {
    int lends = 0;
    rig_run(N, "inproc", NULL, all_add, &lends);
}

/* Until reads need no processor of the owner's, who has been asked by a message before. */
static int get_used_to(rig_member_t *m, rg_window_t *w, uint64_t owner) {
    float x;
    uint64_t before = lent_reads(m), end = rig_now() + 20000000000ull;
    while (lent_reads(m) == before) {
        RIG_OK(m, rg_window_get(w, owner, 0, 1, &x, 0, NULL));
        RIG_NEED(m, rig_now() < end, "it is never lent");
    }
    return 0;
}

/* Bounds as ever; the owner's lock makes readers wait; who has been lent a window that is gone sees nothing of it, also
 * when there is another one of that id, in the same memory. */
static int owner_changes(rig_member_t *m, void *arg) {
    (void)arg;
    float *mine = lendable(100), x[100];
    rg_window_t *w;
    uint64_t version = 9;
    RIG_OK(m, rg_window_register(m->g, 1, mine, 100, &w, NULL));
    uint64_t owner = id_of(m, 0);
    if (rig_gate(m, 0, 2)) return 1;
    if (m->index && get_used_to(m, w, owner)) return 1;
    if (m->index) {
        RIG_NEED(m, rg_window_get(w, owner, 100, 1, x, 0, NULL) == RG_ERR_INVALID, "beyond its end");
        RIG_NEED(m, rg_window_get(w, owner, 0, 101, x, 0, NULL) == RG_ERR_INVALID, "beyond its end");
        RIG_OK(m, rg_window_get(w, owner, 100, 0, NULL, 0, &version));
        RIG_NEED(m, version == 0, "the version");
    }
    if (rig_gate(m, 1, 2)) return 1;
    if (!m->index) rg_window_lock(w);
    if (rig_gate(m, 2, 2)) return 1;
    if (m->index) { /* less than all must not be seen: it does not end before it is allowed */
        RIG_NEED(m, rg_window_get(w, owner, 0, 100, x, 30, NULL) == RG_ERR_TIMEOUT, "%s", rig_errmsg(m));
        rig_pass(m, 3);
        RIG_OK(m, rg_window_get(w, owner, 0, 100, x, 0, NULL));
        for (int i = 0; i < 100; i++) RIG_NEED(m, x[i] == 7, "element %d is %g", i, (double)x[i]);
    } else {
        rig_gate(m, 3, 2);
        for (int i = 0; i < 100; i++) mine[i] = 7;
        rg_window_unlock(w);
    }
    if (rig_gate(m, 4, 2)) return 1;
    for (int round = 0; round < 15; round++) {
        if (!m->index) rg_window_destroy(w);
        if (rig_gate(m, (uint32_t)(5 + 3 * round), 2)) return 1;
        if (m->index && round % 4 == 0)
            RIG_NEED(m, rg_window_get(w, owner, 0, 1, x, 20, NULL) == RG_ERR_TIMEOUT, "there is no window");
        if (rig_gate(m, (uint32_t)(6 + 3 * round), 2)) return 1;
        if (!m->index) {
            for (int i = 0; i < 100; i++) mine[i] = (float)(1000 + round);
            RIG_OK(m, rg_window_register(m->g, 1, mine, 100, &w, NULL));
        }
        for (int k = 0; m->index && k < 3; k++) {
            RIG_OK(m, rg_window_get(w, owner, 0, 100, x, 0, &version));
            RIG_NEED(m, x[99] == (float)(1000 + round) && version == 0, "%g in round %d", (double)x[99], round);
        }
        if (rig_gate(m, (uint32_t)(7 + 3 * round), 2)) return 1;
    }
    rg_window_destroy(w);
    rg_free_memory(mine);
    return 0;
}

Test(lent_window, owner_locks_and_replaces_it__readers_see_what_is_there_now) {
    rig_run(2, "inproc", NULL, owner_changes, NULL);
}

/* The owner's program writes in the middle of a read, so many times. */
static rg_window_t *disturbed;
static float *disturbed_memory;
static int disturbances;

static void disturb(void) {
    if (disturbances-- <= 0) return;
    rg_window_lock(disturbed);
    for (int i = 0; i < 1000; i++) disturbed_memory[i] += 1;
    rg_window_unlock(disturbed);
}

static int written_while_read(rig_member_t *m, void *arg) {
    (void)arg;
    float *mine = lendable(1000), x[1000];
    rg_window_t *w;
    RIG_OK(m, rg_window_register(m->g, 1, mine, 1000, &w, NULL));
    if (!m->index) {
        disturbed = w;
        disturbed_memory = mine;
    }
    uint64_t owner = id_of(m, 0);
    if (rig_gate(m, 0, 2)) return 1;
    if (m->index && get_used_to(m, w, owner)) return 1;
    float sum = 0;
    for (int times = 0; m->index && times < 6; times++) {
        uint64_t before = lent_reads(m), version = 9;
        disturbances = times;
        rg_inproc_half_read = disturb;
        rg_status_t st = rg_window_get(w, owner, 0, 1000, x, 0, &version);
        rg_inproc_half_read = NULL;
        RIG_NEED(m, st == RG_OK && version == 0, "%s", rig_errmsg(m));
        sum += (float)(times < 3 ? times : 3); /* three are tried, and then it is a message */
        for (int i = 0; i < 1000; i++) RIG_NEED(m, x[i] == sum, "%d writes: element %d is %g", times, i, (double)x[i]);
        RIG_NEED(m, lent_reads(m) - before == (uint64_t)(times < 3 ? times + 1 : 3), "%d writes: reads", times);
    }
    if (rig_gate(m, 1, 2)) return 1;
    rg_window_destroy(w);
    rg_free_memory(mine);
    return 0;
}

Test(lent_window, written_in_the_middle_of_a_read__the_read_is_made_again) {
    rig_run(2, "inproc", NULL, written_while_read, NULL);
}

/* The owner dies while others read its memory. */
static int owner_dies(rig_member_t *m, void *arg) {
    (void)arg;
    float *mine = lendable(ELEMS), *x = malloc(ELEMS * 4);
    rg_window_t *w;
    RIG_OK(m, rg_window_register(m->g, 1, mine, ELEMS, &w, NULL));
    uint64_t owner = id_of(m, 0);
    if (rig_gate(m, 0, N)) return 1;
    if (m->index && get_used_to(m, w, owner)) return 1;
    if (rig_gate(m, 1, N)) return 1;
    if (!m->index) {
        rg_group_destroy(m->g);
        m->g = NULL;
    } else {
        rg_status_t st = RG_OK;
        while (st == RG_OK) st = rg_window_get(w, owner, 0, ELEMS, x, 0, NULL);
        RIG_NEED(m, st == RG_ERR_PEER_LOST, "%s: %s", rg_status_name(st), rig_errmsg(m));
        RIG_OK(m, rg_window_get(w, id_of(m, m->index == 1 ? 1 : 0), 0, ELEMS, x, 0, NULL)); /* the other one goes on */
    }
    if (rig_gate(m, 2, N)) return 1;
    rg_window_destroy(w);
    rg_free_memory(mine);
    free(x);
    return 0;
}

Test(lent_window, owner_dies_while_it_is_read__peer_lost) {
    rg_config_t config = RG_CONFIG_INIT;
    config.heartbeat_ms = 1000 * RIG_SLOW;
    rig_run(N, "inproc", &config, owner_dies, NULL);
}
