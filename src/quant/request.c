/* request.c: quantised collectives that do not block. Relies on src/sparse/later.h for the queue and its thread; it
 * must not touch a quantiser, which belongs to the call whose turn it is. */
#include "quant/parts.h"

static const char what[] = "a quantised request";

struct rg_quant_request {
    rg_later_call_t c;
    rg_quantiser_t *z;
    int kind;
    const float *in;
    float *out;
    uint64_t count;
    rg_op_t op;
};

static rg_status_t run(rg_later_call_t *c) {
    const rg_quant_request_t *q = (const rg_quant_request_t *)(const void *)c;
    return rg_quant_run(q->z, q->kind, q->in, q->out, q->count, q->op, &c->o, &c->stop);
}

static rg_status_t start(const rg_quant_request_t *call, const rg_opts_t *opts, rg_quant_request_t **req) {
    rg_quantiser_t *z = call->z;
    rg_later_call_t *c;
    if (req != NULL) *req = NULL;
    if (z == NULL) return RG_ERR_INVALID;
    rg_status_t st = req == NULL ? rg_refuse(z->g, RG_ERR_INVALID, "%s: req is NULL", what)
                                 : rg_later_make(z->g, sizeof *call, what, opts, &c);
    if (st != RG_OK && opts != NULL && opts->tag != 0) /* where one without a tag would stand nobody knows */
        return rg_later_turn_down(z->queue, z->g, opts, st, call->kind == RG_QUANT_ALL_REDUCE);
    if (st != RG_OK) return st;
    rg_quant_request_t *q = (rg_quant_request_t *)(void *)c;
    c->run = run;
    q->z = z, q->kind = call->kind, q->in = call->in, q->out = call->out, q->count = call->count, q->op = call->op;
    st = rg_later_start(&z->queue, c, what);
    if (st == RG_OK) *req = q;
    return st;
}

rg_status_t rg_quant_wait(rg_quant_request_t *req, rg_result_t *result) {
    return rg_later_wait(req != NULL ? &req->c : NULL, result);
}

rg_status_t rg_quant_test(rg_quant_request_t *req, rg_result_t *result) {
    return rg_later_test(req != NULL ? &req->c : NULL, result);
}

rg_status_t rg_quant_cancel(rg_quant_request_t *req) { return rg_later_cancel(req != NULL ? &req->c : NULL); }

rg_status_t rg_quant_iall_reduce(rg_quantiser_t *z, const float *in, float *out, uint64_t count, rg_op_t op,
                                 const rg_opts_t *opts, rg_quant_request_t **req) {
    const rg_quant_request_t q = {
        .z = z, .kind = RG_QUANT_ALL_REDUCE, .in = in, .out = out, .count = count, .op = op
    };
    return start(&q, opts, req);
}

rg_status_t rg_quant_ireduce_scatter(rg_quantiser_t *z, const float *in, float *out, uint64_t count, rg_op_t op,
                                     const rg_opts_t *opts, rg_quant_request_t **req) {
    const rg_quant_request_t q = {
        .z = z, .kind = RG_QUANT_REDUCE_SCATTER, .in = in, .out = out, .count = count, .op = op
    };
    return start(&q, opts, req);
}

rg_status_t rg_quant_iall_gather(rg_quantiser_t *z, const float *in, float *out, uint64_t count, const rg_opts_t *opts,
                                 rg_quant_request_t **req) {
    const rg_quant_request_t q = {
        .z = z, .kind = RG_QUANT_ALL_GATHER, .in = in, .out = out, .count = count, .op = RG_SUM
    };
    return start(&q, opts, req);
}
