/* avx512.c: kernels for CPUs with AVX-512 F, BW, DQ and VL. Only the operations on one vector are here; the loops are
 * in simd.h. Relies on scalar.c for heads and tails. It must not use the bf16 conversion of the CPU, which flushes
 * subnormals, nor anything else whose result differs from the reference. */
#include "kernels/internal.h"

#ifdef __x86_64__
#include <immintrin.h>

#define LEVEL rg_kernels_avx512
#define LEVEL_NAME "avx512"
#define TGT __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define VB 64
typedef __m512i V;
typedef __m512 VF;
typedef __m512d VD;

#define OP TGT static inline __attribute__((always_inline))

/* The names of this level's instructions, so that simd.h can hold what differs in nothing else. */
#define MM(f) _mm512_##f
#define SI(f) _mm512_##f##_si512
#define F32_BITS _mm512_castps_si512
#define BITS_F32 _mm512_castsi512_ps
#define F64_BITS _mm512_castpd_si512
#define BITS_F64 _mm512_castsi512_pd
#define ASM_REG "v"

/* RANGE gives the smaller (4) or larger (5) operand and orders zeros by their sign; a NaN is put in. */
OP VF vmin_f32(VF x, VF y) {
    return _mm512_mask_range_ps(BITS_F32(_mm512_set1_epi32((int)RG_CANONICAL_NAN_F32)),
                                _mm512_cmp_ps_mask(x, y, _CMP_ORD_Q), x, y, 4);
}

OP VD vmin_f64(VD x, VD y) {
    return _mm512_mask_range_pd(BITS_F64(_mm512_set1_epi64((long long)RG_CANONICAL_NAN_F64)),
                                _mm512_cmp_pd_mask(x, y, _CMP_ORD_Q), x, y, 4);
}

OP VF vmax_f32(VF x, VF y) {
    return _mm512_mask_range_ps(BITS_F32(_mm512_set1_epi32((int)RG_CANONICAL_NAN_F32)),
                                _mm512_cmp_ps_mask(x, y, _CMP_ORD_Q), x, y, 5);
}

OP VD vmax_f64(VD x, VD y) {
    return _mm512_mask_range_pd(BITS_F64(_mm512_set1_epi64((long long)RG_CANONICAL_NAN_F64)),
                                _mm512_cmp_pd_mask(x, y, _CMP_ORD_Q), x, y, 5);
}

/* ---- Integers ---------------------------------------------------------------------------------------------------- */

OP V mul64(V x, V y) { return _mm512_mullo_epi64(x, y); }

OP V min_i64(V x, V y) { return _mm512_min_epi64(x, y); }

OP V max_i64(V x, V y) { return _mm512_max_epi64(x, y); }

OP V min_u64(V x, V y) { return _mm512_min_epu64(x, y); }

OP V max_u64(V x, V y) { return _mm512_max_epu64(x, y); }

/* By the upper bit of a lane of c: y where it is set, else x. */
OP V pick8(V c, V x, V y) { return _mm512_mask_mov_epi8(x, _mm512_movepi8_mask(c), y); }

OP V pick16(V c, V x, V y) { return _mm512_mask_mov_epi16(x, _mm512_movepi16_mask(c), y); }

/* y where the lane of m (not negative) is above limit, else x. */
OP V above8(V m, int limit, V x, V y) {
    return _mm512_mask_mov_epi8(x, _mm512_cmpgt_epi8_mask(m, _mm512_set1_epi8((char)limit)), y);
}

OP V above16(V m, int limit, V x, V y) {
    return _mm512_mask_mov_epi16(x, _mm512_cmpgt_epi16_mask(m, _mm512_set1_epi16((short)limit)), y);
}

/* Whether any lane of m (not negative) is above limit. */
OP int any_above8(V m, int limit) { return _mm512_cmpgt_epi8_mask(m, _mm512_set1_epi8((char)limit)) != 0; }

/* Even lanes of x and odd lanes of y. */
OP V weave8(V x, V y) { return _mm512_mask_mov_epi8(x, 0xaaaaaaaaaaaaaaaaull, y); }

/* The signs of bytes put on magnitudes. */
OP V with_signs(V m, V signs) { return _mm512_ternarylogic_epi32(m, signs, _mm512_set1_epi8((char)0x80), 0xf8); }

OP V weave16(V x, V y) { return _mm512_mask_mov_epi16(x, 0xaaaaaaaau, y); }

/* ---- 16-bit floats ---------------------------------------------------------------------------------------------- */

OP VF widen_f16(const char *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }

OP void narrow_f16(char *p, VF v) { _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }

OP VF widen_bf16(const char *p) {
    V u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}

/* The upper halves h of f32 whose lower halves are l, rounded to nearest even: up when l is above one half, or is one
 * half and h odd. A NaN stays as it is, quieted; where it comes from arithmetic, `quiet`, it already is, so that the
 * upper half shows it. */
OP V round_bf16(V h, V l, int quiet) {
    V one = _mm512_set1_epi16(1), sum = _mm512_adds_epu16(l, _mm512_and_si512(h, one));
    V m = _mm512_and_si512(h, _mm512_set1_epi16(0x7fff)), inf = _mm512_set1_epi16(0x7f80);
    __mmask32 number = _mm512_cmple_epi16_mask(m, inf);
    if (!quiet) number &= ~_mm512_mask_test_epi16_mask(_mm512_cmpeq_epi16_mask(m, inf), l, l);
    __mmask32 up = _mm512_mask_cmpgt_epu16_mask(number, sum, _mm512_set1_epi16((short)0x8000));
    V rounded = _mm512_mask_add_epi16(h, up, h, one);
    return quiet ? rounded : _mm512_mask_mov_epi16(_mm512_or_si512(h, _mm512_set1_epi16(0x40)), number, rounded);
}

OP void narrow_bf16(char *p, VF x, VF y, int quiet) {
    const V odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23,
                                   21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    V u = _mm512_castps_si512(x), v = _mm512_castps_si512(y), even = _mm512_sub_epi16(odd, _mm512_set1_epi16(1));
    V h = _mm512_permutex2var_epi16(u, odd, v), l = _mm512_permutex2var_epi16(u, even, v);
    _mm512_storeu_si512((void *)p, round_bf16(h, l, quiet));
}

/* ---- 8-bit floats ------------------------------------------------------------------------------------------------ */

/* They go through f16, which holds both exactly (e4m3 divided by 256, so that its subnormals are subnormals), and of
 * which there are twice as many in a vector. The conversions of the CPU do not depend on its modes for subnormals. */
/* Two vectors of f16 halves as one. */
OP V join_f16(VF x, VF y) {
    __m256i hx = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT), hy = _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT);
    return _mm512_inserti64x4(_mm512_castsi256_si512(hx), hy, 1);
}

OP V repeat16(const void *p) { return _mm512_broadcast_i32x4(_mm_loadu_si128(p)); }

OP V load_bytes(const char *p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)p)); }

OP void store_bytes(char *p, V v) { _mm256_storeu_si256((void *)p, _mm512_cvtepi16_epi8(v)); }

OP VF widen_low(V h) { return _mm512_cvtph_ps(_mm512_castsi512_si256(h)); }

OP VF widen_high(V h) { return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1)); }

/* The sign was extended into the place of the exponent's upper bit, which a NaN gets back. */
OP V h_of_e4m3(V b) {
    V h = _mm512_and_si512(_mm512_slli_epi16(b, 7), _mm512_set1_epi16((short)0xbfff)), most = _mm512_set1_epi16(0x3f80);
    __mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(h, most), most);
    return _mm512_mask_add_epi16(h, nan, h, _mm512_set1_epi16(0x4000));
}

OP V h_of_e5m2(V b) { return _mm512_slli_epi16(b, 8); }

/* Rounded to odd: cut off, and the last bit set where something was cut. Rounding that again, to fewer bits, gives what
 * rounding once would. */
OP V narrow_odd(VF x, VF y) {
    __m256i hx = _mm512_cvtps_ph(x, _MM_FROUND_TO_ZERO), hy = _mm512_cvtps_ph(y, _MM_FROUND_TO_ZERO);
    __mmask16 cut_x = _mm512_cmp_ps_mask(x, _mm512_cvtph_ps(hx), _CMP_NEQ_OQ);
    __mmask16 cut_y = _mm512_cmp_ps_mask(y, _mm512_cvtph_ps(hy), _CMP_NEQ_OQ);
    V h = _mm512_inserti64x4(_mm512_castsi256_si512(hx), hy, 1);
    V odd = _mm512_maskz_set1_epi16(_mm512_kunpackw(cut_y, cut_x), 1);
    return _mm512_or_si512(h, odd);
}

/* The sign of h and the rest of t. */
OP V with_sign(V t, V h, int sign) { return _mm512_ternarylogic_epi32(t, h, _mm512_set1_epi16((short)sign), 0xf8); }

OP V e4m3_of_h(V h) {
    V m = _mm512_and_si512(h, _mm512_set1_epi16(0x7fff));
    V t = _mm512_min_epi16(m, _mm512_set1_epi16(0x3f00)); /* 448 / 256 */
    V odd = _mm512_and_si512(_mm512_srli_epi16(t, 7), _mm512_set1_epi16(1));
    t = _mm512_srli_epi16(_mm512_add_epi16(_mm512_add_epi16(t, odd), _mm512_set1_epi16(0x3f)), 7);
    t = _mm512_mask_mov_epi16(t, _mm512_cmpgt_epi16_mask(m, _mm512_set1_epi16(0x7c00)), _mm512_set1_epi16(0x7f));
    return with_sign(t, _mm512_srli_epi16(h, 8), 0x80);
}

OP V e5m2_of_h(V h) {
    V m = _mm512_and_si512(h, _mm512_set1_epi16(0x7fff));
    V t = _mm512_min_epi16(m, _mm512_set1_epi16(0x7b00)); /* 57344 */
    V odd = _mm512_and_si512(_mm512_srli_epi16(t, 8), _mm512_set1_epi16(1));
    t = _mm512_add_epi16(_mm512_add_epi16(t, odd), _mm512_set1_epi16(0x7f));
    t = _mm512_mask_mov_epi16(t, _mm512_cmpgt_epi16_mask(m, _mm512_set1_epi16(0x7bff)), m);
    return _mm512_srli_epi16(with_sign(t, h, 0x8000), 8);
}

/* Where the product p of finite x and y is infinite, the largest finite value: one below in the bits. */
OP VF saturated(VF p, VF x, VF y) {
    enum { INFINITIES = 0x18 };
    __mmask16 in = _mm512_fpclass_ps_mask(x, INFINITIES) | _mm512_fpclass_ps_mask(y, INFINITIES);
    __mmask16 out = _mm512_fpclass_ps_mask(p, INFINITIES);
    V bits = _mm512_castps_si512(p);
    return _mm512_castsi512_ps(_mm512_mask_sub_epi32(bits, _kandn_mask16(in, out), bits, _mm512_set1_epi32(1)));
}

#include "kernels/simd.h"

#endif
