/* topk_body.h: the loops of chunked top-k that are worth vectors, written plainly so that the compiler makes them. A
 * level's file defines TGT (the target attribute), LEVEL (the table's name) and includes this once. Relies on the rules
 * in topk.h for equal bits; must not use an intrinsic or anything that depends on the level. */
#include "sparse/topk.h"

#include <string.h>

#define FN TGT static
#define SIDE RG_TOPK_SIDE
#define HALF (SIDE / 2)

FN uint32_t magnitudes(const float *x, uint32_t n, uint32_t *mag) {
    uint32_t top = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        u &= 0x7fffffffu;
        mag[i] = u;
        top = u > top ? u : top;
    }
    return top;
}

FN uint32_t at_least(const uint32_t *mag, uint32_t n, uint32_t t) {
    uint32_t c = 0;
    for (uint32_t i = 0; i < n; i++) c += mag[i] >= t;
    return c;
}

/* By halves. Where exactly k are at least t, t will do, whatever lies between it and the least of them. */
FN uint32_t threshold(const uint32_t *mag, uint32_t n, uint32_t k, uint32_t top) {
    uint32_t low = 0, high = top + 1;
    while (high - low > 1) {
        uint32_t t = low + (high - low) / 2, c = at_least(mag, n, t);
        if (c >= k) low = t;
        else high = t;
        if (c == k) break;
    }
    return low;
}

/* cos((2 i + 1) u pi / 128) * sqrt(2 / 64), and for u = 0 what makes the transform orthonormal. */
FN float weight(uint32_t i, uint32_t u) {
    uint32_t a = (2 * i + 1) * u % 256;
    if (u == 0) return 0.125f;
    if (a > 128) a = 256 - a;
    return a <= 64 ? rg_topk_cosines[a] : -rg_topk_cosines[128 - a];
}

/* y[c] += w * x[c] for a row. */
FN void add_row(float *y, float w, const float *x) {
    for (uint32_t c = 0; c < SIDE; c++) y[c] += w * x[c];
}

/* The cosines of an even coefficient are the same from either end, those of an odd one opposite: the sums and the
 * differences of rows that lie opposite are enough. */
FN void forward(const float *in, float *out) {
    float sum[HALF][SIDE], dif[HALF][SIDE];
    for (uint32_t i = 0; i < HALF; i++)
        for (uint32_t c = 0; c < SIDE; c++) {
            float a = in[i * SIDE + c], b = in[(SIDE - 1 - i) * SIDE + c];
            sum[i][c] = a + b;
            dif[i][c] = a - b;
        }
    for (uint32_t u = 0; u < SIDE; u++) {
        float y[SIDE] = { 0 };
        for (uint32_t i = 0; i < HALF; i++) add_row(y, weight(i, u), u % 2 ? dif[i] : sum[i]);
        memcpy(out + u * SIDE, y, sizeof y);
    }
}

FN void inverse(const float *in, float *out) {
    for (uint32_t i = 0; i < HALF; i++) {
        float even[SIDE] = { 0 }, odd[SIDE] = { 0 };
        for (uint32_t u = 0; u < SIDE; u += 2) add_row(even, weight(i, u), in + u * SIDE);
        for (uint32_t u = 1; u < SIDE; u += 2) add_row(odd, weight(i, u), in + u * SIDE);
        for (uint32_t c = 0; c < SIDE; c++) {
            out[i * SIDE + c] = even[c] + odd[c];
            out[(SIDE - 1 - i) * SIDE + c] = even[c] - odd[c];
        }
    }
}

const rg_topk_table_t LEVEL = { magnitudes, threshold, forward, inverse };
