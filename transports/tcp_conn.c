/* tcp_conn.c: how connections come and go: listening, dialling with back-off, the handshake that tells peers from
 * strangers, the watch over peers that no longer answer, and the end of a link.
 * Relies on os/ for sockets and on epoll for readiness. Must bound what strangers can make it hold (rule T7), and must
 * never free a connection at once: an event for it may be in the hands of poll(). */
#include "tcp_internal.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define BACKOFF_FIRST_NS 2000000ull
#define BACKOFF_MOST_NS 250000000ull
#define KEEPALIVES_LEAST 3
#define RTO_MAX_MS 120000u     /* the kernel's own */
#define QUIET_NS 400000000ull  /* a rail that has heard nothing for so long asks, or for a quarter of the heartbeat */
#define LOCAL_BUFFER (1 << 20) /* within one host: enough for the round, little enough to stay near the cache */
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

void rgt_timer_at(rg_tp_t *tp, uint64_t when) {
    if (when < tp->next_timer) tp->next_timer = when;
}

void rgt_interest(conn_t *c, uint32_t want) {
    if (c->fd < 0 || c->interest == want) return;
    struct epoll_event ev = { .events = want, .data.ptr = c };
    if (epoll_ctl(c->tp->epoll, EPOLL_CTL_MOD, c->fd, &ev) == 0) c->interest = want;
}

static int watch(conn_t *c, uint32_t want) {
    struct epoll_event ev = { .events = want, .data.ptr = c };
    if (epoll_ctl(c->tp->epoll, EPOLL_CTL_ADD, c->fd, &ev) != 0) return -1;
    c->interest = want;
    return 0;
}

static void count_state(rg_tp_t *tp, conn_state_t s, int by) {
    uint32_t d = (uint32_t)by;
    if (s == CONN_STRANGER) tp->n_strangers += d;
    if (s == CONN_PARKED) tp->n_parked += d;
    if (s == CONN_VISITOR) tp->n_visitors += d;
    if (s == CONN_DIALING || s == CONN_SECURING || s == CONN_GREETING || s == CONN_STRANGER) tp->n_handshakes += d;
    if (s == CONN_RAIL) tp->n_rails += d;
    if (s == CONN_HALF || s == CONN_RELAY) tp->n_relays += d;
}

static void set_state(conn_t *c, conn_state_t s) {
    count_state(c->tp, c->state, -1);
    c->state = s;
    count_state(c->tp, s, 1);
}

static conn_t *conn_new(rg_tp_t *tp, conn_state_t s, int fd) {
    conn_t *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->ev = EV_CONN;
    c->tp = tp;
    c->fd = fd;
    c->state = s;
    c->backoff_ns = BACKOFF_FIRST_NS;
    c->deadline = c->retry_at = NEVER;
    c->prev = tp->conns_tail;
    *tp->conns_tail = c;
    tp->conns_tail = &c->next;
    count_state(tp, s, 1);
    return c;
}

void rgt_conn_close(conn_t *c) {
    rg_tp_t *tp = c->tp;
    if (c->state == CONN_DEAD) return;
    rg_tls_free(c->tls);
    c->tls = NULL;
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    free(c->rbuf);
    free(c->tx_private);
    c->rbuf = c->tx_private = NULL;
    if (c->saved) tp->n_saved--;
    free(c->saved);
    c->saved = NULL;
    if (c->healer) { /* whichever of the two it is */
        conn_t *rail = c->healer;
        c->healer = rail->healer = NULL;
        if (rail->state == CONN_BROKEN && rail->retry_at == NEVER) rgt_heal_later(rail);
    }
    if (c->mate) c->mate->mate = NULL;
    c->mate = NULL;
    rgt_kept_free(c);
    c->link = NULL;
    set_state(c, CONN_DEAD);
    *c->prev = c->next;
    if (c->next) c->next->prev = c->prev;
    else tp->conns_tail = c->prev;
    c->next = tp->grave;
    tp->grave = c;
}

void rgt_bury(rg_tp_t *tp) {
    while (tp->grave) {
        conn_t *c = tp->grave;
        tp->grave = c->next;
        free(c);
    }
}

/* ---- Socket options ---- */

static void set_buffer(int fd, int force, int plain, int bytes) {
    if (setsockopt(fd, SOL_SOCKET, force, &bytes, sizeof bytes) != 0)
        setsockopt(fd, SOL_SOCKET, plain, &bytes, sizeof bytes);
}

/* Keepalive finds an idle peer that has vanished where this process does not get to ask for a sign of life itself, as
 * watch_liveness() does: the kernel asks once a second and does not repeat what was lost on the way, so that one answer
 * that is missing means nothing. TCP_USER_TIMEOUT is not used for one that vanishes while bytes are under way: Linux
 * also applies it to a peer that is alive and merely does not read for a while (a closed window), and waiting for a
 * slow reader is not a fault. watch_liveness() tells the two apart. */
static void set_options(rg_tp_t *tp, int fd) {
    int one = 1, idle = 1, interval = 1, count = (int)(tp->conf.heartbeat_ms / 1000) - 1;
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    if (count < KEEPALIVES_LEAST) count = KEEPALIVES_LEAST;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    /* Keeps retransmissions and window probes frequent (Linux 6.15 and later), so that a line which works again is seen
     * to before the time is over. Without it a peer that vanishes while its window is closed is found later, but it is
     * found. What is small is sent again at even distances at first, as it is all there is to go by. */
    int rto_ms = tp->conf.heartbeat_ms > 8000 ? (int)tp->conf.heartbeat_ms / 8 : 1000;
    setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &one, sizeof one);
    tp->rto_max_ms =
        setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &rto_ms, sizeof rto_ms) == 0 ? (uint32_t)rto_ms : RTO_MAX_MS;
    int local =
        getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && rg_os_is_local_address((struct sockaddr *)&peer);
    /* The kernel's own sizing suits long links; within a host a fixed size avoids its slow start. */
    int bytes = tp->conf.socket_buffer_bytes ? (int)tp->conf.socket_buffer_bytes : local ? LOCAL_BUFFER : 0;
    if (bytes) {
        set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, bytes);
        set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, bytes);
    }
    if (strcmp(tp->congestion, "auto") != 0)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, tp->congestion, (socklen_t)strlen(tp->congestion));
}

rg_status_t rgt_check_congestion(rg_tp_t *tp, rg_error_t *err) {
    snprintf(tp->congestion, sizeof tp->congestion, "%s",
             tp->conf.tcp_congestion && tp->conf.tcp_congestion[0] ? tp->conf.tcp_congestion : "auto");
    if (strcmp(tp->congestion, "auto") == 0) return RG_OK;
    int fd = socket(tp->families[0], SOCK_STREAM | SOCK_CLOEXEC, 0), e = 0;
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, tp->congestion, (socklen_t)strlen(tp->congestion)) != 0)
        e = errno;
    if (fd >= 0) close(fd);
    return e ? rg_fail(err, RG_ERR_INVALID, e,
                       "tcp_congestion \"%s\" cannot be used: %s; this host offers what "
                       "/proc/sys/net/ipv4/tcp_available_congestion_control lists, or choose \"auto\"",
                       tp->congestion, strerror(e))
             : RG_OK;
}

/* ---- Links ---- */

void rgt_link_clear(rg_tp_t *tp, link_t *l) {
    conn_t *next;
    for (uint32_t r = 0; r < l->rails; r++)
        if (l->rail[r]) rgt_kept_free(l->rail[r]); /* nothing will be sent again */
    for (conn_t *c = tp->conns; c; c = next) {
        next = c->next;
        if (c->link != l) continue;
        if (c->tx_op && --c->tx_op->in_flight == 0 && c->tx_op->cut) rgt_send_done(tp, l, c->tx_op, RG_TP_GONE);
        c->tx_op = NULL;
        rgt_conn_close(c);
    }
    memset(l->rail, 0, sizeof l->rail);
    l->rails_up = 0;
    l->stalled = 0;
    while (l->send_head) {
        send_op_t *op = l->send_head;
        l->send_head = op->next;
        rgt_send_done(tp, l, op, RG_TP_GONE);
    }
    l->send_tail = &l->send_head;
    while (l->recv_head) {
        recv_op_t *op = l->recv_head;
        rgt_recv_unlink(l, op);
        rgt_recv_done(tp, l, op, RG_TP_GONE, NULL);
    }
    while (l->unasked) rgt_unasked_free(l, l->unasked);
    if (l->note_dirty) tp->n_notes--;
    l->note_dirty = l->note_owed = 0;
    l->acks_owed = 0;
}

void rgt_link_fail(rg_tp_t *tp, link_t *l, const char *fmt, ...) {
    if (l->state == LINK_DOWN || l->state == LINK_FREE) return;
    char text[sizeof l->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(l->text, text, sizeof text);
    rgt_link_clear(tp, l);
    l->state = LINK_DOWN;
    rg_completion_t *c = rg_ring_push(&tp->ring);
    c->event = RG_TP_LINK_DOWN;
    c->status = RG_TP_GONE;
    c->link = l->index;
    c->text = l->text;
    rgt_log(tp, RG_LOG_INFO, 0, "tcp: link %u down: %s", l->index, l->text);
}

static void rail_up(rg_tp_t *tp, link_t *l, conn_t *c, uint32_t rail) {
    c->link = l;
    c->rail = rail;
    c->rbuf = malloc(READ_BUFFER);
    if (!c->rbuf) {
        rgt_link_fail(tp, l, "out of memory for a connection's buffer");
        return;
    }
    set_state(c, CONN_RAIL);
    c->deadline = NEVER;
    c->app_acks = l->resume && (c->relayed || c->tls);
    l->rail[rail] = c;
    /* Bytes that come before all rails are there wait in the kernel. */
    rgt_interest(c, EPOLLRDHUP);
    if (++l->rails_up < l->rails) return;
    l->state = LINK_UP;
    l->near = NEAR_UNKNOWN;
    uint64_t now = rg_os_now_ns();
    for (uint32_t r = 0; r < l->rails; r++) {
        rgt_interest(l->rail[r], EPOLLIN | EPOLLRDHUP);
        rgt_tune_begin(l->rail[r]);
        l->rail[r]->deadline = now + tp->conf.heartbeat_ms * 250000ull;
        rgt_timer_at(tp, l->rail[r]->deadline);
    }
    rg_completion_t *done = rg_ring_push(&tp->ring);
    done->event = RG_TP_LINK_UP;
    done->link = l->index;
    done->note = c->relayed;
    if (tp->note_seq) l->note_owed = 1;
    rgt_push(tp, l);
}

/* ---- Dialling ---- */

static void dial_later(conn_t *c, const char *why, int e) {
    link_t *l = c->link;
    if (c->healer) {
        rgt_heal_failed(c, why, e);
        return;
    }
    if (c->probe) {
        rgt_conn_close(c);
        return;
    }
    int count;
    const struct sockaddr_storage *at = rgt_target(c, &count);
    char addr[80] = "?";
    if (c->addr_index < count) rg_os_addr_text((const struct sockaddr *)&at[c->addr_index], addr, sizeof addr);
    snprintf(l->text, sizeof l->text, "%s: %s", addr, e ? strerror(e) : why);
    c->met = 0;
    rg_tls_free(c->tls); /* `why` may have been its */
    c->tls = NULL;
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->interest = 0;
    c->hello_n = 0;
    set_state(c, CONN_DIALING);
    c->deadline = NEVER;
    c->retry_at = rg_os_now_ns();
    if (++c->addr_index >= count) {
        c->addr_index = 0;
        c->retry_at += c->backoff_ns;
        c->backoff_ns = c->backoff_ns * 2 > BACKOFF_MOST_NS ? BACKOFF_MOST_NS : c->backoff_ns * 2;
    }
    rgt_timer_at(c->tp, c->retry_at);
}

static void dial_try(conn_t *c) {
    link_t *l = c->link;
    rg_error_t err = { 0 };
    uint64_t now = rg_os_now_ns();
    c->retry_at = NEVER;
    int count;
    const struct sockaddr_storage *at = rgt_target(c, &count);
    if (c->addr_index >= count) { /* the relay cannot be dialled from here */
        dial_later(c, "no address", 0);
        return;
    }
    at += c->addr_index;
    c->fd = rg_os_connect((const struct sockaddr *)at, rgt_salen(at), &err);
    if (c->fd < 0) {
        c->fd = -1;
        dial_later(c, err.text, err.sys_errno);
        return;
    }
    if (watch(c, EPOLLOUT) != 0) {
        dial_later(c, "epoll", errno);
        return;
    }
    /* A host that swallows our SYN must leave time for the peer's other addresses. */
    if (c->healer || c->probe) c->deadline = now + c->patience_ns;
    else c->deadline = count > 1 ? now + (l->timeout_ms * 1000000ull) / (unsigned)(2 * count) : NEVER;
    rgt_timer_at(c->tp, c->deadline);
}

rg_status_t rgt_dial(rg_tp_t *tp, link_t *l, rg_error_t *err) {
    for (uint32_t r = 0; r < l->rails; r++) {
        conn_t *c = conn_new(tp, CONN_DIALING, -1);
        if (!c) {
            rgt_link_clear(tp, l);
            l->state = LINK_FREE;
            return rg_fail(err, RG_ERR_NOMEM, 0, "no memory for a connection");
        }
        c->link = l;
        c->rail = r;
        dial_try(c);
    }
    return RG_OK;
}

int rgt_hello_send(conn_t *c, const hello_t *h) {
    uint8_t out[HELLO_BYTES];
    rgt_hello_put(out, h);
    return rg_net_send(c->fd, c->tls, out, sizeof out) == (ssize_t)sizeof out && !rg_net_unsent(c->tls) ? 0 : -1;
}

void rgt_dial_greet(conn_t *c) {
    rg_tp_t *tp = c->tp;
    link_t *l = c->link;
    int relay = c->relayed && !c->met, resume = !relay && c->healer;
    hello_t h = { .kind = relay                ? HELLO_RELAY
                          : resume || c->probe ? HELLO_RESUME
                                               : HELLO_DIAL,
                  .attempt = l->attempt,
                  .rail = (uint16_t)c->rail,
                  .rails = (uint16_t)(l->rails ? l->rails : tp->conf.rails), /* who waits is not told before */
                  .taken = resume ? c->healer->rx_off : 0,
                  .tries = resume ? ++c->healer->tries : 0 };
    memcpy(h.nonce, tp->cfg.nonce, 16);
    memcpy(h.from, tp->cfg.identity, 16);
    memcpy(h.to, l->identity, 16);
    errno = 0;
    if (rgt_hello_send(c, &h) != 0) {
        dial_later(c, "the greeting could not be sent", errno);
        return;
    }
    if (!c->healer && !c->probe) c->deadline = NEVER;
    set_state(c, CONN_GREETING);
    rgt_interest(c, EPOLLIN | EPOLLRDHUP);
}

static void dial_secure(conn_t *c) {
    int rc = rg_tls_handshake(c->tls);
    if (rc > 0) rgt_dial_greet(c);
    else if (rc < 0) dial_later(c, rg_tls_why(c->tls), 0);
    else rgt_interest(c, EPOLLIN | EPOLLRDHUP | (rg_net_unsent(c->tls) ? (uint32_t)EPOLLOUT : 0));
}

static void dial_connected(conn_t *c) {
    rg_tp_t *tp = c->tp;
    int e = 0;
    socklen_t len = sizeof e;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &len) != 0) e = errno;
    if (e) {
        dial_later(c, "", e);
        return;
    }
    /* A port of our own range may have connected to itself (simultaneous open): the greeting would come back to us and
     * be refused, so nothing special is needed. */
    set_options(tp, c->fd);
    if (!tp->cfg.tls) {
        rgt_dial_greet(c);
        return;
    }
    c->tls = rg_tls_new(tp->cfg.tls, c->fd, 0, 1);
    if (!c->tls) {
        dial_later(c, "no memory for TLS", 0);
        return;
    }
    if (!c->healer && !c->probe) c->deadline = NEVER;
    set_state(c, CONN_SECURING);
    dial_secure(c);
}

/* Reads what is missing of a greeting: 1 when it is whole, 0 when more must come, -1 when the connection is over. */
static int greeting_read(conn_t *c) {
    while (c->hello_n < HELLO_BYTES) {
        ssize_t n = rg_net_recv(c->fd, c->tls, c->hello_bytes + c->hello_n, HELLO_BYTES - c->hello_n);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
        if (n == 0) {
            errno = 0;
            return -1;
        }
        c->hello_n += (uint32_t)n;
    }
    return 1;
}

int rgt_greeting_fits(const conn_t *c, const hello_t *h) {
    const link_t *l = c->link;
    return memcmp(h->nonce, c->tp->cfg.nonce, 16) == 0 && memcmp(h->from, l->identity, 16) == 0 &&
           memcmp(h->to, c->tp->cfg.identity, 16) == 0 && h->attempt == l->attempt && h->rail == c->rail;
}

static void dial_answered(conn_t *c) {
    rg_tp_t *tp = c->tp;
    link_t *l = c->link;
    hello_t h;
    int got = greeting_read(c);
    if (got < 0 && *rg_tls_why(c->tls)) {
        dial_later(c, rg_tls_why(c->tls), 0);
        return;
    }
    if (got < 0) {
        dial_later(
            c,
            "the other side closed the connection in the handshake: it is another program, version or group, or has "
            "not been told of this process",
            errno);
        return;
    }
    if (got == 0) return;
    int sound = rgt_hello_get(c->hello_bytes, &h) == 0;
    if (sound && c->relayed && !c->met) {
        if (h.kind == HELLO_RELAYED && rgt_greeting_fits(c, &h)) rgt_relay_met(tp, c);
        else dial_later(c, "the peer that is to relay has not been asked to, or the other end is not there yet", 0);
        return;
    }
    if (sound && (c->healer || c->probe)) {
        rgt_heal_answered(tp, c, &h);
        return;
    }
    if (!sound || h.kind != HELLO_ACK || !rgt_greeting_fits(c, &h)) {
        dial_later(c, "another process answers there", 0);
        return;
    }
    rail_up(tp, l, c, c->rail);
}

/* ---- Accepting ---- */

rg_status_t rgt_listen(rg_tp_t *tp, const struct sockaddr_storage *addr, int n, uint8_t *blob, uint32_t *blob_len,
                       rg_error_t *err) {
    struct sockaddr_storage told[ADDRS_MAX];
    static const sa_family_t families[2] = { AF_INET, AF_INET6 };
    int count = 0;
    for (int f = 0; f < 2; f++) {
        struct sockaddr_storage at, bound;
        int having = 0;
        for (int i = 0; i < n; i++)
            if (addr[i].ss_family == families[f] && having++ == 0) at = addr[i];
        if (having == 0) continue;
        /* One address: nobody can come by another way. Several: all, since a socket can have only one or all. */
        if (families[f] == AF_INET) {
            ((struct sockaddr_in *)&at)->sin_port = htons((uint16_t)tp->conf.listen_port);
            if (having > 1) ((struct sockaddr_in *)&at)->sin_addr.s_addr = htonl(INADDR_ANY);
        } else {
            ((struct sockaddr_in6 *)&at)->sin6_port = htons((uint16_t)tp->conf.listen_port);
            if (having > 1) ((struct sockaddr_in6 *)&at)->sin6_addr = in6addr_any;
        }
        rg_error_t why = { RG_OK, 0, "" };
        int fd = rg_os_listen((struct sockaddr *)&at, rgt_salen(&at), &bound, &why);
        /* An IPv6 address may still be in the check for duplicates, soon after the interface came up. */
        if (fd < 0 && why.sys_errno == EADDRNOTAVAIL && tp->listeners > 0) {
            rgt_log(tp, RG_LOG_WARN, 0, "tcp: only IPv4 is used: %s", why.text);
            continue;
        }
        if (fd < 0) {
            if (err) *err = why;
            return (rg_status_t)fd;
        }
        listener_t *ls = &tp->listen[tp->listeners];
        ls->ev = EV_LISTENER;
        ls->fd = fd;
        tp->families[tp->listeners++] = families[f];
        struct epoll_event ev = { .events = EPOLLIN, .data.ptr = ls };
        if (epoll_ctl(tp->epoll, EPOLL_CTL_ADD, fd, &ev) != 0)
            return rg_fail(err, RG_ERR_SYSTEM, errno, "cannot watch the listening socket: %s", strerror(errno));
        for (int i = 0; i < n && count < ADDRS_MAX; i++) {
            if (addr[i].ss_family != families[f]) continue;
            told[count] = addr[i];
            if (families[f] == AF_INET)
                ((struct sockaddr_in *)&told[count])->sin_port = ((struct sockaddr_in *)&bound)->sin_port;
            else ((struct sockaddr_in6 *)&told[count])->sin6_port = ((struct sockaddr_in6 *)&bound)->sin6_port;
            if (families[f] == AF_INET6 && ((const struct sockaddr_in6 *)&addr[i])->sin6_scope_id)
                tp->scope = ((const struct sockaddr_in6 *)&addr[i])->sin6_scope_id;
            count++;
        }
    }
    tp->inward = count > 0 && rg_os_is_loopback((struct sockaddr *)&told[0]);
    *blob_len = rgt_blob_put(blob, told, count, tp->conf.dial == RG_DIAL_OUT);
    return RG_OK;
}

static void stranger_close(conn_t *c, const char *why) {
    if (c->met) { /* no stranger, but an end that a relay brought here */
        dial_later(c, why, 0);
        return;
    }
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    char text[80] = "?";
    if (getpeername(c->fd, (struct sockaddr *)&peer, &len) == 0)
        rg_os_addr_text((struct sockaddr *)&peer, text, sizeof text);
    rgt_log(c->tp, RG_LOG_WARN, 1, "tcp: connection from %s closed: %s", text, why);
    rgt_conn_close(c);
}

static void evict_oldest(rg_tp_t *tp, conn_state_t s, const char *why) {
    for (conn_t *c = tp->conns; c; c = c->next)
        if (c->state == s) {
            stranger_close(c, why);
            return;
        }
}

static void adopt(rg_tp_t *tp, link_t *l, conn_t *c) {
    hello_t h = c->hello;
    if (l->attempt != h.attempt) {
        for (uint32_t r = 0; r < RAILS_MAX; r++)
            if (l->rail[r]) rgt_conn_close(l->rail[r]);
        memset(l->rail, 0, sizeof l->rail);
        l->rails_up = 0;
        l->attempt = h.attempt;
        l->rails = h.rails;
    }
    if (h.rails != l->rails || l->rail[h.rail]) {
        stranger_close(c, "its greeting contradicts an earlier one");
        return;
    }
    h.kind = HELLO_ACK;
    memcpy(h.to, h.from, 16);
    memcpy(h.from, tp->cfg.identity, 16);
    set_options(tp, c->fd);
    if (rgt_hello_send(c, &h) != 0) {
        stranger_close(c, "the answer to its greeting could not be sent");
        return;
    }
    rail_up(tp, l, c, h.rail);
}

/* The peer's newest attempt counts: an older one is a connection that it has given up. */
void rgt_adopt_parked(rg_tp_t *tp, link_t *l) {
    conn_t *next, *newest = NULL;
    if (!tp->nonce_known) return;
    for (conn_t *c = tp->conns; c; c = next) {
        uint8_t byte;
        next = c->next;
        if (c->state != CONN_PARKED || memcmp(c->hello.from, l->identity, 16) != 0) continue;
        if (recv(c->fd, &byte, 1, MSG_PEEK) == 0) rgt_conn_close(c);
        else newest = c;
    }
    if (!newest) return;
    uint64_t attempt = newest->hello.attempt;
    for (conn_t *c = tp->conns; c; c = next) {
        next = c->next;
        if (c->state != CONN_PARKED || memcmp(c->hello.from, l->identity, 16) != 0) continue;
        if (c->hello.attempt == attempt && l->state == LINK_WAITING) adopt(tp, l, c);
        else if (c->hello.attempt != attempt) rgt_conn_close(c);
    }
}

static link_t *link_waiting_for(rg_tp_t *tp, const uint8_t id[16]) {
    for (uint32_t i = 0; i < tp->n_links; i++)
        if (tp->links[i] && tp->links[i]->state == LINK_WAITING && memcmp(tp->links[i]->identity, id, 16) == 0)
            return tp->links[i];
    return NULL;
}

/* Only where the link is known to be lost: before that the greeting may be one from before it. */
static link_t *link_to_begin_anew(rg_tp_t *tp, const hello_t *h) {
    for (uint32_t i = 0; i < tp->n_links; i++) {
        link_t *l = tp->links[i];
        if (l && l->state == LINK_UP && l->lost && !l->dial && l->attempt != h->attempt &&
            memcmp(l->identity, h->from, 16) == 0)
            return l;
    }
    return NULL;
}

int rgt_begun_anew(rg_tp_t *tp, const link_t *l) {
    for (conn_t *c = tp->n_parked ? tp->conns : NULL; c; c = c->next)
        if (c->state == CONN_PARKED && link_to_begin_anew(tp, &c->hello) == l) return 1;
    return 0;
}

/* A greeting is whole: adopt, park, or close. */
static void greeted(rg_tp_t *tp, conn_t *c) {
    if (tp->nonce_known && memcmp(c->hello.nonce, tp->cfg.nonce, 16) != 0) {
        stranger_close(c, "it belongs to another group");
        return;
    }
    if (c->hello.kind == HELLO_RESUME) {
        rgt_heal_asked(tp, c);
        return;
    }
    if (c->hello.kind == HELLO_RELAY) {
        rgt_relay_asked(tp, c);
        return;
    }
    link_t *l = tp->nonce_known ? link_waiting_for(tp, c->hello.from) : NULL;
    if (l) {
        adopt(tp, l, c);
        return;
    }
    if (c->state == CONN_PARKED) return;
    if (tp->n_parked >= PARKED_MAX)
        evict_oldest(tp, CONN_PARKED, "too many peers wait that this process has not been told of");
    set_state(c, CONN_PARKED);
    c->deadline = rg_os_now_ns() + PARKED_NS;
    rgt_timer_at(tp, c->deadline);
    rgt_interest(c, EPOLLRDHUP);
    l = tp->nonce_known ? link_to_begin_anew(tp, &c->hello) : NULL;
    if (l) rgt_link_fail(tp, l, "%s", RGT_BEGUN_ANEW);
}

/* A frame of the control protocol: its length, then the word that every message begins with, or that of a question. */
static int is_visitor(const conn_t *c) {
    const uint8_t *p = c->hello_bytes;
    return c->hello_n >= 6 && !p[2] && !p[3] && (memcmp(p + 4, "GR", 2) == 0 || memcmp(p + 4, "RG", 2) == 0);
}

static int may_be_visitor(const conn_t *c) { return c->hello_n < 6 && !c->hello_bytes[2] && !c->hello_bytes[3]; }

static void visit(rg_tp_t *tp, conn_t *c) {
    if (tp->n_visitors >= VISITORS_MAX) evict_oldest(tp, CONN_VISITOR, "too many wait for a coordinator here");
    set_state(c, CONN_VISITOR);
    rgt_interest(c, 0); /* what it says next is for whoever takes it */
}

int rgt_visitor(rg_tp_t *tp, rg_tp_visitor_t *out) {
    conn_t *c = tp->n_visitors ? tp->conns : NULL;
    while (c && c->state != CONN_VISITOR) c = c->next;
    if (!c) return 0;
    epoll_ctl(tp->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    out->fd = c->fd;
    out->len = c->hello_n;
    memcpy(out->head, c->hello_bytes, c->hello_n);
    c->fd = -1;
    rgt_conn_close(c);
    return 1;
}

/* 1 when the stranger has proved that it may be here; 0: not yet, or it has been closed. */
static int stranger_secure(rg_tp_t *tp, conn_t *c) {
    if (!c->tls) {
        rg_tls_look_t look = rg_tls_look(c->fd);
        if (look == RG_TLS_LOOK_GONE) stranger_close(c, "it left without a greeting");
        else if (look == RG_TLS_LOOK_OTHER)
            stranger_close(c, "it does not speak TLS, which this process asks for (RG_TLS)");
        if (look == RG_TLS_LOOK_HELLO && rg_tls_is_control(c->fd)) visit(tp, c); /* who takes it goes on with TLS */
        if (look != RG_TLS_LOOK_HELLO || c->state == CONN_VISITOR) return 0;
        c->tls = rg_tls_new(tp->cfg.tls, c->fd, 1, 1);
        if (!c->tls) {
            stranger_close(c, "more handshakes begin than are allowed in a second, or there is no memory for them");
            return 0;
        }
    }
    int rc = rg_tls_handshake(c->tls);
    if (rc < 0) stranger_close(c, rg_tls_why(c->tls));
    if (rc == 0) rgt_interest(c, EPOLLIN | EPOLLRDHUP | (rg_net_unsent(c->tls) ? (uint32_t)EPOLLOUT : 0));
    return rc > 0;
}

static void stranger_read(rg_tp_t *tp, conn_t *c) {
    if (tp->cfg.tls && !stranger_secure(tp, c)) return;
    int got = greeting_read(c);
    if (got >= 0 && is_visitor(c) && !c->tls) {
        visit(tp, c);
    } else if (got < 0) {
        stranger_close(c, *rg_tls_why(c->tls) ? rg_tls_why(c->tls) : "it left without a greeting");
    } else if (!c->tls && rg_tls_is_hello(c->hello_bytes, c->hello_n)) {
        stranger_close(c, "it speaks TLS, which this process was not told to use (RG_TLS)");
    } else if (got == 1) {
        if (rgt_hello_get(c->hello_bytes, &c->hello) != 0 ||
            (c->hello.kind != HELLO_DIAL && c->hello.kind != HELLO_RESUME && c->hello.kind != HELLO_RELAY))
            stranger_close(c, "it does not speak this protocol, or another version of it");
        else if ((c->hello.kind != HELLO_RELAY && memcmp(c->hello.to, tp->cfg.identity, 16) != 0) ||
                 memcmp(c->hello.from, tp->cfg.identity, 16) == 0)
            stranger_close(c, "it looks for another process");
        else greeted(tp, c);
    } else if (c->hello_n >= 4 && memcmp(c->hello_bytes, "RHel", 4) != 0 && !may_be_visitor(c)) {
        stranger_close(c, "it does not speak this protocol");
    }
}

void rgt_nonce_known(rg_tp_t *tp) {
    conn_t *next;
    for (conn_t *c = tp->conns; c; c = next) {
        next = c->next;
        if (c->state == CONN_PARKED && memcmp(c->hello.nonce, tp->cfg.nonce, 16) != 0)
            stranger_close(c, "it belongs to another group");
    }
    for (uint32_t i = 0; i < tp->n_links; i++)
        if (tp->links[i] && tp->links[i]->state == LINK_WAITING) rgt_adopt_parked(tp, tp->links[i]);
}

/* Without a descriptor to accept into, the pending connection would keep the listening socket readable for ever. The
 * spare descriptor is given up to take it and close it; if even that fails the socket rests for a while. */
static void no_descriptors(rg_tp_t *tp, listener_t *ls) {
    rgt_log(tp, RG_LOG_WARN, 1,
            "tcp: a connection was refused: no file descriptors are left; raise the limit (ulimit -n)");
    if (tp->spare_fd >= 0) {
        close(tp->spare_fd);
        int fd = rg_os_high(accept4(ls->fd, NULL, NULL, SOCK_CLOEXEC));
        if (fd >= 0) close(fd);
        tp->spare_fd = rg_os_high(epoll_create1(EPOLL_CLOEXEC));
        if (fd >= 0) return;
    }
    struct epoll_event ev = { .events = 0, .data.ptr = ls };
    epoll_ctl(tp->epoll, EPOLL_CTL_MOD, ls->fd, &ev);
    ls->paused = 1;
    tp->resume_listen = rg_os_now_ns() + 100000000ull;
    rgt_timer_at(tp, tp->resume_listen);
}

void rgt_accept(rg_tp_t *tp, listener_t *ls) {
    /* A bounded number at a time, so that a flood cannot hold up the links. */
    for (int i = 0; i < 16; i++) {
        int fd = rg_os_high(accept4(ls->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (fd < 0) {
            if (rg_os_shortage(errno)) no_descriptors(tp, ls);
            if (errno == EINTR || errno == ECONNABORTED) continue;
            return;
        }
        if (tp->n_strangers >= STRANGERS_MAX)
            evict_oldest(tp, CONN_STRANGER, "too many connections without a greeting");
        conn_t *c = conn_new(tp, CONN_STRANGER, fd);
        if (!c) {
            close(fd);
            return;
        }
        if (watch(c, EPOLLIN | EPOLLRDHUP) != 0) {
            rgt_conn_close(c);
            return;
        }
        c->deadline = rg_os_now_ns() + STRANGER_NS;
        rgt_timer_at(tp, c->deadline);
        stranger_read(tp, c); /* the greeting is mostly there already */
    }
}

void rgt_handshake(rg_tp_t *tp, conn_t *c, uint32_t events) {
    if (c->state == CONN_DIALING) dial_connected(c);
    else if (c->state == CONN_SECURING) dial_secure(c);
    else if (c->state == CONN_GREETING) dial_answered(c);
    else if (c->state == CONN_STRANGER) stranger_read(tp, c);
    else if (c->state == CONN_RELAY) rgt_relay_event(tp, c, events);
    else if ((c->state == CONN_PARKED || c->state == CONN_HALF) && (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)))
        rgt_conn_close(c);
    else if (c->state == CONN_VISITOR && (events & (EPOLLHUP | EPOLLERR)))
        rgt_conn_close(c); /* it has gone before anybody took it; epoll would say so without end */
}

/* ---- Timers ---- */

/* A frame that says nothing. The kernel sends it again until it is acknowledged, so that a line which loses packets, or
 * fails for less than the time allowed, is none that is broken. Where it would wait ever longer before it does so, and
 * keepalive has several tries a second apart, those are better. */
static void ask_for_sign(conn_t *c, uint64_t now) {
    const rg_tp_t *tp = c->tp;
    if (tp->rto_max_ms == RTO_MAX_MS && tp->conf.heartbeat_ms / 1000 > KEEPALIVES_LEAST) return;
    if (c->asked || c->state != CONN_RAIL || c->link->state != LINK_UP) return;
    c->asked = 1;
    c->retry_at = now;
    if (c->ack_owed) return;
    c->ack_owed = 1;
    c->link->acks_owed++;
}

/* The sign has come, however long ago: this process may not have come to look, and may have sent something since. An
 * acknowledgement before that one was longer ago than the kernel's times are inexact. */
static int has_answered(const conn_t *c, const struct tcp_info *ti, uint64_t about_last) {
    if (c->ack_owed || rgt_tx_pending(c)) return 0;
    return about_last > c->retry_at || (ti->tcpi_unacked == 0 && ti->tcpi_probes == 0);
}

/* A peer that is alive acknowledges, even when it does not read: its kernel answers data and window probes alike. One
 * that has nothing to acknowledge is asked, and has all the time from then on: less would be too few of the kernel's
 * tries. All rails are looked at together, so that many that are idle wake this process no more often than one. */
static void watch_liveness(rg_tp_t *tp, conn_t *c, uint64_t now) {
    struct tcp_info ti;
    socklen_t len = sizeof ti;
    uint64_t allowed = tp->conf.heartbeat_ms * 1000000ull;
    uint64_t quiet = allowed / 4 < QUIET_NS ? allowed / 4 : QUIET_NS, step = quiet / 2 + 1;
    rgt_kept_trim(c); /* what an idle link keeps is soon acknowledged */
    if (c->relayed) rgt_heal_probe(tp, c, now);
    memset(&ti, 0, sizeof ti);
    c->deadline = (now / step + 1) * step;
    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &ti, &len) != 0) return;
    uint64_t last = now - ti.tcpi_last_ack_recv * 1000000ull;
    uint32_t heard = ti.tcpi_last_ack_recv < ti.tcpi_last_data_recv ? ti.tcpi_last_ack_recv : ti.tcpi_last_data_recv;
    int still = heard * 1000000ull >= quiet; /* who is asked has heard of the other, too, and does not ask */
    if (c->asked && (!still || has_answered(c, &ti, last + step))) {
        c->asked = 0;
        c->retry_at = NEVER;
    }
    if (still && ti.tcpi_unacked == 0) ask_for_sign(c, now);
    if (ti.tcpi_unacked == 0 && ti.tcpi_probes == 0) {
        if (!c->asked) c->retry_at = NEVER;
        return;
    }
    if (c->retry_at == NEVER || last > c->retry_at)
        c->retry_at = last > now || c->retry_at == NEVER ? now : last; /* silent since */
    if (ti.tcpi_unacked == 0) { /* window probes become rare: two of them must have had their time */
        uint64_t probe = (uint64_t)ti.tcpi_rto * 1000u << (ti.tcpi_backoff > 10 ? 10 : ti.tcpi_backoff);
        uint64_t most = tp->rto_max_ms * 1000000ull;
        probe = 2 * (probe < most ? probe : most);
        allowed = probe > allowed ? probe : allowed;
    }
    if (now - c->retry_at > allowed && c->state == CONN_RELAY) rgt_relay_broken(c);
    else if (now - c->retry_at > allowed)
        rgt_rail_lost(tp, c, "the peer has not acknowledged anything for %llu ms",
                      (unsigned long long)((now - c->retry_at) / 1000000u));
}

/* For the file that makes broken connections again. */
void rgt_set_state(conn_t *c, conn_state_t s) { set_state(c, s); }
conn_t *rgt_conn_new(rg_tp_t *tp, conn_state_t s, int fd) { return conn_new(tp, s, fd); }
void rgt_set_options(rg_tp_t *tp, int fd) { set_options(tp, fd); }
void rgt_dial_try(conn_t *c) { dial_try(c); }
void rgt_dial_later(conn_t *c, const char *why, int e) { dial_later(c, why, e); }
int rgt_greeting_read(conn_t *c) { return greeting_read(c); }

static void conn_timer(rg_tp_t *tp, conn_t *c, uint64_t now) {
    switch (c->state) {
    case CONN_DIALING:
        if (c->retry_at <= now) dial_try(c);
        else if (c->deadline <= now) dial_later(c, "no answer", 0);
        break;
    case CONN_SECURING:
        if (c->deadline <= now) dial_later(c, "no answer in the TLS handshake", 0);
        break;
    case CONN_GREETING:
        if (c->deadline > now) break;
        dial_answered(c); /* an answer that has just come counts */
        if (c->state == CONN_GREETING && c->deadline <= now) dial_later(c, "no answer", 0);
        break;
    case CONN_BROKEN: rgt_heal_timer(tp, c, now); break;
    case CONN_STRANGER:
        if (c->deadline <= now) stranger_close(c, "it did not say who it is");
        break;
    case CONN_PARKED:
        if (c->deadline <= now) stranger_close(c, "this process was never told of it");
        break;
    case CONN_VISITOR:
        if (c->deadline <= now) stranger_close(c, "there is no coordinator here");
        break;
    case CONN_RAIL:
        if (c->deadline <= now) watch_liveness(tp, c, now);
        break;
    case CONN_RELAY:
        if (c->deadline <= now) watch_liveness(tp, c, now);
        break;
    case CONN_HALF:
        if (c->deadline <= now) rgt_conn_close(c); /* the other end does not come */
        break;
    default: break;
    }
}

static void link_timer(rg_tp_t *tp, link_t *l, uint64_t now) {
    if ((l->state != LINK_DIALING && l->state != LINK_WAITING) || l->deadline > now) return;
    if (l->outward && !l->via) {
        rgt_link_fail(tp, l, "both ends can only dial (RG_DIAL=out), and no third member has been found to relay");
    } else if (l->via) {
        rgt_link_fail(tp, l, "not connected through the member that relays within %u ms; last: %s", l->timeout_ms,
                      l->text[0] ? l->text : "no answer");
    } else if (l->state == LINK_WAITING) {
        rgt_link_fail(tp, l, "the peer did not connect to this process within %u ms", l->timeout_ms);
    } else {
        char addr[80], why[200];
        rg_os_addr_text((struct sockaddr *)&l->addr[0], addr, sizeof addr);
        snprintf(why, sizeof why, "%.199s", l->text[0] ? l->text : "no answer");
        int inward = !tp->inward && rg_os_is_loopback((struct sockaddr *)&l->addr[0]);
        rgt_link_fail(tp, l, "cannot connect to %s%s%s within %u ms; last: %s", addr,
                      inward ? " (that is the peer's own host only: give the peer a coordinator address or an "
                               "RG_INTERFACE that leads outside)"
                             : "",
                      l->addrs > 1 ? " or its other addresses" : "", l->timeout_ms, why);
    }
}

void rgt_timers(rg_tp_t *tp, uint64_t now) {
    conn_t *next;
    tp->next_timer = NEVER;
    for (conn_t *c = tp->conns; c; c = next) {
        next = c->next;
        conn_timer(tp, c, now);
        if (next && next->state == CONN_DEAD) {
            /* A link failed and took its other rails along; what is left is looked at in the next round. */
            tp->next_timer = now;
            break;
        }
    }
    for (uint32_t i = 0; i < tp->n_links; i++)
        if (tp->links[i]) link_timer(tp, tp->links[i], now);
    for (conn_t *c = tp->conns; c; c = c->next) {
        if (c->state != CONN_RAIL || c->deadline != NEVER) rgt_timer_at(tp, c->deadline);
        if (c->state == CONN_DIALING || (c->state == CONN_BROKEN && !c->healer)) rgt_timer_at(tp, c->retry_at);
    }
    for (uint32_t i = 0; i < tp->n_links; i++)
        if (tp->links[i] && (tp->links[i]->state == LINK_DIALING || tp->links[i]->state == LINK_WAITING))
            rgt_timer_at(tp, tp->links[i]->deadline);
    if (tp->resume_listen != NEVER && tp->resume_listen <= now) {
        for (int i = 0; i < tp->listeners; i++) {
            struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &tp->listen[i] };
            epoll_ctl(tp->epoll, EPOLL_CTL_MOD, tp->listen[i].fd, &ev);
            tp->listen[i].paused = 0;
        }
        tp->resume_listen = NEVER;
    }
    rgt_timer_at(tp, tp->resume_listen);
}
