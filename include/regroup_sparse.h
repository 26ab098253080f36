/* regroup_sparse.h: collectives of which only a part of the elements travels: chunked top-k with an optional cosine
 * transform, as a codec and as an all-reduce with error feedback; all-reduces of lists of elements; all-reduces of
 * elements that a seed chooses; gathers and reductions of chunks by a map of who is to have which. Nothing is ever left
 * out unless the caller asks for it by these calls. What can be relied on, and what it costs: docs/sparse.md. */
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

/* x[0..n) to bytes[0..rg_topk_bytes()). INVALID: t is wrong, or an x is not finite, or, with RG_TOPK_DCT, a coefficient
 * or what the bytes would stand for is not, because of numbers near the end of f32 (bytes then hold anything): so what
 * an encoder makes always decodes to finite numbers. Any thread; no memory is taken. */
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
 * input that cannot be encoded because it is not finite (rg_topk_encode), naming the rank, and a sum that is not
 * finite, are INVALID everywhere, with nothing written; AVG adds up before it divides. A difference in count, op or t
 * is MISMATCH everywhere. */
rg_status_t rg_topk_all_reduce(rg_topk_reducer_t *z, const float *in, float *out, uint64_t count, rg_sparse_op_t op,
                               const rg_opts_t *opts);

/* What is kept, as rg_quantiser_kept() and rg_quantiser_keep(); between calls. */
float *rg_topk_kept(rg_topk_reducer_t *z, uint64_t *n);
rg_status_t rg_topk_keep(rg_topk_reducer_t *z, uint64_t n);

/* ---- Lists of elements --------------------------------------------------------------------------------------------
 *
 * A vector of n elements of which only some are there, in ascending order: `values` of them at val, and at idx where
 * they belong. idx holds, in the machine's byte order:
 *
 *   RG_INDEX_U32     a uint32_t for each; n up to 2^32
 *   RG_INDEX_U64     a uint64_t for each
 *   RG_INDEX_U16     for each 65536 elements of the vector a uint32_t, how many of them are there; then a uint16_t for
 *                    each element that is there, its place among the 65536
 *   RG_INDEX_U12     for each 4096 elements a uint16_t, how many; then 12 bits for each that is there, two in three
 *                    bytes, the lower bits first
 *   RG_INDEX_BITMAP  a bit for each of the n, element i being bit i % 8 of byte i / 8
 *   RG_INDEX_BLOCKS  a bit for each `block` elements; the values of such a block (the last may be short) are all there
 *   RG_INDEX_DENSE   nothing: all n are there
 *
 * Bits behind the last element or block are 0. U16 and U12 need idx aligned for their counts. */
typedef enum rg_index {
    RG_INDEX_U32 = 1,
    RG_INDEX_U64 = 2,
    RG_INDEX_U16 = 3,
    RG_INDEX_U12 = 4,
    RG_INDEX_BITMAP = 5,
    RG_INDEX_BLOCKS = 6,
    RG_INDEX_DENSE = 7
} rg_index_t;

typedef struct rg_sparse {
    uint32_t size; /* sizeof(rg_sparse_t) */
    rg_index_t index;
    rg_dtype_t dtype; /* F32, BF16 or F16 */
    uint32_t block;   /* RG_INDEX_BLOCKS: a power of two up to 4096; 0: 256 */
    uint64_t n;
    uint64_t values; /* at val; of a result, before the call: for how many there is room */
    void *idx, *val; /* only read of an input */
} rg_sparse_t;
#define RG_SPARSE_INIT                                                                                                 \
    { (uint32_t)sizeof(rg_sparse_t), RG_INDEX_U32, RG_F32, 0, 0, 0, 0, 0 }

/* Bytes at idx for so many values; 0 for DENSE and for what is unknown. */
uint64_t rg_sparse_index_bytes(rg_index_t index, uint32_t block, uint64_t n, uint64_t values);

/* INVALID, with a text, when s is not as said above: unknown, unsorted, twice, out of range, counts that are wrong. */
rg_status_t rg_sparse_check(const rg_sparse_t *s, rg_error_t *err);

/* The elements of x (s->n of them, of s->dtype) that are not zero, and of BLOCKS the blocks that have one, to s, whose
 * other members say what it is to be and have room for s->values; s->values becomes their number. CAPACITY when there
 * are more: s->values then says how many, and nothing else was written. */
rg_status_t rg_sparse_from_dense(const void *x, rg_sparse_t *s, rg_error_t *err);

/* All n elements, zero where s has none. INVALID as rg_sparse_check. */
rg_status_t rg_sparse_to_dense(const rg_sparse_t *s, void *x, rg_error_t *err);

typedef enum rg_sparse_result {
    RG_SPARSE_UNION = 0, /* every element that some member has */
    RG_SPARSE_TOPK = 1,  /* of those the `topk` of largest magnitude; ties: the lower index */
    RG_SPARSE_AUTO = 2   /* the union; but dense, which out->index then says, where U32 indices and values would be more
                            bytes than n values and all members have room for n */
} rg_sparse_result_t;

/* How the bytes travel; the result is the same, bit for bit. AUTO takes for every part what is fewest bytes. */
typedef enum rg_sparse_algorithm {
    RG_SPARSE_BY_SIZE = 0,
    RG_SPARSE_GATHER = 1, /* everybody gets everybody's list */
    RG_SPARSE_SPLIT = 2,  /* each member adds up a part of the vector, from lists, and sends a list of the sums */
    RG_SPARSE_HYBRID = 3, /* the same, but sends all sums of the part */
    RG_SPARSE_FULL = 4    /* all elements both ways */
} rg_sparse_algorithm_t;

typedef struct rg_sparse_how {
    uint32_t size; /* sizeof(rg_sparse_how_t) */
    rg_sparse_op_t op;
    rg_sparse_result_t result;
    rg_sparse_algorithm_t algorithm;
    uint64_t topk; /* RG_SPARSE_TOPK */

    /* How values travel: in a wire form, with its flags, seed and scale (form is 0); NULL: as they are. Lists are of
     * F32 then. What a member says is what its values decode to, in blocks along its list that begin anew in each part
     * in which it is added up; the sum of it is encoded once, by whom it was added up, and everybody, that one too,
     * takes what it decodes to: all members get the same bits. They depend on the algorithm, as everybody's lists to
     * everybody (GATHER, and BY_SIZE of two members) are quantised once, all others twice. Without RG_QUANT_SATURATE a
     * value, or a sum, that is not finite is INVALID everywhere; the text names the rank that has it (of sums that are
     * not encoded again: none). Lists of another type are NOTSUP everywhere. The wire form is equal on all members, the
     * seed need not be. */
    const rg_quant_t *quant;

    /* What was left out, for this member to add to what it says next (error feedback): of each element of `in` that is
     * not in the result (TOPK) the value, of each that is, what its value is more than what it was said to be; those
     * for which that is 0 are not in it. A list of in's length and type, not of BLOCKS, with room for in->values, in
     * memory of its own; written when the call succeeds, and only then. Each member's own choice; NULL: not wanted. */
    rg_sparse_t *rest;
} rg_sparse_how_t;
#define RG_SPARSE_HOW_INIT                                                                                             \
    { (uint32_t)sizeof(rg_sparse_how_t), RG_SPARSE_SUM, RG_SPARSE_UNION, RG_SPARSE_BY_SIZE, 0, 0, 0 }

/* Holds the memory that its calls use. The group may be a sub-group; it outlives the reducer. One thread at a time.
 * INVALID, NOMEM. */
typedef struct rg_sparse_reducer rg_sparse_reducer_t;
rg_status_t rg_sparse_reducer_create(rg_group_t *group, rg_sparse_reducer_t **out, rg_error_t *err);
void rg_sparse_reducer_destroy(rg_sparse_reducer_t *z);

/* The members' lists, brought together. n, dtype and how are equal on all members (else MISMATCH); the form of indices
 * is each one's own, of the input and of the result, but for BLOCKS, which all inputs are, with the same block, or
 * none, and results can only be where inputs are. out->values says for how many out has room. Where the result has more
 * than the smallest room among the members, all get CAPACITY, nothing is written, and out->values says how many it has,
 * everywhere alike. A list that is wrong anywhere is INVALID everywhere, naming the rank. The buffers of in and out do
 * not overlap, unless both are dense: then they may be the same. The result is the same on all members, bit for bit,
 * whatever the algorithm, the forms of indices and the timing. A lost member is handled as on_fault says. Of opts, tag,
 * timeout_ms, on_fault and result count; the bytes in the result are those of the whole call. From 262144 elements
 * for each member on, a member keeps and goes over 4 bytes for each 4096: very long vectors cost memory, and a little
 * time, however few elements there are. The time limit ends waiting for others, not a member's own work. */
rg_status_t rg_sparse_all_reduce(rg_sparse_reducer_t *z, const rg_sparse_t *in, rg_sparse_t *out,
                                 const rg_sparse_how_t *how, const rg_opts_t *opts);

/* With how->quant: how far a value of the last successful result may be from what it would be without; the same on all
 * members. As that of rg_quant_bound() it does not cover values, or sums, that the wire form cannot hold: beyond 65504
 * for RG_WIRE_F16, beyond what a scale of 65504 reaches for RG_WIRE_I4 and RG_WIRE_I2, beyond a scale that is given for
 * RG_WIRE_TERNARY. Nor does it cover what RG_QUANT_SATURATE replaces. By f32 arithmetic itself it is off as any sum is.
 * 0 before the first, and without. */
double rg_sparse_bound(const rg_sparse_reducer_t *z);

/* ---- Elements that a seed chooses -----------------------------------------------------------------------------------
 *
 * All members choose the same elements from the same seed, so that no indices travel: values alone do, as in
 * rg_all_reduce. With seeds that count up STRIDE and SLICE come to every element in time. */
typedef enum rg_seeded {
    RG_SEEDED_RANDOM = 0, /* one of each of `count` stretches of the vector, at random */
    RG_SEEDED_STRIDE = 1, /* every (n / count)th, from where the seed says */
    RG_SEEDED_SLICE = 2   /* `count` in a row */
} rg_seeded_t;

typedef struct rg_seeded_how {
    uint32_t size; /* sizeof(rg_seeded_how_t) */
    rg_seeded_t pattern;
    rg_op_t op;
    uint32_t pad; /* 0 */
    uint64_t seed, count;
} rg_seeded_how_t;
#define RG_SEEDED_HOW_INIT                                                                                             \
    { (uint32_t)sizeof(rg_seeded_how_t), RG_SEEDED_RANDOM, RG_SUM, 0, 0, 0 }

/* The places, ascending, of count elements of n. INVALID: more than n, or an unknown pattern. Any thread. */
rg_status_t rg_seeded_places(rg_seeded_t pattern, uint64_t seed, uint64_t n, uint64_t count, uint64_t *at);

/* out[i] becomes what rg_all_reduce would make of in[i] at the places that the seed chooses, and stays what it is
 * elsewhere. in and out have n elements; out may be in. n, dtype and how are equal on all members, else MISMATCH. Of
 * opts, tag, timeout_ms, on_fault and result count. Errors as rg_all_reduce. */
rg_status_t rg_seeded_all_reduce(rg_sparse_reducer_t *z, const void *in, void *out, uint64_t n, rg_dtype_t dtype,
                                 const rg_seeded_how_t *how, const rg_opts_t *opts);

/* ---- Without blocking ---------------------------------------------------------------------------------------------
 *
 * The same calls in the background, choosing and adding up included, in a thread that the reducer has from the first of
 * them on. opts->tag is needed, and is one that nothing else uses meanwhile: operations of the group that have other
 * tags may be called at the same time. Requests of one reducer run one after the other, in the order of the calls,
 * which is the same on all members; a call that blocks is INVALID while one of them has not ended. Of `in`, `how` and
 * opts the structures are copied. What they point to, `out` and the reducer belong to the library until the request is
 * waited for; the time limit counts from when its turn comes. A request ends with RESOURCE where its member has 512
 * operations in flight (regroup.h) when one that the request is made of is to begin: keep below that. Wait for all of
 * them before rg_group_boundary(). Destroying a reducer waits for the request that runs; those that have not begun, and
 * all that nobody has waited for, are gone. Errors at once: INVALID, NOMEM, SYSTEM (no thread). A call that is refused
 * for its arguments has its place (regroup.h) among those of its tag, behind requests of the reducer that have not
 * ended and have the same tag, for which it waits; without a tag it has none. */
typedef struct rg_sparse_request rg_sparse_request_t;

rg_status_t rg_sparse_iall_reduce(rg_sparse_reducer_t *z, const rg_sparse_t *in, rg_sparse_t *out,
                                  const rg_sparse_how_t *how, const rg_opts_t *opts, rg_sparse_request_t **req);
rg_status_t rg_seeded_iall_reduce(rg_sparse_reducer_t *z, const void *in, void *out, uint64_t n, rg_dtype_t dtype,
                                  const rg_seeded_how_t *how, const rg_opts_t *opts, rg_sparse_request_t **req);
rg_status_t rg_topk_iall_reduce(rg_topk_reducer_t *z, const float *in, float *out, uint64_t count, rg_sparse_op_t op,
                                const rg_opts_t *opts, rg_sparse_request_t **req);

/* Blocks until the request is finished, fills `result` (may be NULL), frees the request and returns its status. Only
 * one thread may wait for a request. rg_sparse_test(): RG_AGAIN while it runs; else as rg_sparse_wait(). */
rg_status_t rg_sparse_wait(rg_sparse_request_t *req, rg_result_t *result);
rg_status_t rg_sparse_test(rg_sparse_request_t *req, rg_result_t *result);

/* Asks for the request to end with CANCELLED on all members, as rg_cancel(): it may still succeed, everywhere. What is
 * kept by feedback stays what it was. One that has not begun ends when its turn comes. rg_sparse_wait() is still
 * needed. Any thread, before that. */
rg_status_t rg_sparse_cancel(rg_sparse_request_t *req);

/* ---- Placements ---------------------------------------------------------------------------------------------------
 *
 * Chunks of bytes, each with one owner, of which some members are to have a copy: experts that a step needs, say. A
 * gather brings every chunk from its owner to all that are to have it; a reduction is the mirror of it and brings what
 * they have made of their copies back, reduced, to the owner. Each member receives the bytes that it is to have and no
 * more. The moves are planned once: a pure function of the placement and of which members share a host. One copy of a
 * chunk goes to a host, whose members pass it on among them. A chunk of 256 KiB or more that goes to more than two
 * hosts goes from one to the next, in pieces, so that its owner sends it once. */
typedef struct rg_placement {
    uint32_t size; /* sizeof(rg_placement_t) */
    uint32_t chunks;
    const uint64_t *bytes;  /* of each chunk */
    const uint32_t *owner;  /* rank */
    const uint8_t *present; /* bit c % 8 of present[r * ((chunks + 7) / 8) + c / 8]: rank r is to have chunk c; owners
                               are among those that have theirs */
} rg_placement_t;
#define RG_PLACEMENT_INIT                                                                                              \
    { (uint32_t)sizeof(rg_placement_t), 0, 0, 0, 0 }

/* A plan, to be used again and again, for the members of the moment: when one is lost it ends with PEER_LOST, and a new
 * one is to be made. Several may be in use at once, with different tags. One thread at a time for each. */
typedef struct rg_moves rg_moves_t;

/* Called by all members, with equal placements (a difference is MISMATCH everywhere). Copies what it needs. Of opts,
 * tag and timeout_ms count. INVALID everywhere: an owner that is no rank, or is not to have its chunk, or more than
 * 2^56 bytes in all; the text is with the group. NOMEM. The group may be a sub-group; it outlives the plan. */
rg_status_t rg_moves_create(rg_group_t *group, const rg_placement_t *p, const rg_opts_t *opts, rg_moves_t **out);

/* Ends what is in flight first, as rg_moves_wait() would after rg_moves_cancel(). */
void rg_moves_destroy(rg_moves_t *m);

/* What this member receives, exactly, in a gather or, as an owner, in a reduction. */
uint64_t rg_moves_gather_bytes(const rg_moves_t *m);
uint64_t rg_moves_reduce_bytes(const rg_moves_t *m);

/* Begins a gather: chunk[c] is read by the owner and written by those that are to have it; it may be NULL elsewhere.
 * The array is read during the call, the chunks belong to the library until the end. Of opts, tag and timeout_ms count.
 * INVALID: one is in flight, which goes on; or a pointer is NULL where there are bytes. The latter is told to the
 * others, so that the next call is not taken for this one: they end with an error, too, and the call returns when they
 * have, or at the deadline. */
rg_status_t rg_moves_gather(rg_moves_t *m, void *const *chunk, const rg_opts_t *opts);

/* Begins a reduction of chunks of elements: in[c] is read by all that have the chunk; out[c] is written by the owner,
 * at the very end, and may be in[c]. It is made of the owner's copy and of the others' in the order of ranks, always in
 * the same order. Sums are made as in rg_all_reduce; AVG divides by the number of copies. INVALID also: a chunk is not
 * of whole elements. NOTSUP: AVG of integers. Both are told to the others, as there. NOMEM, with nothing begun. */
rg_status_t rg_moves_reduce(rg_moves_t *m, const void *const *in, void *const *out, rg_dtype_t dtype, rg_op_t op,
                            const rg_opts_t *opts);

/* Whether chunk c has arrived here: of a gather also before the end, as soon as it is whole. */
int rg_moves_ready(const rg_moves_t *m, uint32_t c);

/* RG_AGAIN while it runs. Chunks are passed on inside these calls, so members that are on the way of others call them
 * until the end. result may be NULL; its bytes are those of the chunks. All members end alike: OK when everything has
 * arrived everywhere; PEER_LOST, TIMEOUT, CANCELLED, MISMATCH (gathers and reductions, types or operators differ). */
rg_status_t rg_moves_test(rg_moves_t *m, rg_result_t *result);
rg_status_t rg_moves_wait(rg_moves_t *m, rg_result_t *result);

/* What is in flight is to end with CANCELLED on all members; rg_moves_wait() is still needed. */
void rg_moves_cancel(rg_moves_t *m);

/* After PEER_LOST: how many chunks had an owner that is lost, and the first `cap` of them; the same on all members.
 * Those who have a copy can be asked for it in a new placement. */
uint32_t rg_moves_lost(const rg_moves_t *m, uint32_t *chunks, uint32_t cap);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
