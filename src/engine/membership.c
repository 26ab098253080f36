/* membership.c: feeds the pure core and carries out its actions: control messages, links, fences, views. Verdicts on
 * operations are queued and carried out after the core's step has been taken out whole, because carrying them out feeds
 * the core again. It relies on the group's lock. */
#include "engine/group.h"
#include "core/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rg_group_set_errmsg(rg_group_t *g, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(g->errmsg, sizeof g->errmsg, fmt, ap);
    va_end(ap);
    rg_log_tidy(g->errmsg); /* as rg_fail() does */
}

/* The group ends for this process: every call returns `status` from now on. */
void rg_group_over(rg_group_t *g, rg_status_t status, const char *text) {
    if (g->phase == RG_PHASE_OVER) return;
    RG_LOGF(&g->log, status == RG_ERR_CLOSED ? RG_LOG_INFO : RG_LOG_ERROR, "group %s: over: %s: %s", g->cfg.group,
            rg_strerror(status), text);
    if (g->phase == RG_PHASE_MEMBER && (status == RG_ERR_NO_QUORUM || status == RG_ERR_EXPELLED)) rg_stale_set(g, 1);
    g->phase = RG_PHASE_OVER;
    g->over = status;
    /* First: what is still posted must not touch buffers that are restored and given back below. */
    for (uint32_t i = 0; i < g->n_links; i++)
        if (g->links[i].id) g->tp_ops->drop(g->tp, i);
    memset(g->links, 0, g->n_links * sizeof *g->links);
    g->n_links = 0;
    rg_ops_finish_all(g, status, text);
    rg_text_copy(g->why_over, sizeof g->why_over, text);
    rg_group_set_errmsg(g, "%s", text);
    rg_control_close(&g->control);
    rg_office_close(g);
    rg_wake_callers(g);
    rg_wake(g);
}

#define LINK_FDS 5 /* of a link through shared memory */

/* ---- Actions
 * ----------------------------------------------------------------------------------------------------------- */

/* A number that is free, and of whose former peer the transport has nothing left to report. */
static uint32_t link_free(const rg_group_t *g) {
    for (uint32_t i = 0; i < RG_MAX_LINKS; i++)
        if (!g->links[i].id && (!g->links[i].dropped_at || g->links[i].dropped_at < g->polls_drained)) return i;
    return UINT32_MAX;
}

static void act_todo(rg_group_t *g, const rg_member_action_t *a) {
    if (g->todo_len == g->todo_cap) {
        size_t cap = g->todo_cap ? g->todo_cap * 2 : 64;
        rg_todo_t *grown = realloc(g->todo, cap * sizeof *grown);
        if (!grown) {
            g->over = g->over ? g->over : RG_ERR_NOMEM; /* seen after the step: see rg_core_event() */
            return;
        }
        g->todo = grown;
        g->todo_cap = cap;
    }
    rg_todo_t *t = &g->todo[g->todo_len++];
    t->type = a->type;
    t->key = a->key;
    t->peer = a->peer;
    t->computed = a->computed;
    t->keep = a->keep;
    t->status = a->status;
    t->text = a->text && *a->text ? strdup(a->text) : NULL; /* without memory the status alone has to do */
}

rg_tp_peer_t rg_link_peer(const rg_group_t *g, const rg_link_t *l, uint32_t patience_ms) {
    rg_tp_peer_t peer = { .addr = l->addr,
                          .addr_len = l->addr_len,
                          .dial = l->dial,
                          .timeout_ms = patience_ms,
                          .resume = g->reconnect_ns != 0,
                          .silence_ms = g->cfg.heartbeat_ms };
    memcpy(peer.identity, l->identity, sizeof peer.identity);
    return peer;
}

static void act_connect(rg_group_t *g, const rg_member_action_t *a) {
    uint32_t i = rg_link_of(g, a->peer);
    if (i != UINT32_MAX) return; /* repeated by the core after a change of plan */
    i = link_free(g);
    if (i == UINT32_MAX) {
        RG_LOGF(&g->log, RG_LOG_ERROR, "no link left for member %llu: %u are in use", (unsigned long long)a->peer,
                RG_MAX_LINKS);
        return;
    }
    if (i >= g->n_links) g->n_links = i + 1;
    rg_error_t err = { 0 };
    if (rg_os_need_fds((g->n_links + 16) * (g->cfg.rails + LINK_FDS) + 64, &err) !=
        RG_OK) /* the link may still fit: try */
        rg_group_set_errmsg(g, "%s", err.text);
    g->links[i] = (rg_link_t){ .id = a->peer, .host = a->member->host, .site = a->member->site, .dial = a->dial };
    memcpy(g->links[i].identity, a->member->identity, sizeof g->links[i].identity);
    g->links[i].addr_len = a->member->addr_len;
    memcpy(g->links[i].addr, a->member->addr, a->member->addr_len);
    /* A link that cannot be made must say so while the join that wants it can still pass the reason on. */
    uint32_t patience = g->phase == RG_PHASE_JOINING ? g->cfg.join_timeout_ms / 2 + 1 : g->cfg.join_timeout_ms;
    const rg_tp_peer_t peer = rg_link_peer(g, &g->links[i], patience);
    if (g->tp_ops->connect(g->tp, i, &peer, &err) != RG_OK) {
        RG_LOGF(&g->log, RG_LOG_WARN, "link to member %llu: %s", (unsigned long long)a->peer, err.text);
        rg_group_set_errmsg(g, "link to member %llu: %s", (unsigned long long)a->peer, err.text);
        if (g->phase == RG_PHASE_JOINING && err.sys_errno == EAFNOSUPPORT)
            g->join_status = err.status; /* no waiting gives two hosts an address family in common */
        if (a->dial) { /* the core dials again in a while; it is told behind the step that is being carried out */
            rg_member_action_t failed = { .type = RG_MACT_CONNECT, .peer = a->peer, .text = err.text };
            act_todo(g, &failed);
        }
    }
}

static void act_disconnect(rg_group_t *g, uint64_t id) {
    uint32_t i = rg_link_of(g, id);
    if (i == UINT32_MAX) return;
    g->tp_ops->drop(g->tp, i);
    rg_netstat_down(g, i);
    g->links[i] = (rg_link_t){ .dropped_at = g->polls };
    while (g->n_links && !g->links[g->n_links - 1].id) g->n_links--;
}

/* Nothing that is posted in the present data epoch, or arrives for it, touches a buffer any more. */
void rg_data_fence(rg_group_t *g) {
    const rg_core_view_t *v = rg_member_view(g->core);
    if (v) g->tp_ops->fence(g->tp, v->data_epoch + 1);
}

static void act_fence(rg_group_t *g) {
    uint64_t now = rg_os_now_ns();
    if (!g->fenced_at_ns) g->fenced_at_ns = now;
    for (rg_request_t *op = g->open_ops; op; op = op->next) {
        rg_exec_stop(op);
        if (!op->frozen_at) op->frozen_at = now;
    }
    rg_data_fence(g);
}

static void act_view(rg_group_t *g) {
    const rg_core_view_t *v = rg_member_view(g->core);
    uint32_t here = 0;
    uint64_t host = 0;
    for (uint32_t i = 0; i < v->n; i++)
        if (v->members[i].id == g->self_id) host = v->members[i].host;
    for (uint32_t i = 0; i < v->n; i++) here += v->members[i].host == host;
    g->host_procs = here;
    if (rg_roster_view_changed(g) != RG_OK) {
        rg_group_over(g, RG_ERR_NOMEM, "no memory for a view of the group");
        return;
    }
    if (v->kind == RG_VIEW_RECOVERY) {
        g->view_changes++;
        if (g->fenced_at_ns) g->last_change_ns = rg_os_now_ns() - g->fenced_at_ns;
    } else if (v->kind == RG_VIEW_JOIN) {
        g->view_changes++;
    }
    g->fenced_at_ns = 0;
    RG_LOGF(&g->log, RG_LOG_INFO, "group %s: view %llu: %u members", g->cfg.group, (unsigned long long)v->epoch, v->n);
}

static void core_action(rg_group_t *g, const rg_member_action_t *a) {
    switch (a->type) {
    case RG_MACT_SEND: rg_control_send(g, a->bytes, a->len); break;
    case RG_MACT_CONNECT: act_connect(g, a); break;
    case RG_MACT_DISCONNECT: act_disconnect(g, a->peer); break;
    case RG_MACT_WELCOME:
        g->self_id = a->peer;
        g->succession = a->mode == RG_MODE_SUCCESSION;
        g->cfg.heartbeat_ms = (uint32_t)(a->heartbeat_ns / 1000000u);
        g->reconnect_ns = a->reconnect_ns;
        g->tp_ops->set_nonce(g->tp, a->nonce);
        break;
    case RG_MACT_JOINED:
        g->gen = a->gen;
        g->phase = RG_PHASE_MEMBER;
        if (!g->past[0].ids) act_view(g);
        break;
    case RG_MACT_REFUSED:
        g->join_status = a->status;
        rg_group_set_errmsg(g, "%s", a->text ? a->text : "refused");
        break;
    case RG_MACT_WAITING: snprintf(g->waiting_text, sizeof g->waiting_text, "%s", a->text ? a->text : ""); break;
    case RG_MACT_FENCE: act_fence(g); break;
    case RG_MACT_VIEW: act_view(g); break;
    case RG_MACT_BOUNDARY:
        g->boundary_gen = a->gen;
        rg_wake_callers(g); /* its caller waits there when another thread drives */
        break;
    case RG_MACT_NOTE: rg_say_note(g, a->note, (int)a->flush); break;
    case RG_MACT_CONTROL: rg_control_aim(g, a); break;
    case RG_MACT_OFFICE_OPEN: rg_office_open(g, a); break;
    case RG_MACT_OFFICE_CLOSE: rg_office_close(g); break;
    case RG_MACT_ROUTE: rg_relay_route(g, a); break;
    case RG_MACT_RELAY: rg_relay_between(g, a); break;
    default: /* verdicts on operations, and EXPELLED, which must come after the aborts before it */
        act_todo(g, a);
        break;
    }
}

static void link_failed(rg_group_t *g, uint64_t peer, const char *text) {
    rg_member_event_t down = { .type = RG_MEV_LINK_DOWN, .peer = peer, .text = text ? text : "" };
    rg_core_event(g, &down);
}

static void run_todo(rg_group_t *g) {
    if (g->in_todo) return;
    g->in_todo = 1;
    while (g->todo_at < g->todo_len) {
        rg_todo_t t = g->todo[g->todo_at++];
        if (t.type == RG_MACT_CONNECT) link_failed(g, t.peer, t.text);
        else if (t.type == RG_MACT_EXPELLED)
            rg_group_over(g, t.status ? t.status : RG_ERR_EXPELLED, t.text ? t.text : "expelled from the group");
        else rg_op_verdict(g, &t);
        if (t.text) free((char *)(uintptr_t)t.text);
    }
    g->todo_at = g->todo_len = 0;
    g->in_todo = 0;
}

/* The one door to the core. Fills in what every event carries, takes all actions out, and carries them out. */
rg_status_t rg_core_event(rg_group_t *g, rg_member_event_t *ev) {
    if (g->quick.n_done && !g->quick.telling) rg_quick_tell(g); /* what ran before this happened */
    if (g->phase == RG_PHASE_OVER) return g->over;
    if (!ev->now_ns) ev->now_ns = rg_os_now_ns();
    if (ev->now_ns >= rg_member_deadline(g->core)) /* then this may send a heartbeat, which has these */
        g->tp_ops->stats(g->tp, RG_TP_ALL_LINKS, &ev->bytes_sent, &ev->bytes_received);
    ev->operations = g->operations;
    rg_status_t st = rg_member_step(g->core, ev);
    rg_member_action_t a;
    while (rg_member_next(g->core, &a)) core_action(g, &a);
    if (st == RG_ERR_BUG) rg_group_over(g, RG_ERR_BUG, "the membership core found a broken invariant");
    else if (g->over == RG_ERR_NOMEM && g->phase != RG_PHASE_OVER)
        rg_group_over(g, RG_ERR_NOMEM, "no memory for the core's actions");
    run_todo(g);
    return st;
}
