/* cable.c: the switch between guests: a Unix datagram socket for each, over which its machine sends and gets frames. A
 * guest that takes nothing (frozen, or gone) loses its own frames and holds up nobody else's, as a real switch would.
 * Relies on Linux. It must end when its parent does. */
#include "vm.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <signal.h>
#include <unistd.h>

#define PORTS 8
#define FRAME 65536
#define QUEUE 1024 /* frames that wait for a guest that is slow */

struct frame {
    size_t len;
    unsigned char *bytes;
};

static struct port {
    int fd;
    struct sockaddr_un to;
    unsigned char mac[6];
    struct frame queue[QUEUE];
    unsigned first, n;
} port[PORTS];
static int ports;

static void path_of(struct sockaddr_un *a, const char *folder, const char *what, int i) {
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    snprintf(a->sun_path, sizeof a->sun_path, "%s/%s%d", folder, what, i + 1);
}

/* 0 when it must wait. A guest that is not there any more takes everything. */
static int hand_over(struct port *p, const unsigned char *bytes, size_t len) {
    ssize_t n = sendto(p->fd, bytes, len, MSG_DONTWAIT, (const struct sockaddr *)&p->to, sizeof p->to);
    return n >= 0 || (errno != EAGAIN && errno != ENOBUFS);
}

static void drain(struct port *p) {
    while (p->n && hand_over(p, p->queue[p->first].bytes, p->queue[p->first].len)) {
        free(p->queue[p->first].bytes);
        p->first = (p->first + 1) % QUEUE;
        p->n--;
    }
}

static void send_to(struct port *p, const unsigned char *bytes, size_t len) {
    drain(p);
    if (p->n == 0 && hand_over(p, bytes, len)) return;
    if (p->n == QUEUE) return;
    struct frame f = { len, malloc(len) };
    if (!f.bytes) return;
    memcpy(f.bytes, bytes, len);
    p->queue[(p->first + p->n++) % QUEUE] = f;
}

static void carry(int from, const unsigned char *bytes, size_t len) {
    if (len < 14) return;
    memcpy(port[from].mac, bytes + 6, 6);
    for (int i = 0; i < ports; i++)
        if (i != from && memcmp(port[i].mac, bytes, 6) == 0) {
            send_to(&port[i], bytes, len);
            return;
        }
    for (int i = 0; i < ports; i++)
        if (i != from) send_to(&port[i], bytes, len);
}

int vm_cable(const char *folder, int n) {
    static unsigned char bytes[FRAME];
    struct pollfd p[PORTS];
    if (n < 1 || n > PORTS) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < n; i++) {
        struct sockaddr_un own;
        path_of(&own, folder, "switch", i);
        path_of(&port[i].to, folder, "guest", i);
        port[i].fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (port[i].fd < 0 || bind(port[i].fd, (struct sockaddr *)&own, sizeof own) != 0)
            return perror(own.sun_path), 1;
        p[i] = (struct pollfd){ .fd = port[i].fd, .events = POLLIN };
    }
    ports = n;
    for (;;) {
        int waiting = 0;
        for (int i = 0; i < n; i++) {
            drain(&port[i]);
            waiting |= port[i].n > 0;
        }
        if (poll(p, (nfds_t)n, waiting ? 1 : -1) < 0 && errno != EINTR) return 1;
        for (int i = 0; i < n; i++)
            for (int k = 0; k < 64; k++) {
                ssize_t len = recv(port[i].fd, bytes, sizeof bytes, 0);
                if (len < 0) break;
                carry(i, bytes, (size_t)len);
            }
    }
}
