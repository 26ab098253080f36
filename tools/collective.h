/* collective.h: one call of any collective as `regroup bench` and `regroup tune` make it: buffers of its shape, inputs
 * whose result is known, the call, and the comparison of every element. Sizes are counted as nccl-tests does: bytes of
 * the whole vector, of which each of n members has a segment where the collective has segments. It relies on regroup.h
 * only. What runs between two clock readings is the library's call and nothing else. */
#ifndef RG_TOOL_COLLECTIVE_H
#define RG_TOOL_COLLECTIVE_H

#include "regroup.h"

#include <stddef.h>
#include <stdint.h>

/* X(name, as the library's kinds are called in RG_ALGORITHM) */
#define COLL_LIST(X)                                                                                                   \
    X(ALL_REDUCE, "all_reduce")                                                                                        \
    X(ALL_GATHER, "all_gather")                                                                                        \
    X(REDUCE_SCATTER, "reduce_scatter")                                                                                \
    X(BROADCAST, "broadcast")                                                                                          \
    X(REDUCE, "reduce")                                                                                                \
    X(GATHER, "gather")                                                                                                \
    X(SCATTER, "scatter")                                                                                              \
    X(ALL_TO_ALL, "all_to_all")                                                                                        \
    X(SEND_RECV, "send_recv")                                                                                          \
    X(BARRIER, "barrier")

typedef enum coll_kind {
#define COLL_ENUM(name, text) COLL_##name,
    COLL_LIST(COLL_ENUM)
#undef COLL_ENUM
        COLL_COUNT
} coll_kind_t;

const char *coll_name(coll_kind_t kind);
int coll_find(const char *name, coll_kind_t *kind); /* 1 when there is one */
int coll_reduces(coll_kind_t kind);
int coll_rooted(coll_kind_t kind);
/* Bytes that a link has to carry for each byte of the vector, as nccl-tests counts: busbw = algbw * this. */
double coll_bus_factor(coll_kind_t kind, uint32_t n);

struct coll {
    coll_kind_t kind;
    rg_dtype_t dtype;
    rg_op_t op;
    uint32_t root;
    int in_place, alloc; /* alloc: buffers from rg_alloc() */
    rg_group_t *g;
    rg_info_t info; /* rank and world_size as the shapes are made for */
    uint8_t *mem[2];
};

/* Two buffers of `bytes` (or what the smallest size needs). 0, or an error that the caller reports as memory. */
int coll_open(struct coll *c, uint64_t bytes);
void coll_close(struct coll *c);

/* Elements of the call's `count` for a vector of `bytes`: at least one where there are segments, so that the vector may
 * be a little larger than asked for; and the bytes of that vector. */
uint64_t coll_count(const struct coll *c, uint64_t bytes);
uint64_t coll_bytes(const struct coll *c, uint64_t count);

/* Writes this member's inputs. */
void coll_fill(struct coll *c, uint64_t count);
/* The call itself and its time; for SEND_RECV half of the way there and back between ranks 0 and 1. */
rg_status_t coll_call(struct coll *c, uint64_t count, rg_result_t *res, double *us);
/* Elements of this member's result that are wrong. */
uint64_t coll_wrong(const struct coll *c, uint64_t count);

#endif
