/* integer.c: sums of whole numbers. All members agree on the scales first, by a maximum; each says its elements as
 * whole multiples of them; the owner of a slice adds these up and passes the sums on in as many bits as they may need.
 * So there is one quantisation for each member and no other error, whatever the order. Relies on parts.h and the
 * codecs' rounding. A block of RG_BLOCK elements has a scale, or, where the wire form has one for all, the whole call.
 */
#include "quant/parts.h"

#include <endian.h>
#include <float.h>
#include <string.h>

#define RG_BLOCK 256u
#define WIDEST 25u /* bits of a sum: far more than any group needs */

static int32_t most_of(rg_wire_t wire) {
    return wire == RG_WIRE_I8 ? 127 : wire == RG_WIRE_I4 ? 7 : wire == RG_WIRE_TERNARY ? 1 : 0;
}

int rg_integer_can(rg_wire_t wire) { return most_of(wire) != 0; }

/* ---- Bits --------------------------------------------------------------------------------------------------- */

/* Of numbers from -most to most. */
static uint32_t width_of(uint64_t most) {
    uint32_t w = 1;
    while (1ull << w < 2 * most + 1) w++;
    return w;
}

/* So many numbers fill whole bytes at any width; blocks are packed one by one, the lowest bits first. */
static uint64_t packed_bytes(uint64_t n, uint32_t width) { return (n * width + 7) / 8; }

static void pack_block(const uint32_t *v, uint32_t n, uint32_t width, uint8_t *to) {
    uint64_t held = 0;
    uint32_t have = 0;
    for (uint32_t i = 0; i < n; i++) {
        held |= (uint64_t)v[i] << have;
        have += width;
        if (have < 32) continue;
        uint32_t word = htole32((uint32_t)held);
        memcpy(to, &word, sizeof word);
        to += sizeof word;
        held >>= 32;
        have -= 32;
    }
    for (; have != 0; have = have > 8 ? have - 8 : 0, held >>= 8) *to++ = (uint8_t)held;
}

/* No number of at most 25 bits lies in more than four bytes. */
static void unpack_block(const uint8_t *from, uint32_t n, uint32_t width, uint32_t *v) {
    uint8_t bytes[RG_BLOCK * WIDEST / 8 + sizeof(uint32_t)];
    memcpy(bytes, from, (size_t)packed_bytes(n, width));
    memset(bytes + packed_bytes(n, width), 0, sizeof(uint32_t));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, bytes + i * width / 8, sizeof word);
        v[i] = le32toh(word) >> (i * width % 8) & ((1u << width) - 1);
    }
}

static uint32_t block_len(uint64_t i, uint64_t n) { return n - i < RG_BLOCK ? (uint32_t)(n - i) : RG_BLOCK; }

static void pack_codes(const int8_t *q, uint64_t n, int32_t most, uint8_t *to) {
    uint32_t width = width_of((uint64_t)most), v[RG_BLOCK];
    for (uint64_t i = 0; i < n; i += RG_BLOCK, to += RG_BLOCK / 8 * width) {
        uint32_t many = block_len(i, n);
        for (uint32_t k = 0; k < many; k++) v[k] = (uint32_t)(q[i + k] + most);
        pack_block(v, many, width, to);
    }
}

static void add_codes(const uint8_t *from, uint64_t n, int32_t most, int32_t *sum) {
    uint32_t width = width_of((uint64_t)most), v[RG_BLOCK];
    for (uint64_t i = 0; i < n; i += RG_BLOCK, from += RG_BLOCK / 8 * width) {
        uint32_t many = block_len(i, n);
        unpack_block(from, many, width, v);
        for (uint32_t k = 0; k < many; k++) sum[i + k] += (int32_t)v[k] - most;
    }
}

/* ---- Scales ------------------------------------------------------------------------------------------------- */

static int one_scale(const rg_quant_job_t *a) { return a->z->q.wire == RG_WIRE_TERNARY; }

static uint64_t blocks_of(const rg_quant_job_t *a, uint32_t r) {
    return one_scale(a) ? 0 : (rg_slice_len(a, r) + RG_BLOCK - 1) / RG_BLOCK;
}

/* Where the scales of a slice are; those of rank n: all there are. */
static const float *scales_at(const rg_quant_job_t *a, uint32_t r) {
    const float *s = (const float *)a->z->scales.p;
    for (uint32_t k = 0; k < r && !one_scale(a); k++) s += blocks_of(a, k);
    return s;
}

static float scale_of(const rg_quant_job_t *a, const float *scales, uint64_t i) {
    return scales[one_scale(a) ? 0 : i / RG_BLOCK];
}

/* The largest magnitude; infinite where there is one that may not be. */
static float top_of(const rg_quant_job_t *a, const float *v, uint64_t n) {
    uint32_t top = 0, u;
    float most;
    for (uint64_t i = 0; i < n; i++) {
        memcpy(&u, &v[i], sizeof u);
        u &= 0x7fffffffu;
        top = u > top ? u : top;
    }
    memcpy(&most, &top, sizeof most);
    if (isfinite(most)) return most;
    if (!(a->z->q.flags & RG_QUANT_SATURATE)) return INFINITY;
    most = 0;
    for (uint64_t i = 0; i < n; i++) most = fmaxf(most, isinf(v[i]) ? FLT_MAX : isnan(v[i]) ? 0.0f : fabsf(v[i]));
    return most;
}

/* For which members the scales are is agreed on by the same maximum: in four numbers, and their negatives behind them.
 * If one of the members knew of a loss and another did not, the one would go on where the other begins again. */
#define WHO 8u

static void put_members(float *to, uint64_t members) {
    for (int k = 0; k < 4; k++) {
        to[k] = (float)(members >> 16 * k & 0xffff);
        to[k + 4] = -to[k];
    }
}

static int same_members(const float *from) {
    int same = 1;
    for (int k = 0; k < 4; k++) same &= from[k] == -from[k + 4];
    return same;
}

/* Agrees on z->scales. */
static rg_status_t agree(rg_quant_job_t *a, const float *v) {
    rg_quantiser_t *z = a->z;
    uint64_t blocks = one_scale(a);
    for (uint32_t r = 0; r < a->f.n; r++) blocks += blocks_of(a, r);
    if (!rg_room_for(&z->scales, (blocks + WHO) * sizeof(float))) return rg_frame_no_memory(&a->f);
    float *s = (float *)z->scales.p;
    if (one_scale(a) && z->q.scale != 0.0f) {
        *s = z->q.scale;
        return RG_OK;
    }
    if (one_scale(a)) *s = top_of(a, v, rg_slice_at(a, a->f.n));
    for (uint32_t r = 0; r < a->f.n && !one_scale(a); r++)
        for (uint64_t at = rg_slice_at(a, r), end = rg_slice_at(a, r + 1); at < end; at += RG_BLOCK)
            *s++ = top_of(a, v + at, end - at < RG_BLOCK ? end - at : RG_BLOCK);
    s = (float *)z->scales.p;
    put_members(s + blocks, a->f.members);
    rg_status_t st = rg_frame_ended(
        &a->f, rg_all_reduce(z->g, s, s, blocks + WHO, RG_F32, RG_MAX, rg_frame_opts(&a->f), rg_frame_req(&a->f)));
    if (st == RG_OK && !same_members(s + blocks))
        return rg_frame_refuse(&a->f, RG_ERR_PEER_LOST,
                               "%s: members began it for different members: somebody was lost or has come; call again",
                               a->f.name);
    float most = (float)most_of(z->q.wire);
    for (uint64_t i = 0; i < blocks && st == RG_OK; i++) {
        s[i] /= most;
        if (isinf(s[i] * most)) s[i] = nextafterf(s[i], 0);
    }
    return st;
}

/* ---- The sum ------------------------------------------------------------------------------------------------ */

/* Whole numbers for one slice, to z->piece; what is kept of it replaces it. */
static void codes_of(rg_quant_job_t *a, const float *v, uint32_t r, float *kept) {
    rg_quantiser_t *z = a->z;
    const float *s = scales_at(a, r);
    uint64_t at = rg_slice_at(a, r), n = rg_slice_len(a, r);
    int8_t *q = (int8_t *)z->piece.p;
    for (uint64_t i = 0; i < n; i += RG_BLOCK) {
        uint32_t many = block_len(i, n);
        float scale = scale_of(a, s, i);
        rg_quant_levels(&z->q, z->calls, at + i, v + at + i, many, scale, most_of(z->q.wire), q + i);
        for (uint32_t k = 0; kept != NULL && k < many; k++)
            kept[at + i + k] = rg_part_left(z, v[at + i + k], scale * (float)q[i + k]);
    }
}

/* How far the sum may be off: all members' roundings. */
static double bound_of(const rg_quant_job_t *a) {
    double most = most_of(a->z->q.wire), scale = 0;
    const float *s = scales_at(a, 0), *end = one_scale(a) ? s + 1 : scales_at(a, a->f.n);
    for (; s < end; s++) scale = fmax(scale, (double)*s);
    return a->f.n * (scale * (a->z->q.flags & RG_QUANT_STOCHASTIC ? 1 : 0.5) + scale * most * 0x1p-21 + 0x1p-134);
}

rg_status_t rg_scatter_integer(rg_quant_job_t *a, const float *v, float *kept) {
    rg_quantiser_t *z = a->z;
    uint32_t me = a->f.rank, width = width_of((uint64_t)most_of(z->q.wire));
    uint64_t mine = rg_slice_len(a, me), longest = 0;
    int32_t most = most_of(z->q.wire);
    rg_status_t st = agree(a, v);
    if (st != RG_OK) return st;
    rg_parts_begin_exchange(a);
    for (uint32_t r = 0; r < a->f.n; r++) {
        uint64_t n = rg_slice_len(a, r);
        longest = n > longest ? n : longest;
        a->out_len[r] = packed_bytes(n, width);
        a->in_len[r] = packed_bytes(mine, width);
    }
    st = rg_parts_lay(a);
    if (st != RG_OK) return st;
    if (!rg_room_for(&z->sum, mine * sizeof(int32_t)) || !rg_room_for(&z->piece, longest))
        return rg_frame_no_memory(&a->f);
    int32_t *sum = (int32_t *)z->sum.p;
    a->finite = rg_all_finite(a, v, rg_slice_at(a, a->f.n));
    for (uint32_t r = 0; r < a->f.n; r++) {
        const int8_t *q = (const int8_t *)z->piece.p;
        codes_of(a, v, r, kept);
        if (r != me) pack_codes(q, rg_slice_len(a, r), most, z->out.p + a->out_at[r] + RG_HEAD_BYTES);
        else
            for (uint64_t i = 0; i < mine; i++) sum[i] = q[i];
    }
    st = rg_parts_swap(a);
    if (st != RG_OK) return st;
    for (uint32_t r = 0; r < a->f.n; r++)
        if (r != me) add_codes(z->in.p + a->in_at[r] + RG_HEAD_BYTES, mine, most, sum);
    a->bound = bound_of(a);
    return RG_OK;
}

/* ---- Its values --------------------------------------------------------------------------------------------- */

/* Of one block, whose scale is `scale`. */
static void values_of(const rg_quant_job_t *a, float scale, const int32_t *sum, uint32_t n, float *out) {
    float by = (float)a->f.n;
    if (a->op == RG_AVG)
        for (uint32_t i = 0; i < n; i++) out[i] = scale * (float)sum[i] / by + 0.0f;
    else
        for (uint32_t i = 0; i < n; i++) out[i] = scale * (float)sum[i] + 0.0f;
}

void rg_integer_values(const rg_quant_job_t *a, float *out) {
    const float *s = scales_at(a, a->f.rank);
    const int32_t *sum = (const int32_t *)a->z->sum.p;
    uint64_t n = rg_slice_len(a, a->f.rank);
    for (uint64_t i = 0; i < n; i += RG_BLOCK) values_of(a, scale_of(a, s, i), sum + i, block_len(i, n), out + i);
}

static uint64_t most_sum(const rg_quant_job_t *a) { return (uint64_t)most_of(a->z->q.wire) * a->f.n; }

uint64_t rg_integer_bytes(const rg_quant_job_t *a, uint64_t n) { return packed_bytes(n, width_of(most_sum(a))); }

void rg_integer_put(rg_quant_job_t *a, uint8_t *to) {
    const float *s = scales_at(a, a->f.rank);
    const int32_t *sum = (const int32_t *)a->z->sum.p;
    int32_t most = (int32_t)most_sum(a);
    uint64_t n = rg_slice_len(a, a->f.rank);
    uint32_t width = width_of((uint64_t)most), v[RG_BLOCK];
    rg_part_head_t h = { .call = a->call, .members = a->f.members, .bound = a->bound, .finite = 1 };
    uint8_t *w = to + RG_HEAD_BYTES;
    for (uint64_t i = 0; i < n; i += RG_BLOCK, w += RG_BLOCK / 8 * width) {
        uint32_t many = block_len(i, n);
        int32_t top = 0;
        float largest;
        for (uint32_t k = 0; k < many; k++) {
            int32_t size = sum[i + k] < 0 ? -sum[i + k] : sum[i + k];
            top = size > top ? size : top;
            v[k] = (uint32_t)(sum[i + k] + most);
        }
        values_of(a, scale_of(a, s, i), &top, 1, &largest);
        h.finite &= isfinite(largest) != 0;
        pack_block(v, many, width, w);
    }
    a->finite = (int)h.finite;
    rg_part_put_head(to, &h);
}

void rg_integer_get(const rg_quant_job_t *a, uint32_t rank, const uint8_t *from, float *out) {
    const float *s = scales_at(a, rank);
    int32_t most = (int32_t)most_sum(a), sum[RG_BLOCK];
    uint64_t n = rg_slice_len(a, rank);
    uint32_t width = width_of((uint64_t)most), v[RG_BLOCK];
    from += RG_HEAD_BYTES;
    for (uint64_t i = 0; i < n; i += RG_BLOCK, from += RG_BLOCK / 8 * width) {
        uint32_t many = block_len(i, n);
        unpack_block(from, many, width, v);
        for (uint32_t k = 0; k < many; k++) sum[k] = (int32_t)v[k] - most;
        values_of(a, scale_of(a, s, i), sum, many, out + i);
    }
}
