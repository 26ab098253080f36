/* rdma_rails.c: RDMA links over several adapters: each is an endpoint of the transport `rdma` of its own, and a link is
 * one connection for each pair of them with the same place in both lists. Large messages are cut into as many parts, of
 * the same tag; small ones, notes, and what is told of unasked messages take the first. A part says how long the whole
 * is, so that two ends that do not agree on that see it on each adapter before a byte is written. A link is lost as a
 * whole with the first of its connections. It relies on rdma.c for everything that travels, and must not know how. */
#include "rdma_rails.h"
#include "observe/log.h"
#include "os/os.h"
#include "ring.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define RAILS_MAX 8u
#define NAME_MAX_BYTES 80u
#define PART_MIN (128u << 10)
#define PART_UNIT 64u /* a part begins at a multiple, as elements do */
#define ADDR_BYTES 24u
#define POLL_MAX 32

static const rg_transport_t *const each = &rg_transport_rdma;

typedef enum rail_state { RAIL_FREE, RAIL_CONNECTING, RAIL_UP, RAIL_DOWN } rail_state_t;

typedef struct rail_link {
    rail_state_t state;
    uint32_t rails, up;
    char text[160];
} rail_link_t;

/* A send or receive that has parts which have not ended. */
typedef struct rail_op {
    uint64_t cookie;
    uint32_t left;
    int told;
    rg_tp_status_t st;
} rail_op_t;

struct rg_tp {
    rg_tp_t *rail[RAILS_MAX];
    uint32_t n;
    rail_link_t **links;
    uint32_t n_links, n_ops;
    rg_ring_t ring;
    rg_ring_t early; /* what came by one connection of a link of which others are not up yet */
    int epoll;
};

const rg_transport_t *rg_rdma_for(const rg_config_t *c) {
    return c->rdma_device && strchr(c->rdma_device, ',') ? &rg_transport_rdma_rails : &rg_transport_rdma;
}

static rail_link_t *link_at(const rg_tp_t *tp, uint32_t index) {
    rail_link_t *l = index < tp->n_links ? tp->links[index] : NULL;
    return l && l->state != RAIL_FREE ? l : NULL;
}

/* Room for all that is still to end, what links have to say, and so many more. */
static int reserve(rg_tp_t *tp, uint32_t more) {
    uint64_t need = (uint64_t)tp->ring.n + tp->early.n + tp->n_ops + 2ull * tp->n_links + more;
    return rg_ring_room(&tp->ring, need) != 0 || rg_ring_room(&tp->early, need) != 0;
}

static void push(rg_tp_t *tp, rg_tp_event_t ev, rg_tp_status_t st, uint32_t link, uint64_t cookie) {
    rg_completion_t *c = rg_ring_push(&tp->ring);
    c->event = ev;
    c->status = st;
    c->link = link;
    c->cookie = cookie;
    if (ev == RG_TP_LINK_DOWN) c->text = tp->links[link]->text;
}

/* ---- The endpoint ---- */

static void rails_close(rg_tp_t *tp);

static rg_status_t open_rail(rg_tp_t *tp, const rg_tp_config_t *config, const char *name, uint8_t *addr,
                             uint32_t *addr_len, rg_error_t *err) {
    rg_config_t conf = *config->config;
    rg_tp_config_t c = *config;
    uint8_t one[RG_TP_ADDR_MAX];
    uint32_t len = 0;
    struct epoll_event e = { .events = EPOLLIN };
    conf.rdma_device = name;
    c.config = &conf;
    rg_status_t st = each->open(&c, &tp->rail[tp->n], one, &len, err);
    if (st != RG_OK) return st;
    int fd = each->wake_fd(tp->rail[tp->n++]);
    if (len != ADDR_BYTES || epoll_ctl(tp->epoll, EPOLL_CTL_ADD, fd, &e) != 0)
        return rg_fail(err, RG_ERR_SYSTEM, errno, "rdma: cannot watch the device %s: %s", name, strerror(errno));
    memcpy(addr + *addr_len, one, len); /* one who knows of one only reads the first */
    *addr_len += len;
    return RG_OK;
}

static rg_status_t rails_open(const rg_tp_config_t *config, rg_tp_t **out, uint8_t *addr, uint32_t *addr_len,
                              rg_error_t *err) {
    const char *list = config->config->rdma_device;
    rg_status_t st = RG_OK;
    *out = NULL;
    *addr_len = 0;
    rg_tp_t *tp = calloc(1, sizeof *tp);
    if (!tp) return rg_fail(err, RG_ERR_NOMEM, 0, "rdma: no memory for an endpoint");
    tp->epoll = rg_os_high(epoll_create1(EPOLL_CLOEXEC));
    if (tp->epoll < 0) st = rg_fail(err, RG_ERR_SYSTEM, errno, "rdma: %s", strerror(errno));
    for (const char *p = list; st == RG_OK && p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        char name[NAME_MAX_BYTES];
        size_t len = strcspn(p, ",");
        if (!len || len >= sizeof name || tp->n == RAILS_MAX) {
            st = rg_fail(err, RG_ERR_INVALID, 0,
                         "RG_RDMA_DEVICE is \"%s\": expected one to %u names of devices, as `rdma link` has them, or "
                         "name:port, with commas between them",
                         list, RAILS_MAX);
            break;
        }
        memcpy(name, p, len);
        name[len] = 0;
        st = open_rail(tp, config, name, addr, addr_len, err);
    }
    if (st != RG_OK) {
        rails_close(tp);
        return st;
    }
    *out = tp;
    return RG_OK;
}

static void rails_set_nonce(rg_tp_t *tp, const uint8_t nonce[16]) {
    for (uint32_t i = 0; i < tp->n; i++) each->set_nonce(tp->rail[i], nonce);
}

static void rails_close(rg_tp_t *tp) {
    if (!tp) return;
    for (uint32_t i = 0; i < tp->n; i++) each->close(tp->rail[i]);
    if (tp->epoll >= 0) close(tp->epoll);
    for (uint32_t i = 0; i < tp->n_links; i++) free(tp->links[i]);
    free(tp->links);
    free(tp->ring.v);
    free(tp->early.v);
    free(tp);
}

/* ---- What the rails have to say ---- */

static void drop_rails(rg_tp_t *tp, uint32_t index) {
    for (uint32_t i = 0; i < tp->links[index]->rails; i++) each->drop(tp->rail[i], index);
}

static void emit(rg_tp_t *tp, const rg_completion_t *c) {
    const rail_link_t *l = link_at(tp, c->link);
    *rg_ring_push(l && l->state == RAIL_CONNECTING ? &tp->early : &tp->ring) = *c;
}

static void from_early(rg_tp_t *tp, uint32_t index) {
    rg_completion_t c;
    for (uint32_t n = tp->early.n; n; n--) {
        (void)rg_ring_take(&tp->early, &c, 1);
        *rg_ring_push(c.link == index ? &tp->ring : &tp->early) = c;
    }
}

static void lost(rg_tp_t *tp, uint32_t index, const char *text) {
    rail_link_t *l = tp->links[index];
    l->state = RAIL_DOWN;
    from_early(tp, index);
    snprintf(l->text, sizeof l->text, "%s", text ? text : "rdma: the link is down");
    drop_rails(tp, index); /* what is pending on the others ends with them */
    push(tp, RG_TP_LINK_DOWN, RG_TP_GONE, index, 0);
}

static void part_ended(rg_tp_t *tp, const rg_completion_t *c) {
    rail_op_t *op = (rail_op_t *)(uintptr_t)c->cookie; // NOLINT(performance-no-int-to-ptr)
    int now = --op->left == 0;
    if (c->event == RG_TP_FAILED && op->st == RG_TP_DONE) op->st = c->status;
    /* The other parts would meet the same, and may never come: nothing is written for them. */
    if (!op->told && (now || c->status == RG_TP_MISMATCH)) {
        rg_completion_t to = *c;
        to.cookie = op->cookie;
        to.event = op->st == RG_TP_DONE ? c->event : RG_TP_FAILED;
        to.status = op->st;
        emit(tp, &to);
        op->told = 1;
    }
    if (!now) return;
    tp->n_ops--;
    free(op);
}

static void on_rail(rg_tp_t *tp, uint32_t rail, const rg_completion_t *c) {
    rail_link_t *l = link_at(tp, c->link);
    if (c->event == RG_TP_SENT || c->event == RG_TP_RECEIVED || c->event == RG_TP_FAILED) {
        part_ended(tp, c);
    } else if (!l || l->state == RAIL_DOWN) {
        return;
    } else if (c->event == RG_TP_LINK_UP) {
        if (++l->up < l->rails) return;
        l->state = RAIL_UP;
        push(tp, RG_TP_LINK_UP, RG_TP_DONE, c->link, 0);
        from_early(tp, c->link);
    } else if (c->event == RG_TP_LINK_DOWN) {
        lost(tp, c->link, c->text);
    } else if (rail == 0) { /* NOTE, UNEXPECTED */
        emit(tp, c);
    }
}

static void look(rg_tp_t *tp) {
    rg_completion_t c[POLL_MAX];
    for (uint32_t i = 0; i < tp->n; i++)
        for (int n = POLL_MAX, rounds = 0; n == POLL_MAX && rounds < 16 && reserve(tp, POLL_MAX) == 0; rounds++) {
            n = each->poll(tp->rail[i], c, POLL_MAX);
            for (int k = 0; k < n; k++) on_rail(tp, i, &c[k]);
        }
}

static int rails_poll(rg_tp_t *tp, rg_completion_t *out, int max) {
    look(tp);
    return rg_ring_take(&tp->ring, out, max);
}

static int rails_arm(rg_tp_t *tp, int64_t *timeout_ns) {
    if (tp->ring.n) return 0;
    for (uint32_t i = 0; i < tp->n; i++)
        if (!each->arm(tp->rail[i], timeout_ns)) return 0;
    return 1;
}

static int rails_wake_fd(rg_tp_t *tp) { return tp->epoll; }

/* ---- Links ---- */

static void rails_drop(rg_tp_t *tp, uint32_t index) {
    if (!link_at(tp, index)) return;
    drop_rails(tp, index);
    tp->links[index]->state = RAIL_FREE;
    from_early(tp, index);
}

static rg_status_t rails_connect(rg_tp_t *tp, uint32_t index, const rg_tp_peer_t *peer, rg_error_t *err) {
    rail_link_t *l = link_at(tp, index);
    look(tp); /* what is left of a link that had this number */
    if (l && l->state == RAIL_DOWN && peer->resume) rails_drop(tp, index);
    if (link_at(tp, index)) return rg_fail(err, RG_ERR_INVALID, 0, "link %u is in use; drop it first", index);
    uint32_t theirs = peer->addr_len / ADDR_BYTES;
    if (index >= tp->n_links) {
        uint32_t n = index < 8 ? 8 : index * 2;
        rail_link_t **more = index < UINT32_MAX / 4 ? realloc(tp->links, n * sizeof(*more)) : NULL;
        if (!more) return rg_fail(err, RG_ERR_NOMEM, 0, "rdma: no memory for a link");
        memset(more + tp->n_links, 0, (n - tp->n_links) * sizeof(*more));
        tp->links = more;
        tp->n_links = n;
    }
    if (!tp->links[index]) tp->links[index] = malloc(sizeof(rail_link_t));
    if (!tp->links[index] || reserve(tp, 2) != 0) return rg_fail(err, RG_ERR_NOMEM, 0, "rdma: no memory for a link");
    l = tp->links[index];
    *l = (rail_link_t){ .state = RAIL_CONNECTING, .rails = theirs < 1 ? 1 : theirs < tp->n ? theirs : tp->n };
    for (uint32_t i = 0; i < l->rails; i++) {
        rg_tp_peer_t one = *peer;
        if (theirs) {
            one.addr = peer->addr + (size_t)i * ADDR_BYTES;
            one.addr_len = ADDR_BYTES;
        }
        rg_status_t st = each->connect(tp->rail[i], index, &one, err);
        if (st == RG_OK) continue;
        rails_drop(tp, index);
        return st;
    }
    return RG_OK;
}

/* ---- Messages ---- */

/* How many parts a message of this length has on this link. Both ends come to the same. */
static uint32_t parts_of(const rail_link_t *l, uint64_t len) { return len / PART_MIN >= l->rails ? l->rails : 1; }

static uint64_t part_at(uint64_t len, uint32_t parts, uint32_t i) {
    return i == parts ? len : len / parts / PART_UNIT * PART_UNIT * i;
}

/* Exactly one of s and r. */
static int post(rg_tp_t *tp, uint32_t index, const rg_tp_send_t *s, const rg_tp_recv_t *r) {
    rail_link_t *l = link_at(tp, index);
    uint64_t len = s ? s->len : r->len, cookie = s ? s->cookie : r->cookie;
    if (reserve(tp, 1) != 0) return RG_ERR_NOMEM;
    if (!l || l->state == RAIL_DOWN) {
        push(tp, RG_TP_FAILED, RG_TP_GONE, index, cookie);
        return RG_OK;
    }
    uint32_t parts = parts_of(l, len);
    if (r && r->reduce && parts > 1 && (!r->wire_elem || PART_UNIT % r->wire_elem != 0)) return RG_ERR_INVALID;
    rail_op_t *op = malloc(sizeof *op);
    if (!op) return RG_ERR_NOMEM;
    *op = (rail_op_t){ .cookie = cookie, .left = parts };
    tp->n_ops++;
    for (uint32_t i = 0; i < parts; i++) {
        uint64_t from = part_at(len, parts, i), bytes = part_at(len, parts, i + 1) - from;
        int rc;
        if (parts > 1) rgr_part_of(tp->rail[i], len);
        if (s) {
            rg_tp_send_t p = *s;
            p.cookie = (uintptr_t)op;
            p.len = bytes;
            if (from) p.buf = (const uint8_t *)s->buf + from;
            rc = each->send(tp->rail[i], index, &p);
        } else {
            rg_tp_recv_t p = *r;
            p.cookie = (uintptr_t)op;
            p.len = bytes;
            if (from) p.dst = (uint8_t *)r->dst + (r->reduce ? from / r->wire_elem * r->dst_elem : from);
            if (from && r->reduce) p.a = (const uint8_t *)r->a + from / r->wire_elem * r->a_elem;
            rc = each->recv(tp->rail[i], index, &p);
        }
        if (rc == RG_OK) continue;
        if (rc == RG_TP_DONE_NOW) {
            op->left--;
            continue;
        }
        op->left = i; /* that have been posted */
        if (i) {
            op->st = RG_TP_BROKEN;
            lost(tp, index, "rdma: no memory for a part of a message");
            return RG_OK;
        }
        tp->n_ops--;
        free(op);
        return rc;
    }
    if (op->left) return RG_OK;
    tp->n_ops--;
    free(op);
    return RG_TP_DONE_NOW;
}

static int rails_send(rg_tp_t *tp, uint32_t link, const rg_tp_send_t *s) { return post(tp, link, s, NULL); }

static int rails_recv(rg_tp_t *tp, uint32_t link, const rg_tp_recv_t *r) { return post(tp, link, NULL, r); }

/* Two ways could bring an older one after a newer one. */
static void rails_note(rg_tp_t *tp, uint32_t link, uint64_t note, int flush) {
    each->note(tp->rail[0], link, note, flush);
}

static void rails_fence(rg_tp_t *tp, uint64_t epoch) {
    for (uint32_t i = 0; i < tp->n; i++) each->fence(tp->rail[i], epoch);
}

static void rails_stats(rg_tp_t *tp, uint32_t link, uint64_t *sent, uint64_t *received) {
    *sent = *received = 0;
    for (uint32_t i = 0; i < tp->n; i++) {
        uint64_t s, r;
        each->stats(tp->rail[i], link, &s, &r);
        *sent += s;
        *received += r;
    }
}

static void rails_work(rg_tp_t *tp, uint64_t *copied, uint64_t *reduced) {
    *copied = *reduced = 0;
    for (uint32_t i = 0; i < tp->n; i++) {
        uint64_t c, r;
        each->work(tp->rail[i], &c, &r);
        *copied += c;
        *reduced += r;
    }
}

const rg_transport_t rg_transport_rdma_rails = {
    .struct_size = sizeof(rg_transport_t),
    .name = "rdma",
    .open = rails_open,
    .set_nonce = rails_set_nonce,
    .connect = rails_connect,
    .send = rails_send,
    .recv = rails_recv,
    .note = rails_note,
    .poll = rails_poll,
    .arm = rails_arm,
    .fence = rails_fence,
    .drop = rails_drop,
    .stats = rails_stats,
    .wake_fd = rails_wake_fd,
    .close = rails_close,
    .work = rails_work,
};
