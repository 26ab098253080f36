/* test_auto.c: how the transport that joins two decides, with parts that a test can make refuse: which way a link
 * takes, what is said about it and how often, addresses of members that have one way only, and messages that were given
 * before the way was known. Everything else of it is in tests/conformance.c. It must not wait without a limit. */
#include "refuse.h"
#include "transports/auto.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

extern const rg_transport_t rg_transport_tcp, rg_transport_inproc;

typedef struct end {
    const rg_transport_t *t;
    rg_tp_t *tp;
    uint8_t addr[RG_TP_ADDR_MAX], identity[16];
    uint32_t addr_len;
    int lines, up, down, done, gone;
    char line[400], text[256];
} end_t;

static void heard(void *user, rg_log_level_t level, const char *line) {
    end_t *e = user;
    if (level > RG_LOG_WARN) return; /* what the parts say besides */
    e->lines++;
    snprintf(e->line, sizeof e->line, "%s", line);
}

static void end_open_as(end_t *e, const rg_transport_t *t, uint8_t who, const char *host) {
    rg_config_t config = {
        .struct_size = sizeof config, .interface = "127.0.0.1", .rails = 1, .heartbeat_ms = 2000, .host = host
    };
    rg_tp_config_t c = { .config = &config, .log = heard, .log_user = e };
    rg_error_t err = { RG_OK, 0, "" };
    memset(e, 0, sizeof *e);
    e->t = t;
    memset(e->identity, who, sizeof e->identity);
    memcpy(c.identity, e->identity, sizeof c.identity);
    memset(c.nonce, 7, sizeof c.nonce);
    cr_assert_eq(t->open(&c, &e->tp, e->addr, &e->addr_len, &err), RG_OK, "%s", err.text);
}

static void end_open(end_t *e, uint8_t who) { end_open_as(e, &rg_transport_auto, who, NULL); }

static uint32_t resume; /* links may be begun anew */

static rg_status_t end_connect(end_t *e, const end_t *other, uint32_t dial, uint32_t timeout_ms) {
    rg_tp_peer_t p = {
        .addr = other->addr, .addr_len = other->addr_len, .dial = dial, .timeout_ms = timeout_ms, .resume = resume
    };
    rg_error_t err = { RG_OK, 0, "" };
    memcpy(p.identity, other->identity, sizeof p.identity);
    rg_status_t st = e->t->connect(e->tp, 0, &p, &err);
    snprintf(e->text, sizeof e->text, "%.200s", err.text);
    return st;
}

static void turn(end_t *e) {
    rg_completion_t c[8];
    int n = e->tp ? e->t->poll(e->tp, c, 8) : 0;
    for (int i = 0; i < n; i++) {
        e->up += c[i].event == RG_TP_LINK_UP;
        e->down += c[i].event == RG_TP_LINK_DOWN;
        if (c[i].event == RG_TP_LINK_DOWN) snprintf(e->text, sizeof e->text, "%s", c[i].text ? c[i].text : "");
        e->done += c[i].event == RG_TP_SENT || c[i].event == RG_TP_RECEIVED;
        e->gone += c[i].event == RG_TP_FAILED && c[i].status == RG_TP_GONE;
    }
}

#define UNTIL(cond)                                                                                                    \
    ({                                                                                                                 \
        time_t end_ = time(NULL) + 10;                                                                                 \
        while (!(cond) && time(NULL) < end_) {                                                                         \
            turn(&a);                                                                                                  \
            turn(&b);                                                                                                  \
        }                                                                                                              \
        (cond);                                                                                                        \
    })

static end_t a, b;

static void couple(void) {
    cr_assert_eq(end_connect(&a, &b, 1, 5000), RG_OK, "%s", a.text);
    cr_assert_eq(end_connect(&b, &a, 0, 5000), RG_OK, "%s", b.text);
    cr_assert(UNTIL(a.up && b.up), "%s / %s", a.text, b.text);
}

static void part(void) {
    if (a.tp) a.t->close(a.tp);
    if (b.tp) b.t->close(b.tp);
    a.tp = b.tp = NULL;
    rg_auto_parts(NULL, NULL);
    rg_auto_fabric(NULL);
    resume = 0;
}

static int shared(end_t *e) {
    rg_tp_link_info_t info = { 0 };
    e->t->link_info(e->tp, 0, &info);
    return (int)info.shared;
}

Test(auto, link__both_on_this_machine__shares_memory_and_says_nothing) {
    end_open(&a, 1);
    end_open(&b, 2);
    couple();
    cr_assert(shared(&a) && shared(&b));
    cr_assert(!a.lines && !b.lines, "%s%s", a.line, b.line);
    part();
}

Test(auto, link__near_way_refused__far_way_one_line_and_no_second_try) {
    rg_auto_parts(&rg_transport_refuse, NULL);
    end_open(&a, 1);
    end_open(&b, 2);
    for (int round = 0; round < 3; round++) {
        couple();
        cr_assert(!shared(&a) && !shared(&b));
        cr_assert_eq(a.lines, 1);
        cr_assert(strstr(a.line, REFUSE_TEXT) && strstr(a.line, "tcp"), "%s", a.line);
        cr_assert_eq(b.lines, 0);
        a.t->drop(a.tp, 0);
        cr_assert(UNTIL(b.down == round + 1));
        b.t->drop(b.tp, 0);
        a.up = b.up = 0;
    }
    part();
}

Test(auto, open__near_transport_is_not_to_be_had__one_warning_and_the_far_one_alone) {
    rg_auto_parts(&rg_transport_refuse, NULL);
    refuse_open_fails = 1;
    end_open(&a, 1);
    cr_assert_eq(a.lines, 1);
    cr_assert(strstr(a.line, "not on this system"), "%s", a.line);
    refuse_open_fails = 0;
    rg_auto_parts(NULL, NULL);
    end_open(&b, 2);
    couple();
    cr_assert(!shared(&a) && !shared(&b) && a.lines == 1 && b.lines == 0);
    part();
}

Test(auto, link__other_member_has_tcp_only__they_meet_whoever_dials) {
    for (int dials = 0; dials < 2; dials++) {
        end_open_as(&a, dials ? &rg_transport_auto : &rg_transport_tcp, 1, NULL);
        end_open_as(&b, dials ? &rg_transport_tcp : &rg_transport_auto, 2, NULL);
        couple();
        cr_assert(!a.lines && !b.lines);
        part();
    }
}

Test(auto, link__hosts_named_differently__near_way_is_not_tried) {
    rg_auto_parts(&rg_transport_refuse, NULL);
    end_open_as(&a, &rg_transport_auto, 1, "left");
    end_open_as(&b, &rg_transport_auto, 2, "right");
    couple();
    cr_assert(!a.lines && !b.lines && !shared(&a));
    part();
}

Test(auto, messages__given_before_the_way_is_known__arrive) {
    static const rg_tag_t tag = { .epoch = 1, .gen = 1, .op = 1, .ord = 0, .sig = 1 };
    static const rg_transport_t *const near[] = { NULL, &rg_transport_inproc, &rg_transport_refuse };
    for (size_t i = 0; i < 3; i++) {
        char in[6] = "";
        rg_tp_send_t s = { .tag = tag, .buf = "hello", .len = 6, .cookie = 1 };
        rg_tp_recv_t r = { .tag = tag, .dst = in, .len = 6, .cookie = 2 };
        rg_auto_parts(near[i], NULL);
        end_open(&a, 1);
        end_open(&b, 2);
        cr_assert_eq(end_connect(&a, &b, 1, 5000), RG_OK);
        cr_assert_eq(a.t->send(a.tp, 0, &s), RG_OK);
        cr_assert_eq(end_connect(&b, &a, 0, 5000), RG_OK);
        cr_assert_eq(b.t->recv(b.tp, 0, &r), RG_OK);
        cr_assert(UNTIL(a.done && b.done), "near way %zu", i);
        cr_assert_str_eq(in, "hello");
        part();
    }
}

/* Who is given less than there was room for takes it that there is no more: link numbers are used again then. */
Test(auto, poll__link_comes_up_with_messages_waiting__all_of_it_at_once) {
    static const rg_tag_t tag = { .epoch = 1, .gen = 1, .op = 1, .ord = 0, .sig = 1 };
    rg_tp_send_t s = { .tag = tag, .buf = "hello", .len = 6, .cookie = 1 };
    end_open(&a, 1);
    end_open(&b, 2);
    cr_assert_eq(end_connect(&a, &b, 1, 5000), RG_OK);
    for (int i = 0; i < 3; i++) cr_assert_eq(a.t->send(a.tp, 0, &s), RG_OK);
    cr_assert_eq(end_connect(&b, &a, 0, 5000), RG_OK);
    cr_assert(UNTIL(a.up));
    cr_expect_eq(a.done, 3);
    cr_expect(UNTIL(b.up));
    part();
}

Test(auto, messages__given_and_no_way_found__end_as_gone_once) {
    static const rg_tag_t tag = { .epoch = 1, .gen = 1, .op = 1, .ord = 0, .sig = 1 };
    rg_tp_send_t s = { .tag = tag, .buf = "hello", .len = 6, .cookie = 1 };
    rg_auto_parts(&rg_transport_refuse, NULL);
    end_open(&a, 1);
    end_open(&b, 2);
    cr_assert_eq(end_connect(&a, &b, 1, 300), RG_OK);
    for (int i = 0; i < 3; i++) cr_assert_eq(a.t->send(a.tp, 0, &s), RG_OK);
    a.t->fence(a.tp, 1);
    b.t->close(b.tp);
    b.tp = NULL;
    cr_assert(UNTIL(a.down && a.gone == 3), "%d down, %d gone", a.down, a.gone);
    cr_assert(a.text[0] && a.down == 1 && a.up == 0);
    cr_assert_eq(a.t->send(a.tp, 0, &s), RG_OK);
    cr_assert(UNTIL(a.gone == 4));
    part();
}

/* Whatever a peer says its address is: a status or a link that fails, and nothing worse. */
Test(auto, address__any_bytes__harmless) {
    uint32_t seed = 1;
    end_open(&a, 1);
    end_open(&b, 2);
    for (int i = 0; i < 2000; i++) {
        end_t c = b;
        uint32_t cut = i % 3 ? c.addr_len : (uint32_t)i % (c.addr_len + 1);
        for (int k = 0; k < i % 7; k++) {
            seed = seed * 1664525u + 1013904223u;
            c.addr[(seed >> 8) % c.addr_len] = (uint8_t)(seed >> 24);
        }
        if (i % 5 == 0) c.addr[c.addr_len - 5] = 0xff; /* the length of the near part */
        c.addr_len = cut;
        (void)end_connect(&a, &c, (uint32_t)i % 2, 50);
        turn(&a);
        turn(&b);
        a.t->drop(a.tp, 0);
    }
    a.t->close(a.tp);
    end_open(&a, 3); /* a newcomer is served as if nothing had been */
    couple();
    part();
}

/* Members that were given different transports cannot meet, and are told what to do about it. */
Test(auto, peer__of_another_transport__refused_with_what_to_do) {
    extern const rg_transport_t rg_transport_shm;
    end_t both, near;
    end_open(&both, 1);
    end_open_as(&near, &rg_transport_shm, 2, NULL);
    cr_assert_eq(end_connect(&near, &both, 1, 1000), RG_ERR_PROTOCOL);
    cr_assert(strstr(near.text, "RG_TRANSPORT"), "%s", near.text);
    cr_assert_eq(end_connect(&both, &near, 1, 1000), RG_ERR_PROTOCOL);
    cr_assert(strstr(both.text, "RG_TRANSPORT"), "%s", both.text);
    near.t->close(near.tp);
    both.t->close(both.tp);
}

/* ---- A fabric between hosts, instead of TCP: threads of this process stand in for it. */

static int cable_cut; /* the next look at a link of the fabric finds it broken */

static int fabric_poll(rg_tp_t *tp, rg_completion_t *out, int max) {
    int n = rg_transport_inproc.poll(tp, out, max);
    if (!cable_cut || n == max) return n;
    cable_cut = 0;
    rg_transport_inproc.drop(tp, 0);
    out[n] = (rg_completion_t){ .event = RG_TP_LINK_DOWN, .text = "the cable is cut" };
    return n + 1;
}

static void fabric_info(rg_tp_t *tp, uint32_t link, rg_tp_link_info_t *out) {
    (void)tp;
    (void)link;
    *out = (rg_tp_link_info_t){ .shared = 1 }; /* by which a test knows it */
}

static const rg_transport_t *a_fabric(void) {
    static rg_transport_t t;
    t = rg_transport_inproc;
    t.poll = fabric_poll;
    t.link_info = fabric_info;
    return &t;
}

static void two_hosts(const rg_transport_t *of_a, const rg_transport_t *of_b) {
    rg_auto_fabric(of_a);
    end_open_as(&a, &rg_transport_auto, 1, "left");
    rg_auto_fabric(of_b);
    end_open_as(&b, &rg_transport_auto, 2, "right");
}

Test(auto, fabric__both_have_it__used_between_hosts_and_nothing_is_said) {
    two_hosts(a_fabric(), a_fabric());
    couple();
    cr_assert(shared(&a) && shared(&b));
    cr_assert(!a.lines && !b.lines, "%s%s", a.line, b.line);
    part();
}

Test(auto, fabric__one_has_none__they_meet_over_tcp_whoever_dials) {
    for (int who = 0; who < 2; who++) {
        two_hosts(who ? a_fabric() : NULL, who ? NULL : a_fabric());
        couple();
        cr_assert(!shared(&a) && !shared(&b));
        cr_assert(!a.lines && !b.lines, "%s%s", a.line, b.line);
        part();
    }
}

Test(auto, fabric__leads_nowhere__tcp_after_one_line) {
    two_hosts(&rg_transport_refuse, &rg_transport_refuse);
    couple();
    cr_assert(!shared(&a) && a.lines == 1 && strstr(a.line, "fabric") && strstr(a.line, REFUSE_TEXT), "%s", a.line);
    part();
}

Test(auto, fabric__members_on_one_host__share_memory_all_the_same) {
    rg_auto_fabric(&rg_transport_refuse);
    end_open(&a, 1);
    end_open(&b, 2);
    couple();
    cr_assert(shared(&a) && shared(&b));
    cr_assert(!a.lines && !b.lines, "%s%s", a.line, b.line);
    part();
}

Test(auto, fabric__lost__goes_on_over_tcp_if_links_may_be_begun_anew) {
    static const rg_tag_t tag = { .epoch = 1, .gen = 1, .op = 1, .ord = 0, .sig = 1 };
    for (uint32_t may = 0; may < 2; may++) {
        char in[6] = "";
        rg_tp_send_t s = { .tag = tag, .buf = "hello", .len = 6, .cookie = 1 };
        rg_tp_recv_t r = { .tag = tag, .dst = in, .len = 6, .cookie = 2 };
        two_hosts(a_fabric(), a_fabric());
        resume = may;
        couple();
        cable_cut = 1;
        cr_assert(UNTIL(a.down && b.down));
        cr_assert(strstr(a.text, "cable") || strstr(b.text, "cable"), "%s / %s", a.text, b.text);
        cr_assert_eq(end_connect(&a, &b, 1, 5000), may ? RG_OK : RG_ERR_INVALID, "%s", a.text);
        if (may) {
            a.up = b.up = 0;
            cr_assert_eq(end_connect(&b, &a, 0, 5000), RG_OK, "%s", b.text);
            cr_assert_eq(a.t->send(a.tp, 0, &s), RG_OK);
            cr_assert_eq(b.t->recv(b.tp, 0, &r), RG_OK);
            cr_assert(UNTIL(a.up && b.up && a.done && b.done), "%s / %s", a.text, b.text);
            cr_assert(!strcmp(in, "hello") && !shared(&a) && !shared(&b));
        }
        part();
    }
}
