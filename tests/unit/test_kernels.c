/* test_kernels.c: every SIMD level against the scalar reference, bit for bit, and the reference against arithmetic
 * written another way. Guard bytes around every destination catch a store too many. Relies on rg_simd_force(); each
 * test runs in a process of its own, so forcing a level does not reach other tests. */
#include "kernels/kernels.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_N 70001
#define GUARD 128

static const uint32_t all_flags = RG_RED_A_ACC | RG_RED_B_ACC | RG_RED_DST_ACC | RG_RED_FINAL | RG_RED_SWAP;

static uint64_t seed = 0x9e3779b97f4a7c15ull;

static uint64_t next(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed * 0x2545f4914f6cdd1dull;
}

/* ---- Inputs ----------------------------------------------------------------------------------------------------- */

static const uint32_t special_f32[] = {
    0x7fc00001, 0xffc12345, 0x7f800001, 0xff812345, 0x7fffffff, 0x7f800000, 0xff800000, 0x00000000, 0x80000000,
    0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff, 0x3f800000, 0xbf800000, 0x477fefff,
    0x477ff000, 0x38800000, 0x387fffff, 0x33000000, 0x33000001, 0x3f808000, 0x3f818000, 0x7f7f8000, 0x7f7f7fff,
};
static const uint64_t special_f64[] = {
    0x7ff8000000000001, 0xfff8123456789abc, 0x7ff0000000000001, 0xfff0123456789abc, 0x7ff0000000000000,
    0xfff0000000000000, 0x0000000000000000, 0x8000000000000000, 0x0000000000000001, 0x800fffffffffffff,
    0x7fefffffffffffff, 0xffefffffffffffff, 0x3ff0000000000000, 0xbff0000000000000,
};
static const uint16_t special_f16[] = {
    0x7e01, 0xfe23, 0x7c01, 0xfd23, 0x7c00, 0xfc00, 0x0000, 0x8000,
    0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x3c00, 0xbc00,
};
static const uint16_t special_bf16[] = {
    0x7fc1, 0xffd2, 0x7f81, 0xff92, 0x7f80, 0xff80, 0x0000, 0x8000,
    0x0001, 0x807f, 0x0080, 0x7f7f, 0xff7f, 0x3f80, 0xbf80,
};
#define PICK(a) ((a)[next() % (sizeof(a) / sizeof((a)[0]))])

/* A third specials, a third any bits, a third values near one, so that results are not mostly NaN or infinity. */
static void fill(void *p, size_t n, rg_dtype_t dtype, int acc) {
    rg_dtype_t t = acc && rg_acc_size(dtype) != rg_dtype_size(dtype) ? RG_F32 : dtype;
    size_t size = rg_dtype_size(t);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = next();
        unsigned kind = (unsigned)(next() % 3);
        float near_f = (float)((double)(next() % 4096) / 512.0 - 4.0);
        double near_d = near_f * 1.0000000001;
        uint32_t near_bits;
        memcpy(&near_bits, &near_f, 4);
        if (t == RG_F32) bits = kind == 0 ? PICK(special_f32) : kind == 1 ? bits : near_bits;
        else if (t == RG_F64 && kind == 0) bits = PICK(special_f64);
        else if (t == RG_F64 && kind == 2) memcpy(&bits, &near_d, 8);
        else if (t == RG_F16) bits = kind == 0 ? PICK(special_f16) : kind == 1 ? bits : 0x3800 + bits % 0xa00;
        else if (t == RG_BF16) bits = kind == 0 ? PICK(special_bf16) : kind == 1 ? bits : near_bits >> 16;
        memcpy((char *)p + i * size, &bits, size); /* little-endian, like everything that has SIMD levels */
    }
}

/* Making values costs more than combining them, so short ranges are cut from a pool at a random place. */
static void fill_short(void *p, size_t n, rg_dtype_t dtype, int acc) {
    static char pools[RG_DTYPE_COUNT][2][4096 * 8];
    static char made[RG_DTYPE_COUNT][2];
    size_t size = acc ? rg_acc_size(dtype) : rg_dtype_size(dtype);
    acc = acc != 0;
    if (!made[dtype][acc]) fill(pools[dtype][acc], 4096, dtype, acc);
    made[dtype][acc] = 1;
    memcpy(p, pools[dtype][acc] + next() % (4096 - n) * size, n * size);
}

static size_t size_of(rg_dtype_t dtype, int acc) { return acc ? rg_acc_size(dtype) : rg_dtype_size(dtype); }

/* The levels that this CPU has, the reference first. */
static int levels(const char *out[3]) {
    int n = 0;
    const char *names[] = { "scalar", "avx2", "avx512" };
    for (int i = 0; i < 3; i++)
        if (rg_simd_force(names[i])) out[n++] = names[i];
    return n;
}

/* ---- The checker ------------------------------------------------------------------------------------------------ */

static _Alignas(64) char a_buf[MAX_N * 8 + 256], b_buf[MAX_N * 8 + 256];
static _Alignas(64) char want_buf[MAX_N * 8 + 2 * GUARD + 64], got_buf[MAX_N * 8 + 2 * GUARD + 64];

/* 0 when `r` gives the bits of `ref` and touches nothing else: out of place, and in place where sizes allow it. */
static int differs(const rg_red_t *ref, const rg_red_t *r, size_t n, size_t off_a, size_t off_b, size_t off_d) {
    size_t sa = size_of(r->dtype, r->flags & RG_RED_A_ACC), sb = size_of(r->dtype, r->flags & RG_RED_B_ACC);
    size_t sd = size_of(r->dtype, r->flags & RG_RED_DST_ACC), whole = n * sd + 2 * GUARD + off_d;
    memset(want_buf, 0xa5, whole);
    memset(got_buf, 0xa5, whole);
    rg_red_run(ref, want_buf + GUARD + off_d, a_buf + off_a, b_buf + off_b, n);
    rg_red_run(r, got_buf + GUARD + off_d, a_buf + off_a, b_buf + off_b, n);
    if (memcmp(want_buf, got_buf, whole)) return 1;
    if (sa == sd) {
        memset(got_buf, 0xa5, whole);
        memcpy(got_buf + GUARD + off_d, a_buf + off_a, n * sd);
        rg_red_run(r, got_buf + GUARD + off_d, got_buf + GUARD + off_d, b_buf + off_b, n);
        if (memcmp(want_buf, got_buf, whole)) return 2;
    }
    if (sb == sd) {
        memset(got_buf, 0xa5, whole);
        memcpy(got_buf + GUARD + off_d, b_buf + off_b, n * sd);
        rg_red_run(r, got_buf + GUARD + off_d, a_buf + off_a, got_buf + GUARD + off_d, n);
        if (memcmp(want_buf, got_buf, whole)) return 3;
    }
    return 0;
}

/* Prepares the same reduction at the reference and at `level`; 0 when the combination does not exist at either. */
static int prepare(const char *level, rg_dtype_t dtype, rg_op_t op, uint32_t n, uint32_t flags, rg_red_t *ref,
                   rg_red_t *r) {
    rg_simd_force("scalar");
    rg_status_t want = rg_red_init(ref, dtype, op, n, flags);
    rg_simd_force(level);
    rg_status_t got = rg_red_init(r, dtype, op, n, flags);
    cr_assert_eq(want, got);
    return want == RG_OK;
}

static void compare(rg_dtype_t dtype, rg_op_t op, uint32_t flags, size_t n, size_t round) {
    static const size_t offs[][3] = {
        { 0, 0, 0 }, { 1, 3, 7 }, { 8, 16, 24 }, { 4, 0, 60 }, { 0, 5, 0 }, { 2, 32, 2 }
    };
    const char *names[3];
    int n_levels = levels(names);
    void (*make)(void *, size_t, rg_dtype_t, int) = n < 2048 ? fill_short : fill;
    make(a_buf, n + 16, dtype, flags & RG_RED_A_ACC);
    make(b_buf, n + 16, dtype, flags & RG_RED_B_ACC);
    for (int l = 1; l < n_levels; l++)
        for (size_t k = 0; k < 2; k++) {
            const size_t *o = offs[(round + k * 3) % 6];
            rg_red_t ref, r;
            if (!prepare(names[l], dtype, op, 3, flags, &ref, &r)) return;
            int how = differs(&ref, &r, n, o[0], o[1], o[2]);
            cr_assert_eq(how, 0, "%s %s %s flags %u n %zu offsets %zu %zu %zu: differs (%s)", names[l],
                         rg_dtype_name(dtype), rg_op_name(op), flags, n, o[0], o[1], o[2],
                         how == 1   ? "out of place"
                         : how == 2 ? "dst is a"
                                    : "dst is b");
        }
}

Test(kernels, kernels__every_type_operator_flag_and_short_length__bits_of_the_reference) {
    size_t round = 0;
    for (int d = 0; d < RG_DTYPE_COUNT; d++)
        for (int op = 0; op < RG_OP_COUNT; op++)
            for (uint32_t flags = 0; flags <= all_flags; flags++)
                for (size_t n = 0; n <= 131; n++) /* where partial values are the same as raw, flags are few */
                    if (op == RG_AVG || size_of((rg_dtype_t)d, 1) != size_of((rg_dtype_t)d, 0) || flags % 15 == 0)
                        compare((rg_dtype_t)d, (rg_op_t)op, flags, n, round++);
}

Test(kernels, kernels__long_ranges_at_odd_addresses__bits_of_the_reference) {
    static const size_t lengths[] = { 255, 257, 1000, 1024, 4099, MAX_N };
    size_t round = 0;
    for (int d = 0; d < RG_DTYPE_COUNT; d++)
        for (int op = 0; op < RG_OP_COUNT; op++)
            for (size_t k = 0; k < 6; k++)
                for (uint32_t flags = 0; flags < (lengths[k] == MAX_N ? 1 : 8); flags++)
                    compare((rg_dtype_t)d, (rg_op_t)op, flags | RG_RED_FINAL, lengths[k], round++);
}

/* The planted bugs: a kernel that forgets the last element, one that does one too many, one that reads b after it has
 * written dst, one that takes NaN operands the other way round. */
static const rg_red_t *planted_base;
static void plant_short(const rg_red_t *r, void *dst, const void *a, const void *b, size_t n) {
    (void)r;
    rg_red_run(planted_base, dst, a, b, n - 1);
}
static void plant_long(const rg_red_t *r, void *dst, const void *a, const void *b, size_t n) {
    (void)r;
    rg_red_run(planted_base, dst, a, b, n + 1);
}
static void plant_alias(const rg_red_t *r, void *dst, const void *a, const void *b, size_t n) {
    (void)r;
    memmove(dst, a, n * 4);
    rg_red_run(planted_base, dst, dst, b, n);
}
static void plant_order(const rg_red_t *r, void *dst, const void *a, const void *b, size_t n) {
    (void)r;
    rg_red_run(planted_base, dst, b, a, n);
}

Test(kernels, checker__planted_bugs__found) {
    void (*plants[])(const rg_red_t *, void *, const void *, const void *, size_t) = { plant_short, plant_long,
                                                                                       plant_alias, plant_order };
    rg_red_t ref, r;
    cr_assert_eq(rg_red_init(&ref, RG_F32, RG_SUM, 2, 0), RG_OK);
    fill(a_buf, 1000, RG_F32, 0);
    fill(b_buf, 1000, RG_F32, 0);
    planted_base = &ref;
    cr_assert_eq(differs(&ref, &ref, 500, 0, 0, 0), 0);
    for (int i = 0; i < 4; i++) {
        r = ref;
        r.run = plants[i];
        cr_assert_neq(differs(&ref, &r, 500, 0, 0, 0), 0, "planted bug %d was not found", i);
    }
}

/* ---- The reference against other arithmetic ---------------------------------------------------------------------- */

static __int128 wrap(__int128 v, int bytes, int is_signed) {
    unsigned __int128 m = ((unsigned __int128)1 << bytes * 8) - 1, u = (unsigned __int128)v & m;
    return is_signed && (u >> (bytes * 8 - 1)) ? (__int128)u - (__int128)m - 1 : (__int128)u;
}

static __int128 int_at(const void *p, size_t i, int bytes, int is_signed) {
    uint64_t u = 0;
    memcpy(&u, (const char *)p + i * (size_t)bytes, (size_t)bytes);
    return wrap((__int128)u, bytes, is_signed);
}

Test(kernels, integers__every_level__wide_arithmetic_cut_to_size) {
    const char *names[3];
    int n_levels = levels(names);
    for (int l = 0; l < n_levels; l++)
        for (int d = RG_I8; d <= RG_U64; d++)
            for (int op = RG_SUM; op <= RG_MAX; op++) {
                int bytes = (int)rg_dtype_size((rg_dtype_t)d), is_signed = d % 2 == 0;
                rg_red_t r;
                rg_simd_force(names[l]);
                cr_assert_eq(rg_red_init(&r, (rg_dtype_t)d, (rg_op_t)op, 2, 0), RG_OK);
                fill(a_buf, 777, (rg_dtype_t)d, 0);
                fill(b_buf, 777, (rg_dtype_t)d, 0);
                rg_red_run(&r, got_buf, a_buf, b_buf, 777);
                for (size_t i = 0; i < 777; i++) {
                    __int128 x = int_at(a_buf, i, bytes, is_signed), y = int_at(b_buf, i, bytes, is_signed);
                    __int128 want = op == RG_SUM ? x + y : op == RG_MIN ? (x < y ? x : y) : (x > y ? x : y);
                    if (op == RG_PROD) /* modulo 2^64 is enough, and does not overflow */
                        want = (__int128)((uint64_t)x * (uint64_t)y);
                    cr_assert(int_at(got_buf, i, bytes, is_signed) == wrap(want, bytes, is_signed), "%s %s %s at %zu",
                              names[l], rg_dtype_name((rg_dtype_t)d), rg_op_name((rg_op_t)op), i);
                }
            }
}

/* What a sum, product, minimum or maximum of finite or infinite values must be; double holds every f32 case exactly
 * enough that rounding twice is rounding once. */
static double simple(rg_op_t op, double x, double y) {
    switch (op) {
    case RG_SUM: return x + y;
    case RG_PROD: return x * y;
    case RG_MIN: return isnan(x) || isnan(y) ? NAN : x == y ? (signbit(x) ? x : y) : x < y ? x : y;
    default: return isnan(x) || isnan(y) ? NAN : x == y ? (signbit(x) ? y : x) : x > y ? x : y;
    }
}

Test(kernels, f32__every_level__double_arithmetic_rounded) {
    const char *names[3];
    int n_levels = levels(names);
    float a[999], b[999], got[999];
    for (int l = 0; l < n_levels; l++)
        for (int op = RG_SUM; op <= RG_MAX; op++) {
            rg_red_t r;
            rg_simd_force(names[l]);
            cr_assert_eq(rg_red_init(&r, RG_F32, (rg_op_t)op, 2, 0), RG_OK);
            fill(a, 999, RG_F32, 0);
            fill(b, 999, RG_F32, 0);
            rg_red_run(&r, got, a, b, 999);
            for (size_t i = 0; i < 999; i++) {
                float want = (float)simple((rg_op_t)op, a[i], b[i]);
                cr_assert(isnan(want) ? isnan(got[i]) : memcmp(&want, &got[i], 4) == 0,
                          "%s %s: %a, %a gives %a, not %a", names[l], rg_op_name((rg_op_t)op), (double)a[i],
                          (double)b[i], (double)got[i], (double)want);
            }
        }
}

/* A half by its definition: sign, exponent, fraction as a real number. */
static double real_of_half(uint16_t h, int fraction_bits, int bias) {
    int exp_max = (1 << (15 - fraction_bits)) - 1, exp = h >> fraction_bits & exp_max,
        man = h & ((1 << fraction_bits) - 1);
    double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exp == exp_max) return man ? NAN : sign * INFINITY;
    return sign * ldexp(exp ? man + (1 << fraction_bits) : man, (exp ? exp : 1) - bias - fraction_bits);
}

/* The nearest half by searching the two neighbours: bits of non-negative halves are in the order of their values. */
static uint16_t half_of_real(double v, int fraction_bits, int bias) {
    uint16_t sign = signbit(v) ? 0x8000 : 0, lo = 0,
             hi = (uint16_t)(((1 << (15 - fraction_bits)) - 1) << fraction_bits);
    double m = fabs(v), top = real_of_half((uint16_t)(hi - 1), fraction_bits, bias);
    double next_up = 2 * top - real_of_half((uint16_t)(hi - 2), fraction_bits, bias);
    if (m >= (top + next_up) / 2) return sign | hi;
    if (m >= top) return sign | (uint16_t)(hi - 1);
    for (hi--; hi - lo > 1;) {
        uint16_t mid = (uint16_t)((lo + hi) / 2);
        *(real_of_half(mid, fraction_bits, bias) <= m ? &lo : &hi) = mid;
    }
    double down = m - real_of_half(lo, fraction_bits, bias), up = real_of_half(hi, fraction_bits, bias) - m;
    return sign | (down < up || (down == up && !(lo & 1)) ? lo : hi);
}

static void check_halves(rg_dtype_t dtype, int fraction_bits, int bias) {
    static uint16_t raw[65536], back[65536];
    static float wide[65536];
    const char *names[3];
    int n_levels = levels(names);
    for (int l = 0; l < n_levels; l++) {
        rg_red_t up, down;
        rg_simd_force(names[l]);
        cr_assert_eq(rg_red_init(&up, dtype, RG_SUM, 2, RG_RED_DST_ACC), RG_OK);
        cr_assert_eq(rg_red_init(&down, dtype, RG_SUM, 2, RG_RED_A_ACC | RG_RED_FINAL), RG_OK);
        for (int i = 0; i < 65536; i++) raw[i] = (uint16_t)i;
        rg_red_copy(&up, wide, raw, 65536);
        rg_red_copy(&down, back, wide, 65536);
        for (int i = 0; i < 65536; i++) {
            double want = real_of_half(raw[i], fraction_bits, bias);
            cr_assert(isnan(want) ? isnan(wide[i]) && isnan(real_of_half(back[i], fraction_bits, bias))
                                  : wide[i] == want && !!signbit(wide[i]) == raw[i] >> 15 && back[i] == raw[i],
                      "%s %s %04x", names[l], rg_dtype_name(dtype), raw[i]);
        }
        /* Around every boundary between two halves, and anywhere. */
        for (int i = 0; i < 65536; i++) {
            double v = real_of_half(raw[i], fraction_bits, bias),
                   w = real_of_half((uint16_t)(raw[i] + 1), fraction_bits, bias);
            float mid = isfinite(v) && isfinite(w) ? (float)((v + w) / 2) : (float)next();
            uint32_t any = (uint32_t)next();
            wide[i] = i % 4 == 0 ? mid : i % 4 == 1 ? nextafterf(mid, INFINITY) : nextafterf(mid, -INFINITY);
            if (i % 4 == 3) memcpy(&wide[i], &any, 4);
        }
        rg_red_copy(&down, back, wide, 65536);
        for (int i = 0; i < 65536; i++)
            cr_assert(isnan(wide[i]) ? isnan(real_of_half(back[i], fraction_bits, bias))
                                     : back[i] == half_of_real(wide[i], fraction_bits, bias),
                      "%s %s: %a gives %04x, not %04x", names[l], rg_dtype_name(dtype), (double)wide[i], back[i],
                      half_of_real(wide[i], fraction_bits, bias));
    }
}

Test(kernels, f16__all_values_and_all_boundaries__nearest_even) { check_halves(RG_F16, 10, 15); }

Test(kernels, bf16__all_values_and_all_boundaries__nearest_even) { check_halves(RG_BF16, 7, 127); }

Test(kernels, halves__sum_of_two__rounded_once) {
    const char *names[3];
    int n_levels = levels(names);
    uint16_t a[4001], b[4001], got[4001];
    for (int l = 0; l < n_levels; l++)
        for (int d = RG_F16; d <= RG_BF16; d++)
            for (int op = RG_SUM; op <= RG_MAX; op++) {
                int fraction = d == RG_F16 ? 10 : 7, bias = d == RG_F16 ? 15 : 127;
                rg_red_t r;
                rg_simd_force(names[l]);
                cr_assert_eq(rg_red_init(&r, (rg_dtype_t)d, (rg_op_t)op, 2, RG_RED_FINAL), RG_OK);
                fill(a, 4001, (rg_dtype_t)d, 0);
                fill(b, 4001, (rg_dtype_t)d, 0);
                rg_red_run(&r, got, a, b, 4001);
                for (size_t i = 0; i < 4001; i++) {
                    double x = real_of_half(a[i], fraction, bias), y = real_of_half(b[i], fraction, bias);
                    float acc = (float)simple((rg_op_t)op, x, y);
                    cr_assert(isnan(acc) ? isnan(real_of_half(got[i], fraction, bias))
                                         : got[i] == half_of_real(acc, fraction, bias),
                              "%s %s %s: %a, %a", names[l], rg_dtype_name((rg_dtype_t)d), rg_op_name((rg_op_t)op), x,
                              y);
                }
            }
}

/* ---- NaN and order ----------------------------------------------------------------------------------------------- */

Test(kernels, sum__both_nan__payload_of_the_first_operand_and_swap_turns_it) {
    const char *names[3];
    int n_levels = levels(names);
    uint32_t a[37], b[37], got[37];
    for (int l = 0; l < n_levels; l++)
        for (uint32_t swap = 0; swap <= RG_RED_SWAP; swap += RG_RED_SWAP) {
            rg_red_t r;
            rg_simd_force(names[l]);
            cr_assert_eq(rg_red_init(&r, RG_F32, RG_SUM, 2, swap), RG_OK);
            for (int i = 0; i < 37; i++) a[i] = 0x7f800100u + (uint32_t)i, b[i] = 0xffc00200u + (uint32_t)i;
            rg_red_run(&r, got, a, b, 37);
            for (int i = 0; i < 37; i++) cr_assert_eq(got[i], swap ? b[i] : a[i] | 0x400000u, "%s", names[l]);
        }
}

Test(kernels, min_and_max__nan_and_signed_zero__canonical_nan_and_ordered_zeros) {
    const char *names[3];
    int n_levels = levels(names);
    uint32_t a[] = { 0x7fc12345, 0x3f800000, 0x80000000, 0x00000000 },
             b[] = { 0x40000000, 0xff800001, 0x00000000, 0x80000000 };
    uint32_t min[] = { 0x7fc00000, 0x7fc00000, 0x80000000, 0x80000000 }, max[] = { 0x7fc00000, 0x7fc00000, 0, 0 };
    uint32_t x[64], y[64], got[64];
    for (int l = 0; l < n_levels; l++)
        for (int i = 0; i < 4; i++) {
            rg_red_t rmin, rmax;
            rg_simd_force(names[l]);
            cr_assert_eq(rg_red_init(&rmin, RG_F32, RG_MIN, 2, 0), RG_OK);
            cr_assert_eq(rg_red_init(&rmax, RG_F32, RG_MAX, 2, 0), RG_OK);
            for (int k = 0; k < 64; k++) x[k] = a[i], y[k] = b[i];
            rg_red_run(&rmin, got, x, y, 64);
            for (int k = 0; k < 64; k++) cr_assert_eq(got[k], min[i]);
            rg_red_run(&rmax, got, x, y, 64);
            for (int k = 0; k < 64; k++) cr_assert_eq(got[k], max[i]);
        }
}

/* ---- Averages ---------------------------------------------------------------------------------------------------- */

/* n equal values, added one at a time as a ring would: (x0 + x1) partial, ..., + last and divided. */
static void average_chain(rg_dtype_t dtype, uint32_t n, const void *value, void *out) {
    rg_red_t first, mid, last;
    double acc = 0;
    if (n == 1) {
        cr_assert_eq(rg_red_init(&first, dtype, RG_AVG, 1, RG_RED_FINAL), RG_OK);
        rg_red_copy(&first, out, value, 1);
        return;
    }
    cr_assert_eq(rg_red_init(&first, dtype, RG_AVG, n, RG_RED_DST_ACC), RG_OK);
    cr_assert_eq(rg_red_init(&mid, dtype, RG_AVG, n, RG_RED_A_ACC | RG_RED_DST_ACC), RG_OK);
    cr_assert_eq(rg_red_init(&last, dtype, RG_AVG, n, RG_RED_A_ACC | RG_RED_FINAL), RG_OK);
    rg_red_copy(&first, &acc, value, 1);
    for (uint32_t i = 1; i + 1 < n; i++) rg_red_run(&mid, &acc, &acc, value, 1);
    rg_red_run(&last, out, &acc, value, 1);
}

Test(kernels, avg__any_number_of_equal_values__finite_and_close) {
    for (uint32_t n = 1; n <= 1100; n++) {
        float f = FLT_MAX, f_out;
        double d = DBL_MAX, d_out, one = -1.25, one_out;
        uint16_t h = 0x7bff, h_out, b = 0x7f7f, b_out;
        average_chain(RG_F32, n, &f, &f_out);
        average_chain(RG_F64, n, &d, &d_out);
        average_chain(RG_F64, n, &one, &one_out);
        average_chain(RG_F16, n, &h, &h_out);
        average_chain(RG_BF16, n, &b, &b_out);
        cr_assert(isfinite(f_out) && f_out > FLT_MAX * (1 - 1e-4f), "f32 n %u: %a", n, (double)f_out);
        cr_assert(isfinite(d_out) && d_out > DBL_MAX * (1 - 1e-12), "f64 n %u: %a", n, d_out);
        cr_assert(fabs(one_out - one) < 1e-12, "f64 n %u: %a", n, one_out);
        cr_assert_eq(h_out, h, "f16 n %u: %04x", n, h_out);
        cr_assert(b_out == b || b_out == b - 1, "bf16 n %u: %04x", n, b_out);
    }
}

Test(kernels, avg__every_group_size__largest_sum_times_post_is_finite) {
    for (uint32_t n = 1; n <= 70000; n += 1 + n / 3000) {
        rg_red_t r;
        cr_assert_eq(rg_red_init(&r, RG_F32, RG_AVG, n, RG_RED_FINAL), RG_OK);
        double whole = n * r.pre;
        cr_assert(whole <= 1.0 && whole > 0.5 && r.post >= 1.0 && r.post < 2.0 && fabs(r.post * whole - 1) < 1.3e-7);
        float most = whole < 1 ? nextafterf((float)ldexp(whole, 128), 0) : FLT_MAX, post = (float)r.post;
        volatile float product = most * post;
        cr_assert(isfinite(product), "n %u", n);
    }
}

Test(kernels, avg__one_member__identity_even_for_signalling_nan) {
    for (int d = RG_F16; d <= RG_F64; d++) {
        rg_red_t r;
        size_t bytes = 500 * rg_dtype_size((rg_dtype_t)d);
        fill(a_buf, 500, (rg_dtype_t)d, 0);
        cr_assert_eq(rg_red_init(&r, (rg_dtype_t)d, RG_AVG, 1, RG_RED_FINAL), RG_OK);
        cr_assert(r.pre == 1 && r.post == 1);
        rg_red_copy(&r, got_buf, a_buf, 500);
        cr_assert_eq(memcmp(got_buf, a_buf, bytes), 0);
    }
}

Test(kernels, avg__partial_value_from_raw_with_final__divided_once) {
    float in = 6.0f, out[2];
    rg_red_t part, final;
    cr_assert_eq(rg_red_init(&part, RG_F32, RG_AVG, 3, RG_RED_DST_ACC), RG_OK);
    cr_assert_eq(rg_red_init(&final, RG_F32, RG_AVG, 3, RG_RED_DST_ACC | RG_RED_FINAL), RG_OK);
    rg_red_copy(&part, &out[0], &in, 1);
    rg_red_copy(&final, &out[1], &in, 1);
    cr_assert_float_eq(out[0], 1.5f, 1e-6); /* times 1/4, the power of two below 1/3 */
    cr_assert_float_eq(out[1], 2.0f, 1e-6);
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

Test(kernels, copy__every_type_and_flag__bits_of_the_reference) {
    const char *names[3];
    int n_levels = levels(names);
    for (int d = 0; d < RG_DTYPE_COUNT; d++)
        for (int op = 0; op < RG_OP_COUNT; op++)
            for (uint32_t flags = 0; flags < 16; flags++)
                for (size_t n = 0; n <= 67; n++)
                    for (int l = 1; l < n_levels; l++) {
                        rg_red_t ref, r;
                        size_t off = n % 5, whole = n * size_of((rg_dtype_t)d, flags & RG_RED_DST_ACC) + 2 * GUARD;
                        if (!prepare(names[l], (rg_dtype_t)d, (rg_op_t)op, 3, flags, &ref, &r)) continue;
                        fill_short(a_buf, n + 8, (rg_dtype_t)d, flags & RG_RED_A_ACC);
                        memset(want_buf, 0xa5, whole);
                        memset(got_buf, 0xa5, whole);
                        rg_simd_force("scalar");
                        rg_red_copy(&ref, want_buf + GUARD, a_buf + off, n);
                        rg_simd_force(names[l]);
                        rg_red_copy(&r, got_buf + GUARD, a_buf + off, n);
                        cr_assert_eq(memcmp(want_buf, got_buf, whole), 0, "%s %s %s flags %u n %zu", names[l],
                                     rg_dtype_name((rg_dtype_t)d), rg_op_name((rg_op_t)op), flags, n);
                    }
}

Test(kernels, copy_past_cache__any_size_at_odd_addresses__exact) {
    static const size_t sizes[] = { 0, 1, 63, 255, 256, 257, 319, 320, 4096, 65537, 500001 };
    const char *names[3];
    int n_levels = levels(names);
    fill(a_buf, MAX_N, RG_U64, 0);
    for (int l = 0; l < n_levels; l++)
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
            for (size_t off = 0; off < 64; off += 13) {
                size_t n = sizes[k], whole = n + 2 * GUARD + off;
                rg_simd_force(names[l]);
                memset(want_buf, 0xa5, whole);
                memset(got_buf, 0xa5, whole);
                memcpy(want_buf + GUARD + off, a_buf + off / 2, n);
                rg_copy_past_cache(got_buf + GUARD + off, a_buf + off / 2, n);
                cr_assert_eq(memcmp(want_buf, got_buf, whole), 0, "%s %zu bytes at %zu", names[l], n, off);
            }
    rg_copy_past_cache(NULL, NULL, 0);
}

/* ---- Arguments and levels ---------------------------------------------------------------------------------------- */

Test(kernels, init__wrong_combinations__refused) {
    rg_red_t r;
    cr_assert_eq(rg_red_init(&r, RG_DTYPE_COUNT, RG_SUM, 2, 0), RG_ERR_INVALID);
    cr_assert_eq(rg_red_init(&r, (rg_dtype_t)-1, RG_SUM, 2, 0), RG_ERR_INVALID);
    cr_assert_eq(rg_red_init(&r, RG_F32, (rg_op_t)5, 2, 0), RG_ERR_INVALID);
    cr_assert_eq(rg_red_init(&r, RG_F32, RG_SUM, 0, 0), RG_ERR_INVALID);
    cr_assert_eq(rg_red_init(&r, RG_F32, RG_SUM, 2, 32), RG_ERR_INVALID);
    cr_assert_eq(rg_red_init(&r, RG_F32, RG_AVG, 2, 0), RG_ERR_INVALID);
    for (int d = RG_I8; d <= RG_U64; d++)
        cr_assert_eq(rg_red_init(&r, (rg_dtype_t)d, RG_AVG, 2, RG_RED_FINAL), RG_ERR_NOTSUP);
    cr_assert_eq(rg_acc_size(RG_F16), 4);
    cr_assert_eq(rg_acc_size(RG_BF16), 4);
    cr_assert_eq(rg_acc_size(RG_I8), 1);
    cr_assert_eq(rg_acc_size(RG_F64), 8);
}

Test(kernels, init__null_pointers_with_count_zero__nothing_happens) {
    for (int d = 0; d < RG_DTYPE_COUNT; d++)
        for (uint32_t flags = 0; flags <= all_flags; flags++) {
            rg_red_t r;
            cr_assert_eq(rg_red_init(&r, (rg_dtype_t)d, RG_MAX, 2, flags), RG_OK);
            rg_red_run(&r, NULL, NULL, NULL, 0);
            rg_red_copy(&r, NULL, NULL, 0);
        }
}

Test(kernels, level__unknown_name__refused_and_unchanged) {
    const char *before = rg_simd_name();
    cr_assert_eq(rg_simd_force("avx1024"), 0);
    cr_assert_str_eq(rg_simd_name(), before);
    cr_assert_eq(rg_simd_force("scalar"), 1);
    cr_assert_str_eq(rg_simd_name(), "scalar");
}

Test(kernels, level__variable_lowers_it__taken) {
    setenv("RG_SIMD", "scalar", 1);
    cr_assert_str_eq(rg_simd_name(), "scalar");
}

Test(kernels, level__variable_with_an_unknown_name__best_level) {
    const char *best = "scalar", *names[3];
    setenv("RG_SIMD", "quick", 1);
    const char *chosen = rg_simd_name();
    int n = levels(names);
    best = names[n - 1];
    cr_assert_str_eq(chosen, best);
}
