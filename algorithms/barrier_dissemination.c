/* barrier_dissemination.c: nobody leaves before all have come. In each round a rank tells radix-1 others at growing
 * distances; one round up to 8 ranks. Hensgen, Finkel and Manber 1988; the same as the DONE barrier at the end of
 * large operations, so it relies on the builder for all of it. */
#include "regroup_algorithm.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double rounds = 0;
    for (uint64_t reach = 1; reach < d->size; reach *= 8) rounds++;
    return rg_cost(m, rounds, d->size < 8 ? d->size - 1.0 : 7 * rounds, 0, 0);
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    (void)d;
    rg_sched_disseminate(s, NULL, 0);
    return s->error;
}

const rg_algorithm_t rg_alg_barrier_dissemination = {
    .name = "dissemination",
    .kind = RG_KIND_BARRIER,
    .source = "Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, 1988",
    .cost = cost,
    .build = build,
};
