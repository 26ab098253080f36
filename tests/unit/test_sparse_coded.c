/* test_sparse_coded.c: sparse lists whose values travel quantised, and what is handed back of them: every wire form,
 * algorithm, operator and result within the bound and alike on all members, sums that were made here where everybody
 * gets everybody's lists, the conservation of what is said and what is left over many rounds, values that are not
 * finite, members that die; the k-th largest of more than fits into 32 bits. Relies on engine_rig.h. */
#include "engine_rig.h"
#include "regroup_sparse.h"
#include "sparse/list.h"
#include "sparse/topk.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t dice(uint64_t seed, uint32_t member, uint64_t i) {
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + member * 0xbf58476d1ce4e5b9ull + i * 0x94d049bb133111ebull;
    return rig_random(&x);
}

/* Of a member: an element with a chance, 0 where it has none. Every tenth stretch all members have. */
static float element(uint64_t seed, uint32_t member, uint64_t i, double density) {
    uint32_t who = i / 100 % 10 == 3 ? 99 : member;
    if ((double)(dice(seed, who, i) >> 11) * 0x1p-53 >= density) return 0.0f;
    float v = (float)((double)(dice(seed + 1, member, i) >> 40) * 0x1p-22 - 2);
    return v == 0.0f ? 0.5f : v;
}

typedef struct vectors {
    float *in, *out, *rest;
    rg_sparse_t list, got, left;
} vectors_t;

static rg_sparse_t list_of(rg_index_t index, uint64_t n) {
    rg_sparse_t s = RG_SPARSE_INIT;
    s.index = index, s.block = 64, s.n = n, s.values = n;
    s.idx = calloc(1, rg_sparse_index_bytes(index, 64, n, n) + 1);
    s.val = calloc(n + 1, 4);
    return s;
}

static vectors_t vectors_of(rg_index_t index, rg_index_t back, uint64_t n) {
    vectors_t v = { calloc(n + 1, 4), calloc(n + 1, 4), calloc(n + 1, 4), list_of(index, n), list_of(back, n), { 0 } };
    v.left = list_of(back == RG_INDEX_BLOCKS ? RG_INDEX_U32 : back, n);
    return v;
}

static void vectors_free(vectors_t *v) {
    rg_sparse_t *lists[] = { &v->list, &v->got, &v->left };
    for (int k = 0; k < 3; k++) free(lists[k]->idx), free(lists[k]->val);
    free(v->in), free(v->out), free(v->rest);
}

/* The call, and its results as vectors. */
static rg_status_t reduce(rg_sparse_reducer_t *z, vectors_t *v, rg_sparse_how_t *how, const rg_opts_t *opts) {
    uint64_t n = v->list.n;
    v->list.values = v->got.values = v->left.values = n;
    rg_status_t st = rg_sparse_from_dense(v->in, &v->list, NULL);
    how->rest = &v->left;
    if (st == RG_OK) st = rg_sparse_all_reduce(z, &v->list, &v->got, how, opts);
    if (st == RG_OK) st = rg_sparse_to_dense(&v->got, v->out, NULL);
    if (st == RG_OK) st = rg_sparse_to_dense(&v->left, v->rest, NULL);
    return st;
}

/* ---- Every wire form --------------------------------------------------------------------------------------------- */

/* What the result is without quantising, in double; how many have an element; and the greatest sum of magnitudes. */
static double expected(uint32_t members, uint64_t seed, uint64_t i, double density, rg_sparse_op_t op,
                       uint32_t *count) {
    double sum = 0;
    *count = 0;
    for (uint32_t j = 0; j < members; j++) {
        double v = (double)element(seed, j, i, density);
        if (v == 0) continue;
        if ((*count)++ == 0) sum = v;
        else if (op == RG_SPARSE_MAX) sum = v > sum ? v : sum;
        else if (op == RG_SPARSE_MIN) sum = v < sum ? v : sum;
        else sum += v;
    }
    if (op == RG_SPARSE_AVG_WORLD) sum /= members;
    return op == RG_SPARSE_AVG_OWNERS && *count != 0 ? sum / *count : sum;
}

static int forms(rig_member_t *m, void *arg) {
    static const rg_index_t indices[] = { RG_INDEX_U32, RG_INDEX_U12, RG_INDEX_BLOCKS, RG_INDEX_BITMAP,
                                          RG_INDEX_DENSE };
    static const double densities[] = { 0.002, 0.1, 0.7 };
    const uint32_t *step = arg;
    rg_sparse_reducer_t *z = NULL;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (uint32_t k = m->rig->n; k < 12 * 5 * 5 * 5; k += *step) {
        rg_quant_t q = RG_QUANT_INIT((rg_wire_t)(1 + k % 12));
        rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
        uint64_t n = k % 7 == 0 ? 70000 : 3000;
        double density = densities[k % 3];
        rg_index_t index = indices[k / 300 % 5];
        if (k % 2) q.flags = RG_QUANT_STOCHASTIC, q.seed = m->index;
        how.algorithm = (rg_sparse_algorithm_t)(k / 12 % 5);
        how.op = (rg_sparse_op_t)(k / 60 % 5);
        how.result = k % 5 == 0 ? RG_SPARSE_AUTO : RG_SPARSE_UNION;
        how.quant = &q;
        vectors_t v = vectors_of(index, index, n);
        for (uint64_t i = 0; i < n; i++) v.in[i] = element(k, m->index, i, density);
        RIG_OK(m, reduce(z, &v, &how, NULL));
        double bound = rg_sparse_bound(z) + 1e-5;
        RIG_NEED(m, isfinite(bound), "combination %u: no bound", k);
        for (uint64_t i = 0; i < n; i++) {
            uint32_t count;
            double want = expected(m->rig->n, k, i, density, how.op, &count);
            int whole = index == RG_INDEX_BLOCKS || index == RG_INDEX_DENSE; /* zeroes are values too */
            if (whole && how.op != RG_SPARSE_SUM && how.op != RG_SPARSE_AVG_WORLD) continue;
            RIG_NEED(m, count == 0 || fabs((double)v.out[i] - want) <= bound,
                     "combination %u: %s, %s, algorithm %d, element %u: %g for %g, bound %g", k, rg_wire_name(q.wire),
                     rg_sparse_op_name(how.op), (int)how.algorithm, (unsigned)i, (double)v.out[i], want, bound);
            RIG_NEED(m, whole || (count != 0) == (v.out[i] != 0.0f) || bound > 0.01 || count != 0,
                     "an element too many");
        }
        RIG_NEED(m, rig_alike(m, v.out, n), "combination %u: not the same bits everywhere", k);
        vectors_free(&v);
    }
    rg_sparse_reducer_destroy(z);
    return rig_gate(m, 9, m->rig->n);
}

Test(sparse, coded__all_wire_forms_algorithms_and_operators__within_the_bound_and_alike, .timeout = 200) {
    for (uint32_t n = 1; n <= 5; n++) {
        uint32_t step = 37 * RIG_SLOW;
        rig_run(n, "inproc", NULL, forms, &step);
    }
}

/* Where everybody gets everybody's list the sum is that of what the lists decode to, in the order of ranks. */
static int once(rig_member_t *m, void *arg) {
    enum { N = 5000 };
    static float sum[RIG_MAX][N], values[RIG_MAX][N], said[RIG_MAX][N];
    float *mine = values[m->index], *heard = said[m->index], *want = sum[m->index];
    uint8_t *w = malloc(rg_quant_bytes(RG_WIRE_I8, N));
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I8);
    rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
    rg_sparse_reducer_t *z = NULL;
    vectors_t v = vectors_of(RG_INDEX_U16, RG_INDEX_U32, N);
    (void)arg;
    how.algorithm = RG_SPARSE_GATHER;
    how.quant = &q;
    for (uint64_t i = 0; i < N; i++) v.in[i] = element(1, m->index, i, 0.2), want[i] = 0;
    for (uint32_t j = 0; j < m->rig->n; j++) {
        uint64_t have = 0;
        for (uint64_t i = 0; i < N; i++)
            if (element(1, j, i, 0.2) != 0.0f) mine[have++] = element(1, j, i, 0.2);
        rg_quant_encode(&q, 0, 0, mine, have, w);
        rg_quant_decode(RG_WIRE_I8, w, have, heard);
        have = 0;
        for (uint64_t i = 0; i < N; i++)
            if (element(1, j, i, 0.2) != 0.0f) want[i] += heard[have++];
    }
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    RIG_OK(m, reduce(z, &v, &how, NULL));
    for (uint64_t i = 0; i < N; i++)
        RIG_NEED(m, v.out[i] == want[i], "element %u: %g for %g", (unsigned)i, (double)v.out[i], (double)want[i]);
    rg_sparse_reducer_destroy(z);
    vectors_free(&v);
    free(w);
    return rig_gate(m, 9, m->rig->n);
}

Test(sparse, coded__lists_to_everybody__quantised_once, .timeout = 60) { rig_run(4, "inproc", NULL, once, NULL); }

/* ---- What is left ------------------------------------------------------------------------------------------------ */

typedef struct rounds {
    rg_sparse_algorithm_t algorithm;
    rg_wire_t wire; /* 0: as they are */
    uint64_t topk;
} rounds_t;

/* Over many rounds what has come out and what is left make what was put in, at every element. Inputs are multiples of
 * 1/8 and small, so that sums without quantising are exact. */
static int conserves(rig_member_t *m, void *arg) {
    enum { N = 9000, ROUNDS = 12 };
    const rounds_t *c = arg;
    rg_quant_t q = RG_QUANT_INIT(c->wire);
    rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
    rg_sparse_reducer_t *z = NULL;
    vectors_t v = vectors_of(RG_INDEX_U32, RG_INDEX_U32, N);
    double *put = calloc(N, sizeof *put), *came = calloc(N, sizeof *came), most = 0;
    float *left = calloc(N, sizeof *left);
    how.algorithm = c->algorithm;
    how.result = c->topk != 0 ? RG_SPARSE_TOPK : RG_SPARSE_UNION;
    how.topk = c->topk;
    if (c->wire != 0) how.quant = &q;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (uint64_t i = 0; i < N; i++) {
            float x = roundf(element(round, m->index, i, 0.05) * 8) / 8;
            put[i] += (double)x;
            v.in[i] = x + v.rest[i];
        }
        RIG_OK(m, reduce(z, &v, &how, NULL));
        RIG_NEED(m, c->topk == 0 || v.got.values == c->topk || (c->topk > 1000 && v.got.values < c->topk), "%u values",
                 (unsigned)v.got.values);
        RIG_NEED(m, v.left.values <= v.list.values, "more is left than there was");
        RIG_NEED(m, c->topk != 0 || c->wire != 0 || v.left.values == 0, "something is left of everything");
        for (uint64_t i = 0; i < N; i++) came[i] += (double)v.out[i];
        most += rg_sparse_bound(z);
        RIG_NEED(m, (rg_sparse_bound(z) != 0) == (c->wire != 0), "a bound of %g", rg_sparse_bound(z));
    }
    memcpy(left, v.rest, N * sizeof *left);
    for (uint64_t i = 0; i < N; i++) v.in[i] = (float)put[i];
    RIG_OK(m, rg_all_reduce(m->g, v.in, v.in, N, RG_F32, RG_SUM, NULL, NULL));
    RIG_OK(m, rg_all_reduce(m->g, left, left, N, RG_F32, RG_SUM, NULL, NULL));
    /* Of what is quantised there is left what was said too little; what the sums lost on their way back is not. */
    double room = c->wire == 0 ? 0 : c->algorithm == RG_SPARSE_GATHER ? 1e-4 : most;
    for (uint64_t i = 0; i < N; i++)
        RIG_NEED(m, fabs((double)v.in[i] - came[i] - (double)left[i]) <= room, "element %u: %g put in, %g out, %g left",
                 (unsigned)i, (double)v.in[i], came[i], (double)left[i]);
    rg_sparse_reducer_destroy(z);
    vectors_free(&v);
    free(put), free(came), free(left);
    return rig_gate(m, 9, m->rig->n);
}

Test(sparse, rest__rounds_of_topk_and_of_quantised_values__nothing_lost_and_nothing_twice, .timeout = 200) {
    static const rounds_t all[] = {
        { RG_SPARSE_BY_SIZE, 0, 100 }, { RG_SPARSE_SPLIT, 0, 1500 },          { RG_SPARSE_GATHER, 0, 30 },
        { RG_SPARSE_HYBRID, 0, 0 },    { RG_SPARSE_SPLIT, RG_WIRE_I8, 200 },  { RG_SPARSE_BY_SIZE, RG_WIRE_I4, 1500 },
        { RG_SPARSE_FULL, 0, 300 },    { RG_SPARSE_GATHER, RG_WIRE_I8, 200 }, { RG_SPARSE_GATHER, RG_WIRE_BF16, 0 },
    };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        rounds_t c = all[k];
        rig_run(2 + (uint32_t)k % 3, "inproc", NULL, conserves, &c);
    }
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

static int cheaper(rig_member_t *m, void *arg) {
    enum { N = 400000 };
    static const struct {
        rg_wire_t wire;
        double bits;
    } wires[] = { { RG_WIRE_F16, 16 }, { RG_WIRE_BF16, 16 }, { RG_WIRE_I8, 8.25 }, { RG_WIRE_I4, 4.6 } };
    rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
    rg_sparse_reducer_t *z = NULL;
    vectors_t v = vectors_of(RG_INDEX_U32, RG_INDEX_U32, N);
    uint64_t plain = 0;
    (void)arg;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (uint64_t i = 0; i < N; i++) v.in[i] = element(7, 0, i, 0.02) * (float)(m->index + 1); /* one support for all */
    for (size_t k = 0; k < 1 + sizeof wires / sizeof *wires; k++) {
        rg_quant_t q = RG_QUANT_INIT(k != 0 ? wires[k - 1].wire : RG_WIRE_F16);
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &r;
        how.quant = k != 0 ? &q : NULL;
        RIG_OK(m, reduce(z, &v, &how, &o));
        if (k == 0) plain = r.bytes_received;
        else
            RIG_NEED(m, (double)r.bytes_received < (double)plain * (7.5 + wires[k - 1].bits) / 39 + 600,
                     "%s: %u bytes for %u", rg_wire_name(q.wire), (unsigned)r.bytes_received, (unsigned)plain);
    }
    rg_sparse_reducer_destroy(z);
    vectors_free(&v);
    return rig_gate(m, 9, m->rig->n);
}

Test(sparse, coded__one_support_for_all__bytes_of_the_wire_form, .timeout = 60) {
    rig_run(4, "inproc", NULL, cheaper, NULL);
}

/* ---- What is wrong ----------------------------------------------------------------------------------------------- */

static int wrong(rig_member_t *m, void *arg) {
    uint32_t idx[3] = { 2, 7, 90 }, at[4], places[4];
    float val[3] = { 1, 2, 3 }, sums[4] = { 77 }, left[4] = { 77 };
    rg_sparse_t in = RG_SPARSE_INIT, out = RG_SPARSE_INIT, rest = RG_SPARSE_INIT;
    rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I8);
    rg_sparse_reducer_t *z = NULL;
    uint64_t room = 4;
    int odd = m->index == 1;
    (void)arg;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    how.quant = &q;
    how.rest = &rest;
#define CALL() (out.values = 4, rest.values = room, rg_sparse_all_reduce(z, &in, &out, &how, NULL))
    for (int a = 0; a <= RG_SPARSE_FULL; a++) {
        how.algorithm = (rg_sparse_algorithm_t)a;
        in.n = out.n = rest.n = 100, in.values = 3, in.idx = idx, in.val = val;
        out.idx = at, out.val = sums, rest.idx = places, rest.val = left;
        if (odd) val[1] = NAN;
        RIG_NEED(m, CALL() == RG_ERR_INVALID && strstr(rig_errmsg(m), "rank 1"), "NaN: %s", rig_errmsg(m));
        q.flags = RG_QUANT_SATURATE;
        RIG_OK(m, CALL());
        sums[0] = left[0] = 77;
        q.flags = 0, val[1] = 3e38f;
        rg_status_t st = CALL(); /* each is finite, the sum is not */
        RIG_NEED(m, st == RG_ERR_INVALID && sums[0] == 77.0f && left[0] == 77.0f && strstr(rig_errmsg(m), "the sums"),
                 "sum: %s: %s", rg_status_name(st), rig_errmsg(m));
        q.flags = RG_QUANT_SATURATE;
        RIG_OK(m, CALL());
        RIG_NEED(m, isfinite(sums[1]) && sums[1] > 3e38f, "sum: %g", (double)sums[1]);
        q.flags = 0;
        val[1] = 2, sums[0] = left[0] = 77;
        if (odd) q.wire = RG_WIRE_F16;
        RIG_NEED(m, CALL() == RG_ERR_MISMATCH && strstr(rig_errmsg(m), "wire"), "wire form: %s", rig_errmsg(m));
        q.wire = RG_WIRE_I8;
        room = odd ? 2 : 4;
        RIG_NEED(m, CALL() == RG_ERR_INVALID && strstr(rig_errmsg(m), "rest"), "room: %s", rig_errmsg(m));
        room = 4;
        if (odd) rest.n = 99;
        RIG_NEED(m, CALL() == RG_ERR_INVALID && strstr(rig_errmsg(m), "rank 1"), "length: %s", rig_errmsg(m));
        rest.n = 100;
        RIG_NEED(m, sums[0] == 77.0f && left[0] == 77.0f, "something was written");
        RIG_OK(m, CALL());
        RIG_NEED(m, out.values == 3 && fabsf(sums[2] - 3 * (float)m->rig->n) < 0.1f, "result %g", (double)sums[2]);
        q.form = RG_QUANT_RING;
        RIG_NEED(m, CALL() == RG_ERR_NOTSUP && strstr(rig_errmsg(m), "ring"), "%s", rig_errmsg(m));
        q.form = 0, q.flags = 1u << 20;
        RIG_NEED(m, CALL() == RG_ERR_INVALID, "flags");
        q.flags = 0, in.dtype = out.dtype = rest.dtype = RG_BF16;
        RIG_NEED(m, CALL() == RG_ERR_NOTSUP && strstr(rig_errmsg(m), "bf"), "%s", rig_errmsg(m));
        if (!odd) in.dtype = out.dtype = rest.dtype = RG_F32;
        RIG_NEED(m, CALL() == RG_ERR_MISMATCH && strstr(rig_errmsg(m), "type"), "type: %s", rig_errmsg(m));
        in.dtype = out.dtype = rest.dtype = RG_F32;
    }
#undef CALL
    /* A program that was built before there was more. */
    how.size = offsetof(rg_sparse_how_t, quant);
    how.algorithm = RG_SPARSE_BY_SIZE;
    out.values = 4;
    RIG_OK(m, rg_sparse_all_reduce(z, &in, &out, &how, NULL));
    RIG_NEED(m, sums[2] == 3 * (float)m->rig->n && rg_sparse_bound(z) == 0, "%g", (double)sums[2]);
    how.size = 8;
    RIG_NEED(m, rg_sparse_all_reduce(z, &in, &out, &how, NULL) == RG_ERR_INVALID, "size");
    rg_sparse_reducer_destroy(z);
    return rig_gate(m, 0, m->rig->n);
}

Test(sparse, coded__values_wire_forms_or_rests_that_are_wrong__refused_alike_and_nothing_written, .timeout = 100) {
    rig_run(2, "inproc", NULL, wrong, NULL);
    rig_run(4, "inproc", NULL, wrong, NULL);
}

/* ---- Deaths ------------------------------------------------------------------------------------------------------ */

static int loses(rig_member_t *m, void *arg) {
    enum { N = 10000 };
    rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I8);
    rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
    rg_sparse_reducer_t *z = NULL;
    vectors_t v = vectors_of(RG_INDEX_U16, RG_INDEX_U32, N);
    int dies = m->index == 1;
    how.quant = &q;
    for (uint64_t i = 0; i < N; i++) v.in[i] = element(4, m->index, i, 0.05);
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    if (dies) rig_ends_after(m, *(const uint64_t *)arg);
    for (uint32_t after = 0; after < 3;) {
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &r;
        o.on_fault = RG_RETRY;
        rg_status_t st = reduce(z, &v, &how, &o);
        if (dies && st != RG_OK) break;
        RIG_NEED(m, st == RG_OK, "%s: %s", rg_status_name(st), rig_errmsg(m));
        int lost = r.contributors < m->rig->n;
        after += (uint32_t)lost;
        for (uint64_t i = 0; i < N; i++) {
            double want = 0;
            for (uint32_t j = 0; j < m->rig->n; j++) want += lost && j == 1 ? 0 : (double)element(4, j, i, 0.05);
            RIG_NEED(m, fabs((double)v.out[i] - want) <= rg_sparse_bound(z) + 1e-5, "%u contributors: %g for %g",
                     r.contributors, (double)v.out[i], want);
        }
    }
    if (!dies) RIG_NEED(m, rig_gate(m, 1, m->rig->n - 1) == 0, "gate");
    rg_sparse_reducer_destroy(z);
    vectors_free(&v);
    return 0;
}

Test(sparse, coded__a_member_dies_at_any_moment__the_others_agree, .timeout = 200) {
    for (uint64_t k = 0; k < 10; k++) {
        uint64_t after_us = 50 + k * 191;
        rig_run(4, "inproc", NULL, loses, &after_us);
    }
}

/* ---- The k-th largest -------------------------------------------------------------------------------------------- */

/* As the tables of a level find it, and as sorting does. */
Test(sparse, threshold__counted_digit_by_digit__as_by_halves) {
    enum { N = 3000 };
    static uint32_t mag[N];
    uint64_t seed = 5;
    for (int round = 0; round < 200; round++) {
        uint32_t top = 0, n = 1 + (uint32_t)(rig_random(&seed) % N);
        uint64_t k = 1 + rig_random(&seed) % n;
        for (uint32_t i = 0; i < n; i++) {
            mag[i] = (uint32_t)rig_random(&seed) & 0x7fffffffu;
            if (round % 4 == 1) mag[i] >>= rig_random(&seed) % 31;
            if (round % 4 == 2) mag[i] = mag[i] % 5 * 0x400000u;
            if (round % 4 == 3) mag[i] = 0x7fffffffu - mag[i] % 3;
            top = mag[i] > top ? mag[i] : top;
        }
        uint32_t t = rg_threshold_wide(mag, n, k), u = rg_threshold(mag, n, k, top), reach = 0, above = 0, halves = 0;
        for (uint32_t i = 0; i < n; i++) reach += mag[i] >= t, above += mag[i] > t, halves += mag[i] >= u;
        cr_assert(reach >= k && above < k, "round %d: %u of %u reach %#x, %u are above, %u were asked for", round,
                  reach, n, t, above, (unsigned)k);
        cr_assert(halves >= k);
    }
}
