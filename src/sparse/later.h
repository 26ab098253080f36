/* later.h: calls of several operations that run in the background: a queue of them for each reducer or quantiser, with
 * a thread of its own that makes them one after the other as a blocking caller would. Relies on the caller to give them
 * a tag of their own, so that it does not matter when their operations come among others. Included by src/sparse and
 * src/quant only; it must not know what a call computes. */
#ifndef RG_SPARSE_LATER_H
#define RG_SPARSE_LATER_H

#include "sparse/frame.h"

typedef struct rg_later rg_later_t;
typedef struct rg_later_call rg_later_call_t;

/* The first member of a request; what the call works on follows it. */
struct rg_later_call {
    rg_later_t *queue;
    rg_later_call_t *next;
    rg_group_t *g;
    rg_status_t (*run)(rg_later_call_t *c); /* with c->o, whose result is c->r, and c->stop */
    rg_opts_t o;
    rg_result_t r;
    rg_stop_t stop;
    rg_status_t status;
    int done;
    uint64_t *ids; /* of contributors; behind the request */
};

/* A request of `size` bytes for a call that runs later, with room for the ids of as many contributors as there are
 * members now; all of it 0 but for what is named above. what: for texts, "a sparse request". */
rg_status_t rg_later_make(rg_group_t *g, size_t size, const char *what, const rg_opts_t *opts, rg_later_call_t **out);

/* Puts it into *queue, which is made with the first. Not OK: the request is gone. */
rg_status_t rg_later_start(rg_later_t **queue, rg_later_call_t *c, const char *what);

/* As rg_wait, rg_test and rg_cancel. NULL is INVALID. */
rg_status_t rg_later_wait(rg_later_call_t *c, rg_result_t *result);
rg_status_t rg_later_test(rg_later_call_t *c, rg_result_t *result);
rg_status_t rg_later_cancel(rg_later_call_t *c);

/* Whether a call of the queue (which may be NULL) has not ended. In a child of fork() none has been begun. */
int rg_later_busy(const rg_later_t *queue);

/* A call that is refused for its arguments (st) before it is in the queue, which may be NULL, or because that is busy:
 * it takes its place among the calls of its tag all the same, behind those of the queue, as rg_frame_turn_down() says.
 * Blocks until those have ended; what there is of its own takes no time. The text is the handle's. Gives st back, or
 * why there is no place for it. */
rg_status_t rg_later_turn_down(rg_later_t *queue, rg_group_t *g, const rg_opts_t *opts, rg_status_t st, int retries);

/* Waits for the call that runs; those that have not begun, and all that nobody has waited for, are gone. */
void rg_later_end(rg_later_t *queue);

#endif
