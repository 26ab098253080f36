/* test_diloco_outer.c: the arithmetic of the outer optimisers against numbers worked out by hand, the packing of
 * fragments and the schedule. No group and no thread is needed. */
#include "diloco/outer.h"
#include "regroup_diloco.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void close_to(double is, double want, const char *what) {
    cr_assert(fabs(is - want) <= 1e-6 * (1 + fabs(want)), "%s: %.9g, expected %.9g", what, is, want);
}

/* ---- Golden vectors ------------------------------------------------------------------------------------------ */

/* One element through a row of arrivals. */
typedef struct row {
    float theta, buf, acc;
    uint32_t arrivals;
} row_t;

static void arrive(const rg_outer_t *o, row_t *r, float d, double gap) {
    float theta, buf, acc = 0;
    rg_outer_place_t at = { &r->theta, &r->buf, &r->acc, &theta, &buf, &acc };
    cr_assert(rg_outer_step(o, &at, &d, 1, r->arrivals, gap));
    *r = (row_t){ theta, buf, acc, (r->arrivals + 1) % o->momentum_every };
}

Test(diloco_outer, nesterov__three_rounds__golden) {
    const rg_outer_t o = { .lr = 0.7f, .momentum = 0.9f, .momentum_every = 1 };
    const float d[] = { 0.5f, 0.25f, -0.5f };
    const double want[] = { 0.335, -0.281, -0.0129 };
    row_t r = { 1, 0, 0, 0 };
    for (int i = 0; i < 3; i++) {
        arrive(&o, &r, d[i], 1);
        close_to(r.theta, want[i], "theta");
    }
    close_to(r.buf, 0.13, "momentum");
}

/* mu 0 and lr 1: the anchor becomes the average of what the members have. */
Test(diloco_outer, fedavg__one_round__the_average) {
    const rg_outer_t o = { .lr = 1, .momentum_every = 1 };
    row_t r = { 2, 0, 0, 0 };
    arrive(&o, &r, 0.75f, 1);
    close_to(r.theta, 1.25, "theta");
}

/* Two arrivals a step of momentum, lr 0.7, mu 0.9; by hand: 1 - .7*.25 = .825; buf = .375, .825 - .7*.125 - .7*.9*.375
 * = .50125; .50125 + .7*.25 = .67625; buf = .3375 - .1 = .2375, .67625 - .7*.15 - .7*.9*.2375 = .421625. */
Test(diloco_outer, delayed_momentum__two_arrivals_a_step__golden) {
    const rg_outer_t o = { .lr = 0.7f, .momentum = 0.9f, .momentum_every = 2 };
    const float d[] = { 0.5f, 0.25f, -0.5f, 0.3f };
    const double want[] = { 0.825, 0.50125, 0.67625, 0.421625 };
    row_t r = { 1, 0, 0, 0 };
    for (int i = 0; i < 4; i++) {
        arrive(&o, &r, d[i], 1);
        close_to(r.theta, want[i], "theta");
    }
    close_to(r.acc, 0, "arrivals");
}

/* lr 1, mu .5, clip .4: buf = .5 cut to .4, theta .6; gap 2: buf = .2 + .125, theta .275; gap 1.25: .1625 - .4 =
 * -.2375, theta .5125. */
Test(diloco_outer, co2__stale_and_clipped__golden) {
    const rg_outer_t o = { .lr = 1, .momentum = 0.5f, .clip = 0.4f, .momentum_every = 1, .heavy = 1 };
    const float d[] = { 0.5f, 0.25f, -0.5f };
    const double gap[] = { 1, 2, 1.25 }, want[] = { 0.6, 0.275, 0.5125 };
    row_t r = { 1, 0, 0, 0 };
    for (int i = 0; i < 3; i++) {
        arrive(&o, &r, d[i], gap[i]);
        close_to(r.theta, want[i], "theta");
    }
    close_to(rg_outer_gap(3, 1.5), 3, "gap");
    close_to(rg_outer_gap(3, 0), 1, "gap without a usual step");
}

/* The layer keeps what all members have alike apart from a member's own way. Together they must be what the equation
 * says: an outer optimiser that gets D'(t - H) + (D_m(t) - D_m(t - H)) / M. Two members, four rounds, in double beside.
 */
Test(diloco_outer, eager__split_into_common_and_own__the_equation) {
    enum { M = 2, ROUNDS = 4 };
    const rg_outer_t o = { .lr = 0.4f, .momentum = 0.9f, .momentum_every = 1 };
    const float d[ROUNDS][M] = { { 0.5f, -0.25f }, { 0.3f, 0.1f }, { -0.2f, 0.7f }, { 0.05f, 0.6f } };
    row_t common = { 1, 0, 0, 0 }, own[M] = { { 0, 0, 0, 0 } };
    double theta[M] = { 1, 1 }, buf[M] = { 0 };
    float said[M] = { 0 };
    for (int t = 0; t < ROUNDS; t++) {
        double late = t ? ((double)d[t - 1][0] + (double)d[t - 1][1]) / M : 0;
        if (t) arrive(&o, &common, (float)late, 1);
        for (int m = 0; m < M; m++) {
            double x = late + ((double)d[t][m] - (t ? (double)d[t - 1][m] : 0)) / M;
            buf[m] = 0.9 * buf[m] + x;
            theta[m] -= 0.4 * (x + 0.9 * buf[m]);
            float say, mine;
            rg_outer_eager(&d[t][m], M, &said[m], 1, &say, &mine);
            said[m] = say;
            arrive(&o, &own[m], mine, 1);
            close_to((double)common.theta + (double)own[m].theta, theta[m], "member");
        }
    }
}

Test(diloco_outer, streaming__blend__between_own_and_anchor) {
    const float anchor[] = { 1, -2 }, off[] = { 0.5f, 0.25f };
    float v[] = { 3, 4 };
    rg_outer_blend(v, anchor, NULL, 0.25f, 2);
    close_to(v[0], 1.5, "first");
    close_to(v[1], -0.5, "second");
    rg_outer_blend(v, anchor, off, 0, 2);
    cr_assert(v[0] == 1.5f && v[1] == -1.75f);
    rg_outer_blend(v, anchor, NULL, 1, 2);
    cr_assert(v[0] == 1.5f && v[1] == -1.75f, "blend 1 ignores the anchor");
}

/* Directions (1, 0) and (0, 1) with weights 1 and 3 and lengths 2 and 4: r = (2 + 12) / 4 = 3.5, u ~ (1, 3). */
Test(diloco_outer, rda__two_members__golden) {
    const float a[] = { 2, 0 }, b[] = { 0, 4 };
    float x[2], y[2], u[2];
    double r = (1 * rg_outer_length(a, 2) + 3 * rg_outer_length(b, 2)) / 4;
    close_to(r, 3.5, "length");
    rg_outer_scale(a, 1.0 * r / rg_outer_length(a, 2), 2, x);
    rg_outer_scale(b, 3.0 * r / rg_outer_length(b, 2), 2, y);
    for (int i = 0; i < 2; i++) u[i] = (x[i] + y[i]) / 4;
    cr_assert(rg_outer_lengthen(u, 2, r));
    close_to(u[0], 3.5 / sqrt(10), "first");
    close_to(u[1], 3.5 * 3 / sqrt(10), "second");
    float none[] = { 1e-20f, 0 };
    cr_assert(!rg_outer_lengthen(none, 2, r), "directions that cancel");
}

Test(diloco_outer, weight__all_kinds__as_specified) {
    close_to(rg_outer_weight(RG_DILOCO_EQUAL, 700, 7), 1, "equal");
    close_to(rg_outer_weight(RG_DILOCO_TOKENS, 700, 7), 700, "tokens");
    close_to(rg_outer_weight(RG_DILOCO_RATE, 700, 7), 70000, "rate");
    for (int k = 0; k < 3; k++) cr_assert(rg_outer_weight(k, 700, 0) == 0, "no step, no weight");
}

Test(diloco_outer, not_finite__anywhere__is_seen) {
    float anchor[131] = { 0 }, local[131] = { 0 }, d[131], buf[131] = { 0 }, out[131], buf_out[131];
    const rg_outer_t o = { .lr = 1, .momentum = 0.9f, .momentum_every = 1 };
    rg_outer_place_t at = { anchor, buf, NULL, out, buf_out, NULL };
    cr_assert(rg_outer_delta(anchor, NULL, local, NULL, 131, d) && rg_outer_step(&o, &at, d, 131, 0, 1));
    for (int i = 0; i < 131; i++) {
        local[i] = i % 2 ? NAN : -INFINITY;
        cr_assert(!rg_outer_delta(anchor, NULL, local, NULL, 131, d), "element %d", i);
        local[i] = 0;
        memset(d, 0, sizeof d);
        d[i] = 3e38f;
        anchor[i] = -3e38f;
        cr_assert(!rg_outer_step(&o, &at, d, 131, 0, 1), "element %d", i);
        anchor[i] = 0;
    }
}

Test(diloco_outer, length__any_count__the_same_sum) {
    float x[37];
    double want = 0;
    for (int i = 0; i < 37; i++) {
        x[i] = (float)(i - 11);
        want += (double)(i - 11) * (i - 11);
    }
    close_to(rg_outer_length(x, 37), sqrt(want), "length");
    close_to(rg_outer_distance(x, x, 37), 0, "distance");
}

/* ---- Schedule ------------------------------------------------------------------------------------------------ */

Test(diloco_outer, due__all_small_schedules__every_fragment_once_a_round) {
    for (uint32_t every = 1; every <= 40; every++)
        for (uint32_t n = 1; n <= every; n++)
            for (uint64_t step = 0; step <= 3 * every; step++) {
                int64_t want = -1;
                for (uint32_t p = 0; p < n && step; p++) {
                    uint64_t at = (uint64_t)(p + 1) * every / n;
                    if (step >= at && (step - at) % every == 0) want = p;
                }
                cr_assert_eq(rg_outer_due(step, every, n), want, "step %u of %u, %u fragments", (unsigned)step, every,
                             n);
            }
}

/* ---- Packing ------------------------------------------------------------------------------------------------- */

static void pack(const rg_pack_tensor_t *t, uint32_t n, uint32_t fragments) {
    rg_pack_piece_t *piece = calloc(n + 16 * (size_t)fragments, sizeof *piece);
    uint64_t *sizes = calloc(n + fragments, sizeof *sizes), all = 0, shared = 0;
    uint32_t pieces = 0, alone = 0, made = rg_pack(t, n, fragments, piece, &pieces, sizes);
    uint64_t *covered = calloc(n, sizeof *covered), low = UINT64_MAX, high = 0;
    for (uint32_t i = 0; i < n; i++) {
        alone += t[i].alone && t[i].count;
        shared += t[i].alone ? 0 : t[i].count;
        all += t[i].count;
    }
    cr_assert_eq(made, (shared ? fragments : 0) + alone);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < pieces; i++) {
        const rg_pack_piece_t *p = &piece[i];
        cr_assert(p->fragment < made && p->count > 0);
        cr_assert(i == 0 || piece[i - 1].fragment <= p->fragment, "in order");
        if (t[p->tensor].alone) cr_assert(p->count == t[p->tensor].count && sizes[p->fragment] == p->count, "alone");
        covered[p->tensor] += p->count;
        sum += p->count;
    }
    for (uint32_t i = 0; i < n; i++) cr_assert_eq(covered[i], t[i].count, "tensor %u", i);
    cr_assert_eq(sum, all);
    for (uint32_t f = 0; shared && f < fragments; f++) {
        low = sizes[f] < low ? sizes[f] : low;
        high = sizes[f] > high ? sizes[f] : high;
    }
    if (shared >= 64 * (uint64_t)fragments)
        cr_assert((double)high <= 1.1 * (double)low + 1, "from %llu to %llu", (unsigned long long)low,
                  (unsigned long long)high);
    free(piece);
    free(sizes);
    free(covered);
}

Test(diloco_outer, pack__any_tensors__whole_and_of_like_size) {
    uint64_t x = 88172645463325252ull;
    for (int round = 0; round < 400; round++) {
        rg_pack_tensor_t t[40];
        uint32_t n = 1 + (uint32_t)(round % 40), fragments = 1 + (uint32_t)round % 9;
        for (uint32_t i = 0; i < n; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            t[i] = (rg_pack_tensor_t){ x % (i % 3 ? 100000 : 500), x >> 20, round % 4 == 3 && x % 5 == 0 };
        }
        pack(t, n, fragments);
    }
}

Test(diloco_outer, profiles__all__accepted_and_named) {
    for (int v = 0; v < RG_DILOCO_VARIANT_COUNT; v++) {
        rg_diloco_config_t c;
        rg_diloco_t *d = NULL;
        rg_error_t err = { RG_OK, 0, "" };
        cr_assert_eq(rg_diloco_profile((rg_diloco_variant_t)v, &c), RG_OK);
        cr_assert_eq(rg_diloco_create(&c, &d, &err), RG_OK, "%s", err.text);
        rg_diloco_destroy(d);
        cr_assert_eq((int)rg_diloco_variant_by_name(rg_diloco_variant_name((rg_diloco_variant_t)v)), v);
        c.every = 0;
        cr_assert_eq(rg_diloco_create(&c, &d, &err), RG_ERR_INVALID);
        cr_assert(strstr(err.text, "rg_diloco_profile"), "%s", err.text);
    }
    cr_assert_eq(rg_diloco_variant_by_name("nothing"), RG_DILOCO_VARIANT_COUNT);
    cr_assert_eq(rg_diloco_variant_by_name(NULL), RG_DILOCO_VARIANT_COUNT);
    cr_assert_null(rg_diloco_variant_name(RG_DILOCO_VARIANT_COUNT));
}

Test(diloco_outer, config__wrong_fields__each_named) {
    static const struct {
        size_t at;
        int is_float;
        double value;
        const char *text;
    } wrong[] = {
        { offsetof(rg_diloco_config_t, variant), 0, 99, "variant" },
        { offsetof(rg_diloco_config_t, every), 0, 0, "every" },
        { offsetof(rg_diloco_config_t, fragments), 0, 0, "fragments" },
        { offsetof(rg_diloco_config_t, fragments), 0, 1001, "fragments" },
        { offsetof(rg_diloco_config_t, overlap), 0, 500, "overlap" },
        { offsetof(rg_diloco_config_t, momentum_every), 0, 0, "momentum_every" },
        { offsetof(rg_diloco_config_t, lr), 1, 0, "lr" },
        { offsetof(rg_diloco_config_t, lr), 1, NAN, "lr" },
        { offsetof(rg_diloco_config_t, lr), 1, -0.5, "lr" },
        { offsetof(rg_diloco_config_t, lr), 1, INFINITY, "lr" },
        { offsetof(rg_diloco_config_t, momentum), 1, NAN, "momentum" },
        { offsetof(rg_diloco_config_t, blend), 1, NAN, "blend" },
        { offsetof(rg_diloco_config_t, clip), 1, NAN, "clip" },
        { offsetof(rg_diloco_config_t, feedback), 1, NAN, "feedback" },
        { offsetof(rg_diloco_config_t, topk), 0, 4097, "topk" },
        { offsetof(rg_diloco_config_t, timeout_ms), 0, 2147483648.0, "timeout_ms" },
        { offsetof(rg_diloco_config_t, momentum), 1, 1, "momentum" },
        { offsetof(rg_diloco_config_t, blend), 1, 1.5, "blend" },
        { offsetof(rg_diloco_config_t, clip), 1, 1, "clip" },
        { offsetof(rg_diloco_config_t, feedback), 1, -1, "feedback" },
        { offsetof(rg_diloco_config_t, weight), 0, 9, "weight" },
        { offsetof(rg_diloco_config_t, merge), 0, 9, "merge" },
        { offsetof(rg_diloco_config_t, wire), 0, 99, "wire" },
        { offsetof(rg_diloco_config_t, flags), 0, 1, "flags" },
        { offsetof(rg_diloco_config_t, quorum), 0, 2, "quorum" },
        { offsetof(rg_diloco_config_t, grace_ms), 0, 2, "grace_ms" },
        { offsetof(rg_diloco_config_t, serve), 0, 9, "serve" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        rg_diloco_config_t c;
        rg_diloco_t *d = NULL;
        rg_error_t err = { RG_OK, 0, "" };
        rg_diloco_profile(RG_DILOCO_PLAIN, &c);
        float f = (float)wrong[i].value;
        uint32_t u = wrong[i].is_float ? 0 : (uint32_t)wrong[i].value;
        memcpy((char *)&c + wrong[i].at, wrong[i].is_float ? (void *)&f : (void *)&u, sizeof u);
        cr_assert_eq(rg_diloco_create(&c, &d, &err), RG_ERR_INVALID, "%s", wrong[i].text);
        cr_assert(strstr(err.text, wrong[i].text), "%s: %s", wrong[i].text, err.text);
    }
}
