/* test_core.c: operations and recovery: what members are told when all goes well, when one of them dies, and when an
 * operation is given up. The simulator goes through the orders of events; here single rules are pinned down. */
#include "core_rig.h"

static rig_t r;
static const rg_op_key_t k0 = { 0, 0, 0 };

Test(op, rule_s_between_two__committed_at_once_with_a_copy__released_by_watermark) {
    rig_group(&r, 2);
    for (int i = 0; i < 2; i++) rig_op(&r, i, RG_MEV_OP_START, k0, sig_of(0, RG_RETRY));
    cr_assert(told(&r, 0, RG_MACT_OP_RUN, k0) != NULL);
    rig_op(&r, 0, RG_MEV_OP_COMPLETE, k0, sig_of(0, RG_RETRY));
    const rig_note_t *n = told(&r, 0, RG_MACT_OP_COMMIT, k0);
    cr_assert(n && n->keep == 1 && n->computed == 1);
    cr_assert(!rg_member_drained(r.m[0]));
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_WATERMARK, .peer = rg_member_id(r.m[1]), .note = 1 });
    cr_assert(told(&r, 0, RG_MACT_OP_RELEASE, k0) != NULL);
    cr_assert(rg_member_drained(r.m[0]));
    rig_op(&r, 1, RG_MEV_OP_COMPLETE, k0, sig_of(0, RG_RETRY));
    rig_end(&r);
}

Test(op, rule_s_copies__released_by_heartbeats_alone) {
    rig_group(&r, 3);
    for (int i = 0; i < 3; i++) {
        rig_op(&r, i, RG_MEV_OP_START, k0, sig_of(0, RG_RETRY));
        rig_op(&r, i, RG_MEV_OP_COMPLETE, k0, sig_of(0, RG_RETRY));
    }
    rig_pass(&r, RIG_HEARTBEAT);
    for (int i = 0; i < 3; i++) cr_assert(rg_member_drained(r.m[i]), "member %d keeps a copy", i);
    rig_end(&r);
}

static const rig_note_t *last_note(rig_t *of, int i) {
    const rig_note_t *n = NULL;
    for (uint32_t k = 0; k < of->notes[i]; k++)
        if (of->note[i][k].type == RG_MACT_NOTE) n = &of->note[i][k];
    return n;
}

/* One member hears of each operation at its start and its end, another one afterwards, of some not at all: what both
 * know then, keep, and say of themselves is the same, and so is what they do when a member is lost. */
Test(op, told_of_what_ran_afterwards__as_if_told_at_once) {
    static rig_t late;
    for (int skipped = 0; skipped < 2; skipped++) {
        rg_op_sig_t s = sig_of(0, RG_RETRY);
        rig_group(&r, 3);
        rig_group(&late, 3);
        for (uint64_t q = 0; q < 5; q++) {
            rig_op(&r, 0, RG_MEV_OP_START, key_of(0, 0, q), s);
            rig_op(&r, 0, RG_MEV_OP_COMPLETE, key_of(0, 0, q), s);
        }
        for (int i = 1; i < 3; i++) { /* the others are past the first three */
            rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_WATERMARK, .peer = rg_member_id(r.m[i]), .note = 3 });
            rig_member(&late, 0,
                       (rg_member_event_t){ .type = RG_MEV_WATERMARK, .peer = rg_member_id(late.m[i]), .note = 3 });
        }
        for (uint64_t q = skipped ? 3 : 0; q < 5; q++) {
            cr_assert(rg_member_may_run(late.m[0], 0, 1));
            rig_op(&late, 0, RG_MEV_OP_RAN, key_of(0, 0, q), s);
            const rig_note_t *n = told(&late, 0, RG_MACT_OP_COMMIT, key_of(0, 0, q));
            cr_assert(n && n->keep == (q >= 3) && n->computed == 1, "operation %d", (int)q);
        }
        cr_assert(last_note(&r, 0)->note == 5 && last_note(&late, 0)->note == 5);
        cr_assert(!rg_member_drained(r.m[0]) && !rg_member_drained(late.m[0]));
        cr_assert(r.m[0]->next0 == late.m[0]->next0 && r.m[0]->kept_map == 0x18 && late.m[0]->kept_map);
        rig_t *both[2] = { &r, &late };
        for (int k = 0; k < 2; k++) { /* one of the others has not begun the last two, and is given them */
            rig_kill(both[k], 2);
            for (uint64_t q = 3; q < 5; q++) {
                if (q == 3) rig_op(both[k], 1, RG_MEV_OP_START, key_of(0, 0, 0), s);
                if (q == 3) rig_op(both[k], 1, RG_MEV_OP_FETCHED, key_of(0, 0, 0), s);
            }
            rig_pass(both[k], RIG_HEARTBEAT);
            cr_assert(rg_member_view(both[k]->m[0])->n == 2);
        }
        uint32_t serves[2] = { 0, 0 };
        for (int k = 0; k < 2; k++)
            for (uint32_t i = 0; i < both[k]->notes[0]; i++) serves[k] += both[k]->note[0][i].type == RG_MACT_OP_SERVE;
        cr_assert(serves[0] == serves[1], "%u and %u copies are given", serves[0], serves[1]);
        rig_end(&r);
        rig_end(&late);
    }
}

/* What does not fit is refused: the copies of what was left out would be missing, or the order would be another. */
Test(op, told_of_what_ran__others_are_not_past_what_was_left_out__refused) {
    rg_op_sig_t s = sig_of(0, RG_RETRY);
    rig_group(&r, 2);
    rg_member_event_t ev = { .type = RG_MEV_OP_RAN, .key = key_of(0, 0, 1), .sig = s };
    cr_assert(rig_step(&r, 0, ev) == RG_ERR_BUG);
    ev.key = k0;
    cr_assert(rig_step(&r, 0, ev) == RG_OK && rig_step(&r, 0, ev) == RG_ERR_BUG);
    cr_assert(!rg_member_may_run(r.m[0], 1, 1) && !rg_member_may_run(r.m[0], 0, 64) &&
              rg_member_may_run(r.m[0], 0, 63));
    rig_op(&r, 0, RG_MEV_OP_START, key_of(0, 0, 1), s);
    cr_assert(!rg_member_may_run(r.m[0], 0, 1), "one is under way");
    rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_LEAVE });
    cr_assert(!rg_member_may_run(r.m[1], 0, 1), "time may end a member that leaves");
    rig_end(&r);
}

Test(op, rule_l__committed_only_when_the_barrier_has_ended) {
    rig_group(&r, 2);
    rg_op_key_t k = key_of(0, 7, 0);
    rig_op(&r, 0, RG_MEV_OP_START, k, sig_of(1, RG_RETRY));
    rig_op(&r, 0, RG_MEV_OP_COMPLETE, k, sig_of(1, RG_RETRY));
    cr_assert(told(&r, 0, RG_MACT_OP_COMMIT, k) == NULL);
    rig_op(&r, 0, RG_MEV_OP_DONE, k, sig_of(1, RG_RETRY));
    const rig_note_t *n = told(&r, 0, RG_MACT_OP_COMMIT, k);
    cr_assert(n && n->keep == 0);
    rig_end(&r);
}

Test(op, alone_in_the_group__committed_at_once_without_copy) {
    rig_group(&r, 1);
    rig_op(&r, 0, RG_MEV_OP_START, k0, sig_of(1, RG_RETRY));
    rig_op(&r, 0, RG_MEV_OP_COMPLETE, k0, sig_of(1, RG_RETRY));
    const rig_note_t *n = told(&r, 0, RG_MACT_OP_COMMIT, k0);
    cr_assert(n && n->keep == 0);
    rig_end(&r);
}

Test(op, seventy_small_ones_ahead_of_the_others__the_last_wait_for_a_release) {
    rig_group(&r, 2);
    rg_op_sig_t s = sig_of(0, RG_RETRY);
    for (uint64_t q = 0; q < 70; q++) {
        rig_op(&r, 0, RG_MEV_OP_START, key_of(0, 0, q), s);
        rig_op(&r, 0, RG_MEV_OP_COMPLETE, key_of(0, 0, q), s);
    }
    cr_assert(told(&r, 0, RG_MACT_OP_COMMIT, key_of(0, 0, 63)) != NULL);
    cr_assert(told(&r, 0, RG_MACT_OP_COMMIT, key_of(0, 0, 64)) == NULL);
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_WATERMARK, .peer = rg_member_id(r.m[1]), .note = 16 });
    cr_assert(told(&r, 0, RG_MACT_OP_COMMIT, key_of(0, 0, 69)) != NULL);
    cr_assert(r.m[0]->noted == 70, "the others hear of it only when they are quiet");
    rig_end(&r);
}

Test(op, more_than_the_table_holds__refused_and_not_taken) {
    rig_group(&r, 2);
    rg_op_sig_t s = sig_of(1, RG_RETRY);
    for (uint64_t q = 0; q < RG_CORE_MAX_OPS; q++) {
        r.notes[0] = 0;
        rig_op(&r, 0, RG_MEV_OP_START, key_of(0, 0, q), s);
    }
    rg_member_event_t ev = { .type = RG_MEV_OP_START, .key = key_of(0, 0, RG_CORE_MAX_OPS), .sig = s };
    cr_assert(rig_step(&r, 0, ev) == RG_ERR_RESOURCE);
    rig_op(&r, 0, RG_MEV_OP_COMPLETE, k0, s);
    rig_op(&r, 0, RG_MEV_OP_DONE, k0, s);
    cr_assert(rig_step(&r, 0, ev) == RG_OK);
    rig_end(&r);
}

Test(recovery, a_member_dies_and_the_policy_is_retry__survivors_restart) {
    rig_group(&r, 3);
    for (int i = 0; i < 3; i++) rig_op(&r, i, RG_MEV_OP_START, k0, sig_of(1, RG_RETRY));
    rig_op(&r, 0, RG_MEV_OP_COMPLETE, k0, sig_of(1, RG_RETRY));
    rig_kill(&r, 2);
    for (int i = 0; i < 2; i++) {
        cr_assert(told_any(&r, i, RG_MACT_FENCE) && told_any(&r, i, RG_MACT_VIEW));
        cr_assert(told(&r, i, RG_MACT_OP_RESTART, k0) != NULL);
        cr_assert(rg_member_view(r.m[i])->n == 2);
        cr_assert(rg_member_view(r.m[i])->data_epoch == 2);
    }
    cr_assert(strstr(r.log, "group default: view 2 (recovery): 2 members, lost rank 2 (id 3, box, pid 102): connection "
                            "closed; decided in") != NULL,
              "%s", r.log);
    rig_end(&r);
}

Test(recovery, a_member_dies_and_the_policy_is_return__all_get_the_same_error_also_late_starters) {
    rig_group(&r, 3);
    rig_op(&r, 0, RG_MEV_OP_START, k0, sig_of(1, RG_RETURN));
    rig_kill(&r, 2);
    const rig_note_t *n = told(&r, 0, RG_MACT_OP_ABORT, k0);
    cr_assert(n && n->status == RG_ERR_PEER_LOST && n->peer == 3);
    cr_assert(strcmp(n->text, "rank 2 (member 3) was lost: connection closed") == 0);
    cr_assert(told(&r, 1, RG_MACT_OP_ABORT, k0) == NULL);
    rig_op(&r, 1, RG_MEV_OP_START, k0, sig_of(1, RG_RETURN));
    n = told(&r, 1, RG_MACT_OP_ABORT, k0);
    cr_assert(n && n->status == RG_ERR_PEER_LOST && n->peer == 3);
    cr_assert(told(&r, 1, RG_MACT_OP_RUN, k0) == NULL);
    rig_op(&r, 1, RG_MEV_OP_START, key_of(0, 0, 1), sig_of(1, RG_RETURN));
    cr_assert(told(&r, 1, RG_MACT_OP_RUN, key_of(0, 0, 1)) != NULL);
    rig_end(&r);
}

Test(recovery, a_pending_abort__outlives_another_recovery) {
    rig_group(&r, 4);
    rig_op(&r, 0, RG_MEV_OP_START, k0, sig_of(1, RG_RETURN));
    rig_kill(&r, 3);
    rig_kill(&r, 2);
    rig_op(&r, 1, RG_MEV_OP_START, k0, sig_of(1, RG_RETURN));
    const rig_note_t *n = told(&r, 1, RG_MACT_OP_ABORT, k0);
    cr_assert(n && n->status == RG_ERR_PEER_LOST && n->peer == 4);
    rig_end(&r);
}

Test(recovery, all_survivors_are_complete__committed_with_the_epoch_in_which_it_was_computed) {
    rig_group(&r, 3);
    for (int i = 0; i < 3; i++) {
        rig_op(&r, i, RG_MEV_OP_START, k0, sig_of(1, RG_RETURN));
        rig_op(&r, i, RG_MEV_OP_COMPLETE, k0, sig_of(1, RG_RETURN));
    }
    rig_kill(&r, 1);
    for (int i = 0; i < 3; i += 2) {
        const rig_note_t *n = told(&r, i, RG_MACT_OP_COMMIT, k0);
        cr_assert(n && n->computed == 1 && n->keep == 0);
    }
    rig_end(&r);
}

Test(recovery, one_survivor_has_shown_a_small_result__the_others_fetch_it) {
    rig_group(&r, 4);
    rg_op_sig_t s = sig_of(0, RG_RETURN);
    rig_op(&r, 0, RG_MEV_OP_START, k0, s);
    rig_op(&r, 1, RG_MEV_OP_START, k0, s);
    rig_op(&r, 0, RG_MEV_OP_COMPLETE, k0, s);
    rig_kill(&r, 3);
    const rig_note_t *n = told(&r, 1, RG_MACT_OP_FORWARD, k0);
    cr_assert(n && n->peer == rg_member_id(r.m[0]) && n->computed == 1);
    cr_assert(told(&r, 0, RG_MACT_OP_SERVE, k0) != NULL);
    cr_assert(told(&r, 0, RG_MACT_OP_RELEASE, k0) == NULL);
    cr_assert(told(&r, 2, RG_MACT_OP_FORWARD, k0) == NULL);
    rig_op(&r, 2, RG_MEV_OP_START, k0, s);
    cr_assert(told(&r, 2, RG_MACT_OP_FORWARD, k0) != NULL);
    rig_op(&r, 2, RG_MEV_OP_FETCHED, k0, s);
    n = told(&r, 2, RG_MACT_OP_COMMIT, k0);
    cr_assert(n && n->computed == 1 && n->keep == 1);
    rig_end(&r);
}

Test(recovery, the_root_dies__root_lost) {
    for (uint8_t rule_l = 0; rule_l < 2; rule_l++) {
        rig_group(&r, 3);
        rg_op_sig_t s = sig_of(rule_l, RG_RETRY);
        s.kind = RG_KIND_BROADCAST;
        s.root = 3;
        rig_op(&r, 0, RG_MEV_OP_START, k0, s);
        rig_kill(&r, 2);
        const rig_note_t *n = told(&r, 0, RG_MACT_OP_ABORT, k0);
        cr_assert(n && n->status == RG_ERR_ROOT_LOST && n->peer == 3, "%d", n ? n->status : 0);
        rig_op(&r, 0, RG_MEV_OP_START, key_of(0, 0, 1), s);
        n = told(&r, 0, RG_MACT_OP_ABORT, key_of(0, 0, 1));
        cr_assert(n && n->status == RG_ERR_ROOT_LOST);
        /* Whoever means another member by that rank hears of it all the same. */
        s.root = 2;
        rig_op(&r, 1, RG_MEV_OP_START, k0, s);
        rig_op(&r, 1, RG_MEV_OP_START, key_of(0, 0, 1), s);
        rig_pass(&r, RIG_HEARTBEAT / 2);
        n = told(&r, 1, RG_MACT_OP_ABORT, key_of(0, 0, 1));
        cr_assert(n && n->status == RG_ERR_ROOT_LOST, "rule %s", rule_l ? "L" : "S");
        rig_end(&r);
    }
}

/* One of those who stay has shown the root's data: the others get them from there. */
Test(recovery, the_root_dies_behind_a_result_under_rule_s__the_others_get_it) {
    rig_group(&r, 3);
    rg_op_sig_t s = sig_of(0, RG_RETRY);
    s.kind = RG_KIND_BROADCAST;
    s.root = 3;
    for (int i = 0; i < 3; i++) rig_op(&r, i, RG_MEV_OP_START, k0, s);
    rig_op(&r, 0, RG_MEV_OP_COMPLETE, k0, s);
    rig_kill(&r, 2);
    const rig_note_t *n = told(&r, 1, RG_MACT_OP_FORWARD, k0);
    cr_assert(n && n->peer == 1 && told(&r, 0, RG_MACT_OP_SERVE, k0));
    rig_op(&r, 1, RG_MEV_OP_FETCHED, k0, s);
    cr_assert(told(&r, 1, RG_MACT_OP_COMMIT, k0) && !told(&r, 1, RG_MACT_OP_ABORT, k0));
    rig_end(&r);
}

Test(recovery, a_rooted_operation_started_before__numbering_names_the_old_epoch) {
    rig_group(&r, 3);
    rg_op_sig_t s = sig_of(1, RG_RETRY);
    s.kind = RG_KIND_BROADCAST;
    s.root = 2;
    rig_op(&r, 1, RG_MEV_OP_START, k0, s);
    rig_kill(&r, 0);
    cr_assert(rg_member_numbering(r.m[2], k0) == 1);
    cr_assert(rg_member_numbering(r.m[2], key_of(0, 0, 1)) == 0);
    rig_op(&r, 2, RG_MEV_OP_START, k0, s);
    cr_assert(told(&r, 2, RG_MACT_OP_RUN, k0) != NULL);
    rig_end(&r);
}

Test(recovery, started_behind_the_fence__runs_at_activation) {
    rig_group(&r, 3);
    r.cut[1] = 1; /* its report is late */
    uint64_t c = r.conn[2];
    r.conn[2] = 0;
    free(r.m[2]);
    r.m[2] = NULL;
    rig_coord(&r, RG_CEV_CLOSED, c, NULL, 0);
    rig_settle(&r);
    cr_assert(rg_member_fenced(r.m[0]));
    rig_op(&r, 0, RG_MEV_OP_START, k0, sig_of(1, RG_RETRY));
    cr_assert(told(&r, 0, RG_MACT_OP_RUN, k0) == NULL);
    r.cut[1] = 0;
    rig_pass(&r, RIG_HEARTBEAT / 2);
    cr_assert(!rg_member_fenced(r.m[0]));
    cr_assert(told(&r, 0, RG_MACT_OP_RUN, k0) != NULL);
    cr_assert(rg_member_view(r.m[1])->n == 2);
    rig_end(&r);
}

Test(fail, one_never_calls_it__timeout_for_all_and_the_group_goes_on) {
    rig_group(&r, 3);
    rg_op_key_t k = key_of(0, 3, 0), k2 = key_of(0, 0, 0);
    for (int i = 0; i < 2; i++) rig_op(&r, i, RG_MEV_OP_START, k, sig_of(1, RG_RETRY));
    for (int i = 0; i < 3; i++) rig_op(&r, i, RG_MEV_OP_START, k2, sig_of(1, RG_RETRY));
    rig_member(&r, 0,
               (rg_member_event_t){
                   .type = RG_MEV_OP_FAIL, .key = k, .status = RG_ERR_TIMEOUT, .text = "deadline passed after 5 s" });
    rig_settle(&r);
    for (int i = 0; i < 2; i++) {
        const rig_note_t *n = told(&r, i, RG_MACT_OP_ABORT, k);
        cr_assert(n && n->status == RG_ERR_TIMEOUT);
        cr_assert(strcmp(n->text, "deadline passed after 5 s") == 0);
    }
    for (int i = 0; i < 3; i++) cr_assert(told(&r, i, RG_MACT_OP_RESTART, k2) != NULL);
    rig_op(&r, 2, RG_MEV_OP_START, k, sig_of(1, RG_RETRY));
    const rig_note_t *n = told(&r, 2, RG_MACT_OP_ABORT, k);
    cr_assert(n && n->status == RG_ERR_TIMEOUT);
    rig_end(&r);
}

Test(fail, different_arguments__mismatch_names_both_sides_and_the_minority) {
    rig_group(&r, 3);
    rg_op_sig_t s = sig_of(1, RG_RETRY), other = s;
    other.dtype = RG_F16;
    rig_op(&r, 0, RG_MEV_OP_START, k0, s);
    rig_op(&r, 1, RG_MEV_OP_START, k0, other);
    rig_op(&r, 2, RG_MEV_OP_START, k0, other);
    rig_member(&r, 1,
               (rg_member_event_t){
                   .type = RG_MEV_OP_FAIL, .key = k0, .status = RG_ERR_MISMATCH, .peer = 1, .text = "differs" });
    rig_settle(&r);
    for (int i = 0; i < 3; i++) {
        const rig_note_t *n = told(&r, i, RG_MACT_OP_ABORT, k0);
        cr_assert(n && n->status == RG_ERR_MISMATCH && n->peer == 1);
        cr_assert(strcmp(n->text, "rank 0: all_reduce f32 sum count 10; rank 1: all_reduce f16 sum count 10") == 0);
    }
    rig_end(&r);
}

Test(fail, the_result_is_already_shown_somewhere__forwarded_and_not_aborted) {
    rig_group(&r, 2);
    rg_op_sig_t s = sig_of(0, RG_RETRY);
    for (int i = 0; i < 2; i++) rig_op(&r, i, RG_MEV_OP_START, k0, s);
    rig_op(&r, 0, RG_MEV_OP_COMPLETE, k0, s);
    rig_member(&r, 1,
               (rg_member_event_t){ .type = RG_MEV_OP_FAIL, .key = k0, .status = RG_ERR_TIMEOUT, .text = "late" });
    rig_settle(&r);
    cr_assert(told(&r, 1, RG_MACT_OP_ABORT, k0) == NULL);
    cr_assert(told(&r, 1, RG_MACT_OP_FORWARD, k0) != NULL);
    rig_end(&r);
}

Test(fail, while_the_coordinator_is_lost__ends_here_and_later_for_all) {
    rig_group(&r, 2);
    for (int i = 0; i < 2; i++) rig_op(&r, i, RG_MEV_OP_START, k0, sig_of(1, RG_RETRY));
    r.cut[0] = 1;
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_CONTROL_DOWN });
    cr_assert(rg_member_coordinator_lost(r.m[0]));
    for (int k = 0; k < 20; k++) {
        r.now += RIG_HEARTBEAT / 16;
        rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_TICK });
    }
    cr_assert(told_any(&r, 0, RG_MACT_CONTROL) != NULL);
    rig_member(&r, 0,
               (rg_member_event_t){ .type = RG_MEV_OP_FAIL, .key = k0, .status = RG_ERR_TIMEOUT, .text = "late" });
    const rig_note_t *n = told(&r, 0, RG_MACT_OP_ABORT, k0);
    cr_assert(n && n->status == RG_ERR_TIMEOUT);
    rig_end(&r);
}

/* The coordinator may have heard of it all the while: hanging up is what would cost this member its place. */
Test(fail, the_line_stands_still_for_a_heartbeat__the_connection_is_kept) {
    rig_group(&r, 2);
    r.cut[0] = 1;
    for (uint64_t from = r.now; r.now < from + RIG_HEARTBEAT * 3 / 2;) {
        r.now += RIG_HEARTBEAT / 16;
        rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_TICK });
    }
    cr_assert(rg_member_coordinator_lost(r.m[0]));
    uint32_t at = r.notes[0];
    int dialled = 0;
    for (uint32_t x = 0; x < at; x++) dialled += r.note[0][x].type == RG_MACT_CONTROL;
    cr_assert(dialled == 0, "%d", dialled);
    for (int k = 0; k < 16; k++) {
        r.now += RIG_HEARTBEAT / 16;
        rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_TICK });
    }
    for (dialled = 0; at < r.notes[0]; at++) dialled += r.note[0][at].type == RG_MACT_CONTROL;
    cr_assert(dialled == 1, "%d", dialled);
    rig_end(&r);
}

Test(fail, a_link_is_down_and_the_coordinator_lost__coordinator_error_names_both) {
    rig_group(&r, 2);
    rig_op(&r, 0, RG_MEV_OP_START, k0, sig_of(1, RG_RETRY));
    r.cut[0] = 1;
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_CONTROL_DOWN });
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_LINK_DOWN, .peer = 2, .text = "reset" });
    for (int k = 0; k < 20; k++) {
        r.now += RIG_HEARTBEAT / 16;
        rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_TICK });
    }
    const rig_note_t *n = told(&r, 0, RG_MACT_OP_ABORT, k0);
    cr_assert(n && n->status == RG_ERR_COORDINATOR && n->peer == 2);
    cr_assert(strstr(n->text, "rank 1 (member 2)") && strstr(n->text, "coordinator"), "%s", n->text);
    rig_end(&r);
}
