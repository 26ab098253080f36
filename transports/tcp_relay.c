/* tcp_relay.c: links that go through a third peer. At the ends: both dial the relay, say whom they want, and once they
 * are brought together the connection is as good as a direct one; the greeting, and what follows it, passes end to end.
 * At the relay: two connections that ask for each other become a pair, and bytes go from one to the other through a
 * bounded buffer each way; when one side does not take them the other is not read. Nobody is relayed whom the owner has
 * not named with relay(), and every connection here has passed the same checks as any other.
 * Relies on the ends to acknowledge the stream themselves: what a kernel on the way has acknowledged may still be lost
 * (tcp_keep.c). Must not look into what it passes on. */
#include "tcp_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define HALF_NS (5 * 1000000000ull) /* one end waits so long for the other */
#define HALVES_MAX 64
#define TURN (256u << 10)

/* ---- At the relay: who may ------------------------------------------------------------------------------------- */

static int same_pair(const relayed_t *p, const uint8_t a[16], const uint8_t b[16]) {
    return (memcmp(p->a, a, 16) == 0 && memcmp(p->b, b, 16) == 0) ||
           (memcmp(p->a, b, 16) == 0 && memcmp(p->b, a, 16) == 0);
}

static int allowed(const rg_tp_t *tp, const uint8_t a[16], const uint8_t b[16]) {
    for (uint32_t i = 0; i < tp->n_relayed; i++)
        if (same_pair(&tp->relayed[i], a, b)) return 1;
    return 0;
}

static void pair_end(conn_t *c) {
    conn_t *mate = c->mate;
    rgt_conn_close(c);
    if (mate) rgt_conn_close(mate);
}

/* Closes what is relayed, or waits to be, for a peer: with `other`, or with whomever when that is NULL. */
static void end_all_of(rg_tp_t *tp, const uint8_t a[16], const uint8_t *other) {
    conn_t *next;
    for (conn_t *c = tp->conns; c; c = next) {
        next = c->next;
        if (c->state != CONN_HALF && c->state != CONN_RELAY) continue;
        int from = memcmp(c->hello.from, a, 16) == 0, to = memcmp(c->hello.to, a, 16) == 0;
        if (!(from || to) || (other && memcmp(from ? c->hello.to : c->hello.from, other, 16) != 0)) continue;
        if (next == c->mate) next = next ? next->next : NULL;
        pair_end(c);
    }
}

void rgt_relay(rg_tp_t *tp, const uint8_t a[16], const uint8_t b[16], int on) {
    if (on && !allowed(tp, a, b)) {
        if (tp->n_relayed == tp->cap_relayed) {
            uint32_t cap = tp->cap_relayed ? 2 * tp->cap_relayed : 8;
            relayed_t *more = realloc(tp->relayed, cap * sizeof *more);
            if (!more) return; /* the ends are told that nobody relays, and another peer is asked */
            tp->relayed = more;
            tp->cap_relayed = cap;
        }
        relayed_t *p = &tp->relayed[tp->n_relayed++];
        memcpy(p->a, a, 16);
        memcpy(p->b, b, 16);
    } else if (!on) {
        for (uint32_t i = 0; i < tp->n_relayed; i++)
            if (same_pair(&tp->relayed[i], a, b)) tp->relayed[i--] = tp->relayed[--tp->n_relayed];
        end_all_of(tp, a, b);
    }
}

/* ---- At the relay: passing on ---------------------------------------------------------------------------------- */

/* Moves what is in c's buffer to its mate. 0: all of it is out; 1: the mate takes no more just now; -1: over. */
static int pass_on(conn_t *c) {
    conn_t *to = c->mate;
    while (c->rpos < c->rend) {
        ssize_t n = rg_net_send(to->fd, to->tls, c->rbuf + c->rpos, c->rend - c->rpos);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM ? 1 : -1;
        c->rpos += (uint32_t)n;
    }
    c->rpos = c->rend = 0;
    if (!rg_net_unsent(to->tls)) return 0;
    int rc = rg_tls_flush(to->tls);
    return rc > 0 ? 0 : rc == 0 ? 1 : -1;
}

/* Reads from c and writes to its mate, as far as both go. -1: over. */
static int pump(conn_t *c) {
    for (uint32_t turn = 0; turn < TURN;) { /* then others have theirs, see rgt_relay_held() */
        int rc = pass_on(c);
        c->mate->tx_blocked = rc == 1;
        if (rc) return rc < 0 ? -1 : 0;
        ssize_t n = rg_net_recv(c->fd, c->tls, c->rbuf, READ_BUFFER);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n <= 0) return -1;
        c->rend = (uint32_t)n;
        turn += (uint32_t)n;
    }
    return pass_on(c) < 0 ? -1 : 0;
}

uint32_t rgt_relay_wants(const conn_t *c) {
    uint32_t want = c->tx_blocked ? (uint32_t)EPOLLOUT : 0;
    /* What cannot be passed on is not read; that includes the end, which would be told again and again. */
    return want | (c->mate && c->mate->tx_blocked ? 0 : EPOLLIN | (uint32_t)EPOLLRDHUP);
}

/* TLS has bytes of it that epoll knows nothing of, and they can be passed on. */
int rgt_relay_holds(const conn_t *c) { return c->tls && c->mate && !c->mate->tx_blocked && rg_tls_more(c->tls); }

void rgt_relay_held(rg_tp_t *tp) {
    conn_t *next;
    for (conn_t *c = tp->conns; c; c = next) {
        next = c->next;
        if (c->state == CONN_RELAY && rgt_relay_holds(c)) rgt_relay_event(tp, c, 0);
        if (next && next->state == CONN_DEAD) return; /* the pair has ended; others have their turn at the next poll */
    }
}

void rgt_relay_broken(conn_t *c) { pair_end(c); }

void rgt_relay_event(rg_tp_t *tp, conn_t *c, uint32_t events) {
    (void)tp;
    conn_t *mate = c->mate;
    if (c->state != CONN_RELAY) return;
    /* A broken connection is not waited for until the other end takes what came before: the ends send that again. */
    if (pump(c) != 0 || pump(mate) != 0 || (events & (EPOLLHUP | EPOLLERR))) {
        pair_end(c);
        return;
    }
    rgt_interest(c, rgt_relay_wants(c));
    rgt_interest(mate, rgt_relay_wants(mate));
}

static void half_close(conn_t *c) {
    hello_t h = c->hello;
    h.kind = HELLO_BUSY;
    memcpy(h.to, c->hello.from, 16);
    memcpy(h.from, c->hello.to, 16);
    rgt_hello_send(c, &h);
    rgt_conn_close(c);
}

static int brought_together(conn_t *c) {
    hello_t h = c->hello;
    h.kind = HELLO_RELAYED;
    memcpy(h.to, c->hello.from, 16);
    memcpy(h.from, c->hello.to, 16);
    rgt_set_options(c->tp, c->fd);
    c->rbuf = malloc(READ_BUFFER);
    return c->rbuf && rgt_hello_send(c, &h) == 0 ? 0 : -1;
}

/* A stranger asks to be brought together with somebody. */
void rgt_relay_asked(rg_tp_t *tp, conn_t *s) {
    uint32_t halves = 0;
    conn_t *next, *other = NULL;
    for (conn_t *c = tp->conns; c; c = next) {
        next = c->next;
        if (c->state != CONN_HALF) continue;
        halves++;
        if (c->hello.rail != s->hello.rail) continue;
        if (memcmp(c->hello.from, s->hello.from, 16) == 0 && memcmp(c->hello.to, s->hello.to, 16) == 0)
            rgt_conn_close(c); /* its sender has given that one up */
        else if (memcmp(c->hello.from, s->hello.to, 16) == 0 && memcmp(c->hello.to, s->hello.from, 16) == 0) other = c;
    }
    if (!tp->nonce_known || !allowed(tp, s->hello.from, s->hello.to) || (!other && halves >= HALVES_MAX)) {
        half_close(s); /* perhaps this process is told a moment later than the ends: they come again */
        return;
    }
    s->rpos = s->rend = 0;
    rgt_set_state(s, CONN_HALF);
    s->deadline = rg_os_now_ns() + HALF_NS;
    rgt_timer_at(tp, s->deadline);
    rgt_interest(s, EPOLLRDHUP);
    if (!other) return;
    if (brought_together(s) != 0 || brought_together(other) != 0) {
        rgt_conn_close(s);
        rgt_conn_close(other);
        return;
    }
    s->mate = other;
    other->mate = s;
    s->deadline = other->deadline = rg_os_now_ns() + tp->conf.heartbeat_ms * 250000ull;
    rgt_timer_at(tp, s->deadline);
    rgt_set_state(s, CONN_RELAY);
    rgt_set_state(other, CONN_RELAY);
    rgt_log(tp, RG_LOG_INFO, 0, "tcp: relaying between two peers that cannot reach each other");
    rgt_relay_event(tp, s, 0);
}

/* ---- At the ends ----------------------------------------------------------------------------------------------- */

/* Where a connection of the link has to be dialled: the peer's addresses, or the relay's. */
const struct sockaddr_storage *rgt_target(const conn_t *c, int *n) {
    const link_t *l = c->link;
    *n = c->relayed ? l->relay_addrs : l->addrs;
    return c->relayed ? l->relay_addr : l->addr;
}

/* The relay has brought us together: who dials greets, the other waits for that as if it had been dialled. */
void rgt_relay_met(rg_tp_t *tp, conn_t *c) {
    c->hello_n = 0;
    c->met = 1;
    if (c->link->dial) {
        rgt_dial_greet(c);
        return;
    }
    rgt_set_state(c, CONN_STRANGER);
    c->deadline = rg_os_now_ns() + HALF_NS;
    rgt_timer_at(tp, c->deadline);
    if (c->tls) rgt_handshake(tp, c, 0); /* its greeting may have come with the relay's answer, and be held by TLS */
}

/* The link has not been up yet: its connections are made anew, the other way. */
void rgt_redial(rg_tp_t *tp, link_t *l) {
    conn_t *next;
    for (conn_t *c = tp->conns; c; c = next) {
        next = c->next;
        if (c->link == l && !c->healer) rgt_conn_close(c);
    }
    memset(l->rail, 0, sizeof l->rail);
    l->rails_up = 0;
    if (!l->dial && !l->via) return;
    uint32_t rails = l->dial ? l->rails : tp->conf.rails;
    for (uint32_t r = 0; r < rails; r++) {
        conn_t *c = rgt_conn_new(tp, CONN_DIALING, -1);
        if (!c) return; /* the link's own time limit ends this */
        c->link = l;
        c->rail = r;
        c->relayed = l->via;
        rgt_dial_try(c);
    }
}

void rgt_route(rg_tp_t *tp, uint32_t index, const rg_tp_peer_t *relay) {
    link_t *l = index < tp->n_links ? tp->links[index] : NULL;
    if (!l || l->state == LINK_FREE || l->state == LINK_DOWN) return;
    if (relay ? l->via && memcmp(l->relay_identity, relay->identity, 16) == 0 : !l->via) return;
    l->relay_addrs = 0;
    l->via = relay != NULL;
    if (relay) {
        memcpy(l->relay_identity, relay->identity, 16);
        l->relay_addrs = rgt_addresses(tp, relay, l->relay_addr, NULL);
        if (l->relay_addrs < 0) l->relay_addrs = 0; /* nothing to dial: the try runs out */
    }
    l->look_direct = rg_os_now_ns() + 1000000000ull;
    if (l->state != LINK_UP) {
        rgt_redial(tp, l);
        return;
    }
    for (uint32_t r = 0; r < l->rails && l->state == LINK_UP; r++) {
        conn_t *c = l->rail[r];
        if (c->state == CONN_RAIL && c->relayed) rgt_rail_lost(tp, c, "the link takes another way");
        /* What is silent here only because nothing is under way has been lost at the other end. */
        else if (c->state == CONN_RAIL && relay) rgt_rail_lost(tp, c, "the peer has lost the connection");
        else if (c->state == CONN_BROKEN) rgt_heal_now(c);
    }
}

/* A peer is gone: nothing of it is relayed, and what went through it has to find another way. */
void rgt_relay_forget(rg_tp_t *tp, const uint8_t gone[16]) {
    for (uint32_t i = 0; i < tp->n_relayed; i++)
        if (memcmp(tp->relayed[i].a, gone, 16) == 0 || memcmp(tp->relayed[i].b, gone, 16) == 0)
            tp->relayed[i--] = tp->relayed[--tp->n_relayed];
    if (tp->n_relays) end_all_of(tp, gone, NULL);
    for (uint32_t i = 0; i < tp->n_links; i++)
        if (tp->links[i] && tp->links[i]->via && memcmp(tp->links[i]->relay_identity, gone, 16) == 0)
            rgt_route(tp, i, NULL);
}
