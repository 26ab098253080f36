/* test_quorum_talk.c: the bytes of questions and answers of ports: that they come back as they were, that anything is
 * read without harm, and that a member which asks for anything at all disturbs neither rounds nor windows of the one
 * that it asks. It relies on engine_rig.h and on src/quorum. */
#include "engine_rig.h"
#include "no_memory.h"

#include "api.h"
#include "quorum/quorum.h"
#include "regroup_window.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

Test(quorum_talk, questions_and_heads__written_and_read__the_same) {
    const rg_sask_t q = { RG_SASK_MORE, 1, 2, 3, 4, 5, 6, 7, 0, 8 };
    const rg_shead_t h = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    const rg_qentry_t e[2] = { { 1, 2, 3, 4, 5 }, { 6, 7, 0.5, 1, 0 } };
    uint8_t raw[RG_SASK_BYTES], head[RG_SERVICE_HEAD], entries[2 * RG_QUORUM_ENTRY];
    rg_sask_t back = { 0 };
    rg_shead_t head_back;
    rg_qentry_t e_back[2];
    rg_sask_put(&q, raw);
    cr_assert(rg_sask_get(&back, raw));
    cr_assert(back.kind == q.kind && back.name == 1 && back.terms == 2 && back.round == 3 && back.off == 4 &&
              back.len == 5 && back.cap == 6 && back.scale == q.scale && back.epoch == q.epoch);
    rg_shead_put(&h, head);
    rg_shead_get(&head_back, head);
    cr_assert(head_back.terms == 1 && head_back.round == 2 && head_back.first == 3 && head_back.kept == 4 &&
              head_back.version == 5 && head_back.weight == 6 && head_back.n == 7 && head_back.status == 8 &&
              head_back.epoch == 9);
    rg_entries_put(e, 2, entries);
    rg_entries_get(e_back, 2, entries);
    cr_assert(e_back[1].id == 6 && e_back[1].version == 7 && e_back[1].weight == 0.5 && e_back[1].came == 1 &&
              e_back[1].contributes == 0 && e_back[0].contributes == 5);
    raw[0] ^= 1;
    cr_assert_not(rg_sask_get(&back, raw), "another word");
    raw[0] ^= 1;
    raw[6] = 0;
    cr_assert_not(rg_sask_get(&back, raw), "no kind");
    raw[6] = RG_SASK_KINDS;
    cr_assert_not(rg_sask_get(&back, raw), "a kind that there is not");
}

static void ignore(void *user, uint64_t cookie, const uint8_t *answer) {
    (void)user;
    (void)cookie;
    (void)answer;
}

/* Numbers that are likely to hurt. */
static uint64_t odd(uint64_t *state) {
    static const uint64_t some[] = { 0,   1,    2,    4,      63,         64,         255,
                                     256, 1024, 4096, 262144, UINT32_MAX, UINT64_MAX, 1ull << 62 };
    uint64_t r = rig_random(state);
    return r % 3 ? some[r / 3 % (sizeof some / sizeof *some)] : r >> (r % 60);
}

static int asks_anything(rig_member_t *m, const uint64_t *names, uint64_t terms) {
    uint64_t state = rig_seed(7), peer;
    uint8_t raw[RG_SIDE_ASK];
    RIG_OK(m, rg_group_member(m->g, 0, &peer));
    for (int i = 0; i < 600; i++) {
        rg_sask_t q = { .kind = (rg_sask_kind_t)(RG_SASK_NEWS + rig_random(&state) % (RG_SASK_KINDS - RG_SASK_NEWS)),
                        .name = names[rig_random(&state) % 2],
                        .terms = rig_random(&state) % 2 ? terms : odd(&state),
                        .round = odd(&state),
                        .off = odd(&state),
                        .len = (uint32_t)odd(&state),
                        .cap = (uint32_t)odd(&state),
                        .scale = 1 };
        rg_sask_put(&q, raw);
        if (rig_random(&state) % 8 == 0) raw[rig_random(&state) % sizeof raw] ^= (uint8_t)rig_random(&state);
        rg_lock(m->g);
        rg_status_t st = rg_side_ask(m->g, peer, raw, RG_SERVICE_HEAD, ignore, (void *)(uintptr_t)names, 0);
        rg_unlock(m->g);
        RIG_NEED(m, st == RG_OK || st == RG_ERR_RESOURCE, "asking: %s", rg_status_name(st));
    }
    return 0;
}

static int hostile(rig_member_t *m, void *arg) {
    (void)arg;
    rg_quorum_config_t c = RG_QUORUM_CONFIG_INIT;
    rg_quorum_t *q = NULL;
    rg_window_t *w;
    float x[1000], mine[64] = { 0 };
    uint64_t names[2];
    c.count = 1000;
    c.at_least = 2;
    RIG_OK(m, rg_window_register(m->g, 1, mine, 64, &w, NULL));
    RIG_OK(m, rg_quorum_create(m->g, &c, &q, NULL));
    names[0] = ((rg_port_t *)(void *)q)->name;
    names[1] = ((rg_port_t *)(void *)w)->name;
    for (int i = 0; i < 1000; i++) x[i] = 1;
    if (rig_gate(m, 0, 3)) return 1;
    if (m->index == 2) {
        if (asks_anything(m, names, q->terms)) return 1;
        rig_pass(m, 1);
    }
    for (int i = 0; m->index < 2 && i < 50; i++) {
        rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
        float out[1000];
        RIG_OK(m, rg_quorum_reduce(q, x, out, NULL, 0, &r));
        RIG_NEED(m, out[999] == 2 && r.contributors == 2, "%g", (double)out[999]);
    }
    if (m->index == 1) {
        uint64_t peer;
        RIG_OK(m, rg_group_member(m->g, 0, &peer));
        RIG_OK(m, rg_window_get(w, peer, 0, 64, x, 0, NULL));
    }
    if (rig_gate(m, 2, 3)) return 1;
    if (m->index == 2) {
        rg_lock(m->g);
        rg_side_forget(m->g, names);
        rg_unlock(m->g);
    }
    rg_quorum_destroy(q);
    rg_window_destroy(w);
    return 0;
}

Test(quorum_talk, member_that_asks_for_anything__rounds_and_windows_go_on) { rig_run(3, "tcp", NULL, hostile, NULL); }

/* ---- The one who decides, alone ---------------------------------------------------------------------------------- */

Test(quorum_talk, no_memory_for_the_members_of_the_first_view__nothing_is_decided, .timeout = 20) {
    rg_service_t sv = { .epoch = 3 };
    rg_quorum_t q = { .leader = 7, .self = 7, .epoch = 0, .terms = 1 };
    rg_decided_t *kept[1] = { NULL };
    q.port.sv = &sv;
    q.c.history = 1;
    q.kept = kept;
    cr_assert_eq(rg_decide_step(&q, 5), 5 + RG_QUORUM_AGAIN_NS);
    q.epoch = 3;
    cr_assert_eq(rg_decide_step(&q, 5), 5 + RG_QUORUM_AGAIN_NS);
    cr_assert(!q.ready && !kept[0]);
}

/* Where members come and go more often than every 16 rounds, patience that has grown must not stay for ever. */
Test(quorum_talk, patience__16_rounds_without_a_takeover_and_views_in_between__halves) {
    rg_quorum_t q = { .leader = 11, .self = 12 };
    rg_quorum_follow(&q, 13, 4098);
    cr_assert_eq(q.patience, 1);
    for (int i = 0; i < 15; i++) {
        rg_quorum_calm(&q);
        rg_quorum_follow(&q, 11, 0); /* as the first of a new view */
        cr_assert_eq(q.patience, 1, "after %d rounds", i + 1);
    }
    rg_quorum_calm(&q);
    cr_assert_eq(q.patience, 0);
    for (int i = 0; i < 40; i++) {
        rg_quorum_follow(&q, 13, 4098);
        for (int k = 0; k < 15; k++) rg_quorum_calm(&q);
    }
    cr_assert_eq(q.patience, 8, "the most");
}

Test(quorum_talk, terms__of_another_rank_or_too_high__are_nobodys) {
    rg_place_t places[3] = { { .seat = { .id = 11 } }, { .seat = { .id = 12 } }, { .seat = { .id = 13 } } };
    rg_quorum_t q = { .leader = 11, .self = 12, .term = UINT32_MAX - 4095, .places = places, .n_places = 3 };
    cr_assert(rg_decide_term_of(&q, 12, 5 * 4096 + 1));
    cr_assert_not(rg_decide_term_of(&q, 12, 5 * 4096 + 2), "another's");
    cr_assert_not(rg_decide_term_of(&q, 14, 5 * 4096 + 3), "no member's");
    cr_assert_not(rg_decide_term_of(&q, 12, (1ull << 32) + 1), "as 32 bits it is the first");
    rg_decide_claim(&q);
    cr_assert(q.leader == 11 && q.term == UINT32_MAX - 4095, "there is no higher term: the next view is waited for");
}

/* ---- Two ports of one name, one after the other ------------------------------------------------------------------ */

typedef struct fake {
    rg_port_t port; /* first */
    uint64_t peer;
    uint32_t turn; /* of the question that is to be asked; 0: none */
    int asked, gives;
    rg_asked_t held[2];
    atomic_int n_held, answers, last; /* last: turn of the newest answer */
} fake_t;

static void fake_asked(rg_port_t *p, const rg_asked_t *a) {
    fake_t *f = (fake_t *)(void *)p;
    int n = atomic_load(&f->n_held);
    if (n < 2) f->held[n] = *a;
    atomic_store(&f->n_held, n + 1);
}

static void fake_answered(rg_port_t *p, uint64_t peer, const rg_sask_t *q, const uint8_t *bytes, int refused) {
    fake_t *f = (fake_t *)(void *)p;
    (void)peer;
    (void)bytes;
    (void)refused;
    atomic_fetch_add(&f->answers, 1); /* first: who sees the newest answer also sees that it was counted */
    atomic_store(&f->last, (int)q->turn);
    rg_service_tell(p);
}

/* Asks its question once; the other one answers both, in their order, when both have come. */
static uint64_t fake_step(rg_port_t *p, uint64_t now) {
    fake_t *f = (fake_t *)(void *)p;
    const rg_sask_t ask = { .kind = RG_SASK_NEWS, .turn = f->turn };
    const rg_shead_t head = { 0 };
    (void)now;
    if (f->turn && !f->asked) f->asked = rg_service_ask(p, f->peer, &ask, RG_SERVICE_HEAD);
    for (int i = 0; i < 2 && !f->gives && atomic_load(&f->n_held) == 2; i++)
        rg_service_answer(p, &f->held[i], rg_service_room(&head, 0), RG_SERVICE_HEAD);
    f->gives |= atomic_load(&f->n_held) == 2;
    if (atomic_load(&f->n_held)) rg_service_tell(p);
    return UINT64_MAX;
}

static int has_one(void *arg) { return atomic_load(&((fake_t *)arg)->n_held) > 0; }
static int has_answer(void *arg) { return atomic_load(&((fake_t *)arg)->last) == 2; }

static int two_ports(rig_member_t *m, void *arg) {
    static const rg_port_ops_t ops = { fake_asked, fake_answered, fake_step, NULL };
    fake_t one = { .port = { .ops = &ops, .name = 77 } }, two = one;
    const uint64_t until = rig_now() + 20000000000u;
    (void)arg;
    if (m->index) RIG_OK(m, rg_service_add(rg_root(m->g), &one.port, NULL));
    if (rig_gate(m, 0, 2)) return 1;
    if (m->index) {
        RIG_OK(m, rg_service_wait(&one.port, has_one, &one, until));
        if (rig_gate(m, 1, 2) || rig_gate(m, 2, 2)) return 1;
        rg_service_remove(&one.port);
        return 0;
    }
    rg_group_member(m->g, 1, &one.peer);
    two.peer = one.peer;
    one.turn = 1;
    two.turn = 2;
    RIG_OK(m, rg_service_add(rg_root(m->g), &one.port, NULL));
    if (rig_gate(m, 1, 2)) return 1; /* the question is there, and not answered */
    rg_service_remove(&one.port);
    RIG_OK(m, rg_service_add(rg_root(m->g), &two.port, NULL));
    RIG_OK(m, rg_service_wait(&two.port, has_answer, &two, until));
    RIG_NEED(m, atomic_load(&two.answers) == 1, "%d answers, one of them to a question of another port",
             atomic_load(&two.answers));
    rg_service_remove(&two.port);
    return rig_gate(m, 2, 2);
}

Test(quorum_talk, port_removed_and_added_again__answer_to_the_first__is_not_the_seconds) {
    rig_run(2, "tcp", NULL, two_ports, NULL);
}

/* ---- Answers that fail, and those that do not come --------------------------------------------------------------- */

typedef struct short_of {
    rg_port_t port; /* first */
    uint64_t peer;
    rg_sask_t ask; /* kind 0: none */
    int asked;
    atomic_int came, gave, refused;
} short_of_t;

/* Three times there is no memory for an answer; then there is. */
static void short_asked(rg_port_t *p, const rg_asked_t *a) {
    short_of_t *f = (short_of_t *)(void *)p;
    const rg_shead_t head = { 0 };
    int n = atomic_fetch_add(&f->came, 1);
    rg_service_answer(p, a, n < 3 ? NULL : rg_service_room(&head, 0), RG_SERVICE_HEAD);
}

static void refuses(rg_port_t *p, const rg_asked_t *a) { rg_service_answer(p, a, NULL, 0); }

static void short_answered(rg_port_t *p, uint64_t peer, const rg_sask_t *q, const uint8_t *bytes, int refused) {
    short_of_t *f = (short_of_t *)(void *)p;
    (void)peer, (void)q;
    atomic_fetch_add(bytes ? &f->gave : &f->refused, bytes || refused);
    rg_service_tell(p);
}

static uint64_t short_step(rg_port_t *p, uint64_t now) {
    short_of_t *f = (short_of_t *)(void *)p;
    if (f->ask.kind && !f->asked) f->asked = rg_service_ask(p, f->peer, &f->ask, RG_SERVICE_HEAD + f->ask.len);
    return now + 1000000;
}

static int short_over(void *arg) {
    short_of_t *f = arg;
    return atomic_load(&f->refused) || atomic_load(&f->gave);
}

static int no_memory_answer(rig_member_t *m, void *arg) {
    static const rg_port_ops_t ops = { short_asked, short_answered, short_step, NULL };
    short_of_t f = { .port = { .ops = &ops, .name = 79 } };
    (void)arg;
    RIG_OK(m, rg_group_member(m->g, 0, &f.peer));
    f.ask.kind = m->index ? RG_SASK_NEWS : (rg_sask_kind_t)0;
    if (m->index && rig_gate(m, 0, 2)) return 1;
    RIG_OK(m, rg_service_add(rg_root(m->g), &f.port, NULL));
    if (!m->index && rig_gate(m, 0, 2)) return 1;
    if (m->index) RIG_OK(m, rg_service_wait(&f.port, short_over, &f, rig_now() + 20000000000u));
    RIG_NEED(m, !m->index || atomic_load(&f.gave) == 1, "the lack of memory came as a refusal");
    if (rig_gate(m, 1, 2)) return 1;
    RIG_NEED(m, m->index || atomic_load(&f.came) == 4, "the question came %d times", atomic_load(&f.came));
    rg_service_remove(&f.port);
    return rig_gate(m, 2, 2);
}

Test(quorum_talk, no_memory_for_an_answer__the_question_comes_again__no_refusal) {
    rig_run(2, "tcp", NULL, no_memory_answer, NULL);
}

/* A question that waits in its port finds no memory for its answer, nor for anything else, when that is ready. */
typedef struct holds {
    short_of_t s; /* first */
    rg_asked_t held;
    int holding;
} holds_t;

static void holds_asked(rg_port_t *p, const rg_asked_t *a) {
    holds_t *f = (holds_t *)(void *)p;
    const rg_shead_t head = { 0 };
    if (atomic_fetch_add(&f->s.came, 1) >= 2) {
        rg_service_answer(p, a, rg_service_room(&head, 0), RG_SERVICE_HEAD);
        return;
    }
    f->held = *a;
    f->holding = 1;
}

static uint64_t holds_step(rg_port_t *p, uint64_t now) {
    holds_t *f = (holds_t *)(void *)p;
    if (f->holding) {
        f->holding = 0;
        no_memory(1000, 0, SIZE_MAX);
        rg_service_answer(p, &f->held, NULL, RG_SERVICE_HEAD);
        no_memory(0, 0, 0);
    }
    return short_step(p, now);
}

static int no_memory_held(rig_member_t *m, void *arg) {
    static const rg_port_ops_t ops = { holds_asked, short_answered, holds_step, NULL };
    holds_t f = { .s = { .port = { .ops = &ops, .name = 81 } } };
    (void)arg;
    RIG_OK(m, rg_group_member(m->g, 0, &f.s.peer));
    f.s.ask.kind = m->index ? RG_SASK_NEWS : (rg_sask_kind_t)0;
    if (m->index && rig_gate(m, 0, 2)) return 1;
    RIG_OK(m, rg_service_add(rg_root(m->g), &f.s.port, NULL));
    if (!m->index && rig_gate(m, 0, 2)) return 1;
    if (m->index) RIG_OK(m, rg_service_wait(&f.s.port, short_over, &f, rig_now() + 10000000000u));
    RIG_NEED(m, !m->index || atomic_load(&f.s.gave) == 1, "the question was lost");
    if (rig_gate(m, 1, 2)) return 1;
    RIG_NEED(m, m->index || atomic_load(&f.s.came) == 3, "the question came %d times", atomic_load(&f.s.came));
    rg_service_remove(&f.s.port);
    return rig_gate(m, 2, 2);
}

Test(quorum_talk, no_memory_when_a_held_question_is_answered__it_comes_again) {
    rig_run(2, "tcp", NULL, no_memory_held, NULL);
}

static int came_over(void *arg) { return atomic_load(&((short_of_t *)arg)->came) == 4; }

/* Sizes of what fails when a question is taken in. */
typedef struct fails {
    size_t least, most;
} fails_t;

/* Whoever is asked has no memory for a part of what a question needs, in the thread that takes it in. */
static int no_memory_taking(rig_member_t *m, void *arg) {
    static const rg_port_ops_t ops = { short_asked, short_answered, short_step, NULL };
    const fails_t *fails = arg;
    short_of_t f = { .port = { .ops = &ops, .name = 82 }, .came = 3 };
    rg_group_t *root = rg_root(m->g);
    RIG_OK(m, rg_group_member(m->g, 0, &f.peer));
    f.ask.kind = m->index ? RG_SASK_NEWS : (rg_sask_kind_t)0;
    if (m->index) {
        if (rig_gate(m, 0, 2)) return 1;
        RIG_OK(m, rg_service_add(root, &f.port, NULL));
        RIG_OK(m, rg_service_wait(&f.port, short_over, &f, rig_now() + 10000000000u));
        RIG_NEED(m, atomic_load(&f.gave) == 1, "the question was lost");
    } else {
        RIG_OK(m, rg_service_add(root, &f.port, NULL));
        rg_lock(root); /* nobody else drives until this thread does */
        no_memory(5, fails->least, fails->most);
        rig_pass(m, 0);
        rg_drive(root, came_over, &f, rig_now() + 10000000000u);
        unsigned left = no_memory_left();
        no_memory(0, 0, 0);
        rg_unlock(root);
        RIG_NEED(m, !left && atomic_load(&f.came) == 4, "%u failures did not happen, and it came %d times", left,
                 atomic_load(&f.came) - 3);
    }
    if (rig_gate(m, 1, 2)) return 1;
    rg_service_remove(&f.port);
    return rig_gate(m, 2, 2);
}

Test(quorum_talk, no_memory_to_take_a_question_in__it_is_taken_in_later) {
    fails_t fails[] = { { RG_SIDE_ASK, RG_SIDE_ASK }, { 32, 48 }, { sizeof(rg_asked_t) + 16, 256 } };
    for (int i = 0; i < 3; i++) rig_run(2, "inproc", NULL, no_memory_taking, &fails[i]);
}

/* One waits for a result of a reduction that the other one destroys. */
static int destroyed(rig_member_t *m, void *arg) {
    static const rg_port_ops_t ops = { refuses, short_answered, short_step, NULL };
    rg_quorum_t **shared = arg, *q;
    rg_quorum_config_t c = RG_QUORUM_CONFIG_INIT;
    short_of_t f = { .port = { .ops = &ops } };
    if (!m->index) RIG_OK(m, rg_quorum_create(m->g, &c, shared, NULL));
    if (rig_gate(m, 0, 2)) return 1;
    q = *shared;
    if (m->index) {
        RIG_OK(m, rg_group_member(m->g, 0, &f.peer));
        f.port.name = q->port.name;
        f.ask = (rg_sask_t){ .kind = RG_SASK_GET, .terms = q->terms, .round = 3 };
        RIG_OK(m, rg_service_add(rg_root(m->g), &f.port, NULL));
        rg_service_wait(&f.port, short_over, &f, rig_now() + 100000000u); /* it is there by now, or soon */
        RIG_NEED(m, !atomic_load(&f.refused), "refused too early");
    }
    if (rig_gate(m, 1, 2)) return 1;
    if (!m->index) rg_quorum_destroy(q);
    else RIG_OK(m, rg_service_wait(&f.port, short_over, &f, rig_now() + 20000000000u));
    RIG_NEED(m, !m->index || atomic_load(&f.refused) == 1, "it still waits");
    if (m->index) rg_service_remove(&f.port);
    return rig_gate(m, 2, 2);
}

Test(quorum_talk, reduction_destroyed__who_waits_for_its_result__is_refused) {
    rg_quorum_t *shared = NULL;
    rig_run(2, "tcp", NULL, destroyed, &shared);
}

/* More questions to one member than may be open are refused here, and one to another member still goes. */
static int too_many(rig_member_t *m, void *arg) {
    uint8_t raw[RG_SIDE_ASK];
    const rg_sask_t ask = { .kind = RG_SASK_NEWS, .name = 80 };
    uint64_t first, second;
    int good = 0, other = 0;
    (void)arg;
    RIG_OK(m, rg_group_member(m->g, 0, &first));
    RIG_OK(m, rg_group_member(m->g, 1, &second));
    rg_sask_put(&ask, raw);
    if (m->index == 2) {
        rg_lock(m->g); /* so that no answer comes in between */
        for (int i = 0; i < 3000; i++)
            good += rg_side_ask(m->g, first, raw, RG_SERVICE_HEAD, ignore, (void *)raw, 0) == RG_OK;
        other = rg_side_ask(m->g, second, raw, RG_SERVICE_HEAD, ignore, (void *)raw, 0) == RG_OK;
        rg_side_forget(m->g, raw);
        rg_unlock(m->g);
        RIG_NEED(m, good == 512 && other, "%d of 3000 and %d of 1", good, other);
    }
    return rig_gate(m, 0, 3);
}

Test(quorum_talk, thousands_of_questions_to_one_member__a_limit_of_their_own) {
    rig_run(3, "tcp", NULL, too_many, NULL);
}

/* ---- Many answers at once ---------------------------------------------------------------------------------------- */

#define MANY 500 /* as many as may be asked of one peer, almost */
#define MANY_BYTES (RG_SERVICE_HEAD + 65536)

typedef struct many {
    rg_port_t port;
    rg_group_t *g;
    uint64_t peer;
    int asks, asked, gave;
    rg_asked_t held[2 * MANY];
    atomic_int n_held, answers, none;
} many_t;

static void many_asked(rg_port_t *p, const rg_asked_t *a) {
    many_t *f = (many_t *)(void *)p;
    f->held[atomic_fetch_add(&f->n_held, 1)] = *a;
}

static void many_answered(rg_port_t *p, uint64_t peer, const rg_sask_t *q, const uint8_t *bytes, int refused) {
    many_t *f = (many_t *)(void *)p;
    (void)peer, (void)q, (void)refused;
    atomic_fetch_add(bytes ? &f->answers : &f->none, 1);
    rg_service_tell(p);
}

/* Two members ask; the one that is asked answers when it has all questions. */
static uint64_t many_step(rg_port_t *p, uint64_t now) {
    many_t *f = (many_t *)(void *)p;
    const rg_shead_t head = { 0 };
    const rg_sask_t ask = { .kind = RG_SASK_READ };
    while (f->asks && f->asked < MANY && rg_service_ask(p, f->peer, &ask, MANY_BYTES)) f->asked++;
    if (atomic_load(&f->n_held) < 2 * MANY || f->gave) return now + 1000000;
    f->gave = 1;
    rg_lock(f->g); /* so that they are all there before the first one can leave */
    for (int i = 0; i < 2 * MANY; i++) {
        uint8_t *to = rg_service_room(&head, 65536);
        if (to) memset(to + RG_SERVICE_HEAD, 1, 65536);
        rg_service_answer(p, &f->held[i], to, MANY_BYTES);
    }
    rg_unlock(f->g);
    return now + 1000000;
}

static int many_all(void *arg) {
    many_t *f = arg;
    return atomic_load(&f->answers) + atomic_load(&f->none) == MANY;
}

static int many_questions(rig_member_t *m, void *arg) {
    static const rg_port_ops_t ops = { many_asked, many_answered, many_step, NULL };
    many_t *f = calloc(1, sizeof *f);
    (void)arg;
    RIG_NEED(m, f, "no memory");
    f->g = rg_root(m->g);
    f->port.ops = &ops;
    f->port.name = 78;
    RIG_OK(m, rg_group_member(m->g, 0, &f->peer));
    f->asks = m->index != 0;
    if (m->index && rig_gate(m, 0, 3)) return 1;
    RIG_OK(m, rg_service_add(rg_root(m->g), &f->port, NULL));
    if (!m->index && rig_gate(m, 0, 3)) return 1;
    if (m->index) {
        rg_service_wait(&f->port, many_all, f, rig_now() + 30000000000u * RIG_SLOW);
        RIG_NEED(m, atomic_load(&f->answers) == MANY, "%d answers, %d refused", atomic_load(&f->answers),
                 atomic_load(&f->none));
    }
    if (rig_gate(m, 1, 3)) return 1;
    rg_service_remove(&f->port);
    free(f);
    return rig_gate(m, 2, 3);
}

Test(quorum_talk, answers__more_than_may_be_under_way_at_once__all_come, .timeout = 120) {
    rig_run(3, "tcp", NULL, many_questions, NULL);
}
