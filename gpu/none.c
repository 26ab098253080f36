/* none.c: the device table for host memory: what the library has when no accelerator is built in. Everything is done
 * when the call returns, so every ticket is 0. It relies on the kernels alone and must not keep state. */
#include "gpu/device.h"

#include <stdlib.h>
#include <string.h>

#define CACHE_LINE 64u
#define PAST_CACHE (4u << 20) /* what will not stay in cache anyway need not be read before it is written */

static rg_status_t host_alloc(size_t bytes, void **out) {
    *out = NULL;
    if (bytes > SIZE_MAX - CACHE_LINE) return RG_ERR_NOMEM;
    /* aligned_alloc wants a multiple of the alignment. */
    size_t rounded = bytes ? (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE : CACHE_LINE;
    *out = aligned_alloc(CACHE_LINE, rounded);
    return *out ? RG_OK : RG_ERR_NOMEM;
}

static void host_free(void *p) { free(p); }

static rg_status_t host_copy(void *dst, const void *src, size_t bytes, uint64_t *ticket) {
    if (bytes >= PAST_CACHE) rg_copy_past_cache(dst, src, bytes);
    else if (bytes) memcpy(dst, src, bytes);
    *ticket = 0;
    return RG_OK;
}

static rg_status_t host_reduce(const rg_red_t *r, void *dst, const void *a, const void *b, size_t n, uint64_t *ticket) {
    if (n) rg_red_run(r, dst, a, b, n);
    *ticket = 0;
    return RG_OK;
}

static rg_status_t host_poll(uint64_t ticket) {
    /* No other ticket is ever given; one that was made up has nothing to wait for and is an error to ask about. */
    return ticket == 0 ? RG_OK : RG_ERR_INVALID;
}

const rg_device_ops_t rg_device_host = { "host", host_alloc, host_free, host_copy, host_reduce, host_poll };
