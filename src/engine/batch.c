/* batch.c: messages of a member to itself, which never leave the process, and requests that stand for several messages.
 * It relies on the group's lock. A message to oneself is an open operation like any other, with a deadline; it must not
 * be told to the core, which would have nobody to agree with. */
#include "engine/group.h"

#include <string.h>

/* ---- To oneself -------------------------------------------------------------------------------------------------- */

void rg_self_forget(rg_request_t *op) {
    for (rg_request_t **at = &op->g->self_ops; op->self && *at; at = &(*at)->next_free)
        if (*at == op) {
            *at = op->next_free;
            op->next_free = NULL;
            return;
        }
}

static void self_pass(rg_request_t *from, rg_request_t *to) {
    uint64_t n = from->sig.count;
    for (uint64_t off = 0; off < n;) {
        uint64_t run, k = n - off;
        const uint8_t *a = rg_layout_at(&from->in, off, &run);
        if (run < k) k = run;
        rg_layout_write(&to->out, off, a, k);
        off += k;
    }
    rg_request_t *both[2] = { from, to };
    for (int i = 0; i < 2; i++) {
        rg_request_t *op = both[i];
        const rg_core_view_t *v = rg_member_view(op->g->core);
        op->contributors[0] = op->g->self_id;
        op->n_contributors = 1;
        op->res.contributors = 1;
        op->res.epoch = v ? v->data_epoch : 0;
        op->res.bytes_sent = i == 0 ? n * op->elem : 0;
        op->res.bytes_received = i == 1 ? n * op->elem : 0;
        rg_op_finish(op, RG_OK, 0, NULL);
    }
}

/* The oldest other half of the same tag that waits, or op becomes one that waits. */
rg_status_t rg_self_submit(rg_request_t *op) {
    rg_request_t **at = &op->g->self_ops;
    while (*at && ((*at)->h != op->h || (*at)->tag != op->tag || (*at)->self == op->self)) at = &(*at)->next_free;
    rg_request_t *other = *at;
    op->state = RG_OPS_RUNNING;
    if (!other) {
        *at = op; /* the end of the list */
        op->next_free = NULL;
        return RG_OK;
    }
    *at = other->next_free;
    other->next_free = NULL;
    if (other->sig.count != op->sig.count || other->sig.dtype != op->sig.dtype) {
        static const char text[] = "a message to oneself: what is sent and what is received differ in count or type";
        rg_op_finish(other, RG_ERR_MISMATCH, op->g->self_id, text);
        rg_op_finish(op, RG_ERR_MISMATCH, op->g->self_id, text);
    } else if (op->self == 1) {
        self_pass(op, other);
    } else {
        self_pass(other, op);
    }
    return RG_OK;
}

/* ---- Several as one ---------------------------------------------------------------------------------------------- */

static void batch_finish(rg_request_t *batch) {
    rg_result_t *res = &batch->res;
    res->status = RG_OK;
    for (const rg_request_t *op = batch->batch_first; op; op = op->batch_next) {
        if (op->res.status != RG_OK && res->status == RG_OK) {
            res->status = op->res.status;
            res->lost_member = op->res.lost_member;
            memcpy(res->text, op->res.text, sizeof res->text);
        }
        if (op->res.retries > res->retries) res->retries = op->res.retries;
        if (op->res.epoch > res->epoch) res->epoch = op->res.epoch;
        if (op->res.fault_ns > res->fault_ns) res->fault_ns = op->res.fault_ns;
        res->bytes_sent += op->res.bytes_sent;
        res->bytes_received += op->res.bytes_received;
    }
    res->end_ns = rg_os_now_ns();
    batch->state = RG_OPS_FINISHED;
}

void rg_batch_part_ended(rg_request_t *batch) {
    if (--batch->batch_left == 0) batch_finish(batch);
}
