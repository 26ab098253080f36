/* regroup_diloco.h: training that talks seldom. Each member makes many steps on its own copy of the parameters; every
 * so often the members average how far they went and let an outer optimiser move a common copy, the anchor, from which
 * all go on (DiLoCo and its relatives). This layer owns the anchor and the outer optimiser, follows the schedule, and
 * lets newcomers in; the program calls it once after each of its steps.
 *
 *     rg_diloco_profile(RG_DILOCO_PLAIN, &config);
 *     rg_diloco_create(&config, &d, &err);
 *     rg_diloco_add(d, "weights", w, n, 0, &err);           for each tensor; the memory stays the program's
 *     rg_diloco_start(d, group, &err);                      founders and newcomers alike; or rg_diloco_join()
 *     for (;;) { ... one optimiser step on w ...; rg_diloco_step(d, tokens, &result); }
 *     rg_diloco_flush(d, &result);                          at the end: all have equal parameters
 *
 * By quorum a member that was slow takes in the rounds of the others and is moved ahead in the schedule: its place is
 * then more than the number of its calls. A program that ends after so many steps counts by rg_diloco_stats_t.steps
 * there, never by its own calls, so that all come to the last round and to the flush together:
 *     for (rg_diloco_info(d, &is); is.steps < last; rg_diloco_info(d, &is)) { ... rg_diloco_step(d, tokens, &result); }
 *
 * All members use equal configurations and tensors, and call rg_diloco_step() and rg_diloco_flush() in the same order.
 * The layer calls rg_group_boundary(), so the program does not, and must have no operation of its own pending when it
 * calls the layer. It uses operations of one tag. One thread at a time.
 *
 * What is promised: anchor, outer momentum, version and error feedback change together, on all members alike, or not at
 * all. A round that fails changes nothing, on any member: the parameters of the program are as they were, and what was
 * to be said counts in the next round. Every round also compares hashes of what members must have alike. */
#ifndef REGROUP_DILOCO_H
#define REGROUP_DILOCO_H

#include "regroup_quorum.h"
#include "regroup_sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* D is the anchor less the member's parameters, D' the average of all members' D, lr and mu those of the outer
 * optimiser. docs/diloco.md has the equations. */
typedef enum rg_diloco_variant {
    RG_DILOCO_PLAIN = 0,     /* every H steps: Nesterov momentum on D'. lr 0.7, mu 0.9, H 500 */
    RG_DILOCO_STREAMING = 1, /* the same by fragments, each sent while training goes on. lr 0.4, H 100, 4 fragments
                                that are merged 5 steps after they were sent */
    RG_DILOCO_EAGER = 2,     /* D' arrives a round late, the member's own share at once. lr 0.4, H 100 */
    RG_DILOCO_DELAYED = 3,   /* D' arrives a round late. lr 0.4, mu 0.6, H 100 */
    RG_DILOCO_CO2 = 4,       /* late as well: heavy-ball momentum, less of what is stale, clipped. lr 1, mu 0.5, H 48 */
    RG_DILOCO_DECOUPLED = 5, /* members count by tokens * tokens / steps; directions and lengths are averaged apart. 8
                                fragments, merged 2 steps later. lr 0.7, mu 0.9, H 24 */
    RG_DILOCO_FEDAVG = 6,    /* the average by tokens, no momentum. lr 1, H 100 */
    RG_DILOCO_SPARSE = 7, /* the 64 largest of 4096 elements, in two bits, what is left out being said later (feedback
                             0.95); no momentum. lr 1, H 30 */
    RG_DILOCO_VARIANT_COUNT = 8
} rg_diloco_variant_t;

/* How much a member counts. One that has made no step since its last share counts nothing. */
typedef enum rg_diloco_weight {
    RG_DILOCO_EQUAL = 0,
    RG_DILOCO_TOKENS = 1,
    RG_DILOCO_RATE = 2 /* tokens * tokens / steps */
} rg_diloco_weight_t;

typedef enum rg_diloco_merge {
    RG_DILOCO_AVG = 0,
    RG_DILOCO_RDA = 1 /* the average of directions, as long as the average length; AVG where directions cancel */
} rg_diloco_merge_t;

/* Filled by rg_diloco_profile(); then every field means what it says, 0 too. What is beyond a limit is INVALID, and the
 * text names the field. */
typedef struct rg_diloco_config {
    size_t struct_size;
    rg_diloco_variant_t variant;
    uint32_t every;     /* H: steps from one share of a fragment to the next, 1 or more */
    uint32_t fragments; /* into which the tensors are packed; at most `every`, and 4096. EAGER, DELAYED, CO2: 1 */
    uint32_t overlap;   /* steps from sending a fragment to merging it, fewer than every / fragments; 0: it is waited
                           for. Not for EAGER, DELAYED and CO2, where it is a whole round */
    uint32_t momentum_every; /* momentum is updated once in so many rounds of a fragment, with their average; 1 */
    float lr, momentum;      /* lr: above 0, at most 10^6; momentum: 0 to below 1 */
    float blend;             /* of a member's own parameters that stays when a fragment is merged: 0 to 1 */
    float clip;              /* CO2: momentum is cut off beyond +-clip, at most 10^30; 0: not */
    float feedback; /* of what quantising left unsaid that is added to the next share: 0 (nothing is kept) to 1 */
    rg_diloco_weight_t weight;
    rg_diloco_merge_t merge;
    rg_wire_t wire; /* what travels; 0: f32 */
    uint32_t
        topk; /* only so many of 4096 elements travel, in two bits each, whatever `wire` says; at most 4096; 0: all */
    uint32_t flags;      /* 0 */
    uint32_t quorum;     /* a round is over when so many members have given their share and the others have had grace_ms
                            (regroup_quorum.h); 0: all are waited for. With f32 only (wire 0, topk 0), and not for
                            EAGER, DELAYED and CO2. docs/diloco.md */
    uint32_t grace_ms;   /* at most 3600000 */
    uint32_t tag;        /* of the layer's operations */
    uint32_t timeout_ms; /* of a round, at most 2147483647; 0: the group's op_timeout_ms */
    rg_switch_t serve;   /* newcomers may fetch the anchor from this member before they enter (rg_diloco_join); on.
                            RG_OFF where the program serves a state of its own */
} rg_diloco_config_t;

/* The defaults of a variant. INVALID: unknown, or config is NULL. */
rg_status_t rg_diloco_profile(rg_diloco_variant_t variant, rg_diloco_config_t *config);

/* "plain", "streaming", ...; NULL for no variant. by_name: RG_DILOCO_VARIANT_COUNT for no name of one. */
const char *rg_diloco_variant_name(rg_diloco_variant_t variant);
rg_diloco_variant_t rg_diloco_variant_by_name(const char *name);

typedef struct rg_diloco rg_diloco_t;

/* config NULL: what rg_diloco_profile() gives for RG_DILOCO_PLAIN. Errors: INVALID (the text names the field), NOMEM.
 */
rg_status_t rg_diloco_create(const rg_diloco_config_t *config, rg_diloco_t **out, rg_error_t *err);

/* Stops, and frees: the tensors are still there until then, for what is in flight is merged. NULL is fine. */
void rg_diloco_destroy(rg_diloco_t *d);

#define RG_DILOCO_ALONE 1u /* a fragment of its own, merged by AVG: for embeddings */

/* A tensor that members train. Until rg_diloco_start() its values are this member's proposal for the anchor. Names are
 * unique, 1 to 200 bytes; all members add tensors of equal names and counts in equal order. INVALID, NOMEM, RESOURCE.
 */
rg_status_t rg_diloco_add(rg_diloco_t *d, const char *name, float *data, uint64_t count, uint32_t flags,
                          rg_error_t *err);

/* Every member calls it as its first operation after it has joined; newcomers too, for which the others wait in
 * rg_diloco_step(). All get the newest anchor of all members. Called again by all, it repairs anchors that differ
 * (after RG_ERR_MISMATCH). A member whose anchor was another one begins anew from the right one. Errors: INVALID,
 * NOMEM, MISMATCH on all members, which name the fields, when configurations differ in more than feedback, timeout_ms
 * and serve, those of rg_state_sync(). */
rg_status_t rg_diloco_start(rg_diloco_t *d, rg_group_t *group, rg_error_t *err);

/* Joins as rg_group_join(), but fetches the anchor first, from members that go on meanwhile; then starts. */
rg_status_t rg_diloco_join(rg_diloco_t *d, const rg_config_t *config, rg_group_t **out, rg_error_t *err);

/* Lets go of the group: before that is left or destroyed, if the handle is to be used in another one, or is destroyed
 * later. Waits for what is in flight, at most until its deadline; rg_group_abort() before it ends that at once. After
 * it rg_diloco_start() and rg_diloco_join() begin where this member was. NULL, or not started: nothing. */
void rg_diloco_stop(rg_diloco_t *d);

typedef struct rg_diloco_result {
    size_t struct_size;
    rg_status_t status;
    uint32_t sent;         /* 1 + the last fragment that was sent in this call; 0: none */
    uint32_t merged;       /* 1 + the last one that was merged; 0: none */
    uint32_t contributors; /* of the last round merged: members whose steps are in it */
    uint32_t retries;      /* times that rounds began again because a member was lost */
    uint32_t world_size, rank;
    uint32_t joined, lost; /* members, as of the boundary that this call passed, if it passed one */
    uint32_t reserved;
    uint64_t version; /* of that fragment: rounds merged into it */
    uint64_t tokens;  /* of all contributors, in that round */
    uint64_t wait_ns; /* how long this call kept the program */
    double weight;    /* of all contributors */
    char text[256];   /* cause of an error */
} rg_diloco_result_t;
#define RG_DILOCO_RESULT_INIT                                                                                          \
    {                                                                                                                  \
        sizeof(rg_diloco_result_t), RG_OK, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 }                                \
    }

/* After each step of the program's optimiser; tokens is what it learned from (sums stop at 2^64 - 1). Sends and merges
 * what is due: parameters are changed here, and by flush, reset, load, start and stop alone. result may be NULL. A
 * round that fails gives the same error on all members, and changes nothing; the next is made when its time comes.
 * Errors: those of operations; INVALID (somebody's parameters are not finite: that member can rg_diloco_reset(); or the
 * outer step would not be; by quorum: so many members have nothing to say that there are fewer than the quorum),
 * MISMATCH (anchors, configurations or schedules differ: rg_diloco_start() on all members repairs anchors). With
 * EAGER, DELAYED and CO2 what is said has left the parameters for the anchor's by then; where such a round fails it is
 * kept and said again in the next one. */
rg_status_t rg_diloco_step(rg_diloco_t *d, uint64_t tokens, rg_diloco_result_t *result);

/* Every member calls it: merges what is in flight, then makes one round of every fragment at once, without overlap.
 * When it has succeeded all members have the anchor as their parameters. What was in flight and failed is said in these
 * rounds and is no error of this call; rg_diloco_stats_t.failed counts it. Errors: as rg_diloco_step(), the same on all
 * members; one that cannot follow (RESOURCE, by quorum) says so, and the others get MISMATCH. What was merged before an
 * error stays so, on all members. */
rg_status_t rg_diloco_flush(rg_diloco_t *d, rg_diloco_result_t *result);

/* This member's parameters become the anchor's; its steps since the last share are forgotten. For one that went astray.
 * INVALID before the start. */
rg_status_t rg_diloco_reset(rg_diloco_t *d);

typedef struct rg_diloco_stats {
    size_t struct_size;
    uint64_t steps;             /* place in the schedule: the same on all members. By quorum a member that was slow is
                                   moved ahead, so that it may be more than the calls of rg_diloco_step() */
    uint64_t rounds;            /* merged since the first anchor, all fragments together */
    uint64_t failed;            /* rounds that this member saw fail */
    uint64_t wait_ns;           /* for which the program was kept, all calls together */
    uint64_t flight_ns;         /* that rounds took, whether waited for or not */
    uint64_t elements;          /* of all tensors */
    uint64_t largest, smallest; /* elements of a fragment; those of ALONE left out */
    uint64_t hash;              /* of all that members must have alike: anchor, momentum, versions */
    uint32_t fragments;         /* those of ALONE counted */
    uint32_t in_flight;         /* 1: something was sent and is not merged */
} rg_diloco_stats_t;
#define RG_DILOCO_STATS_INIT                                                                                           \
    { sizeof(rg_diloco_stats_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
rg_status_t rg_diloco_info(rg_diloco_t *d, rg_diloco_stats_t *stats);

/* Everything in one file: anchor, outer optimiser, schedule, and what is this member's own: parameters, error feedback,
 * counts. What is in flight is saved as not yet sent. load: before rg_diloco_start(), with the same tensors and
 * configuration of fragments; a file that does not fit, is damaged, or has numbers that are not finite where a round
 * leaves none (INVALID; parameters may be anything) is refused before anything is changed. A file that could be read
 * once and then no more leaves parameters mixed: until another load succeeds, start, join and save are INVALID. Of
 * members that load files of different age, and of newcomers, rg_diloco_start() makes one. Errors: those of
 * rg_state_save() and rg_state_load(). */
rg_status_t rg_diloco_save(rg_diloco_t *d, const char *path, rg_error_t *err);
rg_status_t rg_diloco_load(rg_diloco_t *d, const char *path, rg_error_t *err);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
