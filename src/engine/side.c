/* side.c: questions and answers beside the operations, over the links that there are (side.h). It relies on a few tags
 * that no operation has and no view fences, and on the group's lock for all but the outbox, which has a lock of its own
 * so that a thread of low priority that answers never holds the group's. It must keep what is under way within
 * SLOTS_MAX, whatever peers ask. */
#include "engine/side.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TAG_EPOCH (UINT64_MAX - 1) /* fenced by no view */
#define TAG_GEN (UINT64_MAX - 1)
#define OP_ASK 0x61736bu
#define OP_ANSWER 0x616e73u
#define COOKIE (0xc0ddull << 48) /* no operation's, and no kept copy's */
#define SLOTS_MAX 1024u
#define ASKS_PER_PEER 64u /* that are being taken in */

typedef enum slot_kind { SLOT_FREE, SLOT_TAKING, SLOT_ANSWERING, SLOT_ASKING, SLOT_AWAITING } slot_kind_t;

/* A message that is under way. */
typedef struct slot {
    slot_kind_t kind;
    rg_side_host_kind_t host; /* whose answer it is */
    uint16_t turn;            /* of this slot: late completions do not match */
    uint32_t nr;
    uint64_t peer, cookie;
    uint8_t *buf;
    rg_side_answer_fn fn; /* NULL: forgotten */
    void *user;
} slot_t;

typedef struct outgoing {
    struct outgoing *next;
    rg_side_host_kind_t host;
    uint64_t peer;
    uint32_t nr, len;
    uint8_t *answer;
} outgoing_t;

struct rg_side {
    slot_t *slots;
    uint32_t n_slots, next_nr;
    rg_side_host_t host[RG_SIDE_HOSTS];
    int hosted[RG_SIDE_HOSTS], refused;
    pthread_mutex_t out_lock;
    outgoing_t *first, **last;
    atomic_int any_out;
};

rg_status_t rg_side_open(rg_group_t *g) {
    struct rg_side *s = g->side = calloc(1, sizeof *s);
    if (!s) return RG_ERR_NOMEM;
    pthread_mutex_init(&s->out_lock, NULL);
    s->last = &s->first;
    return RG_OK;
}

void rg_side_close(rg_group_t *g) {
    struct rg_side *s = g->side;
    if (!s) return;
    for (uint32_t i = 0; i < RG_SIDE_HOSTS; i++) {
        rg_lock(g);
        rg_side_host_t host = s->host[i];
        int hosted = s->hosted[i];
        rg_unlock(g);
        if (hosted) host.closing(host.user); /* it ends its thread, and says rg_side_host() with NULL */
    }
}

void rg_side_free(rg_group_t *g) {
    struct rg_side *s = g->side;
    if (!s) return;
    for (uint32_t i = 0; i < s->n_slots; i++) free(s->slots[i].buf);
    while (s->first) {
        outgoing_t *o = s->first;
        s->first = o->next;
        free(o->answer);
        free(o);
    }
    pthread_mutex_destroy(&s->out_lock);
    free(s->slots);
    free(s);
    g->side = NULL;
}

/* ---- Messages under way ------------------------------------------------------------------------------------------ */

static slot_t *slot_take(struct rg_side *s, slot_kind_t kind, uint64_t peer, uint32_t nr, uint8_t *buf) {
    uint32_t i = 0;
    while (i < s->n_slots && s->slots[i].kind != SLOT_FREE) i++;
    if (i == s->n_slots) {
        uint32_t n = s->n_slots ? 2 * s->n_slots : 16;
        slot_t *more = n > SLOTS_MAX ? NULL : realloc(s->slots, n * sizeof *more);
        if (!more) return NULL;
        memset(more + s->n_slots, 0, (n - s->n_slots) * sizeof *more);
        s->slots = more;
        s->n_slots = n;
    }
    uint16_t turn = (uint16_t)(s->slots[i].turn + 1);
    s->slots[i] = (slot_t){ .kind = kind, .turn = turn, .nr = nr, .peer = peer, .buf = buf };
    return &s->slots[i];
}

static uint64_t cookie_of(const struct rg_side *s, const slot_t *k) {
    return COOKIE | (uint64_t)k->turn << 32 | (uint64_t)(k - s->slots);
}

static rg_tag_t tag(uint64_t op, uint32_t nr) {
    return (rg_tag_t){ .epoch = TAG_EPOCH, .gen = TAG_GEN, .op = op, .ord = nr, .sig = 1 };
}

static rg_side_host_kind_t host_of(const uint8_t *ask) {
    static const uint8_t word[4] = { RG_SIDE_SERVICE_WORD & 0xff, RG_SIDE_SERVICE_WORD >> 8 & 0xff,
                                     RG_SIDE_SERVICE_WORD >> 16 & 0xff, RG_SIDE_SERVICE_WORD >> 24 };
    return memcmp(ask, word, sizeof word) == 0 ? RG_SIDE_SERVICE : RG_SIDE_STATE;
}

/* The slot is free when this calls anybody: they may ask again. */
static void slot_end(rg_group_t *g, slot_t *k, int good) {
    struct rg_side *s = g->side;
    const slot_t was = *k;
    k->kind = SLOT_FREE;
    k->buf = NULL;
    if (was.kind == SLOT_TAKING && good) {
        rg_side_host_kind_t h = host_of(was.buf);
        if (s->hosted[h]) s->host[h].asked(s->host[h].user, was.peer, was.nr, was.buf);
        else rg_side_answer(g, h, was.peer, was.nr, NULL, 0);
    } else if (was.kind == SLOT_ANSWERING && was.buf && s->hosted[was.host]) {
        s->host[was.host].sent(s->host[was.host].user, was.peer);
    } else if (was.kind == SLOT_AWAITING && was.fn) {
        was.fn(was.user, was.cookie, good ? was.buf : NULL);
    }
    free(was.buf);
}

/* Slots may move while a message is handed over, so nothing is kept across it but the number. */
static rg_status_t post(rg_group_t *g, uint32_t link, uint32_t at, uint64_t op, uint32_t len, int receives) {
    const slot_t *k = &g->side->slots[at];
    const uint64_t cookie = cookie_of(g->side, k);
    const rg_tp_recv_t r = { .tag = tag(op, k->nr), .dst = k->buf, .len = len, .cookie = cookie };
    const rg_tp_send_t m = { .tag = tag(op, k->nr), .buf = k->buf, .len = len, .cookie = cookie };
    int rc = receives ? g->tp_ops->recv(g->tp, link, &r) : g->tp_ops->send(g->tp, link, &m);
    if (rc == RG_TP_DONE_NOW) slot_end(g, &g->side->slots[at], 1);
    else if (rc < 0) slot_end(g, &g->side->slots[at], 0);
    return rc < 0 ? RG_ERR_PEER_LOST : RG_OK;
}

static uint32_t count(const struct rg_side *s, slot_kind_t kind, uint64_t peer) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) n += s->slots[i].kind == kind && s->slots[i].peer == peer;
    return n;
}

/* A question has come. One for which there is no room waits in the transport, unanswered. */
static void take_in(rg_group_t *g, uint32_t link, uint32_t nr) {
    uint64_t peer = g->links[link].id;
    if (!peer || count(g->side, SLOT_TAKING, peer) >= ASKS_PER_PEER) return;
    uint8_t *buf = malloc(RG_SIDE_ASK);
    slot_t *k = buf ? slot_take(g->side, SLOT_TAKING, peer, nr, buf) : NULL;
    if (k) post(g, link, (uint32_t)(k - g->side->slots), OP_ASK, RG_SIDE_ASK, 1);
    else free(buf);
}

int rg_side_completion(rg_group_t *g, const rg_completion_t *c) {
    struct rg_side *s = g->side;
    if (c->event == RG_TP_UNEXPECTED) {
        if (c->tag.epoch != TAG_EPOCH || c->tag.gen != TAG_GEN) return 0;
        if (c->tag.op == OP_ASK && c->link < g->n_links) take_in(g, c->link, c->tag.ord);
        return 1;
    }
    if (c->cookie >> 48 != COOKIE >> 48) return 0;
    uint32_t at = (uint32_t)c->cookie;
    if (at < s->n_slots && s->slots[at].kind != SLOT_FREE && cookie_of(s, &s->slots[at]) == c->cookie) {
        s->refused = c->event == RG_TP_FAILED && c->status == RG_TP_MISMATCH; /* it is shorter than any answer */
        slot_end(g, &s->slots[at], c->event != RG_TP_FAILED);
        s->refused = 0;
    }
    return 1;
}

/* ---- Answering --------------------------------------------------------------------------------------------------- */

rg_status_t rg_side_host(rg_group_t *g, rg_side_host_kind_t kind, const rg_side_host_t *host) {
    struct rg_side *s = g->side;
    if (host && s->hosted[kind]) return RG_ERR_INVALID;
    s->hosted[kind] = host != NULL;
    if (host) s->host[kind] = *host;
    return RG_OK;
}

int rg_side_refused(const rg_group_t *g) { return g->side->refused; }

void rg_side_answer(rg_group_t *g, rg_side_host_kind_t kind, uint64_t peer, uint32_t nr, uint8_t *answer,
                    uint32_t len) {
    struct rg_side *s = g->side;
    outgoing_t *o = malloc(sizeof *o);
    if (!o) { /* whoever asked has a time limit */
        free(answer);
        return;
    }
    *o = (outgoing_t){ .host = kind, .peer = peer, .nr = nr, .len = answer ? len : 0, .answer = answer };
    pthread_mutex_lock(&s->out_lock);
    *s->last = o;
    s->last = &o->next;
    atomic_store(&s->any_out, 1);
    pthread_mutex_unlock(&s->out_lock);
    uint64_t one = 1; /* whoever drives may be asleep, which only the group's lock would tell */
    ssize_t n = write(g->wakefd, &one, sizeof one);
    (void)n;
}

/* 0: everything that may be under way is. */
static int send_answer(rg_group_t *g, const outgoing_t *o) {
    uint32_t link = rg_link_of(g, o->peer);
    slot_t *k = link == UINT32_MAX ? NULL : slot_take(g->side, SLOT_ANSWERING, o->peer, o->nr, o->answer);
    if (k) {
        k->host = o->host;
        post(g, link, (uint32_t)(k - g->side->slots), OP_ANSWER, o->len, 0);
        return 1;
    }
    if (link != UINT32_MAX) return 0;
    const rg_side_host_t *h = &g->side->host[o->host];
    if (o->answer && g->side->hosted[o->host]) h->sent(h->user, o->peer);
    free(o->answer);
    return 1;
}

/* What finds no room waits, in its order, for the end of something that is under way, after which this is called. */
void rg_side_tick(rg_group_t *g) {
    struct rg_side *s = g->side;
    if (!atomic_load_explicit(&s->any_out, memory_order_relaxed)) return;
    pthread_mutex_lock(&s->out_lock);
    outgoing_t *o = s->first, **last = s->last;
    s->first = NULL;
    s->last = &s->first;
    atomic_store(&s->any_out, 0);
    pthread_mutex_unlock(&s->out_lock);
    while (o && send_answer(g, o)) {
        outgoing_t *next = o->next;
        free(o);
        o = next;
    }
    if (!o) return;
    pthread_mutex_lock(&s->out_lock);
    *last = s->first;
    if (!s->first) s->last = last;
    s->first = o;
    atomic_store(&s->any_out, 1);
    pthread_mutex_unlock(&s->out_lock);
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

rg_status_t rg_side_ask(rg_group_t *g, uint64_t peer, const uint8_t ask[RG_SIDE_ASK], uint32_t answer_len,
                        rg_side_answer_fn fn, void *user, uint64_t cookie) {
    struct rg_side *s = g->side;
    uint32_t link = rg_link_of(g, peer), nr = ++s->next_nr;
    if (link == UINT32_MAX || !g->links[link].up) return RG_ERR_PEER_LOST;
    uint8_t *question = malloc(RG_SIDE_ASK), *answer = answer_len ? malloc(answer_len) : NULL;
    slot_t *k = question && (answer || !answer_len) ? slot_take(s, SLOT_ASKING, peer, nr, question) : NULL;
    if (!k) {
        free(question);
        free(answer);
        return RG_ERR_NOMEM;
    }
    uint32_t at = (uint32_t)(k - s->slots);
    memcpy(question, ask, RG_SIDE_ASK);
    if (answer_len) { /* first: the answer must find somebody who waits for it */
        slot_t *a = slot_take(s, SLOT_AWAITING, peer, nr, answer);
        if (!a) {
            slot_end(g, &s->slots[at], 0);
            free(answer);
            return RG_ERR_RESOURCE;
        }
        a->cookie = cookie;
        uint32_t waits = (uint32_t)(a - s->slots);
        if (post(g, link, waits, OP_ANSWER, answer_len, 1) != RG_OK) { /* nobody was named yet, so nobody was told */
            slot_end(g, &s->slots[at], 0);
            return RG_ERR_PEER_LOST;
        }
        s->slots[waits].fn = fn;
        s->slots[waits].user = user;
    }
    rg_status_t st = post(g, link, at, OP_ASK, RG_SIDE_ASK, 0);
    return answer_len ? RG_OK : st; /* the end of the link ends what is awaited */
}

void rg_side_forget(rg_group_t *g, const void *user) {
    struct rg_side *s = g->side;
    for (uint32_t i = 0; s && i < s->n_slots; i++)
        if (s->slots[i].kind == SLOT_AWAITING && s->slots[i].user == user) s->slots[i].fn = NULL;
}
