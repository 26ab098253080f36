/* regroup_sparse.h: collectives of which only a part of the elements travels. Chunked top-k with an optional cosine
 * transform, as a codec and as an all-reduce with error feedback. Nothing is ever left out unless the caller asks for
 * it by these calls. What can be relied on, and what it costs: docs/sparse.md. */
#ifndef REGROUP_SPARSE_H
#define REGROUP_SPARSE_H

#include "regroup_quant.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* SUM, MAX and MIN take the elements that members have; where none has one there is none. AVG_WORLD divides the sum by
 * the number of contributing members, AVG_OWNERS by the number of those that had this element: the results differ, so
 * the caller chooses. Sums are made in f32, in the order of ranks, beginning with the first member that has the
 * element, and rounded once: what one member alone has comes out bit for bit. */
typedef enum rg_sparse_op {
    RG_SPARSE_SUM = 0,
    RG_SPARSE_AVG_WORLD = 1,
    RG_SPARSE_AVG_OWNERS = 2,
    RG_SPARSE_MAX = 3,
    RG_SPARSE_MIN = 4
} rg_sparse_op_t;

const char *rg_sparse_op_name(rg_sparse_op_t op); /* "sum", "avg_world", ...; "?" for an unknown operator */

/* ---- Chunked top-k ----------------------------------------------------------------------------------------------
 *
 * Of every RG_TOPK_CHUNK elements of f32 the k of largest magnitude (ties: the lower index), as indices of 12 bits and
 * values in a form of their own. A last chunk of m elements gives (k * m + 4095) / 4096 of them. The same input gives
 * the same bytes on every machine, at every SIMD level. */
#define RG_TOPK_CHUNK 4096u

/* How values are kept: f32, a wire form of regroup_quant.h (rg_wire_t; TERNARY included, with a scale for a chunk), or
 * two bits: a sign and one of two magnitudes, which are the means of the larger and of the smaller values of the chunk
 * (as bf16). */
#define RG_TOPK_F32 0u
#define RG_TOPK_2BIT 255u

/* The k are chosen among the coefficients of the orthonormal two-dimensional cosine transform (DCT-II) of the chunk
 * as 64 rows of 64; a short last chunk is filled up with zeroes. */
#define RG_TOPK_DCT 1u

typedef struct rg_topk {
    uint32_t size;   /* sizeof(rg_topk_t) */
    uint32_t k;      /* 1 to 4096 */
    uint32_t values; /* RG_TOPK_F32, RG_TOPK_2BIT, or an rg_wire_t */
    uint32_t flags;  /* RG_TOPK_DCT */
} rg_topk_t;

/* 64 of 4096 in two bits: 116 bytes for 16384. */
#define RG_TOPK_INIT                                                                                                   \
    { (uint32_t)sizeof(rg_topk_t), 64, RG_TOPK_2BIT, 0 }

/* Bytes of n elements; 0 when t is wrong. */
uint64_t rg_topk_bytes(const rg_topk_t *t, uint64_t n);

/* How many values n elements give; 0 when t is wrong. */
uint64_t rg_topk_values(const rg_topk_t *t, uint64_t n);

/* x[0..n) to bytes[0..rg_topk_bytes()). INVALID: t is wrong, or an x is not finite (bytes then hold anything). Any
 * thread; no memory is taken. */
rg_status_t rg_topk_encode(const rg_topk_t *t, const float *x, uint64_t n, void *bytes);

/* What the bytes stand for, zero elsewhere, to out[0..n), or added to what is there. Bytes that no encoder makes give
 * some values, never an access elsewhere. INVALID: t is wrong. Any thread. */
rg_status_t rg_topk_decode(const rg_topk_t *t, const void *bytes, uint64_t n, float *out);
rg_status_t rg_topk_decode_add(const rg_topk_t *t, const void *bytes, uint64_t n, float *out);

/* Only the choice: the indices, ascending, of the k of largest magnitude of every chunk of x; at has room for
 * rg_topk_values(). t->values is not looked at, and the transform is not made. INVALID as rg_topk_encode. */
rg_status_t rg_topk_select(const rg_topk_t *t, const float *x, uint64_t n, uint64_t *at);

/* The orthonormal cosine transform of `chunks` chunks, and its inverse. out may be in. The same bits everywhere. Any
 * thread. */
void rg_topk_dct(const float *in, uint64_t chunks, float *out);
void rg_topk_dct_inverse(const float *in, uint64_t chunks, float *out);

/* An all-reduce of which the bytes of rg_topk_encode() travel (an all-gather of them), with error feedback as
 * rg_feedback_t says it: m = beta * kept + in is encoded, and kept becomes m less what the bytes stand for, when the
 * call has succeeded on all members, and only then: what failed or was begun again counts once. The input is never
 * written; the output, which may be the input, only after everything has arrived. All members get the same bits. With
 * RG_TOPK_DCT the coefficients are added up and transformed back once. A lost member is handled as on_fault says. One
 * thread at a time. */
typedef struct rg_topk_reducer rg_topk_reducer_t;

/* t is equal on all members. feedback may be NULL: none. The group may be a sub-group; it outlives the reducer.
 * INVALID, NOMEM. */
rg_status_t rg_topk_reducer_create(rg_group_t *group, const rg_topk_t *t, const rg_feedback_t *feedback,
                                   rg_topk_reducer_t **out, rg_error_t *err);
void rg_topk_reducer_destroy(rg_topk_reducer_t *z);

/* op: SUM or one of the averages. Of opts, tag, timeout_ms, on_fault and result count; anything else is NOTSUP. An
 * input that is not finite is INVALID everywhere, naming the rank; a difference in count, op or t is MISMATCH
 * everywhere. */
rg_status_t rg_topk_all_reduce(rg_topk_reducer_t *z, const float *in, float *out, uint64_t count, rg_sparse_op_t op,
                               const rg_opts_t *opts);

/* What is kept, as rg_quantiser_kept() and rg_quantiser_keep(). */
float *rg_topk_kept(rg_topk_reducer_t *z, uint64_t *n);
rg_status_t rg_topk_keep(rg_topk_reducer_t *z, uint64_t n);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
