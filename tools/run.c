/* run.c: `regroup run`: one coordinator and N local peers of any program that uses the library, with faults on
 * request, prefixed output and a summary. One thread, one poll(): pipes of the peers, signals, and the time of the
 * next fault. The coordinator's thread only prints, under a lock.
 * It must not touch the peers' data or wait for any of them: a stopped peer must not stop this. */
#include "config.h"
#include "observe/log.h"
#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUN_MAX_PEERS 256
#define RUN_MAX_FAULTS 1024
#define RUN_LINE 4096

static const char run_help[] =
    "usage: regroup run -n N [options] -- PROGRAM [ARGUMENTS]\n"
    "\n"
    "Starts a coordinator and N peers on this host. Each gets RG_COORDINATOR, RG_GROUP, RG_MIN_SIZE and RG_ORDER in "
    "its\n"
    "environment; a program that calls rg_group_join() with an empty configuration is in the group. Every line that a\n"
    "peer prints is shown behind [its number]; numbers are the ranks at the start, then one more for each --join.\n"
    "What else is set as RG_... counts for the coordinator and the peers: RG_SUCCESSION=on, RG_RECONNECT_MS=1000.\n"
    "\n"
    "  -n, --peers N           peers to start, 1 to 256 (required)\n"
    "      --kill R@T          SIGKILL peer R at time T\n"
    "      --stop R@T[+D]      SIGSTOP peer R at time T, and SIGCONT after D if given\n"
    "      --join T            start one more peer at time T\n"
    "                          where T is \"2.5\" or \"2.5s\" or \"800ms\" after the start, or \"match=TEXT\": when a\n"
    "                          line of any peer first contains TEXT. These three may be repeated\n"
    "  -t, --timeout S         end everything after S seconds, which counts as failure\n"
    "      --heartbeat MS      a peer silent for this long is lost (2000), 10 to 3600000\n"
    "      --min-size N        members that the group waits for (as many as peers)\n"
    "  -g, --group NAME        name of the group (\"run\"), 1 to 63 bytes of printable text\n"
    "      --tls               encrypt and authenticate every connection (a key for this run alone)\n"
    "  -q, --quiet             neither membership changes nor summary\n"
    "      --no-prefix         lines as they are\n"
    "  -h, --help              this text\n"
    "\n"
    "Exit code: 0 when every peer that was not killed by this command exited with 0 and every fault took place; 1\n"
    "otherwise; 2 wrong usage.\n"
    "\n"
    "examples:\n"
    "  regroup run -n 4 -- ./train\n"
    "  regroup run -n 4 --kill 2@1.5 --join 3 -- ./train data.txt\n"
    "  regroup run -n 3 --stop 1@match='step 20'+4s --timeout 60 -- ./train\n";

enum fault_kind { FAULT_KILL, FAULT_STOP, FAULT_CONT, FAULT_JOIN };

struct fault {
    enum fault_kind kind;
    uint32_t slot;
    uint64_t at_ns; /* after the start; UINT64_MAX until its text has been seen */
    const char *match;
    uint64_t cont_ns; /* STOP: SIGCONT after that; 0: never */
    int over, happened;
};

struct stream {
    int fd;
    size_t len;
    char buf[RUN_LINE];
};

struct peer {
    pid_t pid;
    struct stream out, err;
    int running, status;
    int killed, stopped; /* by us */
    uint64_t start_ns, end_ns;
};

struct run {
    uint32_t n, slots;
    struct peer peers[RUN_MAX_PEERS];
    struct fault faults[RUN_MAX_FAULTS];
    uint32_t n_faults;
    uint64_t start_ns, timeout_ns, ending_ns, last_line_ns;
    int timed_out, interrupted, quiet, prefix, tty, tls;
    const char *group;
    uint64_t min_size;
    char **command;
    rg_coordinator_t *co;
    pthread_mutex_t print;
    uint32_t changes;
    int signals;
};

static void run_line(struct run *r, FILE *f, const char *prefix, const char *line, size_t len) {
    pthread_mutex_lock(&r->print);
    if (prefix[0]) fprintf(f, "[%s] ", prefix);
    fwrite(line, 1, len, f);
    fputc('\n', f);
    fflush(f);
    pthread_mutex_unlock(&r->print);
}

static void run_say(struct run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void run_say(struct run *r, const char *fmt, ...) {
    char line[RUN_LINE];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (!r->quiet) run_line(r, stderr, "run", line, n < RUN_LINE ? (size_t)n : RUN_LINE - 1);
}

static void run_coordinator_line(void *user, rg_log_level_t level, const char *line) {
    struct run *r = user;
    /* A view that only ends an operation has the same members. */
    if (level == RG_LOG_INFO && !strstr(line, "nobody lost")) __atomic_add_fetch(&r->changes, 1, __ATOMIC_RELAXED);
    if (!r->quiet) run_line(r, stderr, "run", line, strlen(line));
}

/* ---- Peers ----------------------------------------------------------------------------------------------------- */

/* Only async-signal-safe calls: the coordinator's thread may hold any lock at the time of the fork. */
static void run_child(char **command, char **env, const int out[2], const int err[2], pid_t parent) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(out[1], 1);
    dup2(err[1], 2);
    execvpe(command[0], command, env);
    const char *why = strerror(errno);
    if (write(2, "cannot start ", 13) < 0 || write(2, command[0], strlen(command[0])) < 0 || write(2, ": ", 2) < 0 ||
        write(2, why, strlen(why)) < 0 || write(2, "\n", 1) < 0)
        _exit(127);
    _exit(127);
}

static int run_start_peer(struct run *r) {
    uint32_t slot = r->slots;
    struct peer *p = &r->peers[slot];
    int out[2], err[2];
    char order[16], size[16];
    if (slot == RUN_MAX_PEERS) return tool_failed("run", "more than %d peers", RUN_MAX_PEERS);
    snprintf(order, sizeof order, "%u", slot);
    snprintf(size, sizeof size, "%llu", (unsigned long long)r->min_size);
    if (setenv("RG_COORDINATOR", rg_coordinator_address(r->co), 1) || setenv("RG_GROUP", r->group, 1) ||
        setenv("RG_MIN_SIZE", size, 1) || setenv("RG_ORDER", order, 1))
        return tool_failed("run", "environment: %s", strerror(errno));
    if (pipe2(out, O_CLOEXEC)) return tool_failed("run", "pipe: %s", strerror(errno));
    if (pipe2(err, O_CLOEXEC)) {
        close(out[0]);
        close(out[1]);
        return tool_failed("run", "pipe: %s", strerror(errno));
    }
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) run_child(r->command, environ, out, err, parent);
    close(out[1]);
    close(err[1]);
    if (pid < 0) {
        close(out[0]);
        close(err[0]);
        return tool_failed("run", "fork: %s", strerror(errno));
    }
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);
    p->pid = pid;
    p->out.fd = out[0];
    p->err.fd = err[0];
    p->running = 1;
    p->start_ns = tool_now_ns();
    r->slots++;
    return TOOL_OK;
}

/* ---- Faults ---------------------------------------------------------------------------------------------------- */

static struct fault *run_add_fault(struct run *r) {
    return r->n_faults < RUN_MAX_FAULTS ? &r->faults[r->n_faults++] : NULL;
}

static void run_fire(struct run *r, struct fault *f) {
    struct peer *p = f->slot < r->slots ? &r->peers[f->slot] : NULL;
    double t = (double)(tool_now_ns() - r->start_ns) / 1e9;
    f->over = 1;
    if (f->kind == FAULT_JOIN) {
        f->happened = run_start_peer(r) == TOOL_OK;
        if (f->happened) run_say(r, "%.3f s: peer %u starts", t, r->slots - 1);
        return;
    }
    if (!p || !p->running) {
        f->happened = f->kind == FAULT_CONT; /* it may have been killed meanwhile */
        if (!f->happened) run_say(r, "%.3f s: peer %u is not running: no fault", t, f->slot);
        return;
    }
    f->happened = 1;
    run_say(r, "%.3f s: %s to peer %u (pid %d)", t,
            f->kind == FAULT_KILL   ? "SIGKILL"
            : f->kind == FAULT_STOP ? "SIGSTOP"
                                    : "SIGCONT",
            f->slot, (int)p->pid);
    kill(p->pid, f->kind == FAULT_KILL ? SIGKILL : f->kind == FAULT_STOP ? SIGSTOP : SIGCONT);
    p->killed |= f->kind == FAULT_KILL;
    p->stopped = f->kind == FAULT_STOP ? 1 : p->stopped && f->kind != FAULT_CONT;
    struct fault *c = f->kind == FAULT_STOP && f->cont_ns ? run_add_fault(r) : NULL;
    if (c)
        *c = (struct fault){ .kind = FAULT_CONT, .slot = f->slot, .at_ns = tool_now_ns() - r->start_ns + f->cont_ns };
}

/* Fires what is due and returns when the next one is. */
static uint64_t run_faults(struct run *r) {
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < r->n_faults; i++) {
        struct fault *f = &r->faults[i];
        if (f->over || f->at_ns == UINT64_MAX) continue;
        if (r->start_ns + f->at_ns <= tool_now_ns()) run_fire(r, f);
        else if (r->start_ns + f->at_ns < next) next = r->start_ns + f->at_ns;
    }
    return next;
}

static void run_match(struct run *r, const char *line) {
    for (uint32_t i = 0; i < r->n_faults; i++)
        if (r->faults[i].match && r->faults[i].at_ns == UINT64_MAX && strstr(line, r->faults[i].match))
            r->faults[i].at_ns = tool_now_ns() - r->start_ns;
}

/* "R@T[+D]" or, for a join, "T". */
static int run_parse_fault(struct run *r, enum fault_kind kind, char *text) {
    struct fault *f = run_add_fault(r);
    char *at = strchr(text, '@'), *plus;
    uint64_t v;
    if (!f) return 0;
    *f = (struct fault){ .kind = kind };
    if (kind != FAULT_JOIN) {
        char number[16];
        if (!at || (size_t)(at - text) >= sizeof number) return 0;
        snprintf(number, sizeof number, "%.*s", (int)(at - text), text);
        if (!tool_number(number, 0, RUN_MAX_PEERS - 1, &v)) return 0;
        f->slot = (uint32_t)v;
        text = at + 1;
    }
    plus = kind == FAULT_STOP ? strrchr(text, '+') : NULL;
    if (plus && tool_duration(plus + 1, &f->cont_ns)) {
        if (!f->cont_ns) return 0; /* it would never be continued */
        *plus = 0;
    }
    f->at_ns = UINT64_MAX;
    if (!strncmp(text, "match=", 6)) {
        f->match = text + 6;
        return f->match[0] != 0;
    }
    return tool_duration(text, &f->at_ns);
}

/* ---- Output ---------------------------------------------------------------------------------------------------- */

static void run_emit(struct run *r, uint32_t slot, FILE *f, char *line, size_t len) {
    char prefix[16] = "";
    if (r->prefix) snprintf(prefix, sizeof prefix, "%u", slot);
    line[len] = 0;
    run_line(r, f, prefix, line, len);
    run_match(r, line);
    r->last_line_ns = tool_now_ns();
}

static void run_read(struct run *r, uint32_t slot, struct stream *s, FILE *f) {
    for (int turn = 0; s->fd >= 0 && turn < 16; turn++) {
        ssize_t n = read(s->fd, s->buf + s->len, RUN_LINE - 1 - s->len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            if (s->len) run_emit(r, slot, f, s->buf, s->len);
            s->len = 0;
            close(s->fd);
            s->fd = -1;
            return;
        }
        s->len += (size_t)n;
        size_t from = 0;
        char *nl;
        while ((nl = memchr(s->buf + from, '\n', s->len - from))) {
            size_t len = (size_t)(nl - (s->buf + from));
            run_emit(r, slot, f, s->buf + from, len);
            from += len + 1;
        }
        memmove(s->buf, s->buf + from, s->len - from);
        s->len -= from;
        if (s->len == RUN_LINE - 1) { /* a line longer than we hold is shown in pieces */
            run_emit(r, slot, f, s->buf, s->len);
            s->len = 0;
        }
    }
}

/* ---- The loop -------------------------------------------------------------------------------------------------- */

static void run_reap(struct run *r) {
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (uint32_t i = 0; i < r->slots; i++) {
            struct peer *p = &r->peers[i];
            if (p->pid != pid || !p->running) continue;
            p->running = 0;
            p->status = status;
            p->end_ns = tool_now_ns();
        }
}

static void run_signal_all(struct run *r, int sig) {
    for (uint32_t i = 0; i < r->slots; i++)
        if (r->peers[i].running) kill(r->peers[i].pid, sig);
}

static void run_signals(struct run *r) {
    struct signalfd_siginfo si;
    while (read(r->signals, &si, sizeof si) == sizeof si) {
        if (si.ssi_signo == SIGCHLD) continue;
        if (r->interrupted) run_signal_all(r, SIGKILL);
        r->interrupted = 1;
        r->ending_ns = tool_now_ns() + 2000000000ull;
        run_signal_all(r, SIGTERM);
        run_signal_all(r, SIGCONT);
    }
}

static uint32_t run_running(const struct run *r, int also_stopped) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->slots; i++) n += r->peers[i].running && (also_stopped || !r->peers[i].stopped);
    return n;
}

/* 1 when a stopped peer will be continued by a fault that is still to come. */
static int run_will_continue(const struct run *r) {
    for (uint32_t i = 0; i < r->n_faults; i++)
        if (!r->faults[i].over && r->faults[i].kind == FAULT_CONT) return 1;
    return 0;
}

/* Deadlines: the time limit, the kill after the polite signal, peers that stay stopped when all others have ended. */
static uint64_t run_deadlines(struct run *r) {
    uint64_t now = tool_now_ns(), next = UINT64_MAX;
    if (r->timeout_ns && !r->timed_out && now >= r->start_ns + r->timeout_ns) {
        r->timed_out = 1;
        run_say(r, "time limit of %.1f s reached: ending %u peers", (double)r->timeout_ns / 1e9, run_running(r, 1));
        r->ending_ns = now + 2000000000ull;
        run_signal_all(r, SIGTERM);
        run_signal_all(r, SIGCONT);
    }
    if (r->ending_ns && now >= r->ending_ns) run_signal_all(r, SIGKILL);
    if (!run_running(r, 0) && !run_will_continue(r))
        for (uint32_t i = 0; i < r->slots; i++)
            if (r->peers[i].running && !r->peers[i].killed) {
                r->peers[i].killed = 1;
                kill(r->peers[i].pid, SIGKILL);
            }
    if (r->timeout_ns && !r->timed_out) next = r->start_ns + r->timeout_ns;
    if (r->ending_ns && now < r->ending_ns && r->ending_ns < next) next = r->ending_ns;
    return next;
}

static void run_progress(struct run *r) {
    uint64_t now = tool_now_ns();
    if (!r->tty || r->quiet || now - r->last_line_ns < 5000000000ull) return;
    run_say(r, "%.0f s: %u peers running", (double)(now - r->start_ns) / 1e9, run_running(r, 1));
    r->last_line_ns = now;
}

/* Polls every open pipe and the signals once. */
static int run_poll(struct run *r, uint64_t until) {
    struct pollfd p[1 + 2 * RUN_MAX_PEERS];
    struct stream *s[1 + 2 * RUN_MAX_PEERS];
    uint32_t who[1 + 2 * RUN_MAX_PEERS];
    nfds_t n = 0, open_streams;
    uint64_t now = tool_now_ns();
    for (uint32_t i = 0; i < r->slots; i++)
        for (int k = 0; k < 2; k++) {
            s[n] = k ? &r->peers[i].err : &r->peers[i].out;
            who[n] = i;
            if (s[n]->fd >= 0) {
                p[n] = (struct pollfd){ .fd = s[n]->fd, .events = POLLIN };
                n++;
            }
        }
    open_streams = n;
    p[n++] = (struct pollfd){ .fd = r->signals, .events = POLLIN };
    if (!run_running(r, 1) && !open_streams) return 0;
    /* What a peer left running may hold its pipes open for ever: when all have ended, only what is there is read. */
    int wait = run_running(r, 1) ? 1000 : 50;
    if (until != UINT64_MAX && until < now + (uint64_t)wait * 1000000)
        wait = until > now ? (int)((until - now) / 1000000 + 1) : 0;
    int rc = poll(p, n, wait);
    if (rc == 0 && !run_running(r, 1)) return 0;
    for (nfds_t i = 0; rc > 0 && i < open_streams; i++)
        if (p[i].revents) run_read(r, who[i], s[i], s[i] == &r->peers[who[i]].err ? stderr : stdout);
    run_signals(r);
    return 1;
}

static void run_loop(struct run *r) {
    uint64_t next, d;
    do {
        run_reap(r);
        next = r->timed_out || r->interrupted ? UINT64_MAX : run_faults(r);
        d = run_deadlines(r);
        run_progress(r);
    } while (run_poll(r, d < next ? d : next));
}

/* ---- End ------------------------------------------------------------------------------------------------------- */

static int run_summary(struct run *r) {
    uint32_t bad = 0, killed = 0, missed = 0;
    for (uint32_t i = 0; i < r->slots; i++) {
        struct peer *p = &r->peers[i];
        char how[64];
        killed += p->killed != 0;
        int ok = p->killed || (WIFEXITED(p->status) && WEXITSTATUS(p->status) == 0);
        bad += !ok;
        if (WIFSIGNALED(p->status))
            snprintf(how, sizeof how, "signal %d (%s)", WTERMSIG(p->status), strsignal(WTERMSIG(p->status)));
        else snprintf(how, sizeof how, "exit %d", WEXITSTATUS(p->status));
        run_say(r, "peer %-3u pid %-7d %-28s %8.3f s%s%s", i, (int)p->pid, how, (double)(p->end_ns - p->start_ns) / 1e9,
                p->killed ? "  killed by this command" : "", ok ? "" : "  FAILED");
    }
    for (uint32_t i = 0; i < r->n_faults; i++) {
        struct fault *f = &r->faults[i];
        if (f->happened || f->kind == FAULT_CONT) continue;
        missed++;
        run_say(r, "a fault did not take place: %s%s%s",
                f->kind == FAULT_KILL   ? "kill"
                : f->kind == FAULT_STOP ? "stop"
                                        : "join",
                f->match ? ", waiting for the text " : "", f->match ? f->match : "");
    }
    run_say(r, "%u peers, %u killed, %u failed, %u membership changes, %.3f s%s", r->slots, killed, bad,
            __atomic_load_n(&r->changes, __ATOMIC_RELAXED), (double)(tool_now_ns() - r->start_ns) / 1e9,
            r->timed_out     ? ", time limit reached"
            : r->interrupted ? ", interrupted"
                             : "");
    return bad || missed || r->timed_out || r->interrupted ? TOOL_FAILED : TOOL_OK;
}

/* How many peers there are at the time of a fault, as far as the times are known. */
static uint32_t run_peers_at(const struct run *r, uint64_t at_ns) {
    uint32_t n = r->n;
    for (uint32_t i = 0; i < r->n_faults; i++)
        n += r->faults[i].kind == FAULT_JOIN && (r->faults[i].at_ns <= at_ns || r->faults[i].match);
    return n;
}

static int run_killed_before(const struct run *r, const struct fault *f) {
    for (uint32_t i = 0; i < r->n_faults; i++) {
        const struct fault *k = &r->faults[i];
        if (k != f && k->kind == FAULT_KILL && k->slot == f->slot && !k->match && !f->match &&
            (k->at_ns < f->at_ns || (k->at_ns == f->at_ns && k < f)))
            return 1;
    }
    return 0;
}

static int run_check_fault(const struct run *r, const struct fault *f) {
    const char *what = f->kind == FAULT_KILL ? "kill" : f->kind == FAULT_STOP ? "stop" : "join";
    double at = (double)f->at_ns / 1e9;
    uint32_t all = run_peers_at(r, UINT64_MAX);
    if (!f->match && r->timeout_ns && f->at_ns >= r->timeout_ns)
        return tool_usage("run", "a --%s at %.3f s never comes: --timeout ends everything at %.3f s", what, at,
                          (double)r->timeout_ns / 1e9);
    if (f->kind == FAULT_JOIN) return TOOL_OK;
    if (f->slot >= all)
        return tool_usage("run", "--%s %u@...: there is no peer %u: -n %u and %u --join make peers 0 to %u", what,
                          f->slot, f->slot, r->n, all - r->n, all - 1);
    if (!f->match && f->slot >= run_peers_at(r, f->at_ns))
        return tool_usage("run", "--%s %u@...: peer %u has not joined by %.3f s", what, f->slot, f->slot, at);
    if (run_killed_before(r, f))
        return tool_usage("run", "--%s %u@...: peer %u has been killed by %.3f s", what, f->slot, f->slot, at);
    return TOOL_OK;
}

/* A fault that cannot take place is a slip of the pen, better told now than at the end. */
static int run_check_faults(const struct run *r) {
    uint32_t peers = run_peers_at(r, UINT64_MAX);
    if (peers > RUN_MAX_PEERS)
        return tool_usage("run", "%u peers with those that join: at most %d", peers, RUN_MAX_PEERS);
    if (r->min_size > peers)
        return tool_usage("run", "--min-size %llu: %u peers are all that there will be",
                          (unsigned long long)r->min_size, peers);
    int rc = TOOL_OK;
    for (uint32_t i = 0; i < r->n_faults && !rc; i++) rc = run_check_fault(r, &r->faults[i]);
    return rc;
}

/* Told here once, not by every peer. */
static int run_name(const char *text) {
    if (!*text || strlen(text) > RG_GROUP_NAME_MAX) return 0;
    return rg_log_plain(text);
}

static int run_options(struct run *r, int argc, char **argv, rg_coordinator_config_t *cfg) {
    enum { KILL = 256, STOP, JOIN, HEARTBEAT, MIN_SIZE, NO_PREFIX, TLS };
    static const struct option options[] = { { "peers", required_argument, NULL, 'n' },
                                             { "kill", required_argument, NULL, KILL },
                                             { "stop", required_argument, NULL, STOP },
                                             { "join", required_argument, NULL, JOIN },
                                             { "timeout", required_argument, NULL, 't' },
                                             { "heartbeat", required_argument, NULL, HEARTBEAT },
                                             { "min-size", required_argument, NULL, MIN_SIZE },
                                             { "group", required_argument, NULL, 'g' },
                                             { "tls", no_argument, NULL, TLS },
                                             { "quiet", no_argument, NULL, 'q' },
                                             { "no-prefix", no_argument, NULL, NO_PREFIX },
                                             { "help", no_argument, NULL, 'h' },
                                             { 0, 0, 0, 0 } };
    uint64_t v = 0;
    int o, at;
    while ((o = getopt_long(argc, argv, "+n:t:g:qh", options, NULL)) != -1) {
        int ok = 1;
        if (o == '?') return tool_wrong_option("run", argv);
        if (o == 'h') {
            fputs(run_help, stdout);
            return -1;
        }
        if (o == 'n') ok = tool_number(optarg, 1, RUN_MAX_PEERS, &v), r->n = (uint32_t)v;
        if (o == KILL) ok = run_parse_fault(r, FAULT_KILL, optarg);
        if (o == STOP) ok = run_parse_fault(r, FAULT_STOP, optarg);
        if (o == JOIN) ok = run_parse_fault(r, FAULT_JOIN, optarg);
        if (o == 't') ok = tool_duration(optarg, &r->timeout_ns) && r->timeout_ns;
        if (o == HEARTBEAT) ok = tool_number(optarg, 10, 3600000, &v), cfg->heartbeat_ms = (uint32_t)v;
        if (o == MIN_SIZE) ok = tool_number(optarg, 1, RUN_MAX_PEERS, &r->min_size);
        if (o == 'g') ok = run_name(optarg), r->group = optarg;
        if (o == 'q') r->quiet = 1;
        if (o == NO_PREFIX) r->prefix = 0;
        if (o == TLS) r->tls = 1;
        if (ok) continue;
        for (at = 0; options[at].val != o;) at++;
        return tool_bad_value("run", run_help, options[at].name, optarg);
    }
    if (!r->n) return tool_usage("run", "how many peers? -n N");
    if (optind >= argc) return tool_usage("run", "no program: give one after --");
    r->command = argv + optind;
    if (!r->min_size) r->min_size = r->n;
    return run_check_faults(r);
}

int tool_run(int argc, char **argv) {
    static struct run run = { .print = PTHREAD_MUTEX_INITIALIZER, .group = "run", .prefix = 1 };
    struct run *r = &run;
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    rg_error_t err = { RG_OK, 0, "" };
    sigset_t set;
    struct sigaction hup;
    int rc = run_options(r, argc, argv, &cfg);
    if (rc) return rc < 0 ? TOOL_OK : rc;
    if (r->tls && (rc = tool_try_tls("run"))) return rc;
    r->tty = isatty(2);
    cfg.listen = "127.0.0.1:0";
    unsetenv("RG_STANDBY"); /* this one serves its own peers, who know no other */
    cfg.log_level = RG_LOG_INFO;
    cfg.log_fn = run_coordinator_line;
    cfg.log_user = r;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP); /* not under nohup */
    sigprocmask(SIG_BLOCK, &set, NULL);
    r->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (r->signals < 0) return tool_failed("run", "signalfd: %s", strerror(errno));
    if (rg_coordinator_start(&cfg, &r->co, &err)) return tool_failed("run", "%s", err.text);
    r->start_ns = r->last_line_ns = tool_now_ns();
    for (uint32_t i = 0; i < r->n && !rc; i++) rc = run_start_peer(r);
    if (rc) run_signal_all(r, SIGKILL);
    run_loop(r);
    rg_coordinator_stop(r->co);
    close(r->signals);
    int end = run_summary(r);
    return rc ? rc : end;
}
