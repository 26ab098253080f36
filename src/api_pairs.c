/* api_pairs.c: messages between two members, alone and in batches. A batch belongs to the thread that began it and to
 * one handle; until it ends nothing of it is known to the engine. It relies on api_ops.c for the checks. */
#include "api.h"
#include "core/text.h"
#include "os/os.h"

#include <stdatomic.h>
#include <stdlib.h>

typedef struct noted {
    rg_call_t call;
    rg_opts_t opts;
    rg_strided_t in_strided, out_strided; /* copies: the caller's are read during the call only */
    rg_status_t refused;                  /* not RG_OK: the other end is to hear of it, in its turn */
    char why[RG_CORE_TEXT_MAX];
} noted_t;

/* Outlives the handle for as long as some thread has a batch there: that thread learns from it that the handle is gone,
 * whose address says nothing, as the next handle may have the same. */
struct rg_batch_mark {
    atomic_uint holders; /* the handle and every thread with a batch there */
    atomic_int gone;     /* the handle was destroyed */
};

/* Of the calling thread. */
static _Thread_local struct {
    rg_group_t *h; /* NULL: none was begun */
    struct rg_batch_mark *mark;
    uint32_t forks; /* when it was begun */
    noted_t *list;
    uint32_t n, cap;
} batch;

static void mark_put(struct rg_batch_mark *mark) {
    if (mark && atomic_fetch_sub(&mark->holders, 1) == 1) free(mark);
}

static void drop_batch(void) {
    mark_put(batch.mark);
    free(batch.list);
    batch.h = NULL;
    batch.mark = NULL;
    batch.list = NULL;
    batch.n = batch.cap = 0;
}

/* The handle that this thread has a batch on. One that another thread has destroyed, or that a fork has left to the
 * parent, has none any more. */
static rg_group_t *batch_on(void) {
    if (batch.h && (atomic_load(&batch.mark->gone) || batch.forks != rg_os_forks())) drop_batch();
    return batch.h;
}

static rg_status_t note(rg_group_t *h, const rg_call_t *c, const rg_opts_t *opts, rg_status_t wrong) {
    if (batch.n == batch.cap) {
        uint32_t cap = batch.cap ? batch.cap * 2 : 16;
        noted_t *grown = realloc(batch.list, cap * sizeof *grown);
        if (!grown) return rg_refuse(h, RG_ERR_NOMEM, "no memory for one more message of a batch");
        batch.list = grown;
        batch.cap = cap;
    }
    noted_t *x = &batch.list[batch.n];
    x->call = *c;
    x->refused = wrong != RG_OK ? wrong : rg_call_opts(h, c, opts, 0, &x->opts);
    if (x->refused != RG_OK) {
        x->opts = (rg_opts_t)RG_OPTS_INIT;
        if (opts) x->opts.tag = opts->tag;
        rg_group_errmsg(h, x->why, sizeof x->why);
        batch.n++;
        return x->refused;
    }
    x->opts.result = NULL;
    if (x->opts.in_strided) x->in_strided = *x->opts.in_strided;
    if (x->opts.out_strided) x->out_strided = *x->opts.out_strided;
    batch.n++;
    return RG_OK;
}

static rg_status_t message(rg_group_t *h, const rg_call_t *c, const rg_opts_t *opts, rg_request_t **req) {
    if (!h || batch_on() != h) return rg_call_run(h, c, opts, req);
    if (req) {
        *req = NULL;
        rg_refuse(h, RG_ERR_INVALID, "between rg_batch_begin and rg_batch_end req must be NULL: the batch has one");
    }
    return note(h, c, opts, req ? RG_ERR_INVALID : RG_OK);
}

rg_status_t rg_send(rg_group_t *g, const void *buf, uint64_t count, rg_dtype_t dtype, uint32_t peer,
                    const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_P2P, .in = buf, .count = count, .dtype = dtype, .root = peer, .sends = 1 };
    return message(g, &c, opts, req);
}

rg_status_t rg_recv(rg_group_t *g, void *buf, uint64_t count, rg_dtype_t dtype, uint32_t peer, const rg_opts_t *opts,
                    rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_P2P, .out = buf, .count = count, .dtype = dtype, .root = peer };
    return message(g, &c, opts, req);
}

rg_status_t rg_batch_begin(rg_group_t *h) {
    rg_status_t st = rg_usable(h);
    if (st != RG_OK) return st;
    if (batch_on()) return rg_refuse(h, RG_ERR_INVALID, "this thread has begun a batch already; end it first");
    rg_lock(rg_root(h));
    struct rg_batch_mark *mark = h->batch_mark;
    if (!mark && (mark = h->batch_mark = calloc(1, sizeof *mark))) atomic_store(&mark->holders, 1);
    if (mark) atomic_fetch_add(&mark->holders, 1);
    rg_unlock(rg_root(h));
    if (!mark) return rg_refuse(h, RG_ERR_NOMEM, "no memory for a batch");
    batch.h = h;
    batch.mark = mark;
    batch.forks = rg_os_forks();
    return RG_OK;
}

/* One whose arguments are wrong keeps its place, so that its other end does not take the next one for it. Where it is
 * not known which end that is, or it is this process, there is nobody to tell. */
static rg_status_t batch_make_one(rg_group_t *h, noted_t *x, rg_request_t **out) {
    rg_status_t st;
    if (x->opts.in_strided) x->opts.in_strided = &x->in_strided;
    if (x->opts.out_strided) x->opts.out_strided = &x->out_strided;
    if (x->refused != RG_OK) st = rg_call_make_refused(h, &x->call, &x->opts, x->refused, x->why, out);
    else st = rg_call_make(h, &x->call, &x->opts, out);
    if (!rg_refused_for_all(st)) return st;
    rg_request_t *op = *out = rg_op_alloc(h);
    if (!op) return RG_ERR_NOMEM;
    rg_op_refuse(op, st, h->errmsg);
    op->state = RG_OPS_FINISHED;
    op->res.status = st;
    return RG_OK;
}

/* Makes operations of all that was noted. Nothing has started when it fails. */
static rg_status_t batch_make(rg_group_t *h, int blocking, rg_request_t **out) {
    rg_group_t *g = rg_root(h);
    *out = NULL;
    if (g->n_open + batch.n > RG_CORE_MAX_OPS) {
        rg_group_set_errmsg(h, "a batch of %u messages: at most %u operations may be in flight; make smaller batches",
                            batch.n, RG_CORE_MAX_OPS);
        return RG_ERR_RESOURCE;
    }
    rg_request_t *all = rg_op_alloc(h), **tail;
    if (!all) return RG_ERR_NOMEM;
    all->blocking = blocking;
    all->state = RG_OPS_RUNNING;
    all->res.start_ns = rg_os_now_ns();
    all->batch_left = batch.n;
    tail = &all->batch_first;
    rg_status_t st = RG_OK;
    for (uint32_t i = 0; i < batch.n && st == RG_OK; i++) {
        st = batch_make_one(h, &batch.list[i], tail);
        if (st != RG_OK) break;
        (*tail)->blocking = blocking;
        (*tail)->batch = all;
        tail = &(*tail)->batch_next;
    }
    if (st == RG_OK) {
        *out = all;
        return RG_OK;
    }
    for (rg_request_t *op = all->batch_first, *next; op; op = next) {
        next = op->batch_next;
        rg_op_free(op);
    }
    rg_op_free(all);
    return st;
}

/* Starts all; one that is refused now ends with that status, while those before it run. */
static void batch_submit(rg_request_t *all) {
    all->batch_left++; /* not before the last has started */
    for (rg_request_t *op = all->batch_first; op; op = op->batch_next) {
        rg_status_t st = op->state == RG_OPS_FINISHED ? op->refused : rg_op_submit(op);
        if (st == RG_OK) continue;
        if (op->state != RG_OPS_FINISHED) rg_text_copy(op->res.text, sizeof op->res.text, op->h->errmsg);
        op->state = RG_OPS_FINISHED;
        op->res.status = st;
        rg_batch_part_ended(all);
    }
    rg_batch_part_ended(all);
}

/* The handle goes: what threads have begun there is not started, and must not stand in the way of their next batch. */
void rg_batch_forget(rg_group_t *h) {
    if (batch_on() == h) drop_batch();
    if (h->batch_mark) atomic_store(&h->batch_mark->gone, 1);
    mark_put(h->batch_mark);
    h->batch_mark = NULL;
}

rg_status_t rg_batch_end(rg_group_t *h, rg_request_t **req) {
    rg_request_t *all;
    if (req) *req = NULL;
    rg_status_t st = rg_usable(h);
    if (st != RG_OK) return st;
    if (batch_on() != h)
        return rg_refuse(h, RG_ERR_INVALID, "this thread has begun no batch on this group; see rg_batch_begin");
    rg_group_t *g = rg_root(h);
    batch.h = NULL; /* whatever comes of it */
    rg_lock(g);
    st = batch_make(h, !req, &all);
    if (st == RG_OK) {
        batch_submit(all);
        if (req) {
            *req = all;
            rg_call_started(all);
        } else {
            if (g->driver == RG_DRIVER_CALLER) rg_wake(g);
            st = rg_call_collect(all, NULL);
        }
    }
    rg_unlock(g);
    drop_batch();
    return st;
}

/* ---- For the library itself -------------------------------------------------------------------------------------- */

/* Its rank, or UINT32_MAX. Locked. */
static uint32_t rank_of(rg_group_t *h, uint64_t id) {
    rg_roster_t *r = rg_root(h)->phase == RG_PHASE_MEMBER && !h->ended ? rg_roster_for(h, h->gen) : NULL;
    uint32_t rank = UINT32_MAX;
    for (uint32_t i = 0; r && i < r->n; i++)
        if (r->ids[i] == id) rank = i;
    if (r) rg_roster_put(r);
    return rank;
}

rg_status_t rg_call_pair(rg_group_t *h, uint64_t id, rg_call_t *c, const rg_opts_t *opts, rg_request_t **req) {
    rg_opts_t o;
    *req = NULL;
    rg_status_t st = rg_usable(h);
    if (st == RG_OK) st = rg_call_opts(h, c, opts, 0, &o);
    if (st != RG_OK) return st;
    rg_group_t *g = rg_root(h);
    rg_request_t *op = NULL;
    rg_lock(g);
    c->root = rank_of(h, id);
    st = c->root == UINT32_MAX ? RG_ERR_PEER_LOST : rg_call_make(h, c, &o, &op);
    if (st == RG_OK) {
        st = rg_op_submit(op);
        if (st != RG_OK) rg_op_free(op);
    }
    if (st == RG_OK) {
        *req = op;
        rg_call_started(op);
    }
    rg_unlock(g);
    return st;
}

typedef struct any {
    rg_request_t *const *reqs;
    uint32_t n;
} any_t;

static int any_finished(void *arg) {
    const any_t *a = arg;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->reqs[i] && a->reqs[i]->state == RG_OPS_FINISHED) return 1;
    return 0;
}

void rg_wait_any(rg_group_t *h, rg_request_t *const *reqs, uint32_t n) {
    any_t a = { reqs, n };
    rg_group_t *g = rg_root(h);
    rg_lock(g);
    rg_drive(g, any_finished, &a, UINT64_MAX);
    rg_unlock(g);
}
