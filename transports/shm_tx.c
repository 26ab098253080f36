/* shm_tx.c: frames going out. Small messages are copied into the ring and are done; of large ones only the place is
 * announced, in one of SLOTS slots, and they are done when the receiver says that it has what it needs. A slot's
 * generation is in shared memory: taking a buffer back means moving it on, which the receiver sees after whatever it
 * read. Relies on the receiver's word for how far it has read, and on nothing else that it says.
 * It must not wait for the receiver, nor read a buffer after its operation ended. */
#include "shm_internal.h"
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* From the first length on messages are written past the cache, and from the second on where lines are slow to write,
 * which is timed now and then: 8 to 12 ns for each where they are quick, 26 to 38 where they are not. */
#define PAST_CACHE 16384u
#define PAST_SLOW 1024u
#define SLOW_LINE_NS 18u
#define TIMED_EVERY 32u
#define SLOW_MOST 4

/* Whether a message goes into the ring whole. What lies in a region can be read where it is, which pays earlier. */
static int goes_whole(const link_t *l, const rg_tp_send_t *s) {
    rg_region_t r;
    if (s->len > INLINE_MAX || s->len > l->out_ring / 8) return 0;
    return s->len <= REGION_INLINE_MAX || rg_shm_hooks.no_regions || !rg_shared_find(s->buf, s->len, &r);
}

static uint32_t frame_bytes(uint32_t len) { return 64u + (len > 8 ? (len + 63u) & ~63u : 0u); }

/* Rings the bell when the peer sleeps: after the frames are visible, or the two might miss each other. */
void rgm_bell(link_t *l) {
    FENCE();
    uint32_t s = LOAD(&l->in->sleep);
    if (!(s & 1) || s == l->woken) return;
    l->woken = s;
    /* A full socket is readable, which wakes as well; a broken one is noticed where it is read. */
    ssize_t n = send(l->conn->fd, "!", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)n;
}

static int room(link_t *l, uint32_t total) {
    if (l->wpos + total - l->seen <= l->out_ring) return 1;
    uint64_t c = LOAD_ACQUIRE(&l->in->consumed);
    if (c >= l->seen && c <= l->wpos) l->seen = c; /* anything else is a lie, and gives no room */
    return l->wpos + total - l->seen <= l->out_ring;
}

/* The next frame, all but its mark, or NULL when there is no room. */
static frame_t *frame_new(rg_tp_t *tp, link_t *l, frame_type_t type, uint32_t len) {
    uint32_t need = frame_bytes(len), off = (uint32_t)l->wpos & (l->out_ring - 1), left = l->out_ring - off;
    if (!room(l, need <= left ? need : left + need)) return NULL;
    frame_t *f = (frame_t *)(void *)(l->out->ring + off);
    if (need > left) {
        f->len = left - 64;
        f->type = FRAME_PAD;
        STORE_RELEASE(&f->mark, l->out->key + l->wpos);
        l->wpos += left;
        f = (frame_t *)(void *)l->out->ring;
    }
    f->len = len;
    f->type = (uint8_t)type;
    f->note = tp->note;
    return f;
}

/* Whether lines are slow to write is a matter of where the host has put two processors, and changes. */
static void fill_timed(link_t *l, void *to, const void *from, size_t n) {
    uint64_t began = rg_os_now_ns();
    memcpy(to, from, n);
    FENCE();
    int is_slow = rg_os_now_ns() - began > n / 64 * SLOW_LINE_NS;
    if (is_slow ? l->slow_lines < SLOW_MOST : l->slow_lines > -SLOW_MOST) l->slow_lines += is_slow ? 1 : -1;
}

/* The lines of a ring are shared with the reader by the time that they are written again: past the cache from the size
 * on where that pays (shm_lent.c says why). A reader on this processor finds them in its cache. */
static void fill(link_t *l, frame_t *f, const void *from, size_t n) {
    void *to = f->len > 8 ? (uint8_t *)(f + 1) : f->tiny;
    if (n >= PAST_SLOW && LOAD(&l->in->cpu) == l->out->cpu) memcpy(to, from, n);
    else if (n >= PAST_CACHE) rg_copy_past_cache(to, from, n);
    else if (n >= PAST_SLOW && ++l->fills % TIMED_EVERY == 0) fill_timed(l, to, from, n);
    else if (n >= PAST_SLOW && l->slow_lines > 0) rg_copy_past_cache(to, from, n);
    else if (n) memcpy(to, from, n);
}

static void *payload(frame_t *f) { return f->len > 8 ? (uint8_t *)(f + 1) : f->tiny; }

static void frame_go(link_t *l, frame_t *f) {
    uint32_t n = frame_bytes(f->len);
    STORE_RELEASE(&f->mark, l->out->key + l->wpos);
    l->wpos += n;
}

static int put_small(rg_tp_t *tp, link_t *l, const rg_tp_send_t *s) {
    frame_t *f = frame_new(tp, l, FRAME_DATA, (uint32_t)s->len);
    if (!f) return 0;
    f->tag = s->tag;
    fill(l, f, s->buf, s->len);
    frame_go(l, f);
    l->note_owed = 0;
    l->sent += s->len;
    tp->sent += s->len;
    return 1;
}

int rgm_send_now(rg_tp_t *tp, link_t *l, const rg_tp_send_t *s) {
    if (!goes_whole(l, s) || !put_small(tp, l, s)) return 0;
    rgm_bell(l);
    return 1;
}

/* ---- Large messages ---- */

static uint32_t free_slot(const link_t *l) {
    for (uint32_t i = 0; i < SLOTS / 64; i++)
        if (~l->slots_used.word[i]) return i * 64 + (uint32_t)__builtin_ctzll(~l->slots_used.word[i]);
    return SLOTS;
}

static int put_large(rg_tp_t *tp, link_t *l, send_op_t *op) {
    uint32_t slot = free_slot(l);
    if (slot == SLOTS) return 0;
    large_t m = { .total = op->s.len, .addr = (uint64_t)(uintptr_t)op->s.buf };
    if (!room(l, 4 * 64)) return 0; /* before the peer is told of a region: the frame and what may be left empty fit */
    m.region = rgm_region_tell(l, op->s.buf, op->s.len, &m.off);
    m.id = op->id = (slot_id_t){ slot, l->out->gen[slot] };
    frame_t *f = frame_new(tp, l, FRAME_LARGE, sizeof m);
    if (!f) return 0;
    f->tag = op->s.tag;
    memcpy(payload(f), &m, sizeof m);
    frame_go(l, f);
    l->note_owed = 0;
    rgm_slots_add(&l->slots_used, slot);
    l->slot[slot] = op;
    op->next = NULL;
    return 1;
}

/* The buffer is the caller's again as soon as this has become visible to whoever reads it. */
static void slot_release(link_t *l, send_op_t *op) {
    uint32_t slot = op->id.slot;
    STORE_RELEASE(&l->out->gen[slot], op->id.gen + 1);
    l->slot[slot] = NULL;
    rgm_slots_remove(&l->slots_used, slot);
    rgm_slots_remove(&l->slots_pushing, slot);
}

static send_op_t *slot_op(link_t *l, slot_id_t id) {
    send_op_t *op = id.slot < SLOTS ? l->slot[id.slot] : NULL;
    return op && op->id.gen == id.gen ? op : NULL;
}

static void large_done(rg_tp_t *tp, link_t *l, send_op_t *op) {
    slot_release(l, op);
    l->sent += op->s.len;
    tp->sent += op->s.len;
    rgm_send_done(tp, l, op, RG_TP_DONE);
}

void rgm_acked(rg_tp_t *tp, link_t *l, slot_id_t id) {
    send_op_t *op = slot_op(l, id);
    if (!op) return;
    if (!op->piece) rgm_lent_add(tp, op->s.buf, op->s.len);
    large_done(tp, l, op);
}

void rgm_push_asked(link_t *l, slot_id_t id, uint64_t piece, uint64_t from) {
    send_op_t *op = slot_op(l, id);
    if (!op || op->piece || piece == 0 || piece > PART_MAX || from > op->s.len) return;
    op->piece = (uint32_t)piece;
    op->off = from;
    rgm_slots_add(&l->slots_pushing, id.slot);
}

static int put_parts(rg_tp_t *tp, link_t *l) {
    int any = 0;
    for (uint32_t i = 0; (i = rgm_slots_next(&l->slots_pushing, i)) < SLOTS; i++) {
        send_op_t *op = l->slot[i];
        while (op->off < op->s.len) {
            uint64_t n = op->s.len - op->off < op->piece ? op->s.len - op->off : op->piece;
            frame_t *f = frame_new(tp, l, FRAME_PART, (uint32_t)n);
            if (!f) return any;
            f->tag = (rg_tag_t){ .epoch = op->off, .ord = op->id.slot, .sig = op->id.gen };
            fill(l, f, (const uint8_t *)op->s.buf + op->off, n);
            frame_go(l, f);
            op->off += n;
            any = 1;
        }
        large_done(tp, l, op);
    }
    return any;
}

void rgm_revoke(rg_tp_t *tp, link_t *l, uint64_t epoch, rg_tp_status_t st) {
    for (uint32_t i = 0; (i = rgm_slots_next(&l->slots_used, i)) < SLOTS; i++) {
        send_op_t *op = l->slot[i];
        if (op->s.tag.epoch >= epoch && epoch != UINT64_MAX) continue;
        slot_release(l, op);
        rgm_send_done(tp, l, op, st);
    }
    for (send_op_t **at = &l->send_head; *at;) {
        send_op_t *op = *at;
        if (op->s.tag.epoch >= epoch && epoch != UINT64_MAX) {
            at = &op->next;
            continue;
        }
        *at = op->next;
        rgm_send_done(tp, l, op, st);
    }
    l->send_tail = &l->send_head;
    while (*l->send_tail) l->send_tail = &(*l->send_tail)->next;
}

/* ---- Everything that is owed ---- */

static int put_acks(rg_tp_t *tp, link_t *l) {
    uint32_t n = 0, slot;
    for (uint32_t i = 0; i < SLOTS / 64; i++) n += (uint32_t)__builtin_popcountll(l->ack_owed.word[i]);
    frame_t *f = frame_new(tp, l, FRAME_ACK, n * (uint32_t)sizeof(slot_id_t));
    if (!f) return 0;
    slot_id_t *id = payload(f);
    for (; (slot = rgm_slots_next(&l->ack_owed, 0)) < SLOTS; rgm_slots_remove(&l->ack_owed, slot))
        *id++ = (slot_id_t){ slot, l->ack_gen[slot] };
    frame_go(l, f);
    return 1;
}

static int put_push_requests(rg_tp_t *tp, link_t *l) {
    int any = 0;
    for (uint32_t slot; (slot = rgm_slots_next(&l->push_owed, 0)) < SLOTS;
         rgm_slots_remove(&l->push_owed, slot), any = 1) {
        const recv_op_t *op = l->pushed[slot];
        if (!op) continue;
        uint32_t e = op->r.reduce ? op->r.wire_elem : 1;
        frame_t *f = frame_new(tp, l, FRAME_PUSH, 0);
        if (!f) return any;
        f->tag =
            (rg_tag_t){ .epoch = PART_MAX / e * e, .gen = op->got, .ord = op->large.id.slot, .sig = op->large.id.gen };
        frame_go(l, f);
    }
    return any;
}

static int put_gone(rg_tp_t *tp, link_t *l) {
    int any = 0;
    for (; l->n_gone; any = 1) {
        frame_t *f = frame_new(tp, l, FRAME_GONE, 0);
        if (!f) return any;
        f->tag = (rg_tag_t){ .epoch = l->gone[--l->n_gone] };
        frame_go(l, f);
    }
    return any;
}

static int put_note(rg_tp_t *tp, link_t *l) {
    frame_t *f = frame_new(tp, l, FRAME_NOTE, 0);
    if (!f) return 0;
    frame_go(l, f);
    l->note_owed = 0;
    return 1;
}

static int put_queue(rg_tp_t *tp, link_t *l) {
    int any = 0;
    while (l->send_head) {
        send_op_t *op = l->send_head, *next = op->next;
        int small = goes_whole(l, &op->s);
        if (!(small ? put_small(tp, l, &op->s) : put_large(tp, l, op))) break;
        any = 1;
        l->send_head = next;
        if (!next) l->send_tail = &l->send_head;
        if (small) rgm_send_done(tp, l, op, RG_TP_DONE);
    }
    return any;
}

int rgm_push(rg_tp_t *tp, link_t *l) {
    int any = 0;
    if (l->ack_owed.any) any |= put_acks(tp, l);
    if (l->push_owed.any) any |= put_push_requests(tp, l);
    if (l->note_owed) any |= put_note(tp, l);
    if (l->n_gone) any |= put_gone(tp, l);
    if (l->slots_pushing.any) any |= put_parts(tp, l);
    if (l->send_head) any |= put_queue(tp, l);
    if (any) rgm_bell(l);
    return any;
}

int rgm_tx_waits(const link_t *l) {
    return l->ack_owed.any || l->push_owed.any || l->note_owed || l->n_gone || l->slots_pushing.any || l->send_head;
}
