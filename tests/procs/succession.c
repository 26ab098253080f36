/* succession.c: see succession.h. */
#include "succession.h"
#include "net.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

uint32_t succ_heartbeat_ms(void) {
    const char *v = getenv("HEARTBEAT");
    return v && atoi(v) > 0 ? (uint32_t)atoi(v) : 1000;
}

uint32_t succ_random(struct succ *s, uint32_t below) {
    s->seed = s->seed * 1664525u + 1013904223u;
    return (s->seed >> 8) % below;
}

struct succ *succ_new(const char *group, unsigned seed) {
    struct succ *s = procs_shared(sizeof *s);
    snprintf(s->group, sizeof s->group, "%s", group);
    s->seed = seed;
    s->elems = 4000;
    for (int i = 0; i < 2; i++) s->port[i] = procs_free_port();
    for (int i = 0; i < SUCC_SLOTS; i++) s->m[i].port = (uint32_t)procs_free_port();
    for (int i = 0; i < SUCC_SLOTS + 2; i++) snprintf(s->host[i], sizeof s->host[i], "127.0.0.1");
    succ_list(s, 0);
    return s;
}

/* Appends ",HOST:PORT", or without the comma at the beginning; of a copy, as the compiler cannot see that the list is
 * not what it is made of. */
static size_t append(char *list, size_t cap, size_t at, const char *of, int port) {
    char host[64];
    snprintf(host, sizeof host, "%s", of);
    return at + (size_t)snprintf(list + at, cap - at, "%s%s:%d", at ? "," : "", host, port);
}

void succ_list(struct succ *s, int with_members) {
    size_t at = 0;
    for (int i = 0; i < 2; i++) at = append(s->list, sizeof s->list, at, s->host[SUCC_SLOTS + i], s->port[i]);
    for (int i = 0; with_members && i < SUCC_SLOTS; i++)
        at = append(s->list, sizeof s->list, at, s->host[i], (int)s->m[i].port);
}

static void reap(pid_t pid) {
    if (!pid) return;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

void succ_free(struct succ *s) {
    for (int i = 0; i < SUCC_SLOTS; i++) reap(s->m[i].pid);
    for (int i = 0; i < 2; i++) reap(s->co[i]);
    munmap(s, sizeof *s);
}

/* ---- Coordinators ---------------------------------------------------------------------------------------------- */

struct co_arg {
    struct succ *s;
    int which, standby, told[2];
};

static int coordinator_body(int index, void *arg) {
    struct co_arg *a = arg;
    struct succ *s = a->s;
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co;
    rg_error_t err;
    char listen_at[96], other[96];
    (void)index;
    net_enter(s->ns[SUCC_SLOTS + a->which]);
    snprintf(listen_at, sizeof listen_at, "%s:%d", s->host[SUCC_SLOTS + a->which], s->port[a->which]);
    snprintf(other, sizeof other, "%s:%d", s->host[SUCC_SLOTS + !a->which], s->port[!a->which]);
    cfg.listen = listen_at;
    cfg.heartbeat_ms = SUCC_HEARTBEAT_MS;
    cfg.takeover_ms = SUCC_TAKEOVER_MS;
    cfg.succession = RG_ON;
    if (a->standby) cfg.standby = other;
    PROCS_REQUIRE(rg_coordinator_start(&cfg, &co, &err) == RG_OK, "%s", err.text);
    if (write(a->told[1], "!", 1) != 1) return 1;
    for (;;) pause();
}

int succ_coordinator(struct succ *s, int which, int standby) {
    struct co_arg a = { .s = s, .which = which, .standby = standby };
    char c;
    if (pipe(a.told)) return 1;
    s->co[which] = procs_fork(coordinator_body, 0, &a);
    close(a.told[1]);
    ssize_t n = read(a.told[0], &c, 1);
    close(a.told[0]);
    return n != 1;
}

void succ_kill_coordinator(struct succ *s, int which) {
    reap(s->co[which]);
    s->co[which] = 0;
}

/* ---- Members --------------------------------------------------------------------------------------------------- */

static int member_failed(struct succ_member *m, rg_group_t *g, rg_status_t st, const char *text) {
    rg_info_t info = RG_INFO_INIT;
    if (g) rg_group_info(g, &info);
    m->stale = info.stale;
    snprintf(m->text, sizeof m->text, "%s: %s", rg_status_name(st), text);
    m->status = st;
    m->ended = 1;
    return 3;
}

static int operation(struct succ *s, struct succ_member *m, rg_group_t *g, float *x, uint32_t n, int in_place) {
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t opts = RG_OPTS_INIT;
    float *out = in_place ? x : x + s->elems;
    opts.result = &res;
    for (uint32_t i = 0; i < n; i++) x[i] = (float)(1 + i % 7);
    rg_status_t st = rg_all_reduce(g, x, out, n, RG_F32, RG_SUM, &opts, NULL);
    for (uint32_t i = 0; i < n; i++)
        if (out[i] != (float)(1 + i % 7) * (st ? 1.0f : (float)res.contributors) && (!st || in_place)) m->wrong = 1;
    if (st) return member_failed(m, g, st, res.text);
    m->contributors = res.contributors;
    __atomic_add_fetch(&m->ops, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static int member_body(int slot, void *arg) {
    struct succ *s = arg;
    struct succ_member *m = &s->m[slot];
    rg_config_t cfg = procs_config(s->list, s->group, m->founder ? SUCC_N : 1, (uint32_t)slot);
    rg_group_t *g = NULL;
    rg_error_t err;
    float *x = malloc(2 * s->elems * sizeof *x);
    net_enter(s->ns[slot]);
    cfg.listen_port = m->port;
    cfg.quorum_timeout_ms = s->quorum_timeout_ms;
    if (s->host_office_off) cfg.host_office = RG_OFF;
    rg_status_t st = rg_group_join(&cfg, &g, &err);
    if (st) return member_failed(m, NULL, st, err.text);
    int rc = 0;
    for (uint32_t k = 0; !rc && !s->end; k++) {
        rg_info_t info = RG_INFO_INIT;
        rg_group_info(g, &info);
        m->holds_office = info.holds_office;
        m->rank = info.rank;
        m->stale = info.stale;
        rc = operation(s, m, g, x, k % 4 ? 64 : s->elems, k % 2);
        if (!rc && k % 4 == 3 && (st = rg_group_boundary(g, NULL))) {
            char text[256];
            rg_group_errmsg(g, text, sizeof text);
            rc = member_failed(m, g, st, text);
        }
    }
    if (rc && m->status == RG_ERR_NO_QUORUM && m->wrong == 0) rc = 4;
    rg_group_destroy(g);
    free(x);
    m->ended = 1;
    return rc;
}

void succ_member(struct succ *s, int slot) {
    struct succ_member *m = &s->m[slot];
    *m = (struct succ_member){ .port = m->port, .founder = s->started++ < SUCC_N };
    m->pid = procs_fork(member_body, slot, s);
}

void succ_kill_member(struct succ *s, int slot) {
    reap(s->m[slot].pid);
    s->m[slot].pid = 0;
    s->m[slot].holds_office = 0;
}

/* ---- Looking --------------------------------------------------------------------------------------------------- */

static int all_have(const struct succ *s, uint32_t n) {
    uint32_t have = 0;
    for (int i = 0; i < SUCC_SLOTS; i++) have += s->m[i].pid && !s->m[i].ended && s->m[i].contributors == n;
    return have == n;
}

static int any_ended(const struct succ *s) {
    for (int i = 0; i < SUCC_SLOTS; i++)
        if (s->m[i].pid && s->m[i].ended) return 1;
    return 0;
}

int succ_up(struct succ *s, uint32_t n, double seconds) {
    return PROCS_WAIT(all_have(s, n) || any_ended(s), seconds) && all_have(s, n);
}

int succ_moves(struct succ *s, uint64_t ops, double seconds) {
    uint64_t until[SUCC_SLOTS];
    int ok = 1;
    for (int i = 0; i < SUCC_SLOTS; i++) until[i] = s->m[i].ops + ops;
    for (int i = 0; i < SUCC_SLOTS; i++)
        ok = ok && (!s->m[i].pid || PROCS_WAIT(s->m[i].ops >= until[i] || s->m[i].ended, seconds));
    return ok && !any_ended(s);
}

int succ_clean(struct succ *s) {
    int ok = 1;
    for (int i = 0; i < SUCC_SLOTS; i++) {
        const struct succ_member *m = &s->m[i];
        if (!m->pid || (!m->ended && !m->wrong)) continue;
        ok = 0;
        fprintf(stderr, "member %d: %s%s\n", i, m->wrong ? "WRONG RESULT or lost input; " : "",
                m->text[0] ? m->text : "ended");
    }
    return ok;
}

int succ_office(const struct succ *s) {
    for (int i = 0; i < SUCC_SLOTS; i++)
        if (s->m[i].pid && s->m[i].holds_office) return i;
    return -1;
}
