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

/* How segments differ. By rank (or pair of ranks), from a count: */
enum { EVEN, STAIRS, ONE_HAS_ALL, RANDOM, LENGTHS };
/* Where they are: behind each other; backwards with gaps; and at other offsets on every rank. */
enum { CLOSE, BACKWARDS, ELSEWHERE, PLACES };
/* Where the ranks are. */
enum { NOWHERE, TWO_HOSTS, UNEVEN_HOSTS, ALL_HOSTS, ONE_EACH, DEALT, TWO_SITES, TOPOLOGIES };

/* Arrays of one rank's description. */
typedef struct arrays {
    uint64_t offs[RANKS_MAX], lens[RANKS_MAX], in_offs[RANKS_MAX], in_lens[RANKS_MAX];
    uint32_t group[2 * RANKS_MAX], ring[RANKS_MAX], rate[RANKS_MAX];
    rg_topology_t topo;
} arrays_t;

/* What is to be proved, for all ranks. */
typedef struct subject {
    rg_coll_desc_t d;
    int lengths, place, topology;
    int measured; /* an order for rings and rates are known: one of some */
} subject_t;

/* With more ranks every shape is tried at every third size only: what breaks with size breaks with all of them. */
#define THINNED 12u

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

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* The length of segment i of the buffer whose segments are numbered so. */
static uint64_t length_of(const subject_t *x, uint32_t i, uint32_t n) {
    uint64_t count = x->d.count;
    switch (x->lengths) {
    case STAIRS: return count * (i % 3);
    case ONE_HAS_ALL: return i % n == n / 2 ? count * n : 0;
    case RANDOM: return mix(i + 1) % (2 * count + 2);
    default: return count;
    }
}

static void place(const subject_t *x, uint32_t rank, uint64_t *offs, const uint64_t *lens) {
    uint64_t at = x->place == CLOSE ? 0 : 3;
    for (uint32_t k = 0; k < x->d.size; k++) {
        uint32_t i = x->place == CLOSE ? k : x->d.size - 1 - k;
        offs[i] = at;
        at += lens[i] + (x->place == CLOSE ? 0 : (x->place == ELSEWHERE ? rank + i : i) % 3);
    }
}

/* Groups nest: level 0 the host, level 1 the site. */
static void lay_out(int topology, uint32_t n, arrays_t *v) {
    uint32_t hosts = n > 3 ? 3 : n, sixth = n / 6 + 1;
    v->topo = (rg_topology_t){ .levels = topology == TWO_SITES ? 2 : 1, .group = v->group };
    for (uint32_t r = 0; r < n; r++) switch (topology) {
        case TWO_HOSTS: v->group[r] = r >= (n + 1) / 2; break;
        case UNEVEN_HOSTS: v->group[r] = r < 1 ? 0 : r < 1 + sixth ? 1 : 2; break;
        case ALL_HOSTS: v->group[r] = 0; break;
        case ONE_EACH: v->group[r] = n - 1 - r; break;
        case DEALT: v->group[r] = (r * 2 + r / hosts) % hosts; break;
        default: /* hosts of one, two and three in turn, every third host at the second site */
            v->group[r] = r / 6 * 3 + (r % 6 == 0 ? 0 : r % 6 < 3 ? 1 : 2);
            v->group[n + r] = v->group[r] % 3 == 1;
            break;
        }
}

/* What was measured: backwards and one slow; dealt out by a seed, with rates of all sizes. */
static void measure(int how, uint32_t n, arrays_t *v) {
    for (uint32_t i = 0; i < n; i++) {
        v->ring[i] = how == 1 ? n - 1 - i : i;
        v->rate[i] = how == 1 ? (i == n / 2 ? 3000 : 12000) : (uint32_t)(mix(i + n) % 9000 + (how == 2 ? 9000 : 1));
    }
    for (uint32_t i = n; how > 1 && i-- > 1;) {
        uint32_t k = (uint32_t)(mix(i * 31 + (uint32_t)how) % (i + 1)), took = v->ring[i];
        v->ring[i] = v->ring[k];
        v->ring[k] = took;
    }
}

static void describe(const subject_t *x, uint32_t rank, rg_coll_desc_t *d, arrays_t *v) {
    uint32_t n = x->d.size;
    int pairs = x->d.kind == RG_KIND_ALL_TO_ALL;
    *d = x->d;
    d->rank = rank;
    if (x->topology != NOWHERE) {
        lay_out(x->topology, n, v);
        d->topo = &v->topo;
    }
    if (x->measured) {
        v->topo = (rg_topology_t){ .ring = v->ring, .rate = v->rate };
        measure(x->measured, n, v);
        d->topo = &v->topo;
    }
    if (!rg_kind_segmented(d->kind) || (x->lengths == EVEN && x->place == CLOSE)) return;
    if (!pairs) d->count = 0;
    for (uint32_t i = 0; i < n; i++) {
        v->lens[i] = length_of(x, pairs ? i * n + rank : i, n);
        v->in_lens[i] = length_of(x, rank * n + i, n);
        if (!pairs) d->count += v->lens[i];
    }
    place(x, rank, v->offs, v->lens);
    place(x, rank + 1, v->in_offs, v->in_lens);
    d->lens = v->lens;
    /* Where a rank has no such buffer its offsets are not told, and then they need not be where they are the usual. */
    d->offs =
        x->place == CLOSE || !rg_desc_has(d, d->kind == RG_KIND_SCATTER ? RG_BUF_IN : RG_BUF_OUT) ? NULL : v->offs;
    if (pairs) d->in_offs = v->in_offs, d->in_lens = v->in_lens;
}

static int set_build(set_t *x, const rg_algorithm_t *alg, const subject_t *what) {
    static arrays_t v;
    x->n = what->d.size;
    memset(x->s, 0, sizeof x->s);
    for (uint32_t r = 0; r < x->n; r++) {
        rg_coll_desc_t mine;
        describe(what, r, &mine, &v);
        if (rg_sched_build(alg, &mine, &x->s[r]) != RG_OK) {
            set_free(x);
            return 0;
        }
        memset(&v, 0xee, sizeof v); /* schedules have copies of their own */
    }
    return 1;
}

static int applies(const rg_algorithm_t *alg, const subject_t *what) {
    static arrays_t v;
    rg_coll_desc_t d;
    describe(what, 0, &d, &v);
    return alg->applies == NULL || alg->applies(&d);
}

static void complain(const rg_algorithm_t *alg, const subject_t *x, const char *what) {
    failures++;
    if (failures > 200) return;
    fprintf(stderr,
            "%s_%s size %" PRIu32 " root %" PRIu32 " count %" PRIu64 " chunk %" PRIu64 " rule_l %" PRIu32
            " hub %" PRIu32 " rank_order %" PRIu32 " prepare %" PRIu32
            " lengths %d place %d topology %d measured %d: %s\n",
            rg_kind_name(alg->kind), alg->name, x->d.size, x->d.root, x->d.count, x->d.chunk, x->d.rule_l, x->d.hub,
            x->d.rank_order, x->d.prepare, x->lengths, x->place, x->topology, x->measured, what);
}

/* ---- Proofs ----------------------------------------------------------------------------------------------------- */

/* TMP must stay about as large as the data, but for the one-shot exchange, which says so, and where blocks are stored
 * on their way, which such algorithms say too. */
static void check_tmp(const rg_algorithm_t *alg, const set_t *x, const subject_t *what) {
    if (alg->kind == RG_KIND_ALL_REDUCE && strcmp(alg->name, "direct") == 0) return;
    uint64_t slack = (64 + 4 * what->d.chunk) * (what->d.size + 2);
    for (uint32_t r = 0; r < x->n; r++) {
        const rg_schedule_t *s = x->s[r];
        uint64_t data = s->elems[RG_BUF_IN] > s->elems[RG_BUF_OUT] ? s->elems[RG_BUF_IN] : s->elems[RG_BUF_OUT];
        if (alg->kind == RG_KIND_ALL_TO_ALL)
            data *= strcmp(alg->name, "bruck") == 0 ? 2 : strcmp(alg->name, "hier") == 0 ? 5 : 1;
        if (s->tmp_elems > data + slack) complain(alg, what, "TMP is too large");
    }
}

static int prove(const rg_algorithm_t *alg, const subject_t *what) {
    char text[512];
    set_t x;
    if (!applies(alg, what)) return 0;
    if (!set_build(&x, alg, what)) {
        complain(alg, what, "cannot be built");
        return 0;
    }
    if (rg_sched_verify(x.s, x.n, text, sizeof text) != RG_OK) complain(alg, what, text);
    check_tmp(alg, &x, what);
    set_free(&x);
    return 1;
}

/* Raises the chunk until the schedules of all ranks have no more than so many steps together: algorithms that do not
 * cut the data by ranks would have very many pieces otherwise. */
static void limit_steps(const rg_algorithm_t *alg, subject_t *x, uint32_t most) {
    static arrays_t v;
    rg_schedule_t *s;
    rg_coll_desc_t d;
    for (;;) {
        describe(x, x->d.root, &d, &v);
        uint64_t data = d.count > x->d.count * x->d.size ? d.count : x->d.count * x->d.size;
        if (x->d.chunk >= data || rg_sched_build(alg, &d, &s) != RG_OK) return;
        uint64_t steps = (uint64_t)s->n_steps * d.size;
        rg_sched_free(s);
        if (steps <= most) return;
        x->d.chunk += x->d.chunk / 2 + 1;
    }
}

/* All that a kind can ask for beside its shape: the barrier at the end, rank order, weights. */
static uint32_t prove_options(const rg_algorithm_t *alg, subject_t *x, int all) {
    uint32_t done = 0;
    int reduces = rg_kind_reduces(alg->kind);
    for (uint32_t bits = 0; bits < 8; bits++) {
        x->d.rule_l = bits & 1;
        x->d.rank_order = bits >> 1 & 1;
        x->d.prepare = bits >> 2;
        x->d.hub = x->d.rule_l && (x->d.count + x->d.root) % 2;
        if (!reduces && (x->d.rank_order || x->d.prepare)) continue;
        if (x->d.prepare && (!all || x->d.rule_l != x->d.size % 2)) continue;
        done += (uint32_t)prove(alg, x);
    }
    return done;
}

static uint32_t prove_counts(const rg_algorithm_t *alg, uint32_t n, uint32_t root) {
    struct {
        uint64_t count, chunk;
    } cases[] = { { 1, 8 },        { 17 * n + 5, 3 }, { 65537 * n + 4099, 9001 },
                  { 0, 8 },        { 2, 8 },          { 3, 8 },
                  { n - 1, 8 },    { n, 8 },          { n + 1, 8 },
                  { 2 * n + 1, 1 } };
    uint32_t done = 0, few = root > 2 && n > 8 ? 2 : sizeof cases / sizeof *cases;
    for (uint32_t i = 0; i < few; i++) {
        if (i > 5 && i < 9 && cases[i].count <= 3) continue;
        if (n > THINNED && i > 2 && (i + n) % 3 != 0) continue;
        if (alg->kind == RG_KIND_BARRIER && i > 0) break;
        subject_t x = { .d = { .kind = alg->kind,
                               .size = n,
                               .root = root,
                               .count = cases[i].count,
                               .elem_size = 4,
                               .acc_size = 4,
                               .chunk = cases[i].chunk } };
        limit_steps(alg, &x, STEPS_MOST);
        done += prove_options(alg, &x, i == 1 || i == 3);
    }
    return done;
}

/* Segments of all lengths in all places. */
static uint32_t prove_segments(const rg_algorithm_t *alg, uint32_t n, uint32_t root) {
    static const struct { uint64_t count, chunk; } cases[] = { { 0, 1 }, { 1, 1 }, { 3, 2 }, { 41, 3 }, { 5000, 700 } };
    uint32_t done = 0, thin = root > 2 && n > 8;
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int lengths = 0; lengths < LENGTHS; lengths++)
            for (int place = 0; place < PLACES; place++) {
                if (cases[i].count == 0 && lengths + place != 0) continue;
                if ((thin || i == 4) && (lengths + place) % 3 != (int)(root + n + i) % 3) continue;
                if (thin && i != 2) continue;
                if (n > THINNED && (i + (uint32_t)(lengths + place) + n) % 3 != 0) continue;
                subject_t x = { .d = { .kind = alg->kind,
                                       .size = n,
                                       .root = root,
                                       .count = cases[i].count,
                                       .elem_size = 4,
                                       .acc_size = 4,
                                       .chunk = cases[i].chunk },
                                .lengths = lengths,
                                .place = place };
                limit_steps(alg, &x, STEPS_MOST / 3);
                done += prove_options(alg, &x, i == 2 && place == CLOSE);
            }
    return done;
}

/* Where it makes a difference, every topology, with a few shapes each. */
static uint32_t prove_topologies(const rg_algorithm_t *alg, uint32_t n, uint32_t root) {
    static const struct {
        uint64_t count, chunk;
        int lengths, place;
    } cases[] = { { 0, 1, EVEN, CLOSE },        { 1, 1, EVEN, CLOSE },       { 61, 3, EVEN, CLOSE },
                  { 30000, 2500, EVEN, CLOSE }, { 5, 2, STAIRS, BACKWARDS }, { 19, 4, RANDOM, ELSEWHERE },
                  { 7, 3, ONE_HAS_ALL, CLOSE } };
    uint32_t done = 0, many = rg_kind_segmented(alg->kind) ? sizeof cases / sizeof *cases : 4;
    for (int topology = NOWHERE + 1; topology < TOPOLOGIES; topology++)
        for (uint32_t i = 0; i < many; i++) {
            if (root > 2 && n > 7 && (uint32_t)(topology + 2 * (int)i + (int)root) % 7 != 0) continue;
            subject_t x = { .d = { .kind = alg->kind,
                                   .size = n,
                                   .root = root,
                                   .count = cases[i].count,
                                   .elem_size = 4,
                                   .acc_size = 4,
                                   .chunk = cases[i].chunk },
                            .lengths = cases[i].lengths,
                            .place = cases[i].place,
                            .topology = topology };
            limit_steps(alg, &x, STEPS_MOST / 3);
            done += prove_options(alg, &x, i == 2);
        }
    return done;
}

/* Algorithms that go by what was measured: each kind of it, with a few shapes. */
static uint32_t prove_measured(const rg_algorithm_t *alg, uint32_t n, uint32_t root) {
    static const struct {
        uint64_t count, chunk;
        int lengths, place;
    } cases[] = { { 1, 1, EVEN, CLOSE }, { 61, 3, EVEN, CLOSE },      { 70000, 2500, EVEN, CLOSE },
                  { 0, 1, EVEN, CLOSE }, { 5, 2, STAIRS, BACKWARDS }, { 19, 4, RANDOM, ELSEWHERE } };
    uint32_t done = 0, many = rg_kind_segmented(alg->kind) ? sizeof cases / sizeof *cases : 4;
    if (strcmp(alg->name, "ring") != 0 && strcmp(alg->name, "direct2") != 0) return 0;
    for (int measured = 1; measured <= 3; measured++)
        for (uint32_t i = 0; i < many; i++) {
            if (n > THINNED && (i + (uint32_t)measured + n) % 3 != 0) continue;
            subject_t x = { .d = { .kind = alg->kind,
                                   .size = n,
                                   .root = root,
                                   .count = cases[i].count,
                                   .elem_size = 4,
                                   .acc_size = 4,
                                   .chunk = cases[i].chunk },
                            .lengths = cases[i].lengths,
                            .place = cases[i].place,
                            .measured = measured };
            limit_steps(alg, &x, STEPS_MOST / 3);
            done += prove_options(alg, &x, i == 1);
        }
    return done;
}

/* Hierarchical algorithms decline when they know nothing, or say by their name that they look. */
static int looks_at_topology(const rg_algorithm_t *alg) { return strstr(alg->name, "hier") != NULL; }

static uint32_t prove_all(const rg_algorithm_t *alg, uint32_t most) {
    uint32_t done = 0;
    for (uint32_t n = 1; n <= most; n++)
        for (uint32_t root = 0; root < (rg_kind_rooted(alg->kind) ? n : 1); root++) {
            if (alg->kind == RG_KIND_P2P && n != 2) continue;
            if (looks_at_topology(alg)) done += prove_topologies(alg, n, root);
            else if (rg_kind_segmented(alg->kind)) done += prove_segments(alg, n, root);
            else done += prove_counts(alg, n, root);
            done += prove_measured(alg, n, root);
        }
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
    OTHER_WEIGHT,
    NOT_PREPARED,
    NOT_THERE,
    MUTANTS
};
static const char *const mutant_names[MUTANTS] = {
    "dropped dependency",       "other peer",           "shorter span",          "flag of the final value",
    "swapped ordinals",         "partial value in OUT", "other place in TMP",    "result in another place",
    "barrier message left out", "barrier too early",    "outside of the buffer", "local step left out",
    "weight in another place",  "input not prepared",   "buffer not there"
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
        if (y->kind != RG_STEP_SEND || y->peer != x->peer || (x->a.len == 0 && y->a.len == 0)) continue;
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
        if (!rg_kind_reduces(s->desc.kind) || x->kind == RG_STEP_SEND || x->dst.len == 0) return 0;
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
        x->dst.off += x->dst.off + x->dst.len < s->elems[RG_BUF_OUT] ? 1 : (uint64_t)-1;
        return 1;
    case DROP_BARRIER: return phase2 && x->kind == RG_STEP_SEND && drop_message(m, r, x);
    case EARLY_BARRIER:
        if (!phase2 || x->n_deps == 0 || !message || s->phase1_steps == 0 || s->steps[i - 1].flags & RG_STEP_PHASE2)
            return 0;
        x->n_deps = 0;
        return 1;
    case OUTSIDE:
        if (x->kind == RG_STEP_SEND ? x->a.len == 0 : x->dst.len == 0) return 0;
        *(x->kind == RG_STEP_SEND ? &x->a.off : &x->dst.off) +=
            s->elems[RG_BUF_IN] + s->elems[RG_BUF_OUT] + s->desc.size + s->tmp_elems;
        return 1;
    case OTHER_WEIGHT:
        if (x->kind != RG_STEP_RECV || x->dst.buf != RG_BUF_AUX || x->dst.len == 0) return 0;
        x->dst.off += x->dst.off + x->dst.len < s->desc.size ? 1 : (uint64_t)-1;
        return 1;
    case NOT_PREPARED:
        if (x->kind != RG_STEP_PREPARE) return 0;
        make_nothing(x);
        return 1;
    case NOT_THERE:
        if (rg_desc_has(&s->desc, RG_BUF_IN) || x->kind != RG_STEP_SEND || x->a.len == 0) return 0;
        x->a.buf = RG_BUF_IN;
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

/* Where a span is in place: IN and OUT are one memory, but for an exchange. */
static rg_span_t where(const rg_schedule_t *s, rg_span_t x) {
    rg_kind_t kind = s->desc.kind;
    if (x.buf > RG_BUF_OUT || kind == RG_KIND_ALL_TO_ALL || kind == RG_KIND_P2P) return x;
    uint64_t own = rg_kind_segmented(kind) ? rg_seg(&s->desc, RG_BUF_IN, s->desc.rank).off : 0;
    int gathers = kind == RG_KIND_ALL_GATHER || kind == RG_KIND_GATHER;
    if ((x.buf == RG_BUF_IN) == gathers) x.off += own;
    x.buf = RG_BUF_IN;
    return x;
}

static int touch(rg_span_t x, rg_span_t y) {
    return x.buf == y.buf && x.len != 0 && y.len != 0 && x.off < y.off + y.len && y.off < x.off + x.len;
}

static uint32_t spans(const rg_schedule_t *s, const rg_step_t *x, rg_span_t *all) {
    uint32_t n = 0;
    if (x->kind == RG_STEP_PREPARE) {
        all[n++] = rg_span(RG_BUF_IN, 0, s->elems[RG_BUF_IN]);
        all[n++] = rg_span(RG_BUF_AUX, 0, s->desc.size);
    } else {
        all[n++] = x->kind == RG_STEP_SEND ? rg_span(RG_BUF_IN, 0, 0) : x->dst;
        if (x->kind != RG_STEP_RECV) all[n++] = x->a;
        if (x->kind == RG_STEP_REDUCE) all[n++] = x->b;
    }
    for (uint32_t i = 0; i < n; i++) all[i] = where(s, all[i]);
    /* A copy from a place to itself is nothing. */
    return x->kind == RG_STEP_COPY && all[0].buf == all[1].buf && all[0].off == all[1].off ? 0 : n;
}

static int conflict(const rg_schedule_t *s, const rg_step_t *x, const rg_step_t *y) {
    rg_span_t a[3], b[3];
    uint32_t n = spans(s, x, a), m = spans(s, y, b);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < m; k++)
            if ((i == 0 || k == 0) && touch(a[i], b[k])) return 1;
    return 0;
}

/* The dependency was needed if two steps that touch the same bytes now have no order. */
static int dep_was_needed(const rg_schedule_t *s, uint32_t late) {
    for (uint32_t j = late; j < s->phase1_steps; j++)
        for (uint32_t i = 0; i < j; i++)
            if (conflict(s, &s->steps[i], &s->steps[j]) && !follows(s, j, i)) return 1;
    return 0;
}

/* The kinds of complaint, to see that each has been made. */
static const char *const classes[] = { "wrong result",
                                       "double count",
                                       "read of garbage",
                                       "deadlock",
                                       "unmatched message",
                                       "out of bounds",
                                       "race",
                                       "partial value in OUT",
                                       "zero-copy overwrite",
                                       "early DONE",
                                       "malformed",
                                       "final before its weight" };
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

static void try_mutant(const rg_algorithm_t *alg, const subject_t *d, set_t *m, int what, uint32_t r, uint32_t i) {
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

static void mutate(const rg_algorithm_t *alg, const subject_t *x) {
    set_t m;
    if (!applies(alg, x) || !set_build(&m, alg, x)) return;
    for (uint32_t r = 0; r < m.n; r++)
        for (uint32_t i = 0; i < m.s[r]->n_steps; i++)
            for (int what = 0; what < MUTANTS; what++) try_mutant(alg, x, &m, what, r, i);
    set_free(&m);
}

static subject_t small(const rg_algorithm_t *alg, uint32_t n, uint64_t count, uint64_t chunk) {
    return (subject_t){ .d = { .kind = alg->kind,
                               .size = n,
                               .root = n - 1,
                               .count = count,
                               .elem_size = 4,
                               .acc_size = 4,
                               .chunk = chunk,
                               .rule_l = 1 } };
}

/* Some shapes of each kind, small enough that every step can be spoilt in every way. */
static void mutate_all(const rg_algorithm_t *alg, uint32_t n) {
    subject_t x = small(alg, n, 2 * n + 1, 1);
    x.d.hub = n % 2;
    if (looks_at_topology(alg)) x.topology = n == 4 ? TWO_HOSTS : n == 5 ? TWO_SITES : UNEVEN_HOSTS;
    if (rg_kind_segmented(alg->kind)) {
        x.d.count = 2;
        mutate(alg, &x);
        x.lengths = STAIRS;
        x.place = n % 2 ? BACKWARDS : ELSEWHERE;
    }
    mutate(alg, &x);
    if (n < 4 && !rg_kind_segmented(alg->kind)) {
        x.d.count = 6 * n + 1;
        mutate(alg, &x);
    }
    if (!rg_kind_reduces(alg->kind)) return;
    x = small(alg, n, n + 1, 1);
    x.topology = looks_at_topology(alg) ? TWO_HOSTS : NOWHERE;
    x.d.rank_order = 1;
    mutate(alg, &x);
    x.d.rank_order = 0;
    x.d.prepare = 1;
    x.d.chunk = 3;
    if (n < 5) mutate(alg, &x);
}

/* Zero copy where no message proves that the bytes were consumed, and where there is no barrier at the end. */
static void wrong_zero_copy(void) {
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++)
        for (uint32_t n = 2; n < 6; n++) {
            subject_t x = small(*a, n, 64, 4);
            x.d.rule_l = (*a)->kind == RG_KIND_ALL_REDUCE && strcmp((*a)->name, "direct") == 0;
            set_t m;
            if (!applies(*a, &x) || !set_build(&m, *a, &x)) continue;
            for (uint32_t r = 0; r < n; r++) m.s[r]->flags |= RG_SCHED_ZERO_COPY;
            if (!objects(&m)) complain(*a, &x, "planted fault not found: zero copy");
            set_free(&m);
        }
}

/* Two ranks that both wait for the other before they send. */
static void both_wait(void) {
    static const rg_algorithm_t *alg;
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++)
        if ((*a)->kind == RG_KIND_ALL_REDUCE && strcmp((*a)->name, "direct") == 0) alg = *a;
    if (alg == NULL) return;
    subject_t x = small(alg, 2, 5, 5);
    set_t m;
    x.d.rule_l = 0;
    if (!set_build(&m, alg, &x)) return;
    for (uint32_t r = 0; r < 2; r++) {
        rg_step_t t = m.s[r]->steps[0];
        m.s[r]->steps[0] = m.s[r]->steps[1];
        m.s[r]->steps[1] = t;
        m.s[r]->steps[0].n_deps = 0;
        m.s[r]->steps[1].n_deps = 1;
        m.s[r]->steps[1].first_dep = 0;
        m.s[r]->deps[0] = 0;
    }
    if (!objects(&m)) complain(alg, &x, "planted fault not found: both wait");
    set_free(&m);
}

/* What one rank sends another must be what that one expects. */
static void other_lengths(void) {
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++) {
        subject_t x = small(*a, 3, 4, 4);
        set_t m;
        x.lengths = RANDOM;
        if (!rg_kind_segmented((*a)->kind) || looks_at_topology(*a) || !applies(*a, &x) || !set_build(&m, *a, &x))
            continue;
        *(uint64_t *)(uintptr_t)&m.s[1]->desc.lens[2] += 1;
        if (!objects(&m)) complain(*a, &x, "planted fault not found: other lengths");
        set_free(&m);
    }
}

/* The same operand twice. */
static void same_twice(void) {
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++) {
        subject_t x = small(*a, 4, 5, 5);
        set_t m;
        x.d.rule_l = 0;
        if ((*a)->kind != RG_KIND_ALL_REDUCE || strcmp((*a)->name, "direct") != 0 || !set_build(&m, *a, &x)) continue;
        for (uint32_t i = 0; i < m.s[0]->n_steps; i++)
            if (m.s[0]->steps[i].kind == RG_STEP_REDUCE) {
                m.s[0]->steps[i].b = m.s[0]->steps[i].a;
                break;
            }
        if (!objects(&m)) complain(*a, &x, "planted fault not found: an operand twice");
        set_free(&m);
    }
}

/* Rank 0 has its share folded by rank 1 and takes what comes back for final: not ordered after PREPARE by itself. */
static rg_status_t build_early_final(rg_schedule_t *s, const rg_coll_desc_t *d) {
    rg_span_t in = rg_span(RG_BUF_IN, 0, d->count), out = rg_span(RG_BUF_OUT, 0, d->count);
    rg_span_t tmp = rg_span(RG_BUF_TMP, 0, d->count), mine = rg_span(RG_BUF_TMP, d->count, d->count);
    if (d->rank == 0) {
        rg_sched_send(s, 1, in, NULL, 0);
        uint32_t got = rg_sched_recv(s, 1, tmp, RG_STEP_WIRE_ACC, NULL, 0);
        rg_sched_copy(s, out, tmp, RG_STEP_FINAL, &got, 1);
    } else {
        uint32_t got = rg_sched_recv_reduce(s, 0, mine, in, RG_STEP_SWAP, NULL, 0);
        rg_sched_send(s, 0, mine, &got, 1);
        rg_sched_copy(s, out, mine, RG_STEP_FINAL, &got, 1);
    }
    return RG_OK;
}

static void early_final(void) {
    static const rg_algorithm_t alg = { .name = "early_final", .kind = RG_KIND_ALL_REDUCE, .build = build_early_final };
    subject_t x = small(&alg, 2, 5, 5);
    set_t m;
    char text[512] = "";
    x.d.rule_l = 0;
    x.d.prepare = 1;
    if (!set_build(&m, &alg, &x)) complain(&alg, &x, "cannot be built");
    else {
        if (!objects(&m)) complain(&alg, &x, "planted fault not found: final before its weight");
        rg_sched_verify(m.s, m.n, text, sizeof text);
        if (strstr(text, "final before its weight") == NULL) complain(&alg, &x, text);
        set_free(&m);
    }
}

static void plant_all(void) {
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++)
        for (uint32_t n = 2; n < 6; n++) mutate_all(*a, n);
    wrong_zero_copy();
    both_wait();
    early_final();
    same_twice();
    other_lengths();
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
