/* test_core_sets.c: operations of pairs and sub-groups, and of the kinds whose shape depends on the group: who is told
 * what when somebody dies inside and outside, what is known of what is over, and what a mismatch says. It relies on
 * core_rig.h; the simulator goes through the orders of events. */
#include "core_rig.h"

static rig_t r;
static const rg_op_key_t k0 = { 0, 0, 0 };

static rg_op_key_t in_set(uint64_t set, uint64_t seq) { return (rg_op_key_t){ 0, seq, set }; }

static rg_op_sig_t sig_kind(rg_kind_t kind) {
    rg_op_sig_t s = sig_of(1, RG_RETRY);
    s.kind = (uint8_t)kind;
    if (rg_sig_shaped(&s)) s.on_fault = RG_RETURN;
    return s;
}

static void define(int i, uint64_t set, const uint64_t *ids, uint32_t n) {
    cr_assert(rg_member_set_define(r.m[i], set, ids, n) == RG_OK, "%s", rg_member_why(r.m[i]));
}

static rg_status_t start(int i, rg_op_key_t key, rg_op_sig_t sig) {
    return rig_step(&r, i, (rg_member_event_t){ .type = RG_MEV_OP_START, .key = key, .sig = sig });
}

static void expect_abort(int i, rg_op_key_t key, rg_status_t status, uint64_t blame, const char *text) {
    const rig_note_t *n = told(&r, i, RG_MACT_OP_ABORT, key);
    cr_assert(n != NULL, "member %d was not told", i);
    cr_assert(n->status == status && n->peer == blame, "member %d: %d, blame %d", i, n->status, (int)n->peer);
    cr_assert(strcmp(n->text, text) == 0, "member %d: %s", i, n->text);
}

/* ---- Pairs ----------------------------------------------------------------------------------------------------- */

Test(pair, somebody_else_dies__restarted_although_its_kind_returns) {
    rig_group(&r, 3);
    rg_op_key_t k = in_set(rg_set_pair(1, 2), 0);
    for (int i = 0; i < 2; i++) rig_op(&r, i, RG_MEV_OP_START, k, sig_kind(RG_KIND_P2P));
    rig_kill(&r, 2);
    for (int i = 0; i < 2; i++) {
        cr_assert(told(&r, i, RG_MACT_OP_RESTART, k) != NULL);
        cr_assert(told(&r, i, RG_MACT_OP_ABORT, k) == NULL);
    }
    rig_end(&r);
}

Test(pair, the_other_end_dies__peer_lost_names_it) {
    rig_group(&r, 3);
    rg_op_key_t k = in_set(rg_set_pair(1, 3), 0), later = in_set(rg_set_pair(1, 3), 1);
    rig_op(&r, 0, RG_MEV_OP_START, k, sig_kind(RG_KIND_P2P));
    rig_kill(&r, 2);
    expect_abort(0, k, RG_ERR_PEER_LOST, 3, "rank 2 (member 3) was lost: connection closed");
    rig_op(&r, 0, RG_MEV_OP_START, later, sig_kind(RG_KIND_P2P));
    expect_abort(0, later, RG_ERR_PEER_LOST, 3,
                 "member 3, the other end of this message, is not in the group any more");
    cr_assert(told(&r, 1, RG_MACT_OP_ABORT, k) == NULL);
    rig_end(&r);
}

Test(pair, whole_here_when_the_other_end_dies__success) {
    rig_group(&r, 3);
    rg_op_key_t k = in_set(rg_set_pair(3, 1), 0);
    rig_op(&r, 0, RG_MEV_OP_START, k, sig_kind(RG_KIND_P2P));
    rig_op(&r, 0, RG_MEV_OP_COMPLETE, k, sig_kind(RG_KIND_P2P));
    rig_kill(&r, 2);
    const rig_note_t *n = told(&r, 0, RG_MACT_OP_COMMIT, k);
    cr_assert(n && n->computed == 1 && !n->keep);
    rig_end(&r);
}

Test(pair, of_two_others__refused) {
    rig_group(&r, 3);
    cr_assert(start(0, in_set(rg_set_pair(2, 3), 0), sig_kind(RG_KIND_P2P)) == RG_ERR_INVALID);
    cr_assert(strstr(rg_member_why(r.m[0]), "takes no part"), "%s", rg_member_why(r.m[0]));
    rig_end(&r);
}

Test(pair, counts_differ__both_ends_hear_both_signatures) {
    rig_group(&r, 3);
    rg_op_key_t k = in_set(rg_set_pair(1, 2), 0);
    rg_op_sig_t a = sig_kind(RG_KIND_P2P), b = a;
    b.count = 11;
    b.dtype = RG_F8E4M3;
    rig_op(&r, 0, RG_MEV_OP_START, k, a);
    rig_op(&r, 1, RG_MEV_OP_START, k, b);
    rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_OP_FAIL, .key = k, .status = RG_ERR_MISMATCH, .text = "x" });
    rig_settle(&r);
    for (int i = 0; i < 2; i++)
        expect_abort(i, k, RG_ERR_MISMATCH, 2, "rank 0: send/recv f32 count 10; rank 1: send/recv f8e4m3 count 11");
    rig_end(&r);
}

/* ---- Sub-groups ------------------------------------------------------------------------------------------------ */

static const uint64_t low[] = { 1, 2 }, high[] = { 4, 3 };

static void two_halves(int n) {
    rig_group(&r, n);
    for (int i = 0; i < 2; i++) define(i, 7, low, 2);
    for (int i = 2; i < 4; i++) define(i, 8, high, 2);
}

Test(sub_group, a_fault_outside__restarted_and_one_inside__peer_lost) {
    two_halves(5);
    rg_op_key_t a = in_set(7, 0), b = in_set(8, 0), c = in_set(8, 1);
    rg_op_sig_t s = sig_kind(RG_KIND_ALL_GATHER), t = sig_kind(RG_KIND_ALL_REDUCE);
    for (int i = 0; i < 2; i++) rig_op(&r, i, RG_MEV_OP_START, a, s);
    rig_op(&r, 2, RG_MEV_OP_START, b, s);
    rig_op(&r, 2, RG_MEV_OP_START, c, t);
    rig_kill(&r, 3);
    for (int i = 0; i < 2; i++) cr_assert(told(&r, i, RG_MACT_OP_RESTART, a) && !told(&r, i, RG_MACT_OP_ABORT, a));
    expect_abort(2, b, RG_ERR_PEER_LOST, 4, "rank 3 (member 4) was lost: connection closed");
    cr_assert(told(&r, 2, RG_MACT_OP_RESTART, c) != NULL);
    rig_op(&r, 2, RG_MEV_OP_COMPLETE, c, t); /* it is alone there now */
    cr_assert(told(&r, 2, RG_MACT_OP_COMMIT, c) != NULL);
    rig_end(&r);
}

Test(sub_group, started_after_the_fault__the_same_error_also_where_the_set_was_defined_later) {
    rig_group(&r, 4);
    const uint64_t three[] = { 1, 2, 4 };
    define(0, 9, three, 3);
    rg_op_key_t k = in_set(9, 0);
    rig_op(&r, 0, RG_MEV_OP_START, k, sig_kind(RG_KIND_REDUCE_SCATTER));
    rig_kill(&r, 3);
    expect_abort(0, k, RG_ERR_PEER_LOST, 4, "rank 3 (member 4) was lost: connection closed");
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_LEAVE }); /* the one that had defined it is gone too */
    rig_settle(&r);
    cr_assert(rg_member_view(r.m[1])->n == 2);
    define(1, 9, three, 3);
    rig_op(&r, 1, RG_MEV_OP_START, k, sig_kind(RG_KIND_REDUCE_SCATTER));
    expect_abort(1, k, RG_ERR_PEER_LOST, 4, "rank 3 (member 4) was lost: connection closed");
    cr_assert(r.m[2]->ents_marked == 0);
    rig_end(&r);
}

Test(sub_group, two_meanings_of_one_number__mismatch) {
    rig_group(&r, 3);
    const uint64_t other[] = { 2, 1, 3 };
    define(0, 7, low, 2);
    define(1, 7, other, 3);
    for (int i = 0; i < 2; i++) rig_op(&r, i, RG_MEV_OP_START, in_set(7, 0), sig_kind(RG_KIND_BARRIER));
    rig_member(
        &r, 0,
        (rg_member_event_t){ .type = RG_MEV_OP_FAIL, .key = in_set(7, 0), .status = RG_ERR_TIMEOUT, .text = "late" });
    rig_settle(&r);
    for (int i = 0; i < 2; i++)
        expect_abort(i, in_set(7, 0), RG_ERR_MISMATCH, 0,
                     "rank 0 and rank 1 have different members in one sub-group: all must split the group in the same "
                     "order");
    rig_end(&r);
}

Test(sub_group, wrong_definitions__refused_with_a_reason) {
    static uint64_t many[8 * RIG_MAX + 1];
    rig_group(&r, 2);
    const uint64_t twice[] = { 1, 1 }, without[] = { 2 }, none[] = { 1, 0 };
    cr_assert(rg_member_set_define(r.m[0], 0, low, 2) == RG_ERR_INVALID);
    cr_assert(rg_member_set_define(r.m[0], 1ull << 63, low, 2) == RG_ERR_INVALID);
    cr_assert(rg_member_set_define(r.m[0], 5, twice, 2) == RG_ERR_INVALID);
    cr_assert(rg_member_set_define(r.m[0], 5, without, 1) == RG_ERR_INVALID);
    cr_assert(rg_member_set_define(r.m[0], 5, none, 2) == RG_ERR_INVALID);
    cr_assert(rg_member_set_define(r.m[0], 5, many, 0) == RG_ERR_INVALID);
    cr_assert(rg_member_set_define(r.m[0], 5, many, 8 * RIG_MAX + 1) == RG_ERR_INVALID);
    cr_assert(strlen(rg_member_why(r.m[0])) > 10);
    cr_assert(start(0, in_set(5, 0), sig_kind(RG_KIND_BARRIER)) == RG_ERR_INVALID);
    define(0, 5, low, 2);
    define(0, 5, low, 2);
    cr_assert(rg_member_set_define(r.m[0], 5, low, 1) == RG_ERR_INVALID);
    for (uint64_t k = 0; k < 31; k++) define(0, 100 + k, low, 2);
    cr_assert(rg_member_set_define(r.m[0], 6, low, 2) == RG_ERR_RESOURCE);
    cr_assert(rg_member_set_drop(r.m[0], 110) == RG_OK && rg_member_set_drop(r.m[0], 110) == RG_ERR_INVALID);
    define(0, 6, low, 2);
    rig_op(&r, 0, RG_MEV_OP_START, in_set(6, 0), sig_kind(RG_KIND_BARRIER));
    cr_assert(rg_member_set_drop(r.m[0], 6) == RG_ERR_INVALID);
    cr_assert(rg_member_set_drop(r.m[0], 100) == RG_OK);
    rig_op(&r, 0, RG_MEV_OP_START, in_set(130, 0), sig_kind(RG_KIND_BARRIER));
    cr_assert(told(&r, 0, RG_MACT_OP_RUN, in_set(130, 0)) != NULL);
    rig_end(&r);
}

Test(sub_group, rule_s__refused) {
    two_halves(4);
    rg_op_sig_t s = sig_kind(RG_KIND_ALL_REDUCE);
    s.rule_l = 0;
    cr_assert(start(0, in_set(7, 0), s) == RG_ERR_INVALID);
    s = sig_kind(RG_KIND_GATHER); /* the root has it before others have called */
    s.rule_l = 0;
    cr_assert(start(0, k0, s) == RG_ERR_INVALID);
    s = sig_kind(RG_KIND_ALL_GATHER);
    s.rule_l = 0;
    cr_assert(start(0, k0, s) == RG_OK);
    rig_end(&r);
}

/* ---- Shapes ---------------------------------------------------------------------------------------------------- */

Test(shape, a_member_dies__peer_lost_for_all_whatever_on_fault_says) {
    static const rg_kind_t kinds[] = { RG_KIND_ALL_GATHER, RG_KIND_REDUCE_SCATTER, RG_KIND_GATHER, RG_KIND_SCATTER,
                                       RG_KIND_ALL_TO_ALL };
    for (uint32_t n = 0; n < sizeof kinds / sizeof kinds[0]; n++) {
        rig_group(&r, 3);
        rg_op_sig_t s = sig_kind(kinds[n]);
        s.on_fault = RG_RETRY;
        if (kinds[n] == RG_KIND_GATHER || kinds[n] == RG_KIND_SCATTER) s.root = 1;
        rig_op(&r, 0, RG_MEV_OP_START, k0, s);
        rig_kill(&r, 2);
        rig_op(&r, 1, RG_MEV_OP_START, k0, s);
        for (int i = 0; i < 2; i++)
            expect_abort(i, k0, RG_ERR_PEER_LOST, 3, "rank 2 (member 3) was lost: connection closed");
        rig_end(&r);
    }
}

Test(shape, nobody_is_lost_in_the_round__restarted) {
    rig_group(&r, 3);
    for (int i = 0; i < 3; i++) rig_op(&r, i, RG_MEV_OP_START, k0, sig_kind(RG_KIND_ALL_TO_ALL));
    for (int i = 0; i < 2; i++) rig_op(&r, i, RG_MEV_OP_START, key_of(0, 3, 0), sig_kind(RG_KIND_BARRIER));
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_OP_FAIL, .key = key_of(0, 3, 0), .status = RG_ERR_TIMEOUT });
    rig_settle(&r);
    for (int i = 0; i < 3; i++) cr_assert(told(&r, i, RG_MACT_OP_RESTART, k0) != NULL);
    rig_end(&r);
}

Test(shape, called_behind_the_fence_of_a_loss__peer_lost_for_all_because_its_buffers_are_of_the_old_view) {
    rig_group(&r, 4);
    r.cut[1] = 1; /* its report is late */
    uint64_t c = r.conn[3];
    r.conn[3] = 0;
    free(r.m[3]);
    r.m[3] = NULL;
    rig_coord(&r, RG_CEV_CLOSED, c, NULL, 0);
    rig_settle(&r);
    cr_assert(rg_member_fenced(r.m[0]));
    rig_op(&r, 0, RG_MEV_OP_START, k0, sig_kind(RG_KIND_ALL_GATHER));
    r.cut[1] = 0;
    rig_pass(&r, RIG_HEARTBEAT / 2);
    rig_op(&r, 2, RG_MEV_OP_START, k0, sig_kind(RG_KIND_ALL_GATHER));
    rig_settle(&r);
    expect_abort(0, k0, RG_ERR_PEER_LOST, 4, "rank 3 (member 4) was lost: connection closed");
    expect_abort(2, k0, RG_ERR_PEER_LOST, 4, "rank 3 (member 4) was lost: connection closed");
    rig_end(&r);
}

/* ---- What is over ---------------------------------------------------------------------------------------------- */

/* The weakness of a list of the last 256: one that lags by more was told to start again, for ever. */
Test(stream, another_has_finished_six_hundred_since__the_one_that_lags_succeeds) {
    rig_group(&r, 3);
    rg_op_sig_t s = sig_kind(RG_KIND_BARRIER);
    for (uint64_t q = 0; q < 600; q++) {
        r.notes[0] = r.notes[1] = r.notes[2] = 0;
        for (int i = 0; i < 3; i++) {
            rig_op(&r, i, RG_MEV_OP_START, key_of(0, 5, q), s);
            rig_op(&r, i, RG_MEV_OP_COMPLETE, key_of(0, 5, q), s);
            if (i != 1 || q) rig_op(&r, i, RG_MEV_OP_DONE, key_of(0, 5, q), s);
        }
    }
    rig_kill(&r, 2);
    const rig_note_t *n = told(&r, 1, RG_MACT_OP_COMMIT, key_of(0, 5, 0));
    cr_assert(n && n->computed == 1);
    rig_end(&r);
}

Test(stream, more_tags_than_can_be_remembered__refused_until_a_boundary) {
    rig_group(&r, 1);
    rg_op_sig_t s = sig_kind(RG_KIND_BARRIER);
    for (uint64_t tag = 1; tag <= RG_STREAMS_MAX; tag++) {
        r.notes[0] = 0;
        rig_op(&r, 0, RG_MEV_OP_START, key_of(0, tag, 0), s);
        rig_op(&r, 0, RG_MEV_OP_COMPLETE, key_of(0, tag, 0), s);
    }
    cr_assert(start(0, key_of(0, RG_STREAMS_MAX + 1, 0), s) == RG_ERR_RESOURCE);
    cr_assert(strstr(rg_member_why(r.m[0]), "boundary"), "%s", rg_member_why(r.m[0]));
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_BOUNDARY, .gen = 1 });
    cr_assert(start(0, key_of(1, RG_STREAMS_MAX + 1, 0), s) == RG_OK);
    cr_assert(start(0, key_of(0, 7, 1), s) == RG_ERR_INVALID);
    rig_end(&r);
}

Test(stream, a_number_again__refused) {
    rig_group(&r, 2);
    rg_op_sig_t s = sig_kind(RG_KIND_BARRIER);
    cr_assert(start(0, key_of(0, 5, 0), s) == RG_OK);
    cr_assert(start(0, key_of(0, 5, 0), s) == RG_ERR_INVALID);
    cr_assert(start(0, key_of(0, 5, 1), s) == RG_OK);
    cr_assert(start(0, key_of(1, 5, 0), s) == RG_ERR_INVALID);
    rig_end(&r);
}

/* ---- Mismatch -------------------------------------------------------------------------------------------------- */

static void mismatch(rg_op_sig_t a, rg_op_sig_t b, const char *text) {
    rig_group(&r, 3);
    rig_op(&r, 0, RG_MEV_OP_START, k0, a);
    rig_op(&r, 1, RG_MEV_OP_START, k0, b);
    rig_member(&r, 0,
               (rg_member_event_t){ .type = RG_MEV_OP_FAIL,
                                    .key = k0,
                                    .status = RG_ERR_MISMATCH,
                                    .peer = 2,
                                    .text = "rank 1 (member 2) called a different operation" });
    rig_settle(&r);
    rig_op(&r, 2, RG_MEV_OP_START, k0, a);
    for (int i = 0; i < 3; i++) expect_abort(i, k0, RG_ERR_MISMATCH, 2, text);
    rig_end(&r);
}

Test(mismatch, each_argument__all_hear_both_signatures_also_who_comes_later) {
    rg_op_sig_t a = sig_kind(RG_KIND_ALL_REDUCE), b = a;
    b.op = RG_AVG;
    mismatch(a, b, "rank 0: all_reduce f32 sum count 10; rank 1: all_reduce f32 avg count 10");
    b = a;
    b.rule_l = 0;
    b.count = 3;
    mismatch(a, b, "rank 0: all_reduce f32 sum count 10 (large); rank 1: all_reduce f32 sum count 3 (small)");
    b = a;
    b.on_fault = RG_RETURN;
    mismatch(a, b,
             "rank 0: all_reduce f32 sum count 10 on_fault retry; rank 1: all_reduce f32 sum count 10 on_fault return");
    b = a;
    b.variant = 0xabc;
    mismatch(a, b,
             "rank 0: all_reduce f32 sum count 10 settings 00000000; rank 1: all_reduce f32 sum count 10 settings "
             "00000abc");
    mismatch(a, sig_kind(RG_KIND_BARRIER), "rank 0: all_reduce f32 sum count 10; rank 1: barrier");
    a = sig_kind(RG_KIND_REDUCE);
    a.root = 1;
    b = a;
    b.root = 2;
    mismatch(a, b, "rank 0: reduce f32 sum count 10 root rank 0; rank 1: reduce f32 sum count 10 root rank 1");
    a = sig_kind(RG_KIND_SCATTER);
    a.root = 1;
    b = sig_kind(RG_KIND_GATHER);
    b.root = 1;
    mismatch(a, b, "rank 0: scatter f32 count 10 root rank 0; rank 1: gather f32 count 10 root rank 0");
    mismatch(sig_kind(RG_KIND_ALL_GATHER), sig_kind(RG_KIND_ALL_TO_ALL),
             "rank 0: all_gather f32 count 10; rank 1: all_to_all f32 count 10");
}

/* Segments for as many members as there were before a loss, beside a call of one who knows of it: the loss is what
 * everybody hears of. */
Test(mismatch, one_call_has_the_shape_from_before_a_loss__peer_lost_for_all) {
    rg_op_sig_t a = sig_kind(RG_KIND_ALL_GATHER), b = a;
    b.variant = 7;
    rig_group(&r, 3);
    rig_op(&r, 0, RG_MEV_OP_START, k0, a);
    rig_op(&r, 1, RG_MEV_OP_START, k0, b);
    rig_member(&r, 1,
               (rg_member_event_t){ .type = RG_MEV_OP_FAIL, .key = k0, .status = RG_ERR_PEER_LOST, .text = "x" });
    rig_settle(&r);
    rig_op(&r, 2, RG_MEV_OP_START, k0, a);
    for (int i = 0; i < 3; i++) expect_abort(i, k0, RG_ERR_PEER_LOST, 0, "x");
    rig_end(&r);
}

Test(mismatch, three_ways__two_of_them_are_named_to_all) {
    rig_group(&r, 4);
    for (int i = 0; i < 3; i++) {
        rg_op_sig_t s = sig_kind(RG_KIND_ALL_REDUCE);
        s.count = 10 + (uint64_t)i;
        rig_op(&r, i, RG_MEV_OP_START, k0, s);
    }
    rig_member(&r, 2, (rg_member_event_t){ .type = RG_MEV_OP_FAIL, .key = k0, .status = RG_ERR_MISMATCH, .text = "x" });
    rig_settle(&r);
    rig_op(&r, 3, RG_MEV_OP_START, k0, sig_kind(RG_KIND_ALL_REDUCE));
    for (int i = 0; i < 4; i++)
        expect_abort(i, k0, RG_ERR_MISMATCH, 1,
                     "rank 0: all_reduce f32 sum count 10; rank 1: all_reduce f32 sum count 11");
    rig_end(&r);
}

/* ---- Measurements ---------------------------------------------------------------------------------------------- */

Test(net, measured_while_running__holds_from_the_next_view_for_all_alike) {
    rig_group(&r, 3);
    rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_NET, .net = { 1, 2, 3, 4, 5, 6 } });
    rig_pass(&r, RIG_HEARTBEAT / 4);
    for (int i = 0; i < 3; i++) cr_assert(rg_member_view(r.m[i])->members[1].net[5] == 0);
    rig_join(&r, 3, rig_params(3, 1));
    for (int i = 0; i < 4; i++) {
        const rg_core_view_t *v = rg_member_view(r.m[i]);
        cr_assert(v->n == 4 && v->members[1].net[0] == 1 && v->members[1].net[5] == 6, "member %d", i);
    }
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_NET, .net = { 9 } });
    rig_pass(&r, RIG_HEARTBEAT / 4);
    rig_kill(&r, 2);
    for (int i = 0; i < 4; i++) {
        const rg_core_view_t *v = i == 2 ? NULL : rg_member_view(r.m[i]);
        if (v) cr_assert(v->n == 3 && v->members[0].net[0] == 9 && v->members[1].net[5] == 6);
    }
    rig_end(&r);
}
