/* model.c: what a view says about its links, as a cost model and a topology: for each kind of link the median of what
 * the members measured, and who shares a host and a site. Everything comes from the view alone, so that all members
 * choose alike. It relies on the core's view and the group's lock; it must not look at anything that this member knows
 * for itself. */
#include "engine/group.h"

#include <stdlib.h>
#include <string.h>

#define CLASSES 128

/* ---- Figures by generation ---- */

void rg_nets_free(rg_nets_t **list) {
    while (*list) {
        rg_nets_t *o = *list;
        *list = o->older;
        free(o);
    }
}

int rg_nets_add(rg_nets_t **list, const rg_core_view_t *v, uint64_t least_gen) {
    rg_nets_t *s = malloc(sizeof *s + v->n * sizeof *s->of);
    if (!s) return 0;
    if (v->kind != RG_VIEW_JOIN) rg_nets_free(list); /* everything is started anew, by these */
    s->from_gen = v->kind == RG_VIEW_JOIN ? v->cut : 0;
    s->n = v->n;
    for (uint32_t i = 0; i < v->n; i++) {
        s->of[i].id = v->members[i].id;
        memcpy(s->of[i].net, v->members[i].net, sizeof s->of[i].net);
    }
    s->older = *list;
    *list = s;
    while (s->older && s->from_gen > least_gen) s = s->older;
    rg_nets_free(&s->older);
    return 1;
}

const uint8_t *rg_nets_at(const rg_nets_t *list, uint64_t gen, uint64_t id) {
    while (list && list->older && list->from_gen > gen) list = list->older;
    for (uint32_t i = 0; list && i < list->n; i++)
        if (list->of[i].id == id) return list->of[i].net;
    return NULL;
}

/* A copy of each participant's figures, by rank; zeros: nobody knows. */
static uint8_t (*nets_by_rank(const rg_group_t *g, const rg_roster_t *r))[RG_CORE_NET] {
    uint8_t(*net)[RG_CORE_NET] = calloc(r->n + 1, sizeof *net);
    for (uint32_t i = 0; net && i < r->n; i++) {
        const uint8_t *p = rg_nets_at(g->nets, r->gen, r->ids[i]);
        if (p) memcpy(net[i], p, sizeof net[i]);
    }
    return net;
}

/* ---- A roster's model ---- */

/* The participants by rank. Rosters mostly follow the view's order, so that is where the search goes on. */
static const rg_core_member_t **find_members(const rg_core_view_t *v, const rg_roster_t *r) {
    const rg_core_member_t **m = malloc((r->n + 1) * sizeof(*m));
    uint32_t at = 0;
    for (uint32_t i = 0; m && i < r->n; i++) {
        m[i] = NULL;
        for (uint32_t k = 0; k < v->n && !m[i]; k++, at++) {
            if (at >= v->n) at = 0;
            if (v->members[at].id == r->ids[i]) m[i] = &v->members[at];
        }
    }
    return m;
}

/* Numbers the hosts and sites by their first rank. A host lies on one site, that of its first rank. */
static void number_groups(const rg_core_member_t **m, uint32_t n, uint32_t *host, uint32_t *site) {
    for (uint32_t i = 0; i < n; i++) {
        host[i] = site[i] = i;
        for (uint32_t k = 0; k < i; k++)
            if (m[i] && m[k] && m[i]->host == m[k]->host) {
                host[i] = host[k];
                site[i] = site[k];
                break;
            }
        for (uint32_t k = 0; k < i && host[i] == i; k++)
            if (host[k] == k && m[i] && m[k] && m[i]->site == m[k]->site) {
                site[i] = site[k];
                break;
            }
    }
}

/* Middle of the classes that members told, at byte `at` of what a view carries for each; 0: nobody knows. */
static uint64_t median(uint8_t (*net)[RG_CORE_NET], uint32_t n, int at) {
    uint32_t of[CLASSES] = { 0 }, known = 0, below = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t class = net[i][at] & (CLASSES - 1);
        known += class != 0;
        of[class]++;
    }
    for (uint32_t c = 1; c < CLASSES; c++) {
        below += of[c];
        if (known && 2 * below >= known) return rg_net_value((uint8_t)c);
    }
    return 0;
}

static void look_at_hosts(const rg_core_member_t **m, const rg_roster_t *r, uint8_t (*nets)[RG_CORE_NET],
                          rg_net_summary_t *net) {
    const uint32_t *host = r->groups, *site = r->groups + r->n;
    uint32_t hosts = 0, sites = 0, shared = 1;
    net->cores = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        uint32_t here = 0;
        hosts += host[i] == i;
        sites += site[i] == i;
        for (uint32_t k = 0; k < r->n && host[i] == i; k++) here += host[k] == i;
        if (here > net->per_host) net->per_host = here;
        if (m[i] && m[i]->cores && (!net->cores || m[i]->cores < net->cores)) net->cores = m[i]->cores;
    }
    for (uint32_t i = 0; i < r->n; i++) {
        rg_net_t told;
        uint32_t mates = 0;
        for (uint32_t k = 0; k < r->n && mates < 2; k++) mates += host[k] == host[i];
        if (mates < 2 || !m[i]) continue;
        rg_net_unpack(nets[i], &told);
        shared &= told.shared;
    }
    net->levels = sites > 1 ? 2 : 1;
    net->link[0].present = net->per_host > 1;
    net->link[1].present = sites > 1 ? hosts > sites : hosts > 1;
    net->link[2].present = sites > 1;
    net->shm = net->per_host > 1 && shared;
}

static uint64_t hash(uint64_t h, const void *p, size_t n) { /* FNV-1a */
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)p)[i]) * 1099511628211ull;
    return h;
}

/* Adds what they measured. Every one of them was there, so all are found. */
static void add_order(rg_roster_t *r, uint32_t levels) {
    const rg_order_t *o = r->order;
    uint32_t *ring = r->groups + 2 * (size_t)r->n, *rate = ring + r->n, at = 0, least = UINT32_MAX;
    for (uint32_t k = 0; k < o->n; k++)
        for (uint32_t i = 0; i < r->n; i++) {
            if (r->ids[i] != o->ids[o->ring[k]]) continue;
            if (at < r->n) ring[at++] = i;
            rate[i] = o->rate[o->ring[k]];
            if (rate[i] < least) least = rate[i];
        }
    if (at != r->n) return;
    r->topo.ring = ring;
    if (o->uneven) r->topo.rate = rate;
    /* Where all do the same the slowest decides. */
    r->model.beta = r->model.level[levels].beta = 1 / (1024.0 * least);
}

rg_status_t rg_roster_model(const rg_group_t *g, rg_roster_t *r) {
    const rg_core_member_t **m = find_members(rg_member_view(g->core), r);
    uint8_t(*nets)[RG_CORE_NET] = nets_by_rank(g, r);
    r->groups = malloc((4 * (size_t)r->n + 1) * sizeof *r->groups);
    if (!m || !nets || !r->groups) {
        free(m);
        free(nets);
        return RG_ERR_NOMEM; /* what there is of r is freed with it */
    }
    rg_net_summary_t net = { .size = r->n };
    number_groups(m, r->n, r->groups, r->groups + r->n);
    look_at_hosts(m, r, nets, &net);
    for (int k = 0; k <= (int)net.levels; k++) {
        net.link[k].latency = (double)median(nets, r->n, 2 * k) * 1e-9;
        net.link[k].bandwidth = (double)median(nets, r->n, 2 * k + 1);
    }
    for (uint32_t i = 0; i < r->n; i++)
        if (m[i] && m[i]->first_gen > r->base_gen) r->base_gen = m[i]->first_gen;
    free(m);
    free(nets);
    rg_cost_model(&r->model, &net);
    r->topo = (rg_topology_t){ .levels = net.levels, .group = r->groups };
    if (r->order) add_order(r, net.levels);
    r->model_key = hash(14695981039346656037ull, &r->model, sizeof r->model);
    r->model_key = hash(r->model_key, r->groups, net.levels * (size_t)r->n * sizeof *r->groups);
    if (r->topo.ring) r->model_key = hash(r->model_key, r->topo.ring, r->n * sizeof *r->groups);
    if (r->topo.rate) r->model_key = hash(r->model_key, r->topo.rate, r->n * sizeof *r->groups);
    return RG_OK;
}
