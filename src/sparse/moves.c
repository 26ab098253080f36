/* moves.c: carries out the moves of a placement: messages between pairs, each pair's in the order of the plan, passed
 * on as they arrive, and at the end a gathering of how it went, from which all members come to one outcome. A member
 * whose part has failed sends messages that fit nothing in the place of those that it owes, so that nobody waits for
 * them. Relies on moves_plan.c and on messages that fail for both ends alike; must not write a reduction's result
 * before the outcome is known. */
#include "sparse/frame.h"
#include "sparse/moves.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOWHERE UINT32_MAX
#define WINDOW 48u                  /* messages in flight each way */
#define WINDOW_BYTES (256ull << 20) /* and bytes, but for one message */
#define SLOTS                                                                                                          \
    (WINDOW + 1) /* one is for the step that is first in order, whatever else is in flight: so the first of            \
                    all members' steps never waits, and no ring of them waits for each other */
#define TILE 2048u

typedef enum phase { IDLE, MOVING, AGREEING, ENDED } phase_t;
enum { WAITING, FLYING, DONE, BAD };

typedef struct step {
    rg_move_t move;
    int sends;
    uint32_t source; /* step that brings what this one passes on */
    uint32_t state, slot;
} step_t;

typedef struct steps {
    step_t *v;
    uint32_t n, cap;
    uint64_t bytes; /* received */
} steps_t;

/* How it went for one member. */
typedef struct verdict {
    uint64_t what;
    uint32_t status, pad; /* -rg_status_t */
} verdict_t;

struct rg_moves {
    rg_group_t *g;
    uint32_t n, rank, chunks;
    uint64_t members, hash; /* members: as rg_frame_t says it */
    uint64_t *ids, *bytes;
    uint32_t *owner, *host;
    uint8_t *present;
    steps_t gather, reduce;
    /* Of what is in flight */
    phase_t phase;
    steps_t *steps;
    int reduces, broken;
    rg_status_t worst, outcome;
    uint32_t first, sending, receiving;
    uint64_t sending_bytes, receiving_bytes, deadline;
    rg_opts_t o;
    void **chunk;
    const void **in;
    uint32_t *left; /* receives of a chunk that have not ended; NOWHERE: it will not be whole */
    uint8_t **scratch;
    uint8_t *room; /* for what arrives of a reduction */
    rg_dtype_t dtype;
    rg_op_t op;
    rg_request_t *flight[2 * SLOTS + 1]; /* sends, receives, and the verdicts' */
    uint32_t flies[2 * SLOTS];
    uint8_t dirt[2][2];
    uint64_t *blocked; /* of a pass over the steps: peers that an earlier step is for; sends, then receives */
    uint64_t pass;
    verdict_t mine, *all;
    rg_result_t r;
    uint64_t *who;
    uint32_t lost, *lost_chunks;
};

static rg_placement_t placement_of(const rg_moves_t *m) {
    rg_placement_t p = RG_PLACEMENT_INIT;
    p.chunks = m->chunks, p.bytes = m->bytes, p.owner = m->owner, p.present = m->present;
    return p;
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

typedef struct collect {
    const rg_moves_t *m;
    steps_t *to;
    uint32_t *first; /* per chunk the first step that receives of it */
} collect_t;

static void collect(void *ctx, const rg_move_t *move) {
    collect_t *c = ctx;
    steps_t *s = c->to;
    if (move->from != c->m->rank && move->to != c->m->rank) return;
    int sends = move->from == c->m->rank;
    if (s->v != NULL) {
        /* The pieces of a chunk come one after the other, all but the last of one length. */
        uint32_t source = sends ? c->first[move->chunk] : NOWHERE;
        if (source != NOWHERE) source += (uint32_t)(move->at / s->v[source].move.len);
        s->v[s->n] = (step_t){ .move = *move, .sends = sends, .source = source };
        if (!sends && c->first[move->chunk] == NOWHERE) c->first[move->chunk] = s->n;
    }
    if (!sends) s->bytes += move->len;
    s->n++;
}

static int make_steps(rg_moves_t *m, steps_t *s, int reduces, uint32_t *scratch) {
    rg_placement_t p = placement_of(m);
    collect_t c = { m, s, scratch + 4 * m->n };
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < m->chunks; i++) c.first[i] = NOWHERE;
        s->n = 0;
        s->bytes = 0;
        if (reduces) rg_plan_reduce(&p, m->n, collect, &c);
        else rg_plan_gather(&p, m->n, m->host, scratch, collect, &c);
        if (pass == 0 && (s->v = calloc(s->n + 1, sizeof *s->v)) == NULL) return 0;
    }
    for (uint32_t i = 0; reduces && i < s->n; i++) s->v[i].source = NOWHERE;
    return 1;
}

static void *copy_of(const void *p, size_t bytes) {
    void *v = malloc(bytes + 1);
    if (v != NULL && bytes != 0) memcpy(v, p, bytes);
    return v;
}

static int fill(rg_moves_t *m, const rg_placement_t *p) {
    size_t n = m->n, c = p->chunks;
    uint32_t *scratch = malloc((4 * n + c + 1) * sizeof *scratch);
    m->chunks = p->chunks;
    m->bytes = copy_of(p->bytes, c * sizeof *p->bytes);
    m->owner = copy_of(p->owner, c * sizeof *p->owner);
    m->present = copy_of(p->present, n * ((c + 7) / 8));
    m->chunk = calloc(c + 1, sizeof *m->chunk);
    m->in = calloc(c + 1, sizeof *m->in);
    m->left = calloc(c + 1, sizeof *m->left);
    m->scratch = calloc(c + 1, sizeof *m->scratch);
    m->lost_chunks = calloc(c + 1, sizeof *m->lost_chunks);
    m->blocked = calloc(2 * n, sizeof *m->blocked);
    m->all = calloc(n, sizeof *m->all);
    m->who = calloc(n, sizeof *m->who);
    int all = scratch && m->bytes && m->owner && m->present && m->chunk && m->in && m->left && m->scratch &&
              m->lost_chunks && m->blocked && m->all && m->who;
    all = all && make_steps(m, &m->gather, 0, scratch) && make_steps(m, &m->reduce, 1, scratch);
    free(scratch);
    return all;
}

static void release(rg_moves_t *m) {
    void *all[] = {
        m->ids,        m->bytes, m->owner,   m->host, m->present, m->gather.v, m->reduce.v, m->chunk,
        (void *)m->in, m->left,  m->scratch, m->room, m->blocked, m->all,      m->who,      m->lost_chunks
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(m);
}

/* Who takes part, and who shares a host with whom: the lowest rank there. */
static rg_status_t roster(rg_moves_t *m, const uint32_t *given) {
    rg_group_t *g = rg_root(m->g);
    rg_lock(g);
    rg_roster_t *r = g->phase == RG_PHASE_MEMBER && !m->g->ended ? rg_roster_for(m->g, m->g->gen) : NULL;
    rg_status_t st = r != NULL ? RG_OK : g->over ? g->over : m->g->ended ? m->g->ended : RG_ERR_NOMEM;
    if (r != NULL) {
        m->n = m->g->told_n = r->n;
        m->rank = r->rank;
        m->members = rg_frame_members(r->ids, r->n);
        m->ids = copy_of(r->ids, r->n * sizeof *m->ids);
        m->host = calloc(r->n, sizeof *m->host);
        if (m->ids == NULL || m->host == NULL) st = RG_ERR_NOMEM;
        for (uint32_t i = 0; st == RG_OK && i < r->n; i++) {
            const uint32_t *group = given != NULL ? given : r->topo.levels != 0 ? r->topo.group : NULL;
            m->host[i] = i;
            for (uint32_t k = 0; group != NULL && k < i; k++)
                if (group[k] == group[i] && m->host[i] == i) m->host[i] = m->host[k];
        }
        rg_roster_put(r);
    }
    rg_unlock(g);
    return st;
}

typedef struct plan_head {
    uint64_t hash, members;
    uint32_t flaw, pad;
} plan_head_t;

/* All members' heads are the same for everybody. */
static rg_status_t agree_on_plan(rg_moves_t *m, rg_frame_t *f, const char *flaw) {
    plan_head_t mine = { m->hash, m->members, flaw != NULL, 0 }, *all = calloc(m->n, sizeof *all);
    if (all == NULL) return rg_frame_no_memory(f);
    rg_status_t st =
        rg_frame_ended(f, rg_all_gather(m->g, &mine, all, sizeof mine, RG_U8, rg_frame_opts(f), rg_frame_req(f)));
    for (uint32_t r = 0; st == RG_OK && r < m->n; r++)
        if (all[r].members != m->members) st = rg_frame_apart(f, r);
    for (uint32_t r = 0; st == RG_OK && r < m->n; r++)
        if (all[r].flaw != 0)
            st = rg_refuse(m->g, RG_ERR_INVALID, "%s: the placement of rank %u %s", f->name, r,
                           r == m->rank ? flaw : "is wrong");
    for (uint32_t r = 0; st == RG_OK && r < m->n; r++)
        if (all[r].hash != m->hash)
            st =
                rg_refuse(m->g, RG_ERR_MISMATCH, "%s: rank %u has another placement than rank %u", f->name, r, m->rank);
    free(all);
    return st;
}

static rg_status_t make(rg_group_t *group, const rg_placement_t *p, const uint32_t *host, rg_frame_t *f,
                        rg_moves_t **out) {
    static const rg_result_t none = RG_RESULT_INIT;
    rg_moves_t *m = calloc(1, sizeof *m);
    *out = NULL;
    rg_status_t st = rg_frame_shape(f);
    if (st != RG_OK || m == NULL) {
        free(m);
        return st != RG_OK ? st : rg_frame_no_memory(f);
    }
    m->g = group;
    m->r = none;
    st = roster(m, host);
    const char *flaw = st == RG_OK ? rg_placement_flaw(p, m->n) : NULL;
    if (st == RG_OK && flaw == NULL && !fill(m, p)) st = RG_ERR_NOMEM;
    if (st == RG_OK && flaw == NULL) m->hash = rg_placement_hash(p, m->n, m->host);
    if (st == RG_OK && m->members != f->members) st = rg_frame_apart(f, m->rank);
    if (st == RG_ERR_NOMEM) st = rg_frame_no_memory(f);
    else if (st == RG_OK) st = agree_on_plan(m, f, flaw);
    if (st != RG_OK) release(m);
    else *out = m;
    return st;
}

rg_status_t rg_moves_create_on(rg_group_t *group, const rg_placement_t *p, const uint32_t *host, const rg_opts_t *opts,
                               rg_moves_t **out) {
    rg_frame_t f;
    if (group == NULL) return RG_ERR_INVALID;
    rg_status_t st = rg_frame_open(&f, group, "rg_moves_create", opts);
    if (st == RG_OK && out == NULL) st = rg_frame_refuse(&f, RG_ERR_INVALID, "rg_moves_create: out is NULL");
    if (st != RG_OK) return rg_frame_refused(&f, st, 0);
    do st = make(group, p, host, &f, out);
    while (st == RG_ERR_MISMATCH && rg_frame_more(&f, st, 0));
    return rg_frame_close(&f, st);
}

rg_status_t rg_moves_create(rg_group_t *group, const rg_placement_t *p, const rg_opts_t *opts, rg_moves_t **out) {
    return rg_moves_create_on(group, p, NULL, opts, out);
}

void rg_moves_destroy(rg_moves_t *m) {
    if (m == NULL) return;
    if (m->phase == MOVING || m->phase == AGREEING) {
        rg_moves_cancel(m);
        rg_moves_wait(m, NULL);
    }
    release(m);
}

uint64_t rg_moves_gather_bytes(const rg_moves_t *m) { return m != NULL ? m->gather.bytes : 0; }
uint64_t rg_moves_reduce_bytes(const rg_moves_t *m) { return m != NULL ? m->reduce.bytes : 0; }

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static uint32_t time_left(uint64_t until) {
    uint64_t now = rg_os_now_ns(), left = until > now ? (until - now) / 1000000 : 0;
    return left == 0 ? 1 : left > UINT32_MAX ? UINT32_MAX : (uint32_t)left;
}

/* Where the bytes of a step are, or are to be. */
static uint8_t *place(const rg_moves_t *m, const step_t *s) {
    if (!m->reduces) return (uint8_t *)m->chunk[s->move.chunk] + s->move.at;
    if (s->sends) return (uint8_t *)(uintptr_t)m->in[s->move.chunk];
    /* Copies lie in the order of ranks. */
    rg_placement_t p = placement_of(m);
    uint64_t before = 0;
    for (uint32_t r = 0; r < s->move.from; r++) before += r != m->rank && rg_placed(&p, r, s->move.chunk);
    return m->scratch[s->move.chunk] + before * m->bytes[s->move.chunk];
}

static void worsen(rg_moves_t *m, rg_status_t st) {
    static const rg_status_t order[] = { RG_ERR_CANCELLED, RG_ERR_PEER_LOST, RG_ERR_TIMEOUT };
    if (st == RG_OK || m->worst == st) return;
    if (m->worst == RG_OK || m->worst == RG_ERR_MISMATCH) {
        m->worst = st;
        return;
    }
    for (uint32_t i = 0; i < 3; i++) {
        if (m->worst == order[i]) return;
        if (st == order[i]) {
            m->worst = st;
            return;
        }
    }
}

static void step_ended(rg_moves_t *m, step_t *s, rg_status_t st, int fit) {
    uint32_t c = s->move.chunk;
    s->state = st == RG_OK && fit ? DONE : BAD;
    worsen(m, st == RG_OK && !fit ? RG_ERR_MISMATCH : st);
    if (s->sends) {
        m->r.bytes_sent += s->state == DONE ? s->move.len : 0;
        return;
    }
    m->r.bytes_received += s->state == DONE ? s->move.len : 0;
    if (s->state == BAD) m->left[c] = NOWHERE;
    else if (m->left[c] != NOWHERE) m->left[c]--;
}

/* What is owed and cannot be given is sent as a message that fits nothing. 0: not now. */
static int begin_step(rg_moves_t *m, uint32_t at) {
    step_t *s = &m->steps->v[at];
    uint64_t *bytes = s->sends ? &m->sending_bytes : &m->receiving_bytes;
    uint32_t *count = s->sends ? &m->sending : &m->receiving, slot = s->sends ? 0 : SLOTS;
    int fit = !m->broken && (s->source == NOWHERE || m->steps->v[s->source].state == DONE);
    if (at != m->first && (*count >= WINDOW || *bytes + s->move.len > WINDOW_BYTES)) return 0;
    rg_call_t c = { .kind = RG_KIND_P2P,
                    .dtype = RG_U8,
                    .count = fit                ? s->move.len
                             : s->move.len == 1 ? 2
                                                : 1,
                    .sends = (uint32_t)s->sends };
    uint8_t *p = fit ? place(m, s) : m->dirt[s->sends];
    if (s->sends) c.in = p;
    else c.out = p;
    while (m->flight[slot] != NULL) slot++;
    m->o.timeout_ms = time_left(m->deadline - (m->deadline - m->r.start_ns) / 10);
    rg_status_t st = rg_call_pair(m->g, m->ids[s->sends ? s->move.to : s->move.from], &c, &m->o, &m->flight[slot]);
    if (st == RG_ERR_RESOURCE) {
        m->flight[slot] = NULL;
        return m->sending + m->receiving != 0 ? 0 : (step_ended(m, s, st, 0), 1);
    }
    if (st != RG_OK) {
        m->flight[slot] = NULL;
        step_ended(m, s, st, 0);
        return 1;
    }
    s->state = FLYING;
    s->slot = slot << 1 | (uint32_t)fit;
    m->flies[slot] = at;
    (*count)++;
    *bytes += s->move.len;
    return 1;
}

/* Whether a step may begin: what it passes on has come, or will not. */
static int may_begin(const rg_moves_t *m, const step_t *s) {
    if (s->source == NOWHERE || m->broken) return 1;
    return m->steps->v[s->source].state == DONE || m->steps->v[s->source].state == BAD;
}

static void collect_ended(rg_moves_t *m) {
    for (uint32_t i = 0; i < 2 * SLOTS; i++) {
        if (m->flight[i] == NULL) continue;
        rg_status_t st = rg_test(m->flight[i], NULL);
        if (st == RG_AGAIN) continue;
        step_t *s = &m->steps->v[m->flies[i]];
        m->flight[i] = NULL;
        if (s->sends) m->sending--, m->sending_bytes -= s->move.len;
        else m->receiving--, m->receiving_bytes -= s->move.len;
        step_ended(m, s, st, (int)(s->slot & 1));
    }
}

/* Begins what can be, each pair's in order. Returns whether everything has ended. */
static int begin_more(rg_moves_t *m) {
    steps_t *t = m->steps;
    uint32_t waiting = 0;
    m->pass++;
    while (m->first < t->n && t->v[m->first].state >= DONE) m->first++;
    for (uint32_t i = m->first; i < t->n && waiting < 4 * WINDOW; i++) {
        step_t *s = &t->v[i];
        if (s->state != WAITING) continue;
        uint64_t *blocked = &m->blocked[s->sends ? s->move.to : m->n + s->move.from];
        if (*blocked == m->pass || !may_begin(m, s) || !begin_step(m, i)) {
            *blocked = m->pass;
            waiting++;
        }
    }
    while (m->first < t->n && t->v[m->first].state >= DONE) m->first++;
    return m->first == t->n;
}

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

/* Room for the copies of the others, and, in their place, for the sum. */
static int reduce_memory(rg_moves_t *m) {
    rg_placement_t p = placement_of(m);
    uint64_t all = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            free(m->room);
            if (all >= SIZE_MAX || (m->room = malloc((size_t)all + 1)) == NULL) return 0;
            all = 0;
        }
        for (uint32_t c = 0; c < m->chunks; c++) {
            if (m->owner[c] != m->rank) continue;
            uint64_t copies = 0;
            for (uint32_t r = 0; r < m->n; r++) copies += r != m->rank && rg_placed(&p, r, c);
            if (pass == 1) m->scratch[c] = m->room + all;
            if (copies != 0 && m->bytes[c] > (UINT64_MAX / 2 - all) / copies) return 0;
            all += (copies * m->bytes[c] + 63) / 64 * 64;
        }
    }
    return 1;
}

/* The owner's copy and the others', in the order of ranks, a tile at a time, in partial values, to the first copy's
 * place: what is there of the tile has been added up by then. */
static void reduce_chunk(rg_moves_t *m, uint32_t c) {
    rg_placement_t p = placement_of(m);
    rg_red_t first, add, last;
    uint64_t width = rg_dtype_size(m->dtype), elements = m->bytes[c] / width;
    uint32_t copies = 0;
    for (uint32_t r = 0; r < m->n; r++) copies += r != m->rank && rg_placed(&p, r, c);
    if (copies == 0) return;
    rg_red_init(&first, m->dtype, m->op, copies + 1, RG_RED_DST_ACC);
    rg_red_init(&add, m->dtype, m->op, copies + 1, RG_RED_A_ACC | RG_RED_DST_ACC);
    rg_red_init(&last, m->dtype, m->op, copies + 1, RG_RED_A_ACC | RG_RED_FINAL);
    for (uint64_t at = 0; at < elements; at += TILE) {
        double acc[TILE];
        size_t some = elements - at < TILE ? (size_t)(elements - at) : TILE;
        rg_red_copy(&first, acc, (const uint8_t *)m->in[c] + at * width, some);
        for (uint32_t k = 0; k < copies; k++)
            rg_red_run(&add, acc, acc, m->scratch[c] + k * m->bytes[c] + at * width, some);
        rg_red_copy(&last, m->scratch[c] + at * width, acc, some);
    }
}

/* Called when it is known that all members have succeeded. */
static void reduce_all(rg_moves_t *m) {
    rg_placement_t p = placement_of(m);
    for (uint32_t c = 0; c < m->chunks; c++) {
        if (m->owner[c] != m->rank || m->bytes[c] == 0) continue;
        uint32_t copies = 0;
        for (uint32_t r = 0; r < m->n; r++) copies += r != m->rank && rg_placed(&p, r, c);
        reduce_chunk(m, c);
        const void *from = copies != 0 ? m->scratch[c] : m->in[c];
        if (m->chunk[c] != from) memcpy(m->chunk[c], from, (size_t)m->bytes[c]);
    }
}

/* ---- The outcome ------------------------------------------------------------------------------------------------- */

static void finish(rg_moves_t *m, rg_status_t st, const char *text) {
    m->phase = ENDED;
    m->outcome = st;
    m->r.status = st;
    m->r.end_ns = rg_os_now_ns();
    snprintf(m->r.text, sizeof m->r.text, "%s", st == RG_OK ? "" : text);
    if (st == RG_OK && m->reduces) reduce_all(m);
    if (st != RG_OK) rg_refuse(m->g, st, "%s", m->r.text);
}

static int is_among(uint64_t id, const uint64_t *ids, uint32_t n) {
    uint32_t i = 0;
    while (i < n && ids[i] != id) i++;
    return i < n;
}

static void count_lost(rg_moves_t *m, const uint64_t *ids, uint32_t n) {
    m->lost = 0;
    for (uint32_t c = 0; c < m->chunks; c++)
        if (!is_among(m->ids[m->owner[c]], ids, n)) m->lost_chunks[m->lost++] = c;
}

/* From the verdicts, which are the same on all members. */
static void conclude(rg_moves_t *m, uint32_t there) {
    rg_status_t st = RG_OK;
    char text[256], list[96] = "";
    uint32_t rank = 0;
    for (uint32_t r = 0; r < there; r++)
        if (m->all[r].what != m->mine.what) {
            snprintf(text, sizeof text, "%s: rank %u moves another plan, or reduces otherwise",
                     m->reduces ? "placed reduction" : "placed gather", r);
            finish(m, RG_ERR_MISMATCH, text);
            return;
        }
    m->worst = RG_OK;
    for (uint32_t r = 0; r < there; r++) {
        worsen(m, m->all[r].status > 32 ? RG_ERR_PROTOCOL : -(rg_status_t)m->all[r].status);
        if (m->worst != st) rank = r;
        st = m->worst;
    }
    if (st != RG_OK && there < m->n && st != RG_ERR_CANCELLED) st = RG_ERR_PEER_LOST;
    for (uint32_t i = 0; i < m->lost && i < 8; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%u", i ? ", " : "", m->lost_chunks[i]);
    if (st == RG_ERR_PEER_LOST)
        snprintf(text, sizeof text, "%s: %u of %u members are left; %u chunks had a lost owner%s%s%s",
                 m->reduces ? "placed reduction" : "placed gather", there, m->n, m->lost, m->lost ? ": " : "", list,
                 m->lost > 8 ? ", ..." : "");
    else
        snprintf(text, sizeof text, "%s: rank %u: %s", m->reduces ? "placed reduction" : "placed gather", rank,
                 rg_strerror(st));
    finish(m, st, text);
}

/* Members of a plan and newcomers do not mix: those know nothing of it, and would be waited for. All see them, as they
 * came at a boundary. */
static int has_newcomers(rg_moves_t *m) {
    rg_group_t *g = rg_root(m->g);
    int some = 0;
    rg_lock(g);
    rg_roster_t *r = g->phase == RG_PHASE_MEMBER && !m->g->ended ? rg_roster_for(m->g, m->g->gen) : NULL;
    for (uint32_t i = 0; r != NULL && i < r->n; i++) some |= !is_among(r->ids[i], m->ids, m->n);
    if (some) count_lost(m, r->ids, r->n);
    if (r != NULL) rg_roster_put(r);
    rg_unlock(g);
    return some;
}

static void ask_verdicts(rg_moves_t *m) {
    uint32_t n, rank;
    uint64_t epoch;
    rg_status_t st = rg_shape(m->g, &n, &rank, &epoch);
    if (st == RG_OK && has_newcomers(m)) {
        finish(m, RG_ERR_PEER_LOST, "members have come since the plan was made: make a new one");
        return;
    }
    m->mine.status = (uint32_t)-m->worst;
    m->o.timeout_ms = time_left(m->deadline);
    m->phase = AGREEING;
    if (st == RG_OK) st = rg_all_gather(m->g, &m->mine, m->all, sizeof m->mine, RG_U8, &m->o, &m->flight[2 * SLOTS]);
    if (st == RG_OK) return;
    m->flight[2 * SLOTS] = NULL;
    finish(m, st, rg_strerror(st));
}

static void take_verdicts(rg_moves_t *m) {
    rg_result_t r = RG_RESULT_INIT;
    r.contributor_ids = m->who;
    r.contributor_cap = m->n;
    rg_status_t st = rg_test(m->flight[2 * SLOTS], &r);
    if (st == RG_AGAIN) return;
    m->flight[2 * SLOTS] = NULL;
    if (st == RG_ERR_PEER_LOST && rg_os_now_ns() < m->deadline) {
        ask_verdicts(m);
    } else if (st != RG_OK) {
        finish(m, st, r.text);
    } else {
        m->r.epoch = r.epoch;
        m->r.contributors = r.contributors;
        count_lost(m, r.contributor_ids, r.contributors);
        conclude(m, r.contributors);
    }
}

static void go_on(rg_moves_t *m) {
    if (m->phase == MOVING) {
        collect_ended(m);
        if (begin_more(m)) ask_verdicts(m);
    }
    if (m->phase == AGREEING) take_verdicts(m);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* wrong, not RG_OK: this member is refused the call, but the others may have made it. So it takes part as one that can
 * give nothing and take nothing, by which all end alike, and no later call of its own is taken for this one. */
static rg_status_t begin(rg_moves_t *m, const char *name, int reduces, const rg_opts_t *opts, rg_status_t wrong) {
    rg_frame_t f;
    static const rg_result_t none = RG_RESULT_INIT;
    char text[sizeof none.text] = "";
    if (wrong != RG_OK) rg_group_errmsg(m->g, text, sizeof text);
    rg_status_t st = rg_frame_open(&f, m->g, name, opts);
    if (rg_refused_for_all(st)) {
        rg_opts_t bare = RG_OPTS_INIT;
        bare.tag = f.o.tag;
        if (wrong == RG_OK) rg_group_errmsg(m->g, text, sizeof text);
        wrong = rg_frame_close(&f, wrong != RG_OK ? wrong : st);
        st = rg_frame_open(&f, m->g, name, &bare);
    }
    if (st == RG_OK) st = rg_frame_shape(&f);
    rg_frame_free(&f); /* whose members they are is known by their hash */
    if (st != RG_OK) return st;
    m->steps = reduces ? &m->reduce : &m->gather;
    m->reduces = reduces;
    m->broken = f.members != m->members;
    m->worst = m->broken ? RG_ERR_PEER_LOST : RG_OK;
    m->first = m->lost = 0;
    m->deadline = f.deadline;
    m->o = f.o;
    m->o.result = NULL;
    m->r = none;
    m->r.start_ns = rg_os_now_ns();
    memset(m->left, 0, m->chunks * sizeof *m->left);
    for (uint32_t i = 0; i < m->steps->n; i++) {
        m->steps->v[i].state = WAITING;
        m->left[m->steps->v[i].move.chunk] += !m->steps->v[i].sends;
    }
    uint64_t kind = reduces ? 1 + (uint64_t)m->dtype * 16 + m->op : 0;
    m->mine = (verdict_t){ rg_frame_mix(m->hash, kind), 0, 0 };
    m->phase = MOVING;
    if (wrong != RG_OK) {
        m->broken = 1;
        m->worst = wrong;
        rg_moves_wait(m, NULL);
        return rg_refuse(m->g, wrong, "%s", text);
    }
    go_on(m);
    return RG_OK;
}

static rg_status_t idle(rg_moves_t *m, const char *name) {
    if (m->phase == IDLE) return RG_OK;
    return rg_refuse(m->g, RG_ERR_INVALID, "%s: this plan is in use; rg_moves_wait() ends it", name);
}

rg_status_t rg_moves_gather(rg_moves_t *m, void *const *chunk, const rg_opts_t *opts) {
    static const char *const name = "rg_moves_gather";
    if (m == NULL) return RG_ERR_INVALID;
    rg_status_t st = idle(m, name);
    if (st != RG_OK) return st;
    rg_placement_t p = placement_of(m);
    for (uint32_t c = 0; st == RG_OK && c < m->chunks; c++) {
        m->chunk[c] = chunk != NULL ? chunk[c] : NULL;
        if (m->chunk[c] == NULL && m->bytes[c] != 0 && rg_placed(&p, m->rank, c))
            st = rg_refuse(m->g, RG_ERR_INVALID, "%s: chunk %u is NULL, and is to be here", name, c);
    }
    return st == RG_OK || rg_refused_for_all(st) ? begin(m, name, 0, opts, st) : st;
}

rg_status_t rg_moves_reduce(rg_moves_t *m, const void *const *in, void *const *out, rg_dtype_t dtype, rg_op_t op,
                            const rg_opts_t *opts) {
    static const char *const name = "rg_moves_reduce";
    rg_red_t r;
    if (m == NULL) return RG_ERR_INVALID;
    rg_status_t st = idle(m, name);
    if (st != RG_OK) return st;
    st = rg_red_init(&r, dtype, op, m->n, RG_RED_DST_ACC);
    if (st != RG_OK) rg_refuse(m->g, st, "%s: %s of %s", name, rg_op_name(op), rg_dtype_name(dtype));
    rg_placement_t p = placement_of(m);
    for (uint32_t c = 0; st == RG_OK && c < m->chunks; c++) {
        m->in[c] = in != NULL ? in[c] : NULL;
        m->chunk[c] = out != NULL ? out[c] : NULL;
        if (m->bytes[c] % rg_dtype_size(dtype) != 0)
            st = rg_refuse(m->g, RG_ERR_INVALID, "%s: chunk %u is not of whole elements", name, c);
        else if (m->bytes[c] != 0 && rg_placed(&p, m->rank, c) &&
                 (m->in[c] == NULL || (m->owner[c] == m->rank && m->chunk[c] == NULL)))
            st = rg_refuse(m->g, RG_ERR_INVALID, "%s: chunk %u is NULL, and is here", name, c);
    }
    m->dtype = dtype;
    m->op = op;
    if (st == RG_OK && !reduce_memory(m)) st = rg_refuse(m->g, RG_ERR_NOMEM, "%s: no memory for the copies", name);
    return st == RG_OK || rg_refused_for_all(st) ? begin(m, name, 1, opts, st) : st;
}

int rg_moves_ready(const rg_moves_t *m, uint32_t c) {
    if (m == NULL || c >= m->chunks || m->r.start_ns == 0) return 0;
    rg_placement_t p = placement_of(m);
    if (m->phase != MOVING && m->phase != AGREEING && m->outcome == RG_OK) return rg_placed(&p, m->rank, c);
    return !m->reduces && rg_placed(&p, m->rank, c) && m->left[c] == 0;
}

static rg_status_t hand_out(rg_moves_t *m, rg_result_t *result) {
    m->phase = IDLE;
    if (result != NULL) rg_result_out(result, &m->r, m->who, m->r.contributors);
    return m->outcome;
}

rg_status_t rg_moves_test(rg_moves_t *m, rg_result_t *result) {
    if (m == NULL || m->phase == IDLE || rg_result_check(result, NULL) != RG_OK) return RG_ERR_INVALID;
    go_on(m);
    return m->phase == ENDED ? hand_out(m, result) : RG_AGAIN;
}

rg_status_t rg_moves_wait(rg_moves_t *m, rg_result_t *result) {
    if (m == NULL || m->phase == IDLE || rg_result_check(result, NULL) != RG_OK) return RG_ERR_INVALID;
    for (go_on(m); m->phase != ENDED; go_on(m)) rg_wait_any(m->g, m->flight, 2 * SLOTS + 1);
    return hand_out(m, result);
}

void rg_moves_cancel(rg_moves_t *m) {
    if (m == NULL || m->phase != MOVING) return;
    m->broken = 1;
    worsen(m, RG_ERR_CANCELLED);
}

uint32_t rg_moves_lost(const rg_moves_t *m, uint32_t *chunks, uint32_t cap) {
    if (m == NULL) return 0;
    for (uint32_t i = 0; i < m->lost && i < cap && chunks != NULL; i++) chunks[i] = m->lost_chunks[i];
    return m->lost;
}
