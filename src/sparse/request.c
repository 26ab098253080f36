/* request.c: the calls of sparse reducers, those that block and those that do not. Relies on later.h for the queue and
 * its thread. It must not touch what a reducer holds: that belongs to the call whose turn it is. */
#include "sparse/reducer.h"

#include "assume.h"

static const char what[] = "a sparse request";
static const char busy[] = "a reducer does one call at a time: wait for its requests, or use another reducer";

struct rg_sparse_request {
    rg_later_call_t c;
    rg_sparse_reducer_t *z;
    rg_topk_reducer_t *topk;
    const void *in;
    void *out;
    uint64_t n;
    rg_dtype_t dtype;
    rg_sparse_op_t op;
    rg_sparse_t list; /* what `in` is of a list, and how it is to be done: the caller's may be gone by then */
    rg_sparse_how_t how;
    rg_quant_t quant;
    int has_how;
    rg_seeded_how_t seeded;
};

static rg_sparse_request_t *request_of(rg_later_call_t *c) { return (rg_sparse_request_t *)(void *)c; }

static rg_status_t is_busy(rg_later_t *queue, rg_group_t *g, const rg_opts_t *opts) {
    rg_refuse(g, RG_ERR_INVALID, "%s", busy);
    return rg_later_turn_down(queue, g, opts, RG_ERR_INVALID, 1);
}

/* Where a call without a tag would stand nobody knows. */
static rg_status_t not_begun(rg_later_t *queue, rg_group_t *g, const rg_opts_t *opts, rg_status_t st) {
    return opts != NULL && opts->tag != 0 ? rg_later_turn_down(queue, g, opts, st, 1) : st;
}

static rg_status_t begin(rg_group_t *g, const rg_opts_t *opts, rg_sparse_request_t **req,
                         rg_status_t (*run)(rg_later_call_t *c), rg_sparse_request_t **q) {
    rg_later_call_t *c;
    if (req == NULL) return rg_refuse(g, RG_ERR_INVALID, "%s: req is NULL", what);
    rg_status_t st = rg_later_make(g, sizeof **q, what, opts, &c);
    if (st != RG_OK) return st;
    c->run = run;
    *q = request_of(c);
    return RG_OK;
}

static rg_status_t start(rg_later_t **queue, rg_sparse_request_t *q, rg_sparse_request_t **req) {
    rg_status_t st = rg_later_start(queue, &q->c, what);
    if (st == RG_OK) *req = q;
    return st;
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

rg_status_t rg_sparse_all_reduce(rg_sparse_reducer_t *z, const rg_sparse_t *in, rg_sparse_t *out,
                                 const rg_sparse_how_t *how, const rg_opts_t *opts) {
    if (z == NULL) return RG_ERR_INVALID;
    if (rg_later_busy(z->queue)) return is_busy(z->queue, z->g, opts);
    return rg_sparse_run(z, in, out, how, opts, NULL);
}

static rg_status_t run_lists(rg_later_call_t *c) {
    rg_sparse_request_t *q = request_of(c);
    return rg_sparse_run(q->z, &q->list, q->out, &q->how, &c->o, &c->stop);
}

rg_status_t rg_sparse_iall_reduce(rg_sparse_reducer_t *z, const rg_sparse_t *in, rg_sparse_t *out,
                                  const rg_sparse_how_t *how, const rg_opts_t *opts, rg_sparse_request_t **req) {
    rg_sparse_request_t *q = NULL;
    rg_sparse_how_t means;
    if (req != NULL) *req = NULL;
    if (z == NULL) return RG_ERR_INVALID;
    rg_status_t st = rg_sparse_how_in(z->g, how, &means);
    if (in == NULL || out == NULL) st = rg_refuse(z->g, RG_ERR_INVALID, "%s: %s is NULL", what, in ? "out" : "in");
    if (st == RG_OK) st = begin(z->g, opts, req, run_lists, &q);
    if (st != RG_OK) return not_begun(z->queue, z->g, opts, st);
    RG_ASSUME(q);
    q->z = z;
    q->list = *in;
    q->out = out;
    q->how = means;
    if (means.quant != NULL) q->quant = *means.quant, q->how.quant = &q->quant;
    return start(&z->queue, q, req);
}

/* ---- Elements that a seed chooses -------------------------------------------------------------------------------- */

rg_status_t rg_seeded_all_reduce(rg_sparse_reducer_t *z, const void *in, void *out, uint64_t n, rg_dtype_t dtype,
                                 const rg_seeded_how_t *how, const rg_opts_t *opts) {
    if (z == NULL) return RG_ERR_INVALID;
    if (rg_later_busy(z->queue)) return is_busy(z->queue, z->g, opts);
    return rg_seeded_run(z, in, out, n, dtype, how, opts, NULL);
}

static rg_status_t run_seeded(rg_later_call_t *c) {
    rg_sparse_request_t *q = request_of(c);
    return rg_seeded_run(q->z, q->in, q->out, q->n, q->dtype, q->has_how ? &q->seeded : NULL, &c->o, &c->stop);
}

rg_status_t rg_seeded_iall_reduce(rg_sparse_reducer_t *z, const void *in, void *out, uint64_t n, rg_dtype_t dtype,
                                  const rg_seeded_how_t *how, const rg_opts_t *opts, rg_sparse_request_t **req) {
    rg_sparse_request_t *q = NULL;
    if (req != NULL) *req = NULL;
    if (z == NULL) return RG_ERR_INVALID;
    rg_status_t st = begin(z->g, opts, req, run_seeded, &q);
    if (st != RG_OK) return not_begun(z->queue, z->g, opts, st);
    RG_ASSUME(q);
    q->z = z, q->in = in, q->out = out, q->n = n, q->dtype = dtype;
    q->has_how = how != NULL;
    if (how != NULL) q->seeded = *how;
    return start(&z->queue, q, req);
}

/* ---- Chunked top-k ----------------------------------------------------------------------------------------------- */

rg_status_t rg_topk_all_reduce(rg_topk_reducer_t *z, const float *in, float *out, uint64_t count, rg_sparse_op_t op,
                               const rg_opts_t *opts) {
    if (z == NULL) return RG_ERR_INVALID;
    if (rg_later_busy(*rg_topk_queue(z))) return is_busy(*rg_topk_queue(z), rg_topk_group(z), opts);
    return rg_topk_run(z, in, out, count, op, opts, NULL);
}

static rg_status_t run_topk(rg_later_call_t *c) {
    rg_sparse_request_t *q = request_of(c);
    return rg_topk_run(q->topk, q->in, q->out, q->n, q->op, &c->o, &c->stop);
}

rg_status_t rg_topk_iall_reduce(rg_topk_reducer_t *z, const float *in, float *out, uint64_t count, rg_sparse_op_t op,
                                const rg_opts_t *opts, rg_sparse_request_t **req) {
    rg_sparse_request_t *q = NULL;
    if (req != NULL) *req = NULL;
    if (z == NULL) return RG_ERR_INVALID;
    rg_status_t st = begin(rg_topk_group(z), opts, req, run_topk, &q);
    if (st != RG_OK) return not_begun(*rg_topk_queue(z), rg_topk_group(z), opts, st);
    RG_ASSUME(q);
    q->topk = z, q->in = in, q->out = out, q->n = count, q->op = op;
    return start(rg_topk_queue(z), q, req);
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

rg_status_t rg_sparse_wait(rg_sparse_request_t *req, rg_result_t *result) {
    return rg_later_wait(req != NULL ? &req->c : NULL, result);
}

rg_status_t rg_sparse_test(rg_sparse_request_t *req, rg_result_t *result) {
    return rg_later_test(req != NULL ? &req->c : NULL, result);
}

rg_status_t rg_sparse_cancel(rg_sparse_request_t *req) { return rg_later_cancel(req != NULL ? &req->c : NULL); }
