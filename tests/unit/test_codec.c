/* test_codec.c: the wire forms against their definitions, computed here in double precision element by element, every
 * SIMD level against the reference byte for byte, the bounds of the error, stochastic rounding, and the mistakes that
 * other codecs have made. Relies on rg_simd_force(). */
#include "kernels/kernels.h"
#include "regroup_quant.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1500 };

static const uint64_t lengths[] = { 1,   2,   3,   5,   31,  32,  33,  64,  127,  128,
                                    129, 255, 256, 257, 319, 320, 321, 641, 1024, MOST };
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static uint64_t seed = 0x2545f4914f6cdd1dull;

static uint64_t next(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed * 0x9e3779b97f4a7c15ull;
}

/* Close enough to a normal distribution. */
static float normal(void) {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += (double)(next() >> 40) * 0x1p-24;
    return (float)(sum - 6);
}

/* Data of several kinds: normal, tiny, huge, one sign, zeros, any finite bits. */
static void fill(float *x, uint64_t n, uint32_t kind) {
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)(next() >> 32);
        float any;
        if ((bits >> 23 & 255) == 255) bits ^= 1u << 30;
        memcpy(&any, &bits, sizeof any);
        switch (kind) {
        case 0: x[i] = normal(); break;
        case 1: x[i] = normal() * 1e-30f; break;
        case 2: x[i] = normal() * 1e37f; break;
        case 3: x[i] = -fabsf(normal()) - 1; break;
        case 4: x[i] = i % 3 == 0 ? -0.0f : 0.0f; break;
        case 5: x[i] = any; break;
        case 6: x[i] = (i & 1) != 0 ? FLT_MAX : -FLT_MAX; break;
        case 7: x[i] = normal() * 1e-44f; break;
        default: x[i] = (float)((int)(i % 13) - 6); break;
        }
    }
}
enum { KINDS = 9 };

static int levels(const char *out[3]) {
    int n = 0;
    const char *names[] = { "scalar", "avx2", "avx512" };
    for (int i = 0; i < 3; i++)
        if (rg_simd_force(names[i])) out[n++] = names[i];
    return n;
}

static rg_quant_t quant(int wire, uint32_t flags) {
    rg_quant_t q = RG_QUANT_INIT((rg_wire_t)wire);
    q.flags = flags;
    q.seed = 77;
    return q;
}

Test(codec, every_level__all_forms_lengths_and_data__same_bytes_and_values) {
    static float x[MOST], y[MOST], ref[MOST];
    static uint8_t w[8 * MOST], want[8 * MOST];
    const char *names[3];
    int n_levels = levels(names);
    for (int wire = 1; wire < RG_WIRE_COUNT; wire++)
        for (uint32_t kind = 0; kind < KINDS; kind++)
            for (uint32_t k = 0; k < 2 * LENGTHS; k++) {
                uint64_t n = lengths[k / 2], bytes = rg_quant_bytes((rg_wire_t)wire, n);
                rg_quant_t q = quant(wire, k % 2 != 0 ? RG_QUANT_STOCHASTIC : 0);
                fill(x, n, kind);
                for (int l = 0; l < n_levels; l++) {
                    rg_simd_force(names[l]);
                    memset(w, 0x5a, sizeof w);
                    /* One byte off: no alignment is promised. */
                    cr_assert_eq(rg_quant_encode(&q, 3, 1000, x, n, w + 1), RG_OK);
                    cr_assert_eq(w[0], 0x5a);
                    cr_assert_eq(w[1 + bytes], 0x5a, "%s n=%d", rg_wire_name(q.wire), (int)n);
                    cr_assert_eq(rg_quant_decode(q.wire, w + 1, n, y), RG_OK);
                    for (uint64_t i = 0; i < n; i++) cr_assert(isfinite(y[i]) || wire == RG_WIRE_I8_MINMAX || kind > 4);
                    if (l == 0) {
                        memcpy(want, w + 1, bytes);
                        memcpy(ref, y, n * sizeof *y);
                    }
                    cr_assert_eq(memcmp(want, w + 1, bytes), 0, "%s of %s, data %u, %d elements", names[l],
                                 rg_wire_name(q.wire), kind, (int)n);
                    cr_assert_eq(memcmp(ref, y, n * sizeof *y), 0, "%s of %s", names[l], rg_wire_name(q.wire));
                    for (uint64_t i = 0; i < n; i++) cr_assert(y[i] != 0 || !signbit(y[i]), "a negative zero");
                    for (uint64_t i = 0; i < n; i++) y[i] = (float)i;
                    rg_quant_decode_add(q.wire, w + 1, n, y);
                    for (uint64_t i = 0; i < n; i++) {
                        float sum = (float)i + ref[i];
                        cr_assert_eq(memcmp(&y[i], &sum, sizeof sum), 0);
                    }
                }
            }
}

Test(codec, bound__all_forms_and_data__holds_for_every_element) {
    static float x[MOST], y[MOST];
    static uint8_t w[8 * MOST];
    for (int wire = 1; wire < RG_WIRE_COUNT; wire++)
        for (uint32_t kind = 0; kind < KINDS; kind++)
            for (uint32_t flags = 0; flags < 2; flags++) {
                rg_quant_t q = quant(wire, flags);
                int half_scale = wire == RG_WIRE_I4 || wire == RG_WIRE_I2 || wire == RG_WIRE_F16;
                if (half_scale && (kind == 2 || kind == 5 || kind == 6)) continue; /* out of the range of f16 */
                fill(x, MOST, kind);
                cr_assert_eq(rg_quant_encode(&q, 0, 0, x, MOST, w), RG_OK);
                rg_quant_decode(q.wire, w, MOST, y);
                double bound = rg_quant_bound(&q, w, MOST), worst = 0;
                for (int i = 0; i < MOST; i++) worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
                cr_expect(worst <= bound, "%s data %u flags %u: %g is more than %g", rg_wire_name(q.wire), kind, flags,
                          worst, bound);
                if (kind == 0)
                    cr_expect(bound < 2.6 * worst * (flags ? 1.7 : 1) + 1e-3, "%s: a bound of %g for %g",
                              rg_wire_name(q.wire), bound, worst);
            }
}

/* The nearest of all values that a small float has, ties to the even code; by search. */
static double nearest_small(double y, int mant, int bias, int top_code) {
    double best = 0, gap = fabs(y);
    for (int code = 0; code <= top_code; code++) {
        int e = code >> mant, m = code & ((1 << mant) - 1);
        double v = e == 0 ? ldexp(m, 1 - bias - mant) : ldexp((1 << mant) + m, e - bias - mant);
        double d = fabs(fabs(y) - v);
        if (d < gap || (d == gap && code % 2 == 0)) {
            gap = d;
            best = v;
        }
    }
    return y < 0 ? -best : best;
}

/* What element i of a block decodes to, from the definition; the scale is rounded to f32 where the form stores that. */
static double by_definition(int wire, const float *x, uint64_t n, uint64_t i) {
    double most = 0, low = INFINITY, high = -INFINITY;
    for (uint64_t k = 0; k < n; k++) {
        most = fmax(most, fabs((double)x[k]));
        low = fmin(low, x[k]);
        high = fmax(high, x[k]);
    }
    float s;
    int e = 0;
    switch (wire) {
    case RG_WIRE_I8: s = (float)most / 127; return (double)(s * rintf(x[i] / s));
    case RG_WIRE_I8_MINMAX:
        s = ((float)high - (float)low) / 255;
        return (double)((float)low + s * rintf((x[i] - (float)low) / s));
    case RG_WIRE_E4M3: s = (float)most / 448; return (double)(s * (float)nearest_small(x[i] / s, 3, 7, 0x7e));
    case RG_WIRE_E5M2: s = (float)most / 57344; return (double)(s * (float)nearest_small(x[i] / s, 2, 15, 0x7b));
    case RG_WIRE_F16: return nearest_small(x[i], 10, 15, 0x7bff);
    case RG_WIRE_TERNARY: s = (float)most; return fabsf(x[i] / s) > 0.5f ? copysign(s, x[i]) : 0;
    default: break;
    }
    frexp(most, &e); /* most is in [2^(e-1), 2^e) */
    switch (wire) {
    case RG_WIRE_MXFP8: return ldexp(nearest_small(ldexp(x[i], 9 - e), 3, 7, 0x7e), e - 9);
    case RG_WIRE_MXFP8_E5M2: return ldexp(nearest_small(ldexp(x[i], 16 - e), 2, 15, 0x7b), e - 16);
    case RG_WIRE_MXFP4: return ldexp(nearest_small(ldexp(x[i], 3 - e), 1, 1, 7), e - 3);
    default: return NAN;
    }
}

Test(codec, nearest__every_block_of_normal_data__equals_the_definition) {
    static float x[700], y[700];
    static uint8_t w[8 * 700];
    for (int wire = 1; wire < RG_WIRE_COUNT; wire++) {
        if (wire == RG_WIRE_BF16 || wire == RG_WIRE_I4 || wire == RG_WIRE_I2) continue; /* have tests of their own */
        rg_quant_t q = quant(wire, 0);
        uint64_t block = rg_quant_block(q.wire), n = wire == RG_WIRE_F16 ? 40 : 700;
        if (block == 0) block = n;
        fill(x, n, 0);
        rg_quant_encode(&q, 0, 0, x, n, w);
        rg_quant_decode(q.wire, w, n, y);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t from = i / block * block, many = n - from < block ? n - from : block;
            double want = by_definition(wire, x + from, many, i - from);
            cr_assert_eq((double)y[i], want, "%s, element %d: %.9g becomes %.9g and not %.9g", rg_wire_name(q.wire),
                         (int)i, (double)x[i], (double)y[i], want);
        }
    }
}

Test(codec, f16_scales__blocks_of_32__nearest_of_what_the_stored_scale_allows) {
    static float x[96], y[96];
    static uint8_t w[96];
    for (int wire = RG_WIRE_I4; wire <= RG_WIRE_I2; wire++) {
        rg_quant_t q = quant(wire, 0);
        fill(x, 96, 0);
        rg_quant_encode(&q, 0, 0, x, 96, w);
        rg_quant_decode(q.wire, w, 96, y);
        for (int b = 0; b < 3; b++) {
            double most = 0;
            for (int i = 0; i < 32; i++) most = fmax(most, fabs((double)x[32 * b + i]));
            double s = nearest_small((float)most / (wire == RG_WIRE_I4 ? 7 : 1), 10, 15, 0x7bff);
            for (int i = 32 * b; i < 32 * b + 32; i++) {
                double step = wire == RG_WIRE_I4 ? s : s / 1.5, worst = step / 2 * (1 + 1e-6) + most / 1000;
                cr_assert_leq(fabs((double)x[i] - (double)y[i]), worst, "%s element %d", rg_wire_name(q.wire), i);
            }
        }
    }
}

Test(codec, bf16__halves_and_odd_cases__to_nearest_even) {
    const float in[] = { 1.0f, 1.00390625f, 1.01171875f, -1.00390625f, 3.4e38f, FLT_MAX, -FLT_MAX, 1e-45f, -1e-45f };
    const float out[] = { 1.0f, 1.0f, 1.015625f, -1.0f, 0, 0, 0, 0, 0 };
    float y[9];
    uint8_t w[18];
    rg_quant_t q = quant(RG_WIRE_BF16, 0);
    cr_assert_eq(rg_quant_encode(&q, 0, 0, in, 9, w), RG_OK);
    rg_quant_decode(q.wire, w, 9, y);
    for (int i = 0; i < 4; i++) cr_expect_eq(y[i], out[i]);
    for (int i = 4; i < 7; i++) cr_expect(isfinite(y[i]) && fabsf(y[i]) > 3.3e38f, "%g", (double)y[i]);
    for (int i = 7; i < 9; i++) cr_expect(y[i] == 0 && !signbit(y[i]));
}

Test(codec, not_finite__refused_or_saturated__anywhere_in_a_block) {
    static float x[330], y[330];
    static uint8_t w[8 * 330];
    const float bad[] = { NAN, INFINITY, -INFINITY };
    const int at[] = { 0, 31, 130, 329 };
    for (int wire = 1; wire < RG_WIRE_COUNT; wire++)
        for (int k = 0; k < 3; k++)
            for (int p = 0; p < 4; p++) {
                rg_quant_t q = quant(wire, 0);
                fill(x, 330, 0);
                x[at[p]] = bad[k];
                cr_assert_eq(rg_quant_encode(&q, 0, 0, x, 330, w), RG_ERR_INVALID);
                q.flags = RG_QUANT_SATURATE;
                cr_assert_eq(rg_quant_encode(&q, 0, 0, x, 330, w), RG_OK);
                rg_quant_decode(q.wire, w, 330, y);
                for (int i = 0; i < 330; i++) cr_assert(isfinite(y[i]), "%s", rg_wire_name(q.wire));
                if (k != 0)
                    cr_assert((signbit(y[at[p]]) != 0) == (k == 2) && fabsf(y[at[p]]) > 6e4f, "%s: %g",
                              rg_wire_name(q.wire), (double)y[at[p]]);
                if (k == 0 && wire != RG_WIRE_I2 && wire != RG_WIRE_I8_MINMAX) cr_assert_eq(y[at[p]], 0);
            }
}

Test(codec, stochastic__many_operations__right_on_average_and_equal_when_repeated) {
    enum { N = 64, ROUNDS = 4000 };
    float x[N], y[N];
    double sum[N];
    uint8_t w[8 * N], again[8 * N];
    for (int wire = 1; wire < RG_WIRE_COUNT; wire++) {
        rg_quant_t q = quant(wire, RG_QUANT_STOCHASTIC);
        fill(x, N, 0);
        memset(sum, 0, sizeof sum);
        int differ = 0;
        double bound = 0, saturated = wire == RG_WIRE_MXFP4   ? 6.0 / 8
                                      : wire == RG_WIRE_MXFP8 ? 448.0 / 512
                                                              : 57344.0 / 65536;
        for (uint64_t op = 0; op < ROUNDS; op++) {
            rg_quant_encode(&q, op, 5, x, N, w);
            rg_quant_encode(&q, op, 5, x, N, again);
            cr_assert_eq(memcmp(w, again, rg_quant_bytes(q.wire, N)), 0);
            if (op > 0) {
                rg_quant_encode(&q, op - 1, 5, x, N, again);
                differ += memcmp(w, again, rg_quant_bytes(q.wire, N)) != 0;
            }
            rg_quant_decode(q.wire, w, N, y);
            bound = rg_quant_bound(&q, w, N);
            for (int i = 0; i < N; i++) sum[i] += (double)y[i];
        }
        cr_expect_gt(differ, ROUNDS * 9 / 10);
        /* A power of two as the scale may be too small for the largest elements, which are then clipped. */
        int clips = wire >= RG_WIRE_MXFP8;
        for (int i = 0; i < N; i++) {
            double top = 0;
            for (int k = i / 32 * 32; k < i / 32 * 32 + 32; k++) top = fmax(top, fabs((double)x[k]));
            if (clips && fabs((double)x[i]) > saturated * top) continue;
            if (wire == RG_WIRE_I4 && fabs((double)x[i]) > 0.999 * top) continue; /* its f16 scale may be too small */
            if (wire == RG_WIRE_I2 && fabs((double)x[i]) > 0.999 * top) continue;
            cr_expect_leq(fabs(sum[i] / ROUNDS - (double)x[i]), 5 * bound / sqrt(ROUNDS),
                          "%s: %.6g on average for %.6g", rg_wire_name(q.wire), sum[i] / ROUNDS, (double)x[i]);
        }
    }
}

Test(codec, stochastic__in_pieces_of_whole_blocks__the_same_as_at_once) {
    static float x[1280];
    static uint8_t w[8 * 1280], parts[8 * 1280];
    for (int wire = 1; wire < RG_WIRE_COUNT; wire++) {
        rg_quant_t q = quant(wire, RG_QUANT_STOCHASTIC);
        fill(x, 1280, 0);
        if (wire == RG_WIRE_TERNARY) continue; /* the whole call is one block */
        rg_quant_encode(&q, 9, 0, x, 1280, w);
        for (uint64_t at = 0; at < 1280; at += 256)
            rg_quant_encode(&q, 9, at, x + at, 256, parts + rg_quant_bytes(q.wire, at));
        cr_expect_eq(memcmp(w, parts, rg_quant_bytes(q.wire, 1280)), 0, "%s", rg_wire_name(q.wire));
    }
}

/* The relative root mean square of the error for normal data, one quantisation: half of what a sum of four by the
 * direct algorithm may have, and no more. */
Test(codec, error__normal_data__as_small_as_the_format_allows) {
    enum { N = 1 << 16 };
    static const double most[RG_WIRE_COUNT] = {
        [RG_WIRE_F16] = 2.2e-4, [RG_WIRE_BF16] = 1.8e-3, [RG_WIRE_I8] = 7.5e-3,       [RG_WIRE_I8_MINMAX] = 7e-3,
        [RG_WIRE_I4] = .102,    [RG_WIRE_I2] = .47,      [RG_WIRE_TERNARY] = 1.01,    [RG_WIRE_E4M3] = .027,
        [RG_WIRE_E5M2] = .054,  [RG_WIRE_MXFP8] = .031,  [RG_WIRE_MXFP8_E5M2] = .057, [RG_WIRE_MXFP4] = .122
    };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    uint8_t *w = malloc(4 * N);
    fill(x, N, 0);
    for (int wire = 1; wire < RG_WIRE_COUNT; wire++) {
        rg_quant_t q = quant(wire, 0);
        rg_quant_encode(&q, 0, 0, x, N, w);
        rg_quant_decode(q.wire, w, N, y);
        double error = 0, all = 0;
        for (int i = 0; i < N; i++) {
            error += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
            all += (double)x[i] * (double)x[i];
        }
        cr_expect_leq(sqrt(error / all), most[wire], "%s: %.5f", rg_wire_name(q.wire), sqrt(error / all));
    }
    free(x);
    free(y);
    free(w);
}

Test(codec, garbage__any_bytes__values_and_no_harm) {
    static uint8_t w[8 * 333];
    static float y[333];
    for (int wire = 1; wire < RG_WIRE_COUNT; wire++)
        for (int round = 0; round < 50; round++) {
            uint64_t bytes = rg_quant_bytes((rg_wire_t)wire, 333);
            uint8_t *exact = malloc(bytes); /* so that a sanitizer sees a read beyond */
            for (uint64_t i = 0; i < bytes; i++) w[i] = (uint8_t)(next() >> 56);
            memcpy(exact, w, bytes);
            cr_assert_eq(rg_quant_decode((rg_wire_t)wire, exact, 333, y), RG_OK);
            rg_quant_t q = quant(wire, 0);
            (void)rg_quant_bound(&q, exact, 333);
            free(exact);
        }
}

Test(codec, arguments__wrong_ones__refused) {
    float x[4] = { 1, 2, 3, 4 };
    uint8_t w[64];
    rg_quant_t q = quant(RG_WIRE_I8, 0);
    cr_expect_eq(rg_quant_encode(NULL, 0, 0, x, 4, w), RG_ERR_INVALID);
    q.size--;
    cr_expect_eq(rg_quant_encode(&q, 0, 0, x, 4, w), RG_ERR_INVALID);
    q = quant(0, 0);
    cr_expect_eq(rg_quant_encode(&q, 0, 0, x, 4, w), RG_ERR_INVALID);
    q = quant(RG_WIRE_COUNT, 0);
    cr_expect_eq(rg_quant_encode(&q, 0, 0, x, 4, w), RG_ERR_INVALID);
    q = quant(RG_WIRE_I8, 4);
    cr_expect_eq(rg_quant_encode(&q, 0, 0, x, 4, w), RG_ERR_INVALID);
    q = quant(RG_WIRE_TERNARY, 0);
    q.scale = -1;
    cr_expect_eq(rg_quant_encode(&q, 0, 0, x, 4, w), RG_ERR_INVALID);
    q.scale = NAN;
    cr_expect_eq(rg_quant_encode(&q, 0, 0, x, 4, w), RG_ERR_INVALID);
    q.scale = 8;
    cr_expect_eq(rg_quant_encode(&q, 0, 0, x, 4, w), RG_OK);
    cr_expect_eq(rg_quant_encode(&q, 0, 0, NULL, 0, NULL), RG_OK);
    cr_expect_eq(rg_quant_encode(&q, 0, 0, NULL, 1, w), RG_ERR_INVALID);
    cr_expect_eq(rg_quant_decode(RG_WIRE_COUNT, w, 4, x), RG_ERR_INVALID);
    cr_expect_eq(rg_quant_decode(RG_WIRE_I8, NULL, 0, NULL), RG_OK);
    cr_expect_eq(rg_quant_decode_add(0, w, 4, x), RG_ERR_INVALID);
    cr_expect_eq(rg_quant_bytes(RG_WIRE_COUNT, 4), 0);
    cr_expect_eq(rg_quant_bytes(RG_WIRE_I8, 257), 4 + 256 + 4 + 1);
    cr_expect_eq(rg_quant_bytes(RG_WIRE_TERNARY, 321), 4 + 64 + 1);
    cr_expect(rg_quant_bound(NULL, w, 4) < 0);
    for (int wire = 1; wire < RG_WIRE_COUNT; wire++)
        cr_expect_eq((int)rg_wire_by_name(rg_wire_name((rg_wire_t)wire)), wire);
    cr_expect_eq((int)rg_wire_by_name("int9"), 0);
    cr_expect_eq((int)rg_wire_by_name(NULL), 0);
    cr_expect_null(rg_wire_name(RG_WIRE_COUNT));
}
