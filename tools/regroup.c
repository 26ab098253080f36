/* regroup.c: the `regroup` command: picks the subcommand and holds what all of them use. It relies on nothing but
 * the library's public interface. It must not grow logic of its own: each subcommand is a file beside this one. */
#include "tool.h"

#include <errno.h>
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
    "  status        show the members that a coordinator knows\n"
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

int tool_number(const char *text, uint64_t min, uint64_t max, uint64_t *out) {
    char *end;
    errno = 0;
    if (!text || *text < '0' || *text > '9') return 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || *end || v < min || v > max) return 0;
    *out = v;
    return 1;
}

int tool_bytes(const char *text, uint64_t *out) {
    char *end;
    int shift = 0;
    errno = 0;
    if (!text || *text < '0' || *text > '9') return 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (*end == 'k' || *end == 'K') shift = 10;
    if (*end == 'm' || *end == 'M') shift = 20;
    if (*end == 'g' || *end == 'G') shift = 30;
    if (shift) end++;
    if (shift && *end == 'i') end++;
    if (*end == 'B') end++;
    if (errno || *end || v > UINT64_MAX >> shift) return 0;
    *out = (uint64_t)v << shift;
    return 1;
}

int tool_duration(const char *text, uint64_t *ns) {
    char *end;
    if (!text || ((*text < '0' || *text > '9') && *text != '.')) return 0;
    double v = strtod(text, &end);
    double unit = !strcmp(end, "ms") ? 1e6 : !strcmp(end, "us") ? 1e3 : !*end || !strcmp(end, "s") ? 1e9 : 0;
    if (end == text || !unit || !(v >= 0 && v * unit < 1e18)) return 0;
    *ns = (uint64_t)(v * unit);
    return 1;
}

int tool_dtype(const char *text, rg_dtype_t *out) {
    for (int i = 0; i < RG_DTYPE_COUNT; i++)
        if (!strcmp(text, rg_dtype_name((rg_dtype_t)i))) return *out = (rg_dtype_t)i, 1;
    return 0;
}

int tool_op(const char *text, rg_op_t *out) {
    for (int i = 0; i < RG_OP_COUNT; i++)
        if (!strcmp(text, rg_op_name((rg_op_t)i))) return *out = (rg_op_t)i, 1;
    return 0;
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
    } commands[] = { { "coordinator", tool_coordinator }, { "run", tool_run },         { "bench", tool_bench },
                     { "status", tool_status },           { "explain", tool_explain }, { "tune", tool_tune } };
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
