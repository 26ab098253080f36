/* simd.h: the loops of one SIMD level, made once per level. The including file (avx2.c, avx512.c) defines LEVEL,
 * LEVEL_NAME, TGT (the target attribute), VB (bytes of a vector), the types V (integers) and VF, VD (floats), the names
 * of its instructions, and the operations on one vector that differ by more than a name. The loops here add alignment,
 * unrolling, heads and tails. Heads and tails go through the scalar reference, or as a vector filled up with zeros.
 *
 * Every loop loads all that it needs for a round before it stores, so dst may be x or y. */
#define VE (VB / 4) /* f32 per vector */

OP V vload(const char *p) { return SI(loadu)((const void *)p); }

OP void vstore(char *p, V v) { SI(storeu)((void *)p, v); }

OP void vstream(char *p, V v) { SI(stream)((void *)p, v); }

OP VF vload_f32(const char *p) { return MM(loadu_ps)((const float *)(const void *)p); }

OP void vstore_f32(char *p, VF v) { MM(storeu_ps)((float *)(void *)p, v); }

/* Written out because compilers may swap the operands of an intrinsic, and with them the payload of a NaN. */
#define FLOAT_ASM(name, VT, insn)                                                                                      \
    OP VT name(VT x, VT y) {                                                                                           \
        VT r;                                                                                                          \
        __asm__(insn " %2, %1, %0" : "=" ASM_REG(r) : ASM_REG(x), ASM_REG(y));                                         \
        return r;                                                                                                      \
    }
FLOAT_ASM(vadd_f32, VF, "vaddps")
FLOAT_ASM(vmul_f32, VF, "vmulps")
FLOAT_ASM(vadd_f64, VD, "vaddpd")
FLOAT_ASM(vmul_f64, VD, "vmulpd")

/* ---- By type, on integer registers ----------------------------------------------------------------------------- */

/* There is no product of bytes: even and odd bytes are multiplied as 16-bit lanes, the odd ones so that they end up in
 * place. */
OP V mul8(V x, V y) {
    V even = MM(mullo_epi16)(x, y), odd = SI(and)(y, MM(set1_epi16)((short)0xff00));
    return weave8(even, MM(mullo_epi16)(MM(srli_epi16)(x, 8), odd));
}

#define CASTED(op, T, f, PS)                                                                                           \
    OP V v_##op##_##T(V x, V y) { return PS##_BITS(f(BITS_##PS(x), BITS_##PS(y))); }
CASTED(sum, float, vadd_f32, F32)
CASTED(prod, float, vmul_f32, F32)
CASTED(min, float, vmin_f32, F32)
CASTED(max, float, vmax_f32, F32)
CASTED(sum, double, vadd_f64, F64)
CASTED(prod, double, vmul_f64, F64)
CASTED(min, double, vmin_f64, F64)
CASTED(max, double, vmax_f64, F64)

#define INT(op, T, f)                                                                                                  \
    OP V v_##op##_##T(V x, V y) { return f(x, y); }
INT(sum, int8_t, MM(add_epi8))
INT(prod, int8_t, mul8)
INT(min, int8_t, MM(min_epi8))
INT(max, int8_t, MM(max_epi8))
INT(sum, uint8_t, MM(add_epi8))
INT(prod, uint8_t, mul8)
INT(min, uint8_t, MM(min_epu8))
INT(max, uint8_t, MM(max_epu8))
INT(sum, int32_t, MM(add_epi32))
INT(prod, int32_t, MM(mullo_epi32))
INT(min, int32_t, MM(min_epi32))
INT(max, int32_t, MM(max_epi32))
INT(sum, uint32_t, MM(add_epi32))
INT(prod, uint32_t, MM(mullo_epi32))
INT(min, uint32_t, MM(min_epu32))
INT(max, uint32_t, MM(max_epu32))
INT(sum, int64_t, MM(add_epi64))
INT(prod, int64_t, mul64)
INT(min, int64_t, min_i64)
INT(max, int64_t, max_i64)
INT(sum, uint64_t, MM(add_epi64))
INT(prod, uint64_t, mul64)
INT(min, uint64_t, min_u64)
INT(max, uint64_t, max_u64)

/* ---- Loops over types that are their own partial values --------------------------------------------------------- */

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
#define AVG(T, VT, DTYPE, PS, F, ps)                                                                                   \
    TGT static void k_avg_##T(const rg_red_t *r, void *dst, const void *x, const void *y, size_t n) {                  \
        const size_t bytes = n * sizeof(T);                                                                            \
        VT sx = MM(set1_##ps)((T)r->x_scale), sy = MM(set1_##ps)((T)r->y_scale), sd = MM(set1_##ps)((T)r->dst_scale);  \
        size_t i = head_bytes(dst, sizeof(T), bytes);                                                                  \
        const char *px = x, *py = y;                                                                                   \
        char *pd = dst;                                                                                                \
        if (i) rg_kernels_scalar.same[DTYPE][RG_AVG](r, dst, x, y, i / sizeof(T));                                     \
        for (; bytes - i >= 4 * VB; i += 4 * VB) {                                                                     \
            VT v[4];                                                                                                   \
            for (size_t k = 0; k < 4; k++) {                                                                           \
                VT a = MM(mul_##ps)(BITS_##PS(vload(px + i + k * VB)), sx);                                            \
                v[k] = vadd_##F(a, MM(mul_##ps)(BITS_##PS(vload(py + i + k * VB)), sy));                               \
            }                                                                                                          \
            for (size_t k = 0; k < 4; k++) vstore(pd + i + k * VB, PS##_BITS(MM(mul_##ps)(v[k], sd)));                 \
        }                                                                                                              \
        for (; bytes - i >= VB; i += VB) {                                                                             \
            VT a = MM(mul_##ps)(BITS_##PS(vload(px + i)), sx), b = MM(mul_##ps)(BITS_##PS(vload(py + i)), sy);         \
            vstore(pd + i, PS##_BITS(MM(mul_##ps)(vadd_##F(a, b), sd)));                                               \
        }                                                                                                              \
        if (i < bytes) rg_kernels_scalar.same[DTYPE][RG_AVG](r, pd + i, px + i, py + i, (bytes - i) / sizeof(T));      \
    }                                                                                                                  \
    TGT static void scale_##T(void *dst, const void *src, size_t n, double scale) {                                    \
        const size_t bytes = n * sizeof(T);                                                                            \
        VT s = MM(set1_##ps)((T)scale);                                                                                \
        size_t i = head_bytes(dst, sizeof(T), bytes);                                                                  \
        const char *px = src;                                                                                          \
        char *pd = dst;                                                                                                \
        if (i) rg_kernels_scalar.scale_##F(pd, px, i / sizeof(T), scale);                                              \
        for (; bytes - i >= 4 * VB; i += 4 * VB) {                                                                     \
            VT v[4];                                                                                                   \
            for (size_t k = 0; k < 4; k++) v[k] = MM(mul_##ps)(BITS_##PS(vload(px + i + k * VB)), s);                  \
            for (size_t k = 0; k < 4; k++) vstore(pd + i + k * VB, PS##_BITS(v[k]));                                   \
        }                                                                                                              \
        for (; bytes - i >= VB; i += VB) vstore(pd + i, PS##_BITS(MM(mul_##ps)(BITS_##PS(vload(px + i)), s)));         \
        if (i < bytes) rg_kernels_scalar.scale_##F(pd + i, px + i, (bytes - i) / sizeof(T), scale);                    \
    }
AVG(float, VF, RG_F32, F32, f32, ps)
AVG(double, VD, RG_F64, F64, f64, pd)

/* ---- Small floats: widened, combined and narrowed in registers, two vectors of f32 at a time --------------------- */

typedef struct vpair {
    VF v0, v1;
} vpair_t;

/* kind, op and combo are constants wherever these are inlined, so no branch on them is left. */
#define RAW_SIZE(kind) ((kind) >= RG_SMALL_E4M3 ? 1u : 2u)

OP vpair_t small_load(const char *p, size_t i, int kind, int acc) {
    if (acc) return (vpair_t){ vload_f32(p + i * 4), vload_f32(p + i * 4 + VB) };
    switch (kind) {
    case RG_SMALL_F16: return (vpair_t){ widen_f16(p + i * 2), widen_f16(p + i * 2 + VB / 2) };
    case RG_SMALL_BF16: return (vpair_t){ widen_bf16(p + i * 2), widen_bf16(p + i * 2 + VB / 2) };
    case RG_SMALL_E4M3: {
        V h = h_of_e4m3(load_bytes(p + i));
        VF up = MM(set1_ps)(256.0f);
        return (vpair_t){ MM(mul_ps)(widen_low(h), up), MM(mul_ps)(widen_high(h), up) };
    }
    default: {
        V h = h_of_e5m2(load_bytes(p + i));
        return (vpair_t){ widen_low(h), widen_high(h) };
    }
    }
}

/* quiet: a NaN in v comes from arithmetic, so it is a quiet one. */
OP void small_store(char *p, size_t i, vpair_t v, int kind, int acc, int quiet) {
    if (acc) {
        vstore_f32(p + i * 4, v.v0);
        vstore_f32(p + i * 4 + VB, v.v1);
    } else if (kind == RG_SMALL_F16) {
        narrow_f16(p + i * 2, v.v0);
        narrow_f16(p + i * 2 + VB / 2, v.v1);
    } else if (kind == RG_SMALL_BF16) {
        narrow_bf16(p + i * 2, v.v0, v.v1, quiet);
    } else if (kind == RG_SMALL_E4M3) {
        VF down = MM(set1_ps)(1.0f / 256);
        store_bytes(p + i, e4m3_of_h(narrow_odd(MM(mul_ps)(v.v0, down), MM(mul_ps)(v.v1, down))));
    } else {
        store_bytes(p + i, e5m2_of_h(narrow_odd(v.v0, v.v1)));
    }
}

typedef struct factors {
    VF x, y, d;
} factors_t;

/* Partial values have been multiplied already; `scaled` says whether the result is. An e4m3 has no infinity that
 * saturating first could save. Two inputs have the same factor, a power of two: where their sum cannot leave f32 it is
 * applied to that, which changes no bit. */
OP VF small_op(VF x, VF y, int kind, int op, int combo, int scaled, factors_t f) {
    const int sat = kind >= RG_SMALL_E4M3;
    switch (op) {
    case RG_SUM: return vadd_f32(x, y);
    case RG_PROD: return sat ? saturated(vmul_f32(x, y), x, y) : vmul_f32(x, y);
    case RG_MIN: return vmin_f32(x, y);
    case RG_MAX: return vmax_f32(x, y);
    default: {
        const int after = (combo & 3) == 0 && kind != RG_SMALL_BF16;
        if (!after && !(combo & 1)) x = MM(mul_ps)(x, f.x);
        if (!after && !(combo & 2)) y = MM(mul_ps)(y, f.y);
        VF sum = vadd_f32(x, y);
        if (after) sum = MM(mul_ps)(sum, f.x);
        if (!scaled) return sum;
        VF p = MM(mul_ps)(sum, f.d);
        return kind == RG_SMALL_E5M2 || (sat && combo >> 2) ? saturated(p, sum, f.d) : p;
    }
    }
}

/* ---- Small floats, two inputs to a result ------------------------------------------------------------------------ */

/* Where neither operand has partial values, less is needed than to widen both. These do whole vectors of raw values and
 * return how many elements they did. */

/* The order of numbers of sign and magnitude is that of integers, turned round where both are negative; -0 is below +0.
 * The result is one of the operands, so nothing is rounded. */
OP size_t raw_minmax(char *dst, const char *x, const char *y, size_t n, int kind, int op) {
    static const int infinity[] = { 0x7c00, 0x7f80, 0x7e, 0x7c }, nan[] = { 0x7e00, 0x7fc0, 0x7f, 0x7e };
    const int bytes = RAW_SIZE(kind) == 1;
    const size_t step = VB / RAW_SIZE(kind);
    const V magnitude = bytes ? MM(set1_epi8)(0x7f) : MM(set1_epi16)(0x7fff);
    const V put = bytes ? MM(set1_epi8)((char)nan[kind]) : MM(set1_epi16)((short)nan[kind]);
    size_t i = 0;
    for (; n - i >= step; i += step) {
        V a = vload(x + i * RAW_SIZE(kind)), b = vload(y + i * RAW_SIZE(kind)), c = SI(and)(a, b);
        V lo = bytes ? MM(min_epi8)(a, b) : MM(min_epi16)(a, b), hi = bytes ? MM(max_epi8)(a, b) : MM(max_epi16)(a, b);
        V first = op == RG_MIN ? lo : hi, other = op == RG_MIN ? hi : lo;
        V d = bytes ? pick8(c, first, other) : pick16(c, first, other);
        V ma = SI(and)(a, magnitude), mb = SI(and)(b, magnitude);
        V m = bytes ? MM(max_epi8)(ma, mb) : MM(max_epi16)(ma, mb);
        d = bytes ? above8(m, infinity[kind], d, put) : above16(m, infinity[kind], d, put);
        vstore(dst + i * RAW_SIZE(kind), d);
    }
    return i;
}

/* bf16 in even places become f32 by a shift, those in odd places by clearing the others. */
OP size_t raw_bf16(char *dst, const char *x, const char *y, size_t n, int op, int scaled, factors_t f) {
    const V upper = MM(set1_epi32)((int)0xffff0000);
    size_t i = 0;
    for (; n - i >= 2 * VE; i += 2 * VE) {
        V a = vload(x + i * 2), b = vload(y + i * 2);
        VF a0 = BITS_F32(MM(slli_epi32)(a, 16)), b0 = BITS_F32(MM(slli_epi32)(b, 16));
        VF a1 = BITS_F32(SI(and)(a, upper)), b1 = BITS_F32(SI(and)(b, upper));
        V d0 = F32_BITS(small_op(a0, b0, RG_SMALL_BF16, op, 0, scaled, f));
        V d1 = F32_BITS(small_op(a1, b1, RG_SMALL_BF16, op, 0, scaled, f));
        V h = weave16(MM(srli_epi32)(d0, 16), d1), l = weave16(d0, MM(slli_epi32)(d1, 16));
        vstore(dst + i * 2, round_bf16(h, l, 1));
    }
    return i;
}

/* 8-bit floats as f16 in v and w, combined in f32. The e4m3 are 1/256 of what they mean, and so is the result. */
OP V combine_f16(V v, V w, int kind, int op, factors_t f) {
    VF v0 = widen_low(v), v1 = widen_high(v), w0 = widen_low(w), w1 = widen_high(w);
    if (op != RG_PROD) return join_f16(small_op(v0, w0, kind, op, 0, 0, f), small_op(v1, w1, kind, op, 0, 0, f));
    if (kind == RG_SMALL_E4M3) w0 = MM(mul_ps)(w0, MM(set1_ps)(256)), w1 = MM(mul_ps)(w1, MM(set1_ps)(256));
    return join_f16(MM(mul_ps)(v0, w0), MM(mul_ps)(v1, w1));
}

/* Rounds each 16-bit lane to nearest even above its lower byte, which stays. */
OP V round_upper(V h) {
    V odd = SI(and)(MM(srli_epi16)(h, 8), MM(set1_epi16)(1));
    return MM(add_epi16)(MM(add_epi16)(h, odd), MM(set1_epi16)(0x7f));
}

/* The upper bytes of the lanes of h0 and h1 in turn. */
OP V weave_upper(V h0, V h1) { return weave8(MM(srli_epi16)(h0, 8), h1); }

/* The sum or product of two 8-bit floats is rounded to f16 and then once more, which gives what one rounding would: an
 * f16 has more than twice their significant bits, and its smallest subnormal is small enough (a test goes through all
 * pairs). So with operands that were multiplied by a power of two not below 2^-6, but not with a factor afterwards.
 * Vectors with NaN or infinity stop the loop, and those with an overflow where that looks the same: the caller does one
 * step in the general way. */
OP size_t raw_e5m2(char *dst, const char *x, const char *y, size_t n, int op, factors_t f) {
    const V upper = MM(set1_epi16)((short)0xff00), exponent = MM(set1_epi8)(0x7c);
    size_t i = 0;
    for (; n - i >= VB; i += VB) {
        V a = vload(x + i), b = vload(y + i), a0 = MM(slli_epi16)(a, 8), b0 = MM(slli_epi16)(b, 8);
        V h0 = combine_f16(a0, b0, RG_SMALL_E5M2, op, f);
        V h1 = combine_f16(SI(and)(a, upper), SI(and)(b, upper), RG_SMALL_E5M2, op, f);
        V d = weave_upper(round_upper(h0), round_upper(h1));
        if (any_above8(SI(and)(d, exponent), 0x7b)) break;
        vstore(dst + i, d);
    }
    return i;
}

OP size_t raw_e4m3(char *dst, const char *x, const char *y, size_t n, int op, factors_t f) {
    const V magnitude = MM(set1_epi8)(0x7f), largest = MM(set1_epi16)(0x7e00);
    const V place = MM(set1_epi16)((short)0xbf80); /* the exponent is one bit shorter: moved down */
    size_t i = 0;
    for (; n - i >= VB; i += VB) {
        V a = vload(x + i), b = vload(y + i);
        if (any_above8(MM(max_epi8)(SI(and)(a, magnitude), SI(and)(b, magnitude)), 0x7e)) break;
        V a0 = SI(and)(MM(srai_epi16)(MM(slli_epi16)(a, 8), 1), place), a1 = SI(and)(MM(srai_epi16)(a, 1), place);
        V b0 = SI(and)(MM(srai_epi16)(MM(slli_epi16)(b, 8), 1), place), b1 = SI(and)(MM(srai_epi16)(b, 1), place);
        V h0 = combine_f16(a0, b0, RG_SMALL_E4M3, op, f), h1 = combine_f16(a1, b1, RG_SMALL_E4M3, op, f);
        /* Moved up again, over the sign, and not above 448. */
        V m0 = round_upper(MM(min_epu16)(MM(slli_epi16)(h0, 1), largest));
        V m1 = round_upper(MM(min_epu16)(MM(slli_epi16)(h1, 1), largest));
        vstore(dst + i, with_signs(weave_upper(m0, m1), weave_upper(h0, h1)));
    }
    return i;
}

OP size_t small_loop(const rg_red_t *r, char *dst, const char *x, const char *y, size_t n, int kind, int op, int combo,
                     int scaled) {
    const int xa = combo & 1, ya = combo >> 1 & 1, da = combo >> 2, both_raw = combo == 0;
    const size_t raw = RAW_SIZE(kind);
    const factors_t f = { MM(set1_ps)((float)r->x_scale), MM(set1_ps)((float)r->y_scale),
                          MM(set1_ps)((float)r->dst_scale) };
    const int bytes = both_raw && raw == 1 && !scaled && (op != RG_AVG || r->x_scale >= 1.0 / 64);
    size_t i = 0;
    if (both_raw && (op == RG_MIN || op == RG_MAX)) i = raw_minmax(dst, x, y, n, kind, op);
    else if (both_raw && kind == RG_SMALL_BF16) i = raw_bf16(dst, x, y, n, op, scaled, f);
    for (;; i += 2 * VE) {
        if (bytes)
            i += kind == RG_SMALL_E4M3 ? raw_e4m3(dst + i, x + i, y + i, n - i, op, f)
                                       : raw_e5m2(dst + i, x + i, y + i, n - i, op, f);
        if (n - i < 2 * VE) break;
        vpair_t a = small_load(x, i, kind, xa), b = small_load(y, i, kind, ya), d;
        d.v0 = small_op(a.v0, b.v0, kind, op, combo, scaled, f);
        d.v1 = small_op(a.v1, b.v1, kind, op, combo, scaled, f);
        small_store(dst, i, d, kind, da, 1);
    }
    return i;
}

/* What is left, fewer than 2 * VE elements: by the kernel itself, on copies filled up with zeros. Converting them one
 * at a time would take longer than everything before in a message of a kilobyte. */
TGT static __attribute__((noinline)) void small_rest(rg_kernel_fn kernel, const rg_red_t *r, char *dst, const char *x,
                                                     const char *y, size_t n, size_t raw) {
    char bx[2 * VB] = { 0 }, by[2 * VB] = { 0 }, bd[2 * VB];
    memcpy(bx, x, n * (r->x_acc ? 4 : raw));
    memcpy(by, y, n * (r->y_acc ? 4 : raw));
    kernel(r, bd, bx, by, 2 * VE);
    memcpy(dst, bd, n * (r->dst_acc ? 4 : raw));
}

#define SMALL(name, KIND, OP, combo)                                                                                   \
    TGT static void name##_##combo(const rg_red_t *r, void *dst, const void *x, const void *y, size_t n) {             \
        const size_t raw = RAW_SIZE(KIND), xs = (combo)&1 ? 4 : raw, ys = (combo)&2 ? 4 : raw;                         \
        const size_t ds = (combo)&4 ? 4 : raw;                                                                         \
        size_t i = OP == RG_AVG && r->dst_scale != 1 ? small_loop(r, dst, x, y, n, KIND, OP, combo, 1)                 \
                                                     : small_loop(r, dst, x, y, n, KIND, OP, combo, 0);                \
        char *d = (char *)dst + i * ds;                                                                                \
        const char *px = (const char *)x + i * xs, *py = (const char *)y + i * ys;                                     \
        if (n - i > 2) small_rest(name##_##combo, r, d, px, py, n - i, raw);                                           \
        else if (i < n) rg_kernels_scalar.small[KIND][OP][combo](r, d, px, py, n - i);                                 \
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

/* An 8-bit float has 128 magnitudes: what each becomes is worked out once, and looked up 16 at a time. */
OP size_t rescale_bytes(char *dst, const char *src, size_t n, double scale, int kind) {
    const V magnitude = MM(set1_epi8)(0x7f), low = MM(set1_epi8)(15);
    uint8_t codes[128], becomes[128];
    V row[8];
    size_t i = 0;
    /* The table costs as much as a few hundred elements. Infinity times 0 is a NaN of one sign for both. */
    if (n < 1024 || (float)scale == 0) return 0;
    for (int c = 0; c < 128; c++) codes[c] = (uint8_t)c;
    rg_kernels_scalar.rescale[kind](becomes, codes, 128, scale);
    for (int k = 0; k < 8; k++) row[k] = repeat16(becomes + 16 * k);
    for (; n - i >= VB; i += VB) {
        V c = vload(src + i), at = SI(and)(c, low), v[8];
        V bit4 = MM(slli_epi16)(c, 3), bit5 = MM(slli_epi16)(c, 2), bit6 = MM(slli_epi16)(c, 1);
        for (int k = 0; k < 8; k++) v[k] = MM(shuffle_epi8)(row[k], at);
        for (int k = 0; k < 4; k++) v[k] = pick8(bit4, v[2 * k], v[2 * k + 1]);
        for (int k = 0; k < 2; k++) v[k] = pick8(bit5, v[2 * k], v[2 * k + 1]);
        vstore(dst + i, SI(xor)(pick8(bit6, v[0], v[1]), SI(andnot)(magnitude, c)));
    }
    return i;
}

/* The product is the written-out one: clang makes a plain product of `scale == 1 ? v : v * scale`, and that quiets a
 * signalling NaN. */
OP size_t small_convert(char *dst, const char *src, size_t n, double scale, int kind, int from_acc, int to_acc) {
    const int sat = kind >= RG_SMALL_E4M3;
    VF s = MM(set1_ps)((float)scale);
    size_t i = sat && !from_acc && !to_acc ? rescale_bytes(dst, src, n, scale, kind) : 0;
    for (; n - i >= 2 * VE; i += 2 * VE) {
        vpair_t v = small_load(src, i, kind, from_acc);
        if (scale != 1) {
            vpair_t p = { vmul_f32(v.v0, s), vmul_f32(v.v1, s) };
            if (sat) p = (vpair_t){ saturated(p.v0, v.v0, s), saturated(p.v1, v.v1, s) };
            v = p;
        }
        small_store(dst, i, v, kind, to_acc, 0);
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
        vstream(d + i, v0);
        vstream(d + i + VB, v1);
        vstream(d + i + 2 * VB, v2);
        vstream(d + i + 3 * VB, v3);
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
