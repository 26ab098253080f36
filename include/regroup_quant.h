/* regroup_quant.h: fewer bits on the wire. Codecs that turn f32 into blocks of small numbers with a scale each, and
 * back, so that the same input gives the same bytes on every machine, at every SIMD level, every time. Nothing is ever
 * quantised unless the caller asks for it by these calls.
 *
 * A wire form, for n elements, is a row of blocks; the last one may be short. Bits per element include the scale:
 *
 *   RG_WIRE_F16         16     1      rounded to nearest even, finite values beyond the range to the largest finite one
 *   RG_WIRE_BF16        16     1      likewise
 *   RG_WIRE_I8          8.125  256    f32 scale s = max|x| / 127, s * q with q in -127..127
 *   RG_WIRE_I8_MINMAX   8.25   256    f32 least value m and step s = (max - m) / 255, m + s * q with q in 0..255
 *   RG_WIRE_I4          4.5    32     f16 scale s = max|x| / 7, s * q with q in -7..7
 *   RG_WIRE_I2          2.5    32     f16 scale s = max|x|, one of -s, -s/3, s/3, s (there is no 0 unless s is 0)
 *   RG_WIRE_TERNARY     1.6    all    f32 scale s for the whole call, -s, 0 or s; five of them in a byte
 *   RG_WIRE_E4M3        8.25   128    f32 scale s = max|x| / 448, s * (8-bit float, saturating)
 *   RG_WIRE_E5M2        8.25   128    f32 scale s = max|x| / 57344, likewise
 *   RG_WIRE_MXFP8       8.25   32     E8M0 scale (a power of two), E4M3 elements (OCP Microscaling Formats 1.0)
 *   RG_WIRE_MXFP8_E5M2  8.25   32     the same with E5M2 elements
 *   RG_WIRE_MXFP4       4.25   32     the same with E2M1 elements
 *
 * Rounding is to nearest even, or stochastic: up or down at random, so that the mean is right (of the two neighbours
 * that the format has). The random numbers are a function of seed, operation and element, so a repetition is equal.
 * Zero decodes to +0, whatever its sign was. f16 scales have a range: blocks whose scale is below 2^-25 become 0, and
 * where it would be above 65504 the largest elements are clipped; multiply such data first. */
#ifndef REGROUP_QUANT_H
#define REGROUP_QUANT_H

#include "regroup.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

typedef enum rg_wire {
    RG_WIRE_F16 = 1,
    RG_WIRE_BF16 = 2,
    RG_WIRE_I8 = 3,
    RG_WIRE_I8_MINMAX = 4,
    RG_WIRE_I4 = 5,
    RG_WIRE_I2 = 6,
    RG_WIRE_TERNARY = 7,
    RG_WIRE_E4M3 = 8,
    RG_WIRE_E5M2 = 9,
    RG_WIRE_MXFP8 = 10,
    RG_WIRE_MXFP8_E5M2 = 11,
    RG_WIRE_MXFP4 = 12,
    RG_WIRE_COUNT = 13
} rg_wire_t;

#define RG_QUANT_STOCHASTIC 1u
/* NaN counts as 0 and an infinity as the largest finite f32 of its sign. Without it they are an error. */
#define RG_QUANT_SATURATE 2u

/* The way of a reduction; see the collectives below. */
typedef enum rg_quant_form {
    RG_QUANT_AUTO = 0, /* direct or two-level, whichever is predicted to take less time */
    RG_QUANT_DIRECT = 1,
    RG_QUANT_RING = 2,
    RG_QUANT_TWO_LEVEL = 3,
    RG_QUANT_INTEGER = 4, /* int8, int4 and ternary */
    RG_QUANT_FORM_COUNT = 5
} rg_quant_form_t;

typedef struct rg_quant {
    uint32_t size; /* sizeof(rg_quant_t) */
    rg_wire_t wire;
    uint32_t flags;
    uint64_t seed; /* RG_QUANT_STOCHASTIC: the same on all members for equal bits where that matters */
    float
        scale; /* RG_WIRE_TERNARY: the scale to use, for example the largest of all members'; 0: max|x| of this call */
    uint32_t form; /* rg_quant_form_t, for collectives; 0: what RG_QUANT_ALGORITHM says ("ring", or
                      "all_reduce=ring,reduce_scatter=two-level"), else by cost. Equal on all members */
} rg_quant_t;

#define RG_QUANT_INIT(w)                                                                                               \
    { (uint32_t)sizeof(rg_quant_t), (w), 0, 0, 0, 0 }

/* "int8", "mxfp4", ...; NULL for no wire form. rg_wire_by_name() gives 0 for no name of one. Any thread. */
const char *rg_wire_name(rg_wire_t wire);
rg_wire_t rg_wire_by_name(const char *name);

/* "auto", "direct", "ring", "two-level", "integer"; NULL for no form. Any thread. */
const char *rg_quant_form_name(uint32_t form);

/* Elements of a block; 0: a block has them all. */
uint64_t rg_quant_block(rg_wire_t wire);

/* Bytes of n elements; 0 when the wire form is unknown. */
uint64_t rg_quant_bytes(rg_wire_t wire, uint64_t n);

/* x[0..n) to wire[0..rg_quant_bytes()), which may not overlap. op and first number the operation and the element x[0]
 * for the random numbers; they do nothing without RG_QUANT_STOCHASTIC. RG_ERR_INVALID: an unknown wire form or flag, a
 * scale that is negative or not finite, or an x that is not finite without RG_QUANT_SATURATE (wire then holds
 * anything). Any thread; no memory is taken. */
rg_status_t rg_quant_encode(const rg_quant_t *q, uint64_t op, uint64_t first, const float *x, uint64_t n, void *wire);

/* The values of a wire form, to out[0..n), or added to what is there (out[i] + value, in f32). Bytes that no encoder
 * makes give some values, never an error or an access elsewhere. RG_ERR_INVALID: unknown wire form. Any thread. */
rg_status_t rg_quant_decode(rg_wire_t wire, const void *bytes, uint64_t n, float *out);
rg_status_t rg_quant_decode_add(rg_wire_t wire, const void *bytes, uint64_t n, float *out);

/* How far any decoded element may be from what was encoded, from the scales in the wire form: half a step where
 * rounding was to nearest, a whole one where it was stochastic. For RG_WIRE_TERNARY with a given scale it holds for
 * elements that are not beyond the scale, for RG_WIRE_F16 up to 65504, for RG_WIRE_I4 and RG_WIRE_I2 for those that a
 * scale of 65504 reaches. -1 for an unknown wire form. */
double rg_quant_bound(const rg_quant_t *q, const void *bytes, uint64_t n);

/* ---- Collectives ---------------------------------------------------------------------------------------------------
 *
 * Reductions and gathers of f32 of which only quantised bytes travel (but inside of a host, where the form has two
 * levels). All members get the same bits: a slice is finished by its owner alone, which encodes it once; it is passed
 * on as it is, and the owner too takes what its own bytes decode to. How a slice of the sum comes about:
 *
 *   direct     everybody sends its owner what it encoded; the owner adds up, in f32 and in the order of ranks, its own
 *              unrounded. Two quantisations whatever the number of members
 *
 *   ring       each member decodes what its neighbour sends, adds its own, and encodes again: n quantisations, which
 *              add up, and n - 1 hops; no more bytes than direct, all of them between neighbours. For those who ask
 *              for it
 *
 *   two-level  members of one host (rg_config_t.host) add theirs up as they are, and one of them for each slice sends
 *              the host's sum encoded to the owner: only 1 / (members of the host) as many bytes between hosts, and
 *              less error
 *
 *   integer    all agree on a scale for each block of 256 (ternary: for all) and send whole multiples of it, which the
 *              owner adds up exactly and passes on in as many bits as the sum needs: one quantisation for each member,
 *              no other error, the same bits whatever the order; log2(n) bits more for each element on the way back
 *
 * All-gather passes encoded bytes on unchanged by whatever algorithm rg_all_gather() uses (RG_ALGORITHM), so it has no
 * forms.
 *
 * They block (below are forms that do not), and are made of operations of the group: calls of one group and tag are in
 * the same order everywhere. A lost member is handled as on_fault says: RETRY begins again with those who are left, who
 * then are the contributors. The input is never written; the output, which may be the input, only after everything has
 * arrived. */

typedef struct rg_quantiser rg_quantiser_t;

/* What a member could not say is kept and added to what it says next (error feedback): m = beta * kept + x is encoded,
 * and kept becomes m less what was decoded, when the operation has succeeded on all members, and only then. */
typedef struct rg_feedback {
    uint32_t size; /* sizeof(rg_feedback_t) */
    float beta;    /* of what was kept before; 0: 1 */
    float clip;    /* what is kept is cut off beyond +-clip; 0: not */
} rg_feedback_t;

#define RG_FEEDBACK_INIT                                                                                               \
    { (uint32_t)sizeof(rg_feedback_t), 0, 0 }

/* Holds the buffers that its calls use, and what is kept. `q` is equal on all members (the seed may differ: then
 * members round independently of each other, as they should). feedback may be NULL: none. The group may be a sub-group;
 * it outlives the quantiser. INVALID, NOTSUP (no integers in this wire form), NOMEM. One thread at a time.
 * rg_quantiser_destroy() waits for the request that runs; those that have not begun, and all that nobody has waited
 * for, are gone. */
rg_status_t rg_quantiser_create(rg_group_t *group, const rg_quant_t *q, const rg_feedback_t *feedback,
                                rg_quantiser_t **out, rg_error_t *err);
void rg_quantiser_destroy(rg_quantiser_t *z);

/* out[i] = the sum (RG_SUM) or the average (RG_AVG) of all members' in[i]. count, op and the quantiser are equal on all
 * members; a difference is ERR_MISMATCH everywhere. An input that is not finite, without RG_QUANT_SATURATE, and a sum
 * that is not finite are ERR_INVALID everywhere, naming the rank. Of opts, tag, timeout_ms,
 * on_fault and result count; anything else is NOTSUP. Errors are those of rg_all_reduce; the text is with the group. */
rg_status_t rg_quant_all_reduce(rg_quantiser_t *z, const float *in, float *out, uint64_t count, rg_op_t op,
                                const rg_opts_t *opts);

/* in has a segment of count elements for every rank; out gets this rank's, reduced, and not rounded again. So a sum
 * that leaves the range of f32 is no error here, as nobody else hears of it: out is infinite there, and so is the
 * average of it. A fault ends with PEER_LOST everywhere. */
rg_status_t rg_quant_reduce_scatter(rg_quantiser_t *z, const float *in, float *out, uint64_t count, rg_op_t op,
                                    const rg_opts_t *opts);

/* out gets world_size segments of count elements, as all members' inputs decode; this member's too. A fault ends with
 * PEER_LOST everywhere. */
rg_status_t rg_quant_all_gather(rg_quantiser_t *z, const float *in, float *out, uint64_t count, const rg_opts_t *opts);

/* How far an element of the last successful result may be from what it would be without quantising, for each of the
 * contributors of rg_quant_all_reduce and rg_quant_reduce_scatter added up; by f32 arithmetic itself it is off as any
 * sum is. 0 before the first. */
double rg_quantiser_bound(const rg_quantiser_t *z);

/* The form that the last successful call took: for RG_QUANT_AUTO too. RG_QUANT_AUTO before the first. */
rg_quant_form_t rg_quantiser_form(const rg_quantiser_t *z);

/* What is kept: *n elements, those of the last successful call with feedback (0 before it), to be read, written (for
 * example from a file, after setting their number with rg_quantiser_keep) or zeroed between calls. NULL without. A call
 * with another count begins with zeroes. rg_quantiser_keep: NOMEM, or INVALID without feedback. */
float *rg_quantiser_kept(rg_quantiser_t *z, uint64_t *n);
rg_status_t rg_quantiser_keep(rg_quantiser_t *z, uint64_t n);

/* ---- Without blocking --------------------------------------------------------------------------------------------
 *
 * The same calls in the background, encoding and decoding included, in a thread that the quantiser has from the first
 * of them on; so that a transfer overlaps the computation of what comes next. opts->tag is needed, and is one that
 * nothing else uses meanwhile: operations of the group that have other tags may be called at the same time. Requests of
 * one quantiser run one after the other, in the order of the calls, which is the same on all members. Until a request
 * is waited for, its buffers and the quantiser belong to the library; the time limit counts from when its turn comes.
 * Wait for all of them before rg_group_boundary(). Errors at once: INVALID, NOMEM, SYSTEM (no thread). A call that is
 * refused for its arguments has its place (regroup.h) among those of its tag, behind requests of the quantiser that
 * have not ended and have the same tag, for which it waits; without a tag it has none. */

typedef struct rg_quant_request rg_quant_request_t;

rg_status_t rg_quant_iall_reduce(rg_quantiser_t *z, const float *in, float *out, uint64_t count, rg_op_t op,
                                 const rg_opts_t *opts, rg_quant_request_t **req);
rg_status_t rg_quant_ireduce_scatter(rg_quantiser_t *z, const float *in, float *out, uint64_t count, rg_op_t op,
                                     const rg_opts_t *opts, rg_quant_request_t **req);
rg_status_t rg_quant_iall_gather(rg_quantiser_t *z, const float *in, float *out, uint64_t count, const rg_opts_t *opts,
                                 rg_quant_request_t **req);

/* Blocks until the request is finished, fills `result` (may be NULL), frees the request and returns its status. Only
 * one thread may wait for a request. rg_quant_test(): RG_AGAIN while it runs; else as rg_quant_wait(). */
rg_status_t rg_quant_wait(rg_quant_request_t *req, rg_result_t *result);
rg_status_t rg_quant_test(rg_quant_request_t *req, rg_result_t *result);

/* Asks for the request to end with CANCELLED on all members, as rg_cancel(): it may still succeed, everywhere. What is
 * kept by feedback stays what it was. One that has not begun ends when its turn comes. rg_quant_wait() is still needed.
 * Any thread, before that. */
rg_status_t rg_quant_cancel(rg_quant_request_t *req);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
