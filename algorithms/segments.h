/* segments.h: what algorithms over segments share: how large all of them are, and which of them one message can carry.
 * Segments of equal length lie one behind the other, so a message may have a run of them; where offsets or lengths are
 * given each has a message of its own, because ranks may have them in different places. Everything here is equal on all
 * ranks but for the places. Pure arithmetic over the description; it must not append steps. */
#ifndef RG_SEGMENTS_H
#define RG_SEGMENTS_H

#include "regroup_algorithm.h"

/* All segments together. Not where given lengths differ by rank. */
static inline double seg_bytes(const rg_coll_desc_t *d) { return (double)rg_seg_total(d) * d->elem_size; }

/* For cost(): rounds of messages that may be large. A large one costs what several do, or algorithms that cut theirs
 * would look worse for it; and a round ends with its slowest message, where those who pass pieces on do not wait. */
#define SEG_ROUNDS_COST 1.1
static inline double seg_messages(double bytes, double messages) {
    return bytes / 131072 > messages ? bytes / 131072 : messages;
}

/* Up to 2 MiB over TCP between ranks that share cores few large messages are best: each costs its receiver a switch,
 * and what comes from one rank at a time is still in cache (an all-gather of 64 KiB, 256 KiB and 1 MiB, 4 ranks on 2
 * cores: bruck 125, 350 and 976 us; star 215, 760 and 2440; direct 167, 605 and 2460). Through shared memory messages
 * have a price of their own. */
static inline int seg_shared_tcp(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    return m->sharing > 1 && m->work <= 0 && seg_bytes(d) <= 2097152;
}

/* Whether neighbours in rank are neighbours in memory. */
static inline int seg_dense(const rg_coll_desc_t *d) { return d->offs == NULL && d->lens == NULL; }

/* Piece p of the segment of a rank, all segments being cut into equally many. */
static inline rg_span_t seg_piece(const rg_coll_desc_t *d, rg_buf_t buf, uint32_t rank, uint32_t pieces, uint32_t p) {
    return rg_span_part(rg_seg(d, buf, rank), pieces, p);
}

/* How many of n segments, those of rank `first` and up, around the end, go in one message; what it carries is in
 * *span. At least one. */
static inline uint32_t seg_run(const rg_coll_desc_t *d, rg_buf_t buf, uint32_t first, uint32_t n, uint32_t pieces,
                               uint32_t p, rg_span_t *span) {
    *span = seg_piece(d, buf, first, pieces, p);
    if (!seg_dense(d) || pieces > 1) return 1;
    if (n > d->size - first) n = d->size - first;
    span->len = d->count * n;
    return n;
}

static inline uint32_t seg_rank(const rg_coll_desc_t *d, uint64_t number) { return (uint32_t)(number % d->size); }

/* The smallest number of rounds in which something can spread to n ranks, when each round doubles those that have it.
 */
static inline uint32_t seg_rounds(uint32_t n) {
    uint32_t rounds = 0;
    while (n > 1 && (n - 1) >> rounds != 0) rounds++;
    return rounds;
}

#endif
