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

typedef struct node {
    uint32_t what, a, b; /* LEAF: a is the rank */
} node_t;

typedef struct exprs {
    node_t *v;
    uint64_t *ranks; /* `words` of them per node: whose values are in it */
    uint32_t *table; /* hash table of node numbers, `mask` + 1 places */
    uint32_t n, cap, mask;
    size_t words;
} exprs_t;

/* `len` elements of a buffer from `off` on have the value of `expr` for elements `elem` and up. */
typedef struct seg {
    uint64_t off, len, elem;
    uint32_t expr;
} seg_t;

typedef struct segs {
    seg_t *v;
    size_t n, cap;
} segs_t;

typedef struct run {
    rg_proof_t *p;
    exprs_t e;
    segs_t *in, *out, *tmp; /* by rank */
    segs_t x, y, z;         /* operands and result of the step at hand */
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
    uint64_t *ranks = v == NULL ? NULL : realloc(e->ranks, cap * e->words * sizeof *ranks);
    if (ranks != NULL) e->ranks = ranks;
    uint32_t *table = ranks == NULL ? NULL : malloc(2 * (size_t)cap * sizeof *table);
    if (table == NULL) return 0;
    free(e->table);
    e->table = table;
    e->cap = cap;
    e->mask = 2 * cap - 1;
    memset(table, 0xff, 2 * (size_t)cap * sizeof *table);
    for (uint32_t i = 0; i < e->n; i++) table_put(e, i);
    return 1;
}

/* The node for x; NOBODY without memory. The ranks of a new one are those of its operands. */
static uint32_t intern(exprs_t *e, node_t x) {
    if (e->n == e->cap && !exprs_grow(e)) return NOBODY;
    for (uint32_t at = hash_of(x) & e->mask; e->table[at] != NOBODY; at = (at + 1) & e->mask) {
        const node_t *y = &e->v[e->table[at]];
        if (y->what == x.what && y->a == x.a && y->b == x.b) return e->table[at];
    }
    uint32_t id = e->n++;
    e->v[id] = x;
    uint64_t *mine = e->ranks + id * e->words;
    memset(mine, 0, e->words * sizeof *mine);
    if (x.what == LEAF) {
        mine[x.a / 64] |= 1ull << (x.a % 64);
    } else {
        for (size_t w = 0; w < e->words; w++) mine[w] = e->ranks[x.a * e->words + w] | e->ranks[x.b * e->words + w];
    }
    table_put(e, id);
    return id;
}

/* The lowest rank that is in both, or NOBODY. */
static uint32_t in_both(const exprs_t *e, uint32_t a, uint32_t b) {
    for (size_t w = 0; w < e->words; w++) {
        uint64_t both = e->ranks[a * e->words + w] & e->ranks[b * e->words + w];
        if (both != 0) return (uint32_t)(w * 64) + (uint32_t)__builtin_ctzll(both);
    }
    return NOBODY;
}

/* The lowest of n ranks that is not in it, or NOBODY. */
static uint32_t missing(const exprs_t *e, uint32_t a, uint32_t n) {
    for (uint32_t r = 0; r < n; r++)
        if (!(e->ranks[a * e->words + r / 64] >> (r % 64) & 1)) return r;
    return NOBODY;
}

/* ---- Ranges ----------------------------------------------------------------------------------------------------- */

static int segs_room(rg_proof_t *p, segs_t *s, size_t more) {
    if (s->n + more <= s->cap) return 1;
    size_t cap = s->cap == 0 ? 16 : s->cap * 2;
    while (cap < s->n + more) cap *= 2;
    seg_t *v = realloc(s->v, cap * sizeof *v);
    if (v == NULL) return rg_proof_nomem(p);
    s->v = v;
    s->cap = cap;
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
    static const char *const names[] = { "IN", "OUT", "TMP" };
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
    if (!segs_room(p, s, now)) return 0;
    memmove(s->v + i + now, s->v + j, (s->n - j) * sizeof *s->v);
    s->n = s->n - (j - i) + now;
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
static const segs_t *buffer(const run_t *x, uint32_t r, rg_buf_t buf) {
    return buf == RG_BUF_IN ? &x->in[r] : buf == RG_BUF_OUT ? &x->out[r] : &x->tmp[r];
}

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
    uint32_t id = intern(e, (node_t){ FOLD, a, b });
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
        a = intern(e, (node_t){ FINAL, a, a });
        if (a == NOBODY) return rg_proof_nomem(x->p);
        x->z.v[i].expr = a;
    }
    return 1;
}

/* What may be written to OUT: the whole value, in its place, once. */
static int check_out(run_t *x, uint32_t g, uint64_t off) {
    const rg_coll_desc_t *d = &x->p->s[0]->desc;
    uint32_t r = x->p->owner[g];
    for (size_t i = 0; i < x->z.n; i++) {
        const seg_t *s = &x->z.v[i];
        const node_t *v = &x->e.v[s->expr];
        if (d->kind == RG_KIND_BROADCAST) {
            if (v->what != LEAF || v->a != d->root)
                return rg_proof_fail(x->p, g, "wrong result: OUT[%" PRIu64 "] is not what the root put in",
                                     off + s->off);
        } else if (v->what != FINAL) {
            return rg_proof_fail(x->p, g, "partial value in OUT[%" PRIu64 "]: it is not marked final", off + s->off);
        } else if (missing(&x->e, s->expr, d->size) != NOBODY) {
            return rg_proof_fail(x->p, g, "partial value in OUT[%" PRIu64 "]: rank %" PRIu32 " is missing",
                                 off + s->off, missing(&x->e, s->expr, d->size));
        }
        if (s->elem != off + s->off)
            return rg_proof_fail(x->p, g, "wrong result: element %" PRIu64 " in the place of element %" PRIu64, s->elem,
                                 off + s->off);
        size_t at = segs_find(&x->out[r], off + s->off);
        if (at < x->out[r].n && x->out[r].v[at].off < off + s->off + s->len)
            return rg_proof_fail(x->p, g, "wrong result: OUT[%" PRIu64 "] is written twice", x->out[r].v[at].off);
    }
    return 1;
}

static int store(run_t *x, uint32_t g, rg_span_t dst) {
    uint32_t r = x->p->owner[g];
    if (dst.len == 0) return 1;
    if (dst.buf == RG_BUF_TMP) return segs_write(x->p, &x->tmp[r], dst.off, dst.len, &x->z);
    if (!check_out(x, g, dst.off) || !segs_write(x->p, &x->out[r], dst.off, dst.len, &x->z)) return 0;
    return !x->p->in_place || segs_write(x->p, &x->in[r], dst.off, dst.len, &x->z);
}

static int copy_ranges(run_t *x, const segs_t *from) {
    x->z.n = 0;
    if (!segs_room(x->p, &x->z, from->n)) return 0;
    if (from->n != 0) memcpy(x->z.v, from->v, from->n * sizeof *from->v);
    x->z.n = from->n;
    return 1;
}

static int run_step(run_t *x, uint32_t g) {
    rg_proof_t *p = x->p;
    const rg_step_t *st = proof_step(p, g);
    uint32_t r = p->owner[g];
    if (st->kind == RG_STEP_SEND) return 1; /* done by the receive, which p->order has right behind it */
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

static int check_result(run_t *x) {
    rg_proof_t *p = x->p;
    const rg_coll_desc_t *d = &p->s[0]->desc;
    rg_span_t all = rg_span(RG_BUF_OUT, 0, d->kind == RG_KIND_BARRIER ? 0 : d->count);
    for (uint32_t r = 0; r < p->n; r++) {
        uint64_t at = 0;
        for (size_t i = 0; i < x->out[r].n && x->out[r].v[i].off == at; i++) at += x->out[r].v[i].len;
        if (at < all.len)
            return rg_proof_fail(p, NOBODY, "wrong result: rank %" PRIu32 " ends without OUT[%" PRIu64 "]", r, at);
        segs_t *mine = r == 0 ? &x->x : &x->y;
        if (!segs_read(p, NOBODY, &x->out[r], all, mine)) return 0;
        for (size_t i = 0; r != 0 && (i < mine->n || i < x->x.n); i++)
            if (i >= mine->n || i >= x->x.n || mine->v[i].expr != x->x.v[i].expr || mine->v[i].off != x->x.v[i].off)
                return rg_proof_fail(p, NOBODY,
                                     "wrong result: ranks 0 and %" PRIu32 " combine OUT[%" PRIu64
                                     "] in different orders, so "
                                     "their bits may differ",
                                     r, i < mine->n ? mine->v[i].off : x->x.v[i].off);
    }
    for (size_t i = 0; d->rank_order && d->kind == RG_KIND_ALL_REDUCE && i < x->x.n; i++)
        if (!in_rank_order(&x->e, x->x.v[i].expr, p->n))
            return rg_proof_fail(p, NOBODY, "wrong result: OUT[%" PRIu64 "] is not combined in rank order",
                                 x->x.v[i].off);
    return 1;
}

static int begin(run_t *x) {
    rg_proof_t *p = x->p;
    x->e.words = ((size_t)p->n + 63) / 64;
    x->in = calloc(p->n, sizeof *x->in);
    x->out = calloc(p->n, sizeof *x->out);
    x->tmp = calloc(p->n, sizeof *x->tmp);
    if (x->in == NULL || x->out == NULL || x->tmp == NULL) return rg_proof_nomem(p);
    for (uint32_t r = 0; r < p->n; r++) {
        seg_t all = { 0, p->s[r]->desc.count, 0, intern(&x->e, (node_t){ LEAF, r, 0 }) };
        if (all.expr == NOBODY) return rg_proof_nomem(p);
        if (all.len != 0 && !segs_add(p, &x->in[r], all)) return 0;
    }
    return 1;
}

int rg_proof_values(rg_proof_t *p) {
    run_t x = { .p = p };
    int ok = begin(&x);
    for (uint32_t i = 0; ok && i < p->total; i++) ok = run_step(&x, p->order[i]);
    if (ok) ok = check_result(&x);
    for (uint32_t r = 0; r < p->n; r++) {
        if (x.in != NULL) free(x.in[r].v);
        if (x.out != NULL) free(x.out[r].v);
        if (x.tmp != NULL) free(x.tmp[r].v);
    }
    free(x.in);
    free(x.out);
    free(x.tmp);
    free(x.x.v);
    free(x.y.v);
    free(x.z.v);
    free(x.e.v);
    free(x.e.ranks);
    free(x.e.table);
    return ok;
}
