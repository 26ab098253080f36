/* tcp_keep.c: what a rail has sent and may have to send again when its connection breaks: exactly what the peer's
 * kernel has not acknowledged, which the kernel's own send buffer bounds. Small frames are copied into a ring as they
 * go out. Large ones are only remembered, because by the time their message is whole most of it has mostly been
 * acknowledged; what has not is copied then, before the caller gets its buffer back.
 * Through a relay, and under TLS, a kernel's word is not the peer's: there it sends acknowledgements of its own.
 * Relies on SIOCOUTQ, and on the receiving end, which reads a broken connection to its end before it says how far it
 * came. Must not read a caller's buffer whose operation has completed. */
#include "assume.h"
#include "tcp_internal.h"

#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#define COPY_MOST (16u << 10) /* payload that is copied at once: less work than remembering it */
#define RING_FIRST 4096u
#define RING_MOST (64ull << 20) /* beyond any send buffer */
#define QUEUE_FIRST 16u
#define ACKED_WINDOW (8u << 20) /* what may be out where the peer itself acknowledges */
#define SEGMENTS_IDLE 8u

uint64_t rgt_handed(const conn_t *c) {
    if (c->replaying) return c->replay_at;
    return c->keep.end + (c->tx_busy ? c->tx_head_sent + c->tx_sent : 0);
}

static kept_t *kept_at(const keep_t *k, uint32_t i) { return &k->v[(k->head + i) & (k->cap - 1)]; }

/* ---- Forgetting -------------------------------------------------------------------------------------------------- */

static void segment_put(rg_tp_t *tp, segment_t *s) {
    if (tp->n_free_segments >= SEGMENTS_IDLE) {
        free(s);
        return;
    }
    s->next = tp->free_segments;
    tp->free_segments = s;
    tp->n_free_segments++;
}

static segment_t *segment_get(rg_tp_t *tp) {
    segment_t *s = tp->free_segments;
    if (!s) return malloc(sizeof *s + SEGMENT);
    tp->free_segments = s->next;
    tp->n_free_segments--;
    return s;
}

void rgt_segments_free(rg_tp_t *tp) {
    while (tp->free_segments) {
        segment_t *s = tp->free_segments;
        tp->free_segments = s->next;
        free(s);
    }
}

static void forget_first(conn_t *c) {
    keep_t *k = &c->keep;
    kept_t *e = kept_at(k, 0);
    if (e->op) e->op->kept--;
    else if (e->own) segment_put(c->tp, e->own);
    else k->ring_from = e->pos + e->len;
    k->head = (k->head + 1) & (k->cap - 1);
    k->n--;
}

static void forget_below(conn_t *c, uint64_t off) {
    keep_t *k = &c->keep;
    while (k->n) {
        kept_t *e = kept_at(k, 0);
        if (e->at + e->len <= off) {
            forget_first(c);
            continue;
        }
        if (e->at < off) {
            uint32_t gone = (uint32_t)(off - e->at);
            e->at += gone;
            e->len -= gone;
            if (e->op || e->own) e->data += gone;
            else k->ring_from = e->pos += gone;
        }
        break;
    }
    if (off > k->from) k->from = off;
}

/* Without the memory to keep everything nothing is kept: the rail works on, but could not be made again just now. */
static int give_up_keeping(conn_t *c) {
    while (c->keep.n) forget_first(c);
    c->keep.from = c->keep.end;
    return -1;
}

void rgt_kept_trim(conn_t *c) {
    int queued = 0;
    if (c->fd < 0 || c->app_acks || ioctl(c->fd, SIOCOUTQ, &queued) != 0 || queued < 0) return;
    uint64_t handed = rgt_handed(c);
    uint64_t acked = handed - c->tx_base > (uint64_t)queued ? handed - (uint64_t)queued : c->tx_base;
    forget_below(c, acked < c->keep.end ? acked : c->keep.end);
}

void rgt_kept_acked(conn_t *c, uint64_t off) {
    uint64_t most = c->keep.end + (c->tx_busy ? c->tx_head_sent + c->tx_sent : 0);
    if (off > most) rgt_link_fail(c->tp, c->link, "the peer broke the protocol: it acknowledges what was not sent");
    else forget_below(c, off < c->keep.end ? off : c->keep.end);
}

int rgt_window_open(const conn_t *c) { return !c->app_acks || c->keep.end - c->keep.from < ACKED_WINDOW; }

void rgt_kept_free(conn_t *c) {
    while (c->keep.n) forget_first(c);
    free(c->keep.v);
    free(c->keep.ring);
    c->keep = (keep_t){ 0 };
}

/* ---- Keeping ----------------------------------------------------------------------------------------------------- */

static kept_t *kept_new(conn_t *c) {
    keep_t *k = &c->keep;
    if (k->n == k->cap) {
        rgt_kept_trim(c);
        if (k->n >= k->cap / 2) {
            uint32_t cap = k->cap ? 2 * k->cap : QUEUE_FIRST;
            kept_t *v = malloc(cap * sizeof *v);
            if (!v) return NULL;
            for (uint32_t i = 0; i < k->n; i++) v[i] = *kept_at(k, i);
            free(k->v);
            k->v = v;
            k->cap = cap;
            k->head = 0;
        }
    }
    kept_t *e = kept_at(k, k->n++);
    *e = (kept_t){ .at = k->end };
    return e;
}

static int ring_room(conn_t *c, uint32_t n) {
    keep_t *k = &c->keep;
    if (k->ring_to - k->ring_from + n <= k->ring_cap) return 0;
    rgt_kept_trim(c);
    if (k->ring_to - k->ring_from + n <= k->ring_cap / 2) return 0;
    uint64_t cap = k->ring_cap ? k->ring_cap : RING_FIRST;
    while (cap < 2 * (k->ring_to - k->ring_from + n)) cap *= 2;
    uint8_t *ring = cap > RING_MOST ? NULL : malloc(cap);
    if (!ring) return k->ring_to - k->ring_from + n <= k->ring_cap ? 0 : -1;
    for (uint64_t p = k->ring_from; p < k->ring_to;) {
        RG_ASSUME(k->ring_cap); /* something is in the ring */
        uint64_t run = k->ring_cap - p % k->ring_cap, to_run = cap - p % cap, left = k->ring_to - p;
        run = run < to_run ? run : to_run;
        run = run < left ? run : left;
        memcpy(ring + p % cap, k->ring + p % k->ring_cap, run);
        p += run;
    }
    free(k->ring);
    k->ring = ring;
    k->ring_cap = cap;
    return 0;
}

static int keep_copy(conn_t *c, const uint8_t *bytes, uint32_t n) {
    keep_t *k = &c->keep;
    if (ring_room(c, n) != 0) return give_up_keeping(c);
    kept_t *last = k->n ? kept_at(k, k->n - 1) : NULL;
    if (!last || last->op || last->own || last->pos + last->len != k->ring_to || last->len > (1u << 30)) {
        last = kept_new(c);
        if (!last) return give_up_keeping(c);
        last->pos = k->ring_to;
    }
    uint32_t at = (uint32_t)(k->ring_to % k->ring_cap), first = (uint32_t)k->ring_cap - at;
    first = first < n ? first : n;
    memcpy(k->ring + at, bytes, first);
    memcpy(k->ring, bytes + first, n - first);
    k->ring_to += n;
    last->len += n;
    return 0;
}

/* Both count the bytes whether or not they could be kept: the stream goes on. */
int rgt_kept_header(conn_t *c, const uint8_t *bytes, uint32_t n) {
    int rc = c->link->resume ? keep_copy(c, bytes, n) : 0;
    c->keep.end += n;
    if (rc != 0 || !c->link->resume) c->keep.from = c->keep.end;
    return rc;
}

int rgt_kept_payload(conn_t *c, send_op_t *op, const uint8_t *data, uint32_t n) {
    keep_t *k = &c->keep;
    int rc = 0;
    if (!n) return 0;
    if (!c->link->resume || n <= COPY_MOST) return rgt_kept_header(c, data, n);
    segment_t *own = op ? NULL : segment_get(c->tp);
    kept_t *e = op || own ? kept_new(c) : NULL;
    if (e) {
        e->len = n;
        e->data = data;
        e->op = op;
        if (op) op->kept++;
        if (own) e->own = own, e->data = memcpy(own->bytes, data, n);
        k->end += n;
    } else {
        if (own) segment_put(c->tp, own);
        rc = give_up_keeping(c);
        k->end += n;
        k->from = k->end;
    }
    return rc;
}

static int detach(conn_t *c, send_op_t *op) {
    keep_t *k = &c->keep;
    for (uint32_t i = k->n; op->kept && i-- > 0;) {
        kept_t *e = kept_at(k, i);
        if (e->op != op) continue;
        segment_t *own = segment_get(c->tp);
        if (!own) return -1;
        e->data = memcpy(own->bytes, e->data, e->len);
        e->own = own;
        e->op = NULL;
        op->kept--;
    }
    return 0;
}

void rgt_kept_detach(rg_tp_t *tp, link_t *l, send_op_t *op) {
    (void)tp;
    for (uint32_t r = 0; op->kept && r < l->rails; r++) {
        conn_t *c = l->rail[r];
        if (!c || !c->keep.n) continue;
        rgt_kept_trim(c);
        if (op->kept && detach(c, op) != 0) give_up_keeping(c);
    }
}

/* ---- Sending again ----------------------------------------------------------------------------------------------- */

int rgt_kept_rewind(conn_t *c, uint64_t to) {
    keep_t *k = &c->keep;
    uint64_t most = k->end + (c->tx_busy ? c->tx_head_sent + c->tx_sent : 0);
    if (to < k->from || to > most) return -1;
    c->replaying = to < k->end;
    c->replay_at = to;
    if (c->tx_busy) {
        uint32_t in = c->replaying ? 0 : (uint32_t)(to - k->end);
        c->tx_head_sent = in < FRAME_BYTES ? in : FRAME_BYTES;
        c->tx_sent = in - c->tx_head_sent;
    }
    c->tx_base = to;
    c->tx_blocked = 0;
    forget_below(c, to < k->end ? to : k->end);
    return 0;
}

/* The bytes at `off` that lie in one piece. */
static struct iovec kept_piece(const conn_t *c, uint64_t off) {
    const keep_t *k = &c->keep;
    uint32_t lo = 0, hi = k->n;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (kept_at(k, mid)->at <= off) lo = mid;
        else hi = mid;
    }
    const kept_t *e = kept_at(k, lo);
    uint64_t in = off - e->at, left = e->len - in;
    if (e->op || e->own) return (struct iovec){ (void *)(uintptr_t)(e->data + in), left };
    uint64_t at = (e->pos + in) % k->ring_cap;
    return (struct iovec){ k->ring + at, left < k->ring_cap - at ? left : k->ring_cap - at };
}

int rgt_replay(rg_tp_t *tp, conn_t *c) {
    if (c->replay_at < c->keep.from) {
        rgt_link_fail(tp, c->link, "out of memory for what has to be sent again");
        return 1;
    }
    while (c->replay_at < c->keep.end) {
        struct iovec v = kept_piece(c, c->replay_at);
        ssize_t n = rgt_tx_bytes(tp, c, v.iov_base, v.iov_len);
        if (n < 0) return 1;
        c->replay_at += (uint64_t)n;
    }
    if (!rgt_tx_flush(tp, c)) return 1; /* perhaps nothing follows that would push it out */
    c->replaying = 0;
    return 0;
}
