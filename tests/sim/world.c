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

static int before(const event_t *a, const event_t *b) { return a->at != b->at ? a->at < b->at : a->seq < b->seq; }

/* The event may be filled in until the next call: its place in the heap depends on time and order only. */
event_t *sim_push(world_t *w, uint64_t at, ev_type type, int node) {
    if (w->heap_n == w->heap_cap) {
        w->heap_cap = w->heap_cap ? 2 * w->heap_cap : 1024;
        w->heap = realloc(w->heap, w->heap_cap * sizeof *w->heap);
        if (!w->heap) abort();
    }
    event_t e = { .at = at < w->now ? w->now : at, .seq = ++w->seq, .type = (int16_t)type, .node = (int16_t)node };
    size_t i = w->heap_n++;
    while (i && before(&e, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = e;
    return &w->heap[i];
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
                                         "ABORT_OP", "LEAVE",  "PROBE" };
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
    for (uint32_t n = v.form & RG_VIEW_WHOLE ? 0 : rg_r_u32(&r); n-- > 0;) rg_r_u32(&r), rg_r_text(&r, text, sizeof text);
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

/* Planted faults that live on the way between coordinator and member. 1: the message is lost. */
static int mangle(world_t *w, int node, int to_coord, uint8_t *b, size_t len) {
    if (to_coord && msg_is(b, len, RG_MSG_REPORT)) mangle_report(w, b, len);
    if (to_coord) return msg_is(b, len, RG_MSG_LINK) && w->plant == PLANT_NO_LINK_NEWS;
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
    c->alive = 0;
    if (tell_coord) sim_push(w, w->now + sim_delay(w), EV_COORD_CLOSED, c->node)->conn = conn;
    if (tell_proc) sim_push(w, w->now + sim_delay(w), EV_PROC_DOWN, c->node)->conn = conn;
}

void proc_dial(world_t *w, int node) {
    proc_t *p = &w->procs[node];
    if (p->dialing || !p->alive || p->over) return;
    if (p->conn) { /* open but silent: given up for a new one */
        conn_break(w, p->conn, 1, 0);
        p->conn = 0;
    }
    p->dialing = 1;
    sim_push(w, w->now + 2 * sim_delay(w), EV_DIAL, node);
}

static void dialed(world_t *w, int node) {
    proc_t *p = &w->procs[node];
    p->dialing = 0;
    if (!p->alive || p->over) return;
    if (w->n_conns + 1 >= MAXCONN) {
        sim_fail(w, "bounded connections", "more than %d connections", MAXCONN);
        return;
    }
    p->conn = ++w->n_conns;
    w->conns[p->conn] = (conn_t){ .node = node, .alive = 1 };
    rg_member_event_t ev = { .type = RG_MEV_CONTROL_UP };
    proc_event(w, node, &ev);
}

/* ---- The coordinator ------------------------------------------------------------------------------------------- */

void coord_event(world_t *w, rg_cev_t type, uint64_t conn, const uint8_t *bytes, size_t len) {
    rg_coord_event_t ev = { .type = type, .now_ns = w->now, .conn = conn, .bytes = bytes, .len = len };
    rg_status_t st = rg_coord_step(w->coord, &ev);
    const char *bad = rg_coord_check(w->coord);
    if (st != RG_OK || bad) sim_fail(w, bad ? bad : "coordinator: step failed", "status %d", st);
    rg_coord_action_t a;
    while (rg_coord_next(w->coord, &a)) {
        if (a.type == RG_CACT_LOG) {
            sim_trace(w, "coordinator: %s", a.text);
        } else if (a.type == RG_CACT_CLOSE) {
            conn_t *c = &w->conns[a.conn];
            if (!c->alive) continue;
            /* After what was sent before: the closing travels like a message. */
            uint64_t at = w->now + sim_delay(w);
            if (at < c->last_down) at = c->last_down;
            sim_push(w, at, EV_PROC_DOWN, c->node)->conn = a.conn;
        } else {
            sim_trace(w, "coordinator -> process %d: %s", w->conns[a.conn].node, msg_name(a.bytes, a.len));
            conn_send(w, a.conn, 0, a.bytes, a.len);
        }
    }
    uint64_t d = rg_coord_deadline(w->coord);
    if (d != NEVER && d < w->coord_tick) {
        w->coord_tick = d;
        sim_push(w, d, EV_TICK, -1);
    }
}

/* ---- The run --------------------------------------------------------------------------------------------------- */

int sim_start_proc(world_t *w, uint64_t at, uint32_t min_size) {
    if (w->n_procs == MAXP) return -1;
    int node = w->n_procs++;
    proc_t *p = &w->procs[node];
    p->started = p->alive = 1;
    p->tick_at = NEVER;
    p->core = calloc(1, rg_member_size(MAXP));
    rg_member_params_t mp = { .max_members = MAXP,
                              .addr_len = 4,
                              .host = 1,
                              .cores = 2,
                              .pid = 1000u + (uint32_t)node,
                              .min_size = min_size,
                              .order = (uint32_t)sim_below(w, 3) };
    mp.identity[0] = (uint8_t)node;
    memcpy(mp.group, "sim", 4);
    memcpy(mp.label, "host", 5);
    if (!p->core || rg_member_init(p->core, &mp) != RG_OK) abort();
    sim_push(w, at, EV_START, node);
    return node;
}

void sim_init(world_t *w, uint64_t seed, plant_t plant, int trace) {
    uint8_t *arena = w->arena;
    event_t *heap = w->heap;
    size_t cap = w->heap_cap;
    memset(w, 0, sizeof *w);
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
    w->coord_tick = NEVER;
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
    rg_coord_params_t cp = { .max_members = MAXP, .heartbeat_ns = w->heartbeat, .id = 1 };
    memcpy(cp.group, "sim", 4);
    memset(cp.nonce, 7, sizeof cp.nonce);
    w->coord = calloc(1, rg_coord_size(MAXP));
    if (!w->arena || !w->procs || !w->ledger || !w->coord || rg_coord_init(w->coord, &cp) != RG_OK) abort();
    for (uint32_t i = 0; i < w->initial; i++) sim_start_proc(w, sim_below(w, 5 * MS), w->min_size);
    fault_plan(w);
}

void sim_free(world_t *w) {
    for (int i = 0; i < w->n_procs; i++) free(w->procs[i].core);
    free(w->procs);
    free(w->ledger);
    free(w->coord);
    w->procs = NULL;
    w->coord = NULL;
}

static void tick(world_t *w, int node, uint64_t at) {
    if (node < 0) {
        if (at != w->coord_tick) return;
        w->coord_tick = NEVER;
        coord_event(w, RG_CEV_TICK, 0, NULL, 0);
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
        if (w->conns[e->conn].alive) coord_event(w, RG_CEV_MESSAGE, e->conn, e->bytes, e->len);
        break;
    case EV_TO_PROC:
        if (!w->conns[e->conn].alive || p->conn != e->conn) break;
        ev.type = RG_MEV_MESSAGE;
        proc_event(w, e->node, &ev);
        break;
    case EV_COORD_CLOSED: coord_event(w, RG_CEV_CLOSED, e->conn, NULL, 0); break;
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
    rg_member_event_t ev = { 0 };
    switch (e->type) {
    case EV_TICK: tick(w, e->node, e->at); break;
    case EV_DIAL: dialed(w, e->node); break;
    case EV_START: proc_dial(w, e->node); break;
    case EV_LINK_TRY: link_try(w, e->node, e->peer); break;
    case EV_LINK_DOWN: proc_link_down(w, e->node, e->peer, e->token, "connection reset"); break;
    case EV_LINK_UP: {
        proc_t *p = &w->procs[e->node];
        sim_trace(w, "process %d: link to %d is up", e->node, e->peer);
        if (!p->alive || !p->linked[e->peer] || p->ltoken[e->peer] != e->token) break;
        ev.type = RG_MEV_LINK_UP;
        ev.peer = p->lid[e->peer];
        proc_event(w, e->node, &ev);
        break;
    }
    case EV_DATA: proc_data(w, e); break;
    case EV_PROGRAM:
        w->procs[e->node].program_set = 0;
        proc_program(w, e->node);
        break;
    case EV_FAULT: fault_strike(w); break;
    case EV_EXPIRE: proc_expire(w, e->node, e->ki); break;
    default: control(w, e);
    }
}

static void heal(world_t *w) {
    uint64_t top = 0;
    w->healed = 1;
    for (int i = 0; i < w->n_procs; i++)
        if (w->procs[i].joined && w->procs[i].gen > top) top = w->procs[i].gen;
    w->end_gen = top + 6;
    sim_trace(w, "faults stop; programs end at boundary %llu", (unsigned long long)w->end_gen);
    for (int i = 0; i < w->n_procs; i++) proc_program(w, i);
}

/* Phase 1: safety under faults. Phase 2: no more faults, and within a bound everything must have ended. */
void sim_run(world_t *w) {
    uint64_t bound = w->phase2_at + 60 * w->heartbeat + 4000 * MS, look = 0;
    const char *why = NULL;
    int who = 0;
    while (!w->failed && w->heap_n) {
        if (!w->healed && w->heap[0].at >= w->phase2_at) {
            w->now = w->phase2_at;
            heal(w);
        }
        event_t e = pop(w);
        uint64_t paused = e.node < 0 || e.type == EV_TO_COORD || e.type == EV_COORD_CLOSED
                              ? w->coord_paused
                              : w->procs[e.node].paused_until;
        if (e.type == EV_FAULT || e.type == EV_LINK_TRY) paused = 0;
        if (paused > e.at) { /* a stopped process finds everything at once when it goes on, in the same order */
            event_t *again = sim_push(w, paused, (ev_type)e.type, e.node);
            uint64_t at = again->at, seq = again->seq;
            if (e.type == EV_TICK && e.node >= 0 && w->procs[e.node].tick_at == e.at) w->procs[e.node].tick_at = at;
            if (e.type == EV_TICK && e.node < 0 && w->coord_tick == e.at) w->coord_tick = at;
            *again = e;
            again->at = at;
            again->seq = seq;
            continue;
        }
        w->now = e.at;
        w->events++;
        dispatch(w, &e);
        if (!w->healed) continue;
        if (w->now >= look) {
            look = w->now + 2 * MS;
            if (judge_idle(w, &why, &who)) break;
        }
        if (w->now > bound || w->events > 400000)
            sim_fail(w, "liveness", "process %d: %s, %llu ms after the last fault", who, why ? why : "?",
                     (unsigned long long)((w->now - w->phase2_at) / MS));
    }
    if (!w->failed) judge_end(w);
}
