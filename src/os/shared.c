/* shared.c: see shared.h. Every region is a memfd of its own, whole pages, mapped shared and sealed against any change
 * of size, so that whoever maps it later can trust the length that it has seen once. Pages are there before the caller
 * gets the region: too little memory is a status here, not a signal at the first touch.
 * Relies on Linux (memfd_create, fallocate). It must not leave anything in a file system, nor keep a region alive after
 * it was freed. A forked child sees the same memory, as with any shared mapping; the table is its own copy. */
#include "shared.h"
#include "../observe/log.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define LARGE_PAGE ((size_t)2 << 20)
#define FILL_STEP ((size_t)64 << 20)  /* a signal makes the kernel give back a whole step and start it again, */
#define FILL_LEAST ((size_t)64 << 10) /* so steps get shorter until one fits between two signals of a busy timer */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rg_region_t *table; /* by address */
static size_t cap;
static atomic_size_t count; /* written under the lock; looked at without it to answer quickly that there is nothing */
static atomic_ullong generation = 1;
static uint64_t last_id;

RG_OS_HELD_OVER_FORKS(lock)

/* The first entry that begins above p. */
static size_t above(const uint8_t *p) {
    size_t lo = 0, hi = atomic_load_explicit(&count, memory_order_relaxed);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (table[mid].base > p) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

static int above_limit(size_t len) {
    struct rlimit lim;
    return getrlimit(RLIMIT_FSIZE, &lim) == 0 && lim.rlim_cur != RLIM_INFINITY && len > lim.rlim_cur;
}

int rg_shared_size(int fd, size_t len) {
    if (above_limit(len)) {
        errno = EFBIG;
        return -1;
    }
    return ftruncate(fd, (off_t)len);
}

/* More than there is left for this process: filling it would take the memory of all processes that share the limit
 * before it failed, if it lived to do so. */
static int beyond_memory(size_t len) { return len > FILL_STEP && len > rg_os_memory_left(); }

static int fill(int fd, size_t len) {
    size_t step = FILL_STEP;
    for (size_t at = 0; at < len;) {
        size_t n = len - at < step ? len - at : step;
        if (fallocate(fd, 0, (off_t)at, (off_t)n) == 0) at += n;
        else if (errno != EINTR) return -1;
        else if (step > FILL_LEAST) step /= 2;
    }
    return 0;
}

static rg_status_t insert(rg_region_t *r, rg_error_t *err) {
    pthread_mutex_lock(&lock);
    size_t n = atomic_load_explicit(&count, memory_order_relaxed);
    if (n == cap) {
        size_t more = cap ? cap * 2 : 16;
        rg_region_t *bigger = realloc(table, more * sizeof *table);
        if (!bigger) {
            pthread_mutex_unlock(&lock);
            return rg_fail(err, RG_ERR_NOMEM, 0, "no memory to note a shared region");
        }
        table = bigger;
        cap = more;
    }
    size_t i = above(r->base);
    memmove(table + i + 1, table + i, (n - i) * sizeof *table);
    r->id = ++last_id;
    table[i] = *r;
    atomic_store_explicit(&count, n + 1, memory_order_release);
    pthread_mutex_unlock(&lock);
    return RG_OK;
}

static void map_large(uint8_t *base, size_t len) {
#ifdef MADV_HUGEPAGE
    (void)madvise(base, len, MADV_HUGEPAGE); /* where the host has them for shared memory; else nothing changes */
#else
    (void)base, (void)len;
#endif
}

static rg_status_t make(rg_region_t *r, int huge, rg_error_t *err) {
    if (beyond_memory(r->len))
        return rg_fail(err, RG_ERR_NOMEM, ENOMEM,
                       "%zu bytes of shared memory are more than this host, or this process's control group, has left",
                       r->len);
    r->fd = rg_os_high(memfd_create("regroup", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (r->fd < 0)
        return rg_fail(err, errno == ENOMEM ? RG_ERR_NOMEM : RG_ERR_SYSTEM, errno, "no shared memory object%s",
                       errno == EMFILE ? "; raise the limit of open descriptors" : "");
    if (rg_shared_size(r->fd, r->len) != 0)
        return rg_fail(err, RG_ERR_NOMEM, errno, "%zu bytes are too much for shared memory%s", r->len,
                       above_limit(r->len) ? "; raise the limit of file sizes (ulimit -f)" : "");
    r->base = mmap(NULL, r->len, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
    if (r->base == MAP_FAILED) {
        r->base = NULL;
        return rg_fail(err, RG_ERR_NOMEM, errno, "%zu bytes of shared memory cannot be mapped", r->len);
    }
    /* Large pages come only by way of a mapping, so that is tried first; what it leaves is filled in after. */
    if (huge) {
        map_large(r->base, r->len);
        (void)madvise(r->base, r->len, MADV_POPULATE_WRITE);
    }
    if (fill(r->fd, r->len) != 0)
        return rg_fail(err, errno == ENOSPC || errno == ENOMEM ? RG_ERR_NOMEM : RG_ERR_SYSTEM, errno,
                       "%zu bytes of shared memory are not there", r->len);
    if (!huge) (void)madvise(r->base, r->len, MADV_POPULATE_WRITE);
    if (fcntl(r->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return rg_fail(err, RG_ERR_SYSTEM, errno, "a shared memory object cannot be sealed");
    return RG_OK;
}

static void unmake(const rg_region_t *r) {
    if (r->base) munmap(r->base, r->len);
    if (r->fd >= 0) close(r->fd);
}

rg_status_t rg_shared_alloc(size_t bytes, int huge, void **out, rg_error_t *err) {
    RG_OS_STAY;
    size_t page = huge ? LARGE_PAGE : (size_t)sysconf(_SC_PAGESIZE);
    *out = NULL;
    if (bytes > (size_t)INT64_MAX - page)
        return rg_fail(err, RG_ERR_NOMEM, 0, "%zu bytes are more than an address space holds", bytes);
    rg_region_t r = { .fd = -1, .len = ((bytes ? bytes : 1) + page - 1) & ~(page - 1) };
    rg_status_t st = make(&r, huge, err);
    if (st == RG_OK) st = insert(&r, err);
    if (st != RG_OK) {
        unmake(&r);
        return st;
    }
    *out = r.base;
    return RG_OK;
}

int rg_shared_free(void *p) {
    RG_OS_STAY;
    if (!p) return 0;
    rg_region_t r = { .fd = -1 };
    pthread_mutex_lock(&lock);
    size_t n = atomic_load_explicit(&count, memory_order_relaxed), i = above(p);
    if (i > 0 && table[i - 1].base == p) {
        r = table[i - 1];
        memmove(table + i - 1, table + i, (n - i) * sizeof *table);
        atomic_store_explicit(&count, n - 1, memory_order_release);
        atomic_fetch_add_explicit(&generation, 1, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    unmake(&r); /* after the table has forgotten it: nobody finds memory that is not there */
    return r.base != NULL;
}

int rg_shared_find(const void *p, size_t len, rg_region_t *out) {
    int found = 0;
    if (atomic_load_explicit(&count, memory_order_acquire) == 0) return 0;
    pthread_mutex_lock(&lock);
    size_t i = above(p);
    if (i > 0) {
        const rg_region_t *r = &table[i - 1];
        size_t off = (size_t)((const uint8_t *)p - r->base);
        found = off <= r->len && len <= r->len - off;
        if (found) *out = *r;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

uint64_t rg_shared_generation(void) { return atomic_load_explicit(&generation, memory_order_acquire); }

int rg_shared_alive(uint64_t id) {
    int alive = 0;
    pthread_mutex_lock(&lock);
    size_t n = atomic_load_explicit(&count, memory_order_relaxed);
    for (size_t i = 0; i < n && !alive; i++) alive = table[i].id == id;
    pthread_mutex_unlock(&lock);
    return alive;
}
