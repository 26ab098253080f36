/* lifecycle.c: opening, joining, leaving, aborting and freeing a group. It relies on every other file of the engine;
 * the public functions in src/api.c check arguments and call this. */
#include "engine/lifecycle.h"
#include "config.h"
#include "engine/side.h"
#include "transports/rdma_rails.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

extern const rg_transport_t rg_transport_auto, rg_transport_tcp, rg_transport_shm, rg_transport_inproc;

static uint32_t settings_hash(const rg_config_t *c, uint32_t tuning_hash) {
    uint32_t h = 2166136261u ^ tuning_hash;
    for (const char *p = c->algorithm ? c->algorithm : ""; *p; p++) h = (h ^ (uint8_t)*p) * 16777619u;
    const uint32_t v[4] = { c->chunk_bytes, c->small_bytes, (uint32_t)c->deterministic, c->measure_every };
    for (int i = 0; i < 4; i++) h = (h ^ v[i]) * 16777619u;
    return h;
}

static void transport_log(void *user, rg_log_level_t level, const char *line) {
    RG_LOGF((rg_log_t *)user, level, "%s", line);
}

static rg_status_t open_descriptors(rg_group_t *g, rg_error_t *err) {
    struct epoll_event e = { .events = EPOLLIN, .data.u32 = 2 };
    g->epfd = rg_os_high(epoll_create1(EPOLL_CLOEXEC));
    int cause = g->epfd < 0 ? errno : 0;
    g->wakefd = cause ? -1 : rg_os_high(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!cause && g->wakefd < 0) cause = errno;
    if (!cause && epoll_ctl(g->epfd, EPOLL_CTL_ADD, g->wakefd, &e) != 0) cause = errno;
    if (cause)
        return rg_fail(err, RG_ERR_SYSTEM, cause, "cannot create an epoll and an event descriptor: %s%s",
                       strerror(cause), cause == EMFILE || cause == ENFILE ? "; see `ulimit -n`" : "");
    return RG_OK;
}

/* Many systems give a host's own name the address 127.0.1.1. Whoever says that name means the host, which others know
 * by another address; whoever says "localhost" or a loopback address means this host alone. */
static int own_name_means_loopback(const rg_group_t *g) {
    const char *c = g->cfg.coordinator;
    return rg_os_is_loopback((const struct sockaddr *)&g->coord_addr[0]) && c[0] != '[' &&
           !(c[0] >= '0' && c[0] <= '9') && strncmp(c, "localhost", 9) != 0;
}

static rg_status_t open_transport(rg_group_t *g, rg_member_params_t *p, rg_error_t *err) {
    char hint[128];
    static const rg_transport_t *const all[] = { &rg_transport_auto, &rg_transport_tcp, &rg_transport_shm,
                                                 &rg_transport_inproc,
#ifdef RG_HAVE_RDMA
                                                 &rg_transport_rdma
#endif
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(g->cfg.transport, all[i]->name) == 0) g->tp_ops = all[i];
#ifdef RG_HAVE_RDMA
    if (g->tp_ops == &rg_transport_rdma) g->tp_ops = rg_rdma_for(&g->cfg);
#endif
    g->others_fill = g->tp_ops == &rg_transport_inproc;
    g->blocks_shared = g->tp_ops == &rg_transport_auto || g->tp_ops == &rg_transport_shm;
    if (!g->tp_ops && strcmp(g->cfg.transport, "rdma") == 0)
        return rg_fail(err, RG_ERR_NOTSUP, 0,
                       "transport \"rdma\" (RG_TRANSPORT): this library was built without libibverbs and librdmacm; "
                       "install libibverbs-dev and librdmacm-dev and build it again, or use auto, tcp or shm");
    if (!g->tp_ops)
        return rg_fail(
            err, RG_ERR_NOTSUP, 0,
            "transport \"%s\" (RG_TRANSPORT): expected auto (shared memory on one host; between hosts "
            "RDMA where both have a device, else TCP), tcp, shm, rdma, or inproc for members that are threads of "
            "one process",
            g->cfg.transport);
    rg_os_addr_text((const struct sockaddr *)&g->coord_addr[0], hint, sizeof hint);
    rg_tp_config_t tc = {
        .config = &g->cfg, .tls = g->tls, .remote_hint = hint, .log = transport_log, .log_user = &g->log
    };
    memcpy(tc.identity, p->identity, sizeof tc.identity);
    rg_status_t st = RG_ERR_INVALID;
    if (own_name_means_loopback(g)) {
        tc.remote_hint = NULL; /* every address but loopback, if there is one */
        st = g->tp_ops->open(&tc, &g->tp, p->addr, &p->addr_len, err);
        tc.remote_hint = hint;
    }
    if (st != RG_OK) st = g->tp_ops->open(&tc, &g->tp, p->addr, &p->addr_len, err);
    if (st != RG_OK) return st;
    struct epoll_event e = { .events = EPOLLIN, .data.u32 = 3 };
    if (epoll_ctl(g->epfd, EPOLL_CTL_ADD, g->tp_ops->wake_fd(g->tp), &e) != 0)
        return rg_fail(err, RG_ERR_SYSTEM, 0, "cannot watch the transport");
    return RG_OK;
}

static rg_status_t open_core(rg_group_t *g, const rg_join_t *j, rg_member_params_t *p, rg_error_t *err) {
    p->max_members = RG_MEMBERS_MAX;
    p->hold = j->first != NULL;
    snprintf(p->group, sizeof p->group, "%s", g->cfg.group);
    snprintf(p->label, sizeof p->label, "%s", g->cfg.label);
    p->host = g->host = rg_os_host(g->cfg.host);
    p->site = g->site = rg_os_name_hash(g->cfg.site);
    p->cores = g->cores;
    p->pid = (uint32_t)getpid();
    p->min_size = j->n ? j->n : g->cfg.min_size;
    p->order = g->cfg.order;
    p->fixed_n = j->n;
    p->fixed_rank = j->rank;
    p->host_office = g->tp_ops->visitor && g->cfg.host_office == RG_ON;
    p->quorum_ns = (uint64_t)g->cfg.quorum_timeout_ms * 1000000u;
    g->core = calloc(1, rg_member_size(RG_MEMBERS_MAX));
    if (!g->core || rg_member_init(g->core, p) != RG_OK || rg_netstat_open(g) != RG_OK)
        return rg_fail(err, RG_ERR_NOMEM, 0, "no memory for the membership core");
    return RG_OK;
}

static void init_locks(rg_group_t *g) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->thread_lock, NULL);
    pthread_cond_init(&g->cond, &attr);
    pthread_cond_init(&g->thread_cond, &attr);
    pthread_condattr_destroy(&attr);
}

static rg_status_t start_thread(rg_group_t *g, rg_error_t *err) {
    if (g->cfg.progress_thread == RG_OFF) return RG_OK;
    g->thread_running = 1;
    int rc = rg_os_thread(&g->thread, rg_progress_thread, g);
    if (rc == 0) return RG_OK;
    g->thread_running = 0;
    return rg_fail(err, RG_ERR_SYSTEM, rc, "cannot start the progress thread: %s", strerror(rc));
}

#define ERRAND_LOOK_NS 20000000u
#define ERRAND_AGAIN_NS 5000000u /* no look without need more often, once members may let it in */

static int join_finished(void *arg) {
    rg_group_t *g = arg;
    return g->phase != RG_PHASE_JOINING || g->join_status != RG_OK;
}

typedef struct errand {
    rg_group_t *g;
    const rg_join_first_t *first;
    int ready;
} errand_t;

static int errand_ready(void *arg) {
    errand_t *e = arg;
    if (e->first->pump(e->first->user, e->g, rg_os_now_ns())) e->ready = 1;
    return e->ready || join_finished(e->g);
}

static int errand_and_join(void *arg) {
    errand_t *e = arg;
    e->first->pump(e->first->user, e->g, rg_os_now_ns());
    return join_finished(e->g);
}

/* What is to be done before this process enters. It has as long as it gets on: half of join_timeout_ms without progress
 * ends it, so that there is time left to enter without it. From when on it is ready the members may let it in, and it
 * goes on until they do. */
static void join_errand(rg_group_t *g, const rg_join_first_t *first, uint64_t start) {
    errand_t e = { g, first, 0 };
    const uint64_t patience = (uint64_t)g->cfg.join_timeout_ms * 500000u;
    uint64_t progress = 0, now = start;
    while (!e.ready && !join_finished(g) && now < (progress ? progress : start) + patience) {
        rg_drive(g, errand_ready, &e, now + ERRAND_LOOK_NS);
        progress = *first->progress_ns;
        now = rg_os_now_ns();
    }
    if (!join_finished(g)) {
        rg_member_event_t ev = { .type = RG_MEV_RELEASE };
        rg_core_event(g, &ev);
    }
    uint64_t until = (progress ? now : start) + 2 * patience;
    while (!join_finished(g) && (now = rg_os_now_ns()) < until) {
        uint64_t look = now + ERRAND_AGAIN_NS;
        rg_drive(g, errand_and_join, &e, look < until ? look : until);
    }
    first->end(first->user, g);
}

/* Waits until this process is in a view. The text of a time-out says what was missing. */
static rg_status_t join_wait(rg_group_t *g, rg_error_t *err) {
    uint64_t now = rg_os_now_ns();
    rg_control_connect(g);
    if (g->first) join_errand(g, g->first, now);
    else rg_drive(g, join_finished, g, now + (uint64_t)g->cfg.join_timeout_ms * 1000000u);
    if (g->phase == RG_PHASE_MEMBER) return RG_OK;
    if (g->join_status != RG_OK)
        return rg_fail(err, g->join_status, 0, "group %s at %s: %s", g->cfg.group, g->cfg.coordinator, g->errmsg);
    if (g->phase == RG_PHASE_OVER)
        return rg_fail(err, g->over, 0, "group %s at %s: %s", g->cfg.group, g->cfg.coordinator, g->errmsg);
    if (!g->self_id)
        return rg_fail(err, RG_ERR_COORDINATOR, 0,
                       "no answer from a coordinator at %s within %u ms (%s); start one with `regroup coordinator`, or "
                       "correct RG_COORDINATOR",
                       g->cfg.coordinator, g->cfg.join_timeout_ms,
                       g->errmsg[0] ? g->errmsg : "connected, but it says nothing");
    return rg_fail(err, RG_ERR_TIMEOUT, 0, "group %s: no view within %u ms: %s%s%s", g->cfg.group,
                   g->cfg.join_timeout_ms,
                   g->waiting_text[0] ? g->waiting_text : "waiting for the members' next boundary",
                   g->errmsg[0] ? "; " : "", g->errmsg);
}

static rg_status_t remember_members(rg_group_t *g) {
    rg_roster_t *r = rg_roster_for(g, g->gen);
    if (!r) return RG_ERR_NOMEM;
    uint64_t *ids = malloc((r->n + 1) * sizeof *ids);
    if (ids) {
        memcpy(ids, r->ids, r->n * sizeof *ids);
        free(g->seen_ids);
        g->seen_ids = ids;
        g->n_seen = r->n;
    }
    rg_roster_put(r);
    return ids ? RG_OK : RG_ERR_NOMEM;
}

/* What the operations would refuse one by one, if it can be known by now: whether a group is of a size for which an
 * algorithm is made, for one, cannot. */
static rg_status_t algorithms_known(const rg_group_t *g, rg_error_t *err) {
    char text[sizeof err->text];
    if (rg_sched_known(g->cfg.algorithm, text, sizeof text)) return RG_OK;
    return rg_fail(err, RG_ERR_INVALID, 0, "%s", text);
}

static rg_status_t group_open(rg_group_t *g, const rg_join_t *j, rg_error_t *err) {
    rg_member_params_t *p = calloc(1, sizeof *p);
    if (!p) return rg_fail(err, RG_ERR_NOMEM, 0, "no memory for a group");
    rg_status_t st = rg_config_resolve(&j->config, RG_NEED_COORDINATOR, &g->cfg, &g->cfg_strings, err);
    if (st == RG_OK) st = rg_log_init(&g->log, g->cfg.log_level, g->cfg.log_fn, g->cfg.log_user, err);
    if (st == RG_OK) st = algorithms_known(g, err);
    if (st == RG_OK) {
        int n = rg_os_resolve_list(g->cfg.coordinator, g->coord_addr, RG_CONTROL_PLACES, err);
        g->n_coord_addr = n > 0 ? n : 0;
        st = n > 0   ? RG_OK
             : n < 0 ? (rg_status_t)n
                     : rg_fail(err, RG_ERR_INVALID, 0, "coordinator %s: no address", g->cfg.coordinator);
    }
    if (st == RG_OK) st = rg_tuning_load(g, err);
    if (st == RG_OK) g->stale = rg_stale_known(g->cfg.group);
    if (st == RG_OK) st = rg_tls_open(&RG_TLS_FILES(&g->cfg), &g->tls, err);
    if (st == RG_OK && *rg_tls_warning(g->tls)) RG_LOGF(&g->log, RG_LOG_WARN, "%s", rg_tls_warning(g->tls));
    if (st == RG_OK && rg_os_random(p->identity, sizeof p->identity) != RG_OK)
        st = rg_fail(err, RG_ERR_SYSTEM, 0, "the system gave no random bytes");
    if (st == RG_OK) st = open_descriptors(g, err);
    if (st == RG_OK) st = open_transport(g, p, err);
    if (st == RG_OK) st = open_core(g, j, p, err);
    if (st == RG_OK && rg_side_open(g) != RG_OK) st = rg_fail(err, RG_ERR_NOMEM, 0, "no memory for a group");
    free(p);
    return st;
}

int rg_group_inherited(const rg_group_t *g) { return g->forks != rg_os_forks(); }

rg_status_t rg_group_open(const rg_join_t *j, rg_group_t **out, rg_error_t *err) {
    RG_OS_STAY;
    rg_group_t *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g) return rg_fail(err, RG_ERR_NOMEM, 0, "no memory for a group");
    g->forks = rg_os_forks();
    g->epfd = g->wakefd = -1;
    g->host_procs = 1;
    g->cores = rg_os_cores();
    g->links = calloc(RG_MAX_LINKS, sizeof *g->links);
    g->first = j->first;
    init_locks(g);
    rg_control_init(&g->control);
    rg_status_t st = g->links ? group_open(g, j, err) : rg_fail(err, RG_ERR_NOMEM, 0, "no memory for links");
    if (st == RG_OK) {
        g->variant = settings_hash(&g->cfg, g->tuning_hash);
        g->spin_us = g->cfg.spin_us;
        rg_lock(g);
        st = join_wait(g, err);
        if (st == RG_OK && remember_members(g) != RG_OK)
            st = rg_fail(err, RG_ERR_NOMEM, 0, "no memory for the list of members; free some and join again");
        rg_unlock(g);
    }
    if (st == RG_OK) st = start_thread(g, err);
    if (st != RG_OK) {
        rg_group_free(g);
        return st;
    }
    *out = g;
    return RG_OK;
}

static int never(void *arg) {
    (void)arg;
    return 0;
}
static int drained(void *arg) {
    rg_group_t *g = arg;
    return g->phase != RG_PHASE_MEMBER || rg_member_drained(g->core);
}

/* A part of the operation deadline is kept for telling the coordinator, so that both together end within it. */
static void leave_in_order(rg_group_t *g) {
    const uint64_t limit = (uint64_t)g->cfg.op_timeout_ms * 1000000u, beat = (uint64_t)g->cfg.heartbeat_ms * 1000000u;
    const uint64_t until = rg_os_now_ns() + limit, tell = beat < limit / 4 ? beat : limit / 4;
    rg_quick_tell(g); /* copies of these may be needed, too */
    g->leaving = 1;
    if (g->open_ops) rg_data_fence(g); /* their callers get their buffers back, while this call goes on for a while */
    rg_ops_finish_all(g, RG_ERR_CLOSED, "the group was left");
    rg_wake(g); /* who drives may have waited for one of them */
    rg_drive(g, drained, g, until - tell);
    if (g->phase != RG_PHASE_MEMBER) return;
    rg_member_event_t ev = { .type = RG_MEV_LEAVE };
    rg_core_event(g, &ev);
    /* Ends when the group is over. */
    const uint64_t told = rg_os_now_ns() + beat;
    rg_drive(g, never, g, told < until ? told : until);
}

rg_status_t rg_group_close(rg_group_t *g) {
    rg_lock(g);
    rg_status_t st = g->leaving ? RG_ERR_CLOSED : g->phase == RG_PHASE_MEMBER ? RG_OK : g->over;
    if (st == RG_OK) {
        leave_in_order(g);
        rg_group_over(g, RG_ERR_CLOSED, "the group was left");
    }
    rg_unlock(g);
    return st;
}

void rg_group_free(rg_group_t *g) {
    RG_OS_STAY;
    rg_side_close(g);
    rg_lock(g);
    if (g->core && g->tp) rg_group_over(g, RG_ERR_ABORTED, "the handle was destroyed");
    g->stop = 1;
    g->driver_ticket++;
    rg_wake(g);
    rg_wake_thread(g);
    rg_unlock(g);
    if (g->thread_running) pthread_join(g->thread, NULL);
    rg_quick_free(g);
    rg_kept_free_all(g);
    rg_office_close(g);
    if (g->tp) g->tp_ops->close(g->tp);
    rg_control_close(&g->control);
    rg_tls_close(g->tls);
    for (uint32_t i = 0; i < g->n_ops; i++) rg_op_destroy(g->ops[i]);
    free(g->ops);
    g->ops = NULL;
    g->n_ops = 0;
    rg_plans_free(g);
    rg_rosters_free(g);
    rg_blocks_free(g);
    free(g->core);
    rg_netstat_free(g);
    rg_side_free(g);
    free(g->links);
    free(g->todo);
    free(g->tags);
    free(g->seen_ids);
    free(g->grid);
    if (g->epfd >= 0) close(g->epfd);
    if (g->wakefd >= 0) close(g->wakefd);
    rg_config_free(g->cfg_strings);
    rg_tuning_free(g->tuning);
    /* The handles of its children, which lock it, must still be destroyed. */
    rg_lock(g);
    g->gone = 1;
    int last = !g->children;
    rg_unlock(g);
    if (last) rg_group_shell_free(g);
}

void rg_group_shell_free(rg_group_t *g) {
    pthread_cond_destroy(&g->cond);
    pthread_cond_destroy(&g->thread_cond);
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->thread_lock);
    free(g);
}

/* ---- Boundaries
 * --------------------------------------------------------------------------------------------------------- */

static int boundary_passed(void *arg) {
    const rg_group_t *g = arg;
    return g->boundary_gen > g->gen;
}

static uint32_t count_missing(const uint64_t *of, uint32_t n, const uint64_t *in, uint32_t m) {
    uint32_t missing = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = 0;
        while (k < m && in[k] != of[i]) k++;
        missing += k == m;
    }
    return missing;
}

/* Waits until the next generation may begin. One that an earlier call gave up waiting for may have passed meanwhile:
 * then there is nothing left to ask for. */
static rg_status_t boundary_wait(rg_group_t *g, uint64_t start) {
    rg_status_t st = RG_OK;
    if (!boundary_passed(g)) {
        rg_member_event_t ev = { .type = RG_MEV_BOUNDARY, .now_ns = start, .gen = g->gen + 1 };
        st = rg_core_event(g, &ev);
        if (g->driver == RG_DRIVER_CALLER) rg_wake(g); /* it may sleep on what was wanted before */
        if (st == RG_OK) rg_drive(g, boundary_passed, g, start + (uint64_t)g->cfg.op_timeout_ms * 1000000u);
    }
    if (g->phase != RG_PHASE_MEMBER) return g->over;
    if (st == RG_OK && boundary_passed(g)) return RG_OK;
    rg_group_set_errmsg(g, "boundary %llu: the group has not agreed on its newcomers within %u ms; call it again",
                        (unsigned long long)(g->gen + 1), g->cfg.op_timeout_ms);
    return st != RG_OK ? st : RG_ERR_TIMEOUT;
}

rg_status_t rg_group_pass_boundary(rg_group_t *g, rg_change_t *c) {
    if (g->phase != RG_PHASE_MEMBER) return rg_handle_ended(g);
    if (g->in_boundary) {
        rg_group_set_errmsg(g, "two threads called rg_group_boundary at once; each boundary is passed by one call");
        return RG_ERR_INVALID;
    }
    uint64_t start = rg_os_now_ns();
    g->in_boundary = 1;
    rg_status_t st = boundary_wait(g, start);
    g->in_boundary = 0;
    if (st != RG_OK) return st;
    g->gen = g->boundary_gen;
    g->next_seq = 0;
    if (g->n_tags) memset(g->tags, 0, g->cap_tags * sizeof *g->tags);
    g->n_tags = 0;
    rg_roster_t *r = rg_roster_for(g, g->gen);
    if (!r) { /* the others count this boundary as passed: calling again would pass one more than they do */
        rg_group_over(g, RG_ERR_NOMEM, "no memory for the members from this boundary on");
        return RG_ERR_NOMEM;
    }
    if (r->n != g->n_seen || memcmp(r->ids, g->seen_ids, r->n * sizeof *r->ids)) {
        c->lost = count_missing(g->seen_ids, g->n_seen, r->ids, r->n);
        c->changed = 1;
    }
    /* All members must see the same number here, for they call by it what brings newcomers up to date; so those count
     * who entered and are lost already, which only some members may have heard of. */
    c->joined = rg_member_entered(g->core, g->gen);
    uint32_t left = count_missing(r->ids, r->n, g->seen_ids, g->n_seen);
    if (c->joined > left) c->lost += c->joined - left;
    if (c->joined) c->changed = 1;
    c->world_size = r->n;
    c->rank = r->rank;
    c->epoch = rg_member_view(g->core)->epoch;
    c->boundary = g->gen;
    c->stalled_ns = rg_os_now_ns() - start;
    rg_roster_put(r);
    if (c->changed && remember_members(g) != RG_OK) {
        rg_group_over(g, RG_ERR_NOMEM, "no memory for the members from this boundary on");
        return RG_ERR_NOMEM;
    }
    return RG_OK;
}
