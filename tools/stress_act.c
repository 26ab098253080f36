/* stress_act.c: the hands of `regroup stress`: starts workers and coordinators, sends signals, sets the rules of the
 * network, and collects who has ended. It relies on fork, exec and /proc/self/exe. It must not wait for a worker, and
 * must leave no process behind. */
#include "stress.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

uint32_t stress_node_of(const struct stress *s, uint32_t slot) { return s->plan_opts.host_of[slot]; }

static uint32_t coordinator_node(const struct stress *s, uint32_t i) { return s->plan_opts.hosts + i; }

/* ---- Starting -------------------------------------------------------------------------------------------------- */

/* Everything that is not async-signal-safe is done before: the driver has one thread, but a library below it might not.
 */
static pid_t start(struct stress *s, uint32_t node, const char *name, char *const argv[]) {
    char path[256];
    sigset_t none;
    pid_t parent = getpid();
    int fd[2];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s.%s", s->dir, name, i ? "log" : "out");
        fd[i] = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fd[i] < 0) return -1;
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid) {
        close(fd[0]);
        close(fd[1]);
        return pid;
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0); /* an interrupt from the terminal is for the driver */
    if (getppid() != parent || stress_net_enter(&s->net, node)) _exit(127);
    if (dup2(fd[0], 1) < 0 || dup2(fd[1], 2) < 0) _exit(127);
    execv("/proc/self/exe", argv);
    _exit(127);
}

int stress_worker_start(struct stress *s, uint32_t slot) {
    struct stress_peer *p = &s->peers[slot];
    char shared[160], number[16], name[32], host[32];
    char *argv[] = { (char *)"regroup", (char *)"stress-worker", shared, number, NULL };
    void *journal = p->journal;
    uint32_t process = p->process + 1;
    snprintf(shared, sizeof shared, "%s/shared", s->dir);
    snprintf(number, sizeof number, "%u", slot);
    snprintf(name, sizeof name, "worker-%u", slot);
    snprintf(host, sizeof host, "host%u", stress_node_of(s, slot));
    if (s->net.nodes) setenv("RG_HOST", host, 1);
    memset(p, 0, sizeof *p);
    p->journal = journal;
    p->process = process;
    if (s->keep && !p->journal) {
        char path[256];
        snprintf(path, sizeof path, "%s/worker-%u.journal", s->dir, slot);
        p->journal = fopen(path, "we");
    }
    memset(&s->setup->seats[slot], 0, sizeof s->setup->seats[slot]);
    s->setup->seats[slot].ready = process == 1 ? 1 : 2; /* those of the beginning wait for each other */
    p->wanted = 1;
    p->start_ns = p->harmed_ns = tool_now_ns();
    p->pid = start(s, stress_node_of(s, slot), name, argv);
    if (p->pid > 0) return TOOL_OK;
    p->pid = 0;
    return tool_failed("stress", "worker %u cannot be started: %s", slot, strerror(errno));
}

/* The address that it prints first; the port is kept for when it is started again. */
static int learn_address(struct stress *s, struct stress_coord *c, const char *name) {
    char path[256], line[64];
    uint64_t until = tool_now_ns() + 20000000000ull;
    snprintf(path, sizeof path, "%s/%s.out", s->dir, name);
    while (tool_now_ns() < until) {
        FILE *f = fopen(path, "re");
        int ok = f && fgets(line, sizeof line, f) && strchr(line, '\n');
        if (f) fclose(f);
        if (ok) {
            line[strcspn(line, "\n")] = 0;
            snprintf(c->address, sizeof c->address, "%.60s", line);
            return 0;
        }
        struct timespec t = { 0, 5000000 };
        nanosleep(&t, NULL);
    }
    return -1;
}

int stress_coordinator_start(struct stress *s, uint32_t i, int first) {
    struct stress_coord *c = &s->coords[i];
    char name[32], listen[80], beat[16];
    char *argv[] = { (char *)"regroup",
                     (char *)"coordinator",
                     (char *)"--listen",
                     listen,
                     (char *)"--heartbeat",
                     beat,
                     s->setup->log_level == RG_LOG_DEBUG ? (char *)"--verbose" : NULL,
                     NULL };
    snprintf(name, sizeof name, "coordinator-%u", i);
    if (c->address[0]) snprintf(listen, sizeof listen, "%s", c->address);
    else if (s->net.nodes) {
        stress_net_address(coordinator_node(s, i), listen);
        strcat(listen, ":7000");
    } else snprintf(listen, sizeof listen, "127.0.0.1:0");
    snprintf(beat, sizeof beat, "%u", s->setup->heartbeat_ms);
    unsetenv("RG_HOST");
    setenv("RG_SUCCESSION", s->plan_opts.succession ? "on" : "off", 1);
    unsetenv("RG_STANDBY");
    if (i > 0) setenv("RG_STANDBY", s->coords[0].address, 1); /* not both: each would give way to the other */
    c->stopped_ns = 0;
    c->pid = start(s, coordinator_node(s, i), name, argv);
    if (c->pid <= 0) {
        c->pid = 0;
        return tool_failed("stress", "the coordinator cannot be started: %s", strerror(errno));
    }
    c->starts++;
    if (first && learn_address(s, c, name)) return tool_failed("stress", "the coordinator does not say its address");
    return TOOL_OK;
}

/* ---- Collecting ------------------------------------------------------------------------------------------------ */

static void worker_ended(struct stress *s, uint32_t slot, int status) {
    struct stress_peer *p = &s->peers[slot];
    stress_judge_drain(s);
    stress_judge_resources(s, slot);
    if (!p->killed && (WIFSIGNALED(status) || WEXITSTATUS(status) != 0))
        stress_violate(s, "crash", NULL, NULL, "worker %u ended by itself: %s %d (its output is in %s/worker-%u.log)",
                       slot, WIFSIGNALED(status) ? "signal" : "exit code",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), s->dir, slot);
    else if (!p->killed && p->wanted == 1)
        stress_violate(s, "crash", NULL, NULL, "worker %u ended without being asked to", slot);
    stress_judge_over(s, slot);
    p->pid = 0;
}

void stress_reap(struct stress *s) {
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (uint32_t i = 0; i < s->setup->peers; i++)
            if (s->peers[i].pid == pid) worker_ended(s, i, status);
        for (uint32_t i = 0; i < STRESS_COORDS; i++) {
            struct stress_coord *c = &s->coords[i];
            if (c->pid != pid) continue;
            c->pid = 0;
            if (c->killed_ns || s->settled_ns) continue;
            stress_violate(s, "crash", NULL, NULL, "coordinator %u ended by itself: %s %d (see %s/coordinator-%u.log)",
                           i, WIFSIGNALED(status) ? "signal" : "exit code",
                           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), s->dir, i);
        }
        if (pid == s->net.wire) {
            s->net.wire = 0;
            tool_failed("stress", "the process that carries packets has ended");
            s->interrupted = 1;
        }
    }
}

/* ---- Actions --------------------------------------------------------------------------------------------------- */

static void harmed_host(struct stress *s, uint32_t host, uint64_t until) {
    for (uint32_t i = 0; i < s->setup->peers; i++)
        if (host == UINT32_MAX || stress_node_of(s, i) == host) s->peers[i].harmed_ns = until;
}

static int on_worker(struct stress *s, const struct stress_event *e) {
    struct stress_peer *p = &s->peers[e->a];
    uint64_t now = tool_now_ns();
    if (e->action == STRESS_ACT_JOIN) {
        if (!p->pid) return stress_worker_start(s, e->a) == TOOL_OK;
        p->wanted = 2; /* it is about to leave: started again when it has */
        return 1;
    }
    if (!p->pid) return 0;
    if (e->action == STRESS_ACT_KILL) {
        p->killed = 1;
        p->wanted = 0;
        kill(p->pid, SIGKILL);
    } else if (e->action == STRESS_ACT_LEAVE) {
        p->wanted = 0;
        p->leaving_ns = now;
        s->setup->seats[e->a].leave = 1;
    } else if (e->action == STRESS_ACT_STOP) {
        kill(p->pid, SIGSTOP);
        p->stopped_ns = now;
    } else {
        kill(p->pid, SIGCONT);
        p->stopped_ns = 0;
        p->continued_ns = now;
    }
    p->harmed_ns = now;
    return 1;
}

/* One that was killed may take a while to go on a busy host. Only then is its place free, and nobody takes it for one
 * that ended by itself. */
static void gone(struct stress_coord *c) {
    if (!c->pid || !c->killed_ns) return;
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR) continue;
    c->pid = 0;
}

static int on_coordinator(struct stress *s, const struct stress_event *e) {
    struct stress_coord *c = &s->coords[e->a];
    if (!s->plan_opts.succession) harmed_host(s, UINT32_MAX, tool_now_ns());
    if (e->action == STRESS_ACT_COORDINATOR_START) {
        gone(c);
        c->killed_ns = 0;
        return !c->pid && stress_coordinator_start(s, e->a, 0) == TOOL_OK;
    }
    if (!c->pid) return 0;
    if (e->action == STRESS_ACT_COORDINATOR_KILL) {
        c->killed_ns = tool_now_ns();
        kill(c->pid, SIGKILL);
    } else {
        int stop = e->action == STRESS_ACT_COORDINATOR_STOP;
        kill(c->pid, stop ? SIGSTOP : SIGCONT);
        c->stopped_ns = stop ? tool_now_ns() : 0;
    }
    return 1;
}

static void set_rule(struct stress *s, const struct stress_event *e, uint32_t a, uint32_t b) {
    struct stress_rule *r = &s->net.rules[a][b];
    uint64_t now = tool_now_ns();
    if (e->action == STRESS_ACT_HEAL) {
        r->drop = 0;
        r->delay_ns = 0;
    } else if (e->action == STRESS_ACT_DELAY) r->delay_ns = e->extra_ns;
    else if (e->action == STRESS_ACT_RESET) r->reset_until_ns = now + e->for_ns;
    else r->drop = 1;
}

static int on_network(struct stress *s, const struct stress_event *e) {
    uint64_t now = tool_now_ns();
    uint32_t a = e->a, b = e->b;
    if (!s->net.nodes) return 0;
    if (e->action == STRESS_ACT_CUT_COORDINATOR || (e->action == STRESS_ACT_HEAL && a >= STRESS_PEERS)) {
        a = coordinator_node(s, a % STRESS_PEERS);
        for (uint32_t h = 0; h < s->plan_opts.hosts; h++) {
            if (b != UINT32_MAX && b != h) continue;
            set_rule(s, e, a, h);
            set_rule(s, e, h, a);
        }
        if (b != UINT32_MAX || !s->plan_opts.succession) harmed_host(s, b, now);
        return 1;
    }
    set_rule(s, e, a, b);
    if (e->action != STRESS_ACT_DROP_ONE_WAY) set_rule(s, e, b, a);
    harmed_host(s, a, now);
    harmed_host(s, b, now);
    return 1;
}

void stress_do(struct stress *s, const struct stress_event *e) {
    struct stress_done *d = &s->done[s->n_done++];
    d->event = *e;
    d->at = stress_at(s);
    int network = stress_action_is_net(e->action) || e->action == STRESS_ACT_HEAL;
    int coordinator = e->action >= STRESS_ACT_COORDINATOR_KILL && e->action <= STRESS_ACT_COORDINATOR_CONTINUE;
    d->happened = network ? on_network(s, e) : coordinator ? on_coordinator(s, e) : on_worker(s, e);
    s->tally.actions_done[e->action] += (uint64_t)d->happened;
    if (s->quiet || s->tty) return;
    char text[160];
    stress_event_text(e, text, sizeof text);
    if (s->keep) fprintf(stderr, "stress: %.3f s: %s%s\n", d->at, text, d->happened ? "" : " (not possible)");
}

/* Everything works again, and everybody who is to be there is started. */
void stress_heal_all(struct stress *s) {
    uint64_t now = tool_now_ns();
    for (uint32_t a = 0; a < s->net.nodes; a++)
        for (uint32_t b = 0; b < s->net.nodes; b++) s->net.rules[a][b] = (struct stress_rule){ 0, 0, 0 };
    for (uint32_t i = 0; i < s->plan_opts.coordinators; i++) {
        struct stress_coord *c = &s->coords[i];
        gone(c);
        c->killed_ns = 0;
        if (!c->pid) stress_coordinator_start(s, i, 0);
        else if (c->stopped_ns) kill(c->pid, SIGCONT);
        c->stopped_ns = 0;
    }
    for (uint32_t i = 0; i < s->setup->peers; i++) {
        struct stress_peer *p = &s->peers[i];
        p->harmed_ns = now;
        if (!p->pid || !p->stopped_ns) continue;
        kill(p->pid, SIGCONT);
        p->stopped_ns = 0;
        p->continued_ns = now;
    }
}
