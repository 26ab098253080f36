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

OP V vload(const char *p) { return _mm512_loadu_si512((const void *)p); }

OP void vstore(char *p, V v) { _mm512_storeu_si512((void *)p, v); }

#define VSTREAM(p, v) _mm512_stream_si512((void *)(p), v)
#define VSET_f32 _mm512_set1_ps
#define VMUL_f32 _mm512_mul_ps
#define VLOAD_f32 _mm512_loadu_ps
#define VSTORE_f32 _mm512_storeu_ps
#define VSET_f64 _mm512_set1_pd
#define VMUL_f64 _mm512_mul_pd
#define VLOAD_f64 _mm512_loadu_pd
#define VSTORE_f64 _mm512_storeu_pd

/* Written out because compilers may swap the operands of an intrinsic, and with them the payload of a NaN. */
#define FLOAT_ASM(name, VT, insn)                                                                                      \
    OP VT name(VT x, VT y) {                                                                                           \
        VT r;                                                                                                          \
        __asm__(insn " %2, %1, %0" : "=v"(r) : "v"(x), "v"(y));                                                        \
        return r;                                                                                                      \
    }
FLOAT_ASM(vadd_f32, VF, "vaddps")
FLOAT_ASM(vmul_f32, VF, "vmulps")
FLOAT_ASM(vadd_f64, VD, "vaddpd")
FLOAT_ASM(vmul_f64, VD, "vmulpd")

/* The CPU's MIN and MAX return the second operand for NaN and for zeros of either sign. Asking both ways round and
 * joining the bits (OR keeps the minus for MIN, AND drops it for MAX) orders the zeros; NaN is put in afterwards. */
OP VF vmin_f32(VF x, VF y) {
    VF both = _mm512_or_ps(_mm512_min_ps(x, y), _mm512_min_ps(y, x));
    VF nan = _mm512_castsi512_ps(_mm512_set1_epi32((int)RG_CANONICAL_NAN_F32));
    return _mm512_mask_mov_ps(both, _mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q), nan);
}

OP VD vmin_f64(VD x, VD y) {
    VD both = _mm512_or_pd(_mm512_min_pd(x, y), _mm512_min_pd(y, x));
    VD nan = _mm512_castsi512_pd(_mm512_set1_epi64((long long)RG_CANONICAL_NAN_F64));
    return _mm512_mask_mov_pd(both, _mm512_cmp_pd_mask(x, y, _CMP_UNORD_Q), nan);
}

OP VF vmax_f32(VF x, VF y) {
    VF both = _mm512_and_ps(_mm512_max_ps(x, y), _mm512_max_ps(y, x));
    VF nan = _mm512_castsi512_ps(_mm512_set1_epi32((int)RG_CANONICAL_NAN_F32));
    return _mm512_mask_mov_ps(both, _mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q), nan);
}

OP VD vmax_f64(VD x, VD y) {
    VD both = _mm512_and_pd(_mm512_max_pd(x, y), _mm512_max_pd(y, x));
    VD nan = _mm512_castsi512_pd(_mm512_set1_epi64((long long)RG_CANONICAL_NAN_F64));
    return _mm512_mask_mov_pd(both, _mm512_cmp_pd_mask(x, y, _CMP_UNORD_Q), nan);
}

/* ---- By type, on integer registers ----------------------------------------------------------------------------- */

#define CASTED(op, T, f, s)                                                                                            \
    OP V v_##op##_##T(V x, V y) { return _mm512_cast##s##_si512(f(_mm512_castsi512_##s(x), _mm512_castsi512_##s(y))); }
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
    V even = _mm512_mullo_epi16(x, y);
    V odd = _mm512_mullo_epi16(_mm512_srli_epi16(x, 8), _mm512_srli_epi16(y, 8));
    return _mm512_or_si512(_mm512_and_si512(even, _mm512_set1_epi16(0xff)), _mm512_slli_epi16(odd, 8));
}

#define INT(op, T, expr)                                                                                               \
    OP V v_##op##_##T(V x, V y) { return expr; }
INT(sum, int8_t, _mm512_add_epi8(x, y))
INT(prod, int8_t, mul8(x, y))
INT(min, int8_t, _mm512_min_epi8(x, y))
INT(max, int8_t, _mm512_max_epi8(x, y))
INT(sum, uint8_t, _mm512_add_epi8(x, y))
INT(prod, uint8_t, mul8(x, y))
INT(min, uint8_t, _mm512_min_epu8(x, y))
INT(max, uint8_t, _mm512_max_epu8(x, y))
INT(sum, int32_t, _mm512_add_epi32(x, y))
INT(prod, int32_t, _mm512_mullo_epi32(x, y))
INT(min, int32_t, _mm512_min_epi32(x, y))
INT(max, int32_t, _mm512_max_epi32(x, y))
INT(sum, uint32_t, _mm512_add_epi32(x, y))
INT(prod, uint32_t, _mm512_mullo_epi32(x, y))
INT(min, uint32_t, _mm512_min_epu32(x, y))
INT(max, uint32_t, _mm512_max_epu32(x, y))
INT(sum, int64_t, _mm512_add_epi64(x, y))
INT(prod, int64_t, _mm512_mullo_epi64(x, y))
INT(min, int64_t, _mm512_min_epi64(x, y))
INT(max, int64_t, _mm512_max_epi64(x, y))
INT(sum, uint64_t, _mm512_add_epi64(x, y))
INT(prod, uint64_t, _mm512_mullo_epi64(x, y))
INT(min, uint64_t, _mm512_min_epu64(x, y))
INT(max, uint64_t, _mm512_max_epu64(x, y))

/* ---- 16-bit floats ---------------------------------------------------------------------------------------------- */

OP VF widen_f16(const char *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }

OP void narrow_f16(char *p, VF v) { _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }

OP VF widen_bf16(const char *p) {
    V u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}

/* Round to nearest even on the bits: add just under half, and one more when the kept part is odd. */
OP void narrow_bf16(char *p, VF v) {
    V u = _mm512_castps_si512(v), top = _mm512_srli_epi32(u, 16);
    V odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    V rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    V quiet = _mm512_or_si512(top, _mm512_set1_epi32(0x40));
    rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(rounded));
}

/* ---- 8-bit floats ------------------------------------------------------------------------------------------------ */

/* They go through f16, which holds both exactly (e4m3 divided by 256, so that its subnormals are subnormals), and of
 * which there are twice as many in a vector. The conversions of the CPU do not depend on its modes for subnormals. */
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
