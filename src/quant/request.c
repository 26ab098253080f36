/* request.c: quantised collectives that do not block: a queue of calls and a thread for each quantiser that uses them,
 * which makes them one after the other as a blocking caller would. Relies on the caller to give them a tag of their
 * own, so that it does not matter when their operations come among others. It must not touch a quantiser while its
 * queue is empty: then it is the caller's. */
#include "quant/parts.h"

#include "os/os.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct rg_quant_request {
    rg_quant_worker_t *w;
    rg_quant_request_t *next;
    int kind, done;
    const float *in;
    float *out;
    uint64_t count;
    rg_op_t op;
    rg_opts_t o;
    rg_result_t r;
    rg_status_t status;
    uint64_t ids[]; /* of contributors */
};

struct rg_quant_worker {
    rg_quantiser_t *z;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, less;        /* there is something to do; something is done */
    rg_quant_request_t *first, *last; /* not yet waited for, in the order of the calls */
    uint32_t waiting;                 /* of them, not done */
    uint32_t forks;
    int stop;
};

static rg_quant_request_t *undone(const rg_quant_worker_t *w) {
    rg_quant_request_t *q = w->first;
    while (q != NULL && q->done) q = q->next;
    return q;
}

static void *work(void *arg) {
    rg_quant_worker_t *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        rg_quant_request_t *q = undone(w);
        if (w->stop) break;
        if (q == NULL) {
            pthread_cond_wait(&w->more, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        rg_status_t st = rg_quant_run(w->z, q->kind, q->in, q->out, q->count, q->op, &q->o);
        pthread_mutex_lock(&w->lock);
        q->status = st;
        q->r.status = st;
        if (st != RG_OK && q->r.text[0] == 0) rg_group_errmsg(w->z->g, q->r.text, sizeof q->r.text);
        q->done = 1;
        w->waiting--;
        pthread_cond_broadcast(&w->less);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* The program's signal handlers stay on the program's threads. */
static rg_quant_worker_t *worker_start(rg_quantiser_t *z, int *rc) {
    sigset_t all, was;
    rg_quant_worker_t *w = calloc(1, sizeof *w);
    *rc = 0;
    if (w == NULL) return NULL;
    w->z = z;
    w->forks = rg_os_forks();
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    pthread_cond_init(&w->less, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &was);
    *rc = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    if (*rc == 0) return w;
    free(w);
    return NULL;
}

/* In a child of fork() nobody is at work, and the lock may be taken for ever. */
int rg_quant_busy(const rg_quantiser_t *z) {
    rg_quant_worker_t *w = z->worker;
    if (w == NULL || w->forks != rg_os_forks()) return 0;
    pthread_mutex_lock(&w->lock);
    int busy = w->waiting != 0;
    pthread_mutex_unlock(&w->lock);
    return busy;
}

/* A child of fork() has neither the thread nor a right to its lock. */
void rg_quant_worker_end(rg_quantiser_t *z) {
    rg_quant_worker_t *w = z->worker;
    if (w == NULL || w->forks != rg_os_forks()) return;
    pthread_mutex_lock(&w->lock);
    w->stop = 1;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    for (rg_quant_request_t *q = w->first, *next; q != NULL; q = next) {
        next = q->next;
        free(q);
    }
    pthread_cond_destroy(&w->more);
    pthread_cond_destroy(&w->less);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* ---- Requests ------------------------------------------------------------------------------------------------- */

/* A request for a call, with room for the ids of as many contributors as there are members now. */
static rg_status_t request_make(rg_quantiser_t *z, const rg_quant_request_t *call, const rg_opts_t *opts,
                                rg_quant_request_t **out) {
    static const rg_result_t none = RG_RESULT_INIT;
    uint32_t n, rank;
    uint64_t epoch;
    rg_opts_t o;
    rg_error_t err;
    rg_status_t st = opts != NULL ? rg_struct_in(&o, sizeof o, RG_OPTS_SIZE_FIRST, opts, "rg_opts", &err) : RG_OK;
    if (st != RG_OK) return rg_refuse(z->g, st, "%s", err.text);
    if (opts == NULL || o.tag == 0)
        return rg_refuse(z->g, RG_ERR_INVALID,
                         "a quantised request needs opts with a tag that nothing else uses meanwhile: its operations "
                         "run beside those of the program");
    st = rg_shape(z->g, &n, &rank, &epoch);
    if (st != RG_OK) return st;
    rg_quant_request_t *q = malloc(sizeof *q + n * sizeof *q->ids);
    if (q == NULL) return rg_refuse(z->g, RG_ERR_NOMEM, "a quantised request: no memory");
    *q = *call;
    q->o = o;
    q->r = none;
    q->r.contributor_ids = q->ids;
    q->r.contributor_cap = n;
    q->o.result = &q->r;
    *out = q;
    return RG_OK;
}

static rg_status_t start(rg_quantiser_t *z, const rg_quant_request_t *call, const rg_opts_t *opts,
                         rg_quant_request_t **req) {
    if (req != NULL) *req = NULL;
    if (z == NULL) return RG_ERR_INVALID;
    if (req == NULL) return rg_refuse(z->g, RG_ERR_INVALID, "a quantised request: req is NULL");
    int rc = 0;
    rg_quant_request_t *q;
    rg_status_t st = request_make(z, call, opts, &q);
    if (st != RG_OK) return st;
    if (z->worker == NULL) z->worker = worker_start(z, &rc);
    rg_quant_worker_t *w = z->worker;
    if (w == NULL || w->forks != rg_os_forks()) {
        free(q);
        if (w != NULL) return RG_ERR_CLOSED;
        return rc != 0 ? rg_refuse(z->g, RG_ERR_SYSTEM, "a quantised request: no thread: %s", strerror(rc))
                       : rg_refuse(z->g, RG_ERR_NOMEM, "a quantised request: no memory");
    }
    q->w = w;
    pthread_mutex_lock(&w->lock);
    if (w->last != NULL) w->last->next = q;
    else w->first = q;
    w->last = q;
    w->waiting++;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
    *req = q;
    return RG_OK;
}

/* Of a request that is done. Locked; unlocks. */
static rg_status_t collect(rg_quant_request_t *q, rg_result_t *result) {
    rg_quant_worker_t *w = q->w;
    rg_quant_request_t *before = NULL;
    for (rg_quant_request_t *i = w->first; i != q; i = i->next) before = i;
    if (before != NULL) before->next = q->next;
    else w->first = q->next;
    if (w->last == q) w->last = before;
    pthread_mutex_unlock(&w->lock);
    rg_status_t st = q->status;
    if (result != NULL) rg_result_out(result, &q->r, q->ids, q->r.contributors);
    free(q);
    return st;
}

rg_status_t rg_quant_wait(rg_quant_request_t *req, rg_result_t *result) {
    if (req == NULL || (result != NULL && rg_result_check(result, NULL) != RG_OK)) return RG_ERR_INVALID;
    if (req->w->forks != rg_os_forks()) return RG_ERR_CLOSED;
    pthread_mutex_lock(&req->w->lock);
    while (!req->done) pthread_cond_wait(&req->w->less, &req->w->lock);
    return collect(req, result);
}

rg_status_t rg_quant_test(rg_quant_request_t *req, rg_result_t *result) {
    if (req == NULL || (result != NULL && rg_result_check(result, NULL) != RG_OK)) return RG_ERR_INVALID;
    if (req->w->forks != rg_os_forks()) return RG_ERR_CLOSED;
    pthread_mutex_lock(&req->w->lock);
    if (req->done) return collect(req, result);
    pthread_mutex_unlock(&req->w->lock);
    return RG_AGAIN;
}

rg_status_t rg_quant_iall_reduce(rg_quantiser_t *z, const float *in, float *out, uint64_t count, rg_op_t op,
                                 const rg_opts_t *opts, rg_quant_request_t **req) {
    const rg_quant_request_t q = { .kind = RG_QUANT_ALL_REDUCE, .in = in, .out = out, .count = count, .op = op };
    return start(z, &q, opts, req);
}

rg_status_t rg_quant_ireduce_scatter(rg_quantiser_t *z, const float *in, float *out, uint64_t count, rg_op_t op,
                                     const rg_opts_t *opts, rg_quant_request_t **req) {
    const rg_quant_request_t q = { .kind = RG_QUANT_REDUCE_SCATTER, .in = in, .out = out, .count = count, .op = op };
    return start(z, &q, opts, req);
}

rg_status_t rg_quant_iall_gather(rg_quantiser_t *z, const float *in, float *out, uint64_t count, const rg_opts_t *opts,
                                 rg_quant_request_t **req) {
    const rg_quant_request_t q = { .kind = RG_QUANT_ALL_GATHER, .in = in, .out = out, .count = count, .op = RG_SUM };
    return start(z, &q, opts, req);
}
