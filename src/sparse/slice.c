/* slice.c: parts of lists as they travel: which form is fewest bytes, writing it, and reading it window by window.
 * Distances between elements, as Golomb and Rice write them (some bits as they are, the rest as so many ones and a
 * zero), are never more bytes than indices of 12, 16 or 32 bits, whatever lies how. What is read may come from
 * anywhere: nothing outside of the bytes is read, nothing outside of a window written. */
#include "sparse/list.h"

#include <string.h>

#define SHIFT_MOST 48u

static uint64_t per(uint64_t n, uint64_t each) { return n / each + (n % each != 0); }

uint64_t rg_part_values(const rg_part_t *p) {
    return p->q != NULL ? rg_quant_bytes(p->q->wire, p->k) : p->k * p->width;
}

/* ---- The choice -------------------------------------------------------------------------------------------------- */

/* With the better of two shifts: about the mean distance. */
static rg_slice_t rice(const rg_part_t *p) {
    uint32_t high = 0;
    while ((p->len / p->k) >> high > 1) high++;
    uint32_t low = high != 0 ? high - 1 : 0;
    uint64_t ones_high = 0, ones_low = 0, from = p->base;
    for (uint64_t i = 0; i < p->k; i++) {
        uint64_t gap = p->at[i] - from;
        ones_high += gap >> high;
        ones_low += gap >> low;
        from = p->at[i] + 1;
    }
    uint64_t bits_high = p->k * (high + 1) + ones_high, bits_low = p->k * (low + 1) + ones_low;
    rg_slice_t s = { RG_SLICE_RICE, bits_low < bits_high ? low : high, 0 };
    s.bytes = 1 + per(bits_low < bits_high ? bits_low : bits_high, 8) + rg_part_values(p);
    return s;
}

static uint64_t bitmap_bytes(const rg_part_t *p) { return per(p->len, 8) + rg_part_values(p); }
static uint64_t blocks_bytes(const rg_part_t *p) { return per(per(p->len, p->block), 8) + rg_part_values(p); }

int rg_part_in_blocks(const rg_part_t *p) {
    uint64_t there = 0, last = UINT64_MAX;
    if (p->block == 0) return 0;
    for (uint64_t i = 0; i < p->k; i++) {
        uint64_t b = (p->at[i] - p->base) / p->block;
        if (b == last) continue;
        uint64_t first = b * p->block;
        there += p->len - first < p->block ? p->len - first : p->block;
        last = b;
    }
    return there == p->k;
}

/* Whether no value looks like one that is not there. Among values of a wire form there is no mark for that. */
static int no_marks(const rg_part_t *p) {
    uint64_t marks = 0;
    if (p->q != NULL) return p->k == p->len;
    if (p->width == 4) {
        for (uint64_t i = 0; i < p->k; i++) {
            uint32_t u;
            memcpy(&u, p->val + 4 * i, sizeof u);
            marks += u == UINT32_MAX;
        }
    } else {
        for (uint64_t i = 0; i < p->k; i++) {
            uint16_t u;
            memcpy(&u, p->val + 2 * i, sizeof u);
            marks += u == UINT16_MAX;
        }
    }
    return marks == 0;
}

static void better(rg_slice_t *best, rg_slice_kind_t kind, uint64_t bytes) {
    if (bytes < best->bytes) *best = (rg_slice_t){ kind, 0, bytes };
}

rg_slice_t rg_slice_choose(const rg_part_t *p, uint32_t allowed) {
    rg_slice_t best = { RG_SLICE_NONE, 0, 0 };
    if (p->k == 0) return best;
    uint64_t dense = p->q != NULL ? rg_part_values(p) : p->len * p->width;
    if (!(allowed & RG_SLICE_SPARSE)) {
        best = (rg_slice_t){ RG_SLICE_BITMAP, 0, bitmap_bytes(p) };
        return no_marks(p) ? (rg_slice_t){ RG_SLICE_DENSE, 0, dense } : best;
    }
    /* Where more than half are there, a distance takes a one or none for each element, and a zero: that is a bitmap. */
    best = (rg_slice_t){ RG_SLICE_BITMAP, 0, bitmap_bytes(p) };
    if (p->len / p->k >= 2) best = rice(p);
    if (bitmap_bytes(p) <= best.bytes) best = (rg_slice_t){ RG_SLICE_BITMAP, 0, bitmap_bytes(p) };
    if (rg_part_in_blocks(p)) better(&best, RG_SLICE_BLOCKS, blocks_bytes(p));
    if ((allowed & RG_SLICE_ONLY_DENSE) && dense < best.bytes && no_marks(p)) better(&best, RG_SLICE_DENSE, dense);
    return best;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static void set_bit(uint8_t *p, uint64_t i) { p[i / 8] = (uint8_t)(p[i / 8] | 1u << i % 8); }

/* The memory is zero. */
static void write_rice(const rg_part_t *p, uint32_t shift, uint8_t *to) {
    uint64_t bit = 0, from = p->base;
    to[0] = (uint8_t)shift;
    to++;
    for (uint64_t i = 0; i < p->k; i++) {
        uint64_t gap = p->at[i] - from, ones = gap >> shift, rest = gap & ((1ull << shift) - 1);
        for (; ones != 0; ones--) set_bit(to, bit++);
        bit++;
        for (uint32_t done = 0; done < shift;) {
            uint32_t room = 8 - (uint32_t)(bit % 8), some = shift - done < room ? shift - done : room;
            to[bit / 8] = (uint8_t)(to[bit / 8] | (rest >> done & ((1u << some) - 1)) << bit % 8);
            done += some;
            bit += some;
        }
        from = p->at[i] + 1;
    }
}

int rg_slice_write(const rg_part_t *p, const rg_slice_t *s, uint8_t *to) {
    if (s->kind == RG_SLICE_NONE) return 1;
    uint64_t values = rg_part_values(p);
    if (s->kind == RG_SLICE_DENSE && p->q == NULL) {
        if (p->k != p->len) memset(to, 0xff, (size_t)s->bytes);
        if (p->k == p->len) memcpy(to, p->val, (size_t)s->bytes);
        else if (p->width == 4)
            for (uint64_t i = 0; i < p->k; i++) memcpy(to + 4 * (p->at[i] - p->base), p->val + 4 * i, 4);
        else
            for (uint64_t i = 0; i < p->k; i++) memcpy(to + 2 * (p->at[i] - p->base), p->val + 2 * i, 2);
        return 1;
    }
    memset(to, 0, (size_t)(s->bytes - values));
    if (s->kind == RG_SLICE_RICE) write_rice(p, s->shift, to);
    else if (s->kind != RG_SLICE_DENSE)
        for (uint64_t i = 0; i < p->k; i++)
            set_bit(to, (p->at[i] - p->base) / (s->kind == RG_SLICE_BLOCKS ? p->block : 1));
    to += s->bytes - values;
    if (p->q != NULL)
        return rg_quant_encode(p->q, p->op, p->first, (const float *)(const void *)p->val, p->k, to) == RG_OK;
    memcpy(to, p->val, (size_t)values);
    return 1;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* The bits from c->bit on, at least 57 of them, zeroes behind the end. */
static uint64_t peek(const rg_cursor_t *c) {
    uint64_t byte = c->bit / 8, have = per(c->bits_len, 8), u = 0;
    if (byte < have) memcpy(&u, c->bits + byte, have - byte < 8 ? (size_t)(have - byte) : 8);
    return u >> c->bit % 8;
}

/* Finds where the next element is. */
static void advance(rg_cursor_t *c, uint64_t from) {
    uint64_t ones = 0;
    c->next = c->len;
    if (c->left == 0) return;
    for (;;) {
        uint64_t u = ~peek(c);
        uint32_t some = u != 0 ? (uint32_t)__builtin_ctzll(u) : 64;
        if (some > 56) some = 56;
        ones += some;
        c->bit += some;
        if (some < 56) break;
    }
    c->bit++;
    uint64_t rest = peek(c) & ((1ull << c->shift) - 1);
    c->bit += c->shift;
    if (c->bit > c->bits_len || ones > c->len >> c->shift || (ones << c->shift | rest) >= c->len - from) c->bad = 1;
    else c->next = from + (ones << c->shift | rest);
}

void rg_cursor_open(rg_cursor_t *c, const rg_part_t *p, rg_slice_kind_t kind, const uint8_t *bytes, uint64_t n,
                    const rg_casts_t *casts) {
    *c = (rg_cursor_t){ .kind = kind, .casts = casts, .bits = bytes, .base = p->base, .len = p->len, .left = p->k };
    uint64_t values = kind == RG_SLICE_LIST ? 0 : rg_part_values(p), want = n;
    c->block = p->block;
    c->bad = p->k > p->len || (kind != RG_SLICE_LIST && (p->k == 0) != (kind == RG_SLICE_NONE));
    if (kind == RG_SLICE_NONE) want = 0;
    if (kind == RG_SLICE_BITMAP) want = per(p->len, 8) + values;
    if (kind == RG_SLICE_BLOCKS) want = p->block != 0 ? blocks_bytes(p) : n + 1;
    if (kind == RG_SLICE_DENSE) want = p->q == NULL ? p->len * casts->width : p->k == p->len ? values : n + 1;
    if (kind == RG_SLICE_RICE && n < 1 + values) want = n + 1;
    if (kind < RG_SLICE_NONE || kind > RG_SLICE_LIST || want != n) c->bad = 1;
    if (kind == RG_SLICE_LIST) {
        c->at = p->at;
        c->val = p->val;
        c->bad = 0;
    }
    if (c->bad || kind == RG_SLICE_NONE || kind == RG_SLICE_LIST) return;
    c->val = kind == RG_SLICE_DENSE ? bytes : bytes + (n - values);
    if (p->q != NULL) {
        rg_quant_decode(p->q->wire, c->val, p->k, p->room);
        c->val = (const uint8_t *)p->room;
    }
    if (kind != RG_SLICE_RICE) return;
    c->shift = bytes[0];
    c->bits = bytes + 1;
    c->bits_len = 8 * (n - 1 - values);
    if (c->shift > SHIFT_MOST) c->bad = 1;
    else advance(c, 0);
}

uint64_t rg_cursor_next(const rg_cursor_t *c) {
    if (c->bad || c->left == 0) return c->len;
    if (c->kind == RG_SLICE_RICE) return c->next;
    if (c->kind == RG_SLICE_LIST) return *c->at - c->base;
    return 0;
}

/* Takes the values of the elements that `has` now says are there. */
static void take(rg_cursor_t *c, uint32_t many, uint32_t len, rg_window_t *win) {
    float v[RG_WINDOW];
    if (many > c->left) {
        c->bad = 1;
        memset(win->has, 0, sizeof win->has);
        return;
    }
    if (many == 0) return;
    rg_red_copy(&c->casts->in, many == len ? win->v : v, c->val, many);
    c->val += (uint64_t)many * c->casts->width;
    c->left -= many;
    if (many == len) return;
    uint32_t k = 0;
    for (uint32_t j = 0; j < (len + 63) / 64; j++) {
        if (win->has[j] == UINT64_MAX) {
            memcpy(win->v + 64 * j, v + k, 64 * sizeof *v);
            k += 64;
            continue;
        }
        for (uint64_t b = win->has[j]; b != 0; b &= b - 1) win->v[64 * j + (uint32_t)__builtin_ctzll(b)] = v[k++];
    }
}

/* Elements that are told one by one. */
static uint32_t listed(rg_cursor_t *c, uint64_t first, uint32_t len, rg_window_t *win) {
    uint32_t many = 0;
    while (!c->bad && c->left > many) {
        uint64_t at = c->kind == RG_SLICE_LIST ? *c->at - c->base : c->next;
        if (at >= first + len) break;
        at -= first;
        win->has[at / 64] |= 1ull << at % 64;
        many++;
        if (c->kind == RG_SLICE_LIST) {
            c->at++;
        } else {
            c->left -= many; /* so that the last one is known */
            advance(c, first + at + 1);
            c->left += many;
        }
    }
    return many;
}

static uint32_t mapped(const rg_cursor_t *c, uint64_t first, uint32_t len, rg_window_t *win) {
    uint32_t many = 0;
    for (uint32_t j = 0; j < (len + 63) / 64; j++) {
        uint64_t u = 0, at = first / 8 + 8 * (uint64_t)j, end = per(c->len, 8);
        memcpy(&u, c->bits + at, end - at < 8 ? (size_t)(end - at) : 8);
        if (len - 64 * j < 64) u &= (1ull << (len - 64 * j)) - 1;
        win->has[j] = u;
        many += (uint32_t)__builtin_popcountll(u);
    }
    return many;
}

static uint32_t blocked(const rg_cursor_t *c, uint64_t first, uint32_t len, rg_window_t *win) {
    uint32_t many = 0;
    for (uint32_t i = 0; i < len; i += c->block) {
        uint64_t b = (first + i) / c->block;
        if (!(c->bits[b / 8] >> b % 8 & 1)) continue;
        for (uint32_t k = i; k < i + c->block && k < len; k++, many++) win->has[k / 64] |= 1ull << k % 64;
    }
    return many;
}

/* All values are there, marked ones among them. */
static void dense(rg_cursor_t *c, uint64_t first, uint32_t len, rg_window_t *win) {
    const uint8_t *p = c->val + first * c->casts->width;
    uint64_t many = 0;
    rg_red_copy(&c->casts->in, win->v, p, len);
    for (uint32_t j = 0; j < (len + 63) / 64; j++) {
        uint32_t some = len - 64 * j < 64 ? len - 64 * j : 64;
        uint64_t word = 0;
        for (uint32_t i = 0; i < some; i++) {
            uint32_t u = UINT32_MAX;
            if (c->casts->width == 4) memcpy(&u, p + 4 * (64 * j + i), 4);
            else memcpy(&u, p + 2 * (64 * j + i), 2);
            word |= (uint64_t)(u != UINT32_MAX) << i;
        }
        win->has[j] = word;
        many += (uint32_t)__builtin_popcountll(word);
    }
    if (many > c->left) c->bad = 1;
    else c->left -= many;
}

void rg_cursor_window(rg_cursor_t *c, uint64_t first, uint32_t len, rg_window_t *win) {
    memset(win->has, 0, sizeof win->has);
    if (c->bad || c->left == 0) return;
    if (c->kind == RG_SLICE_RICE || c->kind == RG_SLICE_LIST) take(c, listed(c, first, len, win), len, win);
    else if (c->kind == RG_SLICE_BITMAP) take(c, mapped(c, first, len, win), len, win);
    else if (c->kind == RG_SLICE_BLOCKS) take(c, blocked(c, first, len, win), len, win);
    else dense(c, first, len, win);
}

int rg_cursor_good(const rg_cursor_t *c) { return !c->bad && c->left == 0; }
