/* memory.c: the public functions for memory: regions that peers on this host can map, and ranges that a program has
 * registered. Shared memory and TCP have no use for a registration, as they reach all memory alike; a network card that
 * reads memory itself has, so the ranges are checked and kept. Relies on src/os/shared.c. It must not know of groups.
 */
#include "memory.h"
#include "observe/log.h"
#include "os/os.h"
#include "os/shared.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct range {
    uintptr_t from, to;
    uint64_t id;
} range_t;

#define OWN_ID (1ull << 63) /* tells ranges from regions, whose numbers are counted elsewhere */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static range_t *ranges; /* by address, none overlaps another */
static size_t n_ranges, cap_ranges;
static uint64_t last_id;
static atomic_ullong generation;

RG_OS_HELD_OVER_FORKS(lock)

rg_status_t rg_alloc(size_t bytes, void **out, rg_error_t *err) {
    if (!out) return rg_fail(err, RG_ERR_INVALID, 0, "rg_alloc: out is NULL; pass the address of a pointer");
    *out = NULL;
    if (bytes == 0) return rg_fail(err, RG_ERR_INVALID, 0, "rg_alloc: 0 bytes; ask for at least one");
    return rg_shared_alloc(bytes, bytes >= (2u << 20), out, err);
}

void rg_free_memory(void *p) { rg_shared_free(p); }

/* The names suggest that this is the other end of rg_alloc(), so it is. */
void rg_free(void *p) {
    if (!rg_shared_free(p)) free(p);
}

/* The first range that ends above p. */
static size_t find(uintptr_t p) {
    size_t lo = 0, hi = n_ranges;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (ranges[mid].to > p) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

/* Gives every error a text; the lock is held. */
static rg_status_t insert(uintptr_t from, uintptr_t to, rg_error_t *err) {
    size_t i = find(from);
    if (i < n_ranges && ranges[i].from < to)
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "rg_register: %zu bytes at %p overlap %zu that are registered at %p; unregister those first",
                       (size_t)(to - from), (void *)from, (size_t)(ranges[i].to - ranges[i].from),
                       (void *)ranges[i].from);
    if (n_ranges == cap_ranges) {
        size_t cap = cap_ranges ? 2 * cap_ranges : 16;
        range_t *more = realloc(ranges, cap * sizeof *more);
        if (!more) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_register: no memory for a table of %zu ranges", cap);
        ranges = more;
        cap_ranges = cap;
    }
    memmove(ranges + i + 1, ranges + i, (n_ranges - i) * sizeof *ranges);
    ranges[i] = (range_t){ from, to, OWN_ID | ++last_id };
    n_ranges++;
    return RG_OK;
}

rg_status_t rg_register(void *p, size_t bytes, rg_error_t *err) {
    uintptr_t from = (uintptr_t)p;
    if (!p || bytes == 0)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_register: %zu bytes at %p; give memory that the program has", bytes,
                       p);
    if (bytes > UINTPTR_MAX - from)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_register: %zu bytes at %p reach beyond the address space", bytes, p);
    pthread_mutex_lock(&lock);
    rg_status_t st = insert(from, from + bytes, err);
    pthread_mutex_unlock(&lock);
    return st;
}

rg_status_t rg_unregister(void *p) {
    rg_status_t st = RG_ERR_INVALID;
    pthread_mutex_lock(&lock);
    size_t i = find((uintptr_t)p);
    if (i < n_ranges && ranges[i].from == (uintptr_t)p) {
        n_ranges--;
        memmove(ranges + i, ranges + i + 1, (n_ranges - i) * sizeof *ranges);
        atomic_fetch_add_explicit(&generation, 1, memory_order_release);
        st = RG_OK;
    }
    if (n_ranges == 0) { /* nothing stays behind in a program that cleans up after itself */
        free(ranges);
        ranges = NULL;
        cap_ranges = 0;
    }
    pthread_mutex_unlock(&lock);
    return st;
}

static int find_own(const void *p, size_t bytes, rg_memory_range_t *out) {
    uintptr_t from = (uintptr_t)p;
    pthread_mutex_lock(&lock);
    size_t i = find(from);
    int in = i < n_ranges && ranges[i].from <= from && bytes <= ranges[i].to - from;
    if (in) *out = (rg_memory_range_t){ ranges[i].id, (void *)ranges[i].from, ranges[i].to - ranges[i].from };
    pthread_mutex_unlock(&lock);
    return in;
}

int rg_memory_registered(const void *p, size_t bytes) {
    rg_memory_range_t r;
    return find_own(p, bytes, &r);
}

int rg_memory_find(const void *p, size_t bytes, rg_memory_range_t *out) {
    rg_region_t r;
    if (!rg_shared_find(p, bytes, &r)) return find_own(p, bytes, out);
    *out = (rg_memory_range_t){ r.id, r.base, r.len };
    return 1;
}

uint64_t rg_memory_generation(void) {
    return rg_shared_generation() + atomic_load_explicit(&generation, memory_order_acquire);
}

int rg_memory_alive(uint64_t id) {
    int alive = 0;
    if (!(id & OWN_ID)) return rg_shared_alive(id);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_ranges && !alive; i++) alive = ranges[i].id == id;
    pthread_mutex_unlock(&lock);
    return alive;
}
