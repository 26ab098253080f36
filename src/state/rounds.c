/* rounds.c: pieces move in rounds, each an all-to-all of a bounded size; two are under way at a time, so that copying
 * and hashing take place while bytes travel. What arrives is believed only by its hash. Relies on compare.c for what is
 * wanted and plan.c for who sends it. Contents that are kept aside reach the tensors only in rg_sync_commit(), when
 * every member has said that it has all. */
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

/* How much goes to and comes from each member, and where it is in the buffers. */
static void lay_out(rg_sync_t *x, const rg_flight_t *f) {
    uint64_t *out = x->counts, *out_at = out + x->cap_n, *in = out_at + x->cap_n, *in_at = in + x->cap_n;
    memset(x->counts, 0, 4 * (size_t)x->cap_n * sizeof *x->counts);
    for (uint32_t k = f->begin; k < f->end; k++) {
        const rg_move_t *v = &x->moves[k];
        if (v->from == x->rank) out[v->to] += x->sizes[v->at];
        if (v->to == x->rank) in[v->from] += x->sizes[v->at];
    }
    for (uint32_t i = 1; i < x->n; i++) {
        out_at[i] = out_at[i - 1] + out[i - 1];
        in_at[i] = in_at[i - 1] + in[i - 1];
    }
}

static rg_status_t post(rg_sync_t *x, rg_flight_t *f) {
    uint64_t *out = x->counts, *out_at = out + x->cap_n, *in = out_at + x->cap_n, *in_at = in + x->cap_n;
    lay_out(x, f);
    for (uint32_t k = f->begin; k < f->end; k++) {
        const rg_move_t *v = &x->moves[k];
        if (v->from != x->rank) continue;
        memcpy(f->out + out_at[v->to], content_of(x, v->at), x->sizes[v->at]);
        out_at[v->to] += x->sizes[v->at];
        x->r.pieces_sent++;
        x->r.bytes_sent += x->sizes[v->at];
    }
    for (uint32_t i = 0; i < x->n; i++) out_at[i] -= out[i];
    return rg_sync_ended(x, rg_all_to_all_v(x->g, f->out, out, out_at, f->in, in, in_at, RG_U8, &x->op, &f->req));
}

/* Waits for a round and takes what it brought. */
static rg_status_t take(rg_sync_t *x, rg_flight_t *f) {
    uint64_t *in_at = x->counts + 3 * (size_t)x->cap_n;
    rg_status_t st = rg_sync_ended(x, rg_wait(f->req, &x->op_result));
    f->req = NULL;
    if (st != RG_OK) return st;
    lay_out(x, f);
    for (uint32_t k = f->begin; k < f->end; k++) {
        const rg_move_t *v = &x->moves[k];
        if (v->to != x->rank) continue;
        const uint8_t *data = f->in + in_at[v->from];
        in_at[v->from] += x->sizes[v->at];
        rg_hash_t hash = rg_hash_of(data, x->sizes[v->at]);
        x->r.pieces_received++;
        x->r.bytes_received += x->sizes[v->at];
        if (rg_hash_equal(&hash, &x->target[v->at])) keep(x, v->at, data);
        else x->r.rejected++;
    }
    return RG_OK;
}

rg_status_t rg_sync_move(rg_sync_t *x) {
    uint32_t ends[RG_SYNC_ROUNDS], limit = x->c.buffer_bytes / 4;
    rg_deal_t *d = &x->deal;
    rg_flight_t flights[2] = { { NULL, 0, 0, x->buffers, x->buffers + limit },
                               { NULL, 0, 0, x->buffers + 2 * (size_t)limit, x->buffers + 3 * (size_t)limit } };
    d->n = x->n, d->m = x->m, d->words = x->words;
    d->sizes = x->sizes, d->wants = x->wants, d->sends = x->sends;
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
        memcpy(rg_state_piece(s, piece).data, x->aside[piece]->data, x->sizes[at]);
        s->hashes[piece] = x->target[at];
        x->r.changed = 1;
    }
    s->revision = x->c.revision;
    s->mixed = 0;
    return RG_OK;
}
