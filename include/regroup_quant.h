/* regroup_quant.h: fewer bits on the wire. Codecs that turn f32 into blocks of small numbers with a scale each, and
 * back, so that the same input gives the same bytes on every machine, at every SIMD level, every time. Nothing is ever
 * quantised unless the caller asks for it by these calls.
 *
 * A wire form, for n elements, is a row of blocks; the last one may be short. Bits per element include the scale:
 *
 *   RG_WIRE_F16         16     1      rounded to nearest even, finite values beyond the range to the largest finite one
 *   RG_WIRE_BF16        16     1      likewise
 *   RG_WIRE_I8          8.125  256    f32 scale s = max|x| / 127, s * q with q in -127..127
 *   RG_WIRE_I8_MINMAX   8.25   256    f32 least value m and step s = (max - m) / 255, m + s * q with q in 0..255
 *   RG_WIRE_I4          4.5    32     f16 scale s = max|x| / 7, s * q with q in -7..7
 *   RG_WIRE_I2          2.5    32     f16 scale s = max|x|, one of -s, -s/3, s/3, s (there is no 0 unless s is 0)
 *   RG_WIRE_TERNARY     1.6    all    f32 scale s for the whole call, -s, 0 or s; five of them in a byte
 *   RG_WIRE_E4M3        8.25   128    f32 scale s = max|x| / 448, s * (8-bit float, saturating)
 *   RG_WIRE_E5M2        8.25   128    f32 scale s = max|x| / 57344, likewise
 *   RG_WIRE_MXFP8       8.25   32     E8M0 scale (a power of two), E4M3 elements (OCP Microscaling Formats 1.0)
 *   RG_WIRE_MXFP8_E5M2  8.25   32     the same with E5M2 elements
 *   RG_WIRE_MXFP4       4.25   32     the same with E2M1 elements
 *
 * Rounding is to nearest even, or stochastic: up or down at random, so that the mean is right (of the two neighbours
 * that the format has). The random numbers are a function of seed, operation and element, so a repetition is equal.
 * Zero decodes to +0, whatever its sign was. f16 scales have a range: blocks whose scale is below 2^-25 become 0, and
 * where it would be above 65504 the largest elements are clipped; multiply such data first. */
#ifndef REGROUP_QUANT_H
#define REGROUP_QUANT_H

#include "regroup.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

typedef enum rg_wire {
    RG_WIRE_F16 = 1,
    RG_WIRE_BF16 = 2,
    RG_WIRE_I8 = 3,
    RG_WIRE_I8_MINMAX = 4,
    RG_WIRE_I4 = 5,
    RG_WIRE_I2 = 6,
    RG_WIRE_TERNARY = 7,
    RG_WIRE_E4M3 = 8,
    RG_WIRE_E5M2 = 9,
    RG_WIRE_MXFP8 = 10,
    RG_WIRE_MXFP8_E5M2 = 11,
    RG_WIRE_MXFP4 = 12,
    RG_WIRE_COUNT = 13
} rg_wire_t;

#define RG_QUANT_STOCHASTIC 1u
/* NaN counts as 0 and an infinity as the largest finite f32 of its sign. Without it they are an error. */
#define RG_QUANT_SATURATE 2u

typedef struct rg_quant {
    uint32_t size; /* sizeof(rg_quant_t) */
    rg_wire_t wire;
    uint32_t flags;
    uint64_t seed; /* RG_QUANT_STOCHASTIC: the same on all members for equal bits where that matters */
    float
        scale; /* RG_WIRE_TERNARY: the scale to use, for example the largest of all members'; 0: max|x| of this call */
} rg_quant_t;

#define RG_QUANT_INIT(w)                                                                                               \
    { (uint32_t)sizeof(rg_quant_t), (w), 0, 0, 0 }

/* "int8", "mxfp4", ...; NULL for no wire form. rg_wire_by_name() gives 0 for no name of one. Any thread. */
const char *rg_wire_name(rg_wire_t wire);
rg_wire_t rg_wire_by_name(const char *name);

/* Elements of a block; 0: a block has them all. */
uint64_t rg_quant_block(rg_wire_t wire);

/* Bytes of n elements; 0 when the wire form is unknown. */
uint64_t rg_quant_bytes(rg_wire_t wire, uint64_t n);

/* x[0..n) to wire[0..rg_quant_bytes()), which may not overlap. op and first number the operation and the element x[0]
 * for the random numbers; they do nothing without RG_QUANT_STOCHASTIC. RG_ERR_INVALID: an unknown wire form or flag, a
 * scale that is negative or not finite, or an x that is not finite without RG_QUANT_SATURATE (wire then holds
 * anything). Any thread; no memory is taken. */
rg_status_t rg_quant_encode(const rg_quant_t *q, uint64_t op, uint64_t first, const float *x, uint64_t n, void *wire);

/* The values of a wire form, to out[0..n), or added to what is there (out[i] + value, in f32). Bytes that no encoder
 * makes give some values, never an error or an access elsewhere. RG_ERR_INVALID: unknown wire form. Any thread. */
rg_status_t rg_quant_decode(rg_wire_t wire, const void *bytes, uint64_t n, float *out);
rg_status_t rg_quant_decode_add(rg_wire_t wire, const void *bytes, uint64_t n, float *out);

/* How far any decoded element may be from what was encoded, from the scales in the wire form: half a step where
 * rounding was to nearest, a whole one where it was stochastic. For RG_WIRE_TERNARY with a given scale it holds for
 * elements that are not beyond the scale. -1 for an unknown wire form. */
double rg_quant_bound(const rg_quant_t *q, const void *bytes, uint64_t n);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
