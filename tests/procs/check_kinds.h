/* check_kinds.h: what the two halves of the kill test over all kinds share: check_kinds.c kills and judges,
 * check_kinds_worker.c is the member that calls and looks at what it gets. Both see one piece of shared memory. */
#ifndef RG_TEST_CHECK_KINDS_H
#define RG_TEST_CHECK_KINDS_H

#include "procs.h"

#define KINDS_N 4
#define KINDS_LOG 512 /* records kept per worker; they are looked at long before they are overwritten */

/* X(name, text, flags): s: the shape depends on the number of members; r: rooted; p: messages between two; v: segments
 * that differ; l: a list of buffers; g: inside a sub-group */
#define KINDS_LIST(X)                                                                                                  \
    X(ALL_REDUCE, "all_reduce", "")                                                                                    \
    X(BROADCAST, "broadcast", "r")                                                                                     \
    X(REDUCE, "reduce", "r")                                                                                           \
    X(BARRIER, "barrier", "")                                                                                          \
    X(ALL_GATHER, "all_gather", "s")                                                                                   \
    X(ALL_GATHER_V, "all_gather_v", "sv")                                                                              \
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
    X(ALL_REDUCE_LIST, "all_reduce_list", "l")                                                                         \
    X(ALL_GATHER_LIST, "all_gather_list", "sl")                                                                        \
    X(REDUCE_SCATTER_LIST, "reduce_scatter_list", "sl")                                                                \
    X(WEIGHTED, "weighted", "")                                                                                        \
    X(SUB_ALL_REDUCE, "sub_all_reduce", "g")                                                                           \
    X(SUB_BROADCAST, "sub_broadcast", "rg")                                                                            \
    X(SUB_ALL_GATHER, "sub_all_gather", "sg")                                                                          \
    X(SUB_REDUCE_SCATTER, "sub_reduce_scatter", "sg")                                                                  \
    X(SUB_ALL_TO_ALL, "sub_all_to_all", "sg")

enum kind {
#define KINDS_ENUM(name, text, flags) KIND_##name,
    KINDS_LIST(KINDS_ENUM)
#undef KINDS_ENUM
        KIND_COUNT
};

const char *kind_name(enum kind k);
int kind_is(enum kind k, char flag);
static inline int kind_shaped(enum kind k) { return kind_is(k, 's'); }
static inline int kind_rooted(enum kind k) { return kind_is(k, 'r'); }
static inline int kind_pairs(enum kind k) { return kind_is(k, 'p'); }

struct kinds_record {
    uint64_t gen, start_ns, end_ns, epoch, count, wrong;
    enum kind kind;
    uint32_t everybody;        /* members of the whole group when it was called */
    uint32_t world, rank;      /* of the group that the call was made in, as the caller knew them */
    uint64_t members[KINDS_N]; /* of it, by id */
    uint32_t status, contributors, retries, in_place, on_fault, intact;
    uint64_t ids[KINDS_N]; /* of the contributors */
    uint64_t root_id;      /* broadcast: whose data arrived */
    uint32_t sub, colour;
    uint64_t sent_to, got_from; /* messages: the other ends, by id */
    uint32_t sent_status, got_status;
    char text[160];
};

struct kinds_worker {
    pid_t pid;
    uint64_t id;
    volatile uint64_t gen;      /* the round that it is in or stands before */
    volatile uint64_t started;  /* records begun; the last one is being written while started > finished */
    volatile uint64_t finished; /* records complete */
    volatile int failed;
    int killed; /* by the driver, and waited for */
    struct kinds_record log[KINDS_LOG];
};

struct kinds_shared {
    volatile uint64_t stop_gen;  /* 0: go on */
    volatile uint64_t limit_gen; /* rounds beyond it wait */
    size_t elems;                /* of the largest vectors */
    uint32_t n_kinds;
    enum kind kinds[KIND_COUNT];
    char address[128];
    struct kinds_worker workers[KINDS_N];
};

extern struct kinds_shared *kinds_sh;

/* "all", or names and parts of names with commas between. 0, or what is wrong is printed. */
int kinds_choose(const char *wanted);
enum kind kinds_of(uint64_t gen);                                               /* what is called in a round */
static inline uint32_t kinds_colour(uint64_t id) { return (uint32_t)(id & 1); } /* of a member in sub-groups */
int kinds_worker_body(int slot, void *first);

#endif
