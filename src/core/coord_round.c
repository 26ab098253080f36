/* coord_round.c: recovery: suspicion, the round of FREEZE and REPORT, the new view, and who is shown out. It relies on
 * coord_decide.c for what becomes of each operation. It must not decide before everybody who is not suspected has
 * reported, and must not let anybody whom it has not heard block the group for ever. Rules C of docs/protocol.md. */
#include "core/coord.h"

#include <string.h>

#define NEVER UINT64_MAX

/* ---- The view -------------------------------------------------------------------------------------------------- */

static void write_head(const rg_coord_t *c, rg_w_t *w, uint8_t form) {
    rg_w_header(w, RG_MSG_ACTIVATE);
    rg_view_head_t v = { .term = c->next.term,
                         .epoch = c->next.epoch,
                         .parent = c->next.parent,
                         .data_epoch = c->next.data_epoch,
                         .cut = c->next.cut,
                         .witness = c->next.witness,
                         .kind = (uint8_t)c->next.kind,
                         .form = form,
                         .n = c->next.n };
    rg_w_view_head(w, &v);
}

/* Where another coordinator may have to go on, a view must say all: those who hear of it from somebody else may not
 * have been told before of everybody who is in it. */
static uint8_t form_of(const rg_coord_t *c, int whole) {
    return (uint8_t)((whole ? RG_VIEW_WHOLE : 0) | (rg_coord_succeeds(c) ? RG_VIEW_RECORDS : 0));
}

static void write_listed(const rg_coord_t *c, rg_w_t *w, uint32_t from) {
    for (uint32_t i = from; i < c->next.n; i++) {
        const rg_core_member_t *m = &c->seats[c->next_rank[i]].m;
        if (rg_coord_succeeds(c)) {
            rg_w_peer(w, m);
            continue;
        }
        rg_view_member_t v = { .id = m->id, .first_gen = m->first_gen };
        memcpy(v.net, m->net, sizeof v.net);
        rg_w_view_member(w, &v);
    }
}

/* The view of next_rank[0..n) as a change of the present one: who has it needs no more, and in a large group the whole
 * is a thousand times as long. */
static void write_changes(const rg_coord_t *c, rg_w_t *w) {
    uint32_t gone = 0, kept = 0, changed = 0;
    write_head(c, w, form_of(c, 0));
    size_t at = w->len;
    rg_w_u32(w, 0);
    for (uint32_t i = 0; i < c->n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (kept < c->next.n && c->next_rank[kept] == c->rank_seat[i]) {
            kept++;
            continue;
        }
        rg_w_u32(w, i);
        rg_w_text(w, s->cause, RG_CAUSE_MAX - 1);
        gone++;
    }
    rg_w_patch_u32(w, at, gone);
    rg_w_u32(w, c->next.n - kept);
    write_listed(c, w, kept);
    at = w->len;
    rg_w_u32(w, 0);
    for (uint32_t i = 0; i < kept; i++) {
        const rg_seat_t *s = &c->seats[c->next_rank[i]];
        if (memcmp(s->net, s->m.net, sizeof s->net) == 0) continue;
        rg_w_u32(w, i);
        rg_w_bytes(w, s->net, sizeof s->net);
        changed++;
    }
    rg_w_patch_u32(w, at, changed);
}

void rg_coord_resend_view(rg_coord_t *c, uint64_t conn) {
    rg_w_t w = rg_coord_begin(c);
    rg_w_bytes(&w, c->activate, c->activate_len);
    rg_coord_send(c, conn, rg_coord_end(c, &w));
}

/* ---- Reading a proposal ---------------------------------------------------------------------------------------- */

/* The cause that the proposal gives for a loss is kept where this coordinator has none of its own. */
static int read_gone(rg_coord_t *c, rg_r_t *r, uint32_t *kept, int apply) {
    uint32_t gone = rg_r_u32(r), at = 0;
    char text[RG_CAUSE_MAX];
    *kept = 0;
    if (r->bad || gone > c->n) return 0;
    for (uint32_t i = 0; i < gone; i++) {
        uint32_t rank = rg_r_u32(r);
        rg_r_text(r, text, sizeof text);
        if (r->bad || rank >= c->n || rank < at) return 0;
        while (at < rank) c->next_rank[(*kept)++] = c->rank_seat[at++];
        at = rank + 1;
        rg_seat_t *s = &c->seats[c->rank_seat[rank]];
        if (!apply || s->suspect) continue;
        s->cause_status = RG_ERR_EXPELLED;
        rg_text_copy(s->cause, sizeof s->cause, text);
    }
    while (at < c->n) c->next_rank[(*kept)++] = c->rank_seat[at++];
    return 1;
}

/* Newcomers of a view that another coordinator proposed have no seat here: they get one, and are missed afterwards. */
static int read_added(rg_coord_t *c, rg_r_t *r, const rg_view_head_t *v, uint32_t kept) {
    uint32_t added = rg_r_u32(r);
    if (r->bad || kept > v->n || added != v->n - kept) return 0;
    for (uint32_t i = kept; i < v->n; i++) {
        rg_core_member_t m = { 0 };
        rg_view_member_t x = { 0 };
        if (v->form & RG_VIEW_RECORDS) rg_r_peer(r, &m);
        else rg_r_view_member(r, &x);
        if (r->bad) return 0;
        rg_seat_t *s = rg_seat_by_id(c, v->form & RG_VIEW_RECORDS ? m.id : x.id);
        if (s && s->state != RG_SEAT_CANDIDATE) return 0;
        if (!s) s = v->form & RG_VIEW_RECORDS && m.id && m.id <= RG_SET_ID_MAX ? rg_seat_insert(c, &m) : NULL;
        if (!s) return 0;
        s->batch = 1;
        if (!s->conn) s->ghost = 1;
        if (v->form & RG_VIEW_RECORDS) s->m = m;
        c->next_rank[i] = (uint32_t)(s - c->seats);
    }
    return 1;
}

/* Fills `next` and next_rank from the bytes of the proposal. apply: it has been chosen, so what it says of links and
 * causes holds. 0: it is no successor of the present view. */
int rg_coord_read_prop(rg_coord_t *c, int apply) {
    rg_r_t r = { c->prop, c->prop_len, 0, 0 };
    rg_view_head_t v;
    uint16_t version;
    uint32_t kept;
    if (rg_r_header(&r, &version) != RG_MSG_ACTIVATE || version != RG_WIRE_VERSION) return 0;
    rg_r_view_head(&r, &v);
    if (r.bad || v.kind == RG_VIEW_FIRST || v.form & RG_VIEW_WHOLE || v.parent != c->epoch || v.epoch != c->epoch + 1 ||
        !v.n || v.n > c->p.max_members)
        return 0;
    if (!read_gone(c, &r, &kept, apply) || !read_added(c, &r, &v, kept)) return 0;
    uint32_t changed = rg_r_u32(&r);
    if (r.bad || changed > v.n) return 0;
    for (uint32_t i = 0; i < changed; i++) {
        uint32_t rank = rg_r_u32(&r);
        const uint8_t *net = rg_r_skip(&r, RG_CORE_NET);
        if (r.bad || rank >= v.n) return 0;
        if (apply) memcpy(c->seats[c->next_rank[rank]].m.net, net, RG_CORE_NET);
    }
    c->next = (rg_next_t){ v.term, v.epoch, v.parent, v.data_epoch, v.cut, v.witness, (rg_view_kind_t)v.kind, v.n };
    return 1;
}

/* ---- Choosing a view (C5) -------------------------------------------------------------------------------------- */

static void lost_text(const rg_coord_t *c, rg_text_t *t);
static void round_over(rg_coord_t *c);

static void joined_text(const rg_coord_t *c, rg_text_t *t) {
    uint32_t shown = 0;
    for (uint32_t i = c->n; i < c->next.n; i++) {
        if (++shown > 3) continue;
        rg_text_str(t, shown == 1 ? "joined: " : ", ");
        rg_seat_name(t, &c->seats[c->next_rank[i]]);
    }
    if (shown > 3) {
        rg_text_str(t, " and ");
        rg_text_u64(t, shown - 3);
        rg_text_str(t, " more");
    }
    if (!shown) {
        rg_text_str(t, "the candidates for it are gone");
    } else if (c->next.kind == RG_VIEW_JOIN) {
        rg_text_str(t, "; from boundary ");
        rg_text_u64(t, c->next.cut);
    }
}

static void seat_newcomer(rg_coord_t *c, rg_seat_t *s, uint32_t rank) {
    s->state = RG_SEAT_MEMBER;
    s->gen = c->next.cut;
    s->watermark = rg_key_note((rg_op_key_t){ c->next.cut, 0, RG_SET_ALL });
    s->rank = rank;
    if (!s->ghost) return;
    s->ghost = 0;
    s->suspect = RG_SUSPECT_SILENT;
    s->suspect_at = c->now;
    s->cause_status = RG_ERR_EXPELLED;
    rg_text_copy(s->cause, sizeof s->cause, "was gone before it entered");
}

/* The whole of the view in next_rank, as those who come in hear of it. */
static rg_sent_t write_whole(rg_coord_t *c) {
    rg_w_t w = rg_coord_begin(c);
    write_head(c, &w, form_of(c, 1));
    write_listed(c, &w, 0);
    rg_w_u32(&w, 0);
    rg_w_u32(&w, 0);
    return rg_coord_end(c, &w);
}

/* The present view, to a newcomer that is in it and has not heard of it. Not while another view is proposed, which has
 * the place where this one is written from. */
void rg_coord_send_whole(rg_coord_t *c, uint64_t conn) {
    memcpy(c->next_rank, c->rank_seat, c->n * sizeof *c->next_rank);
    c->next = (rg_next_t){ c->view_term, c->epoch, c->parent, c->data_epoch, c->cut, c->witness, c->kind, c->n };
    rg_coord_send(c, conn, write_whole(c));
}

static void seat_newcomers(rg_coord_t *c, uint32_t old) {
    if (c->next.n == old || c->next.kind == RG_VIEW_RECOVERY) return;
    rg_sent_t whole = write_whole(c);
    for (uint32_t i = old; i < c->next.n; i++) {
        rg_seat_t *s = &c->seats[c->next_rank[i]];
        seat_newcomer(c, s, i);
        rg_coord_send(c, s->conn, whole);
    }
    if (c->next.kind == RG_VIEW_FIRST) {
        memcpy(c->activate, c->out + whole.off, whole.len);
        c->activate_len = whole.len;
    }
}

/* C5, ACTIVATE half, to those of the old view who stay; kept for members that come back on a new connection. */
static void activate(rg_coord_t *c, uint32_t old) {
    uint8_t *bytes = c->activate;
    c->activate = c->prop;
    c->activate_len = c->prop_len;
    c->prop = bytes;
    c->prop_len = 0;
    rg_w_t w = rg_coord_begin(c);
    rg_w_bytes(&w, c->activate, c->activate_len);
    rg_sent_t msg = rg_coord_end(c, &w);
    for (uint32_t i = 0; i < old; i++) c->seats[c->rank_seat[i]].mark = 0;
    for (uint32_t i = 0; i < c->next.n; i++) {
        rg_seat_t *s = &c->seats[c->next_rank[i]];
        s->mark = 1;
        if (s->state == RG_SEAT_MEMBER) rg_coord_send(c, s->conn, msg);
    }
}

static void expel_others(rg_coord_t *c, uint32_t old) {
    for (uint32_t i = 0; i < old; i++) {
        rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (!s->mark)
            rg_coord_expel(c, s, (rg_status_t)(s->cause_status ? s->cause_status : RG_ERR_EXPELLED), s->cause);
    }
}

/* The view is made; what has been suspected since it was proposed is suspected in it. 1: there is such a member. */
static int adopt_ranks(rg_coord_t *c) {
    int suspects = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        rg_seat_t *s = &c->seats[c->next_rank[i]];
        c->rank_seat[i] = c->next_rank[i];
        s->rank = i;
        s->reported = s->accepted = s->pending = 0;
        s->promised = s->batch = 0;
        suspects |= s->suspect != 0;
    }
    c->have_view = 1;
    rg_coord_low(c);
    c->grow_dirty = 1;
    return suspects;
}

void rg_coord_choose(rg_coord_t *c) {
    uint32_t old = c->n;
    int frozen = (c->froze || c->lost_data) && c->next.kind == RG_VIEW_JOIN; /* they go on only after a RECOVERY */
    char change[768];
    rg_text_t t = rg_text_begin(change, sizeof change);
    if (c->next.kind == RG_VIEW_RECOVERY) lost_text(c, &t);
    if (c->next.kind != RG_VIEW_FIRST) {
        if (!rg_coord_read_prop(c, 1)) c->broken = 1;
        activate(c, old);
    }
    c->epoch = c->next.epoch; /* from here on, for those who are told of their end */
    seat_newcomers(c, old);
    if (c->next.kind == RG_VIEW_RECOVERY) expel_others(c, old);
    else joined_text(c, &t);
    c->parent = c->next.parent;
    c->data_epoch = c->next.data_epoch;
    c->cut = c->next.cut;
    c->witness = c->next.witness;
    c->view_term = c->next.term;
    c->kind = c->next.kind;
    c->n = c->next.n;
    c->installed = c->froze = c->owed = c->lost_data = 0;
    c->lack_at = NEVER;
    int suspects = adopt_ranks(c);
    for (uint32_t i = c->population; i-- > 0;) {
        rg_seat_t *s = &c->seats[c->roster[i]];
        uint64_t id = s->m.id;
        if (!s->ghost) continue;
        rg_seat_free(c, s); /* of another proposal; the others still look for a link to it */
        rg_coord_gone(c, id);
    }
    round_over(c);
    rg_coord_flush_soon(c);
    rg_coord_log_view(c, change);
    if (suspects || frozen) rg_coord_collect(c);
}

static rg_w_t prop_begin(rg_coord_t *c) { return (rg_w_t){ c->prop, 0, c->activate_cap - 64, 0 }; }

void rg_coord_send_install(rg_coord_t *c, uint64_t conn) {
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_INSTALL);
    rg_w_term(&w, c->term);
    rg_w_bytes(&w, c->prop + RG_WIRE_HEADER, c->prop_len - RG_WIRE_HEADER);
    rg_coord_send(c, conn, rg_coord_end(c, &w));
}

/* C4, INSTALL: to all members of the present view, suspects too. The coordinator's own vote, if it has one, is given
 * by this. */
static void install(rg_coord_t *c) {
    c->round = RG_ROUND_INSTALL;
    c->installed = 1;
    c->prop_term = c->term;
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_INSTALL);
    rg_w_term(&w, c->term);
    rg_w_bytes(&w, c->prop + RG_WIRE_HEADER, c->prop_len - RG_WIRE_HEADER);
    rg_sent_t msg = rg_coord_end(c, &w);
    for (uint32_t i = 0; i < c->n; i++) {
        c->seats[c->rank_seat[i]].accepted = c->seats[c->rank_seat[i]].promised = 0;
        rg_coord_send(c, c->seats[c->rank_seat[i]].conn, msg);
    }
    c->retransmit_at = c->now + c->p.heartbeat_ns / 4;
}

/* A coordinator dies with its process. Beside the one member that lives there its vote would only make that death
 * cost two; where no member does, or all do, it is one more. */
static int has_vote(const rg_coord_t *c, uint32_t n) {
    uint32_t here = 0;
    if (!rg_coord_succeeds(c) || c->p.hosted) return 0;
    for (uint32_t i = 0; i < n && c->p.host; i++) {
        const rg_seat_t *s = &c->seats[c->next_rank[i]];
        here += s->m.host == c->p.host && s->pid == c->p.pid;
    }
    return here == 0 || here == n;
}

static void next_begin(rg_coord_t *c, rg_view_kind_t kind, uint32_t n, uint64_t cut) {
    c->next = (rg_next_t){ .term = c->term,
                           .epoch = c->epoch + 1,
                           .parent = kind == RG_VIEW_FIRST ? 0 : c->epoch,
                           .data_epoch = kind == RG_VIEW_JOIN ? c->data_epoch : c->epoch + 1,
                           .cut = cut,
                           .witness = has_vote(c, n) ? c->p.id : 0,
                           .kind = kind,
                           .n = n };
}

/* A view without reports: FIRST and JOIN. With AUTHORITY, and when it is the first, the proposal is chosen by being
 * made. */
void rg_coord_bump_view(rg_coord_t *c, rg_view_kind_t kind, uint32_t n, uint64_t cut) {
    next_begin(c, kind, n, cut);
    for (uint32_t i = c->n; i < n; i++) {
        rg_seat_t *s = &c->seats[c->next_rank[i]];
        s->m.first_gen = cut;
        memcpy(s->m.net, s->net, sizeof s->m.net);
    }
    if (kind != RG_VIEW_FIRST) {
        rg_w_t w = prop_begin(c);
        write_changes(c, &w);
        rg_w_u32(&w, 0);
        rg_w_u32(&w, 0);
        if (w.bad) c->broken = 1;
        c->prop_len = w.len;
    }
    if (rg_coord_succeeds(c) && kind != RG_VIEW_FIRST) {
        install(c);
        return;
    }
    rg_coord_choose(c);
}

/* ---- Those who are out ----------------------------------------------------------------------------------------- */

static void write_expel(rg_coord_t *c, uint64_t conn, uint64_t epoch, int status, const char *text) {
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_EXPEL);
    rg_w_term(&w, c->term);
    rg_w_u64(&w, epoch);
    rg_w_u32(&w, (uint32_t)status);
    rg_w_text(&w, text, RG_CORE_TEXT_MAX - 1);
    rg_coord_send(c, conn, rg_coord_end(c, &w));
    rg_coord_close(c, conn);
}

/* Somebody who is no member talks: it is told so, with the reason if that is still known. */
void rg_coord_send_expelled(rg_coord_t *c, uint64_t conn, uint64_t id) {
    for (uint32_t i = 0; i < RG_EXPELLED_MAX; i++)
        if (id && c->expelled[i].id == id) {
            write_expel(c, conn, c->expelled[i].epoch, c->expelled[i].status, c->expelled[i].text);
            return;
        }
    write_expel(c, conn, c->epoch, RG_ERR_EXPELLED, "this process is not a member of the group any more: join again");
}

void rg_coord_expel(rg_coord_t *c, rg_seat_t *s, rg_status_t status, const char *cause) {
    rg_expelled_t *x = &c->expelled[c->expelled_at];
    c->expelled_at = (c->expelled_at + 1) % RG_EXPELLED_MAX;
    x->id = s->m.id;
    x->epoch = c->epoch;
    x->status = (int16_t)status;
    rg_text_t t = rg_text_begin(x->text, sizeof x->text);
    if (status != RG_ERR_CLOSED) rg_text_str(&t, "expelled from the group: ");
    rg_text_str(&t, cause);
    if (status == RG_ERR_EXPELLED) rg_text_str(&t, "; destroy the handle and join again");
    if (s->conn) write_expel(c, s->conn, x->epoch, status, x->text);
    uint64_t id = s->m.id;
    rg_seat_free(c, s);
    rg_coord_gone(c, id);
}

/* ---- The round: C2, C7, C8 ------------------------------------------------------------------------------------- */

void rg_coord_freeze(rg_coord_t *c, const rg_seat_t *s) {
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_FREEZE);
    rg_w_term(&w, c->term);
    rg_w_u64(&w, c->epoch);
    rg_coord_send(c, s->conn, rg_coord_end(c, &w));
}

void rg_coord_collect(rg_coord_t *c) {
    c->round = RG_ROUND_COLLECT;
    c->round_ns = c->now;
    c->reports_len = 0;
    c->froze = 1;
    if (!c->installed) c->prop_len = 0; /* what was proposed here stays accepted here; of others they tell again */
    c->growth = RG_GROW_NONE;
    c->grow_at = NEVER;
    for (uint32_t i = 0; i < c->population; i++) {
        rg_seat_t *s = &c->seats[c->roster[i]];
        s->batch = s->promised = s->reported = s->accepted = s->pending = 0;
    }
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_FREEZE);
    rg_w_term(&w, c->term);
    rg_w_u64(&w, c->epoch);
    rg_sent_t msg = rg_coord_end(c, &w);
    for (uint32_t i = 0; i < c->n; i++) rg_coord_send(c, c->seats[c->rank_seat[i]].conn, msg);
    c->retransmit_at = c->now + c->p.heartbeat_ns / 4;
}

void rg_coord_retransmit(rg_coord_t *c) {
    c->retransmit_at = NEVER;
    if (c->round == RG_ROUND_NONE) return;
    for (uint32_t i = 0; i < c->n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (!s->conn) continue;
        if (c->round == RG_ROUND_COLLECT && !s->reported) rg_coord_freeze(c, s);
        if (c->round == RG_ROUND_INSTALL && !s->accepted) rg_coord_send_install(c, s->conn);
    }
    c->retransmit_at = c->now + c->p.heartbeat_ns / 4;
}

void rg_coord_suspect(rg_coord_t *c, rg_seat_t *s, rg_suspect_t how, rg_status_t status, const char *cause) {
    if (s->state != RG_SEAT_MEMBER || s->suspect >= how) return;
    if (!s->suspect) s->suspect_at = c->now;
    s->suspect = (uint8_t)how;
    s->cause_status = (int16_t)status;
    rg_text_copy(s->cause, sizeof s->cause, cause);
    if (c->round == RG_ROUND_NONE && c->acting) rg_coord_collect(c);
}

/* Proves that a report can be read to its end, so that the decision need not look for errors. */
static int report_whole(const rg_coord_t *c, const uint8_t *bytes, size_t len, rg_report_head_t *h) {
    rg_r_t r = { bytes, len, 0, 0 };
    uint16_t version;
    rg_op_report_t o;
    rg_r_header(&r, &version);
    rg_r_report_head(&r, h);
    uint32_t n = rg_r_u32(&r);
    for (uint32_t i = 0; i < n && !r.bad; i++) rg_r_op_report(&r, &o);
    n = rg_r_u32(&r);
    rg_stream_report_t st;
    for (uint32_t i = 0; i < n && !r.bad; i++) rg_r_stream_report(&r, &st);
    n = rg_r_u32(&r);
    rg_set_report_t set;
    for (uint32_t i = 0; i < n && !r.bad; i++) {
        rg_r_set_report(&r, &set);
        if (h->base == c->epoch && set.map_len != (c->n + 7) / 8) return 0;
    }
    return rg_r_end(&r);
}

/* C3 */
void rg_coord_on_report(rg_coord_t *c, rg_seat_t *s, const uint8_t *bytes, size_t len) {
    rg_report_head_t h;
    if (!report_whole(c, bytes, len, &h)) {
        rg_coord_suspect(c, s, RG_SUSPECT_FIRM, RG_ERR_PROTOCOL, "sent a report that cannot be read");
        return;
    }
    if (s->state != RG_SEAT_MEMBER || c->round == RG_ROUND_NONE) return;
    if (h.base != c->epoch) {
        if (h.base != c->parent) return;
        rg_coord_resend_view(c, s->conn);
        if (c->round == RG_ROUND_COLLECT) rg_coord_freeze(c, s);
        else rg_coord_send_install(c, s->conn);
        return;
    }
    if (c->round != RG_ROUND_COLLECT || rg_term_cmp(h.term, c->term) != 0) return;
    if (s->suspect == RG_SUSPECT_SILENT && s->conn) s->suspect = RG_SUSPECT_NO; /* C7: it lives */
    if (s->reported) return;
    if (len > c->reports_cap - c->reports_len) {
        rg_coord_suspect(c, s, RG_SUSPECT_FIRM, RG_ERR_RESOURCE,
                         "reported more open operations than the coordinator can hold");
        return;
    }
    memcpy(c->reports + c->reports_len, bytes, len);
    s->report_off = (uint32_t)c->reports_len;
    s->report_len = (uint32_t)len;
    c->reports_len += len;
    s->reported = 1;
}

/* ---- The decision: C4, C5 -------------------------------------------------------------------------------------- */

static uint32_t survivors(rg_coord_t *c, uint32_t *waiting) {
    uint32_t n = 0;
    *waiting = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        /* C7. Those who hung up on a coordinator that slept are dialling it anew, one a little later than the other. */
        if (s->suspect == RG_SUSPECT_SILENT && c->now < c->woke_until) {
            ++*waiting;
            continue;
        }
        if (s->suspect) continue;
        if (s->reported) c->next_rank[n++] = c->rank_seat[i];
        else ++*waiting;
    }
    return n;
}

static void lost_text(const rg_coord_t *c, rg_text_t *t) {
    uint32_t lost = 0;
    for (uint32_t i = 0, kept = 0; i < c->n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        int stays = kept < c->next.n && c->next_rank[kept] == c->rank_seat[i];
        if (stays) kept++;
        if (c->next.n ? stays : !s->suspect) continue;
        if (++lost > 3) continue;
        rg_text_str(t, lost > 1 ? "; lost " : "lost ");
        rg_seat_name(t, s);
        rg_text_str(t, ": ");
        rg_text_str(t, s->cause);
    }
    if (lost > 3) {
        rg_text_str(t, " and ");
        rg_text_u64(t, lost - 3);
        rg_text_str(t, " more");
    }
    if (!lost && c->lost_data) rg_text_str(t, "nobody lost, a link between two had to begin anew");
    else if (!lost) rg_text_str(t, "nobody lost, an operation was ended");
    rg_text_str(t, "; decided in ");
    rg_text_time(t, c->now - c->round_ns);
}

static void round_over(rg_coord_t *c) {
    c->round = RG_ROUND_NONE;
    c->retransmit_at = c->vacant_at = NEVER;
    c->n_requests = 0;
    c->grow_dirty = c->waiting_dirty = 1;
    if (c->n_complaints) c->complaint_at = c->now; /* some are over, or were left alone while there was a round */
}

/* The last members are gone: the group can be founded anew by whoever comes. */
static void vacate(rg_coord_t *c) {
    char change[512];
    rg_text_t t = rg_text_begin(change, sizeof change);
    c->next.n = 0;
    lost_text(c, &t);
    uint32_t n = c->n;
    c->parent = c->epoch++;
    c->kind = RG_VIEW_RECOVERY;
    c->n = 0;
    rg_coord_log_view(c, change);
    for (uint32_t i = 0; i < n; i++) {
        rg_seat_t *s = &c->seats[c->rank_seat[i]];
        rg_coord_expel(c, s, (rg_status_t)s->cause_status, s->cause);
    }
    c->have_view = 0;
    c->activate_len = 0;
    rg_coord_low(c);
    round_over(c);
    if (rg_coord_succeeds(c)) rg_claim_forget_group(c);
    rg_coord_flush_soon(c);
}

/* Nobody is left to go on. Whoever is certainly gone is not waited for; whoever may come back on a new connection has
 * the time for two tries (REBIND), and no more, for others may wait for the group's name. With succession they may
 * also be elsewhere, with another coordinator: the group that is founded here next is another one. */
static void nobody_left(rg_coord_t *c) {
    uint64_t until = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        uint64_t wait = rg_coord_succeeds(c) ? c->p.takeover_ns : c->p.heartbeat_ns / 2;
        uint64_t at = s->suspect == RG_SUSPECT_SILENT ? s->suspect_at + wait : 0;
        if (at > until) until = at;
    }
    if (c->now >= until) vacate(c);
    else c->vacant_at = until;
}

/* Writes the view of next_rank[0..n) with its decisions as the proposal. 0: somebody, *bad, has more open operations
 * than can be decided on. */
static int propose(rg_coord_t *c, uint32_t n, uint32_t *bad) {
    if (!rg_coord_tally(c, n, bad)) return 0;
    next_begin(c, RG_VIEW_RECOVERY, n, 0);
    rg_w_t w = prop_begin(c);
    write_changes(c, &w);
    if (rg_coord_write_decisions(c, &w, n)) {
        c->prop_len = w.len;
        return 1;
    }
    *bad = 0;
    for (uint32_t i = 1; i < n; i++)
        if (c->seats[c->next_rank[i]].report_len > c->seats[c->next_rank[*bad]].report_len) *bad = i;
    return 0;
}

static void decide(rg_coord_t *c, uint32_t n) {
    uint32_t bad, waiting;
    while (!propose(c, n, &bad)) {
        rg_coord_suspect(c, &c->seats[c->next_rank[bad]], RG_SUSPECT_FIRM, RG_ERR_RESOURCE,
                         "has too many open operations that the others do not have");
        n = survivors(c, &waiting);
        if (!n) {
            nobody_left(c);
            return;
        }
    }
    if (rg_coord_succeeds(c)) install(c);
    else rg_coord_choose(c);
}

/* C4. What somebody has accepted may have been chosen already, so it is proposed again as it is. */
static void try_propose(rg_coord_t *c) {
    uint32_t waiting, n = survivors(c, &waiting);
    c->vacant_at = NEVER; /* somebody may have come back since */
    if (waiting) return;
    if (rg_coord_succeeds(c) && !rg_coord_quorum(c, rg_vote_reported)) {
        if (!n && !rg_coord_quorum(c, rg_vote_here)) nobody_left(c);
        return;
    }
    if (rg_coord_succeeds(c) && c->prop_len) {
        if (rg_coord_read_prop(c, 0)) {
            install(c);
            return;
        }
        c->prop_len = 0; /* nobody who keeps to the protocol has accepted that */
    }
    if (n) decide(c, n);
    else nobody_left(c);
}

void rg_coord_try_decide(rg_coord_t *c) {
    if (c->broken || !c->acting) return;
    if (c->round == RG_ROUND_COLLECT) try_propose(c);
    if (c->round == RG_ROUND_INSTALL && rg_coord_quorum(c, rg_vote_accepted)) rg_coord_choose(c);
}

/* ---- Requests to end an operation (R1) ------------------------------------------------------------------------- */

void rg_coord_on_abort_op(rg_coord_t *c, rg_r_t *r) {
    rg_request_rec_t q;
    q.key = rg_r_key(r);
    q.status = (int32_t)rg_r_u32(r);
    q.blame = rg_r_u64(r);
    rg_r_text(r, q.text, sizeof q.text);
    if (r->bad || !c->acting) return; /* members ask again when they hear of a coordinator that acts */
    if (q.status >= 0) q.status = RG_ERR_CANCELLED;
    for (uint32_t i = 0; i < c->n_requests; i++)
        if (rg_key_cmp(c->requests[i].key, q.key) == 0) return;
    if (c->n_requests < RG_REQUESTS_MAX) c->requests[c->n_requests++] = q; /* else asked again after the round */
    if (c->round == RG_ROUND_NONE && c->acting && c->have_view) rg_coord_collect(c);
}
