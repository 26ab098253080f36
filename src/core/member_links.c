/* member_links.c: how a process gets in (JOIN, PEERS, READY) and what it knows of its links to the others. It relies
 * on the runtime to make and break links as CONNECT and DISCONNECT say. It must not decide who is a member: links are
 * facts for the coordinator, no more. Section 6 of docs/protocol.md. */
#include "assume.h"
#include "core/member.h"

#include <string.h>

#define READY_EVERY_NS 20000000u
#define REDIAL_NS 200000000u

void rg_peer_forget(rg_member_t *m, rg_peer_t *p) {
    rg_act_t *a = rg_member_act(m, RG_MACT_DISCONNECT);
    a->peer = p->m.id;
    rg_idmap_del(&m->peer_map, p->m.id);
    p->used = 0;
    m->ready_dirty = 1;
    while (m->peers_high && !m->peers[m->peers_high - 1].used) m->peers_high--;
}

/* but_up: those that are up stay. */
void rg_links_forget(rg_member_t *m, int but_up) {
    for (uint32_t i = m->peers_high; i-- > 0;)
        if (m->peers[i].used && !(but_up && m->peers[i].link == RG_LINK_UP)) rg_peer_forget(m, &m->peers[i]);
}

/* J1. Every connection without membership starts from nothing: the coordinator has forgotten the candidate that had
 * the old connection. With succession that may have become a member without hearing of it (G6), and its links would
 * cost it its place if they broke: they stay until the answer tells which of the two it is. */
void rg_links_join(rg_member_t *m) {
    if (!m->succession) rg_links_forget(m, 0);
    if (m->id) m->was = m->id;
    m->phase = RG_PH_NEW;
    m->id = 0;
    m->upto = 0;
    m->full_known = 0;
    rg_msg_join_t j = { .host = m->p.host,
                        .site = m->p.site,
                        .cores = m->p.cores,
                        .pid = m->p.pid,
                        .min_size = m->p.min_size,
                        .order = m->p.order,
                        .fixed_n = m->p.fixed_n,
                        .fixed_rank = m->p.fixed_rank,
                        .addr_len = (uint16_t)m->p.addr_len };
    memcpy(j.group, m->p.group, sizeof j.group);
    memcpy(j.label, m->p.label, sizeof j.label);
    memcpy(j.identity, m->p.identity, sizeof j.identity);
    memcpy(j.addr, m->p.addr, m->p.addr_len);
    rg_w_t w = rg_member_begin(m);
    rg_w_join(&w, &j);
    rg_member_send(m, &w);
}

/* ---- PEERS ----------------------------------------------------------------------------------------------------- */

static void connect_peer(rg_member_t *m, rg_peer_t *p) {
    rg_act_t *a = rg_member_act(m, RG_MACT_CONNECT);
    a->peer = p->m.id;
    a->member = &p->m;
    a->dial = p->dial;
    p->redial_ns = 0;
}

int rg_links_add(rg_member_t *m, const rg_core_member_t *rec) {
    if (rec->id == m->id || !rec->id) return 1;
    rg_peer_t *p = rg_peer_find(m, rec->id);
    if (p) { /* told twice, after a new connection */
        p->missed = 0;
        return 1;
    }
    uint32_t slot = 0;
    RG_ASSUME(m->peers); /* since rg_member_init() */
    while (slot < m->peers_high && m->peers[slot].used) slot++;
    if (slot == m->peers_cap) return 0; /* more than the coordinator may have: this link is never reported as up */
    if (slot == m->peers_high) m->peers_high++;
    p = &m->peers[slot];
    memset(p, 0, sizeof *p);
    p->used = 1;
    p->rank = -1;
    p->m = *rec;
    p->dial = m->id > rec->id; /* the younger one dials: it can rely on the older one to know it by then */
    rg_idmap_put(&m->peer_map, rec->id, slot);
    connect_peer(m, p);
    m->ready_dirty = 1;
    return 1;
}

/* A full list is the truth about candidates: whoever is not in it is gone, unless a view says otherwise. With
 * succession it may be that of an office which does not know yet what was proposed before: the next view tells. */
static void peers_sweep(rg_member_t *m) {
    for (uint32_t i = m->peers_high; i-- > 0;) {
        rg_peer_t *p = &m->peers[i];
        p->missed = p->used && p->rank < 0 && !(p->complained & 2);
        p->complained &= 1;
        if (p->missed && !(m->succession && m->phase == RG_PH_MEMBER && p->link == RG_LINK_UP)) rg_peer_forget(m, p);
    }
}

/* Nor does a process that has come again as another keep its former link. */
static void peers_replace(rg_member_t *m, rg_r_t r) {
    uint32_t n = rg_r_u32(&r), missed = 0;
    rg_core_member_t rec;
    rg_r_u32(&r);
    for (uint32_t i = 0; i < m->peers_high; i++) missed += m->peers[i].used && m->peers[i].missed;
    for (uint32_t k = 0; k < n && missed && !r.bad; k++) {
        rg_r_peer(&r, &rec);
        for (uint32_t i = m->peers_high; i-- > 0 && !r.bad;) {
            rg_peer_t *p = &m->peers[i];
            if (p->used && p->missed && p->m.id != rec.id && memcmp(p->m.identity, rec.identity, 16) == 0)
                rg_peer_forget(m, p);
        }
    }
}

/* A view is active: who was missed and is not in it either is gone. */
void rg_links_settle(rg_member_t *m) {
    for (uint32_t i = m->peers_high; i-- > 0;) {
        rg_peer_t *p = &m->peers[i];
        if (p->used && p->missed && p->rank < 0) rg_peer_forget(m, p);
        p->missed = 0;
    }
}

static int peers_read(rg_member_t *m, rg_r_t r, int apply, int full) {
    uint32_t n = rg_r_u32(&r), gone = rg_r_u32(&r);
    if (n > 2 * m->p.max_members || gone > 2 * m->p.max_members) return 0;
    rg_core_member_t rec;
    for (uint32_t i = 0; i < n && !r.bad; i++) {
        rg_r_peer(&r, &rec);
        if (r.bad || !apply) continue;
        if (full) {
            rg_peer_t *p = rg_peer_find(m, rec.id);
            if (p) p->complained |= 2; /* seen; taken away again by the sweep */
        }
    }
    for (uint32_t i = 0; i < gone && !r.bad; i++) {
        rg_peer_t *p = rg_peer_find(m, rg_r_u64(&r));
        if (apply && p && p->rank < 0) rg_peer_forget(m, p);
    }
    return rg_r_end(&r);
}

static void peers_add_all(rg_member_t *m, rg_r_t r) {
    uint32_t n = rg_r_u32(&r);
    rg_r_u32(&r);
    rg_core_member_t rec;
    for (uint32_t i = 0; i < n && !r.bad; i++) {
        rg_r_peer(&r, &rec);
        if (!r.bad) rg_links_add(m, &rec);
    }
}

/* J2. Goes over the message three times: the first only proves that it is whole. Removals come before additions, so
 * that the pointers which CONNECT actions carry stay right. */
void rg_links_peers(rg_member_t *m, rg_r_t *r) {
    if (m->phase != RG_PH_CANDIDATE && m->phase != RG_PH_MEMBER) return;
    int full = rg_r_u8(r);
    uint64_t upto = rg_r_u64(r);
    if (r->bad || !peers_read(m, *r, 0, 0)) return;
    peers_read(m, *r, 1, full);
    if (full) peers_sweep(m);
    peers_replace(m, *r);
    peers_add_all(m, *r);
    if (upto > m->upto) {
        m->upto = upto;
        m->ready_dirty = 1;
    }
    m->full_known = 1;
    rg_links_ready(m);
}

/* ---- READY ----------------------------------------------------------------------------------------------------- */

/* J3. Says up to which id the list is known and which links of it are missing; at once when none is, else now and
 * then, so that one that never comes up does not hold up the others. */
void rg_links_ready(rg_member_t *m) {
    m->ready_at = UINT64_MAX;
    if (m->phase != RG_PH_CANDIDATE || !m->full_known || !m->ready_dirty || !m->control_up || m->p.hold) return;
    uint64_t missing[RG_MISSING_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->peers_high; i++) {
        if (!m->peers[i].used || m->peers[i].link == RG_LINK_UP) continue;
        if (n == RG_MISSING_MAX) return; /* too early to say anything: the next link that comes up looks again */
        missing[n++] = m->peers[i].m.id;
    }
    if (n && m->now < m->ready_last + READY_EVERY_NS) {
        m->ready_at = m->ready_last + READY_EVERY_NS;
        return;
    }
    m->ready_dirty = 0;
    m->ready_last = m->now;
    rg_w_t w = rg_member_begin(m);
    rg_w_header(&w, RG_MSG_READY);
    rg_w_u64(&w, m->upto);
    rg_w_bytes(&w, m->net, RG_CORE_NET);
    rg_w_u32(&w, n);
    for (uint32_t i = 0; i < n; i++) rg_w_u64(&w, missing[i]);
    rg_member_send(m, &w);
}

/* J3. Whoever holds is linked to everybody like any candidate, and silent about it. */
int rg_member_holding(const rg_member_t *m) {
    if (!m->p.hold || m->phase != RG_PH_CANDIDATE || !m->full_known) return 0;
    for (uint32_t i = 0; i < m->peers_high; i++)
        if (m->peers[i].used && m->peers[i].link != RG_LINK_UP) return 1;
    return 2;
}

void rg_links_release(rg_member_t *m) {
    m->p.hold = 0;
    m->ready_dirty = 1;
    rg_links_ready(m);
}

/* ---- Links ----------------------------------------------------------------------------------------------------- */

static void send_link(rg_member_t *m, const rg_peer_t *p) {
    if (m->phase == RG_PH_NEW) return; /* nobody there knows yet who says so */
    rg_w_t w = rg_member_begin(m);
    rg_w_header(&w, RG_MSG_LINK);
    rg_w_u64(&w, p->m.id);
    rg_w_u8(&w, (uint8_t)((p->link == RG_LINK_UP ? RG_LINK_IS_UP : 0) | (p->dead ? RG_LINK_IS_DEAD : 0) |
                          (p->lost ? RG_LINK_LOST : 0)));
    rg_w_u64(&w, p->via);
    rg_w_text(&w, p->text, sizeof p->text);
    rg_member_send(m, &w);
}

static void redial_at(rg_member_t *m, rg_peer_t *p, uint64_t at) {
    p->redial_ns = at;
    if (at < m->redial_at) m->redial_at = at;
}

/* With a reconnect time the link has that to go on where it stopped: the other end may be a member already, and may
 * have sent what only this link will bring. After that, and without it, the link is made anew. */
static void candidate_down(rg_member_t *m, rg_peer_t *p) {
    if (m->reconnect_ns && p->was_up) {
        if (!p->redial_ns) redial_at(m, p, m->now + m->reconnect_ns);
        return;
    }
    if (p->missed) {
        rg_peer_forget(m, p);
        return;
    }
    rg_member_act(m, RG_MACT_DISCONNECT)->peer = p->m.id;
    if (p->dial) redial_at(m, p, m->now + REDIAL_NS);
    else connect_peer(m, p);
}

/* L1. Between members a broken link is the coordinator's business. A link to or from a candidate is simply made
 * again: nothing depends on it yet. */
void rg_links_event(rg_member_t *m, const rg_member_event_t *ev) {
    rg_peer_t *p = rg_peer_find(m, ev->peer);
    if (!p || m->phase == RG_PH_OVER) return;
    int candidate = p->rank < 0 || m->phase != RG_PH_MEMBER;
    if (ev->type == RG_MEV_LINK_UP) {
        /* L9. Between members of a view there may have been something on it. Without a reconnect time no link goes on
         * where another one stopped. */
        int anew = ev->fresh || (p->complained && !m->reconnect_ns);
        if (anew && p->rank >= 0 && m->phase == RG_PH_MEMBER) p->lost = 1;
        int tell = p->complained || p->lost || p->via != ev->via;
        p->link = RG_LINK_UP;
        p->was_up = 1;
        p->redial_ns = 0;
        p->via = ev->via;
        p->dead = 0;
        if (tell) send_link(m, p);
        p->complained = 0;
    } else {
        if (p->link != RG_LINK_DOWN) p->down_ns = m->now;
        p->link = RG_LINK_DOWN;
        p->dead = ev->dead != 0;
        rg_text_copy(p->text, sizeof p->text, ev->text);
        p->complained = 1;
        send_link(m, p);
        if (candidate) candidate_down(m, p);
    }
    m->ready_dirty = 1;
    rg_links_ready(m);
}

void rg_links_redial(rg_member_t *m) {
    m->redial_at = UINT64_MAX;
    for (uint32_t i = 0; i < m->peers_high; i++) {
        rg_peer_t *p = &m->peers[i];
        if (!p->used || !p->redial_ns || p->link == RG_LINK_UP) continue;
        if (m->now < p->redial_ns) {
            redial_at(m, p, p->redial_ns);
            continue;
        }
        int between_members = p->rank >= 0 && m->phase == RG_PH_MEMBER;
        int anew = m->reconnect_ns && p->was_up;
        p->redial_ns = 0;
        if (anew && between_members) continue; /* from here on a matter for the coordinator */
        if (p->missed) {
            rg_peer_forget(m, p);
            continue;
        }
        if (anew) rg_member_act(m, RG_MACT_DISCONNECT)->peer = p->m.id;
        if (anew) p->was_up = 0;
        connect_peer(m, p);
    }
}

/* After a new connection and after an activation the coordinator may not know of links that were already down, nor a
 * new one of those that are relayed. */
void rg_links_complain_again(rg_member_t *m) {
    for (uint32_t i = 0; i < m->view.n; i++) {
        if (i == m->self_rank) continue;
        rg_peer_t *p = rg_peer_find(m, m->view.members[i].id);
        if (!p || (p->link != RG_LINK_DOWN && !p->via && !p->lost)) continue;
        if (p->link == RG_LINK_DOWN) p->complained = 1;
        send_link(m, p);
    }
}

/* L9. A new data epoch begins with new streams. */
void rg_links_begin_anew(rg_member_t *m) {
    for (uint32_t i = 0; i < m->peers_high; i++) m->peers[i].lost = 0;
}

/* L5, L6. What is not known here any more has no need of a route. */
void rg_links_route(rg_member_t *m, rg_r_t *r) {
    uint64_t a = rg_r_u64(r), b = rg_r_u64(r), via = rg_r_u64(r);
    int on = rg_r_u8(r) != 0;
    if (r->bad || (m->phase != RG_PH_CANDIDATE && m->phase != RG_PH_MEMBER)) return;
    if (via == m->id) {
        if (!rg_peer_find(m, a) || !rg_peer_find(m, b)) return;
        rg_act_t *x = rg_member_act(m, RG_MACT_RELAY);
        x->peer = a;
        x->via = b;
        x->on = (uint8_t)on;
        return;
    }
    rg_peer_t *p = a == m->id || b == m->id ? rg_peer_find(m, a == m->id ? b : a) : NULL;
    if (!p || (on && (via == p->m.id || !rg_peer_find(m, via)))) return;
    if (p->link == RG_LINK_DOWN) p->via = 0; /* what broke before says nothing of the new route */
    rg_act_t *x = rg_member_act(m, RG_MACT_ROUTE);
    x->peer = p->m.id;
    x->via = on ? via : 0;
}
