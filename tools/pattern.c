/* pattern.c: see pattern.h. It relies on nothing of the library but type sizes, so that it can judge it. It must stay
 * exact: sums of up to 64 members fit the 8 significant bits of bf16. */
#include "pattern.h"

#include <math.h>
#include <string.h>

#define PATTERN_PERIOD 64u

double pattern_value(rg_op_t op, uint32_t rank, uint64_t i) {
    uint64_t k = (i % PATTERN_PERIOD) * 7 + (uint64_t)rank * 5;
    if (op == RG_PROD) return k % 8 == 0 ? 2 : 1;
    return (double)(k % 4 + 1);
}

double pattern_result(rg_op_t op, uint32_t n, uint64_t i) {
    double v = pattern_value(op, 0, i);
    for (uint32_t r = 1; r < n; r++) {
        double w = pattern_value(op, r, i);
        if (op == RG_SUM || op == RG_AVG) v += w;
        if (op == RG_PROD) v *= w;
        if (op == RG_MIN) v = w < v ? w : v;
        if (op == RG_MAX) v = w > v ? w : v;
    }
    return op == RG_AVG ? v / n : v;
}

/* A double to 16 bits with `mant` bits of fraction and `bias`, to nearest even; no infinities or subnormals here. */
static uint16_t pattern_to16(double v, int mant, int bias) {
    int e;
    double f = frexp(fabs(v), &e); /* 0.5 <= f < 1 */
    if (v == 0) return 0;
    double scaled = ldexp(f, mant + 1);
    uint32_t m = (uint32_t)nearbyint(scaled);
    if (m >> (mant + 1)) {
        m >>= 1;
        e++;
    }
    return (uint16_t)((v < 0 ? 0x8000u : 0) | (uint32_t)(e - 1 + bias) << mant | (m & ((1u << mant) - 1)));
}

static double pattern_from16(uint16_t h, int mant, int bias) {
    int e = (h & 0x7fff) >> mant, m = h & ((1 << mant) - 1);
    double v = e ? ldexp((double)(m | 1 << mant), e - bias - mant) : ldexp((double)m, 1 - bias - mant);
    if (e == (0x7fff >> mant)) v = m ? (double)NAN : (double)INFINITY;
    return h & 0x8000 ? -v : v;
}

/* The 8-bit floats saturate. e5m2 is the upper half of an f16; e4m3 has no infinity. */
static uint8_t pattern_to8(rg_dtype_t dtype, double v) {
    double most = dtype == RG_F8E4M3 ? 448 : 57344, m = fabs(v) < most ? fabs(v) : most;
    uint16_t h = dtype == RG_F8E4M3 ? pattern_to16(m, 3, 7) : pattern_to16(m, 2, 15);
    return (uint8_t)((v < 0 ? 0x80 : 0) | h);
}

static double pattern_from8(rg_dtype_t dtype, uint8_t c) {
    if (dtype == RG_F8E5M2) return pattern_from16((uint16_t)(c << 8), 10, 15);
    int e = (c & 0x7f) >> 3, m = c & 7;
    double v = (c & 0x7f) == 0x7f ? (double)NAN : e ? ldexp(m + 8, e - 10) : ldexp(m, -9);
    return c & 0x80 ? -v : v;
}

static int pattern_is8(rg_dtype_t dtype) { return dtype == RG_F8E4M3 || dtype == RG_F8E5M2; }

void pattern_store(rg_dtype_t dtype, void *p, double v) {
    int64_t i = (int64_t)v;
    float f = (float)v;
    uint16_t h = dtype == RG_F16 ? pattern_to16(v, 10, 15) : dtype == RG_BF16 ? pattern_to16(v, 7, 127) : 0;
    uint8_t c = pattern_is8(dtype) ? pattern_to8(dtype, v) : 0;
    const void *from = &i; /* little-endian: the low bytes come first, and wrap as the types do */
    if (dtype == RG_F32) from = &f;
    if (dtype == RG_F64) from = &v;
    if (dtype == RG_F16 || dtype == RG_BF16) from = &h;
    if (pattern_is8(dtype)) from = &c;
    memcpy(p, from, rg_dtype_size(dtype));
}

double pattern_load(rg_dtype_t dtype, const void *p) {
    int64_t i = 0;
    float f;
    double d;
    uint16_t h;
    size_t size = rg_dtype_size(dtype);
    if (dtype == RG_F32) return memcpy(&f, p, 4), (double)f;
    if (dtype == RG_F64) return memcpy(&d, p, 8), d;
    if (dtype == RG_F16 || dtype == RG_BF16) {
        memcpy(&h, p, 2);
        return dtype == RG_F16 ? pattern_from16(h, 10, 15) : pattern_from16(h, 7, 127);
    }
    if (pattern_is8(dtype)) return pattern_from8(dtype, *(const uint8_t *)p);
    memcpy(&i, p, size);
    int is_signed = dtype == RG_I8 || dtype == RG_I32 || dtype == RG_I64;
    if (is_signed && size < 8 && (i >> (8 * size - 1) & 1)) i -= (int64_t)1 << (8 * size);
    return dtype == RG_U64 ? (double)(uint64_t)i : (double)i;
}

static void pattern_spread(uint8_t *buf, size_t elem, uint64_t count, const uint8_t *block, uint64_t block_count) {
    for (uint64_t at = 0; at < count; at += block_count) {
        uint64_t n = count - at < block_count ? count - at : block_count;
        memcpy(buf + at * elem, block, n * elem);
    }
}

void pattern_fill(rg_dtype_t dtype, rg_op_t op, uint32_t rank, void *buf, uint64_t count) {
    enum { BLOCK = 16 * PATTERN_PERIOD };
    uint8_t block[BLOCK * 8];
    size_t elem = rg_dtype_size(dtype);
    for (uint32_t i = 0; i < BLOCK; i++) pattern_store(dtype, block + i * elem, pattern_value(op, rank, i));
    pattern_spread(buf, elem, count, block, BLOCK);
}

/* An average of small integers may be rounded once in the last place of its type; everything else is exact. */
static int pattern_near(rg_dtype_t dtype, rg_op_t op, double got, double want) {
    int bits = dtype == RG_F16 ? 10 : dtype == RG_BF16 ? 7 : dtype == RG_F32 ? 23 : 52;
    if (pattern_is8(dtype)) bits = dtype == RG_F8E4M3 ? 3 : 2;
    return op == RG_AVG && fabs(got - want) <= ldexp(fabs(want), 1 - bits);
}

static uint64_t pattern_compare(rg_dtype_t dtype, rg_op_t op, const double *want, const uint8_t *buf, uint64_t count) {
    size_t elem = rg_dtype_size(dtype);
    uint8_t block[PATTERN_PERIOD * 8];
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < PATTERN_PERIOD; i++) pattern_store(dtype, block + i * elem, want[i]);
    for (uint64_t at = 0; at < count; at += PATTERN_PERIOD) {
        uint64_t n = count - at < PATTERN_PERIOD ? count - at : PATTERN_PERIOD;
        if (!memcmp(buf + at * elem, block, n * elem)) continue;
        for (uint64_t i = 0; i < n; i++)
            wrong += memcmp(buf + (at + i) * elem, block + i * elem, elem) &&
                     !pattern_near(dtype, op, pattern_load(dtype, buf + (at + i) * elem), want[i]);
    }
    return wrong;
}

uint64_t pattern_count_wrong_at(rg_dtype_t dtype, rg_op_t op, uint32_t n, uint64_t first, const void *buf,
                                uint64_t count) {
    double want[PATTERN_PERIOD];
    for (uint32_t i = 0; i < PATTERN_PERIOD; i++) want[i] = pattern_result(op, n, first + i);
    return pattern_compare(dtype, op, want, buf, count);
}

uint64_t pattern_count_wrong(rg_dtype_t dtype, rg_op_t op, uint32_t n, const void *buf, uint64_t count) {
    return pattern_count_wrong_at(dtype, op, n, 0, buf, count);
}

uint64_t pattern_count_as(rg_dtype_t dtype, uint32_t rank, const void *buf, uint64_t count) {
    double want[PATTERN_PERIOD];
    for (uint32_t i = 0; i < PATTERN_PERIOD; i++) want[i] = pattern_value(RG_SUM, rank, i);
    return pattern_compare(dtype, RG_SUM, want, buf, count);
}
