/* random_ops.c: random operations among real processes of which some are killed in the middle of a call, two at once,
 * or as they come to replace one. Whoever finished a call must agree with the others on outcome, contributors and,
 * where all get the same, on every bit; what a kind of operations compares with its reference is to be equal to the
 * bit; a round in which nobody was lost has the outcome that its inputs say. It relies on procs.h. */
#include "random_ops.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define N RANDOM_N
#define LOG 512
#define BORN 65536

struct worker {
    pid_t pid;
    volatile uint64_t calling, called; /* rounds */
    volatile uint64_t finished;
    volatile int failed;
    int killed;
    struct random_record log[LOG];
};

static struct shared {
    volatile uint64_t stop_gen, limit_gen;
    char address[128];
    const struct random_kind *kind;
    struct worker workers[N];
    uint32_t born;
    struct {
        volatile uint64_t id;
        int slot;
    } who[BORN];
} * sh;

static uint64_t salt;

/* ---- Numbers --------------------------------------------------------------------------------------------------- */

uint64_t random_spread(uint64_t v) {
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9ull;
    v = (v ^ v >> 27) * 0x94d049bb133111ebull;
    return v ^ v >> 31;
}

uint64_t random_draw(uint64_t gen) { return random_spread(gen * 0x9e3779b97f4a7c15ull + salt); }

float random_unit(uint64_t id, uint64_t gen, uint64_t i) {
    uint32_t v = (uint32_t)(id * 0x9e3779b1u + gen * 0x85ebca6bu + i * 0xc2b2ae35u);
    v = (v ^ v >> 15) * 0x2c1b3c6du;
    v = (v ^ v >> 12) * 0x297a2d39u;
    return (float)(int32_t)(v ^ v >> 15) * 0x1p-31f;
}

uint64_t random_hash(const void *p, uint64_t bytes) {
    const uint8_t *b = p;
    uint64_t h = bytes + 1;
    for (uint64_t i = 0; i < bytes; i++) h = (h ^ b[i]) * 0x100000001b3ull;
    return random_spread(h) | 1;
}

/* ---- Worker ---------------------------------------------------------------------------------------------------- */

void random_calls(struct random_member *m, uint64_t gen) {
    __atomic_store_n(&sh->workers[m->slot].calling, gen, __ATOMIC_RELEASE);
}

void random_called(struct random_member *m, uint64_t gen) {
    __atomic_store_n(&sh->workers[m->slot].called, gen, __ATOMIC_RELEASE);
}

int random_slot_of(uint64_t id) {
    for (uint32_t i = __atomic_load_n(&sh->born, __ATOMIC_ACQUIRE); i-- > 0;)
        if (__atomic_load_n(&sh->who[i].id, __ATOMIC_ACQUIRE) == id) return sh->who[i].slot;
    return -1;
}

static int register_self(uint64_t id, int slot) {
    uint32_t at = __atomic_fetch_add(&sh->born, 1, __ATOMIC_ACQ_REL);
    PROCS_REQUIRE(at < BORN, "too many members");
    sh->who[at].slot = slot;
    __atomic_store_n(&sh->who[at].id, id, __ATOMIC_RELEASE);
    return 0;
}

static int worker_loop(struct random_member *m) {
    struct worker *w = &sh->workers[m->slot];
    rg_info_t info = RG_INFO_INIT;
    PROCS_REQUIRE(rg_group_info(m->g, &info) == RG_OK, "info");
    m->id = info.member_id;
    if (register_self(m->id, m->slot)) return 1;
    uint64_t gen = info.boundary;
    for (;;) {
        rg_change_t change = RG_CHANGE_INIT;
        struct random_record *r = &w->log[w->finished % LOG];
        PROCS_REQUIRE(PROCS_WAIT(gen <= sh->limit_gen, 60), "the test does not follow");
        memset(r, 0, sizeof *r);
        PROCS_REQUIRE(rg_group_info(m->g, &info) == RG_OK, "info");
        r->gen = gen;
        r->world = info.world_size;
        if (sh->kind->run(m, gen, r)) return 1;
        __atomic_store_n(&w->finished, w->finished + 1, __ATOMIC_RELEASE);
        if (sh->stop_gen && gen >= sh->stop_gen) break;
        rg_status_t s = rg_group_boundary(m->g, &change);
        PROCS_REQUIRE(s == RG_OK, "boundary after %llu: %s", (unsigned long long)gen, rg_status_name(s));
        gen = change.boundary;
    }
    return rg_group_leave(m->g) != RG_OK;
}

/* Two hosts of two members; processors of several kinds. */
static int worker_body(int slot, void *first) {
    static const char *const hosts[] = { "one", "two" }, *const simd[] = { NULL, "scalar", "avx2", NULL };
    struct random_member m = { .slot = slot };
    rg_config_t cfg = procs_config(sh->address, sh->kind->name, first ? N : 1, (uint32_t)slot);
    rg_error_t err;
    int rc = 1;
    cfg.host = hosts[slot / 2];
    if (simd[slot]) setenv("RG_SIMD", simd[slot], 0);
    rg_status_t s = rg_group_join(&cfg, &m.g, &err);
    if (s) procs_complain(__FILE__, __LINE__, "join", "%s", err.text);
    else rc = sh->kind->begin(&m) || worker_loop(&m);
    if (!s) sh->kind->end(&m);
    rg_group_destroy(m.g);
    if (rc) sh->workers[slot].failed = 1;
    return rc;
}

static void start_worker(int slot, int first) {
    static char yes;
    memset(&sh->workers[slot], 0, sizeof sh->workers[slot]);
    sh->workers[slot].pid = procs_fork(worker_body, slot, first ? &yes : NULL);
}

/* ---- Judging --------------------------------------------------------------------------------------------------- */

struct tally {
    int quiet, bad, kills, during, pairs, newcomers;
    uint64_t rounds, ok, refused, cancelled, peer_lost, retried, compared, whole, classes[RANDOM_CLASSES];
};

static uint64_t done(int slot) { return __atomic_load_n(&sh->workers[slot].finished, __ATOMIC_ACQUIRE); }

static const struct random_record *find(int slot, uint64_t gen) {
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

static void say(struct tally *t, const struct random_record *r, int slot, const char *what) {
    char text[512];
    t->bad++;
    if (t->quiet) return;
    sh->kind->describe(r->gen, text, sizeof text);
    printf("BAD: round %llu, worker %d: %s\n", (unsigned long long)r->gen, slot, what);
    printf("     %s: status %d must %d world %u contributors %u epoch %llu hash %llx unlike %llu wrong %llu intact %u "
           "retries %u; %s\n",
           text, -(int)r->status, r->must, r->world, r->contributors, (unsigned long long)r->epoch,
           (unsigned long long)r->hash, (unsigned long long)r->unlike, (unsigned long long)r->wrong, r->intact,
           r->retries, r->text);
}

/* What a member saw last before it died binds nobody. */
static const struct random_record *binding(int slot, uint64_t gen) {
    const struct random_record *r = find(slot, gen);
    return r && sh->workers[slot].killed && gen == last_gen(slot) ? NULL : r;
}

static int same(const struct random_record *a, const struct random_record *b) {
    if (a->status != b->status || a->hash != b->hash || a->failed != b->failed) return 0;
    return a->status ||
           (a->contributors == b->contributors && a->epoch == b->epoch && !memcmp(a->ids, b->ids, sizeof a->ids));
}

static void judge(struct tally *t, uint64_t gen) {
    const struct random_record *first = NULL;
    int all = 1; /* nobody was missing or lost */
    for (int i = 0; i < N; i++) {
        const struct random_record *r = binding(i, gen);
        all &= r && r->world == N;
    }
    for (int i = 0; i < N; i++) {
        const struct random_record *r = binding(i, gen);
        if (!r) continue;
        int status = -(int)r->status;
        if (r->unlike) say(t, r, i, "not what the reference gives");
        if (r->wrong) say(t, r, i, "values beyond the bound");
        if (!r->intact) say(t, r, i, "what must not be touched was");
        if (!sh->kind->allows(gen, status) || (all && r->must <= 0 && status != r->must && status != RG_ERR_CANCELLED))
            say(t, r, i, "an outcome that it cannot have");
        if (all && r->status && r->failing && r->failed != r->failing) say(t, r, i, "not the error that it is");
        if (first && !same(first, r)) say(t, r, i, "differs from another worker");
        if (!first) first = r;
        t->compared += r->compared;
    }
    if (!first) return;
    t->rounds++;
    t->whole += (uint64_t)all;
    t->ok += !first->status;
    t->peer_lost += first->status == (uint32_t)-RG_ERR_PEER_LOST;
    t->cancelled += first->status == (uint32_t)-RG_ERR_CANCELLED;
    t->refused += first->status == (uint32_t)-RG_ERR_INVALID || first->status == (uint32_t)-RG_ERR_CAPACITY;
    t->retried += first->retries != 0;
    t->classes[sh->kind->class_of(gen)]++;
}

/* ---- The run --------------------------------------------------------------------------------------------------- */

static int anyone_failed(void) {
    for (int i = 0; i < N; i++)
        if (sh->workers[i].failed || (!sh->workers[i].killed && waitpid(sh->workers[i].pid, NULL, WNOHANG) > 0))
            return printf("BAD: worker %d gave up\n", i), 1;
    return 0;
}

static int all_at(uint64_t gen) {
    for (int i = 0; i < N; i++)
        if (!sh->workers[i].killed && last_gen(i) < gen) return 0;
    return 1;
}

/* Everybody is there and has finished the same round. Lets them go a little further as long as not. */
static int whole(void) {
    uint64_t top = 0;
    for (int i = 0; i < N; i++)
        if (last_gen(i) > top) top = last_gen(i);
    int all = top >= sh->limit_gen;
    for (int i = 0; i < N; i++) {
        const struct random_record *r = find(i, top);
        all &= r != NULL && r->world == N;
    }
    if (!all && top >= sh->limit_gen) sh->limit_gen = top + 1;
    return all;
}

static void strike(struct tally *t, int victim) {
    struct worker *w = &sh->workers[victim];
    w->killed = 1;
    kill(w->pid, SIGKILL);
    waitpid(w->pid, NULL, 0);
    t->kills++;
    t->during += w->calling > w->called;
}

/* Another process takes the place; now and then it is killed as it comes, or a little later, and another one comes. */
static void replace(struct tally *t, int slot, unsigned *seed) {
    start_worker(slot, 0);
    if (procs_draw(seed) % 8) return;
    sh->limit_gen += 4;
    procs_pause_ns(procs_draw(seed) % 40000 * 1000ull);
    strike(t, slot);
    t->newcomers++;
    start_worker(slot, 0);
}

/* Some rounds of all, and one in which somebody dies. *from: rounds judged so far. */
static int one_kill(struct tally *t, uint64_t *from, unsigned every, unsigned *seed) {
    int victim = (int)(procs_draw(seed) % N), other = -1;
    struct worker *w = &sh->workers[victim];
    if (!PROCS_WAIT(anyone_failed() || whole(), 60)) return printf("BAD: no whole group\n"), 1;
    uint64_t at = sh->limit_gen + 1 + procs_draw(seed) % (2 * every);
    sh->limit_gen = at - 1;
    if (!PROCS_WAIT(anyone_failed() || all_at(at - 1), 60)) return printf("BAD: a round does not end\n"), 1;
    for (uint64_t g = *from + 1; g < at; g++) judge(t, g);
    unsigned most = procs_draw(seed) % 4 ? 200 : sh->kind->is_long(at) ? 4000 : 900, us = procs_draw(seed) % most;
    if (procs_draw(seed) % 8 == 0) other = (victim + 1 + (int)(procs_draw(seed) % (N - 1))) % N;
    __atomic_store_n(&sh->limit_gen, at, __ATOMIC_RELEASE);
    uint64_t until = procs_now() + 20000000000ull;
    while (w->calling < at && procs_now() < until && !w->failed) {} /* a nap would miss most calls */
    if (w->calling < at) return printf("BAD: the victim does not come\n"), 1;
    procs_pause_ns((uint64_t)us * 1000);
    strike(t, victim);
    if (other >= 0) {
        procs_pause_ns(procs_draw(seed) % 2000 * 1000ull);
        strike(t, other);
        t->pairs++;
    }
    if (!PROCS_WAIT(anyone_failed() || all_at(at), 60)) return printf("BAD: the survivors do not end\n"), 1;
    judge(t, at);
    *from = at;
    if (anyone_failed()) return 1;
    replace(t, victim, seed);
    if (other >= 0) replace(t, other, seed);
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

static void summary(const struct tally *t, unsigned seed, uint64_t began, int passed) {
    printf("{\"operations\": \"%s\", \"rounds\": %llu, \"seed\": %u, \"members\": %d, \"kills\": %d, "
           "\"during_operation\": %d, \"two_at_once\": %d, \"newcomers_killed\": %d, \"ok\": %llu, \"refused\": %llu, "
           "\"cancelled\": %llu, \"peer_lost\": %llu, \"retried\": %llu, \"nobody_lost\": %llu, \"compared\": %llu, "
           "\"classes\": {",
           sh->kind->name, (unsigned long long)t->rounds, seed, N, t->kills, t->during, t->pairs, t->newcomers,
           (unsigned long long)t->ok, (unsigned long long)t->refused, (unsigned long long)t->cancelled,
           (unsigned long long)t->peer_lost, (unsigned long long)t->retried, (unsigned long long)t->whole,
           (unsigned long long)t->compared);
    for (uint32_t f = 0; f < sh->kind->classes; f++)
        printf("%s\"%s\": %llu", f ? ", " : "", sh->kind->class_name(f), (unsigned long long)t->classes[f]);
    printf("}, \"disagreements\": %d, \"seconds\": %.1f, \"passed\": %s}\n", t->bad,
           (double)(procs_now() - began) / 1e9, passed ? "true" : "false");
}

int random_check(const struct random_kind *k, uint64_t rounds, unsigned every, unsigned seed) {
    static struct tally t;
    struct procs_coordinator co;
    unsigned state = seed * 2654435761u + 1;
    uint64_t from = 0, began = procs_now();
    int broken = 0;
    memset(&t, 0, sizeof t);
    sh = procs_shared(sizeof *sh);
    sh->kind = k;
    salt = random_spread(seed);
    /* Who is killed is missed at once, by its connections; silence for two seconds happens to the living, too, where
     * many processes want a processor. */
    if (procs_coordinator_start(&co, 20000)) return 1;
    memcpy(sh->address, co.address, sizeof sh->address);
    sh->limit_gen = 1;
    for (int i = 0; i < N; i++) start_worker(i, 1);
    while (!broken && t.rounds < rounds) broken = one_kill(&t, &from, every, &state);
    if (!broken) broken = finish();
    for (int i = 0; broken && i < N; i++)
        if (!sh->workers[i].killed) kill(sh->workers[i].pid, SIGKILL);
    while (broken && waitpid(-1, NULL, WNOHANG) > 0) {}
    broken |= procs_coordinator_stop(&co) != 0;
    summary(&t, seed, began, !broken && !t.bad);
    return broken || t.bad;
}

/* ---- Planted faults -------------------------------------------------------------------------------------------- */

/* In otherwise equal records of a round that can only succeed. */
int random_planted(const struct random_kind *k, uint64_t gen) {
    static struct tally t;
    int found = 1;
    sh = procs_shared(sizeof *sh);
    sh->kind = k;
    for (int fault = 0; fault < 10; fault++) {
        for (int i = 0; i < N; i++) {
            struct random_record r = {
                .gen = gen, .epoch = 2, .hash = 9, .ids = { 1, 2, 3, 4 }, .contributors = N, .world = N, .intact = 1
            };
            sh->workers[i].log[0] = r;
            sh->workers[i].finished = 1;
            if (fault == 8) sh->workers[i].log[0].status = (uint32_t)-RG_ERR_PEER_LOST; /* all alike, of no cause */
        }
        struct random_record *r = &sh->workers[2].log[0];
        r->hash += fault == 1;
        r->wrong += fault == 2;
        r->intact -= fault == 3;
        r->contributors -= fault == 4;
        if (fault == 5) r->status = (uint32_t)-RG_ERR_TIMEOUT;
        r->ids[1] += fault == 6;
        r->unlike += fault == 7;
        r->failed += fault == 9;
        memset(&t, 0, sizeof t);
        t.quiet = 1;
        judge(&t, gen);
        found &= (fault != 0) == (t.bad != 0);
    }
    return found;
}
