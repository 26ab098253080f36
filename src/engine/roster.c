/* roster.c: who takes part in the operations of a generation, by rank, and over which links; and who took part in the
 * recent past. It relies on the core's view and the group's lock. Rosters are shared by operations and counted. */
#include "engine/group.h"

#include <stdlib.h>
#include <string.h>

uint32_t rg_link_of(const rg_group_t *g, uint64_t id) {
    for (uint32_t i = 0; i < g->n_links; i++)
        if (g->links[i].id == id) return i;
    return UINT32_MAX;
}

void rg_roster_put(rg_roster_t *r) {
    if (!r || --r->refs) return;
    free(r->ids);
    free(r->links);
    free(r->groups);
    free(r);
}

/* Whether it is in the view; usually at `hint` or after it. */
static int view_has(const rg_core_view_t *v, uint64_t id, uint32_t hint) {
    for (uint32_t i = hint; i < v->n; i++)
        if (v->members[i].id == id) return 1;
    for (uint32_t i = 0; i < hint && i < v->n; i++)
        if (v->members[i].id == id) return 1;
    return 0;
}

/* Those of `ids` that are in the present view, in their order. */
static rg_roster_t *roster_make(rg_group_t *g, uint64_t gen, const uint64_t *ids, uint32_t n, const rg_order_t *order) {
    const rg_core_view_t *v = rg_member_view(g->core);
    rg_roster_t *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->refs = 1;
    r->gen = gen;
    r->order = order;
    r->data_epoch = v->data_epoch;
    r->ids = malloc((n + 1) * sizeof *r->ids);
    r->links = malloc((n + 1) * sizeof *r->links);
    for (uint32_t i = 0; i < n && r->ids && r->links; i++) {
        if (!view_has(v, ids[i], r->n)) continue;
        r->links[r->n] = rg_link_of(g, ids[i]);
        if (ids[i] == g->self_id) r->rank = r->n;
        r->ids[r->n++] = ids[i];
    }
    if (r->ids && r->links && rg_roster_model(g, r) == RG_OK) return r;
    rg_roster_put(r);
    return NULL;
}

static rg_roster_t *roster_of_all(rg_group_t *g, uint64_t gen) {
    uint32_t n = rg_member_participants(g->core, gen, NULL, 0);
    uint64_t *ids = malloc((n + 1) * sizeof *ids);
    rg_roster_t *r = NULL;
    if (ids) {
        rg_member_participants(g->core, gen, ids, n);
        r = roster_make(g, gen, ids, n, NULL);
    }
    free(ids);
    return r;
}

static rg_roster_t *roster_of_child(rg_group_t *h) {
    if (!h->roster) h->roster = roster_make(h->root, h->gen, h->set_ids, h->n_set, NULL);
    if (h->roster) h->roster->refs++;
    return h->roster;
}

/* A counted reference; NULL when memory is out. Within a view the participants of a generation are its first members,
 * so a boundary where nobody enters goes on with the roster at hand. A child has its members for good. */
rg_roster_t *rg_roster_for(rg_group_t *g, uint64_t gen) {
    if (g->root) return roster_of_child(g);
    if (g->roster && g->roster->gen != gen && gen == g->gen &&
        g->roster->n == rg_member_participants(g->core, gen, NULL, 0))
        g->roster->gen = gen;
    if (g->roster && g->roster->gen == gen) {
        g->roster->refs++;
        return g->roster;
    }
    rg_roster_t *r = roster_of_all(g, gen);
    if (!r) return NULL;
    if (gen == g->gen) {
        rg_roster_put(g->roster);
        g->roster = r;
        r->refs++;
    }
    return r;
}

/* Two members: who sends has rank 0. */
static rg_roster_t *roster_of_pair(rg_group_t *g, rg_op_key_t key) {
    uint64_t ids[2] = { key.set >> 31 & RG_SET_ID_MAX, key.set & RG_SET_ID_MAX };
    uint32_t at = (uint32_t)(ids[0] * 3 + ids[1]) % 8;
    if (!g->pairs[at] || g->pair_sets[at] != key.set) {
        rg_roster_t *r = roster_make(g, key.gen, ids, 2, NULL);
        if (!r) return NULL;
        rg_roster_put(g->pairs[at]);
        g->pairs[at] = r;
        g->pair_sets[at] = key.set;
    }
    g->pairs[at]->refs++;
    return g->pairs[at];
}

/* ---- In an order that was measured ------------------------------------------------------------------------------- */

/* The newest that was agreed before this operation, if all of them were there; by the operation's number alone, so that
 * one that is run again after a fault is run alike by all, whoever has taken note of a later measurement. */
static const rg_order_t *order_before(const rg_group_t *g, uint64_t gen, uint32_t op, uint64_t base_gen) {
    const rg_order_t *o = g->orders;
    while (o && (o->gen > gen || (o->gen == gen && o->op > op))) o = o->older;
    return o && o->gen >= base_gen ? o : NULL;
}

void rg_order_install(rg_group_t *g, rg_order_t *o) {
    o->gen = g->gen;
    o->op = g->next_seq;
    o->older = g->orders;
    g->orders = o;
    RG_LOGF(&g->log, RG_LOG_INFO, "measured: rings run in the order that begins with members %llu, %llu, %llu%s",
            (unsigned long long)o->ids[o->ring[0]], (unsigned long long)o->ids[o->ring[1 % o->n]],
            (unsigned long long)o->ids[o->ring[2 % o->n]], o->uneven ? "; shares by rate" : "");
}

void rg_order_in_force(const rg_group_t *g, const uint64_t *ids, uint32_t n, uint64_t base_gen, rg_order_t *out) {
    const rg_order_t *o = order_before(g, g->gen, g->next_seq, base_gen);
    uint32_t at = 0;
    memset(out, 0, sizeof *out);
    for (uint32_t k = 0; o && k < o->n; k++)
        for (uint32_t i = 0; i < n; i++) {
            if (ids[i] != o->ids[o->ring[k]]) continue;
            out->ring[at++] = i;
            out->rate[i] = o->rate[o->ring[k]];
        }
    for (uint32_t i = 0; at != n && i < n; i++) out->ring[i] = i;
}

static rg_roster_t *roster_in_order(rg_group_t *g, const rg_order_t *o, rg_roster_t *plain) {
    rg_roster_t *r = g->ordered;
    if (!r || r->order != o || r->gen != plain->gen || r->data_epoch != plain->data_epoch || r->n != plain->n) {
        r = roster_make(g, plain->gen, plain->ids, plain->n, o);
        if (!r) return NULL;
        rg_roster_put(g->ordered);
        g->ordered = r;
    }
    r->refs++;
    return r;
}

rg_roster_t *rg_roster_of(rg_request_t *op) {
    if (op->key.set & RG_SET_PAIR) return roster_of_pair(op->g, op->key);
    rg_roster_t *r = rg_roster_for(op->h, op->key.gen);
    if (!r || !op->g->orders || op->key.set || op->key.op >> 32) return r;
    const rg_order_t *o = order_before(op->g, op->key.gen, (uint32_t)op->key.op, r->base_gen);
    if (!o) return r;
    rg_roster_t *ordered = roster_in_order(op->g, o, r);
    rg_roster_put(r);
    return ordered;
}

static void rosters_forget(rg_group_t *g) {
    rg_quick_forget(g);
    rg_roster_put(g->roster);
    g->roster = NULL;
    rg_roster_put(g->ordered);
    g->ordered = NULL;
    for (uint32_t i = 0; i < sizeof g->pairs / sizeof *g->pairs; i++) {
        rg_roster_put(g->pairs[i]);
        g->pairs[i] = NULL;
    }
    for (rg_group_t *c = g->children; c; c = c->next_child) {
        rg_roster_put(c->roster);
        c->roster = NULL;
    }
}

/* Called when a view was activated: old rosters stay with the operations that run on them. */
rg_status_t rg_roster_view_changed(rg_group_t *g) {
    const rg_core_view_t *v = rg_member_view(g->core);
    uint64_t least = g->gen;
    for (rg_group_t *c = g->children; c; c = c->next_child)
        if (c->gen < least) least = c->gen;
    rosters_forget(g);
    if (!rg_nets_add(&g->nets, v, least)) return RG_ERR_NOMEM;
    rg_past_t *slot = &g->past[0];
    for (int i = 0; i < RG_PAST; i++) {
        if (g->past[i].data_epoch == v->data_epoch) {
            slot = &g->past[i];
            break;
        }
        if (g->past[i].data_epoch < slot->data_epoch) slot = &g->past[i];
    }
    uint64_t *ids = malloc((v->n + 1) * sizeof *ids), *gens = malloc((v->n + 1) * sizeof *gens);
    if (!ids || !gens) {
        free(ids);
        free(gens);
        return RG_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < v->n; i++) {
        ids[i] = v->members[i].id;
        gens[i] = v->members[i].first_gen;
    }
    free(slot->ids);
    free(slot->first_gens);
    *slot = (rg_past_t){ v->data_epoch, v->n, ids, gens };
    g->past_most = 0;
    for (int i = 0; i < RG_PAST; i++)
        if (g->past[i].n > g->past_most) g->past_most = g->past[i].n;
    return RG_OK;
}

static int past_has(const rg_past_t *p, uint64_t id) {
    for (uint32_t k = 0; k < p->n; k++)
        if (p->ids[k] == id) return 1;
    return 0;
}

/* Participants of operations of a handle, of generation gen, in the view of a past data epoch; 0 when it is too long
 * ago. */
uint32_t rg_roster_past(const rg_group_t *h, uint64_t data_epoch, uint64_t gen, uint64_t *ids, uint32_t cap) {
    const rg_group_t *g = h->root ? h->root : h;
    for (int i = 0; i < RG_PAST; i++) {
        const rg_past_t *p = &g->past[i];
        if (p->data_epoch != data_epoch || !p->ids) continue;
        uint32_t n = 0, of = h->root ? h->n_set : p->n;
        for (uint32_t k = 0; k < of; k++)
            if (h->root ? past_has(p, h->set_ids[k]) : p->first_gens[k] <= gen) {
                if (n < cap) ids[n] = h->root ? h->set_ids[k] : p->ids[k];
                n++;
            }
        return n;
    }
    return 0;
}

void rg_rosters_free(rg_group_t *g) {
    rosters_forget(g);
    rg_nets_free(&g->nets);
    while (g->orders) {
        rg_order_t *o = g->orders;
        g->orders = o->older;
        free(o);
    }
    for (int i = 0; i < RG_PAST; i++) {
        free(g->past[i].ids);
        free(g->past[i].first_gens);
        g->past[i] = (rg_past_t){ 0 };
    }
}
