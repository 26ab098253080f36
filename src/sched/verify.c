/* verify.c: proves that the schedules of all ranks, taken together, do what rules A1 to A7 of regroup_algorithm.h say.
 * This part checks the form of the steps, matches messages, finds an order of execution, and proves the absence of
 * deadlock, of races, of writes over bytes still being sent, and of an early end of the DONE barrier.
 * Deadlock is judged by the strictest engine there could be: a send ends only with its receive, and the messages of a
 * link go one after the other. Races want an order by this rank's own dependencies; zero copy and the barrier may also
 * rely on messages. Pure: malloc and free only. */
#include "verify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Beyond this a rank's schedule is too large for the bit tables below (half a GiB). */
#define STEPS_MAX 60000u
/* Words of the table of "has been consumed before", which is made for so many messages at a time. */
#define BLOCK_WORDS 8u

static const char *const kind_names[] = { "send", "recv", "recv_reduce", "reduce", "copy", "prepare" };
#define KINDS (sizeof kind_names / sizeof *kind_names)

int rg_proof_fail(rg_proof_t *p, uint32_t g, const char *fmt, ...) {
    if (p->status != RG_OK) return 0;
    p->status = RG_ERR_INVALID;
    int len = 0;
    if (g != NOBODY)
        len = snprintf(p->text, p->cap, "%srank %" PRIu32 " step %" PRIu32 " (%s): ", p->in_place ? "in place: " : "",
                       p->owner[g], g - p->base[p->owner[g]], kind_names[proof_step(p, g)->kind % KINDS]);
    if (len < 0 || (size_t)len >= p->cap) return 0;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->text + len, p->cap - (size_t)len, fmt, ap);
    va_end(ap);
    return 0;
}

int rg_proof_nomem(rg_proof_t *p) {
    if (p->status == RG_OK) {
        p->status = RG_ERR_NOMEM;
        snprintf(p->text, p->cap, "out of memory while proving");
    }
    return 0;
}

/* ---- Form ---------------------------------------------------------------------------------------------------- */

static int span_form(rg_proof_t *p, uint32_t g, const char *which, rg_span_t x) {
    const rg_schedule_t *s = p->s[p->owner[g]];
    if (x.buf >= RG_BUFS) return rg_proof_fail(p, g, "malformed: %s names no buffer", which);
    uint64_t size = x.buf == RG_BUF_TMP ? s->tmp_elems : rg_desc_elems(&s->desc, x.buf);
    if (x.len != 0 && (x.off > size || x.len > size - x.off))
        return rg_proof_fail(p, g, "out of bounds: %s is [%" PRIu64 "+%" PRIu64 "] of %" PRIu64, which, x.off, x.len,
                             size);
    if (x.buf == RG_BUF_AUX && proof_step(p, g)->kind > RG_STEP_RECV)
        return rg_proof_fail(p, g, "malformed: weights are only sent and received");
    return 1;
}

static int partial_overlap(rg_span_t x, rg_span_t y) {
    return x.off != y.off && x.off < y.off + y.len && y.off < x.off + x.len;
}

/* dst may be an operand, but not overlap one at another offset. */
static int operand_form(rg_proof_t *p, uint32_t g, rg_span_t dst, rg_span_t x) {
    if (!span_form(p, g, "an operand", x)) return 0;
    if (x.len != dst.len) return rg_proof_fail(p, g, "malformed: spans of %" PRIu64 " and %" PRIu64, dst.len, x.len);
    dst = proof_place(p, p->owner[g], dst);
    x = proof_place(p, p->owner[g], x);
    if (x.buf == dst.buf && partial_overlap(dst, x)) return rg_proof_fail(p, g, "race: the step overlaps itself");
    return 1;
}

static int flags_form(rg_proof_t *p, uint32_t g) {
    const rg_step_t *x = proof_step(p, g);
    const rg_schedule_t *s = p->s[p->owner[g]];
    if (((x->flags & RG_STEP_PHASE2) != 0) != (g - p->base[p->owner[g]] >= s->phase1_steps))
        return rg_proof_fail(p, g, "malformed: flag of phase 2 on the wrong side of the barrier's start");
    if (x->kind == RG_STEP_RECV && (x->flags & RG_STEP_FINAL))
        return rg_proof_fail(p, g, "malformed: a plain receive makes nothing final");
    if ((x->flags & RG_STEP_FINAL) && x->dst.buf == RG_BUF_TMP)
        return rg_proof_fail(p, g, "malformed: a final value belongs in OUT");
    if (x->kind == RG_STEP_PREPARE && (!s->desc.prepare || x->dst.len != 0 || x->a.len != 0 || x->b.len != 0))
        return rg_proof_fail(p, g, "malformed: nothing is to be prepared, or more than IN");
    return 1;
}

/* Whether values pass unchanged from TMP to OUT: where the kind reduces, only the final value may, and is rounded. */
static int plain_copies(const rg_coll_desc_t *d) { return !rg_kind_reduces(d->kind) && d->acc_size == d->elem_size; }

static int step_form(rg_proof_t *p, uint32_t g) {
    const rg_step_t *x = proof_step(p, g);
    const rg_schedule_t *s = p->s[p->owner[g]];
    uint32_t id = g - p->base[p->owner[g]];
    if (x->kind > RG_STEP_PREPARE) return rg_proof_fail(p, g, "malformed: no such kind of step");
    if (x->first_dep > s->n_deps || x->n_deps > s->n_deps - x->first_dep)
        return rg_proof_fail(p, g, "malformed: dependencies out of bounds");
    for (uint32_t i = 0; i < x->n_deps; i++)
        if (s->deps[x->first_dep + i] >= id)
            return rg_proof_fail(p, g, "malformed: depends on a step that is not earlier");
    if (x->kind <= RG_STEP_RECV_REDUCE && (x->peer >= p->n || x->peer == p->owner[g]))
        return rg_proof_fail(p, g, "out of bounds: peer %" PRIu32 " of %" PRIu32, x->peer, p->n);
    if (!flags_form(p, g)) return 0;
    if (x->kind == RG_STEP_PREPARE) return 1;
    if (x->kind == RG_STEP_SEND) return span_form(p, g, "the source", x->a);
    if (!span_form(p, g, "the destination", x->dst)) return 0;
    if (x->dst.buf == RG_BUF_IN) return rg_proof_fail(p, g, "malformed: writes to IN");
    if (x->kind == RG_STEP_RECV) return 1;
    if (x->kind == RG_STEP_COPY && x->a.buf == RG_BUF_TMP && !(x->flags & RG_STEP_FINAL) && !plain_copies(&s->desc))
        return rg_proof_fail(p, g, "partial value in OUT: a copy from TMP has to be final");
    return operand_form(p, g, x->dst, x->a) && (x->kind != RG_STEP_REDUCE || operand_form(p, g, x->dst, x->b));
}

/* What goes from rank r to rank q must be what q expects, where everyone says it for himself. */
static int same_segments(rg_proof_t *p) {
    const rg_coll_desc_t *a = &p->s[0]->desc;
    for (uint32_t r = 0; r < p->n; r++) {
        const rg_coll_desc_t *b = &p->s[r]->desc;
        for (uint32_t q = 0; q < p->n; q++) {
            uint64_t want = a->kind == RG_KIND_ALL_TO_ALL ? rg_seg_in(&p->s[q]->desc, r).len : rg_seg_len(a, q);
            if (rg_seg_len(b, q) != want)
                return rg_proof_fail(p, NOBODY,
                                     "malformed: rank %" PRIu32 " expects %" PRIu64 " elements in segment %" PRIu32
                                     " and not %" PRIu64,
                                     r, rg_seg_len(b, q), q, want);
        }
    }
    return 1;
}

static int same_operation(rg_proof_t *p) {
    const rg_coll_desc_t *a = &p->s[0]->desc;
    for (uint32_t r = 0; r < p->n; r++) {
        const rg_coll_desc_t *b = &p->s[r]->desc;
        if (b->rank != r || b->size != p->n)
            return rg_proof_fail(
                p, NOBODY, "malformed: schedule %" PRIu32 " is not that of rank %" PRIu32 " of %" PRIu32, r, r, p->n);
        if (a->kind != b->kind || (rg_kind_rooted(a->kind) && a->root != b->root) || a->elem_size != b->elem_size ||
            (a->count != b->count && a->kind != RG_KIND_ALL_TO_ALL) || a->rule_l != b->rule_l ||
            a->prepare != b->prepare || !rg_desc_ok(b))
            return rg_proof_fail(p, NOBODY, "malformed: ranks 0 and %" PRIu32 " describe different operations", r);
        if (p->s[r]->n_steps > STEPS_MAX || p->s[r]->phase1_steps > p->s[r]->n_steps)
            return rg_proof_fail(p, NOBODY, "malformed: rank %" PRIu32 " has more steps than can be proved", r);
    }
    return !rg_kind_segmented(a->kind) || same_segments(p);
}

/* Which buffers a rank has, and how they lie when IN and OUT are one memory. */
static rg_sight_t sight_of(const rg_coll_desc_t *d) {
    rg_sight_t v = { rg_desc_has(d, RG_BUF_IN), rg_desc_has(d, RG_BUF_OUT), 0, 0, 0 };
    v.one = v.has_in && v.has_out && d->kind != RG_KIND_ALL_TO_ALL && d->kind != RG_KIND_P2P;
    uint64_t mine = rg_kind_segmented(d->kind) ? rg_seg(d, RG_BUF_IN, d->rank).off : 0;
    if (d->kind == RG_KIND_ALL_GATHER || d->kind == RG_KIND_GATHER) v.shift_in = mine;
    if (d->kind == RG_KIND_REDUCE_SCATTER || d->kind == RG_KIND_SCATTER) v.shift_out = mine;
    return v;
}

/* ---- Messages ------------------------------------------------------------------------------------------------ */

static int is_message(const rg_step_t *x) { return x->kind <= RG_STEP_RECV_REDUCE; }

/* A message as one of its ends sees it: link (sender, receiver), ordinal. */
typedef struct end {
    uint64_t link;
    uint32_t ord, g;
} end_t;

static int end_cmp(const void *a, const void *b) {
    const end_t *x = a, *y = b;
    if (x->link != y->link) return x->link < y->link ? -1 : 1;
    if (x->ord != y->ord) return x->ord < y->ord ? -1 : 1;
    return x->g < y->g ? -1 : x->g > y->g;
}

static int pair_up(rg_proof_t *p, uint32_t send, uint32_t recv) {
    const rg_step_t *a = proof_step(p, send), *b = proof_step(p, recv);
    if (a->a.len != b->dst.len)
        return rg_proof_fail(
            p, recv, "unmatched message: %" PRIu64 " elements come from rank %" PRIu32 ", %" PRIu64 " are expected",
            a->a.len, p->owner[send], b->dst.len);
    if (a->a.len != 0 && (a->a.buf == RG_BUF_AUX) != (b->dst.buf == RG_BUF_AUX))
        return rg_proof_fail(p, recv, "unmatched message: weights on one side, and elements on the other");
    int acc = a->a.buf == RG_BUF_TMP;
    int expected = b->kind == RG_STEP_RECV ? b->dst.buf == RG_BUF_TMP : (b->flags & RG_STEP_WIRE_ACC) != 0;
    const rg_coll_desc_t *d = &p->s[0]->desc;
    if (a->a.len != 0 && acc != expected && (rg_kind_reduces(d->kind) || d->acc_size != d->elem_size))
        return rg_proof_fail(p, recv, "unmatched message: rank %" PRIu32 " sends %s elements", p->owner[send],
                             acc ? "partial" : "raw");
    p->mate[send] = recv;
    p->mate[recv] = send;
    return 1;
}

/* Finds the two ends of every message, and the message after it on its link (by the send's number). */
static int match(rg_proof_t *p, uint32_t *next) {
    end_t *ends = malloc(((size_t)p->total + 1) * sizeof *ends);
    if (ends == NULL) return rg_proof_nomem(p);
    uint32_t k = 0;
    for (uint32_t g = 0; g < p->total; g++) {
        const rg_step_t *x = proof_step(p, g);
        if (!is_message(x)) continue;
        uint32_t from = x->kind == RG_STEP_SEND ? p->owner[g] : x->peer,
                 to = x->kind == RG_STEP_SEND ? x->peer : p->owner[g];
        ends[k++] = (end_t){ (uint64_t)from << 32 | to, x->ord, g };
    }
    qsort(ends, k, sizeof *ends, end_cmp);
    int ok = 1;
    uint32_t before = NOBODY;
    for (uint32_t i = 0; ok && i < k; i += 2) {
        uint32_t a = ends[i].g, b = i + 1 < k ? ends[i + 1].g : NOBODY;
        if (b == NOBODY || ends[i].link != ends[i + 1].link || ends[i].ord != ends[i + 1].ord)
            ok = rg_proof_fail(
                p, a, "unmatched message: nobody is at the other end of message %" PRIu32 " %s rank %" PRIu32,
                ends[i].ord, proof_step(p, a)->kind == RG_STEP_SEND ? "to" : "from", proof_step(p, a)->peer);
        else if ((proof_step(p, a)->kind == RG_STEP_SEND) == (proof_step(p, b)->kind == RG_STEP_SEND))
            ok = rg_proof_fail(p, b, "unmatched message: message %" PRIu32 " has two ends of one kind", ends[i].ord);
        else if (proof_step(p, a)->kind != RG_STEP_SEND) ok = pair_up(p, b, a), a = b;
        else ok = pair_up(p, a, b);
        if (!ok) break;
        if (before != NOBODY && ends[i].link == ((uint64_t)p->owner[before] << 32 | proof_step(p, before)->peer))
            next[before] = a;
        before = a;
    }
    free(ends);
    return ok;
}

/* ---- Order and deadlock -------------------------------------------------------------------------------------- */

/* Who waits for a step: lists, as offsets into one array. */
static void list_waiters(const rg_proof_t *p, uint32_t *first, uint32_t *list, uint32_t *waits) {
    for (uint32_t g = 0; g < p->total; g++) {
        const rg_step_t *x = proof_step(p, g);
        const uint32_t *deps = p->s[p->owner[g]]->deps + x->first_dep;
        waits[g] += x->n_deps;
        for (uint32_t i = 0; i < x->n_deps; i++) first[p->base[p->owner[g]] + deps[i] + 2]++;
    }
    for (uint32_t g = 2; g < p->total + 2; g++) first[g] += first[g - 1];
    for (uint32_t g = 0; g < p->total; g++) {
        const rg_step_t *x = proof_step(p, g);
        const uint32_t *deps = p->s[p->owner[g]]->deps + x->first_dep;
        for (uint32_t i = 0; i < x->n_deps; i++) list[first[p->base[p->owner[g]] + deps[i] + 1]++] = g;
    }
}

typedef struct queue {
    uint32_t *todo, n;
    uint32_t *waits;
} queue_t;

/* A step whose dependencies are met runs at once, a message when both ends are ready. */
static void now_ready(const rg_proof_t *p, queue_t *q, uint32_t g) {
    if (p->mate[g] == NOBODY) {
        q->todo[q->n++] = g;
    } else if (q->waits[p->mate[g]] == 0) {
        q->todo[q->n++] = proof_step(p, g)->kind == RG_STEP_SEND ? g : p->mate[g];
    }
}

static void one_less(const rg_proof_t *p, queue_t *q, uint32_t g) {
    if (--q->waits[g] == 0) now_ready(p, q, g);
}

static int stuck(rg_proof_t *p, const queue_t *q) {
    for (uint32_t g = 0; g < p->total; g++)
        if (q->waits[g] == 0 && p->mate[g] != NOBODY && q->waits[p->mate[g]] != 0 && q->waits[p->mate[g]] != NOBODY)
            return rg_proof_fail(p, g, "deadlock: waits for ever for rank %" PRIu32 " step %" PRIu32,
                                 p->owner[p->mate[g]], p->mate[g] - p->base[p->owner[p->mate[g]]]);
    for (uint32_t g = 0; g < p->total; g++)
        if (q->waits[g] != NOBODY) return rg_proof_fail(p, g, "deadlock: can never start");
    return 1;
}

static int run_order(rg_proof_t *p, const uint32_t *next, const uint32_t *first, const uint32_t *list, queue_t *q) {
    uint32_t done = 0;
    for (uint32_t g = 0; g < p->total; g++)
        if (next[g] != NOBODY) q->waits[next[g]]++;
    for (uint32_t g = 0; g < p->total; g++)
        if (q->waits[g] == 0 && (p->mate[g] == NOBODY || proof_step(p, g)->kind == RG_STEP_SEND)) now_ready(p, q, g);
    while (q->n != 0) {
        uint32_t both[2] = { q->todo[--q->n], NOBODY };
        both[1] = p->mate[both[0]];
        for (int k = 0; k < 2 && both[k] != NOBODY; k++) {
            p->order[done++] = both[k];
            q->waits[both[k]] = NOBODY; /* it has run, and cannot become ready again */
        }
        for (int k = 0; k < 2 && both[k] != NOBODY; k++)
            for (uint32_t i = first[both[k]]; i < first[both[k] + 1]; i++) one_less(p, q, list[i]);
        if (both[1] != NOBODY && next[both[0]] != NOBODY) one_less(p, q, next[both[0]]);
    }
    return done == p->total ? 1 : stuck(p, q);
}

static int find_order(rg_proof_t *p) {
    size_t deps = 0, total = p->total;
    for (uint32_t r = 0; r < p->n; r++) deps += p->s[r]->n_deps;
    uint32_t *next = malloc((total + 1) * sizeof *next), *first = calloc(total + 2, sizeof *first);
    uint32_t *list = malloc((deps + 1) * sizeof *list), *waits = calloc(total + 1, sizeof *waits);
    uint32_t *todo = malloc((total + 1) * sizeof *todo);
    int ok = 0;
    if (next == NULL || first == NULL || list == NULL || waits == NULL || todo == NULL) {
        rg_proof_nomem(p);
    } else {
        memset(next, 0xff, (total + 1) * sizeof *next);
        queue_t q = { todo, 0, waits };
        ok = match(p, next);
        if (ok) {
            list_waiters(p, first, list, waits);
            ok = run_order(p, next, first, list, &q);
        }
    }
    free(next);
    free(first);
    free(list);
    free(waits);
    free(todo);
    return ok;
}

/* ---- Races and zero copy --------------------------------------------------------------------------------------- */

/* Which steps of a rank come before which by its own dependencies: a square of bits. */
typedef struct before {
    uint64_t *bits;
    size_t words;
} before_t;

static int comes_before(const before_t *b, uint32_t early, uint32_t late) {
    return (int)(b->bits[late * b->words + early / 64] >> (early % 64) & 1);
}

static int find_before(rg_proof_t *p, uint32_t r, before_t *b) {
    const rg_schedule_t *s = p->s[r];
    b->words = ((size_t)s->n_steps + 63) / 64;
    b->bits = calloc(b->words * s->n_steps + 1, sizeof *b->bits);
    if (b->bits == NULL) return rg_proof_nomem(p);
    for (uint32_t i = 0; i < s->n_steps; i++) {
        uint64_t *mine = b->bits + i * b->words;
        for (uint32_t k = 0; k < s->steps[i].n_deps; k++) {
            uint32_t dep = s->deps[s->steps[i].first_dep + k];
            const uint64_t *its = b->bits + dep * b->words;
            for (size_t w = 0; w <= dep / 64; w++) mine[w] |= its[w];
            mine[dep / 64] |= 1ull << (dep % 64);
        }
    }
    return 1;
}

typedef struct access {
    uint64_t off, end;
    uint32_t mem, step, write;
} access_t;

/* A write over bytes that were sent: the receipt must be certain before. */
typedef struct query {
    uint32_t recv, write;
} query_t;

typedef struct queries {
    query_t *v;
    size_t n, cap;
} queries_t;

static int access_cmp(const void *a, const void *b) {
    const access_t *x = a, *y = b;
    if (x->mem != y->mem) return x->mem < y->mem ? -1 : 1;
    if (x->off != y->off) return x->off < y->off ? -1 : 1;
    return x->step < y->step ? -1 : x->step > y->step;
}

static uint32_t add_access(const rg_proof_t *p, const rg_schedule_t *s, access_t *v, uint32_t n, rg_span_t x,
                           uint32_t step, uint32_t write) {
    if (x.len == 0) return n;
    x = proof_place(p, s->desc.rank, x);
    v[n] = (access_t){ x.off, x.off + x.len, x.buf, step, write };
    return n + 1;
}

static uint32_t list_accesses(const rg_proof_t *p, const rg_schedule_t *s, access_t *v) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_steps; i++) {
        const rg_step_t *x = &s->steps[i];
        if (proof_idle(p, s->desc.rank, x)) continue;
        if (x->kind == RG_STEP_PREPARE) {
            n = add_access(p, s, v, n, rg_span(RG_BUF_AUX, 0, s->desc.size), i, 0);
            n = add_access(p, s, v, n, rg_span(RG_BUF_IN, 0, rg_desc_elems(&s->desc, RG_BUF_IN)), i, 1);
            continue;
        }
        if (x->kind != RG_STEP_RECV) n = add_access(p, s, v, n, x->a, i, 0);
        if (x->kind == RG_STEP_REDUCE) n = add_access(p, s, v, n, x->b, i, 0);
        if (x->kind != RG_STEP_SEND) n = add_access(p, s, v, n, x->dst, i, 1);
    }
    return n;
}

static int add_query(rg_proof_t *p, queries_t *q, uint32_t recv, uint32_t write) {
    if (q->n == q->cap) {
        size_t cap = q->cap == 0 ? 256 : q->cap * 2;
        query_t *v = realloc(q->v, cap * sizeof *v);
        if (v == NULL) return rg_proof_nomem(p);
        q->v = v;
        q->cap = cap;
    }
    q->v[q->n++] = (query_t){ recv, write };
    return 1;
}

/* Two accesses that overlap, one of them a write. */
static int check_pair(rg_proof_t *p, uint32_t r, const before_t *b, const access_t *x, const access_t *y,
                      queries_t *q) {
    if (x->step > y->step) {
        const access_t *t = x;
        x = y;
        y = t;
    }
    uint32_t base = p->base[r];
    if (!comes_before(b, x->step, y->step))
        return rg_proof_fail(p, base + y->step,
                             "race: nothing orders it after step %" PRIu32 " (%s), which %s the same bytes of %s",
                             x->step, kind_names[p->s[r]->steps[x->step].kind], x->write ? "writes" : "reads",
                             x->mem == RG_BUF_TMP   ? "TMP"
                             : x->mem == RG_BUF_AUX ? "AUX"
                                                    : "IN or OUT");
    if ((p->s[r]->flags & RG_SCHED_ZERO_COPY) && y->write && p->s[r]->steps[x->step].kind == RG_STEP_SEND)
        return add_query(p, q, p->mate[base + x->step], base + y->step);
    return 1;
}

static int check_races(rg_proof_t *p, uint32_t r, const before_t *b, queries_t *q) {
    const rg_schedule_t *s = p->s[r];
    access_t *v = malloc(((size_t)s->n_steps * 3 + 1) * sizeof *v);
    if (v == NULL) return rg_proof_nomem(p);
    uint32_t n = list_accesses(p, s, v);
    qsort(v, n, sizeof *v, access_cmp);
    int ok = 1;
    for (uint32_t i = 0; ok && i < n; i++)
        for (uint32_t k = i + 1; ok && k < n && v[k].mem == v[i].mem && v[k].off < v[i].end; k++)
            if ((v[i].write || v[k].write) && v[i].step != v[k].step) ok = check_pair(p, r, b, &v[i], &v[k], q);
    free(v);
    return ok;
}

static int query_cmp(const void *a, const void *b) {
    const query_t *x = a, *y = b;
    if (x->recv != y->recv) return x->recv < y->recv ? -1 : 1;
    return x->write < y->write ? -1 : x->write > y->write;
}

/* Answers the queries from `at` on whose receives fit one block, by following what each step knows to have happened.
 * Returns where to go on, or 0. */
static size_t answer_block(rg_proof_t *p, const queries_t *q, size_t at, uint64_t *bits, uint32_t *place) {
    uint32_t n = 0;
    size_t end = at;
    memset(bits, 0, (size_t)p->total * BLOCK_WORDS * sizeof *bits);
    for (; end < q->n; end++) {
        if (end > at && q->v[end].recv == q->v[end - 1].recv) continue;
        if (n == BLOCK_WORDS * 64) break;
        place[q->v[end].recv] = n++;
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
        uint32_t k = place[q->v[i].recv];
        if (!(bits[(size_t)q->v[i].write * BLOCK_WORDS + k / 64] >> (k % 64) & 1)) {
            uint32_t send = p->mate[q->v[i].recv];
            rg_proof_fail(p, q->v[i].write,
                          "zero-copy overwrite: rank %" PRIu32 " may not have consumed what step %" PRIu32 " sent",
                          p->owner[q->v[i].recv], send - p->base[p->owner[send]]);
            return 0;
        }
    }
    for (size_t i = at; i < end; i++) place[q->v[i].recv] = NOBODY;
    return end;
}

static int answer(rg_proof_t *p, queries_t *q) {
    if (q->n == 0) return 1;
    qsort(q->v, q->n, sizeof *q->v, query_cmp);
    uint64_t *bits = malloc((size_t)p->total * BLOCK_WORDS * sizeof *bits);
    uint32_t *place = malloc((size_t)p->total * sizeof *place);
    int ok = 0;
    if (bits == NULL || place == NULL) {
        rg_proof_nomem(p);
    } else {
        memset(place, 0xff, (size_t)p->total * sizeof *place);
        size_t at = 0;
        do at = answer_block(p, q, at, bits, place);
        while (at != 0 && at < q->n);
        ok = at != 0;
    }
    free(bits);
    free(place);
    return ok;
}

/* ---- The barrier ------------------------------------------------------------------------------------------------ */

/* Whether phase-2 step i of rank r follows everything that the rank does in phase 1. */
static int follows_all(const rg_schedule_t *s, const before_t *b, uint32_t i) {
    uint32_t seen = 0;
    const uint64_t *mine = b->bits + i * b->words;
    for (uint32_t w = 0; w * 64 < s->phase1_steps; w++) {
        uint64_t bits = mine[w];
        if (s->phase1_steps - w * 64 < 64) bits &= (1ull << (s->phase1_steps - w * 64)) - 1;
        seen += (uint32_t)__builtin_popcountll(bits);
    }
    return seen == s->phase1_steps;
}

/* know: by step, the ranks of which it is certain there that they have done their part, which is phase 1, or for a
 * barrier, to have come. On entry each step knows of its own rank or not. At the end each rank must know of all. */
static int check_known(rg_proof_t *p, uint64_t *know, int phase2) {
    size_t words = ((size_t)p->n + 63) / 64;
    uint64_t *all = calloc(words * p->n, sizeof *all);
    if (all == NULL) return rg_proof_nomem(p);
    for (uint32_t i = 0; i < p->total; i++) {
        uint32_t g = p->order[i], r = p->owner[g], id = g - p->base[r];
        const rg_step_t *x = proof_step(p, g);
        uint64_t *mine = know + g * words;
        for (uint32_t k = 0; k <= x->n_deps; k++) {
            uint32_t from = k < x->n_deps             ? p->base[r] + p->s[r]->deps[x->first_dep + k]
                            : x->kind == RG_STEP_SEND ? NOBODY
                                                      : p->mate[g];
            for (size_t w = 0; from != NOBODY && w < words; w++) mine[w] |= know[from * words + w];
        }
        for (size_t w = 0; w < words && (phase2 || id < p->s[r]->phase1_steps); w++) all[r * words + w] |= mine[w];
    }
    int ok = 1;
    for (uint32_t r = 0; ok && r < p->n; r++)
        for (uint32_t q = 0; ok && q < p->n; q++)
            if (q != r && !(all[r * words + q / 64] >> (q % 64) & 1))
                ok = rg_proof_fail(
                    p, NOBODY,
                    phase2 ? "early DONE: rank %" PRIu32 " can end before rank %" PRIu32 " has ended phase 1"
                           : "wrong result: rank %" PRIu32 " can leave the barrier before rank %" PRIu32 " has come",
                    r, q);
    free(all);
    return ok;
}

/* ---- All of it
 * --------------------------------------------------------------------------------------------------- */

static int check_barriers(rg_proof_t *p, uint64_t *know) {
    size_t words = ((size_t)p->n + 63) / 64;
    if (p->n > 1 && p->s[0]->desc.rule_l && !check_known(p, know, 1)) return 0;
    if (p->n == 1 || p->s[0]->desc.kind != RG_KIND_BARRIER) return 1;
    memset(know, 0, (size_t)p->total * words * sizeof *know);
    for (uint32_t g = 0; g < p->total; g++) know[g * words + p->owner[g] / 64] |= 1ull << (p->owner[g] % 64);
    return check_known(p, know, 0);
}

/* What needs the order of a rank's own steps, in one pass so that the bits of one rank at a time are in memory. */
static int check_ranks(rg_proof_t *p, queries_t *q) {
    size_t words = ((size_t)p->n + 63) / 64;
    uint64_t *know = calloc((size_t)p->total * words + 1, sizeof *know);
    if (know == NULL) return rg_proof_nomem(p);
    int ok = 1;
    for (uint32_t r = 0; ok && r < p->n; r++) {
        const rg_schedule_t *s = p->s[r];
        before_t b = { NULL, 0 };
        ok = find_before(p, r, &b);
        /* The second pass merges IN and OUT, and so finds all that the first would and more; but for a copy from IN to
         * OUT in one place, which is something only out of place. */
        for (p->in_place = 0; ok && p->in_place < 2; p->in_place++) ok = check_races(p, r, &b, q);
        p->in_place = 0;
        for (uint32_t i = s->phase1_steps; ok && i < s->n_steps; i++)
            if (follows_all(s, &b, i)) know[(p->base[r] + i) * words + r / 64] |= 1ull << (r % 64);
        free(b.bits);
    }
    if (ok) ok = answer(p, q);
    if (ok) ok = check_barriers(p, know);
    free(know);
    return ok;
}

static int zero_copy_form(rg_proof_t *p) {
    for (uint32_t r = 0; r < p->n; r++)
        if ((p->s[r]->flags & RG_SCHED_ZERO_COPY) && !p->s[r]->desc.rule_l)
            return rg_proof_fail(p, NOBODY,
                                 "zero-copy overwrite: without the DONE barrier rank %" PRIu32
                                 " cannot know that its last bytes were consumed",
                                 r);
    return 1;
}

static int prove(rg_proof_t *p) {
    if (!same_operation(p)) return 0;
    for (uint32_t r = 0; r < p->n; r++) {
        p->sight[r] = sight_of(&p->s[r]->desc);
        for (uint32_t i = 0; i < p->s[r]->n_steps; i++) p->owner[p->base[r] + i] = r;
    }
    for (p->in_place = 0; p->in_place < 2; p->in_place++)
        for (uint32_t g = 0; g < p->total; g++)
            if (!step_form(p, g)) return 0;
    p->in_place = 0;
    if (!find_order(p) || !zero_copy_form(p)) return 0;
    queries_t q = { NULL, 0, 0 };
    int ok = check_ranks(p, &q);
    free(q.v);
    /* Last: with a race the values would depend on the order that was found. */
    for (p->in_place = 0; ok && p->in_place < 2; p->in_place++) ok = rg_proof_values(p);
    return ok;
}

rg_status_t rg_sched_verify(rg_schedule_t *const *s, uint32_t n, char *text, size_t cap) {
    rg_proof_t p = { .s = s, .n = n, .text = text, .cap = cap };
    if (cap != 0) text[0] = 0;
    uint64_t total = 0;
    for (uint32_t r = 0; r < n; r++) total += s[r]->n_steps;
    if (n == 0 || total >= NOBODY) {
        rg_proof_fail(&p, NOBODY, "malformed: no ranks, or more steps than can be proved");
        return p.status;
    }
    p.total = (uint32_t)total;
    p.base = malloc(((size_t)n + 1) * sizeof *p.base);
    p.owner = malloc((total + 1) * sizeof *p.owner);
    p.mate = malloc((total + 1) * sizeof *p.mate);
    p.order = malloc((total + 1) * sizeof *p.order);
    p.sight = malloc(n * sizeof *p.sight);
    if (p.sight == NULL || p.base == NULL || p.owner == NULL || p.mate == NULL || p.order == NULL) {
        rg_proof_nomem(&p);
    } else {
        memset(p.mate, 0xff, (total + 1) * sizeof *p.mate);
        p.base[0] = 0;
        for (uint32_t r = 0; r < n; r++) p.base[r + 1] = p.base[r] + s[r]->n_steps;
        prove(&p);
    }
    free(p.base);
    free(p.owner);
    free(p.mate);
    free(p.order);
    free(p.sight);
    return p.status;
}
