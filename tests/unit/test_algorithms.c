/* test_algorithms.c: what algorithms are chosen for, beyond right results, which tests/verify.c proves: how many
 * messages and bytes a rank sends, how many hops one follows from another, how much scratch is used; and where the
 * choice changes from one to the next. Counted in the schedules of all ranks. */
#include "algorithms/double_tree.h"
#include "sched/sched.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 64u

typedef struct counts {
    uint64_t messages, elems, between; /* sent in all; elements sent in all; messages between groups of four */
    uint64_t most_messages, most_elems, most_tmp, most_steps; /* of one rank */
} counts_t;

static const rg_algorithm_t *find(rg_kind_t kind, const char *name) {
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++)
        if ((*a)->kind == kind && strcmp((*a)->name, name) == 0) return *a;
    return NULL;
}

static rg_coll_desc_t desc(rg_kind_t kind, uint32_t size, uint64_t count, uint64_t chunk) {
    return (
        rg_coll_desc_t){ .kind = kind, .size = size, .count = count, .elem_size = 4, .acc_size = 4, .chunk = chunk };
}

static counts_t count(const char *name, const rg_coll_desc_t *d) {
    counts_t c = { .messages = 0 };
    const rg_algorithm_t *alg = find(d->kind, name);
    cr_assert_not_null(alg, "%s", name);
    for (uint32_t r = 0; r < d->size; r++) {
        rg_coll_desc_t mine = *d;
        rg_schedule_t *s;
        uint64_t messages = 0, elems = 0;
        mine.rank = r;
        cr_assert_eq(rg_sched_build(alg, &mine, &s), RG_OK, "%s rank %u", name, r);
        for (uint32_t i = 0; i < s->n_steps; i++) {
            if (s->steps[i].kind != RG_STEP_SEND) continue;
            messages++;
            elems += s->steps[i].a.len;
            c.between += s->steps[i].peer / 4 != r / 4;
        }
        c.messages += messages;
        c.elems += elems;
        if (messages > c.most_messages) c.most_messages = messages;
        if (elems > c.most_elems) c.most_elems = elems;
        if (s->tmp_elems > c.most_tmp) c.most_tmp = s->tmp_elems;
        if (s->n_steps > c.most_steps) c.most_steps = s->n_steps;
        rg_sched_free(s);
    }
    return c;
}

/* ---- Two trees -------------------------------------------------------------------------------------------------- */

static uint32_t depth_of(uint32_t t, uint32_t m, uint32_t i) {
    uint32_t depth = 0;
    for (dtree_node_t x = dtree_node(t, m, i); x.parent != DTREE_NONE && depth <= m; depth++)
        x = dtree_node(t, m, x.parent);
    return depth;
}

Test(algorithms, double_tree__any_size__parents_and_children_agree_and_depth_is_logarithmic) {
    for (uint32_t m = 1; m < 300; m++)
        for (uint32_t t = 0; t < 2; t++) {
            uint32_t roots = 0, children = 0;
            for (uint32_t i = 0; i < m; i++) {
                dtree_node_t x = dtree_node(t, m, i);
                roots += x.parent == DTREE_NONE;
                children += x.n_children;
                for (uint32_t k = 0; k < x.n_children; k++)
                    cr_assert_eq(dtree_node(t, m, x.child[k]).parent, i, "tree %u of %u: %u", t, m, i);
                cr_assert_leq(depth_of(t, m, i), dtree_depth(m), "tree %u of %u: %u", t, m, i);
            }
            cr_assert_eq(roots, 1);
            cr_assert_eq(children, m - 1);
            cr_assert_eq(dtree_node(t, m, dtree_root(t, m)).parent, DTREE_NONE);
        }
}

Test(algorithms, double_tree__inner_in_one__leaf_in_the_other) {
    for (uint32_t m = 2; m < 300; m++) {
        uint32_t both = 0, load = 0;
        for (uint32_t i = 0; i < m; i++) {
            dtree_node_t x = dtree_node(0, m, i), y = dtree_node(1, m, i);
            both += x.n_children != 0 && y.n_children != 0;
            load = x.n_children + y.n_children > load ? x.n_children + y.n_children : load;
        }
        cr_assert_leq(both, m % 2, "of %u", m);
        cr_assert_leq(load, 2, "of %u", m);
    }
}

/* ---- What schedules cost ---------------------------------------------------------------------------------------- */

Test(algorithms, all_reduce_double_tree__large__twice_the_data_from_everybody) {
    rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, RANKS, 1 << 20, 8192);
    counts_t c = count("double_tree", &d);
    cr_assert_leq(c.most_elems, 2 * d.count + 4 * 64);
    cr_assert_leq(c.most_tmp, 2 * 12 * 8192, "a window of pieces, not the data");
}

Test(algorithms, star__any__fewest_messages) {
    rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, RANKS, 100, 1000);
    cr_expect_eq(count("star", &d).messages, 2 * (RANKS - 1));
    d.kind = RG_KIND_ALL_GATHER;
    cr_expect_eq(count("star", &d).messages, 2 * (RANKS - 1));
}

/* Everybody hears from all, and the data reach each rank once. */
Test(algorithms, broadcast_dissemination__any__data_once_and_no_barrier) {
    rg_coll_desc_t d = desc(RG_KIND_BROADCAST, RANKS, 10, 1000);
    for (d.size = 2; d.size <= RANKS; d.size++)
        for (d.root = 0; d.root < d.size; d.root += 1 + d.size / 3) {
            counts_t c = count("dissemination", &d);
            cr_expect_eq(c.elems, (d.size - 1) * d.count);
            cr_assert_leq(c.most_messages, d.size <= 8 ? d.size - 1 : 14);
        }
}

Test(algorithms, logarithmic__small__few_messages_and_every_segment_once) {
    rg_coll_desc_t d = desc(RG_KIND_ALL_GATHER, RANKS, 10, 1000);
    for (d.size = RANKS - 3; d.size <= RANKS; d.size++) {
        d.kind = RG_KIND_ALL_GATHER;
        counts_t c = count("bruck", &d);
        cr_assert_leq(c.most_messages, 12);
        cr_expect_eq(c.most_elems, (d.size - 1) * d.count);
        c = count("pat", &d);
        cr_assert_leq(c.most_messages, 12);
        cr_expect_eq(c.most_elems, (d.size - 1) * d.count);
        d.kind = RG_KIND_REDUCE_SCATTER;
        c = count("rhd", &d);
        cr_assert_leq(c.most_messages, 7);
        cr_expect_eq(c.most_elems, (d.size - 1) * d.count);
        cr_assert_leq(c.most_tmp, (d.size / 2 + 1) * d.count);
        d.kind = RG_KIND_ALL_TO_ALL;
        cr_expect_eq(count("bruck", &d).most_messages, 6);
    }
}

Test(algorithms, reduce_scatter_pat__large__least_bytes_with_scratch_by_depth) {
    rg_coll_desc_t d = desc(RG_KIND_REDUCE_SCATTER, RANKS, 100000, 4096);
    counts_t c = count("pat", &d);
    cr_expect_eq(c.most_elems, (RANKS - 1) * d.count);
    cr_assert_leq(c.most_tmp, 4 * 6 * 4096);
}

Test(algorithms, broadcast_scatter_all_gather__any__nobody_gets_anything_twice) {
    rg_coll_desc_t d = desc(RG_KIND_BROADCAST, RANKS - 1, 63000, 1000);
    cr_expect_eq(count("scatter_all_gather", &d).elems, (RANKS - 2) * d.count);
}

Test(algorithms, all_to_all_hier__hosts_of_four__about_one_message_from_each_between_hosts) {
    static uint32_t group[RANKS];
    rg_topology_t topo = { .levels = 1, .group = group };
    for (uint32_t r = 0; r < RANKS; r++) group[r] = r / 4;
    rg_coll_desc_t d = desc(RG_KIND_ALL_TO_ALL, RANKS, 10, 1000);
    d.topo = &topo;
    counts_t c = count("hier", &d), direct = count("direct", &d);
    cr_expect_eq(c.between, 16 * 15);
    cr_expect_eq(direct.between, RANKS * (RANKS - 4));
    /* Two hosts: every member speaks, so that none of them has all the work. */
    for (uint32_t r = 0; r < 8; r++) group[r] = r / 4;
    d.size = 8;
    c = count("hier", &d);
    cr_expect_eq(c.between, 8);
    cr_assert_leq(c.most_tmp, 5 * 8 * d.count);
}

Test(algorithms, trees__thousand_ranks__logarithmic_schedules) {
    static const struct {
        rg_kind_t kind;
        const char *name;
        uint64_t steps;
    } cases[] = {
        { RG_KIND_ALL_REDUCE, "double_tree", 8 },
        { RG_KIND_BROADCAST, "double_tree", 6 + 46 }, /* and its barrier */
        { RG_KIND_REDUCE, "double_tree", 6 },
        { RG_KIND_REDUCE, "tree", 10 },
        { RG_KIND_GATHER, "tree", 12 },
        { RG_KIND_SCATTER, "tree", 12 },
        { RG_KIND_BROADCAST, "dissemination", 46 },
        { RG_KIND_ALL_GATHER, "bruck", 40 },
        { RG_KIND_REDUCE_SCATTER, "rhd", 24 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rg_coll_desc_t d = desc(cases[i].kind, 1000, 64, 100000);
        cr_assert_leq(count(cases[i].name, &d).most_steps, cases[i].steps, "%s_%s", rg_kind_name(cases[i].kind),
                      cases[i].name);
    }
}

/* ---- Where the choice changes ----------------------------------------------------------------------------------- */

static const char *chosen(rg_kind_t kind, uint32_t size, uint64_t bytes) {
    rg_net_summary_t net = rg_net_plain(size, 64, 0);
    rg_cost_model_t m;
    rg_coll_desc_t d = desc(kind, size, bytes / 4 / (rg_kind_segmented(kind) ? size : 1) + 1, 1);
    d.rule_l = kind == RG_KIND_BROADCAST && bytes > RG_SPOKEN_MAX; /* where it makes a difference */
    rg_cost_model(&m, &net);
    const rg_algorithm_t *a = rg_sched_select(&d, &m, NULL, 0, NULL, 0);
    return a == NULL ? "none" : a->name;
}

Test(algorithms, choice__many_hosts__logarithmic_when_small_and_least_bytes_when_large) {
    cr_expect_str_eq(chosen(RG_KIND_ALL_GATHER, 128, 4096), "bruck");
    cr_expect_str_eq(chosen(RG_KIND_ALL_GATHER, 128, 1 << 30), "ring");
    cr_expect_str_eq(chosen(RG_KIND_REDUCE_SCATTER, 128, 4096), "rhd");
    cr_expect_str_eq(chosen(RG_KIND_REDUCE_SCATTER, 128, 1 << 25), "pat");
    cr_expect_str_eq(chosen(RG_KIND_BROADCAST, 128, 64), "dissemination");
    cr_expect_str_eq(chosen(RG_KIND_BROADCAST, 128, 1 << 23), "double_tree");
    cr_expect_str_eq(chosen(RG_KIND_REDUCE, 128, 1 << 23), "double_tree");
    cr_expect_str_eq(chosen(RG_KIND_GATHER, 128, 4096), "tree");
    cr_expect_str_eq(chosen(RG_KIND_SCATTER, 128, 1 << 28), "direct");
    cr_expect_str_eq(chosen(RG_KIND_ALL_TO_ALL, 128, 4096), "bruck");
    cr_expect_str_eq(chosen(RG_KIND_ALL_TO_ALL, 128, 1 << 28), "pairwise");
}

Test(algorithms, choice__few_hosts__one_hop) {
    static const rg_kind_t kinds[] = { RG_KIND_ALL_REDUCE, RG_KIND_ALL_GATHER, RG_KIND_REDUCE_SCATTER, RG_KIND_REDUCE,
                                       RG_KIND_GATHER,     RG_KIND_SCATTER,    RG_KIND_ALL_TO_ALL };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        cr_expect_str_eq(chosen(kinds[i], 4, 64), "direct", "%s", rg_kind_name(kinds[i]));
    cr_expect_str_eq(chosen(RG_KIND_BROADCAST, 4, 64), "dissemination");
}
