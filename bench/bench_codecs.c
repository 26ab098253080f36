/* bench_codecs.c: how fast the wire forms are encoded and decoded, in gigabytes of f32 per second on one core, for data
 * that fit L2, at every SIMD level, with both ways of rounding; the relative root mean square of the error beside it.
 * Options: --level NAME for one level only, --json. Relies on rg_simd_force(). The figures are the best of several
 * rounds, so that what else runs on the machine is left out; it must not check results, which the unit tests do. */
#include "kernels/kernels.h"
#include "regroup_quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N = 1 << 17, ROUNDS = 15 };

typedef struct data {
    float *x, *y;
    uint8_t *w;
} data_t;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Sums of twelve uniform numbers, which is near enough to a normal distribution. */
static void fill(float *x) {
    uint64_t s = 0x9e3779b97f4a7c15ull;
    for (int i = 0; i < N; i++) {
        double sum = 0;
        for (int k = 0; k < 12; k++) {
            s ^= s << 13, s ^= s >> 7, s ^= s << 17;
            sum += (double)(s >> 40) * 0x1p-24;
        }
        x[i] = (float)(sum - 6);
    }
}

static double error_of(const data_t *d) {
    double error = 0, all = 0;
    for (int i = 0; i < N; i++) {
        error += ((double)d->y[i] - (double)d->x[i]) * ((double)d->y[i] - (double)d->x[i]);
        all += (double)d->x[i] * (double)d->x[i];
    }
    return sqrt(error / all);
}

/* Prints one row. Returns 0 when a call was refused. */
static int measure(const char *level, const rg_quant_t *q, const data_t *d, int json, int first) {
    double best[3] = { 1e9, 1e9, 1e9 }, error = 0;
    for (int r = 0; r < ROUNDS; r++) {
        double t0 = now();
        if (rg_quant_encode(q, 0, 0, d->x, N, d->w) != RG_OK) return 0;
        double t1 = now();
        if (rg_quant_decode(q->wire, d->w, N, d->y) != RG_OK) return 0;
        double t2 = now();
        if (r == 0) error = error_of(d);
        double t3 = now();
        if (rg_quant_decode_add(q->wire, d->w, N, d->y) != RG_OK) return 0;
        double t4 = now();
        best[0] = fmin(best[0], t1 - t0);
        best[1] = fmin(best[1], t2 - t1);
        best[2] = fmin(best[2], t4 - t3);
    }
    double bits = 8.0 * (double)rg_quant_bytes(q->wire, N) / N, gb = 4e-9 * N;
    const char *rounding = q->flags & RG_QUANT_STOCHASTIC ? "stochastic" : "nearest";
    if (json)
        printf("%s\n  {\"level\": \"%s\", \"wire\": \"%s\", \"rounding\": \"%s\", \"bits\": %.3f, \"encode\": %.3f, "
               "\"decode\": %.3f, \"decode_add\": %.3f, \"error\": %.6f}",
               first ? "" : ",", level, rg_wire_name(q->wire), rounding, bits, gb / best[0], gb / best[1], gb / best[2],
               error);
    else
        printf("%-7s %-12s %-10s %7.3f %8.2f %8.2f %8.2f %10.5f\n", level, rg_wire_name(q->wire), rounding, bits,
               gb / best[0], gb / best[1], gb / best[2], error);
    return 1;
}

/* Every codec at every level that this CPU has. 1: all were measured. */
static int measure_all(data_t *d, const char *only, int json) {
    static const char *const levels[] = { "scalar", "avx2", "avx512" };
    int ok = 1, rows = 0;
    fill(d->x);
    if (json) printf("[");
    else
        printf("%-7s %-12s %-10s %7s %8s %8s %8s %10s\n", "level", "wire", "rounding", "bits", "encode", "decode",
               "add", "error");
    for (int l = 0; ok && l < 3; l++) {
        if ((only != NULL && strcmp(only, levels[l]) != 0) || !rg_simd_force(levels[l])) continue;
        for (int wire = RG_WIRE_F16; ok && wire < RG_WIRE_COUNT; wire++)
            for (uint32_t flags = 0; ok && flags < 2; flags++) {
                rg_quant_t q = RG_QUANT_INIT((rg_wire_t)wire);
                q.flags = flags;
                ok = measure(levels[l], &q, d, json, rows++ == 0);
            }
    }
    if (json) printf("\n]\n");
    if (ok && rows == 0) fprintf(stderr, "this CPU has no such level: %s\n", only);
    return ok && rows != 0;
}

int main(int argc, char **argv) {
    const char *only = NULL;
    int json = 0, ok = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) json = 1;
        else if (strcmp(argv[i], "--level") == 0 && i + 1 < argc) only = argv[++i];
        else {
            fprintf(stderr, "usage: %s [--level scalar|avx2|avx512] [--json]\n", argv[0]);
            return 2;
        }
    }
    data_t d = { malloc(N * sizeof *d.x), malloc(N * sizeof *d.y), malloc((size_t)N * 4) };
    if (d.x == NULL || d.y == NULL || d.w == NULL) fprintf(stderr, "out of memory\n");
    else ok = measure_all(&d, only, json);
    free(d.x);
    free(d.y);
    free(d.w);
    return ok ? 0 : 1;
}
