/* tcp_send.c: messages are cut into frames, and whichever rail is free takes the next one, so that a slow rail never
 * holds up the others. Small messages leave within the caller's send(); the rest in the calls of poll().
 * Relies on non-blocking sockets that copy what they take: pages handed over by reference would go on changing with the
 * caller's buffer. Must not touch a caller's buffer once its operation has completed. */
#include "tcp_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>

static void link_lost(rg_tp_t *tp, conn_t *c, int e) {
    link_t *l = c->link;
    /* What the peer sent before it went may complete a receive. */
    if (l->posted && !c->stalled) rgt_rx(tp, c);
    if (c->state == CONN_RAIL) rgt_rail_lost(tp, c, "sending failed: %s", strerror(e));
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

ssize_t rgt_tx_bytes(rg_tp_t *tp, conn_t *c, const void *p, size_t n) {
    return tx_result(tp, c, c->tls ? rg_tls_send(c->tls, p, n, NULL, 0) : send(c->fd, p, n, MSG_NOSIGNAL));
}

static ssize_t tx_step(rg_tp_t *tp, conn_t *c) {
    uint32_t body = c->tx_sent < c->tx_len ? c->tx_len - c->tx_sent : 0, ended = body ? 0 : c->tx_sent - c->tx_len;
    struct iovec v[3] = { { c->tx_head + c->tx_head_sent, FRAME_BYTES - c->tx_head_sent },
                          { body ? (void *)(uintptr_t)(c->tx_data + c->tx_sent) : NULL, body },
                          { c->tx_tail + ended, c->tx_end - ended } };
    struct msghdr m = { .msg_iov = v, .msg_iovlen = 3 };
    ssize_t n;
    if (c->tls) n = rg_tls_send(c->tls, v[0].iov_base, v[0].iov_len, v[1].iov_base, v[1].iov_len);
    else if (v[1].iov_len == 0 && v[2].iov_len == 0) n = send(c->fd, v[0].iov_base, v[0].iov_len, MSG_NOSIGNAL);
    else n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
    n = tx_result(tp, c, n);
    if (n > 0) {
        uint32_t head = FRAME_BYTES - c->tx_head_sent;
        head = (size_t)n < head ? (uint32_t)n : head;
        c->tx_head_sent += head;
        c->tx_sent += (uint32_t)n - head;
    }
    return n;
}

/* All of it has been taken. What TLS still holds would be lost with this process: it is not out yet. */
int rgt_tx_flush(rg_tp_t *tp, conn_t *c) {
    if (!rg_net_unsent(c->tls)) return 1;
    int rc = rg_tls_flush(c->tls);
    if (rc > 0) return 1;
    if (rc == 0) errno = EAGAIN;
    tx_result(tp, c, -1);
    return 0;
}

static void frame_out(rg_tp_t *tp, conn_t *c) {
    send_op_t *op = c->tx_op;
    link_t *l = c->link;
    l->sent += c->tx_len;
    tp->sent += c->tx_len;
    if ((c->tune.sent += c->tx_len) >= c->tune.next_at) rgt_tune(c);
    c->tx_busy = 0;
    c->tx_op = NULL;
    rgt_kept_header(c, c->tx_head, FRAME_BYTES);
    rgt_kept_payload(c, op, c->tx_data, c->tx_len);
    if (c->tx_end) rgt_kept_header(c, c->tx_tail, c->tx_end);
    if (c->tx_private) {
        free(c->tx_private);
        c->tx_private = NULL;
    }
    if (op && --op->in_flight == 0 && op->cut) rgt_send_done(tp, l, op, RG_TP_DONE);
}

void rgt_tx(rg_tp_t *tp, conn_t *c) {
    if (c->fd < 0) return; /* until it is made again */
    c->tx_blocked = 0;
    if (c->replaying && rgt_replay(tp, c) != 0) return;
    while (c->tx_busy) {
        if (c->tx_head_sent == FRAME_BYTES && c->tx_sent == c->tx_len + c->tx_end) {
            if (rgt_tx_flush(tp, c)) frame_out(tp, c);
            return;
        }
        ssize_t n = tx_step(tp, c);
        if (n < 0) return;
        /* A send that took less than it was given has filled the buffer: asking again would only fail. */
        if (n > 0 && c->tx_sent < c->tx_len + c->tx_end && (!c->tls || rg_net_unsent(c->tls))) {
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
    if (op && !rgt_window_open(c)) op = NULL;
    int ack = c->ack_owed;
    if (!op && !l->note_owed && !ack) return 0;
    if (!ack) l->note_owed = 0;
    c->tx_head_sent = c->tx_sent = 0;
    c->tx_busy = 1;
    c->tx_op = op;
    c->tx_len = c->tx_end = 0;
    c->tx_data = NULL;
    if (ack || !op) {
        f.type = ack ? FRAME_ACK : FRAME_NOTE;
        c->tx_op = NULL;
        if (ack) {
            c->ack_told = c->rx_off;
            f.offset = c->app_acks ? c->rx_off : 0; /* else it is but a sign of life */
            c->ack_owed = 0;
            l->acks_owed--;
            if (c->asked) c->retry_at = rg_os_now_ns(); /* who is asked only now has been silent since now */
        }
        rgt_frame_put(c->tx_head, &f);
        return 1;
    }
    uint64_t rest = op->s.len - op->next_off;
    uint32_t most = c->tune.frame ? c->tune.frame : SEGMENT;
    f.len = rest < most ? (uint32_t)rest : most;
    f.tag = op->s.tag;
    f.mseq = op->mseq;
    f.offset = op->next_off;
    f.total = op->s.len;
    rgt_frame_put(c->tx_head, &f);
    c->tx_len = f.len;
    if (f.len && !tp->cfg.tls) {
        rgt_frame_end(c->tx_tail, c->tx_head);
        c->tx_end = END_BYTES;
    }
    c->tx_data = (const uint8_t *)op->s.buf + op->next_off;
    op->next_off += f.len;
    op->in_flight++;
    if (op->next_off == op->s.len) {
        op->cut = 1;
        l->send_head = op->next;
        if (!l->send_head) l->send_tail = &l->send_head;
    }
    return 1;
}

void rgt_push(rg_tp_t *tp, link_t *l) {
    uint32_t taken = 0, idle = 0;
    /* Two frames' worth per call: then the receiving side of this process has its turn. */
    while (l->state == LINK_UP && (l->send_head || l->note_owed || l->acks_owed) && taken < 2 * SEGMENT &&
           idle < l->rails) {
        conn_t *c = l->rail[l->rail_next];
        if (++l->rail_next == l->rails) l->rail_next = 0;
        if (rgt_tx_pending(c) || c->fd < 0) {
            idle++;
            continue;
        }
        if (!take_frame(tp, l, c)) {
            idle++;
        } else {
            idle = 0;
            taken += c->tx_len + 4096;
            rgt_tx(tp, c);
        }
    }
}

int rgt_tx_fence(conn_t *c) {
    if (!c->tx_busy || !c->tx_op) return 0;
    c->tx_op = NULL;
    if (c->tx_head_sent == 0) {
        c->tx_busy = c->tx_blocked = 0;
        return 0;
    }
    /* All of it: a connection that breaks may have to send it again from its first byte. */
    c->tx_private = malloc(c->tx_len ? c->tx_len : 1);
    if (!c->tx_private) return -1;
    if (c->tx_len) memcpy(c->tx_private, c->tx_data, c->tx_len);
    c->tx_data = c->tx_private;
    return 0;
}
