/* test_core_succession.c: what happens to the office: a coordinator that comes back with nothing, a quorum that is
 * missing, proposals that outlive whoever made them, members that look for an office or open one. It relies on
 * core_rig.h; the simulator plays the same with chance. Section 9 of docs/protocol.md. */
#include "core_rig.h"

#define FIRST_ID (RG_OFFICE_STANDALONE | 1)
#define SECOND_ID (RG_OFFICE_STANDALONE | 2)

static rig_t r;

static void group(int n, uint32_t host) {
    rig_start(&r, RIG_MAX);
    rig_office(&r, RIG_MAX, FIRST_ID);
    for (int i = 0; i < n; i++) {
        rg_member_params_t p = rig_params(i, (uint32_t)n);
        p.host_office = host;
        p.quorum_ns = 10 * RIG_HEARTBEAT;
        rig_join(&r, i, p);
    }
    for (int i = 0; i < n; i++) cr_assert(rg_member_view(r.m[i]) != NULL, "member %d is not in", i);
    for (int i = 0; i < n; i++) r.notes[i] = 0;
}

static void office_dies(int n) {
    for (int i = 0; i < n; i++) {
        if (!r.m[i]) continue;
        r.conn[i] = 0;
        rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_CONTROL_DOWN });
    }
    while (r.head != r.tail) free(r.queue[r.head++ % RIG_QUEUE].bytes);
}

static void close_at_office(int i) {
    uint64_t c = r.conn[i];
    r.conn[i] = 0;
    free(r.m[i]);
    r.m[i] = NULL;
    rig_coord(&r, RG_CEV_CLOSED, c, NULL, 0);
}

static void say(int i, const rg_w_t *w) {
    rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_MESSAGE, .bytes = w->p, .len = w->len });
}

static rg_msg_t last_said(void) {
    cr_assert(r.head != r.tail);
    return (rg_msg_t)r.queue[(r.tail - 1) % RIG_QUEUE].bytes[6];
}

Test(succession, the_coordinator_comes_back_with_nothing__nobody_stops_and_the_next_loss_is_decided) {
    group(3, 0);
    office_dies(3);
    rig_office(&r, RIG_MAX, SECOND_ID);
    for (int i = 0; i < 3; i++) rig_connect(&r, i);
    rig_pass(&r, RIG_HEARTBEAT);
    for (int i = 0; i < 3; i++) {
        cr_assert(told_any(&r, i, RG_MACT_FENCE) == NULL);
        cr_assert(!rg_member_coordinator_lost(r.m[i]));
    }
    cr_assert(r.coord->acting && r.coord->epoch == 1 && r.coord->n == 3);
    uint64_t dead = rg_member_id(r.m[2]);
    rig_kill(&r, 2);
    cr_assert(r.coord->n == 3); /* it may be on its way to another office, but for what its links say */
    rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_LINK_DOWN, .peer = dead, .text = "reset" });
    rig_settle(&r);
    for (int i = 0; i < 2; i++) cr_assert(rg_member_view(r.m[i])->epoch == 2 && rg_member_view(r.m[i])->n == 2);
    cr_assert(rg_member_view(r.m[0])->witness == SECOND_ID);
    rig_end(&r);
}

/* Found by the fuzzer: two seats with one connection, of which the office forgot one when that closed. */
Test(succession, a_member_tells_its_view_as_if_it_were_another__it_goes_and_the_other_stays) {
    enum { ID_AT = 8 + 2 + 7 }; /* behind the header and the name of the group, "default" */
    uint8_t buf[64];
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    group(3, 0);
    rg_w_header(&w, RG_MSG_PROBE);
    rg_w_u64(&w, 0);
    say(2, &w);
    cr_assert(last_said() == RG_MSG_VIEW);
    uint64_t self = rg_member_id(r.m[2]), other = rg_member_id(r.m[1]);
    uint8_t *id = r.queue[(r.tail - 1) % RIG_QUEUE].bytes + ID_AT;
    cr_assert(memcmp(id, &self, sizeof self) == 0);
    memcpy(id, &other, sizeof other);
    rig_settle(&r);
    cr_assert(r.coord->n == 2 && rg_member_view(r.m[1])->n == 2 && rg_seat_by_id(r.coord, self) == NULL);
    cr_assert(rg_seat_by_id(r.coord, other)->conn == r.conn[1]);
    rig_end(&r);
}

Test(succession, half_of_the_voters_without_the_first_member__the_office_is_silent) {
    group(3, 0);
    office_dies(3);
    rig_office(&r, RIG_MAX, SECOND_ID); /* no vote in the old view: four voters, of whom two are not enough */
    rig_connect(&r, 1);
    rig_connect(&r, 2);
    cr_assert(r.coord->have_view && !r.coord->acting);
    rig_connect(&r, 0);
    cr_assert(r.coord->acting);
    rig_end(&r);
}

/* Members that hang up on a coordinator that was stopped for a while are on their way elsewhere, and come back. */
Test(succession, the_coordinator_was_stopped_and_most_hung_up__nobody_is_expelled) {
    group(RIG_MAX, 0);
    for (int i = 4; i < RIG_MAX; i++) {
        uint64_t conn = r.conn[i];
        r.conn[i] = 0;
        rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_CONTROL_DOWN });
        rig_coord(&r, RG_CEV_CLOSED, conn, NULL, 0);
    }
    rig_op(&r, 0, RG_MEV_OP_START, key_of(0, 0, 0), sig_of(1, RG_RETRY)); /* a round that goes on meanwhile */
    rig_member(&r, 0,
               (rg_member_event_t){ .type = RG_MEV_OP_FAIL, .key = key_of(0, 0, 0), .status = RG_ERR_CANCELLED });
    rig_settle(&r);
    rig_pass(&r, 3 * RIG_HEARTBEAT);
    cr_assert(r.coord->n == RIG_MAX);
    for (int i = 4; i < RIG_MAX; i++) rig_connect(&r, i);
    rig_settle(&r);
    for (int i = 0; i < RIG_MAX; i++)
        cr_assert(rg_member_view(r.m[i])->epoch == 2 && rg_member_view(r.m[i])->n == RIG_MAX, "%d", i);
    rig_end(&r);
}

/* One of them went to look for another office meanwhile, and nothing told this one so; the others are back. */
Test(succession, the_coordinator_was_stopped_and_one_is_still_looking__it_is_waited_for) {
    group(4, 0);
    r.conn[3] = 0;
    rig_member(&r, 3, (rg_member_event_t){ .type = RG_MEV_CONTROL_DOWN });
    r.now += 3 * RIG_HEARTBEAT;
    rig_coord(&r, RG_CEV_TICK, 0, NULL, 0);
    rig_settle(&r);
    rig_pass(&r, 4 * RIG_HEARTBEAT);
    cr_assert(r.coord->n == 4);
    rig_connect(&r, 3);
    rig_pass(&r, 6 * RIG_HEARTBEAT);
    cr_assert(r.coord->n == 4 && rg_member_view(r.m[3])->n == 4);
    r.conn[3] = 0; /* the office has been awake since: it is missed as fast as ever */
    rig_pass(&r, 2 * RIG_HEARTBEAT);
    cr_assert(r.coord->n == 3);
    rig_end(&r);
}

/* Where all hang up at once they are as good as dead after half a heartbeat, until one of them comes. */
Test(succession, all_hung_up_and_one_comes_back__the_others_have_their_time_in_full) {
    group(4, 0);
    for (int i = 0; i < 4; i++) {
        uint64_t conn = r.conn[i];
        r.conn[i] = 0;
        rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_CONTROL_DOWN });
        rig_coord(&r, RG_CEV_CLOSED, conn, NULL, 0);
    }
    rig_pass(&r, RIG_HEARTBEAT / 4);
    rig_connect(&r, 2);
    rig_connect(&r, 1);
    rig_op(&r, 1, RG_MEV_OP_START, key_of(0, 0, 0), sig_of(1, RG_RETRY)); /* a round that must wait for all */
    rig_member(&r, 1,
               (rg_member_event_t){ .type = RG_MEV_OP_FAIL, .key = key_of(0, 0, 0), .status = RG_ERR_CANCELLED });
    rig_settle(&r);
    rig_pass(&r, 2 * RIG_HEARTBEAT);
    cr_assert(r.coord->n == 4 && r.coord->epoch == 1);
    rig_connect(&r, 0);
    rig_connect(&r, 3);
    rig_settle(&r);
    for (int i = 0; i < 4; i++) cr_assert(rg_member_view(r.m[i])->n == 4, "%d", i);
    rig_end(&r);
}

Test(succession, half_of_the_voters_with_the_first_member__go_on) {
    group(3, 0);
    office_dies(3);
    rig_office(&r, RIG_MAX, SECOND_ID);
    rig_connect(&r, 2);
    cr_assert(!r.coord->acting);
    rig_connect(&r, 0);
    cr_assert(r.coord->acting);
    rig_pass(&r, 4 * RIG_HEARTBEAT); /* the one that does not come has the time to find out who acts */
    cr_assert(rg_member_view(r.m[0])->n == 3);
    rig_pass(&r, 2 * RIG_HEARTBEAT);
    cr_assert(rg_member_view(r.m[0])->n == 2 && rg_member_view(r.m[2])->n == 2);
    rig_end(&r);
}

Test(succession, most_are_lost_at_once__no_view_and_the_rest_stops_with_no_quorum) {
    group(4, 0);
    rig_op(&r, 3, RG_MEV_OP_START, key_of(0, 0, 0), sig_of(1, RG_RETRY));
    for (int i = 0; i < 3; i++) close_at_office(i);
    rig_settle(&r);
    rig_pass(&r, 30 * RIG_HEARTBEAT);
    const rig_note_t *n = told_any(&r, 3, RG_MACT_EXPELLED);
    cr_assert(n && n->status == RG_ERR_NO_QUORUM, "%d", n ? n->status : 0);
    n = told(&r, 3, RG_MACT_OP_ABORT, key_of(0, 0, 0));
    cr_assert(n && n->status == RG_ERR_NO_QUORUM);
    cr_assert(told_any(&r, 3, RG_MACT_VIEW) == NULL);
    rig_end(&r);
}

static void write_freeze(rg_w_t *w, rg_term_t t) {
    rg_w_header(w, RG_MSG_FREEZE);
    rg_w_term(w, t);
    rg_w_u64(w, 1);
}

static void write_install(rg_w_t *w, rg_term_t t) {
    rg_view_head_t v = {
        .term = t, .epoch = 2, .parent = 1, .data_epoch = 2, .kind = RG_VIEW_RECOVERY, .form = 2, .n = 3
    };
    rg_w_header(w, RG_MSG_INSTALL);
    rg_w_term(w, t);
    rg_w_view_head(w, &v);
    for (int i = 0; i < 5; i++) rg_w_u32(w, 0); /* nobody gone, added, measured; no sets, no decisions */
}

Test(succession, a_proposal__accepted_reported_and_not_carried_out_and_lower_terms_refused) {
    uint8_t buf[512];
    group(3, 0);
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    write_install(&w, (rg_term_t){ 9, 5 });
    say(0, &w);
    cr_assert(last_said() == RG_MSG_ACCEPT && r.m[0]->accepted == 2);
    cr_assert(told_any(&r, 0, RG_MACT_VIEW) == NULL && rg_member_view(r.m[0])->epoch == 1);
    w.len = 0;
    write_freeze(&w, (rg_term_t){ 9, 4 });
    say(0, &w);
    cr_assert(last_said() == RG_MSG_NACK && !rg_member_fenced(r.m[0]));
    w.len = 0;
    write_install(&w, (rg_term_t){ 8, 7 });
    say(0, &w);
    cr_assert(last_said() == RG_MSG_NACK && r.m[0]->accepted_term.count == 9);
    w.len = 0;
    write_freeze(&w, (rg_term_t){ 10, 1 });
    say(0, &w);
    cr_assert(last_said() == RG_MSG_REPORT && rg_member_fenced(r.m[0]));
    cr_assert(r.queue[(r.tail - 2) % RIG_QUEUE].bytes[6] == RG_MSG_PROPOSAL);
    rig_settle(&r);
    rig_end(&r);
}

Test(succession, an_office_dies_between_accept_and_activate__the_next_one_chooses_the_same) {
    uint8_t buf[512];
    group(3, 0);
    for (int i = 1; i < 3; i++) { /* two of four voters have accepted: the witness may have been the third */
        rg_w_t w = { buf, 0, sizeof buf, 0 };
        write_install(&w, (rg_term_t){ 9, 5 });
        say(i, &w);
    }
    office_dies(3);
    rig_office(&r, RIG_MAX, SECOND_ID);
    for (int i = 0; i < 3; i++) rig_connect(&r, i);
    rig_pass(&r, RIG_HEARTBEAT);
    for (int i = 0; i < 3; i++) {
        const rg_core_view_t *v = rg_member_view(r.m[i]);
        cr_assert(v->epoch == 2 && v->term == 9 && v->term_owner == 5 && v->n == 3, "member %d: view %llu", i,
                  (unsigned long long)v->epoch);
        cr_assert(!rg_member_fenced(r.m[i]));
    }
    rig_end(&r);
}

Test(succession, no_coordinator_comes_back__members_look_in_order_and_open_an_office_in_turn) {
    group(3, 1);
    office_dies(3);
    uint64_t opened[3] = { 0 };
    for (int k = 0; k < 80; k++) {
        r.now += RIG_HEARTBEAT / 16;
        for (int i = 0; i < 3; i++) {
            uint32_t before = r.notes[i];
            rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_TICK });
            int dialled = 0;
            for (uint32_t x = before; x < r.notes[i]; x++) {
                dialled |= r.note[i][x].type == RG_MACT_CONTROL;
                if (r.note[i][x].type == RG_MACT_OFFICE_OPEN && !opened[i]) opened[i] = r.now;
            }
            if (dialled) rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_CONTROL_DOWN });
        }
    }
    cr_assert(opened[0] && opened[1] && opened[2]);
    cr_assert(opened[0] < opened[1] && opened[1] < opened[2]);
    cr_assert(opened[0] - 1000000000 >= 2 * RIG_HEARTBEAT);
    rig_end(&r);
}

Test(succession, a_hosted_office__takes_its_group_over_and_founds_none) {
    group(3, 1);
    office_dies(3);
    rig_office(&r, RIG_MAX, 1ull << 32 | rg_member_id(r.m[0]));
    rig_join(&r, 3, rig_params(3, 1));
    cr_assert(r.coord->population == 0);
    for (int i = 0; i < 3; i++) rig_connect(&r, i);
    rig_pass(&r, RIG_HEARTBEAT);
    cr_assert(r.coord->acting && r.coord->witness == FIRST_ID);
    rig_connect(&r, 3);
    rig_pass(&r, RIG_HEARTBEAT);
    cr_assert(rg_member_view(r.m[0])->n == 4 && rg_member_view(r.m[0])->witness == 0);
    rig_end(&r);
}

Test(succession, all_leave__the_group_is_over_and_its_name_free_with_another_nonce) {
    uint8_t nonce[16];
    group(2, 0);
    memcpy(nonce, r.coord->p.nonce, 16);
    for (int i = 0; i < 2; i++) {
        rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_LEAVE });
        rig_settle(&r);
        const rig_note_t *n = told_any(&r, i, RG_MACT_EXPELLED);
        cr_assert(n && n->status == RG_ERR_CLOSED);
    }
    cr_assert(rg_coord_population(r.coord) == 0 && memcmp(nonce, r.coord->p.nonce, 16) != 0);
    rig_end(&r);
}

/* S4. Until this member opens an office; whatever it dials meanwhile does not answer. */
static const rig_note_t *opens_an_office(int i) {
    uint32_t before = r.notes[i];
    for (int k = 0; k < 200; k++) {
        uint32_t at = r.notes[i];
        r.now += RIG_HEARTBEAT / 16;
        rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_TICK });
        for (uint32_t x = before; x < r.notes[i]; x++)
            if (r.note[i][x].type == RG_MACT_OFFICE_OPEN) return &r.note[i][x];
        for (uint32_t x = at; x < r.notes[i]; x++)
            if (r.note[i][x].type == RG_MACT_CONTROL)
                rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_CONTROL_DOWN });
    }
    return NULL;
}

/* An office of an older member that does not act answers member 1 whenever it comes there. How many it opens itself. */
static uint32_t opened_beside_an_elder(uint64_t heartbeats) {
    uint8_t buf[64];
    uint32_t opened = 0, at = r.notes[1];
    for (uint64_t end = r.now + heartbeats * RIG_HEARTBEAT; r.now < end;) {
        r.now += RIG_HEARTBEAT / 16;
        rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_TICK });
        for (; at < r.notes[1]; at++) {
            const rig_note_t *n = &r.note[1][at];
            opened += n->type == RG_MACT_OFFICE_OPEN;
            if (n->type != RG_MACT_CONTROL) continue;
            int elder = n->peer == rg_member_id(r.m[0]);
            rig_member(&r, 1, (rg_member_event_t){ .type = elder ? RG_MEV_CONTROL_UP : RG_MEV_CONTROL_DOWN });
            if (!elder) continue;
            rg_w_t w = { buf, 0, sizeof buf, 0 };
            rg_w_header(&w, RG_MSG_PROBE);
            rg_w_u64(&w, 1);
            say(1, &w);
        }
    }
    return opened;
}

Test(succession, an_older_member_has_an_office_that_does_not_act__none_is_opened_beside_it) {
    group(3, 1);
    office_dies(3);
    cr_assert(opened_beside_an_elder(7) == 0);
    cr_assert(told_any(&r, 1, RG_MACT_EXPELLED) == NULL);
    rig_end(&r);
}

/* The network falls apart: both ends have a broken link, but only one of them is on the side of the office. */
Test(succession, a_link_to_a_member_that_is_not_heard_breaks__it_goes_and_not_who_says_so) {
    group(4, 0);
    rg_member_t *cut = r.m[0];
    uint64_t id = rg_member_id(cut);
    r.m[0] = NULL;
    r.conn[0] = 0;
    rig_pass(&r, RIG_HEARTBEAT / 4);
    for (int i = 2; i < 4; i++) /* of two with as many broken links the younger one would go */
        rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_LINK_DOWN, .peer = id, .text = "reset" });
    rig_pass(&r, RIG_HEARTBEAT / 2);
    cr_assert(r.coord->n == 4);
    rig_pass(&r, RIG_HEARTBEAT);
    for (int i = 1; i < 4; i++) {
        cr_assert(told_any(&r, i, RG_MACT_EXPELLED) == NULL, "member %d", i);
        cr_assert(rg_member_view(r.m[i])->n == 3 && !rg_member_takes_part(r.m[i], id, 0));
    }
    free(cut);
    rig_end(&r);
}

Test(succession, a_coordinator_that_returns_and_does_not_act__is_counted_until_one_acts) {
    group(3, 1);
    office_dies(3);
    for (uint32_t k = 0; k < 3; k++) {
        const rig_note_t *n = opens_an_office(0);
        cr_assert(n && n->on == k, "%u: %u", k, n ? n->on : 99);
        rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_RETURN });
        if (k < 2) rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_CONTROL_DOWN });
    }
    rig_office(&r, RIG_MAX, SECOND_ID);
    for (int i = 0; i < 3; i++) rig_connect(&r, i);
    cr_assert(r.coord->acting && r.m[0]->returns == 0);
    rig_end(&r);
}

/* Q4. The office that asked it to stop is gone, and the one that acts was never told. */
Test(core_succession, member_is_stopped_by_an_office_that_is_gone__the_one_that_acts_is_told) {
    memset(&r, 0, sizeof r);
    r.now = 1000000000;
    rig_office(&r, RIG_MAX, RG_OFFICE_STANDALONE | 1u << 16);
    rig_fill(&r, 3);
    uint8_t bytes[64];
    rg_w_t w = { bytes, 0, sizeof bytes, 0 };
    rg_w_header(&w, RG_MSG_FREEZE);
    rg_w_term(&w, (rg_term_t){ 9, 77 });
    rg_w_u64(&w, rg_member_view(r.m[1])->epoch);
    rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_MESSAGE, .bytes = bytes, .len = w.len });
    cr_assert(rg_member_fenced(r.m[1]));
    rig_pass(&r, 2 * RIG_HEARTBEAT);
    for (int i = 0; i < 3; i++) cr_assert(!rg_member_fenced(r.m[i]) && rg_member_view(r.m[i])->n == 3);
    rig_end(&r);
}
