/* stress_report.c: what `regroup stress` prints: a line of progress, a line at the end, and a report in JSON for other
 * programs. It must not judge. */
#include "stress.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int stress_status_index(int32_t status) { return status == 0 ? 0 : status < 0 && status > -19 ? -status : 19; }

static const char *status_name(int index) {
    return index == 19 ? "other" : rg_status_name((rg_status_t)-index) + (index ? 7 : 3); /* without RG_ERR_, RG_ */
}

static uint64_t sum_of(const struct stress *s, int index) {
    uint64_t n = 0;
    for (int k = 0; k < STRESS_BOUNDARY; k++) n += s->tally.by_status[k][index];
    return n;
}

static uint32_t count_peers(const struct stress *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->setup->peers; i++) n += s->peers[i].pid != 0;
    return n;
}

void stress_progress(struct stress *s) {
    uint64_t actions = 0;
    for (int i = 0; i < STRESS_ACTION_COUNT; i++) actions += s->tally.actions_done[i];
    fprintf(stderr,
            "%sstress: %.0f s: %u workers, %llu actions, %llu operations, %llu steps, %u view changes, %u violations%s",
            s->tty ? "\r\033[K" : "", stress_at(s), count_peers(s), (unsigned long long)actions,
            (unsigned long long)s->tally.operations, (unsigned long long)s->tally.steps, s->tally.recoveries,
            s->tally.violations, s->tty ? "" : "\n");
    fflush(stderr);
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Milliseconds: of the middle one, of the 99th in a hundred, of the slowest. */
static void recovery_times(const struct stress *s, double out[3]) {
    static uint64_t v[STRESS_RECOVERIES];
    uint32_t n = s->tally.recoveries;
    out[0] = out[1] = out[2] = 0;
    if (!n) return;
    for (uint32_t i = 0; i < n; i++) v[i] = s->tally.recovery[i].ns;
    qsort(v, n, sizeof *v, by_value);
    out[0] = (double)v[n / 2] / 1e6;
    out[1] = (double)v[n - 1 - n / 100] / 1e6;
    out[2] = (double)v[n - 1] / 1e6;
}

void stress_summary(struct stress *s) {
    struct stress_tally *t = &s->tally;
    uint64_t actions = 0;
    double ms[3];
    char outcomes[512] = "", still[96] = "";
    size_t at = 0;
    for (int i = 0; i < STRESS_ACTION_COUNT; i++) actions += t->actions_done[i];
    for (int i = 0; i < 20; i++)
        if (sum_of(s, i))
            at += (size_t)snprintf(outcomes + at, sizeof outcomes - at, "%s%llu %s", at ? ", " : "",
                                   (unsigned long long)sum_of(s, i), status_name(i));
    recovery_times(s, ms);
    if (stress_stood_still_s() >= 1)
        snprintf(still, sizeof still, "; this host stood still for %.1f s, which everybody had on top",
                 stress_stood_still_s());
    if (s->tty) fputs("\r\033[K", stderr);
    printf(
        "stress: %s: seed %llu, %u peers, %.1f s, transport %s%s, %s, %llu actions, %llu operations (%s), %llu steps, "
        "%llu comparisons, %u view changes (ms: median %.1f, 99 %% %.1f, most %.1f), %u rejoins, %u groups, "
        "%u violations%s\n",
        t->violations    ? "FAILED"
        : s->interrupted ? "interrupted"
                         : "passed",
        (unsigned long long)s->setup->seed, s->setup->peers, stress_at(s), s->setup->transport,
        s->tls ? " with TLS" : "", s->net.nodes ? "network namespaces" : "one host", (unsigned long long)actions,
        (unsigned long long)t->operations, outcomes, (unsigned long long)t->steps, (unsigned long long)t->compared,
        t->recoveries, ms[0], ms[1], ms[2], t->rejoins, t->groups, t->violations, still);
    fflush(stdout);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static void string(FILE *f, const char *text) {
    fputc('"', f);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\') fprintf(f, "\\%c", *p);
        else if (*p < 0x20 || *p >= 0x7f) fprintf(f, "\\u%04x", *p);
        else fputc(*p, f);
    }
    fputc('"', f);
}

static void json_actions(const struct stress *s, FILE *f) {
    fputs("  \"actions\": [", f);
    for (uint32_t i = 0; i < s->n_done; i++) {
        const struct stress_done *d = &s->done[i];
        char text[160];
        stress_event_text(&d->event, text, sizeof text);
        fprintf(f, "%s\n    {\"at\": %.3f, \"planned\": %.3f, \"kind\": \"%s\", \"done\": %s, \"text\": ", i ? "," : "",
                d->at, (double)d->event.at_ns / 1e9, stress_action_name(d->event.action),
                d->happened ? "true" : "false");
        string(f, text);
        fputc('}', f);
    }
    fputs("],\n", f);
}

static void json_operations(const struct stress *s, FILE *f) {
    int first = 1;
    fputs("  \"operations\": {", f);
    for (int k = 0; k < STRESS_KIND_COUNT; k++) {
        uint64_t any = 0;
        for (int i = 0; i < 20; i++) any += s->tally.by_status[k][i];
        if (!any) continue;
        fprintf(f, "%s\n    \"%s\": {", first ? "" : ",", stress_kind_name((stress_kind_t)k));
        first = 0;
        for (int i = 0; i < 20; i++)
            if (s->tally.by_status[k][i])
                fprintf(f, "\"%s\": %llu, ", status_name(i), (unsigned long long)s->tally.by_status[k][i]);
        fprintf(f, "\"slowest_ms\": %.3f}", s->tally.slowest[k]);
    }
    fputs("},\n", f);
}

static void json_recoveries(const struct stress *s, FILE *f) {
    double ms[3];
    recovery_times(s, ms);
    fprintf(f, "  \"recoveries\": {\"count\": %u, \"median_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f, \"each\": [",
            s->tally.recoveries, ms[0], ms[1], ms[2]);
    for (uint32_t i = 0; i < s->tally.recoveries; i++)
        fprintf(f, "%s{\"at\": %.3f, \"epoch\": %llu, \"ms\": %.3f}", i ? ", " : "", s->tally.recovery[i].at,
                (unsigned long long)s->tally.recovery[i].epoch, (double)s->tally.recovery[i].ns / 1e6);
    fputs("]},\n", f);
}

static void json_violations(const struct stress *s, FILE *f) {
    fputs("  \"violations\": [", f);
    for (uint32_t i = 0; i < s->tally.violations && i < STRESS_VIOLATIONS; i++) {
        const struct stress_violation *v = &s->tally.violation[i];
        fprintf(f, "%s\n    {\"at\": %.3f, \"kind\": \"%s\", \"text\": ", i ? "," : "", v->at, v->kind);
        string(f, v->text);
        fputs(", \"journal\": [", f);
        for (int k = 0; k < 2 && v->lines[k][0]; k++) {
            if (k) fputs(", ", f);
            string(f, v->lines[k]);
        }
        fputs("]}", f);
    }
    fputs("],\n", f);
}

int stress_json(struct stress *s) {
    const struct stress_tally *t = &s->tally;
    FILE *f = strcmp(s->json, "-") != 0 ? fopen(s->json, "we") : stdout;
    if (!f) return tool_failed("stress", "%s: %s", s->json, strerror(errno));
    fprintf(f,
            "{\n  \"version\": \"%s\", \"seed\": %llu, \"peers\": %u, \"coordinators\": %u, \"succession\": %s, "
            "\"seconds\": %.1f, ",
            rg_version(), (unsigned long long)s->setup->seed, s->setup->peers, s->plan_opts.coordinators,
            s->plan_opts.succession ? "true" : "false", stress_at(s));
    fprintf(f, "\"transport\": \"%s\", \"tls\": %s, \"hosts\": %u, \"network\": ", s->setup->transport,
            s->tls ? "true" : "false", s->net.nodes ? s->plan_opts.hosts : 1);
    string(f, s->net.nodes ? "namespaces" : s->net_why);
    fputs(",\n", f);
    json_actions(s, f);
    json_operations(s, f);
    json_recoveries(s, f);
    json_violations(s, f);
    fprintf(f,
            "  \"steps\": %llu, \"confirmed\": %llu, \"comparisons\": %llu, \"rejoins\": %u, \"join_failures\": %u, "
            "\"groups\": %u, \"host_stood_still_s\": %.3f, \"violation_count\": %u, \"passed\": %s\n}\n",
            (unsigned long long)t->steps, (unsigned long long)t->confirmed, (unsigned long long)t->compared, t->rejoins,
            t->join_failures, t->groups, stress_stood_still_s(), t->violations, t->violations ? "false" : "true");
    int bad = ferror(f);
    if (f != stdout && fclose(f)) bad = 1;
    return bad ? tool_failed("stress", "%s: %s", s->json, strerror(errno)) : TOOL_OK;
}
