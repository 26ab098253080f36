/* procs.c: see procs.h. */
#include "procs.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int procs_passed, procs_failed, procs_skipped;

void procs_case(const char *name, int ok) {
    procs_passed += ok;
    procs_failed += !ok;
    printf("%-6s %s\n", ok ? "ok" : "FAILED", name);
    fflush(stdout);
}

int procs_wanted(const char *name) {
    const char *only = getenv("PROCS_ONLY");
    return !only || !*only || strstr(name, only);
}

void procs_complain(const char *file, int line, const char *cond, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s:%d: [%d] %s: %s\n", file, line, (int)getpid(), cond, text);
}

uint64_t procs_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void procs_nap(void) { poll(NULL, 0, 1); }

/* ---- How late the host is -------------------------------------------------------------------------------------- */

#define NAP_NS 5000000u
#define SLACK_NS 1000000u     /* of each nap, which a host that has nothing else to do may take, too */
#define STALL_NS 10000000000u /* no host stands still for longer: the process that looks has ended */
#define LOOKS 65536

/* One process writes, all read. */
static struct host {
    pid_t pid;
    uint64_t looks; /* so many were made; atomic, and written after the look itself */
    struct {
        uint64_t at_ns, late_ns; /* late_ns: in all, until then */
    } look[LOOKS];
} * host;

static int host_main(int ends, void *arg) {
    (void)arg;
    for (uint64_t n = 1, late = 0, was = host->look[0].at_ns; !ends; n++) {
        poll(NULL, 0, NAP_NS / 1000000);
        uint64_t now = procs_now();
        late += now > was + NAP_NS + SLACK_NS ? now - was - NAP_NS - SLACK_NS : 0;
        host->look[n % LOOKS].at_ns = was = now;
        host->look[n % LOOKS].late_ns = late;
        __atomic_store_n(&host->looks, n, __ATOMIC_RELEASE);
    }
    return 0;
}

void procs_host_watch(void) {
    host = procs_shared(sizeof *host);
    host->look[0].at_ns = procs_now();
    host->pid = procs_fork(host_main, 0, NULL);
}

uint64_t procs_late_ns(void) {
    if (!host) return 0;
    uint64_t n = __atomic_load_n(&host->looks, __ATOMIC_ACQUIRE), due = host->look[n % LOOKS].at_ns + NAP_NS + SLACK_NS,
             now = procs_now(), more = now > due ? now - due : 0; /* of the nap that is not over though it should */
    return host->look[n % LOOKS].late_ns + (more < STALL_NS ? more : STALL_NS);
}

double procs_late_ms(uint64_t since_ns) {
    if (!host) return 0;
    uint64_t all = procs_late_ns(), n = __atomic_load_n(&host->looks, __ATOMIC_ACQUIRE), i = n;
    while (i > 0 && n - i < LOOKS - 2 && host->look[i % LOOKS].at_ns > since_ns) i--;
    uint64_t before = host->look[i % LOOKS].late_ns;
    return all > before ? 2 * (double)(all - before) / 1e6 : 0;
}

/* Its own process is stopped: then the host is as late as that, twice over, and nothing of it is left for later. */
int procs_host_planted(void) {
    uint64_t begin = procs_now();
    kill(host->pid, SIGSTOP);
    procs_pause_ns(300000000);
    double stopped = procs_late_ms(begin);
    kill(host->pid, SIGCONT);
    uint64_t n = __atomic_load_n(&host->looks, __ATOMIC_ACQUIRE);
    int again = PROCS_WAIT(__atomic_load_n(&host->looks, __ATOMIC_ACQUIRE) > n + 2, 20);
    double all = procs_late_ms(begin), ms = (double)(procs_now() - begin) / 1e6;
    if (stopped > 500 && again && all > 500 && all < 2 * ms && procs_late_ms(procs_now()) < 500) return 1;
    fprintf(stderr, "late by %.0f ms, in the end %.0f ms, within %.0f ms\n", stopped, all, ms);
    return 0;
}

void *procs_shared(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return p;
}

pid_t procs_fork(int (*body)(int index, void *arg), int index, void *arg) {
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    int rc = body(index, arg);
    fflush(NULL);
    exit(rc); /* so that leak checkers have their say */
}

int procs_end(pid_t pid, double seconds) {
    int status = 0;
    if (!PROCS_WAIT(waitpid(pid, &status, WNOHANG) == pid, seconds)) {
        fprintf(stderr, "process %d did not end within %.0f s: killed\n", (int)pid, seconds);
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        return -1;
    }
    return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

struct coordinator_arg {
    int hold[2], told[2];
    uint32_t heartbeat_ms;
};

static int coordinator_body(int index, void *arg) {
    struct coordinator_arg *a = arg;
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co;
    rg_error_t err;
    char address[128] = "", end;
    (void)index;
    close(a->hold[1]);
    close(a->told[0]);
    cfg.listen = "127.0.0.1:0";
    cfg.heartbeat_ms = a->heartbeat_ms;
    if (rg_coordinator_start(&cfg, &co, &err)) {
        fprintf(stderr, "coordinator: %s\n", err.text);
        return 1;
    }
    snprintf(address, sizeof address, "%s", rg_coordinator_address(co));
    if (write(a->told[1], address, sizeof address) != (ssize_t)sizeof address) return 1;
    while (read(a->hold[0], &end, 1) < 0 && errno == EINTR) {}
    rg_coordinator_stop(co);
    return 0;
}

int procs_coordinator_start(struct procs_coordinator *c, uint32_t heartbeat_ms) {
    struct coordinator_arg a = { .heartbeat_ms = heartbeat_ms };
    /* Members that are forked later inherit `hold`: the coordinator ends when they have ended, too. */
    if (pipe(a.hold) || pipe(a.told)) return 1;
    c->pid = procs_fork(coordinator_body, 0, &a);
    close(a.hold[0]);
    close(a.told[1]);
    c->hold = a.hold[1];
    ssize_t n = read(a.told[0], c->address, sizeof c->address);
    close(a.told[0]);
    return n != (ssize_t)sizeof c->address;
}

int procs_coordinator_stop(struct procs_coordinator *c) {
    close(c->hold);
    return procs_end(c->pid, 10);
}

rg_config_t procs_config(const char *address, const char *group, uint32_t n, uint32_t order) {
    rg_config_t cfg = RG_CONFIG_INIT;
    cfg.coordinator = address;
    cfg.group = group;
    cfg.min_size = n;
    cfg.order = order;
    cfg.join_timeout_ms = 60000; /* those that wait for it here give up before */
    cfg.op_timeout_ms = 30000;
    return cfg;
}

struct cluster {
    rg_config_t cfg;
    int n;
    procs_body body;
    void *arg;
    int hold;
};

static int cluster_member(int index, void *arg) {
    struct cluster *c = arg;
    rg_config_t cfg = c->cfg;
    rg_group_t *g = NULL;
    rg_error_t err;
    rg_info_t info = RG_INFO_INIT;
    close(c->hold);
    cfg.order = (uint32_t)index;
    rg_status_t s = rg_group_join(&cfg, &g, &err);
    PROCS_REQUIRE(s == RG_OK, "member %d cannot join: %s", index, err.text);
    PROCS_REQUIRE(rg_group_info(g, &info) == RG_OK && info.rank == (uint32_t)index && info.world_size == (uint32_t)c->n,
                  "member %d is rank %u of %u", index, info.rank, info.world_size);
    int rc = c->body(g, index, c->n, c->arg);
    rg_group_destroy(g);
    return rc;
}

int procs_cluster_with(const rg_config_t *cfg, int n, procs_body body, void *arg, double seconds) {
    struct procs_coordinator co;
    struct cluster c = { .n = n, .body = body, .arg = arg };
    pid_t pids[64];
    int bad = 0;
    if (procs_coordinator_start(&co, 0)) return n;
    if (cfg) c.cfg = *cfg;
    else c.cfg = procs_config(NULL, NULL, 0, 0);
    c.cfg.coordinator = co.address;
    c.cfg.group = "test";
    c.cfg.min_size = (uint32_t)n;
    c.hold = co.hold;
    uint64_t until = procs_now() + (uint64_t)(seconds * 1e9);
    for (int i = 0; i < n; i++) pids[i] = procs_fork(cluster_member, i, &c);
    for (int i = 0; i < n; i++) {
        double left = (double)((int64_t)(until - procs_now())) / 1e9;
        int rc = procs_end(pids[i], left > 0.1 ? left : 0.1);
        if (rc > 256 && rc != 256 + SIGKILL) fprintf(stderr, "member %d was ended by signal %d\n", i, rc - 256);
        bad += rc != 0;
    }
    return bad + (procs_coordinator_stop(&co) != 0);
}

int procs_cluster(int n, procs_body body, void *arg, double seconds) {
    return procs_cluster_with(NULL, n, body, arg, seconds);
}

static int count_entries(pid_t pid, const char *what) {
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, what);
    DIR *d = opendir(path);
    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

int procs_count_fds(pid_t pid) { return count_entries(pid, "fd"); }
int procs_count_threads(pid_t pid) { return count_entries(pid, "task"); }

long procs_rss_kb(pid_t pid) {
    char path[64];
    long pages = -1, resident = -1;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    if (fscanf(f, "%ld %ld", &pages, &resident) != 2) resident = -1;
    fclose(f);
    return resident < 0 ? -1 : resident * (sysconf(_SC_PAGESIZE) / 1024);
}

int procs_stranger(int port) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return -1;
    }
    return fd;
}

struct procs_usage procs_usage_of(pid_t pid) {
    struct procs_usage u = { procs_count_fds(pid), procs_count_threads(pid), procs_rss_kb(pid) };
    return u;
}

int procs_grown(struct procs_usage was, struct procs_usage is, long slack_kb) {
    return is.fds > was.fds || is.threads > was.threads || is.rss_kb > was.rss_kb + slack_kb;
}

int procs_keeps(pid_t pid, struct procs_usage was, struct procs_usage *is, long slack_kb) {
    return !PROCS_WAIT((*is = procs_usage_of(pid), !procs_grown(was, *is, slack_kb)), 5);
}

unsigned procs_draw(unsigned *seed) {
    *seed = *seed * 1103515245u + 12345u;
    return *seed >> 8;
}

void procs_pause_ns(uint64_t ns) {
    struct timespec ts = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };
    while (nanosleep(&ts, &ts) && errno == EINTR) {}
}

/* Below the numbers that the kernel gives to whoever connects, or binds, without asking for one: a port from among
 * those may be somebody's before it is used. */
int procs_free_port(void) {
    static int next;
    int least = 32768;
    FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
    if (f && fscanf(f, "%d", &least) != 1) least = 32768;
    if (f) fclose(f);
    if (least < 4096) least = 32768;
    if (!next) next = 2048 + (int)(getpid() * 61 % (least - 2048)); /* tests of several programs at once */
    for (int k = 0; k < least; k++) {
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY) };
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = next++;
        if (next >= least) next = 2048;
        a.sin_port = htons((uint16_t)port);
        int bad = fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 1);
        if (fd >= 0) close(fd);
        if (!bad) return port;
    }
    return 0;
}
