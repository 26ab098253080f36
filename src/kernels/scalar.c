/* scalar.c: the reference. Every kernel is a plain loop whose meaning can be read off; the SIMD levels are tested
 * against it bit for bit and call it for heads and tails. Any alignment, so elements are read and written by memcpy,
 * which compiles to a move. Relies on nothing; it must not be clever. */
#include "kernels/internal.h"

#define BLOCK 256 /* small floats are widened into blocks of f32 that stay in L1 */

/* ---- One element ----------------------------------------------------------------------------------------------- */

/* Integers wrap: the arithmetic is done unsigned, in at least 32 bits so that promotion to int cannot overflow. */
#define INT_OPS(T, U)                                                                                                  \
    static inline T sum_##T(T x, T y) { return (T)(U)((U)x + (U)y); }                                                  \
    static inline T prod_##T(T x, T y) { return (T)(U)((U)x * (U)y); }                                                 \
    static inline T min_##T(T x, T y) { return x < y ? x : y; }                                                        \
    static inline T max_##T(T x, T y) { return x > y ? x : y; }
INT_OPS(int8_t, uint32_t)
INT_OPS(uint8_t, uint32_t)
INT_OPS(int32_t, uint32_t)
INT_OPS(uint32_t, uint32_t)
INT_OPS(int64_t, uint64_t)
INT_OPS(uint64_t, uint64_t)

static inline uint32_t bits_float(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline uint64_t bits_double(double x) {
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}

static inline float of_bits_float(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline double of_bits_double(uint64_t u) {
    double x;
    memcpy(&x, &u, 8);
    return x;
}

/* Only x86-64 has other levels to agree with; elsewhere the compiler's choice of operand order is as good as any. */
#ifdef __x86_64__
#define FLOAT_OP(name, T, insn, sign)                                                                                  \
    static inline T name##_##T(T x, T y) {                                                                             \
        __asm__(insn " %1, %0" : "+x"(x) : "x"(y));                                                                    \
        return x;                                                                                                      \
    }
#else
#define FLOAT_OP(name, T, insn, sign)                                                                                  \
    static inline T name##_##T(T x, T y) { return x sign y; }
#endif
FLOAT_OP(sum, float, "addss", +)
FLOAT_OP(sum, double, "addsd", +)
FLOAT_OP(prod, float, "mulss", *)
FLOAT_OP(prod, double, "mulsd", *)

/* Equal operands differ at most in the sign of zero: OR keeps a minus for MIN, AND drops it for MAX. */
#define FLOAT_MINMAX(T, NAN_BITS)                                                                                      \
    static inline T min_##T(T x, T y) {                                                                                \
        if (x != x || y != y) return of_bits_##T(NAN_BITS);                                                            \
        return x < y ? x : y < x ? y : of_bits_##T(bits_##T(x) | bits_##T(y));                                         \
    }                                                                                                                  \
    static inline T max_##T(T x, T y) {                                                                                \
        if (x != x || y != y) return of_bits_##T(NAN_BITS);                                                            \
        return x > y ? x : y > x ? y : of_bits_##T(bits_##T(x) & bits_##T(y));                                         \
    }
FLOAT_MINMAX(float, RG_CANONICAL_NAN_F32)
FLOAT_MINMAX(double, RG_CANONICAL_NAN_F64)

/* ---- Loops ----------------------------------------------------------------------------------------------------- */

#define LOOP(op, T)                                                                                                    \
    static void k_##op##_##T(const rg_red_t *r, void *dst, const void *x, const void *y, size_t n) {                   \
        (void)r;                                                                                                       \
        for (size_t i = 0; i < n; i++) {                                                                               \
            T u, v;                                                                                                    \
            memcpy(&u, (const char *)x + i * sizeof(T), sizeof(T));                                                    \
            memcpy(&v, (const char *)y + i * sizeof(T), sizeof(T));                                                    \
            u = op##_##T(u, v);                                                                                        \
            memcpy((char *)dst + i * sizeof(T), &u, sizeof(T));                                                        \
        }                                                                                                              \
    }
#define LOOPS(T) LOOP(sum, T) LOOP(prod, T) LOOP(min, T) LOOP(max, T)
LOOPS(int8_t)
LOOPS(uint8_t)
LOOPS(int32_t)
LOOPS(uint32_t)
LOOPS(int64_t)
LOOPS(uint64_t)
LOOPS(float)
LOOPS(double)

#define AVG_LOOP(T)                                                                                                    \
    static void k_avg_##T(const rg_red_t *r, void *dst, const void *x, const void *y, size_t n) {                      \
        T sx = (T)r->x_scale, sy = (T)r->y_scale, sd = (T)r->dst_scale;                                                \
        for (size_t i = 0; i < n; i++) {                                                                               \
            T u, v;                                                                                                    \
            memcpy(&u, (const char *)x + i * sizeof(T), sizeof(T));                                                    \
            memcpy(&v, (const char *)y + i * sizeof(T), sizeof(T));                                                    \
            u = prod_##T(sum_##T(prod_##T(u, sx), prod_##T(v, sy)), sd);                                               \
            memcpy((char *)dst + i * sizeof(T), &u, sizeof(T));                                                        \
        }                                                                                                              \
    }                                                                                                                  \
    static void scale_##T(void *dst, const void *src, size_t n, double scale) {                                        \
        for (size_t i = 0; i < n; i++) {                                                                               \
            T u;                                                                                                       \
            memcpy(&u, (const char *)src + i * sizeof(T), sizeof(T));                                                  \
            u = prod_##T(u, (T)scale);                                                                                 \
            memcpy((char *)dst + i * sizeof(T), &u, sizeof(T));                                                        \
        }                                                                                                              \
    }
AVG_LOOP(float)
AVG_LOOP(double)

/* ---- Small floats
 * ---------------------------------------------------------------------------------------------------- */

static inline float widen_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;
    if (exp == 31) return of_bits_float(sign | 0x7f800000u | man << 13 | (man ? 0x400000u : 0));
    if (exp) return of_bits_float(sign | (exp + 112) << 23 | man << 13);
    if (!man) return of_bits_float(sign);
    uint32_t shift = (uint32_t)__builtin_clz(man) - 21; /* brings the leading one to bit 10, where it is implied */
    return of_bits_float(sign | (113 - shift) << 23 | (man << shift & 0x3ff) << 13);
}

static inline uint16_t narrow_f16(float f) {
    uint32_t u = bits_float(f), sign = u >> 16 & 0x8000, x = u & 0x7fffffff;
    if (x > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (x >> 13 & 0x3ff));
    if (x >= 0x477ff000u) /* half way from the largest finite value to the next: to even means infinity */
        return (uint16_t)(sign | 0x7c00);
    if (x >= 0x38800000u) { /* normal in f16: change the bias, add just under half, carry into the exponent is right */
        x -= 112u << 23;
        return (uint16_t)(sign | (x + 0xfff + (x >> 13 & 1)) >> 13);
    }
    if (x < 0x33000000u) return (uint16_t)sign;
    uint32_t man = (x & 0x7fffff) | 0x800000, shift = 126 - (x >> 23); /* 14 to 24 */
    uint32_t q = man >> shift, rest = man & ((1u << shift) - 1), half = 1u << (shift - 1);
    return (uint16_t)(sign | (q + (rest > half || (rest == half && (q & 1)))));
}

static inline float widen_bf16(uint16_t h) { return of_bits_float((uint32_t)h << 16); }

static inline uint16_t narrow_bf16(float f) {
    uint32_t u = bits_float(f);
    if ((u & 0x7fffffff) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* 8-bit floats of the OCP kind. e5m2 is the upper byte of an f16. e4m3 has bias 7, no infinity, and NaN where all the
 * other bits are set. */
static inline float widen_e5m2(uint8_t c) { return widen_f16((uint16_t)(c << 8)); }

static inline float widen_e4m3(uint8_t c) {
    uint32_t sign = (uint32_t)(c & 0x80) << 24, exp = c >> 3 & 15, man = c & 7;
    if ((c & 0x7f) == 0x7f) return of_bits_float(sign | 0x7ff00000u);
    if (exp) return of_bits_float(sign | (exp + 120) << 23 | man << 20);
    if (!man) return of_bits_float(sign);
    uint32_t shift = (uint32_t)__builtin_clz(man) - 28; /* brings the leading one to bit 3, where it is implied */
    return of_bits_float(sign | (121 - shift) << 23 | (man << shift & 7) << 20);
}

/* The magnitude x (bits of an f32 below the largest finite value) in a float of `frac` fraction bits whose smallest
 * normal number is 2^(min_exp - 127); rounded to nearest even. */
static inline uint8_t narrow_e8(uint32_t x, uint32_t frac, uint32_t min_exp) {
    uint32_t exp = x >> 23, drop = 23 - frac, man = x & 0x7fffff;
    if (exp >= min_exp) { /* change the bias, add just under half; a carry into the exponent is right */
        x -= (min_exp - 1) << 23;
        return (uint8_t)((x + (1u << (drop - 1)) - 1 + (x >> drop & 1)) >> drop);
    }
    uint32_t shift = drop + min_exp - exp;
    if (shift > 24) return 0; /* below half of the smallest */
    man |= 0x800000;
    uint32_t q = man >> shift, rest = man & ((1u << shift) - 1), half = 1u << (shift - 1);
    return (uint8_t)(q + (rest > half || (rest == half && (q & 1))));
}

/* What is beyond the range becomes the largest finite value, except that an infinity stays one where there is one. */
static inline uint8_t narrow_e5m2(float f) {
    uint32_t u = bits_float(f), sign = u >> 24 & 0x80, x = u & 0x7fffffff;
    if (x > 0x7f800000u) return (uint8_t)(sign | 0x7e | (x >> 21 & 1));
    if (x == 0x7f800000u) return (uint8_t)(sign | 0x7c);
    if (x >= 0x47600000u) return (uint8_t)(sign | 0x7b); /* 57344 */
    return (uint8_t)(sign | narrow_e8(x, 2, 113));
}

static inline uint8_t narrow_e4m3(float f) {
    uint32_t u = bits_float(f), sign = u >> 24 & 0x80, x = u & 0x7fffffff;
    if (x > 0x7f800000u) return (uint8_t)(sign | 0x7f);
    if (x >= 0x43e00000u) return (uint8_t)(sign | 0x7e); /* 448 */
    return (uint8_t)(sign | narrow_e8(x, 3, 121));
}

/* A product for the 8-bit floats: finite factors give a finite result, so that an infinity in f32 always comes from one
 * in the input, and a zero after an overflow does not make a NaN. */
static inline float prod_sat(float x, float y) {
    float p = prod_float(x, y);
    const uint32_t inf = 0x7f800000u;
    if ((bits_float(p) & 0x7fffffff) == inf && (bits_float(x) & 0x7fffffff) != inf &&
        (bits_float(y) & 0x7fffffff) != inf)
        return of_bits_float(bits_float(p) - 1);
    return p;
}

static void k_prod_sat(const rg_red_t *r, void *dst, const void *x, const void *y, size_t n) {
    (void)r;
    for (size_t i = 0; i < n; i++) {
        float u, v;
        memcpy(&u, (const char *)x + i * 4, 4);
        memcpy(&v, (const char *)y + i * 4, 4);
        u = prod_sat(u, v);
        memcpy((char *)dst + i * 4, &u, 4);
    }
}

static void k_avg_sat(const rg_red_t *r, void *dst, const void *x, const void *y, size_t n) {
    float sx = (float)r->x_scale, sy = (float)r->y_scale, sd = (float)r->dst_scale;
    for (size_t i = 0; i < n; i++) {
        float u, v;
        memcpy(&u, (const char *)x + i * 4, 4);
        memcpy(&v, (const char *)y + i * 4, 4);
        u = prod_sat(sum_float(prod_float(u, sx), prod_float(v, sy)), sd);
        memcpy((char *)dst + i * 4, &u, 4);
    }
}

static void scale_sat(void *dst, const void *src, size_t n, double scale) {
    for (size_t i = 0; i < n; i++) {
        float u;
        memcpy(&u, (const char *)src + i * 4, 4);
        u = prod_sat(u, (float)scale);
        memcpy((char *)dst + i * 4, &u, 4);
    }
}

#define SMALL_LOOPS(kind, U, mul)                                                                                      \
    static void k_widen_##kind(void *dst, const void *src, size_t n, double scale) {                                   \
        for (size_t i = 0; i < n; i++) {                                                                               \
            U h;                                                                                                       \
            memcpy(&h, (const char *)src + i * sizeof h, sizeof h);                                                    \
            float f = widen_##kind(h);                                                                                 \
            f = scale == 1 ? f : mul(f, (float)scale);                                                                 \
            memcpy((char *)dst + i * 4, &f, 4);                                                                        \
        }                                                                                                              \
    }                                                                                                                  \
    static void k_narrow_##kind(void *dst, const void *src, size_t n, double scale) {                                  \
        for (size_t i = 0; i < n; i++) {                                                                               \
            float f;                                                                                                   \
            memcpy(&f, (const char *)src + i * 4, 4);                                                                  \
            U h = narrow_##kind(scale == 1 ? f : mul(f, (float)scale));                                                \
            memcpy((char *)dst + i * sizeof h, &h, sizeof h);                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void k_rescale_##kind(void *dst, const void *src, size_t n, double scale) {                                 \
        for (size_t i = 0; i < n; i++) {                                                                               \
            U h;                                                                                                       \
            memcpy(&h, (const char *)src + i * sizeof h, sizeof h);                                                    \
            h = narrow_##kind(mul(widen_##kind(h), (float)scale));                                                     \
            memcpy((char *)dst + i * sizeof h, &h, sizeof h);                                                          \
        }                                                                                                              \
    }
SMALL_LOOPS(f16, uint16_t, prod_float)
SMALL_LOOPS(bf16, uint16_t, prod_float)
SMALL_LOOPS(e4m3, uint8_t, prod_sat)
SMALL_LOOPS(e5m2, uint8_t, prod_sat)

/* dst = x op y for small floats: whatever is raw is widened into a block first; a raw result is narrowed from one. */
static inline void small_blocks(const rg_red_t *r, void *dst, const void *x, const void *y, size_t n, size_t raw,
                                rg_scale_fn widen, rg_scale_fn narrow, rg_kernel_fn op) {
    float bx[BLOCK], by[BLOCK];
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t m = n - i < BLOCK ? n - i : BLOCK;
        const void *px = (const char *)x + i * (r->x_acc ? 4 : raw), *py = (const char *)y + i * (r->y_acc ? 4 : raw);
        char *pd = (char *)dst + i * (r->dst_acc ? 4 : raw);
        if (!r->x_acc) widen(bx, px, m, 1), px = bx;
        if (!r->y_acc) widen(by, py, m, 1), py = by;
        op(r, r->dst_acc ? (void *)pd : bx, px, py, m);
        if (!r->dst_acc) narrow(pd, bx, m, 1);
    }
}

#define SMALL(kind, op, raw, acc_op)                                                                                   \
    static void k_##op##_##kind(const rg_red_t *r, void *dst, const void *x, const void *y, size_t n) {                \
        small_blocks(r, dst, x, y, n, raw, k_widen_##kind, k_narrow_##kind, acc_op);                                   \
    }
#define SMALLS(kind, raw, prods, avgs)                                                                                 \
    SMALL(kind, sum, raw, k_sum_float)                                                                                 \
    SMALL(kind, prod, raw, prods)                                                                                      \
    SMALL(kind, min, raw, k_min_float) SMALL(kind, max, raw, k_max_float) SMALL(kind, avg, raw, avgs)
SMALLS(f16, 2, k_prod_float, k_avg_float)
SMALLS(bf16, 2, k_prod_float, k_avg_float)
SMALLS(e4m3, 1, k_prod_sat, k_avg_sat)
SMALLS(e5m2, 1, k_prod_sat, k_avg_sat)

/* ---- The table ------------------------------------------------------------------------------------------------- */

#define ROW(T) [RG_SUM] = k_sum_##T, [RG_PROD] = k_prod_##T, [RG_MIN] = k_min_##T, [RG_MAX] = k_max_##T
#define EIGHT(f)                                                                                                       \
    { f, f, f, f, f, f, f, f }
#define SMALL_ROW(kind)                                                                                                \
    {                                                                                                                  \
        [RG_SUM] = EIGHT(k_sum_##kind), [RG_PROD] = EIGHT(k_prod_##kind), [RG_MIN] = EIGHT(k_min_##kind),              \
        [RG_MAX] = EIGHT(k_max_##kind), [RG_AVG] = EIGHT(k_avg_##kind),                                                \
    }

const rg_kernel_table_t rg_kernels_scalar = {
    .name = "scalar",
    .same = {
        [RG_I8] = { ROW(int8_t) },
        [RG_U8] = { ROW(uint8_t) },
        [RG_I32] = { ROW(int32_t) },
        [RG_U32] = { ROW(uint32_t) },
        [RG_I64] = { ROW(int64_t) },
        [RG_U64] = { ROW(uint64_t) },
        [RG_F32] = { ROW(float), [RG_AVG] = k_avg_float },
        [RG_F64] = { ROW(double), [RG_AVG] = k_avg_double },
    },
    .small = { [RG_SMALL_F16] = SMALL_ROW(f16),
               [RG_SMALL_BF16] = SMALL_ROW(bf16),
               [RG_SMALL_E4M3] = SMALL_ROW(e4m3),
               [RG_SMALL_E5M2] = SMALL_ROW(e5m2) },
    .widen = { k_widen_f16, k_widen_bf16, k_widen_e4m3, k_widen_e5m2 },
    .narrow = { k_narrow_f16, k_narrow_bf16, k_narrow_e4m3, k_narrow_e5m2 },
    .rescale = { k_rescale_f16, k_rescale_bf16, k_rescale_e4m3, k_rescale_e5m2 },
    .scale_f32 = scale_float,
    .scale_f64 = scale_double,
    .scale_sat = scale_sat,
};
