/* api.c: the public functions: argument checks, handles, error texts; the only place that sees both a caller and the
 * engine. It must not hold the lock of a group across anything but the engine's own calls. */
#include "config.h"
#include "engine/lifecycle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static rg_status_t join_config(const rg_config_t *config, rg_join_t *j, rg_error_t *err) {
    const rg_config_t none = RG_CONFIG_INIT;
    memset(j, 0, sizeof *j);
    rg_status_t st =
        rg_struct_in(&j->config, sizeof j->config, RG_CONFIG_SIZE_FIRST, config ? config : &none, "rg_config_t", err);
    j->config.struct_size = sizeof j->config;
    return st;
}

rg_status_t rg_group_join(const rg_config_t *config, rg_group_t **out, rg_error_t *err) {
    rg_join_t j;
    if (!out)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_group_join: out is NULL; pass the address of an rg_group_t pointer");
    *out = NULL;
    rg_status_t st = join_config(config, &j, err);
    return st == RG_OK ? rg_group_open(&j, out, err) : st;
}

/* An id is text: "RG1 address group". Its coordinator lives as long as the process, so it stays reachable from here. */
struct hosted {
    struct hosted *next;
    rg_coordinator_t *coordinator;
};
static struct hosted *hosted_list;
static pthread_mutex_t hosted_lock = PTHREAD_MUTEX_INITIALIZER;

/* A wildcard address says nothing to others: replace it by one of this host's. */
static rg_status_t reachable_address(const char *bound, char *out, size_t cap, rg_error_t *err) {
    const char *colon = strrchr(bound, ':');
    if (strncmp(bound, "0.0.0.0:", 8) != 0 && strncmp(bound, "[::]:", 5) != 0) {
        snprintf(out, cap, "%s", bound);
        return RG_OK;
    }
    struct sockaddr_storage sa;
    char text[96];
    int n = rg_os_local_addresses(getenv("RG_INTERFACE"), NULL, &sa, 1, err);
    if (n < 1)
        return n < 0
                   ? (rg_status_t)n
                   : rg_fail(err, RG_ERR_SYSTEM, 0, "this host has no address but loopback; set RG_COORDINATOR_LISTEN");
    rg_os_addr_text((const struct sockaddr *)&sa, text, sizeof text);
    *strrchr(text, ':') = 0;
    snprintf(out, cap, "%s%s", text, colon);
    return RG_OK;
}

rg_status_t rg_unique_id(rg_unique_id_t *id, rg_error_t *err) {
    uint8_t random[8];
    char address[96];
    if (!id) return rg_fail(err, RG_ERR_INVALID, 0, "rg_unique_id: id is NULL");
    memset(id, 0, sizeof *id);
    rg_status_t st = rg_os_random(random, sizeof random);
    struct hosted *h = st == RG_OK ? calloc(1, sizeof *h) : NULL;
    if (!h)
        return rg_fail(err, st != RG_OK ? st : RG_ERR_NOMEM, 0, "rg_unique_id: %s",
                       rg_strerror(st != RG_OK ? st : RG_ERR_NOMEM));
    rg_coordinator_config_t cc = RG_COORDINATOR_CONFIG_INIT;
    st = rg_coordinator_start(&cc, &h->coordinator, err);
    if (st == RG_OK) st = reachable_address(rg_coordinator_address(h->coordinator), address, sizeof address, err);
    if (st != RG_OK) {
        rg_coordinator_stop(h->coordinator);
        free(h);
        return st;
    }
    snprintf(id->bytes, sizeof id->bytes, "RG1 %s id-%02x%02x%02x%02x%02x%02x%02x%02x", address, random[0], random[1],
             random[2], random[3], random[4], random[5], random[6], random[7]);
    pthread_mutex_lock(&hosted_lock);
    h->next = hosted_list;
    hosted_list = h;
    pthread_mutex_unlock(&hosted_lock);
    return RG_OK;
}

rg_status_t rg_group_init_rank(uint32_t n, uint32_t rank, const rg_unique_id_t *id, const rg_config_t *config,
                               rg_group_t **out, rg_error_t *err) {
    rg_join_t j;
    char address[128], group[128], text[sizeof id->bytes + 1];
    if (!out || !id) return rg_fail(err, RG_ERR_INVALID, 0, "rg_group_init_rank: %s is NULL", out ? "id" : "out");
    *out = NULL;
    if (!n || rank >= n)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_group_init_rank: rank %u of %u: ranks are 0 to n - 1", rank, n);
    memcpy(text, id->bytes, sizeof id->bytes);
    text[sizeof id->bytes] = 0;
    if (sscanf(text, "RG1 %127s %127s", address, group) != 2)
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "rg_group_init_rank: this is no id; make one with rg_unique_id() in one process and give all "
                       "128 bytes to the others");
    rg_status_t st = join_config(config, &j, err);
    if (st != RG_OK) return st;
    j.config.coordinator = address;
    j.config.group = group;
    j.config.min_size = n;
    j.config.order = 0;
    j.n = n;
    j.rank = rank;
    return rg_group_open(&j, out, err);
}

/* Before anything takes the lock, which may have been held when the process forked. */
static rg_status_t usable(const rg_group_t *g) {
    if (!g) return RG_ERR_INVALID;
    return rg_group_inherited(g) ? RG_ERR_CLOSED : RG_OK;
}

rg_status_t rg_group_boundary(rg_group_t *g, rg_change_t *change) {
    rg_change_t c = RG_CHANGE_INIT;
    rg_status_t st = usable(g);
    if (st == RG_OK) st = rg_change_check(change, NULL);
    if (st != RG_OK) return st;
    rg_lock(g);
    st = rg_group_pass_boundary(g, &c);
    rg_unlock(g);
    if (st == RG_OK) rg_change_out(change, &c);
    return st;
}

rg_status_t rg_group_leave(rg_group_t *g) {
    rg_status_t st = usable(g);
    return st == RG_OK ? rg_group_close(g) : st;
}

rg_status_t rg_group_abort(rg_group_t *g) {
    rg_status_t st = usable(g);
    if (st != RG_OK) return st;
    rg_lock(g);
    rg_group_over(g, RG_ERR_ABORTED, "rg_group_abort was called");
    rg_unlock(g);
    return RG_OK;
}

void rg_group_destroy(rg_group_t *g) {
    if (g && !rg_group_inherited(g)) rg_group_free(g); /* a child would write to shared descriptors */
}

rg_status_t rg_group_info(rg_group_t *g, rg_info_t *info) {
    rg_info_t i = RG_INFO_INIT;
    rg_status_t st = info ? usable(g) : RG_ERR_INVALID;
    if (st == RG_OK) st = rg_info_check(info, NULL);
    if (st != RG_OK) return st;
    rg_lock(g);
    rg_roster_t *r = g->phase == RG_PHASE_MEMBER ? rg_roster_for(g, g->gen) : NULL;
    if (r) {
        i.rank = r->rank;
        i.world_size = r->n;
        i.epoch = rg_member_view(g->core)->epoch;
        i.coordinator_lost = (uint32_t)rg_member_coordinator_lost(g->core);
        i.newcomers_waiting = (uint32_t)rg_member_newcomers(g->core);
        g->tp_ops->stats(g->tp, RG_TP_ALL_LINKS, &i.bytes_sent, &i.bytes_received);
        rg_roster_put(r);
    }
    i.member_id = g->self_id;
    i.boundary = g->gen;
    i.operations = g->operations;
    i.view_changes = g->view_changes;
    i.last_change_ns = g->last_change_ns;
    st = r ? RG_OK : g->over ? g->over : RG_ERR_NOMEM;
    rg_unlock(g);
    rg_info_out(info, &i);
    return st;
}

rg_status_t rg_group_member(rg_group_t *g, uint32_t rank, uint64_t *member_id) {
    rg_status_t st = member_id ? usable(g) : RG_ERR_INVALID;
    if (st != RG_OK) return st;
    rg_lock(g);
    st = g->over ? g->over : RG_ERR_INVALID;
    rg_roster_t *r = g->phase == RG_PHASE_MEMBER ? rg_roster_for(g, g->gen) : NULL;
    if (r && rank < r->n) {
        *member_id = r->ids[rank];
        st = RG_OK;
    }
    rg_roster_put(r);
    rg_unlock(g);
    return st;
}

size_t rg_group_errmsg(rg_group_t *g, char *buf, size_t cap) {
    if (!g) return 0;
    if (rg_group_inherited(g)) {
        static const char text[] =
            "this process was forked from the member, which alone may use the handle; join anew here";
        if (buf && cap) snprintf(buf, cap, "%s", text);
        return sizeof text - 1;
    }
    rg_lock(g);
    size_t n = strlen(g->errmsg);
    if (buf && cap) snprintf(buf, cap, "%s", g->errmsg);
    rg_unlock(g);
    return n;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

typedef struct call {
    rg_kind_t kind;
    const void *in;
    void *out;
    uint64_t count;
    rg_dtype_t dtype;
    rg_op_t op;
    uint32_t root;
} call_t;

static rg_status_t refuse(rg_group_t *g, rg_status_t st, const char *text) {
    rg_lock(g);
    rg_group_set_errmsg(g, "%s", text);
    rg_unlock(g);
    return st;
}

static rg_status_t check_call(rg_group_t *g, const call_t *c, uint64_t *bytes) {
    uint64_t elem = rg_dtype_size(c->dtype);
    if (!elem) return refuse(g, RG_ERR_INVALID, "unknown element type; see rg_dtype_t");
    if (__builtin_mul_overflow(c->count, elem, bytes) || *bytes > (uint64_t)INT64_MAX / 4)
        return refuse(g, RG_ERR_INVALID, "count is larger than any memory");
    if (c->count && (!c->in || !c->out)) return refuse(g, RG_ERR_INVALID, "a buffer is NULL and count is not 0");
    if (c->kind != RG_KIND_ALL_REDUCE) return RG_OK;
    if ((unsigned)c->op >= RG_OP_COUNT) return refuse(g, RG_ERR_INVALID, "unknown operator; see rg_op_t");
    rg_red_t probe;
    if (rg_red_init(&probe, c->dtype, c->op, 2, RG_RED_FINAL) != RG_OK)
        return refuse(g, RG_ERR_NOTSUP,
                      "the average of integers is not defined; use RG_SUM and divide, or a floating type");
    uintptr_t a = (uintptr_t)c->in, b = (uintptr_t)c->out;
    if (a != b && a < b + *bytes && b < a + *bytes)
        return refuse(g, RG_ERR_INVALID,
                      "in and out overlap without being the same; pass in == out, or separate buffers");
    return RG_OK;
}

static int op_finished(void *arg) { return ((rg_request_t *)arg)->state == RG_OPS_FINISHED; }

static void fill_op(rg_group_t *g, rg_request_t *op, const call_t *c, const rg_opts_t *o, uint64_t bytes) {
    op->res.start_ns = rg_os_now_ns();
    op->deadline_ns = op->res.start_ns + (uint64_t)o->timeout_ms * 1000000u;
    op->user_in = c->in;
    op->user_out = c->out;
    op->bytes = bytes;
    op->elem = (uint32_t)rg_dtype_size(c->dtype);
    op->root_arg = c->root;
    op->key.op = o->tag;
    op->sig = (rg_op_sig_t){ .kind = (uint8_t)c->kind,
                             .dtype = (uint8_t)c->dtype,
                             .op = (uint8_t)c->op,
                             .on_fault = (uint8_t)o->on_fault,
                             /* A broadcast's root hears from nobody before the barrier at the end: without it, it
                              * would not learn that others called something else. */
                             .rule_l = o->tag || bytes > g->cfg.small_bytes || c->kind == RG_KIND_BROADCAST,
                             .count = c->count,
                             .variant = g->variant };
}

/* Waits for a submitted operation, hands out its result and frees it. Locked. */
static rg_status_t collect(rg_group_t *g, rg_request_t *op, rg_result_t *result) {
    rg_drive(g, op_finished, op, UINT64_MAX);
    rg_status_t st = op->res.status;
    if (result) rg_result_out(result, &op->res, op->contributors, op->n_contributors);
    rg_op_free(op);
    return st;
}

static rg_status_t run_call(rg_group_t *g, const call_t *c, const rg_opts_t *opts, rg_request_t **req) {
    rg_opts_t o = RG_OPTS_INIT;
    rg_error_t err;
    uint64_t bytes = 0;
    if (req) *req = NULL;
    rg_status_t st = usable(g);
    if (st != RG_OK) return st;
    if (!opts) { /* the usual case */
        o.timeout_ms = g->cfg.op_timeout_ms;
        o.on_fault = g->cfg.on_fault;
    } else {
        rg_status_t so = rg_opts_resolve(opts, &g->cfg, &o, &err);
        if (so == RG_OK && !req) so = rg_result_check(o.result, &err);
        if (so != RG_OK) return refuse(g, so, err.text);
    }
    st = check_call(g, c, &bytes);
    if (st != RG_OK) return st;
    rg_lock(g);
    rg_request_t *op = rg_op_alloc(g);
    st = op ? RG_OK : RG_ERR_NOMEM;
    if (op) {
        op->blocking = !req;
        fill_op(g, op, c, &o, bytes);
        st = rg_op_submit(g, op);
        if (st != RG_OK) rg_op_free(op);
    }
    if (st == RG_OK && !req) {
        if (g->driver == RG_DRIVER_CALLER) rg_wake(g); /* it may sleep on what was wanted before */
        st = collect(g, op, o.result);
    } else if (st == RG_OK) {
        *req = op;
        rg_wake(g);
        if (g->driver == RG_DRIVER_NONE && op->state != RG_OPS_FINISHED) rg_wake_thread(g);
    }
    rg_unlock(g);
    return st;
}

rg_status_t rg_all_reduce(rg_group_t *g, const void *in, void *out, uint64_t count, rg_dtype_t dtype, rg_op_t op,
                          const rg_opts_t *opts, rg_request_t **req) {
    const call_t c = { RG_KIND_ALL_REDUCE, in, out, count, dtype, op, 0 };
    return run_call(g, &c, opts, req);
}

rg_status_t rg_broadcast(rg_group_t *g, void *buf, uint64_t count, rg_dtype_t dtype, uint32_t root,
                         const rg_opts_t *opts, rg_request_t **req) {
    const call_t c = { RG_KIND_BROADCAST, buf, buf, count, dtype, RG_SUM, root };
    return run_call(g, &c, opts, req);
}

rg_status_t rg_barrier(rg_group_t *g, const rg_opts_t *opts, rg_request_t **req) {
    const call_t c = { RG_KIND_BARRIER, NULL, NULL, 0, RG_U8, RG_SUM, 0 };
    return run_call(g, &c, opts, req);
}

rg_status_t rg_wait(rg_request_t *op, rg_result_t *result) {
    if (!op || rg_result_check(result, NULL) != RG_OK) return RG_ERR_INVALID;
    rg_group_t *g = op->g;
    if (rg_group_inherited(g)) return RG_ERR_CLOSED;
    rg_lock(g);
    rg_status_t st = op->taken && !op->blocking ? collect(g, op, result) : RG_ERR_CLOSED;
    rg_unlock(g);
    return st;
}

rg_status_t rg_test(rg_request_t *op, rg_result_t *result) {
    if (!op || rg_result_check(result, NULL) != RG_OK) return RG_ERR_INVALID;
    rg_group_t *g = op->g;
    if (rg_group_inherited(g)) return RG_ERR_CLOSED;
    rg_lock(g);
    rg_status_t st = RG_AGAIN;
    if (!op->taken || op->blocking) {
        st = RG_ERR_CLOSED;
    } else {
        if (op->state != RG_OPS_FINISHED && g->driver != RG_DRIVER_CALLER)
            rg_help(g); /* so that testing alone makes progress, without a thread too */
        if (op->state == RG_OPS_FINISHED) st = collect(g, op, result);
    }
    rg_unlock(g);
    return st;
}

rg_status_t rg_cancel(rg_request_t *op) {
    if (!op) return RG_ERR_INVALID;
    rg_group_t *g = op->g;
    if (rg_group_inherited(g)) return RG_ERR_CLOSED;
    rg_lock(g);
    rg_status_t st = op->taken && !op->blocking ? RG_OK : RG_ERR_CLOSED;
    if (st == RG_OK && op->state != RG_OPS_FINISHED) {
        rg_op_fail(op, RG_ERR_CANCELLED, g->self_id, "cancelled by a member");
        rg_wake(g);
    }
    rg_unlock(g);
    return st;
}
