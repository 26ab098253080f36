/* kernels.h: reductions and casts. For every type and operator there is a scalar reference and SIMD versions chosen
 * at run time by CPU; all give the same bits. Any alignment. No allocation, no global state but the chosen table.
 *
 * "raw" is the user's type; "acc" the type of partial values: f32 for f16, bf16 and the 8-bit floats, else the same as
 * raw. For AVG each raw operand is multiplied by `pre` (a power of two not above 1/n, so that sums stay finite; exact
 * but for subnormals) and a final value by `post` (1/(n*pre)), in the type of partial values; a final raw value of a
 * narrower type is rounded once, to nearest even. So an average of f32 or f64 subnormals may be off by up to n times
 * the smallest one; averages of the smallest are 0.
 *
 * 8-bit floats: what is beyond the range becomes the largest finite value. An infinity in an e5m2 input stays infinite;
 * in e4m3, which has none, an infinite partial value becomes the largest finite one. A NaN in gives a NaN out, and
 * finite inputs never give NaN: products in f32 (PROD, factors) saturate at the largest finite f32. */
#ifndef RG_KERNELS_H
#define RG_KERNELS_H

#include "regroup.h"

#define RG_RED_A_ACC 1u   /* a has partial values, else raw */
#define RG_RED_B_ACC 2u   /* b likewise */
#define RG_RED_DST_ACC 4u /* dst gets partial values, else raw (which is then final) */
#define RG_RED_FINAL 8u   /* multiply by post (AVG) and by the factor of rg_red_scale_after() */
#define RG_RED_SWAP 16u   /* b op a: matters for the payload of NaN only */

typedef struct rg_red {
    rg_dtype_t dtype;
    rg_op_t op;
    uint32_t flags;
    double pre, post; /* 1 and 1 unless op is AVG */
    double after;     /* the factor of rg_red_scale_after(), 1 without */
    void (*run)(const struct rg_red *r, void *dst, const void *a, const void *b, size_t n);

    /* For the kernels themselves: the one behind `run` when operands are swapped, whether its first and second operand
     * are partial values, and the factors for first operand, second operand and result. */
    void (*inner)(const struct rg_red *r, void *dst, const void *x, const void *y, size_t n);
    uint32_t x_acc, y_acc, dst_acc;
    double x_scale, y_scale, dst_scale;
} rg_red_t;

/* Prepares a reduction: checks the combination (INVALID, also for a raw result of AVG without FINAL; NOTSUP: AVG of
 * integers), sets pre and post for n contributors, chooses `run`. */
rg_status_t rg_red_init(rg_red_t *r, rg_dtype_t dtype, rg_op_t op, uint32_t n, uint32_t flags);

/* After rg_red_init(), at most once: a FINAL result is also multiplied by `factor`, rounded to the partial type, before
 * it is rounded; r's without FINAL are left as they are. Any operator. INVALID: the factor, or its product with post,
 * is not finite in the partial type; NOTSUP: integers. r is unchanged then. */
rg_status_t rg_red_scale_after(rg_red_t *r, double factor);

/* dst[i] = a[i] op b[i]. dst may equal a or b. Fits rg_reduce_fn: ctx is an rg_red_t. */
void rg_red_run(const void *ctx, void *dst, const void *a, const void *b, size_t n);

/* dst[i] = a[i], converting raw/acc as flags say (A_ACC, DST_ACC, FINAL); pre and post as above. Raw to raw moves the
 * bytes unchanged (so for one member it is the whole operation, on every type and operator), except that with FINAL
 * they are multiplied by the factor of rg_red_scale_after(). dst may equal a where the sizes are equal. */
void rg_red_copy(const rg_red_t *r, void *dst, const void *a, size_t n);

/* dst[i] = src[i] * factor, computed in the partial type (the factor is rounded to it first) and rounded once; by 1 the
 * bytes are moved unchanged. dst may equal src. INVALID: unknown type, or a factor that is not finite in the partial
 * type; NOTSUP: integers. Nothing is written then. */
rg_status_t rg_scale(rg_dtype_t dtype, void *dst, const void *src, size_t n, double factor);

size_t rg_acc_size(rg_dtype_t dtype);

/* A copy that does not read the destination's lines first and leaves the cache to others: about half as fast again as
 * memcpy where source and destination lie in memory, but only half as fast where they could stay in cache. For parts of
 * something large (undo log, results), not for what is read next. No overlap. */
void rg_copy_past_cache(void *dst, const void *src, size_t n);

/* "avx512", "avx2", "scalar"; RG_SIMD in the environment lowers it (for tests). rg_simd_force() returns 0 when the CPU
 * cannot; it is for tests and benchmarks and not thread-safe. */
const char *rg_simd_name(void);
int rg_simd_force(const char *name);

#endif
