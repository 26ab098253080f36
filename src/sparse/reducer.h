/* reducer.h: what a reducer of sparse lists holds from call to call: memory, whose content no call finds again.
 * Included by src/sparse only. */
#ifndef RG_SPARSE_REDUCER_H
#define RG_SPARSE_REDUCER_H

#include "sparse/frame.h"

struct rg_sparse_reducer {
    rg_group_t *g;
    rg_room_t places, small, out, in, part_at, part_val, part_who, some_at, some_val, pick_at, pick_val, pick_who, mag;
    /* From the last result, which is the same on all members: parts that take about as many bytes each. */
    rg_room_t cuts, elements;
    uint64_t cuts_len; /* of the vector; 0: there are none */
    uint32_t cuts_n;
};

#endif
