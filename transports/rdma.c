/* rdma.c: the RDMA transport's table: links over reliable connections of InfiniBand or RoCE adapters, through
 * libibverbs and librdmacm. Relies on rdma_conn.c for connections, rdma_msg.c for messages, mbox.c for matching.
 * Nothing remote can write to memory of a caller: drop() ends the queue pair, which ends what our own adapter still
 * reads into it, and fence() waits for such reads, of which little is under way at a time. It must not sleep, and moves
 * bytes in poll(). */
#include "rdma_internal.h"
#include "rdma_rails.h"
#include "observe/log.h"
#include "os/os.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_NS 500000u          /* connection events are looked for so often while the caller polls */
#define LAST_WORDS_NS 100000000u /* close(): what has been sent may take so long to arrive */
#define NEVER UINT64_MAX

static rgr_side_t *side_at(rg_tp_t *tp, uint32_t link) { return link < tp->n_sides ? tp->sides[link] : NULL; }

static void rdma_tp_close(rg_tp_t *tp);

static rg_status_t rdma_tp_open(const rg_tp_config_t *config, rg_tp_t **out, uint8_t *addr, uint32_t *addr_len,
                                rg_error_t *err) {
    static const uint8_t none[16];
    *out = NULL;
    if (config->tls)
        return rg_fail(err, RG_ERR_NOTSUP, 0,
                       "rdma: what goes through an adapter cannot be encrypted: use RG_TRANSPORT=tcp with RG_TLS");
    rg_tp_t *tp = calloc(1, sizeof *tp);
    if (!tp || rg_mbox_reserve(&tp->box, 64) != 0) {
        free(tp);
        return rg_fail(err, RG_ERR_NOMEM, 0, "rdma: no memory for an endpoint");
    }
    memcpy(tp->identity, config->identity, 16);
    memcpy(tp->nonce, config->nonce, 16);
    tp->nonce_known = memcmp(tp->nonce, none, 16) != 0;
    tp->heartbeat_ms = config->config->heartbeat_ms ? config->config->heartbeat_ms : 2000;
    tp->traffic_class = (uint8_t)config->config->rdma_traffic_class;
    tp->source = config->config->rdma_device != NULL;
    tp->log = config->log;
    tp->log_user = config->log_user;
    tp->next_timer = NEVER;
    tp->epoll = -1;
    rg_status_t st = rgr_open_device(tp, config, addr, addr_len, err);
    if (st != RG_OK) {
        rdma_tp_close(tp);
        return st;
    }
    *out = tp;
    return RG_OK;
}

static void rdma_tp_set_nonce(rg_tp_t *tp, const uint8_t nonce[16]) {
    memcpy(tp->nonce, nonce, 16);
    tp->nonce_known = 1;
    rgr_nonce_known(tp);
}

static rg_status_t sides_for(rg_tp_t *tp, uint32_t link, rg_error_t *err) {
    if (tp->n_sides < tp->box.n_links) {
        rgr_side_t **more = realloc(tp->sides, tp->box.n_links * sizeof(*more));
        if (!more) return rg_fail(err, RG_ERR_NOMEM, 0, "rdma: no memory for a link");
        memset(more + tp->n_sides, 0, (tp->box.n_links - tp->n_sides) * sizeof(*more));
        tp->sides = more;
        tp->n_sides = tp->box.n_links;
    }
    if (!tp->sides[link] && !(tp->sides[link] = malloc(sizeof(rgr_side_t))))
        return rg_fail(err, RG_ERR_NOMEM, 0, "rdma: no memory for a link");
    rgr_side_t *s = tp->sides[link];
    memset(s, 0, sizeof *s);
    s->index = link;
    rgr_list_init(&s->queue);
    rgr_list_init(&s->asked);
    rgr_list_init(&s->flowing);
    rgr_list_init(&s->ending);
    rgr_list_init(&s->fenced);
    s->answers_tail = &s->answers;
    s->held_tail = &s->held;
    return RG_OK;
}

static rg_status_t rdma_tp_connect(rg_tp_t *tp, uint32_t link, const rg_tp_peer_t *peer, rg_error_t *err) {
    rg_mbox_link_t *before = rg_mbox_link(&tp->box, link);
    if (before && before->state == MBOX_DOWN && peer->resume) rg_mbox_drop(&tp->box, link);
    rg_status_t st = rg_mbox_connect(&tp->box, link, peer, rg_os_now_ns(), err);
    if (st != RG_OK) return st;
    st = sides_for(tp, link, err);
    if (st == RG_OK && peer->dial) st = rgr_dial(tp, link, peer, err);
    if (st != RG_OK) {
        rg_mbox_drop(&tp->box, link);
        return st;
    }
    tp->next_timer = 0;
    return RG_OK;
}

void rgr_part_of(rg_tp_t *tp, uint64_t whole) { tp->part_of = whole; }

static int rdma_tp_send(rg_tp_t *tp, uint32_t link, const rg_tp_send_t *send) {
    rg_mbox_link_t *l = rg_mbox_link(&tp->box, link);
    uint64_t whole = tp->part_of;
    rgr_out_t *o;
    tp->part_of = 0;
    if (rg_mbox_reserve(&tp->box, 1) != 0) return RG_ERR_NOMEM;
    if (!l || l->state == MBOX_DOWN || send->tag.epoch < tp->box.fence) {
        rg_mbox_push(&tp->box, RG_TP_FAILED, l && l->state != MBOX_DOWN ? RG_TP_FENCED : RG_TP_GONE, link, send->cookie,
                     NULL);
        return RG_OK;
    }
    if (!(o = calloc(1, sizeof *o))) return RG_ERR_NOMEM;
    rgr_side_t *s = tp->sides[link];
    o->s = *send;
    o->whole = whole;
    *s->queue.tail = o;
    s->queue.tail = &o->next;
    tp->box.n_ops++;
    rgr_pump(tp, s);
    return RG_OK;
}

static int rdma_tp_recv(rg_tp_t *tp, uint32_t link, const rg_tp_recv_t *recv) {
    rg_mbox_link_t *l = rg_mbox_link(&tp->box, link);
    rgr_side_t *s = side_at(tp, link);
    uint64_t whole = tp->part_of;
    tp->part_of = 0;
    if (l && l->state == MBOX_UP && recv->tag.epoch >= tp->box.fence && s->rts) {
        if (recv->reduce && (recv->wire_elem == 0 || recv->len % recv->wire_elem != 0)) return RG_ERR_INVALID;
        if (rg_mbox_reserve(&tp->box, 1) != 0) return RG_ERR_NOMEM;
        if (rgr_want(tp, s, recv, whole)) {
            rgr_pump(tp, s);
            return RG_OK;
        }
    }
    int rc = rg_mbox_post(&tp->box, link, recv);
    rg_mbox_recv_t *op = rc == RG_OK && whole && l ? l->recvs : NULL;
    while (op && op->next) op = op->next;
    if (op && op->r.cookie == recv->cookie) op->whole = whole; /* else it has ended */
    if (l && s && s->held) rgr_held_again(tp, s);
    if (l && s) rgr_pump(tp, s);
    return rc;
}

static void rdma_tp_note(rg_tp_t *tp, uint32_t link, uint64_t note, int flush) {
    tp->note = note;
    for (uint32_t i = 0; flush && i < tp->n_sides; i++) {
        rgr_side_t *s = tp->sides[i];
        if (!s || (link != RG_TP_ALL_LINKS && link != i) || !rg_mbox_link(&tp->box, i)) continue;
        s->note_due = 1;
        rgr_pump(tp, s);
    }
}

static void timers(rg_tp_t *tp, uint64_t now) {
    tp->next_timer = NEVER;
    rgr_accept_pending(tp, now);
    for (uint32_t i = 0; i < tp->n_pending; i++)
        if (tp->pending[i].deadline < tp->next_timer) tp->next_timer = tp->pending[i].deadline;
    for (uint32_t i = 0; i < tp->n_sides; i++) {
        rg_mbox_link_t *l = rg_mbox_link(&tp->box, i);
        rgr_side_t *s = tp->sides[i];
        if (!l || !s || l->state == MBOX_DOWN) continue;
        if (l->state == MBOX_CONNECTING && now >= l->deadline) {
            rgr_down(tp, i, "rdma: the peer did not connect in time");
            continue;
        }
        if (l->state == MBOX_UP && now >= s->heard_by_ns) {
            s->heard_by_ns = now + s->quiet_ns;
            if (rgr_given_up(tp, s)) continue;
            if (!s->sq_n || s->unsignalled) rgr_probe(tp, s);
        }
        uint64_t at = l->state == MBOX_UP ? s->heard_by_ns : l->deadline;
        if (at < tp->next_timer) tp->next_timer = at;
    }
}

static int rdma_tp_poll(rg_tp_t *tp, rg_completion_t *out, int max) {
    uint64_t now = rg_os_now_ns();
    rgr_completions(tp);
    rgr_mem_look(tp);
    if (now - tp->looked_ns >= LOOK_NS) {
        tp->looked_ns = now;
        rgr_events(tp, now);
    }
    if (now >= tp->next_timer) timers(tp, now);
    return rg_mbox_take(&tp->box, out, max);
}

static int rdma_tp_arm(rg_tp_t *tp, int64_t *timeout_ns) {
    if (tp->box.ring.n || tp->box.notes) return 0;
    if (ibv_req_notify_cq(tp->cq, 0) != 0) return 0;
    rgr_completions(tp); /* what came before it was asked for */
    tp->looked_ns = 0;
    if (tp->box.ring.n || tp->box.notes) return 0;
    if (tp->next_timer != NEVER) {
        uint64_t now = rg_os_now_ns();
        int64_t left = tp->next_timer > now ? (int64_t)(tp->next_timer - now) : 0;
        if (*timeout_ns < 0 || left < *timeout_ns) *timeout_ns = left;
    }
    return 1;
}

static void rdma_tp_fence(rg_tp_t *tp, uint64_t epoch) {
    if (epoch <= tp->box.fence) return;
    rg_mbox_fence(&tp->box, epoch);
    for (uint32_t i = 0; i < tp->n_sides; i++) {
        rgr_side_t *s = tp->sides[i];
        if (!s || !rg_mbox_link(&tp->box, i)) continue;
        rgr_cancel(tp, s, epoch, RG_TP_FENCED);
        if (s->held) rgr_held_again(tp, s);
        rgr_pump(tp, s);
    }
    rgr_fence_wait(tp);
}

static void rdma_tp_drop(rg_tp_t *tp, uint32_t link) {
    rgr_side_t *s = side_at(tp, link);
    if (!rg_mbox_link(&tp->box, link) || !s) return;
    rgr_cancel(tp, s, 0, RG_TP_GONE);
    rgr_unlink(tp, s);
    rg_mbox_drop(&tp->box, link);
}

static void rdma_tp_stats(rg_tp_t *tp, uint32_t link, uint64_t *sent, uint64_t *received) {
    *sent = *received = 0;
    for (uint32_t i = 0; i < tp->box.n_links; i++)
        if (tp->box.links[i] && (link == RG_TP_ALL_LINKS || link == i)) {
            *sent += tp->box.links[i]->sent;
            *received += tp->box.links[i]->received;
        }
}

static void rdma_tp_work(rg_tp_t *tp, uint64_t *copied, uint64_t *reduced) {
    *copied = tp->copied;
    *reduced = tp->reduced;
}

static int rdma_tp_wake_fd(rg_tp_t *tp) { return tp->epoll; }

/* A connection that is destroyed loses what the adapter has not delivered, and who has been told SENT counts on it. */
static void last_words(rg_tp_t *tp) {
    uint64_t until = rg_os_now_ns() + LAST_WORDS_NS;
    for (uint32_t i = 0; i < tp->n_sides; i++) {
        const rg_mbox_link_t *l = rg_mbox_link(&tp->box, i);
        rgr_side_t *s = tp->sides[i];
        if (!l || !s || l->state != MBOX_UP) continue;
        if (s->unsignalled) rgr_probe(tp, s);
        while (s->queue_pair && s->sq_n && rg_os_now_ns() < until) rgr_completions(tp);
    }
}

static void rdma_tp_close(rg_tp_t *tp) {
    if (!tp) return;
    if (tp->cq) last_words(tp);
    for (uint32_t i = 0; i < tp->n_sides; i++) {
        rdma_tp_drop(tp, i);
        free(tp->sides[i]);
    }
    tp->n_sides = 0;
    rgr_close_device(tp);
    rg_mbox_free(&tp->box);
    free(tp->sides);
    free(tp);
}

const rg_transport_t rg_transport_rdma = {
    .struct_size = sizeof(rg_transport_t),
    .name = "rdma",
    .open = rdma_tp_open,
    .set_nonce = rdma_tp_set_nonce,
    .connect = rdma_tp_connect,
    .send = rdma_tp_send,
    .recv = rdma_tp_recv,
    .note = rdma_tp_note,
    .poll = rdma_tp_poll,
    .arm = rdma_tp_arm,
    .fence = rdma_tp_fence,
    .drop = rdma_tp_drop,
    .stats = rdma_tp_stats,
    .wake_fd = rdma_tp_wake_fd,
    .close = rdma_tp_close,
    .work = rdma_tp_work,
    .lend = rgr_lend,
    .reclaim = rgr_reclaim,
    .fetch = rgr_fetch,
    .unfetch = rgr_unfetch,
};
