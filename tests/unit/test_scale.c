/* test_scale.c: a real coordinator with a thousand members, which are no more than their connections: they answer what
 * the protocol asks and do nothing else. It shows what founding the group, losing a member and gaining one take, and
 * how much is sent for it. It relies on the codec of src/core to read and write messages. The bounds are generous,
 * because a machine that tests may be busy; REGROUP_SCALE_SHOW=1 prints what was measured. */
#include "core/wire.h"
#include "regroup.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CROWD 60
#else
#define CROWD 1000
#endif
#define LATE (CROWD + 1) /* the one that comes when all others are there */
#define BOUND_NS 5000000000ull

typedef struct fake {
    int fd;
    uint64_t id, epoch, in_bytes;
    uint8_t *in;
    size_t len, cap;
} fake_t;

static fake_t crowd[LATE];
static struct pollfd polled[LATE];
static uint32_t crowd_n = CROWD; /* fewer where a process may not have so many descriptors */
static uint64_t view_bytes;      /* of the messages that brought the last view */
static uint64_t acks;
static rg_coordinator_t *co;

static uint64_t clock_of(clockid_t c) {
    struct timespec t;
    clock_gettime(c, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(void) { return clock_of(CLOCK_MONOTONIC); }

static void say(fake_t *f, rg_w_t *w) {
    uint8_t frame[8192];
    cr_assert(!w->bad && w->len + 4 <= sizeof frame);
    for (int i = 0; i < 4; i++) frame[i] = (uint8_t)(w->len >> (8 * i));
    memcpy(frame + 4, w->p, w->len);
    cr_assert(send(f->fd, frame, w->len + 4, MSG_NOSIGNAL) == (ssize_t)w->len + 4);
}

static void join(fake_t *f, uint32_t min_size) {
    static uint8_t buf[4096];
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int on = 1;
    a.sin_port = htons((uint16_t)atoi(strrchr(rg_coordinator_address(co), ':') + 1));
    f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(f->fd >= 0 && !connect(f->fd, (struct sockaddr *)&a, sizeof a), "%s", strerror(errno));
    setsockopt(f->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    rg_msg_join_t j = { .min_size = min_size, .addr_len = 40 };
    memcpy(j.group, "crowd", 6);
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    rg_w_join(&w, &j);
    say(f, &w);
}

static void on_peers(fake_t *f, rg_r_t *r) {
    static uint8_t buf[256];
    rg_r_u8(r);
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    static const uint8_t net[RG_CORE_NET];
    rg_w_header(&w, RG_MSG_READY);
    rg_w_u64(&w, rg_r_u64(r));
    rg_w_bytes(&w, net, sizeof net);
    rg_w_u32(&w, 0);
    if (!f->epoch) say(f, &w);
}

static void on_prepare(fake_t *f, rg_r_t *r) {
    static uint8_t buf[256];
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    rg_w_header(&w, RG_MSG_PROMISE);
    rg_w_term(&w, rg_r_term(r));
    rg_w_u64(&w, rg_r_u64(r));
    rg_w_u64(&w, 10);
    say(f, &w);
}

/* One entry, as somebody has who is in the middle of an operation. */
static void on_freeze(fake_t *f, rg_r_t *r) {
    static uint8_t buf[512];
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    rg_report_head_t h = { .term = rg_r_term(r), .next0 = 1 };
    h.base = rg_r_u64(r);
    rg_op_report_t o = { .state = RG_OPS_RUNNING, .sig = { .kind = RG_KIND_ALL_REDUCE, .rule_l = 1, .count = 7 } };
    rg_w_report_head(&w, &h);
    rg_w_u32(&w, 1);
    rg_w_op_report(&w, &o);
    rg_w_u32(&w, 0);
    rg_w_u32(&w, 0);
    say(f, &w);
}

static void hear(fake_t *f, const uint8_t *p, size_t len) {
    rg_r_t r = { p, len, 0, 0 };
    rg_view_head_t v;
    uint16_t version;
    switch (rg_r_header(&r, &version)) {
    case RG_MSG_WELCOME: f->id = rg_r_u64(&r); break;
    case RG_MSG_PEERS: on_peers(f, &r); break;
    case RG_MSG_PREPARE: on_prepare(f, &r); break;
    case RG_MSG_FREEZE: on_freeze(f, &r); break;
    case RG_MSG_HEARTBEAT_ACK: acks++; break;
    case RG_MSG_ACTIVATE:
        rg_r_view_head(&r, &v);
        f->epoch = v.epoch;
        view_bytes += len;
        break;
    default: break;
    }
}

static void listen_to(fake_t *f) {
    if (f->cap - f->len < 65536) f->in = realloc(f->in, f->cap += 262144);
    cr_assert(f->in != NULL);
    ssize_t n = recv(f->fd, f->in + f->len, f->cap - f->len, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    cr_assert(n > 0, "member %llu was shown out", (unsigned long long)f->id);
    f->len += (size_t)n;
    f->in_bytes += (uint64_t)n;
    size_t at = 0;
    while (f->len - at >= 4) {
        const uint8_t *h = f->in + at;
        size_t len = h[0] | (size_t)h[1] << 8 | (size_t)h[2] << 16 | (size_t)h[3] << 24;
        if (f->len - at < 4 + len) break;
        hear(f, h + 4, len);
        at += 4 + len;
    }
    memmove(f->in, f->in + at, f->len - at);
    f->len -= at;
}

static void wait_and_hear(void) {
    uint32_t n = 0, k = 0;
    for (uint32_t i = 0; i <= crowd_n; i++)
        if (crowd[i].fd >= 0) polled[n++] = (struct pollfd){ .fd = crowd[i].fd, .events = POLLIN };
    cr_assert(poll(polled, n, 1000) >= 0);
    for (uint32_t i = 0; i <= crowd_n; i++)
        if (crowd[i].fd >= 0 && polled[k++].revents) listen_to(&crowd[i]);
}

/* Until everybody who is connected has this view. Gives the time that it took. */
static uint64_t until_view(uint64_t epoch, uint64_t from) {
    for (;;) {
        uint32_t missing = 0, n = 0;
        for (uint32_t i = 0; i <= crowd_n; i++) {
            if (crowd[i].fd < 0) continue;
            missing += crowd[i].epoch < epoch;
            n++;
        }
        if (!missing) return now_ns() - from;
        cr_assert(now_ns() - from < 60 * BOUND_NS, "%u of %u have no view %llu", missing, n, (unsigned long long)epoch);
        wait_and_hear();
    }
}

/* What everybody says eight times in a heartbeat when nothing happens, and its answer. */
static void beat(void) {
    static uint8_t buf[256];
    acks = 0;
    for (uint32_t i = 0; i < crowd_n; i++) {
        if (crowd[i].fd < 0) continue;
        rg_msg_heartbeat_t h = { .epoch = crowd[i].epoch };
        rg_w_t w = { buf, 0, sizeof buf, 0 };
        rg_w_heartbeat(&w, &h);
        say(&crowd[i], &w);
    }
    while (acks < crowd_n - 1) wait_and_hear();
}

static void show(const char *what, uint64_t ns, uint64_t cpu) {
    if (getenv("REGROUP_SCALE_SHOW"))
        fprintf(stderr, "%u members, %s: %.1f ms (processor %.1f ms), %.1f KB of views\n", crowd_n, what,
                (double)ns / 1e6, (double)cpu / 1e6, (double)view_bytes / 1e3);
    view_bytes = 0;
}

Test(scale, a_thousand_members__found_the_group_lose_one_and_gain_one_within_the_bound) {
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    struct rlimit files;
    rg_error_t err;
    cr_assert(getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
    cr_assert(setrlimit(RLIMIT_NOFILE, &files) == 0);
    if (2 * CROWD + 100 > files.rlim_cur) crowd_n = (uint32_t)files.rlim_cur / 2 - 50;
    cfg.succession = RG_OFF;  /* the crowd knows what authority asks of it */
    cfg.heartbeat_ms = 60000; /* these members send no heartbeats */
    cr_assert(rg_coordinator_start(&cfg, &co, &err) == RG_OK, "%s", err.text);
    for (uint32_t i = 0; i <= crowd_n; i++) crowd[i].fd = -1;
    uint64_t t = now_ns(), cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID);
    for (uint32_t i = 0; i < crowd_n; i++) join(&crowd[i], crowd_n);
    uint64_t took = until_view(1, t);
    show("first view", took, clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    cr_expect(took < 6 * BOUND_NS, "first view: %.1f ms", (double)took / 1e6);

    t = now_ns(), cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID);
    shutdown(crowd[crowd_n / 2].fd, SHUT_WR);
    close(crowd[crowd_n / 2].fd);
    crowd[crowd_n / 2].fd = -1;
    took = until_view(2, t);
    cr_expect(view_bytes < 400u * crowd_n, "a view that loses one member: %.1f KB", (double)view_bytes / 1e3);
    show("a member lost", took, clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    cr_expect(took < BOUND_NS, "recovery: %.1f ms", (double)took / 1e6);

    t = now_ns(), cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID);
    join(&crowd[crowd_n], 1);
    took = until_view(3, t);
    show("a member gained", took, clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    cr_expect(took < BOUND_NS, "join: %.1f ms", (double)took / 1e6);

    t = now_ns(), cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID);
    for (int k = 0; k < 8; k++) beat();
    took = now_ns() - t;
    show("eight heartbeats of all", took, clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    cr_expect(took < BOUND_NS, "heartbeats: %.1f ms", (double)took / 1e6);
    for (uint32_t i = 0; i <= crowd_n; i++) {
        if (crowd[i].fd >= 0) close(crowd[i].fd);
        free(crowd[i].in);
    }
    rg_coordinator_stop(co);
}
