/* coord_paths.c: broken links and connections: what they are evidence of, how long they have to come back, who relays
 * for a pair that has no path of its own, and who leaves when nobody can. It relies on members to say which of their
 * links are up, and by whom. It must not expel a member that is heard because somebody else takes it for dead, and it
 * decides nothing that members must agree on but suspicions. Rules L of docs/protocol.md, section 7. */
#include "assume.h"
#include "core/coord.h"

#include <string.h>

#define NEVER UINT64_MAX
#define GRACE_NS 100000000u /* a broken link is looked at this much later: most are the first sign of a death */

static uint64_t grace(const rg_coord_t *c) {
    return c->p.heartbeat_ns / 8 < GRACE_NS ? c->p.heartbeat_ns / 8 : GRACE_NS;
}

/* How long a relay has to bring the pair together. What is broken on its side must have come out by then. */
static uint64_t trial(const rg_coord_t *c) {
    return c->p.reconnect_ns > c->p.heartbeat_ns / 2 ? c->p.reconnect_ns : c->p.heartbeat_ns / 2;
}

static void look_at(rg_coord_t *c, uint64_t at) {
    if (at < c->complaint_at) c->complaint_at = at;
}

/* ---- Control connections (L3) ---------------------------------------------------------------------------------- */

void rg_coord_waited(const rg_coord_t *c, rg_seat_t *s) {
    uint64_t at = s->lost_at > c->woke_at ? s->lost_at : c->woke_at;
    if (s->lost_due && c->acting) s->waited += c->now - at;
    s->lost_due = 0;
}

static void gone_now(rg_coord_t *c, rg_seat_t *s) {
    if (!s->suspect && s->lost_due) s->suspect_at = s->lost_at; /* nobody_left() counts from there */
    rg_coord_waited(c, s);
    if (s->suspect) return;
    rg_coord_suspect(c, s, RG_SUSPECT_SILENT, RG_ERR_EXPELLED,
                     s->absent ? "did not come to the coordinator that serves now" : "connection closed");
}

/* With succession a member that hangs up may be on its way from one office to another. One that does not act is left
 * after four heartbeats at most, and then this one has to be found, past others that say nothing. */
static uint64_t come_back(const rg_coord_t *c) {
    if (rg_coord_succeeds(c)) return 6 * c->p.heartbeat_ns;
    return c->p.reconnect_ns < c->p.heartbeat_ns ? c->p.reconnect_ns : c->p.heartbeat_ns;
}

/* 1: there is a time for it to come. Each time that this office loses its quorum for a moment all who are missing get
 * that anew, and twice of it in all: connections of others that come and go must not keep the group waiting for one
 * that is dead. */
static int wait_for(rg_coord_t *c, rg_seat_t *s) {
    uint64_t most = come_back(c);
    rg_coord_waited(c, s);
    if (s->waited >= 2 * most) return 0;
    if (most > 2 * most - s->waited) most = 2 * most - s->waited;
    s->lost_at = c->now;
    s->lost_due = c->now + most;
    if (s->lost_due < c->lost_at) c->lost_at = s->lost_due;
    return 1;
}

void rg_coord_absent(rg_coord_t *c, rg_seat_t *s) {
    if (s->conn && !s->silent) {
        if (s->suspect == RG_SUSPECT_SILENT) s->suspect = RG_SUSPECT_NO;
        return;
    }
    if (s->conn) rg_idmap_del(&c->by_conn, s->conn);
    rg_coord_close(c, s->conn);
    s->conn = 0;
    s->absent = 1;
    if (!wait_for(c, s)) gone_now(c, s);
    else if (s->suspect == RG_SUSPECT_SILENT) s->suspect = RG_SUSPECT_NO;
}

/* The links of a process that ends break with its connections, all in a moment. So more than half of those who are
 * here, and had a link to it before, must say that they lost it about then; one alone may have lost only its path. */
static int died(const rg_coord_t *c, const rg_seat_t *s, uint64_t at) {
    uint32_t others = 0, fresh = 0, all = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const rg_seat_t *x = &c->seats[c->rank_seat[i]];
        others += x != s && x->conn && !x->suspect;
    }
    for (uint32_t i = 0; i < c->n_complaints; i++) {
        const rg_complaint_t *x = &c->complaints[i];
        if ((x->a != s->m.id && x->b != s->m.id) || x->state == RG_PATH_RELAYED) continue;
        const rg_seat_t *by = rg_seat_by_id(c, x->a == s->m.id ? x->b : x->a);
        if (!by || by->state != RG_SEAT_MEMBER || !by->conn || by->suspect) continue;
        all++;
        if (x->since + grace(c) >= at) fresh++;
        else others--;
    }
    /* Without a reconnect time a broken link costs one of the two its place; it is not the one that is here. */
    return 2 * fresh > others || (all && !c->p.reconnect_ns);
}

static int anybody(const rg_coord_t *c) {
    for (uint32_t i = 0; i < c->n; i++)
        if (c->seats[c->rank_seat[i]].conn) return 1;
    return 0;
}

/* With its links it is a death. Alone it may be the path to here. */
void rg_coord_conn_lost(rg_coord_t *c, rg_seat_t *s) {
    s->absent = 0;
    if ((!c->p.reconnect_ns && !rg_coord_succeeds(c)) || !c->acting || died(c, s, c->now)) {
        gone_now(c, s);
        return;
    }
    wait_for(c, s);
    if (!anybody(c)) c->empty_at = c->lost_at = c->now;
}

/* Where nobody is left, nobody could say of anybody that it died, and all have the time that the last ones always had.
 * Should one come within it, it was this coordinator that could not be reached, and the others have theirs in full. */
void rg_coord_lost_due(rg_coord_t *c) {
    if (anybody(c)) c->empty_at = NEVER;
    uint64_t most = c->empty_at == NEVER ? NEVER : c->empty_at + c->p.heartbeat_ns / 2;
    c->lost_at = NEVER;
    for (uint32_t i = 0; i < c->n; i++) {
        rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (!s->lost_due) continue;
        uint64_t due = s->lost_due < most ? s->lost_due : most;
        if (!c->acting || s->suspect || c->now >= due) gone_now(c, s);
        else if (due < c->lost_at) c->lost_at = due;
    }
}

/* ---- Routes (L5, L6) ------------------------------------------------------------------------------------------- */

static rg_sent_t write_route(rg_coord_t *c, const rg_complaint_t *x, int on) {
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_ROUTE);
    rg_w_u64(&w, x->a);
    rg_w_u64(&w, x->b);
    rg_w_u64(&w, x->via);
    rg_w_u8(&w, (uint8_t)on);
    return rg_coord_end(c, &w);
}

static void send_route(rg_coord_t *c, const rg_complaint_t *x, int on) {
    rg_sent_t msg = write_route(c, x, on);
    const uint64_t to[] = { x->via, x->a, x->b };
    for (int i = 0; i < 3; i++) {
        const rg_seat_t *s = rg_seat_by_id(c, to[i]);
        if (s) rg_coord_send(c, s->conn, msg);
    }
}

void rg_coord_routes_tell(rg_coord_t *c, const rg_seat_t *s) {
    for (uint32_t i = 0; i < c->n_complaints && rg_coord_room(c); i++) {
        const rg_complaint_t *x = &c->complaints[i];
        if (x->via && (x->a == s->m.id || x->b == s->m.id || x->via == s->m.id))
            rg_coord_send(c, s->conn, write_route(c, x, 1));
    }
}

static int has_tried(const rg_complaint_t *x, uint64_t id) {
    for (uint32_t i = 0; i < x->n_tried; i++)
        if (x->tried[i] == id) return 1;
    return 0;
}

static void route_failed(rg_coord_t *c, rg_complaint_t *x) {
    if (x->via) send_route(c, x, 0);
    if (x->via && x->n_tried < RG_RELAYS_TRIED) x->tried[x->n_tried++] = x->via;
    x->via = 0;
    x->state = RG_PATH_WAIT;
    x->due = c->now;
    look_at(c, x->due);
}

/* One that has worked, and broke, has the time of a try to work again: the ends go on trying. */
static void route_broke(rg_coord_t *c, rg_complaint_t *x) {
    if (x->state != RG_PATH_RELAYED) return; /* that is what is being tried */
    x->state = RG_PATH_TRY;
    x->since = c->now;
    x->due = c->now + trial(c);
    x->n_tried = 0;
    look_at(c, x->due);
}

#define BROKEN 1u  /* marks: has no direct link to one of the two */
#define WAITING 2u /* the same, but it may come back yet */

static void mark_missing(const rg_coord_t *c, const rg_seat_t *s) {
    if (s->state != RG_SEAT_CANDIDATE) return;
    for (uint32_t i = 0; i < s->n_missing; i++) {
        rg_seat_t *other = rg_seat_by_id(c, s->missing[i]);
        if (other) other->mark = BROKEN;
    }
}

/* Candidates relay for nobody but each other before there is a view. */
static int may_relay(const rg_coord_t *c, const rg_seat_t *s, const rg_complaint_t *x) {
    if ((!s->conn && !s->lost_due) || s->suspect || has_tried(x, s->m.id)) return 0;
    if (s->state == RG_SEAT_MEMBER) return 1;
    if (c->have_view || !s->ready) return 0;
    for (uint32_t i = 0; i < s->n_missing; i++)
        if (s->missing[i] == x->a || s->missing[i] == x->b) return 0;
    return 1;
}

static void mark_broken(rg_coord_t *c, const rg_complaint_t *x, rg_seat_t *a, rg_seat_t *b) {
    mark_missing(c, a);
    mark_missing(c, b);
    a->mark = b->mark = BROKEN;
    for (uint32_t i = 0; i < c->n_complaints; i++) {
        const rg_complaint_t *y = &c->complaints[i];
        rg_seat_t *ya = rg_seat_by_id(c, y->a), *yb = rg_seat_by_id(c, y->b), *via = rg_seat_by_id(c, y->via);
        if (via) via->load++;
        if (y == x || !ya || !yb) continue;
        uint32_t mark = y->state == RG_PATH_WAIT && y->due > c->now ? WAITING : BROKEN;
        if (ya == a || ya == b) yb->mark |= mark;
        if (yb == a || yb == b) ya->mark |= mark;
    }
}

/* The one with direct links to both that relays least, the oldest of those; NULL: there is none. maybe: there may be
 * one when links that broke a short while ago come back. */
static rg_seat_t *choose_relay(rg_coord_t *c, const rg_complaint_t *x, rg_seat_t *a, rg_seat_t *b, int *maybe) {
    rg_seat_t *best = NULL;
    *maybe = 0;
    if (!c->p.reconnect_ns || x->n_tried == RG_RELAYS_TRIED) return NULL;
    for (uint32_t i = 0; i < c->population; i++) c->seats[c->roster[i]].mark = c->seats[c->roster[i]].load = 0;
    mark_broken(c, x, a, b);
    for (uint32_t i = 0; i < c->population; i++) {
        rg_seat_t *s = &c->seats[c->roster[i]];
        if (s->mark & BROKEN || !may_relay(c, s, x)) continue;
        if (s->mark || !s->conn) *maybe = 1;
        else if (!best || s->load < best->load) best = s;
    }
    return best;
}

/* ---- When nothing helps (L8) ----------------------------------------------------------------------------------- */

static uint32_t complaints_about(const rg_coord_t *c, uint64_t id) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_complaints; i++) {
        const rg_complaint_t *x = &c->complaints[i];
        n += (x->a == id || x->b == id) && x->state != RG_PATH_RELAYED;
    }
    return n;
}

static void leaves_for(rg_coord_t *c, rg_seat_t *goes, const rg_seat_t *stays, const char *text) {
    char cause[RG_CAUSE_MAX];
    rg_text_t t = rg_text_begin(cause, sizeof cause);
    rg_text_str(&t, "its link to rank ");
    rg_text_u64(&t, stays->rank);
    rg_text_str(&t, " (member ");
    rg_text_u64(&t, stays->m.id);
    rg_text_str(&t, ") broke: ");
    rg_text_str(&t, text);
    rg_coord_suspect(c, goes, RG_SUSPECT_FIRM, RG_ERR_EXPELLED, cause);
}

/* Gives s and all whom it reaches, directly or by a relay, the number of its part. How many that are. */
static uint32_t part_grow(rg_coord_t *c, rg_seat_t *first, uint32_t part) {
    uint32_t n = 1;
    first->part = part;
    for (rg_seat_t *from = first; from;) {
        from->load = 1; /* looked from */
        for (uint32_t i = 0; i < c->n; i++) c->seats[c->rank_seat[i]].mark = 0;
        for (uint32_t i = 0; i < c->n_complaints; i++) {
            const rg_complaint_t *x = &c->complaints[i];
            if (x->state == RG_PATH_RELAYED || (x->a != from->m.id && x->b != from->m.id)) continue;
            rg_seat_t *other = rg_seat_by_id(c, x->a == from->m.id ? x->b : x->a);
            if (other) other->mark = 1;
        }
        rg_seat_t *next = NULL;
        for (uint32_t i = 0; i < c->n; i++) {
            rg_seat_t *s = &c->seats[c->rank_seat[i]];
            if (!s->suspect && !s->part && !s->mark) {
                s->part = part;
                n++;
            }
            if (s->part == part && !s->load) next = s;
        }
        from = next;
    }
    return n;
}

/* Whoever has no broken link at all reaches everybody, and then there is one part. Returns the number of the largest
 * part, of equal ones the one with the lowest rank; 0: there is one only. */
static uint32_t parts(rg_coord_t *c) {
    uint32_t part = 0, largest = 0, most = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        rg_seat_t *s = &c->seats[c->rank_seat[i]];
        s->part = s->load = 0;
        if (!s->suspect && !complaints_about(c, s->m.id)) return 0;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (s->suspect || s->part) continue;
        uint32_t n = part_grow(c, s, ++part);
        if (n > most) largest = part;
        if (n > most) most = n;
    }
    return part > 1 ? largest : 0;
}

/* Twice as long as a member may take for a sign of life. */
static int quiet(const rg_coord_t *c, const rg_seat_t *s) {
    return !s->conn || c->now - s->last_heard > c->p.heartbeat_ns / 4;
}

/* Between two in different parts all other parts go; else the one that is not heard while the other is: an adapter may
 * give a dead host up before it counts as silent here, and the first of those who lost it would go in its place. Else
 * the one that more members cannot reach, and of two that are alike, the younger in rank. */
static void settle(rg_coord_t *c, const rg_complaint_t *x, rg_seat_t *a, rg_seat_t *b) {
    char text[RG_CAUSE_MAX];
    rg_text_copy(text, sizeof text, x->text);
    uint32_t largest = c->p.reconnect_ns ? parts(c) : 0;
    if (largest && a->part != b->part) {
        const rg_seat_t *stays = NULL;
        for (uint32_t i = 0; i < c->n && !stays; i++)
            if (c->seats[c->rank_seat[i]].part == largest) stays = &c->seats[c->rank_seat[i]];
        RG_ASSUME(stays); /* a part is known by its members */
        for (uint32_t i = 0; i < c->n; i++) {
            rg_seat_t *s = &c->seats[c->rank_seat[i]];
            if (!s->suspect && s->part != largest) leaves_for(c, s, stays, text);
        }
        return;
    }
    uint32_t na = complaints_about(c, x->a), nb = complaints_about(c, x->b);
    int a_quiet = quiet(c, a), b_quiet = quiet(c, b);
    int a_goes = a_quiet != b_quiet ? a_quiet : na != nb ? na > nb : a->rank > b->rank;
    leaves_for(c, a_goes ? a : b, a_goes ? b : a, text);
}

/* ---- Time passes ----------------------------------------------------------------------------------------------- */

/* Somebody has evidence that the other one is dead; who is heard after that is not. */
static void check_dead(rg_coord_t *c, rg_complaint_t *x) {
    const uint64_t patience = c->p.heartbeat_ns / 4; /* two of its heartbeats */
    rg_seat_t *s = x->dead ? rg_seat_by_id(c, x->dead) : NULL;
    if (!s || s->suspect) return;
    uint64_t at = x->dead_at + patience;
    if (c->now < at && s->last_heard <= x->dead_at) {
        look_at(c, at);
        return;
    }
    x->dead = 0;
    if (s->last_heard <= x->dead_at && s->state == RG_SEAT_MEMBER)
        rg_coord_suspect(c, s, RG_SUSPECT_SILENT, RG_ERR_EXPELLED, x->text);
}

/* Where the network falls apart both sides have broken links, but only one of the two is heard here, where there is a
 * quorum. That one stays: until the other is heard again, or counts as lost, nothing is decided between them. By
 * authority it is as it always was: what is decided must be decided soon. 1: it is so. */
static int one_is_quiet(rg_coord_t *c, const rg_complaint_t *x, rg_seat_t *a, rg_seat_t *b) {
    uint64_t known = x->since + 5 * (c->p.heartbeat_ns / 16);
    if (!rg_coord_succeeds(c) || (c->now >= known && !quiet(c, a) && !quiet(c, b))) return 0;
    if (!quiet(c, a) && b->lost_due) gone_now(c, b);
    if (!quiet(c, b) && a->lost_due) gone_now(c, a);
    look_at(c, c->now < known ? known : c->now + c->p.heartbeat_ns / 8);
    return 1;
}

/* 0: the record is over. */
static int path_step(rg_coord_t *c, rg_complaint_t *x) {
    rg_seat_t *a = rg_seat_by_id(c, x->a), *b = rg_seat_by_id(c, x->b);
    if (!a || !b || a->suspect == RG_SUSPECT_FIRM || b->suspect == RG_SUSPECT_FIRM) return 0;
    const rg_seat_t *via = x->via ? rg_seat_by_id(c, x->via) : NULL;
    if (x->via && (!via || via->suspect == RG_SUSPECT_FIRM)) route_failed(c, x);
    check_dead(c, x);
    if (x->due > c->now) {
        look_at(c, x->due);
        return 1;
    }
    if (a->suspect || b->suspect) {
        look_at(c, c->now + c->p.heartbeat_ns / 8);
        return 1;
    }
    if (x->state == RG_PATH_TRY) route_failed(c, x);
    int maybe;
    rg_seat_t *relay = choose_relay(c, x, a, b, &maybe);
    if (relay) {
        x->state = RG_PATH_TRY;
        x->via = relay->m.id;
        x->due = c->now + trial(c);
        look_at(c, x->due);
        send_route(c, x, 1);
        return 1;
    }
    if (maybe) { /* until it is back, or is known not to come back */
        look_at(c, c->now + grace(c));
        return 1;
    }
    if (a->state != RG_SEAT_MEMBER || b->state != RG_SEAT_MEMBER) return 0; /* the candidate waits, as without relays */
    if (one_is_quiet(c, x, a, b)) return 1;
    settle(c, x, a, b);
    look_at(c, c->now + c->p.heartbeat_ns / 8);
    return 1;
}

void rg_coord_complaints(rg_coord_t *c) {
    c->complaint_at = NEVER;
    if (!c->acting) c->n_complaints = 0;
    for (uint32_t i = 0; i < c->n_complaints;) {
        if (!rg_coord_room(c)) { /* the rest in the next step, which is asked for at once */
            c->complaint_at = c->now;
            return;
        }
        if (path_step(c, &c->complaints[i])) i++;
        else c->complaints[i] = c->complaints[--c->n_complaints];
    }
}

/* ---- What members and candidates say (L1) ---------------------------------------------------------------------- */

static void candidate_link(rg_coord_t *c, rg_seat_t *s, uint64_t other, int up) {
    uint32_t i = 0;
    while (i < s->n_missing && s->missing[i] != other) i++;
    if (up && i < s->n_missing) s->missing[i] = s->missing[--s->n_missing];
    else if (!up && i == s->n_missing && i < RG_COORD_MISSING_MAX) s->missing[s->n_missing++] = other;
    else if (!up && i == RG_COORD_MISSING_MAX) s->ready = 0;
    if (!s->n_missing) s->missing_since = 0;
    else if (!s->missing_since) s->missing_since = c->now;
    c->grow_dirty = 1;
}

static rg_complaint_t *complaint_find(rg_coord_t *c, uint64_t a, uint64_t b) {
    for (uint32_t i = 0; i < c->n_complaints; i++) {
        rg_complaint_t *x = &c->complaints[i];
        if ((x->a == a && x->b == b) || (x->a == b && x->b == a)) return x;
    }
    return NULL;
}

/* NULL: the table is full; members complain again after every view change. */
static rg_complaint_t *complaint_new(rg_coord_t *c, uint64_t a, uint64_t b, uint64_t due) {
    if (c->n_complaints == RG_COMPLAINTS_MAX) return NULL;
    rg_complaint_t *x = &c->complaints[c->n_complaints++];
    memset(x, 0, sizeof *x);
    x->a = a;
    x->b = b;
    x->since = c->now;
    x->due = due;
    look_at(c, due);
    return x;
}

static void link_up(rg_coord_t *c, rg_complaint_t *x, uint64_t a, uint64_t b, uint64_t via) {
    if (!via) {
        if (x && x->via) send_route(c, x, 0);
        if (x) *x = c->complaints[--c->n_complaints];
        return;
    }
    if (!c->p.reconnect_ns || !rg_seat_by_id(c, via)) return;
    if (!x) x = complaint_new(c, a, b, NEVER); /* relayed since another coordinator's time */
    if (!x || (x->via && x->via != via)) return;
    x->via = via;
    x->state = RG_PATH_RELAYED;
    x->due = NEVER;
    x->dead = 0;
}

static void link_down(rg_coord_t *c, rg_complaint_t *x, rg_seat_t *s, rg_seat_t *other, uint64_t via, int dead,
                      const char *text) {
    uint64_t wait = c->p.reconnect_ns ? c->p.reconnect_ns : grace(c);
    if (x && x->via && x->via == via) route_broke(c, x);
    if (!x) x = complaint_new(c, s->m.id, other->m.id, c->now + wait);
    if (!x) return;
    rg_text_copy(x->text, sizeof x->text, text);
    if (dead && x->dead != other->m.id && c->p.reconnect_ns) {
        x->dead = other->m.id;
        x->dead_at = c->now;
        look_at(c, c->now + c->p.heartbeat_ns / 4);
    }
    if (x->state == RG_PATH_RELAYED) return;
    if (other->lost_due && died(c, other, other->lost_at)) gone_now(c, other);
}

void rg_coord_on_link(rg_coord_t *c, rg_seat_t *s, rg_r_t *r) {
    uint64_t peer = rg_r_u64(r);
    uint8_t bits = rg_r_u8(r);
    uint64_t via = rg_r_u64(r);
    char text[RG_CAUSE_MAX];
    rg_r_text(r, text, sizeof text);
    int up = bits & RG_LINK_IS_UP;
    if (r->bad || !c->acting) return;
    rg_seat_t *other = rg_seat_by_id(c, peer);
    if (!other || other == s) return;
    rg_complaint_t *x = complaint_find(c, s->m.id, peer);
    if (s->state == RG_SEAT_CANDIDATE || other->state == RG_SEAT_CANDIDATE) {
        if (s->state == RG_SEAT_CANDIDATE) candidate_link(c, s, peer, up);
        if (other->state == RG_SEAT_CANDIDATE) candidate_link(c, other, s->m.id, up);
        if (up) link_up(c, x, s->m.id, peer, via);
        else if (x && x->via && x->via == via) route_broke(c, x);
        return;
    }
    /* L9. What a round that goes on already decides on the present data epoch is enough. */
    if (bits & RG_LINK_LOST && c->have_view && c->round != RG_ROUND_COLLECT) c->lost_data = 1;
    if (c->lost_data && c->round == RG_ROUND_NONE) rg_coord_collect(c);
    if (up) link_up(c, x, s->m.id, peer, via);
    else link_down(c, x, s, other, via, (bits & RG_LINK_IS_DEAD) != 0, text);
}

/* What a candidate does not miss any more has come back; what a relay brings, it has told of as that before. */
void rg_coord_candidate_ready(rg_coord_t *c, const rg_seat_t *s) {
    for (uint32_t i = 0; i < c->n_complaints;) {
        rg_complaint_t *x = &c->complaints[i];
        uint64_t other = x->a == s->m.id ? x->b : x->a;
        uint32_t k = 0;
        while (k < s->n_missing && s->missing[k] != other) k++;
        if ((x->a != s->m.id && x->b != s->m.id) || x->state == RG_PATH_RELAYED || k < s->n_missing) i++;
        else link_up(c, x, x->a, x->b, 0);
    }
}

/* L7. Seen now and then only, because at the start all links are missing for a moment. */
void rg_coord_candidate_paths(rg_coord_t *c) {
    if (!c->p.reconnect_ns || !c->acting) return;
    for (uint32_t i = 0; i < c->population; i++) {
        const rg_seat_t *s = &c->seats[c->roster[i]];
        if (s->state != RG_SEAT_CANDIDATE || !s->ready || !s->missing_since || c->now < s->missing_since + trial(c))
            continue;
        for (uint32_t k = 0; k < s->n_missing; k++)
            if (rg_seat_by_id(c, s->missing[k]) && !complaint_find(c, s->m.id, s->missing[k]))
                complaint_new(c, s->m.id, s->missing[k], c->now);
    }
}
