/* test_hier.c: what the hierarchical algorithms promise beside a right result, which tests/verify.c proves: that no
 * byte crosses the link of a host more often than it must, and that random, uneven and nested topologies are proved
 * too. Relies on the schedules alone. */
#include "sched/sched.h"

#include <criterion/criterion.h>
#include <inttypes.h>

extern const rg_algorithm_t rg_alg_all_reduce_hier, rg_alg_all_gather_hier, rg_alg_reduce_scatter_hier,
    rg_alg_broadcast_hier, rg_alg_reduce_hier;

static const rg_algorithm_t *const all[] = { &rg_alg_all_reduce_hier, &rg_alg_all_gather_hier,
                                             &rg_alg_reduce_scatter_hier, &rg_alg_broadcast_hier, &rg_alg_reduce_hier };

static uint32_t seed = 1;

static uint32_t any(uint32_t below) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

/* The least that the busiest direction of any host's link has to carry, in parts of all data. */
static double least(rg_kind_t kind, double hosts) {
    switch (kind) {
    case RG_KIND_ALL_REDUCE: return 2 * (hosts - 1) / hosts;
    case RG_KIND_ALL_GATHER:
    case RG_KIND_REDUCE_SCATTER: return (hosts - 1) / hosts;
    default: return 1;
    }
}

static double busiest(const rg_algorithm_t *alg, uint32_t hosts, uint32_t per_host) {
    uint32_t n = hosts * per_host, group[64];
    uint64_t out[8] = { 0 }, in[8] = { 0 }, most = 0;
    for (uint32_t r = 0; r < n; r++) group[r] = r / per_host;
    rg_topology_t topo = { .levels = 1, .group = group };
    rg_coll_desc_t d = { .kind = alg->kind,
                         .size = n,
                         .count = 1 << 18,
                         .elem_size = 4,
                         .acc_size = 4,
                         .chunk = 4096,
                         .rule_l = 1,
                         .topo = &topo };
    int segments = rg_kind_segmented(alg->kind);
    if (segments) d.count /= n;
    for (d.rank = 0; d.rank < n; d.rank++) {
        rg_schedule_t *s;
        cr_assert_eq(rg_sched_build(alg, &d, &s), RG_OK);
        for (uint32_t i = 0; i < s->n_steps; i++) {
            if (s->steps[i].kind != RG_STEP_SEND || group[s->steps[i].peer] == group[d.rank]) continue;
            out[group[d.rank]] += s->steps[i].a.len;
            in[group[s->steps[i].peer]] += s->steps[i].a.len;
        }
        rg_sched_free(s);
    }
    for (uint32_t h = 0; h < hosts; h++) {
        if (out[h] > most) most = out[h];
        if (in[h] > most) most = in[h];
    }
    return (double)most / ((double)d.count * (segments ? n : 1));
}

Test(hier, slow_link__every_kind__carries_no_more_than_it_must) {
    static const uint32_t shape[][2] = { { 2, 2 }, { 2, 4 }, { 3, 3 }, { 4, 4 } };
    for (size_t a = 0; a < sizeof all / sizeof *all; a++)
        for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
            double is = busiest(all[a], shape[i][0], shape[i][1]), must = least(all[a]->kind, shape[i][0]);
            cr_assert(is <= must * 1.01, "%s, %" PRIu32 " hosts of %" PRIu32 ": %.3f instead of %.3f",
                      rg_kind_name(all[a]->kind), shape[i][0], shape[i][1], is, must);
        }
}

static void prove(const rg_algorithm_t *alg, const rg_topology_t *topo, uint32_t n) {
    rg_schedule_t *s[16];
    char text[512];
    rg_coll_desc_t d = { .kind = alg->kind,
                         .size = n,
                         .root = any(n),
                         .count = any(3) ? any(900) : any(5),
                         .elem_size = 4,
                         .acc_size = 4,
                         .chunk = 1 + any(100),
                         .rule_l = 1,
                         .topo = topo };
    uint64_t lens[16], offs[16], at = 0;
    for (uint32_t r = 0; r < n; r++) {
        lens[r] = any(4) ? any(97) : 0;
        offs[r] = at;
        at += lens[r] + any(3);
    }
    if (rg_kind_segmented(alg->kind) && any(2)) {
        d.lens = lens;
        d.offs = offs;
        d.count = 0;
        for (uint32_t r = 0; r < n; r++) d.count += lens[r];
    }
    if (!alg->applies(&d)) return;
    for (d.rank = 0; d.rank < n; d.rank++) cr_assert_eq(rg_sched_build(alg, &d, &s[d.rank]), RG_OK);
    rg_status_t st = rg_sched_verify(s, n, text, sizeof text);
    cr_assert_eq(st, RG_OK, "%s, %" PRIu32 " ranks, count %" PRIu64 ": %s", rg_kind_name(alg->kind), n, d.count, text);
    for (uint32_t r = 0; r < n; r++) rg_sched_free(s[r]);
}

Test(hier, topology__random_and_uneven_with_one_or_two_levels__proved) {
    for (int round = 0; round < 150; round++) {
        uint32_t n = 3 + any(12), hosts = 1 + any(n), sites = 1 + any(3), group[2 * 16], site[16];
        for (uint32_t h = 0; h < hosts; h++) site[h] = 100 + any(sites);
        for (uint32_t r = 0; r < n; r++) {
            group[r] = any(3) ? r * hosts / n : any(hosts); /* neighbours, mostly */
            group[n + r] = site[group[r]];
        }
        rg_topology_t topo = { .levels = 1 + any(2), .group = group };
        for (size_t a = 0; a < sizeof all / sizeof *all; a++) prove(all[a], &topo, n);
    }
}
