/* integer.c: sums of whole numbers. All members agree on the scales first, by a maximum; each says its elements as
 * whole multiples of them; the owner of a slice adds these up and passes the sums on in as many bits as they may need.
 * So there is one quantisation for each member and no other error, whatever the order. Relies on parts.h and the
 * codecs' rounding. A block of RG_BLOCK elements has a scale, or, where the wire form has one for all, the whole call.
 */
#include "quant/parts.h"

#include <float.h>
#include <string.h>

#define RG_BLOCK 256u

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

static uint64_t packed_bytes(uint64_t n, uint32_t width) { return (n * width + 7) / 8; }

/* The lowest bits first. */
typedef struct bits {
    uint64_t held;
    uint32_t n;
    uint8_t *to;
    const uint8_t *from;
} bits_t;

static inline void bits_put(bits_t *b, uint32_t v, uint32_t width) {
    b->held |= (uint64_t)v << b->n;
    for (b->n += width; b->n >= 8; b->n -= 8, b->held >>= 8) *b->to++ = (uint8_t)b->held;
}

static void bits_end(bits_t *b) {
    if (b->n != 0) *b->to = (uint8_t)b->held;
}

static inline uint32_t bits_get(bits_t *b, uint32_t width) {
    for (; b->n < width; b->n += 8) b->held |= (uint64_t)*b->from++ << b->n;
    uint32_t v = (uint32_t)b->held & ((1u << width) - 1);
    b->held >>= width;
    b->n -= width;
    return v;
}

static void pack_codes(const int8_t *q, uint64_t n, int32_t most, uint8_t *to) {
    uint32_t width = width_of((uint64_t)most);
    bits_t b = { .to = to };
    if (width == 8) {
        for (uint64_t i = 0; i < n; i++) to[i] = (uint8_t)(q[i] + most);
        return;
    }
    for (uint64_t i = 0; i < n; i++) bits_put(&b, (uint32_t)(q[i] + most), width);
    bits_end(&b);
}

static void add_codes(const uint8_t *from, uint64_t n, int32_t most, int32_t *sum) {
    uint32_t width = width_of((uint64_t)most);
    bits_t b = { .from = from };
    if (width == 8)
        for (uint64_t i = 0; i < n; i++) sum[i] += (int32_t)from[i] - most;
    else
        for (uint64_t i = 0; i < n; i++) sum[i] += (int32_t)bits_get(&b, width) - most;
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
    uint32_t top = 0;
    float most;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &v[i], sizeof u);
        u &= 0x7fffffffu;
        if (u > 0x7f800000u) u = a->z->q.flags & RG_QUANT_SATURATE ? 0 : 0x7f800000u;
        top = u > top ? u : top;
    }
    memcpy(&most, &top, sizeof most);
    return isinf(most) && (a->z->q.flags & RG_QUANT_SATURATE) ? FLT_MAX : most;
}

/* Agrees on z->scales. */
static rg_status_t agree(rg_quant_job_t *a, const float *v) {
    rg_quantiser_t *z = a->z;
    uint64_t blocks = one_scale(a);
    for (uint32_t r = 0; r < a->f.n; r++) blocks += blocks_of(a, r);
    if (!rg_room_for(&z->scales, blocks * sizeof(float))) return rg_frame_no_memory(&a->f);
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
    rg_status_t st =
        rg_frame_ended(&a->f, rg_all_reduce(z->g, s, s, blocks, RG_F32, RG_MAX, rg_frame_opts(&a->f), NULL));
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
    uint64_t at = rg_slice_at(a, r), n = rg_slice_len(a, r), step = one_scale(a) && n != 0 ? n : RG_BLOCK;
    int8_t *q = (int8_t *)z->piece.p;
    for (uint64_t i = 0; i < n; i += step)
        rg_quant_levels(&z->q, z->calls, at + i, v + at + i, n - i < step ? n - i : step, scale_of(a, s, i),
                        most_of(z->q.wire), q + i);
    for (uint64_t i = 0; i < n && kept != NULL; i++)
        kept[at + i] = rg_part_left(z, v[at + i], scale_of(a, s, i) * (float)q[i]);
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

static float value_of(const rg_quant_job_t *a, float scale, int32_t sum) {
    float v = scale * (float)sum;
    return (a->op == RG_AVG ? v / (float)a->f.n : v) + 0.0f;
}

void rg_integer_values(const rg_quant_job_t *a, float *out) {
    const float *s = scales_at(a, a->f.rank);
    const int32_t *sum = (const int32_t *)a->z->sum.p;
    for (uint64_t i = 0; i < rg_slice_len(a, a->f.rank); i++) out[i] = value_of(a, scale_of(a, s, i), sum[i]);
}

static uint64_t most_sum(const rg_quant_job_t *a) { return (uint64_t)most_of(a->z->q.wire) * a->f.n; }

uint64_t rg_integer_bytes(const rg_quant_job_t *a, uint64_t n) { return packed_bytes(n, width_of(most_sum(a))); }

void rg_integer_put(rg_quant_job_t *a, uint8_t *to) {
    const float *s = scales_at(a, a->f.rank);
    const int32_t *sum = (const int32_t *)a->z->sum.p;
    uint64_t most = most_sum(a);
    uint32_t width = width_of(most);
    rg_part_head_t h = { .call = a->call, .epoch = a->f.epoch, .bound = a->bound, .finite = 1 };
    bits_t b = { .to = to + RG_HEAD_BYTES };
    for (uint64_t i = 0; i < rg_slice_len(a, a->f.rank); i++) {
        h.finite &= isfinite(value_of(a, scale_of(a, s, i), sum[i])) != 0;
        bits_put(&b, (uint32_t)(sum[i] + (int32_t)most), width);
    }
    bits_end(&b);
    a->finite = (int)h.finite;
    rg_part_put_head(to, &h);
}

void rg_integer_get(const rg_quant_job_t *a, uint32_t rank, const uint8_t *from, float *out) {
    const float *s = scales_at(a, rank);
    int32_t most = (int32_t)most_sum(a);
    uint32_t width = width_of((uint64_t)most);
    bits_t b = { .from = from + RG_HEAD_BYTES };
    for (uint64_t i = 0; i < rg_slice_len(a, rank); i++)
        out[i] = value_of(a, scale_of(a, s, i), (int32_t)bits_get(&b, width) - most);
}
