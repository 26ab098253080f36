/* serve.c: rg_state_serve(): a member gives its content to newcomers while it works. A thread of low priority makes a
 * snapshot, by hashing what is there between two revisions, and answers questions about it; rg_state_touch() copies a
 * piece that somebody still has to fetch before the program writes it, within a limit beyond which the piece is left
 * out. The thread reads a piece in slices under a lock that it gives back after each, so that the program never waits
 * for longer than a slice takes. It relies on the program to touch before it writes; what it reads otherwise fits no
 * hash and is refused where it arrives. It must not take the group's lock: an operation would wait for it. */
#include "state/serve.h"

#include "api.h"
#include "config.h"
#include "engine/lifecycle.h"
#include "engine/side.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

_Static_assert(RG_TALK_BYTES == RG_SIDE_ASK && RG_TALK_UNIT <= RG_SIDE_ANSWER_MAX, "what is asked must fit");

#define SLICE (64u << 10)
#define FETCHERS 8u /* newcomers at a time */
#define QUEUE 256u  /* questions that wait */
#define UNSENT 2u   /* answers to one newcomer that its link has not taken yet */
#define RATE (256u << 20)
#define SIDE_BYTES (64u << 20)
#define QUICK (4u << 20)      /* so much of each snapshot is given at four times the rate */
#define IDLE_NS 10000000000u  /* a newcomer that has asked nothing for so long is gone */
#define SETTLE_NS 2000000000u /* so long a snapshot waits for the program to finish what it writes */
#define NICE 5

typedef struct waiting {
    uint64_t peer, since_ns;
    uint32_t nr;
    rg_question_t q;
} waiting_t;

typedef struct fetcher {
    uint64_t id; /* 0: free */
    uint64_t heard_ns, bytes;
    uint32_t low, unsent;
} fetcher_t;

struct rg_serve {
    rg_group_t *g;
    rg_state_t *s;
    uint64_t side_limit, rate, next_ns, quick;
    pthread_t thread;

    pthread_mutex_t q_lock; /* for these; never held while anything is waited for */
    pthread_cond_t q_cond;
    int stop;
    waiting_t queue[QUEUE];
    uint32_t n_queue;
    fetcher_t fetchers[FETCHERS];

    pthread_mutex_t lock; /* for what follows, s->hashes and s->dirty */
    atomic_int wanted;    /* the program wants the lock: the thread lets it in */
    atomic_int settled;   /* nothing is being written, and the content is of a revision */
    uint64_t revision;
    int any_open;
    uint64_t *open; /* bitmap: pieces that may have been written since it was settled */

    uint64_t snapshot, snapshot_revision; /* number of the last one */
    int on, whole;
    uint32_t low;    /* nobody wants a piece below this one */
    uint64_t *gone;  /* bitmap: pieces that were overwritten, with no room for a copy */
    uint8_t **aside; /* contents as they were in the snapshot, of pieces that may have been written */
    uint64_t aside_bytes;
    rg_hash_t *hashes, *groups, root;
    XXH3_state_t *hasher;
};

static int usable(const rg_state_t *s) { return s->serve && !rg_group_inherited(s->serve->g); }

/* ---- The program's side ------------------------------------------------------------------------------------------ */

void rg_serve_lock(rg_state_t *s) {
    if (!usable(s)) return;
    atomic_fetch_add(&s->serve->wanted, 1);
    pthread_mutex_lock(&s->serve->lock);
    atomic_fetch_sub(&s->serve->wanted, 1);
}

void rg_serve_unlock(rg_state_t *s) {
    if (usable(s)) pthread_mutex_unlock(&s->serve->lock);
}

/* What is in the snapshot and may still be wanted is copied first. */
static void before_write(rg_serve_t *v, uint32_t p) {
    if (rg_bit(v->open, p)) return;
    rg_bit_set(v->open, p);
    if (!v->on || v->aside[p] || rg_bit(v->gone, p)) return;
    rg_piece_t piece = rg_state_piece(v->s, p);
    if (p >= v->low && v->aside_bytes + piece.bytes <= v->side_limit) v->aside[p] = malloc(piece.bytes);
    if (!v->aside[p]) {
        rg_bit_set(v->gone, p);
        return;
    }
    memcpy(v->aside[p], piece.data, piece.bytes);
    v->aside_bytes += piece.bytes;
}

void rg_serve_before_write(rg_state_t *s, uint32_t first, uint32_t last) {
    if (!usable(s)) return;
    rg_serve_t *v = s->serve;
    rg_serve_lock(s);
    atomic_store(&v->settled, 0);
    v->any_open = 1;
    for (uint32_t p = first; p <= last && p < s->n_pieces; p++) before_write(v, p);
    rg_serve_unlock(s);
}

void rg_serve_settled(rg_state_t *s) {
    if (!usable(s)) return;
    rg_serve_t *v = s->serve;
    rg_serve_lock(s);
    v->revision = rg_state_revision(s);
    if (v->any_open) memset(v->open, 0, (s->n_pieces / 64 + 1) * sizeof *v->open);
    v->any_open = 0;
    atomic_store(&v->settled, v->revision != 0);
    rg_serve_unlock(s);
    pthread_mutex_lock(&v->q_lock);
    if (v->n_queue) pthread_cond_signal(&v->q_cond);
    pthread_mutex_unlock(&v->q_lock);
}

/* ---- Reading pieces ---------------------------------------------------------------------------------------------- */

/* Between two slices whoever wants to write comes first. Locked on entry and exit. */
static void give_way(rg_serve_t *v) {
    pthread_mutex_unlock(&v->lock);
    while (atomic_load(&v->wanted)) sched_yield();
    pthread_mutex_lock(&v->lock);
}

/* Gives piece p as it is in the snapshot, slice by slice, to `to` or, without that, to the hasher. Locked. */
static int read_piece(rg_serve_t *v, uint32_t p, uint8_t *to) {
    rg_piece_t piece = rg_state_piece(v->s, p);
    for (uint32_t at = 0; at < piece.bytes; at += SLICE) {
        if (at) give_way(v);
        if (!v->on || rg_bit(v->gone, p)) return 0;
        const uint8_t *from = (v->aside[p] ? v->aside[p] : piece.data) + at;
        uint32_t n = piece.bytes - at < SLICE ? piece.bytes - at : SLICE;
        if (to) memcpy(to + at, from, n);
        else XXH3_128bits_update(v->hasher, from, n);
    }
    return 1;
}

/* The hash of piece p in the snapshot; what the program's next sync would have to hash itself it then finds done. */
static void hash_piece(rg_serve_t *v, uint32_t p) {
    rg_state_t *s = v->s;
    pthread_mutex_lock(&v->lock);
    int have = !v->aside[p] && !rg_bit(v->gone, p) && !rg_bit(s->dirty, p);
    if (have) v->hashes[p] = s->hashes[p];
    if (!have) XXH3_128bits_reset(v->hasher);
    if (!have && read_piece(v, p, NULL)) {
        XXH128_canonical_t c;
        XXH128_canonicalFromHash(&c, XXH3_128bits_digest(v->hasher));
        memcpy(v->hashes[p].b, c.digest, sizeof v->hashes[p].b);
        have = 1;
        /* A copy aside means that the program has written the piece meanwhile, and perhaps settled since. */
        if (!v->aside[p] && !rg_bit(v->open, p) && rg_bit(s->dirty, p)) {
            s->hashes[p] = v->hashes[p];
            rg_bit_clear(s->dirty, p);
        }
    }
    if (!have) {
        v->whole = 0;
        memset(&v->hashes[p], 0, sizeof v->hashes[p]);
    }
    pthread_mutex_unlock(&v->lock);
}

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

static void drop_below(rg_serve_t *v, uint32_t low) {
    for (; v->low < low && v->low < v->s->n_pieces; v->low++) {
        uint32_t p = v->low;
        if (!v->aside[p]) continue;
        v->aside_bytes -= rg_state_piece(v->s, p).bytes;
        free(v->aside[p]);
        v->aside[p] = NULL;
        rg_bit_set(v->gone, p);
    }
}

static void snapshot_end(rg_serve_t *v) {
    pthread_mutex_lock(&v->lock);
    v->on = 0;
    drop_below(v, v->s->n_pieces);
    pthread_mutex_unlock(&v->lock);
}

static void snapshot_begin(rg_serve_t *v) {
    rg_state_t *s = v->s;
    snapshot_end(v);
    pthread_mutex_lock(&v->lock);
    v->on = atomic_load(&v->settled);
    v->whole = 1;
    v->low = 0;
    v->quick = QUICK;
    memset(v->gone, 0, (s->n_pieces / 64 + 1) * sizeof *v->gone);
    if (v->on) {
        v->snapshot++;
        v->snapshot_revision = v->revision;
    }
    pthread_mutex_unlock(&v->lock);
    if (!v->on) return;
    for (uint32_t p = 0; p < s->n_pieces; p++) hash_piece(v, p);
    rg_hash_groups(v->hashes, s->n_pieces, v->groups);
    v->root = rg_hash_root(&s->layout, v->groups, rg_piece_groups(s->n_pieces));
    RG_LOGF(&v->g->log, RG_LOG_INFO, "state: snapshot %llu of revision %llu for newcomers: %llu bytes%s",
            (unsigned long long)v->snapshot, (unsigned long long)v->snapshot_revision, (unsigned long long)s->bytes,
            v->whole ? "" : ", not whole");
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

static fetcher_t *fetcher_of(rg_serve_t *v, uint64_t id) {
    for (uint32_t i = 0; i < FETCHERS; i++)
        if (v->fetchers[i].id == id) return &v->fetchers[i];
    return NULL;
}

static uint32_t fetchers_now(rg_serve_t *v) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < FETCHERS; i++) n += v->fetchers[i].id != 0;
    return n;
}

/* A newcomer gets the snapshot that others are still fetching, unless it is alone and wants a newer one. */
static int needs_snapshot(rg_serve_t *v, const waiting_t *w) {
    if (w->q.kind != RG_TALK_HEAD) return 0;
    fetcher_t *f = fetcher_of(v, w->peer);
    return !v->on || fetchers_now(v) == 0 || (fetchers_now(v) == 1 && f && w->q.snapshot == v->snapshot);
}

static uint8_t *answer_head(rg_serve_t *v, int fresh, uint32_t *len) {
    if (fresh) snapshot_begin(v);
    uint8_t *to = v->on ? malloc(RG_TALK_HEAD_BYTES) : NULL;
    const rg_answer_t a = { .snapshot = v->snapshot,
                            .revision = v->snapshot_revision,
                            .bytes = v->s->bytes,
                            .n_pieces = v->s->n_pieces,
                            .whole = (uint32_t)v->whole,
                            .layout = v->s->layout,
                            .root = v->root };
    if (to) rg_answer_put(&a, to);
    *len = RG_TALK_HEAD_BYTES;
    return to;
}

static uint8_t *answer_list(rg_serve_t *v, const rg_question_t *q, uint32_t *len) {
    uint32_t n = v->s->n_pieces;
    if (!q->count || q->count > RG_TALK_LIST || q->first > n || q->count > n - q->first) return NULL;
    *len = q->count * (uint32_t)sizeof(rg_hash_t);
    uint8_t *to = malloc(*len);
    if (to) memcpy(to, v->hashes + q->first, *len);
    return to;
}

static uint8_t *answer_pieces(rg_serve_t *v, const rg_question_t *q, uint32_t *len) {
    uint32_t n = v->s->n_pieces;
    uint64_t bytes = 0;
    if (!q->count || q->count > RG_TALK_UNIT || q->first > n || q->count > n - q->first) return NULL;
    for (uint32_t i = 0; i < q->count && bytes <= RG_TALK_UNIT; i++) bytes += rg_state_piece(v->s, q->first + i).bytes;
    if (bytes != q->bytes || bytes > RG_TALK_UNIT) return NULL;
    uint8_t *to = malloc(bytes), *at = to;
    int good = to != NULL;
    pthread_mutex_lock(&v->lock);
    for (uint32_t i = 0; i < q->count && good; i++) {
        good = read_piece(v, q->first + i, at);
        at += rg_state_piece(v->s, q->first + i).bytes;
        give_way(v);
    }
    pthread_mutex_unlock(&v->lock);
    if (!good) {
        free(to);
        return NULL;
    }
    *len = (uint32_t)bytes;
    /* A newcomer that is about to enter has little to fetch, which is out of date the later it comes. */
    uint64_t now = rg_os_now_ns(), quick = bytes < v->quick ? bytes : v->quick;
    v->quick -= quick;
    v->next_ns = (v->next_ns > now ? v->next_ns : now) + (bytes - quick + quick / 4) * 1000000000u / v->rate;
    return to;
}

static void sent(void *user, uint64_t peer, uint32_t len) {
    rg_serve_t *v = user;
    (void)len;
    pthread_mutex_lock(&v->q_lock);
    fetcher_t *f = fetcher_of(v, peer);
    if (f && f->unsent) f->unsent--;
    pthread_cond_signal(&v->q_cond);
    pthread_mutex_unlock(&v->q_lock);
}

/* Not locked. `fresh`: with a new snapshot. */
static void answer(rg_serve_t *v, const waiting_t *w, int fresh) {
    uint32_t len = 0;
    uint8_t *to = NULL;
    int mine = rg_hash_equal(&w->q.layout, &v->s->layout), same = v->on && w->q.snapshot == v->snapshot;
    if (w->q.kind == RG_TALK_HEAD && mine) to = answer_head(v, fresh, &len);
    else if (w->q.kind == RG_TALK_LIST_OF && mine && same) to = answer_list(v, &w->q, &len);
    else if (w->q.kind == RG_TALK_PIECES && mine && same) to = answer_pieces(v, &w->q, &len);
    pthread_mutex_lock(&v->q_lock);
    fetcher_t *f = fetcher_of(v, w->peer);
    if (f && to) f->unsent++;
    if (f && to && w->q.kind == RG_TALK_PIECES) f->bytes += len;
    pthread_mutex_unlock(&v->q_lock);
    rg_side_answer(v->g, RG_SIDE_STATE, w->peer, w->nr, to, len);
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static void fetcher_end(rg_serve_t *v, fetcher_t *f) {
    RG_LOGF(&v->g->log, RG_LOG_INFO, "state: member %llu has fetched %llu bytes here", (unsigned long long)f->id,
            (unsigned long long)f->bytes);
    *f = (fetcher_t){ 0 };
}

/* Notes who asks; 0: there is no room for one more. q_lock is held. */
static int note_fetcher(rg_serve_t *v, const waiting_t *w) {
    fetcher_t *f = fetcher_of(v, w->peer);
    if (!f && w->q.kind == RG_TALK_HEAD && (f = fetcher_of(v, 0))) *f = (fetcher_t){ .id = w->peer };
    if (!f) return 0;
    f->heard_ns = rg_os_now_ns();
    if (w->q.kind == RG_TALK_HEAD) f->low = 0;
    else if (w->q.low > f->low) f->low = w->q.low;
    return 1;
}

/* q_lock is held. Newcomers that went without a word, and what nobody needs any more. */
static void tidy(rg_serve_t *v) {
    uint32_t low = UINT32_MAX;
    uint64_t now = rg_os_now_ns();
    for (uint32_t i = 0; i < FETCHERS; i++) {
        fetcher_t *f = &v->fetchers[i];
        int asks = 0;
        for (uint32_t k = 0; k < v->n_queue; k++) asks |= v->queue[k].peer == f->id;
        if (f->id && !asks && now - f->heard_ns > IDLE_NS) fetcher_end(v, f);
        if (f->id && f->low < low) low = f->low;
    }
    if (!v->on) return;
    pthread_mutex_unlock(&v->q_lock);
    if (low == UINT32_MAX) {
        snapshot_end(v);
    } else {
        pthread_mutex_lock(&v->lock);
        drop_below(v, low);
        pthread_mutex_unlock(&v->lock);
    }
    pthread_mutex_lock(&v->q_lock);
}

/* The next question that can be answered now, in the order in which they came, else when to look again. q_lock is
 * held. */
static int next_question(rg_serve_t *v, uint64_t now, waiting_t *w, int *fresh, uint64_t *at) {
    for (uint32_t i = 0; i < v->n_queue; i++) {
        const waiting_t *k = &v->queue[i];
        const fetcher_t *f = fetcher_of(v, k->peer);
        uint64_t ready = k->q.kind == RG_TALK_PIECES && v->next_ns > now ? v->next_ns : 0;
        if (f && f->unsent >= UNSENT) ready = UINT64_MAX; /* until sent() */
        *fresh = needs_snapshot(v, k);
        if (*fresh && !atomic_load(&v->settled) && now - k->since_ns < SETTLE_NS) ready = k->since_ns + SETTLE_NS;
        if (ready) {
            if (ready < *at) *at = ready;
            continue;
        }
        *w = *k;
        v->n_queue--;
        memmove(&v->queue[i], &v->queue[i + 1], (v->n_queue - i) * sizeof *v->queue);
        return 1;
    }
    return 0;
}

static void *serve_thread(void *arg) {
    rg_serve_t *v = arg;
    pid_t self = (pid_t)syscall(SYS_gettid);
    setpriority(PRIO_PROCESS, (id_t)self, getpriority(PRIO_PROCESS, (id_t)self) + NICE); /* or it stays as it is */
    pthread_mutex_lock(&v->q_lock);
    while (!v->stop) {
        waiting_t w;
        int fresh = 0;
        uint64_t now = rg_os_now_ns(), at = now + IDLE_NS;
        if (next_question(v, now, &w, &fresh, &at)) {
            int known = note_fetcher(v, &w);
            fetcher_t *f = w.q.kind == RG_TALK_END ? fetcher_of(v, w.peer) : NULL;
            if (f) fetcher_end(v, f);
            pthread_mutex_unlock(&v->q_lock);
            if (w.q.kind != RG_TALK_END && known) answer(v, &w, fresh);
            else if (w.q.kind != RG_TALK_END) rg_side_answer(v->g, RG_SIDE_STATE, w.peer, w.nr, NULL, 0);
            pthread_mutex_lock(&v->q_lock);
            tidy(v);
            continue;
        }
        struct timespec ts = { (time_t)(at / 1000000000u), (long)(at % 1000000000u) };
        pthread_cond_timedwait(&v->q_cond, &v->q_lock, &ts);
        if (!v->n_queue) tidy(v);
    }
    pthread_mutex_unlock(&v->q_lock);
    return NULL;
}

/* ---- The engine's side ------------------------------------------------------------------------------------------- */

static int asked(void *user, uint64_t peer, uint32_t nr, const uint8_t *ask) {
    rg_serve_t *v = user;
    waiting_t w = { .peer = peer, .nr = nr, .since_ns = rg_os_now_ns() };
    int good = rg_question_get(&w.q, ask);
    pthread_mutex_lock(&v->q_lock);
    good = good && v->n_queue < QUEUE;
    if (good) {
        v->queue[v->n_queue++] = w;
        pthread_cond_signal(&v->q_cond);
    }
    pthread_mutex_unlock(&v->q_lock);
    if (w.q.kind == RG_TALK_END) return 0; /* nobody waits for an answer */
    if (!good) rg_side_answer(v->g, RG_SIDE_STATE, peer, nr, NULL, 0);
    return 1;
}

static void serve_free(rg_serve_t *v) {
    for (uint32_t p = 0; v->aside && p < v->s->n_pieces; p++) free(v->aside[p]);
    free(v->aside);
    free(v->open);
    free(v->gone);
    free(v->hashes);
    free(v->groups);
    XXH3_freeState(v->hasher);
    pthread_mutex_destroy(&v->q_lock);
    pthread_cond_destroy(&v->q_cond);
    pthread_mutex_destroy(&v->lock);
    free(v);
}

static void end(rg_serve_t *v) {
    RG_OS_STAY;
    rg_lock(v->g);
    rg_side_host(v->g, RG_SIDE_STATE, NULL);
    rg_unlock(v->g);
    pthread_mutex_lock(&v->q_lock);
    v->stop = 1;
    pthread_cond_signal(&v->q_cond);
    pthread_mutex_unlock(&v->q_lock);
    pthread_join(v->thread, NULL);
    for (uint32_t i = 0; i < v->n_queue; i++)
        if (v->queue[i].q.kind != RG_TALK_END)
            rg_side_answer(v->g, RG_SIDE_STATE, v->queue[i].peer, v->queue[i].nr, NULL, 0);
    v->s->serve = NULL;
    serve_free(v);
}

static void closing(void *user) { end(user); }

void rg_serve_end(rg_state_t *s) {
    if (usable(s)) end(s->serve);
}

static rg_serve_t *serve_new(rg_group_t *g, rg_state_t *s, const rg_state_serve_opts_t *o) {
    rg_serve_t *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    size_t n = s->n_pieces, words = n / 64 + 1;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&v->q_lock, NULL);
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->q_cond, &attr);
    pthread_condattr_destroy(&attr);
    v->g = g;
    v->s = s;
    v->side_limit = o->side_bytes ? o->side_bytes : SIDE_BYTES;
    v->rate = o->bytes_per_s ? o->bytes_per_s : RATE;
    v->open = calloc(words, sizeof *v->open);
    v->gone = calloc(words, sizeof *v->gone);
    v->aside = calloc(n + 1, sizeof *v->aside);
    v->hashes = calloc(n + 1, sizeof *v->hashes);
    v->groups = calloc(rg_piece_groups((uint32_t)n) + 1, sizeof *v->groups);
    v->hasher = XXH3_createState();
    if (v->open && v->gone && v->aside && v->hashes && v->groups && v->hasher) return v;
    serve_free(v);
    return NULL;
}

rg_status_t rg_state_serve(rg_group_t *g, rg_state_t *s, const rg_state_serve_opts_t *opts) {
    RG_OS_STAY;
    static const rg_state_serve_opts_t defaults = RG_STATE_SERVE_OPTS_INIT;
    rg_state_serve_opts_t o;
    rg_error_t err = { RG_OK, 0, "" };
    rg_status_t st = rg_usable(g);
    if (st != RG_OK) return st;
    if (!s) return rg_refuse(g, RG_ERR_INVALID, "rg_state_serve: state is NULL; make one with rg_state_create");
    if (g->root) return rg_refuse(g, RG_ERR_INVALID, "rg_state_serve belongs to the group that was joined");
    if (s->serve) return rg_refuse(g, RG_ERR_INVALID, "rg_state_serve: the state is served already");
    st = rg_struct_in(&o, sizeof o, RG_STATE_SERVE_OPTS_SIZE_FIRST, opts ? opts : &defaults, "rg_state_serve_opts_t",
                      &err);
    if (st != RG_OK) return rg_refuse(g, st, "rg_state_serve: %s", err.text);
    rg_serve_t *v = serve_new(g, s, &o);
    if (!v) return rg_refuse(g, RG_ERR_NOMEM, "rg_state_serve: no memory");
    const rg_side_host_t host = { v, asked, sent, closing };
    s->serve = v;
    rg_serve_settled(s);
    int rc = rg_os_thread(&v->thread, serve_thread, v);
    if (rc) {
        st = rg_refuse(g, RG_ERR_SYSTEM, "rg_state_serve: cannot start a thread: %s", strerror(rc));
        s->serve = NULL;
        serve_free(v);
        return st;
    }
    rg_lock(g);
    st = g->phase == RG_PHASE_MEMBER ? rg_side_host(g, RG_SIDE_STATE, &host) : g->over ? g->over : RG_ERR_CLOSED;
    rg_unlock(g);
    if (st == RG_OK) return st;
    pthread_mutex_lock(&v->q_lock);
    v->stop = 1;
    pthread_cond_signal(&v->q_cond);
    pthread_mutex_unlock(&v->q_lock);
    pthread_join(v->thread, NULL);
    s->serve = NULL;
    serve_free(v);
    return rg_refuse(g, st, "rg_state_serve: %s",
                     st == RG_ERR_INVALID ? "the group serves another state already" : rg_strerror(st));
}

rg_status_t rg_state_serve_end(rg_state_t *s) {
    if (!s) return RG_ERR_INVALID;
    rg_serve_end(s);
    return RG_OK;
}
