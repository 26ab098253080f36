/* test_tcp.c: states of the TCP transport that the conformance cases, which see only the table, cannot bring about: two
 * endpoints in one process, one of them made to look as if it had been at work for days. Relies on loopback. It must
 * not wait without a limit. */
#include "transports/tcp_internal.h"

#include <criterion/criterion.h>
#include <netinet/in.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern const rg_transport_t rg_transport_tcp;

typedef struct end {
    rg_tp_t *tp;
    uint8_t addr[RG_TP_ADDR_MAX];
    uint32_t addr_len;
    uint8_t identity[16];
} end_t;

static void end_open(end_t *e, uint8_t who, uint32_t rails) {
    const rg_config_t config = {
        .struct_size = sizeof config, .interface = "127.0.0.1", .rails = rails, .heartbeat_ms = 2000
    };
    rg_tp_config_t c = { .config = &config };
    rg_error_t err = { RG_OK, 0, "" };
    memset(e->identity, who, sizeof e->identity);
    memcpy(c.identity, e->identity, sizeof c.identity);
    memset(c.nonce, 7, sizeof c.nonce);
    cr_assert_eq(rg_transport_tcp.open(&c, &e->tp, e->addr, &e->addr_len, &err), RG_OK, "%s", err.text);
}

static void end_connect(end_t *e, const end_t *other, uint32_t dial) {
    rg_tp_peer_t p = { .addr = other->addr, .addr_len = other->addr_len, .dial = dial, .timeout_ms = 10000 };
    rg_error_t err = { RG_OK, 0, "" };
    memcpy(p.identity, other->identity, sizeof p.identity);
    cr_assert_eq(rg_transport_tcp.connect(e->tp, 0, &p, &err), RG_OK, "%s", err.text);
}

/* Polls both ends until b has an event of this kind; 0 when ten seconds have passed. */
static int await(end_t *a, end_t *b, rg_tp_event_t kind, rg_completion_t *got) {
    rg_completion_t c[16];
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    for (time_t until = t.tv_sec + 10; t.tv_sec < until; clock_gettime(CLOCK_MONOTONIC, &t)) {
        rg_transport_tcp.poll(a->tp, c, 16);
        int n = rg_transport_tcp.poll(b->tp, c, 16);
        for (int i = 0; i < n; i++)
            if (c[i].event == kind) {
                *got = c[i];
                return 1;
            }
    }
    return 0;
}

static void note_from_a_peer_that_has_counted_to(uint32_t seq) {
    end_t a = { 0 }, b = { 0 };
    rg_completion_t got;
    end_open(&a, 1, 1);
    end_open(&b, 2, 1);
    a.tp->note_seq = seq;
    end_connect(&a, &b, 1);
    end_connect(&b, &a, 0);
    cr_assert(await(&a, &b, RG_TP_LINK_UP, &got));
    for (uint64_t note = 100; note < 103; note++) {
        rg_transport_tcp.note(a.tp, RG_TP_ALL_LINKS, note, 1);
        do cr_assert(await(&a, &b, RG_TP_NOTE, &got), "note %d after %u others did not come", (int)note, seq);
        while (got.note != note);
    }
    rg_transport_tcp.close(a.tp);
    rg_transport_tcp.close(b.tp);
}

Test(tcp, note__to_a_newcomer_after_billions_of_others__comes, .timeout = 60) {
    note_from_a_peer_that_has_counted_to(0);
    note_from_a_peer_that_has_counted_to(0x80000010u);
}

Test(tcp, note__counter_wraps__comes, .timeout = 60) { note_from_a_peer_that_has_counted_to(0xfffffffeu); }

/* A peer that lies: on one rail it begins a frame and stops half way, on the other it sends the same bytes again,
 * whole. Taken at its word the message would be complete while a rail still writes into the buffer. */
Test(tcp, frames__that_overlap_on_two_rails__end_the_link_and_not_the_receive, .timeout = 60) {
    end_t a = { 0 }, b = { 0 };
    rg_completion_t got;
    uint8_t sink[128] = { 0 }, bytes[FRAME_BYTES + 128];
    end_open(&a, 1, 2);
    end_open(&b, 2, 2);
    end_connect(&a, &b, 1);
    end_connect(&b, &a, 0);
    cr_assert(await(&a, &b, RG_TP_LINK_UP, &got));
    rg_completion_t c[4];
    while (a.tp->links[0]->state != LINK_UP) rg_transport_tcp.poll(a.tp, c, 4);
    rg_tp_recv_t r = { .tag = { 1, 1, 1, 1, 1 }, .len = sizeof sink, .dst = sink };
    cr_assert_eq(rg_transport_tcp.recv(b.tp, 0, &r), RG_OK);
    frame_t f = { .type = FRAME_DATA, .len = sizeof sink, .total = sizeof sink, .tag = r.tag };
    memset(bytes, 5, sizeof bytes);
    rgt_frame_put(bytes, &f);
    cr_assert_eq(write(a.tp->links[0]->rail[0]->fd, bytes, FRAME_BYTES + 64), FRAME_BYTES + 64);
    while (!b.tp->links[0]->rail[0]->in_body) rg_transport_tcp.poll(b.tp, c, 4);
    cr_assert_eq(write(a.tp->links[0]->rail[1]->fd, bytes, sizeof bytes), (ssize_t)sizeof bytes);
    cr_assert(await(&a, &b, RG_TP_LINK_DOWN, &got));
    cr_assert(strstr(got.text, "contradicts"), "%s", got.text);
    rg_transport_tcp.close(a.tp);
    rg_transport_tcp.close(b.tp);
}

/* The kernel tells the longest time there is for a round trip that it has not timed. That is no long link: nothing is
 * chosen until there is a time. */
Test(tcp, tune__round_trip_not_timed_yet__chosen_when_it_is, .timeout = 60) {
    static rg_tp_t tp;
    static link_t link;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    conn_t c = { .tp = &tp, .link = &link, .fd = socket(AF_INET, SOCK_STREAM, 0) };
    link.rails = 2;
    memcpy(tp.congestion, "auto", 5);
    cr_assert(bind(listener, (struct sockaddr *)&at, len) == 0 && listen(listener, 1) == 0);
    cr_assert(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
    rgt_tune_begin(&c);
    cr_assert(!c.tune.far && !c.tune.frame && c.tune.next_at < UINT64_MAX, "an unknown time counts as a long one");
    cr_assert(connect(c.fd, (struct sockaddr *)&at, len) == 0);
    rgt_tune(&c);
    cr_assert(!c.tune.untimed && !c.tune.far && strcmp(c.tune.name[0], "reno") == 0, "not chosen");
    close(c.fd);
    close(listener);
}
