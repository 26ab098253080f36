/* timing.h: one timed loop for all libraries that bench/peers.sh compares, so that none is measured differently. Each
 * library brings three functions: a barrier of its own (which lets it finish what it has under way), prepare and call.
 *
 * Per size: the result of one call is checked element by element, a few calls warm up and tell how many the time
 * allows, and then each timed call goes: the library's barrier, new inputs written by every rank, a barrier in shared
 * memory that is the same for all, clock, call, clock. The time of a call is that of the slowest rank; the figure is
 * the median over the calls.
 *
 * It relies on a file that all ranks map (PEERS_SHM), zeroed by whoever starts them, and prints from rank 0 one line
 * per size: library algorithm bytes median_us min_us max_us calls wrong. C11 and C++17. */
#ifndef PEERS_TIMING_H
#define PEERS_TIMING_H

#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define TIMING_RANKS 16
#define TIMING_CALLS 1000

struct timing_shared {
    uint32_t arrived, turn; /* barrier */
    uint32_t calls;         /* how many rank 0 decided on */
    uint32_t joined;        /* for whoever starts ranks */
    uint64_t wrong;
    char text[256]; /* for whoever starts ranks */
    double us[TIMING_RANKS][TIMING_CALLS];
};

struct timing {
    const char *library;
    int rank, ranks, in_place;
    double budget_s;
    struct timing_shared *shared;
    void (*barrier)(void);
};

/* One call as a library wants it: `prepare` may set up what a caller would set up once, and is not timed. */
struct timing_op {
    const char *algorithm;
    void *(*prepare)(const char *algorithm, float *in, float *out, size_t count);
    void (*call)(void *op, float *in, float *out, size_t count);
    void (*finish)(void *op);
};

static inline double timing_now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static inline void timing_die(const char *what) {
    perror(what);
    _exit(1);
}

static inline const char *timing_env(const char *name, const char *fallback) {
    const char *v = getenv(name);
    return v && *v ? v : fallback;
}

static inline struct timing timing_open(const char *library, int rank, int ranks) {
    struct timing t;
    memset(&t, 0, sizeof t);
    int fd = open(timing_env("PEERS_SHM", "/dev/shm/peers"), O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct timing_shared))) timing_die("PEERS_SHM");
    void *p = mmap(NULL, sizeof(struct timing_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) timing_die("mmap");
    close(fd);
    t.library = library;
    t.rank = rank;
    t.ranks = ranks;
    t.shared = (struct timing_shared *)p;
    t.in_place = atoi(timing_env("PEERS_IN_PLACE", "1"));
    t.budget_s = atof(timing_env("PEERS_BUDGET", "0.4"));
    return t;
}

/* Waits by yielding: with more ranks than cores a spinning rank would keep the last one out. */
static inline void timing_meet(struct timing *t) {
    uint32_t turn = __atomic_load_n(&t->shared->turn, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&t->shared->arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)t->ranks) {
        __atomic_store_n(&t->shared->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&t->shared->turn, turn + 1, __ATOMIC_RELEASE);
        return;
    }
    while (__atomic_load_n(&t->shared->turn, __ATOMIC_ACQUIRE) == turn) sched_yield();
}

static inline void timing_gather(struct timing *t) {
    if (t->barrier) t->barrier();
    timing_meet(t);
}

/* Small integers: every partial sum is exact, so any order of adding must give the same bits. */
static inline float timing_value(int rank, size_t i) { return (float)((i * 3 + (size_t)rank * 5) % 16 + 1); }

static inline void timing_write(struct timing *t, float *p, size_t count) {
    float block[1024];
    for (size_t i = 0; i < 1024; i++) block[i] = timing_value(t->rank, i);
    for (size_t i = 0; i < count; i += 1024) memcpy(p + i, block, (count - i < 1024 ? count - i : 1024) * sizeof *p);
}

static inline double timing_one(struct timing *t, const struct timing_op *op, void *state, float *in, float *out,
                                size_t count) {
    if (t->barrier) t->barrier();
    timing_write(t, t->in_place ? out : in, count);
    timing_meet(t);
    double from = timing_now_us();
    op->call(state, t->in_place ? out : in, out, count);
    return timing_now_us() - from;
}

static inline void timing_check(struct timing *t, const float *out, size_t count) {
    float want[16];
    uint64_t wrong = 0;
    for (size_t i = 0; i < 16; i++) {
        want[i] = 0;
        for (int r = 0; r < t->ranks; r++) want[i] += timing_value(r, i);
    }
    for (size_t i = 0; i < count; i++) wrong += out[i] != want[i % 16];
    __atomic_add_fetch(&t->shared->wrong, wrong, __ATOMIC_RELAXED);
}

static inline int timing_less(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline void timing_print(struct timing *t, const char *algorithm, size_t bytes) {
    static double slowest[TIMING_CALLS];
    uint32_t n = t->shared->calls;
    for (uint32_t i = 0; i < n; i++) {
        slowest[i] = 0;
        for (int r = 0; r < t->ranks; r++)
            if (t->shared->us[r][i] > slowest[i]) slowest[i] = t->shared->us[r][i];
    }
    qsort(slowest, n, sizeof *slowest, timing_less);
    double median = n & 1 ? slowest[n / 2] : (slowest[n / 2 - 1] + slowest[n / 2]) / 2;
    printf("%s %s %zu %.2f %.2f %.2f %u %llu\n", t->library, algorithm, bytes, median, slowest[0], slowest[n - 1], n,
           (unsigned long long)t->shared->wrong);
    fflush(stdout);
}

static inline float *timing_alloc(size_t bytes) {
    void *p;
    if (posix_memalign(&p, 4096, bytes < 4096 ? 4096 : bytes)) timing_die("memory");
    memset(p, 0, bytes);
    return (float *)p;
}

static inline void timing_size(struct timing *t, const struct timing_op *op, size_t bytes) {
    size_t count = bytes / sizeof(float);
    float *in = timing_alloc(bytes), *out = timing_alloc(bytes);
    void *state = op->prepare ? op->prepare(op->algorithm, t->in_place ? out : in, out, count) : NULL;
    timing_gather(t);
    if (t->rank == 0) t->shared->wrong = 0;
    timing_gather(t);
    timing_one(t, op, state, in, out, count);
    timing_check(t, out, count);
    timing_gather(t);
    double spent = timing_now_us();
    for (int i = 0; i < 2; i++) timing_one(t, op, state, in, out, count);
    spent = (timing_now_us() - spent) / 2;
    timing_gather(t);
    if (t->rank == 0) {
        double k = t->budget_s * 1e6 / (spent + 1);
        t->shared->calls = k < 5 ? 5 : k > TIMING_CALLS ? TIMING_CALLS : (uint32_t)k;
    }
    timing_gather(t);
    uint32_t calls = t->shared->calls, warm = bytes > 1u << 22 ? 0 : calls / 5;
    for (uint32_t i = 0; i < warm; i++) timing_one(t, op, state, in, out, count);
    for (uint32_t i = 0; i < calls; i++) t->shared->us[t->rank][i] = timing_one(t, op, state, in, out, count);
    timing_gather(t);
    if (t->rank == 0) timing_print(t, op->algorithm, bytes);
    timing_gather(t);
    if (op->finish) op->finish(state);
    free(in);
    free(out);
}

/* Every size of PEERS_SIZES. Returns 1 when something was wrong. */
static inline int timing_sweep(struct timing *t, const struct timing_op *op) {
    uint64_t wrong = 0;
    const char *s = timing_env("PEERS_SIZES", "4096,65536,1048576,16777216,134217728");
    while (*s) {
        char *end;
        size_t bytes = strtoull(s, &end, 10);
        if (end == s) break;
        timing_size(t, op, bytes);
        wrong += t->shared->wrong;
        s = *end == ',' ? end + 1 : end;
    }
    return wrong != 0;
}

#endif
