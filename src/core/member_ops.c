/* member_ops.c: the table of operations of one member: start, complete, commit, abort, copies of small results and the
 * watermarks that release them. It relies on the caller to run the data plane and to say honestly when a result is
 * whole. Every step of a fault-free operation is a hash lookup and a few stores: nothing here may scan the table,
 * except when a copy is given back to an operation that waited for one. Sections 2 to 4 of docs/protocol.md. */
#include "core/member.h"

#include <string.h>

/* ---- The table ------------------------------------------------------------------------------------------------- */

static uint32_t ent_hash(rg_op_key_t k) {
    uint64_t h = (k.gen * 0x9e3779b97f4a7c15u) ^ (k.op * 0xc2b2ae3d27d4eb4fu) ^ (k.set * 0x165667b19e3779f9u);
    return (uint32_t)(h >> 40) & (RG_ENT_HASH - 1);
}

static int key_same(rg_op_key_t a, rg_op_key_t b) { return a.gen == b.gen && a.op == b.op && a.set == b.set; }

rg_ent_t *rg_ent_find(rg_member_t *m, rg_op_key_t key) {
    for (uint32_t i = ent_hash(key); m->hash[i]; i = (i + 1) & (RG_ENT_HASH - 1))
        if (key_same(m->ent[m->hash[i] - 1].key, key)) return &m->ent[m->hash[i] - 1];
    return NULL;
}

static void hash_remove(rg_member_t *m, rg_op_key_t key) {
    const uint32_t mask = RG_ENT_HASH - 1;
    uint32_t i = ent_hash(key);
    while (m->hash[i] && !key_same(m->ent[m->hash[i] - 1].key, key)) i = (i + 1) & mask;
    if (!m->hash[i]) return;
    for (uint32_t j = (i + 1) & mask; m->hash[j]; j = (j + 1) & mask) {
        uint32_t home = ent_hash(m->ent[m->hash[j] - 1].key);
        if (((j - home) & mask) >= ((j - i) & mask)) {
            m->hash[i] = m->hash[j];
            i = j;
        }
    }
    m->hash[i] = 0;
}

static uint16_t ent_index(const rg_member_t *m, const rg_ent_t *e) { return (uint16_t)(e - m->ent + 1); }

rg_ent_t *rg_ent_add(rg_member_t *m, rg_op_key_t key, rg_ent_state_t state) {
    uint32_t index;
    if (m->ent_free) {
        index = m->ent_free;
        m->ent_free = m->ent[index - 1].next;
    } else if (m->ent_used < RG_ENT_MAX) {
        index = ++m->ent_used;
    } else {
        return NULL;
    }
    rg_ent_t *e = &m->ent[index - 1];
    memset(e, 0, sizeof *e);
    e->key = key;
    e->state = (uint8_t)state;
    e->prev = m->last;
    if (m->last) m->ent[m->last - 1].next = (uint16_t)index;
    else m->first = (uint16_t)index;
    m->last = (uint16_t)index;
    uint32_t i = ent_hash(key);
    while (m->hash[i]) i = (i + 1) & (RG_ENT_HASH - 1);
    m->hash[i] = (uint16_t)index;
    if (state == RG_ENT_MARKED) m->ents_marked++;
    else m->ents_own++;
    return e;
}

/* Tag 0 operations that are not over here, oldest first: the head is the watermark. */
static void open_add(rg_member_t *m, rg_ent_t *e) {
    if (rg_key_tagged(e->key)) return;
    e->open = 1;
    e->oprev = m->olast;
    e->onext = 0;
    if (m->olast) m->ent[m->olast - 1].onext = ent_index(m, e);
    else m->ofirst = ent_index(m, e);
    m->olast = ent_index(m, e);
}

static void open_remove(rg_member_t *m, rg_ent_t *e) {
    if (!e->open) return;
    e->open = 0;
    if (e->oprev) m->ent[e->oprev - 1].onext = e->onext;
    else m->ofirst = e->onext;
    if (e->onext) m->ent[e->onext - 1].oprev = e->oprev;
    else m->olast = e->oprev;
}

static void unwant(rg_member_t *m, rg_ent_t *e) {
    if (e->wanted) m->wanted_count--;
    e->wanted = 0;
}

void rg_ent_remove(rg_member_t *m, rg_ent_t *e) {
    open_remove(m, e);
    unwant(m, e);
    if (e->state == RG_ENT_MARKED) m->ents_marked--;
    else m->ents_own--;
    if (e->state == RG_ENT_COMPLETE && !e->sig.rule_l) m->delayed--;
    hash_remove(m, e->key);
    if (e->prev) m->ent[e->prev - 1].next = e->next;
    else m->first = e->next;
    if (e->next) m->ent[e->next - 1].prev = e->prev;
    else m->last = e->prev;
    e->state = RG_ENT_FREE;
    e->next = (uint16_t)m->ent_free;
    m->ent_free = ent_index(m, e);
}

/* Texts of errors are few and repeat (one lost member ends many operations with one text), so they are shared. When
 * all are taken the oldest gives way: only its text is lost, never its status. */
uint8_t rg_member_intern(rg_member_t *m, const char *text) {
    for (uint32_t i = 0; i < RG_TEXTS; i++)
        if (rg_text_same(m->texts[i], text ? text : "", RG_CORE_TEXT_MAX)) return (uint8_t)i;
    uint32_t at = m->text_at;
    m->text_at = (m->text_at + 1) % RG_TEXTS;
    rg_text_copy(m->texts[at], RG_CORE_TEXT_MAX, text);
    return (uint8_t)at;
}

/* ---- Watermarks and copies ------------------------------------------------------------------------------------- */

static uint64_t own_note(const rg_member_t *m) {
    if (m->ofirst) return rg_key_note(m->ent[m->ofirst - 1].key);
    return rg_key_note((rg_op_key_t){ m->gen, m->next0, RG_SET_ALL });
}

void rg_ops_note(rg_member_t *m, int flush) {
    uint64_t note = own_note(m);
    if (note == m->noted && m->noted_once && !flush) return;
    m->noted = note;
    m->noted_once = 1;
    rg_act_t *a = rg_member_act(m, RG_MACT_NOTE);
    a->note = note;
    if (flush || m->small_since_flush >= RG_FLUSH_EVERY) {
        a->flush = 1;
        m->small_since_flush = 0;
        m->unflushed = 0;
        m->flush_at = UINT64_MAX;
    }
}

/* The lowest watermark of the others, with how many have it: it changes only when the last of them moves on. */
void rg_ops_min(rg_member_t *m) {
    m->peer_min = UINT64_MAX;
    m->peer_min_count = 0;
    for (uint32_t i = 0; i < m->view.n; i++) {
        if (i == m->self_rank) continue;
        if (m->watermark[i] < m->peer_min) {
            m->peer_min = m->watermark[i];
            m->peer_min_count = 0;
        }
        if (m->watermark[i] == m->peer_min) m->peer_min_count++;
    }
}

static void keep_low(rg_member_t *m) {
    m->kept_low = UINT64_MAX;
    for (uint64_t left = m->kept_map; left; left &= left - 1) {
        uint64_t note = rg_key_note(m->ent[m->keep_slot[__builtin_ctzll(left)] - 1].key);
        if (note < m->kept_low) m->kept_low = note;
    }
}

void rg_op_release(rg_member_t *m, rg_ent_t *e) {
    rg_act_t *a = rg_member_act(m, RG_MACT_OP_RELEASE);
    a->key = e->key;
    uint32_t slot = e->keep - 1u;
    m->keep_slot[slot] = 0;
    m->kept_map &= ~((uint64_t)1 << slot);
    m->serve &= ~((uint64_t)1 << slot);
    rg_ent_remove(m, e);
    keep_low(m);
}

/* F3. A copy goes when every participant says that it has passed the operation. */
void rg_ops_release(rg_member_t *m) {
    uint64_t limit = m->peer_min > m->ack_min ? m->peer_min : m->ack_min;
    if (!m->kept_map || limit <= m->kept_low) return;
    for (uint64_t left = m->kept_map; left; left &= left - 1) {
        rg_ent_t *e = &m->ent[m->keep_slot[__builtin_ctzll(left)] - 1];
        if (rg_key_note(e->key) < limit) rg_op_release(m, e);
    }
    if (!m->delayed) return;
    rg_ops_commit_delayed(m);
    rg_ops_note(m, 0); /* the others may wait for this in turn */
}

void rg_ops_watermark(rg_member_t *m, uint64_t peer, uint64_t note) {
    rg_peer_t *p = rg_peer_find(m, peer);
    if (!m->have_view || !p || p->rank < 0 || (uint32_t)p->rank == m->self_rank) return;
    uint64_t old = m->watermark[p->rank];
    if (note <= old) return;
    m->watermark[p->rank] = note;
    if (old != m->peer_min) return;
    if (--m->peer_min_count == 0) rg_ops_min(m);
    if (!m->fenced) rg_ops_release(m);
}

/* ---- Outcomes -------------------------------------------------------------------------------------------------- */

/* C or R -> X. keep: others may need the result. When no place for a copy is free the outcome waits, because a
 * member never shows a result that a fault could take back. */
void rg_op_commit(rg_member_t *m, rg_ent_t *e, uint64_t computed, int keep) {
    e->computed = computed;
    if (keep && rg_key_note(e->key) < (m->peer_min > m->ack_min ? m->peer_min : m->ack_min))
        keep = 0; /* the others are past it: this was the last one */
    if (keep && !~m->kept_map) {
        if (e->state != RG_ENT_COMPLETE) m->delayed++;
        e->state = RG_ENT_COMPLETE;
        return;
    }
    if (e->state == RG_ENT_COMPLETE && !e->sig.rule_l) m->delayed--;
    e->state = RG_ENT_RUNNING; /* so that removal does not count it as delayed again */
    rg_act_t *a = rg_member_act(m, RG_MACT_OP_COMMIT);
    a->key = e->key;
    a->computed = computed;
    a->keep = (uint8_t)(keep != 0);
    if (!keep) {
        rg_ent_remove(m, e);
        return;
    }
    open_remove(m, e);
    unwant(m, e);
    e->state = RG_ENT_KEPT;
    uint32_t slot = (uint32_t)__builtin_ctzll(~m->kept_map); /* there is one, as was just seen */
    m->keep_slot[slot] = ent_index(m, e);
    m->kept_map |= (uint64_t)1 << slot;
    e->keep = (uint8_t)(slot + 1);
    m->small_since_flush++;
    uint64_t note = rg_key_note(e->key);
    if (note < m->kept_low) m->kept_low = note;
    /* Others may have gone quiet when the last of them hears of this; small groups say so soon by themselves. */
    m->unflushed = 1;
    if (m->view.n <= 64) m->flush_at = m->now + 10000000;
}

void rg_ops_commit_delayed(rg_member_t *m) {
    for (uint16_t i = m->first; i && m->delayed && ~m->kept_map;) {
        rg_ent_t *e = &m->ent[i - 1];
        i = e->next;
        if (e->state == RG_ENT_COMPLETE && !e->sig.rule_l) rg_op_commit(m, e, e->computed, 1);
    }
}

void rg_op_abort(rg_member_t *m, rg_ent_t *e, rg_status_t status, uint64_t blame, const char *text) {
    rg_act_t *a = rg_member_act(m, RG_MACT_OP_ABORT);
    a->key = e->key;
    a->status = (int16_t)status;
    a->peer = blame;
    a->text = text;
    rg_ent_remove(m, e);
}

void rg_ops_abort_all(rg_member_t *m, rg_status_t status, const char *text) {
    for (uint16_t i = m->first; i;) {
        rg_ent_t *e = &m->ent[i - 1];
        i = e->next;
        if (e->state == RG_ENT_KEPT) rg_op_release(m, e);
        else if (e->state == RG_ENT_MARKED || e->state == RG_ENT_DEAD) rg_ent_remove(m, e);
        else rg_op_abort(m, e, status, 0, text);
    }
}

/* The operation ends here alone (docs/protocol.md, section 7, and E8). The entry stays as "aborted", so that the next
 * view change makes the others end it too, and stays wanted, so that the coordinator hears of it. */
void rg_op_end_here(rg_member_t *m, rg_ent_t *e, rg_status_t status, uint64_t blame, const char *text) {
    rg_act_t *a = rg_member_act(m, RG_MACT_OP_ABORT);
    a->key = e->key;
    a->status = (int16_t)status;
    a->peer = blame;
    a->text = text;
    if (e->state == RG_ENT_COMPLETE && !e->sig.rule_l) m->delayed--;
    open_remove(m, e);
    e->state = RG_ENT_DEAD;
    e->status = (int16_t)status;
    e->blame = blame;
    e->text = rg_member_intern(m, text);
    a->text = m->texts[e->text];
    if (!e->wanted) m->wanted_count++;
    e->wanted = 1;
}

/* E8. It has no chance here, but how it ends is for all to be decided: somebody else may have ended it for a reason of
 * its own. Until then it waits, asked for. */
void rg_op_doom(rg_member_t *m, rg_ent_t *e, rg_status_t status, uint64_t blame, const char *text) {
    e->state = RG_ENT_DOOMED;
    e->status = (int16_t)status;
    e->blame = blame;
    e->text = rg_member_intern(m, text);
    if (!e->wanted) m->wanted_count++;
    e->wanted = 1;
}

static int ent_unfinished(const rg_ent_t *e) {
    return e->state == RG_ENT_QUEUED || e->state == RG_ENT_RUNNING || e->state == RG_ENT_FETCHING ||
           e->state == RG_ENT_DOOMED || e->state == RG_ENT_COMPLETE;
}

/* A participant of this operation that cannot be reached, or NULL. */
static const rg_peer_t *unreachable(rg_member_t *m, rg_op_key_t key) {
    uint32_t n = rg_ops_participants(m, key.gen);
    for (uint32_t i = 0; i < n; i++) {
        const rg_peer_t *p = i == m->self_rank ? NULL : rg_peer_find(m, m->view.members[i].id);
        if (!p || p->link != RG_LINK_DOWN || !rg_key_has(m, key, p->m.id)) continue;
        if (p->dead || m->now - p->down_ns >= m->reconnect_ns) return p; /* else it may come back: L4 */
    }
    return NULL;
}

static uint8_t unreachable_text(rg_member_t *m, const rg_peer_t *p) {
    char text[RG_CORE_TEXT_MAX];
    rg_text_t t = rg_text_begin(text, sizeof text);
    rg_text_str(&t, "the link to rank ");
    rg_text_u64(&t, (uint64_t)p->rank);
    rg_text_str(&t, " (member ");
    rg_text_u64(&t, p->m.id);
    rg_text_str(&t, ") is down (");
    rg_text_str(&t, p->text);
    rg_text_str(&t, ") and the coordinator, which would decide what happens, cannot be reached");
    return rg_member_intern(m, text);
}

/* What only an office can set going again: an operation that is stopped or whose participant cannot be reached, a
 * boundary that waits for a view. */
int rg_ops_stuck(rg_member_t *m) {
    if (m->wanted_gen) return 1;
    for (uint16_t i = m->first; i; i = m->ent[i - 1].next) {
        const rg_ent_t *e = &m->ent[i - 1];
        if (ent_unfinished(e) && (m->fenced || unreachable(m, e->key))) return 1;
    }
    return 0;
}

/* Called when the coordinator has been silent for a heartbeat: what it was asked for, and what a broken link keeps
 * from ending, ends here. */
void rg_ops_local_aborts(rg_member_t *m) {
    int any = 0;
    for (uint32_t i = 0; i < m->peers_high && !any; i++)
        any = m->peers[i].used && m->peers[i].rank >= 0 && m->peers[i].link == RG_LINK_DOWN;
    for (uint16_t i = m->first; i;) {
        rg_ent_t *e = &m->ent[i - 1];
        i = e->next;
        if (!ent_unfinished(e)) continue;
        const rg_peer_t *lost = any && !e->wanted ? unreachable(m, e->key) : NULL;
        if (e->wanted) rg_op_end_here(m, e, (rg_status_t)e->status, e->blame, m->texts[e->text]);
        else if (lost) rg_op_end_here(m, e, RG_ERR_COORDINATOR, lost->m.id, m->texts[unreachable_text(m, lost)]);
    }
    rg_ops_note(m, 0);
}

static void send_wanted(rg_member_t *m, const rg_ent_t *e) {
    rg_w_t w = rg_member_begin(m);
    rg_w_header(&w, RG_MSG_ABORT_OP);
    rg_w_key(&w, e->key);
    rg_w_u32(&w, (uint32_t)(int32_t)e->status);
    rg_w_u64(&w, e->blame);
    rg_w_text(&w, m->texts[e->text], RG_CORE_TEXT_MAX - 1);
    rg_member_send(m, &w);
}

/* After a new connection and after an activation: a request may have been lost on the way. */
void rg_ops_send_wanted(rg_member_t *m) {
    if (!m->wanted_count || m->fenced) return;
    for (uint16_t i = m->first; i; i = m->ent[i - 1].next)
        if (m->ent[i - 1].wanted) send_wanted(m, &m->ent[i - 1]);
}

/* ---- Events ---------------------------------------------------------------------------------------------------- */

/* What a decision that was waiting for this start says. */
static void start_marked(rg_member_t *m, rg_ent_t *e, const rg_op_sig_t *sig) {
    rg_op_key_t key = e->key;
    rg_ent_t was = *e;
    const char *text = m->texts[was.text];
    rg_ent_remove(m, e);
    e = rg_ent_add(m, key, RG_ENT_RUNNING); /* takes the entry that was just freed */
    open_add(m, e);
    e->sig = *sig;
    e->numbering = was.numbering ? was.numbering : m->view.data_epoch;
    if (was.mark == RG_ABORT) {
        rg_op_abort(m, e, (rg_status_t)was.status, was.blame, text);
    } else if (was.mark == RG_FORWARD && !rg_sig_same(&was.sig, sig)) {
        rg_op_abort(m, e, RG_ERR_MISMATCH, m->id, "the others have finished this operation with different arguments");
    } else if (was.mark == RG_FORWARD) {
        e->state = RG_ENT_FETCHING;
        e->donor = was.donor;
        e->computed = was.computed;
        rg_act_t *a = rg_member_act(m, RG_MACT_OP_FORWARD);
        a->key = key;
        a->peer = was.donor;
        a->computed = was.computed;
    } else {
        rg_act_t *a = rg_member_act(m, RG_MACT_OP_RUN);
        a->key = key;
        a->peer = sig->root;
    }
}

static uint8_t gone_text(rg_member_t *m, uint64_t id) {
    char text[RG_CORE_TEXT_MAX];
    rg_text_t t = rg_text_begin(text, sizeof text);
    rg_text_str(&t, "member ");
    rg_text_u64(&t, id);
    rg_text_str(&t, ", the other end of this message, is not in the group any more");
    return rg_member_intern(m, text);
}

/* F0. The root that the caller means is gone. Others may mean another member by the same rank, because they have heard
 * of the loss, so this is an end that they must hear of (E8). Nobody has shown a result: it would need what is sent
 * when the operation begins here.
 */
void rg_op_rootless(rg_member_t *m, rg_ent_t *e, uint64_t root) {
    static const char text[] = "the root of this operation is not a member any more";
    if (root == RG_ROOT_GONE) root = 0;
    rg_op_end_here(m, e, RG_ERR_ROOT_LOST, root, text);
}

/* F0. What cannot succeed in the present view ends at once. 1: it ended. */
static int hopeless(rg_member_t *m, rg_ent_t *e) {
    if (rg_set_is_pair(e->key.set)) {
        uint64_t from = rg_pair_from(e->key.set), other = from == m->id ? rg_pair_to(e->key.set) : from;
        if (rg_member_in_view(m, other)) return 0;
        rg_op_abort(m, e, RG_ERR_PEER_LOST, other, m->texts[gone_text(m, other)]);
    } else if (e->sig.root && !rg_member_in_view(m, e->sig.root)) {
        rg_op_rootless(m, e, e->sig.root);
    } else {
        return 0;
    }
    return 1;
}

void rg_op_begin(rg_member_t *m, rg_ent_t *e) {
    if (hopeless(m, e)) return;
    rg_act_t *a = rg_member_act(m, RG_MACT_OP_RUN);
    a->key = e->key;
    a->peer = e->sig.root;
}

static rg_status_t op_start(rg_member_t *m, const rg_member_event_t *ev) {
    m->why = "this process is not in the group any more";
    if (!m->have_view || m->told) return RG_ERR_CLOSED;
    rg_status_t st = rg_start_allowed(m, ev->key, &ev->sig);
    if (st != RG_OK) return st;
    rg_ent_t *e = rg_ent_find(m, ev->key);
    m->why = "this operation has been started already";
    if (e && e->state != RG_ENT_MARKED) return RG_ERR_INVALID;
    m->why = "512 operations of this process are in flight: wait for some of them";
    if (m->ents_own >= RG_CORE_MAX_OPS) return RG_ERR_RESOURCE;
    rg_start_taken(m, ev->key);
    if (e && !m->fenced) {
        start_marked(m, e, &ev->sig);
        rg_ops_note(m, 0);
        return RG_OK;
    }
    if (e) { /* fenced: the mark stays for the reports, and the next activation decides anew */
        m->ents_marked--;
        m->ents_own++;
        e->state = RG_ENT_QUEUED;
    } else {
        e = rg_ent_add(m, ev->key, m->fenced ? RG_ENT_QUEUED : RG_ENT_RUNNING);
        if (!e) return RG_ERR_BUG; /* there is room for RG_CORE_MAX_OPS own entries whatever the marks are */
    }
    open_add(m, e);
    e->sig = ev->sig;
    if (!e->mark || !e->numbering) e->numbering = m->view.data_epoch;
    if (m->fenced) return RG_OK;
    rg_op_begin(m, e);
    if (e->state == RG_ENT_DEAD) send_wanted(m, e);
    if (e->state != RG_ENT_RUNNING) rg_ops_note(m, 0); /* it is over already */
    return RG_OK;
}

int rg_member_may_run(const rg_member_t *m, uint64_t gen, uint32_t untold) {
    return m->have_view && !m->told && !m->fenced && m->leave_at == UINT64_MAX && gen == m->gen && !m->ofirst &&
           !m->ents_marked && !m->delayed && rg_member_copies(m) + untold <= RG_KEEP_MAX &&
           m->ents_own + untold <= RG_CORE_MAX_OPS;
}

/* The caller knows the outcome, so there is none to be given: what does not fit is a mistake of the caller's. */
static rg_status_t op_ran(rg_member_t *m, const rg_member_event_t *ev) {
    rg_op_key_t key = ev->key, before = { key.gen, key.op - 1, RG_SET_ALL };
    uint64_t limit = m->peer_min > m->ack_min ? m->peer_min : m->ack_min;
    if (!rg_member_may_run(m, key.gen, 1) || rg_key_tagged(key) || key.op < m->next0 || ev->sig.rule_l)
        return RG_ERR_BUG;
    if (key.op > m->next0 && rg_key_note(before) >= limit) return RG_ERR_BUG; /* its copy would be missing */
    m->next0 = key.op + 1;
    rg_ent_t *e = rg_ent_add(m, key, RG_ENT_RUNNING);
    if (!e) return RG_ERR_BUG;
    e->sig = ev->sig;
    e->numbering = m->view.data_epoch;
    rg_op_commit(m, e, m->view.data_epoch, rg_key_participants(m, key) > 1);
    rg_ops_note(m, 0);
    return RG_OK;
}

static void op_complete(rg_member_t *m, rg_ent_t *e) {
    int alone = rg_key_participants(m, e->key) <= 1;
    if (alone) {
        rg_op_commit(m, e, m->view.data_epoch, 0);
    } else if (e->sig.rule_l) {
        e->state = RG_ENT_COMPLETE;
        e->computed = m->view.data_epoch;
        return;
    } else {
        rg_op_commit(m, e, m->view.data_epoch, 1);
    }
    rg_ops_note(m, 0);
}

static void op_fail(rg_member_t *m, rg_ent_t *e, const rg_member_event_t *ev) {
    if (!ent_unfinished(e) || e->state == RG_ENT_DOOMED) return;
    /* Called behind the fence, and how it ends was decided before: the others have shown that. */
    int decided = e->state == RG_ENT_QUEUED && e->mark == RG_ABORT;
    if (!decided) {
        e->status = (int16_t)(ev->status < 0 ? ev->status : RG_ERR_CANCELLED);
        e->blame = ev->peer;
        e->text = rg_member_intern(m, ev->text);
        if (!e->wanted) m->wanted_count++;
        e->wanted = 1;
    }
    if (rg_member_lost_long(m) && !m->succession) {
        rg_op_end_here(m, e, (rg_status_t)e->status, e->blame, m->texts[e->text]);
        rg_ops_note(m, 0);
    } else if (!m->fenced) {
        send_wanted(m, e);
    }
}

rg_status_t rg_ops_event(rg_member_t *m, const rg_member_event_t *ev) {
    if (ev->type == RG_MEV_OP_START) return op_start(m, ev);
    if (ev->type == RG_MEV_OP_RAN) return op_ran(m, ev);
    rg_ent_t *e = m->have_view && !m->told ? rg_ent_find(m, ev->key) : NULL;
    if (!e) return RG_OK; /* it ended meanwhile */
    if (ev->type == RG_MEV_OP_FAIL) {
        op_fail(m, e, ev);
        return RG_OK;
    }
    if (m->fenced) return RG_OK; /* B8 */
    switch (ev->type) {
    case RG_MEV_OP_COMPLETE:
        if (e->state == RG_ENT_RUNNING) op_complete(m, e);
        break;
    case RG_MEV_OP_DONE:
        /* The DONE barrier includes this member, so it has ended only when the result is whole here too. */
        if (!e->sig.rule_l || (e->state != RG_ENT_RUNNING && e->state != RG_ENT_COMPLETE)) break;
        rg_op_commit(m, e, m->view.data_epoch, 0);
        rg_ops_note(m, 0);
        break;
    case RG_MEV_OP_FETCHED:
        if (e->state != RG_ENT_FETCHING) break;
        rg_op_commit(m, e, e->computed, rg_ops_participants(m, e->key.gen) > 1);
        rg_ops_note(m, 0);
        break;
    default: return RG_ERR_INVALID;
    }
    return RG_OK;
}

uint64_t rg_member_numbering(const rg_member_t *m, rg_op_key_t key) {
    for (uint32_t i = ent_hash(key); m->hash[i]; i = (i + 1) & (RG_ENT_HASH - 1)) {
        const rg_ent_t *e = &m->ent[m->hash[i] - 1];
        if (!key_same(e->key, key)) continue;
        return e->state == RG_ENT_MARKED && e->numbering != m->view.data_epoch ? e->numbering : 0;
    }
    return 0;
}
