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

/* The names of this level's instructions, so that simd.h can hold what differs in nothing else. */
#define MM(f) _mm256_##f
#define SI(f) _mm256_##f##_si256
#define F32_BITS _mm256_castps_si256
#define BITS_F32 _mm256_castsi256_ps
#define F64_BITS _mm256_castpd_si256
#define BITS_F64 _mm256_castsi256_pd
#define ASM_REG "x"

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

/* ---- Integers ---------------------------------------------------------------------------------------------------- */

/* AVX2 has no 64-bit product, minimum or maximum. x*y mod 2^64 = lo*lo + 2^32 * (hi*lo + lo*hi). */
OP V mul64(V x, V y) {
    V left = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), y), right = _mm256_mul_epu32(x, _mm256_srli_epi64(y, 32));
    V cross = _mm256_add_epi64(left, right);
    return _mm256_add_epi64(_mm256_mul_epu32(x, y), _mm256_slli_epi64(cross, 32));
}

OP V min_i64(V x, V y) { return _mm256_blendv_epi8(x, y, _mm256_cmpgt_epi64(x, y)); }

OP V max_i64(V x, V y) { return _mm256_blendv_epi8(y, x, _mm256_cmpgt_epi64(x, y)); }

/* Unsigned order is signed order with the top bit flipped. */
OP V greater_u64(V x, V y) {
    V top = _mm256_set1_epi64x((long long)(1ull << 63));
    return _mm256_cmpgt_epi64(_mm256_xor_si256(x, top), _mm256_xor_si256(y, top));
}

OP V min_u64(V x, V y) { return _mm256_blendv_epi8(x, y, greater_u64(x, y)); }

OP V max_u64(V x, V y) { return _mm256_blendv_epi8(y, x, greater_u64(x, y)); }

/* By the upper bit of a lane of c: y where it is set, else x. */
OP V pick8(V c, V x, V y) { return _mm256_blendv_epi8(x, y, c); }

OP V pick16(V c, V x, V y) { return _mm256_blendv_epi8(x, y, _mm256_srai_epi16(c, 15)); }

/* y where the lane of m (not negative) is above limit, else x. */
OP V above8(V m, int limit, V x, V y) {
    return _mm256_blendv_epi8(x, y, _mm256_cmpgt_epi8(m, _mm256_set1_epi8((char)limit)));
}

OP V above16(V m, int limit, V x, V y) {
    return _mm256_blendv_epi8(x, y, _mm256_cmpgt_epi16(m, _mm256_set1_epi16((short)limit)));
}

/* Whether any lane of m (not negative) is above limit. */
OP int any_above8(V m, int limit) {
    return _mm256_movemask_epi8(_mm256_cmpgt_epi8(m, _mm256_set1_epi8((char)limit))) != 0;
}

/* Even lanes of x and odd lanes of y. */
OP V weave8(V x, V y) { return _mm256_blendv_epi8(x, y, _mm256_set1_epi16((short)0xff00)); }

/* The signs of bytes put on magnitudes. */
OP V with_signs(V m, V signs) { return _mm256_or_si256(m, _mm256_and_si256(signs, _mm256_set1_epi8((char)0x80))); }

OP V weave16(V x, V y) { return _mm256_blend_epi16(x, y, 0xaa); }

/* ---- 16-bit floats ---------------------------------------------------------------------------------------------- */

OP VF widen_f16(const char *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }

OP void narrow_f16(char *p, VF v) { _mm_storeu_si128((void *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }

OP VF widen_bf16(const char *p) {
    V u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}

/* The upper halves h of f32 whose lower halves are l, rounded to nearest even: up when l is above one half, or is one
 * half and h odd. A NaN stays as it is, quieted; where it comes from arithmetic, `quiet`, it already is, so that the
 * upper half shows it. */
OP V round_bf16(V h, V l, int quiet) {
    V one = _mm256_set1_epi16(1), half = _mm256_set1_epi16((short)0x8000), inf = _mm256_set1_epi16(0x7f80);
    V sum = _mm256_adds_epu16(l, _mm256_and_si256(h, one)), m = _mm256_and_si256(h, _mm256_set1_epi16(0x7fff));
    V down = _mm256_cmpeq_epi16(_mm256_min_epu16(sum, half), sum), nan = _mm256_cmpgt_epi16(m, inf);
    if (quiet) return _mm256_add_epi16(h, _mm256_andnot_si256(_mm256_or_si256(down, nan), one));
    V up = _mm256_add_epi16(_mm256_add_epi16(h, one), down);
    V whole = _mm256_cmpeq_epi16(l, _mm256_setzero_si256());
    nan = _mm256_or_si256(nan, _mm256_andnot_si256(whole, _mm256_cmpeq_epi16(m, inf)));
    return _mm256_blendv_epi8(up, _mm256_or_si256(h, _mm256_set1_epi16(0x40)), nan);
}

OP void narrow_bf16(char *p, VF x, VF y, int quiet) {
    V u = _mm256_castps_si256(x), v = _mm256_castps_si256(y), low = _mm256_set1_epi32(0xffff);
    V h = _mm256_packus_epi32(_mm256_srli_epi32(u, 16), _mm256_srli_epi32(v, 16));
    V l = _mm256_packus_epi32(_mm256_and_si256(u, low), _mm256_and_si256(v, low));
    /* Packing works within 128-bit lanes, so the quarters are put in order. */
    _mm256_storeu_si256((void *)p, _mm256_permute4x64_epi64(round_bf16(h, l, quiet), 0xd8));
}

/* ---- 8-bit floats ------------------------------------------------------------------------------------------------ */

/* They go through f16, which holds both exactly (e4m3 divided by 256, so that its subnormals are subnormals), and of
 * which there are twice as many in a vector. The conversions of the CPU do not depend on its modes for subnormals. */
/* Two vectors of f16 halves as one. */
OP V join_f16(VF x, VF y) {
    return _mm256_set_m128i(_mm256_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

OP V repeat16(const void *p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(p)); }

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
