/* fault.c: what goes wrong, and when: deaths with and without a reset, stops, broken control connections and links,
 * newcomers, leavers, operations given up. Every choice is drawn from the seed. */
#include "sim.h"

void fault_plan(world_t *w) {
    w->faults = (uint32_t)sim_below(w, 6);
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

void fault_strike(world_t *w) {
    if (w->healed) return;
    int a = pick(w, (int)sim_below(w, 4)), b;
    if (a < 0) return;
    proc_t *p = &w->procs[a];
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
        w->coord_paused = w->now + t;
        break;
    }
    default:
        sim_trace(w, "all control connections break");
        for (int i = 0; i < w->n_procs; i++)
            if (w->procs[i].conn) conn_break(w, w->procs[i].conn, 1, 1);
    }
}
