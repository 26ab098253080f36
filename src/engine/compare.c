/* compare.c: calls that differ are known by the first message of one for the other (ops.c). Where nobody sends, because
 * each waits for another one (broadcasts with another root each), nothing would be seen before the deadline. So a call
 * that has waited for long is told to the member for which it waits, which compares it with its own. It relies on the
 * questions of side.h, and must cost nothing as long as all goes well. */
#include "engine/group.h"
#include "engine/side.h"

#include <string.h>

#define FIRST_NS 1000000000ull /* a call that has lasted for so long is told, then after twice that, and so on */
#define TIMES_MOST 20

typedef struct waiting {
    uint32_t word, sig;
    uint64_t epoch, gen, op;
} waiting_t;

_Static_assert(sizeof(waiting_t) <= RG_SIDE_ASK, "it is a question");

/* Nothing is lost with one that cannot be told now: there is a next time. */
static void tell(const rg_request_t *op) {
    uint8_t b[RG_SIDE_ASK] = { 0 };
    uint64_t id = rg_exec_waits_for(op);
    if (!id || id == op->g->self_id) return;
    const waiting_t w = { RG_SIDE_CALL_WORD, op->tag_sig, op->roster->data_epoch, op->tag_gen, op->key.op };
    memcpy(b, &w, sizeof w);
    rg_side_ask(op->g, id, b, 0, NULL, NULL, 0);
}

uint64_t rg_compare_at(const rg_request_t *op) {
    return op->executing && op->told <= TIMES_MOST ? op->res.start_ns + (FIRST_NS << op->told) : UINT64_MAX;
}

void rg_compare_tick(rg_group_t *g, uint64_t now) {
    for (rg_request_t *op = g->open_ops; op; op = op->next) {
        if (now < rg_compare_at(op)) continue;
        while (now >= rg_compare_at(op)) op->told++;
        tell(op);
    }
}

void rg_compare_heard(rg_group_t *g, uint64_t from, const uint8_t *ask) {
    waiting_t w;
    memcpy(&w, ask, sizeof w);
    const rg_tag_t t = { .epoch = w.epoch, .gen = w.gen, .op = w.op, .sig = w.sig };
    rg_op_heard(g, from, &t);
}
