/* owner_fold.h: how one rank combines what all others send it of one piece: the heart of the direct reductions.
 * The others send their part raw; in rank order, where the fold begins with ranks 0 and 1 and the owner is neither,
 * rank 0 sends its part as a partial value (from TMP), because an owner can only receive such a one as it is.
 * Relies on the builder alone; must stay free of state. */
#ifndef RG_OWNER_FOLD_H
#define RG_OWNER_FOLD_H

#include "regroup_algorithm.h"

static inline int owner_begins_elsewhere(int ordered, uint32_t n, uint32_t owner) {
    return ordered && n > 2 && owner >= 2;
}

/* out = everybody's part, where this rank's own is `in`: starting with its own and going up, or in rank order. `acc` is
 * the place for partial values; nothing begins before dep. Gives the step that makes the final value. */
static inline uint32_t owner_fold(rg_schedule_t *s, int ordered, rg_span_t out, rg_span_t in, rg_span_t acc,
                                  uint32_t dep) {
    uint32_t n = s->desc.size, r = s->desc.rank;
    int started = 0, own_used = 0; /* acc holds something; the own part is in it */
    for (uint32_t i = 0, left = n; i < n; i++) {
        uint32_t from = ordered ? i : (r + i) % n;
        left--;
        rg_span_t dst = left == 0 ? out : acc;
        uint32_t final = left == 0 ? RG_STEP_FINAL : 0;
        if (from == r) {
            /* At the start it waits for the next arrival; later it is folded in by itself. */
            if (started && !own_used) dep = rg_sched_reduce(s, dst, acc, in, final, &dep, 1);
            own_used = 1;
        } else if (started || own_used) {
            dep = rg_sched_recv_reduce(s, from, dst, started ? acc : in, final, &dep, 1);
            started = 1;
        } else if (r == 1) { /* rank order: the first arrival is rank 0's, folded with the own part at once */
            dep = rg_sched_recv_reduce(s, from, n == 2 ? out : acc, in, RG_STEP_SWAP | (n == 2 ? RG_STEP_FINAL : 0),
                                       &dep, 1);
            started = own_used = 1;
            i++;
            left--;
        } else {
            dep = rg_sched_recv(s, from, acc, RG_STEP_WIRE_ACC, &dep, 1);
            started = 1;
        }
    }
    return dep;
}

#endif
