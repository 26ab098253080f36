/* main.c: runs the script once for each planned failure: a place in the program that makes a call, which of the calls
 * made there, and the error. A first run without a failure finds the places. Each case is five processes; it is bad
 * when one crashes, hangs, shows a wrong result, changes an input, gives an error without a text, leaves memory or
 * descriptors behind, or when two members that stay have different outcomes. What the kernel does to everybody (EINTR,
 * short reads) must not be seen at all. Options: see usage(). It relies on script.c and wrap.c and judges only. */
#include "torture.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_MS 120000

struct shared *shared;

static const char *const roles[ROLES] = { "member 0", "member 1", "the member that dies", "the newcomer",
                                          "the coordinator" };
static uint32_t leaks_before[SITES], leaks_at[SITES]; /* of a run without a failure, by place */
static int verbose;

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- One case --------------------------------------------------------------------------------------------------- */

/* 1: something came, or the other end is closed; 0: it is too late. */
static int wait_fd(int fd, int64_t until) {
    struct pollfd p = { .fd = fd, .events = POLLIN };
    for (;;) {
        int64_t left = until - now_ms();
        int n = poll(&p, 1, left > 0 ? (int)left : 0);
        if (n > 0) return 1;
        if (n == 0 || errno != EINTR) return 0;
    }
}

static pid_t start(int role, int give, int take, const int *close_fds) {
    pid_t pid = fork();
    if (pid) return pid;
    for (; *close_fds >= 0; close_fds++) close(*close_fds);
    if (role == ROLE_COORDINATOR) script_coordinator(give, take);
    else script_member(role, give);
    _exit(0);
}

static int ended_well(pid_t pid, int role, char *text, size_t cap) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (WIFSIGNALED(status)) {
        snprintf(text, cap, "%s ended by signal %d", roles[role], WTERMSIG(status));
        return 0;
    }
    if (WEXITSTATUS(status) != 0) {
        snprintf(text, cap, "%s ended with code %d", roles[role], WEXITSTATUS(status));
        return 0;
    }
    if (!shared->ended[role]) snprintf(text, cap, "%s did not come to its end", roles[role]);
    return shared->ended[role];
}

/* All processes, to their end. 0 with a text: one hung or crashed. */
static int run_processes(char *text, size_t cap) {
    int ready[2], stop[2], go[2], end[2], rc = 1;
    pid_t pid[ROLES] = { 0 };
    int64_t until = now_ms() + LIMIT_MS;
    char c;
    if (pipe(ready) || pipe(stop) || pipe(go) || pipe(end)) return snprintf(text, cap, "no pipes"), 0;
    pid[ROLE_COORDINATOR] =
        start(ROLE_COORDINATOR, ready[1], stop[0], (int[]){ ready[0], stop[1], go[0], go[1], end[0], end[1], -1 });
    close(ready[1]);
    int ok = wait_fd(ready[0], until) && read(ready[0], &c, 1) == 1;
    for (int i = 0; ok && i < 3; i++)
        pid[i] = start(i, go[1], -1, (int[]){ ready[0], stop[0], stop[1], go[0], end[0], -1 });
    close(go[1]);
    /* The end of the pipe: nobody came so far, which the members that are over explain. */
    if (ok && wait_fd(go[0], until) && read(go[0], &c, 1) == 1)
        pid[ROLE_JOINS] = start(ROLE_JOINS, -1, -1, (int[]){ ready[0], stop[0], stop[1], go[0], end[0], -1 });
    close(end[1]);
    if (ok && !wait_fd(end[0], until)) {
        int n = snprintf(text, cap, "hung:");
        for (int i = 0; i < ROLE_COORDINATOR; i++)
            if (pid[i] && !shared->ended[i]) n += snprintf(text + n, cap - (size_t)n, " %s", roles[i]);
        rc = 0;
        for (int i = 0; i < ROLE_COORDINATOR; i++)
            if (pid[i]) kill(pid[i], SIGKILL);
    }
    for (int i = 0; i < ROLE_COORDINATOR; i++)
        if (pid[i] && !ended_well(pid[i], i, text + strlen(text), cap - strlen(text))) rc = 0;
    close(stop[1]);
    if (!wait_fd(ready[0], until + 10000)) { /* its end of that is closed when it is gone */
        kill(pid[ROLE_COORDINATOR], SIGKILL);
        snprintf(text + strlen(text), cap - strlen(text), "; the coordinator hung");
        rc = 0;
    }
    if (!ended_well(pid[ROLE_COORDINATOR], ROLE_COORDINATOR, text + strlen(text), cap - strlen(text))) rc = 0;
    close(ready[0]);
    close(stop[0]);
    close(go[0]);
    close(end[0]);
    return rc;
}

/* ---- The verdict ------------------------------------------------------------------------------------------------ */

static int same_outcomes(char *text, size_t cap) {
    /* Who comes after the group has ended founds another one of that name, whose operations have the same numbers. */
    for (int op = 0; op < (shared->rejoins ? 9 : OPS); op++) {
        int first = -1;
        for (int i = 0; i < ROLE_COORDINATOR; i++) {
            const struct outcome *o = &shared->op[op][i];
            /* Who had to join again may be in another operation than the others. */
            if (!o->set || shared->over[i] || (shared->rejoins && i == shared->victim)) continue;
            if (first < 0) first = i;
            const struct outcome *f = &shared->op[op][first];
            if (o->status == f->status && o->contributors == f->contributors && o->ids == f->ids) continue;
            snprintf(text, cap, "operation %d: %s has %s from %u, %s has %s from %u", op, roles[first],
                     rg_status_name(f->status), f->contributors, roles[i], rg_status_name(o->status), o->contributors);
            return 0;
        }
    }
    return 1;
}

/* As if nothing had happened. */
static int unseen(char *text, size_t cap) {
    for (int i = 0; i < ROLE_COORDINATOR; i++)
        if (shared->over[i]) return snprintf(text, cap, "%s is over: %s", roles[i], shared->text[i]), 0;
    for (int op = 0; op < 13; op++)
        for (int i = 0; i < ROLE_COORDINATOR; i++) {
            if (op < 8 ? i == ROLE_JOINS : op == 8 ? i > 1 : i == ROLE_DIES) continue;
            if (op == 6) continue;
            const struct outcome *o = &shared->op[op][i];
            uint32_t least = op == 8 ? 2 : 3;
            if (o->set && o->status == RG_OK && o->contributors >= least) continue;
            if (op == 3 && o->set && o->status == RG_OK) continue; /* a broadcast has one contributor */
            snprintf(text, cap, "operation %d of %s: %s from %u", op, roles[i],
                     o->set ? rg_status_name(o->status) : "nothing", o->contributors);
            return 0;
        }
    return 1;
}

static int no_leaks(char *text, size_t cap) {
    for (int i = 0; i < SITES; i++) {
        const struct site *s = &shared->site[i];
        if (!s->at || !s->leaked) continue;
        uint32_t usual = 0;
        for (int k = 0; k < SITES; k++)
            if (leaks_at[k] == s->at) usual = leaks_before[k];
        if (s->leaked <= usual) continue;
        snprintf(text, cap, "%u allocations of %s at 0x%x are left, usually %u", s->leaked, calls[s->call].name, s->at,
                 usual);
        return 0;
    }
    return 1;
}

static int harmless(int error) { return error == EINTR || error == WHAT_SHORT || error == 0; }

static int judge(int check_leaks, char *text, size_t cap) {
    text[0] = 0;
    if (!run_processes(text, cap)) return 0;
    for (int i = 0; i < ROLES; i++)
        if (shared->bad[i][0]) return snprintf(text, cap, "%s: %s", roles[i], shared->bad[i]), 0;
    if (harmless(shared->plan.error) && !unseen(text, cap)) return 0;
    return same_outcomes(text, cap) && (!check_leaks || no_leaks(text, cap));
}

/* ---- Cases ------------------------------------------------------------------------------------------------------ */

static const char *error_name(int error) {
    return error == WHAT_SHORT    ? "one byte only"
           : error == WHAT_LOST   ? "ECONNRESET"
           : error == WHAT_NO_FDS ? "without the descriptors"
           : error                ? strerrorname_np(error)
                                  : "nothing";
}

static void reset(int victim, int tcp, int storm, struct plan p) {
    memset(shared, 0, sizeof *shared);
    shared->victim = victim;
    shared->tcp = tcp;
    shared->storm = storm;
    shared->plan = p;
}

struct option_set {
    uint32_t stride, offset, calls_each, jobs, only_at, only_nth, times;
    int only_role, only_tcp, only_error, has_error, only_storms, seconds;
};

static struct tally { uint32_t passed, failed, fired, cases; } tally;

static void one_case(int role, int tcp, struct plan p, int call) {
    char text[1024];
    reset(role, tcp, 0, p);
    tally.cases++;
    int64_t begin = now_ms();
    int ok = judge(1, text, sizeof text);
    tally.passed += (uint32_t)ok;
    tally.failed += (uint32_t)!ok;
    tally.fired += shared->fired != 0;
    if (ok && !verbose) return;
    printf("%s %s %s: call %u of %s at 0x%x gives %s%s: %s (%d ms)\n", ok ? "ok  " : "FAIL", tcp ? "tcp" : "auto",
           roles[role], p.nth, calls[call].name, p.at, error_name(p.error), shared->fired ? "" : " (not reached)",
           ok ? shared->text[role] : text, (int)(now_ms() - begin));
    fflush(stdout);
}

/* 1: no more time. */
static int cases_of(const struct option_set *o, int role, int tcp, const struct site *sites, uint32_t *number,
                    int64_t until) {
    for (uint32_t i = 0; i < SITES; i++) {
        const struct site *s = &sites[i];
        if (!s->at || (o->only_at && s->at != o->only_at)) continue;
        for (int e = 0; e < calls[s->call].errors; e++) {
            if (o->has_error && calls[s->call].error[e] != o->only_error) continue;
            uint32_t n = o->only_nth ? o->only_nth : 1, most = o->only_nth ? n : s->count;
            for (uint32_t k = 0; n <= most && k < o->calls_each; k++, n = k < 2 ? n + 1 : n * 3) {
                if ((*number)++ % o->stride != o->offset % o->stride) continue;
                if (now_ms() > until) return 1;
                one_case(role, tcp, (struct plan){ s->at, n, o->times, calls[s->call].error[e], PLANT_NONE }, s->call);
            }
        }
    }
    return 0;
}

/* The places that this role's process comes by, and what stays allocated when nothing fails. */
static int find_sites(int role, int tcp, struct site *out) {
    char text[1024];
    reset(role, tcp, 0, (struct plan){ 0 });
    if (!judge(0, text, sizeof text)) {
        printf("FAIL %s %s: without any failure: %s\n", tcp ? "tcp" : "auto", roles[role], text);
        return 0;
    }
    memcpy(out, shared->site, sizeof shared->site);
    for (int i = 0; i < SITES; i++) leaks_at[i] = out[i].at, leaks_before[i] = out[i].leaked;
    return 1;
}

static int storms(void) {
    int bad = 0;
    char text[1024];
    for (int tcp = 0; tcp < 2; tcp++) {
        reset(-1, tcp, 1, (struct plan){ 0 });
        if (judge(0, text, sizeof text)) continue;
        printf("FAIL %s: a signal each millisecond: %s\n", tcp ? "tcp" : "auto", text);
        bad++;
    }
    return bad;
}

/* A judge that finds nothing proves nothing: each mistake that wrap.c can make must be found. */
static int planted(void) {
    static const char *const names[PLANTS] = { "", "a failed send that is taken for a success", "a changed byte",
                                               "memory that is kept", "a descriptor that stays open" };
    static struct site sites[SITES];
    char text[1024];
    int bad = 0;
    if (!find_sites(0, 1, sites)) return 1;
    for (int plant = 1; plant < PLANTS; plant++) {
        reset(0, 1, 0, (struct plan){ .plant = plant });
        int unseen_by_judge = judge(1, text, sizeof text);
        if (unseen_by_judge) printf("FAIL planted: %s was not found: this check is broken\n", names[plant]);
        else if (verbose) printf("ok   planted: %s is found: %s\n", names[plant], text);
        bad += unseen_by_judge;
    }
    return bad;
}

static int usage(void) {
    fputs("usage: torture [--stride N] [--offset N] [--each N] [--role 0-4] [--tcp | --auto] [--at 0xADDRESS --nth N]\n"
          "               [--error N] [--times N] [--seconds N] [--storms] [-v]\n"
          "  one case for each place that makes a call, each of its errors, and up to --each of the calls there (the\n"
          "  1st, 2nd, 3rd, 9th, 27th ...); of these every --stride-th. --times: so many calls in a row fail. "
          "--storms: nothing\n"
          "  fails, but a signal comes each millisecond; then what a library with mistakes would do, which must be "
          "found;\n  these are done before all cases, too, but with --at.\n",
          stderr);
    return 2;
}

static int read_options(int argc, char **argv, struct option_set *o) {
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "-v")) verbose = 1;
        else if (!strcmp(a, "--tcp")) o->only_tcp = 1;
        else if (!strcmp(a, "--auto")) o->only_tcp = 0;
        else if (!strcmp(a, "--storms")) o->only_storms = 1;
        else if (i + 1 == argc) return 0;
        else {
            long v = strtol(argv[++i], NULL, 0);
            if (!strcmp(a, "--stride")) o->stride = (uint32_t)v;
            else if (!strcmp(a, "--offset")) o->offset = (uint32_t)v;
            else if (!strcmp(a, "--each")) o->calls_each = (uint32_t)v;
            else if (!strcmp(a, "--role")) o->only_role = (int)v;
            else if (!strcmp(a, "--at")) o->only_at = (uint32_t)v;
            else if (!strcmp(a, "--nth")) o->only_nth = (uint32_t)v;
            else if (!strcmp(a, "--times")) o->times = (uint32_t)v;
            else if (!strcmp(a, "--seconds")) o->seconds = (int)v;
            else if (!strcmp(a, "--error")) o->only_error = (int)v, o->has_error = 1;
            else return 0;
        }
    }
    return o->stride && o->calls_each && o->times && o->only_role < ROLES;
}

int main(int argc, char **argv) {
    static struct site sites[SITES];
    struct option_set o = { .stride = 97, .calls_each = 1, .times = 1, .only_role = -1, .only_tcp = -1, .seconds = 40 };
    if (!read_options(argc, argv, &o)) return usage();
    signal(SIGPIPE, SIG_IGN);
    struct rlimit none = { 0, 0 };
    setrlimit(RLIMIT_CORE, &none);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    uint32_t number = 0;
    int bad = o.only_at ? 0 : storms() + planted(), late = 0;
    int64_t until = now_ms() + (int64_t)o.seconds * 1000;
    for (int tcp = 1; tcp >= 0 && !o.only_storms; tcp--)
        for (int role = 0; role < ROLES; role++) {
            if ((o.only_role >= 0 && role != o.only_role) || (o.only_tcp >= 0 && tcp != o.only_tcp)) continue;
            if (role == ROLE_DIES && o.only_role < 0) continue; /* member 1 does the same, and lives to tell */
            if (late) continue;
            if (!find_sites(role, tcp, sites)) bad++;
            else late = cases_of(&o, role, tcp, sites, &number, until);
        }
    printf("torture: %u of %u cases, in %u the call was reached%s\n", tally.cases, number, tally.fired,
           late ? "; the time was over" : "");
    printf("%u passed, %u failed, 0 skipped\n", tally.passed + (bad == 0), tally.failed + (uint32_t)bad);
    return tally.failed + (uint32_t)bad != 0;
}
