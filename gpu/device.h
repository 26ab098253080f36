/* device.h: the table that a kind of memory fills, so that steps of a schedule (REDUCE, COPY) and scratch memory can
 * live where the data is. Five functions; host memory (none.c) is the first implementation and the one that every build
 * has. It relies on kernels.h for what a reduction is, and knows nothing of schedules, groups or transports.
 *
 * Work is queued: copy() and reduce() give a ticket, and poll() says whether everything up to that ticket is done. A
 * device that works at once gives ticket 0, which is always done. */
#ifndef RG_DEVICE_H
#define RG_DEVICE_H

#include "kernels/kernels.h"

typedef struct rg_device_ops {
    const char *name; /* "host" */

    /* Memory for scratch and staging, aligned for any type and to a cache line; its content is undefined. The caller
     * owns it until free(). Size 0 gives a pointer that can be freed. Errors: NOMEM. */
    rg_status_t (*alloc)(size_t bytes, void **out);
    void (*free)(void *p); /* NULL is fine. No work on it may be pending */

    /* dst and src belong to the device until poll(ticket) says RG_OK. They do not overlap. */
    rg_status_t (*copy)(void *dst, const void *src, size_t bytes, uint64_t *ticket);

    /* dst[i] = a[i] op b[i] as prepared by rg_red_init(); dst may be a or b. r is read before the call returns. */
    rg_status_t (*reduce)(const rg_red_t *r, void *dst, const void *a, const void *b, size_t n, uint64_t *ticket);

    /* RG_OK: everything up to this ticket is done. RG_AGAIN: not yet. Never blocks. */
    rg_status_t (*poll)(uint64_t ticket);
} rg_device_ops_t;

extern const rg_device_ops_t rg_device_host;

#endif
