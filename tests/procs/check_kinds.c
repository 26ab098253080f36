/* check_kinds.c: members are killed at random moments inside every collective, inside messages between two and inside
 * sub-groups, and the survivors must agree: on the outcome, on who contributed, on every element; inputs intact where a
 * call failed or was not in place; a sub-group that lost nobody must not notice; descriptors, threads and memory flat.
 * Workers write what they see into shared memory, the process that kills compares (it judges, the workers do not).
 * Rounds are named by the boundary index, which the protocol promises to be common; the index alone says what is called
 * in a round: kind, size, root, in place or not, on_fault.
 * It relies on procs.h. RG_TRANSPORT in the environment chooses what runs below. */
#include "check_kinds.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct kinds_shared *kinds_sh;

/* What happened to one kind, over all kills of it. */
struct kind_tally {
    int kills, in_op, ok, peer_lost, root_lost, other;
    double own_us; /* of a round that nothing happened to, the last seen */
};

struct tally {
    int quiet; /* planted faults: count, do not print */
    int kills, in_op, bad, stale;
    struct kind_tally kind[KIND_COUNT];
    int fds_first, fds_last, threads_first, threads_last, co_fds_first, co_fds_last;
    long rss_first, rss_last;
};

/* ---- Looking at records ---------------------------------------------------------------------------------------- */

static uint64_t done(int slot) { return __atomic_load_n(&kinds_sh->workers[slot].finished, __ATOMIC_ACQUIRE); }

static const struct kinds_record *find(int slot, uint64_t gen) {
    struct kinds_worker *w = &kinds_sh->workers[slot];
    uint64_t n = done(slot);
    for (uint64_t i = n; i-- > (n > KINDS_LOG - 2 ? n - (KINDS_LOG - 2) : 0);)
        if (w->log[i % KINDS_LOG].gen == gen) return &w->log[i % KINDS_LOG];
    return NULL;
}

static uint64_t last_gen(int slot) {
    uint64_t n = done(slot);
    return n ? kinds_sh->workers[slot].log[(n - 1) % KINDS_LOG].gen : 0;
}

static uint64_t top_gen(void) {
    uint64_t top = 0;
    for (int i = 0; i < KINDS_N; i++)
        if (last_gen(i) > top) top = last_gen(i);
    return top;
}

/* ---- Judging --------------------------------------------------------------------------------------------------- */

static void say(struct tally *t, const struct kinds_record *r, int slot, const char *what) {
    t->bad++;
    if (t->quiet) return;
    printf("BAD: round %llu (%s), worker %d: %s\n", (unsigned long long)r->gen, kind_name(r->kind), slot, what);
    printf("     status %d world %u rank %u contributors %u epoch %llu retries %u wrong %llu intact %u in place %u "
           "on_fault "
           "%u count %llu; send %llu: %d, receive %llu: %d; %s\n",
           -(int)r->status, r->world, r->rank, r->contributors, (unsigned long long)r->epoch, r->retries,
           (unsigned long long)r->wrong, r->intact, r->in_place, r->on_fault, (unsigned long long)r->count,
           (unsigned long long)r->sent_to, -(int)r->sent_status, (unsigned long long)r->got_from, -(int)r->got_status,
           r->text);
}

static const struct kinds_record *of_member(uint64_t id, uint64_t gen) {
    for (int k = 0; k < KINDS_N; k++)
        if (id && kinds_sh->workers[k].id == id) return find(k, gen);
    return NULL;
}

/* Ranks move when a member is lost, and who has not heard of it yet means another one by the same number: then a
 * message may wait for a partner that it does not have, until its time is over. */
static int unmatched(const struct kinds_record *r, int slot) {
    uint64_t me = kinds_sh->workers[slot].id;
    const struct kinds_record *to = of_member(r->sent_to, r->gen), *from = of_member(r->got_from, r->gen);
    return (to && to->got_from != me) || (from && from->sent_to != me);
}

static int allowed(const struct kinds_record *r, int slot) {
    if (r->status == RG_OK) return 1;
    if (r->status == (uint32_t)-RG_ERR_ROOT_LOST) return kind_rooted(r->kind);
    if (r->status == (uint32_t)-RG_ERR_TIMEOUT) return kind_pairs(r->kind) && unmatched(r, slot);
    return r->status == (uint32_t)-RG_ERR_PEER_LOST &&
           (kind_shaped(r->kind) || kind_pairs(r->kind) || r->on_fault == RG_RETURN);
}

static int same(const struct kinds_record *a, const struct kinds_record *b) {
    if (a->status != b->status) return 0;
    return a->status || (a->contributors == b->contributors && a->epoch == b->epoch && a->root_id == b->root_id &&
                         !memcmp(a->ids, b->ids, sizeof a->ids));
}

/* A message succeeds at both ends or at neither. A receiver that is not among the records is not there any more. */
static void judge_messages(struct tally *t, uint64_t gen) {
    for (int i = 0; i < KINDS_N; i++)
        for (int k = 0; k < KINDS_N; k++) {
            const struct kinds_record *s = find(i, gen), *r = find(k, gen);
            if (!s || !r || s->kind == KIND_BATCH || !s->sent_to || s->sent_to != kinds_sh->workers[k].id) continue;
            if (r->got_from == kinds_sh->workers[i].id) {
                if (s->sent_status != r->got_status) say(t, s, i, "a message that ended differently at its other end");
            } else if (s->sent_status == RG_OK) {
                say(t, s, i, "a message succeeded that nobody received");
            }
        }
}

/* What is true of one record by itself. */
static void judge_one(struct tally *t, const struct kinds_record *r, int slot) {
    int stale = r->status == RG_OK && kind_shaped(r->kind) && r->contributors != r->world;
    if (stale) {
        t->stale++;
        say(t, r, slot, "succeeded in a shape that its caller does not know of");
    }
    if (r->wrong && !stale) say(t, r, slot, "wrong values for its contributors");
    if (!r->intact) say(t, r, slot, "input not intact");
    if (!allowed(r, slot)) say(t, r, slot, "an outcome that it must not have");
}

/* Everything that must hold for one round over the workers that finished it. `lost`: id of who was killed around it. */
static void judge(struct tally *t, uint64_t gen, uint64_t lost) {
    for (int i = 0; i < KINDS_N; i++) {
        const struct kinds_record *r = find(i, gen);
        int touched = 0;
        if (!r) continue;
        judge_one(t, r, i);
        if (kind_pairs(r->kind)) continue;
        /* By colour: whoever looked after the loss does not see any more that the lost one was in its sub-group. */
        touched = kinds_colour(lost) == r->colour;
        if (r->sub && lost && !touched && (r->status || r->contributors != r->world))
            say(t, r, i, "a sub-group that lost nobody noticed a fault");
        for (int k = 0; k < i; k++) {
            const struct kinds_record *q = find(k, gen);
            if (!q || q->sub != r->sub || (r->sub && q->colour != r->colour) || same(q, r)) continue;
            say(t, q, k, "differs from another worker, which is");
            t->bad--;
            say(t, r, i, "that one");
            break;
        }
    }
    judge_messages(t, gen);
}

/* ---- Steering -------------------------------------------------------------------------------------------------- */

/* A worker that gave up, or that ended without having been killed by this test. */
static int anyone_failed(void) {
    for (int i = 0; i < KINDS_N; i++) {
        struct kinds_worker *w = &kinds_sh->workers[i];
        int status;
        if (w->failed) return 1;
        if (!w->killed && waitpid(w->pid, &status, WNOHANG) > 0) {
            printf("BAD: worker %d ended by itself: %s %d\n", i, WIFSIGNALED(status) ? "signal" : "exit code",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            return 1;
        }
    }
    return 0;
}

/* Lets the workers go `ahead` rounds beyond what the furthest has finished. Always true, for use in conditions. */
static int let(uint64_t ahead) {
    __atomic_store_n(&kinds_sh->limit_gen, top_gen() + ahead, __ATOMIC_RELEASE);
    return 1;
}

/* All have finished one and the same round as a group of all. */
static int whole(void) {
    uint64_t top = UINT64_MAX;
    for (int i = 0; i < KINDS_N; i++)
        if (last_gen(i) < top) top = last_gen(i);
    for (int i = 0; i < KINDS_N; i++) {
        const struct kinds_record *r = find(i, top);
        if (!r || r->everybody != KINDS_N) return 0;
    }
    return 1;
}

static int all_finished(uint64_t gen, int but) {
    for (int i = 0; i < KINDS_N; i++)
        if (i != but && last_gen(i) < gen) return 0;
    return 1;
}

static void dump(const char *what) {
    printf("BAD: %s\n", what);
    for (int i = 0; i < KINDS_N; i++) {
        struct kinds_worker *w = &kinds_sh->workers[i];
        const struct kinds_record *r = find(i, last_gen(i));
        printf("     worker %d pid %d id %llu: started %llu, finished %llu, in round %llu; last: %s status %d of %u\n",
               i, (int)w->pid, (unsigned long long)w->id, (unsigned long long)w->started,
               (unsigned long long)w->finished, (unsigned long long)w->gen, r ? kind_name(r->kind) : "nothing",
               r ? -(int)r->status : 0, r ? r->everybody : 0);
    }
}

static void pause_us(double us) {
    uint64_t until = procs_now() + (uint64_t)(us * 1e3);
    while (procs_now() < until) sched_yield();
}

static void start_worker(int slot, int first) {
    static char yes;
    memset(&kinds_sh->workers[slot], 0, sizeof kinds_sh->workers[slot]);
    kinds_sh->workers[slot].pid = procs_fork(kinds_worker_body, slot, first ? &yes : NULL);
}

/* ---- One kill -------------------------------------------------------------------------------------------------- */

static void learn(struct tally *t, uint64_t gen) {
    uint64_t start = 0, end = 0;
    for (int i = 0; i < KINDS_N; i++) {
        const struct kinds_record *r = find(i, gen);
        if (!r || r->status) return;
        if (r->start_ns > start) start = r->start_ns;
        if (r->end_ns > end) end = r->end_ns;
    }
    t->kind[find(0, gen)->kind].own_us = (double)(int64_t)(end - start) / 1e3;
}

static void count_outcome(struct tally *t, uint64_t gen, int victim) {
    for (int i = 0; i < KINDS_N; i++) {
        const struct kinds_record *r = i == victim ? NULL : find(i, gen);
        if (!r) continue;
        struct kind_tally *k = &t->kind[r->kind];
        if (r->status == RG_OK) k->ok++;
        else if (r->status == (uint32_t)-RG_ERR_PEER_LOST) k->peer_lost++;
        else if (r->status == (uint32_t)-RG_ERR_ROOT_LOST) k->root_lost++;
        else k->other++;
    }
}

/* All stand before a round of the kind wanted, are let in, and one of them dies a random while later. */
static int one_kill(struct tally *t, enum kind kind, int victim, unsigned *seed) {
    struct kinds_worker *w = &kinds_sh->workers[victim];
    if (!PROCS_WAIT(anyone_failed() || (let(2) && whole()), 60)) return dump("the whole group makes no progress"), 1;
    if (anyone_failed()) return dump("a worker gave up"), 1;
    uint64_t from = top_gen(), at = kinds_sh->limit_gen + 1;
    while (kinds_of(at) != kind || (procs_draw(seed) & 3) == 0) at++; /* not always with the same options */
    __atomic_store_n(&kinds_sh->limit_gen, at - 1, __ATOMIC_RELEASE);
    if (!PROCS_WAIT(anyone_failed() || all_finished(at - 1, -1), 60)) return dump("a round does not end"), 1;
    if (anyone_failed()) return dump("a worker gave up"), 1;
    for (uint64_t g = at > from + 30 ? at - 30 : from + 1; g < at; g++) {
        judge(t, g, 0);
        learn(t, g);
    }
    double own = t->kind[kind].own_us > 20 ? t->kind[kind].own_us : 20,
           while_us = own * 1.2 * (procs_draw(seed) % 1000) / 1000;
    if (!PROCS_WAIT(w->gen >= at, 20)) return dump("the victim does not come"), 1;
    __atomic_store_n(&kinds_sh->limit_gen, at, __ATOMIC_RELEASE);
    pause_us(while_us);
    kill(w->pid, SIGKILL);
    waitpid(w->pid, NULL, 0);
    w->killed = 1;
    int hit = __atomic_load_n(&w->started, __ATOMIC_ACQUIRE) > done(victim);
    t->kills++;
    t->kind[kind].kills++;
    t->in_op += hit;
    t->kind[kind].in_op += hit;
    if (!PROCS_WAIT(anyone_failed() || all_finished(at, victim), 60)) return dump("the survivors make no progress"), 1;
    if (anyone_failed()) return dump("a survivor gave up"), 1;
    judge(t, at, w->id);
    count_outcome(t, at, victim);
    start_worker(victim, 0);
    return 0;
}

/* ---- Resources ------------------------------------------------------------------------------------------------- */

static void look(struct tally *t, pid_t coordinator, int first) {
    pid_t p = kinds_sh->workers[0].pid; /* lives through the first half of the run */
    *(first ? &t->fds_first : &t->fds_last) = procs_count_fds(p);
    *(first ? &t->threads_first : &t->threads_last) = procs_count_threads(p);
    *(first ? &t->rss_first : &t->rss_last) = procs_rss_kb(p);
    *(first ? &t->co_fds_first : &t->co_fds_last) = procs_count_fds(coordinator);
}

static int flat(const struct tally *t) {
    int memory = t->rss_last <= t->rss_first + t->rss_first / 20 + 16384;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    memory = 1; /* sanitizers hold back freed memory, and look for leaks themselves */
#endif
    /* Descriptors of memory that others have shared come with its first use, so there may be a few more than at first;
     * one that stayed for every kill would be seen. */
    return t->fds_last <= t->fds_first + 6 && t->threads_last == t->threads_first &&
           t->co_fds_last <= t->co_fds_first && memory;
}

/* ---- The whole ------------------------------------------------------------------------------------------------- */

static int finish(struct tally *t) {
    int bad = 0;
    if (!PROCS_WAIT(anyone_failed() || (let(2) && whole()), 60)) return dump("no whole group at the end"), 1;
    if (anyone_failed()) return dump("a worker gave up"), 1;
    judge(t, last_gen(0), 0);
    kinds_sh->stop_gen = kinds_sh->limit_gen + 8; /* ahead of all, so that everybody sees it in time */
    __atomic_store_n(&kinds_sh->limit_gen, UINT64_MAX, __ATOMIC_RELEASE);
    for (int i = 0; i < KINDS_N; i++) bad += procs_end(kinds_sh->workers[i].pid, 60) != 0;
    if (bad) printf("BAD: %d workers did not end well\n", bad);
    return bad;
}

static int report(const struct tally *t, int broken, unsigned seed, double seconds) {
    int ok = !broken && !t->bad && flat(t);
    const char *transport = getenv("RG_TRANSPORT");
    printf(
        "{\"kills\": %d, \"seed\": %u, \"transport\": \"%s\", \"members\": %d, \"during_operation\": %d, \"kinds\": {",
        t->kills, seed, transport && *transport ? transport : "default", KINDS_N, t->in_op);
    for (int k = 0, n = 0; k < KIND_COUNT; k++) {
        const struct kind_tally *q = &t->kind[k];
        if (!q->kills) continue;
        printf("%s\"%s\": {\"kills\": %d, \"during\": %d, \"ok\": %d, \"peer_lost\": %d, \"root_lost\": %d, \"other\": "
               "%d}",
               n++ ? ", " : "", kind_name((enum kind)k), q->kills, q->in_op, q->ok, q->peer_lost, q->root_lost,
               q->other);
    }
    printf(
        "}, \"disagreements\": %d, \"stale_shapes\": %d, \"fds\": [%d, %d], \"threads\": [%d, %d], \"rss_kb\": [%ld, "
        "%ld], \"coordinator_fds\": [%d, %d], \"flat\": %s, \"seconds\": %.1f, \"passed\": %s}\n",
        t->bad, t->stale, t->fds_first, t->fds_last, t->threads_first, t->threads_last, t->rss_first, t->rss_last,
        t->co_fds_first, t->co_fds_last, flat(t) ? "true" : "false", seconds, ok ? "true" : "false");
    return !ok;
}

int check_kinds(int kills, unsigned seed, const char *wanted, size_t elems) {
    static struct tally t;
    struct procs_coordinator co;
    unsigned state = seed * 2654435761u + 1;
    int broken = 0, half = kills / 2 > 2 ? kills / 2 : kills;
    uint64_t began = procs_now();
    memset(&t, 0, sizeof t);
    kinds_sh = procs_shared(sizeof *kinds_sh);
    kinds_sh->elems = elems;
    kinds_sh->limit_gen = 4;
    if (kinds_choose(wanted)) return 2;
    if (procs_coordinator_start(&co, 0)) return 1;
    memcpy(kinds_sh->address, co.address, sizeof kinds_sh->address);
    for (int i = 0; i < KINDS_N; i++) start_worker(i, 1);
    for (int k = 0; k < kills && !broken; k++) {
        int warm = half > 40 ? 30 : 1;
        int quiet = (k == warm || k == half - 1) && PROCS_WAIT(anyone_failed() || (let(2) && whole()), 60);
        if (quiet && k == warm) look(&t, co.pid, 1);
        if (quiet) PROCS_WAIT((look(&t, co.pid, 0), flat(&t)), 1); /* a descriptor may be open for a moment */
        /* Worker 0 is spared in the first half: what it holds then must not grow. */
        int victim = k < half ? 1 + (int)(procs_draw(&state) % (KINDS_N - 1)) : (int)(procs_draw(&state) % KINDS_N);
        broken = one_kill(&t, kinds_sh->kinds[(unsigned)k % kinds_sh->n_kinds], victim, &state);
        if (isatty(2)) fprintf(stderr, "\r%d of %d kills ", k + 1, kills);
    }
    if (!broken) broken = finish(&t);
    for (int i = 0; broken && i < KINDS_N; i++) kill(kinds_sh->workers[i].pid, SIGKILL);
    while (broken && waitpid(-1, NULL, WNOHANG) > 0) {}
    broken |= procs_coordinator_stop(&co) != 0;
    return report(&t, broken, seed, (double)(procs_now() - began) / 1e9);
}

/* ---- Planted faults -------------------------------------------------------------------------------------------- */

static void plant(struct kinds_record *r, int fault) {
    switch (fault) {
    case 1: r->contributors = 3; break;
    case 2: r->ids[3] = 5; break;
    case 3: r->epoch = 3; break;
    case 4: r->intact = 0; break;
    case 5: r->wrong = 1; break;
    case 6: r->status = (uint32_t)-RG_ERR_PEER_LOST; break;
    case 7: r->status = (uint32_t)-RG_ERR_TIMEOUT; break;
    case 8: r->root_id = 2; break;
    default: break;
    }
}

/* Each of the faults that this test is there to find, planted into the records of a round: 1 when all are found. */
int check_kinds_planted(void) {
    static struct tally t;
    struct kinds_shared *before = kinds_sh;
    int found = 1;
    kinds_sh = procs_shared(sizeof *kinds_sh);
    for (int fault = 0; fault < 13; fault++) {
        memset(&t, 0, sizeof t);
        t.quiet = 1;
        for (int i = 0; i < KINDS_N; i++) {
            struct kinds_record r = {
                .gen = 7, .kind = KIND_ALL_GATHER, .epoch = 2, .ids = { 1, 2, 3, 4 }, .members = { 1, 2, 3, 4 }
            };
            r.contributors = r.world = r.everybody = KINDS_N;
            r.intact = 1;
            if (fault == 9) r.contributors = 3; /* everywhere alike: fewer than the callers know of */
            if (fault == 10) {                  /* a sub-group of others lost somebody */
                r.sub = 1;
                r.colour = kinds_colour(8);
                r.status = (uint32_t)-RG_ERR_PEER_LOST;
            }
            if (fault >= 11) {
                r.kind = KIND_MESSAGES;
                r.sent_to = (uint64_t)(i + 1) % KINDS_N + 1;
                r.got_from = (uint64_t)(i + KINDS_N - 1) % KINDS_N + 1;
                if (fault == 11 && i == 2) r.got_status = (uint32_t)-RG_ERR_PEER_LOST;
                if (fault == 12 && i == 2) r.got_from = 9;
            }
            kinds_sh->workers[i].log[0] = r;
            kinds_sh->workers[i].id = (uint64_t)i + 1;
            kinds_sh->workers[i].finished = kinds_sh->workers[i].started = 1;
        }
        plant(&kinds_sh->workers[2].log[0], fault);
        judge(&t, 7, fault == 10 ? 9 : 0);
        found &= fault ? t.bad > 0 : t.bad == 0;
        if (fault ? !t.bad : t.bad) printf("BAD: planted fault %d: %d found\n", fault, t.bad);
    }
    t.fds_last = 7; /* more descriptors than at first */
    found &= !flat(&t);
    kinds_sh = before;
    return found;
}
