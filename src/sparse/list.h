/* list.h: what the files of sparse lists share: lists in the caller's forms, windows of elements, and the forms in
 * which parts of lists travel. Everything is looked at through windows of 4096 elements, in ascending order, so that no
 * part needs to know how another keeps its indices. Included by src/sparse only. */
#ifndef RG_SPARSE_LIST_H
#define RG_SPARSE_LIST_H

#include "kernels/kernels.h"
#include "regroup_sparse.h"

#define RG_WINDOW 4096u

/* Elements first to first + len - 1 of a vector; has[i / 64] >> i % 64 says whether element first + i is there. */
typedef struct rg_window {
    uint64_t has[RG_WINDOW / 64];
    float v[RG_WINDOW];
} rg_window_t;

/* Conversions between the caller's type and f32, for the two directions. */
typedef struct rg_casts {
    rg_red_t in, out;
    uint32_t width;
} rg_casts_t;
int rg_casts_init(rg_casts_t *c, rg_dtype_t dtype); /* 0: not a type of lists */

/* ---- The caller's lists (list.c) --------------------------------------------------------------------------------- */

typedef enum rg_flaw {
    RG_FLAW_NONE,
    RG_FLAW_FORM,   /* unknown index, type or block; n too large */
    RG_FLAW_NULL,   /* no memory where there should be some */
    RG_FLAW_ORDER,  /* not ascending, or twice */
    RG_FLAW_RANGE,  /* beyond n */
    RG_FLAW_COUNT,  /* counts or bits do not come to `values` */
    RG_FLAW_MEMORY, /* of the member, not of the list */
    RG_FLAW_ROOM,   /* no room for a dense result */
    RG_FLAW_REST,   /* what is left out has no room */
    RG_FLAW_TYPE,   /* of values that are to be quantised */
    RG_FLAW_FINITE, /* of values that are to be quantised, or of their sums */
    RG_FLAW_BYTES   /* what arrived was not made by this library */
} rg_flaw_t;
const char *rg_flaw_text(rg_flaw_t flaw);

uint32_t rg_sparse_block(const rg_sparse_t *s);
/* All but the places of the elements. */
rg_flaw_t rg_list_form(const rg_sparse_t *s);
/* The places of all elements, to at[0..s->values). */
rg_flaw_t rg_list_places(const rg_sparse_t *s, uint64_t *at);

/* Writes a list, window by window. Only places are given to it where the room is known to do. */
typedef struct rg_writer {
    rg_sparse_t *s;
    const rg_casts_t *casts;
    uint64_t have;
    uint32_t
        *elements; /* of each window of the vector, where it is not NULL; windows begin at multiples of RG_WINDOW */
} rg_writer_t;
void rg_writer_begin(rg_writer_t *w, rg_sparse_t *s, const rg_casts_t *casts);
void rg_writer_window(rg_writer_t *w, uint64_t first, uint32_t len, const rg_window_t *win);
void rg_writer_end(rg_writer_t *w);

/* How many values a window is in lists: of BLOCKS, with all of the blocks that have an element (block; 0: no blocks).
 */
uint32_t rg_window_values(uint32_t block, uint32_t len, const rg_window_t *win);

/* ---- Parts that travel (slice.c) --------------------------------------------------------------------------------- */

typedef enum rg_slice_kind {
    RG_SLICE_NONE,   /* no element; no bytes */
    RG_SLICE_RICE,   /* distances, as Golomb and Rice write them */
    RG_SLICE_BITMAP, /* a bit for each element */
    RG_SLICE_BLOCKS, /* a bit for each block, all elements of which are there */
    RG_SLICE_DENSE,  /* all values; those that are not there have all bits set, which is a NaN */
    RG_SLICE_LIST    /* does not travel: places and values as they are */
} rg_slice_kind_t;
#define RG_SLICE_SPARSE 0x0eu /* kinds that may be chosen, as bits */
#define RG_SLICE_ANY 0x1eu
#define RG_SLICE_ONLY_DENSE 0x10u

/* k elements of the part [base, base + len) of a vector, with values of `width` bytes. block: what BLOCKS are of; 0:
 * there are none. Where there is a q, values are f32 here and travel in its wire form, in the order of the elements;
 * op and first number them for its random numbers, and `room` is where those of a part that is read are decoded to. */
typedef struct rg_part {
    uint64_t base, len, k;
    const uint64_t *at;
    const uint8_t *val;
    uint32_t width, block;
    const rg_quant_t *q;
    uint64_t op, first;
    float *room;
} rg_part_t;

/* Bytes that the values of a part take on their way. */
uint64_t rg_part_values(const rg_part_t *p);

typedef struct rg_slice {
    rg_slice_kind_t kind;
    uint32_t shift; /* RICE: bits of a distance that are written as they are */
    uint64_t bytes;
} rg_slice_t;

/* Whether blocks are there as a whole or not at all; 0 too where there are none. */
int rg_part_in_blocks(const rg_part_t *p);

/* The kind of fewest bytes among those allowed; where values forbid what is allowed, another. */
rg_slice_t rg_slice_choose(const rg_part_t *p, uint32_t allowed);
/* 0: a value that is to be quantised is not finite; the bytes then hold anything. */
int rg_slice_write(const rg_part_t *p, const rg_slice_t *s, uint8_t *to);

/* Reads a part, window by window. The bytes may come from anywhere. */
typedef struct rg_cursor {
    rg_slice_kind_t kind;
    const rg_casts_t *casts;
    const uint8_t *bits, *val;
    uint64_t bits_len, bit; /* RICE: in bits */
    uint64_t base, len, left, next;
    const uint64_t *at;
    uint32_t shift, block;
    int bad;
} rg_cursor_t;
void rg_cursor_open(rg_cursor_t *c, const rg_part_t *p, rg_slice_kind_t kind, const uint8_t *bytes, uint64_t n,
                    const rg_casts_t *casts);
/* No element lies before this, relative to base; len when there is none. */
uint64_t rg_cursor_next(const rg_cursor_t *c);
/* Elements first to first + len - 1, relative to base, first and len being whole windows but for the end. Later windows
 * only. */
void rg_cursor_window(rg_cursor_t *c, uint64_t first, uint32_t len, rg_window_t *win);
/* Whether everything has been read and nothing was wrong. */
int rg_cursor_good(const rg_cursor_t *c);

/* ---- Bringing together (merge.c) --------------------------------------------------------------------------------- */

#define RG_SHARED UINT16_MAX

/* Elements in ascending order, with values in the caller's type; who: the rank of the only one that had it, or
 * RG_SHARED. */
typedef struct rg_merged {
    uint64_t n, cap;
    uint64_t *at;
    uint8_t *val;
    uint16_t *who;
} rg_merged_t;

/* What the cursors of all ranks have, brought together in the order of ranks. 0: one of them was wrong, or m is full.
 */
int rg_merge(rg_cursor_t *cursors, uint32_t ranks, uint64_t base, uint64_t len, rg_sparse_op_t op,
             const rg_casts_t *casts, rg_merged_t *m);

/* A number of which k or more of n magnitudes are at least, and fewer than k are above; top: the largest of them. Any
 * n: the tables of topk.h count up to 2^32 - 1, and the other one does beyond. */
uint32_t rg_threshold(const uint32_t *mag, uint64_t n, uint64_t k, uint32_t top);
uint32_t rg_threshold_wide(const uint32_t *mag, uint64_t n, uint64_t k);

/* Keeps the k elements of largest magnitude. mag has room for m->n. */
void rg_merged_topk(rg_merged_t *m, uint64_t k, const rg_casts_t *casts, uint32_t *mag);

/* Magnitudes, as integers, that share m->n evenly: at least (i + 1) * m->n / RG_SAMPLES, rounded up, of the elements
 * reach the i-th. mag as above. */
#define RG_SAMPLES 62u
void rg_merged_sample(const rg_merged_t *m, const rg_casts_t *casts, uint32_t *mag, uint32_t *samples);
static inline uint64_t rg_sample_reach(uint64_t n, uint32_t i) {
    return n / RG_SAMPLES * (i + 1) + (n % RG_SAMPLES * (i + 1) + RG_SAMPLES - 1) / RG_SAMPLES;
}

/* Keeps the elements that reach a magnitude; mag has theirs. */
void rg_merged_reaching(rg_merged_t *m, uint32_t least, const rg_casts_t *casts, uint32_t *mag);

/* What one member alone has becomes this: v of n elements. */
void rg_merge_alone(float *v, uint32_t n, rg_sparse_op_t op, uint32_t ranks);

#endif
