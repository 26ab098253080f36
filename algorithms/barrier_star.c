/* barrier_star.c: all tell rank 0 that they are there, which tells all. Two hops, and 2(n-1) messages in the whole
 * group where the dissemination of one hop has n(n-1): for ranks that share cores, where each message costs its
 * receiver a switch. The DONE barrier at the end of large operations takes this form where it is the cheaper one, so
 * this relies on the builder for all of it. It must not append steps of its own. */
#include "regroup_algorithm.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double n = d->size, most = 2 * (n - 1);
    /* Rank 0 handles all of them. Where ranks share cores the sum over all ranks counts, spread over the cores, but no
     * less than what rank 0 has to do on its own. */
    double share = m->sharing > 1 ? (m->sharing > n / 2 ? 1 / n : 0.5 / m->sharing) : 1;
    return rg_cost(m, 2, most * share, 0, 0);
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    (void)d;
    rg_sched_star(s, NULL, 0);
    return s->error;
}

const rg_algorithm_t rg_alg_barrier_star = {
    .name = "star",
    .kind = RG_KIND_BARRIER,
    .source = "folklore: central counter",
    .cost = cost,
    .build = build,
};
