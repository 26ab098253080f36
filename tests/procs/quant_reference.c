/* quant_reference.c: quantised collectives without a group, slice by slice. Relies on the scalar codec, which
 * tests/unit/test_codec.c holds to the definitions of the wire forms, and on nothing of how members exchange parts. */
#include "quant_reference.h"

#include "quant/codec.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct work {
    const struct quant_call *c;
    uint32_t n, me;
    const struct quant_member *who;
    float *kept;
    float *sum, *host, *dec; /* room for a slice */
    uint8_t *wire;
    int finite;
};

/* ---- Codec ------------------------------------------------------------------------------------------------------- */

static uint64_t spread(uint64_t v) {
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9ull;
    v = (v ^ v >> 27) * 0x94d049bb133111ebull;
    return v ^ v >> 31;
}

static rg_code_t code_for(const struct quant_call *c, uint64_t seed, uint64_t op) {
    uint64_t key = spread(spread(seed + 0x9e3779b97f4a7c15ull) ^ op);
    return (rg_code_t){ .key = { (uint32_t)key, (uint32_t)(key >> 32) },
                        .stochastic = (c->flags & RG_QUANT_STOCHASTIC) != 0,
                        .saturate = (c->flags & RG_QUANT_SATURATE) != 0,
                        .scale = c->scale };
}

/* What arrives of v, said by rank r in its exchange number op. */
static void said(struct work *w, uint32_t r, uint64_t op, uint64_t first, const float *v, uint64_t n, float *dec) {
    rg_code_t k = code_for(w->c, w->who[r].seed, op);
    if (n == 0) return;
    if (rg_codecs_scalar.encode[w->c->wire](&k, first, v, n, w->wire))
        rg_codecs_scalar.decode[w->c->wire](w->wire, n, dec);
    else w->finite = 0;
}

static float left(const struct quant_call *c, float whole, float heard) {
    float d = whole - heard;
    if (!isfinite(d)) return 0;
    if (c->clip > 0.0f) d = d < -c->clip ? -c->clip : d > c->clip ? c->clip : d;
    return d;
}

static void keep(struct work *w, uint32_t r, uint64_t at, const float *whole, uint64_t n) {
    for (uint64_t i = 0; w->kept && r == w->me && i < n; i++) w->kept[at + i] = left(w->c, whole[i], w->dec[i]);
}

/* A value that is not encoded. */
static float plain(struct work *w, float v) {
    if (isfinite(v)) return v;
    if (!(w->c->flags & RG_QUANT_SATURATE)) return w->finite = 0, v;
    return isnan(v) ? 0.0f : copysignf(FLT_MAX, v);
}

/* ---- Slices ------------------------------------------------------------------------------------------------------ */

static uint64_t unit_of(const struct quant_call *c) {
    uint64_t block = rg_quant_block(c->wire);
    if (c->form == RG_QUANT_INTEGER && block) return 256;
    return block > 64 ? block : block > 1 ? 64 : 320;
}

static uint64_t slice_at(const struct work *w, uint32_t r) {
    const struct quant_call *c = w->c;
    if (c->kind != QUANT_ALL_REDUCE) return (uint64_t)c->count * r;
    uint64_t unit = unit_of(c), units = (c->count + unit - 1) / unit, at = 0;
    for (uint32_t k = 0; k < r; k++) at += (units / w->n + (k < units % w->n)) * unit;
    return at < c->count ? at : c->count;
}

static uint64_t slice_len(const struct work *w, uint32_t r) { return slice_at(w, r + 1) - slice_at(w, r); }

/* ---- Ways of a sum ----------------------------------------------------------------------------------------------- */

/* Each makes slice t of the sum in w->sum and returns the number of exchanges that it took. */
static uint64_t direct(struct work *w, uint32_t t) {
    uint64_t at = slice_at(w, t), n = slice_len(w, t);
    for (uint64_t i = 0; i < n; i++) w->sum[i] = 0;
    for (uint32_t r = 0; r < w->n; r++) {
        const float *v = w->who[r].m + at;
        if (r != t) said(w, r, 0, at, v, n, w->dec);
        for (uint64_t i = 0; i < n; i++) w->sum[i] += r == t ? plain(w, v[i]) : w->dec[i];
        if (r == t) memcpy(w->dec, v, n * sizeof *v);
        keep(w, r, at, v, n);
    }
    return 1;
}

static uint64_t ring(struct work *w, uint32_t t) {
    uint64_t at = slice_at(w, t), n = slice_len(w, t);
    for (uint32_t hop = 0; hop < w->n; hop++) {
        uint32_t r = (t + 1 + hop) % w->n;
        const float *v = w->who[r].m + at;
        for (uint64_t i = 0; i < n; i++) w->sum[i] = hop ? w->dec[i] + plain(w, v[i]) : plain(w, v[i]);
        if (r == t) memcpy(w->dec, w->sum, n * sizeof *v);
        else said(w, r, hop, at, hop ? w->sum : v, n, w->dec);
        keep(w, r, at, hop ? w->sum : v, n);
    }
    return w->n - 1;
}

/* The first rank of r's host, and how many of it come before r. */
static uint32_t host_of(const struct work *w, uint32_t r) {
    for (uint32_t k = 0; k < r; k++)
        if (w->who[k].host == w->who[r].host) return k;
    return r;
}

static uint32_t of_host(const struct work *w, uint32_t host, uint32_t below) {
    uint32_t many = 0;
    for (uint32_t k = host; k < below; k++) many += host_of(w, k) == host;
    return many;
}

/* Who of a host adds up its shares of slice t. */
static uint32_t stands_for(const struct work *w, uint32_t host, uint32_t t) {
    uint32_t place = of_host(w, host_of(w, t), t) % of_host(w, host, w->n), r = host;
    while (host_of(w, r) != host || of_host(w, host, r) != place) r++;
    return r;
}

static void host_sum(struct work *w, uint32_t host, uint64_t at, uint64_t n, float *sum) {
    for (uint64_t i = 0; i < n; i++) sum[i] = 0;
    for (uint32_t r = host; r < w->n; r++)
        for (uint64_t i = 0; host_of(w, r) == host && i < n; i++) sum[i] += plain(w, w->who[r].m[at + i]);
}

static uint64_t two_level(struct work *w, uint32_t t) {
    uint64_t at = slice_at(w, t), n = slice_len(w, t), hosts = 1;
    if (w->kept) memset(w->kept + at, 0, n * sizeof *w->kept);
    host_sum(w, host_of(w, t), at, n, w->sum);
    for (uint32_t h = 0; h < w->n; h++) {
        if (host_of(w, h) != h || h == host_of(w, t)) continue;
        uint32_t r = stands_for(w, h, t);
        host_sum(w, h, at, n, w->host);
        said(w, r, 1, at, w->host, n, w->dec);
        keep(w, r, at, w->host, n);
        for (uint64_t i = 0; i < n; i++) w->sum[i] += w->dec[i];
        hosts++;
    }
    return hosts > 1 ? 2 : 1;
}

static void average(struct work *w, uint32_t t) {
    uint64_t n = slice_len(w, t);
    for (uint64_t i = 0; w->c->op == RG_AVG && i < n; i++) w->sum[i] /= (float)w->n;
}

/* ---- Whole numbers ------------------------------------------------------------------------------------------------
 */

static float top_of(struct work *w, uint64_t at, uint64_t n) {
    float top = 0;
    for (uint32_t r = 0; r < w->n; r++)
        for (uint64_t i = 0; i < n; i++) {
            float v = fabsf(plain(w, w->who[r].m[at + i]));
            if (v > top) top = v;
        }
    return top;
}

static float scale_for(struct work *w, uint64_t at, uint64_t n, int most) {
    float top = top_of(w, at, n), s = top / (float)most;
    return isinf(s * (float)most) ? nextafterf(s, 0) : s;
}

/* A block of slice t, which begins `in` elements into it, to out. */
static void block_of(struct work *w, uint64_t at, uint64_t n, float s, int most, float *out) {
    int32_t sum[256] = { 0 }, top = 0;
    for (uint32_t r = 0; r < w->n; r++) {
        int8_t q[256];
        rg_code_t k = code_for(w->c, w->who[r].seed, 0);
        rg_codecs_scalar.levels(&k, at, w->who[r].m + at, n, s, most, q);
        for (uint64_t i = 0; i < n; i++) sum[i] += q[i];
        for (uint64_t i = 0; w->kept && r == w->me && i < n; i++)
            w->kept[at + i] = left(w->c, w->who[r].m[at + i], s * (float)q[i]);
    }
    for (uint64_t i = 0; i < n; i++) {
        float v = s * (float)sum[i];
        out[i] = (w->c->op == RG_AVG ? v / (float)w->n : v) + 0.0f;
        if (abs(sum[i]) > top) top = abs(sum[i]);
    }
    float largest = s * (float)top;
    if (w->c->op == RG_AVG) largest /= (float)w->n;
    if (w->c->kind == QUANT_ALL_REDUCE && !isfinite(largest)) w->finite = 0;
}

static void integers(struct work *w, float *out) {
    int most = w->c->wire == RG_WIRE_I8 ? 127 : w->c->wire == RG_WIRE_I4 ? 7 : 1, one = w->c->wire == RG_WIRE_TERNARY;
    float s = w->c->scale;
    if (one && s == 0.0f) s = scale_for(w, 0, slice_at(w, w->n), most);
    for (uint32_t t = 0; t < w->n; t++) {
        float *to = w->c->kind == QUANT_ALL_REDUCE ? out + slice_at(w, t) : t == w->me ? out : w->sum;
        for (uint64_t at = slice_at(w, t), end = slice_at(w, t + 1), n; at < end; at += n, to += n) {
            n = end - at < 256 ? end - at : 256;
            if (one) top_of(w, at, n); /* for what is not finite */
            block_of(w, at, n, one ? s : scale_for(w, at, n, most), most, to);
        }
    }
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static void gathered(struct work *w, float *out) {
    uint64_t n = w->c->count;
    for (uint32_t r = 0; r < w->n; r++) {
        said(w, r, 0, n * r, w->who[r].m, n, w->dec);
        memcpy(out + n * r, w->dec, n * sizeof *out);
        keep(w, r, 0, w->who[r].m, n);
    }
}

static void reduced(struct work *w, float *out) {
    for (uint32_t t = 0; t < w->n; t++) {
        uint64_t at = slice_at(w, t), n = slice_len(w, t);
        uint64_t op = w->c->form == RG_QUANT_RING        ? ring(w, t)
                      : w->c->form == RG_QUANT_TWO_LEVEL ? two_level(w, t)
                                                         : direct(w, t);
        average(w, t);
        if (w->c->kind == QUANT_ALL_REDUCE) said(w, t, op, at, w->sum, n, out + at);
        else if (t == w->me) memcpy(out, w->sum, n * sizeof *out);
    }
}

rg_status_t quant_reference(const struct quant_call *c, uint32_t n, const struct quant_member *who, uint32_t me,
                            float *out, float *kept) {
    struct work w = { .c = c, .n = n, .me = me, .who = who, .kept = kept, .finite = 1 };
    size_t room = ((size_t)c->count + 1) * sizeof(float);
    w.sum = malloc(room), w.host = malloc(room), w.dec = malloc(room), w.wire = malloc(2 * room + 64);
    if (w.sum && w.host && w.dec && w.wire) {
        memset(w.dec, 0, room);
        if (c->kind == QUANT_ALL_GATHER) gathered(&w, out);
        else if (c->form == RG_QUANT_INTEGER) integers(&w, out);
        else reduced(&w, out);
    }
    free(w.sum), free(w.host), free(w.dec), free(w.wire);
    return w.finite ? RG_OK : RG_ERR_INVALID;
}
