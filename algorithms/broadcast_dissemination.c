/* broadcast_dissemination.c: in rounds everybody speaks to radix-1 others at growing distances, and whoever has the
 * root's data gives it along; one round up to 8 ranks. Then a rank that has it has heard from all, so that a small
 * broadcast needs no barrier behind it. It relies on the builder for all of it. For small data: in larger ones the
 * root's turn would be long, and they end with a barrier anyway. */
#include "regroup_algorithm.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double rounds = 0, n = d->size, bytes = (double)d->count * d->elem_size;
    for (uint64_t reach = 1; reach < d->size; reach *= 8) rounds++;
    double messages = n < 8 ? n - 1 : 7 * rounds;
    /* Giving the data away is the root's work, however many cores the others leave idle. */
    return rg_cost(m, rounds, messages, 0, 0) +
           messages * (rg_cost(m, 0, 0, bytes, 0) / (m->sharing > 1 ? m->sharing : 1));
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    (void)d;
    rg_sched_spread(s);
    return s->error;
}

const rg_algorithm_t rg_alg_broadcast_dissemination = {
    .name = "dissemination",
    .kind = RG_KIND_BROADCAST,
    .source = "Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, 1988",
    .cost = cost,
    .build = build,
    .hears_all = 1,
};
