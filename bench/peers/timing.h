/* timing.h: one timed loop for all libraries that bench/peers.sh compares, so that none is measured differently. Each
 * library brings a barrier of its own (which lets it finish what it has under way), prepare and call.
 *
 * Sizes are counted as nccl-tests does: bytes are those of the whole vector, which is what every rank holds before an
 * all-reduce, a broadcast, a reduce-scatter and an all-to-all, and after an all-gather. A rank's segment is the n-th
 * part of it, at least one element.
 *
 * Per size: the result of one call is checked element by element, a few calls warm up and tell how many the time
 * allows, and then each timed call goes: the library's barrier, new inputs written by every rank, a barrier in shared
 * memory that is the same for all, clock, call, clock. The time of a call is that of the slowest rank; the figure is
 * the median over the calls. Inputs differ from call to call, and the last result is checked as well.
 *
 * It relies on a file that all ranks map (PEERS_SHM), zeroed by whoever starts them, and prints from rank 0 one line
 * per size: library algorithm bytes median_us quartile_us quartile_us calls wrong. A rank that has not ended after
 * PEERS_LIMIT seconds is ended by its alarm, because some launchers leave ranks behind. C11 and C++17. */
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
#define TIMING_PERIOD 16 /* inputs repeat after so many elements */

enum timing_coll {
    TIMING_ALL_REDUCE,
    TIMING_ALL_GATHER,
    TIMING_REDUCE_SCATTER,
    TIMING_BROADCAST,
    TIMING_ALL_TO_ALL,
    TIMING_COLLS
};

struct timing_shared {
    uint32_t arrived, turn; /* barrier */
    uint32_t calls;         /* how many rank 0 decided on */
    uint64_t wrong;
    double us[TIMING_RANKS][TIMING_CALLS];
};

struct timing {
    const char *library;
    enum timing_coll coll;
    int rank, ranks, in_place;
    double budget_s;
    struct timing_shared *shared;
    void (*barrier)(void);
    void *(*alloc)(size_t bytes); /* NULL: ordinary memory */
    void (*release)(void *p);
    /* of the present size */
    size_t whole, segment; /* elements */
    uint64_t number;       /* of the call */
    float *in, *out;       /* in place they overlap as the collective wants it */
    float *result;         /* where the result is looked for: `out` unless prepare says otherwise */
};

/* `prepare` may set up what a caller would set up once, and is not timed; it may be NULL, then call gets NULL. */
struct timing_op {
    const char *algorithm;
    void *(*prepare)(struct timing *t, const char *algorithm);
    void (*call)(struct timing *t, void *op);
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

static inline enum timing_coll timing_collective(void) {
    static const char *const names[] = { "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all" };
    const char *want = timing_env("PEERS_COLLECTIVE", "all_reduce");
    for (int c = 0; c < TIMING_COLLS; c++)
        if (!strcmp(want, names[c])) return (enum timing_coll)c;
    fprintf(stderr, "PEERS_COLLECTIVE: there is no \"%s\"\n", want);
    _exit(2);
}

static inline struct timing timing_open(const char *library, int rank, int ranks) {
    struct timing t;
    memset(&t, 0, sizeof t);
    int fd = open(timing_env("PEERS_SHM", "/dev/shm/peers"), O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct timing_shared))) timing_die("PEERS_SHM");
    void *p = mmap(NULL, sizeof(struct timing_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) timing_die("mmap");
    close(fd);
    alarm((unsigned)atoi(timing_env("PEERS_LIMIT", "0")));
    t.library = library;
    t.coll = timing_collective();
    t.rank = rank;
    t.ranks = ranks;
    t.shared = (struct timing_shared *)p;
    t.in_place = atoi(timing_env("PEERS_IN_PLACE", "0"));
    t.budget_s = atof(timing_env("PEERS_BUDGET", "0.1"));
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

/* ---- Values ---------------------------------------------------------------------------------------------------- */

/* Small integers: every partial sum is exact, so any order of adding must give the same bits. */
static inline float timing_value(int rank, uint64_t number, size_t i) {
    return (float)((i * 3 + (size_t)rank * 5 + number * 7) % TIMING_PERIOD + 1);
}

static inline size_t timing_in_len(const struct timing *t) {
    return t->coll == TIMING_ALL_GATHER ? t->segment : t->whole;
}

static inline size_t timing_out_len(const struct timing *t) {
    return t->coll == TIMING_REDUCE_SCATTER ? t->segment : t->whole;
}

/* Of a broadcast the root (0) alone has an input. */
static inline void timing_write(struct timing *t) {
    float block[1024];
    size_t n = timing_in_len(t);
    if (t->coll == TIMING_BROADCAST && t->rank) return;
    for (size_t i = 0; i < 1024; i++) block[i] = timing_value(t->rank, t->number, i);
    for (size_t i = 0; i < n; i += 1024) memcpy(t->in + i, block, (n - i < 1024 ? n - i : 1024) * sizeof *t->in);
}

/* What element `at` of segment `s` of the result of this rank must be. */
static inline float timing_want(const struct timing *t, size_t s, size_t at) {
    size_t own = (size_t)t->rank * t->segment;
    float sum = 0;
    switch (t->coll) {
    case TIMING_ALL_GATHER: return timing_value((int)s, t->number, at);
    case TIMING_ALL_TO_ALL: return timing_value((int)s, t->number, own + at);
    case TIMING_BROADCAST: return timing_value(0, t->number, at);
    default: break;
    }
    if (t->coll == TIMING_REDUCE_SCATTER) at += own;
    for (int r = 0; r < t->ranks; r++) sum += timing_value(r, t->number, at);
    return sum;
}

static inline void timing_check(struct timing *t) {
    int segments = t->coll == TIMING_ALL_GATHER || t->coll == TIMING_ALL_TO_ALL ? t->ranks : 1;
    size_t len = timing_out_len(t) / (size_t)segments;
    uint64_t wrong = 0;
    for (int s = 0; s < segments; s++) {
        float want[TIMING_PERIOD];
        const float *got = t->result + (size_t)s * len;
        for (size_t i = 0; i < TIMING_PERIOD; i++) want[i] = timing_want(t, (size_t)s, i);
        for (size_t i = 0; i < len; i++) wrong += got[i] != want[i % TIMING_PERIOD];
    }
    __atomic_add_fetch(&t->shared->wrong, wrong, __ATOMIC_RELAXED);
}

/* ---- Measuring ------------------------------------------------------------------------------------------------- */

static inline double timing_one(struct timing *t, const struct timing_op *op, void *state) {
    if (t->barrier) t->barrier();
    t->number++;
    timing_write(t);
    timing_meet(t);
    double from = timing_now_us();
    op->call(t, state);
    return timing_now_us() - from;
}

static inline int timing_less(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline void timing_print(struct timing *t, const char *algorithm) {
    static double slowest[TIMING_CALLS];
    uint32_t n = t->shared->calls;
    for (uint32_t i = 0; i < n; i++) {
        slowest[i] = 0;
        for (int r = 0; r < t->ranks; r++)
            if (t->shared->us[r][i] > slowest[i]) slowest[i] = t->shared->us[r][i];
    }
    qsort(slowest, n, sizeof *slowest, timing_less);
    double median = n & 1 ? slowest[n / 2] : (slowest[n / 2 - 1] + slowest[n / 2]) / 2;
    printf("%s %s %zu %.2f %.2f %.2f %u %llu\n", t->library, algorithm, t->whole * sizeof(float), median,
           slowest[n / 4], slowest[n - 1 - n / 4], n, (unsigned long long)t->shared->wrong);
    fflush(stdout);
}

static inline void *timing_alloc(struct timing *t, size_t bytes) {
    void *p;
    if (t->alloc) p = t->alloc(bytes < 4096 ? 4096 : bytes);
    else if (posix_memalign(&p, 4096, bytes < 4096 ? 4096 : bytes)) p = NULL;
    if (!p) timing_die("memory");
    memset(p, 0, bytes);
    return p;
}

/* One or two buffers; in place `in` and `out` are parts of one, as MPI and we understand it. */
static inline void timing_buffers(struct timing *t, void *mine[2]) {
    size_t own = (size_t)t->rank * t->segment;
    mine[0] = timing_alloc(t, t->whole * sizeof(float));
    mine[1] = NULL;
    t->in = t->out = t->result = (float *)mine[0];
    if (t->coll == TIMING_BROADCAST) return;
    if (!t->in_place) {
        mine[1] = timing_alloc(t, t->whole * sizeof(float));
        t->out = t->result = (float *)mine[1];
        return;
    }
    if (t->coll == TIMING_ALL_GATHER) t->in += own;
    if (t->coll == TIMING_REDUCE_SCATTER) t->out = t->result = t->out + own;
}

static inline void timing_release(struct timing *t, void *p) {
    if (t->release) t->release(p);
    else free(p);
}

static inline void timing_size(struct timing *t, const struct timing_op *op, size_t bytes) {
    void *mine[2];
    int large = bytes > 1u << 22;
    t->segment = bytes / sizeof(float) / (size_t)t->ranks;
    if (!t->segment) t->segment = 1;
    t->whole = t->coll == TIMING_ALL_REDUCE || t->coll == TIMING_BROADCAST ? bytes / sizeof(float)
                                                                           : t->segment * (size_t)t->ranks;
    timing_buffers(t, mine);
    void *state = op->prepare ? op->prepare(t, op->algorithm) : NULL;
    timing_gather(t);
    if (t->rank == 0) t->shared->wrong = 0;
    timing_gather(t);
    double spent = timing_one(t, op, state); /* enough to go by where calls are long */
    timing_check(t);
    timing_gather(t);
    if (!large) {
        spent = timing_now_us();
        for (int i = 0; i < 2; i++) timing_one(t, op, state);
        spent = (timing_now_us() - spent) / 2;
        timing_gather(t);
    }
    if (t->rank == 0) {
        double k = t->budget_s * 1e6 / (spent + 1);
        t->shared->calls = k < 3 ? 3 : k > TIMING_CALLS ? TIMING_CALLS : (uint32_t)k;
    }
    timing_gather(t);
    uint32_t calls = t->shared->calls, warm = large ? 0 : calls / 5;
    for (uint32_t i = 0; i < warm; i++) timing_one(t, op, state);
    for (uint32_t i = 0; i < calls; i++) t->shared->us[t->rank][i] = timing_one(t, op, state);
    timing_gather(t);
    timing_check(t);
    timing_gather(t);
    if (t->rank == 0) timing_print(t, op->algorithm);
    timing_gather(t);
    if (op->finish) op->finish(state);
    for (int i = 0; i < 2; i++)
        if (mine[i]) timing_release(t, mine[i]);
}

/* Every size of PEERS_SIZES. Returns 1 when something was wrong. */
static inline int timing_sweep(struct timing *t, const struct timing_op *op) {
    uint64_t wrong = 0;
    const char *s = timing_env("PEERS_SIZES", "8,4096,65536,1048576,16777216");
    size_t last = 0;
    while (*s) {
        char *end;
        size_t bytes = strtoull(s, &end, 10);
        if (end == s) break;
        if (bytes < sizeof(float)) bytes = sizeof(float);
        if (t->coll != TIMING_ALL_REDUCE && t->coll != TIMING_BROADCAST && bytes < (size_t)t->ranks * sizeof(float))
            bytes = (size_t)t->ranks * sizeof(float); /* an element for everybody */
        if (bytes != last) timing_size(t, op, bytes);
        wrong += t->shared->wrong;
        last = bytes;
        s = *end == ',' ? end + 1 : end;
    }
    return wrong != 0;
}

#endif
