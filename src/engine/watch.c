/* watch.c: a thread that asks now and then whether a coordinator serves at one of some addresses: for a member that
 * holds the office in its place, and for a standby. Blocking sockets with deadlines, and an event descriptor that ends
 * every wait at once. It relies on the coordinator to answer its word (coordinator.h). It must not decide anything, nor
 * take what this process lacks (descriptors, memory, the time to run) for the silence of the other one. */
#include "core/core.h"
#include "engine/coordinator.h"
#include "os/os.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define WATCH_PLACES 16
#define BLIND_NS 20000000 /* until the next look where poll() does not wait */

struct rg_watch {
    struct sockaddr_storage addrs[WATCH_PLACES];
    int n, stop_fd;
    atomic_int stop;
    rg_tls_ctx_t *tls; /* of this thread alone */
    uint64_t every_ns, patience_ns;
    uint8_t ask[4 + 8 + 16 + RG_CORE_NAME_MAX];
    size_t ask_len;
    void (*tell)(void *arg, int serves);
    void *arg;
    pthread_t thread;
};

/* Whether a standalone coordinator answers there; below 0: this process could not ask. */
static int watch_ask(const rg_watch_t *w, const struct sockaddr_storage *at) {
    uint8_t answer[5];
    uint8_t ask[sizeof w->ask];
    rg_error_t err;
    memcpy(ask, w->ask, w->ask_len);
    rg_ask_t a = { .address = "", .fd = -1, .stop_fd = w->stop_fd, .deadline = rg_os_now_ns() + 2 * w->every_ns };
    rg_status_t status = rg_ask_open(&a, at, w->tls, &err);
    if (!status) status = rg_ask_move(&a, ask, w->ask_len, 1, &err);
    if (!status) status = rg_ask_move(&a, answer, sizeof answer, 0, &err);
    rg_ask_close(&a);
    if (status == RG_ERR_RESOURCE || status == RG_ERR_NOMEM) return -1;
    return !status && answer[0] == 1 && !answer[1] && !answer[2] && !answer[3] && answer[4] == RG_SERVES_ALONE;
}

static void watch_question(rg_watch_t *w, const rg_watch_config_t *c) {
    size_t name = c->group ? strlen(c->group) : 0;
    if (name >= RG_CORE_NAME_MAX) name = RG_CORE_NAME_MAX - 1;
    memcpy(w->ask + 4, RG_SERVES_WORD, 8);
    w->ask_len = 12;
    if (c->group) {
        memcpy(w->ask + 12, c->nonce, 16);
        memcpy(w->ask + 28, c->group, name);
        w->ask_len = 28 + name;
    }
    w->ask[0] = (uint8_t)(w->ask_len - 4); /* the rest of the length is 0: it is below 256 */
}

/* No two processes are at the same nanosecond of their clocks, so to speak: chance enough to be apart. */
static uint64_t watch_patience(const rg_watch_t *w) {
    uint64_t h = (rg_os_now_ns() ^ (uint64_t)getpid() << 40) * 0x9e3779b97f4a7c15u >> 48;
    return w->patience_ns + w->patience_ns / 2 * h / 65536;
}

/* A poll() that fails, for lack of memory or descriptors, is no reason to watch no more, nor to keep a core busy. */
static void watch_blind(void) {
    const struct timespec ts = { 0, BLIND_NS };
    clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL);
}

/* Asks all until one serves; below 0: none does of those that could be asked, and there are others. */
static int watch_ask_all(const rg_watch_t *w) {
    int serves = 0;
    for (int i = 0; i < w->n && serves <= 0; i++) {
        int is = watch_ask(w, &w->addrs[i]);
        if (is) serves = is;
    }
    return serves;
}

/* How long nobody has served, as far as this thread could know: not while it could not ask, and no longer for one look
 * than it takes when the thread runs. */
static uint64_t watch_silence(const rg_watch_t *w, uint64_t silent, int serves, uint64_t since_last) {
    const uint64_t most = (2 * (uint64_t)w->n + 2) * w->every_ns;
    if (serves) return serves > 0 ? 0 : silent;
    return silent + (since_last < most ? since_last : most);
}

static void *watch_main(void *arg) {
    rg_watch_t *w = arg;
    uint64_t last = rg_os_now_ns(), silent = 0, patience = watch_patience(w);
    int told = -1;
    while (!atomic_load(&w->stop)) {
        uint64_t start = rg_os_now_ns();
        int serves = watch_ask_all(w);
        uint64_t now = rg_os_now_ns();
        silent = watch_silence(w, silent, serves, now - last);
        last = now;
        int is = serves > 0 ? 1 : silent >= patience ? 0 : told;
        if (is != told && is >= 0) w->tell(w->arg, is);
        if (is != told) patience = watch_patience(w);
        told = is;
        rg_ask_t pause = { .address = "", .stop_fd = w->stop_fd };
        pause.deadline = start + w->every_ns > now ? start + w->every_ns : now + w->every_ns / 4;
        rg_status_t st = rg_ask_wait(&pause, -1, 0, NULL);
        if (st != RG_ERR_TIMEOUT && st != RG_ERR_CANCELLED) watch_blind();
    }
    return NULL;
}

static void watch_free(rg_watch_t *w) {
    rg_tls_close(w->tls);
    if (w->stop_fd >= 0) close(w->stop_fd);
    free(w);
}

rg_status_t rg_watch_start(const rg_watch_config_t *config, rg_watch_t **out, rg_error_t *err) {
    rg_watch_t *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return rg_fail(err, RG_ERR_NOMEM, 0, "no memory to watch a coordinator");
    w->n = config->n < WATCH_PLACES ? config->n : WATCH_PLACES;
    memcpy(w->addrs, config->addrs, (size_t)w->n * sizeof *w->addrs);
    w->every_ns = config->every_ns > 1000000 ? config->every_ns : 1000000;
    w->patience_ns = config->patience_ns;
    watch_question(w, config);
    w->tell = config->tell;
    w->arg = config->arg;
    w->stop_fd = rg_os_high(eventfd(0, EFD_CLOEXEC));
    if (w->stop_fd < 0) rg_fail(err, RG_ERR_SYSTEM, errno, "cannot watch a coordinator: %s", strerror(errno));
    rg_status_t st = w->stop_fd < 0 ? RG_ERR_SYSTEM : rg_tls_copy(config->tls, &w->tls, err);
    if (st) {
        watch_free(w);
        return st;
    }
    int rc = rg_os_thread(&w->thread, watch_main, w);
    if (rc) {
        watch_free(w);
        return rg_fail(err, RG_ERR_SYSTEM, rc, "cannot start a thread to watch a coordinator: %s", strerror(rc));
    }
    *out = w;
    return RG_OK;
}

void rg_watch_stop(rg_watch_t *w) {
    uint64_t one = 1;
    if (!w) return;
    atomic_store(&w->stop, 1);
    ssize_t n = write(w->stop_fd, &one, sizeof one);
    (void)n; /* it cannot fail: nothing else is ever written there */
    pthread_join(w->thread, NULL);
    watch_free(w);
}
