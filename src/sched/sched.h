/* sched.h: schedules inside the library: building, proving, printing, the table of algorithms, and the choice.
 * Everything here is pure: no I/O, no clock; memory only from malloc/realloc/free in schedule.c and verify.c. */
#ifndef RG_SCHED_H
#define RG_SCHED_H

#include "regroup_algorithm.h"

/* Builds alg's schedule for d and seals it (DONE barrier when d->rule_l). On success *out is the caller's; free it
 * with rg_sched_free(). */
rg_status_t rg_sched_build(const rg_algorithm_t *alg, const rg_coll_desc_t *d, rg_schedule_t **out);
void rg_sched_free(rg_schedule_t *s);

/* Appends the DONE barrier: dissemination with a radix that makes it one round up to 8 ranks. Zero-length messages.
 * (Dissemination barrier: Hensgen, Finkel, Manber 1988.) */
void rg_sched_seal(rg_schedule_t *s);

/* One line per step into buf, at most cap bytes, terminated; returns the length it has. */
size_t rg_sched_print(const rg_schedule_t *s, char *buf, size_t cap);

/* Proof by symbolic execution of all ranks' schedules (s[0..n-1]) at once, in place and not. RG_OK, or ERR_INVALID
 * with what is wrong in text: wrong result, double count, read of garbage, deadlock, unmatched message, out of
 * bounds, race, partial value in OUT, zero-copy overwrite, early DONE. */
rg_status_t rg_sched_verify(rg_schedule_t *const *s, uint32_t n, char *text, size_t cap);

/* The table that the build makes from algorithms/. NULL-terminated. */
extern const rg_algorithm_t *const rg_algorithms[];

/* The algorithm of least cost that applies, or the one that `forced` ("all_reduce=ring,broadcast=tree", may be NULL)
 * names for this kind. Fills d->chunk (from chunk_bytes if not 0, else the algorithm's preference). NULL with text
 * when forced names none that applies. Depends on nothing but its arguments, which are equal on all members. */
const rg_algorithm_t *rg_sched_select(rg_coll_desc_t *d, const rg_cost_model_t *m, const char *forced,
                                      uint32_t chunk_bytes, char *text, size_t cap);

/* The model used for a view: from its size, the cores of this host class and whether all members share one host
 * (both agreed in the view, so equal on all members). */
void rg_cost_model(rg_cost_model_t *m, uint32_t size, uint32_t cores, int one_host);

#endif
