/* body.h: the codecs, written as plain loops that a compiler turns into the vector instructions of the level at hand.
 * A level's file defines TGT (the target attribute), LEVEL (the table's name) and includes this once. Relies on the
 * rules in codec.h for equal bytes at every level; must not use an intrinsic or anything that depends on the level.
 * Whole blocks have a constant length here, which is what lets their loops be unrolled. */
#include "quant/codec.h"

#include <float.h>
#include <string.h>

#define FN TGT static inline __attribute__((always_inline))

/* ---- Bits ----------------------------------------------------------------------------------------------------------
 */

#define MAGNITUDE 0x7fffffffu
#define INFINITE 0x7f800000u

FN uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

FN float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

FN float load_f32(const uint8_t *w) {
    float x;
    memcpy(&x, w, sizeof x);
    return x;
}

FN uint32_t load_u16(const uint8_t *w) { return (uint32_t)w[0] | (uint32_t)w[1] << 8; }

FN void store_u16(uint8_t *w, uint32_t v) {
    w[0] = (uint8_t)v;
    w[1] = (uint8_t)(v >> 8);
}

/* The largest magnitude, as bits: they order like the numbers, and what is not finite is at the top. */
FN uint32_t top_of(const float *x, uint32_t n) {
    uint32_t top = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = bits_of(x[i]) & MAGNITUDE;
        top = u > top ? u : top;
    }
    return top;
}

/* The finite stand-ins of one block. Returns the largest magnitude among them. */
FN uint32_t made_finite(const float *x, uint32_t n, float *to) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = bits_of(x[i]), m = u & MAGNITUDE;
        to[i] = m > INFINITE ? 0.0f : m == INFINITE ? float_of((u & ~MAGNITUDE) | (INFINITE - 1)) : x[i];
    }
    return top_of(to, n);
}

/* A number in [0, 1) for element i of the block that begins at `first`. */
FN uint32_t random_bits(const rg_code_t *c, uint64_t first, uint32_t i) {
    uint32_t v = ((uint32_t)first + i) * 0x9e3779b9u + c->key[0];
    v = (v ^ v >> 16) * 0x7feb352du;
    v = (v ^ v >> 15) * 0x846ca68bu;
    v = (v ^ v >> 16) + c->key[1] + (uint32_t)(first >> 32) * 0x85ebca6bu;
    v = (v ^ v >> 15) * 0x2c1b3c6du;
    v = (v ^ v >> 12) * 0x297a2d39u;
    return v ^ v >> 15;
}

FN float random_unit(const rg_code_t *c, uint64_t first, uint32_t i) {
    return (float)(int32_t)(random_bits(c, first, i) >> 8) * 0x1p-24f;
}

/* To a whole number: to nearest even by adding what leaves no room for a fraction, or down after adding u. For
 * magnitudes below 2^22. */
FN int32_t to_nearest(float y) { return (int32_t)bits_of(y + 12582912.0f) - 0x4b400000; }

FN int32_t to_below(float y) {
    int32_t t = (int32_t)y;
    return t - ((float)t > y);
}

FN int32_t clamped(int32_t v, int32_t low, int32_t high) {
    v = v < high ? v : high;
    return v > low ? v : low;
}

/* On the bits: of comparisons of floats some levels make no vectors. */
FN float clamped_f32(float v, float most) {
    uint32_t u = bits_of(v), m = u & MAGNITUDE;
    m = m < bits_of(most) ? m : bits_of(most);
    return float_of(m | (u & ~MAGNITUDE));
}

/* What to divide by for a scale of s. With a scale of 0 every code stands for 0, whatever it is. */
FN float divisor(float s) { return s == 0.0f ? 1.0f : s; }

/* A scale for `most` codes up from 0, made smaller where rounding has put the last of them beyond the largest f32. */
FN float scale_of(uint32_t top, float most) {
    float s = float_of(top) / most;
    return (bits_of(s * most) & MAGNITUDE) == INFINITE ? float_of(bits_of(s) - 1) : s;
}

/* a where the condition is 1, else b. A choice by masks stays one: of a choice by branches, of which one side holds
 * float arithmetic, compilers make no vectors. */
FN uint32_t choose(int condition, uint32_t a, uint32_t b) {
    uint32_t mask = 0u - (uint32_t)condition;
    return (a & mask) | (b & ~mask);
}

FN void put(float *out, float v, int add) {
    v += 0.0f; /* -0 becomes +0 */
    *out = add ? *out + v : v;
}

/* ---- Small floats ---------------------------------------------------------------------------------------------------
 */

/* y to a float of `mant` bits of mantissa and exponent bias `bias`, at most `most`; sign at bit `sign_at`. Below the
 * smallest normal number the codes count steps of 2^(1-bias-mant). */
FN uint32_t small_code(float y, uint32_t mant, uint32_t bias, uint32_t most, uint32_t sign_at, int stochastic,
                       uint32_t random) {
    uint32_t u = bits_of(y), m = u & MAGNITUDE, shift = 23 - mant, code, under;
    /* The magnitude at which f32 has the step of the subnormal codes, which adding it rounds to; and steps per unit. */
    float magic = float_of((127 + 1 - bias - mant + 23) << 23);
    if (stochastic) {
        code = (m + (random & ((1u << shift) - 1))) >> shift;
        uint32_t normal = (127 + 1 - bias) << 23; /* nothing larger is used below, and it might be no int */
        float steps = float_of(m < normal ? m : normal) * float_of((127 + bias + mant - 1) << 23);
        under = (uint32_t)(int32_t)(steps + (float)(int32_t)(random >> 8) * 0x1p-24f);
    } else {
        code = (m + ((1u << (shift - 1)) - 1) + (m >> shift & 1)) >> shift;
        under = bits_of(float_of(m) + magic) - bits_of(magic);
    }
    code -= (127 - bias) << mant;
    code = choose(m < (127 + 1 - bias) << 23, under, code);
    code = code < most ? code : most;
    return code | ((u >> 31 & (uint32_t)(code != 0)) << sign_at);
}

FN float small_value(uint32_t code, uint32_t mant, uint32_t bias, uint32_t sign_at) {
    uint32_t m = code & ((1u << sign_at) - 1), sign = (code >> sign_at & 1) << 31;
    uint32_t normal = (m << (23 - mant)) + ((127 - bias) << 23);
    float under = (float)(int32_t)m * float_of((127 + 1 - bias - mant) << 23);
    return float_of(choose(m < 1u << mant, bits_of(under), normal) | sign);
}

#define E4M3 3, 7
#define E5M2 2, 15
#define E2M1 1, 1
#define F16 10, 15
#define E4M3_MOST 0x7eu
#define E5M2_MOST 0x7bu
#define E2M1_MOST 0x7u
#define F16_MOST 0x7bffu

FN uint32_t f16_code(float y) { return small_code(y, F16, F16_MOST, 15, 0, 0); }
FN float f16_value(uint32_t code) { return small_value(code, F16, 15); }

/* ---- Blocks ---------------------------------------------------------------------------------------------------------
 */

/* Each encoder of a block is given finite elements and the largest magnitude of them. */

FN void block_i8(const rg_code_t *c, uint64_t first, const float *x, uint32_t n, uint32_t top, uint8_t *w, int st) {
    float s = scale_of(top, 127.0f), by = divisor(s);
    memcpy(w, &s, sizeof s);
    int8_t *q = (int8_t *)(w + sizeof s);
    for (uint32_t i = 0; i < n; i++) {
        float y = x[i] / by; /* less than 256, even where a subnormal scale was rounded down */
        int32_t v = st ? to_below(y + random_unit(c, first, i)) : to_nearest(y);
        q[i] = (int8_t)clamped(v, -127, 127);
    }
}

FN void unblock_i8(const uint8_t *w, uint32_t n, float *out, int add) {
    float s = load_f32(w);
    const int8_t *q = (const int8_t *)(w + sizeof s);
    for (uint32_t i = 0; i < n; i++) put(&out[i], s * (float)q[i], add);
}

/* Floats in an order of integers, and back. */
FN int32_t ordered(float x) {
    int32_t v = (int32_t)bits_of(x);
    return v ^ (v >> 31 & (int32_t)MAGNITUDE);
}

FN float from_ordered(int32_t v) { return float_of((uint32_t)(v ^ (v >> 31 & (int32_t)MAGNITUDE))); }

/* 1/2 where the range of a block is no f32: then it is computed with halves of everything. */
FN float half_of(float step) { return (bits_of(step * 255.0f) & MAGNITUDE) == INFINITE ? 0.5f : 1.0f; }

FN float minmax_value(float m, float step, float half, float q) { return (m * half + step * half * q) / half; }

FN void block_minmax(const rg_code_t *c, uint64_t first, const float *x, uint32_t n, uint32_t top, uint8_t *w, int st) {
    int32_t low = INT32_MAX, high = INT32_MIN;
    for (uint32_t i = 0; i < n; i++) {
        int32_t v = ordered(x[i]);
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    float m = from_ordered(low) + 0.0f, most = from_ordered(high), half = top >= bits_of(0x1p127f) ? 0.5f : 1.0f;
    float from = m * half, step = (most * half - from) / 255.0f / half;
    while ((bits_of(minmax_value(m, step, half_of(step), 255.0f)) & MAGNITUDE) >= INFINITE)
        step = float_of(bits_of(step) - 1); /* once or twice, at the very end of the range */
    float by = divisor(step * half);
    memcpy(w, &m, sizeof m);
    memcpy(w + sizeof m, &step, sizeof step);
    uint8_t *q = w + 2 * sizeof m;
    for (uint32_t i = 0; i < n; i++) {
        float y = (x[i] * half - from) / by; /* less than 512 */
        int32_t v = st ? to_below(y + random_unit(c, first, i)) : to_nearest(y);
        q[i] = (uint8_t)clamped(v, 0, 255);
    }
}

FN void unblock_minmax(const uint8_t *w, uint32_t n, float *out, int add) {
    float m = load_f32(w), step = load_f32(w + sizeof m), half = half_of(step);
    const uint8_t *q = w + 2 * sizeof m;
    if (half == 1.0f)
        for (uint32_t i = 0; i < n; i++) put(&out[i], m + step * (float)(int32_t)q[i], add);
    else
        for (uint32_t i = 0; i < n; i++) put(&out[i], minmax_value(m, step, half, (float)(int32_t)q[i]), add);
}

/* Two codes to a byte, the first one low. Codes in a row of 16-bit numbers are moved together two by two. */
FN void pack_4(const uint8_t *code, uint32_t n, uint8_t *w) {
    for (uint32_t i = 0; i < (n + 1) / 2; i++) w[i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
}

FN void block_i4(const rg_code_t *c, uint64_t first, const float *x, uint32_t n, uint32_t top, uint8_t *w, int st) {
    uint8_t code[RG_CODE_SMALL_BLOCK] = { 0 };
    uint32_t h = f16_code(float_of(top) / 7.0f);
    float s = f16_value(h), by = divisor(s);
    store_u16(w, h);
    for (uint32_t i = 0; i < n; i++) {
        float y = clamped_f32(x[i] / by, 7.0f);
        int32_t v = st ? to_below(y + random_unit(c, first, i)) : to_nearest(y);
        code[i] = (uint8_t)(clamped(v, -7, 7) & 15);
    }
    pack_4(code, n, w + 2);
}

FN void unblock_i4(const uint8_t *w, uint32_t n, float *out, int add) {
    float s = f16_value(load_u16(w)), v[RG_CODE_SMALL_BLOCK];
    for (uint32_t i = 0; i < (n + 1) / 2; i++) {
        int32_t b = (int8_t)w[2 + i];
        v[2 * i] = s * (float)((int32_t)((uint32_t)b << 28) >> 28);
        v[2 * i + 1] = s * (float)(b >> 4);
    }
    for (uint32_t i = 0; i < n; i++) put(&out[i], v[i], add);
}

FN void block_i2(const rg_code_t *c, uint64_t first, const float *x, uint32_t n, uint32_t top, uint8_t *w, int st) {
    uint8_t code[RG_CODE_SMALL_BLOCK] = { 0 };
    uint32_t h = f16_code(float_of(top));
    float s = f16_value(h), by = divisor(s);
    store_u16(w, h);
    for (uint32_t i = 0; i < n; i++) {
        float y = clamped_f32(x[i] / by, 1.0f) * 1.5f + 1.5f;
        int32_t v = st ? to_below(y + random_unit(c, first, i)) : to_nearest(y);
        code[i] = (uint8_t)clamped(v, 0, 3);
    }
    for (uint32_t i = 0; i < (n + 3) / 4; i++)
        w[2 + i] = (uint8_t)(code[4 * i] | code[4 * i + 1] << 2 | code[4 * i + 2] << 4 | code[4 * i + 3] << 6);
}

FN void unblock_i2(const uint8_t *w, uint32_t n, float *out, int add) {
    float s = f16_value(load_u16(w));
    for (uint32_t i = 0; i < n; i++) {
        int32_t q = w[2 + i / 4] >> (2 * (i % 4)) & 3;
        put(&out[i], s * ((float)(2 * q - 3) / 3.0f), add);
    }
}

FN void block_fp8(const rg_code_t *c, uint64_t first, const float *x, uint32_t n, uint32_t top, uint8_t *w, int st,
                  uint32_t mant, uint32_t bias, uint32_t most, float largest) {
    float s = scale_of(top, largest), by = divisor(s);
    memcpy(w, &s, sizeof s);
    for (uint32_t i = 0; i < n; i++) {
        float y = x[i] / by;
        w[sizeof s + i] = (uint8_t)small_code(y, mant, bias, most, 7, st, st ? random_bits(c, first, i) : 0);
    }
}

FN void unblock_fp8(const uint8_t *w, uint32_t n, float *out, int add, uint32_t mant, uint32_t bias) {
    float s = load_f32(w);
    for (uint32_t i = 0; i < n; i++) put(&out[i], s * small_value(w[sizeof s + i], mant, bias, 7), add);
}

/* The shared power of two: such that the largest element gets the largest exponent that the element type has. Returns
 * it biased by 127, as E8M0 stores it. */
FN uint32_t shared_exponent(uint32_t top, uint32_t exponent_most) {
    uint32_t e = top >> 23;
    return e < exponent_most ? 0 : e - exponent_most;
}

/* 2^(e - 127). */
FN float power_of_two(uint32_t e) { return float_of(e == 0 ? 1u << 22 : e << 23); }

FN void block_mx8(const rg_code_t *c, uint64_t first, const float *x, uint32_t n, uint32_t top, uint8_t *w, int st,
                  uint32_t mant, uint32_t bias, uint32_t most, uint32_t exponent_most) {
    uint32_t e = shared_exponent(top, exponent_most);
    float inverse = power_of_two(254 - e);
    w[0] = (uint8_t)e;
    for (uint32_t i = 0; i < n; i++)
        w[1 + i] = (uint8_t)small_code(x[i] * inverse, mant, bias, most, 7, st, st ? random_bits(c, first, i) : 0);
}

FN void unblock_mx8(const uint8_t *w, uint32_t n, float *out, int add, uint32_t mant, uint32_t bias) {
    float s = power_of_two(w[0]);
    for (uint32_t i = 0; i < n; i++) put(&out[i], s * small_value(w[1 + i], mant, bias, 7), add);
}

FN void block_mx4(const rg_code_t *c, uint64_t first, const float *x, uint32_t n, uint32_t top, uint8_t *w, int st) {
    uint8_t code[RG_CODE_SMALL_BLOCK] = { 0 };
    uint32_t e = shared_exponent(top, 2);
    float inverse = power_of_two(254 - e);
    w[0] = (uint8_t)e;
    for (uint32_t i = 0; i < n; i++)
        code[i] = (uint8_t)small_code(x[i] * inverse, E2M1, E2M1_MOST, 3, st, st ? random_bits(c, first, i) : 0);
    pack_4(code, n, w + 1);
}

FN void unblock_mx4(const uint8_t *w, uint32_t n, float *out, int add) {
    float s = power_of_two(w[0]), v[RG_CODE_SMALL_BLOCK];
    for (uint32_t i = 0; i < (n + 1) / 2; i++) {
        v[2 * i] = s * small_value(w[1 + i] & 15u, E2M1, 3);
        v[2 * i + 1] = s * small_value((uint32_t)w[1 + i] >> 4, E2M1, 3);
    }
    for (uint32_t i = 0; i < n; i++) put(&out[i], v[i], add);
}

/* ---- Rows of blocks
 * ---------------------------------------------------------------------------------------------------
 */

/* Makes enc_NAME, dec_NAME and add_NAME of a block's functions. BYTES gives the bytes of a block of n elements. */
#define ROW(NAME, BLOCK, BYTES, ENCODE, DECODE)                                                                        \
    FN int one_##NAME(const rg_code_t *c, uint64_t first, const float *x, uint32_t n, uint8_t *w, int st) {            \
        float finite[BLOCK];                                                                                           \
        uint32_t top = top_of(x, n);                                                                                   \
        if (__builtin_expect(top >= INFINITE, 0)) {                                                                    \
            if (!c->saturate) return 0;                                                                                \
            top = made_finite(x, n, finite);                                                                           \
            x = finite;                                                                                                \
        }                                                                                                              \
        ENCODE;                                                                                                        \
        return 1;                                                                                                      \
    }                                                                                                                  \
    TGT static int enc_##NAME(const rg_code_t *c, uint64_t first, const float *x, uint64_t n, uint8_t *w) {            \
        for (; n >= BLOCK; n -= BLOCK, first += BLOCK, x += BLOCK, w += BYTES(BLOCK))                                  \
            if (!(c->stochastic ? one_##NAME(c, first, x, BLOCK, w, 1) : one_##NAME(c, first, x, BLOCK, w, 0)))        \
                return 0;                                                                                              \
        return n == 0 || one_##NAME(c, first, x, (uint32_t)n, w, c->stochastic);                                       \
    }                                                                                                                  \
    FN void row_##NAME(const uint8_t *w, uint64_t left, float *out, int add) {                                         \
        uint32_t n = BLOCK;                                                                                            \
        for (; left >= BLOCK; left -= BLOCK, out += BLOCK, w += BYTES(BLOCK)) DECODE;                                  \
        n = (uint32_t)left;                                                                                            \
        if (n != 0) DECODE;                                                                                            \
    }                                                                                                                  \
    TGT static void dec_##NAME(const uint8_t *w, uint64_t n, float *out) { row_##NAME(w, n, out, 0); }                 \
    TGT static void add_##NAME(const uint8_t *w, uint64_t n, float *out) { row_##NAME(w, n, out, 1); }

#define BYTES_I8(n) (4 + (n))
#define BYTES_MINMAX(n) (8 + (n))
#define BYTES_I4(n) (2 + ((n) + 1) / 2)
#define BYTES_I2(n) (2 + ((n) + 3) / 4)
#define BYTES_MX8(n) (1 + (n))
#define BYTES_MX4(n) (1 + ((n) + 1) / 2)

ROW(i8, RG_CODE_I8_BLOCK, BYTES_I8, block_i8(c, first, x, n, top, w, st), unblock_i8(w, n, out, add))
ROW(minmax, RG_CODE_I8_BLOCK, BYTES_MINMAX, block_minmax(c, first, x, n, top, w, st), unblock_minmax(w, n, out, add))
ROW(i4, RG_CODE_SMALL_BLOCK, BYTES_I4, block_i4(c, first, x, n, top, w, st), unblock_i4(w, n, out, add))
ROW(i2, RG_CODE_SMALL_BLOCK, BYTES_I2, block_i2(c, first, x, n, top, w, st), unblock_i2(w, n, out, add))
ROW(e4m3, RG_CODE_FP8_BLOCK, BYTES_I8, block_fp8(c, first, x, n, top, w, st, E4M3, E4M3_MOST, 448.0f),
    unblock_fp8(w, n, out, add, E4M3))
ROW(e5m2, RG_CODE_FP8_BLOCK, BYTES_I8, block_fp8(c, first, x, n, top, w, st, E5M2, E5M2_MOST, 57344.0f),
    unblock_fp8(w, n, out, add, E5M2))
ROW(mxfp8, RG_CODE_SMALL_BLOCK, BYTES_MX8, block_mx8(c, first, x, n, top, w, st, E4M3, E4M3_MOST, 8),
    unblock_mx8(w, n, out, add, E4M3))
ROW(mxfp8_e5m2, RG_CODE_SMALL_BLOCK, BYTES_MX8, block_mx8(c, first, x, n, top, w, st, E5M2, E5M2_MOST, 15),
    unblock_mx8(w, n, out, add, E5M2))
ROW(mxfp4, RG_CODE_SMALL_BLOCK, BYTES_MX4, block_mx4(c, first, x, n, top, w, st), unblock_mx4(w, n, out, add))

/* ---- Without scales -----------------------------------------------------------------------------------------------
 */

/* These take so many at a time, which is no block: nothing is shared among them. */
#define RUN 256u
#define BYTES_16(n) (2 * (n))

FN void block_f16(const rg_code_t *c, uint64_t first, const float *x, uint32_t n, uint8_t *w, int st) {
    uint16_t h[RUN];
    for (uint32_t i = 0; i < n; i++)
        h[i] = (uint16_t)small_code(x[i], F16, F16_MOST, 15, st, st ? random_bits(c, first, i) : 0);
    memcpy(w, h, 2 * (size_t)n);
}

FN void block_bf16(const rg_code_t *c, uint64_t first, const float *x, uint32_t n, uint8_t *w, int st) {
    uint16_t h[RUN];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = bits_of(x[i]), m = u & MAGNITUDE;
        m = (m + (st ? random_bits(c, first, i) & 0xffff : 0x7fff + (m >> 16 & 1))) >> 16;
        m = m < 0x7f7f ? m : 0x7f7f;
        h[i] = (uint16_t)(m | (u >> 31 & (uint32_t)(m != 0)) << 15);
    }
    memcpy(w, h, 2 * (size_t)n);
}

FN void unblock_f16(const uint8_t *w, uint32_t n, float *out, int add) {
    for (uint32_t i = 0; i < n; i++) put(&out[i], f16_value(load_u16(w + 2 * i)), add);
}

FN void unblock_bf16(const uint8_t *w, uint32_t n, float *out, int add) {
    for (uint32_t i = 0; i < n; i++) put(&out[i], float_of(load_u16(w + 2 * i) << 16), add);
}

ROW(f16, RUN, BYTES_16, block_f16(c, first, x, n, w, st), unblock_f16(w, n, out, add))
ROW(bf16, RUN, BYTES_16, block_bf16(c, first, x, n, w, st), unblock_bf16(w, n, out, add))

/* ---- Ternary -------------------------------------------------------------------------------------------------------
 */

/* 0, 1 or 2 for -s, 0 or s. */
FN uint32_t trit(float y, int st, float u) {
    uint32_t bits = bits_of(y), on = float_of(bits & MAGNITUDE) > (st ? u : 0.5f), minus = 0u - (bits >> 31);
    return 1 + ((on ^ minus) - minus);
}

/* k bytes of up to five rows of k elements; the last rows may end early. */
FN void trits(const rg_code_t *c, uint64_t first, const float *x, uint32_t n, uint32_t k, float s, uint8_t *w, int st) {
    static const uint32_t weight[5] = { 1, 3, 9, 27, 81 };
    uint32_t sum[RG_CODE_TRITS] = { 0 };
    for (uint32_t r = 0; r < 5 && r * k < n; r++) {
        uint32_t many = n - r * k < k ? n - r * k : k;
        for (uint32_t i = 0; i < many; i++)
            sum[i] += weight[r] * trit(x[r * k + i] / s, st, st ? random_unit(c, first + r * k, i) : 0.0f);
    }
    for (uint32_t i = 0; i < k; i++) w[i] = (uint8_t)sum[i];
}

TGT static int enc_ternary(const rg_code_t *c, uint64_t first, const float *x, uint64_t n, uint8_t *w) {
    enum { GROUP = 5 * RG_CODE_TRITS };
    uint32_t top = 0;
    for (uint64_t i = 0; i < n; i += GROUP) {
        uint32_t t = top_of(x + i, n - i < GROUP ? (uint32_t)(n - i) : GROUP);
        if (t >= INFINITE) {
            float finite[GROUP];
            if (!c->saturate) return 0;
            t = made_finite(x + i, n - i < GROUP ? (uint32_t)(n - i) : GROUP, finite);
        }
        top = t > top ? t : top;
    }
    float s = c->scale != 0.0f ? c->scale : float_of(top), finite[GROUP];
    memcpy(w, &s, sizeof s);
    s = divisor(s);
    w += sizeof s;
    for (uint32_t many; n != 0; n -= many, first += many, x += many, w += RG_CODE_TRITS) {
        const float *from = x;
        many = n < GROUP ? (uint32_t)n : GROUP;
        if (c->saturate) {
            made_finite(x, many, finite);
            from = finite;
        }
        if (many < GROUP) trits(c, first, from, many, (many + 4) / 5, s, w, c->stochastic);
        else if (c->stochastic) trits(c, first, from, GROUP, RG_CODE_TRITS, s, w, 1);
        else trits(c, first, from, GROUP, RG_CODE_TRITS, s, w, 0);
    }
    return 1;
}

FN void untrits(const uint8_t *w, uint32_t n, uint32_t k, float s, float *out, int add) {
    static const uint32_t weight[5] = { 1, 3, 9, 27, 81 };
    for (uint32_t r = 0; r < 5 && r * k < n; r++) {
        uint32_t many = n - r * k < k ? n - r * k : k;
        for (uint32_t i = 0; i < many; i++) put(&out[r * k + i], s * (float)((int32_t)(w[i] / weight[r] % 3) - 1), add);
    }
}

FN void row_ternary(const uint8_t *w, uint64_t n, float *out, int add) {
    enum { GROUP = 5 * RG_CODE_TRITS };
    if (n == 0) return;
    float s = load_f32(w);
    w += sizeof s;
    for (; n >= GROUP; n -= GROUP, out += GROUP, w += RG_CODE_TRITS) untrits(w, GROUP, RG_CODE_TRITS, s, out, add);
    if (n != 0) untrits(w, (uint32_t)n, ((uint32_t)n + 4) / 5, s, out, add);
}

TGT static void dec_ternary(const uint8_t *w, uint64_t n, float *out) { row_ternary(w, n, out, 0); }
TGT static void add_ternary(const uint8_t *w, uint64_t n, float *out) { row_ternary(w, n, out, 1); }

/* ---- Levels of a given scale ---------------------------------------------------------------------------------------
 */

FN void run_levels(const rg_code_t *c, uint64_t first, const float *x, uint32_t n, float s, int32_t most, int8_t *q,
                   int st) {
    float finite[RUN], by = divisor(s);
    if (__builtin_expect(c->saturate, 0)) {
        made_finite(x, n, finite);
        x = finite;
    }
    for (uint32_t i = 0; i < n; i++) {
        float y = clamped_f32(x[i] / by, (float)most);
        int32_t v = st ? to_below(y + random_unit(c, first, i)) : to_nearest(y);
        q[i] = (int8_t)clamped(v, -most, most);
    }
}

TGT static void levels(const rg_code_t *c, uint64_t first, const float *x, uint64_t n, float s, int32_t most,
                       int8_t *q) {
    for (; n >= RUN; n -= RUN, first += RUN, x += RUN, q += RUN)
        if (c->stochastic) run_levels(c, first, x, RUN, s, most, q, 1);
        else run_levels(c, first, x, RUN, s, most, q, 0);
    if (n != 0) run_levels(c, first, x, (uint32_t)n, s, most, q, c->stochastic);
}

/* ---- The table ------------------------------------------------------------------------------------------------------
 */

#define ALL(PREFIX)                                                                                                    \
    {                                                                                                                  \
        [RG_WIRE_F16] = PREFIX##f16, [RG_WIRE_BF16] = PREFIX##bf16, [RG_WIRE_I8] = PREFIX##i8,                         \
        [RG_WIRE_I8_MINMAX] = PREFIX##minmax, [RG_WIRE_I4] = PREFIX##i4, [RG_WIRE_I2] = PREFIX##i2,                    \
        [RG_WIRE_TERNARY] = PREFIX##ternary, [RG_WIRE_E4M3] = PREFIX##e4m3, [RG_WIRE_E5M2] = PREFIX##e5m2,             \
        [RG_WIRE_MXFP8] = PREFIX##mxfp8, [RG_WIRE_MXFP8_E5M2] = PREFIX##mxfp8_e5m2, [RG_WIRE_MXFP4] = PREFIX##mxfp4    \
    }

const rg_codec_table_t LEVEL = { .encode = ALL(enc_), .decode = ALL(dec_), .decode_add = ALL(add_), .levels = levels };
