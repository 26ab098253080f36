/* verify_races.c: the part of the verifier that proves, rank by rank, that steps which touch the same bytes have an
 * order by that rank's own dependencies, and for zero copy that what was sent is not written over before it was
 * consumed. Each buffer is cut at every place where an access begins or ends; per piece it is enough to compare a step
 * with the last write and with the reads since, because order is transitive. Relies on step numbers being an order in
 * time, which the form guarantees (dependencies are earlier steps). Pure: malloc and free only. */
#include "assume.h"
#include "verify.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Words of the table of "has been consumed before", which is made for so many messages at a time. */
#define BLOCK_WORDS 8u

/* ---- Sorting ---------------------------------------------------------------------------------------------------- */

void rg_proof_sort(rg_proof_key_t *v, rg_proof_key_t *spare, size_t n) {
    if (n < 48) {
        for (size_t i = 1; i < n; i++) {
            rg_proof_key_t x = v[i];
            size_t k = i;
            for (; k > 0 && v[k - 1].key > x.key; k--) v[k] = v[k - 1];
            v[k] = x;
        }
        return;
    }
    /* Byte by byte from the lowest, leaving out the bytes that all have in common. */
    uint64_t same_ones = UINT64_MAX, ones = 0;
    for (size_t i = 0; i < n; i++) {
        same_ones &= v[i].key;
        ones |= v[i].key;
    }
    rg_proof_key_t *from = v, *to = spare;
    for (uint32_t shift = 0; shift < 64; shift += 8) {
        if (((same_ones ^ ones) >> shift & 255) == 0) continue;
        size_t at[256] = { 0 }, sum = 0;
        for (size_t i = 0; i < n; i++) at[from[i].key >> shift & 255]++;
        for (uint32_t k = 0; k < 256; k++) {
            size_t these = at[k];
            at[k] = sum;
            sum += these;
        }
        for (size_t i = 0; i < n; i++) to[at[from[i].key >> shift & 255]++] = from[i];
        rg_proof_key_t *t = from;
        from = to;
        to = t;
    }
    if (from != v) memcpy(v, from, n * sizeof *v);
}

/* ---- Order within a rank ---------------------------------------------------------------------------------------- */

/* Fills the square of bits for rank r; of a row only what is left of the diagonal is valid. */
static void find_before(const rg_schedule_t *s, rg_before_t *b) {
    b->words = ((size_t)s->n_steps + 63) / 64;
    for (uint32_t i = 0; i < s->n_steps; i++) {
        uint64_t *mine = b->bits + i * b->words;
        memset(mine, 0, (i / 64 + 1) * sizeof *mine);
        for (uint32_t k = 0; k < s->steps[i].n_deps; k++) {
            uint32_t dep = s->deps[s->steps[i].first_dep + k];
            const uint64_t *its = b->bits + dep * b->words;
            if (mine[dep / 64] >> (dep % 64) & 1) continue; /* and so all that it follows */
            for (size_t w = 0; w <= dep / 64; w++) mine[w] |= its[w];
            mine[dep / 64] |= 1ull << (dep % 64);
        }
    }
}

static int comes_before(const rg_before_t *b, uint32_t early, uint32_t late) {
    return (int)(b->bits[late * b->words + early / 64] >> (early % 64) & 1);
}

/* ---- Accesses ---------------------------------------------------------------------------------------------------- */

typedef struct access {
    uint32_t mem, step, write;
    uint32_t input;       /* it reads what the rank put in */
    uint32_t first, last; /* pieces of the memory, the last not included */
    uint64_t off, end;
} access_t;

/* What happened to a piece so far. */
typedef struct piece {
    uint32_t writer; /* step, or NOBODY */
    uint32_t reads;  /* list of those since, or NOBODY */
} piece_t;

typedef struct read {
    uint32_t step, next;
} read_t;

/* A write over bytes that were sent: the receipt must be certain before. */
typedef struct query {
    uint32_t recv, write;
} query_t;

/* All that the search for races needs, for the longest schedule, used again for every rank. */
typedef struct work {
    rg_before_t before;
    access_t *v;
    rg_proof_key_t *keys, *spare;
    piece_t *pieces;
    read_t *reads;
    query_t *queries;
    size_t n_reads, cap_reads, n_queries, cap_queries;
} work_t;

static uint32_t add_access(const rg_proof_t *p, uint32_t r, access_t *v, uint32_t n, rg_span_t x, uint32_t step,
                           uint32_t write) {
    if (x.len == 0) return n;
    uint32_t input = x.buf == RG_BUF_IN && !write;
    x = proof_place(p, r, x);
    v[n] = (access_t){ x.buf, step, write, input, 0, 0, x.off, x.off + x.len };
    return n + 1;
}

/* By step, and of one step the reads first. */
static uint32_t list_accesses(const rg_proof_t *p, uint32_t r, access_t *v) {
    const rg_schedule_t *s = p->s[r];
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_steps; i++) {
        const rg_step_t *x = &s->steps[i];
        if (proof_idle(p, r, x)) continue;
        if (x->kind == RG_STEP_PREPARE) {
            n = add_access(p, r, v, n, rg_span(RG_BUF_AUX, 0, p->n), i, 0);
            n = add_access(p, r, v, n, rg_span(RG_BUF_IN, 0, p->sight[r].elems[RG_BUF_IN]), i, 1);
            continue;
        }
        if (x->kind != RG_STEP_RECV) n = add_access(p, r, v, n, x->a, i, 0);
        if (x->kind == RG_STEP_REDUCE) n = add_access(p, r, v, n, x->b, i, 0);
        if (x->kind != RG_STEP_SEND) n = add_access(p, r, v, n, x->dst, i, 1);
    }
    return n;
}

/* Cuts the memories where accesses begin and end, and tells each access its pieces. Returns how many there are. */
static uint32_t cut(work_t *w, uint32_t n) {
    uint32_t count[RG_BUFS] = { 0 }, base[RG_BUFS] = { 0 };
    uint64_t at[RG_BUFS] = { 0 };
    for (uint32_t i = 0; i < n; i++) {
        w->keys[2 * i] = (rg_proof_key_t){ w->v[i].off, i, 0 };
        w->keys[2 * i + 1] = (rg_proof_key_t){ w->v[i].end, i, 1 };
    }
    rg_proof_sort(w->keys, w->spare, 2 * (size_t)n);
    for (uint32_t i = 0; i < 2 * n; i++) {
        access_t *x = &w->v[w->keys[i].a];
        if (count[x->mem] == 0 || at[x->mem] != w->keys[i].key) {
            count[x->mem]++;
            at[x->mem] = w->keys[i].key;
        }
        *(w->keys[i].b ? &x->last : &x->first) = count[x->mem] - 1;
    }
    for (uint32_t m = 1; m < RG_BUFS; m++) base[m] = base[m - 1] + count[m - 1];
    for (uint32_t i = 0; i < n; i++) {
        w->v[i].first += base[w->v[i].mem];
        w->v[i].last += base[w->v[i].mem];
    }
    return base[RG_BUFS - 1] + count[RG_BUFS - 1];
}

static int add_query(rg_proof_t *p, work_t *w, query_t q) {
    const query_t *last = w->n_queries == 0 ? NULL : &w->queries[w->n_queries - 1];
    if (last != NULL && last->recv == q.recv && last->write == q.write) return 1;
    if (w->n_queries == w->cap_queries) {
        size_t cap = w->cap_queries == 0 ? 256 : w->cap_queries * 2;
        query_t *v = realloc(w->queries, cap * sizeof *v);
        if (v == NULL) return rg_proof_nomem(p);
        w->queries = v;
        w->cap_queries = cap;
    }
    RG_ASSUME(w->queries); /* they have the room that cap_queries says */
    w->queries[w->n_queries++] = q;
    return 1;
}

static int add_read(rg_proof_t *p, work_t *w, piece_t *piece, uint32_t step) {
    if (w->n_reads == w->cap_reads) {
        size_t cap = w->cap_reads == 0 ? 1024 : w->cap_reads * 2;
        read_t *v = cap < NOBODY ? realloc(w->reads, cap * sizeof *v) : NULL;
        if (v == NULL) return rg_proof_nomem(p);
        w->reads = v;
        w->cap_reads = cap;
    }
    w->reads[w->n_reads] = (read_t){ step, piece->reads };
    piece->reads = (uint32_t)w->n_reads++;
    return 1;
}

/* Step `early` touched what access y touches, one of them writing. */
static int check_pair(rg_proof_t *p, uint32_t r, work_t *w, uint32_t early, int wrote, const access_t *y) {
    uint32_t base = p->base[r];
    if (early == y->step) return 1;
    if (!comes_before(&w->before, early, y->step))
        return rg_proof_fail(p, base + y->step,
                             "race: nothing orders it after step %" PRIu32 " (%s), which %s the same bytes of %s",
                             early, rg_proof_kind(&p->s[r]->steps[early]), wrote ? "writes" : "reads",
                             y->mem == RG_BUF_TMP   ? "TMP"
                             : y->mem == RG_BUF_AUX ? "AUX"
                                                    : "IN or OUT");
    if ((p->s[r]->flags & RG_SCHED_ZERO_COPY) && y->write && p->s[r]->steps[early].kind == RG_STEP_SEND)
        return add_query(p, w, (query_t){ p->mate[base + early], base + y->step });
    return 1;
}

static int touch(rg_proof_t *p, uint32_t r, work_t *w, const access_t *x, piece_t *piece) {
    if (x->input && piece->writer != NOBODY) p->rereads = 1;
    if (!x->write)
        return (piece->writer == NOBODY || check_pair(p, r, w, piece->writer, 1, x)) && add_read(p, w, piece, x->step);
    RG_ASSUME(w->reads || piece->reads == NOBODY);
    for (uint32_t i = piece->reads; i != NOBODY; i = w->reads[i].next)
        if (!check_pair(p, r, w, w->reads[i].step, 0, x)) return 0;
    if (piece->writer != NOBODY && !check_pair(p, r, w, piece->writer, 1, x)) return 0;
    *piece = (piece_t){ x->step, NOBODY };
    return 1;
}

static int check_races(rg_proof_t *p, uint32_t r, work_t *w) {
    uint32_t n = list_accesses(p, r, w->v), pieces = cut(w, n);
    w->n_reads = 0;
    memset(w->pieces, 0xff, pieces * sizeof *w->pieces);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = w->v[i].first; k < w->v[i].last; k++)
            if (!touch(p, r, w, &w->v[i], &w->pieces[k])) return 0;
    return 1;
}

/* ---- Zero copy --------------------------------------------------------------------------------------------------- */

static int query_cmp(const void *a, const void *b) {
    const query_t *x = a, *y = b;
    if (x->recv != y->recv) return x->recv < y->recv ? -1 : 1;
    return x->write < y->write ? -1 : x->write > y->write;
}

/* Answers the queries from `at` on whose receives fit one block, by following what each step knows to have happened.
 * Returns where to go on, or 0. */
static size_t answer_block(rg_proof_t *p, const work_t *q, size_t at, uint64_t *bits, uint32_t *place) {
    uint32_t n = 0;
    size_t end = at;
    memset(bits, 0, (size_t)p->total * BLOCK_WORDS * sizeof *bits);
    for (; end < q->n_queries; end++) {
        if (end > at && q->queries[end].recv == q->queries[end - 1].recv) continue;
        if (n == BLOCK_WORDS * 64) break;
        place[q->queries[end].recv] = n++;
    }
    for (uint32_t i = 0; i < p->total; i++) {
        uint32_t g = p->order[i], base = p->base[p->owner[g]];
        const rg_step_t *x = proof_step(p, g);
        const uint32_t *deps = p->s[p->owner[g]]->deps + x->first_dep;
        uint64_t *mine = bits + (size_t)g * BLOCK_WORDS;
        for (uint32_t k = 0; k < x->n_deps; k++)
            for (uint32_t w = 0; w < BLOCK_WORDS; w++) mine[w] |= bits[(size_t)(base + deps[k]) * BLOCK_WORDS + w];
        if (x->kind == RG_STEP_RECV || x->kind == RG_STEP_RECV_REDUCE)
            for (uint32_t w = 0; w < BLOCK_WORDS; w++) mine[w] |= bits[(size_t)p->mate[g] * BLOCK_WORDS + w];
        if (place[g] != NOBODY) mine[place[g] / 64] |= 1ull << (place[g] % 64);
    }
    for (size_t i = at; i < end; i++) {
        uint32_t k = place[q->queries[i].recv];
        if (!(bits[(size_t)q->queries[i].write * BLOCK_WORDS + k / 64] >> (k % 64) & 1)) {
            uint32_t send = p->mate[q->queries[i].recv];
            rg_proof_fail(p, q->queries[i].write,
                          "zero-copy overwrite: rank %" PRIu32 " may not have consumed what step %" PRIu32 " sent",
                          p->owner[q->queries[i].recv], send - p->base[p->owner[send]]);
            return 0;
        }
    }
    for (size_t i = at; i < end; i++) place[q->queries[i].recv] = NOBODY;
    return end;
}

static int answer(rg_proof_t *p, work_t *q) {
    if (q->n_queries == 0) return 1;
    qsort(q->queries, q->n_queries, sizeof *q->queries, query_cmp);
    uint64_t *bits = malloc((size_t)p->total * BLOCK_WORDS * sizeof *bits);
    uint32_t *place = malloc((size_t)p->total * sizeof *place);
    int ok = 0;
    if (bits == NULL || place == NULL) {
        rg_proof_nomem(p);
    } else {
        memset(place, 0xff, (size_t)p->total * sizeof *place);
        size_t at = 0;
        do at = answer_block(p, q, at, bits, place);
        while (at != 0 && at < q->n_queries);
        ok = at != 0;
    }
    free(bits);
    free(place);
    return ok;
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* What a final value is multiplied by is known from PREPARE on, to this rank: that others have come so far, of which a
 * message tells, is no order within this rank. (In place it is a race, too, as PREPARE writes what OUT is part of; this
 * rule does not depend on where the buffers are.) */
static int check_weights(rg_proof_t *p, uint32_t r, const rg_before_t *b) {
    const rg_schedule_t *s = p->s[r];
    uint32_t gate = NOBODY;
    for (uint32_t i = 0; s->desc.prepare && i < s->n_steps; i++) {
        if (s->steps[i].kind == RG_STEP_PREPARE) gate = i;
        if ((s->steps[i].flags & RG_STEP_FINAL) && (gate == NOBODY || !comes_before(b, gate, i)))
            return rg_proof_fail(p, p->base[r] + i, "final before its weight: nothing orders it after PREPARE");
    }
    return 1;
}

/* ---- All ranks ----------------------------------------------------------------------------------------------------
 */

static int check_rank(rg_proof_t *p, uint32_t r, work_t *w, rg_proof_visit_fn visit, void *user) {
    find_before(p->s[r], &w->before);
    if (!check_weights(p, r, &w->before)) return 0;
    /* In place everything is found that is found otherwise, and more; but for a copy from IN to OUT in one place, which
     * is something only out of place. */
    int ok = 1, idle = 0;
    p->in_place = 1;
    for (uint32_t i = 0; !idle && i < p->s[r]->n_steps; i++) idle = proof_idle(p, r, &p->s[r]->steps[i]);
    for (p->in_place = p->sight[r].one && !idle; ok && p->in_place <= p->sight[r].one; p->in_place++)
        ok = check_races(p, r, w);
    p->in_place = 0;
    if (ok) visit(p, r, &w->before, user);
    return ok;
}

int rg_proof_races(rg_proof_t *p, rg_proof_visit_fn visit, void *user) {
    size_t most = 1;
    for (uint32_t r = 0; r < p->n; r++)
        if (p->s[r]->n_steps > most) most = p->s[r]->n_steps;
    /* What these hold stays; only reads and queries may have to move when they grow. */
    access_t *v = malloc(3 * most * sizeof *v);
    rg_proof_key_t *keys = malloc(6 * most * sizeof *keys), *spare = malloc(6 * most * sizeof *spare);
    piece_t *pieces = calloc(6 * most, sizeof *pieces);
    uint64_t *bits = malloc((most + 63) / 64 * most * sizeof *bits);
    work_t w = { .v = v, .keys = keys, .spare = spare, .pieces = pieces };
    w.before.bits = bits;
    int ok = v != NULL && keys != NULL && spare != NULL && pieces != NULL && bits != NULL;
    if (!ok) rg_proof_nomem(p);
    for (uint32_t r = 0; ok && r < p->n; r++) ok = check_rank(p, r, &w, visit, user);
    if (ok) ok = answer(p, &w);
    free(v);
    free(keys);
    free(spare);
    free(pieces);
    free(bits);
    free(w.reads);
    free(w.queries);
    return ok;
}
