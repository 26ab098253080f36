/* test_state.c: shared states on groups of threads: whose content wins, that only what differs moves, that what arrives
 * is checked, that a failure leaves tensors as they were, and that all members have one outcome. Contents are computed
 * from a seed, so that every byte is checked. It relies on engine_rig.h; files are in test_state_file.c. */
#include "engine_rig.h"

#include "state/state.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (1u << 20)

/* ---- A state with three tensors: several pieces, a few bytes, nothing
 * ------------------------------------------------ */

typedef struct model {
    rg_state_t *s;
    uint8_t *big;
    uint64_t big_bytes;
    int32_t few[5];
} model_t;

static void fill(model_t *m, uint64_t seed) {
    uint64_t x = seed;
    for (uint64_t i = 0; i < m->big_bytes; i += 8) {
        uint64_t v = rig_random(&x);
        memcpy(m->big + i, &v, m->big_bytes - i < 8 ? m->big_bytes - i : 8);
    }
    for (int i = 0; i < 5; i++) m->few[i] = (int32_t)(seed * 7 + (uint64_t)i);
}

static int make(model_t *m, uint64_t bytes, uint64_t seed, uint64_t revision) {
    *m = (model_t){ .big_bytes = bytes, .big = malloc(bytes + 1) };
    fill(m, seed);
    return m->big && rg_state_create(&m->s, NULL) == RG_OK &&
           rg_state_add(m->s, "big", m->big, bytes, RG_U8, NULL) == RG_OK &&
           rg_state_add(m->s, "nothing", NULL, 0, RG_F32, NULL) == RG_OK &&
           rg_state_add(m->s, "few", m->few, 5, RG_I32, NULL) == RG_OK &&
           rg_state_set_revision(m->s, revision) == RG_OK;
}

static int is(const model_t *m, uint64_t seed) {
    model_t want = { .big_bytes = m->big_bytes, .big = malloc(m->big_bytes + 1) };
    fill(&want, seed);
    int same = !memcmp(want.big, m->big, m->big_bytes) && !memcmp(want.few, m->few, sizeof want.few);
    free(want.big);
    return same;
}

static void unmake(model_t *m) {
    rg_state_destroy(m->s);
    free(m->big);
}

/* ---- Whose content wins
 * ---------------------------------------------------------------------------------------------- */

typedef struct vote {
    uint64_t seed, revision; /* of a member's content */
    rg_state_role_t role;
} vote_t;

typedef struct election {
    const char *name;
    vote_t v[4];
    rg_state_rule_t rule;
    rg_status_t status;
    uint64_t seed, revision; /* expected */
} election_t;

static const election_t elections[] = {
    { "equal", { { 1, 5, 0 }, { 1, 5, 0 }, { 1, 5, 0 } }, RG_STATE_POPULAR, RG_OK, 1, 5 },
    { "popular", { { 1, 5, 0 }, { 2, 9, 0 }, { 1, 5, 0 } }, RG_STATE_POPULAR, RG_OK, 1, 5 },
    { "newest", { { 1, 5, 0 }, { 2, 9, 0 }, { 1, 5, 0 } }, RG_STATE_NEWEST, RG_OK, 2, 9 },
    { "revision decides", { { 1, 5, 0 }, { 2, 9, 0 }, { 3, 7, 0 } }, RG_STATE_POPULAR, RG_OK, 2, 9 },
    { "rank decides", { { 1, 5, 0 }, { 2, 5, 0 }, { 3, 5, 0 } }, RG_STATE_POPULAR, RG_OK, 1, 5 },
    { "newcomers do not outvote", { { 1, 0, 0 }, { 1, 0, 0 }, { 2, 4, 0 } }, RG_STATE_POPULAR, RG_OK, 2, 4 },
    { "all new", { { 1, 0, 0 }, { 2, 0, 0 }, { 2, 0, 0 } }, RG_STATE_POPULAR, RG_OK, 2, 0 },
    { "same content, other revision", { { 1, 5, 0 }, { 1, 8, 0 }, { 1, 0, 0 } }, RG_STATE_POPULAR, RG_OK, 1, 8 },
    { "send only wins", { { 1, 5, 0 }, { 1, 5, 0 }, { 3, 1, 1 } }, RG_STATE_POPULAR, RG_OK, 3, 1 },
    { "receive only loses", { { 1, 9, 2 }, { 1, 9, 2 }, { 3, 1, 0 } }, RG_STATE_POPULAR, RG_OK, 3, 1 },
    { "two that only send", { { 1, 5, 1 }, { 2, 5, 1 }, { 3, 1, 0 } }, RG_STATE_POPULAR, RG_ERR_MISMATCH, 0, 0 },
    { "nobody sends", { { 1, 5, 2 }, { 2, 5, 2 }, { 3, 1, 2 } }, RG_STATE_POPULAR, RG_ERR_INVALID, 0, 0 },
};

static int elect(rig_member_t *m, void *arg) {
    (void)arg;
    for (size_t k = 0; k < sizeof elections / sizeof *elections; k++) {
        const election_t *e = &elections[k];
        const vote_t *v = &e->v[m->index];
        rg_state_opts_t o = RG_STATE_OPTS_INIT;
        rg_state_result_t r = RG_STATE_RESULT_INIT;
        model_t x;
        o.role = v->role;
        o.rule = e->rule;
        o.in_place = k % 2 ? RG_ON : RG_OFF;
        RIG_NEED(m, make(&x, 2 * MIB + 17, v->seed, v->revision), "%s: no state", e->name);
        rg_status_t st = rg_state_sync(m->g, x.s, &o, &r);
        RIG_NEED(m, st == e->status && r.status == st, "%s: %s: %s", e->name, rg_status_name(st), r.text);
        RIG_NEED(m, (st != RG_OK) == (r.text[0] != 0), "%s: text \"%s\"", e->name, r.text);
        RIG_NEED(m, is(&x, st == RG_OK ? e->seed : v->seed), "%s: wrong content", e->name);
        uint64_t revision = st == RG_OK ? e->revision : v->revision;
        RIG_NEED(m, rg_state_revision(x.s) == revision && r.revision == revision, "%s: revision %llu", e->name,
                 (unsigned long long)r.revision);
        RIG_NEED(m, r.changed == (st == RG_OK && v->seed != e->seed), "%s: changed %u", e->name, r.changed);
        RIG_NEED(m, st != RG_OK || r.members == 3, "%s: %u members", e->name, r.members);
        unmake(&x);
    }
    return 0;
}

Test(state, sync__contents_roles_and_rules__the_one_that_should_win, .timeout = 120) {
    rig_run(3, "inproc", NULL, elect, NULL);
}

/* ---- What moves
 * ------------------------------------------------------------------------------------------------------ */

static int one_byte(rig_member_t *m, void *arg) {
    uint64_t bytes = *(uint64_t *)arg, at = bytes / 2 + 12345;
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    model_t x;
    RIG_NEED(m, make(&x, bytes, 1, 3), "no state");
    RIG_OK(m, rg_state_sync(m->g, x.s, &o, &r));
    RIG_NEED(m, r.pieces_received == 0 && r.pieces_sent == 0 && r.changed == 0 && r.holders == m->rig->n,
             "equal states moved %llu pieces", (unsigned long long)r.pieces_received);
    RIG_NEED(m, r.compare_bytes < 100 * m->rig->n, "equal states cost %llu bytes", (unsigned long long)r.compare_bytes);
    if (m->index == 1) x.big[at] ^= 1;
    o.touched_only = RG_ON;
    if (m->index == 1) rg_state_touch(x.s, "big", at, 1);
    RIG_OK(m, rg_state_sync(m->g, x.s, &o, &r));
    RIG_NEED(m, r.pieces_received == (m->index == 1) && r.changed == (m->index == 1), "%llu pieces came",
             (unsigned long long)r.pieces_received);
    RIG_NEED(m, r.bytes_received <= MIB && r.rejected == 0, "%llu bytes", (unsigned long long)r.bytes_received);
    RIG_NEED(m, r.compare_bytes < 4096, "compared with %llu bytes", (unsigned long long)r.compare_bytes);
    RIG_NEED(m, is(&x, 1), "wrong content");
    unmake(&x);
    return 0;
}

Test(state, sync__one_byte_differs__one_piece_moves, .timeout = 120) {
    uint64_t bytes = 40u * MIB + 5;
    rig_run(3, "inproc", NULL, one_byte, &bytes);
}

/* Two members have it, two do not: many rounds, pieces from both, and those who have some serve the other. */
static int fetch(rig_member_t *m, void *arg) {
    rg_state_opts_t o = *(rg_state_opts_t *)arg;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    model_t x;
    int has = m->index < 2;
    RIG_NEED(m, make(&x, 30u * MIB + 7, has ? 1 : 2 + m->index, has ? 3 : 0), "no state");
    RIG_OK(m, rg_state_sync(m->g, x.s, &o, &r));
    RIG_NEED(m, is(&x, 1), "wrong content");
    RIG_NEED(m, r.holders == 2 && r.rejected == 0, "%u holders, %u rejected", r.holders, r.rejected);
    RIG_NEED(m, r.pieces_received == (has ? 0 : 32), "%llu pieces came", (unsigned long long)r.pieces_received);
    RIG_NEED(m, !has || (r.pieces_sent >= 8 && r.pieces_sent <= 40), "one sent %llu pieces",
             (unsigned long long)r.pieces_sent);
    unmake(&x);
    return 0;
}

Test(state, sync__two_newcomers__both_members_send, .timeout = 120) {
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    rig_run(4, "inproc", NULL, fetch, &o);
}
Test(state, sync__small_buffers_over_tcp__same, .timeout = 120) {
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    o.buffer_bytes = RG_STATE_BUFFER_MIN;
    o.in_place = RG_OFF;
    rig_run(4, "tcp", NULL, fetch, &o);
}

/* ---- What is checked
 * ------------------------------------------------------------------------------------------------- */

/* A member whose content is not what its hashes say: changed behind the back of touched_only. With another holder its
 * pieces come from there; alone it makes the call fail, the same everywhere, and nobody is changed. */
static int liar(rig_member_t *m, void *arg) {
    int alone = *(int *)arg;
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    model_t x;
    int has = alone ? m->index == 0 : m->index != 2;
    RIG_NEED(m, make(&x, 20u * MIB, has ? 1 : 2, has ? 3 : 1), "no state");
    rg_state_hash(x.s, 0);
    o.touched_only = RG_ON;
    o.in_place = RG_OFF;
    if (m->index == 0)
        for (uint64_t at = 0; at < x.big_bytes; at += MIB) x.big[at] ^= 1;
    if (alone) o.role = m->index == 0 ? RG_STATE_SEND_ONLY : RG_STATE_SEND_AND_RECEIVE;
    rg_status_t st = rg_state_sync(m->g, x.s, &o, &r);
    if (alone) {
        RIG_NEED(m, st == RG_ERR_PROTOCOL && strstr(r.text, "changed"), "%s: %s", rg_status_name(st), r.text);
        RIG_NEED(m, m->index == 0 || (is(&x, 2) && r.rejected > 0), "changed, or nothing rejected");
        RIG_NEED(m, rg_state_revision(x.s) == (m->index == 0 ? 3 : 1), "revision changed");
    } else {
        RIG_NEED(m, st == RG_OK, "%s: %s", rg_status_name(st), r.text);
        RIG_NEED(m, m->index == 0 || is(&x, 1), "wrong content");
        RIG_NEED(m, m->index != 2 || r.rejected > 0, "nothing was rejected");
    }
    unmake(&x);
    return 0;
}

Test(state, sync__a_holder_sends_another_content__fetched_from_the_other_one, .timeout = 120) {
    int alone = 0;
    rig_run(3, "inproc", NULL, liar, &alone);
}
Test(state, sync__the_only_holder_sends_another_content__refused_by_all_and_untouched, .timeout = 120) {
    int alone = 1;
    rig_run(3, "inproc", NULL, liar, &alone);
}

/* ---- What fails for all alike
 * ---------------------------------------------------------------------------------------- */

typedef struct wrong {
    const char *name, *text; /* a part of what is said */
    rg_status_t status;
    int what;
} wrong_t;

static const wrong_t wrongs[] = {
    { "another count", "must be equal", RG_ERR_MISMATCH, 0 }, { "another name", "must be equal", RG_ERR_MISMATCH, 1 },
    { "another type", "must be equal", RG_ERR_MISMATCH, 2 },  { "another rule", "rule", RG_ERR_MISMATCH, 3 },
    { "no room aside", "side_bytes", RG_ERR_RESOURCE, 4 },
};

static int refused(rig_member_t *m, void *arg) {
    (void)arg;
    static const rg_dtype_t types[] = { RG_I32, RG_F32 };
    for (size_t k = 0; k < sizeof wrongs / sizeof *wrongs; k++) {
        const wrong_t *w = &wrongs[k];
        int odd = m->index == 1;
        rg_state_opts_t o = RG_STATE_OPTS_INIT;
        rg_state_result_t r = RG_STATE_RESULT_INIT;
        model_t x;
        float more[3] = { 1, 2, 3 };
        RIG_NEED(m, make(&x, 3 * MIB, 1 + (w->what == 4 && odd), 5), "no state");
        RIG_NEED(m,
                 rg_state_add(x.s, w->what == 1 && odd ? "mor3" : "more", more, w->what == 0 && odd ? 2 : 3,
                              types[w->what == 2 && odd], NULL) == RG_OK,
                 "not added");
        if (w->what == 3 && odd) o.rule = RG_STATE_NEWEST;
        if (w->what == 4) o.side_bytes = 2 * MIB;
        rg_status_t st = rg_state_sync(m->g, x.s, &o, &r);
        RIG_NEED(m, st == w->status && strstr(r.text, w->text), "%s: %s: %s", w->name, rg_status_name(st), r.text);
        RIG_NEED(m, strstr(rig_errmsg(m), w->text), "%s: the group says %s", w->name, rig_errmsg(m));
        RIG_NEED(m, is(&x, 1 + (w->what == 4 && odd)) && rg_state_revision(x.s) == 5, "%s: changed", w->name);
        unmake(&x);
    }
    return 0;
}

Test(state, sync__members_do_not_fit__all_say_the_same_and_nothing_changes, .timeout = 120) {
    rig_run(3, "inproc", NULL, refused, NULL);
}

static int bad_calls(rig_member_t *m, void *arg) {
    (void)arg;
    model_t x;
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    RIG_NEED(m, make(&x, 100, 1, 5), "no state");
    RIG_NEED(m, rg_state_sync(NULL, x.s, NULL, NULL) == RG_ERR_INVALID, "no group");
    RIG_NEED(m, rg_state_sync(m->g, NULL, NULL, NULL) == RG_ERR_INVALID, "no state");
    r.struct_size = 3;
    RIG_NEED(m, rg_state_sync(m->g, x.s, NULL, &r) == RG_ERR_INVALID, "result");
    r.struct_size = sizeof r;
    o.struct_size = 3;
    RIG_NEED(m, rg_state_sync(m->g, x.s, &o, NULL) == RG_ERR_INVALID, "options");
    o = (rg_state_opts_t)RG_STATE_OPTS_INIT;
    o.role = (rg_state_role_t)3;
    RIG_NEED(m, rg_state_sync(m->g, x.s, &o, NULL) == RG_ERR_INVALID, "role");
    o.role = RG_STATE_SEND_AND_RECEIVE;
    o.rule = (rg_state_rule_t)2;
    RIG_NEED(m, rg_state_sync(m->g, x.s, &o, NULL) == RG_ERR_INVALID, "rule");
    o.rule = RG_STATE_POPULAR;
    o.in_place = (rg_switch_t)3;
    RIG_NEED(m, rg_state_sync(m->g, x.s, &o, NULL) == RG_ERR_INVALID, "in_place");
    o.in_place = RG_SWITCH_DEFAULT;
    o.buffer_bytes = RG_STATE_BUFFER_MIN - 1;
    RIG_NEED(m, rg_state_sync(m->g, x.s, &o, NULL) == RG_ERR_INVALID, "buffer_bytes");
    RIG_NEED(m, strstr(rig_errmsg(m), "buffer_bytes"), "text: %s", rig_errmsg(m));
    RIG_OK(m, rg_state_sync(m->g, x.s, NULL, &r)); /* the group is as it was */
    RIG_NEED(m, r.members == m->rig->n && is(&x, 1), "%u members", r.members);
    rg_state_t *empty;
    RIG_NEED(m, rg_state_create(&empty, NULL) == RG_OK, "no state");
    RIG_OK(m, rg_state_sync(m->g, empty, NULL, NULL));
    rg_state_destroy(empty);
    unmake(&x);
    return 0;
}

Test(state, sync__bad_arguments__refused_alone_and_the_group_goes_on, .timeout = 60) {
    rig_run(2, "inproc", NULL, bad_calls, NULL);
    rig_run(1, "inproc", NULL, bad_calls, NULL);
}

/* ---- Losses
 * ---------------------------------------------------------------------------------------------------------- */

typedef struct loss {
    uint32_t at; /* MiB that the victim has sent when it goes */
    int only;    /* the victim alone has the newest content */
    rg_switch_t in_place;
} loss_t;

typedef struct watch {
    rg_group_t *g;
    uint64_t bytes;
    atomic_int over; /* the call has ended before that */
    int ends_it;
} watch_t;

/* Asks all the time how the group is, which tells the engine that the program knows of losses as soon as there is one;
 * the victim's ends it when so much has been sent. */
static void *watch(void *arg) {
    watch_t *w = arg;
    rg_info_t info = RG_INFO_INIT;
    const struct timespec between = { 0, 200000 }; /* two looks */
    while (!atomic_load(&w->over) && rg_group_info(w->g, &info) == RG_OK && info.bytes_sent < w->bytes)
        nanosleep(&between, NULL);
    if (w->ends_it) rg_group_abort(w->g);
    return NULL;
}

/* Members 0 and 1 have content 1, or member 0 alone has a newer one; 0 goes in the middle of it. */
static int donor_dies(rig_member_t *m, void *arg) {
    const loss_t *l = arg;
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    model_t x;
    pthread_t thread;
    watch_t w = { m->g, m->index ? UINT64_MAX : (uint64_t)l->at * MIB, 0, m->index == 0 };
    uint64_t seed = l->only ? (m->index == 0 ? 9 : m->index == 1 ? 1 : 2) : m->index < 2 ? 1 : 2 + m->index;
    uint64_t revision = l->only ? (m->index == 0 ? 9 : m->index == 1 ? 4 : 3) : m->index < 2 ? 3 : 1;
    RIG_NEED(m, make(&x, 48u * MIB + 3, seed, revision), "no state");
    o.rule = l->only ? RG_STATE_NEWEST : RG_STATE_POPULAR;
    o.buffer_bytes = RG_STATE_BUFFER_MIN;
    o.in_place = l->in_place;
    RIG_NEED(m, pthread_create(&thread, NULL, watch, &w) == 0, "no thread");
    rg_status_t st = rg_state_sync(m->g, x.s, &o, &r);
    atomic_store(&w.over, 1);
    pthread_join(thread, NULL);
    if (m->index) {
        RIG_NEED(m, st == RG_OK, "%s: %s", rg_status_name(st), r.text);
        int lost = r.members == 3;
        if (l->only && lost && l->in_place == RG_OFF)
            RIG_NEED(m, is(&x, 1) && rg_state_revision(x.s) == 4, "wrong content after a loss");
        else if (!l->only) RIG_NEED(m, is(&x, 1), "wrong content");
        else RIG_NEED(m, is(&x, lost ? 1 : 9) || is(&x, 2), "mixed content");
        RIG_NEED(m, l->only || m->index < 2 || r.pieces_received <= 50 + 2 * 4,
                 "%llu pieces came: what was there was lost", (unsigned long long)r.pieces_received);
    }
    unmake(&x);
    return 0;
}

Test(state, sync__a_donor_dies_at_any_moment__the_others_finish_and_keep_what_they_have, .timeout = 200) {
    for (uint32_t at = 0; at < 48; at += 9) {
        loss_t l = { at, 0, at % 2 ? RG_ON : RG_OFF };
        rig_run(4, "inproc", NULL, donor_dies, &l);
    }
}
Test(state, sync__the_only_holder_dies__the_next_best_content_whole, .timeout = 200) {
    for (uint32_t at = 1; at < 40; at += 13) {
        loss_t l = { at, 1, RG_OFF };
        rig_run(4, "inproc", NULL, donor_dies, &l);
    }
}
