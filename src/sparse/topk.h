/* topk.h: what the files of chunked top-k share: the table of one SIMD level. Included by src/sparse only. All levels
 * give the same bits: magnitudes are compared as integers, every float operation is one IEEE operation, each output of
 * the transform adds its terms up in one order, and nothing is contracted. */
#ifndef RG_SPARSE_TOPK_H
#define RG_SPARSE_TOPK_H

#include "regroup_sparse.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#define RG_TOPK_SIDE 64u /* a chunk is so many rows of so many elements */

/* Of the transform: forward[u][i] is what row i counts in coefficient u, and for the inverse the same by row, of the
 * even coefficients and of the odd ones. Rows beyond the half follow from those before it. */
typedef struct rg_topk_weights {
    float forward[RG_TOPK_SIDE][RG_TOPK_SIDE / 2];
    float inverse[RG_TOPK_SIDE / 2][2][RG_TOPK_SIDE / 2];
} rg_topk_weights_t;

typedef struct rg_topk_table {
    /* The magnitudes of n elements as integers, to mag. Returns the largest. */
    uint32_t (*magnitudes)(const float *x, uint32_t n, uint32_t *mag);
    /* A number of which k or more magnitudes are at least, and fewer than k are above, given the largest. */
    uint32_t (*threshold)(const uint32_t *mag, uint32_t n, uint32_t k, uint32_t top);
    /* The transform of every column of a chunk, with its terms in pairs; to another chunk. */
    void (*forward)(const rg_topk_weights_t *w, const float *in, float *out);
    void (*inverse)(const rg_topk_weights_t *w, const float *in, float *out);
} rg_topk_table_t;

extern const rg_topk_table_t rg_topk_scalar;
#ifdef __x86_64__
extern const rg_topk_table_t rg_topk_avx2;
extern const rg_topk_table_t rg_topk_avx512;
#endif
const rg_topk_table_t *rg_topk_level(void);

int rg_topk_wrong(const rg_topk_t *t);

/* Adds up coefficients (with RG_TOPK_DCT) or elements, without the transform back; counts, where it is not NULL, has
 * how often each was there. Both have room for whole chunks. */
void rg_topk_gather(const rg_topk_t *t, const uint8_t *bytes, uint64_t n, float *sum, uint16_t *counts);

#endif
