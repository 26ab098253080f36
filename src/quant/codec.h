/* codec.h: what the codec files share: the table of one SIMD level, and the constants of the wire forms. Included by
 * src/quant only. The rules that make all levels give the same bytes: every float operation is one IEEE operation,
 * divisions are divisions (no reciprocals), nothing is contracted, maxima are taken on the bits as integers, and random
 * numbers are integer arithmetic on the element's number. */
#ifndef RG_CODEC_H
#define RG_CODEC_H

#include "regroup_quant.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#define RG_CODE_I8_BLOCK 256u
#define RG_CODE_FP8_BLOCK 128u
#define RG_CODE_SMALL_BLOCK 32u
/* Ternary: five rows of this many elements make as many bytes, element k of row r being digit r of byte k. */
#define RG_CODE_TRITS 64u

typedef struct rg_code {
    uint32_t key[2];
    int stochastic, saturate;
    float scale; /* ternary */
} rg_code_t;

/* Encodes n elements, all blocks of them; 0 when one is not finite and may not be. first numbers x[0]. */
typedef int (*rg_encode_fn)(const rg_code_t *c, uint64_t first, const float *x, uint64_t n, uint8_t *w);
typedef void (*rg_decode_fn)(const uint8_t *w, uint64_t n, float *out);

/* Whole multiples of s from -most to most, and s itself 0 for zeroes. */
typedef void (*rg_levels_fn)(const rg_code_t *c, uint64_t first, const float *x, uint64_t n, float s, int32_t most,
                             int8_t *q);

typedef struct rg_codec_table {
    rg_encode_fn encode[RG_WIRE_COUNT];
    rg_decode_fn decode[RG_WIRE_COUNT], decode_add[RG_WIRE_COUNT];
    rg_levels_fn levels;
} rg_codec_table_t;

extern const rg_codec_table_t rg_codecs_scalar;
#ifdef __x86_64__
extern const rg_codec_table_t rg_codecs_avx2;
extern const rg_codec_table_t rg_codecs_avx512;
#endif

/* Whole multiples of s by the rounding of q: what a wire form would hold, with a scale from elsewhere. */
void rg_quant_levels(const rg_quant_t *q, uint64_t op, uint64_t first, const float *x, uint64_t n, float s,
                     int32_t most, int8_t *to);

#endif
