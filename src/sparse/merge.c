/* merge.c: brings together what all ranks have of a part of a vector, in the order of ranks for every element, window
 * by window, so that neither the form in which a part came nor the algorithm can change a bit of the result. Relies on
 * the cursors; allocates nothing. */
#include "sparse/list.h"
#include "sparse/topk.h"

#include <math.h>
#include <string.h>

/* What a window holds so far. */
typedef struct sums {
    uint64_t has[RG_WINDOW / 64];
    float v[RG_WINDOW];
    uint16_t count[RG_WINDOW], who[RG_WINDOW];
} sums_t;

/* NaN stays, and of equal ones the first. */
static float one(float a, float b, rg_sparse_op_t op) {
    if (op == RG_SPARSE_MAX) return isnan(a) || a >= b ? a : b;
    if (op == RG_SPARSE_MIN) return isnan(a) || a <= b ? a : b;
    return a + b;
}

/* 64 elements that both have, of sums. */
static void add_64(float *a, const float *b, uint16_t *count) {
    for (uint32_t i = 0; i < 64; i++) a[i] += b[i];
    for (uint32_t i = 0; i < 64; i++) count[i]++;
}

static void take_64(sums_t *s, uint32_t first, const float *b, uint16_t rank) {
    memcpy(s->v + first, b, 64 * sizeof *b);
    for (uint32_t i = first; i < first + 64; i++) s->count[i] = 1, s->who[i] = rank;
}

static void put_in(sums_t *s, const rg_window_t *w, uint32_t words, uint16_t rank, rg_sparse_op_t op) {
    for (uint32_t j = 0; j < words; j++) {
        uint64_t fresh = w->has[j] & ~s->has[j], both = w->has[j] & s->has[j];
        s->has[j] |= w->has[j];
        if (fresh == UINT64_MAX) {
            take_64(s, 64 * j, w->v + 64 * j, rank);
            continue;
        }
        if (both == UINT64_MAX && op < RG_SPARSE_MAX) {
            add_64(s->v + 64 * j, w->v + 64 * j, s->count + 64 * j);
            continue;
        }
        for (; fresh != 0; fresh &= fresh - 1) {
            uint32_t i = 64 * j + (uint32_t)__builtin_ctzll(fresh);
            s->v[i] = w->v[i];
            s->count[i] = 1;
            s->who[i] = rank;
        }
        for (; both != 0; both &= both - 1) {
            uint32_t i = 64 * j + (uint32_t)__builtin_ctzll(both);
            s->v[i] = one(s->v[i], w->v[i], op);
            s->count[i]++;
        }
    }
}

void rg_merge_alone(float *v, uint32_t n, rg_sparse_op_t op, uint32_t ranks) {
    if (op != RG_SPARSE_AVG_WORLD) return;
    for (uint32_t i = 0; i < n; i++) v[i] /= (float)ranks;
}

/* Appends a window to m; 0 when it is full. */
static int append(const sums_t *s, uint64_t first, uint32_t len, rg_sparse_op_t op, uint32_t ranks,
                  const rg_casts_t *casts, rg_merged_t *m) {
    float v[RG_WINDOW];
    uint32_t many = 0;
    for (uint32_t j = 0; j < (len + 63) / 64; j++) many += (uint32_t)__builtin_popcountll(s->has[j]);
    if (many > m->cap - m->n) return 0;
    uint64_t *at = m->at + m->n;
    uint16_t *who = m->who + m->n;
    many = 0;
    for (uint32_t j = 0; j < (len + 63) / 64; j++)
        for (uint64_t b = s->has[j]; b != 0; b &= b - 1) {
            uint32_t i = 64 * j + (uint32_t)__builtin_ctzll(b);
            at[many] = first + i;
            who[many] = s->count[i] == 1 ? s->who[i] : RG_SHARED;
            v[many++] = op == RG_SPARSE_AVG_OWNERS && s->count[i] > 1 ? s->v[i] / (float)s->count[i] : s->v[i];
        }
    rg_merge_alone(v, many, op, ranks);
    if (many != 0) rg_red_copy(&casts->out, m->val + m->n * casts->width, v, many);
    m->n += many;
    return 1;
}

int rg_merge(rg_cursor_t *cursors, uint32_t ranks, uint64_t base, uint64_t len, rg_sparse_op_t op,
             const rg_casts_t *casts, rg_merged_t *m) {
    sums_t s;
    rg_window_t w;
    for (uint64_t first = 0; first < len;) {
        uint64_t next = len;
        for (uint32_t r = 0; r < ranks; r++) {
            uint64_t at = rg_cursor_next(&cursors[r]);
            next = at < next ? at : next;
        }
        if (next / RG_WINDOW * RG_WINDOW > first) first = next / RG_WINDOW * RG_WINDOW;
        if (next >= len) break;
        uint32_t many = len - first < RG_WINDOW ? (uint32_t)(len - first) : RG_WINDOW;
        memset(s.has, 0, sizeof s.has);
        for (uint32_t r = 0; r < ranks; r++) {
            rg_cursor_window(&cursors[r], first, many, &w);
            put_in(&s, &w, (many + 63) / 64, (uint16_t)r, op);
        }
        if (!append(&s, base + first, many, op, ranks, casts, m)) return 0;
        first += many;
    }
    for (uint32_t r = 0; r < ranks; r++)
        if (!rg_cursor_good(&cursors[r])) return 0;
    return 1;
}

/* ---- The largest ------------------------------------------------------------------------------------------------- */

static uint32_t magnitudes(const rg_merged_t *m, const rg_casts_t *casts, uint32_t *mag) {
    float v[RG_WINDOW];
    uint32_t top = 0;
    for (uint64_t i = 0; i < m->n; i += RG_WINDOW) {
        uint32_t many = m->n - i < RG_WINDOW ? (uint32_t)(m->n - i) : RG_WINDOW;
        rg_red_copy(&casts->in, v, m->val + i * casts->width, many);
        uint32_t t = rg_topk_level()->magnitudes(v, many, mag + i);
        top = t > top ? t : top;
    }
    return top;
}

/* Bits of a magnitude that are settled at a time: 31 of them in three passes. */
#define DIGIT 11u

/* The k-th largest: its uppermost bits by counting how many have each, then the next among those that share them. */
uint32_t rg_threshold_wide(const uint32_t *mag, uint64_t n, uint64_t k) {
    uint64_t many[1u << DIGIT];
    uint32_t found = 0, settled = 0; /* the bits of the k-th largest that are known, and which they are */
    for (uint32_t shift = 3 * DIGIT; shift != 0;) {
        uint32_t digit = (1u << DIGIT) - 1;
        shift -= DIGIT;
        memset(many, 0, sizeof many);
        for (uint64_t i = 0; i < n; i++)
            if ((mag[i] & settled) == found) many[mag[i] >> shift & digit]++;
        while (digit != 0 && many[digit] < k) k -= many[digit--];
        found |= digit << shift;
        settled |= ((1u << DIGIT) - 1) << shift;
    }
    return found;
}

uint32_t rg_threshold(const uint32_t *mag, uint64_t n, uint64_t k, uint32_t top) {
    if (n > UINT32_MAX) return rg_threshold_wide(mag, n, k);
    return rg_topk_level()->threshold(mag, (uint32_t)n, (uint32_t)k, top);
}

void rg_merged_topk(rg_merged_t *m, uint64_t k, const rg_casts_t *casts, uint32_t *mag) {
    if (m->n <= k) return;
    if (k == 0) {
        m->n = 0;
        return;
    }
    uint32_t top = magnitudes(m, casts, mag), t = rg_threshold(mag, m->n, k, top);
    uint64_t above = 0, have = 0;
    for (uint64_t i = 0; i < m->n; i++) above += mag[i] > t;
    uint64_t equal = k - above;
    for (uint64_t i = 0; i < m->n; i++) {
        if (mag[i] < t || (mag[i] == t && equal == 0)) continue;
        equal -= mag[i] == t;
        m->at[have] = m->at[i];
        m->who[have] = m->who[i];
        memmove(m->val + have * casts->width, m->val + i * casts->width, casts->width);
        have++;
    }
    m->n = have;
}

void rg_merged_sample(const rg_merged_t *m, const rg_casts_t *casts, uint32_t *mag, uint32_t *samples) {
    memset(samples, 0, RG_SAMPLES * sizeof *samples);
    if (m->n == 0) return;
    uint32_t top = magnitudes(m, casts, mag);
    for (uint32_t i = 0; i < RG_SAMPLES; i++) samples[i] = rg_threshold(mag, m->n, rg_sample_reach(m->n, i), top);
}

void rg_merged_reaching(rg_merged_t *m, uint32_t least, const rg_casts_t *casts, uint32_t *mag) {
    uint64_t have = 0;
    for (uint64_t i = 0; i < m->n; i++) {
        if (mag[i] < least) continue;
        m->at[have] = m->at[i];
        m->who[have] = m->who[i];
        memmove(m->val + have * casts->width, m->val + i * casts->width, casts->width);
        have++;
    }
    m->n = have;
}
