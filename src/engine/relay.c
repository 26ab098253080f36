/* relay.c: paths that lead through a third member, as the core says: which link of this member takes another way, and
 * whom this member brings together. It relies on the group's lock, and on a transport that can do either; with one that
 * cannot the link stays as it is and the coordinator hears nothing of a relay, as of one that does not work. It must
 * not decide who relays. */
#include "engine/group.h"

#include <string.h>

static const rg_link_t *link_to(const rg_group_t *g, uint64_t id) {
    uint32_t i = rg_link_of(g, id);
    return i == UINT32_MAX ? NULL : &g->links[i];
}

/* The link to a->peer goes through a->via; 0: it is direct again, or not there. */
void rg_relay_route(rg_group_t *g, const rg_member_action_t *a) {
    uint32_t i = rg_link_of(g, a->peer);
    const rg_link_t *relay = a->via ? link_to(g, a->via) : NULL;
    if (i == UINT32_MAX || !g->tp_ops->route || (a->via && !relay)) return;
    g->links[i].via = a->via;
    if (!relay) {
        RG_LOGF(&g->log, RG_LOG_INFO, "link to member %llu: no relay any more", (unsigned long long)a->peer);
        g->tp_ops->route(g->tp, i, NULL);
        return;
    }
    rg_tp_peer_t p = { .addr = relay->addr, .addr_len = relay->addr_len, .dial = 1 };
    memcpy(p.identity, relay->identity, sizeof p.identity);
    RG_LOGF(&g->log, RG_LOG_INFO, "link to member %llu: to go through member %llu", (unsigned long long)a->peer,
            (unsigned long long)a->via);
    g->tp_ops->route(g->tp, i, &p);
}

/* This member is to relay between a->peer and a->via. */
void rg_relay_between(rg_group_t *g, const rg_member_action_t *a) {
    const rg_link_t *x = link_to(g, a->peer), *y = link_to(g, a->via);
    if (!x || !y || !g->tp_ops->relay) return;
    RG_LOGF(&g->log, RG_LOG_INFO, "%s for members %llu and %llu", a->on ? "relaying" : "no relay any more",
            (unsigned long long)a->peer, (unsigned long long)a->via);
    g->tp_ops->relay(g->tp, x->identity, y->identity, (int)a->on);
}
