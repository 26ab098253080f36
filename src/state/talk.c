/* talk.c: the codec of what a newcomer asks of members that serve a state, and of their answer about which content it
 * is (serve.h). Integers are little-endian. It must do nothing but read and write bytes: what comes in is anybody's. */
#include "state/serve.h"

#include "core/wire.h"

#include <string.h>

#define TALK_MAGIC 0x31545352u /* "RST1" in memory order */
#define TALK_VERSION 1u

void rg_question_put(const rg_question_t *q, uint8_t to[RG_TALK_BYTES]) {
    rg_w_t w = { to, 0, RG_TALK_BYTES, 0 };
    memset(to, 0, RG_TALK_BYTES);
    rg_w_u32(&w, TALK_MAGIC);
    rg_w_u16(&w, TALK_VERSION);
    rg_w_u16(&w, (uint16_t)q->kind);
    rg_w_u64(&w, q->snapshot);
    rg_w_u32(&w, q->first);
    rg_w_u32(&w, q->count);
    rg_w_u32(&w, q->bytes);
    rg_w_u32(&w, q->low);
    rg_w_bytes(&w, q->layout.b, sizeof q->layout.b);
}

int rg_question_get(rg_question_t *q, const uint8_t from[RG_TALK_BYTES]) {
    rg_r_t r = { from, RG_TALK_BYTES, 0, 0 };
    if (rg_r_u32(&r) != TALK_MAGIC || rg_r_u16(&r) != TALK_VERSION) return 0;
    uint16_t kind = rg_r_u16(&r);
    if (kind < RG_TALK_HEAD || kind > RG_TALK_END) return 0;
    q->kind = (rg_talk_t)kind;
    q->snapshot = rg_r_u64(&r);
    q->first = rg_r_u32(&r);
    q->count = rg_r_u32(&r);
    q->bytes = rg_r_u32(&r);
    q->low = rg_r_u32(&r);
    rg_r_bytes(&r, q->layout.b, sizeof q->layout.b);
    return 1;
}

void rg_answer_put(const rg_answer_t *a, uint8_t to[RG_TALK_HEAD_BYTES]) {
    rg_w_t w = { to, 0, RG_TALK_HEAD_BYTES, 0 };
    memset(to, 0, RG_TALK_HEAD_BYTES);
    rg_w_u32(&w, TALK_MAGIC);
    rg_w_u16(&w, TALK_VERSION);
    rg_w_u16(&w, (uint16_t)a->whole);
    rg_w_u64(&w, a->snapshot);
    rg_w_u64(&w, a->revision);
    rg_w_u64(&w, a->bytes);
    rg_w_u32(&w, a->n_pieces);
    rg_w_bytes(&w, a->layout.b, sizeof a->layout.b);
    rg_w_bytes(&w, a->root.b, sizeof a->root.b);
}

int rg_answer_get(rg_answer_t *a, const uint8_t from[RG_TALK_HEAD_BYTES]) {
    rg_r_t r = { from, RG_TALK_HEAD_BYTES, 0, 0 };
    if (rg_r_u32(&r) != TALK_MAGIC || rg_r_u16(&r) != TALK_VERSION) return 0;
    a->whole = rg_r_u16(&r);
    a->snapshot = rg_r_u64(&r);
    a->revision = rg_r_u64(&r);
    a->bytes = rg_r_u64(&r);
    a->n_pieces = rg_r_u32(&r);
    rg_r_bytes(&r, a->layout.b, sizeof a->layout.b);
    rg_r_bytes(&r, a->root.b, sizeof a->root.b);
    return a->whole <= 1 && a->snapshot && a->revision && a->n_pieces <= RG_STATE_PIECES_MAX;
}
