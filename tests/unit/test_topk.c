/* test_topk.c: chunked top-k: the choice against a plain search, the transform against its definition in double, equal
 * bits at every SIMD level, bytes that nobody made, and the all-reduce on groups of threads: values, error feedback
 * that counts only what succeeded, calls that differ, members that die. Relies on engine_rig.h. */
#include "engine_rig.h"
#include "kernels/kernels.h"
#include "regroup_sparse.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = RG_TOPK_CHUNK };

static const char *const levels[] = { "scalar", "avx2", "avx512" };
static const uint32_t forms[] = { RG_TOPK_F32, RG_TOPK_2BIT, RG_WIRE_BF16, RG_WIRE_F16, RG_WIRE_I8, RG_WIRE_TERNARY };

static float value(uint64_t seed, uint32_t member, uint64_t i) {
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + member * 0xbf58476d1ce4e5b9ull + i * 0x94d049bb133111ebull;
    double sum = 0;
    for (int k = 0; k < 4; k++) sum += (double)(rig_random(&x) >> 40) * 0x1p-24;
    return (float)(sum - 2);
}

/* ---- The choice -------------------------------------------------------------------------------------------------- */

/* Elements that come before element i in the order of the choice. */
static uint32_t before(const float *x, uint32_t n, uint32_t i) {
    uint32_t c = 0;
    for (uint32_t j = 0; j < n; j++) c += fabsf(x[j]) > fabsf(x[i]) || (fabsf(x[j]) == fabsf(x[i]) && j < i);
    return c;
}

Test(topk, select__random_and_tied_data__the_largest_with_ties_to_the_lower_index, .timeout = 100) {
    static float x[2 * CHUNK];
    static uint64_t at[2 * CHUNK];
    static const uint32_t ks[] = { 1, 7, 64, 512, 4095, 4096 };
    for (int kind = 0; kind < 4; kind++) {
        for (uint32_t i = 0; i < 2 * CHUNK; i++) {
            float v = value(1, (uint32_t)kind, i);
            x[i] = kind == 0 ? v : kind == 1 ? rintf(v * 3) : kind == 2 ? 0 : i % 100 == 3 ? v * 1e30f : v * 1e-40f;
        }
        for (size_t k = 0; k < sizeof ks / sizeof *ks; k++) {
            rg_topk_t t = RG_TOPK_INIT;
            uint32_t n = CHUNK + 1000;
            t.k = ks[k];
            uint64_t many = rg_topk_values(&t, n), have = 0;
            cr_assert_eq(rg_topk_select(&t, x, n, at), RG_OK);
            for (uint32_t first = 0; first < n; first += CHUNK) {
                uint32_t m = n - first < CHUNK ? n - first : CHUNK, some = (t.k * m + CHUNK - 1) / CHUNK;
                for (uint32_t i = 0; i < m; i++) {
                    int is = have < many && at[have] == first + i;
                    have += (uint64_t)is;
                    if (ks[k] < 100 || i % 17 == 0)
                        cr_assert_eq(is, before(x + first, m, i) < some, "kind %d, k %u, element %u", kind, t.k, i);
                }
            }
            cr_assert_eq(have, many);
        }
    }
    rg_topk_t t = RG_TOPK_INIT;
    x[5000] = NAN;
    cr_assert_eq(rg_topk_select(&t, x, CHUNK, at), RG_OK);
    cr_assert_eq(rg_topk_select(&t, x, 2 * CHUNK, at), RG_ERR_INVALID);
    t.k = 0;
    cr_assert_eq(rg_topk_select(&t, x, CHUNK, at), RG_ERR_INVALID);
}

/* ---- The transform ----------------------------------------------------------------------------------------------- */

Test(topk, dct__random_chunks__as_defined_and_back, .timeout = 100) {
    static float x[2 * CHUNK], y[2 * CHUNK], back[2 * CHUNK];
    const double pi = 3.14159265358979323846;
    for (uint32_t i = 0; i < 2 * CHUNK; i++) x[i] = value(2, 0, i);
    rg_topk_dct(x, 2, y);
    rg_topk_dct_inverse(y, 2, back);
    double all = 0, square = 0;
    for (uint32_t i = 0; i < 2 * CHUNK; i++) {
        cr_assert_lt(fabsf(back[i] - x[i]), 4e-6f, "element %u: %g for %g", i, (double)back[i], (double)x[i]);
        square += (double)x[i] * (double)x[i];
        all += (double)y[i] * (double)y[i];
    }
    cr_assert_lt(fabs(all / square - 1), 1e-6, "not orthonormal");
    for (uint32_t u = 0; u < 64; u += 7)
        for (uint32_t v = 0; v < 64; v += 9) {
            double sum = 0;
            for (uint32_t i = 0; i < 64; i++)
                for (uint32_t j = 0; j < 64; j++)
                    sum += (double)x[CHUNK + i * 64 + j] * cos((2 * i + 1) * u * pi / 128) *
                           cos((2 * j + 1) * v * pi / 128);
            sum *= (u == 0 ? 0.125 : sqrt(2.0 / 64)) * (v == 0 ? 0.125 : sqrt(2.0 / 64));
            cr_assert_lt(fabs(sum - (double)y[CHUNK + u * 64 + v]), 2e-6, "coefficient %u, %u: %g for %g", u, v,
                         (double)y[CHUNK + u * 64 + v], sum);
        }
}

/* Numbers near the end of f32: single ones, whose coefficients are small, and rows of them. An encoder refuses them or
 * makes bytes that decode to finite ones. */
Test(topk, dct__numbers_near_the_end_of_f32__refused_or_finite_again, .timeout = 100) {
    static float x[2 * CHUNK], y[2 * CHUNK];
    static uint8_t w[1 << 17];
    uint32_t refused = 0, taken = 0, near = 0;
    for (uint32_t n = 0; n < 600; n++) {
        uint32_t form = n % (RG_WIRE_COUNT + 1), len = 64 + n * 7919 % (2 * CHUNK - 64);
        rg_topk_t t = RG_TOPK_INIT;
        t.flags = RG_TOPK_DCT;
        t.k = n / 3 % 2 ? CHUNK : 1 + n % 100;
        t.values = form == 0 ? RG_TOPK_F32 : form == RG_WIRE_COUNT ? RG_TOPK_2BIT : form;
        for (uint32_t i = 0; i < len; i++) x[i] = n % 3 == 0 ? value(7, n, i) * 0x1p122f : 0;
        if (n % 3 == 1) x[n * 37 % len] = n % 2 ? FLT_MAX : -FLT_MAX;
        for (uint32_t i = 0; n % 3 == 2 && i < 64; i++) x[i] = i % 2 ? FLT_MAX : -FLT_MAX;
        if (rg_topk_encode(&t, x, len, w) != RG_OK) {
            refused++;
            continue;
        }
        taken++;
        cr_assert_eq(rg_topk_decode(&t, w, len, y), RG_OK);
        for (uint32_t i = 0; i < len; i++) {
            cr_assert(isfinite(y[i]), "case %u: element %u of %u is %g", n, i, len, (double)y[i]);
            near += fabsf(y[i]) > FLT_MAX / 2;
        }
    }
    cr_assert(refused > 20 && taken > 20 && near > 20, "%u refused, %u taken, %u near the end", refused, taken, near);
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

Test(topk, bytes__all_levels_forms_and_lengths__equal, .timeout = 100) {
    static float x[3 * CHUNK], y[3 * CHUNK], z[3 * CHUNK];
    static uint8_t w[3][3 * 6 * CHUNK];
    for (uint32_t i = 0; i < 3 * CHUNK; i++) x[i] = value(3, 0, i) * (i % 50 == 0 ? 1e20f : 1);
    for (uint32_t k = 0; k < 12 * sizeof forms / sizeof *forms; k++) {
        static const uint64_t lengths[] = { 1, 63, 4096, 4097, 9000, 12288 };
        rg_topk_t t = { (uint32_t)sizeof t, k % 5 == 0 ? 333 : 64, forms[k / 12], k % 2 };
        uint64_t n = lengths[k / 2 % 6], bytes = rg_topk_bytes(&t, n);
        cr_assert(bytes > 0 && bytes <= sizeof w[0]);
        for (int level = 0; level < 3; level++) {
            if (!rg_simd_force(levels[level])) continue;
            memset(w[level], 0xa5, sizeof w[level]);
            cr_assert_eq(rg_topk_encode(&t, x, n, w[level]), RG_OK);
            cr_assert_eq(w[level][bytes], 0xa5, "written beyond the end");
            cr_assert_eq(memcmp(w[0], w[level], bytes), 0, "%s differs", levels[level]);
            cr_assert_eq(rg_topk_decode(&t, w[level], n, level == 0 ? y : z), RG_OK);
            if (level > 0) cr_assert_eq(memcmp(y, z, n * sizeof *y), 0, "%s decodes otherwise", levels[level]);
        }
        if (t.values == RG_TOPK_F32 && !(t.flags & RG_TOPK_DCT))
            for (uint64_t i = 0; i < n; i++) cr_assert(y[i] == 0.0f || y[i] == x[i]);
        memcpy(z, y, sizeof y);
        rg_topk_decode_add(&t, w[0], n, z);
        for (uint64_t i = 0; i < n; i++) cr_assert(z[i] == y[i] + y[i]);
    }
}

Test(topk, bytes__64_of_4096_in_two_bits__140_times_fewer_than_f32) {
    rg_topk_t t = RG_TOPK_INIT;
    cr_assert_eq(rg_topk_bytes(&t, CHUNK), 116);
    cr_assert_geq(4.0 * (1 << 20) / (double)rg_topk_bytes(&t, 1 << 20), 140.0);
    cr_assert_eq(rg_topk_values(&t, 1 << 20), 1 << 14);
    t.values = 200;
    cr_assert_eq(rg_topk_bytes(&t, CHUNK), 0);
}

/* What is decoded of two bits is nearer to the values than what one magnitude for all would give. */
Test(topk, values__two_bits_of_normal_data__a_seventh_of_their_energy_lost) {
    static float x[64 * CHUNK], y[64 * CHUNK];
    static uint8_t w[64 * 116];
    rg_topk_t t = RG_TOPK_INIT;
    double lost = 0, all = 0;
    for (uint32_t i = 0; i < 64 * CHUNK; i++) x[i] = value(4, 0, i) * value(5, 0, i) * value(6, 0, i);
    cr_assert_eq(rg_topk_encode(&t, x, 64 * CHUNK, w), RG_OK);
    cr_assert_eq(rg_topk_decode(&t, w, 64 * CHUNK, y), RG_OK);
    for (uint32_t i = 0; i < 64 * CHUNK; i++)
        if (y[i] != 0) {
            lost += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
            all += (double)x[i] * (double)x[i];
        }
    cr_assert_lt(lost / all, 0.14, "%g", lost / all);
}

Test(topk, decode__bytes_that_nobody_made__some_values, .timeout = 60) {
    uint64_t seed = rig_seed(11);
    for (uint32_t round = 0; round < 400; round++) {
        rg_topk_t t = { (uint32_t)sizeof t, 1 + (uint32_t)(rig_random(&seed) % CHUNK), forms[round % 6],
                        round / 6 % 2 };
        uint64_t n = 1 + rig_random(&seed) % 9000, bytes = rg_topk_bytes(&t, n);
        uint8_t *w = malloc(bytes);
        float *out = malloc(n * sizeof *out);
        for (uint64_t i = 0; i < bytes; i++) w[i] = (uint8_t)rig_random(&seed);
        cr_assert_eq(rg_topk_decode(&t, w, n, out), RG_OK);
        free(w);
        free(out);
    }
}

/* ---- All-reduce -------------------------------------------------------------------------------------------------- */

static int sums(rig_member_t *m, void *arg) {
    enum { COUNT = 3 * CHUNK + 77 };
    float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out), *one = malloc(COUNT * sizeof *one);
    uint8_t *w = malloc(6 * 4 * CHUNK);
    uint32_t n = m->rig->n;
    (void)arg;
    for (uint32_t k = 0; k < 6 * sizeof forms / sizeof *forms; k++) {
        rg_topk_t t = { (uint32_t)sizeof t, 100, forms[k / 6], k % 2 };
        rg_sparse_op_t op = (rg_sparse_op_t)(k / 2 % 3);
        double *want = calloc(COUNT, sizeof *want);
        uint32_t *owners = calloc(COUNT, sizeof *owners);
        rg_topk_reducer_t *z = NULL;
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &r;
        for (uint32_t j = 0; j < n; j++) {
            for (uint64_t i = 0; i < COUNT; i++) in[i] = value(k, j, i);
            rg_topk_encode(&t, in, COUNT, w);
            rg_topk_decode(&t, w, COUNT, one);
            for (uint64_t i = 0; i < COUNT; i++) want[i] += (double)one[i], owners[i] += one[i] != 0;
        }
        for (uint64_t i = 0; i < COUNT; i++) in[i] = value(k, m->index, i);
        RIG_OK(m, rg_topk_reducer_create(m->g, &t, NULL, &z, NULL));
        RIG_OK(m, rg_topk_all_reduce(z, in, k % 3 == 0 ? in : out, COUNT, op, &o));
        const float *got = k % 3 == 0 ? in : out;
        RIG_NEED(m, r.contributors == n && r.retries == 0, "%u contributors", r.contributors);
        for (uint64_t i = 0; i < COUNT; i++) {
            if (op == RG_SPARSE_AVG_OWNERS && t.flags) break; /* divides coefficients */
            double by = op == RG_SPARSE_AVG_WORLD ? n : op == RG_SPARSE_AVG_OWNERS && owners[i] ? owners[i] : 1;
            RIG_NEED(m, fabs((double)got[i] - want[i] / by) < 2e-5, "%s: element %u: %g for %g", rg_sparse_op_name(op),
                     (unsigned)i, (double)got[i], want[i] / by);
        }
        RIG_NEED(m, rig_alike(m, got, COUNT), "not the same bits everywhere");
        rg_topk_reducer_destroy(z);
        free(want);
        free(owners);
    }
    free(in), free(out), free(one), free(w);
    return rig_gate(m, 9, m->rig->n); /* who goes is lost to those whose last call still runs */
}

Test(topk, all_reduce__all_forms_and_operators__sums_of_what_was_decoded, .timeout = 100) {
    for (uint32_t n = 1; n <= 4; n++) rig_run(n, "inproc", NULL, sums, NULL);
}

/* What was received and what is kept make the whole, to a unit in the last place, failed calls in between included. */
static int feeds(rig_member_t *m, void *arg) {
    enum { COUNT = CHUNK + 100 };
    float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out), *said = malloc(COUNT * sizeof *said);
    float *before = calloc(COUNT, sizeof *before);
    uint8_t *w = malloc(3 * COUNT);
    rg_topk_t t = RG_TOPK_INIT;
    rg_feedback_t f = RG_FEEDBACK_INIT;
    rg_topk_reducer_t *z = NULL;
    t.flags = *(uint32_t *)arg;
    f.beta = 0.95f;
    RIG_OK(m, rg_topk_reducer_create(m->g, &t, &f, &z, NULL));
    for (int round = 0; round < 12; round++) {
        for (uint64_t i = 0; i < COUNT; i++) in[i] = value((uint64_t)round, m->index, i);
        for (int again = 0; again < round % 3; again++) {
            float keep = in[9];
            if (m->index == 1) in[9] = INFINITY;
            RIG_NEED(m, rg_topk_all_reduce(z, in, out, COUNT, RG_SPARSE_SUM, NULL) == RG_ERR_INVALID, "infinite");
            in[9] = keep;
        }
        RIG_OK(m, rg_topk_all_reduce(z, in, out, COUNT, RG_SPARSE_SUM, NULL));
        uint64_t have = 0;
        const float *kept = rg_topk_kept(z, &have);
        RIG_NEED(m, have == COUNT, "%u are kept", (unsigned)have);
        for (uint64_t i = 0; i < COUNT; i++) in[i] = f.beta * before[i] + in[i];
        rg_topk_encode(&t, in, COUNT, w);
        rg_topk_decode(&t, w, COUNT, said);
        for (uint64_t i = 0; i < COUNT; i++) {
            float back = said[i] + kept[i];
            RIG_NEED(m, fabsf(in[i] - back) <= 0x1p-23f * (fabsf(in[i]) + fabsf(said[i])), "%g is %g", (double)in[i],
                     (double)back);
            before[i] = kept[i];
        }
    }
    RIG_OK(m, rg_topk_keep(z, 7));
    RIG_NEED(m, rg_topk_kept(z, NULL)[6] == 0.0f, "keep");
    rg_topk_reducer_destroy(z);
    free(in), free(out), free(said), free(before), free(w);
    return rig_gate(m, 9, m->rig->n); /* who goes is lost to those whose last call still runs */
}

Test(topk, feedback__failed_calls_in_between__what_was_said_and_what_is_kept_make_the_whole, .timeout = 100) {
    for (uint32_t flags = 0; flags < 2; flags++) rig_run(2, "inproc", NULL, feeds, &flags);
}

static int wrong(rig_member_t *m, void *arg) {
    float in[256], out[256];
    rg_topk_t t = RG_TOPK_INIT, other = RG_TOPK_INIT;
    rg_topk_reducer_t *z = NULL, *y = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    rg_error_t err;
    (void)arg;
    for (int i = 0; i < 256; i++) in[i] = (float)i, out[i] = -1;
    if (m->index == 1) other.flags = RG_TOPK_DCT;
    RIG_OK(m, rg_topk_reducer_create(m->g, &t, NULL, &z, NULL));
    RIG_OK(m, rg_topk_reducer_create(m->g, &other, NULL, &y, NULL));
    rg_sparse_op_t op = m->index == 2 ? RG_SPARSE_AVG_WORLD : RG_SPARSE_SUM;
    RIG_NEED(m, rg_topk_all_reduce(y, in, out, 256, RG_SPARSE_SUM, NULL) == RG_ERR_MISMATCH, "flags: %s",
             rig_errmsg(m));
    RIG_NEED(m, rg_topk_all_reduce(z, in, out, 256, op, NULL) == RG_ERR_MISMATCH, "operators: %s", rig_errmsg(m));
    RIG_NEED(m, rg_topk_all_reduce(z, in, out, m->index ? 256 : 9, RG_SPARSE_SUM, NULL) == RG_ERR_MISMATCH, "counts");
    if (m->index == 2) in[7] = NAN;
    RIG_NEED(m, rg_topk_all_reduce(z, in, out, 256, RG_SPARSE_SUM, NULL) == RG_ERR_INVALID, "NaN: %s", rig_errmsg(m));
    RIG_NEED(m, strstr(rig_errmsg(m), "rank 2") != NULL, "%s", rig_errmsg(m));
    in[7] = 1;
    for (int i = 0; i < 256; i++) RIG_NEED(m, out[i] == -1.0f, "output written");
    RIG_NEED(m, rg_topk_all_reduce(z, in, out, 256, RG_SPARSE_MAX, NULL) == RG_ERR_NOTSUP, "max");
    in[7] = FLT_MAX; /* one is fine, all together are not */
    RIG_NEED(m, rg_topk_all_reduce(z, in, out, 256, RG_SPARSE_AVG_WORLD, NULL) == RG_ERR_INVALID, "sum: %s",
             rig_errmsg(m));
    RIG_NEED(m, strstr(rig_errmsg(m), "element 7"), "%s", rig_errmsg(m));
    in[7] = 1;
    for (int i = 0; i < 256; i++) RIG_NEED(m, out[i] == -1.0f, "output written");
    RIG_NEED(m, rg_topk_all_reduce(z, NULL, out, 256, RG_SPARSE_SUM, NULL) == RG_ERR_INVALID, "NULL");
    RIG_NEED(m, rg_topk_all_reduce(NULL, in, out, 256, RG_SPARSE_SUM, NULL) == RG_ERR_INVALID, "no reducer");
    o.scale = 2;
    RIG_NEED(m, rg_topk_all_reduce(z, in, out, 256, RG_SPARSE_SUM, &o) == RG_ERR_NOTSUP, "scale");
    RIG_OK(m, rg_topk_all_reduce(z, in, out, 256, RG_SPARSE_SUM, NULL));
    rg_topk_reducer_destroy(z);
    rg_topk_reducer_destroy(y);
    t.k = 5000;
    RIG_NEED(m, rg_topk_reducer_create(m->g, &t, NULL, &z, &err) == RG_ERR_INVALID && strstr(err.text, "5000"), "%s",
             err.text);
    return rig_gate(m, 0, m->rig->n);
}

Test(topk, calls__that_differ_or_are_wrong__refused_alike_and_nothing_written, .timeout = 100) {
    rig_run(3, "inproc", NULL, wrong, NULL);
}

/* ---- Deaths ------------------------------------------------------------------------------------------------------ */

typedef struct death {
    rg_on_fault_t on_fault;
    uint64_t after_us; /* from a gate on */
} death_t;

/* What every member keeps is what it would keep had nobody died: attempts that came to nothing changed nothing. */
static int loses(rig_member_t *m, void *arg) {
    enum { COUNT = 3 * CHUNK };
    const death_t *d = arg;
    float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out), *want = calloc(COUNT, sizeof *want);
    float *said = malloc(COUNT * sizeof *said);
    uint8_t *w = malloc(COUNT);
    rg_topk_t t = RG_TOPK_INIT;
    rg_feedback_t f = RG_FEEDBACK_INIT;
    rg_topk_reducer_t *z = NULL;
    int dies = m->index == 1;
    RIG_OK(m, rg_topk_reducer_create(m->g, &t, &f, &z, NULL));
    for (uint64_t i = 0; i < COUNT; i++) in[i] = value(3, m->index, i);
    RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    if (dies) rig_ends_after(m, d->after_us);
    for (uint32_t after = 0; after < 3;) {
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &r;
        o.on_fault = d->on_fault;
        rg_status_t st = rg_topk_all_reduce(z, in, out, COUNT, RG_SPARSE_SUM, &o);
        if (dies && st != RG_OK) break;
        RIG_NEED(m, st == RG_OK || (st == RG_ERR_PEER_LOST && d->on_fault == RG_RETURN), "%s: %s", rg_status_name(st),
                 rig_errmsg(m));
        if (st != RG_OK) continue;
        after += r.contributors < m->rig->n;
        for (uint64_t i = 0; i < COUNT; i++) want[i] += in[i];
        rg_topk_encode(&t, want, COUNT, w);
        rg_topk_decode(&t, w, COUNT, said);
        const float *kept = rg_topk_kept(z, NULL);
        for (uint64_t i = 0; i < COUNT; i++) {
            want[i] -= said[i];
            RIG_NEED(m, kept[i] == want[i], "element %u: %g is kept for %g", (unsigned)i, (double)kept[i],
                     (double)want[i]);
        }
    }
    if (!dies) RIG_NEED(m, rig_alike(m, out, COUNT), "not the same bits everywhere");
    if (!dies) RIG_NEED(m, rig_gate(m, 1, m->rig->n - 1) == 0, "gate");
    rg_topk_reducer_destroy(z);
    free(in), free(out), free(want), free(said), free(w);
    return 0;
}

Test(topk, feedback__a_member_dies_at_any_moment__kept_as_if_it_had_not, .timeout = 200) {
    for (uint64_t k = 0; k < 12; k++) {
        death_t d = { k % 2 == 0 ? RG_RETRY : RG_RETURN, 50 + k * 97 };
        rig_run(3, "inproc", NULL, loses, &d);
    }
}
