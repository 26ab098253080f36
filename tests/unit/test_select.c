/* test_select.c: the choice of an algorithm: by cost, by the caller's list, and the texts for lists that are wrong. */
#include "sched/sched.h"

#include <criterion/criterion.h>
#include <string.h>

static rg_coll_desc_t desc(rg_kind_t kind, uint32_t size, uint64_t bytes) {
    return (rg_coll_desc_t){ .kind = kind, .size = size, .count = bytes / 4, .elem_size = 4, .acc_size = 4 };
}

static const char *chosen(rg_kind_t kind, uint32_t size, uint64_t bytes, uint32_t cores, int one_host,
                          const char *forced, uint32_t rank_order) {
    static char text[1024];
    rg_cost_model_t m;
    rg_coll_desc_t d = desc(kind, size, bytes);
    d.rank_order = rank_order;
    d.rule_l = kind == RG_KIND_BROADCAST && bytes > RG_SPOKEN_MAX; /* where it makes a difference */
    rg_net_summary_t net = rg_net_plain(size, cores, one_host);
    rg_cost_model(&m, &net);
    const rg_algorithm_t *a = rg_sched_select(&d, &m, forced, 0, text, sizeof text);
    if (a == NULL) return text;
    cr_assert_gt(d.chunk, 0);
    cr_assert_eq(text[0], 0);
    return a->name;
}

Test(select, cost__two_members_small__one_shot) {
    cr_expect_str_eq(chosen(RG_KIND_ALL_REDUCE, 2, 4, 2, 1, NULL, 0), "direct");
    cr_expect_str_eq(chosen(RG_KIND_ALL_REDUCE, 2, 4096, 2, 1, NULL, 0), "direct");
    cr_expect_str_eq(chosen(RG_KIND_ALL_REDUCE, 4, 4096, 4, 1, NULL, 0), "direct");
}

/* Where the members share cores the sum of all messages counts, and a tree or a star has the fewest. */
Test(select, cost__members_share_cores_small__few_messages) {
    cr_expect_str_eq(chosen(RG_KIND_ALL_REDUCE, 4, 4096, 2, 1, NULL, 0), "star");
    cr_expect(strcmp(chosen(RG_KIND_ALL_REDUCE, 4, 65536, 2, 1, NULL, 0), "direct") != 0);
}

/* Through shared memory it is the hops that cost: a message finds its receiver on the core or not. */
Test(select, cost__members_share_cores_and_memory_small__one_hop) {
    static const rg_kind_t kinds[] = { RG_KIND_ALL_REDUCE, RG_KIND_ALL_GATHER, RG_KIND_REDUCE_SCATTER,
                                       RG_KIND_ALL_TO_ALL, RG_KIND_BROADCAST };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        rg_coll_desc_t d = desc(kinds[i], 4, 1024);
        rg_net_summary_t net = rg_net_plain(4, 2, 1);
        rg_cost_model_t m;
        net.shm = 1;
        rg_cost_model(&m, &net);
        const rg_algorithm_t *a = rg_sched_select(&d, &m, NULL, 0, NULL, 0);
        cr_assert_not_null(a);
        cr_expect_str_eq(a->name, kinds[i] == RG_KIND_BROADCAST ? "dissemination" : "direct", "%s",
                         rg_kind_name(kinds[i]));
    }
}

Test(select, cost__few_members_large__least_bytes) {
    for (uint64_t bytes = 1 << 20; bytes <= 256 << 20; bytes <<= 2)
        for (uint32_t n = 2; n <= 4; n++) {
            const char *name = chosen(RG_KIND_ALL_REDUCE, n, bytes, 2, 1, NULL, 0);
            cr_expect(strcmp(name, "direct2") == 0 || strcmp(name, "ring") == 0 || (strcmp(name, "rhd") == 0 && n != 3),
                      "%u %s", n, name);
        }
}

Test(select, cost__many_hosts_small__few_messages) {
    const char *name = chosen(RG_KIND_ALL_REDUCE, 512, 256, 8, 0, NULL, 0);
    cr_expect(strcmp(name, "tree") == 0 || strcmp(name, "rhd") == 0, "%s", name);
    cr_expect_str_eq(chosen(RG_KIND_BROADCAST, 512, 256, 8, 0, NULL, 0), "dissemination");
    cr_expect_str_eq(chosen(RG_KIND_BROADCAST, 512, 8192, 8, 0, NULL, 0), "tree");
}

Test(select, cost__chain_for_large_broadcast_between_hosts) {
    cr_expect_str_eq(chosen(RG_KIND_BROADCAST, 8, 256 << 20, 8, 0, NULL, 0), "ring");
}

Test(select, cost__rank_order__only_algorithms_that_keep_it) {
    for (uint32_t n = 3; n < 70; n += 11)
        for (uint64_t bytes = 4; bytes <= 64 << 20; bytes *= 16) {
            const char *name = chosen(RG_KIND_ALL_REDUCE, n, bytes, 4, 1, NULL, 1);
            cr_expect(strncmp(name, "direct", 6) == 0 || strcmp(name, "star") == 0, "%s", name);
        }
}

Test(select, chunk__given__used_as_it_is) {
    rg_cost_model_t m;
    char text[256];
    rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, 2, 1 << 20);
    rg_net_summary_t net = rg_net_plain(2, 2, 1);
    rg_cost_model(&m, &net);
    cr_assert_not_null(rg_sched_select(&d, &m, NULL, 4096, text, sizeof text));
    cr_expect_eq(d.chunk, 1024);
    cr_assert_not_null(rg_sched_select(&d, &m, NULL, 1, text, sizeof text));
    cr_expect_eq(d.chunk, 1, "never 0");
}

/* 100 Mbit/s and 75 ms one way hold 0.94 MB; and a slice of 16 MiB is no more than 8 pieces. */
Test(select, chunk__ring_over_long_ways__holds_what_they_hold) {
    rg_net_summary_t net = rg_net_plain(4, 2, 0);
    char text[256];
    const struct {
        double latency;
        uint64_t bytes, chunk;
    } cases[] = { { 0.075, 64 << 20, 1875000 },
                  { 0.075, 16 << 20, 512 << 10 },
                  { 25e-6, 64 << 20, 256 << 10 },
                  { 0.9, 640 << 20, 2 << 20 },
                  { 0.075, 64 << 10, 64 << 10 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rg_cost_model_t m;
        rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, 4, cases[i].bytes);
        net.link[1].latency = cases[i].latency;
        net.link[1].bandwidth = 12.5e6;
        rg_cost_model(&m, &net);
        cr_assert_not_null(rg_sched_select(&d, &m, "ring", 0, text, sizeof text));
        cr_expect_eq(d.chunk * 4, cases[i].chunk, "case %zu: %llu", i, (unsigned long long)d.chunk * 4);
    }
}

/* The barrier, and the one at the end of large operations: few messages where each costs a switch, else one hop. */
Test(select, barrier__members_share_cores_or_not__star_or_dissemination) {
    static const struct {
        uint32_t size, cores, shm, hub;
    } cases[] = { { 2, 2, 0, 0 }, { 4, 4, 0, 0 }, { 4, 2, 0, 1 }, { 8, 2, 0, 1 }, { 4, 2, 1, 0 }, { 64, 16, 0, 0 } };
    char text[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rg_cost_model_t m;
        rg_coll_desc_t d = desc(RG_KIND_ALL_TO_ALL, cases[i].size, 16384);
        rg_net_summary_t net = rg_net_plain(cases[i].size, cases[i].cores, 1);
        net.shm = (int)cases[i].shm;
        rg_cost_model(&m, &net);
        cr_assert_not_null(rg_sched_select(&d, &m, NULL, 0, text, sizeof text));
        cr_expect_eq(d.hub, cases[i].hub, "case %zu", i);
    }
    /* Where somebody who called something else would hear from nobody, all speak to all. */
    static const rg_kind_t spoken[] = { RG_KIND_REDUCE, RG_KIND_GATHER };
    rg_net_summary_t net = rg_net_plain(4, 2, 1);
    rg_cost_model_t m;
    net.shm = 0;
    rg_cost_model(&m, &net);
    for (size_t i = 0; i < 2; i++) {
        rg_coll_desc_t d = desc(spoken[i], 4, 16384);
        cr_assert_not_null(rg_sched_select(&d, &m, NULL, 0, text, sizeof text));
        cr_expect_eq(d.hub, 0, "%s", rg_kind_name(spoken[i]));
    }
    cr_expect_str_eq(chosen(RG_KIND_BARRIER, 4, 0, 2, 1, NULL, 0), "dissemination");
    cr_expect_str_eq(chosen(RG_KIND_BARRIER, 4, 0, 2, 1, "star", 0), "star");
}

Test(select, forced__right_list__obeyed) {
    cr_expect_str_eq(chosen(RG_KIND_ALL_REDUCE, 4, 4, 2, 1, "ring", 0), "ring");
    cr_expect_str_eq(chosen(RG_KIND_BROADCAST, 4, 4, 2, 1, "ring", 0), "ring");
    cr_expect_str_eq(chosen(RG_KIND_BARRIER, 4, 0, 4, 1, "ring", 0), "dissemination");
    cr_expect_str_eq(chosen(RG_KIND_ALL_REDUCE, 4, 4, 2, 1, " all_reduce=rhd , broadcast=direct", 0), "rhd");
    cr_expect_str_eq(chosen(RG_KIND_BROADCAST, 4, 1 << 20, 2, 1, "all_reduce=rhd,broadcast=direct", 0), "direct");
    cr_expect_str_eq(chosen(RG_KIND_ALL_REDUCE, 2, 4, 2, 1, "", 0), "direct");
}

Test(select, forced__wrong_list__null_and_text_with_what_there_is) {
    static const struct {
        const char *list, *part1, *part2;
    } cases[] = {
        { "circle", "there is no 'circle'",
          "all_reduce: direct, direct2, double_tree, hier, rhd, ring, star, tree; broadcast: direct, "
          "dissemination, double_tree, hier, " },
        { "all_reduce=circle", "all_reduce has no 'circle'", "it has direct, direct2, double_tree, hier, rhd, ring" },
        { "broadcast=rhd", "broadcast has no 'rhd'",
          "it has direct, dissemination, double_tree, hier, ring, scatter_all_gather" },
        { "allreduce=ring", "'allreduce' is no operation", "all_reduce=NAME, broadcast=NAME" },
        { "ring,barrier=", "barrier has no ''", "dissemination" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = chosen(RG_KIND_ALL_REDUCE, 4, 64, 2, 1, cases[i].list, 0);
        cr_expect(strstr(text, cases[i].part1) != NULL && strstr(text, cases[i].part2) != NULL, "%s: %s", cases[i].list,
                  text);
    }
}

Test(select, forced__does_not_apply__null_and_text) {
    const char *text = chosen(RG_KIND_ALL_REDUCE, 4, 1ull << 32, 2, 1, "direct", 0);
    cr_expect(
        strstr(text, "all_reduce=direct was asked for, but it cannot do 1073741824 elements of 4 bytes on 4 members") !=
            NULL,
        "%s", text);
    text = chosen(RG_KIND_ALL_REDUCE, 4, 64, 2, 1, "ring", 1);
    cr_expect(strstr(text, "in rank order") != NULL, "%s", text);
}

Test(select, text__too_small__cut_and_terminated) {
    rg_cost_model_t m;
    char text[16];
    rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, 4, 64);
    rg_net_summary_t net = rg_net_plain(4, 2, 1);
    rg_cost_model(&m, &net);
    memset(text, 'x', sizeof text);
    cr_expect_null(rg_sched_select(&d, &m, "circle", 0, text, sizeof text));
    cr_expect_eq(strlen(text), sizeof text - 1);
    cr_expect_null(rg_sched_select(&d, &m, "circle", 0, NULL, 0));
}
