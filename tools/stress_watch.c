/* stress_watch.c: how late this host is. A thread naps for 20 ms, again and again: by how much it oversleeps, nobody
 * ran it, and so perhaps nobody ran the workers. What they are held to has that much more time, for a host that stands
 * still is no fault of the library's, and the report says how long it did.
 * Relies on the clock. It must not be the reason itself: it does nothing but sleep. */
#include "stress.h"

#include <pthread.h>
#include <time.h>

#define NAP_NS 20000000u
#define WORTH_NS 100000000u /* less than this happens all the time where there are more processes than processors */
#define STRETCHES 512u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { uint64_t from, until; } stretch[STRETCHES]; /* the last ones, in their order */
static uint64_t stretches, total_ns;
static pthread_t watcher;
static int running;

static void *watch(void *arg) {
    (void)arg;
    while (__atomic_load_n(&running, __ATOMIC_RELAXED)) {
        struct timespec nap = { 0, NAP_NS };
        uint64_t from = tool_now_ns();
        nanosleep(&nap, NULL);
        uint64_t until = tool_now_ns();
        if (until - from < NAP_NS + WORTH_NS) continue;
        pthread_mutex_lock(&lock);
        stretch[stretches % STRETCHES].from = from + NAP_NS;
        stretch[stretches++ % STRETCHES].until = until;
        total_ns += until - from - NAP_NS;
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

void stress_watch_start(void) {
    running = 1;
    if (pthread_create(&watcher, NULL, watch, NULL) != 0) running = 0; /* then nobody has more time */
}

void stress_watch_stop(void) {
    if (!running) return;
    __atomic_store_n(&running, 0, __ATOMIC_RELAXED);
    pthread_join(watcher, NULL);
}

uint64_t stress_stood_still(uint64_t from, uint64_t until, uint64_t *longest) {
    uint64_t sum = 0;
    *longest = 0;
    pthread_mutex_lock(&lock);
    for (uint64_t i = stretches; i-- > 0 && i + STRETCHES >= stretches;) {
        uint64_t a = stretch[i % STRETCHES].from, b = stretch[i % STRETCHES].until;
        if (b <= from) break;
        if (a < from) a = from;
        if (b > until) b = until;
        if (a >= b) continue;
        sum += b - a;
        if (b - a > *longest) *longest = b - a;
    }
    pthread_mutex_unlock(&lock);
    return sum;
}

double stress_stood_still_s(void) {
    pthread_mutex_lock(&lock);
    uint64_t ns = total_ns;
    pthread_mutex_unlock(&lock);
    return (double)ns / 1e9;
}
