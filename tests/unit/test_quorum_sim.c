/* test_quorum_sim.c: quorum reductions in simulated time: members whose messages take as long as a seed says, whose
 * programs compute for as long as a case says, and which are stopped and go on. What it looks for is what real
 * processes show on quiet machines only: that a member which was stopped, and is no faster than the others, contributes
 * again. It relies on src/quorum alone, with a line of its own in place of a group's links (service.h). */
#include "engine/lifecycle.h"
#include "os/os.h"
#include "quorum/quorum.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS = 5, EVENTS = 4096, COUNT = 3 };
#define US 1000u
#define MS 1000000ull

typedef enum what { ASK, ANSWER, GIVE, TAKE } what_t;

typedef struct event {
    uint64_t at, nr; /* nr: those of one time in the order in which they were made */
    what_t what;
    uint32_t to;
    rg_asked_t a; /* of an answer: who gives it, and to what */
    uint8_t *bytes;
} event_t;

typedef struct sim_member {
    rg_service_t sv; /* first */
    rg_group_t *g;
    rg_quorum_t *q;
    uint64_t stop, resume; /* nothing happens here between them */
    uint64_t compute_ns, wake_ns, last[MEMBERS];
    uint64_t passed, newest, included_after; /* included_after: since it went on */
    int waits;
} sim_member_t;

/* A question under way. */
typedef struct question {
    uint32_t from, to;
    rg_sask_t q;
    uint32_t len;
    int open;
} question_t;

typedef struct sim {
    uint64_t now, seed, made, base_ns, jitter_ns;
    uint32_t n, n_events, n_questions;
    int obeys; /* programs take what they lack first, as docs/quorum.md says */
    event_t event[EVENTS];
    question_t question[EVENTS];
    sim_member_t m[MEMBERS];
    uint64_t hash[MEMBERS][EVENTS];
} sim_t;

static sim_t *sim;

static uint64_t draw(uint64_t below) {
    sim->seed = sim->seed * 6364136223846793005u + 1442695040888963407u;
    return below ? (sim->seed >> 33) % below : 0;
}

static uint64_t some_time(void) { return sim->base_ns + draw(sim->jitter_ns); }

static event_t *post(uint64_t at, what_t what, uint32_t to) {
    cr_assert(sim->n_events < EVENTS, "more is under way than there is room for");
    event_t *e = &sim->event[sim->n_events++];
    *e = (event_t){ .at = at, .nr = ++sim->made, .what = what, .to = to };
    return e;
}

/* On the way between two members, which keeps the order. */
static event_t *travel(uint32_t from, uint32_t to, what_t what) {
    uint64_t at = sim->now + some_time();
    if (at <= sim->m[to].last[from]) at = sim->m[to].last[from] + 1;
    sim->m[to].last[from] = at;
    return post(at, what, to);
}

static uint32_t index_of(const rg_port_t *p) { return (uint32_t)((const sim_member_t *)(const void *)p->sv - sim->m); }

static int line_ask(rg_port_t *p, uint64_t peer, const rg_sask_t *q, uint32_t answer_len) {
    uint32_t nr = 0, to = (uint32_t)peer - 1;
    while (nr < sim->n_questions && sim->question[nr].open) nr++;
    cr_assert(nr < EVENTS && to < sim->n);
    if (nr == sim->n_questions) sim->n_questions++;
    sim->question[nr] = (question_t){ index_of(p), to, *q, answer_len, 1 };
    event_t *e = travel(index_of(p), to, ASK);
    e->a = (rg_asked_t){ .peer = index_of(p) + 1, .nr = nr, .q = *q };
    return 1;
}

static void line_answer(rg_port_t *p, const rg_asked_t *a, uint8_t *answer, uint32_t len) {
    question_t *asked = &sim->question[a->nr];
    cr_assert(asked->open && asked->to == index_of(p), "an answer to nothing");
    cr_assert(len == (answer ? asked->len : 0), "an answer of another length");
    asked->open = 0;
    event_t *e = travel(index_of(p), asked->from, ANSWER);
    e->a = (rg_asked_t){ .peer = index_of(p) + 1, .q = asked->q };
    e->bytes = answer;
}

static void line_tell(rg_port_t *p) { post(sim->now + some_time(), TAKE, index_of(p)); }

static uint64_t line_now(const rg_port_t *p) {
    (void)p;
    return sim->now;
}

static const rg_service_line_t line = { line_ask, line_answer, line_tell, line_now };

/* ---- What happens ------------------------------------------------------------------------------------------------ */

static void give(sim_member_t *m) {
    float x[COUNT] = { 1, 2, (float)(m - sim->m) };
    int behind = sim->obeys && m->newest > m->passed;
    cr_assert(rg_quorum_begin(m->q, behind ? NULL : x, NULL) == RG_OK);
    m->waits = 1;
}

static void take(sim_member_t *m) {
    float out[COUNT];
    uint32_t index = (uint32_t)(m - sim->m);
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    if (!m->waits) return;
    rg_status_t st = rg_quorum_test(m->q, out, &r);
    if (st == RG_AGAIN) return;
    m->waits = 0;
    if (st == RG_ERR_RESOURCE) {
        cr_assert(rg_quorum_seek(m->q, r.newest + 1) == RG_OK);
        m->passed = r.newest;
    } else {
        cr_assert(st == RG_OK, "member %u: %s", index, r.text);
        uint64_t h = r.decided_by + 1000 * r.contributors + (uint64_t)(out[2] * 1e6f) * 100000;
        for (uint32_t i = 0; r.round < EVENTS && i < sim->n; i++)
            cr_assert(!sim->hash[i][r.round] || sim->hash[i][r.round] == h, "round %llu differs between %u and %u",
                      (unsigned long long)r.round, i, index);
        if (r.round < EVENTS) sim->hash[index][r.round] = h;
        m->passed = r.round;
        if (sim->now > m->resume) m->included_after += r.included;
    }
    m->newest = r.newest;
    post(sim->now + (sim->obeys && m->newest > m->passed ? 0 : m->compute_ns), GIVE, index);
}

static void step(sim_member_t *m) {
    uint64_t at = m->q->port.ops->step(&m->q->port, sim->now), latest = sim->now + 100 * MS;
    m->wake_ns = at <= sim->now ? sim->now + 1 : at < latest ? at : latest;
}

static void happen(event_t *e) {
    sim_member_t *m = &sim->m[e->to];
    rg_port_t *p = &m->q->port;
    if (e->what == GIVE) give(m);
    if (e->what == TAKE) take(m);
    if (e->what == ASK) p->ops->asked(p, &e->a);
    if (e->what == ANSWER) p->ops->answered(p, e->a.peer, &e->a.q, e->bytes, !e->bytes);
    free(e->bytes);
    if (e->what == TAKE) return;
    step(m);
}

/* Until `until`, or the member has contributed so often since it went on. */
static void play(uint64_t until, uint32_t who, uint64_t often) {
    while (sim->m[who].included_after < often) {
        uint32_t k = 0, w = 0;
        for (uint32_t i = 1; i < sim->n_events; i++)
            if (sim->event[i].at < sim->event[k].at ||
                (sim->event[i].at == sim->event[k].at && sim->event[i].nr < sim->event[k].nr))
                k = i;
        for (uint32_t i = 1; i < sim->n; i++)
            if (sim->m[i].wake_ns < sim->m[w].wake_ns) w = i;
        event_t e = sim->event[k];
        int wakes = !sim->n_events || sim->m[w].wake_ns < e.at;
        sim_member_t *m = &sim->m[wakes ? w : e.to];
        sim->now = wakes ? m->wake_ns : e.at;
        if (sim->now > until) return;
        int stopped = sim->now >= m->stop && sim->now < m->resume;
        if (wakes && stopped) m->wake_ns = m->resume;
        else if (wakes) step(m);
        else if (stopped) sim->event[k].at = m->resume;
        else {
            sim->event[k] = sim->event[--sim->n_events];
            happen(&e);
        }
    }
}

static void begin(uint32_t n, const rg_quorum_config_t *c, uint64_t compute_ns, uint64_t seed) {
    static uint64_t ids[MEMBERS] = { 1, 2, 3, 4, 5 };
    sim = calloc(1, sizeof *sim);
    sim->n = n;
    sim->seed = seed;
    sim->base_ns = 50 * US;
    for (uint32_t i = 0; i < n; i++) {
        sim_member_t *m = &sim->m[i];
        m->g = calloc(1, sizeof *m->g);
        m->g->forks = rg_os_forks();
        m->sv.g = m->g;
        m->sv.line = &line;
        m->sv.epoch = 1;
        m->sv.ids = ids;
        m->sv.n = n;
        m->q = rg_quorum_new(c);
        m->q->port.sv = &m->sv;
        m->q->self = ids[i];
        m->compute_ns = compute_ns;
        m->wake_ns = UINT64_MAX;
        post(i * 7 * US, GIVE, i);
    }
}

static void end(void) {
    for (uint32_t i = 0; i < sim->n_events; i++) free(sim->event[i].bytes);
    for (uint32_t i = 0; i < sim->n; i++) {
        rg_quorum_free(sim->m[i].q);
        free(sim->m[i].g);
    }
    free(sim);
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

/* One member is stopped for a while in which at most `history` rounds are made. Rounds that it needs until it has
 * contributed ten times again, 0: it has not within 20 s. */
static uint64_t rounds_to_come_back(uint32_t who, uint32_t takeover_us, int obeys, uint64_t compute_ns,
                                    uint64_t jitter_ns, uint64_t seed) {
    rg_quorum_config_t c = RG_QUORUM_CONFIG_INIT;
    c.count = COUNT;
    c.op = RG_AVG;
    c.at_least = 2;
    c.grace_us = 10000;
    c.history = 64;
    c.takeover_us = takeover_us;
    begin(MEMBERS, &c, compute_ns, seed);
    sim->obeys = obeys;
    sim->jitter_ns = jitter_ns;
    sim_member_t *m = &sim->m[who];
    m->stop = 100 * MS;
    m->resume = m->stop + 30 * (compute_ns + 100 * US) + (who ? 0 : 4 * takeover_us / 2 * 1000ull);
    play(m->resume, who, UINT64_MAX);
    m->included_after = 0;
    uint64_t was = sim->m[(who + 1) % MEMBERS].passed;
    play(m->resume + 20000 * MS, who, 10);
    uint64_t rounds = m->included_after >= 10 ? sim->m[(who + 1) % MEMBERS].passed - was + 1 : 0;
    end();
    return rounds;
}

static void come_back(int obeys, uint64_t within) {
    for (uint64_t seed = 1; seed <= 8; seed++)
        for (uint32_t who = 0; who < MEMBERS; who += 2)
            for (int quick = 0; quick <= 1; quick++) {
                uint32_t us = quick ? 20000 : who ? RG_QUORUM_NO_TAKEOVER : 40000;
                uint64_t took = rounds_to_come_back(who, us, obeys, 1 * MS, seed % 4 * 40 * US, seed);
                cr_assert(took && took <= within, "seed %llu, member %u, takeover %u us: back after %llu rounds",
                          (unsigned long long)seed, who, us, (unsigned long long)took);
            }
}

Test(quorum_sim, stopped_and_as_fast_as_the_others__takes_what_it_lacks_first__contributes_at_once) {
    come_back(1, 30);
}

/* Each round brings it nearer by no more than the time that messages take. */
Test(quorum_sim, stopped_and_as_fast_as_the_others__computes_for_every_round__contributes_again) { come_back(0, 600); }

/* Members are stopped and go on at random, one or two at a time: one outcome, and all contribute in the end. */
static void at_random(uint64_t seed) {
    rg_quorum_config_t c = RG_QUORUM_CONFIG_INIT;
    c.count = COUNT;
    c.at_least = 1 + seed % 3;
    c.grace_us = seed % 2 ? 500 : 3000;
    c.history = 4 + seed % 60;
    c.takeover_us = seed % 4 ? 2000 : RG_QUORUM_NO_TAKEOVER;
    begin(MEMBERS, &c, 200 * US, seed);
    sim->obeys = (int)(seed / 2 % 2);
    sim->jitter_ns = draw(200 * US);
    for (int i = 0; i < 40; i++) {
        uint64_t until = sim->now + draw(8 * MS);
        for (uint32_t k = 0; k < 1 + seed % 2; k++) {
            sim_member_t *m = &sim->m[draw(2) ? 0 : draw(MEMBERS)];
            if (m->resume > sim->now) continue;
            m->stop = sim->now;
            m->resume = sim->now + draw(20 * MS);
        }
        play(until, 0, UINT64_MAX);
    }
    for (uint32_t i = 0; i < MEMBERS; i++) sim->m[i].included_after = 0;
    uint64_t until = sim->now + 1000 * MS;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        play(until, i, 1);
        cr_assert(sim->m[i].included_after, "seed %llu: member %u is in no round again", (unsigned long long)seed, i);
    }
    end();
}

Test(quorum_sim, members_stopped_at_random__one_outcome_and_all_contribute_again) {
    for (uint64_t seed = 1; seed <= 60; seed++) at_random(seed);
}

/* Where answers take many times the time for a takeover, members must not take the deciding from each other for ever.
 */
Test(quorum_sim, answers_take_longer_than_the_time_for_a_takeover__rounds_go_on) {
    static const uint64_t latency[] = { 500 * US, 2 * MS, 10 * MS };
    for (uint64_t k = 0; k < 9; k++) {
        rg_quorum_config_t c = RG_QUORUM_CONFIG_INIT;
        c.count = COUNT;
        c.at_least = 2;
        c.takeover_us = 1000;
        begin(4, &c, 0, k);
        sim->base_ns = sim->jitter_ns = latency[k % 3];
        play(200 * latency[k % 3], 0, UINT64_MAX);
        cr_assert(sim->m[0].passed > 20, "latency %u us: %u rounds", (unsigned)(latency[k % 3] / US),
                  (unsigned)sim->m[0].passed);
        end();
    }
}
