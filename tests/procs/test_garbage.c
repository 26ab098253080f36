/* test_garbage.c: strangers on every port: random bytes, HTTP, half a header and then silence, a thousand connections.
 * The run goes on, results stay right, and descriptors are back to normal afterwards. It finds the ports in /proc, so
 * that no port is forgotten. */
#include "procs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define N 3

struct garbage {
    char address[128];
    volatile uint64_t ops[N], worst_ns[N];
    volatile int lost, end;
};

static int member(int index, void *arg) {
    struct garbage *s = arg;
    static float x[50000];
    rg_group_t *g = NULL;
    rg_error_t err;
    rg_config_t cfg = procs_config(s->address, "garbage", N, (uint32_t)index);
    PROCS_REQUIRE(rg_group_join(&cfg, &g, &err) == RG_OK, "join: %s", err.text);
    for (int over = 0; !over;) {
        rg_result_t res = RG_RESULT_INIT;
        rg_opts_t opts = RG_OPTS_INIT;
        opts.result = &res;
        for (int i = 0; i < 50000; i++) x[i] = (float)(index + 1);
        if (index == 0 && s->end) x[0] = 1000;
        uint64_t t = procs_now();
        rg_status_t st = rg_all_reduce(g, x, x, 50000, RG_F32, RG_SUM, &opts, NULL);
        t = procs_now() - t;
        PROCS_REQUIRE(st == RG_OK, "member %d: %s %s", index, rg_status_name(st), res.text);
        for (int i = 1; i < 50000; i++) PROCS_REQUIRE(x[i] == 6, "element %d is %g", i, x[i]);
        if (res.contributors != N) s->lost = 1;
        if (t > s->worst_ns[index]) s->worst_ns[index] = t;
        over = x[0] >= 1000;
        s->ops[index]++;
    }
    rg_status_t st = rg_group_leave(g);
    rg_group_destroy(g);
    return st != RG_OK;
}

/* ---- Ports ----------------------------------------------------------------------------------------------------- */

/* Inodes of the sockets that pid has open. */
static int socket_inodes(pid_t pid, unsigned long *inodes, int max) {
    char path[64], target[64];
    int n = 0;
    for (int fd = 0; fd < 256 && n < max; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
        ssize_t len = readlink(path, target, sizeof target - 1);
        if (len <= 0) continue;
        target[len] = 0;
        if (sscanf(target, "socket:[%lu]", &inodes[n]) == 1) n++;
    }
    return n;
}

/* TCP ports on which pid listens, IPv4 and IPv6. */
static int listening_ports(pid_t pid, int *ports, int max) {
    static const char *const tables[] = { "/proc/net/tcp", "/proc/net/tcp6" };
    unsigned long inodes[256], inode;
    int n_inodes = socket_inodes(pid, inodes, 256), n = 0;
    for (int t = 0; t < 2; t++) {
        FILE *f = fopen(tables[t], "r");
        char line[512];
        unsigned port, state;
        while (f && fgets(line, sizeof line, f)) {
            if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*x:%*x %*x:%*x %*x %*d %*d %lu", &port,
                       &state, &inode) != 3 ||
                state != 10)
                continue;
            for (int i = 0; i < n_inodes; i++)
                if (inodes[i] == inode && n < max) ports[n++] = (int)port;
        }
        if (f) fclose(f);
    }
    return n;
}

/* ---- Strangers ------------------------------------------------------------------------------------------------- */

static void speak(int fd, const void *p, size_t n) {
    if (fd >= 0 && send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EBADF) abort();
}

static unsigned noise(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

static void random_bytes(int port, unsigned *seed) {
    static const size_t lengths[] = { 1, 3, 4, 5, 17, 64, 1000, 4096, 70000 };
    static uint8_t bytes[70000];
    for (int i = 0; i < 90; i++) {
        size_t len = lengths[i % 9];
        int fd = procs_stranger(port);
        for (size_t k = 0; k < len; k++) bytes[k] = (uint8_t)noise(seed);
        if (i % 2) memset(bytes, 0, len < 4 ? len : 3); /* a length that is believed */
        speak(fd, bytes, len);
        if (i % 3 == 0) speak(fd, bytes, len);
        if (fd >= 0) close(fd);
    }
}

static void http(int port) {
    static const char get[] = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scanner\r\n\r\n";
    static const char tls[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    for (int i = 0; i < 20; i++) {
        int fd = procs_stranger(port);
        if (i % 2) speak(fd, get, sizeof get - 1);
        else speak(fd, tls, sizeof tls - 1);
        if (fd >= 0) close(fd);
    }
}

struct held {
    int fds[1100], n;
};

/* Opens many and keeps them: some silent, some with a part of something. */
static void many(struct held *h, int port, int count) {
    static const uint8_t half[2] = { 40, 0 }, length[4] = { 40, 0, 0, 0 };
    for (int i = 0; i < count && h->n < 1100; i++) {
        int fd = procs_stranger(port);
        if (fd < 0) continue;
        if (i % 3 == 1) speak(fd, half, sizeof half);
        if (i % 3 == 2) speak(fd, length, sizeof length);
        h->fds[h->n++] = fd;
    }
}

static void release(struct held *h) {
    for (int i = 0; i < h->n; i++) close(h->fds[i]);
    h->n = 0;
}

/* ---- The test -------------------------------------------------------------------------------------------------- */

#define SEEN(cond, ...) ((cond) || (fprintf(stderr, "test_garbage: " __VA_ARGS__), fputc('\n', stderr), 0))

static int advances(struct garbage *s, const char *what) {
    uint64_t before[N];
    for (int i = 0; i < N; i++) before[i] = s->ops[i];
    for (int i = 0; i < N; i++)
        if (!SEEN(PROCS_WAIT(s->ops[i] > before[i] + 20, 10), "member %d makes no progress after %s", i, what))
            return 0;
    return SEEN(!s->lost, "a member was lost after %s", what);
}

static int bother(struct garbage *s, int port, const char *who, unsigned *seed) {
    struct held *h = calloc(1, sizeof *h);
    char *json = NULL;
    int ok = h != NULL;
    random_bytes(port, seed);
    ok = ok && advances(s, "random bytes");
    http(port);
    ok = ok && advances(s, "HTTP");
    many(h, port, 6);
    ok = ok && advances(s, "half a header");
    release(h);
    many(h, port, 1000);
    ok = ok && SEEN(h->n > 500, "only %d connections were accepted by %s", h->n, who);
    ok = ok && advances(s, "a thousand connections");
    /* While they are there, those who belong are still served. */
    ok = ok &&
         SEEN(rg_coordinator_status(s->address, 5000, &json, NULL) == RG_OK, "no status beside a thousand strangers");
    rg_free(json);
    release(h);
    free(h);
    return ok && advances(s, "their end");
}

static int strangers(void) {
    struct garbage *s = procs_shared(sizeof *s);
    struct procs_coordinator co;
    pid_t pids[N + 1];
    int fds[N + 1], ports[16], ok, n_ports = 0;
    unsigned seed = 7;
    struct rlimit lim;
    if (!getrlimit(RLIMIT_NOFILE, &lim) && lim.rlim_cur < 4096 && lim.rlim_max >= 4096) {
        lim.rlim_cur = 4096;
        setrlimit(RLIMIT_NOFILE, &lim);
    }
    if (procs_coordinator_start(&co, 0)) return 0;
    memcpy(s->address, co.address, sizeof s->address);
    for (int i = 0; i < N; i++) pids[i] = procs_fork(member, i, s);
    pids[N] = co.pid;
    ok = SEEN(PROCS_WAIT(s->ops[0] > 20 && s->ops[N - 1] > 20, 20), "the group does not start");
    for (int i = 0; i <= N; i++) fds[i] = procs_count_fds(pids[i]);
    for (int i = 0; ok && i <= N; i++) {
        int n = listening_ports(pids[i], ports, 16);
        ok = SEEN(n > 0, "process %d has no listening port", i);
        for (int k = 0; ok && k < n; k++) ok = bother(s, ports[k], i < N ? "a member" : "the coordinator", &seed);
        n_ports += n;
    }
    for (int i = 0; ok && i <= N; i++)
        ok = SEEN(PROCS_WAIT(procs_count_fds(pids[i]) <= fds[i], 15), "process %d: %d descriptors, %d before", i,
                  procs_count_fds(pids[i]), fds[i]);
    printf("       %d ports bothered, %llu operations meanwhile\n", n_ports, (unsigned long long)s->ops[0]);
    s->end = 1;
    for (int i = 0; i < N; i++) ok = procs_end(pids[i], 20) == 0 && ok;
    return procs_coordinator_stop(&co) == 0 && ok;
}

/* A coordinator that has run out of descriptors neither spins nor ends, and serves again when there are some. */
static int starved_body(int index, void *arg) {
    struct rlimit lim = { 40, 40 };
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co;
    rg_error_t err;
    char *json = NULL;
    struct garbage *s = arg;
    struct rusage before, after;
    (void)index;
    cfg.listen = "127.0.0.1:0";
    PROCS_REQUIRE(!setrlimit(RLIMIT_NOFILE, &lim), "setrlimit");
    PROCS_REQUIRE(rg_coordinator_start(&cfg, &co, &err) == RG_OK, "%s", err.text);
    snprintf(s->address, sizeof s->address, "%s", rg_coordinator_address(co));
    getrusage(RUSAGE_SELF, &before);
    s->ops[0] = 1;
    PROCS_REQUIRE(PROCS_WAIT(s->ops[1], 30), "the strangers never came");
    getrusage(RUSAGE_SELF, &after);
    double cpu = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
                 (double)(after.ru_stime.tv_sec - before.ru_stime.tv_sec) +
                 (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec) / 1e6 +
                 (double)(after.ru_stime.tv_usec - before.ru_stime.tv_usec) / 1e6;
    PROCS_REQUIRE(cpu < 0.5, "%.2f s of processor time while out of descriptors", cpu);
    PROCS_REQUIRE(PROCS_WAIT(s->ops[2], 30), "the strangers never went");
    PROCS_REQUIRE(rg_coordinator_status(s->address, 10000, &json, &err) == RG_OK, "%s", err.text);
    rg_free(json);
    rg_coordinator_stop(co);
    return 0;
}

static int starved(void) {
    struct garbage *s = procs_shared(sizeof *s);
    struct held *h = calloc(1, sizeof *h);
    pid_t pid = procs_fork(starved_body, 0, s);
    int ok = h && SEEN(PROCS_WAIT(s->ops[0], 10), "it does not start");
    const char *colon = strrchr(s->address, ':');
    if (ok && colon) many(h, atoi(colon + 1), 200);
    uint64_t until = procs_now() + 1500000000ull;
    PROCS_WAIT(procs_now() >= until, 3);
    s->ops[1] = 1;
    if (h) release(h);
    s->ops[2] = 1;
    ok = procs_end(pid, 30) == 0 && ok;
    free(h);
    return ok;
}

void test_garbage(void) {
    procs_case("garbage__on_every_port__run_unaffected", strangers());
    procs_case("garbage__coordinator_out_of_descriptors__does_not_spin", starved());
}
