/* moves_plan.c: which chunk goes from whom to whom, in which pieces and in which order. Pure: no clock, no I/O, no
 * memory, nothing but the placement and the hosts decides, so that every member plans alike. */
#include "sparse/frame.h"
#include "sparse/moves.h"

#define CHAIN_BYTES (256u << 10)
#define PIECE_BYTES (64u << 10)
#define PIECES_MOST 64u

const char *rg_placement_flaw(const rg_placement_t *p, uint32_t n) {
    if (p == NULL || p->size != sizeof *p) return "is not initialised: use RG_PLACEMENT_INIT";
    if (p->chunks == 0) return NULL;
    if (p->bytes == NULL || p->owner == NULL || p->present == NULL)
        return "has chunks, but bytes, owner or present is NULL";
    for (uint32_t c = 0; c < p->chunks; c++) {
        if (p->owner[c] >= n) return "has an owner that is no rank";
        if (!rg_placed(p, p->owner[c], c)) return "has an owner that is not to have its chunk";
    }
    return NULL;
}

uint64_t rg_placement_hash(const rg_placement_t *p, uint32_t n, const uint32_t *host) {
    uint64_t h = rg_frame_mix(0x6d6f7665u, (uint64_t)p->chunks << 32 | n);
    for (uint32_t c = 0; c < p->chunks; c++) {
        h = rg_frame_mix(rg_frame_mix(h, p->bytes[c]), p->owner[c]);
        for (uint32_t r = 0; r < n; r++) h = rg_frame_mix(h, (uint64_t)rg_placed(p, r, c));
    }
    for (uint32_t r = 0; r < n; r++) h = rg_frame_mix(h, host[r]);
    return h;
}

/* What moves of one chunk. */
typedef struct way {
    const rg_placement_t *p;
    const uint32_t *host;
    uint32_t n, chunk;
    uint32_t *lead, leads; /* those that get it from another host, in the order of a chain */
    uint64_t at, len;
    rg_move_fn fn;
    void *ctx;
} way_t;

static void emit(const way_t *w, uint32_t from, uint32_t to) {
    rg_move_t m = { w->chunk, from, to, w->at, w->len };
    w->fn(w->ctx, &m);
}

/* The rest of a host gets it from the one that has it there. */
static void fan_out(const way_t *w, uint32_t from) {
    uint32_t owner = w->p->owner[w->chunk];
    for (uint32_t i = 1; i < w->n; i++) {
        uint32_t r = (from + i) % w->n;
        if (r != owner && w->host[r] == w->host[from] && rg_placed(w->p, r, w->chunk)) emit(w, from, r);
    }
}

/* Of every other host that is to have the chunk the first member after the owner, so that chunks of different owners
 * take different ways. Returns how many members there are beside those and the owner. */
static uint32_t leaders(way_t *w, uint32_t *seen) {
    uint32_t owner = w->p->owner[w->chunk], others = 0;
    for (uint32_t r = 0; r < w->n; r++) seen[r] = 0;
    seen[w->host[owner]] = 1;
    w->leads = 0;
    for (uint32_t i = 1; i < w->n; i++) {
        uint32_t r = (owner + i) % w->n;
        if (!rg_placed(w->p, r, w->chunk)) continue;
        if (seen[w->host[r]]++) others++;
        else w->lead[w->leads++] = r;
    }
    return others;
}

static void plan_chunk(way_t *w, uint32_t *seen) {
    uint64_t bytes = w->p->bytes[w->chunk], piece = bytes;
    uint32_t owner = w->p->owner[w->chunk], others = leaders(w, seen);
    int chain = w->leads > 2 && bytes >= CHAIN_BYTES;
    if ((chain || (others != 0 && w->leads != 0)) && bytes > PIECE_BYTES) {
        piece = bytes / PIECES_MOST > PIECE_BYTES ? bytes / PIECES_MOST + 1 : PIECE_BYTES;
        piece = (piece + 63) / 64 * 64;
    }
    for (w->at = 0; w->at < bytes; w->at += piece) {
        uint32_t from = owner;
        w->len = bytes - w->at < piece ? bytes - w->at : piece;
        for (uint32_t i = 0; i < w->leads; i++) {
            emit(w, from, w->lead[i]);
            if (chain) from = w->lead[i];
        }
        fan_out(w, owner);
        for (uint32_t i = 0; i < w->leads; i++) fan_out(w, w->lead[i]);
    }
}

void rg_plan_gather(const rg_placement_t *p, uint32_t n, const uint32_t *host, uint32_t *scratch, rg_move_fn fn,
                    void *ctx) {
    way_t w = { .p = p, .host = host, .n = n, .lead = scratch, .fn = fn, .ctx = ctx };
    for (w.chunk = 0; w.chunk < p->chunks; w.chunk++) plan_chunk(&w, scratch + n);
}

void rg_plan_reduce(const rg_placement_t *p, uint32_t n, rg_move_fn fn, void *ctx) {
    for (uint32_t c = 0; c < p->chunks; c++)
        for (uint32_t i = 1; i < n; i++) {
            uint32_t r = (p->owner[c] + i) % n;
            rg_move_t m = { c, r, p->owner[c], 0, p->bytes[c] };
            if (m.len != 0 && rg_placed(p, r, c)) fn(ctx, &m);
        }
}
