/* member.c: a member's part in a quorum reduction: it gives its contribution when the one who decides asks for it, and
 * fetches the result. It relies on the service's thread. It takes results only from the member that it follows: the
 * first of its view, or one that has taken over. It tells a new one what it has only when it follows that one: so
 * nobody shows a result that the one who decides next does not learn of. */
#include "quorum/quorum.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_MOST 8u
#define CALM 16u /* rounds without a takeover that take one doubling of patience back */

/* ---- Ending a call ----------------------------------------------------------------------------------------------- */

static void finish(rg_quorum_t *q, rg_status_t st, rg_decided_t *d, const char *text) {
    if (d) atomic_fetch_add(&d->refs, 1);
    pthread_mutex_lock(&q->lock);
    rg_decided_put(q->result);
    q->result = d;
    q->status = st;
    snprintf(q->text, sizeof q->text, "%s", text);
    pthread_mutex_unlock(&q->lock);
    q->waiting = 0;
    atomic_store(&q->done, 1);
    rg_service_tell(&q->port);
}

static void finish_decided(rg_quorum_t *q, rg_decided_t *d) {
    char text[256] = "";
    unsigned differ = 0;
    uint64_t who = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        if (d->e[i].came != RG_QUORUM_DIFFERS) continue;
        if (!differ) who = d->e[i].id;
        differ++;
    }
    if (d->status == RG_ERR_NO_QUORUM) snprintf(text, sizeof text, "everybody came, and too few gave something");
    else if (d->status == RG_ERR_MISMATCH)
        snprintf(text, sizeof text,
                 "member %llu has called with another configuration for this id (members that have: %u): all members "
                 "give the same values, but for first and late",
                 (unsigned long long)who, differ);
    finish(q, d->status, d, text);
}

static void finish_gone(rg_quorum_t *q, uint64_t newest) {
    char text[256];
    snprintf(
        text, sizeof text,
        "round %llu was decided, and its result is not kept any more (rounds up to %llu are decided, the last %u are "
        "kept): bring the program's state up to date and call rg_quorum_seek",
        (unsigned long long)q->gift->round, (unsigned long long)newest, q->c.history);
    pthread_mutex_lock(&q->lock);
    if (newest > q->newest) q->newest = newest;
    pthread_mutex_unlock(&q->lock);
    finish(q, RG_ERR_RESOURCE, NULL, text);
}

/* A round was decided by the member that is followed. */
void rg_quorum_calm(rg_quorum_t *q) {
    if (++q->calm < CALM) return;
    q->calm = 0;
    if (q->patience) q->patience--;
}

/* ---- Fetching a result ------------------------------------------------------------------------------------------- */

void rg_quorum_fetch_stop(rg_quorum_t *q) {
    rg_decided_put(q->fetch.d);
    q->fetch = (rg_fetching_t){ .turn = q->fetch.turn + 1, .cap = q->fetch.cap };
}

/* From here on only this member's decisions are taken. */
void rg_quorum_follow(rg_quorum_t *q, uint64_t leader, uint32_t term) {
    if (q->leader == q->self) rg_decide_step_down(q);
    if (term && q->patience < PATIENCE_MOST) q->patience++;
    if (term) q->calm = 0; /* a change of the view is no sign of haste */
    q->leader = leader;
    q->term = term;
    q->pinging = q->asking_news = 0;
    q->silent_ns = q->again_ns = 0;
    rg_quorum_fetch_stop(q);
    if (q->pulled && q->pull.peer != leader) {
        rg_service_answer(&q->port, &q->pull, NULL, 0);
        q->pulled = 0;
    }
}

static int fetch_ask(rg_quorum_t *q, rg_sask_kind_t kind, uint64_t off, uint32_t cap) {
    rg_fetching_t *f = &q->fetch;
    const rg_sask_t ask = { .kind = kind,
                            .terms = q->terms,
                            .round = f->round,
                            .off = off,
                            .len = rg_quorum_chunk(q, off),
                            .cap = cap,
                            .epoch = q->epoch,
                            .turn = f->turn };
    if (!rg_service_ask(&q->port, f->from, &ask, RG_SERVICE_HEAD + cap * RG_QUORUM_ENTRY + ask.len)) return 0;
    f->flying++;
    return 1;
}

void rg_quorum_fetch(rg_quorum_t *q, rg_sask_kind_t kind, uint64_t round, uint64_t from) {
    rg_fetching_t *f = &q->fetch;
    rg_quorum_fetch_stop(q);
    f->on = 1;
    f->round = round;
    f->from = from;
    uint32_t cap = q->port.sv->n > f->cap ? q->port.sv->n : f->cap;
    f->cap = cap;
    f->next_off = rg_quorum_chunk(q, 0);
    if (!fetch_ask(q, kind, 0, cap)) {
        rg_quorum_fetch_stop(q);
        rg_decide_fetch_failed(q, from);
    }
}

static void fetch_failed(rg_quorum_t *q, const rg_sask_t *ask, int refused, uint64_t now) {
    uint64_t from = q->fetch.from;
    rg_quorum_fetch_stop(q);
    rg_decide_fetch_failed(q, from);
    q->again_ns = now + RG_QUORUM_AGAIN_NS;
    if (ask->kind != RG_SASK_GET || !refused || from != q->leader) return;
    q->ahead_refused = !q->waiting; /* asked for again when the program calls */
    if (!q->waiting) return;
    const rg_sask_t news = { .kind = RG_SASK_NEWS, .terms = q->terms, .off = NEWS_TELL };
    q->asking_news = rg_service_ask(&q->port, from, &news, RG_SERVICE_HEAD);
}

static void fetch_done(rg_quorum_t *q) {
    rg_decided_t *d = q->fetch.d;
    uint64_t from = q->fetch.from, round = d->round;
    q->fetch.d = NULL;
    rg_quorum_fetch_stop(q);
    if (d->epoch == q->epoch) q->fresh_epoch = q->epoch;
    if (from == q->leader) rg_quorum_calm(q);
    rg_quorum_keep(q, d);
    q->again_ns = 0;
    if (!q->c.takeover_us || from != q->leader) return;
    const rg_sask_t kept = {
        .kind = RG_SASK_NEWS, .terms = q->terms, .off = NEWS_KEPT, .round = round, .epoch = q->epoch
    };
    rg_service_ask(&q->port, from, &kept, RG_SERVICE_HEAD);
}

/* The first answer of a result. 0: it must be asked for again. */
static int fetch_begun(rg_quorum_t *q, const rg_sask_t *ask, const uint8_t *bytes) {
    rg_fetching_t *f = &q->fetch;
    rg_shead_t h;
    rg_shead_get(&h, bytes);
    if (h.n > ask->cap) f->cap = h.n <= RG_QUORUM_CAP ? h.n : f->cap;
    if (h.terms != q->terms || h.round != f->round || h.n > ask->cap) return 0;
    int good = h.status == (uint32_t)RG_OK;
    f->d = rg_decided_new(h.n, good ? q->bytes : 0);
    if (!f->d) return 0;
    f->d->round = h.round;
    f->d->decider = h.first;
    f->d->epoch = h.epoch;
    f->d->waited_ns = h.kept;
    f->d->weight_sum = h.weight;
    f->d->status = good ? RG_OK : h.status == (uint32_t)RG_ERR_MISMATCH ? RG_ERR_MISMATCH : RG_ERR_NO_QUORUM;
    pthread_mutex_lock(&q->lock);
    if (h.version > q->newest) q->newest = h.version;
    pthread_mutex_unlock(&q->lock);
    rg_entries_get(f->d->e, h.n, bytes + RG_SERVICE_HEAD);
    f->have = good ? 0 : q->bytes - ask->len;
    if (!good) f->next_off = q->bytes;
    return 1;
}

static void fetched(rg_quorum_t *q, const rg_sask_t *ask, const uint8_t *bytes, int refused) {
    rg_fetching_t *f = &q->fetch;
    if (!f->on || ask->turn != f->turn) return;
    f->flying--;
    if (bytes && ask->off == 0 && !fetch_begun(q, ask, bytes)) bytes = NULL;
    if (!bytes) {
        fetch_failed(q, ask, refused, rg_service_now(&q->port));
        return;
    }
    if (f->d->data && ask->len)
        memcpy((uint8_t *)f->d->data + ask->off, bytes + RG_SERVICE_HEAD + ask->cap * RG_QUORUM_ENTRY, ask->len);
    f->have += ask->len;
    while (f->next_off < q->bytes && f->flying < RG_QUORUM_WINDOW) {
        uint64_t off = f->next_off;
        if (!fetch_ask(q, RG_SASK_MORE, off, 0)) {
            fetch_failed(q, ask, 0, rg_service_now(&q->port));
            return;
        }
        f->next_off += rg_quorum_chunk(q, off);
    }
    if (f->have >= q->bytes) fetch_done(q);
}

/* The one who decides has refused: because it does not decide (yet), because the round is long over, or because its
 * configuration is another one. */
static void news_came(rg_quorum_t *q, uint64_t peer, const uint8_t *bytes) {
    rg_shead_t h;
    q->asking_news = 0;
    q->again_ns = rg_service_now(&q->port) + RG_QUORUM_AGAIN_NS;
    if (!bytes || !q->waiting || peer != q->leader) return;
    rg_shead_get(&h, bytes);
    if (h.terms != q->terms) {
        char text[256];
        snprintf(text, sizeof text,
                 "the first member of the group (member %llu) has another configuration for this id: all members give "
                 "the same values, but for first and late",
                 (unsigned long long)peer);
        finish(q, RG_ERR_MISMATCH, NULL, text);
        return;
    }
    uint64_t age = h.round - q->gift->round;
    if (h.first == peer && h.n && h.round >= q->gift->round && (age >= 64 || !(h.kept >> age & 1)))
        finish_gone(q, h.round);
}

/* ---- Giving ------------------------------------------------------------------------------------------------------ */

static void answer_gift(rg_quorum_t *q, const rg_asked_t *a, uint64_t off) {
    const rg_gift_t *g = q->gift;
    const rg_shead_t h = {
        .terms = q->terms, .round = g->round, .version = g->version, .weight = g->data || !q->bytes ? g->weight : 0
    };
    uint32_t len = rg_quorum_chunk(q, off);
    uint8_t *to = rg_service_room(&h, len);
    if (to && g->data) memcpy(to + RG_SERVICE_HEAD, (const uint8_t *)g->data + off, len);
    else if (to) memset(to + RG_SERVICE_HEAD, 0, len);
    rg_service_answer(&q->port, a, to, RG_SERVICE_HEAD + len);
}

static void give(rg_quorum_t *q) {
    if (!q->pulled || !q->gift || q->gift->round < q->pull.q.round) return;
    q->pulled = 0;
    answer_gift(q, &q->pull, 0);
}

static void pulled(rg_quorum_t *q, const rg_asked_t *a) {
    if (q->pulled) rg_service_answer(&q->port, &q->pull, NULL, 0);
    q->pulled = 1;
    q->pull = *a;
    give(q);
}

/* ---- What others ask --------------------------------------------------------------------------------------------- */

static int is_member(const rg_quorum_t *q, uint64_t id) {
    for (uint32_t i = 0; i < q->port.sv->n; i++)
        if (q->port.sv->ids[i] == id) return 1;
    return 0;
}

static void tell_news(rg_quorum_t *q, const rg_asked_t *a) {
    int decides =
        q->leader == q->self && q->ready; /* and what it has sent may be shown: it follows who went on without */
    if (a->q.epoch == q->epoch && a->q.off == NEWS_FOLLOW && a->q.round > q->term && !decides &&
        rg_decide_term_of(q, a->peer, a->q.round))
        rg_quorum_follow(q, a->peer, (uint32_t)a->q.round);
    else if (a->q.off == NEWS_FOLLOW && a->peer == q->leader && q->c.takeover_us)
        rg_quorum_fetch_stop(q); /* it may have given up what it sent before */
    else if (a->q.off == NEWS_KEPT && a->q.epoch == q->epoch && q->ready && a->q.round < q->open &&
             a->q.round > q->acked && is_member(q, a->peer))
        q->acked = a->q.round;
    if (a->q.off == NEWS_TELL && a->q.terms != q->terms) rg_decide_doubt(q, a->peer);
    const rg_shead_t h = { .terms = q->terms,
                           .epoch = q->epoch,
                           .version = q->term,
                           .status = q->fresh_epoch == q->epoch,
                           .round = rg_quorum_newest(q),
                           .first = q->leader,
                           .kept = rg_quorum_kept_bits(q),
                           .n = (uint32_t)decides };
    rg_service_answer(&q->port, a, rg_service_room(&h, 0), RG_SERVICE_HEAD);
}

static void result_wanted(rg_quorum_t *q, const rg_asked_t *a) {
    const rg_decided_t *d = rg_quorum_kept(q, a->q.round);
    int mine = a->q.kind == RG_SASK_GET && q->leader == q->self;
    if (d) rg_quorum_answer_result(q, a, d);
    else if (mine && (!q->ready || a->q.round >= q->open)) rg_decide_hold(q, a);
    else rg_service_answer(&q->port, a, NULL, 0);
}

/* ---- Taking over within a view ----------------------------------------------------------------------------------- */

static void heard(rg_quorum_t *q, uint64_t peer, const uint8_t *bytes) {
    if (q->leader == q->self) rg_decide_acked(q, peer, bytes);
    if (peer != q->leader) return;
    q->pinging = 0;
}

/* Anything that comes from the one who decides tells that it is there: where links are slow and full, the answer to the
 * question comes after much else. */
static void sign_of_life(rg_quorum_t *q, uint64_t peer) {
    if (peer == q->leader) q->silent_ns = 0;
}

/* While a result is awaited the one who decides is asked now and then whether it is there. When it says nothing for the
 * time, this member claims to decide, the first of the others first. Only who has a result of this view may: then all
 * that was shown before the view is known to be decided. The time for which this process was stopped itself does not
 * count. Patience doubles with every takeover, and rounds that pass without one take that back: where answers take
 * longer than the time, on a starved host, members would take the deciding from each other for ever. Both outlive the
 * view: they tell of hosts and links, which are the same in the next one, and too much patience costs at most the
 * heartbeat in which a member that is stopped leaves the view anyhow. */
static void watch(rg_quorum_t *q, uint64_t now, uint64_t *at) {
    uint64_t limit = q->c.takeover_us * 1000ull << q->patience, part = limit / 4 + 1, since = now - q->watched_ns;
    int position = rg_decide_position(q);
    q->watched_ns = now;
    if (!limit || !q->waiting || !q->leader || q->leader == q->self || position < 0) {
        q->silent_ns = 0;
        return;
    }
    if (q->pinging) q->silent_ns += since < part ? since : part;
    if (!q->pinging && now >= q->ping_ns) {
        const rg_sask_t ping = { .kind = RG_SASK_NEWS, .terms = q->terms, .off = NEWS_PING, .epoch = q->epoch };
        q->pinging = rg_service_ask(&q->port, q->leader, &ping, RG_SERVICE_HEAD);
        q->ping_ns = now + part;
    }
    if (now + part < *at) *at = now + part;
    if (q->silent_ns < limit + limit / 2 * (uint64_t)position || q->fresh_epoch != q->epoch) return;
    rg_decide_claim(q);
    *at = now;
}

/* ---- The port ---------------------------------------------------------------------------------------------------- */

/* The first of the members of the view, and of the sub-group, is followed. Where the deciding may be taken over within
 * a view, the one that goes on with it asks the others first, as a new one does. */
static void see_view(rg_quorum_t *q) {
    const rg_service_t *sv = q->port.sv;
    uint64_t first = 0;
    if (q->epoch == sv->epoch) return;
    q->epoch = sv->epoch;
    if (!q->set && sv->n) first = sv->ids[0];
    for (uint32_t i = 0; q->set && i < q->n_set && !first; i++)
        if (is_member(q, q->set[i])) first = q->set[i];
    if (q->c.takeover_us || first != q->leader) rg_quorum_follow(q, first, 0);
    else if (q->fetch.on && !is_member(q, q->fetch.from)) rg_quorum_fetch_stop(q);
    rg_decide_view(q);
}

static void asked(rg_port_t *p, const rg_asked_t *a) {
    rg_quorum_t *q = (rg_quorum_t *)(void *)p;
    see_view(q);
    sign_of_life(q, a->peer);
    if (a->q.kind == RG_SASK_PULL && a->q.epoch == q->epoch && a->q.cap > q->term &&
        rg_decide_term_of(q, a->peer, a->q.cap))
        rg_quorum_follow(q, a->peer, a->q.cap); /* it took over while this process was stopped */
    if (a->q.kind == RG_SASK_NEWS) {
        tell_news(q, a);
        return;
    }
    int good = a->q.terms == q->terms && is_member(q, a->peer) && a->q.len == rg_quorum_chunk(q, a->q.off) &&
               a->q.off <= q->bytes && (a->q.kind == RG_SASK_PULL || a->q.cap <= RG_QUORUM_CAP);
    if (good && a->q.kind == RG_SASK_GET) rg_decide_alike(q, a->peer);
    if (good && (a->q.kind == RG_SASK_GET || a->q.kind == RG_SASK_MORE)) result_wanted(q, a);
    else if (good && a->q.kind == RG_SASK_PULL && a->peer == q->leader && a->q.off == 0) pulled(q, a);
    else if (good && a->q.kind == RG_SASK_DATA && q->gift && q->gift->round == a->q.round) answer_gift(q, a, a->q.off);
    else rg_service_answer(p, a, NULL, 0);
}

static void answered(rg_port_t *p, uint64_t peer, const rg_sask_t *ask, const uint8_t *bytes, int refused) {
    rg_quorum_t *q = (rg_quorum_t *)(void *)p;
    see_view(q);
    if (bytes) sign_of_life(q, peer);
    if (ask->kind == RG_SASK_GET || ask->kind == RG_SASK_MORE) fetched(q, ask, bytes, refused);
    else if (ask->kind == RG_SASK_NEWS && ask->off == NEWS_TELL) {
        rg_decide_doubt_answered(q, peer, bytes, refused);
        news_came(q, peer, bytes);
    } else if (ask->kind == RG_SASK_NEWS && ask->off == NEWS_PING) heard(q, peer, bytes);
    else if (ask->kind == RG_SASK_NEWS && ask->off == NEWS_KEPT) return;
    else rg_decide_answered(q, peer, ask, bytes, refused);
}

static void adopt(rg_quorum_t *q) {
    pthread_mutex_lock(&q->lock);
    rg_gift_t *given = q->given;
    q->given = NULL;
    pthread_mutex_unlock(&q->lock);
    if (!given) return;
    rg_gift_put(q->gift);
    q->gift = given;
    q->waiting = 1;
    q->ahead_refused = 0;
    q->again_ns = 0;
    give(q);
}

/* The round whose result is fetched: that which the program waits for or, while it computes, the first that it will
 * want and is not here, whether it is decided yet or not. So a call for a round that is over takes no time on the way,
 * and a member that is behind, and computes as long as the others, comes nearer with every round. 0: none. */
static uint64_t wanted(const rg_quorum_t *q) {
    uint64_t round = q->gift ? q->gift->round : 0;
    if (q->waiting) return round;
    for (uint64_t i = 1; round && !q->ahead_refused && i <= q->c.history; i++)
        if (!rg_quorum_kept(q, round + i)) return round + i;
    return 0;
}

static void fetch_wanted(rg_quorum_t *q, uint64_t now, uint64_t *at) {
    uint64_t round = wanted(q);
    if (q->fetch.on && q->waiting && q->fetch.round != round) rg_quorum_fetch_stop(q); /* the program skipped it */
    if (!round || q->fetch.on || q->asking_news || !q->leader) return;
    if (now >= q->again_ns) {
        q->again_ns = now + RG_QUORUM_AGAIN_NS;
        rg_quorum_fetch(q, RG_SASK_GET, round, q->leader);
    }
    if (q->again_ns < *at && !q->fetch.on) *at = q->again_ns;
}

static void await_result(rg_quorum_t *q, uint64_t now, uint64_t *at) {
    rg_decided_t *d = q->waiting ? rg_quorum_kept(q, q->gift->round) : NULL;
    if (d && (q->leader != q->self || rg_decide_may_show(q, d->round))) finish_decided(q, d);
    else if (d) rg_decide_ask_acks(q, now, at);
    else if (q->waiting && q->leader == q->self && q->ready && q->gift->round < q->open) finish_gone(q, q->open - 1);
    if (q->leader != q->self) fetch_wanted(q, now, at);
}

static uint64_t step(rg_port_t *p, uint64_t now) {
    rg_quorum_t *q = (rg_quorum_t *)(void *)p;
    uint64_t at = UINT64_MAX;
    see_view(q);
    adopt(q);
    if (p->sv->over) {
        if (q->waiting) finish(q, p->sv->over, NULL, "the group is over for this process");
        return at;
    }
    if (q->leader == q->self) at = rg_decide_step(q, now);
    await_result(q, now, &at);
    watch(q, now, &at);
    return at;
}

/* Others' questions must not wait for one that has no such port any more. */
static void gone(rg_port_t *p) {
    rg_quorum_t *q = (rg_quorum_t *)(void *)p;
    for (uint32_t i = 0; i < q->n_held; i++) rg_service_answer(p, &q->held[i], NULL, 0);
    if (q->pulled) rg_service_answer(p, &q->pull, NULL, 0);
    q->n_held = 0;
    q->pulled = 0;
}

const rg_port_ops_t rg_quorum_port = { asked, answered, step, gone };
