/* parts.h: what the files of the quantised collectives share: the quantiser, one call of it, and the parts that travel,
 * each of a head that says what its sender takes the call for and a payload. Relies on src/sparse/frame.h for what
 * calls of several operations have in common. Included by src/quant only; it must not say what is done with payloads.
 */
#ifndef RG_QUANT_PARTS_H
#define RG_QUANT_PARTS_H

#include "quant/codec.h"
#include "sparse/later.h"

#include <math.h>

/* Of a head before its part: its fields in this order, the lowest byte first, and four bytes of 0. */
#define RG_HEAD_BYTES 32u

typedef struct rg_part_head {
    uint64_t call;    /* hash of what is done with how many elements in which form */
    uint64_t members; /* hash of those for whom the shares were cut */
    double bound;
    uint32_t finite;
} rg_part_head_t;

enum { RG_QUANT_ALL_REDUCE = 1, RG_QUANT_REDUCE_SCATTER, RG_QUANT_ALL_GATHER };

/* Who is where. Hosts are named by their first rank. */
typedef struct rg_near {
    uint32_t *host, *place; /* by rank: its host, and how many of that host's members come before it */
    uint32_t *size, *first; /* by host: members, and where they begin in `order` */
    uint32_t *order;        /* ranks, host by host */
    uint32_t hosts, widest; /* hosts; members of the largest */
    uint32_t cap;
} rg_near_t;

struct rg_quantiser {
    rg_group_t *g;
    rg_quant_t q;
    rg_feedback_t f;
    int feeds;
    uint32_t forms[RG_QUANT_ALL_GATHER + 1]; /* asked for, by kind of call */
    uint32_t form;                           /* of the last call that succeeded */
    uint64_t calls;                          /* numbers what is encoded, for stochastic rounding */
    double bound;
    float *kept, *next; /* next: m, and then what will be kept */
    uint64_t n_kept, n_next;
    rg_room_t out, in, sum, piece, scales;
    uint64_t *sizes; /* five arrays of cap_n */
    uint32_t cap_n;
    rg_near_t near;
    rg_later_t *queue; /* NULL before the first request */
};

/* One call, and the attempt at it that is going on. */
typedef struct rg_quant_job {
    rg_quantiser_t *z;
    rg_frame_t f;
    int kind;
    const float *in;
    float *out;
    uint64_t count, unit, call;
    rg_op_t op;
    uint32_t form;
    double bound;
    int finite; /* all that this member puts in, which its heads to everybody say */
    rg_cost_model_t model;
    /* Of the parts of an exchange by rank, own ones having none: bytes and places in z->out and z->in. */
    uint64_t *out_len, *out_at, *in_len, *in_at, *fill;
} rg_quant_job_t;

/* parts.c */
rg_part_head_t rg_part_head(const uint8_t *from);
void rg_part_put_head(uint8_t *to, const rg_part_head_t *h);
uint64_t rg_slice_at(const rg_quant_job_t *a, uint32_t r);
static inline uint64_t rg_slice_len(const rg_quant_job_t *a, uint32_t r) {
    return rg_slice_at(a, r + 1) - rg_slice_at(a, r);
}
/* Where members are, and the arrays of an attempt. 0: no memory. */
int rg_parts_begin(rg_quant_job_t *a, uint32_t n);
void rg_parts_begin_exchange(rg_quant_job_t *a); /* no payload for anybody, yet */
/* Payload lengths, which the caller has set, become parts with places and memory. Not OK: return it. */
rg_status_t rg_parts_lay(rg_quant_job_t *a);
/* Encodes n elements behind a head at `to`. What is kept of them for the next time replaces them at `kept`, where there
 * is feedback. `bound` is what v itself is off by. */
void rg_part_say(rg_quant_job_t *a, uint8_t *to, const float *v, uint64_t first, uint64_t n, float *kept, double bound);
float rg_part_left(const rg_quantiser_t *z, float whole, float said); /* what is kept of one element */
/* All parts to everybody; what came, judged. */
rg_status_t rg_parts_swap(rg_quant_job_t *a);
rg_status_t rg_parts_judge(rg_quant_job_t *a, const uint64_t *at);
int rg_all_finite(const rg_quant_job_t *a, const float *v, uint64_t n);
void rg_add_plain(const rg_quant_job_t *a, float *sum, const float *v, uint64_t n);

/* reduce.c: this rank's slice of the sum (or average), to z->sum. v is the input, or m and then what will be kept. */
rg_status_t rg_scatter_direct(rg_quant_job_t *a, const float *v, float *kept);
rg_status_t rg_scatter_ring(rg_quant_job_t *a, const float *v, float *kept);
rg_status_t rg_scatter_two_level(rg_quant_job_t *a, const float *v, float *kept);

/* integer.c: the same, as whole numbers of a scale that all share; and what they are. */
rg_status_t rg_scatter_integer(rg_quant_job_t *a, const float *v, float *kept);
void rg_integer_values(const rg_quant_job_t *a, float *out); /* of this rank's slice, in z->sum */
uint64_t rg_integer_bytes(const rg_quant_job_t *a, uint64_t n);
void rg_integer_put(rg_quant_job_t *a, uint8_t *to); /* z->sum, packed behind a head */
void rg_integer_get(const rg_quant_job_t *a, uint32_t rank, const uint8_t *from, float *out);
int rg_integer_can(rg_wire_t wire);

/* form.c */
uint32_t rg_form_of_list(const char *list, const char *kind, char *text, size_t cap); /* UINT32_MAX with text */
uint32_t rg_form_choose(const rg_near_t *near, uint32_t n, uint64_t elems, uint64_t bytes, const rg_cost_model_t *m);

/* collective.c: a call, when its turn has come. stop: NULL for one that blocks. */
rg_status_t rg_quant_run(rg_quantiser_t *z, int kind, const float *in, float *out, uint64_t count, rg_op_t op,
                         const rg_opts_t *opts, rg_stop_t *stop);

#endif
