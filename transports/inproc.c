/* inproc.c: endpoints in one process, used by one thread each (or by one for all). A send looks for the receive at the
 * other end and fills it from the sender's buffer; without one, the message is kept there, or waits here when it is
 * large. Relies on mbox.c. One lock for the whole process keeps it simple: this transport is for tests and for members
 * that are threads, not for speed. It must not touch an endpoint without that lock. */
#include "inproc_hooks.h"
#include "mbox.h"
#include "observe/log.h"
#include "os/os.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct out {
    struct out *next;
    rg_tp_send_t s;
    int told;
} out_t;

typedef struct lent {
    struct lent *next;
    rg_tp_lend_t l;
} lent_t;

/* What a link has beside its mbox half. */
typedef struct side {
    rg_tp_t *other; /* NULL unless UP */
    uint32_t other_link;
    out_t *queue;
    lent_t *lends; /* to the peer */
} side_t;

struct rg_tp {
    rg_tp_t *next; /* registry */
    rg_mbox_t box;
    side_t *sides;
    uint32_t n_sides;
    uint8_t identity[16], nonce[16];
    int nonce_known, wake;
    uint64_t note;
    uint64_t sent;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the registry and every endpoint in it */
static rg_tp_t *registry;
void (*rg_inproc_half_read)(void);

RG_OS_HELD_OVER_FORKS(lock)

static void wake(rg_tp_t *tp) {
    uint64_t one = 1;
    ssize_t n = write(tp->wake, &one, sizeof one); /* fails only when it is readable anyway */
    (void)n;
}

static side_t *side_at(rg_tp_t *tp, uint32_t link) { return link < tp->n_sides ? &tp->sides[link] : NULL; }

/* Sends of one direction that can be taken are taken, in order; one that must wait does not hold up the next. */
static void flow(rg_tp_t *tp, uint32_t link) {
    side_t *s = side_at(tp, link);
    if (!s || !s->other) return;
    for (out_t **at = &s->queue; *at;) {
        out_t *o = *at;
        rg_mbox_note(&s->other->box, s->other_link, tp->note);
        if (!rg_mbox_offer(&s->other->box, s->other_link, &o->s.tag, o->s.buf, o->s.len, &o->told)) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        tp->box.n_ops--;
        tp->sent += o->s.len;
        tp->box.links[link]->sent += o->s.len;
        rg_mbox_push(&tp->box, RG_TP_SENT, RG_TP_DONE, link, o->s.cookie, NULL);
        free(o);
        wake(tp);
    }
    wake(s->other);
}

static void cancel_sends(rg_tp_t *tp, uint32_t link, uint64_t below, rg_tp_status_t st) {
    side_t *s = side_at(tp, link);
    for (out_t **at = s ? &s->queue : NULL; at && *at;) {
        out_t *o = *at;
        if (o->s.tag.epoch >= below && st == RG_TP_FENCED) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        tp->box.n_ops--;
        rg_mbox_push(&tp->box, RG_TP_FAILED, st, link, o->s.cookie, NULL);
        free(o);
    }
}

/* name NULL: all of it. */
static void take_back(side_t *s, const uint64_t *name) {
    for (lent_t **at = &s->lends; *at;) {
        lent_t *l = *at;
        if (name && l->l.name != *name) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        free(l);
    }
}

static void part(rg_tp_t *tp, uint32_t link) {
    side_t *s = side_at(tp, link);
    if (!s || !s->other) return;
    rg_tp_t *other = s->other;
    uint32_t other_link = s->other_link;
    s->other = NULL;
    other->sides[other_link].other = NULL;
    take_back(s, NULL);
    take_back(&other->sides[other_link], NULL);
    cancel_sends(other, other_link, 0, RG_TP_GONE);
    rg_mbox_down(&other->box, other_link, "inproc: the peer closed the link");
    wake(other);
}

/* A link to somebody who has a link to us, one dialling and one waiting: both are up. */
static int pair(rg_tp_t *tp, uint32_t link) {
    rg_mbox_link_t *mine = rg_mbox_link(&tp->box, link);
    for (rg_tp_t *e = registry; e; e = e->next) {
        if (!mine || mine->state != MBOX_CONNECTING || memcmp(e->identity, mine->peer.identity, 16) != 0 ||
            !e->nonce_known || !tp->nonce_known || memcmp(e->nonce, tp->nonce, 16) != 0)
            continue;
        for (uint32_t i = 0; i < e->box.n_links; i++) {
            rg_mbox_link_t *l = rg_mbox_link(&e->box, i);
            if (!l || l->state != MBOX_CONNECTING || memcmp(l->peer.identity, tp->identity, 16) != 0 ||
                l->peer.dial == mine->peer.dial)
                continue;
            tp->sides[link].other = e;
            tp->sides[link].other_link = i;
            e->sides[i].other = tp;
            e->sides[i].other_link = link;
            rg_mbox_up(&tp->box, link);
            rg_mbox_up(&e->box, i);
            if (tp->note) rg_mbox_note(&e->box, i, tp->note);
            if (e->note) rg_mbox_note(&tp->box, link, e->note);
            flow(tp, link);
            flow(e, i);
            wake(tp);
            wake(e);
            return 1;
        }
    }
    return 0;
}

static rg_status_t inproc_open(const rg_tp_config_t *config, rg_tp_t **out, uint8_t *addr, uint32_t *addr_len,
                               rg_error_t *err) {
    static const uint8_t none[16];
    *out = NULL;
    rg_tp_t *tp = calloc(1, sizeof *tp);
    if (!tp || rg_mbox_reserve(&tp->box, 64) != 0) {
        free(tp);
        return rg_fail(err, RG_ERR_NOMEM, 0, "inproc: no memory for an endpoint");
    }
    tp->wake = rg_os_high(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (tp->wake < 0) {
        int e = errno;
        rg_mbox_free(&tp->box);
        free(tp);
        return rg_fail(err, RG_ERR_SYSTEM, e, "inproc: cannot make an eventfd: %s", strerror(e));
    }
    memcpy(tp->identity, config->identity, 16);
    memcpy(tp->nonce, config->nonce, 16);
    tp->nonce_known = memcmp(tp->nonce, none, 16) != 0;
    memcpy(addr, "inproc", 6);
    *addr_len = 6;
    pthread_mutex_lock(&lock);
    tp->next = registry;
    registry = tp;
    pthread_mutex_unlock(&lock);
    *out = tp;
    return RG_OK;
}

static void inproc_set_nonce(rg_tp_t *tp, const uint8_t nonce[16]) {
    pthread_mutex_lock(&lock);
    memcpy(tp->nonce, nonce, 16);
    tp->nonce_known = 1;
    for (uint32_t i = 0; i < tp->box.n_links; i++) pair(tp, i);
    pthread_mutex_unlock(&lock);
}

static rg_status_t inproc_connect(rg_tp_t *tp, uint32_t link, const rg_tp_peer_t *peer, rg_error_t *err) {
    if (peer->dial && (peer->addr_len != 6 || memcmp(peer->addr, "inproc", 6) != 0))
        return rg_fail(err, RG_ERR_PROTOCOL, 0, "inproc: the peer's address is not of this transport");
    pthread_mutex_lock(&lock);
    rg_status_t st = rg_mbox_connect(&tp->box, link, peer, rg_os_now_ns(), err);
    if (st == RG_OK && tp->n_sides < tp->box.n_links) {
        side_t *more = realloc(tp->sides, tp->box.n_links * sizeof *more);
        if (more) {
            memset(more + tp->n_sides, 0, (tp->box.n_links - tp->n_sides) * sizeof *more);
            tp->sides = more;
            tp->n_sides = tp->box.n_links;
        } else {
            rg_mbox_drop(&tp->box, link);
            st = rg_fail(err, RG_ERR_NOMEM, 0, "inproc: no memory for a link");
        }
    }
    if (st == RG_OK) pair(tp, link);
    pthread_mutex_unlock(&lock);
    return st;
}

static int inproc_send(rg_tp_t *tp, uint32_t link, const rg_tp_send_t *send) {
    int rc = RG_OK;
    pthread_mutex_lock(&lock);
    rg_mbox_link_t *l = rg_mbox_link(&tp->box, link);
    out_t *o = NULL;
    if (rg_mbox_reserve(&tp->box, 1) != 0) {
        rc = RG_ERR_NOMEM;
    } else if (!l || l->state == MBOX_DOWN || send->tag.epoch < tp->box.fence) {
        rg_mbox_push(&tp->box, RG_TP_FAILED, l && l->state != MBOX_DOWN ? RG_TP_FENCED : RG_TP_GONE, link, send->cookie,
                     NULL);
    } else if (!(o = calloc(1, sizeof *o))) {
        rc = RG_ERR_NOMEM;
    } else {
        o->s = *send;
        out_t **tail = &tp->sides[link].queue;
        while (*tail) tail = &(*tail)->next;
        *tail = o;
        tp->box.n_ops++;
        flow(tp, link);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

static int inproc_recv(rg_tp_t *tp, uint32_t link, const rg_tp_recv_t *recv) {
    pthread_mutex_lock(&lock);
    int rc = rg_mbox_post(&tp->box, link, recv);
    side_t *s = side_at(tp, link);
    if (s && s->other && s->other->sides[s->other_link].queue) flow(s->other, s->other_link);
    pthread_mutex_unlock(&lock);
    return rc;
}

static void inproc_note(rg_tp_t *tp, uint32_t link, uint64_t note, int flush) {
    pthread_mutex_lock(&lock);
    tp->note = note;
    for (uint32_t i = 0; flush && i < tp->n_sides; i++)
        if (tp->sides[i].other && (link == RG_TP_ALL_LINKS || link == i)) {
            rg_mbox_note(&tp->sides[i].other->box, tp->sides[i].other_link, note);
            wake(tp->sides[i].other);
        }
    pthread_mutex_unlock(&lock);
}

static int inproc_poll(rg_tp_t *tp, rg_completion_t *out, int max) {
    uint64_t count;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < tp->box.n_links; i++) {
        rg_mbox_link_t *l = rg_mbox_link(&tp->box, i);
        if (l && l->state == MBOX_CONNECTING && rg_os_now_ns() >= l->deadline) {
            cancel_sends(tp, i, 0, RG_TP_GONE);
            rg_mbox_down(&tp->box, i, "inproc: no endpoint of this group with that identity came in time");
        }
    }
    int n = rg_mbox_take(&tp->box, out, max);
    if (n < max) {
        ssize_t r = read(tp->wake, &count, sizeof count);
        (void)r;
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static int inproc_arm(rg_tp_t *tp, int64_t *timeout_ns) {
    pthread_mutex_lock(&lock);
    int sleep = tp->box.ring.n == 0 && tp->box.notes == 0;
    uint64_t now = rg_os_now_ns();
    for (uint32_t i = 0; i < tp->box.n_links; i++) {
        rg_mbox_link_t *l = rg_mbox_link(&tp->box, i);
        int64_t left =
            l && l->state == MBOX_CONNECTING ? (l->deadline > now ? (int64_t)(l->deadline - now) : 0) : INT64_MAX;
        if (left != INT64_MAX && (*timeout_ns < 0 || left < *timeout_ns)) *timeout_ns = left;
    }
    pthread_mutex_unlock(&lock);
    return sleep;
}

static void inproc_fence(rg_tp_t *tp, uint64_t epoch) {
    pthread_mutex_lock(&lock);
    rg_mbox_fence(&tp->box, epoch);
    for (uint32_t i = 0; i < tp->n_sides; i++) cancel_sends(tp, i, epoch, RG_TP_FENCED);
    /* What waits at the other ends for us may be of an old epoch, and is thrown away then. */
    for (uint32_t i = 0; i < tp->n_sides; i++)
        if (tp->sides[i].other) flow(tp->sides[i].other, tp->sides[i].other_link);
    pthread_mutex_unlock(&lock);
}

static void inproc_drop(rg_tp_t *tp, uint32_t link) {
    pthread_mutex_lock(&lock);
    part(tp, link);
    cancel_sends(tp, link, 0, RG_TP_GONE);
    rg_mbox_drop(&tp->box, link);
    pthread_mutex_unlock(&lock);
}

static void inproc_stats(rg_tp_t *tp, uint32_t link, uint64_t *sent, uint64_t *received) {
    pthread_mutex_lock(&lock);
    *sent = *received = 0;
    for (uint32_t i = 0; i < tp->box.n_links; i++)
        if (tp->box.links[i] && (link == RG_TP_ALL_LINKS || link == i)) {
            *sent += tp->box.links[i]->sent;
            *received += tp->box.links[i]->received;
        }
    pthread_mutex_unlock(&lock);
}

static int inproc_lend(rg_tp_t *tp, uint32_t link, const rg_tp_lend_t *lend) {
    pthread_mutex_lock(&lock);
    side_t *s = side_at(tp, link);
    lent_t *l = s ? s->lends : NULL, *made = NULL;
    while (l && l->l.name != lend->name) l = l->next;
    if (s && s->other && !l && (made = calloc(1, sizeof *made))) {
        made->l = *lend;
        made->next = s->lends;
        s->lends = made;
    }
    pthread_mutex_unlock(&lock);
    return l || made;
}

static void inproc_reclaim(rg_tp_t *tp, uint64_t name) {
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < tp->n_sides; i++) take_back(&tp->sides[i], &name);
    pthread_mutex_unlock(&lock);
}

/* Reads what others may be writing: the stamps tell. */
__attribute__((no_sanitize("thread"))) static void look(void *to, const void *from, uint64_t bytes) {
    const volatile uint8_t *b = from;
    const volatile uint64_t *w = from;
    int whole = ((uintptr_t)from | (uintptr_t)to | bytes) % 8 == 0;
    __asm__ volatile("" ::: "memory");
    for (uint64_t i = 0; whole && i < bytes / 8; i++) ((uint64_t *)to)[i] = w[i];
    for (uint64_t i = 0; !whole && i < bytes; i++) ((uint8_t *)to)[i] = b[i];
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
#ifdef __aarch64__
    __asm__ volatile("dmb ishld" ::: "memory");
#endif
}

static int inproc_fetch(rg_tp_t *tp, uint32_t link, const rg_tp_fetch_t *f) {
    pthread_mutex_lock(&lock);
    const side_t *s = side_at(tp, link);
    const lent_t *l = s && s->other ? s->other->sides[s->other_link].lends : NULL;
    while (l && l->l.name != f->name) l = l->next;
    int ok = l && f->off <= l->l.bytes && f->len <= l->l.bytes - f->off && rg_mbox_reserve(&tp->box, 1) == 0;
    if (ok) {
        look(f->before, l->l.stamp, RG_TP_STAMP * sizeof *f->before);
        uint64_t half = f->len / 16 * 8;
        look(f->dst, (const uint8_t *)l->l.memory + f->off, half);
        if (rg_inproc_half_read) rg_inproc_half_read();
        look((uint8_t *)f->dst + half, (const uint8_t *)l->l.memory + f->off + half, f->len - half);
        look(f->after, l->l.stamp, RG_TP_STAMP * sizeof *f->after);
        rg_mbox_push(&tp->box, RG_TP_RECEIVED, RG_TP_DONE, link, f->cookie, NULL);
        wake(tp);
    }
    pthread_mutex_unlock(&lock);
    return ok;
}

/* None is under way when nobody is in a call. */
static void inproc_unfetch(rg_tp_t *tp, uint32_t link, uint64_t cookie) { (void)tp, (void)link, (void)cookie; }

static int inproc_wake_fd(rg_tp_t *tp) { return tp->wake; }

static void inproc_close(rg_tp_t *tp) {
    if (!tp) return;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < tp->n_sides; i++) {
        part(tp, i);
        cancel_sends(tp, i, 0, RG_TP_GONE);
    }
    rg_tp_t **at = &registry;
    while (*at != tp) at = &(*at)->next;
    *at = tp->next;
    pthread_mutex_unlock(&lock);
    rg_mbox_free(&tp->box);
    free(tp->sides);
    close(tp->wake);
    free(tp);
}

const rg_transport_t rg_transport_inproc = {
    .struct_size = sizeof(rg_transport_t),
    .name = "inproc",
    .open = inproc_open,
    .set_nonce = inproc_set_nonce,
    .connect = inproc_connect,
    .send = inproc_send,
    .recv = inproc_recv,
    .note = inproc_note,
    .poll = inproc_poll,
    .arm = inproc_arm,
    .fence = inproc_fence,
    .drop = inproc_drop,
    .stats = inproc_stats,
    .wake_fd = inproc_wake_fd,
    .close = inproc_close,
    .lend = inproc_lend,
    .reclaim = inproc_reclaim,
    .fetch = inproc_fetch,
    .unfetch = inproc_unfetch,
};
