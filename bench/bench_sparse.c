/* bench_sparse.c: sparse lists beside a dense all-reduce at several densities (time, bytes that a member receives, the
 * best formula for them), placements of 64 chunks of 256 KiB of which 8 go to everybody, beside the bound of the links,
 * and the codec of chunked top-k. With RG_COORDINATOR set this process is one member of the group that the variables
 * describe, and the one of rank 0 prints (bench/sparse.sh, between namespaces); else it makes a group of threads over
 * TCP. Options: --json, --members N, --elements N, --calls N, --rate MBIT (of every member's link, for the bounds),
 * --density D (of lists that one alone; 0: none, which leaves the placements and the codec).
 * Times are medians of the calls. It must not check results, which the unit tests do. */
#include "regroup_sparse.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MEMBERS_MOST = 16, CALLS_MOST = 99, CHUNKS = 64, HOT = 8, CHUNK_BYTES = 256 << 10 };

typedef struct options {
    int json;
    uint32_t members, calls;
    uint64_t elements;
    double rate;    /* bytes per second; 0: unknown */
    double density; /* negative: all of the table */
} options_t;

typedef struct member {
    const options_t *o;
    rg_group_t *g;
    const char *address; /* NULL: from the environment */
    uint32_t rank, n;
    pthread_t thread;
    int failed, rows;
} member_t;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, by_size);
    return v[n / 2];
}

static int bad(member_t *m, const char *what, rg_status_t st) {
    char text[512] = "";
    if (st == RG_OK) return 0;
    rg_group_errmsg(m->g, text, sizeof text);
    fprintf(stderr, "bench_sparse: %s: %s: %s\n", what, rg_strerror(st), text);
    return m->failed = 1;
}

static uint64_t dice(uint64_t *x) {
    *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
    return *x;
}

/* Between rows of an array of the JSON. */
static const char *comma(member_t *m) { return m->rows++ ? ",\n   " : "\n   "; }

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

typedef struct lists {
    float *dense, *sum;
    rg_sparse_t in, out;
    rg_sparse_reducer_t *z;
} lists_t;

static int lists_make(member_t *m, lists_t *l) {
    static const rg_sparse_t none = RG_SPARSE_INIT;
    uint64_t n = m->o->elements;
    l->dense = calloc(n, sizeof(float)), l->sum = calloc(n, sizeof(float));
    l->in = l->out = none;
    l->in.n = l->out.n = n;
    l->in.idx = calloc(n, 4), l->in.val = calloc(n, 4), l->out.idx = calloc(n, 4), l->out.val = calloc(n, 4);
    if (!l->dense || !l->sum || !l->in.idx || !l->in.val || !l->out.idx || !l->out.val) return 0;
    return rg_sparse_reducer_create(m->g, &l->z, NULL) == RG_OK;
}

static void lists_free(lists_t *l) {
    free(l->dense), free(l->sum);
    free(l->in.idx), free(l->in.val), free(l->out.idx), free(l->out.val);
    rg_sparse_reducer_destroy(l->z);
}

static void choose(lists_t *l, double density, uint64_t seed) {
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + 88172645463325252ull;
    l->in.values = 0;
    for (uint64_t i = 0; i < l->in.n; i++) {
        l->dense[i] = 0;
        if ((double)(dice(&x) >> 11) * 0x1p-53 >= density) continue;
        l->dense[i] = (float)(int32_t)(dice(&x) >> 32) * 0x1p-31f;
        ((uint32_t *)l->in.idx)[l->in.values] = (uint32_t)i;
        ((float *)l->in.val)[l->in.values++] = l->dense[i];
    }
}

static double best_formula(double p, double n, double k, double sum) {
    double best = 2 * (p - 1) / p * 4 * n;
    best = fmin(best, (p - 1) * 8 * k);
    best = fmin(best, (p - 1) / p * 8 * (k + sum));
    return fmin(best, (p - 1) / p * (8 * k + 4 * n));
}

static int measure_lists(member_t *m) {
    static const double densities[] = { 0.0001, 0.001, 0.01, 0.03, 0.1, 0.3, 1 };
    lists_t l = { 0 };
    double dense[CALLS_MOST], sparse[CALLS_MOST];
    if (!lists_make(m, &l)) {
        lists_free(&l);
        return bad(m, "lists", RG_ERR_NOMEM);
    }
    for (uint32_t d = 0; d < sizeof densities / sizeof *densities; d++) {
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &r;
        double density = m->o->density < 0 ? densities[d] : m->o->density;
        if (m->o->density >= 0 && (d != 0 || density <= 0)) break;
        choose(&l, density, m->rank + 1);
        for (uint32_t c = 0; c <= m->o->calls; c++) { /* the first is not counted */
            if (bad(m, "barrier", rg_barrier(m->g, NULL, NULL))) return 0;
            double t = now();
            if (bad(m, "dense", rg_all_reduce(m->g, l.dense, l.sum, l.in.n, RG_F32, RG_SUM, NULL, NULL))) return 0;
            if (c) dense[c - 1] = now() - t;
            if (bad(m, "barrier", rg_barrier(m->g, NULL, NULL))) return 0;
            l.out.values = l.in.n;
            t = now();
            if (bad(m, "sparse", rg_sparse_all_reduce(l.z, &l.in, &l.out, NULL, &o))) return 0;
            if (c) sparse[c - 1] = now() - t;
        }
        uint64_t mine[2] = { r.bytes_received, l.in.values }, all[2];
        if (bad(m, "bytes", rg_all_reduce(m->g, mine, all, 2, RG_U64, RG_SUM, NULL, NULL))) return 0;
        double p = m->n, bytes = (double)all[0] / p;
        double best = best_formula(p, (double)l.in.n, (double)all[1] / p, (double)l.out.values);
        double td = median(dense, m->o->calls), ts = median(sparse, m->o->calls);
        if (m->rank != 0) continue;
        if (m->o->json)
            printf(
                "%s{\"density\": %g, \"dense_ms\": %.3f, \"sparse_ms\": %.3f, \"times_faster\": %.2f, \"bytes\": %.0f, "
                "\"best_formula\": %.0f, \"of_best\": %.4f}",
                comma(m), density, td * 1e3, ts * 1e3, td / ts, bytes, best, bytes / best);
        else
            printf("%9g %10.2f %10.2f %8.2f %12.0f %12.0f %8.3f\n", density, td * 1e3, ts * 1e3, td / ts, bytes,
                   best, bytes / best);
        fflush(stdout);
    }
    lists_free(&l);
    return 1;
}

/* ---- Placements -------------------------------------------------------------------------------------------------- */

/* 8 of 64 chunks go to everybody. one: a single member owns them; else they are spread. */
static int measure_moves(member_t *m, int one) {
    uint64_t bytes[CHUNKS];
    uint32_t owner[CHUNKS];
    uint8_t present[MEMBERS_MOST][CHUNKS / 8] = { { 0 } };
    void *chunk[CHUNKS] = { 0 };
    double time[CALLS_MOST];
    rg_placement_t p = RG_PLACEMENT_INIT;
    rg_moves_t *z = NULL;
    rg_result_t r = RG_RESULT_INIT;
    for (uint32_t c = 0; c < CHUNKS; c++) {
        bytes[c] = CHUNK_BYTES;
        owner[c] = one && c < HOT ? 0 : c % m->n;
        for (uint32_t q = 0; q < m->n; q++)
            if (c < HOT || q == owner[c]) present[q][c / 8] |= (uint8_t)(1u << c % 8);
        if (present[m->rank][c / 8] >> c % 8 & 1) chunk[c] = calloc(1, CHUNK_BYTES);
    }
    p.chunks = CHUNKS, p.bytes = bytes, p.owner = owner, p.present = &present[0][0];
    if (bad(m, "plan", rg_moves_create(m->g, &p, NULL, &z))) return 0;
    for (uint32_t c = 0; c <= m->o->calls; c++) {
        if (bad(m, "barrier", rg_barrier(m->g, NULL, NULL))) return 0;
        double t = now();
        if (bad(m, "gather", rg_moves_gather(z, chunk, NULL)) || bad(m, "gather", rg_moves_wait(z, &r))) return 0;
        if (c) time[c - 1] = now() - t;
    }
    /* The longest of all receives and of what an owner has to send at least once. */
    uint64_t in = rg_moves_gather_bytes(z), most;
    if (bad(m, "bytes", rg_all_reduce(m->g, &in, &most, 1, RG_U64, RG_MAX, NULL, NULL))) return 0;
    uint64_t exact = in == r.bytes_received, all_exact;
    if (bad(m, "bytes", rg_all_reduce(m->g, &exact, &all_exact, 1, RG_U64, RG_MIN, NULL, NULL))) return 0;
    double t = median(time, m->o->calls), bound = m->o->rate > 0 ? (double)most / m->o->rate : 0;
    if (m->rank == 0 && m->o->json)
        printf("%s{\"owners\": \"%s\", \"ms\": %.2f, \"bytes\": %llu, \"exact\": %s, \"bound_ms\": %.2f, "
               "\"over_bound\": %.3f}",
               comma(m), one ? "one" : "spread", t * 1e3, (unsigned long long)most, all_exact ? "true" : "false",
               bound * 1e3, bound > 0 ? t / bound : 0);
    else if (m->rank == 0)
        printf("%9s %10.2f ms, %llu bytes at most, %s, %.3f of the bound\n", one ? "one owner" : "spread", t * 1e3,
               (unsigned long long)most, all_exact ? "exact" : "NOT exact", bound > 0 ? t / bound : 0);
    fflush(stdout);
    rg_moves_destroy(z);
    for (uint32_t c = 0; c < CHUNKS; c++) free(chunk[c]);
    return 1;
}

/* ---- The codec --------------------------------------------------------------------------------------------------- */

static void measure_codec(member_t *m) {
    enum { N = 1 << 20 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    uint8_t *w = malloc(N);
    uint64_t seed = 7;
    if (!x || !y || !w) {
        free(x), free(y), free(w);
        return;
    }
    for (int i = 0; i < N; i++) x[i] = (float)(int32_t)(dice(&seed) >> 32) * 0x1p-31f;
    for (int dct = 0; dct < 2; dct++) {
        rg_topk_t t = RG_TOPK_INIT;
        double best[2] = { 1e9, 1e9 };
        t.flags = (uint32_t)dct;
        for (int round = 0; round < 7; round++) {
            double a = now();
            rg_topk_encode(&t, x, N, w);
            double b = now();
            rg_topk_decode(&t, w, N, y);
            best[0] = fmin(best[0], b - a);
            best[1] = fmin(best[1], now() - b);
        }
        double gb = 4e-9 * N, fewer = 4.0 * N / (double)rg_topk_bytes(&t, N);
        if (m->o->json)
            printf("%s{\"dct\": %s, \"encode_gb_s\": %.2f, \"decode_gb_s\": %.2f, \"times_fewer_bytes\": %.1f}",
                   comma(m), dct ? "true" : "false", gb / best[0], gb / best[1], fewer);
        else
            printf("64 of 4096 in two bits%s: %.2f GB/s of f32 encoded, %.2f decoded, %.1f times fewer bytes\n",
                   dct ? ", with the transform" : "", gb / best[0], gb / best[1], fewer);
    }
    free(x), free(y), free(w);
}

/* ---- Members ----------------------------------------------------------------------------------------------------- */

static void section(member_t *m, const char *json, const char *text) {
    if (m->rank != 0) return;
    fputs(m->o->json ? json : text, stdout);
    m->rows = 0;
}

static void *run(void *arg) {
    member_t *m = arg;
    rg_config_t c = RG_CONFIG_INIT;
    rg_error_t err;
    rg_info_t i = RG_INFO_INIT;
    if (m->address != NULL) {
        c.coordinator = m->address;
        c.transport = "tcp";
        c.min_size = m->o->members;
        c.order = m->rank + 1;
    }
    if (rg_group_join(&c, &m->g, &err) != RG_OK) {
        fprintf(stderr, "bench_sparse: %s\n", err.text);
        m->failed = 1;
        return NULL;
    }
    rg_group_info(m->g, &i);
    m->rank = i.rank, m->n = i.world_size;
    if (m->n > MEMBERS_MOST) m->failed = 1;
    if (m->rank == 0 && m->o->json)
        printf("{\"members\": %u, \"elements\": %llu,", m->n, (unsigned long long)m->o->elements);
    section(m, "\n  \"lists\": [", "  density   dense ms  sparse ms   faster        bytes best formula       of\n");
    if (!m->failed) measure_lists(m);
    section(m, "],\n  \"placements\": [", "64 chunks of 256 KiB, 8 of them to everybody:\n");
    if (!m->failed && measure_moves(m, 0)) measure_moves(m, 1);
    section(m, "],\n  \"codec\": [", "");
    if (!m->failed && m->rank == 0) measure_codec(m);
    section(m, "]\n}\n", "");
    if (!m->failed) bad(m, "barrier", rg_barrier(m->g, NULL, NULL));
    rg_group_leave(m->g);
    rg_group_destroy(m->g);
    return NULL;
}

static int with_threads(options_t *o) {
    static member_t all[MEMBERS_MOST];
    rg_coordinator_config_t cc = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *coordinator = NULL;
    rg_error_t err;
    int failed = 0;
    cc.listen = "127.0.0.1:0";
    if (rg_coordinator_start(&cc, &coordinator, &err) != RG_OK) {
        fprintf(stderr, "bench_sparse: %s\n", err.text);
        return 1;
    }
    for (uint32_t r = 0; r < o->members; r++) {
        all[r].o = o;
        all[r].rank = r;
        all[r].address = rg_coordinator_address(coordinator);
        if (pthread_create(&all[r].thread, NULL, run, &all[r]) != 0) return 1;
    }
    for (uint32_t r = 0; r < o->members; r++) {
        pthread_join(all[r].thread, NULL);
        failed |= all[r].failed;
    }
    rg_coordinator_stop(coordinator);
    return failed;
}

int main(int argc, char **argv) {
    options_t o = { 0, 4, 3, 4u << 20, 0, -1 };
    for (int i = 1; i < argc; i++) {
        double v = i + 1 < argc ? atof(argv[i + 1]) : 0;
        if (strcmp(argv[i], "--json") == 0) {
            o.json = 1;
            continue;
        }
        int known = 1;
        if (strcmp(argv[i], "--members") == 0) o.members = (uint32_t)v;
        else if (strcmp(argv[i], "--elements") == 0) o.elements = (uint64_t)v;
        else if (strcmp(argv[i], "--calls") == 0) o.calls = (uint32_t)v;
        else if (strcmp(argv[i], "--rate") == 0) o.rate = v * 125000;
        else if (strcmp(argv[i], "--density") == 0) o.density = v;
        else known = 0;
        if (!known || o.members < 1 || o.members > MEMBERS_MOST || o.calls < 1 || o.calls > CALLS_MOST ||
            o.elements < 1 || o.density > 1) {
            fprintf(stderr,
                    "usage: bench_sparse [--json] [--members 1-%d] [--elements N] [--calls 1-%d] [--rate MBIT] "
                    "[--density 0-1]\n",
                    MEMBERS_MOST, CALLS_MOST);
            return 2;
        }
        i++;
    }
    if (getenv("RG_COORDINATOR") == NULL) return with_threads(&o);
    member_t m = { .o = &o };
    run(&m);
    return m.failed;
}
