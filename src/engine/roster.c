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

static rg_roster_t *roster_make(rg_group_t *g, uint64_t gen) {
    const rg_core_view_t *v = rg_member_view(g->core);
    uint32_t n = rg_member_participants(g->core, gen, NULL, 0);
    rg_roster_t *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->refs = 1;
    r->n = n;
    r->gen = gen;
    r->data_epoch = v->data_epoch;
    r->ids = malloc((n + 1) * sizeof *r->ids);
    r->links = malloc((n + 1) * sizeof *r->links);
    if (!r->ids || !r->links) {
        rg_roster_put(r);
        return NULL;
    }
    rg_member_participants(g->core, gen, r->ids, n);
    for (uint32_t i = 0; i < n; i++) {
        r->links[i] = rg_link_of(g, r->ids[i]);
        if (r->ids[i] == g->self_id) r->rank = i;
    }
    if (rg_roster_model(g, r) == RG_OK) return r;
    rg_roster_put(r);
    return NULL;
}

/* A counted reference; NULL when memory is out. Within a view the participants of a generation are its first members,
 * so a boundary where nobody enters goes on with the roster at hand. */
rg_roster_t *rg_roster_for(rg_group_t *g, uint64_t gen) {
    if (g->roster && g->roster->gen != gen && gen == g->gen &&
        g->roster->n == rg_member_participants(g->core, gen, NULL, 0))
        g->roster->gen = gen;
    if (g->roster && g->roster->gen == gen) {
        g->roster->refs++;
        return g->roster;
    }
    rg_roster_t *r = roster_make(g, gen);
    if (!r) return NULL;
    if (gen == g->gen) {
        rg_roster_put(g->roster);
        g->roster = r;
        r->refs++;
    }
    return r;
}

/* Called when a view was activated: old rosters stay with the operations that run on them. */
rg_status_t rg_roster_view_changed(rg_group_t *g) {
    const rg_core_view_t *v = rg_member_view(g->core);
    rg_roster_put(g->roster);
    g->roster = NULL;
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
    return RG_OK;
}

/* Participants of generation gen in the view of a past data epoch; 0 when it is too long ago. */
uint32_t rg_roster_past(const rg_group_t *g, uint64_t data_epoch, uint64_t gen, uint64_t *ids, uint32_t cap) {
    for (int i = 0; i < RG_PAST; i++) {
        if (g->past[i].data_epoch != data_epoch || !g->past[i].ids) continue;
        uint32_t n = 0;
        for (uint32_t k = 0; k < g->past[i].n; k++)
            if (g->past[i].first_gens[k] <= gen) {
                if (n < cap) ids[n] = g->past[i].ids[k];
                n++;
            }
        return n;
    }
    return 0;
}

void rg_rosters_free(rg_group_t *g) {
    rg_roster_put(g->roster);
    g->roster = NULL;
    for (int i = 0; i < RG_PAST; i++) {
        free(g->past[i].ids);
        free(g->past[i].first_gens);
        g->past[i] = (rg_past_t){ 0 };
    }
}
