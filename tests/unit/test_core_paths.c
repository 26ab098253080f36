/* test_core_paths.c: links and connections that break between processes that live: the time to come back, relays, and
 * who leaves when nothing helps (docs/protocol.md, section 7). It relies on core_rig.h; each end of a link is told by
 * hand what an engine would tell it. */
#include "core_rig.h"

#define RECONNECT (RIG_HEARTBEAT / 2)

static rig_t r;

static void group_with(int n, uint64_t reconnect) {
    memset(&r, 0, sizeof r);
    r.now = 1000000000;
    r.reconnect = reconnect;
    rig_office(&r, RIG_MAX, 0);
    rig_fill(&r, n);
}

static void group(int n) { group_with(n, RECONNECT); }

static uint64_t id_of(int i) { return rg_member_id(r.m[i]); }

static void down(int i, int k, uint32_t dead) {
    rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_LINK_DOWN, .peer = id_of(k), .dead = dead, .text = "cable" });
}

static void up(int i, int k, uint64_t via) {
    rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_LINK_UP, .peer = id_of(k), .via = via });
}

static void cut(int i, int k) {
    down(i, k, 0);
    down(k, i, 0);
    rig_settle(&r);
}

static void mend(int i, int k, uint64_t via) {
    up(i, k, via);
    up(k, i, via);
    rig_settle(&r);
}

static uint64_t epoch(int i) { return rg_member_view(r.m[i])->epoch; }
static const rig_note_t *route(int i) { return told_any(&r, i, RG_MACT_ROUTE); }

static void close_control(int i) {
    uint64_t conn = r.conn[i];
    r.conn[i] = 0;
    rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_CONTROL_DOWN });
    rig_coord(&r, RG_CEV_CLOSED, conn, NULL, 0);
    rig_settle(&r);
}

Test(core_paths, link__comes_back_in_time__costs_nothing) {
    group(4);
    cut(1, 2);
    rig_pass(&r, RECONNECT / 2);
    mend(1, 2, 0);
    rig_pass(&r, 20 * RIG_HEARTBEAT);
    for (int i = 0; i < 4; i++) {
        cr_assert(epoch(i) == 1 && !rg_member_fenced(r.m[i]));
        cr_assert(!told_any(&r, i, RG_MACT_FENCE) && !route(i));
    }
    rig_end(&r);
}

/* What was sent on the old one is gone: a round lets all begin anew (L9). */
Test(core_paths, link_without_reconnect_time__another_one_comes_up__a_round) {
    group_with(3, 0);
    cut(1, 2);
    mend(1, 2, 0);
    rig_pass(&r, RIG_HEARTBEAT);
    for (int i = 0; i < 3; i++)
        cr_assert(epoch(i) == 2 && rg_member_view(r.m[i])->n == 3 && !rg_member_fenced(r.m[i]), "%d", i);
    rig_end(&r);
}

Test(core_paths, link__stays_broken__is_relayed) {
    group(4);
    cut(1, 2);
    rig_pass(&r, RECONNECT + RECONNECT / 2);
    cr_assert(route(1) && route(1)->peer == id_of(2) && route(1)->via == id_of(0));
    cr_assert(route(2) && route(2)->peer == id_of(1) && route(2)->via == id_of(0));
    const rig_note_t *n = told_any(&r, 0, RG_MACT_RELAY);
    cr_assert(n && n->on == 1 && n->peer + n->via == id_of(1) + id_of(2));
    mend(1, 2, id_of(0));
    rig_pass(&r, 20 * RIG_HEARTBEAT);
    for (int i = 0; i < 4; i++) cr_assert(epoch(i) == 1);
    rig_end(&r);
}

Test(core_paths, relayed_link__direct_one_is_back__route_ends) {
    group(3);
    cut(1, 2);
    rig_pass(&r, RECONNECT + RECONNECT / 2);
    mend(1, 2, id_of(0));
    rig_pass(&r, RIG_HEARTBEAT);
    mend(1, 2, 0);
    cr_assert(route(1)->via == 0 && route(2)->via == 0);
    cr_assert(told_any(&r, 0, RG_MACT_RELAY)->on == 0);
    rig_pass(&r, 20 * RIG_HEARTBEAT);
    for (int i = 0; i < 3; i++) cr_assert(epoch(i) == 1);
    rig_end(&r);
}

Test(core_paths, relay__brings_nothing__another_one_is_asked) {
    group(4);
    cut(1, 2);
    rig_pass(&r, RECONNECT + RECONNECT / 2);
    cr_assert(route(1)->via == id_of(0));
    rig_pass(&r, RECONNECT);
    cr_assert(route(1)->via == id_of(3) && route(2)->via == id_of(3));
    mend(1, 2, id_of(3));
    rig_pass(&r, 20 * RIG_HEARTBEAT);
    for (int i = 0; i < 4; i++) cr_assert(epoch(i) == 1);
    rig_end(&r);
}

Test(core_paths, relay__dies__another_one_is_asked) {
    group(4);
    cut(1, 2);
    rig_pass(&r, RECONNECT + RECONNECT / 2);
    mend(1, 2, id_of(0));
    uint64_t relay = id_of(0);
    rig_kill(&r, 0);
    for (int i = 1; i < 4; i++)
        rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_LINK_DOWN, .peer = relay, .text = "reset" });
    down(1, 2, 0);
    down(2, 1, 0);
    rig_settle(&r);
    rig_pass(&r, 2);
    for (int i = 1; i < 4; i++) cr_assert(rg_member_view(r.m[i])->n == 3, "a death waits for nothing");
    cr_assert(route(1)->via == id_of(3) && route(2)->via == id_of(3));
    rig_end(&r);
}

static void two_parts(int n, const int *side) {
    group(n);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (side[i] != side[k]) cut(i, k);
    rig_pass(&r, 10 * RIG_HEARTBEAT);
}

Test(core_paths, network__falls_in_two__larger_part_stays) {
    two_parts(5, (int[]){ 1, 0, 0, 1, 0 });
    for (int i = 0; i < 5; i++) {
        int out = told_any(&r, i, RG_MACT_EXPELLED) != NULL;
        cr_assert(out == (i == 0 || i == 3), "member %d", i);
        if (!out) cr_assert(rg_member_view(r.m[i])->n == 3);
    }
    cr_assert(strstr(told_any(&r, 0, RG_MACT_EXPELLED)->text, "cable"));
    rig_end(&r);
}

Test(core_paths, network__falls_in_equal_parts__lowest_rank_stays) {
    two_parts(4, (int[]){ 0, 1, 0, 1 });
    for (int i = 0; i < 4; i++) cr_assert((told_any(&r, i, RG_MACT_EXPELLED) != NULL) == (i % 2));
    rig_end(&r);
}

Test(core_paths, two_members__nobody_can_relay__younger_leaves) {
    group(2);
    cut(0, 1);
    rig_pass(&r, RECONNECT / 2);
    cr_assert(epoch(0) == 1);
    rig_pass(&r, 10 * RIG_HEARTBEAT);
    cr_assert(!told_any(&r, 0, RG_MACT_EXPELLED) && told_any(&r, 1, RG_MACT_EXPELLED));
    rig_end(&r);
}

Test(core_paths, control_connection__breaks_alone__has_time_to_come_back) {
    group(4);
    close_control(2);
    rig_pass(&r, RECONNECT / 2);
    for (int i = 0; i < 4; i++) cr_assert(epoch(i) == 1 && !rg_member_fenced(r.m[i]));
    rig_connect(&r, 2);
    rig_pass(&r, 20 * RIG_HEARTBEAT);
    for (int i = 0; i < 4; i++) cr_assert(epoch(i) == 1);
    rig_end(&r);
}

Test(core_paths, control_connection__stays_away__member_is_lost) {
    group(4);
    close_control(2);
    rig_pass(&r, 3 * RECONNECT);
    for (int i = 0; i < 4; i++)
        if (i != 2) cr_assert(rg_member_view(r.m[i])->n == 3);
    rig_end(&r);
}

Test(core_paths, control_connection__breaks_with_the_links__is_a_death_at_once) {
    for (int links_first = 0; links_first < 2; links_first++) {
        group(4);
        uint64_t dead = id_of(3), conn = r.conn[3];
        free(r.m[3]);
        r.m[3] = NULL;
        r.conn[3] = 0;
        if (!links_first) rig_coord(&r, RG_CEV_CLOSED, conn, NULL, 0);
        for (int i = 0; i < 2; i++) {
            cr_assert(epoch(0) == 1, "one that lost its path is not enough");
            rig_member(&r, i, (rg_member_event_t){ .type = RG_MEV_LINK_DOWN, .peer = dead, .text = "reset" });
            rig_settle(&r);
        }
        if (links_first) rig_coord(&r, RG_CEV_CLOSED, conn, NULL, 0);
        rig_settle(&r);
        for (int i = 0; i < 3; i++) cr_assert(rg_member_view(r.m[i])->n == 3, "member %d", i);
        rig_end(&r);
    }
}

Test(core_paths, evidence_of_death__accused_is_heard__stays) {
    group(3);
    down(0, 2, 1);
    rig_settle(&r);
    rig_pass(&r, RECONNECT / 2);
    mend(0, 2, 0);
    rig_pass(&r, 20 * RIG_HEARTBEAT);
    for (int i = 0; i < 3; i++) cr_assert(epoch(i) == 1);
    rig_end(&r);
}

Test(core_paths, evidence_of_death__accused_is_silent__is_suspected_soon) {
    group(3);
    rig_pass(&r, RIG_HEARTBEAT);
    r.cut[2] = 1;
    down(0, 2, 1);
    rig_settle(&r);
    rig_pass(&r, RIG_HEARTBEAT / 2);
    for (int i = 0; i < 2; i++) cr_assert(rg_member_view(r.m[i])->n == 2);
    rig_end(&r);
}

Test(core_paths, link_to_a_dead_host__is_given_up_before_the_silence_by_one__that_one_stays) {
    group_with(3, 0);
    rig_pass(&r, RIG_HEARTBEAT);
    r.cut[1] = 1;
    rig_pass(&r, RIG_HEARTBEAT / 2);
    down(2, 1, 0);
    rig_settle(&r);
    rig_pass(&r, RIG_HEARTBEAT / 4); /* the other one hears of it later than links are waited for */
    down(0, 1, 0);
    rig_settle(&r);
    rig_pass(&r, RIG_HEARTBEAT);
    for (int i = 0; i < 3; i += 2) {
        cr_assert(!told_any(&r, i, RG_MACT_EXPELLED), "member %d", i);
        cr_assert(rg_member_view(r.m[i])->n == 2);
    }
    rig_end(&r);
}

Test(core_paths, member__comes_back__is_told_its_routes_again) {
    group(4);
    cut(1, 2);
    rig_pass(&r, RECONNECT + RECONNECT / 2);
    mend(1, 2, id_of(0));
    r.notes[0] = 0;
    close_control(0);
    rig_connect(&r, 0);
    const rig_note_t *n = told_any(&r, 0, RG_MACT_RELAY);
    cr_assert(n && n->on == 1);
    rig_end(&r);
}

Test(core_paths, candidate__cannot_reach_one_member__gets_a_relay) {
    group(3);
    rig_t *x = &r;
    x->m[3] = calloc(1, rg_member_size(RIG_MAX));
    rg_member_params_t p = rig_params(3, 1);
    cr_assert(rg_member_init(x->m[3], &p) == 0);
    x->up[3][2] = x->up[2][3] = 1; /* as if it were there already, so that nobody makes it */
    rig_connect(x, 3);
    rig_pass(x, 10 * RIG_HEARTBEAT);
    cr_assert(rg_member_view(x->m[3]) == NULL);
    cr_assert(route(3) && route(3)->peer == id_of(2) && route(2) && route(2)->peer == id_of(3));
    mend(3, 2, route(3)->via);
    rig_pass(x, RIG_HEARTBEAT);
    cr_assert(rg_member_view(x->m[3]) && rg_member_view(x->m[3])->n == 4);
    rig_end(x);
}
