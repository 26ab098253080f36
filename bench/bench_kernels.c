/* bench_kernels.c: how fast the kernels are, by SIMD level, type and operator, with the operands in L2 and in memory,
 * beside memcpy of the same range. A figure is bytes of the result per second; a reduction also reads both operands,
 * so at the speed of memory it reaches about two thirds of memcpy. Relies on the library's internals. It must not check
 * results: that is what the unit tests are for. */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct place {
    const char *name;
    size_t bytes; /* of one operand */
} place_t;

typedef struct range {
    char *dst, *a, *b;
    size_t bytes;
} range_t;

static double seconds_per_row = 0.03;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Best of several: other programs can only slow a run down. */
#define BEST_RATE(bytes, call)                                                                                         \
    __extension__({                                                                                                    \
        double best_ = 1e30, end_ = now() + seconds_per_row;                                                           \
        size_t inner_ = (bytes) >= (8u << 20) ? 1 : (8u << 20) / (bytes);                                              \
        call;                                                                                                          \
        do {                                                                                                           \
            double t_ = now();                                                                                         \
            for (size_t i_ = 0; i_ < inner_; i_++) {                                                                   \
                call;                                                                                                  \
                __asm__ volatile("" ::: "memory");                                                                     \
            }                                                                                                          \
            t_ = (now() - t_) / (double)inner_;                                                                        \
            if (t_ < best_) best_ = t_;                                                                                \
        } while (now() < end_);                                                                                        \
        (double)(bytes) / best_ / 1e9;                                                                                 \
    })

static void row(const range_t *r, const char *place, rg_dtype_t dtype, rg_op_t op, uint32_t flags, const char *how) {
    rg_red_t red;
    if (rg_red_init(&red, dtype, op, 3, flags) != RG_OK) return;
    size_t n = r->bytes / rg_acc_size(dtype),
           bytes = n * (flags & RG_RED_DST_ACC ? rg_acc_size(dtype) : rg_dtype_size(dtype));
    double rate = BEST_RATE(bytes, rg_red_run(&red, r->dst, r->a, r->b, n));
    printf("%-7s %-7s %-5s %-5s %-14s %8.1f\n", rg_simd_name(), place, rg_dtype_name(dtype), rg_op_name(op), how, rate);
}

static void level_rows(const range_t *r, const char *place) {
    for (int d = 0; d < RG_DTYPE_COUNT; d++) {
        rg_dtype_t dtype = (rg_dtype_t)d;
        int half = rg_acc_size(dtype) != rg_dtype_size(dtype);
        for (int op = 0; op < RG_OP_COUNT; op++) row(r, place, dtype, (rg_op_t)op, RG_RED_FINAL, "raw+raw=raw");
        if (!half) continue;
        row(r, place, dtype, RG_SUM, RG_RED_DST_ACC, "raw+raw=f32");
        row(r, place, dtype, RG_SUM, RG_RED_A_ACC | RG_RED_DST_ACC, "f32+raw=f32");
        row(r, place, dtype, RG_SUM, RG_RED_A_ACC | RG_RED_FINAL, "f32+raw=raw");
    }
    range_t off = { r->dst + 4, r->a + 8, r->b + 12, r->bytes - 64 };
    row(&off, place, RG_F32, RG_SUM, 0, "unaligned");
    range_t odd = { r->dst + 1, r->a + 2, r->b + 3, r->bytes - 64 };
    row(&odd, place, RG_F32, RG_SUM, 0, "odd address");
    range_t in = { r->a, r->a, r->b, r->bytes };
    row(&in, place, RG_F32, RG_SUM, 0, "in place");
    printf("%-7s %-7s %-5s %-5s %-14s %8.1f\n", rg_simd_name(), place, "-", "copy", "rg_copy_stream",
           BEST_RATE(r->bytes, rg_copy_stream(r->dst, r->a, r->bytes)));
}

static int usage(const char *name, int code) {
    fprintf(code ? stderr : stdout,
            "usage: %s [--level scalar|avx2|avx512] [--seconds S]\n"
            "Bytes of result per second (GB/s) of every kernel, operands in L2 and in memory, beside memcpy.\n"
            "  --level    only this SIMD level (default: all that this CPU has)\n"
            "  --seconds  time per row (default 0.03)\n",
            name);
    return code;
}

int main(int argc, char **argv) {
    static const place_t places[] = { { "L2", 128u << 10 }, { "memory", 64u << 20 } };
    const char *levels[] = { "avx512", "avx2", "scalar" }, *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) return usage(argv[0], 0);
        if (strcmp(argv[i], "--level") == 0 && i + 1 < argc) only = argv[++i];
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) seconds_per_row = atof(argv[++i]);
        else return usage(argv[0], 2);
    }
    if (only && !rg_simd_force(only)) {
        fprintf(stderr, "%s: this CPU has no level \"%s\"\n", argv[0], only);
        return 2;
    }
    printf("%-7s %-7s %-5s %-5s %-14s %8s\n", "level", "where", "type", "op", "operands", "GB/s");
    for (size_t p = 0; p < 2; p++) {
        range_t r = { .bytes = places[p].bytes };
        char *all = aligned_alloc(4096, 3 * (r.bytes + 4096));
        if (!all) {
            fprintf(stderr, "%s: no memory for 3 times %zu bytes\n", argv[0], r.bytes);
            return 1;
        }
        memset(all, 0, 3 * (r.bytes + 4096));
        /* Not at equal offsets within a page, where loads and stores would seem to depend on each other. */
        r.dst = all, r.a = all + r.bytes + 1024, r.b = all + 2 * (r.bytes + 1024) + 1024;
        printf("%-7s %-7s %-5s %-5s %-14s %8.1f\n", "-", places[p].name, "-", "copy", "memcpy",
               BEST_RATE(r.bytes, memcpy(r.dst, r.a, r.bytes)));
        for (int l = 0; l < 3; l++)
            if ((!only || strcmp(only, levels[l]) == 0) && rg_simd_force(levels[l])) level_rows(&r, places[p].name);
        free(all);
    }
    return 0;
}
