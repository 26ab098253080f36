/* regroup_algorithm.h: the schedule builder that an algorithm calls. An algorithm is a pure function from a
 * description (kind, size, rank, count) to a schedule: a list of steps of ONE rank over the buffers IN, OUT and TMP.
 * It does no I/O, allocates only through the builder, and gives the same answer for the same description for ever.
 *
 * Rules that every schedule keeps (src/sched/verify.c proves them for every rank at once):
 *  A1  The result in OUT is right: every element is made of each participant's IN exactly once.
 *  A2  OUT is written once per element, and only with the final value. Partial values live in TMP, so that IN is
 *      intact until the final value of an element covers it (in place, IN and OUT are the same memory).
 *  A3  All ranks end with the same bits: one rank finalises an element and the others get its bytes, or every rank
 *      computes it with the same operations in the same order.
 *  A4  No races: two steps that touch the same bytes, one of them writing, are ordered by dependencies, also when
 *      IN and OUT are the same memory.
 *  A5  No deadlock, no unmatched message, nothing out of bounds: not even if a send ended only with its receive, and
 *      the messages from one rank to another went strictly one after the other.
 *  A6  With RG_SCHED_ZERO_COPY set, no rank writes over bytes that it has sent before their receiver has consumed
 *      them (by the order of messages, not by chance).
 *  A7  After the steps of phase 1, seal() adds the DONE barrier of rule L (phase 2): no rank ends phase 2 before
 *      every rank has ended phase 1. */
#ifndef REGROUP_ALGORITHM_H
#define REGROUP_ALGORITHM_H

#include "regroup.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What IN and OUT hold, by kind. "The segment of rank r" is a part of a buffer that has one for every rank.
 *   ALL_REDUCE, BROADCAST  IN and OUT: count elements. BROADCAST reads IN at the root only, OUT is written everywhere.
 *   REDUCE                 IN: count elements; OUT: the same, at the root only.
 *   ALL_GATHER             IN: this rank's segment; OUT: all segments, in the places that rg_seg() tells.
 *   REDUCE_SCATTER         IN: all segments; OUT: this rank's segment, reduced.
 *   GATHER                 as ALL_GATHER, with OUT at the root only.
 *   SCATTER                IN: all segments, at the root only; OUT: this rank's segment.
 *   ALL_TO_ALL             IN: a segment for every rank (rg_seg_in()); OUT: one from every rank (rg_seg()).
 *   P2P                    size 2; rank 0 sends IN (count elements), rank 1 receives it in OUT. */
typedef enum rg_kind {
    RG_KIND_ALL_REDUCE = 0,
    RG_KIND_BROADCAST = 1,
    RG_KIND_BARRIER = 2,
    RG_KIND_ALL_GATHER = 3,
    RG_KIND_REDUCE_SCATTER = 4,
    RG_KIND_REDUCE = 5,
    RG_KIND_GATHER = 6,
    RG_KIND_SCATTER = 7,
    RG_KIND_ALL_TO_ALL = 8,
    RG_KIND_P2P = 9,
    RG_KIND_COUNT = 10
} rg_kind_t;

/* Where the ranks are, from the innermost level out: group[l * size + r] is the group that rank r belongs to at level l
 * (ranks with equal numbers are near each other at that level; every level is a union of groups of the level below).
 * Level 0 is the host, level 1 the site. Equal on all ranks.
 * ring: all ranks in the order in which rings run best; the builder cares for it. rate: KiB per second that rank r can
 * send, and receive, of all its links together. NULL: nothing is known. */
typedef struct rg_topology {
    uint32_t levels;
    const uint32_t *group, *ring, *rate;
} rg_topology_t;

/* What is to be done. `rank` and `size` are those of the participants of this operation. */
typedef struct rg_coll_desc {
    rg_kind_t kind;
    uint32_t size, rank, root;
    uint64_t count;      /* elements; of each segment where the kind has segments and `lens` is NULL, else their sum */
    uint32_t elem_size;  /* bytes of an element of IN and OUT */
    uint32_t acc_size;   /* bytes of an element of TMP: partial values (f16 and bf16 accumulate in f32); where the kind
                          * does not reduce it is elem_size: TMP is raw, and copies from it are plain */
    uint64_t chunk;      /* elements per pipelined piece; never 0 */
    uint32_t rule_l;     /* 1: end with the DONE barrier; so does a BROADCAST without RG_SCHED_HEARD in any case */
    uint32_t in_place;   /* 1: IN and OUT are the same memory (schedules must be right either way) */
    uint32_t rank_order; /* 1: only algorithms that combine x0 op x1 op x2 ... from the left (deterministic) */
    uint32_t hub;        /* 1: the DONE barrier goes through rank 0, in two hops, but with few messages */
    uint32_t prepare;    /* 1: IN is made ready by an exchange of weights first; the builder cares for it (seal) */
    /* Segments that differ: offsets and lengths in elements, one per rank; NULL: one after the other, all `count` long.
     * Lengths are equal on all ranks but for ALL_TO_ALL. Offsets may differ by rank, so a message may not span two
     * segments. Segments may be anywhere, but those of a buffer that is written must not overlap. in_offs, in_lens:
     * ALL_TO_ALL only, what goes to each rank. build() gets a copy that belongs to the schedule, with both arrays where
     * one was given. applies(), cost() and chunk() must give all ranks the same answer: when a choice is made they see
     * no offsets, and of an ALL_TO_ALL with lengths only that in_lens is not NULL, with a guess for count. */
    const uint64_t *offs, *lens, *in_offs, *in_lens;
    const rg_topology_t *topo; /* NULL: nothing is known, all are alike */
} rg_coll_desc_t;

/* in_place, by kind: ALL_REDUCE, BROADCAST, REDUCE, BARRIER: IN and OUT begin at one address. ALL_GATHER, GATHER
 * (root): IN is this rank's segment of OUT. REDUCE_SCATTER, SCATTER (root): OUT is this rank's segment of IN. Never set
 * for ALL_TO_ALL, whose input the engine copies first, and for P2P. */

/* AUX: 8 bytes for every rank, the weights; only the builder's own steps name it. */
typedef enum rg_buf { RG_BUF_IN = 0, RG_BUF_OUT = 1, RG_BUF_TMP = 2, RG_BUF_AUX = 3 } rg_buf_t;
#define RG_BUFS 4

/* A range of elements. Elements of IN and OUT are elem_size bytes ("raw"), elements of TMP acc_size bytes. */
typedef struct rg_span_range {
    rg_buf_t buf;
    uint64_t off, len;
} rg_span_t;

typedef enum rg_step_kind {
    RG_STEP_SEND,        /* a -> peer */
    RG_STEP_RECV,        /* peer -> dst, plain copy; dst.buf has the sender's element size */
    RG_STEP_RECV_REDUCE, /* dst = a op incoming */
    RG_STEP_REDUCE,      /* dst = a op b */
    RG_STEP_COPY,        /* dst = a; both raw, or TMP from raw (converted), or raw from TMP with FINAL */
    RG_STEP_PREPARE      /* every rank's AUX is here: the engine makes IN ready, and knows what final values are
                            multiplied by. All steps that read IN, and all with FINAL, come after it */
} rg_step_kind_t;

#define RG_STEP_FINAL 1u    /* dst gets the final value: AVG divides here; a raw destination is rounded here */
#define RG_STEP_WIRE_ACC 2u /* what arrives was sent from TMP (acc_size), else raw */
#define RG_STEP_PHASE2 4u   /* part of the DONE barrier */
#define RG_STEP_SWAP 8u     /* operands in the order (incoming or b) op a: keeps rank order where it matters */

typedef struct rg_step {
    uint8_t kind, flags;
    uint16_t n_deps;
    uint32_t peer;      /* rank; SEND, RECV, RECV_REDUCE */
    uint32_t ord;       /* ordinal of the message from sender to receiver, given by the builder */
    uint32_t first_dep; /* index into deps: steps, all earlier, that must be finished first */
    rg_span_t dst, a, b;
} rg_step_t;

/* A6, a proven property, for transports that read a sender's memory in place, after the send has ended. It covers a
 * schedule that runs to its end: sends of such a transport must still be fenced before an aborted operation gives its
 * buffers back, or a peer takes for good what is written there next. No transport of this version does that. */
#define RG_SCHED_ZERO_COPY 1u
/* Of a BROADCAST, and proved like the rest: a rank whose steps are done has heard from all. From rg_algorithm_t. */
#define RG_SCHED_HEARD 2u

/* A finished schedule is immutable, so threads and operations share it. */
typedef struct rg_schedule {
    rg_coll_desc_t desc;
    uint32_t flags;
    uint32_t n_steps, n_deps, cap_steps, cap_deps;
    uint32_t phase1_steps;   /* steps before the barrier */
    uint64_t tmp_elems;      /* elements of TMP that the steps use */
    uint64_t elems[RG_BUFS]; /* how far the other buffers reach, by what desc says */
    rg_step_t *steps;
    uint32_t *deps;
    uint32_t *send_ord, *recv_ord; /* per peer, used while building */
    void *scratch;                 /* what rg_sched_scratch() gave; gone when the schedule is built */
    void *copies;                  /* what the arrays of desc point into */
    uint32_t gate;                 /* the PREPARE step, which every reader of IN follows; else RG_NO_STEP */
    rg_status_t error;             /* first error while building: NOMEM or INVALID */
} rg_schedule_t;

/* Building. Each call appends a step and returns its index; deps are indexes of earlier steps (RG_NO_STEP entries are
 * skipped). After an error the calls do nothing and `error` stays set. Empty spans are allowed: the step is still a
 * message where it is one. */
#define RG_NO_STEP UINT32_MAX
#define RG_MAX_DEPS 65535
uint32_t rg_sched_send(rg_schedule_t *s, uint32_t peer, rg_span_t a, const uint32_t *deps, uint32_t n_deps);
uint32_t rg_sched_recv(rg_schedule_t *s, uint32_t peer, rg_span_t dst, uint32_t flags, const uint32_t *deps,
                       uint32_t n_deps);
uint32_t rg_sched_recv_reduce(rg_schedule_t *s, uint32_t peer, rg_span_t dst, rg_span_t a, uint32_t flags,
                              const uint32_t *deps, uint32_t n_deps);
uint32_t rg_sched_reduce(rg_schedule_t *s, rg_span_t dst, rg_span_t a, rg_span_t b, uint32_t flags,
                         const uint32_t *deps, uint32_t n_deps);
uint32_t rg_sched_copy(rg_schedule_t *s, rg_span_t dst, rg_span_t a, uint32_t flags, const uint32_t *deps,
                       uint32_t n_deps);
rg_span_t rg_span(rg_buf_t buf, uint64_t off, uint64_t len);

/* The segment of `rank` in the buffer that has all of them (OUT of ALL_GATHER, GATHER and ALL_TO_ALL, IN of
 * REDUCE_SCATTER and SCATTER); rg_seg_in(): what ALL_TO_ALL sends to `rank`; rg_seg_len(): its length. */
rg_span_t rg_seg(const rg_coll_desc_t *d, rg_buf_t buf, uint32_t rank);
rg_span_t rg_seg_in(const rg_coll_desc_t *d, uint32_t rank);
uint64_t rg_seg_len(const rg_coll_desc_t *d, uint32_t rank);
uint64_t rg_seg_max(const rg_coll_desc_t *d);   /* the longest of all */
uint64_t rg_seg_total(const rg_coll_desc_t *d); /* all of them together, in elements */

/* What a kind is like: reduces values; has a root; its shape depends on the number of ranks (so that nothing can take
 * its place after a loss); has segments. */
int rg_kind_reduces(rg_kind_t kind);
int rg_kind_rooted(rg_kind_t kind);
int rg_kind_shaped(rg_kind_t kind);
int rg_kind_segmented(rg_kind_t kind);
const char *rg_kind_name(rg_kind_t kind); /* "all_reduce"; "?" for an unknown kind */

/* Part `index` of `parts` nearly equal parts of a span, in order; the same on every rank. Long parts start at
 * multiples of 64 elements from the start of the span, so that no two parts share a cache line; a part may be empty. */
rg_span_t rg_span_part(rg_span_t whole, uint64_t parts, uint64_t index);

/* The part of a span that `index` of n ranks should own when all of them reduce it by direct exchange, so that the
 * slowest is done as early as can be: the closed form of the linear program. rate as in rg_topology_t; NULL, or more
 * than 64 ranks: nearly equal parts. rg_share_seconds(): how long that takes at least. */
rg_span_t rg_share_part(rg_span_t whole, const uint32_t *rate, uint32_t n, uint32_t index);
double rg_share_seconds(const uint32_t *rate, uint32_t n, double bytes);

/* How many pieces to pipeline a span of len elements in: pieces of about `chunk` elements, but never so many that the
 * schedule grows beyond reason, given how many steps a piece costs. At least 1. */
#define RG_PIECES_MAX 512
uint32_t rg_sched_pieces(uint64_t len, uint64_t chunk, uint64_t steps_per_piece);

/* n step indexes, all RG_NO_STEP, that live until the schedule is built; aligned for anything of 8 bytes. NULL after an
 * error (s->error is set). */
uint32_t *rg_sched_scratch(rg_schedule_t *s, size_t n);

/* Appends a dissemination among all ranks with messages of no length: when the steps that it appended are done, every
 * rank has finished the steps in deps. One round up to 8 ranks. (Hensgen, Finkel, Manber 1988; radix as in
 * Bruck et al. 1997.) */
void rg_sched_disseminate(rg_schedule_t *s, const uint32_t *deps, uint32_t n_deps);

/* The same through rank 0, which hears from all and then tells all: for ranks that share cores. */
void rg_sched_star(rg_schedule_t *s, const uint32_t *deps, uint32_t n_deps);

/* A dissemination that is a whole BROADCAST: what the root has as IN goes along to OUT, to each rank once, with the
 * message of the first that has it. */
void rg_sched_spread(rg_schedule_t *s);

/* Link parameters for cost(): seconds per message, per byte on the wire, per byte reduced; the number of processes
 * that share a core (a hop between processes that do not run at once costs a switch). alpha and beta are those of the
 * slowest kind of link in the group; work is what a message is to the processor of a rank, 0 for the usual part of
 * alpha; level[l] those of links that stay inside a group of level l of the topology (host,
 * site), level[topo->levels] those of the others: what hierarchical algorithms are judged by. */
#define RG_LEVELS_MAX 2
typedef struct rg_cost_model {
    double alpha, beta, gamma, sharing, work;
    struct {
        double alpha, beta;
    } level[RG_LEVELS_MAX + 1];
} rg_cost_model_t;

/* The usual sum: `hops` messages one after the other, `messages` that a rank handles in all, `bytes` that it sends,
 * `reduced` bytes that it reduces. Work is multiplied by sharing. */
double rg_cost(const rg_cost_model_t *m, double hops, double messages, double bytes, double reduced);

/* One per file algorithms/<kind>_<name>.c, as `const rg_algorithm_t rg_alg_<kind>_<name>`. The build makes the table
 * of all of them from the folder. */
typedef struct rg_algorithm {
    const char *name; /* "ring" */
    rg_kind_t kind;
    const char *source; /* where it was published */
    int (*applies)(const rg_coll_desc_t *d);
    double (*cost)(const rg_coll_desc_t *d, const rg_cost_model_t *m); /* seconds, predicted */
    uint64_t (*chunk)(const rg_coll_desc_t *d); /* preferred piece in elements; NULL: the caller's default */
    rg_status_t (*build)(rg_schedule_t *s, const rg_coll_desc_t *d);
    int hears_all; /* a BROADCAST: RG_SCHED_HEARD. Such are for results that are shown at once (rule_l 0) */
} rg_algorithm_t;

#ifdef __cplusplus
}
#endif
#endif
