/* fuzz_wire.c: any bytes into the codec. A reader must not read past its end (the sanitizer sees that), and what it
 * accepts must come out of the writer as a message that reads the same. It relies on src/core/wire.c alone. */
#include "core/wire.h"

#include <stdlib.h>
#include <string.h>

static uint8_t out[1 << 16];

#define NEED(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) abort();                                                                                             \
    } while (0)

/* Writes with `write`, reads again with `read`, and compares what both readings mean. */
#define AGAIN(type, read, write, skip)                                                                                 \
    do {                                                                                                               \
        type a, b;                                                                                                     \
        memset(&a, 0, sizeof a);                                                                                       \
        memset(&b, 0, sizeof b);                                                                                       \
        rg_r_t from = r;                                                                                               \
        read(&from, &a);                                                                                               \
        if (from.bad) break;                                                                                           \
        rg_w_t w = { out, 0, sizeof out, 0 };                                                                          \
        write(&w, &a);                                                                                                 \
        NEED(!w.bad);                                                                                                  \
        rg_r_t back = { out, w.len, (skip), 0 };                                                                       \
        read(&back, &b);                                                                                               \
        NEED(rg_r_end(&back) && memcmp(&a, &b, sizeof a) == 0);                                                        \
    } while (0)

static void decision(rg_r_t r) {
    rg_decision_t a, b;
    rg_r_decision(&r, &a);
    if (r.bad) return;
    rg_w_t w = { out, 0, sizeof out, 0 };
    rg_w_decision(&w, &a);
    if (w.bad) return; /* two maps of 64 KiB do not fit here */
    rg_r_t back = { out, w.len, 0, 0 };
    rg_r_decision(&back, &b);
    NEED(rg_r_end(&back) && a.verdict == b.verdict && a.map_len == b.map_len && a.text_len == b.text_len);
    NEED(!a.map_len || memcmp(a.have, b.have, a.map_len) == 0);
}

static void set_of_ranks(rg_r_t r) {
    rg_set_report_t a, b;
    rg_r_set_report(&r, &a);
    if (r.bad) return;
    rg_w_t w = { out, 0, sizeof out, 0 };
    rg_w_set_report(&w, &a);
    if (w.bad) return;
    rg_r_t back = { out, w.len, 0, 0 };
    rg_r_set_report(&back, &b);
    NEED(rg_r_end(&back) && a.set == b.set && a.hash == b.hash && a.map_len == b.map_len);
    NEED(!a.map_len || memcmp(a.map, b.map, a.map_len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rg_r_t r = { data, size, 0, 0 };
    uint16_t version;
    char group[RG_CORE_NAME_MAX];
    rg_wire_peek_group(data, size, group);
    uint32_t type = rg_r_header(&r, &version);
    if (!type) r = (rg_r_t){ data, size, 0, 0 }; /* the parts of messages, without the header */
    AGAIN(rg_msg_join_t, rg_r_join, rg_w_join, RG_WIRE_HEADER);
    AGAIN(rg_msg_rebind_t, rg_r_rebind, rg_w_rebind, RG_WIRE_HEADER);
    AGAIN(rg_core_member_t, rg_r_peer, rg_w_peer, 0);
    AGAIN(rg_msg_heartbeat_t, rg_r_heartbeat, rg_w_heartbeat, RG_WIRE_HEADER);
    AGAIN(rg_report_head_t, rg_r_report_head, rg_w_report_head, RG_WIRE_HEADER);
    AGAIN(rg_op_report_t, rg_r_op_report, rg_w_op_report, 0);
    AGAIN(rg_view_head_t, rg_r_view_head, rg_w_view_head, 0);
    AGAIN(rg_view_member_t, rg_r_view_member, rg_w_view_member, 0);
    AGAIN(rg_stream_report_t, rg_r_stream_report, rg_w_stream_report, 0);
    set_of_ranks(r);
    decision(r);
    return 0;
}
