/* moves_plan.c: which chunk goes from whom to whom, in which pieces and in which order. Pure: no clock, no I/O, no
 * memory, nothing but the placement and the hosts decides, so that every member plans alike. */
#include "sparse/frame.h"
#include "sparse/moves.h"

#define CHAIN_BYTES (256u << 10)
#define PIECE_BYTES (32u << 10)
#define PIECES_MOST 64u
#define BYTES_MOST (1ull << 56) /* of all chunks: sums of offsets are far from overflowing */

const char *rg_placement_flaw(const rg_placement_t *p, uint32_t n) {
    if (p == NULL || p->size != sizeof *p) return "is not initialised: use RG_PLACEMENT_INIT";
    if (p->chunks == 0) return NULL;
    if (p->bytes == NULL || p->owner == NULL || p->present == NULL)
        return "has chunks, but bytes, owner or present is NULL";
    for (uint64_t c = 0, all = 0; c < p->chunks; all += p->bytes[c++])
        if (p->bytes[c] > BYTES_MOST - all) return "has more bytes than any memory";
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
    uint32_t others;       /* members that share a host with one of those, or with the owner */
    rg_move_fn fn;
    void *ctx;
} way_t;

/* Of every other host that is to have the chunk the first member after the owner, so that chunks of different owners
 * take different ways. */
static void leaders(way_t *w, uint32_t *seen) {
    uint32_t owner = w->p->owner[w->chunk];
    for (uint32_t r = 0; r < w->n; r++) seen[r] = 0;
    seen[w->host[owner]] = 1;
    w->leads = w->others = 0;
    for (uint32_t i = 1; i < w->n; i++) {
        uint32_t r = (owner + i) % w->n;
        if (!rg_placed(w->p, r, w->chunk)) continue;
        if (seen[w->host[r]]++) w->others++;
        else w->lead[w->leads++] = r;
    }
}

static int is_chain(const way_t *w) { return w->leads > 2 && w->p->bytes[w->chunk] >= CHAIN_BYTES; }

/* What is passed on goes in pieces, so that it is passed on while the rest is still coming. */
static uint64_t piece_of(const way_t *w) {
    uint64_t bytes = w->p->bytes[w->chunk],
             piece = bytes / PIECES_MOST > PIECE_BYTES ? bytes / PIECES_MOST + 1 : PIECE_BYTES;
    if (is_chain(w) || (w->others != 0 && w->leads != 0)) return (piece + 63) / 64 * 64;
    return bytes;
}

static void emit_all(const way_t *w, uint32_t from, uint32_t to) {
    uint64_t bytes = w->p->bytes[w->chunk], piece = piece_of(w);
    for (uint64_t at = 0; at < bytes; at += piece) {
        rg_move_t m = { w->chunk, from, to, at, bytes - at < piece ? bytes - at : piece };
        w->fn(w->ctx, &m);
    }
}

/* The rest of a host gets it from the one that has it there. */
static void fan_out(const way_t *w, uint32_t from) {
    uint32_t owner = w->p->owner[w->chunk];
    for (uint32_t i = 1; i < w->n; i++) {
        uint32_t r = (from + i) % w->n;
        if (r != owner && w->host[r] == w->host[from] && rg_placed(w->p, r, w->chunk)) emit_all(w, from, r);
    }
}

/* The chunk's way to its stage-th host, and among that host's members. */
static void one_stage(const way_t *w, uint32_t stage) {
    uint32_t owner = w->p->owner[w->chunk];
    if (stage < w->leads) emit_all(w, is_chain(w) && stage > 0 ? w->lead[stage - 1] : owner, w->lead[stage]);
    if (stage == 0) fan_out(w, owner);
    if (stage < w->leads) fan_out(w, w->lead[stage]);
}

/* A round has the next chunk of every owner, and a stage of it brings all of them one host further. So while a member
 * passes its own chunk on it receives the one that it is to pass on next, and no link waits for what is still far. */
void rg_plan_gather(const rg_placement_t *p, uint32_t n, const uint32_t *host, uint32_t *scratch, rg_move_fn fn,
                    void *ctx) {
    way_t w = { .p = p, .host = host, .n = n, .lead = scratch, .fn = fn, .ctx = ctx };
    uint32_t *next = scratch + 2 * n, *now = scratch + 3 * n, any = 1;
    for (uint32_t r = 0; r < n; r++) next[r] = 0;
    while (any) {
        any = 0;
        for (uint32_t r = 0; r < n; r++) {
            while (next[r] < p->chunks && p->owner[next[r]] != r) next[r]++;
            now[r] = next[r];
            next[r] += now[r] < p->chunks;
            any |= now[r] < p->chunks;
        }
        for (uint32_t stage = 0; any && stage < n; stage++)
            for (uint32_t r = 0; r < n; r++) {
                if (now[r] >= p->chunks) continue;
                w.chunk = now[r];
                leaders(&w, scratch + n);
                if (stage == 0 || stage < w.leads) one_stage(&w, stage);
            }
    }
}

void rg_plan_reduce(const rg_placement_t *p, uint32_t n, rg_move_fn fn, void *ctx) {
    for (uint32_t c = 0; c < p->chunks; c++)
        for (uint32_t i = 1; i < n; i++) {
            uint32_t r = (p->owner[c] + i) % n;
            rg_move_t m = { c, r, p->owner[c], 0, p->bytes[c] };
            if (m.len != 0 && rg_placed(p, r, c)) fn(ctx, &m);
        }
}
