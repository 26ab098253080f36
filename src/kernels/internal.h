/* internal.h: what the kernel files share: the table of one SIMD level, and the exact meaning of the few operations
 * where levels could differ (NaN, signed zero, small floats). Included by src/kernels only.
 *
 * The rules that make all levels give the same bits:
 *  - SUM and PROD of floats are one IEEE operation in the operand order x, y. When both are NaN the CPU returns the
 *    first, quieted; compilers may swap operands of a + b, so on x86-64 the instruction is written out.
 *  - MIN and MAX give the one canonical NaN when either operand is NaN, and order -0 below +0.
 *  - f16 and bf16 become f32 exactly, and are rounded to nearest even; NaN keeps sign and upper payload, quieted.
 *  - f32 becomes an 8-bit float by rounding to nearest even what is within its range; what is finite and beyond becomes
 *    the largest finite value, infinity too where the type has none. NaN stays NaN. Products of the 8-bit floats in f32
 *    (PROD, factors) saturate at the largest finite f32.
 *  - nothing is contracted to a fused multiply-add (-ffp-contract=off, and the pragma below for clang). */
#ifndef RG_KERNELS_INTERNAL_H
#define RG_KERNELS_INTERNAL_H

#include "kernels/kernels.h"

#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

typedef void (*rg_kernel_fn)(const rg_red_t *r, void *dst, const void *x, const void *y, size_t n);
typedef void (*rg_scale_fn)(void *dst, const void *src, size_t n, double scale);

/* The floats that are narrower than their partial values. */
enum { RG_SMALL_F16 = 0, RG_SMALL_BF16, RG_SMALL_E4M3, RG_SMALL_E5M2, RG_SMALL_COUNT };

/* One SIMD level. small: by kind, operator, and x_acc | y_acc << 1 | dst_acc << 2. */
typedef struct rg_kernel_table {
    const char *name;
    rg_kernel_fn same[RG_DTYPE_COUNT][RG_OP_COUNT]; /* NULL where there is none */
    rg_kernel_fn small[RG_SMALL_COUNT][RG_OP_COUNT][8];
    rg_scale_fn widen[RG_SMALL_COUNT], narrow[RG_SMALL_COUNT]; /* to f32 and back, times scale */
    rg_scale_fn rescale[RG_SMALL_COUNT];                       /* raw to raw, times scale */
    rg_scale_fn scale_f32, scale_f64;
    rg_scale_fn scale_sat;                                     /* f32 that are partial values of an 8-bit float */
    void (*copy_stream)(void *dst, const void *src, size_t n); /* NULL: memcpy */
} rg_kernel_table_t;

extern const rg_kernel_table_t rg_kernels_scalar;
#ifdef __x86_64__
extern const rg_kernel_table_t rg_kernels_avx2;
extern const rg_kernel_table_t rg_kernels_avx512;
#endif

#define RG_CANONICAL_NAN_F32 0x7fc00000u
#define RG_CANONICAL_NAN_F64 0x7ff8000000000000ull

#endif
