/* coord.c: the door of the coordinator's machine: memory layout, dispatch, timers, heartbeats, the roll. It relies on
 * coord_join.c for growth, coord_round.c for recovery, coord_decide.c for decisions and coord_claim.c for succession.
 * It must not do I/O, read a clock or allocate, and it must survive any bytes on any connection. */
#include "core/coord.h"

#include <string.h>

#define NEVER UINT64_MAX

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

typedef struct rg_coord_layout {
    size_t seats, roster, rank_seat, next_rank, conns, ids, sets, lost, maps, set_maps, reports, activate, prop, out,
        acts, total;
    size_t reports_n, activate_n, out_n;
    uint32_t cells, acts_n, map_len;
} rg_coord_layout_t;

static size_t layout_take(rg_coord_layout_t *l, size_t bytes) {
    size_t at = l->total;
    l->total += (bytes + 15) & ~(size_t)15;
    return at;
}

static rg_coord_layout_t coord_layout(uint32_t max) {
    rg_coord_layout_t l = { 0 };
    l.total = (sizeof(rg_coord_t) + 15) & ~(size_t)15;
    l.cells = rg_idmap_cells(max);
    l.acts_n = 16 * max + 256;
    l.map_len = (max + 7) / 8;
    l.reports_n = RG_CORE_MAX_MESSAGE + (size_t)max * 131072;
    l.activate_n = RG_CORE_MAX_MESSAGE;
    l.out_n = 2 * (size_t)RG_CORE_MAX_MESSAGE + (size_t)max * 2048;
    l.seats = layout_take(&l, max * sizeof(rg_seat_t));
    l.roster = layout_take(&l, max * sizeof(uint32_t));
    l.rank_seat = layout_take(&l, max * sizeof(uint32_t));
    l.next_rank = layout_take(&l, max * sizeof(uint32_t));
    l.conns = layout_take(&l, l.cells * sizeof(rg_idcell_t));
    l.ids = layout_take(&l, l.cells * sizeof(rg_idcell_t));
    l.maps = layout_take(&l, (size_t)2 * RG_UNTAGGED_MAX * l.map_len);
    l.set_maps = layout_take(&l, (size_t)2 * RG_SETS_IN_VIEW * l.map_len);
    l.lost = layout_take(&l, max * sizeof(uint32_t));
    l.sets = layout_take(&l, rg_idmap_cells(RG_SETS_IN_VIEW) * sizeof(rg_idcell_t));
    l.acts = layout_take(&l, l.acts_n * sizeof(rg_cact_rec_t));
    l.reports = layout_take(&l, l.reports_n);
    l.activate = layout_take(&l, l.activate_n);
    l.prop = layout_take(&l, l.activate_n);
    l.out = layout_take(&l, l.out_n);
    return l;
}

size_t rg_coord_size(uint32_t max_members) { return coord_layout(max_members).total; }

rg_status_t rg_coord_init(rg_coord_t *c, const rg_coord_params_t *p) {
    if (!c || !p || !p->max_members || p->max_members > 8192) return RG_ERR_INVALID;
    rg_coord_layout_t l = coord_layout(p->max_members);
    uint8_t *base = (uint8_t *)c;
    c->p = *p;
    c->p.group[RG_CORE_NAME_MAX - 1] = 0;
    if (c->p.heartbeat_ns < 1000000) c->p.heartbeat_ns = 1000000;
    c->seats = (rg_seat_t *)(void *)(base + l.seats);
    c->roster = (uint32_t *)(void *)(base + l.roster);
    c->rank_seat = (uint32_t *)(void *)(base + l.rank_seat);
    c->next_rank = (uint32_t *)(void *)(base + l.next_rank);
    c->by_conn.cells = (rg_idcell_t *)(void *)(base + l.conns);
    c->by_id.cells = (rg_idcell_t *)(void *)(base + l.ids);
    c->by_conn.mask = c->by_id.mask = l.cells - 1;
    c->maps = base + l.maps;
    c->lost = (uint32_t *)(void *)(base + l.lost);
    c->set_maps = base + l.set_maps;
    c->set_of.cells = (rg_idcell_t *)(void *)(base + l.sets);
    c->set_of.mask = rg_idmap_cells(RG_SETS_IN_VIEW) - 1;
    c->map_len = l.map_len;
    c->acts = (rg_cact_rec_t *)(void *)(base + l.acts);
    c->act_cap = l.acts_n;
    c->reports = base + l.reports;
    c->reports_cap = l.reports_n;
    c->activate = base + l.activate;
    c->activate_cap = l.activate_n;
    c->prop = base + l.prop;
    c->out = base + l.out;
    c->out_cap = l.out_n;
    if (!c->p.takeover_ns) c->p.takeover_ns = 2 * c->p.heartbeat_ns;
    c->term = c->seen = (rg_term_t){ 1, p->id };
    c->next_id = p->first_id;
    c->acting = 1;
    c->lack_at = c->lost_at = c->scan_at = c->retransmit_at = c->complaint_at = c->flush_at = c->grow_at =
        c->vacant_at = c->empty_at = NEVER;
    return RG_OK;
}

/* ---- Actions --------------------------------------------------------------------------------------------------- */

rg_w_t rg_coord_begin(rg_coord_t *c) {
    rg_w_t w = { c->out + c->out_len, 0, c->out_cap - c->out_len, 0 };
    if (w.cap > RG_CORE_MAX_MESSAGE) w.cap = RG_CORE_MAX_MESSAGE;
    return w;
}

rg_sent_t rg_coord_end(rg_coord_t *c, const rg_w_t *w) {
    rg_sent_t s = { (uint32_t)c->out_len, (uint32_t)w->len };
    if (w->bad) {
        c->broken = 1;
        s.len = 0;
    }
    c->out_len += s.len;
    return s;
}

static void coord_act(rg_coord_t *c, rg_cact_t type, uint64_t conn, rg_sent_t s) {
    if (c->act_n >= c->act_cap) {
        c->broken = 1;
        return;
    }
    c->acts[c->act_n++] = (rg_cact_rec_t){ (uint8_t)type, conn, s.off, s.len };
}

void rg_coord_send(rg_coord_t *c, uint64_t conn, rg_sent_t msg) {
    if (conn && msg.len) coord_act(c, RG_CACT_SEND, conn, msg);
}

void rg_coord_close(rg_coord_t *c, uint64_t conn) {
    if (conn) coord_act(c, RG_CACT_CLOSE, conn, (rg_sent_t){ 0, 0 });
}

void rg_coord_log(rg_coord_t *c, const char *text) {
    size_t n = rg_text_len(text, 1024);
    rg_w_t w = rg_coord_begin(c);
    rg_w_bytes(&w, text, n);
    rg_w_u8(&w, 0);
    rg_sent_t s = rg_coord_end(c, &w);
    if (s.len) coord_act(c, RG_CACT_LOG, 0, s);
}

/* Room for messages in this step; PEERS that do not fit wait for the next one. */
uint64_t rg_coord_room(const rg_coord_t *c) {
    uint64_t acts = c->act_cap - c->act_n, bytes = c->out_cap - c->out_len;
    return acts < 8u * c->p.max_members ? 0 : bytes < RG_CORE_MAX_MESSAGE ? 0 : bytes - RG_CORE_MAX_MESSAGE;
}

int rg_coord_next(rg_coord_t *c, rg_coord_action_t *out) {
    if (c->act_at >= c->act_n) return 0;
    const rg_cact_rec_t *a = &c->acts[c->act_at++];
    memset(out, 0, sizeof *out);
    out->type = (rg_cact_t)a->type;
    out->conn = a->conn;
    out->bytes = a->len ? c->out + a->off : NULL;
    out->len = a->len;
    out->text = "";
    if (a->type == RG_CACT_LOG) {
        out->text = (const char *)(c->out + a->off);
        out->bytes = NULL;
        out->len = 0;
    }
    return 1;
}

/* ---- Seats ----------------------------------------------------------------------------------------------------- */

rg_seat_t *rg_seat_new(rg_coord_t *c) {
    if (c->population >= c->p.max_members) return NULL;
    uint32_t i = 0;
    while (i < c->seats_high && c->seats[i].state != RG_SEAT_FREE) i++;
    if (i == c->seats_high) c->seats_high++;
    rg_seat_t *s = &c->seats[i];
    memset(s, 0, sizeof *s);
    s->state = RG_SEAT_CANDIDATE;
    s->m.id = ++c->next_id;
    s->last_heard = c->now;
    c->roster[c->population++] = i;
    rg_idmap_put(&c->by_id, s->m.id, i);
    return s;
}

/* The roster is in order of ids. J2: whoever was told of all up to an id above this one was not told of it, and a READY
 * that says so does not count it: everybody is told everything again, under a higher number. */
rg_seat_t *rg_seat_insert(rg_coord_t *c, const rg_core_member_t *m) {
    uint64_t next = c->next_id;
    c->next_id = m->id - 1;
    rg_seat_t *s = rg_seat_new(c);
    c->next_id = next > m->id ? next : m->id;
    if (!s) return NULL;
    s->m = *m;
    memcpy(s->net, m->net, sizeof s->net);
    rg_text_copy(s->label, sizeof s->label, "?");
    uint32_t at = c->population - 1, slot = c->roster[at];
    for (; at && c->seats[c->roster[at - 1]].m.id > m->id; at--) c->roster[at] = c->roster[at - 1];
    c->roster[at] = slot;
    for (uint32_t i = 0; i < c->population; i++) c->seats[c->roster[i]].told = 0;
    c->list_from = ++c->next_id;
    rg_coord_flush_soon(c);
    return s;
}

void rg_seat_free(rg_coord_t *c, rg_seat_t *s) {
    uint32_t slot = (uint32_t)(s - c->seats), i = 0;
    while (c->roster[i] != slot) i++;
    c->population--;
    memmove(&c->roster[i], &c->roster[i + 1], (c->population - i) * sizeof *c->roster);
    rg_idmap_del(&c->by_id, s->m.id);
    if (s->conn) rg_idmap_del(&c->by_conn, s->conn);
    s->state = RG_SEAT_FREE;
    s->conn = 0;
    while (c->seats_high && c->seats[c->seats_high - 1].state == RG_SEAT_FREE) c->seats_high--;
}

void rg_seat_name(rg_text_t *t, const rg_seat_t *s) {
    rg_text_str(t, s->state == RG_SEAT_MEMBER ? "rank " : "candidate");
    if (s->state == RG_SEAT_MEMBER) rg_text_u64(t, s->rank);
    rg_text_str(t, " (id ");
    rg_text_u64(t, s->m.id);
    rg_text_str(t, ", ");
    rg_text_str(t, s->label);
    rg_text_str(t, ", pid ");
    rg_text_u64(t, s->pid);
    rg_text_str(t, ")");
}

/* "group default: view 3 (recovery): 3 members, <change>" */
void rg_coord_log_view(rg_coord_t *c, const char *change) {
    static const char *const kinds[] = { "first", "recovery", "join" };
    char line[1024];
    rg_text_t t = rg_text_begin(line, sizeof line);
    rg_text_str(&t, "group ");
    rg_text_str(&t, c->p.group);
    rg_text_str(&t, ": view ");
    rg_text_u64(&t, c->epoch);
    rg_text_str(&t, " (");
    rg_text_str(&t, kinds[c->kind]);
    rg_text_str(&t, "): ");
    rg_text_u64(&t, c->n);
    rg_text_str(&t, c->n == 1 ? " member, " : " members, ");
    rg_text_str(&t, change);
    rg_coord_log(c, line);
}

/* ---- Heartbeats ------------------------------------------------------------------------------------------------ */

void rg_coord_low(rg_coord_t *c) {
    c->low = NEVER;
    c->low_count = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        uint64_t w = c->seats[c->rank_seat[i]].watermark;
        if (w < c->low) {
            c->low = w;
            c->low_count = 0;
        }
        if (w == c->low) c->low_count++;
    }
}

/* A member that had the lowest watermark has moved on: all are looked at only when it was the last one there. */
void rg_coord_low_moved(rg_coord_t *c, uint64_t old) {
    if (old == c->low && --c->low_count == 0) rg_coord_low(c);
}

static void on_heartbeat(rg_coord_t *c, rg_seat_t *s, rg_r_t *r) {
    rg_msg_heartbeat_t h;
    rg_r_heartbeat(r, &h);
    if (r->bad) return;
    s->bytes_sent = h.bytes_sent;
    s->bytes_received = h.bytes_received;
    s->operations = h.operations;
    s->gen = h.gen;
    memcpy(s->net, h.net, sizeof s->net);
    if (s->state == RG_SEAT_MEMBER && h.epoch && h.watermark > s->watermark) {
        uint64_t old = s->watermark;
        s->watermark = h.watermark;
        rg_coord_low_moved(c, old);
    }
    if (!c->acting) return; /* its members must not take it for the coordinator that they miss */
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_HEARTBEAT_ACK);
    /* A member that is behind must not take the minimum of other members for its own. */
    rg_w_u64(&w, h.epoch == c->epoch ? c->epoch : 0);
    rg_w_u64(&w, s->state == RG_SEAT_MEMBER && h.epoch == c->epoch ? c->low : 0);
    rg_coord_send(c, s->conn, rg_coord_end(c, &w));
}

/* C7, for one member that has been silent for a heartbeat. */
static void not_heard(rg_coord_t *c, rg_seat_t *s) {
    char cause[RG_CAUSE_MAX];
    rg_text_t t = rg_text_begin(cause, sizeof cause);
    rg_text_str(&t, "no message for ");
    rg_text_time(&t, c->now - s->last_heard);
    if (s->state == RG_SEAT_CANDIDATE) rg_coord_drop_candidate(c, s, RG_ERR_TIMEOUT, cause);
    else if (!s->suspect) rg_coord_suspect(c, s, RG_SUSPECT_SILENT, RG_ERR_EXPELLED, cause);
}

/* Several members fall silent together: with succession that is rather the path to this office, which they seek anew.
 * They do so within an eighth of a heartbeat, for which the first one is only watched. */
static int several_silent(const rg_coord_t *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; rg_coord_succeeds(c) && i < c->n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        n += s->silent && (s->conn || s->lost_due) && s->suspect != RG_SUSPECT_FIRM;
    }
    return n > 1;
}

/* When this machine itself was stopped, everybody looks silent; the time that it slept is not held against them. */
static void coord_scan(rg_coord_t *c) {
    uint64_t every = c->p.heartbeat_ns / 8, gap = c->now - c->last_scan;
    uint64_t slept = c->last_scan && gap > 3 * every ? gap - every : 0;
    if (slept) c->woke_at = c->now;
    c->last_scan = c->now;
    c->scan_at = c->population ? c->now + every : NEVER;
    for (uint32_t i = c->population; i-- > 0;) {
        rg_seat_t *s = &c->seats[c->roster[i]];
        s->last_heard += slept;
        if (s->last_heard > c->now) s->last_heard = c->now;
        s->silent = c->now - s->last_heard > c->p.heartbeat_ns;
    }
    int several = several_silent(c);
    for (uint32_t i = c->population; i-- > 0;) {
        rg_seat_t *s = &c->seats[c->roster[i]];
        if (!s->silent || s->ghost || s->lost_due > c->now) continue;
        if (!c->acting && s->state == RG_SEAT_MEMBER) { /* nobody is suspected, but it is not here any more */
            if (s->conn) rg_idmap_del(&c->by_conn, s->conn);
            rg_coord_close(c, s->conn);
            s->conn = 0;
            continue;
        }
        int watched = rg_coord_succeeds(c) && c->now - s->last_heard <= c->p.heartbeat_ns + every;
        /* Who has not been heard since this office slept may have gone to look for another meanwhile; and so may who
         * has not been since another member came back: that one had lost the path to here, too. */
        int away = several || (rg_coord_succeeds(c) && ((c->woke_at && s->last_heard <= c->woke_at) ||
                                                        (c->came_at && s->last_heard < c->came_at)));
        if (away && s->state == RG_SEAT_MEMBER && s->conn && s->suspect != RG_SUSPECT_FIRM) rg_coord_absent(c, s);
        else if (!watched) not_heard(c, s);
    }
    rg_coord_candidate_paths(c);
    rg_claim_gathering(c);
}

/* ---- Dispatch -------------------------------------------------------------------------------------------------- */

static void on_closed(rg_coord_t *c, uint64_t conn) {
    int64_t slot = rg_idmap_get(&c->by_conn, conn);
    if (slot < 0) return;
    rg_seat_t *s = &c->seats[slot];
    rg_idmap_del(&c->by_conn, conn);
    s->conn = 0;
    if (s->state == RG_SEAT_CANDIDATE) rg_coord_drop_candidate(c, s, RG_ERR_PEER_LOST, "connection closed");
    else if (!s->suspect) rg_coord_conn_lost(c, s);
}

/* Whoever sends what cannot be read is treated as if its connection had broken. */
static void garbage(rg_coord_t *c, uint64_t conn) {
    rg_coord_close(c, conn);
    int64_t slot = rg_idmap_get(&c->by_conn, conn);
    if (slot < 0) return;
    rg_seat_t *s = &c->seats[slot];
    rg_idmap_del(&c->by_conn, conn);
    s->conn = 0;
    if (s->state == RG_SEAT_CANDIDATE)
        rg_coord_drop_candidate(c, s, RG_ERR_PROTOCOL, "sent a message that cannot be read");
    else rg_coord_suspect(c, s, RG_SUSPECT_FIRM, RG_ERR_PROTOCOL, "sent a message that cannot be read");
}

static void on_leave(rg_coord_t *c, rg_seat_t *s) {
    if (s->state == RG_SEAT_CANDIDATE) rg_coord_drop_candidate(c, s, RG_ERR_CLOSED, "left");
    else rg_coord_suspect(c, s, RG_SUSPECT_FIRM, RG_ERR_CLOSED, "left");
}

/* B1, B2: somebody has promised a higher term. With AUTHORITY that cannot be; it is followed so that a mistake
 * elsewhere does not block the group. */
static void on_nack(rg_coord_t *c, rg_r_t *r) {
    rg_term_t t = rg_r_term(r);
    if (r->bad || t.count == UINT64_MAX) return;
    if (rg_coord_succeeds(c)) rg_claim_over(c, t);
    else if (rg_term_cmp(t, c->term) > 0) c->term.count = t.count + 1;
}

/* A member that knows more than this coordinator: it is asked for its view. */
static void on_probe(rg_coord_t *c, const rg_seat_t *s, rg_r_t *r) {
    uint64_t epoch = rg_r_u64(r);
    if (!r->bad && rg_coord_succeeds(c) && epoch > c->epoch) rg_claim_ask(c, s->conn);
}

static void on_message(rg_coord_t *c, const rg_coord_event_t *ev) {
    rg_r_t r = { ev->bytes, ev->len, 0, 0 };
    uint16_t version;
    uint32_t type = rg_r_header(&r, &version);
    int64_t slot = rg_idmap_get(&c->by_conn, ev->conn);
    if (type == RG_MSG_JOIN && slot < 0) {
        rg_coord_on_join(c, ev->conn, &r, version);
        return;
    }
    int stranger = type == RG_MSG_REBIND || (rg_coord_succeeds(c) && type != RG_MSG_JOIN);
    if (!type || version != RG_WIRE_VERSION || (slot < 0 && !stranger)) {
        garbage(c, ev->conn);
        return;
    }
    if (type == RG_MSG_VIEW && rg_coord_succeeds(c)) {
        rg_claim_on_view(c, ev->conn, &r);
        if (r.bad) garbage(c, ev->conn);
        return;
    }
    if (slot < 0 && type != RG_MSG_REBIND) return; /* a member that has been asked for its view says other things too */
    if (slot < 0) {
        rg_coord_on_rebind(c, ev->conn, &r);
        return;
    }
    rg_seat_t *s = &c->seats[slot];
    s->last_heard = c->now;
    s->silent = 0;
    s->lost_due = s->waited = 0;
    if (s->mute) c->grow_dirty = 1;
    s->mute = 0;
    switch (type) {
    case RG_MSG_HEARTBEAT: on_heartbeat(c, s, &r); break;
    case RG_MSG_READY: rg_coord_on_ready(c, s, &r); break;
    case RG_MSG_PROMISE: rg_coord_on_promise(c, s, &r); break;
    case RG_MSG_REPORT: rg_coord_on_report(c, s, ev->bytes, ev->len); break;
    case RG_MSG_LINK: rg_coord_on_link(c, s, &r); break;
    case RG_MSG_ABORT_OP:
        if (s->state == RG_SEAT_MEMBER) rg_coord_on_abort_op(c, &r);
        break;
    case RG_MSG_LEAVE: on_leave(c, s); break;
    case RG_MSG_NACK: on_nack(c, &r); break;
    case RG_MSG_ACCEPT: rg_claim_on_accept(c, s, &r); break;
    case RG_MSG_PROPOSAL: rg_claim_on_proposal(c, &r); break;
    case RG_MSG_PROBE: on_probe(c, s, &r); break;
    default: r.bad = 1;
    }
    if (r.bad) garbage(c, ev->conn);
}

static void coord_timers(rg_coord_t *c) {
    if (c->now >= c->scan_at) coord_scan(c);
    if (c->now >= c->lost_at) rg_coord_lost_due(c);
    if (c->now >= c->complaint_at) rg_coord_complaints(c);
    if (c->now >= c->retransmit_at) rg_coord_retransmit(c);
    if (c->now >= c->grow_at) {
        c->grow_at = NEVER;
        c->grow_dirty = 1;
    }
}

rg_status_t rg_coord_step(rg_coord_t *c, const rg_coord_event_t *ev) {
    if (c->broken) return RG_ERR_BUG;
    c->act_n = c->act_at = 0;
    c->out_len = 0;
    if (c->population && ev->now_ns > c->now + 3 * (c->p.heartbeat_ns / 8))
        c->woke_until = ev->now_ns + c->p.heartbeat_ns / 4;
    if (ev->now_ns > c->now) c->now = ev->now_ns;
    if (c->scan_at == NEVER && c->population) c->scan_at = (c->last_scan = c->now) + c->p.heartbeat_ns / 8;
    if (ev->type == RG_CEV_MESSAGE) on_message(c, ev);
    else if (ev->type == RG_CEV_CLOSED) on_closed(c, ev->conn);
    coord_timers(c);
    if (rg_coord_succeeds(c)) rg_claim_office(c);
    rg_coord_try_decide(c);
    rg_coord_grow(c);
    if (c->now >= c->flush_at) rg_coord_flush_peers(c);
    if (c->scan_at == NEVER && c->population) c->scan_at = (c->last_scan = c->now) + c->p.heartbeat_ns / 8;
    return c->broken ? RG_ERR_BUG : RG_OK;
}

uint64_t rg_coord_deadline(const rg_coord_t *c) {
    uint64_t d = c->scan_at;
    const uint64_t all[] = { c->retransmit_at, c->complaint_at, c->flush_at, c->grow_at,
                             c->vacant_at,     c->lack_at,      c->lost_at };
    for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i] < d) d = all[i];
    return c->broken ? NEVER : d;
}

/* ---- Questions ------------------------------------------------------------------------------------------------- */

int rg_coord_other_group(const rg_coord_t *c, const uint8_t nonce[16]) {
    return c->have_view && memcmp(c->p.nonce, nonce, sizeof c->p.nonce) != 0;
}

void rg_coord_office(const rg_coord_t *c, rg_office_row_t *row) {
    memset(row, 0, sizeof *row);
    row->id = c->p.id;
    row->term = c->term.count;
    row->term_owner = c->term.owner;
    row->witness = c->witness;
    row->mode = c->p.mode;
    row->hosted = c->p.hosted;
    row->acting = c->acting || !rg_coord_succeeds(c);
    row->voters = c->n + (c->witness != 0);
    row->votes = c->witness && c->witness == c->p.id;
    for (uint32_t i = 0; i < c->n; i++) row->votes += rg_vote_here(&c->seats[c->rank_seat[i]]) != 0;
}

uint32_t rg_coord_population(const rg_coord_t *c) { return c->population; }

static void roll_row(const rg_coord_t *c, const rg_seat_t *s, uint64_t now_ns, rg_roll_row_t *r) {
    memset(r, 0, sizeof *r);
    r->id = s->m.id;
    r->first_gen = s->m.first_gen;
    r->bytes_sent = s->bytes_sent;
    r->bytes_received = s->bytes_received;
    r->operations = s->operations;
    r->boundary = s->gen;
    r->heartbeat_age_ns = now_ns > s->last_heard ? now_ns - s->last_heard : 0;
    r->rank = s->rank;
    r->pid = s->pid;
    r->candidate = s->state == RG_SEAT_CANDIDATE;
    r->suspected = s->suspect != 0;
    r->conn = s->conn;
    r->host = s->m.host;
    r->site = s->m.site;
    memcpy(r->net, s->net, sizeof r->net);
    memcpy(r->identity, s->m.identity, sizeof r->identity);
    rg_text_copy(r->label, sizeof r->label, s->label);
    for (uint32_t i = 0; i < c->n_complaints; i++) {
        const rg_complaint_t *x = &c->complaints[i];
        if (x->a != r->id && x->b != r->id) continue;
        r->broken_links++;
        r->relayed_links += x->state == RG_PATH_RELAYED;
    }
}

/* Members in rank order, then candidates in order of arrival. Returns how many there are. */
uint32_t rg_coord_roll(const rg_coord_t *c, uint64_t now_ns, rg_roll_row_t *rows, uint32_t cap, uint64_t *epoch) {
    uint32_t n = 0;
    if (epoch) *epoch = c->epoch;
    for (uint32_t i = 0; i < c->n; i++, n++)
        if (n < cap) roll_row(c, &c->seats[c->rank_seat[i]], now_ns, &rows[n]);
    for (uint32_t i = 0; i < c->population; i++) {
        if (c->seats[c->roster[i]].state != RG_SEAT_CANDIDATE) continue;
        if (n < cap) roll_row(c, &c->seats[c->roster[i]], now_ns, &rows[n]);
        n++;
    }
    return n;
}
