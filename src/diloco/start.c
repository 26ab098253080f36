/* start.c: how a member gets what the others have: at the start, as a newcomer, and when one of them has just entered.
 * Relies on rg_state_*. It must not make a round, but for the empty one that newcomers owe those who are in the middle
 * of theirs. */
#include "diloco/internal.h"

#include "observe/log.h"
#include "os/os.h"

#include <stdio.h>
#include <string.h>

/* What this member has of its own beside its parameters began with another anchor. */
static void begin_anew(rg_diloco_t *d) {
    float *own[] = { d->off, d->offbuf, d->said, d->kept };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (own[i]) memset(own[i], 0, (size_t)d->elements * sizeof *own[i]);
    for (uint32_t p = 0; p < d->n; p++) {
        const rg_dl_fragment_t *f = &d->fragment[p];
        float *kept = rg_dl_kept(f->z, f->top, f->count);
        if (kept) memset(kept, 0, (size_t)f->count * sizeof *kept);
    }
    rg_dl_forget(d);
}

/* Of the configuration, what rounds need alike. */
static const char *const field[] = { "variant", "every",    "fragments", "overlap", "momentum_every", "weight",
                                     "merge",   "wire",     "topk",      "quorum",  "grace_ms",       "tag",
                                     "lr",      "momentum", "blend",     "clip" };
enum { FIELDS = sizeof field / sizeof *field, FLOATS = 4 };

static void fields_of(const rg_diloco_config_t *c, uint32_t *v) {
    const uint32_t words[FIELDS - FLOATS] = { c->variant,        c->every,  c->fragments, c->overlap,
                                              c->momentum_every, c->weight, c->merge,     c->wire,
                                              c->topk,           c->quorum, c->grace_ms,  c->tag };
    const float numbers[FLOATS] = { c->lr, c->momentum, c->blend, c->clip };
    memcpy(v, words, sizeof words);
    memcpy(v + FIELDS - FLOATS, numbers, sizeof numbers);
}

/* Where configurations differ, members wait for rounds that others do not make, and one that has come with another one
 * would keep all from making any: so it is told before it is one of them. Of each field the largest value and the
 * largest complement are known to all alike: these fit each other when all members have one value. */
static rg_status_t same_config(rg_diloco_t *d, char *text, size_t cap) {
    uint32_t mine[2 * FIELDS], most[2 * FIELDS];
    char list[200] = "";
    rg_result_t r = RG_RESULT_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    o.timeout_ms = d->c.timeout_ms;
    o.on_fault = RG_RETRY;
    o.result = &r;
    fields_of(&d->c, mine);
    for (int i = 0; i < FIELDS; i++) mine[FIELDS + i] = ~mine[i];
    rg_status_t st = rg_all_reduce(d->g, mine, most, 2 * FIELDS, RG_U32, RG_MAX, &o, NULL);
    if (st != RG_OK) {
        snprintf(text, cap, "%s", r.text[0] ? r.text : rg_strerror(st));
        return st;
    }
    for (int i = 0; i < FIELDS; i++) {
        size_t len = strlen(list);
        if (most[i] != ~most[FIELDS + i]) snprintf(list + len, sizeof list - len, "%s%s", len ? ", " : "", field[i]);
    }
    if (!list[0]) return RG_OK;
    snprintf(text, cap, "members disagree on %s: rg_diloco_config_t is equal on all of them", list);
    return RG_ERR_MISMATCH;
}

rg_status_t rg_dl_sync(rg_diloco_t *d, char *text, size_t cap) {
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    o.rule = RG_STATE_NEWEST;
    o.timeout_ms = d->c.timeout_ms;
    rg_status_t st = same_config(d, text, cap);
    if (st != RG_OK) return st;
    st = rg_state_sync(d->g, d->state, &o, &r);
    if (st != RG_OK) {
        snprintf(text, cap, "%s", r.text);
        return st;
    }
    d->step = d->shared[0];
    if (r.changed || d->fetched) begin_anew(d);
    d->fetched = 0;
    rg_dl_settle(d);
    return RG_OK;
}

/* What turns floats into fewer bytes belongs to a group. What is kept goes with this member. */
static void drop_codec(rg_diloco_t *d, rg_dl_fragment_t *f) {
    const float *had = d->kept ? rg_dl_kept(f->z, f->top, f->count) : NULL;
    if (had) memcpy(d->kept + f->at, had, (size_t)f->count * sizeof *had);
    rg_quantiser_destroy(f->z);
    rg_topk_reducer_destroy(f->top);
    f->z = NULL;
    f->top = NULL;
}

static rg_status_t make_codec(rg_diloco_t *d, rg_dl_fragment_t *f, rg_group_t *group, rg_error_t *err) {
    rg_quant_t q = RG_QUANT_INIT(d->c.wire);
    rg_topk_t t = RG_TOPK_INIT;
    rg_feedback_t feedback = RG_FEEDBACK_INIT, *feeds = d->kept ? &feedback : NULL;
    feedback.beta = d->c.feedback;
    t.k = d->c.topk;
    rg_status_t st = RG_OK;
    if (t.k) st = rg_topk_reducer_create(group, &t, feeds, &f->top, err);
    else if (d->c.wire != 0) st = rg_quantiser_create(group, &q, feeds, &f->z, err);
    if (st != RG_OK || !d->kept) return st;
    st = f->top ? rg_topk_keep(f->top, f->count) : rg_quantiser_keep(f->z, f->count);
    if (st != RG_OK) return rg_fail(err, st, 0, "rg_diloco_start: no memory for error feedback");
    memcpy(rg_dl_kept(f->z, f->top, f->count), d->kept + f->at, (size_t)f->count * sizeof(float));
    return RG_OK;
}

static rg_status_t make_codecs(rg_diloco_t *d, rg_group_t *group, rg_error_t *err) {
    rg_status_t st = RG_OK;
    for (uint32_t p = 0; st == RG_OK && p < d->n; p++) {
        drop_codec(d, &d->fragment[p]);
        st = make_codec(d, &d->fragment[p], group, err);
    }
    return st;
}

void rg_diloco_stop(rg_diloco_t *d) {
    if (!d || !d->g || d->forks != rg_os_forks()) return;
    if (d->flying >= 0) {
        rg_diloco_result_t last = RG_DILOCO_RESULT_INIT;
        rg_dl_take_in(d, &last);
    }
    rg_quorum_destroy(d->q);
    d->q = NULL;
    rg_state_serve_end(d->state);
    for (uint32_t p = 0; p < d->n; p++) drop_codec(d, &d->fragment[p]);
    d->g = NULL;
}

rg_status_t rg_diloco_start(rg_diloco_t *d, rg_group_t *group, rg_error_t *err) {
    rg_status_t st = rg_dl_whole(d, "rg_diloco_start", err);
    if (st != RG_OK) return st;
    if (!group) return rg_fail(err, RG_ERR_INVALID, 0, "rg_diloco_start: group is NULL");
    st = rg_dl_prepare(d, err);
    if (st != RG_OK) return st;
    if (d->g && d->g != group)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_diloco_start: started in another group; rg_diloco_stop() first");
    if (d->g) rg_dl_before_repair(d);
    d->q_open = 0; /* its rounds end with the reduction, which is made anew */
    if (!d->g) {
        st = make_codecs(d, group, err);
        if (st != RG_OK) return st;
    }
    rg_info_t info = RG_INFO_INIT;
    st = rg_group_info(group, &info);
    if (st != RG_OK) return rg_fail(err, st, 0, "rg_diloco_start: %s", rg_strerror(st));
    rg_group_t *had = d->g;
    char text[256] = "";
    d->g = group;
    d->world = info.world_size;
    d->rank = info.rank;
    st = rg_dl_sync(d, text, sizeof text);
    if (st == RG_OK && d->q) st = rg_dl_realign(d, text, sizeof text); /* a repair */
    if (st != RG_OK) {
        rg_diloco_stop(d);
        return rg_fail(err, st, 0, "rg_diloco_start: %s", text);
    }
    st = rg_dl_quorum_begin(d, err);
    if (st != RG_OK) {
        rg_diloco_stop(d);
        return st;
    }
    if (d->c.serve != RG_OFF && had != group) {
        rg_state_serve_end(d->state);
        st = rg_state_serve(group, d->state, NULL);
        if (st != RG_OK) {
            rg_diloco_stop(d);
            return rg_fail(err, st, 0, "rg_diloco_start: the anchor cannot be served: %s; serve = RG_OFF does without",
                           rg_strerror(st));
        }
    }
    if (d->late && d->step) { /* the others have just sent a round, or are in this place too */
        memset(d->d, 0, (size_t)d->most * sizeof *d->d);
        rg_dl_send(d, 0, 1, RG_DL_EMPTY);
    }
    return RG_OK;
}

rg_status_t rg_diloco_join(rg_diloco_t *d, const rg_config_t *config, rg_group_t **out, rg_error_t *err) {
    rg_status_t st = rg_dl_whole(d, "rg_diloco_join", err);
    if (st != RG_OK) return st;
    if (!out) return rg_fail(err, RG_ERR_INVALID, 0, "rg_diloco_join: out is NULL; pass the address of a pointer");
    st = rg_dl_prepare(d, err);
    if (st != RG_OK) return st;
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    o.rule = RG_STATE_NEWEST;
    st = rg_state_join(config, d->state, &o, out, &r, err);
    /* What was fetched is not the anchor that this member's parameters began at. */
    if (r.changed || r.pieces_received) d->fetched = 1;
    if (st != RG_OK) return st;
    st = rg_diloco_start(d, *out, err);
    if (st == RG_OK) return RG_OK;
    rg_diloco_stop(d);
    rg_group_destroy(*out);
    *out = NULL;
    return st;
}
