/* shm_rx.c: frames coming in. A message finds the receive posted for it by tag, and a small one goes from the ring
 * straight into its sink; one that nobody has asked for is kept, within bounds, so that others can come past it
 * (rule T6). Every head is copied out of shared memory before it is looked at, and looked at before it is believed.
 * It must not write into a sink before tag, signature and length are known to fit. */
#include "shm_internal.h"

#include <stdlib.h>
#include <string.h>

#define FRAMES_PER_TURN 64

static int tag_equal(const rg_tag_t *a, const rg_tag_t *b) {
    return a->epoch == b->epoch && a->gen == b->gen && a->op == b->op && a->ord == b->ord;
}

void rgm_sink(const rg_tp_recv_t *r, const void *p, uint64_t off, uint64_t n) {
    if (!n) return;
    if (!r->reduce) {
        memcpy((uint8_t *)r->dst + off, p, n);
        return;
    }
    uint64_t i = off / r->wire_elem;
    r->reduce(r->reduce_ctx, (uint8_t *)r->dst + i * r->dst_elem, (const uint8_t *)r->a + i * r->a_elem, p,
              n / r->wire_elem);
}

void rgm_owe_ack(link_t *l, slot_id_t id) {
    rgm_slots_add(&l->ack_owed, id.slot);
    l->ack_gen[id.slot] = id.gen;
}

/* Tells the writer how far we have read; it may sleep until there is room. */
void rgm_publish(link_t *l) {
    STORE_RELEASE(&l->out->consumed, l->rpos);
    l->published = l->rpos;
    FENCE();
    if (LOAD(&l->in->starved)) rgm_bell(l);
}

/* ---- Messages without a receive ---- */

static unasked_t *unasked_new(link_t *l, const rg_tag_t *tag, uint64_t len) {
    if (l->unasked_count >= UNASKED_COUNT_MAX || len > UNASKED_MAX - l->unasked_bytes) return NULL;
    unasked_t *u = malloc(sizeof *u + len);
    if (!u) return NULL;
    u->next = NULL;
    u->tag = *tag;
    u->len = len;
    u->is_large = 0;
    *l->unasked_tail = u;
    l->unasked_tail = &u->next;
    l->unasked_count++;
    l->unasked_bytes += len;
    return u;
}

static void unasked_remove(link_t *l, unasked_t **at) {
    unasked_t *u = *at;
    if (l->shown_unasked == u) l->shown_unasked = NULL;
    *at = u->next;
    if (l->unasked_tail == &u->next) l->unasked_tail = at;
    l->unasked_count--;
    l->unasked_bytes -= u->len;
    free(u);
}

void rgm_unasked_fence(link_t *l, uint64_t epoch) {
    for (unasked_t **at = &l->unasked; *at;)
        if ((*at)->tag.epoch < epoch) unasked_remove(l, at);
        else at = &(*at)->next;
}

void rgm_unasked_free_all(link_t *l) {
    while (l->unasked) unasked_remove(l, &l->unasked);
}

static void tell_unexpected(rg_tp_t *tp, link_t *l, const rg_tag_t *tag) {
    if (l->told_at == l->rpos + 1 || rgm_ring_reserve(tp, 1) != 0) return;
    l->told_at = l->rpos + 1; /* once per message, however often we come back to it */
    rg_completion_t *c = rg_ring_push(&tp->ring);
    c->event = RG_TP_UNEXPECTED;
    c->link = l->index;
    c->tag = *tag;
}

/* ---- Matching ---- */

static recv_op_t *match(const link_t *l, const rg_tag_t *tag) {
    for (recv_op_t *op = l->recv_head; op; op = op->next)
        if (!op->bound && tag_equal(&op->r.tag, tag)) return op;
    return NULL;
}

static void mismatch(rg_tp_t *tp, link_t *l, recv_op_t *op, const rg_tag_t *came) {
    rgm_recv_unlink(l, op);
    rgm_recv_done(tp, l, op, RG_TP_MISMATCH, came);
}

static void count_in(rg_tp_t *tp, link_t *l, uint64_t n) {
    l->received += n;
    tp->received += n;
}

/* 1: dealt with; 0: it waits where it is. */
static int on_data(rg_tp_t *tp, link_t *l, const frame_t *h, const void *p) {
    if (h->tag.epoch < tp->fence) return 1;
    recv_op_t *op = match(l, &h->tag);
    if (op) {
        count_in(tp, l, h->len);
        if (op->r.tag.sig != h->tag.sig || op->r.len != h->len) {
            mismatch(tp, l, op, &h->tag);
            return 1;
        }
        rgm_sink(&op->r, p, 0, h->len);
        rgm_recv_unlink(l, op);
        rgm_recv_done(tp, l, op, RG_TP_DONE, NULL);
        return 1;
    }
    tell_unexpected(tp, l, &h->tag);
    unasked_t *u = unasked_new(l, &h->tag, h->len);
    if (!u) return 0;
    if (h->len) memcpy(u->bytes, p, h->len);
    count_in(tp, l, h->len);
    return 1;
}

static void start_large(rg_tp_t *tp, link_t *l, recv_op_t *op, const rg_tag_t *tag, const large_t *m) {
    count_in(tp, l, m->total);
    if (op->r.tag.sig != tag->sig || op->r.len != m->total) {
        rgm_owe_ack(l, m->id);
        mismatch(tp, l, op, tag);
        return;
    }
    rgm_pull_begin(tp, l, op, m);
}

static int on_large(rg_tp_t *tp, link_t *l, const frame_t *h, const void *p) {
    large_t m;
    if (h->len != sizeof m) return -1;
    memcpy(&m, p, sizeof m);
    if (m.id.slot >= SLOTS || m.total == 0) return -1;
    if (h->tag.epoch < tp->fence) return 1; /* its sender will hear of the fence too, and take it back */
    recv_op_t *op = match(l, &h->tag);
    if (op) {
        start_large(tp, l, op, &h->tag, &m);
        return 1;
    }
    tell_unexpected(tp, l, &h->tag);
    unasked_t *u = unasked_new(l, &h->tag, 0);
    if (!u) return 0;
    u->is_large = 1;
    u->large = m;
    return 1;
}

/* For a receive that has just been posted. */
int rgm_from_unasked(rg_tp_t *tp, link_t *l, recv_op_t *op) {
    for (unasked_t **at = &l->unasked; *at; at = &(*at)->next) {
        unasked_t *u = *at;
        if (!tag_equal(&u->tag, &op->r.tag)) continue;
        if (u->is_large) {
            start_large(tp, l, op, &u->tag, &u->large);
        } else if (u->tag.sig != op->r.tag.sig || u->len != op->r.len) {
            mismatch(tp, l, op, &u->tag);
        } else {
            rgm_sink(&op->r, u->bytes, 0, u->len);
            rgm_recv_unlink(l, op);
            rgm_recv_done(tp, l, op, RG_TP_DONE, NULL);
        }
        unasked_remove(l, at);
        return 1;
    }
    return 0;
}

/* ---- Frames ---- */

static int on_acks(rg_tp_t *tp, link_t *l, const frame_t *h, const void *p) {
    slot_id_t id[SLOTS];
    if (h->len > sizeof id || h->len % sizeof *id) return -1;
    memcpy(id, p, h->len);
    for (uint32_t i = 0; i < h->len / sizeof *id; i++) rgm_acked(tp, l, id[i]);
    return 1;
}

static void on_note(rg_tp_t *tp, link_t *l, uint64_t note) {
    if (note == l->note_in) return;
    l->note_in = note;
    tp->n_notes += !l->note_dirty;
    l->note_dirty = 1;
}

static int on_frame(rg_tp_t *tp, link_t *l, const frame_t *h, const uint8_t *p) {
    slot_id_t id = { h->tag.ord, h->tag.sig };
    on_note(tp, l, h->note);
    switch (h->type) {
    case FRAME_DATA: return on_data(tp, l, h, p);
    case FRAME_LARGE: return on_large(tp, l, h, p);
    case FRAME_ACK: return on_acks(tp, l, h, p);
    case FRAME_PUSH: rgm_push_asked(l, id, h->tag.epoch, h->tag.gen); return 1;
    case FRAME_PART: return rgm_part(tp, l, id, h->tag.epoch, p, h->len);
    case FRAME_GONE: rgm_region_forget(l, h->tag.epoch); return 1;
    case FRAME_NOTE: return 1;
    default: return -1;
    }
}

/* The frame at the reader's place, if there is one, copied into h. Its size in the ring, or 0; *bad when it is not one
 * that this version writes. */
static uint32_t frame_get(const link_t *l, frame_t *h, const uint8_t **p, int *bad) {
    uint32_t off = (uint32_t)l->rpos & (l->in_ring - 1);
    const frame_t *f = (const frame_t *)(const void *)(l->in->ring + off);
    if (LOAD_ACQUIRE(&f->mark) != l->in_key + l->rpos) return 0;
    memcpy(h, f, sizeof *h);
    __asm__ volatile("" ::: "memory"); /* the copy is what is checked and used, whatever happens to the original */
    uint32_t left = l->in_ring - off - 64, size = (h->len > 8 ? (h->len + 63u) & ~63u : 0u);
    if (h->type == FRAME_PAD) {
        *bad = h->len != left;
        size = left;
    } else {
        *bad = h->len > l->in_ring / 8 * 3 - 64 || size > left;
    }
    *p = h->len > 8 ? (const uint8_t *)(f + 1) : h->tiny;
    return size + 64;
}

int rgm_rx_ready(const link_t *l) {
    uint32_t off = (uint32_t)l->rpos & (l->in_ring - 1);
    const frame_t *f = (const frame_t *)(const void *)(l->in->ring + off);
    return LOAD_ACQUIRE(&f->mark) == l->in_key + l->rpos && !l->stalled;
}

static void passed(link_t *l) {
    if (l->rpos - l->published >= l->in_ring / 4 || (l->rpos != l->published && LOAD(&l->in->starved))) rgm_publish(l);
}

int rgm_rx(rg_tp_t *tp, link_t *l) {
    int n = 0;
    l->shown_size = 0;
    l->shown_unasked = NULL;
    for (; n < FRAMES_PER_TURN; n++) {
        frame_t h;
        const uint8_t *p;
        int bad = 0, rc = 1;
        uint32_t size = frame_get(l, &h, &p, &bad);
        if (!size) break;
        if (!bad && h.type != FRAME_PAD) rc = on_frame(tp, l, &h, p);
        if (bad || rc < 0) {
            rgm_link_fail(tp, l, "protocol error: a frame of type %u with %u bytes", h.type, h.len);
            return -1;
        }
        if (l->state != LINK_UP) return -1;
        l->stalled = rc == 0;
        if (rc == 0) break;
        l->rpos += size;
    }
    passed(l);
    return n;
}

/* ---- Messages where they lie ---- */

static const void *peek_unasked(link_t *l, const rg_tag_t *tag, uint64_t len, int *there) {
    unasked_t *u = l->unasked;
    while (u && !tag_equal(&u->tag, tag)) u = u->next;
    *there = u != NULL;
    if (!u || u->is_large || u->tag.sig != tag->sig || u->len != len) return NULL;
    l->shown_unasked = u;
    return u->bytes;
}

/* What is not the message looked for, or a word of how far the peer is, stays for rgm_rx(), which knows what to do. */
const void *rgm_peek(rg_tp_t *tp, link_t *l, const rg_tag_t *tag, uint64_t len) {
    const uint8_t *p;
    int there = 0, bad = 0;
    l->shown_unasked = NULL;
    l->shown_size = 0;
    if (tag->epoch < tp->fence) return NULL;
    const void *early = l->unasked ? peek_unasked(l, tag, len, &there) : NULL;
    if (there) return early;
    for (int n = 0; n < FRAMES_PER_TURN; n++) {
        uint32_t size = frame_get(l, &l->shown, &p, &bad);
        if (!size || bad) return NULL;
        if (l->shown.type == FRAME_NOTE) on_note(tp, l, l->shown.note);
        else if (l->shown.type != FRAME_PAD) {
            if (l->shown.type != FRAME_DATA || l->shown.len != len || l->shown.tag.sig != tag->sig ||
                !tag_equal(&l->shown.tag, tag))
                return NULL;
            l->shown_size = size;
            return p;
        }
        l->rpos += size;
    }
    return NULL;
}

uint64_t rgm_taken(rg_tp_t *tp, link_t *l) {
    if (l->shown_unasked) {
        unasked_t **at = &l->unasked;
        while (*at != l->shown_unasked) at = &(*at)->next;
        unasked_remove(l, at); /* it was counted when it came */
    } else if (l->shown_size) {
        on_note(tp, l, l->shown.note);
        count_in(tp, l, l->shown.len);
        l->rpos += l->shown_size;
        l->stalled = 0;
        l->shown_size = 0;
        passed(l);
    }
    if (l->note_dirty) {
        l->note_dirty = 0;
        tp->n_notes--;
    }
    return l->note_in;
}
