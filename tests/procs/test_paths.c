/* test_paths.c: live members whose paths to each other break, in network namespaces: a path heals in time, stays broken
 * and a third relays, lets nothing through in one direction, or a third of the group has none left. Members compare
 * each result with the one that its contributors make, element by element. Relies on env.h, on net.h, and on what the
 * members log of their links, so that a path which was never needed cannot pass for one that was relayed. It must not
 * count a view change as survival: where the group can stay whole, nobody may be missed. */
#include "env.h"

#include <stdlib.h>
#include <sys/mman.h>

#define N 3
#define HEARTBEAT_MS 3000 /* on a busy host processes wait for their turn */

/* What the members of a case have said, all together; in shared memory. */
struct said {
    int relayed, back;
};
static struct said *said;

static void heard(void *user, rg_log_level_t level, const char *line) {
    (void)user;
    (void)level;
    if (!strstr(line, "link to member ")) return;
    int *count = strstr(line, ": back, relayed") ? &said->relayed : strstr(line, ": back") ? &said->back : NULL;
    if (count) __atomic_fetch_add(count, 1, __ATOMIC_SEQ_CST);
}

/* The coordinator has node 0, member i has node i + 1. */
struct place {
    struct net net;
    struct procs_coordinator co;
    struct env *e;
    pid_t pids[N];
};

static int place_open(struct place *p, const char *reconnect_ms) {
    char v4[64], listen[80];
    memset(p, 0, sizeof *p);
    said = procs_shared(sizeof *said);
    if (net_open(&p->net, N + 1, NET_V4, 0)) return 0;
    snprintf(listen, sizeof listen, "%s:0", net_v4(&p->net, 0, v4));
    setenv("RG_RECONNECT_MS", reconnect_ms, 1);
    int rc = env_coordinator(&p->co, p->net.node[0], listen, HEARTBEAT_MS);
    unsetenv("RG_RECONNECT_MS");
    if (rc) return 0;
    p->e = env_new("paths", N, 1u << 18);
    p->e->cfg.op_timeout_ms = 40000;
    p->e->cfg.log_fn = heard;
    p->e->cfg.log_level = RG_LOG_INFO;
    snprintf(p->e->address, sizeof p->e->address, "%s", p->co.address);
    for (int i = 0; i < N; i++) p->e->ns[i] = p->net.node[i + 1];
    env_start(p->e, p->pids);
    return env_running(p->e, 10, 30);
}

/* bad: bit per member that has been expelled. */
static int place_close(struct place *p, int ok, unsigned bad) {
    if (ok) ok = env_end(p->e, p->pids, bad);
    else if (p->e) env_kill(p->pids, N);
    if (p->co.pid) ok = procs_coordinator_stop(&p->co) == 0 && ok;
    net_close(&p->net);
    if (p->e) env_free(p->e);
    munmap(said, sizeof *said);
    return ok;
}

static int nobody_was_missed(struct env *e) {
    int ok = 1;
    for (uint32_t i = 0; i < e->n; i++)
        ok = ENV_SEEN(!e->m[i].changed_ns && e->m[i].contributors == e->n && !e->m[i].status && !e->m[i].wrong,
                      "member %u: %u contributors, %d wrong, %s %s", i, e->m[i].contributors, e->m[i].wrong,
                      rg_status_name((rg_status_t)e->m[i].status), e->m[i].text) &&
             ok;
    return ok;
}

/* Both ends say so, and the group works on whole. */
static int goes_on(struct place *p, const int *count, const char *what) {
    uint64_t start = procs_now();
    int told = PROCS_WAIT(__atomic_load_n(count, __ATOMIC_SEQ_CST) >= 2, 40);
    unsigned long long ms = (procs_now() - start) / 1000000;
    if (told) printf("     %s at both ends %llu ms after the network changed\n", what, ms);
    return ENV_SEEN(told, "%s: %d times", what, *count) && env_running(p->e, 10, 40) && nobody_was_missed(p->e);
}

/* Cut for longer than a heartbeat, so that the connection is given up, but not for the reconnect time on top. */
static int heals_in_time(void) {
    struct place p;
    int ok = place_open(&p, "30000") && !net_cut_pair(&p.net, 2, 3);
    uint64_t until = procs_now() + 3 * HEARTBEAT_MS * 500000ull;
    PROCS_WAIT(!ok || procs_now() >= until, 10);
    ok = ok && !net_heal_pair(&p.net, 2, 3) && goes_on(&p, &said->back, "back");
    ok = ok && ENV_SEEN(!said->relayed, "relayed %d times", said->relayed);
    return place_close(&p, ok, 0);
}

static int stays_cut(void) {
    struct place p;
    int ok = place_open(&p, "1500") && !net_cut_pair(&p.net, 2, 3);
    ok = ok && goes_on(&p, &said->relayed, "back, relayed");
    ok = ok && !net_heal_pair(&p.net, 2, 3) && goes_on(&p, &said->back, "back");
    return place_close(&p, ok, 0);
}

static int one_way(struct place *p, const char *what) {
    return net_batch(p->net.hub, "ip", "rule %s from 10.77.2.0/24 to 10.77.3.0/24 blackhole\n", what) == 0;
}

static int one_direction(void) {
    struct place p;
    int ok = place_open(&p, "1500") && one_way(&p, "add");
    ok = ok && goes_on(&p, &said->relayed, "back, relayed");
    ok = ok && one_way(&p, "del") && goes_on(&p, &said->back, "back");
    return place_close(&p, ok, 0);
}

/* The third member reaches the coordinator and nobody else: nobody can relay, and the larger part goes on. */
static int third_cut_off(void) {
    struct place p;
    int ok = place_open(&p, "1500") && !net_cut_pair(&p.net, 1, 3) && !net_cut_pair(&p.net, 2, 3);
    if (!ok) return place_close(&p, 0, 0);
    struct env_member *m = p.e->m;
    ok = ENV_SEEN(PROCS_WAIT(m[2].status, 40), "the third still works") &&
         ENV_SEEN(m[2].status == RG_ERR_EXPELLED && strstr(m[2].text, "link"), "%s: %s",
                  rg_status_name((rg_status_t)m[2].status), m[2].text) &&
         ENV_SEEN(!m[2].wrong, "the third has wrong results");
    p.e->n = 2;
    ok = ok && env_running(p.e, 10, 40);
    p.e->n = N;
    for (int i = 0; i < 2; i++)
        ok = ENV_SEEN(m[i].contributors == 2 && !m[i].status && !m[i].wrong, "member %d: %u contributors, %d wrong, %s",
                      i, m[i].contributors, m[i].wrong, m[i].text) &&
             ok;
    return place_close(&p, ok, 1u << 2);
}

void test_paths(void) {
    static const struct {
        const char *name;
        int (*run)(void);
    } cases[] = {
        { "paths__pair_cut_and_healed_in_time__nobody_missed", heals_in_time },
        { "paths__pair_stays_cut__third_relays_until_it_heals", stays_cut },
        { "paths__pair_cut_in_one_direction__third_relays_until_it_heals", one_direction },
        { "paths__third_of_the_group_cut_off__larger_part_goes_on", third_cut_off },
    };
    const char *why = net_unavailable();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!procs_wanted(cases[i].name)) continue;
        if (why) env_skip(cases[i].name, why);
        else procs_case(cases[i].name, cases[i].run());
    }
}
