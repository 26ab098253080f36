/* api_ops.c: the collective operations: what their arguments must be, and the way from a call to a request. Where the
 * buffers are is found in api_buffers.c. It relies on the engine for everything that waits; it must not hold the lock
 * of a group across anything but the engine's own calls. */
#include "api.h"
#include "config.h"
#include "core/text.h"
#include "engine/lifecycle.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

rg_status_t rg_usable(rg_group_t *h) {
    if (!h) return RG_ERR_INVALID;
    return rg_group_inherited(rg_root(h)) ? RG_ERR_CLOSED : RG_OK;
}

rg_status_t rg_refuse(rg_group_t *h, rg_status_t st, const char *fmt, ...) {
    char text[RG_CORE_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    rg_lock(rg_root(h));
    rg_group_set_errmsg(h, "%s", text);
    rg_unlock(rg_root(h));
    return st;
}

/* ---- What can be checked without the group ----------------------------------------------------------------------- */

static int is_float(rg_dtype_t t) { return t == RG_F8E4M3 || t == RG_F8E5M2 || (t >= RG_F16 && t <= RG_F64); }

/* Factors and weights: of reductions of floating types alone. */
static rg_status_t check_scale(rg_group_t *h, const rg_call_t *c, const rg_opts_t *o) {
    const char *kind = rg_kind_name(c->kind);
    int scaled = (o->scale != 0 && o->scale != 1) || (o->scale_after != 0 && o->scale_after != 1);
    if (!scaled && o->weighted != RG_ON) return RG_OK;
    if (!rg_kind_reduces(c->kind))
        return rg_refuse(h, RG_ERR_NOTSUP, "%s: scale, scale_after and weighted are for reductions", kind);
    if (!is_float(c->dtype))
        return rg_refuse(h, RG_ERR_NOTSUP, "%s of %s: scale, scale_after and weighted are for floating types", kind,
                         rg_dtype_name(c->dtype));
    if (scaled && (c->op == RG_MIN || c->op == RG_MAX))
        return rg_refuse(h, RG_ERR_NOTSUP, "%s %s: scale and scale_after are for sums, products and averages", kind,
                         rg_op_name(c->op));
    double most = c->dtype == RG_F64 ? DBL_MAX : (double)FLT_MAX; /* of partial values */
    if (!(fabs(o->scale) <= most && fabs(o->scale_after) <= most))
        return rg_refuse(h, RG_ERR_INVALID, "%s of %s: scale and scale_after must be finite numbers, at most %g", kind,
                         rg_dtype_name(c->dtype), most);
    if (o->weighted != RG_ON) return RG_OK;
    if (c->op != RG_AVG)
        return rg_refuse(h, RG_ERR_INVALID, "%s %s: a weighted reduction is an average; use RG_AVG", kind,
                         rg_op_name(c->op));
    if (!isfinite(o->weight) || o->weight < 0)
        return rg_refuse(h, RG_ERR_INVALID, "%s: a weight is a finite number, 0 or more", kind);
    return RG_OK;
}

static rg_status_t check_call(rg_group_t *h, const rg_call_t *c) {
    if (!rg_dtype_size(c->dtype)) return rg_refuse(h, RG_ERR_INVALID, "unknown element type; see rg_dtype_t");
    if (!rg_kind_reduces(c->kind)) return RG_OK;
    if ((unsigned)c->op >= RG_OP_COUNT) return rg_refuse(h, RG_ERR_INVALID, "unknown operator; see rg_op_t");
    if (c->op == RG_AVG && !is_float(c->dtype))
        return rg_refuse(h, RG_ERR_NOTSUP,
                         "the average of integers is not defined; use RG_SUM and divide, or a floating type");
    return RG_OK;
}

rg_status_t rg_call_opts(rg_group_t *h, const rg_call_t *c, const rg_opts_t *opts, int blocking, rg_opts_t *o) {
    rg_error_t err;
    *o = (rg_opts_t)RG_OPTS_INIT;
    if (!opts) { /* the usual case */
        o->timeout_ms = rg_root(h)->cfg.op_timeout_ms;
        o->on_fault = rg_root(h)->cfg.on_fault;
        return check_call(h, c);
    }
    rg_status_t st = rg_opts_resolve(opts, &rg_root(h)->cfg, o, &err);
    if (st == RG_OK && blocking) st = rg_result_check(o->result, &err);
    if (st != RG_OK) return rg_refuse(h, st, "%s", err.text);
    if (o->flags) return rg_refuse(h, RG_ERR_NOTSUP, "rg_opts.flags is 0x%x: no flag is known", o->flags);
    if ((unsigned)o->weighted > RG_OFF)
        return rg_refuse(h, RG_ERR_INVALID, "rg_opts.weighted is %d: expected RG_ON, RG_OFF or 0", (int)o->weighted);
    st = check_call(h, c);
    return st == RG_OK ? check_scale(h, c, o) : st;
}

/* ---- From a call to an operation --------------------------------------------------------------------------------- */

/* Up to here everybody is given all of an operation that has a part for each, which saves the barrier. It depends on
 * the number of members; but where that differs between two of them the call fails for its shape. */
#define WHOLE_MAX 32768u

/* A result may be shown before everybody has one only where all can have the same, and all have spoken. */
static int ends_with_barrier(rg_request_t *op, const rg_call_t *c, const rg_opts_t *o, const rg_roster_t *r) {
    uint64_t most = op->g->cfg.small_bytes, all = op->bytes;
    /* Of two members each keeps what it has sent: with its own input that is all that the other one may still lack. */
    op->pair = op->shape_n == 2 && !op->stale && rg_kind_segmented(c->kind);
    switch (c->kind) {
    case RG_KIND_REDUCE_SCATTER:
    case RG_KIND_ALL_TO_ALL:
        if (op->pair) all = op->sig.count * 2 * op->elem;
        else if (__builtin_mul_overflow(op->bytes, (uint64_t)op->shape_n, &all)) return 1;
        /* fall through */
    case RG_KIND_ALL_GATHER:
        if (op->lens) return 1;
        /* Nobody gets more than it asked for by an all-gather, and where members share cores a barrier costs more than
         * a copy. Who shares them is as certain as the number of members; what links are worth may change. */
        if (c->kind == RG_KIND_ALL_GATHER && r->model.sharing > 1) break;
        most = most < WHOLE_MAX ? most : WHOLE_MAX;
        break;
    case RG_KIND_BROADCAST: most = most < RG_SPOKEN_MAX ? most : RG_SPOKEN_MAX; break;
    case RG_KIND_ALL_REDUCE:
    case RG_KIND_BARRIER: break;
    default: return 1;
    }
    op->keep_bytes = op->pair ? op->sig.count * op->elem : all;
    return o->tag || op->key.set != RG_SET_ALL || op->weighted || all > most;
}

/* A factor that must be equal on all members, in 32 bits. */
static uint32_t hash_factor(double f) {
    uint64_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint32_t)((bits * 0x9e3779b97f4a7c15u) >> 32);
}

static rg_status_t fill_pair(rg_request_t *op, const rg_call_t *c, const rg_roster_t *r) {
    if (c->root >= r->n) {
        rg_group_set_errmsg(op->h, "peer %u: this group has ranks 0 to %u", c->root, r->n - 1);
        return RG_ERR_INVALID;
    }
    uint64_t me = op->g->self_id, peer = r->ids[c->root];
    if (me > RG_SET_ID_MAX || peer > RG_SET_ID_MAX) return RG_ERR_RESOURCE;
    op->key.set = c->sends ? rg_set_pair(me, peer) : rg_set_pair(peer, me);
    op->self = peer != me ? 0 : c->sends ? 1 : 2;
    if (op->h->root) op->sig.variant ^= (uint32_t)(op->h->set * 0x9e3779b97f4a7c15u >> 32);
    return RG_OK;
}

static rg_status_t fill(rg_request_t *op, const rg_call_t *c, const rg_opts_t *o) {
    rg_group_t *h = op->h, *g = op->g;
    op->res.start_ns = rg_os_now_ns();
    op->deadline_ns = op->res.start_ns + (uint64_t)o->timeout_ms * 1000000u;
    op->told = 0;
    op->elem = (uint32_t)rg_dtype_size(c->dtype);
    op->root_arg = c->root;
    op->tag = o->tag;
    op->weighted = o->weighted == RG_ON;
    op->weight = o->weight;
    op->scale = o->scale;
    op->scale_after = o->scale_after == 1 ? 0 : o->scale_after;
    int shaped = rg_kind_shaped(c->kind);
    op->sig = (rg_op_sig_t){ .kind = (uint8_t)c->kind,
                             .dtype = (uint8_t)c->dtype,
                             .op = (uint8_t)c->op,
                             .on_fault = (uint8_t)(shaped ? RG_RETURN : o->on_fault),
                             .rule_l = 1, /* until it is known how much there is */
                             .count = c->count,
                             .variant = g->variant ^ c->salt };
    if (op->scale_after != 0) op->sig.variant ^= hash_factor(op->scale_after);
    if (op->weighted) op->sig.variant ^= 0x77656968u; /* another number whenever shares are made in another way */
    rg_roster_t *r = rg_roster_for(h, h->gen);
    if (!r) return RG_ERR_NOMEM;
    rg_status_t st = c->kind == RG_KIND_P2P ? fill_pair(op, c, r) : RG_OK;
    op->bytes = 0;
    if (shaped && c->kind != RG_KIND_P2P) {
        op->shape_n = r->n;
        op->shape_rank = r->rank;
        op->stale = h->told_n && h->told_n != r->n;
    }
    /* Buffers for another number of members cannot be judged: the operation ends, for all, before it looks at them. */
    if (st == RG_OK && c->kind != RG_KIND_BARRIER && !op->stale) st = rg_call_buffers(op, c, o, r);
    op->sig.rule_l = (uint8_t)ends_with_barrier(op, c, o, r);
    rg_roster_put(r);
    return st;
}

/* Errors of arguments, which calling again does not mend. What is refused for lack of something is as if it had not
 * been called: it is to be called again, before anything else of its tag. */
int rg_refused_for_all(rg_status_t st) { return st == RG_ERR_INVALID || st == RG_ERR_NOTSUP; }

/* Whether there is anybody to whom a refused call would be missing: not alone, not in a message to oneself, nor in one
 * of which it is not known to whom. */
static int has_place(const rg_request_t *op) {
    if (op->sig.kind == RG_KIND_P2P) return op->key.set != op->h->set && !op->self;
    rg_roster_t *r = rg_roster_for(op->h, op->h->gen);
    int others = r && r->n > 1;
    if (r) rg_roster_put(r);
    return others;
}

rg_status_t rg_call_make(rg_group_t *h, const rg_call_t *c, const rg_opts_t *o, rg_request_t **out) {
    *out = NULL;
    rg_status_t st = rg_handle_ended(h);
    if (st != RG_OK) return st;
    rg_request_t *op = rg_op_alloc(h);
    if (!op) {
        rg_group_set_errmsg(h, "no memory for one more operation, or too many requests have not been waited for");
        return RG_ERR_NOMEM;
    }
    st = fill(op, c, o);
    if (st == RG_ERR_NOMEM) rg_group_set_errmsg(h, "no memory for this operation; free some and call again");
    if (rg_refused_for_all(st) && has_place(op)) {
        rg_op_refuse(op, st, h->errmsg);
        st = RG_OK;
    }
    if (st == RG_OK) *out = op;
    else rg_op_free(op);
    return st;
}

rg_status_t rg_call_make_refused(rg_group_t *h, const rg_call_t *c, const rg_opts_t *opts, rg_status_t why,
                                 const char *text, rg_request_t **out) {
    char kept[RG_CORE_TEXT_MAX];
    rg_opts_t o = RG_OPTS_INIT;
    rg_call_t call = *c;
    *out = NULL;
    if (!rg_refused_for_all(why) || rg_handle_ended(h) != RG_OK) return why;
    rg_text_copy(kept, sizeof kept, text ? text : h->errmsg);
    /* Where it stands among the calls its tag says, which is where it always was, whatever else is wrong with them. */
    if (opts) o.tag = opts->tag;
    o.timeout_ms = rg_root(h)->cfg.op_timeout_ms;
    o.on_fault =
        opts && (opts->on_fault == RG_RETRY || opts->on_fault == RG_RETURN) ? opts->on_fault : rg_root(h)->cfg.on_fault;
    if (!rg_dtype_size(call.dtype)) call.dtype = RG_U8;
    rg_request_t *op = rg_op_alloc(h);
    rg_status_t st = op ? fill(op, &call, &o) : RG_ERR_NOMEM; /* as much as can be known of it */
    if ((st == RG_OK || rg_refused_for_all(st)) && has_place(op)) {
        rg_op_refuse(op, why, kept);
        *out = op;
    } else if (op) {
        rg_op_free(op);
    }
    if (st == RG_ERR_NOMEM) { /* its place could not be taken: it is to be called again, and refused then */
        rg_group_set_errmsg(h, "no memory for one more operation, or too many requests have not been waited for");
        return st;
    }
    rg_group_set_errmsg(h, "%s", kept);
    return *out ? RG_OK : why;
}

static int op_finished(void *arg) { return ((rg_request_t *)arg)->state == RG_OPS_FINISHED; }

rg_status_t rg_call_collect(rg_request_t *op, rg_result_t *result) {
    rg_drive(op->g, op_finished, op, UINT64_MAX);
    rg_status_t st = op->res.status;
    if (result) {
        rg_result_out(result, &op->res, op->contributors, op->n_contributors);
        /* It says how many there are, so the program knows from here on. */
        if (st == RG_OK && !op->shape_n && op->key.set == op->h->set && !op->batch_first)
            op->h->told_n = op->n_contributors;
    }
    for (rg_request_t *part = op->batch_first, *next; part; part = next) {
        next = part->batch_next;
        rg_op_free(part);
    }
    rg_op_free(op);
    return st;
}

void rg_call_started(rg_request_t *op) {
    rg_group_t *g = op->g;
    rg_wake(g);
    if (g->driver == RG_DRIVER_NONE && op->state != RG_OPS_FINISHED) rg_wake_thread(g);
}

/* A call that is refused before there is an operation says so in its result as well. */
static rg_status_t refused(rg_group_t *h, const rg_opts_t *o, rg_status_t st) {
    rg_result_t r = RG_RESULT_INIT;
    if (!o->result || rg_result_check(o->result, NULL) != RG_OK) return st;
    r.status = st;
    r.start_ns = r.end_ns = rg_os_now_ns();
    rg_group_errmsg(h, r.text, sizeof r.text);
    rg_result_out(o->result, &r, NULL, 0);
    return st;
}

/* Tried first where the call asks for nothing special. 1: it is done; else some may have been sent to (quick.c). */
static int quick(rg_group_t *h, const rg_call_t *c, const rg_opts_t *o, uint32_t *sent) {
    if (h->root || c->v || c->list || c->salt || o->tag || o->weighted == RG_ON || o->in_strided || o->out_strided)
        return 0;
    if ((o->scale != 0 && o->scale != 1) || (o->scale_after != 0 && o->scale_after != 1)) return 0;
    const rg_quick_call_t q = { c->kind, c->dtype, c->op, o->on_fault, c->root, c->count, c->in, c->out, o->result };
    return rg_quick_run(h, &q, sent);
}

rg_status_t rg_call_refused(rg_group_t *h, uint32_t tag, rg_status_t why, const char *text) {
    const rg_call_t c = { .kind = RG_KIND_ALL_GATHER, .dtype = RG_U8 };
    rg_opts_t o = RG_OPTS_INIT;
    rg_request_t *op;
    o.tag = tag;
    rg_status_t st = rg_usable(h);
    if (st != RG_OK) return st;
    rg_group_t *g = rg_root(h);
    rg_lock(g);
    st = rg_call_make_refused(h, &c, &o, why, text, &op);
    if (st == RG_OK) {
        op->blocking = 1;
        st = rg_op_submit(op);
        if (st != RG_OK) rg_op_free(op);
        else {
            if (g->driver == RG_DRIVER_CALLER) rg_wake(g);
            rg_drive(g, op_finished, op, UINT64_MAX);
            st = op->ended;
            rg_op_free(op);
        }
    }
    if (st != RG_ERR_NOMEM && st != RG_ERR_RESOURCE) rg_group_set_errmsg(h, "%s", text);
    rg_unlock(g);
    return st;
}

rg_status_t rg_call_run(rg_group_t *h, const rg_call_t *c, const rg_opts_t *opts, rg_request_t **req) {
    rg_opts_t o = RG_OPTS_INIT;
    rg_request_t *op;
    uint32_t sent = 0;
    if (req) *req = NULL;
    rg_status_t st = rg_usable(h);
    if (st != RG_OK) return st;
    rg_status_t wrong = rg_call_opts(h, c, opts, !req, &o);
    rg_group_t *g = rg_root(h);
    rg_lock(g);
    if (wrong == RG_OK && !req && quick(h, c, &o, &sent)) {
        rg_unlock(g);
        return RG_OK;
    }
    st = wrong == RG_OK ? rg_call_make(h, c, &o, &op) : rg_call_make_refused(h, c, opts, wrong, NULL, &op);
    if (st == RG_OK) {
        op->presend = sent;
        op->blocking = !req;
        st = rg_op_submit(op);
        if (st != RG_OK) rg_op_free(op);
    }
    int begun = st == RG_OK;
    if (sent && !begun) /* the others have its message, and would match the next call's with it */
        rg_group_over(g, RG_ERR_BUG, "an operation that had been sent could not be started");
    if (begun && !req) {
        if (g->driver == RG_DRIVER_CALLER) rg_wake(g);              /* it may sleep on what was wanted before */
        st = rg_call_collect(op, wrong == RG_OK ? o.result : NULL); /* which may be what is wrong */
    } else if (begun && op->refused != RG_OK) {
        st = op->refused;
        if (op->state == RG_OPS_FINISHED) rg_op_free(op);
        else {
            op->orphan = 1; /* its end is for the others */
            rg_call_started(op);
        }
    } else if (begun) {
        *req = op;
        rg_call_started(op);
    }
    rg_unlock(g);
    return (begun && wrong == RG_OK) || req ? st : refused(h, &o, st);
}

/* ---- The operations ---------------------------------------------------------------------------------------------- */

rg_status_t rg_all_reduce(rg_group_t *g, const void *in, void *out, uint64_t count, rg_dtype_t dtype, rg_op_t op,
                          const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_ALL_REDUCE, .in = in, .out = out, .count = count, .dtype = dtype, .op = op };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_broadcast(rg_group_t *g, void *buf, uint64_t count, rg_dtype_t dtype, uint32_t root,
                         const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = {
        .kind = RG_KIND_BROADCAST, .in = buf, .out = buf, .count = count, .dtype = dtype, .root = root
    };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_reduce(rg_group_t *g, const void *in, void *out, uint64_t count, rg_dtype_t dtype, rg_op_t op,
                      uint32_t root, const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = {
        .kind = RG_KIND_REDUCE, .in = in, .out = out, .count = count, .dtype = dtype, .op = op, .root = root
    };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_all_gather(rg_group_t *g, const void *in, void *out, uint64_t count, rg_dtype_t dtype,
                          const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_ALL_GATHER, .in = in, .out = out, .count = count, .dtype = dtype };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_all_gather_v(rg_group_t *g, const void *in, void *out, const uint64_t *counts, const uint64_t *offs,
                            rg_dtype_t dtype, const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = {
        .kind = RG_KIND_ALL_GATHER, .in = in, .out = out, .v = 1, .counts = counts, .offs = offs, .dtype = dtype
    };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_reduce_scatter(rg_group_t *g, const void *in, void *out, uint64_t count, rg_dtype_t dtype, rg_op_t op,
                              const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = {
        .kind = RG_KIND_REDUCE_SCATTER, .in = in, .out = out, .count = count, .dtype = dtype, .op = op
    };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_reduce_scatter_v(rg_group_t *g, const void *in, void *out, const uint64_t *counts, const uint64_t *offs,
                                rg_dtype_t dtype, rg_op_t op, const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_REDUCE_SCATTER,
                          .in = in,
                          .out = out,
                          .v = 1,
                          .counts = counts,
                          .offs = offs,
                          .dtype = dtype,
                          .op = op };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_gather(rg_group_t *g, const void *in, void *out, uint64_t count, rg_dtype_t dtype, uint32_t root,
                      const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_GATHER, .in = in, .out = out, .count = count, .dtype = dtype, .root = root };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_gather_v(rg_group_t *g, const void *in, void *out, const uint64_t *counts, const uint64_t *offs,
                        rg_dtype_t dtype, uint32_t root, const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_GATHER,
                          .in = in,
                          .out = out,
                          .v = 1,
                          .counts = counts,
                          .offs = offs,
                          .dtype = dtype,
                          .root = root };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_scatter(rg_group_t *g, const void *in, void *out, uint64_t count, rg_dtype_t dtype, uint32_t root,
                       const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_SCATTER, .in = in, .out = out, .count = count, .dtype = dtype, .root = root };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_scatter_v(rg_group_t *g, const void *in, void *out, const uint64_t *counts, const uint64_t *offs,
                         rg_dtype_t dtype, uint32_t root, const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_SCATTER,
                          .in = in,
                          .out = out,
                          .v = 1,
                          .counts = counts,
                          .offs = offs,
                          .dtype = dtype,
                          .root = root };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_all_to_all(rg_group_t *g, const void *in, void *out, uint64_t count, rg_dtype_t dtype,
                          const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_ALL_TO_ALL, .in = in, .out = out, .count = count, .dtype = dtype };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_all_to_all_v(rg_group_t *g, const void *in, const uint64_t *in_counts, const uint64_t *in_offs,
                            void *out, const uint64_t *out_counts, const uint64_t *out_offs, rg_dtype_t dtype,
                            const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_ALL_TO_ALL,
                          .in = in,
                          .out = out,
                          .v = 1,
                          .counts = out_counts,
                          .offs = out_offs,
                          .in_counts = in_counts,
                          .in_offs = in_offs,
                          .dtype = dtype };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_barrier(rg_group_t *g, const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_BARRIER, .dtype = RG_U8 };
    return rg_call_run(g, &c, opts, req);
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

rg_status_t rg_wait(rg_request_t *op, rg_result_t *result) {
    if (!op || rg_result_check(result, NULL) != RG_OK) return RG_ERR_INVALID;
    rg_group_t *g = op->g;
    if (rg_group_inherited(g)) return RG_ERR_CLOSED;
    rg_lock(g);
    rg_status_t st = op->taken && !op->blocking ? rg_call_collect(op, result) : RG_ERR_CLOSED;
    rg_unlock(g);
    return st;
}

rg_status_t rg_test(rg_request_t *op, rg_result_t *result) {
    if (!op || rg_result_check(result, NULL) != RG_OK) return RG_ERR_INVALID;
    rg_group_t *g = op->g;
    if (rg_group_inherited(g)) return RG_ERR_CLOSED;
    rg_lock(g);
    rg_status_t st = RG_AGAIN;
    if (!op->taken || op->blocking) {
        st = RG_ERR_CLOSED;
    } else {
        if (op->state != RG_OPS_FINISHED && g->driver != RG_DRIVER_CALLER)
            rg_help(g); /* so that testing alone makes progress, without a thread too */
        if (op->state == RG_OPS_FINISHED) st = rg_call_collect(op, result);
    }
    rg_unlock(g);
    return st;
}

rg_status_t rg_cancel(rg_request_t *op) {
    if (!op) return RG_ERR_INVALID;
    rg_group_t *g = op->g;
    if (rg_group_inherited(g)) return RG_ERR_CLOSED;
    rg_lock(g);
    rg_status_t st = op->taken && !op->blocking ? RG_OK : RG_ERR_CLOSED;
    if (st == RG_OK && op->state != RG_OPS_FINISHED) {
        if (!op->batch_first) rg_op_fail(op, RG_ERR_CANCELLED, g->self_id, "cancelled by a member");
        for (rg_request_t *part = op->batch_first; part; part = part->batch_next)
            rg_op_fail(part, RG_ERR_CANCELLED, g->self_id, "cancelled by a member");
        rg_wake(g);
    }
    rg_unlock(g);
    return st;
}
