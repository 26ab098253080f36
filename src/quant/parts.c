/* parts.c: the parts that quantised collectives are made of: cutting slices, heads, saying and hearing. All members get
 * a head from every other one in each exchange, so all come to one conclusion from the same heads. Relies on the public
 * operations ending alike on all members, and on the codecs; must not touch the caller's output. */
#include "quant/parts.h"

#include "assume.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

/* Hosts from the first ranks of their members, which `host` has. */
static void count_hosts(rg_near_t *w, uint32_t n) {
    uint32_t at = 0;
    w->hosts = w->widest = 0;
    memset(w->size, 0, n * sizeof *w->size);
    for (uint32_t r = 0; r < n; r++) w->place[r] = w->size[w->host[r]]++;
    for (uint32_t r = 0; r < n; r++) {
        if (w->host[r] != r) continue;
        w->hosts++;
        if (w->size[r] > w->widest) w->widest = w->size[r];
        w->first[r] = at;
        at += w->size[r];
    }
    for (uint32_t r = 0; r < n; r++) w->order[w->first[w->host[r]] + w->place[r]] = r;
}

static int near_room(rg_near_t *w, uint32_t n) {
    if (n <= w->cap) return 1;
    uint32_t *v = malloc(5 * (size_t)n * sizeof *v);
    if (v == NULL) return 0;
    free(w->host);
    w->host = v;
    w->place = v + n;
    w->size = v + 2 * (size_t)n;
    w->first = v + 3 * (size_t)n;
    w->order = v + 4 * (size_t)n;
    w->cap = n;
    return 1;
}

int rg_parts_begin(rg_quant_job_t *a, uint32_t n) {
    rg_quantiser_t *z = a->z;
    if (n > z->cap_n) {
        uint64_t *v = malloc(5 * (size_t)n * sizeof *v);
        if (v == NULL) return 0;
        free(z->sizes);
        z->sizes = v;
        z->cap_n = n;
    }
    a->out_len = z->sizes;
    a->out_at = a->out_len + n;
    a->in_len = a->out_at + n;
    a->in_at = a->in_len + n;
    a->fill = a->in_at + n;
    if (!near_room(&z->near, n)) return 0;
    rg_shape_hosts(z->g, z->near.host, n, &a->model);
    count_hosts(&z->near, n);
    return 1;
}

/* ---- Heads -------------------------------------------------------------------------------------------------- */

static void put_u64(uint8_t *to, uint64_t v) {
    for (int i = 0; i < 8; i++) to[i] = (uint8_t)(v >> 8 * i);
}

static uint64_t get_u64(const uint8_t *from) {
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v |= (uint64_t)from[i] << 8 * i;
    return v;
}

void rg_part_put_head(uint8_t *to, const rg_part_head_t *h) {
    uint64_t bound;
    memcpy(&bound, &h->bound, sizeof bound);
    put_u64(to, h->call);
    put_u64(to + 8, h->members);
    put_u64(to + 16, bound);
    put_u64(to + 24, h->finite);
}

/* A bound that is no number, which no sender of this library makes, counts as one that says nothing. */
rg_part_head_t rg_part_head(const uint8_t *from) {
    rg_part_head_t h = { .call = get_u64(from), .members = get_u64(from + 8), .finite = (uint32_t)get_u64(from + 24) };
    uint64_t bound = get_u64(from + 16);
    memcpy(&h.bound, &bound, sizeof bound);
    if (!(h.bound >= 0)) h.bound = INFINITY;
    return h;
}

/* ---- Slices ------------------------------------------------------------------------------------------------- */

/* Where slice r begins: a segment for each rank; or, of an all-reduce, whole units shared out evenly, the first ranks
 * having one more where it does not divide. */
uint64_t rg_slice_at(const rg_quant_job_t *a, uint32_t r) {
    if (a->kind != RG_QUANT_ALL_REDUCE) return a->count * r;
    RG_ASSUME(a->f.n && a->unit); /* a group has members */
    uint64_t units = a->count / a->unit + (a->count % a->unit != 0), each = units / a->f.n, more = units % a->f.n;
    uint64_t at = (each * r + (r < more ? r : more)) * a->unit;
    return at < a->count ? at : a->count;
}

/* ---- Saying and hearing ------------------------------------------------------------------------------------- */

void rg_parts_begin_exchange(rg_quant_job_t *a) {
    memset(a->out_len, 0, a->f.n * sizeof *a->out_len);
    memset(a->in_len, 0, a->f.n * sizeof *a->in_len);
    memset(a->fill, 0, a->f.n * sizeof *a->fill);
}

rg_status_t rg_parts_lay(rg_quant_job_t *a) {
    uint64_t all_out = 0, all_in = 0;
    for (uint32_t r = 0; r < a->f.n; r++) {
        a->out_len[r] = r == a->f.rank ? 0 : a->out_len[r] + RG_HEAD_BYTES;
        a->in_len[r] = r == a->f.rank ? 0 : a->in_len[r] + RG_HEAD_BYTES;
        a->out_at[r] = all_out;
        a->in_at[r] = all_in;
        all_out += a->out_len[r];
        all_in += a->in_len[r];
    }
    if (!rg_room_for(&a->z->out, all_out) || !rg_room_for(&a->z->in, all_in)) return rg_frame_no_memory(&a->f);
    rg_part_head_t h = { .call = a->call, .members = a->f.members };
    for (uint32_t r = 0; r < a->f.n; r++)
        if (r != a->f.rank) rg_part_put_head(a->z->out.p + a->out_at[r], &h);
    return RG_OK;
}

float rg_part_left(const rg_quantiser_t *z, float whole, float said) {
    float left = whole - said, clip = z->f.clip;
    if (!isfinite(left)) return 0;
    if (clip > 0.0f) left = left < -clip ? -clip : left > clip ? clip : left;
    return left;
}

/* How many of n elements are decoded at a time to see what is to be kept: a block, which may be all. */
static uint64_t piece_of(const rg_quantiser_t *z, uint64_t n) {
    uint64_t block = rg_quant_block(z->q.wire);
    return block == 0 ? n : block > 1 ? block : 256;
}

void rg_part_say(rg_quant_job_t *a, uint8_t *to, const float *v, uint64_t first, uint64_t n, float *kept,
                 double bound) {
    rg_quantiser_t *z = a->z;
    rg_part_head_t h = { .call = a->call, .members = a->f.members, .bound = bound };
    uint8_t *w = to + RG_HEAD_BYTES;
    uint64_t step = piece_of(z, n);
    h.finite = rg_quant_encode(&z->q, z->calls, first, v, n, w) == RG_OK;
    if (h.finite) h.bound += rg_quant_bound(&z->q, w, n);
    rg_part_put_head(to, &h);
    a->finite &= h.finite != 0;
    /* Without memory here nothing would be kept: z->piece was made large enough before the call. */
    if (kept == NULL || !h.finite || !rg_room_for(&z->piece, step * sizeof(float))) return;
    float *dec = (float *)z->piece.p;
    for (uint64_t i = 0; i < n; i += step) {
        uint64_t many = n - i < step ? n - i : step;
        rg_quant_decode(z->q.wire, w + rg_quant_bytes(z->q.wire, i), many, dec);
        for (uint64_t k = 0; k < many; k++) kept[i + k] = rg_part_left(z, kept[i + k], dec[k]);
    }
}

/* What the heads say, all together; they are the same for everybody. at[r] is where rank r's is, UINT64_MAX for what
 * did not travel. RG_ERR_PEER_LOST: cut for other members than these, to be done again. */
rg_status_t rg_parts_judge(rg_quant_job_t *a, const uint64_t *at) {
    rg_status_t st = RG_OK;
    a->bound = 0;
    for (uint32_t r = 0; r < a->f.n; r++) {
        rg_part_head_t h = { .call = a->call, .members = a->f.members, .finite = (uint32_t)a->finite };
        if (at[r] != UINT64_MAX) h = rg_part_head(a->z->in.p + at[r]);
        if (h.members != a->f.members) return rg_frame_apart(&a->f, r);
        if (h.call != a->call && st != RG_ERR_MISMATCH)
            st = rg_frame_refuse(
                &a->f, RG_ERR_MISMATCH,
                "%s: rank %u calls it with another count, operator, wire form or algorithm than rank %u", a->f.name, r,
                a->f.rank);
        else if (!h.finite && st == RG_OK)
            st = rg_frame_refuse(&a->f, RG_ERR_INVALID,
                                 "%s: rank %u has a value that is not finite; RG_QUANT_SATURATE would replace it",
                                 a->f.name, r);
        a->bound += h.bound;
    }
    return st;
}

rg_status_t rg_parts_swap(rg_quant_job_t *a) {
    rg_quantiser_t *z = a->z;
    /* Who gets a part that may be used has to know of the others too. */
    for (uint32_t r = 0; r < a->f.n; r++) {
        if (r == a->f.rank) continue;
        rg_part_head_t h = rg_part_head(z->out.p + a->out_at[r]);
        h.finite = (uint32_t)a->finite;
        rg_part_put_head(z->out.p + a->out_at[r], &h);
    }
    z->calls++;
    rg_status_t st = rg_frame_ended(&a->f, rg_all_to_all_v(z->g, z->out.p, a->out_len, a->out_at, z->in.p, a->in_len,
                                                           a->in_at, RG_U8, rg_frame_opts(&a->f), rg_frame_req(&a->f)));
    if (st != RG_OK) return st;
    a->in_at[a->f.rank] = UINT64_MAX;
    return rg_parts_judge(a, a->in_at);
}

/* ---- What is not quantised ---------------------------------------------------------------------------------- */

/* Adds values as they are, but for what RG_QUANT_SATURATE replaces. */
void rg_add_plain(const rg_quant_job_t *a, float *sum, const float *v, uint64_t n) {
    if (!(a->z->q.flags & RG_QUANT_SATURATE)) {
        for (uint64_t i = 0; i < n; i++) sum[i] += v[i];
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        float most = copysignf(FLT_MAX, v[i]);
        sum[i] += isnan(v[i]) ? 0.0f : isinf(v[i]) ? most : v[i];
    }
}

/* Whether what is added as it is may be: all of it is finite, or will be. */
int rg_all_finite(const rg_quant_job_t *a, const float *v, uint64_t n) {
    int finite = 1;
    for (uint64_t i = 0; i < n; i++) finite &= isfinite(v[i]) != 0;
    return finite || (a->z->q.flags & RG_QUANT_SATURATE) != 0;
}
