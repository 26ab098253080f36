/* rdma_msg.c: messages of the RDMA transport. Small ones travel whole; a large one is announced, and when its receive
 * is there either read by the receiver's adapter, from registered memory into registered memory, or sent in pieces, so
 * that nothing large ever waits in the receiver's memory. Each message or piece takes one slot of the peer's, and
 * credits say how many it has free; what arrives in one is reduced or copied out of it, which for a reduction is its
 * only pass. A piece of registered memory is sent from where it lies. As its owner may write there once more after a
 * fence, a large message counts only when the sender says that all of it was delivered before. Relies on mbox.c for
 * matching. It must not post a message without a credit, nor use the last one but to give credits back. */
#include "rdma_internal.h"
#include "os/os.h"
#include "rdma_hooks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define RECV_ID (1ull << 63)
#define INLINE_MAX 256u
#define UNSIGNALLED_MAX 8u
#define POLL_MAX 16

rgr_hooks_t rgr_hooks;

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

int rgr_room(const rgr_side_t *s, uint32_t n) { return s->sq_n + n < RGR_SQ; } /* one is kept for the probe */

int rgr_hand_over(rg_tp_t *tp, rgr_side_t *s, struct ibv_send_wr *wr, rgr_work_t work) {
    uint32_t at = (s->sq_first + s->sq_n) % RGR_SQ;
    struct ibv_send_wr *bad;
    wr->wr_id = (uint64_t)s->gen << 32 | s->index << 8 | at;
    if (++s->unsignalled >= UNSIGNALLED_MAX) wr->send_flags |= IBV_SEND_SIGNALED;
    if (wr->send_flags & IBV_SEND_SIGNALED) s->unsignalled = 0;
    if (work.mem) rgr_mem_use(work.mem);
    if (work.out) work.out->busy++;
    if (work.in) work.in->busy++;
    work.told = (wr->send_flags & IBV_SEND_SIGNALED) != 0;
    if (work.get) work.get->busy++;
    s->sq[at] = work;
    s->sq_n++;
    int e = ibv_post_send(s->id->qp, wr, &bad);
    if (!e) return 1;
    rgr_down(tp, s->index, "rdma: cannot send: %s", strerror(e));
    return -1;
}

/* 1: it is on its way; 0: not now; -1: the link is down. The payload is copied, or sent from the memory that `o` lies
 * in. */
static int post(rg_tp_t *tp, rgr_side_t *s, rgr_head_t *h, const void *payload, rgr_out_t *o) {
    uint8_t small[INLINE_MAX], *to = small;
    uint32_t bytes = RGR_HEAD + h->len;
    struct ibv_sge sge[2] = { { .length = bytes } };
    struct ibv_send_wr wr = { .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND };
    rgr_work_t work = { .slot = RGR_NO_SLOT, .bytes = bytes };
    if (!rgr_room(s, 1)) return 0;
    if (!o && bytes <= s->inline_max && bytes <= INLINE_MAX) {
        wr.send_flags = IBV_SEND_INLINE;
    } else {
        rgr_slot_t *slot = tp->free_sends;
        if (!slot) return 0;
        tp->free_sends = slot->next;
        work.slot = slot->index;
        to = slot->bytes;
        sge[0].lkey = slot->mr->lkey;
        wr.send_flags = IBV_SEND_SIGNALED;
    }
    h->credits = s->owed;
    h->note = tp->note;
    h->roomy = tp->roomy;
    rgr_head_put(to, h);
    sge[0].addr = (uintptr_t)to;
    if (o) {
        sge[0].length = RGR_HEAD;
        sge[1] = (struct ibv_sge){ (uintptr_t)payload, h->len, o->mem->mr->lkey };
        wr.num_sge = 2;
        work.mem = o->mem;
        work.out = o;
    } else if (h->len) {
        memcpy(to + RGR_HEAD, payload, h->len);
        tp->copied += h->len;
    }
    if (rgr_hand_over(tp, s, &wr, work) < 0) return -1;
    s->credits--;
    s->owed = 0;
    s->note_due = 0;
    return 1;
}

int rgr_post_head(rg_tp_t *tp, rgr_side_t *s, rgr_head_t *h) { return post(tp, s, h, NULL, NULL); }

/* A write of no bytes: needs nothing of the peer but that it lives. */
void rgr_probe(rg_tp_t *tp, rgr_side_t *s) {
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
    if (s->sq_n < RGR_SQ) (void)rgr_hand_over(tp, s, &wr, (rgr_work_t){ .slot = RGR_NO_SLOT });
}

void rgr_window_spent(rgr_side_t *s, rgr_window_t **at) {
    rgr_window_t *w = *at;
    if (!w) return;
    w->next = s->spent;
    s->spent = w;
    *at = NULL;
}

static void out_free(rg_tp_t *tp, rgr_side_t *s, rgr_out_t *o) {
    rgr_window_spent(s, &o->window);
    rgr_mem_put(tp, o->mem);
    free(o);
}

static void sent(rg_tp_t *tp, rgr_side_t *s, rgr_out_t *o) {
    tp->box.n_ops--;
    tp->box.links[s->index]->sent += o->s.len;
    rg_mbox_push(&tp->box, RG_TP_SENT, RG_TP_DONE, s->index, o->s.cookie, NULL);
    out_free(tp, s, o);
}

int rgr_window_open(rg_tp_t *tp, rgr_side_t *s, rgr_mem_t *mem, const void *from, uint64_t bytes, rgr_window_t **at) {
    rgr_window_t *w = rgr_window_new(tp);
    if (!w) return 0;
    uint32_t key = ibv_inc_rkey(w->mw->rkey);
    struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW };
    wr.bind_mw.mw = w->mw;
    wr.bind_mw.rkey = key;
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
        .mr = mem->mr, .addr = (uintptr_t)from, .length = bytes, .mw_access_flags = IBV_ACCESS_REMOTE_READ
    };
    w->mem = mem;
    rgr_mem_use(w->mem);
    *at = w;
    if (rgr_hand_over(tp, s, &wr, (rgr_work_t){ .slot = RGR_NO_SLOT }) < 0) return -1;
    w->mw->rkey = key;
    return 1;
}

static int close_window(rg_tp_t *tp, rgr_side_t *s) {
    rgr_window_t *w = s->spent;
    struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED };
    wr.invalidate_rkey = w->mw->rkey;
    s->spent = w->next;
    return rgr_hand_over(tp, s, &wr, (rgr_work_t){ .slot = RGR_NO_SLOT, .closes = w });
}

/* The first of the queue: whole, or announced. */
static int begin(rg_tp_t *tp, rgr_side_t *s) {
    rgr_out_t *o = s->queue.first;
    rgr_head_t h = { .type = RGR_DATA, .tag = o->s.tag, .len = (uint32_t)o->s.len };
    int large = o->s.len > RGR_ROOM;
    if (large) {
        if (!rgr_room(s, 2)) return 0;
        if (!o->sid) {
            if (!++s->next_id) s->next_id = 1;
            o->sid = s->next_id;
            o->mem = rgr_mem_get(tp, o->s.buf, o->s.len);
        }
        if (o->mem && s->serves && !o->window && rgr_window_open(tp, s, o->mem, o->s.buf, o->s.len, &o->window) < 0)
            return -1;
        h = (rgr_head_t){ .type = RGR_RTS, .tag = o->s.tag, .total = o->s.len, .sid = o->sid, .whole = o->whole };
        if (o->window) {
            h.key = o->window->mw->rkey;
            h.offset = (uintptr_t)o->s.buf;
        }
    }
    int rc = post(tp, s, &h, o->s.buf, NULL);
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
    int rc = post(tp, s, &h, (const uint8_t *)o->s.buf + o->offset, o->mem ? o : NULL);
    if (rc != 1) return rc;
    o->offset += h.len;
    list_take(&s->flowing, &s->flowing.first);
    list_add(o->offset == o->s.len ? &s->ending : &s->flowing, o); /* large ones take turns */
    return 1;
}

/* Of those that are under way or read, one that the adapter has no business with any more; NULL: none. */
static rgr_out_t **delivered(rgr_side_t *s) {
    for (rgr_out_t **at = &s->ending.first; *at; at = &(*at)->next)
        if (!(*at)->busy) return at;
    return NULL;
}

static int end(rg_tp_t *tp, rgr_side_t *s, rgr_out_t **at) {
    rgr_head_t h = { .type = RGR_DONE, .rid = (*at)->rid };
    int rc = post(tp, s, &h, NULL, NULL);
    if (rc == 1) sent(tp, s, list_take(&s->ending, at));
    return rc;
}

static int answer_first(rg_tp_t *tp, rgr_side_t *s) {
    rgr_rts_t *a = s->answers;
    rgr_head_t h = { .type = a->type, .sid = a->sid, .rid = a->rid, .step = a->step };
    int rc = post(tp, s, &h, NULL, NULL);
    if (rc != 1) return rc;
    s->answers = a->next;
    if (!s->answers) s->answers_tail = &s->answers;
    free(a);
    return 1;
}

/* Has the adapter fetch the next part of a message that is read. */
static int fetch(rg_tp_t *tp, rgr_side_t *s) {
    rgr_in_t *in = s->ins;
    if (s->reads >= s->reads_max || !rgr_room(s, 1)) return 0;
    while (in && (!in->mem || in->fenced || in->begun == in->r.len)) in = in->next;
    if (!in) return 0;
    uint64_t left = in->r.len - in->begun;
    uint32_t n = left < RGR_READ ? (uint32_t)left : RGR_READ;
    struct ibv_sge sge = { (uintptr_t)in->r.dst + in->begun, n, in->mem->mr->lkey };
    struct ibv_send_wr wr = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED
    };
    wr.wr.rdma.remote_addr = in->remote + in->begun;
    wr.wr.rdma.rkey = in->key;
    in->begun += n;
    s->reads++;
    return rgr_hand_over(tp, s, &wr, (rgr_work_t){ .slot = RGR_NO_SLOT, .bytes = n, .mem = in->mem, .in = in });
}

/* Messages, and what has been lent to us, take turns. */
static int read_some(rg_tp_t *tp, rgr_side_t *s) {
    s->read_turn = !s->read_turn;
    int rc = s->read_turn ? rgr_lend_read(tp, s) : fetch(tp, s);
    return rc ? rc : s->read_turn ? fetch(tp, s) : rgr_lend_read(tp, s);
}

void rgr_pump(rg_tp_t *tp, rgr_side_t *s) {
    rgr_head_t note = { .type = RGR_NOTE };
    rgr_out_t **at;
    for (int rc = 1; rc == 1;) {
        const rg_mbox_link_t *l = rg_mbox_link(&tp->box, s->index);
        if (!s->queue_pair || !l || l->state != MBOX_UP) return;
        if (s->spent && rgr_room(s, 1)) {
            rc = close_window(tp, s);
        } else if ((rc = read_some(tp, s)) != 0) {
            continue;
        } else if (!s->credits) {
            return;
        } else if (s->credits > 1 && s->answers) {
            rc = answer_first(tp, s);
        } else if (s->credits > 1 && s->lend_due && (rc = rgr_lend_tell(tp, s)) != 0) {
            continue;
        } else if (s->credits > 1 && (at = delivered(s))) {
            rc = end(tp, s, at);
        } else if (s->credits > 1 && s->flowing.first && (s->turn || !s->queue.first)) {
            s->turn = 0;
            rc = piece(tp, s);
        } else if (s->credits > 1 && s->queue.first) {
            s->turn = 1;
            rc = begin(tp, s);
        } else if (s->owed >= RGR_CREDITS / 2 || (s->note_due && s->credits > 1)) {
            rc = post(tp, s, &note, NULL, NULL);
        } else {
            return;
        }
    }
}

/* ---- Receiving ---- */

/* 0: no memory, and the link is down. */
static int answer(rg_tp_t *tp, rgr_side_t *s, rgr_type_t type, uint32_t sid, const rgr_in_t *in) {
    rgr_rts_t *a = calloc(1, sizeof *a);
    if (!a) {
        rgr_down(tp, s->index, "rdma: no memory to answer the peer");
        return 0;
    }
    *a = (rgr_rts_t){ .type = type, .sid = sid, .rid = in ? in->rid : 0, .step = in ? in->step : 0 };
    *s->answers_tail = a;
    s->answers_tail = &a->next;
    return 1;
}

/* Nobody wants its bytes. */
static int decline(rg_tp_t *tp, rgr_side_t *s, uint32_t sid) { return answer(tp, s, RGR_CTS, sid, NULL); }

/* A receive and the announced message that it is for; the receive counts in n_ops. */
static void meet(rg_tp_t *tp, rgr_side_t *s, const rg_tp_recv_t *r, uint64_t whole, const rgr_rts_t *k) {
    rgr_in_t *in = NULL, **tail = &s->ins;
    int fits = r->tag.sig == k->tag.sig && r->len == k->total && whole == k->whole;
    if (fits) in = calloc(1, sizeof *in);
    if (!in) {
        tp->box.n_ops--;
        rg_mbox_push(&tp->box, RG_TP_FAILED, fits ? RG_TP_BROKEN : RG_TP_MISMATCH, s->index, r->cookie, &k->tag);
        (void)decline(tp, s, k->sid);
        return;
    }
    if (!++s->next_id) s->next_id = 1;
    in->r = *r;
    in->rid = s->next_id;
    in->sid = k->sid;
    while (*tail) tail = &(*tail)->next;
    *tail = in;
    if (k->key && !r->reduce && s->reads_max) in->mem = rgr_mem_get(tp, r->dst, r->len);
    if (in->mem) {
        in->key = k->key;
        in->remote = k->remote;
        return;
    }
    in->step = r->reduce ? RGR_ROOM / r->wire_elem * r->wire_elem : RGR_ROOM;
    (void)answer(tp, s, RGR_CTS, k->sid, in);
}

int rgr_want(rg_tp_t *tp, rgr_side_t *s, const rg_tp_recv_t *r, uint64_t whole) {
    for (rgr_rts_t **at = &s->rts; *at; at = &(*at)->next) {
        rgr_rts_t *k = *at;
        if (!tag_equal(&k->tag, &r->tag)) continue;
        *at = k->next;
        s->n_rts--;
        tp->box.n_ops++;
        meet(tp, s, r, whole, k);
        free(k);
        return 1;
    }
    return 0;
}

static const char *on_announced(rg_tp_t *tp, rgr_side_t *s, const rgr_head_t *h) {
    rg_mbox_link_t *l = tp->box.links[s->index];
    rgr_rts_t here = { .tag = h->tag, .total = h->total, .sid = h->sid, .key = h->key, .remote = h->offset };
    here.whole = h->whole;
    if (h->tag.epoch < tp->box.fence) {
        (void)decline(tp, s, h->sid);
        return NULL;
    }
    for (rg_mbox_recv_t **at = &l->recvs; *at; at = &(*at)->next) {
        rg_mbox_recv_t *op = *at;
        if (!tag_equal(&op->r.tag, &h->tag)) continue;
        *at = op->next;
        meet(tp, s, &op->r, op->whole, &here);
        free(op);
        return NULL;
    }
    if (s->n_rts >= RGR_RTS_MAX) return "too many messages that nobody has asked for";
    rgr_rts_t *k = calloc(1, sizeof *k), **tail = &s->rts;
    if (!k || rg_mbox_reserve(&tp->box, 1) != 0) {
        free(k);
        return "no memory for an announcement";
    }
    *k = here;
    while (*tail) tail = &(*tail)->next;
    *tail = k;
    s->n_rts++;
    rg_mbox_push(&tp->box, RG_TP_UNEXPECTED, RG_TP_DONE, s->index, 0, &h->tag);
    return NULL;
}

static void fenced_out_ended(rg_tp_t *tp, rgr_side_t *s, rgr_out_t *o) {
    rgr_out_t **at = &s->fenced.first;
    if (o->busy || o->window) return;
    while (*at != o) at = &(*at)->next;
    out_free(tp, s, list_take(&s->fenced, at));
}

/* The peer has no use for the memory of a message that a fence has ended. */
static void fenced_out_answered(rg_tp_t *tp, rgr_side_t *s, uint32_t sid) {
    rgr_out_t *o = s->fenced.first;
    while (o && o->sid != sid) o = o->next;
    if (!o || !o->window) return;
    rgr_window_spent(s, &o->window);
    fenced_out_ended(tp, s, o);
}

static const char *on_answer(rg_tp_t *tp, rgr_side_t *s, const rgr_head_t *h) {
    for (rgr_out_t **at = &s->asked.first; *at; at = &(*at)->next) {
        rgr_out_t *o = *at;
        if (o->sid != h->sid) continue;
        if (h->type == RGR_GOT && !o->window) return "it has read what it had no key to";
        list_take(&s->asked, at);
        rgr_window_spent(s, &o->window); /* it has been read, or comes in pieces */
        o->rid = h->rid;
        o->step = h->step;
        if (h->type == RGR_GOT) list_add(&s->ending, o);
        else if (h->rid) list_add(&s->flowing, o);
        else sent(tp, s, o);
        return NULL;
    }
    fenced_out_answered(tp, s, h->sid);
    return NULL;
}

static rgr_in_t **in_at(rgr_side_t *s, uint32_t rid) {
    rgr_in_t **at = &s->ins;
    while (*at && (*at)->rid != rid) at = &(*at)->next;
    return at;
}

static void in_ended(rg_tp_t *tp, rgr_side_t *s, rgr_in_t **at, rg_tp_event_t event, rg_tp_status_t st) {
    rgr_in_t *in = *at;
    *at = in->next;
    tp->box.n_ops--;
    tp->n_fenced -= (uint32_t)in->fenced;
    rg_mbox_push(&tp->box, event, st, s->index, in->r.cookie, event == RG_TP_RECEIVED ? &in->r.tag : NULL);
    rgr_mem_put(tp, in->mem);
    free(in);
}

static const char *on_piece(rg_tp_t *tp, rgr_side_t *s, const rgr_head_t *h, const uint8_t *bytes) {
    rgr_in_t *in = *in_at(s, h->rid);
    if (!in) return NULL; /* of a receive that a fence has ended */
    const rg_tp_recv_t *r = &in->r;
    uint64_t left = r->len - in->got;
    if (in->mem || h->offset != in->got || h->len != (left < in->step ? left : in->step))
        return "a piece out of its place";
    if (r->reduce) {
        uint64_t k = in->got / r->wire_elem;
        r->reduce(r->reduce_ctx, (uint8_t *)r->dst + k * r->dst_elem, (const uint8_t *)r->a + k * r->a_elem, bytes,
                  h->len / r->wire_elem);
        tp->reduced += h->len;
    } else {
        memcpy((uint8_t *)r->dst + in->got, bytes, h->len);
        tp->copied += h->len;
    }
    in->got += h->len;
    return NULL;
}

static const char *on_done(rg_tp_t *tp, rgr_side_t *s, const rgr_head_t *h) {
    rgr_in_t **at = in_at(s, h->rid), *in = *at;
    if (!in || in->fenced) return NULL;
    if (in->got < in->r.len || (in->mem && !in->told)) return "the end of a message before all of it";
    tp->box.links[s->index]->received += in->r.len;
    in_ended(tp, s, at, RG_TP_RECEIVED, RG_TP_DONE);
    return NULL;
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
        s->peer_roomy = h.roomy;
        rg_mbox_note(&tp->box, s->index, h.note);
        if (h.type == RGR_RTS) wrong = on_announced(tp, s, &h);
        if (h.type == RGR_CTS || h.type == RGR_GOT) wrong = on_answer(tp, s, &h);
        if (h.type == RGR_PIECE) wrong = on_piece(tp, s, &h, payload);
        if (h.type == RGR_DONE) wrong = on_done(tp, s, &h);
        if (h.type >= RGR_LEND) wrong = rgr_on_lending(tp, s, &h);
        if (h.type == RGR_DATA) tp->copied += h.len; /* or reduced, if its receive is there */
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

static void read_ended(rg_tp_t *tp, rgr_side_t *s, rgr_in_t *in, uint32_t bytes) {
    s->reads--;
    in->busy--;
    in->got += bytes;
    if (in->fenced) {
        uint32_t sid = in->sid;
        if (in->busy) return;
        in_ended(tp, s, in_at(s, in->rid), RG_TP_FAILED, RG_TP_FENCED);
        (void)decline(tp, s, sid);
    } else if (in->got == in->r.len) {
        in->told = 1;
        (void)answer(tp, s, RGR_GOT, in->sid, in);
    }
}

static void slot_back(rg_tp_t *tp, uint32_t index) {
    if (index == RGR_NO_SLOT) return;
    rgr_slot_t *slot = slot_at(tp->send_chunks, index);
    slot->next = tp->free_sends;
    tp->free_sends = slot;
}

static void reap(rg_tp_t *tp, rgr_side_t *s, uint32_t upto) {
    while (s->sq_n) {
        uint32_t at = s->sq_first;
        rgr_work_t w = s->sq[at];
        s->sq_first = (at + 1) % RGR_SQ;
        s->sq_n--;
        s->ended++;
        slot_back(tp, w.slot);
        rgr_mem_put(tp, w.mem);
        if (w.closes) rgr_window_closed(tp, w.closes);
        if (w.out) {
            w.out->busy--;
            if (w.out->fenced) fenced_out_ended(tp, s, w.out);
        }
        if (w.in) read_ended(tp, s, w.in, w.bytes);
        if (w.get) rgr_get_read(tp, s, w.get);
        if (at == upto) return;
    }
}

void rgr_work_forget(rg_tp_t *tp, rgr_side_t *s) {
    for (; s->sq_n; s->sq_n--, s->sq_first = (s->sq_first + 1) % RGR_SQ) {
        slot_back(tp, s->sq[s->sq_first].slot);
        rgr_mem_put(tp, s->sq[s->sq_first].mem);
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
    tp->drained = n < POLL_MAX;
}

/* ---- Ending ---- */

static void cancel_list(rg_tp_t *tp, rgr_side_t *s, rgr_list_t *l, uint64_t below, rg_tp_status_t st) {
    for (rgr_out_t **at = &l->first; *at;) {
        if (st == RG_TP_FENCED && (*at)->s.tag.epoch >= below) {
            at = &(*at)->next;
            continue;
        }
        rgr_out_t *o = list_take(l, at);
        if (l == &s->queue) rgr_window_spent(s, &o->window); /* it has not been announced, so no answer will come */
        if (!o->fenced) {
            tp->box.n_ops--;
            rg_mbox_push(&tp->box, RG_TP_FAILED, st, s->index, o->s.cookie, NULL);
        }
        o->fenced = 1;
        if (st == RG_TP_FENCED && (o->busy || o->window)) list_add(&s->fenced, o);
        else out_free(tp, s, o);
    }
}

/* 0: the link has gone down meanwhile. */
static int cancel_ins(rg_tp_t *tp, rgr_side_t *s, uint64_t below, rg_tp_status_t st) {
    for (rgr_in_t **at = &s->ins; *at;) {
        rgr_in_t *in = *at;
        uint32_t sid = in->mem && !in->told ? in->sid : 0;
        if (st == RG_TP_FENCED && (in->fenced || in->busy || in->r.tag.epoch >= below)) {
            if (in->r.tag.epoch < below && !in->fenced) {
                in->fenced = 1; /* ends with its last read; rgr_fence_wait() */
                tp->n_fenced++;
            }
            at = &in->next;
            continue;
        }
        in_ended(tp, s, at, RG_TP_FAILED, st);
        if (sid && st == RG_TP_FENCED && !decline(tp, s, sid)) return 0;
    }
    return 1;
}

void rgr_cancel(rg_tp_t *tp, rgr_side_t *s, uint64_t below, rg_tp_status_t st) {
    cancel_list(tp, s, &s->queue, below, st);
    cancel_list(tp, s, &s->asked, below, st);
    cancel_list(tp, s, &s->flowing, below, st);
    cancel_list(tp, s, &s->ending, below, st);
    if (st != RG_TP_FENCED) cancel_list(tp, s, &s->fenced, below, st);
    if (st != RG_TP_FENCED) rgr_lend_ends(tp, s);
    if (!cancel_ins(tp, s, below, st)) return;
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
        if (st == RG_TP_FENCED && !decline(tp, s, sid)) return;
    }
}

/* What our adapter fetches already cannot be called back, but comes soon, as the peer's adapter needs nothing of its
 * process; one that answers nothing for a quarter of the silence allowed is cut off, which ends its reads, too. */
void rgr_fence_wait(rg_tp_t *tp) {
    uint64_t begin = rg_os_now_ns();
    while (tp->n_fenced && !rgr_hooks.no_fence_wait) {
        uint64_t now = rg_os_now_ns();
        rgr_completions(tp);
        for (uint32_t i = 0; tp->n_fenced && i < tp->n_sides; i++) {
            rgr_side_t *s = tp->sides[i];
            const rgr_in_t *in = s ? s->ins : NULL;
            while (in && !in->fenced) in = in->next;
            if (in && now - begin >= s->quiet_ns)
                rgr_down(tp, i, "rdma: the peer's adapter does not answer while a fence waits for it");
        }
    }
}
