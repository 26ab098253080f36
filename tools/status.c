/* status.c: `regroup status`: asks a coordinator for its roll and prints it as a table or as the JSON it came as. It
 * relies on the JSON that rg_coordinator_status() documents in docs/regroup-command.md, and changes nothing. */
#include "observe/log.h"
#include "sched/sched.h"
#include "tool.h"

#include <getopt.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char status_help[] =
    "usage: regroup status [ADDRESS] [--json] [--timeout S]\n"
    "\n"
    "Shows the groups of the coordinator at ADDRESS (\"host:port\", \"[v6]:port\"; RG_COORDINATOR when not given;\n"
    "of a list the first that serves; the data port of a member that has taken the office over answers too), and for\n"
    "every member its rank, identity, label, address, boundary, bytes moved and the age of its last heartbeat; then\n"
    "which host and site it is on (equal marks are one place) and what its links take.\n"
    "\n"
    "  -j, --json        the roll as JSON\n"
    "  -t, --timeout S   how long to wait (5)\n"
    "  -h, --help        this text\n"
    "\n"
    "Exit code: 0 success, 1 the coordinator does not answer, 2 wrong usage.\n"
    "\n"
    "example:\n"
    "  regroup status 10.0.0.1:7000\n";

static json_int_t status_int(json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static const char *status_text(json_t *o, const char *key) {
    static char kept[8][128]; /* more than one line takes: names come from others, and may want to move the cursor */
    static unsigned next;
    char *out = kept[next++ % 8];
    const char *s = json_string_value(json_object_get(o, key));
    snprintf(out, sizeof kept[0], "%s", s ? s : "?");
    rg_log_tidy(out);
    return out;
}

static void status_bytes(char *buf, size_t cap, json_int_t bytes) {
    static const char *const unit[] = { "B", "KB", "MB", "GB", "TB" };
    double v = (double)bytes;
    int u = 0;
    while (v >= 9999.5 && u < 4) {
        v /= 1000;
        u++;
    }
    snprintf(buf, cap, "%.0f %s", v, unit[u]);
}

/* What a member measured of its links, as far as it is there: "shm 0.4us" on its host, else "tcp 12us"; then what it
 * takes to other hosts and sites. */
static void status_links(char *buf, size_t cap, json_t *m) {
    static const char *const names[RG_NET_KINDS] = { "tcp", "site", "far" };
    uint8_t bytes[RG_NET_BYTES] = { 0 };
    const char *s = json_string_value(json_object_get(m, "links"));
    size_t at = 0;
    rg_net_t net;
    for (size_t i = 0; s && i < RG_NET_BYTES && strlen(s) == 2 * RG_NET_BYTES; i++) {
        char two[3] = { s[2 * i], s[2 * i + 1], 0 };
        bytes[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    rg_net_unpack(bytes, &net);
    snprintf(buf, cap, "-");
    for (int k = 0; k < RG_NET_KINDS && at < cap; k++) {
        if (!net.link[k].latency_ns && k == 0 && net.shared) at += (size_t)snprintf(buf, cap, "shm");
        if (!net.link[k].latency_ns) continue;
        const char *name = k == 0 && net.shared ? "shm" : names[k];
        at += (size_t)snprintf(buf + at, cap - at, "%s%s %.3gus", at ? ", " : "", name,
                               (double)net.link[k].latency_ns / 1e3);
    }
}

/* Who decides about the group, and with how many of the votes on its next view. */
static void status_office(json_t *group) {
    json_t *o = json_object_get(group, "office");
    if (!strcmp(status_text(o, "mode"), "authority")) {
        printf("  office: this coordinator alone decides (authority)\n");
        return;
    }
    if (!strcmp(status_text(o, "holder"), "member"))
        printf("  office: held by member %lld, in place of a coordinator", (long long)status_int(o, "member"));
    else printf("  office: held by the coordinator");
    if (!status_int(o, "voters")) printf("\n"); /* there is no view yet */
    else
        printf("; %lld of %lld votes are here%s\n", (long long)status_int(o, "votes"),
               (long long)status_int(o, "voters"),
               json_is_true(json_object_get(o, "acting")) ? "" : ": NO QUORUM, it does not act");
}

static void status_table(json_t *all) {
    size_t i, k;
    json_t *group, *m;
    if (json_is_false(json_object_get(all, "serves")))
        printf("standing by for %s, which serves\n", status_text(all, "standby_for"));
    json_array_foreach(json_object_get(all, "groups"), i, group) {
        json_t *members = json_object_get(group, "members");
        printf("group %s: %zu members, epoch %lld\n", status_text(group, "name"), json_array_size(members),
               (long long)status_int(group, "epoch"));
        status_office(group);
        printf("%5s %-10s %-9s %-16s %-22s %8s %8s %10s %10s %10s  %-6s %-6s %s\n", "rank", "state", "identity",
               "label", "address", "pid", "boundary", "sent", "received", "heard", "host", "site", "links");
        json_array_foreach(members, k, m) {
            char rank[16] = "-", sent[32], received[32], links[96];
            const char *site = json_string_value(json_object_get(m, "site"));
            status_links(links, sizeof links, m);
            if (status_int(m, "rank") >= 0) snprintf(rank, sizeof rank, "%lld", (long long)status_int(m, "rank"));
            status_bytes(sent, sizeof sent, status_int(m, "bytes_sent"));
            status_bytes(received, sizeof received, status_int(m, "bytes_received"));
            printf("%5s %-10s %-9.8s %-16.16s %-22s %8lld %8lld %10s %10s %7.0f ms  %-6.6s %-6.6s %s\n", rank,
                   status_text(m, "state"), status_text(m, "identity"), status_text(m, "label"),
                   status_text(m, "address"), (long long)status_int(m, "pid"), (long long)status_int(m, "boundary"),
                   sent, received, json_number_value(json_object_get(m, "heartbeat_age_ms")), status_text(m, "host"),
                   site && *site ? site : "-", links);
        }
    }
    if (!json_array_size(json_object_get(all, "groups"))) printf("no groups\n");
}

/* JSON that has been read and found sound, as it came but for what could move a cursor: in names that is written as
 * \\uXXXX, between them it is a blank. Without the text's last newline or not: one is printed. */
static void status_json(const char *text) {
    int inside = 0;
    for (size_t n; *text; text += n) {
        n = rg_log_char(text);
        if (n == 1 && *text == '"') inside = !inside;
        if (n == 1 && *text == '\\' && text[1]) n = 2; /* what is escaped is ASCII, and no end of a name */
        if (n) {
            fwrite(text, 1, n, stdout);
            continue;
        }
        const unsigned char *p = (const unsigned char *)text;
        n = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : 3; /* beyond these are none that are kept back */
        unsigned c = n == 1   ? p[0]
                     : n == 2 ? (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu)
                              : (p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
        if (inside) printf("\\u%04x", c);
        else putchar(' ');
    }
    putchar('\n');
}

int tool_status(int argc, char **argv) {
    static const struct option options[] = { { "json", no_argument, NULL, 'j' },
                                             { "timeout", required_argument, NULL, 't' },
                                             { "help", no_argument, NULL, 'h' },
                                             { 0, 0, 0, 0 } };
    const char *address = getenv("RG_COORDINATOR");
    uint64_t timeout = 5000000000ull;
    rg_error_t err = { RG_OK, 0, "" };
    char *text = NULL;
    int o, json = 0, rc = TOOL_OK;
    while ((o = getopt_long(argc, argv, "jt:h", options, NULL)) != -1) {
        if (o == 'h') {
            fputs(status_help, stdout);
            return TOOL_OK;
        }
        if (o == '?') return tool_wrong_option("status", argv);
        if (o == 'j') json = 1;
        if (o == 't' && (!tool_duration(optarg, &timeout) || timeout < 1000000 || timeout > 3600000000000ull))
            return tool_usage("status", "--timeout \"%s\": expected 0.001 to 3600 seconds", optarg);
    }
    if (optind < argc) address = argv[optind++];
    if (optind < argc) return tool_usage("status", "unexpected argument \"%s\"", argv[optind]);
    if (!address || !*address) return tool_usage("status", "no address: give one or set RG_COORDINATOR");
    if (rg_coordinator_status(address, (uint32_t)(timeout / 1000000), &text, &err))
        return tool_failed("status", "%s", err.text);
    json_error_t jerr;
    json_t *all = json_loads(text, 0, &jerr);
    if (!all) {
        rg_log_tidy(jerr.text);
        rc = tool_failed("status", "what %s answered is not JSON: %s", address, jerr.text);
    } else if (json) status_json(text);
    else status_table(all);
    json_decref(all);
    rg_free(text);
    return rc;
}
