/* objects.c: contributions and results of quorum reductions, counted by reference because the program reads and the
 * service's thread sends the same ones, and the row of results that each member keeps. It must not know who decides. */
#include "quorum/quorum.h"

#include <stdlib.h>

rg_gift_t *rg_gift_new(uint64_t round, uint64_t bytes) {
    rg_gift_t *g = calloc(1, sizeof *g);
    void *data = bytes ? malloc(bytes) : NULL;
    if (!g || (bytes && !data)) {
        free(data);
        free(g);
        return NULL;
    }
    atomic_init(&g->refs, 1);
    g->round = round;
    g->data = data;
    return g;
}

void rg_gift_put(rg_gift_t *g) {
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1) return;
    free(g->data);
    free(g);
}

rg_decided_t *rg_decided_new(uint32_t n, uint64_t bytes) {
    rg_decided_t *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    atomic_init(&d->refs, 1);
    d->n = n;
    d->e = calloc(n ? n : 1, sizeof *d->e);
    d->data = bytes ? malloc(bytes) : NULL;
    if (d->e && (d->data || !bytes)) return d;
    rg_decided_put(d);
    return NULL;
}

void rg_decided_put(rg_decided_t *d) {
    if (!d || atomic_fetch_sub(&d->refs, 1) != 1) return;
    free(d->e);
    free(d->data);
    free(d);
}

rg_decided_t *rg_quorum_kept(const rg_quorum_t *q, uint64_t round) {
    rg_decided_t *d = q->kept[round % q->c.history];
    return d && d->round == round ? d : NULL;
}

void rg_quorum_keep(rg_quorum_t *q, rg_decided_t *d) {
    rg_decided_t **at = &q->kept[d->round % q->c.history];
    if (*at && (*at)->round >= d->round) { /* a newer one has its place */
        rg_decided_put(d);
        return;
    }
    rg_decided_put(*at);
    *at = d;
    pthread_mutex_lock(&q->lock);
    if (d->round > q->newest) q->newest = d->round;
    pthread_mutex_unlock(&q->lock);
}

uint64_t rg_quorum_newest(const rg_quorum_t *q) {
    uint64_t newest = 0;
    for (uint32_t i = 0; i < q->c.history; i++)
        if (q->kept[i] && q->kept[i]->round > newest) newest = q->kept[i]->round;
    return newest;
}

uint64_t rg_quorum_kept_bits(const rg_quorum_t *q) {
    uint64_t newest = rg_quorum_newest(q), bits = 0;
    for (uint64_t i = 0; i < q->c.history && i < newest; i++)
        if (rg_quorum_kept(q, newest - i)) bits |= 1ull << i;
    return bits;
}

void rg_quorum_forget(rg_quorum_t *q) {
    for (uint32_t i = 0; q->kept && i < q->c.history; i++) rg_decided_put(q->kept[i]);
    for (uint32_t i = 0; i < q->n_places; i++) free(q->places[i].data);
    rg_decided_put(q->fetch.d);
    rg_gift_put(q->gift);
    free(q->kept);
    free(q->places);
    free(q->held);
}
