/* test_diloco.c: the outer optimiser of groups of threads: every variant against a computation of its own in double,
 * equal anchors on all members, members that die at any moment of a round, newcomers in mid run, rounds that fail and
 * change nothing, files. Relies on engine_rig.h. */
#include "engine_rig.h"

#include "diloco/internal.h"
#include "quorum/known.h"
#include "regroup_diloco.h"

#include <criterion/criterion.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FIRST = 700, SECOND = 333, ALL = FIRST + SECOND };

/* What a member's training is here: each step goes from its parameters a way of its own. */
static float way(uint32_t member, uint64_t step, uint64_t i) {
    uint64_t x = member * 0xbf58476d1ce4e5b9ull + step * 0x9e3779b97f4a7c15ull + i * 0x94d049bb133111ebull;
    return (float)((double)(rig_random(&x) >> 40) * 0x1p-24 - 0.5) * 0.01f;
}

static float initial(uint64_t i) { return (float)((double)(i % 97) * 0.01 - 0.4); }

typedef struct model {
    float p[ALL];
    rg_diloco_t *d;
    uint64_t step;
} model_t;

static int open_model(rig_member_t *m, model_t *o, const rg_diloco_config_t *c) {
    rg_error_t err = { RG_OK, 0, "" };
    memset(o, 0, sizeof *o);
    for (uint64_t i = 0; i < ALL; i++) o->p[i] = initial(i);
    RIG_NEED(m, rg_diloco_create(c, &o->d, &err) == RG_OK, "%s", err.text);
    RIG_NEED(m, rg_diloco_add(o->d, "first", o->p, FIRST, 0, &err) == RG_OK, "%s", err.text);
    RIG_NEED(m, rg_diloco_add(o->d, "second", o->p + FIRST, SECOND, 0, &err) == RG_OK, "%s", err.text);
    return 0;
}

static int start(rig_member_t *m, model_t *o) {
    rg_error_t err = { RG_OK, 0, "" };
    RIG_NEED(m, rg_diloco_start(o->d, m->g, &err) == RG_OK, "start: %s", err.text);
    return 0;
}

static void train(model_t *o, uint32_t member) {
    for (uint64_t i = 0; i < ALL; i++) o->p[i] -= way(member, o->step, i);
    o->step++;
}

static uint64_t hash_of(const model_t *o) {
    rg_diloco_stats_t s = RG_DILOCO_STATS_INIT;
    rg_diloco_info(o->d, &s);
    return s.hash;
}

static int alike(rig_member_t *m, uint64_t hash) {
    uint64_t low, high;
    RIG_OK(m, rg_all_reduce(m->g, &hash, &low, 1, RG_U64, RG_MIN, NULL, NULL));
    RIG_OK(m, rg_all_reduce(m->g, &hash, &high, 1, RG_U64, RG_MAX, NULL, NULL));
    RIG_NEED(m, low == high, "anchors differ");
    return 0;
}

static uint64_t hash_floats(const float *v, uint64_t n) {
    uint64_t h = 1469598103934665603ull;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &v[i], sizeof u);
        h = (h ^ u) * 1099511628211ull;
    }
    return h;
}

static rg_diloco_config_t small(rg_diloco_variant_t v) {
    rg_diloco_config_t c;
    rg_diloco_profile(v, &c);
    c.every = 8;
    c.wire = (rg_wire_t)0;
    if (c.fragments > 1) {
        c.fragments = 2;
        c.overlap = 2;
    }
    return c;
}

static uint64_t tokens_of(uint32_t member) { return 100 + 50 * member; }

/* ---- Every variant against a computation of its own ----------------------------------------------------------- */

/* All members' training in double, by the equations as they are written in docs/diloco.md, one fragment. */
typedef struct reference {
    double theta[ALL], buf[ALL], average[ALL], local[RIG_MAX][ALL];
    double own[RIG_MAX][ALL], own_buf[RIG_MAX][ALL], said[RIG_MAX][ALL];
    double way, usual;
    uint64_t rounds;
    int has_average;
} reference_t;

static void reference_average(reference_t *r, const rg_diloco_config_t *c, uint32_t n, double *out) {
    double weights = 0, lengths = 0, u = 0;
    for (uint64_t i = 0; i < ALL; i++) out[i] = 0;
    for (uint32_t m = 0; m < n; m++) {
        double w = rg_diloco_variant_name(c->variant) == NULL ? 0
                   : c->weight == RG_DILOCO_EQUAL             ? 1
                   : c->weight == RG_DILOCO_TOKENS            ? 8.0 * (double)tokens_of(m)
                                                              : 8.0 * (double)tokens_of(m) * (double)tokens_of(m);
        double length = 0;
        for (uint64_t i = 0; i < ALL; i++) {
            double v = r->theta[i] + r->own[m][i] - r->local[m][i];
            length += v * v;
        }
        length = sqrt(length);
        for (uint64_t i = 0; i < ALL; i++) {
            double v = r->theta[i] + r->own[m][i] - r->local[m][i];
            out[i] += w * (c->merge == RG_DILOCO_RDA ? v / length : v);
        }
        weights += w;
        lengths += w * length;
    }
    for (uint64_t i = 0; i < ALL; i++) {
        out[i] /= weights;
        u += out[i] * out[i];
    }
    for (uint64_t i = 0; c->merge == RG_DILOCO_RDA && i < ALL; i++) out[i] *= lengths / weights / sqrt(u);
}

static void reference_outer(reference_t *r, const rg_diloco_config_t *c, const double *d) {
    double gap = r->usual > 0 ? 1 + r->way / r->usual : 1, moved = 0;
    for (uint64_t i = 0; i < ALL; i++) {
        double before = r->theta[i], lr = (double)c->lr, mu = (double)c->momentum;
        if (c->variant == RG_DILOCO_CO2) {
            r->buf[i] = mu * r->buf[i] + d[i] / gap;
            r->theta[i] -= lr * r->buf[i];
        } else {
            r->buf[i] = mu * r->buf[i] + d[i];
            r->theta[i] -= lr * (d[i] + mu * r->buf[i]);
        }
        moved += (r->theta[i] - before) * (r->theta[i] - before);
    }
    r->way = sqrt(moved);
    r->usual = r->rounds++ ? (r->usual + r->way) / 2 : r->way;
}

/* A round at its end: what is sent now, what arrives now, and what the members go on with. */
static void reference_round(reference_t *r, const rg_diloco_config_t *c, uint32_t n) {
    static _Thread_local double now[ALL];
    int late = c->variant == RG_DILOCO_EAGER || c->variant == RG_DILOCO_DELAYED || c->variant == RG_DILOCO_CO2;
    reference_average(r, c, n, now);
    for (uint32_t m = 0; c->variant == RG_DILOCO_EAGER && m < n; m++)
        for (uint64_t i = 0; i < ALL; i++) {
            double lr = (double)c->lr, mu = (double)c->momentum;
            double say = (r->theta[i] + r->own[m][i] - r->local[m][i]) / n, x = say - r->said[m][i];
            r->said[m][i] = say;
            r->own_buf[m][i] = mu * r->own_buf[m][i] + x;
            r->own[m][i] -= lr * (x + mu * r->own_buf[m][i]);
        }
    if (!late) reference_outer(r, c, now);
    else if (r->has_average) reference_outer(r, c, r->average);
    memcpy(r->average, now, sizeof now);
    r->has_average = 1;
    for (uint32_t m = 0; m < n; m++)
        for (uint64_t i = 0; i < ALL; i++) r->local[m][i] = r->theta[i] + r->own[m][i];
}

static int follows_equations(rig_member_t *m, void *arg) {
    static reference_t of[RIG_MAX];
    const rg_diloco_config_t *c = arg;
    reference_t *r = &of[m->index];
    uint32_t n = m->rig->n;
    static _Thread_local model_t o;
    memset(r, 0, sizeof *r);
    if (open_model(m, &o, c) || start(m, &o)) return 1;
    for (uint64_t i = 0; i < ALL; i++) {
        r->theta[i] = (double)initial(i);
        for (uint32_t k = 0; k < n; k++) r->local[k][i] = (double)initial(i);
    }
    for (uint32_t step = 1; step <= 5 * c->every; step++) {
        for (uint32_t k = 0; k < n; k++)
            for (uint64_t i = 0; i < ALL; i++) r->local[k][i] -= (double)way(k, o.step, i);
        train(&o, m->index);
        rg_diloco_result_t res = RG_DILOCO_RESULT_INIT;
        RIG_NEED(m, rg_diloco_step(o.d, tokens_of(m->index), &res) == RG_OK, "step %u: %s", step, res.text);
        if (step % c->every == 0) {
            reference_round(r, c, n);
            RIG_NEED(m, res.sent == 1, "step %u: nothing was sent", step);
        }
        for (uint64_t i = 0; i < ALL; i++)
            RIG_NEED(m, fabs((double)o.p[i] - r->local[m->index][i]) < 2e-5, "%s, step %u, element %u: %g for %g",
                     rg_diloco_variant_name(c->variant), step, (unsigned)i, (double)o.p[i], r->local[m->index][i]);
    }
    if (alike(m, hash_of(&o))) return 1;
    rg_diloco_result_t res = RG_DILOCO_RESULT_INIT;
    RIG_NEED(m, rg_diloco_flush(o.d, &res) == RG_OK, "flush: %s", res.text);
    if (alike(m, hash_of(&o)) || alike(m, hash_floats(o.p, ALL))) return 1;
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco, all_variants__three_members__follow_their_equations, .timeout = 120) {
    for (int v = 0; v < RG_DILOCO_VARIANT_COUNT; v++) {
        rg_diloco_config_t c = small((rg_diloco_variant_t)v);
        c.fragments = 1;
        c.overlap = 0;
        c.topk = 0;
        c.feedback = 0;
        rig_run(3, "inproc", NULL, follows_equations, &c);
    }
}

/* What travels of the sparse variant, and what is kept for later: two rounds against the codec. */
static int says_the_largest(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static _Thread_local model_t o;
    static _Thread_local float kept[RIG_MAX][ALL], d[ALL], said[ALL], anchor[ALL];
    uint8_t bytes[4096];
    rg_topk_t t = RG_TOPK_INIT;
    t.k = c->topk;
    if (open_model(m, &o, c) || start(m, &o)) return 1;
    memset(kept, 0, sizeof kept);
    for (uint64_t i = 0; i < ALL; i++) anchor[i] = initial(i);
    for (uint32_t round = 0; round < 2; round++) {
        double sum[ALL] = { 0 };
        for (uint32_t k = 0; k < m->rig->n; k++) {
            for (uint64_t i = 0; i < ALL; i++) {
                float v = anchor[i];
                for (uint64_t s = round * c->every; s < (round + 1) * c->every; s++) v -= way(k, s, i);
                d[i] = c->feedback * kept[k][i] + (anchor[i] - v);
            }
            RIG_NEED(m, rg_topk_bytes(&t, ALL) <= sizeof bytes, "a longer wire form");
            RIG_OK(m, rg_topk_encode(&t, d, ALL, bytes));
            RIG_OK(m, rg_topk_decode(&t, bytes, ALL, said));
            for (uint64_t i = 0; i < ALL; i++) {
                kept[k][i] = d[i] - said[i];
                sum[i] += (double)said[i] / m->rig->n;
            }
        }
        for (uint64_t i = 0; i < ALL; i++) anchor[i] -= (float)sum[i];
        for (uint32_t s = 0; s < c->every; s++) {
            rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
            train(&o, m->index);
            RIG_NEED(m, rg_diloco_step(o.d, 1, &r) == RG_OK, "%s", r.text);
        }
        for (uint64_t i = 0; i < ALL; i++)
            RIG_NEED(m, fabs((double)o.p[i] - (double)anchor[i]) < 1e-5, "round %u, element %u: %g for %g", round,
                     (unsigned)i, (double)o.p[i], (double)anchor[i]);
    }
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco, sparse__two_rounds__the_largest_now_the_rest_later, .timeout = 60) {
    rg_diloco_config_t c = small(RG_DILOCO_SPARSE);
    rig_run(3, "inproc", NULL, says_the_largest, &c);
}

/* ---- Fragments that are under way while training goes on ------------------------------------------------------- */

/* What a fragment gets is what was measured when it was sent; what was done since is overwritten (blend 0). */
static int streams(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static _Thread_local model_t o;
    if (open_model(m, &o, c) || start(m, &o)) return 1;
    uint32_t sent = 0, merged = 0;
    uint64_t sent_at = 0;
    for (uint32_t step = 1; step <= 6 * c->every; step++) {
        train(&o, m->index);
        rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
        RIG_NEED(m, rg_diloco_step(o.d, 1, &r) == RG_OK, "%s", r.text);
        if (r.merged) {
            RIG_NEED(m, r.merged == sent && step == sent_at + c->overlap, "step %u: merged %u", step, r.merged);
            RIG_NEED(m,
                     r.contributors == m->rig->n && r.tokens == m->rig->n * (uint64_t)(merged < 2 ? sent_at : c->every),
                     "%u contributors, %llu tokens", r.contributors, (unsigned long long)r.tokens);
            merged++;
            if (alike(m, hash_of(&o))) return 1;
        }
        if (r.sent) {
            RIG_NEED(m, r.sent == step / (c->every / 2) % 2 + (step / (c->every / 2) % 2 ? 0 : 2), "step %u: sent %u",
                     step, r.sent);
            sent = r.sent;
            sent_at = step;
        }
    }
    RIG_NEED(m, merged == 11, "%u merged", merged);
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    RIG_NEED(m, rg_diloco_flush(o.d, &r) == RG_OK, "flush: %s", r.text);
    if (alike(m, hash_floats(o.p, ALL))) return 1;
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco, streaming__two_fragments__sent_and_merged_when_due, .timeout = 60) {
    rg_diloco_config_t c = small(RG_DILOCO_STREAMING);
    rig_run(3, "inproc", NULL, streams, &c);
    c.wire = RG_WIRE_I8;
    c.feedback = 1;
    rig_run(2, "inproc", NULL, streams, &c);
}

/* ---- Members that die ------------------------------------------------------------------------------------------ */

typedef struct deaths {
    rg_diloco_config_t c;
    uint64_t seed;
} deaths_t;

/* The last member vanishes at some moment of some step; the others go on and stay alike to the bit, error feedback
 * counted once. */
static int one_dies(rig_member_t *m, void *arg) {
    deaths_t *a = arg;
    static _Thread_local model_t o;
    uint64_t x = a->seed;
    uint32_t dies_at = 1 + (uint32_t)(rig_random(&x) % (2 * a->c.every)), last = m->rig->n - 1;
    if (open_model(m, &o, &a->c) || start(m, &o)) return 1;
    for (uint32_t step = 1; step <= 4 * a->c.every; step++) {
        train(&o, m->index);
        if (m->index == last && step == dies_at) {
            rg_group_abort(m->g);
            rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
            for (int i = 0; i < 3; i++) rg_diloco_step(o.d, 1, &r);
            rg_diloco_destroy(o.d);
            return 0;
        }
        rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
        rg_status_t st = rg_diloco_step(o.d, 1, &r);
        RIG_NEED(m, st == RG_OK, "step %u: %s: %s", step, rg_status_name(st), r.text);
        RIG_NEED(m, !r.merged || r.contributors == last || r.contributors == last + 1, "%u contributors",
                 r.contributors);
    }
    if (alike(m, hash_of(&o))) return 1;
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    train(&o, m->index);
    RIG_NEED(m, rg_diloco_step(o.d, 1, &r) == RG_OK && !r.sent, "%s", r.text);
    RIG_NEED(m, rg_diloco_flush(o.d, &r) == RG_OK, "flush: %s", r.text);
    RIG_NEED(m, r.contributors == last, "%u contributors", r.contributors);
    if (alike(m, hash_of(&o)) || alike(m, hash_floats(o.p, ALL))) return 1;
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco, all_variants__a_member_dies__the_others_stay_alike, .timeout = 200) {
    for (int v = 0; v < RG_DILOCO_VARIANT_COUNT; v++)
        for (uint64_t k = 0; k < (RIG_SLOW > 1 ? 1 : 4); k++) {
            deaths_t a = { small((rg_diloco_variant_t)v), rig_seed(1000 * (uint64_t)v + k) };
            if (k % 2) {
                a.c.wire = k == 1 ? RG_WIRE_I8 : RG_WIRE_I4;
                a.c.feedback = 0.95f;
            }
            rig_run(3 + (uint32_t)k % 2, "inproc", NULL, one_dies, &a);
        }
}

/* ---- Newcomers ------------------------------------------------------------------------------------------------- */

static int finish(rig_member_t *m, model_t *o, uint32_t contributors) {
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    train(o, m->index);
    RIG_NEED(m, rg_diloco_step(o->d, 1, &r) == RG_OK, "last step: %s", r.text);
    RIG_NEED(m, rg_diloco_flush(o->d, &r) == RG_OK, "flush: %s", r.text);
    RIG_NEED(m, r.contributors == contributors, "%u contributors", r.contributors);
    if (alike(m, hash_of(o)) || alike(m, hash_floats(o->p, ALL))) return 1;
    rg_diloco_destroy(o->d);
    return 0;
}

/* Steps until the schedule is there; a newcomer begins where the others are. */
static int steps_until(rig_member_t *m, model_t *o, uint64_t end) {
    rg_diloco_stats_t s = RG_DILOCO_STATS_INIT;
    for (rg_diloco_info(o->d, &s); s.steps < end; rg_diloco_info(o->d, &s)) {
        rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
        train(o, m->index);
        rg_status_t st = rg_diloco_step(o->d, 1, &r);
        RIG_NEED(m, st == RG_OK, "step %u: %s: %s", (unsigned)s.steps, rg_status_name(st), r.text);
    }
    return 0;
}

/* Steps until somebody has entered, then so many more. */
static int steps_until_joined(rig_member_t *m, model_t *o, uint64_t more) {
    for (uint32_t joined = 0; !joined;) {
        rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
        train(o, m->index);
        rg_status_t st = rg_diloco_step(o->d, 1, &r);
        RIG_NEED(m, st == RG_OK, "%s: %s", rg_status_name(st), r.text);
        joined = r.joined;
    }
    rg_diloco_stats_t s = RG_DILOCO_STATS_INIT;
    rg_diloco_info(o->d, &s);
    return steps_until(m, o, s.steps + more);
}

/* The last member leaves and comes back, with other parameters than it had, while the others train. */
static int one_returns(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static _Thread_local model_t o;
    if (open_model(m, &o, c) || start(m, &o)) return 1;
    if (m->index + 1 < m->rig->n) {
        if (steps_until(m, &o, c->every) || steps_until_joined(m, &o, 3 * c->every)) return 1;
        return finish(m, &o, m->rig->n);
    }
    if (steps_until(m, &o, c->every)) return 1;
    /* Half of the variants come back with the handle that they had, which was in use, the others with a new one. */
    if (c->variant % 2) rg_diloco_stop(o.d);
    else rg_diloco_destroy(o.d);
    rg_group_leave(m->g);
    rg_group_destroy(m->g);
    m->g = NULL;
    if (c->variant % 2 == 0 && open_model(m, &o, c)) return 1;
    memset(o.p, 0, sizeof o.p);
    rg_config_t config = m->rig->config;
    rg_error_t err = { RG_OK, 0, "" };
    config.coordinator = m->rig->address;
    config.min_size = 1;
    rg_status_t st = rg_diloco_join(o.d, &config, &m->g, &err);
    RIG_NEED(m, st == RG_OK, "join: %s: %s", rg_status_name(st), err.text);
    rg_diloco_stats_t s = RG_DILOCO_STATS_INIT;
    rg_diloco_info(o.d, &s);
    RIG_NEED(m, s.steps >= c->every, "entered at step %u", (unsigned)s.steps);
    if (steps_until(m, &o, s.steps + 3 * c->every)) return 1;
    return finish(m, &o, m->rig->n);
}

Test(diloco, all_variants__a_newcomer_in_mid_run__gets_the_anchor, .timeout = 200) {
    for (int v = 0; v < RG_DILOCO_VARIANT_COUNT; v++) {
        rg_diloco_config_t c = small((rg_diloco_variant_t)v);
        c.wire = v % 2 ? RG_WIRE_I8 : (rg_wire_t)0;
        c.feedback = v % 2 ? 1 : 0;
        rig_run(3, "inproc", NULL, one_returns, &c);
    }
}

/* ---- A member that dies in the middle of a round ---------------------------------------------------------------- */

typedef struct killer {
    rg_group_t *g;
    uint64_t at_ns;
} killer_t;

static void *kill_later(void *arg) {
    const killer_t *k = arg;
    while (rig_now() < k->at_ns) sched_yield();
    rg_group_abort(k->g);
    return NULL;
}

/* Whoever is said to be in the first round is in it, with the weight of one: also when the last member dies between its
 * head and its share. lr 1 and no momentum, so that the parameters are the average itself. */
static int dies_within(rig_member_t *m, void *arg) {
    deaths_t *a = arg;
    static _Thread_local model_t o;
    uint32_t n = m->rig->n, last = n - 1;
    uint64_t x = a->seed;
    pthread_t thread;
    killer_t k = { m->g, 0 };
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    if (open_model(m, &o, &a->c) || start(m, &o) || steps_until(m, &o, a->c.every - 1)) return 1;
    train(&o, m->index);
    if (rig_gate(m, 9, n)) return 1;
    if (m->index == last) {
        k.at_ns = rig_now() + rig_random(&x) % 200000;
        RIG_NEED(m, pthread_create(&thread, NULL, kill_later, &k) == 0, "no thread");
        rg_diloco_step(o.d, 100, &r);
        pthread_join(thread, NULL);
        rg_diloco_destroy(o.d);
        return 0;
    }
    RIG_NEED(m, rg_diloco_step(o.d, 100 + m->index, &r) == RG_OK, "%s", r.text);
    RIG_NEED(m, r.contributors == last || r.contributors == n, "%u contributors", r.contributors);
    for (uint64_t i = 0; i < ALL; i++) {
        double want = (double)initial(i), weights = 0, sum = 0;
        for (uint32_t j = 0; j < r.contributors; j++) {
            double w = 100 + (j == last ? 0 : j);
            for (uint64_t s = 0; s < a->c.every; s++) sum += (double)way(j, s, i) * w;
            weights += w;
        }
        want -= sum / weights;
        RIG_NEED(m, fabs((double)o.p[i] - want) < 2e-5, "element %u of %u contributors: %g for %g", (unsigned)i,
                 r.contributors, (double)o.p[i], want);
    }
    if (alike(m, hash_of(&o))) return 1;
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco, step__a_member_dies_within_a_round__weights_are_of_those_in_it, .timeout = 100) {
    for (uint64_t k = 0; k < (RIG_SLOW > 1 ? 8 : 60); k++) {
        deaths_t a = { small(RG_DILOCO_FEDAVG), rig_seed(4000 + k) };
        a.c.every = 2;
        rig_run(3, "inproc", NULL, dies_within, &a);
    }
}

/* ---- Quorum ----------------------------------------------------------------------------------------------------- */

static rg_diloco_config_t by_quorum(uint32_t fragments, uint32_t overlap) {
    rg_diloco_config_t c = small(RG_DILOCO_DECOUPLED);
    c.fragments = fragments;
    c.overlap = overlap;
    c.quorum = 2;
    c.grace_ms = 20;
    return c;
}

/* What others have decided is told by their progress threads, when they come to run. */
static int until_known(rig_member_t *m, const model_t *o, uint64_t round) {
    for (uint64_t end = rig_now() + 20000000000ull; rg_quorum_known(o->d->q) < round;) {
        RIG_NEED(m, rig_now() < end, "not told of round %u", (unsigned)round);
        sched_yield();
    }
    return 0;
}

/* The last member rests while the others make rounds, which do not wait for it. Then it goes on where they are, with
 * what it had to say still in its parameters, and all meet at the end. */
static int one_rests(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static _Thread_local model_t o;
    rg_diloco_stats_t s = RG_DILOCO_STATS_INIT;
    uint32_t n = m->rig->n, last = n - 1;
    if (open_model(m, &o, c) || start(m, &o) || steps_until(m, &o, 2 * c->every)) return 1;
    if (m->index == last && (rig_gate(m, 1, n) || until_known(m, &o, 6 * c->fragments - (c->overlap > 0)))) return 1;
    if (m->index != last && (steps_until(m, &o, 6 * c->every) || rig_gate(m, 1, n))) return 1;
    uint64_t before = o.step;
    if (steps_until(m, &o, 8 * c->every)) return 1;
    rg_diloco_info(o.d, &s);
    RIG_NEED(m, m->index != last || o.step - before < 4 * c->every, "%u steps of its own to get there",
             (unsigned)(o.step - before));
    RIG_NEED(m, s.failed == 0, "%u rounds failed", (unsigned)s.failed);
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    train(&o, m->index);
    RIG_NEED(m, rg_diloco_step(o.d, 1, &r) == RG_OK, "last step: %s", r.text);
    RIG_NEED(m, rg_diloco_flush(o.d, &r) == RG_OK, "flush: %s", r.text);
    if (alike(m, hash_of(&o)) || alike(m, hash_floats(o.p, ALL))) return 1;
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco, quorum__a_member_rests__the_others_go_on_and_it_catches_up, .timeout = 60) {
    rg_diloco_config_t c = by_quorum(1, 0);
    rig_run(3, "inproc", NULL, one_rests, &c);
    c = by_quorum(2, 2);
    rig_run(3, "inproc", NULL, one_rests, &c);
    c.merge = RG_DILOCO_AVG;
    rig_run(4, "inproc", NULL, one_rests, &c);
}

static int quorum_finish(rig_member_t *m, model_t *o) {
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    RIG_NEED(m, rg_diloco_flush(o->d, &r) == RG_OK, "flush: %s", r.text);
    if (alike(m, hash_of(o)) || alike(m, hash_floats(o->p, ALL))) return 1;
    rg_diloco_destroy(o->d);
    return 0;
}

/* What a member did that no round has in it is still in its parameters when it has caught up: they are as far from the
 * new anchor as they were from the old one. */
static int keeps_its_share(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static float anchors[64][ALL]; /* by version, as member 0 had them; read after a gate */
    static _Thread_local model_t o;
    static _Thread_local float ahead[ALL];
    uint32_t n = m->rig->n, last = n - 1;
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    uint64_t version = 0;
    if (open_model(m, &o, c) || start(m, &o)) return 1;
    for (uint64_t step = 1; step <= 6 * c->every; step++) {
        if (m->index == last && step == 2 * c->every) {
            if (rig_gate(m, 11, n) || until_known(m, &o, 6)) return 1; /* the others are at the end of this loop */
            train(&o, m->index);
            for (uint64_t i = 0; i < ALL; i++) ahead[i] = anchors[version][i] - o.p[i];
            RIG_NEED(m, rg_diloco_step(o.d, 1, &r) == RG_OK, "%s", r.text);
            RIG_NEED(m, r.version == 6, "at version %u", (unsigned)r.version);
            for (uint64_t i = 0; i < ALL; i++)
                RIG_NEED(m, fabsf(anchors[6][i] - o.p[i] - ahead[i]) < 1e-5f, "element %u: %g ahead, was %g",
                         (unsigned)i, (double)(anchors[6][i] - o.p[i]), (double)ahead[i]);
            break;
        }
        train(&o, m->index);
        RIG_NEED(m, rg_diloco_step(o.d, 1, &r) == RG_OK, "%s", r.text);
        if (r.merged) version = r.version;
        if (r.merged && m->index == 0) memcpy(anchors[version], o.p, sizeof o.p);
    }
    if (m->index != last && rig_gate(m, 11, n)) return 1;
    return rig_gate(m, 12, n) || quorum_finish(m, &o);
}

Test(diloco, quorum__what_came_too_late__stays_in_the_parameters, .timeout = 60) {
    rg_diloco_config_t c = by_quorum(1, 0);
    c.grace_ms = 2000; /* the first round has all */
    rig_run(3, "inproc", NULL, keeps_its_share, &c);
}

/* As one_returns and one_dies, but who contributes is a matter of time. */
static int one_returns_by_quorum(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static _Thread_local model_t o;
    if (open_model(m, &o, c) || start(m, &o)) return 1;
    if (m->index + 1 < m->rig->n) {
        if (steps_until_joined(m, &o, 3 * c->every)) return 1;
        return quorum_finish(m, &o);
    }
    if (steps_until(m, &o, c->every)) return 1;
    rg_diloco_stop(o.d);
    rg_group_leave(m->g);
    rg_group_destroy(m->g);
    m->g = NULL;
    rg_config_t config = m->rig->config;
    rg_error_t err = { RG_OK, 0, "" };
    config.coordinator = m->rig->address;
    config.min_size = 1;
    rg_status_t st = rg_diloco_join(o.d, &config, &m->g, &err);
    RIG_NEED(m, st == RG_OK, "join: %s: %s", rg_status_name(st), err.text);
    rg_diloco_stats_t s = RG_DILOCO_STATS_INIT;
    rg_diloco_info(o.d, &s);
    if (steps_until(m, &o, s.steps + 3 * c->every)) return 1;
    return quorum_finish(m, &o);
}

static int one_dies_by_quorum(rig_member_t *m, void *arg) {
    deaths_t *a = arg;
    static _Thread_local model_t o;
    uint64_t x = a->seed;
    uint32_t dies_at = 1 + (uint32_t)(rig_random(&x) % (2 * a->c.every)), victim = (uint32_t)rig_random(&x) % m->rig->n;
    if (open_model(m, &o, &a->c) || start(m, &o)) return 1;
    if (m->index == victim) {
        if (steps_until(m, &o, dies_at)) return 1;
        rg_group_abort(m->g);
        rg_diloco_destroy(o.d);
        return 0;
    }
    if (steps_until(m, &o, 6 * a->c.every)) return 1;
    return quorum_finish(m, &o);
}

Test(diloco, quorum__newcomers_and_deaths__alike, .timeout = 100) {
    rg_diloco_config_t c = by_quorum(2, 2);
    rig_run(3, "inproc", NULL, one_returns_by_quorum, &c);
    for (uint64_t k = 0; k < 3; k++) {
        deaths_t a = { c, rig_seed(77 + k) };
        rig_run(4, "inproc", NULL, one_dies_by_quorum, &a);
    }
}

/* ---- Rounds that fail ------------------------------------------------------------------------------------------- */

/* One member goes astray for a round: all are told, nothing changes; it resets itself, and the next round has all that
 * the others did. */
static int one_astray(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static _Thread_local model_t o;
    static _Thread_local float before[ALL];
    int late = c->variant == RG_DILOCO_DELAYED || c->variant == RG_DILOCO_EAGER || c->variant == RG_DILOCO_CO2;
    if (open_model(m, &o, c) || start(m, &o)) return 1;
    if (steps_until(m, &o, c->every - 1)) return 1;
    uint64_t hash = hash_of(&o);
    train(&o, m->index);
    if (m->index == 1) o.p[ALL - 1] = NAN;
    memcpy(before, o.p, sizeof before);
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    rg_status_t st = rg_diloco_step(o.d, 1, &r);
    if (late) { /* told when the round comes in */
        RIG_NEED(m, st == RG_OK, "%s", r.text);
        if (m->index == 1) RIG_OK(m, rg_diloco_reset(o.d));
        if (steps_until(m, &o, 2 * c->every - 1)) return 1;
        train(&o, m->index);
        st = rg_diloco_step(o.d, 1, &r);
    } else RIG_NEED(m, !memcmp(before, o.p, sizeof before), "parameters were changed");
    RIG_NEED(m, st == RG_ERR_INVALID && strstr(r.text, "not finite"), "%s: %s", rg_status_name(st), r.text);
    rg_diloco_stats_t s = RG_DILOCO_STATS_INIT;
    rg_diloco_info(o.d, &s);
    RIG_NEED(m, s.failed == 1 && s.rounds == 0 && s.hash == hash, "the anchor was changed");
    if (m->index == 1) RIG_OK(m, rg_diloco_reset(o.d));
    if (steps_until(m, &o, 4 * c->every)) return 1;
    return finish(m, &o, m->rig->n);
}

Test(diloco, step__parameters_not_finite__told_to_all_and_nothing_changed, .timeout = 60) {
    for (int v = 0; v < RG_DILOCO_VARIANT_COUNT; v++) {
        rg_diloco_config_t c = small((rg_diloco_variant_t)v);
        c.fragments = 1;
        c.overlap = 0;
        rig_run(3, "inproc", NULL, one_astray, &c);
    }
}

/* What was to be said in the round that failed counts in the next one: two rounds of which the first failed are one of
 * twice the length. Late variants say it again though it has left the parameters. */
static int loses_nothing(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static _Thread_local model_t o;
    if (open_model(m, &o, c) || start(m, &o)) return 1;
    double gone = 0;
    for (uint32_t step = 1; step <= 3 * c->every; step++) {
        for (uint32_t k = 0; k < m->rig->n; k++) gone += step <= 2 * c->every && k != 1 ? (double)way(k, o.step, 5) : 0;
        train(&o, m->index);
        if (m->index == 1) {
            if (step == c->every) o.p[0] = NAN;
            else rg_diloco_reset(o.d); /* this one says nothing */
        }
        rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
        rg_status_t st = rg_diloco_step(o.d, 1, &r);
        RIG_NEED(m, st == RG_OK || st == RG_ERR_INVALID, "step %u: %s", step, r.text);
    }
    double want = (double)initial(5) - gone / m->rig->n;
    /* Steps of the third round are on their way, or in the parameters. */
    for (uint32_t k = 0; c->variant == RG_DILOCO_PLAIN && k < m->rig->n; k++)
        for (uint64_t t = 2 * c->every; k != 1 && t < 3 * c->every; t++) want -= (double)way(k, t, 5) / m->rig->n;
    RIG_NEED(m, fabs((double)o.p[5] - want) < 2e-5, "%g for %g", (double)o.p[5], want);
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco, step__a_round_that_fails__said_in_the_next, .timeout = 60) {
    rg_diloco_config_t c = small(RG_DILOCO_PLAIN);
    c.lr = 1;
    c.momentum = 0;
    rig_run(3, "inproc", NULL, loses_nothing, &c);
    c.variant = RG_DILOCO_DELAYED;
    rig_run(3, "inproc", NULL, loses_nothing, &c);
}

/* Stopped while a late round is in flight, and started again: what was trained meanwhile is said from the anchor that
 * this round made, and nothing of it twice or backwards. */
static int stops_in_flight(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static _Thread_local model_t o;
    double gone = 0;
    if (open_model(m, &o, c) || start(m, &o)) return 1;
    for (uint32_t step = 1; step <= 2 * c->every; step++) {
        for (uint32_t k = 0; k < m->rig->n; k++) gone += (double)way(k, o.step, 5) / m->rig->n;
        train(&o, m->index);
        rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
        RIG_NEED(m, rg_diloco_step(o.d, 1, &r) == RG_OK, "step %u: %s", step, r.text);
        if (step != c->every + 3) continue;
        rg_diloco_stop(o.d);
        if (rig_gate(m, 0, m->rig->n) || start(m, &o)) return 1;
    }
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    RIG_NEED(m, rg_diloco_flush(o.d, &r) == RG_OK, "%s", r.text);
    double want = (double)initial(5) - gone;
    RIG_NEED(m, fabs((double)o.p[5] - want) < 2e-5, "%g for %g", (double)o.p[5], want);
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco, stop__while_a_late_round_is_in_flight__said_once, .timeout = 60) {
    rg_diloco_config_t c = small(RG_DILOCO_DELAYED);
    c.lr = 1;
    c.momentum = 0;
    rig_run(2, "inproc", NULL, stops_in_flight, &c);
}

/* A start that fails lets go of the group, which may be destroyed then; the next one begins where the member was. */
static int start_fails(rig_member_t *m, void *arg) {
    rg_diloco_config_t c = *(const rg_diloco_config_t *)arg;
    static _Thread_local model_t o;
    rg_error_t err = { RG_OK, 0, "" };
    c.timeout_ms = 300;
    if (open_model(m, &o, &c) || start(m, &o) || steps_until(m, &o, c.every)) return 1;
    uint64_t hash = hash_of(&o);
    if (m->index == 1 && rig_gate(m, 0, 2)) return 1; /* until the other one has had enough */
    rg_status_t st = rg_diloco_start(o.d, m->g, &err);
    RIG_NEED(m, st == RG_ERR_TIMEOUT, "%s: %s", rg_status_name(st), err.text);
    RIG_NEED(m, o.d->g == NULL && o.d->q == NULL, "the reduction of the group is still there");
    if (m->index == 0 && rig_gate(m, 0, 2)) return 1;
    if (rig_gate(m, 1, 2) || start(m, &o)) return 1;
    RIG_NEED(m, hash_of(&o) == hash, "another anchor");
    rg_diloco_destroy(o.d);
    return rig_gate(m, 2, 2);
}

Test(diloco, start__fails__lets_go_of_the_group, .timeout = 60) {
    rg_diloco_config_t c = by_quorum(1, 0);
    rig_run(2, "inproc", NULL, start_fails, &c);
}

/* What was given to a round that is not decided is still counted after a reset, for it is taken off when it is. */
static int resets_with_a_round_open(rig_member_t *m, void *arg) {
    rg_diloco_config_t c = *(const rg_diloco_config_t *)arg;
    static _Thread_local model_t o;
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    c.timeout_ms = 300;
    if (open_model(m, &o, &c) || start(m, &o) || steps_until(m, &o, c.every - 1)) return 1;
    if (m->index == 1 && rig_gate(m, 0, 2)) return 1; /* until the other one has had enough */
    train(&o, m->index);
    rg_status_t st = rg_diloco_step(o.d, 1, &r);
    if (m->index == 0) {
        RIG_NEED(m, st == RG_ERR_TIMEOUT, "%s: %s", rg_status_name(st), r.text);
        RIG_OK(m, rg_diloco_reset(o.d));
        if (rig_gate(m, 0, 2) || rig_gate(m, 1, 2)) return 1;
        for (uint32_t k = 0; k < c.every; k++) {
            train(&o, m->index);
            RIG_NEED(m, rg_diloco_step(o.d, 1, &r) == RG_OK, "step %u: %s", k, r.text);
        }
        RIG_NEED(m, o.d->fragment[0].tokens == c.every && o.d->fragment[0].steps == c.every, "%llu tokens, %llu steps",
                 (unsigned long long)o.d->fragment[0].tokens, (unsigned long long)o.d->fragment[0].steps);
    } else {
        RIG_NEED(m, st == RG_OK && r.contributors == 2, "%s: %s", rg_status_name(st), r.text);
        if (rig_gate(m, 1, 2)) return 1;
    }
    if (rig_gate(m, 2, 2)) return 1;
    rg_diloco_destroy(o.d);
    return rig_gate(m, 3, 2);
}

Test(diloco, reset__with_a_round_undecided__counts_stay_right, .timeout = 60) {
    rg_diloco_config_t c = by_quorum(1, 0);
    rig_run(2, "inproc", NULL, resets_with_a_round_open, &c);
}

/* The place in the schedule comes from other members, and from files. */
static int starts_anywhere(rig_member_t *m, void *arg) {
    rg_diloco_config_t c = *(const rg_diloco_config_t *)arg;
    static _Thread_local model_t o;
    rg_error_t err = { RG_OK, 0, "" };
    c.quorum = 1;
    for (uint64_t step = 0; step < 3 * c.every; step++) {
        if (open_model(m, &o, &c)) return 1;
        RIG_NEED(m, rg_dl_prepare(o.d, &err) == RG_OK, "%s", err.text);
        o.d->shared[0] = step + c.overlap;
        if (start(m, &o)) return 1;
        uint64_t rounds = 0;
        for (uint64_t s = 1; s <= step; s++) rounds += rg_outer_due(s, c.every, o.d->n) >= 0;
        RIG_NEED(m, o.d->q_next == rounds + 1, "step %u: round %u", (unsigned)step, (unsigned)o.d->q_next);
        rg_diloco_destroy(o.d);
    }
    if (open_model(m, &o, &c)) return 1;
    RIG_NEED(m, rg_dl_prepare(o.d, &err) == RG_OK, "%s", err.text);
    o.d->shared[0] = UINT64_MAX - 1;
    rg_diloco_start(o.d, m->g, &err); /* it ends */
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco, start__any_place_in_the_schedule__its_round, .timeout = 30) {
    rg_diloco_config_t c = by_quorum(3, 1);
    rig_run(1, "inproc", NULL, starts_anywhere, &c);
}

/* A child of fork() has the handle, and not the thread that brings home what is in flight. */
static int forks(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static _Thread_local model_t o;
    int status = -1;
    if (open_model(m, &o, c) || start(m, &o) || steps_until(m, &o, c->every)) return 1;
    pid_t child = fork();
    if (child == 0) {
        rg_error_t err;
        int wrong = 0;
        alarm(20);
        for (uint32_t k = 0; k < 3 * c->every; k++) wrong |= rg_diloco_step(o.d, 1, NULL) != RG_ERR_CLOSED;
        wrong |= rg_diloco_flush(o.d, NULL) != RG_ERR_CLOSED || rg_diloco_start(o.d, m->g, &err) != RG_ERR_CLOSED;
        rg_diloco_stop(o.d);
        rg_diloco_destroy(o.d);
        _exit(wrong);
    }
    RIG_NEED(m, child > 0 && waitpid(child, &status, 0) == child && status == 0, "the child ended with %#x", status);
    return steps_until(m, &o, 2 * c->every) || finish(m, &o, m->rig->n);
}

Test(diloco, fork__with_a_round_in_flight__the_child_is_refused, .timeout = 60) {
    rg_diloco_config_t c = small(RG_DILOCO_DELAYED);
    rig_run(2, "inproc", NULL, forks, &c);
}

/* Whatever is not alike on one member is found in the first round, too. */
static int differs(rig_member_t *m, void *arg) {
    rg_diloco_config_t c = *(const rg_diloco_config_t *)arg;
    static _Thread_local model_t o;
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    if (open_model(m, &o, &c) || start(m, &o)) return 1;
    if (m->index == 0) o.d->c.lr *= 2;
    if (steps_until(m, &o, c.every - 1)) return 1;
    train(&o, m->index);
    rg_status_t st = rg_diloco_step(o.d, 1, &r);
    RIG_NEED(m, st == RG_ERR_MISMATCH && strstr(r.text, "disagree"), "%s: %s", rg_status_name(st), r.text);
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco, step__another_configuration__mismatch_everywhere, .timeout = 60) {
    rg_diloco_config_t c = small(RG_DILOCO_PLAIN);
    rig_run(3, "inproc", NULL, differs, &c);
}

/* One member does not come to its round: the others end with TIMEOUT when their time is over, nothing changed; the one
 * that is late learns the same. The next round has it all. */
static int one_is_late(rig_member_t *m, void *arg) {
    rg_diloco_config_t c = *(const rg_diloco_config_t *)arg;
    static _Thread_local model_t o;
    c.timeout_ms = 300;
    if (open_model(m, &o, &c) || start(m, &o) || steps_until(m, &o, c.every - 1)) return 1;
    uint64_t hash = hash_of(&o);
    train(&o, m->index);
    if (m->index == 2 && rig_gate(m, 1, 3)) return 1; /* until the others have had enough */
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    rg_status_t st = rg_diloco_step(o.d, 1, &r);
    RIG_NEED(m, st == RG_ERR_TIMEOUT, "%s: %s", rg_status_name(st), r.text);
    RIG_NEED(m, hash_of(&o) == hash, "the anchor was changed");
    if (m->index != 2 && rig_gate(m, 1, 3)) return 1;
    if (rig_gate(m, 2, 3) || steps_until(m, &o, 2 * c.every)) return 1;
    return finish(m, &o, 3);
}

Test(diloco, step__a_member_is_late__timeout_everywhere, .timeout = 60) {
    rg_diloco_config_t c = small(RG_DILOCO_PLAIN);
    rig_run(3, "inproc", NULL, one_is_late, &c);
}

/* ---- Files ------------------------------------------------------------------------------------------------------ */

/* Saved in the middle, also while something is in flight, by every member; loaded into new handles, the training comes
 * to the same anchor as the one that went on, but for the rounding of what was in flight. */
static int saves_and_loads(rig_member_t *m, void *arg) {
    const rg_diloco_config_t *c = arg;
    static _Thread_local model_t o, again;
    char path[128];
    rg_error_t err = { RG_OK, 0, "" };
    snprintf(path, sizeof path, "/tmp/rg-diloco-%d-%u", (int)getpid(), m->index);
    if (open_model(m, &o, c) || start(m, &o)) return 1;
    if (steps_until(m, &o, 2 * c->every)) return 1; /* a boundary; late and streaming: in flight */
    rg_status_t st = rg_diloco_save(o.d, path, &err);
    RIG_NEED(m, st == RG_OK, "save: %s", err.text);
    uint64_t at = o.step;
    if (open_model(m, &again, c)) return 1;
    again.step = at;
    memset(again.p, 0, sizeof again.p);
    st = rg_diloco_load(again.d, path, &err);
    RIG_NEED(m, st == RG_OK, "load: %s", err.text);
    RIG_NEED(m, hash_of(&again) == hash_of(&o), "another anchor than was saved");
    RIG_NEED(m, !memcmp(again.p, o.p, sizeof o.p), "other parameters than were saved");
    rg_diloco_config_t other = *c;
    rg_diloco_t *d = NULL;
    float p[ALL] = { 0 };
    rg_diloco_create(&other, &d, &err);
    rg_diloco_add(d, "else", p, ALL, 0, &err);
    RIG_NEED(m, rg_diloco_load(d, path, &err) == RG_ERR_MISMATCH && p[3] == 0, "taken: %s", err.text);
    rg_diloco_destroy(d);
    unlink(path);
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    RIG_NEED(m, rg_diloco_flush(o.d, &r) == RG_OK, "%s", r.text);
    if (rig_gate(m, 3, m->rig->n)) return 1;
    rg_diloco_destroy(o.d);
    if (start(m, &again)) return 1;
    RIG_NEED(m, rg_diloco_flush(again.d, &r) == RG_OK, "%s", r.text);
    for (uint64_t i = 0; i < ALL && c->variant == RG_DILOCO_PLAIN; i++)
        RIG_NEED(m, again.p[i] == o.p[i], "element %u: %g for %g", (unsigned)i, (double)again.p[i], (double)o.p[i]);
    if (steps_until(m, &again, 4 * c->every)) return 1;
    return finish(m, &again, m->rig->n);
}

Test(diloco, save__in_the_middle__load_goes_on_from_there, .timeout = 60) {
    for (int v = 0; v < RG_DILOCO_VARIANT_COUNT; v++) {
        rg_diloco_config_t c = small((rg_diloco_variant_t)v);
        c.wire = v ? RG_WIRE_I8 : (rg_wire_t)0;
        c.feedback = v ? 0.9f : 0;
        rig_run(2, "inproc", NULL, saves_and_loads, &c);
    }
}

/* ---- Wrong calls ------------------------------------------------------------------------------------------------ */

Test(diloco, calls__wrong_arguments__told) {
    rg_error_t err = { RG_OK, 0, "" };
    rg_diloco_t *d = NULL;
    float v = 0;
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    cr_assert_eq(rg_diloco_create(NULL, NULL, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_diloco_create(NULL, &d, &err), RG_OK);
    cr_assert(d->c.variant == RG_DILOCO_PLAIN && d->c.every == 500 && d->c.lr == 0.7f, "the defaults of plain");
    cr_assert_eq(rg_diloco_start(d, NULL, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_diloco_step(d, 1, &r), RG_ERR_INVALID);
    cr_assert(strstr(r.text, "rg_diloco_start"), "%s", r.text);
    cr_assert_eq(rg_diloco_step(NULL, 1, &r), RG_ERR_INVALID);
    cr_assert_eq(rg_diloco_flush(d, &r), RG_ERR_INVALID);
    cr_assert_eq(rg_diloco_reset(d), RG_ERR_INVALID);
    cr_assert_eq(rg_diloco_add(d, "", &v, 1, 0, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_diloco_add(d, "a", NULL, 1, 0, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_diloco_add(d, "a", &v, 1, 8, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_diloco_save(d, "/tmp/rg-diloco-nothing", &err), RG_ERR_INVALID, "%s", err.text);
    cr_assert_eq(rg_diloco_add(d, "a", &v, 1, 0, &err), RG_OK);
    cr_assert_eq(rg_diloco_add(d, "a", &v, 1, 0, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_diloco_load(d, "/tmp/rg-diloco-nothing", &err), RG_ERR_SYSTEM);
    rg_diloco_destroy(d);
    rg_diloco_destroy(NULL);
}
