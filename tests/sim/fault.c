/* fault.c: what goes wrong, and when: deaths with and without a reset, stops, broken control connections and links,
 * newcomers, leavers, operations given up. Every choice is drawn from the seed. */
#include "sim.h"

/* What the run is about, and the times that go with it. */
void fault_kind(world_t *w) {
    static const run_kind kinds[] = { RUN_ANY,    RUN_ANY,    RUN_ANY,   RUN_GENTLE,
                                      RUN_GENTLE, RUN_GENTLE, RUN_SPLIT, RUN_DEATH };
    w->kind = kinds[sim_hash(w->seed, 7, 7) % 8];
    if (w->plant == PLANT_NO_ROUTE || w->plant == PLANT_NO_MEND) w->kind = RUN_GENTLE;
    if (w->plant == PLANT_BLAME) w->kind = RUN_SPLIT;
    if (w->plant == PLANT_SLOW_DEATH) w->kind = RUN_DEATH;
    w->reconnect = w->heartbeat / 2 + sim_below(w, 2 * w->heartbeat);
    if (w->seed >= OFFICE_SEEDS) {
        w->kind = RUN_OFFICE;
        if (sim_hash(w->seed, 10, 10) % 2) w->reconnect = 0;
        w->initial = 1 + (uint32_t)sim_below(w, 9);
        w->min_size = w->initial;
        w->gap_us = 4000 + (uint32_t)sim_below(w, 4000);
        w->phase2_at = (10 + sim_below(w, 30)) * w->heartbeat;
        /* Links between the two sides break for good where there is no reconnect time, so the side with the quorum has
         * the time to act before both sides meet again: whoever did then would have to show out the other side. */
        w->parted = sim_hash(w->seed, 12, 12) % 4 == 0;
        if (w->parted) w->struck_at = 100 * MS + sim_below(w, 4 * w->heartbeat);
        if (w->parted) w->phase2_at = w->struck_at + (8 + sim_below(w, 20)) * w->heartbeat;
    }
    if (w->kind == RUN_ANY) return;
    w->spike = 0;
    w->jitter_us = 100 + (uint32_t)sim_below(w, 900);
    if (w->kind == RUN_GENTLE || w->kind == RUN_OFFICE) return;
    w->initial = 3 + (uint32_t)sim_below(w, 6);
    w->min_size = w->initial;
    w->struck_at = (60 + sim_below(w, 40)) * MS;
    w->phase2_at = w->struck_at + 2 * w->heartbeat + 7 * w->reconnect + 100 * MS;
    if (w->kind == RUN_DEATH) w->reconnect = 20 * w->heartbeat;
}

static void plan_paths(world_t *w) {
    if (w->kind == RUN_SPLIT || w->parted) sim_push(w, w->struck_at, EV_SPLIT, 0);
    if (w->kind == RUN_DEATH) sim_push(w, w->struck_at, EV_DEATH, 0);
    if (w->kind != RUN_GENTLE && w->kind != RUN_OFFICE) return;
    w->faults = 1 + (uint32_t)sim_below(w, 12);
    for (uint32_t i = 0; i < w->faults; i++) sim_push(w, 20 * MS + sim_below(w, w->phase2_at - 25 * MS), EV_FAULT, -1);
    uint32_t joins = w->parted ? 0 : (uint32_t)sim_below(w, 3);
    for (uint32_t i = 0; i < joins; i++) sim_start_proc(w, sim_below(w, w->phase2_at), 1);
}

void fault_plan(world_t *w) {
    if (w->kind != RUN_ANY) {
        plan_paths(w);
        return;
    }
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
    if (quiet) w->quiet_dead |= 1u << node;
    conn_break(w, p->conn, !quiet, 0);
    p->conn = 0;
    if (p->office >= 0) office_end(w, p->office, quiet);
    p->office = -1;
    if (node == w->embedded && !w->standalone) office_end(w, 0, quiet);
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

/* ---- Paths ----------------------------------------------------------------------------------------------------- */

/* The path between two is cut, one way or both, for a time or for good. The first process keeps its paths in gentle
 * runs: it can relay for everybody. */
static void cut_pair(world_t *w, int a, int b) {
    if (a < 0 || a == b || (w->kind == RUN_GENTLE && (!a || !b))) return;
    if (w->kind == RUN_GENTLE && w->control_fault_at && w->now < w->control_fault_at + w->heartbeat) return;
    uint64_t ways = sim_below(w, 4);
    sim_trace(w, "the path between %d and %d is cut%s", a, b, ways > 1 ? "" : ways ? " one way" : " the other way");
    if (ways) sim_cut(w, a, b);
    if (ways != 1) sim_cut(w, b, a);
    w->path_fault_at = w->now;
    if (sim_below(w, 3)) sim_push(w, w->now + sim_below(w, 3 * w->reconnect), EV_MEND, a)->peer = (int16_t)b;
}

static void gentle(world_t *w) {
    int a = pick(w, 0), b = pick(w, 0);
    if (a < 0 || a == b) return;
    switch (sim_below(w, 8)) {
    case 0:
        if (w->path_fault_at && w->now < w->path_fault_at + w->heartbeat) break; /* together they look like a death */
        sim_trace(w, "control connection of process %d breaks", a);
        conn_break(w, w->procs[a].conn, 1, 1);
        w->control_fault_at = w->now;
        break;
    case 1:
        if (w->control_fault_at && w->now < w->control_fault_at + w->heartbeat) break;
        sim_trace(w, "link between processes %d and %d breaks", a, b);
        w->path_fault_at = w->now;
        link_break(w, a, b, 1, (int)sim_below(w, 4) != 0);
        break;
    case 2: proc_fail_some(w, a); break;
    default: cut_pair(w, a, b);
    }
}

/* Nothing befalls members, but that some of what they do is given up, so that there are rounds. */
static void office_alone(world_t *w) {
    uint64_t t = sim_below(w, 6 * w->heartbeat);
    int a = pick(w, 1), what = w->parted ? 7 : (int)sim_below(w, 8);
    uint64_t until = w->now + (what <= 1 || what == 5 ? t : 0);
    if (until > w->trouble_until) w->trouble_until = until;
    switch (what) {
    case 0:
    case 1:
        sim_trace(w, "the coordinator is stopped for %llu ms", (unsigned long long)(t / MS));
        if (w->standalone >= 0) w->offices[w->standalone].paused = w->now + t;
        break;
    case 2:
        if (w->standalone >= 0) office_end(w, w->standalone, (int)sim_below(w, 2));
        break;
    case 3:
        if (w->standalone >= 0) office_end(w, w->standalone, (int)sim_below(w, 2));
        office_open(w, -1, RG_OFFICE_STANDALONE | (uint64_t)(w->n_offices + 1) << 16);
        break;
    case 4:
        if (w->standalone < 0) office_open(w, -1, RG_OFFICE_STANDALONE | (uint64_t)(w->n_offices + 1) << 16);
        break;
    case 5:
        sim_trace(w, "the coordinator is cut off");
        for (int i = 0; i < w->n_procs; i++) {
            sim_cut(w, ALONE, i);
            sim_cut(w, i, ALONE);
            sim_push(w, w->now + t, EV_MEND, ALONE)->peer = (int16_t)i;
        }
        break;
    case 6:
        sim_trace(w, "all control connections break");
        for (int i = 0; i < w->n_procs; i++) conn_break(w, w->procs[i].conn, 1, 1);
        break;
    default:
        if (a >= 0) proc_fail_some(w, a);
    }
}

/* The data network falls in two; the coordinator reaches everybody. */
static void split(world_t *w) {
    const rg_core_view_t *v = w->procs[0].joined ? rg_member_view(w->procs[0].core) : NULL;
    uint32_t side = (uint32_t)sim_random(w), n[2] = { 0 };
    for (uint32_t i = 0; v && i < v->n; i++) n[side >> proc_of(w, v->members[i].id) & 1]++;
    if (!v || v->n != w->initial || !n[0] || !n[1]) return;
    int first = (int)(side >> proc_of(w, v->members[0].id) & 1), stays = n[0] == n[1] ? first : n[1] > n[0];
    w->losers = (stays ? ~side : side) & ((1u << w->n_procs) - 1);
    sim_trace(w, "the data network falls in two; %x must leave", w->losers);
    for (int i = 0; i < w->n_procs; i++)
        for (int k = 0; k < w->n_procs; k++)
            if ((side >> i & 1) != (side >> k & 1)) sim_cut(w, i, k);
}

/* Everything falls in two, coordinators too. Where there is a quorum nobody may notice but by losing the others. */
static void part(world_t *w) {
    const rg_core_view_t *v = rg_member_view(w->procs[0].core);
    uint32_t all = (1u << w->n_procs) - 1, side = (uint32_t)sim_random(w) & (all | 1u << ALONE), votes[2] = { 0 };
    if (!v) return;
    for (int i = 0; i < w->n_procs; i++)
        if (!w->procs[i].joined || w->procs[i].over || rg_member_view(w->procs[i].core)->epoch != v->epoch) return;
    for (uint32_t i = 0; i < v->n; i++) votes[side >> proc_of(w, v->members[i].id) & 1]++;
    if (v->witness) votes[side >> ALONE & 1]++;
    int first = (int)(side >> proc_of(w, v->members[0].id) & 1), most = votes[1] > votes[0];
    if (votes[0] == votes[1]) most = first;
    w->losers = (most ? ~side : side) & all;
    sim_trace(w, "the network falls in two: %x; %x have no quorum", side, w->losers);
    for (int i = 0; i <= MAXP; i++)
        for (int k = 0; k <= MAXP; k++)
            if ((side >> i & 1) != (side >> k & 1)) sim_cut(w, i, k);
}

static void one_death(world_t *w) {
    int node = (int)sim_below(w, (uint64_t)w->n_procs);
    for (int i = 0; i < w->n_procs; i++)
        if (!w->procs[i].joined || !w->procs[i].alive || w->procs[i].over) return;
    w->dead_at = w->now;
    fault_crash(w, node, 0);
}

void fault_event(world_t *w, int type) {
    if (w->healed) return;
    if (type == EV_SPLIT && w->parted) part(w);
    else if (type == EV_SPLIT) split(w);
    else one_death(w);
}

void fault_strike(world_t *w) {
    if (w->healed) return;
    if (w->kind == RUN_GENTLE) {
        gentle(w);
        return;
    }
    if (w->kind == RUN_OFFICE) {
        office_alone(w);
        return;
    }
    if (w->reconnect && sim_below(w, 2)) {
        cut_pair(w, pick(w, 0), pick(w, 0));
        return;
    }
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
