/* simd.h: the loops of one SIMD level, made once per level. The including file (avx2.c, avx512.c) defines LEVEL,
 * LEVEL_NAME, TGT (the target attribute), VB (bytes of a vector), the types V (integers) and VF, VD (floats), and the
 * operations on one vector; the loops here add alignment, unrolling, heads and tails. Heads and tails go through
 * the scalar reference, so they cannot differ from it.
 *
 * Every loop loads all that it needs for a round before it stores, so dst may be x or y. */
#define INLINE TGT static inline __attribute__((always_inline))
#define VE (VB / 4) /* f32 per vector */

/* Bytes to do before dst is on a vector boundary: a store across a cache line costs twice. Not worth it for little, and
 * impossible when dst is not even aligned to its elements. */
static inline size_t head_bytes(const void *dst, size_t elem, size_t bytes) {
    uintptr_t at = (uintptr_t)dst;
    return bytes >= 1024 && at % elem == 0 ? -at & (VB - 1) : 0;
}

#define SAME(op, T, DTYPE, OP)                                                                                         \
    TGT static void k_##op##_##T(const rg_red_t *r, void *dst, const void *x, const void *y, size_t n) {               \
        const size_t bytes = n * sizeof(T);                                                                            \
        size_t i = head_bytes(dst, sizeof(T), bytes);                                                                  \
        const char *px = x, *py = y;                                                                                   \
        char *pd = dst;                                                                                                \
        if (i) rg_kernels_scalar.same[DTYPE][OP](r, dst, x, y, i / sizeof(T));                                         \
        for (; bytes - i >= 4 * VB; i += 4 * VB) {                                                                     \
            V a0 = vload(px + i), a1 = vload(px + i + VB), a2 = vload(px + i + 2 * VB), a3 = vload(px + i + 3 * VB);   \
            V b0 = vload(py + i), b1 = vload(py + i + VB), b2 = vload(py + i + 2 * VB), b3 = vload(py + i + 3 * VB);   \
            vstore(pd + i, v_##op##_##T(a0, b0));                                                                      \
            vstore(pd + i + VB, v_##op##_##T(a1, b1));                                                                 \
            vstore(pd + i + 2 * VB, v_##op##_##T(a2, b2));                                                             \
            vstore(pd + i + 3 * VB, v_##op##_##T(a3, b3));                                                             \
        }                                                                                                              \
        for (; bytes - i >= VB; i += VB) vstore(pd + i, v_##op##_##T(vload(px + i), vload(py + i)));                   \
        if (i < bytes) rg_kernels_scalar.same[DTYPE][OP](r, pd + i, px + i, py + i, (bytes - i) / sizeof(T));          \
    }
#define SAMES(T, DTYPE)                                                                                                \
    SAME(sum, T, DTYPE, RG_SUM) SAME(prod, T, DTYPE, RG_PROD) SAME(min, T, DTYPE, RG_MIN) SAME(max, T, DTYPE, RG_MAX)
SAMES(int8_t, RG_I8)
SAMES(uint8_t, RG_U8)
SAMES(int32_t, RG_I32)
SAMES(uint32_t, RG_U32)
SAMES(int64_t, RG_I64)
SAMES(uint64_t, RG_U64)
SAMES(float, RG_F32)
SAMES(double, RG_F64)

/* A factor is never NaN, so the order of a product with it does not matter. */
#define AVG(T, VT, DTYPE, PS)                                                                                          \
    TGT static void k_avg_##T(const rg_red_t *r, void *dst, const void *x, const void *y, size_t n) {                  \
        VT sx = VSET_##PS((T)r->x_scale), sy = VSET_##PS((T)r->y_scale), sd = VSET_##PS((T)r->dst_scale);              \
        size_t i = 0, step = VB / sizeof(T);                                                                           \
        const T *px = x, *py = y;                                                                                      \
        T *pd = dst;                                                                                                   \
        for (; n - i >= step; i += step) {                                                                             \
            VT sum = vadd_##PS(VMUL_##PS(VLOAD_##PS(px + i), sx), VMUL_##PS(VLOAD_##PS(py + i), sy));                  \
            VSTORE_##PS(pd + i, VMUL_##PS(sum, sd));                                                                   \
        }                                                                                                              \
        if (i < n) rg_kernels_scalar.same[DTYPE][RG_AVG](r, pd + i, px + i, py + i, n - i);                            \
    }                                                                                                                  \
    TGT static void scale_##T(void *dst, const void *src, size_t n, double scale) {                                    \
        VT s = VSET_##PS((T)scale);                                                                                    \
        size_t i = 0, step = VB / sizeof(T);                                                                           \
        const T *ps = src;                                                                                             \
        T *pd = dst;                                                                                                   \
        for (; n - i >= step; i += step) VSTORE_##PS(pd + i, VMUL_##PS(VLOAD_##PS(ps + i), s));                        \
        if (i < n) rg_kernels_scalar.scale_##PS(pd + i, ps + i, n - i, scale);                                         \
    }
AVG(float, VF, RG_F32, f32)
AVG(double, VD, RG_F64, f64)

/* ---- Small floats: widened, combined and narrowed in registers, two vectors of f32 at a time --------------------- */

typedef struct vpair {
    VF v0, v1;
} vpair_t;

/* kind, op and combo are constants wherever these are inlined, so no branch on them is left. */
#define RAW_SIZE(kind) ((kind) >= RG_SMALL_E4M3 ? 1u : 2u)

INLINE vpair_t small_load(const char *p, size_t i, int kind, int acc) {
    if (acc) return (vpair_t){ VLOAD_f32((const float *)(p + i * 4)), VLOAD_f32((const float *)(p + i * 4 + VB)) };
    switch (kind) {
    case RG_SMALL_F16: return (vpair_t){ widen_f16(p + i * 2), widen_f16(p + i * 2 + VB / 2) };
    case RG_SMALL_BF16: return (vpair_t){ widen_bf16(p + i * 2), widen_bf16(p + i * 2 + VB / 2) };
    case RG_SMALL_E4M3: {
        V h = h_of_e4m3(load_bytes(p + i));
        VF up = VSET_f32(256.0f);
        return (vpair_t){ VMUL_f32(widen_low(h), up), VMUL_f32(widen_high(h), up) };
    }
    default: {
        V h = h_of_e5m2(load_bytes(p + i));
        return (vpair_t){ widen_low(h), widen_high(h) };
    }
    }
}

INLINE void small_store(char *p, size_t i, vpair_t v, int kind, int acc) {
    if (acc) {
        VSTORE_f32((float *)(p + i * 4), v.v0);
        VSTORE_f32((float *)(p + i * 4 + VB), v.v1);
    } else if (kind == RG_SMALL_F16) {
        narrow_f16(p + i * 2, v.v0);
        narrow_f16(p + i * 2 + VB / 2, v.v1);
    } else if (kind == RG_SMALL_BF16) {
        narrow_bf16(p + i * 2, v.v0);
        narrow_bf16(p + i * 2 + VB / 2, v.v1);
    } else if (kind == RG_SMALL_E4M3) {
        VF down = VSET_f32(1.0f / 256);
        store_bytes(p + i, e4m3_of_h(narrow_odd(VMUL_f32(v.v0, down), VMUL_f32(v.v1, down))));
    } else {
        store_bytes(p + i, e5m2_of_h(narrow_odd(v.v0, v.v1)));
    }
}

INLINE VF small_op(VF x, VF y, int kind, int op, VF sx, VF sy, VF sd) {
    const int sat = kind >= RG_SMALL_E4M3;
    switch (op) {
    case RG_SUM: return vadd_f32(x, y);
    case RG_PROD: return sat ? saturated(vmul_f32(x, y), x, y) : vmul_f32(x, y);
    case RG_MIN: return vmin_f32(x, y);
    case RG_MAX: return vmax_f32(x, y);
    default: {
        VF sum = vadd_f32(VMUL_f32(x, sx), VMUL_f32(y, sy));
        return sat ? saturated(VMUL_f32(sum, sd), sum, sd) : VMUL_f32(sum, sd);
    }
    }
}

INLINE void small_loop(const rg_red_t *r, char *dst, const char *x, const char *y, size_t n, int kind, int op,
                       int combo) {
    const int xa = combo & 1, ya = combo >> 1 & 1, da = combo >> 2;
    const size_t raw = RAW_SIZE(kind);
    VF sx = VSET_f32((float)r->x_scale), sy = VSET_f32((float)r->y_scale), sd = VSET_f32((float)r->dst_scale);
    size_t i = 0;
    for (; n - i >= 2 * VE; i += 2 * VE) {
        vpair_t a = small_load(x, i, kind, xa), b = small_load(y, i, kind, ya);
        vpair_t d = { small_op(a.v0, b.v0, kind, op, sx, sy, sd), small_op(a.v1, b.v1, kind, op, sx, sy, sd) };
        small_store(dst, i, d, kind, da);
    }
    if (i < n)
        rg_kernels_scalar.small[kind][op][combo](r, dst + i * (da ? 4 : raw), x + i * (xa ? 4 : raw),
                                                 y + i * (ya ? 4 : raw), n - i);
}

#define SMALL(name, KIND, OP, combo)                                                                                   \
    TGT static void name##_##combo(const rg_red_t *r, void *dst, const void *x, const void *y, size_t n) {             \
        small_loop(r, dst, x, y, n, KIND, OP, combo);                                                                  \
    }
/* clang-format off */
#define SMALL8(name, KIND, OP)                                                                                         \
    SMALL(name, KIND, OP, 0) SMALL(name, KIND, OP, 1) SMALL(name, KIND, OP, 2) SMALL(name, KIND, OP, 3)                \
    SMALL(name, KIND, OP, 4) SMALL(name, KIND, OP, 5) SMALL(name, KIND, OP, 6) SMALL(name, KIND, OP, 7)
#define SMALLS(kind, KIND)                                                                                             \
    SMALL8(k_sum_##kind, KIND, RG_SUM) SMALL8(k_prod_##kind, KIND, RG_PROD) SMALL8(k_min_##kind, KIND, RG_MIN)         \
    SMALL8(k_max_##kind, KIND, RG_MAX) SMALL8(k_avg_##kind, KIND, RG_AVG)
/* clang-format on */
SMALLS(f16, RG_SMALL_F16)
SMALLS(bf16, RG_SMALL_BF16)
SMALLS(e4m3, RG_SMALL_E4M3)
SMALLS(e5m2, RG_SMALL_E5M2)

/* The product is the written-out one: clang makes a plain product of `scale == 1 ? v : v * scale`, and that quiets a
 * signalling NaN. */
INLINE size_t small_convert(char *dst, const char *src, size_t n, double scale, int kind, int from_acc, int to_acc) {
    const int sat = kind >= RG_SMALL_E4M3;
    VF s = VSET_f32((float)scale);
    size_t i = 0;
    for (; n - i >= 2 * VE; i += 2 * VE) {
        vpair_t v = small_load(src, i, kind, from_acc);
        if (scale != 1) {
            vpair_t p = { vmul_f32(v.v0, s), vmul_f32(v.v1, s) };
            if (sat) p = (vpair_t){ saturated(p.v0, v.v0, s), saturated(p.v1, v.v1, s) };
            v = p;
        }
        small_store(dst, i, v, kind, to_acc);
    }
    return i;
}

#define CONVERSION(name, kind, KIND, from_acc, to_acc)                                                                 \
    TGT static void k_##name##_##kind(void *dst, const void *src, size_t n, double scale) {                            \
        size_t i = small_convert(dst, src, n, scale, KIND, from_acc, to_acc), raw = RAW_SIZE(KIND);                    \
        if (i < n)                                                                                                     \
            rg_kernels_scalar.name[KIND]((char *)dst + i * (to_acc ? 4 : raw),                                         \
                                         (const char *)src + i * (from_acc ? 4 : raw), n - i, scale);                  \
    }
#define CONVERSIONS(kind, KIND)                                                                                        \
    CONVERSION(widen, kind, KIND, 0, 1) CONVERSION(narrow, kind, KIND, 1, 0) CONVERSION(rescale, kind, KIND, 0, 0)
CONVERSIONS(f16, RG_SMALL_F16)
CONVERSIONS(bf16, RG_SMALL_BF16)
CONVERSIONS(e4m3, RG_SMALL_E4M3)
CONVERSIONS(e5m2, RG_SMALL_E5M2)

TGT static void scale_sat(void *dst, const void *src, size_t n, double scale) {
    size_t i = small_convert(dst, src, n, scale, RG_SMALL_E5M2, 1, 1);
    if (i < n) rg_kernels_scalar.scale_sat((char *)dst + i * 4, (const char *)src + i * 4, n - i, scale);
}

/* Past the cache: a store that does not read the line first, and does not push out what the reduction needs next. */
TGT static void copy_stream(void *dst, const void *src, size_t n) {
    char *d = dst;
    const char *s = src;
    size_t i = -(uintptr_t)d & (VB - 1);
    if (n < i + 4 * VB) {
        memcpy(d, s, n);
        return;
    }
    memcpy(d, s, i);
    for (; n - i >= 4 * VB; i += 4 * VB) {
        V v0 = vload(s + i), v1 = vload(s + i + VB), v2 = vload(s + i + 2 * VB), v3 = vload(s + i + 3 * VB);
        VSTREAM(d + i, v0);
        VSTREAM(d + i + VB, v1);
        VSTREAM(d + i + 2 * VB, v2);
        VSTREAM(d + i + 3 * VB, v3);
    }
    memcpy(d + i, s + i, n - i);
    _mm_sfence(); /* streaming stores are not ordered by the next lock or atomic that publishes this memory */
}

#define ROW(T) [RG_SUM] = k_sum_##T, [RG_PROD] = k_prod_##T, [RG_MIN] = k_min_##T, [RG_MAX] = k_max_##T
#define EIGHT(f)                                                                                                       \
    { f##_0, f##_1, f##_2, f##_3, f##_4, f##_5, f##_6, f##_7 }
#define SMALL_ROW(kind)                                                                                                \
    {                                                                                                                  \
        [RG_SUM] = EIGHT(k_sum_##kind), [RG_PROD] = EIGHT(k_prod_##kind), [RG_MIN] = EIGHT(k_min_##kind),              \
        [RG_MAX] = EIGHT(k_max_##kind), [RG_AVG] = EIGHT(k_avg_##kind),                                                \
    }

const rg_kernel_table_t LEVEL = {
    .name = LEVEL_NAME,
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
    .copy_stream = copy_stream,
};
