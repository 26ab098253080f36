/* regroup.c: the `regroup` command: picks the subcommand and holds what all of them use. It relies on nothing but
 * the library's public interface. It must not grow logic of its own: each subcommand is a file beside this one. */
#include "tool.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char tool_help[] =
    "usage: regroup COMMAND [options]\n"
    "\n"
    "  coordinator   run a coordinator: the meeting point of groups\n"
    "  run           start a program N times on this host as one group, with faults on request\n"
    "  bench         measure a collective and check its results\n"
    "  explain       which algorithm a collective takes, and why\n"
    "  tune          measure all algorithms and write down the best\n"
    "  stress        kill, stop and cut off workers of a group at random and check that it holds\n"
    "  status        show the members that a coordinator knows\n"
    "  keygen        make a group key or certificates for TLS\n"
    "  doctor        look for what is wrong on this host, and say how to mend it\n"
    "  version       print the version\n"
    "\n"
    "`regroup COMMAND --help` says more. Exit code: 0 success, 1 failure, 2 wrong usage.\n"
    "\n"
    "examples:\n"
    "  regroup run -n 4 --kill 2@1.5 --join 3 -- ./train data.txt\n"
    "  regroup bench all_reduce -n 4 -b 4K -e 64M -f 4\n"
    "  regroup coordinator --listen 0.0.0.0:7000\n";

/* In one piece: several processes of a group may complain at once. */
static int tool_say(const char *command, const char *fmt, va_list ap) {
    char text[2048];
    vsnprintf(text, sizeof text, fmt, ap);
    return fprintf(stderr, "regroup %s: %s\n", command, text);
}

int tool_usage(const char *command, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    tool_say(command, fmt, ap);
    va_end(ap);
    fprintf(stderr, "Try `regroup %s --help`.\n", command);
    return TOOL_USAGE;
}

int tool_failed(const char *command, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    tool_say(command, fmt, ap);
    va_end(ap);
    return TOOL_FAILED;
}

void tool_env_bytes(const char *name, uint64_t *out) {
    uint64_t v;
    if (tool_bytes(getenv(name), &v)) *out = v;
}

uint64_t tool_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } commands[] = { { "coordinator", tool_coordinator },
                     { "run", tool_run },
                     { "bench", tool_bench },
                     { "status", tool_status },
                     { "explain", tool_explain },
                     { "tune", tool_tune },
                     { "stress", tool_stress },
                     { "stress-worker", tool_stress_worker },
                     { "keygen", tool_keygen },
                     { "doctor", tool_doctor } };
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        fputs(tool_help, stderr);
        return TOOL_USAGE;
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        fputs(tool_help, stdout);
        return TOOL_OK;
    }
    if (!strcmp(name, "version") || !strcmp(name, "--version")) {
        printf("regroup %s\n", rg_version());
        return TOOL_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(name, commands[i].name)) return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "regroup: there is no command \"%s\".\nTry `regroup --help`.\n", name);
    return TOOL_USAGE;
}
