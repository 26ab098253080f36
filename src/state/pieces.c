/* pieces.c: where the pieces of a state are, and their hashes: of each piece, of groups of them, of the whole, so that
 * equal states are told by one hash and few differences by few. Relies on xxHash (XXH3, 128 bits). It must not write to
 * the tensors. */
#include "state/serve.h"

#include "core/wire.h"

#include <string.h>
#include <xxhash.h>

int rg_hash_equal(const rg_hash_t *a, const rg_hash_t *b) { return memcmp(a, b, sizeof *a) == 0; }

/* Canonical bytes, so that machines of either byte order agree. */
rg_hash_t rg_hash_of(const void *p, size_t n) {
    rg_hash_t h;
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits(p, n));
    memcpy(h.b, c.digest, sizeof h.b);
    return h;
}

rg_hash_t rg_hash_layout(rg_hash_t so_far, const char *name, rg_dtype_t dtype, uint64_t count) {
    uint8_t bytes[512];
    rg_w_t w = { bytes, 0, sizeof bytes, 0 };
    rg_w_bytes(&w, so_far.b, sizeof so_far.b);
    rg_w_u32(&w, (uint32_t)dtype);
    rg_w_u64(&w, count);
    rg_w_text(&w, name, 255);
    return rg_hash_of(bytes, w.len);
}

void rg_hash_groups(const rg_hash_t *pieces, uint32_t n, rg_hash_t *groups) {
    for (uint32_t i = 0; i < n; i += RG_PIECE_GROUP) {
        uint32_t in = n - i < RG_PIECE_GROUP ? n - i : RG_PIECE_GROUP;
        groups[i / RG_PIECE_GROUP] = rg_hash_of(pieces + i, in * sizeof *pieces);
    }
}

rg_hash_t rg_hash_root(const rg_hash_t *layout, const rg_hash_t *groups, uint32_t n_groups) {
    rg_hash_t both[2] = { *layout, rg_hash_of(groups, n_groups * sizeof *groups) };
    return rg_hash_of(both, sizeof both);
}

uint32_t rg_piece_tensor(const rg_state_t *s, uint32_t piece) {
    uint32_t lo = 0, hi = s->n;
    while (hi - lo > 1) { /* the last tensor that begins at or before the piece; empty ones begin where the next does */
        uint32_t mid = lo + (hi - lo) / 2;
        if (s->tensors[mid].first <= piece) lo = mid;
        else hi = mid;
    }
    return lo;
}

rg_piece_t rg_state_piece(const rg_state_t *s, uint32_t piece) {
    const rg_tensor_t *t = &s->tensors[rg_piece_tensor(s, piece)];
    uint64_t at = (uint64_t)(piece - t->first) * RG_PIECE_BYTES;
    return (rg_piece_t){ t->data + at, t->bytes - at < RG_PIECE_BYTES ? (uint32_t)(t->bytes - at) : RG_PIECE_BYTES };
}

void rg_state_hash(rg_state_t *s, int touched_only) {
    for (uint32_t k = 0; k < s->n; k++) {
        const rg_tensor_t *t = &s->tensors[k];
        for (uint32_t i = 0; i < t->n; i++) {
            rg_serve_lock(s);
            int dirty = rg_bit(s->dirty, t->first + i);
            rg_serve_unlock(s);
            if (touched_only && !dirty) continue;
            uint64_t at = (uint64_t)i * RG_PIECE_BYTES, left = t->bytes - at;
            rg_hash_t h = rg_hash_of(t->data + at, left < RG_PIECE_BYTES ? left : RG_PIECE_BYTES);
            rg_serve_lock(s);
            s->hashes[t->first + i] = h;
            rg_bit_clear(s->dirty, t->first + i);
            rg_serve_unlock(s);
        }
    }
}

void rg_state_touch_all(rg_state_t *s) {
    if (s->dirty) memset(s->dirty, 0xff, (s->cap_pieces + 63) / 64 * sizeof *s->dirty);
}
