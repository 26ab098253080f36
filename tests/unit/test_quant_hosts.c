/* test_quant_hosts.c: quantised gathers and reductions of members that share hosts: bit for bit what the description of
 * two levels says, gathers alike by every algorithm, bytes each way, and members that die in the middle. Relies on
 * engine_rig.h, whose rig_per_host says who shares a host. */
#include "engine_rig.h"
#include "regroup_quant.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float value(uint32_t member, uint64_t i) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + member * 0xbf58476d1ce4e5b9ull;
    return (float)((double)(rig_random(&x) >> 40) * 0x1p-22 - 2);
}

static rg_quantiser_t *quantiser(rig_member_t *m, rg_wire_t wire, uint32_t form) {
    rg_quant_t q = RG_QUANT_INIT(wire);
    rg_quantiser_t *z = NULL;
    rg_error_t err;
    q.form = form;
    if (rg_quantiser_create(m->g, &q, NULL, &z, &err) != RG_OK) rig_complain(m, __FILE__, __LINE__, "%s", err.text);
    return z;
}

/* What v becomes on its way. */
static void on_the_way(rg_wire_t wire, float *v, uint64_t n) {
    rg_quant_t q = RG_QUANT_INIT(wire);
    void *w = malloc(rg_quant_bytes(wire, n) + 1);
    rg_quant_encode(&q, 0, 0, v, n, w);
    rg_quant_decode(wire, w, n, v);
    free(w);
}

static const rg_wire_t wires[] = { RG_WIRE_I8, RG_WIRE_BF16, RG_WIRE_I4, RG_WIRE_MXFP4 };
static const uint64_t counts[] = { 1, 255, 1000, 5003 };
enum { LONGEST = 5003 };

/* ---- Gathers ----------------------------------------------------------------------------------------------------- */

static int gathers(rig_member_t *m, void *arg) {
    float *in = malloc(LONGEST * sizeof *in), *out = malloc(RIG_MAX * LONGEST * sizeof *out);
    float *want = malloc(LONGEST * sizeof *want);
    (void)arg;
    for (uint32_t k = 0; k < 16; k++) {
        rg_wire_t wire = wires[k % 4];
        uint64_t count = counts[k / 4];
        rg_quantiser_t *z = quantiser(m, wire, RG_QUANT_AUTO);
        RIG_NEED(m, z != NULL, "no quantiser");
        for (uint64_t i = 0; i < count; i++) in[i] = value(m->index, i);
        RIG_OK(m, rg_quant_all_gather(z, in, out, count, NULL));
        for (uint32_t j = 0; j < m->rig->n; j++) {
            for (uint64_t i = 0; i < count; i++) want[i] = value(j, i);
            on_the_way(wire, want, count);
            RIG_NEED(m, memcmp(out + j * count, want, count * sizeof *want) == 0, "%s, %u elements: segment %u",
                     rg_wire_name(wire), (unsigned)count, j);
        }
        rg_quantiser_destroy(z);
    }
    free(in), free(out), free(want);
    return rig_gate(m, 0, m->rig->n);
}

Test(quant_forms, gathers__on_hosts_by_any_algorithm__the_same_bits, .timeout = 100) {
    static const char *const ways[] = { "all_gather=hier", "all_gather=ring", "all_gather=direct", NULL };
    rig_per_host = 2;
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++)
        for (uint32_t n = 4; n <= 5; n++) {
            rg_config_t c = RG_CONFIG_INIT;
            c.algorithm = ways[k];
            rig_run(n, "inproc", &c, gathers, NULL);
        }
}

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

/* Segment t of the sum as two levels make it: the owner's host as it is, every other host's sum on its way. */
static void two_levels(rg_wire_t wire, uint32_t n, uint32_t per_host, uint32_t t, uint64_t count, float *sum) {
    float *host = malloc(count * sizeof *host);
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t first = 0; first < n; first += per_host) {
            if ((first == t / per_host * per_host) != (round == 0)) continue;
            for (uint64_t i = 0; i < count; i++) {
                host[i] = 0;
                for (uint32_t j = first; j < n && j < first + per_host; j++) host[i] += value(j, t * count + i);
            }
            if (round != 0) on_the_way(wire, host, count);
            for (uint64_t i = 0; i < count; i++) sum[i] = round == 0 ? host[i] : sum[i] + host[i];
        }
    free(host);
}

static int scatters(rig_member_t *m, void *arg) {
    uint32_t n = m->rig->n, per_host = *(const uint32_t *)arg;
    float *in = malloc((size_t)n * LONGEST * sizeof *in), *out = malloc(LONGEST * sizeof *out);
    float *want = malloc(LONGEST * sizeof *want);
    for (uint32_t k = 0; k < 16; k++) {
        rg_wire_t wire = wires[k % 4];
        uint64_t count = counts[k / 4];
        rg_quantiser_t *z = quantiser(m, wire, RG_QUANT_TWO_LEVEL);
        RIG_NEED(m, z != NULL, "no quantiser");
        for (uint64_t i = 0; i < n * count; i++) in[i] = value(m->index, i);
        RIG_OK(m, rg_quant_reduce_scatter(z, in, out, count, k % 2 ? RG_AVG : RG_SUM, NULL));
        two_levels(wire, n, per_host, m->index, count, want);
        for (uint64_t i = 0; i < count; i++) {
            float w = k % 2 ? want[i] / (float)n : want[i];
            RIG_NEED(m, out[i] == w, "%s, element %u of %u: %g for %g", rg_wire_name(wire), (unsigned)i,
                     (unsigned)count, (double)out[i], (double)w);
        }
        RIG_NEED(m, per_host < n || rg_quantiser_bound(z) == 0, "on one host nothing is quantised");
        rg_quantiser_destroy(z);
    }
    free(in), free(out), free(want);
    return rig_gate(m, 0, n);
}

Test(quant_forms, reduce_scatter__over_two_levels__bit_for_bit_as_described, .timeout = 100) {
    for (uint32_t n = 4; n <= 6; n++)
        for (uint32_t per_host = 2; per_host <= n; per_host += n - 2) {
            rig_per_host = per_host;
            rig_run(n, "inproc", NULL, scatters, &per_host);
        }
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

/* Both ways are quantised: of n members each sends (n - 1) / n of the elements to those who add them up, and as much of
 * the sums back, at 8.125 bits. */
static int frugal(rig_member_t *m, void *arg) {
    enum { N = 64000 };
    float *in = malloc(N * sizeof *in), *out = malloc(N * sizeof *out);
    (void)arg;
    for (uint64_t i = 0; i < N; i++) in[i] = value(m->index, i);
    for (uint32_t form = RG_QUANT_DIRECT; form <= RG_QUANT_RING; form++) {
        rg_quantiser_t *z = quantiser(m, RG_WIRE_I8, form);
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &r;
        RIG_NEED(m, z != NULL, "no quantiser");
        RIG_OK(m, rg_quant_all_reduce(z, in, out, N, RG_AVG, &o));
        double all = (double)rg_quant_bytes(RG_WIRE_I8, N) * 2 * (m->rig->n - 1) / m->rig->n;
        RIG_NEED(m, (double)r.bytes_sent < all * 1.03 + 1000 && (double)r.bytes_received < all * 1.03 + 1000,
                 "%s: %u bytes sent, %u received, %.0f are needed", rg_quant_form_name(form), (unsigned)r.bytes_sent,
                 (unsigned)r.bytes_received, all);
        rg_quantiser_destroy(z);
    }
    free(in), free(out);
    return rig_gate(m, 0, m->rig->n);
}

Test(quant_forms, bytes__of_an_int8_all_reduce__a_byte_for_an_element_each_way, .timeout = 60) {
    rig_run(4, "inproc", NULL, frugal, NULL);
}

/* ---- Deaths ------------------------------------------------------------------------------------------------------ */

enum { CALLS = 20000 };

typedef struct death {
    uint64_t after_us;            /* from a gate on */
    uint32_t calls[RIG_MAX];      /* that a member has made */
    int8_t ended[RIG_MAX][CALLS]; /* with what */
} death_t;

/* Gathers and reductions by turns; ranks are counted without the one that died where fewer contributed. */
static int loses(rig_member_t *m, void *arg) {
    enum { N = 3000 };
    death_t *d = arg;
    float *in = malloc(4 * N * sizeof *in), *out = malloc(4 * N * sizeof *out);
    rg_quantiser_t *z = quantiser(m, RG_WIRE_I8, RG_QUANT_TWO_LEVEL);
    int dies = m->index == 1;
    uint32_t call = 0;
    for (uint64_t i = 0; i < 4 * N; i++) in[i] = value(m->index, i);
    RIG_NEED(m, z != NULL && rig_gate(m, 0, m->rig->n) == 0, "gate");
    if (dies) rig_ends_after(m, d->after_us);
    for (uint32_t after = 0; after < 4 && call < CALLS; call++) {
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &r;
        int gather = call % 2;
        rg_status_t st =
            gather ? rg_quant_all_gather(z, in, out, N, &o) : rg_quant_reduce_scatter(z, in, out, N, RG_SUM, &o);
        if (dies && st != RG_OK) break;
        d->ended[m->index][call] = (int8_t)st;
        RIG_NEED(m, st == RG_OK || st == RG_ERR_PEER_LOST, "%s: %s", rg_status_name(st), rig_errmsg(m));
        if (st != RG_OK) continue;
        int lost = r.contributors < m->rig->n;
        uint32_t rank = m->index - (uint32_t)(lost && m->index > 1);
        after += (uint32_t)lost;
        for (uint64_t i = 0; i < N && !gather; i++) {
            double want = 0;
            for (uint32_t j = 0; j < m->rig->n; j++) want += lost && j == 1 ? 0 : (double)value(j, rank * N + i);
            RIG_NEED(m, fabs((double)out[i] - want) <= rg_quantiser_bound(z) + 1e-4, "%u contributors: %g for %g",
                     r.contributors, (double)out[i], want);
        }
        for (uint64_t i = 0; i < r.contributors * (uint64_t)N && gather; i++) {
            uint32_t j = (uint32_t)(i / N);
            double want = (double)value(j + (uint32_t)(lost && j > 0), i % N);
            RIG_NEED(m, fabs((double)out[i] - want) <= 2.0 / 254 * 1.01, "rank %u: %g for %g", j, (double)out[i], want);
        }
    }
    d->calls[m->index] = call;
    if (!dies) RIG_NEED(m, rig_gate(m, 1, m->rig->n - 1) == 0, "gate");
    for (uint32_t j = 2; j < m->rig->n && m->index == 0; j++) {
        RIG_NEED(m, d->calls[j] == call, "%u calls by one, %u by another", call, d->calls[j]);
        RIG_NEED(m, memcmp(d->ended[0], d->ended[j], call) == 0, "a call ended in two ways");
    }
    rg_quantiser_destroy(z);
    free(in), free(out);
    return 0;
}

Test(quant_forms, gathers_and_scatters__a_member_dies_at_any_moment__the_others_agree, .timeout = 200) {
    rig_per_host = 2;
    for (uint64_t k = 0; k < 12; k++) {
        death_t *d = calloc(1, sizeof *d);
        d->after_us = 50 + k * 213;
        rig_run(4, "inproc", NULL, loses, d);
        free(d);
    }
}
