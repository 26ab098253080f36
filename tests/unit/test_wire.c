/* test_wire.c: the codec: what is written reads the same, what is cut short or too long is refused, nothing is read
 * past the end. The fuzzer does the same with bytes of its own. */
#include "core/text.h"
#include "core/wire.h"

#include <criterion/criterion.h>
#include <string.h>

static uint8_t buf[4096];

Test(wire, integers__little_endian_on_the_wire) {
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    rg_w_u32(&w, 0x01020304);
    rg_w_u64(&w, 0x1122334455667788ull);
    cr_assert(buf[0] == 4 && buf[3] == 1 && buf[4] == 0x88 && buf[11] == 0x11);
    rg_r_t r = { buf, w.len, 0, 0 };
    cr_assert(rg_r_u32(&r) == 0x01020304);
    cr_assert(rg_r_u64(&r) == 0x1122334455667788ull);
    cr_assert(rg_r_end(&r));
}

Test(wire, every_prefix_of_a_join__is_refused) {
    rg_msg_join_t j = { .host = 7, .cores = 2, .pid = 3, .min_size = 4, .fixed_n = 5, .fixed_rank = 1, .addr_len = 9 },
                  back;
    memcpy(j.group, "g", 2);
    memcpy(j.label, "l", 2);
    memcpy(j.addr, "127.0.0.1", 9);
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    rg_w_join(&w, &j);
    for (size_t n = 0; n <= w.len; n++) {
        rg_r_t r = { buf, n, 0, 0 };
        uint16_t version;
        uint32_t type = rg_r_header(&r, &version);
        memset(&back, 0, sizeof back);
        rg_r_join(&r, &back);
        cr_assert(rg_r_end(&r) == (n == w.len));
        if (n < w.len) continue;
        cr_assert(type == RG_MSG_JOIN && version == RG_WIRE_VERSION);
        cr_assert(memcmp(&j, &back, sizeof j) == 0);
    }
}

Test(wire, an_address_longer_than_allowed__is_refused) {
    rg_core_member_t m = { .id = 1 }, back;
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    rg_w_peer(&w, &m);
    buf[w.len - 2] = 0xff;
    buf[w.len - 1] = 0xff;
    rg_r_t r = { buf, sizeof buf, 0, 0 };
    rg_r_peer(&r, &back);
    cr_assert(r.bad);
}

Test(wire, a_message_that_does_not_fit__goes_bad_and_stops) {
    rg_w_t w = { buf, 0, 10, 0 };
    rg_w_u64(&w, 1);
    rg_w_u32(&w, 1);
    cr_assert(w.bad && w.len == 8);
}

Test(wire, text_of_others__control_characters_do_not_get_through) {
    char text[8];
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    rg_w_text(&w, "a\033[2Jbcdef", 100);
    rg_r_t r = { buf, w.len, 0, 0 };
    rg_r_text(&r, text, sizeof text);
    cr_assert(strcmp(text, "a?[2Jbc") == 0);
    cr_assert(rg_r_end(&r));
}

Test(wire, decisions__read_as_written) {
    uint8_t have[2] = { 5, 1 }, donor[2] = { 4, 0 };
    rg_decision_t d[2] = { { .key = { 1, 2 },
                             .verdict = RG_FORWARD,
                             .computed = 3,
                             .numbering = 4,
                             .map_len = 2,
                             .have = have,
                             .donor = donor },
                           { .key = { 1, 3 },
                             .verdict = RG_ABORT,
                             .status = RG_ERR_TIMEOUT,
                             .blame = 9,
                             .text = (const uint8_t *)"late",
                             .text_len = 4 } };
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    for (int i = 0; i < 2; i++) rg_w_decision(&w, &d[i]);
    rg_r_t r = { buf, w.len, 0, 0 };
    rg_decision_t b;
    rg_r_decision(&r, &b);
    cr_assert(b.verdict == RG_FORWARD && b.map_len == 2 && memcmp(b.have, have, 2) == 0 &&
              memcmp(b.donor, donor, 2) == 0 && b.computed == 3);
    rg_r_decision(&r, &b);
    cr_assert(b.verdict == RG_ABORT && b.status == RG_ERR_TIMEOUT && b.blame == 9 && b.text_len == 4 &&
              memcmp(b.text, "late", 4) == 0);
    cr_assert(rg_r_end(&r));
}

Test(wire, peek_group__joins_and_rebinds_only) {
    char group[RG_CORE_NAME_MAX];
    rg_msg_rebind_t b = { .id = 1 };
    memcpy(b.group, "mine", 5);
    rg_w_t w = { buf, 0, sizeof buf, 0 };
    rg_w_rebind(&w, &b);
    cr_assert(rg_wire_peek_group(buf, w.len, group) == 1);
    cr_assert(strcmp(group, "mine") == 0);
    buf[6] = RG_MSG_HEARTBEAT;
    cr_assert(rg_wire_peek_group(buf, w.len, group) == 0);
    cr_assert(rg_wire_peek_group((const uint8_t *)"GET / HTTP/1.1\r\n\r\n", 18, group) == 0);
    cr_assert(rg_wire_peek_group(buf, 3, group) == 0);
}

Test(text, longer_than_its_place__cut_and_terminated) {
    char small[8];
    rg_text_t t = rg_text_begin(small, sizeof small);
    rg_text_str(&t, "rank ");
    rg_text_u64(&t, 12345);
    cr_assert(strcmp(small, "rank 12") == 0);
    t = rg_text_begin(small, sizeof small);
    rg_text_time(&t, 412000);
    cr_assert(strcmp(small, "412 us") == 0);
}
