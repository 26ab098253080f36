/* plan.c: schedules with what the executor needs beside them, built once per description and cached by group. It relies
 * on the group's lock; building is pure. A plan in use is never freed. */
#include "engine/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLANS_MAX 128

extern const rg_algorithm_t rg_alg_all_gather_direct, rg_alg_all_to_all_direct, rg_alg_reduce_scatter_direct;

static uint32_t fnv(uint32_t h, const void *p, size_t n) {
    const uint8_t *b = p;
    while (n--) h = (h ^ *b++) * 16777619u;
    return h;
}

static void plan_free(rg_plan_t *p) {
    rg_sched_free(p->s);
    free(p->key_arrays);
    free(p->first_out);
    free(p->outs);
    free(p->rem);
    free(p->peers);
    free(p->first_send);
    free(p->sends);
    free(p);
}

/* Dependents of each step, as one array with offsets. */
static int plan_index(rg_plan_t *p) {
    const rg_schedule_t *s = p->s;
    uint32_t n = s->n_steps;
    p->first_out = calloc((size_t)n + 2, sizeof *p->first_out);
    p->outs = malloc(((size_t)s->n_deps + 1) * sizeof *p->outs);
    p->rem = malloc(((size_t)n + 1) * sizeof *p->rem);
    if (!p->first_out || !p->outs || !p->rem) return 0;
    for (uint32_t i = 0; i < n; i++) {
        p->rem[i] = s->steps[i].n_deps;
        for (uint32_t d = 0; d < s->steps[i].n_deps; d++) p->first_out[s->deps[s->steps[i].first_dep + d] + 2]++;
    }
    for (uint32_t i = 2; i <= n + 1; i++) p->first_out[i] += p->first_out[i - 1];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t d = 0; d < s->steps[i].n_deps; d++)
            p->outs[p->first_out[s->deps[s->steps[i].first_dep + d] + 1]++] = i;
    return 1;
}

/* The sends to each peer in schedule order. The proof that schedules do not deadlock (rule A5) holds for this order. */
static int plan_sends(rg_plan_t *p) {
    const rg_schedule_t *s = p->s;
    uint32_t n = s->desc.size, sends = 0, *count = calloc((size_t)n + 1, sizeof *count);
    for (uint32_t i = 0; count && i < s->n_steps; i++)
        if (s->steps[i].kind == RG_STEP_SEND) {
            sends++;
            p->n_peers += !count[s->steps[i].peer]++;
        }
    p->peers = malloc((p->n_peers + 1) * sizeof *p->peers);
    p->first_send = malloc((p->n_peers + 1) * sizeof *p->first_send);
    p->sends = malloc((sends + 1) * sizeof *p->sends);
    if (!count || !p->peers || !p->first_send || !p->sends) {
        free(count);
        return 0;
    }
    uint32_t at = 0, k = 0;
    for (uint32_t r = 0; r < n; r++)
        if (count[r]) {
            p->peers[k] = r;
            p->first_send[k++] = at;
            at += count[r];
            count[r] = at - count[r]; /* from here on: where the next send of r goes */
        }
    p->first_send[k] = at;
    for (uint32_t i = 0; i < s->n_steps; i++)
        if (s->steps[i].kind == RG_STEP_SEND) p->sends[count[s->steps[i].peer]++] = i;
    free(count);
    return 1;
}

/* Of what two members run under rule S, but for what both have all of anyway. */
static const rg_algorithm_t *pair_alg(const rg_coll_desc_t *d) {
    if (d->rule_l || d->size != 2) return NULL;
    return d->kind == RG_KIND_ALL_GATHER       ? &rg_alg_all_gather_direct
           : d->kind == RG_KIND_ALL_TO_ALL     ? &rg_alg_all_to_all_direct
           : d->kind == RG_KIND_REDUCE_SCATTER ? &rg_alg_reduce_scatter_direct
                                               : NULL;
}

static rg_plan_t *plan_build(rg_group_t *g, const rg_coll_desc_t *key, const rg_roster_t *r, rg_status_t *st,
                             char *text, size_t cap) {
    rg_coll_desc_t d = *key;
    const char *forced = g->cfg.algorithm;
    const rg_choice_t how = { forced && *forced ? forced : NULL, g->tuning, g->cfg.chunk_bytes };
    const rg_algorithm_t *alg = pair_alg(&d);
    if (alg) d.chunk = INT64_MAX; /* one message each, whatever else was asked for: see buffers.c */
    else alg = rg_sched_choose(&d, &r->model, &how, NULL, text, cap);
    if (!alg) {
        *st = RG_ERR_NOTSUP;
        return NULL;
    }
    /* What one sends and the other expects is compared by the lengths of messages: one message each, or parts that
     * happen to be equally long would hide a difference. */
    if (d.kind == RG_KIND_ALL_TO_ALL && d.lens) d.chunk = INT64_MAX;
    rg_plan_t *p = calloc(1, sizeof *p);
    *st = p ? rg_sched_build(alg, &d, &p->s) : RG_ERR_NOMEM;
    if (p) p->key = *key;
    if (p) p->key.topo = NULL; /* model_key stands for it */
    if (*st == RG_OK && (!plan_index(p) || !plan_sends(p) || !rg_desc_copy(&p->key, &p->key_arrays)))
        *st = RG_ERR_NOMEM;
    if (*st != RG_OK) {
        snprintf(text, cap, "schedule %s for %u ranks and %llu elements: %s", alg->name, d.size,
                 (unsigned long long)d.count, rg_strerror(*st));
        if (p) plan_free(p);
        return NULL;
    }
    p->alg = alg;
    p->model_key = r->model_key;
    p->hash =
        fnv(fnv(fnv(2166136261u, alg->name, strlen(alg->name)), &d.chunk, sizeof d.chunk), &d.size, sizeof d.size);
    if (d.hub) p->hash = fnv(p->hash, &d.hub, sizeof d.hub);
    if (r->topo.ring) p->hash = fnv(p->hash, r->topo.ring, r->n * sizeof *r->topo.ring);
    if (r->topo.rate) p->hash = fnv(p->hash, r->topo.rate, r->n * sizeof *r->topo.rate);
    return p;
}

static uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static uint64_t array_hash(uint64_t h, const uint64_t *a, uint32_t n) {
    if (!a) return mix(h, 1);
    for (uint32_t i = 0; i < n; i++) h = mix(h, a[i]);
    return h;
}

static uint64_t desc_hash(const rg_coll_desc_t *d, uint64_t model_key) {
    uint64_t h = mix(d->kind | (uint64_t)d->size << 8 | (uint64_t)d->rank << 32, d->count);
    h = mix(h, d->root | (uint64_t)d->elem_size << 32 | (uint64_t)d->acc_size << 40 | (uint64_t)d->rule_l << 48 |
                   (uint64_t)d->in_place << 49 | (uint64_t)d->rank_order << 50 | (uint64_t)d->prepare << 51);
    h = mix(h, model_key);
    if (!d->offs && !d->lens && !d->in_offs && !d->in_lens) return h;
    return array_hash(array_hash(array_hash(array_hash(h, d->offs, d->size), d->lens, d->size), d->in_offs, d->size),
                      d->in_lens, d->size);
}

static int same_array(const uint64_t *a, const uint64_t *b, uint32_t n) {
    return a == b || (a && b && memcmp(a, b, n * sizeof *a) == 0);
}

static int same_desc(const rg_coll_desc_t *a, const rg_coll_desc_t *b) {
    return a->kind == b->kind && a->size == b->size && a->rank == b->rank && a->root == b->root &&
           a->count == b->count && a->elem_size == b->elem_size && a->acc_size == b->acc_size &&
           a->rule_l == b->rule_l && a->in_place == b->in_place && a->rank_order == b->rank_order &&
           a->prepare == b->prepare && same_array(a->offs, b->offs, a->size) && same_array(a->lens, b->lens, a->size) &&
           same_array(a->in_offs, b->in_offs, a->size) && same_array(a->in_lens, b->in_lens, a->size);
}

rg_plan_t *rg_plan_get(rg_group_t *g, const rg_coll_desc_t *d, const rg_roster_t *r, rg_status_t *st, char *text,
                       size_t cap) {
    uint32_t oldest = UINT32_MAX;
    uint64_t hash = desc_hash(d, r->model_key);
    g->plan_clock++;
    for (uint32_t i = 0; i < g->n_plans; i++) {
        rg_plan_t *p = g->plans[i];
        if (p->key_hash == hash && p->model_key == r->model_key && same_desc(&p->key, d)) {
            if (i) { /* the usual case is one operation again and again: keep it in front */
                g->plans[i] = g->plans[0];
                g->plans[0] = p;
            }
            p->used = g->plan_clock;
            p->refs++;
            return p;
        }
        if (!p->refs && (oldest == UINT32_MAX || p->used < g->plans[oldest]->used)) oldest = i;
    }
    rg_plan_t *p = plan_build(g, d, r, st, text, cap);
    if (!p) return NULL;
    if (g->n_plans < PLANS_MAX || oldest == UINT32_MAX) {
        rg_plan_t **grown = realloc(g->plans, (g->n_plans + 1) * sizeof *grown);
        if (!grown) {
            plan_free(p);
            *st = RG_ERR_NOMEM;
            return NULL;
        }
        g->plans = grown;
        oldest = g->n_plans++;
    } else {
        plan_free(g->plans[oldest]);
    }
    g->plans[oldest] = p;
    p->key_hash = hash;
    p->used = g->plan_clock;
    p->refs = 1;
    return p;
}

void rg_plan_put(rg_plan_t *p) {
    if (p) p->refs--;
}

void rg_plans_free(rg_group_t *g) {
    for (uint32_t i = 0; i < g->n_plans; i++) plan_free(g->plans[i]);
    free(g->plans);
    g->plans = NULL;
    g->n_plans = 0;
}
