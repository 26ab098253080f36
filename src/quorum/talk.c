/* talk.c: the codec of what ports ask each other (talk.h). Integers are little-endian. It must do nothing but read
 * and write bytes: what comes in is anybody's, so the caller checks every number that it uses. */
#include "quorum/talk.h"

#include "core/wire.h"

#include <string.h>

#define SASK_WORD 0x31515247u /* engine/side.h finds the service by it */
#define SASK_VERSION 1u

static uint64_t bits_of(double v) {
    uint64_t b;
    memcpy(&b, &v, sizeof b);
    return b;
}

void rg_sask_put(const rg_sask_t *q, uint8_t to[RG_SASK_BYTES]) {
    rg_w_t w = { to, 0, RG_SASK_BYTES, 0 };
    uint32_t scale;
    memset(to, 0, RG_SASK_BYTES);
    memcpy(&scale, &q->scale, sizeof scale);
    rg_w_u32(&w, SASK_WORD);
    rg_w_u16(&w, SASK_VERSION);
    rg_w_u16(&w, (uint16_t)q->kind);
    rg_w_u64(&w, q->name);
    rg_w_u64(&w, q->terms);
    rg_w_u64(&w, q->round);
    rg_w_u64(&w, q->off);
    rg_w_u32(&w, q->len);
    rg_w_u32(&w, q->cap);
    rg_w_u32(&w, scale);
    rg_w_u64(&w, q->epoch);
}

int rg_sask_get(rg_sask_t *q, const uint8_t from[RG_SASK_BYTES]) {
    rg_r_t r = { from, RG_SASK_BYTES, 0, 0 };
    if (rg_r_u32(&r) != SASK_WORD || rg_r_u16(&r) != SASK_VERSION) return 0;
    uint16_t kind = rg_r_u16(&r);
    if (kind < RG_SASK_NEWS || kind >= RG_SASK_KINDS) return 0;
    q->kind = (rg_sask_kind_t)kind;
    q->name = rg_r_u64(&r);
    q->terms = rg_r_u64(&r);
    q->round = rg_r_u64(&r);
    q->off = rg_r_u64(&r);
    q->len = rg_r_u32(&r);
    q->cap = rg_r_u32(&r);
    uint32_t scale = rg_r_u32(&r);
    memcpy(&q->scale, &scale, sizeof scale);
    q->epoch = rg_r_u64(&r);
    return 1;
}

void rg_shead_put(const rg_shead_t *h, uint8_t to[RG_SERVICE_HEAD]) {
    rg_w_t w = { to, 0, RG_SERVICE_HEAD, 0 };
    memset(to, 0, RG_SERVICE_HEAD);
    rg_w_u64(&w, h->terms);
    rg_w_u64(&w, h->round);
    rg_w_u64(&w, h->first);
    rg_w_u64(&w, h->kept);
    rg_w_u64(&w, h->version);
    rg_w_u64(&w, bits_of(h->weight));
    rg_w_u32(&w, h->n);
    rg_w_u32(&w, h->status);
    rg_w_u64(&w, h->epoch);
}

void rg_shead_get(rg_shead_t *h, const uint8_t from[RG_SERVICE_HEAD]) {
    rg_r_t r = { from, RG_SERVICE_HEAD, 0, 0 };
    h->terms = rg_r_u64(&r);
    h->round = rg_r_u64(&r);
    h->first = rg_r_u64(&r);
    h->kept = rg_r_u64(&r);
    h->version = rg_r_u64(&r);
    uint64_t weight = rg_r_u64(&r);
    memcpy(&h->weight, &weight, sizeof weight);
    h->n = rg_r_u32(&r);
    h->status = rg_r_u32(&r);
    h->epoch = rg_r_u64(&r);
}

void rg_entries_put(const rg_qentry_t *e, uint32_t n, uint8_t *to) {
    rg_w_t w = { to, 0, (size_t)n * RG_QUORUM_ENTRY, 0 };
    for (uint32_t i = 0; i < n; i++) {
        uint64_t weight;
        memcpy(&weight, &e[i].weight, sizeof weight);
        rg_w_u64(&w, e[i].id);
        rg_w_u64(&w, e[i].version);
        rg_w_u64(&w, weight);
        rg_w_u32(&w, e[i].came);
        rg_w_u32(&w, e[i].contributes);
    }
}

void rg_entries_get(rg_qentry_t *e, uint32_t n, const uint8_t *from) {
    rg_r_t r = { from, (size_t)n * RG_QUORUM_ENTRY, 0, 0 };
    for (uint32_t i = 0; i < n; i++) {
        e[i].id = rg_r_u64(&r);
        e[i].version = rg_r_u64(&r);
        uint64_t weight = rg_r_u64(&r);
        memcpy(&e[i].weight, &weight, sizeof weight);
        e[i].came = rg_r_u32(&r);
        e[i].contributes = rg_r_u32(&r);
    }
}
