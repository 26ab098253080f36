/* test_quick.c: small operations that take the quick way: the same bits as the long way gives, whichever way each
 * member takes; late members, members that differ, members that go. What the core makes of being told afterwards is in
 * test_core.c. Relies on the group's own counter of how often the quick way was taken. */
#include "engine/group.h"
#include "engine_rig.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST 600u /* elements */

typedef struct work {
    uint64_t seed;
    rg_dtype_t dtype;
    rg_op_t op;
    uint32_t mixed; /* 1: by turns, members take the long way; 2: some come late */
} work_t;

static uint64_t runs(rig_member_t *m) {
    rg_lock(m->g);
    uint64_t n = m->g->quick.runs;
    rg_unlock(m->g);
    return n;
}

enum { AS_IT_COMES, LONG_WAY, PATIENT };

static void take_way(rig_member_t *m, int which) {
    rg_lock(m->g);
    m->g->quick.test = which;
    rg_unlock(m->g);
}

/* Numbers that every type holds and whose sums round: bytes for integers, small fractions for floats. */
static void inputs(uint8_t *to, uint64_t n, rg_dtype_t t, uint64_t seed) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t x = rig_random(&seed);
        float f = (float)((int64_t)(x % 2001) - 1000) / 64;
        double d = (double)f / 3;
        switch (t) {
        case RG_F32: memcpy(to + 4 * i, &f, 4); break;
        case RG_F64: memcpy(to + 8 * i, &d, 8); break;
        case RG_F16: /* exponents that are in range */
        case RG_BF16: {
            uint16_t h = (uint16_t)(t == RG_F16 ? 0x3000 + (x & 0x0fff) : 0x3f00 + (x & 0xff));
            memcpy(to + 2 * i, &h, 2);
            break;
        }
        default: memcpy(to + rg_dtype_size(t) * i, &x, rg_dtype_size(t));
        }
    }
}

static rg_status_t call(rg_group_t *g, rg_kind_t k, const void *in, void *out, uint64_t n, const work_t *w,
                        const rg_opts_t *o) {
    switch (k) {
    case RG_KIND_ALL_REDUCE: return rg_all_reduce(g, in, out, n, w->dtype, w->op, o, NULL);
    case RG_KIND_REDUCE_SCATTER: return rg_reduce_scatter(g, in, out, n, w->dtype, w->op, o, NULL);
    case RG_KIND_ALL_GATHER: return rg_all_gather(g, in, out, n, w->dtype, o, NULL);
    case RG_KIND_ALL_TO_ALL: return rg_all_to_all(g, in, out, n, w->dtype, o, NULL);
    case RG_KIND_BROADCAST:
        if (in != out) memcpy(out, in, n * rg_dtype_size(w->dtype));
        return rg_broadcast(g, out, n, w->dtype, (uint32_t)n % 2, o, NULL);
    default: return rg_barrier(g, o, NULL);
    }
}

static const rg_kind_t kinds[] = { RG_KIND_ALL_REDUCE, RG_KIND_REDUCE_SCATTER, RG_KIND_ALL_GATHER,
                                   RG_KIND_ALL_TO_ALL, RG_KIND_BARRIER,        RG_KIND_BROADCAST };

/* Each shape twice the long way, which teaches it, then some times as w says: the same bits each time. */
static int same_bits(rig_member_t *m, void *arg) {
    const work_t *w = arg;
    uint32_t n = m->rig->n;
    uint64_t turn = 0, elem = rg_dtype_size(w->dtype);
    static _Thread_local uint8_t in[RIG_MAX * MOST * 8], out[RIG_MAX * MOST * 8], want[RIG_MAX * MOST * 8];
    for (uint32_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (uint64_t count = 0; count <= MOST / 2; count = count * 3 + 1) {
            uint64_t at = kinds[k] == RG_KIND_REDUCE_SCATTER || kinds[k] == RG_KIND_ALL_TO_ALL ? count * n : count;
            uint64_t got = kinds[k] == RG_KIND_ALL_GATHER || kinds[k] == RG_KIND_ALL_TO_ALL ? count * n : count;
            inputs(in, at, w->dtype, w->seed + m->index * 77 + count + k);
            take_way(m, LONG_WAY);
            RIG_OK(m, call(m->g, kinds[k], in, want, count, w, NULL));
            for (int i = 0; i < 6; i++, turn++) {
                int in_place = i & 1 && kinds[k] == RG_KIND_ALL_REDUCE;
                take_way(m, w->mixed == 1 && (turn + m->index) % n == 0 ? LONG_WAY : w->mixed ? AS_IT_COMES : PATIENT);
                if (w->mixed == 2 && (turn + m->index) % (2 * n) == 0) usleep(100); /* any time will do */
                memset(out, 0x5a, sizeof out);
                if (in_place) memcpy(out, in, at * elem);
                RIG_OK(m, call(m->g, kinds[k], in_place ? out : in, out, count, w, NULL));
                RIG_NEED(m, kinds[k] == RG_KIND_BARRIER || memcmp(out, want, got * elem) == 0,
                         "kind %d of %llu: other bits, turn %d", (int)kinds[k], (unsigned long long)count, i);
                RIG_NEED(m, kinds[k] == RG_KIND_BARRIER || out[got * elem] == 0x5a, "wrote behind the output");
            }
        }
    RIG_NEED(m, w->mixed || runs(m), "the quick way was never taken");
    return 0;
}

static const struct {
    rg_dtype_t t;
    rg_op_t op;
} types[] = { { RG_F32, RG_SUM }, { RG_F32, RG_AVG }, { RG_F64, RG_PROD },   { RG_F16, RG_SUM }, { RG_BF16, RG_AVG },
              { RG_I32, RG_SUM }, { RG_U8, RG_MAX },  { RG_F8E4M3, RG_MIN }, { RG_I64, RG_MIN } };

Test(quick, two_members__every_type__the_same_bits_as_the_long_way) {
    for (uint32_t i = 0; i < sizeof types / sizeof *types; i++) {
        work_t w = { i, types[i].t, types[i].op, i % 3 };
        rig_run(2, "shm", NULL, same_bits, &w);
    }
}

Test(quick, more_members__every_type__the_same_bits_as_the_long_way) {
    for (uint32_t i = 0; i<sizeof types / sizeof *types; i += RIG_SLOW> 1 ? 4 : 1) {
        work_t w = { i, types[i].t, types[i].op, i % 3 };
        rig_run(3 + i % 2, i % 2 ? "auto" : "shm", NULL, same_bits, &w);
    }
}

/* A member calls something else: all hear of it, nothing is written, and the next call is right. */
static int differs(rig_member_t *m, void *arg) {
    float in[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, out[8];
    (void)arg;
    for (int i = 0; i < 200; i++) {
        int odd = i % 20 == 19;
        memset(out, 0, sizeof out);
        rg_status_t st = rg_all_reduce(m->g, in, out, odd && m->index == 1 ? 7 : 8, RG_F32, RG_SUM, NULL, NULL);
        RIG_NEED(m, st == (odd ? RG_ERR_MISMATCH : RG_OK), "call %d: %s", i, rg_status_name(st));
        RIG_NEED(m, out[0] == (odd ? 0 : (float)m->rig->n), "call %d: %f", i, (double)out[0]);
    }
    return 0;
}

Test(quick, calls_that_differ__mismatch_at_all__the_next_is_right) {
    rig_run(2, "shm", NULL, differs, NULL);
    rig_run(3, "shm", NULL, differs, NULL);
}

/* Another root, or another number of elements, than the others have: nobody is given anything. */
static int roots_differ(rig_member_t *m, void *arg) {
    (void)arg;
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t v[2] = { m->index, 1000 }, root = i % m->rig->n, odd = i % 20 == 19, mine = m->index == i / 20 % 2;
        rg_status_t st = rg_broadcast(m->g, v, i % 40 == 39 && mine ? 1 : 2, RG_U32,
                                      i % 40 == 19 && mine ? (root + 1) % m->rig->n : root, NULL, NULL);
        RIG_NEED(m, st == (odd ? RG_ERR_MISMATCH : RG_OK), "call %u: %s", i, rg_status_name(st));
        RIG_NEED(m, v[0] == (odd ? m->index : root) && v[1] == 1000, "call %u: %u", i, v[0]);
    }
    return 0;
}

Test(quick, broadcasts_that_differ__mismatch_at_all__the_next_is_right) {
    rig_run(2, "shm", NULL, roots_differ, NULL);
    rig_run(3, "shm", NULL, roots_differ, NULL);
    rig_run(3, "tcp", NULL, roots_differ, NULL);
    rig_run(RIG_MAX, "tcp", NULL, roots_differ, NULL);
}

/* By algorithms in which not everybody speaks it may take until the deadline, but nobody is given anything. */
static int roots_differ_late(rig_member_t *m, void *arg) {
    (void)arg;
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t v = m->index, odd = i % 3, root = i / 3, mine = m->index == odd ? (root + 1) % 3 : root;
        rg_status_t st = rg_broadcast(m->g, &v, 1, RG_U32, mine, NULL, NULL);
        RIG_NEED(m, st == RG_ERR_MISMATCH && v == m->index, "call %u: %s, %u", i, rg_status_name(st), v);
        RIG_OK(m, rg_broadcast(m->g, &v, 1, RG_U32, root, NULL, NULL));
        RIG_NEED(m, v == root, "call %u: %u of %u", i, v, root);
    }
    return 0;
}

Test(quick, broadcasts_that_differ__another_algorithm__nobody_is_given_anything) {
    static const char *const algorithms[] = { "broadcast=tree", "broadcast=direct", "broadcast=ring" };
    for (uint32_t k = 0; k < 3; k++) {
        rg_config_t c = RG_CONFIG_INIT;
        c.algorithm = algorithms[k];
        c.op_timeout_ms = 300 * RIG_SLOW;
        rig_run(3, k % 2 ? "tcp" : "shm", &c, roots_differ_late, NULL);
    }
}

/* The root's buffer is only read. */
static int is_read_only(rig_member_t *m, void *arg) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint32_t *v = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)arg;
    RIG_NEED(m, v != MAP_FAILED, "mmap");
    v[0] = m->index + 5;
    if (m->index == 1) mprotect(v, page, PROT_READ);
    for (uint32_t i = 0; i < 20; i++) {
        take_way(m, i < 10 ? AS_IT_COMES : LONG_WAY);
        RIG_OK(m, rg_broadcast(m->g, v, i % 2 ? page / 4 : 3, RG_U32, 1, NULL, NULL));
        RIG_NEED(m, v[0] == 6, "call %u: %u", i, v[0]);
    }
    munmap(v, page);
    return 0;
}

Test(quick, broadcasts__a_root_that_only_reads__is_not_written) {
    rig_run(2, "shm", NULL, is_read_only, NULL);
    rig_run(3, "tcp", NULL, is_read_only, NULL);
}

/* The root, or another one, goes behind a call of its own: those who stay have the same of every call, and the first
 * that fails, for the root only, is the same one. */
static int root_goes(rig_member_t *m, void *arg) {
    const uint64_t *seed = arg;
    uint32_t n = m->rig->n, root = (uint32_t)*seed % 2 ? n - 1 : 0;
    uint64_t s = *seed, last = 20 + rig_random(&s) % 300, i = 0, low[2], high[2];
    rg_status_t st = RG_OK;
    for (; i < 600 && st == RG_OK; i++) {
        uint64_t v = m->index == root ? i : UINT64_MAX;
        st = rg_broadcast(m->g, &v, 1, RG_U64, root, NULL, NULL);
        RIG_NEED(m, v == (st == RG_OK || m->index == root ? i : UINT64_MAX), "call %u: %llx", (unsigned)i,
                 (unsigned long long)v);
        if (m->index == n - 1 && i == last) {
            rg_group_destroy(m->g);
            m->g = NULL;
            return 0;
        }
    }
    RIG_NEED(m, st == (root == 0 ? RG_OK : RG_ERR_ROOT_LOST), "call %u: %s", (unsigned)i, rg_status_name(st));
    RIG_OK(m, rg_all_reduce(m->g, &i, low, 1, RG_U64, RG_MIN, NULL, NULL));
    RIG_OK(m, rg_all_reduce(m->g, &i, high, 1, RG_U64, RG_MAX, NULL, NULL));
    RIG_NEED(m, low[0] == high[0] && i == low[0] && (root == 0 || i > last), "the first that failed: %u of %u to %u",
             (unsigned)i, (unsigned)low[0], (unsigned)high[0]);
    return 0;
}

Test(quick, broadcasts__the_root_goes__the_same_for_all_who_stay) {
    for (uint64_t i = 0; i < 24 / (RIG_SLOW > 1 ? 4 : 1); i++) {
        uint64_t seed = rig_seed(i);
        rig_run(3 + (uint32_t)(i / 2 % 2), i % 6 == 5 ? "tcp" : "shm", NULL, root_goes, &seed);
    }
}

/* What a success says of itself. */
static int says(rig_member_t *m, void *arg) {
    float in[4] = { 1, 2, 3, 4 }, out[4];
    uint64_t ids[RIG_MAX], first_ids[RIG_MAX];
    rg_result_t first = RG_RESULT_INIT;
    (void)arg;
    take_way(m, PATIENT);
    for (int i = 0; i < 50; i++) {
        rg_result_t res = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        res.contributor_ids = ids;
        res.contributor_cap = RIG_MAX;
        o.result = &res;
        RIG_OK(m, rg_all_reduce(m->g, in, out, 4, RG_F32, RG_SUM, &o, NULL));
        RIG_NEED(m, res.status == RG_OK && res.contributors == m->rig->n && res.contributor_ids == ids, "contributors");
        if (i == 0) {
            first = res;
            memcpy(first_ids, ids, sizeof ids);
        }
        RIG_NEED(m, memcmp(first_ids, ids, m->rig->n * sizeof *ids) == 0 && res.epoch == first.epoch,
                 "of whom, and when");
        RIG_NEED(m, res.end_ns >= res.start_ns && res.bytes_sent == first.bytes_sent, "%llu bytes were sent",
                 (unsigned long long)res.bytes_sent);
        RIG_NEED(m, res.bytes_received == first.bytes_received && !res.retries && !res.text[0], "result");
    }
    RIG_NEED(m, runs(m) > 0, "not quick");
    return 0;
}

Test(quick, a_result_is_asked_for__says_what_any_other_says) { rig_run(2, "shm", NULL, says, NULL); }

/* Some go in the middle, each at another moment; the others go on, and their results have those who are left. A copy
 * that only one survivor has must reach the others: whoever goes does so right behind a call of its own. */
static int members_go(rig_member_t *m, void *arg) {
    const uint64_t *seed = arg;
    uint32_t n = m->rig->n;
    uint64_t s = *seed, last = 40 + rig_random(&s) % 400;
    float v[3];
    for (uint64_t i = 0; i < 1500; i++) {
        rg_result_t res = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &res;
        v[0] = 1;
        v[1] = (float)i;
        v[2] = (float)(1u << m->index);
        RIG_OK(m, rg_all_reduce(m->g, v, v, 3, RG_F32, RG_SUM, &o, NULL));
        RIG_NEED(m, v[0] == (float)res.contributors && v[1] == (float)i * v[0], "call %llu: %f members, said %u",
                 (unsigned long long)i, (double)v[0], res.contributors);
        RIG_NEED(m, res.contributors == n || res.contributors == n - 1, "%u contributed", res.contributors);
        RIG_NEED(m, v[2] == (float)((1u << n) - 1 - (res.contributors == n ? 0 : 1u << (n - 1))), "whose?");
        if (m->index == n - 1 && i == last) {
            rg_group_destroy(m->g); /* without a word, as if it had been killed */
            m->g = NULL;
            return 0;
        }
    }
    return 0;
}

Test(quick, a_member_goes__the_others_go_on_with_the_same_results) {
    for (uint64_t i = 0; i < 12 / (RIG_SLOW > 1 ? 4 : 1); i++) {
        uint64_t seed = rig_seed(i);
        rig_run(3, "shm", NULL, members_go, &seed);
    }
}

/* Boundaries, messages, tagged calls and requests between them: the numbers stay in step. */
static int between(rig_member_t *m, void *arg) {
    uint64_t seed = *(uint64_t *)arg;
    int32_t v, w;
    take_way(m, PATIENT);
    for (int i = 0; i < 600; i++) {
        rg_opts_t o = RG_OPTS_INIT;
        rg_request_t *req = NULL;
        rg_change_t change = RG_CHANGE_INIT;
        uint64_t what = rig_random(&seed) % 12;
        v = i;
        if (what == 0) RIG_OK(m, rg_group_boundary(m->g, &change));
        if (what == 1) {
            o.tag = 5;
            RIG_OK(m, rg_all_reduce(m->g, &v, &w, 1, RG_I32, RG_SUM, &o, NULL));
        }
        if (what == 2) RIG_OK(m, rg_all_reduce(m->g, &v, &w, 1, RG_I32, RG_SUM, NULL, &req));
        if (what == 3) RIG_OK(m, rg_broadcast(m->g, &v, 1, RG_I32, (uint32_t)i % m->rig->n, NULL, NULL));
        int32_t x = i + 1;
        RIG_OK(m, rg_all_reduce(m->g, &x, &x, 1, RG_I32, RG_SUM, NULL, NULL));
        RIG_NEED(m, x == (i + 1) * (int32_t)m->rig->n, "call %d", i);
        if (req) RIG_OK(m, rg_wait(req, NULL));
    }
    RIG_NEED(m, runs(m) > 0, "not quick");
    RIG_OK(m, rg_group_leave(m->g));
    return 0;
}

Test(quick, other_calls_between__numbers_stay_in_step) {
    for (uint64_t seed = 0; seed < 3; seed++) rig_run(2 + (uint32_t)seed, "shm", NULL, between, &seed);
}

/* A thread whose call has ended wakes up to find the lock taken, and has not asked for it as others do: it is counted
 * all the same, and whoever would go on in a tight loop lets it in first. */
typedef struct waiter {
    rg_group_t *g;
    int finished, returned; /* under the group's lock */
} waiter_t;

static int waiter_finished(void *arg) { return ((waiter_t *)arg)->finished; }

static void *wait_for_a_call(void *arg) {
    waiter_t *w = arg;
    rg_lock(w->g);
    rg_drive(w->g, waiter_finished, w, UINT64_MAX);
    w->returned = 1;
    rg_unlock(w->g);
    return NULL;
}

static int is_let_in(rig_member_t *m, void *arg) {
    waiter_t w = { .g = m->g };
    pthread_t thread;
    (void)arg;
    rg_lock(m->g);
    m->g->driver = RG_DRIVER_CALLER; /* this thread, as far as others can see */
    m->g->driver_ticket++;
    if (pthread_create(&thread, NULL, wait_for_a_call, &w) != 0) return 1;
    while (!m->g->cond_waiters) {
        rg_unlock(m->g);
        sched_yield();
        rg_lock(m->g);
    }
    w.finished = 1;
    rg_wake_callers(m->g);
    int wanted = rg_wanted(m->g), before = w.returned;
    rg_let_others_in(m->g);
    int after = w.returned, still = rg_wanted(m->g);
    m->g->driver = RG_DRIVER_NONE;
    rg_unlock(m->g);
    pthread_join(thread, NULL);
    RIG_NEED(m, wanted && !before && after && !still, "%d %d %d %d", wanted, before, after, still);
    return 0;
}

Test(quick, a_thread_that_was_woken__is_let_in_first) { rig_run(1, "shm", NULL, is_let_in, NULL); }
