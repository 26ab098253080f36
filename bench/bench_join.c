/* bench_join.c: what a newcomer with state costs a group that works: how long steps take while it fetches and without
 * it, how long the members stand where it enters, and how fast it fetches, beside a bare TCP connection that is given
 * the same rate. A step is a pause, as while a device computes, an all-reduce of 1 MiB, and a change of some bytes.
 * Members are threads with groups of their own, over loopback. It relies on regroup.h alone. It must not check
 * contents: that is what the tests are for. */
#include "regroup.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MIB (1u << 20)
#define MEMBERS 4u
#define QUIET 100u /* steps before the newcomer comes */
#define AFTER 20u  /* and after it has entered */
#define PAUSE_NS 10000000

typedef struct course {
    uint64_t bytes, rate; /* rate: of each member */
    const char *address;
    atomic_int started, failed;
    double quiet_ms, fetching_ms, stall_ms, fetch_s; /* medians of steps; the longest that a member stood */
    rg_state_result_t fetch, enter;
} course_t;

typedef struct member {
    pthread_t thread;
    course_t *c;
    uint32_t index;
    double stall_ms;
} member_t;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double mean(const double *v, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += v[i];
    return n ? sum / n : 0;
}
static double median(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, by_value);
    return n ? v[n / 2] : 0;
}

/* ---- Members ----------------------------------------------------------------------------------------------------- */

#define STEPS 20000u

typedef struct steps {
    double quiet[STEPS], fetching[STEPS];
    uint32_t n_quiet, n_fetching;
} steps_t;

/* One step; the bytes that change lie in a few pieces, as with sparse updates. */
static rg_status_t step(rg_group_t *g, rg_state_t *s, uint8_t *w, float *grad, uint64_t bytes, rg_change_t *change) {
    struct timespec pause = { 0, PAUSE_NS };
    uint64_t revision = rg_state_revision(s), at = revision % 16 * MIB % bytes;
    nanosleep(&pause, NULL);
    rg_status_t st = rg_all_reduce(g, grad, grad, MIB / 4, RG_F32, RG_AVG, NULL, NULL);
    if (st != RG_OK) return st;
    rg_state_touch(s, "w", at, 64);
    memset(w + at, (int)revision, 64);
    rg_state_set_revision(s, revision + 1);
    return rg_group_boundary(g, change);
}

static rg_status_t enter(member_t *m, rg_group_t *g, rg_state_t *s, const rg_change_t *change) {
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    o.touched_only = RG_ON;
    o.rule = RG_STATE_NEWEST;
    double start = now();
    rg_status_t st = rg_state_sync(g, s, &o, &r);
    m->stall_ms = (now() - start) * 1e3 + (double)change->stalled_ns * 1e-6;
    if (m->index == MEMBERS) m->c->enter = r;
    return st;
}

/* The newcomer's first call is the sync; it takes part in what follows. */
static rg_status_t live(member_t *m, rg_group_t *g, rg_state_t *s, uint8_t *w, float *grad, steps_t *t) {
    course_t *c = m->c;
    rg_change_t change = RG_CHANGE_INIT;
    uint32_t after = 0;
    rg_status_t st = m->index == MEMBERS ? enter(m, g, s, &change) : RG_OK;
    int entered = m->index == MEMBERS;
    for (uint32_t k = 0; st == RG_OK && after < AFTER; k++) {
        int fetching = atomic_load(&c->started);
        double start = now();
        st = step(g, s, w, grad, c->bytes, &change);
        double took = (now() - start) * 1e3;
        if (!entered && !fetching && t->n_quiet < STEPS) t->quiet[t->n_quiet++] = took;
        if (!entered && fetching && t->n_fetching < STEPS) t->fetching[t->n_fetching++] = took;
        if (m->index == 0 && k == QUIET) atomic_store(&c->started, 1);
        if (st == RG_OK && !entered && change.joined) {
            entered = 1;
            if (t->n_fetching) t->n_fetching--; /* the one in which it entered */
            st = enter(m, g, s, &change);
        }
        after += (uint32_t)entered;
    }
    return st;
}

static void *run(void *arg) {
    member_t *m = arg;
    course_t *c = m->c;
    rg_group_t *g = NULL;
    rg_state_t *s = NULL;
    rg_error_t err = { RG_OK, 0, "" };
    rg_config_t config = RG_CONFIG_INIT;
    rg_state_serve_opts_t so = RG_STATE_SERVE_OPTS_INIT;
    uint8_t *w = malloc(c->bytes);
    float *grad = calloc(MIB / 4, sizeof *grad);
    steps_t *t = calloc(1, sizeof *t);
    config.coordinator = c->address;
    config.transport = "tcp";
    config.min_size = m->index < MEMBERS ? MEMBERS : 1;
    config.order = m->index + 1;
    so.bytes_per_s = c->rate;
    rg_status_t st = w && grad && t ? rg_state_create(&s, &err) : RG_ERR_NOMEM;
    if (st == RG_OK) st = rg_state_add(s, "w", w, c->bytes, RG_U8, &err);
    if (st == RG_OK) memset(w, m->index < MEMBERS ? 1 : 2, c->bytes);
    if (st == RG_OK && m->index < MEMBERS) {
        rg_state_set_revision(s, 1);
        st = rg_group_join(&config, &g, &err);
        if (st == RG_OK) st = rg_state_serve(g, s, &so);
    } else if (st == RG_OK) {
        struct timespec tick = { 0, 1000000 };
        while (!atomic_load(&c->started) && !atomic_load(&c->failed)) nanosleep(&tick, NULL);
        c->fetch = (rg_state_result_t)RG_STATE_RESULT_INIT;
        st = rg_state_join(&config, s, NULL, &g, &c->fetch, &err);
    }
    if (st == RG_OK) st = live(m, g, s, w, grad, t);
    if (st != RG_OK) {
        char text[256] = "";
        if (g) rg_group_errmsg(g, text, sizeof text);
        fprintf(stderr, "member %u: %s: %s %s\n", m->index, rg_strerror(st), err.text, text);
        atomic_store(&c->failed, 1);
    }
    if (m->index == 0 && st == RG_OK) {
        printf("  steps without it: mean %.2f ms, median %.2f ms; while it fetches: mean %.2f ms (%+.1f %%), median "
               "%.2f ms, of %u\n",
               mean(t->quiet, t->n_quiet), median(t->quiet, t->n_quiet), mean(t->fetching, t->n_fetching),
               (mean(t->fetching, t->n_fetching) / mean(t->quiet, t->n_quiet) - 1) * 100,
               median(t->fetching, t->n_fetching), t->n_fetching);
    }
    rg_group_leave(g);
    rg_group_destroy(g);
    rg_state_destroy(s);
    free(t);
    free(grad);
    free(w);
    return NULL;
}

/* ---- A bare TCP connection --------------------------------------------------------------------------------------- */

typedef struct pipe_end {
    int fd;
    uint64_t bytes, rate;
} pipe_end_t;

static void *send_all(void *arg) {
    const pipe_end_t *e = arg;
    uint8_t *buf = calloc(1, MIB);
    double start = now();
    for (uint64_t at = 0; buf && at < e->bytes;) {
        double early = start + (double)at / (double)e->rate - now();
        struct timespec t = { (time_t)early, (long)((early - (double)(time_t)early) * 1e9) };
        if (early > 0) nanosleep(&t, NULL);
        ssize_t n = send(e->fd, buf, MIB, MSG_NOSIGNAL);
        if (n <= 0) break;
        at += (uint64_t)n;
    }
    free(buf);
    close(e->fd);
    return NULL;
}

static double bare_tcp(uint64_t bytes, uint64_t rate) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof a;
    int l = socket(AF_INET, SOCK_STREAM, 0), out = socket(AF_INET, SOCK_STREAM, 0);
    uint8_t *buf = malloc(MIB);
    uint64_t got = 0;
    pthread_t thread;
    if (!buf || bind(l, (struct sockaddr *)&a, len) || listen(l, 1) || getsockname(l, (struct sockaddr *)&a, &len) ||
        connect(out, (struct sockaddr *)&a, len)) {
        free(buf);
        return 0;
    }
    int in = accept(l, NULL, NULL);
    pipe_end_t e = { out, bytes, rate };
    double start = now();
    if (in < 0 || pthread_create(&thread, NULL, send_all, &e)) {
        free(buf);
        return 0;
    }
    for (ssize_t n; (n = recv(in, buf, MIB, 0)) > 0;) got += (uint64_t)n;
    double took = now() - start;
    pthread_join(thread, NULL);
    close(in);
    close(l);
    free(buf);
    return (double)got / took;
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static int course(uint64_t bytes, uint64_t rate) {
    course_t c = { .bytes = bytes, .rate = rate };
    member_t m[MEMBERS + 1] = { 0 };
    rg_coordinator_t *co;
    rg_error_t err = { RG_OK, 0, "" };
    if (rg_coordinator_start(NULL, &co, &err) != RG_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    c.address = rg_coordinator_address(co);
    printf("%u members with %llu MiB, a newcomer, %llu MiB/s from each:\n", MEMBERS, (unsigned long long)(bytes / MIB),
           (unsigned long long)(rate / MIB));
    for (uint32_t i = 0; i <= MEMBERS; i++) {
        m[i] = (member_t){ .c = &c, .index = i };
        if (pthread_create(&m[i].thread, NULL, run, &m[i])) return 1;
    }
    double stall = 0;
    for (uint32_t i = 0; i <= MEMBERS; i++) pthread_join(m[i].thread, NULL);
    for (uint32_t i = 0; i < MEMBERS; i++) stall = m[i].stall_ms > stall ? m[i].stall_ms : stall;
    rg_coordinator_stop(co);
    if (c.failed) return 1;
    double rate_got = (double)c.fetch.bytes_received / ((double)c.fetch.total_ns * 1e-9);
    double bare = bare_tcp(bytes, MEMBERS * rate);
    printf("  fetched %llu pieces from %u members at %.0f MB/s; a bare TCP connection with %llu MiB/s: %.0f MB/s "
           "(%.0f %%)\n  where it enters: the members stood for %.2f ms at most, %llu pieces moved\n",
           (unsigned long long)c.fetch.pieces_received, c.fetch.holders, rate_got / 1e6,
           (unsigned long long)(MEMBERS * rate / MIB), bare / 1e6, rate_got / bare * 100, stall,
           (unsigned long long)c.enter.pieces_received);
    return 0;
}

int main(int argc, char **argv) {
    uint64_t mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 256, rate = argc > 2 ? strtoull(argv[2], NULL, 10) : 25;
    if (mib < 1 || mib > 1u << 20 || rate < 1 || rate > 1u << 20) {
        fprintf(stderr, "usage: bench_join [MiB of state per member; 256 [MiB/s that each member gives; 25]]\n");
        return 2;
    }
    return course(mib * MIB, rate * MIB);
}
