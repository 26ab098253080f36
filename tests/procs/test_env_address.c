/* test_env_address.c: hosts whose name, interfaces or address families are not what a program would like: a name that
 * means 127.0.1.1, IPv6 only, link-local only, nothing in common, several interfaces to choose from. Each host is a
 * network namespace (net.h), where needed with an /etc/hosts of its own. */
#include "env.h"

#include "os/os.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define N 3

/* ---- Groups over one kind of address --------------------------------------------------------------------------- */

/* Members on nodes 0 to N - 1, the coordinator beside member 0. */
struct site {
    struct net net;
    struct procs_coordinator co;
    struct env *e;
    pid_t pids[N];
};

static int site_open(struct site *p, unsigned families, const char *listen) {
    memset(p, 0, sizeof *p);
    if (net_open(&p->net, N, families, 1)) return 0;
    if (env_coordinator(&p->co, p->net.node[0], listen, 2000)) {
        net_close(&p->net);
        return 0;
    }
    p->e = env_new("address", N, 20000);
    for (int i = 0; i < N; i++) p->e->ns[i] = p->net.node[i];
    snprintf(p->e->address, sizeof p->e->address, "%s", p->co.address);
    return 1;
}

static int site_close(struct site *p, int ok) {
    ok = procs_coordinator_stop(&p->co) == 0 && ok;
    net_close(&p->net);
    env_free(p->e);
    return ok;
}

static const char *port_of(const struct procs_coordinator *co) { return strrchr(co->address, ':') + 1; }

/* The members start one after the other, in this order; all end well. */
static int site_run(struct site *p, const int order[N]) {
    struct env *e = p->e;
    for (int k = 0; k < N; k++) {
        p->pids[order[k]] = procs_fork(env_member, order[k], e);
        if (k == 0) PROCS_WAIT(0, 0.1); /* a head start, so that the others dial it */
    }
    int ok = env_running(e, 10, 12);
    if (ok) return env_end(e, p->pids, 0);
    env_kill(p->pids, N);
    return 0;
}

static const int upwards[N] = { 0, 1, 2 }, downwards[N] = { 2, 1, 0 };

static int ipv6_only(void) {
    struct site p;
    char v6[64], listen[80];
    snprintf(listen, sizeof listen, "[%s]:0", net_v6(&(struct net){ .bridged = 1 }, 0, v6));
    return site_open(&p, NET_V6, listen) && site_close(&p, site_run(&p, upwards));
}

static int link_local_only(void) {
    struct site p;
    char fe80[64] = "";
    int ok = site_open(&p, NET_LINK_LOCAL, "[::]:0");
    if (!ok) return 0;
    ok = ENV_SEEN(!net_link_local(p.net.node[0], fe80), "node 0 has no link-local address");
    snprintf(p.e->address, sizeof p.e->address, "[%s]:%s", fe80, port_of(&p.co));
    return site_close(&p, ok && site_run(&p, upwards));
}

/* ":port" means every address of the host, whatever its family. */
static int both_families(void) {
    struct site p;
    char v4[64], v6[64], four[80], six[80];
    if (!site_open(&p, NET_V4 | NET_V6, ":0")) return 0;
    snprintf(four, sizeof four, "%s:%s", net_v4(&p.net, 0, v4), port_of(&p.co));
    snprintf(six, sizeof six, "[%s]:%s", net_v6(&p.net, 0, v6), port_of(&p.co));
    p.e->coordinator[0] = p.e->coordinator[2] = four;
    p.e->coordinator[1] = six;
    return site_close(&p, site_run(&p, downwards));
}

/* One member offers IPv4 only, the other IPv6 only: no waiting helps. */
static int nothing_in_common(void) {
    struct site p;
    if (!site_open(&p, NET_V4 | NET_V6, "[::]:0")) return 0;
    struct env *e = p.e;
    char six[80], v6[64];
    snprintf(six, sizeof six, "[%s]:%s", net_v6(&p.net, 0, v6), port_of(&p.co));
    snprintf(e->address, sizeof e->address, "%s", six);
    e->n = 2;
    e->cfg.join_timeout_ms = 6000;
    e->interface[0] = "10.77.0.0/16";
    e->interface[1] = "fd77::/16";
    p.pids[0] = procs_fork(env_member, 0, e);
    PROCS_WAIT(0, 0.2);
    uint64_t t = procs_now();
    p.pids[1] = procs_fork(env_member, 1, e);
    int ok = ENV_SEEN(PROCS_WAIT(e->m[1].ended_ns, 3), "it waits though there is no hope");
    ok =
        ok && ENV_SEEN(strstr(e->m[1].text, "IPv4") && strstr(e->m[1].text, "IPv6"), "%s after %.0f ms: %s",
                       rg_status_name((rg_status_t)e->m[1].status), (double)(e->m[1].ended_ns - t) / 1e6, e->m[1].text);
    env_kill(p.pids, 2);
    return site_close(&p, ok);
}

static int loopback_ipv6(void) {
    struct procs_coordinator co;
    struct net t;
    struct env *e = env_new("v6lo", 2, 20000);
    pid_t pids[2];
    if (net_open(&t, 1, 0, 1)) return 0;
    int ok = !env_coordinator(&co, t.node[0], "[::1]:0", 2000);
    if (ok) {
        snprintf(e->address, sizeof e->address, "%s", co.address);
        e->ns[0] = e->ns[1] = t.node[0];
        env_start(e, pids);
        ok = env_running(e, 10, 10);
        if (ok) ok = env_end(e, pids, 0);
        else env_kill(pids, 2);
        ok = procs_coordinator_stop(&co) == 0 && ok;
    }
    net_close(&t);
    env_free(e);
    return ok;
}

/* ---- The own name ---------------------------------------------------------------------------------------------- */

/* What Debian writes: the host's own name is 127.0.1.1. The member beside the coordinator uses that name, like all. */
static int own_name_is_loopback(const int order[N]) {
    struct site p;
    char address[64];
    if (!site_open(&p, NET_V4, "0.0.0.0:0")) return 0;
    struct env *e = p.e;
    snprintf(address, sizeof address, "head:%s", port_of(&p.co));
    for (int i = 0; i < N; i++) {
        static const char *const names[N] = { "head", "worker1", "worker2" };
        e->coordinator[i] = address;
        e->hostname[i] = names[i];
    }
    e->hosts[0] = "127.0.0.1 localhost\n127.0.1.1 head\n";
    e->hosts[1] = "127.0.0.1 localhost\n127.0.1.1 worker1\n10.77.0.1 head\n";
    e->hosts[2] = "127.0.0.1 localhost\n127.0.1.1 worker2\n10.77.0.1 head\n";
    return site_close(&p, site_run(&p, order));
}

static int own_name_first(void) { return own_name_is_loopback(upwards); }
static int own_name_last(void) { return own_name_is_loopback(downwards); }

/* A member that was told a loopback address by number means its own host only; who cannot reach it is told why. */
static int loopback_by_number(void) {
    struct site p;
    char there[80], v4[64];
    if (!site_open(&p, NET_V4, "0.0.0.0:0")) return 0;
    struct env *e = p.e;
    snprintf(e->address, sizeof e->address, "127.0.0.1:%s", port_of(&p.co));
    snprintf(there, sizeof there, "%s:%s", net_v4(&p.net, 0, v4), port_of(&p.co));
    e->coordinator[1] = there;
    e->n = 2;
    e->cfg.join_timeout_ms = 2000;
    p.pids[0] = procs_fork(env_member, 0, e);
    PROCS_WAIT(0, 0.2);
    p.pids[1] = procs_fork(env_member, 1, e);
    int ok = ENV_SEEN(PROCS_WAIT(e->m[1].ended_ns, 4), "it does not end");
    ok = ok && ENV_SEEN(strstr(e->m[1].text, "127.0.0.1") && strstr(e->m[1].text, "RG_INTERFACE"), "%s", e->m[1].text);
    env_kill(p.pids, 2);
    return site_close(&p, ok);
}

/* The first address of the coordinator's name leads nowhere; the second one is found in time. */
static int first_address_is_dead(void) {
    struct site p;
    char address[64];
    if (!site_open(&p, NET_V4, "0.0.0.0:0")) return 0;
    struct env *e = p.e;
    snprintf(address, sizeof address, "head:%s", port_of(&p.co));
    for (int i = 0; i < N; i++) {
        e->coordinator[i] = address;
        e->hostname[i] = "node";
        e->hosts[i] = "127.0.0.1 localhost\n10.77.0.99 head\n10.77.0.1 head\n";
    }
    return site_close(&p, site_run(&p, upwards));
}

/* ---- The interface selector ------------------------------------------------------------------------------------ */

struct selection {
    const char *selector, *remote;
    const char *want; /* addresses in order, or a part of the error behind "!" */
};

static const struct selection selections[] = {
    { "eth0", NULL, "10.1.0.2 fd01::2" },
    { "eth1", NULL, "10.2.0.2" },
    { "eth", NULL, "10.1.0.2 10.2.0.2 10.3.0.2 fd01::2" },
    { "eth1,eth0", NULL, "10.2.0.2 10.1.0.2 fd01::2" },
    { "eth1,eth1", NULL, "10.2.0.2" },
    { "^lo,docker", NULL, "10.1.0.2 10.2.0.2 10.3.0.2 fd01::2" },
    { "^eth,docker0", NULL, "!eth0 10.1.0.2" },
    { "10.0.0.0/8", NULL, "10.1.0.2 10.2.0.2 10.3.0.2" },
    { "::/0", NULL, "fd01::2" },
    { "10.2.0.0/15", NULL, "10.2.0.2 10.3.0.2" },
    { "fd00::/8", NULL, "fd01::2" },
    { "0.0.0.0/0", NULL, "10.1.0.2 10.2.0.2 10.3.0.2 172.17.0.1" },
    { "^10.2.0.0/16,172.16.0.0/12,fd00::/8", NULL, "10.1.0.2 10.3.0.2" },
    { "10.3.0.2", NULL, "10.3.0.2" },
    { "fd01::2", NULL, "fd01::2" },
    { "10.3.0.2,eth0", NULL, "10.3.0.2 10.1.0.2 fd01::2" },
    { "lo", NULL, "127.0.0.1 ::1" },
    { "127.0.0.1", NULL, "127.0.0.1" },
    { "eth9", NULL, "!eth9" },
    { "eth9", NULL, "!docker0 172.17.0.1" },
    { "10.9.0.2", NULL, "!eth1 10.2.0.2" },
    { "10.0.0.0/33", NULL, "!10.0.0.0/33" },
    { "eth0/8", NULL, "!eth0/8" },
    { ",", NULL, "!eth0 10.1.0.2" },
    { "^", NULL, "!eth0 10.1.0.2" },
    { NULL, "10.2.0.9:80", "10.2.0.2" },
    { NULL, "10.1.0.9:80", "10.1.0.2 fd01::2" },
    { NULL, "[fd01::9]:80", "fd01::2 10.1.0.2" },
    { NULL, "127.0.0.1:80", "127.0.0.1" },
    { "", "10.3.0.9", "10.3.0.2" },
};

static int selection_holds(const struct selection *s) {
    struct sockaddr_storage out[8];
    char got[512] = "", text[80];
    rg_error_t err = { 0 };
    int n = rg_os_local_addresses(s->selector, s->remote, out, 8, &err);
    for (int i = 0; i < n; i++) {
        rg_os_addr_text((struct sockaddr *)&out[i], text, sizeof text);
        char *ip = text, *end = strrchr(text, ':');
        *end = 0;
        if (*ip == '[') {
            ip++;
            ip[strlen(ip) - 1] = 0;
        }
        size_t used = strlen(got);
        snprintf(got + used, sizeof got - used, "%s%s", used ? " " : "", ip);
    }
    if (s->want[0] == '!')
        return ENV_SEEN(n == RG_ERR_INVALID && strstr(err.text, s->want + 1), "\"%s\": %d, \"%s\", \"%s\"", s->selector,
                        n, got, err.text);
    return ENV_SEEN(n > 0 && !strcmp(got, s->want), "\"%s\" towards \"%s\": \"%s\", expected \"%s\" %s",
                    s->selector ? s->selector : "", s->remote ? s->remote : "", got, s->want, err.text);
}

static int selector_body(int index, void *arg) {
    int ok = 1;
    net_enter(*(pid_t *)arg);
    if (index < 0) /* planted: the check must see a wrong address; what it says about it is of no interest */
        return !freopen("/dev/null", "w", stderr) || !selection_holds(&(struct selection){ "eth1", NULL, "10.1.0.2" });
    for (size_t i = 0; i < sizeof selections / sizeof *selections; i++) ok = selection_holds(&selections[i]) && ok;
    /* The same through the front door, by the environment, too. */
    rg_config_t cfg = procs_config("127.0.0.1:1", "selector", 1, 0);
    rg_group_t *g = NULL;
    rg_error_t err;
    setenv("RG_INTERFACE", "wlan7", 1);
    uint64_t t = procs_now();
    rg_status_t st = rg_group_join(&cfg, &g, &err);
    ok = ENV_SEEN(st == RG_ERR_INVALID && !g && strstr(err.text, "wlan7") && strstr(err.text, "eth0 10.1.0.2") &&
                      procs_now() - t < 10000000000ull /* and not by the time-out */,
                  "%s: %s", rg_status_name(st), err.text) &&
         ok;
    return !ok;
}

static int selector(int planted) {
    pid_t *ns = procs_shared(sizeof *ns);
    struct net t;
    if (net_open(&t, 1, 0, 1)) return 0;
    *ns = t.node[0];
    int ok = !net_batch(*ns, "ip",
                        "link add eth1 type veth peer name x1\nlink add eth10 type veth peer name x2\n"
                        "link add docker0 type veth peer name x3\n"
                        "link set x1 addrgenmode none\nlink set x2 addrgenmode none\nlink set x3 addrgenmode none\n"
                        "link set eth1 addrgenmode none\nlink set eth10 addrgenmode none\n"
                        "link set docker0 addrgenmode none\n"
                        "addr add 10.1.0.2/16 dev eth0\naddr add fd01::2/64 dev eth0 nodad\n"
                        "addr add 10.2.0.2/16 dev eth1\naddr add 10.3.0.2/16 dev eth10\n"
                        "addr add 172.17.0.1/16 dev docker0\n"
                        "link set eth1 up\nlink set eth10 up\nlink set docker0 up\n"
                        "link set x1 up\nlink set x2 up\nlink set x3 up\n");
    int rc = procs_end(procs_fork(selector_body, planted ? -1 : 0, ns), 10);
    net_close(&t);
    return ok && rc == planted;
}

static int selector_holds(void) { return selector(0); }
static int selector_planted(void) { return selector(1); }

void env_address_cases(void) {
    static const struct {
        const char *name;
        int (*run)(void);
    } cases[] = {
        { "env__ipv6_only__works", ipv6_only },
        { "env__ipv6_loopback_only__works", loopback_ipv6 },
        { "env__link_local_only__works", link_local_only },
        { "env__both_families_at_one_coordinator__works", both_families },
        { "env__no_common_family__said_at_once", nothing_in_common },
        { "env__own_name_is_127_0_1_1_and_first__works", own_name_first },
        { "env__own_name_is_127_0_1_1_and_last__works", own_name_last },
        { "env__loopback_by_number_on_one_host__others_told_why", loopback_by_number },
        { "env__first_address_of_a_name_is_dead__second_is_used", first_address_is_dead },
        { "env__interface_selector__grammar_and_errors", selector_holds },
        { "env__planted_wrong_address__seen", selector_planted },
    };
    const char *why = net_unavailable();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (why) env_skip(cases[i].name, why);
        else PROCS_RUN(cases[i].name, cases[i].run());
    }
}
