/* reduce_scatter_hier.c: the way of all_gather_hier.c backwards: in each host one member, another one for each segment,
 * adds up what its host has for it, and hands it on to the next level. Each byte crosses a slow link once. TMP: 10
 * pieces (hier.c) of the segments that a rank adds up, its host's share of them. */
#include "regroup_algorithm.h"
#include "sched/hier.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)d->count * (d->lens ? 1 : d->size) * d->elem_size;
    return rg_hier_cost(d, m, bytes, RG_HIER_UP);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 131072 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    rg_hier_item_t *items = (rg_hier_item_t *)rg_sched_scratch(s, (size_t)d->size * sizeof *items / 4);
    if (!items) return s->error;
    for (uint32_t r = 0; r < d->size; r++)
        items[r] = (rg_hier_item_t){ r, rg_seg(d, RG_BUF_IN, r).off, 0, rg_seg_len(d, r) };
    const rg_hier_plan_t plan = { items, d->size, RG_HIER_UP, UINT32_MAX, 0, 1, 0 };
    return rg_hier_build(s, &plan);
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
