/* stress.h: what the parts of `regroup stress` share. A driver (stress.c) starts workers, plans and does harm to them
 * (stress_plan.c, stress_act.c, stress_net.c), and judges what they write down (stress_judge.c, stress_report.c); a
 * worker (stress_worker.c, stress_ops.c) calls operations and writes down how they ended. They meet in one mapped file.
 * Workers use the library through regroup.h only. The driver waits for no worker: a stopped one must not stop it. */
#ifndef RG_TOOL_STRESS_H
#define RG_TOOL_STRESS_H

#include "tool.h"

#include <sys/types.h>

#define STRESS_PEERS 32   /* most workers at once */
#define STRESS_COORDS 2   /* coordinators: the first, and a standby */
#define STRESS_RING 512   /* records of a worker that the driver has not read yet */
#define STRESS_IN_STEP 32 /* most operations between two boundaries */
#define STRESS_CALLS 4    /* most operations in flight at once */
#define STRESS_MESSAGE_MS 4000u

/* X(name, text, flags): s: the shape depends on the number of members; r: rooted; p: messages between two; v: segments
 * that differ; l: a list of buffers; a: every member has the same result; o: no operation of its own */
#define STRESS_KINDS(X)                                                                                                \
    X(ALL_REDUCE, "all_reduce", "a")                                                                                   \
    X(BROADCAST, "broadcast", "ra")                                                                                    \
    X(REDUCE, "reduce", "r")                                                                                           \
    X(BARRIER, "barrier", "")                                                                                          \
    X(ALL_GATHER, "all_gather", "sa")                                                                                  \
    X(ALL_GATHER_V, "all_gather_v", "sva")                                                                             \
    X(REDUCE_SCATTER, "reduce_scatter", "s")                                                                           \
    X(REDUCE_SCATTER_V, "reduce_scatter_v", "sv")                                                                      \
    X(GATHER, "gather", "sr")                                                                                          \
    X(GATHER_V, "gather_v", "srv")                                                                                     \
    X(SCATTER, "scatter", "sr")                                                                                        \
    X(SCATTER_V, "scatter_v", "srv")                                                                                   \
    X(ALL_TO_ALL, "all_to_all", "s")                                                                                   \
    X(ALL_TO_ALL_V, "all_to_all_v", "sv")                                                                              \
    X(MESSAGES, "messages", "p")                                                                                       \
    X(BATCH, "batch", "p")                                                                                             \
    X(ALL_REDUCE_LIST, "all_reduce_list", "la")                                                                        \
    X(WEIGHTED, "weighted", "a")                                                                                       \
    X(SUB_GROUP, "sub_group", "o")                                                                                     \
    X(STATE, "state", "oa")                                                                                            \
    X(TALLY, "tally", "oa")                                                                                            \
    X(BOUNDARY, "boundary", "o")                                                                                       \
    X(JOIN, "join", "o")                                                                                               \
    X(LEAVE, "leave", "o")                                                                                             \
    X(GONE, "gone", "o")

typedef enum stress_kind {
#define STRESS_ENUM(name, text, flags) STRESS_##name,
    STRESS_KINDS(STRESS_ENUM)
#undef STRESS_ENUM
        STRESS_KIND_COUNT
} stress_kind_t;
#define STRESS_CHOSEN (STRESS_STATE + 1) /* those that --kinds knows */

const char *stress_kind_name(stress_kind_t k);
int stress_kind_is(stress_kind_t k, char flag);

/* ---- Actions --------------------------------------------------------------------------------------------------- */

/* X(name, text, weight): a weight of 0 follows from another action and is not drawn by itself */
#define STRESS_ACTIONS(X)                                                                                              \
    X(KILL, "kill", 4)                                                                                                 \
    X(STOP, "stop", 4)                                                                                                 \
    X(CONTINUE, "continue", 0)                                                                                         \
    X(JOIN, "join", 5)                                                                                                 \
    X(LEAVE, "leave", 2)                                                                                               \
    X(COORDINATOR_KILL, "coordinator_kill", 2)                                                                         \
    X(COORDINATOR_START, "coordinator_start", 0)                                                                       \
    X(COORDINATOR_STOP, "coordinator_stop", 1)                                                                         \
    X(COORDINATOR_CONTINUE, "coordinator_continue", 0)                                                                 \
    X(DROP, "drop", 2)                                                                                                 \
    X(DROP_ONE_WAY, "drop_one_way", 1)                                                                                 \
    X(DELAY, "delay", 2)                                                                                               \
    X(RESET, "reset", 2)                                                                                               \
    X(CUT_COORDINATOR, "cut_coordinator", 1)                                                                           \
    X(HEAL, "heal", 0)

typedef enum stress_action {
#define STRESS_ACTION_ENUM(name, text, weight) STRESS_ACT_##name,
    STRESS_ACTIONS(STRESS_ACTION_ENUM)
#undef STRESS_ACTION_ENUM
        STRESS_ACTION_COUNT
} stress_action_t;

const char *stress_action_name(stress_action_t a);
int stress_action_is_net(stress_action_t a);

struct stress_event {
    uint64_t at_ns; /* after the start */
    stress_action_t action;
    uint32_t a, b;     /* the slot; of a pair both; of a coordinator its number */
    uint64_t for_ns;   /* how long it lasts, 0: for good */
    uint64_t extra_ns; /* DELAY: of each packet */
};

struct stress_plan {
    struct stress_event *events; /* by time */
    uint32_t n, cap;
};

struct stress_plan_opts {
    uint64_t seed, length_ns, every_min_ns, every_max_ns, heartbeat_ns;
    uint32_t peers, coordinators, hosts;
    int succession; /* others take over from a coordinator that is away, so it may be away for long */
    uint32_t host_of[STRESS_PEERS];
    uint8_t allowed[STRESS_ACTION_COUNT];
};

/* The plan is a function of its options alone. 0, or -1 without memory. */
int stress_plan_make(struct stress_plan *p, const struct stress_plan_opts *o);
void stress_plan_free(struct stress_plan *p);
void stress_event_text(const struct stress_event *e, char *buf, size_t cap);

/* ---- What the worker writes down ------------------------------------------------------------------------------- */

struct stress_record {
    uint64_t incarnation;                                 /* of the group, 0 while the worker does not know it */
    uint64_t step;                                        /* boundary index */
    uint32_t index;                                       /* of the operation in its step */
    uint32_t life;                                        /* times that this process has joined */
    uint32_t kind, dtype, op, in_place, on_fault, flying; /* flying: others were in flight with it */
    uint32_t sub, colour;                                 /* sub: 1 + number of the split it was called in */
    uint64_t count, member_id, epoch, start_ns, end_ns, deadline_ns, fault_ns;
    uint32_t world, rank, root; /* as the caller knew them */
    int32_t status;
    uint32_t contributors, retries, changed, lost;
    uint32_t intact;
    uint64_t wrong, hash;
    uint64_t root_id; /* broadcast: whose data arrived */
    uint64_t sent_to, got_from;
    int32_t sent_status, got_status;
    uint64_t members[STRESS_PEERS], ids[STRESS_PEERS];
    uint32_t fds, threads; /* BOUNDARY, GONE */
    uint64_t rss_kb;
    char text[160];
};

/* The call that a worker is in: a hang is one that lasts beyond its deadline. */
struct stress_now {
    volatile uint64_t start_ns; /* 0: in none */
    volatile uint64_t deadline_ns;
    volatile uint32_t kind, index;
    volatile uint64_t step;
};

struct stress_seat {
    volatile uint32_t leave; /* the driver wants it to leave in order and end */
    volatile uint32_t ready; /* it has begun */
    volatile uint64_t written, read;
    struct stress_now now;
    struct stress_record ring[STRESS_RING];
};

enum stress_plant {
    STRESS_PLANT_NONE,
    STRESS_PLANT_VALUE,   /* a bit of a result is flipped before it is looked at */
    STRESS_PLANT_RESULT,  /* one after it was looked at, so that only its hash tells */
    STRESS_PLANT_INPUT,   /* a bit of an input */
    STRESS_PLANT_OUTCOME, /* success is written down as a lost member */
    STRESS_PLANT_HANG,    /* a call does not end */
    STRESS_PLANT_FDS,     /* a descriptor is left open at each step */
    STRESS_PLANT_STRAY,   /* the driver leaves a process behind */
    STRESS_PLANT_COUNT
};

struct stress_setup {
    uint64_t seed, bytes, start_ns;
    uint32_t log_level; /* of the library, in the workers' output */
    uint32_t peers, op_ms, join_ms, heartbeat_ms, pace_us;
    uint32_t n_kinds, state, sub_groups;
    uint32_t kinds[STRESS_KIND_COUNT];
    enum stress_plant plant;
    uint32_t plant_slot;
    char coordinator[256], group[32], transport[16];
    struct stress_seat seats[STRESS_PEERS];
};

/* ---- Operations (stress_ops.c), for the worker ----------------------------------------------------------------- */

struct stress_call {
    const struct stress_setup *setup;
    struct stress_record rec;
    rg_group_t *group;
    uint64_t key; /* the same on all members; seeds shape and data */
    uint64_t id;  /* of this member */
    uint32_t base, tag, n, me, root;
    int planted; /* this worker's checks are to find a fault */
    uint64_t c;  /* elements of the vector, or of a plain segment */
    rg_dtype_t dtype;
    rg_op_t op;
    size_t elem;
    int own_in_place;
    uint8_t *mem[2], *in, *out;
    /* Segments: 0 of the input or of all, 1 of an all-to-all's output. */
    uint64_t lens[2][STRESS_PEERS], offs[2][STRESS_PEERS];
    rg_opts_t opts;
    rg_result_t res;
    rg_request_t *req;
};

uint64_t stress_mix(uint64_t x);
size_t stress_buffer_bytes(const struct stress_setup *s); /* of each of a call's two */
void stress_call_prepare(struct stress_call *c);          /* kind, size, root, ... from the key */
/* Starts it, or (blocking) does it. With RG_OK and c->req set, stress_call_finish() waits. */
void stress_call_start(struct stress_call *c, int blocking);
void stress_call_finish(struct stress_call *c, struct stress_now *now);
uint64_t stress_hash(const void *p, size_t bytes);

/* ---- Network (stress_net.c), for the driver -------------------------------------------------------------------- */

struct stress_rule {
    volatile uint32_t drop;
    volatile uint64_t delay_ns, reset_until_ns;
};

struct stress_net {
    uint32_t nodes; /* 0: no namespaces */
    int ns[STRESS_PEERS + STRESS_COORDS];
    pid_t wire;
    struct stress_rule (*rules)[STRESS_PEERS + STRESS_COORDS]; /* [from][to], seen by the wire */
};

/* NULL, or why there is none: then the driver goes on without it. */
const char *stress_net_open(struct stress_net *t, uint32_t nodes);
void stress_net_close(struct stress_net *t);
void stress_net_address(uint32_t node, char buf[32]);
int stress_net_enter(const struct stress_net *t, uint32_t node); /* in a child; async-signal-safe */

/* ---- The driver ------------------------------------------------------------------------------------------------ */

struct stress_sample {
    uint64_t at_ns;
    uint32_t fds, threads, world;
    uint64_t rss_kb;
};
#define STRESS_SAMPLES 512

struct stress_peer {
    pid_t pid;                                   /* 0: none */
    uint32_t host, process;                      /* process: how many this slot has had */
    uint64_t start_ns, continued_ns, stopped_ns; /* stopped_ns: 0 while it runs */
    uint64_t harmed_ns; /* when something was last done to it, or undone, that may get it expelled */
    uint64_t leaving_ns;
    int killed, hung, wanted;
    struct stress_record *queue[STRESS_IN_STEP * 4]; /* of the life it is in, until a tally confirms them */
    uint32_t queued, life;
    uint64_t confirmed_ns; /* last tally */
    uint64_t confirmed_step, incarnation;
    uint32_t confirmed_by; /* members in it */
    uint32_t samples, sample_stride, sample_skip;
    struct stress_sample sample[STRESS_SAMPLES];
    void *journal; /* FILE, with --keep */
};

struct stress_coord {
    pid_t pid;
    uint32_t starts;
    uint64_t stopped_ns, killed_ns;
    char address[64];
};

struct stress_violation {
    double at;
    char kind[24], text[256];
    char lines[2][700];
};
#define STRESS_VIOLATIONS 64

struct stress_recovery {
    uint64_t epoch, incarnation, ns;
    double at;
};
#define STRESS_RECOVERIES 8192

struct stress_tally {
    uint64_t by_status[STRESS_KIND_COUNT][24];
    uint64_t operations, steps, confirmed, compared, wrong_checked;
    uint64_t actions_done[STRESS_ACTION_COUNT];
    uint32_t rejoins, join_failures, groups, violations;
    uint64_t group[64]; /* incarnations seen, the last ones */
    struct stress_violation violation[STRESS_VIOLATIONS];
    struct stress_recovery recovery[STRESS_RECOVERIES];
    uint32_t recoveries;
    double slowest[STRESS_KIND_COUNT];
};

struct stress_done { /* an action as it took place */
    struct stress_event event;
    double at;
    int happened;
    char note[64];
};

struct stress {
    struct stress_plan_opts plan_opts;
    struct stress_plan plan;
    struct stress_setup *setup;
    struct stress_net net;
    struct stress_peer peers[STRESS_PEERS];
    struct stress_coord coords[STRESS_COORDS];
    struct stress_tally tally;
    struct stress_done *done;
    uint32_t n_done;
    uint64_t start_ns, end_ns, next_line_ns, settled_ns;
    int interrupted, fail_fast, quiet, keep, want_net, tty, tls;
    char net_why[128];
    const char *json, *log, *transport;
    char dir[128];
};

double stress_at(const struct stress *s); /* seconds since the start */

/* stress_act.c */
int stress_worker_start(struct stress *s, uint32_t slot);
int stress_coordinator_start(struct stress *s, uint32_t i, int first);
void stress_do(struct stress *s, const struct stress_event *e);
void stress_reap(struct stress *s);
void stress_heal_all(struct stress *s);
uint32_t stress_node_of(const struct stress *s, uint32_t slot);

/* stress_judge.c */
void stress_judge_drain(struct stress *s);               /* reads what workers have written */
void stress_judge_over(struct stress *s, uint32_t slot); /* the process has ended */
void stress_judge_hangs(struct stress *s);
void stress_judge_resources(struct stress *s, uint32_t slot); /* of a process that has ended well or is about to */
void stress_judge_free(struct stress *s);
void stress_violate(struct stress *s, const char *kind, const struct stress_record *a, const struct stress_record *b,
                    const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void stress_record_line(const struct stress_record *r, char *buf, size_t cap);

/* stress_watch.c: how long this host stood still between two times, in all and at once, as seen by a thread that naps
 */
void stress_watch_start(void);
void stress_watch_stop(void);
uint64_t stress_stood_still(uint64_t from, uint64_t until, uint64_t *longest);
double stress_stood_still_s(void); /* in all since the start */

/* stress_report.c */
int stress_status_index(int32_t status); /* 0 OK, k for -k, the last for anything else */
void stress_progress(struct stress *s);
void stress_summary(struct stress *s);
int stress_json(struct stress *s);

#endif
