/* world.c: virtual time, the event queue, the connections between processes and coordinator. Messages on one
 * connection keep their order; connections do not wait for each other. A message is never lost alone: the connection
 * breaks, and everything that was on it is gone. */
#include "sim.h"

/* ---- Chance ---------------------------------------------------------------------------------------------------- */

uint64_t sim_random(world_t *w) {
    w->rng ^= w->rng << 13;
    w->rng ^= w->rng >> 7;
    w->rng ^= w->rng << 17;
    return w->rng * 0x2545f4914f6cdd1du;
}

uint64_t sim_below(world_t *w, uint64_t n) { return n ? (sim_random(w) >> 16) % n : 0; }

uint64_t sim_hash(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t h = a * 0x9e3779b97f4a7c15u + b * 0xc2b2ae3d27d4eb4fu + c * 0x165667b19e3779f9u;
    h ^= h >> 31;
    h *= 0xbf58476d1ce4e5b9u;
    return h ^ h >> 29;
}

/* ---- Reports --------------------------------------------------------------------------------------------------- */

void sim_fail(world_t *w, const char *what, const char *fmt, ...) {
    if (w->failed) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(w->failure, sizeof w->failure, fmt, ap);
    va_end(ap);
    w->failed = what;
    sim_trace(w, "FAILED %s: %s", what, w->failure);
}

void sim_trace(world_t *w, const char *fmt, ...) {
    if (!w->trace) return;
    printf("%10.3f ms  ", (double)w->now / 1e6);
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

/* ---- Events ---------------------------------------------------------------------------------------------------- */

static int before(const event_t *a, const event_t *b) {
    if (a->at != b->at) return a->at < b->at;
    return a->due != b->due ? a->due < b->due : a->seq < b->seq;
}

static event_t *insert(world_t *w, event_t e) {
    if (w->heap_n == w->heap_cap) {
        w->heap_cap = w->heap_cap ? 2 * w->heap_cap : 1024;
        w->heap = realloc(w->heap, w->heap_cap * sizeof *w->heap);
        if (!w->heap) abort();
    }
    size_t i = w->heap_n++;
    while (i && before(&e, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = e;
    return &w->heap[i];
}

/* The event may be filled in until the next call: its place in the heap depends on time and order only. */
event_t *sim_push(world_t *w, uint64_t at, ev_type type, int node) {
    if (at < w->now) at = w->now;
    return insert(w, (event_t){ .at = at, .due = at, .seq = ++w->seq, .type = (int16_t)type, .node = (int16_t)node });
}

/* Later, and in the order in which all that is put off would have come: what was sent on one connection keeps its
   order also when who stops it is stopped once more. */
void sim_put_off(world_t *w, uint64_t at, const event_t *e) {
    event_t later = *e;
    later.at = at;
    insert(w, later);
}

static event_t pop(world_t *w) {
    event_t top = w->heap[0], last = w->heap[--w->heap_n];
    size_t i = 0;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= w->heap_n) break;
        if (k + 1 < w->heap_n && before(&w->heap[k + 1], &w->heap[k])) k++;
        if (!before(&w->heap[k], &last)) break;
        w->heap[i] = w->heap[k];
        i = k;
    }
    w->heap[i] = last;
    return top;
}

uint64_t sim_delay(world_t *w) {
    uint64_t d = 20 * US + sim_below(w, w->jitter_us) * US;
    if (!w->healed && w->spike && sim_below(w, 10000) < w->spike) d += sim_below(w, 2 * w->heartbeat);
    return d;
}

/* ---- Connections to the coordinator ---------------------------------------------------------------------------- */

/* A step may need messages of one that follows, so bytes live until the run ends. */
static const uint8_t *keep_bytes(world_t *w, const uint8_t *bytes, size_t len) {
    if (w->arena_n + len > w->arena_cap) {
        sim_fail(w, "bounded traffic", "more than %zu bytes of control messages in one run", w->arena_cap);
        w->arena_n = 0;
    }
    uint8_t *p = w->arena + w->arena_n;
    memcpy(p, bytes, len);
    w->arena_n += len;
    return p;
}

static const char *msg_name(const uint8_t *b, size_t len) {
    static const char *const names[] = { "?",        "JOIN",   "REBIND",    "WELCOME",       "REFUSE",
                                         "WAITING",  "PEERS",  "READY",     "PREPARE",       "PROMISE",
                                         "FREEZE",   "REPORT", "NACK",      "INSTALL",       "ACCEPT",
                                         "ACTIVATE", "EXPEL",  "HEARTBEAT", "HEARTBEAT_ACK", "LINK",
                                         "ABORT_OP", "LEAVE",  "PROBE",     "VIEW",          "PROPOSAL",
                                         "ROUTE" };
    return len >= 8 && b[6] < RG_MSG_END ? names[b[6]] : "?";
}

static int msg_is(const uint8_t *b, size_t len, rg_msg_t t) { return len >= 8 && b[6] == t; }

/* A view on its way to one member: lost, with another cut, with another verdict. */
static int mangle_view(world_t *w, int node, uint8_t *b, size_t len) {
    rg_r_t r = { b, len, RG_WIRE_HEADER, 0 };
    rg_view_head_t v;
    rg_view_member_t m;
    rg_set_report_t set;
    rg_decision_t d;
    char text[RG_CORE_TEXT_MAX];
    rg_r_view_head(&r, &v);
    if (v.kind != RG_VIEW_FIRST && planted(w, PLANT_DROP_VIEW, node)) return 1;
    for (uint32_t n = v.form & RG_VIEW_WHOLE ? 0 : rg_r_u32(&r); n-- > 0;)
        rg_r_u32(&r), rg_r_text(&r, text, sizeof text);
    uint32_t listed = v.form & RG_VIEW_WHOLE ? v.n : rg_r_u32(&r);
    for (uint32_t i = 0; i < listed; i++) rg_r_view_member(&r, &m);
    if (v.kind == RG_VIEW_JOIN && listed && planted(w, PLANT_CUT, node)) b[r.pos - RG_CORE_NET - 8]++;
    for (uint32_t n = v.form & RG_VIEW_WHOLE ? 0 : rg_r_u32(&r); n-- > 0;) rg_r_skip(&r, 4 + RG_CORE_NET);
    for (uint32_t n = rg_r_u32(&r); n-- > 0;) rg_r_set_report(&r, &set);
    size_t count_at = r.pos;
    for (uint32_t n = rg_r_u32(&r), k = 0; k < n && !r.bad; k++) {
        size_t at = r.pos;
        rg_r_decision(&r, &d);
        int hit = (d.verdict == RG_COMMIT && planted(w, PLANT_VERDICT, node)) ||
                  (d.verdict == RG_ABORT && planted(w, PLANT_NO_ABORT, node));
        if (!hit) continue;
        memmove(b + at, b + r.pos, len - r.pos); /* what has no decision is restarted */
        b[count_at]--;
        memset(b + len - (r.pos - at), 0, r.pos - at);
        w->cut_short = (uint32_t)(r.pos - at);
        return 0;
    }
    return 0;
}

/* A report on its way: without what is over at the member, or with sub-groups that have everybody in them. */
static void mangle_report(world_t *w, uint8_t *b, size_t len) {
    rg_r_t r = { b, len, RG_WIRE_HEADER, 0 };
    rg_report_head_t h;
    rg_op_report_t o;
    rg_stream_report_t st;
    rg_set_report_t set;
    rg_r_report_head(&r, &h);
    for (uint32_t n = rg_r_u32(&r); n-- > 0;) rg_r_op_report(&r, &o);
    for (uint32_t n = rg_r_u32(&r); n-- > 0;) {
        size_t at = r.pos;
        rg_r_stream_report(&r, &st);
        if (w->plant == PLANT_STREAMS) memset(b + at, 0, r.pos - at);
    }
    for (uint32_t n = rg_r_u32(&r); n-- > 0 && !r.bad;) {
        rg_r_set_report(&r, &set);
        if (w->plant == PLANT_SET_MAP) memset(b + r.pos - set.map_len, 0xff, set.map_len);
    }
}

/* In a network that fell in two, members of the larger part accuse their own first one. 1: the message is lost. */
static int blame(world_t *w, int node, uint8_t *b) {
    if (w->kind != RUN_SPLIT || w->now < w->struck_at || w->losers >> node & 1) return 0;
    int first = 0;
    while (w->losers >> first & 1) first++;
    memcpy(b + RG_WIRE_HEADER, &w->procs[first].id, 8);
    return first == node;
}

/* Planted faults that live on the way between coordinator and member. 1: the message is lost. */
static int mangle(world_t *w, int node, int to_coord, uint8_t *b, size_t len) {
    if (to_coord && msg_is(b, len, RG_MSG_REPORT)) mangle_report(w, b, len);
    if (w->plant == PLANT_NO_PROPOSAL && msg_is(b, len, RG_MSG_PROPOSAL)) return 1;
    if (w->plant == PLANT_ON_INSTALL && msg_is(b, len, RG_MSG_INSTALL)) {
        b[6] = RG_MSG_ACTIVATE; /* what is only proposed is carried out */
        memmove(b + RG_WIRE_HEADER, b + RG_WIRE_HEADER + 16, len - RG_WIRE_HEADER - 16);
        w->cut_short = 16;
        return 0;
    }
    if (w->plant == PLANT_NO_ROUTE && msg_is(b, len, RG_MSG_ROUTE)) return 1;
    if (w->plant == PLANT_BLAME && msg_is(b, len, RG_MSG_LINK)) return blame(w, node, b);
    if (to_coord)
        return msg_is(b, len, RG_MSG_LINK) && (w->plant == PLANT_NO_LINK_NEWS || w->plant == PLANT_SLOW_DEATH);
    if (msg_is(b, len, RG_MSG_HEARTBEAT_ACK) && w->plant == PLANT_NO_NOTES && len >= 24) memset(b + 16, 0, 8);
    if (msg_is(b, len, RG_MSG_FREEZE) &&
        w->plant == PLANT_NO_FREEZE) { /* never reaches this one, however often it is said */
        if (!w->plant_done) w->plant_node = node;
        w->plant_done = 1;
        return node == w->plant_node;
    }
    return msg_is(b, len, RG_MSG_ACTIVATE) ? mangle_view(w, node, b, len) : 0;
}

void conn_send(world_t *w, uint64_t conn, int to_coord, const uint8_t *bytes, size_t len) {
    conn_t *c = &w->conns[conn];
    if (!conn || !c->alive) return;
    uint8_t *copy = (uint8_t *)(uintptr_t)keep_bytes(w, bytes, len);
    w->cut_short = 0;
    if (w->plant && mangle(w, c->node, to_coord, copy, len)) return;
    len -= w->cut_short;
    int place = w->offices[c->office].host < 0 ? ALONE : w->offices[c->office].host;
    if (to_coord ? !sim_reaches(w, c->node, place) : !sim_reaches(w, place, c->node))
        c->lost |= w->kind == RUN_OFFICE ? 3 : to_coord ? 1 : 2;
    if (c->lost & (to_coord ? 1 : 2)) return;
    if (to_coord && w->trace) sim_trace(w, "process %d -> coordinator: %s", c->node, msg_name(bytes, len));
    uint64_t at = w->now + sim_delay(w), *last = to_coord ? &c->last_up : &c->last_down;
    if (at < *last) at = *last;
    *last = at;
    event_t *e = sim_push(w, at, to_coord ? EV_TO_COORD : EV_TO_PROC, c->node);
    e->conn = conn;
    e->bytes = copy;
    e->len = (uint32_t)len;
}

void conn_break(world_t *w, uint64_t conn, int tell_coord, int tell_proc) {
    conn_t *c = &w->conns[conn];
    if (!conn || !c->alive) return;
    int place = w->offices[c->office].host < 0 ? ALONE : w->offices[c->office].host;
    c->alive = 0;
    if (tell_coord && sim_reaches(w, c->node, place))
        sim_push(w, w->now + sim_delay(w), EV_COORD_CLOSED, c->node)->conn = conn;
    if (tell_proc && sim_reaches(w, place, c->node))
        sim_push(w, w->now + sim_delay(w), EV_PROC_DOWN, c->node)->conn = conn;
}

/* ---- Who reaches whom ------------------------------------------------------------------------------------------ */

int sim_reaches(const world_t *w, int from, int to) { return from == to || !(w->cut[from] >> to & 1); }

void sim_cut(world_t *w, int from, int to) {
    if (from == to) return;
    w->cut[from] |= 1u << to;
    if (from >= w->n_procs || to >= w->n_procs) return;
    if (!w->reconnect) link_break(w, from, to, 1, 1);
    else if (!link_of(w, from, to)->via) link_break(w, from, to, 0, 0); /* they find out by the silence */
}

void sim_mend(world_t *w, int a, int b) {
    sim_trace(w, "places %d and %d reach each other again", a, b);
    w->cut[a] &= ~(1u << b);
    w->cut[b] &= ~(1u << a);
}

/* What was being dialled is dialled again. */
void sim_uncut(world_t *w) {
    memset(w->cut, 0, sizeof w->cut);
    for (int a = 0; w->succession && a < w->n_procs; a++)
        for (int b = 0; b < a; b++)
            if (w->procs[a].linked[b] && !w->reconnect)
                sim_push(w, w->now + sim_delay(w), EV_LINK_TRY, a)->peer = (int16_t)b;
}

/* Where there is no standalone coordinator, a newcomer knows others by a list of addresses. */
static int any_office(world_t *w, int node) {
    int found = -1;
    uint64_t seen = 0;
    for (int k = 0; k < w->n_offices; k++) {
        const office_t *o = &w->offices[k];
        if (o->alive && o->host >= 0 && sim_reaches(w, node, o->host) && sim_reaches(w, o->host, node) &&
            sim_below(w, ++seen) == 0)
            found = k;
    }
    return found;
}

static int office_for(world_t *w, int node, uint64_t target) {
    const proc_t *p = &w->procs[node];
    int host = target ? proc_of(w, target) : ALONE, k;
    if (host < 0) return -1;
    if (!target) k = w->standalone;
    else k = w->procs[host].alive && w->procs[host].id == target ? w->procs[host].office : -1;
    if (k >= 0 && sim_reaches(w, node, host) && sim_reaches(w, host, node)) {
        /* With a list, a newcomer does not always begin with the first. */
        if (p->joined || target || !w->succession || sim_below(w, 3)) return k;
        int other = any_office(w, node);
        return other >= 0 ? other : k;
    }
    return !p->joined && w->succession ? any_office(w, node) : -1;
}

void proc_dial(world_t *w, int node, uint64_t target) {
    proc_t *p = &w->procs[node];
    p->dial_target = target;
    if (p->dialing || !p->alive || p->over) return;
    if (p->conn) { /* open but silent: given up for a new one */
        conn_break(w, p->conn, 1, 0);
        p->conn = 0;
    }
    p->dialing = 1;
    sim_push(w, w->now + 2 * sim_delay(w), EV_DIAL, node);
}

static void dialed(world_t *w, int node, uint64_t target) {
    proc_t *p = &w->procs[node];
    rg_member_event_t ev = { .type = RG_MEV_CONTROL_UP };
    p->dialing = 0;
    if (!p->alive || p->over) return;
    int k = office_for(w, node, target);
    if (k < 0) {
        ev.type = RG_MEV_CONTROL_DOWN;
        proc_event(w, node, &ev);
        return;
    }
    if (w->n_conns + 1 >= MAXCONN) {
        sim_fail(w, "bounded connections", "more than %d connections", MAXCONN);
        return;
    }
    p->conn = ++w->n_conns;
    w->conns[p->conn] = (conn_t){ .node = node, .alive = 1, .office = k };
    proc_event(w, node, &ev);
}

/* ---- Coordinators ---------------------------------------------------------------------------------------------- */

int office_open(world_t *w, int host, uint64_t id) {
    if (w->n_offices == MAXOFFICE) {
        sim_fail(w, "bounded coordinators", "more than %d", MAXOFFICE);
        return -1;
    }
    int k = w->n_offices++;
    office_t *o = &w->offices[k];
    *o = (office_t){ .host = host, .alive = 1, .tick = NEVER };
    rg_coord_params_t cp = { .max_members = MAXP,
                             .heartbeat_ns = w->heartbeat,
                             .id = id,
                             .mode = w->succession ? RG_MODE_SUCCESSION : RG_MODE_AUTHORITY,
                             .hosted = host >= 0,
                             .reconnect_ns = w->reconnect,
                             .found_at_ns = w->n_offices > 1 ? w->now + 6 * w->heartbeat : 0,
                             .first_id = host < 0 ? 1500u * (uint64_t)(k % 40) : 0 };
    if (host < 0 && !k && w->embedded >= 0) {
        cp.host = 1;
        cp.pid = 1000u + (uint32_t)w->embedded;
    }
    memcpy(cp.group, "sim", 4);
    for (int i = 0; i < 16; i++) cp.nonce[i] = (uint8_t)sim_hash(w->seed, (uint64_t)k, 100u + (uint64_t)i);
    o->core = calloc(1, rg_coord_size(MAXP));
    if (!o->core || rg_coord_init(o->core, &cp) != RG_OK) abort();
    if (host < 0) w->standalone = k;
    w->takeovers += host >= 0;
    w->restarted += host < 0 && k;
    sim_trace(w, "coordinator %d starts%s %d", k, host < 0 ? "" : " at process", host);
    return k;
}

/* quiet: its host is gone, so that nobody hears a reset. */
void office_end(world_t *w, int office, int quiet) {
    office_t *o = &w->offices[office];
    if (office < 0 || !o->alive) return;
    sim_trace(w, "coordinator %d ends%s", office, quiet ? " with its host" : "");
    for (uint32_t i = 1; i <= w->n_conns; i++)
        if (w->conns[i].office == office) conn_break(w, i, 0, !quiet);
    o->alive = 0;
    free(o->core);
    o->core = NULL;
    if (w->standalone == office) w->standalone = -1;
}

void office_watch(world_t *w, int node, uint32_t returns) {
    proc_t *p = &w->procs[node];
    if (w->kind != RUN_OFFICE || p->office < 0) return;
    p->office_until = returns ? w->now + (w->heartbeat * 4 << (returns < 5 ? returns : 5)) : 0;
    sim_push(w, w->now + sim_delay(w), EV_WATCH, node)->token = (uint64_t)p->office;
}

/* A standalone coordinator answers, and serves no other group: the office goes back to it. */
static void watched(world_t *w, int node, uint64_t office) {
    proc_t *p = &w->procs[node];
    if (!p->alive || p->over || p->office != (int)office) return;
    sim_push(w, w->now + w->heartbeat / 4, EV_WATCH, node)->token = office;
    const office_t *o = w->standalone >= 0 ? &w->offices[w->standalone] : NULL;
    if (!o || o->paused > w->now || !sim_reaches(w, node, ALONE) || !sim_reaches(w, ALONE, node)) return;
    if (rg_coord_other_group(o->core, p->core->nonce)) return;
    if (w->now < p->office_until && !rg_member_coordinator_lost(p->core)) return;
    rg_member_event_t ev = { .type = RG_MEV_RETURN };
    proc_event(w, node, &ev);
}

/* A coordinator that counts those who are gone as if they had agreed, or does not wait for who is on its way. */
static void plant_in_office(world_t *w, rg_coord_t *c) {
    for (uint32_t i = 0; i < c->n; i++) {
        rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (w->plant == PLANT_QUORUM && s->suspect) s->reported = s->accepted = 1;
        if (w->plant == PLANT_HASTY && s->lost_due) s->lost_due = c->lost_at = w->now;
        if (w->plant == PLANT_ACT_ALONE && c->witness) c->witness = c->p.id;
    }
}

void coord_event(world_t *w, int office, rg_cev_t type, uint64_t conn, const uint8_t *bytes, size_t len) {
    office_t *o = &w->offices[office];
    if (!o->alive || w->failed) return;
    rg_coord_event_t ev = { .type = type, .now_ns = w->now, .conn = conn, .bytes = bytes, .len = len };
    if (w->plant) plant_in_office(w, o->core);
    rg_status_t st = rg_coord_step(o->core, &ev);
    const char *bad = rg_coord_check(o->core);
    if (st != RG_OK || bad)
        sim_fail(w, bad ? bad : "coordinator: step failed", "coordinator %d, status %d", office, st);
    rg_coord_action_t a;
    while (rg_coord_next(o->core, &a)) {
        if (a.type == RG_CACT_LOG) {
            sim_trace(w, "coordinator %d: %s", office, a.text);
        } else if (a.type == RG_CACT_CLOSE) {
            conn_t *c = &w->conns[a.conn];
            if (!c->alive) continue;
            /* After what was sent before: the closing travels like a message. */
            uint64_t at = w->now + sim_delay(w);
            if (at < c->last_down) at = c->last_down;
            sim_push(w, at, EV_PROC_DOWN, c->node)->conn = a.conn;
        } else {
            sim_trace(w, "coordinator %d -> process %d: %s", office, w->conns[a.conn].node, msg_name(a.bytes, a.len));
            conn_send(w, a.conn, 0, a.bytes, a.len);
        }
    }
    uint64_t d = rg_coord_deadline(o->core);
    if (d != NEVER && d < o->tick) {
        o->tick = d;
        sim_push(w, d, EV_TICK, -1 - office);
    }
}

/* ---- The run --------------------------------------------------------------------------------------------------- */

int sim_start_proc(world_t *w, uint64_t at, uint32_t min_size) {
    if (w->n_procs == MAXP) return -1;
    int node = w->n_procs++;
    proc_t *p = &w->procs[node];
    p->started = p->alive = 1;
    p->tick_at = NEVER;
    p->office = -1;
    p->core = calloc(1, rg_member_size(MAXP));
    rg_member_params_t mp = { .max_members = MAXP,
                              .addr_len = 4,
                              .host = 1,
                              .cores = 2,
                              .pid = 1000u + (uint32_t)node,
                              .min_size = min_size,
                              .order = (uint32_t)sim_below(w, 3) };
    if (w->succession) {
        mp.host_office = sim_below(w, 8) != 0 || w->kind == RUN_OFFICE;
        mp.quorum_ns = (6 + sim_below(w, 20)) * w->heartbeat;
        if (w->kind == RUN_OFFICE) mp.quorum_ns = 0;
    }
    mp.hold = (uint32_t)(w->reconnect && node >= (int)w->initial && sim_hash(w->seed, (uint64_t)node, 8) % 2);
    p->holds = (int)mp.hold;
    mp.identity[0] = (uint8_t)node;
    memcpy(mp.group, "sim", 4);
    memcpy(mp.label, "host", 5);
    if (!p->core || rg_member_init(p->core, &mp) != RG_OK) abort();
    sim_push(w, at, EV_START, node);
    return node;
}

void sim_init(world_t *w, uint64_t seed, plant_t plant, int trace) {
    uint8_t *arena = w->arena;
    event_t *heap = w->heap, *held = w->held;
    size_t cap = w->heap_cap, held_cap = w->held_cap;
    memset(w, 0, sizeof *w);
    w->held = held;
    w->held_cap = held_cap;
    w->arena = arena;
    w->heap = heap;
    w->heap_cap = cap;
    w->arena_cap = 24u << 20;
    if (!w->arena) w->arena = malloc(w->arena_cap);
    w->seed = seed;
    w->rng = sim_hash(seed, 77, 1) | 1;
    w->plant = plant;
    w->trace = trace;
    w->procs = calloc(MAXP, sizeof *w->procs);
    w->ledger = calloc(MAXK, sizeof *w->ledger);
    w->standalone = w->embedded = -1;
    w->succession = (seed >= SUCCESSION_SEEDS && seed < PATH_SEEDS) || seed >= PATH_SUCCESSION_SEEDS;
    w->heartbeat = (20 + sim_below(w, 40)) * MS;
    w->jitter_us = sim_below(w, 3) ? 100 + (uint32_t)sim_below(w, 900) : 3000;
    w->gap_us = 500 + (uint32_t)sim_below(w, 2000);
    w->spike = sim_below(w, 3) ? 0 : (uint32_t)sim_below(w, 30);
    w->window = 1 + (uint32_t)sim_below(w, 6);
    w->overlap = (uint32_t)sim_below(w, 2);
    w->sets = (uint32_t)(sim_hash(seed, 5, 5) % 4 != 0);
    w->initial = 1 + (uint32_t)sim_below(w, 6);
    w->min_size = sim_below(w, 4) ? w->initial : 1;
    w->phase2_at = (150 + sim_below(w, 150)) * MS;
    /* In a quarter of the worlds, and of those of tests/sim/seeds.txt that were there before this in none. */
    w->afterwards = sim_hash(seed, 10, 65627) % 4 == 0;
    w->comeback = (int)(sim_hash(seed, 6, 6) % 2);
    if (seed >= PATH_SEEDS) fault_kind(w);
    if (seed >= PATH_SUCCESSION_SEEDS && w->kind == RUN_ANY && sim_hash(seed, 9, 9) % 3 == 0) w->embedded = 0;
    if (!w->arena || !w->procs || !w->ledger) abort();
    office_open(w, -1, w->succession ? RG_OFFICE_STANDALONE | 1u << 16 : 1);
    for (uint32_t i = 0; i < w->initial; i++) sim_start_proc(w, sim_below(w, 5 * MS), w->min_size);
    fault_plan(w);
}

void sim_free(world_t *w) {
    for (int i = 0; i < w->n_procs; i++) free(w->procs[i].core);
    free(w->procs);
    free(w->ledger);
    for (int k = 0; k < w->n_offices; k++) free(w->offices[k].core);
    w->n_offices = 0;
    w->procs = NULL;
}

static void tick(world_t *w, int node, uint64_t at) {
    if (node < 0) {
        office_t *o = &w->offices[-1 - node];
        if (at != o->tick) return;
        o->tick = NEVER;
        coord_event(w, -1 - node, RG_CEV_TICK, 0, NULL, 0);
        return;
    }
    if (at != w->procs[node].tick_at) return;
    w->procs[node].tick_at = NEVER;
    rg_member_event_t ev = { .type = RG_MEV_TICK };
    proc_event(w, node, &ev);
}

static void control(world_t *w, const event_t *e) {
    proc_t *p = e->node >= 0 ? &w->procs[e->node] : NULL;
    rg_member_event_t ev = { .bytes = e->bytes, .len = e->len };
    switch (e->type) {
    case EV_TO_COORD:
        if (w->conns[e->conn].alive)
            coord_event(w, w->conns[e->conn].office, RG_CEV_MESSAGE, e->conn, e->bytes, e->len);
        break;
    case EV_TO_PROC:
        if (!w->conns[e->conn].alive || p->conn != e->conn) break;
        ev.type = RG_MEV_MESSAGE;
        proc_event(w, e->node, &ev);
        break;
    case EV_COORD_CLOSED: coord_event(w, w->conns[e->conn].office, RG_CEV_CLOSED, e->conn, NULL, 0); break;
    case EV_PROC_DOWN:
        if (w->conns[e->conn].alive) conn_break(w, e->conn, 1, 0);
        if (p->conn != e->conn) break;
        p->conn = 0;
        ev.type = RG_MEV_CONTROL_DOWN;
        proc_event(w, e->node, &ev);
        break;
    default: break;
    }
}

static void dispatch(world_t *w, const event_t *e) {
    switch (e->type) {
    case EV_TICK: tick(w, e->node, e->at); break;
    case EV_DIAL: dialed(w, e->node, w->procs[e->node].dial_target); break;
    case EV_START: proc_dial(w, e->node, 0); break;
    case EV_LINK_TRY: link_try(w, e->node, e->peer); break;
    case EV_LINK_DOWN: proc_link_down(w, e->node, e->peer, e->token, "connection reset"); break;
    case EV_LINK_UP: proc_link_up(w, e); break;
    case EV_LINK_AGAIN: link_again(w, e->node, e->peer); break;
    case EV_FETCHED: proc_fetched(w, e->node); break;
    case EV_MEND: sim_mend(w, e->node, e->peer); break;
    case EV_SPLIT:
    case EV_DEATH: fault_event(w, e->type); break;
    case EV_DATA: proc_data(w, e); break;
    case EV_PROGRAM:
        w->procs[e->node].program_set = 0;
        proc_program(w, e->node);
        break;
    case EV_FAULT: fault_strike(w); break;
    case EV_WATCH: watched(w, e->node, e->token); break;
    case EV_EXPIRE: proc_expire(w, e->node, e->ki); break;
    default: control(w, e);
    }
}

/* A standalone coordinator starts at the old address, with nothing. Members that host one hear of it. */
static void comes_back(world_t *w) {
    if (!w->succession || w->standalone >= 0) return;
    office_open(w, -1, RG_OFFICE_STANDALONE | (uint64_t)(w->n_offices + 1) << 16);
    for (int i = 0; i < w->n_procs; i++) {
        rg_member_event_t ev = { .type = RG_MEV_RETURN };
        if (w->procs[i].office >= 0) proc_event(w, i, &ev);
    }
}

/* Where nobody is left who could take the office over, somebody must start a coordinator. */
static void nobody_hosts(world_t *w) {
    for (int i = 0; i < w->n_procs; i++)
        if (w->procs[i].alive && w->procs[i].joined && !w->procs[i].over) return;
    comes_back(w);
}

static void heal(world_t *w) {
    uint64_t top = 0;
    w->healed = 1;
    for (int i = 0; i < w->n_procs; i++)
        if (w->procs[i].joined && w->procs[i].gen > top) top = w->procs[i].gen;
    w->end_gen = top + 6;
    sim_uncut(w);
    for (uint32_t i = 1; i <= w->n_conns; i++)
        if (w->conns[i].lost) conn_break(w, i, 1, 1);
    if (w->comeback) comes_back(w);
    sim_trace(w, "faults stop; programs end at boundary %llu", (unsigned long long)w->end_gen);
    for (int i = 0; i < w->n_procs; i++) proc_program(w, i);
}

/* Until when whoever the event is for is stopped. A coordinator stops with the process that hosts it. */
static uint64_t pause_of(const world_t *w, const event_t *e) {
    if (e->type == EV_FAULT || e->type == EV_LINK_TRY || e->type == EV_MEND || e->type == EV_SPLIT ||
        e->type == EV_DEATH)
        return 0;
    if (e->node >= 0 && e->type != EV_TO_COORD && e->type != EV_COORD_CLOSED) return w->procs[e->node].paused_until;
    const office_t *o = &w->offices[e->node < 0 ? -1 - e->node : w->conns[e->conn].office];
    if (o == w->offices && w->embedded >= 0) return w->procs[w->embedded].paused_until;
    return o->host < 0 ? o->paused : w->procs[o->host].paused_until;
}

/* Phase 1: safety under faults. Phase 2: no more faults, and within a bound everything must have ended. */
void sim_run(world_t *w) {
    uint64_t bound = w->phase2_at + (w->succession ? 200 : 60) * w->heartbeat + 8 * w->reconnect + 4000 * MS, look = 0;
    const char *why = NULL;
    int who = 0;
    while (!w->failed && w->heap_n) {
        if (!w->healed && w->heap[0].at >= w->phase2_at) {
            w->now = w->phase2_at;
            heal(w);
        }
        event_t e = pop(w);
        uint64_t paused = pause_of(w, &e);
        if (paused > e.at) { /* a stopped process finds everything at once when it goes on, in the same order */
            if (e.type == EV_TICK && e.node >= 0 && w->procs[e.node].tick_at == e.at) w->procs[e.node].tick_at = paused;
            if (e.type == EV_TICK && e.node < 0 && w->offices[-1 - e.node].tick == e.at)
                w->offices[-1 - e.node].tick = paused;
            sim_put_off(w, paused, &e);
            continue;
        }
        w->now = e.at;
        w->events++;
        dispatch(w, &e);
        if (!w->healed) continue;
        if (w->now >= look) {
            look = w->now + 2 * MS;
            nobody_hosts(w);
            if (judge_idle(w, &why, &who)) break;
        }
        if (w->now > bound || w->events > 400000)
            sim_fail(w, "liveness", "process %d: %s, %llu ms after the last fault", who, why ? why : "?",
                     (unsigned long long)((w->now - w->phase2_at) / MS));
    }
    if (!w->failed) judge_end(w);
}
