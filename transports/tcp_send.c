/* tcp_send.c: messages are cut into frames, and whichever rail is free takes the next one, so that a slow rail never
 * holds up the others. Small messages leave within the caller's send(); the rest in the calls of poll().
 * Relies on non-blocking sockets. Must not touch a caller's buffer once its operation has completed, except through
 * pages that the kernel holds where the caller has allowed it (RG_TP_ZERO_COPY). */
#include "tcp_internal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#define ZERO_COPY_FROM (64u << 10)
#define JUDGE_AFTER 16 /* copied sends that are timed before the next judgement */
#define COPY_EVERY 64  /* while pages go by reference, every so many frames one is copied, to time it */
#define PIPE_BYTES (256 << 10)

/* Handing pages over by reference is no free lunch on loopback: each page is pinned and released, and its receiver
 * reads memory that is cold for it. It pays only where copying is slow: on a machine whose memory is busy the same copy
 * takes several times as long. So copies are timed, and the least of a few (which no interruption has lengthened)
 * decides. Picoseconds per byte; tests set it to 0. */
uint32_t rgt_slow_copy_ps = 260;

static void judge_copy(rg_tp_t *tp, uint64_t ns, size_t bytes) {
    uint64_t ps = ns * 1000 / bytes;
    if (tp->copies_timed == 0 || ps < tp->copy_ps) tp->copy_ps = (uint32_t)ps;
    if (++tp->copies_timed < JUDGE_AFTER) return;
    tp->copies_timed = 0;
    tp->copies_slow = tp->copy_ps > rgt_slow_copy_ps;
}

void rgt_pipe_close(conn_t *c) {
    for (int i = 0; i < 2; i++) {
        if (c->pipe[i] >= 0) close(c->pipe[i]);
        c->pipe[i] = -1;
    }
    c->tx_piped = 0;
}

static int pipe_ready(conn_t *c) {
    if (c->pipe[0] >= 0) return 1;
    if (pipe2(c->pipe, O_NONBLOCK | O_CLOEXEC) != 0) {
        c->pipe[0] = c->pipe[1] = -1;
        return 0;
    }
    /* Refused where the user's pipes have reached their limit; a small pipe only means more calls. */
    (void)fcntl(c->pipe[1], F_SETPIPE_SZ, PIPE_BYTES);
    return 1;
}

static void link_lost(rg_tp_t *tp, conn_t *c, int e) {
    link_t *l = c->link;
    /* What the peer sent before it went may complete a receive. */
    if (l->posted && !c->stalled) rgt_rx(tp, c);
    if (c->state == CONN_RAIL) rgt_link_fail(tp, l, "sending failed: %s", strerror(e));
}

/* What the syscall said: bytes (>= 0), or -1 with the connection blocked or gone. */
static ssize_t tx_result(rg_tp_t *tp, conn_t *c, ssize_t n) {
    if (n >= 0) return n;
    if (errno == EINTR) return 0;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM) {
        c->tx_blocked = 1;
        /* With many rails nobody tries this one again before epoll says so. */
        if (tp->many || tp->armed) rgt_interest(c, c->interest | EPOLLOUT);
        return -1;
    }
    link_lost(tp, c, errno);
    return -1;
}

/* splice() has no MSG_NOSIGNAL, and the program's disposition of SIGPIPE is not ours to change: a peer that died would
 * end this process. So the signal is held back around the call and taken away when the call raised it. */
static ssize_t splice_quietly(int from, int to, size_t len, unsigned flags) {
    const struct timespec at_once = { 0, 0 };
    sigset_t pipe_only, before, pending;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    sigemptyset(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    if (sigismember(&before, SIGPIPE)) sigpending(&pending);
    ssize_t n = splice(from, NULL, to, NULL, len, flags);
    int err = errno;
    /* Also after a part was taken: the error, and with it the signal, came behind that part. */
    if (n != (ssize_t)len && !sigismember(&pending, SIGPIPE)) sigtimedwait(&pipe_only, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = err;
    return n;
}

/* One step through the pipe: the pages go to the socket by reference. Returns as tx_result(); 0 also when the plain way
 * must be taken instead. */
static ssize_t tx_step_pipe(rg_tp_t *tp, conn_t *c) {
    if (c->tx_head_sent < FRAME_BYTES) {
        ssize_t n = tx_result(
            tp, c, send(c->fd, c->tx_head + c->tx_head_sent, FRAME_BYTES - c->tx_head_sent, MSG_NOSIGNAL | MSG_MORE));
        if (n > 0) c->tx_head_sent += (uint32_t)n;
        return n;
    }
    if (c->tx_piped == 0 && c->tx_private) {
        c->tx_zero = 0; /* cut off by a fence: the rest is a private copy, see rgt_tx_fence() */
        return 0;
    }
    if (c->tx_piped == 0) {
        struct iovec v = { (void *)(uintptr_t)(c->tx_data + c->tx_sent), c->tx_len - c->tx_sent };
        ssize_t n = vmsplice(c->pipe[1], &v, 1, SPLICE_F_NONBLOCK);
        if (n <= 0) {
            c->tx_zero = 0; /* memory that cannot be referenced, or no room: copy this frame */
            return 0;
        }
        c->tx_piped = (uint32_t)n;
    }
    uint32_t more = c->tx_piped < c->tx_len - c->tx_sent ? SPLICE_F_MORE : 0;
    ssize_t n = splice_quietly(c->pipe[0], c->fd, c->tx_piped, SPLICE_F_NONBLOCK | SPLICE_F_MOVE | more);
    if (n < 0 && errno != EAGAIN && errno != EINTR && errno != EPIPE && errno != ECONNRESET && errno != ETIMEDOUT) {
        rgt_pipe_close(c);
        c->tx_zero = 0;
        return 0;
    }
    n = tx_result(tp, c, n);
    if (n > 0) {
        c->tx_piped -= (uint32_t)n;
        c->tx_sent += (uint32_t)n;
    }
    return n;
}

static ssize_t tx_step_plain(rg_tp_t *tp, conn_t *c) {
    struct iovec v[2] = { { c->tx_head + c->tx_head_sent, FRAME_BYTES - c->tx_head_sent },
                          { (void *)(uintptr_t)(c->tx_data + c->tx_sent), c->tx_len - c->tx_sent } };
    struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 };
    int timed = tp->zero_copy && v[1].iov_len >= ZERO_COPY_FROM;
    uint64_t t0 = timed ? rg_os_now_ns() : 0;
    ssize_t n;
    if (v[0].iov_len == 0) n = send(c->fd, v[1].iov_base, v[1].iov_len, MSG_NOSIGNAL);
    else if (v[1].iov_len == 0) n = send(c->fd, v[0].iov_base, v[0].iov_len, MSG_NOSIGNAL);
    else n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
    if (timed && n >= (ssize_t)ZERO_COPY_FROM) judge_copy(tp, rg_os_now_ns() - t0, (size_t)n);
    n = tx_result(tp, c, n);
    if (n > 0) {
        uint32_t head = FRAME_BYTES - c->tx_head_sent;
        head = (size_t)n < head ? (uint32_t)n : head;
        c->tx_head_sent += head;
        c->tx_sent += (uint32_t)n - head;
    }
    return n;
}

static void frame_out(rg_tp_t *tp, conn_t *c) {
    send_op_t *op = c->tx_op;
    link_t *l = c->link;
    l->sent += c->tx_len;
    tp->sent += c->tx_len;
    c->tx_busy = c->tx_zero = 0;
    c->tx_op = NULL;
    if (c->tx_private) {
        free(c->tx_private);
        c->tx_private = NULL;
    }
    if (op && --op->in_flight == 0 && op->cut) rgt_send_done(tp, l, op, RG_TP_DONE);
}

void rgt_tx(rg_tp_t *tp, conn_t *c) {
    c->tx_blocked = 0;
    while (c->tx_busy) {
        if (c->tx_head_sent == FRAME_BYTES && c->tx_sent == c->tx_len) {
            frame_out(tp, c);
            return;
        }
        ssize_t n = c->tx_zero ? tx_step_pipe(tp, c) : tx_step_plain(tp, c);
        if (n < 0) return;
        /* A plain send that took less than it was given has filled the buffer: asking again would only fail. */
        if (n > 0 && !c->tx_zero && c->tx_sent < c->tx_len) {
            c->tx_blocked = 1;
            if (tp->many || tp->armed) rgt_interest(c, c->interest | EPOLLOUT);
            return;
        }
    }
}

/* Puts the next frame of the link into the hands of a free rail. */
static int take_frame(rg_tp_t *tp, link_t *l, conn_t *c) {
    frame_t f = { .type = FRAME_DATA, .note = tp->note, .note_seq = tp->note_seq };
    send_op_t *op = l->send_head;
    if (!op && !l->note_owed) return 0;
    l->note_owed = 0;
    c->tx_head_sent = c->tx_sent = 0;
    c->tx_busy = 1;
    c->tx_zero = 0;
    c->tx_op = op;
    c->tx_len = 0;
    c->tx_data = NULL;
    if (!op) {
        f.type = FRAME_NOTE;
        rgt_frame_put(c->tx_head, &f);
        return 1;
    }
    uint64_t rest = op->s.len - op->next_off;
    f.len = rest < SEGMENT ? (uint32_t)rest : SEGMENT;
    f.tag = op->s.tag;
    f.mseq = op->mseq;
    f.offset = op->next_off;
    f.total = op->s.len;
    rgt_frame_put(c->tx_head, &f);
    c->tx_len = f.len;
    c->tx_data = (const uint8_t *)op->s.buf + op->next_off;
    op->next_off += f.len;
    op->in_flight++;
    if (op->next_off == op->s.len) {
        op->cut = 1;
        l->send_head = op->next;
        if (!l->send_head) l->send_tail = &l->send_head;
    }
    if (tp->zero_copy && (op->s.flags & RG_TP_ZERO_COPY) && f.len >= ZERO_COPY_FROM &&
        (rgt_slow_copy_ps == 0 || (tp->copies_slow && ++tp->frames_by_page % COPY_EVERY != 0)))
        c->tx_zero = (uint8_t)pipe_ready(c);
    return 1;
}

void rgt_push(rg_tp_t *tp, link_t *l) {
    uint32_t taken = 0, idle = 0;
    /* Two frames' worth per call: then the receiving side of this process has its turn. */
    while (l->state == LINK_UP && (l->send_head || l->note_owed) && taken < 2 * SEGMENT && idle < l->rails) {
        conn_t *c = l->rail[l->rail_next];
        if (++l->rail_next == l->rails) l->rail_next = 0;
        if (c->tx_busy) {
            idle++;
            continue;
        }
        idle = 0;
        if (take_frame(tp, l, c)) {
            taken += c->tx_len + 4096;
            rgt_tx(tp, c);
        }
    }
}

int rgt_tx_fence(conn_t *c) {
    if (!c->tx_busy || !c->tx_op) return 0;
    c->tx_op = NULL;
    if (c->tx_head_sent == 0) {
        c->tx_busy = c->tx_blocked = c->tx_zero = 0;
        return 0;
    }
    uint32_t rest = c->tx_len - c->tx_sent;
    if (rest == 0) return 0;
    c->tx_private = malloc(rest);
    if (!c->tx_private) return -1;
    memcpy(c->tx_private, c->tx_data + c->tx_sent, rest);
    c->tx_data = c->tx_private;
    c->tx_len = rest;
    c->tx_sent = 0;
    /* What the pipe has of it goes out from there; nothing more is put in. Private memory is freed when the frame is
     * out, and the pages would still be referenced then: copy. */
    if (c->tx_piped == 0) c->tx_zero = 0;
    return 0;
}
