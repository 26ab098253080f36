/* ring.h: the completions that a transport has ready for its next poll(): a queue that grows. Room is made before an
 * operation is accepted, so that nothing is lost when memory runs out later. It must not know what a completion means.
 */
#ifndef RG_RING_H
#define RG_RING_H

#include "regroup_transport.h"

#include <stdlib.h>
#include <string.h>

typedef struct rg_ring {
    rg_completion_t *v;
    uint32_t cap, head, n; /* cap: 0 or a power of two */
} rg_ring_t;

/* 0 when `need` completions, those that are in it among them, have room from now on. */
static inline int rg_ring_room(rg_ring_t *r, uint64_t need) {
    uint64_t cap = r->cap ? r->cap : 64;
    if (need <= r->cap) return 0;
    while (cap < need) cap *= 2;
    rg_completion_t *v = cap > UINT32_MAX / 2 ? NULL : malloc(cap * sizeof *v);
    if (!v) return -1;
    for (uint32_t i = 0; i < r->n; i++) v[i] = r->v[(r->head + i) & (r->cap - 1)];
    free(r->v);
    *r = (rg_ring_t){ v, (uint32_t)cap, 0, r->n };
    return 0;
}

/* A new last one, zeroed; within the room that was made. */
static inline rg_completion_t *rg_ring_push(rg_ring_t *r) {
    rg_completion_t *c = &r->v[(r->head + r->n++) & (r->cap - 1)];
    memset(c, 0, sizeof *c);
    return c;
}

/* Moves the oldest to out, at most max; returns how many. */
static inline int rg_ring_take(rg_ring_t *r, rg_completion_t *out, int max) {
    int n = 0;
    for (; n < max && r->n; r->n--) {
        out[n++] = r->v[r->head];
        r->head = (r->head + 1) & (r->cap - 1);
    }
    return n;
}

#endif
