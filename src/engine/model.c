/* model.c: what a view says about its links, as a cost model and a topology: for each kind of link the median of what
 * the members measured, and who shares a host and a site. Everything comes from the view alone, so that all members
 * choose alike. It relies on the core's view and the group's lock; it must not look at anything that this member knows
 * for itself. */
#include "engine/group.h"

#include <stdlib.h>
#include <string.h>

#define CLASSES 128

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
static uint64_t median(const rg_core_member_t **m, uint32_t n, int at) {
    uint32_t of[CLASSES] = { 0 }, known = 0, below = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t class = m[i] ? m[i]->net[at] & (CLASSES - 1) : 0;
        known += class != 0;
        of[class]++;
    }
    for (uint32_t c = 1; c < CLASSES; c++) {
        below += of[c];
        if (known && 2 * below >= known) return rg_net_value((uint8_t)c);
    }
    return 0;
}

static void look_at_hosts(const rg_core_member_t **m, const rg_roster_t *r, rg_net_summary_t *net) {
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
        rg_net_unpack(m[i]->net, &told);
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

rg_status_t rg_roster_model(const rg_group_t *g, rg_roster_t *r) {
    const rg_core_member_t **m = find_members(rg_member_view(g->core), r);
    r->groups = malloc((2 * (size_t)r->n + 1) * sizeof *r->groups);
    if (!m || !r->groups) {
        free(m);
        return RG_ERR_NOMEM; /* what there is of r is freed with it */
    }
    rg_net_summary_t net = { .size = r->n };
    number_groups(m, r->n, r->groups, r->groups + r->n);
    look_at_hosts(m, r, &net);
    for (int k = 0; k <= (int)net.levels; k++) {
        net.link[k].latency = (double)median(m, r->n, 2 * k) * 1e-9;
        net.link[k].bandwidth = (double)median(m, r->n, 2 * k + 1);
    }
    free(m);
    rg_cost_model(&r->model, &net);
    r->topo = (rg_topology_t){ .levels = net.levels, .group = r->groups };
    r->model_key = hash(14695981039346656037ull, &r->model, sizeof r->model);
    r->model_key = hash(r->model_key, r->groups, net.levels * (size_t)r->n * sizeof *r->groups);
    return RG_OK;
}
