/* check_quant.c: random quantised collectives among real processes that are killed (random_ops.c): collective, wire
 * form, rounding, way, count, operator, on_fault, in place or not, with a request or blocking, cancelled or not,
 * feedback, data of many kinds, new and used quantisers. Each result, and what feedback keeps, is compared to the bit
 * with what quant_reference.c makes of the contributors' inputs. It relies on inputs that are functions of member and
 * round. */
#include "quant_reference.h"
#include "random_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N RANDOM_N
#define MOST 30000u /* elements of a member */
#define USED 16     /* quantisers that are used again and again */

enum { ORDINARY, WIDE, ZEROES, TINY, HUGE_ONES, NOT_FINITE };

struct round {
    struct quant_call c;
    rg_on_fault_t on_fault;
    rg_feedback_t f;
    int data, in_place, request, cancel, feeds, preset, used; /* used: which quantiser, -1 a new one */
};

struct own {
    float *in, *out, *was, *want, *kept, *kept_want, *m[N];
    rg_quantiser_t *z[USED];
};

/* ---- What is called -------------------------------------------------------------------------------------------- */

/* What a quantiser is made of. */
static void quantiser_of(struct round *r, uint64_t x) {
    static const rg_wire_t whole[] = { RG_WIRE_I8, RG_WIRE_I4, RG_WIRE_TERNARY };
    static const float betas[] = { 0, 0.5f, 0.95f, 1 }, clips[] = { 0, 0, 0.01f, 0.25f };
    r->c.form = (uint32_t)(x & 0xff) % RG_QUANT_FORM_COUNT;
    r->c.wire = (rg_wire_t)(1 + (x >> 8 & 0xff) % (RG_WIRE_COUNT - 1));
    if (r->c.form == RG_QUANT_INTEGER) r->c.wire = whole[(x >> 16 & 0xff) % 3];
    r->c.flags = (x >> 24 & 1 ? RG_QUANT_STOCHASTIC : 0) | (x >> 25 & 1 ? RG_QUANT_SATURATE : 0);
    if (r->used >= 0) r->c.flags &= ~RG_QUANT_STOCHASTIC; /* newcomers have made fewer calls: other random numbers */
    r->c.scale = r->c.wire == RG_WIRE_TERNARY && (x >> 26 & 3) == 0 ? 0.5f : 0;
    r->feeds = (x >> 28 & 3) == 0;
    r->f = (rg_feedback_t)RG_FEEDBACK_INIT;
    r->f.beta = betas[x >> 30 & 3];
    r->f.clip = r->c.clip = clips[x >> 32 & 3];
    if (!r->feeds) r->c.clip = 0;
}

static struct round round_of(uint64_t gen) {
    static const int data[16] = { [8] = WIDE, WIDE, ZEROES, TINY, HUGE_ONES, NOT_FINITE, NOT_FINITE, NOT_FINITE };
    uint64_t x = random_draw(gen), y = random_spread(x);
    struct round r = { .on_fault = x & 1 ? RG_RETURN : RG_RETRY, .request = (x >> 1 & 3) == 0 };
    uint32_t kind = x >> 3 & 7, size = x >> 6 & 7;
    r.c.kind = kind < 5 ? QUANT_ALL_REDUCE : kind < 7 ? QUANT_REDUCE_SCATTER : QUANT_ALL_GATHER;
    r.c.op = x >> 9 & 1 && kind < 7 ? RG_AVG : RG_SUM;
    r.c.count = (uint32_t)((x >> 32) % (size == 0 ? MOST : size == 1 ? 9 : 3000));
    r.in_place = x >> 10 & 1;
    r.cancel = r.request && (x >> 11 & 3) == 0;
    r.data = data[x >> 13 & 15];
    r.used = x >> 17 & 1 ? (int)(x >> 18 & (USED - 1)) : -1;
    quantiser_of(&r, r.used < 0 ? y : random_spread(77 + (uint64_t)r.used));
    r.preset = r.feeds && (r.used >= 0 || (x >> 22 & 1));
    return r;
}

static float value(const struct round *r, uint64_t id, uint64_t gen, uint64_t i) {
    static const float odd[] = { NAN, INFINITY, -INFINITY };
    uint64_t h = random_spread(id * 31 + gen * 0x9e3779b97f4a7c15ull + i);
    float v = random_unit(id, gen, i);
    switch (r->data) {
    case WIDE: return ldexpf(v, (int)(h % 61) - 30);
    case ZEROES: return h % 8 ? (h >> 8 & 1 ? -0.0f : 0.0f) : v;
    case TINY: return v * 1e-39f;
    case HUGE_ONES: return v * 3.4e38f;
    case NOT_FINITE: return random_spread(id ^ gen) % 3 == 0 && h % 64 == 0 ? odd[(h >> 8) % 3] : v;
    default: return v;
    }
}

static float kept_before(uint64_t id, uint64_t gen, uint64_t i) { return 0.25f * random_unit(id + 1, ~gen, i); }

/* Elements of an input, and of what is kept, of a call of n members. */
static uint64_t input_of(const struct round *r, uint32_t n) {
    return r->c.kind == QUANT_REDUCE_SCATTER ? (uint64_t)r->c.count * n : r->c.count;
}

static uint64_t output_of(const struct round *r, uint32_t n) {
    return r->c.kind == QUANT_ALL_GATHER ? (uint64_t)r->c.count * n : r->c.count;
}

/* ---- The reference --------------------------------------------------------------------------------------------- */

/* What these members' call gives to rank `me`. */
static rg_status_t reference(const struct round *r, uint64_t gen, struct own *o, const uint64_t *ids, uint32_t n,
                             uint32_t me, uint32_t form) {
    struct quant_member who[N];
    struct quant_call c = r->c;
    uint64_t len = input_of(r, n);
    /* What was kept of another number of elements, because members are missing, counts as nothing. */
    int has = r->preset && len == input_of(r, N);
    float beta = r->f.beta == 0.0f ? 1 : r->f.beta;
    c.form = form;
    for (uint32_t k = 0; k < n; k++) {
        for (uint64_t i = 0; i < len; i++) {
            float x = value(r, ids[k], gen, i);
            o->m[k][i] = has ? beta * kept_before(ids[k], gen, i) + x : x;
        }
        who[k] = (struct quant_member){ .seed = ids[k], .host = random_slot_of(ids[k]) / 2, .m = o->m[k] };
    }
    return quant_reference(&c, n, who, me, o->want, r->feeds ? o->kept_want : NULL);
}

static uint64_t count_unlike(const float *a, const float *b, uint64_t n) {
    uint64_t unlike = 0;
    for (uint64_t i = 0; i < n; i++) unlike += memcmp(&a[i], &b[i], sizeof *a) != 0;
    return unlike;
}

/* Elements further from the sum (or the value) than the bound. Where the scale is given, or data are not ordinary, the
 * bound does not cover all. */
static uint64_t count_wrong(const struct round *r, const struct own *o, uint32_t n, uint32_t me, double bound) {
    uint64_t wrong = 0, from = r->c.kind == QUANT_REDUCE_SCATTER ? (uint64_t)me * r->c.count : 0;
    if (r->data != ORDINARY || r->c.scale != 0.0f) return 0;
    bound = bound * (1 + 1e-6) + 1e-5;
    for (uint64_t i = 0; i < output_of(r, n); i++) {
        double want = 0;
        if (r->c.kind == QUANT_ALL_GATHER) want = (double)o->m[i / r->c.count][i % r->c.count];
        else
            for (uint32_t k = 0; k < n; k++) want += (double)o->m[k][from + i] / (r->c.op == RG_AVG ? n : 1);
        wrong += !(fabs((double)o->out[i] - want) <= bound);
    }
    return wrong;
}

/* The outcome when nobody is lost. AUTO takes a way that is known afterwards, and on it depends which sums are made. */
static int must_of(const struct round *r, uint64_t gen, struct own *o, const uint64_t *ids, uint32_t me) {
    if (r->data < HUGE_ONES) return RG_OK;
    if (r->c.form == RG_QUANT_AUTO && r->data == HUGE_ONES && r->c.kind != QUANT_ALL_GATHER) return 1;
    return (int)reference(r, gen, o, ids, N, me, r->c.form == RG_QUANT_AUTO ? RG_QUANT_DIRECT : r->c.form);
}

/* ---- Worker ---------------------------------------------------------------------------------------------------- */

static int begin(struct random_member *m) {
    struct own *o = calloc(1, sizeof *o);
    size_t room = N * (size_t)MOST * sizeof(float);
    PROCS_REQUIRE(o, "out of memory");
    m->state = o;
    o->in = malloc(room), o->out = malloc(room), o->was = malloc(room), o->want = malloc(room);
    o->kept = malloc(room), o->kept_want = malloc(room);
    PROCS_REQUIRE(o->in && o->out && o->was && o->want && o->kept && o->kept_want, "out of memory");
    for (int k = 0; k < N; k++) PROCS_REQUIRE(o->m[k] = malloc(room), "out of memory");
    return 0;
}

static void end(struct random_member *m) {
    struct own *o = m->state;
    if (!o) return;
    for (int k = 0; k < USED; k++) rg_quantiser_destroy(o->z[k]);
    for (int k = 0; k < N; k++) free(o->m[k]);
    free(o->in), free(o->out), free(o->was), free(o->want), free(o->kept), free(o->kept_want);
    free(o);
}

static rg_status_t call(rg_quantiser_t *z, const struct round *r, int cancels, const float *in, float *out,
                        rg_opts_t *o, rg_result_t *res) {
    const struct quant_call *c = &r->c;
    rg_quant_request_t *req = NULL;
    rg_status_t s;
    o->result = res;
    if (!r->request)
        return c->kind == QUANT_ALL_REDUCE       ? rg_quant_all_reduce(z, in, out, c->count, c->op, o)
               : c->kind == QUANT_REDUCE_SCATTER ? rg_quant_reduce_scatter(z, in, out, c->count, c->op, o)
                                                 : rg_quant_all_gather(z, in, out, c->count, o);
    o->tag = 3;
    s = c->kind == QUANT_ALL_REDUCE       ? rg_quant_iall_reduce(z, in, out, c->count, c->op, o, &req)
        : c->kind == QUANT_REDUCE_SCATTER ? rg_quant_ireduce_scatter(z, in, out, c->count, c->op, o, &req)
                                          : rg_quant_iall_gather(z, in, out, c->count, o, &req);
    if (s == RG_OK && cancels) rg_quant_cancel(req);
    return s != RG_OK ? s : rg_quant_wait(req, res);
}

/* A quantiser for this round, with what is kept by feedback set. */
static int prepare(struct random_member *m, const struct round *r, uint64_t gen, rg_quantiser_t **out) {
    struct own *o = m->state;
    rg_quantiser_t **z = r->used >= 0 ? &o->z[r->used] : out;
    rg_quant_t q = RG_QUANT_INIT(r->c.wire);
    rg_error_t err;
    q.form = r->c.form, q.flags = r->c.flags, q.scale = r->c.scale, q.seed = m->id;
    if (*z == NULL)
        PROCS_REQUIRE(rg_quantiser_create(m->g, &q, r->feeds ? &r->f : NULL, z, &err) == RG_OK, "%s", err.text);
    *out = *z;
    if (!r->preset) return 0;
    PROCS_REQUIRE(rg_quantiser_keep(*z, input_of(r, N)) == RG_OK, "out of memory");
    float *kept = rg_quantiser_kept(*z, NULL);
    for (uint64_t i = 0; i < input_of(r, N); i++) kept[i] = o->kept[i] = kept_before(m->id, gen, i);
    return 0;
}

/* What is kept after the call: as the reference has it, or as it was. */
static uint64_t kept_unlike(const struct round *r, const struct own *o, rg_quantiser_t *z, int ok, uint32_t n) {
    uint64_t have, want = ok ? input_of(r, n) : r->preset ? input_of(r, N) : 0;
    const float *kept = rg_quantiser_kept(z, &have);
    if (!r->feeds) return 0;
    return have != want ? have + want : count_unlike(kept, ok ? o->kept_want : o->kept, have);
}

static void succeeded(struct random_member *m, const struct round *c, uint64_t gen, rg_quantiser_t *z,
                      struct random_record *r) {
    struct own *o = m->state;
    uint32_t me = 0, n = r->contributors, form = rg_quantiser_form(z);
    while (me < n && r->ids[me] != m->id) me++;
    if (n > N || me == n || (c->c.form != RG_QUANT_AUTO && c->c.kind != QUANT_ALL_GATHER && form != c->c.form)) {
        r->unlike++;
        return;
    }
    rg_status_t s = reference(c, gen, o, r->ids, n, me, form);
    r->compared = 1;
    r->unlike = s != RG_OK ? 1 : count_unlike(o->out, o->want, output_of(c, n));
    r->unlike += kept_unlike(c, o, z, 1, n);
    r->wrong = count_wrong(c, o, n, me, rg_quantiser_bound(z));
    if (c->c.kind != QUANT_REDUCE_SCATTER) r->hash = random_hash(o->out, output_of(c, n) * sizeof *o->out);
}

static int run(struct random_member *m, uint64_t gen, struct random_record *r) {
    struct own *o = m->state;
    struct round c = round_of(gen);
    rg_quantiser_t *z = NULL;
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t opts = RG_OPTS_INIT;
    size_t in_bytes = input_of(&c, N) * sizeof(float), out_bytes = output_of(&c, N) * sizeof(float);
    float *from = c.in_place ? o->out : o->in;
    uint64_t first = 0;
    memset(o->out, 0x5a, out_bytes);
    for (uint64_t i = 0; i < input_of(&c, N); i++) from[i] = value(&c, m->id, gen, i);
    if (prepare(m, &c, gen, &z)) return 1;
    rg_group_member(m->g, 0, &first);
    r->must = 1;
    for (uint32_t k = 0; k < N && r->world == N; k++)
        if (rg_group_member(m->g, k, &r->ids[k]) != RG_OK) r->world = 0;
    for (uint32_t k = 0; k < N && r->world == N; k++)
        if (r->ids[k] == m->id) r->must = must_of(&c, gen, o, r->ids, k);
    memset(r->ids, 0, sizeof r->ids);
    memcpy(o->was, o->out, c.in_place && in_bytes > out_bytes ? in_bytes : out_bytes);
    res.contributor_ids = r->ids;
    res.contributor_cap = N;
    opts.on_fault = c.on_fault;
    random_calls(m, gen);
    rg_status_t s = call(z, &c, c.cancel && first == m->id, from, o->out, &opts, &res);
    random_called(m, gen);
    r->status = (uint32_t)-s;
    r->epoch = res.epoch;
    r->retries = res.retries;
    r->contributors = res.contributors;
    for (uint32_t k = res.contributors; k < N; k++) r->ids[k] = 0;
    snprintf(r->text, sizeof r->text, "%s", res.text);
    r->intact = 1;
    for (uint64_t i = 0; i < input_of(&c, N) && !c.in_place; i++) {
        float was = value(&c, m->id, gen, i);
        r->intact &= !memcmp(&from[i], &was, sizeof was);
    }
    if (s == RG_OK) succeeded(m, &c, gen, z, r);
    else {
        r->intact &= !memcmp(o->out, o->was, c.in_place && in_bytes > out_bytes ? in_bytes : out_bytes);
        r->unlike = kept_unlike(&c, o, z, 0, 0);
    }
    if (c.used < 0) rg_quantiser_destroy(z);
    return 0;
}

/* ---- The kind -------------------------------------------------------------------------------------------------- */

static const char *class_name(uint32_t k) { return rg_quant_form_name(k); }
static uint32_t class_of(uint64_t gen) { return round_of(gen).c.form; }
static int is_long(uint64_t gen) { return round_of(gen).c.count > 3000; }

static int allows(uint64_t gen, int status) {
    struct round r = round_of(gen);
    return status == RG_OK ||
           (status == RG_ERR_PEER_LOST && (r.c.kind != QUANT_ALL_REDUCE || r.on_fault == RG_RETURN)) ||
           (status == RG_ERR_CANCELLED && r.cancel) || (status == RG_ERR_INVALID && r.data >= HUGE_ONES);
}

static void describe(uint64_t gen, char *text, size_t cap) {
    static const char *const kinds[] = { "all_reduce", "reduce_scatter", "all_gather" };
    struct round r = round_of(gen);
    snprintf(text, cap,
             "%s of %u, %s, %s, %s, flags %u, scale %g, data %d, on_fault %d, in place %d, request %d, cancel %d, "
             "feedback %d (beta %g, clip %g, preset %d), used %d",
             kinds[r.c.kind], r.c.count, rg_op_name(r.c.op), rg_wire_name(r.c.wire), rg_quant_form_name(r.c.form),
             r.c.flags, (double)r.c.scale, r.data, (int)r.on_fault, r.in_place, r.request, r.cancel, r.feeds,
             (double)r.f.beta, (double)r.f.clip, r.preset, r.used);
}

static const struct random_kind kind = { .name = "quantised",
                                         .classes = RG_QUANT_FORM_COUNT,
                                         .class_name = class_name,
                                         .class_of = class_of,
                                         .allows = allows,
                                         .is_long = is_long,
                                         .describe = describe,
                                         .begin = begin,
                                         .end = end,
                                         .run = run };

int check_quant(uint64_t rounds, unsigned every, unsigned seed) { return random_check(&kind, rounds, every, seed); }

int check_quant_planted(void) {
    uint64_t gen = 1;
    while (round_of(gen).data != ORDINARY || allows(gen, RG_ERR_PEER_LOST)) gen++;
    return random_planted(&kind, gen);
}
