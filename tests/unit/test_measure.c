/* test_measure.c: members measure their links together and come to one conclusion, which holds for operations after it
 * and for those alone; with operations under way, newcomers, and members that die in the middle. The order that is
 * found on one machine is any: what is tested is that all have the same, and that results stay right. */
#include "engine/group.h"
#include "engine_rig.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 300000u

/* What is the group's: its own thread may be at it. */
#define LOCKED(m, value)                                                                                               \
    ({                                                                                                                 \
        rg_lock((m)->g);                                                                                               \
        __typeof__(value) value_ = (value);                                                                            \
        rg_unlock((m)->g);                                                                                             \
        value_;                                                                                                        \
    })

/* Each member on a host by itself. */
static rg_config_t apart(void) {
    const rg_config_t c = RG_CONFIG_INIT;
    rig_per_host = 1;
    return c;
}

static void fill(float *v, uint32_t rank) {
    for (uint32_t i = 0; i < COUNT; i++) v[i] = (float)(i % 1000 + rank);
}

/* Of ranks 0 to n-1; less: what is missing of the ranks' sum. */
static int right(const float *v, uint32_t n, float less) {
    for (uint32_t i = 0; i < COUNT; i++)
        if (v[i] != (float)(n * (i % 1000)) + less) return 0;
    return 1;
}

static float ranks(uint32_t n) { return (float)(n * (n - 1) / 2); }

/* What no measurement on one machine would find, the same on all. */
static rg_order_t *order_of(rig_member_t *m, const uint32_t *ring, const uint32_t *rate, uint32_t n) {
    rg_order_t *o = calloc(1, sizeof *o);
    rg_lock(m->g);
    rg_roster_t *r = rg_roster_for(m->g, m->g->gen);
    for (uint32_t i = 0; i < n; i++) {
        o->ids[i] = r->ids[i];
        o->ring[i] = ring[i];
        o->rate[i] = rate[i];
    }
    o->n = n;
    o->uneven = 1;
    rg_roster_put(r);
    rg_unlock(m->g);
    return o;
}

static void install(rig_member_t *m, rg_order_t *o) {
    rg_lock(m->g);
    rg_order_install(m->g, o);
    rg_unlock(m->g);
}

static int same_order(rig_member_t *m) {
    const rg_order_t *mine = LOCKED(m, m->g->orders);
    const rg_order_t *first = LOCKED(&m->rig->member[0], m->rig->member[0].g->orders);
    return mine && first && mine->gen == first->gen && mine->op == first->op && mine->n == first->n &&
           memcmp(mine->ids, first->ids, mine->n * sizeof *mine->ids) == 0 &&
           memcmp(mine->ring, first->ring, mine->n * sizeof *mine->ring) == 0 &&
           memcmp(mine->rate, first->rate, mine->n * sizeof *mine->rate) == 0;
}

static int all_sum(rig_member_t *m, uint32_t n) {
    float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out);
    fill(in, m->index);
    rg_status_t st = rg_all_reduce(m->g, in, out, COUNT, RG_F32, RG_SUM, NULL, NULL);
    int ok = right(out, n, ranks(n));
    free(in);
    free(out);
    RIG_OK(m, st);
    RIG_NEED(m, ok, "wrong sums");
    return 0;
}

/* ---- Measuring -------------------------------------------------------------------------------------------------- */

static int measure_body(rig_member_t *m, void *arg) {
    uint32_t n = m->rig->n;
    (void)arg;
    float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out);
    rg_request_t *req = NULL;
    fill(in, m->index);
    RIG_OK(m, rg_all_reduce(m->g, in, out, COUNT, RG_F32, RG_SUM, NULL, &req)); /* is under way meanwhile */
    RIG_OK(m, rg_group_measure(m->g));
    RIG_OK(m, rg_wait(req, NULL));
    RIG_NEED(m, right(out, n, ranks(n)), "wrong sums");
    free(in);
    free(out);
    if (rig_gate(m, 0, n)) return 1;
    RIG_NEED(m, same_order(m), "the members' orders differ");
    for (uint32_t i = 0; i < n; i++) RIG_NEED(m, LOCKED(m, m->g->orders->rate[i]) > 1, "rate %u is not measured", i);
    if (rig_gate(m, 1, n)) return 1;
    return all_sum(m, n) || all_sum(m, n);
}

Test(measure, all_members__of_any_number__come_to_one_order, .timeout = 120) {
    rg_config_t c = apart();
    for (uint32_t n = 2; n <= 5; n++) rig_run(n, "tcp", &c, measure_body, NULL);
}

static int near_body(rig_member_t *m, void *arg) {
    (void)arg;
    RIG_OK(m, rg_group_measure(m->g));
    RIG_NEED(m, !LOCKED(m, m->g->orders), "an order within a host");
    return all_sum(m, m->rig->n);
}

Test(measure, members__of_one_host__change_nothing, .timeout = 60) { rig_run(3, "tcp", NULL, near_body, NULL); }

static int alone_body(rig_member_t *m, void *arg) {
    (void)arg;
    RIG_OK(m, rg_group_measure(m->g));
    return 0;
}

Test(measure, one_member__alone__has_nothing_to_do) {
    rig_run(1, "tcp", NULL, alone_body, NULL);
    cr_assert_eq(rg_group_measure(NULL), RG_ERR_INVALID);
}

static int child_body(rig_member_t *m, void *arg) {
    rg_group_t *child = NULL;
    (void)arg;
    RIG_OK(m, rg_group_split(m->g, 0, 0, NULL, &child));
    rg_status_t st = rg_group_measure(child);
    rg_group_destroy(child);
    RIG_NEED(m, st == RG_ERR_INVALID, "%s", rg_status_name(st));
    return 0;
}

Test(measure, sub_group__refused, .timeout = 60) { rig_run(2, "tcp", NULL, child_body, NULL); }

static int boundary_body(rig_member_t *m, void *arg) {
    (void)arg;
    for (int i = 0; i < 5; i++) {
        rg_change_t change = RG_CHANGE_INIT;
        RIG_OK(m, rg_group_boundary(m->g, &change));
        if (all_sum(m, m->rig->n)) return 1;
    }
    if (rig_gate(m, 0, m->rig->n)) return 1;
    RIG_NEED(m, same_order(m), "the members' orders differ");
    return rig_gate(m, 1, m->rig->n);
}

Test(measure, boundaries__with_measure_every__do_it_by_themselves, .timeout = 120) {
    rg_config_t c = apart();
    c.measure_every = 2;
    rig_run(3, "tcp", &c, boundary_body, NULL);
}

/* A pair that ran out of time knows of it, and the others need not: all pass the boundary. */
static int late_boundary_body(rig_member_t *m, void *arg) {
    rg_change_t change = RG_CHANGE_INIT;
    (void)arg;
    RIG_OK(m, rg_group_boundary(m->g, &change));
    if (m->index == 1 && rig_gate(m, 0, 2)) return 1; /* until the other one has had enough */
    rg_status_t st = rg_group_boundary(m->g, &change);
    if (m->index == 0 && rig_gate(m, 0, 2)) return 1;
    RIG_OK(m, st);
    RIG_NEED(m, change.boundary == 2, "boundary %u", (unsigned)change.boundary);
    return rig_gate(m, 1, 2) || all_sum(m, 2);
}

Test(measure, boundary__measuring_runs_out_of_time__passed_by_all, .timeout = 60) {
    rg_config_t c = apart();
    c.measure_every = 1;
    c.op_timeout_ms = 500;
    rig_run(2, "tcp", &c, late_boundary_body, NULL);
}

/* ---- What is in force ------------------------------------------------------------------------------------------- */

static const uint32_t ring[] = { 0, 2, 3, 1 }, rate[] = { 12000, 12000, 12000, 3000 };

/* One that was begun before the change is run again, after a fault, in the order that it began with, whoever knows of
 * the change by then: here members install it at different times. */
static int death_body(rig_member_t *m, void *arg) {
    uint32_t n = m->rig->n;
    (void)arg;
    float *in[3], *out[3];
    rg_request_t *req[3] = { NULL };
    for (int k = 0; k < 3; k++) {
        in[k] = malloc(COUNT * sizeof *in[k]);
        out[k] = malloc(COUNT * sizeof *out[k]);
        fill(in[k], m->index);
    }
    rg_order_t *o = order_of(m, ring, rate, 4);
    if (rig_gate(m, 0, n)) return 1;
    if (m->index != 1) {
        RIG_OK(m, rg_all_reduce(m->g, in[0], out[0], COUNT, RG_F32, RG_SUM, NULL, &req[0]));
        if (m->index == 3) RIG_OK(m, rg_wait(req[0], NULL));
        install(m, o);
        rig_pass(m, 3);
        RIG_OK(m, rg_all_reduce(m->g, in[1], out[1], COUNT, RG_F32, RG_SUM, NULL, &req[1]));
        int plain = LOCKED(m, !m->g->roster || !m->g->roster->order);
        RIG_NEED(m, plain, "the plain roster has an order");
        RIG_OK(m, rg_all_reduce(m->g, in[2], out[2], COUNT, RG_F32, RG_SUM, NULL, &req[2]));
        for (int k = 0; k < 3; k++) {
            if (k || m->index != 3) RIG_OK(m, rg_wait(req[k], NULL));
            RIG_NEED(m, right(out[k], 3, ranks(4) - 1), "wrong sums of %d", k);
        }
    } else {
        if (rig_gate(m, 3, 3)) return 1; /* members 0 and 2 have installed it, 3 will when the first has ended */
        rg_group_destroy(m->g);          /* without having called any of them */
        m->g = NULL;
        free(o);
    }
    for (int k = 0; k < 3; k++) free(in[k]), free(out[k]);
    if (!m->g) return 0;
    if (rig_gate(m, 1, 3)) return 1;
    static const uint32_t left[] = { 0, 1, 2 };
    int some = LOCKED(m, m->g->ordered && m->g->ordered->n == 3 && m->g->ordered->topo.ring);
    RIG_NEED(m, some, "no order among those who stay");
    RIG_NEED(m, LOCKED(m, memcmp(m->g->ordered->topo.ring, left, sizeof left)) == 0, "not what is left of the order");
    return rig_gate(m, 2, 3);
}

Test(measure, order__one_member_dies__holds_among_the_others, .timeout = 120) {
    static const char *const names[] = { "all_reduce=ring", "all_reduce=direct2" };
    for (int k = 0; k < 2; k++) {
        rg_config_t c = apart();
        c.algorithm = names[k];
        rig_run(4, "tcp", &c, death_body, NULL);
    }
}

/* A newcomer knows of no order: from its boundary on there is none. */
static int newcomer_body(rig_member_t *m, void *arg) {
    static const uint32_t turned[] = { 0, 2, 1 };
    rg_change_t change = RG_CHANGE_INIT;
    (void)arg;
    install(m, order_of(m, turned, rate, 3));
    if (all_sum(m, 3)) return 1;
    RIG_NEED(m, LOCKED(m, m->g->ordered), "no order in force");
    if (rig_gate(m, 0, 3)) return 1;
    if (m->index == 2) {
        rg_group_destroy(m->g);
        m->g = rig_join(m, 1);
        RIG_NEED(m, m->g, "cannot join");
    }
    while (m->index != 2 && !change.joined) RIG_OK(m, rg_group_boundary(m->g, &change));
    if (all_sum(m, 3)) return 1;
    RIG_NEED(m, !LOCKED(m, m->g->ordered), "an order of which the newcomer does not know");
    return rig_gate(m, 1, 3);
}

Test(measure, order__newcomers_enter__holds_no_more, .timeout = 120) {
    rg_config_t c = apart();
    c.algorithm = "all_reduce=ring";
    rig_run(3, "tcp", &c, newcomer_body, NULL);
}
