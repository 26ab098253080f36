/* config.c: resolves what a caller filled in: field, else RG_* variable, else default; one table row per field. Parses
 * strictly, because a misspelt limit that is silently ignored shows only when the fault comes that it was meant for.
 * Relies on getenv and gethostname. It must not keep state or touch the caller's structure beyond its struct_size. */
#include "config.h"
#include "observe/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* ---- Structures of other versions ------------------------------------------------------------------------------- */

static size_t size_of(const void *s) {
    size_t n;
    memcpy(&n, s, sizeof n);
    return n;
}

rg_status_t rg_struct_check(const void *dst, size_t first, const char *name, rg_error_t *err) {
    if (!dst || size_of(dst) >= first) return RG_OK;
    return rg_fail(err, RG_ERR_INVALID, 0,
                   "%s.struct_size is %zu: expected at least %zu; initialise the structure with its RG_..._INIT", name,
                   size_of(dst), first);
}

rg_status_t rg_struct_in(void *dst, size_t known, size_t first, const void *src, const char *name, rg_error_t *err) {
    size_t given = size_of(src);
    rg_status_t st = rg_struct_check(src, first, name, err);
    if (st != RG_OK) return st;
    /* A garbage size must not send the check of the tail through the caller's whole stack. */
    if (given > 65536)
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "%s.struct_size is %zu: expected about %zu; initialise the structure with its RG_..._INIT", name,
                       given, known);
    for (size_t i = known; i < given; i++)
        if (((const unsigned char *)src)[i])
            return rg_fail(err, RG_ERR_NOTSUP, 0,
                           "%s has a field set at byte %zu that this library (version %s, %zu bytes) does not know: "
                           "leave it zero or use a newer library",
                           name, i, rg_version(), known);
    memset(dst, 0, known);
    memcpy(dst, src, given < known ? given : known);
    memcpy(dst, &known, sizeof known);
    return RG_OK;
}

void rg_struct_out(void *dst, const void *src, size_t known, size_t first) {
    if (!dst || size_of(dst) < first) return;
    size_t room = size_of(dst);
    memcpy((char *)dst + sizeof room, (const char *)src + sizeof room, (room < known ? room : known) - sizeof room);
    if (room > known) memset((char *)dst + known, 0, room - known);
}

rg_status_t rg_result_check(const rg_result_t *dst, rg_error_t *err) {
    return rg_struct_check(dst, RG_RESULT_SIZE_FIRST, "rg_result", err);
}

void rg_result_out(rg_result_t *dst, const rg_result_t *src, const uint64_t *ids, uint32_t n) {
    if (!dst || dst->struct_size < RG_RESULT_SIZE_FIRST) return;
    uint64_t *array = dst->contributor_ids;
    uint32_t cap = dst->contributor_cap;
    rg_struct_out(dst, src, sizeof *src, RG_RESULT_SIZE_FIRST);
    dst->contributor_ids = array;
    dst->contributor_cap = cap;
    if (array && ids && n && cap) memcpy(array, ids, (n < cap ? n : cap) * sizeof *ids);
}

rg_status_t rg_change_check(const rg_change_t *dst, rg_error_t *err) {
    return rg_struct_check(dst, RG_CHANGE_SIZE_FIRST, "rg_change", err);
}

void rg_change_out(rg_change_t *dst, const rg_change_t *src) {
    rg_struct_out(dst, src, sizeof *src, RG_CHANGE_SIZE_FIRST);
}

rg_status_t rg_info_check(const rg_info_t *dst, rg_error_t *err) {
    return rg_struct_check(dst, RG_INFO_SIZE_FIRST, "rg_info", err);
}

void rg_info_out(rg_info_t *dst, const rg_info_t *src) { rg_struct_out(dst, src, sizeof *src, RG_INFO_SIZE_FIRST); }

/* ---- Rows ------------------------------------------------------------------------------------------------------- */

/* A value counts as given when it is not zero, so that "0" in a variable means the same as in a field: the default. */
typedef struct number_row {
    const char *field, *variable;
    size_t at;
    uint32_t fallback, min, max;
    const char *unit;
} number_row_t;

typedef struct string_row {
    const char *field, *variable;
    size_t at;
    const char *fallback;
    size_t max;
    int shown; /* a name that others see: UTF-8; a path may be any bytes that are no control characters */
} string_row_t;

typedef struct choice_row {
    const char *field, *variable;
    size_t at;
    int fallback;
    const char *const *words; /* word, value by pairs: words[2k], and words[2k+1] as "1" or "2" */
    const char *expected;
} choice_row_t;

#define AT(field) offsetof(rg_config_t, field)
#define MIB (1u << 20)
#define MS_MAX 2147483647u

/* What both structures have alike; AT is the one's or the other's. */
#define TLS_ROWS                                                                                                       \
    { "tls", "RG_TLS", AT(tls), NULL, 15, 0 }, { "tls_psk_file", "RG_TLS_PSK_FILE", AT(tls_psk_file), NULL, 1023, 0 }, \
        { "tls_ca", "RG_TLS_CA", AT(tls_ca), NULL, 1023, 0 },                                                          \
        { "tls_cert", "RG_TLS_CERT", AT(tls_cert), NULL, 1023, 0 }, {                                                  \
        "tls_key", "RG_TLS_KEY", AT(tls_key), NULL, 1023, 0                                                            \
    }

static const string_row_t config_strings[] = {
    { "coordinator", "RG_COORDINATOR", AT(coordinator), NULL, 1023, 0 },
    { "group", "RG_GROUP", AT(group), "default", RG_GROUP_NAME_MAX, 1 },
    { "label", "RG_LABEL", AT(label), NULL, RG_LABEL_MAX, 1 },
    { "interface", "RG_INTERFACE", AT(interface), NULL, 1023, 0 },
    { "algorithm", "RG_ALGORITHM", AT(algorithm), NULL, 1023, 0 },
    { "tcp_congestion", "RG_TCP_CONGESTION", AT(tcp_congestion), "auto", 15, 0 },
    { "transport", "RG_TRANSPORT", AT(transport), "auto", 63, 0 },
    { "site", "RG_SITE", AT(site), NULL, 63, 1 },
    { "host", "RG_HOST", AT(host), NULL, 63, 1 },
    { "tuning_file", "RG_TUNING_FILE", AT(tuning_file), NULL, 1023, 0 },
    { "rdma_device", "RG_RDMA_DEVICE", AT(rdma_device), NULL, 255, 0 },
    TLS_ROWS,
};

static const number_row_t config_numbers[] = {
    { "min_size", "RG_MIN_SIZE", AT(min_size), 1, 1, RG_MEMBERS_MAX, "members" },
    { "order", "RG_ORDER", AT(order), 0, 0, UINT32_MAX, "" },
    { "listen_port", "RG_LISTEN_PORT", AT(listen_port), 0, 0, 65535, "" },
    { "join_timeout_ms", "RG_JOIN_TIMEOUT_MS", AT(join_timeout_ms), 30000, 1, MS_MAX, "milliseconds" },
    { "op_timeout_ms", "RG_OP_TIMEOUT_MS", AT(op_timeout_ms), 60000, 1, MS_MAX, "milliseconds" },
    { "heartbeat_ms", "RG_HEARTBEAT_MS", AT(heartbeat_ms), 2000, 10, 3600000, "milliseconds" },
    { "rails", "RG_RAILS", AT(rails), 1, 1, 16, "connections" },
    { "chunk_bytes", "RG_CHUNK_BYTES", AT(chunk_bytes), 0, 64, 1024 * MIB, "bytes" },
    { "socket_buffer_bytes", "RG_SOCKET_BUFFER_BYTES", AT(socket_buffer_bytes), 0, 32768, 1024 * MIB, "bytes" },
    { "small_bytes", "RG_SMALL_BYTES", AT(small_bytes), 65536, 1, 64 * MIB, "bytes" },
    { "spin_us", "RG_SPIN_US", AT(spin_us), 0, 1, 10000000, "microseconds" },
    { "quorum_timeout_ms", "RG_QUORUM_TIMEOUT_MS", AT(quorum_timeout_ms), 0, 1, MS_MAX, "milliseconds" },
    { "max_rate_mbit", "RG_MAX_RATE_MBIT", AT(max_rate_mbit), 0, 1, 1000000, "megabits per second" },
    { "measure_every", "RG_MEASURE_EVERY", AT(measure_every), 0, 1, UINT32_MAX, "boundaries" },
    { "rdma_traffic_class", "RG_RDMA_TRAFFIC_CLASS", AT(rdma_traffic_class), 0, 1, 255, "" },
};

static const char *const switch_words[] = { "on", "1", "1", "1",  "yes", "1",     "true", "1", "off",
                                            "2",  "0", "2", "no", "2",   "false", "2",    NULL };
static const char *const dial_words[] = { "both", "1", "out", "2", NULL };
static const char *const fault_words[] = { "retry", "1", "return", "2", NULL };
#define SWITCH_EXPECTED "on or off (also yes, no, true, false, 1, 0)"

static const choice_row_t config_choices[] = {
    { "on_fault", "RG_ON_FAULT", AT(on_fault), RG_RETRY, fault_words, "retry or return" },
    { "deterministic", "RG_DETERMINISTIC", AT(deterministic), RG_OFF, switch_words, SWITCH_EXPECTED },
    { "dial", "RG_DIAL", AT(dial), RG_DIAL_BOTH, dial_words, "both or out" },
    { "undo", "RG_UNDO", AT(undo), RG_ON, switch_words, SWITCH_EXPECTED },
    { "progress_thread", "RG_PROGRESS_THREAD", AT(progress_thread), RG_ON, switch_words, SWITCH_EXPECTED },
    { "rdma_direct", "RG_RDMA_DIRECT", AT(rdma_direct), RG_ON, switch_words, SWITCH_EXPECTED },
    { "spread", "RG_SPREAD", AT(spread), RG_ON, switch_words, SWITCH_EXPECTED },
    { "host_office", "RG_HOST_OFFICE", AT(host_office), RG_ON, switch_words, SWITCH_EXPECTED },
};
#undef AT

#define AT(field) offsetof(rg_coordinator_config_t, field)
static const string_row_t coordinator_strings[] = {
    { "listen", "RG_COORDINATOR_LISTEN", AT(listen), "127.0.0.1:0", 1023, 0 },
    TLS_ROWS,
    { "standby", "RG_STANDBY", AT(standby), NULL, 1023, 0 },
};
static const number_row_t coordinator_numbers[] = {
    { "max_members", "RG_MAX_MEMBERS", AT(max_members), 1024, 1, RG_MEMBERS_MAX, "members" },
    { "heartbeat_ms", "RG_HEARTBEAT_MS", AT(heartbeat_ms), 2000, 10, 3600000, "milliseconds" },
    { "max_groups", "RG_MAX_GROUPS", AT(max_groups), 64, 1, 4096, "groups" },
    { "takeover_ms", "RG_TAKEOVER_MS", AT(takeover_ms), 0, 10, 3600000, "milliseconds" },
    { "reconnect_ms", "RG_RECONNECT_MS", AT(reconnect_ms), 0, 1, 3600000, "milliseconds" },
};
static const choice_row_t coordinator_choices[] = {
    { "succession", "RG_SUCCESSION", AT(succession), RG_OFF, switch_words, SWITCH_EXPECTED },
};
#undef AT

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Where a value came from, for messages: the variable when it was taken from there, else the field. */
static const char *given_by(const char *field, const char *variable, int from_variable) {
    return from_variable ? variable : field;
}

#define NAMED(rows)                                                                                                    \
    if (i < COUNT(rows)) return (rows)[i].variable;                                                                    \
    i -= (uint32_t)COUNT(rows)

const char *rg_config_variable(uint32_t i) {
    static const struct {
        const char *variable;
    } elsewhere[] = { { "RG_LOG" }, { "RG_SIMD" }, { "RG_QUANT_ALGORITHM" } };
    NAMED(config_strings);
    NAMED(config_numbers);
    NAMED(config_choices);
    NAMED(coordinator_strings);
    NAMED(coordinator_numbers);
    NAMED(coordinator_choices);
    NAMED(elsewhere);
    return NULL;
}

/* ---- Numbers and choices ---------------------------------------------------------------------------------------- */

/* Decimal digits only: no sign, no blanks, no suffix whose meaning would have to be guessed. */
static int parse_u32(const char *text, uint32_t *out) {
    uint64_t v = 0;
    if (!*text) return 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return 0;
        v = v * 10 + (uint64_t)(*text - '0');
        if (v > UINT32_MAX) return 0;
    }
    *out = (uint32_t)v;
    return 1;
}

static rg_status_t resolve_number(const number_row_t *row, void *s, rg_error_t *err) {
    uint32_t v;
    memcpy(&v, (char *)s + row->at, sizeof v);
    const char *text = v ? NULL : getenv(row->variable);
    if (text && *text && !parse_u32(text, &v))
        return rg_fail(err, RG_ERR_INVALID, 0, "%s is \"%.64s\": expected a whole number from %u to %u%s%s",
                       row->variable, text, row->min, row->max, *row->unit ? " " : "", row->unit);
    if (v && (v < row->min || v > row->max))
        return rg_fail(err, RG_ERR_INVALID, 0, "%s is %u: expected %u to %u%s%s",
                       given_by(row->field, row->variable, text != NULL), v, row->min, row->max, *row->unit ? " " : "",
                       row->unit);
    if (!v) v = row->fallback;
    memcpy((char *)s + row->at, &v, sizeof v);
    return RG_OK;
}

static rg_status_t resolve_choice(const choice_row_t *row, void *s, rg_error_t *err) {
    int v;
    memcpy(&v, (char *)s + row->at, sizeof v);
    if (v < 0 || v > 2)
        return rg_fail(err, RG_ERR_INVALID, 0, "%s is %d: expected %s, or 0 for the default", row->field, v,
                       row->expected);
    const char *text = v ? NULL : getenv(row->variable);
    if (text && *text) {
        for (const char *const *w = row->words; *w && !v; w += 2)
            if (strcasecmp(*w, text) == 0) v = w[1][0] - '0';
        if (!v)
            return rg_fail(err, RG_ERR_INVALID, 0, "%s is \"%.64s\": expected %s", row->variable, text, row->expected);
    }
    if (!v) v = row->fallback;
    memcpy((char *)s + row->at, &v, sizeof v);
    return RG_OK;
}

/* ---- Strings ---------------------------------------------------------------------------------------------------- */

/* The last resort for a label. Cut rather than refused: nobody chose it. */
static void host_label(char *out, size_t cap) {
    char name[256] = "";
    if (gethostname(name, sizeof name - 1) != 0 || !*name) strcpy(name, "unknown");
    size_t n = strnlen(name, cap - 1);
    memcpy(out, name, n);
    out[n] = 0;
    rg_log_tidy(out);
}

/* Text that ends up in tables, logs and JSON must not carry control characters there. */
static rg_status_t check_string(const string_row_t *row, const char *name, const char *text, rg_error_t *err) {
    size_t n = strlen(text);
    if (n > row->max)
        return rg_fail(err, RG_ERR_INVALID, 0, "%s has %zu bytes (\"%.32s...\"): expected at most %zu", name, n, text,
                       row->max);
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return rg_fail(err, RG_ERR_INVALID, 0,
                           "%s has a control character (code %d at byte %zu): expected printable text", name,
                           (unsigned char)*p, (size_t)(p - text));
    for (size_t at = 0, c; row->shown && text[at]; at += c)
        if (!(c = rg_log_char(text + at)))
            return rg_fail(
                err, RG_ERR_INVALID, 0,
                "%s has at byte %zu (0x%02x) what is no UTF-8, or a control character: expected printable text", name,
                at, (unsigned char)text[at]);
    return RG_OK;
}

/* Chooses every string, then copies them into one block, so that one free() ends them all. */
static rg_status_t resolve_strings(const string_row_t *rows, size_t n, void *s, const char *host, char **block,
                                   rg_error_t *err) {
    const char *chosen[24];
    size_t total = 1;
    for (size_t i = 0; i < n; i++) {
        const char *text;
        memcpy(&text, (char *)s + rows[i].at, sizeof text);
        int from_variable = !text || !*text;
        if (from_variable) text = getenv(rows[i].variable);
        chosen[i] = NULL;
        if (text && *text) {
            const char *name = given_by(rows[i].field, rows[i].variable, from_variable);
            rg_status_t st = check_string(&rows[i], name, text, err);
            if (st != RG_OK) return st;
            chosen[i] = text;
        } else if (rows[i].fallback) {
            chosen[i] = rows[i].fallback;
        } else if (strcmp(rows[i].field, "label") == 0) {
            chosen[i] = host;
        }
        total += chosen[i] ? strlen(chosen[i]) + 1 : 0;
    }
    char *p = malloc(total);
    if (!p) return rg_fail(err, RG_ERR_NOMEM, 0, "no memory for %zu bytes of configuration", total);
    *block = p;
    for (size_t i = 0; i < n; i++) {
        const char *copy = NULL;
        if (chosen[i]) {
            copy = strcpy(p, chosen[i]);
            p += strlen(p) + 1;
        }
        memcpy((char *)s + rows[i].at, &copy, sizeof copy);
    }
    return RG_OK;
}

/* ---- TLS ------------------------------------------------------------------------------------------------------- */

/* Sets *tls to "on" or "off". Whoever names a key wants it used: a switch that was forgotten must not send in clear
 * text what was meant to be secret. */
static rg_status_t resolve_tls(const char **tls, const char *psk, const char *ca, const char *cert, const char *key,
                               rg_error_t *err) {
    int named = psk || ca || cert || key, on = 0;
    if (*tls) {
        for (const char *const *w = switch_words; *w && !on; w += 2)
            if (strcasecmp(*w, *tls) == 0) on = w[1][0] - '0';
        if (!on) return rg_fail(err, RG_ERR_INVALID, 0, "tls (RG_TLS) is \"%.64s\": expected " SWITCH_EXPECTED, *tls);
        on = on == RG_ON;
    } else {
        on = named;
    }
    *tls = on ? "on" : "off";
    if (!on) return RG_OK;
    if (!named)
        return rg_fail(
            err, RG_ERR_INVALID, 0,
            "RG_TLS is on, but neither a group key (RG_TLS_PSK_FILE) nor certificates (RG_TLS_CA, RG_TLS_CERT, "
            "RG_TLS_KEY) are named; `regroup keygen` makes either");
    if (psk && (ca || cert || key))
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "both a group key (RG_TLS_PSK_FILE) and certificates (RG_TLS_CA, RG_TLS_CERT, RG_TLS_KEY) are "
                       "named: choose one kind, the same on the coordinator and all members");
    if (!psk && (!ca || !cert || !key))
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "%s is missing: certificates need all of RG_TLS_CA, RG_TLS_CERT and RG_TLS_KEY",
                       !ca     ? "RG_TLS_CA"
                       : !cert ? "RG_TLS_CERT"
                               : "RG_TLS_KEY");
    return RG_OK;
}

/* ---- The configurations ----------------------------------------------------------------------------------------- */

static void drop_strings(char **strings) {
    rg_config_free(*strings);
    *strings = NULL;
}

rg_status_t rg_config_resolve(const rg_config_t *in, uint32_t flags, rg_config_t *out, char **strings,
                              rg_error_t *err) {
    static const rg_config_t defaults = RG_CONFIG_INIT;
    char host[RG_LABEL_MAX + 1];
    rg_config_t c;
    rg_log_t log;
    *strings = NULL;
    rg_status_t st = rg_struct_in(&c, sizeof c, RG_CONFIG_SIZE_FIRST, in ? in : &defaults, "rg_config", err);
    for (size_t i = 0; st == RG_OK && i < COUNT(config_numbers); i++) st = resolve_number(&config_numbers[i], &c, err);
    for (size_t i = 0; st == RG_OK && i < COUNT(config_choices); i++) st = resolve_choice(&config_choices[i], &c, err);
    if (st == RG_OK) st = rg_log_init(&log, c.log_level, c.log_fn, c.log_user, err);
    if (st != RG_OK) return st;
    c.log_level = log.level, c.log_fn = log.fn, c.log_user = log.user;
    host_label(host, sizeof host);
    st = resolve_strings(config_strings, COUNT(config_strings), &c, host, strings, err);
    if (st == RG_OK && (flags & RG_NEED_COORDINATOR) && !c.coordinator) {
        drop_strings(strings);
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "no coordinator is named: set the coordinator field or RG_COORDINATOR to \"host:port\"; "
                       "`regroup coordinator` starts one and prints its address");
    }
    if (st == RG_OK) st = resolve_tls(&c.tls, c.tls_psk_file, c.tls_ca, c.tls_cert, c.tls_key, err);
    if (st == RG_OK) *out = c;
    else drop_strings(strings);
    return st;
}

rg_status_t rg_coordinator_config_resolve(const rg_coordinator_config_t *in, rg_coordinator_config_t *out,
                                          char **strings, rg_error_t *err) {
    static const rg_coordinator_config_t defaults = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_config_t c;
    rg_log_t log;
    *strings = NULL;
    rg_status_t st =
        rg_struct_in(&c, sizeof c, RG_COORDINATOR_CONFIG_SIZE_FIRST, in ? in : &defaults, "rg_coordinator_config", err);
    for (size_t i = 0; st == RG_OK && i < COUNT(coordinator_numbers); i++)
        st = resolve_number(&coordinator_numbers[i], &c, err);
    for (size_t i = 0; st == RG_OK && i < COUNT(coordinator_choices); i++)
        st = resolve_choice(&coordinator_choices[i], &c, err);
    if (st == RG_OK) st = rg_log_init(&log, c.log_level, c.log_fn, c.log_user, err);
    if (st != RG_OK) return st;
    c.log_level = log.level, c.log_fn = log.fn, c.log_user = log.user;
    st = resolve_strings(coordinator_strings, COUNT(coordinator_strings), &c, NULL, strings, err);
    if (st == RG_OK) st = resolve_tls(&c.tls, c.tls_psk_file, c.tls_ca, c.tls_cert, c.tls_key, err);
    if (st == RG_OK) *out = c;
    else drop_strings(strings);
    return st;
}

void rg_config_free(char *strings) { free(strings); }

rg_status_t rg_opts_resolve(const rg_opts_t *in, const rg_config_t *config, rg_opts_t *out, rg_error_t *err) {
    static const rg_opts_t defaults = RG_OPTS_INIT;
    rg_opts_t o;
    rg_status_t st = rg_struct_in(&o, sizeof o, RG_OPTS_SIZE_FIRST, in ? in : &defaults, "rg_opts", err);
    if (st != RG_OK) return st;
    out->result = o.result; /* where a refusal is told, too */
    if ((unsigned)o.on_fault > RG_RETURN)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_opts.on_fault is %d: expected RG_RETRY (1), RG_RETURN (2) or 0",
                       (int)o.on_fault);
    if (o.timeout_ms > MS_MAX)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_opts.timeout_ms is %u: expected 1 to %u milliseconds, or 0",
                       o.timeout_ms, MS_MAX);
    st = rg_result_check(o.result, err);
    if (st != RG_OK) return st;
    if (!o.timeout_ms) o.timeout_ms = config->op_timeout_ms;
    if (!o.on_fault) o.on_fault = config->on_fault;
    *out = o;
    return RG_OK;
}
