/* moves.h: the plan of the moves of a placement: a pure function, so that all members come to the same moves in the
 * same order from the same placement. Included by src/sparse only. */
#ifndef RG_SPARSE_MOVES_H
#define RG_SPARSE_MOVES_H

#include "regroup_sparse.h"

/* One message: bytes [at, at + len) of a chunk. A member passes on what it has received by an earlier move. */
typedef struct rg_move {
    uint32_t chunk, from, to;
    uint64_t at, len;
} rg_move_t;

typedef void (*rg_move_fn)(void *ctx, const rg_move_t *move);

/* All moves of a gather among n members, in the order in which every pair makes its own of them. host[r] is the
 * lowest rank on the host of rank r. scratch has room for 4 * n numbers. */
void rg_plan_gather(const rg_placement_t *p, uint32_t n, const uint32_t *host, uint32_t *scratch, rg_move_fn fn,
                    void *ctx);

/* All moves of a reduction: every copy once, to the owner. */
void rg_plan_reduce(const rg_placement_t *p, uint32_t n, rg_move_fn fn, void *ctx);

/* NULL, or what is wrong. */
const char *rg_placement_flaw(const rg_placement_t *p, uint32_t n);

uint64_t rg_placement_hash(const rg_placement_t *p, uint32_t n, const uint32_t *host);

static inline int rg_placed(const rg_placement_t *p, uint32_t r, uint32_t c) {
    return p->present[(uint64_t)r * ((p->chunks + 7) / 8) + c / 8] >> c % 8 & 1;
}

/* For tests: as rg_moves_create(), for members that share hosts as said. */
rg_status_t rg_moves_create_on(rg_group_t *group, const rg_placement_t *p, const uint32_t *host, const rg_opts_t *opts,
                               rg_moves_t **out);

#endif
