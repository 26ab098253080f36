/* serve_window.c: what the service's thread does for windows. A read of several pieces is answered from a copy, so that
 * it shows one moment; an addition is fetched as a whole, then done at once and remembered by its number, so that one
 * that is asked for again is not done twice. It must not wait for the program's lock on the memory: what needs it is
 * put off. */
#include "quorum/window.h"

#include "os/os.h"

#include <stdlib.h>
#include <string.h>

#define COPIES_PER_PEER 4u
#define READS_MOST 4096u /* that wait for the memory; others ask again */

static uint32_t chunk(uint64_t bytes, uint64_t off) {
    uint64_t left = off < bytes ? bytes - off : 0;
    return left < RG_SERVICE_CHUNK ? (uint32_t)left : RG_SERVICE_CHUNK;
}

static int is_member(const rg_window_t *w, uint64_t id) {
    for (uint32_t i = 0; i < w->port.sv->n; i++)
        if (w->port.sv->ids[i] == id) return 1;
    return 0;
}

/* What a question says of a piece of this window; its size travels in `terms`. */
static int fits(const rg_window_t *w, const rg_sask_t *q) {
    return q->off % 4 == 0 && q->terms % 4 == 0 && q->off <= w->bytes && q->terms <= w->bytes - q->off;
}

static void answer_head(rg_window_t *w, const rg_asked_t *a, rg_status_t st) {
    const rg_shead_t h = { .n = (uint32_t)st, .round = atomic_load(&w->count) };
    uint8_t *to = rg_service_room(&h, a->q.len);
    if (to) memset(to + RG_SERVICE_HEAD, 0, a->q.len);
    rg_service_answer(&w->port, a, to, RG_SERVICE_HEAD + a->q.len);
}

/* ---- Reads ------------------------------------------------------------------------------------------------------- */

static void answer_piece(rg_window_t *w, const rg_asked_t *a, uint64_t version, const uint8_t *from) {
    const rg_shead_t h = { .n = (uint32_t)RG_OK, .round = version };
    uint8_t *to = rg_service_room(&h, a->q.len);
    if (to && a->q.len) memcpy(to + RG_SERVICE_HEAD, from, a->q.len);
    rg_service_answer(&w->port, a, to, RG_SERVICE_HEAD + a->q.len);
}

static void copy_free(rg_wcopy_t **at) {
    rg_wcopy_t *c = *at;
    *at = c->next;
    free(c->data);
    free(c);
}

/* The oldest of a member's copies goes when it has too many: it has given up what it began. */
static void copies_trim(rg_window_t *w, uint64_t peer) {
    uint32_t n = 0;
    for (rg_wcopy_t **at = &w->copies; *at;) {
        n += (*at)->peer == peer;
        if ((*at)->peer == peer && n > COPIES_PER_PEER) copy_free(at);
        else at = &(*at)->next;
    }
}

/* The memory is locked. */
static void read_now(rg_window_t *w, const rg_asked_t *a) {
    const uint8_t *from = (const uint8_t *)w->memory + a->q.off;
    uint64_t version = atomic_load(&w->count);
    if (a->q.terms > a->q.len) {
        rg_wcopy_t *c = calloc(1, sizeof *c);
        if (c) c->data = malloc(a->q.terms);
        if (!c || !c->data) {
            free(c);
            answer_head(w, a, RG_ERR_NOMEM);
            return;
        }
        memcpy(c->data, from, a->q.terms);
        c->peer = a->peer;
        c->number = a->q.round;
        c->bytes = a->q.terms;
        c->version = version;
        c->next = w->copies;
        w->copies = c;
        copies_trim(w, a->peer);
    }
    answer_piece(w, a, version, from);
}

static void read_more(rg_window_t *w, const rg_asked_t *a) {
    rg_wcopy_t **at = &w->copies;
    while (*at && ((*at)->peer != a->peer || (*at)->number != a->q.round)) at = &(*at)->next;
    if (!*at || a->q.off > (*at)->bytes || a->q.len != chunk((*at)->bytes, a->q.off)) {
        rg_service_answer(&w->port, a, NULL, 0);
        return;
    }
    answer_piece(w, a, (*at)->version, (*at)->data + a->q.off);
    if (a->q.off + a->q.len == (*at)->bytes) copy_free(at);
}

static void read_later(rg_window_t *w, const rg_asked_t *a) {
    if (!fits(w, &a->q) || a->q.len != chunk(a->q.terms, 0)) {
        if (a->q.len <= RG_SERVICE_CHUNK) answer_head(w, a, RG_ERR_INVALID);
        else rg_service_answer(&w->port, a, NULL, 0);
        return;
    }
    if (w->n_reads == READS_MOST) {
        rg_service_answer(&w->port, a, NULL, 0);
        return;
    }
    if (w->n_reads == w->cap_reads) {
        uint32_t cap = w->cap_reads ? 2 * w->cap_reads : 16;
        rg_asked_t *grown = realloc(w->reads, cap * sizeof *grown);
        if (!grown) {
            answer_head(w, a, RG_ERR_NOMEM);
            return;
        }
        w->reads = grown;
        w->cap_reads = cap;
    }
    w->reads[w->n_reads++] = *a;
}

/* ---- Additions --------------------------------------------------------------------------------------------------- */

static rg_wlast_t *last_of(rg_window_t *w, uint64_t peer) {
    for (uint32_t i = 0; i < w->n_lasts; i++)
        if (w->lasts[i].peer == peer) return &w->lasts[i];
    if (w->n_lasts == w->cap_lasts) {
        uint32_t cap = w->cap_lasts ? 2 * w->cap_lasts : 16;
        rg_wlast_t *grown = realloc(w->lasts, cap * sizeof *grown);
        if (!grown) return NULL;
        w->lasts = grown;
        w->cap_lasts = cap;
    }
    w->lasts[w->n_lasts] = (rg_wlast_t){ .peer = peer };
    return &w->lasts[w->n_lasts++];
}

static void add_free(rg_wadd_t **at) {
    rg_wadd_t *x = *at;
    *at = x->next;
    free(x->data);
    free(x);
}

static void add_drop(rg_window_t *w, rg_wadd_t **at) {
    rg_service_answer(&w->port, &(*at)->a, NULL, 0);
    add_free(at);
}

static int add_load(rg_window_t *w, rg_wadd_t *x) {
    while (x->next_off < x->a.q.terms && x->flying < RG_WINDOW_UNDER_WAY) {
        const rg_sask_t ask = { .kind = RG_SASK_ADD_DATA,
                                .round = x->a.q.round,
                                .off = x->next_off,
                                .len = chunk(x->a.q.terms, x->next_off),
                                .turn = x->turn };
        if (!rg_service_ask(&w->port, x->a.peer, &ask, RG_SERVICE_HEAD + ask.len)) return 0;
        x->flying++;
        x->next_off += ask.len;
    }
    return 1;
}

static void add_begin(rg_window_t *w, const rg_asked_t *a) {
    rg_wlast_t *last = last_of(w, a->peer);
    if (a->q.len != 0 || !fits(w, &a->q)) {
        if (a->q.len == 0) answer_head(w, a, RG_ERR_INVALID);
        else rg_service_answer(&w->port, a, NULL, 0);
        return;
    }
    if (last && a->q.round <= last->number) { /* it was done, and the answer was lost */
        answer_head(w, a, RG_OK);
        return;
    }
    rg_wadd_t **at = &w->adds;
    while (*at && (*at)->a.peer != a->peer) at = &(*at)->next;
    if (*at) add_drop(w, at); /* one at a time: it has given up the one before, or asks again */
    rg_wadd_t *x = calloc(1, sizeof *x);
    if (x) x->data = malloc(a->q.terms ? a->q.terms : 1);
    if (!last || !x || !x->data) {
        if (x) free(x->data);
        free(x);
        answer_head(w, a, RG_ERR_NOMEM);
        return;
    }
    x->a = *a;
    x->turn = ++w->turn;
    x->next = w->adds;
    w->adds = x;
    if (!add_load(w, x)) add_drop(w, &w->adds);
}

static void add_data_came(rg_window_t *w, uint64_t peer, const rg_sask_t *ask, const uint8_t *bytes) {
    rg_wadd_t **at = &w->adds;
    while (*at && ((*at)->a.peer != peer || (*at)->turn != ask->turn)) at = &(*at)->next;
    if (!*at) return;
    rg_wadd_t *x = *at;
    x->flying--;
    if (bytes) {
        memcpy(x->data + ask->off, bytes + RG_SERVICE_HEAD, ask->len);
        x->have += ask->len;
    }
    if (!bytes || !add_load(w, x)) add_drop(w, at);
}

void rg_window_add(float *to, const float *from, uint64_t n, float scale) {
    for (uint64_t i = 0; i < n; i++) to[i] += scale * from[i];
}

/* The memory is locked. */
static int add_all(rg_window_t *w) {
    int any = 0;
    for (rg_wadd_t **at = &w->adds; *at;) {
        rg_wadd_t *x = *at;
        rg_wlast_t *last = last_of(w, x->a.peer);
        if (x->have < x->a.q.terms || !last) {
            at = &x->next;
            continue;
        }
        rg_window_changes(w);
        rg_window_add(w->memory + x->a.q.off / 4, (const float *)(const void *)x->data, x->a.q.terms / 4, x->a.q.scale);
        last->number = x->a.q.round;
        atomic_fetch_add(&w->count, 1);
        rg_window_settled(w); /* before anybody may count on it */
        answer_head(w, &x->a, RG_OK);
        add_free(at);
        any = 1;
    }
    return any;
}

static int wants_memory(const rg_window_t *w) {
    for (const rg_wadd_t *x = w->adds; x; x = x->next)
        if (x->have >= x->a.q.terms) return 1;
    return w->n_reads != 0;
}

/* ---- What this member's program wants (locked by m) -------------------------------------------------------------- */

static void call_end(rg_window_t *w, rg_wcall_t *c, rg_status_t st) {
    rg_wcall_t **at = &w->calls;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    if (!*at) w->last_call = at;
    c->status = st;
    atomic_store(&c->done, 1);
    w->ended = 1;
}

static rg_wcall_t *call_of(rg_window_t *w, uint64_t peer, uint64_t number) {
    for (rg_wcall_t *c = w->calls; c; c = c->next)
        if (c->peer == peer && c->number == number) return c;
    return NULL;
}

/* The first of the additions to a member goes, and all reads. */
static int may_begin(const rg_window_t *w, const rg_wcall_t *c) {
    const rg_wcall_t *k = w->calls;
    while (c->adds && k != c && (!k->adds || k->peer != c->peer)) k = k->next;
    return !c->adds || k == c;
}

static void call_begin(rg_window_t *w, rg_wcall_t *c, uint64_t now) {
    const rg_sask_t ask = { .kind = c->adds ? RG_SASK_ADD : RG_SASK_READ,
                            .terms = c->bytes,
                            .round = c->number,
                            .off = c->off,
                            .len = c->adds ? 0 : chunk(c->bytes, 0),
                            .scale = c->scale };
    c->again_ns = now + RG_WINDOW_AGAIN_NS;
    c->have = 0;
    c->flying = 0;
    c->next_off = ask.len;
    c->asked = rg_service_ask(&w->port, c->peer, &ask, RG_SERVICE_HEAD + ask.len);
}

static void calls_go_on(rg_window_t *w, uint64_t now, uint64_t *at) {
    for (rg_wcall_t *c = w->calls, *next; c; c = next) {
        next = c->next;
        if (w->port.sv->over || !is_member(w, c->peer)) {
            call_end(w, c, w->port.sv->over ? w->port.sv->over : RG_ERR_PEER_LOST);
            continue;
        }
        if (c->asked || c->flying || !may_begin(w, c)) continue;
        if (now >= c->again_ns) call_begin(w, c, now);
        if (!c->asked && c->again_ns < *at) *at = c->again_ns;
    }
}

/* A part is missing: a read begins anew, under a number of its own, because the copy may be gone. */
static void call_again(rg_window_t *w, rg_wcall_t *c) {
    c->asked = 0;
    c->flying = 0;
    if (!c->adds) c->number = ++w->next_number;
    c->again_ns = rg_os_now_ns() + RG_WINDOW_AGAIN_NS;
}

static void read_came(rg_window_t *w, rg_wcall_t *c, const rg_sask_t *ask, const uint8_t *bytes) {
    uint64_t off = ask->kind == RG_SASK_READ ? 0 : ask->off;
    if (ask->len) memcpy(c->to + off, bytes + RG_SERVICE_HEAD, ask->len);
    c->have += ask->len;
    while (c->next_off < c->bytes && c->flying < RG_WINDOW_UNDER_WAY) {
        const rg_sask_t more = {
            .kind = RG_SASK_READ_MORE, .round = c->number, .off = c->next_off, .len = chunk(c->bytes, c->next_off)
        };
        if (!rg_service_ask(&w->port, c->peer, &more, RG_SERVICE_HEAD + more.len)) {
            call_again(w, c);
            return;
        }
        c->flying++;
        c->next_off += more.len;
    }
    if (c->have >= c->bytes) call_end(w, c, RG_OK);
}

static void call_answered(rg_window_t *w, uint64_t peer, const rg_sask_t *ask, const uint8_t *bytes) {
    rg_wcall_t *c = call_of(w, peer, ask->round);
    rg_shead_t h = { 0 };
    if (!c) return;
    if (ask->kind == RG_SASK_READ_MORE) c->flying--;
    else c->asked = 0;
    if (!bytes) {
        call_again(w, c);
        return;
    }
    rg_shead_get(&h, bytes);
    rg_status_t st = (rg_status_t)(int32_t)h.n;
    c->version = h.round;
    if (st != RG_OK) call_end(w, c, st == RG_ERR_INVALID ? st : RG_ERR_NOMEM);
    else if (c->adds) call_end(w, c, RG_OK);
    else read_came(w, c, ask, bytes);
}

static void give_data(rg_window_t *w, const rg_asked_t *a) {
    const rg_wcall_t *c = call_of(w, a->peer, a->q.round);
    const rg_shead_t h = { .round = a->q.round };
    if (!c || !c->adds || a->q.off > c->bytes || a->q.len != chunk(c->bytes, a->q.off)) {
        rg_service_answer(&w->port, a, NULL, 0);
        return;
    }
    uint8_t *to = rg_service_room(&h, a->q.len);
    if (to && a->q.len) memcpy(to + RG_SERVICE_HEAD, c->from + a->q.off, a->q.len);
    rg_service_answer(&w->port, a, to, RG_SERVICE_HEAD + a->q.len);
}

/* ---- The port ---------------------------------------------------------------------------------------------------- */

static void asked(rg_port_t *p, const rg_asked_t *a) {
    rg_window_t *w = (rg_window_t *)(void *)p;
    if (!is_member(w, a->peer)) rg_service_answer(p, a, NULL, 0);
    else if (a->q.kind == RG_SASK_READ) {
        read_later(w, a);
        rg_window_lend_to(w, a->peer); /* it may do without us the next time */
    } else if (a->q.kind == RG_SASK_READ_MORE) read_more(w, a);
    else if (a->q.kind == RG_SASK_ADD) add_begin(w, a);
    else if (a->q.kind == RG_SASK_ADD_DATA) {
        pthread_mutex_lock(&w->m);
        give_data(w, a);
        pthread_mutex_unlock(&w->m);
    } else rg_service_answer(p, a, NULL, 0);
}

static void answered(rg_port_t *p, uint64_t peer, const rg_sask_t *ask, const uint8_t *bytes, int refused) {
    rg_window_t *w = (rg_window_t *)(void *)p;
    (void)refused;
    if (ask->kind == RG_SASK_ADD_DATA) {
        add_data_came(w, peer, ask, bytes);
        return;
    }
    pthread_mutex_lock(&w->m);
    call_answered(w, peer, ask, bytes);
    pthread_mutex_unlock(&w->m);
}

/* What those had begun who are no members any more. */
static void forget_the_lost(rg_window_t *w) {
    if (w->epoch == w->port.sv->epoch) return;
    w->epoch = w->port.sv->epoch;
    w->n_not_lent = 0;
    for (rg_wcopy_t **at = &w->copies; *at;)
        if (is_member(w, (*at)->peer)) at = &(*at)->next;
        else copy_free(at);
    for (rg_wadd_t **at = &w->adds; *at;)
        if (is_member(w, (*at)->a.peer)) at = &(*at)->next;
        else add_drop(w, at);
    for (uint32_t i = 0; i < w->n_lasts;)
        if (is_member(w, w->lasts[i].peer)) i++;
        else w->lasts[i] = w->lasts[--w->n_lasts];
}

/* All who wait are woken at once, whoever they are: so only when something has ended, and once for all that came. */
static uint64_t step(rg_port_t *p, uint64_t now) {
    rg_window_t *w = (rg_window_t *)(void *)p;
    uint64_t at = UINT64_MAX;
    forget_the_lost(w);
    if (wants_memory(w)) {
        if (pthread_mutex_trylock(&w->memory_lock) == 0) {
            w->ended |= add_all(w);
            for (uint32_t i = 0; i < w->n_reads; i++) read_now(w, &w->reads[i]);
            w->n_reads = 0;
            pthread_mutex_unlock(&w->memory_lock);
        } else at = now + RG_WINDOW_AGAIN_NS; /* or when the program gives it back */
    }
    pthread_mutex_lock(&w->m);
    calls_go_on(w, now, &at);
    pthread_mutex_unlock(&w->m);
    if (w->ended) rg_service_tell(p);
    w->ended = 0;
    return at;
}

static void gone(rg_port_t *p) {
    rg_window_t *w = (rg_window_t *)(void *)p;
    for (uint32_t i = 0; i < w->n_reads; i++) rg_service_answer(p, &w->reads[i], NULL, 0);
    w->n_reads = 0;
    while (w->adds) add_drop(w, &w->adds);
}

const rg_port_ops_t rg_window_port = { asked, answered, step, gone };

void rg_window_forget(rg_window_t *w) {
    while (w->copies) copy_free(&w->copies);
    while (w->adds) add_free(&w->adds);
    free(w->reads);
    free(w->lasts);
    free(w->not_lent);
}
