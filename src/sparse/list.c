/* list.c: lists in the caller's forms: checks, the places of their elements, writing them window by window, from and to
 * dense vectors. What is read is the caller's and is believed in nothing but where its memory is. */
#include "sparse/list.h"

#include "observe/log.h"

#include <stdlib.h>
#include <string.h>

#define N_MOST (1ull << 48)

int rg_casts_init(rg_casts_t *c, rg_dtype_t dtype) {
    if (dtype != RG_F32 && dtype != RG_BF16 && dtype != RG_F16) return 0;
    c->width = (uint32_t)rg_dtype_size(dtype);
    return rg_red_init(&c->in, dtype, RG_SUM, 1, RG_RED_DST_ACC) == RG_OK &&
           rg_red_init(&c->out, dtype, RG_SUM, 1, RG_RED_A_ACC) == RG_OK;
}

const char *rg_flaw_text(rg_flaw_t flaw) {
    switch (flaw) {
    case RG_FLAW_FORM: return "an unknown form of indices, type or block, or more elements than the form can tell";
    case RG_FLAW_NULL: return "values, but no memory where indices or values are";
    case RG_FLAW_ORDER: return "indices that do not ascend, each once";
    case RG_FLAW_RANGE: return "an index beyond the end of the vector";
    case RG_FLAW_COUNT: return "counts or bits that do not come to the number of values";
    case RG_FLAW_MEMORY: return "no memory";
    case RG_FLAW_ROOM: return "no room for a dense result";
    case RG_FLAW_REST:
        return "a rest that is no list of the same length and type, is of blocks, or has room for fewer values than "
               "the input has";
    case RG_FLAW_TYPE: return "values that are not quantised on their way: those of float32 are";
    case RG_FLAW_FINITE: return "a value that is not finite; RG_QUANT_SATURATE would replace it";
    case RG_FLAW_BYTES: return "received what no member of this version sends";
    default: return "nothing wrong";
    }
}

uint32_t rg_sparse_block(const rg_sparse_t *s) { return s->block != 0 ? s->block : 256; }

static uint64_t per(uint64_t n, uint64_t each) { return n / each + (n % each != 0); }

uint64_t rg_sparse_index_bytes(rg_index_t index, uint32_t block, uint64_t n, uint64_t values) {
    switch (index) {
    case RG_INDEX_U32: return 4 * values;
    case RG_INDEX_U64: return 8 * values;
    case RG_INDEX_U16: return 4 * per(n, 65536) + 2 * values;
    case RG_INDEX_U12: return 2 * per(n, 4096) + per(12 * values, 8);
    case RG_INDEX_BITMAP: return per(n, 8);
    case RG_INDEX_BLOCKS: return per(per(n, block != 0 ? block : 256), 8);
    default: return 0;
    }
}

rg_flaw_t rg_list_form(const rg_sparse_t *s) {
    rg_casts_t casts;
    if (s->index < RG_INDEX_U32 || s->index > RG_INDEX_DENSE || !rg_casts_init(&casts, s->dtype) || s->n > N_MOST)
        return RG_FLAW_FORM;
    uint32_t block = rg_sparse_block(s);
    if (s->index == RG_INDEX_BLOCKS && (block > RG_WINDOW || (block & (block - 1)) != 0)) return RG_FLAW_FORM;
    if (s->index == RG_INDEX_U32 && s->n > 1ull << 32) return RG_FLAW_FORM;
    if (s->values > s->n || (s->index == RG_INDEX_DENSE && s->values != s->n)) return RG_FLAW_COUNT;
    if (s->values != 0 && s->val == NULL) return RG_FLAW_NULL;
    if (s->idx == NULL && rg_sparse_index_bytes(s->index, s->block, s->n, s->values) != 0) return RG_FLAW_NULL;
    return RG_FLAW_NONE;
}

/* ---- Places ------------------------------------------------------------------------------------------------------ */

static rg_flaw_t ascending(const rg_sparse_t *s, const uint64_t *at) {
    for (uint64_t i = 0; i < s->values; i++) {
        if (at[i] >= s->n) return RG_FLAW_RANGE;
        if (i != 0 && at[i] <= at[i - 1]) return RG_FLAW_ORDER;
    }
    return RG_FLAW_NONE;
}

static uint32_t get_12(const uint8_t *w, uint64_t i) {
    w += i / 2 * 3;
    return i % 2 ? (uint32_t)w[1] >> 4 | (uint32_t)w[2] << 4 : (uint32_t)w[0] | ((uint32_t)w[1] & 15) << 8;
}

/* Of chunks of 65536 or of 4096. */
static rg_flaw_t chunked(const rg_sparse_t *s, uint64_t *at) {
    int small = s->index == RG_INDEX_U12;
    uint64_t each = small ? 4096 : 65536, chunks = per(s->n, each), have = 0;
    const uint8_t *counts = s->idx, *low = counts + chunks * (small ? 2 : 4);
    for (uint64_t c = 0; c < chunks; c++) {
        uint32_t many = 0;
        memcpy(&many, counts + c * (small ? 2 : 4), small ? 2 : 4);
        if (many > each || many > s->values - have) return RG_FLAW_COUNT;
        for (uint32_t i = 0; i < many; i++, have++) {
            uint16_t wide = 0;
            if (!small) memcpy(&wide, low + 2 * have, sizeof wide);
            at[have] = c * each + (small ? get_12(low, have) : wide);
        }
    }
    return have != s->values ? RG_FLAW_COUNT : ascending(s, at);
}

/* Of bits that stand for `each` elements. */
static rg_flaw_t bits(const rg_sparse_t *s, uint64_t each, uint64_t *at) {
    uint64_t many = per(s->n, each), have = 0;
    const uint8_t *p = s->idx;
    for (uint64_t i = 0; i < 8 * per(many, 8); i++) {
        if (i % 8 == 0 && p[i / 8] == 0) {
            i += 7;
            continue;
        }
        if (!(p[i / 8] >> i % 8 & 1)) continue;
        if (i >= many) return RG_FLAW_RANGE;
        uint64_t first = i * each, len = s->n - first < each ? s->n - first : each;
        if (len > s->values - have) return RG_FLAW_COUNT;
        for (uint64_t k = 0; k < len; k++) at[have++] = first + k;
    }
    return have != s->values ? RG_FLAW_COUNT : RG_FLAW_NONE;
}

rg_flaw_t rg_list_places(const rg_sparse_t *s, uint64_t *at) {
    const uint8_t *p = s->idx;
    switch (s->index) {
    case RG_INDEX_U32:
        for (uint64_t i = 0; i < s->values; i++) {
            uint32_t v;
            memcpy(&v, p + 4 * i, sizeof v);
            at[i] = v;
        }
        return ascending(s, at);
    case RG_INDEX_U64:
        if (s->values != 0) memcpy(at, p, (size_t)s->values * sizeof *at);
        return ascending(s, at);
    case RG_INDEX_U16:
    case RG_INDEX_U12: return chunked(s, at);
    case RG_INDEX_BITMAP: return bits(s, 1, at);
    case RG_INDEX_BLOCKS: return bits(s, rg_sparse_block(s), at);
    default:
        for (uint64_t i = 0; i < s->n; i++) at[i] = i;
        return RG_FLAW_NONE;
    }
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

void rg_writer_begin(rg_writer_t *w, rg_sparse_t *s, const rg_casts_t *casts) {
    *w = (rg_writer_t){ .s = s, .casts = casts };
    uint64_t clear = 0;
    if (s->index == RG_INDEX_BITMAP || s->index == RG_INDEX_BLOCKS)
        clear = rg_sparse_index_bytes(s->index, s->block, s->n, 0);
    if (s->index == RG_INDEX_U16 || s->index == RG_INDEX_U12) clear = rg_sparse_index_bytes(s->index, 0, s->n, 0);
    if (clear != 0) memset(s->idx, 0, (size_t)clear);
}

static void put_12(uint8_t *w, uint64_t i, uint32_t v) {
    w += i / 2 * 3;
    if (i % 2) {
        w[1] = (uint8_t)(w[1] | v << 4);
        w[2] = (uint8_t)(v >> 4);
    } else {
        w[0] = (uint8_t)v;
        w[1] = (uint8_t)(v >> 8);
    }
}

/* Where value number i belongs. */
static void put_place(const rg_sparse_t *s, uint64_t i, uint64_t at) {
    uint8_t *p = s->idx;
    if (s->index == RG_INDEX_U32) {
        uint32_t v = (uint32_t)at;
        memcpy(p + 4 * i, &v, sizeof v);
    } else if (s->index == RG_INDEX_U64) {
        memcpy(p + 8 * i, &at, sizeof at);
    } else if (s->index == RG_INDEX_U16) {
        uint32_t many;
        uint16_t low = (uint16_t)at;
        uint8_t *count = p + 4 * (at / 65536);
        memcpy(&many, count, sizeof many);
        many++;
        memcpy(count, &many, sizeof many);
        memcpy(p + 4 * per(s->n, 65536) + 2 * i, &low, sizeof low);
    } else if (s->index == RG_INDEX_U12) {
        uint16_t many;
        uint8_t *count = p + 2 * (at / 4096);
        memcpy(&many, count, sizeof many);
        many++;
        memcpy(count, &many, sizeof many);
        put_12(p + 2 * per(s->n, 4096), i, at % 4096);
    } else {
        uint64_t bit = s->index == RG_INDEX_BLOCKS ? at / rg_sparse_block(s) : at;
        p[bit / 8] = (uint8_t)(p[bit / 8] | 1u << bit % 8);
    }
}

/* Of blocks of which an element is there, all are. */
static void whole_blocks(uint32_t block, uint32_t len, const rg_window_t *from, rg_window_t *to) {
    memset(to->has, 0, sizeof to->has);
    for (uint32_t i = 0; i < len; i += block) {
        uint32_t m = len - i < block ? len - i : block, any = 0;
        for (uint32_t k = i; k < i + m; k++) {
            uint32_t is = from->has[k / 64] >> k % 64 & 1;
            any |= is;
            to->v[k] = is ? from->v[k] : 0.0f;
        }
        for (uint32_t k = i; any && k < i + m; k++) to->has[k / 64] |= 1ull << k % 64;
    }
}

uint32_t rg_window_values(uint32_t block, uint32_t len, const rg_window_t *win) {
    rg_window_t whole;
    uint32_t many = 0;
    if (block != 0) {
        whole_blocks(block, len, win, &whole);
        win = &whole;
    }
    for (uint32_t j = 0; j < (len + 63) / 64; j++) many += (uint32_t)__builtin_popcountll(win->has[j]);
    return many;
}

void rg_writer_window(rg_writer_t *w, uint64_t first, uint32_t len, const rg_window_t *win) {
    rg_sparse_t *s = w->s;
    rg_window_t whole;
    float v[RG_WINDOW];
    uint32_t many = 0;
    if (w->elements != NULL) w->elements[first / RG_WINDOW] = rg_window_values(0, len, win);
    if (s->index == RG_INDEX_DENSE) {
        for (uint32_t i = 0; i < len; i++) v[i] = win->has[i / 64] >> i % 64 & 1 ? win->v[i] : 0.0f;
        many = len;
    } else {
        if (s->index == RG_INDEX_BLOCKS) {
            whole_blocks(rg_sparse_block(s), len, win, &whole);
            win = &whole;
        }
        for (uint32_t j = 0; j < (len + 63) / 64; j++)
            for (uint64_t b = win->has[j]; b != 0; b &= b - 1) {
                uint32_t i = j * 64 + (uint32_t)__builtin_ctzll(b);
                put_place(s, w->have + many, first + i);
                v[many++] = win->v[i];
            }
    }
    if (many != 0) rg_red_copy(&w->casts->out, (uint8_t *)s->val + w->have * w->casts->width, v, many);
    w->have += many;
}

void rg_writer_end(rg_writer_t *w) { w->s->values = w->have; }

/* ---- From and to dense vectors ----------------------------------------------------------------------------------- */

rg_status_t rg_sparse_check(const rg_sparse_t *s, rg_error_t *err) {
    if (s == NULL || s->size != sizeof *s)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_sparse_check: the list is not initialised: use RG_SPARSE_INIT");
    rg_flaw_t flaw = rg_list_form(s);
    if (flaw == RG_FLAW_NONE) {
        uint64_t *at = malloc((s->values != 0 ? (size_t)s->values : 1) * sizeof *at);
        if (at == NULL) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_sparse_check: no memory");
        flaw = rg_list_places(s, at);
        free(at);
    }
    if (flaw == RG_FLAW_NONE) return RG_OK;
    return rg_fail(err, RG_ERR_INVALID, 0, "a list has %s", rg_flaw_text(flaw));
}

/* The elements of a window that are not zero. */
static void not_zero(const float *v, uint32_t len, rg_window_t *win) {
    memset(win->has, 0, sizeof win->has);
    for (uint32_t i = 0; i < len; i++)
        if (v[i] != 0.0f) win->has[i / 64] |= 1ull << i % 64;
    memcpy(win->v, v, len * sizeof *v);
}

/* Goes over x; without a writer only counts what there is. */
static uint64_t pass(const uint8_t *x, const rg_sparse_t *s, const rg_casts_t *casts, rg_writer_t *w) {
    rg_window_t win;
    float v[RG_WINDOW];
    uint64_t all = 0;
    for (uint64_t first = 0; first < s->n; first += RG_WINDOW) {
        uint32_t len = s->n - first < RG_WINDOW ? (uint32_t)(s->n - first) : RG_WINDOW;
        rg_red_copy(&casts->in, v, x + first * casts->width, len);
        not_zero(v, len, &win);
        if (w != NULL) rg_writer_window(w, first, len, &win);
        if (s->index == RG_INDEX_DENSE) all += len;
        else all += rg_window_values(s->index == RG_INDEX_BLOCKS ? rg_sparse_block(s) : 0, len, &win);
    }
    return all;
}

rg_status_t rg_sparse_from_dense(const void *x, rg_sparse_t *s, rg_error_t *err) {
    rg_casts_t casts;
    rg_writer_t w;
    if (s == NULL || s->size != sizeof *s)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_sparse_from_dense: the list is not initialised: use RG_SPARSE_INIT");
    rg_sparse_t form = *s;
    form.values = s->index == RG_INDEX_DENSE ? s->n : s->values < s->n ? s->values : s->n;
    rg_flaw_t flaw = x == NULL && s->n != 0 ? RG_FLAW_NULL : rg_list_form(&form);
    if (flaw != RG_FLAW_NONE)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_sparse_from_dense: the list has %s", rg_flaw_text(flaw));
    rg_casts_init(&casts, s->dtype);
    uint64_t need = pass(x, s, &casts, NULL), room = s->values;
    if (need > room) {
        s->values = need;
        return rg_fail(err, RG_ERR_CAPACITY, 0, "rg_sparse_from_dense: %llu values, and room for %llu",
                       (unsigned long long)need, (unsigned long long)room);
    }
    rg_writer_begin(&w, s, &casts);
    pass(x, s, &casts, &w);
    rg_writer_end(&w);
    return RG_OK;
}

rg_status_t rg_sparse_to_dense(const rg_sparse_t *s, void *x, rg_error_t *err) {
    if (s == NULL || s->size != sizeof *s)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_sparse_to_dense: the list is not initialised: use RG_SPARSE_INIT");
    rg_flaw_t flaw = x == NULL && s->n != 0 ? RG_FLAW_NULL : rg_list_form(s);
    uint64_t *at = NULL;
    if (flaw == RG_FLAW_NONE) {
        at = malloc((s->values != 0 ? (size_t)s->values : 1) * sizeof *at);
        if (at == NULL) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_sparse_to_dense: no memory");
        flaw = rg_list_places(s, at);
    }
    if (flaw != RG_FLAW_NONE) {
        free(at);
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_sparse_to_dense: the list has %s", rg_flaw_text(flaw));
    }
    size_t width = rg_dtype_size(s->dtype);
    if (s->n != 0) memset(x, 0, (size_t)s->n * width);
    for (uint64_t i = 0; i < s->values; i++)
        memcpy((uint8_t *)x + at[i] * width, (const uint8_t *)s->val + i * width, width);
    free(at);
    return RG_OK;
}
