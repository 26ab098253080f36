/* bench_kernels.c: how fast the kernels are beside what the machine can move. For every type, operator and combination
 * of operands that an all-reduce uses, with operands in L1, in L2 and in memory, it prints the bytes read and written
 * per second by the kernel, by a loop that only loads and stores the same bytes with vectors of the same width, and the
 * ratio. The two take turns; every figure is a median, the ratio that of neighbouring turns, so that a change of pace
 * in between hardly moves it. Relies on the library's internals. It must not check results: that is what the unit tests
 * are for. */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct place {
    const char *name;
    size_t bytes; /* of the largest operand */
} place_t;

static const place_t places[] = { { "L1", 8u << 10 }, { "L2", 128u << 10 }, { "memory", 32u << 20 } };

typedef struct range {
    char *dst, *x, *y;
    size_t bytes;
} range_t;

static double seconds_per_row = 0.04;
static int json, rows;
static double goal = 0.8;
static unsigned below[3], measured[3];

static double clock_seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void) { return clock_seconds(CLOCK_MONOTONIC); }

/* What this program itself used: the time in which another one had the core is not part of it. */
static double used(void) { return clock_seconds(CLOCK_THREAD_CPUTIME_ID); }

/* ---- The loops that only move bytes ------------------------------------------------------------------------------ */

typedef void (*traffic_fn)(void *dst, const void *x, const void *y, size_t rounds);

/* In each round NX vectors of x and NY of y are loaded, and ND stored: every loaded one goes into one that is stored,
 * by a single instruction without which a compiler would not load it. */
#define TRAFFIC(level, TARGET, V, NX, NY, ND)                                                                          \
    TARGET static void traffic_##level##_##NX##NY##ND(void *dst, const void *x, const void *y, size_t rounds) {        \
        const V *px = x, *py = y;                                                                                      \
        V *pd = dst;                                                                                                   \
        for (; rounds; rounds--, px += NX, py += NY, pd += ND) {                                                       \
            V a[NX], b[NY];                                                                                            \
            for (int i = 0; i < NX; i++) a[i] = px[i];                                                                 \
            for (int i = 0; i < NY; i++) b[i] = py[i];                                                                 \
            for (int i = 0; i < NY; i++) a[i] ^= b[i];                                                                 \
            for (int i = ND; i < NX; i++) a[i % ND] ^= a[i];                                                           \
            for (int i = 0; i < ND; i++) pd[i] = a[i];                                                                 \
        }                                                                                                              \
    }
#define TRAFFICS(level, TARGET, V)                                                                                     \
    TRAFFIC(level, TARGET, V, 4, 4, 4)                                                                                 \
    TRAFFIC(level, TARGET, V, 4, 2, 4)                                                                                 \
    TRAFFIC(level, TARGET, V, 4, 4, 2)                                                                                 \
    TRAFFIC(level, TARGET, V, 4, 1, 4)                                                                                 \
    TRAFFIC(level, TARGET, V, 4, 4, 1)
#define TRAFFIC_ROW(level)                                                                                             \
    {                                                                                                                  \
        traffic_##level##_444, traffic_##level##_424, traffic_##level##_442, traffic_##level##_414,                    \
            traffic_##level##_441                                                                                      \
    }

typedef int v16_t __attribute__((vector_size(16), aligned(4)));
TRAFFICS(scalar, , v16_t)
#ifdef __x86_64__
typedef int v32_t __attribute__((vector_size(32), aligned(4)));
typedef int v64_t __attribute__((vector_size(64), aligned(4)));
TRAFFICS(avx2, __attribute__((target("avx2"))), v32_t)
TRAFFICS(avx512, __attribute__((target("avx512f"))), v64_t)
#endif

typedef struct level {
    const char *name;
    size_t vector;
    traffic_fn traffic[5];
} level_t;

static const level_t levels[] = {
#ifdef __x86_64__
    { "avx512", 64, TRAFFIC_ROW(avx512) },
    { "avx2", 32, TRAFFIC_ROW(avx2) },
#endif
    { "scalar", 16, TRAFFIC_ROW(scalar) },
};
enum { LEVELS = sizeof levels / sizeof levels[0] };

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

enum { MAX_TURNS = 4096 };

typedef struct pair {
    double first, second, ratio; /* medians: seconds for a call of each, and second / first */
} pair_t;

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sets `seconds` to the time of one call, of `inner` that are timed together. */
#define TIMED(seconds, inner, call)                                                                                    \
    do {                                                                                                               \
        double t_ = used();                                                                                            \
        for (size_t i_ = 0; i_ < (inner); i_++) {                                                                      \
            call;                                                                                                      \
            __asm__ volatile("" ::: "memory");                                                                         \
        }                                                                                                              \
        (seconds) = (used() - t_) / (double)(inner);                                                                   \
    } while (0)

static double median(double *v, size_t n) {
    qsort(v, n, sizeof *v, compare_doubles);
    return v[n / 2];
}

/* Each turn moves a few mebibytes, beside which reading the clock is nothing. */
#define ALTERNATE(p, bytes, call1, call2)                                                                              \
    do {                                                                                                               \
        static double firsts_[MAX_TURNS], seconds_[MAX_TURNS], ratios_[MAX_TURNS];                                     \
        size_t inner_ = (bytes) >= (4u << 20) ? 1 : (4u << 20) / (bytes), turns_ = 0;                                  \
        double end_ = now() + seconds_per_row;                                                                         \
        call1;                                                                                                         \
        do {                                                                                                           \
            TIMED(firsts_[turns_], inner_, call1);                                                                     \
            TIMED(seconds_[turns_], inner_, call2);                                                                    \
            ratios_[turns_] = seconds_[turns_] / firsts_[turns_];                                                      \
        } while (++turns_ < 5 || (turns_ < MAX_TURNS && now() < end_));                                                \
        (p) = (pair_t){ median(firsts_, turns_), median(seconds_, turns_), median(ratios_, turns_) };                  \
    } while (0)

static void print_row(const char *level, int place, const char *type, const char *op, const char *how, double moved,
                      pair_t pace) {
    const char *where = places[place].name;
    double rate = moved / pace.first / 1e9, most = moved / pace.second / 1e9;
    measured[place]++;
    below[place] += pace.ratio < goal;
    if (json)
        printf("%s\n  {\"level\": \"%s\", \"where\": \"%s\", \"type\": \"%s\", \"op\": \"%s\", \"operands\": \"%s\", "
               "\"gbps\": %.2f, \"traffic_gbps\": %.2f, \"ratio\": %.3f}",
               rows ? "," : "[", level, where, type, op, how, rate, most, pace.ratio);
    else printf("%-7s %-7s %-7s %-5s %-12s %8.1f %8.1f %6.2f\n", level, where, type, op, how, rate, most, pace.ratio);
    rows++;
}

/* Which traffic loop moves the same bytes. */
static int shape_of(uint32_t flags, size_t small) {
    int all_raw = !(flags & (RG_RED_A_ACC | RG_RED_B_ACC | RG_RED_DST_ACC));
    if (all_raw || small == 1) return 0;
    return (flags & RG_RED_DST_ACC ? 1 : 2) + (small == 4 ? 2 : 0);
}

static void row(const level_t *l, const range_t *r, int place, rg_dtype_t dtype, rg_op_t op, uint32_t flags,
                const char *how) {
    size_t raw = rg_dtype_size(dtype), acc = rg_acc_size(dtype);
    size_t x = flags & RG_RED_A_ACC ? acc : raw, y = flags & RG_RED_B_ACC ? acc : raw;
    size_t d = flags & RG_RED_DST_ACC ? acc : raw, widest = x > d ? x : d;
    size_t n = r->bytes / widest, rounds = r->bytes / (4 * l->vector), moved = n * (x + y + d);
    traffic_fn traffic = l->traffic[shape_of(flags, acc / raw)];
    rg_red_t red;
    pair_t pace;
    /* Two inputs become a result in groups of two only. */
    if (rg_red_init(&red, dtype, op, flags & (RG_RED_A_ACC | RG_RED_B_ACC) ? 3 : 2, flags) != RG_OK) return;
    ALTERNATE(pace, moved, rg_red_run(&red, r->dst, r->x, r->y, n), traffic(r->dst, r->x, r->y, rounds));
    print_row(l->name, place, rg_dtype_name(dtype), rg_op_name(op), how, (double)moved, pace);
}

/* Operands as algorithms use them: two inputs to a result; a partial value and what came in; two partial values to a
 * result. Types that are their own partial values know only one way. */
static void level_rows(const level_t *l, const range_t *r, int place) {
    for (int d = 0; d < RG_DTYPE_COUNT; d++) {
        rg_dtype_t dtype = (rg_dtype_t)d;
        int small = rg_acc_size(dtype) != rg_dtype_size(dtype);
        for (int op = 0; op < RG_OP_COUNT; op++) {
            row(l, r, place, dtype, (rg_op_t)op, RG_RED_FINAL, "raw+raw=raw");
            if (!small && op != RG_AVG) continue;
            row(l, r, place, dtype, (rg_op_t)op, RG_RED_A_ACC | RG_RED_DST_ACC, "acc+raw=acc");
            row(l, r, place, dtype, (rg_op_t)op, RG_RED_A_ACC | RG_RED_B_ACC | RG_RED_FINAL, "acc+acc=raw");
        }
    }
    /* Addresses that share no alignment, as a caller's may. Both loops get the same ones. */
    range_t off = { r->dst + 4, r->x + 8, r->y + 12, r->bytes - 1024 };
    row(l, &off, place, RG_F32, RG_SUM, 0, "unaligned");
    range_t in = { r->x, r->x, r->y, r->bytes };
    row(l, &in, place, RG_F32, RG_SUM, 0, "in place");
}

/* Factors and copies, beside memcpy of the same range. */
static void copy_rows(const level_t *l, const range_t *r, int place) {
    static const rg_dtype_t floats[] = { RG_F16, RG_BF16, RG_F32, RG_F64, RG_F8E4M3, RG_F8E5M2 };
    pair_t pace;
    double moved = 2.0 * (double)r->bytes;
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        size_t n = r->bytes / rg_dtype_size(floats[i]);
        ALTERNATE(pace, r->bytes, rg_scale(floats[i], r->dst, r->x, n, 0.75), memcpy(r->dst, r->x, r->bytes));
        print_row(l->name, place, rg_dtype_name(floats[i]), "scale", "raw=raw", moved, pace);
    }
    ALTERNATE(pace, r->bytes, rg_copy_past_cache(r->dst, r->x, r->bytes), memcpy(r->dst, r->x, r->bytes));
    print_row(l->name, place, "-", "copy", "past cache", moved, pace);
}

static int usage(const char *name, int code) {
    fprintf(code ? stderr : stdout,
            "usage: %s [--level scalar|avx2|avx512|all] [--where L1|L2|memory] [--seconds S] [--json]\n"
            "Bytes read and written per second (GB/s) by every kernel, and by a loop that only moves the same bytes.\n"
            "  --level    only this SIMD level (default: the best that this CPU has)\n"
            "  --where    only with operands there (default: all three)\n"
            "  --seconds  time per row (default 0.04)\n"
            "  --json     one array of objects\n",
            name);
    return code;
}

static int measure_place(int p, const char *only) {
    range_t r = { .bytes = places[p].bytes };
    char *all = aligned_alloc(4096, 3 * (r.bytes + 4096));
    if (!all) {
        fprintf(stderr, "no memory for 3 times %zu bytes\n", r.bytes);
        return 1;
    }
    memset(all, 0, 3 * (r.bytes + 4096));
    /* Not at equal offsets within a page, where loads and stores would seem to depend on each other. */
    r.dst = all, r.x = all + r.bytes + 1024, r.y = all + 2 * (r.bytes + 1024);
    for (int l = 0; l < LEVELS; l++) {
        if (only && strcmp(only, "all") && strcmp(only, levels[l].name)) continue;
        if (!rg_simd_force(levels[l].name)) continue;
        level_rows(&levels[l], &r, p);
        copy_rows(&levels[l], &r, p);
        if (!only) break;
    }
    free(all);
    return 0;
}

int main(int argc, char **argv) {
    const char *only = NULL, *where = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) return usage(argv[0], 0);
        if (strcmp(argv[i], "--json") == 0) json = 1;
        else if (strcmp(argv[i], "--level") == 0 && i + 1 < argc) only = argv[++i];
        else if (strcmp(argv[i], "--where") == 0 && i + 1 < argc) where = argv[++i];
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) seconds_per_row = atof(argv[++i]);
        else return usage(argv[0], 2);
    }
    if (only && strcmp(only, "all") && !rg_simd_force(only)) {
        fprintf(stderr, "%s: this CPU has no level \"%s\"\n", argv[0], only);
        return 2;
    }
    if (!json)
        printf("%-7s %-7s %-7s %-5s %-12s %8s %8s %6s\n", "level", "where", "type", "op", "operands", "GB/s", "traffic",
               "ratio");
    for (int p = 0; p < 3; p++)
        if ((!where || strcmp(where, places[p].name) == 0) && measure_place(p, only)) return 1;
    if (json) {
        printf("%s\n]\n", rows ? "" : "[");
        return 0;
    }
    for (int p = 0; p < 3; p++)
        if (measured[p]) printf("%s: %u of %u below %.2f\n", places[p].name, below[p], measured[p], goal);
    return 0;
}
