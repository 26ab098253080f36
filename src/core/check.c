/* check.c: invariants of both machines, each with a name, run after every step in the simulator and under the fuzzer.
 * They look at everything and may be slow; production code does not call them. They must not change anything. */
#include "core/member.h"
#include "core/coord.h"

#include <string.h>

/* ---- Member ---------------------------------------------------------------------------------------------------- */

static const char *check_table(const rg_member_t *m) {
    uint32_t own = 0, marked = 0, kept = 0, delayed = 0, wanted = 0, open = 0;
    uint16_t before = 0;
    for (uint16_t i = m->first; i; before = i, i = m->ent[i - 1].next) {
        const rg_ent_t *e = &m->ent[i - 1];
        if (own + marked > RG_ENT_MAX) return "member: the list of operations has a loop";
        if (e->prev != before) return "member: the list of operations is torn";
        if (e->state == RG_ENT_FREE) return "member: a free entry is listed";
        if (rg_ent_find((rg_member_t *)m, e->key) != e)
            return "member: an operation cannot be found, or is there twice";
        if (e->state == RG_ENT_MARKED) marked++;
        else own++;
        wanted += e->wanted;
        open += e->open;
        delayed += e->state == RG_ENT_COMPLETE && !e->sig.rule_l;
        if (e->state == RG_ENT_QUEUED && !m->fenced)
            return "member: an operation waits for an activation outside a fence";
        if (e->state != RG_ENT_KEPT && e->keep) return "member: a copy is kept of what is not committed";
        if (e->state != RG_ENT_KEPT) continue;
        kept++;
        if (e->sig.rule_l) return "member: rule L needs no copy";
        if (rg_key_tagged(e->key)) return "member: rule S is for tag 0";
        if (!e->keep || m->keep_slot[e->keep - 1] != i) return "member: a copy has no place";
        if (e->open) return "member: a committed operation holds the watermark";
    }
    if (before != m->last) return "member: the list of operations ends elsewhere";
    if (own != m->ents_own || marked != m->ents_marked) return "member: operations are miscounted";
    if (kept != rg_member_copies(m)) return "member: copies are miscounted";
    if (delayed != m->delayed || wanted != m->wanted_count) return "member: waiting operations are miscounted";
    if (delayed && kept < RG_KEEP_MAX && !m->fenced && !m->told)
        return "member: a commit waits although there is room for a copy";
    const rg_ent_t *last = NULL;
    for (uint16_t i = m->ofirst; i; i = m->ent[i - 1].onext, open--) {
        const rg_ent_t *e = &m->ent[i - 1];
        if (!open) return "member: the open list is longer than the operations that are open";
        if (last && rg_key_cmp(last->key, e->key) >= 0) return "member: the open list is out of order";
        last = e;
    }
    return open ? "member: an open operation is not listed" : NULL;
}

const char *rg_member_check(const rg_member_t *m) {
    if (m->broken) return "member: broken by a step";
    const char *bad = check_table(m);
    if (bad) return bad;
    if (m->told && (m->ents_own || m->ents_marked)) return "member: expelled with open operations";
    if (m->fenced && !m->have_view) return "member: fenced without a view";
    if (m->promise_on && (!m->have_view || m->promise <= m->gen)) return "member: a promise was broken";
    if (m->ents_own > RG_CORE_MAX_OPS) return "member: more operations than allowed";
    if (!m->have_view) return m->ents_own ? "member: operations without a view" : NULL;
    if (m->self_rank >= m->view.n || m->view.members[m->self_rank].id != m->id) return "member: not in its own view";
    uint32_t low = 0;
    for (uint32_t i = 0; i < m->view.n; i++) {
        const rg_core_member_t *x = &m->view.members[i];
        const rg_peer_t *p = rg_peer_find(m, x->id);
        if (i && x->first_gen < m->view.members[i - 1].first_gen) return "member: newcomers are not last";
        if (i == m->self_rank) continue;
        if (!m->told && (!p || p->rank != (int32_t)i)) return "member: a member of the view is not known";
        if (m->watermark[i] < m->peer_min) return "member: the lowest watermark is wrong";
        low += m->watermark[i] == m->peer_min;
    }
    if (low != m->peer_min_count) return "member: the lowest watermark is miscounted";
    if (m->kept_map && !m->fenced && m->peer_min > m->kept_low) return "member: a copy is kept that nobody needs";
    if (m->gen < m->view.members[m->self_rank].first_gen) return "member: is before its first generation";
    return NULL;
}

/* ---- Coordinator ----------------------------------------------------------------------------------------------- */

static const char *check_seat(const rg_coord_t *c, const rg_seat_t *s) {
    if (s->state == RG_SEAT_FREE) return "coordinator: a free seat is on the roster";
    if (rg_seat_by_id(c, s->m.id) != s) return "coordinator: a seat cannot be found by id";
    if (s->conn && rg_idmap_get(&c->by_conn, s->conn) != (int64_t)(s - c->seats))
        return "coordinator: a seat cannot be found by connection";
    if (s->state == RG_SEAT_CANDIDATE) {
        if (!s->conn && !s->ghost) return "coordinator: a candidate without a connection";
        if (s->suspect || s->reported) return "coordinator: a candidate takes part in a round";
        if (s->batch && c->growth == RG_GROW_NONE && c->round == RG_ROUND_NONE)
            return "coordinator: a batch outside growth";
        return NULL;
    }
    if (!c->have_view || s->rank >= c->n || &c->seats[c->rank_seat[s->rank]] != s)
        return "coordinator: a member has no rank";
    if (s->batch) return "coordinator: a member is in a batch";
    if (s->suspect && c->round == RG_ROUND_NONE && c->acting) return "coordinator: a suspicion without a round";
    if (s->lost_due && s->conn) return "coordinator: a member that is here is waited for";
    if (!s->suspect && !s->conn && !s->lost_due && !rg_coord_succeeds(c))
        return "coordinator: a member without a connection is not suspected";
    if (s->promised && c->growth != RG_GROW_PREPARE) return "coordinator: a promise outside growth";
    if (s->watermark < c->low) return "coordinator: the lowest watermark is wrong";
    return NULL;
}

const char *rg_coord_check(const rg_coord_t *c) {
    if (c->broken) return "coordinator: broken by a step";
    uint64_t last_id = 0, last_gen = 0;
    uint32_t members = 0, low = 0;
    if (c->population > c->p.max_members) return "coordinator: more members than allowed";
    for (uint32_t i = 0; i < c->population; i++) {
        const rg_seat_t *s = &c->seats[c->roster[i]];
        const char *bad = check_seat(c, s);
        if (bad) return bad;
        if (s->m.id <= last_id || s->m.id > c->next_id) return "coordinator: the roster is out of order";
        last_id = s->m.id;
        if (s->state != RG_SEAT_MEMBER) continue;
        members++;
        low += s->watermark == c->low;
    }
    if (members != c->n) return "coordinator: members are miscounted";
    if (c->have_view != (c->n != 0)) return "coordinator: a view without members";
    if (low != c->low_count) return "coordinator: the lowest watermark is miscounted";
    for (uint32_t i = 0; i < c->n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (s->m.first_gen < last_gen) return "coordinator: newcomers are not last";
        last_gen = s->m.first_gen;
    }
    if (c->round != RG_ROUND_NONE && (!c->have_view || c->growth != RG_GROW_NONE))
        return "coordinator: growth during a round";
    if (c->growth == RG_GROW_PREPARE && !c->have_view) return "coordinator: promises are asked without a view";
    if (!c->acting && !rg_coord_succeeds(c)) return "coordinator: an authority that does not act";
    if (!c->acting && (c->round != RG_ROUND_NONE || c->growth != RG_GROW_NONE))
        return "coordinator: acts without a quorum";
    if (c->vacant_at != UINT64_MAX && c->acting && c->round == RG_ROUND_NONE)
        return "coordinator: waits to forget a group that it serves";
    if (c->round == RG_ROUND_INSTALL && !c->prop_len) return "coordinator: asks for votes on nothing";
    if (c->n_requests && c->round == RG_ROUND_NONE) return "coordinator: requests without a round";
    if (c->reports_len > c->reports_cap) return "coordinator: more reports than there is room for";
    return NULL;
}
