/* decide.c: the part of a quorum reduction's first member, which decides. Before its first decision it asks every other
 * member of the view what it has, and fetches what it lacks: whatever anybody who stays has shown is known here from
 * then on. A member that is stopped holds that up until the view is without it; once it is done nobody can. It relies
 * on the service's thread and on tally.h for when and who, and must not decide a round that anybody may have shown. */
#include "quorum/quorum.h"

#include <stdlib.h>
#include <string.h>

#define ACKS_NS 20000000u

/* ---- Places ------------------------------------------------------------------------------------------------------ */

static rg_place_t *place_of(rg_quorum_t *q, uint64_t id) {
    for (uint32_t i = 0; i < q->n_places; i++)
        if (q->places[i].seat.id == id) return &q->places[i];
    return NULL;
}

static void unload(rg_place_t *p) {
    free(p->data);
    p->data = NULL;
    p->loading = 0;
    p->turn++;
    p->flying = 0;
}

/* The members that there are now, in rank order. */
static uint32_t members(const rg_quorum_t *q, uint64_t *ids) {
    const rg_service_t *sv = q->port.sv;
    uint32_t n = 0;
    if (!q->set) {
        memcpy(ids, sv->ids, sv->n * sizeof *ids);
        return sv->n;
    }
    for (uint32_t k = 0; k < q->n_set; k++)
        for (uint32_t i = 0; i < sv->n; i++)
            if (sv->ids[i] == q->set[k]) ids[n++] = q->set[k];
    return n;
}

/* Whoever is new is waited for when it has been in time once, but for those of the beginning. */
void rg_decide_view(rg_quorum_t *q) {
    uint32_t cap = q->port.sv->n + 1;
    uint64_t *ids = malloc(cap * sizeof *ids);
    rg_place_t *fresh = calloc(cap, sizeof *fresh);
    if (!ids || !fresh) { /* looked at again with the next turn */
        free(ids);
        free(fresh);
        q->epoch = 0;
        return;
    }
    uint32_t n = members(q, ids);
    for (uint32_t i = 0; i < n; i++) {
        rg_place_t *was = place_of(q, ids[i]);
        fresh[i] = was ? *was : (rg_place_t){ .seat = { .id = ids[i], .lagging = q->ready } };
        if (was) was->data = NULL;
        if (!q->ready) fresh[i].heard = 0;
    }
    for (uint32_t i = 0; i < q->n_places; i++) free(q->places[i].data);
    free(q->places);
    free(ids);
    q->places = fresh;
    q->n_places = n;
    if (q->leader != q->self) q->ready = 0;
}

/* ---- What the others have ---------------------------------------------------------------------------------------- */

static void ask_news(rg_quorum_t *q, rg_place_t *p, uint64_t now, uint64_t *at) {
    if (now >= p->again_ns) {
        const rg_sask_t ask = {
            .kind = RG_SASK_NEWS, .terms = q->terms, .off = NEWS_FOLLOW, .round = q->term, .epoch = q->epoch
        };
        p->asking = rg_service_ask(&q->port, p->seat.id, &ask, RG_SERVICE_HEAD);
        p->again_ns = now + RG_QUORUM_AGAIN_NS;
    }
    if (!p->asking && p->again_ns < *at) *at = p->again_ns;
}

static void news_came(rg_quorum_t *q, rg_place_t *p, const uint8_t *bytes, int refused) {
    rg_shead_t h = { 0 };
    p->asking = 0;
    if (bytes) rg_shead_get(&h, bytes);
    if (bytes && h.epoch == q->epoch && h.version > q->term && h.first != q->self &&
        rg_decide_term_of(q, h.first, h.version)) { /* another one was faster */
        rg_quorum_follow(q, h.first, (uint32_t)h.version);
        return;
    }
    int mine = h.first == q->self && (!q->c.takeover_us || (h.epoch == q->epoch && h.version == q->term));
    if (bytes ? !mine : !refused) return; /* it has not seen this view yet, or its link broke */
    p->heard = 1;
    p->news_round = bytes && h.terms == q->terms ? h.round : 0;
    p->news_kept = h.kept;
}

static int has(const rg_place_t *p, uint64_t round) {
    uint64_t age = p->news_round - round;
    return p->heard && p->news_round >= round && age < 64 && (p->news_kept >> age & 1);
}

void rg_decide_fetch_failed(rg_quorum_t *q, uint64_t from) {
    rg_place_t *p = place_of(q, from);
    if (q->leader == q->self && p && !q->ready) p->heard = 0;
}

/* Fetches one of the results that somebody has and this one lacks; 0: there is none. */
static int fetch_missing(rg_quorum_t *q, uint64_t newest) {
    if (q->fetch.on) return 1;
    for (uint64_t i = 0; i < q->c.history && i < newest; i++) {
        if (rg_quorum_kept(q, newest - i)) continue;
        for (uint32_t k = 0; k < q->n_places; k++)
            if (has(&q->places[k], newest - i)) {
                rg_quorum_fetch(q, RG_SASK_MORE, newest - i, q->places[k].seat.id);
                return 1;
            }
    }
    return 0;
}

static void begin_to_decide(rg_quorum_t *q, uint64_t newest) {
    const rg_decided_t *d = rg_quorum_kept(q, newest);
    q->open = newest + 1 > q->c.first ? newest + 1 : q->c.first;
    q->ready = 1;
    q->acked = newest;
    q->prev_kth_ns = 0;
    rg_tally_open(&q->tally);
    for (uint32_t i = 0; i < q->n_places; i++) {
        rg_place_t *p = &q->places[i];
        unload(p);
        p->seat = (rg_seat_t){ .id = p->seat.id };
        p->again_ns = 0;
        for (uint32_t k = 0; d && k < d->n; k++)
            if (d->e[k].id == p->seat.id) p->seat.lagging = !d->e[k].came;
    }
}

/* What nobody else is known to have was not shown, and may be decided otherwise. */
void rg_decide_step_down(rg_quorum_t *q) {
    for (uint32_t i = 0; q->c.takeover_us && q->ready && i < q->c.history; i++)
        if (q->kept[i] && q->kept[i]->round > q->acked) {
            rg_decided_put(q->kept[i]);
            q->kept[i] = NULL;
        }
    for (uint32_t i = 0; i < q->n_places; i++) {
        unload(&q->places[i]);
        q->places[i].heard = q->places[i].asking = q->places[i].pulling = 0;
        q->places[i].pull_turn++; /* what was asked for may be a round that is not open for long */
        q->places[i].ahead = 0;
    }
    for (uint32_t i = 0; i < q->n_held; i++) rg_service_answer(&q->port, &q->held[i], NULL, 0);
    q->n_held = 0;
    q->ready = 0;
}

/* Where somebody may take over, the one who decides shows a result when somebody else has it. */
int rg_decide_may_show(const rg_quorum_t *q, uint64_t round) {
    return !q->c.takeover_us || q->n_places == 1 || round <= q->acked;
}

void rg_decide_ask_acks(rg_quorum_t *q, uint64_t now, uint64_t *at) {
    const rg_sask_t ask = { .kind = RG_SASK_NEWS, .terms = q->terms, .off = NEWS_PING, .epoch = q->epoch };
    if (now >= q->again_ns) {
        for (uint32_t i = 0; q->again_ns && i < q->n_places; i++) {
            rg_place_t *p = &q->places[i];
            if (p->seat.id == q->self || p->asking) continue;
            p->asking = rg_service_ask(&q->port, p->seat.id, &ask, RG_SERVICE_HEAD);
        }
        q->again_ns = now + ACKS_NS;
    }
    if (q->again_ns < *at) *at = q->again_ns;
}

void rg_decide_acked(rg_quorum_t *q, uint64_t peer, const uint8_t *bytes) {
    rg_place_t *p = place_of(q, peer);
    rg_shead_t h;
    if (!p) return;
    p->asking = 0;
    if (!bytes || !q->ready) return;
    rg_shead_get(&h, bytes);
    if (h.terms == q->terms && h.epoch == q->epoch && h.version == q->term && h.first == q->self && h.round < q->open &&
        h.round > q->acked)
        q->acked = h.round;
}

/* Whether this may be a term of this member's: others' claims are believed no further. */
int rg_decide_term_of(const rg_quorum_t *q, uint64_t id, uint64_t term) {
    uint64_t rank = term & (RG_QUORUM_CAP - 1);
    return term <= UINT32_MAX && rank < q->n_places && q->places[rank].seat.id == id;
}

/* In place of one that is silent. A term is this member's alone: its low bits are the rank. Where there is no higher
 * one, the next view is waited for. */
void rg_decide_claim(rg_quorum_t *q) {
    uint32_t rank = 0;
    while (rank < q->n_places && q->places[rank].seat.id != q->self) rank++;
    uint64_t term = ((uint64_t)(q->term / RG_QUORUM_CAP) + 1) * RG_QUORUM_CAP + rank;
    if (rank >= RG_QUORUM_CAP || !rg_decide_term_of(q, q->self, term)) return;
    rg_quorum_follow(q, q->self, (uint32_t)term);
    rg_decide_step_down(q);
}

int rg_decide_position(const rg_quorum_t *q) {
    int position = 0;
    for (uint32_t i = 0; i < q->n_places; i++) {
        if (q->places[i].seat.id == q->self) return position;
        position += q->places[i].seat.id != q->leader;
    }
    return -1;
}

static uint64_t take_over(rg_quorum_t *q, uint64_t now) {
    uint64_t at = UINT64_MAX, newest = rg_quorum_newest(q);
    uint32_t left = 0;
    for (uint32_t i = 0; i < q->n_places; i++) {
        rg_place_t *p = &q->places[i];
        if (p->seat.id == q->self) continue;
        left += !p->heard;
        if (!p->heard && !p->asking) ask_news(q, p, now, &at);
        if (p->news_round > newest) newest = p->news_round;
    }
    if (q->term && left <= 1) left = 0; /* the one whose place is taken: what it has shown somebody else has, too */
    if (left || fetch_missing(q, newest)) return left && !q->fetch.on ? at : now + RG_QUORUM_AGAIN_NS;
    begin_to_decide(q, newest);
    return now;
}

/* ---- Contributions ----------------------------------------------------------------------------------------------- */

static void load_more(rg_quorum_t *q, rg_place_t *p) {
    while (p->next_off < q->bytes && p->flying < RG_QUORUM_WINDOW) {
        const rg_sask_t ask = { .kind = RG_SASK_DATA,
                                .terms = q->terms,
                                .round = q->open,
                                .off = p->next_off,
                                .len = rg_quorum_chunk(q, p->next_off),
                                .turn = p->turn };
        if (!rg_service_ask(&q->port, p->seat.id, &ask, RG_SERVICE_HEAD + ask.len)) {
            unload(p);
            return;
        }
        p->flying++;
        p->next_off += ask.len;
    }
}

static void load(rg_quorum_t *q, rg_place_t *p, const rg_sask_t *ask, const uint8_t *bytes) {
    memcpy((uint8_t *)p->data + ask->off, bytes + RG_SERVICE_HEAD, ask->len);
    p->have += ask->len;
    if (p->have >= q->bytes) {
        p->loading = 0;
        rg_tally_arrive(&q->tally, &p->seat, 1);
    } else load_more(q, p);
}

static void pull_came(rg_quorum_t *q, rg_place_t *p, const rg_sask_t *ask, const uint8_t *bytes) {
    rg_shead_t h;
    if (ask->turn != p->pull_turn) return;
    p->pulling = 0;
    if (!bytes || !q->ready) return;
    rg_shead_get(&h, bytes);
    if (h.terms != q->terms) return;
    uint64_t now = rg_service_now(&q->port);
    p->differs = p->differed = 0;
    if (h.round > q->open) p->ahead = h.round;
    if (h.round + 1 == q->open && rg_tally_forgives(&q->tally, q->prev_kth_ns, now)) p->seat.lagging = 0;
    p->again_ns = 0;
    if (h.round != q->open || p->seat.arrived || p->loading) return;
    p->version = h.version;
    p->weight = rg_quorum_weight_ok(h.weight) ? h.weight : 0;
    if (p->weight <= 0) {
        rg_tally_arrive(&q->tally, &p->seat, 0);
        return;
    }
    unload(p);
    p->data = malloc(q->bytes ? q->bytes : 1);
    if (!p->data) {
        p->again_ns = now + RG_QUORUM_AGAIN_NS;
        return;
    }
    p->loading = 1;
    p->have = 0;
    p->next_off = ask->len;
    load(q, p, ask, bytes);
}

void rg_decide_answered(rg_quorum_t *q, uint64_t peer, const rg_sask_t *ask, const uint8_t *bytes, int refused) {
    rg_place_t *p = place_of(q, peer);
    if (!p) return;
    p->again_ns = rg_service_now(&q->port) + RG_QUORUM_AGAIN_NS;
    if (ask->kind == RG_SASK_NEWS) news_came(q, p, bytes, refused);
    else if (ask->kind == RG_SASK_PULL) pull_came(q, p, ask, bytes);
    else if (ask->kind == RG_SASK_DATA && p->loading && ask->turn == p->turn && ask->round == q->open) {
        p->flying--;
        if (bytes) load(q, p, ask, bytes);
        else unload(p);
    }
}

static void collect(rg_quorum_t *q, uint64_t now, uint64_t *at) {
    for (uint32_t i = 0; i < q->n_places; i++) {
        rg_place_t *p = &q->places[i];
        if (p->seat.arrived || p->loading || p->pulling || p->ahead > q->open) continue;
        if (p->seat.id == q->self) {
            if (!q->gift || q->gift->round != q->open) continue;
            p->version = q->gift->version;
            p->weight = q->gift->weight;
            rg_tally_arrive(&q->tally, &p->seat, q->gift->weight > 0);
            continue;
        }
        if (now >= p->again_ns) {
            const rg_sask_t ask = { .kind = RG_SASK_PULL,
                                    .terms = q->terms,
                                    .round = q->open,
                                    .len = rg_quorum_chunk(q, 0),
                                    .turn = p->pull_turn,
                                    .cap = q->term,
                                    .epoch = q->epoch };
            p->pulling = rg_service_ask(&q->port, p->seat.id, &ask, RG_SERVICE_HEAD + ask.len);
            p->again_ns = now + RG_QUORUM_AGAIN_NS;
        }
        if (!p->pulling && p->again_ns < *at) *at = p->again_ns;
    }
}

/* ---- Other configurations ---------------------------------------------------------------------------------------- */

/* A member that has called, and is told here that its configuration is another one, is asked back before that counts:
 * one question of other terms may have been under way while the reduction was made anew. */
void rg_decide_doubt(rg_quorum_t *q, uint64_t peer) {
    rg_place_t *p = q->leader == q->self ? place_of(q, peer) : NULL;
    if (p && !p->doubtful) p->doubtful = 1;
}

/* Refused: it has no such reduction any more, for its call has failed. */
void rg_decide_doubt_answered(rg_quorum_t *q, uint64_t peer, const uint8_t *bytes, int refused) {
    rg_place_t *p = place_of(q, peer);
    rg_shead_t h = { 0 };
    if (!p || p->doubtful != 2) return;
    p->doubtful = 0;
    if (bytes) rg_shead_get(&h, bytes);
    if (bytes ? h.terms == q->terms : !refused) return;
    p->differs = p->differed = 1;
}

void rg_decide_alike(rg_quorum_t *q, uint64_t peer) {
    rg_place_t *p = place_of(q, peer);
    if (p) p->differs = p->differed = 0;
}

static void ask_doubtful(rg_quorum_t *q, uint64_t now, uint64_t *at) {
    const rg_sask_t ask = { .kind = RG_SASK_NEWS, .terms = q->terms, .off = NEWS_TELL };
    for (uint32_t i = 0; i < q->n_places; i++) {
        rg_place_t *p = &q->places[i];
        if (p->doubtful != 1) continue;
        if (rg_service_ask(&q->port, p->seat.id, &ask, RG_SERVICE_HEAD)) p->doubtful = 2;
        else if (now + RG_QUORUM_AGAIN_NS < *at) *at = now + RG_QUORUM_AGAIN_NS;
    }
}

/* Somebody has called with another configuration, and somebody without: the round that is open is an error for all. It
 * waits for the latter, so that one that calls again and again uses up no rounds. */
static int mismatched(const rg_quorum_t *q) {
    int differed = 0, came = 0;
    for (uint32_t i = 0; i < q->n_places; i++) {
        differed |= q->places[i].differed;
        came |= q->places[i].seat.arrived;
    }
    return differed && came;
}

/* All others have another configuration: nobody is there who could keep a result, or decide otherwise. */
static int nobody_alike(const rg_quorum_t *q) {
    for (uint32_t i = 0; i < q->n_places; i++)
        if (q->places[i].seat.id != q->self && !q->places[i].differs) return 0;
    return 1;
}

/* ---- Deciding ---------------------------------------------------------------------------------------------------- */

/* In rank order, in blocks that stay in the cache. */
static void reduce(const rg_quorum_t *q, rg_decided_t *d) {
    rg_numbers_t block;
    int whole = rg_numbers_whole(q->c.dtype);
    double by = q->c.op == RG_AVG ? d->weight_sum : 1;
    for (uint64_t i = 0; i < q->c.count; i += RG_NUMBERS) {
        uint64_t n = q->c.count - i < RG_NUMBERS ? q->c.count - i : RG_NUMBERS;
        rg_numbers_clear(&block);
        for (uint32_t k = 0; k < q->n_places; k++) {
            const rg_place_t *p = &q->places[k];
            const void *x = p->seat.id == q->self ? (q->gift ? q->gift->data : NULL) : p->data;
            if (p->seat.taken && x) rg_numbers_add(q->c.dtype, &block, x, i, n, whole ? 1 : p->weight);
        }
        rg_numbers_put(q->c.dtype, &block, d->data, i, n, by);
    }
}

void rg_quorum_answer_result(rg_quorum_t *q, const rg_asked_t *a, const rg_decided_t *d) {
    uint32_t fits = d->n <= a->q.cap ? d->n : 0;
    uint64_t entries = (uint64_t)a->q.cap * RG_QUORUM_ENTRY;
    const rg_shead_t h = { .terms = q->terms,
                           .round = d->round,
                           .first = d->decider,
                           .epoch = d->epoch,
                           .kept = d->waited_ns,
                           .version = rg_quorum_newest(q),
                           .weight = d->weight_sum,
                           .n = d->n,
                           .status = (uint32_t)d->status };
    uint8_t *to = rg_service_room(&h, entries + a->q.len), *at = to ? to + RG_SERVICE_HEAD : NULL;
    if (at) memset(at, 0, entries);
    if (at && fits) rg_entries_put(d->e, fits, at);
    if (at && d->data) memcpy(at + entries, (const uint8_t *)d->data + a->q.off, a->q.len);
    else if (at) memset(at + entries, 0, a->q.len);
    rg_service_answer(&q->port, a, to, (uint32_t)(RG_SERVICE_HEAD + entries + a->q.len));
}

/* One that waits of each member: it has given up what it asked for before. */
void rg_decide_hold(rg_quorum_t *q, const rg_asked_t *a) {
    uint32_t i = 0;
    while (i < q->n_held && q->held[i].peer != a->peer) i++;
    if (i < q->n_held) {
        rg_service_answer(&q->port, &q->held[i], NULL, 0);
        q->held[i] = *a;
        return;
    }
    if (q->n_held == q->cap_held) {
        uint32_t cap = q->cap_held ? 2 * q->cap_held : 16;
        rg_asked_t *grown = realloc(q->held, cap * sizeof *grown);
        if (!grown) { /* it comes once more */
            rg_service_answer(&q->port, a, NULL, RG_SERVICE_HEAD);
            return;
        }
        q->held = grown;
        q->cap_held = cap;
    }
    q->held[q->n_held++] = *a;
}

static void answer_held(rg_quorum_t *q) {
    for (uint32_t i = 0; i < q->n_held;) {
        const rg_decided_t *d = rg_quorum_kept(q, q->held[i].q.round);
        if (!d && q->ready && q->held[i].q.round >= q->open) {
            i++;
            continue;
        }
        if (d) rg_quorum_answer_result(q, &q->held[i], d);
        else rg_service_answer(&q->port, &q->held[i], NULL, 0);
        q->held[i] = q->held[--q->n_held];
    }
}

/* 0: without memory, to be tried again. */
static int decide(rg_quorum_t *q, rg_status_t st, uint64_t now) {
    rg_decided_t *d = rg_decided_new(q->n_places, st == RG_OK ? q->bytes : 0);
    if (!d) return 0;
    d->round = q->open;
    d->decider = q->self;
    d->epoch = q->epoch;
    d->status = st;
    d->waited_ns = q->tally.first_ns ? now - q->tally.first_ns : 0;
    for (uint32_t i = 0; i < q->n_places; i++) {
        rg_place_t *p = &q->places[i];
        d->e[i] = (rg_qentry_t){ .id = p->seat.id, .came = (uint32_t)p->seat.arrived };
        if (p->differed) d->e[i].came = RG_QUORUM_DIFFERS;
        if (st != RG_OK || !p->seat.taken) continue;
        d->e[i].contributes = 1;
        d->e[i].version = p->version;
        d->e[i].weight = p->weight;
        d->weight_sum += p->weight;
    }
    if (st == RG_OK) reduce(q, d);
    q->prev_kth_ns = q->tally.kth_ns;
    rg_tally_open(&q->tally);
    for (uint32_t i = 0; i < q->n_places; i++) {
        rg_tally_close(&q->places[i].seat);
        unload(&q->places[i]);
        q->places[i].again_ns = 0;
        q->places[i].differed = 0;
    }
    if (q->n_places == 1) q->acked = q->open; /* it is shown, and nobody comes later who could say otherwise */
    q->open++;
    q->fresh_epoch = q->epoch;
    rg_quorum_calm(q);
    rg_quorum_keep(q, d);
    return 1;
}

uint64_t rg_decide_step(rg_quorum_t *q, uint64_t now) {
    uint64_t at = UINT64_MAX;
    if (!q->epoch || !q->n_places) return now + RG_QUORUM_AGAIN_NS; /* no memory for the members of this view */
    if (!q->ready) at = take_over(q, now);
    if (!q->ready) return at;
    for (int again = 1; again;) {
        at = UINT64_MAX;
        collect(q, now, &at);
        rg_seat_t *some[64], **seats = q->n_places <= 64 ? some : malloc(q->n_places * sizeof *seats);
        if (!seats) return now + RG_QUORUM_AGAIN_NS;
        for (uint32_t i = 0; i < q->n_places; i++) seats[i] = &q->places[i].seat;
        rg_tally_verdict_t v = rg_tally_judge(&q->tally, seats, q->n_places, now, &at);
        if (seats != some) free(seats);
        rg_status_t st = v == RG_TALLY_DECIDE ? RG_OK : RG_ERR_NO_QUORUM;
        int over = v != RG_TALLY_WAIT || mismatched(q);
        again = over && decide(q, mismatched(q) ? RG_ERR_MISMATCH : st, now);
        if (over && !again) return now + RG_QUORUM_AGAIN_NS;
    }
    if (nobody_alike(q)) q->acked = q->open - 1;
    ask_doubtful(q, now, &at);
    answer_held(q);
    return at;
}
