/* service.c: see service.h. What the engine tells comes with the group's lock held and is only queued; the thread takes
 * the group's lock for no longer than a question or a look at the view takes. An answer that arrives is copied, under
 * the group's lock, once. It must not hold its own lock while it takes the group's. */
#include "assume.h"
#include "quorum/service.h"

#include "engine/lifecycle.h"
#include "os/os.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert(RG_SASK_BYTES == RG_SIDE_ASK, "a question of a port is one of the engine's");

#define LOOK_NS 100000000u      /* at the view, when nothing happens */
#define AGAIN_NS 5000000u       /* at what was put off */
#define UNSENT_MOST (16u << 20) /* bytes of answers that wait to leave to a peer; its questions then wait */

typedef struct rg_service_event {
    struct rg_service_event *next;
    int is_answer, refused;
    rg_asked_t a;    /* of an answer: whose, and to what */
    uint64_t serial; /* of an answer: of the port that asked */
    uint8_t *bytes;  /* of an answer */
} event_t;

/* A question of this process that waits for its answer. It becomes the event that tells of it, so that no answer is
 * lost for lack of memory. */
typedef struct rg_service_pending {
    event_t e; /* first: who frees the event frees this */
    struct rg_service_pending *next, **at;
    uint32_t len;
} pending_t;

/* ---- What the engine tells (locked) ------------------------------------------------------------------------------ */

static void push(rg_service_t *sv, event_t *e) {
    pthread_mutex_lock(&sv->lock);
    e->next = NULL;
    *sv->last = e;
    sv->last = &e->next;
    pthread_cond_signal(&sv->cond);
    pthread_mutex_unlock(&sv->lock);
}

static int on_asked(void *user, uint64_t peer, uint32_t nr, const uint8_t *ask) {
    rg_service_t *sv = user;
    event_t *e = calloc(1, sizeof *e);
    if (!e) return -1; /* a refusal would say that there is nothing here */
    if (!rg_sask_get(&e->a.q, ask)) {
        free(e);
        rg_side_answer(sv->g, RG_SIDE_SERVICE, peer, nr, NULL, 0);
        return 1;
    }
    e->a.peer = peer;
    e->a.nr = nr;
    push(sv, e);
    return 1;
}

/* What waits to be sent to a peer: there is an entry for each one with anything. Locked. */
static uint64_t *unsent_of(rg_service_t *sv, uint64_t peer) {
    for (uint32_t i = 0; i < sv->n_unsent; i++)
        if (sv->unsent[i].peer == peer) return &sv->unsent[i].bytes;
    return NULL;
}

/* Without memory for an entry it is not counted. Locked. */
static void unsent_add(rg_service_t *sv, uint64_t peer, uint32_t len) {
    uint64_t *n = unsent_of(sv, peer);
    if (!n && sv->n_unsent == sv->cap_unsent) {
        uint32_t cap = sv->cap_unsent ? 2 * sv->cap_unsent : 16;
        rg_unsent_t *grown = realloc(sv->unsent, cap * sizeof *grown);
        if (!grown) return;
        sv->unsent = grown;
        sv->cap_unsent = cap;
    }
    if (n) *n += len;
    else sv->unsent[sv->n_unsent++] = (rg_unsent_t){ peer, len };
}

static void unsent_sub(rg_service_t *sv, uint64_t peer, uint32_t len) {
    pthread_mutex_lock(&sv->lock);
    uint64_t *n = unsent_of(sv, peer);
    if (n && *n > len) *n -= len;
    else if (n) *(rg_unsent_t *)(void *)((uint8_t *)n - offsetof(rg_unsent_t, bytes)) = sv->unsent[--sv->n_unsent];
    if (sv->later) {
        sv->woken = 1;
        pthread_cond_signal(&sv->cond);
    }
    pthread_mutex_unlock(&sv->lock);
}

static void on_sent(void *user, uint64_t peer, uint32_t len) { unsent_sub(user, peer, len); }

static void pending_unlink(pending_t *p) {
    *p->at = p->next;
    if (p->next) p->next->at = p->at;
}

/* Without memory for its bytes the answer counts as lost: whoever asked is told so, and asks again. */
static void on_answer(void *user, uint64_t cookie, const uint8_t *answer) {
    rg_service_t *sv = user;
    pending_t *p = (pending_t *)(uintptr_t)cookie;
    pthread_mutex_lock(&sv->lock);
    pending_unlink(p);
    pthread_mutex_unlock(&sv->lock);
    p->e.refused = !answer && rg_side_refused(sv->g);
    if (answer && (p->e.bytes = malloc(p->len))) memcpy(p->e.bytes, answer, p->len);
    push(sv, &p->e);
}

/* ---- Asking and answering ---------------------------------------------------------------------------------------- */

/* What another thread than the driver gave to the transport: the driver may sleep on what was there before. */
static void nudge(rg_group_t *g) {
    rg_wake(g);
    if (g->driver == RG_DRIVER_NONE) rg_wake_thread(g);
}

int rg_service_ask(rg_port_t *port, uint64_t peer, const rg_sask_t *q, uint32_t answer_len) {
    rg_service_t *sv = port->sv;
    if (sv->line) return sv->line->ask(port, peer, q, answer_len);
    uint8_t raw[RG_SIDE_ASK];
    pending_t *p = malloc(sizeof *p);
    if (!p) return 0;
    *p = (pending_t){ .e = { .is_answer = 1, .a = { .peer = peer, .q = *q }, .serial = port->serial },
                      .len = answer_len };
    p->e.a.q.name = port->name;
    rg_sask_put(&p->e.a.q, raw);
    rg_lock(sv->g);
    if (sv->g->phase != RG_PHASE_MEMBER) {
        rg_unlock(sv->g);
        free(p);
        return 0;
    }
    pthread_mutex_lock(&sv->lock);
    p->next = sv->pending;
    p->at = &sv->pending;
    if (p->next) p->next->at = &p->next;
    sv->pending = p;
    pthread_mutex_unlock(&sv->lock);
    rg_status_t st = rg_side_ask(sv->g, peer, raw, answer_len, on_answer, sv, (uint64_t)(uintptr_t)p);
    if (st == RG_OK) nudge(sv->g);
    if (st != RG_OK) {
        pthread_mutex_lock(&sv->lock);
        pending_unlink(p);
        pthread_mutex_unlock(&sv->lock);
        free(p);
    }
    rg_unlock(sv->g);
    return st == RG_OK;
}

static void event_later(rg_service_t *sv, event_t *e) {
    pthread_mutex_lock(&sv->lock);
    e->next = sv->later;
    sv->later = e;
    pthread_mutex_unlock(&sv->lock);
}

/* Whether it is the question that its port is looking at. */
static int is_looked_at(const rg_service_t *sv, const rg_asked_t *a) {
    const event_t *now = sv->looked_at;
    return now && now->a.peer == a->peer && now->a.nr == a->nr;
}

/* For the end of a question that a port held: its event was put by when it was not answered at once. */
static event_t *event_of_held(rg_service_t *sv) {
    event_t *e = sv->spare;
    if (e) sv->spare = e->next;
    return e;
}

/* A question that there was no memory to answer counts as one that comes again a little later: a refusal would be an
 * answer. */
static void put_off(rg_service_t *sv, const rg_asked_t *a) {
    if (is_looked_at(sv, a)) {
        sv->again = 1;
        return;
    }
    event_t *e = event_of_held(sv);
    if (!e) return; /* it was answered before */
    e->a = *a;
    event_later(sv, e);
}

void rg_service_answer(rg_port_t *p, const rg_asked_t *a, uint8_t *answer, uint32_t len) {
    rg_service_t *sv = p->sv;
    if (sv->line) {
        sv->line->answer(p, a, answer, len);
        return;
    }
    if (!answer && len) {
        put_off(sv, a);
        return;
    }
    if (answer) {
        pthread_mutex_lock(&sv->lock);
        unsent_add(sv, a->peer, len);
        pthread_mutex_unlock(&sv->lock);
    }
    if (is_looked_at(sv, a)) sv->answered = 1;
    else free(event_of_held(sv));
    rg_side_answer(sv->g, RG_SIDE_SERVICE, a->peer, a->nr, answer, len);
    rg_wake_thread(sv->g); /* where nobody drives, nobody looks at what is to be sent */
}

uint64_t rg_service_now(const rg_port_t *p) { return p->sv->line ? p->sv->line->now(p) : rg_os_now_ns(); }

uint8_t *rg_service_room(const rg_shead_t *h, uint64_t bytes) {
    uint8_t *to = malloc(RG_SERVICE_HEAD + bytes);
    if (to) rg_shead_put(h, to);
    return to;
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static rg_port_t *port_of(rg_service_t *sv, uint64_t name) {
    for (rg_port_t *p = sv->ports; p; p = p->next)
        if (p->name == name) return p;
    return NULL;
}

/* Ports are only removed when the thread is not busy. A peer that does not take its answers is not listened to. The
 * event of a question that the port holds is put by until it is answered. */
static void deliver(rg_service_t *sv, event_t *e) {
    pthread_mutex_lock(&sv->lock);
    rg_port_t *p = port_of(sv, e->a.q.name);
    const uint64_t *unsent = e->is_answer ? NULL : unsent_of(sv, e->a.peer);
    sv->again = unsent && *unsent >= UNSENT_MOST;
    pthread_mutex_unlock(&sv->lock);
    sv->looked_at = e->is_answer ? NULL : e;
    sv->answered = 0;
    if (e->is_answer && p && p->serial != e->serial) p = NULL; /* it was asked by one that is gone */
    if (sv->again) p = NULL;
    else if (p && e->is_answer) p->ops->answered(p, e->a.peer, &e->a.q, e->bytes, e->refused);
    else if (p) p->ops->asked(p, &e->a);
    else if (!e->is_answer) rg_side_answer(sv->g, RG_SIDE_SERVICE, e->a.peer, e->a.nr, NULL, 0);
    sv->looked_at = NULL;
    if (sv->again) {
        event_later(sv, e);
        return;
    }
    if (!e->is_answer && p && !sv->answered) {
        e->next = sv->spare;
        sv->spare = e;
        return;
    }
    free(e->bytes);
    free(e);
}

static void look_at_view(rg_service_t *sv) {
    rg_group_t *g = sv->g;
    rg_lock(g);
    const rg_core_view_t *v = g->phase == RG_PHASE_MEMBER ? rg_member_view(g->core) : NULL;
    sv->over = g->phase == RG_PHASE_MEMBER ? RG_OK : g->over != RG_OK ? g->over : RG_ERR_CLOSED;
    if (v && v->epoch != sv->epoch) {
        uint64_t *grown = v->n > sv->cap ? realloc(sv->ids, v->n * sizeof *grown) : sv->ids;
        if (grown) {
            sv->ids = grown;
            if (v->n > sv->cap) sv->cap = v->n;
            for (uint32_t i = 0; i < v->n; i++) sv->ids[i] = v->members[i].id;
            sv->n = v->n;
            sv->epoch = v->epoch;
        }
    }
    rg_unlock(g);
}

/* First what was put off, the oldest first. */
static event_t *take_events(rg_service_t *sv) {
    event_t *first = sv->first;
    while (sv->later) {
        event_t *e = sv->later;
        sv->later = e->next;
        e->next = first;
        first = e;
    }
    sv->first = NULL;
    sv->last = &sv->first;
    sv->woken = 0;
    return first;
}

/* One turn: everything that came, then every port's step. Gives the time of the next. */
static uint64_t turn(rg_service_t *sv, event_t *e) {
    look_at_view(sv);
    while (e) {
        event_t *next = e->next;
        deliver(sv, e);
        e = next;
    }
    look_at_view(sv);
    uint64_t now = rg_os_now_ns(), at = now + LOOK_NS;
    pthread_mutex_lock(&sv->lock);
    rg_port_t *p = sv->ports;
    pthread_mutex_unlock(&sv->lock);
    for (; p; p = p->next) { /* new ones come to the front */
        uint64_t t = p->ops->step(p, now);
        if (t < at) at = t;
    }
    return sv->later && now + AGAIN_NS < at ? now + AGAIN_NS : at;
}

static void *service_main(void *arg) {
    rg_service_t *sv = arg;
    uint64_t at = 0;
    pthread_mutex_lock(&sv->lock);
    while (!sv->stop) {
        if (sv->busy) { /* a port is being removed */
            pthread_cond_wait(&sv->cond, &sv->lock);
            continue;
        }
        if (!sv->first && !sv->woken && rg_os_now_ns() < at) {
            struct timespec ts = { (time_t)(at / 1000000000u), (long)(at % 1000000000u) };
            pthread_cond_timedwait(&sv->cond, &sv->lock, &ts);
            continue;
        }
        event_t *e = take_events(sv);
        sv->busy = 1;
        pthread_mutex_unlock(&sv->lock);
        at = turn(sv, e);
        pthread_mutex_lock(&sv->lock);
        sv->busy = 0;
        pthread_cond_broadcast(&sv->cond);
        while (sv->removing && !sv->stop) pthread_cond_wait(&sv->cond, &sv->lock);
    }
    pthread_mutex_unlock(&sv->lock);
    return NULL;
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static void events_free(event_t *e) {
    while (e) {
        event_t *next = e->next;
        free(e->bytes);
        free(e);
        e = next;
    }
}

static void service_free(rg_service_t *sv) {
    while (sv->pending) {
        pending_t *p = sv->pending;
        pending_unlink(p);
        RG_ASSUME(sv->pending != p);
        free(p);
    }
    events_free(sv->first);
    events_free(sv->later);
    events_free(sv->spare);
    free(sv->ids);
    free(sv->unsent);
    pthread_cond_destroy(&sv->cond);
    pthread_mutex_destroy(&sv->lock);
    free(sv);
}

static void thread_end(rg_service_t *sv) {
    pthread_mutex_lock(&sv->lock);
    sv->stop = 1;
    pthread_cond_broadcast(&sv->cond);
    pthread_mutex_unlock(&sv->lock);
    pthread_join(sv->thread, NULL);
}

/* Nothing of the engine reaches it any more. Locked by the group. */
static void detach(rg_service_t *sv) {
    rg_side_host(sv->g, RG_SIDE_SERVICE, NULL);
    rg_side_forget(sv->g, sv);
    sv->g->service = NULL;
}

/* The group is being destroyed before its ports, which then only wait to be destroyed, too. */
static void on_closing(void *user) {
    rg_service_t *sv = user;
    rg_lock(sv->g);
    detach(sv);
    rg_unlock(sv->g);
    thread_end(sv);
    pthread_mutex_lock(&sv->lock);
    while (sv->busy) pthread_cond_wait(&sv->cond, &sv->lock);
    sv->dead = 1;
    int last = sv->refs == 0;
    pthread_mutex_unlock(&sv->lock);
    if (last) service_free(sv);
}

static rg_service_t *service_new(rg_group_t *g) {
    rg_service_t *sv = calloc(1, sizeof *sv);
    if (!sv) return NULL;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&sv->cond, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&sv->lock, NULL);
    sv->g = g;
    sv->last = &sv->first;
    return sv;
}

/* The group's service, begun with the first port. Locked by the group. */
static rg_status_t service_get(rg_group_t *g, rg_service_t **out, rg_error_t *err) {
    *out = g->service;
    if (g->phase != RG_PHASE_MEMBER || g->leaving)
        return rg_fail(err, g->over ? g->over : RG_ERR_CLOSED, 0, "the group is over for this process");
    if (*out) return RG_OK;
    rg_service_t *sv = service_new(g);
    if (!sv) return rg_fail(err, RG_ERR_NOMEM, 0, "no memory; free some and call again");
    int rc = rg_os_thread(&sv->thread, service_main, sv);
    if (rc) {
        service_free(sv);
        return rg_fail(err, RG_ERR_SYSTEM, rc, "cannot start a thread: %s", strerror(rc));
    }
    const rg_side_host_t host = { sv, on_asked, on_sent, on_closing };
    rg_side_host(g, RG_SIDE_SERVICE, &host);
    *out = g->service = sv;
    return RG_OK;
}

rg_status_t rg_service_add(rg_group_t *g, rg_port_t *p, rg_error_t *err) {
    rg_service_t *sv;
    rg_lock(g);
    rg_status_t st = service_get(g, &sv, err);
    if (st == RG_OK) {
        pthread_mutex_lock(&sv->lock);
        if (port_of(sv, p->name)) {
            st = rg_fail(err, RG_ERR_INVALID, 0,
                         "this id is in use in this process; give each its own, the same on "
                         "all members");
        } else {
            p->sv = sv;
            p->serial = ++sv->serial;
            p->next = sv->ports;
            sv->ports = p;
            sv->refs++;
            sv->woken = 1;
            pthread_cond_broadcast(&sv->cond);
        }
        pthread_mutex_unlock(&sv->lock);
    }
    rg_unlock(g);
    return st;
}

void rg_service_remove(rg_port_t *p) {
    RG_OS_STAY;
    rg_service_t *sv = p->sv;
    pthread_mutex_lock(&sv->lock);
    sv->removing++;
    while (sv->busy && !sv->dead) pthread_cond_wait(&sv->cond, &sv->lock);
    sv->removing--;
    if (!sv->dead && p->ops->gone) {
        sv->busy = 1;
        pthread_mutex_unlock(&sv->lock);
        p->ops->gone(p);
        pthread_mutex_lock(&sv->lock);
        sv->busy = 0;
    }
    pthread_cond_broadcast(&sv->cond);
    rg_port_t **at = &sv->ports;
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    int last = --sv->refs == 0 && sv->dead;
    pthread_mutex_unlock(&sv->lock);
    if (last) service_free(sv); /* else it lives as long as the group */
}

/* ---- The program's side ------------------------------------------------------------------------------------------ */

void rg_service_wake(rg_port_t *p) {
    rg_service_t *sv = p->sv;
    pthread_mutex_lock(&sv->lock);
    sv->woken = 1;
    pthread_cond_broadcast(&sv->cond);
    pthread_mutex_unlock(&sv->lock);
}

void rg_service_tell(rg_port_t *p) {
    rg_group_t *g = p->sv->g;
    if (p->sv->line) {
        p->sv->line->tell(p);
        return;
    }
    rg_lock(g);
    rg_wake_callers(g);
    rg_wake(g);
    rg_unlock(g);
}

rg_status_t rg_service_wait(rg_port_t *p, int (*finished)(void *arg), void *arg, uint64_t deadline_ns) {
    rg_group_t *g = p->sv->g;
    rg_lock(g);
    rg_drive(g, finished, arg, deadline_ns);
    rg_status_t st = g->phase == RG_PHASE_MEMBER ? RG_OK : g->over != RG_OK ? g->over : RG_ERR_CLOSED;
    rg_unlock(g);
    return st;
}
