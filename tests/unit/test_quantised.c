/* test_quantised.c: quantised collectives on groups of threads: values within the bound, equal bits on all members,
 * calls that differ, what is not finite, error feedback that counts only what succeeded, and members that die at any
 * moment. Inputs are computed from a seed, so that every element is checked. Relies on engine_rig.h. */
#include "engine_rig.h"

#include "regroup_quant.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static float value(uint64_t seed, uint32_t member, uint64_t i) {
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + member * 0xbf58476d1ce4e5b9ull + i * 0x94d049bb133111ebull;
    double sum = 0;
    for (int k = 0; k < 4; k++) sum += (double)(rig_random(&x) >> 40) * 0x1p-24;
    return (float)(sum - 2);
}

/* ---- Values
 * ----------------------------------------------------------------------------------------------------------- */

static const uint64_t counts[] = { 0, 1, 2, 63, 64, 65, 300, 1000, 4097, 20011 };

static int reduces(rig_member_t *m, void *arg) {
    uint32_t n = m->rig->n;
    (void)arg;
    float *in = malloc(8 * 20011 * sizeof *in), *out = malloc(8 * 20011 * sizeof *out);
    for (int wire = 1; wire < RG_WIRE_COUNT; wire++) {
        rg_quant_t q = RG_QUANT_INIT((rg_wire_t)wire);
        rg_quantiser_t *z = NULL;
        q.flags = wire % 2 != 0 ? RG_QUANT_STOCHASTIC : 0;
        q.seed = m->index;
        RIG_OK(m, rg_quantiser_create(m->g, &q, NULL, &z, NULL));
        for (uint32_t k = 0; k < 2 * sizeof counts / sizeof *counts; k++) {
            uint64_t count = counts[k / 2];
            rg_op_t op = k % 2 != 0 ? RG_AVG : RG_SUM;
            float *to = k % 3 == 0 ? in : out;
            rg_result_t r = RG_RESULT_INIT;
            rg_opts_t o = RG_OPTS_INIT;
            o.result = &r;
            for (uint64_t i = 0; i < count; i++) in[i] = value(k, m->index, i);
            RIG_OK(m, rg_quant_all_reduce(z, in, to, count, op, &o));
            RIG_NEED(m, r.status == RG_OK && r.contributors == n && r.retries == 0, "%u contributors", r.contributors);
            double bound = rg_quantiser_bound(z);
            for (uint64_t i = 0; i < count; i++) {
                double want = 0;
                for (uint32_t j = 0; j < n; j++) want += (double)value(k, j, i);
                if (op == RG_AVG) want /= n;
                RIG_NEED(m, fabs((double)to[i] - want) <= bound * (1 + 1e-6) + 1e-5,
                         "%s, %u members, element %u of %u: %g for %g, bound %g", rg_wire_name(q.wire), n, (unsigned)i,
                         (unsigned)count, (double)to[i], want, bound);
            }
            RIG_NEED(m, rig_alike(m, to, count), "%s: not the same bits everywhere", rg_wire_name(q.wire));
        }
        rg_quantiser_destroy(z);
    }
    free(in);
    free(out);
    return 0;
}

Test(quantised, all_reduce__all_forms_counts_and_group_sizes__within_the_bound_and_alike, .timeout = 200) {
    for (uint32_t n = 1; n <= 5; n++) rig_run(n, "inproc", NULL, reduces, NULL);
}

static int others(rig_member_t *m, void *arg) {
    enum { COUNT = 777 };
    uint32_t n = m->rig->n;
    static const rg_wire_t wires[] = { RG_WIRE_I8, RG_WIRE_MXFP4, RG_WIRE_F16, RG_WIRE_TERNARY };
    float *in = malloc((size_t)n * COUNT * sizeof *in), *out = malloc((size_t)n * COUNT * sizeof *out);
    (void)arg;
    for (int k = 0; k < 4; k++) {
        rg_quant_t q = RG_QUANT_INIT(wires[k]);
        rg_quantiser_t *z = NULL;
        RIG_OK(m, rg_quantiser_create(m->g, &q, NULL, &z, NULL));
        for (uint64_t i = 0; i < (uint64_t)n * COUNT; i++) in[i] = value(7, m->index, i);
        RIG_OK(m, rg_quant_reduce_scatter(z, in, out, COUNT, RG_SUM, NULL));
        for (uint64_t i = 0; i < COUNT; i++) {
            double want = 0;
            for (uint32_t j = 0; j < n; j++) want += (double)value(7, j, m->index * COUNT + i);
            RIG_NEED(m, fabs((double)out[i] - want) <= rg_quantiser_bound(z) + 1e-5, "reduce_scatter: %g for %g",
                     (double)out[i], want);
        }
        RIG_OK(m, rg_quant_all_gather(z, in, out, COUNT, NULL));
        for (uint32_t j = 0; j < n; j++)
            for (uint64_t i = 0; i < COUNT; i++)
                RIG_NEED(m, fabs((double)out[j * COUNT + i] - (double)value(7, j, i)) <= rg_quantiser_bound(z),
                         "all_gather: rank %u", j);
        RIG_NEED(m, rig_alike(m, out, (uint64_t)n * COUNT), "all_gather: not the same bits everywhere");
        rg_quantiser_destroy(z);
    }
    free(in);
    free(out);
    return 0;
}

Test(quantised, reduce_scatter_and_all_gather__four_forms__within_the_bound, .timeout = 100) {
    rig_run(3, "inproc", NULL, others, NULL);
}

/* The relative root mean square of the error of a sum that users are told to expect. */
static int precise(rig_member_t *m, void *arg) {
    enum { COUNT = 1 << 16 };
    static const struct {
        rg_wire_t wire;
        double most;
    } table[] = {
        { RG_WIRE_I8, 1.1e-2 }, { RG_WIRE_I4, .15 },      { RG_WIRE_E4M3, .04 },
        { RG_WIRE_E5M2, .075 }, { RG_WIRE_BF16, 2.5e-3 }, { RG_WIRE_MXFP4, .17 },
    };
    float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out);
    double *want = calloc(COUNT, sizeof *want);
    (void)arg;
    for (uint32_t j = 0; j < m->rig->n; j++) {
        uint64_t x = 99 + j;
        for (uint64_t i = 0; i < COUNT; i++) {
            double sum = 0;
            for (int k = 0; k < 12; k++) sum += (double)(rig_random(&x) >> 40) * 0x1p-24;
            if (j == m->index) in[i] = (float)(sum - 6);
            want[i] += (double)(float)(sum - 6);
        }
    }
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        rg_quant_t q = RG_QUANT_INIT(table[k].wire);
        rg_quantiser_t *z = NULL;
        double error = 0, all = 0;
        RIG_OK(m, rg_quantiser_create(m->g, &q, NULL, &z, NULL));
        RIG_OK(m, rg_quant_all_reduce(z, in, out, COUNT, RG_SUM, NULL));
        for (uint64_t i = 0; i < COUNT; i++) {
            error += ((double)out[i] - want[i]) * ((double)out[i] - want[i]);
            all += want[i] * want[i];
        }
        RIG_NEED(m, sqrt(error / all) <= table[k].most, "%s: %.5f", rg_wire_name(q.wire), sqrt(error / all));
        rg_quantiser_destroy(z);
    }
    free(in);
    free(out);
    free(want);
    return 0;
}

Test(quantised, all_reduce__normal_data_of_eight_members__error_as_small_as_stated, .timeout = 100) {
    rig_run(8, "inproc", NULL, precise, NULL);
}

/* ---- Calls that are wrong
 * --------------------------------------------------------------------------------------------- */

static int wrong(rig_member_t *m, void *arg) {
    float in[256], out[256];
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I8), other = RG_QUANT_INIT(m->index == 1 ? RG_WIRE_E4M3 : RG_WIRE_I8_MINMAX);
    rg_quantiser_t *z = NULL, *y = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    for (int i = 0; i < 256; i++) in[i] = (float)i, out[i] = -1;
    RIG_OK(m, rg_quantiser_create(m->g, &q, NULL, &z, NULL));
    RIG_OK(m, rg_quantiser_create(m->g, &other, NULL, &y, NULL));
    /* E4M3 and minmax differ in size for one block, so the group's own check finds it; operators differ in nothing. */
    RIG_NEED(m, rg_quant_all_reduce(y, in, out, 256, RG_SUM, NULL) == RG_ERR_MISMATCH, "forms: %s", rig_errmsg(m));
    rg_op_t op = m->index == 2 ? RG_AVG : RG_SUM;
    RIG_NEED(m, rg_quant_all_reduce(z, in, out, 256, op, NULL) == RG_ERR_MISMATCH, "operators: %s", rig_errmsg(m));
    RIG_NEED(m, rg_quant_all_reduce(z, in, out, m->index == 0 ? 255 : 256, RG_SUM, NULL) == RG_ERR_MISMATCH, "counts");
    if (m->index == 2) in[7] = NAN;
    RIG_NEED(m, rg_quant_all_reduce(z, in, out, 256, RG_SUM, NULL) == RG_ERR_INVALID, "NaN: %s", rig_errmsg(m));
    RIG_NEED(m, strstr(rig_errmsg(m), "rank 2") != NULL || m->index == 2, "%s", rig_errmsg(m));
    if (m->index == 2) in[7] = 1;
    for (int i = 0; i < 256; i++) RIG_NEED(m, out[i] == -1.0f, "output written");
    RIG_NEED(m, rg_quant_all_reduce(z, in, out, 256, RG_MAX, NULL) == RG_ERR_NOTSUP, "max");
    RIG_NEED(m, rg_quant_all_reduce(z, NULL, out, 256, RG_SUM, NULL) == RG_ERR_INVALID, "NULL");
    RIG_NEED(m, rg_quant_all_reduce(NULL, in, out, 256, RG_SUM, NULL) == RG_ERR_INVALID, "no quantiser");
    o.scale = 2;
    RIG_NEED(m, rg_quant_all_reduce(z, in, out, 256, RG_SUM, &o) == RG_ERR_NOTSUP, "scale");
    RIG_NEED(m, rg_quant_all_reduce(z, in, out, UINT64_MAX / 8, RG_SUM, NULL) == RG_ERR_INVALID, "huge");
    RIG_OK(m, rg_quant_all_reduce(z, in, out, 256, RG_SUM, NULL));
    rg_quantiser_destroy(z);
    rg_quantiser_destroy(y);
    q.wire = (rg_wire_t)99;
    rg_error_t err;
    RIG_NEED(m, rg_quantiser_create(m->g, &q, NULL, &z, &err) == RG_ERR_INVALID && strstr(err.text, "99"), "%s",
             err.text);
    return 0;
}

Test(quantised, calls__that_differ_or_are_wrong__refused_alike_and_nothing_written, .timeout = 100) {
    rig_run(3, "inproc", NULL, wrong, NULL);
}

/* One member does not call: the others' deadline is that of the whole call, whatever it is made of. */
static int late(rig_member_t *m, void *arg) {
    float in[64] = { 0 }, out[64];
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I8);
    rg_quantiser_t *z = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    RIG_OK(m, rg_quantiser_create(m->g, &q, NULL, &z, NULL));
    o.timeout_ms = 300;
    /* The others end with whoever's time is over first. */
    RIG_NEED(m, rig_gate(m, 1, m->rig->n) == 0, "gate");
    if (m->index != 1) {
        uint64_t from = rig_now();
        rg_status_t st = rg_quant_all_reduce(z, in, out, 64, RG_SUM, &o);
        uint64_t took = (rig_now() - from) / 1000000;
        RIG_NEED(m, st == RG_ERR_TIMEOUT, "%s: %s", rg_status_name(st), rig_errmsg(m));
        RIG_NEED(m, took >= 200 && (double)took < 300 + 2000 * RIG_SLOW + rig_late_ms(from), "after %u ms",
                 (unsigned)took);
    }
    RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    rg_quantiser_destroy(z);
    return 0;
}

Test(quantised, calls__of_which_one_is_missing__end_by_the_deadline, .timeout = 60) {
    rig_run(3, "inproc", NULL, late, NULL);
}

/* ---- Error feedback
 * ---------------------------------------------------------------------------------------------------- */

/* What was received over many rounds comes to what was put in, up to what is still kept: nothing is lost, and nothing
 * counts twice, a failed call in between included. */
static int feeds(rig_member_t *m, void *arg) {
    enum { COUNT = 200, ROUNDS = 40 };
    float in[COUNT], out[COUNT];
    double got[COUNT] = { 0 }, put[COUNT] = { 0 };
    uint32_t n = m->rig->n;
    uint64_t have = 0;
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I4);
    rg_feedback_t f = RG_FEEDBACK_INIT;
    rg_quantiser_t *z = NULL;
    (void)arg;
    RIG_OK(m, rg_quantiser_create(m->g, &q, &f, &z, NULL));
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++) {
            in[i] = value((uint64_t)round, m->index, (uint64_t)i);
            for (uint32_t j = 0; j < n; j++) put[i] += (double)value((uint64_t)round, j, (uint64_t)i);
        }
        if (round % 5 == 2) {
            float keep = in[3];
            if (m->index == 1) in[3] = INFINITY;
            RIG_NEED(m, rg_quant_all_reduce(z, in, out, COUNT, RG_SUM, NULL) == RG_ERR_INVALID, "infinite");
            in[3] = keep;
        }
        RIG_OK(m, rg_quant_all_reduce(z, in, out, COUNT, RG_SUM, NULL));
        for (int i = 0; i < COUNT; i++) got[i] += (double)out[i];
    }
    float *kept = rg_quantiser_kept(z, &have), all[COUNT];
    RIG_NEED(m, kept != NULL && have == COUNT, "%u are kept", (unsigned)have);
    RIG_OK(m, rg_all_reduce(m->g, kept, all, COUNT, RG_F32, RG_SUM, NULL, NULL));
    /* The owner's rounding of the sum is not fed back: each round may add it, but it does not grow with the members. */
    double drift = 0, plain = 0;
    for (int i = 0; i < COUNT; i++) {
        drift += fabs(put[i] - got[i] - (double)all[i]) / COUNT;
        plain += fabs(put[i] - got[i]) / COUNT;
    }
    RIG_NEED(m, drift < 2.5, "%g is missing after %d rounds (%g with what is kept)", drift, ROUNDS, plain);
    RIG_OK(m, rg_quantiser_keep(z, 7));
    RIG_NEED(m, rg_quantiser_kept(z, &have)[6] == 0.0f && have == 7, "keep");
    rg_quantiser_destroy(z);
    return 0;
}

Test(quantised, feedback__failed_calls_in_between__nothing_lost_and_nothing_twice, .timeout = 100) {
    rig_run(3, "inproc", NULL, feeds, NULL);
}

/* One contribution alone: what it says over many rounds is what it has, to a unit in the last place. */
static int identity(rig_member_t *m, void *arg) {
    enum { COUNT = 64 };
    float in[COUNT], out[2 * COUNT], before[COUNT];
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I2);
    rg_feedback_t f = RG_FEEDBACK_INIT;
    rg_quantiser_t *z = NULL;
    (void)arg;
    RIG_OK(m, rg_quantiser_create(m->g, &q, &f, &z, NULL));
    memset(before, 0, sizeof before);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < COUNT; i++) in[i] = value((uint64_t)round, m->index, (uint64_t)i);
        RIG_OK(m, rg_quant_all_gather(z, in, out, COUNT, NULL));
        const float *kept = rg_quantiser_kept(z, NULL), *mine = out + m->index * COUNT;
        for (int i = 0; i < COUNT; i++) {
            float whole = before[i] + in[i], back = mine[i] + kept[i];
            RIG_NEED(m, fabsf(whole - back) <= fabsf(whole) * 0x1p-23f + fabsf(mine[i]) * 0x1p-23f, "%g is %g",
                     (double)whole, (double)back);
            before[i] = kept[i];
        }
    }
    rg_quantiser_destroy(z);
    return 0;
}

Test(quantised, feedback__gathered__what_was_said_and_what_is_kept_make_the_whole, .timeout = 100) {
    rig_run(2, "inproc", NULL, identity, NULL);
}

/* ---- Newcomers --------------------------------------------------------------------------------------------------- */

/* A view of newcomers has an epoch of its own, and the operations in it go on in that of the data. */
static int grows(rig_member_t *m, void *arg) {
    uint64_t one = 1, sum = 0, until = rig_now() + 30000000000ull * RIG_SLOW;
    int fresh = m->index == m->rig->n - 1;
    float in[300], out[300];
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I8);
    rg_quantiser_t *z = NULL;
    (void)arg;
    if (fresh) {
        RIG_OK(m, rg_group_leave(m->g));
        rg_group_destroy(m->g);
        m->g = rig_join(m, 1);
        RIG_NEED(m, m->g, "cannot join again");
    }
    for (; sum != m->rig->n && rig_now() < until; fresh = 0) {
        if (!fresh) RIG_OK(m, rg_group_boundary(m->g, NULL));
        RIG_OK(m, rg_all_reduce(m->g, &one, &sum, 1, RG_U64, RG_SUM, NULL, NULL));
    }
    RIG_NEED(m, sum == m->rig->n, "%u members", (unsigned)sum);
    RIG_OK(m, rg_quantiser_create(m->g, &q, NULL, &z, NULL));
    for (int k = 0; k < 300; k++) in[k] = (float)k;
    for (int again = 0; again < 2; again++) {
        rg_opts_t o = RG_OPTS_INIT;
        o.on_fault = again ? RG_RETRY : RG_RETURN;
        RIG_OK(m, rg_quant_all_reduce(z, in, out, 300, RG_AVG, &o));
        for (int k = 0; k < 300; k++)
            RIG_NEED(m, fabs((double)out[k] - k) <= rg_quantiser_bound(z) + 1e-3, "element %d: %g", k, (double)out[k]);
        RIG_OK(m, rg_quant_reduce_scatter(z, in, out, 300 / m->rig->n, RG_SUM, &o));
        RIG_OK(m, rg_quant_all_gather(z, in, out, 300 / m->rig->n, &o));
    }
    rg_quantiser_destroy(z);
    /* Who destroys its handle is lost to those whose last call, which is not one that is made again, still runs. */
    return rig_gate(m, 0, m->rig->n);
}

Test(quantised, calls__after_a_newcomer_has_entered__succeed, .timeout = 100) {
    rig_run(3, "inproc", NULL, grows, NULL);
}

/* ---- Deaths
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct death {
    uint32_t count;
    rg_on_fault_t on_fault;
    uint64_t after_us; /* from a gate on */
} death_t;

static int loses(rig_member_t *m, void *arg) {
    const death_t *d = arg;
    float *in = malloc(d->count * sizeof *in), *out = malloc(d->count * sizeof *out);
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I8);
    rg_quantiser_t *z = NULL;
    uint32_t last = m->rig->n;
    int dies = m->index == 1, rounds = 0;
    RIG_OK(m, rg_quantiser_create(m->g, &q, NULL, &z, NULL));
    for (uint64_t i = 0; i < d->count; i++) in[i] = value(3, m->index, i);
    RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    if (dies) rig_ends_after(m, d->after_us);
    for (uint32_t after = 0; after < 3; rounds++) {
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        uint64_t ids[RIG_MAX];
        o.result = &r;
        o.on_fault = d->on_fault;
        r.contributor_ids = ids;
        r.contributor_cap = RIG_MAX;
        rg_status_t st = rg_quant_all_reduce(z, in, out, d->count, RG_SUM, &o);
        if (dies && st != RG_OK) break;
        RIG_NEED(m, st == RG_OK || (st == RG_ERR_PEER_LOST && d->on_fault == RG_RETURN), "%s: %s", rg_status_name(st),
                 rig_errmsg(m));
        for (uint64_t i = 0; i < d->count; i++) RIG_NEED(m, in[i] == value(3, m->index, i), "the input was changed");
        if (st != RG_OK) continue;
        double bound = rg_quantiser_bound(z) * (1 + 1e-6) + 1e-4;
        for (uint64_t i = 0; i < d->count; i++) {
            double want = 0;
            for (uint32_t j = 0; j < m->rig->n; j++)
                want += j == 1 && r.contributors < m->rig->n ? 0 : (double)value(3, j, i);
            RIG_NEED(m, fabs((double)out[i] - want) <= bound, "%u contributors, element %u: %g for %g", r.contributors,
                     (unsigned)i, (double)out[i], want);
        }
        last = r.contributors;
        after += last < m->rig->n;
    }
    if (!dies)
        RIG_NEED(m, rig_alike(m, out, d->count) && last == m->rig->n - 1, "not the same bits everywhere after %d",
                 rounds);
    rg_quantiser_destroy(z);
    free(in);
    free(out);
    return 0;
}

Test(quantised, all_reduce__a_member_dies_at_any_moment__the_others_agree, .timeout = 200) {
    for (uint64_t k = 0; k < 24; k++) {
        death_t d = { k % 3 == 0 ? 100 : 50000, k % 2 == 0 ? RG_RETRY : RG_RETURN, 50 + k * 173 };
        rig_run(4, "inproc", NULL, loses, &d);
    }
}
