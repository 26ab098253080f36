/* test_cases_numbers.c: the numbered cases about results: nothing at all, counts that divide by nothing, NaN, averages
 * and sums at the edge of a type, and equal bits on all members whatever the timing. It relies on tools/pattern.h for
 * values that every type holds exactly. Members use different SIMD levels where that could matter. */
#include "cases.h"

#include "kernels/kernels.h"
#include "tools/pattern.h"

#include <math.h>
#include <stdlib.h>

/* ---- 01: nothing at all ------------------------------------------------------------------------------------------ */

/* After whatever was done to the group, its next operation must be right. */
static int in_step(rg_group_t *g, int n) {
    float x[3] = { 1, 2, 3 };
    rg_status_t st = rg_all_reduce(g, x, x, 3, RG_F32, RG_SUM, NULL, NULL);
    return st == RG_OK && x[0] == (float)n && x[1] == (float)(2 * n) && x[2] == (float)(3 * n);
}

#define NOTHING(call)                                                                                                  \
    do {                                                                                                               \
        rg_status_t st_ = (call);                                                                                      \
        PROCS_REQUIRE(st_ == RG_OK, "%s", rg_status_name(st_));                                                        \
        PROCS_REQUIRE(in_step(g, n), "the operation after it");                                                        \
    } while (0)

static int nothing_body(rg_group_t *g, int rank, int n, void *arg) {
    const uint64_t zero[4] = { 0 };
    const void *none[2] = { NULL, NULL };
    void *out[2] = { NULL, NULL };
    uint32_t next = (uint32_t)((rank + 1) % n), before = (uint32_t)((rank + n - 1) % n);
    (void)arg;
    NOTHING(rg_all_reduce(g, NULL, NULL, 0, RG_F32, RG_SUM, NULL, NULL));
    NOTHING(rg_all_reduce(g, NULL, NULL, 0, RG_BF16, RG_AVG, NULL, NULL));
    NOTHING(rg_all_gather(g, NULL, NULL, 0, RG_F32, NULL, NULL));
    NOTHING(rg_all_gather_v(g, NULL, NULL, zero, NULL, RG_F32, NULL, NULL));
    NOTHING(rg_all_gather_v(g, NULL, NULL, zero, zero, RG_F32, NULL, NULL));
    NOTHING(rg_reduce_scatter(g, NULL, NULL, 0, RG_F32, RG_SUM, NULL, NULL));
    NOTHING(rg_reduce_scatter_v(g, NULL, NULL, zero, NULL, RG_F32, RG_SUM, NULL, NULL));
    NOTHING(rg_all_to_all(g, NULL, NULL, 0, RG_F32, NULL, NULL));
    NOTHING(rg_all_to_all_v(g, NULL, zero, NULL, NULL, zero, NULL, RG_F32, NULL, NULL));
    NOTHING(rg_all_reduce_list(g, none, out, zero, 2, RG_F32, RG_SUM, NULL, NULL));
    NOTHING(rg_broadcast_list(g, out, zero, 2, RG_F32, 0, NULL, NULL));
    NOTHING(rg_all_gather_list(g, none, out, zero, 2, RG_F32, NULL, NULL));
    NOTHING(rg_reduce_scatter_list(g, none, out, zero, 2, RG_F32, RG_SUM, NULL, NULL));
    for (uint32_t root = 0; root < (uint32_t)n; root++) {
        NOTHING(rg_broadcast(g, NULL, 0, RG_F32, root, NULL, NULL));
        NOTHING(rg_reduce(g, NULL, NULL, 0, RG_F32, RG_SUM, root, NULL, NULL));
        NOTHING(rg_gather(g, NULL, NULL, 0, RG_F32, root, NULL, NULL));
        NOTHING(rg_gather_v(g, NULL, NULL, zero, NULL, RG_F32, root, NULL, NULL));
        NOTHING(rg_scatter(g, NULL, NULL, 0, RG_F32, root, NULL, NULL));
        NOTHING(rg_scatter_v(g, NULL, NULL, zero, NULL, RG_F32, root, NULL, NULL));
    }
    PROCS_REQUIRE(rg_batch_begin(g) == RG_OK, "batch");
    PROCS_REQUIRE(rg_send(g, NULL, 0, RG_F32, next, NULL, NULL) == RG_OK, "send");
    PROCS_REQUIRE(rg_recv(g, NULL, 0, RG_F32, before, NULL, NULL) == RG_OK, "receive");
    NOTHING(rg_batch_end(g, NULL));
    return rg_group_leave(g) != RG_OK;
}

/* ---- 03: counts that divide by nothing ----------------------------------------------------------------------------
 */

static int indivisible_body(rg_group_t *g, int rank, int n, void *arg) {
    static const uint64_t primes[] = { 11, 13, 17, 31, 61, 127, 251, 509, 1021, 4093, 16381, 65521, 262139 };
    static const rg_dtype_t types[] = { RG_F32, RG_BF16, RG_I8, RG_F64 };
    uint8_t *in = malloc(262139 * 8), *out = malloc(262139 * 8);
    (void)arg;
    PROCS_REQUIRE(in && out, "memory");
    for (uint64_t k = 1; k <= (uint64_t)(2 * n + 1) + sizeof primes / sizeof *primes; k++) {
        uint64_t count = k <= (uint64_t)(2 * n + 1) ? k : primes[k - (uint64_t)(2 * n + 2)];
        rg_dtype_t t = types[k % 4];
        uint64_t counts[8], at = 0;
        pattern_fill(t, RG_SUM, (uint32_t)rank, in, count);
        rg_status_t st = rg_all_reduce(g, in, out, count, t, RG_SUM, NULL, NULL);
        PROCS_REQUIRE(!st && !pattern_count_wrong(t, RG_SUM, (uint32_t)n, out, count), "%llu: %s",
                      (unsigned long long)count, rg_status_name(st));
        /* The same dealt out unevenly: the first ones get one more; with few elements some get none. */
        for (int r = 0; r < n; r++) counts[r] = count / (uint64_t)n + ((uint64_t)r < count % (uint64_t)n);
        for (int r = 0; r < rank; r++) at += counts[r];
        st = rg_reduce_scatter_v(g, in, out, counts, NULL, t, RG_SUM, NULL, NULL);
        PROCS_REQUIRE(!st && !pattern_count_wrong_at(t, RG_SUM, (uint32_t)n, at, out, counts[rank]), "%llu: %s",
                      (unsigned long long)count, rg_status_name(st));
    }
    free(in);
    free(out);
    return rg_group_leave(g) != RG_OK;
}

static int indivisible(int n, const char *algorithm) {
    rg_config_t cfg = procs_config(NULL, NULL, 0, 0);
    cfg.algorithm = algorithm;
    return procs_cluster_with(&cfg, n, indivisible_body, NULL, 40) == 0;
}

/* ---- 06: calls that differ ----------------------------------------------------------------------------------------
 */

#define DIFFER_MOST 600000u
#define GUARD 2000u

struct differ {
    uint32_t kind, count, odd; /* the member that differs */
};

static const char *const differ_kinds[] = { "all_reduce", "reduce", "reduce_scatter", "all_gather",
                                            "broadcast",  "gather", "scatter",        "all_to_all" };

/* The odd one asks for one element less. Buffers have room for all. */
static rg_status_t differ_call(rg_group_t *g, const struct differ *d, int rank, float *in, float *out, rg_opts_t *o) {
    uint64_t n = d->count - (d->odd == (uint32_t)rank);
    switch (d->kind) {
    case 0: return rg_all_reduce(g, in, out, n, RG_F32, RG_SUM, o, NULL);
    case 1: return rg_reduce(g, in, out, n, RG_F32, RG_SUM, 0, o, NULL);
    case 2: return rg_reduce_scatter(g, in, out, n, RG_F32, RG_SUM, o, NULL);
    case 3: return rg_all_gather(g, in, out, n, RG_F32, o, NULL);
    case 4: return rg_broadcast(g, in, n, RG_F32, 0, o, NULL);
    case 5: return rg_gather(g, in, out, n, RG_F32, 0, o, NULL);
    case 6: return rg_scatter(g, in, out, n, RG_F32, 0, o, NULL);
    default: return rg_all_to_all(g, in, out, n, RG_F32, o, NULL);
    }
}

static uint64_t count_other(const float *p, uint64_t n, float base) {
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < n; i++) wrong += p[i] != base + (float)(i % 1000);
    return wrong;
}

static void fill(float *p, uint64_t n, float base) {
    for (uint64_t i = 0; i < n; i++) p[i] = base + (float)(i % 1000);
}

/* Everybody hears MISMATCH with both sides named; inputs are as they were, and so are the outputs of reductions, which
 * get nothing but values in which all members have a share. The others' outputs hold anything, within their bounds. */
static int differ_body(rg_group_t *g, int rank, int n, void *arg) {
    static const uint32_t counts[] = { 9, 40000 };
    float *in = malloc(DIFFER_MOST * sizeof *in), *out = malloc((DIFFER_MOST + 2 * GUARD) * sizeof *out);
    (void)arg;
    PROCS_REQUIRE(in && out, "memory");
    for (uint32_t k = 0; k < 8 * 2 * 2; k++) {
        struct differ d = { .kind = k % 8, .count = counts[k / 8 % 2], .odd = k / 16 * 2 };
        rg_result_t res = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &res;
        fill(in, DIFFER_MOST, 1);
        fill(out, DIFFER_MOST + 2 * GUARD, 5);
        uint64_t t = procs_now();
        rg_status_t st = differ_call(g, &d, rank, in, out + GUARD, &o);
        double ms = (double)(procs_now() - t) / 1e6;
        const char *what = differ_kinds[d.kind];
        PROCS_REQUIRE(st == RG_ERR_MISMATCH && strstr(res.text, "; rank") && ms < 3000 + procs_late_ms(t),
                      "%s of %u: %s %s after %.0f ms", what, d.count, rg_status_name(st), res.text, ms);
        PROCS_REQUIRE(!count_other(in, DIFFER_MOST, 1), "%s of %u: the input is not intact", what, d.count);
        PROCS_REQUIRE(!count_other(out, GUARD, 5), "%s of %u: written before the output", what, d.count);
        uint64_t most = (uint64_t)d.count * (d.kind == 3 || d.kind == 5 || d.kind == 7 ? (uint64_t)n : 1);
        uint64_t from = d.kind <= 2 ? GUARD : GUARD + most; /* index 1000 k has the value that index 0 has */
        from = (from + 999) / 1000 * 1000;
        PROCS_REQUIRE(!count_other(out + from, DIFFER_MOST + 2 * GUARD - from, 5), "%s of %u: written to", what,
                      d.count);
        if (d.kind <= 2)
            for (uint64_t i = 0; i < from; i++)
                PROCS_REQUIRE(out[i] == 5 + (float)(i % 1000), "%s of %u: element %llu was written", what, d.count,
                              (unsigned long long)i);
        PROCS_REQUIRE(in_step(g, n), "%s of %u: the operation after it", what, d.count);
    }
    fill(out, 1000, 5);
    out[3] = 0;
    PROCS_REQUIRE(count_other(out, 1000, 5) == 1, "planted: a value that was written is not seen");
    free(in);
    free(out);
    return rg_group_leave(g) != RG_OK;
}

static int differing(const char *transport, const char *algorithm) {
    rg_config_t cfg = procs_config(NULL, NULL, 0, 0);
    cfg.transport = transport;
    cfg.algorithm = algorithm;
    return procs_cluster_with(&cfg, 3, differ_body, NULL, 60) == 0;
}

/* ---- What all members have, compared ----------------------------------------------------------------------------- */

#define ROOM 8192

struct results {
    uint8_t of[8][ROOM];
    int again; /* equal bits in each repetition, too */
};

/* Every member's bytes are those of member 0. To be called by all. */
static int all_equal(rg_group_t *g, struct results *r, int rank, int n, const void *p, size_t bytes) {
    memcpy(r->of[rank], p, bytes);
    if (rg_barrier(g, NULL, NULL)) return 0;
    int same = 1;
    for (int i = 0; i < n; i++) same = same && !memcmp(r->of[i], r->of[0], bytes);
    return !rg_barrier(g, NULL, NULL) && same;
}

static uint64_t bytes_hash(const void *p, size_t n) {
    uint64_t h = 1469598103934665603ull;
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)p)[i]) * 1099511628211ull;
    return h;
}

/* ---- 07: NaN in MIN and MAX ---------------------------------------------------------------------------------------
 */

/* Not a number, in the types that pattern.h does not know it for, too. */
static const struct {
    rg_dtype_t t;
    uint64_t bits, exponent; /* above `exponent`, without the sign, there is nothing but NaN */
} nans[] = { { RG_F32, 0x7fc00001, 0x7f800000 }, { RG_F64, 0x7ff8000000000001, 0x7ff0000000000000 },
             { RG_F16, 0x7e01, 0x7c00 },         { RG_BF16, 0x7fc1, 0x7f80 },
             { RG_F8E4M3, 0x7f, 0x7e },          { RG_F8E5M2, 0x7e, 0x7c } };

static int is_nan(int k, const uint8_t *p) {
    size_t e = rg_dtype_size(nans[k].t);
    uint64_t bits = 0;
    memcpy(&bits, p, e);
    return (bits & ~(1ull << (8 * e - 1))) > nans[k].exponent;
}

static int nan_body(rg_group_t *g, int rank, int n, void *arg) {
    static const double values[] = { 1, 2, 3, 4 };
    static const uint64_t lengths[] = { 1, 2, 3, 7, 8, 15, 17, 1001 };
    uint64_t hash = 0;
    uint8_t in[1024 * 8], out[1024 * 8];
    if (rank == 0) rg_simd_force("scalar"); /* members need not have equal processors */
    if (rank == 1) rg_simd_force("avx2");
    for (int holder = 0; holder < n; holder++)
        for (int k = 0; k < 6 * 2 * 8; k++) {
            rg_dtype_t t = nans[k % 6].t;
            rg_op_t op = k / 6 % 2 ? RG_MIN : RG_MAX;
            uint64_t count = lengths[k / 12];
            size_t e = rg_dtype_size(t);
            for (uint64_t i = 0; i < count; i++)
                if (rank == holder && i % 2 == 0) memcpy(in + i * e, &nans[k % 6].bits, e);
                else pattern_store(t, in + i * e, values[rank]);
            rg_status_t st = rg_all_reduce(g, in, out, count, t, op, NULL, NULL);
            PROCS_REQUIRE(st == RG_OK, "%s", rg_status_name(st));
            for (uint64_t i = 0; i < count; i++) {
                double got = pattern_load(t, out + i * e), want = op == RG_MAX ? values[n - 1] : values[0];
                PROCS_REQUIRE(i % 2 == 0 ? is_nan(k % 6, out + i * e) : got == want,
                              "%s %s of %llu, NaN on rank %d: element %llu is %g", rg_dtype_name(t), rg_op_name(op),
                              (unsigned long long)count, holder, (unsigned long long)i, got);
            }
            hash = hash * 31 + bytes_hash(out, count * e);
        }
    PROCS_REQUIRE(all_equal(g, arg, rank, n, &hash, sizeof hash), "the members' bits differ");
    return rg_group_leave(g) != RG_OK;
}

/* ---- 09 and 10: the edge of a type ---------------------------------------------------------------------------------
 */

/* The average of equal values is that value, however near to the largest one. */
static int average_body(rg_group_t *g, int rank, int n, void *arg) {
    static const struct {
        rg_dtype_t t;
        double largest;
    } types[] = { { RG_F16, 65504 },          { RG_BF16, 0x1.fep127 },
                  { RG_F32, 0x1.fffffep127 }, { RG_F64, 0x1.fffffffffffffp1023 },
                  { RG_F8E4M3, 448 },         { RG_F8E5M2, 57344 } };
    uint8_t in[37 * 8], out[37 * 8];
    for (int k = 0; k < 12; k++) {
        rg_dtype_t t = types[k / 2].t;
        size_t e = rg_dtype_size(t);
        double v = types[k / 2].largest * (k % 2 ? 1 : 0.75);
        for (int i = 0; i < 37; i++) pattern_store(t, in + (size_t)i * e, i % 2 ? -v : v);
        rg_status_t st = rg_all_reduce(g, in, out, 37, t, RG_AVG, NULL, NULL);
        PROCS_REQUIRE(st == RG_OK, "%s", rg_status_name(st));
        /* In the wide types the last place may differ: the average is computed in the type itself. */
        double slack = t == RG_F32 ? 0x1p-23 * v : t == RG_F64 ? 0x1p-52 * v : 0;
        for (int i = 0; i < 37; i++) {
            double got = pattern_load(t, out + (size_t)i * e), want = pattern_load(t, in + (size_t)i * e);
            PROCS_REQUIRE(isfinite(got) && fabs(got - want) <= slack, "%s over %d: %g instead of %g", rg_dtype_name(t),
                          n, got, want);
        }
        PROCS_REQUIRE(all_equal(g, arg, rank, n, out, 37 * e), "the members' bits differ");
    }
    return rg_group_leave(g) != RG_OK;
}

/* At the other end: an average of the smallest numbers is off by no more than the number of members times the smallest
 * one, which is what it costs that sums of the largest stay finite. */
static int smallest_body(rg_group_t *g, int rank, int n, void *arg) {
    float f[64];
    double d[64];
    for (int i = 0; i < 64; i++) {
        f[i] = (float)i * 0x1p-149f;
        d[i] = (double)i * 0x1p-1074;
    }
    PROCS_REQUIRE(rg_all_reduce(g, f, f, 64, RG_F32, RG_AVG, NULL, NULL) == RG_OK, "f32");
    PROCS_REQUIRE(rg_all_reduce(g, d, d, 64, RG_F64, RG_AVG, NULL, NULL) == RG_OK, "f64");
    for (int i = 0; i < 64; i++) {
        PROCS_REQUIRE(fabsf(f[i] - (float)i * 0x1p-149f) <= (float)n * 0x1p-149f, "f32, element %d: %a", i,
                      (double)f[i]);
        PROCS_REQUIRE(fabs(d[i] - (double)i * 0x1p-1074) <= n * 0x1p-1074, "f64, element %d: %a", i, d[i]);
    }
    PROCS_REQUIRE(all_equal(g, arg, rank, n, f, sizeof f) && all_equal(g, arg, rank, n, d, sizeof d), "bits differ");
    return rg_group_leave(g) != RG_OK;
}

/* A finite sum beyond the range of an 8-bit float is the largest finite value. */
static int saturation_body(rg_group_t *g, int rank, int n, void *arg) {
    static const struct {
        rg_dtype_t t;
        rg_op_t op;
        double mine[2], want;
    } cases[] = { { RG_F8E4M3, RG_SUM, { 448, 18 }, 448 },        { RG_F8E4M3, RG_SUM, { -448, -18 }, -448 },
                  { RG_F8E4M3, RG_SUM, { 448, 448 }, 448 },       { RG_F8E4M3, RG_PROD, { 448, -448 }, -448 },
                  { RG_F8E5M2, RG_SUM, { 57344, 4096 }, 57344 },  { RG_F8E5M2, RG_SUM, { -57344, -57344 }, -57344 },
                  { RG_F8E5M2, RG_PROD, { 57344, 57344 }, 57344 } };
    uint8_t in[67], out[67];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (int i = 0; i < 67; i++) pattern_store(cases[k].t, in + i, cases[k].mine[rank]);
        rg_status_t st = rg_all_reduce(g, in, out, 67, cases[k].t, cases[k].op, NULL, NULL);
        for (int i = 0; i < 67; i++)
            PROCS_REQUIRE(st == RG_OK && pattern_load(cases[k].t, out + i) == cases[k].want, "%zu: %s, %g", k,
                          rg_status_name(st), pattern_load(cases[k].t, out + i));
        PROCS_REQUIRE(all_equal(g, arg, rank, n, out, 67), "the members' bits differ");
    }
    return rg_group_leave(g) != RG_OK;
}

/* ---- 11: equal bits, everywhere and again -------------------------------------------------------------------------
 */

static uint64_t next_random(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static int repeats = 6;

/* The same inputs again and again, members late by random times: one result, bit for bit. */
static int bits_body(rg_group_t *g, int rank, int n, void *arg) {
    struct results *r = arg;
    static float in[2000], out[2000];
    uint64_t seed = 88172645463325252ull * (uint64_t)(rank + 1), late = seed ^ 0x5555;
    const rg_dtype_t types[] = { RG_F32, RG_BF16 };
    uint64_t first[2] = { 0, 0 };
    for (int t = 0; t < 2; t++) {
        uint64_t count = t ? 3999 : 1999;
        for (uint64_t i = 0; i < 2000; i++) {
            uint64_t u = next_random(&seed);
            in[i] = ldexpf((float)(int32_t)u, (int)(u >> 40 & 31) - 16);
        }
        for (int k = 0; k < repeats; k++) {
            uint64_t until = procs_now() + next_random(&late) % 400000;
            while (procs_now() < until) {}
            rg_status_t st = rg_all_reduce(g, in, out, count, types[t], RG_SUM, NULL, NULL);
            PROCS_REQUIRE(st == RG_OK, "%s", rg_status_name(st));
            uint64_t h = bytes_hash(out, 7996);
            if (k == 0) first[t] = h;
            PROCS_REQUIRE(h == first[t] || !r->again, "repetition %d of %s differs", k, rg_dtype_name(types[t]));
            PROCS_REQUIRE(all_equal(g, r, rank, n, out, 7996), "the members' bits differ");
        }
    }
    return rg_group_leave(g) != RG_OK;
}

/* Any algorithm gives all members the same bits. That they are the same again is promised where it is asked for, with
 * the algorithms that keep the order of the ranks. */
static int same_bits(int n, const char *algorithm) {
    rg_config_t cfg = procs_config(NULL, NULL, 0, 0);
    struct results *r = procs_shared(sizeof *r);
    r->again = !algorithm;
    cfg.deterministic = algorithm ? RG_OFF : RG_ON;
    cfg.algorithm = algorithm;
    return procs_cluster_with(&cfg, n, bits_body, r, 60) == 0;
}

static const char *const all_reduces[] = { NULL,
                                           "all_reduce=ring",
                                           "all_reduce=rhd",
                                           "all_reduce=direct",
                                           "all_reduce=direct2",
                                           "all_reduce=tree",
                                           "all_reduce=double_tree",
                                           "all_reduce=star" };
#define ALL_REDUCES (sizeof all_reduces / sizeof *all_reduces)

static void bits(const char *format, int most) {
    char name[128];
    for (size_t a = 0; a < ALL_REDUCES; a++) {
        int ok = 1;
        snprintf(name, sizeof name, format, all_reduces[a] ? strchr(all_reduces[a], '=') + 1 : "chosen");
        if (!procs_wanted(name)) continue;
        for (int n = 2; ok && n <= most; n += most > 4 ? 1 : 2) ok = same_bits(n, all_reduces[a]);
        procs_case(name, ok);
    }
}

/* The checker of equal bits, with a byte that one member has alone. */
static int planted_body(rg_group_t *g, int rank, int n, void *arg) {
    uint8_t x[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    PROCS_REQUIRE(all_equal(g, arg, rank, n, x, 8), "equal bytes are found different");
    x[7] = rank == n - 1 ? 9 : 8;
    PROCS_REQUIRE(!all_equal(g, arg, rank, n, x, 8), "a byte that differs is not seen");
    return rg_group_leave(g) != RG_OK;
}

void cases_numbers(void) {
    static const int averaged[] = { 2, 3, 5 };
    struct results *r = procs_shared(sizeof *r);
    char name[128];
    CASE("case_11__planted_difference__seen", procs_cluster(3, planted_body, r, 20) == 0);
    for (int n = 1; n <= 4; n++) {
        snprintf(name, sizeof name, "case_01__count_zero_in_every_operation__success_and_in_step__%d", n);
        CASE(name, procs_cluster(n, nothing_body, NULL, 30) == 0);
    }
    for (int n = 2; n <= 4; n++) {
        snprintf(name, sizeof name, "case_03__counts_that_divide_by_nothing__exact__%d", n);
        CASE(name, indivisible(n, NULL) && indivisible(n, "all_reduce=ring,reduce_scatter=ring"));
    }
    CASE("case_06__calls_that_differ_over_tcp__all_told_and_nothing_overwritten", differing("tcp", NULL));
    CASE("case_06__calls_that_differ_through_shm__all_told_and_nothing_overwritten", differing("shm", NULL));
    CASE("case_06__calls_that_differ_in_rings__all_told_and_nothing_overwritten",
         differing("tcp", "all_reduce=ring,reduce_scatter=ring,all_gather=ring,broadcast=ring"));
    CASE("case_06__calls_that_differ_in_trees__all_told_and_nothing_overwritten",
         differing("shm", "all_reduce=tree,reduce=tree,broadcast=tree,gather=tree"));
    for (int n = 3; n <= 4; n++) {
        snprintf(name, sizeof name, "case_07__nan_on_each_rank_in_turn__same_on_all__%d", n);
        CASE(name, procs_cluster(n, nan_body, r, 60) == 0);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "case_09__average_next_to_the_largest__finite_and_right__%d", averaged[i]);
        CASE(name, procs_cluster(averaged[i], average_body, r, 30) == 0);
    }
    CASE("case_09__average_next_to_the_smallest__within_its_bound", procs_cluster(3, smallest_body, r, 20) == 0);
    CASE("case_10__eight_bit_sums_beyond_the_range__largest_finite", procs_cluster(2, saturation_body, r, 20) == 0);
    bits("case_11__repeated_with_late_members_%s__same_bits", 4);
}

void cases_numbers_long(void) {
    repeats = 100;
    bits("case_11__hundred_times_up_to_8_members_%s__same_bits", 8);
}
