/* tally.h: when a round of a quorum reduction is decided, and by whose contributions. Pure: the same arrivals at the
 * same times give the same decision; it reads no clock and owns no memory. Nothing outside src/quorum may use it,
 * except tests. */
#ifndef RG_TALLY_H
#define RG_TALLY_H

#include <stdint.h>

/* A member's place in the round that is open. */
typedef struct rg_seat {
    uint64_t id;
    int arrived;  /* it has given its contribution, as a whole, or nothing */
    int gives;    /* it has given something */
    int lagging;  /* it was late in the last round: nobody waits for it */
    int taken;    /* decided: it contributes */
    uint32_t nth; /* when it arrived, among those who did */
} rg_seat_t;

typedef struct rg_tally {
    uint32_t at_least, at_most; /* as in rg_quorum_config_t; at_least 0: more than half */
    uint64_t grace_ns, max_wait_ns;
    uint64_t first_ns, kth_ns; /* when the first, and the K-th contribution came; 0: not yet */
    uint32_t arrived;
} rg_tally_t;

typedef enum rg_tally_verdict {
    RG_TALLY_WAIT,
    RG_TALLY_DECIDE,
    RG_TALLY_TOO_FEW /* everybody has come, and fewer than K gave something */
} rg_tally_verdict_t;

void rg_tally_open(rg_tally_t *t);                            /* a new round */
void rg_tally_arrive(rg_tally_t *t, rg_seat_t *s, int gives); /* once for each seat and round */
uint32_t rg_tally_needs(const rg_tally_t *t, uint32_t n);     /* K of n members */
/* `at` is lowered to the time when the answer may be another one without further arrivals. Seats that contribute are
 * marked as taken when it is DECIDE. */
rg_tally_verdict_t rg_tally_judge(rg_tally_t *t, rg_seat_t *const *seats, uint32_t n, uint64_t now, uint64_t *at);
/* A round was decided: who had not come is not waited for in the next one. */
void rg_tally_close(rg_seat_t *s);
/* A contribution came for the round before, `now`: within the grace that it would have had, its member counts as in
 * time again. prev_kth_ns: of that round. */
int rg_tally_forgives(const rg_tally_t *t, uint64_t prev_kth_ns, uint64_t now);

#endif
