/* reduce.c: how a slice of the sum comes about at its owner: directly, from everybody's encoded share; along a ring,
 * each member decoding, adding its own and encoding again; or over two levels, where the members of a host add theirs
 * up as they are and one of them for each slice encodes the host's sum. Relies on parts.h. Whoever adds does so in an
 * order that is fixed by ranks; what is kept by feedback is kept by who encoded. */
#include "quant/parts.h"

#include <string.h>

static uint64_t coded(const rg_quant_job_t *a, uint32_t r) { return rg_quant_bytes(a->z->q.wire, rg_slice_len(a, r)); }

/* ---- Directly ----------------------------------------------------------------------------------------------- */

rg_status_t rg_scatter_direct(rg_quant_job_t *a, const float *v, float *kept) {
    rg_quantiser_t *z = a->z;
    uint32_t me = a->f.rank;
    uint64_t mine = rg_slice_len(a, me), from = rg_slice_at(a, me);
    rg_parts_begin_exchange(a);
    for (uint32_t r = 0; r < a->f.n; r++) {
        a->out_len[r] = coded(a, r);
        a->in_len[r] = coded(a, me);
    }
    rg_status_t st = rg_parts_lay(a);
    if (st != RG_OK) return st;
    if (!rg_room_for(&z->sum, mine * sizeof(float))) return rg_frame_no_memory(&a->f);
    a->finite = rg_all_finite(a, v + from, mine);
    for (uint32_t r = 0; r < a->f.n; r++) {
        uint64_t at = rg_slice_at(a, r);
        if (r != me)
            rg_part_say(a, z->out.p + a->out_at[r], v + at, at, rg_slice_len(a, r), kept != NULL ? kept + at : NULL, 0);
    }
    st = rg_parts_swap(a);
    if (st != RG_OK) return st;
    float *sum = (float *)z->sum.p;
    memset(sum, 0, (size_t)mine * sizeof *sum);
    for (uint32_t r = 0; r < a->f.n; r++) {
        if (r == me) rg_add_plain(a, sum, v + from, mine);
        else rg_quant_decode_add(z->q.wire, z->in.p + a->in_at[r] + RG_HEAD_BYTES, mine, sum);
    }
    /* What is exact leaves nothing to be kept. */
    if (kept != NULL) memset(kept + from, 0, (size_t)mine * sizeof *kept);
    return RG_OK;
}

/* ---- Along a ring ------------------------------------------------------------------------------------------- */

static rg_status_t ring_hop(rg_quant_job_t *a, uint32_t k, const float *v, float *kept) {
    rg_quantiser_t *z = a->z;
    uint32_t n = a->f.n, me = a->f.rank, says = (me + n - 1 - k) % n, hears = (me + 2 * n - 2 - k) % n;
    uint32_t up = (me + 1) % n, down = (me + n - 1) % n;
    uint64_t at = rg_slice_at(a, says), len = rg_slice_len(a, says);
    float *sum = (float *)z->sum.p;
    double off = k != 0 ? a->bound : 0;
    rg_parts_begin_exchange(a);
    a->out_len[up] = coded(a, says);
    a->in_len[down] = coded(a, hears);
    rg_status_t st = rg_parts_lay(a);
    if (st != RG_OK) return st;
    if (k == 0) a->finite = rg_all_finite(a, v, rg_slice_at(a, n));
    if (k != 0 && kept != NULL) memcpy(kept + at, sum, (size_t)len * sizeof *sum);
    rg_part_say(a, z->out.p + a->out_at[up], k != 0 ? sum : v + at, at, len, kept != NULL ? kept + at : NULL, off);
    st = rg_parts_swap(a);
    if (st != RG_OK) return st;
    rg_quant_decode(z->q.wire, z->in.p + a->in_at[down] + RG_HEAD_BYTES, rg_slice_len(a, hears), sum);
    rg_add_plain(a, sum, v + rg_slice_at(a, hears), rg_slice_len(a, hears));
    return RG_OK;
}

/* Slice r begins at the rank above r and ends at r. */
rg_status_t rg_scatter_ring(rg_quant_job_t *a, const float *v, float *kept) {
    uint64_t longest = 0;
    uint32_t me = a->f.rank;
    for (uint32_t r = 0; r < a->f.n; r++)
        if (rg_slice_len(a, r) > longest) longest = rg_slice_len(a, r);
    if (!rg_room_for(&a->z->sum, longest * sizeof(float))) return rg_frame_no_memory(&a->f);
    rg_status_t st = RG_OK;
    for (uint32_t k = 0; k + 1 < a->f.n && st == RG_OK; k++) st = ring_hop(a, k, v, kept);
    if (st == RG_OK && kept != NULL) memset(kept + rg_slice_at(a, me), 0, (size_t)rg_slice_len(a, me) * sizeof *kept);
    return st;
}

/* ---- Over two levels ---------------------------------------------------------------------------------------- */

/* Who of a host adds up the host's shares of slice t: its owner's place there, so that the owner does so at home. */
static uint32_t stands_for(const rg_near_t *w, uint32_t host, uint32_t t) {
    return w->order[w->first[host] + w->place[t] % w->size[host]];
}

/* The shares of this host as they are, to who adds them up: z->sum has those of the slices that this rank stands for,
 * one after the other. */
static rg_status_t inside(rg_quant_job_t *a, const float *v) {
    rg_quantiser_t *z = a->z;
    const rg_near_t *w = &z->near;
    uint32_t me = a->f.rank, host = w->host[me];
    uint64_t mine = 0;
    rg_parts_begin_exchange(a);
    for (uint32_t t = 0; t < a->f.n; t++) {
        uint32_t who = stands_for(w, host, t);
        uint64_t bytes = rg_slice_len(a, t) * sizeof *v;
        a->out_len[who] += bytes;
        if (who == me) mine += bytes;
    }
    for (uint32_t k = 0; k < w->size[host]; k++) a->in_len[w->order[w->first[host] + k]] = mine;
    rg_status_t st = rg_parts_lay(a);
    if (st != RG_OK) return st;
    if (!rg_room_for(&z->sum, mine)) return rg_frame_no_memory(&a->f);
    a->finite = rg_all_finite(a, v, rg_slice_at(a, a->f.n));
    for (uint32_t t = 0; t < a->f.n; t++) {
        uint32_t who = stands_for(w, host, t);
        uint64_t bytes = rg_slice_len(a, t) * sizeof *v;
        if (who == me || bytes == 0) continue;
        memcpy(z->out.p + a->out_at[who] + RG_HEAD_BYTES + a->fill[who], v + rg_slice_at(a, t), (size_t)bytes);
        a->fill[who] += bytes;
    }
    st = rg_parts_swap(a);
    if (st != RG_OK) return st;
    float *sum = (float *)z->sum.p;
    memset(sum, 0, (size_t)mine);
    for (uint32_t k = 0; k < w->size[host]; k++) {
        uint32_t r = w->order[w->first[host] + k];
        float *to = sum;
        if (r != me) rg_add_plain(a, sum, (float *)(z->in.p + a->in_at[r] + RG_HEAD_BYTES), mine / sizeof *sum);
        for (uint32_t t = 0; r == me && t < a->f.n; t++) {
            if (stands_for(w, host, t) != me) continue;
            rg_add_plain(a, to, v + rg_slice_at(a, t), rg_slice_len(a, t));
            to += rg_slice_len(a, t);
        }
    }
    return RG_OK;
}

/* The sums of hosts, encoded, to the owners; this rank's own is moved to the front of z->sum and the others are added
 * in the order of hosts. */
static rg_status_t between(rg_quant_job_t *a, float *kept) {
    rg_quantiser_t *z = a->z;
    const rg_near_t *w = &z->near;
    uint32_t me = a->f.rank, host = w->host[me];
    uint64_t mine = rg_slice_len(a, me), own = 0, off = 0;
    float *sum = (float *)z->sum.p;
    rg_parts_begin_exchange(a);
    for (uint32_t t = 0; t < a->f.n; t++) {
        if (w->host[t] != host && stands_for(w, host, t) == me) a->out_len[t] = coded(a, t);
        if (w->host[t] == t && t != host) a->in_len[stands_for(w, t, me)] = coded(a, me);
    }
    rg_status_t st = rg_parts_lay(a);
    if (st != RG_OK) return st;
    if (kept != NULL) memset(kept, 0, (size_t)rg_slice_at(a, a->f.n) * sizeof *kept);
    for (uint32_t t = 0; t < a->f.n; t++) {
        if (stands_for(w, host, t) != me) continue;
        uint64_t at = rg_slice_at(a, t), len = rg_slice_len(a, t);
        if (t == me) own = off;
        if (kept != NULL && w->host[t] != host) memcpy(kept + at, sum + off, (size_t)len * sizeof *sum);
        if (w->host[t] != host)
            rg_part_say(a, z->out.p + a->out_at[t], sum + off, at, len, kept != NULL ? kept + at : NULL, 0);
        off += len;
    }
    st = rg_parts_swap(a);
    if (st != RG_OK) return st;
    memmove(sum, sum + own, (size_t)mine * sizeof *sum);
    for (uint32_t t = 0; t < a->f.n; t++)
        if (w->host[t] == t && t != host)
            rg_quant_decode_add(z->q.wire, z->in.p + a->in_at[stands_for(w, t, me)] + RG_HEAD_BYTES, mine, sum);
    return RG_OK;
}

rg_status_t rg_scatter_two_level(rg_quant_job_t *a, const float *v, float *kept) {
    rg_status_t st = inside(a, v);
    if (st == RG_OK && a->z->near.hosts > 1) return between(a, kept);
    /* On one host every rank stands for its own slice, and nothing has been encoded. */
    if (st == RG_OK && kept != NULL) memset(kept, 0, (size_t)rg_slice_at(a, a->f.n) * sizeof *kept);
    return st;
}
