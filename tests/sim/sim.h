/* sim.h: a seeded simulation of a group: coordinators and a changing set of processes on a virtual network, each
 * with the library's own core and an abstract data plane in place of the engine. It relies on src/core only; nothing
 * in it may depend on real time, addresses or the order of a hash, so that a seed always replays to the same trace. */
#ifndef SIM_H
#define SIM_H

#include "core/coord.h"
#include "core/member.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAXP 20    /* processes of a run, dead ones included */
#define MAXK 8192  /* operations of a run */
#define MAXOPEN 40 /* operations in flight at a process */
#define MAXRAN 8   /* that are over at a process and that its machine has not heard of */
#define MAXROSTER 64
#define MAXPLAN 4096
#define MAXCONN 4096
#define MAXOFFICE 200 /* coordinators of a run, one after the other or at once */
#define MAXID 65536
#define MAXVIEW 4096
#define MAXENTRY 4096
#define ALONE MAXP /* where the standalone coordinator is, among places */
#define MS 1000000ull
#define US 1000ull
#define NEVER UINT64_MAX
/* From here on seeds are of groups whose coordinator can be succeeded; and of groups whose links are resumed and
 * relayed, without succession and with it. */
#define SUCCESSION_SEEDS 1000000u
#define PATH_SEEDS 2000000u
#define PATH_SUCCESSION_SEEDS 3000000u
#define OFFICE_SEEDS 4000000u /* with succession, where only coordinators are harmed, so that no member may be lost */

typedef enum {
    EV_TICK,
    EV_TO_COORD,
    EV_TO_PROC,
    EV_COORD_CLOSED,
    EV_PROC_DOWN,
    EV_DIAL,
    EV_LINK_TRY,
    EV_LINK_UP,
    EV_LINK_DOWN,
    EV_DATA,
    EV_PROGRAM,
    EV_FAULT,
    EV_EXPIRE,
    EV_START,
    EV_LINK_AGAIN,
    EV_MEND,
    EV_SPLIT,
    EV_DEATH,
    EV_FETCHED,
    EV_WATCH
} ev_type;

/* What a run is about: anything; only what must cost nobody its place; the data network in two parts; one death; only
 * coordinators are harmed. */
typedef enum { RUN_ANY, RUN_GENTLE, RUN_SPLIT, RUN_DEATH, RUN_OFFICE } run_kind;
typedef enum { D_CONTRIB, D_DONE, D_NOTE, D_RESULT } data_type;

/* Planted faults: each changes the simulated world (never the shipped code) in one way that a checker must see. */
typedef enum {
    PLANT_NONE,
    PLANT_VERDICT,
    PLANT_EARLY,
    PLANT_OLD_DATA,
    PLANT_OLD_DONE,
    PLANT_DROP_VIEW,
    PLANT_CUT,
    PLANT_WATERMARK,
    PLANT_NO_LINK_NEWS,
    PLANT_NO_NOTES,
    PLANT_NO_FREEZE,
    PLANT_STREAMS,
    PLANT_SET_MAP,
    PLANT_NO_ABORT,
    PLANT_ON_INSTALL,
    PLANT_NO_PROPOSAL,
    PLANT_QUORUM,
    PLANT_ACT_ALONE,
    PLANT_NO_RESUME,
    PLANT_NO_ROUTE,
    PLANT_NO_MEND,
    PLANT_BLAME,
    PLANT_SLOW_DEATH,
    PLANT_NOT_FRESH,
    PLANT_NO_HOLD,
    PLANT_LEFT_ONLY,
    PLANT_HASTY,
    PLANT_END
} plant_t;

typedef struct event {
    uint64_t at, due, seq, conn, token; /* due: when it would have come, had nobody been stopped */
    const uint8_t *bytes;
    uint32_t len;
    int16_t type, node, peer, ki;
    uint8_t data, epoch_ok;
    uint64_t epoch, note, computed, mask, sig;
} event_t;

typedef enum { OP_NONE, OP_ISSUED, OP_RUN, OP_WHOLE, OP_FETCH } op_state;
typedef struct open_op {
    op_state st;
    int ki;
    rg_op_key_t key;
    rg_op_sig_t sig;
    uint64_t expected;                    /* whose data must be here before it is whole here */
    uint64_t contributors;                /* whose data are in the result, for all alike */
    uint64_t computed, everybody, called; /* called: who took part when the program called it */
    int speaks;                           /* its data are needed by others */
    int untold, sent;                     /* the machine has not heard of it; what it sends has gone out */
} open_op_t;

/* What a process has received for an operation, of the newest data epoch heard of. */
typedef struct inbox {
    uint64_t epoch, contrib, truth, done, computed, mask;
    uint8_t result;
    uint64_t result_epoch;
    uint16_t sig[MAXP];
} inbox_t;
typedef struct kept {
    int ki;
    uint64_t computed, mask;
} kept_t;
/* What is over and shown, and the machine has not heard of. */
typedef struct ran {
    int ki, told;
    rg_op_key_t key;
    rg_op_sig_t sig;
    uint64_t computed, mask;
} ran_t;
typedef struct roster {
    uint64_t epoch;
    uint32_t n;
    uint64_t id[MAXP], first_gen[MAXP];
} roster_t;

typedef struct proc {
    int started, alive, over, joined, fenced, gone; /* gone: over or dead: not held to the outcome of others */
    rg_member_t *core;
    uint64_t id, conn, paused_until, tick_at, data_epoch, gen, first_gen, note, founded;
    int waiting_boundary, program_set, dialing, renamed, sent_before;
    int holds, fetching, fetched; /* a newcomer that fetches a state before it enters */
    int office;                   /* of the coordinator that it hosts; -1: none */
    uint64_t dial_target;         /* of the dial that is under way: a later one takes its place */
    uint64_t office_until;        /* before then it does not give it back */
    uint32_t idx;
    open_op_t ops[MAXOPEN];
    uint32_t n_ops;
    kept_t kept[RG_KEEP_MAX + 1];
    uint32_t n_kept;
    ran_t ran[MAXRAN];
    uint32_t n_ran;
    int untold, telling;                /* an operation that runs is not told of; it is being told */
    uint64_t said[MAXP], pending[MAXP]; /* watermarks of the others; those that the machine is to hear first */
    uint64_t said_of;                   /* data epoch of the former */
    roster_t rosters[MAXROSTER];
    uint32_t n_rosters;
    inbox_t inbox[MAXK];
    uint32_t inbox_n;
    int8_t route[MAXP];   /* who is to relay the link to this process, + 1 */
    uint32_t relay[MAXP]; /* for whom of these with whom it relays */
    uint64_t again[MAXP]; /* when its link is tried next; 0: it is not */
    uint8_t dead[MAXP], lup[MAXP],
        fresh[MAXP];      /* a try to resume is planned; said to be dead; told to be up */
    uint8_t linked[MAXP]; /* wants a link to this process, or has one */
    uint64_t ltoken[MAXP], lstream[MAXP], lother[MAXP],
        lbefore[MAXP], /* the stream as this process knows it; another id of the same, wanted too, and its stream */
        lid[MAXP];    /* token of the link, and the member id that it is for: a process may come again as another */
} proc_t;

/* A stream of bytes between two processes, and the connection, direct or through another one, that carries it. Without
 * a reconnect time each connection is a stream of its own. */
typedef struct link {
    uint8_t up, owed; /* owed: ends that have not heard that it broke */
    int8_t via;       /* process that relays it, + 1 */
    uint64_t token, stream, id_a, id_b, last_ab, last_ba;
} link_t;

typedef struct outcome {
    uint8_t kind;
    int16_t status;
    uint64_t computed, mask;
} outcome_t; /* kind: 1 success, 2 error */
typedef struct ledger {
    rg_op_key_t key;
    uint64_t founded;      /* the first view of the group: one that died out may be founded again, and counts anew */
    uint64_t skipped;      /* processes whose program left it out: they pass it without sharing in it */
    uint64_t called;       /* processes that took part when any of them called it */
    uint8_t asked;         /* somebody gave it up, or called it in another way: it need not succeed */
    uint8_t rule_l, local; /* local: somebody ended it alone while the coordinator was lost */
    uint64_t whole[MAXP];  /* data epoch in which it was complete at each process */
    outcome_t out[MAXP];
} ledger_t;

/* What the program has settled at one place in it. */
typedef struct plan {
    uint64_t at, founded, ids[MAXP];
    uint32_t n;
} plan_t;

typedef struct conn {
    int node;
    int office;
    uint8_t alive, lost; /* lost: something on it did not arrive, so nothing will any more; bit 0 up, bit 1 down */
    uint64_t last_up, last_down;
} conn_t;

/* A coordinator: standalone, or hosted by a process. */
typedef struct office {
    rg_coord_t *core;
    uint64_t tick, paused;
    int host, alive;
} office_t;

/* How many newcomers each process saw enter at a boundary, + 1. */
typedef struct entry {
    uint64_t founded, gen;
    uint8_t n[MAXP];
} entry_t;

/* A view that somebody has activated. */
typedef struct seen_view {
    uint64_t founded, epoch, parent, members;
} seen_view_t;

typedef struct world {
    uint64_t seed, rng, now, seq, heartbeat, phase2_at, end_gen, events;
    int trace, healed, dead_coordinator_pause;
    plant_t plant;
    int plant_done, plant_node;
    uint32_t cut_short; /* bytes that a planted fault took off a message */
    const char *failed;
    char failure[512];
    event_t *heap;
    size_t heap_n, heap_cap;
    uint8_t *arena;
    size_t arena_n, arena_cap;
    office_t offices[MAXOFFICE];
    int n_offices, standalone; /* standalone: the one that is now; -1: none */
    run_kind kind;
    uint64_t reconnect, struck_at, dead_at, path_fault_at, control_fault_at,
        trouble_until; /* until when coordinators are in trouble; struck_at: when the network fell in two, or somebody
                          died */
    uint32_t losers, quiet_dead; /* who must leave; whose host is gone, so that nothing answers */
    event_t *held;               /* what waits for its stream to go on */
    size_t held_n, held_cap;
    uint64_t resumed, relayed, expelled, begun_anew, fetches;
    uint32_t cut[MAXP + 1]; /* places that what is sent from here does not reach */
    int succession, comeback;
    int afterwards; /* machines hear of operations under rule S when these have run */
    int parted;   /* RUN_OFFICE: the network falls in two, instead of what befalls coordinators */
    int embedded; /* the process in which the first coordinator runs, whose fate it shares; -1: it has its own */
    seen_view_t seen[MAXVIEW];
    uint32_t n_seen;
    entry_t entries[MAXENTRY]; /* by hash; a later one takes the place of an earlier one */
    uint64_t takeovers, restarted;
    proc_t *procs;
    int n_procs;
    link_t links[MAXP][MAXP];
    /* Processes that had the number and came again as another. It may be somebody else's by now: two coordinators that
     * do not know of each other give the same one to two candidates, and only one of these stays what it was called. */
    uint64_t stale_id[MAXID];
    int16_t slot_of_id[MAXID]; /* by member id: process + 1 */
    conn_t conns[MAXCONN];
    uint32_t n_conns;
    ledger_t *ledger;
    int n_ledger;
    int16_t khash[4 * MAXK];
    struct {
        uint64_t founded, epoch, gen, set, mask;
    } parts[4096];
    uint32_t n_parts;
    plan_t plans[MAXPLAN];
    uint32_t n_plans;
    /* the shape of this run */
    uint32_t initial, min_size, window, faults, jitter_us, gap_us, spike, overlap, sets;
    uint64_t mismatch_key, skip_key;
    /* counters of a run, for the summary */
    uint64_t commits, aborts, restarts, forwards, views, joins, locals, narrow, ran, passed;
} world_t;

/* world.c */
uint64_t sim_random(world_t *w);
uint64_t sim_below(world_t *w, uint64_t n);
uint64_t sim_hash(uint64_t a, uint64_t b, uint64_t c);
void sim_fail(world_t *w, const char *what, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void sim_trace(world_t *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
event_t *sim_push(world_t *w, uint64_t at, ev_type type, int node);
void sim_put_off(world_t *w, uint64_t at, const event_t *e);
uint64_t sim_delay(world_t *w);
void sim_init(world_t *w, uint64_t seed, plant_t plant, int trace);
void sim_run(world_t *w);
void sim_free(world_t *w);
void coord_event(world_t *w, int office, rg_cev_t type, uint64_t conn, const uint8_t *bytes, size_t len);
void conn_send(world_t *w, uint64_t conn, int to_coord, const uint8_t *bytes, size_t len);
void conn_break(world_t *w, uint64_t conn, int tell_coord, int tell_proc);
void proc_dial(world_t *w, int node, uint64_t target);
int office_open(world_t *w, int host, uint64_t id);
void office_end(world_t *w, int office, int quiet);
void office_watch(world_t *w, int node, uint32_t returns); /* a member that hosts one asks whether it is needed */
void sim_cut(world_t *w, int from, int to);                /* one way; what has been there breaks by and by */
void sim_uncut(world_t *w);
void sim_mend(world_t *w, int a, int b); /* both ways */
int sim_reaches(const world_t *w, int from, int to);
uint64_t sim_nonce(const proc_t *p);
int sim_start_proc(world_t *w, uint64_t at, uint32_t min_size);

/* plane.c: processes and their data plane */
void proc_event(world_t *w, int node, rg_member_event_t *ev);
void proc_data(world_t *w, const event_t *e);
void proc_fetched(world_t *w, int node);
int proc_of(world_t *w, uint64_t id);
uint64_t proc_participants(world_t *w, const proc_t *p, rg_op_key_t key);
open_op_t *proc_op(proc_t *p, rg_op_key_t key);
int ledger_of(world_t *w, int node, rg_op_key_t key);
int planted(world_t *w, plant_t p, int node);
void proc_run(world_t *w, int node, open_op_t *o);
void proc_drop(proc_t *p, open_op_t *o);

/* ran.c: operations that the machine hears of when they have run */
int ran_may(world_t *w, int node, rg_op_key_t key, const rg_op_sig_t *sig);
void ran_begin(world_t *w, int node, open_op_t *o);
void ran_complete(world_t *w, int node, open_op_t *o);
int ran_hears(world_t *w, int node, int peer, uint64_t note); /* 1: the machine hears of it later */
void ran_tell(world_t *w, int node);                          /* now, because something else is to be told */
int ran_commit(world_t *w, int node, const rg_member_action_t *a);

/* links.c */
link_t *link_of(world_t *w, int a, int b);
void proc_link_up(world_t *w, const event_t *e);
void proc_link_down(world_t *w, int node, int peer, uint64_t token, const char *text);
void link_try(world_t *w, int a, int b);
void link_again(world_t *w, int node, int peer);
void link_break(world_t *w, int a, int b, int tell_a, int tell_b);
void link_connect(world_t *w, int node, const rg_core_member_t *m);
void link_wanted(world_t *w, int node); /* it is again what it was called before: by whom a link to it is wanted */
void link_disconnect(world_t *w, int node, uint64_t id);
void link_route(world_t *w, int node, uint64_t id, uint64_t via);
void link_relay(world_t *w, int node, uint64_t a, uint64_t b, int on);
event_t *data_send(world_t *w, int from, int to, data_type type);
int data_arrives(world_t *w, const event_t *e); /* 0: not now, or never */

/* program.c */
void proc_program(world_t *w, int node);
void proc_soon(world_t *w, int node); /* the program goes on in a moment */
void proc_expire(world_t *w, int node, int ki);
void proc_fail_some(world_t *w, int node);
const roster_t *proc_roster(const proc_t *p, uint64_t epoch);

/* judge.c: what must hold */
void judge_run(world_t *w, int node, const open_op_t *o);
void judge_outcome(world_t *w, int node, int ki, outcome_t o, int fetched, uint64_t everybody);
void judge_step(world_t *w, int node);
void judge_copy(world_t *w, int node, int ki); /* nobody may need this process's copy any more */
void judge_view(world_t *w, int node);
void judge_entry(world_t *w, int node);
const rg_coord_t *judge_office(world_t *w, uint64_t nonce);
void judge_expelled(world_t *w, int node, rg_status_t status, const char *text);
int judge_idle(world_t *w, const char **why, int *who); /* 1: everything that was asked for has ended */
void judge_end(world_t *w);

/* fault.c */
void fault_plan(world_t *w);
void fault_strike(world_t *w);
void fault_kind(world_t *w);
void fault_event(world_t *w, int type);
void fault_crash(world_t *w, int node, int quiet);

#endif
