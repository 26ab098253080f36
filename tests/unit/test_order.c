/* test_order.c: the order of a ring against every order there is, the good one for many members against what is known
 * of it, and shares against the linear program whose closed form they are. */
#include "sched/sched.h"

#include <criterion/criterion.h>
#include <string.h>

#define MOST RG_ORDER_MAX

static uint32_t rate[MOST * MOST], latency[MOST * MOST];
static uint64_t seed = 7;

static uint32_t dice(uint32_t below) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 20) % below;
}

/* kinds: how many different rates there are; 0: any. */
static rg_links_t links(uint32_t n, uint32_t kinds) {
    for (uint32_t i = 0; i < n * n; i++) {
        rate[i] = kinds ? 1000 * (1 + dice(kinds)) : dice(UINT32_MAX);
        latency[i] = 100 * (1 + dice(50));
    }
    return (rg_links_t){ n, rate, latency };
}

static int is_order(const uint32_t *order, uint32_t n) {
    uint64_t seen = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (order[i] >= n || (seen >> order[i] & 1)) return 0;
        seen |= 1ull << order[i];
    }
    return order[0] == 0;
}

/* Every ring that begins with 0. */
static void all_orders(const rg_links_t *l, uint32_t *order, uint32_t at, rg_ring_t *best) {
    if (at == l->n) {
        rg_ring_t r = rg_order_judge(l, order);
        if (r.slowest > best->slowest || (r.slowest == best->slowest && r.latency_us < best->latency_us)) *best = r;
        return;
    }
    for (uint32_t i = at; i < l->n; i++) {
        uint32_t took = order[at];
        order[at] = order[i];
        order[i] = took;
        all_orders(l, order, at + 1, best);
        order[i] = order[at];
        order[at] = took;
    }
}

static rg_ring_t best_of_all(const rg_links_t *l) {
    uint32_t order[MOST];
    rg_ring_t best = { 0, UINT64_MAX };
    for (uint32_t i = 0; i < l->n; i++) order[i] = i;
    all_orders(l, order, 1, &best);
    return best;
}

Test(order, ring__up_to_eight_members__as_good_as_the_best_of_all_orders) {
    for (uint32_t n = 1; n <= 8; n++)
        for (int k = 0; k < 24; k++) {
            rg_links_t l = links(n, (uint32_t)(k % 4) * 2);
            uint32_t order[MOST];
            rg_order_ring(&l, order);
            rg_ring_t got = rg_order_judge(&l, order), best = best_of_all(&l);
            cr_assert(is_order(order, n), "%u members", n);
            cr_assert(got.slowest == best.slowest && got.latency_us == best.latency_us,
                      "%u members: slowest %u and %llu us, there is %u and %llu", n, got.slowest,
                      (unsigned long long)got.latency_us, best.slowest, (unsigned long long)best.latency_us);
        }
}

Test(order, ring__ten_members_with_one_good_way__found) {
    static const uint32_t way[] = { 0, 7, 3, 9, 1, 5, 8, 2, 6, 4 };
    uint32_t order[MOST];
    rg_links_t l = links(10, 1);
    for (uint32_t i = 0; i < 10; i++) rate[way[i] * 10 + way[(i + 1) % 10]] = 5000;
    rg_order_ring(&l, order);
    cr_assert(memcmp(order, way, sizeof way) == 0);
}

/* A hidden ring among slow links, and sites of near members: what is good is known there. */
Test(order, ring__many_members__near_what_is_known_to_be_best) {
    for (uint32_t n = 11; n <= MOST; n += 7) {
        rg_links_t l = links(n, 0);
        uint32_t order[MOST], sites = 4;
        for (uint32_t a = 0; a < n; a++)
            for (uint32_t b = 0; b < n; b++) {
                int near = a % sites == b % sites;
                rate[a * n + b] = near ? 100000 : 10000;
                latency[a * n + b] = near ? 200 : 40000;
            }
        rg_order_ring(&l, order);
        rg_ring_t got = rg_order_judge(&l, order);
        cr_assert(is_order(order, n));
        cr_assert_eq(got.slowest, 10000);
        cr_assert_eq(got.latency_us, sites * 40000 + (n - sites) * 200, "%u members: %llu us", n,
                     (unsigned long long)got.latency_us);
    }
}

Test(order, ring__figures_of_all_kinds__an_order_and_the_same_again) {
    for (int k = 0; k < 60; k++) {
        uint32_t n = 1 + dice(k % 3 ? 12 : MOST), a[MOST], b[MOST];
        rg_links_t l = links(n, 0);
        for (uint32_t i = 0; i < n * n; i++) {
            if (dice(4) == 0) rate[i] = dice(2) ? 0 : UINT32_MAX;
            if (dice(4) == 0) latency[i] = UINT32_MAX;
        }
        rg_order_ring(&l, a);
        rg_order_ring(&l, b);
        cr_assert(is_order(a, n) && memcmp(a, b, n * sizeof *a) == 0);
    }
}

Test(order, pays__a_tenth_faster_or_a_fifth_shorter__and_not_for_less) {
    cr_assert(rg_order_pays((rg_ring_t){ 1000, 50 }, (rg_ring_t){ 1101, 90 }));
    cr_assert(!rg_order_pays((rg_ring_t){ 1000, 50 }, (rg_ring_t){ 1100, 50 }));
    cr_assert(rg_order_pays((rg_ring_t){ 1000, 50 }, (rg_ring_t){ 1000, 39 }));
    cr_assert(!rg_order_pays((rg_ring_t){ 1000, 50 }, (rg_ring_t){ 1000, 41 }));
    cr_assert(!rg_order_pays((rg_ring_t){ 1000, 50 }, (rg_ring_t){ 800, 10 }));
    cr_assert(rg_order_pays((rg_ring_t){ 0, 0 }, (rg_ring_t){ 5, 0 }));
}

/* ---- Shares ----------------------------------------------------------------------------------------------------- */

/* The longest of (1 + (n - 2) s) / rate. */
static double longest(const uint32_t *r, uint32_t n, const double *share) {
    double most = 0;
    for (uint32_t i = 0; i < n; i++) {
        double t = (1 + ((double)n - 2) * share[i]) / r[i];
        if (t > most) most = t;
    }
    return most;
}

/* The least time for which the shares that every member can bear add up to one: the linear program, by halving. */
static double least_time(const uint32_t *r, uint32_t n) {
    double low = 0, high = 1;
    for (int k = 0; k < 200; k++) {
        double t = (low + high) / 2, sum = 0;
        int fits = 1;
        for (uint32_t i = 0; i < n; i++) {
            double s = n > 2 ? (r[i] * t - 1) / (n - 2) : 1;
            fits = fits && r[i] * t >= 1;
            sum += s > 1 ? 1 : s;
        }
        if (fits && sum >= 1) high = t;
        else low = t;
    }
    return high;
}

static void shares_of(const uint32_t *r, uint32_t n, double *share) {
    uint64_t w[MOST], sum = rg_share_weights(r, n, w), all = 0;
    for (uint32_t i = 0; i < n; i++) {
        all += w[i];
        share[i] = (double)w[i] / (double)sum;
    }
    cr_assert(sum > 0 && all == sum);
}

Test(order, shares__uneven_members__as_quick_as_the_linear_program_allows) {
    double share[MOST];
    const uint32_t one_slow[] = { 100, 100, 100, 25 }, one_less[] = { 100, 100, 100, 60 }, even[] = { 9, 9, 9 };
    shares_of(one_slow, 4, share);
    cr_assert(share[3] == 0 && share[0] == share[1]);
    cr_assert_float_eq(longest(one_slow, 4, share), 0.04, 1e-12); /* 0.06 with even shares */
    shares_of(one_less, 4, share);
    cr_assert_float_eq(longest(one_less, 4, share), 6.0 / 360, 1e-12);
    shares_of(even, 3, share);
    cr_assert_float_eq(share[1], 1.0 / 3, 1e-12);
    for (int k = 0; k < 300; k++) {
        uint32_t n = 3 + dice(20), r[MOST];
        for (uint32_t i = 0; i < n; i++) r[i] = 1 + dice(k % 2 ? 100000 : 10) + (k % 5 ? 0 : 50000);
        shares_of(r, n, share);
        double is = longest(r, n, share), best = least_time(r, n);
        cr_assert(is <= best * 1.000001, "%u members: %g, the program says %g", n, is, best);
        cr_assert_float_eq(rg_share_seconds(r, n, 1024), is, is * 1e-9);
    }
}

Test(order, parts__of_any_span__cover_it_once_and_are_near_their_shares) {
    for (int k = 0; k < 400; k++) {
        uint32_t n = 1 + dice(12), r[MOST];
        double share[MOST];
        rg_span_t whole = rg_span(RG_BUF_IN, dice(50), dice(k % 2 ? 40 : 9000000));
        for (uint32_t i = 0; i < n; i++) r[i] = dice(4) ? 1000 * (1 + dice(40)) : 1 + dice(UINT32_MAX - 1);
        shares_of(r, n, share);
        uint64_t at = whole.off;
        for (uint32_t i = 0; i < n; i++) {
            rg_span_t p = rg_share_part(whole, r, n, i);
            cr_assert(p.off == at && p.buf == whole.buf);
            cr_assert_float_eq((double)p.len, share[i] * (double)whole.len, 200 + (double)whole.len / 30000);
            at += p.len;
        }
        cr_assert_eq(at, whole.off + whole.len);
    }
    rg_span_t whole = rg_span(RG_BUF_IN, 0, 1000);
    for (uint32_t i = 0; i < 7; i++) {
        rg_span_t a = rg_share_part(whole, NULL, 7, i), b = rg_span_part(whole, 7, i);
        cr_assert(a.off == b.off && a.len == b.len);
    }
}

/* ---- In schedules ------------------------------------------------------------------------------------------------ */

static const rg_algorithm_t *named(rg_kind_t kind, const char *name) {
    for (const rg_algorithm_t *const *a = rg_algorithms; *a; a++)
        if ((*a)->kind == kind && strcmp((*a)->name, name) == 0) return *a;
    return NULL;
}

Test(order, schedules__of_rings__send_to_the_next_in_the_order_only) {
    static const uint32_t ring[] = { 0, 3, 1, 4, 2 };
    static const rg_kind_t kinds[] = { RG_KIND_ALL_REDUCE, RG_KIND_ALL_GATHER, RG_KIND_REDUCE_SCATTER };
    rg_topology_t topo = { .ring = ring };
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t i = 0; i < 5; i++) {
            rg_coll_desc_t d = { .kind = kinds[k],
                                 .size = 5,
                                 .rank = ring[i],
                                 .count = 1000,
                                 .elem_size = 4,
                                 .acc_size = 4,
                                 .chunk = 50,
                                 .topo = &topo };
            rg_schedule_t *s = NULL;
            cr_assert_eq(rg_sched_build(named(kinds[k], "ring"), &d, &s), RG_OK);
            cr_assert_eq(s->desc.rank, ring[i]);
            for (uint32_t m = 0; m < s->n_steps; m++)
                if (s->steps[m].kind == RG_STEP_SEND) cr_assert_eq(s->steps[m].peer, ring[(i + 1) % 5]);
            rg_sched_free(s);
        }
}

/* Bytes that one member sends of an all-reduce of 4 members of which the last is slow. */
static uint64_t sent_by(uint32_t rank, const rg_topology_t *topo) {
    rg_coll_desc_t d = { .kind = RG_KIND_ALL_REDUCE,
                         .size = 4,
                         .rank = rank,
                         .count = 1 << 20,
                         .elem_size = 4,
                         .acc_size = 4,
                         .chunk = 1 << 14,
                         .topo = topo };
    rg_schedule_t *s = NULL;
    uint64_t sum = 0;
    cr_assert_eq(rg_sched_build(named(RG_KIND_ALL_REDUCE, "direct2"), &d, &s), RG_OK);
    for (uint32_t m = 0; m < s->n_steps; m++)
        if (s->steps[m].kind == RG_STEP_SEND) sum += s->steps[m].a.len * 4;
    rg_sched_free(s);
    return sum;
}

Test(order, schedules__of_direct_exchange__send_what_the_shares_say) {
    static const uint32_t slow[] = { 12800, 12800, 12800, 3200 };
    rg_topology_t topo = { .rate = slow };
    uint64_t data = 4 << 20;
    cr_assert_eq(sent_by(3, &topo), data); /* what it has to say, and no more */
    cr_assert_float_eq((double)sent_by(0, &topo), (double)data * 5 / 3, 1000);
    cr_assert_eq(sent_by(3, NULL), data / 2 * 3);
}
