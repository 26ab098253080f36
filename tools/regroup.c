/* regroup.c: the `regroup` command: picks the subcommand and holds what all of them use. It relies on nothing but
 * the library's public interface. It must not grow logic of its own: each subcommand is a file beside this one. */
#include "tool.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

int tool_wrong_option(const char *command, char **argv) {
    if (optopt > ' ' && optopt < 127) return tool_usage(command, "-%c is no option, or lacks its value", optopt);
    return tool_usage(command, "%s is no option, or lacks its value, or has one that it does not take",
                      argv[optind - 1]);
}

/* The line of a help text that is about an option, or NULL: options stand at its beginning, after blanks and perhaps a
 * short form. */
static const char *help_line(const char *help, const char *name) {
    size_t n = strlen(name);
    for (const char *line = help; line; line = (line = strchr(line, '\n')) ? line + 1 : NULL) {
        const char *p = line + strspn(line, " ");
        if (p == line || p[0] != '-') continue;
        if (p[1] != '-' && p[1] && p[2] == ',') p += 3 + strspn(p + 3, " ");
        if (strncmp(p, "--", 2) == 0 && strncmp(p + 2, name, n) == 0 && (p[2 + n] == ' ' || p[2 + n] == '\n')) return p;
    }
    return NULL;
}

int tool_bad_value(const char *command, const char *help, const char *name, const char *value) {
    char text[512];
    size_t at = 0;
    int first = 1;
    const char *p = help_line(help, name);
    if (p) p += 2 + strlen(name);
    if (p) p += *p == ' ';
    while (p && *p && at + 3 < sizeof text) {
        const char *more = p + 1 + strspn(p + (*p == '\n'), " "); /* of the next line, when this one ends here */
        if (*p == '\n' && (more - p < 16 || *more == '-')) break;
        int gap = *p == '\n' || (*p == ' ' && p[1] == ' ');
        if (gap && first) text[at++] = ',';
        text[at++] = gap ? ' ' : *p;
        first &= !gap;
        p += gap ? 1 + strspn(p + 1, " ") : 1;
    }
    text[at] = 0;
    return tool_usage(command, "\"%s\" is not what --%s takes%s%s", value, name, at ? ": " : "", text);
}

int tool_failed(const char *command, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    tool_say(command, fmt, ap);
    va_end(ap);
    return TOOL_FAILED;
}

int tool_ended(const char *command, int rc) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return rc;
    tool_failed(command, "standard output cannot be written (closed? disk full?): what was to be there is lost");
    return rc ? rc : TOOL_FAILED;
}

/* A standard stream that is closed leaves its number to the next file or connection, which would get what is printed.
 * Opened the wrong way round, so that using it fails as it did. */
static void tool_streams(void) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0) _exit(TOOL_FAILED);
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

static int tool_main(int argc, char **argv) {
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
        if (argc > 2 && (!strcmp(argv[2], "--help") || !strcmp(argv[2], "-h"))) {
            puts(
                "usage: regroup version\n\nPrints the version of the library that it is linked with.\n\nExit code: 0.");
            return TOOL_OK;
        }
        if (argc > 2) return tool_usage("version", "unexpected argument \"%s\"", argv[2]);
        printf("regroup %s\n", rg_version());
        return TOOL_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(name, commands[i].name)) return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "regroup: there is no command \"%s\".\nTry `regroup --help`.\n", name);
    return TOOL_USAGE;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    opterr = 0; /* the commands say it themselves */
    tool_streams();
    int rc = tool_main(argc, argv);
    /* A coordinator's lines are for whoever cares; its groups go on all the same. */
    return strcmp(name, "coordinator") != 0 || rc ? tool_ended(name, rc) : rc;
}
