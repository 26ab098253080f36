/* test_core_search.c: how members find each other when their coordinator is gone: whose office is opened first, how
 * long one that does not act is waited for, where it is looked for, and who is waited for by one that acts. It relies
 * on core_rig.h; the simulator plays the same with chance. Rules S1, S2, Q11 and G6 of docs/protocol.md. */
#include "core_rig.h"

#define FIRST_ID (RG_OFFICE_STANDALONE | 1)
#define SECOND_ID (RG_OFFICE_STANDALONE | 2)

static rig_t r;

static void group_for(int n, uint64_t quorum_ns) {
    rig_start(&r, RIG_MAX);
    rig_office(&r, RIG_MAX, FIRST_ID);
    for (int i = 0; i < n; i++) {
        rg_member_params_t p = rig_params(i, (uint32_t)n);
        p.host_office = 1;
        p.quorum_ns = quorum_ns;
        rig_join(&r, i, p);
    }
    for (int i = 0; i < n; i++) cr_assert(rg_member_view(r.m[i]) != NULL, "member %d is not in", i);
    for (int i = 0; i < n; i++) r.notes[i] = 0;
}

static void group(int n) { group_for(n, 0); }

static void control_breaks(int i) {
    r.conn[i] = 0;
    rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_CONTROL_DOWN });
}

static void office_dies(int n) {
    for (int i = 0; i < n; i++) control_breaks(i);
    while (r.head != r.tail) free(r.queue[r.head++ % RIG_QUEUE].bytes);
}

static void probe(int i, uint32_t here) {
    uint8_t buf[64];
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    rg_w_header(&w, RG_MSG_PROBE);
    rg_w_u64(&w, rg_member_view(r.m[i])->epoch);
    rg_w_u32(&w, here);
    rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_MESSAGE, .bytes = w.p, .len = w.len });
}

/* A sixteenth of a heartbeat, in which member i finds nobody wherever it dials; what it did is in its notes from the
 * returned one on. */
static uint32_t step(int i) {
    uint32_t at = r.notes[i];
    r.now += RIG_HEARTBEAT / 16;
    rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_TICK });
    uint32_t end = r.notes[i];
    for (uint32_t x = at; x < end; x++) {
        const rig_note_t *n = &r.note[i][x];
        if (n->type != RG_MACT_CONTROL) continue;
        int own = n->peer == rg_member_id(r.m[i]);
        rig_member(&r, i, (rg_member_event_t){ .type = own ? RG_MEV_CONTROL_UP : RG_MEV_CONTROL_DOWN });
    }
    return at;
}

static int did(int i, uint32_t from, rg_mact_t type) {
    for (uint32_t x = from; x < r.notes[i]; x++)
        if (r.note[i][x].type == type) return 1;
    return 0;
}

/* How many heartbeats after the coordinator was lost member i opens an office. */
static double opens_after(int i) {
    uint64_t from = r.now;
    for (uint32_t k = 0; k < 160; k++)
        if (did(i, step(i), RG_MACT_OFFICE_OPEN)) return (double)(r.now - from) / (double)RIG_HEARTBEAT;
    return -1;
}

Test(search, a_host_died_with_the_coordinator__the_next_member_does_not_wait_for_their_turns) {
    group(8);
    for (int i = 0; i < 6; i++)
        rig_member(&r, 6,
                   (rg_member_event_t){ .type = RG_MEV_LINK_DOWN, .peer = rg_member_id(r.m[i]), .text = "reset" });
    office_dies(8);
    double six = opens_after(6);
    cr_assert(six >= 1.9 && six < 2.6, "%g", six);
    rig_end(&r);
}

Test(search, older_members_can_be_reached__theirs_is_looked_for_first) {
    group(8);
    office_dies(8);
    uint64_t from = r.now;
    double seven = opens_after(7);
    cr_assert(seven >= 5.4, "%g", seven);
    int looked[8] = { 0 };
    for (uint32_t x = 0; x < r.notes[7]; x++)
        for (int i = 0; i < 7; i++)
            looked[i] |= r.note[7][x].type == RG_MACT_CONTROL && r.note[7][x].peer == rg_member_id(r.m[i]);
    for (int i = 0; i < 7; i++) cr_assert(looked[i], "member %d, after %llu", i, (unsigned long long)(r.now - from));
    rig_end(&r);
}

/* Members stop after six heartbeats (S3), and the turn of the last of eight comes half a heartbeat before. */
Test(search, the_end_is_near__older_members_are_looked_for_and_no_office_is_opened) {
    for (int reached = 1; reached >= 0; reached--) {
        group_for(8, 4 * RIG_HEARTBEAT);
        for (int i = 0; i < 7 && !reached; i++)
            rig_member(&r, 7,
                       (rg_member_event_t){ .type = RG_MEV_LINK_DOWN, .peer = rg_member_id(r.m[i]), .text = "reset" });
        office_dies(8);
        uint32_t at = r.notes[7];
        while (!did(7, at, RG_MACT_EXPELLED)) {
            step(7);
            cr_assert(r.notes[7] < RIG_NOTES / 2);
        }
        cr_assert_eq(did(7, at, RG_MACT_OFFICE_OPEN), !reached, "older members reached: %d", reached);
        rig_end(&r);
    }
}

/* Member 4 has opened its own when it was its turn, and others come to it one by one, for each of whom it would wait
 * anew; but it stops in less than two heartbeats. */
Test(search, an_office_does_not_fill_and_the_end_is_near__it_is_given_up_for_those_of_older_members) {
    group_for(8, 4 * RIG_HEARTBEAT);
    office_dies(8);
    uint64_t from = r.now;
    cr_assert(opens_after(4) > 0);
    uint32_t at = r.notes[4], here = 0;
    while (!did(4, at = step(4), RG_MACT_OFFICE_CLOSE)) probe(4, ++here);
    double beats = (double)(r.now - from) / (double)RIG_HEARTBEAT;
    cr_assert(!did(4, at, RG_MACT_EXPELLED) && beats < 5.2, "%g", beats);
    cr_assert(r.m[4]->target == rg_member_id(r.m[0]), "%llu", (unsigned long long)r.m[4]->target);
    uint32_t looked_from = at;
    while (!did(4, at, RG_MACT_EXPELLED)) at = step(4);
    cr_assert(!did(4, looked_from, RG_MACT_OFFICE_OPEN));
    int looked[8] = { 0 };
    for (uint32_t x = looked_from; x < r.notes[4]; x++)
        for (int i = 0; i < 8; i++)
            looked[i] |= r.note[4][x].type == RG_MACT_CONTROL && r.note[4][x].peer == rg_member_id(r.m[i]);
    for (int i = 0; i < 8; i++) cr_assert(looked[i] || i == 4, "member %d", i);
    rig_end(&r);
}

/* Member 0 has given its office up, because nobody came or for a coordinator that is said to be back and is not. */
static void opens_another(int returned) {
    group(8);
    office_dies(8);
    cr_assert(opens_after(0) > 0);
    if (returned) {
        rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_RETURN });
        rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_CONTROL_DOWN });
    } else {
        while (!did(0, step(0), RG_MACT_OFFICE_CLOSE)) cr_assert(r.notes[0] < RIG_NOTES / 2);
    }
    uint32_t from = r.notes[0] - 2;
    cr_assert(opens_after(0) > 0);
    int looked[8] = { 1 };
    for (uint32_t x = from; x < r.notes[0]; x++)
        for (int i = 1; i < 8; i++)
            looked[i] |= r.note[0][x].type == RG_MACT_CONTROL && r.note[0][x].peer == rg_member_id(r.m[i]);
    for (int i = 1; i < 8; i++) cr_assert(looked[i], "member %d", i);
    rig_end(&r);
}

Test(search, the_oldest_gave_its_office_up__all_others_are_asked_before_it_opens_another) {
    opens_another(0);
    opens_another(1);
}

/* Member 2 in the office of member 0, which does not act: for how many heartbeats it stays. here: how many are said to
 * have come, one more each heartbeat until that many. */
static double stays(uint32_t here) {
    group(4);
    office_dies(4);
    uint64_t elder = rg_member_id(r.m[0]);
    for (uint32_t x = r.notes[2]; r.m[2]->target != elder; x = step(2)) cr_assert(x < RIG_NOTES / 2);
    rig_member(&r, 2, (rg_member_event_t){ .type = RG_MEV_CONTROL_UP });
    uint64_t from = r.now;
    uint32_t at = r.notes[2];
    for (uint32_t k = 0; !did(2, at, RG_MACT_CONTROL); k++) {
        if (k % 16 == 0) probe(2, k / 16 < here ? k / 16 + 1 : here);
        r.now += RIG_HEARTBEAT / 16;
        rig_member(&r, 2, (rg_member_event_t){ .type = RG_MEV_TICK });
        cr_assert(k < 400);
    }
    double beats = (double)(r.now - from) / (double)RIG_HEARTBEAT;
    rig_end(&r);
    return beats;
}

Test(search, more_come_to_an_office_that_does_not_act__it_is_waited_for_anew) {
    double one = stays(1), three = stays(3);
    cr_assert(one >= 2 && one < 2.3, "%g", one);
    cr_assert(three >= 4 && three < 4.3, "%g", three);
}

Test(search, members_gather_at_an_office__those_who_were_there_are_told) {
    group(5);
    office_dies(5);
    rig_office(&r, RIG_MAX, SECOND_ID);
    rig_connect(&r, 3);
    cr_assert(!r.coord->acting);
    uint32_t alone = r.m[3]->gathered;
    rig_connect(&r, 4);
    rig_pass(&r, RIG_HEARTBEAT / 4);
    cr_assert(!r.coord->acting && alone <= 1 && r.m[3]->gathered == 2 && r.m[4]->gathered == 2, "%u %u %u", alone,
              r.m[3]->gathered, r.m[4]->gathered);
    rig_end(&r);
}

/* Six voters with the witness, of whom three members and it are left; one of these comes and goes. Each time that it is
 * gone there is no quorum, and when it is back the two who died were waited for anew. */
Test(search, a_connection_comes_and_goes__the_dead_are_missed_all_the_same) {
    group(5);
    rig_kill(&r, 3);
    rig_kill(&r, 4);
    uint64_t from = r.now;
    while (r.coord->n == 5 && r.now < from + 20 * RIG_HEARTBEAT) {
        uint64_t conn = r.conn[0];
        control_breaks(0);
        rig_coord(&r, RG_CEV_CLOSED, conn, NULL, 0);
        rig_pass(&r, RIG_HEARTBEAT / 4);
        rig_connect(&r, 0);
        rig_pass(&r, RIG_HEARTBEAT / 2);
    }
    cr_assert(r.coord->n == 3, "%u members after %g heartbeats", r.coord->n,
              (double)(r.now - from) / (double)RIG_HEARTBEAT);
    for (int i = 0; i < 3; i++) cr_assert(told_any(&r, i, RG_MACT_EXPELLED) == NULL, "member %d", i);
    rig_end(&r);
}

/* Member 1 is in a view of which member 0 alone has heard when the coordinator dies. together 0: it enters by a JOIN
 * view that 0 has accepted, and that the next coordinator has to choose (C4), with three voters: 0, 1, and the one that
 * died. together 1: both found the group. */
static void enters_unheard(int together) {
    rig_start(&r, RIG_MAX);
    rig_office(&r, RIG_MAX, FIRST_ID);
    for (int i = 0; i < 2; i++) {
        rg_member_params_t p = rig_params(i, together ? 2 : 1);
        p.host_office = 1;
        r.m[i] = calloc(1, rg_member_size(RIG_MAX));
        cr_assert(rg_member_init(r.m[i], &p) == 0);
    }
    rig_connect(&r, 0);
    cr_assert((rg_member_view(r.m[0]) != NULL) == !together);
    r.conn[1] = ++r.conns;
    rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_CONTROL_UP });
    for (uint32_t k = 0; together ? !rg_member_view(r.m[0]) : r.m[0]->accepted < 2; k++) { /* message by message */
        if (r.head == r.tail) rig_pass(&r, RIG_HEARTBEAT / 16);
        if (r.head == r.tail) continue;
        rig_msg_t x = r.queue[r.head++ % RIG_QUEUE];
        if (x.to_coord) rig_coord(&r, RG_CEV_MESSAGE, x.conn, x.bytes, x.len);
        else rig_member(&r, x.node, (rg_member_event_t){ .type = RG_MEV_MESSAGE, .bytes = x.bytes, .len = x.len });
        free(x.bytes);
        cr_assert(k < 1000);
    }
    cr_assert(rg_member_view(r.m[1]) == NULL);
    office_dies(2);
    rig_office(&r, RIG_MAX, SECOND_ID);
}

/* What the one that heard has sent to the other since went with the links that this gave up, so all begins anew. */
Test(search, a_founder_never_heard_that_it_is_in__it_takes_its_place_and_all_begins_anew) {
    enters_unheard(1);
    rig_op(&r, 0, RG_MEV_OP_START, key_of(0, 0, 0), sig_of(1, RG_RETRY));
    rig_connect(&r, 0);
    cr_assert(!r.coord->acting);
    rig_connect(&r, 1);
    rig_pass(&r, RIG_HEARTBEAT);
    for (int i = 0; i < 2; i++) {
        const rg_core_view_t *v = rg_member_view(r.m[i]);
        cr_assert(v && v->n == 2 && v->epoch == 2 && v->data_epoch == 2, "member %d", i);
    }
    cr_assert(told(&r, 0, RG_MACT_OP_RESTART, key_of(0, 0, 0)) != NULL);
    rig_end(&r);
}

Test(search, a_newcomer_never_heard_that_it_is_in__it_comes_again_and_takes_its_place) {
    enters_unheard(0);
    cr_assert(rg_member_view(r.m[0])->n == 1 && rg_member_view(r.m[1]) == NULL);
    rig_connect(&r, 0);
    cr_assert(r.coord->epoch == 2 && r.coord->n == 2, "view %llu of %u", (unsigned long long)r.coord->epoch,
              r.coord->n);
    rig_pass(&r, 3 * RIG_HEARTBEAT / 2);
    cr_assert(!r.coord->acting && rg_member_fenced(r.m[0])); /* one of three voters */
    uint64_t id = r.coord->seats[r.coord->rank_seat[1]].m.id;
    rig_connect(&r, 1);
    rig_pass(&r, RIG_HEARTBEAT);
    for (int i = 0; i < 2; i++) {
        const rg_core_view_t *v = rg_member_view(r.m[i]);
        cr_assert(v && v->n == 2 && v->members[1].id == id, "member %d", i);
        cr_assert(!rg_member_fenced(r.m[i]), "member %d", i);
    }
    cr_assert(rg_member_id(r.m[1]) == id);
    rig_end(&r);
}

static void full_list_without(int i) {
    uint8_t buf[64];
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    rg_w_header(&w, RG_MSG_PEERS);
    rg_w_u8(&w, 1);
    rg_w_u64(&w, 0);
    rg_w_u32(&w, 0);
    rg_w_u32(&w, 0);
    rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_MESSAGE, .bytes = w.p, .len = w.len });
}

/* The new office serves the view before until it has been told of the proposal, and its list has no newcomer. Without a
 * reconnect time the newcomer would lose the place that it is about to have. */
Test(search, an_office_does_not_know_yet_who_enters__the_newcomer_keeps_its_links) {
    enters_unheard(0);
    uint32_t at = r.notes[0];
    full_list_without(0);
    rig_connect(&r, 0);
    cr_assert(r.coord->epoch == 2 && !did(0, at, RG_MACT_DISCONNECT));
    rig_end(&r);
}

static void told_of(int i, int candidate) {
    uint8_t buf[512];
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    const rg_peer_t *p = rg_peer_find(r.m[i], rg_member_id(r.m[candidate]));
    rg_w_header(&w, RG_MSG_PEERS);
    rg_w_u8(&w, 0);
    rg_w_u64(&w, p->m.id);
    rg_w_u32(&w, 1);
    rg_w_u32(&w, 0);
    rg_w_peer(&w, &p->m);
    rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_MESSAGE, .bytes = w.p, .len = w.len });
}

/* How a candidate that is in no list any more is given up: with the next view, or when its link breaks. */
Test(search, a_candidate_is_in_no_list__its_link_is_given_up_with_the_next_view) {
    for (int breaks = 0; breaks < 3; breaks++) { /* 2: it is in the next one again, and stays */
        group(3);
        rg_member_params_t p = rig_params(3, 3);
        p.hold = 1;
        rig_join(&r, 3, p);
        uint64_t id = rg_member_id(r.m[3]);
        cr_assert(id && !rg_member_view(r.m[3]));
        uint32_t at = r.notes[0];
        full_list_without(0);
        cr_assert(!did(0, at, RG_MACT_DISCONNECT));
        if (breaks == 2) told_of(0, 3);
        if (breaks == 1)
            rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_LINK_DOWN, .peer = id, .text = "reset" });
        else rig_kill(&r, 2);
        for (int k = 0; k < 16 && breaks != 1 && rg_member_view(r.m[0])->n > 2; k++) rig_pass(&r, RIG_HEARTBEAT);
        int given_up = 0;
        for (uint32_t x = at; x < r.notes[0]; x++)
            given_up += r.note[0][x].type == RG_MACT_DISCONNECT && r.note[0][x].peer == id;
        cr_assert(given_up == (breaks != 2) && (breaks == 1 || rg_member_view(r.m[0])->n == 2), "%d", given_up);
        rig_end(&r);
    }
}

/* With a reconnect time its link has that to come back; then nobody dials who is in no list. */
Test(search, a_candidate_is_in_no_list_and_its_link_stays_down__it_is_not_dialled_again) {
    rig_start(&r, RIG_MAX);
    r.reconnect = RIG_HEARTBEAT;
    rig_office(&r, RIG_MAX, FIRST_ID);
    for (int i = 0; i < 3; i++) rig_join(&r, i, rig_params(i, 3));
    rg_member_params_t p = rig_params(3, 3);
    p.hold = 1;
    rig_join(&r, 3, p);
    uint64_t id = rg_member_id(r.m[3]);
    full_list_without(0);
    uint32_t at = r.notes[0];
    rig_member(&r, 0, (rg_member_event_t){ .type = RG_MEV_LINK_DOWN, .peer = id, .text = "reset" });
    cr_assert(!did(0, at, RG_MACT_DISCONNECT));
    rig_pass(&r, 2 * RIG_HEARTBEAT);
    cr_assert(did(0, at, RG_MACT_DISCONNECT) && !did(0, at, RG_MACT_CONNECT));
    rig_end(&r);
}

/* Without a reconnect time a link that breaks costs one of the two its place, so who comes again gives none up before
 * it hears as whom. */
Test(search, a_founder_takes_its_place_again__its_links_have_not_broken) {
    enters_unheard(1);
    rig_connect(&r, 0);
    uint32_t at = r.notes[1];
    rig_connect(&r, 1);
    rig_pass(&r, RIG_HEARTBEAT);
    cr_assert(rg_member_view(r.m[1]) && !did(1, at, RG_MACT_DISCONNECT) && !did(1, at, RG_MACT_CONNECT));
    rig_end(&r);
}

Test(search, a_candidate_comes_again_as_another__it_gives_its_links_up_then) {
    enters_unheard(1);
    rg_member_t *m = r.m[1];
    uint64_t id = rg_member_id(m), at = r.notes[1];
    cr_assert(id && m->peers_high == 1);
    r.coord->next_id += 10;
    rig_connect(&r, 1);
    cr_assert(rg_member_id(m) && rg_member_id(m) != id, "%llu", (unsigned long long)rg_member_id(m));
    int given_up = 0; /* before the others are dialled under the new number */
    for (uint64_t x = at; x < r.notes[1] && r.note[1][x].type != RG_MACT_WELCOME; x++)
        given_up |= r.note[1][x].type == RG_MACT_DISCONNECT;
    cr_assert(given_up && !m->peers_high);
    rig_end(&r);
}

/* Member 3 alone stays with a coordinator that the others cannot reach any more, and is served until that falls silent.
 * The others have had the time to find an office since, so it does not wait for one to come back. */
Test(search, the_office_says_that_it_acts_no_more__it_is_looked_for_elsewhere_at_once) {
    group(4);
    for (int i = 0; i < 3; i++) {
        uint64_t conn = r.conn[i];
        control_breaks(i);
        rig_coord(&r, RG_CEV_CLOSED, conn, NULL, 0);
    }
    uint32_t at = r.notes[3];
    uint64_t from = r.now;
    while (!did(3, at, RG_MACT_CONTROL) && r.now < from + 4 * RIG_HEARTBEAT) rig_pass(&r, RIG_HEARTBEAT / 16);
    cr_assert(!r.coord->acting && did(3, at, RG_MACT_CONTROL));
    cr_assert(r.m[3]->target == rg_member_id(r.m[0]), "%llu", (unsigned long long)r.m[3]->target);
    rig_end(&r);
}

/* Until such a one is back nothing goes on, so it must not sit on a connection that nobody answers on. */
Test(search, a_join_is_not_answered_and_the_group_is_known__dialled_anew_in_two_heartbeats) {
    enters_unheard(0);
    rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_CONTROL_UP });
    uint32_t at = r.notes[1];
    uint64_t from = r.now;
    while (!did(1, at, RG_MACT_CONTROL)) {
        r.now += RIG_HEARTBEAT / 16;
        rig_member(&r, 1, (rg_member_event_t){ .type = RG_MEV_TICK });
        cr_assert(r.now - from < 4 * RIG_HEARTBEAT);
    }
    rig_end(&r);
}

/* What a coordinator knows that was left alone may be long over elsewhere. */
Test(search, a_newcomer_comes_again_where_no_member_is__it_is_turned_away) {
    enters_unheard(0);
    rig_connect(&r, 0);
    rig_pass(&r, 3 * RIG_HEARTBEAT / 2);
    uint64_t conn = r.conn[0];
    control_breaks(0);
    rig_coord(&r, RG_CEV_CLOSED, conn, NULL, 0);
    rig_connect(&r, 1);
    rig_settle(&r);
    cr_assert(rg_member_view(r.m[1]) == NULL && r.coord->n == 2 && !r.coord->acting);
    rig_end(&r);
}

/* The path to the coordinator is lost for a moment. Member 2 has come back by a new connection, member 3 looked
 * elsewhere first: alone in its silence, but not for a reason of its own. */
Test(search, a_member_is_silent_and_another_came_back__it_may_be_on_its_way_too) {
    group(4);
    r.cut[2] = r.cut[3] = 1;
    rig_pass(&r, RIG_HEARTBEAT / 2);
    r.cut[2] = 0;
    rig_connect(&r, 2);
    rig_pass(&r, 2 * RIG_HEARTBEAT);
    cr_assert(r.coord->n == 4);
    r.cut[3] = 0;
    rig_connect(&r, 3);
    rig_pass(&r, 6 * RIG_HEARTBEAT);
    cr_assert(r.coord->n == 4);
    r.cut[3] = 1; /* nobody came back since: it is missed as fast as ever */
    rig_pass(&r, 2 * RIG_HEARTBEAT);
    cr_assert(r.coord->n == 3);
    rig_end(&r);
}
