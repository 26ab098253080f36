/* stress_net.c: the network of `regroup stress`: each host is a network namespace with one tun device, and a process,
 * the wire, carries the packets between them: at once, late, not at all, or with a reset in their place. It relies on
 * Linux (tun, namespaces) and root, and on nothing of the library. It must leave nothing behind: namespaces and devices
 * go with their last descriptor, the wire with the driver. */
#include "stress.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NODES (STRESS_PEERS + STRESS_COORDS)
#define MTU 16384
#define NET_BASE 0x0a4e0000u /* 10.78.0.0/24 */

void stress_net_address(uint32_t node, char buf[32]) { snprintf(buf, 32, "10.78.0.%u", node + 1); }

/* ---- Namespaces ------------------------------------------------------------------------------------------------ */

static int device_up(uint32_t node) {
    struct ifreq r = { 0 };
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), ok = s >= 0;
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(NET_BASE + node + 1) };
    snprintf(r.ifr_name, sizeof r.ifr_name, "eth0");
    memcpy(&r.ifr_addr, &a, sizeof a);
    ok = ok && ioctl(s, SIOCSIFADDR, &r) == 0;
    a.sin_addr.s_addr = htonl(0xffffff00u);
    memcpy(&r.ifr_netmask, &a, sizeof a);
    ok = ok && ioctl(s, SIOCSIFNETMASK, &r) == 0;
    r.ifr_mtu = MTU;
    ok = ok && ioctl(s, SIOCSIFMTU, &r) == 0;
    r.ifr_qlen = 4000;
    ok = ok && ioctl(s, SIOCSIFTXQLEN, &r) == 0;
    r.ifr_flags = IFF_UP | IFF_RUNNING;
    ok = ok && ioctl(s, SIOCSIFFLAGS, &r) == 0;
    snprintf(r.ifr_name, sizeof r.ifr_name, "lo");
    r.ifr_flags = IFF_UP;
    ok = ok && ioctl(s, SIOCSIFFLAGS, &r) == 0;
    if (s >= 0) close(s);
    return ok;
}

static int node_open(uint32_t node, int *ns) {
    struct ifreq r = { .ifr_flags = IFF_TUN | IFF_NO_PI };
    if (unshare(CLONE_NEWNET)) return -1;
    *ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    snprintf(r.ifr_name, sizeof r.ifr_name, "eth0");
    if (*ns < 0 || fd < 0 || ioctl(fd, TUNSETIFF, &r) != 0 || !device_up(node)) {
        if (fd >= 0) close(fd);
        return -1;
    }
    return fd;
}

int stress_net_enter(const struct stress_net *t, uint32_t node) {
    return t->nodes ? setns(t->ns[node], CLONE_NEWNET) : 0;
}

/* ---- The wire -------------------------------------------------------------------------------------------------- */

struct late {
    uint64_t due, order;
    uint32_t to, len;
    uint8_t *bytes;
};

struct wire {
    uint32_t nodes;
    int fd[NODES];
    struct stress_rule (*rules)[NODES];
    struct late *heap;
    size_t n, cap;
    uint64_t order;
};

static int sooner(const struct late *a, const struct late *b) {
    return a->due < b->due || (a->due == b->due && a->order < b->order);
}

static void push(struct wire *w, struct late p) {
    if (w->n == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 1024;
        struct late *grown = realloc(w->heap, cap * sizeof *grown);
        if (!grown) {
            free(p.bytes); /* a packet lost */
            return;
        }
        w->heap = grown;
        w->cap = cap;
    }
    size_t i = w->n++;
    for (; i && sooner(&p, &w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = p;
}

static struct late pop(struct wire *w) {
    struct late top = w->heap[0], last = w->heap[--w->n];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < w->n; i = c) {
        if (c + 1 < w->n && sooner(&w->heap[c + 1], &w->heap[c])) c++;
        if (!sooner(&w->heap[c], &last)) break;
        w->heap[i] = w->heap[c];
    }
    w->heap[i] = last;
    return top;
}

static uint32_t sum16(const uint8_t *p, size_t n, uint32_t sum) {
    for (size_t i = 0; i + 1 < n; i += 2) sum += (uint32_t)p[i] << 8 | p[i + 1];
    return sum;
}

static void put16(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static uint32_t folded(uint32_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return ~sum & 0xffff;
}

/* A reset as the other end of the connection would send it: from `src` to `dst`, both with their ports. */
static void send_reset(int fd, const uint8_t *src, const uint8_t *dst, const uint8_t *sport, const uint8_t *dport,
                       const uint8_t *seq) {
    uint8_t p[40] = { 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6 };
    memcpy(p + 12, src, 4);
    memcpy(p + 16, dst, 4);
    put16(p + 10, folded(sum16(p, 20, 0)));
    memcpy(p + 20, sport, 2);
    memcpy(p + 22, dport, 2);
    memcpy(p + 24, seq, 4);
    p[32] = 5 << 4;
    p[33] = 4; /* RST */
    put16(p + 36, folded(sum16(p + 20, 20, sum16(p + 12, 8, 6 + 20))));
    ssize_t n = write(fd, p, sizeof p);
    (void)n; /* a full device drops it, as a real one would */
}

static void carry(struct wire *w, uint32_t from, const uint8_t *p, uint32_t len, uint64_t now) {
    if (len < 40 || p[0] != 0x45) return;
    uint32_t dst = (uint32_t)p[16] << 24 | (uint32_t)p[17] << 16 | (uint32_t)p[18] << 8 | p[19];
    uint32_t to = dst - NET_BASE - 1;
    if (to >= w->nodes || to == from) return;
    const struct stress_rule *r = &w->rules[from][to];
    if (r->drop) return;
    if (r->reset_until_ns > now && p[9] == 6 && !(p[33] & 4)) {
        send_reset(w->fd[to], p + 12, p + 16, p + 20, p + 22, p + 24);
        send_reset(w->fd[from], p + 16, p + 12, p + 22, p + 20, p + 28);
        return;
    }
    if (r->delay_ns) {
        struct late q = { now + r->delay_ns, w->order++, to, len, malloc(len) };
        if (!q.bytes) return;
        memcpy(q.bytes, p, len);
        push(w, q);
        return;
    }
    ssize_t n = write(w->fd[to], p, len);
    (void)n;
}

static void wire_run(struct wire *w) {
    static uint8_t buffer[65536];
    struct pollfd f[NODES];
    for (uint32_t i = 0; i < w->nodes; i++) f[i] = (struct pollfd){ .fd = w->fd[i], .events = POLLIN };
    for (;;) {
        uint64_t now = tool_now_ns();
        while (w->n && w->heap[0].due <= now) {
            struct late p = pop(w);
            ssize_t n = write(w->fd[p.to], p.bytes, p.len);
            (void)n;
            free(p.bytes);
        }
        struct timespec t = { 1, 0 };
        if (w->n) t = (struct timespec){ 0, (long)((w->heap[0].due - now) % 1000000000u) };
        if (ppoll(f, w->nodes, &t, NULL) <= 0) continue;
        now = tool_now_ns();
        for (uint32_t i = 0; i < w->nodes; i++) {
            ssize_t n;
            for (int k = 0; f[i].revents && k < 32 && (n = read(w->fd[i], buffer, sizeof buffer)) > 0; k++)
                carry(w, i, buffer, (uint32_t)n, now);
        }
    }
}

static pid_t wire_start(struct wire *w) {
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    setpgid(0, 0); /* what ends the driver's group leaves it carrying: the driver ends it */
    wire_run(w);
    _exit(1);
}

/* ---- The whole ------------------------------------------------------------------------------------------------- */

const char *stress_net_open(struct stress_net *t, uint32_t nodes) {
    static char why[160];
    struct wire w = { .nodes = nodes };
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), bad = 0;
    uint32_t made = 0;
    if (home < 0 || geteuid() != 0) {
        if (home >= 0) close(home);
        return "network namespaces need root";
    }
    t->rules = mmap(NULL, sizeof *t->rules * NODES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    w.rules = t->rules;
    for (; made < nodes && !bad; made++) {
        t->ns[made] = -1;
        w.fd[made] = node_open(made, &t->ns[made]);
        bad = w.fd[made] < 0;
    }
    if (bad) snprintf(why, sizeof why, "a network namespace with a tun device cannot be made: %s", strerror(errno));
    if (setns(home, CLONE_NEWNET)) bad = 1;
    close(home);
    if (!bad && t->rules != MAP_FAILED) t->wire = wire_start(&w);
    for (uint32_t i = 0; i < made; i++)
        if (w.fd[i] >= 0) close(w.fd[i]); /* the wire has them */
    t->nodes = made;
    if (!bad && t->wire > 0) return NULL;
    stress_net_close(t);
    return why[0] ? why : "the process that carries packets cannot be started";
}

void stress_net_close(struct stress_net *t) {
    if (t->wire > 0) {
        kill(t->wire, SIGKILL);
        waitpid(t->wire, NULL, 0);
    }
    for (uint32_t i = 0; i < t->nodes; i++)
        if (t->ns[i] >= 0) close(t->ns[i]);
    t->nodes = 0;
    t->wire = 0;
}
