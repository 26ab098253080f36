/* avx2.c: kernels for CPUs with AVX2 and F16C. Only the operations on one vector are here; the loops are in simd.h.
 * Relies on scalar.c for heads and tails. It must not use anything whose result differs from the reference. */
#include "kernels/internal.h"

#ifdef __x86_64__
#include <immintrin.h>

#define LEVEL rg_kernels_avx2
#define LEVEL_NAME "avx2"
#define TGT __attribute__((target("avx2,f16c")))
#define VB 32
typedef __m256i V;
typedef __m256 VF;
typedef __m256d VD;

#define OP TGT static inline __attribute__((always_inline))

OP V vload(const char *p) { return _mm256_loadu_si256((const void *)p); }

OP void vstore(char *p, V v) { _mm256_storeu_si256((void *)p, v); }

#define VSTREAM(p, v) _mm256_stream_si256((void *)(p), v)
#define VSET_f32 _mm256_set1_ps
#define VMUL_f32 _mm256_mul_ps
#define VLOAD_f32 _mm256_loadu_ps
#define VSTORE_f32 _mm256_storeu_ps
#define VSET_f64 _mm256_set1_pd
#define VMUL_f64 _mm256_mul_pd
#define VLOAD_f64 _mm256_loadu_pd
#define VSTORE_f64 _mm256_storeu_pd

/* Written out because compilers may swap the operands of an intrinsic, and with them the payload of a NaN. */
#define FLOAT_ASM(name, VT, insn)                                                                                      \
    OP VT name(VT x, VT y) {                                                                                           \
        VT r;                                                                                                          \
        __asm__(insn " %2, %1, %0" : "=x"(r) : "x"(x), "x"(y));                                                        \
        return r;                                                                                                      \
    }
FLOAT_ASM(vadd_f32, VF, "vaddps")
FLOAT_ASM(vmul_f32, VF, "vmulps")
FLOAT_ASM(vadd_f64, VD, "vaddpd")
FLOAT_ASM(vmul_f64, VD, "vmulpd")

/* The CPU's MIN and MAX return the second operand for NaN and for zeros of either sign. Asking both ways round and
 * joining the bits (OR keeps the minus for MIN, AND drops it for MAX) orders the zeros; NaN is put in afterwards. */
OP VF vmin_f32(VF x, VF y) {
    VF both = _mm256_or_ps(_mm256_min_ps(x, y), _mm256_min_ps(y, x));
    VF nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)RG_CANONICAL_NAN_F32));
    return _mm256_blendv_ps(both, nan, _mm256_cmp_ps(x, y, _CMP_UNORD_Q));
}

OP VD vmin_f64(VD x, VD y) {
    VD both = _mm256_or_pd(_mm256_min_pd(x, y), _mm256_min_pd(y, x));
    VD nan = _mm256_castsi256_pd(_mm256_set1_epi64x((long long)RG_CANONICAL_NAN_F64));
    return _mm256_blendv_pd(both, nan, _mm256_cmp_pd(x, y, _CMP_UNORD_Q));
}

OP VF vmax_f32(VF x, VF y) {
    VF both = _mm256_and_ps(_mm256_max_ps(x, y), _mm256_max_ps(y, x));
    VF nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)RG_CANONICAL_NAN_F32));
    return _mm256_blendv_ps(both, nan, _mm256_cmp_ps(x, y, _CMP_UNORD_Q));
}

OP VD vmax_f64(VD x, VD y) {
    VD both = _mm256_and_pd(_mm256_max_pd(x, y), _mm256_max_pd(y, x));
    VD nan = _mm256_castsi256_pd(_mm256_set1_epi64x((long long)RG_CANONICAL_NAN_F64));
    return _mm256_blendv_pd(both, nan, _mm256_cmp_pd(x, y, _CMP_UNORD_Q));
}

/* ---- By type, on integer registers ----------------------------------------------------------------------------- */

#define CASTED(op, T, f, s)                                                                                            \
    OP V v_##op##_##T(V x, V y) { return _mm256_cast##s##_si256(f(_mm256_castsi256_##s(x), _mm256_castsi256_##s(y))); }
CASTED(sum, float, vadd_f32, ps)
CASTED(prod, float, vmul_f32, ps)
CASTED(min, float, vmin_f32, ps)
CASTED(max, float, vmax_f32, ps)
CASTED(sum, double, vadd_f64, pd)
CASTED(prod, double, vmul_f64, pd)
CASTED(min, double, vmin_f64, pd)
CASTED(max, double, vmax_f64, pd)

/* There is no product of bytes: even and odd bytes are multiplied as 16-bit lanes, and the low halves joined. */
OP V mul8(V x, V y) {
    V even = _mm256_mullo_epi16(x, y);
    V odd = _mm256_mullo_epi16(_mm256_srli_epi16(x, 8), _mm256_srli_epi16(y, 8));
    return _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(0xff)), _mm256_slli_epi16(odd, 8));
}

/* AVX2 has no 64-bit product, minimum or maximum. x*y mod 2^64 = lo*lo + 2^32 * (hi*lo + lo*hi). */
OP V mul64(V x, V y) {
    V left = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), y), right = _mm256_mul_epu32(x, _mm256_srli_epi64(y, 32));
    V cross = _mm256_add_epi64(left, right);
    return _mm256_add_epi64(_mm256_mul_epu32(x, y), _mm256_slli_epi64(cross, 32));
}

/* Unsigned order is signed order with the top bit flipped. */
OP V greater_i64(V x, V y) { return _mm256_cmpgt_epi64(x, y); }

OP V greater_u64(V x, V y) {
    V top = _mm256_set1_epi64x((long long)(1ull << 63));
    return _mm256_cmpgt_epi64(_mm256_xor_si256(x, top), _mm256_xor_si256(y, top));
}

#define INT(op, T, expr)                                                                                               \
    OP V v_##op##_##T(V x, V y) { return expr; }
INT(sum, int8_t, _mm256_add_epi8(x, y))
INT(prod, int8_t, mul8(x, y))
INT(min, int8_t, _mm256_min_epi8(x, y))
INT(max, int8_t, _mm256_max_epi8(x, y))
INT(sum, uint8_t, _mm256_add_epi8(x, y))
INT(prod, uint8_t, mul8(x, y))
INT(min, uint8_t, _mm256_min_epu8(x, y))
INT(max, uint8_t, _mm256_max_epu8(x, y))
INT(sum, int32_t, _mm256_add_epi32(x, y))
INT(prod, int32_t, _mm256_mullo_epi32(x, y))
INT(min, int32_t, _mm256_min_epi32(x, y))
INT(max, int32_t, _mm256_max_epi32(x, y))
INT(sum, uint32_t, _mm256_add_epi32(x, y))
INT(prod, uint32_t, _mm256_mullo_epi32(x, y))
INT(min, uint32_t, _mm256_min_epu32(x, y))
INT(max, uint32_t, _mm256_max_epu32(x, y))
INT(sum, int64_t, _mm256_add_epi64(x, y))
INT(prod, int64_t, mul64(x, y))
INT(min, int64_t, _mm256_blendv_epi8(x, y, greater_i64(x, y)))
INT(max, int64_t, _mm256_blendv_epi8(y, x, greater_i64(x, y)))
INT(sum, uint64_t, _mm256_add_epi64(x, y))
INT(prod, uint64_t, mul64(x, y))
INT(min, uint64_t, _mm256_blendv_epi8(x, y, greater_u64(x, y)))
INT(max, uint64_t, _mm256_blendv_epi8(y, x, greater_u64(x, y)))

/* ---- 16-bit floats ---------------------------------------------------------------------------------------------- */

OP VF widen_f16(const char *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }

OP void narrow_f16(char *p, VF v) { _mm_storeu_si128((void *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }

OP VF widen_bf16(const char *p) {
    V u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}

/* Round to nearest even on the bits: add just under half, and one more when the kept part is odd. */
OP void narrow_bf16(char *p, VF v) {
    V u = _mm256_castps_si256(v), top = _mm256_srli_epi32(u, 16);
    V odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    V rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    V quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
    /* Packing works within 128-bit lanes, so the two useful quarters are brought together. */
    V packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
    _mm_storeu_si128((void *)p, _mm256_castsi256_si128(packed));
}

/* ---- 8-bit floats ------------------------------------------------------------------------------------------------ */

/* They go through f16, which holds both exactly (e4m3 divided by 256, so that its subnormals are subnormals), and of
 * which there are twice as many in a vector. The conversions of the CPU do not depend on its modes for subnormals. */
OP V load_bytes(const char *p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)p)); }

OP void store_bytes(char *p, V v) {
    V packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(v, v), 0x08);
    _mm_storeu_si128((void *)p, _mm256_castsi256_si128(packed));
}

OP VF widen_low(V h) { return _mm256_cvtph_ps(_mm256_castsi256_si128(h)); }

OP VF widen_high(V h) { return _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)); }

/* The sign was extended into the place of the exponent's upper bit, which a NaN gets back. */
OP V h_of_e4m3(V b) {
    V h = _mm256_and_si256(_mm256_slli_epi16(b, 7), _mm256_set1_epi16((short)0xbfff));
    V most = _mm256_set1_epi16(0x3f80), nan = _mm256_cmpeq_epi16(_mm256_and_si256(h, most), most);
    return _mm256_or_si256(h, _mm256_and_si256(nan, _mm256_set1_epi16(0x4000)));
}

OP V h_of_e5m2(V b) { return _mm256_slli_epi16(b, 8); }

/* Rounded to odd: cut off, and the last bit set where something was cut. Rounding that again, to fewer bits, gives what
 * rounding once would. */
OP V narrow_odd(VF x, VF y) {
    __m128i hx = _mm256_cvtps_ph(x, _MM_FROUND_TO_ZERO), hy = _mm256_cvtps_ph(y, _MM_FROUND_TO_ZERO);
    V cut_x = _mm256_castps_si256(_mm256_cmp_ps(x, _mm256_cvtph_ps(hx), _CMP_NEQ_OQ));
    V cut_y = _mm256_castps_si256(_mm256_cmp_ps(y, _mm256_cvtph_ps(hy), _CMP_NEQ_OQ));
    V cut = _mm256_permute4x64_epi64(_mm256_packs_epi32(cut_x, cut_y), 0xd8);
    return _mm256_or_si256(_mm256_set_m128i(hy, hx), _mm256_and_si256(cut, _mm256_set1_epi16(1)));
}

OP V e4m3_of_h(V h) {
    V m = _mm256_and_si256(h, _mm256_set1_epi16(0x7fff)), nan = _mm256_cmpgt_epi16(m, _mm256_set1_epi16(0x7c00));
    V t = _mm256_min_epi16(m, _mm256_set1_epi16(0x3f00)); /* 448 / 256 */
    V odd = _mm256_and_si256(_mm256_srli_epi16(t, 7), _mm256_set1_epi16(1));
    t = _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(t, odd), _mm256_set1_epi16(0x3f)), 7);
    t = _mm256_or_si256(t, _mm256_and_si256(nan, _mm256_set1_epi16(0x7f)));
    return _mm256_or_si256(t, _mm256_and_si256(_mm256_srli_epi16(h, 8), _mm256_set1_epi16(0x80)));
}

OP V e5m2_of_h(V h) {
    V m = _mm256_and_si256(h, _mm256_set1_epi16(0x7fff)), special = _mm256_cmpgt_epi16(m, _mm256_set1_epi16(0x7bff));
    V t = _mm256_min_epi16(m, _mm256_set1_epi16(0x7b00)); /* 57344 */
    V odd = _mm256_and_si256(_mm256_srli_epi16(t, 8), _mm256_set1_epi16(1));
    t = _mm256_add_epi16(_mm256_add_epi16(t, odd), _mm256_set1_epi16(0x7f));
    t = _mm256_blendv_epi8(t, m, special);
    t = _mm256_or_si256(t, _mm256_and_si256(h, _mm256_set1_epi16((short)0x8000)));
    return _mm256_srli_epi16(t, 8);
}

/* Where the product p of finite x and y is infinite, the largest finite value: one below in the bits. */
OP VF saturated(VF p, VF x, VF y) {
    V all = _mm256_set1_epi32(0x7fffffff), inf = _mm256_set1_epi32(0x7f800000);
    V pi = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(p), all), inf);
    V xi = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(x), all), inf);
    V yi = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(y), all), inf);
    V less = _mm256_andnot_si256(_mm256_or_si256(xi, yi), pi);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), less));
}

#include "kernels/simd.h"

#endif
