/* shm.c: the shared memory transport: the table's functions, and the round that poll() makes. The parts are listed in
 * shm_internal.h. A poll looks at one cache line per link; the socket and what the clock brings are looked at now and
 * then, and before the caller sleeps. A sleeper says so in its segments, and who writes a frame for it rings a bell.
 * Relies on Linux (memory objects, abstract Unix sockets). Must not block, and must not allocate per message once it
 * has warmed up. */
#include "shm_internal.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define SWEEP_EVERY 64 /* polls between looks at the socket */

/* ---- Log, completions, operations ---- */

void rgm_log(rg_tp_t *tp, rg_log_level_t level, const char *fmt, ...) {
    char line[480];
    if (!tp->cfg.log) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    tp->cfg.log(tp->cfg.log_user, level, line);
}

int rgm_ring_reserve(rg_tp_t *tp, uint32_t more) {
    /* Every operation ends once; a link can come up and go down. */
    return rg_ring_room(&tp->ring, (uint64_t)tp->ring.n + tp->n_ops + 2ull * tp->n_links + more);
}

static void complete(rg_tp_t *tp, const link_t *l, rg_tp_event_t ok, rg_tp_status_t st, uint64_t cookie,
                     const rg_tag_t *tag) {
    rg_completion_t *c = rg_ring_push(&tp->ring);
    c->event = st == RG_TP_DONE ? ok : RG_TP_FAILED;
    c->status = st;
    c->link = l->index;
    c->cookie = cookie;
    if (tag) c->tag = *tag;
}

void rgm_send_done(rg_tp_t *tp, link_t *l, send_op_t *op, rg_tp_status_t st) {
    complete(tp, l, RG_TP_SENT, st, op->s.cookie, NULL);
    op->next = tp->free_sends;
    tp->free_sends = op;
    tp->n_ops--;
}

void rgm_recv_done(rg_tp_t *tp, link_t *l, recv_op_t *op, rg_tp_status_t st, const rg_tag_t *came) {
    if (tp->now_op == op && st == RG_TP_DONE) tp->now_op = NULL;
    else complete(tp, l, RG_TP_RECEIVED, st, op->r.cookie, came);
    op->next = tp->free_recvs;
    tp->free_recvs = op;
    tp->n_ops--;
}

void rgm_recv_unlink(link_t *l, recv_op_t *op) {
    recv_op_t **at = &l->recv_head;
    while (*at != op) at = &(*at)->next;
    *at = op->next;
    if (l->recv_tail == &op->next) l->recv_tail = at;
}

static send_op_t *send_new(rg_tp_t *tp) {
    if (rgm_ring_reserve(tp, 1) != 0) return NULL;
    send_op_t *op = tp->free_sends;
    if (op) tp->free_sends = op->next;
    else if (!(op = malloc(sizeof *op))) return NULL;
    memset(op, 0, sizeof *op);
    tp->n_ops++;
    return op;
}

static recv_op_t *recv_new(rg_tp_t *tp) {
    if (rgm_ring_reserve(tp, 1) != 0) return NULL;
    recv_op_t *op = tp->free_recvs;
    if (op) tp->free_recvs = op->next;
    else if (!(op = malloc(sizeof *op))) return NULL;
    memset(op, 0, sizeof *op);
    tp->n_ops++;
    return op;
}

/* ---- Opening and closing ---- */

static void shm_close(rg_tp_t *tp) {
    if (!tp) return;
    for (uint32_t i = 0; i < tp->n_links; i++)
        if (tp->links[i]) {
            if (tp->links[i]->state != LINK_FREE) rgm_link_clear(tp, tp->links[i]);
            free(tp->links[i]);
        }
    FENCE(); /* every buffer is its owner's again, and whoever reads one knows it */
    while (tp->conns) rgm_conn_close(tp, tp->conns);
    rgm_bury(tp);
    if (tp->listener >= 0) close(tp->listener);
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
    free(tp->links);
    free(tp->up);
    free(tp->ring.v);
    free(tp->memory);
    free(tp);
}

static rg_status_t open_parts(rg_tp_t *tp, uint8_t *addr, uint32_t *addr_len, rg_error_t *err) {
    /* The witness lies in private memory, and behind it what the peers measure with and this process reduces from. */
    tp->memory = aligned_alloc(4096, 4096 + SCRATCH + HOT);
    if (!tp->memory) return rg_fail(err, RG_ERR_NOMEM, 0, "shm: no memory for the transport");
    memset(tp->memory, 0, 4096 + SCRATCH + HOT);
    tp->scratch = tp->memory + 4096;
    tp->hot = tp->scratch + SCRATCH;
    if (rg_os_random(tp->memory, 16) != RG_OK || rg_os_random(tp->name, sizeof tp->name) != RG_OK)
        return rg_fail(err, RG_ERR_SYSTEM, errno, "shm: no random numbers");
    tp->epoll = rg_os_high(epoll_create1(EPOLL_CLOEXEC));
    if (tp->epoll < 0) return rg_fail(err, RG_ERR_SYSTEM, errno, "shm: no epoll descriptor");
    return rgm_listen(tp, addr, addr_len, err);
}

static rg_status_t shm_open_(const rg_tp_config_t *config, rg_tp_t **out, uint8_t *addr, uint32_t *addr_len,
                             rg_error_t *err) {
    static const uint8_t no_nonce[16];
    *out = NULL;
    rg_tp_t *tp = calloc(1, sizeof *tp);
    if (!tp) return rg_fail(err, RG_ERR_NOMEM, 0, "shm: no memory for the transport");
    tp->cfg = *config;
    tp->cfg.config = NULL; /* belongs to the caller, and nothing in it concerns us */
    tp->cfg.remote_hint = NULL;
    tp->cores = rg_os_cores();
    tp->epoll = tp->listener = -1;
    tp->conns_tail = &tp->conns;
    tp->next_timer = tp->resume_listen = NEVER;
    tp->nonce_known = memcmp(config->nonce, no_nonce, 16) != 0;
    rg_status_t st = open_parts(tp, addr, addr_len, err);
    if (st != RG_OK) {
        shm_close(tp);
        return st;
    }
    *out = tp;
    return RG_OK;
}

static void shm_set_nonce(rg_tp_t *tp, const uint8_t nonce[16]) {
    memcpy(tp->cfg.nonce, nonce, 16);
    tp->nonce_known = 1;
    rgm_nonce_known(tp);
    rgm_bury(tp);
}

/* ---- Links ---- */

static link_t *link_at(rg_tp_t *tp, uint32_t index) { return index < tp->n_links ? tp->links[index] : NULL; }

static link_t *link_new(rg_tp_t *tp, uint32_t index) {
    if (index >= tp->n_links) {
        uint32_t n = tp->n_links ? tp->n_links : 8;
        while (n <= index) n *= 2;
        link_t **more = realloc(tp->links, n * sizeof(*more));
        if (!more) return NULL;
        tp->links = more;
        link_t **up = realloc(tp->up, n * sizeof(*up));
        if (!up) return NULL;
        tp->up = up;
        memset(tp->links + tp->n_links, 0, (n - tp->n_links) * sizeof(*more));
        tp->n_links = n;
    }
    if (!tp->links[index]) tp->links[index] = malloc(sizeof(link_t));
    link_t *l = tp->links[index];
    if (!l) return NULL;
    memset(l, 0, sizeof *l);
    l->ev = EV_PROCESS;
    l->pidfd = -1;
    l->index = index;
    l->retry_at = NEVER;
    l->send_tail = &l->send_head;
    l->recv_tail = &l->recv_head;
    l->unasked_tail = &l->unasked;
    return l;
}

static rg_status_t shm_connect(rg_tp_t *tp, uint32_t index, const rg_tp_peer_t *peer, rg_error_t *err) {
    if (index >= LINKS_MAX)
        return rg_fail(err, RG_ERR_RESOURCE, 0, "shm: link number %u is above the limit of %u", index, LINKS_MAX - 1);
    link_t *l = link_at(tp, index);
    if (l && l->state != LINK_FREE)
        return rg_fail(err, RG_ERR_INVALID, 0, "shm: link %u is in use; drop it first", index);
    uint8_t name[NAME_BYTES];
    int known = rgm_blob_get(peer->addr, peer->addr_len, name);
    if (!known && peer->dial)
        return rg_fail(err, RG_ERR_PROTOCOL, EPROTONOSUPPORT,
                       "shm: the peer's address is not one that this version understands: its transport is another "
                       "one, or it has another version; give all members the same RG_TRANSPORT");
    l = link_new(tp, index);
    if (!l || rgm_ring_reserve(tp, 2) != 0) return rg_fail(err, RG_ERR_NOMEM, 0, "shm: no memory for a link");
    memcpy(l->identity, peer->identity, 16);
    memcpy(l->name, name, sizeof name);
    l->timeout_ms = peer->timeout_ms;
    l->deadline = rg_os_now_ns() + peer->timeout_ms * 1000000ull;
    rgm_timer_at(tp, l->deadline);
    if (peer->dial) rgm_dial(tp, l);
    else rgm_await(tp, l, known);
    rgm_bury(tp);
    return RG_OK;
}

static void shm_drop(rg_tp_t *tp, uint32_t index) {
    link_t *l = link_at(tp, index);
    if (!l || l->state == LINK_FREE) return;
    rgm_link_clear(tp, l);
    l->state = LINK_FREE;
    FENCE();
}

static void shm_fence(rg_tp_t *tp, uint64_t epoch) {
    if (epoch <= tp->fence) return;
    tp->fence = epoch;
    for (uint32_t i = 0; i < tp->n_links; i++) {
        link_t *l = tp->links[i];
        if (!l || l->state == LINK_FREE || l->state == LINK_DOWN) continue;
        rgm_revoke(tp, l, epoch, RG_TP_FENCED);
        recv_op_t *next;
        for (recv_op_t *op = l->recv_head; op; op = next) {
            next = op->next;
            if (op->r.tag.epoch >= epoch) continue;
            rgm_pull_end(l, op);
            rgm_recv_unlink(l, op);
            rgm_recv_done(tp, l, op, RG_TP_FENCED, NULL);
        }
        rgm_unasked_fence(l, epoch);
        l->stalled = 0;
    }
    FENCE(); /* the slots have moved on before anybody overwrites what they stood for */
}

/* ---- Messages ---- */

/* A link that cannot carry anything: the operation ends at once, by poll(). */
static int refuse(rg_tp_t *tp, uint32_t link, uint64_t cookie, rg_tp_status_t st) {
    if (rgm_ring_reserve(tp, 1) != 0) return RG_ERR_NOMEM;
    rg_completion_t *c = rg_ring_push(&tp->ring);
    c->event = RG_TP_FAILED;
    c->status = st;
    c->link = link;
    c->cookie = cookie;
    return RG_OK;
}

static int usable(const link_t *l) { return l && l->state != LINK_FREE && l->state != LINK_DOWN; }

static int shm_send(rg_tp_t *tp, uint32_t index, const rg_tp_send_t *s) {
    link_t *l = link_at(tp, index);
    if (!usable(l)) return refuse(tp, index, s->cookie, RG_TP_GONE);
    if (s->tag.epoch < tp->fence) return refuse(tp, index, s->cookie, RG_TP_FENCED);
    int idle = l->state == LINK_UP && !l->send_head;
    if (idle && rgm_send_now(tp, l, s)) return RG_TP_DONE_NOW;
    send_op_t *op = send_new(tp);
    if (!op) return RG_ERR_NOMEM;
    op->s = *s;
    *l->send_tail = op;
    l->send_tail = &op->next;
    if (idle) rgm_push(tp, l);
    return RG_OK;
}

static int shm_put(rg_tp_t *tp, uint32_t index, const rg_tp_send_t *s) {
    link_t *l = link_at(tp, index);
    return l && l->state == LINK_UP && !l->send_head && s->tag.epoch >= tp->fence && rgm_send_now(tp, l, s);
}

static const void *shm_peek(rg_tp_t *tp, uint32_t index, const rg_tag_t *tag, uint64_t len) {
    link_t *l = link_at(tp, index);
    return l && l->state == LINK_UP ? rgm_peek(tp, l, tag, len) : NULL;
}

static uint64_t shm_taken(rg_tp_t *tp, uint32_t index) { return rgm_taken(tp, tp->links[index]); }

static int shm_recv(rg_tp_t *tp, uint32_t index, const rg_tp_recv_t *r) {
    link_t *l = link_at(tp, index);
    if (!usable(l)) return refuse(tp, index, r->cookie, RG_TP_GONE);
    if (r->tag.epoch < tp->fence) return refuse(tp, index, r->cookie, RG_TP_FENCED);
    if (r->reduce && (r->wire_elem == 0 || r->wire_elem > 16 || r->len % r->wire_elem != 0)) return RG_ERR_INVALID;
    recv_op_t *op = recv_new(tp);
    if (!op) return RG_ERR_NOMEM;
    op->r = *r;
    *l->recv_tail = op;
    l->recv_tail = &op->next;
    l->stalled = 0; /* the frame that waits may be for this one, or find room now */
    if (!l->unasked) return RG_OK;
    tp->now_op = op;
    rgm_from_unasked(tp, l, op);
    int now = tp->now_op == NULL;
    tp->now_op = NULL;
    return now ? RG_TP_DONE_NOW : RG_OK;
}

static void shm_note(rg_tp_t *tp, uint32_t index, uint64_t note, int flush) {
    tp->note = note;
    if (!flush) return;
    for (uint32_t i = 0; i < tp->n_up; i++) {
        link_t *l = tp->up[i];
        if (index != RG_TP_ALL_LINKS && index != l->index) continue;
        l->note_owed = 1;
        rgm_push(tp, l);
    }
}

static void shm_stats(rg_tp_t *tp, uint32_t index, uint64_t *sent, uint64_t *received) {
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

static void awake(rg_tp_t *tp) {
    for (uint32_t i = 0; i < tp->n_up; i++) {
        segment_t *s = tp->up[i]->out;
        if (s->starved) STORE(&s->starved, 0);
        if (s->sleep & 1) STORE(&s->sleep, s->sleep + 1);
    }
    tp->armed = 0;
}

static void sweep(rg_tp_t *tp) {
    struct epoll_event ev[64];
    int n = epoll_wait(tp->epoll, ev, 64, 0);
    for (int i = 0; i < n; i++) {
        int kind = *(int *)ev[i].data.ptr;
        if (kind == EV_LISTENER) rgm_accept(tp);
        else if (kind == EV_PROCESS) rgm_process_event(tp, ev[i].data.ptr);
        else rgm_conn_event(tp, ev[i].data.ptr);
    }
    for (uint32_t i = 0; i < tp->n_up; i++) {
        rgm_regions_check(tp->up[i]);
        if (tp->up[i]->broken) rgm_link_fail(tp, tp->up[i--], "protocol error: not a packet of this version");
    }
    if (tp->next_timer != NEVER) {
        uint64_t now = rg_os_now_ns();
        if (now >= tp->next_timer) rgm_timers(tp, now);
    }
    if (tp->grave) rgm_bury(tp);
}

/* Tells the peers which processor this process uses: who waits for one on its own processor gives it away at once. */
static void tell_cpu(rg_tp_t *tp) {
    int cpu = sched_getcpu();
    if (cpu < 0) return;
    for (uint32_t i = 0; i < tp->n_up; i++)
        if (tp->up[i]->out->cpu != (uint32_t)cpu + 1) STORE(&tp->up[i]->out->cpu, (uint32_t)cpu + 1);
}

static int shm_poll(rg_tp_t *tp, rg_completion_t *out, int max) {
    int n = take(tp, out, max);
    if (n == max) return n;
    int look = tp->armed || tp->n_greeting || ++tp->polls % SWEEP_EVERY == 0;
    if (tp->armed) awake(tp);
    for (uint32_t i = 0; i < tp->n_up; i++) {
        link_t *l = tp->up[i];
        if (rgm_rx(tp, l) < 0) {
            i--; /* another one has taken its place */
            continue;
        }
        if (l->n_pulls) rgm_pulls(tp, l);
        if (rgm_tx_waits(l)) rgm_push(tp, l);
    }
    if (look) {
        tell_cpu(tp);
        sweep(tp);
    }
    return n + take(tp, out + n, max - n);
}

static int shm_arm(rg_tp_t *tp, int64_t *timeout_ns) {
    if (tp->ring.n || tp->n_notes) return 0;
    tp->armed = 1;
    for (uint32_t i = 0; i < tp->n_up; i++) {
        link_t *l = tp->up[i];
        if (l->n_pulls) return 0;
        rgm_regions_check(l);
        STORE(&l->out->starved, (uint32_t)(rgm_tx_waits(l) != 0));
        STORE(&l->out->sleep, l->out->sleep | 1);
        if (l->rpos != l->published) rgm_publish(l);
    }
    FENCE(); /* whoever writes from here on sees that we sleep; what was written before we see now */
    for (uint32_t i = 0; i < tp->n_up; i++) {
        link_t *l = tp->up[i];
        if (rgm_rx_ready(l) || (rgm_tx_waits(l) && rgm_push(tp, l))) return 0;
    }
    if (tp->next_timer != NEVER) {
        uint64_t now = rg_os_now_ns();
        int64_t left = tp->next_timer > now ? (int64_t)(tp->next_timer - now) : 0;
        if (*timeout_ns < 0 || left < *timeout_ns) *timeout_ns = left;
    }
    return 1;
}

static void shm_link_info(rg_tp_t *tp, uint32_t index, rg_tp_link_info_t *out) {
    const link_t *l = link_at(tp, index);
    int shared = l && l->state == LINK_UP;
    *out = (rg_tp_link_info_t){ .shared = shared };
}

static uint32_t shm_peer_cpu(rg_tp_t *tp, uint32_t index) {
    const link_t *l = link_at(tp, index);
    return l && l->state == LINK_UP ? LOAD(&l->in->cpu) : 0;
}

static int shm_wake_fd(rg_tp_t *tp) { return tp->epoll; }

const rg_transport_t rg_transport_shm = {
    .struct_size = sizeof(rg_transport_t),
    .name = "shm",
    .open = shm_open_,
    .set_nonce = shm_set_nonce,
    .connect = shm_connect,
    .send = shm_send,
    .recv = shm_recv,
    .note = shm_note,
    .poll = shm_poll,
    .arm = shm_arm,
    .fence = shm_fence,
    .drop = shm_drop,
    .stats = shm_stats,
    .wake_fd = shm_wake_fd,
    .close = shm_close,
    .link_info = shm_link_info,
    .put = shm_put,
    .peek = shm_peek,
    .taken = shm_taken,
    .peer_cpu = shm_peer_cpu,
};
