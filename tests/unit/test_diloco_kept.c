/* test_diloco_kept.c: error feedback of rounds that are made again or fail. A member dies just between its head and its
 * share, every time: the others' shares have moved their feedback by then, and must come to the very bits that they
 * come to when that member was gone before its head. Relies on engine_rig.h and on the place between head and share
 * that round.c leaves to tests. */
#include "engine_rig.h"

#include "diloco/internal.h"
#include "regroup_diloco.h"

#include <criterion/criterion.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 9000, STAY_MOST = 2, ROUNDS = 6, DIES_IN = 3 };

typedef struct run {
    rg_diloco_config_t c;
    uint32_t stay;  /* members that do; one more dies in round DIES_IN */
    int after_head; /* when it does */
    float p[STAY_MOST][COUNT], kept[STAY_MOST][COUNT];
    uint32_t retries[STAY_MOST + 1]; /* the one that dies among them */
} run_t;

typedef struct member {
    rig_member_t *m;
    const run_t *run;
    uint64_t round, since;
    float *p;
    rg_diloco_t *d;
} member_t;

static void train(float *p, uint32_t member, uint64_t step) {
    for (uint64_t i = 0; i < COUNT; i++) {
        uint64_t x = member * 0xbf58476d1ce4e5b9ull + step * 0x9e3779b97f4a7c15ull + i * 0x94d049bb133111ebull;
        p[i] -= (float)((double)(rig_random(&x) >> 40) * 0x1p-24 - 0.5) * 0.01f;
    }
}

/* The one that dies does it here, and the others do not begin with their shares before it is known to be gone. */
static void between(void *arg) {
    member_t *o = arg;
    rg_info_t now = RG_INFO_INIT;
    uint64_t until = rig_now() + 50000000000u;
    if (o->round != DIES_IN || !o->run->after_head) return;
    if (o->m->index == o->run->stay) rg_group_abort(o->m->g);
    else
        while (rg_group_info(o->m->g, &now) == RG_OK && now.world_size > o->run->stay && rig_now() < until)
            sched_yield();
}

static int begin(rig_member_t *m, member_t *o, float *p, const run_t *run) {
    rg_error_t err = { RG_OK, 0, "" };
    *o = (member_t){ .m = m, .run = run, .p = p };
    for (uint64_t i = 0; i < COUNT; i++) p[i] = (float)(i % 97) * 0.01f;
    RIG_NEED(m, rg_diloco_create(&run->c, &o->d, &err) == RG_OK, "%s", err.text);
    RIG_NEED(m, rg_diloco_add(o->d, "w", p, COUNT, 0, &err) == RG_OK, "%s", err.text);
    RIG_NEED(m, rg_diloco_start(o->d, m->g, &err) == RG_OK, "%s", err.text);
    o->d->between = between;
    o->d->between_arg = o;
    return 0;
}

static const float *kept_by(const rg_diloco_t *d) { return rg_dl_kept(d->fragment[0].z, d->fragment[0].top, COUNT); }

/* What was to be said is what was said and what is kept, to one unit in the last place. For a member that is alone, and
 * says the largest elements: what it said is the average. */
static int identity(member_t *o) {
    const rg_diloco_t *d = o->d;
    const float *kept = kept_by(d);
    for (uint64_t i = 0; i < COUNT; i++) {
        double said = (double)d->avg[i], is = said + (double)kept[i];
        double want = (double)d->d[i] + (double)d->c.feedback * (double)d->kept[i];
        double unit = ldexp(1, -23) * fmax(fabs((double)d->d[i]), fmax(fabs(want), fabs(said)));
        RIG_NEED(o->m, fabs(want - is) <= unit, "round %u, element %u: %.9g to say, %.9g said and kept",
                 (unsigned)o->round, (unsigned)i, want, is);
    }
    return 0;
}

static int keeps(rig_member_t *m, void *arg) {
    run_t *run = arg;
    static _Thread_local float p[COUNT];
    member_t o;
    if (begin(m, &o, p, run)) return 1;
    for (o.round = 1; o.round <= ROUNDS; o.round++) {
        rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
        int dies = m->index == run->stay && o.round == DIES_IN;
        train(p, m->index, o.round);
        if (dies && !run->after_head) rg_group_abort(m->g);
        rg_status_t st = rg_diloco_step(o.d, 1, &r);
        if (dies) {
            RIG_NEED(m, st == RG_ERR_ABORTED, "%s: %s", rg_status_name(st), r.text);
            rg_diloco_destroy(o.d);
            return 0;
        }
        RIG_NEED(m, st == RG_OK && r.merged, "round %u: %s", (unsigned)o.round, r.text);
        RIG_NEED(m, r.contributors == run->stay + (o.round < DIES_IN), "%u contributors", r.contributors);
        run->retries[m->index] += r.retries;
        if (run->stay == 1 && o.round >= DIES_IN && identity(&o)) return 1;
    }
    const float *kept = kept_by(o.d);
    RIG_NEED(m, kept, "nothing is kept");
    memcpy(run->kept[m->index], kept, sizeof run->kept[0]);
    memcpy(run->p[m->index], p, sizeof p);
    rg_diloco_destroy(o.d);
    return 0;
}

static rg_diloco_config_t config(rg_diloco_variant_t v) {
    rg_diloco_config_t c;
    rg_diloco_profile(v, &c);
    c.every = 1;
    c.fragments = 1;
    c.overlap = 0;
    c.blend = 0;
    if (!c.topk) c.wire = RG_WIRE_I8;
    c.feedback = 1;
    return c;
}

static void dies_between(rg_diloco_variant_t v, uint32_t stay) {
    run_t *run = calloc(2, sizeof *run);
    float said = 0;
    for (int k = 0; k < 2; k++) {
        run[k].c = config(v);
        run[k].stay = stay;
        run[k].after_head = k;
        rig_run(stay + 1, "inproc", NULL, keeps, &run[k]);
    }
    for (uint32_t m = 0; m < stay; m++) {
        cr_assert(run[1].retries[m] > 0, "member %u made nothing again", m);
        cr_assert(memcmp(run[0].p[m], run[1].p[m], sizeof run->p[m]) == 0, "member %u has other parameters", m);
        cr_assert(memcmp(run[0].kept[m], run[1].kept[m], sizeof run->kept[m]) == 0, "member %u keeps another rest", m);
        for (uint64_t i = 0; i < COUNT; i++) said += fabsf(run[0].kept[m][i]);
    }
    cr_assert(said > 0, "nothing is ever left unsaid");
    free(run);
}

Test(diloco_kept, dies_between_head_and_share__int8__as_if_it_had_died_before, .timeout = 100) {
    dies_between(RG_DILOCO_PLAIN, 2);
}

Test(diloco_kept, dies_between_head_and_share__the_largest_elements__as_if_it_had_died_before, .timeout = 100) {
    dies_between(RG_DILOCO_SPARSE, 2);
}

Test(diloco_kept, dies_between_head_and_share__one_is_left__said_and_kept_are_what_there_was, .timeout = 100) {
    dies_between(RG_DILOCO_SPARSE, 1);
}

/* The shares have come through, and the outer step made of them would not be finite: nothing has changed. */
static int fails_after_the_shares(rig_member_t *m, void *arg) {
    const run_t *run = arg;
    static _Thread_local float p[COUNT], before[COUNT];
    member_t o;
    if (begin(m, &o, p, run)) return 1;
    for (o.round = 1; o.round <= ROUNDS; o.round++) {
        rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
        int too_far = o.round == 2 || o.round == 3;
        train(p, m->index, o.round);
        if (too_far)
            for (uint64_t i = 0; i < COUNT; i++) p[i] += 3e38f;
        memcpy(before, kept_by(o.d), sizeof before);
        rg_status_t st = rg_diloco_step(o.d, 1, &r);
        RIG_NEED(m, st == (too_far ? RG_ERR_INVALID : RG_OK), "round %u: %s: %s", (unsigned)o.round, rg_status_name(st),
                 r.text);
        int same = memcmp(before, kept_by(o.d), sizeof before) == 0;
        RIG_NEED(m, same == too_far, "round %u: what is kept is %s", (unsigned)o.round, same ? "the same" : "another");
        if (too_far) RIG_OK(m, rg_diloco_reset(o.d));
        else if (m->rig->n == 1 && identity(&o)) return 1;
    }
    rg_diloco_destroy(o.d);
    return 0;
}

Test(diloco_kept, outer_step_not_finite__after_the_shares__kept_as_before, .timeout = 60) {
    run_t *run = calloc(1, sizeof *run);
    run->c = config(RG_DILOCO_PLAIN);
    run->c.lr = 2;
    rig_run(2, "inproc", NULL, fails_after_the_shares, run);
    run->c = config(RG_DILOCO_SPARSE);
    run->c.lr = 2;
    rig_run(1, "inproc", NULL, fails_after_the_shares, run);
    free(run);
}
