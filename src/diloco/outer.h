/* outer.h: the arithmetic of outer optimisers, the packing of tensors into fragments, and the schedule. Pure: what
 * comes out depends on the arguments alone, bit by bit, so that members that hold equal bytes go on holding equal
 * bytes. Nothing here may allocate, read a clock or know of groups. */
#ifndef RG_DILOCO_OUTER_H
#define RG_DILOCO_OUTER_H

#include <stdint.h>

typedef struct rg_outer {
    float lr, momentum, clip;
    uint32_t momentum_every;
    int heavy; /* heavy ball: the step is lr * momentum, and not Nesterov's */
} rg_outer_t;

/* d = anchor + off - local (off NULL: none) + carry (NULL: none). Whether all of it is finite. */
int rg_outer_delta(const float *anchor, const float *off, const float *local, const float *carry, uint64_t n, float *d);

/* The Euclidean length, summed in double in one order on every machine; of the difference of two. */
double rg_outer_length(const float *x, uint64_t n);
double rg_outer_distance(const float *x, const float *y, uint64_t n);

/* One arrival. The results go beside the inputs, so that nothing is changed until all is known to be right. With every
 * k = momentum_every arrivals counting one step of momentum:
 *   Nesterov   acc = acc + d; theta = theta - lr d / k; at the k-th: g = acc / k, buf = mu buf + g, acc = 0,
 *              theta = theta - lr mu buf
 *   heavy      buf = clip(mu buf + d / gap), theta = theta - lr buf
 * arrivals: those since the last step of momentum, this one not counted. acc may be NULL when k is 1. Whether all
 * results are finite. */
typedef struct rg_outer_place {
    const float *theta, *buf, *acc;
    float *theta_out, *buf_out, *acc_out;
} rg_outer_place_t;
int rg_outer_step(const rg_outer_t *o, const rg_outer_place_t *at, const float *d, uint64_t n, uint32_t arrivals,
                  double gap);

/* Eager: say = d / m, and x = say less what was said before. */
void rg_outer_eager(const float *d, double m, const float *said, uint64_t n, float *say, float *x);

/* local = alpha local + (1 - alpha) (anchor + off). */
void rg_outer_blend(float *local, const float *anchor, const float *off, float alpha, uint64_t n);

/* How much a member counts: kind is rg_diloco_weight_t. Never negative, always finite. */
double rg_outer_weight(int kind, uint64_t tokens, uint64_t steps);

/* How stale an arrival is, from 1 (not at all): the way that the anchor has gone since, in steps of usual length. */
double rg_outer_gap(double way, double usual);

void rg_outer_scale(const float *x, double by, uint64_t n, float *out);

/* Makes the average of directions as long as `length`; 0 when directions cancel and nothing was changed. */
int rg_outer_lengthen(float *u, uint64_t n, double length);

/* ---- Fragments */

typedef struct rg_pack_tensor {
    uint64_t count, name; /* name: its hash, which breaks ties */
    uint32_t alone;
} rg_pack_tensor_t;

typedef struct rg_pack_piece {
    uint32_t fragment, tensor;
    uint64_t first, count; /* elements of the tensor */
    uint64_t name;
} rg_pack_piece_t;

/* Pieces of the n tensors, by fragment, tensor and place: those that are alone have the last fragments, one each; the
 * others share the first `fragments`, whole where that leaves them within a tenth of each other, else cut into pieces.
 * Room for n + 16 * fragments pieces. sizes: elements of each fragment, room for fragments + n. Gives the number of
 * fragments, *pieces their pieces. */
uint32_t rg_pack(const rg_pack_tensor_t *t, uint32_t n, uint32_t fragments, rg_pack_piece_t *piece, uint32_t *pieces,
                 uint64_t *sizes);

/* The fragment that is sent after step `step` (from 1), or -1: fragment p of n at (p + 1) * every / n, and so on. */
int64_t rg_outer_due(uint64_t step, uint32_t every, uint32_t n);

#endif
