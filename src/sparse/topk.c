/* topk.c: chunked top-k as the caller sees it: checks and sizes, the choice, the transform, indices of 12 bits, values
 * in their forms. Relies on the tables of topk_*.c for the loops that take time and on the codecs of src/quant for
 * values. Takes no memory and keeps no state but the weights of the transform, which are made once. What it decodes may
 * come from anywhere: no index leads out of a chunk. */
#include "sparse/topk.h"

#include "kernels/kernels.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#define CHUNK RG_TOPK_CHUNK
#define INFINITE 0x7f800000u

/* The largest bf16. */
#define BF16_TOP 0x7f7fu

/* cos(i * pi / 128) * sqrt(2 / 64). */
static const float cosines[65] = {
    0x1.6a09e6p-3f, 0x1.69edfcp-3f, 0x1.699a42p-3f, 0x1.690ec6p-3f, 0x1.684b9cp-3f, 0x1.6750e4p-3f, 0x1.661ec2p-3f,
    0x1.64b568p-3f, 0x1.63150cp-3f, 0x1.613deep-3f, 0x1.5f3056p-3f, 0x1.5cec98p-3f, 0x1.5a730cp-3f, 0x1.57c414p-3f,
    0x1.54e018p-3f, 0x1.51c78cp-3f, 0x1.4e7aeap-3f, 0x1.4afab2p-3f, 0x1.474772p-3f, 0x1.4361bap-3f, 0x1.3f4a24p-3f,
    0x1.3b015p-3f,  0x1.3687eap-3f, 0x1.31dea2p-3f, 0x1.2d062ep-3f, 0x1.27ff5p-3f,  0x1.22caccp-3f, 0x1.1d6972p-3f,
    0x1.17dc14p-3f, 0x1.12238ep-3f, 0x1.0c40c2p-3f, 0x1.063498p-3f, 0x1p-3f,        0x1.f347dcp-4f, 0x1.e642b8p-4f,
    0x1.d8f29ap-4f, 0x1.cb598cp-4f, 0x1.bd79aap-4f, 0x1.af5516p-4f, 0x1.a0edfep-4f, 0x1.92469cp-4f, 0x1.836132p-4f,
    0x1.74400ap-4f, 0x1.64e57cp-4f, 0x1.5553e4p-4f, 0x1.458daap-4f, 0x1.35953cp-4f, 0x1.256d12p-4f, 0x1.1517a8p-4f,
    0x1.049782p-4f, 0x1.e7de5ep-5f, 0x1.c6427ap-5f, 0x1.a4608ap-5f, 0x1.823dc8p-5f, 0x1.5fdf76p-5f, 0x1.3d4aep-5f,
    0x1.1a855ep-5f, 0x1.ef2894p-6f, 0x1.a8fa12p-6f, 0x1.628a08p-6f, 0x1.1be352p-6f, 0x1.aa21a8p-7f, 0x1.1c3af6p-7f,
    0x1.1c50e2p-8f, 0.0f,
};

const char *rg_sparse_op_name(rg_sparse_op_t op) {
    static const char *const names[] = { "sum", "avg_world", "avg_owners", "max", "min" };
    return (unsigned)op < sizeof names / sizeof *names ? names[op] : "?";
}

const rg_topk_table_t *rg_topk_level(void) {
#ifdef __x86_64__
    const char *level = rg_simd_name();
    if (strcmp(level, "avx512") == 0) return &rg_topk_avx512;
    if (strcmp(level, "avx2") == 0) return &rg_topk_avx2;
#endif
    return &rg_topk_scalar;
}

int rg_topk_wrong(const rg_topk_t *t) {
    if (t == NULL || t->size != sizeof *t || t->k == 0 || t->k > CHUNK || (t->flags & ~RG_TOPK_DCT) != 0) return 1;
    return t->values != RG_TOPK_F32 && t->values != RG_TOPK_2BIT && rg_wire_name((rg_wire_t)t->values) == NULL;
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

/* Of a chunk of m elements. */
static uint32_t chosen(const rg_topk_t *t, uint32_t m) { return (uint32_t)(((uint64_t)t->k * m + CHUNK - 1) / CHUNK); }

static uint32_t index_bytes(uint32_t k) { return (12 * k + 7) / 8; }

static uint64_t value_bytes(const rg_topk_t *t, uint32_t k) {
    if (t->values == RG_TOPK_F32) return 4 * (uint64_t)k;
    if (t->values == RG_TOPK_2BIT) return 4 + (k + 3) / 4;
    return rg_quant_bytes((rg_wire_t)t->values, k);
}

static uint64_t chunk_bytes(const rg_topk_t *t, uint32_t m) {
    uint32_t k = chosen(t, m);
    return m == 0 ? 0 : index_bytes(k) + value_bytes(t, k);
}

uint64_t rg_topk_bytes(const rg_topk_t *t, uint64_t n) {
    if (rg_topk_wrong(t)) return 0;
    return n / CHUNK * chunk_bytes(t, CHUNK) + chunk_bytes(t, (uint32_t)(n % CHUNK));
}

uint64_t rg_topk_values(const rg_topk_t *t, uint64_t n) {
    if (rg_topk_wrong(t)) return 0;
    return n / CHUNK * chosen(t, CHUNK) + chosen(t, (uint32_t)(n % CHUNK));
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* The k of largest magnitude among n, ascending; 0 when one is not finite. */
static int choose(const float *x, uint32_t n, uint32_t k, uint16_t *at) {
    uint32_t mag[CHUNK];
    const rg_topk_table_t *level = rg_topk_level();
    uint32_t top = level->magnitudes(x, n, mag);
    if (top >= INFINITE) return 0;
    uint32_t t = level->threshold(mag, n, k, top), above = 0, have = 0;
    for (uint32_t i = 0; i < n; i++) above += mag[i] > t;
    uint32_t equal = k - above;
    for (uint32_t i = 0; i < n && have < k; i++) {
        uint32_t take = mag[i] > t;
        if (mag[i] == t && equal != 0) take = 1, equal--;
        at[have] = (uint16_t)i;
        have += take;
    }
    return 1;
}

rg_status_t rg_topk_select(const rg_topk_t *t, const float *x, uint64_t n, uint64_t *at) {
    uint16_t one[CHUNK];
    if (t == NULL || t->size != sizeof *t || t->k == 0 || t->k > CHUNK) return RG_ERR_INVALID;
    if (n != 0 && (x == NULL || at == NULL)) return RG_ERR_INVALID;
    for (uint64_t first = 0; first < n; first += CHUNK) {
        uint32_t m = n - first < CHUNK ? (uint32_t)(n - first) : CHUNK, k = chosen(t, m);
        if (!choose(x + first, m, k, one)) return RG_ERR_INVALID;
        for (uint32_t i = 0; i < k; i++) *at++ = first + one[i];
    }
    return RG_OK;
}

/* ---- The transform ----------------------------------------------------------------------------------------------- */

static void transpose(const float *in, float *out) {
    for (uint32_t i = 0; i < RG_TOPK_SIDE; i++)
        for (uint32_t j = 0; j < RG_TOPK_SIDE; j++) out[j * RG_TOPK_SIDE + i] = in[i * RG_TOPK_SIDE + j];
}

static rg_topk_weights_t weights;
static pthread_once_t weights_once = PTHREAD_ONCE_INIT;

/* cos((2 i + 1) u pi / 128) * sqrt(2 / 64), and for u = 0 what makes the transform orthonormal. */
static float weight(uint32_t i, uint32_t u) {
    uint32_t a = (2 * i + 1) * u % 256;
    if (u == 0) return 0.125f;
    if (a > 128) a = 256 - a;
    return a <= 64 ? cosines[a] : -cosines[128 - a];
}

static void make_weights(void) {
    for (uint32_t i = 0; i < RG_TOPK_SIDE / 2; i++)
        for (uint32_t u = 0; u < RG_TOPK_SIDE; u++)
            weights.forward[u][i] = weights.inverse[i][u % 2][u / 2] = weight(i, u);
}

static void transform(void (*columns)(const rg_topk_weights_t *, const float *, float *), const float *in,
                      uint64_t chunks, float *out) {
    float a[CHUNK];
    pthread_once(&weights_once, make_weights);
    for (; chunks != 0;
         chunks--, in += CHUNK, out += CHUNK) { /* `in` may be `out`: it is read before that is written */
        columns(&weights, in, a);
        transpose(a, out);
        columns(&weights, out, a);
        transpose(a, out);
    }
}

void rg_topk_dct(const float *in, uint64_t chunks, float *out) { transform(rg_topk_level()->forward, in, chunks, out); }

void rg_topk_dct_inverse(const float *in, uint64_t chunks, float *out) {
    transform(rg_topk_level()->inverse, in, chunks, out);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* To nearest even; what is beyond the largest bf16 becomes it. x is finite and not negative. */
static uint32_t to_bf16(double x) {
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    u = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
    return u > BF16_TOP ? BF16_TOP : u;
}

static float from_bf16(const uint8_t *w) {
    uint32_t u = ((uint32_t)w[0] | (uint32_t)w[1] << 8) << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Two magnitudes: the values are parted half way between the least and the largest, and each part is told by its mean.
 * In double, so that no sum overflows, and in the order of indices. */
static void encode_2bit(const float *v, uint32_t k, uint8_t *w) {
    double least = fabs((double)v[0]), most = least, sum[2] = { 0, 0 };
    uint32_t count[2] = { 0, 0 };
    for (uint32_t i = 0; i < k; i++) {
        double m = fabs((double)v[i]);
        least = m < least ? m : least;
        most = m > most ? m : most;
    }
    double half = least + (most - least) / 2;
    memset(w + 4, 0, (k + 3) / 4);
    for (uint32_t i = 0; i < k; i++) {
        double m = fabs((double)v[i]);
        uint32_t high = m >= half, code = high | (signbit(v[i]) ? 2u : 0u);
        sum[high] += m;
        count[high]++;
        w[4 + i / 4] |= (uint8_t)(code << 2 * (i % 4));
    }
    for (uint32_t part = 0; part < 2; part++) {
        uint32_t u = to_bf16(count[part] != 0 ? sum[part] / count[part] : 0);
        w[2 * part] = (uint8_t)u;
        w[2 * part + 1] = (uint8_t)(u >> 8);
    }
}

static void decode_2bit(const uint8_t *w, uint32_t k, float *v) {
    const float magnitude[2] = { from_bf16(w), from_bf16(w + 2) };
    for (uint32_t i = 0; i < k; i++) {
        uint32_t code = (uint32_t)w[4 + i / 4] >> 2 * (i % 4);
        v[i] = code & 2 ? -magnitude[code & 1] : magnitude[code & 1];
    }
}

static int encode_values(const rg_topk_t *t, const float *v, uint32_t k, uint8_t *w) {
    if (t->values == RG_TOPK_F32) memcpy(w, v, k * sizeof *v);
    else if (t->values == RG_TOPK_2BIT) encode_2bit(v, k, w);
    else {
        rg_quant_t q = RG_QUANT_INIT((rg_wire_t)t->values);
        return rg_quant_encode(&q, 0, 0, v, k, w) == RG_OK;
    }
    return 1;
}

static void decode_values(const rg_topk_t *t, const uint8_t *w, uint32_t k, float *v) {
    if (t->values == RG_TOPK_F32) memcpy(v, w, k * sizeof *v);
    else if (t->values == RG_TOPK_2BIT) decode_2bit(w, k, v);
    else rg_quant_decode((rg_wire_t)t->values, w, k, v);
}

/* Two indices in three bytes, the lower bits first. */
static void put_12(uint8_t *w, const uint16_t *at, uint32_t k) {
    uint32_t i = 0;
    for (; i + 1 < k; i += 2, w += 3) {
        w[0] = (uint8_t)at[i];
        w[1] = (uint8_t)(at[i] >> 8 | at[i + 1] << 4);
        w[2] = (uint8_t)(at[i + 1] >> 4);
    }
    if (i < k) {
        w[0] = (uint8_t)at[i];
        w[1] = (uint8_t)(at[i] >> 8);
    }
}

static uint32_t get_12(const uint8_t *w, uint32_t i) {
    w += i / 2 * 3;
    return i % 2 ? (uint32_t)w[1] >> 4 | (uint32_t)w[2] << 4 : (uint32_t)w[0] | ((uint32_t)w[1] & 15) << 8;
}

/* ---- Whole ------------------------------------------------------------------------------------------------------- */

/* Writes what is chosen of one chunk of `many` numbers. v: room for a chunk; it may be `from`, as no value moves up.
 * Not inlined: the stack of what makes `from` is not needed here, and a caller's thread may have little. */
static __attribute__((noinline)) int encode_chunk(const rg_topk_t *t, const float *from, uint32_t many, uint32_t k,
                                                  float *v, uint8_t *w) {
    uint16_t at[CHUNK];
    if (!choose(from, many, k, at)) return 0;
    for (uint32_t i = 0; i < k; i++) v[i] = from[at[i]];
    put_12(w, at, k);
    return encode_values(t, v, k, w + index_bytes(k));
}

static void gather_chunk(const rg_topk_t *t, const uint8_t *w, uint32_t m, float *sum, uint16_t *counts);

/* Whether coefficients become finite numbers again: a part of them may reach beyond what all of them make, and values
 * are rounded. No element, nor what the transform makes on the way, is more than a quarter of the sum of magnitudes; so
 * the transform is made only where that is near the end of f32. Not inlined, for the stack. */
static __attribute__((noinline)) int comes_back(const rg_topk_t *t, const uint8_t *w, uint32_t m) {
    float one[CHUNK];
    double sum = 0;
    uint32_t k = chosen(t, m);
    decode_values(t, w + index_bytes(k), k, one);
    for (uint32_t i = 0; i < k; i++) sum += fabs((double)one[i]);
    if (sum / 4 <= (double)FLT_MAX) return 1;
    memset(one, 0, sizeof one);
    gather_chunk(t, w, m, one, NULL);
    rg_topk_dct_inverse(one, 1, one);
    for (uint32_t i = 0; i < m; i++)
        if (!isfinite(one[i])) return 0;
    return 1;
}

rg_status_t rg_topk_encode(const rg_topk_t *t, const float *x, uint64_t n, void *bytes) {
    float full[CHUNK];
    uint8_t *w = bytes;
    if (rg_topk_wrong(t) || (n != 0 && (x == NULL || bytes == NULL))) return RG_ERR_INVALID;
    for (uint64_t first = 0; first < n; first += CHUNK) {
        uint32_t m = n - first < CHUNK ? (uint32_t)(n - first) : CHUNK, k = chosen(t, m), many = m;
        const float *from = x + first;
        if (t->flags & RG_TOPK_DCT) {
            memcpy(full, from, m * sizeof *full);
            memset(full + m, 0, (CHUNK - m) * sizeof *full);
            rg_topk_dct(full, 1, full);
            from = full;
            many = CHUNK;
        }
        if (!encode_chunk(t, from, many, k, full, w)) return RG_ERR_INVALID;
        if ((t->flags & RG_TOPK_DCT) && !comes_back(t, w, m)) return RG_ERR_INVALID;
        w += chunk_bytes(t, m);
    }
    return RG_OK;
}

/* One chunk of m elements, added; with RG_TOPK_DCT all 4096 coefficients have a place. */
static void gather_chunk(const rg_topk_t *t, const uint8_t *w, uint32_t m, float *sum, uint16_t *counts) {
    float v[CHUNK];
    uint32_t k = chosen(t, m), room = t->flags & RG_TOPK_DCT ? CHUNK : m;
    decode_values(t, w + index_bytes(k), k, v);
    for (uint32_t i = 0; i < k; i++) {
        uint32_t at = get_12(w, i);
        if (at >= room) continue;
        sum[at] += v[i];
        if (counts != NULL) counts[at]++;
    }
}

void rg_topk_gather(const rg_topk_t *t, const uint8_t *bytes, uint64_t n, float *sum, uint16_t *counts) {
    for (uint64_t first = 0; first < n; first += CHUNK) {
        uint32_t m = n - first < CHUNK ? (uint32_t)(n - first) : CHUNK;
        gather_chunk(t, bytes, m, sum + first, counts != NULL ? counts + first : NULL);
        bytes += chunk_bytes(t, m);
    }
}

static rg_status_t decode(const rg_topk_t *t, const uint8_t *w, uint64_t n, float *out, int add) {
    float one[CHUNK];
    if (rg_topk_wrong(t) || (n != 0 && (w == NULL || out == NULL))) return RG_ERR_INVALID;
    for (uint64_t first = 0; first < n; first += CHUNK) {
        uint32_t m = n - first < CHUNK ? (uint32_t)(n - first) : CHUNK;
        memset(one, 0, sizeof one);
        gather_chunk(t, w, m, one, NULL);
        if (t->flags & RG_TOPK_DCT) rg_topk_dct_inverse(one, 1, one);
        for (uint32_t i = 0; i < m; i++) out[first + i] = add ? out[first + i] + one[i] : one[i];
        w += chunk_bytes(t, m);
    }
    return RG_OK;
}

rg_status_t rg_topk_decode(const rg_topk_t *t, const void *bytes, uint64_t n, float *out) {
    return decode(t, bytes, n, out, 0);
}

rg_status_t rg_topk_decode_add(const rg_topk_t *t, const void *bytes, uint64_t n, float *out) {
    return decode(t, bytes, n, out, 1);
}
