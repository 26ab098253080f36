/* regroup_quorum.h: reductions that do not wait for everybody. A round is decided when K members have contributed and
 * the others have had a grace window; all members, also those that were late or gave nothing, get the same bits and the
 * same list of contributors, when they call. For backup workers, for members of uneven speed, and for training whose
 * members meet now and then (docs/quorum.md).
 *
 * Rounds of a reduction are numbered from 1 and decided one after the other. Each member passes through them at its own
 * pace: a call is for the member's next round, and a member that is behind gets the results that were decided without
 * it, as long as they are kept. Nobody waits for a member that was late in the last round; once it is in time again it
 * is waited for as before.
 *
 * Conventions, thread-safety and errors are those of regroup.h. The group needs its progress thread (which is on unless
 * it was switched off): members answer each other while their programs compute. */
#ifndef REGROUP_QUORUM_H
#define REGROUP_QUORUM_H

#include "regroup.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

typedef struct rg_quorum rg_quorum_t;

/* What becomes of the input of a member whose round was decided without it. It gets the round's result all the same,
 * but for REJECT. */
typedef enum rg_late {
    RG_LATE_DROP = 0,       /* it is dropped */
    RG_LATE_NEXT_ROUND = 1, /* it is kept here and added to what this member gives next, with its weight */
    RG_LATE_REJECT = 2      /* the call ends with ERR_TIMEOUT, and rg_quorum_wait() again gives the result: for programs
                               that would rather compute anew than go on by a round without them */
} rg_late_t;

#define RG_QUORUM_TAKEOVER_US 500000u
#define RG_QUORUM_NO_TAKEOVER 0xffffffffu

/* All members give the same values, but for `first` and `late`, which is each member's own. */
typedef struct rg_quorum_config {
    uint32_t size;     /* sizeof(rg_quorum_config_t) */
    uint32_t id;       /* which reduction of the group this is: equal on all members, one at a time for each id */
    uint64_t count;    /* elements */
    rg_op_t op;        /* RG_SUM, RG_AVG: sum(weight * in) or that divided by sum(weight), over the contributors */
    rg_late_t late;    /* DROP */
    uint32_t at_least; /* K: contributors that a round needs; 0: more than half of the members */
    uint32_t at_most;  /* contributors that are taken, the first to come; 0: all that have come. With at_most equal to
                          at_least and no grace: the first K of N. Never fewer than K are taken because of it */
    uint32_t grace_us; /* from the K-th contribution on, the others have so long; 0: none */
    uint32_t max_wait_us; /* from the first contribution on; then the round is decided with fewer than K. 0: never */
    uint32_t history;     /* results that each member keeps for those that are behind, 1 to 64; 4. Each has the size of
                             the elements */
    uint32_t stale_max;   /* an input whose version is more than this many rounds old is not given; 0: no limit */
    uint32_t takeover_us; /* when the member that decides says nothing for so long, because its process is stopped, the
                             next one decides in its place (docs/quorum.md). 0: RG_QUORUM_TAKEOVER_US, but never where
                             one member alone may make a round: with at_least 1 or max_wait_us.
                             RG_QUORUM_NO_TAKEOVER: only when it is no member any more */
    rg_dtype_t dtype;     /* F32; F16, BF16, F64, I32, U32, I64, U64. Floats are added up in f64 and rounded once;
                             integers wrap, have no AVG, and whole weights up to 2^32 */
    uint64_t first;       /* this member's first round; 0: 1. For members that come later, see docs/quorum.md */
} rg_quorum_config_t;
#define RG_QUORUM_CONFIG_INIT                                                                                          \
    { (uint32_t)sizeof(rg_quorum_config_t), 0, 0, RG_SUM, RG_LATE_DROP, 0, 0, 0, 0, 0, 0, 0, RG_F32, 0 }

/* What a member gives to a round, beside the elements. */
typedef struct rg_quorum_input {
    uint32_t size;     /* sizeof(rg_quorum_input_t) */
    uint32_t weighted; /* 1: weight counts; 0: the weight is 1 */
    double weight;     /* 1e-250 to 1e250; 0: nothing is given, as without an input */
    uint64_t version;  /* what the input was computed from, as the program counts it; 0: the round before this one */
} rg_quorum_input_t;
#define RG_QUORUM_INPUT_INIT                                                                                           \
    { (uint32_t)sizeof(rg_quorum_input_t), 0, 0, 0 }

/* How a round was decided: all but the first and the last fields are the same on all members. */
typedef struct rg_quorum_result {
    uint32_t size; /* sizeof(rg_quorum_result_t) */
    rg_status_t status;
    uint32_t included; /* 1: this member's input is in the result */
    uint32_t carried;  /* 1: it is not, and will be added to what this member gives next */
    uint64_t round;
    uint64_t newest; /* the newest round that this member knows to be decided: above `round`, it is behind */
    uint32_t contributors, late; /* late: members that had not come when it was decided */
    uint64_t *contributor_ids;   /* in: array of contributor_cap, or NULL; out: member ids in rank order */
    uint64_t *late_ids;          /* likewise, of late_cap */
    uint32_t contributor_cap, late_cap;
    double weight_sum; /* of the contributors */
    uint64_t version_min, version_max;
    uint64_t waited_ns;  /* from the first contribution until it was decided */
    uint64_t decided_by; /* member id */
    char text[256];      /* cause of an error */
} rg_quorum_result_t;
#define RG_QUORUM_RESULT_INIT                                                                                          \
    {                                                                                                                  \
        (uint32_t)sizeof(rg_quorum_result_t), RG_OK, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 }                \
    }

/* Each member of `group`, which may be a sub-group, calls it at its own time, before its first round, and keeps what it
 * gets until the others are done, too: a member of the group that has destroyed it stops those it would decide for.
 * Destroy it before the group. Nothing is sent. Errors: INVALID, NOMEM, SYSTEM. */
rg_status_t rg_quorum_create(rg_group_t *group, const rg_quorum_config_t *config, rg_quorum_t **out, rg_error_t *err);
void rg_quorum_destroy(rg_quorum_t *q);

/* `in` and `out` have `count` elements of the configuration's type.
 *
 * Gives `in` to this member's next round and waits until that is decided; out then has the result. in NULL: gives
 * nothing, takes the result. in == out works. input and result may be NULL. timeout_ms 0: the configuration's
 * op_timeout_ms.
 * Errors: TIMEOUT (not decided yet: go on waiting with rg_quorum_wait(), now or after other work; what was given
 * counts, so this round cannot be left out: a program that wants to do without it destroys the reduction), NO_QUORUM
 * (everybody came, and fewer than K gave something: the round is over, on all members alike), RESOURCE (the round was
 * decided, and its result is not kept any more: bring the program's state up to date and go on with rg_quorum_seek()),
 * MISMATCH (members have called with different configurations: the text names one. One whose configuration is not that
 * of the first member gets it with every call; all others get it for the round that was open, which is over then. What
 * was decided before stays), INVALID, NOMEM, and those of a group that is over. out is written on success only. One
 * thread at a time for one rg_quorum_t. */
rg_status_t rg_quorum_reduce(rg_quorum_t *q, const void *in, void *out, const rg_quorum_input_t *input,
                             uint32_t timeout_ms, rg_quorum_result_t *result);

/* The two halves of it, for rounds that are decided while the program computes. begin copies `in`. INVALID: the last
 * round's result was not taken yet; wait and test: nothing was begun. test: AGAIN while it is not decided. What is
 * refused is not begun, and the round stays this member's next one, for which what it begins next counts: begin it
 * again before the program goes on, with `in` NULL if there is nothing to give. */
rg_status_t rg_quorum_begin(rg_quorum_t *q, const void *in, const rg_quorum_input_t *input);
rg_status_t rg_quorum_wait(rg_quorum_t *q, void *out, uint32_t timeout_ms, rg_quorum_result_t *result);
rg_status_t rg_quorum_test(rg_quorum_t *q, void *out, rg_quorum_result_t *result);

/* This member's next call is for that round. What it carried for a next round is dropped. INVALID: 0, or a round that
 * was begun is not taken yet, also after TIMEOUT. */
rg_status_t rg_quorum_seek(rg_quorum_t *q, uint64_t round);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
