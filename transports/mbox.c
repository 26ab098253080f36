/* mbox.c: see mbox.h. Everything that must complete has room in the ring before it is accepted, so nothing is lost when
 * memory runs out later. */
#include "mbox.h"
#include "observe/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEPT_BYTES_MAX (16u << 20)
#define KEPT_COUNT_MAX 4096u
#define LINKS_MAX 65536u

rg_mbox_link_t *rg_mbox_link(rg_mbox_t *m, uint32_t index) {
    rg_mbox_link_t *l = index < m->n_links ? m->links[index] : NULL;
    return l && l->state != MBOX_FREE ? l : NULL;
}

int rg_mbox_reserve(rg_mbox_t *m, uint32_t more) {
    return rg_ring_room(&m->ring, (uint64_t)m->ring.n + m->n_ops + 2ull * m->n_links + more);
}

void rg_mbox_push(rg_mbox_t *m, rg_tp_event_t ev, rg_tp_status_t st, uint32_t link, uint64_t cookie,
                  const rg_tag_t *tag) {
    rg_completion_t *c = rg_ring_push(&m->ring);
    c->event = ev;
    c->status = st;
    c->link = link;
    c->cookie = cookie;
    if (tag) c->tag = *tag;
    if (ev == RG_TP_LINK_DOWN) c->text = m->links[link]->text;
}

int rg_mbox_take(rg_mbox_t *m, rg_completion_t *out, int max) {
    int n = rg_ring_take(&m->ring, out, max);
    for (uint32_t i = 0; m->notes && n < max && i < m->n_links; i++) {
        rg_mbox_link_t *l = m->links[i];
        if (!l || !l->note_dirty) continue;
        l->note_dirty = 0;
        m->notes--;
        memset(&out[n], 0, sizeof out[n]);
        out[n].event = RG_TP_NOTE;
        out[n].link = i;
        out[n++].note = l->note;
    }
    return n;
}

static void clear(rg_mbox_t *m, uint32_t index) {
    rg_mbox_link_t *l = m->links[index];
    while (l->recvs) {
        rg_mbox_recv_t *op = l->recvs;
        l->recvs = op->next;
        m->n_ops--;
        rg_mbox_push(m, RG_TP_FAILED, RG_TP_GONE, index, op->r.cookie, NULL);
        free(op);
    }
    while (l->kept) {
        rg_mbox_kept_t *k = l->kept;
        l->kept = k->next;
        free(k);
    }
    l->kept_bytes = l->kept_count = 0;
    if (l->note_dirty) m->notes--;
    l->note_dirty = 0;
}

void rg_mbox_free(rg_mbox_t *m) {
    for (uint32_t i = 0; i < m->n_links; i++) {
        if (rg_mbox_link(m, i)) clear(m, i);
        free(m->links[i]);
    }
    free(m->links);
    free(m->ring.v);
    memset(m, 0, sizeof *m);
}

rg_status_t rg_mbox_connect(rg_mbox_t *m, uint32_t index, const rg_tp_peer_t *peer, uint64_t now, rg_error_t *err) {
    if (index >= LINKS_MAX)
        return rg_fail(err, RG_ERR_RESOURCE, 0, "link number %u is above the limit of %u", index, LINKS_MAX - 1);
    if (rg_mbox_link(m, index)) return rg_fail(err, RG_ERR_INVALID, 0, "link %u is in use; drop it first", index);
    if (index >= m->n_links) {
        uint32_t n = m->n_links ? m->n_links : 8;
        while (n <= index) n *= 2;
        rg_mbox_link_t **more = realloc(m->links, n * sizeof(*more));
        if (!more) return rg_fail(err, RG_ERR_NOMEM, 0, "no memory for a link");
        memset(more + m->n_links, 0, (n - m->n_links) * sizeof(*more));
        m->links = more;
        m->n_links = n;
    }
    if (!m->links[index]) m->links[index] = malloc(sizeof(rg_mbox_link_t));
    if (!m->links[index] || rg_mbox_reserve(m, 2) != 0) return rg_fail(err, RG_ERR_NOMEM, 0, "no memory for a link");
    rg_mbox_link_t *l = m->links[index];
    memset(l, 0, sizeof *l);
    l->state = MBOX_CONNECTING;
    l->peer = *peer;
    l->peer.addr = NULL;
    l->deadline = now + peer->timeout_ms * 1000000ull;
    return RG_OK;
}

void rg_mbox_up(rg_mbox_t *m, uint32_t index) {
    m->links[index]->state = MBOX_UP;
    rg_mbox_push(m, RG_TP_LINK_UP, RG_TP_DONE, index, 0, NULL);
}

void rg_mbox_down(rg_mbox_t *m, uint32_t index, const char *text) {
    rg_mbox_link_t *l = rg_mbox_link(m, index);
    if (!l || l->state == MBOX_DOWN) return;
    clear(m, index);
    l->state = MBOX_DOWN;
    snprintf(l->text, sizeof l->text, "%s", text);
    rg_mbox_push(m, RG_TP_LINK_DOWN, RG_TP_GONE, index, 0, NULL);
}

void rg_mbox_drop(rg_mbox_t *m, uint32_t index) {
    if (!rg_mbox_link(m, index)) return;
    clear(m, index);
    m->links[index]->state = MBOX_FREE;
}

void rg_mbox_fence(rg_mbox_t *m, uint64_t epoch) {
    if (epoch <= m->fence) return;
    m->fence = epoch;
    for (uint32_t i = 0; i < m->n_links; i++) {
        rg_mbox_link_t *l = rg_mbox_link(m, i);
        if (!l) continue;
        for (rg_mbox_recv_t **at = &l->recvs; *at;) {
            rg_mbox_recv_t *op = *at;
            if (op->r.tag.epoch >= epoch) {
                at = &op->next;
                continue;
            }
            *at = op->next;
            m->n_ops--;
            rg_mbox_push(m, RG_TP_FAILED, RG_TP_FENCED, i, op->r.cookie, NULL);
            free(op);
        }
        for (rg_mbox_kept_t **at = &l->kept; *at;) {
            rg_mbox_kept_t *k = *at;
            if (k->tag.epoch >= epoch) {
                at = &k->next;
                continue;
            }
            *at = k->next;
            l->kept_bytes -= k->len;
            l->kept_count--;
            free(k);
        }
    }
}

void rg_mbox_note(rg_mbox_t *m, uint32_t index, uint64_t note) {
    rg_mbox_link_t *l = rg_mbox_link(m, index);
    if (!l || l->note == note) return;
    l->note = note;
    if (!l->note_dirty) m->notes++;
    l->note_dirty = 1;
}

static int tag_equal(const rg_tag_t *a, const rg_tag_t *b) {
    return a->epoch == b->epoch && a->gen == b->gen && a->op == b->op && a->ord == b->ord;
}

/* DONE or MISMATCH. */
static rg_tp_status_t fill(const rg_tp_recv_t *r, const rg_tag_t *tag, const void *buf, uint64_t len) {
    if (r->tag.sig != tag->sig || r->len != len) return RG_TP_MISMATCH;
    if (r->reduce && len) r->reduce(r->reduce_ctx, r->dst, r->a, buf, len / r->wire_elem);
    else if (len) memcpy(r->dst, buf, len);
    return RG_TP_DONE;
}

int rg_mbox_post(rg_mbox_t *m, uint32_t index, const rg_tp_recv_t *r) {
    rg_mbox_link_t *l = rg_mbox_link(m, index);
    if (rg_mbox_reserve(m, 1) != 0) return RG_ERR_NOMEM;
    if (!l || l->state == MBOX_DOWN || r->tag.epoch < m->fence) {
        rg_mbox_push(m, RG_TP_FAILED, l && l->state != MBOX_DOWN ? RG_TP_FENCED : RG_TP_GONE, index, r->cookie, NULL);
        return RG_OK;
    }
    if (r->reduce && (r->wire_elem == 0 || r->len % r->wire_elem != 0)) return RG_ERR_INVALID;
    for (rg_mbox_kept_t **at = &l->kept; *at; at = &(*at)->next) {
        rg_mbox_kept_t *k = *at;
        if (!tag_equal(&k->tag, &r->tag)) continue;
        rg_tp_status_t st = fill(r, &k->tag, k->bytes, k->len);
        if (st == RG_TP_MISMATCH) rg_mbox_push(m, RG_TP_FAILED, st, index, r->cookie, &k->tag);
        *at = k->next;
        l->kept_bytes -= k->len;
        l->kept_count--;
        free(k);
        return st == RG_TP_DONE ? RG_TP_DONE_NOW : RG_OK;
    }
    rg_mbox_recv_t *op = malloc(sizeof *op), **tail = &l->recvs;
    if (!op) return RG_ERR_NOMEM;
    op->r = *r;
    op->whole = 0;
    op->next = NULL;
    while (*tail) tail = &(*tail)->next;
    *tail = op;
    m->n_ops++;
    return RG_OK;
}

int rg_mbox_offer(rg_mbox_t *m, uint32_t index, const rg_tag_t *tag, const void *buf, uint64_t len, int *told) {
    rg_mbox_link_t *l = rg_mbox_link(m, index);
    if (!l || l->state == MBOX_DOWN || tag->epoch < m->fence) return 1;
    for (rg_mbox_recv_t **at = &l->recvs; *at; at = &(*at)->next) {
        rg_mbox_recv_t *op = *at;
        if (!tag_equal(&op->r.tag, tag)) continue;
        rg_tp_status_t st = fill(&op->r, tag, buf, len);
        *at = op->next;
        m->n_ops--;
        l->received += len;
        rg_mbox_push(m, st == RG_TP_DONE ? RG_TP_RECEIVED : RG_TP_FAILED, st, index, op->r.cookie, tag);
        free(op);
        return 1;
    }
    if (!*told && rg_mbox_reserve(m, 1) == 0) {
        *told = 1;
        rg_mbox_push(m, RG_TP_UNEXPECTED, RG_TP_DONE, index, 0, tag);
    }
    if (len > KEPT_BYTES_MAX - l->kept_bytes || l->kept_count >= KEPT_COUNT_MAX) return 0;
    rg_mbox_kept_t *k = malloc(sizeof *k + len), **tail = &l->kept;
    if (!k) return 0;
    k->tag = *tag;
    k->len = len;
    k->next = NULL;
    if (len) memcpy(k->bytes, buf, len);
    while (*tail) tail = &(*tail)->next;
    *tail = k;
    l->kept_bytes += len;
    l->kept_count++;
    l->received += len;
    return 1;
}
