/* test_threads.c: what a program does to its threads while the library is at work in them, or beside them: it cancels
 * them, and gives all threads little stack. It relies on engine_rig.h for the group. It must not depend on the moment
 * of a cancellation: whenever it comes, the call ends as if it had not, and then the thread does. */
#include "engine_rig.h"

#include <criterion/criterion.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>

#define N 50000u
#define ROUNDS 12u

typedef struct call {
    rig_member_t *m;
    uint32_t tag;
    uint32_t timeout_ms;
    atomic_int begun;
    rg_status_t status;
    float x[N];
} call_t;

static atomic_int over[ROUNDS]; /* the first member's thread has ended */

static __attribute__((noinline)) int one_call(call_t *c) {
    rg_opts_t o = RG_OPTS_INIT;
    o.tag = c->tag;
    o.timeout_ms = c->timeout_ms;
    c->status = rg_all_reduce(c->m->g, c->x, c->x, N, RG_F32, RG_SUM, &o, NULL);
    return c->status != RG_OK;
}

/* Nothing with an address lies on the stack that is cut off: AddressSanitizer would not hear that it is gone. */
static void *call_main(void *arg) {
    atomic_store(&((call_t *)arg)->begun, 1);
    for (;;) {
        int over_now = one_call(arg);
        pthread_testcancel();
        if (over_now) return NULL;
    }
}

/* One call in three waits for somebody who never calls; it ends at its deadline. The others come at any moment. */
static int never_comes(uint32_t round) { return round % 3 == 0; }

static int cancels(rig_member_t *m, call_t *c, uint32_t round) {
    float y[4] = { 1, 1, 1, 1 };
    void *end;
    pthread_t t;
    RIG_NEED(m, pthread_create(&t, NULL, call_main, c) == 0, "no thread");
    while (!atomic_load(&c->begun)) sched_yield();
    for (uint32_t k = 0; k < round * 3000; k++) atomic_load(&c->begun);
    RIG_NEED(m, pthread_cancel(t) == 0, "pthread_cancel");
    RIG_OK(m, rg_all_reduce(m->g, y, y, 4, RG_F32, RG_MAX, NULL, NULL));
    RIG_NEED(m, pthread_join(t, &end) == 0, "pthread_join");
    atomic_store(&over[round], 1);
    RIG_NEED(m, end == PTHREAD_CANCELED, "round %u: the thread was not cancelled", round);
    RIG_NEED(m, c->status == (never_comes(round) ? RG_ERR_TIMEOUT : RG_OK), "round %u: its call ended with %s", round,
             rg_status_name(c->status));
    return 0;
}

/* Makes the calls that the other one's thread makes, until that has ended. */
static int goes_along(rig_member_t *m, call_t *c, uint32_t round) {
    float y[4] = { 1, 1, 1, 1 };
    rg_opts_t o = RG_OPTS_INIT;
    rg_request_t *r;
    o.tag = c->tag;
    RIG_OK(m, rg_all_reduce(m->g, y, y, 4, RG_F32, RG_MAX, NULL, NULL));
    while (!never_comes(round) && !atomic_load(&over[round])) {
        rg_status_t st;
        RIG_OK(m, rg_all_reduce(m->g, c->x, c->x, N, RG_F32, RG_SUM, &o, &r));
        while ((st = rg_test(r, NULL)) == RG_AGAIN && !atomic_load(&over[round])) sched_yield();
        if (st != RG_AGAIN) continue;
        RIG_OK(m, rg_cancel(r));
        rg_wait(r, NULL);
    }
    return 0;
}

static int cancelled(rig_member_t *m, void *arg) {
    call_t *c = calloc(1, sizeof *c);
    int bad = 0;
    (void)arg;
    for (uint32_t i = 0; i < ROUNDS && !bad; i++) {
        *c = (call_t){ .m = m, .tag = 10 + i, .timeout_ms = never_comes(i) ? 300 : 0 };
        bad = (m->index == 0 ? cancels(m, c, i) : goes_along(m, c, i)) || rig_gate(m, i, m->rig->n);
    }
    free(c);
    if (!bad) RIG_OK(m, rg_group_leave(m->g));
    return bad;
}

Test(threads, cancelled_in_a_call__the_call_ends_first_and_others_go_on, .timeout = 30) {
    static const char *transports[] = { "inproc", "tcp", "shm" };
    for (int t = 0; t < 3; t++) {
        for (uint32_t i = 0; i < ROUNDS; i++) atomic_store(&over[i], 0);
        rig_run(2, transports[t], NULL, cancelled, NULL);
    }
}

static __attribute__((noinline)) void one_join(rig_member_t *m) {
    rg_group_t *g = NULL;
    rg_error_t err;
    rg_config_t cfg = RG_CONFIG_INIT;
    cfg.coordinator = m->rig->address;
    cfg.group = "never";
    cfg.min_size = 2;
    cfg.join_timeout_ms = 200;
    m->bad = rg_group_join(&cfg, &g, &err) != RG_ERR_TIMEOUT;
}

static void *join_main(void *arg) {
    one_join(arg);
    pthread_testcancel();
    return NULL;
}

static int joining(rig_member_t *m, void *arg) {
    pthread_t t;
    void *end;
    (void)arg;
    m->bad = 2; /* unless the call comes back */
    RIG_NEED(m, pthread_create(&t, NULL, join_main, m) == 0, "no thread");
    RIG_NEED(m, pthread_cancel(t) == 0 && pthread_join(t, &end) == 0, "cancel");
    RIG_NEED(m, end == PTHREAD_CANCELED, "the thread was not cancelled");
    return m->bad;
}

Test(threads, cancelled_while_joining__join_comes_back, .timeout = 30) { rig_run(1, "tcp", NULL, joining, NULL); }

/* ---- The stack of the library's own threads --------------------------------------------------------------------- */

/* Whoever calls has the stack that the test began with; all threads that are made get the least there can be. */
static const char *with_small_default(void) {
    rg_coordinator_config_t cc = RG_COORDINATOR_CONFIG_INIT;
    rg_config_t cfg = RG_CONFIG_INIT;
    rg_coordinator_t *co;
    rg_group_t *g;
    rg_request_t *r;
    rg_state_t *s;
    rg_error_t err;
    static float x[N];
    if (rg_coordinator_start(&cc, &co, &err) != RG_OK) return "coordinator";
    cfg.coordinator = rg_coordinator_address(co);
    if (rg_group_join(&cfg, &g, &err) != RG_OK) return "join";
    if (rg_all_reduce(g, x, x, N, RG_F32, RG_SUM, NULL, &r) != RG_OK || rg_wait(r, NULL) != RG_OK) return "operation";
    if (rg_state_create(&s, &err) != RG_OK || rg_state_add(s, "x", x, N, RG_F32, &err) != RG_OK) return "state";
    rg_state_set_revision(s, 1);
    if (rg_state_serve(g, s, NULL) != RG_OK || rg_state_serve_end(s) != RG_OK) return "serve";
    if (rg_group_leave(g) != RG_OK) return "leave";
    rg_state_destroy(s);
    rg_group_destroy(g);
    rg_coordinator_stop(co);
    return NULL;
}

Test(threads, little_stack_by_default__threads_of_the_library_have_enough) {
    pthread_attr_t was, little;
    if (RIG_SLOW > 1) cr_skip_test("a sanitizer needs more stack than any thread would have");
    cr_assert(pthread_getattr_default_np(&was) == 0 && pthread_attr_init(&little) == 0);
    cr_assert(pthread_attr_setstacksize(&little, PTHREAD_STACK_MIN) == 0);
    cr_assert(pthread_setattr_default_np(&little) == 0);
    const char *failed = with_small_default();
    pthread_setattr_default_np(&was);
    cr_assert_null(failed, "%s failed", failed);
}
