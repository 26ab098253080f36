/* rdma_msg.c: messages of the RDMA transport. Small ones travel whole; a large one is announced, and comes in pieces
 * when its receive is there, so that nothing large ever waits in the receiver's memory. Each message takes one slot of
 * the peer's, and credits say how many it has free. All slots are the transport's own: what is sent is copied into one,
 * what arrives is reduced or copied out of one, which for a reduction is its only pass. Relies on mbox.c for matching.
 * It must not post a message without a credit, nor use the last one but to give credits back. */
#include "rdma_internal.h"
#include "os/os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define RECV_ID (1ull << 63)
#define INLINE_MAX 256u
#define UNSIGNALLED_MAX 8u
#define POLL_MAX 16

/* ---- Slots ---- */

static rgr_slot_t *chunk_new(rg_tp_t *tp, uint32_t number) {
    rgr_slot_t *c = calloc(RGR_CHUNK, sizeof *c);
    size_t bytes = (size_t)RGR_CHUNK * RGR_SLOT;
    if (!c) return NULL;
    uint8_t *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *mr = m == MAP_FAILED ? NULL : ibv_reg_mr(tp->pd, m, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (!mr) {
        int e = errno;
        if (m != MAP_FAILED) munmap(m, bytes);
        free(c);
        errno = e;
        return NULL;
    }
    for (uint32_t i = 0; i < RGR_CHUNK; i++)
        c[i] = (rgr_slot_t){ .bytes = m + (size_t)i * RGR_SLOT, .mr = mr, .index = number * RGR_CHUNK + i };
    return c;
}

static void chunk_free(rgr_slot_t *c) {
    uint8_t *m = c->bytes;
    ibv_dereg_mr(c->mr);
    munmap(m, (size_t)RGR_CHUNK * RGR_SLOT);
    free(c);
}

static rgr_slot_t *slot_at(rgr_slot_t **chunks, uint32_t index) {
    return &chunks[index / RGR_CHUNK][index % RGR_CHUNK];
}

void rgr_post_slot(rg_tp_t *tp, rgr_slot_t *slot) {
    struct ibv_sge sge = { (uintptr_t)slot->bytes, RGR_SLOT, slot->mr->lkey };
    struct ibv_recv_wr wr = { .wr_id = RECV_ID | slot->index, .sg_list = &sge, .num_sge = 1 }, *bad;
    /* Cannot fail: the queue has room for all slots. */
    (void)ibv_post_srq_recv(tp->srq, &wr, &bad);
}

int rgr_slots_grow(rg_tp_t *tp, uint32_t links) {
    uint32_t most = tp->srq_max / RGR_CHUNK < RGR_CHUNKS_MAX ? tp->srq_max / RGR_CHUNK : RGR_CHUNKS_MAX;
    while (tp->n_chunks < links && tp->n_chunks < most) {
        rgr_slot_t *c = chunk_new(tp, tp->n_chunks);
        /* Those that are there serve more links than they were made for; a sender that meets none tries again. */
        if (!c) return tp->n_chunks ? 0 : errno;
        tp->chunks[tp->n_chunks++] = c;
        for (uint32_t i = 0; i < RGR_CHUNK; i++) rgr_post_slot(tp, &c[i]);
    }
    return 0;
}

int rgr_send_slots(rg_tp_t *tp) {
    while (tp->n_send_chunks < RGR_SEND_CHUNKS) {
        rgr_slot_t *c = chunk_new(tp, tp->n_send_chunks);
        if (!c) return tp->n_send_chunks ? 0 : errno;
        tp->send_chunks[tp->n_send_chunks++] = c;
        for (uint32_t i = 0; i < RGR_CHUNK; i++) {
            c[i].next = tp->free_sends;
            tp->free_sends = &c[i];
        }
    }
    return 0;
}

void rgr_slots_free(rg_tp_t *tp) {
    for (uint32_t i = 0; i < tp->n_chunks; i++) chunk_free(tp->chunks[i]);
    for (uint32_t i = 0; i < tp->n_send_chunks; i++) chunk_free(tp->send_chunks[i]);
    tp->n_chunks = tp->n_send_chunks = 0;
}

/* ---- Lists ---- */

void rgr_list_init(rgr_list_t *l) {
    l->first = NULL;
    l->tail = &l->first;
}

static void list_add(rgr_list_t *l, rgr_out_t *o) {
    o->next = NULL;
    *l->tail = o;
    l->tail = &o->next;
}

static rgr_out_t *list_take(rgr_list_t *l, rgr_out_t **at) {
    rgr_out_t *o = *at;
    *at = o->next;
    if (!*at) l->tail = at;
    return o;
}

static int tag_equal(const rg_tag_t *a, const rg_tag_t *b) {
    return a->epoch == b->epoch && a->gen == b->gen && a->op == b->op && a->ord == b->ord;
}

/* ---- Sending ---- */

/* 1: it is on its way; 0: not now; -1: the link is down. */
static int post(rg_tp_t *tp, rgr_side_t *s, rgr_head_t *h, const void *payload) {
    uint8_t small[INLINE_MAX], *to = small;
    uint32_t bytes = RGR_HEAD + h->len, at = (s->sq_first + s->sq_n) % RGR_SQ, slot_index = RGR_NO_SLOT;
    struct ibv_sge sge = { .length = bytes };
    struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
    if (s->sq_n + 2 > RGR_SQ) return 0; /* one is kept for the probe */
    if (bytes <= s->inline_max && bytes <= INLINE_MAX) {
        wr.send_flags = IBV_SEND_INLINE;
        if (++s->unsignalled >= UNSIGNALLED_MAX) wr.send_flags |= IBV_SEND_SIGNALED;
    } else {
        rgr_slot_t *slot = tp->free_sends;
        if (!slot) return 0;
        tp->free_sends = slot->next;
        slot_index = slot->index;
        to = slot->bytes;
        sge.lkey = slot->mr->lkey;
        wr.send_flags = IBV_SEND_SIGNALED;
    }
    if (wr.send_flags & IBV_SEND_SIGNALED) s->unsignalled = 0;
    h->credits = s->owed;
    h->note = tp->note;
    rgr_head_put(to, h);
    if (h->len) memcpy(to + RGR_HEAD, payload, h->len);
    sge.addr = (uintptr_t)to;
    wr.wr_id = (uint64_t)s->gen << 32 | s->index << 8 | at;
    s->sq[at] = slot_index;
    s->sq_n++;
    int e = ibv_post_send(s->id->qp, &wr, &bad);
    if (e) {
        rgr_down(tp, s->index, "rdma: cannot send: %s", strerror(e));
        return -1;
    }
    s->credits--;
    s->owed = 0;
    s->note_due = 0;
    return 1;
}

/* A write of no bytes: needs nothing of the peer but that it lives. */
void rgr_probe(rg_tp_t *tp, rgr_side_t *s) {
    uint32_t at = (s->sq_first + s->sq_n) % RGR_SQ;
    struct ibv_send_wr wr = { .wr_id = (uint64_t)s->gen << 32 | s->index << 8 | at,
                              .opcode = IBV_WR_RDMA_WRITE,
                              .send_flags = IBV_SEND_SIGNALED },
                       *bad;
    if (s->sq_n >= RGR_SQ) return;
    s->sq[at] = RGR_NO_SLOT;
    s->sq_n++;
    s->unsignalled = 0;
    int e = ibv_post_send(s->id->qp, &wr, &bad);
    if (e) rgr_down(tp, s->index, "rdma: cannot send: %s", strerror(e));
}

static void sent(rg_tp_t *tp, rgr_side_t *s, rgr_out_t *o) {
    tp->box.n_ops--;
    tp->box.links[s->index]->sent += o->s.len;
    rg_mbox_push(&tp->box, RG_TP_SENT, RG_TP_DONE, s->index, o->s.cookie, NULL);
    free(o);
}

/* The first of the queue: whole, or announced. */
static int begin(rg_tp_t *tp, rgr_side_t *s) {
    rgr_out_t *o = s->queue.first;
    rgr_head_t h = { .type = RGR_DATA, .tag = o->s.tag, .len = (uint32_t)o->s.len };
    int large = o->s.len > RGR_ROOM;
    if (large) {
        if (!++s->next_id) s->next_id = 1;
        o->sid = s->next_id;
        h = (rgr_head_t){ .type = RGR_RTS, .tag = o->s.tag, .total = o->s.len, .sid = o->sid };
    }
    int rc = post(tp, s, &h, o->s.buf);
    if (rc != 1) return rc;
    list_take(&s->queue, &s->queue.first);
    if (large) list_add(&s->asked, o);
    else sent(tp, s, o);
    return 1;
}

static int piece(rg_tp_t *tp, rgr_side_t *s) {
    rgr_out_t *o = s->flowing.first;
    uint64_t left = o->s.len - o->offset;
    rgr_head_t h = { .type = RGR_PIECE, .rid = o->rid, .offset = o->offset, .total = o->s.len };
    h.len = left < o->step ? (uint32_t)left : o->step;
    int rc = post(tp, s, &h, (const uint8_t *)o->s.buf + o->offset);
    if (rc != 1) return rc;
    o->offset += h.len;
    list_take(&s->flowing, &s->flowing.first);
    if (o->offset == o->s.len) sent(tp, s, o);
    else list_add(&s->flowing, o); /* large ones take turns */
    return 1;
}

static int answer_first(rg_tp_t *tp, rgr_side_t *s) {
    rgr_rts_t *a = s->answers;
    rgr_head_t h = { .type = RGR_CTS, .sid = a->sid, .rid = a->rid, .step = a->step };
    int rc = post(tp, s, &h, NULL);
    if (rc != 1) return rc;
    s->answers = a->next;
    if (!s->answers) s->answers_tail = &s->answers;
    free(a);
    return 1;
}

void rgr_pump(rg_tp_t *tp, rgr_side_t *s) {
    rgr_head_t note = { .type = RGR_NOTE };
    for (int rc = 1; rc == 1;) {
        const rg_mbox_link_t *l = rg_mbox_link(&tp->box, s->index);
        if (!s->queue_pair || !l || l->state != MBOX_UP || !s->credits) return;
        if (s->credits > 1 && s->answers) {
            rc = answer_first(tp, s);
        } else if (s->credits > 1 && s->flowing.first && (s->turn || !s->queue.first)) {
            s->turn = 0;
            rc = piece(tp, s);
        } else if (s->credits > 1 && s->queue.first) {
            s->turn = 1;
            rc = begin(tp, s);
        } else if (s->owed >= RGR_CREDITS / 2 || (s->note_due && s->credits > 1)) {
            rc = post(tp, s, &note, NULL);
        } else {
            return;
        }
    }
}

/* ---- Receiving ---- */

/* 0: no memory, and the link is down. */
static int answer(rg_tp_t *tp, rgr_side_t *s, uint32_t sid, uint32_t rid, uint32_t step) {
    rgr_rts_t *a = calloc(1, sizeof *a);
    if (!a) {
        rgr_down(tp, s->index, "rdma: no memory to answer the peer");
        return 0;
    }
    a->sid = sid;
    a->rid = rid;
    a->step = step;
    *s->answers_tail = a;
    s->answers_tail = &a->next;
    return 1;
}

/* A receive and the announced message that it is for; the receive counts in n_ops. */
static void meet(rg_tp_t *tp, rgr_side_t *s, const rg_tp_recv_t *r, const rg_tag_t *tag, uint64_t total, uint32_t sid) {
    rgr_in_t *in = NULL;
    int fits = r->tag.sig == tag->sig && r->len == total;
    if (fits) in = calloc(1, sizeof *in);
    if (!in) {
        tp->box.n_ops--;
        rg_mbox_push(&tp->box, RG_TP_FAILED, fits ? RG_TP_BROKEN : RG_TP_MISMATCH, s->index, r->cookie, tag);
        (void)answer(tp, s, sid, 0, 0);
        return;
    }
    if (!++s->next_id) s->next_id = 1;
    in->r = *r;
    in->rid = s->next_id;
    in->step = r->reduce ? RGR_ROOM / r->wire_elem * r->wire_elem : RGR_ROOM;
    in->next = s->ins;
    s->ins = in;
    (void)answer(tp, s, sid, in->rid, in->step);
}

int rgr_want(rg_tp_t *tp, rgr_side_t *s, const rg_tp_recv_t *r) {
    for (rgr_rts_t **at = &s->rts; *at; at = &(*at)->next) {
        rgr_rts_t *k = *at;
        if (!tag_equal(&k->tag, &r->tag)) continue;
        *at = k->next;
        s->n_rts--;
        tp->box.n_ops++;
        meet(tp, s, r, &k->tag, k->total, k->sid);
        free(k);
        return 1;
    }
    return 0;
}

static const char *on_announced(rg_tp_t *tp, rgr_side_t *s, const rgr_head_t *h) {
    rg_mbox_link_t *l = tp->box.links[s->index];
    if (h->tag.epoch < tp->box.fence) {
        (void)answer(tp, s, h->sid, 0, 0);
        return NULL;
    }
    for (rg_mbox_recv_t **at = &l->recvs; *at; at = &(*at)->next) {
        rg_mbox_recv_t *op = *at;
        if (!tag_equal(&op->r.tag, &h->tag)) continue;
        *at = op->next;
        meet(tp, s, &op->r, &h->tag, h->total, h->sid);
        free(op);
        return NULL;
    }
    if (s->n_rts >= RGR_RTS_MAX) return "too many messages that nobody has asked for";
    rgr_rts_t *k = calloc(1, sizeof *k), **tail = &s->rts;
    if (!k || rg_mbox_reserve(&tp->box, 1) != 0) {
        free(k);
        return "no memory for an announcement";
    }
    k->tag = h->tag;
    k->total = h->total;
    k->sid = h->sid;
    while (*tail) tail = &(*tail)->next;
    *tail = k;
    s->n_rts++;
    rg_mbox_push(&tp->box, RG_TP_UNEXPECTED, RG_TP_DONE, s->index, 0, &h->tag);
    return NULL;
}

static void on_answer(rg_tp_t *tp, rgr_side_t *s, const rgr_head_t *h) {
    for (rgr_out_t **at = &s->asked.first; *at; at = &(*at)->next) {
        rgr_out_t *o = *at;
        if (o->sid != h->sid) continue;
        list_take(&s->asked, at);
        o->rid = h->rid;
        o->step = h->step;
        if (h->rid) list_add(&s->flowing, o);
        else sent(tp, s, o);
        return;
    }
}

static const char *on_piece(rg_tp_t *tp, rgr_side_t *s, const rgr_head_t *h, const uint8_t *bytes) {
    for (rgr_in_t **at = &s->ins; *at; at = &(*at)->next) {
        rgr_in_t *in = *at;
        const rg_tp_recv_t *r = &in->r;
        if (in->rid != h->rid) continue;
        uint64_t left = r->len - in->got;
        if (h->offset != in->got || h->len != (left < in->step ? left : in->step)) return "a piece out of its place";
        if (r->reduce) {
            uint64_t k = in->got / r->wire_elem;
            r->reduce(r->reduce_ctx, (uint8_t *)r->dst + k * r->dst_elem, (const uint8_t *)r->a + k * r->a_elem, bytes,
                      h->len / r->wire_elem);
        } else {
            memcpy((uint8_t *)r->dst + in->got, bytes, h->len);
        }
        in->got += h->len;
        tp->box.links[s->index]->received += h->len;
        if (in->got < r->len) return NULL;
        *at = in->next;
        tp->box.n_ops--;
        rg_mbox_push(&tp->box, RG_TP_RECEIVED, RG_TP_DONE, s->index, r->cookie, &r->tag);
        free(in);
        return NULL;
    }
    return NULL; /* of a receive that a fence has ended */
}

/* 1: the slot is free again; 0: the message stays in it. */
static int take(rg_tp_t *tp, rgr_side_t *s, rgr_slot_t *slot, uint32_t bytes) {
    rgr_head_t h;
    const uint8_t *payload = slot->bytes + RGR_HEAD;
    const char *wrong = rgr_head_get(slot->bytes, bytes, &h);
    if (!wrong && s->credits + h.credits > RGR_CREDITS) wrong = "more credits than there are";
    if (!wrong && s->owed + s->n_held >= RGR_CREDITS) wrong = "more messages than it has credits for";
    if (!wrong) {
        s->credits += h.credits;
        rg_mbox_note(&tp->box, s->index, h.note);
        if (h.type == RGR_RTS) wrong = on_announced(tp, s, &h);
        if (h.type == RGR_CTS) on_answer(tp, s, &h);
        if (h.type == RGR_PIECE) wrong = on_piece(tp, s, &h, payload);
    }
    if (wrong) {
        rgr_down(tp, s->index, "rdma: protocol: %s", wrong);
        return 1;
    }
    slot->told = 0;
    if (h.type == RGR_DATA && !rg_mbox_offer(&tp->box, s->index, &h.tag, payload, h.len, &slot->told)) {
        slot->len = bytes;
        slot->next = NULL;
        *s->held_tail = slot;
        s->held_tail = &slot->next;
        s->n_held++;
        return 0;
    }
    s->owed++;
    return 1;
}

void rgr_held_again(rg_tp_t *tp, rgr_side_t *s) {
    for (rgr_slot_t **at = &s->held; *at;) {
        rgr_slot_t *slot = *at;
        rgr_head_t h;
        (void)rgr_head_get(slot->bytes, slot->len, &h);
        if (!rg_mbox_offer(&tp->box, s->index, &h.tag, slot->bytes + RGR_HEAD, h.len, &slot->told)) {
            at = &slot->next;
            continue;
        }
        *at = slot->next;
        if (!*at) s->held_tail = at;
        s->n_held--;
        s->owed++;
        rgr_post_slot(tp, slot);
    }
}

/* ---- Completions ---- */

static void reap(rg_tp_t *tp, rgr_side_t *s, uint32_t upto) {
    while (s->sq_n) {
        uint32_t at = s->sq_first;
        if (s->sq[at] != RGR_NO_SLOT) {
            rgr_slot_t *slot = slot_at(tp->send_chunks, s->sq[at]);
            slot->next = tp->free_sends;
            tp->free_sends = slot;
        }
        s->sq_first = (at + 1) % RGR_SQ;
        s->sq_n--;
        if (at == upto) return;
    }
}

static void send_ended(rg_tp_t *tp, const struct ibv_wc *wc) {
    uint32_t link = (uint32_t)(wc->wr_id >> 8) & 0xffffff;
    rgr_side_t *s = link < tp->n_sides ? tp->sides[link] : NULL;
    if (!s || !s->queue_pair || s->gen != (uint32_t)(wc->wr_id >> 32)) return;
    if (wc->status == IBV_WC_SUCCESS) {
        reap(tp, s, (uint32_t)wc->wr_id & 0xff);
        rgr_pump(tp, s);
        return;
    }
    if (wc->status == IBV_WC_RETRY_EXC_ERR)
        rgr_down(tp, link, "rdma: the peer's adapter does not answer (%s)", ibv_wc_status_str(wc->status));
    else rgr_down(tp, link, "rdma: the connection failed: %s", ibv_wc_status_str(wc->status));
}

static void received(rg_tp_t *tp, const struct ibv_wc *wc) {
    rgr_slot_t *slot = slot_at(tp->chunks, (uint32_t)(wc->wr_id & ~RECV_ID));
    rgr_side_t *s = wc->status == IBV_WC_SUCCESS ? rgr_side_of_qpn(tp, wc->qp_num) : NULL;
    int is_free = 1;
    if (s && s->accepted) rgr_up(tp, s->index); /* its last word of the handshake may come after its first message */
    if (s && tp->box.links[s->index]->state == MBOX_CONNECTING) {
        rgr_events(tp, rg_os_now_ns()); /* who was dialled has answered by now, and is looked at first */
        s = rgr_side_of_qpn(tp, wc->qp_num);
        if (s && tp->box.links[s->index]->state == MBOX_CONNECTING) {
            rgr_down(tp, s->index, "rdma: protocol: a message before the greeting");
            s = NULL;
        }
    }
    if (s && s->queue_pair) is_free = take(tp, s, slot, wc->byte_len);
    if (is_free) rgr_post_slot(tp, slot);
    if (s) rgr_pump(tp, s);
}

void rgr_completions(rg_tp_t *tp) {
    struct ibv_wc wc[POLL_MAX];
    int n = POLL_MAX;
    for (int rounds = 0; n == POLL_MAX && rounds < 16; rounds++) {
        n = ibv_poll_cq(tp->cq, POLL_MAX, wc);
        for (int i = 0; i < n; i++) {
            if (wc[i].wr_id & RECV_ID) received(tp, &wc[i]);
            else send_ended(tp, &wc[i]);
        }
    }
}

/* ---- Ending ---- */

static void cancel_list(rg_tp_t *tp, rgr_side_t *s, rgr_list_t *l, uint64_t below, rg_tp_status_t st) {
    for (rgr_out_t **at = &l->first; *at;) {
        if (st == RG_TP_FENCED && (*at)->s.tag.epoch >= below) {
            at = &(*at)->next;
            continue;
        }
        rgr_out_t *o = list_take(l, at);
        tp->box.n_ops--;
        rg_mbox_push(&tp->box, RG_TP_FAILED, st, s->index, o->s.cookie, NULL);
        free(o);
    }
}

void rgr_cancel(rg_tp_t *tp, rgr_side_t *s, uint64_t below, rg_tp_status_t st) {
    cancel_list(tp, s, &s->queue, below, st);
    cancel_list(tp, s, &s->asked, below, st);
    cancel_list(tp, s, &s->flowing, below, st);
    for (rgr_in_t **at = &s->ins; *at;) {
        rgr_in_t *in = *at;
        if (st == RG_TP_FENCED && in->r.tag.epoch >= below) {
            at = &in->next;
            continue;
        }
        *at = in->next;
        tp->box.n_ops--;
        rg_mbox_push(&tp->box, RG_TP_FAILED, st, s->index, in->r.cookie, NULL);
        free(in);
    }
    for (rgr_rts_t **at = &s->rts; *at;) {
        rgr_rts_t *k = *at;
        if (st == RG_TP_FENCED && k->tag.epoch >= below) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        s->n_rts--;
        uint32_t sid = k->sid;
        free(k);
        if (st == RG_TP_FENCED && !answer(tp, s, sid, 0, 0)) return;
    }
}
