/* env.c: see env.h. */
#include "env.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct env *env_new(const char *group, uint32_t n, uint32_t count) {
    struct env *e = procs_shared(sizeof *e);
    e->cfg = procs_config(NULL, NULL, 0, 0);
    e->cfg.op_timeout_ms = 40000; /* the tests give up before */
    e->n = n;
    e->count = count;
    snprintf(e->group, sizeof e->group, "%s", group);
    return e;
}

void env_free(struct env *e) { munmap(e, sizeof *e); }

void env_skip(const char *name, const char *reason) {
    procs_skipped++;
    printf("skip   %s: %s\n", name, reason);
}

/* ---- The coordinator ------------------------------------------------------------------------------------------- */

struct where {
    pid_t ns;
    const char *listen;
    uint32_t heartbeat_ms;
    int hold[2], told[2];
};

static int coordinator_body(int index, void *arg) {
    struct where *w = arg;
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co;
    rg_error_t err;
    char address[128] = "", end;
    (void)index;
    close(w->hold[1]);
    close(w->told[0]);
    net_enter(w->ns);
    cfg.listen = w->listen;
    cfg.heartbeat_ms = w->heartbeat_ms;
    PROCS_REQUIRE(rg_coordinator_start(&cfg, &co, &err) == RG_OK, "%s", err.text);
    snprintf(address, sizeof address, "%s", rg_coordinator_address(co));
    if (write(w->told[1], address, sizeof address) != (ssize_t)sizeof address) return 1;
    while (read(w->hold[0], &end, 1) < 0 && errno == EINTR) {}
    rg_coordinator_stop(co);
    return 0;
}

int env_coordinator(struct procs_coordinator *co, pid_t ns, const char *listen, uint32_t heartbeat_ms) {
    struct where w = { .ns = ns, .listen = listen, .heartbeat_ms = heartbeat_ms };
    if (pipe(w.hold) || pipe(w.told)) return 1;
    co->pid = procs_fork(coordinator_body, 0, &w);
    close(w.hold[0]);
    close(w.told[1]);
    co->hold = w.hold[1];
    ssize_t n = read(w.told[0], co->address, sizeof co->address);
    close(w.told[0]);
    if (n == (ssize_t)sizeof co->address) return 0;
    close(co->hold);
    waitpid(co->pid, NULL, 0);
    return 1;
}

void env_coordinator_kill(struct procs_coordinator *co) {
    kill(co->pid, SIGKILL);
    waitpid(co->pid, NULL, 0);
    close(co->hold);
}

/* ---- A member -------------------------------------------------------------------------------------------------- */

/* The time last: whoever sees it reads the rest. */
static int failed(struct env_member *m, rg_status_t st, const char *text) {
    uint64_t at = procs_now();
    snprintf(m->text, sizeof m->text, "%s", text);
    m->status = st;
    __atomic_store_n(&m->ended_ns, at, __ATOMIC_RELEASE);
    return 3;
}

static void look_around(struct env *e, struct env_member *m, rg_group_t *g) {
    rg_info_t info = RG_INFO_INIT;
    uint64_t epoch = 0;
    m->idles++;
    while (e->idle && !e->end) {
        if (rg_group_info(g, &info)) return;
        if (epoch && info.epoch != epoch && !m->changed_ns) m->changed_ns = procs_now();
        epoch = info.epoch;
        procs_nap();
    }
}

/* Operations and boundaries until the first member says by its data that all is over, or pause. */
static int work(struct env *e, int index, rg_group_t *g, float *x) {
    struct env_member *m = &e->m[index];
    for (;;) {
        rg_result_t res = RG_RESULT_INIT;
        rg_opts_t opts = RG_OPTS_INIT;
        rg_info_t info = RG_INFO_INIT;
        char text[512];
        opts.result = &res;
        opts.timeout_ms = e->op_timeout_ms;
        for (uint32_t i = 0; i < e->count; i++) x[i] = 1;
        x[0] = index == 0 && e->end ? 1000 : 1;
        x[1] = index == 0 && e->idle && !e->end ? 1000 : 1;
        uint64_t t = m->called_ns = procs_now();
        rg_status_t st = rg_all_reduce(g, x, x, e->count, RG_F32, RG_SUM, &opts, NULL);
        if (st) return failed(m, st, res.text);
        t = procs_now() - t;
        if (t > m->worst_ns) m->worst_ns = t;
        for (uint32_t i = 2; i < e->count; i++)
            if (x[i] != (float)res.contributors) m->wrong = 1;
        if (m->contributors > res.contributors && !m->changed_ns) m->changed_ns = procs_now();
        m->contributors = res.contributors;
        if (!rg_group_info(g, &info)) m->rank = info.rank;
        __atomic_add_fetch(&m->ops, 1, __ATOMIC_SEQ_CST);
        m->rss_kb = procs_rss_kb(getpid());
        if (x[0] >= 1000) return 0;
        if (x[1] >= 1000) look_around(e, m, g);
        st = rg_group_boundary(g, NULL);
        if (st) {
            rg_group_errmsg(g, text, sizeof text);
            return failed(m, st, text);
        }
        m->boundaries++;
    }
}

int env_member(int index, void *arg) {
    struct env *e = arg;
    struct env_member *m = &e->m[index];
    float *x = malloc(e->count * sizeof *x);
    rg_error_t err;
    int rc = 3;
    net_enter(e->ns[index]);
    if (e->hosts[index]) PROCS_REQUIRE(!net_hosts(e->hostname[index], e->hosts[index]), "no private /etc/hosts");
    for (int first = 1; x && rc == 3; first = 0) {
        rg_config_t cfg = e->cfg;
        rg_group_t *g = NULL;
        if (!first && !PROCS_WAIT(e->rejoin || e->end, 30)) break;
        if (!first && !e->rejoin) break;
        cfg.coordinator = e->coordinator[index] ? e->coordinator[index] : e->address;
        cfg.group = e->group;
        cfg.order = (uint32_t)index;
        cfg.min_size = first ? e->n : 1;
        cfg.interface = e->interface[index] ? e->interface[index] : cfg.interface;
        cfg.listen_port = e->port[index];
        rg_status_t st = rg_group_join(&cfg, &g, &err);
        if (st) {
            failed(m, st, err.text);
            rc = 4;
            break;
        }
        m->contributors = 0;
        m->joined = 1;
        m->joins++;
        rc = work(e, index, g, x);
        if (!rc) rc = rg_group_leave(g) != RG_OK;
        rg_group_destroy(g);
    }
    free(x);
    return rc;
}

void env_start(struct env *e, pid_t *pids) {
    for (uint32_t i = 0; i < e->n; i++) pids[i] = procs_fork(env_member, (int)i, e);
}

int env_running(struct env *e, uint64_t ops, double seconds) {
    uint64_t before[ENV_MEMBERS];
    for (uint32_t i = 0; i < e->n; i++) before[i] = e->m[i].ops;
    for (uint32_t i = 0; i < e->n; i++)
        if (!ENV_SEEN(PROCS_WAIT(e->m[i].ops >= before[i] + ops, seconds),
                      "group %s, member %u: joined %d status %d %s", e->group, i, e->m[i].joined, e->m[i].status,
                      e->m[i].text))
            return 0;
    return 1;
}

int env_end(struct env *e, pid_t *pids, unsigned expected_bad) {
    int ok = 1;
    e->end = 1;
    for (uint32_t i = 0; i < e->n; i++) {
        int rc = procs_end(pids[i], 20);
        if (expected_bad & 1u << i) continue;
        ok = ENV_SEEN(rc == 0 && !e->m[i].wrong, "group %s, member %u ended with %d, status %d %s%s", e->group, i, rc,
                      e->m[i].status, e->m[i].text, e->m[i].wrong ? ", wrong results" : "") &&
             ok;
    }
    return ok;
}

void env_kill(pid_t *pids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) kill(pids[i], SIGKILL);
    for (uint32_t i = 0; i < n; i++) waitpid(pids[i], NULL, 0);
}
