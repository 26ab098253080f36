/* test_schedule.c: the builder, the seal, the printer, and single verdicts of the verifier on schedules made by hand.
 * The proofs of all algorithms are in tests/verify.c. */
#include "sched/sched.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const rg_algorithm_t *find(rg_kind_t kind, const char *name) {
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++)
        if ((*a)->kind == kind && strcmp((*a)->name, name) == 0) return *a;
    return NULL;
}

static rg_coll_desc_t desc(rg_kind_t kind, uint32_t size, uint32_t rank, uint64_t count) {
    return (rg_coll_desc_t){
        .kind = kind, .size = size, .rank = rank, .count = count, .elem_size = 4, .acc_size = 4, .chunk = 64
    };
}

static rg_schedule_t *built(rg_kind_t kind, const char *name, const rg_coll_desc_t *d) {
    rg_schedule_t *s = NULL;
    cr_assert_eq(rg_sched_build(find(kind, name), d, &s), RG_OK);
    return s;
}

/* An algorithm made of whatever the test at hand wants appended. */
static void (*recipe)(rg_schedule_t *s, const rg_coll_desc_t *d);

static rg_status_t by_recipe(rg_schedule_t *s, const rg_coll_desc_t *d) {
    recipe(s, d);
    return s->error;
}

static const rg_algorithm_t made_by_hand = { .name = "hand", .kind = RG_KIND_ALL_REDUCE, .build = by_recipe };

static rg_status_t verdict(void (*what)(rg_schedule_t *, const rg_coll_desc_t *), uint32_t n, uint32_t flags,
                           char *text, size_t cap) {
    rg_schedule_t *s[4] = { 0 };
    recipe = what;
    for (uint32_t r = 0; r < n; r++) {
        rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, n, r, 8);
        d.rule_l = flags != 0;
        cr_assert_eq(rg_sched_build(&made_by_hand, &d, &s[r]), RG_OK);
        s[r]->flags |= flags;
    }
    rg_status_t status = rg_sched_verify(s, n, text, cap);
    for (uint32_t r = 0; r < n; r++) rg_sched_free(s[r]);
    return status;
}

Test(schedule, part__any_count_and_parts__covers_all_once) {
    for (uint64_t count = 0; count < 3000; count += 37)
        for (uint64_t parts = 1; parts < 40; parts++) {
            uint64_t at = 5, longest = rg_span_part(rg_span(RG_BUF_OUT, 5, count), parts, 0).len;
            for (uint64_t i = 0; i < parts; i++) {
                rg_span_t x = rg_span_part(rg_span(RG_BUF_OUT, 5, count), parts, i);
                cr_assert_eq(x.off, at);
                cr_assert_leq(x.len, longest, "the first part is the longest");
                at += x.len;
            }
            cr_assert_eq(at, 5 + count);
        }
}

Test(schedule, part__long_span__starts_on_cache_lines) {
    for (uint64_t i = 0; i < 7; i++) cr_assert_eq(rg_span_part(rg_span(RG_BUF_IN, 0, 1000003), 7, i).off % 64, 0);
}

Test(schedule, pieces__huge_span__stays_bounded) {
    cr_assert_eq(rg_sched_pieces(0, 10, 4), 1);
    cr_assert_eq(rg_sched_pieces(11, 10, 4), 2);
    cr_assert_eq(rg_sched_pieces(UINT64_MAX, 1, 4), RG_PIECES_MAX);
    cr_assert_eq(rg_sched_pieces(UINT64_MAX, 1, 1u << 20), 1);
}

static void two_then_bad_dep(rg_schedule_t *s, const rg_coll_desc_t *d) {
    (void)d;
    uint32_t later = 7;
    rg_sched_copy(s, rg_span(RG_BUF_TMP, 0, 4), rg_span(RG_BUF_IN, 0, 4), 0, NULL, 0);
    cr_assert_eq(rg_sched_copy(s, rg_span(RG_BUF_TMP, 4, 4), rg_span(RG_BUF_IN, 4, 4), 0, &later, 1), RG_NO_STEP);
    cr_assert_eq(rg_sched_copy(s, rg_span(RG_BUF_TMP, 4, 4), rg_span(RG_BUF_IN, 4, 4), 0, NULL, 0), RG_NO_STEP);
}

static void outside(rg_schedule_t *s, const rg_coll_desc_t *d) {
    rg_sched_copy(s, rg_span(RG_BUF_OUT, 1, d->count), rg_span(RG_BUF_IN, 0, d->count), 0, NULL, 0);
}

static void to_itself(rg_schedule_t *s, const rg_coll_desc_t *d) {
    rg_sched_send(s, d->rank, rg_span(RG_BUF_IN, 0, 1), NULL, 0);
}

Test(schedule, build__bad_steps__first_error_sticks_and_nothing_is_returned) {
    void (*const bad[])(rg_schedule_t *, const rg_coll_desc_t *) = { two_then_bad_dep, outside, to_itself };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, 2, 0, 8);
        rg_schedule_t *s = NULL;
        recipe = bad[i];
        cr_assert_eq(rg_sched_build(&made_by_hand, &d, &s), RG_ERR_INVALID);
        cr_assert_null(s);
    }
    rg_sched_free(NULL);
}

Test(schedule, build__bad_description__invalid) {
    const rg_algorithm_t *ring = find(RG_KIND_ALL_REDUCE, "ring");
    rg_coll_desc_t bad[4];
    for (int i = 0; i < 4; i++) bad[i] = desc(RG_KIND_ALL_REDUCE, 4, 0, 8);
    bad[0].kind = RG_KIND_BARRIER;
    bad[1].size = 0;
    bad[2].rank = 4;
    bad[3].chunk = 0;
    for (int i = 0; i < 4; i++) {
        rg_schedule_t *s = NULL;
        cr_assert_eq(rg_sched_build(ring, &bad[i], &s), RG_ERR_INVALID, "case %d", i);
        cr_assert_null(s);
    }
}

Test(schedule, build__alone__one_final_copy) {
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++) {
        rg_coll_desc_t d = desc((*a)->kind, 1, 0, 100);
        d.rule_l = 1;
        if ((*a)->kind == RG_KIND_P2P || ((*a)->applies != NULL && !(*a)->applies(&d))) continue;
        rg_schedule_t *s = built((*a)->kind, (*a)->name, &d);
        cr_assert_eq(s->n_steps, (*a)->kind == RG_KIND_BARRIER ? 0 : 1);
        if (s->n_steps) cr_assert_eq(s->steps[0].flags, rg_kind_reduces((*a)->kind) ? RG_STEP_FINAL : 0);
        rg_sched_free(s);
    }
}

Test(schedule, build__a_thousand_ranks__takes_little_time_and_room) {
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++) {
        rg_coll_desc_t d = desc((*a)->kind, 1024, 513, 3u << 20);
        d.rule_l = 1;
        if (d.kind == RG_KIND_P2P) continue;
        if ((*a)->applies != NULL && !(*a)->applies(&d)) continue;
        struct timespec t0, t1;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t0);
        rg_schedule_t *s = built((*a)->kind, (*a)->name, &d);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t1);
        cr_expect_lt((double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-9, 0.5, "%s", (*a)->name);
        cr_expect_lt(s->n_steps, 150000u, "%s", (*a)->name);
        rg_sched_free(s);
    }
}

/* All ranks, and the proof of them. The logarithmic algorithms take tenths of a second; a ring, with two million steps,
 * takes seconds and is proved with fewer ranks (docs/algorithms.md has the figures). */
Test(schedule, verify__a_thousand_ranks__logarithmic_algorithms_within_a_second) {
    static rg_schedule_t *s[1024];
    static uint32_t group[2 * 1024];
    rg_topology_t topo = { .levels = 2, .group = group };
    for (uint32_t r = 0; r < 1024; r++) group[r] = r / 8, group[1024 + r] = r / 64;
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++) {
        rg_coll_desc_t d = desc((*a)->kind, 1024, 0, 1024);
        struct timespec t0, t1;
        uint64_t steps = 0;
        char text[512];
        d.rule_l = 1;
        d.topo = &topo;
        d.chunk = 1u << 20;
        if (d.kind == RG_KIND_P2P || ((*a)->applies != NULL && !(*a)->applies(&d))) continue;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t0);
        for (d.rank = 0; d.rank < 1024 && steps < 120000; d.rank++) {
            s[d.rank] = built((*a)->kind, (*a)->name, &d);
            steps += s[d.rank]->n_steps;
        }
        if (d.rank == 1024) {
            cr_expect_eq(rg_sched_verify(s, 1024, text, sizeof text), RG_OK, "%s: %s", (*a)->name, text);
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t1);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
            cr_expect_lt((double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-9, 1.0, "%s_%s",
                         rg_kind_name((*a)->kind), (*a)->name);
#else
            t1 = t0;
#endif
        }
        for (uint32_t r = 0; r < d.rank; r++) rg_sched_free(s[r]);
    }
}

Test(schedule, seal__up_to_eight_ranks__one_round) {
    for (uint32_t n = 2; n <= 8; n++) {
        rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, n, n - 1, 1000);
        d.rule_l = 1;
        rg_schedule_t *s = built(RG_KIND_ALL_REDUCE, "ring", &d);
        uint32_t sends = 0, recvs = 0;
        for (uint32_t i = s->phase1_steps; i < s->n_steps; i++) {
            cr_assert(s->steps[i].flags & RG_STEP_PHASE2);
            sends += s->steps[i].kind == RG_STEP_SEND;
            recvs += s->steps[i].kind == RG_STEP_RECV;
        }
        cr_assert_eq(sends, n - 1);
        cr_assert_eq(recvs, n - 1);
        cr_assert(s->flags & RG_SCHED_ZERO_COPY);
        rg_sched_free(s);
    }
}

Test(schedule, seal__without_rule_l__no_barrier_and_no_zero_copy) {
    rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, 4, 1, 1000);
    rg_schedule_t *s = built(RG_KIND_ALL_REDUCE, "ring", &d);
    cr_assert_eq(s->phase1_steps, s->n_steps);
    cr_assert_not(s->flags & RG_SCHED_ZERO_COPY);
    rg_sched_free(s);
}

Test(schedule, disseminate__many_ranks__few_messages) {
    rg_coll_desc_t d = desc(RG_KIND_BARRIER, 1000, 17, 0);
    rg_schedule_t *s = built(RG_KIND_BARRIER, "dissemination", &d);
    uint32_t sends = 0;
    for (uint32_t i = 0; i < s->n_steps; i++) sends += s->steps[i].kind == RG_STEP_SEND;
    cr_assert_leq(sends, 4 * 7);
    rg_sched_free(s);
}

Test(schedule, seal__through_a_hub__two_messages_for_each_but_the_hub) {
    uint32_t sends = 0, by_hub = 0;
    for (uint32_t r = 0; r < 7; r++) {
        rg_coll_desc_t d = desc(RG_KIND_ALL_TO_ALL, 7, r, 10);
        d.rule_l = d.hub = 1;
        rg_schedule_t *s = built(RG_KIND_ALL_TO_ALL, "direct", &d);
        for (uint32_t i = s->phase1_steps; i < s->n_steps; i++) {
            sends += s->steps[i].kind == RG_STEP_SEND;
            by_hub += r == 0 && s->steps[i].kind == RG_STEP_SEND;
        }
        rg_sched_free(s);
    }
    cr_expect(sends == 12 && by_hub == 6, "%u, of them %u by the hub", sends, by_hub);
}

/* Who expects something where nothing is sent gets a DONE message instead, and so finds out. */
Test(schedule, seal__exchange_with_lengths__everybody_tells_everybody) {
    static const uint32_t sizes[] = { 4, 20 };
    uint64_t lens[20] = { 0 };
    for (size_t k = 0; k < 2; k++) {
        rg_coll_desc_t d = desc(RG_KIND_ALL_TO_ALL, sizes[k], 3, 0);
        uint32_t told[20] = { 0 }, heard[20] = { 0 };
        d.lens = d.in_lens = lens;
        d.rule_l = d.hub = 1;
        rg_schedule_t *s = built(RG_KIND_ALL_TO_ALL, "direct", &d);
        for (uint32_t i = s->phase1_steps; i < s->n_steps; i++) {
            told[s->steps[i].peer] += s->steps[i].kind == RG_STEP_SEND;
            heard[s->steps[i].peer] += s->steps[i].kind == RG_STEP_RECV;
        }
        for (uint32_t r = 0; r < sizes[k]; r++)
            cr_expect(r == 3 || (told[r] == 1 && heard[r] == 1), "rank %u of %u", r, sizes[k]);
        rg_sched_free(s);
    }
}

Test(schedule, print__two_ranks__known_text) {
    static const char want[] = "all_reduce rank 1 of 2, count 10, tmp 10, steps 3+2\n"
                               "    0 copy tmp[0+10] = in[0+10]\n"
                               "    1 send tmp[0+10] to 0#0 <- 0\n"
                               "    2 recv_reduce out[0+10] = in[0+10] op 0#0 acc swap final <- 0\n"
                               "    3 send in[0+0] to 0#1 done <- 1,2\n"
                               "    4 recv out[0+0] = 0#1 done\n";
    rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, 2, 1, 10);
    d.rule_l = 1;
    rg_schedule_t *s = built(RG_KIND_ALL_REDUCE, "direct", &d);
    char text[1024], cut[20];
    cr_assert_eq(rg_sched_print(s, text, sizeof text), sizeof want - 1);
    cr_assert_str_eq(text, want);
    cr_assert_eq(rg_sched_print(s, cut, sizeof cut), sizeof want - 1);
    cr_assert_eq(strlen(cut), sizeof cut - 1);
    cr_assert_eq(rg_sched_print(s, NULL, 0), sizeof want - 1);
    rg_sched_free(s);
}

/* ---- Descriptions ---------------------------------------------------------------------------------------------- */

Test(schedule, segments__lengths_or_offsets_or_none__as_the_header_says) {
    static const uint64_t lens[3] = { 4, 0, 7 }, offs[3] = { 20, 3, 5 };
    rg_coll_desc_t d = desc(RG_KIND_ALL_GATHER, 3, 1, 5);
    cr_expect(rg_seg(&d, RG_BUF_OUT, 2).off == 10 && rg_seg(&d, RG_BUF_OUT, 2).len == 5 && rg_seg_max(&d) == 5);
    cr_expect(rg_seg_total(&d) == 15 && rg_desc_elems(&d, RG_BUF_OUT) == 15 && rg_desc_elems(&d, RG_BUF_IN) == 5);
    d.lens = lens;
    cr_expect(rg_seg(&d, RG_BUF_OUT, 2).off == 4 && rg_seg(&d, RG_BUF_OUT, 2).len == 7 && rg_seg_max(&d) == 7);
    cr_expect(rg_seg_total(&d) == 11 && rg_desc_elems(&d, RG_BUF_OUT) == 11 && rg_desc_elems(&d, RG_BUF_IN) == 0);
    d.offs = offs;
    cr_expect(rg_seg(&d, RG_BUF_OUT, 0).off == 20 && rg_desc_elems(&d, RG_BUF_OUT) == 24);
    d.kind = RG_KIND_REDUCE_SCATTER;
    cr_expect(rg_desc_elems(&d, RG_BUF_IN) == 24 && rg_desc_elems(&d, RG_BUF_OUT) == 0);
}

Test(schedule, build__callers_arrays_change_afterwards__schedule_has_its_own) {
    uint64_t lens[2] = { 6, 3 }, offs[2] = { 0, 10 };
    uint32_t group[2] = { 5, 6 };
    rg_topology_t topo = { .levels = 1, .group = group };
    rg_coll_desc_t d = desc(RG_KIND_ALL_GATHER, 2, 1, 9);
    d.lens = lens;
    d.offs = offs;
    d.topo = &topo;
    rg_schedule_t *s = built(RG_KIND_ALL_GATHER, "direct", &d);
    lens[0] = lens[1] = offs[0] = 1u << 30;
    group[0] = 9;
    topo.levels = 77;
    cr_expect(rg_seg(&s->desc, RG_BUF_OUT, 0).len == 6 && rg_seg(&s->desc, RG_BUF_OUT, 1).off == 10);
    cr_expect(s->desc.topo->levels == 1 && s->desc.topo->group[0] == 5 && s->desc.topo->group[1] == 6);
    rg_sched_free(s);
}

Test(schedule, build__impossible_shapes__invalid) {
    static const uint64_t far[2] = { UINT64_MAX - 3, 0 }, lens[2] = { 8, 8 };
    static const uint32_t group[2] = { 0, 1 };
    static const rg_topology_t deep = { .levels = RG_LEVELS_MAX + 1, .group = group };
    rg_coll_desc_t bad[6];
    for (int i = 0; i < 6; i++) bad[i] = desc(RG_KIND_ALL_GATHER, 2, 0, 8);
    bad[0].offs = far;
    bad[0].lens = lens;
    bad[1].count = UINT64_MAX / 2 + 9;
    bad[2].topo = &deep;
    bad[3].acc_size = 8; /* nothing is accumulated */
    bad[4].kind = RG_KIND_P2P;
    bad[4].size = 3;
    bad[5].kind = RG_KIND_GATHER;
    bad[5].root = 2;
    for (int i = 0; i < 6; i++) {
        rg_schedule_t *s = NULL;
        cr_expect_eq(rg_sched_build(find(bad[i].kind, "direct"), &bad[i], &s), RG_ERR_INVALID, "case %d", i);
        cr_expect_null(s);
    }
}

Test(schedule, kinds__each__name_and_nature) {
    cr_expect_str_eq(rg_kind_name(RG_KIND_REDUCE_SCATTER), "reduce_scatter");
    cr_expect_str_eq(rg_kind_name(RG_KIND_COUNT), "?");
    cr_expect(rg_kind_reduces(RG_KIND_REDUCE) && rg_kind_rooted(RG_KIND_REDUCE) && !rg_kind_shaped(RG_KIND_REDUCE));
    cr_expect(rg_kind_segmented(RG_KIND_SCATTER) && rg_kind_shaped(RG_KIND_SCATTER) &&
              !rg_kind_reduces(RG_KIND_SCATTER));
    cr_expect(!rg_kind_shaped(RG_KIND_ALL_REDUCE) && !rg_kind_shaped(RG_KIND_BROADCAST) &&
              !rg_kind_shaped(RG_KIND_BARRIER) && rg_kind_shaped(RG_KIND_ALL_TO_ALL));
    cr_expect(!rg_kind_reduces(RG_KIND_COUNT) && !rg_kind_segmented((rg_kind_t)99));
}

Test(schedule, prepare__three_ranks__weights_first_and_every_reader_after_them) {
    static const char want[] = "all_reduce rank 2 of 3, count 2, tmp 6, steps 12+0\n"
                               "    0 send aux[2+1] to 1#0\n"
                               "    1 recv aux[0+1] = 0#0\n"
                               "    2 send aux[2+1] to 0#0\n"
                               "    3 recv aux[1+1] = 1#0\n"
                               "    4 prepare <- 1,3\n";
    rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, 3, 2, 2);
    d.prepare = 1;
    rg_schedule_t *s = built(RG_KIND_ALL_REDUCE, "direct", &d);
    char text[2048];
    rg_sched_print(s, text, sizeof text);
    cr_expect_eq(strncmp(text, want, sizeof want - 1), 0, "%s", text);
    cr_expect_eq(s->gate, 4);
    for (uint32_t i = s->gate + 1; i < s->n_steps; i++) {
        const rg_step_t *x = &s->steps[i];
        int reads = (x->a.len != 0 && x->a.buf == RG_BUF_IN) || (x->b.len != 0 && x->b.buf == RG_BUF_IN), waits = 0;
        for (uint32_t k = 0; k < x->n_deps; k++) waits |= s->deps[x->first_dep + k] == s->gate;
        cr_expect_eq(reads, waits, "step %u", i);
    }
    rg_sched_free(s);
}

Test(schedule, prepare__many_ranks__few_rounds) {
    rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, 1000, 999, 2);
    d.prepare = 1;
    rg_schedule_t *s = built(RG_KIND_ALL_REDUCE, "tree", &d);
    cr_expect_leq(s->gate, 2 * 2 * 4 * 7, "%u", s->gate);
    rg_sched_free(s);
}

/* Both ranks fold and write; what is wrong is said in the name. */
static void exchange(rg_schedule_t *s, const rg_coll_desc_t *d, int wait, uint32_t flags) {
    rg_span_t in = rg_span(RG_BUF_IN, 0, 8), out = rg_span(RG_BUF_OUT, 0, 8), tmp = rg_span(RG_BUF_TMP, 0, 8);
    uint32_t copied = rg_sched_copy(s, tmp, in, 0, NULL, 0);
    rg_sched_send(s, 1 - d->rank, tmp, &copied, 1);
    rg_sched_recv_reduce(s, 1 - d->rank, out, in, flags, &copied, wait ? 1 : 0);
}

static void right(rg_schedule_t *s, const rg_coll_desc_t *d) {
    exchange(s, d, 1, RG_STEP_WIRE_ACC | RG_STEP_FINAL | (d->rank == 1 ? RG_STEP_SWAP : 0));
}

static void unordered_in_place(rg_schedule_t *s, const rg_coll_desc_t *d) {
    exchange(s, d, 0, RG_STEP_WIRE_ACC | RG_STEP_FINAL | (d->rank == 1 ? RG_STEP_SWAP : 0));
}

static void other_order(rg_schedule_t *s, const rg_coll_desc_t *d) {
    exchange(s, d, 1, RG_STEP_WIRE_ACC | RG_STEP_FINAL);
}

static void takes_partial_for_raw(rg_schedule_t *s, const rg_coll_desc_t *d) { exchange(s, d, 1, RG_STEP_FINAL); }

static void sends_from_in(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t sent = rg_sched_send(s, 1 - d->rank, rg_span(RG_BUF_IN, 0, 8), NULL, 0);
    rg_sched_recv_reduce(s, 1 - d->rank, rg_span(RG_BUF_OUT, 0, 8), rg_span(RG_BUF_IN, 0, 8),
                         RG_STEP_FINAL | (d->rank == 1 ? RG_STEP_SWAP : 0), &sent, 1);
}

static void one_gives_the_other(rg_schedule_t *s, const rg_coll_desc_t *d) {
    rg_span_t in = rg_span(RG_BUF_IN, 0, 8), out = rg_span(RG_BUF_OUT, 0, 8);
    if (d->rank == 0) {
        uint32_t made = rg_sched_recv_reduce(s, 1, out, in, RG_STEP_FINAL, NULL, 0);
        rg_sched_send(s, 1, out, &made, 1);
    } else {
        uint32_t sent = rg_sched_send(s, 0, in, NULL, 0);
        rg_sched_recv(s, 0, out, 0, &sent, 1);
    }
}

/* Adds something that nobody has made. */
static void adds_garbage(rg_schedule_t *s, const rg_coll_desc_t *d) {
    exchange(s, d, 1, RG_STEP_WIRE_ACC | RG_STEP_FINAL | (d->rank == 1 ? RG_STEP_SWAP : 0));
    rg_span_t tmp = rg_span(RG_BUF_TMP, 0, 8);
    uint32_t sent = 1;
    rg_sched_reduce(s, tmp, tmp, rg_span(RG_BUF_TMP, 8, 8), 0, &sent, 1);
}

Test(schedule, verify__made_by_hand__says_what_is_wrong) {
    static const struct {
        void (*recipe)(rg_schedule_t *, const rg_coll_desc_t *);
        uint32_t flags;
        const char *text; /* NULL: right */
    } cases[] = {
        { right, 0, NULL },
        { one_gives_the_other, RG_SCHED_ZERO_COPY, NULL },
        { right, RG_SCHED_ZERO_COPY, NULL },
        { unordered_in_place, 0,
          "race: nothing orders it after step 0 (copy), which reads the same bytes of IN or OUT" },
        { other_order, 0, "ranks 0 and 1 combine OUT[0] in different orders" },
        { takes_partial_for_raw, 0, "unmatched message: rank 0 sends partial elements" },
        { sends_from_in, 0, "deadlock: waits for ever for rank 1 step 1" },
        { adds_garbage, 0, "read of garbage: nothing has been written to TMP[8] yet" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        rg_status_t status = verdict(cases[i].recipe, 2, cases[i].flags, text, sizeof text);
        if (cases[i].text == NULL) cr_expect_eq(status, RG_OK, "case %zu: %s", i, text);
        else cr_expect(status == RG_ERR_INVALID && strstr(text, cases[i].text) != NULL, "case %zu: %s", i, text);
    }
}

/* A kind with segments, by its direct algorithm, with offsets that the test at hand wants; and a step spoilt. */
static rg_status_t segments_verdict(rg_kind_t kind, const uint64_t *offs, void (*spoil)(rg_schedule_t *), char *text,
                                    size_t cap) {
    static const uint64_t lens[2] = { 4, 4 };
    rg_schedule_t *s[2];
    for (uint32_t r = 0; r < 2; r++) {
        rg_coll_desc_t d = desc(kind, 2, r, 8);
        d.lens = lens;
        d.offs = offs;
        s[r] = built(kind, "direct", &d);
        if (spoil != NULL) spoil(s[r]);
    }
    rg_status_t status = rg_sched_verify(s, 2, text, cap);
    for (uint32_t r = 0; r < 2; r++) rg_sched_free(s[r]);
    return status;
}

static void writes_into_a_gap(rg_schedule_t *s) {
    for (uint32_t i = 0; i < s->n_steps; i++)
        if (s->steps[i].kind == RG_STEP_RECV) s->steps[i].dst.off = 4;
}

static void reads_a_gap(rg_schedule_t *s) {
    for (uint32_t i = 0; i < s->n_steps; i++)
        if (s->steps[i].kind == RG_STEP_SEND) s->steps[i].a.off = 4;
}

/* The root's own copy, done by the other as well, which has no such buffer. */
static void writes_where_nothing_is(rg_schedule_t *s) {
    if (s->desc.rank == 0 || s->n_steps != 1) return;
    rg_step_t *grown = realloc(s->steps, 2 * sizeof *grown);
    cr_assert_not_null(grown);
    s->steps = grown;
    s->steps[s->n_steps++] = (rg_step_t){
        .kind = RG_STEP_COPY, .first_dep = s->n_deps, .dst = rg_span(RG_BUF_OUT, 0, 4), .a = rg_span(RG_BUF_IN, 0, 4)
    };
    s->phase1_steps = s->n_steps;
}

Test(schedule, verify__segments_with_gaps__only_they_are_touched) {
    static const uint64_t far[2] = { 20, 0 }, over[2] = { 0, 3 };
    static const struct {
        rg_kind_t kind;
        const uint64_t *offs;
        void (*spoil)(rg_schedule_t *);
        const char *text; /* NULL: right */
    } cases[] = {
        { RG_KIND_ALL_GATHER, far, NULL, NULL },
        { RG_KIND_REDUCE_SCATTER, far, NULL, NULL },
        { RG_KIND_ALL_GATHER, over, NULL, "race" },
        { RG_KIND_SCATTER, over, NULL, "segments of rank 0 overlap" },
        { RG_KIND_ALL_GATHER, far, writes_into_a_gap, "is written, which is no part of the result" },
        { RG_KIND_REDUCE_SCATTER, far, reads_a_gap, "read of garbage: nothing has been written to IN[4] yet" },
        { RG_KIND_GATHER, far, writes_where_nothing_is, "is written, which is no part of the result" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        rg_status_t status = segments_verdict(cases[i].kind, cases[i].offs, cases[i].spoil, text, sizeof text);
        if (cases[i].text == NULL) cr_expect_eq(status, RG_OK, "case %zu: %s", i, text);
        else cr_expect(status == RG_ERR_INVALID && strstr(text, cases[i].text) != NULL, "case %zu: %s", i, text);
    }
}

static void reuses_tmp(rg_schedule_t *s, const rg_coll_desc_t *d) {
    rg_span_t tmp = rg_span(RG_BUF_TMP, 0, 4);
    uint32_t last = RG_NO_STEP, in_read;
    for (uint64_t at = 0; at < 8; at += 4) {
        in_read = rg_sched_copy(s, tmp, rg_span(RG_BUF_IN, at, 4), 0, &last, 1);
        last = rg_sched_send(s, 1 - d->rank, tmp, &in_read, 1);
        rg_sched_recv_reduce(s, 1 - d->rank, rg_span(RG_BUF_OUT, at, 4), rg_span(RG_BUF_IN, at, 4),
                             RG_STEP_WIRE_ACC | RG_STEP_FINAL | (d->rank == 1 ? RG_STEP_SWAP : 0), &in_read, 1);
    }
}

Test(schedule, verify__tmp_used_again_after_a_send__right_only_without_zero_copy) {
    char text[512];
    cr_expect_eq(verdict(reuses_tmp, 2, 0, text, sizeof text), RG_OK, "%s", text);
    cr_expect_eq(verdict(reuses_tmp, 2, RG_SCHED_ZERO_COPY, text, sizeof text), RG_ERR_INVALID);
    cr_expect(strstr(text, "may not have consumed what step 1 sent") != NULL, "%s", text);
}

Test(schedule, verify__thirteen_hundred_million_elements__no_slower) {
    rg_schedule_t *s[3];
    char text[512];
    for (uint32_t r = 0; r < 3; r++) {
        rg_coll_desc_t d = desc(RG_KIND_ALL_REDUCE, 3, r, 1300000001);
        d.chunk = 1 << 24;
        s[r] = built(RG_KIND_ALL_REDUCE, "direct2", &d);
    }
    cr_assert_eq(rg_sched_verify(s, 3, text, sizeof text), RG_OK, "%s", text);
    for (uint32_t r = 0; r < 3; r++) rg_sched_free(s[r]);
}
