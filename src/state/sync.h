/* sync.h: what the files of one rg_state_sync() share: the member's side of a comparison and of the rounds that follow.
 * Lives as long as the call. Relies on state.h; nothing but sync.c, compare.c, rounds.c and
 * fetch.h may use it. */
#ifndef RG_SYNC_H
#define RG_SYNC_H

#include "state/state.h"

#define RG_SYNC_ROUNDS 32u    /* between two exchanges of who wants what */
#define RG_SYNC_MOVES 65536u  /* as much */
#define RG_SYNC_FEW 2048u     /* hashes in one exchange, when each member tells its own */
#define RG_SYNC_BAD_PASSES 4u /* passes in a row in which nothing that came was right, until it is an error */

/* A piece that waits for the rest of its content. */
typedef struct rg_aside {
    rg_hash_t hash;
    uint32_t bytes;
    uint8_t data[];
} rg_aside_t;

/* A round that is under way. */
typedef struct rg_flight {
    rg_request_t *req;
    uint32_t begin, end; /* moves */
    int in_place;        /* what comes goes to the tensors at once */
    uint8_t *out, *in;
} rg_flight_t;

/* A call that did not take part for want of memory is made again: the others are in theirs and wait for it. After a few
 * times it is given up; then they wait until their deadline. */
#define RG_SYNC_TRIES 4
#define RG_SYNC_CALL(x, st, call)                                                                                      \
    do {                                                                                                               \
        for (int tries_ = 0; tries_ < RG_SYNC_TRIES; tries_++) {                                                       \
            (x)->op_result.status = RG_AGAIN;                                                                          \
            (st) = (call);                                                                                             \
            if ((st) != RG_ERR_NOMEM || (x)->op_result.status != RG_AGAIN) break;                                      \
        }                                                                                                              \
        (st) = rg_sync_ended((x), (st));                                                                               \
    } while (0)

typedef struct rg_sync {
    rg_group_t *g;
    rg_state_t *s;
    rg_state_opts_t o;
    rg_opts_t op; /* of each operation */
    rg_result_t op_result;
    rg_state_result_t r;
    rg_status_t own; /* what went wrong here alone; the others hear of it in the next exchange */
    int in_place;
    uint32_t n, rank, cap_n;
    uint64_t self_id;

    /* The comparison */
    uint8_t *raw;
    rg_state_head_t *heads;
    uint64_t *ids, *counts; /* counts: 4 arrays of cap_n */
    uint8_t *sends;
    rg_state_choice_t c;
    uint32_t n_groups;
    rg_hash_t *groups, *target_groups; /* own; of the content that wins */
    uint8_t *told;                     /* own hashes, then those of every member, each list behind a status */

    /* From there on only where contents differ: `m` pieces are looked at */
    int reserved, known; /* known: what everybody wants, with no exchange more */
    uint32_t m, words, *list, *sizes;
    uint8_t *follows;          /* of those m: the one after it lies behind it in memory */
    rg_hash_t *target, *share; /* of those m; what this member tells of them */
    uint64_t *records, *mine, *wants;
    rg_deal_t deal;
    rg_move_t *moves;
    rg_aside_t **aside; /* by piece */
    uint64_t aside_bytes;
    uint8_t *buffers;
    uint32_t bad_passes, pass;
} rg_sync_t;

/* One operation is over: notes what it says when it failed. */
rg_status_t rg_sync_ended(rg_sync_t *x, rg_status_t st);
/* An error that all members see alike. */
rg_status_t rg_sync_fail(rg_sync_t *x, rg_status_t st, uint32_t blame, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Options as they were meant; INVALID with a text. */
rg_status_t rg_state_opts_resolve(const rg_state_opts_t *in, rg_state_opts_t *o, rg_error_t *err);

/* compare.c */
rg_status_t rg_sync_reserve_heads(rg_sync_t *x);
rg_status_t rg_sync_compare(rg_sync_t *x);
rg_status_t rg_sync_learn(rg_sync_t *x);            /* where the winning content differs from ours */
rg_status_t rg_sync_wanted(rg_sync_t *x, int *any); /* who still wants what */
void rg_sync_free(rg_sync_t *x);

/* rounds.c */
rg_status_t rg_sync_move(rg_sync_t *x);
rg_status_t rg_sync_commit(rg_sync_t *x);

#endif
