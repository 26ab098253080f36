/* conformance.c: one exam for every transport, through its table only: rules T1 to T7 of regroup_transport.h. All
 * endpoints of a case live in this thread and are polled in turn; the simulated network's time moves with each turn.
 * Every check is shown to fire: the exam is also given to a transport with a planted bug, one bug at a time, and the
 * case named beside the bug must fail. Usage: conformance [-v] [subject [case]]; exit 0, 1, or 77 when everything
 * skipped. It must not rely on timing: everything waits for a condition with a deadline. */
#include "os/os.h"
#include "os/tls.h"
#include "os/tls_make.h"
#include "adapter/fake.h"
#include "refuse.h"
#include "regroup_transport.h"
#include "../transports/auto.h"
#include "../transports/rdma_hooks.h"
#include "../transports/rdma_rails.h"
#include "../transports/shm_internal.h"
#include "../transports/simnet.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern const rg_transport_t rg_transport_tcp, rg_transport_inproc, rg_transport_shm;

/* tests/adapter has an RDMA adapter, and names the subjects that are examined with it. */
extern const char *const conformance_subjects __attribute__((weak));

#define COOKIES 4096
#define BIG (64u << 20)

typedef struct ep {
    rg_tp_t *tp;
    uint8_t id[16], addr[RG_TP_ADDR_MAX];
    uint32_t addr_len;
    int ends[COOKIES]; /* completions per cookie */
    rg_tp_status_t status[COOKIES];
    int up[8], down[8], notes;
    int unexpected;
    uint64_t note;
    rg_tag_t unexpected_tag, mismatch_tag;
    char text[256];
} ep_t;

typedef struct env {
    const rg_transport_t *t;
    const char *what; /* the subject */
    rg_tls_ctx_t *tls;
    rg_config_t conf;
    rg_simnet_t *world;
    ep_t ep[3];
    int n;
    char why[400];
} env_t;

static uint64_t patience_ns = 20 * 1000000000ull; /* for what must come; planted bugs are waited for less */
static const uint8_t nonce[16] = { 'g', 'r', 'o', 'u', 'p' };

#include "conformance_bad.h"

#define CHECK(e, cond)                                                                                                 \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            snprintf((e)->why, sizeof(e)->why, "line %d: %s", __LINE__, #cond);                                        \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

/* ---- Tools ---- */

static void note_end(ep_t *p, uint64_t cookie, rg_tp_status_t st) {
    if (cookie < COOKIES) {
        p->ends[cookie]++;
        p->status[cookie] = st;
    }
}

static void turn(env_t *e) {
    if (e->world) rg_simnet_advance(e->world, 50000);
    for (int i = 0; i < e->n; i++) {
        rg_completion_t c[32];
        ep_t *p = &e->ep[i];
        int n = p->tp ? e->t->poll(p->tp, c, 32) : 0;
        for (int k = 0; k < n; k++) {
            if (c[k].event == RG_TP_SENT || c[k].event == RG_TP_RECEIVED) note_end(p, c[k].cookie, RG_TP_DONE);
            else if (c[k].event == RG_TP_FAILED) note_end(p, c[k].cookie, c[k].status);
            if (c[k].event == RG_TP_FAILED && c[k].status == RG_TP_MISMATCH) p->mismatch_tag = c[k].tag;
            if (c[k].event == RG_TP_LINK_UP) p->up[c[k].link % 8]++;
            if (c[k].event == RG_TP_LINK_DOWN) {
                p->down[c[k].link % 8]++;
                snprintf(p->text, sizeof p->text, "%s", c[k].text ? c[k].text : "");
            }
            if (c[k].event == RG_TP_NOTE) {
                p->notes++;
                p->note = c[k].note;
            }
            if (c[k].event == RG_TP_UNEXPECTED) {
                p->unexpected++;
                p->unexpected_tag = c[k].tag;
            }
        }
    }
}

/* Turns until the condition holds; the value is whether it did. */
#define UNTIL(e, cond)                                                                                                 \
    ({                                                                                                                 \
        uint64_t end_ = rg_os_now_ns() + patience_ns;                                                                  \
        while (!(cond) && rg_os_now_ns() < end_) turn(e);                                                              \
        (cond);                                                                                                        \
    })

static void turns(env_t *e, int n) {
    while (n-- > 0) turn(e);
}

static rg_tag_t tag(uint64_t epoch, uint64_t op, uint32_t ord) {
    return (rg_tag_t){ .epoch = epoch, .gen = 3, .op = op, .ord = ord, .sig = 0x5151 };
}

static int start(env_t *e, int who, const uint8_t *group) {
    ep_t *p = &e->ep[who];
    rg_error_t err;
    rg_tp_config_t c = { .config = &e->conf, .tls = e->tls };
    memset(p, 0, sizeof *p);
    p->id[0] = (uint8_t)(who + 1);
    memcpy(c.identity, p->id, 16);
    if (group) memcpy(c.nonce, group, 16);
    if (e->t->open(&c, &p->tp, p->addr, &p->addr_len, &err) != RG_OK) {
        snprintf(e->why, sizeof e->why, "open: %.300s", err.text);
        return -1;
    }
    if (e->n <= who) e->n = who + 1;
    return 0;
}

static int link_to(env_t *e, int from, uint32_t link, int to, int dial, uint32_t timeout_ms) {
    rg_error_t err;
    rg_tp_peer_t peer = {
        .addr = e->ep[to].addr, .addr_len = e->ep[to].addr_len, .dial = (uint32_t)dial, .timeout_ms = timeout_ms
    };
    memcpy(peer.identity, e->ep[to].id, 16);
    return e->t->connect(e->ep[from].tp, link, &peer, &err) == RG_OK ? 0 : -1;
}

/* Two endpoints, link 0 of each to the other. */
static int couple(env_t *e) {
    return start(e, 0, nonce) == 0 && start(e, 1, nonce) == 0 && link_to(e, 0, 0, 1, 1, 10000) == 0 &&
                   link_to(e, 1, 0, 0, 0, 10000) == 0 && UNTIL(e, e->ep[0].up[0] && e->ep[1].up[0])
               ? 0
               : -1;
}

static int do_send(env_t *e, int who, rg_tag_t t, const void *buf, uint64_t len, uint64_t cookie) {
    rg_tp_send_t s = { .tag = t, .buf = buf, .len = len, .cookie = cookie };
    int rc = e->t->send(e->ep[who].tp, 0, &s);
    if (rc == RG_TP_DONE_NOW) note_end(&e->ep[who], cookie, RG_TP_DONE);
    return rc >= 0;
}

static int do_recv_op(env_t *e, int who, const rg_tp_recv_t *r) {
    int rc = e->t->recv(e->ep[who].tp, 0, r);
    if (rc == RG_TP_DONE_NOW) note_end(&e->ep[who], r->cookie, RG_TP_DONE);
    return rc >= 0;
}

static int do_recv(env_t *e, int who, rg_tag_t t, void *dst, uint64_t len, uint64_t cookie) {
    rg_tp_recv_t r = { .tag = t, .dst = dst, .len = len, .cookie = cookie };
    return do_recv_op(e, who, &r);
}

static int ended(env_t *e, int who, uint64_t cookie, rg_tp_status_t st) {
    return e->ep[who].ends[cookie] == 1 && e->ep[who].status[cookie] == st;
}

static void fill(uint8_t *p, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(((i + seed) * 2654435761u) >> 24);
}

static uint64_t hash(const void *p, size_t n) {
    const uint8_t *b = p;
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 1099511628211u;
    return h;
}

static int holds(const uint8_t *p, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != (uint8_t)(((i + seed) * 2654435761u) >> 24)) return 0;
    return 1;
}

static int fds(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static uint8_t *big_a, *big_b; /* BIG each, shared by the cases: the first two or the last two of these */
static uint8_t *plain_a, *plain_b, *region_a, *region_b;

/* ---- Cases ---- */

static void case_connect_orders(env_t *e) {
    CHECK(e, start(e, 0, nonce) == 0 && start(e, 1, nonce) == 0);
    CHECK(e, link_to(e, 0, 0, 1, 1, 10000) == 0); /* dials before it is expected */
    turns(e, 300);
    CHECK(e, !e->ep[0].up[0]);
    CHECK(e, link_to(e, 1, 0, 0, 0, 10000) == 0);
    CHECK(e, UNTIL(e, e->ep[0].up[0] && e->ep[1].up[0]));
    e->t->drop(e->ep[0].tp, 0);
    CHECK(e, UNTIL(e, e->ep[1].down[0] == 1));
    e->t->drop(e->ep[1].tp, 0);
    memset(e->ep[0].up, 0, sizeof e->ep[0].up);
    memset(e->ep[1].up, 0, sizeof e->ep[1].up);
    CHECK(e, link_to(e, 1, 0, 0, 0, 10000) == 0); /* expected before it dials; numbers are used again */
    turns(e, 10);
    CHECK(e, link_to(e, 0, 0, 1, 1, 10000) == 0);
    CHECK(e, UNTIL(e, e->ep[0].up[0] && e->ep[1].up[0]));
    CHECK(e, e->ep[0].up[0] == 1 && e->ep[1].up[0] == 1 && !e->ep[0].down[0]);
}

static void case_nonce_later(env_t *e) {
    CHECK(e, start(e, 0, nonce) == 0 && start(e, 1, NULL) == 0);
    CHECK(e, link_to(e, 1, 0, 0, 0, 10000) == 0 && link_to(e, 0, 0, 1, 1, 10000) == 0);
    turns(e, 200);
    CHECK(e, !e->ep[0].up[0] && !e->ep[1].up[0]);
    e->t->set_nonce(e->ep[1].tp, nonce);
    CHECK(e, UNTIL(e, e->ep[0].up[0] && e->ep[1].up[0]));
}

static void case_other_group(env_t *e) {
    static const uint8_t other[16] = { 'o' };
    CHECK(e, start(e, 0, nonce) == 0 && start(e, 1, other) == 0);
    CHECK(e, link_to(e, 1, 0, 0, 0, 400) == 0 && link_to(e, 0, 0, 1, 1, 400) == 0);
    CHECK(e, UNTIL(e, e->ep[0].down[0] && e->ep[1].down[0]));
    CHECK(e, !e->ep[0].up[0] && !e->ep[1].up[0] && e->ep[0].text[0]);
}

static void case_out_of_order(env_t *e) {
    uint8_t out[8][1000], in[8][1000];
    CHECK(e, couple(e) == 0);
    for (int i = 0; i < 8; i++) CHECK(e, do_recv(e, 1, tag(1, 7, (uint32_t)i), in[i], 1000, (uint64_t)i));
    for (int i = 7; i >= 0; i--) {
        fill(out[i], 1000, (uint32_t)i);
        CHECK(e, do_send(e, 0, tag(1, 7, (uint32_t)i), out[i], 1000, (uint64_t)i));
    }
    for (int i = 0; i < 8; i++) {
        CHECK(e, UNTIL(e, ended(e, 1, (uint64_t)i, RG_TP_DONE) && ended(e, 0, (uint64_t)i, RG_TP_DONE)));
        CHECK(e, holds(in[i], 1000, (uint32_t)i));
    }
    turns(e, 20);
    for (int i = 0; i < 8; i++) CHECK(e, e->ep[0].ends[i] == 1 && e->ep[1].ends[i] == 1);
}

static void case_zero_length(env_t *e) {
    CHECK(e, couple(e) == 0);
    CHECK(e, do_send(e, 0, tag(1, 1, 0), NULL, 0, 1) && do_recv(e, 1, tag(1, 1, 0), NULL, 0, 1));
    CHECK(e, UNTIL(e, ended(e, 0, 1, RG_TP_DONE) && ended(e, 1, 1, RG_TP_DONE)));
    CHECK(e, do_recv(e, 0, tag(1, 1, 1), NULL, 0, 2) && do_send(e, 1, tag(1, 1, 1), NULL, 0, 2));
    CHECK(e, UNTIL(e, ended(e, 0, 2, RG_TP_DONE) && ended(e, 1, 2, RG_TP_DONE)));
}

static void add_i24(const void *ctx, void *dst, const void *a, const void *b, size_t n) {
    /* Elements of 3 bytes: they straddle every boundary that a stream has. dst and a have 4. */
    (void)ctx;
    for (size_t i = 0; i < n; i++) {
        const uint8_t *p = (const uint8_t *)b + 3 * i;
        uint32_t x, v = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
        memcpy(&x, (const uint8_t *)a + 4 * i, 4);
        x += v;
        memcpy((uint8_t *)dst + 4 * i, &x, 4);
    }
}

static void add_i32(const void *ctx, void *dst, const void *a, const void *b, size_t n) {
    (void)ctx;
    for (size_t i = 0; i < n; i++) {
        uint32_t x, y;
        memcpy(&x, (const uint8_t *)a + 4 * i, 4);
        memcpy(&y, (const uint8_t *)b + 4 * i, 4);
        x += y;
        memcpy((uint8_t *)dst + 4 * i, &x, 4);
    }
}

static void case_reduce(env_t *e) {
    static const size_t counts[] = { 1, 3, 1021, 16381, 70001, 262144, 1500007 };
    CHECK(e, couple(e) == 0);
    for (uint64_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        size_t n = counts[k], shift = k % 4; /* unaligned everywhere */
        uint8_t *src = big_a + shift, *a = big_b + 1, *dst = big_b + BIG / 2 + shift;
        for (size_t i = 0; i < n; i++) {
            uint32_t v = (uint32_t)(i * 7 + k), w = (uint32_t)(i * 1000003);
            memcpy(src + 4 * i, &v, 4);
            memcpy(a + 4 * i, &w, 4);
        }
        rg_tp_recv_t r = { .tag = tag(1, k, 0),
                           .len = 4 * n,
                           .cookie = 10 + k,
                           .dst = dst,
                           .a = a,
                           .reduce = add_i32,
                           .wire_elem = 4,
                           .dst_elem = 4,
                           .a_elem = 4 };
        CHECK(e, do_recv_op(e, 1, &r) && do_send(e, 0, r.tag, src, 4 * n, 10 + k));
        CHECK(e, UNTIL(e, ended(e, 1, 10 + k, RG_TP_DONE) && ended(e, 0, 10 + k, RG_TP_DONE)));
        for (size_t i = 0; i < n; i++) {
            uint32_t x;
            memcpy(&x, dst + 4 * i, 4);
            CHECK(e, x == (uint32_t)(i * 7 + k) + (uint32_t)(i * 1000003));
        }
    }
}

/* Conversions: an element on the wire, in a and in dst may differ in size. 64 is no multiple of 3, so only messages of
 * one frame can have such elements; what matters is the carry over partial reads. */
static void case_reduce_odd_element(env_t *e) {
    size_t n = 70000;
    CHECK(e, couple(e) == 0);
    for (size_t i = 0; i < 3 * n; i++) big_a[i] = (uint8_t)(i * 31);
    memset(big_b, 0, 4 * n);
    rg_tp_recv_t r = { .tag = tag(1, 1, 0),
                       .len = 3 * n,
                       .cookie = 1,
                       .dst = big_b,
                       .a = big_b,
                       .reduce = add_i24,
                       .wire_elem = 3,
                       .dst_elem = 4,
                       .a_elem = 4 };
    CHECK(e, do_recv_op(e, 1, &r) && do_send(e, 0, r.tag, big_a, 3 * n, 1));
    CHECK(e, UNTIL(e, ended(e, 1, 1, RG_TP_DONE)));
    for (size_t i = 0; i < n; i++) {
        uint32_t x, v = (uint32_t)big_a[3 * i] | (uint32_t)big_a[3 * i + 1] << 8 | (uint32_t)big_a[3 * i + 2] << 16;
        memcpy(&x, big_b + 4 * i, 4);
        CHECK(e, x == v);
    }
}

#include "conformance_bulk.h"

static void case_mismatch(env_t *e) {
    uint8_t out[64] = { 0 }, in[128];
    memset(in, 0xee, sizeof in);
    CHECK(e, couple(e) == 0);
    rg_tag_t other = tag(1, 1, 0);
    other.sig++;
    CHECK(e, do_recv(e, 1, tag(1, 1, 0), in, 64, 1) && do_send(e, 0, other, out, 64, 1));
    CHECK(e, UNTIL(e, e->ep[1].ends[1]) && ended(e, 1, 1, RG_TP_MISMATCH));
    CHECK(e, e->ep[1].mismatch_tag.sig == other.sig);
    CHECK(e, do_recv(e, 1, tag(1, 2, 0), in, 128, 2) && do_send(e, 0, tag(1, 2, 0), out, 64, 2)); /* another length */
    CHECK(e, UNTIL(e, e->ep[1].ends[2]) && ended(e, 1, 2, RG_TP_MISMATCH));
    /* Large, and known only after it came; on several rails its pieces come by several ways. */
    other.op = 3;
    CHECK(e, do_send(e, 0, other, big_a, 3 << 20, 3));
    CHECK(e, do_recv(e, 1, tag(1, 9, 0), in, 1, 9)); /* something else is asked for: it may be kept */
    turns(e, 50);
    CHECK(e, do_recv(e, 1, tag(1, 3, 0), big_b, 3 << 20, 3));
    CHECK(e, UNTIL(e, e->ep[1].ends[3]) && ended(e, 1, 3, RG_TP_MISMATCH));
    for (size_t i = 0; i < sizeof in; i++) CHECK(e, in[i] == 0xee);
    CHECK(e, do_send(e, 0, tag(1, 9, 0), "x", 1, 9)); /* the link goes on */
    CHECK(e, UNTIL(e, ended(e, 1, 9, RG_TP_DONE)) && in[0] == 'x');
}

static void case_unexpected_waits(env_t *e) {
    CHECK(e, couple(e) == 0);
    fill(big_a, BIG, 1);
    CHECK(e, do_send(e, 0, tag(1, 1, 0), big_a, BIG, 1)); /* more than may be kept */
    CHECK(e, UNTIL(e, e->ep[1].unexpected));
    CHECK(e, e->ep[1].unexpected_tag.op == 1);
    turns(e, 300);
    CHECK(e, e->ep[1].unexpected == 1);
    memset(big_b, 0, BIG);
    CHECK(e, do_recv(e, 1, tag(1, 1, 0), big_b, BIG, 1));
    CHECK(e, UNTIL(e, ended(e, 0, 1, RG_TP_DONE) && ended(e, 1, 1, RG_TP_DONE)));
    CHECK(e, holds(big_b, BIG, 1));
}

static void case_unexpected_is_passed(env_t *e) {
    uint8_t in[100];
    CHECK(e, couple(e) == 0);
    fill(big_a, 3 << 20, 1);
    CHECK(e, do_send(e, 0, tag(1, 1, 0), big_a, 3 << 20, 1));
    CHECK(e, do_send(e, 0, tag(1, 2, 0), big_a, 100, 2));
    CHECK(e, do_recv(e, 1, tag(1, 2, 0), in, 100, 2)); /* behind the large one */
    CHECK(e, UNTIL(e, ended(e, 1, 2, RG_TP_DONE)) && holds(in, 100, 1));
    turns(e, 3);
    CHECK(e, e->ep[1].unexpected >= 1 && e->ep[1].unexpected <= 2);
    rg_tp_recv_t r = { .tag = tag(1, 1, 0),
                       .len = 3 << 20,
                       .cookie = 1,
                       .dst = big_b,
                       .a = big_b,
                       .reduce = add_i32,
                       .wire_elem = 4,
                       .dst_elem = 4,
                       .a_elem = 4 };
    memset(big_b, 0, 3 << 20);
    CHECK(e, do_recv_op(e, 1, &r));
    CHECK(e, UNTIL(e, ended(e, 1, 1, RG_TP_DONE)) && holds(big_b, 3 << 20, 1));
}

/* Each one waits until its receive is posted, on a link where nothing else is, at an end that never sleeps. */
static void case_unexpected_again(env_t *e) {
    uint8_t in[64];
    CHECK(e, couple(e) == 0);
    for (uint64_t k = 1; k <= 4; k++) {
        fill(big_a, 64, (uint32_t)k);
        CHECK(e, do_send(e, 0, tag(1, k, 0), big_a, 64, k));
        CHECK(e, UNTIL(e, e->ep[1].unexpected == (int)k) && e->ep[1].unexpected_tag.op == k);
        CHECK(e, do_recv(e, 1, tag(1, k, 0), in, 64, k));
        CHECK(e, UNTIL(e, ended(e, 1, k, RG_TP_DONE) && ended(e, 0, k, RG_TP_DONE)) && holds(in, 64, (uint32_t)k));
    }
}

/* The fence falls after `k` turns, first on one side, then on the other. */
static void fence_once(env_t *e, int k, int receiver_first) {
    size_t n = 8 << 20;
    uint64_t old = (uint64_t)k * 2 + 10, fresh = old + 1, c = (uint64_t)k * 4;
    fill(big_a, n, 1);
    memset(big_b, 0, n);
    CHECK(e, do_recv(e, 1, tag(old, 1, 0), big_b, n, c) && do_send(e, 0, tag(old, 1, 0), big_a, n, c));
    CHECK(e, do_recv(e, 1, tag(fresh, 1, 0), big_b + BIG / 2, 1000, c + 1));
    turns(e, k);
    uint64_t t0 = rg_os_now_ns();
    e->t->fence(e->ep[receiver_first].tp, fresh);
    CHECK(e, rg_os_now_ns() - t0 < 50000000); /* far below, but this machine may be busy */
    uint64_t before = hash(big_b, n);
    if (!receiver_first) memset(big_a, 0xaa, n); /* ours again */
    turns(e, 20);
    if (receiver_first && e->ep[1].status[c] == RG_TP_FENCED) CHECK(e, hash(big_b, n) == before);
    e->t->fence(e->ep[!receiver_first].tp, fresh);
    before = hash(big_b, n);
    memset(big_a, 0xaa, n);
    CHECK(e, do_send(e, 0, tag(old, 1, 1), big_a, 64, c + 2)); /* too late */
    fill(big_a + n, 1000, 77);
    CHECK(e, do_send(e, 0, tag(fresh, 1, 0), big_a + n, 1000, c + 1));
    CHECK(e, UNTIL(e, ended(e, 1, c + 1, RG_TP_DONE) && ended(e, 0, c + 1, RG_TP_DONE)));
    CHECK(e, holds(big_b + BIG / 2, 1000, 77));
    CHECK(e, UNTIL(e, e->ep[0].ends[c] && e->ep[1].ends[c] && e->ep[0].ends[c + 2]));
    turns(e, 5);
    CHECK(e, e->ep[0].ends[c] == 1 && e->ep[1].ends[c] == 1 && ended(e, 0, c + 2, RG_TP_FENCED));
    CHECK(e, e->ep[1].status[c] == RG_TP_DONE || e->ep[1].status[c] == RG_TP_FENCED);
    CHECK(e, e->ep[1].status[c] == RG_TP_DONE || hash(big_b, n) == before);
    CHECK(e, e->ep[1].status[c] != RG_TP_DONE || holds(big_b, n, 1)); /* and not what came after the fence */
}

static void case_fence(env_t *e) {
    CHECK(e, couple(e) == 0);
    for (int k = 0; k < 24 && !e->why[0]; k++) fence_once(e, k, k % 2);
    CHECK(e, e->why[0] || (!e->ep[0].down[0] && !e->ep[1].down[0]));
}

static void case_fence_discards_kept(env_t *e) {
    uint8_t in[64];
    CHECK(e, couple(e) == 0);
    fill(big_a, 1 << 20, 3);
    CHECK(e, do_recv(e, 1, tag(5, 9, 9), in, 64, 9));
    CHECK(e, do_send(e, 0, tag(4, 1, 0), big_a, 64, 1));      /* old, kept */
    CHECK(e, do_send(e, 0, tag(4, 2, 0), big_a, 1 << 20, 2)); /* old, kept or under way */
    CHECK(e, UNTIL(e, e->ep[1].unexpected >= 1));
    e->t->fence(e->ep[1].tp, 5);
    memset(in, 0, sizeof in);
    CHECK(e, do_recv(e, 1, tag(4, 1, 0), in, 64, 3));
    CHECK(e, UNTIL(e, e->ep[1].ends[3]) && ended(e, 1, 3, RG_TP_FENCED));
    CHECK(e, do_send(e, 0, tag(4, 3, 0), big_a, 64, 4)); /* old, sent after our fence */
    CHECK(e, do_send(e, 0, tag(5, 9, 9), big_a, 64, 5));
    CHECK(e, UNTIL(e, ended(e, 1, 9, RG_TP_DONE)) && holds(in, 64, 3));
    turns(e, 100);
    CHECK(e, e->ep[1].unexpected <= 2);
}

static void case_higher_epoch_waits(env_t *e) {
    uint8_t in[2][500];
    CHECK(e, couple(e) == 0);
    fill(big_a, 500, 8);
    CHECK(e, do_send(e, 0, tag(9, 1, 0), big_a, 500, 1));
    CHECK(e, do_recv(e, 1, tag(2, 1, 0), in[0], 500, 2));
    CHECK(e, do_send(e, 0, tag(2, 1, 0), big_a, 500, 2));
    CHECK(e, UNTIL(e, ended(e, 1, 2, RG_TP_DONE)));
    e->t->fence(e->ep[1].tp, 9);
    turns(e, 20);
    CHECK(e, do_recv(e, 1, tag(9, 1, 0), in[1], 500, 1));
    CHECK(e, UNTIL(e, ended(e, 1, 1, RG_TP_DONE)) && holds(in[1], 500, 8));
}

static void case_drop(env_t *e) {
    for (int k = 0; k < 8; k++) {
        size_t n = 8 << 20;
        for (int i = 0; i < e->n; i++) e->t->close(e->ep[i].tp), e->ep[i].tp = NULL;
        CHECK(e, couple(e) == 0);
        fill(big_a, n, 1);
        memset(big_b, 0, n);
        CHECK(e, do_recv(e, 0, tag(1, 2, 0), big_b + 2 * n, n, 2) && do_recv(e, 1, tag(1, 2, 0), big_b + n, n, 2));
        CHECK(e, do_recv(e, 1, tag(1, 1, 0), big_b, n, 1) && do_send(e, 0, tag(1, 1, 0), big_a, n, 1));
        turns(e, k);
        e->t->drop(e->ep[1].tp, 0);
        uint64_t before = hash(big_b, 2 * n);
        CHECK(e, UNTIL(e, e->ep[1].ends[1] && ended(e, 1, 2, RG_TP_GONE) && e->ep[0].down[0] && e->ep[0].ends[1] &&
                              ended(e, 0, 2, RG_TP_GONE)));
        turns(e, 20);
        CHECK(e, hash(big_b, 2 * n) == before);
        CHECK(e, e->ep[1].ends[1] == 1 && e->ep[0].ends[1] == 1 && e->ep[1].down[0] == 0 && e->ep[0].down[0] == 1);
        CHECK(e, do_send(e, 0, tag(1, 3, 0), big_a, 8, 3) && UNTIL(e, ended(e, 0, 3, RG_TP_GONE)));
        CHECK(e, do_recv(e, 1, tag(1, 3, 0), big_a, 8, 3) && UNTIL(e, ended(e, 1, 3, RG_TP_GONE)));
    }
}

static void case_peer_death(env_t *e) {
    for (int busy = 0; busy < 3; busy++) {
        for (int i = 0; i < e->n; i++) e->t->close(e->ep[i].tp), e->ep[i].tp = NULL;
        CHECK(e, couple(e) == 0);
        if (busy == 1) CHECK(e, do_recv(e, 0, tag(1, 1, 0), big_b, 1000, 1));
        if (busy == 2) { /* behind a message that nobody wants */
            CHECK(e, do_send(e, 1, tag(1, 5, 0), big_a, 100, 5));
            CHECK(e, UNTIL(e, e->ep[0].unexpected));
        }
        turns(e, 5);
        e->t->close(e->ep[1].tp);
        e->ep[1].tp = NULL;
        CHECK(e, UNTIL(e, e->ep[0].down[0]));
        CHECK(e, e->ep[0].down[0] == 1 && e->ep[0].text[0]);
        if (busy == 1) CHECK(e, UNTIL(e, ended(e, 0, 1, RG_TP_GONE)));
    }
}

/* As above, but asleep on wake_fd. */
static void case_wake(env_t *e) {
    uint8_t in[10];
    int64_t timeout = 1000000000;
    CHECK(e, couple(e) == 0);
    CHECK(e, do_recv(e, 0, tag(1, 1, 0), in, 10, 1));
    turns(e, 3);
    CHECK(e, e->t->arm(e->ep[0].tp, &timeout) == 1);
    struct pollfd p = { .fd = e->t->wake_fd(e->ep[0].tp), .events = POLLIN };
    CHECK(e, do_send(e, 1, tag(1, 1, 0), "0123456789", 10, 1));
    if (e->world) rg_simnet_advance(e->world, 1000000);
    CHECK(e, poll(&p, 1, (int)(patience_ns / 1000000)) == 1);
    CHECK(e, UNTIL(e, ended(e, 0, 1, RG_TP_DONE)));
    while (e->t->arm(e->ep[0].tp, &timeout) == 0) turn(e);
    CHECK(e, timeout <= 1000000000);
    e->t->close(e->ep[1].tp);
    e->ep[1].tp = NULL;
    if (e->world) rg_simnet_advance(e->world, 1000000);
    CHECK(e, poll(&p, 1, (int)(patience_ns / 1000000)) == 1);
    CHECK(e, UNTIL(e, e->ep[0].down[0]));
}

static void case_note(env_t *e) {
    uint8_t in[8];
    CHECK(e, couple(e) == 0);
    e->t->note(e->ep[0].tp, RG_TP_ALL_LINKS, 41, 0);
    CHECK(e, do_recv(e, 1, tag(1, 1, 0), in, 8, 1) && do_send(e, 0, tag(1, 1, 0), "12345678", 8, 1));
    CHECK(e, UNTIL(e, ended(e, 1, 1, RG_TP_DONE) && e->ep[1].notes) && e->ep[1].note == 41);
    e->t->note(e->ep[0].tp, 0, 42, 1);
    CHECK(e, UNTIL(e, e->ep[1].note == 42) && e->ep[1].notes == 2);
    CHECK(e, e->ep[0].notes == 0);
    /* Behind a message that is half sent. */
    CHECK(e, do_recv(e, 1, tag(1, 2, 0), big_b, 8 << 20, 2) && do_send(e, 0, tag(1, 2, 0), big_a, 8 << 20, 2));
    e->t->note(e->ep[0].tp, RG_TP_ALL_LINKS, 43, 1);
    CHECK(e, UNTIL(e, e->ep[1].note == 43 && ended(e, 1, 2, RG_TP_DONE)));
}

#include "conformance_lend.h"
#include "conformance_peek.h"
#ifdef RG_HAVE_RDMA
#include "conformance_adapter.h"
#endif

static void case_three(env_t *e) {
    uint8_t in[2][64];
    CHECK(e, start(e, 0, nonce) == 0 && start(e, 1, nonce) == 0 && start(e, 2, nonce) == 0);
    CHECK(e, link_to(e, 1, 0, 0, 1, 10000) == 0 && link_to(e, 2, 0, 0, 1, 10000) == 0);
    CHECK(e, link_to(e, 0, 1, 1, 0, 10000) == 0 && link_to(e, 0, 2, 2, 0, 10000) == 0);
    CHECK(e, UNTIL(e, e->ep[0].up[1] && e->ep[0].up[2] && e->ep[1].up[0] && e->ep[2].up[0]));
    for (uint32_t l = 1; l <= 2; l++) {
        rg_tp_recv_t r = { .tag = tag(1, 1, 0), .dst = in[l - 1], .len = 64, .cookie = l };
        CHECK(e, e->t->recv(e->ep[0].tp, l, &r) >= 0);
        fill(big_a + 64 * l, 64, l);
        CHECK(e, do_send(e, (int)l, tag(1, 1, 0), big_a + 64 * l, 64, 1));
    }
    CHECK(e, UNTIL(e, ended(e, 0, 1, RG_TP_DONE) && ended(e, 0, 2, RG_TP_DONE)) && holds(in[0], 64, 1) &&
                 holds(in[1], 64, 2));
    e->t->close(e->ep[1].tp); /* one goes, the other link does not notice */
    e->ep[1].tp = NULL;
    CHECK(e, UNTIL(e, e->ep[0].down[1]) && !e->ep[0].down[2]);
}

/* ---- Strangers: TCP only ---- */

static int stranger(const ep_t *p) {
    struct sockaddr_storage ss = { 0 };
    socklen_t len;
    if (p->addr[2] == 4) {
        struct sockaddr_in *a = (void *)&ss;
        a->sin_family = AF_INET;
        a->sin_port = htons((uint16_t)(p->addr[4] | p->addr[5] << 8));
        memcpy(&a->sin_addr, p->addr + 6, 4);
        len = sizeof *a;
    } else {
        struct sockaddr_in6 *a = (void *)&ss;
        a->sin6_family = AF_INET6;
        a->sin6_port = htons((uint16_t)(p->addr[4] | p->addr[5] << 8));
        memcpy(&a->sin6_addr, p->addr + 6, 16);
        len = sizeof *a;
    }
    int fd = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&ss, len) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void case_strangers(env_t *e) {
    static const char *const said[] = {
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "RHel", "RHel\2\0\1\0", "",
        "\x16\x03\x01\x02\x00\x01 longer than a greeting is, and nothing in it is right, so: found wanting"
    };
    int kept[1200], n = 0;
    CHECK(e, couple(e) == 0);
    fill(big_a, 1 << 20, 2);
    CHECK(e,
          do_recv(e, 1, tag(1, 5000, 0), big_b, 1 << 20, 2000) && do_send(e, 0, tag(1, 5000, 0), big_a, 1 << 20, 2000));
    CHECK(e, UNTIL(e, ended(e, 1, 2000, RG_TP_DONE) && ended(e, 0, 2000, RG_TP_DONE)));
    int before = fds(); /* what the first transfer opens is there now */
    for (int i = 0; i < 1000; i++) {
        int fd = stranger(&e->ep[1]);
        CHECK(e, fd >= 0);
        const char *s = said[i % 5];
        (void)!send(fd, s, strlen(s), MSG_NOSIGNAL);
        if (i % 3 == 0) close(fd);
        else kept[n++] = fd;
        turn(e);
        if (i % 100 == 0) {
            CHECK(e, do_recv(e, 1, tag(1, (uint64_t)i, 0), big_b, 1 << 20, (uint64_t)i) &&
                         do_send(e, 0, tag(1, (uint64_t)i, 0), big_a, 1 << 20, (uint64_t)i));
            CHECK(e, UNTIL(e, ended(e, 1, (uint64_t)i, RG_TP_DONE)) && holds(big_b, 1 << 20, 2));
        }
    }
    CHECK(e, fds() - before - n <= 2 * 64);
    for (int i = 0; i < n; i++) close(kept[i]);
    CHECK(e, UNTIL(e, fds() <= before));
    CHECK(e, !e->ep[0].down[0] && !e->ep[1].down[0]);
}

/* A peer of the group that sends rubbish loses its link, and only that. */
static void case_refused_connection(env_t *e) {
    CHECK(e, start(e, 0, nonce) == 0 && start(e, 1, nonce) == 0);
    e->t->close(e->ep[1].tp);
    e->ep[1].tp = NULL;
    CHECK(e, link_to(e, 0, 0, 1, 1, 300) == 0);
    CHECK(e, UNTIL(e, e->ep[0].down[0]));
    CHECK(e, strstr(e->ep[0].text, "refused") && strchr(e->ep[0].text, ':'));
}

static void case_no_common_family(env_t *e) {
    rg_error_t err = { 0 };
    CHECK(e, start(e, 0, nonce) == 0 && start(e, 1, nonce) == 0);
    rg_tp_peer_t peer = { .identity = { 2 }, .addr = e->ep[1].addr, .addr_len = e->ep[1].addr_len, .dial = 1 };
    e->ep[1].addr[2] = e->ep[1].addr[2] == 4 ? 6 : 4;
    CHECK(e, e->t->connect(e->ep[0].tp, 0, &peer, &err) != RG_OK);
    CHECK(e, strstr(err.text, "IPv4") && strstr(err.text, "IPv6"));
    e->ep[1].addr[1] = 200; /* not an address at all */
    CHECK(e, e->t->connect(e->ep[0].tp, 0, &peer, &err) == RG_ERR_PROTOCOL);
}

/* A peer that greets well and then sends rubbish loses its link, with a cause, and nothing is written anywhere. */
uint32_t rgt_frame_check(const uint8_t in[80]); /* tcp_wire.c: headers are whole, and what they say is wrong */
static void case_rubbish_from_a_peer(env_t *e) {
    for (int kind = 0; kind < 5; kind++) { /* 4: not whole */
        uint8_t hello[80] = "RHel\2\0\1", frame[80] = { 'R', 'G', 'f', '1', 1 }, in[64];
        for (int i = 0; i < e->n; i++) e->t->close(e->ep[i].tp), e->ep[i].tp = NULL;
        CHECK(e, start(e, 0, nonce) == 0);
        e->ep[1].id[0] = 2;
        CHECK(e, link_to(e, 0, 0, 1, 0, 10000) == 0);
        memcpy(hello + 8, nonce, 16);
        hello[24] = 2, hello[40] = 1, hello[56] = 1, hello[66] = 1;
        frame[8] = 64, frame[12] = frame[13] = 0x51, frame[16] = 1, frame[24] = 3, frame[64] = 64; /* fits */
        if (kind == 0) memset(frame, 'x', sizeof frame);
        if (kind == 1) frame[11] = 1;    /* 16 MiB in one frame */
        if (kind == 2) frame[63] = 0x80; /* an offset that overflows */
        if (kind == 3) frame[4] = 2;     /* a note with a payload */
        for (int i = 0; i < 3 && kind % 4; i++) frame[5 + i] = (uint8_t)(rgt_frame_check(frame) >> 8 * i);
        memset(in, 0xee, sizeof in);
        int fd = stranger(&e->ep[0]);
        CHECK(e, fd >= 0 && send(fd, hello, 80, MSG_NOSIGNAL) == 80 && UNTIL(e, e->ep[0].up[0]));
        CHECK(e, do_recv(e, 0, tag(1, 0, 0), in, 64, 1) && send(fd, frame, 80, MSG_NOSIGNAL) == 80);
        CHECK(e, UNTIL(e, e->ep[0].down[0] && ended(e, 0, 1, RG_TP_GONE)) && strstr(e->ep[0].text, "protocol"));
        CHECK(e, in[0] == 0xee && memcmp(in, in + 1, 63) == 0);
        close(fd);
    }
}

/* ---- Planted bugs ---- */

/* Bug, the case that must notice it. */
static const struct {
    bug_t bug;
    const char *name, *notices;
} planted[] = {
    { BUG_LOSES_COMPLETION, "loses a completion", "out_of_order" },
    { BUG_TELLS_TWICE, "completes twice", "out_of_order" },
    { BUG_IGNORES_SIG, "does not compare signatures", "mismatch" },
    { BUG_NO_FENCE, "fence does nothing", "fence" },
    { BUG_NO_FENCE, "fence keeps what has come", "fence_discards_kept" },
    { BUG_WRITES_AFTER_FENCE, "writes after the fence", "fence" },
    { BUG_EPOCH_BLIND, "does not look at epochs", "fence" },
    { BUG_SILENT_DROP, "drop completes nothing", "drop" },
    { BUG_WRITES_AFTER_DROP, "writes after drop", "drop" },
    { BUG_NO_NOTE, "loses notes", "note" },
    { BUG_NO_UNEXPECTED, "does not tell of unasked messages", "unexpected_waits" },
    { BUG_NO_UNEXPECTED, "does not tell of unasked messages", "unexpected_is_passed" },
    { BUG_ONE_UNEXPECTED, "tells of one unasked message only", "unexpected_again" },
    { BUG_COPIES_INSTEAD, "copies where it should reduce", "reduce" },
    { BUG_COPIES_INSTEAD, "copies where it should reduce", "reduce_odd_element" },
    { BUG_SILENT_DEATH, "does not tell of death", "peer_death" },
    { BUG_SILENT_DEATH, "does not tell of death", "connect_orders" },
    { BUG_SILENT_DEATH, "does not tell of failure", "other_group" },
    { BUG_SILENT_DEATH, "does not tell of refusal", "refused_connection" },
    { BUG_NO_TEXT, "gives no cause", "refused_connection" },
    { BUG_FORGETS_FUTURE, "loses messages of a higher epoch", "higher_epoch_waits" },
    { BUG_IN_ORDER_ONLY, "matches in order only", "out_of_order" },
    { BUG_UP_ALONE, "does not wait for the nonce", "nonce_later" },
    { BUG_LEAKS_FD, "keeps descriptors of strangers", "strangers" },
    { BUG_NEVER_WAKES, "does not wake its user", "wake" },
    { BUG_SHORT_STATS, "miscounts", "large_both_ways" },
    { BUG_LOSES_COMPLETION, "loses a completion", "many_small" },
    { BUG_SILENT_DROP, "loses links of others", "peer_death" },
    { BUG_TELLS_TWICE, "completes twice", "zero_length" },
    { BUG_SILENT_DEATH, "does not tell of death", "three" },
    { BUG_SILENT_DEATH, "does not tell of rubbish", "rubbish_from_a_peer" },
    { BUG_ANY_FAMILY, "dials any family", "no_common_family" },
};

/* ---- Running ---- */

#define CASE(name)                                                                                                     \
    { #name, case_##name, 0, 0 }
#define TCP_CASE(name)                                                                                                 \
    { #name, case_##name, 1, 0 }
static const struct {
    const char *name;
    void (*run)(env_t *e);
    int tcp_only, adapter_only; /* adapter: that of tests/adapter */
} cases[] = {
    CASE(connect_orders),
    CASE(nonce_later),
    CASE(other_group),
    CASE(out_of_order),
    CASE(zero_length),
    CASE(reduce),
    CASE(reduce_odd_element),
    CASE(large_both_ways),
    CASE(many_small),
    CASE(work),
    CASE(mismatch),
    CASE(unexpected_waits),
    CASE(unexpected_is_passed),
    CASE(unexpected_again),
    CASE(fence),
    CASE(fence_discards_kept),
    CASE(higher_epoch_waits),
    CASE(drop),
    CASE(peer_death),
    CASE(wake),
    CASE(note),
    CASE(peek),
    CASE(lend),
    CASE(lend_torn),
    CASE(lend_stopped),
    CASE(lend_taken_back),
    CASE(three),
#ifdef RG_HAVE_RDMA
    ADAPTER_CASE(silent_adapter),
    ADAPTER_CASE(stopped_peer),
    ADAPTER_CASE(peer_short_of_slots),
    ADAPTER_CASE(slow_adapter),
    ADAPTER_CASE(other_length),
    ADAPTER_CASE(every_device),
    ADAPTER_CASE(device_lists),
    ADAPTER_CASE(iwarp),
#endif
    TCP_CASE(strangers),
    TCP_CASE(refused_connection),
    TCP_CASE(no_common_family),
    TCP_CASE(rubbish_from_a_peer),
};
#define N_CASES ((int)(sizeof cases / sizeof *cases))

static const struct {
    const char *name;
    const rg_transport_t *t;
    const char *interface;
    uint32_t rails;
    const rg_transport_t *near; /* of auto; NULL: what it has anyway */
} subjects[] = {
    { "inproc", &rg_transport_inproc, NULL, 1, NULL },
    { "simnet", &rg_transport_simnet, NULL, 1, NULL },
    { "tcp", &rg_transport_tcp, "127.0.0.1", 1, NULL },
    { "tcp-3-rails", &rg_transport_tcp, "127.0.0.1", 3, NULL },
    { "tcp-12-rails", &rg_transport_tcp, "127.0.0.1", 12, NULL },
    { "tls", &rg_transport_tcp, "127.0.0.1", 1, NULL },
    { "tls-12-rails", &rg_transport_tcp, "127.0.0.1", 12, NULL },
    { "tcp-v6", &rg_transport_tcp, "::1", 1, NULL },
    { "shm", &rg_transport_shm, NULL, 1, NULL },
    { "shm-fetched", &rg_transport_shm, NULL, 1, NULL },
    { "shm-staged", &rg_transport_shm, NULL, 1, NULL },
    { "shm-regions", &rg_transport_shm, NULL, 1, NULL },
#ifdef RG_HAVE_RDMA
    { "rdma", &rg_transport_rdma, NULL, 1, NULL },
    { "rdma-regions", &rg_transport_rdma, NULL, 1, NULL },
    { "rdma-2-devices", &rg_transport_rdma_rails, NULL, 1, NULL },
    { "rdma-2-devices-regions", &rg_transport_rdma_rails, NULL, 1, NULL },
#endif
    { "auto", &rg_transport_auto, "127.0.0.1", 1, NULL },
    { "auto-inproc", &rg_transport_auto, "127.0.0.1", 1, &rg_transport_inproc },
    { "auto-refused", &rg_transport_auto, "127.0.0.1", 1, &rg_transport_refuse },
    { "fabric", &rg_transport_fabric, "127.0.0.1", 1, &rg_transport_inproc },
    { "fabric-refused", &rg_transport_fabric, "127.0.0.1", 1, &rg_transport_refuse },
    { "auto-fabric", &rg_transport_auto, "127.0.0.1", 1, &rg_transport_refuse }, /* the pair within the pair */
};

static int with_devices(int s) { return strncmp(subjects[s].name, "rdma-2", 6) == 0; } /* those of tests/adapter */

static int with_tls(int s) { return strncmp(subjects[s].name, "tls", 3) == 0; }

/* A key for this run, which no file remembers. */
static rg_tls_ctx_t *tls_new(void) {
    char folder[] = "/tmp/regroup-conformance-XXXXXX", file[64];
    rg_tls_ctx_t *ctx = NULL;
    if (!mkdtemp(folder)) return NULL;
    snprintf(file, sizeof file, "%s/key", folder);
    if (rg_tls_make_key(file, 0, NULL) == RG_OK) rg_tls_open(&(rg_tls_files_t){ .tls = "on", .psk = file }, &ctx, NULL);
    unlink(file);
    rmdir(folder);
    return ctx;
}

static int run_case(const rg_transport_t *t, int s, int c, env_t *e) {
    rg_config_t conf = RG_CONFIG_INIT;
    memset(e, 0, sizeof *e);
    e->t = t;
    e->what = subjects[s].name;
    e->conf = conf;
    e->conf.interface = subjects[s].interface;
    e->conf.rails = subjects[s].rails;
    e->conf.heartbeat_ms = 2000;
    if (with_devices(s)) e->conf.rdma_device = "fake0,fake1";
    if (&conformance_subjects) fake_two_devices = with_devices(s);
    e->tls = with_tls(s) ? tls_new() : NULL;
    if (with_tls(s) && !e->tls) return 1;
    rg_auto_parts(subjects[s].near, NULL);
    rg_auto_fabric(t->open == rg_transport_fabric.open        ? subjects[s].near
                   : !strcmp(subjects[s].name, "auto-fabric") ? &rg_transport_inproc
                                                              : NULL);
    /* The ways that a large message can take over shared memory; "shm" chooses among the first two by measurement. */
    rg_shm_hooks = (rg_shm_hooks_t){ .never_push = strcmp(subjects[s].name, "shm-fetched") == 0,
                                     .no_copy = strcmp(subjects[s].name, "shm-staged") == 0 };
    int in_regions = strstr(subjects[s].name, "-regions") != NULL;
    big_a = in_regions ? region_a : plain_a;
    big_b = in_regions ? region_b : plain_b;
    if (subjects[s].t == &rg_transport_simnet) {
        e->world = rg_simnet_new(4711 + (uint64_t)c);
        rg_simnet_use(e->world);
    }
    cases[c].run(e);
    for (int i = 0; i < e->n; i++)
        if (e->ep[i].tp) t->close(e->ep[i].tp);
    rg_simnet_free(e->world);
    rg_tls_close(e->tls);
    return e->why[0] ? 1 : 0;
}

static int have_v6(void) {
    struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int ok = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
    if (fd >= 0) close(fd);
    return ok;
}

/* Whether there is something to open it on; says why not. */
static int can_open(int s) {
    rg_config_t conf = RG_CONFIG_INIT;
    rg_tp_config_t c = { .config = &conf };
    rg_error_t err = { 0 };
    uint8_t addr[RG_TP_ADDR_MAX];
    uint32_t len;
    rg_tp_t *tp = NULL;
    if (strncmp(subjects[s].name, "rdma", 4) != 0 || with_devices(s)) return 1;
    rg_status_t st = subjects[s].t->open(&c, &tp, addr, &len, &err);
    if (st == RG_OK) subjects[s].t->close(tp);
    else printf("conformance: %s skipped: %s\n", subjects[s].name, err.text);
    return st != RG_ERR_NOTSUP;
}

#ifdef RG_HAVE_RDMA
static int run_planted_adapter(env_t *e, int verbose) {
    int s = 0, failed = 0;
    while (strcmp(subjects[s].name, "rdma-regions") != 0) s++;
    for (int i = 0; i < N_PLANTED_ADAPTER; i++) {
        int c = 0;
        while (strcmp(cases[c].name, planted_adapter[i].notices) != 0) c++;
        patience_ns = 3000000000u;
        *planted_adapter[i].hook = 1;
        int noticed = run_case(subjects[s].t, s, c, e);
        *planted_adapter[i].hook = 0;
        if (verbose || !noticed)
            printf("planted: %-36s %s by %s: %s\n", planted_adapter[i].name, noticed ? "noticed" : "NOT NOTICED",
                   cases[c].name, e->why);
        failed += !noticed;
    }
    return failed;
}
#else
#define N_PLANTED_ADAPTER 0
static int run_planted_adapter(env_t *e, int verbose) { return (void)e, verbose = 0; }
#endif

static int run_planted(env_t *e, int verbose) {
    int failed = 0;
    if (&conformance_subjects) return run_planted_adapter(e, verbose);
    for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
        for (int c = 0; c < N_CASES; c++) {
            if (strcmp(cases[c].name, planted[i].notices) != 0) continue;
            int s = cases[c].tcp_only ? 2 : 1; /* the simulated network's deadlines cost no time to speak of */
            rg_transport_t bad = bad_transport(subjects[s].t, planted[i].bug);
            patience_ns = cases[c].tcp_only ? 3000000000u : 500000000u;
            int noticed = run_case(&bad, s, c, e);
            if (verbose || !noticed)
                printf("planted: %-36s %s by %s%s%s\n", planted[i].name, noticed ? "noticed" : "NOT NOTICED",
                       cases[c].name, noticed ? ": " : "", e->why);
            failed += !noticed;
        }
    }
    return failed;
}

int main(int argc, char **argv) {
    static env_t e;
    int verbose = argc > 1 && strcmp(argv[1], "-v") == 0, failed = 0, ran = 0;
    argv += verbose;
    argc -= verbose;
    void *a = NULL, *b = NULL;
    plain_a = malloc(BIG);
    plain_b = malloc(BIG);
    if (!plain_a || !plain_b || rg_os_need_fds(4096, NULL) != RG_OK || rg_shared_alloc(BIG, 0, &a, NULL) != RG_OK ||
        rg_shared_alloc(BIG, 0, &b, NULL) != RG_OK)
        return 1;
    region_a = a, region_b = b;
    for (int s = 0; s < (int)(sizeof subjects / sizeof *subjects); s++) {
        if (argc > 1 && strcmp(argv[1], subjects[s].name) != 0) continue;
        if (!&conformance_subjects && with_devices(s)) continue;
        if (&conformance_subjects && strncmp(subjects[s].name, conformance_subjects, 4) != 0) continue;
        if (strcmp(subjects[s].name, "tcp-v6") == 0 && !have_v6()) {
            printf("conformance: %s skipped: this host has no ::1\n", subjects[s].name);
            continue;
        }
        if (!can_open(s)) continue;
        int passed = 0, wrong = 0;
        for (int c = 0; c < N_CASES; c++) {
            if ((cases[c].adapter_only && !&conformance_subjects) ||
                (cases[c].tcp_only && (subjects[s].t != &rg_transport_tcp || with_tls(s))) ||
                (argc > 2 && strcmp(argv[2], cases[c].name) != 0))
                continue;
            uint64_t t0 = rg_os_now_ns();
            int bad = run_case(subjects[s].t, s, c, &e);
            ran++;
            wrong += bad;
            passed += !bad;
            if (bad || verbose)
                printf("%s %s: %s (%.0f ms) %s %s\n", subjects[s].name, cases[c].name, bad ? "FAILED" : "ok",
                       (double)(rg_os_now_ns() - t0) * 1e-6, e.why, bad ? e.ep[0].text : "");
            fflush(stdout);
        }
        printf("conformance: %-12s %d of %d cases passed\n", subjects[s].name, passed, passed + wrong);
        failed += wrong;
    }
    if (argc == 1 || strcmp(argv[1], "planted") == 0) {
        int missed = run_planted(&e, verbose);
        int all = &conformance_subjects ? N_PLANTED_ADAPTER : (int)(sizeof planted / sizeof *planted);
        printf("conformance: planted bugs: %d of %d noticed\n", all - missed, all);
        failed += missed;
        ran++;
    }
    free(plain_a);
    free(plain_b);
    rg_shared_free(region_a);
    rg_shared_free(region_b);
    return failed ? 1 : ran ? 0 : 77;
}
