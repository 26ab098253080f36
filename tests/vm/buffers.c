/* buffers.c: memory for calls in which a write that comes late, or goes too far, shows. Blocks take turns, so that one
 * which a call has used lies idle, full of a pattern, for the length of several calls; half of them come from
 * rg_alloc(), half from malloc(). Relies on nothing but that. It must hand out no block that was changed while idle:
 * that is what it is there to find. */
#include "vm.h"

#include <stdlib.h>
#include <string.h>

#define BLOCKS 12
#define GUARD 4096u
#define PATTERN 0xc5

static struct block {
    unsigned char *mem;
    size_t used; /* bytes that are out, after GUARD and the shift */
    unsigned shift;
    int out;
} block[BLOCKS];
static size_t room;

int vm_buffers(size_t largest) {
    room = largest + 64 + 2 * GUARD;
    for (int i = 0; i < BLOCKS; i++) {
        void *p = NULL;
        if (i % 2) p = malloc(room);
        else if (rg_alloc(room, &p, NULL) != RG_OK) p = NULL;
        if (!p) return fprintf(stderr, "no memory for buffers of %zu bytes\n", room), 0;
        block[i].mem = p;
        memset(p, PATTERN, room);
    }
    return 1;
}

void vm_buffers_free(void) {
    for (int i = 0; i < BLOCKS; i++) {
        if (i % 2) free(block[i].mem);
        else if (block[i].mem) rg_free_memory(block[i].mem);
        block[i].mem = NULL;
    }
}

int vm_is_pattern(const void *p, size_t bytes) {
    const unsigned char *c = p;
    return bytes == 0 || (c[0] == PATTERN && memcmp(c, c + 1, bytes - 1) == 0);
}

static int idle_ok(const struct block *b) {
    if (vm_is_pattern(b->mem, room)) return 1;
    size_t at = 0;
    while (b->mem[at] == PATTERN) at++;
    fprintf(stderr, "WRONG: a block that no call uses was written to, at byte %zu of %zu\n", at, room);
    return 0;
}

void *vm_take(size_t bytes, unsigned turn) {
    for (unsigned k = 0; k < BLOCKS; k++) {
        struct block *b = &block[(turn + k) % BLOCKS];
        if (b->out) continue;
        if (!idle_ok(b)) return NULL;
        b->out = 1;
        b->used = bytes;
        b->shift = turn * 7 % 16;
        return b->mem + GUARD + b->shift;
    }
    fprintf(stderr, "WRONG: more buffers at once than this program has\n");
    return NULL;
}

int vm_give(void *p) {
    for (int i = 0; i < BLOCKS; i++) {
        struct block *b = &block[i];
        if (!b->out || (unsigned char *)p != b->mem + GUARD + b->shift) continue;
        size_t front = GUARD + b->shift, behind = front + b->used;
        int ok = vm_is_pattern(b->mem, front) && vm_is_pattern(b->mem + behind, room - behind);
        if (!ok) fprintf(stderr, "WRONG: written outside a buffer of %zu bytes\n", b->used);
        memset(b->mem, PATTERN, room);
        b->out = 0;
        return ok;
    }
    return fprintf(stderr, "WRONG: no such buffer\n"), 0;
}

int vm_untouched(void) {
    int ok = 1;
    for (int i = 0; i < BLOCKS; i++)
        if (!block[i].out && block[i].mem) ok &= idle_ok(&block[i]);
    return ok;
}
