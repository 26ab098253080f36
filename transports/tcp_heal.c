/* tcp_heal.c: rails whose connection broke. The rail stays, with its place in the stream; what had arrived is read to
 * the end and the connection is given up. Then both ends dial each other, so that it is enough when one can reach the
 * other, and each says how many bytes it has; the connection that is made first carries on from there. A port that
 * refuses, as opposed to one that stays silent, is told as evidence that the process is gone.
 * Relies on tcp_keep.c for what has to be sent again. Must not let a byte be lost or doubled: when that cannot be
 * guaranteed the link fails instead. */
#include "tcp_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define AGAIN_FIRST_NS 5000000ull
#define AGAIN_MOST_NS 250000000ull
#define PATIENCE_FIRST_NS 200000000ull /* of one try; a longer round trip gets a longer one in the end */
#define PATIENCE_MOST_NS 3000000000ull
#define LOOK_DIRECT_NS 1000000000ull /* a relayed link looks so often whether the direct way is open again */
#define SAVED_MOST (64u << 20)       /* what a kernel holds for a connection is less */

/* ---- What the old connection still has --------------------------------------------------------------------------- */

ssize_t rgt_saved_read(conn_t *c, void *to, size_t n) {
    uint32_t left = c->saved_n - c->saved_at, take = n < left ? (uint32_t)n : left;
    memcpy(to, c->saved + c->saved_at, take);
    c->saved_at += take;
    if (c->saved_at == c->saved_n) {
        free(c->saved);
        c->saved = NULL;
        c->saved_n = c->saved_at = 0;
        c->tp->n_saved--;
    }
    return (ssize_t)take;
}

/* The sender forgets what this kernel has acknowledged, so all of that must be taken over before it is counted. */
static int save_rest(conn_t *c) {
    for (;;) {
        int waiting = 0;
        if (ioctl(c->fd, FIONREAD, &waiting) != 0 || waiting <= 0) waiting = 4096;
        if (c->tls && waiting < (64 << 10)) waiting = 64 << 10; /* it may hold as much by itself */
        if ((uint64_t)c->saved_n + (uint64_t)waiting > SAVED_MOST) return -1;
        uint8_t *more = realloc(c->saved, c->saved_n + (size_t)waiting);
        if (!more) return -1;
        c->tp->n_saved += c->saved == NULL;
        c->saved = more;
        ssize_t n = rg_net_recv(c->fd, c->tls, c->saved + c->saved_n, (size_t)waiting);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        c->saved_n += (uint32_t)n;
        c->rx_off += (uint64_t)n;
    }
    if (c->saved_n == c->saved_at) {
        free(c->saved);
        c->saved = NULL;
        c->saved_n = c->saved_at = 0;
        c->tp->n_saved--;
    }
    return 0;
}

/* Nothing of it may arrive any more, and the other end is to notice: a reset instead of an orderly end. */
static void abandon(conn_t *c) {
    const struct linger none = { .l_onoff = 1, .l_linger = 0 };
    rg_tls_free(c->tls);
    c->tls = NULL;
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(c->fd);
    c->fd = -1;
    c->interest = 0;
}

/* ---- Telling ----------------------------------------------------------------------------------------------------- */

static void tell_lost(rg_tp_t *tp, link_t *l, int dead) {
    if (l->lost && (!dead || l->lost_dead)) return;
    if (rgt_ring_reserve(tp, 1) != 0) {
        rgt_link_fail(tp, l, "out of memory");
        return;
    }
    if (!l->lost) l->lost_at = rg_os_now_ns();
    l->lost = 1;
    l->lost_dead |= (uint8_t)dead;
    rg_completion_t *e = rg_ring_push(&tp->ring);
    e->event = RG_TP_LINK_LOST;
    e->status = dead ? RG_TP_GONE : RG_TP_DONE;
    e->link = l->index;
    e->text = l->lost_text;
}

static void tell_back(rg_tp_t *tp, link_t *l) {
    for (uint32_t r = 0; r < l->rails; r++)
        if (l->rail[r]->state != CONN_RAIL) return;
    if (!l->lost) return;
    if (rgt_ring_reserve(tp, 1) != 0) {
        rgt_link_fail(tp, l, "out of memory");
        return;
    }
    rgt_log(tp, RG_LOG_INFO, 0, "tcp: link %u is back after %llu ms", l->index,
            (unsigned long long)((rg_os_now_ns() - l->lost_at) / 1000000u));
    l->lost = l->lost_dead = 0;
    rg_completion_t *e = rg_ring_push(&tp->ring);
    e->event = RG_TP_LINK_UP;
    e->link = l->index;
    e->note = l->rail[0]->relayed;
}

/* ---- Breaking ---------------------------------------------------------------------------------------------------- */

static void heal_at(conn_t *c, uint64_t when) {
    c->retry_at = when;
    rgt_timer_at(c->tp, when);
}

static int rail_break(conn_t *c) {
    if (save_rest(c) != 0) {
        rgt_link_fail(c->tp, c->link, "out of memory for what a broken connection had still to deliver");
        return -1;
    }
    abandon(c);
    rgt_set_state(c, CONN_BROKEN);
    c->tx_blocked = 0;
    c->relayed = 0;
    if (c->ack_owed) c->link->acks_owed--;
    c->ack_owed = c->asked = 0;
    c->deadline = NEVER;
    c->backoff_ns = AGAIN_FIRST_NS;
    c->patience_ns = PATIENCE_FIRST_NS;
    heal_at(c, rg_os_now_ns());
    return 0;
}

void rgt_rail_lost(rg_tp_t *tp, conn_t *c, const char *fmt, ...) {
    link_t *l = c->link;
    char text[sizeof l->lost_text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!l->resume) {
        rgt_link_fail(tp, l, "%s", text);
        return;
    }
    if (l->state != LINK_UP || c->state != CONN_RAIL || rail_break(c) != 0) return;
    if (!l->lost) {
        memcpy(l->lost_text, text, sizeof text);
        rgt_log(tp, RG_LOG_INFO, 0, "tcp: link %u is lost, making it again: %s", l->index, text);
    }
    tell_lost(tp, l, 0);
    if (l->state == LINK_UP && rgt_begun_anew(tp, l)) rgt_link_fail(tp, l, "%s", RGT_BEGUN_ANEW);
}

/* ---- Dialling again ---------------------------------------------------------------------------------------------- */

static void healer_end(conn_t *healer) {
    conn_t *c = healer->healer;
    if (c) c->healer = NULL;
    healer->healer = NULL;
    rgt_conn_close(healer);
}

static void again_later(conn_t *c, uint64_t now) {
    heal_at(c, now + c->backoff_ns);
    c->backoff_ns = 2 * c->backoff_ns > AGAIN_MOST_NS ? AGAIN_MOST_NS : 2 * c->backoff_ns;
}

void rgt_heal_later(conn_t *c) { again_later(c, rg_os_now_ns()); }

/* Another way is known: a try that has reached nobody yet must not hold it up until its patience ends. */
void rgt_heal_now(conn_t *c) {
    if (c->healer && (c->healer->state == CONN_DIALING || c->healer->state == CONN_SECURING)) healer_end(c->healer);
    c->backoff_ns = AGAIN_FIRST_NS;
    c->patience_ns = PATIENCE_FIRST_NS;
    heal_at(c, rg_os_now_ns());
}

/* A rail that is relayed works; is the relay still needed? The peer answers that it is busy, and that is enough. */
void rgt_heal_probe(rg_tp_t *tp, conn_t *c, uint64_t now) {
    link_t *l = c->link;
    if (!c->relayed || !l->dial || !l->addrs || now < l->look_direct) return;
    l->look_direct = now + LOOK_DIRECT_NS;
    conn_t *n = rgt_conn_new(tp, CONN_DIALING, -1);
    if (!n) return;
    n->link = l;
    n->rail = c->rail;
    n->probe = 1;
    n->patience_ns = LOOK_DIRECT_NS / 2;
    rgt_dial_try(n);
}

void rgt_heal_timer(rg_tp_t *tp, conn_t *c, uint64_t now) {
    link_t *l = c->link;
    if (c->healer || c->retry_at > now) return;
    c->retry_at = NEVER;
    /* Through the relay, if there is one; but the direct way is not forgotten. */
    int relayed = l->via && !c->direct_next && (++c->turn % 4 || !l->addrs);
    int aside = l->via && !relayed && !c->direct_next; /* while the relay's turn waits */
    c->direct_next = 0;
    if (!relayed && !l->addrs) return; /* a peer that cannot be dialled: it will come */
    conn_t *n = rgt_conn_new(tp, CONN_DIALING, -1);
    if (!n) {
        again_later(c, now);
        return;
    }
    n->link = l;
    n->rail = c->rail;
    n->healer = c;
    n->patience_ns = aside ? PATIENCE_FIRST_NS : c->patience_ns;
    n->relayed = (uint8_t)relayed;
    c->healer = n;
    if (!aside) c->patience_ns = 2 * c->patience_ns > PATIENCE_MOST_NS ? PATIENCE_MOST_NS : 2 * c->patience_ns;
    rgt_dial_try(n);
}

/* The next address, or a rest. */
void rgt_heal_failed(conn_t *n, const char *why, int e) {
    rg_tp_t *tp = n->tp;
    conn_t *c = n->healer;
    link_t *l = n->link;
    char addr[80] = "?";
    int count;
    const struct sockaddr_storage *at = rgt_target(n, &count);
    if (n->addr_index < count) rg_os_addr_text((const struct sockaddr *)&at[n->addr_index], addr, sizeof addr);
    snprintf(l->text, sizeof l->text, "%s: %s", addr, e ? strerror(e) : why);
    n->refused += e == ECONNREFUSED;
    rg_tls_free(n->tls); /* `why` may have been its */
    n->tls = NULL;
    if (n->fd >= 0) close(n->fd);
    n->fd = -1;
    if (++n->addr_index < count) {
        n->interest = n->hello_n = n->met = 0;
        rgt_set_state(n, CONN_DIALING);
        rgt_dial_try(n);
        return;
    }
    int dead = !n->relayed && n->refused == (uint32_t)l->addrs;
    healer_end(n);
    again_later(c, rg_os_now_ns());
    if (!dead || l->lost_dead) return;
    memcpy(l->lost_text, l->text, sizeof l->lost_text);
    tell_lost(tp, l, 1);
}

/* ---- Carrying on ------------------------------------------------------------------------------------------------- */

/* The connection `from` becomes the rail's; its peer has `taken` bytes of the stream. */
static void carry_on(rg_tp_t *tp, conn_t *c, conn_t *from, uint64_t taken) {
    link_t *l = c->link;
    if (rgt_kept_rewind(c, taken) != 0) {
        rgt_link_fail(tp, l, "the peer asks for bytes %llu on of a stream of which %llu to %llu can be sent again",
                      (unsigned long long)taken, (unsigned long long)c->keep.from, (unsigned long long)rgt_handed(c));
        rgt_conn_close(from); /* one that came by itself is not the link's yet */
        return;
    }
    c->fd = from->fd;
    c->tls = from->tls;
    from->fd = -1;
    from->tls = NULL;
    c->relayed = from->relayed;
    c->app_acks = c->relayed || c->tls;
    c->ack_told = c->rx_off;
    if (c->healer == from) healer_end(from);
    else rgt_conn_close(from);
    rgt_set_state(c, CONN_RAIL);
    c->retry_at = NEVER;
    c->interest = ~0u; /* epoll leads to the connection that is gone until it is told */
    rgt_interest(c, c->stalled ? EPOLLRDHUP : EPOLLIN | EPOLLRDHUP | (tp->many ? EPOLLOUT : 0));
    rgt_tune_begin(c);
    c->deadline = rg_os_now_ns() + tp->conf.heartbeat_ms * 250000ull;
    rgt_timer_at(tp, c->deadline);
    tell_back(tp, l);
    if (rgt_tx_pending(c)) rgt_tx(tp, c);
    if (l->state == LINK_UP) rgt_push(tp, l);
}

void rgt_heal_answered(rg_tp_t *tp, conn_t *n, const hello_t *h) {
    conn_t *c = n->healer;
    link_t *l = n->link;
    if (n->probe) {
        int open = rgt_greeting_fits(n, h) && h->kind == HELLO_BUSY;
        rgt_conn_close(n);
        for (uint32_t r = 0; open && r < l->rails && l->state == LINK_UP; r++) {
            conn_t *rail = l->rail[r];
            if (rail->state != CONN_RAIL || !rail->relayed) continue;
            rgt_rail_lost(tp, rail, "the direct way is open again");
            rail->direct_next = 1;
        }
    } else if (!rgt_greeting_fits(n, h)) {
        rgt_heal_failed(n, "another process answers there", 0);
    } else if (h->kind == HELLO_RESUMED) {
        if (h->tries > c->peer_tries) c->peer_tries = h->tries;
        carry_on(tp, c, n, h->taken);
    } else if (h->kind == HELLO_BUSY) {
        healer_end(n);
        again_later(c, rg_os_now_ns());
    } else if (h->kind == HELLO_GONE) {
        rgt_link_fail(tp, l, "the peer has given this link up: %s", l->lost_text);
    } else {
        rgt_heal_failed(n, "the answer makes no sense", 0);
    }
}

/* ---- Being asked ------------------------------------------------------------------------------------------------- */

static link_t *link_of(rg_tp_t *tp, const hello_t *h) {
    for (uint32_t i = 0; i < tp->n_links; i++) {
        link_t *l = tp->links[i];
        if (l && l->state == LINK_UP && l->resume && l->attempt == h->attempt && l->rails == h->rails &&
            memcmp(l->identity, h->from, 16) == 0)
            return l;
    }
    return NULL;
}

static int answer(conn_t *s, uint8_t kind, const conn_t *rail) {
    hello_t h = s->hello;
    h.kind = kind;
    h.taken = rail ? rail->rx_off : 0;
    h.tries = rail ? rail->tries : 0;
    memcpy(h.to, s->hello.from, 16);
    memcpy(h.from, s->tp->cfg.identity, 16);
    int rc = rgt_hello_send(s, &h);
    /* One that came through a relay is dialled again, where nobody else would do that. */
    if (kind == HELLO_GONE && s->met && !s->healer) rgt_dial_later(s, "the other end has yet to begin anew", 0);
    else if (kind != HELLO_RESUMED) rgt_conn_close(s);
    return rc;
}

/* A try of our own is under way. One that has been answered counts: what came behind the answer has been acknowledged.
 * Else the end that dialled first has the way. 1 when the stranger has to come again. */
static int settle_own_try(rg_tp_t *tp, conn_t *c) {
    conn_t *n = c->healer;
    hello_t h;
    if (!n || n->state == CONN_STRANGER) return 0; /* the latter came by the relay, and is what asks */
    if (n->state == CONN_GREETING && rgt_greeting_read(n) == 1 && rgt_hello_get(n->hello_bytes, &h) == 0 &&
        h.kind == HELLO_RESUMED) {
        rgt_heal_answered(tp, n, &h);
        return 0;
    }
    if (n->state == CONN_GREETING && c->link->dial) return 1;
    healer_end(n);
    return 0;
}

void rgt_heal_asked(rg_tp_t *tp, conn_t *s) {
    link_t *l = tp->nonce_known ? link_of(tp, &s->hello) : NULL;
    if (l && s->hello.tries == 0) { /* it only wanted to know whether the way is open */
        answer(s, HELLO_BUSY, NULL);
        return;
    }
    if (!l) {
        answer(s, HELLO_GONE, NULL);
        return;
    }
    conn_t *c = l->rail[s->hello.rail];
    /* A greeting of a try that its sender gave up, when another one succeeded, says an old number of bytes. */
    if (s->hello.tries <= c->peer_tries) {
        rgt_conn_close(s);
        return;
    }
    if (c->state == CONN_BROKEN && settle_own_try(tp, c)) {
        answer(s, HELLO_BUSY, NULL);
        return;
    }
    if (s->hello.tries <= c->peer_tries) { /* the answer to our own try has just said so */
        rgt_conn_close(s);
        return;
    }
    if (l->state == LINK_UP && c->state == CONN_RAIL) rgt_rail_lost(tp, c, "the peer has lost the connection");
    if (l->state != LINK_UP || c->state != CONN_BROKEN) {
        answer(s, HELLO_GONE, NULL);
        return;
    }
    if (c->healer && c->healer != s) healer_end(c->healer);
    c->peer_tries = s->hello.tries;
    rgt_set_options(tp, s->fd);
    if (answer(s, HELLO_RESUMED, c) != 0) {
        rgt_conn_close(s);
        return;
    }
    carry_on(tp, c, s, s->hello.taken);
}
