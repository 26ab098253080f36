/* measure.c: what the links between all members are worth, found out by all of them together: pairs take turns in
 * sending each other some messages at full speed, everybody tells everybody what it saw, and each computes from the
 * same figures the order of rings and the shares of direct exchange. Relies on the public operations ending alike on
 * all members; on the engine to keep what was agreed for the operations that come after. Must not decide by anything
 * that the others were not told. */
#include "api.h"

#include <stdlib.h>
#include <string.h>

#define PIECES 8u      /* of one turn, each way */
#define PASSES 4u      /* turns of a pair: again while it still gets faster, for a connection begins slowly */
#define TURN_PER_S 20u /* pieces that a second would take, by what is known of the link */
#define PIECE_LEAST (32u << 10)
#define PIECE_MOST (4u << 20)
#define NEAR UINT32_MAX /* of members on one host */
#define SALT 0x6d656173u

/* What one member tells: of each other member, by rank, what came from there. */
typedef struct row {
    uint64_t id, members; /* hash of all ids in order: all took the same ones for the group */
    struct {
        uint32_t rate, latency_us;
    } from[RG_ORDER_MAX];
} row_t;

typedef struct measuring {
    rg_group_t *g;
    uint32_t n, rank;
    uint64_t ids[RG_ORDER_MAX], hosts[RG_ORDER_MAX], base_gen; /* base_gen: all are here from there on */
    uint64_t known[RG_ORDER_MAX];                              /* bytes per second, before */
    row_t row;
    uint8_t *out, *in; /* PIECE_MOST each; in: PIECES of them */
} measuring_t;

static uint64_t hash_ids(const uint64_t *ids, uint32_t n) {
    uint64_t h = 14695981039346656037ull;
    for (uint32_t i = 0; i < n; i++) h = (h ^ ids[i]) * 1099511628211ull;
    return h;
}

/* ---- Who is there ----------------------------------------------------------------------------------------------- */

static void look(measuring_t *m, const rg_roster_t *r) {
    const rg_core_view_t *v = rg_member_view(m->g->core);
    m->n = r->n;
    m->rank = r->rank;
    m->base_gen = r->base_gen;
    for (uint32_t i = 0; i < r->n && r->n <= RG_ORDER_MAX; i++) {
        rg_tp_link_info_t info = { 0 };
        m->ids[i] = r->ids[i];
        for (uint32_t k = 0; k < v->n; k++)
            if (v->members[k].id == r->ids[i]) m->hosts[i] = v->members[k].host;
        if (i != r->rank && r->links[i] != UINT32_MAX && m->g->tp_ops->link_info)
            m->g->tp_ops->link_info(m->g->tp, r->links[i], &info);
        m->known[i] = info.bytes_per_s;
        m->row.from[i].latency_us = (uint32_t)(info.rtt_ns / 2000 < UINT32_MAX ? info.rtt_ns / 2000 : UINT32_MAX);
    }
    m->row.id = m->g->self_id;
    m->row.members = hash_ids(m->ids, m->n <= RG_ORDER_MAX ? m->n : 0);
}

/* Locks for as long as it looks. */
static rg_status_t look_now(measuring_t *m) {
    rg_group_t *g = m->g;
    rg_lock(g);
    rg_roster_t *r = g->phase == RG_PHASE_MEMBER ? rg_roster_for(g, g->gen) : NULL;
    rg_status_t st = r ? RG_OK : g->phase == RG_PHASE_MEMBER ? RG_ERR_NOMEM : g->over ? g->over : RG_ERR_CLOSED;
    if (r) look(m, r);
    rg_roster_put(r);
    rg_unlock(g);
    if (st == RG_ERR_NOMEM) return rg_refuse(g, st, "rg_group_measure: no memory");
    if (st == RG_OK && m->n > RG_ORDER_MAX)
        return rg_refuse(g, RG_ERR_NOTSUP, "rg_group_measure: the group has %u members, and at most %d can be measured",
                         m->n, RG_ORDER_MAX);
    return st;
}

/* ---- Pairs ------------------------------------------------------------------------------------------------------ */

/* With whom a rank is in a round of a tournament in which everybody meets everybody once; n or more: with nobody. */
static uint32_t mate_of(uint32_t n, uint32_t rank, uint32_t round) {
    uint32_t even = n + n % 2, m = even - 1;
    if (rank == m) return round * (even / 2) % m;
    uint32_t mate = (round + m - rank) % m;
    return mate == rank ? m : mate;
}

/* One message there and one back. */
static rg_status_t swap_words(const measuring_t *m, uint32_t mate, uint64_t mine, uint64_t *theirs) {
    rg_request_t *a = NULL, *b = NULL;
    rg_status_t st = rg_recv(m->g, theirs, 1, RG_U64, mate, NULL, &a);
    rg_status_t sent = rg_send(m->g, &mine, 1, RG_U64, mate, NULL, &b);
    rg_status_t came = a ? rg_wait(a, NULL) : st;
    if (b) sent = rg_wait(b, NULL);
    return came != RG_OK ? came : sent;
}

/* PIECES each way at once. *rate: bytes per second; what comes is told to have come behind what goes, so only the whole
 * can be timed, less the way there and back, which the beginning and the end of it take. */
static rg_status_t turn(const measuring_t *m, uint32_t mate, uint64_t piece, uint64_t *rate) {
    rg_request_t *req[2 * PIECES] = { NULL };
    rg_status_t st = RG_OK;
    uint64_t start = rg_os_now_ns(), late = 2000ull * m->row.from[mate].latency_us;
    for (uint32_t i = 0; i < PIECES && st == RG_OK; i++)
        st = rg_recv(m->g, m->in + i * piece, piece, RG_U8, mate, NULL, &req[i]);
    for (uint32_t i = 0; i < PIECES && st == RG_OK; i++)
        st = rg_send(m->g, m->out, piece, RG_U8, mate, NULL, &req[PIECES + i]);
    uint64_t took = 0;
    for (uint32_t i = 0; i < 2 * PIECES; i++) {
        rg_status_t s = req[i] ? rg_wait(req[i], NULL) : st;
        if (st == RG_OK) st = s;
        if (i == PIECES - 1) took = rg_os_now_ns() - start;
    }
    took = took > 2 * late ? took - late : took / 2 + 1;
    *rate = PIECES * piece * 1000000000u / took;
    return st;
}

/* Both ends know both figures, so both go on or stop. A mate that is lost is measured by nobody. */
static rg_status_t measure_pair(measuring_t *m, uint32_t mate) {
    uint64_t mine = m->known[mate], theirs = 0, before = 0, best = 0, best_mine = 0;
    rg_status_t st = RG_OK;
    for (uint32_t pass = 0; pass < PASSES; pass++) {
        st = swap_words(m, mate, mine, &theirs);
        best = mine > theirs ? mine : theirs;
        if (st != RG_OK || (pass > 1 && best <= before + before / 4)) break;
        before = best;
        uint64_t piece = best / TURN_PER_S;
        piece = piece < PIECE_LEAST ? PIECE_LEAST : piece > PIECE_MOST ? PIECE_MOST : piece;
        st = turn(m, mate, piece, &mine);
        if (st != RG_OK) break;
        if (mine > best_mine) best_mine = mine;
    }
    uint64_t kib = best_mine / 1024;
    m->row.from[mate].rate = kib < 1 ? 1 : kib < NEAR ? (uint32_t)kib : NEAR - 1;
    return st == RG_ERR_PEER_LOST ? RG_OK : st;
}

static rg_status_t measure_all(measuring_t *m) {
    rg_status_t st = RG_OK;
    uint32_t rounds = m->n + m->n % 2 - 1;
    for (uint32_t k = 0; k < rounds && st == RG_OK; k++) {
        uint32_t mate = mate_of(m->n, m->rank, k);
        if (mate >= m->n) continue;
        if (m->hosts[mate] == m->hosts[m->rank]) {
            m->row.from[mate].rate = NEAR;
            m->row.from[mate].latency_us = 0;
        } else {
            st = measure_pair(m, mate);
        }
    }
    return st;
}

/* ---- What follows from it ---------------------------------------------------------------------------------------- */

/* Differences that are within what measuring scatters must not decide. */
static uint32_t coarse(uint32_t v) {
    uint32_t bit = 31;
    while (bit > 3 && !(v >> bit)) bit--;
    return v == NEAR ? v : v & ~((1u << (bit - 3)) - 1);
}

/* 0: all are on its host. Of all links of a member the best tells what it can do by itself, in the direction in which
 * it can do less. */
static uint32_t rate_of(const row_t *rows, uint32_t n, uint32_t i) {
    uint32_t up = 0, down = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t to = rows[k].from[i].rate, from = rows[i].from[k].rate;
        if (k == i || to == NEAR || from == NEAR) continue;
        if (to > up) up = to;
        if (from > down) down = from;
    }
    return up < down ? up : down;
}

static int differ(uint32_t a, uint32_t b) {
    return (uint64_t)a * 5 > (uint64_t)b * 6 || (uint64_t)b * 5 > (uint64_t)a * 6;
}

/* All memory is taken before anything is agreed: what all have heard, all can keep. */
typedef struct conclusion {
    row_t rows[RG_ORDER_MAX]; /* by rank; equal on all members */
    uint32_t rate[RG_ORDER_MAX * RG_ORDER_MAX], late[RG_ORDER_MAX * RG_ORDER_MAX];
    rg_order_t *order;
} conclusion_t;

static void conclude(const measuring_t *m, conclusion_t *c) {
    uint32_t n = m->n, changed = 0, least = UINT32_MAX, most = 0;
    rg_order_t now, *o = c->order;
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < n; b++) {
            c->rate[a * n + b] = coarse(c->rows[b].from[a].rate);
            c->late[a * n + b] = c->rows[b].from[a].latency_us;
        }
    const rg_links_t links = { n, c->rate, c->late };
    rg_lock(m->g);
    rg_order_in_force(m->g, m->ids, n, m->base_gen, &now);
    rg_unlock(m->g);
    rg_order_ring(&links, o->ring);
    if (rg_order_pays(rg_order_judge(&links, now.ring), rg_order_judge(&links, o->ring))) changed = 1;
    else memcpy(o->ring, now.ring, sizeof o->ring);
    o->n = n;
    for (uint32_t i = 0; i < n; i++) {
        o->ids[i] = m->ids[i];
        o->rate[i] = rate_of(c->rows, n, i);
        changed |= (uint32_t)differ(o->rate[i], now.rate[i]);
        if (o->rate[i] < least) least = o->rate[i];
        if (o->rate[i] > most) most = o->rate[i];
    }
    o->uneven = (uint64_t)least * 4 < (uint64_t)most * 3;
    if (!changed || !least) return; /* 0: within a host there is nothing to choose */
    rg_lock(m->g);
    rg_order_install(m->g, o);
    rg_unlock(m->g);
    c->order = NULL;
}

static rg_status_t tell(measuring_t *m, conclusion_t *c) {
    const rg_call_t call = {
        .kind = RG_KIND_ALL_GATHER, .in = &m->row, .out = c->rows, .count = sizeof m->row, .dtype = RG_U8, .salt = SALT
    };
    rg_status_t st = rg_call_run(m->g, &call, NULL, NULL);
    int same = 1;
    for (uint32_t i = 0; i < m->n && st == RG_OK; i++)
        same &= c->rows[i].members == m->row.members && c->rows[i].id == m->ids[i];
    if (st == RG_OK && same) conclude(m, c);
    return st;
}

/* Round trips are known better after the messages than before. */
static void look_again(measuring_t *m) {
    measuring_t after = *m;
    if (look_now(&after) != RG_OK || after.row.members != m->row.members) return;
    for (uint32_t i = 0; i < m->n; i++)
        if (m->row.from[i].rate != NEAR) m->row.from[i].latency_us = after.row.from[i].latency_us;
}

rg_status_t rg_group_measure(rg_group_t *g) {
    measuring_t m = { .g = g };
    uint64_t epoch;
    rg_status_t st = rg_usable(g);
    if (st != RG_OK) return st;
    if (g->root)
        return rg_refuse(g, RG_ERR_INVALID,
                         "rg_group_measure belongs to the group that was joined, not to one of its sub-groups");
    st = rg_shape(g, &m.n, &m.rank, &epoch);
    if (st == RG_OK) st = look_now(&m);
    if (st != RG_OK || m.n < 2) return st;
    conclusion_t *c = calloc(1, sizeof *c);
    m.out = calloc(1, PIECE_MOST);
    m.in = malloc((size_t)PIECES * PIECE_MOST);
    if (c) c->order = calloc(1, sizeof *c->order);
    if (c && c->order && m.out && m.in) {
        /* Whatever became of the pairs, all have to meet, and all end with what comes of that: a pair that ran out of
         * time has no figures, which only its two members would otherwise call an error. */
        (void)measure_all(&m);
        look_again(&m);
        st = tell(&m, c);
    } else {
        st = rg_refuse(g, RG_ERR_NOMEM, "rg_group_measure: no memory");
    }
    if (c) free(c->order);
    free(c);
    free(m.out);
    free(m.in);
    return st;
}
