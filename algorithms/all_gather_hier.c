/* all_gather_hier.c: every segment goes to one member of each other host, another one for each of this host's members,
 * and spreads inside the host from there, over any number of levels. Each byte crosses a slow link once for each host.
 * No TMP. */
#include "regroup_algorithm.h"
#include "sched/hier.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)rg_seg_total(d) * d->elem_size;
    return rg_hier_cost(d, m, bytes, RG_HIER_DOWN);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 131072 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    (void)d; /* the schedule has it */
    return rg_hier_build_segments(s, RG_HIER_DOWN);
}

const rg_algorithm_t rg_alg_all_gather_hier = {
    .name = "hier",
    .kind = RG_KIND_ALL_GATHER,
    .source = "Karonis et al.: Exploiting hierarchy in parallel computer networks, 2000 (the grouping)",
    .applies = rg_hier_applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
