/* lent.c: see lent.h. A read is a variable of the call that waits for it, in a list that whoever drives looks it up in
 * by its number: one that was given up is not found. It relies on unfetch() to keep what was given up from touching
 * anything. It must not return while the transport has a buffer of the caller's. */
#include "engine/lent.h"

#include "memory.h"

#define COOKIE (0xc0dfull << 48) /* no operation's, and nobody else's */
#define NUMBER ((1ull << 48) - 1)

typedef struct rg_fetching {
    struct rg_fetching *next;
    uint64_t cookie;
    int ended, good;
} fetching_t;

int rg_lent_possible(rg_group_t *g, const void *memory, uint64_t bytes) {
    return bytes && g->tp_ops->lend && rg_memory_find(memory, bytes, &(rg_memory_range_t){ 0 });
}

static int may_use(const rg_group_t *g) { return g->phase == RG_PHASE_MEMBER && g->tp && g->tp_ops->lend; }

/* What another thread gave to the transport: the driver may sleep on what was there before. */
static void nudge(rg_group_t *g) {
    rg_wake(g);
    if (g->driver == RG_DRIVER_NONE) rg_wake_thread(g);
}

int rg_lent_to(rg_group_t *g, uint64_t peer, const rg_tp_lend_t *lend) {
    rg_lock(g);
    uint32_t link = may_use(g) ? rg_link_of(g, peer) : UINT32_MAX;
    int is_lent = link != UINT32_MAX && g->tp_ops->lend(g->tp, link, lend);
    if (is_lent) nudge(g);
    rg_unlock(g);
    return is_lent;
}

void rg_lent_back(rg_group_t *g, uint64_t name) {
    rg_lock(g);
    if (g->tp && g->tp_ops->lend) {
        g->tp_ops->reclaim(g->tp, name);
        nudge(g);
    }
    rg_unlock(g);
}

static int is_member(const rg_group_t *g, uint64_t id) {
    const rg_core_view_t *v = rg_member_view(g->core);
    for (uint32_t i = 0; v && i < v->n; i++)
        if (v->members[i].id == id) return 1;
    return 0;
}

int rg_lent_completion(rg_group_t *g, const rg_completion_t *c) {
    if (c->cookie >> 48 != COOKIE >> 48 || (c->event != RG_TP_RECEIVED && c->event != RG_TP_FAILED)) return 0;
    for (fetching_t *k = g->fetching; k; k = k->next) {
        if (k->cookie != c->cookie) continue;
        k->good = c->event == RG_TP_RECEIVED;
        k->ended = 1;
        g->lent_reads += (uint64_t)k->good;
        rg_wake_callers(g);
    }
    return 1;
}

static int has_ended(void *arg) { return ((const fetching_t *)arg)->ended; }

int rg_lent_fetch(rg_group_t *g, uint64_t peer, rg_tp_fetch_t *f, uint64_t deadline_ns) {
    fetching_t here = { 0 }, **at = &g->fetching;
    rg_lock(g);
    uint32_t link = may_use(g) && is_member(g, peer) ? rg_link_of(g, peer) : UINT32_MAX;
    f->cookie = here.cookie = COOKIE | (++g->last_fetch & NUMBER);
    if (link == UINT32_MAX || !g->tp_ops->fetch(g->tp, link, f)) {
        rg_unlock(g);
        return 0;
    }
    here.next = g->fetching;
    g->fetching = &here;
    nudge(g);
    rg_drive(g, has_ended, &here, deadline_ns);
    if (!here.ended && g->tp) g->tp_ops->unfetch(g->tp, link, f->cookie);
    while (*at != &here) at = &(*at)->next;
    *at = here.next;
    rg_unlock(g);
    return here.good;
}
