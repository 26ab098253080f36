/* topk_body.h: the loops of chunked top-k that are worth vectors, written plainly so that the compiler makes them. A
 * level's file defines TGT (the target attribute), LEVEL (the table's name) and LANES (floats in a register) and
 * includes this once. Relies on the rules in topk.h for equal bits; must not use an intrinsic or anything that depends
 * on the level. */
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

/* Some elements of a row, as many as a register of the level has: that is all that LANES may change. */
typedef float piece_t __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* A row that is the sum of n rows, `apart` elements from each other, each times its weight, one after the other. */
FN void add_rows(const float *w, uint32_t n, const float *x, uint32_t apart, float *y) {
    for (uint32_t first = 0; first < SIDE; first += 4 * LANES) {
        piece_t a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };
        for (uint32_t i = 0; i < n; i++) {
            const piece_t *row = (const piece_t *)(x + (size_t)i * apart + first);
            a += w[i] * row[0];
            b += w[i] * row[1];
            c += w[i] * row[2];
            d += w[i] * row[3];
        }
        piece_t *to = (piece_t *)(y + first);
        to[0] = a, to[1] = b, to[2] = c, to[3] = d;
    }
}

/* The cosines of an even coefficient are the same from either end, those of an odd one opposite: the sums and the
 * differences of rows that lie opposite are enough. */
FN void forward(const rg_topk_weights_t *w, const float *in, float *out) {
    float sum[HALF][SIDE], dif[HALF][SIDE];
    for (uint32_t i = 0; i < HALF; i++)
        for (uint32_t c = 0; c < SIDE; c++) {
            float a = in[i * SIDE + c], b = in[(SIDE - 1 - i) * SIDE + c];
            sum[i][c] = a + b;
            dif[i][c] = a - b;
        }
    for (uint32_t u = 0; u < SIDE; u++) add_rows(w->forward[u], HALF, u % 2 ? dif[0] : sum[0], SIDE, out + u * SIDE);
}

FN void inverse(const rg_topk_weights_t *w, const float *in, float *out) {
    float even[SIDE], odd[SIDE];
    for (uint32_t i = 0; i < HALF; i++) {
        add_rows(w->inverse[i][0], HALF, in, 2 * SIDE, even);
        add_rows(w->inverse[i][1], HALF, in + SIDE, 2 * SIDE, odd);
        for (uint32_t c = 0; c < SIDE; c++) {
            out[i * SIDE + c] = even[c] + odd[c];
            out[(SIDE - 1 - i) * SIDE + c] = even[c] - odd[c];
        }
    }
}

const rg_topk_table_t LEVEL = { magnitudes, threshold, forward, inverse };
