/* coord_claim.c: succession: how a coordinator that knows nothing picks up a running group from its members, when it
 * may act, and what counts as a quorum. The same code serves a standalone coordinator that was started anew and one
 * that a member hosts. It relies on members to tell their view truthfully and to follow the highest term. It must not
 * let two coordinators choose two successors of one view. Section 9 of docs/protocol.md. */
#include "core/coord.h"

#include <string.h>

#define NEVER UINT64_MAX

/* ---- Quorum (Q1) ----------------------------------------------------------------------------------------------- */

int rg_vote_here(const rg_seat_t *s) { return s->conn && !s->silent; }
int rg_vote_reported(const rg_seat_t *s) { return s->reported; }
int rg_vote_accepted(const rg_seat_t *s) { return s->accepted; }

/* More than half of the view's voters, or exactly half with the first member among them: any two such sets share a
 * voter. A witness votes only for itself: it is never asked. */
int rg_coord_quorum(const rg_coord_t *c, int (*vote)(const rg_seat_t *s)) {
    uint32_t voters = c->n + (c->witness != 0), votes = c->witness && c->witness == c->p.id;
    for (uint32_t i = 0; i < c->n; i++) votes += vote(&c->seats[c->rank_seat[i]]) != 0;
    if (2 * votes != voters) return 2 * votes > voters;
    return c->n && vote(&c->seats[c->rank_seat[0]]);
}

/* ---- Terms ----------------------------------------------------------------------------------------------------- */

void rg_claim_seen(rg_coord_t *c, rg_term_t t) {
    if (t.count < UINT64_MAX && rg_term_cmp(t, c->seen) > 0) c->seen = t;
}

/* A new claim. What was asked for under the old term counts no more. */
void rg_claim_over(rg_coord_t *c, rg_term_t t) {
    rg_claim_seen(c, t);
    if (rg_term_cmp(c->seen, c->term) <= 0) return;
    c->term = c->seen = (rg_term_t){ c->seen.count + 1, c->p.id };
    if (!c->acting || !c->have_view) return;
    rg_coord_collect(c);
}

/* ---- Acting or not (Q2) ---------------------------------------------------------------------------------------- */

static void fall_silent(rg_coord_t *c) {
    for (uint32_t i = 0; i < c->n; i++) rg_coord_waited(c, &c->seats[c->rank_seat[i]]);
    c->acting = 0;
    c->said_here = 0;
    c->lack_at = c->retransmit_at = c->vacant_at = c->grow_at = NEVER;
    c->round = RG_ROUND_NONE;
    c->growth = RG_GROW_NONE;
    c->n_requests = 0;
    c->lost_data = 0;
    for (uint32_t i = 0; i < c->population; i++) {
        rg_seat_t *s = &c->seats[c->roster[i]];
        s->batch = s->promised = s->reported = s->accepted = 0;
    }
}

/* A quorum is here. Whoever is missing has a heartbeat to come before it is suspected; nobody is asked to stop for the
 * sake of the change of office alone, only when somebody waits for a round. */
static void take_office(rg_coord_t *c) {
    int wait = c->froze;
    c->acting = 1;
    c->lack_at = c->vacant_at = NEVER;
    if (rg_term_cmp(c->seen, c->term) > 0 || !c->renewed) c->term = c->seen = (rg_term_t){ c->seen.count + 1, c->p.id };
    c->renewed = 1;
    for (uint32_t i = 0; i < c->n; i++) {
        rg_seat_t *s = &c->seats[c->rank_seat[i]];
        rg_coord_absent(c, s);
        wait |= s->pending || s->suspect;
    }
    for (uint32_t i = 0; i < c->population; i++) c->seats[c->roster[i]].told = 0;
    c->n_gone = 0;
    c->grow_dirty = c->waiting_dirty = 1;
    rg_coord_flush_peers(c);
    for (uint32_t i = 0; i < c->n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (s->conn && s->base != c->epoch) rg_coord_resend_view(c, s->conn);
    }
    /* What they said while nobody acted was not heard: they say it again. */
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_PROBE);
    rg_w_u64(&w, c->epoch);
    rg_sent_t again = rg_coord_end(c, &w);
    for (uint32_t i = 0; i < c->n; i++) rg_coord_send(c, c->seats[c->rank_seat[i]].conn, again);
    if (wait) rg_coord_collect(c);
}

void rg_claim_office(rg_coord_t *c) {
    if (!c->have_view || c->broken) return;
    if (rg_coord_quorum(c, rg_vote_here)) {
        int was_short = c->lack_at != NEVER;
        c->lack_at = NEVER;
        if (!c->acting) take_office(c);
        else if (was_short) /* most were out of reach at once: it was this office that was, and they come one by one */
            for (uint32_t i = 0; i < c->n; i++) rg_coord_absent(c, &c->seats[c->rank_seat[i]]);
        return;
    }
    if (c->acting && c->lack_at == NEVER) c->lack_at = c->now + c->p.heartbeat_ns;
    if (c->acting && c->now >= c->lack_at) fall_silent(c);
    if (c->acting) return;
    uint32_t here = 0;
    for (uint32_t i = 0; i < c->n; i++) here += c->seats[c->rank_seat[i]].conn != 0;
    /* What is left of a group that can do nothing any more must not keep newcomers out for ever: those who belong to
     * one that lives are elsewhere, or have had the time to come. */
    int wanted = !c->p.hosted && c->turned_away_at && c->now - c->turned_away_at < 2 * c->p.heartbeat_ns;
    if (here && !wanted) c->vacant_at = NEVER;
    else if (c->vacant_at == NEVER) c->vacant_at = c->now + c->p.takeover_ns + (here ? 4 : 2) * c->p.heartbeat_ns;
    else if (c->now >= c->vacant_at) rg_claim_forget_group(c);
}

/* ---- What members bring (Q3) ----------------------------------------------------------------------------------- */

/* Asks for the view of whoever is on this connection. */
void rg_claim_ask(rg_coord_t *c, uint64_t conn) {
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_PROBE);
    rg_w_u64(&w, 0);
    rg_coord_send(c, conn, rg_coord_end(c, &w));
}

uint32_t rg_claim_here(const rg_coord_t *c) {
    uint32_t here = 0;
    for (uint32_t i = 0; i < c->n; i++) here += rg_vote_here(&c->seats[c->rank_seat[i]]) != 0;
    return here;
}

static rg_sent_t probe(rg_coord_t *c, uint32_t here) {
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_PROBE);
    rg_w_u64(&w, c->epoch);
    rg_w_u32(&w, here);
    return rg_coord_end(c, &w);
}

void rg_claim_say(rg_coord_t *c, uint64_t conn) { rg_coord_send(c, conn, probe(c, rg_claim_here(c))); }

/* S2. Those who wait here for a quorum are told that more have come, or they would go to look for it elsewhere just
 * when it is about to be complete. Once for each number, and no faster than they are looked at. */
void rg_claim_gathering(rg_coord_t *c) {
    if (!rg_coord_succeeds(c) || !c->have_view || c->acting) return;
    uint32_t here = rg_claim_here(c);
    if (here <= c->said_here) return;
    c->said_here = here;
    rg_sent_t said = probe(c, here);
    for (uint32_t i = 0; i < c->n; i++) rg_coord_send(c, c->seats[c->rank_seat[i]].conn, said);
}

static void drop_seat(rg_coord_t *c, rg_seat_t *s) {
    if (s->conn) rg_coord_close(c, s->conn);
    rg_seat_free(c, s);
}

/* Nobody comes any more. What is founded here next is another group, which the members of this one, if there are any
 * elsewhere, must be able to tell from theirs. */
void rg_claim_forget_group(rg_coord_t *c) {
    for (uint32_t i = c->n; i-- > 0;) drop_seat(c, &c->seats[c->rank_seat[i]]);
    while (c->population) drop_seat(c, &c->seats[c->roster[0]]); /* they come again, and hear of the other group */
    c->n = 0;
    c->have_view = 0;
    c->witness = 0;
    c->round = RG_ROUND_NONE;
    c->growth = RG_GROW_NONE;
    c->prop_len = c->activate_len = 0;
    c->installed = c->froze = c->owed = 0;
    c->acting = 1;
    c->n_requests = c->n_complaints = 0;
    c->turned_away_at = 0;
    c->lost_data = 0;
    c->lack_at = c->vacant_at = c->retransmit_at = NEVER;
    c->grow_dirty = c->waiting_dirty = 1;
    /* Who has forgotten what it voted for must not vote again: what comes back of the old group meets another owner of
     * terms, who is no witness of its views. */
    if (!c->p.hosted) c->p.id++;
    c->renewed = 0;
    c->next_id += 16ull * c->p.max_members;
    for (int i = 0; i < 16; i++) {
        uint64_t h = (c->p.nonce[i] + c->epoch * 0x9e3779b97f4a7c15u + (uint64_t)i) ^ c->p.id * 0xc2b2ae3d27d4eb4fu;
        c->p.nonce[i] = (uint8_t)((h ^ h >> 29) * 0x165667b19e3779f9u >> 56);
    }
    rg_coord_low(c);
}

/* Members of the old view that are in the new one keep their seats and connections; candidates come again. */
static int seats_for(rg_coord_t *c, rg_r_t r, uint32_t n) {
    rg_core_member_t m;
    for (uint32_t i = c->population; i-- > 0;)
        if (c->seats[c->roster[i]].state == RG_SEAT_CANDIDATE) drop_seat(c, &c->seats[c->roster[i]]);
    for (uint32_t i = 0; i < c->n; i++) c->seats[c->rank_seat[i]].mark = 0;
    rg_r_t again = r;
    for (uint32_t i = 0; i < n; i++) {
        rg_r_peer(&again, &m);
        rg_seat_t *s = rg_seat_by_id(c, m.id);
        if (s) s->mark = 1;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (s->mark) continue;
        rg_coord_send_expelled(c, s->conn, s->m.id);
        rg_seat_free(c, s);
    }
    for (uint32_t i = 0; i < n; i++) {
        rg_r_peer(&r, &m);
        rg_seat_t *s = rg_seat_by_id(c, m.id);
        if (!s) s = rg_seat_insert(c, &m);
        if (!s) return 0;
        s->m = m;
        s->state = RG_SEAT_MEMBER;
        s->suspect = s->reported = s->accepted = s->pending = s->promised = s->batch = s->ghost = 0;
        s->lost_due = s->waited = 0;
        s->rank = i;
        s->last_heard = c->now;
        s->base = c->epoch; /* of those who were here already: they have the parent */
        c->rank_seat[i] = (uint32_t)(s - c->seats);
    }
    return 1;
}

/* The records are proved to be whole, different from each other and in bounds before anything is changed. */
static int records_whole(const rg_coord_t *c, rg_r_t *r, uint32_t n) {
    if (!n || n > c->p.max_members) return 0;
    rg_core_member_t m, other;
    rg_r_t first = *r;
    uint64_t gen = 0;
    for (uint32_t i = 0; i < n; i++) {
        rg_r_peer(r, &m);
        if (r->bad || !m.id || m.id > RG_SET_ID_MAX || m.first_gen < gen) return 0;
        gen = m.first_gen;
        rg_r_t before = first;
        for (uint32_t k = 0; k < i; k++) {
            rg_r_peer(&before, &other);
            if (other.id == m.id) return 0;
        }
    }
    return 1;
}

static void adopt(rg_coord_t *c, const rg_msg_rebind_t *b, const rg_view_head_t *v, rg_r_t records, rg_r_t last) {
    /* Members that were asked to stop at the view before stay stopped over a JOIN view. */
    int froze = c->froze && v->kind == RG_VIEW_JOIN;
    if (!c->have_view) memcpy(c->p.nonce, b->nonce, 16);
    for (uint32_t i = 0; i < c->n; i++) c->seats[c->rank_seat[i]].base = 0;
    if (!seats_for(c, records, v->n)) {
        c->broken = 1;
        return;
    }
    c->have_view = 1;
    c->epoch = v->epoch;
    c->parent = v->parent;
    c->data_epoch = v->data_epoch;
    c->cut = v->cut;
    c->witness = v->witness;
    c->view_term = v->term;
    c->kind = (rg_view_kind_t)v->kind;
    c->n = v->n;
    memcpy(c->activate, last.p, last.len);
    c->activate_len = last.len;
    c->prop_len = 0;
    c->installed = c->owed = 0;
    c->froze = froze;
    c->n_gone = c->n_complaints = 0;
    c->complaint_at = NEVER;
    fall_silent(c);
    rg_claim_seen(c, v->term);
    /* Ids that nobody here has heard of may have been given to candidates, who have told others. */
    c->next_id = (b->upto > c->next_id && b->upto <= RG_SET_ID_MAX ? b->upto : c->next_id) + c->p.max_members;
    rg_coord_low(c);
    rg_coord_log_view(c, "taken over from its members");
}

/* C6. A chosen view is true for ever, whoever tells of it. */
void rg_claim_on_view(rg_coord_t *c, uint64_t conn, rg_r_t *r) {
    rg_msg_rebind_t b;
    rg_view_head_t v;
    rg_r_rebind(r, &b);
    rg_r_view_head(r, &v);
    rg_r_t records = *r;
    int64_t slot = rg_idmap_get(&c->by_conn, conn); /* who is on this connection speaks for nobody else */
    if (r->bad || (slot >= 0 && c->seats[slot].m.id != b.id) || !records_whole(c, r, v.n)) {
        r->bad = 1;
        return;
    }
    uint32_t len = rg_r_u32(r);
    const uint8_t *bytes = rg_r_skip(r, len);
    if (!rg_r_end(r) || len > c->activate_cap || b.epoch != v.epoch) {
        r->bad = 1;
        return;
    }
    if (c->have_view && memcmp(b.nonce, c->p.nonce, 16) != 0) {
        rg_coord_refuse(c, conn, RG_ERR_REFUSED, "this coordinator serves another group of this name");
        return;
    }
    if (!c->have_view || v.epoch > c->epoch) adopt(c, &b, &v, records, (rg_r_t){ bytes, len, 0, 0 });
    rg_seat_t *s = rg_seat_by_id(c, b.id);
    int behind = b.epoch != c->epoch;
    if (!s || s->state != RG_SEAT_MEMBER || (behind && b.epoch != c->parent)) {
        rg_coord_send_expelled(c, conn, b.id);
        return;
    }
    s->base = b.epoch;
    rg_coord_bind(c, s, conn, &b);
}

/* ---- Proposals (C4, C5) ---------------------------------------------------------------------------------------- */

/* What a member has accepted comes just before its report. Of several the one of the highest term counts. */
void rg_claim_on_proposal(rg_coord_t *c, rg_r_t *r) {
    rg_term_t t = rg_r_term(r);
    size_t n = r->len - r->pos;
    const uint8_t *bytes = rg_r_skip(r, n);
    if (r->bad || !rg_coord_succeeds(c) || c->round != RG_ROUND_COLLECT || n > c->activate_cap - 64) return;
    if (c->prop_len && rg_term_cmp(t, c->prop_term) <= 0) return;
    rg_r_t body = { bytes, n, 0, 0 };
    rg_view_head_t v;
    rg_r_view_head(&body, &v);
    if (body.bad || v.parent != c->epoch) return; /* of another base */
    rg_w_t w = { c->prop, 0, c->activate_cap, 0 };
    rg_w_header(&w, RG_MSG_ACTIVATE);
    rg_w_bytes(&w, bytes, n);
    c->prop_len = w.len;
    c->prop_term = t;
    c->installed = 0;
}

void rg_claim_on_accept(rg_coord_t *c, rg_seat_t *s, rg_r_t *r) {
    rg_term_t t = rg_r_term(r);
    uint64_t epoch = rg_r_u64(r);
    if (r->bad || c->round != RG_ROUND_INSTALL || rg_term_cmp(t, c->term) != 0 || epoch != c->next.epoch) return;
    if (s->state == RG_SEAT_MEMBER) s->accepted = 1;
}
