/* test_shm.c: the shared memory transport where it differs from others: a buffer that is taken back while the peer
 * reads it, peers that are on another host, dead, strange or dishonest, memory that is not what it is said to be, and
 * sleepers. What every transport must do is asked by tests/conformance.c. Dishonest peers are made by hand here, from
 * the packets and frames of shm_internal.h. It must not wait longer than for a condition. */
#include "transports/shm_internal.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern const rg_transport_t rg_transport_shm;
static const rg_transport_t *const T = &rg_transport_shm;

#define PATIENCE_NS 10000000000ull
#define BIG (3u << 20)

typedef struct end {
    rg_tp_t *tp;
    uint8_t id[16], addr[RG_TP_ADDR_MAX];
    uint32_t addr_len;
    int up, down, ends[16];
    rg_tp_status_t status[16];
    char text[320];
} end_t;

static const uint8_t nonce[16] = { 'n', 'o', 'n', 'c', 'e' };
static end_t ends[2];

static void look(end_t *e) {
    rg_completion_t c[16];
    int n = e->tp ? T->poll(e->tp, c, 16) : 0;
    for (int i = 0; i < n; i++) {
        if (c[i].event == RG_TP_LINK_UP) e->up++;
        if (c[i].event == RG_TP_LINK_DOWN) {
            e->down++;
            snprintf(e->text, sizeof e->text, "%s", c[i].text ? c[i].text : "");
        }
        if (c[i].event == RG_TP_SENT || c[i].event == RG_TP_RECEIVED || c[i].event == RG_TP_FAILED) {
            e->ends[c[i].cookie % 16]++;
            e->status[c[i].cookie % 16] = c[i].status;
        }
    }
}

#define UNTIL(cond)                                                                                                    \
    __extension__({                                                                                                    \
        uint64_t end_ = rg_os_now_ns() + PATIENCE_NS;                                                                  \
        while (!(cond) && rg_os_now_ns() < end_) {                                                                     \
            look(&ends[0]);                                                                                            \
            look(&ends[1]);                                                                                            \
        }                                                                                                              \
        (cond);                                                                                                        \
    })

static void start(int who) {
    rg_config_t conf = RG_CONFIG_INIT;
    rg_tp_config_t c = { .config = &conf };
    rg_error_t err;
    end_t *e = &ends[who];
    memset(e, 0, sizeof *e);
    e->id[0] = (uint8_t)(who + 1);
    memcpy(c.identity, e->id, 16);
    memcpy(c.nonce, nonce, 16);
    cr_assert_eq(T->open(&c, &e->tp, e->addr, &e->addr_len, &err), RG_OK);
}

static int join(int who, int dial, uint32_t timeout_ms) {
    rg_tp_peer_t p = {
        .addr = ends[!who].addr, .addr_len = ends[!who].addr_len, .dial = (uint32_t)dial, .timeout_ms = timeout_ms
    };
    rg_error_t err;
    memcpy(p.identity, ends[!who].id, 16);
    return T->connect(ends[who].tp, 0, &p, &err);
}

static void couple(void) {
    start(0);
    start(1);
    cr_assert(join(0, 1, 5000) == RG_OK && join(1, 0, 5000) == RG_OK);
    cr_assert(UNTIL(ends[0].up && ends[1].up));
}

static void stop(void) {
    for (int i = 0; i < 2; i++) T->close(ends[i].tp), ends[i].tp = NULL;
}

static rg_tag_t tag(uint64_t epoch, uint64_t op) { return (rg_tag_t){ .epoch = epoch, .op = op, .sig = 5 }; }

static void give(int who, rg_tag_t t, const void *p, size_t n, uint64_t cookie) {
    rg_tp_send_t s = { .tag = t, .buf = p, .len = n, .cookie = cookie };
    int rc = T->send(ends[who].tp, 0, &s);
    cr_assert(rc >= 0);
    if (rc == RG_TP_DONE_NOW) ends[who].ends[cookie]++;
}

static void want(int who, rg_tag_t t, void *p, size_t n, uint64_t cookie) {
    rg_tp_recv_t r = { .tag = t, .dst = p, .len = n, .cookie = cookie };
    int rc = T->recv(ends[who].tp, 0, &r);
    cr_assert(rc >= 0);
    if (rc == RG_TP_DONE_NOW) ends[who].ends[cookie]++;
}

static int done(int who, uint64_t cookie, rg_tp_status_t st) {
    return ends[who].ends[cookie] == 1 && ends[who].status[cookie] == st;
}

static int all_are(const uint8_t *p, size_t n, uint8_t v) { return p[0] == v && memcmp(p, p + 1, n - 1) == 0; }

static int descriptors(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static uint8_t *private_memory(size_t n) {
    uint8_t *p = aligned_alloc(4096, n);
    cr_assert(p != NULL);
    return p;
}

static uint8_t *region(size_t n) {
    void *p;
    cr_assert_eq(rg_shared_alloc(n, 0, &p, NULL), RG_OK);
    return p;
}

/* ---- A buffer that is taken back ---- */

enum { BY_FENCE, BY_DROP, BY_CLOSE };

static struct taking {
    int how, at, looks; /* at which look between reading and believing */
    uint8_t *buf;
} taking;

/* The sender's side, in the instant between the receiver's read and its look at the generation: takes the buffer back
 * and overwrites it, as its user may. */
static void take_back(void *arg) {
    (void)arg;
    if (taking.looks++ != taking.at) return;
    if (taking.how == BY_FENCE) T->fence(ends[0].tp, 9);
    if (taking.how == BY_DROP) T->drop(ends[0].tp, 0);
    if (taking.how == BY_CLOSE) {
        T->close(ends[0].tp);
        ends[0].tp = NULL;
    }
    memset(taking.buf, 0xbb, BIG);
}

/* Whether the receive was told to be whole although its buffer had been taken back; its fate else. */
static int race(int how, int at, int in_region, int planted) {
    uint8_t *src = in_region ? region(BIG) : private_memory(BIG), *dst = private_memory(BIG);
    memset(src, 0xaa, BIG);
    memset(dst, 0, BIG);
    couple();
    taking = (struct taking){ how, at, 0, src };
    rg_shm_hooks = (rg_shm_hooks_t){ .between = take_back, .no_validate = planted, .never_push = 1 };
    want(1, tag(3, 1), dst, BIG, 1);
    give(0, tag(3, 1), src, BIG, 1);
    cr_assert(UNTIL(taking.looks > at));
    for (int i = 0; i < 200; i++) look(&ends[0]), look(&ends[1]);
    int told = done(1, 1, RG_TP_DONE), true_bytes = all_are(dst, BIG, 0xaa);
    if (!told) { /* it ends with its epoch or with its link, once */
        if (how == BY_FENCE) T->fence(ends[1].tp, 9);
        cr_expect(UNTIL(done(1, 1, how == BY_FENCE ? RG_TP_FENCED : RG_TP_GONE)));
    }
    if (how == BY_FENCE) cr_expect(UNTIL(done(0, 1, RG_TP_FENCED)));
    rg_shm_hooks = (rg_shm_hooks_t){ 0 };
    stop();
    if (in_region) rg_shared_free(src);
    else free(src);
    free(dst);
    return told && !true_bytes;
}

Test(shm, take_back__between_reading_and_believing__never_told_as_received) {
    for (int how = BY_FENCE; how <= BY_CLOSE; how++)
        for (int in_region = 0; in_region < 2; in_region++) {
            cr_expect_eq(race(how, 0, in_region, 0), 0);
            cr_expect_eq(race(how, 3, in_region, 0), 0);
        }
}

Test(shm, take_back__receiver_that_believes_at_once__is_noticed_by_this_test) {
    cr_expect_eq(race(BY_FENCE, 0, 0, 1), 1);
    cr_expect_eq(race(BY_FENCE, 0, 1, 1), 1);
}

Test(shm, take_back__memory_freed_while_half_read__receiver_neither_crashes_nor_believes) {
    for (int in_region = 0; in_region < 2; in_region++) {
        size_t n = 8 << 20;
        uint8_t *dst = private_memory(n);
        uint8_t *src = in_region
                           ? region(n)
                           : mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        couple();
        rg_shm_hooks.never_push = 1;
        give(0, tag(3, 1), src, n, 1);
        want(1, tag(3, 1), dst, n, 1);
        cr_assert(UNTIL(ends[1].tp->links[0]->n_pulls == 1));
        look(&ends[1]); /* some of it */
        cr_assert(ends[1].ends[1] == 0);
        T->fence(ends[0].tp, 9);
        if (in_region) rg_shared_free(src);
        else munmap(src, n);
        for (int i = 0; i < 300; i++) look(&ends[0]), look(&ends[1]);
        cr_expect(ends[1].ends[1] == 0 && ends[1].down == 0);
        cr_expect_eq(ends[1].tp->links[0]->n_mapped, 0); /* and the mapping is given back */
        T->fence(ends[1].tp, 9);
        cr_expect(UNTIL(done(1, 1, RG_TP_FENCED)));
        want(1, tag(9, 1), dst, 100, 2); /* the link goes on */
        give(0, tag(9, 1), "x", 1, 2);
        cr_expect(UNTIL(done(1, 2, RG_TP_MISMATCH)));
        stop();
        rg_shm_hooks = (rg_shm_hooks_t){ 0 };
        free(dst);
    }
}

/* ---- Regions ---- */

Test(shm, regions__used_again_and_freed__mapped_once_and_given_back) {
    uint8_t *src = region(BIG), *dst = private_memory(BIG);
    couple();
    link_t *l = ends[1].tp->links[0];
    for (uint64_t i = 0; i < 5; i++) {
        memset(src, (int)i + 1, BIG);
        want(1, tag(1, i), dst, BIG - 8 * i, i);
        give(0, tag(1, i), src + 8 * i, BIG - 8 * i, i);
        cr_assert(UNTIL(done(1, i, RG_TP_DONE) && done(0, i, RG_TP_DONE)));
        cr_assert(all_are(dst, BIG - 8 * i, (uint8_t)(i + 1)));
        cr_assert_eq(l->n_mapped, 1);
        cr_assert(l->mapped[0].base != NULL);
    }
    rg_shared_free(src);
    cr_assert(UNTIL(l->n_mapped == 0));
    stop();
    free(dst);
}

Test(shm, regions__many_more_than_are_mapped__all_messages_arrive) {
    uint8_t *dst = private_memory(64 << 10);
    couple();
    for (uint64_t i = 0; i < REGIONS_MAX + 20; i++) {
        uint8_t *src = region(64 << 10);
        memset(src, (int)i, 64 << 10);
        ends[0].ends[1] = ends[1].ends[1] = 0;
        want(1, tag(1, i), dst, 64 << 10, 1);
        give(0, tag(1, i), src, 64 << 10, 1);
        cr_assert(UNTIL(done(1, 1, RG_TP_DONE) && done(0, 1, RG_TP_DONE)) && all_are(dst, 64 << 10, (uint8_t)i));
        if (i % 2) rg_shared_free(src); /* the others stay until the end of the process */
    }
    stop();
    free(dst);
}

/* ---- Peers that are not here ---- */

Test(shm, connect__name_that_this_host_does_not_have__down_at_once) {
    for (int dial = 0; dial < 2; dial++) {
        start(0);
        start(1);
        ends[1].addr[7] ^= 0x55;
        uint64_t t = rg_os_now_ns();
        cr_assert_eq(join(0, dial, 30000), RG_OK);
        cr_assert(UNTIL(ends[0].down));
        cr_expect(rg_os_now_ns() - t < 2000000000u && strstr(ends[0].text, "another host"));
        stop();
    }
}

Test(shm, connect__not_an_address__refused) {
    start(0);
    start(1);
    ends[1].addr[0] = 'X';
    cr_assert_eq(join(0, 1, 1000), RG_ERR_PROTOCOL);
    stop();
}

Test(shm, connect__another_network_namespace__down_at_once) {
    int out[2], back[2];
    uint8_t addr[RG_TP_ADDR_MAX];
    cr_assert(pipe(out) == 0 && pipe(back) == 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(back[1]);
        if (unshare(CLONE_NEWNET) != 0) _exit(3);
        start(1);
        if (write(out[1], ends[1].addr, 20) != 20 || read(back[0], addr, 1) != 0) _exit(4);
        _exit(0);
    }
    close(out[1]);
    close(back[0]);
    start(0);
    ends[1].id[0] = 2;
    ends[1].addr_len = 20;
    if (read(out[0], ends[1].addr, 20) == 20) {
        cr_assert_eq(join(0, 1, 30000), RG_OK);
        cr_assert(UNTIL(ends[0].down) && strstr(ends[0].text, "namespace"));
    } /* else: no namespaces for us here */
    close(back[1]);
    waitpid(child, NULL, 0);
    stop();
}

/* A segment is larger than a file may be: the kernel would end the process with a signal. */
Test(shm, connect__limit_of_file_sizes__down_with_the_reason) {
    struct rlimit was, low;
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &was), 0);
    low = (struct rlimit){ 4096, was.rlim_max };
    start(0);
    start(1);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &low), 0);
    cr_assert(join(0, 1, 5000) == RG_OK && join(1, 0, 5000) == RG_OK);
    int down = UNTIL(ends[1].down);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &was), 0);
    cr_expect(down && strstr(ends[1].text, "shared memory"), "%s", ends[1].text);
    stop();
}

/* Members may issue operations of different tags in different orders: the last of many is asked for first. */
Test(shm, unasked__hundreds_of_large_messages__the_last_is_had_first) {
    enum { MANY = 700, LEN = 40 << 10 };
    for (int push = 0; push < 2; push++) {
        uint8_t *src = private_memory(LEN), *dst = private_memory(LEN);
        rg_shm_hooks = (rg_shm_hooks_t){ .no_copy = push, .never_push = !push };
        couple();
        memset(src, 0xaa, LEN);
        for (uint64_t i = 0; i < MANY; i++) give(0, tag(1, i), src, LEN, 1);
        for (uint64_t i = MANY; i-- > 0;) {
            memset(dst, 0, LEN);
            want(1, tag(1, i), dst, LEN, 2);
            cr_assert(UNTIL(ends[1].ends[2] == (int)(MANY - i)), "message %llu", (unsigned long long)i);
            cr_assert(all_are(dst, LEN, 0xaa));
        }
        cr_expect(UNTIL(ends[0].ends[1] == MANY));
        rg_shm_hooks = (rg_shm_hooks_t){ 0 };
        stop();
        free(src);
        free(dst);
    }
}

/* ---- Death ---- */

/* A member that dies while a child that it forked still holds its socket. */
Test(shm, death__child_keeps_the_socket__told_by_the_process_and_soon) {
    int out[2];
    cr_assert(pipe(out) == 0);
    start(0);
    pid_t member = fork();
    if (member == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        T->close(ends[0].tp); /* the parent's; its address stays */
        ends[0].tp = NULL;
        start(1);
        if (write(out[1], ends[1].addr, 20) != 20 || join(1, 1, 5000) != RG_OK || !UNTIL(ends[1].up)) _exit(1);
        pid_t heir = fork();
        if (heir == 0) {
            alarm(20);
            pause();
            _exit(0);
        }
        if (write(out[1], &heir, sizeof heir) != sizeof heir) _exit(1);
        for (;;) look(&ends[1]);
    }
    pid_t heir = 0;
    ends[1] = (end_t){ .id = { 2 }, .addr_len = 20 };
    cr_assert_eq(read(out[0], ends[1].addr, 20), 20);
    cr_assert_eq(join(0, 0, 5000), RG_OK);
    cr_assert(UNTIL(ends[0].up));
    cr_assert_eq(read(out[0], &heir, sizeof heir), (ssize_t)sizeof heir);
    uint8_t in[8];
    int64_t timeout = -1;
    want(0, tag(1, 1), in, 8, 1);
    while (T->arm(ends[0].tp, &timeout) == 0) look(&ends[0]);
    kill(member, SIGKILL);
    struct pollfd p = { .fd = T->wake_fd(ends[0].tp), .events = POLLIN };
    cr_assert_eq(poll(&p, 1, 5000), 1);
    look(&ends[0]);
    cr_assert(UNTIL(ends[0].down && done(0, 1, RG_TP_GONE)));
    cr_expect(ends[0].text[0] != 0);
    kill(heir, SIGKILL);
    waitpid(member, NULL, 0);
    stop();
}

Test(shm, death__messages_written_before__arrive_first) {
    uint8_t in[3][8];
    couple();
    for (uint64_t i = 0; i < 3; i++) want(1, tag(1, i), in[i], 8, i);
    for (uint64_t i = 0; i < 3; i++) give(0, tag(1, i), "lastword", 8, i);
    T->close(ends[0].tp);
    ends[0].tp = NULL;
    cr_assert(UNTIL(ends[1].down));
    for (uint64_t i = 0; i < 3; i++) cr_expect(done(1, i, RG_TP_DONE) && memcmp(in[i], "lastword", 8) == 0);
    stop();
}

/* ---- Sleepers ---- */

/* Both sides go to sleep whenever there is nothing to do: a lost wake-up would end in the poll's timeout. */
static int sleepy(end_t *e, int first, int rounds) {
    uint8_t *buf = malloc(100 << 10);
    for (int i = 0; i < rounds; i++) {
        size_t n = i % 50 == 7 ? 100 << 10 : 8;
        int sends = (i & 1) == first;
        e->ends[1] = 0;
        if (sends) give((int)(e - ends), tag(1, (uint64_t)i), buf, n, 1);
        else want((int)(e - ends), tag(1, (uint64_t)i), buf, n, 1);
        while (!e->ends[1]) {
            int64_t timeout = -1;
            struct pollfd p = { .fd = T->wake_fd(e->tp), .events = POLLIN };
            look(e);
            if (!e->ends[1] && T->arm(e->tp, &timeout) && poll(&p, 1, 5000) != 1) return 1;
            if (e->down && !e->ends[1]) return 2; /* the other one leaves when it is done */
        }
        if (e->status[1] != RG_TP_DONE) return 3;
    }
    free(buf);
    return 0;
}

static uint32_t peers_cpu(int who) { return T->peer_cpu(ends[who].tp, 0); }

Test(shm, processor__of_the_peer__is_told_and_follows_it) {
    cpu_set_t may, one;
    cr_assert_eq(sched_getaffinity(0, sizeof may, &may), 0);
    couple();
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &may)) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
        cr_assert(UNTIL(peers_cpu(0) == (uint32_t)cpu + 1 && peers_cpu(1) == (uint32_t)cpu + 1), "processor %d", cpu);
    }
    stop();
}

Test(shm, sleep__two_who_sleep_at_every_chance__no_wake_up_is_lost) {
    int out[2];
    cr_assert(pipe(out) == 0);
    start(0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        T->close(ends[0].tp);
        ends[0].tp = NULL;
        start(1);
        if (write(out[1], ends[1].addr, 20) != 20 || join(1, 1, 5000) != RG_OK || !UNTIL(ends[1].up)) _exit(9);
        _exit(sleepy(&ends[1], 1, 3000));
    }
    ends[1] = (end_t){ .id = { 2 }, .addr_len = 20 };
    cr_assert_eq(read(out[0], ends[1].addr, 20), 20);
    cr_assert_eq(join(0, 0, 5000), RG_OK);
    cr_assert(UNTIL(ends[0].up));
    cr_expect_eq(sleepy(&ends[0], 0, 3000), 0);
    int status = 1;
    waitpid(child, &status, 0);
    cr_expect_eq(status, 0);
    stop();
}

/* ---- Strangers, and peers that lie ---- */

static int dial_raw(const end_t *e) {
    static const char hex[] = "0123456789abcdef";
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int n = snprintf(a.sun_path + 1, 20, "regroup-"), fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    for (int i = 0; i < NAME_BYTES; i++) {
        a.sun_path[1 + n++] = hex[e->addr[4 + i] >> 4];
        a.sun_path[1 + n++] = hex[e->addr[4 + i] & 15];
    }
    cr_assert_eq(
        connect(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)), 0);
    return fd;
}

static packet_t packet(uint8_t kind) {
    packet_t p = { .magic = "RGsh", .version = 1, .kind = kind };
    memcpy(p.nonce, nonce, 16);
    p.from[0] = 2;
    p.to[0] = 1;
    return p;
}

static void say(int sock, const packet_t *p, int fd) {
    union {
        char buf[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } c = { .buf = { 0 } };
    struct iovec io = { (void *)(uintptr_t)p, sizeof *p };
    struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1 };
    if (fd >= 0) {
        m.msg_control = c.buf;
        m.msg_controllen = sizeof c.buf;
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(h), &fd, sizeof(int));
    }
    cr_assert_eq(sendmsg(sock, &m, MSG_NOSIGNAL), (ssize_t)sizeof *p);
}

/* The segment that the listener hands over, mapped. */
static const segment_t *hear_segment(int sock, packet_t *p) {
    union {
        char buf[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } c;
    struct iovec io = { p, sizeof *p };
    struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = c.buf, .msg_controllen = sizeof c.buf };
    int fd = -1;
    cr_assert_eq(recvmsg(sock, &m, 0), (ssize_t)sizeof *p);
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    cr_assert(h != NULL);
    memcpy(&fd, CMSG_DATA(h), sizeof(int));
    void *s = mmap(NULL, SEGMENT_HEAD + p->ring, PROT_READ, MAP_SHARED, fd, 0);
    cr_assert(s != MAP_FAILED);
    close(fd);
    return s;
}

enum { SOUND, UNSEALED, SHORT, NO_DESCRIPTOR, ORDINARY_FILE, ODD_RING, WRONG_MAGIC, WRONG_ECHO, LIES };

static int false_memory(int lie, uint32_t ring) {
    size_t len = SEGMENT_HEAD + ring;
    if (lie == NO_DESCRIPTOR) return -1;
    if (lie == ORDINARY_FILE) return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int fd = memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert(ftruncate(fd, (off_t)(lie == SHORT ? len - 4096 : len)) == 0);
    if (lie != UNSEALED) cr_assert(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return fd;
}

/* A peer made by hand, up to where its memory is offered; its segment, or NULL when that could not be mapped. */
static segment_t *false_peer(int lie, int *sock) {
    packet_t p = packet(PACKET_HELLO);
    uint32_t ring = RING_LEAST;
    start(0);
    memset(&ends[1], 0, sizeof ends[1]);
    ends[1].id[0] = 2;
    cr_assert_eq(join(0, 0, 5000), RG_OK);
    *sock = dial_raw(&ends[0]);
    say(*sock, &p, -1);
    cr_assert(UNTIL(ends[0].tp->links[0]->state == LINK_ACCEPTING));
    const segment_t *theirs = hear_segment(*sock, &p);
    int fd = false_memory(lie, ring);
    segment_t *s = NULL;
    if (lie == SOUND || lie == WRONG_MAGIC || lie == WRONG_ECHO) {
        s = mmap(NULL, SEGMENT_HEAD + ring, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        cr_assert(s != MAP_FAILED);
        s->magic = lie == WRONG_MAGIC ? 1 : SEGMENT_MAGIC;
        s->key = 77;
        if (lie != WRONG_ECHO) memcpy(s->echo, theirs->challenge, 16);
    }
    p = packet(PACKET_OFFER);
    p.ring = lie == ODD_RING ? 5000 : ring;
    say(*sock, &p, fd);
    if (fd >= 0) close(fd);
    return s;
}

Test(shm, segment__not_what_it_is_said_to_be__link_refused_with_the_reason) {
    static const char *const reason[] = { "",       "sealed",  "shorter",      "did not arrive", "not a memory object",
                                          "a ring", "version", "did not prove" };
    for (int lie = UNSEALED; lie < LIES; lie++) {
        int sock;
        (void)false_peer(lie, &sock);
        cr_assert(UNTIL(ends[0].down || ends[0].up));
        cr_expect(ends[0].down == 1 && strstr(ends[0].text, reason[lie]), "lie %d: %s", lie, ends[0].text);
        close(sock);
        stop();
    }
    int sock; /* and one that is sound comes up: the lies above were the reason */
    (void)false_peer(SOUND, &sock);
    cr_expect(UNTIL(ends[0].up));
    close(sock);
    cr_expect(UNTIL(ends[0].down));
    stop();
}

Test(shm, region__of_memory_that_can_shrink__not_mapped) {
    int sock;
    (void)false_peer(SOUND, &sock);
    cr_assert(UNTIL(ends[0].up));
    packet_t p = packet(PACKET_REGION);
    for (int lie = UNSEALED; lie <= ORDINARY_FILE; lie++) {
        int fd = false_memory(lie, RING_LEAST), before = descriptors();
        link_t *l = ends[0].tp->links[0];
        p.region = (uint64_t)lie;
        p.region_len = SEGMENT_HEAD + RING_LEAST;
        say(sock, &p, fd);
        cr_assert(UNTIL(l->n_mapped == (uint32_t)lie));
        cr_expect(l->mapped[lie - 1].base == NULL);
        cr_expect_eq(descriptors(), before);
        if (fd >= 0) close(fd);
    }
    close(sock);
    stop();
}

/* Who drops a link before it is up and dials again leaves greetings behind that nobody stands by any more. */
Test(shm, greeting__hung_up_since__the_next_one_is_served) {
    for (int late = 0; late < 3; late++) {
        packet_t p = packet(PACKET_HELLO);
        start(0);
        start(1);
        if (late == 0) cr_assert_eq(join(0, 0, 5000), RG_OK);
        int gone[3];
        for (int i = 0; i < 3; i++) say(gone[i] = dial_raw(&ends[0]), &p, -1);
        if (late == 1) cr_assert(UNTIL(ends[0].tp->n_parked == 3)); /* known, but their end is not yet */
        if (late == 2) {                                            /* answered, and gone when the answer comes */
            cr_assert_eq(join(0, 0, 5000), RG_OK);
            cr_assert(UNTIL(ends[0].tp->links[0]->state == LINK_ACCEPTING));
        }
        for (int i = 0; i < 3; i++) close(gone[i]);
        if (late == 1) cr_assert_eq(join(0, 0, 5000), RG_OK);
        cr_assert_eq(join(1, 1, 5000), RG_OK);
        cr_expect(UNTIL(ends[0].up && ends[1].up) && ends[0].down == 0, "%d: %s", late, ends[0].text);
        stop();
    }
}

static struct writing_on {
    segment_t *s;
    uint64_t at;
    int sock;
} writing_on;

static void write_frame(void) {
    struct writing_on *w = &writing_on;
    frame_t *f = (frame_t *)(void *)(w->s->ring + w->at * 64 % RING_LEAST);
    *f = (frame_t){ .type = FRAME_DATA, .len = 8, .tag = tag(1, w->at) };
    STORE_RELEASE(&f->mark, w->s->key + 64 * w->at++);
}

/* The sink of each frame brings the next one, and the first hangs up. */
static void write_on(const void *ctx, void *dst, const void *a, const void *b, size_t n) {
    (void)ctx, (void)dst, (void)a, (void)b, (void)n;
    if (writing_on.sock >= 0) close(writing_on.sock);
    writing_on.sock = -1;
    write_frame();
}

Test(shm, death__peer_hangs_up_and_writes_on__not_listened_to_for_ever) {
    enum { POSTED = 3000 };
    static uint8_t in[8];
    writing_on.s = false_peer(SOUND, &writing_on.sock);
    writing_on.at = 0;
    cr_assert(UNTIL(ends[0].up));
    for (uint64_t i = 0; i < POSTED; i++) {
        rg_tp_recv_t r = { .tag = tag(1, i),
                           .dst = in,
                           .a = in,
                           .len = 8,
                           .cookie = 1,
                           .reduce = write_on,
                           .wire_elem = 8,
                           .dst_elem = 8,
                           .a_elem = 8 };
        cr_assert_eq(T->recv(ends[0].tp, 0, &r), RG_OK);
    }
    int64_t timeout = -1;
    write_frame();
    cr_assert_eq(T->arm(ends[0].tp, &timeout), 0); /* the next poll looks at the socket */
    cr_assert(UNTIL(ends[0].down));
    cr_expect(UNTIL(ends[0].ends[1] == POSTED)); /* each one once */
    cr_expect(writing_on.at < RING_LEAST / 64 + 200, "%llu", (unsigned long long)writing_on.at);
    stop();
}

/* Frames that no version writes, and a reader's position that cannot be: the link ends, or nothing happens, and no
 * buffer is touched. */
Test(shm, frames__rubbish_from_a_peer__link_down_and_nothing_touched) {
    static const frame_t bad[] = {
        { .type = 0 },
        { .type = 200, .len = 4 },
        { .type = FRAME_DATA, .len = 0xfffffff0u },
        { .type = FRAME_DATA, .len = RING_LEAST },
        { .type = FRAME_PAD, .len = 64 },
        { .type = FRAME_LARGE, .len = 8 },
        { .type = FRAME_LARGE, .len = sizeof(large_t) }, /* of no bytes */
        { .type = FRAME_ACK, .len = 7 },
        { .type = FRAME_ACK, .len = (SLOTS + 1) * sizeof(slot_id_t) },
        { .type = FRAME_PART, .len = 8, .tag = { .ord = SLOTS } },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int sock;
        uint8_t in[64];
        segment_t *s = false_peer(SOUND, &sock);
        memset(in, 0xee, sizeof in);
        cr_assert(UNTIL(ends[0].up));
        want(0, tag(1, 1), in, 64, 1);
        memcpy(s->ring, &bad[i], sizeof bad[i]);
        STORE_RELEASE(&((frame_t *)(void *)s->ring)->mark, s->key);
        cr_expect(UNTIL(ends[0].down && done(0, 1, RG_TP_GONE)), "frame %zu", i);
        cr_expect(strstr(ends[0].text, "protocol") && all_are(in, 64, 0xee), "frame %zu: %s", i, ends[0].text);
        close(sock);
        stop();
    }
}

Test(shm, frames__harmless_nonsense__ignored) {
    int sock;
    segment_t *s = false_peer(SOUND, &sock);
    cr_assert(UNTIL(ends[0].up));
    frame_t f[] = {
        { .type = FRAME_PUSH, .tag = { .epoch = 1 << 30, .ord = 77 } },
        { .type = FRAME_PUSH, .tag = { .epoch = 100, .gen = UINT64_MAX, .ord = 0 } },
        { .type = FRAME_GONE, .tag = { .epoch = 12345 } },
        { .type = FRAME_PART, .len = 8, .tag = { .ord = 3 } },
        { .type = FRAME_ACK, .len = 8, .tiny = { 255, 255 } },
        { .type = FRAME_NOTE },
    };
    STORE(&s->consumed, UINT64_MAX); /* a reader ahead of its writer */
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) {
        memcpy(s->ring + 64 * i, &f[i], 64);
        STORE_RELEASE(&((frame_t *)(void *)(s->ring + 64 * i))->mark, s->key + 64 * i);
    }
    cr_assert(UNTIL(ends[0].tp->links[0]->rpos == 64 * (sizeof f / sizeof *f)));
    cr_expect_eq(ends[0].down, 0);
    static uint8_t lots[RING_MOST];
    for (uint64_t i = 0; i < 12; i++) give(0, tag(1, i), lots, 30 << 10, i); /* never more than the ring has room for */
    for (int i = 0; i < 100; i++) look(&ends[0]);
    cr_expect(ends[0].tp->links[0]->wpos <= RING_MOST && ends[0].ends[11] == 0);
    close(sock);
    cr_expect(UNTIL(ends[0].down));
    stop();
}

Test(shm, strangers__rubbish_silence_and_a_thousand__bounded_and_harmless) {
    static int kept[1000];
    uint8_t in[8];
    couple();
    int before = descriptors(), n = 0;
    for (int i = 0; i < 1000; i++) {
        packet_t p = packet(PACKET_HELLO);
        int fd = dial_raw(&ends[1]);
        if (i % 4 == 0) cr_assert(send(fd, "GET / HTTP/1.0", 14, MSG_NOSIGNAL) == 14);
        if (i % 4 == 1) cr_assert(send(fd, &p, 50, MSG_NOSIGNAL) == 50); /* half a greeting */
        if (i % 4 == 2) {
            p.nonce[3] ^= 1; /* of another group, with a descriptor that nobody asked for */
            say(fd, &p, 0);
        }
        kept[n++] = fd;
        look(&ends[0]);
        look(&ends[1]);
    }
    for (int i = 0; i < 300; i++) look(&ends[0]), look(&ends[1]);
    cr_expect(descriptors() - before <= n + STRANGERS_MAX + PARKED_MAX + 4);
    want(1, tag(1, 1), in, 8, 1);
    give(0, tag(1, 1), "12345678", 8, 1);
    cr_expect(UNTIL(done(1, 1, RG_TP_DONE)));
    for (int i = 0; i < n; i++) close(kept[i]);
    cr_expect(UNTIL(descriptors() <= before));
    cr_expect(ends[0].down == 0 && ends[1].down == 0);
    stop();
}

Test(shm, close__many_times_over__no_descriptor_is_kept) {
    couple();
    stop();
    int before = descriptors();
    for (int i = 0; i < 20; i++) {
        couple();
        stop();
    }
    cr_expect_eq(descriptors(), before);
}

/* ---- What peers have read ---- */

Test(shm, lent__ranges_that_touch_overlap_and_go__remembered_exactly) {
    static rg_tp_t tp;
    uint8_t *p = (uint8_t *)4096;
    memset(&tp, 0, sizeof tp);
    cr_expect_eq(rgm_lent_take(&tp, p, 100), 0);
    rgm_lent_add(&tp, p, 100);
    rgm_lent_add(&tp, p + 200, 100);
    rgm_lent_add(&tp, p + 100, 100); /* joins both */
    cr_expect_eq(tp.n_lent, 1);
    cr_expect_eq(rgm_lent_take(&tp, p + 300, 50), 0);
    cr_expect_eq(rgm_lent_take(&tp, p + 100, 50), 1); /* out of the middle */
    cr_expect_eq(tp.n_lent, 2);
    cr_expect_eq(rgm_lent_take(&tp, p + 100, 50), 0);
    cr_expect_eq(rgm_lent_take(&tp, p + 50, 200), 1); /* the ends of both */
    cr_expect(rgm_lent_take(&tp, p + 49, 1) == 1 && rgm_lent_take(&tp, p + 250, 1) == 1);
    cr_expect_eq(rgm_lent_take(&tp, p, 1000), 1);
    cr_expect_eq(tp.n_lent, 0);
    for (uint64_t i = 0; i < 3 * LENT_MAX; i++) rgm_lent_add(&tp, p + 1000 * i, 100);
    cr_expect_eq(tp.n_lent, LENT_MAX);
}
