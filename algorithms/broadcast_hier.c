/* broadcast_hier.c: the root deals its data out to the members of its host, each of which takes its part to one member
 * of the next host, and so on from host to host; inside each host the parts are then exchanged. So all members of a
 * host share the work of the slow link, and each byte crosses it once each way. No TMP. */
#include "regroup_algorithm.h"
#include "sched/hier.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)d->count * d->elem_size;
    return rg_hier_cost(d, m, bytes, RG_HIER_DOWN) + m->level[0].alpha + bytes * m->level[0].beta;
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 131072 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    (void)d; /* the schedule has it */
    return rg_hier_build_rooted(s, RG_HIER_DOWN);
}

const rg_algorithm_t rg_alg_broadcast_hier = {
    .name = "hier",
    .kind = RG_KIND_BROADCAST,
    .source = "Karonis et al.: Exploiting hierarchy in parallel computer networks, 2000 (the grouping)",
    .applies = rg_hier_applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
