/* links.c: the links between processes: streams of data, and the connections that carry them. Without a reconnect time
 * a stream ends with its connection. With one it outlives it: what was on its way is held, and goes on in order on the
 * next connection, a direct one or one through another process, as the transports do it with numbered bytes. It obeys
 * what core.h asks of LINK_UP and LINK_DOWN, and knows nothing of what the data mean. */
#include "sim.h"

link_t *link_of(world_t *w, int a, int b) { return a < b ? &w->links[a][b] : &w->links[b][a]; }

static int both_ways(const world_t *w, int a, int b) { return sim_reaches(w, a, b) && sim_reaches(w, b, a); }

/* ---- Making them ----------------------------------------------------------------------------------------------- */

/* Who relays between the two, as all three have been told, or -1. */
static int relay_of(world_t *w, int a, int b) {
    int r = w->procs[a].route[b] - 1;
    if (r < 0 || w->procs[b].route[a] - 1 != r) return -1;
    const proc_t *p = &w->procs[r];
    const link_t *ra = link_of(w, r, a), *rb = link_of(w, r, b);
    if (!p->alive || p->over || !(p->relay[a] >> b & 1) || !ra->up || ra->via || !rb->up || rb->via) return -1;
    return r;
}

/* The data that waited go on, in their order. */
static void stream_goes_on(world_t *w, link_t *l, int a, int b) {
    size_t kept = 0;
    for (size_t i = 0; i < w->held_n; i++) {
        event_t e = w->held[i];
        int here = (e.node == a && e.peer == b) || (e.node == b && e.peer == a);
        if (!here) {
            w->held[kept++] = e;
            continue;
        }
        if (e.token && (e.token != l->stream || w->plant == PLANT_NO_RESUME)) continue;
        e.token = l->stream;
        uint64_t at = w->now + sim_delay(w), *last = e.peer < e.node ? &l->last_ab : &l->last_ba;
        if (at < *last) at = *last;
        *last = at;
        event_t *next = sim_push(w, at, EV_DATA, e.node);
        uint64_t seq = next->seq;
        *next = e;
        next->at = next->due = at;
        next->seq = seq;
    }
    w->held_n = kept;
}

/* What was sent on a link that has not been up yet, which is given up. */
static void unsent_drop(world_t *w, int from, int to) {
    size_t kept = 0;
    for (size_t i = 0; i < w->held_n; i++)
        if (w->held[i].token || w->held[i].peer != from || w->held[i].node != to) w->held[kept++] = w->held[i];
    w->held_n = kept;
}

static void link_is_up(world_t *w, link_t *l, int a, int b, int via) {
    const proc_t *pa = &w->procs[a < b ? a : b], *pb = &w->procs[a < b ? b : a];
    int resumed = w->reconnect && l->stream && l->id_a == pa->id && l->id_b == pb->id;
    if (resumed && !l->up && sim_below(w, 16) == 0) resumed = 0; /* more is missing than was kept */
    l->up = 1;
    l->via = (int8_t)(via + 1);
    l->owed = 0;
    w->procs[a].ltoken[b] = w->procs[b].ltoken[a] = ++l->token;
    w->resumed += (uint64_t)resumed;
    w->relayed += via >= 0;
    if (!resumed) {
        l->stream = l->token;
        l->id_a = pa->id;
        l->id_b = pb->id;
    }
    sim_trace(w, "connection between %d and %d, via %d, stream %llu%s", a, b, via, (unsigned long long)l->stream,
              resumed ? " goes on" : "");
    if (w->reconnect) stream_goes_on(w, l, a, b);
    for (int k = 0; k < 2; k++) {
        event_t *e = sim_push(w, w->now + sim_delay(w), EV_LINK_UP, k ? a : b);
        e->peer = (int16_t)(k ? b : a);
        e->token = l->token;
        e->ki = (int16_t)via;
        proc_t *p = &w->procs[k ? a : b];
        int peer = k ? b : a;
        /* Kept until it is heard: another connection may follow before. */
        p->fresh[peer] |= p->lstream[peer] && p->lstream[peer] != l->stream && w->plant != PLANT_NOT_FRESH;
        p->lstream[peer] = l->stream;
    }
}

void link_try(world_t *w, int a, int b) {
    link_t *l = link_of(w, a, b);
    proc_t *pa = &w->procs[a], *pb = &w->procs[b];
    int direct = both_ways(w, a, b);
    if ((l->up && !(l->via && direct)) || !pa->alive || !pb->alive || pa->over || pb->over || !pa->linked[b] ||
        !pb->linked[a] || pa->lid[b] != pb->id || pb->lid[a] != pa->id)
        return;
    if (!w->reconnect && l->owed) { /* a new one is another stream: first both must know that the old one is gone */
        sim_push(w, w->now + MS, EV_LINK_TRY, a)->peer = (int16_t)b;
        return;
    }
    int via = direct ? -1 : relay_of(w, a, b);
    if (direct || via >= 0) link_is_up(w, l, a, b, via);
}

/* A port that refuses, where the network lets it: the process has ended, or is another one. */
static int refused(const world_t *w, int node, int peer) {
    const proc_t *q = &w->procs[peer];
    if (!both_ways(w, node, peer) || w->quiet_dead >> peer & 1) return 0;
    return !q->alive || q->over || q->id != w->procs[node].lid[peer];
}

/* The earliest of what is planned counts. */
static void plan_again(world_t *w, int node, int peer, uint64_t in) {
    uint64_t *at = &w->procs[node].again[peer];
    if (*at && *at <= w->now + in) return;
    *at = w->now + in;
    sim_push(w, w->now + in, EV_LINK_AGAIN, node)->peer = (int16_t)peer;
}

/* As long as the link is wanted and is not direct it is tried again. */
void link_again(world_t *w, int node, int peer) {
    proc_t *p = &w->procs[node];
    const link_t *l = link_of(w, node, peer);
    if (!p->again[peer] || w->now < p->again[peer]) return;
    p->again[peer] = 0;
    if (!p->alive || p->over || !p->linked[peer]) return;
    link_try(w, node, peer);
    if (l->up && !l->via) return;
    plan_again(w, node, peer, w->heartbeat / (l->up ? 2 : 16) + MS);
    if (p->dead[peer] || p->lup[peer] || !refused(w, node, peer)) return;
    p->dead[peer] = 1;
    rg_member_event_t ev = { .type = RG_MEV_LINK_DOWN, .peer = p->lid[peer], .text = "connection refused", .dead = 1 };
    proc_event(w, node, &ev);
}

void link_connect(world_t *w, int node, const rg_core_member_t *m) {
    int q = m->identity[0];
    proc_t *p = &w->procs[node];
    if (w->stale_id[m->id] >> q & 1) return;
    w->slot_of_id[m->id] = (int16_t)(q + 1);
    if (p->linked[q] && p->lid[q] != m->id) {
        p->lother[q] = p->lid[q];
        p->lbefore[q] = p->lstream[q];
        link_break(w, node, q, 0, 1);
    }
    if (p->lid[q] != m->id) p->lstream[q] = p->fresh[q] = 0;
    if (p->lid[q] != m->id) unsent_drop(w, node, q);
    p->linked[q] = 1;
    p->lid[q] = m->id;
    p->dead[q] = 0;
    event_t *e = sim_push(w, w->now + sim_delay(w), EV_LINK_TRY, node);
    e->peer = (int16_t)q;
    if (w->reconnect) plan_again(w, node, q, w->heartbeat / 4);
}

void link_wanted(world_t *w, int node) {
    uint64_t id = w->procs[node].id;
    w->stale_id[id] &= ~(1ull << node);
    for (int q = 0; q < w->n_procs; q++) {
        const proc_t *p = &w->procs[q];
        const rg_peer_t *rec = p->alive && !p->over ? rg_peer_find(p->core, id) : NULL;
        if (rec && rec->m.identity[0] == node && !(p->linked[node] && p->lid[node] == id)) link_connect(w, q, &rec->m);
    }
}

/* ---- Ending them ----------------------------------------------------------------------------------------------- */

static void tell_break(world_t *w, link_t *l, int node, int peer, int soon) {
    if (!soon && !w->reconnect) return;
    uint64_t in = soon ? sim_delay(w) : w->heartbeat / 8 + sim_below(w, w->heartbeat / 4);
    event_t *e = sim_push(w, w->now + in, EV_LINK_DOWN, node);
    e->peer = (int16_t)peer;
    e->token = l->token;
    l->owed |= node < peer ? 1 : 2;
}

/* What goes through one that loses its link to either end breaks, too. */
static void break_relayed(world_t *w, int a, int b) {
    for (int q = 0; q < w->n_procs; q++) {
        if (q != a && q != b && link_of(w, a, q)->via == b + 1) link_break(w, a, q, 1, 1);
        if (q != a && q != b && link_of(w, b, q)->via == a + 1) link_break(w, b, q, 1, 1);
    }
}

/* tell 0: that end is not told by a reset. It may find out by the silence. */
void link_break(world_t *w, int a, int b, int tell_a, int tell_b) {
    link_t *l = link_of(w, a, b);
    if (!l->up) return;
    int direct = !l->via;
    l->up = 0;
    l->via = 0;
    tell_break(w, l, b, a, tell_b);
    tell_break(w, l, a, b, tell_a);
    if (direct && w->reconnect) break_relayed(w, a, b);
}

void link_disconnect(world_t *w, int node, uint64_t id) {
    int q = proc_of(w, id);
    proc_t *p = &w->procs[node];
    if (q >= 0 && p->lother[q] == id) p->lother[q] = 0;
    if (q < 0 || p->lid[q] != id) return;
    p->linked[q] = p->lup[q] = p->dead[q] = 0;
    unsent_drop(w, node, q);
    p->lstream[q] = p->fresh[q] = 0;
    p->route[q] = 0;
    for (int i = 0; i < w->n_procs; i++) link_relay(w, node, id, w->procs[i].id, 0);
    link_break(w, node, q, 0, 1);
    link_of(w, node, q)->stream = 0;
    if (!p->lother[q]) return;
    p->lid[q] = p->lother[q]; /* the one that it is now, of whom this process heard first */
    p->lstream[q] = p->lbefore[q];
    p->lother[q] = p->lbefore[q] = 0;
    p->linked[q] = 1;
    sim_push(w, w->now + sim_delay(w), EV_LINK_TRY, node)->peer = (int16_t)q;
    if (w->reconnect) plan_again(w, node, q, w->heartbeat / 4);
}

/* ---- Routes ---------------------------------------------------------------------------------------------------- */

void link_route(world_t *w, int node, uint64_t id, uint64_t via) {
    int q = proc_of(w, id), r = via ? proc_of(w, via) : -1;
    if (q < 0 || w->procs[node].lid[q] != id) return;
    link_t *l = link_of(w, node, q);
    w->procs[node].route[q] = (int8_t)(r + 1);
    sim_trace(w, "process %d: route to %d through %d", node, q, r);
    if (l->up && l->via && l->via != r + 1) link_break(w, node, q, 1, 1);
    if (w->procs[node].linked[q]) plan_again(w, node, q, sim_delay(w));
}

void link_relay(world_t *w, int node, uint64_t a, uint64_t b, int on) {
    int qa = proc_of(w, a), qb = proc_of(w, b);
    if (qa < 0 || qb < 0 || qa == qb) return;
    proc_t *p = &w->procs[node];
    if (on) {
        p->relay[qa] |= 1u << qb;
        p->relay[qb] |= 1u << qa;
        return;
    }
    p->relay[qa] &= ~(1u << qb);
    p->relay[qb] &= ~(1u << qa);
    if (link_of(w, qa, qb)->up && link_of(w, qa, qb)->via == node + 1) link_break(w, qa, qb, 1, 1);
}

/* ---- What the processes hear ----------------------------------------------------------------------------------- */

void proc_link_up(world_t *w, const event_t *e) {
    proc_t *p = &w->procs[e->node];
    sim_trace(w, "process %d: link to %d is up", e->node, e->peer);
    if (!p->alive || !p->linked[e->peer] || p->ltoken[e->peer] != e->token) return;
    if (!link_of(w, e->node, e->peer)->up && w->reconnect) return; /* it broke before this was heard */
    p->lup[e->peer] = 1;
    p->dead[e->peer] = 0;
    rg_member_event_t ev = { .type = RG_MEV_LINK_UP, .peer = p->lid[e->peer] };
    ev.fresh = p->fresh[e->peer];
    w->begun_anew += ev.fresh;
    p->fresh[e->peer] = 0;
    if (e->ki >= 0) ev.via = w->procs[e->ki].id;
    if (e->ki >= 0) plan_again(w, e->node, e->peer, w->heartbeat / 2);
    proc_event(w, e->node, &ev);
}

void proc_link_down(world_t *w, int node, int peer, uint64_t token, const char *text) {
    proc_t *p = &w->procs[node];
    link_t *l = link_of(w, node, peer);
    if (token == l->token) l->owed &= node < peer ? ~1 : ~2;
    if (!p->alive || !p->linked[peer] || p->ltoken[peer] != token) return;
    p->lup[peer] = 0;
    if (!w->reconnect) p->linked[peer] = 0;
    else if (w->plant != PLANT_NO_MEND) plan_again(w, node, peer, sim_delay(w));
    rg_member_event_t ev = { .type = RG_MEV_LINK_DOWN, .peer = p->lid[peer], .text = text };
    proc_event(w, node, &ev);
}

/* ---- Data ------------------------------------------------------------------------------------------------------ */

static event_t *hold(world_t *w, const event_t *e) {
    if (w->held_n == w->held_cap) {
        w->held_cap = w->held_cap ? 2 * w->held_cap : 256;
        w->held = realloc(w->held, w->held_cap * sizeof *w->held);
        if (!w->held) abort();
    }
    w->held[w->held_n++] = *e;
    return &w->held[w->held_n - 1];
}

event_t *data_send(world_t *w, int from, int to, data_type type) {
    static event_t nowhere;
    link_t *l = link_of(w, from, to);
    memset(&nowhere, 0, sizeof nowhere);
    int unborn = !l->stream && w->reconnect && w->procs[from].linked[to];
    if (from == to || (!l->stream && !unborn) || (!l->up && !w->reconnect)) return &nowhere;
    if (unborn) { /* it goes out with the first connection */
        nowhere.type = EV_DATA;
        nowhere.node = (int16_t)to;
        nowhere.peer = (int16_t)from;
        nowhere.data = (uint8_t)type;
        nowhere.epoch = w->procs[from].data_epoch;
        nowhere.note = w->procs[from].note;
        return hold(w, &nowhere);
    }
    uint64_t at = w->now + sim_delay(w), *last = from < to ? &l->last_ab : &l->last_ba;
    if (l->via) at += sim_delay(w);
    if (at < *last) at = *last;
    *last = at;
    event_t *e = sim_push(w, at, EV_DATA, to);
    e->peer = (int16_t)from;
    e->token = l->stream;
    e->data = (uint8_t)type;
    e->epoch = w->procs[from].data_epoch;
    e->note = w->procs[from].note;
    return e;
}

int data_arrives(world_t *w, const event_t *e) {
    const proc_t *p = &w->procs[e->node];
    const link_t *l = link_of(w, e->node, e->peer);
    if (!p->alive || p->over || l->stream != e->token) return 0;
    if (!l->up && w->reconnect) {
        hold(w, e);
        return 0;
    }
    if (l->via && w->procs[l->via - 1].paused_until > w->now) { /* who relays is stopped */
        sim_put_off(w, w->procs[l->via - 1].paused_until, e);
        return 0;
    }
    return l->up;
}
