/* time.c: clock, randomness, the number of cores, and the limit on descriptors.
 * Relies on Linux and glibc. Must not keep state: every call asks the system anew. */
#include "os.h"
#include "../observe/log.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

uint64_t rg_os_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

rg_status_t rg_os_random(void *p, size_t n) {
    uint8_t *at = p;
    while (n > 0) {
        ssize_t got = getrandom(at, n, 0);
        if (got < 0) {
            if (errno == EINTR) continue;
            return RG_ERR_SYSTEM;
        }
        at += got;
        n -= (size_t)got;
    }
    return RG_OK;
}

uint32_t rg_os_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int n = CPU_COUNT(&set);
        if (n > 0) return (uint32_t)n;
    }
    /* More CPUs than a cpu_set_t has bits: the affinity call fails there, the count does not. */
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

int rg_os_leave_cpu(int cpu, const uint32_t *taken, uint32_t n) {
    cpu_set_t all, rest;
    if (sched_getaffinity(0, sizeof all, &all) != 0) return -1;
    rest = all;
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_CLR((size_t)cpu, &rest);
    for (uint32_t i = 0; i < n; i++)
        if (taken[i] < CPU_SETSIZE) CPU_CLR((size_t)taken[i], &rest);
    if (CPU_COUNT(&rest) == 0 || sched_setaffinity(0, sizeof rest, &rest) != 0) return -1;
    int now = sched_getcpu();
    /* One that had no limit of its own is given none: it follows its container when that is given more. */
    if (CPU_COUNT(&all) == sysconf(_SC_NPROCESSORS_ONLN)) memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
    return now;
}

rg_status_t rg_os_need_fds(uint32_t need, rg_error_t *err) {
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0)
        return rg_fail(err, RG_ERR_SYSTEM, errno, "cannot read the limit on open files: %s", strerror(errno));
    if (lim.rlim_cur == RLIM_INFINITY || lim.rlim_cur >= need) return RG_OK;
    if (lim.rlim_max != RLIM_INFINITY && lim.rlim_max < need)
        return rg_fail(err, RG_ERR_RESOURCE, 0,
                       "%" PRIu32
                       " open files are needed, but the hard limit is %ju; raise it (ulimit -Hn) or use fewer "
                       "rails or members",
                       need, (uintmax_t)lim.rlim_max);
    uintmax_t had = lim.rlim_cur;
    lim.rlim_cur = need;
    if (setrlimit(RLIMIT_NOFILE, &lim) != 0)
        return rg_fail(err, RG_ERR_RESOURCE, errno,
                       "%" PRIu32 " open files are needed, the soft limit is %ju and could not be raised: %s", need,
                       had, strerror(errno));
    return RG_OK;
}
