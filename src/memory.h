/* memory.h: what the library asks about memory that programs have registered. Any thread. */
#ifndef RG_MEMORY_H
#define RG_MEMORY_H

#include <stddef.h>
#include <stdint.h>

typedef struct rg_memory_range {
    uint64_t id; /* never used twice in one process, never 0 */
    void *base;
    size_t bytes;
} rg_memory_range_t;

/* 1 when all of [p, p + bytes) lies in one registered range. */
int rg_memory_registered(const void *p, size_t bytes);

/* The registered range, or the region of rg_alloc() or of the library's own, that holds all of [p, p + bytes): 1 and
 * *out filled when there is one. It must not be taken back meanwhile. */
int rg_memory_find(const void *p, size_t bytes, rg_memory_range_t *out);

/* Changes whenever a range or region is taken back: who remembers them by id drops what is gone. rg_memory_alive():
 * whether that one is still there. */
uint64_t rg_memory_generation(void);
int rg_memory_alive(uint64_t id);

#endif
