/* test_quant_forms.c: the ways of quantised reductions (direct, ring, two-level, integer) on groups of threads: values
 * within the bound, equal bits on all members, errors as the specification's table has them, whole numbers exact, what
 * feedback keeps, members that die, and requests that do not block. Relies on engine_rig.h. */
#include "engine_rig.h"

#include "kernels/kernels.h"
#include "quant/parts.h"

#include <criterion/criterion.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static float value(uint64_t seed, uint32_t member, uint64_t i) {
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + member * 0xbf58476d1ce4e5b9ull + i * 0x94d049bb133111ebull;
    double sum = 0;
    for (int k = 0; k < 12; k++) sum += (double)(rig_random(&x) >> 40) * 0x1p-24;
    return (float)(sum - 6);
}

static double sum_of(uint64_t seed, uint32_t n, uint64_t i) {
    double want = 0;
    for (uint32_t j = 0; j < n; j++) want += (double)value(seed, j, i);
    return want;
}

static rg_quantiser_t *quantiser(rig_member_t *m, rg_wire_t wire, uint32_t form, uint32_t flags,
                                 const rg_feedback_t *f) {
    rg_quant_t q = RG_QUANT_INIT(wire);
    rg_quantiser_t *z = NULL;
    rg_error_t err;
    q.form = form;
    q.flags = flags;
    q.seed = m->index;
    if (rg_quantiser_create(m->g, &q, f, &z, &err) != RG_OK) rig_complain(m, __FILE__, __LINE__, "%s", err.text);
    return z;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

enum { LONGEST = 5003 };

static const uint64_t counts[] = { 0, 1, 63, 255, 256, 257, 1000, LONGEST };

static int holds(rig_member_t *m, rg_quantiser_t *z, const float *got, uint64_t seed, uint64_t from, uint64_t n,
                 rg_op_t op, const char *what) {
    double bound = rg_quantiser_bound(z) * (1 + 1e-6) + 1e-5;
    for (uint64_t i = 0; i < n; i++) {
        double want = sum_of(seed, m->rig->n, from + i) / (op == RG_AVG ? m->rig->n : 1);
        if (fabs((double)got[i] - want) > bound)
            return rig_complain(m, __FILE__, __LINE__, "%s: element %u of %u: %g for %g, bound %g", what, (unsigned)i,
                                (unsigned)n, (double)got[i], want, bound),
                   0;
    }
    return 1;
}

static int reduces_one(rig_member_t *m, rg_wire_t wire, uint32_t form, float *in, float *out) {
    uint32_t n = m->rig->n;
    char what[96];
    rg_quantiser_t *z = quantiser(m, wire, form, wire % 2 != 0 ? RG_QUANT_STOCHASTIC : 0, NULL);
    if (z == NULL) return 1;
    for (uint32_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        uint64_t count = counts[k];
        rg_op_t op = k % 2 != 0 ? RG_AVG : RG_SUM;
        float *to = k % 3 == 0 ? in : out;
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &r;
        snprintf(what, sizeof what, "%s, %s, %u members", rg_wire_name(wire), rg_quant_form_name(form), n);
        for (uint64_t i = 0; i < count; i++) in[i] = value(k, m->index, i);
        RIG_OK(m, rg_quant_all_reduce(z, in, to, count, op, &o));
        RIG_NEED(m, r.status == RG_OK && r.contributors == n && r.retries == 0, "%u contributors", r.contributors);
        RIG_NEED(m, n == 1 || form == RG_QUANT_AUTO || (uint32_t)rg_quantiser_form(z) == form, "%s: form %d", what,
                 (int)rg_quantiser_form(z));
        if (!holds(m, z, to, k, 0, count, op, what)) return 1;
        RIG_NEED(m, rig_alike(m, to, count), "%s: not the same bits everywhere", what);
        for (uint64_t i = 0; i < count * n; i++) in[i] = value(k, m->index, i);
        RIG_OK(m, rg_quant_reduce_scatter(z, in, out, count, op, NULL));
        if (!holds(m, z, out, k, count * m->index, count, op, what)) return 1;
    }
    rg_quantiser_destroy(z);
    return 0;
}

static int reduces(rig_member_t *m, void *arg) {
    static const rg_wire_t wires[] = { RG_WIRE_BF16, RG_WIRE_I8,      RG_WIRE_I8_MINMAX,
                                       RG_WIRE_I4,   RG_WIRE_TERNARY, RG_WIRE_MXFP4 };
    float *in = malloc(8 * LONGEST * sizeof *in), *out = malloc(LONGEST * sizeof *out);
    int bad = 0;
    (void)arg;
    for (size_t k = 0; k < sizeof wires / sizeof *wires && !bad; k++)
        for (uint32_t form = 0; form < RG_QUANT_FORM_COUNT && !bad; form++)
            if (form != RG_QUANT_INTEGER || rg_integer_can(wires[k])) bad = reduces_one(m, wires[k], form, in, out);
    free(in);
    free(out);
    return bad || rig_gate(m, 0, m->rig->n);
}

Test(quant_forms, reductions__all_forms_and_group_sizes__within_the_bound_and_alike, .timeout = 200) {
    for (uint32_t n = 1; n <= 5; n++) rig_run(n, "inproc", NULL, reduces, NULL);
}

Test(quant_forms, reductions__on_hosts_of_two__within_the_bound_and_alike, .timeout = 200) {
    rig_per_host = 2; /* the last host of five members has one */
    for (uint32_t n = 4; n <= 6; n++) rig_run(n, "inproc", NULL, reduces, NULL);
}

Test(quant_forms, reductions__each_member_on_a_host_of_its_own__within_the_bound_and_alike, .timeout = 200) {
    rig_per_host = 1;
    rig_run(3, "inproc", NULL, reduces, NULL);
}

/* ---- How exact --------------------------------------------------------------------------------------------------- */

/* Relative root mean square of the sum's error for normal data: at most this for 8 members, and for 4 (which is 5 %
 * more than a simulation of the forms gave). */
static const struct {
    rg_wire_t wire;
    double direct[2], ring[2];
} table[] = {
    { RG_WIRE_I8, { 1.1e-2, .0097 }, { 1.6e-2, .0116 } }, { RG_WIRE_I4, { .15, .135 }, { .23, .161 } },
    { RG_WIRE_E4M3, { .04, .036 }, { .06, .043 } },       { RG_WIRE_E5M2, { .075, .071 }, { .12, .085 } },
    { RG_WIRE_BF16, { 2.5e-3, .0023 }, { 4e-3, .0027 } }, { RG_WIRE_MXFP4, { .17, .16 }, { .26, .192 } },
};

static int precise(rig_member_t *m, void *arg) {
    enum { COUNT = 1 << 15 };
    float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out);
    double *want = calloc(COUNT, sizeof *want);
    uint32_t n = m->rig->n;
    int which = n == 8 ? 0 : 1, bad = 0;
    (void)arg;
    for (uint64_t i = 0; i < COUNT; i++) in[i] = value(99, m->index, i);
    for (uint64_t i = 0; i < COUNT; i++) want[i] = sum_of(99, n, i);
    for (size_t k = 0; k < sizeof table / sizeof *table; k++)
        for (uint32_t form = RG_QUANT_DIRECT; form < RG_QUANT_FORM_COUNT; form++) {
            double error = 0, all = 0;
            if (form == RG_QUANT_INTEGER && !rg_integer_can(table[k].wire)) continue;
            rg_quantiser_t *z = quantiser(m, table[k].wire, form, 0, NULL);
            RIG_OK(m, rg_quant_all_reduce(z, in, out, COUNT, RG_SUM, NULL));
            for (uint64_t i = 0; i < COUNT; i++) {
                error += ((double)out[i] - want[i]) * ((double)out[i] - want[i]);
                all += want[i] * want[i];
            }
            double rms = sqrt(error / all),
                   most = form == RG_QUANT_RING ? table[k].ring[which] : table[k].direct[which];
            if (form == RG_QUANT_INTEGER) most = table[k].direct[0]; /* its blocks of int4 are larger */
            if (getenv("RG_TEST_SHOW") && m->index == 0)
                fprintf(stderr, "%u members, %u on a host, %s, %s: %.4f of %.4f\n", n, rig_per_host,
                        rg_wire_name(table[k].wire), rg_quant_form_name(form), rms, most);
            if (!bad && rms > most)
                bad = rig_complain(m, __FILE__, __LINE__, "%s, %s: %.5f, more than %.5f", rg_wire_name(table[k].wire),
                                   rg_quant_form_name(form), rms, most);
            rg_quantiser_destroy(z);
        }
    free(in);
    free(out);
    free(want);
    return bad || rig_gate(m, 0, m->rig->n);
}

Test(quant_forms, reductions__normal_data__errors_as_small_as_specified, .timeout = 200) {
    rig_per_host = 2;
    rig_run(4, "inproc", NULL, precise, NULL);
    rig_run(8, "inproc", NULL, precise, NULL);
}

/* ---- Whole numbers ----------------------------------------------------------------------------------------------- */

/* What the definition gives, in doubles: the shared scale, everybody's multiples of it, their sum. */
static int exact_one(rig_member_t *m, rg_wire_t wire, double most, uint64_t block) {
    enum { COUNT = 1500 };
    float in[COUNT], out[COUNT];
    uint32_t n = m->rig->n;
    rg_quantiser_t *z = quantiser(m, wire, RG_QUANT_INTEGER, 0, NULL);
    for (uint64_t i = 0; i < COUNT; i++) in[i] = value(5, m->index, i);
    RIG_OK(m, rg_quant_all_reduce(z, in, out, COUNT, RG_SUM, NULL));
    for (uint64_t from = 0; from < COUNT; from += block) {
        uint64_t end = from + block < COUNT ? from + block : COUNT;
        float top = 0;
        for (uint64_t i = from; i < end; i++)
            for (uint32_t j = 0; j < n; j++) top = fmaxf(top, fabsf(value(5, j, i)));
        float s = top / (float)most;
        for (uint64_t i = from; i < end; i++) {
            double sum = 0;
            for (uint32_t j = 0; j < n; j++) sum += nearbyint((double)(value(5, j, i) / s));
            RIG_NEED(m, out[i] == s * (float)sum, "%s: element %u: %g, not %g", rg_wire_name(wire), (unsigned)i,
                     (double)out[i], (double)s * sum);
        }
    }
    rg_quantiser_destroy(z);
    return 0;
}

static int exact(rig_member_t *m, void *arg) {
    (void)arg;
    return exact_one(m, RG_WIRE_I8, 127, 256) || exact_one(m, RG_WIRE_I4, 7, 256) ||
           exact_one(m, RG_WIRE_TERNARY, 1, 1500) || rig_gate(m, 0, m->rig->n);
}

Test(quant_forms, integers__against_their_definition__equal_to_the_bit, .timeout = 100) {
    for (uint32_t n = 1; n <= 5; n += 2) rig_run(n, "inproc", NULL, exact, NULL);
}

/* What is rounded for a scale from elsewhere is the same at every SIMD level, whatever the data. */
Test(quant_forms, levels__any_simd__equal, .timeout = 60) {
    enum { MANY = 700 };
    static const char *const names[] = { "scalar", "avx2", "avx512" };
    static float x[MANY];
    uint64_t seed = 5;
    for (int round = 0; round < 60; round++) {
        rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I8);
        int8_t want[MANY], got[MANY];
        uint32_t bits;
        q.flags = round % 2 != 0 ? RG_QUANT_STOCHASTIC : 0;
        if (round % 3 == 0) q.flags |= RG_QUANT_SATURATE;
        for (int i = 0; i < MANY; i++) {
            bits = (uint32_t)rig_random(&seed);
            memcpy(&x[i], &bits, sizeof bits);
            if (round % 4 != 0 || !isfinite(x[i])) x[i] = value((uint64_t)round, 0, (uint64_t)i);
        }
        if (round % 3 == 0) x[round] = NAN, x[round + 300] = -INFINITY;
        for (int l = 0; l < 3; l++) {
            if (!rg_simd_force(names[l])) continue;
            rg_quant_levels(&q, 3, 1000, x, (uint64_t)(MANY - round), 0.03f, 127, l == 0 ? want : got);
            cr_assert(l == 0 || memcmp(want, got, (size_t)(MANY - round)) == 0, "round %d, %s", round, names[l]);
        }
    }
}

/* ---- Wrong calls ------------------------------------------------------------------------------------------------- */

static int wrong(rig_member_t *m, void *arg) {
    float in[600], out[600];
    (void)arg;
    for (uint32_t form = RG_QUANT_DIRECT; form < RG_QUANT_FORM_COUNT; form++) {
        rg_quantiser_t *z = quantiser(m, RG_WIRE_I8, form, 0, NULL);
        for (int i = 0; i < 600; i++) in[i] = (float)i, out[i] = -1;
        /* Differences and what is not finite end alike on all, wherever the element is. */
        for (int at = 0; at < 600; at += 199) {
            if (m->index == 2) in[at] = NAN;
            RIG_NEED(m, rg_quant_all_reduce(z, in, out, 600, RG_SUM, NULL) == RG_ERR_INVALID, "NaN: %s", rig_errmsg(m));
            RIG_NEED(m, strstr(rig_errmsg(m), "rank 2") != NULL, "%s", rig_errmsg(m));
            in[at] = (float)at;
        }
        rg_op_t op = m->index == 1 ? RG_AVG : RG_SUM;
        RIG_NEED(m, rg_quant_all_reduce(z, in, out, 600, op, NULL) == RG_ERR_MISMATCH, "operators: %s", rig_errmsg(m));
        rg_quantiser_t *y = quantiser(m, RG_WIRE_I8, m->index == 0 ? form : RG_QUANT_DIRECT, 0, NULL);
        rg_status_t st = rg_quant_all_reduce(y, in, out, 600, RG_SUM, NULL);
        RIG_NEED(m, st == (form == RG_QUANT_DIRECT ? RG_OK : RG_ERR_MISMATCH), "forms: %s", rig_errmsg(m));
        for (int i = 0; i < 600; i++) in[i] = 3e38f;
        RIG_NEED(m, rg_quant_all_reduce(z, in, out, 600, RG_SUM, NULL) == RG_ERR_INVALID, "overflow: %s, %g",
                 rig_errmsg(m), (double)out[0]);
        rg_quantiser_destroy(z);
        rg_quantiser_destroy(y);
    }
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_E4M3);
    rg_quantiser_t *z = NULL;
    rg_error_t err;
    q.form = RG_QUANT_INTEGER;
    RIG_NEED(m, rg_quantiser_create(m->g, &q, NULL, &z, &err) == RG_ERR_NOTSUP && strstr(err.text, "e4m3"), "%s",
             err.text);
    q.form = 77;
    RIG_NEED(m, rg_quantiser_create(m->g, &q, NULL, &z, &err) == RG_ERR_INVALID && strstr(err.text, "77"), "%s",
             err.text);
    return rig_gate(m, 0, m->rig->n);
}

Test(quant_forms, calls__that_differ_or_are_not_finite__refused_alike, .timeout = 100) {
    rig_per_host = 2;
    rig_run(4, "inproc", NULL, wrong, NULL);
}

/* ---- Choice ------------------------------------------------------------------------------------------------------ */

static int listed(rig_member_t *m, void *arg) {
    float in[300] = { 0 }, out[300];
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I8);
    rg_quantiser_t *z = NULL;
    rg_error_t err;
    if (!strcmp(arg, "=bad")) {
        RIG_NEED(m, rg_quantiser_create(m->g, &q, NULL, &z, &err) == RG_ERR_INVALID && strstr(err.text, "rign"), "%s",
                 err.text);
        return 0;
    }
    RIG_OK(m, rg_quantiser_create(m->g, &q, NULL, &z, NULL));
    RIG_OK(m, rg_quant_all_reduce(z, in, out, 300, RG_SUM, NULL));
    RIG_NEED(m, rg_quantiser_form(z) == RG_QUANT_RING, "all_reduce: form %d", (int)rg_quantiser_form(z));
    RIG_OK(m, rg_quant_reduce_scatter(z, in, out, 100, RG_SUM, NULL));
    RIG_NEED(m, rg_quantiser_form(z) == RG_QUANT_INTEGER, "reduce_scatter: form %d", (int)rg_quantiser_form(z));
    rg_quantiser_destroy(z);
    return rig_gate(m, 0, m->rig->n);
}

Test(quant_forms, choice__by_the_environment__taken_or_refused, .timeout = 60) {
    char good[] = "", bad[] = "=bad";
    setenv("RG_QUANT_ALGORITHM", "reduce_scatter=integer,all_reduce=ring", 1);
    rig_run(3, "inproc", NULL, listed, good);
    setenv("RG_QUANT_ALGORITHM", "all_reduce=rign", 1);
    rig_run(2, "inproc", NULL, listed, bad);
}

Test(quant_forms, choice__by_cost__two_levels_where_the_slow_link_is_shared) {
    uint32_t numbers[40], n = 8;
    rg_near_t near = { numbers, numbers + 8, numbers + 16, numbers + 24, numbers + 32, 2, 4, 8 };
    rg_cost_model_t m = { .alpha = 1e-3, .beta = 8e-9, .gamma = 0.03e-9, .sharing = 1 };
    m.level[0].alpha = 1e-6;
    m.level[0].beta = 0.1e-9;
    cr_assert_eq(rg_form_choose(&near, n, 1 << 20, 1 << 20, &m), RG_QUANT_TWO_LEVEL);
    cr_assert_eq(rg_form_choose(&near, n, 100, 100, &m), RG_QUANT_DIRECT, "a small one takes one round trip less");
    near.widest = 1;
    near.hosts = 8;
    cr_assert_eq(rg_form_choose(&near, n, 1 << 20, 1 << 20, &m), RG_QUANT_DIRECT, "nobody to share a link with");
    near.widest = 8;
    near.hosts = 1;
    m.alpha = m.level[0].alpha;
    m.beta = m.level[0].beta = 1e-9;
    cr_assert_eq(rg_form_choose(&near, n, 1 << 20, 1 << 20, &m), RG_QUANT_DIRECT, "one host with a slow way inside");
    m.beta = m.level[0].beta = 0.02e-9;
    cr_assert_eq(rg_form_choose(&near, n, 1 << 20, 1 << 20, &m), RG_QUANT_TWO_LEVEL, "one host with a fast way inside");
}

Test(quant_forms, heads__any_machine__the_same_bytes) {
    static const uint8_t want[RG_HEAD_BYTES] = { 8,    7,    6,    5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14,
                                                 0x13, 0x12, 0x11, 0, 0, 0, 0, 0, 0,    0xf8, 0x3f, 1 };
    uint8_t got[RG_HEAD_BYTES];
    rg_part_head_t h = { 0x0102030405060708ull, 0x1112131415161718ull, 1.5, 1 };
    rg_part_put_head(got, &h);
    cr_assert(memcmp(got, want, sizeof want) == 0);
    h = rg_part_head(got);
    cr_assert(h.call == 0x0102030405060708ull && h.members == 0x1112131415161718ull && h.bound == 1.5 && h.finite == 1);
    memset(got + 16, 0xff, 8);
    cr_assert(isinf(rg_part_head(got).bound), "a bound that is no number");
}

/* ---- Feedback ---------------------------------------------------------------------------------------------------- */

/* Whatever is encoded on the way, and by whom: what arrived over many rounds and what all still keep make what was put
 * in, up to the owner's rounding of each sum, of which integers have none. */
static int feeds(rig_member_t *m, void *arg) {
    enum { COUNT = 1000, ROUNDS = 20 };
    float in[COUNT], out[COUNT], all[COUNT];
    (void)arg;
    for (uint32_t form = RG_QUANT_DIRECT; form < RG_QUANT_FORM_COUNT; form++) {
        double got[COUNT] = { 0 }, put[COUNT] = { 0 }, drift = 0, plain = 0;
        rg_feedback_t f = RG_FEEDBACK_INIT;
        rg_quantiser_t *z = quantiser(m, RG_WIRE_I4, form, 0, &f);
        for (uint64_t round = 0; round < ROUNDS; round++) {
            for (uint64_t i = 0; i < COUNT; i++) in[i] = value(round, m->index, i);
            for (uint64_t i = 0; i < COUNT; i++) put[i] += sum_of(round, m->rig->n, i);
            if (round % 5 == 2) {
                float keep = in[3];
                if (m->index == 1) in[3] = INFINITY;
                RIG_NEED(m, rg_quant_all_reduce(z, in, out, COUNT, RG_SUM, NULL) == RG_ERR_INVALID, "infinite");
                in[3] = keep;
            }
            RIG_OK(m, rg_quant_all_reduce(z, in, out, COUNT, RG_SUM, NULL));
            for (uint64_t i = 0; i < COUNT; i++) got[i] += (double)out[i];
        }
        RIG_OK(m, rg_all_reduce(m->g, rg_quantiser_kept(z, NULL), all, COUNT, RG_F32, RG_SUM, NULL, NULL));
        for (int i = 0; i < COUNT; i++) {
            drift += fabs(put[i] - got[i] - (double)all[i]) / COUNT;
            plain += fabs(put[i] - got[i]) / COUNT;
        }
        double most = form == RG_QUANT_INTEGER ? 1e-3 : 3.0;
        RIG_NEED(m, drift < most, "%s: %g is missing (%g with what is kept)", rg_quant_form_name(form), drift, plain);
        rg_quantiser_destroy(z);
    }
    return rig_gate(m, 0, m->rig->n); /* who destroys its handle is lost to those whose last call still runs */
}

Test(quant_forms, feedback__all_forms__nothing_lost_and_nothing_twice, .timeout = 100) {
    rig_per_host = 2;
    rig_run(4, "inproc", NULL, feeds, NULL);
}

/* ---- Deaths ------------------------------------------------------------------------------------------------------ */

typedef struct death {
    uint32_t form, count;
    uint64_t after_us; /* from a gate on */
} death_t;

static int loses(rig_member_t *m, void *arg) {
    const death_t *d = arg;
    float *in = malloc(d->count * sizeof *in), *out = malloc(d->count * sizeof *out);
    rg_quantiser_t *z = quantiser(m, RG_WIRE_I8, d->form, 0, NULL);
    int dies = m->index == 1;
    for (uint64_t i = 0; i < d->count; i++) in[i] = value(3, m->index, i);
    RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    if (dies) rig_ends_after(m, d->after_us);
    for (uint32_t after = 0; after < 2;) {
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &r;
        o.on_fault = RG_RETRY;
        rg_status_t st = rg_quant_all_reduce(z, in, out, d->count, RG_SUM, &o);
        if (dies && st != RG_OK) break;
        RIG_NEED(m, st == RG_OK, "%s: %s", rg_status_name(st), rig_errmsg(m));
        for (uint64_t i = 0; i < d->count; i++) {
            double want = 0;
            for (uint32_t j = 0; j < m->rig->n; j++)
                want += j == 1 && r.contributors < m->rig->n ? 0 : (double)value(3, j, i);
            RIG_NEED(m, fabs((double)out[i] - want) <= rg_quantiser_bound(z) + 1e-4, "%u contributors: %g for %g",
                     r.contributors, (double)out[i], want);
        }
        after += r.contributors < m->rig->n;
    }
    if (!dies) RIG_NEED(m, rig_alike(m, out, d->count), "not the same bits everywhere");
    rg_quantiser_destroy(z);
    free(in);
    free(out);
    return 0;
}

Test(quant_forms, reductions__a_member_dies_at_any_moment__the_others_agree, .timeout = 200) {
    rig_per_host = 2;
    for (uint64_t k = 0; k < 16; k++) {
        death_t d = { RG_QUANT_RING + (uint32_t)(k % 3), k % 2 == 0 ? 300 : 30000, 50 + k * 211 };
        rig_run(4, "inproc", NULL, loses, &d);
    }
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static int requests(rig_member_t *m, void *arg) {
    enum { COUNT = 20000, DEPTH = 4 };
    float *in = malloc((size_t)DEPTH * COUNT * sizeof *in), *out = malloc((size_t)DEPTH * COUNT * sizeof *out);
    rg_quant_request_t *req[DEPTH], *none;
    rg_quantiser_t *z = quantiser(m, RG_WIRE_I8, RG_QUANT_AUTO, 0, NULL);
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    RIG_NEED(m, rg_quant_iall_reduce(z, in, out, COUNT, RG_SUM, &o, &none) == RG_ERR_INVALID && none == NULL, "no tag");
    RIG_NEED(m, strstr(rig_errmsg(m), "tag"), "%s", rig_errmsg(m));
    o.tag = 70;
    for (int round = 0; round < 5; round++) {
        for (uint64_t d = 0; d < DEPTH; d++) {
            for (uint64_t i = 0; i < COUNT; i++) in[d * COUNT + i] = value(d, m->index, i);
            RIG_OK(m, rg_quant_iall_reduce(z, in + d * COUNT, out + d * COUNT, COUNT, RG_AVG, &o, &req[d]));
        }
        /* The program's own operations go on meanwhile. */
        for (uint64_t k = 1; k <= 20; k++) {
            uint64_t sum = 0;
            RIG_OK(m, rg_all_reduce(m->g, &k, &sum, 1, RG_U64, RG_SUM, NULL, NULL));
            RIG_NEED(m, sum == k * m->rig->n, "%u", (unsigned)sum);
        }
        for (int d = DEPTH - 1; d >= 0; d--) { /* in another order than they end in */
            rg_result_t r = RG_RESULT_INIT;
            rg_status_t st = RG_AGAIN;
            uint64_t ids[RIG_MAX];
            r.contributor_ids = ids;
            r.contributor_cap = RIG_MAX;
            if (d % 2 == 0) st = rg_quant_wait(req[d], &r);
            else
                while ((st = rg_quant_test(req[d], &r)) == RG_AGAIN) sched_yield();
            RIG_NEED(m, st == RG_OK && r.status == RG_OK && r.contributors == m->rig->n && ids[0] != 0, "%s: %s",
                     rg_status_name(st), r.text);
        }
        for (uint64_t d = 0; d < DEPTH; d++)
            if (!holds(m, z, out + d * COUNT, d, 0, COUNT, RG_AVG, "request")) return 1;
        RIG_NEED(m, rig_alike(m, out, (uint64_t)DEPTH * COUNT), "not the same bits everywhere");
    }
    in[5] = m->index == 1 ? INFINITY : 0;
    rg_result_t r = RG_RESULT_INIT;
    RIG_OK(m, rg_quant_iall_reduce(z, in, out, COUNT, RG_SUM, &o, &none));
    RIG_NEED(m, rg_quant_wait(none, &r) == RG_ERR_INVALID && strstr(r.text, "rank 1"), "%s", r.text);
    RIG_OK(m, rg_quant_ireduce_scatter(z, out, in, COUNT / 3, RG_SUM, &o, &none));
    RIG_OK(m, rg_quant_wait(none, NULL));
    RIG_OK(m, rg_quant_iall_gather(z, in, out, COUNT / 3, &o, &none));
    RIG_OK(m, rg_quant_wait(none, NULL));
    RIG_OK(m, rg_quant_all_reduce(z, in, out, COUNT, RG_SUM, NULL));
    rg_quantiser_destroy(z);
    free(in);
    free(out);
    return rig_gate(m, 0, m->rig->n);
}

Test(quant_forms, requests__beside_other_operations__as_blocking_calls, .timeout = 100) {
    rig_run(3, "inproc", NULL, requests, NULL);
}

/* A blocking call on a quantiser with a request is refused; destroying it ends what has not begun. */
static int busy(rig_member_t *m, void *arg) {
    float in[64] = { 0 }, out[64];
    rg_quant_request_t *req;
    rg_quantiser_t *z = quantiser(m, RG_WIRE_I8, RG_QUANT_AUTO, 0, NULL);
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    o.tag = 9;
    if (m->index == 0) {
        RIG_OK(m, rg_quant_iall_reduce(z, in, out, 64, RG_SUM, &o, &req));
        RIG_NEED(m, rg_quant_all_reduce(z, in, out, 64, RG_SUM, NULL) == RG_ERR_INVALID, "not busy");
        RIG_NEED(m, rg_quant_test(req, NULL) == RG_AGAIN, "it cannot have ended");
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            _exit(rg_quant_all_reduce(z, in, out, 64, RG_SUM, NULL) != RG_ERR_CLOSED);
        }
        RIG_NEED(m, child > 0 && waitpid(child, &status, 0) == child && status == 0, "a child ended with %#x", status);
    }
    RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    if (m->index != 0) RIG_OK(m, rg_quant_iall_reduce(z, in, out, 64, RG_SUM, &o, &req));
    RIG_OK(m, rg_quant_wait(req, NULL));
    o.timeout_ms = 200;
    if (m->index == 0) { /* nobody else calls these: one ends by its deadline, the other never begins */
        RIG_OK(m, rg_quant_iall_reduce(z, in, out, 64, RG_SUM, &o, &req));
        RIG_OK(m, rg_quant_iall_reduce(z, in, out, 64, RG_SUM, &o, &req));
    }
    rg_quantiser_destroy(z);
    return rig_gate(m, 1, m->rig->n);
}

Test(quant_forms, requests__of_a_busy_quantiser__refused_or_ended_with_it, .timeout = 60) {
    rig_run(2, "inproc", NULL, busy, NULL);
}
