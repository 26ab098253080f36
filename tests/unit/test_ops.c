/* test_ops.c: verdicts on operations in states that a whole group reaches only by bad luck, carried out by hand on a
 * member of a real group. Relies on engine_rig.h for the group. It must put nothing into the engine that the engine
 * itself could not have put there. */
#include "engine_rig.h"

#include "engine/group.h"

#include <criterion/criterion.h>
#include <stdlib.h>

/* A roster of the view before the present one, as an operation that a fence has stopped still holds it. */
static rg_roster_t *old_roster(rg_group_t *g) {
    rg_roster_t *now = rg_roster_for(g, g->gen), *r = calloc(1, sizeof *r);
    *r = (rg_roster_t){ .refs = 1, .n = now->n, .rank = now->rank, .gen = now->gen, .data_epoch = now->data_epoch - 1 };
    r->ids = calloc(now->n, sizeof *r->ids);
    r->links = calloc(now->n, sizeof *r->links);
    rg_roster_put(now);
    return r;
}

/* The holder of a small result was lost before the others had fetched it, and they end the operation. */
static rg_status_t abort_old_fetch(rg_group_t *g) {
    rg_todo_t t = { .type = RG_MACT_OP_ABORT, .status = RG_ERR_PEER_LOST, .text = "planted" };
    rg_lock(g);
    rg_request_t *op = rg_op_alloc(g);
    op->key = (rg_op_key_t){ g->gen, 1u << 20, RG_SET_ALL };
    op->state = RG_OPS_FETCHING;
    op->roster = old_roster(g);
    rg_op_link(op);
    t.key = op->key;
    rg_op_verdict(g, &t);
    rg_status_t st = op->state == RG_OPS_FINISHED ? op->res.status : RG_AGAIN;
    rg_op_free(op);
    rg_unlock(g);
    return st;
}

static int body(rig_member_t *m, void *arg) {
    (void)arg;
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    if (m->index == 0) RIG_NEED(m, abort_old_fetch(m->g) == RG_ERR_PEER_LOST, "the verdict was not carried out");
    for (int i = 0; i < 3; i++) RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    return 0;
}

Test(ops, abort_of_a_fetch_that_a_fence_ended__new_data_epoch_goes_on, .timeout = 120) {
    rg_config_t c = RG_CONFIG_INIT;
    c.op_timeout_ms = 3000 * RIG_SLOW;
    rig_run(2, "tcp", &c, body, NULL);
}

/* Member 0 has the whole sum and has said so, gives up, and gets its input back, while member 1 has not read the rest
 * yet. What was sent must be what it was then: pages handed to the kernel by reference would show the input. */
#define ELEMENTS (64u << 10)

static int give_up(rig_member_t *m, float *x) {
    rg_request_t *req;
    if (rig_gate(m, 0, 2)) return 1;
    RIG_OK(m, rg_all_reduce(m->g, x, x, ELEMENTS, RG_F32, RG_SUM, NULL, &req));
    if (rig_gate(m, 1, 2) || rig_gate(m, 2, 2)) return 1;
    for (uint64_t until = rig_now() + 10000000000u; rig_now() < until && req->state != RG_OPS_COMPLETE;)
        if (rg_test(req, NULL) != RG_AGAIN) break;
    RIG_NEED(m, req->state == RG_OPS_COMPLETE, "the result is not whole, or shown already");
    for (int i = 0; i < 50; i++) rg_test(req, NULL); /* the news that it is whole goes out */
    RIG_OK(m, rg_group_abort(m->g));
    RIG_NEED(m, x[0] == 1 && x[ELEMENTS - 1] == 1, "the input is not back");
    return rig_gate(m, 3, 2);
}

static int take_late(rig_member_t *m, float *x) {
    rg_request_t *req;
    RIG_OK(m, rg_all_reduce(m->g, x, x, ELEMENTS, RG_F32, RG_SUM, NULL, &req));
    if (rig_gate(m, 0, 2) || rig_gate(m, 1, 2)) return 1;
    for (int i = 0; i < 200; i++) rg_test(req, NULL); /* sends its part of the result */
    if (rig_gate(m, 2, 2) || rig_gate(m, 3, 2)) return 1;
    rg_result_t r = RG_RESULT_INIT;
    RIG_OK(m, rg_wait(req, &r));
    float want = r.contributors == 2 ? 101 : 100;
    for (uint32_t i = 0; i < ELEMENTS; i++)
        RIG_NEED(m, x[i] == want, "element %u is %g of %u contributors", i, (double)x[i], r.contributors);
    return 0;
}

static int late_body(rig_member_t *m, void *arg) {
    (void)arg;
    float *x = malloc(ELEMENTS * sizeof *x);
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    for (uint32_t i = 0; i < ELEMENTS; i++) x[i] = m->index ? 100 : 1;
    int bad = m->index ? take_late(m, x) : give_up(m, x);
    rg_group_destroy(m->g); /* before its buffer goes */
    m->g = NULL;
    free(x);
    return bad;
}

Test(ops, member_gives_up_after_its_result_is_whole__others_get_what_it_had_sent, .timeout = 120) {
    rg_config_t c = RG_CONFIG_INIT;
    c.progress_thread = RG_OFF;
    c.algorithm = "all_reduce=ring";
    rig_run(2, "tcp", &c, late_body, NULL);
}
