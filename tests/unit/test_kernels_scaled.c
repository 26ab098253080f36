/* test_kernels_scaled.c: the 8-bit floats and the factors. Every code, every pair of codes and a dense sample of f32
 * against the definition of the formats, and every SIMD level against the reference, bit for bit. Relies on
 * rg_simd_force(); what the kernels share with the other types is in test_kernels.c. */
#include "kernels/kernels.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const rg_dtype_t bytes_types[] = { RG_F8E4M3, RG_F8E5M2 };
static const rg_dtype_t float_types[] = { RG_F16, RG_BF16, RG_F32, RG_F64, RG_F8E4M3, RG_F8E5M2 };
enum { FLOATS = sizeof float_types / sizeof float_types[0] };

static uint64_t seed = 0x853c49e6748fea9bull;

static uint64_t next(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed * 0x2545f4914f6cdd1dull;
}

/* The levels that this CPU has, the reference first. */
static int levels(const char *out[3]) {
    int n = 0;
    const char *names[] = { "scalar", "avx2", "avx512" };
    for (int i = 0; i < 3; i++)
        if (rg_simd_force(names[i])) out[n++] = names[i];
    return n;
}

/* ---- The formats by their definition ----------------------------------------------------------------------------- */

/* sign, exponent, fraction: e4m3 has bias 7 and only one NaN of each sign above its numbers; e5m2 is as IEEE has it. */
static double real_of_byte(rg_dtype_t dtype, uint8_t c) {
    int frac = dtype == RG_F8E4M3 ? 3 : 2, bias = dtype == RG_F8E4M3 ? 7 : 15;
    int exp = (c & 0x7f) >> frac, man = c & ((1 << frac) - 1);
    double sign = c & 0x80 ? -1.0 : 1.0;
    if (dtype == RG_F8E4M3 && (c & 0x7f) == 0x7f) return NAN;
    if (dtype == RG_F8E5M2 && exp == 31) return man ? NAN : sign * INFINITY;
    return sign * ldexp(exp ? man + (1 << frac) : man, (exp ? exp : 1) - bias - frac);
}

static uint8_t largest(rg_dtype_t dtype) { return dtype == RG_F8E4M3 ? 0x7e : 0x7b; }

/* The nearest code by looking at all: of two equally near the even one; beyond the last, the last. */
static uint8_t byte_of_real(rg_dtype_t dtype, double v) {
    uint8_t sign = signbit(v) ? 0x80 : 0, best = 0;
    double m = fabs(v), off = m;
    if (isinf(v) && dtype == RG_F8E5M2) return sign | 0x7c;
    if (m >= real_of_byte(dtype, largest(dtype))) return sign | largest(dtype);
    for (uint8_t c = 1; c <= largest(dtype); c++) {
        double d = fabs(real_of_byte(dtype, c) - m);
        if (d < off || (d == off && !(c & 1))) best = c, off = d;
    }
    return sign | best;
}

/* How many of the codes are not what the values must become. */
static size_t wrong_codes(rg_dtype_t dtype, const float *values, const uint8_t *codes, size_t n) {
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++)
        wrong += isnan(values[i]) ? !isnan(real_of_byte(dtype, codes[i])) || !!signbit(values[i]) != codes[i] >> 7
                                  : codes[i] != byte_of_real(dtype, (double)values[i]);
    return wrong;
}

/* All numbers between which the result changes, what is beside them, and the ends of f32. */
static size_t boundaries(rg_dtype_t dtype, float *out) {
    static const uint32_t ends[] = { 0x00000000, 0x00000001, 0x007fffff, 0x00800000, 0x7f7fffff,
                                     0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff, 0x7fa00000 };
    size_t n = 0;
    for (int c = 0; c < largest(dtype); c++) {
        double lo = real_of_byte(dtype, (uint8_t)c), hi = real_of_byte(dtype, (uint8_t)(c + 1));
        float at[] = { (float)lo, (float)((lo + hi) / 2) };
        for (int k = 0; k < 2; k++)
            for (int s = -1; s <= 1; s += 2) {
                out[n++] = (float)s * at[k];
                out[n++] = (float)s * nextafterf(at[k], INFINITY);
                out[n++] = (float)s * nextafterf(at[k], -INFINITY);
            }
    }
    for (size_t k = 0; k < sizeof ends / sizeof ends[0]; k++)
        for (uint32_t s = 0; s < 2; s++) {
            uint32_t u = ends[k] | s << 31;
            memcpy(&out[n++], &u, 4);
        }
    return n;
}

Test(kernels_scaled, bytes__all_codes__exact_in_f32_and_back) {
    const char *names[3];
    int n_levels = levels(names);
    for (int l = 0; l < n_levels; l++)
        for (int t = 0; t < 2; t++) {
            rg_dtype_t d = bytes_types[t];
            uint8_t codes[256], back[256];
            float wide[256];
            rg_red_t up, down;
            rg_simd_force(names[l]);
            cr_assert_eq(rg_red_init(&up, d, RG_SUM, 2, RG_RED_DST_ACC), RG_OK);
            cr_assert_eq(rg_red_init(&down, d, RG_SUM, 2, RG_RED_A_ACC | RG_RED_FINAL), RG_OK);
            for (int c = 0; c < 256; c++) codes[c] = (uint8_t)c;
            rg_red_copy(&up, wide, codes, 256);
            rg_red_copy(&down, back, wide, 256);
            for (int c = 0; c < 256; c++) {
                double want = real_of_byte(d, (uint8_t)c);
                cr_assert(isnan(want) ? isnan(wide[c]) && isnan(real_of_byte(d, back[c]))
                                      : (double)wide[c] == want && back[c] == c && !!signbit(wide[c]) == c >> 7,
                          "%s %s %02x", names[l], rg_dtype_name(d), (unsigned)c);
            }
            cr_assert_eq(real_of_byte(d, largest(d)), d == RG_F8E4M3 ? 448.0 : 57344.0);
        }
}

Test(kernels_scaled, bytes__all_boundaries__nearest_even_and_saturating) {
    static float values[2000];
    static uint8_t codes[2000];
    const char *names[3];
    int n_levels = levels(names);
    for (int l = 0; l < n_levels; l++)
        for (int t = 0; t < 2; t++) {
            rg_red_t down;
            size_t n = boundaries(bytes_types[t], values);
            rg_simd_force(names[l]);
            cr_assert_eq(rg_red_init(&down, bytes_types[t], RG_SUM, 2, RG_RED_A_ACC | RG_RED_FINAL), RG_OK);
            rg_red_copy(&down, codes, values, n);
            cr_assert_eq(wrong_codes(bytes_types[t], values, codes, n), 0, "%s %s", names[l],
                         rg_dtype_name(bytes_types[t]));
        }
}

/* The planted bugs: rounded twice, cut off, an overflow that becomes NaN, a zero that loses its sign. */
Test(kernels_scaled, checker__planted_bugs__found) {
    static float values[2000], twice[2000];
    static uint8_t codes[2000];
    for (int t = 0; t < 2; t++) {
        rg_dtype_t d = bytes_types[t];
        rg_red_t down;
        size_t n = boundaries(d, values);
        cr_assert_eq(rg_red_init(&down, d, RG_SUM, 2, RG_RED_A_ACC | RG_RED_FINAL), RG_OK);
        for (size_t i = 0; i < n; i++) {
            uint32_t u;
            memcpy(&u, &values[i], 4);
            u = (u + 0x3fff + (u >> 15 & 1)) & ~0x7fffu;
            memcpy(&twice[i], &u, 4);
        }
        rg_red_copy(&down, codes, twice, n);
        cr_assert_neq(wrong_codes(d, values, codes, n), 0);
        rg_red_copy(&down, codes, values, n);
        cr_assert_eq(wrong_codes(d, values, codes, n), 0);
        for (size_t i = 0; i < n; i++)
            if (!isnan(values[i]) && fabs((double)values[i]) > 60000) codes[i] = 0x7f;
        cr_assert_neq(wrong_codes(d, values, codes, n), 0);
        rg_red_copy(&down, codes, values, n);
        for (size_t i = 0; i < n; i++) codes[i] = codes[i] == 0x80 ? 0 : codes[i];
        cr_assert_neq(wrong_codes(d, values, codes, n), 0);
    }
}

/* Every upper half of an f32 with lower halves on both sides of what decides. */
Test(kernels_scaled, bytes__dense_sample_of_f32__bits_of_the_reference) {
    static const uint32_t low[] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff };
    static float values[65536];
    static uint8_t want[65536], got[65536];
    const char *names[3];
    int n_levels = levels(names);
    for (int t = 0; t < 2; t++)
        for (int k = 0; k < 6; k++) {
            rg_red_t down;
            cr_assert_eq(rg_red_init(&down, bytes_types[t], RG_SUM, 2, RG_RED_A_ACC | RG_RED_FINAL), RG_OK);
            for (uint32_t i = 0; i < 65536; i++) {
                uint32_t u = i << 16 | low[k];
                memcpy(&values[i], &u, 4);
            }
            rg_simd_force("scalar");
            rg_red_copy(&down, want, values, 65536);
            for (int l = 1; l < n_levels; l++) {
                rg_simd_force(names[l]);
                rg_red_copy(&down, got, values, 65536);
                cr_assert_eq(memcmp(want, got, sizeof want), 0, "%s %s low half %04x", names[l],
                             rg_dtype_name(bytes_types[t]), (unsigned)low[k]);
            }
        }
}

/* ---- All pairs --------------------------------------------------------------------------------------------------- */

static void all_pairs(uint8_t *a, uint8_t *b) {
    for (int i = 0; i < 65536; i++) a[i] = (uint8_t)(i >> 8), b[i] = (uint8_t)i;
}

/* Finite pairs sorted in front, so that whole vectors are free of NaN and infinity: the fast way is taken by each pair
 * that can, and the general way by others. */
static void all_pairs_sorted(rg_dtype_t dtype, uint8_t *a, uint8_t *b) {
    size_t front = 0, back = 65536;
    for (int i = 0; i < 65536; i++) {
        int finite = isfinite(real_of_byte(dtype, (uint8_t)(i >> 8))) && isfinite(real_of_byte(dtype, (uint8_t)i));
        size_t at = finite ? front++ : --back;
        a[at] = (uint8_t)(i >> 8), b[at] = (uint8_t)i;
    }
}

/* What the operator must give before it is rounded to a byte; f32 holds each sum and product of two exactly. */
static double combined(rg_op_t op, double x, double y) {
    if (op == RG_SUM) return x + y;
    if (op == RG_PROD) return x * y;
    if (op == RG_AVG) return (x + y) / 2;
    if (isnan(x) || isnan(y)) return NAN;
    if (x == y) return op == RG_MIN ? (signbit(x) ? x : y) : (signbit(x) ? y : x);
    return (op == RG_MIN) == (x < y) ? x : y;
}

Test(kernels_scaled, bytes__all_pairs_and_operators__as_real_numbers_rounded_once) {
    static uint8_t a[65536], b[65536], got[65536];
    static float want[65536];
    rg_simd_force("scalar");
    for (int t = 0; t < 2; t++)
        for (int op = 0; op < RG_OP_COUNT; op++) {
            rg_dtype_t d = bytes_types[t];
            rg_red_t r;
            all_pairs(a, b);
            cr_assert_eq(rg_red_init(&r, d, (rg_op_t)op, 2, RG_RED_FINAL), RG_OK);
            rg_red_run(&r, got, a, b, 65536);
            for (int i = 0; i < 65536; i++) {
                double x = real_of_byte(d, a[i]), y = real_of_byte(d, b[i]);
                want[i] = (float)combined((rg_op_t)op, x, y);
                if (isnan(want[i])) want[i] = copysignf(want[i], got[i] & 0x80 ? -1.0f : 1.0f); /* any sign will do */
                cr_assert(isnan(x) || isnan(y) || isinf(x) || isinf(y) || !isnan(real_of_byte(d, got[i])),
                          "%s %s: NaN from %a and %a", rg_dtype_name(d), rg_op_name((rg_op_t)op), x, y);
            }
            cr_assert_eq(wrong_codes(d, want, got, 65536), 0, "%s %s", rg_dtype_name(d), rg_op_name((rg_op_t)op));
        }
}

Test(kernels_scaled, bytes__all_pairs_every_level_and_operator__bits_of_the_reference) {
    static uint8_t a[65536], b[65536], want[65536], got[65536];
    static const uint32_t members[] = { 2, 3, 4, 64, 65, 128, 1000 };
    const char *names[3];
    int n_levels = levels(names);
    for (int t = 0; t < 2; t++)
        for (int op = 0; op < RG_OP_COUNT; op++)
            for (int m = 0; m < (op == RG_AVG ? 7 : 1); m++)
                for (int sorted = 0; sorted < 2; sorted++) {
                    rg_dtype_t d = bytes_types[t];
                    rg_red_t ref, r;
                    sorted ? all_pairs_sorted(d, a, b) : all_pairs(a, b);
                    rg_simd_force("scalar");
                    cr_assert_eq(rg_red_init(&ref, d, (rg_op_t)op, members[m], RG_RED_FINAL), RG_OK);
                    rg_red_run(&ref, want, a, b, 65536);
                    for (int l = 1; l < n_levels; l++) {
                        rg_simd_force(names[l]);
                        cr_assert_eq(rg_red_init(&r, d, (rg_op_t)op, members[m], RG_RED_FINAL), RG_OK);
                        rg_red_run(&r, got, a, b, 65536);
                        cr_assert_eq(memcmp(want, got, 65536), 0, "%s %s %s of %u", names[l], rg_dtype_name(d),
                                     rg_op_name((rg_op_t)op), members[m]);
                    }
                }
}

/* A product that leaves f32 on the way, and then meets a zero. */
Test(kernels_scaled, bytes__product_of_many_large_then_zero__zero_and_not_nan) {
    const char *names[3];
    int n_levels = levels(names);
    for (int l = 0; l < n_levels; l++)
        for (int t = 0; t < 2; t++) {
            rg_dtype_t d = bytes_types[t];
            uint8_t big[70], zero[70] = { 0 }, out[70];
            float acc[70];
            rg_red_t first, mid, last;
            memset(big, largest(d), sizeof big);
            rg_simd_force(names[l]);
            cr_assert_eq(rg_red_init(&first, d, RG_PROD, 40, RG_RED_DST_ACC), RG_OK);
            cr_assert_eq(rg_red_init(&mid, d, RG_PROD, 40, RG_RED_A_ACC | RG_RED_DST_ACC), RG_OK);
            cr_assert_eq(rg_red_init(&last, d, RG_PROD, 40, RG_RED_A_ACC | RG_RED_FINAL), RG_OK);
            rg_red_copy(&first, acc, big, 70);
            for (int i = 0; i < 38; i++) rg_red_run(&mid, acc, acc, big, 70);
            for (int i = 0; i < 70; i++) cr_assert_eq(acc[i], FLT_MAX, "%s", names[l]);
            rg_red_run(&last, out, acc, big, 70);
            for (int i = 0; i < 70; i++) cr_assert_eq(out[i], largest(d), "%s", names[l]);
            rg_red_run(&last, out, acc, zero, 70);
            for (int i = 0; i < 70; i++) cr_assert_eq(out[i], 0, "%s", names[l]);
        }
}

/* ---- Factors ----------------------------------------------------------------------------------------------------- */

static size_t size_of(rg_dtype_t dtype, uint32_t acc) { return acc ? rg_acc_size(dtype) : rg_dtype_size(dtype); }

static void fill_bits(void *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)p)[i] = (uint8_t)next();
}

Test(kernels_scaled, scale_after__every_type_operator_and_flag__bits_of_the_reference) {
    static char a[2100 * 8], b[2100 * 8], want[2100 * 8 + 64], got[2100 * 8 + 64];
    static const double factors[] = { 0.3, -2.0, 1e30 };
    static const size_t lengths[] = { 1, 67, 2050 };
    const char *names[3];
    int n_levels = levels(names);
    for (int t = 0; t < FLOATS; t++)
        for (int op = 0; op < RG_OP_COUNT; op++)
            for (uint32_t flags = 0; flags < 32; flags++)
                for (int k = 0; k < 3; k++) {
                    rg_dtype_t d = float_types[t];
                    size_t n = lengths[k], out = n * size_of(d, flags & RG_RED_DST_ACC);
                    rg_red_t ref, r;
                    rg_simd_force("scalar");
                    if (rg_red_init(&ref, d, (rg_op_t)op, 3, flags) != RG_OK) continue;
                    cr_assert_eq(rg_red_scale_after(&ref, factors[k]), RG_OK);
                    fill_bits(a, n * 8);
                    fill_bits(b, n * 8);
                    memset(want, 0xa5, sizeof want);
                    rg_red_run(&ref, want, a, b, n);
                    for (int l = 1; l < n_levels; l++) {
                        rg_simd_force(names[l]);
                        cr_assert_eq(rg_red_init(&r, d, (rg_op_t)op, 3, flags), RG_OK);
                        cr_assert_eq(rg_red_scale_after(&r, factors[k]), RG_OK);
                        memset(got, 0xa5, sizeof got);
                        rg_red_run(&r, got, a, b, n);
                        cr_assert_eq(memcmp(want, got, out + 64), 0, "%s %s %s flags %u", names[l], rg_dtype_name(d),
                                     rg_op_name((rg_op_t)op), flags);
                        if (size_of(d, flags & RG_RED_A_ACC) == size_of(d, flags & RG_RED_DST_ACC)) {
                            memcpy(got, a, out);
                            rg_red_run(&r, got, got, b, n);
                            cr_assert_eq(memcmp(want, got, out), 0, "%s %s %s flags %u in place", names[l],
                                         rg_dtype_name(d), rg_op_name((rg_op_t)op), flags);
                        }
                    }
                }
}

/* Small whole numbers, whose results are exact in every type. */
static void put(rg_dtype_t d, void *p, size_t i, double v) {
    rg_red_t narrow;
    float f = (float)v;
    if (d == RG_F64) memcpy((char *)p + i * 8, &v, 8);
    else if (d == RG_F32) memcpy((char *)p + i * 4, &f, 4);
    else if (rg_red_init(&narrow, d, RG_SUM, 2, RG_RED_A_ACC | RG_RED_FINAL) == RG_OK)
        rg_red_copy(&narrow, (char *)p + i * rg_dtype_size(d), &f, 1);
}

static double get(rg_dtype_t d, const void *p, size_t i) {
    rg_red_t wide;
    double v = NAN;
    float f = NAN;
    if (d == RG_F64) return memcpy(&v, (const char *)p + i * 8, 8), v;
    if (d == RG_F32) return memcpy(&f, (const char *)p + i * 4, 4), (double)f;
    if (rg_red_init(&wide, d, RG_SUM, 2, RG_RED_DST_ACC) == RG_OK)
        rg_red_copy(&wide, &f, (const char *)p + i * rg_dtype_size(d), 1);
    return (double)f;
}

Test(kernels_scaled, scale_after__every_operator_and_type__result_times_factor) {
    enum { N = 150 };
    const char *names[3];
    int n_levels = levels(names);
    char a[N * 8], b[N * 8], out[N * 8];
    for (int l = 0; l < n_levels; l++)
        for (int t = 0; t < FLOATS; t++)
            for (int op = 0; op < RG_OP_COUNT; op++) {
                rg_dtype_t d = float_types[t];
                rg_red_t r;
                rg_simd_force(names[l]);
                for (size_t i = 0; i < N; i++) put(d, a, i, (double)(i % 3 + 1)), put(d, b, i, (double)(i % 2 + 1));
                cr_assert_eq(rg_red_init(&r, d, (rg_op_t)op, 2, RG_RED_FINAL), RG_OK);
                cr_assert_eq(rg_red_scale_after(&r, 0.5), RG_OK);
                rg_red_run(&r, out, a, b, N);
                for (size_t i = 0; i < N; i++) {
                    double want = 0.5 * combined((rg_op_t)op, (double)(i % 3 + 1), (double)(i % 2 + 1));
                    cr_assert_eq(get(d, out, i), want, "%s %s %s: %g, not %g", names[l], rg_dtype_name(d),
                                 rg_op_name((rg_op_t)op), get(d, out, i), want);
                }
            }
}

Test(kernels_scaled, scale_after__rounded_once__not_twice) {
    uint8_t a, b, out;
    rg_red_t r;
    put(RG_F8E4M3, &a, 0, 18);
    put(RG_F8E4M3, &b, 0, -0.5);
    cr_assert_eq(rg_red_init(&r, RG_F8E4M3, RG_SUM, 2, RG_RED_FINAL), RG_OK);
    cr_assert_eq(rg_red_scale_after(&r, 3.0), RG_OK);
    rg_red_run(&r, &out, &a, &b, 1);
    cr_assert_eq(get(RG_F8E4M3, &out, 0), 52.0); /* 17.5 * 3 = 52.5; rounded first, 18 * 3 = 54 would become 56 */
}

Test(kernels_scaled, scale_after__copies__final_ones_are_multiplied) {
    const char *names[3];
    int n_levels = levels(names);
    for (int l = 0; l < n_levels; l++)
        for (int t = 0; t < FLOATS; t++)
            for (int op = 0; op < RG_OP_COUNT; op++)
                for (uint32_t flags = 0; flags < 16; flags++) {
                    rg_dtype_t d = float_types[t];
                    char in[40 * 8], out[40 * 8];
                    float f[40], *wide = f;
                    rg_red_t r;
                    rg_simd_force(names[l]);
                    if ((flags & RG_RED_B_ACC) || rg_red_init(&r, d, (rg_op_t)op, 1, flags) != RG_OK) continue;
                    cr_assert_eq(rg_red_scale_after(&r, 4.0), RG_OK);
                    int from_f32 = size_of(d, flags & RG_RED_A_ACC) != rg_dtype_size(d);
                    int to_f32 = size_of(d, flags & RG_RED_DST_ACC) != rg_dtype_size(d);
                    for (size_t i = 0; i < 40; i++) put(d, in, i, (double)(i % 4)), f[i] = (float)(i % 4);
                    rg_red_copy(&r, out, from_f32 ? (const void *)wide : in, 40);
                    for (size_t i = 0; i < 40; i++)
                        cr_assert_eq(get(to_f32 ? RG_F32 : d, out, i), (double)(i % 4) * (flags & RG_RED_FINAL ? 4 : 1),
                                     "%s %s %s flags %u", names[l], rg_dtype_name(d), rg_op_name((rg_op_t)op), flags);
                }
}

Test(kernels_scaled, scale_after__without_final_or_by_one__nothing_changes) {
    rg_red_t r, before;
    cr_assert_eq(rg_red_init(&r, RG_F32, RG_SUM, 2, RG_RED_DST_ACC), RG_OK);
    before = r;
    cr_assert_eq(rg_red_scale_after(&r, 3.0), RG_OK);
    cr_assert_eq(memcmp(&r, &before, sizeof r), 0);
    cr_assert_eq(rg_red_init(&r, RG_F32, RG_SUM, 2, RG_RED_FINAL), RG_OK);
    before = r;
    cr_assert_eq(rg_red_scale_after(&r, 1.0), RG_OK);
    cr_assert_eq(memcmp(&r, &before, sizeof r), 0);
}

Test(kernels_scaled, scale_after__bad_factor_or_integers__refused_and_unchanged) {
    static const double bad[] = { INFINITY, -INFINITY, NAN };
    rg_red_t r, before;
    for (int d = RG_I8; d <= RG_U64; d++) {
        cr_assert_eq(rg_red_init(&r, (rg_dtype_t)d, RG_SUM, 2, RG_RED_FINAL), RG_OK);
        before = r;
        cr_assert_eq(rg_red_scale_after(&r, 2.0), RG_ERR_NOTSUP);
        cr_assert_eq(memcmp(&r, &before, sizeof r), 0);
    }
    for (int t = 0; t < FLOATS; t++) {
        cr_assert_eq(rg_red_init(&r, float_types[t], RG_AVG, 3, RG_RED_FINAL), RG_OK);
        before = r;
        for (int k = 0; k < 3; k++) cr_assert_eq(rg_red_scale_after(&r, bad[k]), RG_ERR_INVALID);
        double edge = float_types[t] == RG_F64 ? DBL_MAX : 1e39; /* times post, or by itself, infinite in its type */
        cr_assert_eq(rg_red_scale_after(&r, edge), RG_ERR_INVALID);
        cr_assert_eq(memcmp(&r, &before, sizeof r), 0);
    }
}

Test(kernels_scaled, scale__every_type_and_level__product_rounded_once) {
    enum { N = 5003 };
    static char in[N * 8 + 8], out[N * 8 + 64], want[N * 8 + 64];
    static const double factors[] = { 0.3, -1.7, 1e-3, 3e4, 1e38, 0.0 };
    const char *names[3];
    int n_levels = levels(names);
    for (int t = 0; t < FLOATS; t++)
        for (int k = 0; k < 6; k++) {
            rg_dtype_t d = float_types[t];
            size_t size = rg_dtype_size(d);
            fill_bits(in, sizeof in);
            memset(want, 0xa5, sizeof want);
            rg_simd_force("scalar");
            cr_assert_eq(rg_scale(d, want, in, N, factors[k]), RG_OK);
            for (size_t i = 0; i < N; i++) { /* the reference against arithmetic in double */
                double x = get(d, in, i), p, got = get(d, want, i);
                p = d == RG_F64 ? x * factors[k] : (double)((float)x * (float)factors[k]);
                if (size == 1 && isinf(p) && isfinite(x)) p = copysign(FLT_MAX, p);
                if (size == 1 && !isnan(p)) p = real_of_byte(d, byte_of_real(d, p));
                char again[8];
                put(d, again, 0, p);
                cr_assert(isnan(p) ? isnan(got) : got == get(d, again, 0), "%s: %a times %g gives %a, not %a",
                          rg_dtype_name(d), x, factors[k], got, p);
            }
            for (int l = 1; l < n_levels; l++)
                for (size_t off = 0; off < 8; off += 3) {
                    memset(out, 0xa5, sizeof out);
                    rg_simd_force(names[l]);
                    memmove(out + off, in, N * size);
                    cr_assert_eq(rg_scale(d, out + off, off ? out + off : in, N, factors[k]), RG_OK);
                    cr_assert_eq(memcmp(out + off, want, N * size + 8), 0, "%s %s times %g", names[l], rg_dtype_name(d),
                                 factors[k]);
                }
        }
}

Test(kernels_scaled, scale__by_one_bad_factors_and_types__as_promised) {
    char in[64], out[64];
    fill_bits(in, sizeof in);
    for (int d = 0; d < RG_DTYPE_COUNT; d++) {
        rg_dtype_t t = (rg_dtype_t)d;
        int is_float = d >= RG_F16;
        memset(out, 0xa5, sizeof out);
        cr_assert_eq(rg_scale(t, out, in, 8, 1.0), is_float ? RG_OK : RG_ERR_NOTSUP);
        for (size_t i = 0; i < sizeof out; i++)
            cr_assert_eq(out[i], is_float && i < 8 * rg_dtype_size(t) ? in[i] : (char)0xa5);
        if (!is_float) continue;
        cr_assert_eq(rg_scale(t, out, in, 8, INFINITY), RG_ERR_INVALID);
        cr_assert_eq(rg_scale(t, out, in, 8, NAN), RG_ERR_INVALID);
        cr_assert_eq(rg_scale(t, out, in, 8, 1e300), t == RG_F64 ? RG_OK : RG_ERR_INVALID);
        cr_assert_eq(rg_scale(t, NULL, NULL, 0, 2.0), RG_OK);
    }
    cr_assert_eq(rg_scale(RG_DTYPE_COUNT, out, in, 8, 2.0), RG_ERR_INVALID);
    cr_assert_eq(rg_scale((rg_dtype_t)-1, out, in, 8, 2.0), RG_ERR_INVALID);
}
