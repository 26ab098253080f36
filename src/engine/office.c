/* office.c: a coordinator in this process, when the group has lost its own and this member takes the office over: its
 * thread, the visitors that come to the data port for it, and the watch for the one that it stands in for. It relies on
 * the core for when to open and to close (section 9 of docs/protocol.md), and on the group's lock. It must not decide
 * about membership. */
#include "config.h"
#include "engine/coordinator.h"
#include "engine/group.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The coordinator that the group was formed with, or another one of the list, answers again. Told in the watch's
 * thread, which holds no lock: the driver looks at the flag when it wakes up. */
static void office_watched(void *arg, int serves) {
    rg_group_t *g = arg;
    uint64_t one = 1;
    atomic_store(&g->office_returns, serves);
    if (!serves) return;
    ssize_t n = write(g->wakefd, &one, sizeof one);
    (void)n; /* a full counter wakes as well */
}

/* How long the office stays here whoever answers. A coordinator that did not act after the office went back to it is
 * not reached by enough of the members, and would get it back again and again. */
static uint64_t office_stays(const rg_member_action_t *a) {
    return a->on ? a->heartbeat_ns * 4 << (a->on < 5 ? a->on : 5) : 0;
}

void rg_office_open(rg_group_t *g, const rg_member_action_t *a) {
    char where[64];
    rg_error_t err = { RG_OK, 0, "" };
    rg_office_close(g);
    snprintf(where, sizeof where, "member %llu", (unsigned long long)g->self_id);
    rg_office_config_t c = { .group = g->cfg.group,
                             .where = where,
                             .id = a->note,
                             .heartbeat_ns = a->heartbeat_ns,
                             .takeover_ns = a->takeover_ns,
                             .reconnect_ns = a->reconnect_ns,
                             .max_members = RG_MEMBERS_MAX,
                             .tls = g->tls,
                             .log = g->log };
    if (rg_office_start(&c, &g->office, &err) != RG_OK) { /* others will: the connection to it fails */
        RG_LOGF(&g->log, RG_LOG_WARN, "cannot take the coordinator's office over: %s", err.text);
        return;
    }
    RG_LOGF(&g->log, RG_LOG_INFO, "group %s: the coordinator is lost: this member offers to take its office over",
            g->cfg.group);
    rg_watch_config_t w = { .addrs = g->coord_addr,
                            .n = g->n_coord_addr,
                            .tls = g->tls,
                            .every_ns = a->heartbeat_ns / 4,
                            .patience_ns = a->heartbeat_ns,
                            .group = g->cfg.group,
                            .nonce = a->nonce,
                            .tell = office_watched,
                            .arg = g };
    atomic_store(&g->office_returns, 0);
    g->office_until = rg_os_now_ns() + office_stays(a);
    if (rg_watch_start(&w, &g->office_watch, &err) != RG_OK) /* the office stays here then, which is safe too */
        RG_LOGF(&g->log, RG_LOG_WARN, "whether the coordinator comes back is not known: %s", err.text);
}

void rg_office_close(rg_group_t *g) {
    rg_watch_stop(g->office_watch);
    g->office_watch = NULL;
    rg_coordinator_stop(g->office);
    g->office = NULL;
}

/* The other end of a connection to the office of this process; -1: there is none. */
int rg_office_dial(rg_group_t *g) {
    int pair[2];
    if (!g->office) {
        errno = ECONNREFUSED;
        return -1;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return -1;
    for (int i = 0; i < 2; i++) pair[i] = rg_os_high(pair[i]);
    if (pair[0] < 0 || pair[1] < 0) {
        int e = errno;
        for (int i = 0; i < 2; i++)
            if (pair[i] >= 0) close(pair[i]);
        errno = e;
        return -1;
    }
    rg_office_admit(g->office, pair[1], NULL, 0, 1);
    return pair[0];
}

/* Who comes when no office is open here looks elsewhere. */
void rg_office_progress(rg_group_t *g, uint64_t now) {
    rg_tp_visitor_t v;
    while (g->tp_ops->visitor && g->tp_ops->visitor(g->tp, &v)) {
        if (g->office) rg_office_admit(g->office, v.fd, v.head, v.len, 0);
        else close(v.fd);
    }
    if (!g->office || !atomic_load(&g->office_returns)) return;
    /* One that does not act here is not held on to: elsewhere it cannot be worse. */
    if (now < g->office_until && !rg_member_coordinator_lost(g->core)) return;
    atomic_store(&g->office_returns, 0);
    RG_LOGF(&g->log, RG_LOG_INFO, "group %s: a coordinator answers at %s again: the office goes back to it",
            g->cfg.group, g->cfg.coordinator);
    rg_member_event_t ev = { .type = RG_MEV_RETURN, .now_ns = now };
    rg_core_event(g, &ev);
}
