/* model.c: see model.h. */
#include "model.h"
#include "kernels/kernels.h"
#include "tool.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

rg_kind_t model_kind(coll_kind_t kind) {
    static const rg_kind_t kinds[COLL_COUNT] = {
        [COLL_ALL_REDUCE] = RG_KIND_ALL_REDUCE,
        [COLL_ALL_GATHER] = RG_KIND_ALL_GATHER,
        [COLL_REDUCE_SCATTER] = RG_KIND_REDUCE_SCATTER,
        [COLL_BROADCAST] = RG_KIND_BROADCAST,
        [COLL_REDUCE] = RG_KIND_REDUCE,
        [COLL_GATHER] = RG_KIND_GATHER,
        [COLL_SCATTER] = RG_KIND_SCATTER,
        [COLL_ALL_TO_ALL] = RG_KIND_ALL_TO_ALL,
        [COLL_SEND_RECV] = RG_KIND_P2P,
        [COLL_BARRIER] = RG_KIND_BARRIER,
    };
    return kinds[kind];
}

/* From who is where (m->groups) to the cost model; the links' figures are in m->net already. */
static void model_finish(struct model *m) {
    const uint32_t *host = m->groups, *site = m->groups + m->n;
    uint32_t hosts = 0, sites = 0;
    m->net.size = m->n;
    m->net.per_host = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        uint32_t here = 0;
        hosts += host[i] == i;
        sites += site[i] == i;
        for (uint32_t k = 0; k < m->n && host[i] == i; k++) here += host[k] == i;
        if (here > m->net.per_host) m->net.per_host = here;
    }
    m->net.levels = sites > 1 ? 2 : 1;
    m->net.link[0].present = m->net.per_host > 1;
    m->net.link[1].present = sites > 1 ? hosts > sites : hosts > 1;
    m->net.link[2].present = sites > 1;
    m->net.shm = m->net.shm && m->net.per_host > 1;
    rg_cost_model(&m->cost, &m->net);
    m->topo = (rg_topology_t){ .levels = m->net.levels, .group = m->groups };
}

int model_plain(struct model *m, uint32_t n, uint32_t hosts, uint32_t sites, uint32_t cores, int shm) {
    memset(m, 0, sizeof *m);
    m->n = n;
    m->net.cores = cores;
    m->net.shm = shm != 0;
    m->groups = malloc((2 * (size_t)n + 1) * sizeof *m->groups);
    if (!m->groups) return 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t h = (uint32_t)((uint64_t)i * hosts / n), s = (uint32_t)((uint64_t)h * sites / hosts);
        uint32_t first_host = (uint32_t)(((uint64_t)s * hosts + sites - 1) / sites);
        m->groups[i] = (uint32_t)(((uint64_t)h * n + hosts - 1) / hosts); /* a group has the number of its first rank */
        m->groups[n + i] = (uint32_t)(((uint64_t)first_host * n + hosts - 1) / hosts);
    }
    model_finish(m);
    return 1;
}

/* ---- From a coordinator's roll --------------------------------------------------------------------------------- */

static json_t *find_group(json_t *all, const char *name) {
    size_t i;
    json_t *g;
    json_array_foreach(json_object_get(all, "groups"), i, g) {
        const char *s = json_string_value(json_object_get(g, "name"));
        if (s && !strcmp(s, name)) return g;
    }
    return NULL;
}

static json_t *find_rank(json_t *members, uint32_t rank) {
    size_t i;
    json_t *m;
    json_array_foreach(members, i, m) {
        json_t *r = json_object_get(m, "rank");
        if (json_is_integer(r) && json_integer_value(r) == (json_int_t)rank) return m;
    }
    return NULL;
}

static const char *text_of(json_t *m, const char *key) {
    const char *s = json_string_value(json_object_get(m, key));
    return s ? s : "";
}

static int less(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The lower median of what members know; 0 when none does. */
static double median(uint64_t *v, uint32_t n) {
    uint32_t zero = 0;
    qsort(v, n, sizeof *v, less);
    while (zero < n && !v[zero]) zero++;
    return zero < n ? (double)v[zero + (n - zero - 1) / 2] : 0;
}

static void read_links(json_t *m, rg_net_t *net) {
    uint8_t bytes[RG_NET_BYTES] = { 0 };
    const char *s = text_of(m, "links");
    for (int i = 0; i < RG_NET_BYTES && strlen(s) == 2 * RG_NET_BYTES; i++) {
        char two[3] = { s[2 * i], s[2 * i + 1], 0 };
        bytes[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    rg_net_unpack(bytes, net);
}

static void read_places(json_t **m, struct model *out) {
    uint32_t n = out->n;
    for (uint32_t i = 0; i < n; i++) {
        out->groups[i] = out->groups[n + i] = i;
        for (uint32_t k = 0; k < i; k++) {
            if (out->groups[i] == i && !strcmp(text_of(m[i], "host"), text_of(m[k], "host")))
                out->groups[i] = out->groups[k];
            if (out->groups[n + i] == i && !strcmp(text_of(m[i], "site"), text_of(m[k], "site")))
                out->groups[n + i] = out->groups[n + k];
        }
    }
}

static int read_members(json_t *members, struct model *out) {
    uint32_t n = out->n, shared = 1;
    json_t **m = calloc(n + 1, sizeof(*m));
    uint64_t *figures = calloc(2 * RG_NET_KINDS * (size_t)(n + 1), sizeof *figures);
    out->groups = malloc((2 * (size_t)n + 1) * sizeof *out->groups);
    int ok = m && figures && out->groups;
    for (uint32_t i = 0; ok && i < n; i++) {
        rg_net_t net;
        ok = (m[i] = find_rank(members, i)) != NULL;
        if (!ok) break;
        read_links(m[i], &net);
        shared &= net.shared;
        for (uint32_t k = 0; k < RG_NET_KINDS; k++) {
            figures[2 * k * n + i] = net.link[k].latency_ns;
            figures[(2 * k + 1) * n + i] = net.link[k].bytes_per_s;
        }
    }
    if (ok) {
        read_places(m, out);
        out->net.shm = shared;
        for (uint32_t k = 0; k < RG_NET_KINDS; k++) {
            out->net.link[k].latency = median(figures + 2 * k * n, n) * 1e-9;
            out->net.link[k].bandwidth = median(figures + (2 * k + 1) * n, n);
            out->measured |= out->net.link[k].latency > 0;
        }
        model_finish(out);
    }
    free(m);
    free(figures);
    return ok;
}

int model_of_group(struct model *m, const char *command, const char *address, const char *group, uint32_t cores) {
    rg_error_t err = { RG_OK, 0, "" };
    json_error_t jerr;
    char *text = NULL;
    int rc = TOOL_OK;
    memset(m, 0, sizeof *m);
    m->net.cores = cores;
    if (rg_coordinator_status(address, 5000, &text, &err)) return tool_failed(command, "%s", err.text);
    json_t *all = json_loads(text, 0, &jerr), *g = all ? find_group(all, group) : NULL;
    rg_free(text);
    json_t *members = json_object_get(g, "members"), *one;
    size_t i;
    json_array_foreach(members, i, one) m->n += json_integer_value(json_object_get(one, "rank")) >= 0;
    if (!all) rc = tool_failed(command, "what %s answered is not JSON: %s", address, jerr.text);
    else if (!g) rc = tool_failed(command, "%s knows no group \"%s\": `regroup status` lists them", address, group);
    else if (!m->n || !read_members(members, m))
        rc = tool_failed(command, "the roll of group \"%s\" is not whole yet: try again", group);
    json_decref(all);
    return rc;
}

uint32_t model_cores(void) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (uint32_t)cores : 1;
}

void model_free(struct model *m) {
    free(m->groups);
    m->groups = NULL;
}

/* ---- Descriptions ---------------------------------------------------------------------------------------------- */

rg_coll_desc_t model_desc(const struct model *m, const struct coll *c, uint64_t count, uint32_t rank, uint64_t small,
                          int deterministic) {
    rg_coll_desc_t d = { .kind = model_kind(c->kind), .size = m->n, .rank = rank, .count = count, .chunk = 1 };
    d.root = coll_rooted(c->kind) ? c->root : 0;
    d.elem_size = (uint32_t)rg_dtype_size(c->dtype);
    d.acc_size = rg_kind_reduces(d.kind) ? (uint32_t)rg_acc_size(c->dtype) : d.elem_size;
    if (d.kind == RG_KIND_BROADCAST && small > RG_SPOKEN_MAX) small = RG_SPOKEN_MAX;
    d.rule_l = d.kind == RG_KIND_ALL_REDUCE || d.kind == RG_KIND_BROADCAST ? count * d.elem_size > small
                                                                           : d.kind != RG_KIND_BARRIER;
    d.in_place = c->in_place && d.kind != RG_KIND_ALL_TO_ALL;
    d.rank_order = deterministic != 0;
    d.topo = m->topo.levels ? &m->topo : NULL;
    if (d.kind == RG_KIND_P2P) {
        d.size = 2;
        d.rank = rank & 1;
        d.topo = NULL;
    }
    return d;
}
