/* doctor.c: `regroup doctor`: looks at what the library depends on, says what is wrong and how to mend it. It relies on
 * /proc, /sys and the library's own choices (config.h, os.h), so that what it shows is what a member would get. It must
 * not change anything, and must end in a bounded time. */
#include "doctor.h"
#include "config.h"
#include "observe/log.h"
#include "tool.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char doctor_help[] =
    "usage: regroup doctor [ADDRESS] [--json] [--strict] [--timeout S]\n"
    "\n"
    "Looks at this host as a member that joins here would find it: the RG_ variables, processor and clock, limits,\n"
    "shared memory, interfaces and the one that would be used, TCP settings, TLS files, RDMA and GPU devices, and\n"
    "whether the coordinator at ADDRESS (RG_COORDINATOR when not given) answers. Each line begins with ok, note,\n"
    "warn (it works, but not well) or BAD (it will not work); below the last two is what to do.\n"
    "\n"
    "  -j, --json        one JSON object: {\"findings\": [{\"what\", \"state\", \"text\", \"fix\"}], \"ok\", "
    "\"notes\", ...}\n"
    "  -s, --strict      warnings count as failures\n"
    "  -t, --timeout S   how long to wait for the coordinator (5)\n"
    "  -h, --help        this text\n"
    "\n"
    "Exit code: 0 nothing is BAD, 1 something is, 2 wrong usage.\n"
    "\n"
    "examples:\n"
    "  regroup doctor\n"
    "  RG_INTERFACE=ib0 regroup doctor 10.0.0.1:7000 --strict\n";

static const char *const state_word[] = { "ok", "note", "warn", "BAD" };

void doctor_say(struct doctor *d, enum doctor_state state, const char *what, const char *fix, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    rg_log_tidy(text); /* it may have words of variables, files and peers, which may be no text */
    d->count[state]++;
    if (d->findings) {
        json_array_append_new(d->findings, json_pack("{s:s, s:s, s:s, s:s?}", "what", what, "state", state_word[state],
                                                     "text", text, "fix", state >= DOCTOR_WARN ? fix : NULL));
        return;
    }
    printf("%-5s %-12s %s\n", state_word[state], what, text);
    if (fix && state >= DOCTOR_WARN) printf("%18s -> %s\n", "", fix);
}

const char *doctor_line(const char *path, char *buf, size_t cap) {
    FILE *f = fopen(path, "re");
    *buf = 0;
    if (f && !fgets(buf, (int)cap, f)) *buf = 0;
    if (f) fclose(f);
    buf[strcspn(buf, "\n")] = 0;
    return buf;
}

static int doctor_end(struct doctor *d, int strict) {
    int failed = d->count[DOCTOR_BAD] > 0 || (strict && d->count[DOCTOR_WARN] > 0);
    if (d->findings) {
        json_t *all =
            json_pack("{s:o, s:i, s:i, s:i, s:i}", "findings", d->findings, "ok", d->count[DOCTOR_OK], "notes",
                      d->count[DOCTOR_NOTE], "warnings", d->count[DOCTOR_WARN], "bad", d->count[DOCTOR_BAD]);
        char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
        if (text) puts(text);
        free(text);
        json_decref(all);
        if (!text) return tool_failed("doctor", "no memory for the findings");
    } else {
        printf("%d ok, %d notes, %d warnings, %d bad\n", d->count[DOCTOR_OK], d->count[DOCTOR_NOTE],
               d->count[DOCTOR_WARN], d->count[DOCTOR_BAD]);
    }
    return failed ? TOOL_FAILED : TOOL_OK;
}

int tool_doctor(int argc, char **argv) {
    static const struct option options[] = { { "json", no_argument, NULL, 'j' },
                                             { "strict", no_argument, NULL, 's' },
                                             { "timeout", required_argument, NULL, 't' },
                                             { "help", no_argument, NULL, 'h' },
                                             { 0, 0, 0, 0 } };
    struct doctor d = { .timeout_ms = 5000 };
    rg_error_t err = { RG_OK, 0, "" };
    char *strings = NULL;
    uint64_t timeout;
    int o, strict = 0;
    while ((o = getopt_long(argc, argv, "jst:h", options, NULL)) != -1) {
        if (o == 'h') {
            fputs(doctor_help, stdout);
            return TOOL_OK;
        }
        if (o == '?') return tool_wrong_option("doctor", argv);
        if (o == 'j' && !d.findings) d.findings = json_array();
        if (o == 's') strict = 1;
        if (o != 't') continue;
        if (!tool_duration(optarg, &timeout) || timeout < 1000000 || timeout > 3600000000000ull)
            return tool_usage("doctor", "--timeout \"%s\": expected 0.001 to 3600 seconds", optarg);
        d.timeout_ms = (unsigned)(timeout / 1000000);
    }
    d.coordinator = optind < argc ? argv[optind++] : getenv("RG_COORDINATOR");
    if (optind < argc) return tool_usage("doctor", "unexpected argument \"%s\"", argv[optind]);
    if (d.coordinator && !*d.coordinator) d.coordinator = NULL;
    rg_status_t st = rg_config_resolve(NULL, 0, &d.cfg, &strings, &err);
    d.configured = st == RG_OK;
    if (st) doctor_say(&d, DOCTOR_BAD, "variables", "correct it, or unset it", "%s", err.text);
    doctor_config(&d);
    doctor_host(&d);
    doctor_memory(&d);
    doctor_network(&d);
    doctor_devices(&d);
    doctor_coordinator(&d);
    int rc = doctor_end(&d, strict);
    rg_config_free(strings);
    return rc;
}
