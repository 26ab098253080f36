/* rounds.c: pieces move in rounds, each an all-to-all of a bounded size; two are under way at a time, so that copying
 * and hashing take place while bytes travel. What arrives is believed only by its hash. Relies on compare.c for what is
 * wanted and plan.c for who sends it. Contents that are kept aside reach the tensors only in rg_sync_commit(), when
 * every member has said that it has all. */
#include "state/serve.h"
#include "state/sync.h"

#include <stdlib.h>
#include <string.h>

/* The content of a piece that this member has: in its tensor, or aside. */
static const uint8_t *content_of(const rg_sync_t *x, uint32_t at) {
    uint32_t piece = x->list[at];
    if (rg_hash_equal(&x->s->hashes[piece], &x->target[at])) return rg_state_piece(x->s, piece).data;
    return x->aside[piece]->data;
}

static void keep(rg_sync_t *x, uint32_t at, const uint8_t *data) {
    uint32_t piece = x->list[at], bytes = x->sizes[at];
    if (x->in_place) {
        rg_serve_before_write(x->s, piece, piece);
        x->s->mixed = 1;
        memcpy(rg_state_piece(x->s, piece).data, data, bytes);
        x->s->hashes[piece] = x->target[at];
        x->r.changed = 1;
        return;
    }
    if (x->aside[piece]) x->aside_bytes -= x->aside[piece]->bytes;
    free(x->aside[piece]); /* of a content that does not win any more */
    rg_aside_t *a = x->aside[piece] = malloc(sizeof *a + bytes);
    if (!a) {
        x->own = RG_ERR_NOMEM;
        return;
    }
    a->hash = x->target[at];
    a->bytes = bytes;
    memcpy(a->data, data, bytes);
    x->aside_bytes += bytes;
}

/* Arrays with an entry per member: how much goes to it and comes from it, and where that is. */
typedef struct shape {
    uint64_t *out, *out_at, *in, *in_at;
    uint64_t out_all, in_all;
} shape_t;

static shape_t lay_out(rg_sync_t *x, const rg_flight_t *f) {
    uint64_t *c = x->counts;
    size_t n = x->cap_n;
    shape_t h = { c, c + n, c + 2 * n, c + 3 * n, 0, 0 };
    memset(c, 0, 4 * n * sizeof *c);
    for (uint32_t k = f->begin; k < f->end; k++) {
        const rg_move_t *v = &x->moves[k];
        if (v->from == x->rank) h.out[v->to] += x->sizes[v->at];
        if (v->to == x->rank) h.in[v->from] += x->sizes[v->at];
    }
    for (uint32_t i = 0; i < x->n; i++) {
        h.out_at[i] = h.out_all;
        h.in_at[i] = h.in_all;
        h.out_all += h.out[i];
        h.in_all += h.in[i];
    }
    return h;
}

/* A round in which this member only sends, or only gets, needs no buffer when what goes to (or comes from) each member
 * is one stretch of one tensor: then `at` says where each begins after *base, and the bytes are not copied. */
static int direct(const rg_sync_t *x, const rg_flight_t *f, int sends, uint64_t *at, uint8_t **base) {
    const rg_state_t *s = x->s;
    uint32_t tensor = UINT32_MAX;
    uint64_t ends[64]; /* more members than that have buffers */
    if (x->n > 64) return 0;
    memset(ends, 0, sizeof ends);
    memset(at, 0, x->n * sizeof *at);
    *base = NULL;
    for (uint32_t k = f->begin; k < f->end; k++) {
        const rg_move_t *v = &x->moves[k];
        if ((sends ? v->from : v->to) != x->rank) continue;
        uint32_t piece = x->list[v->at], peer = sends ? v->to : v->from, in = rg_piece_tensor(s, piece);
        if (sends && !rg_hash_equal(&s->hashes[piece], &x->target[v->at])) return 0; /* it is aside */
        uint8_t *p = rg_state_piece(s, piece).data;
        if ((tensor != UINT32_MAX && tensor != in) || (ends[peer] && ends[peer] != (uintptr_t)p)) return 0;
        tensor = in;
        if (!ends[peer]) at[peer] = (uintptr_t)p;
        ends[peer] = (uintptr_t)p + x->sizes[v->at];
        if (!*base || p < *base) *base = p;
    }
    for (uint32_t i = 0; i < x->n; i++) at[i] = ends[i] ? at[i] - (uintptr_t)*base : 0;
    return tensor != UINT32_MAX;
}

static void pack(rg_sync_t *x, const rg_flight_t *f, shape_t *h) {
    for (uint32_t k = f->begin; k < f->end; k++) {
        const rg_move_t *v = &x->moves[k];
        if (v->from != x->rank) continue;
        memcpy(f->out + h->out_at[v->to], content_of(x, v->at), x->sizes[v->at]);
        h->out_at[v->to] += x->sizes[v->at];
    }
    for (uint32_t i = 0; i < x->n; i++) h->out_at[i] -= h->out[i];
}

static rg_status_t post(rg_sync_t *x, rg_flight_t *f) {
    shape_t h = lay_out(x, f);
    uint8_t *from = f->out, *to = f->in;
    uint64_t *out_at = h.out_at, *in_at = h.in_at, places[64];
    f->in_place = 0;
    if (h.out_all && !h.in_all && direct(x, f, 1, places, &from)) out_at = places;
    else {
        from = f->out;
        pack(x, f, &h);
    }
    if (h.in_all && !h.out_all && x->in_place && direct(x, f, 0, places, &to)) {
        for (uint32_t k = f->begin; k < f->end; k++)
            if (x->moves[k].to == x->rank)
                rg_serve_before_write(x->s, x->list[x->moves[k].at], x->list[x->moves[k].at]);
        in_at = places;
        f->in_place = 1;
        x->s->mixed = 1;
        x->r.changed = 1;
    } else to = f->in;
    for (uint32_t k = f->begin; k < f->end; k++) x->r.pieces_sent += x->moves[k].from == x->rank;
    x->r.bytes_sent += h.out_all;
    rg_status_t st;
    RG_SYNC_CALL(x, st, rg_all_to_all_v(x->g, from, h.out, out_at, to, h.in, in_at, RG_U8, &x->op, &f->req));
    return st;
}

/* What came to its place without a buffer, or perhaps did: its hashes say what is there now, whatever it is. */
static void look_at(rg_sync_t *x, uint32_t at) {
    uint32_t piece = x->list[at];
    x->s->hashes[piece] = rg_hash_of(rg_state_piece(x->s, piece).data, x->sizes[at]);
}

/* Waits for a round and takes what it brought. */
static rg_status_t take(rg_sync_t *x, rg_flight_t *f) {
    rg_status_t st = rg_sync_ended(x, rg_wait(f->req, &x->op_result));
    f->req = NULL;
    if (st != RG_OK && !f->in_place) return st;
    shape_t h = lay_out(x, f);
    for (uint32_t k = f->begin; k < f->end; k++) {
        const rg_move_t *v = &x->moves[k];
        if (v->to != x->rank) continue;
        const uint8_t *data = f->in + h.in_at[v->from];
        h.in_at[v->from] += x->sizes[v->at];
        if (f->in_place) look_at(x, v->at);
        if (st != RG_OK) continue;
        rg_hash_t hash = f->in_place ? x->s->hashes[x->list[v->at]] : rg_hash_of(data, x->sizes[v->at]);
        x->r.pieces_received++;
        x->r.bytes_received += x->sizes[v->at];
        if (!rg_hash_equal(&hash, &x->target[v->at])) x->r.rejected++;
        else if (!f->in_place) keep(x, v->at, data);
    }
    return st;
}

rg_status_t rg_sync_move(rg_sync_t *x) {
    uint32_t ends[RG_SYNC_ROUNDS], limit = x->c.buffer_bytes / 4;
    rg_deal_t *d = &x->deal;
    rg_flight_t flights[2] = { { NULL, 0, 0, 0, x->buffers, x->buffers + limit },
                               { NULL, 0, 0, 0, x->buffers + 2 * (size_t)limit, x->buffers + 3 * (size_t)limit } };
    d->n = x->n, d->m = x->m, d->words = x->words;
    d->sizes = x->sizes, d->follows = x->follows, d->wants = x->wants, d->sends = x->sends;
    d->limit = limit, d->rounds = RG_SYNC_ROUNDS, d->turn = x->pass++;
    uint32_t rounds = rg_state_deal(d, x->moves, RG_SYNC_MOVES, ends);
    if (!rounds) return rg_sync_fail(x, RG_ERR_BUG, UINT32_MAX, "nobody can send what is missing");
    uint64_t rejected = x->r.rejected, good = x->r.pieces_received - rejected;
    rg_status_t st = RG_OK;
    for (uint32_t k = 0; k < rounds && st == RG_OK; k++) {
        rg_flight_t *f = &flights[k % 2], *before = &flights[(k + 1) % 2];
        f->begin = k ? ends[k - 1] : 0;
        f->end = ends[k];
        st = post(x, f);
        if (st == RG_OK && before->req) st = take(x, before);
    }
    /* After a failure the other one is waited for as well: its buffers are ours again, and all members take part. */
    for (uint32_t k = rounds; k < rounds + 2; k++) {
        rg_flight_t *f = &flights[k % 2];
        if (!f->req) continue;
        rg_status_t last = take(x, f);
        if (st == RG_OK) st = last;
    }
    /* The next pass asks others first; it is hopeless when pieces come again and again and none is right. */
    if (x->r.pieces_received - x->r.rejected > good) x->bad_passes = 0;
    else if (x->r.rejected > rejected) x->bad_passes++;
    return st;
}

rg_status_t rg_sync_commit(rg_sync_t *x) {
    rg_state_t *s = x->s;
    for (uint32_t at = 0; at < x->m; at++) {
        uint32_t piece = x->list[at];
        if (rg_hash_equal(&s->hashes[piece], &x->target[at])) continue;
        rg_serve_before_write(s, piece, piece);
        memcpy(rg_state_piece(s, piece).data, x->aside[piece]->data, x->sizes[at]);
        s->hashes[piece] = x->target[at];
        x->r.changed = 1;
    }
    s->revision = x->c.revision;
    s->mixed = 0;
    rg_serve_settled(s);
    return RG_OK;
}
