/* test_quorum.c: quorum reductions: that a round has one outcome on all members, whoever is late, dies or comes later;
 * that nobody waits for who was late; what becomes of late inputs; weights, versions, and what is refused. What members
 * got is noted by round and compared when all have ended. It relies on engine_rig.h. */
#include "engine_rig.h"

#include "regroup_quorum.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 400

/* What a member got of a round. */
typedef struct note {
    int has;
    rg_status_t status;
    uint32_t contributors, late;
    uint64_t ids[RIG_MAX], decided_by;
    double weight_sum;
    uint64_t hash;
} note_t;

typedef struct course {
    rg_quorum_config_t c;
    uint32_t rounds;
    int die; /* members up to this index go in the middle, one after the other; -1: nobody */
    note_t note[RIG_MAX][ROUNDS + 1];
} course_t;

static uint64_t hash_of(const float *x, uint64_t n) {
    uint64_t h = 14695981039346656037u;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t b;
        memcpy(&b, &x[i], sizeof b);
        h = (h ^ b) * 1099511628211u;
    }
    return h;
}

static float input(uint32_t member, uint64_t round, uint64_t i) {
    return (float)((member + 1) * 1000 + round % 100) + (float)(i % 7) / 8;
}

static void fill(float *x, uint64_t n, uint32_t member, uint64_t round) {
    for (uint64_t i = 0; i < n; i++) x[i] = input(member, round, i);
}

static void take_note(course_t *c, uint32_t index, rg_status_t st, const rg_quorum_result_t *r, const float *out) {
    note_t *n = &c->note[index][r->round];
    n->has = 1;
    n->status = st;
    n->contributors = r->contributors;
    n->late = r->late;
    n->decided_by = r->decided_by;
    n->weight_sum = r->weight_sum;
    memcpy(n->ids, r->contributor_ids, sizeof n->ids);
    n->hash = st == RG_OK ? hash_of(out, c->c.count) : 0;
}

/* Every round that two members have is the same on both. Those that die may have shown more than anybody learned. */
static void compare(const course_t *c) {
    for (uint32_t r = 1; r <= ROUNDS; r++)
        for (uint32_t a = (uint32_t)(c->die + 1), first = RIG_MAX; a < RIG_MAX; a++) {
            const note_t *x = &c->note[a][r];
            if (!x->has) continue;
            if (first == RIG_MAX) first = a;
            const note_t *y = &c->note[first][r];
            cr_assert(x->status == y->status && x->hash == y->hash && x->contributors == y->contributors &&
                          x->late == y->late && x->decided_by == y->decided_by && x->weight_sum == y->weight_sum &&
                          memcmp(x->ids, y->ids, x->contributors * sizeof *x->ids) == 0,
                      "round %u differs between members %u and %u", r, a, first);
        }
}

static course_t *course(uint64_t count, uint32_t at_least, uint32_t rounds) {
    course_t *c = calloc(1, sizeof *c);
    const rg_quorum_config_t q = RG_QUORUM_CONFIG_INIT;
    c->c = q;
    c->c.count = count;
    c->c.at_least = at_least;
    c->c.op = RG_AVG;
    c->c.history = 64;
    c->rounds = rounds;
    c->die = -1;
    return c;
}

/* One round; the input is given with weight index + 1. */
static int one(rig_member_t *m, course_t *c, rg_quorum_t *q, uint64_t round, float *x, float *out,
               rg_quorum_result_t *r) {
    static _Thread_local uint64_t ids[RIG_MAX];
    const rg_quorum_result_t blank = RG_QUORUM_RESULT_INIT;
    rg_quorum_input_t in = RG_QUORUM_INPUT_INIT;
    *r = blank;
    memset(ids, 0, sizeof ids);
    r->contributor_ids = ids;
    r->contributor_cap = RIG_MAX;
    in.weighted = 1;
    in.weight = m->index + 1;
    fill(x, c->c.count, m->index, round);
    rg_status_t st = rg_quorum_reduce(q, x, out, &in, 0, r);
    RIG_NEED(m, st == RG_OK && r->round == round, "round %llu: %s %s", (unsigned long long)round, rg_status_name(st),
             r->text);
    take_note(c, m->index, st, r, out);
    return 0;
}

/* ---- Everybody in time ------------------------------------------------------------------------------------------- */

static int in_time(rig_member_t *m, void *arg) {
    course_t *c = arg;
    rg_quorum_t *q;
    rg_quorum_result_t r;
    RIG_OK(m, rg_quorum_create(m->g, &c->c, &q, NULL));
    float *x = malloc((c->c.count + 1) * 4), *out = malloc((c->c.count + 1) * 4);
    int bad = 0;
    for (uint64_t round = 1; !bad && round <= c->rounds; round++) {
        bad = one(m, c, q, round, x, out, &r);
        if (!bad && r.contributors != m->rig->n)
            bad = rig_complain(m, __FILE__, __LINE__, "%u contributors", r.contributors);
        for (uint64_t i = 0; !bad && i < c->c.count; i++) {
            double sum = 0, weights = 0;
            for (uint32_t k = 0; k < m->rig->n; k++) {
                sum += (k + 1) * (double)input(k, round, i);
                weights += k + 1;
            }
            if (out[i] != (float)(sum / weights) || r.weight_sum != weights)
                bad = rig_complain(m, __FILE__, __LINE__, "element %llu is %g", (unsigned long long)i, (double)out[i]);
        }
    }
    if (!bad) bad = rig_gate(m, 0, m->rig->n);
    rg_quorum_destroy(q);
    free(x);
    free(out);
    return bad;
}

static void run_in_time(uint64_t count, uint32_t rounds, const char *transport) {
    course_t *c = course(count, 4, rounds);
    rig_run(4, transport, NULL, in_time, c);
    compare(c);
    free(c);
}

Test(quorum, all_in_time__weighted_average__exact_and_alike) { run_in_time(1000, 50, "tcp"); }
Test(quorum, many_pieces__shared_memory__exact_and_alike) { run_in_time(300001, 3, "shm"); }
Test(quorum, no_elements__rounds__pass) { run_in_time(0, 5, "inproc"); }

/* ---- Late members ------------------------------------------------------------------------------------------------ */

#define GATE_GO 1  /* the late one may begin */
#define GATE_END 2 /* all have passed all rounds */

/* The last member begins when the others have passed half of the rounds. These are in each round by the number that it
 * needs, however late their host makes them; what they wait is for the last one. */
static int one_late(rig_member_t *m, void *arg) {
    course_t *c = arg;
    rg_quorum_t *q;
    rg_quorum_result_t r;
    int bad = 0, late = m->index + 1 == m->rig->n;
    uint32_t others = m->rig->n - 1;
    uint64_t begun = rig_now(), waited = 0;
    RIG_OK(m, rg_quorum_create(m->g, &c->c, &q, NULL));
    float *x = malloc(c->c.count * 4), *out = malloc(c->c.count * 4);
    if (late) bad = rig_gate(m, GATE_GO, others);
    for (uint64_t round = 1; !bad && round <= c->rounds; round++) {
        bad = one(m, c, q, round, x, out, &r);
        waited += r.waited_ns;
        if (!bad && !late && (double)waited / 1e6 > 8000 + rig_late_ms(begun))
            bad = rig_complain(m, __FILE__, __LINE__, "somebody was waited for again and again: %.0f ms",
                               (double)waited / 1e6);
        if (!late && round == c->rounds / 2) rig_pass(m, GATE_GO);
        if (!bad && late && round <= c->rounds / 2 && r.included)
            bad = rig_complain(m, __FILE__, __LINE__, "round %llu had been decided", (unsigned long long)round);
        if (!bad && !late && !r.included && c->c.late == RG_LATE_DROP && round <= c->rounds / 2)
            bad = rig_complain(m, __FILE__, __LINE__, "not included in round %llu", (unsigned long long)round);
    }
    if (!bad) bad = rig_gate(m, GATE_END, m->rig->n);
    rg_quorum_destroy(q);
    free(x);
    free(out);
    return bad;
}

Test(quorum, one_member_late__the_others_go_on__it_gets_the_same_results) {
    course_t *c = course(5000, 3, 40);
    c->c.grace_us = 2000000; /* once, and not for each round: that would be 40 s */
    rig_run(4, "tcp", NULL, one_late, c);
    compare(c);
    cr_assert_eq(c->note[0][10].contributors, 3);
    cr_assert_eq(c->note[0][10].late, 1);
    free(c);
}

/* ---- Deaths ------------------------------------------------------------------------------------------------------ */

/* The member that decides, or another one, is gone in the middle, without a word. */
static int one_dies(rig_member_t *m, void *arg) {
    course_t *c = arg;
    rg_quorum_t *q;
    rg_quorum_result_t r;
    int bad = 0;
    RIG_OK(m, rg_quorum_create(m->g, &c->c, &q, NULL));
    float *x = malloc(c->c.count * 4), *out = malloc(c->c.count * 4);
    for (uint64_t round = 1; !bad && round <= c->rounds; round++) {
        if ((int)m->index <= c->die && round == c->rounds / 2 + m->index * 3) break;
        bad = one(m, c, q, round, x, out, &r);
    }
    if ((int)m->index <= c->die) {
        rg_group_destroy(m->g); /* before what is served in it */
        m->g = NULL;
    } else if (!bad) bad = rig_gate(m, GATE_END, m->rig->n - (uint32_t)(c->die + 1));
    rg_quorum_destroy(q);
    free(x);
    free(out);
    return bad;
}

static void run_deaths(uint64_t count, int die, uint32_t at_least, uint32_t takeover_us) {
    rg_config_t config = RG_CONFIG_INIT;
    course_t *c = course(count, at_least, 40);
    c->die = die;
    c->c.takeover_us = takeover_us;
    config.heartbeat_ms = 1000 * RIG_SLOW;
    rig_run(5, "tcp", &config, one_dies, c);
    compare(c);
    uint32_t most = 0;
    for (uint32_t r = 1; r <= 40; r++) {
        cr_assert(c->note[4][r].has && c->note[4][r].status == RG_OK);
        if (c->note[4][r].contributors > most) most = c->note[4][r].contributors;
    }
    cr_assert_geq(most, at_least);
    cr_assert(c->note[4][40].decided_by != c->note[4][1].decided_by);
    free(c);
}

Test(quorum, the_first_member_dies__small__the_next_one_decides) { run_deaths(100, 0, 2, 0); }
Test(quorum, three_die_one_after_the_other__many_pieces__one_outcome) { run_deaths(200000, 2, 1, 0); }
Test(quorum, three_die__takeover_within_views__one_outcome) { run_deaths(70000, 2, 2, 20000 * RIG_SLOW); }

/* The time for a takeover is shorter than an answer takes, so that members take the deciding from each other all the
 * time. */
static int hasty(rig_member_t *m, void *arg) {
    course_t *c = arg;
    rg_quorum_t *q;
    rg_quorum_result_t r;
    int bad = 0;
    RIG_OK(m, rg_quorum_create(m->g, &c->c, &q, NULL));
    float *x = malloc(c->c.count * 4), *out = malloc(c->c.count * 4);
    for (uint64_t round = 1; !bad && round <= c->rounds; round++) bad = one(m, c, q, round, x, out, &r);
    if (!bad) bad = rig_gate(m, GATE_END, m->rig->n);
    rg_quorum_destroy(q);
    free(x);
    free(out);
    return bad;
}

static void run_hasty(uint64_t count, uint32_t takeover_us) {
    course_t *c = course(count, 2, 60 / RIG_SLOW);
    c->c.takeover_us = takeover_us;
    c->c.grace_us = 300;
    rig_run(4, "tcp", NULL, hasty, c);
    compare(c);
    free(c);
}

Test(quorum, takeover_all_the_time__small__one_outcome) { run_hasty(100, 50 * RIG_SLOW); }
Test(quorum, takeover_all_the_time__many_pieces__one_outcome) { run_hasty(150000, 1000 * RIG_SLOW); }

/* ---- What becomes of late inputs --------------------------------------------------------------------------------- */

/* Rank 1 alone is late for round 1, and perhaps for a few more: it is waited for when it has been late by less than the
 * grace. Weights are 1, inputs are 1 for rank 0 and 100 for rank 1. */
static int late_input(rig_member_t *m, void *arg) {
    course_t *c = arg;
    rg_quorum_t *q;
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    float x[3], out[3], sum = 0;
    uint64_t rounds = 0;
    int rejected = 0;
    for (int i = 0; i < 3; i++) x[i] = m->index ? 100 : 1;
    RIG_OK(m, rg_quorum_create(m->g, &c->c, &q, NULL));
    if (m->index && rig_gate(m, 0, 2)) return 1;
    do {
        if (rounds && rig_gate(m, 3 + (uint32_t)rounds, 2)) return 1;
        rg_status_t st = rg_quorum_reduce(q, x, out, NULL, 0, &r);
        if (c->c.late == RG_LATE_REJECT && st == RG_ERR_TIMEOUT) {
            RIG_NEED(m, strstr(r.text, "without this member"), "%s", r.text);
            rejected++;
            st = rg_quorum_wait(q, out, 0, &r);
        }
        RIG_NEED(m, st == RG_OK, "%s", r.text);
        sum += out[1];
        rounds++;
        RIG_NEED(m, r.round == rounds && r.contributors == 2 - r.late && (rounds > 1 || r.late), "round %llu",
                 (unsigned long long)r.round);
        RIG_NEED(m, r.carried == (m->index && !r.included && c->c.late == RG_LATE_NEXT_ROUND), "carried");
        if (!m->index && rounds == 1) rig_pass(m, 0);
    } while (r.contributors < 2 && rounds < 50);
    int carries = c->c.late == RG_LATE_NEXT_ROUND;
    RIG_NEED(m, rounds > 1 && rounds < 50 && r.included, "%llu rounds", (unsigned long long)rounds);
    RIG_NEED(m, sum == (float)(rounds + 100 * (carries ? rounds : 1)), "%g in %llu rounds", (double)sum,
             (unsigned long long)rounds);
    RIG_NEED(m, r.weight_sum == (carries ? 1 + (double)rounds : 2), "weights %g", r.weight_sum);
    RIG_NEED(m, r.version_min == (carries ? 0 : rounds - 1) && r.version_max == rounds - 1, "versions");
    RIG_NEED(m, rejected == (m->index && c->c.late == RG_LATE_REJECT ? (int)rounds - 1 : 0), "%d rejected", rejected);
    if (rig_gate(m, GATE_END, 2)) return 1;
    rg_quorum_destroy(q);
    return 0;
}

static void run_late_input(rg_late_t late) {
    course_t *c = course(3, 1, 2);
    c->c.op = RG_SUM;
    c->c.late = late;
    c->c.grace_us = 200000;
    rig_run(2, "tcp", NULL, late_input, c);
    free(c);
}

Test(quorum, late_input__drop__is_in_no_round) { run_late_input(RG_LATE_DROP); }
Test(quorum, late_input__next_round__is_added_there_with_its_version) { run_late_input(RG_LATE_NEXT_ROUND); }
Test(quorum, late_input__reject__the_call_says_so_and_the_result_comes_after) { run_late_input(RG_LATE_REJECT); }

/* ---- What has no result ------------------------------------------------------------------------------------------ */

static int too_few(rig_member_t *m, void *arg) {
    course_t *c = arg;
    rg_quorum_t *q;
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    float x[4] = { 1, 2, 3, 4 }, out[4] = { 9, 9, 9, 9 };
    RIG_OK(m, rg_quorum_create(m->g, &c->c, &q, NULL));
    rg_status_t st = rg_quorum_reduce(q, m->index ? NULL : x, out, NULL, 0, &r); /* one gives, two are needed */
    RIG_NEED(m, st == RG_ERR_NO_QUORUM && r.round == 1 && out[0] == 9, "%s: %s", rg_status_name(st), r.text);
    RIG_OK(m, rg_quorum_reduce(q, x, out, NULL, 0, &r));
    RIG_NEED(m, r.round == 2 && out[3] == 4 && r.contributors >= 2, "round %llu, %u contributors",
             (unsigned long long)r.round, r.contributors);
    if (rig_gate(m, 0, 3)) return 1;
    if (m->index == 1) { /* and nobody else gives anything: not decided, then decided after all */
        st = rg_quorum_reduce(q, x, out, NULL, 100, &r);
        RIG_NEED(m, st == RG_ERR_TIMEOUT && strstr(r.text, "not decided"), "%s", r.text);
        RIG_NEED(m, rg_quorum_begin(q, x, NULL) == RG_ERR_INVALID, "begun twice");
        RIG_NEED(m, rg_quorum_test(q, out, &r) == RG_AGAIN, "decided");
        rig_pass(m, 1);
        st = rg_quorum_wait(q, out, 0, &r);
    } else {
        if (rig_gate(m, 1, 3)) return 1;
        st = rg_quorum_reduce(q, x, out, NULL, 0, &r);
    }
    RIG_NEED(m, st == RG_OK && r.contributors >= 2 && r.round == 3, "%s: %s", rg_status_name(st), r.text);
    if (rig_gate(m, GATE_END, 3)) return 1;
    rg_quorum_destroy(q);
    return 0;
}

Test(quorum, too_few_give_something__no_quorum_everywhere_and_timeout_goes_on) {
    course_t *c = course(4, 3, 3);
    c->c.at_least = 2;
    rig_run(3, "tcp", NULL, too_few, c);
    free(c);
}

/* Rank 1 is so far behind that the results are gone. */
static int too_late(rig_member_t *m, void *arg) {
    course_t *c = arg;
    rg_quorum_t *q;
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    float x[4] = { 1, 2, 3, 4 }, out[4];
    RIG_OK(m, rg_quorum_create(m->g, &c->c, &q, NULL));
    for (int i = 0; !m->index && i < 9; i++) RIG_OK(m, rg_quorum_reduce(q, x, out, NULL, 0, &r));
    if (rig_gate(m, 0, 2)) return 1;
    if (m->index) {
        rg_status_t st = rg_quorum_reduce(q, x, out, NULL, 0, &r);
        RIG_NEED(m, st == RG_ERR_RESOURCE && r.newest == 9, "%s: %s", rg_status_name(st), r.text);
        RIG_NEED(m, rg_quorum_seek(q, 0) == RG_ERR_INVALID, "round 0");
        RIG_OK(m, rg_quorum_seek(q, 8));
        RIG_OK(m, rg_quorum_reduce(q, x, out, NULL, 0, &r));
        RIG_NEED(m, r.round == 8 && !r.included, "round %llu", (unsigned long long)r.round);
        RIG_OK(m, rg_quorum_seek(q, r.newest + 1));
    }
    if (m->index) RIG_OK(m, rg_quorum_begin(q, x, NULL));
    if (rig_gate(m, 1, 2)) return 1;
    if (!m->index) RIG_OK(m, rg_quorum_begin(q, x, NULL));
    RIG_OK(m, rg_quorum_wait(q, out, 0, &r));
    RIG_NEED(m, r.round == 10, "round %llu", (unsigned long long)r.round);
    if (rig_gate(m, GATE_END, 2)) return 1;
    rg_quorum_destroy(q);
    return 0;
}

Test(quorum, results_no_longer_kept__resource_then_seek__goes_on) {
    course_t *c = course(4, 1, 3);
    c->c.history = 2;
    rig_run(2, "shm", NULL, too_late, c);
    free(c);
}

static int names(const rg_quorum_result_t *r, uint64_t id) {
    char text[64];
    snprintf(text, sizeof text, "member %llu ", (unsigned long long)id);
    return strstr(r->text, text) != NULL;
}

/* Rank 1 calls with another count, before the others or after them; then with theirs. */
static int differs(rig_member_t *m, void *arg) {
    const rg_quorum_config_t *all = arg;
    rg_quorum_config_t c = *all;
    rg_quorum_t *q;
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    float x[8] = { 1 }, out[8] = { 0 };
    uint64_t one;
    int before = c.at_least == 3, other = m->index == 1;
    RIG_OK(m, rg_group_member(m->g, 1, &one));
    if (other) c.count = 8;
    RIG_OK(m, rg_quorum_create(m->g, &c, &q, NULL));
    if (other != before && rig_gate(m, 0, 3)) return 1;
    rg_status_t st = rg_quorum_reduce(q, x, out, NULL, 0, &r);
    RIG_NEED(m, st == (other || before ? RG_ERR_MISMATCH : RG_OK), "%s: %s", rg_status_name(st), r.text);
    RIG_NEED(m, !before || (out[0] == 0 && names(&r, one) == !other), "%g: %s", (double)out[0], r.text);
    if (other == before && rig_gate(m, 0, 3)) return 1;
    if (rig_gate(m, 1, 3)) return 1;
    if (other) {
        rg_quorum_destroy(q);
        RIG_OK(m, rg_quorum_create(m->g, all, &q, NULL));
        st = rg_quorum_reduce(q, x, out, NULL, 0, &r); /* what it was for the others */
        RIG_NEED(m, st == (before ? RG_ERR_MISMATCH : RG_OK) && r.round == 1, "%s: %s", rg_status_name(st), r.text);
        RIG_NEED(m, r.contributors == (before ? 0 : 2) && names(&r, one) == before, "%s", r.text);
    }
    if (rig_gate(m, 2, 3)) return 1;
    /* Who decides may have asked the one that differed while it made its reduction anew, and found none: then the round
     * that was open by then ends like that as well, for all. */
    uint64_t round = 2;
    st = rg_quorum_reduce(q, x, out, NULL, 0, &r);
    if (st == RG_ERR_MISMATCH) st = rg_quorum_reduce(q, x, out, NULL, 0, &r), round++;
    RIG_NEED(m, st == RG_OK, "%s: %s", rg_status_name(st), r.text);
    RIG_NEED(m, r.round == round && r.contributors >= c.at_least, "%u contribute", r.contributors);
    if (rig_gate(m, 3, 3)) return 1;
    rg_quorum_destroy(q);
    return 0;
}

static void run_differs(uint32_t at_least) {
    rg_quorum_config_t c = RG_QUORUM_CONFIG_INIT;
    c.count = 4;
    c.at_least = at_least;
    rig_run(3, "tcp", NULL, differs, &c);
}

Test(quorum, another_count_on_one_member__mismatch_everywhere_until_it_is_mended) { run_differs(3); }
Test(quorum, another_count_on_one_member__what_was_decided_before_it_called__stays) { run_differs(2); }

static int high_version(rig_member_t *m, void *arg) {
    rg_quorum_config_t c = RG_QUORUM_CONFIG_INIT;
    rg_quorum_input_t in = RG_QUORUM_INPUT_INIT;
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    rg_quorum_t *q;
    float x = 1, out = 0;
    (void)arg;
    c.count = c.at_least = 1;
    c.stale_max = 5;
    c.first = 10;
    RIG_OK(m, rg_quorum_create(m->g, &c, &q, NULL));
    in.version = UINT64_MAX;
    RIG_OK(m, rg_quorum_reduce(q, &x, &out, &in, 0, &r));
    RIG_NEED(m, r.included && r.version_max == UINT64_MAX, "%llu", (unsigned long long)r.version_max);
    in.version = 6; /* 5 older than round 11 */
    RIG_OK(m, rg_quorum_reduce(q, &x, &out, &in, 0, &r));
    RIG_NEED(m, rg_quorum_reduce(q, &x, &out, &in, 0, &r) == RG_ERR_NO_QUORUM, "6 older than round 12: %s", r.text);
    rg_quorum_destroy(q);
    return 0;
}

Test(quorum, version__the_highest_there_is__is_not_old) { rig_run(1, "inproc", NULL, high_version, NULL); }

static int refusals(rig_member_t *m, void *arg) {
    (void)arg;
    rg_quorum_config_t c = RG_QUORUM_CONFIG_INIT;
    rg_quorum_input_t in = RG_QUORUM_INPUT_INIT;
    rg_quorum_t *q, *other;
    rg_error_t err;
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    float x = 1;
    c.count = 1;
    c.op = RG_MAX;
    RIG_NEED(m, rg_quorum_create(m->g, &c, &q, &err) == RG_ERR_NOTSUP, "max");
    c.op = RG_SUM;
    c.at_least = 3;
    c.at_most = 2;
    RIG_NEED(m, rg_quorum_create(m->g, &c, &q, &err) == RG_ERR_INVALID, "at_most");
    c.at_most = 0;
    c.history = 65;
    RIG_NEED(m, rg_quorum_create(m->g, &c, &q, &err) == RG_ERR_INVALID, "history");
    c.history = 0;
    c.size = 3;
    RIG_NEED(m, rg_quorum_create(m->g, &c, &q, &err) == RG_ERR_INVALID, "size");
    c.size = sizeof c;
    c.at_least = 1;
    RIG_NEED(m, rg_quorum_create(NULL, &c, &q, &err) == RG_ERR_INVALID, "group");
    RIG_OK(m, rg_quorum_create(m->g, &c, &q, &err));
    RIG_NEED(m, rg_quorum_create(m->g, &c, &other, &err) == RG_ERR_INVALID && strstr(err.text, "in use"), "%s",
             err.text);
    in.weighted = 1;
    in.weight = NAN;
    RIG_NEED(m, rg_quorum_begin(q, &x, &in) == RG_ERR_INVALID && strstr(rig_errmsg(m), "weight"), "%s", rig_errmsg(m));
    const double bad[] = { -1, INFINITY, 1.7e308, 1e251, 1e-251, 5e-324 };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        in.weight = bad[i]; /* two of them, or one with an element, are more or less than a double holds */
        RIG_NEED(m, rg_quorum_begin(q, &x, &in) == RG_ERR_INVALID && strstr(rig_errmsg(m), "1e+250"), "weight %g: %s",
                 bad[i], rig_errmsg(m));
    }
    RIG_NEED(m, rg_quorum_wait(q, &x, 0, NULL) == RG_ERR_INVALID && strstr(rig_errmsg(m), "no round was begun"), "%s",
             rig_errmsg(m));
    RIG_NEED(m, rg_quorum_reduce(q, &x, NULL, NULL, 0, NULL) == RG_ERR_INVALID, "out");
    RIG_OK(m, rg_quorum_reduce(q, &x, &x, NULL, 0, NULL));
    RIG_OK(m, rg_quorum_begin(q, &x, NULL));
    RIG_NEED(m, rg_quorum_seek(q, 9) == RG_ERR_INVALID && strstr(rig_errmsg(m), "was begun"), "%s", rig_errmsg(m));
    RIG_OK(m, rg_quorum_wait(q, &x, 0, &r));
    RIG_NEED(m, !r.text[0], "a text with a result: %s", r.text);
    RIG_OK(m, rg_quorum_begin(q, &x, NULL)); /* its result cannot be taken by calling again, but the group is over */
    rg_group_abort(m->g);
    RIG_NEED(m, rg_quorum_reduce(q, &x, &x, NULL, 0, NULL) == RG_ERR_ABORTED, "the group is over");
    rg_group_destroy(m->g);
    m->g = NULL;
    RIG_NEED(m, rg_quorum_reduce(q, &x, &x, NULL, 0, NULL) == RG_ERR_CLOSED, "the group is gone");
    rg_quorum_destroy(q);
    rg_quorum_destroy(NULL);
    return 0;
}

Test(quorum, bad_calls__one_member__are_refused) { rig_run(1, "tcp", NULL, refusals, NULL); }

/* ---- Sub-groups -------------------------------------------------------------------------------------------------- */

static int halves(rig_member_t *m, void *arg) {
    course_t *c = arg;
    rg_group_t *child;
    rg_quorum_t *q;
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    float x[3], out[3];
    for (int i = 0; i < 3; i++) x[i] = (float)(m->index + 1);
    RIG_OK(m, rg_group_split(m->g, m->index & 1, 0, NULL, &child));
    RIG_OK(m, rg_quorum_create(child, &c->c, &q, NULL));
    for (int i = 0; i < 5; i++) {
        RIG_OK(m, rg_quorum_reduce(q, x, out, NULL, 0, &r));
        RIG_NEED(m, out[2] == (m->index & 1 ? 6 : 4) && r.contributors == 2, "%g", (double)out[2]);
    }
    if (rig_gate(m, 0, 4)) return 1;
    rg_quorum_destroy(q);
    rg_group_destroy(child);
    return 0;
}

Test(quorum, two_sub_groups__same_id__each_its_own_rounds) {
    course_t *c = course(3, 2, 3);
    c->c.op = RG_SUM;
    rig_run(4, "tcp", NULL, halves, c);
    free(c);
}

/* ---- Alone, and then not any more -------------------------------------------------------------------------------- */

static int world(rig_member_t *m) {
    rg_info_t info = RG_INFO_INIT;
    return rg_group_info(m->g, &info) == RG_OK ? (int)info.world_size : 0;
}

/* The first member is left alone, decides rounds, and shows them, with nobody else to have them; then one comes. */
static int alone(rig_member_t *m, void *arg) {
    course_t *c = arg;
    rg_quorum_t *q;
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    rg_quorum_config_t config = c->c;
    float x = 1, out;
    if (m->index) {
        rg_group_destroy(m->g);
        m->g = NULL;
        if (rig_gate(m, 0, 2)) return 1;
        m->g = rig_join(m, 1);
        RIG_NEED(m, m->g, "cannot join");
        config.first = 4;
        RIG_OK(m, rg_quorum_create(m->g, &config, &q, NULL));
    } else {
        uint64_t until = rig_now() + 30000000000u;
        while (world(m) != 1 && rig_now() < until) RIG_OK(m, rg_group_boundary(m->g, NULL));
        RIG_OK(m, rg_quorum_create(m->g, &config, &q, NULL));
        for (int i = 0; i < 3; i++) RIG_OK(m, rg_quorum_reduce(q, &x, &out, NULL, 0, &r));
        RIG_NEED(m, r.round == 3 && r.contributors == 1, "round %llu", (unsigned long long)r.round);
        if (rig_gate(m, 0, 2)) return 1;
        while (world(m) != 2 && rig_now() < until) RIG_OK(m, rg_group_boundary(m->g, NULL));
    }
    RIG_OK(m, rg_quorum_reduce(q, &x, &out, NULL, 5000 * RIG_SLOW, &r));
    RIG_NEED(m, r.round == 4 && r.contributors == 2 && out == 1, "round %llu of %u", (unsigned long long)r.round,
             r.contributors);
    if (rig_gate(m, 1, 2)) return 1;
    rg_quorum_destroy(q);
    return 0;
}

Test(quorum, decided_alone_with_takeover__somebody_comes__rounds_go_on) {
    course_t *c = course(1, 0, 4);
    c->c.takeover_us = 100000 * RIG_SLOW;
    rig_run(2, "tcp", NULL, alone, c);
    free(c);
}

/* Rounds of one member, while the other one's program is elsewhere: nobody is waited for, also by default. */
static int one_of_two(rig_member_t *m, void *arg) {
    course_t *c = arg;
    rg_quorum_t *q;
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    float x = 1, out;
    RIG_OK(m, rg_quorum_create(m->g, &c->c, &q, NULL));
    if (rig_gate(m, 0, 2)) return 1;
    for (int i = 0; m->index == 0 && i < 3; i++) RIG_OK(m, rg_quorum_reduce(q, &x, &out, NULL, 3000 * RIG_SLOW, &r));
    if (m->index == 0) RIG_NEED(m, r.round == 3 && r.contributors == 1, "%u contributors", r.contributors);
    if (rig_gate(m, 1, 2)) return 1;
    rg_quorum_destroy(q);
    return 0;
}

Test(quorum, one_contributor_is_enough__the_other_one_does_not_call__rounds_go_on) {
    course_t *c = course(1, 1, 3);
    rig_run(2, "tcp", NULL, one_of_two, c);
    c->c.at_least = 2;
    c->c.max_wait_us = 1000;
    rig_run(2, "tcp", NULL, one_of_two, c);
    free(c);
}
