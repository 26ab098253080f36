/* member_view.c: a member's part in changes of membership: it freezes and reports, accepts, activates and carries out
 * decisions, promises and holds boundaries. It relies on the coordinator for every decision and must not
 * show an outcome while it is fenced. Rules B1 to B8, E and G of docs/protocol.md. */
#include "core/member.h"

#include <string.h>

#define PROMISE_AHEAD_NS 50000000u
#define PROMISE_AHEAD_MAX 4096u

/* ---- FREEZE and REPORT (B1) ------------------------------------------------------------------------------------ */

static void send_nack(rg_member_t *m) {
    rg_w_t w = rg_member_begin(m);
    rg_w_header(&w, RG_MSG_NACK);
    rg_w_term(&w, m->promised);
    rg_member_send(m, &w);
}

void rg_view_tell(rg_member_t *m) {
    rg_msg_rebind_t b = rg_member_self(m);
    rg_view_head_t v = { .term = { m->view.term, m->view.term_owner },
                         .epoch = m->view.epoch,
                         .parent = m->view.parent,
                         .data_epoch = m->view.data_epoch,
                         .cut = m->view.cut,
                         .witness = m->view.witness,
                         .kind = (uint8_t)m->view.kind,
                         .form = RG_VIEW_WHOLE | RG_VIEW_RECORDS,
                         .n = m->view.n };
    rg_w_t w = rg_member_begin(m);
    rg_w_header(&w, RG_MSG_VIEW);
    rg_w_rebind_body(&w, &b);
    rg_w_view_head(&w, &v);
    for (uint32_t i = 0; i < m->view.n; i++) rg_w_peer(&w, &m->view.members[i]);
    rg_w_u32(&w, (uint32_t)m->chosen_len);
    rg_w_bytes(&w, m->chosen, m->chosen_len);
    rg_member_send(m, &w);
}

void rg_view_certify(rg_member_t *m) {
    if (m->succession && m->have_view && !m->told) {
        rg_view_tell(m);
        return;
    }
    rg_w_t w = rg_member_begin(m);
    rg_w_header(&w, RG_MSG_PROBE);
    rg_w_u64(&w, m->told ? m->told_epoch : m->view.epoch);
    rg_member_send(m, &w);
}

static int report_entry(rg_member_t *m, const rg_ent_t *e, rg_op_report_t *o) {
    o->state = RG_OPS_NONE;
    switch (e->state) {
    case RG_ENT_QUEUED: /* started after the fence: the reports know it as not started, with its mark if it had one */
        if (!e->mark) return 0;
        if (e->mark == RG_ABORT) o->state = RG_OPS_ABORTED;
        break;
    case RG_ENT_MARKED:
        if (e->mark == RG_ABORT) o->state = RG_OPS_ABORTED;
        break;
    case RG_ENT_RUNNING:
    case RG_ENT_DOOMED:
    case RG_ENT_FETCHING: o->state = RG_OPS_RUNNING; break;
    case RG_ENT_COMPLETE: o->state = RG_OPS_COMPLETE; break;
    case RG_ENT_KEPT: o->state = RG_OPS_KEPT; break;
    case RG_ENT_DEAD: o->state = RG_OPS_ABORTED; break;
    default: return 0;
    }
    o->key = e->key;
    o->sig = e->sig;
    o->computed = e->computed;
    o->numbering = e->numbering;
    o->status = e->status;
    o->blame = e->blame;
    rg_text_copy(o->text, sizeof o->text, o->state == RG_OPS_ABORTED ? m->texts[e->text] : "");
    return 1;
}

/* The sub-groups that the entries speak of, each once. */
static void write_sets(rg_member_t *m, rg_w_t *w) {
    size_t at = w->len;
    uint32_t n = 0;
    rg_w_u32(w, 0);
    for (uint32_t k = 0; k < m->n_sets; k++) m->set[k].named = 0;
    for (uint16_t i = m->n_sets ? m->first : 0; i; i = m->ent[i - 1].next) {
        rg_set_t *set = rg_set_is_group(m->ent[i - 1].key.set) ? rg_set_find(m, m->ent[i - 1].key.set) : NULL;
        if (!set || set->named) continue;
        set->named = 1;
        rg_set_write(m, w, set->id);
        n++;
    }
    rg_w_patch_u32(w, at, n);
}

/* Goes before the report, so that whoever counts that has this. */
static void send_proposal(rg_member_t *m) {
    rg_w_t w = rg_member_begin(m);
    rg_w_header(&w, RG_MSG_PROPOSAL);
    rg_w_term(&w, m->accepted_term);
    rg_w_bytes(&w, m->prop, m->prop_len);
    rg_member_send(m, &w);
}

static void send_report(rg_member_t *m, rg_term_t t) {
    int ours = m->fenced;
    if (m->accepted) send_proposal(m);
    rg_report_head_t h = { .term = t,
                           .accepted_term = m->accepted_term,
                           .base = m->have_view ? m->view.epoch : 0,
                           .accepted = m->accepted,
                           .gen = ours ? m->report_gen : m->gen,
                           .next0 = ours ? m->report_next0 : m->next0,
                           .floor = m->floor };
    rg_w_t w = rg_member_begin(m);
    rg_w_report_head(&w, &h);
    size_t at = w.len;
    uint32_t n = 0;
    rg_w_u32(&w, 0);
    rg_op_report_t o;
    for (uint16_t i = ours ? m->first : 0; i; i = m->ent[i - 1].next) {
        if (!report_entry(m, &m->ent[i - 1], &o)) continue;
        rg_w_op_report(&w, &o);
        n++;
    }
    rg_w_patch_u32(&w, at, n);
    at = w.len;
    rg_w_u32(&w, 0);
    if (ours) rg_w_patch_u32(&w, at, rg_streams_write(m, &w));
    if (ours) write_sets(m, &w);
    else rg_w_u32(&w, 0);
    rg_member_send(m, &w);
}

void rg_view_freeze(rg_member_t *m, rg_r_t *r) {
    rg_term_t t = rg_r_term(r);
    uint64_t base = rg_r_u64(r);
    if (r->bad) return;
    m->round_heard = m->now;
    if (m->told || (m->have_view && m->view.epoch > base)) {
        rg_view_certify(m);
        return;
    }
    if (rg_term_cmp(t, m->promised) < 0) {
        send_nack(m);
        return;
    }
    m->promised = t;
    /* A member that is behind is not fenced here: it is brought up to the base first, and frozen again there. */
    if (m->have_view && m->view.epoch == base && !m->fenced) {
        m->fenced = 1;
        m->report_gen = m->gen;
        m->report_next0 = m->next0;
        rg_member_act(m, RG_MACT_FENCE);
    }
    send_report(m, t);
}

/* B2. The proposal is kept as it came, so that whoever takes the office over can propose the very same. With AUTHORITY
 * the coordinator is the only voter and skips this round. */
void rg_view_install(rg_member_t *m, rg_r_t *r) {
    rg_view_head_t v;
    rg_term_t t = rg_r_term(r);
    const uint8_t *body = r->p + r->pos;
    size_t len = r->len - r->pos;
    rg_r_view_head(r, &v);
    if (r->bad || !m->have_view || len > RG_CORE_MAX_MESSAGE - 64) return;
    m->round_heard = m->now;
    if (m->told || (m->have_view && m->view.epoch > v.epoch)) {
        rg_view_certify(m);
        return;
    }
    if (rg_term_cmp(t, m->promised) < 0) {
        send_nack(m);
        return;
    }
    m->promised = t;
    uint64_t base = m->view.epoch;
    if (base == v.parent) {
        m->accepted_term = t;
        m->accepted = v.epoch;
        memcpy(m->prop, body, len);
        m->prop_len = len;
    } else if (base != v.epoch) {
        send_report(m, t);
        return;
    }
    rg_w_t w = rg_member_begin(m);
    rg_w_header(&w, RG_MSG_ACCEPT);
    rg_w_term(&w, t);
    rg_w_u64(&w, v.epoch);
    rg_member_send(m, &w);
}

/* ---- Boundaries and promises (G2) ------------------------------------------------------------------------------ */

void rg_view_boundary(rg_member_t *m, uint64_t gen) {
    if (!m->have_view || m->told || gen != m->gen + 1) return;
    m->wanted_gen = gen;
    if (m->fenced || (m->promise_on && gen >= m->promise)) return;
    m->wanted_gen = 0;
    if (m->boundary_ns) {
        m->boundary_dt[m->boundaries % RG_BOUNDARY_MEMORY] = m->now - m->boundary_ns;
        m->boundaries++;
    }
    m->boundary_ns = m->now;
    m->gen = gen;
    m->next0 = 0;
    rg_act_t *a = rg_member_act(m, RG_MACT_BOUNDARY);
    a->gen = gen;
    rg_ops_note(m, 0);
}

/* G2. Far enough ahead that the boundary is normally not reached before the cut is known, but no further: a newcomer
 * waits for all the boundaries in between. So the slowest of the last few boundaries counts, and without enough of
 * them the promise is for the next but one. */
static uint64_t promise_ahead(const rg_member_t *m) {
    if (m->boundaries < RG_BOUNDARY_MEMORY) return 1;
    uint64_t every = m->now - m->boundary_ns;
    for (uint32_t i = 0; i < RG_BOUNDARY_MEMORY; i++)
        if (m->boundary_dt[i] > every) every = m->boundary_dt[i];
    if (every * PROMISE_AHEAD_MAX <= PROMISE_AHEAD_NS) return PROMISE_AHEAD_MAX;
    return every >= PROMISE_AHEAD_NS ? 1 : PROMISE_AHEAD_NS / every;
}

/* G2b. A newcomer knows nothing of decisions that wait here for operations not yet started, so it must not take part
 * in those. */
static uint64_t promise_now(const rg_member_t *m) {
    uint64_t p = m->gen + 1 + promise_ahead(m), last = rg_entered_last(m);
    if (p <= last) p = last + 1; /* G2c */
    for (uint16_t i = m->ents_marked ? m->first : 0; i; i = m->ent[i - 1].next)
        if (m->ent[i - 1].state == RG_ENT_MARKED && m->ent[i - 1].key.gen >= p) p = m->ent[i - 1].key.gen + 1;
    return p;
}

void rg_view_prepare(rg_member_t *m, rg_r_t *r) {
    rg_term_t t = rg_r_term(r);
    uint64_t base = rg_r_u64(r);
    if (r->bad || m->told || m->fenced) return;
    if (rg_term_cmp(t, m->promised) < 0) {
        send_nack(m);
        return;
    }
    if (m->have_view) {
        if (m->view.epoch != base) return;
        if (!m->promise_on) m->promise = promise_now(m);
        m->promise_on = 1;
    } else if (m->phase != RG_PH_CANDIDATE) {
        return;
    }
    m->promised = t;
    rg_w_t w = rg_member_begin(m);
    rg_w_header(&w, RG_MSG_PROMISE);
    rg_w_term(&w, t);
    rg_w_u64(&w, base);
    rg_w_u64(&w, m->have_view ? m->promise : 0);
    if (m->succession) rg_w_u64(&w, m->accepted);
    rg_member_send(m, &w);
}

/* ---- ACTIVATE (B3) --------------------------------------------------------------------------------------------- */

/* What is known of one member of the new view: from PEERS and from the view. 0: we were never told of it. */
static int member_known(rg_member_t *m, rg_core_member_t *to, const rg_view_member_t *v) {
    if (v->id == m->id) {
        memset(to, 0, sizeof *to);
        to->id = v->id;
        to->host = m->p.host;
        to->site = m->p.site;
        to->cores = m->p.cores;
        memcpy(to->identity, m->p.identity, 16);
        to->addr_len = (uint16_t)m->p.addr_len;
        memcpy(to->addr, m->p.addr, m->p.addr_len);
    } else {
        const rg_peer_t *p = rg_peer_find(m, v->id);
        if (!p) return 0;
        *to = p->m;
    }
    to->first_gen = v->first_gen;
    memcpy(to->net, v->net, sizeof to->net);
    return 1;
}

/* Appends members that the message lists to the first `have` of next_members. */
static int read_listed(rg_member_t *m, rg_r_t *r, uint32_t have, uint32_t n, int records) {
    for (uint32_t i = have; i < n; i++) {
        rg_view_member_t v = { 0 };
        rg_core_member_t *x = &m->next_members[i];
        if (records) {
            rg_r_peer(r, x);
            if (r->bad || !rg_links_add(m, x)) return 0;
            v = (rg_view_member_t){ .id = x->id, .first_gen = x->first_gen };
            memcpy(v.net, x->net, sizeof v.net);
        } else {
            rg_r_view_member(r, &v);
        }
        if (r->bad || !member_known(m, &m->next_members[i], &v)) return 0;
    }
    return 1;
}

/* What a view changes in its parent: who is gone, who is new, and whose links were measured anew. */
static int read_changes(rg_member_t *m, rg_r_t *r, uint32_t n, int records) {
    uint32_t gone = rg_r_u32(r), old = m->have_view ? m->view.n : 0, kept = 0, at = 0;
    char text[RG_CORE_TEXT_MAX];
    if (r->bad || gone > old) return 0;
    m->n_leavers = gone;
    for (uint32_t i = 0; i < gone; i++) {
        uint32_t rank = rg_r_u32(r);
        m->leavers[i] = (rg_leaver_t){ .rank = rank, .cause = r->pos };
        rg_r_text(r, text, sizeof text);
        if (r->bad || rank >= old || rank < at) return 0;
        for (; at < rank; at++) m->next_members[kept++] = m->view.members[at];
        at = rank + 1;
    }
    for (; at < old; at++) m->next_members[kept++] = m->view.members[at];
    uint32_t added = rg_r_u32(r);
    if (r->bad || kept > n || added != n - kept || !read_listed(m, r, kept, n, records)) return 0;
    uint32_t changed = rg_r_u32(r);
    if (r->bad || changed > n) return 0;
    for (uint32_t i = 0; i < changed; i++) {
        uint32_t rank = rg_r_u32(r);
        if (r->bad || rank >= n) return 0;
        rg_r_bytes(r, m->next_members[rank].net, RG_CORE_NET);
    }
    return !r->bad;
}

/* Reads the members of the new view into next_members. */
static int read_members(rg_member_t *m, rg_r_t *r, const rg_view_head_t *v, uint32_t *self) {
    uint32_t n = v->n;
    *self = UINT32_MAX;
    m->n_leavers = 0;
    if (!n || n > m->p.max_members) return 0;
    int records = (v->form & RG_VIEW_RECORDS) != 0;
    if (v->form & RG_VIEW_WHOLE ? !read_listed(m, r, 0, n, records) : !read_changes(m, r, n, records)) return 0;
    for (uint32_t i = 0; i < n; i++) {
        const rg_core_member_t *x = &m->next_members[i];
        if (i && x->first_gen < m->next_members[i - 1].first_gen) return 0;
        if (x->id != m->id) continue;
        if (*self != UINT32_MAX) return 0;
        *self = i;
    }
    return *self != UINT32_MAX;
}

static int read_decisions(rg_member_t *m, rg_r_t *r, uint32_t *n, uint32_t members) {
    m->n_dec_sets = rg_r_u32(r);
    if (r->bad || m->n_dec_sets > RG_SETS_IN_VIEW) return 0;
    for (uint32_t i = 0; i < m->n_dec_sets; i++) {
        rg_r_set_report(r, &m->dec_set[i]);
        if (r->bad || m->dec_set[i].map_len != (members + 7) / 8) return 0;
    }
    *n = rg_r_u32(r);
    if (r->bad || *n > RG_DECISIONS_MAX) return 0;
    for (uint32_t i = 0; i < *n; i++) {
        const rg_decision_t *d = &m->dec[i];
        rg_r_decision(r, &m->dec[i]);
        if (r->bad || (d->verdict == RG_FORWARD && d->map_len < (members + 7) / 8)) return 0;
        if (rg_set_is_group(d->key.set) && (d->set_at >= m->n_dec_sets || m->dec_set[d->set_at].set != d->key.set))
            return 0;
    }
    return rg_r_end(r);
}

/* Ranks, watermarks and links of those who are gone. Watermarks stay true across views: what is over at a member stays
 * over there. A newcomer has none of the operations before its first generation to complete. */
static void adopt_members(rg_member_t *m, const rg_view_head_t *v) {
    uint32_t old_n = m->have_view ? m->view.n : 0;
    for (uint32_t i = 0; i < v->n; i++) {
        const rg_core_member_t *mem = &m->next_members[i];
        rg_peer_t *p = rg_peer_find(m, mem->id);
        m->scratch_ids[i] =
            p && p->rank >= 0 ? m->watermark[p->rank] : rg_key_note((rg_op_key_t){ mem->first_gen, 0, RG_SET_ALL });
    }
    for (uint32_t i = 0; i < old_n; i++) {
        rg_peer_t *p = rg_peer_find(m, m->view.members[i].id);
        if (p) p->rank = -2;
    }
    for (uint32_t i = 0; i < v->n; i++) {
        rg_peer_t *p = rg_peer_find(m, m->next_members[i].id);
        if (p) {
            p->rank = (int32_t)i;
            p->m.first_gen = m->next_members[i].first_gen;
        }
        m->watermark[i] = m->scratch_ids[i];
    }
    for (uint32_t i = 0; i < old_n; i++) {
        rg_peer_t *p = rg_peer_find(m, m->view.members[i].id);
        if (p && p->rank == -2) rg_entered_lost(m, m->view.members[i].first_gen);
        if (p && p->rank == -2) rg_peer_forget(m, p);
    }
    rg_core_member_t *old = m->view.members;
    m->view.members = m->next_members;
    m->next_members = old; /* stays readable until the next activation: see translate_root() */
    m->view.epoch = v->epoch;
    m->view.parent = v->parent;
    m->view.term = v->term.count;
    m->view.term_owner = v->term.owner;
    m->view.data_epoch = v->data_epoch;
    m->view.kind = (rg_view_kind_t)v->kind;
    m->view.cut = v->cut;
    m->view.witness = v->witness;
    m->view.n = v->n;
    m->cached_n = 0;
    rg_sets_view_changed(m);
    rg_ops_min(m);
}

/* ---- Carrying out decisions (E) -------------------------------------------------------------------------------- */

/* The members of the view before are in next_members, until the next activation. Participants of an operation there,
 * in rank order: who was the at-th. 0: there are not so many. */
static uint64_t old_participant(rg_member_t *m, rg_op_key_t key, uint32_t old_n, uint32_t at) {
    const rg_core_member_t *old = m->next_members;
    const rg_set_t *set = rg_set_is_group(key.set) ? rg_set_find(m, key.set) : NULL;
    for (uint32_t i = 0; i < (set ? set->n : old_n); i++) {
        uint32_t k = set ? 0 : i;
        for (; set && k < old_n && old[k].id != m->set_ids[set->first + i];) k++;
        if (k < old_n && old[k].first_gen <= key.gen && (set || rg_key_has(m, key, old[k].id)) && !at--)
            return old[k].id;
    }
    return 0;
}

/* An operation that was called while the member was fenced named its root by the old view's ranks, although it belongs
 * to the new view's operations: the same rank there is meant. */
static uint64_t translate_root(rg_member_t *m, const rg_ent_t *e, uint32_t old_n) {
    uint32_t rank = 0, n = 0;
    uint64_t id;
    while ((id = old_participant(m, e->key, old_n, rank)) != 0 && id != e->sig.root) rank++;
    if (!id) return 0;
    const rg_set_t *set = rg_set_is_group(e->key.set) ? rg_set_find(m, e->key.set) : NULL;
    for (uint32_t i = 0; i < (set ? set->n : m->view.n); i++) {
        id = set ? m->set_ids[set->first + i] : m->view.members[i].id;
        if (rg_member_takes_part(m, id, e->key.gen) && n++ == rank) return id;
    }
    return 0;
}

/* The first participant in the old view that the new one has not any more; 0: all are there. */
static uint64_t lost_participant(rg_member_t *m, rg_op_key_t key, uint32_t old_n) {
    for (uint32_t i = 0; i < m->n_leavers; i++) {
        const rg_core_member_t *x = &m->next_members[m->leavers[i].rank];
        if (m->leavers[i].rank < old_n && x->first_gen <= key.gen && rg_key_has(m, key, x->id)) return x->id;
    }
    return 0;
}

/* In the words that the coordinator uses for the same. */
static const char *lost_text(rg_member_t *m, uint64_t id) {
    char text[RG_CORE_TEXT_MAX], cause[RG_CORE_TEXT_MAX];
    rg_text_t t = rg_text_begin(text, sizeof text);
    for (uint32_t i = 0; i < m->n_leavers; i++) {
        if (m->next_members[m->leavers[i].rank].id != id) continue;
        rg_r_t r = m->activate;
        r.pos = m->leavers[i].cause;
        rg_r_text(&r, cause, sizeof cause);
        rg_text_str(&t, "rank ");
        rg_text_u64(&t, m->leavers[i].rank);
        rg_text_str(&t, " (member ");
        rg_text_u64(&t, id);
        rg_text_str(&t, ") was lost: ");
        rg_text_str(&t, cause);
    }
    return m->texts[rg_member_intern(m, text)];
}

/* The i-th participant without the result gets it from holder number i modulo their count: all sides come to the same
 * pairs from the two maps. Gives the holder for rank `me`, or, with serve, fills the map of those whom `me` serves. */
static uint64_t forward_pair(rg_member_t *m, const rg_decision_t *d, uint32_t me, uint8_t *serve) {
    uint32_t n = rg_ops_participants(m, d->key.gen), donors = 0, seen = 0;
    for (uint32_t i = 0; i < n; i++) donors += (uint32_t)rg_map_bit(d->donor, i);
    if (!donors) return 0;
    uint32_t mine = 0; /* which holder `me` is */
    for (uint32_t i = 0; i < me && i < n; i++) mine += (uint32_t)rg_map_bit(d->donor, i);
    for (uint32_t i = 0; i < n; i++) {
        if (rg_map_bit(d->have, i)) continue;
        uint32_t which = seen++ % donors;
        if (serve && which == mine) serve[i / 8] |= (uint8_t)(1u << (i % 8));
        if (serve || i != me) continue;
        for (uint32_t j = 0, k = 0; j < n; j++)
            if (rg_map_bit(d->donor, j) && k++ == which) return m->view.members[j].id;
    }
    return 0;
}

static void ent_mark(rg_member_t *m, rg_ent_t *e, const rg_decision_t *d) {
    e->mark = d->verdict;
    e->sig = d->sig;
    e->computed = d->computed;
    e->numbering = d->numbering;
    if (d->verdict == RG_FORWARD) e->donor = forward_pair(m, d, m->self_rank, NULL);
    if (d->verdict != RG_ABORT) return;
    char text[RG_CORE_TEXT_MAX];
    size_t n = d->text_len < sizeof text ? d->text_len : sizeof text - 1;
    memcpy(text, d->text, n);
    text[n] = 0;
    e->status = (int16_t)(d->status < 0 ? d->status : RG_ERR_ABORTED);
    e->blame = d->blame;
    e->text = rg_member_intern(m, text);
}

static void ent_restart(rg_member_t *m, rg_ent_t *e) {
    if (e->state == RG_ENT_COMPLETE && !e->sig.rule_l) m->delayed--;
    e->state = RG_ENT_RUNNING;
    e->computed = 0;
    rg_member_act(m, RG_MACT_OP_RESTART)->key = e->key;
}

static void carry_abort(rg_member_t *m, rg_ent_t *e, const rg_decision_t *d) {
    rg_ent_t got = *e;
    ent_mark(m, &got, d);
    rg_op_abort(m, e, (rg_status_t)got.status, got.blame, m->texts[got.text]);
}

static void carry_forward(rg_member_t *m, rg_ent_t *e, const rg_decision_t *d) {
    if (rg_map_bit(d->have, m->self_rank)) {
        rg_op_commit(m, e, e->computed ? e->computed : d->computed, 1);
        return;
    }
    if (!rg_sig_same(&e->sig, &d->sig)) {
        rg_op_abort(m, e, RG_ERR_MISMATCH, m->id, "the others have finished this operation with different arguments");
        return;
    }
    if (e->wanted) m->wanted_count--;
    e->wanted = 0; /* whoever wanted it ended has the answer: the result exists and is on its way */
    e->state = RG_ENT_FETCHING;
    e->computed = d->computed;
    e->donor = forward_pair(m, d, m->self_rank, NULL);
    rg_act_t *a = rg_member_act(m, RG_MACT_OP_FORWARD);
    a->key = e->key;
    a->peer = e->donor;
    a->computed = e->computed;
}

static void carry_kept(rg_member_t *m, rg_ent_t *e, const rg_decision_t *d) {
    if (!d) return;
    if (d->verdict != RG_FORWARD) {
        rg_op_release(m, e);
        return;
    }
    if (!rg_map_bit(d->donor, m->self_rank)) return;
    uint32_t slot = e->keep - 1u;
    uint8_t *map = m->serve_map + (size_t)slot * m->serve_bytes;
    memset(map, 0, m->serve_bytes);
    forward_pair(m, d, m->self_rank, map);
    m->serve |= (uint64_t)1 << slot;
}

/* E9. A message whose other end is gone is no matter of others, so no decision speaks of it: what is whole here is
 * shown, as it would be by D2, and all else ends as the coordinator would end it. 1: that was the case. */
static int carry_widowed(rg_member_t *m, rg_ent_t *e) {
    if (!rg_set_is_pair(e->key.set)) return 0;
    uint64_t from = rg_pair_from(e->key.set), other = from == m->id ? rg_pair_to(e->key.set) : from;
    if (rg_member_in_view(m, other)) return 0;
    if (e->state == RG_ENT_COMPLETE) rg_op_commit(m, e, e->computed, 0);
    else if (e->state == RG_ENT_DEAD) rg_ent_remove(m, e);
    else rg_op_abort(m, e, RG_ERR_PEER_LOST, other, lost_text(m, other));
    return 1;
}

/* An operation that was called behind the fence: now it starts, or its decision was made without it. */
static void carry_queued(rg_member_t *m, rg_ent_t *e, const rg_decision_t *d, uint32_t old_n) {
    e->mark = 0;
    if (d && d->verdict == RG_ABORT) {
        carry_abort(m, e, d);
        return;
    }
    uint64_t lost = rg_sig_shaped(&e->sig) ? lost_participant(m, e->key, old_n) : 0;
    if (lost) { /* E8: the caller's buffers have the shape of the view before */
        rg_op_doom(m, e, RG_ERR_PEER_LOST, lost, lost_text(m, lost));
        return;
    }
    e->state = RG_ENT_RUNNING;
    if (d && d->verdict == RG_FORWARD) {
        carry_forward(m, e, d);
        return;
    }
    if (d && d->numbering) {
        e->numbering = d->numbering;
    } else {
        uint64_t root = e->sig.root;
        if (root) e->sig.root = translate_root(m, e, old_n);
        e->numbering = m->view.data_epoch;
        if (root && !e->sig.root) {
            rg_op_rootless(m, e, root);
            return;
        }
    }
    rg_op_begin(m, e);
}

static void carry_out(rg_member_t *m, rg_ent_t *e, const rg_decision_t *d, uint32_t old_n) {
    if (!d && carry_widowed(m, e)) return;
    switch (e->state) {
    case RG_ENT_QUEUED: carry_queued(m, e, d, old_n); break;
    case RG_ENT_KEPT: carry_kept(m, e, d); break;
    case RG_ENT_DOOMED:
        if (d && d->verdict == RG_ABORT) carry_abort(m, e, d);
        else if (d && d->verdict != RG_RESTART) m->broken = 1; /* nobody can have finished it without this member */
        break;
    case RG_ENT_DEAD:
        /* It may have died after it was reported as running; then the others will wait for it until they are told. */
        if (d && d->verdict != RG_RESTART) rg_ent_remove(m, e);
        break;
    case RG_ENT_RUNNING:
    case RG_ENT_FETCHING:
    case RG_ENT_COMPLETE:
        if (!d || d->verdict == RG_RESTART) {
            if (d && d->numbering) e->numbering = d->numbering;
            ent_restart(m, e);
        } else if (d->verdict == RG_ABORT) {
            carry_abort(m, e, d);
        } else if (d->verdict == RG_FORWARD) {
            carry_forward(m, e, d);
        } else if (e->state == RG_ENT_COMPLETE) {
            rg_op_commit(m, e, e->computed, 0);
        } else {
            m->broken = 1; /* a commit of what is not whole here */
        }
        break;
    default: break;
    }
}

/* Whether a decision on what is not in the table waits here for a start. A sub-group that is not defined here may be so
 * by and by: its other members were only quicker. */
static int waits_for_start(const rg_member_t *m, const rg_decision_t *d) {
    if (m->view.members[m->self_rank].first_gen > d->key.gen || rg_op_passed(m, d->key)) return 0;
    if (d->verdict == RG_RESTART && !d->sig.root) return 0;
    if (rg_set_is_pair(d->key.set)) return rg_pair_has(d->key.set, m->id);
    if (d->key.set == RG_SET_ALL) return 1;
    return rg_map_bit(m->dec_set[d->set_at].map, m->self_rank) && !rg_set_dropped(m, d->key.set);
}

static void carry_out_all(rg_member_t *m, uint32_t decisions, uint32_t old_n) {
    for (uint16_t i = m->first; i;) { /* marks were reported, so the decisions have them again where they still hold */
        rg_ent_t *e = &m->ent[i - 1];
        i = e->next;
        e->decision = 0;
        if (e->state == RG_ENT_MARKED) rg_ent_remove(m, e);
    }
    int full = 0;
    uint16_t stop = m->last; /* marks that are added below have been carried out by being added */
    for (uint32_t k = 0; k < decisions; k++) {
        const rg_decision_t *d = &m->dec[k];
        rg_ent_t *e = rg_ent_find(m, d->key);
        if (e) {
            e->decision = (uint16_t)(k + 1);
        } else if (waits_for_start(m, d)) {
            e = m->ents_marked < RG_MARKS_MAX ? rg_ent_add(m, d->key, RG_ENT_MARKED) : NULL;
            if (e) ent_mark(m, e, d);
            else full = 1;
        }
    }
    if (full) {
        rg_member_expel(
            m, RG_ERR_RESOURCE,
            "more than 1024 operations that others have begun, and that ended with a fault, were never called "
            "here: all members must call the same ones; destroy the handle and join again",
            m->view.epoch);
        return;
    }
    for (uint16_t i = stop ? m->first : 0; i && !m->broken;) {
        rg_ent_t *e = &m->ent[i - 1];
        uint16_t next = i == stop ? 0 : e->next;
        carry_out(m, e, e->decision ? &m->dec[e->decision - 1] : NULL, old_n);
        i = next;
    }
    if (m->delayed) rg_ops_commit_delayed(m);
}

static void activated(rg_member_t *m, int newcomer, uint32_t decisions, uint32_t old_n) {
    int recovery = m->view.kind == RG_VIEW_RECOVERY;
    /* A JOIN view that was proposed before a round, and is chosen in it, lets nobody go on: the round does. */
    int stays_fenced = m->fenced && m->view.kind == RG_VIEW_JOIN;
    m->accepted = 0;
    m->prop_len = 0;
    m->accepted_term = (rg_term_t){ 0, 0 };
    m->promise_on = 0;
    m->fenced = stays_fenced;
    m->have_view = 1;
    if (!stays_fenced) rg_streams_told(m);
    if (newcomer) {
        m->phase = RG_PH_MEMBER;
        m->gen = m->view.members[m->self_rank].first_gen;
        m->next0 = 0;
        m->ready_at = UINT64_MAX;
        rg_member_act(m, RG_MACT_JOINED)->gen = m->gen;
    } else {
        rg_member_act(m, RG_MACT_VIEW)->gen = m->gen;
    }
    rg_links_settle(m);
    if (recovery) rg_links_begin_anew(m);
    if (recovery) carry_out_all(m, decisions, old_n);
    if (m->told) return;
    if (!m->fenced) rg_ops_release(m); /* those who are gone were perhaps the last who had not finished something */
    /* Watermarks that were on their way died with the old data epoch. */
    rg_ops_note(m, recovery || newcomer);
    if (m->wanted_gen) rg_view_boundary(m, m->wanted_gen);
    rg_links_complain_again(m);
    rg_ops_send_wanted(m);
}

void rg_view_activate(rg_member_t *m, rg_r_t *r) {
    rg_view_head_t v;
    m->activate = *r;
    rg_r_view_head(r, &v);
    if (r->bad || m->told) return;
    if (m->have_view ? v.parent != m->view.epoch : m->phase != RG_PH_CANDIDATE) return;
    uint32_t self, decisions = 0;
    int newcomer = !m->have_view;
    if (!read_members(m, r, &v, &self) || !read_decisions(m, r, &decisions, v.n)) {
        rg_member_expel(m, RG_ERR_PROTOCOL, "the coordinator sent a view that cannot be understood", v.epoch);
        return;
    }
    if (rg_term_cmp(v.term, m->promised) > 0) m->promised = v.term;
    uint32_t old_n = m->have_view ? m->view.n : 0;
    m->self_rank = self;
    m->chosen_len = m->succession && r->len <= RG_CORE_MAX_MESSAGE ? r->len : 0;
    memcpy(m->chosen, r->p, m->chosen_len);
    adopt_members(m, &v);
    activated(m, newcomer, decisions, old_n);
}
