/* test_sparse.c: sparse lists: the forms of indices, the forms in which parts travel, and the all-reduce on groups of
 * threads against sums made here in the order of ranks, bit for bit, whatever the algorithm; bytes counted against the
 * formulas; lists that are wrong, rooms that are small, calls that differ, members that die. Relies on engine_rig.h. */
#include "engine_rig.h"
#include "regroup_sparse.h"
#include "sparse/frame.h"
#include "sparse/list.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rg_index_t indices[] = { RG_INDEX_U32,    RG_INDEX_U64,    RG_INDEX_U16,  RG_INDEX_U12,
                                      RG_INDEX_BITMAP, RG_INDEX_BLOCKS, RG_INDEX_DENSE };
static const rg_dtype_t dtypes[] = { RG_F32, RG_BF16, RG_F16 };

typedef struct mine {
    rg_sparse_t s;
    uint8_t *dense; /* the same as a vector */
} mine_t;

static rg_sparse_t list_of(rg_index_t index, rg_dtype_t dtype, uint32_t block, uint64_t n) {
    rg_sparse_t s = RG_SPARSE_INIT;
    s.index = index, s.dtype = dtype, s.block = block, s.n = n, s.values = n;
    s.idx = calloc(1, rg_sparse_index_bytes(index, block, n, n) + 1);
    s.val = calloc(n + 1, 4);
    return s;
}

static void list_free(rg_sparse_t *s) {
    free(s->idx);
    free(s->val);
}

static uint64_t dice(uint64_t seed, uint32_t member, uint64_t i) {
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + member * 0xbf58476d1ce4e5b9ull + i * 0x94d049bb133111ebull;
    return rig_random(&x);
}

/* What a member has: each element with a chance, or blocks of 64 of them, or only in the first tenth. */
typedef enum support { ALONE, SAME, CLUSTERED, BLOCKY } support_t;

static float element(uint64_t seed, uint32_t member, uint64_t i, uint64_t n, double density, support_t support) {
    uint64_t who = dice(seed, support == SAME ? 77 : member, support == BLOCKY ? i / 64 : i);
    double chance = support == CLUSTERED ? (i < n / 8 ? density * 6 : density / 3.5) : density;
    if ((double)(who >> 11) * 0x1p-53 >= chance) return 0.0f;
    float v = (float)((double)(dice(seed + 1, member, i) >> 40) * 0x1p-22 - 2);
    return v == 0.0f ? 0.5f : v;
}

/* f32 as the type, in the memory of n elements, with its rounding. */
static void as_type(rg_dtype_t dtype, const float *v, uint64_t n, uint8_t *to) {
    rg_casts_t c;
    rg_casts_init(&c, dtype);
    rg_red_copy(&c.out, to, v, n);
}

static void as_f32(rg_dtype_t dtype, const uint8_t *v, uint64_t n, float *to) {
    rg_casts_t c;
    rg_casts_init(&c, dtype);
    rg_red_copy(&c.in, to, v, n);
}

/* ---- Forms of indices -------------------------------------------------------------------------------------------- */

Test(sparse, forms__all_indices_types_and_lengths__there_and_back, .timeout = 60) {
    static const uint64_t lengths[] = { 0, 1, 63, 4096, 4097, 70000, 140001 };
    for (uint32_t k = 0; k<7 * 3 * 7 * 3; k += RIG_SLOW> 1 ? 5 : 1) {
        rg_dtype_t dtype = dtypes[k % 3];
        uint64_t n = lengths[k / 3 % 7];
        double density = k / 21 % 3 == 0 ? 0.01 : k / 21 % 3 == 1 ? 0.6 : 1;
        rg_sparse_t s = list_of(indices[k / 63], dtype, k % 2 ? 64 : 0, n);
        float *v = malloc((n + 1) * sizeof *v);
        uint8_t *x = calloc(n + 1, 4), *y = calloc(n + 1, 4);
        rg_error_t err;
        for (uint64_t i = 0; i < n; i++) v[i] = element(k, 0, i, n, density, k % 5 == 0 ? BLOCKY : ALONE);
        as_type(dtype, v, n, x);
        cr_assert_eq(rg_sparse_from_dense(x, &s, &err), RG_OK, "%s", err.text);
        cr_assert_eq(rg_sparse_check(&s, &err), RG_OK, "form %d: %s", (int)s.index, err.text);
        cr_assert_eq(rg_sparse_to_dense(&s, y, &err), RG_OK, "%s", err.text);
        cr_assert_eq(memcmp(x, y, n * rg_dtype_size(dtype)), 0, "form %d, n %u", (int)s.index, (unsigned)n);
        uint64_t have = s.values;
        if (have > 1) {
            s.values = s.index == RG_INDEX_DENSE ? n : have - 1;
            rg_status_t st = rg_sparse_from_dense(x, &s, &err);
            cr_assert(s.index == RG_INDEX_DENSE ? st == RG_OK : st == RG_ERR_CAPACITY && s.values == have);
            s.values = have - 1;
            rg_status_t want = s.index <= RG_INDEX_U64 ? RG_OK : RG_ERR_INVALID;
            cr_assert_eq(rg_sparse_check(&s, &err), want, "form %d with a value less", (int)s.index);
        }
        list_free(&s);
        free(v), free(x), free(y);
    }
}

Test(sparse, forms__that_are_wrong__refused_with_a_text) {
    uint32_t idx[4] = { 3, 9, 9, 20 };
    float val[4] = { 1, 2, 3, 4 };
    rg_sparse_t s = RG_SPARSE_INIT;
    rg_error_t err;
    s.n = 100, s.values = 4, s.idx = idx, s.val = val;
    cr_assert(rg_sparse_check(&s, &err) == RG_ERR_INVALID && strstr(err.text, "ascend"));
    idx[2] = 8;
    cr_assert_eq(rg_sparse_check(&s, &err), RG_ERR_INVALID);
    idx[2] = 10, idx[3] = 100;
    cr_assert(rg_sparse_check(&s, &err) == RG_ERR_INVALID && strstr(err.text, "beyond"));
    idx[3] = 99;
    cr_assert_eq(rg_sparse_check(&s, &err), RG_OK);
    s.val = NULL;
    cr_assert(rg_sparse_check(&s, &err) == RG_ERR_INVALID && strstr(err.text, "memory"));
    s.val = val, s.dtype = RG_F64;
    cr_assert_eq(rg_sparse_check(&s, &err), RG_ERR_INVALID);
    s.dtype = RG_F32, s.n = (1ull << 32) + 1;
    cr_assert_eq(rg_sparse_check(&s, &err), RG_ERR_INVALID);
    s.n = 12, s.index = RG_INDEX_BITMAP;
    idx[0] = 0x100f; /* a bit behind the end */
    cr_assert_eq(rg_sparse_check(&s, &err), RG_ERR_INVALID);
    idx[0] = 0xf;
    cr_assert_eq(rg_sparse_check(&s, &err), RG_OK);
    s.index = RG_INDEX_BLOCKS, s.block = 3;
    cr_assert_eq(rg_sparse_check(&s, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_sparse_check(NULL, &err), RG_ERR_INVALID);
}

/* ---- Parts that travel ------------------------------------------------------------------------------------------- */

/* Reads a part; the number of elements, and their values to v. */
static uint64_t read_part(const rg_part_t *p, rg_slice_kind_t kind, const uint8_t *w, uint64_t bytes,
                          const rg_casts_t *casts, float *v, int *good) {
    rg_cursor_t c;
    rg_window_t win;
    uint64_t many = 0;
    rg_cursor_open(&c, p, kind, w, bytes, casts);
    for (uint64_t first = 0; first < p->len; first += RG_WINDOW) {
        uint32_t len = p->len - first < RG_WINDOW ? (uint32_t)(p->len - first) : RG_WINDOW;
        rg_cursor_window(&c, first, len, &win);
        for (uint32_t i = 0; i < len; i++)
            if (win.has[i / 64] >> i % 64 & 1) v[first + i] = win.v[i], many++;
    }
    *good = rg_cursor_good(&c);
    return many;
}

Test(sparse, parts__all_kinds_and_densities__read_as_written_and_never_more_than_indices, .timeout = 60) {
    rg_casts_t casts;
    rg_casts_init(&casts, RG_F32);
    for (uint32_t k = 0; k < 240; k++) {
        uint64_t len = k % 4 == 0 ? 64 : k % 4 == 1 ? 5000 : k % 4 == 2 ? 65536 : 100003, base = 64 * (k % 3), n = 0;
        double density = pow(10, -(double)(k / 4 % 12) / 2.5);
        uint64_t *at = malloc(len * sizeof *at);
        float *val = malloc(len * sizeof *val), *x = calloc(len, sizeof *x), *y = calloc(len, sizeof *y);
        for (uint64_t i = 0; i < len; i++)
            if ((x[i] = element(k, 0, i, len, density, (support_t)(k % 5 % 4))) != 0.0f)
                at[n] = base + i, val[n++] = x[i];
        rg_part_t p = { .base = base, .len = len, .k = n, .at = at, .val = (const uint8_t *)val, .width = 4 };
        p.block = k % 2 ? 64 : 0;
        for (uint32_t allowed = 1; allowed < 32; allowed++) {
            if (allowed != RG_SLICE_SPARSE && allowed != RG_SLICE_ANY && allowed != RG_SLICE_ONLY_DENSE) continue;
            rg_slice_t s = rg_slice_choose(&p, allowed);
            uint8_t *w = malloc(s.bytes + 1);
            int good;
            w[s.bytes] = 0xa5;
            rg_slice_write(&p, &s, w);
            cr_assert_eq(w[s.bytes], 0xa5);
            memset(y, 0, len * sizeof *y);
            cr_assert_eq(read_part(&p, s.kind, w, s.bytes, &casts, y, &good), n, "kind %d", (int)s.kind);
            cr_assert(good && memcmp(x, y, len * sizeof *y) == 0, "kind %d", (int)s.kind);
            if (allowed != RG_SLICE_ONLY_DENSE && n != 0) {
                uint64_t u12 = rg_sparse_index_bytes(RG_INDEX_U12, 0, len, n),
                         u16 = rg_sparse_index_bytes(RG_INDEX_U16, 0, len, n);
                cr_assert_leq(s.bytes, 4 * n + 2 + (u12 < u16 ? u12 : u16), "%u of %u", (unsigned)n, (unsigned)len);
                cr_assert_leq(s.bytes, 4 * n + (len + 7) / 8);
                if (allowed == RG_SLICE_ANY) cr_assert_leq(s.bytes, 4 * len);
            }
            free(w);
        }
        free(at), free(val), free(x), free(y);
    }
}

Test(sparse, parts__bytes_that_nobody_made__wrong_or_some_elements, .timeout = 60) {
    uint64_t seed = rig_seed(5);
    rg_casts_t casts;
    for (uint32_t round = 0; round < 20000; round++) {
        uint64_t len = 1 + rig_random(&seed) % 9000, bytes = rig_random(&seed) % 700;
        rg_part_t p = { .len = len, .k = rig_random(&seed) % 60, .width = 4, .block = round % 2 ? 128 : 0 };
        rg_slice_kind_t kind = (rg_slice_kind_t)(rig_random(&seed) % 5);
        rg_casts_init(&casts, dtypes[round % 3]);
        if (kind == RG_SLICE_BITMAP) bytes = (len + 7) / 8 + p.k * casts.width;
        if (kind == RG_SLICE_BLOCKS) bytes = ((len + 127) / 128 + 7) / 8 + p.k * casts.width;
        uint8_t *w = malloc(bytes + 1);
        float *v = malloc(len * sizeof *v);
        int good, sparse = round % 3 != 0;
        for (uint64_t i = 0; i < bytes; i++) w[i] = (uint8_t)(rig_random(&seed) & (sparse ? rig_random(&seed) : 255));
        if (bytes) w[0] %= 14;
        uint64_t many = read_part(&p, kind, w, bytes, &casts, v, &good);
        cr_assert(many <= p.k || !good);
        free(w), free(v);
    }
}

/* ---- All-reduce against sums made here --------------------------------------------------------------------------- */

typedef struct want {
    float *v;
    uint32_t *count;
} want_t;

static want_t reference(rg_dtype_t dtype, uint32_t members, uint64_t seed, uint64_t n, double density,
                        support_t support, rg_sparse_op_t op) {
    want_t w = { calloc(n + 1, sizeof(float)), calloc(n + 1, sizeof(uint32_t)) };
    for (uint32_t j = 0; j < members; j++)
        for (uint64_t i = 0; i < n; i++) {
            float v = element(seed, j, i, n, density, support);
            uint32_t raw = 0;
            if (v == 0.0f) continue;
            as_type(dtype, &v, 1, (uint8_t *)&raw);
            as_f32(dtype, (uint8_t *)&raw, 1, &v);
            if (w.count[i]++ == 0) w.v[i] = v;
            else if (op == RG_SPARSE_MAX) w.v[i] = v > w.v[i] ? v : w.v[i];
            else if (op == RG_SPARSE_MIN) w.v[i] = v < w.v[i] ? v : w.v[i];
            else w.v[i] += v;
        }
    for (uint64_t i = 0; i < n; i++) {
        if (op == RG_SPARSE_AVG_WORLD) w.v[i] /= (float)members;
        if (op == RG_SPARSE_AVG_OWNERS && w.count[i]) w.v[i] /= (float)w.count[i];
    }
    return w;
}

static rg_sparse_t input(rg_index_t index, rg_dtype_t dtype, uint32_t member, uint64_t seed, uint64_t n, double density,
                         support_t support) {
    rg_sparse_t s = list_of(index, dtype, 64, n);
    float *v = malloc((n + 1) * sizeof *v);
    uint8_t *x = malloc((n + 1) * 4);
    for (uint64_t i = 0; i < n; i++) v[i] = element(seed, member, i, n, density, support);
    as_type(dtype, v, n, x);
    rg_sparse_from_dense(x, &s, NULL);
    free(v), free(x);
    return s;
}

typedef struct sweep {
    uint32_t from, step;
} sweep_t;

/* One combination after the other of everything that can be chosen. */
static int combos(rig_member_t *m, void *arg) {
    const sweep_t *sweep = arg;
    static const uint64_t lengths[] = { 1, 200, 5000, 17000 };
    static const double densities[] = { 0.0005, 0.02, 0.3, 1 };
    rg_sparse_reducer_t *z = NULL;
    uint32_t members = m->rig->n;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (uint32_t k = sweep->from; k < 7 * 5 * 5 * 16; k += sweep->step) {
        rg_index_t index = indices[k % 7], back = k % 3 == 0 ? indices[k / 7 % 7] : index;
        rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
        how.algorithm = (rg_sparse_algorithm_t)(k / 7 % 5);
        how.op = (rg_sparse_op_t)(k / 35 % 5);
        how.result = k % 11 == 0 ? RG_SPARSE_AUTO : RG_SPARSE_UNION;
        rg_dtype_t dtype = dtypes[k % 13 % 3];
        uint64_t n = lengths[k / 175 % 4];
        double density = index == RG_INDEX_DENSE ? 1 : densities[k / 700 % 4];
        support_t support = index == RG_INDEX_BLOCKS  ? BLOCKY
                            : index == RG_INDEX_DENSE ? ALONE
                                                      : (support_t)(k % 17 % 3);
        if (index != RG_INDEX_BLOCKS && back == RG_INDEX_BLOCKS) back = RG_INDEX_U32;
        rg_sparse_t in = input(index, dtype, m->index, k, n, density, support), out = list_of(back, dtype, 64, n);
        want_t want = reference(dtype, members, k, n, density, support, how.op);
        RIG_OK(m, rg_sparse_all_reduce(z, &in, &out, &how, NULL));
        RIG_OK(m, rg_sparse_check(&out, NULL));
        uint8_t *x = malloc((n + 1) * 4), *y = malloc((n + 1) * 4);
        uint64_t values = 0;
        RIG_OK(m, rg_sparse_to_dense(&out, x, NULL));
        as_type(dtype, want.v, n, y);
        for (uint64_t i = 0; i < n; i++) {
            size_t w = rg_dtype_size(dtype);
            values += want.count[i] != 0;
            RIG_NEED(m, memcmp(x + i * w, y + i * w, w) == 0,
                     "combination %u: %s, algorithm %d, index %d to %d, element %u of %u, had by %u: bits %x for %x", k,
                     rg_sparse_op_name(how.op), (int)how.algorithm, (int)index, (int)back, (unsigned)i, (unsigned)n,
                     want.count[i], *(uint16_t *)(x + i * w), *(uint16_t *)(y + i * w));
        }
        if (out.index < RG_INDEX_BLOCKS)
            RIG_NEED(m, out.values == values, "combination %u: %u values for %u", k, (unsigned)out.values,
                     (unsigned)values);
        list_free(&in), list_free(&out);
        free(want.v), free(want.count), free(x), free(y);
    }
    rg_sparse_reducer_destroy(z);
    return rig_gate(m, 9, m->rig->n); /* who goes is lost to those whose last call still runs */
}

Test(sparse, all_reduce__everything_that_can_be_chosen__the_bits_of_sums_in_the_order_of_ranks, .timeout = 300) {
    for (uint32_t n = 1; n <= 5; n++) {
        sweep_t s = { n, 41 * RIG_SLOW };
        rig_run(n, "inproc", NULL, combos, &s);
    }
}

static int falling(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* ---- The largest, rooms ------------------------------------------------------------------------------------------ */

static int largest(rig_member_t *m, void *arg) {
    enum { N = 1500, K = 97 };
    rg_sparse_reducer_t *z = NULL;
    (void)arg;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (int a = 0; a <= RG_SPARSE_FULL; a++) {
        rg_sparse_t in = input(RG_INDEX_U12, RG_F32, m->index, 9, N, 0.1, ALONE),
                    out = list_of(RG_INDEX_U32, RG_F32, 0, N);
        /* Few different values, so that many are equal. */
        for (uint64_t i = 0; i < in.values; i++) ((float *)in.val)[i] = rintf(((float *)in.val)[i] * 2) + 0.25f;
        want_t w = { calloc(N, sizeof(float)), calloc(N, sizeof(uint32_t)) };
        for (uint32_t j = 0; j < m->rig->n; j++)
            for (uint64_t i = 0; i < N; i++) {
                float v = element(9, j, i, N, 0.1, ALONE);
                if (v != 0.0f) w.v[i] += rintf(v * 2) + 0.25f, w.count[i]++;
            }
        rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
        how.result = RG_SPARSE_TOPK, how.topk = K, how.algorithm = (rg_sparse_algorithm_t)a;
        out.values = K - 1;
        RIG_NEED(m, rg_sparse_all_reduce(z, &in, &out, &how, NULL) == RG_ERR_CAPACITY && out.values == K, "%u",
                 (unsigned)out.values);
        RIG_OK(m, rg_sparse_all_reduce(z, &in, &out, &how, NULL));
        RIG_NEED(m, out.values == K, "%u values", (unsigned)out.values);
        uint64_t have = 0;
        for (uint64_t i = 0; i < N; i++) {
            uint32_t before = 0;
            for (uint64_t j = 0; j < N; j++)
                before += w.count[j] && (fabsf(w.v[j]) > fabsf(w.v[i]) || (fabsf(w.v[j]) == fabsf(w.v[i]) && j < i));
            if (!w.count[i] || before >= K) continue;
            RIG_NEED(m, ((uint32_t *)out.idx)[have] == i && ((float *)out.val)[have] == w.v[i],
                     "algorithm %d, element %u", a, (unsigned)i);
            have++;
        }
        list_free(&in), list_free(&out);
        free(w.v), free(w.count);
    }
    rg_sparse_reducer_destroy(z);
    return rig_gate(m, 9, m->rig->n); /* who goes is lost to those whose last call still runs */
}

Test(sparse, topk__many_equal_values__the_largest_with_ties_to_the_lower_index, .timeout = 60) {
    for (uint32_t n = 1; n <= 4; n++) rig_run(n, "inproc", NULL, largest, NULL);
}

/* The largest are not whole blocks, although the inputs are. */
static int largest_of_blocks(rig_member_t *m, void *arg) {
    enum { N = 3000, K = 97 };
    rg_sparse_reducer_t *z = NULL;
    rg_sparse_t in = input(RG_INDEX_BLOCKS, RG_F32, m->index, 9, N, 0.3, BLOCKY),
                first = list_of(RG_INDEX_U32, RG_F32, 0, N), out = list_of(RG_INDEX_U32, RG_F32, 0, N);
    (void)arg;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (int a = RG_SPARSE_FULL; a >= 0; a--) {
        rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
        how.result = RG_SPARSE_TOPK, how.topk = K, how.algorithm = a == RG_SPARSE_FULL ? RG_SPARSE_GATHER : a;
        rg_sparse_t *to = a == RG_SPARSE_FULL ? &first : &out;
        to->values = K;
        RIG_OK(m, rg_sparse_all_reduce(z, &in, to, &how, NULL));
        RIG_NEED(m, to->values == K && memcmp(to->idx, first.idx, K * 4) == 0 && memcmp(to->val, first.val, K * 4) == 0,
                 "algorithm %d: %u values", a, (unsigned)to->values);
    }
    list_free(&in), list_free(&first), list_free(&out);
    rg_sparse_reducer_destroy(z);
    return rig_gate(m, 9, m->rig->n);
}

Test(sparse, topk_of_blocks__every_algorithm__the_same_elements, .timeout = 60) {
    for (uint32_t n = 2; n <= 4; n++) rig_run(n, "inproc", NULL, largest_of_blocks, NULL);
}

/* So many of the largest that the members narrow them down first; they lie unevenly. */
static int many_largest(rig_member_t *m, void *arg) {
    enum { N = 60000, K = 3000 };
    rg_sparse_reducer_t *z = NULL;
    uint32_t n = m->rig->n;
    float *all = calloc(N, sizeof *all), *sorted = malloc(N * sizeof *sorted);
    rg_sparse_t in = input(RG_INDEX_BITMAP, RG_F32, m->index, 19, N, 0.4, ALONE),
                out = list_of(RG_INDEX_U32, RG_F32, 0, N);
    uint64_t k = 0, have = 0, have_equal = 0, equal = 0;
    (void)arg;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (uint64_t i = 0; i < N; i++) {
        float scale = i < N / 3 ? 1 : i < N / 2 ? 0.01f : 0.2f;
        for (uint32_t q = 0; q < n; q++) all[i] += element(19, q, i, N, 0.4, ALONE) * scale;
        if (element(19, m->index, i, N, 0.4, ALONE) != 0.0f) ((float *)in.val)[k++] *= scale;
        sorted[i] = fabsf(all[i]);
    }
    qsort(sorted, N, sizeof *sorted, falling);
    for (uint64_t i = 0; i < K; i++) equal += sorted[i] == sorted[K - 1];
    for (int a = 0; a <= RG_SPARSE_FULL; a++) {
        rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &r;
        how.result = RG_SPARSE_TOPK, how.topk = K, how.algorithm = (rg_sparse_algorithm_t)a;
        out.values = K;
        RIG_OK(m, rg_sparse_all_reduce(z, &in, &out, &how, &o));
        RIG_NEED(m, out.values == K, "%u values", (unsigned)out.values);
        for (uint64_t i = have = have_equal = 0; i < N; i++) {
            int same = fabsf(all[i]) == sorted[K - 1];
            if (fabsf(all[i]) < sorted[K - 1] || (same && have_equal++ >= equal)) continue;
            RIG_NEED(m, ((uint32_t *)out.idx)[have] == i && ((float *)out.val)[have] == all[i], "element %u",
                     (unsigned)i);
            have++;
        }
        /* The lists, the largest, and the rounds beside them. */
        uint64_t most = (uint64_t)(0.4 * N * 5.3) + K * 8 + K * 8 * n / 16 + 500 * n;
        if (a == RG_SPARSE_BY_SIZE && n > 2)
            RIG_NEED(m, r.bytes_received < most, "%u bytes, %u are enough", (unsigned)r.bytes_received, (unsigned)most);
    }
    list_free(&in), list_free(&out);
    free(all), free(sorted);
    rg_sparse_reducer_destroy(z);
    return rig_gate(m, 9, m->rig->n);
}

Test(sparse, topk__thousands_that_lie_unevenly__the_largest_for_few_bytes, .timeout = 60) {
    for (uint32_t n = 2; n <= 4; n++) rig_run(n, "inproc", NULL, many_largest, NULL);
}

/* What one member alone has keeps its bits, -0 and NaN too; so does a value that looks like one that is not there. */
static int alone(rig_member_t *m, void *arg) {
    rg_sparse_reducer_t *z = NULL;
    uint32_t idx[3] = { m->index, 100, 101 }, bits[3] = { 0x80000000u, 0xffffffffu, 0x7fc12345u };
    (void)arg;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (int a = 0; a <= RG_SPARSE_FULL; a++) {
        rg_sparse_t in = RG_SPARSE_INIT, out = list_of(RG_INDEX_U32, RG_F32, 0, 130);
        rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
        in.n = 130, in.values = m->index == 1 ? 3 : 1, in.idx = idx, in.val = bits;
        how.algorithm = (rg_sparse_algorithm_t)a;
        RIG_OK(m, rg_sparse_all_reduce(z, &in, &out, &how, NULL));
        RIG_NEED(m, out.values == m->rig->n + 2, "%u values", (unsigned)out.values);
        for (uint32_t i = 0; i < out.values; i++) {
            uint32_t want = i < m->rig->n ? bits[0] : bits[i - m->rig->n + 1];
            RIG_NEED(m, ((uint32_t *)out.val)[i] == want, "algorithm %d: value %u is %#x for %#x", a, i,
                     ((uint32_t *)out.val)[i], want);
        }
        list_free(&out);
    }
    rg_sparse_reducer_destroy(z);
    return rig_gate(m, 9, m->rig->n); /* who goes is lost to those whose last call still runs */
}

Test(sparse, all_reduce__what_one_member_alone_has__keeps_its_bits, .timeout = 60) {
    for (uint32_t n = 2; n <= 4; n++) rig_run(n, "inproc", NULL, alone, NULL);
}

static int in_place(rig_member_t *m, void *arg) {
    enum { N = 20000 };
    rg_sparse_reducer_t *z = NULL;
    (void)arg;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    rg_sparse_t in = list_of(RG_INDEX_DENSE, RG_F32, 0, N), out = in;
    for (uint64_t i = 0; i < N; i++) ((float *)in.val)[i] = (float)(i + m->index);
    RIG_OK(m, rg_sparse_all_reduce(z, &in, &out, NULL, NULL));
    for (uint64_t i = 0; i < N; i++)
        RIG_NEED(m, ((float *)in.val)[i] == (float)(3 * i + 3), "element %u: %g", (unsigned)i,
                 (double)((float *)in.val)[i]);
    list_free(&in);
    rg_sparse_reducer_destroy(z);
    return rig_gate(m, 9, m->rig->n); /* who goes is lost to those whose last call still runs */
}

Test(sparse, all_reduce__dense_in_place__sums, .timeout = 60) { rig_run(3, "inproc", NULL, in_place, NULL); }

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

static int bytes(rig_member_t *m, void *arg) {
    const double densities[] = { 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 0.99, 1 };
    enum { N = 1 << 17 };
    double n = m->rig->n;
    rg_sparse_reducer_t *z = NULL;
    (void)arg;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (uint32_t k = 0; k < 3 * sizeof densities / sizeof *densities; k++) {
        support_t support = (support_t)(k % 3);
        rg_index_t index = indices[k % 2 ? 3 : 0];
        rg_dtype_t dtype = dtypes[k % 2];
        rg_sparse_t in = input(index, dtype, m->index, k, N, densities[k / 3], support);
        rg_sparse_t out = list_of(index, dtype, 0, N);
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &r;
        RIG_OK(m, rg_sparse_all_reduce(z, &in, &out, NULL, &o));
        /* What is received: of what is sent, the last may be on its way when the call ends. */
        uint64_t mine[2] = { r.bytes_received, in.values }, all[2];
        RIG_OK(m, rg_all_reduce(m->g, mine, all, 2, RG_U64, RG_SUM, NULL, NULL));
        double w = (double)rg_dtype_size(dtype), values = (double)all[1] / n, sum = (double)out.values;
        double e = w + (index == RG_INDEX_U32 ? 4 : 1.5), count = index == RG_INDEX_U32 ? 0 : N / 2048.0;
        double list = e * values + count, sums = e * sum + count;
        double best = 2 * (n - 1) / n * w * N;
        best = fmin(best, (n - 1) * list);
        best = fmin(best, (n - 1) / n * (list + sums));
        best = fmin(best, (n - 1) / n * (list + w * N));
        double got = (double)all[0] / n;
        RIG_NEED(m, got <= 1.02 * best + 64 * n, "density %g, support %d: %.0f bytes for %.0f", densities[k / 3],
                 (int)support, got, best);
        list_free(&in), list_free(&out);
    }
    rg_sparse_reducer_destroy(z);
    return rig_gate(m, 9, m->rig->n); /* who goes is lost to those whose last call still runs */
}

Test(sparse, bytes__densities_of_all_sizes__not_more_than_the_best_formula, .timeout = 200) {
    for (uint32_t n = 2; n <= 4; n++) rig_run(n, "inproc", NULL, bytes, NULL);
}

/* Elements that lie at the beginning: from the second call on all add up about as much, with the same result, also when
 * a member has forgotten. */
static int skewed(rig_member_t *m, void *arg) {
    uint64_t n = (uint64_t)m->rig->n * 64 * RG_WINDOW + 1000, first[2];
    rg_sparse_reducer_t *z = NULL;
    rg_sparse_t in = input(RG_INDEX_U32, RG_F32, m->index, 31, n, 0.02, ALONE),
                out = list_of(RG_INDEX_U32, RG_F32, 0, n);
    (void)arg;
    for (uint64_t i = 0; i < in.values; i++) /* the square of what it was */
        ((uint32_t *)in.idx)[i] = (uint32_t)((double)((uint32_t *)in.idx)[i] * ((uint32_t *)in.idx)[i] / (double)n);
    uint64_t have = 0;
    for (uint64_t i = 0; i < in.values; i++)
        if (have == 0 || ((uint32_t *)in.idx)[i] > ((uint32_t *)in.idx)[have - 1])
            ((uint32_t *)in.idx)[have] = ((uint32_t *)in.idx)[i], ((float *)in.val)[have++] = ((float *)in.val)[i];
    in.values = have;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (int call = 0; call < 4; call++) {
        rg_info_t from = RG_INFO_INIT, to = RG_INFO_INIT;
        rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
        how.algorithm = RG_SPARSE_SPLIT;
        out.values = n;
        if (call == 2 && m->index == 1) {
            rg_sparse_reducer_destroy(z);
            RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
        }
        RIG_OK(m, rg_barrier(m->g, NULL, NULL));
        RIG_OK(m, rg_group_info(m->g, &from));
        RIG_OK(m, rg_sparse_all_reduce(z, &in, &out, &how, NULL));
        RIG_OK(m, rg_barrier(m->g, NULL, NULL)); /* after it all that the call sent has been counted */
        RIG_OK(m, rg_group_info(m->g, &to));
        uint64_t sent = to.bytes_sent - from.bytes_sent, most, all, hash[2] = { out.values, 0 };
        for (uint64_t i = 0; i < out.values; i++)
            hash[1] = hash[1] * 31 + ((uint32_t *)out.idx)[i] + ((uint32_t *)out.val)[i];
        if (call == 0) memcpy(first, hash, sizeof first);
        RIG_NEED(m, memcmp(first, hash, sizeof first) == 0, "call %d gives another result", call);
        RIG_OK(m, rg_all_reduce(m->g, &sent, &most, 1, RG_U64, RG_MAX, NULL, NULL));
        RIG_OK(m, rg_all_reduce(m->g, &sent, &all, 1, RG_U64, RG_SUM, NULL, NULL));
        double over = (double)most * m->rig->n / (double)all;
        RIG_NEED(m, call % 2 == 0 || over < 1.2, "call %d: one sends %.3f times what all do on average", call, over);
        RIG_NEED(m, call % 2 == 1 || over > 1.2, "call %d: nothing to balance, %.3f", call, over);
    }
    list_free(&in), list_free(&out);
    rg_sparse_reducer_destroy(z);
    return rig_gate(m, 9, m->rig->n);
}

Test(sparse, parts__elements_that_lie_unevenly__balanced_from_the_second_call_on, .timeout = 100) {
    rig_run(3, "inproc", NULL, skewed, NULL);
}

/* Of very long vectors what is empty is passed over: with all windows gone over this would take minutes. */
static int far_apart(rig_member_t *m, void *arg) {
    enum { HAS = 4 };
    uint64_t n = 1ull << 36, idx[HAS], got[4 * HAS], left_at[HAS];
    float val[HAS] = { 1, 2, 3, 4 }, sums[4 * HAS], left[HAS];
    rg_sparse_reducer_t *z = NULL;
    (void)arg;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (uint32_t k = 0; k < 4; k++) {
        rg_sparse_t in = RG_SPARSE_INIT, out, rest;
        rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
        for (uint64_t i = 0; i < HAS; i++) idx[i] = i == HAS - 1 ? n - 1 : (i + 1) * (n / 5) + m->index;
        in.index = RG_INDEX_U64, in.n = n;
        out = rest = in;
        in.values = rest.values = HAS, in.idx = idx, in.val = val;
        out.values = 4 * HAS, out.idx = got, out.val = sums, rest.idx = left_at, rest.val = left;
        how.algorithm = k % 2 ? RG_SPARSE_SPLIT : RG_SPARSE_GATHER;
        how.rest = &rest;
        if (k >= 2) how.result = RG_SPARSE_TOPK, how.topk = 1;
        RIG_OK(m, rg_sparse_all_reduce(z, &in, &out, &how, NULL));
        uint64_t want = k >= 2 ? 1 : (HAS - 1) * m->rig->n + 1;
        RIG_NEED(m, out.values == want && got[want - 1] == n - 1 && sums[want - 1] == 4 * (float)m->rig->n,
                 "call %u: %u values", k, (unsigned)out.values);
        RIG_NEED(m, k >= 2 || (got[1] == n / 5 + 1 && sums[1] == 1.0f), "call %u: the second", k);
        RIG_NEED(m, rest.values == (k >= 2 ? HAS - 1 : 0), "call %u: %u are left", k, (unsigned)rest.values);
    }
    rg_sparse_reducer_destroy(z);
    return rig_gate(m, 9, m->rig->n);
}

Test(sparse, all_reduce__few_elements_of_very_long_vectors__at_once, .timeout = 60) {
    rig_run(3, "inproc", NULL, far_apart, NULL);
}

/* ---- Calls that are wrong ---------------------------------------------------------------------------------------- */

static int wrong(rig_member_t *m, void *arg) {
    rg_sparse_reducer_t *z = NULL;
    uint32_t idx[4] = { 1, 5, 9, 90 }, got[8] = { 77 };
    float val[4] = { 1, 2, 3, 4 }, sums[8] = { 77 };
    rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    int odd = m->index == 1;
    (void)arg;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (int a = 0; a <= RG_SPARSE_FULL; a++) {
        rg_sparse_t in = RG_SPARSE_INIT, out = RG_SPARSE_INIT;
        how.algorithm = (rg_sparse_algorithm_t)a;
        in.n = out.n = 100, in.values = 4, in.idx = idx, in.val = val;
        out.values = 8, out.idx = got, out.val = sums;
#define CALL() rg_sparse_all_reduce(z, &in, &out, &how, NULL)
        if (odd) idx[2] = 4;
        RIG_NEED(m, CALL() == RG_ERR_INVALID && strstr(rig_errmsg(m), "rank 1"), "order: %s", rig_errmsg(m));
        if (odd) idx[2] = 5;
        RIG_NEED(m, CALL() == RG_ERR_INVALID && strstr(rig_errmsg(m), "rank 1"), "twice: %s", rig_errmsg(m));
        idx[2] = 9;
        if (odd) idx[3] = 100;
        RIG_NEED(m, CALL() == RG_ERR_INVALID && strstr(rig_errmsg(m), "beyond"), "range: %s", rig_errmsg(m));
        idx[3] = 90;
        if (odd) in.val = NULL;
        RIG_NEED(m, CALL() == RG_ERR_INVALID, "NULL: %s", rig_errmsg(m));
        in.val = val;
        if (odd) in.n = out.n = 101;
        RIG_NEED(m, CALL() == RG_ERR_MISMATCH, "length: %s", rig_errmsg(m));
        in.n = out.n = 100;
        if (odd) how.op = RG_SPARSE_MAX;
        RIG_NEED(m, CALL() == RG_ERR_MISMATCH, "operator: %s", rig_errmsg(m));
        how.op = RG_SPARSE_SUM;
        if (odd) out.values = 3;
        RIG_NEED(m, CALL() == RG_ERR_CAPACITY && out.values == 4, "room: %s, %u", rig_errmsg(m), (unsigned)out.values);
        out.values = 8;
        if (odd) out.index = RG_INDEX_DENSE;
        RIG_NEED(m, CALL() == RG_ERR_CAPACITY && out.values == 100, "room: %s, %u", rig_errmsg(m),
                 (unsigned)out.values);
        out.index = RG_INDEX_U32;
        RIG_NEED(m, got[0] == 77 && sums[0] == 77.0f, "the result was written");
        out.values = 8;
        RIG_OK(m, CALL());
        RIG_NEED(m, out.values == 4 && got[3] == 90 && sums[3] == 4 * (float)m->rig->n, "result");
        got[0] = 77, sums[0] = 77;
        RIG_NEED(m, rg_sparse_all_reduce(z, NULL, &out, &how, NULL) == RG_ERR_INVALID, "no list");
        o.scale = 2;
        RIG_NEED(m, rg_sparse_all_reduce(z, &in, &out, &how, &o) == RG_ERR_NOTSUP, "scale");
        o.scale = 0, o.on_fault = (rg_on_fault_t)99;
        RIG_NEED(m, rg_sparse_all_reduce(z, &in, &out, &how, &o) == RG_ERR_INVALID && strstr(rig_errmsg(m), "99"),
                 "on_fault: %s", rig_errmsg(m));
#undef CALL
    }
    how.algorithm = (rg_sparse_algorithm_t)9;
    rg_sparse_t in = RG_SPARSE_INIT;
    rg_result_t r = RG_RESULT_INIT;
    o.on_fault = RG_RETRY, o.result = &r;
    RIG_NEED(m, rg_sparse_all_reduce(z, &in, &in, &how, &o) == RG_ERR_INVALID, "algorithm");
    RIG_NEED(m, r.status == RG_ERR_INVALID && strstr(r.text, "algorithm 9"), "algorithm: %s", r.text);
    RIG_NEED(m, rg_seeded_all_reduce(z, val, val, 4, RG_F32, NULL, &o) == RG_ERR_INVALID && strstr(r.text, "how"),
             "seeded: %s", r.text);
    rg_sparse_reducer_destroy(z);
    return rig_gate(m, 0, m->rig->n);
}

Test(sparse, calls__that_differ_or_are_wrong__refused_alike_and_nothing_written, .timeout = 100) {
    rig_run(2, "inproc", NULL, wrong, NULL);
    rig_run(4, "inproc", NULL, wrong, NULL);
}

/* ---- Deaths ------------------------------------------------------------------------------------------------------ */

typedef struct death {
    rg_on_fault_t on_fault;
    uint64_t after_us; /* from a gate on */
} death_t;

static int loses(rig_member_t *m, void *arg) {
    enum { N = 10000 };
    const death_t *d = arg;
    rg_sparse_reducer_t *z = NULL;
    int dies = m->index == 1;
    float *x = malloc(N * sizeof *x);
    rg_sparse_t in = input(RG_INDEX_U16, RG_F32, m->index, 4, N, 0.05, ALONE),
                out = list_of(RG_INDEX_BITMAP, RG_F32, 0, N);
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    if (dies) rig_ends_after(m, d->after_us);
    for (uint32_t after = 0; after < 3;) {
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &r;
        o.on_fault = d->on_fault;
        out.values = N;
        rg_status_t st = rg_sparse_all_reduce(z, &in, &out, NULL, &o);
        if (dies && st != RG_OK) break;
        RIG_NEED(m, st == RG_OK || (st == RG_ERR_PEER_LOST && d->on_fault == RG_RETURN), "%s: %s", rg_status_name(st),
                 rig_errmsg(m));
        if (st != RG_OK) continue;
        int lost = r.contributors < m->rig->n;
        after += (uint32_t)lost;
        RIG_OK(m, rg_sparse_to_dense(&out, x, NULL));
        for (uint64_t i = 0; i < N; i++) {
            float want = 0;
            for (uint32_t j = 0; j < m->rig->n; j++) want += lost && j == 1 ? 0 : element(4, j, i, N, 0.05, ALONE);
            RIG_NEED(m, x[i] == want, "%u contributors, element %u: %g for %g", r.contributors, (unsigned)i,
                     (double)x[i], (double)want);
        }
    }
    if (!dies) RIG_NEED(m, rig_gate(m, 1, m->rig->n - 1) == 0, "gate");
    rg_sparse_reducer_destroy(z);
    list_free(&in), list_free(&out);
    free(x);
    return 0;
}

Test(sparse, all_reduce__a_member_dies_at_any_moment__the_others_agree, .timeout = 200) {
    for (uint64_t k = 0; k < 16; k++) {
        death_t d = { k % 2 == 0 ? RG_RETRY : RG_RETURN, 50 + k * 131 };
        rig_run(4, "inproc", NULL, loses, &d);
    }
}

/* ---- Newcomers, and a member without memory ---------------------------------------------------------------------- */

/* A view of newcomers has an epoch of its own, and the operations in it go on in that of the data. */
static int grows(rig_member_t *m, void *arg) {
    uint64_t one = 1, sum = 0, until = rig_now() + 30000000000ull * RIG_SLOW;
    int fresh = m->index == m->rig->n - 1;
    uint32_t idx[2], got[16], owner = 1;
    float val[2] = { 1, 2 }, sums[16];
    uint8_t present[RIG_MAX] = { 1, 1, 1, 1, 1, 1, 1, 1 };
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
    rg_sparse_reducer_t *z = NULL;
    rg_sparse_t in = RG_SPARSE_INIT, out = RG_SPARSE_INIT;
    rg_info_t info = RG_INFO_INIT;
    RIG_OK(m, rg_group_info(m->g, &info));
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    idx[0] = info.rank, idx[1] = 90;
    in.n = out.n = 100, in.values = 2, in.idx = idx, in.val = val;
    out.values = 16, out.idx = got, out.val = sums;
    RIG_OK(m, rg_sparse_all_reduce(z, &in, &out, NULL, NULL));
    RIG_NEED(m, out.values == sum + 1 && sums[sum] == 2 * (float)sum, "%u values", (unsigned)out.values);
    rg_sparse_reducer_destroy(z);
    rg_placement_t p = RG_PLACEMENT_INIT;
    rg_moves_t *moves = NULL;
    uint64_t bytes = sizeof one;
    void *chunk[1] = { &one };
    p.chunks = 1, p.bytes = &bytes, p.owner = &owner, p.present = present;
    one = info.rank == 1 ? 7 : 0;
    RIG_OK(m, rg_moves_create(m->g, &p, NULL, &moves));
    RIG_OK(m, rg_moves_gather(moves, chunk, NULL));
    RIG_OK(m, rg_moves_wait(moves, NULL));
    RIG_NEED(m, one == 7, "%u arrived", (unsigned)one);
    rg_moves_destroy(moves);
    return rig_gate(m, 9, m->rig->n);
}

Test(sparse, calls__after_a_newcomer_has_entered__succeed, .timeout = 100) { rig_run(3, "inproc", NULL, grows, NULL); }

/* In a sub-group, whose ranks are others than those of the whole. */
static int halves(rig_member_t *m, void *arg) {
    rg_group_t *half = NULL;
    rg_sparse_reducer_t *z = NULL;
    rg_topk_reducer_t *y = NULL;
    rg_topk_t t = RG_TOPK_INIT;
    uint32_t colour = m->index % 2, idx[2] = { m->index, 50 }, got[8], owner[2] = { 0, 1 };
    float val[2] = { 1, (float)m->index }, sums[8], x[64] = { 0 };
    uint8_t present[2] = { 3, 3 };
    uint64_t bytes[2] = { 100000, 8 };
    void *chunk[2] = { calloc(1, 100000), calloc(1, 8) };
    (void)arg;
    RIG_OK(m, rg_group_split(m->g, colour, m->rig->n - m->index, NULL, &half));
    RIG_OK(m, rg_sparse_reducer_create(half, &z, NULL));
    RIG_OK(m, rg_topk_reducer_create(half, &t, NULL, &y, NULL));
    rg_sparse_t in = RG_SPARSE_INIT, out = RG_SPARSE_INIT;
    in.n = out.n = 100, in.values = 2, in.idx = idx, in.val = val;
    out.values = 8, out.idx = got, out.val = sums;
    RIG_OK(m, rg_sparse_all_reduce(z, &in, &out, NULL, NULL));
    RIG_NEED(m, out.values == 3 && got[0] == colour && got[1] == colour + 2 && sums[2] == 2 * (float)colour + 2,
             "%u values, %g", (unsigned)out.values, (double)sums[2]);
    x[5] = (float)m->index + 1;
    RIG_OK(m, rg_topk_all_reduce(y, x, x, 64, RG_SPARSE_SUM, NULL));
    RIG_NEED(m, x[5] == 2 * (float)colour + 4, "%g", (double)x[5]);
    rg_placement_t p = RG_PLACEMENT_INIT;
    rg_moves_t *moves = NULL;
    p.chunks = 2, p.bytes = bytes, p.owner = owner, p.present = present;
    /* Ranks are the other way round: rank 0 is the later one. */
    memset(chunk[0], m->index >= 2 ? 40 + (int)colour : 0, 100000);
    memset(chunk[1], m->index < 2 ? 50 + (int)colour : 0, 8);
    RIG_OK(m, rg_moves_create(half, &p, NULL, &moves));
    RIG_OK(m, rg_moves_gather(moves, chunk, NULL));
    RIG_OK(m, rg_moves_wait(moves, NULL));
    RIG_NEED(m, ((uint8_t *)chunk[0])[99999] == 40 + colour && ((uint8_t *)chunk[1])[7] == 50 + colour, "chunks");
    rg_moves_destroy(moves);
    free(chunk[0]), free(chunk[1]);
    rg_sparse_reducer_destroy(z);
    rg_topk_reducer_destroy(y);
    int rc = rig_gate(m, 9, m->rig->n);
    rg_group_destroy(half);
    return rc;
}

Test(sparse, calls__in_sub_groups__each_for_its_own, .timeout = 60) { rig_run(4, "inproc", NULL, halves, NULL); }

/* What a member does that has no memory: the others are told at once, and the group goes on. */
static int poor(rig_member_t *m, void *arg) {
    rg_sparse_reducer_t *z = NULL;
    rg_topk_reducer_t *y = NULL;
    rg_topk_t t = RG_TOPK_INIT;
    uint32_t idx[1] = { 5 }, got[8];
    float val[1] = { 1 }, sums[8];
    rg_sparse_t in = RG_SPARSE_INIT, out = RG_SPARSE_INIT;
    (void)arg;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    RIG_OK(m, rg_topk_reducer_create(m->g, &t, NULL, &y, NULL));
    in.n = out.n = 100, in.values = 1, in.idx = idx, in.val = val;
    out.idx = got, out.val = sums;
    uint64_t from = rig_now();
    for (int which = 0; which < 2; which++) {
        if (m->index == 1) {
            rg_frame_t f;
            RIG_OK(m, rg_frame_open(&f, m->g, "poor", NULL));
            rg_status_t st;
            do {
                RIG_OK(m, rg_frame_shape(&f));
                st = rg_frame_no_memory(&f);
            } while (rg_frame_more(&f, st, 1));
            RIG_NEED(m, rg_frame_close(&f, st) == RG_ERR_NOMEM, "%s", rg_status_name(st));
        } else {
            out.values = 8;
            rg_status_t st = which ? rg_topk_all_reduce(y, sums, sums, 8, RG_SPARSE_SUM, NULL)
                                   : rg_sparse_all_reduce(z, &in, &out, NULL, NULL);
            RIG_NEED(m, st == RG_ERR_MISMATCH, "%s", rg_status_name(st));
        }
    }
    RIG_NEED(m, (double)(rig_now() - from) / 1e6 < 20000 + rig_late_ms(from), "not at once");
    out.values = 8;
    RIG_OK(m, rg_sparse_all_reduce(z, &in, &out, NULL, NULL));
    RIG_NEED(m, out.values == 1 && sums[0] == (float)m->rig->n, "the sum after it");
    rg_sparse_reducer_destroy(z);
    rg_topk_reducer_destroy(y);
    return rig_gate(m, 9, m->rig->n);
}

Test(sparse, calls__a_member_has_no_memory__the_others_end_at_once, .timeout = 100) {
    rig_run(3, "inproc", NULL, poor, NULL);
}

/* One without memory at first, which then has it, and calls what fits nobody's call: the others' outcome is its own. */
static int poor_at_first(rig_member_t *m, void *arg) {
    rg_frame_t f;
    rg_status_t st;
    uint8_t all[16] = { 0 }, mine[4] = { 0 };
    int lacks = m->index == 1, before = 1;
    (void)arg;
    RIG_OK(m, rg_frame_open(&f, m->g, "poor", NULL));
    do {
        RIG_OK(m, rg_frame_shape(&f));
        uint64_t len = m->index == 1 ? 3 : 2;
        st = lacks ? rg_frame_no_memory(&f)
                   : rg_frame_ended(&f, rg_all_gather(m->g, mine, all, len, RG_U8, rg_frame_opts(&f), NULL));
        RIG_NEED(m, !before || st == RG_ERR_MISMATCH, "the first attempt: %s", rg_status_name(st));
        lacks = before = 0;
    } while (rg_frame_more(&f, st, 1));
    st = rg_frame_close(&f, st);
    RIG_NEED(m, st == RG_ERR_MISMATCH, "%s", rg_status_name(st));
    return rig_gate(m, 9, m->rig->n);
}

Test(sparse, calls__no_memory_in_an_attempt_before__the_outcome_of_the_last_one, .timeout = 60) {
    rig_run(3, "inproc", NULL, poor_at_first, NULL);
}

/* One that began for other members than those who came together: the text says so, and not what another call did. */
static int apart(rig_member_t *m, void *arg) {
    uint8_t mine = 0, all[RIG_MAX];
    rg_frame_t f;
    (void)arg;
    RIG_OK(m, rg_frame_open(&f, m->g, "apart", NULL));
    RIG_OK(m, rg_frame_shape(&f));
    f.members ^= 1;
    rg_status_t st = rg_frame_ended(&f, rg_all_gather(m->g, &mine, all, 1, RG_U8, rg_frame_opts(&f), NULL));
    RIG_NEED(m, st == RG_ERR_PEER_LOST && strstr(f.r.text, "apart: it was begun for 3"), "%s", f.r.text);
    rg_refuse(m->g, RG_ERR_INVALID, "of another call");
    rg_result_t r = RG_RESULT_INIT;
    f.result = &r;
    RIG_NEED(m, rg_frame_close(&f, st) == RG_ERR_PEER_LOST && strstr(r.text, "apart: ") == r.text, "%s", r.text);
    RIG_NEED(m, rg_frame_apart(&f, 2) == RG_ERR_PEER_LOST && strstr(f.r.text, "rank 2"), "%s", f.r.text);
    return rig_gate(m, 9, m->rig->n);
}

Test(sparse, calls__begun_for_other_members__ended_with_a_text_of_their_own, .timeout = 60) {
    rig_run(3, "inproc", NULL, apart, NULL);
}

/* ---- Elements that a seed chooses ------------------------------------------------------------------------------- */

Test(sparse, seeded__all_patterns_and_seeds__ascending_and_in_time_everything) {
    static uint64_t at[1000];
    static uint8_t seen[1000];
    for (int pattern = 0; pattern < 3; pattern++)
        for (uint64_t n = 1; n < 1000; n = n * 3 + 1)
            for (uint64_t k = 1; k <= n; k = k * 2 + 1) {
                memset(seen, 0, sizeof seen);
                for (uint64_t seed = 0; seed < 2 * n + 20; seed++) {
                    cr_assert_eq(rg_seeded_places((rg_seeded_t)pattern, seed, n, k, at), RG_OK);
                    for (uint64_t i = 0; i < k; i++) {
                        cr_assert(at[i] < n && (i == 0 || at[i] > at[i - 1]));
                        seen[at[i]] = 1;
                    }
                }
                for (uint64_t i = 0; i < n; i++)
                    cr_assert(seen[i] || pattern == RG_SEEDED_RANDOM, "pattern %d, %u of %u: %u never", pattern,
                              (unsigned)k, (unsigned)n, (unsigned)i);
            }
    cr_assert_eq(rg_seeded_places(RG_SEEDED_RANDOM, 1, 3, 4, at), RG_ERR_INVALID);
    cr_assert_eq(rg_seeded_places((rg_seeded_t)7, 1, 3, 2, at), RG_ERR_INVALID);
}

static int seeded(rig_member_t *m, void *arg) {
    enum { N = 5000, K = 300 };
    rg_sparse_reducer_t *z = NULL;
    float *in = malloc(N * sizeof *in), *out = malloc(N * sizeof *out);
    uint64_t at[K];
    (void)arg;
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (int pattern = 0; pattern < 3; pattern++) {
        float *to = pattern == 1 ? in : out;
        rg_result_t r = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        rg_seeded_how_t how = RG_SEEDED_HOW_INIT;
        o.result = &r;
        how.pattern = (rg_seeded_t)pattern, how.seed = 77, how.count = K, how.op = RG_AVG;
        for (uint64_t i = 0; i < N; i++) in[i] = (float)(i + m->index), out[i] = -1;
        RIG_OK(m, rg_seeded_all_reduce(z, in, to, N, RG_F32, &how, &o));
        RIG_OK(m, rg_seeded_places(how.pattern, 77, N, K, at));
        uint64_t k = 0;
        for (uint64_t i = 0; i < N; i++) {
            float want = pattern == 1 ? (float)(i + m->index) : -1;
            if (k < K && at[k] == i) want = (float)i + 1, k++;
            RIG_NEED(m, fabsf(to[i] - want) < 1e-2f, "element %u: %g for %g", (unsigned)i, (double)to[i], (double)want);
        }
        RIG_NEED(m, r.bytes_received < 8 * K + 200, "%u bytes", (unsigned)r.bytes_received);
        if (m->index == 1) how.seed = 78;
        out[at[0]] = 5;
        RIG_NEED(m, rg_seeded_all_reduce(z, in, out, N, RG_F32, &how, &o) == RG_ERR_MISMATCH, "seeds");
        RIG_NEED(m, out[at[0]] == 5.0f, "the output was written");
        how.count = N + 1;
        RIG_NEED(m, rg_seeded_all_reduce(z, in, out, N, RG_F32, &how, &o) == RG_ERR_INVALID, "too many");
    }
    rg_sparse_reducer_destroy(z);
    free(in), free(out);
    return rig_gate(m, 9, m->rig->n); /* who goes is lost to those whose last call still runs */
}

Test(sparse, seeded__three_members__averages_at_the_places_and_nothing_elsewhere, .timeout = 60) {
    rig_run(3, "inproc", NULL, seeded, NULL);
}
