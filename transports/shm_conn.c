/* shm_conn.c: how two processes of a host find each other and how they notice that the other is gone. An endpoint
 * listens on an abstract Unix socket with a random name: another host, or another network namespace, does not have it,
 * whatever it is called. Who connects says the group's nonce first, and costs next to nothing until then. Each side
 * then hands over a segment, and both must show that they see the same memory: each repeats in its own segment the
 * challenge that it read in the other's.
 *     dialler   HELLO ->      <- ACCEPT (segment)      OFFER (segment) ->      <- READY
 * Relies on the kernel for the peer's process number and for a descriptor that tells of its end. It must not block, nor
 * believe anything from a stranger. */
#include "shm_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#define RETRY_NS 1000000ull /* while their queue is full, or they had no place for us */
#define RETRY_MOST_NS 50000000ull
#define RESUME_NS 100000000ull
#define ACCEPTS_PER_TURN 64

static const char elsewhere[] =
    "the peer's shared memory endpoint cannot be reached: it is on another host, in another "
    "network namespace, or gone";

/* ---- Addresses ---- */

/* "RGS", version, name. */
int rgm_blob_get(const uint8_t *blob, uint32_t len, uint8_t name[NAME_BYTES]) {
    memset(name, 0, NAME_BYTES);
    if (!blob || len != 4 + NAME_BYTES || memcmp(blob, "RGS\1", 4) != 0) return 0;
    memcpy(name, blob + 4, NAME_BYTES);
    return 1;
}

static socklen_t address(const uint8_t name[NAME_BYTES], struct sockaddr_un *a) {
    static const char prefix[] = "regroup-";
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    char *p = a->sun_path + 1; /* abstract: nothing in the file system, gone with the socket */
    memcpy(p, prefix, sizeof prefix - 1);
    p += sizeof prefix - 1;
    for (int i = 0; i < NAME_BYTES; i++) {
        *p++ = "0123456789abcdef"[name[i] >> 4];
        *p++ = "0123456789abcdef"[name[i] & 15];
    }
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)(p - a->sun_path));
}

static int new_socket(void) { return rg_os_high(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

static int watch(const rg_tp_t *tp, int fd, void *what) {
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = what };
    return epoll_ctl(tp->epoll, EPOLL_CTL_ADD, fd, &e);
}

/* A forked child may have the descriptor too: then closing ours would not take it out of epoll. */
static void unwatch(const rg_tp_t *tp, int fd) {
    epoll_ctl(tp->epoll, EPOLL_CTL_DEL, fd, NULL);
    close(fd);
}

rg_status_t rgm_listen(rg_tp_t *tp, uint8_t *blob, uint32_t *len, rg_error_t *err) {
    struct sockaddr_un a;
    socklen_t n = address(tp->name, &a);
    tp->ev_listener = EV_LISTENER;
    tp->listener = new_socket();
    if (tp->listener < 0 || bind(tp->listener, (struct sockaddr *)&a, n) != 0 || listen(tp->listener, 1024) != 0 ||
        watch(tp, tp->listener, &tp->ev_listener) != 0)
        return rg_fail(err, RG_ERR_SYSTEM, errno, "shm: cannot listen on a Unix socket");
    memcpy(blob, "RGS\1", 4);
    memcpy(blob + 4, tp->name, NAME_BYTES);
    *len = 4 + NAME_BYTES;
    return RG_OK;
}

/* ---- Connections ---- */

void rgm_timer_at(rg_tp_t *tp, uint64_t when) {
    if (when < tp->next_timer) tp->next_timer = when;
}

static void count(rg_tp_t *tp, const conn_t *c, int by) {
    if (c->state == CONN_STRANGER) tp->n_strangers += (uint32_t)by;
    if (c->state == CONN_PARKED) tp->n_parked += (uint32_t)by;
}

static void set_state(rg_tp_t *tp, conn_t *c, conn_state_t s) {
    count(tp, c, -1);
    c->state = s;
    count(tp, c, 1);
}

/* Takes the descriptor, also when it fails. */
static conn_t *conn_new(rg_tp_t *tp, conn_state_t state, int fd, uint64_t deadline) {
    conn_t *c = calloc(1, sizeof *c);
    if (c) {
        c->ev = EV_CONN;
        c->fd = fd;
        c->deadline = deadline;
        if (watch(tp, fd, c) != 0) {
            free(c);
            c = NULL;
        }
    }
    if (!c) {
        close(fd);
        return NULL;
    }
    c->state = state;
    count(tp, c, 1);
    c->prev = tp->conns_tail;
    *tp->conns_tail = c;
    tp->conns_tail = &c->next;
    rgm_timer_at(tp, deadline);
    return c;
}

void rgm_conn_close(rg_tp_t *tp, conn_t *c) {
    if (c->state == CONN_DEAD) return;
    if (c->link) c->link->conn = NULL;
    set_state(tp, c, CONN_DEAD);
    unwatch(tp, c->fd);
    *c->prev = c->next;
    if (c->next) c->next->prev = c->prev;
    else tp->conns_tail = c->prev;
    c->next = tp->grave;
    tp->grave = c;
}

void rgm_bury(rg_tp_t *tp) {
    while (tp->grave) {
        conn_t *c = tp->grave;
        tp->grave = c->next;
        free(c);
    }
}

/* Packets of the handshake. 0, or -1. */
static int say(rg_tp_t *tp, const link_t *l, uint8_t kind, int fd) {
    packet_t p = { .magic = "RGsh", .version = 1, .kind = kind, .ring = l->out_ring };
    memcpy(p.nonce, tp->cfg.nonce, 16);
    memcpy(p.from, tp->cfg.identity, 16);
    memcpy(p.to, l->identity, 16);
    if (fd >= 0) {
        p.witness_addr = (uint64_t)(uintptr_t)tp->memory;
        memcpy(p.witness, tp->memory, 16);
    }
    union {
        char buf[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } c = { .buf = { 0 } };
    struct iovec io = { &p, sizeof p };
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
    return sendmsg(l->conn->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof p ? 0 : -1;
}

typedef enum heard { HEARD_NOTHING, HEARD_PACKET, HEARD_BELL, HEARD_END, HEARD_RUBBISH } heard_t;

/* One packet, and the descriptor that came with it or -1. With fd NULL none is accepted, and the kernel drops them. */
static heard_t hear(int sock, packet_t *p, int *fd) {
    union {
        char buf[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } c;
    struct iovec io = { p, sizeof *p };
    struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1 };
    ssize_t n;
    if (fd) {
        *fd = -1;
        m.msg_control = c.buf;
        m.msg_controllen = CMSG_LEN(sizeof(int)); /* room for one descriptor: the kernel drops others */
    }
    do n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? HEARD_NOTHING : HEARD_END;
    if (fd)
        for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
            if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS && h->cmsg_len == CMSG_LEN(sizeof(int))) {
                memcpy(fd, CMSG_DATA(h), sizeof(int));
                *fd = rg_os_high(*fd);
            }
    if (n == (ssize_t)sizeof *p && !(m.msg_flags & MSG_TRUNC) && memcmp(p->magic, "RGsh", 4) == 0 && p->version == 1)
        return HEARD_PACKET;
    if (fd && *fd >= 0) close(*fd);
    return n == 0 ? HEARD_END : n == 1 ? HEARD_BELL : HEARD_RUBBISH;
}

/* ---- The end of a link ---- */

static void not_up(rg_tp_t *tp, const link_t *l) {
    for (uint32_t i = 0; i < tp->n_up; i++)
        if (tp->up[i] == l) {
            tp->up[i] = tp->up[--tp->n_up];
            return;
        }
}

static int handshaking(const link_t *l) {
    return l->state == LINK_GREETING || l->state == LINK_OFFERED || l->state == LINK_ACCEPTING;
}

static void link_state(rg_tp_t *tp, link_t *l, link_state_t s) {
    tp->n_greeting -= (uint32_t)handshaking(l);
    l->state = s;
    tp->n_greeting += (uint32_t)handshaking(l);
}

void rgm_link_clear(rg_tp_t *tp, link_t *l) {
    if (l->state == LINK_UP) not_up(tp, l);
    rgm_revoke(tp, l, UINT64_MAX, RG_TP_GONE);
    FENCE(); /* before the peer can learn by the end of the socket */
    while (l->recv_head) {
        recv_op_t *op = l->recv_head;
        rgm_pull_end(l, op);
        rgm_recv_unlink(l, op);
        rgm_recv_done(tp, l, op, RG_TP_GONE, NULL);
    }
    rgm_unasked_free_all(l);
    if (l->conn) rgm_conn_close(tp, l->conn);
    if (l->pidfd >= 0) unwatch(tp, l->pidfd);
    l->pidfd = -1;
    rgm_segments_free(l);
    tp->n_notes -= l->note_dirty;
    l->note_dirty = l->note_owed = 0;
    link_state(tp, l, LINK_DOWN);
}

void rgm_link_fail(rg_tp_t *tp, link_t *l, const char *fmt, ...) {
    if (l->state == LINK_DOWN || l->state == LINK_FREE) return;
    char text[sizeof l->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(l->text, sizeof l->text, "shm: %.300s", text);
    rgm_link_clear(tp, l);
    rg_completion_t *c = rg_ring_push(&tp->ring);
    c->event = RG_TP_LINK_DOWN;
    c->status = RG_TP_GONE;
    c->link = l->index;
    c->text = l->text;
    rgm_log(tp, RG_LOG_DEBUG, "shm: link %u down: %s", l->index, l->text);
}

/* The peer has gone. What it wrote before is still in memory, and comes first. */
static void ended(rg_tp_t *tp, link_t *l, const char *how) {
    uint64_t end = l->rpos + l->in_ring; /* who hangs up and writes on is not listened to for ever */
    while (l->state == LINK_UP && l->rpos < end && rgm_rx(tp, l) > 0) {}
    rgm_link_fail(tp, l, "%s", how);
}

void rgm_process_event(rg_tp_t *tp, link_t *l) {
    struct pollfd p = { .fd = l->pidfd, .events = POLLIN };
    if (l->state != LINK_UP || l->pidfd < 0 || poll(&p, 1, 0) != 1) return; /* of a link that had this place before */
    ended(tp, l, "the peer's process has ended");
}

/* ---- Links that come up ---- */

static void credentials(rg_tp_t *tp, link_t *l) {
    struct ucred u = { 0 };
    socklen_t n = sizeof u;
    l->pid = getsockopt(l->conn->fd, SOL_SOCKET, SO_PEERCRED, &u, &n) == 0 ? u.pid : 0;
    int fd = -1;
    n = sizeof fd;
    if (getsockopt(l->conn->fd, SOL_SOCKET, SO_PEERPIDFD, &fd, &n) != 0) {
        fd = -1;
#ifdef SYS_pidfd_open
        if (l->pid > 0) fd = (int)syscall(SYS_pidfd_open, l->pid, 0);
#endif
    }
    l->pidfd = fd = rg_os_high(fd);
    if (fd >= 0 && watch(tp, fd, l) != 0) {
        close(fd);
        l->pidfd = -1;
    }
}

static void link_up(rg_tp_t *tp, link_t *l) {
    credentials(tp, l);
    rgm_try_copy(l);
    link_state(tp, l, LINK_UP);
    tp->up[tp->n_up++] = l;
    l->conn->deadline = NEVER;
    rg_completion_t *c = rg_ring_push(&tp->ring);
    c->event = RG_TP_LINK_UP;
    c->link = l->index;
    if (tp->note) l->note_owed = 1;
    rgm_push(tp, l);
}

static uint32_t ring_bytes(const rg_tp_t *tp) { return tp->n_up < RING_ROOMY ? RING_MOST : RING_LEAST; }

/* Who greeted us has hung up again. It may be about to dial anew, as one does that dropped the link in between. */
static void wait_again(rg_tp_t *tp, link_t *l) {
    rgm_conn_close(tp, l->conn);
    rgm_segments_free(l);
    link_state(tp, l, LINK_WAITING);
}

/* Makes our segment, shows in it that we have seen theirs, and hands it over. */
static int hand_over(rg_tp_t *tp, link_t *l, uint8_t kind) {
    int fd;
    rg_error_t err = { 0 };
    if (rgm_segment_make(l, ring_bytes(tp), &fd, &err) != RG_OK) {
        rgm_link_fail(tp, l, "%s", err.text);
        return -1;
    }
    if (l->in) memcpy(l->out->echo, l->in->challenge, 16);
    int rc = say(tp, l, kind, fd), e = errno;
    close(fd);
    if (rc != 0 && kind == PACKET_ACCEPT && (e == EPIPE || e == ECONNRESET)) wait_again(tp, l);
    else if (rc != 0) rgm_link_fail(tp, l, "the segment could not be handed over: %s", strerror(e));
    return rc;
}

static int take_over(rg_tp_t *tp, link_t *l, const packet_t *p, int fd) {
    const char *why = fd < 0 ? "did not arrive; perhaps the limit of open descriptors is reached"
                             : rgm_segment_attach(l, fd, p->ring);
    if (fd >= 0) close(fd);
    if (why) {
        rgm_link_fail(tp, l, "the peer's memory %s", why);
        return -1;
    }
    l->witness_addr = p->witness_addr;
    memcpy(l->witness, p->witness, 16);
    return 0;
}

/* They repeat what they read in our segment. */
static int proved(rg_tp_t *tp, link_t *l) {
    uint8_t seen[16];
    FENCE();
    memcpy(seen, l->in->echo, 16);
    if (memcmp(seen, l->out->challenge, 16) == 0) return 1;
    rgm_link_fail(tp, l, "the peer did not prove that it shares memory with this process");
    return 0;
}

static int for_us(const rg_tp_t *tp, const link_t *l, const packet_t *p) {
    return memcmp(p->nonce, tp->cfg.nonce, 16) == 0 && memcmp(p->from, l->identity, 16) == 0 &&
           memcmp(p->to, tp->cfg.identity, 16) == 0;
}

/* ---- Dialling ---- */

static void dial_again(rg_tp_t *tp, link_t *l) {
    uint64_t now = rg_os_now_ns(), wait = l->backoff ? l->backoff : RETRY_NS;
    l->backoff = wait * 2 < RETRY_MOST_NS ? wait * 2 : RETRY_MOST_NS;
    l->retry_at = now + wait;
    rgm_timer_at(tp, l->retry_at);
}

void rgm_dial(rg_tp_t *tp, link_t *l) {
    struct sockaddr_un a;
    socklen_t n = address(l->name, &a);
    l->retry_at = NEVER;
    link_state(tp, l, LINK_DIALING);
    if (!tp->nonce_known) return;
    int fd = new_socket();
    if (fd < 0) {
        rgm_link_fail(tp, l, "no socket: %s", strerror(errno));
        return;
    }
    if (connect(fd, (struct sockaddr *)&a, n) != 0) {
        int e = errno;
        close(fd);
        if (e == EAGAIN || e == EINTR) dial_again(tp, l);
        else if (e == ECONNREFUSED) rgm_link_fail(tp, l, "%s", elsewhere);
        else rgm_link_fail(tp, l, "the peer cannot be reached: %s", strerror(e));
        return;
    }
    l->conn = conn_new(tp, CONN_LINK, fd, NEVER);
    if (!l->conn) {
        rgm_link_fail(tp, l, "no memory for a connection");
        return;
    }
    l->conn->link = l;
    link_state(tp, l, LINK_GREETING);
    if (say(tp, l, PACKET_HELLO, -1) != 0) {
        rgm_conn_close(tp, l->conn);
        link_state(tp, l, LINK_DIALING);
        dial_again(tp, l);
    }
}

static void dial_heard(rg_tp_t *tp, link_t *l) {
    packet_t p;
    int fd;
    heard_t what = hear(l->conn->fd, &p, &fd);
    if (what == HEARD_NOTHING) return;
    if (what == HEARD_END && l->state == LINK_GREETING) {
        /* They may have had no place for us, or not know the group yet. A peer of another group never will. */
        snprintf(l->text, sizeof l->text, "the peer hangs up on us; is it of the same group?");
        rgm_conn_close(tp, l->conn);
        link_state(tp, l, LINK_DIALING);
        dial_again(tp, l);
        return;
    }
    int right = what == HEARD_PACKET && for_us(tp, l, &p);
    if (right && l->state == LINK_GREETING && p.kind == PACKET_ACCEPT) {
        if (take_over(tp, l, &p, fd) != 0 || hand_over(tp, l, PACKET_OFFER) != 0) return;
        link_state(tp, l, LINK_OFFERED);
        return;
    }
    if (what == HEARD_PACKET && fd >= 0) close(fd);
    if (right && l->state == LINK_OFFERED && p.kind == PACKET_READY) {
        if (proved(tp, l)) link_up(tp, l);
        return;
    }
    if (what == HEARD_END) rgm_link_fail(tp, l, "the peer hung up while memory was exchanged");
    else rgm_link_fail(tp, l, "protocol error: not an answer to a greeting");
}

/* ---- Being dialled ---- */

static void adopt(rg_tp_t *tp, link_t *l, conn_t *c) {
    set_state(tp, c, CONN_LINK);
    c->link = l;
    c->deadline = NEVER;
    l->conn = c;
    link_state(tp, l, LINK_ACCEPTING);
    (void)hand_over(tp, l, PACKET_ACCEPT);
}

static link_t *expects(rg_tp_t *tp, const conn_t *c) {
    for (uint32_t i = 0; i < tp->n_links; i++) {
        link_t *l = tp->links[i];
        if (l && l->state == LINK_WAITING && memcmp(l->identity, c->hello.from, 16) == 0) return l;
    }
    return NULL;
}

static int knows_us(const rg_tp_t *tp, const conn_t *c) {
    return memcmp(c->hello.nonce, tp->cfg.nonce, 16) == 0 && memcmp(c->hello.to, tp->cfg.identity, 16) == 0;
}

/* Whether a peer's name exists here at all: then it will come, else we need not wait for it. */
static int exists(const link_t *l) {
    struct sockaddr_un a;
    socklen_t n = address(l->name, &a);
    int fd = new_socket(), there = 1;
    if (fd < 0) return 1;
    if (connect(fd, (struct sockaddr *)&a, n) != 0) there = errno != ECONNREFUSED;
    close(fd);
    return there;
}

void rgm_await(rg_tp_t *tp, link_t *l, int probe) {
    conn_t *next;
    link_state(tp, l, LINK_WAITING);
    for (conn_t *c = tp->conns; c; c = next) {
        next = c->next;
        if (c->state != CONN_PARKED || !tp->nonce_known || memcmp(l->identity, c->hello.from, 16) != 0) continue;
        adopt(tp, l, c);
        if (l->state != LINK_WAITING) return; /* else that one was no longer there */
    }
    if (probe && !exists(l)) rgm_link_fail(tp, l, "%s", elsewhere);
}

void rgm_nonce_known(rg_tp_t *tp) {
    conn_t *next;
    for (conn_t *c = tp->conns; c; c = next) {
        next = c->next;
        if (c->state != CONN_PARKED) continue;
        link_t *l = knows_us(tp, c) ? expects(tp, c) : NULL;
        if (l) adopt(tp, l, c);
        else if (!knows_us(tp, c)) rgm_conn_close(tp, c);
    }
    for (uint32_t i = 0; i < tp->n_links; i++)
        if (tp->links[i] && tp->links[i]->state == LINK_DIALING && !tp->links[i]->conn) rgm_dial(tp, tp->links[i]);
}

/* Room for one more: the one that has waited longest goes. */
static void make_room(rg_tp_t *tp, conn_state_t state, uint32_t n, uint32_t most) {
    for (conn_t *c = tp->conns; c && n >= most; c = c->next)
        if (c->state == state) {
            rgm_conn_close(tp, c);
            return;
        }
}

static void stranger_spoke(rg_tp_t *tp, conn_t *c) {
    packet_t p;
    heard_t what = hear(c->fd, &p, NULL);
    if (what == HEARD_NOTHING) return;
    c->hello = p;
    if (what != HEARD_PACKET || c->state != CONN_STRANGER || p.kind != PACKET_HELLO ||
        (tp->nonce_known && !knows_us(tp, c))) {
        rgm_conn_close(tp, c);
        return;
    }
    link_t *l = tp->nonce_known ? expects(tp, c) : NULL;
    if (l) {
        adopt(tp, l, c);
        return;
    }
    make_room(tp, CONN_PARKED, tp->n_parked, PARKED_MAX);
    set_state(tp, c, CONN_PARKED);
    c->deadline = rg_os_now_ns() + PARKED_NS;
    rgm_timer_at(tp, c->deadline);
}

static void offer_heard(rg_tp_t *tp, link_t *l) {
    packet_t p;
    int fd;
    heard_t what = hear(l->conn->fd, &p, &fd);
    if (what == HEARD_NOTHING) return;
    if (what == HEARD_PACKET && p.kind == PACKET_OFFER && for_us(tp, l, &p)) {
        if (take_over(tp, l, &p, fd) != 0 || !proved(tp, l)) return;
        memcpy(l->out->echo, l->in->challenge, 16);
        FENCE();
        if (say(tp, l, PACKET_READY, -1) != 0) rgm_link_fail(tp, l, "the peer hung up: %s", strerror(errno));
        else link_up(tp, l);
        return;
    }
    if (what == HEARD_PACKET && fd >= 0) close(fd);
    if (what == HEARD_END) {
        wait_again(tp, l);
        rgm_await(tp, l, 0);
    } else {
        rgm_link_fail(tp, l, "protocol error: not what follows a greeting");
    }
}

void rgm_accept(rg_tp_t *tp) {
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = rg_os_high(accept4(tp->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK) return;
            /* No descriptors left: who knocks waits in the queue, and we do not spin on it. */
            epoll_ctl(tp->epoll, EPOLL_CTL_DEL, tp->listener, NULL);
            tp->resume_listen = rg_os_now_ns() + RESUME_NS;
            rgm_timer_at(tp, tp->resume_listen);
            return;
        }
        make_room(tp, CONN_STRANGER, tp->n_strangers, STRANGERS_MAX);
        conn_t *c = conn_new(tp, CONN_STRANGER, fd, rg_os_now_ns() + STRANGER_NS);
        if (c) stranger_spoke(tp, c); /* mostly its greeting is there already */
    }
}

/* ---- Events and timers ---- */

int rgm_socket_drain(link_t *l) {
    for (;;) {
        packet_t p;
        int fd;
        heard_t what = hear(l->conn->fd, &p, &fd);
        if (what == HEARD_NOTHING) return 0;
        if (what == HEARD_END) return -1;
        if (what == HEARD_BELL) continue;
        if (what == HEARD_PACKET && p.kind == PACKET_REGION) {
            rgm_region_learn(l, p.region, p.region_len, fd);
        } else {
            if (what == HEARD_PACKET && fd >= 0) close(fd);
            l->broken = 1;
        }
    }
}

void rgm_conn_event(rg_tp_t *tp, conn_t *c) {
    link_t *l = c->link;
    if (c->state == CONN_DEAD) return;
    if (c->state != CONN_LINK) stranger_spoke(tp, c);
    else if (l->state == LINK_GREETING || l->state == LINK_OFFERED) dial_heard(tp, l);
    else if (l->state == LINK_ACCEPTING) offer_heard(tp, l);
    else if (l->state == LINK_UP && rgm_socket_drain(l) != 0) ended(tp, l, "the peer closed the connection");
}

void rgm_timers(rg_tp_t *tp, uint64_t now) {
    tp->next_timer = NEVER;
    conn_t *next;
    for (conn_t *c = tp->conns; c; c = next) {
        next = c->next;
        if (c->state != CONN_STRANGER && c->state != CONN_PARKED) continue;
        if (now >= c->deadline) rgm_conn_close(tp, c);
        else rgm_timer_at(tp, c->deadline);
    }
    for (uint32_t i = 0; i < tp->n_links; i++) {
        link_t *l = tp->links[i];
        if (!l || l->state == LINK_FREE || l->state == LINK_UP || l->state == LINK_DOWN) continue;
        if (now >= l->deadline) {
            rgm_link_fail(tp, l, "not connected within %u ms%s%s", l->timeout_ms, l->text[0] ? ": " : "", l->text);
            continue;
        }
        rgm_timer_at(tp, l->deadline);
        if (l->retry_at <= now) rgm_dial(tp, l);
        else if (l->retry_at != NEVER) rgm_timer_at(tp, l->retry_at);
    }
    if (tp->resume_listen <= now) {
        tp->resume_listen = NEVER;
        watch(tp, tp->listener, &tp->ev_listener);
    } else if (tp->resume_listen != NEVER) {
        rgm_timer_at(tp, tp->resume_listen);
    }
}
