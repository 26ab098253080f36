/* all_gather_hier.c: every segment goes to one member of each other host, another one for each of this host's members,
 * and spreads inside the host from there, over any number of levels. Each byte crosses a slow link once for each host.
 * No TMP. */
#include "regroup_algorithm.h"
#include "sched/hier.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)d->count * (d->lens ? 1 : d->size) * d->elem_size;
    return rg_hier_cost(d, m, bytes, RG_HIER_DOWN);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 131072 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    rg_hier_item_t *items = (rg_hier_item_t *)rg_sched_scratch(s, (size_t)d->size * sizeof *items / 4);
    if (!items) return s->error;
    for (uint32_t r = 0; r < d->size; r++)
        items[r] = (rg_hier_item_t){ r, 0, rg_seg(d, RG_BUF_OUT, r).off, rg_seg_len(d, r) };
    const rg_hier_plan_t plan = { items, d->size, RG_HIER_DOWN, UINT32_MAX, 1, 0, 0 };
    return rg_hier_build(s, &plan);
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
