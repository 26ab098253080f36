/* internal.h: what the files of this layer share: the handle, fragments, and a round, which is one fragment's way
 * through the group. Relies on the public interface for everything that reaches other members. Nothing outside
 * src/diloco may use it. */
#ifndef RG_DILOCO_INTERNAL_H
#define RG_DILOCO_INTERNAL_H

#include "diloco/outer.h"
#include "regroup_diloco.h"

#include <pthread.h>
#include <stddef.h>

/* One fragment through the group: what goes in, and what came of it. */
typedef struct rg_dl_round {
    /* in */
    rg_group_t *g;
    rg_quantiser_t *z;      /* NULL: f32 travels, or */
    rg_topk_reducer_t *top; /* of which the largest */
    uint32_t tag, timeout_ms;
    rg_quorum_t *q; /* not NULL: decided by a quorum; count elements, and one for the length */
    uint64_t q_count;
    int again; /* the share was given before: what came of it */
    int merge;
    int finite, taken; /* taken: late, and no longer in the program's parameters */
    uint64_t hash;     /* of what has to be alike on all members */
    uint64_t tokens, steps;
    double weight;
    const float *d;
    float *scaled, *avg; /* scratch; the result */
    float *kept;         /* what error feedback kept before this round, to go back to */
    uint64_t n;
    void (*between)(void *); /* NULL. Tests: called between head and share */
    void *between_arg;
    /* out */
    int included;    /* this member's share is in it */
    int decided;     /* by quorum: as a success or not */
    uint64_t newest; /* round that is known to be decided */
    rg_status_t st;
    uint32_t contributors, retries;
    uint64_t all_tokens, took_ns;
    double all_weight;
    char text[256];
} rg_dl_round_t;

/* Blocks until it has ended, on all members alike. */
void rg_dl_round(rg_dl_round_t *r);

/* quorum.c: the same by a quorum, where members go through rounds at their own pace. give: 0: takes the result alone.
 */
void rg_dl_quorum_round(rg_dl_round_t *r, int give);

typedef struct rg_dl_tensor {
    char *name;
    float *data;
    uint64_t count;
    uint32_t flags;
} rg_dl_tensor_t;

typedef struct rg_dl_fragment {
    uint64_t at, count; /* in the arrays of all fragments */
    uint32_t first_piece, pieces;
    int merge;
    rg_quantiser_t *z;
    rg_topk_reducer_t *top;
    uint64_t tokens, steps; /* since its last share was merged */
} rg_dl_fragment_t;

/* Of a fragment, what members have alike beside the floats; part of the state. */
typedef struct rg_dl_meta {
    uint64_t version, arrivals;
    double way, usual; /* of the last outer step; average of such */
} rg_dl_meta_t;

enum { RG_DL_IDLE = 0, RG_DL_QUEUED, RG_DL_DONE };

struct rg_diloco {
    rg_diloco_config_t c;
    rg_outer_t outer;
    int late; /* EAGER, DELAYED, CO2: a round is merged when the next one is sent */
    int eager;
    rg_dl_tensor_t *tensor;
    uint32_t n_tensors, cap_tensors;
    /* After the tensors are known */
    int prepared;
    rg_dl_fragment_t *fragment;
    uint32_t n, n_pieces;
    rg_pack_piece_t *piece;
    uint64_t elements, most; /* of all; of the largest fragment */
    rg_state_t *state;
    uint64_t *shared;           /* one block: step, then rg_dl_meta_t for each fragment */
    float *anchor, *buf, *acc;  /* alike on all members; acc where momentum_every is more than 1 */
    float *off, *offbuf, *said; /* eager: this member's own way beside the anchor */
    float *carry;               /* late: what a round that failed did not bring home */
    float *kept;                /* error feedback before the round that is in flight */
    float *d, *d2, *avg, *scaled, *theta_next, *buf_next, *acc_next; /* of the largest fragment */
    /* In a group */
    rg_group_t *g;
    uint32_t world, rank;
    int serving;
    int torn;      /* a load ended half-way: neither what was here nor what is in the file */
    int fetched;   /* what the state holds came from others, and the parameters did not */
    uint64_t step; /* place in the schedule */
    rg_quorum_t *q;
    uint64_t q_next; /* the next round, from 1: round r is of fragment (r - 1) % n */
    int q_open;      /* it was given a share, and is not decided */
    /* What is in flight */
    int64_t flying;  /* fragment, or -1 */
    int64_t open;    /* of the round that q_open is about */
    uint32_t moving; /* fragment that is taken in */
    uint64_t sent_at;
    rg_dl_round_t round;
    void (*between)(void *); /* of rounds */
    void *between_arg;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    pthread_t thread;
    int has_thread, stop, job;
    uint64_t failed, wait_ns, flight_ns;
    uint32_t forks;
};

/* What error feedback keeps of a fragment of n elements, if it does. */
static inline float *rg_dl_kept(rg_quantiser_t *z, rg_topk_reducer_t *top, uint64_t n) {
    uint64_t have = 0;
    float *kept = z ? rg_quantiser_kept(z, &have) : top ? rg_topk_kept(top, &have) : NULL;
    return have == n ? kept : NULL;
}

static inline rg_dl_meta_t *rg_dl_meta(const rg_diloco_t *d, uint32_t p) {
    return (rg_dl_meta_t *)(void *)(d->shared + 1) + p;
}

/* quorum.c: the reduction, for a member that has taken in what its step says; the round that is taken in now. */
rg_status_t rg_dl_quorum_begin(rg_diloco_t *d, rg_error_t *err);
void rg_dl_quorum_passed(rg_diloco_t *d);

/* setup.c: packs, and takes all memory there will be need of. What was filled in stays when it is called again. */
rg_status_t rg_dl_prepare(rg_diloco_t *d, rg_error_t *err);
rg_status_t rg_dl_not_mine(const rg_diloco_t *d, const char *call, rg_error_t *err); /* INVALID for NULL */

/* The same; CLOSED in a child of fork(), which has not the thread of what is in flight. */
rg_status_t rg_dl_not_forked(const rg_diloco_t *d, const char *call, rg_error_t *err);

/* The same; INVALID where a load has left half of a file here. */
rg_status_t rg_dl_whole(const rg_diloco_t *d, const char *call, rg_error_t *err);

/* flight.c: begins d->round, in this thread or in the layer's own; waits for its end. */
rg_status_t rg_dl_thread(rg_diloco_t *d, rg_error_t *err);
void rg_dl_thread_end(rg_diloco_t *d);
void rg_dl_launch(rg_diloco_t *d, int here);
void rg_dl_land(rg_diloco_t *d);

/* step.c: begins a round of fragment p, whose D is in d->d. HERE: and waits for it. EMPTY: this member takes part, and
 * counts nothing. ALL: by all members, also where quorums decide. take_in: waits for what is in flight and merges it.
 * adopt: alpha of the program's parameters stays, the rest becomes the anchor's. forget: all of them do, and nothing is
 * left to be said. settle: the shared state is whole, and of this step. */
enum { RG_DL_HERE = 1, RG_DL_EMPTY = 2, RG_DL_ALL = 4 };
void rg_dl_send_again(rg_diloco_t *d, int how);
void rg_dl_send(rg_diloco_t *d, uint32_t p, int finite, int how);
void rg_dl_before_repair(rg_diloco_t *d);
rg_status_t rg_dl_realign(rg_diloco_t *d, char *text, size_t cap);
void rg_dl_take_in(rg_diloco_t *d, rg_diloco_result_t *res);
void rg_dl_adopt(rg_diloco_t *d, uint32_t p, float alpha);
void rg_dl_forget(rg_diloco_t *d);
void rg_dl_settle(rg_diloco_t *d);
uint64_t rg_dl_hash(const rg_diloco_t *d, uint32_t p);
/* The pieces of fragment p, each with its place in the arrays of all fragments. */
typedef void (*rg_dl_piece_fn)(rg_diloco_t *d, uint64_t at, float *local, uint64_t n, void *arg);
void rg_dl_pieces(rg_diloco_t *d, uint32_t p, rg_dl_piece_fn fn, void *arg);

/* start.c: all members bring their shared state to one content. cap bytes of text get the cause of an error. */
rg_status_t rg_dl_sync(rg_diloco_t *d, char *text, size_t cap);

#endif
