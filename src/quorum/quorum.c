/* quorum.c: the public functions of quorum reductions (include/regroup_quorum.h): checks, what a program gives and
 * gets, and what is carried to a next round, which is the member's own affair: what was late is in no result, so it may
 * be given again. It relies on the service's thread for all that concerns others, and must not touch what that owns. */
#include "quorum/known.h"
#include "quorum/quorum.h"

#include "api.h"
#include "assume.h"
#include "config.h"
#include "engine/lifecycle.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_QUORUM 0x51ull
#define WHOLE_MOST 4294967296.0

static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t h = (a ^ b * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 31) * 0x94d049bb133111ebu;
    return h ^ h >> 29;
}

/* ---- Creating ---------------------------------------------------------------------------------------------------- */

static rg_status_t check_config(const rg_quorum_config_t *c, rg_error_t *err) {
    if (c->size != sizeof *c)
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "rg_quorum_create: config is not initialised: use RG_QUORUM_CONFIG_INIT");
    if (c->op != RG_SUM && c->op != RG_AVG)
        return rg_fail(err, RG_ERR_NOTSUP, 0, "rg_quorum_create: op %s: sums and averages are reduced by quorum",
                       rg_op_name(c->op));
    if ((unsigned)c->late > RG_LATE_REJECT)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_quorum_create: late %d: it is DROP, NEXT_ROUND or REJECT", c->late);
    if (c->at_most && c->at_most < c->at_least)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_quorum_create: at_most %u is less than at_least %u", c->at_most,
                       c->at_least);
    if (!rg_numbers_known(c->dtype))
        return rg_fail(err, RG_ERR_NOTSUP, 0,
                       "rg_quorum_create: dtype %s: f16, bf16, f32, f64, and integers of 32 and 64 bits are reduced by "
                       "quorum",
                       rg_dtype_name(c->dtype));
    if (c->op == RG_AVG && rg_numbers_whole(c->dtype))
        return rg_fail(err, RG_ERR_NOTSUP, 0,
                       "rg_quorum_create: there is no average of %s: take the sum and divide by weight_sum",
                       rg_dtype_name(c->dtype));
    if (c->history > 64)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_quorum_create: history %u: 1 to 64 results are kept", c->history);
    if (c->count > UINT64_MAX / 8 / 1024)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_quorum_create: %llu elements are more than any memory",
                       (unsigned long long)c->count);
    return RG_OK;
}

static uint64_t terms_of(const rg_quorum_config_t *c) {
    uint64_t h = mix(c->count, (uint64_t)c->op << 32 | c->history);
    h = mix(h, (uint64_t)c->at_least << 32 | c->at_most);
    h = mix(h, (uint64_t)c->grace_us << 32 | c->max_wait_us);
    h = mix(h, (uint64_t)c->dtype);
    return mix(h, (uint64_t)c->stale_max << 32 | c->takeover_us) | 1;
}

void rg_quorum_free(rg_quorum_t *q) {
    rg_quorum_forget(q);
    rg_gift_put(q->given);
    rg_gift_put(q->mine);
    rg_gift_put(q->carry);
    rg_decided_put(q->result);
    pthread_mutex_destroy(&q->lock);
    free(q->set);
    free(q);
}

/* Where the deciding may be taken over, a result is shown when two members have it: a member that makes a round alone
 * would wait for another one's call. So it is not the default there. Afterwards 0 is never. */
static uint32_t takeover_of(const rg_quorum_config_t *c) {
    if (c->takeover_us == RG_QUORUM_NO_TAKEOVER) return 0;
    if (c->takeover_us) return c->takeover_us;
    return c->at_least == 1 || c->max_wait_us ? 0 : RG_QUORUM_TAKEOVER_US;
}

rg_quorum_t *rg_quorum_new(const rg_quorum_config_t *c) {
    rg_quorum_t *q = calloc(1, sizeof *q);
    if (!q) return NULL;
    pthread_mutex_init(&q->lock, NULL);
    q->c = *c;
    if (!q->c.history) q->c.history = 4;
    if (!q->c.first) q->c.first = 1;
    q->c.takeover_us = takeover_of(c);
    q->bytes = c->count * rg_dtype_size(c->dtype);
    q->terms = terms_of(&q->c);
    q->round = q->c.first;
    q->port.ops = &rg_quorum_port;
    q->tally = (rg_tally_t){ .at_least = c->at_least,
                             .at_most = c->at_most,
                             .grace_ns = c->grace_us * 1000ull,
                             .max_wait_ns = c->max_wait_us * 1000ull };
    q->kept = calloc(q->c.history, sizeof *q->kept);
    if (q->kept) return q;
    rg_quorum_free(q);
    return NULL;
}

/* Of this group: its members, and the name by which they find each other. */
static rg_quorum_t *quorum_of(rg_group_t *h, const rg_quorum_config_t *c) {
    rg_group_t *g = rg_root(h);
    rg_quorum_t *q = rg_quorum_new(c);
    if (!q) return NULL;
    q->port.name = mix(mix(h->set, NAME_QUORUM), c->id);
    rg_lock(g);
    q->self = g->self_id;
    if (h->root && (q->set = malloc((h->n_set + 1) * sizeof *q->set)) != NULL) {
        memcpy(q->set, h->set_ids, h->n_set * sizeof *q->set);
        q->n_set = h->n_set;
    }
    rg_unlock(g);
    if (q->set || !h->root) return q;
    rg_quorum_free(q);
    return NULL;
}

rg_status_t rg_quorum_create(rg_group_t *h, const rg_quorum_config_t *config, rg_quorum_t **out, rg_error_t *err) {
    if (!out || !config) return rg_fail(err, RG_ERR_INVALID, 0, "rg_quorum_create: %s is NULL", out ? "config" : "out");
    *out = NULL;
    rg_status_t st = rg_usable(h);
    if (st != RG_OK) return rg_fail(err, st, 0, "rg_quorum_create: group: %s", rg_strerror(st));
    st = check_config(config, err);
    if (st != RG_OK) return st;
    rg_quorum_t *q = quorum_of(h, config);
    if (!q) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_quorum_create: no memory");
    st = rg_service_add(rg_root(h), &q->port, err);
    if (st != RG_OK) rg_quorum_free(q);
    else *out = q;
    return st;
}

void rg_quorum_destroy(rg_quorum_t *q) {
    if (!q || (!q->port.sv->dead && rg_group_inherited(q->port.sv->g))) return;
    rg_service_remove(&q->port);
    rg_quorum_free(q);
}

/* ---- Giving ------------------------------------------------------------------------------------------------------ */

static rg_status_t refuse(rg_quorum_t *q, rg_status_t st, const char *fmt, ...) {
    rg_group_t *g = q->port.sv->g;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(q->refusal, sizeof q->refusal, fmt, ap);
    va_end(ap);
    rg_lock(g);
    rg_group_set_errmsg(g, "quorum reduction %u: %s", q->c.id, q->refusal);
    rg_unlock(g);
    return st;
}

/* OK while there is a group whose members could decide anything. */
static rg_status_t group_state(rg_quorum_t *q) {
    rg_group_t *g = q->port.sv->g;
    rg_lock(g);
    rg_status_t st = g->phase == RG_PHASE_MEMBER ? RG_OK : g->over != RG_OK ? g->over : RG_ERR_CLOSED;
    rg_unlock(g);
    return st;
}

static rg_status_t usable(rg_quorum_t *q) {
    if (!q) return RG_ERR_INVALID;
    if (q->port.sv->dead) return RG_ERR_CLOSED;
    return rg_group_inherited(q->port.sv->g) ? RG_ERR_CLOSED : RG_OK;
}

/* What this member gives: its input and what it carries, as one. */
static void fill(rg_quorum_t *q, rg_gift_t *g, const void *in) {
    const rg_gift_t *c = q->carry;
    rg_numbers_t block;
    int whole = rg_numbers_whole(q->c.dtype);
    double sum = g->weight + (c ? c->weight : 0);
    if (!c && !whole) {
        RG_ASSUME(in); /* nothing is carried, so there is an input */
        if (q->bytes) memcpy(g->data, in, q->bytes);
        return;
    }
    for (uint64_t i = 0; i < q->c.count; i += RG_NUMBERS) {
        uint64_t n = q->c.count - i < RG_NUMBERS ? q->c.count - i : RG_NUMBERS;
        rg_numbers_clear(&block);
        if (g->weight > 0) rg_numbers_add(q->c.dtype, &block, in, i, n, g->weight);
        if (c) rg_numbers_add(q->c.dtype, &block, c->data, i, n, whole ? 1 : c->weight);
        rg_numbers_put(q->c.dtype, &block, g->data, i, n, sum);
    }
    if (c && (g->weight <= 0 || c->version < g->version)) g->version = c->version;
    g->weight = sum;
}

static int too_old(const rg_quorum_t *q, uint64_t version) {
    return q->c.stale_max && version < q->round && q->round - version > q->c.stale_max;
}

rg_status_t rg_quorum_begin(rg_quorum_t *q, const void *in, const rg_quorum_input_t *input) {
    static const rg_quorum_input_t plain = RG_QUORUM_INPUT_INIT;
    const rg_quorum_input_t *i = input ? input : &plain;
    rg_status_t st = usable(q);
    if (st != RG_OK) return st;
    if (i->size != sizeof *i) return refuse(q, RG_ERR_INVALID, "input is not initialised: use RG_QUORUM_INPUT_INIT");
    if (q->begun) {
        st = group_state(q);
        if (st != RG_OK) return refuse(q, st, "the group is over for this process");
        return refuse(q, RG_ERR_INVALID, "round %llu was begun; take its result with rg_quorum_wait first",
                      (unsigned long long)q->round);
    }
    double weight = !in ? 0 : i->weighted ? i->weight : 1;
    if (weight != 0 && !rg_quorum_weight_ok(weight))
        return refuse(q, RG_ERR_INVALID, "weight %g: it must be 0, or from %g to %g", weight, RG_QUORUM_WEIGHT_MIN,
                      RG_QUORUM_WEIGHT_MAX);
    if (rg_numbers_whole(q->c.dtype) && (weight != floor(weight) || weight > WHOLE_MOST))
        return refuse(q, RG_ERR_INVALID, "weight %g: of integers it must be a whole number, at most 2^32", weight);
    uint64_t version = i->version ? i->version : q->round - 1;
    if (too_old(q, version)) weight = 0;
    if (q->carry && too_old(q, q->carry->version)) {
        rg_gift_put(q->carry);
        q->carry = NULL;
    }
    if (q->carry && !rg_quorum_weight_ok(weight + q->carry->weight))
        return refuse(q, RG_ERR_INVALID, "weight %g, with that of the late input that is added: it may be %g at most",
                      weight + q->carry->weight, RG_QUORUM_WEIGHT_MAX);
    rg_gift_t *g = rg_gift_new(q->round, weight > 0 || q->carry ? q->bytes : 0);
    if (!g) return refuse(q, RG_ERR_NOMEM, "no memory for a copy of the input; free some and call again");
    g->weight = weight;
    g->version = version;
    if (weight > 0 || q->carry) fill(q, g, in);
    q->begun = 1;
    q->mine = g;
    atomic_store(&q->done, 0);
    atomic_fetch_add(&g->refs, 1);
    pthread_mutex_lock(&q->lock);
    rg_gift_put(q->given); /* of a round that ended with the group, before the thread saw it */
    q->given = g;
    q->text[0] = 0;
    pthread_mutex_unlock(&q->lock);
    rg_service_wake(&q->port);
    return RG_OK;
}

/* ---- Taking ------------------------------------------------------------------------------------------------------ */

static void fill_result(const rg_quorum_t *q, const rg_decided_t *d, rg_quorum_result_t *r) {
    r->round = d->round;
    r->decided_by = d->decider;
    r->waited_ns = d->waited_ns;
    r->weight_sum = d->weight_sum;
    for (uint32_t i = 0; i < d->n; i++) {
        const rg_qentry_t *e = &d->e[i];
        if (e->contributes) {
            if (!r->contributors || e->version < r->version_min) r->version_min = e->version;
            if (e->version > r->version_max) r->version_max = e->version;
            if (r->contributor_ids && r->contributors < r->contributor_cap) r->contributor_ids[r->contributors] = e->id;
            r->contributors++;
            if (e->id == q->self) r->included = 1;
        } else if (!e->came) {
            if (r->late_ids && r->late < r->late_cap) r->late_ids[r->late] = e->id;
            r->late++;
        }
    }
}

/* The round is over for this member. What it gave, and is in no result, is carried if it is to be: what it carried
 * before is part of it. */
static void end_round(rg_quorum_t *q, int included, int decided) {
    int carries = decided && !included && q->mine->weight > 0 && q->c.late == RG_LATE_NEXT_ROUND;
    if (decided) {
        rg_gift_put(q->carry);
        q->carry = NULL;
    }
    if (carries) q->carry = q->mine;
    else rg_gift_put(q->mine);
    q->mine = NULL;
    q->begun = q->rejected = 0;
}

/* A result is there, or the reason why there is none. */
static rg_status_t take(rg_quorum_t *q, void *out, rg_quorum_result_t *r) {
    pthread_mutex_lock(&q->lock);
    rg_decided_t *d = q->result;
    rg_status_t st = q->status;
    q->result = NULL;
    r->newest = q->newest;
    snprintf(r->text, sizeof r->text, "%s", q->text);
    pthread_mutex_unlock(&q->lock);
    if (d) fill_result(q, d, r);
    if (d && st == RG_OK && !r->included && q->mine->weight > 0 && q->c.late == RG_LATE_REJECT && !q->rejected) {
        pthread_mutex_lock(&q->lock); /* to be had by waiting again */
        q->result = d;
        pthread_mutex_unlock(&q->lock);
        q->rejected = 1;
        snprintf(r->text, sizeof r->text, "round %llu was decided without this member, which was late",
                 (unsigned long long)q->round);
        return RG_ERR_TIMEOUT;
    }
    if (d && st == RG_OK && q->bytes) memcpy(out, d->data, q->bytes);
    end_round(q, (int)r->included || !d, d != NULL || st == RG_ERR_RESOURCE);
    r->carried = q->carry != NULL && d != NULL && !r->included;
    if (d) q->round++;
    rg_decided_put(d);
    return st;
}

static int is_done(void *arg) { return atomic_load(&((rg_quorum_t *)arg)->done); }

static rg_status_t check_take(rg_quorum_t *q, const void *out, const rg_quorum_result_t *result) {
    rg_status_t st = usable(q);
    if (st != RG_OK) return st;
    if (result && result->size != sizeof *result)
        return refuse(q, RG_ERR_INVALID, "result is not initialised: use RG_QUORUM_RESULT_INIT");
    if (!q->begun) return refuse(q, RG_ERR_INVALID, "no round was begun: call rg_quorum_begin or rg_quorum_reduce");
    if (!out && q->bytes) return refuse(q, RG_ERR_INVALID, "out is NULL");
    return RG_OK;
}

/* Hands over what the caller did not give itself. */
static rg_status_t hand_over(rg_quorum_t *q, rg_status_t st, rg_quorum_result_t *r, rg_quorum_result_t *result) {
    rg_quorum_result_t none;
    r->status = st;
    if (!result) result = &none;
    if (st < 0) {
        rg_group_t *g = q->port.sv->g;
        if (!r->text[0]) snprintf(r->text, sizeof r->text, "%s", rg_strerror(st));
        rg_lock(g);
        rg_group_set_errmsg(g, "quorum reduction %u, round %llu: %s", q->c.id, (unsigned long long)r->round, r->text);
        rg_unlock(g);
    }
    *result = *r;
    return st;
}

static rg_quorum_result_t begin_result(const rg_quorum_t *q, const rg_quorum_result_t *result) {
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    r.round = q->round;
    if (result) {
        r.contributor_ids = result->contributor_ids;
        r.contributor_cap = result->contributor_cap;
        r.late_ids = result->late_ids;
        r.late_cap = result->late_cap;
    }
    return r;
}

rg_status_t rg_quorum_wait(rg_quorum_t *q, void *out, uint32_t timeout_ms, rg_quorum_result_t *result) {
    rg_status_t st = check_take(q, out, result);
    if (st != RG_OK) return st;
    rg_quorum_result_t r = begin_result(q, result);
    uint32_t ms = timeout_ms ? timeout_ms : q->port.sv->g->cfg.op_timeout_ms;
    st = rg_service_wait(&q->port, is_done, q, rg_os_now_ns() + ms * 1000000ull);
    if (is_done(q)) {
        st = take(q, out, &r);
    } else if (st == RG_OK) {
        st = RG_ERR_TIMEOUT;
        snprintf(r.text, sizeof r.text,
                 "not decided within %u ms, for lack of contributors or of the first member, which decides; what was "
                 "given counts: call rg_quorum_wait again, now or later, or destroy the reduction to do without it",
                 ms);
    } else {
        end_round(q, 0, 0);
    }
    return hand_over(q, st, &r, result);
}

rg_status_t rg_quorum_test(rg_quorum_t *q, void *out, rg_quorum_result_t *result) {
    rg_status_t st = check_take(q, out, result);
    if (st != RG_OK) return st;
    rg_quorum_result_t r = begin_result(q, result);
    st = is_done(q) ? take(q, out, &r) : RG_AGAIN;
    return hand_over(q, st, &r, result);
}

rg_status_t rg_quorum_reduce(rg_quorum_t *q, const void *in, void *out, const rg_quorum_input_t *input,
                             uint32_t timeout_ms, rg_quorum_result_t *result) {
    rg_status_t st = usable(q);
    if (st != RG_OK) return st;
    if (result && result->size != sizeof *result)
        return refuse(q, RG_ERR_INVALID, "result is not initialised: use RG_QUORUM_RESULT_INIT");
    if (!out && q->bytes) return refuse(q, RG_ERR_INVALID, "out is NULL");
    st = rg_quorum_begin(q, in, input);
    if (st == RG_OK) return rg_quorum_wait(q, out, timeout_ms, result);
    rg_quorum_result_t r = begin_result(q, result);
    snprintf(r.text, sizeof r.text, "%s", q->refusal);
    return hand_over(q, st, &r, result);
}

rg_status_t rg_quorum_seek(rg_quorum_t *q, uint64_t round) {
    rg_status_t st = usable(q);
    if (st != RG_OK) return st;
    if (!round || q->begun)
        return refuse(q, RG_ERR_INVALID, round ? "a round was begun; take its result first" : "rounds begin at 1");
    q->round = round;
    rg_gift_put(q->carry);
    q->carry = NULL;
    return RG_OK;
}

uint64_t rg_quorum_known(rg_quorum_t *q) {
    pthread_mutex_lock(&q->lock);
    uint64_t newest = q->newest;
    pthread_mutex_unlock(&q->lock);
    return newest;
}
