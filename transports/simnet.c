/* simnet.c: the simulated network, see simnet.h. A send copies its bytes into the network and completes at once, so
 * late messages of a sender that has moved on do arrive, as they do in reality. Relies on mbox.c; no system calls but
 * the eventfd that the table asks for. It must not look at a clock or at any randomness but its own. */
#include "simnet.h"
#include "mbox.h"
#include "observe/log.h"
#include "os/os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef enum kind { EV_UP, EV_DOWN, EV_MESSAGE, EV_NOTE } kind_t;

typedef struct event {
    struct event *next;
    uint64_t at, order;
    kind_t kind;
    rg_tp_t *to;
    rg_tp_t *from;
    uint32_t link; /* of `to` */
    uint64_t life; /* of that link: what was sent to an earlier one is lost */
    uint64_t note;
    rg_tag_t tag;
    uint64_t len;
    int told;
    uint8_t bytes[];
} event_t;

typedef struct side {
    rg_tp_t *other;
    uint32_t other_link;
    uint64_t life;
    uint64_t last_at; /* fifo: nothing to this link arrives before */
    event_t *arrived; /* messages that the mailbox could not take yet */
} side_t;

struct rg_tp {
    rg_tp_t *next;
    rg_simnet_t *world;
    rg_mbox_t box;
    side_t *sides;
    uint32_t n_sides;
    uint8_t identity[16], nonce[16];
    int nonce_known, dead, wake;
    uint64_t note;
};

typedef struct cut {
    uint8_t a[16], b[16];
} cut_t;

struct rg_simnet {
    uint64_t now, rng, order, lives;
    uint64_t least_ns, most_ns;
    int fifo;
    rg_tp_t *endpoints;
    event_t *events; /* by time, then by order */
    cut_t *cuts;
    int n_cuts;
};

static rg_simnet_t *current;

/* ---- The world ---- */

rg_simnet_t *rg_simnet_new(uint64_t seed) {
    rg_simnet_t *w = calloc(1, sizeof *w);
    if (w) {
        w->rng = seed * 2 + 1;
        w->least_ns = 1000;
        w->most_ns = 200000;
        w->fifo = 1;
    }
    return w;
}

void rg_simnet_free(rg_simnet_t *w) {
    if (!w) return;
    while (w->events) {
        event_t *e = w->events;
        w->events = e->next;
        free(e);
    }
    if (current == w) current = NULL;
    free(w->cuts);
    free(w);
}

void rg_simnet_use(rg_simnet_t *w) { current = w; }

void rg_simnet_shape(rg_simnet_t *w, uint64_t least_ns, uint64_t most_ns, int fifo) {
    w->least_ns = least_ns;
    w->most_ns = most_ns > least_ns ? most_ns : least_ns;
    w->fifo = fifo;
}

uint64_t rg_simnet_now(const rg_simnet_t *w) { return w->now; }

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t draw(rg_simnet_t *w) {
    uint64_t z = (w->rng += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int is_cut(const rg_simnet_t *w, const uint8_t a[16], const uint8_t b[16]) {
    for (int i = 0; i < w->n_cuts; i++)
        if ((memcmp(w->cuts[i].a, a, 16) == 0 && memcmp(w->cuts[i].b, b, 16) == 0) ||
            (memcmp(w->cuts[i].a, b, 16) == 0 && memcmp(w->cuts[i].b, a, 16) == 0))
            return 1;
    return 0;
}

static int schedule(rg_simnet_t *w, kind_t kind, rg_tp_t *from, rg_tp_t *to, uint32_t link, const rg_tp_send_t *s,
                    uint64_t note) {
    uint64_t len = s ? s->len : 0;
    event_t *e = malloc(sizeof *e + len);
    if (!e) return -1;
    memset(e, 0, sizeof *e);
    side_t *side = &to->sides[link];
    e->at = w->now + w->least_ns + draw(w) % (w->most_ns - w->least_ns + 1);
    if (w->fifo && kind != EV_UP) {
        if (e->at < side->last_at) e->at = side->last_at;
        side->last_at = e->at;
    }
    e->order = w->order++;
    e->kind = kind;
    e->to = to;
    e->from = from;
    e->link = link;
    e->life = side->life;
    e->note = note;
    if (s) {
        e->tag = s->tag;
        e->len = len;
        if (len) memcpy(e->bytes, s->buf, len);
    }
    event_t **at = &w->events;
    while (*at && (*at)->at <= e->at) at = &(*at)->next;
    e->next = *at;
    *at = e;
    return 0;
}

static void wake(rg_tp_t *tp) {
    uint64_t one = 1;
    ssize_t n = write(tp->wake, &one, sizeof one);
    (void)n;
}

/* Messages that came and could not be taken: again, now that receives may have been posted. */
static void offer_arrived(rg_tp_t *tp, uint32_t link) {
    for (event_t **at = &tp->sides[link].arrived; *at;) {
        event_t *e = *at;
        if (!rg_mbox_offer(&tp->box, link, &e->tag, e->bytes, e->len, &e->told)) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        free(e);
    }
}

static void forget_arrived(rg_tp_t *tp, uint32_t link) {
    while (tp->sides[link].arrived) {
        event_t *e = tp->sides[link].arrived;
        tp->sides[link].arrived = e->next;
        free(e);
    }
}

static void happen(event_t *e) {
    rg_tp_t *tp = e->to;
    rg_mbox_link_t *l = rg_mbox_link(&tp->box, e->link);
    int lost = tp->dead || !l || tp->sides[e->link].life != e->life;
    if (!lost && e->kind == EV_UP) {
        if (l->state == MBOX_CONNECTING) rg_mbox_up(&tp->box, e->link);
    } else if (!lost && e->kind == EV_DOWN) {
        tp->sides[e->link].other = NULL;
        forget_arrived(tp, e->link);
        rg_mbox_down(&tp->box, e->link, "simnet: the connection was lost");
    } else if (!lost && e->kind == EV_NOTE) {
        rg_mbox_note(&tp->box, e->link, e->note);
    } else if (!lost) {
        rg_mbox_note(&tp->box, e->link, e->note);
        event_t **tail = &tp->sides[e->link].arrived;
        while (*tail) tail = &(*tail)->next;
        e->next = NULL;
        *tail = e;
        offer_arrived(tp, e->link);
        wake(tp);
        return;
    }
    if (!lost) wake(tp);
    free(e);
}

int rg_simnet_advance(rg_simnet_t *w, uint64_t ns) {
    int n = 0;
    uint64_t until = w->now + ns;
    while (w->events && w->events->at <= until) {
        event_t *e = w->events;
        w->events = e->next;
        w->now = e->at > w->now ? e->at : w->now;
        happen(e);
        n++;
    }
    w->now = until;
    for (rg_tp_t *tp = w->endpoints; tp; tp = tp->next)
        for (uint32_t i = 0; i < tp->box.n_links; i++) {
            rg_mbox_link_t *l = rg_mbox_link(&tp->box, i);
            if (l && l->state == MBOX_CONNECTING && l->deadline <= until)
                rg_mbox_down(&tp->box, i, "simnet: no peer with that identity came in time");
        }
    return n;
}

/* ---- Faults ---- */

static void break_link(rg_tp_t *tp, uint32_t link) {
    rg_tp_t *other = tp->sides[link].other;
    if (!other) return;
    uint32_t other_link = tp->sides[link].other_link;
    tp->sides[link].other = NULL;
    other->sides[other_link].other = NULL;
    /* What was under way belongs to a life that is over. */
    tp->sides[link].life = ++tp->world->lives;
    other->sides[other_link].life = ++tp->world->lives;
    if (schedule(tp->world, EV_DOWN, other, tp, link, NULL, 0) != 0)
        rg_mbox_down(&tp->box, link, "simnet: the connection was lost");
    if (schedule(tp->world, EV_DOWN, tp, other, other_link, NULL, 0) != 0)
        rg_mbox_down(&other->box, other_link, "simnet: the connection was lost");
}

void rg_simnet_cut(rg_simnet_t *w, const uint8_t a[16], const uint8_t b[16], int on) {
    if (!on) {
        for (int i = 0; i < w->n_cuts; i++) {
            cut_t c = w->cuts[i];
            if ((memcmp(c.a, a, 16) == 0 && memcmp(c.b, b, 16) == 0) ||
                (memcmp(c.a, b, 16) == 0 && memcmp(c.b, a, 16) == 0))
                w->cuts[i--] = w->cuts[--w->n_cuts];
        }
        return;
    }
    cut_t *more = realloc(w->cuts, ((size_t)w->n_cuts + 1) * sizeof *more);
    if (!more) return;
    w->cuts = more;
    memcpy(w->cuts[w->n_cuts].a, a, 16);
    memcpy(w->cuts[w->n_cuts++].b, b, 16);
    for (rg_tp_t *tp = w->endpoints; tp; tp = tp->next)
        for (uint32_t i = 0; i < tp->n_sides; i++)
            if (tp->sides[i].other && is_cut(w, tp->identity, tp->sides[i].other->identity)) break_link(tp, i);
}

void rg_simnet_partition(rg_simnet_t *w, const uint8_t (*set)[16], int n) {
    w->n_cuts = 0;
    for (rg_tp_t *x = w->endpoints; n > 0 && x; x = x->next)
        for (rg_tp_t *y = x->next; y; y = y->next) {
            int in = 0;
            for (int i = 0; i < n; i++)
                in += (memcmp(set[i], x->identity, 16) == 0) + (memcmp(set[i], y->identity, 16) == 0);
            if (in == 1) rg_simnet_cut(w, x->identity, y->identity, 1);
        }
}

void rg_simnet_kill(rg_simnet_t *w, const uint8_t identity[16]) {
    for (rg_tp_t *tp = w->endpoints; tp; tp = tp->next)
        if (memcmp(tp->identity, identity, 16) == 0) {
            for (uint32_t i = 0; i < tp->n_sides; i++) break_link(tp, i);
            tp->dead = 1;
        }
}

/* ---- The table ---- */

static void pair(rg_tp_t *tp, uint32_t link) {
    rg_mbox_link_t *mine = rg_mbox_link(&tp->box, link);
    rg_simnet_t *w = tp->world;
    for (rg_tp_t *e = w->endpoints; e; e = e->next) {
        if (e->dead || tp->dead || tp->sides[link].other || memcmp(e->identity, mine->peer.identity, 16) != 0 ||
            !e->nonce_known || !tp->nonce_known || memcmp(e->nonce, tp->nonce, 16) != 0 ||
            is_cut(w, e->identity, tp->identity))
            continue;
        for (uint32_t i = 0; i < e->n_sides; i++) {
            rg_mbox_link_t *l = rg_mbox_link(&e->box, i);
            if (!l || l->state != MBOX_CONNECTING || e->sides[i].other ||
                memcmp(l->peer.identity, tp->identity, 16) != 0 || l->peer.dial == mine->peer.dial)
                continue;
            tp->sides[link] = (side_t){ .other = e, .other_link = i, .life = ++w->lives };
            e->sides[i] = (side_t){ .other = tp, .other_link = link, .life = ++w->lives };
            /* Out of memory here means that it never comes up: the deadline tells. */
            (void)schedule(w, EV_UP, e, tp, link, NULL, 0);
            (void)schedule(w, EV_UP, tp, e, i, NULL, 0);
            if (tp->note) (void)schedule(w, EV_NOTE, tp, e, i, NULL, tp->note);
            if (e->note) (void)schedule(w, EV_NOTE, e, tp, link, NULL, e->note);
            return;
        }
    }
}

static rg_status_t simnet_open(const rg_tp_config_t *config, rg_tp_t **out, uint8_t *addr, uint32_t *addr_len,
                               rg_error_t *err) {
    static const uint8_t none[16];
    *out = NULL;
    if (!current) return rg_fail(err, RG_ERR_INVALID, 0, "simnet: no world was chosen; call rg_simnet_use() first");
    rg_tp_t *tp = calloc(1, sizeof *tp);
    if (!tp || rg_mbox_reserve(&tp->box, 64) != 0) {
        free(tp);
        return rg_fail(err, RG_ERR_NOMEM, 0, "simnet: no memory for an endpoint");
    }
    tp->wake = rg_os_high(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (tp->wake < 0) {
        int e = errno;
        rg_mbox_free(&tp->box);
        free(tp);
        return rg_fail(err, RG_ERR_SYSTEM, e, "simnet: cannot make an eventfd: %s", strerror(e));
    }
    tp->world = current;
    memcpy(tp->identity, config->identity, 16);
    memcpy(tp->nonce, config->nonce, 16);
    tp->nonce_known = memcmp(tp->nonce, none, 16) != 0;
    memcpy(addr, &tp->world, sizeof tp->world);
    *addr_len = sizeof tp->world;
    tp->next = current->endpoints;
    current->endpoints = tp;
    *out = tp;
    return RG_OK;
}

static void simnet_set_nonce(rg_tp_t *tp, const uint8_t nonce[16]) {
    memcpy(tp->nonce, nonce, 16);
    tp->nonce_known = 1;
    for (uint32_t i = 0; i < tp->n_sides; i++) {
        rg_mbox_link_t *l = rg_mbox_link(&tp->box, i);
        if (l && l->state == MBOX_CONNECTING) pair(tp, i);
    }
}

static rg_status_t simnet_connect(rg_tp_t *tp, uint32_t link, const rg_tp_peer_t *peer, rg_error_t *err) {
    if (peer->dial && (peer->addr_len != sizeof tp->world || memcmp(peer->addr, &tp->world, sizeof tp->world) != 0))
        return rg_fail(err, RG_ERR_PROTOCOL, 0, "simnet: the peer lives in another world");
    rg_status_t st = rg_mbox_connect(&tp->box, link, peer, tp->world->now, err);
    if (st != RG_OK) return st;
    if (tp->n_sides < tp->box.n_links) {
        side_t *more = realloc(tp->sides, tp->box.n_links * sizeof *more);
        if (!more) {
            rg_mbox_drop(&tp->box, link);
            return rg_fail(err, RG_ERR_NOMEM, 0, "simnet: no memory for a link");
        }
        memset(more + tp->n_sides, 0, (tp->box.n_links - tp->n_sides) * sizeof *more);
        tp->sides = more;
        tp->n_sides = tp->box.n_links;
    }
    memset(&tp->sides[link], 0, sizeof tp->sides[link]);
    pair(tp, link);
    return RG_OK;
}

static int simnet_send(rg_tp_t *tp, uint32_t link, const rg_tp_send_t *send) {
    rg_mbox_link_t *l = rg_mbox_link(&tp->box, link);
    rg_tp_status_t st = RG_TP_DONE;
    if (!l || l->state == MBOX_DOWN) st = RG_TP_GONE;
    else if (send->tag.epoch < tp->box.fence) st = RG_TP_FENCED;
    if (rg_mbox_reserve(&tp->box, 1) != 0) return RG_ERR_NOMEM;
    side_t *s = st == RG_TP_DONE ? &tp->sides[link] : NULL;
    /* Without a peer the bytes go nowhere, as into a connection whose end has not been noticed yet. */
    if (s && s->other && !tp->dead && schedule(tp->world, EV_MESSAGE, tp, s->other, s->other_link, send, tp->note) != 0)
        return RG_ERR_NOMEM;
    if (s) l->sent += send->len;
    rg_mbox_push(&tp->box, st == RG_TP_DONE ? RG_TP_SENT : RG_TP_FAILED, st, link, send->cookie, NULL);
    return RG_OK;
}

static int simnet_recv(rg_tp_t *tp, uint32_t link, const rg_tp_recv_t *recv) {
    int rc = rg_mbox_post(&tp->box, link, recv);
    if (rc == RG_OK && rg_mbox_link(&tp->box, link)) offer_arrived(tp, link);
    return rc;
}

static void simnet_note(rg_tp_t *tp, uint32_t link, uint64_t note, int flush) {
    tp->note = note;
    for (uint32_t i = 0; flush && !tp->dead && i < tp->n_sides; i++)
        if (tp->sides[i].other && (link == RG_TP_ALL_LINKS || link == i))
            (void)schedule(tp->world, EV_NOTE, tp, tp->sides[i].other, tp->sides[i].other_link, NULL, note);
}

static int simnet_poll(rg_tp_t *tp, rg_completion_t *out, int max) {
    uint64_t count;
    int n = rg_mbox_take(&tp->box, out, max);
    if (n < max) {
        ssize_t r = read(tp->wake, &count, sizeof count);
        (void)r;
    }
    return n;
}

static int simnet_arm(rg_tp_t *tp, int64_t *timeout_ns) {
    (void)timeout_ns; /* virtual time: the caller moves it, no real timer helps */
    return tp->box.ring.n == 0 && tp->box.notes == 0;
}

static void simnet_fence(rg_tp_t *tp, uint64_t epoch) {
    rg_mbox_fence(&tp->box, epoch);
    for (uint32_t i = 0; i < tp->n_sides; i++)
        if (rg_mbox_link(&tp->box, i)) offer_arrived(tp, i);
}

static void part(rg_tp_t *tp, uint32_t link) {
    side_t *s = &tp->sides[link];
    if (s->other) {
        s->other->sides[s->other_link].other = NULL;
        /* Sent messages still arrive before the end of the stream does. */
        if (schedule(tp->world, EV_DOWN, tp, s->other, s->other_link, NULL, 0) != 0)
            rg_mbox_down(&s->other->box, s->other_link, "simnet: the connection was lost");
    }
    s->other = NULL;
    s->life = ++tp->world->lives;
    forget_arrived(tp, link);
}

static void simnet_drop(rg_tp_t *tp, uint32_t link) {
    if (!rg_mbox_link(&tp->box, link)) return;
    part(tp, link);
    rg_mbox_drop(&tp->box, link);
}

static void simnet_stats(rg_tp_t *tp, uint32_t link, uint64_t *sent, uint64_t *received) {
    *sent = *received = 0;
    for (uint32_t i = 0; i < tp->box.n_links; i++)
        if (tp->box.links[i] && (link == RG_TP_ALL_LINKS || link == i)) {
            *sent += tp->box.links[i]->sent;
            *received += tp->box.links[i]->received;
        }
}

static int simnet_wake_fd(rg_tp_t *tp) { return tp->wake; }

static void simnet_close(rg_tp_t *tp) {
    if (!tp) return;
    rg_simnet_t *w = tp->world;
    for (uint32_t i = 0; i < tp->n_sides; i++) part(tp, i);
    for (event_t **at = &w->events; *at;) {
        event_t *e = *at;
        if (e->to != tp) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        free(e);
    }
    rg_tp_t **at = &w->endpoints;
    while (*at != tp) at = &(*at)->next;
    *at = tp->next;
    rg_mbox_free(&tp->box);
    free(tp->sides);
    close(tp->wake);
    free(tp);
}

const rg_transport_t rg_transport_simnet = {
    .struct_size = sizeof(rg_transport_t),
    .name = "simnet",
    .open = simnet_open,
    .set_nonce = simnet_set_nonce,
    .connect = simnet_connect,
    .send = simnet_send,
    .recv = simnet_recv,
    .note = simnet_note,
    .poll = simnet_poll,
    .arm = simnet_arm,
    .fence = simnet_fence,
    .drop = simnet_drop,
    .stats = simnet_stats,
    .wake_fd = simnet_wake_fd,
    .close = simnet_close,
};
