/* test_tcp_heal.c: connections that break while messages of all sizes are under way in both directions, and are made
 * again: every message arrives once, whole and in order, although each sender writes over its buffer the moment it
 * gets it back. Two endpoints in one process over loopback. Relies on being let into the transport's structures to
 * break what an outsider could not break at will. It must not wait without a limit. */
#include "os/tls_make.h"
#include "transports/tcp_internal.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

extern const rg_transport_t rg_transport_tcp;

#define WINDOW 6
#define BIGGEST (1u << 20)

typedef struct end {
    rg_tp_t *tp;
    uint8_t addr[RG_TP_ADDR_MAX], identity[16];
    uint32_t addr_len, sent_next, recv_next, received;
    int up, lost, dead, down, relayed;
    char text[300];
    uint8_t *out[WINDOW], *in[WINDOW];
    uint8_t sending[WINDOW], receiving[WINDOW];
    uint32_t out_seq[WINDOW], in_seq[WINDOW];
} end_t;

static uint64_t rng = 1;
static int outward;        /* ends that are opened can only dial */
static rg_tls_ctx_t *keys; /* of ends that are opened; NULL: without TLS */

static uint32_t roll(uint32_t below) {
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return (uint32_t)(rng >> 11) % below;
}

static uint32_t mix(uint32_t a, uint32_t b) {
    uint64_t x = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(x >> 29);
}

static uint32_t length_of(uint32_t from, uint32_t seq) {
    uint32_t r = mix(from * 7 + 1, seq);
    switch (r % 4) {
    case 0: return r / 4 % 200;
    case 1: return r / 4 % 20000;
    case 2: return r / 4 % 300000;
    default: return r / 4 % BIGGEST;
    }
}

static rg_tag_t tag_of(uint32_t seq) { return (rg_tag_t){ .epoch = 1, .gen = 1, .op = seq, .sig = 9 }; }

static void end_open(end_t *e, uint8_t who, uint32_t rails, uint32_t buffer) {
    const rg_config_t config = { .struct_size = sizeof config,
                                 .interface = "127.0.0.1",
                                 .rails = rails,
                                 .heartbeat_ms = 2000,
                                 .socket_buffer_bytes = buffer,
                                 .dial = outward ? RG_DIAL_OUT : RG_DIAL_BOTH };
    rg_tp_config_t c = { .config = &config, .tls = keys };
    rg_error_t err = { RG_OK, 0, "" };
    memset(e, 0, sizeof *e);
    memset(e->identity, who, sizeof e->identity);
    memcpy(c.identity, e->identity, sizeof c.identity);
    memset(c.nonce, 7, sizeof c.nonce);
    cr_assert_eq(rg_transport_tcp.open(&c, &e->tp, e->addr, &e->addr_len, &err), RG_OK, "%s", err.text);
    for (int i = 0; i < WINDOW; i++) {
        e->out[i] = malloc(BIGGEST);
        e->in[i] = malloc(BIGGEST);
        cr_assert(e->out[i] && e->in[i]);
    }
}

static void end_close(end_t *e) {
    rg_transport_tcp.close(e->tp);
    e->tp = NULL;
    for (int i = 0; i < WINDOW; i++) free(e->out[i]), free(e->in[i]);
}

static void end_connect(end_t *e, const end_t *other, uint32_t dial) {
    rg_tp_peer_t p = {
        .addr = other->addr, .addr_len = other->addr_len, .dial = dial, .timeout_ms = 10000, .resume = 1
    };
    rg_error_t err = { RG_OK, 0, "" };
    memcpy(p.identity, other->identity, sizeof p.identity);
    cr_assert_eq(rg_transport_tcp.connect(e->tp, 0, &p, &err), RG_OK, "%s", err.text);
}

static void sent(end_t *e, uint32_t slot) {
    memset(e->out[slot], 0xee, BIGGEST); /* the caller's again: whatever is written here reaches nobody */
    e->sending[slot] = 0;
}

static void received(end_t *e, const end_t *from, uint32_t slot) {
    uint32_t seq = e->in_seq[slot], n = length_of(from->identity[0], seq);
    for (uint32_t i = 0; i < n; i++)
        cr_assert(e->in[slot][i] == (uint8_t)(mix(seq, i / 64) + i), "message %u of %u bytes: byte %u is %02x", seq, n,
                  i, e->in[slot][i]);
    e->receiving[slot] = 0;
    e->received++;
}

static void issue(end_t *e, const end_t *other, uint32_t messages) {
    for (uint32_t s = 0; s < WINDOW; s++) {
        if (!e->sending[s] && e->sent_next < messages) {
            uint32_t seq = e->sent_next++, n = length_of(e->identity[0], seq);
            for (uint32_t i = 0; i < n; i++) e->out[s][i] = (uint8_t)(mix(seq, i / 64) + i);
            rg_tp_send_t m = { .tag = tag_of(seq), .buf = e->out[s], .len = n, .cookie = s };
            e->sending[s] = 1;
            int rc = rg_transport_tcp.send(e->tp, 0, &m);
            cr_assert(rc >= 0);
            if (rc == RG_TP_DONE_NOW) sent(e, s);
        }
        /* Now and then a receive is late, so that what it is for has to wait. */
        if (!e->receiving[s] && e->recv_next < messages && roll(3)) {
            uint32_t seq = e->recv_next++, n = length_of(other->identity[0], seq);
            rg_tp_recv_t r = { .tag = tag_of(seq), .dst = e->in[s], .len = n, .cookie = WINDOW + s };
            e->receiving[s] = 1;
            e->in_seq[s] = seq;
            int rc = rg_transport_tcp.recv(e->tp, 0, &r);
            cr_assert(rc >= 0);
            if (rc == RG_TP_DONE_NOW) received(e, other, s);
        }
    }
}

static void turn(end_t *e, const end_t *other) {
    rg_completion_t c[16];
    int n = rg_transport_tcp.poll(e->tp, c, 16);
    for (int i = 0; i < n; i++) {
        e->up += c[i].event == RG_TP_LINK_UP;
        if (c[i].event == RG_TP_LINK_UP) e->relayed = c[i].note != 0;
        e->lost += c[i].event == RG_TP_LINK_LOST && c[i].status == RG_TP_DONE;
        e->dead += c[i].event == RG_TP_LINK_LOST && c[i].status == RG_TP_GONE;
        e->down += c[i].event == RG_TP_LINK_DOWN;
        if (c[i].event == RG_TP_LINK_DOWN || c[i].event == RG_TP_LINK_LOST)
            snprintf(e->text, sizeof e->text, "%s", c[i].text ? c[i].text : "");
        if (c[i].event == RG_TP_SENT) sent(e, (uint32_t)c[i].cookie);
        if (c[i].event == RG_TP_RECEIVED) received(e, other, (uint32_t)c[i].cookie - WINDOW);
        cr_assert(c[i].event != RG_TP_FAILED || c[i].status == RG_TP_GONE, "an operation failed with %d", c[i].status);
    }
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void unlike_pair(end_t *a, end_t *b, uint32_t rails, uint32_t buffer_a, uint32_t buffer_b) {
    end_open(a, 1, rails, buffer_a);
    end_open(b, 2, rails, buffer_b);
    end_connect(a, b, 1);
    end_connect(b, a, 0);
    for (double until = now_s() + 10; (!a->up || !b->up) && now_s() < until;) turn(a, b), turn(b, a);
    cr_assert(a->up == 1 && b->up == 1);
}

static void pair(end_t *a, end_t *b, uint32_t rails, uint32_t buffer) { unlike_pair(a, b, rails, buffer, buffer); }

static void breaks(uint32_t rails, uint32_t buffer, uint32_t messages, uint32_t every) {
    end_t a, b;
    uint32_t broken = 0;
    pair(&a, &b, rails, buffer);
    double until = now_s() + 40;
    while ((a.received < messages || b.received < messages) && now_s() < until) {
        issue(&a, &b, messages);
        issue(&b, &a, messages);
        if (roll(4)) turn(&a, &b);
        if (roll(4)) turn(&b, &a);
        end_t *e = roll(2) ? &a : &b;
        conn_t *c = e->tp->links[0]->rail[roll(rails)];
        if (c && c->fd >= 0 && roll(every) == 0) {
            shutdown(c->fd, roll(2) ? SHUT_RDWR : SHUT_WR);
            broken++;
        }
        cr_assert(!a.down && !b.down, "the link failed: %s%s", a.text, b.text);
    }
    cr_assert(a.received == messages && b.received == messages, "%u and %u of %u messages, %u breaks", a.received,
              b.received, messages, broken);
    cr_assert(broken > 5 && a.lost + b.lost > 5, "%u breaks, %d and %d noticed", broken, a.lost, b.lost);
    for (until = now_s() + 10; (a.up != a.lost + 1 || b.up != b.lost + 1) && now_s() < until;)
        turn(&a, &b), turn(&b, &a);
    cr_assert(a.up == a.lost + 1 && b.up == b.lost + 1, "lost %d and %d, up %d and %d", a.lost, b.lost, a.up, b.up);
    end_close(&a);
    end_close(&b);
}

Test(tcp_heal, connection__breaks_again_and_again__nothing_lost_or_doubled, .timeout = 60) {
    rng = 0x1234567;
    breaks(1, 0, 300, 12);
}

Test(tcp_heal, connection__breaks_with_small_buffers__nothing_lost_or_doubled, .timeout = 60) {
    rng = 0x7654321;
    breaks(1, 32768, 100, 60);
}

Test(tcp_heal, rails__break_one_by_one__nothing_lost_or_doubled, .timeout = 60) {
    rng = 0xabcdef;
    breaks(3, 0, 300, 8);
}

Test(tcp_heal, peer__closes_its_link__down_with_a_cause, .timeout = 60) {
    end_t a, b;
    pair(&a, &b, 1, 0);
    rg_transport_tcp.drop(b.tp, 0);
    for (double until = now_s() + 10; !a.down && now_s() < until;) turn(&a, &b), turn(&b, &a);
    cr_assert(a.down == 1 && a.lost == 1 && strstr(a.text, "given this link up"), "down %d: %s", a.down, a.text);
    end_close(&a);
    end_close(&b);
}

/* From either side: who dialled and who was dialled. */
static void peer_ends(int dialler_stays) {
    end_t a, b;
    pair(&a, &b, 1, 0);
    end_t *stays = dialler_stays ? &a : &b, *goes = dialler_stays ? &b : &a;
    end_close(goes);
    double began = now_s();
    for (double until = now_s() + 10; !stays->dead && now_s() < until;) turn(stays, stays);
    cr_assert(stays->lost == 1 && stays->dead == 1 && !stays->down, "lost %d, dead %d: %s", stays->lost, stays->dead,
              stays->text);
    cr_assert(now_s() - began < 1.0, "that took %.3f s", now_s() - began);
    end_close(stays);
}

Test(tcp_heal, peer__process_ends__told_that_it_seems_gone, .timeout = 60) {
    peer_ends(1);
    peer_ends(0);
}

/* ---- Under TLS --------------------------------------------------------------------------------------------------- */

static void keys_open(void) {
    char folder[] = "/tmp/regroup-heal-XXXXXX", file[64];
    rg_error_t err = { RG_OK, 0, "" };
    cr_assert(mkdtemp(folder) != NULL);
    snprintf(file, sizeof file, "%s/key", folder);
    if (rg_tls_make_key(file, 0, &err) == RG_OK)
        rg_tls_open(&(rg_tls_files_t){ .tls = "on", .psk = file }, &keys, &err);
    unlink(file);
    rmdir(folder);
    cr_assert(keys != NULL, "%s", err.text);
}

static void close_both(end_t *a, end_t *b) {
    end_close(a);
    end_close(b);
    rg_tls_close(keys);
    keys = NULL;
}

Test(tcp_heal, connection_under_tls__breaks_again_and_again__nothing_lost_or_doubled, .timeout = 60) {
    keys_open();
    breaks(1, 16384, 60, 60);
    rg_tls_close(keys);
    keys = NULL;
}

/* The peer's kernel takes the connection, and nobody answers on it: that must not be waited for without end. */
Test(tcp_heal, peer__silent_in_the_handshake__another_try_is_made, .timeout = 60) {
    end_t a, b;
    keys_open();
    pair(&a, &b, 1, 0);
    conn_t *c = a.tp->links[0]->rail[0];
    shutdown(c->fd, SHUT_RDWR);
    uint64_t first = 0;
    for (double until = now_s() + 10; (!first || c->patience_ns <= first) && now_s() < until;) {
        turn(&a, &b);
        if (!first && c->healer && c->healer->state == CONN_SECURING) first = c->patience_ns;
    }
    cr_assert(first != 0 && c->patience_ns > first, "the first try is still waited for");
    for (double until = now_s() + 10; (a.up != a.lost + 1 || b.up != b.lost + 1) && now_s() < until;)
        turn(&a, &b), turn(&b, &a);
    cr_assert(a.up == a.lost + 1 && b.up == b.lost + 1, "lost %d and %d, up %d and %d", a.lost, b.lost, a.up, b.up);
    close_both(&a, &b);
}

/* What is sent again is the last that there is to send, and does not fit into the socket. */
Test(tcp_heal, last_message_under_tls__sent_again_through_a_small_buffer__arrives, .timeout = 60) {
    end_t a, b;
    uint32_t seq = 0, n;
    keys_open();
    unlike_pair(&a, &b, 1, 1u << 20, 8192);
    while ((n = length_of(1, seq)) < 150000 || n > 200000 || n % 65536 < 40000) seq++;
    for (uint32_t i = 0; i < n; i++) a.out[0][i] = (uint8_t)(mix(seq, i / 64) + i);
    rg_tp_send_t m = { .tag = tag_of(seq), .buf = a.out[0], .len = n, .cookie = 0 };
    rg_tp_recv_t r = { .tag = tag_of(seq), .dst = b.in[0], .len = n, .cookie = WINDOW };
    b.in_seq[0] = seq;
    cr_assert(rg_transport_tcp.recv(b.tp, 0, &r) >= 0);
    a.sending[0] = 1;
    int rc = rg_transport_tcp.send(a.tp, 0, &m);
    cr_assert(rc >= 0);
    if (rc == RG_TP_DONE_NOW) sent(&a, 0);
    for (double until = now_s() + 10; a.sending[0] && now_s() < until;) turn(&a, &b);
    cr_assert(!a.sending[0], "the message does not fit into the socket");
    a.tp->conf.socket_buffer_bytes = 8192;
    shutdown(a.tp->links[0]->rail[0]->fd, SHUT_RDWR);
    for (double until = now_s() + 20; !b.received && now_s() < until;) turn(&a, &b), turn(&b, &a);
    cr_assert(a.lost > 0 && b.received == 1, "lost %d, received %u: %s%s", a.lost, b.received, a.text, b.text);
    close_both(&a, &b);
}

/* ---- Through a third -------------------------------------------------------------------------------------------- */

/* Nobody listens at port 1: the direct way is closed, or, with `port`, open again. */
static void direct_way(end_t *e, uint16_t port) {
    link_t *l = e->tp->links[0];
    for (int i = 0; i < l->addrs; i++) ((struct sockaddr_in *)&l->addr[i])->sin_port = htons(port);
}

static uint16_t port_of(const end_t *e) {
    struct sockaddr_storage all[ADDRS_MAX];
    cr_assert(rgt_blob_get(e->addr, e->addr_len, all) == 1);
    return ntohs(((struct sockaddr_in *)&all[0])->sin_port);
}

static void route(end_t *e, const end_t *relay) {
    rg_tp_peer_t p = { .addr = relay->addr, .addr_len = relay->addr_len };
    memcpy(p.identity, relay->identity, sizeof p.identity);
    rg_transport_tcp.route(e->tp, 0, &p);
}

static void exchange(end_t *a, end_t *b, end_t *r, uint32_t messages, uint32_t every) {
    for (double until = now_s() + 40; (a->received < messages || b->received < messages) && now_s() < until;) {
        issue(a, b, messages);
        issue(b, a, messages);
        turn(a, b), turn(b, a), turn(r, a);
        end_t *e = roll(2) ? a : b;
        conn_t *c = e->tp->links[0]->rail[roll(e->tp->links[0]->rails)];
        if (every && c->fd >= 0 && roll(every) == 0) shutdown(c->fd, SHUT_RDWR);
        cr_assert(!a->down && !b->down, "the link failed: %s%s", a->text, b->text);
    }
    cr_assert(a->received == messages && b->received == messages, "%u and %u of %u messages: %s %s", a->received,
              b->received, messages, a->tp->links[0]->text, b->tp->links[0]->text);
}

static void until_up(end_t *a, end_t *b, end_t *r, int relayed) {
    for (double until = now_s() + 10; now_s() < until;) {
        turn(a, b), turn(b, a), turn(r, a);
        if (a->up == a->lost + 1 && b->up == b->lost + 1 && a->relayed == relayed && b->relayed == relayed) return;
    }
    cr_assert_fail("lost %d and %d, up %d and %d, relayed %d and %d: %s; %s", a->lost, b->lost, a->up, b->up,
                   a->relayed, b->relayed, a->tp->links[0]->text, b->tp->links[0]->text);
}

static void through_a_third(uint32_t rails) {
    end_t a, b, r;
    end_open(&r, 3, 1, 0);
    pair(&a, &b, rails, 0);
    exchange(&a, &b, &r, 40, 0);
    direct_way(&a, 1), direct_way(&b, 1);
    shutdown(a.tp->links[0]->rail[0]->fd, SHUT_RDWR);
    rg_transport_tcp.relay(r.tp, a.identity, b.identity, 1);
    route(&a, &r), route(&b, &r);
    for (double until = now_s() + 10; rails == 1 && !(a.relayed && b.relayed) && now_s() < until;)
        turn(&a, &b), turn(&b, &a), turn(&r, &a);
    exchange(&a, &b, &r, 120, 20);
    exchange(&a, &b, &r, 160, 0);
    if (rails == 1) {
        until_up(&a, &b, &r, 1);
        direct_way(&a, port_of(&b)), direct_way(&b, port_of(&a));
        until_up(&a, &b, &r, 0);
    }
    exchange(&a, &b, &r, 200, 0);
    end_close(&a);
    end_close(&b);
    end_close(&r);
}

Test(tcp_heal, path__closed__goes_through_a_third_and_back, .timeout = 60) { through_a_third(1); }
Test(tcp_heal, path__of_several_rails_closed__goes_through_a_third, .timeout = 60) { through_a_third(3); }

/* Two that can only dial meet at a third from the start; whoever has not been named meets nobody. */
Test(tcp_heal, both_ends__can_only_dial__meet_at_a_third, .timeout = 60) {
    end_t a, b, r;
    end_open(&r, 3, 1, 0);
    outward = 1;
    end_open(&a, 1, 1, 0);
    end_open(&b, 2, 1, 0);
    outward = 0;
    end_connect(&a, &b, 1);
    end_connect(&b, &a, 0);
    route(&a, &r), route(&b, &r);
    for (double until = now_s() + 0.3; now_s() < until;) turn(&a, &b), turn(&b, &a), turn(&r, &a);
    cr_assert(!a.up && !b.up, "they met where nobody had allowed it");
    rg_transport_tcp.relay(r.tp, b.identity, a.identity, 1);
    until_up(&a, &b, &r, 1);
    exchange(&a, &b, &r, 60, 0);
    end_close(&a);
    end_close(&b);
    end_close(&r);
}

/* The one that can be dialled was to dial: it is dialled. */
Test(tcp_heal, one_end__can_only_dial__dials, .timeout = 60) {
    end_t a, b;
    end_open(&a, 1, 1, 0);
    outward = 1;
    end_open(&b, 2, 1, 0);
    outward = 0;
    end_connect(&a, &b, 1);
    end_connect(&b, &a, 0);
    for (double until = now_s() + 10; (!a.up || !b.up) && now_s() < until;) turn(&a, &b), turn(&b, &a);
    cr_assert(a.up == 1 && b.up == 1 && b.tp->links[0]->dial && !a.tp->links[0]->dial);
    end_close(&a);
    end_close(&b);
}

/* ---- A stream that is lost -------------------------------------------------------------------------------------- */

static void begin_again(end_t *e, const end_t *other, uint32_t dial) {
    e->up = e->lost = e->down = 0;
    e->sent_next = e->recv_next = e->received = 0;
    memset(e->sending, 0, sizeof e->sending);
    memset(e->receiving, 0, sizeof e->receiving);
    end_connect(e, other, dial);
}

/* One end loses the stream and begins the link anew; the other one hears of it, whichever of them dials, and whether
 * or not it can dial the first, which `reachable` says. Nothing is dropped on the way. */
static void begun_anew(int dialler, int reachable, int by_relay) {
    end_t a, b, r;
    end_open(&r, 3, 1, 0);
    pair(&a, &b, 1, 0);
    exchange(&a, &b, &r, 20, 0);
    if (by_relay) {
        direct_way(&a, 1), direct_way(&b, 1);
        shutdown(a.tp->links[0]->rail[0]->fd, SHUT_RDWR);
        rg_transport_tcp.relay(r.tp, a.identity, b.identity, 1);
        route(&a, &r), route(&b, &r);
        for (double until = now_s() + 10; !(a.relayed && b.relayed) && now_s() < until;)
            turn(&a, &b), turn(&b, &a), turn(&r, &a);
        exchange(&a, &b, &r, 40, 0);
    }
    end_t *first = dialler ? &a : &b, *second = dialler ? &b : &a;
    if (!reachable) second->tp->links[0]->addrs = 0;
    rgt_link_fail(first->tp, first->tp->links[0], "planted");
    for (double until = now_s() + 10; !first->down && now_s() < until;) turn(first, second);
    begin_again(first, second, (uint32_t)dialler);
    for (double until = now_s() + 10; !second->down && now_s() < until;) turn(&a, &b), turn(&b, &a), turn(&r, &a);
    cr_assert(second->down == 1 && strstr(second->text, "given this link up"), "down %d: %s", second->down,
              second->text);
    begin_again(second, first, (uint32_t)!dialler);
    until_up(&a, &b, &r, by_relay);
    exchange(&a, &b, &r, 60, 20);
    end_close(&a);
    end_close(&b);
    end_close(&r);
}

Test(tcp_heal, stream__lost_where_it_was_dialled__begun_anew, .timeout = 60) { begun_anew(0, 1, 0); }
Test(tcp_heal, stream__lost_where_it_dials__begun_anew, .timeout = 60) { begun_anew(1, 1, 0); }
Test(tcp_heal, stream__lost_where_nobody_can_dial__begun_anew, .timeout = 60) { begun_anew(1, 0, 0); }
Test(tcp_heal, stream__lost_while_relayed__begun_anew_through_the_relay, .timeout = 60) {
    begun_anew(0, 0, 1);
    begun_anew(1, 0, 1);
}

Test(tcp_heal, path_under_tls__closed__goes_through_a_third_and_back, .timeout = 60) {
    keys_open();
    through_a_third(1);
    rg_tls_close(keys);
    keys = NULL;
}
