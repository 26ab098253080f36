/* wan.c: a network between namespaces with rate, delay, jitter, loss and queues of a length, in user space: each
 * namespace gets a tun device, and this program carries the packets between them, late, slowly or not at all; at both
 * ends the kernel's own TCP is at work. For distant sites where the kernel has no netem. Relies on Linux (tun,
 * namespaces) and root. It must not touch the namespace it was started in, and ends when its input does. */
#include "wan.h"

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

#define PACKET_MAX 65536
#define DEVICE_QUEUE 10000 /* packets that a device holds for us: losses are to be those that were asked for */

static const char help[] =
    "usage: wan [--mtu N] [--seed N] [--set LINE]... NAMESPACE[:UP_MBIT[:DOWN_MBIT]]...\n"
    "       wan (nothing)      checks itself against the clock\n"
    "\n"
    "Gives each NAMESPACE (of ip netns add, or a path like /proc/PID/ns/net) a device eth0 with the address "
    "10.79.0.I,\n"
    "I = 1, 2, ... in the order of the arguments, and carries packets between them: each waits its turn at the\n"
    "sender's rate, at that of the pair, then travels, then waits its turn at the receiver's rate. Prints \"ready\"\n"
    "when it carries. LINE, and each line of its input while it runs, is one of\n";

static const char help_end[] =
    "Input may also be \"report\": a line of JSON, packets and bytes by direction, lost (by loss=) and dropped (by a\n"
    "full queue). A line that is not understood is said on standard error and changes nothing; every line that was\n"
    "is answered by \"ok\". It ends when its input ends, with a last report.\n";

/* Stages: waits for the end of its way, or for its turn at the receiver. */
enum { ON_THE_WAY, AT_THE_RECEIVER };

struct packet {
    uint64_t due, order;
    uint8_t from, to, stage;
    uint32_t len;
    uint8_t *bytes;
};

wan_node_t wan_node[WAN_NODES];
wan_pair_t wan_pair[WAN_NODES][WAN_NODES];
int wan_nodes;
static int mtu = 1500;
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
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(WAN_NET + (uint32_t)index + 1) };
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", name);
    memcpy(&r.ifr_addr, &a, sizeof a);
    ok = ok && ioctl(s, SIOCSIFADDR, &r) == 0;
    a.sin_addr.s_addr = htonl(0xffffff00u);
    memcpy(&r.ifr_netmask, &a, sizeof a);
    ok = ok && ioctl(s, SIOCSIFNETMASK, &r) == 0;
    r.ifr_qlen = DEVICE_QUEUE;
    ok = ok && ioctl(s, SIOCSIFTXQLEN, &r) == 0;
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
    snprintf(path, sizeof path, "%s%s", strchr(namespace, '/') ? "" : "/var/run/netns/", namespace);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET) != 0) return fail("cannot enter namespace", namespace), 0;
    close(ns);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    snprintf(r.ifr_name, sizeof r.ifr_name, "eth0");
    if (fd < 0 || ioctl(fd, TUNSETIFF, &r) != 0 || !device_up("eth0", index))
        return fail("cannot make a device in namespace", namespace), 0;
    wan_node[index].fd = fd;
    return setns(home, CLONE_NEWNET) == 0;
}

/* ---- Carrying ---- */

static double roll(void) { /* 0 to 1 */
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (double)(dice >> 11) / 9007199254740992.0;
}

/* When a packet that comes now has left the queue; 0: there is no room for it. */
static uint64_t queue_up(wan_queue_t *q, uint64_t now, uint32_t len) {
    if (q->rate <= 0) return now;
    double most = q->room ? (double)q->room : q->rate * WAN_QUEUE_MS * 1e6;
    if (q->free_at < now) q->free_at = now;
    if ((double)(q->free_at - now) * q->rate + len > most && q->free_at > now) return 0;
    return q->free_at += (uint64_t)((double)len / q->rate);
}

static void keep(const struct packet *p) {
    if (!heap_push(*p)) free(p->bytes);
}

static void take_in(int from, const uint8_t *bytes, uint32_t len, uint64_t now) {
    uint32_t dst;
    if (len < 20 || bytes[0] >> 4 != 4) return; /* IPv4 only */
    memcpy(&dst, bytes + 16, 4);
    uint32_t to = ntohl(dst) - (WAN_NET + 1);
    if (to >= (uint32_t)wan_nodes) return;
    wan_pair_t *p = &wan_pair[from][to];
    p->packets++;
    p->bytes += len;
    uint64_t leaves = queue_up(&wan_node[from].up, now, len);
    if (leaves) leaves = queue_up(&p->line, leaves, len);
    if (!leaves) {
        p->dropped++;
        return;
    }
    if (p->loss > 0 && roll() * 100 < p->loss) {
        p->lost++;
        return;
    }
    uint64_t due = leaves + p->delay_ns + (p->jitter_ns ? (uint64_t)(roll() * (double)p->jitter_ns) : 0);
    if (p->jitter_ns && due < p->last_due) due = p->last_due; /* a path mostly keeps the order */
    p->last_due = due;
    struct packet x = { due, order++, (uint8_t)from, (uint8_t)to, ON_THE_WAY, len, malloc(len) };
    if (!x.bytes) return;
    memcpy(x.bytes, bytes, len);
    keep(&x);
}

/* The next thing that is due happens to its packet. */
static void go_on(void) {
    struct packet p = heap_pop();
    wan_node_t *to = &wan_node[p.to];
    if (p.stage == ON_THE_WAY && to->down.rate > 0) {
        p.stage = AT_THE_RECEIVER;
        p.due = queue_up(&to->down, p.due, p.len);
        if (p.due) {
            keep(&p);
            return;
        }
        wan_pair[p.from][p.to].dropped++;
    } else {
        ssize_t n = write(to->fd, p.bytes, p.len);
        (void)n; /* a full device drops it, as a real one would */
    }
    free(p.bytes);
}

static void report(void) {
    printf("[");
    for (int a = 0, n = 0; a < wan_nodes; a++)
        for (int b = 0; b < wan_nodes; b++) {
            const wan_pair_t *p = &wan_pair[a][b];
            if (a == b) continue;
            printf("%s{\"from\": %d, \"to\": %d, \"packets\": %llu, \"bytes\": %llu, \"lost\": %llu, "
                   "\"dropped\": %llu}",
                   n++ ? ", " : "", a + 1, b + 1, (unsigned long long)p->packets, (unsigned long long)p->bytes,
                   (unsigned long long)p->lost, (unsigned long long)p->dropped);
        }
    printf("]\n");
    fflush(stdout);
}

/* Takes what has come of the input; 0 when it has ended. */
static int take_lines(void) {
    static char line[WAN_LINE];
    static size_t n;
    char why[160], *end;
    ssize_t got = read(0, line + n, sizeof line - 1 - n);
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
    n += (size_t)got;
    line[n] = 0;
    while ((end = strchr(line, '\n'))) {
        *end++ = 0;
        if (strcmp(line, "report") == 0) report();
        else if (!wan_set(line, why, sizeof why)) fprintf(stderr, "wan: %s\n", why);
        else puts("ok"), fflush(stdout);
        n -= (size_t)(end - line);
        memmove(line, end, n + 1);
    }
    if (n == sizeof line - 1) {
        fprintf(stderr, "wan: a line of more than %d bytes is left out\n", WAN_LINE - 2);
        n = 0;
    }
    return 1;
}

static void carry(void) {
    static uint8_t buffer[PACKET_MAX];
    struct pollfd f[WAN_NODES + 1];
    for (int i = 0; i < wan_nodes; i++) f[i] = (struct pollfd){ wan_node[i].fd, POLLIN, 0 };
    f[wan_nodes] = (struct pollfd){ 0, POLLIN, 0 };
    for (;;) {
        uint64_t now = now_ns();
        while (waiting && heap[0].due <= now) go_on();
        struct timespec t = { 1, 0 };
        if (waiting) {
            uint64_t left = heap[0].due - now;
            t = (struct timespec){ (time_t)(left / 1000000000u), (long)(left % 1000000000u) };
        }
        if (ppoll(f, (nfds_t)wan_nodes + 1, &t, NULL) <= 0) continue;
        if (f[wan_nodes].revents && !take_lines()) return;
        for (int i = 0; i < wan_nodes; i++) {
            ssize_t n;
            now = now_ns();
            for (int k = 0; f[i].revents && k < 64 && (n = read(wan_node[i].fd, buffer, sizeof buffer)) > 0; k++)
                take_in(i, buffer, (uint32_t)n, now);
        }
    }
}

/* ---- The command ---- */

static int usage(const char *why) {
    fprintf(stderr, "wan: %s\n%s%s%s", why, help, wan_settings_help, help_end);
    return 2;
}

static double number(char **text) {
    char *end;
    if (!*text || !**text) return 0;
    double v = strtod(*text, &end);
    *text = *end == ':' ? end + 1 : end;
    return v;
}

int wan_main(int argc, char **argv) {
    char *lines[256], *names[WAN_NODES] = { NULL }, why[160];
    int n_lines = 0, home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    for (int i = 1; i < argc; i++) {
        int more = i + 1 < argc;
        if (strcmp(argv[i], "--mtu") == 0 && more) mtu = atoi(argv[++i]);
        else if (strcmp(argv[i], "--seed") == 0 && more) dice += strtoull(argv[++i], NULL, 10) << 1;
        else if (strcmp(argv[i], "--set") == 0 && more && n_lines < 256) lines[n_lines++] = argv[++i];
        else if (argv[i][0] == '-' || wan_nodes == WAN_NODES) return usage("unknown option, or too many namespaces");
        else {
            char *rates = strchr(argv[i], ':');
            if (rates) *rates++ = 0;
            wan_node[wan_nodes].up.rate = number(&rates) / 8000;
            wan_node[wan_nodes].down.rate = number(&rates) / 8000;
            names[wan_nodes++] = argv[i];
        }
    }
    if (mtu < 576 || mtu > PACKET_MAX - 1) return usage("--mtu must be from 576 to 65535");
    for (int i = 0; i < n_lines; i++)
        if (!wan_set(lines[i], why, sizeof why)) return usage(why);
    for (int i = 0; i < wan_nodes; i++)
        if (!node_open(names[i], i, home)) return 1;
    signal(SIGPIPE, SIG_IGN);
    printf("ready\n");
    fflush(stdout);
    carry();
    report();
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return wan_check();
    if (strcmp(argv[1], "--help") == 0) return printf("%s%s%s", help, wan_settings_help, help_end) < 0;
    return wan_main(argc, argv);
}
