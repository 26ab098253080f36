/* memory.c: scratch blocks of a group: partial results, undo logs, kept copies. Blocks are reused, so that the
 * fault-free path neither allocates nor touches fresh pages. It relies on the group's lock. */
#include "engine/group.h"

#include <stdlib.h>
#include <sys/mman.h>

#define BLOCK_MAP_MIN (1u << 20)
#define BLOCK_IDLE_MAX 6 /* idle large blocks that are kept */

static size_t block_round(size_t bytes) {
    size_t cap = 256;
    if (bytes <= 65536) {
        while (cap < bytes) cap *= 2;
        return cap;
    }
    return (bytes + 65535) & ~(size_t)65535;
}

/* Fits, but not so loosely that a small request eats a large block. */
static int block_fits(const rg_block_t *b, size_t cap) { return b->cap >= cap && b->cap / 4 <= cap; }

rg_block_t *rg_block_get(rg_group_t *g, size_t bytes) {
    size_t cap = block_round(bytes);
    for (rg_block_t **at = &g->blocks; *at; at = &(*at)->next)
        if (block_fits(*at, cap)) {
            rg_block_t *b = *at;
            *at = b->next;
            b->next = NULL;
            return b;
        }
    rg_block_t *b = malloc(sizeof *b);
    if (!b) return NULL;
    b->next = NULL;
    if (cap < BLOCK_MAP_MIN) {
        b->p = aligned_alloc(64, cap);
    } else {
        cap = (cap + (2u << 20) - 1) & ~(size_t)((2u << 20) - 1);
        b->p = mmap(NULL, cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (b->p == MAP_FAILED) b->p = NULL;
        else madvise(b->p, cap, MADV_HUGEPAGE); /* fewer faults now, a quicker exit later; refusal does not matter */
    }
    if (!b->p) {
        free(b);
        return NULL;
    }
    b->cap = cap;
    return b;
}

static void block_free(rg_block_t *b) {
    if (b->cap < BLOCK_MAP_MIN) free(b->p);
    else munmap(b->p, b->cap);
    free(b);
}

/* Blocks that were used last come first, so the last large one has been idle for longest: sizes that are asked for no
 * more make room for those that are. */
void rg_block_put(rg_group_t *g, rg_block_t *b) {
    if (!b) return;
    uint32_t large = 0;
    rg_block_t **oldest = NULL;
    if (b->cap >= BLOCK_MAP_MIN)
        for (rg_block_t **at = &g->blocks; *at; at = &(*at)->next)
            if ((*at)->cap >= BLOCK_MAP_MIN) {
                large++;
                oldest = at;
            }
    if (large >= BLOCK_IDLE_MAX) {
        rg_block_t *old = *oldest;
        *oldest = old->next;
        block_free(old);
    }
    b->next = g->blocks;
    g->blocks = b;
}

void rg_blocks_free(rg_group_t *g) {
    while (g->blocks) {
        rg_block_t *b = g->blocks;
        g->blocks = b->next;
        block_free(b);
    }
}
