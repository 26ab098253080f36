/* step.c: what happens after a step of the program: a share is sent when the schedule says so, what has come back is
 * merged when it is due, and newcomers enter where nothing is in flight. Anchor, momentum and version are written in
 * one place, rg_dl_settle() being the last line of it, when everything that is to be written is known to be right.
 * Relies on rounds ending alike on all members. It must not wait for anything outside of rounds, boundaries and syncs.
 */
#include "diloco/internal.h"

#include "assume.h"
#include "config.h"
#include "os/os.h"
#include "quorum/known.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define LOOK_MS 1000 /* for the result of a round that others have taken in already */

void rg_dl_pieces(rg_diloco_t *d, uint32_t p, rg_dl_piece_fn fn, void *arg) {
    const rg_dl_fragment_t *f = &d->fragment[p];
    uint64_t at = f->at;
    for (uint32_t i = f->first_piece; i < f->first_piece + f->pieces; i++) {
        const rg_pack_piece_t *piece = &d->piece[i];
        fn(d, at, d->tensor[piece->tensor].data + piece->first, piece->count, arg);
        at += piece->count;
    }
}

uint64_t rg_dl_hash(const rg_diloco_t *d, uint32_t p) {
    const rg_dl_fragment_t *f = &d->fragment[p];
    size_t bytes = (size_t)f->count * sizeof(float);
    uint64_t h[4] = { XXH3_64bits(d->anchor + f->at, bytes), XXH3_64bits(d->buf + f->at, bytes),
                      d->acc ? XXH3_64bits(d->acc + f->at, bytes) : 0,
                      XXH3_64bits(rg_dl_meta(d, p), sizeof(rg_dl_meta_t)) };
    return XXH3_64bits(h, sizeof h);
}

/* Of all that members must have alike in a round: place in the schedule and configuration too. */
static uint64_t round_hash(const rg_diloco_t *d, uint32_t p) {
    const rg_dl_fragment_t *f = &d->fragment[p];
    const rg_diloco_config_t *c = &d->c;
    uint64_t h[4] = { rg_dl_hash(d, p), p, f->count, d->q ? d->q_next : d->step };
    float numbers[] = { c->lr, c->momentum, c->blend, c->clip };
    uint32_t words[] = { c->variant, c->every,           d->n,      c->overlap, c->momentum_every, c->weight, c->wire,
                         c->topk,    (uint32_t)f->merge, c->quorum, c->grace_ms };
    uint64_t config = XXH3_64bits_withSeed(numbers, sizeof numbers, XXH3_64bits(words, sizeof words));
    return XXH3_64bits_withSeed(h, sizeof h, config);
}

/* ---- Sending ------------------------------------------------------------------------------------------------ */

typedef struct measure {
    float *to;
    uint64_t from;
    int finite;
} measure_t;

static void measure(rg_diloco_t *d, uint64_t at, float *local, uint64_t n, void *arg) {
    measure_t *m = arg;
    m->finite &= rg_outer_delta(d->anchor + at, d->off ? d->off + at : NULL, local, NULL, n, m->to + (at - m->from));
}

/* D of fragment p, to `to`. Whether it is finite. */
static int delta(rg_diloco_t *d, uint32_t p, float *to) {
    measure_t m = { to, d->fragment[p].at, 1 };
    rg_dl_pieces(d, p, measure, &m);
    return m.finite;
}

void rg_dl_send(rg_diloco_t *d, uint32_t p, int finite, int how) {
    const rg_dl_fragment_t *f = &d->fragment[p];
    uint64_t tokens = how & RG_DL_EMPTY ? 0 : f->tokens, steps = how & RG_DL_EMPTY ? 0 : f->steps;
    const float *kept = d->kept ? rg_dl_kept(f->z, f->top, f->count) : NULL;
    if (kept) memcpy(d->kept + f->at, kept, (size_t)f->count * sizeof *kept);
    d->round = (rg_dl_round_t){ .g = d->g,
                                .z = f->z,
                                .top = f->top,
                                .q = how & RG_DL_ALL ? NULL : d->q,
                                .q_count = d->most + 1,
                                .tag = d->c.tag,
                                .timeout_ms = d->c.timeout_ms,
                                .merge = f->merge,
                                .finite = finite,
                                .taken = d->late && finite && !(how & RG_DL_HERE),
                                .hash = round_hash(d, p),
                                .tokens = tokens,
                                .steps = steps,
                                .weight = rg_outer_weight((int)d->c.weight, tokens, steps),
                                .d = d->d,
                                .scaled = d->scaled,
                                .avg = d->avg,
                                .kept = d->kept ? d->kept + f->at : NULL,
                                .n = f->count,
                                .between = d->between,
                                .between_arg = d->between_arg };
    d->flying = p;
    d->sent_at = d->step;
    rg_dl_launch(d, (how & RG_DL_HERE) != 0);
}

/* What was given to a round that is not decided yet is asked for once more. */
void rg_dl_send_again(rg_diloco_t *d, int how) {
    d->flying = d->open;
    d->sent_at = d->step;
    d->round.again = 1;
    rg_dl_launch(d, (how & RG_DL_HERE) != 0);
}

/* ---- Merging ------------------------------------------------------------------------------------------------ */

typedef struct blend {
    float alpha;
} blend_t;

static void blend(rg_diloco_t *d, uint64_t at, float *local, uint64_t n, void *arg) {
    const blend_t *b = arg;
    rg_outer_blend(local, d->anchor + at, d->off ? d->off + at : NULL, b->alpha, n);
}

void rg_dl_adopt(rg_diloco_t *d, uint32_t p, float alpha) {
    blend_t b = { alpha };
    rg_dl_pieces(d, p, blend, &b);
}

void rg_dl_settle(rg_diloco_t *d) {
    rg_state_touch(d->state, "diloco.shared", 0, 1);
    d->shared[0] = d->step;
    rg_state_set_revision(d->state, d->step + 1);
}

/* Said before it is written, for newcomers that are fetching it. No such tensor: nothing. */
static void touch(rg_diloco_t *d, const char *what, uint32_t p) {
    char name[64];
    snprintf(name, sizeof name, "diloco.%s.%u", what, p);
    rg_state_touch(d->state, name, 0, d->fragment[p].count);
}

/* What this member has to say stays in its parameters while the anchor moves. */
static void move_along(rg_diloco_t *d, uint64_t at, float *local, uint64_t n, void *arg) {
    (void)arg;
    const float *next = d->theta_next + (at - d->fragment[d->moving].at), *now = d->anchor + at;
    for (uint64_t i = 0; i < n; i++) local[i] += next[i] - now[i];
}

/* Everything is computed beside what is there; then all of it takes its place, or nothing does. */
static int outer_step(rg_diloco_t *d, uint32_t p, int shift) {
    const rg_dl_fragment_t *f = &d->fragment[p];
    rg_dl_meta_t *m = rg_dl_meta(d, p), now = *m;
    float *acc = d->acc ? d->acc + f->at : NULL;
    rg_outer_place_t at = { d->anchor + f->at, d->buf + f->at, acc, d->theta_next, d->buf_next, d->acc_next };
    if (!rg_outer_step(&d->outer, &at, d->avg, f->count, (uint32_t)m->arrivals, rg_outer_gap(m->way, m->usual)))
        return 0;
    size_t bytes = (size_t)f->count * sizeof(float);
    now.version++;
    now.arrivals = (m->arrivals + 1) % d->c.momentum_every;
    if (d->outer.heavy) {
        now.way = rg_outer_distance(d->theta_next, d->anchor + f->at, f->count);
        now.usual = m->version ? (m->usual + now.way) / 2 : now.way;
    }
    if (shift) rg_dl_pieces(d, p, move_along, NULL);
    touch(d, "anchor", p);
    touch(d, "momentum", p);
    touch(d, "arrivals", p);
    rg_state_touch(d->state, "diloco.shared", 0, 1 + d->n * (sizeof now / sizeof(uint64_t)));
    memcpy(d->anchor + f->at, d->theta_next, bytes);
    memcpy(d->buf + f->at, d->buf_next, bytes);
    if (acc) memcpy(acc, d->acc_next, bytes);
    *m = now;
    rg_dl_settle(d);
    return 1;
}

/* What is in flight, or given to a round that is not decided yet, is still this member's word. */
void rg_dl_forget(rg_diloco_t *d) {
    for (uint32_t p = 0; p < d->n; p++) {
        rg_dl_fragment_t *f = &d->fragment[p];
        int flies = d->flying == (int64_t)p || (d->q_open && d->open == (int64_t)p);
        rg_dl_adopt(d, p, 0);
        f->tokens = flies ? d->round.tokens : 0;
        f->steps = flies ? d->round.steps : 0;
    }
    if (d->carry) memset(d->carry, 0, (size_t)d->elements * sizeof *d->carry);
}

static void note(rg_diloco_result_t *r, rg_status_t st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void note(rg_diloco_result_t *r, rg_status_t st, const char *fmt, ...) {
    va_list ap;
    if (r->status != RG_OK) return; /* the first cause */
    r->status = st;
    va_start(ap, fmt);
    vsnprintf(r->text, sizeof r->text, fmt, ap);
    va_end(ap);
}

/* Error feedback of a round whose result could not be used goes back, as if it had not been. */
static void feedback_back(rg_diloco_t *d, uint32_t p) {
    const rg_dl_fragment_t *f = &d->fragment[p];
    float *kept = d->kept ? rg_dl_kept(f->z, f->top, f->count) : NULL;
    if (kept) memcpy(kept, d->kept + f->at, (size_t)f->count * sizeof *kept);
}

/* Waits for what is in flight and takes it in. What a late round took out of the parameters and did not bring home is
 * kept for the next one. */
void rg_dl_take_in(rg_diloco_t *d, rg_diloco_result_t *res) {
    uint32_t p = (uint32_t)d->flying;
    d->moving = p;
    rg_dl_fragment_t *f = &d->fragment[p];
    const rg_dl_round_t *r = &d->round;
    rg_dl_land(d);
    d->flying = -1;
    rg_status_t st = r->st;
    res->retries += r->retries;
    if (r->q && st == RG_ERR_TIMEOUT) { /* it may still be decided */
        d->q_open = 1;
        d->open = p;
        d->failed++;
        note(res, st,
             "round %llu (step %llu) was not decided in time, and is asked for again: fewer than %u members have come "
             "to it. Programs end by rg_diloco_stats_t.steps: a slow member's steps are more than its calls",
             (unsigned long long)d->q_next, (unsigned long long)d->step, d->c.quorum);
        return;
    }
    if (st != RG_OK) note(res, st, "%s", r->text);
    /* Of a late round the parameters have gone on since it was sent, from an anchor that moves now. Mostly they become
     * the new one's next; where they do not, they still say the same. */
    else if (r->contributors && !outer_step(d, p, d->late || !r->included)) {
        st = RG_ERR_INVALID;
        feedback_back(d, p);
        note(res, st, "fragment %u: the outer step would not be finite; a smaller lr, or fewer steps between rounds",
             p);
    }
    if (r->q && r->decided) { /* be it as a failure */
        rg_dl_quorum_passed(d);
        if (st == RG_OK) rg_dl_settle(d);
    }
    if (st != RG_OK) {
        d->failed++;
        for (uint64_t i = 0; r->taken && i < f->count; i++) d->carry[f->at + i] += r->d[i];
        return;
    }
    if (!r->contributors) return; /* nobody has anything to say */
    if (r->included) {
        f->tokens -= r->tokens;
        f->steps -= r->steps;
    }
    res->contributors = r->contributors;
    res->tokens = r->all_tokens;
    res->weight = r->all_weight;
    res->version = rg_dl_meta(d, p)->version;
    res->merged = p + 1;
    if (!d->late && r->included) rg_dl_adopt(d, p, d->c.blend);
}

/* Where newcomers enter. */
static void boundary(rg_diloco_t *d, rg_diloco_result_t *res) {
    rg_change_t at = RG_CHANGE_INIT;
    char text[256] = "";
    rg_status_t st = rg_group_boundary(d->g, &at);
    if (st != RG_OK) {
        rg_group_errmsg(d->g, text, sizeof text);
        note(res, st, "boundary: %s", text);
        return;
    }
    d->world = at.world_size;
    d->rank = at.rank;
    res->joined = at.joined;
    res->lost = at.lost;
    if (!at.joined) return;
    rg_dl_settle(d);
    st = rg_dl_sync(d, text, sizeof text);
    if (st != RG_OK) note(res, st, "bringing newcomers up to date: %s", text);
}

/* ---- Late rounds -------------------------------------------------------------------------------------------- */

/* Eager: this member's own share moves its parameters at once. Whether that is finite; else nothing is changed. */
static int own_share(rg_diloco_t *d, const float *share) {
    rg_outer_place_t at = { d->off, d->offbuf, NULL, d->theta_next, d->buf_next, NULL };
    rg_outer_eager(share, d->world, d->said, d->elements, d->acc_next, d->scaled);
    if (!rg_outer_step(&d->outer, &at, d->scaled, d->elements, 0, 1)) return 0;
    size_t bytes = (size_t)d->elements * sizeof(float);
    memcpy(d->off, d->theta_next, bytes);
    memcpy(d->offbuf, d->buf_next, bytes);
    memcpy(d->said, d->acc_next, bytes);
    return 1;
}

/* D is measured from the anchor that the steps began at; then the round before comes in, and moves it. */
static int late_share(rg_diloco_t *d, rg_diloco_result_t *res, int enter) {
    int finite = delta(d, 0, d->d2);
    if (d->flying >= 0) rg_dl_take_in(d, res);
    if (enter) boundary(d, res);
    float *t = d->d;
    d->d = d->d2;
    d->d2 = t;
    for (uint64_t i = 0; finite && i < d->elements; i++) d->d[i] += d->carry[i];
    for (uint64_t i = 0; finite && i < d->elements; i++) finite = isfinite(d->d[i]) != 0; /* both were, each alone */
    return finite;
}

static int group_is_over(rg_status_t st) {
    return st == RG_ERR_EXPELLED || st == RG_ERR_ABORTED || st == RG_ERR_CLOSED || st == RG_ERR_NO_QUORUM ||
           st == RG_ERR_BUG;
}

/* Takes in the rounds up to `last` that were decided while this member was slow, or that others have begun: a share
 * that was given is asked for again, else this member has nothing to say. Each is followed by the boundary that the
 * others passed after it. Those that were decided as failures are told of in `rounds`, what keeps this member from
 * going on in `res`. */
static void catch_up(rg_diloco_t *d, uint64_t last, rg_diloco_result_t *rounds, rg_diloco_result_t *res) {
    while (d->q_next <= last && !group_is_over(res->status)) {
        uint64_t next = d->q_next;
        if (d->q_open) rg_dl_send_again(d, RG_DL_HERE);
        else rg_dl_send(d, (uint32_t)((next - 1) % d->n), 1, RG_DL_HERE | RG_DL_EMPTY);
        rg_dl_take_in(d, rounds);
        if (d->q_next == next) {
            note(res, d->round.st, "%s", d->round.text);
            return;
        }
        boundary(d, res);
    }
}

static void late_step(rg_diloco_t *d, rg_diloco_result_t *res) {
    int finite = late_share(d, res, 1);
    if (group_is_over(res->status)) return; /* parameters and what they have not said stay as they are */
    if (finite && d->eager) finite = own_share(d, d->d);
    if (finite) {
        memset(d->carry, 0, (size_t)d->elements * sizeof *d->carry);
        rg_dl_adopt(d, 0, 0);
    }
    res->sent = 1;
    rg_dl_send(d, 0, finite, 0);
}

/* ---- Calls -------------------------------------------------------------------------------------------------- */

static rg_status_t begin(rg_diloco_t *d, rg_diloco_result_t *result, rg_diloco_result_t *res) {
    if (rg_struct_check(result, sizeof *result, "rg_diloco_result", NULL) != RG_OK) return RG_ERR_INVALID;
    *res = (rg_diloco_result_t)RG_DILOCO_RESULT_INIT;
    if (d && d->forks != rg_os_forks()) { /* what is in flight would be waited for, and its thread is not here */
        note(res, RG_ERR_CLOSED, "this process was forked from the member, which alone may use the handle");
        rg_struct_out(result, res, sizeof *res, sizeof *res);
        return RG_ERR_CLOSED;
    }
    if (d && d->g) return RG_OK;
    note(res, RG_ERR_INVALID, "%s", d ? "not started: call rg_diloco_start() first" : "d is NULL");
    rg_struct_out(result, res, sizeof *res, sizeof *res);
    return RG_ERR_INVALID;
}

static rg_status_t end(rg_diloco_t *d, rg_diloco_result_t *result, rg_diloco_result_t *res, uint64_t since) {
    res->world_size = d->world;
    res->rank = d->rank;
    res->wait_ns = rg_os_now_ns() - since;
    d->wait_ns += res->wait_ns;
    rg_struct_out(result, res, sizeof *res, sizeof *res);
    return res->status;
}

rg_status_t rg_diloco_step(rg_diloco_t *d, uint64_t tokens, rg_diloco_result_t *result) {
    rg_diloco_result_t res;
    uint64_t since = rg_os_now_ns();
    rg_status_t st = begin(d, result, &res);
    if (st != RG_OK) return st;
    RG_ASSUME(d->n); /* what was started has a fragment */
    d->step++;
    for (uint32_t p = 0; p < d->n; p++) {
        uint64_t room = UINT64_MAX - d->fragment[p].tokens;
        d->fragment[p].tokens += tokens < room ? tokens : room;
        d->fragment[p].steps++;
    }
    int merged = 0;
    if (!d->late && d->flying >= 0 && d->step >= d->sent_at + d->c.overlap) {
        rg_dl_take_in(d, &res);
        merged = 1;
    }
    int64_t due = rg_outer_due(d->step, d->c.every, d->n);
    if (due >= 0 && d->q) due = d->q_open ? d->open : (int64_t)((d->q_next - 1) % d->n);
    if (due >= 0 && d->late) late_step(d, &res);
    else if (due >= 0) {
        int how = d->c.overlap == 0 ? RG_DL_HERE : 0;
        if (d->q_open) rg_dl_send_again(d, how);
        else rg_dl_send(d, (uint32_t)due, delta(d, (uint32_t)due, d->d), how);
        res.sent = (uint32_t)due + 1;
        if (d->c.overlap == 0) {
            rg_dl_take_in(d, &res);
            merged = 1;
        }
    }
    if (merged && d->flying < 0 && !d->q_open) {
        boundary(d, &res);
        if (d->q) catch_up(d, d->round.newest, &res, &res);
    }
    return end(d, result, &res, since);
}

/* A round that was decided after this member's time was over is taken in, with the boundary that the others passed
 * after it: operations meet only between the same boundaries. Its result is mostly here by now. One that nobody has
 * decided is not waited for. */
static void look_again(rg_diloco_t *d, rg_diloco_result_t *before, rg_diloco_result_t *res) {
    d->round.timeout_ms = LOOK_MS;
    rg_dl_send_again(d, RG_DL_HERE);
    rg_dl_take_in(d, before);
    d->round.timeout_ms = d->c.timeout_ms;
    if (!d->q_open) boundary(d, res);
}

/* Before a repair whatever is known to be decided is taken in, and its boundary passed, also by one that has made fewer
 * steps: all members are between the same boundaries then. */
void rg_dl_before_repair(rg_diloco_t *d) {
    rg_diloco_result_t before = RG_DILOCO_RESULT_INIT;
    if (d->flying >= 0) {
        rg_dl_take_in(d, &before);
        if (d->q && !d->q_open) boundary(d, &before);
    }
    if (!d->q) return;
    if (d->q_open) look_again(d, &before, &before);
    catch_up(d, rg_quorum_known(d->q), &before, &before);
}

/* Operations are counted from the boundary: those who pass it together begin together, whatever failed before. */
rg_status_t rg_dl_realign(rg_diloco_t *d, char *text, size_t cap) {
    rg_diloco_result_t res = RG_DILOCO_RESULT_INIT;
    boundary(d, &res);
    snprintf(text, cap, "%s", res.text);
    return res.status;
}

/* All members come to the round that the first of them has begun. 0: they do not know which it is, all alike. One that
 * cannot come so far says why; the others learn of it from the rounds that follow, for its place is another one. */
static int meet(rg_diloco_t *d, rg_diloco_result_t *before, rg_diloco_result_t *res) {
    if (d->q_open) look_again(d, before, res);
    catch_up(d, rg_quorum_known(d->q), before, res);
    uint64_t mine = d->q_open ? d->q_next : d->q_next - 1, last = 0;
    rg_opts_t o = RG_OPTS_INIT;
    o.tag = d->c.tag;
    o.timeout_ms = d->c.timeout_ms;
    rg_status_t st = rg_all_reduce(d->g, &mine, &last, 1, RG_U64, RG_MAX, &o, NULL);
    if (st != RG_OK) {
        char text[256] = "";
        rg_group_errmsg(d->g, text, sizeof text);
        note(res, st, "%.160s; all come to a flush by quorum at the same rg_diloco_stats_t.steps", text);
        return 0;
    }
    catch_up(d, last, before, res);
    return 1;
}

/* One round of fragment p, by all members. before: what is said of the late round that comes in first. */
static void flush_round(rg_diloco_t *d, uint32_t p, rg_diloco_result_t *before, rg_diloco_result_t *res) {
    int finite = d->late ? late_share(d, before, 0) : delta(d, p, d->d);
    if (group_is_over(before->status)) return; /* what is not said stays as it is */
    rg_dl_send(d, p, finite, RG_DL_HERE | RG_DL_ALL);
    res->sent = p + 1;
    uint64_t failed = d->failed;
    rg_dl_take_in(d, res);
    if (d->failed != failed) return;
    if (d->late) memset(d->carry, 0, (size_t)d->elements * sizeof *d->carry);
    if (d->eager) {
        size_t bytes = (size_t)d->elements * sizeof(float);
        memset(d->off, 0, bytes);
        memset(d->offbuf, 0, bytes);
        memset(d->said, 0, bytes);
    }
    rg_dl_adopt(d, p, 0);
}

/* What was in flight and failed, or is out of time here alone, has lost nothing: the rounds of all members say it. So
 * it does not count as this call's failure, which is the same on all members. */
rg_status_t rg_diloco_flush(rg_diloco_t *d, rg_diloco_result_t *result) {
    rg_diloco_result_t res, before = RG_DILOCO_RESULT_INIT;
    uint64_t since = rg_os_now_ns();
    rg_status_t st = begin(d, result, &res);
    if (st != RG_OK) return st;
    if (!d->late && d->flying >= 0) {
        rg_dl_take_in(d, &before);
        if (d->q && !d->q_open) boundary(d, &res);
    }
    int met = !d->q || meet(d, &before, &res);
    for (uint32_t p = 0; met && p < d->n && !group_is_over(res.status) && !group_is_over(before.status); p++)
        flush_round(d, p, &before, &res);
    if (group_is_over(before.status)) note(&res, before.status, "%s", before.text);
    res.retries += before.retries;
    return end(d, result, &res, since);
}

rg_status_t rg_diloco_reset(rg_diloco_t *d) {
    if (!d || !d->prepared) return RG_ERR_INVALID;
    rg_dl_forget(d);
    return RG_OK;
}
