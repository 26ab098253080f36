/* pieces.h: sending and receiving long segments piece by piece, for algorithms where segments go straight from where
 * they are to where they belong. How many pieces a segment has follows from its length alone, so that both ends agree
 * also where the segments differ. A few receives from each rank are posted at a time.
 * Relies on the builder alone; must stay free of state. */
#ifndef RG_PIECES_H
#define RG_PIECES_H

#include "regroup_algorithm.h"

/* Receives from one rank that are posted ahead. */
#define PIECES_AHEAD 4u

typedef struct streams {
    rg_schedule_t *s;
    uint32_t most;  /* pieces of the longest segment */
    uint32_t *came; /* by rank, the last PIECES_AHEAD receives */
} streams_t;

static inline uint32_t streams_pieces(const rg_schedule_t *s, uint64_t len) {
    return rg_sched_pieces(len, s->desc.chunk, 2 * (uint64_t)s->desc.size);
}

static inline int streams_begin(streams_t *x, rg_schedule_t *s, uint64_t longest) {
    *x = (streams_t){ s, streams_pieces(s, longest), rg_sched_scratch(s, (size_t)PIECES_AHEAD * s->desc.size) };
    return x->came != NULL;
}

/* Piece p of the segment; of no length where there is none. */
static inline rg_span_t stream_piece(const streams_t *x, rg_span_t seg, uint32_t p) {
    uint32_t pieces = streams_pieces(x->s, seg.len);
    return p < pieces ? rg_span_part(seg, pieces, p) : rg_span(seg.buf, seg.off, 0);
}

static inline void stream_send(streams_t *x, uint32_t to, rg_span_t seg, uint32_t p) {
    rg_span_t part = stream_piece(x, seg, p);
    if (part.len != 0) rg_sched_send(x->s, to, part, NULL, 0);
}

static inline void stream_recv(streams_t *x, uint32_t from, rg_span_t seg, uint32_t p) {
    rg_span_t part = stream_piece(x, seg, p);
    uint32_t *last = &x->came[(size_t)from * PIECES_AHEAD + p % PIECES_AHEAD];
    if (part.len != 0) *last = rg_sched_recv(x->s, from, part, 0, last, 1);
}

#endif
