/* lent_window.c: reads of windows in which the owner's processor has no part: a member that has asked for elements by a
 * message is lent the memory, where the transport can do that, and reads it from then on. Whoever writes there counts
 * before and after: a read that met the same even count at both ends shows one moment, and any other is made again, or
 * by a message, which waits for the owner's lock. (Lamport: Concurrent Reading and Writing, 1977.) Additions stay
 * messages: no adapter adds floats, and none could do a row of them once and as a whole. It relies on engine/lent.h. It
 * must hand out nothing that the stamps do not vouch for, and must not take the group's lock while the stamp says that
 * the memory changes. */
#include "quorum/window.h"

#include "engine/lent.h"

#include <stdlib.h>
#include <string.h>

#define TRIES 3

enum { AT_COUNT, AT_VERSION, AT_CHECK }; /* words of the stamp; the count of changes is odd during one */

/* What has been written is seen by everybody, adapters too, before what follows is. */
static void barrier(void) {
#if defined(__x86_64__)
    __asm__ volatile("mfence" ::: "memory");
#elif defined(__aarch64__)
    __asm__ volatile("dmb osh" ::: "memory");
#else
    __sync_synchronize();
#endif
}

/* An adapter need not read the three words, nor even one, as they were at one time: they belong together, or it is a
 * stamp of no moment. */
static uint64_t check_of(uint64_t count, uint64_t version) {
    uint64_t h = (count ^ 0x77696e646f77ull) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 29 ^ version) * 0xbf58476d1ce4e5b9u;
    return h ^ h >> 32;
}

/* The memory is locked, or nobody else has it. */
static void stamp_put(rg_window_t *w, uint64_t count) {
    uint64_t version = atomic_load(&w->count);
    __atomic_store_n(&w->stamp[AT_COUNT], count, __ATOMIC_RELAXED);
    __atomic_store_n(&w->stamp[AT_VERSION], version, __ATOMIC_RELAXED);
    __atomic_store_n(&w->stamp[AT_CHECK], check_of(count, version), __ATOMIC_RELAXED);
}

/* The stamp has memory of its own: it must be there, and be true, for as long as anybody may read it, which is longer
 * than the window is; the transport holds what it has lent. */
void rg_window_lend(rg_window_t *w, rg_group_t *root) {
    void *p = NULL;
    if (!rg_lent_possible(root, w->memory, w->bytes) || rg_alloc(RG_TP_STAMP * sizeof *w->stamp, &p, NULL) != RG_OK)
        return;
    w->stamp = p;
    stamp_put(w, 0);
    barrier();
}

void rg_window_changes(rg_window_t *w) {
    if (!w->stamp) return;
    stamp_put(w, w->stamp[AT_COUNT] + 1);
    barrier();
}

void rg_window_settled(rg_window_t *w) {
    if (!w->stamp) return;
    barrier();
    stamp_put(w, w->stamp[AT_COUNT] + 1);
}

/* Without memory for the list it is tried again, which costs a lock. */
static void remember_not_lent(rg_window_t *w, uint64_t peer) {
    if (w->n_not_lent == w->cap_not_lent) {
        uint32_t cap = w->cap_not_lent ? 2 * w->cap_not_lent : 16;
        uint64_t *grown = realloc(w->not_lent, cap * sizeof *grown);
        if (!grown) return;
        w->not_lent = grown;
        w->cap_not_lent = cap;
    }
    w->not_lent[w->n_not_lent++] = peer;
}

void rg_window_lend_to(rg_window_t *w, uint64_t peer) {
    const rg_tp_lend_t lend = { .name = w->port.name, .memory = w->memory, .bytes = w->bytes, .stamp = w->stamp };
    if (!w->stamp || w->port.sv->line) return;
    for (uint32_t i = 0; i < w->n_not_lent; i++)
        if (w->not_lent[i] == peer) return;
    if (!rg_lent_to(w->port.sv->g, peer, &lend)) remember_not_lent(w, peer);
}

/* It changes from now on, for ever. */
void rg_window_unlend(rg_window_t *w, rg_group_t *g) {
    if (!w->stamp) return;
    stamp_put(w, w->stamp[AT_COUNT] | 1);
    barrier();
    if (g) rg_lent_back(g, w->port.name);
}

static int of_a_moment(const uint64_t stamp[RG_TP_STAMP]) {
    return stamp[AT_COUNT] % 2 == 0 && stamp[AT_CHECK] == check_of(stamp[AT_COUNT], stamp[AT_VERSION]);
}

int rg_window_peek(rg_window_t *w, uint64_t peer, uint64_t off, uint64_t bytes, void *to, uint64_t deadline_ns,
                   uint64_t *version) {
    uint64_t before[RG_TP_STAMP], after[RG_TP_STAMP];
    rg_tp_fetch_t f = { .name = w->port.name, .off = off, .len = bytes, .dst = to, .before = before, .after = after };
    for (int i = 0; i < TRIES; i++) {
        if (!rg_lent_fetch(w->port.sv->g, peer, &f, deadline_ns)) return 0;
        if (of_a_moment(before) && memcmp(before, after, sizeof before) == 0) {
            *version = before[AT_VERSION];
            return 1;
        }
        if (before[AT_COUNT] % 2) return 0; /* it is locked: a message waits for that */
    }
    return 0;
}
