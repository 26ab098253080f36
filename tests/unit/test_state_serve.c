/* test_state_serve.c: newcomers that fetch a state while the others work: that it comes from several members, that only
 * what has changed since moves when the newcomer enters, that what is here is not fetched again, that pieces which a
 * program writes meanwhile come as they were in the snapshot or not at all, and what is refused. Contents follow from a
 * step, so that every byte is checked. It relies on engine_rig.h. */
#include "engine_rig.h"

#include "state/serve.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1u << 20)
#define PIECES 24u
#define WORDS (PIECES * (uint64_t)(MIB / 8) + 100)

/* ---- A state in which step k has written piece k % PIECES -------------------------------------------------------- */

typedef struct model {
    rg_state_t *s;
    uint64_t *w;
    float few[7];
} model_t;

static uint64_t word(uint64_t step, uint64_t i) { return (step * 0x9e3779b97f4a7c15u + i) * 0xbf58476d1ce4e5b9u; }

/* The step that last wrote piece p, of `steps` that were made. */
static uint64_t writer(uint64_t steps, uint64_t p) {
    if (p >= PIECES || p >= steps) return 0;
    return p + 1 + (steps - 1 - p) / PIECES * PIECES;
}

static void step_write(model_t *m, uint64_t step) {
    uint64_t p = (step - 1) % PIECES, at = p * (MIB / 8);
    rg_state_touch(m->s, "w", at, MIB / 8);
    for (uint64_t i = at; i < at + MIB / 8; i++) m->w[i] = word(step, i);
    rg_state_set_revision(m->s, 100 + step);
}

static int is(const model_t *m, uint64_t steps) {
    for (uint64_t i = 0; i < WORDS; i++)
        if (m->w[i] != word(writer(steps, i / (MIB / 8)), i)) return 0;
    for (int i = 0; i < 7; i++)
        if (m->few[i] != (float)i) return 0;
    return 1;
}

static int make(model_t *m, int has) {
    *m = (model_t){ .w = malloc(WORDS * 8) };
    for (uint64_t i = 0; i < WORDS; i++) m->w[i] = has ? word(0, i) : i;
    for (int i = 0; i < 7; i++) m->few[i] = has ? (float)i : 77;
    return m->w && rg_state_create(&m->s, NULL) == RG_OK &&
           rg_state_add(m->s, "w", m->w, WORDS, RG_U64, NULL) == RG_OK &&
           rg_state_add(m->s, "nothing", NULL, 0, RG_F32, NULL) == RG_OK &&
           rg_state_add(m->s, "few", m->few, 7, RG_F32, NULL) == RG_OK &&
           rg_state_set_revision(m->s, has ? 100 : 0) == RG_OK;
}

static void unmake(model_t *m) {
    rg_state_destroy(m->s);
    free(m->w);
}

/* ---- A group that works, and newcomers --------------------------------------------------------------------------- */

typedef struct course {
    uint32_t workers; /* the first ones; the others come later */
    uint64_t side_bytes, rate;
    rg_switch_t in_place;
    int writes, old; /* a step changes something; the newcomer has an old revision */
    int interrupted; /* it gets a part, is lost, and comes again */
    int parts;       /* no worker can give all of it: each lacks what only the others can give */
    model_t *model[RIG_MAX];
    _Atomic uint64_t began;
    atomic_int entered;
    rg_state_result_t fetch, enter, part; /* of the newcomer */
} course_t;

#define PART_NS 200000000u

static int serve(rig_member_t *m, const course_t *c, model_t *x) {
    rg_state_serve_opts_t o = RG_STATE_SERVE_OPTS_INIT;
    o.side_bytes = c->side_bytes;
    o.bytes_per_s = c->rate;
    RIG_OK(m, rg_state_serve(m->g, x->s, &o));
    return 0;
}

/* For a while after the newcomer has begun, and again when it comes for the second time. */
static int serve_a_part(rig_member_t *m, course_t *c, model_t *x) {
    uint64_t began = atomic_load(&c->began);
    if (began && x->s->serve && rig_now() - began > PART_NS) RIG_OK(m, rg_state_serve_end(x->s));
    if (began || x->s->serve) return 0;
    rig_pass(m, 2);
    return serve(m, c, x);
}

/* Called by a worker's serving thread between a snapshot and its first answer about it. Worker i writes, without
 * changing anything, pieces i, i + workers and so on; with no room to keep them aside they cannot be had from it any
 * more. So whoever gets all pieces has them from two workers at least, whatever the order of things and the load of the
 * host. */
static void after_snapshot(void *user, rg_log_level_t level, const char *line) {
    static const char snapshot[] = "state: snapshot ";
    const rig_member_t *m = user;
    (void)level;
    if (strncmp(line, snapshot, sizeof snapshot - 1) != 0) return; /* a newcomer's lines come without a user */
    const course_t *c = m->rig->arg;
    for (uint64_t p = m->index; p < PIECES; p += c->workers)
        rg_state_touch(c->model[m->index]->s, "w", p * (MIB / 8), MIB / 8);
}

static int work(rig_member_t *m, course_t *c, model_t *x, rg_change_t *change) {
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    o.touched_only = RG_ON;
    o.rule = RG_STATE_NEWEST;
    for (int64_t over = 0; !over && !m->rig->failed;) {
        rg_state_result_t r = RG_STATE_RESULT_INIT;
        if (c->interrupted && change->joined) rig_pass(m, 3);
        if (change->joined) RIG_OK(m, rg_state_sync(m->g, x->s, &o, &r));
        uint64_t steps = rg_state_revision(x->s) - 100;
        if (c->interrupted && m->index < c->workers && serve_a_part(m, c, x)) return 1;
        if (change->joined && r.members == m->rig->n) {
            RIG_NEED(m, is(x, steps), "wrong content after %llu steps", (unsigned long long)steps);
            atomic_fetch_add(&c->entered, 1);
            if (m->index >= c->workers) c->enter = r;
        }
        if (c->writes) step_write(x, steps + 1);
        if (c->parts && m->index < c->workers) RIG_OK(m, rg_state_set_revision(x->s, 100 + steps)); /* it is written */
        over = atomic_load(&c->entered) == (int)m->rig->n;
        RIG_OK(m, rg_all_reduce(m->g, &over, &over, 1, RG_I64, RG_MIN, NULL, NULL));
        if (!over) RIG_OK(m, rg_group_boundary(m->g, change));
    }
    return 0;
}

static int take_part(rig_member_t *m, void *arg) {
    course_t *c = arg;
    model_t x;
    rg_change_t change = RG_CHANGE_INIT;
    RIG_NEED(m, make(&x, m->index < c->workers), "no state");
    c->model[m->index] = &x;
    if (m->index >= c->workers) {
        rg_state_opts_t o = RG_STATE_OPTS_INIT;
        rg_config_t config = m->rig->config;
        rg_error_t err;
        c->fetch = (rg_state_result_t)RG_STATE_RESULT_INIT;
        RIG_OK(m, rg_group_leave(m->g));
        rg_group_destroy(m->g);
        m->g = NULL;
        RIG_NEED(m, rig_gate(m, 1, c->workers + 1) == 0, "the others do not work");
        config.min_size = 1;
        config.coordinator = m->rig->address;
        o.in_place = c->in_place;
        o.rule = RG_STATE_NEWEST;
        rg_state_set_revision(x.s, c->old ? 3 : 0);
        if (c->interrupted) {
            atomic_store(&c->began, rig_now());
            c->part = (rg_state_result_t)RG_STATE_RESULT_INIT;
            RIG_NEED(m, rg_state_join(&config, x.s, &o, &m->g, &c->part, &err) == RG_OK, "first join: %s", err.text);
            /* Whoever hears of the loss before its boundary returns is not told of a newcomer, and calls no sync. */
            RIG_NEED(m, rig_gate(m, 3, c->workers + 1) == 0, "the others do not see it enter");
            rg_group_destroy(m->g); /* a member that is lost before it said anything */
            m->g = NULL;
            atomic_store(&c->began, 0);
            RIG_NEED(m, rig_gate(m, 2, c->workers + 1) == 0, "the others do not serve again");
        }
        rg_status_t st = rg_state_join(&config, x.s, &o, &m->g, &c->fetch, &err);
        RIG_NEED(m, st == RG_OK && c->fetch.status == RG_OK, "join: %s", err.text);
        RIG_NEED(m, rg_state_revision(x.s) == 0, "the content has revision %llu before the sync",
                 (unsigned long long)rg_state_revision(x.s));
        change.joined = 1;
    } else {
        if (serve(m, c, &x)) return 1;
        rig_pass(m, 1);
    }
    int bad = work(m, c, &x, &change);
    unmake(&x);
    return bad;
}

static void run(course_t *c, uint32_t n, const char *transport) {
    rg_config_t config = RG_CONFIG_INIT;
    config.heartbeat_ms = 10000; /* whoever is to be lost closes its connections; a busy host makes nobody silent */
    if (c->parts) {
        config.log_level = RG_LOG_INFO;
        config.log_fn = after_snapshot;
    }
    rig_run(n, transport, &config, take_part, c);
    cr_assert_eq(c->fetch.rejected, 0, "%u pieces were not what their hashes said", c->fetch.rejected);
}

Test(state_serve, newcomer__while_nothing_changes__has_all_of_it_before_it_enters, .timeout = 60) {
    static const char *transports[] = { "inproc", "tcp", "shm" };
    for (int t = 0; t < 3; t++) {
        course_t c = { .workers = 3, .rate = 64u << 20, .in_place = t == 1 ? RG_OFF : RG_ON, .old = t == 1 };
        run(&c, 4, transports[t]);
        cr_expect_eq(c.fetch.pieces_received, PIECES + 2, "%s: %llu pieces", transports[t],
                     (unsigned long long)c.fetch.pieces_received);
        cr_expect_eq(c.fetch.revision, 100);
        cr_expect_eq(c.enter.pieces_received, 0, "%s: %llu pieces moved when it entered", transports[t],
                     (unsigned long long)c.enter.pieces_received);
    }
}

/* Without a piece in it there is nothing to ask for, and so nothing to wait for. */
static int empty(rig_member_t *m, void *arg) {
    rg_state_t *s = NULL;
    rg_config_t config = m->rig->config;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    rg_change_t change = RG_CHANGE_INIT;
    rg_error_t err;
    uint64_t began = rig_now(), one = 1, sum = 0, until = began + 30000000000ull * RIG_SLOW;
    int comes = m->index == m->rig->n - 1, fresh = comes;
    (void)arg;
    RIG_NEED(m,
             rg_state_create(&s, NULL) == RG_OK && rg_state_add(s, "nothing", NULL, 0, RG_F32, NULL) == RG_OK &&
                 rg_state_set_revision(s, 7) == RG_OK,
             "no state");
    if (comes) {
        RIG_OK(m, rg_group_leave(m->g));
        rg_group_destroy(m->g);
        m->g = NULL;
        RIG_NEED(m, rig_gate(m, 1, m->rig->n) == 0, "the others do not serve");
        config.min_size = 1;
        config.coordinator = m->rig->address;
        RIG_NEED(m, rg_state_join(&config, s, NULL, &m->g, &r, &err) == RG_OK, "join: %s", err.text);
        RIG_NEED(m, (double)r.total_ns / 1e6 < 4000 + rig_late_ms(began) && r.revision == 7, "%llu ms, revision %llu",
                 (unsigned long long)(r.total_ns / 1000000), (unsigned long long)r.revision);
    } else {
        RIG_OK(m, rg_state_serve(m->g, s, NULL));
        rig_pass(m, 1);
    }
    for (; sum != m->rig->n && rig_now() < until; fresh = 0) {
        if (!fresh) RIG_OK(m, rg_group_boundary(m->g, &change));
        RIG_OK(m, rg_all_reduce(m->g, &one, &sum, 1, RG_U64, RG_SUM, NULL, NULL));
    }
    rg_state_destroy(s);
    RIG_NEED(m, sum == m->rig->n, "%u members", (unsigned)sum);
    return rig_gate(m, 0, m->rig->n);
}

Test(state_serve, newcomer__to_a_state_of_no_pieces__waits_for_nothing, .timeout = 60) {
    rig_run(3, "inproc", NULL, empty, NULL);
}

Test(state_serve, newcomer__nobody_can_give_all_of_it__fetches_it_from_several, .timeout = 120) {
    static const char *transports[] = { "inproc", "tcp", "shm" };
    for (int t = 0; t < 3; t++) {
        course_t c = { .workers = 3, .rate = 32u << 20, .side_bytes = 1, .parts = 1 };
        run(&c, 4, transports[t]);
        cr_expect_eq(c.fetch.pieces_received, PIECES + 2, "%s: %llu pieces", transports[t],
                     (unsigned long long)c.fetch.pieces_received);
        cr_expect(c.fetch.holders >= 2, "%s: from %u members", transports[t], c.fetch.holders);
        cr_expect_eq(c.fetch.revision, 100);
    }
}

Test(state_serve, newcomer__while_every_step_writes_a_piece__gets_only_the_last_ones_when_it_enters, .timeout = 60) {
    course_t c = { .workers = 3, .rate = 200u << 20, .writes = 1 };
    run(&c, 4, "tcp");
    cr_expect(c.fetch.pieces_received >= PIECES, "%llu pieces", (unsigned long long)c.fetch.pieces_received);
}

/* What came with a join of which nothing came is here when the process tries again. */
Test(state_serve, newcomer__lost_in_the_middle_and_back__fetches_only_the_rest, .timeout = 60) {
    course_t c = { .workers = 3, .rate = 20u << 20, .interrupted = 1 };
    run(&c, 4, "tcp");
    uint64_t first = c.part.pieces_received, second = c.fetch.pieces_received;
    cr_expect(first + second == PIECES + 2, "%llu and %llu pieces", (unsigned long long)first,
              (unsigned long long)second);
    cr_expect_eq(c.part.revision, first < PIECES + 2 ? 0u : 100u);
    cr_expect_eq(c.fetch.revision, 100);
}

/* With no room to keep anything aside, pieces that were written are not given as something else. */
Test(state_serve, donors__without_room_for_copies__give_what_was_not_written, .timeout = 60) {
    course_t c = { .workers = 3, .rate = 64u << 20, .writes = 1, .side_bytes = 1 };
    run(&c, 4, "tcp");
    cr_expect(c.fetch.status == RG_OK && c.enter.status == RG_OK);
}

/* ---- A program that breaks the rules ----------------------------------------------------------------------------- */

#if !defined(__SANITIZE_THREAD__) /* it would see the writes */
/* It writes what it serves, without a word: the newcomer refuses what does not fit its hash, and has the right content
 * after a sync that looks at everything. */
static int rogue(rig_member_t *m, void *arg) {
    atomic_int *over = arg;
    model_t x;
    rg_error_t err;
    rg_change_t change = RG_CHANGE_INIT;
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    rg_state_result_t r = RG_STATE_RESULT_INIT, fetch = RG_STATE_RESULT_INIT;
    RIG_NEED(m, make(&x, m->index == 0), "no state");
    if (m->index == 1) {
        rg_config_t config = m->rig->config;
        RIG_OK(m, rg_group_leave(m->g));
        rg_group_destroy(m->g);
        m->g = NULL;
        config.coordinator = m->rig->address;
        RIG_NEED(m, rig_gate(m, 1, 2) == 0, "the other one does not work");
        RIG_NEED(m, rg_state_join(&config, x.s, NULL, &m->g, &fetch, &err) == RG_OK, "join: %s", err.text);
        RIG_NEED(m, fetch.rejected > 0 && fetch.revision == 0, "%u pieces were refused, revision %llu", fetch.rejected,
                 (unsigned long long)fetch.revision);
        atomic_store(over, 1);
    } else {
        rg_state_serve_opts_t so = RG_STATE_SERVE_OPTS_INIT;
        so.bytes_per_s = 40u << 20;
        RIG_OK(m, rg_state_serve(m->g, x.s, &so));
        rig_pass(m, 1);
        for (uint64_t k = 1; !change.joined && !m->rig->failed; k++) {
            for (uint64_t i = (PIECES / 2) * (MIB / 8); i < WORDS - 100 && !atomic_load(over); i += 5000)
                x.w[i] = k + i;
            RIG_OK(m, rg_group_boundary(m->g, &change));
        }
    }
    RIG_OK(m, rg_state_sync(m->g, x.s, &o, &r));
    uint64_t sum[2] = { 0, 0 };
    for (uint64_t i = 0; i < WORDS; i++) sum[0] += x.w[i] * (2 * i + 1);
    sum[1] = ~sum[0];
    RIG_OK(m, rg_all_reduce(m->g, sum, sum, 2, RG_U64, RG_MAX, NULL, NULL));
    RIG_NEED(m, sum[0] == ~sum[1], "contents differ after the sync");
    unmake(&x);
    return 0;
}

Test(state_serve, donor__written_to_without_a_word__what_it_gives_is_refused, .timeout = 60) {
    atomic_int over = 0;
    rig_run(2, "tcp", NULL, rogue, &over);
}
#endif

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static int calls(rig_member_t *m, void *arg) {
    (void)arg;
    model_t x, y;
    rg_error_t err;
    rg_group_t *g = NULL, *child = NULL;
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    rg_config_t config = m->rig->config;
    config.coordinator = m->rig->address;
    RIG_NEED(m, make(&x, 1) && make(&y, 1), "no state");
    RIG_OK(m, rg_group_split(m->g, 0, 0, NULL, &child));
    RIG_NEED(m, rg_state_serve(NULL, x.s, NULL) == RG_ERR_INVALID, "no group");
    RIG_NEED(m, rg_state_serve(m->g, NULL, NULL) == RG_ERR_INVALID, "no state");
    RIG_NEED(m, rg_state_serve(child, x.s, NULL) == RG_ERR_INVALID, "a sub-group");
    RIG_OK(m, rg_state_serve(m->g, x.s, NULL));
    RIG_NEED(m, rg_state_serve(m->g, x.s, NULL) == RG_ERR_INVALID, "served twice");
    RIG_NEED(m, rg_state_serve(m->g, y.s, NULL) == RG_ERR_INVALID && strstr(rig_errmsg(m), "another"), "two states: %s",
             rig_errmsg(m));
    RIG_NEED(m, rg_state_add(x.s, "late", NULL, 0, RG_U8, &err) == RG_ERR_INVALID, "a tensor was added");
    RIG_NEED(m, rg_state_join(&config, x.s, NULL, &g, NULL, &err) == RG_ERR_INVALID, "joined with a state in use");
    RIG_NEED(m, rg_state_join(&config, NULL, NULL, &g, NULL, &err) == RG_ERR_INVALID && err.text[0], "no state");
    RIG_NEED(m, rg_state_join(&config, y.s, NULL, NULL, NULL, &err) == RG_ERR_INVALID && err.text[0], "no out");
    o.role = RG_STATE_SEND_ONLY;
    RIG_NEED(m, rg_state_join(&config, y.s, &o, &g, NULL, &err) == RG_ERR_INVALID && strstr(err.text, "SEND_ONLY"),
             "send only: %s", err.text);
    RIG_NEED(m, rg_state_serve_end(x.s) == RG_OK && rg_state_serve_end(x.s) == RG_OK, "ended twice");
    RIG_NEED(m, rg_state_serve_end(NULL) == RG_ERR_INVALID, "no state");
    RIG_OK(m, rg_state_serve(m->g, y.s, NULL));
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    rg_group_destroy(child);
    rg_group_destroy(m->g); /* ends the serving */
    m->g = NULL;
    RIG_NEED(m, y.s->serve == NULL, "still served");
    unmake(&x);
    unmake(&y);
    return 0;
}

Test(state_serve, calls__that_make_no_sense__refused_with_a_text, .timeout = 60) {
    rig_run(2, "inproc", NULL, calls, NULL);
}

/* A first member has nobody to fetch from, and a group of newcomers alone is founded all the same. */
static int alone(rig_member_t *m, void *arg) {
    (void)arg;
    model_t x;
    rg_error_t err;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    rg_config_t config = m->rig->config;
    RIG_NEED(m, make(&x, 0), "no state");
    rg_group_destroy(m->g);
    config.coordinator = m->rig->address;
    config.group = "newcomers";
    config.min_size = m->rig->n;
    RIG_NEED(m, rg_state_join(&config, x.s, NULL, &m->g, &r, &err) == RG_OK, "join: %s", err.text);
    RIG_NEED(m, r.pieces_received == 0 && r.revision == 0 && !r.changed, "something came");
    RIG_OK(m, rg_state_sync(m->g, x.s, NULL, NULL));
    unmake(&x);
    return 0;
}

Test(state_serve, newcomers__with_nobody_to_fetch_from__found_a_group, .timeout = 60) {
    rig_run(3, "tcp", NULL, alone, NULL);
}

/* ---- What is said ------------------------------------------------------------------------------------------------ */

Test(state_serve, questions_and_answers__any_byte_changed__read_as_they_are_or_not_at_all) {
    rg_question_t q = { RG_TALK_PIECES, 1ull << 40, 7, 8, 9, 10, { { 1, 2, 3 } } }, q2;
    rg_answer_t a = { 3, 4, 1ull << 50, 5, 1, { { 6 } }, { { 7 } } }, a2;
    uint8_t raw[RG_TALK_HEAD_BYTES];
    memset(&q2, 0, sizeof q2);
    memset(&a2, 0, sizeof a2);
    rg_question_put(&q, raw);
    cr_assert(rg_question_get(&q2, raw) && q2.kind == q.kind && q2.snapshot == q.snapshot && q2.first == 7 &&
              q2.count == 8 && q2.bytes == 9 && q2.low == 10 && rg_hash_equal(&q.layout, &q2.layout));
    for (int i = 0; i < 8; i++) {
        rg_question_put(&q, raw);
        raw[i] ^= 0x80;
        cr_expect(!rg_question_get(&q2, raw), "byte %d of a question", i);
    }
    rg_answer_put(&a, raw);
    cr_assert(rg_answer_get(&a2, raw) && a2.snapshot == 3 && a2.revision == 4 && a2.bytes == a.bytes &&
              a2.n_pieces == 5 && a2.whole == 1 && rg_hash_equal(&a.root, &a2.root));
    for (int i = 0; i < 8; i++) {
        rg_answer_put(&a, raw);
        raw[i] ^= 0x80;
        cr_expect(!rg_answer_get(&a2, raw), "byte %d of an answer", i);
    }
}
