/* memory.c: scratch blocks of a group: partial results, undo logs, kept copies. Blocks are reused, so that the
 * fault-free path neither allocates nor touches fresh pages; what idle ones hold is bounded (docs/memory.md). From
 * 64 KiB on they are shared regions where the transport has a use for that: a peer on this host reads partial results
 * where they are. It relies on the group's lock. */
#include "engine/group.h"
#include "os/shared.h"

#include <stdlib.h>
#include <sys/mman.h>

#define SMALL_MIN 256u
#define MEDIUM_MIN (64u << 10)
#define LARGE_MIN (1u << 20)
#define LARGE_PAGE (2u << 20)
#define MEDIUM (RG_BLOCK_CLASSES - 2)
#define LARGE (RG_BLOCK_CLASSES - 1)
/* What idle blocks may hold. */
#define SMALL_IDLE_BYTES (4u << 20)
#define MEDIUM_IDLE 8
#define LARGE_IDLE 6
#define LARGE_IDLE_BYTES ((size_t)1 << 30) /* beyond this only the last two stay */

/* Rounds up to what a block has, and tells the class of it. SIZE_MAX where that is more than there can be. */
static size_t block_round(size_t bytes, int *class) {
    size_t cap = SMALL_MIN;
    *class = LARGE;
    if (bytes > LARGE_MIN)
        return bytes > SIZE_MAX - LARGE_PAGE ? SIZE_MAX : (bytes + LARGE_PAGE - 1) & ~(size_t)(LARGE_PAGE - 1);
    for (*class = 0; cap < bytes; cap *= 2) ++*class;
    if (*class > MEDIUM) *class = MEDIUM;
    return cap;
}

/* Fits, but not so loosely that a small request eats a large block. */
static int block_fits(const rg_block_t *b, size_t cap) { return b->cap >= cap && b->cap / 4 <= cap; }

static void *block_map(size_t cap) {
    void *p = mmap(NULL, cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (cap >= LARGE_PAGE) madvise(p, cap, MADV_HUGEPAGE); /* fewer faults, a quicker exit; refusal does not matter */
    return p;
}

static rg_block_t *block_get(rg_group_t *g, size_t bytes, int shared) {
    int class;
    size_t cap = block_round(bytes, &class);
    for (rg_block_t **at = &g->blocks[class]; *at; at = &(*at)->next)
        if (block_fits(*at, cap) && (shared || !(*at)->shared)) {
            rg_block_t *b = *at;
            *at = b->next;
            b->next = NULL;
            if (class < MEDIUM) g->blocks_small -= b->cap;
            return b;
        }
    rg_block_t *b = calloc(1, sizeof *b);
    if (!b || cap == SIZE_MAX) {
        free(b);
        return NULL;
    }
    b->cap = cap;
    if (class < MEDIUM) b->p = aligned_alloc(64, cap);
    else if (g->blocks_shared && shared) b->shared = rg_shared_alloc(cap, cap >= LARGE_PAGE, &b->p, NULL) == RG_OK;
    /* Shared memory may be scarce where memory is not; then peers get copies. */
    if (!b->p && class >= MEDIUM) b->p = block_map(cap);
    if (b->p) return b;
    free(b);
    return NULL;
}

rg_block_t *rg_block_get(rg_group_t *g, size_t bytes) { return block_get(g, bytes, 1); }

/* For what no peer ever reads. Shared regions have small pages where the system gives them no large ones, and of a
 * process that dies the kernel takes every page before it closes the sockets by which the others know: 64 MiB of small
 * ones cost them 20 ms. */
rg_block_t *rg_block_get_private(rg_group_t *g, size_t bytes) { return block_get(g, bytes, 0); }

static void block_free(rg_block_t *b) {
    if (b->cap < MEDIUM_MIN) free(b->p);
    else if (b->shared) rg_shared_free(b->p);
    else munmap(b->p, b->cap);
    free(b);
}

/* Blocks that were used last come first, so the last one has been idle for longest: sizes that are asked for no more
 * make room for those that are. */
static void trim(rg_block_t **list, uint32_t most, size_t most_bytes) {
    uint32_t n = 0;
    size_t bytes = 0;
    for (rg_block_t **at = list; *at;) {
        n++;
        bytes += (*at)->cap;
        if (n <= 2 || (n <= most && bytes <= most_bytes)) {
            at = &(*at)->next;
            continue;
        }
        rg_block_t *old = *at;
        *at = old->next;
        bytes -= old->cap;
        n--;
        block_free(old);
    }
}

void rg_block_put(rg_group_t *g, rg_block_t *b) {
    int class;
    if (!b) return;
    block_round(b->cap, &class);
    if (class < MEDIUM && g->blocks_small + b->cap > SMALL_IDLE_BYTES) {
        block_free(b);
        return;
    }
    b->next = g->blocks[class];
    g->blocks[class] = b;
    if (class < MEDIUM) g->blocks_small += b->cap;
    else if (class == MEDIUM) trim(&g->blocks[class], MEDIUM_IDLE, SIZE_MAX);
    else trim(&g->blocks[class], LARGE_IDLE, LARGE_IDLE_BYTES);
}

void rg_blocks_free(rg_group_t *g) {
    for (int i = 0; i < RG_BLOCK_CLASSES; i++)
        while (g->blocks[i]) {
            rg_block_t *b = g->blocks[i];
            g->blocks[i] = b->next;
            block_free(b);
        }
}
