/* rdma_conn.c: the device, and the connections of the RDMA transport, through the connection manager (librdmacm). Who
 * dials says in the request which group and process it is and whom it wants; who is dialled accepts only that. Requests
 * of strangers cost a place among a few, for seconds. It relies on the kernel to tell when a peer's process ends, and
 * on the adapter to miss one whose host is gone. It must not block, nor answer before the group's nonce is known. */
#include "rdma_internal.h"
#include "observe/log.h"
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define CQ_FIRST 1024
#define ADDRESSES_MAX 32
#define ROUTE_MS 2000
#define RETRIES 6 /* 7 means for ever with some adapters */

/* ---- The device ---- */

static rg_status_t fail_errno(rg_error_t *err, int e, const char *what) {
    if (e == ENOMEM)
        return rg_fail(err, RG_ERR_RESOURCE, e,
                       "rdma: %s: no memory, or more than this process may lock: see `ulimit -l`, of which 4 MiB and "
                       "half a MiB for each peer are needed",
                       what);
    return rg_fail(err, RG_ERR_SYSTEM, e, "rdma: %s: %s", what, strerror(e));
}

/* What a user could have meant, for errors. */
static void list_devices(char *out, size_t room) {
    int n = 0;
    struct ibv_device **all = ibv_get_device_list(&n);
    snprintf(out, room, "%s", n ? "" : "none");
    for (int i = 0; all && i < n; i++) {
        size_t len = strlen(out);
        snprintf(out + len, room - len, "%s%s", i ? ", " : "", ibv_get_device_name(all[i]));
    }
    if (all) ibv_free_device_list(all);
}

static rg_status_t no_address(const rg_tp_config_t *c, const char *names, rg_error_t *err) {
    const char *wanted = c->config->rdma_device;
    char devices[200];
    if (!wanted)
        return rg_fail(err, RG_ERR_NOTSUP, ENODEV,
                       "rdma: no RDMA device has one of the addresses %s; `rdma link` lists devices, RG_INTERFACE "
                       "chooses an interface, and RG_TRANSPORT=auto does without",
                       names);
    list_devices(devices, sizeof devices);
    return rg_fail(err, RG_ERR_NOTSUP, ENODEV,
                   "rdma: RG_RDMA_DEVICE is %s, which has none of the addresses %s; devices here: %s; it needs an "
                   "address that is up (`rdma link`), and RG_INTERFACE must not exclude it",
                   wanted, names, devices);
}

static rg_status_t bind_listener(rg_tp_t *tp, const rg_tp_config_t *c, rg_error_t *err) {
    struct sockaddr_storage a[ADDRESSES_MAX];
    char names[256] = "", one[64];
    const char *wanted = c->config->rdma_device;
    if (wanted && rgr_device_is(wanted, "", 0) < 0)
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "RG_RDMA_DEVICE is \"%s\": expected the name of a device, as `rdma link` has it, or name:port",
                       wanted);
    int n = rg_os_local_addresses(c->config->interface, wanted ? NULL : c->remote_hint, a, ADDRESSES_MAX, err);
    if (n < 0) return (rg_status_t)n;
    for (int i = 0; i < n; i++) {
        struct rdma_cm_id *id = NULL;
        uint16_t port = htons((uint16_t)c->config->listen_port);
        if (a[i].ss_family == AF_INET) ((struct sockaddr_in *)(void *)&a[i])->sin_port = port;
        else ((struct sockaddr_in6 *)(void *)&a[i])->sin6_port = port;
        if (rdma_create_id(tp->events, &id, NULL, RDMA_PS_TCP) != 0) return fail_errno(err, errno, "an endpoint");
        if (rdma_bind_addr(id, (struct sockaddr *)&a[i]) == 0 && id->verbs &&
            (!wanted || rgr_device_is(wanted, ibv_get_device_name(id->verbs->device), id->port_num) == 1)) {
            if (rdma_listen(id, RGR_PENDING_MAX) != 0) {
                int e = errno;
                rdma_destroy_id(id);
                return fail_errno(err, e, "cannot listen");
            }
            tp->listener = id;
            return RG_OK;
        }
        rdma_destroy_id(id);
        size_t len = strlen(names);
        snprintf(names + len, sizeof names - len, "%s%s", len ? ", " : "",
                 rg_os_addr_text((struct sockaddr *)&a[i], one, sizeof one));
    }
    return no_address(c, names, err);
}

static rg_status_t make_queues(rg_tp_t *tp, const rg_tp_config_t *c, rg_error_t *err) {
    struct ibv_device_attr d;
    if (ibv_query_device(tp->device, &d) != 0) return fail_errno(err, errno, "cannot ask the device");
    /* What was given to an adapter of InfiniBand or RoCE has ended when the other end's has it. Here the life of a
     * peer, and when a buffer may change, are known by that. */
    if (tp->device->device->transport_type == IBV_TRANSPORT_IWARP)
        return rg_fail(
            err, RG_ERR_NOTSUP, 0,
            "rdma: the device %s is an iWARP adapter, which this transport cannot use: its messages end before "
            "the peer has them, so that the loss of one would not be seen; RG_TRANSPORT=auto does without",
            ibv_get_device_name(tp->device->device));
    tp->windowed = (d.device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0;
    /* Elsewhere a page that the adapter knows would be missing in a forked child, with whatever else lies in it. */
    tp->direct = c->config->rdma_direct != RG_OFF && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED;
    if (d.max_srq < 1) return rg_fail(err, RG_ERR_NOTSUP, 0, "rdma: the device has no shared receive queues");
    uint32_t want = RGR_CHUNKS_MAX * RGR_CHUNK;
    tp->srq_max = (uint32_t)d.max_srq_wr < want ? (uint32_t)d.max_srq_wr : want;
    tp->cq_room = d.max_cqe < CQ_FIRST ? (uint32_t)d.max_cqe : CQ_FIRST;
    struct ibv_srq_init_attr sa = { .attr = { .max_wr = tp->srq_max, .max_sge = 1 } };
    if (!(tp->pd = ibv_alloc_pd(tp->device))) return fail_errno(err, errno, "a protection domain");
    if (!(tp->ready = ibv_create_comp_channel(tp->device))) return fail_errno(err, errno, "a completion channel");
    if (!(tp->cq = ibv_create_cq(tp->device, (int)tp->cq_room, NULL, tp->ready, 0)))
        return fail_errno(err, errno, "a completion queue");
    if (!(tp->srq = ibv_create_srq(tp->pd, &sa))) return fail_errno(err, errno, "a receive queue");
    int e = rgr_send_slots(tp);
    if (!e) e = rgr_slots_grow(tp, 1);
    return e ? fail_errno(err, e, "cannot register memory") : RG_OK;
}

static int watch(rg_tp_t *tp, int fd) {
    struct epoll_event e = { .events = EPOLLIN };
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 ||
           epoll_ctl(tp->epoll, EPOLL_CTL_ADD, fd, &e) != 0;
}

/* What has descriptors that the libraries make. */
static rg_status_t open_parts(rg_tp_t *tp, const rg_tp_config_t *c, rg_error_t *err) {
    tp->events = rdma_create_event_channel();
    if (!tp->events)
        return rg_fail(err, RG_ERR_NOTSUP, errno,
                       "rdma: this host has no RDMA device, or the module rdma_ucm is not loaded: %s; "
                       "RG_TRANSPORT=auto does without",
                       strerror(errno));
    rg_status_t st = bind_listener(tp, c, err);
    if (st != RG_OK) return st;
    tp->device = tp->listener->verbs;
    return make_queues(tp, c, err);
}

rg_status_t rgr_open_device(rg_tp_t *tp, const rg_tp_config_t *c, uint8_t *addr, uint32_t *addr_len, rg_error_t *err) {
    (void)ibv_fork_init(); /* fails where memory is registered already: then the kernel's own copying must do */
    int held = rg_os_hold_stdio();
    rg_status_t st = open_parts(tp, c, err);
    rg_os_free_stdio(held);
    if (st != RG_OK) return st;
    tp->epoll = rg_os_high(epoll_create1(EPOLL_CLOEXEC));
    if (tp->epoll < 0 || watch(tp, tp->events->fd) || watch(tp, tp->ready->fd))
        return fail_errno(err, errno, "cannot watch the device");
    struct sockaddr_storage a;
    memset(&a, 0, sizeof a);
    const struct sockaddr *own = rdma_get_local_addr(tp->listener);
    memcpy(&a, own, own->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    *addr_len = rgr_addr_put(addr, &a);
    return RG_OK;
}

void rgr_close_device(rg_tp_t *tp) {
    for (uint32_t i = 0; i < tp->n_pending; i++) rdma_destroy_id(tp->pending[i].id);
    tp->n_pending = 0;
    if (tp->listener) rdma_destroy_id(tp->listener);
    if (tp->srq) ibv_destroy_srq(tp->srq);
    if (tp->cq) ibv_destroy_cq(tp->cq);
    rgr_slots_free(tp);
    if (tp->ready) ibv_destroy_comp_channel(tp->ready);
    rgr_mem_free(tp);
    if (tp->pd) ibv_dealloc_pd(tp->pd);
    if (tp->events) rdma_destroy_event_channel(tp->events);
    if (tp->epoll >= 0) close(tp->epoll);
}

/* ---- One connection ---- */

rgr_side_t *rgr_side_of_qpn(rg_tp_t *tp, uint32_t qpn) {
    for (uint32_t i = tp->by_qpn[qpn % RGR_HASH]; i; i = tp->sides[i - 1]->hash_next)
        if (tp->sides[i - 1]->qpn == qpn) return tp->sides[i - 1];
    return NULL;
}

/* The slots will be shared by more peers than have one for each message: they hear of it before the newest can send. */
static void not_roomy(rg_tp_t *tp) {
    tp->roomy = 0;
    for (uint32_t i = 0; i < tp->n_sides; i++) {
        if (!tp->sides[i] || !rg_mbox_link(&tp->box, i)) continue;
        tp->sides[i]->note_due = 1;
        rgr_pump(tp, tp->sides[i]);
    }
}

/* 0, or an errno. */
static int queue_pair(rg_tp_t *tp, rgr_side_t *s) {
    struct ibv_qp_init_attr a = { .send_cq = tp->cq,
                                  .recv_cq = tp->cq,
                                  .srq = tp->srq,
                                  .qp_type = IBV_QPT_RC,
                                  .cap = { .max_send_wr = RGR_SQ, .max_send_sge = 2, .max_inline_data = 256 } };
    uint32_t links = 0;
    rgr_completions(tp); /* the number of a queue pair may come again, and must find nothing of the last one's */
    for (uint32_t i = 0; i < tp->n_sides; i++) links += tp->sides[i] && tp->sides[i]->id;
    int e = rgr_slots_grow(tp, links), roomy = tp->n_chunks >= links;
    if (e) return e;
    if (tp->roomy && !roomy) not_roomy(tp);
    tp->roomy = roomy;
    uint32_t need = tp->n_chunks * RGR_CHUNK + links * RGR_SQ;
    if (need > tp->cq_room) {
        if ((e = ibv_resize_cq(tp->cq, (int)(need * 2))) != 0) return e;
        tp->cq_room = need * 2;
    }
    if (rdma_create_qp(s->id, tp->pd, &a) != 0) {
        a.cap.max_inline_data = 0;
        if (rdma_create_qp(s->id, tp->pd, &a) != 0) return errno;
    }
    s->queue_pair = 1;
    s->inline_max = a.cap.max_inline_data;
    s->qpn = s->id->qp->qp_num;
    s->gen = ++tp->next_gen;
    s->hash_next = tp->by_qpn[s->qpn % RGR_HASH];
    tp->by_qpn[s->qpn % RGR_HASH] = s->index + 1;
    s->credits = RGR_CREDITS;
    s->owed = s->sq_first = s->sq_n = s->unsignalled = s->reads = s->reads_max = s->serves = 0;
    s->ended = s->ended_seen = s->stuck = 0;
    s->peer_roomy = 0;
    return 0;
}

void rgr_unlink(rg_tp_t *tp, rgr_side_t *s) {
    if (!s->id) return;
    if (s->queue_pair) {
        for (uint32_t *at = &tp->by_qpn[s->qpn % RGR_HASH]; *at; at = &tp->sides[*at - 1]->hash_next)
            if (*at == s->index + 1) {
                *at = s->hash_next;
                break;
            }
        (void)rdma_disconnect(s->id);
        for (uint32_t i = 0; i < s->sq_n; i++) { /* windows before the queue pair that they belong to */
            rgr_work_t *w = &s->sq[(s->sq_first + i) % RGR_SQ];
            if (w->closes) rgr_window_drop(tp, w->closes);
            w->closes = NULL;
        }
        while (s->spent) {
            rgr_window_t *w = s->spent;
            s->spent = w->next;
            rgr_window_drop(tp, w);
        }
        rdma_destroy_qp(s->id);
        s->queue_pair = 0;
        rgr_work_forget(tp, s);
    }
    rdma_destroy_id(s->id);
    s->id = NULL;
    s->accepted = s->routed = 0;
    while (s->held) {
        rgr_slot_t *slot = s->held;
        s->held = slot->next;
        rgr_post_slot(tp, slot);
    }
    s->held_tail = &s->held;
    s->n_held = 0;
    while (s->answers) {
        rgr_rts_t *a = s->answers;
        s->answers = a->next;
        free(a);
    }
    s->answers_tail = &s->answers;
}

void rgr_down(rg_tp_t *tp, uint32_t link, const char *fmt, ...) {
    char text[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    rgr_cancel(tp, tp->sides[link], 0, RG_TP_GONE);
    rgr_unlink(tp, tp->sides[link]);
    rg_mbox_down(&tp->box, link, text);
}

static uint32_t silence_of(const rg_tp_t *tp, const rg_mbox_link_t *l) {
    return l->peer.silence_ms ? l->peer.silence_ms : tp->heartbeat_ms;
}

void rgr_up(rg_tp_t *tp, uint32_t link) {
    const rg_mbox_link_t *l = rg_mbox_link(&tp->box, link);
    rgr_side_t *s = tp->sides[link];
    if (!l || l->state != MBOX_CONNECTING || !s->queue_pair) return;
    s->quiet_ns = silence_of(tp, l) * 1000000ull / 4;
    s->heard_by_ns = rg_os_now_ns() + s->quiet_ns;
    if (s->heard_by_ns < tp->next_timer) tp->next_timer = s->heard_by_ns;
    s->note_due = 1; /* it says whether we have slots enough, if nothing else */
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr unused;
    if (ibv_query_qp(s->id->qp, &a, IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC, &unused) == 0) {
        s->reads_max = a.max_rd_atomic < RGR_READS ? a.max_rd_atomic : RGR_READS;
        s->serves = a.max_dest_rd_atomic;
    }
    rg_mbox_up(&tp->box, link);
    rgr_pump(tp, s);
}

/* The traffic class, and how long the adapter waits for an acknowledgement: 4.096 us * 2^t, so that it has tried for a
 * silence when it gives up. Unknown to old kernels, where their own time stays. */
static void set_options(const rg_tp_t *tp, struct rdma_cm_id *id, uint32_t silence_ms) {
    uint8_t t = 14, tos = tp->traffic_class;
    if (tos) (void)rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos);
    while (t < 20 && (RETRIES + 1) * 4096ull * (2ull << t) <= silence_ms * 1000000ull) t++;
    (void)rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &t, sizeof t);
}

static struct rdma_conn_param greeting(const rg_tp_t *tp, const rg_mbox_link_t *l, uint8_t bytes[RGR_HELLO]) {
    rgr_hello_t h;
    memcpy(h.nonce, tp->nonce, 16);
    memcpy(h.from, tp->identity, 16);
    memcpy(h.to, l->peer.identity, 16);
    rgr_hello_put(bytes, &h);
    return (struct rdma_conn_param){ .private_data = bytes,
                                     .private_data_len = RGR_HELLO,
                                     .responder_resources = RDMA_MAX_RESP_RES,
                                     .initiator_depth = RDMA_MAX_INIT_DEPTH,
                                     .retry_count = RETRIES,
                                     .rnr_retry_count = 7 };
}

/* Our address on the device that was asked for, with any port. */
static int source_for(const rg_tp_t *tp, const struct sockaddr_storage *to, struct sockaddr_storage *own) {
    struct sockaddr *a = rdma_get_local_addr(tp->listener);
    if (!tp->source || a->sa_family != to->ss_family) return 0;
    memset(own, 0, sizeof *own);
    memcpy(own, a, a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    if (a->sa_family == AF_INET) ((struct sockaddr_in *)(void *)own)->sin_port = 0;
    else ((struct sockaddr_in6 *)(void *)own)->sin6_port = 0;
    return 1;
}

rg_status_t rgr_dial(rg_tp_t *tp, uint32_t link, const rg_tp_peer_t *peer, rg_error_t *err) {
    struct sockaddr_storage to;
    rgr_side_t *s = tp->sides[link];
    if (rgr_addr_get(peer->addr, peer->addr_len, &to) != 0)
        return rg_fail(err, RG_ERR_PROTOCOL, 0,
                       "rdma: the peer's address is not of this transport: give all members the same RG_TRANSPORT");
    if (rdma_create_id(tp->events, &s->id, NULL, RDMA_PS_TCP) != 0) {
        s->id = NULL;
        return fail_errno(err, errno, "a connection");
    }
    set_options(tp, s->id, silence_of(tp, tp->box.links[link]));
    int ms = peer->timeout_ms ? (int)peer->timeout_ms : 1;
    struct sockaddr_storage own;
    int named = source_for(tp, &to, &own); /* else the way to the peer decides, which may be another device's */
    if (rdma_resolve_addr(s->id, named ? (struct sockaddr *)&own : NULL, (struct sockaddr *)&to, ms) == 0) return RG_OK;
    int e = errno;
    rgr_unlink(tp, s);
    return fail_errno(err, e, "the peer's address");
}

/* ---- Who wants to be let in ---- */

/* Says which version refuses, and nothing else to whom may be a stranger. */
static void refuse(struct rdma_cm_id *id) {
    static const rgr_hello_t nobody;
    uint8_t bytes[RGR_HELLO];
    rgr_hello_put(bytes, &nobody);
    (void)rdma_reject(id, bytes, RGR_HELLO);
    rdma_destroy_id(id);
}

static int accept_as(rg_tp_t *tp, uint32_t link, struct rdma_cm_id *id) {
    uint8_t bytes[RGR_HELLO];
    rgr_side_t *s = tp->sides[link];
    struct rdma_conn_param p = greeting(tp, tp->box.links[link], bytes);
    s->id = id;
    set_options(tp, id, silence_of(tp, tp->box.links[link]));
    int e = queue_pair(tp, s);
    if (e) {
        (void)rdma_reject(id, NULL, 0);
        rgr_down(tp, link, "rdma: cannot make a queue pair: %s", strerror(e));
        return 0;
    }
    if (rdma_accept(id, &p) != 0) {
        rgr_down(tp, link, "rdma: cannot accept the peer: %s", strerror(errno));
        return 0;
    }
    s->accepted = 1;
    return 1;
}

static uint32_t link_for(const rg_tp_t *tp, const rgr_hello_t *h) {
    for (uint32_t i = 0; i < tp->n_sides; i++) {
        const rg_mbox_link_t *l = tp->box.links[i];
        if (l && l->state == MBOX_CONNECTING && !l->peer.dial && !tp->sides[i]->id &&
            memcmp(l->peer.identity, h->from, 16) == 0)
            return i;
    }
    return UINT32_MAX;
}

/* Who is expected is let in; who is not yet may wait for a while; who is of another group goes. */
void rgr_accept_pending(rg_tp_t *tp, uint64_t now) {
    for (uint32_t i = 0; tp->nonce_known && i < tp->n_pending;) {
        rgr_pending_t p = tp->pending[i];
        int ours = memcmp(p.hello.nonce, tp->nonce, 16) == 0 && memcmp(p.hello.to, tp->identity, 16) == 0;
        uint32_t link = ours ? link_for(tp, &p.hello) : UINT32_MAX;
        if (ours && link == UINT32_MAX && now < p.deadline) {
            i++;
            continue;
        }
        tp->pending[i] = tp->pending[--tp->n_pending];
        if (link == UINT32_MAX) refuse(p.id);
        else (void)accept_as(tp, link, p.id);
    }
    for (uint32_t i = 0; !tp->nonce_known && i < tp->n_pending;) {
        if (now < tp->pending[i].deadline) {
            i++;
            continue;
        }
        refuse(tp->pending[i].id);
        tp->pending[i] = tp->pending[--tp->n_pending];
    }
}

static void request(rg_tp_t *tp, struct rdma_cm_id *id, const uint8_t *data, uint32_t len, uint64_t now) {
    rgr_pending_t p = { .id = id, .deadline = now + RGR_PENDING_NS };
    if (rgr_hello_get(data, len, &p.hello) != 0 || tp->n_pending == RGR_PENDING_MAX || id->verbs != tp->device) {
        refuse(id);
        return;
    }
    tp->pending[tp->n_pending++] = p;
    if (p.deadline < tp->next_timer) tp->next_timer = p.deadline;
    rgr_accept_pending(tp, now);
}

/* ---- Events ---- */

static rgr_side_t *side_of(rg_tp_t *tp, const struct rdma_cm_id *id) {
    for (uint32_t i = 0; i < tp->n_sides; i++)
        if (tp->sides[i] && tp->sides[i]->id == id) return tp->sides[i];
    return NULL;
}

static void connect_now(rg_tp_t *tp, rgr_side_t *s) {
    uint8_t bytes[RGR_HELLO];
    struct rdma_conn_param p = greeting(tp, tp->box.links[s->index], bytes);
    int e = queue_pair(tp, s);
    if (!e && rdma_connect(s->id, &p) != 0) e = errno;
    if (e) rgr_down(tp, s->index, "rdma: cannot connect: %s", strerror(e));
}

static void established(rg_tp_t *tp, rgr_side_t *s, const uint8_t *data, uint32_t len) {
    rgr_hello_t h;
    const rg_mbox_link_t *l = tp->box.links[s->index];
    if (!s->accepted && (rgr_hello_get(data, len, &h) != 0 || memcmp(h.nonce, tp->nonce, 16) != 0 ||
                         memcmp(h.from, l->peer.identity, 16) != 0)) {
        rgr_down(tp, s->index, "rdma: who answered is not the peer");
        return;
    }
    rgr_up(tp, s->index);
}

void rgr_nonce_known(rg_tp_t *tp) {
    for (uint32_t i = 0; i < tp->n_sides; i++) {
        rgr_side_t *s = tp->sides[i];
        if (!s || !s->routed || !s->id) continue;
        s->routed = 0;
        connect_now(tp, s);
    }
    rgr_accept_pending(tp, rg_os_now_ns());
}

static void lost_all(rg_tp_t *tp) {
    for (uint32_t i = 0; i < tp->n_sides; i++)
        if (tp->sides[i] && tp->sides[i]->id) rgr_down(tp, i, "rdma: the device was removed");
}

static void refused(rg_tp_t *tp, uint32_t link, int reason, const uint8_t *data, uint32_t len) {
    char text[240];
    rgr_refusal(text, sizeof text, reason, data, len);
    rgr_down(tp, link, "rdma: %s", text);
}

static void on_side(rg_tp_t *tp, rgr_side_t *s, enum rdma_cm_event_type type, int status, const uint8_t *data,
                    uint32_t len) {
    uint32_t link = s->index;
    switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        if (s->id->verbs != tp->device) rgr_down(tp, link, "rdma: the way to the peer is through another device");
        else if (rdma_resolve_route(s->id, ROUTE_MS) != 0)
            rgr_down(tp, link, "rdma: no route to the peer: %s", strerror(errno));
        break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        /* A request of a group that is not known yet would be a stranger's: it goes out when the nonce is set. */
        if (tp->nonce_known) connect_now(tp, s);
        else s->routed = 1;
        break;
    case RDMA_CM_EVENT_ESTABLISHED: established(tp, s, data, len); break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
        rgr_down(tp, link, "rdma: no way to the peer: %s", strerror(status < 0 ? -status : EHOSTUNREACH));
        break;
    case RDMA_CM_EVENT_REJECTED: refused(tp, link, status, data, len); break;
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_CONNECT_ERROR:
        rgr_down(tp, link, "rdma: the peer cannot be reached (%s)", strerror(status < 0 ? -status : ETIMEDOUT));
        break;
    case RDMA_CM_EVENT_DISCONNECTED:
        rgr_completions(tp); /* what it sent before */
        if (s->id) rgr_down(tp, link, "rdma: the peer closed the connection");
        break;
    default: break;
    }
}

void rgr_events(rg_tp_t *tp, uint64_t now) {
    struct ibv_cq *cq;
    void *user;
    struct rdma_cm_event *e;
    while (ibv_get_cq_event(tp->ready, &cq, &user) == 0) ibv_ack_cq_events(cq, 1);
    while (rdma_get_cm_event(tp->events, &e) == 0) {
        uint8_t data[RGR_HELLO];
        struct rdma_cm_id *id = e->id;
        enum rdma_cm_event_type type = e->event;
        int status = e->status;
        uint32_t len = e->param.conn.private_data && e->param.conn.private_data_len < RGR_HELLO
                           ? 0
                           : (e->param.conn.private_data ? RGR_HELLO : 0);
        if (len) memcpy(data, e->param.conn.private_data, RGR_HELLO);
        rdma_ack_cm_event(e); /* an identifier with an event that is not acknowledged cannot be destroyed */
        rgr_side_t *s = side_of(tp, id);
        if (type == RDMA_CM_EVENT_CONNECT_REQUEST) request(tp, id, data, len, now);
        else if (type == RDMA_CM_EVENT_DEVICE_REMOVAL) lost_all(tp);
        else if (s) on_side(tp, s, type, status, data, len);
    }
}
