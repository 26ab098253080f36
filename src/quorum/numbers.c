/* numbers.c: the arithmetic of quorum reductions, for every type of elements: floats are added up in f64 and rounded
 * once, integers modulo their size. A block of partial values is what both sides of it work with. It relies on the
 * kernels for the 16-bit floats. It must give the same bits wherever it runs: whoever decides may be any member. */
#include "quorum/quorum.h"

#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

int rg_numbers_known(rg_dtype_t t) {
    return t == RG_F16 || t == RG_BF16 || t == RG_F32 || t == RG_F64 || rg_numbers_whole(t);
}

int rg_numbers_whole(rg_dtype_t t) { return t == RG_I32 || t == RG_U32 || t == RG_I64 || t == RG_U64; }

void rg_numbers_clear(rg_numbers_t *b) { memset(b, 0, sizeof *b); }

/* Below 2^64 in size, and whole. */
static uint64_t times(uint64_t x, double weight) { return x * (uint64_t)weight; }

static void add_whole(rg_dtype_t t, rg_numbers_t *b, const void *x, uint64_t at, uint64_t n, double weight) {
    for (uint64_t j = 0; j < n; j++) {
        if (t == RG_I64 || t == RG_U64) b->whole[j] += times(((const uint64_t *)x)[at + j], weight);
        else b->whole[j] += times(((const uint32_t *)x)[at + j], weight);
    }
}

void rg_numbers_add(rg_dtype_t t, rg_numbers_t *b, const void *x, uint64_t at, uint64_t n, double weight) {
    float wide[RG_NUMBERS];
    const float *f = wide;
    if (rg_numbers_whole(t)) {
        add_whole(t, b, x, at, n, weight);
    } else if (t == RG_F64) {
        for (uint64_t j = 0; j < n; j++) b->f[j] += weight * ((const double *)x)[at + j];
    } else {
        if (t == RG_F32) f = (const float *)x + at;
        else {
            rg_red_t widen;
            rg_red_init(&widen, t, RG_SUM, 1, RG_RED_DST_ACC);
            rg_red_copy(&widen, wide, (const uint16_t *)x + at, n);
        }
        for (uint64_t j = 0; j < n; j++) b->f[j] += weight * (double)f[j];
    }
}

/* To f32 in such a way that rounding that to 16 bits is what rounding v at once would be: towards zero, and to an odd
 * number where something was cut off. */
static float to_odd(double v) {
    float f = (float)v;
    uint32_t bits;
    if ((double)f == v || isnan(v) || isinf(v)) return f;
    memcpy(&bits, &f, sizeof bits);
    if (fabs((double)f) > fabs(v)) bits--; /* infinity becomes the largest finite number */
    bits |= 1;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void rg_numbers_put(rg_dtype_t t, const rg_numbers_t *b, void *to, uint64_t at, uint64_t n, double by) {
    float narrow[RG_NUMBERS];
    if (t == RG_I64 || t == RG_U64) {
        memcpy((uint64_t *)to + at, b->whole, n * sizeof *b->whole);
    } else if (rg_numbers_whole(t)) {
        for (uint64_t j = 0; j < n; j++) ((uint32_t *)to)[at + j] = (uint32_t)b->whole[j];
    } else if (t == RG_F64) {
        for (uint64_t j = 0; j < n; j++) ((double *)to)[at + j] = b->f[j] / by;
    } else if (t == RG_F32) {
        for (uint64_t j = 0; j < n; j++) ((float *)to)[at + j] = (float)(b->f[j] / by);
    } else {
        rg_red_t round;
        for (uint64_t j = 0; j < n; j++) narrow[j] = to_odd(b->f[j] / by);
        rg_red_init(&round, t, RG_SUM, 1, RG_RED_A_ACC | RG_RED_FINAL);
        rg_red_copy(&round, (uint16_t *)to + at, narrow, n);
    }
}
