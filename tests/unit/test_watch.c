/* test_watch.c: watching whether a coordinator serves: what is told, and that a watch which cannot ask for a while says
 * nothing of the other side, and goes on. Relies on a coordinator in this process, and on a limit of descriptors below
 * two, under which poll() of two fails. It must not wait without a limit. */
#include "engine/coordinator.h"
#include "os/os.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

typedef struct told {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int last;
} told_t;

static void tell(void *arg, int serves) {
    told_t *t = arg;
    pthread_mutex_lock(&t->lock);
    t->last = serves;
    pthread_cond_broadcast(&t->cond);
    pthread_mutex_unlock(&t->lock);
}

static int hears(told_t *t, int serves, int seconds) {
    struct timespec until;
    int rc = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&t->lock);
    while (t->last != serves && !rc) rc = pthread_cond_timedwait(&t->cond, &t->lock, &until);
    pthread_mutex_unlock(&t->lock);
    return !rc;
}

Test(watch, no_descriptors_for_a_while__says_nothing_of_the_other_side__goes_on, .timeout = 90) {
    rg_coordinator_config_t c = RG_COORDINATOR_CONFIG_INIT;
    told_t told = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, -1 };
    struct sockaddr_storage at;
    struct rlimit was, none;
    rg_coordinator_t *co;
    rg_watch_t *w;
    rg_error_t err = { RG_OK, 0, "" };
    c.listen = "127.0.0.1:0";
    cr_assert_eq(rg_coordinator_start(&c, &co, &err), RG_OK, "%s", err.text);
    cr_assert_eq(rg_os_resolve_list(rg_coordinator_address(co), &at, 1, &err), 1, "%s", err.text);
    const rg_watch_config_t wc = {
        .addrs = &at, .n = 1, .every_ns = 20000000, .patience_ns = 100000000, .tell = tell, .arg = &told
    };
    cr_assert_eq(rg_watch_start(&wc, &w, &err), RG_OK, "%s", err.text);
    cr_assert(hears(&told, 1, 20), "it does not see a coordinator that serves");
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = was;
    none.rlim_cur = 1;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    cr_assert_not(hears(&told, 0, 1), "what this process lacks counts as the other side's silence");
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
    rg_coordinator_stop(co);
    cr_assert(hears(&told, 0, 20), "it has stopped watching");
    rg_watch_stop(w);
}
