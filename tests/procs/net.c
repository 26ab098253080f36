/* net.c: see net.h. */
#include "net.h"
#include "procs.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Namespaces ------------------------------------------------------------------------------------------------ */

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, text, strlen(text)) < 0) perror(path);
    close(fd);
}

/* Becomes a namespace: 1 in *ready when it is there, -1 when it may not be made. */
static int holder_body(int index, void *arg) {
    volatile int *ready = arg;
    (void)index;
    if (unshare(CLONE_NEWNET)) {
        *ready = -1;
        return 1;
    }
    /* An address is usable at once: nobody else here could have it. */
    put("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
    put("/proc/sys/net/ipv6/conf/all/accept_dad", "0");
    *ready = 1;
    for (;;) pause();
}

static pid_t holder(void) {
    static volatile int *ready;
    if (!ready) ready = procs_shared(sizeof *ready);
    *ready = 0;
    pid_t pid = procs_fork(holder_body, 0, (void *)(uintptr_t)ready);
    if (PROCS_WAIT(*ready, 10) && *ready == 1) return pid;
    kill(pid, SIGKILL);
    procs_end(pid, 5);
    return 0;
}

static void holder_end(pid_t pid) {
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

void net_enter(pid_t pid) {
    char path[64];
    if (!pid) return;
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET)) {
        perror("setns");
        _exit(1);
    }
    close(fd);
}

int net_batch(pid_t pid, const char *tool, const char *fmt, ...) {
    char text[4096];
    int in[2], status;
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (len < 0 || (size_t)len >= sizeof text || pipe(in)) return 1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        net_enter(pid);
        dup2(in[0], 0);
        close(in[0]);
        close(in[1]);
        execlp(tool, tool, "-batch", "-", (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    ssize_t put_all = write(in[1], text, (size_t)len);
    close(in[1]);
    if (child < 0 || waitpid(child, &status, 0) != child || put_all != len) return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

const char *net_unavailable(void) {
    static const char *why;
    static int asked;
    if (asked) return why;
    asked = 1;
    pid_t pid = geteuid() == 0 ? holder() : 0;
    if (geteuid() != 0) why = "needs root, to make network namespaces";
    else if (!pid) why = "network namespaces cannot be made here";
    else if (net_batch(pid, "ip", "link set lo up\n")) why = "needs the ip command (iproute2)";
    else if (net_batch(pid, "ip", "link add a0 type veth peer name a1\nlink add b0 type bridge\nlink del a0\n"))
        why = "the kernel has no veth or bridge devices";
    holder_end(pid);
    return why;
}

/* ---- A net ----------------------------------------------------------------------------------------------------- */

const char *net_v4(const struct net *t, int i, char buf[64]) {
    snprintf(buf, 64, t->bridged ? "10.77.0.%d" : "10.77.%d.2", t->bridged ? i + 1 : i);
    return buf;
}

const char *net_v6(const struct net *t, int i, char buf[64]) {
    snprintf(buf, 64, t->bridged ? "fd77::%d" : "fd77:0:0:%d::2", t->bridged ? i + 1 : i);
    return buf;
}

static int add_node(struct net *t, int i) {
    char v4[64], v6[64];
    pid_t pid = t->node[i] = holder();
    if (!pid) return 1;
    net_v4(t, i, v4);
    net_v6(t, i, v6);
    if (net_batch(t->hub, "ip", "link add p%d type veth peer name eth0 netns %d\nlink set p%d up\n", i, (int)pid, i))
        return 1;
    if (net_batch(pid, "ip", "link set lo up\nlink set eth0 %s\nlink set eth0 up\n",
                  t->families & (NET_V6 | NET_LINK_LOCAL) ? "addrgenmode eui64" : "addrgenmode none"))
        return 1;
    if (t->bridged && net_batch(t->hub, "ip", "link set p%d master br0\n", i)) return 1;
    if (t->families & NET_V4) {
        if (net_batch(pid, "ip", "addr add %s/24 dev eth0\n", v4)) return 1;
        if (!t->bridged && net_batch(t->hub, "ip", "addr add 10.77.%d.1/24 dev p%d\n", i, i)) return 1;
        if (!t->bridged && net_batch(pid, "ip", "route add default via 10.77.%d.1\n", i)) return 1;
    }
    if (t->families & NET_V6) {
        if (net_batch(pid, "ip", "addr add %s/64 dev eth0 nodad\n", v6)) return 1;
        if (!t->bridged && net_batch(t->hub, "ip", "addr add fd77:0:0:%d::1/64 dev p%d nodad\n", i, i)) return 1;
        if (!t->bridged && net_batch(pid, "ip", "-6 route add default via fd77:0:0:%d::1\n", i)) return 1;
    }
    return 0;
}

static int forward_body(int index, void *arg) {
    (void)index;
    net_enter(((struct net *)arg)->hub);
    put("/proc/sys/net/ipv4/ip_forward", "1");
    put("/proc/sys/net/ipv6/conf/all/forwarding", "1");
    return 0;
}

int net_open(struct net *t, int nodes, unsigned families, int bridged) {
    memset(t, 0, sizeof *t);
    t->bridged = bridged;
    t->families = families;
    t->hub = holder();
    int bad = !t->hub || procs_end(procs_fork(forward_body, 0, t), 5);
    if (!bad && bridged) bad = net_batch(t->hub, "ip", "link add br0 type bridge mcast_snooping 0\nlink set br0 up\n");
    for (int i = 0; i < nodes && !bad; i++) {
        t->n++;
        bad = add_node(t, i);
    }
    if (bad) {
        fprintf(stderr, "net: %d nodes cannot be made\n", nodes);
        net_close(t);
    }
    return bad;
}

void net_close(struct net *t) {
    for (int i = 0; i < t->n; i++) holder_end(t->node[i]);
    holder_end(t->hub);
    memset(t, 0, sizeof *t);
}

/* A router that has lost a link would answer with ICMP, which is a sign: there the packets are dropped by a rule. Among
 * neighbours the port is shut, and the node sees its cable pulled. */
static int cut_rules(struct net *t, const char *what, int i) {
    return net_batch(t->hub, "ip", "rule %s from 10.77.%d.0/24 blackhole\nrule %s to 10.77.%d.0/24 blackhole\n", what,
                     i, what, i);
}

int net_cut(struct net *t, int i) {
    return t->bridged ? net_batch(t->hub, "ip", "link set p%d down\n", i) : cut_rules(t, "add", i);
}

int net_heal(struct net *t, int i) {
    return t->bridged ? net_batch(t->hub, "ip", "link set p%d up\n", i) : cut_rules(t, "del", i);
}

static int pair_rules(struct net *t, const char *what, int a, int b) {
    return net_batch(t->hub, "ip",
                     "rule %s from 10.77.%d.0/24 to 10.77.%d.0/24 blackhole\n"
                     "rule %s from 10.77.%d.0/24 to 10.77.%d.0/24 blackhole\n",
                     what, a, b, what, b, a);
}

int net_cut_pair(struct net *t, int a, int b) { return pair_rules(t, "add", a, b); }
int net_heal_pair(struct net *t, int a, int b) { return pair_rules(t, "del", a, b); }

static int link_local_body(int index, void *arg) {
    struct {
        pid_t pid;
        char text[64];
    } *a = arg;
    char hex[33], name[32];
    unsigned scope;
    (void)index;
    net_enter(a->pid);
    FILE *f = fopen("/proc/net/if_inet6", "r");
    while (f && fscanf(f, "%32s %*x %*x %x %*x %31s", hex, &scope, name) == 3) {
        if (scope != 0x20 || strcmp(name, "eth0")) continue;
        snprintf(a->text, sizeof a->text, "%.4s:%.4s:%.4s:%.4s:%.4s:%.4s:%.4s:%.4s%%eth0", hex, hex + 4, hex + 8,
                 hex + 12, hex + 16, hex + 20, hex + 24, hex + 28);
    }
    if (f) fclose(f);
    return !a->text[0];
}

int net_link_local(pid_t pid, char buf[64]) {
    struct {
        pid_t pid;
        char text[64];
    } *a = procs_shared(sizeof *a);
    a->pid = pid;
    int rc = procs_end(procs_fork(link_local_body, 0, a), 5);
    memcpy(buf, a->text, sizeof a->text);
    return rc;
}

/* ---- Names ----------------------------------------------------------------------------------------------------- */

int net_hosts(const char *hostname, const char *hosts) {
    char path[] = "/tmp/regroup-hosts-XXXXXX";
    if (unshare(CLONE_NEWNS | CLONE_NEWUTS)) return 1;
    if (sethostname(hostname, strlen(hostname))) return 1;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return 1;
    int fd = mkstemp(path);
    if (fd < 0) return 1;
    int bad = write(fd, hosts, strlen(hosts)) != (ssize_t)strlen(hosts);
    bad |= fchmod(fd, 0644) || mount(path, "/etc/hosts", NULL, MS_BIND, NULL);
    close(fd);
    unlink(path); /* the mount keeps it */
    return bad;
}
