/* window.c: the public functions of windows (include/regroup_window.h). A call is put into a list that the service's
 * thread works off, and its caller drives the group meanwhile; what a caller gives up is out of the list before its
 * buffers are its own again. It must not touch what the thread owns (window.h). */
#include "quorum/window.h"

#include "api.h"
#include "config.h"
#include "engine/lifecycle.h"
#include "os/os.h"

#include <stdlib.h>
#include <string.h>

#define NAME_WINDOW 0x57ull

static float nothing; /* the memory of a window without elements */

static uint64_t name_of(uint64_t set, uint32_t id) {
    uint64_t h = (set ^ NAME_WINDOW * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 31 ^ id) * 0x94d049bb133111ebu;
    return h ^ h >> 29;
}

static void window_free(rg_window_t *w) {
    rg_window_forget(w);
    pthread_mutex_destroy(&w->m);
    pthread_mutex_destroy(&w->memory_lock);
    rg_free_memory(w->stamp);
    free(w);
}

rg_status_t rg_window_register(rg_group_t *h, uint32_t id, float *memory, uint64_t count, rg_window_t **out,
                               rg_error_t *err) {
    if (!out || (!memory && count))
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_window_register: %s is NULL", out ? "memory" : "out");
    *out = NULL;
    rg_status_t st = rg_usable(h);
    if (st != RG_OK) return rg_fail(err, st, 0, "rg_window_register: group: %s", rg_strerror(st));
    if (count > UINT64_MAX / 1024)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_window_register: %llu elements are more than any memory",
                       (unsigned long long)count);
    rg_window_t *w = calloc(1, sizeof *w);
    if (!w) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_window_register: no memory");
    pthread_mutex_init(&w->m, NULL);
    pthread_mutex_init(&w->memory_lock, NULL);
    w->port.ops = &rg_window_port;
    w->port.name = name_of(h->set, id);
    w->memory = memory ? memory : &nothing;
    w->forks = rg_os_forks();
    w->bytes = count * sizeof *memory;
    w->last_call = &w->calls;
    w->self = rg_root(h)->self_id;   /* it never changes once the group is joined */
    w->next_number = rg_os_now_ns(); /* above all numbers of a window that had this id before */
    rg_window_lend(w, rg_root(h));
    st = rg_service_add(rg_root(h), &w->port, err);
    if (st != RG_OK) window_free(w);
    else *out = w;
    return st;
}

void rg_window_destroy(rg_window_t *w) {
    if (!w || (!w->port.sv->dead && rg_group_inherited(w->port.sv->g))) return;
    rg_group_t *g = w->port.sv->dead ? NULL : w->port.sv->g;
    rg_service_remove(&w->port);
    rg_window_unlend(w, g);
    window_free(w);
}

/* In a forked child nobody adds anything, and the lock may be that of a thread that the child does not have. */
static int inherited(const rg_window_t *w) { return w->forks != rg_os_forks(); }

void rg_window_lock(rg_window_t *w) {
    if (!w || inherited(w)) return;
    pthread_mutex_lock(&w->memory_lock);
    rg_window_changes(w);
}

void rg_window_unlock(rg_window_t *w) {
    if (!w || inherited(w)) return;
    rg_window_settled(w);
    pthread_mutex_unlock(&w->memory_lock);
    if (!w->port.sv->dead) rg_service_wake(&w->port);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static rg_status_t usable(rg_window_t *w) {
    if (!w) return RG_ERR_INVALID;
    if (w->port.sv->dead || rg_group_inherited(w->port.sv->g)) return RG_ERR_CLOSED;
    return RG_OK;
}

static rg_status_t refuse(rg_window_t *w, rg_status_t st, const char *what, uint64_t peer) {
    rg_group_t *g = w->port.sv->g;
    rg_lock(g);
    rg_group_set_errmsg(g, "window of member %llu: %s", (unsigned long long)peer, what);
    rg_unlock(g);
    return st;
}

static const char *text_of(rg_status_t st) {
    switch (st) {
    case RG_ERR_INVALID: return "the elements asked for are beyond its end";
    case RG_ERR_TIMEOUT: return "it does not answer within the time, or has no window of this id";
    case RG_ERR_PEER_LOST: return "there is no such member, or it was lost";
    default: return rg_strerror(st);
    }
}

static uint64_t deadline(const rg_window_t *w, uint32_t timeout_ms) {
    return rg_os_now_ns() + (timeout_ms ? timeout_ms : w->port.sv->g->cfg.op_timeout_ms) * 1000000ull;
}

static int is_done(void *arg) { return atomic_load(&((rg_wcall_t *)arg)->done); }

static rg_status_t call_run(rg_window_t *w, rg_wcall_t *c, uint64_t until) {
    atomic_init(&c->done, 0);
    pthread_mutex_lock(&w->m);
    c->number = ++w->next_number;
    c->next = NULL;
    *w->last_call = c;
    w->last_call = &c->next;
    pthread_mutex_unlock(&w->m);
    rg_service_wake(&w->port);
    rg_status_t st = rg_service_wait(&w->port, is_done, c, until);
    pthread_mutex_lock(&w->m);
    if (!is_done(c)) {
        c->status = st != RG_OK ? st : RG_ERR_TIMEOUT;
        rg_wcall_t **at = &w->calls;
        while (*at != c) at = &(*at)->next;
        *at = c->next;
        if (!*at) w->last_call = at;
    }
    pthread_mutex_unlock(&w->m);
    return c->status == RG_OK ? RG_OK : refuse(w, c->status, text_of(c->status), c->peer);
}

/* Of a piece of this member's own window. */
static int beyond(const rg_window_t *w, uint64_t first, uint64_t count) {
    uint64_t n = w->bytes / sizeof *w->memory;
    return first > n || count > n - first;
}

static rg_status_t check(rg_window_t *w, uint64_t peer, const void *p, uint64_t first, uint64_t count) {
    rg_status_t st = usable(w);
    if (st != RG_OK) return st;
    if (!p && count) return refuse(w, RG_ERR_INVALID, "the pointer to the elements is NULL", peer);
    if (first > UINT64_MAX / 1024 || count > UINT64_MAX / 1024 || (peer == w->self && beyond(w, first, count)))
        return refuse(w, RG_ERR_INVALID, text_of(RG_ERR_INVALID), peer);
    return RG_OK;
}

typedef struct hold {
    rg_window_t *w;
    int has;
} hold_t;

static int is_held(void *arg) {
    hold_t *h = arg;
    if (!h->has) h->has = pthread_mutex_trylock(&h->w->memory_lock) == 0;
    return h->has;
}

/* Locks this member's own memory for one of its calls. The program may hold the lock for long, and the calling thread
 * itself may: either way the call ends in time, or with the group. */
static rg_status_t lock_own(rg_window_t *w, uint64_t until) {
    hold_t h = { w, 0 };
    uint64_t now = 0;
    rg_status_t st = RG_OK;
    while (!is_held(&h) && st == RG_OK && now < until) {
        now = rg_os_now_ns(); /* nobody tells of the lock, so it is tried now and then */
        st =
            rg_service_wait(&w->port, is_held, &h, until - now < RG_WINDOW_AGAIN_NS ? until : now + RG_WINDOW_AGAIN_NS);
    }
    if (h.has) return RG_OK;
    return refuse(w, st != RG_OK ? st : RG_ERR_TIMEOUT,
                  st != RG_OK ? text_of(st) : "this member's program has it locked (rg_window_lock) all the time",
                  w->self);
}

rg_status_t rg_window_get(rg_window_t *w, uint64_t peer, uint64_t first, uint64_t count, float *to, uint32_t timeout_ms,
                          uint64_t *version) {
    rg_status_t st = check(w, peer, to, first, count);
    if (st != RG_OK) return st;
    uint64_t until = deadline(w, timeout_ms), seen = 0;
    if (peer == w->self) {
        st = lock_own(w, until); /* nothing changes, so nobody who reads has to begin anew */
        if (st != RG_OK) return st;
        if (count) memcpy(to, w->memory + first, count * sizeof *to);
        if (version) *version = atomic_load(&w->count);
        pthread_mutex_unlock(&w->memory_lock);
        rg_service_wake(&w->port);
        return RG_OK;
    }
    if (rg_window_peek(w, peer, first * sizeof *to, count * sizeof *to, to, until, &seen)) {
        if (version) *version = seen;
        return RG_OK;
    }
    rg_wcall_t c = { .peer = peer, .off = first * sizeof *to, .bytes = count * sizeof *to, .to = (uint8_t *)to };
    st = call_run(w, &c, until);
    if (st == RG_OK && version) *version = c.version;
    return st;
}

rg_status_t rg_window_accumulate(rg_window_t *w, uint64_t peer, uint64_t first, uint64_t count, const float *from,
                                 float scale, uint32_t timeout_ms) {
    rg_status_t st = check(w, peer, from, first, count);
    if (st != RG_OK) return st;
    if (peer == w->self) {
        st = lock_own(w, deadline(w, timeout_ms));
        if (st != RG_OK) return st;
        rg_window_changes(w);
        rg_window_add(w->memory + first, from, count, scale);
        atomic_fetch_add(&w->count, 1);
        rg_window_unlock(w);
        rg_service_tell(&w->port);
        return RG_OK;
    }
    rg_wcall_t c = { .adds = 1,
                     .peer = peer,
                     .off = first * sizeof *from,
                     .bytes = count * sizeof *from,
                     .from = (const uint8_t *)from,
                     .scale = scale };
    return call_run(w, &c, deadline(w, timeout_ms));
}

uint64_t rg_window_count(rg_window_t *w) { return w ? atomic_load(&w->count) : 0; }

typedef struct awaited {
    rg_window_t *w;
    uint64_t count;
} awaited_t;

static int has_count(void *arg) {
    const awaited_t *a = arg;
    return atomic_load(&a->w->count) >= a->count;
}

rg_status_t rg_window_wait(rg_window_t *w, uint64_t count, uint32_t timeout_ms) {
    rg_status_t st = usable(w);
    if (st != RG_OK) return st;
    awaited_t a = { w, count };
    st = rg_service_wait(&w->port, has_count, &a, deadline(w, timeout_ms));
    if (has_count(&a)) return RG_OK;
    return refuse(w, st != RG_OK ? st : RG_ERR_TIMEOUT, "fewer accumulations came within the time", w->self);
}
