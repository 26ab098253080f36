/* state.h: what the files of shared state have in common: the tensors and their pieces, the hashes of those, what
 * members tell each other, and the plans made from it. Nothing outside src/state may use it, except tests. The plans
 * (plan.c) are pure: all members make the same ones from the same numbers, so they must not look at anything else. */
#ifndef RG_STATE_H
#define RG_STATE_H

#include "regroup.h"

#include <stddef.h>

#define RG_PIECE_BYTES (1u << 20)
#define RG_PIECE_GROUP 32u             /* pieces whose hashes are compared by one hash first */
#define RG_STATE_PIECES_MAX (1u << 26) /* of a state: 64 TiB of large tensors */
#define RG_STATE_BUFFER (8u << 20)
#define RG_STATE_BUFFER_MIN (4u << 20)

typedef struct rg_hash {
    uint8_t b[16];
} rg_hash_t;

typedef struct rg_tensor {
    char *name;
    uint8_t *data;
    uint64_t count, bytes;
    rg_dtype_t dtype;
    uint32_t first, n; /* pieces; no piece is of two tensors */
} rg_tensor_t;

typedef struct rg_serve rg_serve_t;

struct rg_state {
    rg_tensor_t *tensors;
    uint32_t n, cap;
    uint64_t bytes, revision;
    int mixed;         /* in place, and not ended well: never a content that wins */
    rg_hash_t layout;  /* of names, types and counts */
    rg_hash_t *hashes; /* of every piece, as of the last hash pass */
    uint64_t *dirty;   /* bitmap: pieces that were touched since */
    uint32_t n_pieces, cap_pieces;
    rg_serve_t *serve; /* NULL: no member of a group serves it (serve.h) */
};

/* ---- Pieces and hashes (pieces.c) -------------------------------------------------------------------------------- */

typedef struct rg_piece {
    uint8_t *data;
    uint32_t bytes;
} rg_piece_t;

static inline int rg_bit(const uint64_t *map, uint64_t i) { return (int)(map[i / 64] >> (i % 64) & 1); }
static inline void rg_bit_set(uint64_t *map, uint64_t i) { map[i / 64] |= 1ull << (i % 64); }
static inline void rg_bit_clear(uint64_t *map, uint64_t i) { map[i / 64] &= ~(1ull << (i % 64)); }
static inline uint32_t rg_piece_groups(uint32_t n) { return (n + RG_PIECE_GROUP - 1) / RG_PIECE_GROUP; }

int rg_hash_equal(const rg_hash_t *a, const rg_hash_t *b);
rg_hash_t rg_hash_of(const void *p, size_t n);
/* `so_far` with one more tensor. */
rg_hash_t rg_hash_layout(rg_hash_t so_far, const char *name, rg_dtype_t dtype, uint64_t count);
/* Of the hashes of n pieces: one per group; and from those one for the whole. */
void rg_hash_groups(const rg_hash_t *pieces, uint32_t n, rg_hash_t *groups);
rg_hash_t rg_hash_root(const rg_hash_t *layout, const rg_hash_t *groups, uint32_t n_groups);

uint32_t rg_piece_tensor(const rg_state_t *s, uint32_t piece); /* index of its tensor */
rg_piece_t rg_state_piece(const rg_state_t *s, uint32_t piece);
/* Hashes what was touched, or everything. */
void rg_state_hash(rg_state_t *s, int touched_only);
void rg_state_touch_all(rg_state_t *s);

/* ---- What members tell each other, and what follows (plan.c) ----------------------------------------------------- */

#define RG_STATE_HEAD_BYTES 96u

typedef struct rg_state_head {
    uint32_t version, role, rule, mixed, buffer_bytes, n_tensors;
    uint32_t apart; /* 1: its hashes do not say what it wants: it keeps pieces aside, or may be allowed too few */
    int32_t status; /* of what this member did alone so far */
    uint64_t revision, bytes;
    rg_hash_t layout, root;
} rg_state_head_t;

void rg_state_head_put(const rg_state_head_t *h, uint8_t *to);
/* 0: these are not the bytes of a head. */
int rg_state_head_get(rg_state_head_t *h, const uint8_t *from);

typedef struct rg_state_choice {
    uint32_t winner;    /* lowest rank that has the content and may send */
    uint32_t holders;   /* members that have it */
    uint32_t receivers; /* members that do not */
    uint32_t buffer_bytes;
    uint64_t revision;
    uint32_t blame; /* rank, of an error; n when it is nobody's */
} rg_state_choice_t;

/* Whose content it is to be. Everybody comes to the same choice or the same error. `text` has room for 256 bytes. */
rg_status_t rg_state_choose(const rg_state_head_t *heads, uint32_t n, rg_state_choice_t *c, char *text);

typedef struct rg_move {
    uint32_t at; /* position in the list of pieces that are looked at */
    uint32_t from, to;
} rg_move_t;

typedef struct rg_deal {
    uint32_t n, m;          /* members; pieces that are looked at */
    const uint32_t *sizes;  /* of those */
    const uint8_t *follows; /* of each: 1 when the next one lies behind it in memory */
    const uint64_t *wants;  /* n bitmaps of `words` words each: bit set: does not have it */
    uint32_t words;
    const uint8_t *sends; /* per member: may send */
    uint32_t limit;       /* bytes that one member sends, and that one gets, in a round */
    uint32_t rounds;      /* at most */
    uint32_t stretch;     /* out: bytes that one member is given by another at a time */
    uint32_t turn;        /* changes who is asked first */
    /* Scratch, from the caller */
    uint64_t *open;     /* n bitmaps */
    uint32_t *cursor;   /* n */
    uint32_t *out, *in; /* n each */
} rg_deal_t;

/* Who sends what to whom: each wanted piece from a member that has it, so that all send and get about equally much.
 * Moves of round k end before ends[k]; returns the number of rounds, 0 when nobody wants anything (that somebody has).
 * `moves` has room for `cap`; what does not fit is left for the next call. */
uint32_t rg_state_deal(rg_deal_t *d, rg_move_t *moves, uint32_t cap, uint32_t *ends);

#endif
