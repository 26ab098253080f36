/* test_config.c: field, then variable, then default, for every field of the configuration; strict parsing with a text
 * that names the culprit; structures of older and newer callers. Each test runs in a process of its own, so the
 * environment is its own too. */
#include "config.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Every variable, so that nothing of the surrounding environment leaks into a test. */
static const char *const variables[] = {
    "RG_COORDINATOR",
    "RG_GROUP",
    "RG_LABEL",
    "RG_INTERFACE",
    "RG_ALGORITHM",
    "RG_TCP_CONGESTION",
    "RG_TRANSPORT",
    "RG_MIN_SIZE",
    "RG_ORDER",
    "RG_LISTEN_PORT",
    "RG_JOIN_TIMEOUT_MS",
    "RG_OP_TIMEOUT_MS",
    "RG_HEARTBEAT_MS",
    "RG_RAILS",
    "RG_CHUNK_BYTES",
    "RG_SOCKET_BUFFER_BYTES",
    "RG_SMALL_BYTES",
    "RG_SPIN_US",
    "RG_ON_FAULT",
    "RG_DETERMINISTIC",
    "RG_UNDO",
    "RG_PROGRESS_THREAD",
    "RG_LOG",
    "RG_COORDINATOR_LISTEN",
    "RG_MAX_MEMBERS",
    "RG_MAX_GROUPS",
    "RG_TLS",
    "RG_TLS_PSK_FILE",
    "RG_TLS_CA",
    "RG_TLS_CERT",
    "RG_TLS_KEY",
};

static void clear_environment(void) {
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) unsetenv(variables[i]);
}
TestSuite(config, .init = clear_environment);

static rg_config_t config;
static char *strings;
static rg_error_t error;

static rg_status_t resolve(const rg_config_t *in) { return rg_config_resolve(in, 0, &config, &strings, &error); }

/* Resolving must fail, own nothing, and say all of the words. */
static void refuses(const rg_config_t *in, rg_status_t status, const char *who, const char *what,
                    const char *expected) {
    strings = (char *)&strings;
    cr_assert_eq(resolve(in), status, "%s", who);
    cr_assert(!strings && error.status == status);
    cr_assert(strstr(error.text, who) && strstr(error.text, what) && strstr(error.text, expected), "text: %s",
              error.text);
}

Test(config, defaults__nothing_said__documented_values) {
    cr_assert_eq(resolve(NULL), RG_OK);
    cr_assert_eq(config.struct_size, sizeof config);
    cr_assert(!config.coordinator && !config.interface && !config.algorithm && !config.log_fn);
    cr_assert_str_eq(config.group, "default");
    cr_assert_str_eq(config.transport, "auto");
    cr_assert_str_eq(config.tcp_congestion, "auto");
    cr_assert(strlen(config.label) > 0 && strlen(config.label) <= RG_LABEL_MAX);
    cr_assert(config.min_size == 1 && config.order == 0 && config.listen_port == 0 && config.join_timeout_ms == 30000);
    cr_assert(config.op_timeout_ms == 60000 && config.heartbeat_ms == 2000 && config.rails == 1 && config.spin_us == 0);
    cr_assert(config.chunk_bytes == 0 && config.socket_buffer_bytes == 0 && config.small_bytes == 65536);
    cr_assert(config.on_fault == RG_RETRY && config.deterministic == RG_OFF && config.undo == RG_ON);
    cr_assert(config.progress_thread == RG_ON && config.log_level == RG_LOG_NONE && config.max_rate_mbit == 0);
    cr_assert_eq(config.measure_every, 0);
    cr_assert(config.rdma_traffic_class == 0 && !config.rdma_device && config.rdma_direct == RG_ON);
    rg_config_free(strings);
    rg_config_free(NULL);
}

Test(config, variables__every_one__taken) {
    setenv("RG_COORDINATOR", "10.0.0.1:4000", 1), setenv("RG_GROUP", "blue", 1), setenv("RG_LABEL", "node 7", 1);
    setenv("RG_INTERFACE", "^lo,docker", 1), setenv("RG_ALGORITHM", "all_reduce=ring", 1);
    setenv("RG_TCP_CONGESTION", "reno", 1), setenv("RG_TRANSPORT", "inproc", 1), setenv("RG_MIN_SIZE", "4", 1);
    setenv("RG_ORDER", "9", 1), setenv("RG_LISTEN_PORT", "65535", 1), setenv("RG_JOIN_TIMEOUT_MS", "1", 1);
    setenv("RG_OP_TIMEOUT_MS", "2", 1), setenv("RG_HEARTBEAT_MS", "300", 1), setenv("RG_RAILS", "16", 1);
    setenv("RG_CHUNK_BYTES", "65536", 1), setenv("RG_SOCKET_BUFFER_BYTES", "32768", 1);
    setenv("RG_SMALL_BYTES", "1", 1), setenv("RG_MAX_RATE_MBIT", "25", 1);
    setenv("RG_MEASURE_EVERY", "7", 1);
    setenv("RG_RDMA_DEVICE", "mlx5_1:2", 1);
    setenv("RG_RDMA_TRAFFIC_CLASS", "104", 1);
    setenv("RG_RDMA_DIRECT", "off", 1);
    setenv("RG_SPIN_US", "50", 1), setenv("RG_ON_FAULT", "return", 1), setenv("RG_DETERMINISTIC", "on", 1);
    setenv("RG_UNDO", "off", 1), setenv("RG_PROGRESS_THREAD", "0", 1), setenv("RG_LOG", "info", 1);
    cr_assert_eq(resolve(NULL), RG_OK, "%s", error.text);
    cr_assert_str_eq(config.coordinator, "10.0.0.1:4000");
    cr_assert_str_eq(config.group, "blue");
    cr_assert_str_eq(config.label, "node 7");
    cr_assert_str_eq(config.interface, "^lo,docker");
    cr_assert_str_eq(config.algorithm, "all_reduce=ring");
    cr_assert_str_eq(config.tcp_congestion, "reno");
    cr_assert_str_eq(config.transport, "inproc");
    cr_assert(config.min_size == 4 && config.order == 9 && config.listen_port == 65535 && config.join_timeout_ms == 1);
    cr_assert(config.op_timeout_ms == 2 && config.heartbeat_ms == 300 && config.rails == 16 && config.spin_us == 50);
    cr_assert(config.chunk_bytes == 65536 && config.socket_buffer_bytes == 32768 && config.small_bytes == 1);
    cr_assert(config.on_fault == RG_RETURN && config.deterministic == RG_ON && config.undo == RG_OFF);
    cr_assert(config.progress_thread == RG_OFF && config.log_level == RG_LOG_INFO && config.log_fn != NULL);
    cr_assert(config.max_rate_mbit == 25 && config.measure_every == 7);
    cr_assert(config.rdma_traffic_class == 104 && config.rdma_direct == RG_OFF);
    cr_assert_str_eq(config.rdma_device, "mlx5_1:2");
    rg_config_free(strings);
}

Test(config, field__also_in_the_environment__field_wins_and_strings_are_copied) {
    rg_config_t in = RG_CONFIG_INIT;
    char group[] = "red";
    setenv("RG_GROUP", "blue", 1), setenv("RG_RAILS", "x", 1), setenv("RG_UNDO", "perhaps", 1),
        setenv("RG_ORDER", "0", 1);
    in.group = group, in.rails = 2, in.undo = RG_OFF, in.coordinator = "";
    cr_assert_eq(resolve(&in), RG_OK, "%s", error.text);
    group[0] = 'b';
    cr_assert_str_eq(config.group, "red");
    cr_assert(config.rails == 2 && config.undo == RG_OFF && !config.coordinator);
    rg_config_free(strings);
}

Test(config, variable__empty_or_zero__default) {
    setenv("RG_GROUP", "", 1), setenv("RG_RAILS", "", 1), setenv("RG_HEARTBEAT_MS", "0", 1), setenv("RG_UNDO", "", 1);
    setenv("RG_LOG", "", 1);
    cr_assert_eq(resolve(NULL), RG_OK, "%s", error.text);
    cr_assert_str_eq(config.group, "default");
    cr_assert(config.rails == 1 && config.heartbeat_ms == 2000 && config.undo == RG_ON && !config.log_fn);
    rg_config_free(strings);
}

Test(config, numbers__not_whole_or_out_of_range__named_with_value_and_range) {
    static const char *const bad[] = { "12x", "-1",   "+1",  " 1",         "1 ",
                                       "1.5", "0x10", "1e3", "4294967296", "99999999999999999999",
                                       "two" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("RG_HEARTBEAT_MS", bad[i], 1);
        refuses(NULL, RG_ERR_INVALID, "RG_HEARTBEAT_MS", bad[i],
                "expected a whole number from 10 to 3600000 milliseconds");
    }
    clear_environment();
    setenv("RG_RAILS", "17", 1);
    refuses(NULL, RG_ERR_INVALID, "RG_RAILS", "17", "expected 1 to 16");
    clear_environment();
    setenv("RG_LISTEN_PORT", "65536", 1);
    refuses(NULL, RG_ERR_INVALID, "RG_LISTEN_PORT", "65536", "expected 0 to 65535");
    clear_environment();
    rg_config_t in = RG_CONFIG_INIT;
    in.rails = 17;
    refuses(&in, RG_ERR_INVALID, "rails is 17", "17", "expected 1 to 16");
    in.rails = 0, in.heartbeat_ms = 9;
    refuses(&in, RG_ERR_INVALID, "heartbeat_ms is 9", "9", "expected 10 to 3600000");
    in.heartbeat_ms = 0, in.chunk_bytes = 63;
    refuses(&in, RG_ERR_INVALID, "chunk_bytes is 63", "63", "expected 64 to");
}

/* The limits that regroup.h names: both ends are taken, what is beside them is refused with the name of the field. */
Test(config, numbers__at_the_ends_of_their_ranges__taken_and_beyond_refused) {
    static const struct {
        size_t at;
        uint32_t least, most;
        const char *name;
    } fields[] = { { offsetof(rg_config_t, min_size), 1, 1024, "min_size" },
                   { offsetof(rg_config_t, listen_port), 1, 65535, "listen_port" },
                   { offsetof(rg_config_t, join_timeout_ms), 1, INT32_MAX, "join_timeout_ms" },
                   { offsetof(rg_config_t, op_timeout_ms), 1, INT32_MAX, "op_timeout_ms" },
                   { offsetof(rg_config_t, heartbeat_ms), 10, 3600000, "heartbeat_ms" },
                   { offsetof(rg_config_t, rails), 1, 16, "rails" },
                   { offsetof(rg_config_t, chunk_bytes), 64, 1u << 30, "chunk_bytes" },
                   { offsetof(rg_config_t, socket_buffer_bytes), 32768, 1u << 30, "socket_buffer_bytes" },
                   { offsetof(rg_config_t, small_bytes), 1, 1u << 26, "small_bytes" },
                   { offsetof(rg_config_t, spin_us), 1, 10000000, "spin_us" },
                   { offsetof(rg_config_t, quorum_timeout_ms), 1, INT32_MAX, "quorum_timeout_ms" },
                   { offsetof(rg_config_t, max_rate_mbit), 1, 1000000, "max_rate_mbit" },
                   { offsetof(rg_config_t, rdma_traffic_class), 1, 255, "rdma_traffic_class" } };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const uint32_t good[] = { fields[i].least, fields[i].most },
                       bad[] = { fields[i].least - 1, fields[i].most + 1 };
        for (int k = 0; k < 2; k++) {
            rg_config_t c = RG_CONFIG_INIT;
            memcpy((char *)&c + fields[i].at, &good[k], sizeof good[k]);
            cr_expect_eq(resolve(&c), RG_OK, "%s %u: %s", fields[i].name, good[k], error.text);
            rg_config_free(strings);
            if (bad[k] == 0) continue; /* the default */
            memcpy((char *)&c + fields[i].at, &bad[k], sizeof bad[k]);
            refuses(&c, RG_ERR_INVALID, fields[i].name, "expected", "");
        }
    }
}

Test(config, choices__unknown_word_or_value__named_with_what_is_expected) {
    rg_config_t in = RG_CONFIG_INIT;
    in.undo = (rg_switch_t)3;
    refuses(&in, RG_ERR_INVALID, "undo is 3", "3", "expected on or off");
    in.undo = RG_ON, in.on_fault = (rg_on_fault_t)-1;
    refuses(&in, RG_ERR_INVALID, "on_fault is -1", "-1", "expected retry or return");
    setenv("RG_ON_FAULT", "stop", 1);
    refuses(NULL, RG_ERR_INVALID, "RG_ON_FAULT", "stop", "expected retry or return");
    clear_environment();
    setenv("RG_PROGRESS_THREAD", "2", 1);
    refuses(NULL, RG_ERR_INVALID, "RG_PROGRESS_THREAD", "2", "expected on or off");
    clear_environment();
    setenv("RG_LOG", "verbose", 1);
    refuses(NULL, RG_ERR_INVALID, "RG_LOG", "verbose", "expected none, error, warn, info or debug");
}

Test(config, strings__too_long_or_with_control_characters__refused) {
    rg_config_t in = RG_CONFIG_INIT;
    char name[RG_GROUP_NAME_MAX + 2];
    memset(name, 'g', sizeof name);
    name[RG_GROUP_NAME_MAX + 1] = 0;
    in.group = name;
    refuses(&in, RG_ERR_INVALID, "group has 64 bytes", "ggg", "at most 63");
    name[RG_GROUP_NAME_MAX] = 0;
    cr_assert_eq(resolve(&in), RG_OK);
    cr_assert_str_eq(config.group, name);
    rg_config_free(strings);
    in.group = "two\nlines";
    refuses(&in, RG_ERR_INVALID, "group", "code 10 at byte 3", "expected printable text");
    in.group = NULL;
    setenv("RG_LABEL", "\x1b[31m", 1);
    refuses(&in, RG_ERR_INVALID, "RG_LABEL", "control character", "expected printable text");
    /* U+009B begins a sequence like ESC [, U+202E turns the line round; no UTF-8, too long, cut, a surrogate, too much
     */
    static const char *const hidden[] = { "\xc2\x9bm",    "\xe2\x80\xae",    "\xff", "\xc0\xaf", "\xe2\x82",
                                          "\xed\xa0\x80", "\xf4\x90\x80\x80" };
    static const char *const names[] = { "RG_LABEL", "RG_GROUP", "RG_SITE", "RG_HOST" };
    unsetenv("RG_LABEL");
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
            setenv(names[n], hidden[i], 1);
            refuses(&in, RG_ERR_INVALID, names[n], "at byte 0", "expected printable text");
        }
        setenv(names[n], "\xc3\xbc \xe7\xb5\x84 \xf0\x9f\x98\x80", 1);
        cr_assert_eq(resolve(&in), RG_OK);
        rg_config_free(strings);
    }
    setenv("RG_TUNING_FILE", "/tmp/\xfc", 1); /* a path is what the system takes for one */
    cr_assert_eq(resolve(&in), RG_OK);
    rg_config_free(strings);
}

Test(config, coordinator__needed_and_nowhere_named__invalid_and_says_what_to_do) {
    strings = (char *)&strings;
    cr_assert_eq(rg_config_resolve(NULL, RG_NEED_COORDINATOR, &config, &strings, &error), RG_ERR_INVALID);
    cr_assert(!strings && strstr(error.text, "RG_COORDINATOR"));
    setenv("RG_COORDINATOR", "h:1", 1);
    cr_assert_eq(rg_config_resolve(NULL, RG_NEED_COORDINATOR, &config, &strings, &error), RG_OK);
    rg_config_free(strings);
}

Test(config, struct_size__zero_garbage_or_newer__refused_unless_the_tail_is_zero) {
    struct {
        rg_config_t c;
        uint64_t later[2];
    } newer = { RG_CONFIG_INIT, { 0, 0 } };
    rg_config_t in = RG_CONFIG_INIT;
    in.struct_size = 0;
    refuses(&in, RG_ERR_INVALID, "rg_config.struct_size is 0", "0", "RG_..._INIT");
    in.struct_size = RG_CONFIG_SIZE_FIRST - 1;
    refuses(&in, RG_ERR_INVALID, "rg_config.struct_size", "expected at least", "RG_..._INIT");
    in.struct_size = (size_t)0xa5a5a5a5a5a5a5a5ull;
    refuses(&in, RG_ERR_INVALID, "rg_config.struct_size", "expected", "RG_..._INIT");
    in.struct_size = RG_CONFIG_SIZE_FIRST; /* a program built before site, host and tuning_file were there */
    in.site = in.host = in.tuning_file = (const char *)1;
    cr_assert_eq(resolve(&in), RG_OK, "%s", error.text);
    cr_assert(!config.site && !config.host && !config.tuning_file);
    rg_config_free(strings);
    newer.c.struct_size = sizeof newer;
    cr_assert_eq(resolve(&newer.c), RG_OK);
    cr_assert_eq(config.struct_size, sizeof config);
    rg_config_free(strings);
    newer.later[1] = 1ull << 56;
    refuses(&newer.c, RG_ERR_NOTSUP, "rg_config", "does not know", "leave it zero");
}

typedef struct grown {
    size_t struct_size;
    uint64_t a, b, c;
} grown_t;

Test(config, struct_in__older_caller__rest_is_zero_and_nothing_beyond_is_read) {
    grown_t old = { 16, 1, 2, 3 }, out;
    memset(&out, 0xff, sizeof out);
    cr_assert_eq(rg_struct_in(&out, sizeof out, 16, &old, "grown", NULL), RG_OK);
    cr_assert(out.struct_size == sizeof out && out.a == 1 && out.b == 0 && out.c == 0);
}

Test(config, struct_out__older_and_newer_caller__cut_and_zeroed) {
    grown_t full = { sizeof full, 1, 2, 3 }, dst = { 24, 7, 7, 7 };
    rg_struct_out(&dst, &full, sizeof full, 16);
    cr_assert(dst.struct_size == 24 && dst.a == 1 && dst.b == 2 && dst.c == 7);
    dst = (grown_t){ sizeof dst, 7, 7, 7 };
    rg_struct_out(&dst, &full, 24, 16);
    cr_assert(dst.struct_size == sizeof dst && dst.a == 1 && dst.b == 2 && dst.c == 0);
    dst = (grown_t){ 0, 7, 7, 7 };
    rg_struct_out(&dst, &full, sizeof full, 16);
    cr_assert(dst.struct_size == 0 && dst.a == 7);
    rg_struct_out(NULL, &full, sizeof full, 16);
}

Test(config, result_out__array_of_the_caller__kept_and_filled_as_far_as_it_goes) {
    uint64_t ids[] = { 11, 12, 13 }, room[2] = { 0, 0 };
    rg_result_t src = RG_RESULT_INIT, dst = RG_RESULT_INIT;
    src.contributors = 3, src.epoch = 5, src.contributor_ids = ids, src.contributor_cap = 3;
    dst.contributor_ids = room, dst.contributor_cap = 2;
    rg_result_out(&dst, &src, ids, 3);
    cr_assert(dst.contributors == 3 && dst.epoch == 5 && dst.contributor_ids == room && dst.contributor_cap == 2);
    cr_assert(room[0] == 11 && room[1] == 12);
    rg_result_out(NULL, &src, ids, 3);
    dst.struct_size = 0;
    cr_assert_eq(rg_result_check(&dst, &error), RG_ERR_INVALID);
    cr_assert(strstr(error.text, "rg_result.struct_size"));
    cr_assert_eq(rg_result_check(NULL, &error), RG_OK);
}

Test(config, change_and_info__round_trip__copied) {
    rg_change_t c = RG_CHANGE_INIT, c_out = RG_CHANGE_INIT;
    rg_info_t i = RG_INFO_INIT, i_out = RG_INFO_INIT;
    c.lost = 2, c.stalled_ns = 9, i.world_size = 4, i.newcomers_waiting = 1;
    cr_assert(rg_change_check(&c_out, NULL) == RG_OK && rg_info_check(&i_out, NULL) == RG_OK);
    rg_change_out(&c_out, &c);
    rg_info_out(&i_out, &i);
    cr_assert(c_out.lost == 2 && c_out.stalled_ns == 9 && i_out.world_size == 4 && i_out.newcomers_waiting == 1);
    c_out.struct_size = 8, i_out.struct_size = 8;
    cr_assert(rg_change_check(&c_out, NULL) == RG_ERR_INVALID && rg_info_check(&i_out, NULL) == RG_ERR_INVALID);
}

Test(config, opts__zero_or_null__values_of_the_configuration) {
    rg_opts_t in = RG_OPTS_INIT, out;
    rg_result_t uninitialised = { 0 };
    cr_assert_eq(resolve(NULL), RG_OK);
    cr_assert_eq(rg_opts_resolve(NULL, &config, &out, &error), RG_OK);
    cr_assert(out.timeout_ms == 60000 && out.on_fault == RG_RETRY && out.tag == 0 && !out.result);
    in.tag = 3, in.timeout_ms = 5, in.on_fault = RG_RETURN;
    cr_assert_eq(rg_opts_resolve(&in, &config, &out, &error), RG_OK);
    cr_assert(out.timeout_ms == 5 && out.on_fault == RG_RETURN && out.tag == 3);
    in.on_fault = (rg_on_fault_t)3;
    cr_assert_eq(rg_opts_resolve(&in, &config, &out, &error), RG_ERR_INVALID);
    in.on_fault = RG_RETRY, in.result = &uninitialised;
    cr_assert_eq(rg_opts_resolve(&in, &config, &out, &error), RG_ERR_INVALID);
    in.result = NULL, in.struct_size = 4;
    cr_assert_eq(rg_opts_resolve(&in, &config, &out, &error), RG_ERR_INVALID);
    rg_config_free(strings);
}

Test(config, coordinator_config__fields_variables_and_defaults__resolved) {
    rg_coordinator_config_t in = RG_COORDINATOR_CONFIG_INIT, out;
    cr_assert_eq(rg_coordinator_config_resolve(NULL, &out, &strings, &error), RG_OK);
    cr_assert_str_eq(out.listen, "127.0.0.1:0");
    cr_assert(out.max_members == 1024 && out.heartbeat_ms == 2000 && out.max_groups == 64 && !out.log_fn);
    rg_config_free(strings);
    setenv("RG_COORDINATOR_LISTEN", "[::]:5000", 1), setenv("RG_MAX_MEMBERS", "8", 1), setenv("RG_MAX_GROUPS", "2", 1);
    setenv("RG_HEARTBEAT_MS", "500", 1);
    in.max_groups = 3;
    cr_assert_eq(rg_coordinator_config_resolve(&in, &out, &strings, &error), RG_OK);
    cr_assert_str_eq(out.listen, "[::]:5000");
    cr_assert(out.max_members == 8 && out.heartbeat_ms == 500 && out.max_groups == 3);
    rg_config_free(strings);
    setenv("RG_MAX_MEMBERS", "many", 1);
    cr_assert_eq(rg_coordinator_config_resolve(&in, &out, &strings, &error), RG_ERR_INVALID);
    cr_assert(!strings && strstr(error.text, "RG_MAX_MEMBERS is \"many\""));
    unsetenv("RG_MAX_MEMBERS");
    in.max_members = RG_MEMBERS_MAX + 1; /* members have no room for more: their group would end */
    cr_assert_eq(rg_coordinator_config_resolve(&in, &out, &strings, &error), RG_ERR_INVALID);
    cr_assert(!strings && strstr(error.text, "max_members is 1025"), "%s", error.text);
}

Test(config, tls__named_or_not__on_or_off) {
    cr_assert_eq(resolve(NULL), RG_OK);
    cr_assert_str_eq(config.tls, "off");
    rg_config_free(strings);
    setenv("RG_TLS_PSK_FILE", "/etc/group.key", 1);
    cr_assert_eq(resolve(NULL), RG_OK, "a key that is named is to be used");
    cr_assert_str_eq(config.tls, "on");
    cr_assert_str_eq(config.tls_psk_file, "/etc/group.key");
    rg_config_free(strings);
    setenv("RG_TLS", "off", 1);
    cr_assert_eq(resolve(NULL), RG_OK);
    cr_assert_str_eq(config.tls, "off");
    rg_config_free(strings);
    setenv("RG_TLS", "on", 1);
    setenv("RG_TLS_CA", "/etc/ca.pem", 1);
    refuses(NULL, RG_ERR_INVALID, "RG_TLS_PSK_FILE", "RG_TLS_CA", "choose one");
    unsetenv("RG_TLS_PSK_FILE");
    refuses(NULL, RG_ERR_INVALID, "RG_TLS_CERT", "is missing", "all of");
    unsetenv("RG_TLS_CA");
    refuses(NULL, RG_ERR_INVALID, "RG_TLS", "on", "keygen");
    setenv("RG_TLS", "maybe", 1);
    refuses(NULL, RG_ERR_INVALID, "RG_TLS", "maybe", "on or off");
}

Test(config, coordinator_tls__same_rules) {
    rg_coordinator_config_t c;
    setenv("RG_TLS", "on", 1);
    cr_assert_eq(rg_coordinator_config_resolve(NULL, &c, &strings, &error), RG_ERR_INVALID);
    cr_assert_null(strings);
    setenv("RG_TLS_PSK_FILE", "/etc/group.key", 1);
    cr_assert_eq(rg_coordinator_config_resolve(NULL, &c, &strings, &error), RG_OK, "%s", error.text);
    cr_assert_str_eq(c.tls, "on");
    rg_config_free(strings);
}
