/* kernels.c: checks a reduction once, works out its factors and picks its kernel, so that running it is one indirect
 * call. Relies on the tables of scalar.c, avx2.c and avx512.c. It must not depend on anything that differs between
 * members: the same arguments give the same bits at every SIMD level. */
#include "kernels/internal.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

/* ---- Which level ----------------------------------------------------------------------------------------------- */

#ifdef __x86_64__
/* clang 14's __builtin_cpu_supports() does not know f16c. Asked once: in a virtual machine CPUID costs microseconds. */
static int cpu_has_f16c(void) {
    static _Atomic int known; /* 0: not asked, 1: no, 2: yes */
    int k = atomic_load_explicit(&known, memory_order_relaxed);
    if (!k) {
        unsigned a, b, c, d;
        k = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) ? 2 : 1;
        atomic_store_explicit(&known, k, memory_order_relaxed);
    }
    return k == 2;
}
#endif

/* Best first. The builtin asks the operating system too (XGETBV), so a level listed here can really be used. */
static int levels_of_cpu(const rg_kernel_table_t *out[3]) {
    int n = 0;
#ifdef __x86_64__
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && cpu_has_f16c();
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        out[n++] = &rg_kernels_avx512;
    if (avx2) out[n++] = &rg_kernels_avx2;
#endif
    out[n++] = &rg_kernels_scalar;
    return n;
}

static const rg_kernel_table_t *level_find(const char *name) {
    const rg_kernel_table_t *levels[3];
    int n = levels_of_cpu(levels);
    for (int i = 0; i < n; i++)
        if (strcmp(levels[i]->name, name) == 0) return levels[i];
    return NULL;
}

static _Atomic(const rg_kernel_table_t *) chosen;

/* Threads that get here together choose the same table, so the race to store it is harmless; the tables are constant,
 * so no ordering is needed beyond the pointer itself. An RG_SIMD that this CPU cannot do is ignored: it only lowers. */
static const rg_kernel_table_t *table(void) {
    const rg_kernel_table_t *t = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (t) return t;
    const rg_kernel_table_t *levels[3];
    const char *want = getenv("RG_SIMD");
    levels_of_cpu(levels);
    t = want ? level_find(want) : NULL;
    if (!t) t = levels[0];
    atomic_store_explicit(&chosen, t, memory_order_relaxed);
    return t;
}

const char *rg_simd_name(void) { return table()->name; }

int rg_simd_force(const char *name) {
    const rg_kernel_table_t *t = level_find(name);
    if (t) atomic_store_explicit(&chosen, t, memory_order_relaxed);
    return t != NULL;
}

/* ---- Preparing a reduction ------------------------------------------------------------------------------------- */

/* Which of the small floats a type is; -1: none. */
static int small_kind(rg_dtype_t dtype) {
    switch (dtype) {
    case RG_F16: return RG_SMALL_F16;
    case RG_BF16: return RG_SMALL_BF16;
    case RG_F8E4M3: return RG_SMALL_E4M3;
    case RG_F8E5M2: return RG_SMALL_E5M2;
    default: return -1;
    }
}

static int is_float(rg_dtype_t dtype) { return dtype == RG_F32 || dtype == RG_F64 || small_kind(dtype) >= 0; }

size_t rg_acc_size(rg_dtype_t dtype) { return small_kind(dtype) >= 0 ? sizeof(float) : rg_dtype_size(dtype); }

/* pre is the largest power of two not above 1/n: n values below the largest finite one, each times pre, add up to
 * less than n*pre times that, which is finite in any order of summation. post = 1/(n*pre), rounded to the type in
 * which it is used, is in [1, 2); where its rounding up could push the largest possible sum over the edge, it is
 * rounded down instead, so that the average of finite values is finite. */
static void avg_factors(rg_red_t *r, uint32_t n) {
    int k = 0;
    while ((1ull << k) < n) k++;
    double pre = ldexp(1.0, -k), whole = (double)n * pre; /* exact: n has 32 bits */
    r->pre = pre;
    if (r->dtype == RG_F64) {
        double post = 1.0 / whole, most = whole < 1.0 ? nextafter(ldexp(whole, DBL_MAX_EXP), 0.0) : DBL_MAX;
        r->post = isinf(post * most) ? nextafter(post, 0.0) : post;
    } else {
        float post = (float)(1.0 / whole);
        float most = whole < 1.0 ? nextafterf((float)ldexp(whole, FLT_MAX_EXP), 0.0f) : FLT_MAX;
        volatile float worst = post * most; /* rounded to f32 whatever the machine computes in */
        r->post = isinf(worst) ? nextafterf(post, 0.0f) : post;
    }
}

/* The kernel for these operands; dst_acc says what it makes. */
static rg_kernel_fn kernel_of(const rg_red_t *r, rg_op_t op, uint32_t dst_acc) {
    const rg_kernel_table_t *t = table();
    int kind = small_kind(r->dtype);
    if (kind < 0) return t->same[r->dtype][op];
    return t->small[kind][op][r->x_acc | r->y_acc << 1 | dst_acc << 2];
}

/* Partial values times a factor. */
static void scale_acc(const rg_kernel_table_t *t, rg_dtype_t dtype, void *dst, const void *src, size_t n,
                      double scale) {
    if (dtype == RG_F64) t->scale_f64(dst, src, n, scale);
    else if (dtype == RG_F8E4M3 || dtype == RG_F8E5M2) t->scale_sat(dst, src, n, scale);
    else t->scale_f32(dst, src, n, scale);
}

static void run_swapped(const rg_red_t *r, void *dst, const void *a, const void *b, size_t n) {
    r->inner(r, dst, b, a, n);
}

rg_status_t rg_red_init(rg_red_t *r, rg_dtype_t dtype, rg_op_t op, uint32_t n, uint32_t flags) {
    const uint32_t all = RG_RED_A_ACC | RG_RED_B_ACC | RG_RED_DST_ACC | RG_RED_FINAL | RG_RED_SWAP;
    memset(r, 0, sizeof *r);
    if ((unsigned)dtype >= RG_DTYPE_COUNT || (unsigned)op >= RG_OP_COUNT || (flags & ~all) || n == 0)
        return RG_ERR_INVALID;
    if (op == RG_AVG && !is_float(dtype)) return RG_ERR_NOTSUP;
    if (op == RG_AVG && !(flags & (RG_RED_DST_ACC | RG_RED_FINAL))) return RG_ERR_INVALID;
    *r = (rg_red_t){ .dtype = dtype, .op = op, .flags = flags, .pre = 1, .post = 1, .after = 1 };
    if (op == RG_AVG) avg_factors(r, n);
    int swap = (flags & RG_RED_SWAP) != 0;
    r->x_acc = (flags & (swap ? RG_RED_B_ACC : RG_RED_A_ACC)) != 0;
    r->y_acc = (flags & (swap ? RG_RED_A_ACC : RG_RED_B_ACC)) != 0;
    r->dst_acc = (flags & RG_RED_DST_ACC) != 0;
    r->x_scale = r->x_acc ? 1 : r->pre;
    r->y_scale = r->y_acc ? 1 : r->pre;
    r->dst_scale = flags & RG_RED_FINAL ? r->post : 1;
    /* Multiplying a sum by 1 changes no bit, so a group of one and the later steps of others take the short way. */
    rg_op_t use = op == RG_AVG && r->x_scale == 1 && r->y_scale == 1 && r->dst_scale == 1 ? RG_SUM : op;
    r->inner = kernel_of(r, use, r->dst_acc);
    r->run = swap ? run_swapped : r->inner;
    return RG_OK;
}

/* Operators without a kernel that multiplies: combined into partial values, and these scaled. */
static void run_then_scale(const rg_red_t *r, void *dst, const void *a, const void *b, size_t n) {
    enum { BLOCK = 1024 };
    float block[BLOCK]; /* for partial values where the result is narrower */
    const rg_kernel_table_t *t = table();
    int swap = (r->flags & RG_RED_SWAP) != 0, kind = small_kind(r->dtype);
    size_t raw = rg_dtype_size(r->dtype), acc = rg_acc_size(r->dtype);
    size_t x_elem = r->x_acc ? acc : raw, y_elem = r->y_acc ? acc : raw, d_elem = r->dst_acc ? acc : raw;
    const char *x = swap ? b : a, *y = swap ? a : b;
    char *d = dst;
    rg_red_t first = *r;
    first.dst_acc = 1;
    while (n) {
        size_t m = n < BLOCK ? n : BLOCK;
        void *part = d_elem == acc ? (void *)d : block;
        r->inner(&first, part, x, y, m);
        if (d_elem != acc) t->narrow[kind](d, part, m, r->dst_scale);
        else scale_acc(t, r->dtype, part, part, m, r->dst_scale);
        x += m * x_elem, y += m * y_elem, d += m * d_elem, n -= m;
    }
}

/* Whether x can be used as a factor of values of this type. */
static int finite_in(rg_dtype_t dtype, double x) { return isfinite(dtype == RG_F64 ? x : (double)(float)x); }

rg_status_t rg_red_scale_after(rg_red_t *r, double factor) {
    if (!is_float(r->dtype)) return RG_ERR_NOTSUP;
    if (!finite_in(r->dtype, factor) || !finite_in(r->dtype, r->post * factor)) return RG_ERR_INVALID;
    if (!(r->flags & RG_RED_FINAL) || factor == 1) return RG_OK;
    r->after = factor;
    r->dst_scale = r->post * factor;
    if (r->op == RG_SUM || r->op == RG_AVG) { /* a sum is an average whose other factors are 1 */
        r->inner = kernel_of(r, RG_AVG, r->dst_acc);
        r->run = r->flags & RG_RED_SWAP ? run_swapped : r->inner;
    } else {
        r->inner = kernel_of(r, r->op, 1);
        r->run = run_then_scale;
    }
    return RG_OK;
}

void rg_red_run(const void *ctx, void *dst, const void *a, const void *b, size_t n) {
    const rg_red_t *r = ctx;
    r->run(r, dst, a, b, n);
}

/* ---- Copies ---------------------------------------------------------------------------------------------------- */

void rg_red_copy(const rg_red_t *r, void *dst, const void *a, size_t n) {
    const rg_kernel_table_t *t = table();
    int from_acc = (r->flags & RG_RED_A_ACC) != 0, to_acc = r->dst_acc;
    double scale = from_acc ? r->dst_scale : r->pre * r->dst_scale;
    int kind = small_kind(r->dtype);
    if (n == 0) return;
    if (!from_acc && !to_acc) scale = r->after;
    if (kind >= 0 && from_acc != to_acc) (to_acc ? t->widen : t->narrow)[kind](dst, a, n, scale);
    else if (scale == 1) memmove(dst, a, n * (from_acc ? rg_acc_size(r->dtype) : rg_dtype_size(r->dtype)));
    else if (kind >= 0 && !from_acc) t->rescale[kind](dst, a, n, scale);
    else scale_acc(t, r->dtype, dst, a, n, scale);
}

rg_status_t rg_scale(rg_dtype_t dtype, void *dst, const void *src, size_t n, double factor) {
    const rg_kernel_table_t *t = table();
    if ((unsigned)dtype >= RG_DTYPE_COUNT) return RG_ERR_INVALID;
    if (!is_float(dtype)) return RG_ERR_NOTSUP;
    if (!finite_in(dtype, factor)) return RG_ERR_INVALID;
    int kind = small_kind(dtype);
    if (n == 0) return RG_OK;
    if (factor == 1) memmove(dst, src, n * rg_dtype_size(dtype));
    else if (kind >= 0) t->rescale[kind](dst, src, n, factor);
    else scale_acc(t, dtype, dst, src, n, factor);
    return RG_OK;
}

/* Reductions themselves do not stream: what they write is sent next. */
void rg_copy_past_cache(void *dst, const void *src, size_t n) {
    const rg_kernel_table_t *t = table();
    if (n != 0 && t->copy_stream) t->copy_stream(dst, src, n);
    else if (n != 0) memcpy(dst, src, n);
}
