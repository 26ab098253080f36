/* stress.c: `regroup stress`: seeded chaos for real processes. The driver's options, its loop (one thread, one wait),
 * how a run settles and ends, and what must not be left behind. What is done to workers is in stress_plan.c, how in
 * stress_act.c, what is held against them in stress_judge.c. It must not hang itself: everything it waits for has an
 * end. */
#include "os/tls_make.h"
#include "stress.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND 1000000000ull

static const char stress_help[] =
    "usage: regroup stress [options]\n"
    "\n"
    "Starts a coordinator and workers that call random collectives, messages, sub-groups and state comparisons, and "
    "does\n"
    "them harm at random: SIGKILL, SIGSTOP, leaving, joining, a coordinator that dies or stops; as root also a "
    "network\n"
    "that drops, delays and resets. Every element of every result is checked, every outcome compared with the other\n"
    "members', every call held to its deadline, memory and descriptors to what they were. The seed gives the plan.\n"
    "\n"
    "  -n, --peers N          workers (10, at most 32)\n"
    "  -m, --minutes M        how long, for example 0.5 or 30 (1)\n"
    "  -s, --seed S           plan, operations and data follow from it (1)\n"
    "  -e, --every A..B       seconds between two actions (0.5..2)\n"
    "  -a, --actions LIST     kill,stop,join,leave,coordinator_kill,coordinator_stop,drop,drop_one_way,delay,reset,\n"
    "                         cut_coordinator; \"-kill\" leaves one out (all that work here)\n"
    "  -k, --kinds LIST       kinds of operations, sub_group, state (all); \"-state\" leaves one out\n"
    "  -t, --transport NAME   tcp, shm or auto (auto)\n"
    "      --tls              TLS for every connection, with a key of the run's own\n"
    "      --net on|off       network namespaces; on by default where they can be made and the transport is not shm\n"
    "  -c, --coordinators N   1, or 2: the second one stands by (1)\n"
    "      --no-succession    a coordinator that decides alone: its own actions are left out unless they are named\n"
    "      --bytes SIZE       of the largest vectors (1M)\n"
    "      --deadline S       of each operation (10)\n"
    "      --heartbeat MS     a worker silent for this long is lost (2000)\n"
    "  -j, --json FILE        the report for programs; \"-\": standard output\n"
    "      --keep FOLDER      what workers wrote down, and their output, stay there\n"
    "      --log LEVEL        the library's log in the workers' output: warn, info, debug\n"
    "      --fail-fast        end at the first violation\n"
    "      --plan             print the plan and do nothing\n"
    "  -q, --quiet            no progress\n"
    "  -h, --help             this text\n"
    "\n"
    "Exit code: 0 nothing was violated, 1 something was (or the run could not be made), 2 wrong usage.\n"
    "\n"
    "examples:\n"
    "  regroup stress --peers 10 --minutes 30 --seed 7 --json report.json\n"
    "  regroup stress -n 4 -m 0.2 --transport tcp --actions kill,join --kinds all_reduce,messages\n";

static const char *const plants[STRESS_PLANT_COUNT] = { "none",    "value", "result", "input",
                                                        "outcome", "hang",  "fds",    "stray" };

static const char *const levels[] = { "none", "error", "warn", "info", "debug", NULL };

/* ---- Options --------------------------------------------------------------------------------------------------- */

/* Names with commas between; if the first begins with '-' they are taken away from all. `name` gives those there are.
 */
static int choose(const char *text, int n, const char *(*name)(int), uint8_t *chosen, char bad[64]) {
    int without = *text == '-';
    for (int i = 0; i < n; i++) chosen[i] = (uint8_t)without;
    while (*text) {
        size_t len = strcspn(text, ",");
        int found = 0;
        const char *from = text + (*text == '-');
        snprintf(bad, 64, "%.*s", (int)(len - (size_t)(from - text)), from);
        for (int i = 0; i < n; i++)
            if (name(i) && !strcmp(name(i), bad)) {
                chosen[i] = (uint8_t)!without;
                found = 1;
            }
        if (!found) return 0;
        text += len + (text[len] == ',');
    }
    return 1;
}

static const char *kind_at(int i) { return stress_kind_name((stress_kind_t)i); }

static const char *action_at(int i) {
    int follows = i == STRESS_ACT_CONTINUE || i == STRESS_ACT_COORDINATOR_START ||
                  i == STRESS_ACT_COORDINATOR_CONTINUE || i == STRESS_ACT_HEAL;
    return follows ? NULL : stress_action_name((stress_action_t)i);
}

struct options {
    uint8_t kinds[STRESS_KIND_COUNT];
    int plan_only, actions_given, net; /* net: -1 not said */
    uint64_t seed, peers, coordinators, bytes, length_ns, deadline_ns, heartbeat_ms, every[2];
    enum stress_plant plant;
};

static int parse_every(const char *text, uint64_t every[2]) {
    char low[32];
    const char *dots = strstr(text, "..");
    if (!dots) return tool_duration(text, &every[0]) && (every[1] = every[0]) > 0;
    if ((size_t)(dots - text) >= sizeof low) return 0;
    snprintf(low, sizeof low, "%.*s", (int)(dots - text), text);
    return tool_duration(low, &every[0]) && tool_duration(dots + 2, &every[1]) && every[1] >= every[0] && every[1] > 0;
}

static int parse_minutes(const char *text, uint64_t *ns) {
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v > 0 && v < 1e5)) return 0;
    *ns = (uint64_t)(v * 60e9);
    return 1;
}

static int parse_plant(const char *text, enum stress_plant *plant) {
    for (int i = 0; i < STRESS_PLANT_COUNT; i++)
        if (!strcmp(text, plants[i])) {
            *plant = (enum stress_plant)i;
            return 1;
        }
    return 0;
}

enum { NET = 256, BYTES, DEADLINE, HEARTBEAT, KEEP, LOG, FAIL_FAST, PLAN, PLANT, TLS, NO_SUCCESSION };

/* One option with its value: 1 when that is what it takes. */
static int take_option(struct stress *s, struct options *q, int o, const char *v, char bad[64]) {
    switch (o) {
    case 'n': return tool_number(v, 2, STRESS_PEERS, &q->peers);
    case 'm': return parse_minutes(v, &q->length_ns);
    case 's': return tool_number(v, 0, UINT64_MAX, &q->seed);
    case 'e': return parse_every(v, q->every);
    case 'a': q->actions_given = *v != '-'; return choose(v, STRESS_ACTION_COUNT, action_at, s->plan_opts.allowed, bad);
    case 'k': return choose(v, STRESS_CHOSEN, kind_at, q->kinds, bad);
    case 't': s->transport = v; return !strcmp(v, "tcp") || !strcmp(v, "shm") || !strcmp(v, "auto");
    case 'j': s->json = v; return 1;
    case 'q': s->quiet = 1; return 1;
    case NET: q->net = !strcmp(v, "on"); return !strcmp(v, "on") || !strcmp(v, "off");
    case BYTES: return tool_bytes(v, &q->bytes) && q->bytes >= 64 && q->bytes <= 1ull << 30;
    case DEADLINE: return tool_duration(v, &q->deadline_ns) && q->deadline_ns >= SECOND;
    case HEARTBEAT: return tool_number(v, 100, 60000, &q->heartbeat_ms);
    case KEEP:
        s->keep = 1;
        snprintf(s->dir, sizeof s->dir, "%s", v);
        return strlen(v) < sizeof s->dir;
    case LOG:
        s->log = v;
        for (int i = 0; levels[i]; i++)
            if (!strcmp(levels[i], v)) return 1;
        return 0;
    case 'c': return tool_number(v, 1, STRESS_COORDS, &q->coordinators);
    case NO_SUCCESSION: s->plan_opts.succession = 0; return 1;
    case TLS: s->tls = 1; return 1;
    case FAIL_FAST: s->fail_fast = 1; return 1;
    case PLAN: q->plan_only = 1; return 1;
    default: return parse_plant(v, &q->plant);
    }
}

static int parse(struct stress *s, struct options *q, int argc, char **argv) {
    static const struct option options[] = { { "peers", required_argument, NULL, 'n' },
                                             { "minutes", required_argument, NULL, 'm' },
                                             { "seed", required_argument, NULL, 's' },
                                             { "every", required_argument, NULL, 'e' },
                                             { "actions", required_argument, NULL, 'a' },
                                             { "kinds", required_argument, NULL, 'k' },
                                             { "transport", required_argument, NULL, 't' },
                                             { "net", required_argument, NULL, NET },
                                             { "bytes", required_argument, NULL, BYTES },
                                             { "deadline", required_argument, NULL, DEADLINE },
                                             { "heartbeat", required_argument, NULL, HEARTBEAT },
                                             { "json", required_argument, NULL, 'j' },
                                             { "keep", required_argument, NULL, KEEP },
                                             { "log", required_argument, NULL, LOG },
                                             { "fail-fast", no_argument, NULL, FAIL_FAST },
                                             { "plan", no_argument, NULL, PLAN },
                                             { "tls", no_argument, NULL, TLS },
                                             { "coordinators", required_argument, NULL, 'c' },
                                             { "no-succession", no_argument, NULL, NO_SUCCESSION },
                                             { "plant", required_argument, NULL, PLANT },
                                             { "quiet", no_argument, NULL, 'q' },
                                             { "help", no_argument, NULL, 'h' },
                                             { 0, 0, 0, 0 } };
    int o, at;
    while ((o = getopt_long(argc, argv, "n:m:s:e:a:k:t:j:c:qh", options, NULL)) != -1) {
        char bad[64] = "";
        if (o == '?') return tool_wrong_option("stress", argv);
        if (o == 'h') {
            fputs(stress_help, stdout);
            return -1;
        }
        if (take_option(s, q, o, optarg, bad)) continue;
        for (at = 0; options[at].val != o;) at++;
        return tool_bad_value("stress", stress_help, options[at].name, bad[0] ? bad : optarg);
    }
    if (optind < argc) return tool_usage("stress", "unexpected argument \"%s\"", argv[optind]);
    return 0;
}

/* ---- Setting up ------------------------------------------------------------------------------------------------ */

/* Two workers share a host where shared memory may be used, so that both ways are. */
static int set_up_net(struct stress *s, struct options *q) {
    struct stress_plan_opts *p = &s->plan_opts;
    uint32_t each = !strcmp(s->transport, "auto") ? 2 : 1;
    const char *why = !strcmp(s->transport, "shm") ? "shared memory needs one host" : q->net == 0 ? "--net off" : NULL;
    int asked = 0;
    p->hosts = (p->peers + each - 1) / each;
    for (uint32_t i = 0; i < p->peers; i++) p->host_of[i] = i / each;
    for (int i = 0; i < STRESS_ACTION_COUNT; i++)
        asked |= q->actions_given && p->allowed[i] && stress_action_is_net((stress_action_t)i);
    if (q->plan_only && !why) return 0; /* as if there were one: the plan must not depend on the machine */
    if (!why) why = stress_net_open(&s->net, p->hosts + p->coordinators);
    if (!why) return 0;
    snprintf(s->net_why, sizeof s->net_why, "%s", why);
    if (q->net == 1 || asked) return tool_failed("stress", "no network to do harm to: %s", why);
    for (int i = 0; i < STRESS_ACTION_COUNT; i++)
        if (stress_action_is_net((stress_action_t)i)) p->allowed[i] = 0;
    if (!s->quiet && !q->plan_only)
        fprintf(stderr, "stress: skipped: drop, drop_one_way, delay, reset, cut_coordinator: %s\n", why);
    p->hosts = 1;
    memset(p->host_of, 0, sizeof p->host_of);
    return 0;
}

static int set_up_folder(struct stress *s) {
    const char *tmp = getenv("TMPDIR");
    char path[160];
    if (s->keep) {
        if (mkdir(s->dir, 0700) && errno != EEXIST) return tool_failed("stress", "%s: %s", s->dir, strerror(errno));
    } else {
        snprintf(s->dir, sizeof s->dir, "%.90s/regroup-stress-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        if (!mkdtemp(s->dir)) return tool_failed("stress", "%s: %s", s->dir, strerror(errno));
    }
    snprintf(path, sizeof path, "%s/shared", s->dir);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *s->setup)) {
        if (fd >= 0) close(fd);
        return tool_failed("stress", "%s: %s", path, strerror(errno));
    }
    void *p = mmap(NULL, sizeof *s->setup, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) return tool_failed("stress", "%s: %s", path, strerror(errno));
    s->setup = p;
    return TOOL_OK;
}

/* Its files are known by name; with a violation they stay, to be looked at. */
static void remove_folder(struct stress *s) {
    char path[256];
    if (s->keep) return;
    if (s->tally.violations) {
        fprintf(stderr, "stress: the workers' output is in %s\n", s->dir);
        return;
    }
    DIR *d = opendir(s->dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%.120s/%.120s", s->dir, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(s->dir);
}

static void set_up_workers(struct stress *s, const struct options *q) {
    struct stress_setup *w = s->setup;
    w->seed = q->seed;
    w->bytes = q->bytes;
    w->peers = (uint32_t)q->peers;
    w->op_ms = (uint32_t)(q->deadline_ns / 1000000u);
    w->join_ms = 30000;
    w->heartbeat_ms = (uint32_t)q->heartbeat_ms;
    w->pace_us = 2000;
    w->plant = q->plant;
    w->plant_slot = w->peers - 1; /* it is never killed */
    w->state = q->kinds[STRESS_STATE];
    w->sub_groups = q->kinds[STRESS_SUB_GROUP];
    for (uint32_t k = 0; k < STRESS_SUB_GROUP; k++)
        if (q->kinds[k]) w->kinds[w->n_kinds++] = k;
    snprintf(w->group, sizeof w->group, "stress");
    snprintf(w->transport, sizeof w->transport, "%s", s->transport);
    for (uint32_t i = 0; s->log && levels[i]; i++)
        if (!strcmp(levels[i], s->log)) w->log_level = i;
}

/* ---- The run --------------------------------------------------------------------------------------------------- */

/* What happens all the time, for as long as nothing else is due. */
static void look_after(struct stress *s, int signals, uint64_t until) {
    struct pollfd p = { .fd = signals, .events = POLLIN };
    struct signalfd_siginfo si;
    uint64_t now = tool_now_ns();
    int ms = until <= now ? 0 : until - now > 20000000u ? 20 : (int)((until - now) / 1000000u);
    poll(&p, 1, ms);
    while (read(signals, &si, sizeof si) == (ssize_t)sizeof si)
        if (si.ssi_signo != SIGCHLD) s->interrupted = 1;
    stress_judge_drain(s);
    stress_reap(s);
    stress_judge_hangs(s);
    for (uint32_t i = 0; i < s->setup->peers; i++)
        if (!s->peers[i].pid && s->peers[i].wanted == 2) stress_worker_start(s, i);
    now = tool_now_ns();
    if (s->quiet || now < s->next_line_ns) return;
    s->next_line_ns = now + 5 * SECOND;
    stress_progress(s);
}

static void act(struct stress *s, int signals) {
    for (uint32_t i = 0; i < s->plan.n && !s->interrupted; i++) {
        const struct stress_event *e = &s->plan.events[i];
        if (e->at_ns > s->plan_opts.length_ns) break; /* what follows from an action at the end: healed below */
        while (tool_now_ns() < s->start_ns + e->at_ns && !s->interrupted)
            look_after(s, signals, s->start_ns + e->at_ns);
        if (!s->interrupted) stress_do(s, e);
    }
    while (tool_now_ns() < s->end_ns && !s->interrupted) look_after(s, signals, s->end_ns);
}

static int whole(const struct stress *s, uint64_t since) {
    for (uint32_t i = 0; i < s->setup->peers; i++) {
        const struct stress_peer *p = &s->peers[i];
        if (!p->pid || p->confirmed_ns < since || p->confirmed_by != s->setup->peers) return 0;
        if (p->incarnation != s->peers[0].incarnation) return 0;
    }
    return 1;
}

/* Time that a host which stands still has taken from what began then. */
static uint64_t extra(uint64_t since) {
    uint64_t longest;
    return 2 * stress_stood_still(since, tool_now_ns(), &longest);
}

/* After the last fault everybody has to come together again. */
static void settle(struct stress *s, int signals) {
    uint64_t healed = tool_now_ns(), until = healed + (s->setup->join_ms + 3ull * s->setup->op_ms) * 1000000u;
    stress_heal_all(s);
    for (uint32_t i = 0; i < s->setup->peers; i++) {
        if (!s->peers[i].pid) stress_worker_start(s, i);
        else if (!s->peers[i].wanted) s->peers[i].wanted = 2;
    }
    while (tool_now_ns() < until + extra(healed) && !s->interrupted && !whole(s, healed))
        look_after(s, signals, until + extra(healed));
    s->settled_ns = tool_now_ns();
    if (s->interrupted || whole(s, healed)) return;
    for (uint32_t i = 0; i < s->setup->peers; i++) {
        const struct stress_peer *p = &s->peers[i];
        if (p->pid && p->confirmed_ns >= healed && p->confirmed_by == s->setup->peers) continue;
        struct stress_now now = s->setup->seats[i].now;
        stress_violate(
            s, "stuck", NULL, NULL,
            "%.0f s after the last fault worker %u (pid %d) is not in a group of all: its last tally was step "
            "%llu of group %llx, with %u, %.1f s ago; now it is %s%s",
            (double)(s->settled_ns - healed) / 1e9, i, (int)p->pid, (unsigned long long)p->confirmed_step,
            (unsigned long long)p->incarnation, p->confirmed_by,
            p->confirmed_ns ? (double)(s->settled_ns - p->confirmed_ns) / 1e9 : -1.0, now.start_ns ? "in " : "",
            now.start_ns ? stress_kind_name((stress_kind_t)now.kind) : "between calls");
    }
}

static uint32_t running(const struct stress *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->setup->peers; i++) n += s->peers[i].pid != 0;
    return n;
}

/* Processes that carry the run's folder in their command line, but for this one. They are ended. */
static void look_for_strays(struct stress *s) {
    char path[64], text[512];
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));) {
        uint64_t pid;
        if (!tool_number(e->d_name, 2, INT32_MAX, &pid) || (pid_t)pid == getpid()) continue;
        snprintf(path, sizeof path, "/proc/%llu/cmdline", (unsigned long long)pid);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
        if (fd >= 0) close(fd);
        for (ssize_t i = 0; i < n; i++)
            if (!text[i]) text[i] = ' ';
        text[n > 0 ? n : 0] = 0;
        if (!strstr(text, "stress-worker") || !strstr(text, s->dir)) continue;
        stress_violate(s, "stray", NULL, NULL, "process %llu is left: %.120s", (unsigned long long)pid, text);
        kill((pid_t)pid, SIGKILL);
        waitpid((pid_t)pid, NULL, 0);
    }
    if (d) closedir(d);
}

/* All leave in order; who does not in time is ended, and that is held against it unless the run was cut short. */
static void finish(struct stress *s, int signals) {
    uint64_t since = tool_now_ns(), until = since + (s->setup->op_ms + 10000ull) * 1000000u;
    int cut = s->interrupted && !s->fail_fast;
    if (s->interrupted) stress_heal_all(s);
    s->settled_ns = tool_now_ns();
    for (uint32_t i = 0; i < s->setup->peers; i++) {
        struct stress_peer *p = &s->peers[i];
        p->wanted = 0;
        if (s->setup->plant == STRESS_PLANT_STRAY && i == s->setup->plant_slot) p->pid = 0;
        else s->setup->seats[i].leave = 1;
    }
    if (s->interrupted) until = tool_now_ns() + SECOND / 2;
    while (running(s) && tool_now_ns() < until + extra(since)) look_after(s, signals, until + extra(since));
    for (uint32_t i = 0; i < s->setup->peers; i++) {
        struct stress_peer *p = &s->peers[i];
        if (!p->pid) continue;
        if (!s->interrupted && !cut && !p->hung)
            stress_violate(s, "stuck", NULL, NULL, "worker %u (pid %d) does not leave", i, (int)p->pid);
        p->killed = 1;
        kill(p->pid, SIGKILL);
    }
    for (uint32_t i = 0; i < STRESS_COORDS; i++)
        if (s->coords[i].pid) kill(s->coords[i].pid, SIGTERM);
    for (until = tool_now_ns() + 10 * SECOND; tool_now_ns() < until;) {
        int left = running(s) != 0;
        for (uint32_t i = 0; i < STRESS_COORDS; i++) left |= s->coords[i].pid != 0;
        if (!left) break;
        look_after(s, signals, until);
    }
    for (uint32_t i = 0; i < STRESS_COORDS; i++)
        if (s->coords[i].pid) {
            stress_violate(s, "stuck", NULL, NULL, "coordinator %u does not end", i);
            kill(s->coords[i].pid, SIGKILL);
            waitpid(s->coords[i].pid, NULL, 0);
        }
    look_for_strays(s);
}

/* Every process takes it from the environment. */
static int set_up_tls(struct stress *s) {
    char path[160];
    rg_error_t err = { RG_OK, 0, "" };
    if (!s->tls) return TOOL_OK;
    snprintf(path, sizeof path, "%s/key", s->dir);
    if (rg_tls_make_key(path, 1, &err)) return tool_failed("stress", "%s", err.text);
    setenv("RG_TLS", "on", 1);
    setenv("RG_TLS_PSK_FILE", path, 1);
    return TOOL_OK;
}

static int run(struct stress *s) {
    sigset_t set;
    int rc = TOOL_OK;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (signals < 0) return tool_failed("stress", "signalfd: %s", strerror(errno));
    s->start_ns = tool_now_ns();
    for (uint32_t i = 0; i < s->plan_opts.coordinators && !rc; i++) rc = stress_coordinator_start(s, i, 1);
    snprintf(s->setup->coordinator, sizeof s->setup->coordinator, "%s%s%s", s->coords[0].address,
             s->coords[1].address[0] ? "," : "", s->coords[1].address);
    s->setup->start_ns = s->start_ns = tool_now_ns();
    s->end_ns = s->start_ns + s->plan_opts.length_ns;
    for (uint32_t i = 0; i < s->setup->peers && !rc; i++) rc = stress_worker_start(s, i);
    if (rc) s->interrupted = 1;
    stress_watch_start();
    act(s, signals);
    if (!s->interrupted) settle(s, signals);
    finish(s, signals);
    stress_watch_stop();
    close(signals);
    return rc;
}

static void print_plan(const struct stress *s) {
    char text[160];
    for (uint32_t i = 0; i < s->plan.n; i++) {
        stress_event_text(&s->plan.events[i], text, sizeof text);
        printf("%9.3f s  %s\n", (double)s->plan.events[i].at_ns / 1e9, text);
    }
}

static void defaults(struct stress *s, struct options *q) {
    *q = (struct options){ .net = -1,
                           .seed = 1,
                           .peers = 10,
                           .coordinators = 1,
                           .bytes = 1 << 20,
                           .length_ns = 60 * SECOND,
                           .deadline_ns = 10 * SECOND,
                           .heartbeat_ms = 2000,
                           .every = { SECOND / 2, 2 * SECOND } };
    memset(q->kinds, 1, sizeof q->kinds);
    memset(s->plan_opts.allowed, 1, sizeof s->plan_opts.allowed);
    s->transport = "auto";
    s->plan_opts.succession = 1;
}

int tool_stress(int argc, char **argv) {
    static struct stress stress;
    struct stress *s = &stress;
    struct stress_plan_opts *p = &s->plan_opts;
    struct options q;
    defaults(s, &q);
    int rc = parse(s, &q, argc, argv);
    if (rc) return rc < 0 ? TOOL_OK : rc;
    p->seed = q.seed;
    p->length_ns = q.length_ns;
    p->every_min_ns = q.every[0];
    p->every_max_ns = q.every[1];
    p->heartbeat_ns = q.heartbeat_ms * 1000000u;
    p->peers = (uint32_t)q.peers;
    p->coordinators = (uint32_t)q.coordinators;
    /* Without it a group cannot lose anybody, and operations may pass their deadlines. */
    if (!p->succession && !q.actions_given)
        p->allowed[STRESS_ACT_COORDINATOR_KILL] = p->allowed[STRESS_ACT_COORDINATOR_STOP] = 0;
    s->tty = isatty(2);
    if ((rc = set_up_net(s, &q))) return rc;
    if (stress_plan_make(&s->plan, p)) rc = tool_failed("stress", "no memory for the plan");
    if (!rc && q.plan_only) print_plan(s);
    s->done = calloc(s->plan.n + 1, sizeof *s->done);
    if (!rc && !q.plan_only && !s->done) rc = tool_failed("stress", "no memory");
    if (!rc && !q.plan_only && !(rc = set_up_folder(s))) {
        set_up_workers(s, &q);
        if (!(rc = set_up_tls(s))) rc = run(s);
        if (!rc) stress_summary(s);
        if (s->json && stress_json(s)) rc = TOOL_FAILED;
        if (s->tally.violations) rc = TOOL_FAILED;
        stress_judge_free(s);
        munmap(s->setup, sizeof *s->setup);
        remove_folder(s);
    }
    stress_net_close(&s->net);
    stress_plan_free(&s->plan);
    free(s->done);
    return rc;
}
