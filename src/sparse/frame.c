/* frame.c: see frame.h. Time is read here for deadlines only; it must not change what a call computes. */
#include "sparse/frame.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_way(rg_on_fault_t on_fault) { return on_fault == RG_RETRY || on_fault == RG_RETURN; }

/* The others begin such a call again where their operations do not fit, so this member takes part in that, too. */
rg_status_t rg_frame_refused(rg_frame_t *f, rg_status_t st, int retries) {
    char text[sizeof f->r.text];
    rg_status_t all;
    if (!rg_refused_for_all(st)) return rg_frame_close(f, st);
    if (f->r.text[0] == 0) rg_group_errmsg(f->g, f->r.text, sizeof f->r.text);
    memcpy(text, f->r.text, sizeof text);
    do all = rg_call_refused(f->g, f->o.tag, st, text);
    while (rg_frame_more(f, all, retries));
    /* Nothing stands for it then, so it is as if it had not been called. */
    if (all == RG_ERR_NOMEM || all == RG_ERR_RESOURCE) {
        st = all;
        rg_group_errmsg(f->g, f->r.text, sizeof f->r.text);
    }
    return rg_frame_close(f, st);
}

rg_status_t rg_frame_turn_down(rg_group_t *g, const rg_opts_t *opts, rg_status_t st, int retries) {
    static const rg_result_t first = RG_RESULT_INIT;
    rg_frame_t f = { .g = g, .r = first, .on_fault = rg_root(g)->cfg.on_fault };
    if (opts != NULL) f.o.tag = opts->tag;
    if (opts != NULL && is_way(opts->on_fault)) f.on_fault = opts->on_fault;
    f.ids = f.few;
    return rg_frame_refused(&f, st, retries);
}

rg_status_t rg_frame_open(rg_frame_t *f, rg_group_t *g, const char *name, const rg_opts_t *opts) {
    static const rg_opts_t defaults = RG_OPTS_INIT;
    static const rg_result_t first = RG_RESULT_INIT;
    rg_error_t err;
    *f = (rg_frame_t){ .g = g, .name = name, .r = first };
    rg_status_t st =
        rg_struct_in(&f->o, sizeof f->o, RG_OPTS_SIZE_FIRST, opts != NULL ? opts : &defaults, "rg_opts", &err);
    f->ids = f->few;
    f->on_fault = rg_root(g)->cfg.on_fault;
    /* Known before anything is refused: by it a call that is refused is begun again as often as the others begin it. */
    if (opts != NULL && is_way(opts->on_fault)) f->on_fault = opts->on_fault;
    if (st != RG_OK) {
        if (opts != NULL) f->o.tag = opts->tag; /* where it always was */
        f->o.result = NULL;
        return rg_refuse(g, st, "%s", err.text);
    }
    if (f->o.result != NULL && rg_result_check(f->o.result, NULL) != RG_OK)
        return rg_refuse(g, RG_ERR_INVALID, "%s: opts.result is not initialised: use RG_RESULT_INIT", name);
    f->result = f->o.result;
    f->r.contributor_ids = f->ids = f->few;
    f->r.contributor_cap = RG_FRAME_FEW;
    if (f->o.in_strided != NULL || f->o.out_strided != NULL || f->o.scale != 0.0 || f->o.scale_after != 0.0 ||
        f->o.weighted == RG_ON)
        st = rg_frame_refuse(f, RG_ERR_NOTSUP, "%s: of the options, tag, timeout_ms, on_fault and result are supported",
                             name);
    else if ((unsigned)f->o.on_fault > RG_RETURN)
        st = rg_frame_refuse(f, RG_ERR_INVALID, "%s: opts.on_fault is %d: expected RG_RETRY (1), RG_RETURN (2) or 0",
                             name, (int)f->o.on_fault);
    if (st != RG_OK) return st;
    uint64_t limit_ms = f->o.timeout_ms != 0 ? f->o.timeout_ms : rg_root(g)->cfg.op_timeout_ms;
    f->deadline = rg_os_now_ns() + limit_ms * 1000000;
    f->o.result = &f->r;
    f->o.on_fault = RG_RETURN;
    return RG_OK;
}

uint64_t rg_frame_members(const uint64_t *ids, uint32_t n) {
    uint64_t h = n;
    for (uint32_t i = 0; i < n && i <= RG_MAX_LINKS; i++) h = rg_frame_mix(h, ids[i]);
    return h;
}

/* What an earlier attempt lacked memory for says nothing of how this one ends, nor does its text. */
rg_status_t rg_frame_shape(rg_frame_t *f) {
    f->poor = 0;
    f->r.text[0] = 0;
    rg_status_t st = rg_shape_ids(f->g, &f->n, &f->rank, &f->epoch, f->ids, f->r.contributor_cap);
    if (st == RG_OK && f->n > f->r.contributor_cap) {
        uint64_t *ids = malloc((RG_MAX_LINKS + 1) * sizeof *ids);
        if (!ids) return rg_frame_no_memory(f);
        f->r.contributor_ids = f->ids = ids;
        f->r.contributor_cap = RG_MAX_LINKS + 1;
        st = rg_shape_ids(f->g, &f->n, &f->rank, &f->epoch, f->ids, f->r.contributor_cap);
    }
    if (st == RG_OK) f->members = rg_frame_members(f->ids, f->n);
    return st;
}

void rg_frame_free(rg_frame_t *f) {
    if (f->ids != f->few) free(f->ids);
    f->r.contributor_ids = f->ids = f->few;
    f->r.contributor_cap = RG_FRAME_FEW;
}

rg_status_t rg_frame_refuse(rg_frame_t *f, rg_status_t st, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->r.text, sizeof f->r.text, fmt, ap);
    va_end(ap);
    return rg_refuse(f->g, st, "%s", f->r.text);
}

rg_status_t rg_frame_apart(rg_frame_t *f, uint32_t rank) {
    return rg_frame_refuse(f, RG_ERR_PEER_LOST,
                           "%s: rank %u of %u began it for other members: somebody was lost or has come; call again",
                           f->name, rank, f->n);
}

/* Nobody stays away when no time is left: the others may have some, and wait; the operation itself ends at once then.
 */
const rg_opts_t *rg_frame_opts(rg_frame_t *f) {
    uint64_t now = rg_os_now_ns(), left = f->deadline > now ? (f->deadline - now) / 1000000 : 0;
    f->o.timeout_ms = left == 0 ? 1 : left > UINT32_MAX ? UINT32_MAX : (uint32_t)left;
    return &f->o;
}

rg_request_t **rg_frame_req(rg_frame_t *f) {
    f->req = NULL;
    return f->stop != NULL ? &f->req : NULL;
}

/* While the operation can be cancelled it is not waited for by a call that would free it. */
rg_status_t rg_frame_done(rg_frame_t *f, rg_status_t st) {
    if (f->stop == NULL || f->req == NULL) return st;
    pthread_mutex_lock(&f->stop->lock);
    f->stop->req = f->req;
    if (f->stop->asked) rg_cancel(f->req);
    pthread_mutex_unlock(&f->stop->lock);
    rg_wait_any(f->g, &f->req, 1);
    pthread_mutex_lock(&f->stop->lock);
    f->stop->req = NULL;
    pthread_mutex_unlock(&f->stop->lock);
    return rg_wait(f->req, &f->r);
}

rg_status_t rg_frame_ended(rg_frame_t *f, rg_status_t st) {
    st = rg_frame_done(f, st);
    if (f->start == 0) f->start = f->r.start_ns;
    f->sent += f->r.bytes_sent;
    f->received += f->r.bytes_received;
    if (st != RG_OK ||
        (f->r.contributors <= f->r.contributor_cap && rg_frame_members(f->ids, f->r.contributors) == f->members))
        return st;
    return rg_frame_refuse(f, RG_ERR_PEER_LOST,
                           "%s: it was begun for %u members, of whom not all are among the %u that came together: "
                           "somebody was lost or has come; call again",
                           f->name, f->n, f->r.contributors);
}

rg_status_t rg_frame_no_memory(rg_frame_t *f) {
    uint8_t mine = 0, all[RG_MAX_LINKS + 1];
    f->poor = 1;
    if (f->n > sizeof all) return RG_ERR_NOMEM;
    rg_status_t st = rg_all_gather(f->g, &mine, all, 1, RG_U8, rg_frame_opts(f), rg_frame_req(f));
    st =
        f->n <= f->r.contributor_cap ? rg_frame_ended(f, st) : rg_frame_done(f, st); /* else who they are has no room */
    return st == RG_OK ? RG_ERR_MISMATCH : st;
}

int rg_frame_more(rg_frame_t *f, rg_status_t st, int retries) {
    int more = st == RG_ERR_MISMATCH ? ++f->unfit < RG_FRAME_FITS
                                     : st == RG_ERR_PEER_LOST && retries && f->on_fault == RG_RETRY;
    f->again += (uint32_t)more;
    return more;
}

rg_status_t rg_frame_close(rg_frame_t *f, rg_status_t st) {
    if (f->poor && st == RG_ERR_MISMATCH) {
        st = rg_frame_refuse(f, RG_ERR_NOMEM, "%s: no memory", f->name);
    }
    if (f->result == NULL) {
        rg_frame_free(f);
        return st;
    }
    f->r.status = st;
    f->r.retries = f->again;
    if (f->start != 0) f->r.start_ns = f->start;
    f->r.bytes_sent = f->sent;
    f->r.bytes_received = f->received;
    if (st != RG_OK && f->r.text[0] == 0) rg_group_errmsg(f->g, f->r.text, sizeof f->r.text);
    if (f->r.contributors > f->r.contributor_cap) f->r.contributors = 0; /* of an attempt that came to nothing */
    rg_result_out(f->result, &f->r, f->ids, f->r.contributors);
    rg_frame_free(f);
    return st;
}

int rg_room_for(rg_room_t *r, uint64_t bytes) {
    if (bytes == 0) bytes = 1;
    if (bytes <= r->cap) return 1;
    if (bytes > SIZE_MAX) return 0;
    free(r->p);
    r->p = malloc((size_t)bytes);
    r->cap = r->p != NULL ? bytes : 0;
    return r->p != NULL;
}

int rg_floats_for(float **p, uint64_t *have, uint64_t n) {
    if (*p != NULL && *have == n) return 1;
    if (n > SIZE_MAX / sizeof **p) return 0;
    float *v = calloc(n != 0 ? (size_t)n : 1, sizeof *v);
    if (v == NULL) return 0;
    free(*p);
    *p = v;
    *have = n;
    return 1;
}
