/* test_state_plan.c: the pure part of shared states: heads as bytes, and who sends what to whom. Plans are made from
 * random wants and checked against the rules, by a checker that is shown to find broken plans. */
#include "engine_rig.h"

#include "state/state.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define N 6u
#define M 150u
#define WORDS 3u
#define ROUNDS 8u
#define LIMIT (4u << 20)

typedef struct plan {
    rg_deal_t d;
    uint32_t sizes[M];
    uint8_t follows[M];
    uint64_t wants[N * WORDS], open[N * WORDS];
    uint8_t sends[N];
    uint32_t cursor[N], out[N], in[N];
    rg_move_t moves[4096];
    uint32_t ends[ROUNDS], rounds;
} plan_t;

static void setup(plan_t *p) {
    p->d = (rg_deal_t){ .n = N, .m = M, .words = WORDS, .limit = LIMIT, .rounds = ROUNDS };
    p->d.sizes = p->sizes;
    p->d.follows = p->follows;
    for (uint32_t i = 0; i < M; i++) p->follows[i] = i % 40 != 39;
    p->d.wants = p->wants;
    p->d.sends = p->sends;
    p->d.open = p->open;
    p->d.cursor = p->cursor;
    p->d.out = p->out;
    p->d.in = p->in;
}

/* NULL, or the rule that is broken. */
static const char *broken(const plan_t *p) {
    static uint64_t got[N * WORDS];
    memset(got, 0, sizeof got);
    uint32_t k = 0;
    for (uint32_t r = 0; r < p->rounds; r++) {
        uint32_t out[N] = { 0 }, in[N] = { 0 };
        if (p->ends[r] <= k) return "an empty round";
        for (; k < p->ends[r]; k++) {
            const rg_move_t *v = &p->moves[k];
            if (v->at >= M || v->from >= N || v->to >= N) return "no such piece or member";
            if (!rg_bit(p->wants + v->to * WORDS, v->at)) return "nobody wants it";
            if (rg_bit(p->wants + v->from * WORDS, v->at)) return "the sender does not have it";
            if (!p->sends[v->from]) return "the sender may not";
            if (rg_bit(got + v->to * WORDS, v->at)) return "twice";
            rg_bit_set(got + v->to * WORDS, v->at);
            if ((out[v->from] += p->sizes[v->at]) > LIMIT) return "one sends too much";
            if ((in[v->to] += p->sizes[v->at]) > LIMIT) return "one gets too much";
        }
    }
    return NULL;
}

Test(state_plan, deal__random_wants__rules_hold_and_all_is_dealt_in_the_end, .timeout = 60) {
    static plan_t p;
    uint64_t seed = rig_seed(11);
    for (int run = 0; run < 300; run++) {
        setup(&p);
        memset(p.wants, 0, sizeof p.wants);
        for (uint32_t i = 0; i < M; i++)
            p.sizes[i] = rig_random(&seed) % 3 ? 1u << 20 : (uint32_t)rig_random(&seed) % 999 + 1;
        uint32_t holder = (uint32_t)rig_random(&seed) % N;
        for (uint32_t i = 0; i < N; i++) {
            p.sends[i] = i == holder || rig_random(&seed) % 4 != 0;
            for (uint32_t at = 0; at < M && i != holder; at++)
                if (rig_random(&seed) % 3) rg_bit_set(p.wants + i * WORDS, at);
        }
        for (int pass = 0;; pass++) {
            cr_assert(pass < 100, "run %d: it does not end", run);
            p.d.turn = (uint32_t)pass;
            p.rounds = rg_state_deal(&p.d, p.moves, run % 2 ? 4096 : 100, p.ends);
            if (!p.rounds) break;
            const char *rule = broken(&p);
            cr_assert(!rule, "run %d: %s", run, rule);
            for (uint32_t k = 0; k < p.ends[p.rounds - 1]; k++)
                rg_bit_clear(p.wants + p.moves[k].to * WORDS, p.moves[k].at);
        }
        for (uint32_t i = 0; i < N * WORDS; i++) cr_assert_eq(p.wants[i], 0, "run %d: something is left", run);
    }
}

Test(state_plan, deal__planted_mistakes__found_by_the_checker) {
    static plan_t p, q;
    setup(&p);
    for (uint32_t i = 0; i < M; i++) p.sizes[i] = 1u << 20;
    for (uint32_t at = 0; at < M; at++) rg_bit_set(p.wants + 2 * WORDS, at);
    memset(p.sends, 1, sizeof p.sends);
    p.sends[5] = 0;
    p.rounds = rg_state_deal(&p.d, p.moves, 4096, p.ends);
    cr_assert(p.rounds == ROUNDS && !broken(&p));
    static const rg_move_t bad[] = { { M, 0, 2 }, { 0, 0, 1 }, { 0, 2, 2 }, { 0, 5, 2 } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        q = p;
        q.moves[0] = bad[i];
        cr_assert(broken(&q) != NULL, "mistake %zu", i);
    }
    q = p;
    q.moves[1] = q.moves[0];
    cr_assert_str_eq(broken(&q), "twice");
    q = p;
    q.ends[0] = q.ends[1];
    cr_assert(broken(&q) != NULL);
}

/* Two members have everything: each sends half. */
Test(state_plan, deal__two_holders__send_the_same) {
    static plan_t p;
    uint32_t sent[N] = { 0 };
    setup(&p);
    for (uint32_t i = 0; i < M; i++) p.sizes[i] = 1u << 20;
    for (uint32_t r = 2; r < N; r++)
        for (uint32_t at = 0; at < M; at++) rg_bit_set(p.wants + r * WORDS, at);
    memset(p.sends, 1, sizeof p.sends);
    p.rounds = rg_state_deal(&p.d, p.moves, 4096, p.ends);
    for (uint32_t k = 0; k < p.ends[p.rounds - 1]; k++) sent[p.moves[k].from]++;
    cr_assert_eq(p.rounds, ROUNDS);
    cr_assert_eq(sent[0], sent[1]);
    cr_assert_eq(sent[0], ROUNDS * LIMIT >> 20);
}

Test(state_plan, head__as_bytes_and_back__same_and_garbage_is_refused) {
    rg_state_head_t h = { .role = 1, .rule = 1, .mixed = 1, .buffer_bytes = 5u << 20, .n_tensors = 9, .status = -3 }, g;
    uint8_t b[RG_STATE_HEAD_BYTES];
    uint64_t seed = 5;
    int taken = 0;
    h.revision = 1ull << 60;
    h.bytes = 77;
    h.layout.b[3] = 4;
    h.root.b[15] = 6;
    rg_state_head_put(&h, b);
    cr_assert(rg_state_head_get(&g, b));
    cr_assert(g.role == 1 && g.rule == 1 && g.mixed == 1 && g.buffer_bytes == 5u << 20 && g.n_tensors == 9);
    cr_assert(g.status == -3 && g.revision == h.revision && g.bytes == 77);
    cr_assert(rg_hash_equal(&g.layout, &h.layout) && rg_hash_equal(&g.root, &h.root));
    for (int k = 0; k < 1000; k++) {
        for (size_t i = 0; i < sizeof b; i++) b[i] = (uint8_t)rig_random(&seed);
        taken += rg_state_head_get(&g, b);
    }
    cr_assert_eq(taken, 0);
}
