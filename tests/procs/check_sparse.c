/* check_sparse.c: random sparse collectives among real processes that are killed (random_ops.c): lists in all forms of
 * indices, types, operators, results and algorithms, as they are or in wire forms, with what is left out; chunked top-k
 * with feedback; elements that a seed chooses. What the interface fixes to the bit is made anew here from the
 * contributors' inputs, which are functions of member and round, and compared; the rest is held to its bound. Relies on
 * the scalar codec and the casts of the library. */
#include "quant/codec.h"
#include "random_ops.h"
#include "sparse/list.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N RANDOM_N
#define MOST 70000u
#define COUNT_TOPK 9000u

enum { LISTS, TOPK, SEEDED };
enum { ORDINARY, TIES, WIDE, ZEROES, HUGE_ONES, NOT_FINITE };
enum { CLASS_TOPK = RG_SPARSE_FULL + 1, CLASS_SEEDED, CLASSES };

struct round {
    int what, data, request, cancel, in_place, shared, own; /* own: a reducer of its own */
    rg_on_fault_t on_fault;
    uint32_t n;
    double density;
    rg_dtype_t dtype;
    uint32_t block; /* 0: no blocks */
    uint64_t room;  /* of results that are not blocks or dense */
    int coded, rest;
    rg_sparse_how_t how;
    rg_quant_t q;
    rg_topk_t t;
    int feeds, preset;
    rg_feedback_t f;
    rg_seeded_how_t seeded;
};

/* What a member has of a vector. */
struct part {
    float v[MOST];
    uint8_t has[MOST];
    uint64_t many;
    int finite;
};

struct own {
    rg_sparse_reducer_t *z;
    struct part *part, *sum;
    rg_sparse_t in, out, rest;
    float *a, *b, *c, *kept, *kept_want; /* room for a vector */
    uint8_t *wire, *copy_idx, *copy_val;
    uint32_t *count;
    uint64_t *at;
};

/* ---- What is called -------------------------------------------------------------------------------------------- */

static void list_round(struct round *r, uint64_t y) {
    static const rg_dtype_t types[] = { RG_F32, RG_F32, RG_BF16, RG_F16 };
    static const double densities[] = { 0, 0.002, 0.02, 0.02, 0.1, 0.1, 0.5, 1 };
    r->n = (uint32_t)((y & 0xffffffff) % ((y >> 60 & 7) == 0 ? MOST : (y >> 60 & 7) == 1 ? 9 : 3000)) + 1;
    r->density = densities[y >> 32 & 7];
    r->dtype = types[y >> 35 & 3];
    r->shared = (y >> 37 & 3) == 0;
    r->how.op = (rg_sparse_op_t)((y >> 39 & 15) % 5);
    r->how.algorithm = (rg_sparse_algorithm_t)((y >> 43 & 15) % 5);
    r->how.result = (rg_sparse_result_t)((y >> 47 & 7) % 3);
    if (r->how.result == RG_SPARSE_TOPK) r->how.topk = (y >> 50 & 3) == 0 ? 1500 : (y >> 52 & 255) % (r->n + 1);
    y = random_spread(y);
    r->block = (y & 3) == 0 && r->how.result != RG_SPARSE_TOPK ? 1u << (y >> 2 & 7) : 0;
    r->coded = (y >> 5 & 3) == 0;
    if (r->coded) r->dtype = RG_F32;
    r->q = (rg_quant_t)RG_QUANT_INIT((rg_wire_t)(1 + (y >> 8 & 255) % (RG_WIRE_COUNT - 1)));
    r->q.flags = (y >> 16 & 3 ? 0 : RG_QUANT_STOCHASTIC) | (y >> 18 & 1 ? RG_QUANT_SATURATE : 0);
    r->rest = !r->block && (y >> 19 & 1);
    r->room = r->n;
    if ((y >> 20 & 3) == 0 && r->how.result != RG_SPARSE_AUTO && !(r->coded && r->data >= HUGE_ONES))
        r->room = (y >> 22 & 0xffff) % (1 + (uint64_t)(r->n * fmin(1, 2 * r->density)));
}

static void topk_round(struct round *r, uint64_t y) {
    static const uint32_t ks[] = { 1, 7, 64, 500 };
    static const float betas[] = { 0, 0.5f, 0.95f, 1 }, clips[] = { 0, 0, 0.01f, 0.25f };
    r->n = (uint32_t)((y & 0xffffffff) % COUNT_TOPK);
    r->t = (rg_topk_t)RG_TOPK_INIT;
    r->t.k = ks[y >> 32 & 3];
    r->t.values = (uint32_t)((y >> 34 & 255) % (RG_WIRE_COUNT + 1));
    if (r->t.values == RG_WIRE_COUNT) r->t.values = RG_TOPK_2BIT;
    r->t.flags = (y >> 42 & 3) == 0 ? RG_TOPK_DCT : 0;
    if (r->t.flags) r->n = RG_TOPK_CHUNK << (y >> 44 & 1);
    r->how.op = (rg_sparse_op_t)((y >> 45 & 15) % 3);
    r->feeds = y >> 49 & 1;
    r->preset = r->feeds && (y >> 50 & 1);
    r->f = (rg_feedback_t)RG_FEEDBACK_INIT;
    r->f.beta = betas[y >> 51 & 3], r->f.clip = clips[y >> 53 & 3];
    if (r->data == HUGE_ONES) r->data = WIDE; /* which sums overflow is not said */
}

static void seeded_round(struct round *r, uint64_t y) {
    static const rg_op_t ops[] = { RG_SUM, RG_MAX, RG_MIN, RG_SUM };
    r->n = (uint32_t)((y & 0xffffffff) % 3000) + 1;
    r->seeded = (rg_seeded_how_t)RG_SEEDED_HOW_INIT;
    r->seeded.pattern = (rg_seeded_t)((y >> 32 & 15) % 3);
    r->seeded.op = ops[y >> 36 & 3];
    r->seeded.seed = random_spread(y);
    r->seeded.count = (y >> 38 & 0xfff) % (r->n + 1);
    r->data = TIES; /* sums of which are exact in any order */
}

static struct round round_of(uint64_t gen) {
    static const int data[16] = {
        [6] = TIES, TIES, TIES, WIDE, WIDE, ZEROES, ZEROES, HUGE_ONES, NOT_FINITE, NOT_FINITE
    };
    uint64_t x = random_draw(gen);
    struct round r = { .on_fault = x & 1 ? RG_RETURN : RG_RETRY,
                       .request = (x >> 1 & 3) == 0,
                       .how = RG_SPARSE_HOW_INIT };
    r.what = (x >> 3 & 7) < 5 ? LISTS : (x >> 3 & 7) < 7 ? TOPK : SEEDED;
    r.cancel = r.request && (x >> 6 & 3) == 0;
    r.data = data[x >> 8 & 15];
    r.in_place = x >> 12 & 1;
    r.own = (x >> 13 & 3) == 0;
    if (r.what == LISTS) list_round(&r, random_spread(x));
    else if (r.what == TOPK) topk_round(&r, random_spread(x));
    else seeded_round(&r, random_spread(x));
    return r;
}

static float value(const struct round *r, uint64_t id, uint64_t gen, uint64_t i) {
    static const float odd[] = { NAN, INFINITY, -INFINITY };
    uint64_t h = random_spread(id * 31 + gen * 0x9e3779b97f4a7c15ull + i);
    float v = random_unit(id, gen, i);
    switch (r->data) {
    case TIES: return rintf(v * 6) / 4;
    case WIDE: return ldexpf(v, (int)(h % 61) - 30);
    case ZEROES: return h & 2 ? v : h & 1 ? -0.0f : 0.0f;
    case HUGE_ONES: return v * 3.4e38f;
    case NOT_FINITE: return random_spread(id ^ gen) % 3 == 0 && h % 64 == 0 ? odd[(h >> 8) % 3] : v;
    default: return v;
    }
}

static float kept_before(uint64_t id, uint64_t gen, uint64_t i) { return 0.25f * random_unit(id + 1, ~gen, i); }

/* The form in which a member has its list, and in which it wants the result, or what is left out. */
enum { AS_INPUT, AS_RESULT, AS_REST };

static rg_index_t index_of(const struct round *r, uint64_t id, uint64_t gen, int as) {
    uint64_t h = random_spread(id + gen * 7 + (uint64_t)as);
    if (r->block && (as == AS_INPUT || h % 3 == 0)) return RG_INDEX_BLOCKS;
    if (as == AS_INPUT) return h % 16 == 0 ? RG_INDEX_DENSE : (rg_index_t)(1 + (h >> 8) % 5);
    return as == AS_RESULT && r->how.result != RG_SPARSE_TOPK && h % 7 == 0 ? RG_INDEX_DENSE
                                                                            : (rg_index_t)(1 + (h >> 8) % 5);
}

/* ---- What members have ------------------------------------------------------------------------------------------ */

static void rounded(rg_dtype_t dtype, const float *v, uint64_t n, uint8_t *raw, float *back) {
    rg_casts_t c;
    rg_casts_init(&c, dtype);
    rg_red_copy(&c.out, raw, v, n);
    rg_red_copy(&c.in, back, raw, n);
}

static void part_of(const struct round *r, uint64_t id, uint64_t gen, struct own *o, struct part *p) {
    rg_index_t index = index_of(r, id, gen, AS_INPUT);
    uint64_t step = index == RG_INDEX_BLOCKS ? r->block : 1;
    for (uint64_t i = 0; i < r->n; i++) p->v[i] = value(r, id, gen, i);
    rounded(r->dtype, p->v, r->n, o->wire, p->v);
    p->many = 0, p->finite = 1;
    for (uint64_t i = 0; i < r->n; i++) {
        uint64_t h = random_spread((r->shared ? 5 : id) * 0x94d049bb133111ebull + gen + i / step * 3);
        p->has[i] = index == RG_INDEX_DENSE || (double)(h >> 11) * 0x1p-53 < r->density;
        p->many += p->has[i];
        p->finite &= !p->has[i] || isfinite(p->v[i]);
    }
}

/* p->v becomes what is heard of it. */
static void coded_part(const struct round *r, struct own *o, struct part *p) {
    rg_code_t k = { .saturate = (r->q.flags & RG_QUANT_SATURATE) != 0 };
    uint64_t have = 0;
    for (uint64_t i = 0; i < r->n; i++)
        if (p->has[i]) o->a[have++] = p->v[i];
    if (have == 0 || !rg_codecs_scalar.encode[r->q.wire](&k, 0, o->a, have, o->wire)) return;
    rg_codecs_scalar.decode[r->q.wire](o->wire, have, o->a);
    have = 0;
    for (uint64_t i = 0; i < r->n; i++)
        if (p->has[i]) p->v[i] = o->a[have++];
}

/* The caller's list of what p has, in memory of s that has room for any. */
static void list_of(const struct round *r, rg_index_t index, const struct part *p, struct own *o, rg_sparse_t *s) {
    uint64_t have = 0;
    s->index = index, s->dtype = r->dtype, s->block = r->block, s->n = r->n, s->values = r->n;
    for (uint64_t i = 0; i < r->n; i++) o->b[i] = p->has[i];
    rounded(r->dtype, o->b, r->n, o->wire, o->c);
    rg_sparse_from_dense(o->wire, s, NULL);
    for (uint64_t i = 0; i < r->n; i++)
        if (p->has[i]) o->b[have++] = p->v[i];
    rounded(r->dtype, o->b, have, s->val, o->c);
}

/* ---- Lists: the reference ---------------------------------------------------------------------------------------- */

static float joined(float a, float b, rg_sparse_op_t op) {
    if (op == RG_SPARSE_MAX) return isnan(a) || a >= b ? a : b;
    if (op == RG_SPARSE_MIN) return isnan(a) || a <= b ? a : b;
    return a + b;
}

static uint32_t magnitude(float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u & 0x7fffffffu;
}

/* Of what is there, k of the largest stay. */
static void only_largest(struct part *s, uint64_t n, uint64_t k) {
    uint32_t low = 0, high = UINT32_MAX >> 1; /* the least magnitude that fewer than k exceed */
    if (s->many <= k) return;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint64_t above = 0;
        for (uint64_t i = 0; i < n; i++) above += s->has[i] && magnitude(s->v[i]) > middle;
        if (above < k) high = middle;
        else low = middle + 1;
    }
    uint64_t above = 0;
    for (uint64_t i = 0; i < n; i++) above += s->has[i] && magnitude(s->v[i]) > low;
    uint64_t equal = k - above;
    for (uint64_t i = 0; i < n; i++) {
        if (!s->has[i]) continue;
        uint32_t m = magnitude(s->v[i]);
        if (m > low) continue;
        if (m == low && equal != 0) equal--;
        else s->has[i] = 0, s->v[i] = 0;
    }
    s->many = k;
}

/* Whether the interface fixes every bit, for n contributors. Where lists are cut in parts their blocks begin anew in
 * each part; which of several NaN is the largest is not said. */
static int is_exact(const struct round *r, uint32_t n) {
    if (!r->coded) return r->data != NOT_FINITE || r->how.result != RG_SPARSE_TOPK;
    return !(r->q.flags & RG_QUANT_STOCHASTIC) &&
           (r->how.algorithm == RG_SPARSE_GATHER || (r->how.algorithm == RG_SPARSE_BY_SIZE && n == 2));
}

/* The result of these members, in o->sum, without quantising where that is not fixed to the bit; 0 where a value may
 * not be. */
static int list_reference(const struct round *r, uint64_t gen, struct own *o, const uint64_t *ids, uint32_t n) {
    struct part *s = o->sum, *p = o->part;
    int finite = 1;
    memset(s->has, 0, r->n);
    memset(o->count, 0, r->n * sizeof *o->count);
    memset(s->v, 0, r->n * sizeof *s->v);
    for (uint32_t k = 0; k < n; k++) {
        part_of(r, ids[k], gen, o, p);
        finite &= p->finite;
        if (r->coded && is_exact(r, n)) coded_part(r, o, p);
        for (uint64_t i = 0; i < r->n; i++) {
            if (!p->has[i]) continue;
            s->v[i] = o->count[i]++ ? joined(s->v[i], p->v[i], r->how.op) : p->v[i];
            s->has[i] = 1;
        }
    }
    s->many = 0;
    for (uint64_t i = 0; i < r->n; i++) {
        s->many += s->has[i];
        if (r->how.op == RG_SPARSE_AVG_WORLD) s->v[i] /= (float)n;
        if (r->how.op == RG_SPARSE_AVG_OWNERS && o->count[i] > 1) s->v[i] /= (float)o->count[i];
    }
    rounded(r->dtype, s->v, r->n, o->wire, s->v);
    if (r->how.result == RG_SPARSE_TOPK) only_largest(s, r->n, r->how.topk);
    /* Sums of values that saturate do so too. */
    for (uint64_t i = 0; i < r->n && r->coded && (r->q.flags & RG_QUANT_SATURATE); i++)
        if (isinf(s->v[i])) s->v[i] = copysignf(FLT_MAX, s->v[i]);
    return finite || !r->coded || (r->q.flags & RG_QUANT_SATURATE) != 0;
}

/* Whether rg_sparse_bound() covers everything. */
static int is_bounded(const struct round *r) { return r->coded && r->data <= TIES && r->how.result != RG_SPARSE_TOPK; }

static int same_bits(float a, float b) { return (isnan(a) && isnan(b)) || !memcmp(&a, &b, sizeof a); }

static void check_result(const struct round *r, struct own *o, uint32_t n, struct random_record *c) {
    const struct part *s = o->sum;
    double bound = r->coded ? rg_sparse_bound(o->z) * (1 + 1e-6) + 1e-5 : 0;
    if (rg_sparse_check(&o->out, NULL) != RG_OK || rg_sparse_to_dense(&o->out, o->wire, NULL) != RG_OK) {
        c->unlike++;
        return;
    }
    c->hash = random_hash(o->wire, r->n * (r->dtype == RG_F32 ? 4ull : 2ull));
    rg_casts_t casts;
    rg_casts_init(&casts, r->dtype);
    rg_red_copy(&casts.in, o->a, o->wire, r->n);
    for (uint64_t i = 0; i < r->n && is_exact(r, n); i++) c->unlike += !same_bits(o->a[i], s->v[i]);
    for (uint64_t i = 0; i < r->n && is_bounded(r); i++)
        c->wrong += !(fabs((double)o->a[i] - (double)s->v[i]) <= bound);
    if (o->out.index < RG_INDEX_BLOCKS) c->unlike += o->out.values != s->many;
    if (r->how.result == RG_SPARSE_UNION || o->out.index != RG_INDEX_DENSE) c->compared = (uint32_t)is_exact(r, n);
}

/* What was put in and is not in the result, and what that says of it is less. */
static void check_rest(const struct round *r, uint64_t id, uint64_t gen, struct own *o, uint32_t n,
                       struct random_record *c) {
    struct part *p = o->part;
    double bound = rg_sparse_bound(o->z) * (r->how.op == RG_SPARSE_AVG_WORLD ? n : 1) * (1 + 1e-6) + 1e-30;
    if (!r->rest || r->data >= HUGE_ONES) return;
    part_of(r, id, gen, o, p);
    memcpy(o->b, p->v, r->n * sizeof *o->b);
    if (r->coded) coded_part(r, o, p);
    /* Which elements the result has. */
    rg_sparse_t mask = o->out;
    memset(o->wire, 0, r->n * 4ull);
    for (uint64_t i = 0; i < r->n; i++) o->c[i] = 1;
    mask.dtype = RG_F32, mask.val = o->c;
    rg_sparse_to_dense(&mask, o->a, NULL);
    if (rg_sparse_check(&o->rest, NULL) != RG_OK || rg_sparse_to_dense(&o->rest, o->wire, NULL) != RG_OK) {
        c->unlike++;
        return;
    }
    rg_casts_t casts;
    rg_casts_init(&casts, r->dtype);
    rg_red_copy(&casts.in, o->c, o->wire, r->n);
    for (uint64_t i = 0; i < r->n; i++) {
        int in_result = o->a[i] == 1.0f;
        if (in_result && r->coded && !is_exact(r, n)) {
            c->wrong += is_bounded(r) && !(fabs((double)o->c[i]) <= (p->has[i] ? bound : 0));
            continue;
        }
        float want = !p->has[i] ? 0 : !in_result ? o->b[i] : r->coded ? o->b[i] - p->v[i] : 0;
        c->unlike += o->c[i] != want;
    }
}

/* ---- Top-k and seeds: the reference ------------------------------------------------------------------------------ */

static rg_status_t topk_reference(const struct round *r, uint64_t gen, struct own *o, const uint64_t *ids, uint32_t n,
                                  uint64_t self) {
    float *sum = o->sum->v, *m = o->a, *said = o->b, beta = r->f.beta == 0.0f ? 1 : r->f.beta;
    rg_topk_t flat = r->t;
    flat.flags = 0;
    memset(sum, 0, r->n * sizeof *sum);
    memset(o->count, 0, r->n * sizeof *o->count);
    for (uint32_t k = 0; k < n; k++) {
        for (uint64_t i = 0; i < r->n; i++) {
            float x = value(r, ids[k], gen, i);
            m[i] = r->preset ? beta * kept_before(ids[k], gen, i) + x : x;
        }
        if (rg_topk_encode(&r->t, m, r->n, o->wire) != RG_OK) return RG_ERR_INVALID;
        rg_topk_decode(&r->t, o->wire, r->n, said);
        for (uint64_t i = 0; i < r->n && ids[k] == self; i++) {
            float left = m[i] - said[i], clip = r->f.clip;
            if (!isfinite(left)) left = 0;
            o->kept_want[i] = clip > 0.0f ? (left < -clip ? -clip : left > clip ? clip : left) : left;
        }
        if (r->t.flags) rg_topk_dct(m, r->n / RG_TOPK_CHUNK, m);
        rg_topk_encode(&flat, m, r->n, o->wire);
        rg_topk_decode(&flat, o->wire, r->n, said);
        rg_topk_select(&flat, m, r->n, o->at);
        for (uint64_t i = 0; i < rg_topk_values(&flat, r->n); i++) {
            sum[o->at[i]] += said[o->at[i]];
            o->count[o->at[i]]++;
        }
    }
    for (uint64_t i = 0; i < r->n; i++) {
        if (r->how.op == RG_SPARSE_AVG_WORLD) sum[i] /= (float)n;
        if (r->how.op == RG_SPARSE_AVG_OWNERS && o->count[i] > 1) sum[i] /= (float)o->count[i];
    }
    if (r->t.flags) rg_topk_dct_inverse(sum, r->n / RG_TOPK_CHUNK, sum);
    return RG_OK;
}

/* before: what the output was, whose elements that are not chosen stay. */
static void seeded_reference(const struct round *r, uint64_t gen, struct own *o, const uint64_t *ids, uint32_t n,
                             const float *before) {
    float *sum = o->sum->v;
    memcpy(sum, before, r->n * sizeof *sum);
    rg_seeded_places(r->seeded.pattern, r->seeded.seed, r->n, r->seeded.count, o->at);
    for (uint64_t k = 0; k < r->seeded.count; k++) {
        uint64_t i = o->at[k];
        float v = value(r, ids[0], gen, i);
        for (uint32_t j = 1; j < n; j++) {
            float x = value(r, ids[j], gen, i);
            v = r->seeded.op == RG_SUM ? v + x : r->seeded.op == RG_MAX ? fmaxf(v, x) : fminf(v, x);
        }
        sum[i] = v + 0.0f;
    }
}

/* ---- Worker ---------------------------------------------------------------------------------------------------- */

static int list_memory(rg_sparse_t *s) {
    *s = (rg_sparse_t)RG_SPARSE_INIT;
    s->idx = calloc(1, 9 * (size_t)MOST), s->val = calloc(1, 4 * (size_t)MOST);
    return s->idx != NULL && s->val != NULL;
}

static int begin(struct random_member *m) {
    struct own *o = calloc(1, sizeof *o);
    rg_error_t err;
    PROCS_REQUIRE(o, "out of memory");
    m->state = o;
    o->part = malloc(sizeof *o->part), o->sum = malloc(sizeof *o->sum);
    o->a = malloc(4 * (size_t)MOST), o->b = malloc(4 * (size_t)MOST), o->c = malloc(4 * (size_t)MOST);
    o->kept = malloc(4 * (size_t)MOST), o->kept_want = malloc(4 * (size_t)MOST), o->wire = malloc(9 * (size_t)MOST);
    o->copy_idx = malloc(9 * (size_t)MOST), o->copy_val = malloc(4 * (size_t)MOST);
    o->count = malloc(4 * (size_t)MOST), o->at = malloc(8 * (size_t)MOST);
    PROCS_REQUIRE(o->part && o->sum && o->a && o->b && o->c && o->kept && o->kept_want && o->wire && o->copy_idx &&
                      o->copy_val && o->count && o->at && list_memory(&o->in) && list_memory(&o->out) &&
                      list_memory(&o->rest),
                  "out of memory");
    PROCS_REQUIRE(rg_sparse_reducer_create(m->g, &o->z, &err) == RG_OK, "%s", err.text);
    return 0;
}

static void end(struct random_member *m) {
    struct own *o = m->state;
    if (!o) return;
    rg_sparse_reducer_destroy(o->z);
    free(o->part), free(o->sum), free(o->a), free(o->b), free(o->c), free(o->kept), free(o->kept_want);
    free(o->wire), free(o->copy_idx), free(o->copy_val), free(o->count), free(o->at);
    free(o->in.idx), free(o->in.val), free(o->out.idx), free(o->out.val), free(o->rest.idx), free(o->rest.val);
    free(o);
}

static rg_status_t finish_call(const struct round *r, int cancels, rg_status_t s, rg_sparse_request_t *req,
                               rg_result_t *res) {
    if (!r->request || s != RG_OK) return s;
    if (cancels) rg_sparse_cancel(req);
    return rg_sparse_wait(req, res);
}

struct call {
    struct random_member *m;
    const struct round *r;
    uint64_t gen;
    const uint64_t *view; /* ids by rank before the call, or NULL */
    int cancels;
    rg_opts_t *opts;
    rg_result_t *res;
    struct random_record *rec;
};

static rg_status_t call_lists(const struct call *k) {
    struct own *o = k->m->state;
    struct round r = *k->r;
    rg_sparse_request_t *req = NULL;
    rg_status_t s;
    uint64_t want = 0;
    rg_index_t as = index_of(&r, k->m->id, k->gen, AS_RESULT);
    r.q.seed = k->m->id;
    if (r.coded) r.how.quant = &r.q;
    if (r.rest) r.how.rest = &o->rest;
    if (k->view) {
        int finite = list_reference(&r, k->gen, o, k->view, N);
        want = o->sum->many;
        /* Which sums overflow depends on who adds up. Of blocks and dense results the room is enough. */
        k->rec->must = !finite ? RG_ERR_INVALID : r.coded && r.data == HUGE_ONES ? 1 : RG_OK;
        int tight = 0;
        for (uint32_t i = 0; i < N; i++) {
            rg_index_t f = index_of(&r, k->view[i], k->gen, AS_RESULT);
            tight |= f != RG_INDEX_BLOCKS && f != RG_INDEX_DENSE && want > r.room;
        }
        if (finite && tight) k->rec->must = RG_ERR_CAPACITY;
    }
    part_of(&r, k->m->id, k->gen, o, o->part);
    list_of(&r, index_of(&r, k->m->id, k->gen, AS_INPUT), o->part, o, &o->in);
    memcpy(o->copy_idx, o->in.idx, 9 * (size_t)r.n), memcpy(o->copy_val, o->in.val, 4 * (size_t)r.n);
    o->out.index = as, o->out.dtype = r.dtype, o->out.block = r.block, o->out.n = r.n;
    o->out.values = as == RG_INDEX_BLOCKS || as == RG_INDEX_DENSE ? r.n : r.room;
    o->rest.index = index_of(&r, k->m->id, k->gen, AS_REST), o->rest.dtype = r.dtype, o->rest.n = r.n;
    if (o->rest.index == RG_INDEX_BLOCKS) o->rest.index = RG_INDEX_U32;
    o->rest.values = r.n;
    memset(o->out.val, 0x5a, 4 * (size_t)r.n), memset(o->out.idx, 0x5a, 9 * (size_t)r.n);
    memset(o->rest.val, 0x5a, 4 * (size_t)r.n);
    random_calls(k->m, k->gen);
    s = r.request ? rg_sparse_iall_reduce(o->z, &o->in, &o->out, &r.how, k->opts, &req)
                  : rg_sparse_all_reduce(o->z, &o->in, &o->out, &r.how, k->opts);
    s = finish_call(&r, k->cancels, s, req, k->res);
    random_called(k->m, k->gen);
    k->rec->intact &=
        !memcmp(o->copy_idx, o->in.idx, 9 * (size_t)r.n) && !memcmp(o->copy_val, o->in.val, 4 * (size_t)r.n);
    for (uint64_t i = 0; i < 4ull * r.n && s != RG_OK; i++)
        k->rec->intact &= ((uint8_t *)o->out.val)[i] == 0x5a && ((uint8_t *)o->rest.val)[i] == 0x5a &&
                          ((uint8_t *)o->out.idx)[i] == 0x5a;
    if (s == RG_ERR_CAPACITY) k->rec->failed = o->out.values;
    if (s == RG_ERR_CAPACITY && is_exact(&r, N)) k->rec->failing = want;
    return s;
}

static void judge_lists(const struct call *k) {
    struct own *o = k->m->state;
    if (!list_reference(k->r, k->gen, o, k->rec->ids, k->rec->contributors)) k->rec->unlike++;
    check_result(k->r, o, k->rec->contributors, k->rec);
    check_rest(k->r, k->m->id, k->gen, o, k->rec->contributors, k->rec);
}

static int call_topk(const struct call *k, rg_status_t *status) {
    struct own *o = k->m->state;
    const struct round *r = k->r;
    rg_topk_reducer_t *z = NULL;
    rg_sparse_request_t *req = NULL;
    rg_error_t err;
    float *in = r->in_place ? o->out.val : o->in.val, *out = o->out.val;
    PROCS_REQUIRE(rg_topk_reducer_create(k->m->g, &r->t, r->feeds ? &r->f : NULL, &z, &err) == RG_OK, "%s", err.text);
    if (k->view) k->rec->must = r->data < HUGE_ONES ? RG_OK : topk_reference(r, k->gen, o, k->view, N, 0);
    memset(out, 0x5a, 4 * (size_t)r->n);
    for (uint64_t i = 0; i < r->n; i++) in[i] = value(r, k->m->id, k->gen, i);
    memcpy(o->copy_val, in, 4 * (size_t)r->n), memcpy(o->copy_idx, out, 4 * (size_t)r->n);
    if (r->preset) PROCS_REQUIRE(rg_topk_keep(z, r->n) == RG_OK, "out of memory");
    for (uint64_t i = 0; i < r->n && r->preset; i++)
        rg_topk_kept(z, NULL)[i] = o->kept[i] = kept_before(k->m->id, k->gen, i);
    random_calls(k->m, k->gen);
    rg_status_t s = r->request ? rg_topk_iall_reduce(z, in, out, r->n, r->how.op, k->opts, &req)
                               : rg_topk_all_reduce(z, in, out, r->n, r->how.op, k->opts);
    *status = s = finish_call(r, k->cancels, s, req, k->res);
    random_called(k->m, k->gen);
    if (!r->in_place) k->rec->intact &= !memcmp(o->copy_val, in, 4 * (size_t)r->n);
    if (s != RG_OK) k->rec->intact &= !memcmp(o->copy_idx, out, 4 * (size_t)r->n);
    if (s == RG_OK) {
        if (topk_reference(r, k->gen, o, k->rec->ids, k->res->contributors, k->m->id) != RG_OK) k->rec->unlike++;
        for (uint64_t i = 0; i < r->n; i++) k->rec->unlike += !same_bits(out[i], o->sum->v[i]);
        k->rec->hash = random_hash(out, 4ull * r->n);
        k->rec->compared = 1;
    }
    uint64_t have = 0;
    const float *kept = rg_topk_kept(z, &have), *want = s == RG_OK ? o->kept_want : o->kept;
    if (r->feeds && have != (s == RG_OK || r->preset ? r->n : 0)) k->rec->unlike++;
    for (uint64_t i = 0; i < have && r->feeds; i++) k->rec->unlike += !same_bits(kept[i], want[i]);
    rg_topk_reducer_destroy(z);
    return 0;
}

static rg_status_t call_seeded(const struct call *k) {
    struct own *o = k->m->state;
    const struct round *r = k->r;
    rg_sparse_request_t *req = NULL;
    float *in = r->in_place ? o->out.val : o->in.val, *out = o->out.val;
    if (k->view) k->rec->must = RG_OK;
    memset(out, 0x5a, 4 * (size_t)r->n);
    for (uint64_t i = 0; i < r->n; i++) in[i] = value(r, k->m->id, k->gen, i);
    memcpy(o->copy_val, in, 4 * (size_t)r->n), memcpy(o->copy_idx, out, 4 * (size_t)r->n);
    random_calls(k->m, k->gen);
    rg_status_t s = r->request ? rg_seeded_iall_reduce(o->z, in, out, r->n, RG_F32, &r->seeded, k->opts, &req)
                               : rg_seeded_all_reduce(o->z, in, out, r->n, RG_F32, &r->seeded, k->opts);
    s = finish_call(r, k->cancels, s, req, k->res);
    random_called(k->m, k->gen);
    if (!r->in_place) k->rec->intact &= !memcmp(o->copy_val, in, 4 * (size_t)r->n);
    if (s != RG_OK) k->rec->intact &= !memcmp(o->copy_idx, out, 4 * (size_t)r->n);
    else {
        memcpy(o->a, o->copy_idx, 4 * (size_t)r->n);
        seeded_reference(r, k->gen, o, k->rec->ids, k->res->contributors, o->a);
        for (uint64_t i = 0; i < r->n; i++)
            k->rec->unlike += !(out[i] == o->sum->v[i] || same_bits(out[i], o->sum->v[i]));
        k->rec->compared = 1;
    }
    return s;
}

static int run(struct random_member *m, uint64_t gen, struct random_record *r) {
    struct own *o = m->state;
    struct round c = round_of(gen);
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t opts = RG_OPTS_INIT;
    uint64_t view[N] = { 0 };
    struct call k = { .m = m, .r = &c, .gen = gen, .opts = &opts, .res = &res, .rec = r };
    rg_status_t s = RG_OK;
    rg_sparse_reducer_t *used = o->z;
    rg_error_t err;
    if (c.own && c.what != TOPK) PROCS_REQUIRE(rg_sparse_reducer_create(m->g, &o->z, &err) == RG_OK, "%s", err.text);
    for (uint32_t i = 0; i < N && r->world == N; i++)
        if (rg_group_member(m->g, i, &view[i]) != RG_OK) r->world = 0;
    rg_group_member(m->g, 0, &view[0]);
    r->must = 1, r->intact = 1;
    k.view = r->world == N ? view : NULL;
    k.cancels = c.cancel && view[0] == m->id;
    res.contributor_ids = r->ids, res.contributor_cap = N;
    opts.result = &res, opts.on_fault = c.on_fault;
    if (c.request) opts.tag = 3;
    if (c.what == LISTS) s = call_lists(&k);
    else if (c.what == SEEDED) s = call_seeded(&k);
    else if (call_topk(&k, &s)) return 1;
    r->status = (uint32_t)-s;
    r->epoch = res.epoch;
    r->retries = res.retries;
    r->contributors = res.contributors;
    for (uint32_t i = res.contributors; i < N; i++) r->ids[i] = 0;
    snprintf(r->text, sizeof r->text, "%s", res.text);
    if (s == RG_OK && c.what == LISTS) judge_lists(&k);
    if (o->z != used) rg_sparse_reducer_destroy(o->z);
    o->z = used;
    return 0;
}

/* ---- The kind -------------------------------------------------------------------------------------------------- */

static const char *class_name(uint32_t k) {
    static const char *const names[CLASSES] = { "by-size", "gather", "split", "hybrid", "full", "top-k", "seeded" };
    return names[k];
}

static uint32_t class_of(uint64_t gen) {
    struct round r = round_of(gen);
    return r.what == TOPK ? CLASS_TOPK : r.what == SEEDED ? CLASS_SEEDED : (uint32_t)r.how.algorithm;
}

static int is_long(uint64_t gen) { return round_of(gen).n > 3000; }

static int allows(uint64_t gen, int status) {
    struct round r = round_of(gen);
    return status == RG_OK || (status == RG_ERR_PEER_LOST && r.on_fault == RG_RETURN) ||
           (status == RG_ERR_CANCELLED && r.cancel) ||
           (status == RG_ERR_INVALID && r.data >= HUGE_ONES && (r.coded || r.what == TOPK)) ||
           (status == RG_ERR_CAPACITY && r.what == LISTS && r.room < r.n);
}

static void describe(uint64_t gen, char *text, size_t cap) {
    struct round r = round_of(gen);
    snprintf(
        text, cap,
        "%s, %u elements, density %g, data %d, %s, op %s, result %d of %llu, block %u, room %llu, %s%s flags %u, "
        "rest %d, top-k %u of form %u flags %u, feedback %d preset %d, on_fault %d, request %d, cancel %d, own %d, "
        "in place %d",
        class_name(class_of(gen)), r.n, r.density, r.data, rg_dtype_name(r.dtype), rg_sparse_op_name(r.how.op),
        (int)r.how.result, (unsigned long long)r.how.topk, r.block, (unsigned long long)r.room, r.coded ? "coded " : "",
        r.coded ? rg_wire_name(r.q.wire) : "plain", r.q.flags, r.rest, r.t.k, r.t.values, r.t.flags, r.feeds, r.preset,
        (int)r.on_fault, r.request, r.cancel, r.own, r.in_place);
}

static const struct random_kind kind = { .name = "sparse",
                                         .classes = CLASSES,
                                         .class_name = class_name,
                                         .class_of = class_of,
                                         .allows = allows,
                                         .is_long = is_long,
                                         .describe = describe,
                                         .begin = begin,
                                         .end = end,
                                         .run = run };

int check_sparse(uint64_t rounds, unsigned every, unsigned seed) { return random_check(&kind, rounds, every, seed); }

int check_sparse_planted(void) {
    uint64_t gen = 1;
    while (allows(gen, RG_ERR_PEER_LOST) || allows(gen, RG_ERR_INVALID) || allows(gen, RG_ERR_CAPACITY)) gen++;
    return random_planted(&kind, gen);
}
