/* sync.c: rg_state_sync(): the order of things. Members compare, learn where they differ, and move pieces until nobody
 * wants any; when one is lost they compare again with those that are left. Every decision follows from what an
 * operation gave all of them alike, so all end alike. Relies on compare.c and rounds.c. */
#include "state/sync.h"

#include "api.h"
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPARISONS 4096u /* each but the first is for a lost member, so this is never reached */

rg_status_t rg_sync_fail(rg_sync_t *x, rg_status_t st, uint32_t blame, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x->r.text, sizeof x->r.text, fmt, ap);
    va_end(ap);
    if (blame < x->n) x->r.lost_member = x->ids[blame];
    return st;
}

/* Another thread that asks for information may be told of a loss before this call is: then the shapes did not fit, and
 * members compare again. */
rg_status_t rg_sync_ended(rg_sync_t *x, rg_status_t st) {
    if (st == RG_OK)
        return x->n && x->op_result.contributors && x->op_result.contributors != x->n ? RG_ERR_PEER_LOST : st;
    if (x->op_result.status == st && x->op_result.text[0])
        snprintf(x->r.text, sizeof x->r.text, "%s", x->op_result.text);
    else rg_group_errmsg(x->g, x->r.text, sizeof x->r.text);
    x->r.lost_member = x->op_result.lost_member;
    if (st == RG_ERR_PEER_LOST || x->n == 0) return st;
    rg_info_t info = RG_INFO_INIT;
    if (st == RG_ERR_MISMATCH && rg_group_info(x->g, &info) == RG_OK && info.world_size < x->n) return RG_ERR_PEER_LOST;
    return st;
}

static rg_status_t sync_once(rg_sync_t *x) {
    int any = 1;
    rg_status_t st = rg_sync_compare(x);
    if (st != RG_OK) return st;
    x->m = 0;
    x->known = 0;
    if (x->c.receivers == 0) return rg_sync_commit(x);
    st = rg_sync_learn(x);
    while (st == RG_OK) {
        st = rg_sync_wanted(x, &any);
        if (st != RG_OK) break;
        if (!any) return rg_sync_commit(x);
        st = rg_sync_move(x);
    }
    return st;
}

static rg_status_t run(rg_sync_t *x) {
    uint64_t start = rg_os_now_ns();
    rg_state_hash(x->s, x->o.touched_only == RG_ON);
    x->r.hash_ns = rg_os_now_ns() - start;
    rg_status_t st = rg_sync_reserve_heads(x);
    for (uint32_t k = 0; st == RG_OK && k < COMPARISONS; k++) {
        st = sync_once(x);
        if (st != RG_ERR_PEER_LOST) break;
        x->r.retries++;
        if (k + 1 < COMPARISONS) st = RG_OK;
    }
    if (st == RG_OK) x->r.text[0] = 0, x->r.lost_member = 0;
    else if (!x->r.text[0]) snprintf(x->r.text, sizeof x->r.text, "%s", rg_strerror(st));
    return st;
}

rg_status_t rg_state_opts_resolve(const rg_state_opts_t *in, rg_state_opts_t *o, rg_error_t *err) {
    static const rg_state_opts_t defaults = RG_STATE_OPTS_INIT;
    rg_status_t st = rg_struct_in(o, sizeof *o, RG_STATE_OPTS_SIZE_FIRST, in ? in : &defaults, "rg_state_opts", err);
    if (st != RG_OK) return st;
    if ((unsigned)o->role > RG_STATE_RECEIVE_ONLY)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_opts.role is %d: see rg_state_role_t", (int)o->role);
    if ((unsigned)o->rule > RG_STATE_NEWEST)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_opts.rule is %d: see rg_state_rule_t", (int)o->rule);
    if ((unsigned)o->in_place > RG_OFF || (unsigned)o->touched_only > RG_OFF)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_opts: in_place and touched_only are RG_ON, RG_OFF or 0");
    if (!o->buffer_bytes) o->buffer_bytes = RG_STATE_BUFFER;
    if (o->buffer_bytes < RG_STATE_BUFFER_MIN)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_opts.buffer_bytes is %u: expected %u or more, or 0",
                       o->buffer_bytes, RG_STATE_BUFFER_MIN);
    if (o->timeout_ms > INT32_MAX) /* as its operations would say, one of them after others have begun */
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_opts.timeout_ms is %u: expected 1 to %d milliseconds, or 0",
                       o->timeout_ms, INT32_MAX);
    return RG_OK;
}

rg_status_t rg_state_sync(rg_group_t *g, rg_state_t *s, const rg_state_opts_t *opts, rg_state_result_t *result) {
    rg_sync_t x = { .g = g, .s = s };
    rg_error_t err = { RG_OK, 0, "" };
    uint64_t start = rg_os_now_ns();
    rg_status_t st = rg_usable(g);
    if (st != RG_OK) return st;
    if (!s) st = rg_fail(&err, RG_ERR_INVALID, 0, "state is NULL; make one with rg_state_create");
    if (st == RG_OK) st = rg_struct_check(result, RG_STATE_RESULT_SIZE_FIRST, "rg_state_result", &err);
    if (st == RG_OK) st = rg_state_opts_resolve(opts, &x.o, &err);
    if (st != RG_OK) { /* the others may have begun: they are told, and this member's next call is not taken for it */
        rg_status_t all;
        do all = rg_call_refused(g, 0, st, err.text);
        while (all == RG_ERR_PEER_LOST); /* they begin again */
        if (all == RG_ERR_NOMEM || all == RG_ERR_RESOURCE) return all;
        return rg_refuse(g, st, "rg_state_sync: %s", err.text);
    }
    x.r = (rg_state_result_t)RG_STATE_RESULT_INIT;
    x.op_result = (rg_result_t)RG_RESULT_INIT;
    x.op = (rg_opts_t)RG_OPTS_INIT;
    x.op.timeout_ms = x.o.timeout_ms;
    x.op.on_fault = RG_RETURN;
    x.op.result = &x.op_result;
    x.in_place = x.o.in_place == RG_ON || (x.o.in_place == RG_SWITCH_DEFAULT && rg_state_revision(s) == 0);
    st = run(&x);
    rg_sync_free(&x);
    if (st == RG_OK) rg_caught_up(g);
    x.r.status = st;
    x.r.revision = rg_state_revision(s);
    x.r.total_ns = rg_os_now_ns() - start;
    rg_struct_out(result, &x.r, sizeof x.r, RG_STATE_RESULT_SIZE_FIRST);
    return st == RG_OK ? st : rg_refuse(g, st, "rg_state_sync: %s", x.r.text);
}
