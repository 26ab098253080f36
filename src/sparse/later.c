/* later.c: see later.h. Relies on the group's own requests for what may be cancelled. It must not touch a reducer or a
 * quantiser while its queue is empty: then it is the caller's. */
#include "sparse/later.h"

#include "os/os.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct rg_later {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, less;     /* there is something to do; something is done */
    rg_later_call_t *first, *last; /* not yet waited for, in the order of the calls */
    uint32_t waiting;              /* of them, not done */
    uint32_t forks;
    int stop;
};

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static rg_later_call_t *undone(const rg_later_t *w) {
    rg_later_call_t *c = w->first;
    while (c != NULL && c->done) c = c->next;
    return c;
}

static void *work(void *arg) {
    rg_later_t *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        rg_later_call_t *c = undone(w);
        if (w->stop) break;
        if (c == NULL) {
            pthread_cond_wait(&w->more, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        rg_status_t st = c->run(c);
        pthread_mutex_lock(&w->lock);
        c->status = st;
        c->r.status = st;
        if (st != RG_OK && c->r.text[0] == 0) rg_group_errmsg(c->g, c->r.text, sizeof c->r.text);
        c->done = 1;
        w->waiting--;
        pthread_cond_broadcast(&w->less);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static rg_later_t *queue_make(int *rc) {
    rg_later_t *w = calloc(1, sizeof *w);
    *rc = 0;
    if (w == NULL) return NULL;
    w->forks = rg_os_forks();
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    pthread_cond_init(&w->less, NULL);
    *rc = rg_os_thread(&w->thread, work, w);
    if (*rc == 0) return w;
    free(w);
    return NULL;
}

static void call_free(rg_later_call_t *c) {
    pthread_mutex_destroy(&c->stop.lock);
    free(c);
}

/* In a child of fork() nobody is at work, and the lock may be taken for ever. */
int rg_later_busy(const rg_later_t *queue) {
    rg_later_t *w = (rg_later_t *)queue;
    if (w == NULL || w->forks != rg_os_forks()) return 0;
    pthread_mutex_lock(&w->lock);
    int busy = w->waiting != 0;
    pthread_mutex_unlock(&w->lock);
    return busy;
}

static int has_undone(const rg_later_t *w, uint32_t tag) {
    for (const rg_later_call_t *c = w->first; c != NULL; c = c->next)
        if (!c->done && c->o.tag == tag) return 1;
    return 0;
}

/* Their operations come before those of a call that is made now: the other members have made them in this order. */
static void await_tag(rg_later_t *w, uint32_t tag) {
    RG_OS_STAY;
    if (w == NULL || w->forks != rg_os_forks()) return;
    pthread_mutex_lock(&w->lock);
    while (has_undone(w, tag)) pthread_cond_wait(&w->less, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

rg_status_t rg_later_turn_down(rg_later_t *queue, rg_group_t *g, const rg_opts_t *opts, rg_status_t st, int retries) {
    char text[sizeof((rg_result_t *)0)->text];
    if (!rg_refused_for_all(st)) return st;
    rg_group_errmsg(g, text, sizeof text);
    await_tag(queue, opts != NULL ? opts->tag : 0);
    rg_refuse(g, st, "%s", text); /* calls of the queue may have had something to say */
    return rg_frame_turn_down(g, opts, st, retries);
}

/* A child of fork() has neither the thread nor a right to its lock. */
void rg_later_end(rg_later_t *w) {
    RG_OS_STAY;
    if (w == NULL || w->forks != rg_os_forks()) return;
    pthread_mutex_lock(&w->lock);
    w->stop = 1;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    for (rg_later_call_t *c = w->first, *next; c != NULL; c = next) {
        next = c->next;
        call_free(c);
    }
    pthread_cond_destroy(&w->more);
    pthread_cond_destroy(&w->less);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

rg_status_t rg_later_make(rg_group_t *g, size_t size, const char *what, const rg_opts_t *opts, rg_later_call_t **out) {
    static const rg_result_t none = RG_RESULT_INIT;
    uint32_t n, rank;
    uint64_t epoch;
    rg_opts_t o;
    rg_error_t err;
    rg_status_t st = opts != NULL ? rg_struct_in(&o, sizeof o, RG_OPTS_SIZE_FIRST, opts, "rg_opts", &err) : RG_OK;
    if (st != RG_OK) return rg_refuse(g, st, "%s", err.text);
    if (opts == NULL || o.tag == 0)
        return rg_refuse(g, RG_ERR_INVALID,
                         "%s needs opts with a tag that nothing else uses meanwhile: its operations run beside those "
                         "of the program",
                         what);
    st = rg_shape(g, &n, &rank, &epoch);
    if (st != RG_OK) return st;
    size = (size + 7) / 8 * 8;
    rg_later_call_t *c = calloc(1, size + n * sizeof *c->ids);
    if (c == NULL) return rg_refuse(g, RG_ERR_NOMEM, "%s: no memory", what);
    c->g = g;
    c->ids = (uint64_t *)((uint8_t *)c + size);
    c->o = o;
    c->r = none;
    c->r.contributor_ids = c->ids;
    c->r.contributor_cap = n;
    c->o.result = &c->r;
    pthread_mutex_init(&c->stop.lock, NULL);
    *out = c;
    return RG_OK;
}

rg_status_t rg_later_start(rg_later_t **queue, rg_later_call_t *c, const char *what) {
    int rc = 0;
    rg_status_t st = RG_OK;
    if (*queue == NULL) *queue = queue_make(&rc);
    rg_later_t *w = *queue;
    if (w == NULL) st = rc != 0 ? RG_ERR_SYSTEM : RG_ERR_NOMEM;
    else if (w->forks != rg_os_forks()) st = RG_ERR_CLOSED;
    if (st != RG_OK) {
        rg_group_t *g = c->g;
        call_free(c);
        if (st == RG_ERR_CLOSED) return st;
        return rg_refuse(g, st, "%s: no %s%s", what, rc != 0 ? "thread: " : "memory", rc != 0 ? strerror(rc) : "");
    }
    c->queue = w;
    pthread_mutex_lock(&w->lock);
    if (w->last != NULL) w->last->next = c;
    else w->first = c;
    w->last = c;
    w->waiting++;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
    return RG_OK;
}

/* Of a call that is done. Locked; unlocks. */
static rg_status_t collect(rg_later_call_t *c, rg_result_t *result) {
    rg_later_t *w = c->queue;
    rg_later_call_t *before = NULL;
    for (rg_later_call_t *i = w->first; i != c; i = i->next) before = i;
    if (before != NULL) before->next = c->next;
    else w->first = c->next;
    if (w->last == c) w->last = before;
    pthread_mutex_unlock(&w->lock);
    rg_status_t st = c->status;
    if (result != NULL) rg_result_out(result, &c->r, c->ids, c->r.contributors);
    call_free(c);
    return st;
}

static rg_status_t usable(const rg_later_call_t *c, const rg_result_t *result) {
    if (c == NULL || (result != NULL && rg_result_check(result, NULL) != RG_OK)) return RG_ERR_INVALID;
    return c->queue->forks != rg_os_forks() ? RG_ERR_CLOSED : RG_OK;
}

rg_status_t rg_later_wait(rg_later_call_t *c, rg_result_t *result) {
    RG_OS_STAY;
    rg_status_t st = usable(c, result);
    if (st != RG_OK) return st;
    pthread_mutex_lock(&c->queue->lock);
    while (!c->done) pthread_cond_wait(&c->queue->less, &c->queue->lock);
    return collect(c, result);
}

rg_status_t rg_later_test(rg_later_call_t *c, rg_result_t *result) {
    rg_status_t st = usable(c, result);
    if (st != RG_OK) return st;
    pthread_mutex_lock(&c->queue->lock);
    if (c->done) return collect(c, result);
    pthread_mutex_unlock(&c->queue->lock);
    return RG_AGAIN;
}

/* A call that has not begun is begun all the same, when its turn comes: the other members wait for its operations, of
 * which the first is cancelled. */
rg_status_t rg_later_cancel(rg_later_call_t *c) {
    rg_status_t st = usable(c, NULL);
    if (st != RG_OK) return st;
    pthread_mutex_lock(&c->stop.lock);
    c->stop.asked = 1;
    if (c->stop.req != NULL) rg_cancel(c->stop.req);
    pthread_mutex_unlock(&c->stop.lock);
    return RG_OK;
}
