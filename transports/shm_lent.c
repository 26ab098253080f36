/* shm_lent.c: which of our memory peers have read since we wrote it last. A cache line that two cores hold is slow to
 * write: each one costs a round trip between them, one after the other, 30 ns apiece on some hosts, which is ten times
 * what writing past the cache costs. So a sink that lies in such memory is written past the cache, and then nobody
 * shares it any more. What is remembered is a few ranges; to be wrong costs time, nothing else.
 * It must not touch the memory that it knows of. */
#include "shm_internal.h"

#include <string.h>

static int touches(const lent_t *r, uintptr_t from, uintptr_t to) { return r->from <= to && from <= r->to; }

void rgm_lent_add(rg_tp_t *tp, const void *p, uint64_t len) {
    uintptr_t from = (uintptr_t)p, to = from + len;
    uint32_t into = LENT_MAX;
    for (uint32_t i = 0; i < tp->n_lent; i++) {
        lent_t *r = &tp->lent[i];
        if (!touches(r, from, to)) continue;
        if (r->from < from) from = r->from;
        if (r->to > to) to = r->to;
        if (into == LENT_MAX) {
            into = i;
        } else { /* it has grown up to another one */
            *r = tp->lent[--tp->n_lent];
            i--;
        }
        tp->lent[into] = (lent_t){ from, to };
    }
    if (into < LENT_MAX) return;
    if (tp->n_lent < LENT_MAX) into = tp->n_lent++;
    else into = tp->lent_next++ % LENT_MAX;
    tp->lent[into] = (lent_t){ from, to };
}

int rgm_lent_take(rg_tp_t *tp, const void *p, uint64_t len) {
    uintptr_t from = (uintptr_t)p, to = from + len;
    int any = 0;
    for (uint32_t i = 0; i < tp->n_lent; i++) {
        lent_t *r = &tp->lent[i];
        if (r->from >= to || from >= r->to) continue;
        any = 1;
        lent_t low = { r->from, from }, high = { to, r->to };
        if (low.from < low.to) {
            *r = low;
            if (high.from < high.to && tp->n_lent < LENT_MAX) tp->lent[tp->n_lent++] = high;
        } else if (high.from < high.to) {
            *r = high;
        } else {
            *r = tp->lent[--tp->n_lent];
            i--;
        }
    }
    return any;
}
