/* test_tuning.c: tuning files: what is read, what is refused and with which words, which entry is found, and that the
 * choice goes by the caller's word first, then by the file, then by cost. */
#include "sched/sched.h"

#include <criterion/criterion.h>
#include <string.h>

static rg_tuning_t *parsed(const char *text) {
    char err[256];
    rg_tuning_t *t = NULL;
    cr_assert_eq(rg_tuning_parse(text, strlen(text), &t, err, sizeof err), RG_OK, "%s", err);
    cr_assert_eq(err[0], 0);
    return t;
}

static rg_coll_desc_t desc(rg_kind_t kind, uint32_t size, uint64_t count) {
    return (rg_coll_desc_t){ .kind = kind, .size = size, .count = count, .elem_size = 4, .acc_size = 4, .chunk = 1 };
}

static const char *found(const rg_tuning_t *t, rg_kind_t kind, uint32_t size, uint64_t bytes) {
    rg_coll_desc_t d = desc(kind, size, bytes / 4);
    const rg_tuning_entry_t *e = rg_tuning_find(t, &d);
    return e == NULL ? "none" : e->alg->name;
}

static const char table[] = "# measured\n"
                            "\n"
                            "all_reduce size=4 hosts=1 bytes<=64K algorithm=direct2 chunk=131072  # a remark\r\n"
                            "all_reduce size=4 bytes<=1024 algorithm=direct\n"
                            "  all_reduce\tsize=4 algorithm=ring\n"
                            "all_reduce size=16 algorithm=rhd\n"
                            "broadcast algorithm=tree bytes<=4096";

Test(tuning, parse__good_lines__all_fields) {
    const rg_tuning_entry_t *v;
    rg_tuning_t *t = parsed(table);
    cr_assert_eq(rg_tuning_entries(t, &v), 5);
    cr_expect(v[0].kind == RG_KIND_ALL_REDUCE && v[0].size == 4 && v[0].hosts == 1 && v[0].bytes == 65536 &&
              v[0].chunk_bytes == 131072);
    cr_expect_str_eq(v[0].alg->name, "direct2");
    cr_expect(v[2].hosts == 0 && v[2].bytes == UINT64_MAX && v[2].chunk_bytes == 0);
    cr_expect(v[4].kind == RG_KIND_BROADCAST && v[4].size == 0 && v[4].bytes == 4096);
    rg_tuning_free(t);
    rg_tuning_free(NULL);
    t = parsed("");
    cr_expect_eq(rg_tuning_entries(t, &v), 0);
    cr_expect_eq(rg_tuning_entries(NULL, &v), 0);
    rg_tuning_free(t);
}

Test(tuning, parse__bad_lines__line_and_reason) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        { "\nall_reduse size=4 algorithm=ring", "line 2: 'all_reduse' is no collective" },
        { "all_reduce size=4", "line 1: algorithm=NAME is missing" },
        { "all_reduce algorithm=circle", "line 1: all_reduce has no algorithm 'circle'" },
        { "barrier algorithm=ring", "barrier has no algorithm 'ring'" },
        { "all_reduce size=four algorithm=ring", "'size=four' expects a number of 1 or more" },
        { "all_reduce size=0 algorithm=ring", "'size=0' expects" },
        { "all_reduce size=4294967296 algorithm=ring", "expects" },
        { "all_reduce bytes<=99999999999999999999 algorithm=ring", "'bytes<=99999999999999999999' expects" },
        { "all_reduce bytes<=18446744073709551615K algorithm=ring", "expects" },
        { "all_reduce chunk= algorithm=ring", "'chunk=' expects" },
        { "all_reduce bytes<=K algorithm=ring", "expects" },
        { "all_reduce colour=red algorithm=ring", "'colour=red' is not known; expected size=N" },
        { "all_reduce algorithm=ring\n# fine\nall_reduce algorithm=\n", "line 3: 'algorithm=' is not known" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char err[256];
        rg_tuning_t *t = (rg_tuning_t *)&t;
        cr_assert_eq(rg_tuning_parse(cases[i].text, strlen(cases[i].text), &t, err, sizeof err), RG_ERR_INVALID, "%zu",
                     i);
        cr_expect_null(t);
        cr_expect(strstr(err, cases[i].part) != NULL, "%zu: %s", i, err);
    }
}

/* Whatever the bytes are, and wherever they end. */
Test(tuning, parse__any_bytes__a_status_and_no_more) {
    char text[sizeof table], err[64];
    uint32_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        memcpy(text, table, sizeof table);
        for (int k = 0; k < 1 + round % 4; k++) {
            seed = seed * 1664525u + 1013904223u;
            text[(seed >> 8) % (sizeof table - 1)] = (char)(seed >> 24);
        }
        rg_tuning_t *t;
        size_t len = (seed >> 4) % sizeof table;
        rg_status_t st = rg_tuning_parse(text, len, &t, err, round % 2 ? sizeof err : round % sizeof err);
        cr_assert(st == RG_OK || st == RG_ERR_INVALID);
        cr_assert_eq(st == RG_OK, t != NULL);
        rg_tuning_free(t);
    }
}

Test(tuning, line__written__reads_the_same) {
    const rg_tuning_entry_t *v, *w;
    rg_tuning_t *t = parsed(table);
    uint32_t n = rg_tuning_entries(t, &v);
    for (uint32_t i = 0; i < n; i++) {
        char line[160];
        cr_assert_eq(rg_tuning_line(&v[i], line, sizeof line), strlen(line));
        rg_tuning_t *again = parsed(line);
        cr_assert_eq(rg_tuning_entries(again, &w), 1);
        cr_expect(w->kind == v[i].kind && w->size == v[i].size && w->hosts == v[i].hosts && w->bytes == v[i].bytes &&
                      w->chunk_bytes == v[i].chunk_bytes && w->alg == v[i].alg,
                  "%s", line);
        rg_tuning_free(again);
    }
    rg_tuning_free(t);
}

Test(tuning, find__several_fit__nearest_and_narrowest) {
    rg_tuning_t *t = parsed(table);
    cr_expect_str_eq(found(t, RG_KIND_ALL_REDUCE, 4, 1024), "direct2", "an entry that names the hosts goes first");
    cr_expect_str_eq(found(t, RG_KIND_ALL_REDUCE, 4, 65536), "direct2");
    cr_expect_str_eq(found(t, RG_KIND_ALL_REDUCE, 4, 65540), "ring");
    cr_expect_str_eq(found(t, RG_KIND_ALL_REDUCE, 6, 1 << 20), "ring");
    cr_expect_str_eq(found(t, RG_KIND_ALL_REDUCE, 10, 1 << 20), "rhd");
    cr_expect_str_eq(found(t, RG_KIND_ALL_REDUCE, 33, 1 << 20), "none", "too far away");
    cr_expect_str_eq(found(t, RG_KIND_ALL_REDUCE, 1, 64), "none");
    cr_expect_str_eq(found(t, RG_KIND_BROADCAST, 900, 4096), "tree", "an entry for any size");
    cr_expect_str_eq(found(t, RG_KIND_BROADCAST, 900, 4100), "none");
    cr_expect_str_eq(found(t, RG_KIND_ALL_GATHER, 4, 64), "none");
    cr_expect_str_eq(found(NULL, RG_KIND_ALL_REDUCE, 4, 64), "none");
    rg_tuning_free(t);
}

Test(tuning, find__hosts_known__only_those) {
    static const uint32_t groups[4] = { 7, 7, 3, 3 };
    rg_topology_t topo = { .levels = 1, .group = groups };
    rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, 4, 256);
    rg_tuning_t *t = parsed(table);
    d.topo = &topo;
    cr_expect_str_eq(rg_tuning_find(t, &d)->alg->name, "direct", "two hosts: not what was measured on one");
    rg_tuning_free(t);
}

Test(tuning, find__does_not_apply__not_taken) {
    rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, 4, 1 << 20);
    rg_tuning_t *t = parsed(table);
    d.rank_order = 1;
    cr_expect_null(rg_tuning_find(t, &d));
    rg_tuning_free(t);
}

/* Segments differ by rank in an exchange, and all must choose alike. */
Test(tuning, find__exchange_with_lengths__the_same_for_all) {
    rg_net_summary_t net = rg_net_plain(3, 4, 1);
    rg_cost_model_t m;
    rg_tuning_t *t = parsed("all_to_all bytes<=1000000 algorithm=pairwise\n");
    rg_cost_model(&m, &net);
    for (uint32_t r = 0; r < 3; r++) {
        uint64_t lens[3] = { r * 1000000, 1, r }, offs[3] = { 5, 3, 9999999 };
        rg_coll_desc_t d = desc(RG_KIND_ALL_TO_ALL, 3, lens[0] + lens[1] + lens[2]);
        rg_choice_t how = { NULL, t, 0 };
        char text[256];
        d.rank = r;
        d.lens = d.in_lens = lens;
        d.offs = d.in_offs = r == 1 ? NULL : offs;
        const rg_algorithm_t *a = rg_sched_choose(&d, &m, &how, NULL, text, sizeof text);
        cr_assert_not_null(a);
        cr_expect_str_eq(a->name, "pairwise", "rank %u", r);
    }
    rg_tuning_free(t);
}

Test(tuning, choose__word_then_file_then_cost) {
    rg_net_summary_t net = rg_net_plain(4, 4, 1);
    rg_cost_model_t m;
    rg_cost_model(&m, &net);
    rg_tuning_t *t = parsed("all_reduce size=4 bytes<=4K algorithm=rhd chunk=4096\n");
    char text[256];
    rg_chosen_t why;
    rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, 4, 64);
    rg_choice_t how = { "all_reduce=tree", t, 0 };
    cr_expect_str_eq(rg_sched_choose(&d, &m, &how, &why, text, sizeof text)->name, "tree");
    cr_expect_eq(why, RG_CHOSEN_FORCED);
    how.forced = "broadcast=tree";
    cr_expect_str_eq(rg_sched_choose(&d, &m, &how, &why, text, sizeof text)->name, "rhd");
    cr_expect_eq(why, RG_CHOSEN_TUNING);
    cr_expect_eq(d.chunk, 1024);
    how.chunk_bytes = 64;
    cr_assert_not_null(rg_sched_choose(&d, &m, &how, &why, text, sizeof text));
    cr_expect_eq(d.chunk, 16, "the caller's piece goes before the file's");
    d.count = 1025;
    cr_assert_not_null(rg_sched_choose(&d, &m, &how, &why, text, sizeof text));
    cr_expect_eq(why, RG_CHOSEN_COST);
    how.forced = "circle";
    cr_expect_null(rg_sched_choose(&d, &m, &how, &why, text, sizeof text));
    cr_expect_eq(why, RG_CHOSEN_NONE);
    rg_tuning_free(t);
}

/* The prediction of the one that is chosen is the least. */
Test(tuning, explain__every_kind__agrees_with_the_choice) {
    static const uint32_t groups[8] = { 0, 0, 0, 0, 1, 1, 1, 1 };
    static const rg_topology_t topo = { .levels = 1, .group = groups };
    for (int kind = 0; kind < RG_KIND_COUNT; kind++)
        for (int hosts = 1; hosts < 3; hosts++) {
            rg_net_summary_t net = rg_net_plain(8, 4, hosts == 1);
            rg_coll_desc_t d = desc((rg_kind_t)kind, kind == RG_KIND_P2P ? 2 : 8, 5000);
            rg_choice_t how = { NULL, NULL, 0 };
            rg_prediction_t all[32];
            rg_cost_model_t m;
            rg_chosen_t why;
            char text[256];
            rg_cost_model(&m, &net);
            if (hosts == 2 && kind != RG_KIND_P2P) d.topo = &topo;
            size_t n = rg_sched_explain(&d, &m, &how, all, 32);
            cr_assert(n > 0 && n <= 32);
            cr_assert_eq(rg_sched_explain(&d, &m, &how, NULL, 0), n);
            const rg_algorithm_t *a = rg_sched_choose(&d, &m, &how, &why, text, sizeof text);
            cr_assert_not_null(a, "%s", rg_kind_name((rg_kind_t)kind));
            cr_assert_eq(why, RG_CHOSEN_COST);
            double mine = -1;
            for (size_t i = 0; i < n; i++)
                if (all[i].alg == a) mine = all[i].seconds;
            /* Never chosen by cost: a barrier through one rank, and broadcasts that are for results of the other rule.
             */
            for (size_t i = 0; i < n; i++)
                cr_expect(!all[i].applies ||
                              (kind == RG_KIND_BROADCAST && (uint32_t)all[i].alg->hears_all == d.rule_l) ||
                              (kind == RG_KIND_BARRIER && strcmp(all[i].alg->name, "star") == 0) ||
                              (all[i].seconds >= mine && all[i].seconds > 0 && all[i].chunk > 0),
                          "%s_%s", rg_kind_name((rg_kind_t)kind), all[i].alg->name);
        }
}
