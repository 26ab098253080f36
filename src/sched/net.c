/* net.c: what a member measured of its links, as the six bytes that a view carries for it. Classes are half an octave
 * apart: coarse enough that two runs on one network mostly agree, fine enough to choose by. Pure. Must accept any
 * bytes, since they come from other members. */
#include "sched.h"

#include <string.h>

#define SHARED 0x80u
#define CLASS_MAX 0x7fu        /* 2^63 */
#define SQRT2_31 3037000500ull /* of 2^31 */

static int log2_floor(uint64_t v) {
    int e = 0;
    while (v >>= 1) e++;
    return e;
}

/* 2^(half / 2), rounded down; half is at most 126. */
static uint64_t half_power(uint32_t half) {
    uint32_t e = half / 2;
    if (half % 2 == 0) return 1ull << e;
    return e >= 31 ? SQRT2_31 << (e - 31) : SQRT2_31 >> (31 - e);
}

uint8_t rg_net_class(uint64_t value) {
    if (value == 0) return 0;
    uint32_t half = 2 * (uint32_t)log2_floor(value);
    /* Nearest in ratio: quarters of an octave are where one class ends. */
    for (int i = 0; i < 2 && half < CLASS_MAX - 1; i++) {
        double here = (double)half_power(half), next = (double)half_power(half + 1), v = (double)value;
        if (next <= here || v * v < here * next) break;
        half++;
    }
    return (uint8_t)(half + 1);
}

uint64_t rg_net_value(uint8_t class) {
    uint32_t c = class & CLASS_MAX;
    return c == 0 ? 0 : half_power(c - 1);
}

void rg_net_pack(const rg_net_t *net, uint8_t out[RG_NET_BYTES]) {
    for (int k = 0; k < RG_NET_KINDS; k++) {
        out[2 * k] = rg_net_class(net->link[k].latency_ns);
        out[2 * k + 1] = rg_net_class(net->link[k].bytes_per_s);
    }
    if (net->shared) out[0] |= SHARED;
}

void rg_net_unpack(const uint8_t in[RG_NET_BYTES], rg_net_t *net) {
    memset(net, 0, sizeof *net);
    net->shared = (in[0] & SHARED) != 0;
    for (int k = 0; k < RG_NET_KINDS; k++) {
        net->link[k].latency_ns = rg_net_value(in[2 * k]);
        net->link[k].bytes_per_s = rg_net_value(in[2 * k + 1]);
    }
}
