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
    op->key = (rg_op_key_t){ g->gen, 1u << 20 };
    op->state = RG_OPS_FETCHING;
    op->roster = old_roster(g);
    op->next = g->open_ops;
    if (op->next) op->next->prev = op;
    g->open_ops = op;
    g->n_open++;
    g->async_work++;
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
    if (m->index == 0)
        RIG_NEED(m, abort_old_fetch(m->g) == RG_ERR_PEER_LOST, "the verdict was not carried out");
    for (int i = 0; i < 3; i++) RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    return 0;
}

Test(ops, abort_of_a_fetch_that_a_fence_ended__new_data_epoch_goes_on, .timeout = 120) {
    rg_config_t c = RG_CONFIG_INIT;
    c.op_timeout_ms = 3000 * RIG_SLOW;
    rig_run(2, "tcp", &c, body, NULL);
}
