/* group.h: what the engine's files share: the group, its operations, links and rosters. One mutex per group guards
 * everything here except where a comment says otherwise. Nothing in this header is seen outside src/engine and
 * src/api.c. */
#ifndef RG_GROUP_H
#define RG_GROUP_H

#include "core/core.h"
#include "kernels/kernels.h"
#include "observe/log.h"
#include "os/os.h"
#include "os/tls.h"
#include "regroup.h"
#include "regroup_transport.h"
#include "sched/sched.h"

#include <pthread.h>
#include <stdatomic.h>

#define RG_MAX_LINKS 4096
#define RG_SEND_WINDOW 2         /* unfinished sends of one operation per link: keeps pieces interleaved */
#define RG_SERVE_ORD 0xffffff00u /* ordinal of the message that carries a finished result (FORWARD) */

/* ---- Control connection (control.c) ------------------------------------------------------------------------------ */

#define RG_CONTROL_PLACES 16

typedef struct rg_control {
    int fd;           /* -1 when there is none */
    int connecting;   /* it is not there yet: connect() has not ended, */
    int opening;      /* or it has, and the TLS handshake has not */
    rg_tls_t *tls;    /* NULL: without TLS */
    uint32_t unfit;   /* TLS handshakes in a row that were refused, by either side */
    uint32_t strange; /* connections in a row over which came what no coordinator says */
    int spoken;       /* a coordinator has spoken over this one */
    int renew;        /* open, but 1: perhaps dead: take a new one unless something comes; 2: not wanted any more */
    uint64_t target;  /* whose office it is to: a member's, or 0: a coordinator's */
    struct sockaddr_storage place[RG_CONTROL_PLACES]; /* of a member's office */
    uint32_t n_places, tried, at; /* tried: places in the present dial; at: index of the one in use */
    uint64_t retry_at_ns, backoff_ns, connect_by_ns, up_since_ns;
    uint8_t *in;
    size_t in_len, in_cap;
    uint8_t *out;
    size_t out_len, out_off, out_cap;
} rg_control_t;

/* ---- Plans (plan.c): a schedule with what the executor needs, cached --------------------------------------------- */

typedef struct rg_plan {
    rg_schedule_t *s;
    const rg_algorithm_t *alg;
    uint32_t *first_out, *outs;   /* dependents of each step */
    uint32_t *rem;                /* initial number of unfinished dependencies */
    uint32_t n_peers, *peers;     /* ranks that get messages */
    uint32_t *first_send, *sends; /* for each of those, its sends in schedule order */
    uint32_t hash;                /* algorithm and chunk */
    uint32_t refs;
    uint64_t used; /* for replacing the oldest */
    rg_coll_desc_t key;
    void *key_arrays;
    uint64_t key_hash, model_key;
} rg_plan_t;

/* ---- Who takes part (roster.c) ----------------------------------------------------------------------------------- */

typedef struct rg_roster {
    uint32_t refs, n, rank; /* rank of this process */
    uint64_t data_epoch, gen;
    uint64_t *ids;
    uint32_t *links; /* link per rank; own entry unused */
    rg_cost_model_t model;
    uint64_t model_key;           /* changes with the model and the topology */
    rg_topology_t topo;           /* levels 0: nothing is known */
    uint32_t *groups;             /* of topo */
    uint64_t base_gen;            /* all of them are here from this generation on */
    const struct rg_order *order; /* what they measured, that topo and model tell; NULL: nothing */
} rg_roster_t;

/* What all members measured together (src/measure.c), for operations without a tag from that number on: rings run in
 * this order, and direct exchange has shares by rate. Ranks are places in ids. It holds among those who were there. */
typedef struct rg_order {
    struct rg_order *older;
    uint64_t gen;
    uint32_t op, n, uneven;
    uint64_t ids[RG_ORDER_MAX];
    uint32_t ring[RG_ORDER_MAX], rate[RG_ORDER_MAX];
} rg_order_t;

/* What the members have measured, as the views of one data epoch say it, the newest first. A view of newcomers brings
 * newer figures too, while operations go on: those of generations before its cut are run by the figures that held
 * before, on whichever side of the view a member begins them, so that all choose alike. */
typedef struct rg_nets {
    struct rg_nets *older;
    uint64_t from_gen;
    uint32_t n;
    struct rg_net_of {
        uint64_t id;
        uint8_t net[RG_CORE_NET];
    } of[];
} rg_nets_t;

/* Members of recent data epochs, to name contributors and to understand old ranks. */
typedef struct rg_past {
    uint64_t data_epoch;
    uint32_t n;
    uint64_t *ids, *first_gens;
} rg_past_t;
#define RG_PAST 16

typedef struct rg_link {
    uint64_t id;  /* member; 0: free */
    uint64_t via; /* member that is to relay it; 0: none */
    uint8_t identity[16];
    uint32_t addr_len;
    uint8_t addr[RG_CORE_ADDR_MAX];
    uint64_t host, site; /* of that member */
    uint32_t dial;
    int up;
    int relayed;         /* up, through `via` */
    int lost;            /* up, but its connection broke and is being made again */
    int fresh;           /* made anew: what was on its way is lost, and the core has not heard of it yet */
    uint32_t anew;       /* how often that happened lately */
    uint64_t anew_at;    /* the last time */
    uint64_t note;       /* of its member, that the core has not heard yet, */
    int noted;           /* when this is set */
    uint64_t dropped_at; /* poll before the drop; 0: never used */
} rg_link_t;

/* ---- Where the elements of a buffer are (layout.c) ----------------------------------------------------------------
 */

typedef enum rg_layout_kind { RG_LAYOUT_PLAIN, RG_LAYOUT_ROWS, RG_LAYOUT_LIST } rg_layout_kind_t;

typedef struct rg_layout {
    rg_layout_kind_t kind;
    uint32_t elem, n;       /* bytes of an element; LIST: buffers */
    uint8_t *base;          /* PLAIN, ROWS */
    uint64_t row, pitch;    /* ROWS: elements */
    uint64_t seg;           /* LIST: elements of all buffers; where buffers have segments, of one segment of each */
    const uint64_t *starts; /* LIST: n + 1 */
    uint8_t *const *ptrs;   /* LIST */
} rg_layout_t;

/* ---- Memory (memory.c) ------------------------------------------------------------------------------------------- */

typedef struct rg_block {
    struct rg_block *next;
    void *p;
    size_t cap;
    int shared; /* peers can map it */
} rg_block_t;
#define RG_BLOCK_CLASSES 10 /* idle blocks of 256 bytes to 32 KiB by size, of 64 KiB to 1 MiB, larger ones */

/* Kept copy of a committed small result, until every participant has it. */
typedef struct rg_kept {
    struct rg_kept *next;
    rg_op_key_t key;
    rg_block_t *block;
    uint64_t len;
    uint32_t sig;
    uint32_t serving; /* sends that still read the copy */
    int released;
} rg_kept_t;

/* ---- Operations that are quick (quick.c) ---------------------------------------------------------------------------
 */

#define RG_QUICK_PEERS 8u  /* most members */
#define RG_QUICK_SHAPES 8u /* kinds of calls that are remembered */
#define RG_QUICK_DONE 8u   /* results that the core has not heard of */

typedef enum rg_quick_how {
    RG_QUICK_NOT,
    RG_QUICK_FOLD,
    RG_QUICK_GATHER,
    RG_QUICK_PAIR,
    RG_QUICK_MEET,
    RG_QUICK_SPREAD
} rg_quick_how_t;

typedef struct rg_quick_shape {
    rg_op_sig_t sig;
    rg_quick_how_t how;
    rg_roster_t *roster, *base; /* NULL: free. base: the group's own, where roster is in an order that was measured */
    const rg_order_t *orders;
    uint32_t tag_sig, elem, acc, root; /* root: in the order of roster */
    uint64_t bytes, keep_bytes;        /* of a message; of the result as all have it */
    rg_red_t own, mid, last;
} rg_quick_shape_t;

typedef struct rg_quick_done {
    rg_op_key_t key;
    rg_op_sig_t sig;
    rg_kept_t *kept; /* NULL: the core has it now */
} rg_quick_done_t;

typedef struct rg_quick {
    rg_quick_shape_t shape[RG_QUICK_SHAPES];
    uint32_t next_shape, n_done;
    int telling, test; /* test: 1: never quick; 2: waits for the others for as long as it takes */
    uint64_t runs;     /* how many there were */
    rg_quick_done_t done[RG_QUICK_DONE];
    uint64_t note_of, note[RG_QUICK_PEERS]; /* how far the others are, by rank, in that data epoch */
    uint8_t *acc;                           /* partial values, and behind them our own part as such */
} rg_quick_t;

typedef struct rg_quick_call {
    rg_kind_t kind;
    rg_dtype_t dtype;
    rg_op_t op;
    rg_on_fault_t on_fault; /* where the kind leaves a choice */
    uint32_t root;          /* where it has one */
    uint64_t count;
    const void *in;
    void *out;
    rg_result_t *result; /* may be NULL */
} rg_quick_call_t;

/* ---- Operations -------------------------------------------------------------------------------------------------- */

typedef enum rg_op_state {
    RG_OPS_NEW,      /* asked the core, no verdict yet (fenced) */
    RG_OPS_RUNNING,  /* its schedule runs, or is stopped by a fence */
    RG_OPS_COMPLETE, /* whole result here, not shown */
    RG_OPS_FETCHING, /* waits for the finished result of another member */
    RG_OPS_FINISHED  /* outcome known */
} rg_op_state_t;

/* What a reduction into OUT with an undo log needs beside its kernel. */
typedef struct rg_covered {
    rg_request_t *op;
    const rg_red_t *red;
    uint32_t a_elem, b_elem;
} rg_covered_t;

/* What a receive needs that puts what arrives into several pieces of memory. */
typedef struct rg_sink {
    rg_request_t *op;
    const rg_red_t *red; /* NULL: a plain copy */
    uint32_t step;
} rg_sink_t;

/* A message that was packed from several pieces, until it is sent: at the start of the block that has it. */
typedef struct rg_bounce {
    struct rg_bounce *next;
    rg_block_t *block;
    uint32_t step;
} rg_bounce_t;
#define RG_BOUNCE_HEAD 64 /* bytes before the message */

struct rg_request {
    rg_group_t *g;                              /* the root group */
    rg_group_t *h;                              /* the handle that it was called on */
    struct rg_request *next_free, *prev, *next; /* list of open operations */
    struct rg_request *next_hash;               /* by key */
    rg_op_key_t key;
    rg_op_sig_t sig;
    rg_op_state_t state;
    uint32_t slot, uid; /* index in g->ops; uid changes with every run, so that late completions do not match */
    int blocking;       /* the caller's frame owns it */
    uint32_t presend;   /* ranks whose first message is out already (quick.c) */
    int spoiled;        /* the input is overwritten and cannot be restored: undo is off */
    int failing;        /* OP_FAIL was told */
    int taken;          /* in use: not on the free list */
    int orphan;         /* nobody waits for it: it is freed when it has ended */
    /* Not RG_OK: the call was refused here, for its arguments. The others may have made it, so it takes its place in
     * the order of calls all the same, and is ended for all; res.text has the reason until it ends. */
    rg_status_t refused, ended; /* ended: what it was ended with for the others */
    int executing;              /* the schedule may issue steps (not stopped by a fence) */

    /* The call */
    rg_layout_t in, out; /* as the caller has them */
    uint64_t bytes;      /* of OUT */
    uint32_t elem;
    uint32_t root_arg, tag;
    uint32_t shape_n;       /* participants that the caller's segments are for; 0: it has none */
    uint8_t in_place;       /* IN is OUT, or a part of it, or the other way round */
    uint8_t covers;         /* a reduction that writes its result over (some of) its input */
    uint8_t weighted, self; /* self: a message to oneself, which the core never hears of */
    uint32_t shape_rank;    /* of this member among them */
    uint64_t keep_bytes;    /* under rule S: of the result as all members have it, or of what a pair has sent */
    uint8_t pair;           /* under rule S: two members; what is kept is what was sent, and not the result */
    uint8_t stale;          /* the caller did not know how many take part */
    double scale, scale_after, weight;
    double share_after; /* of a weighted average, from PREPARE on: what the shares are multiplied by at last */
    const uint64_t *offs, *lens, *in_offs, *in_lens; /* as in rg_coll_desc_t, in `nums` */
    uint64_t *nums;
    void **ptrs;
    size_t cap_nums, cap_ptrs;
    uint64_t tag_gen; /* what stands for generation and set in the tags of messages */
    uint64_t deadline_ns, give_up_ns;
    uint8_t told; /* how often it was told to the member for which it waits */

    /* A batch: the request that stands for all its messages, and the messages */
    rg_request_t *batch, *batch_first, *batch_next;
    uint32_t batch_left;

    /* running */
    rg_roster_t *roster;
    rg_plan_t *plan;
    uint8_t *buf[RG_BUFS];           /* NULL where a layout says where the elements are, and where there is none */
    const rg_layout_t *lay[RG_BUFS]; /* NULL: one piece */
    uint32_t buf_elem[RG_BUFS];
    rg_sink_t *sinks; /* per step */
    uint32_t cap_sinks;
    rg_bounce_t *bounces;
    uint32_t left, left1; /* unfinished steps: all, phase 1 */
    uint32_t *rem;        /* per step */
    uint64_t *ready;      /* bitmap: local steps and receives */
    uint32_t *next_send;  /* per entry of plan->peers: how many of its sends were issued */
    uint64_t *posted;     /* receives that were posted (to tell whom we wait for) */
    uint8_t *inflight;    /* per rank: sends that have not finished */
    uint32_t words, cap_steps, cap_ranks, cap_peers;
    uint32_t any_ready, any_send;
    uint32_t tag_sig;
    rg_red_t red[32];  /* by flags */
    uint32_t red_have; /* those that are prepared */
    uint64_t red_key;  /* what for */
    double red_after;
    rg_block_t *tmp, *keep;
    rg_block_t *result; /* of a pair, until it is shown */
    rg_block_t
        *own_in;     /* what is used as IN instead of the caller's: packed, scaled, or a copy because OUT covers it */
    rg_block_t *aux; /* weights by rank */
    rg_block_t *undo;
    uint64_t *saved; /* bitmap: blocks of OUT that are in the undo log */
    uint64_t cap_saved;
    uint8_t saved_whole;      /* the log is a copy of all of OUT */
    rg_covered_t covered[32]; /* by flags, as red */

    rg_result_t res;
    uint64_t *contributors; /* of the result */
    uint32_t n_contributors, cap_contributors;
    uint64_t frozen_at;
};

typedef struct rg_todo {
    rg_mact_t type;
    rg_op_key_t key;
    uint64_t peer, computed;
    uint32_t keep;
    rg_status_t status;
    const char *text; /* of an error: a copy; NULL: none */
} rg_todo_t;

/* Numbers of tagged operations and of messages between two. */
typedef struct rg_tagseq {
    uint64_t set;
    uint32_t tag, seq, used;
} rg_tagseq_t;

typedef struct rg_grid_row {
    uint64_t id;
    uint32_t colour;
} rg_grid_row_t;

#define RG_OP_HASH 256 /* a power of two */

enum rg_phase { RG_PHASE_JOINING, RG_PHASE_MEMBER, RG_PHASE_OVER };
enum rg_driver { RG_DRIVER_NONE, RG_DRIVER_CALLER, RG_DRIVER_THREAD };

/* A handle: a root group, which has everything, or a child of rg_group_split(), which has only the next few fields, the
 * numbering, its roster and errmsg, and lives on its root's connections under its root's lock. */
struct rg_group {
    rg_group_t *root; /* NULL: this is one */
    uint64_t set;     /* RG_SET_ALL in a root */
    uint64_t *set_ids;
    uint32_t n_set;
    rg_status_t ended;                 /* a child: why it takes no more calls */
    rg_group_t *children, *next_child; /* of a root; all of them, however deep */
    int gone;                          /* a root that was destroyed and waits for its children's handles to be */
    struct rg_batch_mark *batch_mark;  /* NULL until a batch is begun on this handle (api_pairs.c) */
    uint32_t told_n;     /* participants, as the program was last told: shapes of its buffers are for so many */
    rg_grid_row_t *grid; /* the last split */
    uint32_t n_grid;
    uint64_t dead_sets[64]; /* of children whose handles are gone, oldest first */
    uint32_t n_dead_sets;

    pthread_mutex_t lock;
    pthread_cond_t cond;         /* an operation ended, the driver left, or the group ended */
    pthread_mutex_t thread_lock; /* for the next two only; taken with or without `lock`, never the other way round */
    int thread_wanted;
    pthread_cond_t thread_cond; /* for the progress thread */
    int lock_cancel;            /* whether who has the lock could be cancelled before: it cannot while it has it */
    atomic_uint lock_waiters;   /* threads that want the lock: whoever drives lets them in */
    uint32_t let_in;            /* those who waited for the lock and got it */
    uint32_t cond_waiters;
    uint32_t woken; /* of those: they have been, and want the lock now, which lock_waiters does not say */
    enum rg_driver driver;
    uint64_t driver_ticket; /* changes when somebody takes over */
    int sleeping;           /* threads in epoll_wait */
    int epfd, wakefd;
    uint64_t last_drive_ns;
    uint64_t now_ns;                                  /* of the last round or call, for what happens within it */
    uint64_t shared_since_ns, moved_ns, move_wait_ns; /* the driver and a peer on one processor (progress.c) */
    uint32_t shared_looks, moves;
    uint32_t polite_ns; /* polls without giving way for this long */
    uint32_t notes_due; /* notes that came since the core was last told */
    int async_work;     /* requests that nobody waits for in a call */
    int thread_running, stop;
    uint32_t forks; /* of this process when the group was opened, see rg_group_inherited() */
    pthread_t thread;

    rg_config_t cfg;
    char *cfg_strings;
    rg_tuning_t *tuning; /* NULL: none */
    uint32_t tuning_hash;
    rg_log_t log;
    enum rg_phase phase;
    int leaving;      /* rg_group_leave() was called: nothing is started any more */
    rg_status_t over; /* why, when phase is OVER */
    char errmsg[RG_CORE_TEXT_MAX + 128];
    char why_over[RG_CORE_TEXT_MAX + 128]; /* of over, or of ended: errmsg may be another call's by then */

    const rg_transport_t *tp_ops;
    rg_tp_t *tp;
    int others_fill; /* peers' threads run the reductions of our receives: they must not keep our undo log */
    rg_control_t control;
    rg_tls_ctx_t *tls; /* NULL: without TLS; also the transport's */
    struct sockaddr_storage coord_addr[RG_CONTROL_PLACES];
    int n_coord_addr, next_coord_addr;
    int succession;           /* the coordinator said so */
    rg_coordinator_t *office; /* in this process; NULL: none */
    struct rg_watch *office_watch;
    atomic_int office_returns; /* a coordinator answers again */
    uint64_t office_until;     /* and gets the office not before */
    int stale;                 /* as in rg_info_t */
    uint64_t last_control_ns, last_idle_poll_ns;
    rg_member_t *core;
    rg_todo_t *todo;
    size_t todo_len, todo_cap, todo_at;
    int in_todo;

    rg_link_t *links;              /* RG_MAX_LINKS */
    uint32_t n_links;              /* highest used + 1 */
    uint64_t polls, polls_drained; /* of the transport; the last that took all it had to report */
    rg_roster_t *roster;           /* of the present generation and view */
    rg_nets_t *nets;
    rg_order_t *orders;   /* the newest first; kept, as operations of any age may have to be run again */
    rg_roster_t *ordered; /* the roster that was last run in one of them */
    rg_past_t past[RG_PAST];
    uint32_t past_most; /* members of the largest of them */
    uint64_t gen;
    uint32_t next_seq; /* tag 0 */
    uint32_t variant;  /* hash of settings that must be equal on all members */
    rg_tagseq_t *tags;
    uint32_t n_tags, cap_tags; /* open addressing, cap a power of two */
    rg_roster_t *pairs[8];     /* of messages between two */
    uint64_t pair_sets[8];
    uint64_t boundary_gen; /* that the core has let us into; above gen: not yet taken note of */
    int in_boundary;       /* a thread is in rg_group_boundary() */
    uint64_t *seen_ids;
    uint32_t n_seen; /* participants at the last boundary */
    char waiting_text[RG_CORE_TEXT_MAX];
    rg_status_t join_status;

    rg_request_t **ops;
    uint32_t n_ops, cap_ops;
    rg_request_t *free_ops, *open_ops;
    rg_request_t *op_hash[RG_OP_HASH];
    rg_request_t *self_ops; /* messages to oneself that wait for their other half, by batch_next */
    uint32_t n_open;
    rg_plan_t **plans;
    uint32_t n_plans;
    uint64_t plan_clock;
    rg_block_t *blocks[RG_BLOCK_CLASSES]; /* idle */
    size_t blocks_small;                  /* bytes in those below 64 KiB */
    int blocks_shared;                    /* the transport lets peers read large blocks where they are */
    rg_kept_t *kept, *kept_free;
    rg_quick_t quick;
    uint64_t note; /* how far this member has said to be */
    struct {
        uint64_t from;
        rg_tag_t tag;
    } strays[16];
    uint32_t stray_at;

    uint64_t reconnect_ns; /* of the group; 0: links that break are not made again */
    uint64_t operations, view_changes, last_change_ns, fenced_at_ns;
    uint64_t self_id;
    uint64_t host, site;               /* of this member */
    struct rg_netstat *netstat;        /* netstat.c */
    struct rg_side *side;              /* side.c */
    struct rg_fetching *fetching;      /* lent.c: reads of lent memory under way */
    uint64_t last_fetch, lent_reads;   /* lent_reads: those that ended well */
    struct rg_service *service;        /* src/quorum/service.h; NULL: nothing of it is in use */
    const struct rg_join_first *first; /* while it joins: what is done before it may enter (lifecycle.h) */
    uint32_t spin_us;
    uint32_t host_procs; /* members on this host */
    uint32_t cores;
};

/* control.c */
void rg_control_init(rg_control_t *c);
void rg_control_close(rg_control_t *c);
void rg_control_connect(rg_group_t *g);                          /* starts; the outcome comes as core events */
void rg_control_aim(rg_group_t *g, const rg_member_action_t *a); /* RG_MACT_CONTROL */
rg_status_t rg_control_send(rg_group_t *g, const uint8_t *bytes, size_t len);
int rg_control_poll(rg_group_t *g, uint64_t now); /* reads and writes; 1 when something happened */
int rg_control_fd_events(const rg_control_t *c);  /* for epoll */

/* stale.c */
void rg_stale_set(rg_group_t *g, int stale); /* of this handle, and of the next one that joins its group */
int rg_stale_known(const char *group);

/* office.c */
void rg_office_open(rg_group_t *g, const rg_member_action_t *a);
void rg_office_close(rg_group_t *g);
int rg_office_dial(rg_group_t *g);
void rg_office_progress(rg_group_t *g, uint64_t now);

/* plan.c */
rg_plan_t *rg_plan_get(rg_group_t *g, const rg_coll_desc_t *d, const rg_roster_t *r, rg_status_t *st, char *text,
                       size_t cap);
void rg_plan_put(rg_plan_t *p);
void rg_plans_free(rg_group_t *g);
rg_status_t rg_tuning_load(rg_group_t *g, rg_error_t *err);

/* layout.c */
void rg_layout_plain(rg_layout_t *l, const void *base, uint32_t elem);
uint8_t *rg_layout_at(const rg_layout_t *l, uint64_t off, uint64_t *run);
uint8_t *rg_layout_piece(const rg_layout_t *l, uint64_t off, uint64_t n);
void rg_layout_read(const rg_layout_t *l, uint64_t off, void *to, uint64_t n);
void rg_layout_write(const rg_layout_t *l, uint64_t off, const void *from, uint64_t n);

/* memory.c */
rg_block_t *rg_block_get(rg_group_t *g, size_t bytes);
rg_block_t *rg_block_get_private(rg_group_t *g, size_t bytes);
void rg_block_put(rg_group_t *g, rg_block_t *b);
void rg_blocks_free(rg_group_t *g);

/* roster.c */
rg_roster_t *rg_roster_for(rg_group_t *h, uint64_t gen); /* of a handle */
rg_roster_t *rg_roster_of(rg_request_t *op);
void rg_order_install(rg_group_t *g, rg_order_t *o); /* takes it; from the next operation on */
/* What holds for the next operation among these members, who are all here from generation base_gen on: natural order
 * and rates of 0 where nothing does. */
void rg_order_in_force(const rg_group_t *g, const uint64_t *ids, uint32_t n, uint64_t base_gen, rg_order_t *out);
void rg_roster_put(rg_roster_t *r);
rg_status_t rg_roster_view_changed(rg_group_t *g);
uint32_t rg_roster_past(const rg_group_t *h, uint64_t data_epoch, uint64_t gen, uint64_t *ids, uint32_t cap);
uint32_t rg_link_of(const rg_group_t *g, uint64_t id);                                    /* UINT32_MAX: none */
rg_tp_peer_t rg_link_peer(const rg_group_t *g, const rg_link_t *l, uint32_t patience_ms); /* for connect() */
void rg_rosters_free(rg_group_t *g);

/* model.c: what a view says about its links, as cost model and topology */
rg_status_t rg_roster_model(const rg_group_t *g, rg_roster_t *r);
/* Notes the figures of a view. Nobody asks for generations before least_gen any more. 0 without memory. */
int rg_nets_add(rg_nets_t **list, const rg_core_view_t *v, uint64_t least_gen);
/* Those of a member for operations of a generation; NULL when it is not in them. */
const uint8_t *rg_nets_at(const rg_nets_t *list, uint64_t gen, uint64_t id);
void rg_nets_free(rg_nets_t **list);

/* netstat.c: how fast the links are */
rg_status_t rg_netstat_open(rg_group_t *g);
void rg_netstat_free(rg_group_t *g);
/* A link has come up: 1 when the core is to be told later, by netstat itself. */
int rg_netstat_up(rg_group_t *g, uint32_t link, uint64_t now);
void rg_netstat_down(rg_group_t *g, uint32_t link);
int rg_netstat_completion(rg_group_t *g, const rg_completion_t *c); /* 1 when it was its own */
void rg_netstat_tick(rg_group_t *g, uint64_t now);

/* exec.c: runs one schedule */
rg_status_t rg_exec_start(rg_request_t *op);
void rg_exec_pump(rg_request_t *op);
void rg_exec_step_done(rg_request_t *op, uint32_t step);
void rg_exec_sent(rg_request_t *op, uint32_t ranks); /* these have been sent their first message */
void rg_exec_stop(rg_request_t *op);
uint64_t rg_exec_waits_for(const rg_request_t *op); /* member id, 0: nobody */

/* buffers.c: what a schedule runs on */
void rg_op_describe(const rg_request_t *op, const rg_roster_t *r, rg_coll_desc_t *d);
rg_status_t rg_op_buffers(rg_request_t *op);
rg_status_t rg_op_prepare(rg_request_t *op);
void rg_op_input_back(const rg_request_t *op);
void rg_op_take_out(rg_request_t *op);  /* rule S: the caller's part of what is kept, to the caller */
void rg_op_keep_sent(rg_request_t *op); /* of a pair, to what is kept */
void rg_op_drop_buffers(rg_request_t *op);
static inline int rg_op_reduces(const rg_request_t *op) { return rg_kind_reduces((rg_kind_t)op->sig.kind); }

/* undo.c */
int rg_undo_begin(rg_request_t *op);
int rg_undo_begin_whole(rg_request_t *op);
void rg_undo_cover(rg_request_t *op, uint64_t off, uint64_t len);
void rg_undo_restore(rg_request_t *op);
void rg_undo_reduce(const void *ctx, void *dst, const void *a, const void *b, size_t n);

/* ops.c */
/* The call is refused for its arguments (INVALID, NOTSUP; why), and its operation is ended for all when it is
 * submitted: what this member calls next must not be taken for it by the others. Its outcome here is st and why. */
void rg_op_refuse(rg_request_t *op, rg_status_t st, const char *why);
rg_status_t rg_op_submit(rg_request_t *op);
/* Locked. RG_OK, or why this handle takes no operation any more, with the text left with it. */
rg_status_t rg_handle_ended(rg_group_t *h);
rg_request_t *rg_op_alloc(rg_group_t *h);
uint64_t *rg_op_nums(rg_request_t *op, size_t n); /* room for so many counts and offsets; NULL without memory */
void **rg_op_ptrs(rg_request_t *op, size_t n);
void rg_op_free(rg_request_t *op);
rg_request_t *rg_op_find(rg_group_t *g, rg_op_key_t key);
void rg_op_link(rg_request_t *op); /* among the open ones */
void rg_op_complete(rg_request_t *op);
void rg_op_fetched(rg_request_t *op);
void rg_op_done(rg_request_t *op);
void rg_op_finish(rg_request_t *op, rg_status_t status, uint64_t blame, const char *text);
void rg_op_fail(rg_request_t *op, rg_status_t status, uint64_t blame, const char *text);
void rg_ops_finish_all(rg_group_t *g, rg_status_t status, const char *text);
void rg_ops_fail_of(rg_group_t *h, rg_status_t status, const char *text); /* all of one handle */
int rg_ops_any_of(const rg_group_t *h);
void rg_ops_check_deadlines(rg_group_t *g, uint64_t now);
uint64_t rg_ops_next_deadline(const rg_group_t *g);
void rg_op_completion(rg_group_t *g, const rg_completion_t *c);
void rg_op_heard(rg_group_t *g, uint64_t from, const rg_tag_t *tag);
void rg_op_verdict(rg_group_t *g, const rg_todo_t *t);
void rg_kept_free_all(rg_group_t *g);
/* A copy of a result that is made elsewhere; NULL without memory. Then kept, or given back. */
rg_kept_t *rg_kept_new(rg_group_t *g, uint64_t bytes, const rg_op_sig_t *sig);
void rg_kept_add(rg_group_t *g, rg_kept_t *k);
void rg_kept_put(rg_group_t *g, rg_kept_t *k);
void rg_op_destroy(rg_request_t *op); /* frees the object and what it holds */

/* compare.c */
uint64_t rg_compare_at(const rg_request_t *op); /* when it is told next; UINT64_MAX: not */
void rg_compare_tick(rg_group_t *g, uint64_t now);
void rg_compare_heard(rg_group_t *g, uint64_t from, const uint8_t *ask); /* RG_SIDE_ASK bytes */

/* quick.c */
void rg_quick_learn(const rg_request_t *op);
int rg_quick_run(rg_group_t *g, const rg_quick_call_t *c, uint32_t *sent);
void rg_quick_tell(rg_group_t *g);
void rg_quick_commit(rg_group_t *g, rg_op_key_t key, int keep);
void rg_quick_forget(rg_group_t *g); /* the roster is another one */
void rg_quick_free(rg_group_t *g);
/* Says to all how far this member is; the core may be behind what has been said. */
void rg_say_note(rg_group_t *g, uint64_t note, int flush);

/* batch.c: messages to oneself, and requests that stand for several */
rg_status_t rg_self_submit(rg_request_t *op);
void rg_self_forget(rg_request_t *op);
void rg_batch_part_ended(rg_request_t *batch);

/* membership.c: the core and its actions */
rg_status_t rg_core_event(rg_group_t *g, rg_member_event_t *ev);
void rg_group_over(rg_group_t *g, rg_status_t status, const char *text);
void rg_data_fence(rg_group_t *g);
void rg_group_set_errmsg(rg_group_t *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* relay.c */
void rg_relay_route(rg_group_t *g, const rg_member_action_t *a);
void rg_relay_between(rg_group_t *g, const rg_member_action_t *a);

/* progress.c */
void rg_lock(rg_group_t *g);
void rg_unlock(rg_group_t *g);
int rg_progress(rg_group_t *g, uint64_t now);      /* one round, locked; 1 when something happened */
void rg_progress_due(rg_group_t *g, uint64_t now); /* one, when the last is a while ago */
void rg_tell_notes(rg_group_t *g, uint64_t now);
/* Drives or waits until *flag is non-zero or deadline_ns has passed or the group is over. Locked on entry and exit. */
void rg_drive(rg_group_t *g, int (*finished)(void *arg), void *arg, uint64_t deadline_ns);
void rg_help(rg_group_t *g); /* one round beside whoever drives */
void rg_wake(rg_group_t *g); /* somebody changed what the driver waits for */
void rg_wake_thread(rg_group_t *g);
void rg_wake_callers(rg_group_t *g); /* those that wait while another thread drives */
int rg_wanted(rg_group_t *g);        /* others want the lock */
void rg_let_others_in(rg_group_t *g);
void *rg_progress_thread(void *group);

#endif
