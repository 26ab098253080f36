/* reducer.h: what a reducer of sparse lists holds from call to call: memory, whose content no call finds again, and the
 * calls that run in the background; and the calls themselves, when their turn has come. Included by src/sparse only. */
#ifndef RG_SPARSE_REDUCER_H
#define RG_SPARSE_REDUCER_H

#include "sparse/later.h"

#include "regroup_sparse.h"

struct rg_sparse_reducer {
    rg_group_t *g;
    rg_room_t places, small, out, in, part_at, part_val, part_who, some_at, some_val, pick_at, pick_val, pick_who, mag;
    /* From the last result, which is the same on all members: parts that take about as many bytes each. */
    rg_room_t cuts, elements;
    uint64_t cuts_len; /* of the vector; 0: there are none */
    uint32_t cuts_n;
    /* Where values are quantised: what this member's stand for when they have travelled, what others' do, and the bytes
     * of those that stay here. */
    rg_room_t said, heard, own;
    uint64_t calls; /* numbers what is encoded, for stochastic rounding */
    double bound;
    rg_later_t *queue; /* NULL before the first request */
};

/* reduce.c, seeded.c and topk_collective.c. stop: NULL for calls that block. */
rg_status_t rg_sparse_run(rg_sparse_reducer_t *z, const rg_sparse_t *in, rg_sparse_t *out, const rg_sparse_how_t *how,
                          const rg_opts_t *opts, rg_stop_t *stop);
rg_status_t rg_seeded_run(rg_sparse_reducer_t *z, const void *in, void *out, uint64_t n, rg_dtype_t dtype,
                          const rg_seeded_how_t *how, const rg_opts_t *opts, rg_stop_t *stop);
rg_status_t rg_topk_run(rg_topk_reducer_t *z, const float *in, float *out, uint64_t count, rg_sparse_op_t op,
                        const rg_opts_t *opts, rg_stop_t *stop);
/* how, or what NULL means. INVALID, with a text: not initialised. NOTSUP: a wire form of which lists know nothing. */
rg_status_t rg_sparse_how_in(rg_group_t *g, const rg_sparse_how_t *how, rg_sparse_how_t *out);
rg_group_t *rg_topk_group(const rg_topk_reducer_t *z);
rg_later_t **rg_topk_queue(rg_topk_reducer_t *z);

#endif
