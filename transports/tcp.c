/* tcp.c: the TCP transport: the table's functions, and the round that poll() makes. The parts are listed in
 * tcp_internal.h. With few rails poll() tries them directly, which saves a system call per message; with many it asks
 * epoll. Interest in events is brought up to date when the caller goes to sleep.
 * Relies on Linux (epoll, accept4). Must not block and must not allocate per message once it has warmed up. */
#include "tcp_internal.h"

#include <errno.h>
#include <linux/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PATIENCE 8 /* sweeps that a message without a receive may hold up those behind it */
#define QUIET_BYTES (64u << 10)
#define SWEEP_EVERY 64 /* polls between looks at what the direct way does not see */

/* ---- Log, ring, operations ---- */

void rgt_log(rg_tp_t *tp, rg_log_level_t level, int limited, const char *fmt, ...) {
    char line[480];
    if (!tp->cfg.log) return;
    if (limited) {
        uint64_t now = rg_os_now_ns();
        if (now < tp->log_at) {
            tp->log_muted++;
            return;
        }
        tp->log_at = now + 1000000000ull;
    }
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (limited && tp->log_muted && n > 0 && (size_t)n < sizeof line)
        snprintf(line + n, sizeof line - (size_t)n, " (and %u more like this)", tp->log_muted);
    if (limited) tp->log_muted = 0;
    tp->cfg.log(tp->cfg.log_user, level, line);
}

int rgt_ring_reserve(rg_tp_t *tp, uint32_t more) {
    /* Every operation ends once; a link can come up, be lost, seem to be gone, come back, and go down: between two
     * polls that is told once each. */
    return rg_ring_room(&tp->ring, (uint64_t)tp->ring.n + tp->n_ops + 5ull * tp->n_links + more);
}

void rgt_send_free(rg_tp_t *tp, send_op_t *op) {
    op->next = tp->free_sends;
    tp->free_sends = op;
    tp->n_ops--;
}

void rgt_recv_free(rg_tp_t *tp, recv_op_t *op) {
    op->next = tp->free_recvs;
    tp->free_recvs = op;
    tp->n_ops--;
}

static void op_done(rg_tp_t *tp, link_t *l, const void *op, rg_tp_event_t ok, rg_tp_status_t st, uint64_t cookie,
                    const rg_tag_t *tag) {
    if (op == tp->now_op && st == RG_TP_DONE) {
        tp->now_done = 1;
        return;
    }
    rg_completion_t *c = rg_ring_push(&tp->ring);
    c->event = st == RG_TP_DONE ? ok : RG_TP_FAILED;
    c->status = st;
    c->link = l->index;
    c->cookie = cookie;
    if (tag) c->tag = *tag;
}

void rgt_send_done(rg_tp_t *tp, link_t *l, send_op_t *op, rg_tp_status_t st) {
    if (op->kept) rgt_kept_detach(tp, l, op);
    op_done(tp, l, op, RG_TP_SENT, st, op->s.cookie, NULL);
    rgt_send_free(tp, op);
}

void rgt_recv_done(rg_tp_t *tp, link_t *l, recv_op_t *op, rg_tp_status_t st, const rg_tag_t *came) {
    op_done(tp, l, op, RG_TP_RECEIVED, st, op->r.cookie, came);
    rgt_recv_free(tp, op);
}

void rgt_recv_unlink(link_t *l, recv_op_t *op) {
    recv_op_t **at = &l->recv_head;
    while (*at != op) at = &(*at)->next;
    *at = op->next;
    if (l->recv_tail == &op->next) l->recv_tail = at;
    l->posted--;
}

static send_op_t *send_new(rg_tp_t *tp) {
    send_op_t *op = tp->free_sends;
    if (op) tp->free_sends = op->next;
    else if (!(op = malloc(sizeof *op))) return NULL;
    if (rgt_ring_reserve(tp, 1) != 0) {
        op->next = tp->free_sends;
        tp->free_sends = op;
        return NULL;
    }
    memset(op, 0, sizeof *op);
    tp->n_ops++;
    return op;
}

static recv_op_t *recv_new(rg_tp_t *tp) {
    recv_op_t *op = tp->free_recvs;
    if (op) tp->free_recvs = op->next;
    else if (!(op = malloc(sizeof *op))) return NULL;
    if (rgt_ring_reserve(tp, 1) != 0) {
        op->next = tp->free_recvs;
        tp->free_recvs = op;
        return NULL;
    }
    memset(op, 0, sizeof *op);
    tp->n_ops++;
    return op;
}

/* ---- Opening and closing ---- */

static void tcp_close(rg_tp_t *tp) {
    if (!tp) return;
    for (uint32_t i = 0; i < tp->n_links; i++)
        if (tp->links[i]) {
            if (tp->links[i]->state != LINK_FREE) rgt_link_clear(tp, tp->links[i]);
            free(tp->links[i]);
        }
    while (tp->conns) rgt_conn_close(tp->conns);
    rgt_bury(tp);
    for (int i = 0; i < tp->listeners; i++) close(tp->listen[i].fd);
    if (tp->spare_fd >= 0) close(tp->spare_fd);
    if (tp->epoll >= 0) close(tp->epoll);
    while (tp->free_sends) {
        send_op_t *op = tp->free_sends;
        tp->free_sends = op->next;
        free(op);
    }
    while (tp->free_recvs) {
        recv_op_t *op = tp->free_recvs;
        tp->free_recvs = op->next;
        free(op);
    }
    rgt_segments_free(tp);
    free(tp->relayed);
    free(tp->links);
    free(tp->ring.v);
    free(tp->staging);
    free(tp);
}

static rg_status_t open_parts(rg_tp_t *tp, uint8_t *addr, uint32_t *addr_len, rg_error_t *err) {
    struct sockaddr_storage own[ADDRS_MAX];
    int n = rg_os_local_addresses(tp->conf.interface, tp->cfg.remote_hint, own, ADDRS_MAX, err);
    if (n < 0) return (rg_status_t)n;
    tp->epoll = rg_os_high(epoll_create1(EPOLL_CLOEXEC));
    tp->spare_fd = rg_os_high(epoll_create1(EPOLL_CLOEXEC)); /* any descriptor will do */
    if (tp->epoll < 0 || tp->spare_fd < 0)
        return rg_fail(err, RG_ERR_SYSTEM, errno, "cannot make an epoll descriptor: %s", strerror(errno));
    tp->staging = aligned_alloc(4096, STAGING + 4096);
    if (!tp->staging || rgt_ring_reserve(tp, 256) != 0)
        return rg_fail(err, RG_ERR_NOMEM, 0, "no memory for the transport's buffers");
    /* Touched now, so that the first operation does not pay for the page faults. */
    memset(tp->staging, 0, STAGING);
    rg_status_t st = rgt_listen(tp, own, n, addr, addr_len, err);
    return st == RG_OK ? rgt_check_congestion(tp, err) : st;
}

static rg_status_t tcp_open(const rg_tp_config_t *config, rg_tp_t **out, uint8_t *addr, uint32_t *addr_len,
                            rg_error_t *err) {
    static const uint8_t no_nonce[16];
    *out = NULL;
    if (config->config->rails < 1 || config->config->rails > RAILS_MAX)
        return rg_fail(err, RG_ERR_INVALID, 0, "rails is %u; it must be from 1 to %d", config->config->rails,
                       RAILS_MAX);
    if (config->config->listen_port > 65535)
        return rg_fail(err, RG_ERR_INVALID, 0, "listen_port is %u; a port is at most 65535",
                       config->config->listen_port);
    rg_tp_t *tp = calloc(1, sizeof *tp);
    if (!tp) return rg_fail(err, RG_ERR_NOMEM, 0, "no memory for the transport");
    tp->cfg = *config;
    tp->conf = *config->config;
    if (tp->conf.heartbeat_ms == 0) tp->conf.heartbeat_ms = 2000;
    tp->epoll = tp->spare_fd = -1;
    tp->conns_tail = &tp->conns;
    tp->next_timer = tp->resume_listen = NEVER;
    tp->nonce_known = memcmp(config->nonce, no_nonce, 16) != 0;
    rg_status_t st = rg_os_random(&tp->secret, sizeof tp->secret) == RG_OK
                         ? open_parts(tp, addr, addr_len, err)
                         : rg_fail(err, RG_ERR_SYSTEM, errno, "no random numbers: %s", strerror(errno));
    /* Strings belong to the caller; what is needed of them has been copied. */
    tp->cfg.config = NULL;
    tp->cfg.remote_hint = NULL;
    if (st != RG_OK) {
        tcp_close(tp);
        return st;
    }
    *out = tp;
    return RG_OK;
}

static void tcp_set_nonce(rg_tp_t *tp, const uint8_t nonce[16]) {
    memcpy(tp->cfg.nonce, nonce, 16);
    tp->nonce_known = 1;
    rgt_nonce_known(tp);
    rgt_bury(tp);
}

/* ---- Links ---- */

static link_t *link_at(rg_tp_t *tp, uint32_t index) { return index < tp->n_links ? tp->links[index] : NULL; }

static link_t *link_new(rg_tp_t *tp, uint32_t index) {
    if (index >= tp->n_links) {
        uint32_t n = tp->n_links ? tp->n_links : 8;
        while (n <= index) n *= 2;
        link_t **more = realloc(tp->links, n * sizeof(*more));
        if (!more) return NULL;
        memset(more + tp->n_links, 0, (n - tp->n_links) * sizeof(*more));
        tp->links = more;
        tp->n_links = n;
    }
    if (!tp->links[index]) tp->links[index] = malloc(sizeof(link_t));
    link_t *l = tp->links[index];
    if (!l) return NULL;
    memset(l, 0, sizeof *l);
    l->index = index;
    l->send_tail = &l->send_head;
    l->recv_tail = &l->recv_head;
    return l;
}

static const char *family_name(sa_family_t f) { return f == AF_INET ? "IPv4" : "IPv6"; }

int rgt_addresses(const rg_tp_t *tp, const rg_tp_peer_t *peer, struct sockaddr_storage out[ADDRS_MAX],
                  rg_error_t *err) {
    struct sockaddr_storage all[ADDRS_MAX];
    int n = rgt_blob_get(peer->addr, peer->addr_len, all), reachable = 0;
    if (rgt_blob_outward(peer->addr, peer->addr_len))
        return rg_fail(err, RG_ERR_SYSTEM, EHOSTUNREACH, "tcp: the peer can only dial (RG_DIAL=out)");
    if (n < 0)
        return rg_fail(err, RG_ERR_PROTOCOL, EPROTONOSUPPORT,
                       "tcp: the peer's address is not one that this version understands: its transport is another "
                       "one, or it has another version; give all members the same RG_TRANSPORT");
    for (int i = 0; i < n; i++)
        for (int f = 0; f < tp->listeners; f++)
            if (all[i].ss_family == tp->families[f]) {
                struct sockaddr_in6 *six = (void *)&all[i];
                if (all[i].ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
                    six->sin6_scope_id = tp->scope;
                out[reachable++] = all[i];
            }
    if (reachable) return reachable;
    char text[80];
    return rg_fail(
        err, RG_ERR_SYSTEM, EAFNOSUPPORT,
        "tcp: no common address family: this process has %s, the peer %s (%s); choose interfaces that share one",
        family_name(tp->families[0]), family_name(all[0].ss_family),
        rg_os_addr_text((struct sockaddr *)&all[0], text, sizeof text));
}

static rg_status_t choose_addresses(rg_tp_t *tp, link_t *l, const rg_tp_peer_t *peer, rg_error_t *err) {
    int n = rgt_addresses(tp, peer, l->addr, err);
    l->addrs = n > 0 ? n : 0;
    return n > 0 ? RG_OK : (rg_status_t)n;
}

/* The route outlives the stream: the coordinator, which named it, takes it to be in force. */
static void keep_route(link_t *to, const link_t *from) {
    to->via = from->via;
    to->relay_addrs = from->relay_addrs;
    to->look_direct = from->look_direct;
    memcpy(to->relay_identity, from->relay_identity, sizeof to->relay_identity);
    memcpy(to->relay_addr, from->relay_addr, sizeof to->relay_addr);
}

/* before: what the link was, when it is begun anew. */
static rg_status_t link_begin(rg_tp_t *tp, uint32_t index, const rg_tp_peer_t *peer, const link_t *before,
                              rg_error_t *err) {
    link_t *l = link_new(tp, index);
    if (!l || rgt_ring_reserve(tp, 2) != 0) return rg_fail(err, RG_ERR_NOMEM, 0, "tcp: no memory for a link");
    if (before) keep_route(l, before);
    memcpy(l->identity, peer->identity, 16);
    l->timeout_ms = peer->timeout_ms;
    l->dial = peer->dial != 0;
    l->resume = peer->resume != 0;
    if (peer->silence_ms) tp->conf.heartbeat_ms = peer->silence_ms; /* one value for the group */
    l->deadline = rg_os_now_ns() + peer->timeout_ms * 1000000ull;
    rgt_timer_at(tp, l->deadline);
    /* One that can only dial dials, whoever was to. Two such wait for a relay. */
    int in = rgt_blob_outward(peer->addr, peer->addr_len), out = tp->conf.dial == RG_DIAL_OUT;
    if (in != out) l->dial = (uint8_t)out;
    l->outward = in && out;
    if (!l->dial) {
        if (l->resume && choose_addresses(tp, l, peer, err) != RG_OK) l->addrs = 0; /* it comes, or it does not */
        l->state = LINK_WAITING;
        rgt_adopt_parked(tp, l);
        if (l->via && l->state == LINK_WAITING) rgt_redial(tp, l);
        return RG_OK;
    }
    rg_status_t st = in && out ? RG_OK : choose_addresses(tp, l, peer, err);
    if (st == RG_OK && rg_os_random(&l->attempt, sizeof l->attempt) != RG_OK)
        st = rg_fail(err, RG_ERR_SYSTEM, errno, "tcp: no random numbers");
    if (st != RG_OK) return st;
    l->attempt |= 1; /* never 0, which means none */
    l->rails = tp->conf.rails;
    l->state = LINK_DIALING;
    if (l->via) rgt_redial(tp, l);
    if (l->via || !l->addrs) return RG_OK; /* the latter until a third is named */
    return rgt_dial(tp, l, err);
}

static rg_status_t tcp_connect(rg_tp_t *tp, uint32_t index, const rg_tp_peer_t *peer, rg_error_t *err) {
    if (index >= LINKS_MAX)
        return rg_fail(err, RG_ERR_RESOURCE, 0, "tcp: link number %u is above the limit of %u", index, LINKS_MAX - 1);
    link_t *l = link_at(tp, index);
    if (!l || l->state == LINK_FREE) return link_begin(tp, index, peer, NULL, err);
    if (l->state != LINK_DOWN || !l->resume || !peer->resume || memcmp(l->identity, peer->identity, 16) != 0)
        return rg_fail(err, RG_ERR_INVALID, 0, "tcp: link %u is in use; drop it first", index);
    const link_t before = *l;
    rg_status_t st = link_begin(tp, index, peer, &before, err);
    if (st != RG_OK) *l = before;
    return st;
}

static void tcp_drop(rg_tp_t *tp, uint32_t index) {
    link_t *l = link_at(tp, index);
    if (!l || l->state == LINK_FREE) return;
    rgt_link_clear(tp, l);
    l->state = LINK_FREE;
    l->via = 0;
    rgt_relay_forget(tp, l->identity);
}

static void tcp_fence(rg_tp_t *tp, uint64_t epoch) {
    if (epoch <= tp->fence) return;
    tp->fence = epoch;
    for (uint32_t i = 0; i < tp->n_links; i++) {
        link_t *l = tp->links[i];
        if (!l || l->state == LINK_FREE || l->state == LINK_DOWN) continue;
        int broken = 0;
        for (uint32_t r = 0; r < l->rails; r++) {
            conn_t *c = l->rail[r];
            send_op_t *op = c ? c->tx_op : NULL;
            if (!op || op->s.tag.epoch >= epoch) continue;
            broken |= rgt_tx_fence(c);
            if (--op->in_flight == 0 && op->cut) rgt_send_done(tp, l, op, RG_TP_FENCED);
        }
        for (send_op_t **at = &l->send_head; *at;) {
            send_op_t *op = *at;
            if (op->s.tag.epoch >= epoch) {
                at = &op->next;
                continue;
            }
            *at = op->next;
            rgt_send_done(tp, l, op, RG_TP_FENCED);
        }
        l->send_tail = &l->send_head;
        while (*l->send_tail) l->send_tail = &(*l->send_tail)->next;
        recv_op_t *next;
        for (recv_op_t *op = l->recv_head; op; op = next) {
            next = op->next;
            if (op->r.tag.epoch < epoch) {
                rgt_recv_unlink(l, op);
                rgt_recv_done(tp, l, op, RG_TP_FENCED, NULL);
            }
        }
        if (broken) rgt_link_fail(tp, l, "out of memory while cutting off an old epoch");
        else rgt_rx_fence(tp, l);
    }
}

/* ---- Messages ---- */

/* A link that cannot carry anything: the operation ends at once, by poll(). */
static int refuse(rg_tp_t *tp, uint32_t link, uint64_t cookie, rg_tp_status_t st) {
    if (rgt_ring_reserve(tp, 1) != 0) return RG_ERR_NOMEM;
    rg_completion_t *c = rg_ring_push(&tp->ring);
    c->event = RG_TP_FAILED;
    c->status = st;
    c->link = link;
    c->cookie = cookie;
    return RG_OK;
}

static int usable(const link_t *l) { return l && l->state != LINK_FREE && l->state != LINK_DOWN; }

static int tcp_send(rg_tp_t *tp, uint32_t index, const rg_tp_send_t *s) {
    link_t *l = link_at(tp, index);
    if (!usable(l)) return refuse(tp, index, s->cookie, RG_TP_GONE);
    if (s->tag.epoch < tp->fence) return refuse(tp, index, s->cookie, RG_TP_FENCED);
    send_op_t *op = send_new(tp);
    if (!op) return RG_ERR_NOMEM;
    int idle = l->send_head == NULL && l->state == LINK_UP;
    op->s = *s;
    op->mseq = l->mseq_out++;
    *l->send_tail = op;
    l->send_tail = &op->next;
    if (!idle) return RG_OK;
    tp->now_op = op;
    tp->now_done = 0;
    rgt_push(tp, l);
    tp->now_op = NULL;
    return tp->now_done ? RG_TP_DONE_NOW : RG_OK;
}

static int tcp_recv(rg_tp_t *tp, uint32_t index, const rg_tp_recv_t *r) {
    link_t *l = link_at(tp, index);
    if (!usable(l)) return refuse(tp, index, r->cookie, RG_TP_GONE);
    if (r->tag.epoch < tp->fence) return refuse(tp, index, r->cookie, RG_TP_FENCED);
    if (r->reduce && (r->wire_elem == 0 || r->wire_elem > 16 || r->len % r->wire_elem != 0)) return RG_ERR_INVALID;
    recv_op_t *op = recv_new(tp);
    if (!op) return RG_ERR_NOMEM;
    op->r = *r;
    *l->recv_tail = op;
    l->recv_tail = &op->next;
    l->posted++;
    if (!l->unasked && !l->stalled) return RG_OK;
    tp->now_op = op;
    tp->now_done = 0;
    rgt_post(tp, l, op);
    tp->now_op = NULL;
    return tp->now_done ? RG_TP_DONE_NOW : RG_OK;
}

static void tcp_note(rg_tp_t *tp, uint32_t index, uint64_t note, int flush) {
    if (note != tp->note) {
        tp->note = note;
        tp->note_seq++;
        if (tp->note_seq == 0) tp->note_seq = 1;
    }
    if (!flush || tp->note_seq == 0) return;
    for (uint32_t i = 0; i < tp->n_links; i++) {
        link_t *l = tp->links[i];
        if (!l || (index != RG_TP_ALL_LINKS && index != i) || l->state != LINK_UP) continue;
        l->note_owed = 1;
        rgt_push(tp, l);
    }
}

static void tcp_stats(rg_tp_t *tp, uint32_t index, uint64_t *sent, uint64_t *received) {
    link_t *l = link_at(tp, index);
    *sent = index == RG_TP_ALL_LINKS ? tp->sent : l ? l->sent : 0;
    *received = index == RG_TP_ALL_LINKS ? tp->received : l ? l->received : 0;
}

/* ---- The round ---- */

static int take(rg_tp_t *tp, rg_completion_t *out, int max) {
    int n = rg_ring_take(&tp->ring, out, max);
    for (uint32_t i = 0; tp->n_notes && n < max && i < tp->n_links; i++) {
        link_t *l = tp->links[i];
        if (!l || !l->note_dirty) continue;
        l->note_dirty = 0;
        tp->n_notes--;
        memset(&out[n], 0, sizeof out[n]);
        out[n].event = RG_TP_NOTE;
        out[n].link = i;
        out[n].note = l->note_in;
        n++;
    }
    return n;
}

static uint32_t wanted(const conn_t *c) {
    if (c->state == CONN_DIALING) return EPOLLOUT;
    if (c->state == CONN_VISITOR) return 0;
    if (c->state == CONN_RELAY) return rgt_relay_wants(c);
    if (c->state != CONN_RAIL && rg_net_unsent(c->tls)) return EPOLLIN | EPOLLRDHUP | EPOLLOUT;
    if (c->state == CONN_PARKED || c->state == CONN_HALF || c->stalled ||
        (c->state == CONN_RAIL && c->link->state != LINK_UP))
        return EPOLLRDHUP | (c->tx_blocked ? (uint32_t)EPOLLOUT : 0);
    return EPOLLIN | EPOLLRDHUP | (c->tx_blocked ? (uint32_t)EPOLLOUT : 0);
}

static void rail_event(rg_tp_t *tp, conn_t *c, uint32_t events) {
    link_t *l = c->link;
    if (l->state != LINK_UP) {
        if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
            rgt_link_fail(tp, l, "the peer closed a connection before all were there");
        return;
    }
    if ((events & EPOLLOUT) && rgt_tx_pending(c)) {
        rgt_tx(tp, c);
        if (c->state == CONN_RAIL && !rgt_tx_pending(c)) rgt_push(tp, l);
    }
    if (c->state == CONN_RAIL && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && !c->stalled) rgt_rx(tp, c);
    if (c->state != CONN_RAIL) return;
    /* Behind a message that nobody wants the end of the stream cannot be read, only seen. */
    if (c->stalled && (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)))
        rgt_rail_lost(tp, c, "the peer closed the connection");
    else rgt_interest(c, wanted(c));
}

static void sweep(rg_tp_t *tp) {
    struct epoll_event ev[64];
    int n = epoll_wait(tp->epoll, ev, 64, 0);
    for (int i = 0; i < n; i++) {
        if (*(int *)ev[i].data.ptr == EV_LISTENER) {
            rgt_accept(tp, ev[i].data.ptr);
            continue;
        }
        conn_t *c = ev[i].data.ptr;
        if (c->state == CONN_RAIL) rail_event(tp, c, ev[i].events);
        else if (c->state != CONN_DEAD) rgt_handshake(tp, c, ev[i].events);
    }
    for (uint32_t i = 0; i < tp->n_links; i++) {
        link_t *l = tp->links[i];
        if (!l || !l->stalled) continue;
        if (l->state == LINK_UP && ++l->patience >= PATIENCE) {
            l->patience = 0;
            rgt_make_way(tp, l);
        }
    }
}

/* Every rail in turn, without asking whether it is ready: with few rails the answer costs more than the try. */
static void try_rails(rg_tp_t *tp) {
    for (uint32_t i = 0; i < tp->n_links; i++) {
        link_t *l = tp->links[i];
        if (!l || l->state != LINK_UP) continue;
        for (uint32_t r = 0; r < l->rails && l->state == LINK_UP; r++)
            if (rgt_tx_pending(l->rail[r])) rgt_tx(tp, l->rail[r]);
        if (l->state == LINK_UP && (l->send_head || l->note_owed || l->acks_owed)) rgt_push(tp, l);
        for (uint32_t r = 0; r < l->rails && l->state == LINK_UP && l->posted; r++)
            if (!l->rail[r]->stalled) rgt_rx(tp, l->rail[r]);
    }
}

/* A rail of which TLS may hold bytes that the kernel no longer has, so that epoll says nothing of them. */
static int holds(const conn_t *c) { return c->tls && !c->stalled && rg_tls_more(c->tls); }

static void take_held(rg_tp_t *tp) {
    for (uint32_t i = 0; i < tp->n_links; i++) {
        link_t *l = tp->links[i];
        for (uint32_t r = 0; l && r < l->rails && l->state == LINK_UP; r++)
            if (holds(l->rail[r])) rgt_rx(tp, l->rail[r]);
    }
    if (tp->n_relays) rgt_relay_held(tp);
}

/* Goes on with what the last turn left unfinished, where epoll has nothing to say about it. */
static void push_ready(rg_tp_t *tp) {
    for (uint32_t i = 0; i < tp->n_links; i++) {
        link_t *l = tp->links[i];
        if (l && l->state == LINK_UP && (l->send_head || l->note_owed || l->acks_owed)) rgt_push(tp, l);
    }
}

/* What connections that broke had still to deliver: epoll knows nothing of it. */
static void read_saved(rg_tp_t *tp) {
    conn_t *next;
    for (conn_t *c = tp->conns; c; c = next) {
        next = c->next;
        if (c->saved && !c->stalled && c->link->state == LINK_UP) rgt_rx(tp, c);
        if (next && next->state == CONN_DEAD) return; /* a link failed; the rest has its turn at the next poll */
    }
}

static int tcp_poll(rg_tp_t *tp, rg_completion_t *out, int max) {
    int n = take(tp, out, max);
    if (n == max) return n;
    int many = tp->n_rails > DIRECT_RAILS;
    if (many != tp->many) {
        tp->many = (uint8_t)many;
        for (conn_t *c = tp->conns; c; c = c->next)
            if (c->state == CONN_RAIL) rgt_interest(c, wanted(c));
    }
    tp->polls++;
    int look = many || tp->armed || tp->n_handshakes || tp->n_relays || tp->polls % SWEEP_EVERY == 0;
    if (!many) try_rails(tp);
    else push_ready(tp);
    if (tp->cfg.tls) take_held(tp);
    if (tp->n_saved) read_saved(tp);
    if (look) {
        sweep(tp);
        if (tp->next_timer != NEVER && (!many || tp->armed || tp->n_handshakes || tp->polls % SWEEP_EVERY == 0)) {
            uint64_t now = rg_os_now_ns();
            if (now >= tp->next_timer) rgt_timers(tp, now);
        }
        tp->armed = 0;
    }
    if (tp->grave) rgt_bury(tp);
    return n + take(tp, out + n, max - n);
}

static int tcp_arm(rg_tp_t *tp, int64_t *timeout_ns) {
    if (tp->ring.n || tp->n_notes) return 0;
    for (uint32_t i = 0; i < tp->n_links; i++) {
        link_t *l = tp->links[i];
        if (!l || l->state != LINK_UP) continue;
        if (l->stalled && rgt_make_way(tp, l)) return 0; /* nothing else moves: what is behind it must not wait */
        for (uint32_t r = 0; r < l->rails; r++) {
            const conn_t *c = l->rail[r];
            if ((c->saved && !c->stalled) || holds(c)) return 0;
            if (c->fd >= 0 && (rgt_tx_pending(c) ? !c->tx_blocked
                                                 : (l->send_head && rgt_window_open(c)) || l->note_owed || c->ack_owed))
                return 0; /* more can go out at once */
        }
    }
    for (conn_t *c = tp->conns; c; c = c->next) {
        if (c->state == CONN_RELAY && rgt_relay_holds(c)) return 0;
        rgt_interest(c, wanted(c));
    }
    tp->armed = 1;
    if (tp->next_timer != NEVER) {
        uint64_t now = rg_os_now_ns();
        int64_t left = tp->next_timer > now ? (int64_t)(tp->next_timer - now) : 0;
        if (*timeout_ns < 0 || left < *timeout_ns) *timeout_ns = left;
    }
    return 1;
}

/* Within a host the kernel takes what is sent to its receiver where the sender runs. But what found the socket full
 * goes on by the hand of who reads, so that this says nothing while much is under way. */
static uint32_t tcp_peer_cpu(rg_tp_t *tp, uint32_t index) {
    link_t *l = link_at(tp, index);
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    int cpu = -1;
    if (!l || l->state != LINK_UP || l->near == ELSEWHERE || !l->rail[0]) return 0;
    uint64_t moved = l->sent + l->received - l->looked;
    int fd = l->rail[0]->fd;
    l->looked += moved;
    if (l->via || moved > QUIET_BYTES) return 0;
    if (l->near == NEAR_UNKNOWN) {
        int here = getpeername(fd, (void *)&peer, &len) == 0 && rg_os_is_local_address((void *)&peer);
        l->near = here ? THIS_HOST : ELSEWHERE;
        if (!here) return 0;
    }
    len = sizeof cpu;
    return getsockopt(fd, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &len) == 0 && cpu >= 0 ? (uint32_t)cpu + 1 : 0;
}

/* The kernel keeps the least round trip, and a rate that it does not count where the program had nothing to send. */
static void tcp_link_info(rg_tp_t *tp, uint32_t index, rg_tp_link_info_t *out) {
    link_t *l = link_at(tp, index);
    *out = (rg_tp_link_info_t){ 0 };
    for (uint32_t r = 0; l && l->state == LINK_UP && r < l->rails; r++) {
        struct tcp_info info;
        socklen_t len = sizeof info;
        memset(&info, 0, sizeof info);
        if (getsockopt(l->rail[r]->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0) continue;
        uint64_t rtt = info.tcpi_min_rtt ? info.tcpi_min_rtt * 1000ull : info.tcpi_rtt * 1000ull;
        if (rtt && rtt != UINT32_MAX * 1000ull && (!out->rtt_ns || rtt < out->rtt_ns)) out->rtt_ns = rtt;
        if (!info.tcpi_delivery_rate_app_limited) out->bytes_per_s += info.tcpi_delivery_rate;
    }
}

static int tcp_places(rg_tp_t *tp, const uint8_t *addr, uint32_t len, struct sockaddr_storage *out, int max) {
    struct sockaddr_storage all[ADDRS_MAX];
    int n = rgt_blob_get(addr, len, all);
    if (n > max) n = max;
    for (int i = 0; i < n; i++) {
        struct sockaddr_in6 *six = (void *)&all[i];
        if (all[i].ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) six->sin6_scope_id = tp->scope;
        out[i] = all[i];
    }
    return n > 0 ? n : 0;
}

static int tcp_wake_fd(rg_tp_t *tp) { return tp->epoll; }

const rg_transport_t rg_transport_tcp = {
    .struct_size = sizeof(rg_transport_t),
    .name = "tcp",
    .open = tcp_open,
    .set_nonce = tcp_set_nonce,
    .connect = tcp_connect,
    .send = tcp_send,
    .recv = tcp_recv,
    .note = tcp_note,
    .poll = tcp_poll,
    .arm = tcp_arm,
    .fence = tcp_fence,
    .drop = tcp_drop,
    .stats = tcp_stats,
    .wake_fd = tcp_wake_fd,
    .close = tcp_close,
    .link_info = tcp_link_info,
    .visitor = rgt_visitor,
    .places = tcp_places,
    .route = rgt_route,
    .relay = rgt_relay,
    .peer_cpu = tcp_peer_cpu,
};
