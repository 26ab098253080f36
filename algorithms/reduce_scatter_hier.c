/* reduce_scatter_hier.c: the way of all_gather_hier.c backwards: in each host one member, another one for each segment,
 * adds up what its host has for it, and hands it on to the next level. Each byte crosses a slow link once. TMP: 10
 * pieces (hier.c) of the segments that a rank adds up, its host's share of them. */
#include "regroup_algorithm.h"
#include "sched/hier.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)rg_seg_total(d) * d->elem_size;
    return rg_hier_cost(d, m, bytes, RG_HIER_UP);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 131072 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    (void)d; /* the schedule has it */
    return rg_hier_build_segments(s, RG_HIER_UP);
}

const rg_algorithm_t rg_alg_reduce_scatter_hier = {
    .name = "hier",
    .kind = RG_KIND_REDUCE_SCATTER,
    .source = "Karonis et al.: Exploiting hierarchy in parallel computer networks, 2000 (the grouping)",
    .applies = rg_hier_applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
