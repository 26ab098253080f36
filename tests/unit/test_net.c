/* test_net.c: the six bytes that a view carries of a member's links: what goes in comes out to within a quarter of an
 * octave, classes rise with values, and any bytes are taken. It relies on arithmetic alone. */
#include "sched/sched.h"

#include <criterion/criterion.h>
#include <string.h>

Test(net, class__any_value__back_within_a_quarter_of_an_octave) {
    uint8_t last = 0;
    cr_assert(rg_net_class(0) == 0 && rg_net_value(0) == 0);
    for (uint64_t v = 8; v < UINT64_MAX / 3; v += v / 7) {
        uint8_t c = rg_net_class(v);
        double ratio = (double)rg_net_value(c) / (double)v;
        cr_assert(c >= last && c < 128, "%llu: class %u after %u", (unsigned long long)v, c, last);
        cr_assert(ratio > 0.80 && ratio < 1.25, "%llu comes back times %g", (unsigned long long)v, ratio);
        last = c;
    }
    cr_assert(rg_net_class(1) >= 1 && rg_net_class(UINT64_MAX) < 128);
}

Test(net, pack__every_field__comes_back_by_itself) {
    for (int k = 0; k < RG_NET_KINDS; k++)
        for (uint32_t shared = 0; shared < 2; shared++) {
            rg_net_t in = { .shared = shared }, out;
            uint8_t bytes[RG_NET_BYTES];
            in.link[k].latency_ns = 1 << 20;
            in.link[k].bytes_per_s = 1 << 30;
            rg_net_pack(&in, bytes);
            rg_net_unpack(bytes, &out);
            cr_assert_eq(memcmp(&in, &out, sizeof in), 0);
        }
}

Test(net, unpack__any_bytes__values_that_exist) {
    uint8_t bytes[RG_NET_BYTES], again[RG_NET_BYTES];
    for (int b = 0; b < 256; b++) {
        rg_net_t net;
        memset(bytes, b, sizeof bytes);
        rg_net_unpack(bytes, &net);
        rg_net_pack(&net, again);
        for (int k = 0; k < RG_NET_KINDS; k++)
            cr_assert((net.link[k].latency_ns == 0) == ((b & 127) == 0) && (again[2 * k] & 127) <= (b & 127));
    }
}
