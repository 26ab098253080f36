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

/* ---- Halves ---------------------------------------------------------------------------------------------------- */

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

#include "kernels/simd.h"

#endif
