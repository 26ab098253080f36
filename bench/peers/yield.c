/* yield.c: preloaded under MPICH when there are more ranks than cores: Debian's MPICH polls UCX without ever giving
 * the processor away, so that each step of a collective would wait for a scheduler tick. With this it is shown at what
 * it can do. Nothing else is changed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>

typedef unsigned (*progress_fn)(void *worker);

unsigned ucp_worker_progress(void *worker);

unsigned ucp_worker_progress(void *worker) {
    static progress_fn next;
    static unsigned fruitless;
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "ucp_worker_progress");
    unsigned events = next(worker);
    fruitless = events ? 0 : fruitless + 1;
    if (fruitless > 16) sched_yield();
    return events;
}
