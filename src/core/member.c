/* member.c: the door of a member's machine: memory layout, dispatch of events and messages, timers, the queue of
 * actions. It relies on member_ops.c, member_links.c and member_view.c for what events mean. It must not do I/O, read
 * a clock or allocate; what does not fit ends with a named status. */
#include "core/member.h"

#include <string.h>

#define BACKOFF_MIN_NS 100000000u
#define BACKOFF_MAX_NS 2000000000u
#define WELCOME_NS 5000000000u /* a coordinator that says nothing to a JOIN for so long is dialled anew */
#define NEVER UINT64_MAX

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

typedef struct rg_member_layout {
    size_t peers, cells, watermark, ids, serve, acts, members, next_members, sets, set_ids, set_scratch, leavers, prop,
        last, total;
    uint32_t peers_cap, cells_n, acts_n, serve_bytes;
} rg_member_layout_t;

static size_t layout_take(rg_member_layout_t *l, size_t bytes) {
    size_t at = l->total;
    l->total += (bytes + 15) & ~(size_t)15;
    return at;
}

static rg_member_layout_t member_layout(uint32_t max) {
    rg_member_layout_t l = { 0 };
    l.total = (sizeof(rg_member_t) + 15) & ~(size_t)15;
    l.peers_cap = 2 * max + 16;
    l.cells_n = rg_idmap_cells(l.peers_cap);
    l.acts_n = 2 * RG_ENT_MAX + 4 * l.peers_cap + 64;
    l.serve_bytes = (max + 7) / 8;
    l.peers = layout_take(&l, l.peers_cap * sizeof(rg_peer_t));
    l.cells = layout_take(&l, l.cells_n * sizeof(rg_idcell_t));
    l.watermark = layout_take(&l, (max + 1) * sizeof(uint64_t));
    l.ids = layout_take(&l, (max + 1) * sizeof(uint64_t));
    l.serve = layout_take(&l, (size_t)RG_KEEP_MAX * l.serve_bytes);
    l.acts = layout_take(&l, l.acts_n * sizeof(rg_act_t));
    l.members = layout_take(&l, (max + 1) * sizeof(rg_core_member_t));
    l.next_members = layout_take(&l, (max + 1) * sizeof(rg_core_member_t));
    l.sets = layout_take(&l, rg_idmap_cells(RG_CORE_MAX_SETS) * sizeof(rg_idcell_t));
    l.set_ids = layout_take(&l, (size_t)RG_SET_IDS_PER_MEMBER * max * sizeof(uint64_t));
    l.set_scratch = layout_take(&l, l.serve_bytes);
    l.leavers = layout_take(&l, (max + 1) * sizeof(rg_leaver_t));
    l.prop = layout_take(&l, RG_CORE_MAX_MESSAGE);
    l.last = layout_take(&l, RG_CORE_MAX_MESSAGE);
    return l;
}

size_t rg_member_size(uint32_t max_members) { return member_layout(max_members).total; }

rg_status_t rg_member_init(rg_member_t *m, const rg_member_params_t *p) {
    if (!m || !p || !p->max_members || p->max_members > 65536 || p->addr_len > RG_CORE_ADDR_MAX) return RG_ERR_INVALID;
    if (p->fixed_n && p->fixed_rank >= p->fixed_n) return RG_ERR_INVALID;
    rg_member_layout_t l = member_layout(p->max_members);
    uint8_t *base = (uint8_t *)m;
    m->p = *p;
    m->p.group[RG_CORE_NAME_MAX - 1] = m->p.label[RG_CORE_NAME_MAX - 1] = 0;
    m->peers = (rg_peer_t *)(void *)(base + l.peers);
    m->peers_cap = l.peers_cap;
    m->peer_map.cells = (rg_idcell_t *)(void *)(base + l.cells);
    m->peer_map.mask = l.cells_n - 1;
    m->watermark = (uint64_t *)(void *)(base + l.watermark);
    m->scratch_ids = (uint64_t *)(void *)(base + l.ids);
    m->serve_map = base + l.serve;
    m->serve_bytes = l.serve_bytes;
    m->acts = (rg_act_t *)(void *)(base + l.acts);
    m->act_cap = l.acts_n;
    m->view.members = (rg_core_member_t *)(void *)(base + l.members);
    m->next_members = (rg_core_member_t *)(void *)(base + l.next_members);
    m->set_map.cells = (rg_idcell_t *)(void *)(base + l.sets);
    m->set_map.mask = rg_idmap_cells(RG_CORE_MAX_SETS) - 1;
    m->set_ids = (uint64_t *)(void *)(base + l.set_ids);
    m->set_ids_cap = RG_SET_IDS_PER_MEMBER * p->max_members;
    m->set_scratch = base + l.set_scratch;
    m->leavers = (rg_leaver_t *)(void *)(base + l.leavers);
    m->prop = base + l.prop;
    m->chosen = base + l.last;
    m->why = "";
    m->backoff_ns = BACKOFF_MIN_NS;
    m->control_at = m->heartbeat_at = m->leave_at = m->ready_at = m->redial_at = m->flush_at = NEVER;
    m->kept_low = m->peer_min = NEVER;
    return RG_OK;
}

/* ---- Actions and messages -------------------------------------------------------------------------------------- */

rg_act_t *rg_member_act(rg_member_t *m, rg_mact_t type) {
    /* The queue holds the largest answer that one event can have; a full one is a broken invariant, and the spare
     * last entry takes what is written into the void. */
    if (m->act_n + 1 >= m->act_cap) m->broken = 1;
    else m->act_n++;
    rg_act_t *a = &m->acts[m->act_n - 1];
    memset(a, 0, sizeof *a);
    a->type = (uint8_t)type;
    return a;
}

rg_w_t rg_member_begin(rg_member_t *m) {
    rg_w_t w = { m->out + m->out_len, 0, RG_OUT_BYTES - m->out_len, 0 };
    if (w.cap > RG_CORE_MAX_MESSAGE) w.cap = RG_CORE_MAX_MESSAGE;
    return w;
}

void rg_member_send(rg_member_t *m, const rg_w_t *w) {
    if (w->bad) {
        m->broken = 1;
        return;
    }
    if (!m->control_up) return; /* what matters is said again when the connection is back */
    rg_act_t *a = rg_member_act(m, RG_MACT_SEND);
    a->off = (uint32_t)m->out_len;
    a->len = (uint32_t)w->len;
    m->out_len += w->len;
}

static int serve_next(rg_member_t *m, rg_member_action_t *a) {
    while (m->serve) {
        uint32_t slot = (uint32_t)__builtin_ctzll(m->serve);
        const uint8_t *map = m->serve_map + (size_t)slot * m->serve_bytes;
        while (m->serve_at < m->view.n && !(map[m->serve_at / 8] >> (m->serve_at % 8) & 1)) m->serve_at++;
        if (m->keep_slot[slot] && m->serve_at < m->view.n) {
            memset(a, 0, sizeof *a);
            a->type = RG_MACT_OP_SERVE;
            a->text = "";
            a->key = m->ent[m->keep_slot[slot] - 1].key;
            a->computed = m->ent[m->keep_slot[slot] - 1].computed;
            a->peer = m->view.members[m->serve_at++].id;
            return 1;
        }
        m->serve &= m->serve - 1;
        m->serve_at = 0;
    }
    return 0;
}

int rg_member_next(rg_member_t *m, rg_member_action_t *out) {
    if (m->act_at >= m->act_n) return serve_next(m, out);
    const rg_act_t *a = &m->acts[m->act_at++];
    memset(out, 0, sizeof *out);
    out->type = (rg_mact_t)a->type;
    out->bytes = a->len ? m->out + a->off : NULL;
    out->len = a->len;
    out->peer = a->peer;
    out->member = a->member;
    out->dial = a->dial;
    out->gen = a->gen;
    out->note = a->note;
    out->computed = a->computed;
    out->keep = a->keep;
    out->flush = a->flush;
    out->via = a->via;
    out->on = a->on;
    out->key = a->key;
    out->status = (rg_status_t)a->status;
    out->text = a->text ? a->text : "";
    if (a->type == RG_MACT_WELCOME) {
        out->mode = m->succession ? RG_MODE_SUCCESSION : RG_MODE_AUTHORITY;
    }
    if (a->type == RG_MACT_WELCOME || a->type == RG_MACT_OFFICE_OPEN) {
        memcpy(out->nonce, m->nonce, 16);
        out->heartbeat_ns = m->heartbeat_ns;
        out->reconnect_ns = m->reconnect_ns;
        out->takeover_ns = m->takeover_ns;
    }
    return 1;
}

/* ---- The end of membership ------------------------------------------------------------------------------------- */

/* B4. Everything open ends first, so that the caller can show one error for each operation. */
void rg_member_expel(rg_member_t *m, rg_status_t status, const char *text, uint64_t epoch) {
    if (m->told) return;
    rg_text_copy(m->told_text, sizeof m->told_text, text);
    if (m->have_view && !m->fenced) rg_member_act(m, RG_MACT_FENCE);
    rg_ops_abort_all(m, status, m->told_text);
    m->fenced = 0;
    m->told = 1;
    m->told_epoch = epoch;
    m->told_status = status;
    m->phase = RG_PH_OVER;
    m->wanted_gen = 0;
    m->promise_on = 0;
    m->serve = 0;
    m->heartbeat_at = m->leave_at = m->ready_at = m->redial_at = m->flush_at = m->control_at = NEVER;
    if (m->office) rg_member_act(m, RG_MACT_OFFICE_CLOSE);
    m->office = 0;
    rg_act_t *a = rg_member_act(m, RG_MACT_EXPELLED);
    a->status = (int16_t)status;
    a->text = m->told_text;
}

void rg_member_refused(rg_member_t *m, rg_status_t status, const char *text) {
    rg_text_copy(m->told_text, sizeof m->told_text, text);
    m->phase = RG_PH_OVER;
    m->heartbeat_at = m->ready_at = m->redial_at = m->control_at = m->leave_at = NEVER;
    rg_act_t *a = rg_member_act(m, RG_MACT_REFUSED);
    a->status = (int16_t)(status ? status : RG_ERR_REFUSED);
    a->text = m->told_text;
}

static void member_leave(rg_member_t *m) {
    if (m->phase == RG_PH_OVER) return;
    /* Others keep copies for this member until they hear that it is past the last operation; when the coordinator
     * goes at the same time no view tells them. */
    if (m->have_view && !m->fenced) rg_ops_note(m, 1);
    if (m->phase == RG_PH_MEMBER && m->control_up && !rg_member_lost_long(m)) {
        rg_w_t w = rg_member_begin(m);
        rg_w_header(&w, RG_MSG_LEAVE);
        rg_member_send(m, &w);
        m->leave_at = m->now + m->heartbeat_ns;
        return;
    }
    if (m->control_up) {
        rg_w_t w = rg_member_begin(m);
        rg_w_header(&w, RG_MSG_LEAVE);
        rg_member_send(m, &w);
    }
    rg_member_expel(m, RG_ERR_CLOSED, "left; the coordinator could not be told in time", m->view.epoch);
}

/* ---- The connection to the coordinator ------------------------------------------------------------------------- */

/* A member that can come back within the heartbeat is not lost, so the first try comes well before. */
static uint64_t backoff_min(const rg_member_t *m) {
    return m->heartbeat_ns && m->heartbeat_ns / 8 < BACKOFF_MIN_NS ? m->heartbeat_ns / 8 : BACKOFF_MIN_NS;
}

/* ---- Succession: whom to ask (S1, S2) -------------------------------------------------------------------------- */

rg_msg_rebind_t rg_member_self(const rg_member_t *m) {
    rg_msg_rebind_t b = { .id = m->id,
                          .epoch = m->view.epoch,
                          .accepted = m->accepted,
                          .upto = m->upto,
                          .waits =
                              (uint8_t)((m->fenced ? RG_WAITS_FENCED : 0) | (m->promise_on ? RG_WAITS_PROMISE : 0)),
                          .pid = m->p.pid,
                          .term = m->promised };
    memcpy(b.group, m->p.group, sizeof b.group);
    memcpy(b.label, m->p.label, sizeof b.label);
    memcpy(b.nonce, m->nonce, sizeof b.nonce);
    return b;
}

static int succeeds(const rg_member_t *m) { return m->succession && m->phase == RG_PH_MEMBER; }

static uint64_t silence(const rg_member_t *m) { return m->now - m->last_heard; }

static void office_close(rg_member_t *m) {
    if (m->office) rg_member_act(m, RG_MACT_OFFICE_CLOSE);
    m->office = 0;
}

/* Older members that can be reached, as far as the links say. Where a whole host died, those who lived on it are none,
 * and the next one must not wait for their turns to pass. */
static uint32_t elders(const rg_member_t *m) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->self_rank; i++) {
        const rg_peer_t *p = rg_peer_find(m, m->view.members[i].id);
        n += p && p->link == RG_LINK_UP;
    }
    return n;
}

/* S3. For how long without an acting office this member goes on; NEVER: without end. */
static uint64_t endurance(rg_member_t *m) {
    uint64_t asked = m->wanted_count || rg_ops_stuck(m) ? m->takeover_ns + 4 * m->heartbeat_ns : NEVER;
    uint64_t any = m->p.quorum_ns ? m->takeover_ns + m->p.quorum_ns : NEVER;
    return asked < any ? asked : any;
}

/* S2. In what may be its last heartbeat a member looks for the offices of others to the end: its own, were it opened
 * then or open already, would hardly fill in time, unless it is the first. */
static int last_heartbeat(rg_member_t *m) { return elders(m) && silence(m) + m->heartbeat_ns >= endurance(m); }

/* S2. In the order of the view, each half a heartbeat after the one before, so that the first one that can has the
 * others come to it. */
static int may_host(rg_member_t *m) {
    if (!m->p.host_office || silence(m) < m->takeover_ns + elders(m) * (m->heartbeat_ns / 2)) return 0;
    return !last_heartbeat(m);
}

static void office_open(rg_member_t *m) {
    m->office = 1;
    rg_act_t *a = rg_member_act(m, RG_MACT_OFFICE_OPEN);
    a->note = m->id | (uint64_t)(++m->offices & 0x3fffffffu) << 32;
    a->on = m->returns;
}

/* Offices that are open at once keep each other from a quorum, so the oldest one is to have it: who has come to that
 * of an older member opens none, and looks once more, before it thinks of its own again. */
static int elder_hosts(rg_member_t *m) {
    int elder = m->elder;
    m->elder = 0;
    return elder;
}

/* The place at the cursor among those where an office is likely: where it was, the coordinator's own address, and the
 * oldest of those who can be reached; as time passes more of them, by S2 and because others may have missed the
 * coordinator sooner. */
static uint64_t likely_place(rg_member_t *m) {
    uint64_t lost = silence(m), most = 6 + (lost > m->takeover_ns ? 4 * (lost - m->takeover_ns) / m->heartbeat_ns : 0);
    uint32_t at = m->near++, n = 2;
    for (uint32_t i = 0; at >= 2 && i < m->view.n && n < most + 2; i++) {
        uint64_t id = m->view.members[i].id;
        const rg_peer_t *p = rg_peer_find(m, id);
        if (id != m->id && (!p || p->link == RG_LINK_DOWN)) continue;
        if (n == at) return id;
        n++;
    }
    if (at >= 2) m->near = 1;
    return at == 1 || m->home == m->id ? 0 : m->home;
}

/* S1. Three of four tries go where an office is likely, so that finding one takes no longer in a large group, the
 * fourth along the whole view: links may tell one member something else than another. Before the time for a takeover
 * there are two places only, and after it they come last; nor is it waited for an office that is there and says that it
 * acts no more: too few have stayed with it, and the others may have theirs by now. */
static uint64_t next_target(rg_member_t *m) {
    uint64_t last = m->target, home = m->home == m->id ? 0 : m->home;
    if (!succeeds(m)) return 0;
    m->walk++;
    if (silence(m) < m->takeover_ns && !m->lacks) {
        m->near = 2;
        return m->walk % 2 ? home : 0;
    }
    for (uint32_t tries = 0; tries < m->view.n + 8; tries++, m->walk++) {
        int far = m->walk % 4 == 3;
        uint64_t t = far ? m->view.members[m->walk / 4 % m->view.n].id : likely_place(m);
        if (t == last || (far && t == m->id)) continue; /* there it was not, a moment ago */
        if (t == m->id && (!may_host(m) || elder_hosts(m))) continue;
        if (t && t != m->id && !rg_peer_find(m, t)) continue;
        if (t == m->id) office_open(m);
        return t;
    }
    return home;
}

/* An office here that has not found a quorum is given up before another one is looked for. */
static void control_dial(rg_member_t *m) {
    office_close(m);
    m->target = next_target(m);
    const rg_peer_t *p = m->target ? rg_peer_find(m, m->target) : NULL;
    rg_act_t *a = rg_member_act(m, RG_MACT_CONTROL);
    a->peer = m->target;
    a->member = p ? &p->m : NULL;
}

/* S4. At the coordinator's own address; if it does not act there the others are asked, the oldest first, before an
 * office is opened here again: they may have one by now. */
static void office_returns(rg_member_t *m) {
    uint32_t first = 2 + !elders(m); /* likely_place(): the first member, or the one after this one */
    m->near = 0;
    control_dial(m);
    m->near = first;
}

/* The sign that an office acts. What was said to it before it did may not have been heard. */
static void control_heard(rg_member_t *m) {
    int missed = m->phase == RG_PH_MEMBER && !m->succession && rg_member_lost_long(m);
    m->last_heard = m->now;
    m->control_silent = 0;
    m->lacks = 0;
    if (missed) rg_ops_send_wanted(m); /* K2, for what ended here alone while this connection was silent */
    if (!succeeds(m) || m->heard) return;
    m->heard = 1;
    m->home = m->target;
    m->elder = 0;
    if (!m->home) m->returns = 0;
    m->walk = 0;
    rg_links_complain_again(m);
    rg_ops_send_wanted(m);
}

/* An office that asks, or says that it does not act; here: how many have come to it. While more come it is waited for
 * anew: whoever left it then would have to be found by them again. Each number counts once, so that has an end. */
static void office_found(rg_member_t *m, uint32_t here) {
    const rg_peer_t *p = m->target && m->target != m->id ? rg_peer_find(m, m->target) : NULL;
    if (succeeds(m) && m->heard && here && !m->lacks) {
        m->lacks = 1;
        m->near = 2;
    }
    if (!succeeds(m) || m->heard) return;
    int older = p && p->rank >= 0 && (uint32_t)p->rank < m->self_rank;
    m->probed = 1 + older;
    m->elder |= older;
    if (here <= m->gathered) return;
    m->gathered = here;
    m->gathered_at = m->now;
}

/* How long an open connection may be silent before another one is tried. By authority that is well after the
 * coordinator would have lost this member if it heard as little of it: where the line stood still for less, hanging up
 * would be what costs it its place. An office that acts, and has heard nothing for a heartbeat, takes this member for
 * lost, so with succession, where who hangs up is waited for, it is less than that. One that does not act waits for
 * others to come: that of the eldest so long that all can find it, and who has come to an older member's stays; others
 * give up sooner, and not all at once. */
static uint64_t patience(const rg_member_t *m) {
    uint64_t beat = m->heartbeat_ns, h = (m->id * 0x9e3779b97f4a7c15u ^ m->offices * 0xc2b2ae3d27d4eb4fu) >> 40;
    if (!succeeds(m)) return 2 * beat;
    if (m->office) return !elders(m) ? 5 * beat / 2 : beat + h % 64 * (beat / 128);
    return m->probed == 2 && !m->heard ? 2 * beat : beat - beat / 4;
}

/* S3. Nobody with a quorum can be found. Only stopping is certain to contradict nobody: a member that ended one
 * operation alone and went on could meet others who finished it. */
static void quorum_stop(rg_member_t *m) {
    if (silence(m) < endurance(m)) return;
    rg_member_expel(m, RG_ERR_NO_QUORUM,
                    "no coordinator that more than half of the group follows could be reached: the others may have "
                    "gone on; destroy the handle and join again, with state that is stale",
                    m->view.epoch);
}

/* How long a JOIN may stay without an answer. Who was a candidate before knows how fast this group is: a view may have
 * been chosen in which it enters, and what is left of that group does not wait for its vote for long (G6). */
static uint64_t welcome_ns(const rg_member_t *m) {
    return m->heartbeat_ns && 2 * m->heartbeat_ns < WELCOME_NS ? 2 * m->heartbeat_ns : WELCOME_NS;
}

static void control_up(rg_member_t *m) {
    m->control_up = m->control_ever = 1;
    m->heard = m->probed = 0;
    m->gathered = 0;
    m->gathered_at = m->now;
    m->asked_control = 0;
    m->control_silent = 0;
    m->control_at = NEVER;
    /* By authority, time for an answer is given once, and not anew to each connection that comes after one without any:
     * whoever is at the coordinator's address now may take them and hang up, again and again. */
    int anew = m->phase != RG_PH_MEMBER || m->succession || m->last_heard >= m->control_since;
    if (anew) m->control_since = m->now;
    m->backoff_ns = backoff_min(m);
    if (m->phase == RG_PH_OVER) return;
    if (m->phase != RG_PH_MEMBER) {
        rg_links_join(m);
        m->heartbeat_at = m->now + welcome_ns(m);
        return;
    }
    rg_msg_rebind_t b = rg_member_self(m);
    rg_w_t w = rg_member_begin(m);
    rg_w_rebind(&w, &b);
    rg_member_send(m, &w);
    m->heartbeat_at = m->now;
    rg_links_complain_again(m);
    rg_ops_send_wanted(m);
}

static void control_down(rg_member_t *m) {
    m->control_up = 0;
    m->asked_control = 1;
    if (m->phase == RG_PH_OVER) return;
    if (m->leave_at != NEVER) { /* whether it heard of that or not: it is not said twice */
        rg_member_expel(m, RG_ERR_CLOSED, "left; the coordinator could not be told in time", m->view.epoch);
        return;
    }
    m->control_at = m->now + m->backoff_ns;
    m->backoff_ns = m->backoff_ns * 2 > BACKOFF_MAX_NS ? BACKOFF_MAX_NS : m->backoff_ns * 2;
    if (succeeds(m)) m->control_at = m->now + m->heartbeat_ns / 16; /* another place is tried next */
    if (m->phase != RG_PH_MEMBER) m->heartbeat_at = NEVER;
    else if (m->heartbeat_at == NEVER) m->heartbeat_at = m->now + m->heartbeat_ns / 8;
}

static void send_heartbeat(rg_member_t *m) {
    rg_msg_heartbeat_t h = { .epoch = m->have_view ? m->view.epoch : 0,
                             .gen = m->gen,
                             .watermark = m->noted,
                             .bytes_sent = m->bytes_sent,
                             .bytes_received = m->bytes_received,
                             .operations = m->operations };
    memcpy(h.net, m->net, sizeof h.net);
    rg_w_t w = rg_member_begin(m);
    rg_w_heartbeat(&w, &h);
    rg_member_send(m, &w);
    m->heartbeat_at = m->now + m->heartbeat_ns / 8;
}

/* Q4. Fenced, and for a heartbeat nobody has gone on with a round: an office that took over may not know that one was
 * begun, so it is told as if this member had just come. */
static void ask_for_round(rg_member_t *m) {
    if (!m->succession || !m->fenced || !m->control_up || m->now - m->round_heard < m->heartbeat_ns) return;
    m->round_heard = m->now;
    rg_view_tell(m);
}

/* B7. The connection may be open and dead: only a new one can tell. S2: an office of one's own that has not filled by
 * what may be the last heartbeat is given up for the others', however many have come to it, the oldest's first. */
static void try_anew(rg_member_t *m) {
    uint64_t wait = patience(m), lost = m->office && wait > m->heartbeat_ns ? m->heartbeat_ns : wait;
    if (!m->heartbeat_ns || silence(m) < lost || !m->control_up || m->control_silent) return;
    int last = m->office && last_heartbeat(m);
    if (m->now - m->gathered_at < wait && !last) return;
    if (last) m->near = 2;
    m->control_silent = 1;
    control_dial(m);
}

/* ---- Timers ---------------------------------------------------------------------------------------------------- */

static void member_timers(rg_member_t *m) {
    if (m->phase == RG_PH_OVER || m->broken) return;
    if (!m->control_ever && !m->asked_control && !m->control_up) {
        m->asked_control = 1;
        rg_member_act(m, RG_MACT_CONTROL);
    }
    if (m->now >= m->control_at && !m->told) {
        m->control_at = m->now + m->backoff_ns;
        m->backoff_ns = m->backoff_ns * 2 > BACKOFF_MAX_NS ? BACKOFF_MAX_NS : m->backoff_ns * 2;
        control_dial(m);
    }
    if (m->now >= m->leave_at) {
        rg_member_expel(m, RG_ERR_CLOSED, "left; the coordinator did not answer", m->view.epoch);
        return;
    }
    if (m->now >= m->heartbeat_at && m->phase == RG_PH_NEW) {
        m->heartbeat_at = NEVER;
        control_dial(m);
    }
    if (m->now >= m->heartbeat_at) {
        send_heartbeat(m);
        ask_for_round(m);
        if (m->phase == RG_PH_CANDIDATE && m->succession && m->control_up && rg_member_lost_long(m) &&
            m->now - m->control_since >= m->heartbeat_ns) {
            m->heartbeat_at = NEVER; /* the connection is dead, or leads to a coordinator that does not act */
            control_dial(m);
        }
        if (m->phase == RG_PH_MEMBER) try_anew(m);
        if (m->phase == RG_PH_MEMBER && rg_member_lost_long(m)) {
            if (m->succession) quorum_stop(m);
            else rg_ops_local_aborts(m);
        }
    }
    if (m->now >= m->ready_at) rg_links_ready(m);
    if (m->now >= m->redial_at) rg_links_redial(m);
    if (m->now >= m->flush_at) {
        m->flush_at = NEVER;
        if (m->unflushed && m->have_view && !m->fenced) rg_ops_note(m, 1);
    }
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

uint64_t rg_member_deadline(const rg_member_t *m) {
    if (m->phase == RG_PH_OVER || m->broken) return NEVER;
    if (!m->control_ever && !m->asked_control) return 0;
    uint64_t d = least(m->control_at, m->heartbeat_at);
    d = least(d, least(m->leave_at, m->ready_at));
    return least(d, least(m->redial_at, m->flush_at));
}

/* ---- Messages -------------------------------------------------------------------------------------------------- */

static void on_welcome(rg_member_t *m, rg_r_t *r) {
    if (m->phase != RG_PH_NEW) return;
    uint8_t before[16];
    memcpy(before, m->nonce, sizeof before);
    m->id = rg_r_u64(r);
    rg_r_bytes(r, m->nonce, 16);
    m->heartbeat_ns = rg_r_u64(r);
    m->succession = rg_r_u8(r) == RG_MODE_SUCCESSION;
    m->takeover_ns = rg_r_u64(r);
    m->reconnect_ns = rg_r_u64(r);
    if (r->bad || !m->id) {
        r->bad = 1;
        return;
    }
    if (m->heartbeat_ns < 1000000) m->heartbeat_ns = 1000000;
    /* What broke since is made anew: the other end may have given it up for one that it did not know. */
    rg_links_forget(m, m->id == m->was && memcmp(before, m->nonce, sizeof before) == 0);
    m->phase = RG_PH_CANDIDATE;
    m->backoff_ns = backoff_min(m);
    m->heartbeat_at = m->now + m->heartbeat_ns / 8;
    rg_act_t *a = rg_member_act(m, RG_MACT_WELCOME);
    a->peer = m->id;
}

static void on_refuse(rg_member_t *m, rg_r_t *r) {
    rg_status_t status = (rg_status_t)(int32_t)rg_r_u32(r);
    char text[RG_CORE_TEXT_MAX];
    rg_r_text(r, text, sizeof text);
    /* A member is never refused, only expelled: a coordinator that does not know us was started anew and will not
     * know us later either, but the group can go on without one. */
    if (r->bad || m->phase == RG_PH_MEMBER || m->phase == RG_PH_OVER) return;
    rg_member_refused(m, status, text);
}

static void on_ack(rg_member_t *m, rg_r_t *r) {
    uint64_t epoch = rg_r_u64(r), low = rg_r_u64(r);
    if (r->bad || !m->have_view || epoch != m->view.epoch) return;
    if (low > m->ack_min) {
        m->ack_min = low;
        if (!m->fenced) rg_ops_release(m);
    }
}

static void on_expel(rg_member_t *m, rg_r_t *r) {
    rg_term_t term = rg_r_term(r);
    uint64_t epoch = rg_r_u64(r);
    rg_status_t status = (rg_status_t)(int32_t)rg_r_u32(r);
    char text[RG_CORE_TEXT_MAX];
    rg_r_text(r, text, sizeof text);
    (void)term;
    if (r->bad) return;
    rg_member_expel(m, status ? status : RG_ERR_EXPELLED, text, epoch);
}

static void on_waiting(rg_member_t *m, rg_r_t *r) {
    rg_r_u32(r);
    rg_r_text(r, m->act_text, sizeof m->act_text);
    if (r->bad || m->phase != RG_PH_CANDIDATE) return;
    rg_member_act(m, RG_MACT_WAITING)->text = m->act_text;
}

static void on_probe(rg_member_t *m, rg_r_t *r) {
    uint64_t epoch = rg_r_u64(r);
    uint32_t here = rg_r_u32(r);
    office_found(m, r->bad ? 0 : here);
    if (m->told || (m->have_view && epoch < m->view.epoch)) {
        rg_view_certify(m);
    } else if (succeeds(m)) { /* an office that acts from now on */
        rg_links_complain_again(m);
        rg_ops_send_wanted(m);
    }
}

static void on_message(rg_member_t *m, const rg_member_event_t *ev) {
    rg_r_t r = { ev->bytes, ev->len, 0, 0 };
    uint16_t version;
    uint32_t type = rg_r_header(&r, &version);
    if (!type || (version != RG_WIRE_VERSION && type != RG_MSG_REFUSE)) return;
    /* One that does not know this member is not the coordinator that is missed: its word is no sign of life. */
    if (type == RG_MSG_REFUSE && m->phase == RG_PH_MEMBER) return;
    /* One that asks for our view does not act yet. */
    if (type != RG_MSG_PROBE || !succeeds(m)) control_heard(m);
    switch (type) {
    case RG_MSG_WELCOME: on_welcome(m, &r); break;
    case RG_MSG_REFUSE: on_refuse(m, &r); break;
    case RG_MSG_WAITING: on_waiting(m, &r); break;
    case RG_MSG_PEERS: rg_links_peers(m, &r); break;
    case RG_MSG_PREPARE: rg_view_prepare(m, &r); break;
    case RG_MSG_FREEZE: rg_view_freeze(m, &r); break;
    case RG_MSG_INSTALL: rg_view_install(m, &r); break;
    case RG_MSG_ACTIVATE: rg_view_activate(m, &r); break;
    case RG_MSG_EXPEL: on_expel(m, &r); break;
    case RG_MSG_ROUTE: rg_links_route(m, &r); break;
    case RG_MSG_HEARTBEAT_ACK: on_ack(m, &r); break;
    case RG_MSG_PROBE: on_probe(m, &r); break;
    case RG_MSG_NACK: {
        rg_term_t t = rg_r_term(&r);
        if (!r.bad && rg_term_cmp(t, m->promised) > 0) m->promised = t; /* B5 */
        break;
    }
    default: break;
    }
}

/* ---- The step -------------------------------------------------------------------------------------------------- */

/* A process that was stopped sees all its timers pass at once, while what the coordinator said is still unread. The
 * time it slept does not count as the coordinator's silence. */
static void member_clock(rg_member_t *m, uint64_t now) {
    if (now < m->now) now = m->now;
    m->now = now;
    uint64_t gap = now - m->last_step;
    if (m->last_step && m->heartbeat_ns && gap > m->heartbeat_ns / 4) {
        m->last_heard += gap - m->heartbeat_ns / 8;
        if (m->last_heard > now) m->last_heard = now;
    }
    m->last_step = now;
}

rg_status_t rg_member_step(rg_member_t *m, const rg_member_event_t *ev) {
    if (m->broken) return RG_ERR_BUG;
    m->act_n = m->act_at = 0;
    m->out_len = 0;
    m->serve = 0;
    m->serve_at = 0;
    member_clock(m, ev->now_ns);
    if (ev->bytes_sent) m->bytes_sent = ev->bytes_sent;
    if (ev->bytes_received) m->bytes_received = ev->bytes_received;
    if (ev->operations) m->operations = ev->operations;
    rg_status_t status = RG_OK;
    switch (ev->type) {
    case RG_MEV_TICK: break;
    case RG_MEV_CONTROL_UP: control_up(m); break;
    case RG_MEV_CONTROL_DOWN: control_down(m); break;
    case RG_MEV_MESSAGE: on_message(m, ev); break;
    case RG_MEV_LINK_UP:
    case RG_MEV_LINK_DOWN: rg_links_event(m, ev); break;
    case RG_MEV_BOUNDARY: rg_view_boundary(m, ev->gen); break;
    case RG_MEV_WATERMARK: rg_ops_watermark(m, ev->peer, ev->note); break;
    case RG_MEV_LEAVE: member_leave(m); break;
    case RG_MEV_RETURN:
        if (!m->office) break;
        m->home = 0;
        m->walk = 0;
        m->returns++;
        office_returns(m);
        break;
    case RG_MEV_NET: memcpy(m->net, ev->net, sizeof m->net); break;
    case RG_MEV_RELEASE: rg_links_release(m); break;
    default: status = rg_ops_event(m, ev); break;
    }
    if (m->now >= rg_member_deadline(m)) member_timers(m);
    return m->broken ? RG_ERR_BUG : status;
}

/* ---- Questions ------------------------------------------------------------------------------------------------- */

const rg_core_view_t *rg_member_view(const rg_member_t *m) { return m->have_view ? &m->view : NULL; }
uint64_t rg_member_id(const rg_member_t *m) { return m->id; }
int rg_member_fenced(const rg_member_t *m) { return m->fenced; }

int rg_member_coordinator_lost(const rg_member_t *m) {
    return m->phase == RG_PH_MEMBER && (!m->control_up || rg_member_lost_long(m));
}

int rg_member_newcomers(const rg_member_t *m) {
    if (!m->have_view) return 0;
    return m->promise_on || (m->view.n && m->view.members[m->view.n - 1].first_gen > m->gen);
}

int rg_member_drained(const rg_member_t *m) { return !m->kept_map && !m->delayed; }

uint32_t rg_member_participants(const rg_member_t *m, uint64_t gen, uint64_t *ids, uint32_t cap) {
    uint32_t n = 0;
    for (uint32_t i = 0; m->have_view && i < m->view.n; i++) {
        if (m->view.members[i].first_gen > gen) continue;
        if (n < cap) ids[n] = m->view.members[i].id;
        n++;
    }
    return n;
}
