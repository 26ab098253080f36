/* thread.c: the library's own threads, and the program's while they are in a call. Relies on POSIX threads and glibc's
 * default attributes. It must not keep state: nothing is left behind in a thread that has come back from a call. */
#include "os/os.h"

#include <pthread.h>
#include <signal.h>

/* What the library's threads take, TLS, names and the program's callbacks among it. A program that makes many threads
 * may have a small default (pthread_setattr_default_np(), ulimit -s), which is its own threads' measure, not ours. */
#define STACK_LEAST ((size_t)512 << 10)

int rg_os_thread(pthread_t *thread, void *(*body)(void *), void *arg) {
    sigset_t all, was;
    pthread_attr_t attr;
    size_t stack;
    int rc = pthread_attr_init(&attr);
    if (rc) return rc;
    if (pthread_attr_getstacksize(&attr, &stack) != 0 || stack < STACK_LEAST)
        rc = pthread_attr_setstacksize(&attr, STACK_LEAST);
    sigfillset(&all); /* the program's signal handlers stay on the program's threads */
    pthread_sigmask(SIG_SETMASK, &all, &was);
    if (!rc) rc = pthread_create(thread, &attr, body, arg);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

int rg_os_stay(void) {
    int was = PTHREAD_CANCEL_DISABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &was);
    return was;
}

void rg_os_may_go(const int *was) { pthread_setcancelstate(*was, NULL); }
