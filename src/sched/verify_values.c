/* verify_values.c: the part of the verifier that follows values. Steps run on symbols: the value of an element is an
 * expression over "what rank r put in", kept for whole ranges of elements at once, so that counts of millions cost no
 * more than small ones. Equal expressions are one node, so equal bits on all ranks (A3) is equality of numbers; nodes
 * know which ranks are in them, so a rank missing or twice is seen at once. Relies on p->order, and on check_races()
 * for the claim that every other order gives the same. */
#include "verify.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Expressions ------------------------------------------------------------------------------------------------ */

enum { LEAF, FOLD, FINAL };

/* Whose values are in a node: `many` ranks, mostly from `lo` on in a circle, which costs nothing to keep and to join;
 * where they do not lie so, row `set` of the bit table. */
typedef struct node {
    uint32_t what, a, b; /* LEAF: a is the rank */
    uint32_t lo, many, set;
} node_t;

typedef struct exprs {
    node_t *v;
    uint64_t *sets;  /* rows of `words`; the first two are scratch */
    uint32_t *table; /* hash table of node numbers, `mask` + 1 places */
    uint32_t n, cap, mask, size, n_sets, cap_sets;
    size_t words;
} exprs_t;

/* `len` elements of a buffer from `off` on have the value of `expr` for elements `elem` and up. */
typedef struct seg {
    uint64_t off, len, elem;
    uint32_t expr;
} seg_t;

/* In order of offset, with room at both ends: what is put between others moves the smaller part of them. */
typedef struct segs {
    seg_t *v, *mem;
    size_t n, front, cap; /* v is mem + front; cap is what fits from v on */
} segs_t;

/* Ranges of a rank's buffers, by offset: what it put in, and what it has to get. elem and expr say what that is; expr
 * is a rank, whose leaf has its number, or NOBODY for the value of all. */
typedef struct wants {
    seg_t *in, *out;
    uint32_t n_in, n_out;
    uint64_t total;
} wants_t;

typedef struct run {
    rg_proof_t *p;
    exprs_t e;
    segs_t *buf[RG_BUFS]; /* by rank */
    uint64_t *written;    /* by rank: elements of OUT so far */
    wants_t *wants;       /* by rank: what OUT has to become, and what IN was */
    segs_t x, y, z;       /* operands and result of the step at hand */
} run_t;

static uint32_t hash_of(node_t x) {
    uint64_t h = (x.what * 0x9e3779b97f4a7c15ull ^ x.a) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ h >> 29 ^ x.b) * 0x94d049bb133111ebull;
    return (uint32_t)(h ^ h >> 32);
}

static void table_put(exprs_t *e, uint32_t id) {
    uint32_t at = hash_of(e->v[id]) & e->mask;
    while (e->table[at] != NOBODY) at = (at + 1) & e->mask;
    e->table[at] = id;
}

static int exprs_grow(exprs_t *e) {
    uint32_t cap = e->cap == 0 ? 1024 : e->cap * 2;
    node_t *v = realloc(e->v, cap * sizeof *v);
    if (v != NULL) e->v = v;
    uint32_t *table = v == NULL ? NULL : malloc(2 * (size_t)cap * sizeof *table);
    if (table == NULL) return 0;
    free(e->table);
    e->table = table;
    e->cap = cap;
    e->mask = 2 * cap - 1;
    memset(table, 0xff, 2 * (size_t)cap * sizeof *table);
    for (uint32_t i = 0; i < e->n; i++) table_put(e, i);
    return 1;
}

/* The ranks in a node as bits: its own row, or the scratch row k. */
static uint64_t *bits_of(const exprs_t *e, uint32_t id, uint32_t k) {
    const node_t *x = &e->v[id];
    uint64_t *row = e->sets + (x->set != NOBODY ? x->set : k) * e->words;
    if (x->set != NOBODY) return row;
    memset(row, 0, e->words * sizeof *row);
    for (uint32_t i = 0, r = x->lo; i < x->many; i++, r = r + 1 == e->size ? 0 : r + 1) row[r / 64] |= 1ull << (r % 64);
    return row;
}

static int sets_room(exprs_t *e) {
    if (e->n_sets < e->cap_sets) return 1;
    uint32_t cap = e->cap_sets == 0 ? 64 : e->cap_sets * 2;
    uint64_t *sets = realloc(e->sets, cap * e->words * sizeof *sets);
    if (sets == NULL) return 0;
    e->sets = sets;
    e->cap_sets = cap;
    return 1;
}

/* How many steps it is from rank a to rank b in the circle. */
static uint32_t ahead(const exprs_t *e, uint32_t a, uint32_t b) { return b >= a ? b - a : b + e->size - a; }

/* Says of a new node whose values are in it: those of its operands, which have none in common. */
static int join_ranks(exprs_t *e, node_t *x) {
    const node_t *a = &e->v[x->a], *b = &e->v[x->b];
    x->set = NOBODY;
    x->many = a->many + b->many;
    if (x->many == e->size) {
        x->lo = 0;
        return 1;
    }
    if (a->set == NOBODY && b->set == NOBODY) {
        x->lo = ahead(e, a->lo, b->lo) == a->many ? a->lo : b->lo;
        if (ahead(e, a->lo, b->lo) == a->many || ahead(e, b->lo, a->lo) == b->many) return 1;
    }
    if (!sets_room(e)) return 0;
    uint64_t *mine = e->sets + e->n_sets * e->words;
    const uint64_t *p = bits_of(e, x->a, 0), *q = bits_of(e, x->b, 1);
    for (size_t w = 0; w < e->words; w++) mine[w] = p[w] | q[w];
    x->set = e->n_sets++;
    return 1;
}

/* The node for x; NOBODY without memory. */
static uint32_t intern(exprs_t *e, node_t x) {
    if (e->n == e->cap && !exprs_grow(e)) return NOBODY;
    for (uint32_t at = hash_of(x) & e->mask; e->table[at] != NOBODY; at = (at + 1) & e->mask) {
        const node_t *y = &e->v[e->table[at]];
        if (y->what == x.what && y->a == x.a && y->b == x.b) return e->table[at];
    }
    if (x.what == LEAF) {
        x.lo = x.a;
        x.many = 1;
        x.set = NOBODY;
    } else if (x.what == FINAL) {
        x.lo = e->v[x.a].lo;
        x.many = e->v[x.a].many;
        x.set = e->v[x.a].set;
    } else if (!join_ranks(e, &x)) {
        return NOBODY;
    }
    uint32_t id = e->n++;
    e->v[id] = x;
    table_put(e, id);
    return id;
}

/* The lowest rank that is in both, or NOBODY. */
static uint32_t in_both(const exprs_t *e, uint32_t a, uint32_t b) {
    const node_t *x = &e->v[a], *y = &e->v[b];
    if (x->set == NOBODY && y->set == NOBODY && ahead(e, x->lo, y->lo) >= x->many && ahead(e, y->lo, x->lo) >= y->many)
        return NOBODY;
    const uint64_t *p = bits_of(e, a, 0), *q = bits_of(e, b, 1);
    for (size_t w = 0; w < e->words; w++)
        if ((p[w] & q[w]) != 0) return (uint32_t)(w * 64) + (uint32_t)__builtin_ctzll(p[w] & q[w]);
    return NOBODY;
}

/* The lowest rank that is not in it, or NOBODY. */
static uint32_t missing(const exprs_t *e, uint32_t a) {
    if (e->v[a].many == e->size) return NOBODY;
    const uint64_t *row = bits_of(e, a, 0);
    size_t w = 0;
    while (row[w] == UINT64_MAX) w++;
    return (uint32_t)(w * 64) + (uint32_t)__builtin_ctzll(~row[w]);
}

/* ---- Ranges ----------------------------------------------------------------------------------------------------- */

static int segs_room(rg_proof_t *p, segs_t *s, size_t more) {
    if (s->n + more <= s->cap) return 1;
    size_t cap = s->cap == 0 ? 16 : s->cap * 2;
    while (cap < s->n + more) cap *= 2;
    seg_t *mem = realloc(s->mem, (s->front + cap) * sizeof *mem);
    if (mem == NULL) return rg_proof_nomem(p);
    s->mem = mem;
    s->v = mem + s->front;
    s->cap = cap;
    return 1;
}

/* Room for `more` in front of the first, and as much again as there are. */
static int segs_front(rg_proof_t *p, segs_t *s, size_t more) {
    if (more <= s->front) return 1;
    size_t front = s->n + more + 16;
    seg_t *mem = malloc((front + s->cap) * sizeof *mem);
    if (mem == NULL) return rg_proof_nomem(p);
    if (s->n != 0) memcpy(mem + front, s->v, s->n * sizeof *mem);
    free(s->mem);
    s->mem = mem;
    s->v = mem + front;
    s->front = front;
    return 1;
}

/* Makes the places from i up to j into `now` places, of which nothing is kept. */
static int segs_resize(rg_proof_t *p, segs_t *s, size_t i, size_t j, size_t now) {
    size_t were = j - i, behind = s->n - j;
    if (now > were && i < behind) {
        size_t more = now - were;
        if (!segs_front(p, s, more)) return 0;
        s->v -= more;
        s->front -= more;
        s->cap += more;
        memmove(s->v, s->v + more, i * sizeof *s->v);
    } else {
        if (!segs_room(p, s, now)) return 0;
        memmove(s->v + i + now, s->v + j, behind * sizeof *s->v);
    }
    s->n = s->n - were + now;
    return 1;
}

static int segs_add(rg_proof_t *p, segs_t *s, seg_t x) {
    if (s->n != 0) { /* one range, if it goes on as the last one did */
        seg_t *last = &s->v[s->n - 1];
        if (last->expr == x.expr && last->off + last->len == x.off && last->elem + last->len == x.elem) {
            last->len += x.len;
            return 1;
        }
    }
    if (!segs_room(p, s, 1)) return 0;
    s->v[s->n++] = x;
    return 1;
}

/* The first range that ends behind `off`. */
static size_t segs_find(const segs_t *s, uint64_t off) {
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->v[mid].off + s->v[mid].len > off) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

/* Copies what lies in [off, off+len) to `to`, with offsets from 0. Says where the first hole is, or returns 1. */
static int segs_read(rg_proof_t *p, uint32_t g, const segs_t *s, rg_span_t span, segs_t *to) {
    static const char *const names[] = { "IN", "OUT", "TMP", "AUX" };
    uint64_t at = span.off, end = span.off + span.len;
    to->n = 0;
    for (size_t i = segs_find(s, at); at < end; i++) {
        if (i >= s->n || s->v[i].off > at)
            return rg_proof_fail(p, g, "read of garbage: nothing has been written to %s[%" PRIu64 "] yet",
                                 names[span.buf], at);
        uint64_t skip = at - s->v[i].off, len = s->v[i].len - skip;
        if (len > end - at) len = end - at;
        seg_t x = { at - span.off, len, s->v[i].elem + skip, s->v[i].expr };
        if (!segs_add(p, to, x)) return 0;
        at += len;
    }
    return 1;
}

/* Puts `from` (offsets from 0, without holes) over [off, off+len). */
static int segs_write(rg_proof_t *p, segs_t *s, uint64_t off, uint64_t len, const segs_t *from) {
    uint64_t end = off + len;
    size_t i = segs_find(s, off), j = i;
    while (j < s->n && s->v[j].off < end) j++;
    seg_t edge[2];
    size_t n_left = 0, n_right = 0;
    if (i < j && s->v[i].off < off) {
        edge[0] = s->v[i];
        edge[0].len = off - edge[0].off;
        n_left = 1;
    }
    if (i < j && s->v[j - 1].off + s->v[j - 1].len > end) {
        seg_t x = s->v[j - 1];
        uint64_t skip = end - x.off;
        edge[1] = (seg_t){ end, x.len - skip, x.elem + skip, x.expr };
        n_right = 1;
    }
    size_t now = n_left + from->n + n_right;
    if (!segs_resize(p, s, i, j, now)) return 0;
    if (n_left) s->v[i] = edge[0];
    for (size_t k = 0; k < from->n; k++) {
        s->v[i + n_left + k] = from->v[k];
        s->v[i + n_left + k].off += off;
    }
    if (n_right) s->v[i + now - 1] = edge[1];
    return 1;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------ */

/* In place IN is overwritten along with OUT; reading it then gives the final value, which no fold accepts. */
static const segs_t *buffer(const run_t *x, uint32_t r, rg_buf_t buf) { return &x->buf[buf][r]; }

static uint32_t fold(run_t *x, uint32_t g, uint32_t a, uint32_t b) {
    exprs_t *e = &x->e;
    if (e->v[a].what == FINAL || e->v[b].what == FINAL) {
        rg_proof_fail(x->p, g, "double count: an operand is a final value already");
        return NOBODY;
    }
    uint32_t twice = in_both(e, a, b);
    if (twice != NOBODY) {
        rg_proof_fail(x->p, g, "double count: both operands have the value of rank %" PRIu32, twice);
        return NOBODY;
    }
    uint32_t id = intern(e, (node_t){ .what = FOLD, .a = a, .b = b });
    if (id == NOBODY) rg_proof_nomem(x->p);
    return id;
}

/* x->z = x->x op x->y, range by range. */
static int fold_ranges(run_t *x, uint32_t g, int swap) {
    size_t i = 0, k = 0;
    x->z.n = 0;
    for (uint64_t at = 0; i < x->x.n && k < x->y.n;) {
        const seg_t *a = &x->x.v[i], *b = &x->y.v[k];
        uint64_t end_a = a->off + a->len, end_b = b->off + b->len, end = end_a < end_b ? end_a : end_b;
        uint64_t elem = a->elem + (at - a->off), other = b->elem + (at - b->off);
        if (elem != other)
            return rg_proof_fail(x->p, g, "wrong result: combines element %" PRIu64 " with element %" PRIu64, elem,
                                 other);
        uint32_t id = swap ? fold(x, g, b->expr, a->expr) : fold(x, g, a->expr, b->expr);
        seg_t s = { at, end - at, elem, id };
        if (id == NOBODY || !segs_add(x->p, &x->z, s)) return 0;
        at = end;
        i += end == end_a;
        k += end == end_b;
    }
    return 1;
}

/* x->z gets its final form. */
static int finalise(run_t *x, uint32_t g) {
    exprs_t *e = &x->e;
    for (size_t i = 0; i < x->z.n; i++) {
        uint32_t a = x->z.v[i].expr;
        if (e->v[a].what == FINAL) return rg_proof_fail(x->p, g, "double count: the value is final already");
        a = intern(e, (node_t){ .what = FINAL, .a = a, .b = a });
        if (a == NOBODY) return rg_proof_nomem(x->p);
        x->z.v[i].expr = a;
    }
    return 1;
}

/* What OUT[off] of rank r has to become: the range around it, or NULL where there is none. */
static const seg_t *wanted(const run_t *x, uint32_t r, uint64_t off) {
    const wants_t *w = &x->wants[r];
    uint32_t lo = 0, hi = w->n_out;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (w->out[mid].off + w->out[mid].len > off) hi = mid;
        else lo = mid + 1;
    }
    return lo < w->n_out && w->out[lo].off <= off ? &w->out[lo] : NULL;
}

/* One range of one value, within one range of what is wanted. */
static int check_range(run_t *x, uint32_t g, const seg_t *s, uint64_t off, const seg_t *want) {
    const rg_coll_desc_t *d = &x->p->s[0]->desc;
    const node_t *v = &x->e.v[s->expr];
    if (want->expr != NOBODY) {
        if (v->what != LEAF || v->a != want->expr)
            return rg_proof_fail(x->p, g, "wrong result: OUT[%" PRIu64 "] is not what %s %" PRIu32 " put in", off,
                                 rg_kind_rooted(d->kind) && d->kind != RG_KIND_GATHER ? "the root" : "rank",
                                 want->expr);
    } else if (v->what != FINAL) {
        return rg_proof_fail(x->p, g, "partial value in OUT[%" PRIu64 "]: it is not marked final", off);
    } else if (missing(&x->e, s->expr) != NOBODY) {
        return rg_proof_fail(x->p, g, "partial value in OUT[%" PRIu64 "]: rank %" PRIu32 " is missing", off,
                             missing(&x->e, s->expr));
    }
    uint64_t elem = want->elem + (off - want->off);
    if (s->elem != elem)
        return rg_proof_fail(x->p, g, "wrong result: element %" PRIu64 " in the place of element %" PRIu64, s->elem,
                             elem);
    return 1;
}

/* What may be written to OUT: the whole value, in its place, once. */
static int check_out(run_t *x, uint32_t g, rg_span_t dst) {
    uint32_t r = x->p->owner[g];
    size_t i = 0;
    for (uint64_t at = 0; at < dst.len;) {
        const seg_t *s = &x->z.v[i], *want = wanted(x, r, dst.off + at);
        if (want == NULL)
            return rg_proof_fail(x->p, g, "wrong result: OUT[%" PRIu64 "] is written, which is no part of the result",
                                 dst.off + at);
        uint64_t end = s->off + s->len, most = want->off + want->len - dst.off;
        seg_t part = { at, 0, s->elem + (at - s->off), s->expr };
        if (!check_range(x, g, &part, dst.off + at, want)) return 0;
        at = end < most ? end : most;
        i += at == end;
    }
    const segs_t *out = &x->buf[RG_BUF_OUT][r];
    size_t at = segs_find(out, dst.off);
    if (at < out->n && out->v[at].off < dst.off + dst.len)
        return rg_proof_fail(x->p, g, "wrong result: OUT[%" PRIu64 "] is written twice",
                             out->v[at].off > dst.off ? out->v[at].off : dst.off);
    x->written[r] += dst.len;
    return 1;
}

/* In place, what IN is where OUT was written: x->z, as far as the two meet. */
static int store_in(run_t *x, uint32_t r, rg_span_t dst) {
    const rg_sight_t *v = &x->p->sight[r];
    uint64_t size = v->elems[RG_BUF_IN];
    uint64_t from = dst.off + v->shift_out, to = from + dst.len;
    uint64_t low = v->shift_in, high = v->shift_in + size;
    uint64_t first = from > low ? from : low, last = to < high ? to : high;
    if (first >= last) return 1;
    x->x.n = 0;
    for (size_t i = 0; i < x->z.n; i++) {
        seg_t s = x->z.v[i];
        uint64_t at = from + s.off, end = at + s.len, skip = at < first ? first - at : 0;
        if (end > last) end = last;
        if (at + skip >= end) continue;
        seg_t part = { at + skip - first, end - at - skip, s.elem + skip, s.expr };
        if (!segs_add(x->p, &x->x, part)) return 0;
    }
    return segs_write(x->p, &x->buf[RG_BUF_IN][r], first - low, last - first, &x->x);
}

static int store(run_t *x, uint32_t g, rg_span_t dst) {
    uint32_t r = x->p->owner[g];
    if (dst.len == 0) return 1;
    if (dst.buf == RG_BUF_OUT && !check_out(x, g, dst)) return 0;
    if (!segs_write(x->p, &x->buf[dst.buf][r], dst.off, dst.len, &x->z)) return 0;
    return dst.buf != RG_BUF_OUT || !x->p->in_place || !x->p->sight[r].one || store_in(x, r, dst);
}

static int copy_ranges(run_t *x, const segs_t *from) {
    x->z.n = 0;
    if (!segs_room(x->p, &x->z, from->n)) return 0;
    if (from->n != 0) memcpy(x->z.v, from->v, from->n * sizeof *from->v);
    x->z.n = from->n;
    return 1;
}

/* What this rank put in. */
static int load_in(run_t *x, uint32_t r) {
    const wants_t *w = &x->wants[r];
    for (uint32_t i = 0; i < w->n_in; i++)
        if (!segs_add(x->p, &x->buf[RG_BUF_IN][r], w->in[i])) return 0;
    return 1;
}

/* Everybody's weight has to be here, each in its place; then this rank's input becomes readable. */
static int prepare(run_t *x, uint32_t g) {
    rg_proof_t *p = x->p;
    uint32_t r = p->owner[g];
    if (!segs_read(p, g, &x->buf[RG_BUF_AUX][r], rg_span(RG_BUF_AUX, 0, p->n), &x->x)) return 0;
    for (size_t i = 0; i < x->x.n; i++)
        if (x->x.v[i].len != 1 || x->e.v[x->x.v[i].expr].a != x->x.v[i].off)
            return rg_proof_fail(p, g, "wrong result: AUX[%" PRIu64 "] is the weight of another rank", x->x.v[i].off);
    if (x->buf[RG_BUF_IN][r].n != 0) return rg_proof_fail(p, g, "wrong result: the input is prepared twice");
    return load_in(x, r);
}

static int run_step(run_t *x, uint32_t g) {
    rg_proof_t *p = x->p;
    const rg_step_t *st = proof_step(p, g);
    uint32_t r = p->owner[g];
    if (st->kind == RG_STEP_SEND) return 1; /* done by the receive, which p->order has right behind it */
    if (st->kind == RG_STEP_PREPARE) return prepare(x, g);
    int ok = 1;
    if (st->kind == RG_STEP_RECV || st->kind == RG_STEP_RECV_REDUCE) {
        uint32_t from = p->mate[g];
        rg_span_t sent = proof_step(p, from)->a;
        ok = segs_read(p, from, buffer(x, p->owner[from], sent.buf), sent, &x->y);
    }
    if (ok && st->kind != RG_STEP_RECV) ok = segs_read(p, g, buffer(x, r, st->a.buf), st->a, &x->x);
    if (ok && st->kind == RG_STEP_REDUCE) ok = segs_read(p, g, buffer(x, r, st->b.buf), st->b, &x->y);
    if (!ok) return 0;
    if (st->kind == RG_STEP_RECV) ok = copy_ranges(x, &x->y);
    else if (st->kind == RG_STEP_COPY) ok = copy_ranges(x, &x->x);
    else ok = fold_ranges(x, g, (st->flags & RG_STEP_SWAP) != 0);
    if (ok && (st->flags & RG_STEP_FINAL)) ok = finalise(x, g);
    return ok && store(x, g, st->dst);
}

/* ---- The result ------------------------------------------------------------------------------------------------- */

/* x0 op x1 op ... from the left. */
static int in_rank_order(const exprs_t *e, uint32_t id, uint32_t n) {
    const node_t *v = &e->v[id];
    if (v->what == FINAL) v = &e->v[v->a];
    while (--n > 0) {
        if (v->what != FOLD || e->v[v->b].what != LEAF || e->v[v->b].a != n) return 0;
        v = &e->v[v->a];
    }
    return v->what == LEAF && v->a == 0;
}

/* All of OUT was written, and what was written was right; so what is left is the order of the operands. */
static int check_complete(run_t *x, uint32_t r) {
    const wants_t *w = &x->wants[r];
    if (x->written[r] == w->total) return 1;
    for (uint32_t i = 0; i < w->n_out; i++)
        for (uint64_t at = w->out[i].off, end = at + w->out[i].len; at < end;) {
            const segs_t *out = &x->buf[RG_BUF_OUT][r];
            size_t k = segs_find(out, at);
            if (k >= out->n || out->v[k].off > at)
                return rg_proof_fail(x->p, NOBODY, "wrong result: rank %" PRIu32 " ends without OUT[%" PRIu64 "]", r,
                                     at);
            at = out->v[k].off + out->v[k].len;
        }
    return rg_proof_fail(x->p, NOBODY, "wrong result: rank %" PRIu32 " has more than the result", r);
}

/* All ranks combine an element in the same way, or their bits may differ. */
static int check_same(run_t *x, uint32_t r) {
    rg_span_t all = rg_span(RG_BUF_OUT, 0, x->p->s[0]->desc.count);
    segs_t *mine = r == 0 ? &x->x : &x->y;
    if (!segs_read(x->p, NOBODY, &x->buf[RG_BUF_OUT][r], all, mine)) return 0;
    for (size_t i = 0; r != 0 && (i < mine->n || i < x->x.n); i++)
        if (i >= mine->n || i >= x->x.n || mine->v[i].expr != x->x.v[i].expr || mine->v[i].off != x->x.v[i].off)
            return rg_proof_fail(x->p, NOBODY,
                                 "wrong result: ranks 0 and %" PRIu32 " combine OUT[%" PRIu64
                                 "] in different orders, so their bits may differ",
                                 r, i < mine->n ? mine->v[i].off : x->x.v[i].off);
    return 1;
}

static int check_result(run_t *x) {
    rg_proof_t *p = x->p;
    const rg_coll_desc_t *d = &p->s[0]->desc;
    for (uint32_t r = 0; r < p->n; r++) {
        const segs_t *mine = &x->buf[RG_BUF_OUT][r];
        if (!check_complete(x, r) || (d->kind == RG_KIND_ALL_REDUCE && !check_same(x, r))) return 0;
        if (!d->rank_order || !rg_kind_reduces(d->kind) || (r != 0 && d->kind == RG_KIND_ALL_REDUCE)) continue;
        for (size_t i = 0; i < mine->n; i++)
            if (!in_rank_order(&x->e, mine->v[i].expr, p->n))
                return rg_proof_fail(p, NOBODY, "wrong result: OUT[%" PRIu64 "] is not combined in rank order",
                                     mine->v[i].off);
    }
    return 1;
}

/* ---- What is there and what is wanted --------------------------------------------------------------------------- */

/* An element is known by its place among all elements that its rank put in, segments one after the other, wherever they
 * lie; where all ranks put in or get the same segments these places are those of the whole. */
static uint64_t place_of(const rg_coll_desc_t *d, uint32_t rank, int in) {
    const uint64_t *lens = in ? d->in_lens : d->lens;
    uint64_t at = 0;
    if (lens == NULL) return d->count * rank;
    for (uint32_t i = 0; i < rank; i++) at += lens[i];
    return at;
}

static int seg_cmp(const void *a, const void *b) {
    const seg_t *x = a, *y = b;
    return x->off < y->off ? -1 : x->off > y->off;
}

/* Sorts the ranges of one buffer and drops the empty ones. */
static int tidy(rg_proof_t *p, uint32_t r, seg_t *v, uint32_t *n) {
    uint32_t k = 0;
    int sorted = 1;
    for (uint32_t i = 0; i < *n; i++)
        if (v[i].len != 0) {
            sorted &= k == 0 || v[k - 1].off <= v[i].off;
            v[k++] = v[i];
        }
    *n = k;
    if (!sorted) qsort(v, k, sizeof *v, seg_cmp);
    for (uint32_t i = 1; i < k; i++)
        if (v[i].off < v[i - 1].off + v[i - 1].len)
            return rg_proof_fail(p, NOBODY, "malformed: segments of rank %" PRIu32 " overlap", r);
    return 1;
}

/* All segments of a buffer, for a rank that has it. from: the rank whose values they hold, or NOBODY: segment j holds
 * what rank j put in. */
static uint32_t all_segments(const run_t *x, uint32_t r, rg_buf_t buf, uint32_t from, seg_t *v) {
    const rg_coll_desc_t *d = &x->p->s[r]->desc;
    int exchange = d->kind == RG_KIND_ALL_TO_ALL;
    uint64_t at = 0;
    for (uint32_t j = 0; j < d->size; j++) {
        rg_span_t seg = exchange && buf == RG_BUF_IN ? rg_seg_in(d, j) : rg_seg(d, buf, j);
        uint64_t elem = exchange && buf == RG_BUF_OUT ? place_of(&x->p->s[j]->desc, r, 1) : at;
        v[j] = (seg_t){ seg.off, seg.len, elem, from == NOBODY ? j : from };
        at += seg.len;
    }
    return d->size;
}

static int list_wants(run_t *x, uint32_t r) {
    const rg_coll_desc_t *d = &x->p->s[r]->desc;
    const rg_sight_t *sight = &x->p->sight[r];
    wants_t *w = &x->wants[r];
    uint32_t many = rg_kind_segmented(d->kind) ? d->size : 1, whole = rg_kind_reduces(d->kind) ? NOBODY : d->root;
    w->in = malloc(many * sizeof *w->in);
    w->out = malloc(many * sizeof *w->out);
    if (w->in == NULL || w->out == NULL) return rg_proof_nomem(x->p);
    uint64_t in = rg_desc_elems(d, RG_BUF_IN), out = rg_desc_elems(d, RG_BUF_OUT);
    uint64_t mine = rg_kind_segmented(d->kind) ? place_of(d, r, 0) : 0;
    if (d->kind == RG_KIND_P2P) whole = 0;
    /* One range, as most have it; then the buffers that have a segment for every rank. */
    w->in[0] = (seg_t){ 0, in, mine, r };
    w->out[0] = (seg_t){ 0, out, mine, whole };
    w->n_in = w->n_out = 1;
    switch (d->kind) {
    case RG_KIND_REDUCE_SCATTER:
    case RG_KIND_SCATTER: w->n_in = all_segments(x, r, RG_BUF_IN, r, w->in); break;
    case RG_KIND_ALL_GATHER:
    case RG_KIND_GATHER: w->n_out = all_segments(x, r, RG_BUF_OUT, NOBODY, w->out); break;
    case RG_KIND_ALL_TO_ALL:
        w->n_in = all_segments(x, r, RG_BUF_IN, r, w->in);
        w->n_out = all_segments(x, r, RG_BUF_OUT, NOBODY, w->out);
        break;
    default: break;
    }
    if (!sight->has_in) w->n_in = 0;
    if (!sight->has_out) w->n_out = 0;
    if (!tidy(x->p, r, w->in, &w->n_in) || !tidy(x->p, r, w->out, &w->n_out)) return 0;
    for (uint32_t i = 0; i < w->n_out; i++) w->total += w->out[i].len;
    return 1;
}

static int begin(run_t *x) {
    rg_proof_t *p = x->p;
    x->e.words = ((size_t)p->n + 63) / 64;
    x->e.size = p->n;
    x->e.n_sets = 2;
    if (!sets_room(&x->e)) return rg_proof_nomem(p);
    for (int b = 0; b < RG_BUFS; b++)
        if ((x->buf[b] = calloc(p->n, sizeof **x->buf)) == NULL) return rg_proof_nomem(p);
    x->written = calloc(p->n, sizeof *x->written);
    x->wants = calloc(p->n, sizeof *x->wants);
    if (x->written == NULL || x->wants == NULL) return rg_proof_nomem(p);
    /* These come first, so that the number of a rank is that of its leaf. */
    for (uint32_t r = 0; r < p->n; r++)
        if (intern(&x->e, (node_t){ .what = LEAF, .a = r }) != r) return rg_proof_nomem(p);
    for (uint32_t r = 0; r < p->n; r++) {
        seg_t weight = { r, 1, r, r };
        if (!list_wants(x, r)) return 0;
        if (!(p->s[r]->desc.prepare ? segs_add(p, &x->buf[RG_BUF_AUX][r], weight) : load_in(x, r))) return 0;
    }
    return 1;
}

int rg_proof_values(rg_proof_t *p) {
    run_t x = { .p = p };
    int ok = begin(&x);
    for (uint32_t i = 0; ok && i < p->total; i++) ok = run_step(&x, p->order[i]);
    if (ok) ok = check_result(&x);
    for (int b = 0; b < RG_BUFS; b++) {
        for (uint32_t r = 0; x.buf[b] != NULL && r < p->n; r++) free(x.buf[b][r].mem);
        free(x.buf[b]);
    }
    for (uint32_t r = 0; x.wants != NULL && r < p->n; r++) {
        free(x.wants[r].in);
        free(x.wants[r].out);
    }
    free(x.written);
    free(x.wants);
    free(x.x.mem);
    free(x.y.mem);
    free(x.z.mem);
    free(x.e.v);
    free(x.e.sets);
    free(x.e.table);
    return ok;
}
