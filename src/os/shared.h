/* shared.h: memory that other processes of this host can map: rg_alloc() and the library's own scratch come from here.
 * A region is a sealed memfd (it can neither shrink nor leave anything behind). One table for the process; any thread.
 * It must not know of groups or transports. */
#ifndef RG_SHARED_H
#define RG_SHARED_H

#include "regroup.h"

typedef struct rg_region {
    uint64_t id;   /* never used twice in one process, never 0 */
    int fd;        /* the region's; open for as long as the region is there */
    uint8_t *base; /* a multiple of the page size */
    size_t len;
} rg_region_t;

/* As ftruncate(), but -1 with EFBIG where the process may not have files of that size: the kernel would end it with a
 * signal, and memory objects count as files. */
int rg_shared_size(int fd, size_t len);

/* Zeroed. NOMEM or SYSTEM with err filled (may be NULL). huge: ask for large pages. */
rg_status_t rg_shared_alloc(size_t bytes, int huge, void **out, rg_error_t *err);
int rg_shared_free(void *p); /* 1 when it was a region's beginning, else nothing happens */

/* The region that holds all of [p, p + len). 1 and *out filled when there is one. Cheap: it is asked for every large
 * send. The region must not be freed meanwhile. */
int rg_shared_find(const void *p, size_t len, rg_region_t *out);

/* Changes whenever a region is freed: who remembers regions by id drops what is gone. rg_shared_alive(): whether the
 * region still exists. */
uint64_t rg_shared_generation(void);
int rg_shared_alive(uint64_t id);

#endif
