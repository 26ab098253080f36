/* test_cases_clock.c: a wall clock that a test can set without touching the host's: this program's own clock_gettime(),
 * gettimeofday() and time(), which the library in it calls like any other. The monotonic clock stays as it is.
 * It relies on the dynamic linker for the real function, and on shared memory so that forked processes see a jump. */
#include "cases.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*real)(clockid_t, struct timespec *); /* NULL until it is known: then the system call itself */
static _Atomic(int64_t *) jump;                   /* seconds, shared by all processes of a test */

__attribute__((constructor)) static void find_real(void) {
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

int cases_clock_init(void) {
    struct timespec before, after;
    if (!jump) jump = procs_shared(sizeof *jump);
    /* Planted: the jump must be seen where it is looked for. */
    clock_gettime(CLOCK_REALTIME, &before);
    cases_clock_jump(7200);
    clock_gettime(CLOCK_REALTIME, &after);
    cases_clock_jump(0);
    return ENV_SEEN(after.tv_sec - before.tv_sec >= 7199, "the wall clock of this program cannot be set");
}

void cases_clock_jump(int64_t seconds) { __atomic_store_n(jump, seconds, __ATOMIC_SEQ_CST); }

int clock_gettime(clockid_t id, struct timespec *t) {
    int rc = real ? real(id, t) : (int)syscall(SYS_clock_gettime, id, t);
    int64_t *by = jump;
    if (!rc && by && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI))
        t->tv_sec += __atomic_load_n(by, __ATOMIC_SEQ_CST);
    return rc;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    struct timespec t;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &t)) return -1;
    *tv = (struct timeval){ t.tv_sec, t.tv_nsec / 1000 };
    return 0;
}

time_t time(time_t *out) {
    struct timespec t;
    if (clock_gettime(CLOCK_REALTIME, &t)) return -1;
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
