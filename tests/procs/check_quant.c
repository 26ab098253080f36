/* check_quant.c: random quantised collectives among real processes, one of which is killed now and then in the middle
 * of a call. Whoever finished a call must agree with the others on outcome, contributors and, where all get the same,
 * on every bit; values must be within the bound that the library gives; inputs stay intact unless the call was in
 * place. Rounds are named by the boundary index, which alone says what is called: collective, wire form, way, count,
 * operator, on_fault, with a request or blocking. Workers write what they see into shared memory; the process that
 * kills judges. It relies on procs.h. */
#include "procs.h"
#include "regroup_quant.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define N 4
#define LOG 512
#define MOST 30000u /* elements of a member */

enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, KINDS };

struct round {
    int kind;
    rg_wire_t wire;
    uint32_t form, flags, count;
    rg_op_t op;
    rg_on_fault_t on_fault;
    int in_place, request;
};

struct record {
    uint64_t gen, epoch, hash, wrong, ids[N];
    uint32_t status, contributors, intact, world, retries;
    char text[256];
};

struct worker {
    pid_t pid;
    uint64_t id;
    volatile uint64_t started, finished;
    volatile int failed;
    int killed;
    struct record log[LOG];
};

static struct shared {
    volatile uint64_t stop_gen, limit_gen;
    char address[128];
    struct worker workers[N];
} * sh;

/* ---- What is called -------------------------------------------------------------------------------------------- */

static uint64_t spread(uint64_t v) {
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9ull;
    v = (v ^ v >> 27) * 0x94d049bb133111ebull;
    return v ^ v >> 31;
}

static struct round round_of(uint64_t gen) {
    static const rg_wire_t whole[] = { RG_WIRE_I8, RG_WIRE_I4, RG_WIRE_TERNARY };
    uint64_t x = spread(gen + 0x9e3779b97f4a7c15ull), y = spread(x);
    struct round r = { .form = (uint32_t)(x & 0xff) % RG_QUANT_FORM_COUNT,
                       .wire = (rg_wire_t)(1 + (x >> 8 & 0xff) % (RG_WIRE_COUNT - 1)),
                       .flags = x >> 16 & 1 ? RG_QUANT_STOCHASTIC : 0,
                       .op = x >> 17 & 1 ? RG_AVG : RG_SUM,
                       .on_fault = x >> 18 & 1 ? RG_RETURN : RG_RETRY,
                       .request = (x >> 20 & 3) == 0 };
    r.kind = (x >> 24 & 7) < 5 ? ALL_REDUCE : (x >> 24 & 7) < 7 ? REDUCE_SCATTER : ALL_GATHER;
    if (r.form == RG_QUANT_INTEGER) r.wire = whole[(x >> 32 & 0xff) % 3];
    r.count = (uint32_t)(y % (y >> 40 & 7 ? 3000 : MOST));
    r.in_place = r.kind == ALL_REDUCE && (x >> 40 & 1);
    return r;
}

static float value(uint64_t id, uint64_t gen, uint64_t i) {
    uint32_t v = (uint32_t)(id * 0x9e3779b1u + gen * 0x85ebca6bu + i * 0xc2b2ae35u);
    v = (v ^ v >> 15) * 0x2c1b3c6du;
    v = (v ^ v >> 12) * 0x297a2d39u;
    return (float)(int32_t)(v ^ v >> 15) * 0x1p-31f;
}

/* ---- Worker ---------------------------------------------------------------------------------------------------- */

static uint64_t hash_bits(const float *p, uint64_t n) {
    uint64_t h = 1;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &p[i], sizeof u);
        h = (h ^ u) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 29;
    }
    return h;
}

/* Elements of the result that are further from what they should be than the bound. */
static uint64_t count_wrong(const struct round *c, const struct record *r, uint64_t id, const float *out,
                            double bound) {
    uint64_t wrong = 0, from = 0, n = c->count;
    bound = bound * (1 + 1e-6) + 1e-5;
    if (c->kind == ALL_GATHER) n *= r->contributors;
    for (uint32_t k = 0; c->kind == REDUCE_SCATTER && k < r->contributors; k++)
        if (r->ids[k] == id) from = (uint64_t)k * c->count;
    for (uint64_t i = 0; i < n; i++) {
        double want = 0;
        if (c->kind == ALL_GATHER) {
            want = (double)value(r->ids[i / c->count], r->gen, i % c->count);
        } else {
            for (uint32_t k = 0; k < r->contributors; k++) want += (double)value(r->ids[k], r->gen, from + i);
            if (c->op == RG_AVG) want /= r->contributors;
        }
        wrong += !(fabs((double)out[i] - want) <= bound);
    }
    return wrong;
}

static rg_status_t call(rg_quantiser_t *z, const struct round *c, const float *in, float *out, rg_opts_t *o,
                        rg_result_t *res) {
    rg_quant_request_t *req = NULL;
    rg_status_t s;
    o->result = res;
    if (!c->request)
        return c->kind == ALL_REDUCE       ? rg_quant_all_reduce(z, in, out, c->count, c->op, o)
               : c->kind == REDUCE_SCATTER ? rg_quant_reduce_scatter(z, in, out, c->count, c->op, o)
                                           : rg_quant_all_gather(z, in, out, c->count, o);
    o->tag = 3;
    s = c->kind == ALL_REDUCE       ? rg_quant_iall_reduce(z, in, out, c->count, c->op, o, &req)
        : c->kind == REDUCE_SCATTER ? rg_quant_ireduce_scatter(z, in, out, c->count, c->op, o, &req)
                                    : rg_quant_iall_gather(z, in, out, c->count, o, &req);
    return s != RG_OK ? s : rg_quant_wait(req, res);
}

static int one_op(rg_group_t *g, struct worker *w, uint64_t gen, float *in, float *out) {
    struct record *r = &w->log[w->started % LOG];
    struct round c = round_of(gen);
    rg_quant_t q = RG_QUANT_INIT(c.wire);
    rg_quantiser_t *z = NULL;
    rg_error_t err;
    rg_info_t info = RG_INFO_INIT;
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    float *from = c.in_place ? out : in;
    uint64_t n = c.kind == REDUCE_SCATTER ? (uint64_t)c.count * N : c.count;
    memset(r, 0, sizeof *r);
    r->gen = gen;
    for (uint64_t i = 0; i < n; i++) from[i] = value(w->id, gen, i);
    q.form = c.form;
    q.flags = c.flags;
    q.seed = w->id;
    PROCS_REQUIRE(rg_quantiser_create(g, &q, NULL, &z, &err) == RG_OK, "%s", err.text);
    rg_group_info(g, &info);
    r->world = info.world_size;
    res.contributor_ids = r->ids;
    res.contributor_cap = N;
    o.on_fault = c.on_fault;
    __atomic_store_n(&w->started, w->started + 1, __ATOMIC_RELEASE);
    rg_status_t s = call(z, &c, from, out, &o, &res);
    r->status = (uint32_t)-s;
    r->epoch = res.epoch;
    r->retries = res.retries;
    r->contributors = res.contributors;
    for (uint32_t k = res.contributors; k < N; k++) r->ids[k] = 0;
    snprintf(r->text, sizeof r->text, "%s", res.text);
    if (s == RG_OK) r->wrong = count_wrong(&c, r, w->id, out, rg_quantiser_bound(z));
    if (s == RG_OK && c.kind != REDUCE_SCATTER)
        r->hash = hash_bits(out, c.kind == ALL_GATHER ? (uint64_t)c.count * r->contributors : c.count);
    r->intact = 1;
    for (uint64_t i = 0; i < n && !(s == RG_OK && c.in_place); i++) r->intact &= from[i] == value(w->id, gen, i);
    __atomic_store_n(&w->finished, w->finished + 1, __ATOMIC_RELEASE);
    rg_quantiser_destroy(z);
    return 0;
}

static int worker_loop(struct worker *w, rg_group_t *g, float *in, float *out) {
    rg_info_t info = RG_INFO_INIT;
    PROCS_REQUIRE(rg_group_info(g, &info) == RG_OK, "info");
    w->id = info.member_id;
    uint64_t gen = info.boundary;
    for (;;) {
        rg_change_t change = RG_CHANGE_INIT;
        PROCS_REQUIRE(PROCS_WAIT(gen <= sh->limit_gen, 60), "the test does not follow");
        if (one_op(g, w, gen, in, out)) return 1;
        if (sh->stop_gen && gen >= sh->stop_gen) break;
        rg_status_t s = rg_group_boundary(g, &change);
        PROCS_REQUIRE(s == RG_OK, "boundary after %llu: %s", (unsigned long long)gen, rg_status_name(s));
        gen = change.boundary;
    }
    return rg_group_leave(g) != RG_OK;
}

/* Two hosts of two members, so that all forms have something to do. */
static int worker_body(int slot, void *first) {
    static const char *const hosts[] = { "one", "two" };
    struct worker *w = &sh->workers[slot];
    rg_config_t cfg = procs_config(sh->address, "quant", first ? N : 1, (uint32_t)slot);
    rg_group_t *g = NULL;
    rg_error_t err;
    float *in = malloc(N * (size_t)MOST * sizeof *in), *out = malloc(N * (size_t)MOST * sizeof *out);
    int rc = 1;
    PROCS_REQUIRE(in && out, "out of memory");
    cfg.host = hosts[slot / 2];
    rg_status_t s = rg_group_join(&cfg, &g, &err);
    if (s) procs_complain(__FILE__, __LINE__, "join", "%s", err.text);
    else rc = worker_loop(w, g, in, out);
    rg_group_destroy(g);
    free(in);
    free(out);
    if (rc) w->failed = 1;
    return rc;
}

static void start_worker(int slot, int first) {
    static char yes;
    memset(&sh->workers[slot], 0, sizeof sh->workers[slot]);
    sh->workers[slot].pid = procs_fork(worker_body, slot, first ? &yes : NULL);
}

/* ---- Judging --------------------------------------------------------------------------------------------------- */

struct tally {
    int quiet, bad, kills, during;
    uint64_t rounds, ok, peer_lost, retried, forms[RG_QUANT_FORM_COUNT];
};

static uint64_t done(int slot) { return __atomic_load_n(&sh->workers[slot].finished, __ATOMIC_ACQUIRE); }

static const struct record *find(int slot, uint64_t gen) {
    struct worker *w = &sh->workers[slot];
    uint64_t n = done(slot);
    for (uint64_t i = n; i-- > (n > LOG - 2 ? n - (LOG - 2) : 0);)
        if (w->log[i % LOG].gen == gen) return &w->log[i % LOG];
    return NULL;
}

static uint64_t last_gen(int slot) {
    uint64_t n = done(slot);
    return n ? sh->workers[slot].log[(n - 1) % LOG].gen : 0;
}

static void say(struct tally *t, const struct record *r, int slot, const char *what) {
    struct round c = round_of(r->gen);
    t->bad++;
    if (t->quiet) return;
    printf("BAD: round %llu, worker %d: %s\n", (unsigned long long)r->gen, slot, what);
    printf("     kind %d, %s, %s, %u elements, on_fault %d, request %d: status %d world %u contributors %u epoch %llu "
           "hash %llx wrong %llu intact %u retries %u; %s\n",
           c.kind, rg_wire_name(c.wire), rg_quant_form_name(c.form), c.count, (int)c.on_fault, c.request,
           -(int)r->status, r->world, r->contributors, (unsigned long long)r->epoch, (unsigned long long)r->hash,
           (unsigned long long)r->wrong, r->intact, r->retries, r->text);
}

/* What a member saw last before it died binds nobody. */
static void judge(struct tally *t, uint64_t gen) {
    struct round c = round_of(gen);
    const struct record *first = NULL;
    for (int i = 0; i < N; i++) {
        const struct record *r = find(i, gen);
        if (!r || (sh->workers[i].killed && gen == last_gen(i))) continue;
        if (r->wrong) say(t, r, i, "values beyond the bound");
        if (!r->intact) say(t, r, i, "input not intact");
        int lost = r->status == (uint32_t)-RG_ERR_PEER_LOST && (c.kind != ALL_REDUCE || c.on_fault == RG_RETURN);
        if (r->status && !lost) say(t, r, i, "an outcome that it cannot have");
        if (first && (first->status != r->status || first->hash != r->hash ||
                      (!r->status && (first->contributors != r->contributors || first->epoch != r->epoch ||
                                      memcmp(first->ids, r->ids, sizeof r->ids)))))
            say(t, r, i, "differs from another worker");
        if (!first) first = r;
    }
    if (!first) return;
    t->rounds++;
    t->ok += !first->status;
    t->peer_lost += first->status == (uint32_t)-RG_ERR_PEER_LOST;
    t->retried += first->retries != 0;
    t->forms[c.form]++;
}

/* ---- The run --------------------------------------------------------------------------------------------------- */

static int anyone_failed(void) {
    for (int i = 0; i < N; i++)
        if (sh->workers[i].failed || (!sh->workers[i].killed && waitpid(sh->workers[i].pid, NULL, WNOHANG) > 0))
            return printf("BAD: worker %d gave up\n", i), 1;
    return 0;
}

static int all_at(uint64_t gen, int but) {
    for (int i = 0; i < N; i++)
        if (i != but && last_gen(i) < gen) return 0;
    return 1;
}

/* Everybody is there and has finished the same round. Lets them go a little further as long as not. */
static int whole(void) {
    uint64_t top = 0;
    for (int i = 0; i < N; i++)
        if (last_gen(i) > top) top = last_gen(i);
    int all = top >= sh->limit_gen;
    for (int i = 0; i < N; i++) {
        const struct record *r = find(i, top);
        all &= r != NULL && r->world == N;
    }
    if (!all && top >= sh->limit_gen) sh->limit_gen = top + 1;
    return all;
}

/* Some rounds of all, and one in which somebody dies. *from: rounds judged so far. */
static int one_kill(struct tally *t, uint64_t *from, unsigned every, unsigned *seed) {
    int victim = (int)(procs_draw(seed) % N);
    struct worker *w = &sh->workers[victim];
    if (!PROCS_WAIT(anyone_failed() || whole(), 60)) return printf("BAD: no whole group\n"), 1;
    uint64_t at = sh->limit_gen + 1 + procs_draw(seed) % (2 * every);
    sh->limit_gen = at - 1;
    if (!PROCS_WAIT(anyone_failed() || all_at(at - 1, -1), 60)) return printf("BAD: a round does not end\n"), 1;
    for (uint64_t g = *from + 1; g < at; g++) judge(t, g);
    unsigned us = procs_draw(seed) % (round_of(at).count > 3000 ? 4000 : 900);
    __atomic_store_n(&sh->limit_gen, at, __ATOMIC_RELEASE);
    if (!PROCS_WAIT(anyone_failed() || w->started > w->finished || w->finished > LOG || last_gen(victim) >= at, 20))
        return printf("BAD: the victim does not come\n"), 1;
    procs_pause_ns((uint64_t)us * 1000);
    kill(w->pid, SIGKILL);
    waitpid(w->pid, NULL, 0);
    w->killed = 1;
    t->kills++;
    t->during += __atomic_load_n(&w->started, __ATOMIC_ACQUIRE) > done(victim);
    if (!PROCS_WAIT(anyone_failed() || all_at(at, victim), 60)) return printf("BAD: the survivors do not end\n"), 1;
    judge(t, at);
    *from = at;
    if (anyone_failed()) return 1;
    start_worker(victim, 0);
    return 0;
}

static int finish(void) {
    int bad = 0;
    if (!PROCS_WAIT(anyone_failed() || whole(), 60)) return printf("BAD: no whole group at the end\n"), 1;
    sh->stop_gen = sh->limit_gen + 4;
    __atomic_store_n(&sh->limit_gen, UINT64_MAX, __ATOMIC_RELEASE);
    for (int i = 0; i < N; i++) bad += procs_end(sh->workers[i].pid, 60) != 0;
    return bad;
}

int check_quant(uint64_t rounds, unsigned every, unsigned seed) {
    static struct tally t;
    struct procs_coordinator co;
    unsigned state = seed * 2654435761u + 1;
    uint64_t from = 0, began = procs_now();
    int broken = 0;
    memset(&t, 0, sizeof t);
    sh = procs_shared(sizeof *sh);
    if (procs_coordinator_start(&co, 0)) return 1;
    memcpy(sh->address, co.address, sizeof sh->address);
    sh->limit_gen = 1;
    for (int i = 0; i < N; i++) start_worker(i, 1);
    while (!broken && t.rounds < rounds) broken = one_kill(&t, &from, every, &state);
    if (!broken) broken = finish();
    for (int i = 0; broken && i < N; i++) kill(sh->workers[i].pid, SIGKILL);
    while (broken && waitpid(-1, NULL, WNOHANG) > 0) {}
    broken |= procs_coordinator_stop(&co) != 0;
    printf("{\"rounds\": %llu, \"seed\": %u, \"members\": %d, \"kills\": %d, \"during_operation\": %d, \"ok\": %llu, "
           "\"peer_lost\": %llu, \"retried\": %llu, \"forms\": {",
           (unsigned long long)t.rounds, seed, N, t.kills, t.during, (unsigned long long)t.ok,
           (unsigned long long)t.peer_lost, (unsigned long long)t.retried);
    for (uint32_t f = 0; f < RG_QUANT_FORM_COUNT; f++)
        printf("%s\"%s\": %llu", f ? ", " : "", rg_quant_form_name(f), (unsigned long long)t.forms[f]);
    printf("}, \"disagreements\": %d, \"seconds\": %.1f, \"passed\": %s}\n", t.bad, (double)(procs_now() - began) / 1e9,
           !broken && !t.bad ? "true" : "false");
    return broken || t.bad;
}

/* ---- Planted faults -------------------------------------------------------------------------------------------- */

/* 1 when each of them is found in otherwise equal records. */
int check_quant_planted(void) {
    static struct tally t;
    int found = 1;
    sh = procs_shared(sizeof *sh);
    for (int fault = 0; fault < 7; fault++) {
        for (int i = 0; i < N; i++) {
            struct record r = {
                .gen = 7, .epoch = 2, .hash = 9, .ids = { 1, 2, 3, 4 }, .contributors = N, .intact = 1
            };
            sh->workers[i].log[0] = r;
            sh->workers[i].finished = 1;
        }
        struct record *r = &sh->workers[2].log[0];
        r->hash += fault == 1;
        r->wrong += fault == 2;
        r->intact -= fault == 3;
        r->contributors -= fault == 4;
        r->status = fault == 5 ? (uint32_t)-RG_ERR_TIMEOUT : 0;
        r->ids[1] += fault == 6;
        memset(&t, 0, sizeof t);
        t.quiet = 1;
        judge(&t, 7);
        found &= (fault != 0) == (t.bad != 0);
    }
    return found;
}
