/* test_diloco_flush.c: what rg_diloco_flush() says: the same on all members, and nothing of rounds that failed while
 * they were in flight, because its own rounds say what those did not. Relies on engine_rig.h; how a flush ends on good
 * days is shown by test_diloco.c. */
#include "engine_rig.h"

#include "diloco/internal.h"
#include "regroup_diloco.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { COUNT = 300 };

typedef struct model {
    float p[COUNT];
    rg_diloco_t *d;
} model_t;

static float way(uint32_t member) { return 0.001f * (float)(member + 1); }

static void train(rig_member_t *m, model_t *o) {
    for (uint64_t i = 0; i < COUNT; i++) o->p[i] -= way(m->index);
}

static int begin(rig_member_t *m, model_t *o, const rg_diloco_config_t *c) {
    rg_error_t err = { RG_OK, 0, "" };
    memset(o, 0, sizeof *o);
    RIG_NEED(m, rg_diloco_create(c, &o->d, &err) == RG_OK, "%s", err.text);
    RIG_NEED(m, rg_diloco_add(o->d, "w", o->p, COUNT, 0, &err) == RG_OK, "%s", err.text);
    RIG_NEED(m, rg_diloco_start(o->d, m->g, &err) == RG_OK, "%s", err.text);
    return 0;
}

/* All members succeed, have the same anchor, and it as their parameters, which are `want`. */
static int flush(rig_member_t *m, model_t *o, double want) {
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    float low[COUNT], high[COUNT];
    rg_status_t st = rg_diloco_flush(o->d, &r);
    RIG_NEED(m, st == RG_OK && r.status == RG_OK && !r.text[0], "flush: %s: %s", rg_status_name(st), r.text);
    RIG_OK(m, rg_all_reduce(m->g, o->p, low, COUNT, RG_F32, RG_MIN, NULL, NULL));
    RIG_OK(m, rg_all_reduce(m->g, o->p, high, COUNT, RG_F32, RG_MAX, NULL, NULL));
    RIG_NEED(m, memcmp(low, high, sizeof low) == 0, "parameters differ");
    RIG_NEED(m, fabs((double)o->p[7] - want) < 1e-6, "%g for %g", (double)o->p[7], want);
    rg_diloco_destroy(o->d);
    return 0;
}

static rg_diloco_config_t config(rg_diloco_variant_t v, uint32_t overlap, uint32_t quorum) {
    rg_diloco_config_t c;
    rg_diloco_profile(v, &c);
    c.every = 4;
    c.fragments = 1;
    c.overlap = overlap;
    c.wire = (rg_wire_t)0;
    c.weight = RG_DILOCO_EQUAL;
    c.merge = RG_DILOCO_AVG;
    c.lr = 1;
    c.momentum = 0;
    c.blend = 0;
    c.quorum = quorum;
    c.grace_ms = quorum ? 20 : 0;
    c.timeout_ms = 20000;
    return c;
}

/* One member is astray when the share is sent, and back when all flush: it says that it stays, the others say all. */
static int astray_in_flight(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static _Thread_local model_t o;
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    if (begin(m, &o, c)) return 1;
    for (uint32_t k = 1; k <= c->every; k++) {
        train(m, &o);
        if (m->index == 1 && k == c->every) o.p[0] = NAN;
        RIG_NEED(m, rg_diloco_step(o.d, 1, &r) == RG_OK, "step %u: %s", k, r.text);
    }
    if (m->index == 1) rg_diloco_reset(o.d);
    double want = 0;
    for (uint32_t k = 0; k < m->rig->n; k++) want -= k == 1 ? 0 : (double)c->every * (double)way(k) / m->rig->n;
    return flush(m, &o, want);
}

Test(diloco_flush, a_round_in_flight_fails__the_flush_says_it__ok, .timeout = 60) {
    rg_diloco_config_t c = config(RG_DILOCO_STREAMING, 2, 0);
    rig_run(3, "inproc", NULL, astray_in_flight, &c);
    c = config(RG_DILOCO_DELAYED, 0, 0);
    rig_run(3, "inproc", NULL, astray_in_flight, &c);
}

/* Steps of which the one that ends the first round has nothing to give: where they reach the end of the round, it is
 * said there. */
static int steps_astray(rig_member_t *m, model_t *o, const rg_diloco_config_t *c, uint32_t steps) {
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    for (uint32_t k = 1; k <= steps; k++) {
        train(m, o);
        if (k == c->every) o->p[0] = NAN;
        rg_status_t st = rg_diloco_step(o->d, 1, &r), want = k == c->every + c->overlap ? RG_ERR_INVALID : RG_OK;
        RIG_NEED(m, st == want, "step %u: %s: %s", k, rg_status_name(st), r.text);
    }
    return 0;
}

/* By quorum, nobody has anything to give: the round is decided as a failure, which is not that of a group without a
 * majority, and the program goes on. */
static int all_astray(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static _Thread_local model_t o;
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    if (begin(m, &o, c) || steps_astray(m, &o, c, c->every + c->overlap)) return 1;
    rg_diloco_reset(o.d);
    train(m, &o);
    RIG_NEED(m, rg_diloco_step(o.d, 1, &r) == RG_OK, "after that: %s", r.text);
    double want = 0;
    for (uint32_t k = 0; k < m->rig->n; k++) want -= (double)way(k) / m->rig->n;
    return flush(m, &o, want);
}

Test(diloco_flush, by_quorum_nobody_gives__the_round_is_over_for_all__next_ones_go_on, .timeout = 60) {
    rg_diloco_config_t c = config(RG_DILOCO_DECOUPLED, 0, 2);
    rig_run(3, "inproc", NULL, all_astray, &c);
    c.overlap = 2;
    rig_run(3, "inproc", NULL, all_astray, &c);
}

/* The same, and the flush finds that round in flight. */
static int all_astray_in_flight(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static _Thread_local model_t o;
    if (begin(m, &o, c) || steps_astray(m, &o, c, c->every)) return 1;
    rg_diloco_reset(o.d);
    return flush(m, &o, 0);
}

Test(diloco_flush, by_quorum_nobody_gave_in_flight__ok, .timeout = 60) {
    rg_diloco_config_t c = config(RG_DILOCO_DECOUPLED, 2, 2);
    rig_run(3, "inproc", NULL, all_astray_in_flight, &c);
}

/* Member 2 does not wait for long. */
static int begin_hasty(rig_member_t *m, model_t *o, const rg_diloco_config_t *config) {
    rg_diloco_config_t c = *config;
    if (m->index == 2) c.timeout_ms = 200;
    return begin(m, o, &c);
}

/* One is ahead: it has given its share to a round that nobody else has come to, and its time was over. All flush. */
static int one_ahead(rig_member_t *m, void *arg) {
    const rg_diloco_config_t c = *(const rg_diloco_config_t *)arg;
    static _Thread_local model_t o;
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    if (begin_hasty(m, &o, &c)) return 1;
    uint32_t steps = m->index == 2 ? c.every : c.every - 1;
    for (uint32_t k = 1; k <= steps; k++) {
        train(m, &o);
        rg_status_t st = rg_diloco_step(o.d, 1, &r);
        RIG_NEED(m, st == (k == c.every ? RG_ERR_TIMEOUT : RG_OK), "step %u: %s: %s", k, rg_status_name(st), r.text);
    }
    o.d->c.timeout_ms = 20000;
    if (rig_gate(m, 0, m->rig->n)) return 1;
    double want = 0;
    for (uint32_t k = 0; k < m->rig->n; k++)
        want -= (double)(k == 2 ? c.every : c.every - 1) * (double)way(k) / m->rig->n;
    return flush(m, &o, want);
}

Test(diloco_flush, by_quorum_one_has_begun_a_round_alone__all_come_to_it__ok, .timeout = 60) {
    rg_diloco_config_t c = config(RG_DILOCO_DECOUPLED, 0, 2);
    rig_run(3, "inproc", NULL, one_ahead, &c);
}

/* The same, but the others come to that round before they flush, and take it in. */
static int one_gave_up(rig_member_t *m, void *arg) {
    const rg_diloco_config_t c = *(const rg_diloco_config_t *)arg;
    static _Thread_local model_t o;
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    if (begin_hasty(m, &o, &c)) return 1;
    for (uint32_t k = 1; k <= c.every; k++) {
        int last = k == c.every;
        if (last && m->index != 2 && rig_gate(m, 0, m->rig->n)) return 1;
        train(m, &o);
        rg_status_t st = rg_diloco_step(o.d, 1, &r);
        RIG_NEED(m, st == (last && m->index == 2 ? RG_ERR_TIMEOUT : RG_OK), "step %u: %s: %s", k, rg_status_name(st),
                 r.text);
        RIG_NEED(m, st == RG_OK || strstr(r.text, "rg_diloco_stats_t.steps"), "%s", r.text);
    }
    o.d->c.timeout_ms = 20000;
    if (m->index == 2) rig_pass(m, 0);
    if (rig_gate(m, 1, m->rig->n)) return 1;
    double want = 0;
    for (uint32_t k = 0; k < m->rig->n; k++) want -= (double)c.every * (double)way(k) / m->rig->n;
    return flush(m, &o, want);
}

Test(diloco_flush, by_quorum_one_gave_up_a_round_that_was_decided__takes_it_in_first__ok, .timeout = 60) {
    rg_diloco_config_t c = config(RG_DILOCO_DECOUPLED, 0, 2);
    c.grace_ms = 20000; /* all are in that round, however busy the host is */
    rig_run(3, "inproc", NULL, one_gave_up, &c);
}

/* ---- Other configurations -------------------------------------------------------------------------------------- */

/* The round is over for those who agree: they come to the next one, and to its end, together. */
static int differs(rig_member_t *m, void *arg) {
    model_t o;
    rg_diloco_config_t c;
    (void)arg;
    rg_diloco_profile(RG_DILOCO_PLAIN, &c);
    c.every = 8;
    c.wire = (rg_wire_t)0;
    c.quorum = 3;
    c.grace_ms = 1;
    if (begin(m, &o, &c)) return 1;
    if (m->index == 1) { /* what the start would have refused */
        rg_error_t err = { RG_OK, 0, "" };
        o.d->c.grace_ms = 2;
        RIG_NEED(m, rg_dl_quorum_begin(o.d, &err) == RG_OK, "%s", err.text);
    }
    for (uint64_t s = 1; s <= 16; s++) {
        rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
        rg_status_t st = rg_diloco_step(o.d, 100, &r), want = s % 8 ? RG_OK : RG_ERR_MISMATCH;
        RIG_NEED(m, st == want, "step %llu: %s: %s", (unsigned long long)s, rg_status_name(st), r.text);
        if (s == 8 && rig_gate(m, 1, 3)) return 1;
    }
    if (rig_gate(m, 2, 3)) return 1;
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco_flush, by_quorum_another_configuration__mismatch_everywhere, .timeout = 60) {
    rig_run(3, "inproc", NULL, differs, NULL);
}

/* It is found at the start: all are told the fields. With equal ones they start then. */
static int starts_apart(rig_member_t *m, void *arg) {
    static const char *const want[] = { "disagree on every, quorum:", "disagree on lr:",
                                        "disagree on momentum_every, clip:" };
    model_t o;
    (void)arg;
    for (int k = 0; k < 3; k++) {
        rg_error_t err = { RG_OK, 0, "" };
        rg_diloco_config_t c = config(RG_DILOCO_PLAIN, 0, 0);
        memset(&o, 0, sizeof o);
        if (m->index == 1 && k == 0) c.quorum = 2, c.every *= 2;
        if (m->index == 1 && k == 1) c.lr *= 2;
        RIG_OK(m, rg_diloco_create(&c, &o.d, &err));
        RIG_OK(m, rg_diloco_add(o.d, "w", o.p, COUNT, 0, &err));
        if (m->index == 1 && k == 2) o.d->c.momentum_every = 2, o.d->c.clip = 1;
        rg_status_t st = rg_diloco_start(o.d, m->g, &err);
        RIG_NEED(m, st == RG_ERR_MISMATCH && strstr(err.text, want[k]), "%s: %s", rg_status_name(st), err.text);
        rg_diloco_destroy(o.d);
    }
    rg_diloco_config_t c = config(RG_DILOCO_PLAIN, 0, 0);
    if (begin(m, &o, &c)) return 1;
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco_flush, start_with_another_configuration__mismatch_everywhere_and_named, .timeout = 60) {
    rig_run(3, "inproc", NULL, starts_apart, NULL);
}

/* ---- One step fewer -----------------------------------------------------------------------------------------------
 */

static int steps(rig_member_t *m, model_t *o, uint32_t n) {
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    for (uint32_t k = 0; k < n; k++) {
        train(m, o);
        rg_status_t st = rg_diloco_step(o->d, 1, &r);
        RIG_NEED(m, st == RG_OK, "step %u: %s: %s", k, rg_status_name(st), r.text);
    }
    return 0;
}

/* The last member does not come to the round that the others make. Their flush may fail, for the operations of all may
 * not meet; the start on all members that is to repair that has to. */
static int one_step_fewer(rig_member_t *m, void *arg) {
    rg_diloco_config_t c = *(const rg_diloco_config_t *)arg;
    static _Thread_local model_t o;
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    rg_diloco_stats_t all = RG_DILOCO_STATS_INIT;
    rg_error_t err = { RG_OK, 0, "" };
    float low[COUNT];
    if (begin(m, &o, &c)) return 1;
    if (steps(m, &o, c.every + c.overlap)) return 1;
    if (rig_gate(m, 0, 3)) return 1;
    if (steps(m, &o, c.every - c.overlap - (m->index == 2))) return 1;
    o.d->c.timeout_ms = 1000;
    rg_diloco_flush(o.d, &r);
    o.d->c.timeout_ms = 20000;
    if (rig_gate(m, 1, 3)) return 1;
    RIG_NEED(m, rg_diloco_start(o.d, m->g, &err) == RG_OK, "start: %s", err.text);
    rg_status_t st = rg_diloco_flush(o.d, &r);
    RIG_NEED(m, st == RG_OK, "flush: %s: %s", rg_status_name(st), r.text);
    rg_diloco_info(o.d, &all);
    RIG_NEED(m, all.steps == 2 * c.every + c.overlap, "step %llu", (unsigned long long)all.steps);
    RIG_OK(m, rg_all_reduce(m->g, o.p, low, COUNT, RG_F32, RG_MIN, NULL, NULL));
    RIG_NEED(m, memcmp(low, o.p, sizeof low) == 0, "parameters differ");
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco_flush, by_quorum_one_has_made_a_step_fewer__start_on_all__repairs, .timeout = 60) {
    rg_diloco_config_t c = config(RG_DILOCO_PLAIN, 0, 2);
    rig_run(3, "inproc", NULL, one_step_fewer, &c);
}

Test(diloco_flush, by_quorum_one_has_made_a_step_fewer__in_flight__repairs, .timeout = 60) {
    rg_diloco_config_t c = config(RG_DILOCO_STREAMING, 1, 2);
    rig_run(3, "inproc", NULL, one_step_fewer, &c);
}
