/* tcp_recv.c: takes frames apart. A frame finds the receive posted for it by tag, or waits: as long as nothing else is
 * asked for on its link it waits in the kernel (its sender is held up, no memory is spent); otherwise its bytes are
 * kept, within UNASKED_MAX, so that what was asked for can come past it (rule T6).
 * Relies on rgt_frame_get() for the checks of single headers; checks here what needs the state of the link. Must not
 * write into a sink before the tag, signature and length of its message are known to fit. */
#include "assume.h"
#include "tcp_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

/* A message nobody has asked for yet is mostly asked for within microseconds, and then its bytes go straight to their
 * place. So a larger one waits in the kernel first, also when others are asked for: see rgt_make_way(). */
#define KEEP_AT_ONCE 4096u
#define TLS_STEP (32u << 10) /* decrypted and reduced at once: what is a multiple of every element stays in cache */
#define TURN (512u << 10)    /* bytes per call and rail: then sending has its turn */
#define ACK_EVERY (256u << 10)

static int tag_equal(const rg_tag_t *a, const rg_tag_t *b) {
    return a->epoch == b->epoch && a->gen == b->gen && a->op == b->op && a->ord == b->ord;
}

static int same_message(const rg_tag_t *a, const rg_tag_t *b) { return tag_equal(a, b) && a->sig == b->sig; }

/* ---- Messages without a receive ---- */

void rgt_unasked_free(link_t *l, unasked_t *u) {
    unasked_t **at = &l->unasked;
    while (*at && *at != u) at = &(*at)->next;
    if (*at) *at = u->next;
    for (uint32_t r = 0; r < l->rails; r++)
        if (l->rail[r] && l->rail[r]->kept == u) l->rail[r]->kept = NULL;
    if (u->bytes) l->unasked_bytes -= u->total;
    l->unasked_count--;
    free(u->bytes);
    free(u);
}

static unasked_t *unasked_new(link_t *l, const frame_t *f, int keep) {
    if (l->unasked_count >= UNASKED_COUNT_MAX || (keep && f->total > UNASKED_MAX - l->unasked_bytes)) return NULL;
    unasked_t *u = calloc(1, sizeof *u);
    if (!u) return NULL;
    if (keep) {
        u->bytes = malloc(f->total ? f->total : 1);
        if (!u->bytes) {
            free(u);
            return NULL;
        }
        l->unasked_bytes += f->total;
    }
    u->tag = f->tag;
    u->mseq = f->mseq;
    u->total = f->total;
    l->unasked_count++;
    unasked_t **at = &l->unasked; /* in order of arrival */
    while (*at) at = &(*at)->next;
    *at = u;
    return u;
}

static void tell_unexpected(rg_tp_t *tp, link_t *l, const frame_t *f) {
    if (f->offset != 0 || rgt_ring_reserve(tp, 1) != 0) return; /* once per message: its first frame */
    rg_completion_t *c = rg_ring_push(&tp->ring);
    c->event = RG_TP_UNEXPECTED;
    c->link = l->index;
    c->tag = f->tag;
}

/* ---- Sinks ---- */

static void reduce_bytes(conn_t *c, const uint8_t *p, uint32_t n) {
    const rg_tp_recv_t *r = &c->rx->r;
    uint32_t e = r->wire_elem;
    uint64_t index = (c->f.offset + c->done) / e;
    c->done += n;
    if (c->carry_n) {
        uint32_t want = e - c->carry_n, have = n < want ? n : want;
        memcpy(c->carry + c->carry_n, p, have);
        c->carry_n += have;
        p += have;
        n -= have;
        if (c->carry_n < e) return;
        r->reduce(r->reduce_ctx, (uint8_t *)r->dst + index * r->dst_elem, (const uint8_t *)r->a + index * r->a_elem,
                  c->carry, 1);
        index++;
        c->carry_n = 0;
    }
    uint32_t whole = n / e;
    if (whole)
        r->reduce(r->reduce_ctx, (uint8_t *)r->dst + index * r->dst_elem, (const uint8_t *)r->a + index * r->a_elem, p,
                  whole);
    c->carry_n = n - whole * e;
    memcpy(c->carry, p + whole * e, c->carry_n);
}

static void take_bytes(conn_t *c, const uint8_t *p, uint32_t n) {
    if (c->rx && c->rx->r.reduce) {
        reduce_bytes(c, p, n);
        return;
    }
    if (c->rx) memcpy((uint8_t *)c->rx->r.dst + c->f.offset + c->done, p, n);
    else if (c->kept && c->kept->bytes) memcpy(c->kept->bytes + c->f.offset + c->done, p, n);
    c->done += n;
}

/* A position as a number that no peer can foretell. */
static uint64_t mark(const rg_tp_t *tp, uint64_t at) {
    uint64_t x = (at ^ tp->secret) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 29;
}

/* Added up over frames that cover a message once, all ends but the message's own cancel. Over frames that overlap and
 * leave gaps they do not, however many bytes there are. */
static uint64_t span(const rg_tp_t *tp, uint64_t from, uint64_t to) { return mark(tp, to) - mark(tp, from); }

static uint64_t frame_span(const rg_tp_t *tp, const frame_t *f) { return span(tp, f->offset, f->offset + f->len); }

static int broken(rg_tp_t *tp, link_t *l) {
    rgt_link_fail(tp, l, "the peer broke the protocol: frames of a message overlap");
    return -1;
}

static int from_kept(rg_tp_t *tp, link_t *l, recv_op_t *op, unasked_t *u);

/* -1: the link is gone. */
static int body_done(rg_tp_t *tp, conn_t *c) {
    link_t *l = c->link;
    recv_op_t *op = c->rx;
    unasked_t *u = c->kept;
    c->in_body = 0;
    c->rx = NULL;
    c->kept = NULL;
    l->received += c->f.len;
    tp->received += c->f.len;
    if (op) {
        op->got += c->f.len;
        if (op->got < op->r.len) return 0;
        if (op->cover != span(tp, 0, op->r.len)) return broken(tp, l);
        rgt_recv_unlink(l, op);
        rgt_recv_done(tp, l, op, RG_TP_DONE, NULL);
    } else if (u) {
        u->got += c->f.len;
        if (u->got < u->total) return 0;
        if (!u->bytes) {
            rgt_unasked_free(l, u);
            return 0;
        }
        if (u->cover != span(tp, 0, u->total)) return broken(tp, l);
        /* A receive may have been posted while the bytes came in. */
        for (op = l->recv_head; op; op = op->next)
            if (!op->bound && tag_equal(&op->r.tag, &u->tag)) {
                from_kept(tp, l, op, u);
                return 0;
            }
    }
    return 0;
}

/* ---- Matching ---- */

/* The receive for a frame: the one bound to its message, else the first with its tag that is not bound. */
static recv_op_t *find_recv(link_t *l, const frame_t *f) {
    recv_op_t *fresh = NULL;
    for (recv_op_t *op = l->recv_head; op; op = op->next) {
        if (op->bound ? op->mseq == f->mseq : !fresh && tag_equal(&op->r.tag, &f->tag)) {
            if (op->bound) return op;
            fresh = op;
            if (f->offset == 0 && f->len == f->total) return fresh; /* whole message: nothing can be bound to it */
        }
    }
    return fresh;
}

enum { DISPATCH_GO, DISPATCH_STALL, DISPATCH_BROKEN };

static int to_receive(rg_tp_t *tp, conn_t *c, recv_op_t *op) {
    link_t *l = c->link;
    const frame_t *f = &c->f;
    if (!op->bound && (op->r.tag.sig != f->tag.sig || op->r.len != f->total)) {
        /* The rest of the message, on whatever rail, has no receive either. */
        if (f->len < f->total) {
            c->kept = unasked_new(l, f, 0);
            if (!c->kept) return DISPATCH_BROKEN;
            c->kept->claimed = f->len;
        }
        rgt_recv_unlink(l, op);
        rgt_recv_done(tp, l, op, RG_TP_MISMATCH, &f->tag);
        return DISPATCH_GO;
    }
    /* The epoch of the receive is what fences the bytes, so a frame of its message has no other. */
    if (op->bound && !same_message(&op->r.tag, &f->tag)) return DISPATCH_BROKEN;
    op->bound = 1;
    op->mseq = f->mseq;
    if (f->total != op->r.len || f->len > op->r.len - op->claimed ||
        (op->r.reduce && (f->offset % op->r.wire_elem != 0 || f->len % op->r.wire_elem != 0)))
        return DISPATCH_BROKEN;
    op->claimed += f->len;
    op->cover += frame_span(tp, f);
    c->rx = op;
    return DISPATCH_GO;
}

/* Decides where the frame in hand goes. */
static int dispatch(rg_tp_t *tp, conn_t *c) {
    link_t *l = c->link;
    const frame_t *f = &c->f;
    c->rx = NULL;
    c->kept = NULL;
    if (f->tag.epoch < tp->fence) return DISPATCH_GO;
    for (unasked_t *u = l->unasked; u; u = u->next)
        if (u->mseq == f->mseq) {
            if (!same_message(&u->tag, &f->tag) || u->total != f->total || f->len > u->total - u->claimed)
                return DISPATCH_BROKEN;
            u->claimed += f->len;
            u->cover += frame_span(tp, f);
            c->kept = u;
            return DISPATCH_GO;
        }
    recv_op_t *op = find_recv(l, f);
    if (op) return to_receive(tp, c, op);
    if (!c->stalled) tell_unexpected(tp, l, f);
    if (l->posted > 0 && (tp->keep_now || f->total <= KEEP_AT_ONCE)) c->kept = unasked_new(l, f, 1);
    if (c->kept) {
        c->kept->claimed = f->len;
        c->kept->cover = frame_span(tp, f);
    }
    return c->kept ? DISPATCH_GO : DISPATCH_STALL;
}

static void stall(conn_t *c, int on) {
    if (c->stalled != on) {
        c->stalled = (uint8_t)on;
        c->link->stalled += on ? 1u : (uint32_t)-1;
        c->link->patience = 0;
    }
}

/* The header in hand is whole and sound. Returns 0 when its payload can be taken. */
static int begin_body(rg_tp_t *tp, conn_t *c) {
    int what = dispatch(tp, c);
    if (what == DISPATCH_BROKEN) {
        rgt_link_fail(tp, c->link, "the peer broke the protocol: frame contradicts its message (or too many of them)");
        return -1;
    }
    stall(c, what == DISPATCH_STALL);
    if (what == DISPATCH_STALL) return -1;
    c->in_body = 1;
    c->done = 0;
    c->carry_n = 0;
    return c->f.len == 0 ? body_done(tp, c) : 0;
}

static int take_header(rg_tp_t *tp, conn_t *c) {
    link_t *l = c->link;
    const char *wrong = rgt_frame_get(c->rbuf + c->rpos, &c->f);
    c->rpos += FRAME_BYTES;
    if (wrong) {
        rgt_link_fail(tp, l, "the peer broke the protocol: %s", wrong);
        return -1;
    }
    /* 0 is no note yet, however far the peer has counted before this link was made. */
    if (c->f.note_seq && (!l->note_seq_in || (int32_t)(c->f.note_seq - l->note_seq_in) > 0)) {
        l->note_seq_in = c->f.note_seq;
        if (c->f.note != l->note_in && !l->note_dirty) {
            l->note_dirty = 1;
            tp->n_notes++;
        }
        l->note_in = c->f.note;
    }
    if (c->f.type == FRAME_ACK) {
        rgt_kept_acked(c, c->f.offset);
        return l->state == LINK_UP ? 0 : -1;
    }
    return c->f.type == FRAME_NOTE ? 0 : begin_body(tp, c);
}

/* All of the payload is here. Without TLS its end must be where it is expected, or bytes were lost or came twice.
 * 0: the end has not come yet. */
static int take_end(rg_tp_t *tp, conn_t *c) {
    if (tp->cfg.tls) return 1;
    if (c->rend - c->rpos < END_BYTES) return 0;
    if (!rgt_frame_ends(c->rbuf + c->rpos, &c->f)) {
        rgt_link_fail(tp, c->link, "the peer broke the protocol: a frame does not end where it should");
        return -1;
    }
    c->rpos += END_BYTES;
    return 1;
}

/* Works off what is in the buffer. 0: more bytes are wanted; -1: stalled or the link is gone. */
static int parse(rg_tp_t *tp, conn_t *c) {
    for (;;) {
        uint32_t have = c->rend - c->rpos;
        if (c->in_body) {
            uint32_t n = c->f.len - c->done < have ? c->f.len - c->done : have;
            if (n) {
                take_bytes(c, c->rbuf + c->rpos, n);
                c->rpos += n;
            }
            if (c->done < c->f.len) break;
            int ends = take_end(tp, c);
            if (ends < 0 || (ends && body_done(tp, c) != 0)) return -1;
            if (!ends) break;
        } else {
            if (have < FRAME_BYTES) break;
            if (take_header(tp, c) != 0) return -1;
        }
    }
    if (c->rpos == c->rend) c->rpos = c->rend = 0;
    return 0;
}

/* ---- Reading ---- */

/* How much may be read into the buffer where a header is next: little when a large plain copy follows, whose bytes had
 * better go straight into place. */
static uint32_t header_room(const link_t *l) {
    const recv_op_t *op = l->recv_head;
    return op && !op->r.reduce && op->r.len >= PEEK_DIRECT ? FRAME_BYTES : READ_BUFFER;
}

static ssize_t read_buffer(conn_t *c, uint32_t *asked) {
    if (c->rpos > 0 && c->rend - c->rpos < FRAME_BYTES) {
        memmove(c->rbuf, c->rbuf + c->rpos, c->rend - c->rpos);
        c->rend -= c->rpos;
        c->rpos = 0;
    }
    uint32_t room = READ_BUFFER - c->rend, most = header_room(c->link);
    if (!c->in_body && most > c->rend && most - c->rend < room) room = most - c->rend;
    *asked = room;
    ssize_t n = c->saved ? rgt_saved_read(c, c->rbuf + c->rend, room)
                : c->tls ? rg_tls_recv(c->tls, c->rbuf + c->rend, room)
                         : recv(c->fd, c->rbuf + c->rend, room, 0);
    if (n > 0) c->rend += (uint32_t)n;
    return n;
}

/* The buffer is empty and a frame is in hand: its payload, and its end and the header after it, in one call. */
static ssize_t read_body(rg_tp_t *tp, conn_t *c, uint32_t *asked) {
    uint32_t left = c->f.len - c->done, behind = END_BYTES + FRAME_BYTES;
    uint8_t *to;
    int straight = 1;
    if (c->rx && !c->rx->r.reduce) to = (uint8_t *)c->rx->r.dst + c->f.offset + c->done;
    else if (c->kept && c->kept->bytes) to = c->kept->bytes + c->f.offset + c->done;
    else /* as far from a cache line as its place in the message: the loads of the reduction stay aligned */
        to = tp->staging + (c->f.offset + c->done) % 64, straight = 0;
    struct iovec v[2] = { { to, left }, { c->rbuf, behind } };
    *asked = left + behind;
    if (c->tls) {
        if (!straight && left > TLS_STEP) left = TLS_STEP;
        *asked = left;
    }
    ssize_t n = c->tls ? rg_tls_recv(c->tls, to, left) : readv(c->fd, v, 2);
    if (n <= 0) return n;
    uint32_t body = (size_t)n < left ? (uint32_t)n : left;
    if (straight) c->done += body;
    else take_bytes(c, to, body);
    c->rpos = 0;
    c->rend = (uint32_t)n - body;
    return n;
}

void rgt_rx(rg_tp_t *tp, conn_t *c) {
    uint32_t turn = 0;
    if (parse(tp, c) != 0) return;
    while (turn < TURN) {
        uint32_t asked;
        ssize_t n;
        int from_saved = c->saved != NULL;
        if (c->fd < 0 && !c->saved) return;
        /* Little that is missing goes through the buffer, where whatever follows comes along. */
        if (c->in_body && !c->saved && c->rend == 0 && c->f.len - c->done > READ_BUFFER / 4)
            n = read_body(tp, c, &asked);
        else n = read_buffer(c, &asked);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) {
            if (n == 0) rgt_rail_lost(tp, c, "the peer closed the connection");
            else if (*rg_tls_why(c->tls)) rgt_rail_lost(tp, c, "receiving failed: %s", rg_tls_why(c->tls));
            else rgt_rail_lost(tp, c, "receiving failed: %s", strerror(errno));
            return;
        }
        if (!from_saved) c->rx_off += (uint64_t)n;
        if (c->app_acks && !c->ack_owed && c->rx_off - c->ack_told >= ACK_EVERY) {
            c->ack_owed = 1;
            c->link->acks_owed++;
        }
        turn += (uint32_t)n;
        if (parse(tp, c) != 0) return;
        if ((uint32_t)n < asked && !from_saved && !(c->tls && rg_tls_more(c->tls)))
            return; /* a short read has emptied the socket */
    }
}

/* ---- From the caller's side ---- */

/* Copies a kept message into a receive that was posted after it came. */
static int from_kept(rg_tp_t *tp, link_t *l, recv_op_t *op, unasked_t *u) {
    if (op->r.tag.sig != u->tag.sig || op->r.len != u->total) {
        rg_tag_t came = u->tag;
        if (u->got >= u->total) {
            rgt_unasked_free(l, u);
        } else { /* the rest is thrown away as it comes */
            free(u->bytes);
            u->bytes = NULL;
            l->unasked_bytes -= u->total;
        }
        rgt_recv_unlink(l, op);
        rgt_recv_done(tp, l, op, RG_TP_MISMATCH, &came);
        return 1;
    }
    if (u->got < u->total) return 0; /* it is bound when its last frame is in */
    if (op->r.reduce) op->r.reduce(op->r.reduce_ctx, op->r.dst, op->r.a, u->bytes, op->r.len / op->r.wire_elem);
    else if (u->total) memcpy(op->r.dst, u->bytes, u->total);
    rgt_unasked_free(l, u);
    rgt_recv_unlink(l, op);
    rgt_recv_done(tp, l, op, RG_TP_DONE, NULL);
    return 1;
}

void rgt_restart(rg_tp_t *tp, link_t *l) {
    for (uint32_t r = 0; r < l->rails && l->stalled && l->state == LINK_UP; r++) {
        conn_t *c = l->rail[r];
        RG_ASSUME(c); /* a link that is up has all its rails */
        if (!c->stalled || begin_body(tp, c) != 0) continue;
        rgt_interest(c, c->interest | EPOLLIN); /* where nothing is posted, epoll alone tells of what comes next */
        parse(tp, c);
    }
}

/* Rule T6: what waits for a receive has done so for long enough, and something behind it is asked for. Its bytes are
 * kept in memory from here on. 1 when anything moved. */
int rgt_make_way(rg_tp_t *tp, link_t *l) {
    uint32_t before = l->stalled;
    if (!before || !l->posted) return 0;
    tp->keep_now = 1;
    rgt_restart(tp, l);
    tp->keep_now = 0;
    return l->state != LINK_UP || l->stalled < before;
}

void rgt_post(rg_tp_t *tp, link_t *l, recv_op_t *op) {
    for (unasked_t *u = l->unasked; u; u = u->next)
        if (u->bytes && tag_equal(&u->tag, &op->r.tag)) {
            if (from_kept(tp, l, op, u)) return;
            break;
        }
    if (l->stalled) rgt_restart(tp, l);
}

void rgt_rx_fence(rg_tp_t *tp, link_t *l) {
    for (uint32_t r = 0; r < l->rails; r++) {
        conn_t *c = l->rail[r];
        if (c && c->in_body && c->f.tag.epoch < tp->fence)
            c->rx = NULL; /* the rest of the frame is read and thrown away */
    }
    unasked_t *next;
    for (unasked_t *u = l->unasked; u; u = next) {
        next = u->next;
        if (u->tag.epoch < tp->fence) rgt_unasked_free(l, u);
    }
    rgt_restart(tp, l);
}
