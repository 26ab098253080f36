/* codec.c: the codecs as the caller sees them: checks, names and sizes of the wire forms, the choice of the level, and
 * bounds of the error. Relies on the tables of code_*.c. Takes no memory and keeps no state. */
#include "kernels/kernels.h"
#include "quant/codec.h"

#include <math.h>
#include <string.h>

/* Element bits and the scale's bytes; `block` 0: all elements are one block. */
typedef struct form {
    const char *name;
    uint32_t block, scale_bytes, bits;
} form_t;

static const form_t forms[RG_WIRE_COUNT] = {
    [RG_WIRE_F16] = { "f16", 1, 0, 16 },
    [RG_WIRE_BF16] = { "bf16", 1, 0, 16 },
    [RG_WIRE_I8] = { "int8", RG_CODE_I8_BLOCK, 4, 8 },
    [RG_WIRE_I8_MINMAX] = { "int8-minmax", RG_CODE_I8_BLOCK, 8, 8 },
    [RG_WIRE_I4] = { "int4", RG_CODE_SMALL_BLOCK, 2, 4 },
    [RG_WIRE_I2] = { "int2", RG_CODE_SMALL_BLOCK, 2, 2 },
    [RG_WIRE_TERNARY] = { "ternary", 0, 4, 0 },
    [RG_WIRE_E4M3] = { "e4m3", RG_CODE_FP8_BLOCK, 4, 8 },
    [RG_WIRE_E5M2] = { "e5m2", RG_CODE_FP8_BLOCK, 4, 8 },
    [RG_WIRE_MXFP8] = { "mxfp8", RG_CODE_SMALL_BLOCK, 1, 8 },
    [RG_WIRE_MXFP8_E5M2] = { "mxfp8-e5m2", RG_CODE_SMALL_BLOCK, 1, 8 },
    [RG_WIRE_MXFP4] = { "mxfp4", RG_CODE_SMALL_BLOCK, 1, 4 },
};

static int known(rg_wire_t wire) { return wire >= RG_WIRE_F16 && wire < RG_WIRE_COUNT; }

const char *rg_wire_name(rg_wire_t wire) { return known(wire) ? forms[wire].name : NULL; }

rg_wire_t rg_wire_by_name(const char *name) {
    for (int w = RG_WIRE_F16; name != NULL && w < RG_WIRE_COUNT; w++)
        if (strcmp(forms[w].name, name) == 0) return (rg_wire_t)w;
    return (rg_wire_t)0;
}

uint64_t rg_quant_block(rg_wire_t wire) { return known(wire) ? forms[wire].block : 0; }

/* Bytes of one block of n elements. */
static uint64_t block_bytes(const form_t *f, uint64_t n) { return f->scale_bytes + (n * f->bits + 7) / 8; }

uint64_t rg_quant_bytes(rg_wire_t wire, uint64_t n) {
    if (!known(wire) || n == 0) return 0;
    const form_t *f = &forms[wire];
    if (f->block == 0) {
        uint64_t whole = n / (5 * RG_CODE_TRITS), rest = n % (5 * RG_CODE_TRITS);
        return f->scale_bytes + whole * RG_CODE_TRITS + (rest + 4) / 5;
    }
    uint64_t whole = n / f->block, rest = n % f->block;
    return whole * block_bytes(f, f->block) + (rest != 0 ? block_bytes(f, rest) : 0);
}

static const rg_codec_table_t *table(void) {
#ifdef __x86_64__
    const char *level = rg_simd_name();
    if (strcmp(level, "avx512") == 0) return &rg_codecs_avx512;
    if (strcmp(level, "avx2") == 0) return &rg_codecs_avx2;
#endif
    return &rg_codecs_scalar;
}

/* Spreads a number over 64 bits (the finaliser of SplitMix64: Steele, Lea, Flood 2014). */
static uint64_t spread(uint64_t v) {
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9ull;
    v = (v ^ v >> 27) * 0x94d049bb133111ebull;
    return v ^ v >> 31;
}

static rg_code_t code_of(const rg_quant_t *q, uint64_t op) {
    uint64_t key = spread(spread(q->seed + 0x9e3779b97f4a7c15ull) ^ op);
    return (rg_code_t){ .key = { (uint32_t)key, (uint32_t)(key >> 32) },
                        .stochastic = (q->flags & RG_QUANT_STOCHASTIC) != 0,
                        .saturate = (q->flags & RG_QUANT_SATURATE) != 0,
                        .scale = q->scale };
}

void rg_quant_levels(const rg_quant_t *q, uint64_t op, uint64_t first, const float *x, uint64_t n, float s,
                     int32_t most, int8_t *to) {
    rg_code_t c = code_of(q, op);
    table()->levels(&c, first, x, n, s, most, to);
}

rg_status_t rg_quant_encode(const rg_quant_t *q, uint64_t op, uint64_t first, const float *x, uint64_t n, void *wire) {
    if (q == NULL || q->size != sizeof *q || !known(q->wire) || (q->flags & ~(RG_QUANT_STOCHASTIC | RG_QUANT_SATURATE)))
        return RG_ERR_INVALID;
    if (!(q->scale >= 0.0f) || isinf(q->scale)) return RG_ERR_INVALID;
    if (n == 0) return RG_OK;
    if (x == NULL || wire == NULL) return RG_ERR_INVALID;
    rg_code_t c = code_of(q, op);
    return table()->encode[q->wire](&c, first, x, n, wire) ? RG_OK : RG_ERR_INVALID;
}

rg_status_t rg_quant_decode(rg_wire_t wire, const void *bytes, uint64_t n, float *out) {
    if (!known(wire) || (n != 0 && (bytes == NULL || out == NULL))) return RG_ERR_INVALID;
    table()->decode[wire](bytes, n, out);
    return RG_OK;
}

rg_status_t rg_quant_decode_add(rg_wire_t wire, const void *bytes, uint64_t n, float *out) {
    if (!known(wire) || (n != 0 && (bytes == NULL || out == NULL))) return RG_ERR_INVALID;
    table()->decode_add[wire](bytes, n, out);
    return RG_OK;
}

/* ---- Bounds ------------------------------------------------------------------------------------------------------ */

/* Half the widest step of a block with this scale. What is beyond the largest element because the scale was rounded
 * down, or is a power of two, is counted in. */
static double half_step(rg_wire_t wire, double scale) {
    switch (wire) {
    case RG_WIRE_I8:
    case RG_WIRE_I8_MINMAX: return scale / 2;
    case RG_WIRE_I4: return scale / 2 + scale * 7 / 2048 + 0x1p-25 * 7;
    case RG_WIRE_I2: return scale / 3 + scale / 2048 + 0x1p-25;
    case RG_WIRE_TERNARY: return scale / 2;
    case RG_WIRE_E4M3: return scale * 16;
    case RG_WIRE_E5M2: return scale * 4096;
    case RG_WIRE_MXFP8: return scale * 64;
    case RG_WIRE_MXFP8_E5M2: return scale * 8192;
    default: return scale * 2;
    }
}

/* A stored scale, or the magnitude of a 16-bit element, from its bits. These order like the numbers, so the largest of
 * many is looked for among the bits. */
static double value_of(rg_wire_t wire, uint32_t bits) {
    float s = 0;
    if (wire == RG_WIRE_I4 || wire == RG_WIRE_I2 || wire == RG_WIRE_F16) {
        uint32_t e = bits >> 10 & 31, m = bits & 1023;
        return e != 0 ? ldexp(1024 + m, (int)e - 25) : ldexp(m, -24);
    }
    if (forms[wire].scale_bytes == 1) return ldexp(1, (int)bits - 127);
    if (wire == RG_WIRE_BF16) bits <<= 16;
    memcpy(&s, &bits, sizeof s);
    return (double)s;
}

static uint32_t magnitude_at(const uint8_t *w, uint32_t bytes) {
    uint32_t bits;
    if (bytes == 1) return w[0];
    if (bytes == 2) return ((uint32_t)w[0] | (uint32_t)w[1] << 8) & 0x7fffu;
    memcpy(&bits, w, sizeof bits);
    return bits & 0x7fffffffu;
}

/* The two 16-bit floats, whose step depends on the element. */
static double bound_16(rg_wire_t wire, const uint8_t *w, uint64_t n) {
    uint16_t top = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t m;
        memcpy(&m, w + 2 * i, sizeof m);
        m &= 0x7fff;
        top = m > top ? m : top;
    }
    double most = value_of(wire, top);
    return wire == RG_WIRE_BF16 ? fmax(most * (0x1p-8 + 0x1p-15), 0x1p-134) : fmax(most * (0x1p-11 + 0x1p-21), 0x1p-25);
}

double rg_quant_bound(const rg_quant_t *q, const void *bytes, uint64_t n) {
    if (q == NULL || !known(q->wire)) return -1;
    if (n == 0) return 0;
    const form_t *f = &forms[q->wire];
    const uint8_t *w = bytes;
    double most, largest = 0;
    if (f->scale_bytes == 0) {
        most = bound_16(q->wire, w, n);
    } else {
        uint32_t scale = 0, least = 0, wide = q->wire == RG_WIRE_I8_MINMAX ? 4 : 0;
        uint64_t blocks = f->block == 0 ? 1 : n / f->block + (n % f->block != 0), step = block_bytes(f, f->block);
        for (; blocks != 0; blocks--, w += step) {
            uint32_t s = magnitude_at(w + wide, f->scale_bytes - wide), m = wide != 0 ? magnitude_at(w, 4) : 0;
            scale = s > scale ? s : scale;
            least = m > least ? m : least;
        }
        most = half_step(q->wire, value_of(q->wire, scale));
        largest = wide != 0 ? value_of(q->wire, least) + 510 * most : most * 256;
    }
    /* The arithmetic of the codec rounds to f32 as well, a few times, and a scale among the subnormals, which may be
     * rounded by half the smallest of them, is taken up to 57344 times. */
    return most * (q->flags & RG_QUANT_STOCHASTIC ? 2 : 1) + largest * 0x1p-22 + 0x1p-134;
}
