/* all_reduce_hier.c: reduce inside the host, exchange between hosts, spread inside the host, over any number of levels.
 * Every rank owns one part of the data; parts whose owners have the same place in their hosts lie side by side, so that
 * they travel together inside a host. Each byte crosses a host's link once out and once in. TMP: 10 pieces (hier.c) of
 * the parts that a rank stands for, about count / (members of the host) / pieces each. */
#include "regroup_algorithm.h"
#include "sched/hier.h"

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    return rg_hier_cost(d, m, (double)d->count * d->elem_size, RG_HIER_UP | RG_HIER_DOWN);
}

static uint64_t chunk(const rg_coll_desc_t *d) { return 131072 / d->elem_size; }

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t n = d->size, wide = rg_hier_widest_host(d), k = 0;
    rg_hier_item_t *items = (rg_hier_item_t *)rg_sched_scratch(s, (size_t)n * sizeof *items / 4);
    uint32_t *place = rg_sched_scratch(s, n);
    if (!items || !place) return s->error;
    for (uint32_t r = 0; r < n; r++) place[r] = rg_hier_host_place(d, r);
    for (uint32_t p = 0; p < wide; p++)
        for (uint32_t r = 0; r < n; r++)
            if (place[r] == p) {
                rg_span_t part = rg_span_part(rg_span(RG_BUF_IN, 0, d->count), n, k);
                items[k++] = (rg_hier_item_t){ r, part.off, part.off, part.len };
            }
    const rg_hier_plan_t plan = { items, n, RG_HIER_UP | RG_HIER_DOWN, UINT32_MAX, 0, 0, 0 };
    return rg_hier_build(s, &plan);
}

const rg_algorithm_t rg_alg_all_reduce_hier = {
    .name = "hier",
    .kind = RG_KIND_ALL_REDUCE,
    .source = "Jia et al.: Highly scalable deep learning training system with mixed-precision, 2018 (the grouping)",
    .applies = rg_hier_applies,
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
