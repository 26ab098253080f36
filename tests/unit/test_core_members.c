/* test_core_members.c: who gets in, who goes out, and what they are told: joining, boundaries, leaving, broken links,
 * reconnection, and a coordinator of a thousand members. */
#include "core_rig.h"

static rig_t r;
static const rg_op_key_t none = { 0, 0, 0 };

Test(join, three_wait_for_three__one_first_view_in_order_of_arrival) {
    rig_start(&r, 8);
    for (int i = 0; i < 3; i++) {
        rig_join(&r, i, rig_params(i, 3));
        cr_assert((rg_member_view(r.m[0]) != NULL) == (i == 2));
    }
    for (int i = 0; i < 3; i++) {
        const rg_core_view_t *v = rg_member_view(r.m[i]);
        cr_assert(v && v->n == 3 && v->kind == RG_VIEW_FIRST && v->epoch == 1);
        cr_assert(v->members[i].id == rg_member_id(r.m[i]));
        const rig_note_t *n = told_any(&r, i, RG_MACT_JOINED);
        cr_assert(n && n->gen == 0);
    }
    rig_end(&r);
}

/* A millisecond passes; what was sent arrives 12 ms later, from and to other members 2 ms later still. */
static void far_step(uint32_t *seen, uint64_t due[RIG_QUEUE]) {
    r.now += 1000000;
    rig_coord(&r, RG_CEV_TICK, 0, NULL, 0);
    for (int i = 0; i < RIG_MAX; i++)
        if (r.m[i]) rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_TICK });
    for (; *seen != r.tail; ++*seen)
        due[*seen % RIG_QUEUE] = r.now + 12000000 + 2000000 * (uint64_t)r.queue[*seen % RIG_QUEUE].node;
    for (uint32_t at = r.head, end = r.tail; at != end; at++) {
        rig_msg_t *m = &r.queue[at % RIG_QUEUE], got = *m;
        if (!got.bytes || due[at % RIG_QUEUE] > r.now) continue;
        m->bytes = NULL;
        if (got.to_coord) rig_coord(&r, RG_CEV_MESSAGE, got.conn, got.bytes, got.len);
        else
            rig_member(&r, got.node, (rg_member_event_t){ .type = RG_MEV_MESSAGE, .bytes = got.bytes, .len = got.len });
        free(got.bytes);
    }
    while (r.head != r.tail && !r.queue[r.head % RIG_QUEUE].bytes) r.head++;
}

/* Each answer takes longer than the coordinator allows at first. It must not ask anew for ever. */
Test(join, candidates_are_far_away__they_get_in_all_the_same) {
    rig_start(&r, 8);
    rg_coord_params_t slow = { .max_members = 8, .heartbeat_ns = 2000000000, .id = 7 };
    cr_assert(rg_coord_init(r.coord, &slow) == 0); /* heartbeats are rare beside the answers */
    for (int i = 0; i < 3; i++) {
        r.m[i] = calloc(1, rg_member_size(RIG_MAX));
        rg_member_params_t p = rig_params(i, 3);
        cr_assert(rg_member_init(r.m[i], &p) == 0);
        r.conn[i] = ++r.conns;
        rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_CONTROL_UP });
    }
    static uint64_t due[RIG_QUEUE];
    uint32_t seen = r.head;
    for (int ms = 0; ms < 600 && !rg_member_view(r.m[0]); ms++) far_step(&seen, due);
    cr_assert(rg_member_view(r.m[0]) && rg_member_view(r.m[0])->n == 3);
    rig_end(&r);
}

/* What a member calls after a boundary depends on who entered there, so all must count alike. */
Test(join, newcomer_is_lost_when_some_have_passed_its_boundary__all_count_it) {
    rig_start(&r, 8);
    rig_fill(&r, 2);
    rig_join(&r, 2, rig_params(2, 1));
    const rig_note_t *n = told_any(&r, 2, RG_MACT_JOINED);
    cr_assert(n && n->gen == 2);
    for (uint64_t gen = 1; gen <= 2; gen++)
        rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_BOUNDARY, .gen = gen });
    cr_assert(r.m[0]->gen == 2 && r.m[1]->gen == 0);
    rig_kill(&r, 2);
    cr_assert(rg_member_view(r.m[1])->n == 2);
    rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_BOUNDARY, .gen = 1 });
    /* The next one must not enter before that boundary, where it would count nobody. */
    rig_join(&r, 3, rig_params(3, 1));
    n = told_any(&r, 3, RG_MACT_JOINED);
    cr_assert(n && n->gen > 2);
    rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_BOUNDARY, .gen = 2 });
    for (int i = 0; i < 2; i++) {
        cr_assert(r.m[i]->gen == 2 && rg_member_entered(r.m[i], 2) == 1, "member %d", i);
        cr_assert(rg_member_entered(r.m[i], n->gen) == 1 && rg_member_entered(r.m[i], 1) == 0);
    }
    rig_end(&r);
}

Test(join, newcomers_die_at_more_boundaries_than_are_kept__all_are_counted_somewhere) {
    rig_start(&r, 8);
    rig_fill(&r, 1);
    for (uint32_t k = 0; k < RG_ENTERED_MAX + 3; k++) rg_entered_lost(r.m[0], 5 + k);
    uint32_t sum = 0;
    for (uint64_t gen = 5; gen < 5 + RG_ENTERED_MAX + 3; gen++) sum += rg_member_entered(r.m[0], gen);
    cr_assert(sum == RG_ENTERED_MAX + 3 && r.m[0]->n_entered == RG_ENTERED_MAX);
    r.m[0]->gen = 60; /* what is behind is forgotten */
    rg_entered_lost(r.m[0], 7);
    cr_assert(r.m[0]->n_entered == 0);
    rig_end(&r);
}

Test(join, order_is_given__ranks_follow_it) {
    rig_start(&r, 8);
    for (int i = 0; i < 3; i++) {
        rg_member_params_t p = rig_params(i, 3);
        p.order = 10u - (uint32_t)i;
        rig_join(&r, i, p);
    }
    for (int i = 0; i < 3; i++) cr_assert(rg_member_view(r.m[0])->members[i].id == rg_member_id(r.m[2 - i]));
    rig_end(&r);
}

Test(join, ranks_are_fixed__as_asked_and_a_taken_one_is_refused) {
    rig_start(&r, 8);
    for (int i = 0; i < 2; i++) {
        rg_member_params_t p = rig_params(i, 1);
        p.fixed_n = 3;
        p.fixed_rank = 2;
        rig_join(&r, i, p);
    }
    const rig_note_t *n = told_any(&r, 1, RG_MACT_REFUSED);
    cr_assert(n && n->status == RG_ERR_REFUSED && strstr(n->text, "rank 2 is taken"), "%s", n ? n->text : "-");
    n = told_any(&r, 0, RG_MACT_WAITING);
    cr_assert(n != NULL);
    cr_assert(strcmp(n->text, "1 of 3 members are here; missing ranks: 0, 1") == 0);
    for (int i = 2; i < 4; i++) {
        rg_member_params_t p = rig_params(i, 1);
        p.fixed_n = 3;
        p.fixed_rank = 3u - (uint32_t)i;
        rig_join(&r, i, p);
    }
    const rg_core_view_t *v = rg_member_view(r.m[0]);
    cr_assert(v && v->n == 3);
    cr_assert(v->members[2].id == rg_member_id(r.m[0]));
    cr_assert(v->members[0].id == rg_member_id(r.m[3]));
    rig_end(&r);
}

Test(join, group_is_full__refused_with_the_limit) {
    rig_start(&r, 1);
    rig_join(&r, 0, rig_params(0, 1));
    rig_join(&r, 1, rig_params(1, 1));
    const rig_note_t *n = told_any(&r, 1, RG_MACT_REFUSED);
    cr_assert(n && n->status == RG_ERR_RESOURCE && strstr(n->text, "max_members"));
    rig_end(&r);
}

Test(join, another_version__refused_with_both) {
    rig_start(&r, 8);
    r.m[0] = calloc(1, rg_member_size(RIG_MAX));
    rg_member_params_t p = rig_params(0, 1);
    cr_assert(rg_member_init(r.m[0], &p) == 0);
    r.conn[0] = ++r.conns;
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_CONTROL_UP });
    r.queue[0].bytes[4] = 9;
    rig_settle(&r);
    const rig_note_t *n = told_any(&r, 0, RG_MACT_REFUSED);
    cr_assert(n && n->status == RG_ERR_PROTOCOL && strstr(n->text, "version 9"), "%s", n ? n->text : "-");
    rig_end(&r);
}

Test(join, a_running_group__newcomer_enters_at_the_cut_and_nobody_is_fenced) {
    rig_group(&r, 2);
    rig_join(&r, 2, rig_params(2, 1));
    const rig_note_t *n = told_any(&r, 2, RG_MACT_JOINED);
    const rg_core_view_t *v = rg_member_view(r.m[0]);
    cr_assert(n && n->gen == 2 && v->cut == 2 && v->n == 3 && v->kind == RG_VIEW_JOIN && v->data_epoch == 1);
    cr_assert(told_any(&r, 0, RG_MACT_FENCE) == NULL);
    cr_assert(rg_member_participants(r.m[0], 1, NULL, 0) == 2);
    cr_assert(rg_member_participants(r.m[0], 2, NULL, 0) == 3);
    cr_assert(rg_member_newcomers(r.m[0]));
    for (uint64_t g = 1; g <= 2; g++) rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_BOUNDARY, .gen = g });
    cr_assert(!rg_member_newcomers(r.m[0]));
    rig_end(&r);
}

Test(join, a_promise_is_reached__the_boundary_is_held_until_the_view_is_known) {
    rig_group(&r, 2);
    r.cut[1] = 1; /* member 1 does not hear of PREPARE, so the cut stays open */
    rig_join(&r, 2, rig_params(2, 1));
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_BOUNDARY, .gen = 1 });
    cr_assert(told_any(&r, 0, RG_MACT_BOUNDARY) && told_any(&r, 0, RG_MACT_BOUNDARY)->gen == 1);
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_BOUNDARY, .gen = 2 });
    const rig_note_t *n = told_any(&r, 0, RG_MACT_BOUNDARY);
    int prepared = r.m[0]->promise_on;
    cr_assert(n->gen == (prepared ? 1u : 2u));
    /* Silence of member 1 ends in its loss, and any successor of the view frees the boundary. */
    rig_pass(&r, 2 * RIG_HEARTBEAT);
    cr_assert(told_any(&r, 0, RG_MACT_BOUNDARY)->gen == 2);
    rig_end(&r);
}

Test(join, a_candidate_dies_after_the_promises__members_are_freed_at_once) {
    rig_group(&r, 2);
    rig_join(&r, 2, rig_params(2, 1));
    r.m[0]->promise_on = 0;
    cr_assert(rg_member_view(r.m[0])->n == 3);
    rig_kill(&r, 2);
    cr_assert(rg_member_view(r.m[0])->n == 2);
    cr_assert(!rg_member_newcomers(r.m[0]));
    rig_end(&r);
}

Test(join, a_candidate_that_does_not_answer__costs_the_members_nothing) {
    rig_group(&r, 2);
    r.m[3] = NULL;
    rig_join(&r, 2, rig_params(2, 1));
    cr_assert(rg_member_view(r.m[2]) != NULL);
    /* The next one says READY and falls silent. */
    r.m[3] = calloc(1, rg_member_size(RIG_MAX));
    rg_member_params_t p = rig_params(3, 1);
    cr_assert(rg_member_init(r.m[3], &p) == 0);
    r.conn[3] = ++r.conns;
    rig_member(&r, 3, (rg_member_event_t){ .type = RG_MEV_CONTROL_UP });
    while (r.head != r.tail && !(r.coord->growth == RG_GROW_CHECK)) {
        rig_msg_t m = r.queue[r.head++ % RIG_QUEUE];
        if (m.to_coord) rig_coord(&r, RG_CEV_MESSAGE, m.conn, m.bytes, m.len);
        else rig_member(&r, m.node, (rg_member_event_t){ .type = RG_MEV_MESSAGE, .bytes = m.bytes, .len = m.len });
        free(m.bytes);
    }
    cr_assert(r.coord->growth == RG_GROW_CHECK);
    r.cut[3] = 1;
    while (r.head != r.tail) free(r.queue[r.head++ % RIG_QUEUE].bytes);
    rig_pass(&r, RIG_HEARTBEAT / 2);
    for (int i = 0; i < 3; i++)
        cr_assert(!r.m[i]->promise_on, "member %d holds boundaries for a candidate that is not there", i);
    cr_assert(rg_member_view(r.m[0])->n == 3);
    rig_end(&r);
}

Test(leave, in_order__closed_for_the_leaver_and_left_for_the_others) {
    rig_group(&r, 3);
    rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_LEAVE });
    rig_settle(&r);
    const rig_note_t *n = told_any(&r, 1, RG_MACT_EXPELLED);
    cr_assert(n && n->status == RG_ERR_CLOSED);
    cr_assert(rg_member_view(r.m[0])->n == 2);
    cr_assert(strstr(r.log, "lost rank 1 (id 2, box, pid 101): left") != NULL, "%s", r.log);
    rig_end(&r);
}

/* The one that finishes last knows that the others are past the operation, and keeps no copy of it that would make it
 * say soon that it is, too. */
Test(leave, after_the_last_operation__others_are_told_that_it_is_past) {
    rig_group(&r, 2);
    for (int i = 0; i < 2; i++) rig_op(&r, i, RG_MEV_OP_START, none, sig_of(0, RG_RETRY));
    rig_op(&r, 0, RG_MEV_OP_COMPLETE, none, sig_of(0, RG_RETRY));
    rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_WATERMARK, .peer = rg_member_id(r.m[0]), .note = 1 });
    rig_op(&r, 1, RG_MEV_OP_COMPLETE, none, sig_of(0, RG_RETRY));
    cr_assert(rg_member_drained(r.m[1]) && !rg_member_drained(r.m[0]));
    rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_LEAVE });
    const rig_note_t *n = told_any(&r, 1, RG_MACT_NOTE);
    cr_assert(n && n->flush && n->note == 1);
    rig_end(&r);
}

Test(detect, silence__expelled_and_told_so_when_it_speaks_again) {
    rig_group(&r, 3);
    rig_member(&r, 2, (rg_member_event_t){ .type = RG_MEV_OP_START, .key = none, .sig = sig_of(1, RG_RETRY) });
    r.cut[2] = 1;
    rig_pass(&r, RIG_HEARTBEAT + RIG_HEARTBEAT / 2);
    cr_assert(rg_member_view(r.m[0])->n == 2);
    cr_assert(strstr(r.log, "no message for") != NULL);
    r.cut[2] = 0;
    rig_connect(&r, 2);
    const rig_note_t *n = told_any(&r, 2, RG_MACT_EXPELLED);
    cr_assert(n && n->status == RG_ERR_EXPELLED && strstr(n->text, "no message for"), "%s", n ? n->text : "-");
    n = told(&r, 2, RG_MACT_OP_ABORT, none);
    cr_assert(n && n->status == RG_ERR_EXPELLED);
    rig_end(&r);
}

Test(detect, a_link_between_two_live_members_breaks__the_later_rank_goes_and_hears_why) {
    rig_group(&r, 3);
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_LINK_DOWN, .peer = 2, .text = "connection reset" });
    rig_settle(&r);
    cr_assert(rg_member_view(r.m[0])->n == 3);
    rig_pass(&r, RIG_HEARTBEAT / 4);
    cr_assert(rg_member_view(r.m[0])->n == 2);
    const rig_note_t *n = told_any(&r, 1, RG_MACT_EXPELLED);
    cr_assert(n && strstr(n->text, "its link to rank 0 (member 1) broke: connection reset"), "%s", n ? n->text : "-");
    rig_end(&r);
}

Test(detect, two_members_complain_about_one__that_one_goes) {
    rig_group(&r, 3);
    rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_LINK_DOWN, .peer = 1, .text = "reset" });
    rig_member(&r, 2, (rg_member_event_t){ .type = RG_MEV_LINK_DOWN, .peer = 1, .text = "reset" });
    rig_settle(&r);
    rig_pass(&r, RIG_HEARTBEAT / 4);
    cr_assert(told_any(&r, 0, RG_MACT_EXPELLED) != NULL);
    cr_assert(rg_member_view(r.m[1])->n == 2);
    rig_end(&r);
}

Test(detect, the_only_member_comes_back_on_a_new_connection__it_stays) {
    rig_group(&r, 1);
    uint64_t c = r.conn[0];
    r.conn[0] = 0;
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_CONTROL_DOWN });
    rig_coord(&r, RG_CEV_CLOSED, c, NULL, 0);
    r.now += RIG_HEARTBEAT / 4;
    rig_connect(&r, 0);
    cr_assert(told_any(&r, 0, RG_MACT_EXPELLED) == NULL);
    cr_assert(!rg_member_fenced(r.m[0]));
    rig_pass(&r, 2 * RIG_HEARTBEAT);
    cr_assert(told_any(&r, 0, RG_MACT_EXPELLED) == NULL);
    cr_assert(rg_coord_population(r.coord) == 1);
    rig_end(&r);
}

Test(detect, the_coordinator_was_stopped__nobody_is_suspected_for_that) {
    rig_group(&r, 3);
    r.now += 20 * RIG_HEARTBEAT;
    rig_coord(&r, RG_CEV_TICK, 0, NULL, 0);
    rig_settle(&r);
    cr_assert(r.coord->round == RG_ROUND_NONE);
    rig_end(&r);
}

Test(detect, all_are_gone__the_group_can_be_founded_again) {
    rig_group(&r, 2);
    rig_kill(&r, 0);
    rig_kill(&r, 1);
    rig_pass(&r, 2 * RIG_HEARTBEAT);
    cr_assert(rg_coord_population(r.coord) == 0);
    rig_join(&r, 2, rig_params(2, 1));
    const rg_core_view_t *v = rg_member_view(r.m[2]);
    cr_assert(v && v->n == 1 && v->kind == RG_VIEW_FIRST && v->epoch > 2);
    rig_end(&r);
}

Test(detect, garbage_from_a_member__it_is_shown_out) {
    rig_group(&r, 2);
    rig_coord(&r, RG_CEV_MESSAGE, r.conn[1], (const uint8_t *)"GET / HTTP/1.1\r\n", 16);
    rig_settle(&r);
    cr_assert(rg_member_view(r.m[0])->n == 1);
    rig_end(&r);
}

Test(roll, members_and_candidates__in_rank_order) {
    rig_group(&r, 2);
    rig_member(&r, 0,
               (rg_member_event_t){ .type = RG_MEV_TICK, .bytes_sent = 5, .bytes_received = 6, .operations = 7 });
    rig_pass(&r, RIG_HEARTBEAT / 4);
    rg_roll_row_t rows[4];
    uint64_t epoch;
    cr_assert(rg_coord_roll(r.coord, r.now, rows, 4, &epoch) == 2);
    cr_assert(epoch == 1 && rows[0].id == 1 && rows[1].rank == 1 && rows[0].bytes_sent == 5 && rows[0].operations == 7);
    cr_assert(strcmp(rows[1].label, "box") == 0);
    rig_end(&r);
}

/* ---- A thousand ------------------------------------------------------------------------------------------------ */

#define CROWD 1000

static uint64_t sent[16];

static void crowd_drain(rg_coord_t *c) {
    rg_coord_action_t a;
    while (rg_coord_next(c, &a))
        if (a.type == RG_CACT_SEND) sent[a.bytes[6] % 16 == RG_MSG_ACTIVATE % 16 && a.bytes[6] == RG_MSG_ACTIVATE]++;
    cr_assert(rg_coord_check(c) == NULL, "%s", rg_coord_check(c));
}

static void crowd_message(rg_coord_t *c, uint64_t now, uint64_t conn, const rg_w_t *w) {
    rg_coord_event_t ev = { .type = RG_CEV_MESSAGE, .now_ns = now, .conn = conn, .bytes = w->p, .len = w->len };
    cr_assert(rg_coord_step(c, &ev) == 0);
}

Test(crowd, a_thousand_join_and_one_dies__one_view_and_one_recovery) {
    static uint8_t buf[4096];
    static const uint8_t net[RG_CORE_NET];
    uint64_t now = 1000000000;
    rg_coord_t *c = calloc(1, rg_coord_size(CROWD));
    rg_coord_params_t p = { .max_members = CROWD, .heartbeat_ns = 2000000000, .id = 1 };
    cr_assert(rg_coord_init(c, &p) == 0);
    rg_msg_join_t j = { .min_size = CROWD, .addr_len = 64 };
    for (uint64_t i = 1; i <= CROWD; i++) {
        rg_w_t w = { buf, 0, sizeof buf, 0 };
        rg_w_join(&w, &j);
        crowd_message(c, now, i, &w);
        crowd_drain(c);
    }
    for (int k = 0; k < 50 && rg_coord_deadline(c) <= now + 10000000; k++) {
        rg_coord_event_t ev = { .type = RG_CEV_TICK, .now_ns = now += 2000000 };
        cr_assert(rg_coord_step(c, &ev) == 0);
        crowd_drain(c);
    }
    for (int phase = 0; phase < 2; phase++) {
        for (uint64_t i = 1; i <= CROWD; i++) {
            rg_w_t w = { buf, 0, sizeof buf, 0 };
            rg_w_header(&w, phase ? RG_MSG_PROMISE : RG_MSG_READY);
            if (phase) {
                rg_w_term(&w, (rg_term_t){ 1, 1 });
                rg_w_u64(&w, 0);
                rg_w_u64(&w, 0);
            } else {
                rg_w_u64(&w, CROWD);
                rg_w_bytes(&w, net, sizeof net);
                rg_w_u32(&w, 0);
            }
            crowd_message(c, now, i, &w);
            if (i % 100 == 0) crowd_drain(c);
        }
    }
    crowd_drain(c);
    cr_assert(c->n == CROWD);
    rg_coord_event_t gone = { .type = RG_CEV_CLOSED, .now_ns = now, .conn = 500 };
    cr_assert(rg_coord_step(c, &gone) == 0);
    for (uint64_t i = 1; i <= CROWD; i++) {
        if (i == 500) continue;
        rg_w_t w = { buf, 0, sizeof buf, 0 };
        rg_report_head_t h = { .term = { 1, 1 }, .base = 1 };
        rg_w_report_head(&w, &h);
        rg_w_u32(&w, 0);
        rg_w_u32(&w, 0);
        rg_w_u32(&w, 0);
        crowd_message(c, now, i, &w);
    }
    crowd_drain(c);
    cr_assert(c->n == CROWD - 1 && c->epoch == 2);
    free(c);
}

/* K2: the coordinator was stopped and goes on; nobody hung up. */
Test(core_members, end_without_coordinator__it_goes_on_on_the_same_connection__others_hear_of_the_end) {
    rig_group(&r, 2);
    for (int i = 0; i < 2; i++) rig_op(&r, i, RG_MEV_OP_START, key_of(0, 1, 0), sig_of(1, RG_RETRY));
    r.cut[0] = 1;
    for (int k = 0; k < 20; k++) {
        r.now += RIG_HEARTBEAT / 16;
        rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_TICK });
    }
    rig_member(&r, 0,
               (rg_member_event_t){
                   .type = RG_MEV_OP_FAIL, .key = key_of(0, 1, 0), .status = RG_ERR_TIMEOUT, .text = "late" });
    cr_assert(told(&r, 0, RG_MACT_OP_ABORT, key_of(0, 1, 0)) && !told(&r, 1, RG_MACT_OP_ABORT, key_of(0, 1, 0)));
    r.cut[0] = 0;
    rig_pass(&r, RIG_HEARTBEAT / 2);
    const rig_note_t *n = told(&r, 1, RG_MACT_OP_ABORT, key_of(0, 1, 0));
    cr_assert(n && n->status == RG_ERR_TIMEOUT);
    cr_assert(rg_member_view(r.m[0])->n == 2);
    rig_end(&r);
}
