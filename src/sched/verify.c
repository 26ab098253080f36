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
/* What names a message is one number: its ordinal, below the steps that there may be, and two ranks. */
#define ORD_BITS 16
#define RANK_BITS 24

const char *rg_proof_kind(const rg_step_t *x) {
    static const char *const names[] = { "send", "recv", "recv_reduce", "reduce", "copy", "prepare" };
    return x->kind < sizeof names / sizeof *names ? names[x->kind] : "?";
}

int(rg_proof_fail)(rg_proof_t *p, uint32_t g, const char *fmt, ...) {
    if (p->status != RG_OK) return 0;
    p->status = RG_ERR_INVALID;
    int len = 0;
    if (g != NOBODY)
        len = snprintf(p->text, p->cap, "%srank %" PRIu32 " step %" PRIu32 " (%s): ", p->in_place ? "in place: " : "",
                       p->owner[g], g - p->base[p->owner[g]], rg_proof_kind(proof_step(p, g)));
    if (len < 0 || (size_t)len >= p->cap) return 0;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->text + len, p->cap - (size_t)len, fmt, ap);
    va_end(ap);
    return 0;
}

int(rg_proof_nomem)(rg_proof_t *p) {
    if (p->status == RG_OK) {
        p->status = RG_ERR_NOMEM;
        snprintf(p->text, p->cap, "out of memory while proving");
    }
    return 0;
}

/* ---- Form ---------------------------------------------------------------------------------------------------- */

static int span_form(rg_proof_t *p, uint32_t g, const char *which, rg_span_t x) {
    if (x.buf >= RG_BUFS) return rg_proof_fail(p, g, "malformed: %s names no buffer", which);
    uint64_t size = p->sight[p->owner[g]].elems[x.buf];
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
        if (!b->rule_l && p->s[r]->phase1_steps != p->s[r]->n_steps)
            return rg_proof_fail(p, NOBODY, "early DONE: rank %" PRIu32 " shows the result before its last steps", r);
        if (p->s[r]->n_steps > STEPS_MAX || p->s[r]->phase1_steps > p->s[r]->n_steps)
            return rg_proof_fail(p, NOBODY, "malformed: rank %" PRIu32 " has more steps than can be proved", r);
    }
    return !rg_kind_segmented(a->kind) || same_segments(p);
}

/* Which buffers a rank has, and how they lie when IN and OUT are one memory. */
static rg_sight_t sight_of(const rg_schedule_t *s) {
    const rg_coll_desc_t *d = &s->desc;
    rg_sight_t v = { .has_in = rg_desc_has(d, RG_BUF_IN), .has_out = rg_desc_has(d, RG_BUF_OUT) };
    for (int b = 0; b < RG_BUFS; b++) v.elems[b] = b == RG_BUF_TMP ? s->tmp_elems : rg_desc_elems(d, (rg_buf_t)b);
    v.one = v.has_in && v.has_out && d->kind != RG_KIND_ALL_TO_ALL && d->kind != RG_KIND_P2P;
    uint64_t mine = rg_kind_segmented(d->kind) ? rg_seg(d, RG_BUF_IN, d->rank).off : 0;
    if (d->kind == RG_KIND_ALL_GATHER || d->kind == RG_KIND_GATHER) v.shift_in = mine;
    if (d->kind == RG_KIND_REDUCE_SCATTER || d->kind == RG_KIND_SCATTER) v.shift_out = mine;
    return v;
}

/* ---- Messages ------------------------------------------------------------------------------------------------ */

static int is_message(const rg_step_t *x) { return x->kind <= RG_STEP_RECV_REDUCE; }

/* A message as one of its ends sees it: sender, receiver, ordinal. */
static uint64_t end_key(const rg_proof_t *p, uint32_t g) {
    const rg_step_t *x = proof_step(p, g);
    uint64_t from = x->kind == RG_STEP_SEND ? p->owner[g] : x->peer;
    uint64_t to = x->kind == RG_STEP_SEND ? x->peer : p->owner[g];
    return from << ORD_BITS << RANK_BITS | to << ORD_BITS | x->ord;
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
static int match_ends(rg_proof_t *p, const rg_proof_key_t *ends, uint32_t n, uint32_t *next) {
    uint32_t before = NOBODY;
    uint64_t link = 0;
    for (uint32_t i = 0; i < n; i += 2) {
        uint32_t a = ends[i].a, b = i + 1 < n ? ends[i + 1].a : NOBODY;
        const rg_step_t *x = proof_step(p, a);
        if (b == NOBODY || ends[i].key != ends[i + 1].key)
            return rg_proof_fail(
                p, a, "unmatched message: nobody is at the other end of message %" PRIu32 " %s rank %" PRIu32, x->ord,
                x->kind == RG_STEP_SEND ? "to" : "from", x->peer);
        if ((x->kind == RG_STEP_SEND) == (proof_step(p, b)->kind == RG_STEP_SEND))
            return rg_proof_fail(p, b, "unmatched message: message %" PRIu32 " has two ends of one kind", x->ord);
        if (x->kind != RG_STEP_SEND) {
            uint32_t t = a;
            a = b;
            b = t;
        }
        if (!pair_up(p, a, b)) return 0;
        if (before != NOBODY && link == ends[i].key >> ORD_BITS) next[before] = a;
        before = a;
        link = ends[i].key >> ORD_BITS;
    }
    return 1;
}

static int match(rg_proof_t *p, uint32_t *next) {
    rg_proof_key_t *ends = malloc(2 * ((size_t)p->total + 1) * sizeof *ends);
    if (ends == NULL) return rg_proof_nomem(p);
    uint32_t n = 0;
    int ok = 1;
    for (uint32_t g = 0; ok && g < p->total; g++) {
        if (!is_message(proof_step(p, g))) continue;
        if (proof_step(p, g)->ord >> ORD_BITS != 0)
            ok = rg_proof_fail(p, g, "unmatched message: there are not so many between two ranks");
        ends[n++] = (rg_proof_key_t){ end_key(p, g), g, 0 };
    }
    if (ok) {
        rg_proof_sort(ends, ends + p->total + 1, n);
        ok = match_ends(p, ends, n, next);
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

/* ---- The barrier ------------------------------------------------------------------------------------------------ */

/* What is certain at a step: of which ranks it is known that they have done their part, which is phase 1, or for a
 * barrier to have come. Only steps from `from` on have a row: what the others hear is of no use. */
typedef struct known {
    uint64_t *rows;
    uint32_t *first; /* by rank: its first row */
    size_t words;
    int phase2;
} known_t;

static uint64_t *row_of(const rg_proof_t *p, const known_t *k, uint32_t g) {
    uint32_t r = p->owner[g], id = g - p->base[r], from = k->phase2 ? p->s[r]->phase1_steps : 0;
    return id < from ? NULL : k->rows + ((size_t)k->first[r] + id - from) * k->words;
}

/* Whether phase-2 step i of rank r follows everything that the rank does in phase 1. */
static int follows_all(const rg_schedule_t *s, const rg_before_t *b, uint32_t i) {
    uint32_t seen = 0;
    const uint64_t *mine = b->bits + i * b->words;
    for (uint32_t w = 0; w * 64 < s->phase1_steps; w++) {
        uint64_t bits = mine[w];
        if (s->phase1_steps - w * 64 < 64) bits &= (1ull << (s->phase1_steps - w * 64)) - 1;
        seen += (uint32_t)__builtin_popcountll(bits);
    }
    return seen == s->phase1_steps;
}

static void note_own(const rg_proof_t *p, uint32_t r, const rg_before_t *b, void *user) {
    const known_t *k = user;
    for (uint32_t i = p->s[r]->phase1_steps; i < p->s[r]->n_steps; i++)
        if (follows_all(p->s[r], b, i)) row_of(p, k, p->base[r] + i)[r / 64] |= 1ull << (r % 64);
}

/* Follows what is known along dependencies and messages. At the end each rank must know of all. */
static int check_known(rg_proof_t *p, const known_t *k) {
    uint64_t *all = calloc(k->words * p->n, sizeof *all);
    if (all == NULL) return rg_proof_nomem(p);
    for (uint32_t i = 0; i < p->total; i++) {
        uint32_t g = p->order[i], r = p->owner[g];
        const rg_step_t *x = proof_step(p, g);
        uint64_t *mine = row_of(p, k, g);
        for (uint32_t d = 0; mine != NULL && d <= x->n_deps; d++) {
            uint32_t from = d < x->n_deps             ? p->base[r] + p->s[r]->deps[x->first_dep + d]
                            : x->kind == RG_STEP_SEND ? NOBODY
                                                      : p->mate[g];
            const uint64_t *its = from == NOBODY ? NULL : row_of(p, k, from);
            for (size_t w = 0; its != NULL && w < k->words; w++) mine[w] |= its[w];
        }
        for (size_t w = 0; mine != NULL && w < k->words; w++) all[r * k->words + w] |= mine[w];
    }
    int ok = 1;
    for (uint32_t r = 0; ok && r < p->n; r++)
        for (uint32_t q = 0; ok && q < p->n; q++)
            if (q != r && !(all[r * k->words + q / 64] >> (q % 64) & 1))
                ok = rg_proof_fail(
                    p, NOBODY,
                    k->phase2 ? "early DONE: rank %" PRIu32 " can end before rank %" PRIu32 " has ended phase 1"
                              : "wrong result: rank %" PRIu32 " can leave the barrier before rank %" PRIu32 " has come",
                    r, q);
    free(all);
    return ok;
}

/* A barrier's own rounds: to take part is to have come, and everything up to the end of phase 1 counts. So it does in a
 * broadcast whose result is shown then: nobody shows it before all have called. */
static int check_barrier(rg_proof_t *p) {
    known_t k = { .words = ((size_t)p->n + 63) / 64 };
    k.rows = calloc((size_t)p->total * k.words + 1, sizeof *k.rows);
    k.first = p->base;
    if (k.rows == NULL) return rg_proof_nomem(p);
    for (uint32_t g = 0; g < p->total; g++) row_of(p, &k, g)[p->owner[g] / 64] |= 1ull << (p->owner[g] % 64);
    int ok = check_known(p, &k);
    free(k.rows);
    return ok;
}

/* ---- All of it ----------------------------------------------------------------------------------------------------
 */

/* What needs the order of each rank's own steps. */
static int check_ranks(rg_proof_t *p) {
    known_t k = { .words = ((size_t)p->n + 63) / 64, .phase2 = 1 };
    size_t rows = 0;
    k.first = malloc(p->n * sizeof *k.first);
    for (uint32_t r = 0; k.first != NULL && r < p->n; r++) {
        k.first[r] = (uint32_t)rows;
        rows += p->s[r]->n_steps - p->s[r]->phase1_steps;
    }
    k.rows = calloc(rows * k.words + 1, sizeof *k.rows);
    int ok = k.first != NULL && k.rows != NULL ? rg_proof_races(p, note_own, &k) : rg_proof_nomem(p);
    if (ok && p->n > 1 && p->s[0]->desc.rule_l) ok = check_known(p, &k);
    int shown = p->s[0]->desc.kind == RG_KIND_BROADCAST && !p->s[0]->desc.rule_l;
    if (ok && p->n > 1 && (p->s[0]->desc.kind == RG_KIND_BARRIER || shown)) ok = check_barrier(p);
    free(k.first);
    free(k.rows);
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
        p->sight[r] = sight_of(p->s[r]);
        for (uint32_t i = 0; i < p->s[r]->n_steps; i++) p->owner[p->base[r] + i] = r;
    }
    for (uint32_t g = 0; g < p->total; g++)
        for (p->in_place = 0; p->in_place < 2; p->in_place++)
            if (!step_form(p, g)) return 0;
    p->in_place = 0;
    if (!find_order(p) || !zero_copy_form(p)) return 0;
    int ok = check_ranks(p);
    /* Last: with a race the values would depend on the order that was found. In place they are the same as out of
     * place wherever no input is read after something was written there; otherwise they are followed again. */
    for (p->in_place = 0; ok && p->in_place <= p->rereads; p->in_place++) ok = rg_proof_values(p);
    return ok;
}

rg_status_t rg_sched_verify(rg_schedule_t *const *s, uint32_t n, char *text, size_t cap) {
    rg_proof_t p = { .s = s, .n = n, .text = text, .cap = cap };
    if (cap != 0) text[0] = 0;
    uint64_t total = 0;
    for (uint32_t r = 0; r < n; r++) total += s[r]->n_steps;
    if (n == 0 || n >> RANK_BITS != 0 || total >= NOBODY) {
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
