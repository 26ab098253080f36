/* frame.h: what calls that are made of several operations of a group share: options, one deadline for all of it,
 * results, and what becomes of a lost member. Relies on the public operations ending alike on all members. Included by
 * src/sparse and src/quant only; it must not decide what a call computes. */
#ifndef RG_SPARSE_FRAME_H
#define RG_SPARSE_FRAME_H

#include "api.h"
#include "config.h"

#include <pthread.h>

/* Calls that did not fit together because one of them knew of a loss and another did not are made again; if it was the
 * arguments that differ, they differ again. */
#define RG_FRAME_FITS 3
#define RG_FRAME_FEW 64

/* By which another thread ends a call: what it asked for, and the operation that is under way, if there is one. */
typedef struct rg_stop {
    pthread_mutex_t lock;
    rg_request_t *req;
    int asked;
} rg_stop_t;

typedef struct rg_frame {
    rg_group_t *g;
    const char *name;
    rg_opts_t o;
    rg_result_t r, *result;
    rg_on_fault_t on_fault;
    uint64_t deadline, start, sent, received;
    uint32_t n, rank, again;
    uint64_t epoch, members; /* members: a hash of who they are, rank by rank */
    int unfit, poor;
    rg_stop_t *stop;            /* NULL: nobody can cancel this call */
    rg_request_t *req;          /* of the operation that has just been started, where somebody can */
    uint64_t *ids;              /* of the members, and then of those who contributed to the last operation */
    uint64_t few[RG_FRAME_FEW]; /* where they are in a group that is no larger: callers may have little stack */
} rg_frame_t;

/* Checks opts. What is refused here or from here on is to be ended with rg_frame_refused(). */
rg_status_t rg_frame_open(rg_frame_t *f, rg_group_t *g, const char *name, const rg_opts_t *opts);

/* A call that is refused before its first operation, for its arguments: ends it on all members that make it, so that no
 * later call of this one's is taken for it, and closes the frame. retries: as for rg_frame_more(). Gives st back. */
rg_status_t rg_frame_refused(rg_frame_t *f, rg_status_t st, int retries);
/* The same where no frame was opened; the text is the handle's. */
rg_status_t rg_frame_turn_down(rg_group_t *g, const rg_opts_t *opts, rg_status_t st, int retries);

/* For whom the attempt that begins is. They are told apart from others by f->members, never by the epoch: that changes
 * too when an operation beside this call is cancelled or late, of which nobody is lost. */
rg_status_t rg_frame_shape(rg_frame_t *f);
uint64_t rg_frame_members(const uint64_t *ids, uint32_t n);

/* Options for the next operation, with what is left of the call's time. */
const rg_opts_t *rg_frame_opts(rg_frame_t *f);

/* Where the next operation is to put its request; NULL: it is to block. */
rg_request_t **rg_frame_req(rg_frame_t *f);

/* What an operation that was started so has ended with; waits for it. */
rg_status_t rg_frame_done(rg_frame_t *f, rg_status_t st);

/* The same, and what it means for the call. PEER_LOST also where it was not for the members that the attempt is for. */
rg_status_t rg_frame_ended(rg_frame_t *f, rg_status_t st);

/* As rg_refuse(), and the text is that of this call, whatever other threads do with the group's meanwhile. */
rg_status_t rg_frame_refuse(rg_frame_t *f, rg_status_t st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* PEER_LOST: rank's part is for other members than this one's. */
rg_status_t rg_frame_apart(rg_frame_t *f, uint32_t rank);

/* This member has no memory for its part: the others are told by an operation that fits theirs in nothing, so that they
 * end with MISMATCH at once instead of at their deadline. */
rg_status_t rg_frame_no_memory(rg_frame_t *f);

/* Whether an attempt that ended so is to be followed by another. retries: the call is one that survivors repeat. */
int rg_frame_more(rg_frame_t *f, rg_status_t st, int retries);

/* Lets go of memory: in rg_frame_close(), or instead of it. */
void rg_frame_free(rg_frame_t *f);

/* Fills the caller's result. Gives st back. */
rg_status_t rg_frame_close(rg_frame_t *f, rg_status_t st);

/* Growing memory, whose content is lost when it grows. */
typedef struct rg_room {
    uint8_t *p;
    uint64_t cap;
} rg_room_t;
int rg_room_for(rg_room_t *r, uint64_t bytes);

/* *p is to have n floats: new ones, all 0, unless it has them. 0: no memory, and nothing is changed. */
int rg_floats_for(float **p, uint64_t *have, uint64_t n);

static inline uint64_t rg_frame_mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

#endif
