/* hush.c: writing where a failure would be a signal: a pipe that nobody reads (SIGPIPE), a file beyond the limit of
 * sizes (SIGXFSZ). Both come to the thread that writes, while it writes, so it is enough to hold them back there and to
 * take away what came. It relies on POSIX masks only; it must not change what the program does with these signals. */
#include "os/os.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

static void the_two(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGPIPE);
    sigaddset(set, SIGXFSZ);
}

void rg_os_hush(rg_os_hush_t *h) {
    sigset_t two;
    the_two(&two);
    sigemptyset(&h->pending);
    sigpending(&h->pending); /* what was waiting before is the program's and stays */
    pthread_sigmask(SIG_BLOCK, &two, &h->mask);
}

void rg_os_unhush(const rg_os_hush_t *h) {
    const struct timespec at_once = { 0, 0 };
    int saved = errno;
    sigset_t now, ours;
    sigemptyset(&now);
    sigemptyset(&ours);
    sigpending(&now);
    for (int i = 0; i < 2; i++) {
        int sig = i ? SIGXFSZ : SIGPIPE;
        if (sigismember(&now, sig) && !sigismember(&h->pending, sig)) sigaddset(&ours, sig);
    }
    while (sigismember(&ours, SIGPIPE) || sigismember(&ours, SIGXFSZ)) {
        int sig = sigtimedwait(&ours, NULL, &at_once);
        if (sig > 0) sigdelset(&ours, sig);
        else if (errno != EINTR) break;
    }
    pthread_sigmask(SIG_SETMASK, &h->mask, NULL);
    errno = saved;
}
