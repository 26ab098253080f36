/* coord_round.c: recovery: suspicion, the round of FREEZE and REPORT, the new view, and who is shown out. It relies on
 * coord_decide.c for what becomes of each operation. It must not decide before everybody who is not suspected has
 * reported, and must not let anybody whom it has not heard block the group for ever. Rules C of docs/protocol.md. */
#include "core/coord.h"

#include <string.h>

#define NEVER UINT64_MAX
#define GRACE_NS 100000000u /* a broken link is looked at this much later: most are the first sign of a death */

/* ---- The view -------------------------------------------------------------------------------------------------- */

static void write_head(const rg_coord_t *c, rg_w_t *w, int whole) {
    rg_w_header(w, RG_MSG_ACTIVATE);
    rg_view_head_t v = { .term = c->term,
                         .epoch = c->epoch,
                         .parent = c->parent,
                         .data_epoch = c->data_epoch,
                         .cut = c->cut,
                         .kind = (uint8_t)c->kind,
                         .whole = (uint8_t)whole,
                         .n = c->n };
    rg_w_view_head(w, &v);
}

static void write_listed(const rg_coord_t *c, rg_w_t *w, uint32_t from) {
    for (uint32_t i = from; i < c->n; i++) {
        const rg_core_member_t *m = &c->seats[c->next_rank[i]].m;
        rg_view_member_t v = { .id = m->id, .first_gen = m->first_gen };
        memcpy(v.net, m->net, sizeof v.net);
        rg_w_view_member(w, &v);
    }
}

/* The view of next_rank[0..n) as a change of the present one, of old_n members: who has it needs no more, and in a
 * large group the whole is a thousand times as long. */
static void write_changes(const rg_coord_t *c, rg_w_t *w, uint32_t old_n) {
    uint32_t gone = 0, kept = 0, changed = 0;
    write_head(c, w, 0);
    size_t at = w->len;
    rg_w_u32(w, 0);
    for (uint32_t i = 0; i < old_n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (kept < c->n && c->next_rank[kept] == c->rank_seat[i]) {
            kept++;
            continue;
        }
        rg_w_u32(w, i);
        rg_w_text(w, s->cause, RG_CAUSE_MAX - 1);
        gone++;
    }
    rg_w_patch_u32(w, at, gone);
    rg_w_u32(w, c->n - kept);
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

/* From the new view on, the measurements that it told of hold. */
static void adopt_net(rg_coord_t *c) {
    for (uint32_t i = 0; i < c->n; i++) {
        rg_seat_t *s = &c->seats[c->next_rank[i]];
        memcpy(s->m.net, s->net, sizeof s->net);
    }
}

/* C5, ACTIVATE half, to the first n of next_rank. Kept for members that come back on a new connection. */
static void activate(rg_coord_t *c, const rg_w_t *w, uint32_t n) {
    rg_sent_t msg = rg_coord_end(c, w);
    memcpy(c->activate, c->out + msg.off, msg.len);
    c->activate_len = msg.len;
    for (uint32_t i = 0; i < n; i++) rg_coord_send(c, c->seats[c->next_rank[i]].conn, msg);
}

void rg_coord_resend_view(rg_coord_t *c, uint64_t conn) {
    rg_w_t w = rg_coord_begin(c);
    rg_w_bytes(&w, c->activate, c->activate_len);
    rg_coord_send(c, conn, rg_coord_end(c, &w));
}

static void adopt_ranks(rg_coord_t *c) {
    for (uint32_t i = 0; i < c->n; i++) {
        rg_seat_t *s = &c->seats[c->next_rank[i]];
        c->rank_seat[i] = c->next_rank[i];
        s->rank = i;
        s->suspect = RG_SUSPECT_NO;
        s->reported = 0;
        s->promised = s->batch = 0;
    }
    c->have_view = 1;
    rg_coord_low(c);
    c->grow_dirty = 1;
}

/* A view without reports: FIRST and JOIN. With AUTHORITY the proposal is chosen by being made. */
void rg_coord_bump_view(rg_coord_t *c, rg_view_kind_t kind, uint32_t n, uint64_t cut) {
    uint32_t old = c->n;
    char change[512];
    rg_text_t t = rg_text_begin(change, sizeof change);
    c->parent = kind == RG_VIEW_FIRST ? 0 : c->epoch;
    c->epoch++;
    c->kind = kind;
    c->cut = cut;
    c->n = n;
    if (kind == RG_VIEW_FIRST) c->data_epoch = c->epoch;
    for (uint32_t i = old; i < n; i++) {
        rg_seat_t *s = &c->seats[c->next_rank[i]];
        s->state = RG_SEAT_MEMBER;
        s->m.first_gen = cut;
        memcpy(s->m.net, s->net, sizeof s->net);
        s->gen = cut;
        s->watermark = rg_key_note((rg_op_key_t){ cut, 0, RG_SET_ALL });
        s->rank = i;
        if (i - old >= 3) continue;
        rg_text_str(&t, i == old ? "joined: " : ", ");
        rg_seat_name(&t, s);
    }
    if (n - old > 3) {
        rg_text_str(&t, " and ");
        rg_text_u64(&t, n - old - 3);
        rg_text_str(&t, " more");
    }
    if (n == old) rg_text_str(&t, "the candidates for it are gone");
    else if (kind == RG_VIEW_JOIN) {
        rg_text_str(&t, "; from boundary ");
        rg_text_u64(&t, cut);
    }
    rg_w_t w = rg_coord_begin(c);
    if (kind != RG_VIEW_FIRST) { /* those who have the parent view hear what is new */
        write_changes(c, &w, old);
        rg_w_u32(&w, 0);
        rg_w_u32(&w, 0);
        activate(c, &w, old);
        w = rg_coord_begin(c);
    }
    adopt_net(c);
    write_head(c, &w, 1);
    write_listed(c, &w, 0);
    rg_w_u32(&w, 0);
    rg_w_u32(&w, 0);
    rg_sent_t whole = rg_coord_end(c, &w);
    for (uint32_t i = old; i < n; i++) rg_coord_send(c, c->seats[c->next_rank[i]].conn, whole);
    adopt_ranks(c);
    c->waiting_dirty = 1;
    rg_coord_flush_soon(c);
    rg_coord_log_view(c, change);
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
    c->growth = RG_GROW_NONE;
    c->grow_at = NEVER;
    for (uint32_t i = 0; i < c->population; i++) {
        rg_seat_t *s = &c->seats[c->roster[i]];
        s->batch = s->promised = s->reported = 0;
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
    if (c->round != RG_ROUND_COLLECT) return;
    for (uint32_t i = 0; i < c->n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (s->conn && !s->reported) rg_coord_freeze(c, s);
    }
    c->retransmit_at = c->now + c->p.heartbeat_ns / 4;
}

void rg_coord_suspect(rg_coord_t *c, rg_seat_t *s, rg_suspect_t how, rg_status_t status, const char *cause) {
    if (s->state != RG_SEAT_MEMBER || s->suspect >= how) return;
    if (!s->suspect) s->suspect_at = c->now;
    s->suspect = (uint8_t)how;
    s->cause_status = (int16_t)status;
    rg_text_copy(s->cause, sizeof s->cause, cause);
    if (c->round == RG_ROUND_NONE) rg_coord_collect(c);
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
    if (s->state != RG_SEAT_MEMBER || c->round != RG_ROUND_COLLECT) return;
    if (h.base != c->epoch) {
        if (h.base != c->parent) return;
        rg_coord_resend_view(c, s->conn);
        rg_coord_freeze(c, s);
        return;
    }
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
    for (uint32_t i = 0; i < c->n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (!s->suspect) continue;
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
    if (!lost) rg_text_str(t, "nobody lost, an operation was ended");
    rg_text_str(t, "; decided in ");
    rg_text_time(t, c->now - c->round_ns);
}

static void round_over(rg_coord_t *c) {
    c->round = RG_ROUND_NONE;
    c->retransmit_at = c->vacant_at = NEVER;
    c->n_requests = 0;
    c->grow_dirty = c->waiting_dirty = 1;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->n_complaints; i++) {
        const rg_seat_t *a = rg_seat_by_id(c, c->complaints[i].a), *b = rg_seat_by_id(c, c->complaints[i].b);
        if (a && b && a->state == RG_SEAT_MEMBER && b->state == RG_SEAT_MEMBER)
            c->complaints[kept++] = c->complaints[i];
    }
    c->n_complaints = kept;
    if (kept) c->complaint_at = c->now;
}

/* The last members are gone: the group can be founded anew by whoever comes. */
static void vacate(rg_coord_t *c) {
    char change[512];
    rg_text_t t = rg_text_begin(change, sizeof change);
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
    rg_coord_flush_soon(c);
}

/* Nobody is left to go on. Whoever is certainly gone is not waited for; whoever may come back on a new connection has
 * the time for two tries (REBIND), and no more, for others may wait for the group's name. */
static void nobody_left(rg_coord_t *c) {
    uint64_t until = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        uint64_t at = s->suspect == RG_SUSPECT_SILENT ? s->suspect_at + c->p.heartbeat_ns / 2 : 0;
        if (at > until) until = at;
    }
    if (c->now >= until) vacate(c);
    else c->vacant_at = until;
}

/* Writes the view of next_rank[0..n) with its decisions, and makes it the present one. 0: somebody, *bad, has more open
 * operations than can be decided on; then nothing has changed. */
static int propose(rg_coord_t *c, uint32_t n, rg_w_t *w, uint32_t *bad) {
    uint32_t old_n = c->n;
    if (!rg_coord_tally(c, n, bad)) return 0;
    uint64_t parent = c->parent, epoch = c->epoch, data_epoch = c->data_epoch, cut = c->cut;
    rg_view_kind_t kind = c->kind;
    c->parent = c->epoch++;
    c->data_epoch = c->epoch;
    c->kind = RG_VIEW_RECOVERY;
    c->cut = 0;
    c->n = n;
    *w = rg_coord_begin(c);
    write_changes(c, w, old_n);
    c->n = old_n; /* the texts of decisions speak of the old ranks */
    if (rg_coord_write_decisions(c, w, n)) {
        c->n = n;
        return 1;
    }
    c->parent = parent;
    c->epoch = epoch;
    c->data_epoch = data_epoch;
    c->cut = cut;
    c->kind = kind;
    *bad = 0;
    for (uint32_t i = 1; i < n; i++)
        if (c->seats[c->next_rank[i]].report_len > c->seats[c->next_rank[*bad]].report_len) *bad = i;
    return 0;
}

static void decide(rg_coord_t *c, uint32_t n) {
    uint32_t old_n = c->n, bad, waiting;
    rg_w_t w;
    while (!propose(c, n, &w, &bad)) {
        rg_coord_suspect(c, &c->seats[c->next_rank[bad]], RG_SUSPECT_FIRM, RG_ERR_RESOURCE,
                         "has too many open operations that the others do not have");
        n = survivors(c, &waiting);
        if (!n) {
            nobody_left(c);
            return;
        }
    }
    char change[768];
    rg_text_t t = rg_text_begin(change, sizeof change);
    c->n = old_n;
    lost_text(c, &t);
    c->n = n;
    adopt_net(c);
    activate(c, &w, n);
    for (uint32_t i = 0; i < old_n; i++) {
        rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (s->suspect) rg_coord_expel(c, s, (rg_status_t)s->cause_status, s->cause);
    }
    adopt_ranks(c);
    round_over(c);
    rg_coord_flush_soon(c);
    rg_coord_log_view(c, change);
}

void rg_coord_try_decide(rg_coord_t *c) {
    uint32_t waiting;
    if (c->round != RG_ROUND_COLLECT || c->broken) return;
    uint32_t n = survivors(c, &waiting);
    c->vacant_at = NEVER; /* somebody may have come back since */
    if (waiting) return;
    if (n) decide(c, n);
    else nobody_left(c);
}

/* ---- Broken links (L2) ----------------------------------------------------------------------------------------- */

static void candidate_link(rg_coord_t *c, rg_seat_t *s, uint64_t other, int up) {
    uint32_t i = 0;
    while (i < s->n_missing && s->missing[i] != other) i++;
    if (up && i < s->n_missing) s->missing[i] = s->missing[--s->n_missing];
    else if (!up && i == s->n_missing && i < RG_COORD_MISSING_MAX) s->missing[s->n_missing++] = other;
    else if (!up && i == RG_COORD_MISSING_MAX) s->ready = 0;
    c->grow_dirty = 1;
}

static rg_complaint_t *complaint_find(rg_coord_t *c, uint64_t a, uint64_t b) {
    for (uint32_t i = 0; i < c->n_complaints; i++) {
        rg_complaint_t *x = &c->complaints[i];
        if ((x->a == a && x->b == b) || (x->a == b && x->b == a)) return x;
    }
    return NULL;
}

void rg_coord_on_link(rg_coord_t *c, rg_seat_t *s, rg_r_t *r) {
    uint64_t peer = rg_r_u64(r);
    int up = rg_r_u8(r);
    char text[RG_CAUSE_MAX];
    rg_r_text(r, text, sizeof text);
    if (r->bad) return;
    rg_seat_t *other = rg_seat_by_id(c, peer);
    if (!other || other == s) return;
    if (s->state == RG_SEAT_CANDIDATE || other->state == RG_SEAT_CANDIDATE) {
        if (s->state == RG_SEAT_CANDIDATE) candidate_link(c, s, peer, up);
        if (other->state == RG_SEAT_CANDIDATE) candidate_link(c, other, s->m.id, up);
        return;
    }
    rg_complaint_t *x = complaint_find(c, s->m.id, peer);
    if (up) {
        if (x) *x = c->complaints[--c->n_complaints];
        return;
    }
    if (x || c->n_complaints == RG_COMPLAINTS_MAX) return; /* members complain again after every view change */
    x = &c->complaints[c->n_complaints++];
    uint64_t grace = c->p.heartbeat_ns / 8 < GRACE_NS ? c->p.heartbeat_ns / 8 : GRACE_NS;
    *x = (rg_complaint_t){ .a = s->m.id, .b = peer, .due = c->now + grace };
    rg_text_copy(x->text, sizeof x->text, text);
    if (x->due < c->complaint_at) c->complaint_at = x->due;
}

static uint32_t complaints_about(const rg_coord_t *c, uint64_t id) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_complaints; i++) n += c->complaints[i].a == id || c->complaints[i].b == id;
    return n;
}

/* The one that more members cannot reach goes; between two that are alike, the younger in rank. */
static void settle(rg_coord_t *c, const rg_complaint_t *x, rg_seat_t *a, rg_seat_t *b) {
    uint32_t na = complaints_about(c, x->a), nb = complaints_about(c, x->b);
    int a_goes = na != nb ? na > nb : a->rank > b->rank;
    rg_seat_t *goes = a_goes ? a : b, *stays = a_goes ? b : a;
    char cause[RG_CAUSE_MAX];
    rg_text_t t = rg_text_begin(cause, sizeof cause);
    rg_text_str(&t, "its link to rank ");
    rg_text_u64(&t, stays->rank);
    rg_text_str(&t, " (member ");
    rg_text_u64(&t, stays->m.id);
    rg_text_str(&t, ") broke: ");
    rg_text_str(&t, x->text);
    rg_coord_suspect(c, goes, RG_SUSPECT_FIRM, RG_ERR_EXPELLED, cause);
}

void rg_coord_complaints(rg_coord_t *c) {
    c->complaint_at = NEVER;
    for (uint32_t i = 0; i < c->n_complaints;) {
        rg_complaint_t x = c->complaints[i];
        rg_seat_t *a = rg_seat_by_id(c, x.a), *b = rg_seat_by_id(c, x.b);
        if (!a || !b || a->state != RG_SEAT_MEMBER || b->state != RG_SEAT_MEMBER || a->suspect == RG_SUSPECT_FIRM ||
            b->suspect == RG_SUSPECT_FIRM) {
            c->complaints[i] = c->complaints[--c->n_complaints];
            continue;
        }
        i++;
        if (x.due > c->now) {
            if (x.due < c->complaint_at) c->complaint_at = x.due;
            continue;
        }
        if (!a->suspect && !b->suspect) settle(c, &x, a, b);
        else if (c->now + c->p.heartbeat_ns / 8 < c->complaint_at) c->complaint_at = c->now + c->p.heartbeat_ns / 8;
    }
}

/* ---- Requests to end an operation (R1) ------------------------------------------------------------------------- */

void rg_coord_on_abort_op(rg_coord_t *c, rg_r_t *r) {
    rg_request_rec_t q;
    q.key = rg_r_key(r);
    q.status = (int32_t)rg_r_u32(r);
    q.blame = rg_r_u64(r);
    rg_r_text(r, q.text, sizeof q.text);
    if (r->bad) return;
    if (q.status >= 0) q.status = RG_ERR_CANCELLED;
    for (uint32_t i = 0; i < c->n_requests; i++)
        if (rg_key_cmp(c->requests[i].key, q.key) == 0) return;
    if (c->n_requests < RG_REQUESTS_MAX) c->requests[c->n_requests++] = q; /* else asked again after the round */
    if (c->round == RG_ROUND_NONE) rg_coord_collect(c);
}
