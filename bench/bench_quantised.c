/* bench_quantised.c: quantised all-reduces beside the f32 one, over whatever network the members are on. A member of a
 * group that the environment names (RG_COORDINATOR, RG_MIN_SIZE, RG_ORDER); all are started with the same arguments:
 *   bench_quantised [elements 2097152] [calls 5] [forms f32 int8 int4 ...]
 * A form is a wire form, with /direct, /ring, /two-level or /integer after it where the way is not left to the library.
 * Rank 0 prints the median over the calls of the time that the slowest member took, and what f32 took in units of it;
 * the last line is JSON. Every result is checked. It relies on nothing but the public interface. */
#include "regroup.h"
#include "regroup_quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CALLS 100

typedef struct bench {
    rg_group_t *g;
    uint32_t rank, n;
    uint64_t count;
    int calls;
    float *in, *out;
    double error; /* relative root mean square of the last result */
} bench_t;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float value(uint32_t member, uint64_t i) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + member * 0xbf58476d1ce4e5b9ull;
    double sum = 0;
    for (int k = 0; k < 4; k++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        sum += (double)(x >> 40) * 0x1p-24;
    }
    return (float)(sum - 2);
}

static int fail(const bench_t *b, const char *what, rg_status_t st) {
    char text[256] = "";
    if (b->g != NULL) rg_group_errmsg(b->g, text, sizeof text);
    fprintf(stderr, "bench_quantised: %s: %s: %s\n", what, rg_status_name(st), text);
    return 1;
}

/* On a sample of the elements. */
static double error_of(const bench_t *b) {
    double error = 0, all = 0;
    for (uint64_t i = 0; i < b->count; i += 61) {
        double want = 0;
        for (uint32_t j = 0; j < b->n; j++) want += (double)value(j, i);
        error += ((double)b->out[i] - want) * ((double)b->out[i] - want);
        all += want * want;
    }
    return all > 0 ? sqrt(error / all) : 0;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int make(bench_t *b, const char *form, rg_quantiser_t **z) {
    char name[64];
    const char *way = strchr(form, '/');
    snprintf(name, sizeof name, "%.*s", (int)(way != NULL ? way - form : (long)strlen(form)), form);
    rg_quant_t q = RG_QUANT_INIT(rg_wire_by_name(name));
    rg_error_t err;
    for (uint32_t f = 0; way != NULL && rg_quant_form_name(f) != NULL; f++)
        if (strcmp(rg_quant_form_name(f), way + 1) == 0) q.form = f;
    if (rg_quantiser_create(b->g, &q, NULL, z, &err) == RG_OK) return 1;
    fprintf(stderr, "bench_quantised: %s: %s\n", form, err.text);
    return 0;
}

/* Median seconds of a form; below 0: it failed. */
static double measure(bench_t *b, const char *form) {
    double took[CALLS], mine, worst;
    rg_quantiser_t *z = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    o.timeout_ms = 300000;
    if (strcmp(form, "f32") != 0 && !make(b, form, &z)) return -1;
    for (int k = -1; k < b->calls; k++) {
        rg_status_t st = rg_barrier(b->g, &o, NULL);
        double from = now();
        if (st == RG_OK)
            st = z != NULL ? rg_quant_all_reduce(z, b->in, b->out, b->count, RG_SUM, &o)
                           : rg_all_reduce(b->g, b->in, b->out, b->count, RG_F32, RG_SUM, &o, NULL);
        mine = now() - from;
        if (st == RG_OK) st = rg_all_reduce(b->g, &mine, &worst, 1, RG_F64, RG_MAX, &o, NULL);
        if (st != RG_OK) return fail(b, form, st), -1;
        if (k >= 0) took[k] = worst; /* the first one opens windows */
    }
    b->error = error_of(b);
    if (z != NULL && b->rank == 0) printf("%s goes %s\n", form, rg_quant_form_name(rg_quantiser_form(z)));
    rg_quantiser_destroy(z);
    qsort(took, (size_t)b->calls, sizeof *took, by_size);
    return took[b->calls / 2];
}

/* Seconds from the start of an int8 request until it is over, when the program does something else meanwhile that takes
 * `other` (it waits, as for a device that computes). Below 0: it failed. */
static double overlap(bench_t *b, double other) {
    rg_quantiser_t *z = NULL;
    rg_quant_request_t *req = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    struct timespec t = { (time_t)other, (long)((other - (double)(time_t)other) * 1e9) };
    if (!make(b, "int8", &z)) return -1;
    o.timeout_ms = 300000;
    rg_status_t st = rg_barrier(b->g, &o, NULL);
    double from = now();
    o.tag = 1;
    if (st == RG_OK) st = rg_quant_iall_reduce(z, b->in, b->out, b->count, RG_SUM, &o, &req);
    nanosleep(&t, NULL);
    if (st == RG_OK) st = rg_quant_wait(req, NULL);
    double took = now() - from;
    rg_quantiser_destroy(z);
    return st != RG_OK ? fail(b, "overlap", st), -1 : took;
}

static int run(bench_t *b, int n, char **forms) {
    static char json[4096];
    double plain = 0, alone = 0, both = 0;
    size_t len = 0;
    for (int f = 0; f < n; f++) {
        double t = measure(b, forms[f]);
        if (t < 0) return 1;
        if (strcmp(forms[f], "f32") == 0) plain = t;
        if (strcmp(forms[f], "int8") == 0) alone = t;
        if (b->rank != 0) continue;
        printf("%-18s %9.1f ms  %5.2f times as fast as f32  error %.5f\n", forms[f], 1e3 * t, plain / t, b->error);
        fflush(stdout);
        if (len < sizeof json)
            len += (size_t)snprintf(json + len, sizeof json - len,
                                    "%s{\"form\": \"%s\", \"ms\": %.2f, \"speedup\": %.3f, \"error\": %.6f}",
                                    f != 0 ? ", " : "", forms[f], 1e3 * t, plain / t, b->error);
    }
    /* All members decide alike. */
    double first = 0;
    if (rg_all_reduce(b->g, &alone, &first, 1, RG_F64, RG_MAX, NULL, NULL) != RG_OK) return 1;
    if (first > 0 && (both = overlap(b, first)) < 0) return 1;
    if (b->rank == 0 && first > 0)
        printf("int8 as a request, beside %.1f ms of something else: %.1f ms in all\n", 1e3 * first, 1e3 * both);
    if (b->rank == 0)
        printf("{\"members\": %u, \"elements\": %llu, \"calls\": %d, \"other_ms\": %.2f, \"with_other_ms\": %.2f, "
               "\"forms\": [%s]}\n",
               b->n, (unsigned long long)b->count, b->calls, 1e3 * first, 1e3 * both, json);
    return 0;
}

int main(int argc, char **argv) {
    static char *usual[] = { "f32", "int8", "int4" };
    bench_t b = { .count = argc > 1 ? strtoull(argv[1], NULL, 0) : 1u << 21, .calls = argc > 2 ? atoi(argv[2]) : 5 };
    rg_error_t err;
    rg_info_t info = RG_INFO_INIT;
    if (b.calls < 1 || b.calls > CALLS) b.calls = 5;
    b.in = malloc((b.count + 1) * sizeof *b.in);
    b.out = malloc((b.count + 1) * sizeof *b.out);
    if (b.in == NULL || b.out == NULL) {
        free(b.in);
        free(b.out);
        return fail(&b, "no memory", RG_ERR_NOMEM);
    }
    if (rg_group_join(NULL, &b.g, &err) != RG_OK) return fprintf(stderr, "bench_quantised: %s\n", err.text), 1;
    rg_group_info(b.g, &info);
    b.rank = info.rank;
    b.n = info.world_size;
    for (uint64_t i = 0; i < b.count; i++) b.in[i] = value(b.rank, i);
    int bad = argc > 3 ? run(&b, argc - 3, argv + 3) : run(&b, 3, usual);
    if (bad == 0) rg_group_leave(b.g);
    rg_group_destroy(b.g);
    free(b.in);
    free(b.out);
    return bad;
}
