/* reduce_hier.c: the way of broadcast_hier.c backwards: parts are added up inside each host, each by another member,
 * then between hosts by the members of the root's host, and come together at the root. Each byte crosses a slow link
 * once. TMP: 10 pieces (hier.c) of the parts that a rank adds up. */
#include "regroup_algorithm.h"
#include "sched/hier.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)d->count * d->elem_size;
    return rg_hier_cost(d, m, bytes, RG_HIER_UP) + m->level[0].alpha + bytes * m->level[0].beta;
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 131072 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    (void)d; /* the schedule has it */
    return rg_hier_build_rooted(s, RG_HIER_UP);
}

const rg_algorithm_t rg_alg_reduce_hier = {
    .name = "hier",
    .kind = RG_KIND_REDUCE,
    .source = "Karonis et al.: Exploiting hierarchy in parallel computer networks, 2000 (the grouping)",
    .applies = rg_hier_applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
