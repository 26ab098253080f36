/* check.c: what the emulator does to packets, held against what it was told, by the clock: three namespaces, datagrams
 * that say when they left, one process that sends and receives them all. Each bound says how far it may be off: a busy
 * machine makes packets later, never earlier, so that bounds are close below and have room above, and more of it by how
 * late the machine was: that is seen here by how late this process comes back from waiting. Relies on root and tun
 * devices; without them it ends with 77 and says why. It must leave no namespace and no process behind. */
#include "wan.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NODES 3
#define PORT 7979
#define HEADERS 28 /* of IP and UDP: the emulator counts them */
#define SEEN_MAX 4096

static struct {
    pid_t holder[NODES], emulator;
    int socket[NODES], home, in;
    FILE *out;
} lab;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- The laboratory ---- */

/* A process that is a namespace as long as it lives, which is as long as this one does. */
static pid_t hold_namespace(void) {
    int ready[2];
    char c;
    if (pipe2(ready, O_CLOEXEC) != 0) return -1;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (unshare(CLONE_NEWNET) != 0 || write(ready[1], "", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ready[1]);
    ssize_t n = read(ready[0], &c, 1);
    close(ready[0]);
    return n == 1 ? pid : -1;
}

static const char *unavailable(void) {
    if (geteuid() != 0) return "needs root to make network namespaces";
    if (access("/dev/net/tun", R_OK | W_OK) != 0) return "needs /dev/net/tun";
    pid_t p = hold_namespace();
    if (p < 0) return "the kernel gives no network namespaces";
    kill(p, SIGKILL);
    waitpid(p, NULL, 0);
    return NULL;
}

static void node_path(int i, char out[64]) { snprintf(out, 64, "/proc/%d/ns/net", (int)lab.holder[i]); }

static int node_socket(int i) {
    char path[64];
    int room = 8 << 20, fd;
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(PORT) };
    node_path(i, path);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET) != 0) return -1;
    close(ns);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || setns(lab.home, CLONE_NEWNET) != 0) return -1;
    return fd;
}

/* One line to the emulator, which answers it once it holds. */
static int set(const char *line) {
    char answer[64] = "";
    if (dprintf(lab.in, "%s\n", line) < 0) return 0;
    return fgets(answer, sizeof answer, lab.out) && strcmp(answer, "ok\n") == 0;
}

static int lab_open(void) {
    char path[NODES][64], line[64] = "";
    int in[2], out[2];
    lab.home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < NODES; i++) {
        if ((lab.holder[i] = hold_namespace()) < 0) return 0;
        node_path(i, path[i]);
    }
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) return 0;
    fflush(stdout);
    if ((lab.emulator = fork()) == 0) {
        char *args[] = { "wan", path[0], path[1], path[2], NULL };
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[1]);
        exit(wan_main(1 + NODES, args));
    }
    close(in[0]);
    close(out[1]);
    lab.in = in[1];
    lab.out = fdopen(out[0], "r");
    if (!lab.out || !fgets(line, sizeof line, lab.out) || strcmp(line, "ready\n") != 0) return 0;
    for (int i = 0; i < NODES; i++)
        if ((lab.socket[i] = node_socket(i)) < 0) return 0;
    return 1;
}

static int lab_close(void) {
    int status = 1;
    close(lab.in);
    if (lab.emulator > 0) waitpid(lab.emulator, &status, 0);
    for (int i = 0; i < NODES; i++) {
        if (lab.holder[i] <= 0) continue;
        kill(lab.holder[i], SIGKILL);
        waitpid(lab.holder[i], NULL, 0);
    }
    return status == 0;
}

/* ---- Packets ---- */

typedef struct seen {
    uint64_t sent, came;
} seen_t;

static seen_t seen[SEEN_MAX];
static int n_seen, n_waits;
static double late_ms, latest_ms; /* of all waits of a stream, and of the worst one */
static double sending_ms;         /* from the first packet to the last one */

static void send_one(int from, int to, int bytes) {
    static uint8_t b[2048];
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons(PORT),
                             .sin_addr.s_addr = htonl(WAN_NET + 1 + (uint32_t)to) };
    uint64_t t = now_ns();
    memcpy(b, &t, sizeof t);
    (void)!sendto(lab.socket[from], b, (size_t)(bytes - HEADERS), 0, (struct sockaddr *)&a, sizeof a);
}

/* Takes what comes to a node until the clock says `until`, and notes how late it is by then. */
static void receive(int at, uint64_t until) {
    uint8_t b[2048];
    int waits = now_ns() < until;
    for (uint64_t t; (t = now_ns()) < until;) {
        struct pollfd p = { lab.socket[at], POLLIN, 0 };
        struct timespec left = { (time_t)((until - t) / 1000000000u), (long)((until - t) % 1000000000u) };
        ppoll(&p, 1, &left, NULL);
        while (recv(lab.socket[at], b, sizeof b, 0) > (ssize_t)sizeof t) {
            if (n_seen == SEEN_MAX) continue;
            memcpy(&seen[n_seen].sent, b, sizeof seen[0].sent);
            seen[n_seen++].came = now_ns();
        }
    }
    double late = waits ? ((double)now_ns() - (double)until) / 1e6 - 0.5 : 0; /* half: what a quiet machine takes */
    n_waits += waits;
    if (late > 0) late_ms += late;
    if (late > latest_ms) latest_ms = late;
}

/* What comes until none has come for rest_ms: on a busy machine the emulator sends later than it should. */
static void receive_rest(int at, double rest_ms) {
    for (int before = -1; before != n_seen;) {
        before = n_seen;
        receive(at, now_ns() + (uint64_t)(rest_ms * 1e6));
    }
}

static void begin(void) {
    n_seen = n_waits = 0;
    late_ms = latest_ms = 0;
}

/* By how much a packet may be later than it should: this process, the emulator and the kernel may all be late. */
static double mostly(void) { return n_waits ? 4 * late_ms / n_waits : 0; }
static double at_worst(void) { return 4 * latest_ms; }

/* n packets, every gap_ms, and what comes of them until none comes for rest_ms. */
static void stream(int from, int to, int n, int bytes, double gap_ms, double rest_ms) {
    const uint64_t first = now_ns();
    uint64_t at = first;
    begin();
    for (int i = 0; i < n; i++) {
        send_one(from, to, bytes);
        at += (uint64_t)(gap_ms * 1e6);
        receive(to, at);
    }
    sending_ms = (double)(now_ns() - first) / 1e6;
    receive_rest(to, rest_ms);
}

static double ms(int i) { return (double)(seen[i].came - seen[i].sent) / 1e6; }

static int by_number(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct times {
    double least, middle, most, mean;
} times_t;

static times_t times(void) {
    static double v[SEEN_MAX];
    times_t t = { 0 };
    for (int i = 0; i < n_seen; i++) t.mean += (v[i] = ms(i)) / n_seen;
    qsort(v, (size_t)n_seen, sizeof *v, by_number);
    if (n_seen) t.least = v[0], t.middle = v[n_seen / 2], t.most = v[n_seen - 1];
    return t;
}

static int within(const char *what, double is, double least, double most) {
    int ok = is >= least && is <= most;
    printf("       %s: %.2f, expected %.2f to %.2f%s\n", what, is, least, most, ok ? "" : "  <- WRONG");
    return ok;
}

/* ---- Checks ---- */

static int delay__of_a_pair__is_what_was_set_and_changes_while_it_runs(void) {
    if (!set("all delay=0 jitter=0 loss=0 rate=0") || !set("pair 1 2 delay=40")) return 0;
    stream(0, 1, 30, 200, 4, 60);
    times_t t = times();
    int ok = within("packets", n_seen, 30, 30) & within("least ms", t.least, 40, 44 + mostly()) &
             within("middle", t.middle, 40, 50 + mostly());
    stream(0, 2, 10, 200, 4, 30);
    ok &= within("middle of another pair", times().middle, 0, 9 + mostly());
    if (!set("way 1 2 delay=10")) return 0;
    stream(0, 1, 30, 200, 4, 40);
    ok &= within("middle when changed", times().middle, 10, 20 + mostly());
    stream(1, 0, 10, 200, 4, 60);
    return ok & within("middle of the other way", times().middle, 40, 50 + mostly());
}

static int jitter__spread_evenly__has_its_mean_and_its_bounds(void) {
    if (!set("all delay=0 jitter=0 loss=0 rate=0") || !set("pair 1 2 delay=10 jitter=16")) return 0;
    stream(0, 1, 70, 200, 20, 40);
    times_t t = times();
    return within("packets", n_seen, 70, 70) & within("least ms", t.least, 10, 13.5 + mostly()) &
           within("mean ms", t.mean, 16, 24 + mostly()) & within("most ms", t.most, 24, 46 + at_worst());
}

static int loss__of_ten_percent__takes_as_many(void) {
    if (!set("all delay=0 jitter=0 loss=0 rate=0") || !set("pair 1 2 loss=10")) return 0;
    stream(0, 1, 3000, 200, 0.1, 30);
    int ok = within("percent lost", (3000 - n_seen) / 30.0, 8, 12);
    stream(0, 2, 1000, 200, 0.1, 30);
    return ok & within("lost on another pair", 1000 - n_seen, 0, 0);
}

/* As it should be, but the first and the last may each have come late: of `ms`, which all of them take. */
static int rate_within(const char *what, double is, double least, double most, double ms) {
    double off = 1 + at_worst() / ms;
    return within(what, is, least / off, most * off);
}

/* The time from the first to the last, as what lies between them takes. */
static double mbit(int bytes) {
    double ns = n_seen > 1 ? (double)(seen[n_seen - 1].came - seen[0].came) : 1;
    return (n_seen - 1) * bytes * 8.0 * 1000 / ns;
}

static int rate__of_a_pair__is_what_comes_out(void) {
    if (!set("all delay=0 jitter=0 loss=0 rate=0") || !set("pair 1 2 rate=40 queue=4096")) return 0;
    stream(0, 1, 2000, 1000, 0.1, 250); /* twice as much as there is room for */
    return within("packets", n_seen, 2000, 2000) & rate_within("Mbit/s", mbit(1000), 38, 40.8, 400);
}

static int rate__of_a_node__is_shared_by_its_pairs(void) {
    if (!set("all delay=5 jitter=0 loss=0 rate=0") || !set("node 2 down=20 queue=4096")) return 0;
    uint64_t at = now_ns();
    begin();
    for (int i = 0; i < 600; i++) {
        send_one(0, 1, 1000);
        send_one(2, 1, 1000);
        receive(1, at += 200000);
    }
    receive_rest(1, 450);
    int ok = within("packets", n_seen, 1200, 1200) & rate_within("Mbit/s of both", mbit(1000), 19, 20.4, 480);
    return ok & set("node 2 down=0 queue=0");
}

static int queue__of_some_length__holds_so_much_and_drops_the_rest(void) {
    if (!set("all delay=0 jitter=0 loss=0 rate=0") || !set("pair 1 2 rate=8 queue=64")) return 0;
    stream(0, 1, 200, 1000, 0, 120); /* at 1 ms a packet */
    times_t t = times();
    return within("packets", n_seen, 64, 85 + sending_ms) & within("longest wait, ms", t.most, 60, 85 + at_worst()) &
           set("all queue=0 rate=0");
}

static int settings__that_make_no_sense__are_refused_whole(void) {
    static const char *const bad[] = {
        "pair 1 2 delay=x",  "pair 1 1 delay=1", "pair 1 9 delay=1", "pair 0 1 rate=1",
        "pair 1 2 delay=-1", "all loss=101",     "node 1 loss=1",    "pair 1 2 up=3",
        "delay=3",           "pair 1 2 delay",   "node 4 up=1",      "pair 1 2 delay=1e9"
    };
    char why[160] = "";
    int ok = 1;
    wan_nodes = NODES;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int taken = wan_set(bad[i], why, sizeof why);
        if (taken || !why[0]) printf("       \"%s\" was taken\n", bad[i]);
        ok &= !taken && why[0] != 0;
        why[0] = 0;
    }
    ok &= !wan_set("pair 1 2 delay=7 loss=x", why, sizeof why) && wan_pair[0][1].delay_ns == 0;
    wan_nodes = 0;
    return ok;
}

#define CHECK(name)                                                                                                    \
    { #name, name }
static const struct {
    const char *name;
    int (*run)(void);
} checks[] = {
    CHECK(settings__that_make_no_sense__are_refused_whole),
    CHECK(delay__of_a_pair__is_what_was_set_and_changes_while_it_runs),
    CHECK(jitter__spread_evenly__has_its_mean_and_its_bounds),
    CHECK(loss__of_ten_percent__takes_as_many),
    CHECK(rate__of_a_pair__is_what_comes_out),
    CHECK(rate__of_a_node__is_shared_by_its_pairs),
    CHECK(queue__of_some_length__holds_so_much_and_drops_the_rest),
};

int wan_check(void) {
    int passed = 0, failed = 0;
    const char *why = unavailable();
    if (why) {
        printf("wan: skipped: %s\n0 passed, 0 failed, %d skipped\n", why, (int)(sizeof checks / sizeof *checks));
        return 77;
    }
    signal(SIGPIPE, SIG_IGN);
    int open_ok = lab_open();
    if (!open_ok) printf("FAILED the emulator did not start\n");
    for (size_t i = 0; open_ok && i < sizeof checks / sizeof *checks; i++) {
        printf("  run  %s\n", checks[i].name);
        int ok = checks[i].run();
        printf("%s %s\n", ok ? "    ok" : "FAILED", checks[i].name);
        fflush(stdout);
        passed += ok;
        failed += !ok;
    }
    if (!lab_close() || !open_ok) failed++;
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
