/* verify.c: proves every algorithm for every number of ranks up to 33, odd counts, every root, with and without the
 * DONE barrier, in place and not; then plants faults in correct schedules and demands that the verifier finds them. A
 * dropped dependency may be redundant: whether it was needed is judged here by a naive search that shares no code with
 * the verifier. Argument: the largest number of ranks (33; 9 under a sanitizer). Exit status 0 or 1. */
#include "sched/sched.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RANKS_MAX 64u
/* With the sanitizers everything takes ten times as long, and more ranks find nothing that few do not. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RANKS_DEFAULT 9u
#else
#define RANKS_DEFAULT 33u
#endif
/* Of all ranks together in one proof. At 33 ranks this is enough to use every place of a window twice. */
#define STEPS_MOST 30000u

typedef struct set {
    rg_schedule_t *s[RANKS_MAX];
    uint32_t n;
} set_t;

static int failures;

static void set_free(set_t *x) {
    for (uint32_t r = 0; r < x->n; r++) {
        rg_sched_free(x->s[r]);
        x->s[r] = NULL;
    }
}

static int set_build(set_t *x, const rg_algorithm_t *alg, const rg_coll_desc_t *d) {
    x->n = d->size;
    memset(x->s, 0, sizeof x->s);
    for (uint32_t r = 0; r < d->size; r++) {
        rg_coll_desc_t mine = *d;
        mine.rank = r;
        if (rg_sched_build(alg, &mine, &x->s[r]) != RG_OK) {
            set_free(x);
            return 0;
        }
    }
    return 1;
}

static void complain(const rg_algorithm_t *alg, const rg_coll_desc_t *d, const char *what) {
    failures++;
    fprintf(stderr,
            "%s_%s size %" PRIu32 " root %" PRIu32 " count %" PRIu64 " chunk %" PRIu64 " rule_l %" PRIu32
            " rank_order %" PRIu32 ": %s\n",
            rg_kind_name(alg->kind), alg->name, d->size, d->root, d->count, d->chunk, d->rule_l, d->rank_order, what);
}

/* ---- Proofs
 * ------------------------------------------------------------------------------------------------------ */

/* TMP must stay about as large as the data, for all but the one-shot exchange, which says so. */
static void check_tmp(const rg_algorithm_t *alg, const set_t *x, const rg_coll_desc_t *d) {
    uint64_t slack = (64 + 4 * d->chunk) * (d->size + 2);
    for (uint32_t r = 0; r < x->n; r++)
        if (strcmp(alg->name, "direct") != 0 && x->s[r]->tmp_elems > d->count + slack)
            complain(alg, d, "TMP is too large");
}

static int prove(const rg_algorithm_t *alg, const rg_coll_desc_t *d) {
    char text[512];
    set_t x;
    if (alg->applies != NULL && !alg->applies(d)) return 0;
    if (!set_build(&x, alg, d)) {
        complain(alg, d, "cannot be built");
        return 0;
    }
    if (rg_sched_verify(x.s, x.n, text, sizeof text) != RG_OK) complain(alg, d, text);
    check_tmp(alg, &x, d);
    set_free(&x);
    return 1;
}

/* Raises d->chunk until the schedules of all ranks have no more than so many steps together: algorithms that do not
 * cut the data by ranks would have very many pieces otherwise. */
static void limit_steps(const rg_algorithm_t *alg, rg_coll_desc_t *d, uint32_t most) {
    rg_schedule_t *s;
    while (d->chunk < d->count && rg_sched_build(alg, d, &s) == RG_OK) {
        uint64_t steps = (uint64_t)s->n_steps * d->size;
        rg_sched_free(s);
        if (steps <= most) return;
        d->chunk += d->chunk / 2 + 1;
    }
}

static uint32_t prove_counts(const rg_algorithm_t *alg, uint32_t n, uint32_t root) {
    struct {
        uint64_t count, chunk;
    } cases[] = { { 0, 8 }, { 1, 8 },     { 2, 8 },         { 3, 8 },          { n - 1, 8 },
                  { n, 8 }, { n + 1, 8 }, { 2 * n + 1, 1 }, { 17 * n + 5, 3 }, { 65537 * n + 4099, 9001 } };
    uint32_t done = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (i > 3 && i < 7 && cases[i].count <= 3) continue;
        if (alg->kind == RG_KIND_BARRIER && i > 0) break;
        for (uint32_t bits = 0; bits < 4; bits++) {
            rg_coll_desc_t d = { .kind = alg->kind,
                                 .size = n,
                                 .root = root,
                                 .count = cases[i].count,
                                 .elem_size = 4,
                                 .acc_size = 4,
                                 .chunk = cases[i].chunk,
                                 .rule_l = bits & 1,
                                 .rank_order = bits >> 1 };
            /* All roots are alike but for their numbers: rank order says nothing there. */
            if (d.rank_order && alg->kind != RG_KIND_ALL_REDUCE) continue;
            limit_steps(alg, &d, STEPS_MOST);
            done += (uint32_t)prove(alg, &d);
        }
    }
    return done;
}

static uint32_t prove_all(const rg_algorithm_t *alg, uint32_t most) {
    uint32_t done = 0;
    for (uint32_t n = 1; n <= most; n++)
        for (uint32_t root = 0; root < (alg->kind == RG_KIND_BROADCAST ? n : 1); root++)
            done += prove_counts(alg, n, root);
    return done;
}

/* ---- Planted faults
 * ---------------------------------------------------------------------------------------------- */

static rg_schedule_t *clone(const rg_schedule_t *s) {
    rg_schedule_t *c = malloc(sizeof *c);
    if (c == NULL) exit(1);
    *c = *s;
    c->send_ord = c->recv_ord = NULL;
    c->copies = NULL; /* the original's, which lives longer */
    c->steps = malloc((s->n_steps + 1) * sizeof *c->steps);
    c->deps = malloc((s->n_deps + 1) * sizeof *c->deps);
    if (c->steps == NULL || c->deps == NULL) exit(1);
    memcpy(c->steps, s->steps, s->n_steps * sizeof *c->steps);
    memcpy(c->deps, s->deps, s->n_deps * sizeof *c->deps);
    return c;
}

enum {
    DROP_DEP,
    PEER,
    SHORTEN,
    FLIP_FINAL,
    SWAP_ORD,
    PARTIAL_OUT,
    WRONG_TMP,
    SHIFT_OUT,
    DROP_BARRIER,
    EARLY_BARRIER,
    OUTSIDE,
    LOST_STEP,
    MUTANTS
};
static const char *const mutant_names[MUTANTS] = {
    "dropped dependency",       "other peer",           "shorter span",          "flag of the final value",
    "swapped ordinals",         "partial value in OUT", "other place in TMP",    "result in another place",
    "barrier message left out", "barrier too early",    "outside of the buffer", "local step left out"
};

static void remove_dep(rg_schedule_t *s, rg_step_t *x, uint32_t k) {
    s->deps[x->first_dep + k] = s->deps[x->first_dep + x->n_deps - 1];
    x->n_deps--;
}

static void make_nothing(rg_step_t *x) {
    x->kind = RG_STEP_COPY;
    x->dst = rg_span(RG_BUF_OUT, 0, 0);
    x->a = rg_span(RG_BUF_IN, 0, 0);
}

static int is_recv(const rg_step_t *x) { return x->kind == RG_STEP_RECV || x->kind == RG_STEP_RECV_REDUCE; }

/* Takes the message of phase 2 that rank r sends in step x out of both schedules. */
static int drop_message(set_t *m, uint32_t r, rg_step_t *x) {
    rg_schedule_t *peer = m->s[x->peer];
    for (uint32_t i = 0; i < peer->n_steps; i++) {
        rg_step_t *y = &peer->steps[i];
        if (is_recv(y) && y->peer == r && y->ord == x->ord) {
            make_nothing(y);
            make_nothing(x);
            return 1;
        }
    }
    return 0;
}

/* Swaps the ordinals of send i and the next send of phase 1 to the same peer. */
static int swap_ord(rg_schedule_t *s, uint32_t i) {
    rg_step_t *x = &s->steps[i];
    for (uint32_t k = i + 1; k < s->phase1_steps; k++) {
        rg_step_t *y = &s->steps[k];
        if (y->kind != RG_STEP_SEND || y->peer != x->peer) continue;
        uint32_t t = x->ord;
        x->ord = y->ord;
        y->ord = t;
        return 1;
    }
    return 0;
}

/* Plants fault `what` at step i of rank r, variant k. Returns 0 when there is no such fault there. */
static int plant(set_t *m, int what, uint32_t r, uint32_t i, uint32_t k) {
    rg_schedule_t *s = m->s[r];
    rg_step_t *x = &s->steps[i];
    int message = x->kind <= RG_STEP_RECV_REDUCE, phase2 = (x->flags & RG_STEP_PHASE2) != 0;
    if (what != DROP_DEP && k > 0) return 0;
    switch (what) {
    case DROP_DEP:
        if (k >= x->n_deps) return 0;
        remove_dep(s, x, k);
        return 1;
    case PEER:
        if (!message || s->desc.size < 3) return 0;
        do x->peer = (x->peer + 1) % s->desc.size;
        while (x->peer == r);
        return 1;
    case SHORTEN:
        if (x->kind == RG_STEP_SEND ? x->a.len == 0 : x->dst.len == 0) return 0;
        if (x->kind == RG_STEP_SEND) {
            x->a.len--;
        } else {
            x->dst.len--;
            x->a.len -= x->kind != RG_STEP_RECV;
            x->b.len -= x->kind == RG_STEP_REDUCE;
        }
        return 1;
    case FLIP_FINAL:
        if (s->desc.kind != RG_KIND_ALL_REDUCE || x->kind == RG_STEP_SEND || x->dst.len == 0) return 0;
        x->flags ^= RG_STEP_FINAL;
        return 1;
    case SWAP_ORD: return x->kind == RG_STEP_SEND && !phase2 && swap_ord(s, i);
    case PARTIAL_OUT:
        if (x->kind == RG_STEP_SEND || x->dst.buf != RG_BUF_TMP || x->dst.len == 0) return 0;
        x->dst = rg_span(RG_BUF_OUT, 0, x->dst.len);
        x->flags |= RG_STEP_FINAL * (k == 0 && x->kind != RG_STEP_RECV);
        return 1;
    case WRONG_TMP:
        if (x->kind == RG_STEP_RECV || x->a.buf != RG_BUF_TMP || x->a.len == 0) return 0;
        x->a.off += x->a.off + x->a.len < s->tmp_elems ? 1 : (uint64_t)-1;
        return x->a.off < s->tmp_elems;
    case SHIFT_OUT:
        if (x->kind == RG_STEP_SEND || x->dst.buf != RG_BUF_OUT || x->dst.len == 0) return 0;
        x->dst.off += x->dst.off + x->dst.len < s->desc.count ? 1 : (uint64_t)-1;
        return 1;
    case DROP_BARRIER: return phase2 && x->kind == RG_STEP_SEND && drop_message(m, r, x);
    case EARLY_BARRIER:
        if (!phase2 || x->n_deps == 0 || !message || s->phase1_steps == 0 || s->steps[i - 1].flags & RG_STEP_PHASE2)
            return 0;
        x->n_deps = 0;
        return 1;
    case OUTSIDE:
        if (x->kind == RG_STEP_SEND ? x->a.len == 0 : x->dst.len == 0) return 0;
        *(x->kind == RG_STEP_SEND ? &x->a.off : &x->dst.off) += s->desc.count + s->tmp_elems;
        return 1;
    default:
        if (message || x->dst.len == 0) return 0;
        make_nothing(x);
        return 1;
    }
}

/* Whether step `early` of s is among what `late` follows: by search, knowing nothing else. */
static int follows(const rg_schedule_t *s, uint32_t late, uint32_t early) {
    if (late == early) return 1;
    for (uint32_t k = 0; k < s->steps[late].n_deps; k++) {
        uint32_t dep = s->deps[s->steps[late].first_dep + k];
        if (dep >= early && follows(s, dep, early)) return 1;
    }
    return 0;
}

static int touch(rg_span_t x, rg_span_t y) {
    int one = (x.buf == RG_BUF_TMP) == (y.buf == RG_BUF_TMP); /* as in place */
    return one && x.len != 0 && y.len != 0 && x.off < y.off + y.len && y.off < x.off + x.len;
}

static uint32_t spans(const rg_step_t *x, rg_span_t *all) {
    uint32_t n = 0;
    if (x->kind == RG_STEP_COPY && x->a.buf == RG_BUF_IN && x->dst.buf == RG_BUF_OUT) return 0; /* nothing, in place */
    all[n++] = x->kind == RG_STEP_SEND ? rg_span(RG_BUF_IN, 0, 0) : x->dst;
    if (x->kind != RG_STEP_RECV) all[n++] = x->a;
    if (x->kind == RG_STEP_REDUCE) all[n++] = x->b;
    return n;
}

static int conflict(const rg_step_t *x, const rg_step_t *y) {
    rg_span_t a[3], b[3];
    uint32_t n = spans(x, a), m = spans(y, b);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < m; k++)
            if ((i == 0 || k == 0) && touch(a[i], b[k])) return 1;
    return 0;
}

/* The dependency was needed if two steps that touch the same bytes now have no order. */
static int dep_was_needed(const rg_schedule_t *s, uint32_t late) {
    for (uint32_t j = late; j < s->phase1_steps; j++)
        for (uint32_t i = 0; i < j; i++)
            if (conflict(&s->steps[i], &s->steps[j]) && !follows(s, j, i)) return 1;
    return 0;
}

/* The kinds of complaint, to see that each has been made. */
static const char *const classes[] = {
    "wrong result", "double count",         "read of garbage",     "deadlock",   "unmatched message", "out of bounds",
    "race",         "partial value in OUT", "zero-copy overwrite", "early DONE", "malformed"
};
#define CLASSES (sizeof classes / sizeof *classes)
static uint32_t seen[CLASSES];
static uint32_t planted[MUTANTS], caught[MUTANTS], redundant[MUTANTS];

/* 1 when the verifier objects. */
static int objects(const set_t *m) {
    char text[512];
    if (rg_sched_verify(m->s, m->n, text, sizeof text) == RG_OK) return 0;
    for (size_t i = 0; i < CLASSES; i++) seen[i] += strstr(text, classes[i]) != NULL;
    return 1;
}

static void try_mutant(const rg_algorithm_t *alg, const rg_coll_desc_t *d, set_t *m, int what, uint32_t r, uint32_t i) {
    const set_t good = *m;
    for (uint32_t k = 0; k < 8; k++) {
        for (uint32_t q = 0; q < m->n; q++) m->s[q] = clone(good.s[q]);
        int done = plant(m, what, r, i, k);
        if (done) {
            planted[what]++;
            if (objects(m)) {
                caught[what]++;
            } else if (what == DROP_DEP && !dep_was_needed(m->s[r], i)) {
                redundant[what]++;
            } else {
                char text[160];
                snprintf(text, sizeof text, "planted fault not found: %s at rank %" PRIu32 " step %" PRIu32,
                         mutant_names[what], r, i);
                complain(alg, d, text);
            }
        }
        for (uint32_t q = 0; q < m->n; q++) rg_sched_free(m->s[q]);
        *m = good;
        if (!done) break;
    }
}

static void mutate(const rg_algorithm_t *alg, uint32_t n, uint64_t count, uint64_t chunk, uint32_t rank_order) {
    rg_coll_desc_t d = { .kind = alg->kind,
                         .size = n,
                         .root = n - 1,
                         .count = count,
                         .elem_size = 4,
                         .acc_size = 4,
                         .chunk = chunk,
                         .rule_l = 1,
                         .rank_order = rank_order };
    set_t m;
    if ((alg->applies != NULL && !alg->applies(&d)) || !set_build(&m, alg, &d)) return;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < m.s[r]->n_steps; i++)
            for (int what = 0; what < MUTANTS; what++) try_mutant(alg, &d, &m, what, r, i);
    set_free(&m);
}

/* Zero copy where no message proves that the bytes were consumed, and where there is no barrier at the end. */
static void wrong_zero_copy(void) {
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++)
        for (uint32_t n = 2; n < 6; n++) {
            rg_coll_desc_t d = {
                .kind = (*a)->kind, .size = n, .count = 64, .elem_size = 4, .acc_size = 4, .chunk = 4
            };
            int one_shot = d.kind == RG_KIND_ALL_REDUCE && strcmp((*a)->name, "direct") == 0;
            d.rule_l = (uint32_t)one_shot;
            set_t m;
            if (!set_build(&m, *a, &d)) continue;
            for (uint32_t r = 0; r < n; r++) m.s[r]->flags |= RG_SCHED_ZERO_COPY;
            if (!objects(&m)) complain(*a, &d, "planted fault not found: zero copy");
            set_free(&m);
        }
}

/* Two ranks that both wait for the other before they send. */
static void both_wait(void) {
    static const rg_algorithm_t *alg;
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++)
        if ((*a)->kind == RG_KIND_ALL_REDUCE && strcmp((*a)->name, "direct") == 0) alg = *a;
    rg_coll_desc_t d = { .kind = RG_KIND_ALL_REDUCE, .size = 2, .count = 5, .elem_size = 4, .acc_size = 4, .chunk = 5 };
    set_t m;
    if (alg == NULL || !set_build(&m, alg, &d)) return;
    for (uint32_t r = 0; r < 2; r++) {
        rg_step_t t = m.s[r]->steps[0];
        m.s[r]->steps[0] = m.s[r]->steps[1];
        m.s[r]->steps[1] = t;
        m.s[r]->steps[0].n_deps = 0;
        m.s[r]->steps[1].n_deps = 1;
        m.s[r]->steps[1].first_dep = 0;
        m.s[r]->deps[0] = 0;
    }
    if (!objects(&m)) complain(alg, &d, "planted fault not found: both wait");
    set_free(&m);
}

/* The same operand twice. */
static void same_twice(void) {
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++) {
        rg_coll_desc_t d = {
            .kind = RG_KIND_ALL_REDUCE, .size = 4, .count = 5, .elem_size = 4, .acc_size = 4, .chunk = 5
        };
        set_t m;
        if ((*a)->kind != RG_KIND_ALL_REDUCE || strcmp((*a)->name, "direct") != 0 || !set_build(&m, *a, &d)) continue;
        for (uint32_t i = 0; i < m.s[0]->n_steps; i++)
            if (m.s[0]->steps[i].kind == RG_STEP_REDUCE) {
                m.s[0]->steps[i].b = m.s[0]->steps[i].a;
                break;
            }
        if (!objects(&m)) complain(*a, &d, "planted fault not found: an operand twice");
        set_free(&m);
    }
}

static void plant_all(void) {
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++) {
        static const uint32_t sizes[] = { 2, 3, 4, 5 };
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            uint32_t n = sizes[i];
            mutate(*a, n, 2 * n + 1, 1, 0);
            if (n < 4) mutate(*a, n, 6 * n + 1, 1, 0);
            if ((*a)->kind == RG_KIND_ALL_REDUCE) mutate(*a, n, 2 * n + 1, 1, 1);
        }
    }
    wrong_zero_copy();
    both_wait();
    same_twice();
    for (int what = 0; what < MUTANTS; what++) {
        printf("planted: %-26s %6" PRIu32 ", caught %6" PRIu32, mutant_names[what], planted[what], caught[what]);
        printf(redundant[what] ? ", redundant %" PRIu32 "\n" : "\n", redundant[what]);
        if (planted[what] == 0)
            failures++, fprintf(stderr, "no fault of the kind '%s' was planted\n", mutant_names[what]);
    }
    for (size_t i = 0; i < CLASSES; i++) {
        printf("complaints: %-22s %6" PRIu32 "\n", classes[i], seen[i]);
        if (seen[i] == 0) failures++, fprintf(stderr, "the verifier never complained of '%s'\n", classes[i]);
    }
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    uint32_t most = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : RANKS_DEFAULT, total = 0;
    if (most < 1 || most > RANKS_MAX) {
        fprintf(stderr, "usage: verify [RANKS], 1 to %u\n", RANKS_MAX);
        return 1;
    }
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++) {
        double before = seconds();
        uint32_t done = prove_all(*a, most);
        total += done;
        printf("proved: %s_%s, %" PRIu32 " operations of 1 to %" PRIu32 " ranks, in place and not, %.1f s\n",
               rg_kind_name((*a)->kind), (*a)->name, done, most, seconds() - before);
        fflush(stdout);
    }
    double before = seconds();
    plant_all();
    printf("planted faults took %.1f s; %" PRIu32 " operations proved in all\n", seconds() - before, total);
    if (failures) fprintf(stderr, "%d failures\n", failures);
    return failures ? 1 : 0;
}
