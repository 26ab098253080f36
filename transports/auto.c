/* auto.c: two transports as one, chosen link by link: shared memory (the near one) where both ends prove that they
 * share it, else TCP (the far one). Where this host has a fabric, TCP's place is taken by such a pair again: the fabric
 * (near) where both ends have it and it leads there, else TCP. Who dials decides: it tries the near way if the peer's
 * address says that it is on this machine, and the far one when that fails. Who is dialled waits on both and takes what
 * comes. A near link counts there only once the dialler has said over it that it stays with it (the greeting): a
 * dialler that gave up on a link which the other end had already seen come up would otherwise look like one that died.
 * Once a link is up everything goes to the transport that carries it. The other costs a look now and then.
 * Relies on the tables of both, on rules T1 to T7, and on nothing else of theirs. It must not touch a payload. */
#include "auto.h"
#include "assume.h"
#include "rdma_rails.h"
#include "observe/log.h"
#include "os/os.h"
#include "ring.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

extern const rg_transport_t rg_transport_shm, rg_transport_tcp;

enum { NEAR = 0, FAR = 1 };

#define LOOK_NS 500000u       /* a side without links is looked at so often while the caller polls */
#define LOOK_EVERY 64         /* polls between looks at the clock */
#define RING_SPARE 256        /* most completions taken from a side at once */
#define AGAIN_MAX 3           /* times that an end which is dialled waits anew for a near link */
#define INFANT_NS 2000000000u /* a near link that ends this early without a byte is not tried again */
#define LINKS_MAX 65536u
#define SHUNNED 64
#define SPARE_FDS 12

/* The greeting: no epoch ever fences it, and no operation has such a tag. */
#define GREETING_COOKIE (UINT64_MAX - 0x52476175u)
static const rg_tag_t greeting = { .epoch = UINT64_MAX, .gen = UINT64_MAX, .op = 0x6f746761474eu, .ord = 0, .sig = 1 };

/* An address: the far transport's own, so that members which use that one alone understand it, then the near one's, and
 * a tail that says how long that is and on which machine. */
#define TAIL_BYTES 14

/* What the two pairs do differently. A member that knows nothing of the second takes its tail for a part of the far
 * transport's address, which that one reads past. */
typedef struct kind {
    uint8_t magic[4];     /* of the tail */
    int everywhere;       /* the near way may lead to other machines */
    uint32_t near_share;  /* thousandths of the time that it gets before the far one is tried */
    const char *lacking;  /* what there is not when it cannot be opened */
    const char *expected; /* why it was tried */
} kind_t;
static const kind_t shared_kind = {
    { 'R', 'G', '+', 1 }, 0, 750, "no shared memory, so members on this host are reached", "is on this machine"
};
static const kind_t fabric_kind = { { 'R', 'G', '+', 2 },
                                    1,
                                    400,
                                    "the fabric cannot be used, so members on other hosts are reached",
                                    "has an address on a fabric" };

typedef struct waiting {
    struct waiting *next;
    int is_send;
    rg_tp_send_t s;
    rg_tp_recv_t r;
} waiting_t;

typedef enum auto_state { AUTO_FREE, AUTO_TRYING, AUTO_UP, AUTO_DOWN } auto_state_t;

typedef struct auto_link {
    auto_state_t state;
    uint8_t via;     /* UP, DOWN after UP */
    uint8_t open[2]; /* the side has this link number */
    uint8_t near_up; /* TRYING, dialled: a near link is there, its greeting is not */
    uint8_t dial;
    uint8_t again;
    uint64_t deadline, up_at;
    rg_tp_peer_t peer; /* addr is owned */
    waiting_t *queue, **tail;
    char text[256];
} auto_link_t;

typedef struct side {
    const rg_transport_t *t;
    rg_tp_t *tp;
    uint32_t links; /* that it has open */
    int owes;       /* it has something to report whatever it seems: look at the next poll */
} side_t;

struct rg_tp {
    const kind_t *kind;
    side_t side[2];
    int epoll;
    uint64_t machine;
    auto_link_t **links;
    uint32_t n_links;
    rg_ring_t ring;     /* events that found no place where they arose */
    uint32_t n_waiting; /* operations that wait for their link */
    uint32_t polls;
    int armed; /* the caller may have slept: look at both sides */
    uint64_t looked_at;
    uint8_t shunned[SHUNNED][16]; /* identities of peers on this machine that cannot be reached the near way */
    uint32_t shunned_n;
    void (*log)(void *user, rg_log_level_t level, const char *line);
    void *log_user;
};

static const rg_transport_t *part[2], *fabric;

void rg_auto_fabric(const rg_transport_t *t) { fabric = t; }

void rg_auto_parts(const rg_transport_t *near, const rg_transport_t *far) {
    part[NEAR] = near;
    part[FAR] = far;
}

/* ---- Own events -------------------------------------------------------------------------------------------------- */

static int ring_reserve(rg_tp_t *tp, uint32_t more) {
    /* Each may stand for two (KEEP_BEHIND_UP). */
    return rg_ring_room(&tp->ring, (uint64_t)tp->ring.n + tp->n_waiting + more + 2 * RING_SPARE);
}

/* There is room: for every operation that waits and for all that one poll brings (ring_reserve). */
static rg_completion_t *ring_push(rg_tp_t *tp, rg_tp_event_t event, uint32_t link) {
    rg_completion_t *c = rg_ring_push(&tp->ring);
    c->event = event;
    c->link = link;
    return c;
}

static void push_failed(rg_tp_t *tp, uint32_t link, uint64_t cookie, rg_tp_status_t st) {
    rg_completion_t *c = ring_push(tp, RG_TP_FAILED, link);
    c->status = st;
    c->cookie = cookie;
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

static uint32_t address_join(const rg_tp_t *tp, uint8_t *addr, uint32_t far_len, const uint8_t *near,
                             uint32_t near_len) {
    if (far_len + near_len + TAIL_BYTES > RG_TP_ADDR_MAX) return 0;
    uint8_t *p = addr + far_len;
    memcpy(p, near, near_len);
    p += near_len;
    for (int i = 0; i < 8; i++) *p++ = (uint8_t)(tp->machine >> 8 * i);
    *p++ = (uint8_t)near_len;
    *p++ = (uint8_t)(near_len >> 8);
    memcpy(p, tp->kind->magic, sizeof tp->kind->magic);
    return far_len + near_len + TAIL_BYTES;
}

/* Gives the two parts; without a tail all of it is the far transport's. 1 when there is a near part. */
static int address_split(const rg_tp_t *tp, const uint8_t *addr, uint32_t len, rg_tp_peer_t out[2], uint64_t *machine) {
    const uint8_t *magic = tp->kind->magic;
    out[FAR].addr = addr;
    out[FAR].addr_len = len;
    out[NEAR].addr_len = 0;
    if (!addr || len < TAIL_BYTES || memcmp(addr + len - sizeof tp->kind->magic, magic, sizeof tp->kind->magic) != 0)
        return 0;
    const uint8_t *p = addr + len - TAIL_BYTES;
    uint32_t near_len = (uint32_t)p[8] | (uint32_t)p[9] << 8;
    if (near_len == 0 || near_len > len - TAIL_BYTES) return 0;
    *machine = 0;
    for (int i = 0; i < 8; i++) *machine |= (uint64_t)p[i] << 8 * i;
    out[FAR].addr_len = len - TAIL_BYTES - near_len;
    out[NEAR].addr = addr + out[FAR].addr_len;
    out[NEAR].addr_len = near_len;
    return 1;
}

static void shun(rg_tp_t *tp, const uint8_t identity[16]) {
    memcpy(tp->shunned[tp->shunned_n++ % SHUNNED], identity, 16);
}

static int shunned(const rg_tp_t *tp, const uint8_t identity[16]) {
    for (uint32_t i = 0; i < SHUNNED && i < tp->shunned_n; i++)
        if (memcmp(tp->shunned[i], identity, 16) == 0) return 1;
    return 0;
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static void log_line(rg_tp_t *tp, rg_log_level_t level, const char *text) {
    if (tp->log) tp->log(tp->log_user, level, text);
}

static void queue_fail(rg_tp_t *tp, uint32_t index, auto_link_t *l, uint64_t below, rg_tp_status_t st) {
    for (waiting_t **at = &l->queue; *at;) {
        waiting_t *w = *at;
        if ((w->is_send ? w->s.tag.epoch : w->r.tag.epoch) >= below && st == RG_TP_FENCED) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        tp->n_waiting--;
        push_failed(tp, index, w->is_send ? w->s.cookie : w->r.cookie, st);
        free(w);
    }
    l->tail = &l->queue;
    while (*l->tail) l->tail = &(*l->tail)->next;
}

static void auto_close(rg_tp_t *tp) {
    if (!tp) return;
    for (uint32_t i = 0; i < tp->n_links; i++) {
        auto_link_t *l = tp->links[i];
        while (l && l->queue) {
            waiting_t *w = l->queue;
            l->queue = w->next;
            free(w);
        }
        if (l) free((void *)(uintptr_t)l->peer.addr);
        free(l);
    }
    for (int i = 0; i < 2; i++)
        if (tp->side[i].tp) tp->side[i].t->close(tp->side[i].tp);
    if (tp->epoll >= 0) close(tp->epoll);
    free(tp->links);
    free(tp->ring.v);
    free(tp);
}

static rg_status_t watch(rg_tp_t *tp, int i, rg_error_t *err) {
    struct epoll_event e = { .events = EPOLLIN, .data.u32 = (uint32_t)i };
    if (epoll_ctl(tp->epoll, EPOLL_CTL_ADD, tp->side[i].t->wake_fd(tp->side[i].tp), &e) == 0) return RG_OK;
    return rg_fail(err, RG_ERR_SYSTEM, errno, "cannot watch transport %s", tp->side[i].t->name);
}

/* The near way is a luxury: it must not take the descriptors that the rest of the program cannot do without. */
static rg_status_t leaves_enough(int fd, rg_error_t *err) {
    int spare[SPARE_FDS], n = 0;
    while (n < SPARE_FDS && (spare[n] = fcntl(fd, F_DUPFD_CLOEXEC, 0)) >= 0) n++;
    int enough = n == SPARE_FDS, e = errno;
    while (n > 0) close(spare[--n]);
    return enough ? RG_OK : rg_fail(err, RG_ERR_SYSTEM, e, "it would leave too few file descriptors for the rest");
}

/* Without the near transport everything still works. */
static void open_near(rg_tp_t *tp, const rg_tp_config_t *config, uint8_t *addr, uint32_t *addr_len) {
    uint8_t own[RG_TP_ADDR_MAX];
    uint32_t own_len = 0, len = 0;
    char line[sizeof(rg_error_t) + 80];
    rg_error_t err = { RG_OK, 0, "its address is too long" };
    side_t *s = &tp->side[NEAR];
    rg_status_t st = s->t->open(config, &s->tp, own, &own_len, &err);
    if (st == RG_OK) st = leaves_enough(tp->epoll, &err);
    if (st == RG_OK) st = watch(tp, NEAR, &err);
    if (st == RG_OK) len = address_join(tp, addr, *addr_len, own, own_len);
    if (len) {
        *addr_len = len;
        return;
    }
    snprintf(line, sizeof line, "%s by %s: %s", tp->kind->lacking, tp->side[FAR].t->name, err.text);
    log_line(tp, RG_LOG_WARN, line);
    if (s->tp) s->t->close(s->tp);
    s->tp = NULL;
}

static rg_status_t pair_open(const kind_t *kind, const rg_transport_t *near, const rg_transport_t *far,
                             const rg_tp_config_t *config, rg_tp_t **out, uint8_t *addr, uint32_t *addr_len,
                             rg_error_t *err) {
    *out = NULL;
    rg_tp_t *tp = calloc(1, sizeof *tp);
    if (!tp || ring_reserve(tp, 64) != 0) {
        free(tp);
        return rg_fail(err, RG_ERR_NOMEM, 0, "no memory for the transport");
    }
    tp->log = config->log;
    tp->log_user = config->log_user;
    tp->machine = rg_os_machine() ^ rg_os_name_hash(config->config->host);
    tp->kind = kind;
    tp->side[NEAR].t = near;
    tp->side[FAR].t = far;
    tp->epoll = rg_os_high(epoll_create1(EPOLL_CLOEXEC));
    rg_status_t st = tp->epoll >= 0
                         ? RG_OK
                         : rg_fail(err, RG_ERR_SYSTEM, errno, "cannot make an epoll descriptor: %s", strerror(errno));
    if (st == RG_OK) st = tp->side[FAR].t->open(config, &tp->side[FAR].tp, addr, addr_len, err);
    if (st == RG_OK) st = watch(tp, FAR, err);
    if (st != RG_OK) {
        auto_close(tp);
        return st;
    }
    open_near(tp, config, addr, addr_len);
    *out = tp;
    return RG_OK;
}

/* Adapters are looked for where the kernel lists them: a host without any does not even load the libraries' drivers. */
static const rg_transport_t *fabric_here(const rg_config_t *c) {
    const rg_transport_t *here = fabric;
#ifdef RG_HAVE_RDMA
    struct dirent *entry;
    DIR *folder = here ? NULL : opendir("/sys/class/infiniband");
    while (folder && !here && (entry = readdir(folder)))
        if (entry->d_name[0] != '.') here = rg_rdma_for(c);
    if (folder) closedir(folder);
#endif
    (void)c;
    return here;
}

static rg_status_t fabric_open(const rg_tp_config_t *config, rg_tp_t **out, uint8_t *addr, uint32_t *addr_len,
                               rg_error_t *err) {
    const rg_transport_t *near = fabric_here(config->config);
    *out = NULL;
    if (!near) return rg_fail(err, RG_ERR_NOTSUP, 0, "there is no fabric");
    return pair_open(&fabric_kind, near, &rg_transport_tcp, config, out, addr, addr_len, err);
}

/* What a fabric carries is not encrypted: with TLS it is left alone. */
static rg_status_t auto_open(const rg_tp_config_t *config, rg_tp_t **out, uint8_t *addr, uint32_t *addr_len,
                             rg_error_t *err) {
    const rg_transport_t *far = !config->tls && fabric_here(config->config) ? &rg_transport_fabric : &rg_transport_tcp;
    return pair_open(&shared_kind, part[NEAR] ? part[NEAR] : &rg_transport_shm, part[FAR] ? part[FAR] : far, config,
                     out, addr, addr_len, err);
}

static void auto_set_nonce(rg_tp_t *tp, const uint8_t nonce[16]) {
    for (int i = 0; i < 2; i++)
        if (tp->side[i].tp) tp->side[i].t->set_nonce(tp->side[i].tp, nonce);
}

/* ---- Choosing the way -------------------------------------------------------------------------------------------- */

static auto_link_t *link_at(const rg_tp_t *tp, uint32_t index) { return index < tp->n_links ? tp->links[index] : NULL; }

static void side_drop(rg_tp_t *tp, uint32_t index, auto_link_t *l, int i) {
    if (!l->open[i]) return;
    tp->side[i].t->drop(tp->side[i].tp, index);
    tp->side[i].links--;
    tp->side[i].owes = 1;
    l->open[i] = 0;
    if (i == NEAR) l->near_up = 0;
}

/* In thousandths of what is left of the link's time. */
static rg_status_t side_connect(rg_tp_t *tp, uint32_t index, auto_link_t *l, int i, uint32_t part_of_1000,
                                rg_error_t *err) {
    rg_tp_peer_t parts[2] = { l->peer, l->peer };
    uint64_t machine, now = rg_os_now_ns();
    uint64_t left_ms = l->deadline > now ? (l->deadline - now + 999999) / 1000000 : 0;
    address_split(tp, l->peer.addr, l->peer.addr_len, parts, &machine);
    parts[i].timeout_ms = (uint32_t)((left_ms * part_of_1000 + 999) / 1000);
    rg_status_t st = tp->side[i].t->connect(tp->side[i].tp, index, &parts[i], err);
    if (st != RG_OK) return st;
    l->open[i] = 1;
    tp->side[i].links++;
    tp->side[i].owes = 1;
    return RG_OK;
}

/* The near way was tried and does not lead there: one line for a peer, from the end that dials, and no second try. */
static void tell_why(rg_tp_t *tp, uint32_t index, auto_link_t *l, const char *why) {
    char line[400];
    if (shunned(tp, l->peer.identity)) return;
    shun(tp, l->peer.identity);
    snprintf(line, sizeof line, "link %u: the peer %s but %s cannot be used with it, so %s is: %s", index,
             tp->kind->expected, tp->side[NEAR].t->name, tp->side[FAR].t->name,
             why && *why ? why : "no reason was given");
    log_line(tp, RG_LOG_WARN, line);
}

static void settle(rg_tp_t *tp, uint32_t index, auto_link_t *l, int i) {
    side_drop(tp, index, l, !i);
    l->state = AUTO_UP;
    l->via = (uint8_t)i;
    l->up_at = rg_os_now_ns();
    side_t *s = &tp->side[i];
    while (l->queue) {
        waiting_t *w = l->queue;
        l->queue = w->next;
        tp->n_waiting--;
        int rc = w->is_send ? s->t->send(s->tp, index, &w->s) : s->t->recv(s->tp, index, &w->r);
        if (rc == RG_TP_DONE_NOW)
            ring_push(tp, w->is_send ? RG_TP_SENT : RG_TP_RECEIVED, index)->cookie =
                w->is_send ? w->s.cookie : w->r.cookie;
        else if (rc < 0) push_failed(tp, index, w->is_send ? w->s.cookie : w->r.cookie, RG_TP_BROKEN);
        free(w);
    }
    l->tail = &l->queue;
    s->owes = 1;
}

static void give_up(rg_tp_t *tp, uint32_t index, auto_link_t *l, const char *text) {
    if (text != l->text) snprintf(l->text, sizeof l->text, "%s", text ? text : "");
    side_drop(tp, index, l, NEAR);
    side_drop(tp, index, l, FAR);
    l->state = AUTO_DOWN;
    queue_fail(tp, index, l, 0, RG_TP_GONE);
}

/* One way has failed before the link was up. 1 when that was the last one: it is down, for the reason in l->text. */
static int side_failed(rg_tp_t *tp, uint32_t index, auto_link_t *l, int i, const char *text) {
    rg_error_t err = { RG_OK, 0, "" };
    uint64_t now = rg_os_now_ns();
    snprintf(l->text, sizeof l->text, "%s", text ? text : "");
    side_drop(tp, index, l, i);
    if (l->dial && i == NEAR) {
        tell_why(tp, index, l, l->text);
        if (now < l->deadline && side_connect(tp, index, l, FAR, 1000, &err) == RG_OK) return 0;
        if (err.text[0]) snprintf(l->text, sizeof l->text, "%.255s", err.text);
    } else if (!l->dial && i == NEAR) {
        if (now < l->deadline && l->again++ < AGAIN_MAX) side_connect(tp, index, l, NEAR, 1000, &err);
        if (l->open[FAR]) return 0;
    } else if (!l->dial && l->near_up) {
        return 0;
    }
    give_up(tp, index, l, l->text);
    return 1;
}

static auto_link_t *link_new(rg_tp_t *tp, uint32_t index) {
    if (index >= tp->n_links) {
        uint32_t n = tp->n_links ? tp->n_links : 8;
        while (n <= index) n *= 2;
        auto_link_t **more = realloc(tp->links, n * sizeof *more);
        if (!more) return NULL;
        memset(more + tp->n_links, 0, (n - tp->n_links) * sizeof *more);
        tp->links = more;
        tp->n_links = n;
    }
    if (!tp->links[index]) tp->links[index] = calloc(1, sizeof(auto_link_t));
    return tp->links[index];
}

static void link_forget(auto_link_t *l) {
    free((void *)(uintptr_t)l->peer.addr);
    memset(l, 0, sizeof *l);
    l->tail = &l->queue;
}

static rg_status_t try_ways(rg_tp_t *tp, uint32_t index, auto_link_t *l, rg_error_t *err) {
    rg_tp_peer_t parts[2];
    rg_error_t near_err = { RG_OK, 0, "" };
    uint64_t machine = 0;
    int known = address_split(tp, l->peer.addr, l->peer.addr_len, parts, &machine);
    int close_by = tp->side[NEAR].tp && known && (tp->kind->everywhere || machine == tp->machine);
    if (!l->dial) {
        rg_status_t st = side_connect(tp, index, l, FAR, 1000, err);
        if (st == RG_OK && close_by) (void)side_connect(tp, index, l, NEAR, 1000, &near_err);
        return st;
    }
    if (close_by && !shunned(tp, l->peer.identity)) {
        /* Some of the time is kept for the far way, should the near one not even fail. */
        if (side_connect(tp, index, l, NEAR, tp->kind->near_share, &near_err) == RG_OK) return RG_OK;
        tell_why(tp, index, l, near_err.text);
    }
    return side_connect(tp, index, l, FAR, 1000, err);
}

/* A link of the fabric that is lost goes on over the far way, if the caller may have links begun anew; whoever is at
 * its other end sees it go down, too, and does the same. */
static rg_status_t fall_back(rg_tp_t *tp, uint32_t index, auto_link_t *l, const rg_tp_peer_t *peer, rg_error_t *err) {
    rg_tp_peer_t parts[2] = { *peer, *peer };
    uint64_t machine;
    address_split(tp, peer->addr, peer->addr_len, parts, &machine);
    side_drop(tp, index, l, NEAR);
    rg_status_t st = tp->side[FAR].t->connect(tp->side[FAR].tp, index, &parts[FAR], err);
    if (st != RG_OK) return st;
    shun(tp, peer->identity);
    l->open[FAR] = 1;
    tp->side[FAR].links++;
    tp->side[FAR].owes = 1;
    l->via = FAR;
    l->state = AUTO_UP; /* what is sent until it is up waits there */
    return RG_OK;
}

/* A stream that is lost is begun anew the way that it went; the far transport knows whether that can be. */
static rg_status_t begin_anew(rg_tp_t *tp, uint32_t index, auto_link_t *l, const rg_tp_peer_t *peer, rg_error_t *err) {
    rg_tp_peer_t parts[2] = { *peer, *peer };
    uint64_t machine;
    address_split(tp, peer->addr, peer->addr_len, parts, &machine);
    rg_status_t st = tp->side[FAR].t->connect(tp->side[FAR].tp, index, &parts[FAR], err);
    tp->side[FAR].owes = 1;
    if (st == RG_OK) l->state = AUTO_UP; /* what is sent until it is up waits there */
    return st;
}

static rg_status_t auto_connect(rg_tp_t *tp, uint32_t index, const rg_tp_peer_t *peer, rg_error_t *err) {
    if (index >= LINKS_MAX)
        return rg_fail(err, RG_ERR_RESOURCE, 0, "link number %u is above the limit of %u", index, LINKS_MAX - 1);
    auto_link_t *l = link_at(tp, index);
    if (l && l->state == AUTO_DOWN && l->open[FAR] && l->via == FAR && peer->resume)
        return begin_anew(tp, index, l, peer, err);
    if (l && l->state == AUTO_DOWN && l->open[NEAR] && l->via == NEAR && peer->resume && tp->kind->everywhere)
        return fall_back(tp, index, l, peer, err);
    if (l && l->state != AUTO_FREE) return rg_fail(err, RG_ERR_INVALID, 0, "link %u is in use; drop it first", index);
    l = link_new(tp, index);
    uint8_t *addr = malloc(peer->addr_len + 1);
    if (!l || !addr || ring_reserve(tp, 4) != 0) {
        free(addr);
        return rg_fail(err, RG_ERR_NOMEM, 0, "no memory for a link");
    }
    link_forget(l);
    l->peer = *peer;
    if (peer->addr_len) memcpy(addr, peer->addr, peer->addr_len);
    l->peer.addr = addr;
    l->dial = peer->dial != 0;
    l->deadline = rg_os_now_ns() + peer->timeout_ms * 1000000ull;
    l->state = AUTO_TRYING;
    rg_status_t st = try_ways(tp, index, l, err);
    if (st != RG_OK) link_forget(l);
    return st;
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static int keep_or_refuse(rg_tp_t *tp, uint32_t index, auto_link_t *l, const rg_tp_send_t *s, const rg_tp_recv_t *r) {
    RG_ASSUME(s || r);
    uint64_t cookie = s ? s->cookie : r->cookie;
    if (ring_reserve(tp, 1) != 0) return RG_ERR_NOMEM;
    if (!l || l->state != AUTO_TRYING) {
        push_failed(tp, index, cookie, RG_TP_GONE);
        return RG_OK;
    }
    waiting_t *w = calloc(1, sizeof *w);
    if (!w) return RG_ERR_NOMEM;
    tp->n_waiting++;
    w->is_send = s != NULL;
    if (s) w->s = *s;
    else w->r = *r;
    *l->tail = w;
    l->tail = &w->next;
    return RG_OK;
}

static int auto_send(rg_tp_t *tp, uint32_t index, const rg_tp_send_t *s) {
    auto_link_t *l = link_at(tp, index);
    if (!l || l->state != AUTO_UP) return keep_or_refuse(tp, index, l, s, NULL);
    return tp->side[l->via].t->send(tp->side[l->via].tp, index, s);
}

static int auto_recv(rg_tp_t *tp, uint32_t index, const rg_tp_recv_t *r) {
    auto_link_t *l = link_at(tp, index);
    if (!l || l->state != AUTO_UP) return keep_or_refuse(tp, index, l, NULL, r);
    return tp->side[l->via].t->recv(tp->side[l->via].tp, index, r);
}

static const side_t *side_of(const rg_tp_t *tp, uint32_t index) {
    const auto_link_t *l = link_at(tp, index);
    const side_t *s = l && l->state == AUTO_UP ? &tp->side[l->via] : NULL;
    return s && s->t->peek ? s : NULL;
}

static int auto_put(rg_tp_t *tp, uint32_t index, const rg_tp_send_t *send) {
    const side_t *s = side_of(tp, index);
    return s ? s->t->put(s->tp, index, send) : 0;
}

static const void *auto_peek(rg_tp_t *tp, uint32_t index, const rg_tag_t *tag, uint64_t len) {
    const side_t *s = side_of(tp, index);
    return s ? s->t->peek(s->tp, index, tag, len) : NULL;
}

static uint64_t auto_taken(rg_tp_t *tp, uint32_t index) {
    const side_t *s = &tp->side[tp->links[index]->via];
    return s->t->taken(s->tp, index);
}

/* The side that carries this link, where it has an entry for memory that is lent. */
static const side_t *lending(const rg_tp_t *tp, uint32_t index) {
    const auto_link_t *l = link_at(tp, index);
    const side_t *s = l && l->state == AUTO_UP ? &tp->side[l->via] : NULL;
    return s && s->t->lend ? s : NULL;
}

static int auto_lend(rg_tp_t *tp, uint32_t index, const rg_tp_lend_t *lend) {
    const side_t *s = lending(tp, index);
    return s ? s->t->lend(s->tp, index, lend) : 0;
}

static void auto_reclaim(rg_tp_t *tp, uint64_t name) {
    for (int i = 0; i < 2; i++) {
        side_t *s = &tp->side[i];
        if (!s->tp || !s->t->lend) continue;
        s->t->reclaim(s->tp, name);
        s->owes = 1;
    }
}

static int auto_fetch(rg_tp_t *tp, uint32_t index, const rg_tp_fetch_t *fetch) {
    const side_t *s = lending(tp, index);
    return s ? s->t->fetch(s->tp, index, fetch) : 0;
}

static void auto_unfetch(rg_tp_t *tp, uint32_t index, uint64_t cookie) {
    const auto_link_t *l = link_at(tp, index);
    side_t *s = l && l->state == AUTO_UP ? &tp->side[l->via] : NULL;
    if (!s || !s->t->lend) return; /* all has ended with the link */
    s->t->unfetch(s->tp, index, cookie);
    s->owes = 1;
}

static void auto_note(rg_tp_t *tp, uint32_t index, uint64_t note, int flush) {
    for (int i = 0; i < 2; i++)
        if (tp->side[i].tp) tp->side[i].t->note(tp->side[i].tp, index, note, flush);
}

static void auto_fence(rg_tp_t *tp, uint64_t epoch) {
    for (int i = 0; i < 2; i++)
        if (tp->side[i].tp) {
            tp->side[i].t->fence(tp->side[i].tp, epoch);
            tp->side[i].owes = 1;
        }
    for (uint32_t k = 0; k < tp->n_links; k++)
        if (tp->links[k] && tp->links[k]->queue) queue_fail(tp, k, tp->links[k], epoch, RG_TP_FENCED);
}

static void auto_drop(rg_tp_t *tp, uint32_t index) {
    auto_link_t *l = link_at(tp, index);
    if (!l || l->state == AUTO_FREE) return;
    side_drop(tp, index, l, NEAR);
    side_drop(tp, index, l, FAR);
    queue_fail(tp, index, l, 0, RG_TP_GONE);
    link_forget(l);
}

static void auto_stats(rg_tp_t *tp, uint32_t index, uint64_t *sent, uint64_t *received) {
    *sent = *received = 0;
    for (int i = 0; i < 2; i++) {
        uint64_t s = 0, r = 0;
        auto_link_t *l = link_at(tp, index);
        if (!tp->side[i].tp || (index != RG_TP_ALL_LINKS && !(l && l->open[i]))) continue;
        tp->side[i].t->stats(tp->side[i].tp, index, &s, &r);
        *sent += s;
        *received += r;
    }
}

static void auto_link_info(rg_tp_t *tp, uint32_t index, rg_tp_link_info_t *out) {
    auto_link_t *l = link_at(tp, index);
    *out = (rg_tp_link_info_t){ 0 };
    if (l && l->state == AUTO_UP && tp->side[l->via].t->link_info)
        tp->side[l->via].t->link_info(tp->side[l->via].tp, index, out);
}

static uint32_t auto_peer_cpu(rg_tp_t *tp, uint32_t index) {
    auto_link_t *l = link_at(tp, index);
    if (!l || l->state != AUTO_UP || !tp->side[l->via].t->peer_cpu) return 0;
    return tp->side[l->via].t->peer_cpu(tp->side[l->via].tp, index);
}

static void auto_work(rg_tp_t *tp, uint64_t *copied, uint64_t *reduced) {
    *copied = *reduced = 0;
    for (int i = 0; i < 2; i++) {
        uint64_t c = 0, r = 0;
        if (!tp->side[i].tp || !tp->side[i].t->work) continue;
        tp->side[i].t->work(tp->side[i].tp, &c, &r);
        *copied += c;
        *reduced += r;
    }
}

static void auto_route(rg_tp_t *tp, uint32_t index, const rg_tp_peer_t *relay) {
    rg_tp_peer_t parts[2];
    uint64_t machine;
    side_t *s = &tp->side[FAR];
    if (!s->t->route) return;
    if (relay) {
        parts[NEAR] = parts[FAR] = *relay;
        address_split(tp, relay->addr, relay->addr_len, parts, &machine);
    }
    s->t->route(s->tp, index, relay ? &parts[FAR] : NULL);
    s->owes = 1;
}

static void auto_relay(rg_tp_t *tp, const uint8_t a[16], const uint8_t b[16], int on) {
    side_t *s = &tp->side[FAR];
    if (s->t->relay) s->t->relay(s->tp, a, b, on);
    s->owes = 1;
}

/* ---- The round --------------------------------------------------------------------------------------------------- */

typedef enum verdict { SWALLOW, KEEP, KEEP_BEHIND_UP } verdict_t;

static verdict_t turn_down(auto_link_t *l, rg_completion_t *c) {
    *c = (rg_completion_t){ .event = RG_TP_LINK_DOWN, .link = c->link, .text = l->text };
    return KEEP;
}

static verdict_t turn_up(rg_tp_t *tp, auto_link_t *l, int i, rg_completion_t *c) {
    uint64_t note = c->event == RG_TP_LINK_UP ? c->note : 0;
    settle(tp, c->link, l, i);
    *c = (rg_completion_t){ .event = RG_TP_LINK_UP, .link = c->link, .note = note };
    return KEEP;
}

/* The near link is there. Who dialled says that it stays with it; who was dialled waits for that word. */
static verdict_t on_near_up(rg_tp_t *tp, auto_link_t *l, rg_completion_t *c) {
    side_t *s = &tp->side[NEAR];
    if (l->dial) {
        const rg_tp_send_t hello = { .tag = greeting, .cookie = GREETING_COOKIE };
        if (s->t->send(s->tp, c->link, &hello) >= 0) return turn_up(tp, l, NEAR, c);
    } else {
        const rg_tp_recv_t hello = { .tag = greeting, .cookie = GREETING_COOKIE };
        l->near_up = 1;
        int rc = s->t->recv(s->tp, c->link, &hello);
        if (rc == RG_TP_DONE_NOW) return turn_up(tp, l, NEAR, c);
        if (rc >= 0) return SWALLOW;
    }
    return side_failed(tp, c->link, l, NEAR, "no memory for a greeting") ? turn_down(l, c) : SWALLOW;
}

static verdict_t on_link_down(rg_tp_t *tp, auto_link_t *l, int i, rg_completion_t *c) {
    if (l->state == AUTO_TRYING) return side_failed(tp, c->link, l, i, c->text) ? turn_down(l, c) : SWALLOW;
    uint64_t sent = 0, received = 0;
    snprintf(l->text, sizeof l->text, "%s", c->text ? c->text : "");
    c->text = c->text ? l->text : NULL;
    l->state = AUTO_DOWN;
    if (i == NEAR && l->dial && rg_os_now_ns() - l->up_at < INFANT_NS) {
        auto_stats(tp, c->link, &sent, &received);
        if (!received) tell_why(tp, c->link, l, l->text);
    }
    return KEEP;
}

static verdict_t on_event(rg_tp_t *tp, int i, rg_completion_t *c) {
    auto_link_t *l = link_at(tp, c->link);
    switch (c->event) {
    case RG_TP_SENT:
    case RG_TP_RECEIVED:
    case RG_TP_FAILED:
        if (c->cookie != GREETING_COOKIE) return KEEP;
        if (c->event == RG_TP_RECEIVED && l && l->state == AUTO_TRYING && l->near_up) return turn_up(tp, l, NEAR, c);
        return SWALLOW;
    case RG_TP_LINK_UP:
        if (l && l->state == AUTO_UP && l->via == i) return KEEP; /* back again */
        if (!l || l->state != AUTO_TRYING || !l->open[i]) return SWALLOW;
        return i == NEAR ? on_near_up(tp, l, c) : turn_up(tp, l, FAR, c);
    case RG_TP_LINK_DOWN:
        if (!l || !l->open[i] || l->state == AUTO_DOWN || l->state == AUTO_FREE) return SWALLOW;
        return on_link_down(tp, l, i, c);
    case RG_TP_UNEXPECTED:
        if (memcmp(&c->tag, &greeting, sizeof greeting) == 0) return SWALLOW;
        break;
    case RG_TP_LINK_LOST:
    case RG_TP_NOTE: break;
    }
    if (!l || !l->open[i]) return SWALLOW;
    if (l->state == AUTO_UP) return KEEP;
    /* Who dialled uses the link: that says as much as a greeting, which may be seen a little later. */
    return l->state == AUTO_TRYING && l->near_up ? KEEP_BEHIND_UP : SWALLOW;
}

/* Takes what a side has to say and leaves in out[] what the caller is to know. Once an event has found no place there
 * the rest queues behind it. */
static int take_side(rg_tp_t *tp, int i, rg_completion_t *out, int max) {
    int n = 0;
    uint32_t queued = tp->ring.n;
    int most = max < RING_SPARE ? max : RING_SPARE, got = tp->side[i].t->poll(tp->side[i].tp, out, most);
    tp->side[i].owes = got == most;
    for (int k = 0; k < got; k++) {
        rg_completion_t c = out[k];
        rg_completion_t up = { .event = RG_TP_LINK_UP, .link = c.link };
        int direct = tp->ring.n == queued; /* before that: what it sets going may queue events of its own */
        verdict_t v = on_event(tp, i, &c);
        if (v == SWALLOW) continue;
        const rg_completion_t *first = v == KEEP_BEHIND_UP ? &up : &c;
        if (direct) out[n++] = *first;
        else *ring_push(tp, first->event, c.link) = *first;
        if (v != KEEP_BEHIND_UP) continue;
        settle(tp, c.link, tp->links[c.link], i);
        *ring_push(tp, c.event, c.link) = c;
    }
    return n;
}

static int auto_poll(rg_tp_t *tp, rg_completion_t *out, int max) {
    int n = rg_ring_take(&tp->ring, out, max), look = 0;
    if (tp->ring.n || ring_reserve(tp, 2) != 0) return n;
    if (++tp->polls % LOOK_EVERY == 0 && (!tp->side[NEAR].links || !tp->side[FAR].links)) {
        uint64_t now = rg_os_now_ns();
        look = now - tp->looked_at >= LOOK_NS;
        if (look) tp->looked_at = now;
    }
    int i = NEAR;
    for (; i <= FAR && n < max; i++) {
        side_t *s = &tp->side[i];
        if (!s->tp || (!s->links && !s->owes && !look && !tp->armed)) continue;
        if (!s->links && look) { /* who arms a transport makes it look at its descriptors */
            int64_t ns = INT64_MAX;
            s->t->arm(s->tp, &ns);
        }
        n += take_side(tp, i, out + n, max - n);
        n += rg_ring_take(&tp->ring, out + n,
                          max - n); /* who is given less than they have room for has been given all */
    }
    if (i > FAR) tp->armed = 0;
    return n;
}

static int auto_arm(rg_tp_t *tp, int64_t *timeout_ns) {
    if (tp->ring.n) return 0;
    for (int i = NEAR; i <= FAR; i++) {
        if (!tp->side[i].tp) continue;
        if (tp->side[i].owes) return 0;
        tp->side[i].owes = !tp->side[i].t->arm(tp->side[i].tp, timeout_ns);
        if (tp->side[i].owes) return 0;
    }
    tp->armed = 1;
    return 1;
}

/* Visitors come to the far transport's port: its address comes first, and it reads past what follows. */
static int auto_visitor(rg_tp_t *tp, rg_tp_visitor_t *out) {
    const side_t *far = &tp->side[FAR];
    return far->t->visitor ? far->t->visitor(far->tp, out) : 0;
}

static int auto_places(rg_tp_t *tp, const uint8_t *addr, uint32_t len, struct sockaddr_storage *out, int max) {
    const side_t *far = &tp->side[FAR];
    return far->t->places ? far->t->places(far->tp, addr, len, out, max) : 0;
}

static int auto_wake_fd(rg_tp_t *tp) { return tp->epoll; }

#define PAIR_TABLE                                                                                                     \
    .set_nonce = auto_set_nonce, .connect = auto_connect, .send = auto_send, .recv = auto_recv, .note = auto_note,     \
    .poll = auto_poll, .arm = auto_arm, .fence = auto_fence, .drop = auto_drop, .stats = auto_stats,                   \
    .wake_fd = auto_wake_fd, .close = auto_close, .link_info = auto_link_info, .put = auto_put, .peek = auto_peek,     \
    .taken = auto_taken, .visitor = auto_visitor, .places = auto_places, .route = auto_route, .relay = auto_relay,     \
    .work = auto_work, .lend = auto_lend, .reclaim = auto_reclaim, .fetch = auto_fetch, .unfetch = auto_unfetch,       \
    .peer_cpu = auto_peer_cpu,

const rg_transport_t rg_transport_auto = {
    .struct_size = sizeof(rg_transport_t), .name = "auto", .open = auto_open, PAIR_TABLE
};
const rg_transport_t rg_transport_fabric = {
    .struct_size = sizeof(rg_transport_t), .name = "fabric or tcp", .open = fabric_open, PAIR_TABLE
};
