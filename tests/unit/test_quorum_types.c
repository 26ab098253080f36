/* test_quorum_types.c: quorum reductions of other types than f32: their sums and averages against exact ones, 16-bit
 * floats rounded once, what is carried of integers, and what is refused. Relies on engine_rig.h and src/quorum. */
#include "engine_rig.h"

#include "engine/lifecycle.h"
#include "os/os.h"
#include "quorum/quorum.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 700 };

static const rg_dtype_t types[] = { RG_F16, RG_BF16, RG_F32, RG_F64, RG_I32, RG_U32, RG_I64, RG_U64 };
#define TYPES (sizeof types / sizeof *types)

/* A small whole number as an element: of the 16-bit floats those have an exact form, built here by hand. */
static void set(rg_dtype_t t, void *x, uint64_t i, int v) {
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = bits >> 31, e = bits >> 23 & 0xff, half = v ? (e - 112) << 10 | (bits >> 13 & 0x3ff) : 0;
    if (t == RG_F16) ((uint16_t *)x)[i] = (uint16_t)(sign << 15 | half);
    if (t == RG_BF16) ((uint16_t *)x)[i] = (uint16_t)(bits >> 16);
    if (t == RG_F32) ((float *)x)[i] = f;
    if (t == RG_F64) ((double *)x)[i] = v;
    if (t == RG_I32 || t == RG_U32) ((uint32_t *)x)[i] = (uint32_t)v;
    if (t == RG_I64 || t == RG_U64) ((uint64_t *)x)[i] = (uint64_t)(int64_t)v;
}

/* In f64, exactly; integers by their low 32 bits, signed. */
static double get(rg_dtype_t t, const void *x, uint64_t i) {
    uint32_t bits = t == RG_BF16 ? (uint32_t)((const uint16_t *)x)[i] << 16 : 0;
    float f;
    memcpy(&f, &bits, sizeof f);
    if (t == RG_BF16) return (double)f;
    if (t == RG_F32) return (double)((const float *)x)[i];
    if (t == RG_F64) return ((const double *)x)[i];
    if (t == RG_I32 || t == RG_U32) return (double)(int32_t)((const uint32_t *)x)[i];
    if (t == RG_I64 || t == RG_U64) return (double)((const int64_t *)x)[i];
    uint16_t h = ((const uint16_t *)x)[i];
    double m = (h >> 10 & 31) ? 1024 + (h & 1023) : h & 1023;
    return (h >> 15 ? -1 : 1) * ldexp(m, (h >> 10 & 31) ? (h >> 10 & 31) - 25 : -24);
}

static int element(uint32_t member, uint64_t round, uint64_t i) {
    return (int)(member * 3 + round + i % 5) * (i % 2 ? -1 : 1);
}

static int sums(rig_member_t *m, void *arg) {
    rg_quorum_config_t c = *(const rg_quorum_config_t *)arg;
    static _Thread_local uint64_t x[COUNT], out[COUNT];
    rg_quorum_input_t in = RG_QUORUM_INPUT_INIT;
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    rg_quorum_t *q;
    RIG_OK(m, rg_quorum_create(m->g, &c, &q, NULL));
    in.weighted = 1;
    in.weight = m->index + 1;
    for (uint64_t round = 1; round <= 3; round++) {
        for (uint64_t i = 0; i < COUNT; i++) set(c.dtype, x, i, element(m->index, round, i));
        RIG_OK(m, rg_quorum_reduce(q, x, out, &in, 0, &r));
        for (uint64_t i = 0; i < COUNT; i++) {
            double want = 0, weights = 0, eps = c.dtype == RG_BF16 ? 0x1p-8 : c.dtype == RG_F16 ? 0x1p-11 : 0x1p-24;
            for (uint32_t k = 0; k < m->rig->n; k++) {
                want += (double)(k + 1) * element(k, round, i);
                weights += k + 1;
            }
            if (c.op == RG_AVG) want /= weights;
            if (rg_numbers_whole(c.dtype)) eps = 0;
            RIG_NEED(m, fabs(get(c.dtype, out, i) - want) <= eps * fabs(want), "%s, element %u: %g for %g",
                     rg_dtype_name(c.dtype), (unsigned)i, get(c.dtype, out, i), want);
        }
    }
    if (rig_gate(m, 0, m->rig->n)) return 1;
    rg_quorum_destroy(q);
    return 0;
}

static rg_quorum_config_t config(rg_dtype_t t, rg_op_t op) {
    rg_quorum_config_t c = RG_QUORUM_CONFIG_INIT;
    c.count = COUNT;
    c.dtype = t;
    c.op = op;
    c.at_least = 3;
    return c;
}

Test(quorum_types, every_type__weighted_sums_and_averages__exact, .timeout = 60) {
    for (uint32_t k = 0; k < TYPES; k++)
        for (int avg = 0; avg <= !rg_numbers_whole(types[k]); avg++) {
            rg_quorum_config_t c = config(types[k], avg ? RG_AVG : RG_SUM);
            rig_run(3, "inproc", NULL, sums, &c);
        }
}

/* Sums that lie a little beside the middle of two neighbours: by way of f32 they would become the middle first. */
Test(quorum_types, sixteen_bits__beside_the_middle__rounded_once) {
    static const struct {
        rg_dtype_t t;
        double v;
        uint16_t bits;
    } cases[] = {
        { RG_F16, 1 + 0x1p-11 + 0x1p-40, 0x3c01 },
        { RG_F16, 1 + 0x1p-11 - 0x1p-40, 0x3c00 },
        { RG_F16, 1 + 0x1p-11, 0x3c00 },
        { RG_F16, 1 + 3 * 0x1p-11 - 0x1p-40, 0x3c01 },
        { RG_F16, -1 - 0x1p-11 - 0x1p-40, 0xbc01 },
        { RG_F16, 65520 - 0x1p-30, 0x7bff },
        { RG_F16, 65520, 0x7c00 },
        { RG_F16, 1e300, 0x7c00 },
        { RG_F16, 0x1p-25 + 0x1p-60, 0x0001 },
        { RG_F16, 0x1p-25, 0x0000 },
        { RG_BF16, 1 + 0x1p-8 + 0x1p-40, 0x3f81 },
        { RG_BF16, 1 + 0x1p-8 - 0x1p-40, 0x3f80 },
        { RG_BF16, -1e300, 0xff80 },
        { RG_BF16, 1 + 3 * 0x1p-8 - 0x1p-45, 0x3f81 },
    };
    for (uint32_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        rg_numbers_t b;
        uint16_t got = 0;
        rg_numbers_clear(&b);
        b.f[0] = cases[k].v;
        rg_numbers_put(cases[k].t, &b, &got, 0, 1, 1);
        cr_assert(got == cases[k].bits, "case %u: %.20g becomes %04x, not %04x", k, cases[k].v, got, cases[k].bits);
    }
}

static int line_ask(rg_port_t *p, uint64_t peer, const rg_sask_t *q, uint32_t answer_len) {
    (void)p, (void)peer, (void)q, (void)answer_len;
    return 0;
}

/* What is late of integers is added to what comes, exactly, whatever the weights; of floats their average is taken. */
Test(quorum_types, carried__every_type__added_by_weight) {
    static const rg_service_line_t line = { .ask = line_ask };
    uint64_t x[COUNT], late[COUNT];
    for (uint32_t k = 0; k < TYPES; k++) {
        rg_quorum_config_t c = config(types[k], RG_SUM);
        rg_quorum_input_t in = RG_QUORUM_INPUT_INIT;
        rg_service_t sv = { .line = &line };
        rg_group_t *g = calloc(1, sizeof *g);
        rg_quorum_t *q = rg_quorum_new(&c);
        g->forks = rg_os_forks();
        sv.g = g;
        pthread_mutex_init(&sv.lock, NULL);
        pthread_cond_init(&sv.cond, NULL);
        q->port.sv = &sv;
        in.weighted = 1;
        in.weight = 3;
        for (uint64_t i = 0; i < COUNT; i++) {
            set(c.dtype, x, i, (int)(i % 7));
            set(c.dtype, late, i, rg_numbers_whole(c.dtype) ? 5 * 9 : 9);
        }
        q->carry = rg_gift_new(1, q->bytes);
        q->carry->weight = 5;
        q->carry->version = 1;
        memcpy(q->carry->data, late, q->bytes);
        cr_assert(rg_quorum_begin(q, x, &in) == RG_OK);
        cr_assert(q->mine->weight == 8);
        for (uint64_t i = 0; i < COUNT; i++) {
            double sum = 3 * (double)(i % 7) + 5 * 9, is = get(c.dtype, q->mine->data, i);
            if (!rg_numbers_whole(c.dtype)) is *= 8;
            cr_assert(fabs(is - sum) <= 0x1p-8 * sum * !rg_numbers_whole(c.dtype), "%s: %g for %g",
                      rg_dtype_name(c.dtype), is, sum);
        }
        rg_quorum_free(q);
        pthread_cond_destroy(&sv.cond);
        pthread_mutex_destroy(&sv.lock);
        free(g);
    }
}

static int refusals(rig_member_t *m, void *arg) {
    rg_quorum_t *q;
    rg_error_t err;
    uint64_t x[COUNT] = { 0 };
    rg_quorum_config_t c = config(RG_I64, RG_SUM);
    rg_quorum_input_t in = RG_QUORUM_INPUT_INIT;
    (void)arg;
    RIG_OK(m, rg_quorum_create(m->g, &c, &q, NULL));
    in.weighted = 1;
    in.weight = 1.5;
    RIG_NEED(m, rg_quorum_begin(q, x, &in) == RG_ERR_INVALID, "half a weight");
    in.weight = 0x1p33;
    RIG_NEED(m, rg_quorum_begin(q, x, &in) == RG_ERR_INVALID, "a weight beyond 2^32");
    rg_quorum_destroy(q);
    c.op = RG_AVG;
    rg_status_t st = rg_quorum_create(m->g, &c, &q, &err);
    RIG_NEED(m, st == RG_ERR_NOTSUP && strstr(err.text, "weight_sum"), "%s", err.text);
    c.op = RG_SUM;
    c.dtype = RG_F8E4M3;
    RIG_NEED(m, rg_quorum_create(m->g, &c, &q, &err) == RG_ERR_NOTSUP && strstr(err.text, "f8"), "%s", err.text);
    c.dtype = (rg_dtype_t)77;
    RIG_NEED(m, rg_quorum_create(m->g, &c, &q, &err) == RG_ERR_NOTSUP, "%s", err.text);
    return 0;
}

Test(quorum_types, integers__weights_and_averages__refused) { rig_run(1, "inproc", NULL, refusals, NULL); }

/* Members of different types do not add up each other's bytes, and both are told so: whoever has another type than the
 * one who decides, and the one who decides, with a grace window that would be long, or with a takeover. */
static int differs(rig_member_t *m, void *arg) {
    rg_quorum_config_t c = config(m->index ? RG_I32 : RG_F32, RG_SUM);
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    uint32_t x[COUNT] = { 0 }, out[COUNT];
    rg_quorum_t *q;
    c.at_least = *(const uint32_t *)arg;
    c.grace_us = 1000000000;
    RIG_OK(m, rg_quorum_create(m->g, &c, &q, NULL));
    if (!m->index && rig_gate(m, 0, 2)) return 1;
    rg_status_t st = rg_quorum_reduce(q, x, out, NULL, 20000, &r);
    RIG_NEED(m, st == RG_ERR_MISMATCH && strstr(r.text, "another configuration"), "%s: %s", rg_status_name(st), r.text);
    if (m->index && rig_gate(m, 0, 2)) return 1;
    if (rig_gate(m, 1, 2)) return 1;
    rg_quorum_destroy(q);
    return 0;
}

static void run_differs(uint32_t at_least) { rig_run(2, "inproc", NULL, differs, &at_least); }

Test(quorum_types, another_type_on_one_member__one_is_enough__mismatch_on_both) { run_differs(1); }
Test(quorum_types, another_type_on_one_member__two_are_needed__mismatch_on_both) { run_differs(2); }
