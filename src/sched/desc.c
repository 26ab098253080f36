/* desc.c: what a description says: the kinds and what they are like, where the segments are, how long the buffers are;
 * and the copy of all its arrays that a schedule keeps, because it outlives the call that described it.
 * Relies on malloc for that copy alone. Must not: do I/O, read a clock, look at data. Offsets and lengths come from
 * callers, so sums are checked before anything is built upon them. */
#include "sched.h"

#include <stdlib.h>
#include <string.h>

enum { REDUCES = 1, ROOTED = 2, SHAPED = 4, SEGMENTED = 8 };

static const struct {
    const char *name;
    unsigned like;
} kinds[RG_KIND_COUNT] = {
    [RG_KIND_ALL_REDUCE] = { "all_reduce", REDUCES },
    [RG_KIND_BROADCAST] = { "broadcast", ROOTED },
    [RG_KIND_BARRIER] = { "barrier", 0 },
    [RG_KIND_ALL_GATHER] = { "all_gather", SHAPED | SEGMENTED },
    [RG_KIND_REDUCE_SCATTER] = { "reduce_scatter", REDUCES | SHAPED | SEGMENTED },
    [RG_KIND_REDUCE] = { "reduce", REDUCES | ROOTED },
    [RG_KIND_GATHER] = { "gather", ROOTED | SHAPED | SEGMENTED },
    [RG_KIND_SCATTER] = { "scatter", ROOTED | SHAPED | SEGMENTED },
    [RG_KIND_ALL_TO_ALL] = { "all_to_all", SHAPED | SEGMENTED },
    [RG_KIND_P2P] = { "p2p", SHAPED },
};

static int is_like(rg_kind_t kind, unsigned what) {
    return (unsigned)kind < RG_KIND_COUNT && (kinds[kind].like & what) != 0;
}

int rg_kind_reduces(rg_kind_t kind) { return is_like(kind, REDUCES); }
int rg_kind_rooted(rg_kind_t kind) { return is_like(kind, ROOTED); }
int rg_kind_shaped(rg_kind_t kind) { return is_like(kind, SHAPED); }
int rg_kind_segmented(rg_kind_t kind) { return is_like(kind, SEGMENTED); }
const char *rg_kind_name(rg_kind_t kind) { return (unsigned)kind < RG_KIND_COUNT ? kinds[kind].name : "?"; }

/* ---- Segments ------------------------------------------------------------------------------------------------- */

static uint64_t length(const uint64_t *lens, uint64_t count, uint32_t rank) { return lens ? lens[rank] : count; }

/* Without offsets the segments follow each other. */
static uint64_t offset(const uint64_t *offs, const uint64_t *lens, uint64_t count, uint32_t rank) {
    if (offs != NULL) return offs[rank];
    if (lens == NULL) return count * rank;
    uint64_t at = 0;
    for (uint32_t i = 0; i < rank; i++) at += lens[i];
    return at;
}

rg_span_t rg_seg(const rg_coll_desc_t *d, rg_buf_t buf, uint32_t rank) {
    return rg_span(buf, offset(d->offs, d->lens, d->count, rank), length(d->lens, d->count, rank));
}

rg_span_t rg_seg_in(const rg_coll_desc_t *d, uint32_t rank) {
    return rg_span(RG_BUF_IN, offset(d->in_offs, d->in_lens, d->count, rank), length(d->in_lens, d->count, rank));
}

uint64_t rg_seg_len(const rg_coll_desc_t *d, uint32_t rank) { return length(d->lens, d->count, rank); }

uint64_t rg_seg_max(const rg_coll_desc_t *d) {
    if (d->lens == NULL) return d->count;
    uint64_t most = 0;
    for (uint32_t i = 0; i < d->size; i++)
        if (d->lens[i] > most) most = d->lens[i];
    return most;
}

uint64_t rg_seg_total(const rg_coll_desc_t *d) {
    if (d->lens == NULL) return d->count > UINT64_MAX / d->size ? UINT64_MAX : d->count * d->size;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < d->size; i++) sum = d->lens[i] > UINT64_MAX - sum ? UINT64_MAX : sum + d->lens[i];
    return sum;
}

/* ---- Buffers -------------------------------------------------------------------------------------------------- */

/* Where the last segment ends; UINT64_MAX when that is beyond all numbers. */
static uint64_t extent(const uint64_t *offs, const uint64_t *lens, uint64_t count, uint32_t size) {
    uint64_t most = 0, at = 0;
    for (uint32_t i = 0; i < size; i++) {
        uint64_t len = length(lens, count, i), off = offs ? offs[i] : at;
        if (off > UINT64_MAX - 1 - len) return UINT64_MAX;
        at = off + len;
        if (len != 0 && at > most) most = at;
    }
    return most;
}

uint64_t rg_desc_elems(const rg_coll_desc_t *d, rg_buf_t buf) {
    if (buf == RG_BUF_AUX) return d->size;
    if (buf == RG_BUF_TMP) return 0;
    int in = buf == RG_BUF_IN;
    switch (d->kind) {
    case RG_KIND_BARRIER: return 0;
    case RG_KIND_ALL_GATHER:
    case RG_KIND_GATHER: return in ? rg_seg_len(d, d->rank) : extent(d->offs, d->lens, d->count, d->size);
    case RG_KIND_REDUCE_SCATTER:
    case RG_KIND_SCATTER: return in ? extent(d->offs, d->lens, d->count, d->size) : rg_seg_len(d, d->rank);
    case RG_KIND_ALL_TO_ALL:
        return in ? extent(d->in_offs, d->in_lens, d->count, d->size) : extent(d->offs, d->lens, d->count, d->size);
    default: return d->count;
    }
}

uint64_t rg_desc_bytes(const rg_coll_desc_t *d) {
    uint64_t elems = rg_kind_segmented(d->kind) ? rg_seg_total(d) : d->count;
    return d->elem_size != 0 && elems > UINT64_MAX / d->elem_size ? UINT64_MAX : elems * d->elem_size;
}

int rg_desc_has(const rg_coll_desc_t *d, rg_buf_t buf) {
    int root = d->rank == d->root;
    switch (d->kind) {
    case RG_KIND_BROADCAST:
    case RG_KIND_SCATTER: return buf != RG_BUF_IN || root;
    case RG_KIND_REDUCE:
    case RG_KIND_GATHER: return buf != RG_BUF_OUT || root;
    case RG_KIND_P2P: return buf != (d->rank == 0 ? RG_BUF_OUT : RG_BUF_IN);
    default: return 1;
    }
}

int rg_desc_ok(const rg_coll_desc_t *d) {
    if ((unsigned)d->kind >= RG_KIND_COUNT || d->size == 0 || d->rank >= d->size || d->chunk == 0) return 0;
    if (rg_kind_rooted(d->kind) && d->root >= d->size) return 0;
    if (d->kind == RG_KIND_P2P && d->size != 2) return 0;
    if (!rg_kind_reduces(d->kind) && d->kind != RG_KIND_BARRIER && d->acc_size != d->elem_size) return 0;
    if (d->topo != NULL && (d->topo->levels > RG_LEVELS_MAX || (d->topo->levels != 0 && d->topo->group == NULL)))
        return 0;
    return rg_desc_elems(d, RG_BUF_IN) != UINT64_MAX && rg_desc_elems(d, RG_BUF_OUT) != UINT64_MAX;
}

/* ---- The copy ------------------------------------------------------------------------------------------------- */

/* Writes offsets and lengths of one buffer's segments behind each other; both, if the caller gave either. */
static uint64_t *copy_segments(uint64_t *to, const uint64_t **offs, const uint64_t **lens, uint64_t count,
                               uint32_t size) {
    if (*offs == NULL && *lens == NULL) return to;
    for (uint32_t i = 0, n = size; i < n; i++) {
        to[size + i] = length(*lens, count, i);
        to[i] = *offs != NULL ? (*offs)[i] : i == 0 ? 0 : to[i - 1] + to[size + i - 1];
    }
    *offs = to;
    *lens = to + size;
    return to + 2 * (size_t)size;
}

static const uint32_t *copy_ranks(uint32_t **to, const uint32_t *from, size_t n) {
    uint32_t *at = *to;
    if (from == NULL) return NULL;
    if (n != 0) memcpy(at, from, n * sizeof *at);
    *to += n;
    return at;
}

int rg_desc_copy(rg_coll_desc_t *d, void **block) {
    size_t n = d->size, words = 0, groups = 0;
    *block = NULL;
    if (!rg_kind_segmented(d->kind)) d->offs = d->lens = NULL;
    if (d->kind != RG_KIND_ALL_TO_ALL) d->in_offs = d->in_lens = NULL;
    int out_given = d->offs != NULL || d->lens != NULL, in_given = d->in_offs != NULL || d->in_lens != NULL;
    words += 2 * n * (size_t)(out_given + in_given);
    if (d->topo != NULL) groups = n * (d->topo->levels + (d->topo->ring != NULL) + (d->topo->rate != NULL));
    if (words == 0 && d->topo == NULL) return 1;
    /* The widest first, so that all of it is aligned. */
    size_t at_topo = words * sizeof(uint64_t), at_groups = at_topo + sizeof(rg_topology_t);
    char *p = malloc(at_groups + groups * sizeof(uint32_t) + 1);
    if (p == NULL) return 0;
    uint64_t *to = copy_segments((uint64_t *)p, &d->offs, &d->lens, d->count, d->size);
    copy_segments(to, &d->in_offs, &d->in_lens, d->count, d->size);
    if (d->topo != NULL) {
        rg_topology_t *topo = (rg_topology_t *)(p + at_topo);
        uint32_t *at = (uint32_t *)(p + at_groups);
        *topo = (rg_topology_t){ .levels = d->topo->levels };
        topo->group = copy_ranks(&at, d->topo->group, n * d->topo->levels);
        topo->ring = copy_ranks(&at, d->topo->ring, n);
        topo->rate = copy_ranks(&at, d->topo->rate, n);
        d->topo = topo;
    }
    *block = p;
    return 1;
}
