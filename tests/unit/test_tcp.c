/* test_tcp.c: states of the TCP transport that the conformance cases, which see only the table, cannot bring about: two
 * endpoints in one process, one of them made to look as if it had been at work for days. Relies on loopback. It must
 * not wait without a limit. */
#include "transports/tcp_internal.h"

#include <criterion/criterion.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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

static void end_open_for(end_t *e, uint8_t who, uint32_t rails, uint32_t heartbeat_ms) {
    const rg_config_t config = {
        .struct_size = sizeof config, .interface = "127.0.0.1", .rails = rails, .heartbeat_ms = heartbeat_ms
    };
    rg_tp_config_t c = { .config = &config };
    rg_error_t err = { RG_OK, 0, "" };
    memset(e->identity, who, sizeof e->identity);
    memcpy(c.identity, e->identity, sizeof c.identity);
    memset(c.nonce, 7, sizeof c.nonce);
    cr_assert_eq(rg_transport_tcp.open(&c, &e->tp, e->addr, &e->addr_len, &err), RG_OK, "%s", err.text);
}

static void end_open(end_t *e, uint8_t who, uint32_t rails) { end_open_for(e, who, rails, 2000); }

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
    uint8_t sink[128] = { 0 }, bytes[FRAME_BYTES + 128 + END_BYTES];
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
    rgt_frame_end(bytes + FRAME_BYTES + f.len, bytes);
    cr_assert_eq(write(a.tp->links[0]->rail[0]->fd, bytes, FRAME_BYTES + 64), FRAME_BYTES + 64);
    while (!b.tp->links[0]->rail[0]->in_body) rg_transport_tcp.poll(b.tp, c, 4);
    cr_assert_eq(write(a.tp->links[0]->rail[1]->fd, bytes, sizeof bytes), (ssize_t)sizeof bytes);
    cr_assert(await(&a, &b, RG_TP_LINK_DOWN, &got));
    cr_assert(strstr(got.text, "contradicts"), "%s", got.text);
    rg_transport_tcp.close(a.tp);
    rg_transport_tcp.close(b.tp);
}

/* ---- A peer that lies ----------------------------------------------------------------------------------------------
 */

static uint8_t content(uint64_t at) { return (uint8_t)(at * 37 + 11); }

/* Two ends with two rails each; the lies of a are written to its sockets past its transport. */
static void liar_open(end_t *a, end_t *b) {
    rg_completion_t got, c[4];
    end_open(a, 1, 2);
    end_open(b, 2, 2);
    end_connect(a, b, 1);
    end_connect(b, a, 0);
    cr_assert(await(a, b, RG_TP_LINK_UP, &got));
    while (a->tp->links[0]->state != LINK_UP) rg_transport_tcp.poll(a->tp, c, 4);
}

static void liar_close(end_t *a, end_t *b) {
    rg_transport_tcp.close(a->tp);
    rg_transport_tcp.close(b->tp);
}

static uint32_t size_of(const frame_t *f) { return FRAME_BYTES + f->len + (f->len ? END_BYTES : 0); }

/* 0: nobody reads there any more. */
static int say(const end_t *a, uint32_t rail, const frame_t *f, uint32_t from, uint32_t to) {
    uint8_t out[FRAME_BYTES + 512 + END_BYTES];
    const conn_t *c = a->tp->links[0]->rail[rail];
    rgt_frame_put(out, f);
    for (uint32_t i = 0; i < f->len; i++) out[FRAME_BYTES + i] = content(f->offset + i);
    if (f->len) rgt_frame_end(out + FRAME_BYTES + f->len, out);
    return c && send(c->fd, out + from, to - from, MSG_NOSIGNAL) == (ssize_t)(to - from);
}

static void broken_by(const frame_t *f, uint32_t n, const rg_tp_recv_t *r) {
    end_t a = { 0 }, b = { 0 };
    rg_completion_t got;
    liar_open(&a, &b);
    cr_assert_eq(rg_transport_tcp.recv(b.tp, 0, r), RG_OK);
    for (uint32_t i = 0; i < n; i++) say(&a, i % 2, &f[i], 0, size_of(&f[i]));
    cr_assert(await(&a, &b, RG_TP_LINK_DOWN, &got));
    cr_assert(strstr(got.text, "the peer broke the protocol"), "%s", got.text);
    liar_close(&a, &b);
}

/* What a box on the way may do to a stream: b gets the bytes of two frames, the first harmed at `at`. */
enum harm { REPEATED, LOST, HARM_FLIPPED };

/* 1: the receive completed; 0: the link is down, and the text says why. */
static int harmed(enum harm harm, uint32_t at, uint8_t value, uint32_t len) {
    end_t a = { 0 }, b = { 0 };
    rg_completion_t c[4];
    uint8_t sink[512] = { 0 }, out[2 * (FRAME_BYTES + END_BYTES + sizeof sink)];
    const rg_tp_recv_t r = { .tag = { 1, 1, 1, 1, 1 }, .len = len, .dst = sink };
    const frame_t f = { .type = FRAME_DATA, .len = len, .total = len, .tag = r.tag, .note = 7, .note_seq = 1 };
    uint32_t n = size_of(&f);
    int ended = -1;
    liar_open(&a, &b);
    rgt_frame_put(out, &f);
    memset(out + FRAME_BYTES, value, len);
    out[FRAME_BYTES + len - 1] = 0;
    rgt_frame_end(out + FRAME_BYTES + len, out);
    memcpy(out + n, out, n); /* what comes after it */
    n *= 2;
    if (harm == HARM_FLIPPED) out[at] ^= 0x10;
    else if (harm == LOST) memmove(out + at, out + at + 1, --n - at);
    else memmove(out + at + 1, out + at, n - at); /* the last byte of the second frame stays away */
    cr_assert_eq(rg_transport_tcp.recv(b.tp, 0, &r), RG_OK);
    cr_assert_eq(send(a.tp->links[0]->rail[0]->fd, out, n, MSG_NOSIGNAL), (ssize_t)n);
    for (int i = 0; ended < 0 && i < 2000000; i++) {
        int k = rg_transport_tcp.poll(b.tp, c, 4);
        for (int e = 0; e < k; e++) {
            if (c[e].event == RG_TP_FAILED) cr_assert_eq(c[e].status, RG_TP_GONE, "at %u: not the link's end", at);
            if (c[e].event == RG_TP_RECEIVED) ended = 1;
            if (c[e].event != RG_TP_LINK_DOWN) continue;
            cr_assert(strstr(c[e].text, "the peer broke the protocol"), "%s", c[e].text);
            if (ended < 0) ended = 0;
        }
    }
    liar_close(&a, &b);
    return ended;
}

/* Payloads in which nothing changes but at their ends, where a shift shows last. */
Test(tcp, stream__bytes_twice_or_lost__the_link_ends_and_nothing_is_received, .timeout = 120) {
    cr_assert_eq(harmed(HARM_FLIPPED, FRAME_BYTES, 3, 64), 1, "planted: it tells of what is promised to nobody");
    for (uint32_t at = 0; at < FRAME_BYTES + 64; at += 1 + (at >= FRAME_BYTES) * 6) {
        cr_assert_eq(harmed(REPEATED, at, (uint8_t)(at + 1), 64), 0, "byte %u twice", at);
        cr_assert_eq(harmed(LOST, at, (uint8_t)(at + 1), 64), 0, "without byte %u", at);
    }
}

Test(tcp, stream__one_bit_of_a_header_changed__the_link_ends, .timeout = 120) {
    for (uint32_t at = 0; at < FRAME_BYTES; at++) cr_assert_eq(harmed(HARM_FLIPPED, at, 3, 64), 0, "byte %u", at);
}

/* Bytes in place of others, so many that a count of them is right. */
Test(tcp, frames__that_come_twice_in_place_of_others__no_message, .timeout = 60) {
    uint8_t sink[256];
    const rg_tp_recv_t r = { .tag = { 1, 1, 1, 1, 1 }, .len = sizeof sink, .dst = sink };
    const frame_t f = { .type = FRAME_DATA, .len = 128, .total = 256, .tag = r.tag };
    const frame_t twice[] = { f, f };
    broken_by(twice, 2, &r);
    frame_t askew[] = { f, f };
    askew[1].offset = 64;
    broken_by(askew, 2, &r);
}

static void no_reduce(const void *ctx, void *dst, const void *a, const void *b, size_t n) {
    (void)ctx, (void)dst, (void)a, (void)b, (void)n;
}

Test(tcp, frames__that_end_within_an_element__no_message, .timeout = 60) {
    uint8_t sink[256];
    rg_tp_recv_t r = { .tag = { 1, 1, 1, 1, 1 }, .len = sizeof sink, .dst = sink, .a = sink, .reduce = no_reduce };
    r.wire_elem = r.dst_elem = r.a_elem = 8;
    const frame_t f = { .type = FRAME_DATA, .len = 67, .total = 256, .tag = r.tag };
    broken_by(&f, 1, &r);
}

/* What says that it is of a later epoch than its message would be written on after the fence that ended the receive. */
Test(tcp, frame__of_another_epoch_than_its_message__no_message, .timeout = 60) {
    uint8_t sink[256];
    const rg_tp_recv_t r = { .tag = { 1, 1, 1, 1, 1 }, .len = sizeof sink, .dst = sink };
    frame_t f[] = { { .type = FRAME_DATA, .len = 64, .total = 256, .tag = r.tag }, { 0 } };
    f[1] = f[0];
    f[1].offset = 64;
    f[1].tag.epoch = 1000;
    broken_by(f, 2, &r);
}

typedef struct sum {
    uint8_t room[64 + 256 + 64]; /* guards around the sink */
    int ended, done, fenced;
    uint32_t len;
    uint64_t epoch;
    uint8_t then[256]; /* what was there when it ended */
} sum_t;

static void add(const void *ctx, void *dst, const void *a, const void *b, size_t n) {
    (void)ctx;
    for (size_t i = 0; i < 4 * n; i++)
        ((uint8_t *)dst)[i] = (uint8_t)(((const uint8_t *)a)[i] + ((const uint8_t *)b)[i]);
}

#define SUMS 4

static void ended(sum_t *all, const rg_completion_t *c) {
    if (c->event != RG_TP_RECEIVED && c->event != RG_TP_FAILED) return;
    sum_t *s = &all[c->cookie];
    cr_assert(!s->ended, "it ended twice");
    s->ended = 1;
    s->done = c->event == RG_TP_RECEIVED;
    memcpy(s->then, s->room + 64, s->len);
    for (uint32_t i = 0; s->done && i < s->len; i++) cr_assert_eq(s->room[64 + i], content(i), "byte %u", i);
}

static uint32_t dice(uint64_t *seed, uint32_t n) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

/* Mostly a frame of one of the messages, as it should be; else one with a lie in it. */
static frame_t draw(uint64_t *seed, const sum_t *all) {
    uint32_t m = dice(seed, SUMS), lie = dice(seed, 40);
    frame_t f = { .type = FRAME_DATA, .mseq = m, .total = all[m].len, .tag = { all[m].epoch, 1, m, 1, 1 } };
    f.offset = 64ull * dice(seed, all[m].len / 64);
    f.len = 64 * (1 + dice(seed, (uint32_t)(f.total - f.offset) / 64));
    if (lie == 0) f.mseq = dice(seed, SUMS);
    if (lie == 1 || lie == 6) f.tag.epoch = dice(seed, 4);
    if (lie == 2) f.total += 64;
    if (lie == 3) f.len -= 1 + dice(seed, 63);
    if (lie == 4) f.tag.sig = 2;
    if (lie == 5) f.tag.op = dice(seed, SUMS);
    return f;
}

/* At most once each, with the right bytes or not at all, nothing beside it, and nothing after its end. */
static void lies(uint64_t seed, int *whole) {
    end_t a = { 0 }, b = { 0 };
    sum_t all[SUMS];
    rg_completion_t c[16];
    memset(all, 0, sizeof all);
    liar_open(&a, &b);
    for (uint32_t m = 0; m < SUMS; m++) {
        memset(all[m].room, 0xee, sizeof all[m].room);
        all[m].len = 64 * (1 + dice(&seed, 4));
        all[m].epoch = 1 + m % 2;
        memset(all[m].room + 64, 0, all[m].len);
    }
    frame_t f[2];
    uint32_t posted = 0, cut = 0, half[2] = { 0, 0 }; /* half: of the frame that a rail is in the middle of */
    for (int i = 0; i < 60; i++) {
        if (posted < SUMS && dice(&seed, 4) == 0) {
            sum_t *s = &all[posted];
            rg_tp_recv_t r = { .tag = { s->epoch, 1, posted, 1, 1 }, .len = s->len, .dst = s->room + 64 };
            r.cookie = posted++;
            r.wire_elem = r.dst_elem = r.a_elem = 4;
            r.a = r.dst;
            if (posted % 2) r.reduce = add;
            (void)rg_transport_tcp.recv(b.tp, 0, &r);
        }
        if (!cut && i > 10 && dice(&seed, 20) == 0) rg_transport_tcp.fence(b.tp, 2), cut = 1;
        uint32_t rail = dice(&seed, 2), from = half[rail];
        if (!from) f[rail] = draw(&seed, all);
        half[rail] = from || dice(&seed, 3) ? 0 : FRAME_BYTES + f[rail].len / 2;
        (void)say(&a, rail, &f[rail], from, half[rail] ? half[rail] : size_of(&f[rail]));
        for (int k = 0; k < 3; k++) {
            int n = rg_transport_tcp.poll(b.tp, c, 16);
            for (int e = 0; e < n; e++) ended(all, &c[e]);
        }
    }
    for (uint32_t m = 0; m < SUMS; m++) {
        *whole += all[m].done;
        for (uint32_t i = 0; i < sizeof all[m].room; i++)
            cr_assert(all[m].room[i] == 0xee || (i >= 64 && i < 64 + all[m].len), "beside the sink");
        cr_assert(!all[m].ended || !memcmp(all[m].then, all[m].room + 64, all[m].len), "after its end");
    }
    liar_close(&a, &b);
}

Test(tcp, frames__with_lies_in_them__right_bytes_or_none, .timeout = 120) {
    int whole = 0;
    for (uint64_t seed = 0; seed < 300; seed++) lies(seed, &whole);
    cr_assert_gt(whole, 20, "too few messages came whole to say anything: %d", whole);
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

/* A connection that began as a short one, and whose way is long from some time on: it is no short one any more, however
 * far it had come in trying what is quick on those. */
static void becomes_far(uint32_t samples, const char *congestion) {
    static rg_tp_t tp;
    static link_t link;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at, n = 16;
    char before[16] = "", now[16] = "";
    uint64_t pace = 0;
    tune_sample_t s = { .min_rtt_us = 200 };
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    conn_t c = { .tp = &tp, .link = &link, .fd = socket(AF_INET, SOCK_STREAM, 0) };
    link.rails = 2;
    strcpy(tp.congestion, congestion);
    cr_assert(bind(listener, (struct sockaddr *)&at, len) == 0 && listen(listener, 1) == 0);
    cr_assert(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
    cr_assert(connect(c.fd, (struct sockaddr *)&at, len) == 0);
    cr_assert_eq(getsockopt(c.fd, IPPROTO_TCP, TCP_CONGESTION, before, &n), 0);
    rgt_tune_begin(&c);
    cr_assert(!c.tune.far && !c.tune.frame && c.tune.next_at < UINT64_MAX, "nobody looks again");
    for (uint32_t i = 0; i < samples; i++) {
        s.acked += 32 << 20;
        s.busy_us += i % 2 ? 10000 : 20000;
        rgt_tune_by(&c, &s);
        cr_assert(!c.tune.far && c.tune.next_at - c.tune.sent <= 32u << 20, "after %u samples", i);
    }
    s.min_rtt_us = 40000;
    rgt_tune_by(&c, &s);
    cr_assert(c.tune.far && c.tune.frame && c.tune.next_at - c.tune.sent < 32u << 20);
    n = 16;
    cr_assert_eq(getsockopt(c.fd, IPPROTO_TCP, TCP_CONGESTION, now, &n), 0);
    cr_assert_str_eq(now, before);
    n = sizeof pace;
    cr_assert(getsockopt(c.fd, SOL_SOCKET, SO_MAX_PACING_RATE, &pace, &n) == 0 && pace != UINT64_MAX, "not paced");
    close(c.fd);
    close(listener);
}

Test(tcp, tune__way_becomes_long__as_one_that_always_was, .timeout = 60) {
    for (uint32_t samples = 0; samples < 20; samples++) becomes_far(samples, "auto");
    becomes_far(600, "auto");
    becomes_far(3, "as the system says");
}

/* ---- Signs of life -------------------------------------------------------------------------------------------------
 */

#define SHORT_MS 400u

static uint64_t ms_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Nobody looks after this end, as when its process was stopped, until what was sent is acknowledged and the peer has
 * been silent for so long. */
static void silent_for(const conn_t *c, uint32_t ms) {
    struct tcp_info ti = { 0 };
    for (uint64_t until = ms_now() + 10000; ti.tcpi_unacked || ti.tcpi_last_ack_recv < ms;) {
        socklen_t len = sizeof ti;
        cr_assert(ms_now() < until && getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &ti, &len) == 0);
    }
}

/* An idle link whose end a has asked for a sign of life; sent: the kernel has the question. */
static conn_t *asks(end_t *a, end_t *b, int sent) {
    rg_completion_t got, c[4];
    end_open_for(a, 1, 1, SHORT_MS);
    end_open_for(b, 2, 1, SHORT_MS);
    end_connect(a, b, 1);
    end_connect(b, a, 0);
    cr_assert(await(b, a, RG_TP_LINK_UP, &got));
    conn_t *rail = a->tp->links[0]->rail[0];
    for (uint64_t until = ms_now() + 10000; !rail->asked || (sent && rail->ack_owed);) {
        cr_assert(ms_now() < until && rg_transport_tcp.poll(a->tp, c, 4) >= 0);
        rg_transport_tcp.poll(b->tp, c, 4);
    }
    return rail;
}

/* The kernel alone answers for the other end, which is stopped from then on. */
static void looked_at_late(int sent) {
    end_t a = { 0 }, b = { 0 };
    rg_completion_t c[4];
    conn_t *rail = asks(&a, &b, sent);
    const int off = 0;
    cr_assert_eq(setsockopt(rail->fd, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof off),
                 0); /* it would hide what is missed */
    silent_for(rail, 2 * SHORT_MS);
    const uint64_t late = rg_os_now_ns(), until = ms_now() + 10000;
    do {
        cr_assert(ms_now() < until, "it is not asked again");
        for (int i = rg_transport_tcp.poll(a.tp, c, 4); i-- > 0;)
            cr_assert(c[i].event != RG_TP_LINK_DOWN, "%s", a.tp->links[0]->text);
    } while (!rail->asked || rail->ack_owed || rail->retry_at < late);
    rg_transport_tcp.close(a.tp);
    rg_transport_tcp.close(b.tp);
}

Test(tcp, sign_of_life__comes_while_nobody_looks__asked_for_again, .timeout = 60) { looked_at_late(1); }

Test(tcp, sign_of_life__asked_for_late__the_time_allowed_begins_then, .timeout = 60) { looked_at_late(0); }
