/* api_buffers.c: from the pointers, counts, offsets, rows and lists of a call to the layouts of an operation: where its
 * elements are, whether it works in place, and what cannot be. Counts come from programs, so that every sum and product
 * is checked before it is used. It must not touch the buffers themselves. */
#include "api.h"

#include <stdlib.h>
#include <string.h>

#define BYTES_MAX ((uint64_t)INT64_MAX / 4)

static rg_status_t too_large(rg_request_t *op) {
    rg_group_set_errmsg(op->h, "%s: the counts add up to more than any memory", rg_kind_name((rg_kind_t)op->sig.kind));
    return RG_ERR_INVALID;
}

/* ---- Segments -------------------------------------------------------------------------------------------------- */

/* Where a segment without elements lies is no matter: programs have any number there. It comes after the one before. */
static uint64_t *copy_counts(uint64_t *to, const uint64_t *counts, const uint64_t *offs, uint32_t n) {
    memcpy(to + n, counts, n * sizeof *to);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t next = i ? to[i - 1] + counts[i - 1] : 0;
        to[i] = offs && counts[i] ? offs[i] : next;
    }
    return to + 2 * (size_t)n;
}

/* Two segments of a buffer that is written may not share an element. In ascending order neighbours tell. */
static int segments_overlap(const uint64_t *offs, const uint64_t *lens, uint32_t n) {
    int ascending = 1;
    for (uint32_t i = 1; i < n && ascending; i++) ascending = offs[i] >= offs[i - 1] + lens[i - 1];
    if (ascending) return 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++)
            if (lens[i] && lens[k] && offs[i] < offs[k] + lens[k] && offs[k] < offs[i] + lens[i]) return 1;
    return 0;
}

static rg_status_t sum_counts(rg_request_t *op, const uint64_t *counts, uint32_t n, uint64_t *sum) {
    *sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (__builtin_add_overflow(*sum, counts[i], sum) || *sum > BYTES_MAX) return too_large(op);
    return RG_OK;
}

static uint32_t hash_counts(uint32_t h, const uint64_t *counts, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint64_t x = (counts[i] + 1) * 0x9e3779b97f4a7c15u;
        h = (h ^ (uint32_t)(x >> 32)) * 16777619u;
    }
    return h;
}

/* The _v forms. Counts are equal on all members, but for all-to-all, where each pair has its own. */
static rg_status_t segments(rg_request_t *op, const rg_call_t *c, const rg_roster_t *r) {
    uint32_t n = r->n;
    const uint64_t *offs = rg_kind_rooted(c->kind) && r->rank != c->root ? NULL : c->offs; /* else not to be read */
    int both = c->kind == RG_KIND_ALL_TO_ALL;
    uint64_t sum, in_sum = 0;
    if (!c->counts || (both && !c->in_counts)) {
        rg_group_set_errmsg(op->h, "%s_v: counts is NULL; it has an entry for each of the %u members",
                            rg_kind_name(c->kind), n);
        return RG_ERR_INVALID;
    }
    uint64_t *nums = rg_op_nums(op, (both ? 4 : 2) * (size_t)n);
    if (!nums) return RG_ERR_NOMEM;
    rg_status_t st = sum_counts(op, c->counts, n, &sum);
    if (st == RG_OK && both) st = sum_counts(op, c->in_counts, n, &in_sum);
    if (st != RG_OK) return st;
    uint64_t *next = copy_counts(nums, c->counts, offs, n);
    op->offs = nums;
    op->lens = nums + n;
    if (both) {
        copy_counts(next, c->in_counts, c->in_offs, n);
        op->in_offs = next;
        op->in_lens = next + n;
    }
    op->sig.count = both ? 0 : sum;
    op->sig.variant = both ? op->sig.variant ^ 0x5a5a5a5au : hash_counts(op->sig.variant, c->counts, n);
    return RG_OK;
}

/* ---- Rows and lists -------------------------------------------------------------------------------------------- */

/* Describes one buffer of `elems` elements; bytes: from its first to its last one. */
static rg_status_t rows(rg_request_t *op, rg_layout_t *l, const void *base, const rg_strided_t *s, uint64_t elems,
                        const char *name, uint64_t *bytes) {
    uint64_t last, end;
    rg_layout_plain(l, base, op->elem);
    if (__builtin_mul_overflow(elems, (uint64_t)op->elem, bytes) || *bytes > BYTES_MAX) return too_large(op);
    if (!s || !elems) return RG_OK;
    if (!s->row_elems || s->pitch_elems < s->row_elems) {
        rg_group_set_errmsg(op->h,
                            "%s_strided: rows of %llu elements %llu apart; a row has at least one element, and the "
                            "pitch is at least a row",
                            name, (unsigned long long)s->row_elems, (unsigned long long)s->pitch_elems);
        return RG_ERR_INVALID;
    }
    if (elems <= s->row_elems || s->row_elems == s->pitch_elems) return RG_OK; /* one piece after all */
    last = elems - 1;
    if (__builtin_mul_overflow(last / s->row_elems, s->pitch_elems, &end) ||
        __builtin_add_overflow(end, last % s->row_elems + 1, &end) ||
        __builtin_mul_overflow(end, (uint64_t)op->elem, bytes) || *bytes > BYTES_MAX)
        return too_large(op);
    l->kind = RG_LAYOUT_ROWS;
    l->row = s->row_elems;
    l->pitch = s->pitch_elems;
    return RG_OK;
}

typedef struct extent {
    uintptr_t from, to;
    uint32_t is_out, index;
} extent_t;

static int by_address(const void *a, const void *b) {
    const extent_t *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* How far pair i of a list is in place: 0, 1, or -1 when neither buffer has elements. */
static int list_in_place(const rg_call_t *c, uint32_t i, uint32_t elem, uint32_t rank) {
    uint64_t at = rank * c->list_counts[i] * elem;
    const uint8_t *in = c->ins[i], *out = c->outs[i];
    if (!c->list_counts[i]) return -1;
    if (c->kind == RG_KIND_ALL_GATHER) return in == out + at;
    if (c->kind == RG_KIND_REDUCE_SCATTER) return out == in + at;
    return in == out;
}

/* No two buffers of a list may share a byte, but for a pair that is in place. */
static rg_status_t list_overlap(rg_request_t *op, const rg_call_t *c, uint32_t rank, uint64_t in_segs,
                                uint64_t out_segs) {
    extent_t *e = malloc((2 * (size_t)c->n + 1) * sizeof *e);
    uint32_t k = 0;
    if (!e) return RG_ERR_NOMEM;
    for (uint32_t i = 0; i < c->n; i++) {
        uintptr_t in = (uintptr_t)c->ins[i], out = (uintptr_t)c->outs[i];
        uint64_t one = c->list_counts[i] * op->elem;
        if (!one) continue;
        uintptr_t in_end = in + one * in_segs, out_end = out + one * out_segs;
        if (list_in_place(c, i, op->elem, rank) == 1) { /* the larger one stands for both, and is written */
            e[k++] = in_segs > out_segs ? (extent_t){ in, in_end, 1, i } : (extent_t){ out, out_end, 1, i };
            continue;
        }
        e[k++] = (extent_t){ in, in_end, 0, i };
        e[k++] = (extent_t){ out, out_end, 1, i };
    }
    qsort(e, k, sizeof *e, by_address);
    /* Those before that reach farthest: of all, and of what is written. Two that are only read may overlap. */
    uint32_t any = 0, written = k, with = k, i;
    for (i = 0; i < k && with == k; i++) {
        if (i && e[i].is_out && e[i].from < e[any].to) with = any;
        if (written < k && e[i].from < e[written].to) with = written;
        if (with < k) break;
        if (e[i].to > e[any].to) any = i;
        if (e[i].is_out && (written == k || e[i].to > e[written].to)) written = i;
    }
    if (with < k)
        rg_group_set_errmsg(op->h, "buffers %u and %u of the list overlap; only a pair of in and out may, in place",
                            e[with].index, e[i].index);
    free(e);
    return with < k ? RG_ERR_INVALID : RG_OK;
}

static void list_layout(rg_layout_t *l, uint32_t elem, const rg_call_t *c, const uint64_t *starts, void **ptrs) {
    *l = (rg_layout_t){ .kind = RG_LAYOUT_LIST,
                        .elem = elem,
                        .n = c->n,
                        .seg = starts[c->n],
                        .starts = starts,
                        .ptrs = (uint8_t *const *)ptrs };
}

/* The forms over a list: where buffers have segments, the line of elements goes segment by segment, and in each from
 * buffer to buffer. */
static rg_status_t list(rg_request_t *op, const rg_call_t *c, const rg_roster_t *r) {
    uint64_t in_segs = c->kind == RG_KIND_REDUCE_SCATTER ? r->n : 1,
             out_segs = c->kind == RG_KIND_ALL_GATHER ? r->n : 1;
    uint64_t sum, all;
    uint64_t *starts = rg_op_nums(op, (size_t)c->n + 1);
    void **ptrs = rg_op_ptrs(op, 2 * (size_t)c->n + 1);
    if (!starts || !ptrs) return RG_ERR_NOMEM;
    if (c->n && (!c->list_counts || !c->ins || !c->outs)) {
        rg_group_set_errmsg(op->h, "%s_list: an array is NULL and n is not 0", rg_kind_name(c->kind));
        return RG_ERR_INVALID;
    }
    rg_status_t st = sum_counts(op, c->list_counts, c->n, &sum);
    if (st != RG_OK) return st;
    if (__builtin_mul_overflow(sum * op->elem, (uint64_t)r->n, &all) || sum > BYTES_MAX / 8 || all > BYTES_MAX)
        return too_large(op);
    int in_place = 0, apart = 0;
    starts[0] = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        starts[i + 1] = starts[i] + c->list_counts[i];
        ptrs[i] = (void *)(uintptr_t)c->ins[i];
        ptrs[c->n + i] = c->outs[i];
        if (c->list_counts[i] && (!c->ins[i] || !c->outs[i])) {
            rg_group_set_errmsg(op->h, "buffer %u of the list is NULL and its count is not 0", i);
            return RG_ERR_INVALID;
        }
        int how = list_in_place(c, i, op->elem, r->rank);
        in_place |= how == 1;
        apart |= how == 0;
    }
    st = list_overlap(op, c, r->rank, in_segs, out_segs);
    if (st != RG_OK) return st;
    op->sig.count = sum;
    if (c->n != 1) op->sig.variant = hash_counts(op->sig.variant ^ c->n, c->list_counts, c->n);
    op->bytes = sum * op->elem * out_segs;
    op->in_place = in_place && !apart;
    op->covers = in_place && rg_op_reduces(op);
    list_layout(&op->in, op->elem, c, starts, ptrs);
    list_layout(&op->out, op->elem, c, starts, ptrs + c->n);
    return RG_OK;
}

/* ---- In place or apart ----------------------------------------------------------------------------------------- */

/* b, of n elements, lies in a as its elements from b_starts_at on do, of which `run` follow without a break. */
static int same_shape(const rg_layout_t *a, const rg_layout_t *b, uint64_t b_starts_at, uint64_t run, uint64_t n) {
    if (b->kind == RG_LAYOUT_PLAIN && n <= run) return 1; /* within one row */
    if (a->kind != b->kind) return 0;
    return a->kind == RG_LAYOUT_PLAIN || (a->row == b->row && a->pitch == b->pitch && b_starts_at % a->row == 0);
}

/* Rows of two buffers may lie between each other, as columns of one matrix do. */
static int rows_apart(const rg_layout_t *a, const rg_layout_t *b) {
    if (a->kind != RG_LAYOUT_ROWS || b->kind != RG_LAYOUT_ROWS || a->pitch != b->pitch) return 0;
    uint64_t pitch = a->pitch * a->elem;
    uint64_t ab = (uint64_t)((uintptr_t)b->base - (uintptr_t)a->base) % pitch;
    if ((uintptr_t)b->base < (uintptr_t)a->base) {
        uint64_t back = (uint64_t)((uintptr_t)a->base - (uintptr_t)b->base) % pitch;
        ab = back ? pitch - back : 0;
    }
    return ab >= a->row * a->elem && ab + b->row * b->elem <= pitch;
}

/* Where this rank's segment is in the buffer that has all of them, for the kinds whose other buffer may be just that.
 */
static uint64_t own_segment(const rg_coll_desc_t *d) {
    switch (d->kind) {
    case RG_KIND_ALL_GATHER:
    case RG_KIND_GATHER:
    case RG_KIND_REDUCE_SCATTER:
    case RG_KIND_SCATTER: return rg_seg(d, RG_BUF_OUT, d->rank).off;
    default: return 0;
    }
}

static int all_to_all_alike(const rg_request_t *op, uint32_t n) {
    return !op->lens || (!memcmp(op->lens, op->in_lens, n * sizeof *op->lens) &&
                         !memcmp(op->offs, op->in_offs, n * sizeof *op->offs));
}

static rg_status_t in_place(rg_request_t *op, const rg_coll_desc_t *d, uint64_t in_bytes, uint64_t out_bytes) {
    int in_is_whole = d->kind == RG_KIND_REDUCE_SCATTER || d->kind == RG_KIND_SCATTER;
    const rg_layout_t *whole = in_is_whole ? &op->in : &op->out, *part = in_is_whole ? &op->out : &op->in;
    uint64_t run, at = own_segment(d), n = (in_is_whole ? out_bytes : in_bytes) / op->elem;
    if (!in_bytes || !out_bytes) return RG_OK;
    if (rg_layout_at(whole, at, &run) == part->base && same_shape(whole, part, at, run, n)) {
        if (d->kind != RG_KIND_ALL_TO_ALL || all_to_all_alike(op, d->size)) {
            op->in_place = 1;
            op->covers = rg_op_reduces(op);
            return RG_OK;
        }
    }
    uintptr_t a = (uintptr_t)op->in.base, b = (uintptr_t)op->out.base;
    if (a < b + out_bytes && b < a + in_bytes && !rows_apart(&op->in, &op->out)) {
        rg_group_set_errmsg(op->h,
                            "%s: in and out overlap without being the same as regroup.h says for in place; pass "
                            "in == out (or the rank's own segment), or separate buffers",
                            rg_kind_name((rg_kind_t)op->sig.kind));
        return RG_ERR_INVALID;
    }
    return RG_OK;
}

/* ---- All of it ------------------------------------------------------------------------------------------------- */

static rg_status_t check_null(rg_request_t *op, const void *p, const char *name) {
    if (p) return RG_OK;
    rg_group_set_errmsg(op->h, "%s: %s is NULL and has elements", rg_kind_name((rg_kind_t)op->sig.kind), name);
    return RG_ERR_INVALID;
}

rg_status_t rg_call_buffers(rg_request_t *op, const rg_call_t *c, const rg_opts_t *o, const rg_roster_t *r) {
    rg_coll_desc_t d;
    uint64_t in_bytes = 0, out_bytes = 0;
    if (c->list) {
        if (!o->in_strided && !o->out_strided) return list(op, c, r);
        rg_group_set_errmsg(op->h, "a list of buffers has no rows; leave in_strided and out_strided NULL");
        return RG_ERR_INVALID;
    }
    rg_status_t st = c->v ? segments(op, c, r) : RG_OK;
    if (st != RG_OK) return st;
    if (!c->v && rg_kind_segmented(c->kind)) {
        uint64_t all;
        if (__builtin_mul_overflow(c->count, (uint64_t)r->n, &all) || all > BYTES_MAX) return too_large(op);
    }
    rg_op_describe(op, r, &d);
    if (rg_kind_rooted(c->kind)) d.root = c->root; /* the member is looked up when the operation has its number */
    if (c->kind == RG_KIND_P2P) d.rank = c->sends ? 0 : 1;
    uint64_t in_elems = rg_desc_elems(&d, RG_BUF_IN), out_elems = rg_desc_elems(&d, RG_BUF_OUT);
    if (in_elems == UINT64_MAX || out_elems == UINT64_MAX) return too_large(op);
    int has_in = rg_desc_has(&d, RG_BUF_IN), has_out = rg_desc_has(&d, RG_BUF_OUT);
    const rg_strided_t *in_rows = c->kind == RG_KIND_BROADCAST ? o->out_strided : o->in_strided;
    st = rows(op, &op->in, c->in, in_rows, in_elems, "in", &in_bytes);
    if (st == RG_OK) st = rows(op, &op->out, c->out, o->out_strided, out_elems, "out", &out_bytes);
    op->bytes = out_elems * op->elem;
    if (st == RG_OK && has_in && in_elems) st = check_null(op, c->in, "in");
    if (st == RG_OK && has_out && out_elems) st = check_null(op, c->out, "out");
    if (st != RG_OK || c->kind == RG_KIND_P2P) return st;
    if (d.kind != RG_KIND_BARRIER && d.lens && rg_desc_has(&d, RG_BUF_OUT) &&
        (d.kind == RG_KIND_ALL_GATHER || d.kind == RG_KIND_GATHER || d.kind == RG_KIND_ALL_TO_ALL) &&
        segments_overlap(op->offs, op->lens, r->n)) {
        rg_group_set_errmsg(op->h, "%s_v: segments of out overlap", rg_kind_name(c->kind));
        return RG_ERR_INVALID;
    }
    if (c->kind == RG_KIND_BROADCAST) {
        op->in_place = 1;
        return RG_OK;
    }
    return has_in && has_out ? in_place(op, &d, in_bytes, out_bytes) : RG_OK;
}
