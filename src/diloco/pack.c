/* pack.c: which part of which tensor belongs to which fragment, and when a fragment is sent. All members compute this
 * from the same names and counts, so it must not depend on anything else. No memory of its own. */
#include "assume.h"
#include "diloco/outer.h"

#include <stdlib.h>

static int compare_u64(uint64_t a, uint64_t b) { return a < b ? -1 : a > b; }

/* Large ones first; the rest makes the order one. */
static int by_size(const void *pa, const void *pb) {
    const rg_pack_piece_t *a = pa, *b = pb;
    int c = compare_u64(b->count, a->count);
    if (!c) c = compare_u64(a->name, b->name);
    if (!c) c = compare_u64(a->tensor, b->tensor);
    return c ? c : compare_u64(a->first, b->first);
}

static int by_place(const void *pa, const void *pb) {
    const rg_pack_piece_t *a = pa, *b = pb;
    int c = compare_u64(a->fragment, b->fragment);
    if (!c) c = compare_u64(a->tensor, b->tensor);
    return c ? c : compare_u64(a->first, b->first);
}

/* Pieces of at most `most` elements of the tensors that share fragments. */
static uint32_t cut(const rg_pack_tensor_t *t, uint32_t n, uint64_t most, rg_pack_piece_t *piece) {
    uint32_t made = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t at = 0; !t[i].alone && at < t[i].count; at += most) {
            uint64_t left = t[i].count - at;
            piece[made++] = (rg_pack_piece_t){ 0, i, at, left < most ? left : most, t[i].name };
        }
    return made;
}

/* Each piece, the largest first, to the fragment that has least. Whether the fragments are of like size then. */
static int fill(rg_pack_piece_t *piece, uint32_t pieces, uint32_t fragments, uint64_t *sizes) {
    qsort(piece, pieces, sizeof *piece, by_size);
    for (uint32_t f = 0; f < fragments; f++) sizes[f] = 0;
    for (uint32_t i = 0; i < pieces; i++) {
        uint32_t least = 0;
        for (uint32_t f = 1; f < fragments; f++)
            if (sizes[f] < sizes[least]) least = f;
        piece[i].fragment = least;
        sizes[least] += piece[i].count;
    }
    uint64_t low = UINT64_MAX, high = 0;
    for (uint32_t f = 0; f < fragments; f++) {
        low = sizes[f] < low ? sizes[f] : low;
        high = sizes[f] > high ? sizes[f] : high;
    }
    return high - low <= low / 10;
}

/* Neighbours that ended in one fragment are one piece. */
static uint32_t join_neighbours(rg_pack_piece_t *piece, uint32_t pieces) {
    uint32_t made = 0;
    qsort(piece, pieces, sizeof *piece, by_place);
    for (uint32_t i = 0; i < pieces; i++) {
        rg_pack_piece_t *last = made ? &piece[made - 1] : 0;
        if (last && last->fragment == piece[i].fragment && last->tensor == piece[i].tensor &&
            last->first + last->count == piece[i].first)
            last->count += piece[i].count;
        else piece[made++] = piece[i];
    }
    return made;
}

uint32_t rg_pack(const rg_pack_tensor_t *t, uint32_t n, uint32_t fragments, rg_pack_piece_t *piece, uint32_t *pieces,
                 uint64_t *sizes) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < n; i++) all += t[i].alone ? 0 : t[i].count;
    if (all == 0) fragments = 0;
    uint32_t made = cut(t, n, UINT64_MAX / 2, piece);
    if (!fill(piece, made, fragments, sizes)) {
        RG_ASSUME(fragments); /* none are always of like size */
        uint64_t share = all / ((uint64_t)fragments * 16);
        made = cut(t, n, share + 1, piece);
        fill(piece, made, fragments, sizes);
    }
    for (uint32_t i = 0; i < n; i++)
        if (t[i].alone && t[i].count) {
            piece[made++] = (rg_pack_piece_t){ fragments, i, 0, t[i].count, t[i].name };
            sizes[fragments++] = t[i].count;
        }
    *pieces = join_neighbours(piece, made);
    return fragments;
}

int64_t rg_outer_due(uint64_t step, uint32_t every, uint32_t n) {
    uint64_t in_round = step % every;
    if (in_round == 0) in_round = every;
    /* The p with (p + 1) * every / n, rounded down, == in_round: the first that is not below it. */
    uint64_t p = (in_round * n + every - 1) / every;
    return step && p && p <= n && p * every / n == in_round ? (int64_t)p - 1 : -1;
}
