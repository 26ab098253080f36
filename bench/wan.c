/* wan.c: a network between namespaces with delay, rate and loss, in user space: each namespace gets a tun device, and
 * this program carries the packets between them, late, slowly or not at all. For emulating distant sites where the
 * kernel has no netem. Relies on Linux (tun, namespaces made by `ip netns add`) and root. It must not touch the
 * namespace it was started in, and ends when its input does. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define NODES_MAX 16
#define PACKET_MAX 65536
#define QUEUE_NS 250000000ull /* a device drops what would wait longer than this for its turn */

static const char help[] =
    "usage: wan [--mtu N] [--default DELAY_MS[:LOSS_PERCENT]] NAMESPACE[:UP_MBIT[:DOWN_MBIT]]...\n"
    "           [--link A:B:DELAY_MS[:LOSS_PERCENT]]...\n"
    "\n"
    "Gives each namespace (ip netns add NAMESPACE) a device eth0 with the address 10.79.0.I, I = 1, 2, ... in the\n"
    "order of the arguments, and carries packets between them: each waits its turn at the sender's and the\n"
    "receiver's rate (0 or nothing: no limit), then DELAY_MS one way; LOSS_PERCENT of them vanish. --link is about\n"
    "the pair of the A-th and the B-th namespace, both directions; --default about all others. Prints \"ready\" when\n"
    "it carries, and ends when its input ends, with one line of JSON: packets and bytes by pair.\n";

struct node {
    int fd;
    double up, down; /* bytes per nanosecond; 0: no limit */
    uint64_t up_free, down_free;
};

struct pair {
    uint64_t delay_ns, packets, bytes, lost, dropped;
    double loss;
};

struct packet {
    uint64_t due, order;
    uint32_t to, len;
    uint8_t *bytes;
};

static struct node node[NODES_MAX];
static struct pair pair[NODES_MAX][NODES_MAX];
static int nodes, mtu = 1500;
static struct packet *heap;
static size_t waiting, room;
static uint64_t order, dice = 88172645463325252ull;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int fail(const char *what, const char *about) {
    fprintf(stderr, "wan: %s %s: %s\n", what, about, strerror(errno));
    return 1;
}

static int sooner(const struct packet *a, const struct packet *b) {
    return a->due < b->due || (a->due == b->due && a->order < b->order);
}

static int heap_push(struct packet p) {
    if (waiting == room) {
        size_t more = room ? room * 2 : 1024;
        struct packet *grown = realloc(heap, more * sizeof *grown);
        if (!grown) return 0;
        heap = grown;
        room = more;
    }
    size_t i = waiting++;
    for (; i && sooner(&p, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = p;
    return 1;
}

static struct packet heap_pop(void) {
    struct packet top = heap[0], last = heap[--waiting];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < waiting; i = c) {
        if (c + 1 < waiting && sooner(&heap[c + 1], &heap[c])) c++;
        if (!sooner(&heap[c], &last)) break;
        heap[i] = heap[c];
    }
    heap[i] = last;
    heap[waiting] = (struct packet){ 0 }; /* nothing is held twice */
    return top;
}

/* ---- Devices ---- */

static int device_up(const char *name, int index) {
    struct ifreq r = { 0 };
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), ok = s >= 0;
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a4f0000u + (uint32_t)index + 1) };
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", name);
    memcpy(&r.ifr_addr, &a, sizeof a);
    ok = ok && ioctl(s, SIOCSIFADDR, &r) == 0;
    a.sin_addr.s_addr = htonl(0xffffff00u);
    memcpy(&r.ifr_netmask, &a, sizeof a);
    ok = ok && ioctl(s, SIOCSIFNETMASK, &r) == 0;
    r.ifr_mtu = mtu;
    ok = ok && ioctl(s, SIOCSIFMTU, &r) == 0;
    r.ifr_flags = IFF_UP | IFF_RUNNING;
    ok = ok && ioctl(s, SIOCSIFFLAGS, &r) == 0;
    snprintf(r.ifr_name, sizeof r.ifr_name, "lo");
    r.ifr_flags = IFF_UP;
    ok = ok && ioctl(s, SIOCSIFFLAGS, &r) == 0;
    if (s >= 0) close(s);
    return ok;
}

/* Opens the device inside the namespace; its descriptor works from outside. */
static int node_open(const char *namespace, int index, int home) {
    char path[300];
    struct ifreq r = { .ifr_flags = IFF_TUN | IFF_NO_PI };
    snprintf(path, sizeof path, "/var/run/netns/%s", namespace);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET) != 0) return fail("cannot enter namespace", namespace), 0;
    close(ns);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    snprintf(r.ifr_name, sizeof r.ifr_name, "eth0");
    if (fd < 0 || ioctl(fd, TUNSETIFF, &r) != 0 || !device_up("eth0", index))
        return fail("cannot make a device in namespace", namespace), 0;
    node[index].fd = fd;
    return setns(home, CLONE_NEWNET) == 0;
}

/* ---- Carrying ---- */

static uint64_t turn(uint64_t *free_at, double rate, uint64_t at, uint32_t len) {
    if (*free_at < at) *free_at = at;
    if (rate > 0) *free_at += (uint64_t)((double)len / rate);
    return *free_at;
}

static int lost(double percent) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return percent > 0 && (double)(dice >> 11) / 9007199254740992.0 * 100 < percent;
}

static void take_in(int from, const uint8_t *bytes, uint32_t len, uint64_t now) {
    uint32_t dst;
    if (len < 20 || bytes[0] >> 4 != 4) return; /* IPv4 only */
    memcpy(&dst, bytes + 16, 4);
    uint32_t to = ntohl(dst) - 0x0a4f0001u;
    if (to >= (uint32_t)nodes) return;
    struct pair *p = &pair[from][to];
    struct node *a = &node[from], *b = &node[to];
    p->packets++;
    p->bytes += len;
    if ((a->up > 0 && a->up_free > now + QUEUE_NS) || (b->down > 0 && b->down_free > now + p->delay_ns + QUEUE_NS)) {
        p->dropped++;
        return;
    }
    uint64_t leaves = turn(&a->up_free, a->up, now, len);
    if (lost(p->loss)) {
        p->lost++;
        return;
    }
    uint64_t due = turn(&b->down_free, b->down, leaves + p->delay_ns, len);
    struct packet x = { due, order++, to, len, malloc(len) };
    if (!x.bytes) return;
    memcpy(x.bytes, bytes, len);
    if (!heap_push(x)) free(x.bytes);
}

static void carry(void) {
    static uint8_t buffer[PACKET_MAX];
    struct pollfd f[NODES_MAX + 1];
    for (int i = 0; i < nodes; i++) f[i] = (struct pollfd){ node[i].fd, POLLIN, 0 };
    f[nodes] = (struct pollfd){ 0, POLLIN, 0 };
    for (;;) {
        uint64_t now = now_ns();
        while (waiting && heap[0].due <= now) {
            struct packet p = heap_pop();
            ssize_t n = write(node[p.to].fd, p.bytes, p.len);
            (void)n; /* a full device drops it, as a real one would */
            free(p.bytes);
        }
        struct timespec t = { 1, 0 };
        if (waiting) {
            uint64_t left = heap[0].due - now;
            t = (struct timespec){ (time_t)(left / 1000000000u), (long)(left % 1000000000u) };
        }
        if (ppoll(f, (nfds_t)nodes + 1, &t, NULL) <= 0) continue;
        if (f[nodes].revents) {
            char c;
            if (read(0, &c, 1) <= 0) return;
        }
        now = now_ns();
        for (int i = 0; i < nodes; i++) {
            ssize_t n;
            for (int k = 0; f[i].revents && k < 64 && (n = read(node[i].fd, buffer, sizeof buffer)) > 0; k++)
                take_in(i, buffer, (uint32_t)n, now);
        }
    }
}

/* ---- The command ---- */

static double number(char **text, double otherwise) {
    if (!*text || !**text) return otherwise;
    char *end;
    double v = strtod(*text, &end);
    *text = *end == ':' ? end + 1 : end;
    return v;
}

static void set_pair(int a, int b, char *text) {
    double delay = number(&text, 0), loss = number(&text, 0);
    if (a == b) return;
    pair[a][b].delay_ns = pair[b][a].delay_ns = (uint64_t)(delay * 1e6);
    pair[a][b].loss = pair[b][a].loss = loss;
}

static int usage(const char *why) {
    fprintf(stderr, "wan: %s\n%s", why, help);
    return 2;
}

static void report(void) {
    printf("[");
    for (int a = 0, n = 0; a < nodes; a++)
        for (int b = 0; b < nodes; b++)
            if (a != b)
                printf("%s{\"from\": %d, \"to\": %d, \"packets\": %llu, \"bytes\": %llu, \"lost\": %llu, \"dropped\": "
                       "%llu}",
                       n++ ? ", " : "", a + 1, b + 1, (unsigned long long)pair[a][b].packets,
                       (unsigned long long)pair[a][b].bytes, (unsigned long long)pair[a][b].lost,
                       (unsigned long long)pair[a][b].dropped);
    printf("]\n");
}

int main(int argc, char **argv) {
    char *links[NODES_MAX * NODES_MAX], *names[NODES_MAX] = { NULL }, *all = NULL;
    int n_links = 0, home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (argc < 2 || strcmp(argv[1], "--help") == 0) return fputs(help, stdout), argc < 2 ? 2 : 0;
    for (int i = 1; i < argc; i++) {
        int more = i + 1 < argc;
        if (strcmp(argv[i], "--mtu") == 0 && more) mtu = atoi(argv[++i]);
        else if (strcmp(argv[i], "--default") == 0 && more) all = argv[++i];
        else if (strcmp(argv[i], "--link") == 0 && more && n_links < NODES_MAX * NODES_MAX)
            links[n_links++] = argv[++i];
        else if (argv[i][0] == '-' || nodes == NODES_MAX) return usage("unknown option, or more than 16 namespaces");
        else {
            char *rates = strchr(argv[i], ':');
            if (rates) *rates++ = 0;
            node[nodes].up = number(&rates, 0) / 8000;
            node[nodes].down = number(&rates, 0) / 8000;
            names[nodes++] = argv[i];
        }
    }
    if (mtu < 576 || mtu > PACKET_MAX - 1) return usage("--mtu must be from 576 to 65535");
    for (int a = 0; a < nodes; a++)
        for (int b = 0; all && b < a; b++) set_pair(a, b, all);
    for (int i = 0; i < n_links; i++) {
        char *text = links[i];
        int a = (int)number(&text, 0), b = (int)number(&text, 0);
        if (a < 1 || a > nodes || b < 1 || b > nodes) return usage("--link names a namespace that there is not");
        set_pair(a - 1, b - 1, text);
    }
    for (int i = 0; i < nodes; i++)
        if (!node_open(names[i], i, home)) return 1;
    signal(SIGPIPE, SIG_IGN);
    printf("ready\n");
    fflush(stdout);
    carry();
    report();
    return 0;
}
