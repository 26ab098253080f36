/* side.c: questions and answers beside the operations, over the links that there are (side.h). It relies on a few tags
 * that no operation has and no view fences, and on the group's lock for all but the outbox, which has a lock of its own
 * so that a thread of low priority that answers never holds the group's. It must keep what is under way with each peer
 * within limits, whatever that one asks, so that nobody uses up what is for others; and it must lose no question for
 * lack of memory: what an answer needs is there since the question came. */
#include "engine/side.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TAG_EPOCH (UINT64_MAX - 1) /* fenced by no view */
#define TAG_GEN (UINT64_MAX - 1)
#define OP_ASK 0x61736bu
#define OP_ANSWER 0x616e73u
#define COOKIE (0xc0ddull << 48) /* no operation's, and no kept copy's */
#define ASKING_PER_PEER 512u     /* questions of this process without an answer */
#define OPEN_PER_PEER 1024u      /* of a peer's, not answered: more than one that keeps to the line above has */
#define ANSWERING_PER_PEER 64u   /* answers that the transport has; others wait in their order */
#define LATE_MOST 64u            /* questions that wait for memory */
#define NONE UINT32_MAX

typedef enum slot_kind { SLOT_FREE, SLOT_TAKING, SLOT_ANSWERING, SLOT_ASKING, SLOT_AWAITING } slot_kind_t;

/* A message that is under way. */
typedef struct slot {
    slot_kind_t kind;
    rg_side_host_kind_t host; /* whose answer it is */
    uint16_t turn;            /* of this slot: late completions do not match */
    uint32_t nr, len, link;
    uint32_t next_free;
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

/* What is under way with the peer of a link. */
typedef struct with_peer {
    uint64_t peer;
    uint32_t open, answering, awaiting;
    outgoing_t *first, *last; /* answers that wait for others to leave */
} with_peer_t;

/* A question that there was no memory for: it is looked at again. ask NULL: the transport still has it. */
typedef struct late {
    uint64_t peer;
    uint32_t link, nr;
    uint8_t *ask;
} late_t;

struct rg_side {
    slot_t *slots;
    uint32_t n_slots, next_nr, first_free; /* first_free: slot + 1 */
    with_peer_t *with;                     /* by link */
    uint32_t n_with;
    int ended; /* an answer has left: the next one may go */
    rg_side_host_t host[RG_SIDE_HOSTS];
    int hosted[RG_SIDE_HOSTS], refused;
    pthread_mutex_t out_lock;
    outgoing_t *first, **last;
    outgoing_t *spare; /* one for each question that was taken in and is not answered */
    atomic_int any_out;
    late_t late[LATE_MOST];
    uint32_t n_late;
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

static void outgoing_free(outgoing_t *o) {
    while (o) {
        outgoing_t *next = o->next;
        free(o->answer);
        free(o);
        o = next;
    }
}

void rg_side_free(rg_group_t *g) {
    struct rg_side *s = g->side;
    if (!s) return;
    for (uint32_t i = 0; i < s->n_slots; i++) free(s->slots[i].buf);
    for (uint32_t i = 0; i < s->n_with; i++) outgoing_free(s->with[i].first);
    outgoing_free(s->first);
    outgoing_free(s->spare);
    for (uint32_t i = 0; i < s->n_late; i++) free(s->late[i].ask);
    free(s->with);
    pthread_mutex_destroy(&s->out_lock);
    free(s->slots);
    free(s);
    g->side = NULL;
}

/* ---- Messages under way ------------------------------------------------------------------------------------------ */

static int slots_grow(struct rg_side *s) {
    uint32_t n = s->n_slots ? 2 * s->n_slots : 16;
    slot_t *more = n < s->n_slots ? NULL : realloc(s->slots, n * sizeof *more);
    if (!more) return 0;
    memset(more + s->n_slots, 0, (n - s->n_slots) * sizeof *more);
    for (uint32_t i = s->n_slots; i < n; i++) more[i].next_free = i + 1 < n ? i + 2 : 0;
    s->first_free = s->n_slots + 1;
    s->slots = more;
    s->n_slots = n;
    return 1;
}

/* What is counted for the peer that has this link now. NULL without memory. */
static with_peer_t *with(rg_group_t *g, uint32_t link) {
    struct rg_side *s = g->side;
    if (link >= s->n_with) {
        uint32_t n = g->n_links > 16 ? g->n_links : 16;
        with_peer_t *more = realloc(s->with, n * sizeof *more);
        if (!more) return NULL;
        memset(more + s->n_with, 0, (n - s->n_with) * sizeof *more);
        s->with = more;
        s->n_with = n;
    }
    with_peer_t *w = &s->with[link];
    if (w->peer != g->links[link].id && !w->first) *w = (with_peer_t){ .peer = g->links[link].id };
    return w;
}

static uint32_t *counted(with_peer_t *w, slot_kind_t kind) {
    return kind == SLOT_ANSWERING ? &w->answering : kind == SLOT_AWAITING ? &w->awaiting : NULL;
}

static slot_t *slot_take(rg_group_t *g, slot_kind_t kind, uint32_t link, uint32_t nr, uint8_t *buf) {
    struct rg_side *s = g->side;
    with_peer_t *w = with(g, link);
    if (!w || (!s->first_free && !slots_grow(s))) return NULL;
    slot_t *k = &s->slots[s->first_free - 1];
    uint16_t turn = (uint16_t)(k->turn + 1);
    s->first_free = k->next_free;
    *k = (slot_t){ .kind = kind, .turn = turn, .nr = nr, .link = link, .peer = g->links[link].id, .buf = buf };
    if (counted(w, kind)) (*counted(w, kind))++;
    return k;
}

static uint32_t word_of(const uint8_t *ask) {
    uint32_t word;
    memcpy(&word, ask, sizeof word);
    return word;
}

/* 0: as many wait as may. */
static int late_keep(struct rg_side *s, const late_t *l) {
    if (s->n_late == LATE_MOST) return 0;
    s->late[s->n_late++] = *l;
    return 1;
}

static void question_over(struct rg_side *s, uint32_t link, uint64_t peer) {
    with_peer_t *w = &s->with[link];
    if (w->peer == peer && w->open) w->open--;
}

/* What was put by for the answer to one question. NULL: there is no such question. */
static outgoing_t *spare_take(struct rg_side *s) {
    pthread_mutex_lock(&s->out_lock);
    outgoing_t *o = s->spare;
    if (o) s->spare = o->next;
    pthread_mutex_unlock(&s->out_lock);
    return o;
}

static int spare_add(struct rg_side *s) {
    outgoing_t *o = calloc(1, sizeof *o);
    if (!o) return 0;
    pthread_mutex_lock(&s->out_lock);
    o->next = s->spare;
    s->spare = o;
    pthread_mutex_unlock(&s->out_lock);
    return 1;
}

/* A question that gets no answer. */
static void question_drop(struct rg_side *s, uint32_t link, uint64_t peer) {
    question_over(s, link, peer);
    free(spare_take(s));
}

/* Gives a question to its host. The bytes are this function's. */
static void question_hand(rg_group_t *g, uint32_t link, uint64_t peer, uint32_t nr, uint8_t *ask) {
    struct rg_side *s = g->side;
    const rg_side_host_kind_t h = word_of(ask) == RG_SIDE_SERVICE_WORD ? RG_SIDE_SERVICE : RG_SIDE_STATE;
    int answers = word_of(ask) != RG_SIDE_CALL_WORD;
    if (!answers) rg_compare_heard(g, peer, ask);
    else if (s->hosted[h]) answers = s->host[h].asked(s->host[h].user, peer, nr, ask);
    else rg_side_answer(g, h, peer, nr, NULL, 0);
    if (answers < 0 && late_keep(s, &(late_t){ peer, link, nr, ask })) return;
    if (answers <= 0) question_drop(s, link, peer);
    free(ask);
}

/* Counts are of the peer that the link has now: what is left of one before does not matter. */
static void slot_free(struct rg_side *s, slot_t *k) {
    with_peer_t *w = &s->with[k->link];
    uint32_t *n = w->peer == k->peer ? counted(w, k->kind) : NULL;
    if (n && *n) (*n)--;
    if (k->kind == SLOT_ANSWERING) question_over(s, k->link, k->peer);
    s->ended |= k->kind == SLOT_ANSWERING;
    k->kind = SLOT_FREE;
    k->buf = NULL;
    k->next_free = s->first_free;
    s->first_free = (uint32_t)(k - s->slots) + 1;
}

static uint64_t cookie_of(const struct rg_side *s, const slot_t *k) {
    return COOKIE | (uint64_t)k->turn << 32 | (uint64_t)(k - s->slots);
}

static rg_tag_t tag(uint64_t op, uint32_t nr) {
    return (rg_tag_t){ .epoch = TAG_EPOCH, .gen = TAG_GEN, .op = op, .ord = nr, .sig = 1 };
}

/* The slot is free when this calls anybody: they may ask again. */
static void slot_end(rg_group_t *g, slot_t *k, int good) {
    struct rg_side *s = g->side;
    const slot_t was = *k;
    slot_free(s, k);
    if (was.kind == SLOT_TAKING && good) {
        question_hand(g, was.link, was.peer, was.nr, was.buf);
        return;
    }
    if (was.kind == SLOT_TAKING) {
        question_drop(s, was.link, was.peer);
    } else if (was.kind == SLOT_ANSWERING && was.buf && s->hosted[was.host]) {
        s->host[was.host].sent(s->host[was.host].user, was.peer, was.len);
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

/* A question has come. Who has more of them here than anybody who keeps to the limit gets no answer to this one. 0:
 * there was no memory. */
static int take_in(rg_group_t *g, uint32_t link, uint32_t nr) {
    if (!g->links[link].id) return 1;
    const with_peer_t *w = with(g, link);
    if (!w) return 0;
    if (w->open >= OPEN_PER_PEER) return 1;
    uint8_t *buf = malloc(RG_SIDE_ASK);
    if (!buf || !spare_add(g->side)) {
        free(buf);
        return 0;
    }
    slot_t *k = slot_take(g, SLOT_TAKING, link, nr, buf);
    if (!k) {
        free(spare_take(g->side));
        free(buf);
        return 0;
    }
    g->side->with[link].open++;
    post(g, link, (uint32_t)(k - g->side->slots), OP_ASK, RG_SIDE_ASK, 1);
    return 1;
}

static void look_at_late(rg_group_t *g) {
    struct rg_side *s = g->side;
    late_t late[LATE_MOST];
    const uint32_t n = s->n_late;
    memcpy(late, s->late, n * sizeof *late);
    s->n_late = 0;
    for (uint32_t i = 0; i < n; i++) {
        const late_t *l = &late[i];
        if (l->ask) question_hand(g, l->link, l->peer, l->nr, l->ask);
        else if (g->links[l->link].id == l->peer && !take_in(g, l->link, l->nr)) late_keep(s, l);
    }
}

int rg_side_completion(rg_group_t *g, const rg_completion_t *c) {
    struct rg_side *s = g->side;
    if (c->event == RG_TP_UNEXPECTED) {
        if (c->tag.epoch != TAG_EPOCH || c->tag.gen != TAG_GEN) return 0;
        if (c->tag.op == OP_ASK && c->link < g->n_links && !take_in(g, c->link, c->tag.ord))
            late_keep(s, &(late_t){ g->links[c->link].id, c->link, c->tag.ord, NULL });
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
    outgoing_t *o = spare_take(s);
    if (!o) { /* it was answered before */
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

/* Its link may be made anew, and what was counted for the peer then goes on. */
static void answer_gone(rg_group_t *g, outgoing_t *o) {
    struct rg_side *s = g->side;
    const rg_side_host_t *h = &s->host[o->host];
    for (uint32_t i = 0; i < s->n_with; i++)
        if (s->with[i].peer == o->peer && s->with[i].open) s->with[i].open--;
    if (o->answer && s->hosted[o->host]) h->sent(h->user, o->peer, o->len);
    free(o->answer);
    free(o);
}

/* Those that wait for this link, as many as may be under way. */
static void send_answers(rg_group_t *g, uint32_t link) {
    struct rg_side *s = g->side;
    for (outgoing_t *o; (o = s->with[link].first) != NULL;) {
        with_peer_t *w = &s->with[link];
        int there = g->links[link].id == w->peer;
        slot_t *k =
            there && w->answering < ANSWERING_PER_PEER ? slot_take(g, SLOT_ANSWERING, link, o->nr, o->answer) : NULL;
        if (there && !k) {
            s->ended |= !w->answering; /* no memory, and nothing whose end would be the time to look again */
            return;
        }
        w->first = o->next;
        if (!w->first) w->last = NULL;
        if (!k) {
            answer_gone(g, o);
            continue;
        }
        k->host = o->host;
        k->len = o->len;
        uint32_t len = o->len;
        free(o);
        post(g, link, (uint32_t)(k - s->slots), OP_ANSWER, len, 0);
    }
}

static void put_in_line(rg_group_t *g, outgoing_t *o) {
    uint32_t link = rg_link_of(g, o->peer);
    with_peer_t *w = link == NONE ? NULL : with(g, link);
    if (w && w->peer != o->peer) { /* what is in line there was for another peer */
        send_answers(g, link);
        w = with(g, link);
    }
    if (!w) {
        answer_gone(g, o);
        return;
    }
    o->next = NULL;
    if (w->last) w->last->next = o;
    else w->first = o;
    w->last = o;
    send_answers(g, link);
}

void rg_side_tick(rg_group_t *g) {
    struct rg_side *s = g->side;
    if (s->n_late) look_at_late(g);
    if (s->ended) {
        s->ended = 0;
        for (uint32_t i = 0; i < s->n_with; i++)
            if (s->with[i].first) send_answers(g, i);
    }
    if (!atomic_load_explicit(&s->any_out, memory_order_relaxed)) return;
    pthread_mutex_lock(&s->out_lock);
    outgoing_t *o = s->first;
    s->first = NULL;
    s->last = &s->first;
    atomic_store(&s->any_out, 0);
    pthread_mutex_unlock(&s->out_lock);
    while (o) {
        outgoing_t *next = o->next;
        put_in_line(g, o);
        o = next;
    }
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

rg_status_t rg_side_ask(rg_group_t *g, uint64_t peer, const uint8_t ask[RG_SIDE_ASK], uint32_t answer_len,
                        rg_side_answer_fn fn, void *user, uint64_t cookie) {
    struct rg_side *s = g->side;
    uint32_t link = rg_link_of(g, peer), nr = ++s->next_nr;
    if (link == NONE || !g->links[link].up) return RG_ERR_PEER_LOST;
    const with_peer_t *w = with(g, link);
    if (w && w->awaiting >= ASKING_PER_PEER) return RG_ERR_RESOURCE;
    uint8_t *question = malloc(RG_SIDE_ASK), *answer = answer_len ? malloc(answer_len) : NULL;
    slot_t *k = question && (answer || !answer_len) ? slot_take(g, SLOT_ASKING, link, nr, question) : NULL;
    if (!k) {
        free(question);
        free(answer);
        return RG_ERR_NOMEM;
    }
    uint32_t at = (uint32_t)(k - s->slots);
    memcpy(question, ask, RG_SIDE_ASK);
    if (answer_len) { /* first: the answer must find somebody who waits for it */
        slot_t *a = slot_take(g, SLOT_AWAITING, link, nr, answer);
        if (!a) {
            slot_end(g, &s->slots[at], 0);
            free(answer);
            return RG_ERR_NOMEM;
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
