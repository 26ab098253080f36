/* broadcast_double_tree.c: the root gives half of the data to the root of each of two binary trees over the others, in
 * which the inner ranks of one are the leaves of the other. Nobody sends more than the data once, with a logarithmic
 * number of hops: for middle to large data on many ranks. No TMP, and nothing that was sent is written again. */
#include "double_tree.h"

/* Receives posted ahead, in each tree. */
#define WINDOW 8u

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    double bytes = (double)d->count * d->elem_size, each = (double)d->chunk * d->elem_size;
    double pieces = bytes > 2 * each ? bytes / (2 * each) : 1, depth = dtree_depth(d->size - 1) + 1.0;
    if (2 * each > bytes) each = bytes / 2;
    /* An inner rank has three messages a piece and one as a leaf; the sum over all is two sent each. The first piece
     * has to go all the way, and an inner rank sends it twice at every hop. */
    return rg_cost(m, depth, (m->sharing > 1 ? 2 : 4) * pieces + depth, bytes, 0) + 2 * (depth - 1) * each * m->beta;
}

static uint64_t chunk(const rg_coll_desc_t *d) {
    uint64_t bytes = d->count / 16 * d->elem_size;
    bytes = bytes < 32768 ? 32768 : bytes > 131072 ? 131072 : bytes;
    return bytes / d->elem_size;
}

/* Everybody but the root has a number from 0 to n-2 in the trees. */
static uint32_t rank_of(const rg_coll_desc_t *d, uint32_t number) {
    return (uint32_t)(((uint64_t)d->root + 1 + number) % d->size);
}

static void piece(rg_schedule_t *s, const rg_coll_desc_t *d, uint32_t t, const dtree_node_t *node, rg_span_t out,
                  uint32_t *came) {
    if (d->rank == d->root) {
        rg_span_t in = rg_span(RG_BUF_IN, out.off, out.len);
        rg_sched_send(s, rank_of(d, dtree_root(t, d->size - 1)), in, NULL, 0);
        rg_sched_copy(s, out, in, 0, NULL, 0);
        return;
    }
    uint32_t from = node->parent == DTREE_NONE ? d->root : rank_of(d, node->parent);
    *came = rg_sched_recv(s, from, out, 0, came, 1);
    for (uint32_t i = 0; i < node->n_children; i++) rg_sched_send(s, rank_of(d, node->child[i]), out, came, 1);
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    uint32_t came[2][WINDOW], number = (uint32_t)(((uint64_t)d->rank + d->size - d->root - 1) % d->size);
    rg_span_t all = rg_span(RG_BUF_OUT, 0, d->count), first = rg_span_part(all, 2, 0);
    uint32_t pieces = rg_sched_pieces(first.len, d->chunk, 6);
    dtree_node_t node[2] = { { DTREE_NONE, 0, { 0, 0 } }, { DTREE_NONE, 0, { 0, 0 } } };
    for (uint32_t t = 0; t < 2; t++) {
        if (d->rank != d->root) node[t] = dtree_node(t, d->size - 1, number);
        for (uint32_t i = 0; i < WINDOW; i++) came[t][i] = RG_NO_STEP;
    }
    for (uint32_t p = 0; p < pieces; p++)
        for (uint32_t t = 0; t < 2; t++) {
            rg_span_t out = rg_span_part(rg_span_part(all, 2, t), pieces, p);
            if (out.len != 0) piece(s, d, t, &node[t], out, &came[t][p % WINDOW]);
        }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_broadcast_double_tree = {
    .name = "double_tree",
    .kind = RG_KIND_BROADCAST,
    .source = "Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009",
    .cost = cost,
    .chunk = chunk,
    .build = build,
};
