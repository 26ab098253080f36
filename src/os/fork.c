/* fork.c: how often this process is a child of one that used the library. Handles that were opened before a fork belong
 * to the parent: its threads and the right to its descriptors are not here. Relies on pthread_atfork() only. It must
 * not do anything but count: what a handle does in a child is its owner's business. */
#include "os/os.h"

#include <pthread.h>

static uint32_t forks;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void in_child(void) { forks++; } /* the child has one thread */
static void begin(void) { (void)pthread_atfork(NULL, NULL, in_child); }

uint32_t rg_os_forks(void) {
    pthread_once(&once, begin);
    return forks;
}
