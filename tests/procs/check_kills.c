/* check_kills.c: members are killed at random moments of all-reduces, and the survivors must agree on everything:
 * outcome, contributors, bits; values exactly right for the contributors; inputs intact where the call failed or was
 * not in place; descriptors, threads and memory flat. Workers write what they see into shared memory; the process that
 * kills compares. With `timed` it also measures from the kill to the survivors' next completed operation, less what
 * that operation takes by itself, and holds the median and the 99th percentile against their limits.
 * Operations are named by the boundary index, which the protocol promises to be common. */
#include "procs.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define N 4
#define LOG 512  /* records kept per worker; the driver looks at them long before they are overwritten */
#define PERIOD 8 /* inputs are periodic in the index */
#define MAX_SAMPLES 4096

struct record {
    uint64_t gen, start_ns, end_ns, epoch, hash, ids[8], wrong;
    uint32_t status, contributors, retries, world, rank, in_place, on_fault, intact;
};

struct worker {
    pid_t pid;
    uint64_t id;
    volatile uint64_t go;    /* set by the driver: join now */
    volatile uint64_t ready; /* memory is there */
    volatile uint64_t joined;
    volatile uint64_t started;  /* records begun; the last one is being written while started > finished */
    volatile uint64_t finished; /* records complete */
    volatile int failed;
    int killed; /* by the driver, and waited for */
    struct record log[LOG];
};

struct shared {
    volatile uint64_t stop_gen;  /* 0: go on */
    volatile uint64_t limit_gen; /* operations beyond it wait, so that short ones do not overwrite the log unseen */
    char address[128];
    size_t count;
    struct worker workers[N];
};

static struct shared *sh;

/* ---- Worker ---------------------------------------------------------------------------------------------------- */

/* Small integers, so that sums are exact in any order. */
static float value(uint64_t id, uint64_t gen, uint64_t i) {
    return (float)(((id * 5 + gen * 3 + i % PERIOD * (1 + id % 3)) & 7) + 1);
}

static void fill(float *p, uint64_t id, uint64_t gen) {
    float block[1024];
    for (size_t i = 0; i < 1024; i++) block[i] = value(id, gen, i);
    for (size_t i = 0; i < sh->count; i += 1024)
        memcpy(p + i, block, (sh->count - i < 1024 ? sh->count - i : 1024) * 4);
}

/* Elements that differ from the sum over the given members. */
static uint64_t count_wrong(const float *p, const uint64_t *ids, uint32_t n, uint64_t gen) {
    float want[1024];
    uint64_t wrong = 0;
    for (size_t i = 0; i < 1024; i++) {
        want[i] = 0;
        for (uint32_t k = 0; k < n; k++) want[i] += value(ids[k], gen, i);
    }
    for (size_t i = 0; i < sh->count; i += 1024) {
        size_t m = sh->count - i < 1024 ? sh->count - i : 1024;
        if (!memcmp(p + i, want, m * 4)) continue;
        for (size_t k = 0; k < m; k++) wrong += p[i + k] != want[k];
    }
    return wrong;
}

static uint64_t hash_bits(const float *p, size_t count) {
    uint64_t h[4] = { 1, 2, 3, 4 }, w;
    for (size_t i = 0; i + 8 <= count; i += 8)
        for (int k = 0; k < 4; k++) {
            memcpy(&w, p + i + 2 * k, 8);
            h[k] = (h[k] ^ w) * 0x9e3779b97f4a7c15ull;
            h[k] ^= h[k] >> 29;
        }
    for (size_t i = count / 8 * 8; i < count; i++) h[0] = (h[0] ^ (uint64_t)p[i]) * 0x100000001b3ull;
    return h[0] + 3 * h[1] + 5 * h[2] + 7 * h[3];
}

static int one_op(rg_group_t *g, struct worker *w, uint64_t gen, float *in, float *out) {
    struct record *r = &w->log[w->started % LOG];
    uint64_t ids[8];
    rg_info_t info = RG_INFO_INIT;
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t opts = RG_OPTS_INIT;
    float *from;
    memset(r, 0, sizeof *r);
    r->gen = gen;
    r->on_fault = gen & 1 ? RG_RETURN : RG_RETRY;
    r->in_place = (uint32_t)(gen >> 1 & 1);
    from = r->in_place ? out : in;
    fill(from, w->id, gen);
    rg_group_info(g, &info);
    r->world = info.world_size;
    r->rank = info.rank;
    res.contributor_ids = ids;
    res.contributor_cap = 8;
    opts.result = &res;
    opts.on_fault = (rg_on_fault_t)r->on_fault;
    r->start_ns = procs_now();
    __atomic_store_n(&w->started, w->started + 1, __ATOMIC_RELEASE);
    rg_status_t s = rg_all_reduce(g, from, out, sh->count, RG_F32, RG_SUM, &opts, NULL);
    r->end_ns = procs_now();
    r->status = (uint32_t)-s;
    r->epoch = res.epoch;
    r->retries = res.retries;
    r->contributors = res.contributors;
    for (uint32_t i = 0; i < res.contributors && i < 8; i++) r->ids[i] = ids[i];
    if (s == RG_OK) {
        r->wrong = count_wrong(out, r->ids, r->contributors, gen);
        r->hash = hash_bits(out, sh->count);
    }
    r->intact = (s == RG_OK && r->in_place) || count_wrong(from, &w->id, 1, gen) == 0;
    __atomic_store_n(&w->finished, w->finished + 1, __ATOMIC_RELEASE);
    PROCS_REQUIRE(s == RG_OK || s == RG_ERR_PEER_LOST, "operation %llu: %s: %s", (unsigned long long)gen,
                  rg_status_name(s), res.text);
    return 0;
}

static int worker_loop(struct worker *w, rg_group_t *g, float *in, float *out) {
    rg_info_t info = RG_INFO_INIT;
    PROCS_REQUIRE(rg_group_info(g, &info) == RG_OK, "info");
    w->id = info.member_id;
    uint64_t gen = info.boundary;
    __atomic_store_n(&w->joined, 1, __ATOMIC_RELEASE);
    for (;;) {
        rg_change_t change = RG_CHANGE_INIT;
        PROCS_REQUIRE(PROCS_WAIT(gen <= sh->limit_gen, 60), "the test does not follow");
        if (one_op(g, w, gen, in, out)) return 1;
        if (sh->stop_gen && gen >= sh->stop_gen) break;
        rg_status_t s = rg_group_boundary(g, &change);
        char text[256];
        rg_group_errmsg(g, text, sizeof text);
        PROCS_REQUIRE(s == RG_OK, "boundary after %llu: %s: %s", (unsigned long long)gen, rg_status_name(s), text);
        PROCS_REQUIRE(change.boundary == gen + 1, "boundary %llu follows %llu", (unsigned long long)change.boundary,
                      (unsigned long long)gen);
        gen = change.boundary;
    }
    return rg_group_leave(g) != RG_OK;
}

/* Large pages: with small ones the kernel takes 14 ms to take 200 MiB from a process that was killed, before it closes
 * its connections, and that would be measured here instead of the library. */
static float *buffer(size_t bytes) {
    size_t huge = 2u << 20, cap = (bytes + 64 + huge - 1) & ~(huge - 1);
    void *p = aligned_alloc(huge, cap);
    if (!p) return NULL;
    madvise(p, cap, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

static int worker_body(int slot, void *arg) {
    struct worker *w = &sh->workers[slot];
    rg_config_t cfg = procs_config(sh->address, "kills", arg ? N : 1, (uint32_t)slot);
    rg_group_t *g = NULL;
    rg_error_t err;
    float *in = buffer(sh->count * 4), *out = buffer(sh->count * 4);
    PROCS_REQUIRE(in && out, "out of memory");
    w->ready = 1;
    rg_status_t s = rg_group_join(&cfg, &g, &err);
    int rc = 1;
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

/* ---- What the driver knows ------------------------------------------------------------------------------------- */

struct tally {
    int quiet; /* planted faults: count, do not print */
    int kills, in_op, retry, returned, committed, in_place, bad;
    double ms[MAX_SAMPLES];
    int n_ms;
    double own[N + 1][MAX_SAMPLES]; /* fault-free times by number of members, ms */
    int n_own[N + 1];
    int fds_first, fds_last, threads_first, threads_last, co_fds_first, co_fds_last;
    long rss_first, rss_last, co_rss_first, co_rss_last;
};

static int less(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *v, int n, double q) {
    double s[MAX_SAMPLES];
    if (!n) return 0;
    memcpy(s, v, (size_t)n * sizeof *s);
    qsort(s, (size_t)n, sizeof *s, less);
    return s[(int)(q * (n - 1) + 0.5)];
}

static const struct record *find(int slot, uint64_t gen) {
    struct worker *w = &sh->workers[slot];
    uint64_t n = __atomic_load_n(&w->finished, __ATOMIC_ACQUIRE);
    for (uint64_t i = n > LOG - 2 ? n - (LOG - 2) : 0; i < n; i++)
        if (w->log[i % LOG].gen == gen) return &w->log[i % LOG];
    return NULL;
}

static uint64_t last_gen(int slot) {
    struct worker *w = &sh->workers[slot];
    uint64_t n = __atomic_load_n(&w->finished, __ATOMIC_ACQUIRE);
    return n ? w->log[(n - 1) % LOG].gen : 0;
}

static uint64_t done(int slot) { return __atomic_load_n(&sh->workers[slot].finished, __ATOMIC_ACQUIRE); }

static int say(struct tally *t, uint64_t gen, int slot, const char *what) {
    t->bad++;
    if (!t->quiet) printf("BAD: operation %llu, worker %d: %s\n", (unsigned long long)gen, slot, what);
    return 0;
}

static int same(const struct record *a, const struct record *b) {
    return a->status == b->status && a->contributors == b->contributors && a->hash == b->hash && a->epoch == b->epoch &&
           !memcmp(a->ids, b->ids, sizeof a->ids);
}

/* Everything that must hold for one operation over the workers that finished it. */
static void judge(struct tally *t, uint64_t gen) {
    const struct record *first = NULL;
    for (int i = 0; i < N; i++) {
        const struct record *r = find(i, gen);
        /* What a member saw last before it died binds nobody: it may have shown a result whose bytes died with it. */
        if (!r || (sh->workers[i].killed && gen == last_gen(i))) continue;
        if (r->wrong) say(t, gen, i, "wrong values for its contributors");
        if (!r->intact) say(t, gen, i, "input not intact");
        if (r->status && r->on_fault != RG_RETURN) say(t, gen, i, "an error under RETRY");
        if (first && !same(first, r)) {
            say(t, gen, i, "differs from another worker");
            if (t->quiet) break;
            printf("     status %u/%u contributors %u/%u epoch %llu/%llu hash %llx/%llx\n", first->status, r->status,
                   first->contributors, r->contributors, (unsigned long long)first->epoch, (unsigned long long)r->epoch,
                   (unsigned long long)first->hash, (unsigned long long)r->hash);
        }
        if (!first) first = r;
    }
}

/* A finished operation that no fault touched says what it takes by itself: from the last start to the last end. */
static double duration_ms(uint64_t gen, int victim, uint64_t *last_start, uint64_t *last_end) {
    uint64_t s = 0, e = 0;
    for (int i = 0; i < N; i++) {
        const struct record *r = i == victim ? NULL : find(i, gen);
        if (!r) continue;
        if (r->start_ns > s) s = r->start_ns;
        if (r->end_ns > e) e = r->end_ns;
    }
    if (last_start) *last_start = s;
    if (last_end) *last_end = e;
    return (double)(e - s) / 1e6;
}

static void learn(struct tally *t, int members, double ms) {
    if (t->n_own[members] < MAX_SAMPLES) t->own[members][t->n_own[members]++] = ms;
}

/* From the kill to the survivors' next completed operation, less its own time. What workers do between two calls
 * (fresh inputs, checks) is not counted: a failed call is counted up to its return, the next from its last start. */
static void measure(struct tally *t, int victim, uint64_t kill_ns, uint64_t from, uint64_t to) {
    double ms = 0, own4 = quantile(t->own[N], t->n_own[N], 0.5), own3 = quantile(t->own[N - 1], t->n_own[N - 1], 0.5);
    for (uint64_t gen = from; gen <= to; gen++) {
        uint64_t start, end;
        const struct record *r = find(victim ? 0 : 1, gen);
        duration_ms(gen, victim, &start, &end);
        if (!r || end < kill_ns) continue;
        if (r->status) {
            ms += (double)(end - (start > kill_ns ? start : kill_ns)) / 1e6;
            continue;
        }
        double took = (double)((int64_t)(end - kill_ns)) / 1e6;
        if (start > kill_ns) ms += (double)(end - start) / 1e6 - own3;
        else if (r->contributors == N)
            ms += took - ((double)((int64_t)(start - kill_ns)) / 1e6 + own4 > 0
                              ? (double)((int64_t)(start - kill_ns)) / 1e6 + own4
                              : 0);
        else ms += took - own3;
        t->committed += r->contributors == N && start <= kill_ns;
        t->retry += r->contributors == N - 1 && start <= kill_ns;
        break;
    }
    if (t->n_ms < MAX_SAMPLES) t->ms[t->n_ms++] = ms > 0 ? ms : 0;
    if (getenv("KILLS_VERBOSE")) printf("kill %d: %.2f ms (own %.1f / %.1f ms)\n", t->kills, ms, own4, own3);
}

/* A worker that gave up, or that ended without having been killed by this test. */
static int anyone_failed(void) {
    for (int i = 0; i < N; i++) {
        int status;
        if (sh->workers[i].failed) return 1;
        if (!sh->workers[i].killed && waitpid(sh->workers[i].pid, &status, WNOHANG) > 0) {
            printf("BAD: worker %d ended by itself: %s %d\n", i, WIFSIGNALED(status) ? "signal" : "exit code",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            return 1;
        }
    }
    return 0;
}

static int complete_in_world(int victim, uint64_t gen, uint32_t world) {
    for (int i = 0; i < N; i++) {
        const struct record *r = i == victim ? NULL : find(i, gen);
        if (i != victim && (!r || r->world != world)) return 0;
    }
    return 1;
}

/* 1 when every worker but `victim` finished `ops` operations in groups of `world`; *from gets the first of them. */
static int settled(int victim, uint32_t world, uint64_t ops, uint64_t *from) {
    uint64_t last = UINT64_MAX;
    for (int i = 0; i < N; i++)
        if (i != victim && last_gen(i) < last) last = last_gen(i);
    if (last == UINT64_MAX || last + 1 < ops) return 0;
    for (uint64_t k = 0; k < ops; k++)
        if (!complete_in_world(victim, last - k, world)) return 0;
    *from = last + 1 - ops;
    return 1;
}

static void dump(const char *what) {
    printf("BAD: %s\n", what);
    for (int i = 0; i < N; i++) {
        struct worker *w = &sh->workers[i];
        uint64_t n = done(i);
        const struct record *r = n ? &w->log[(n - 1) % LOG] : NULL;
        printf("     worker %d pid %d: joined %llu, started %llu, finished %llu, last: operation %llu status %u world "
               "%u\n",
               i, (int)w->pid, (unsigned long long)w->joined, (unsigned long long)w->started, (unsigned long long)n,
               (unsigned long long)(r ? r->gen : 0), r ? r->status : 0, r ? r->world : 0);
    }
}

/* Lets the workers go `ahead` operations beyond what the furthest has finished. Always true, for use in conditions. */
static int let(uint64_t ahead) {
    uint64_t top = 0;
    for (int i = 0; i < N; i++)
        if (last_gen(i) > top) top = last_gen(i);
    sh->limit_gen = top + ahead;
    return 1;
}

/* ---- One kill -------------------------------------------------------------------------------------------------- */

/* Kills the victim at a random moment of an operation of the policy wanted. Returns the time of the kill. */
static uint64_t strike(struct tally *t, int victim, unsigned mode, unsigned *seed, int *bad) {
    struct worker *w = &sh->workers[victim];
    double own = quantile(t->own[N], t->n_own[N], 0.5);
    uint64_t begun;
    /* Wait for the start of an operation with the wanted policy, then for a random part of what one takes. */
    *bad = !PROCS_WAIT(let(150) && (begun = __atomic_load_n(&w->started, __ATOMIC_ACQUIRE)) > done(victim) &&
                           (w->log[(begun - 1) % LOG].gen & 3) == mode,
                       30);
    procs_pause_ns((uint64_t)(own * 1e6 * (procs_draw(seed) % 1000) / 1000.0));
    uint64_t now = procs_now();
    kill(w->pid, SIGKILL);
    waitpid(w->pid, NULL, 0);
    w->killed = 1;
    t->in_op += __atomic_load_n(&w->started, __ATOMIC_ACQUIRE) > done(victim);
    t->in_place += mode >> 1;
    t->returned += mode & 1;
    t->kills++;
    return now;
}

static int one_kill(struct tally *t, int victim, unsigned *seed, int timed) {
    uint64_t from = 0, to;
    int bad;
    if (!PROCS_WAIT(anyone_failed() || (let(60) && settled(-1, N, 3, &from)), 60))
        return dump("the group of 4 makes no progress"), 1;
    if (anyone_failed()) return dump("a worker gave up"), 1;
    for (uint64_t g = from + 1; g < from + 3; g++) learn(t, N, duration_ms(g, -1, NULL, NULL));
    uint64_t before = from;
    uint64_t kill_ns = strike(t, victim, (unsigned)t->kills & 3, seed, &bad);
    if (bad) return dump("no operation of the wanted kind began"), 1;
    let(100);
    if (!PROCS_WAIT(anyone_failed() || settled(victim, N - 1, 3, &from), 60))
        return dump("the survivors make no progress"), 1;
    if (anyone_failed()) return dump("a survivor gave up"), 1;
    to = from + 2;
    for (uint64_t g = from + 1; g <= to; g++) learn(t, N - 1, duration_ms(g, victim, NULL, NULL));
    if (to > 400 && before < to - 400) before = to - 400; /* what the logs still hold */
    for (uint64_t g = before; g <= to; g++) judge(t, g);
    if (timed) measure(t, victim, kill_ns, before, to);
    start_worker(victim, 0);
    return 0;
}

/* ---- Resources ------------------------------------------------------------------------------------------------- */

static void look(struct tally *t, pid_t coordinator, int first) {
    pid_t p = sh->workers[0].pid; /* lives through the first half of the run */
    int *fds = first ? &t->fds_first : &t->fds_last, *threads = first ? &t->threads_first : &t->threads_last;
    *fds = procs_count_fds(p);
    *threads = procs_count_threads(p);
    *(first ? &t->rss_first : &t->rss_last) = procs_rss_kb(p);
    *(first ? &t->co_fds_first : &t->co_fds_last) = procs_count_fds(coordinator);
    *(first ? &t->co_rss_first : &t->co_rss_last) = procs_rss_kb(coordinator);
}

/* Sanitizers hold back freed memory, and look for leaks themselves. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEMORY_COUNTS 0
#else
#define MEMORY_COUNTS 1
#endif

static int flat(const struct tally *t) {
    int memory = t->rss_last <= t->rss_first + t->rss_first / 20 + 8192 && t->co_rss_last <= t->co_rss_first + 4096;
    /* Two more for memory that others share, which comes with its first use. */
    return t->fds_last <= t->fds_first + 2 && t->threads_last == t->threads_first &&
           t->co_fds_last <= t->co_fds_first && (memory || !MEMORY_COUNTS);
}

/* ---- The whole ------------------------------------------------------------------------------------------------- */

static int finish(struct tally *t) {
    uint64_t from = 0, top = 0;
    int bad = 0;
    if (!PROCS_WAIT(anyone_failed() || (let(60) && settled(-1, N, 2, &from)), 60))
        return dump("no group of 4 at the end"), 1;
    for (uint64_t g = from; g < from + 2; g++) judge(t, g);
    for (int i = 0; i < N; i++)
        if (last_gen(i) > top) top = last_gen(i);
    sh->stop_gen = top + (sh->count < 1u << 18 ? 70 : 4); /* ahead of all, so that everybody sees it in time */
    sh->limit_gen = UINT64_MAX;
    for (int i = 0; i < N; i++) bad += procs_end(sh->workers[i].pid, 60) != 0;
    if (bad) printf("BAD: %d workers did not end well\n", bad);
    return bad;
}

static int report(const struct tally *t, int broken, int timed, unsigned seed) {
    double median = quantile(t->ms, t->n_ms, 0.5), p99 = quantile(t->ms, t->n_ms, 0.99),
           max = quantile(t->ms, t->n_ms, 1);
    int in_time = !timed || (median <= 10 && p99 <= 100), ok = !broken && !t->bad && flat(t) && in_time;
    printf("{\"kills\": %d, \"seed\": %u, \"bytes\": %zu, \"members\": %d, \"during_operation\": %d, \"retry\": %d, "
           "\"return\": %d, \"in_place\": %d, \"went_on_without\": %d, \"committed_with\": %d, \"disagreements\": %d, "
           "\"median_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f, \"own_ms\": {\"4\": %.3f, \"3\": %.3f}, "
           "\"fds\": [%d, %d], \"threads\": [%d, %d], \"rss_kb\": [%ld, %ld], \"coordinator_fds\": [%d, %d], "
           "\"coordinator_rss_kb\": [%ld, %ld], \"flat\": %s, \"in_time\": %s, \"passed\": %s}\n",
           t->kills, seed, sh->count * 4, N, t->in_op, t->kills - t->returned, t->returned, t->in_place, t->retry,
           t->committed, t->bad, median, p99, max, quantile(t->own[N], t->n_own[N], 0.5),
           quantile(t->own[N - 1], t->n_own[N - 1], 0.5), t->fds_first, t->fds_last, t->threads_first, t->threads_last,
           t->rss_first, t->rss_last, t->co_fds_first, t->co_fds_last, t->co_rss_first, t->co_rss_last,
           flat(t) ? "true" : "false", in_time ? "true" : "false", ok ? "true" : "false");
    return !ok;
}

int check_kills(int kills, unsigned seed, size_t bytes, int timed) {
    static struct tally t;
    struct procs_coordinator co;
    unsigned state = seed * 2654435761u + 1;
    int broken = 0, half = kills / 2 > 2 ? kills / 2 : kills;
    uint64_t from = 0;
    memset(&t, 0, sizeof t);
    sh = procs_shared(sizeof *sh);
    sh->count = bytes / 4;
    sh->limit_gen = 100;
    if (procs_coordinator_start(&co, 0)) return 1;
    memcpy(sh->address, co.address, sizeof sh->address);
    for (int i = 0; i < N; i++) start_worker(i, 1);
    for (int k = 0; k < kills && !broken; k++) {
        /* Worker 0 is spared in the first half: what it holds then must not grow. */
        int warm = half > 8 ? 4 : 1;
        int quiet =
            (k == warm || k == half - 1) && PROCS_WAIT(anyone_failed() || (let(60) && settled(-1, N, 3, &from)), 60);
        if (quiet && k == warm) look(&t, co.pid, 1);
        if (quiet) PROCS_WAIT((look(&t, co.pid, 0), flat(&t)), 1); /* a descriptor may be open for a moment */
        broken = one_kill(&t, k < half ? 1 + (int)(procs_draw(&state) % (N - 1)) : (int)(procs_draw(&state) % N),
                          &state, timed);
        if (isatty(2)) fprintf(stderr, "\r%d of %d kills ", k + 1, kills);
    }
    if (!broken) broken = finish(&t);
    for (int i = 0; broken && i < N; i++) kill(sh->workers[i].pid, SIGKILL);
    while (broken && waitpid(-1, NULL, WNOHANG) > 0) {}
    broken |= procs_coordinator_stop(&co) != 0;
    return report(&t, broken, timed, seed);
}

/* Each of the faults that this test is there to find, planted into the records of an operation: 1 when all are found.
 */
int check_kills_planted(void) {
    static struct tally t;
    struct shared *before = sh;
    int found = 1;
    sh = procs_shared(sizeof *sh);
    for (int fault = 0; fault < 8; fault++) {
        memset(&t, 0, sizeof t);
        t.quiet = 1;
        for (int i = 0; i < N; i++) {
            struct record r = {
                .gen = 7, .epoch = 2, .hash = 5, .ids = { 1, 2, 3, 4 }, .contributors = 4, .intact = 1
            };
            r.on_fault = RG_RETRY;
            sh->workers[i].log[0] = r;
            sh->workers[i].finished = sh->workers[i].started = 1;
        }
        struct record *r = &sh->workers[2].log[0];
        if (fault == 1) r->hash = 6;
        if (fault == 2) r->contributors = 3;
        if (fault == 3) r->ids[3] = 5;
        if (fault == 4) r->epoch = 3;
        if (fault == 5) r->intact = 0;
        if (fault == 6) r->wrong = 1;
        if (fault == 7)
            for (int i = 0; i < N; i++) sh->workers[i].log[0].status = (uint32_t)-RG_ERR_PEER_LOST;
        judge(&t, 7);
        found &= fault ? t.bad > 0 : t.bad == 0;
    }
    t.fds_last = 3; /* more descriptors than at first */
    found &= !flat(&t);
    sh = before;
    return found;
}
