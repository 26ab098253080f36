/* fault.c: what goes wrong, and when: deaths with and without a reset, stops, broken control connections and links,
 * newcomers, leavers, operations given up. Every choice is drawn from the seed. */
#include "sim.h"

void fault_plan(world_t *w) {
    w->faults = (uint32_t)sim_below(w, 6);
    if (w->succession) w->faults *= 2;
    for (uint32_t i = 0; i < w->faults; i++) sim_push(w, 5 * MS + sim_below(w, w->phase2_at - 10 * MS), EV_FAULT, -1);
    uint32_t joins = (uint32_t)sim_below(w, 4);
    for (uint32_t i = 0; i < joins; i++) sim_start_proc(w, sim_below(w, w->phase2_at), 1);
    /* One operation that a member calls with another count, one that a member never calls. */
    if (sim_below(w, 4) == 0) w->mismatch_key = 1 + sim_below(w, 60);
    if (sim_below(w, 4) == 0) w->skip_key = 1 + sim_below(w, 60);
}

/* quiet: the host is gone; nobody is told by a reset. */
void fault_crash(world_t *w, int node, int quiet) {
    proc_t *p = &w->procs[node];
    if (!p->alive) return;
    sim_trace(w, "process %d dies%s", node, quiet ? " with its host" : "");
    p->alive = 0;
    p->gone = 1;
    conn_break(w, p->conn, !quiet, 0);
    p->conn = 0;
    if (p->office >= 0) office_end(w, p->office, quiet);
    p->office = -1;
    for (int i = 0; i < w->n_procs; i++)
        if (i != node) link_break(w, node, i, 0, !quiet);
}

static int pick(world_t *w, int member) {
    int found = -1;
    uint64_t seen = 0;
    for (int i = 0; i < w->n_procs; i++)
        if (w->procs[i].alive && !w->procs[i].over && (!member || w->procs[i].joined) && sim_below(w, ++seen) == 0)
            found = i;
    return found;
}

static void again(world_t *w) { sim_start_proc(w, w->now + sim_below(w, 20 * MS), 1); }

/* ---- What befalls coordinators and the network between all ----------------------------------------------------- */

static void partition(world_t *w) {
    uint64_t side = sim_random(w);
    sim_trace(w, "the network falls apart: %llx", (unsigned long long)(side & ((2u << MAXP) - 1)));
    for (int i = 0; i <= MAXP; i++)
        for (int k = 0; k <= MAXP; k++)
            if ((side >> i & 1) != (side >> k & 1)) sim_cut(w, i, k);
}

/* One place is cut off, both ways or one way, from some of the others. */
static void isolate(world_t *w, int place) {
    uint64_t out = sim_random(w), in = sim_below(w, 2) ? out : sim_random(w);
    if (sim_below(w, 2)) out = in = ~0ull;
    sim_trace(w, "place %d is cut off", place);
    for (int k = 0; k <= MAXP; k++) {
        if (out >> k & 1) sim_cut(w, place, k);
        if (in >> k & 1) sim_cut(w, k, place);
    }
}

static void rejoin_network(world_t *w) {
    sim_trace(w, "the network is whole again");
    sim_uncut(w);
    for (uint32_t i = 1; i <= w->n_conns; i++)
        if (w->conns[i].lost && sim_below(w, 2)) conn_break(w, i, 1, 1);
}

static void strike_office(world_t *w, int a) {
    switch (sim_below(w, 8)) {
    case 0:
    case 1:
        if (w->standalone >= 0) office_end(w, w->standalone, (int)sim_below(w, 2));
        break;
    case 2: /* dies and is started again at once */
        if (w->standalone >= 0) office_end(w, w->standalone, (int)sim_below(w, 2));
        office_open(w, -1, RG_OFFICE_STANDALONE | (uint64_t)(w->n_offices + 1) << 16);
        break;
    case 3:
        if (w->standalone < 0) office_open(w, -1, RG_OFFICE_STANDALONE | (uint64_t)(w->n_offices + 1) << 16);
        break;
    case 4: partition(w); break;
    case 5: isolate(w, sim_below(w, 2) ? ALONE : a); break;
    case 6: rejoin_network(w); break;
    default: /* whoever hosts a coordinator dies */
        for (int i = 0; i < w->n_procs; i++)
            if (w->procs[i].office >= 0 && sim_below(w, 2)) fault_crash(w, i, (int)sim_below(w, 2));
    }
}

void fault_strike(world_t *w) {
    if (w->healed) return;
    int a = pick(w, (int)sim_below(w, 4)), b;
    if (a < 0) return;
    proc_t *p = &w->procs[a];
    if (w->succession && sim_below(w, 2)) {
        strike_office(w, a);
        return;
    }
    switch (sim_below(w, 10)) {
    case 0:
    case 1:
        fault_crash(w, a, 0);
        if (sim_below(w, 2)) again(w);
        break;
    case 2: fault_crash(w, a, 1); break;
    case 3: {
        uint64_t t = sim_below(w, 3 * w->heartbeat);
        sim_trace(w, "process %d is stopped for %llu ms", a, (unsigned long long)(t / MS));
        p->paused_until = w->now + t;
        break;
    }
    case 4:
        sim_trace(w, "control connection of process %d breaks", a);
        conn_break(w, p->conn, 1, 1);
        break;
    case 5:
        b = pick(w, 1);
        if (b < 0 || b == a) break;
        sim_trace(w, "link between processes %d and %d breaks", a, b);
        link_break(w, a, b, 1, (int)sim_below(w, 4) != 0 || p->joined == 0);
        break;
    case 6:
        if (!p->joined) break;
        sim_trace(w, "process %d leaves", a);
        rg_member_event_t ev = { .type = RG_MEV_LEAVE };
        proc_event(w, a, &ev);
        if (sim_below(w, 2)) again(w);
        break;
    case 7:
        for (int i = 0; i < w->n_procs; i++)
            if (w->procs[i].joined && sim_below(w, 3)) proc_fail_some(w, i);
        break;
    case 8: {
        uint64_t t = sim_below(w, 2 * w->heartbeat);
        sim_trace(w, "the coordinator is stopped for %llu ms", (unsigned long long)(t / MS));
        if (w->standalone >= 0) w->offices[w->standalone].paused = w->now + t;
        break;
    }
    default:
        sim_trace(w, "all control connections break");
        for (int i = 0; i < w->n_procs; i++)
            if (w->procs[i].conn) conn_break(w, w->procs[i].conn, 1, 1);
    }
}
