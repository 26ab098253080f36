/* select.c: which algorithm runs an operation. A pure function of the description and the cost model, which are equal
 * on all members, so that all choose alike without asking each other. Relies on the table that the build makes from
 * algorithms/. Must not read the environment, the clock or anything measured on this member alone. */
#include "sched.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Constants of the cost model ----------------------------------------------------------------------------- */

/* All constants are here. They are seconds, and rough: what matters is where two algorithms cross.
 * A message between two processes of one host that both run: a system call on each side and the wake-up. */
#define ALPHA_HOST 5e-6
/* More when the receiver has to be put on a core first, because there are more processes than cores. */
#define ALPHA_SWITCH 1e-6
/* A byte through the loopback device: both copies and the protocol. It is work of the processor, so processes that
 * share a core share it (the `sharing` factor). */
#define BETA_HOST 0.35e-9
/* The same through shared memory: no system call, and one copy or none. */
#define ALPHA_SHM 0.5e-6
#define BETA_SHM 0.07e-9
/* Where processes share cores a hop through it waits until the receiver has a core, but a message that is there by then
 * costs next to nothing: as measured with 4 and 8 processes on 2 cores, some 5 us a hop for each process that shares
 * the core, and below 1 us a message. */
#define ALPHA_SWITCH_SHM 4.5e-6
#define WORK_SHM_SHARED 0.5e-6
/* Between hosts: a switched network of 10 GB/s with a round trip of some 50 us. */
#define ALPHA_NET 25e-6
#define BETA_NET 0.1e-9
/* A byte reduced while it is in cache. */
#define GAMMA 0.03e-9
/* The part of alpha that is work of the sender and receiver, and so adds up over the messages that a rank handles,
 * also when they travel at the same time. */
#define WORK_OF_ALPHA 0.4
/* Where processes share cores each message also costs the switch to its receiver, and switches do not overlap: as
 * measured with 4 processes on 2 cores, 12 us a message. */
#define WORK_OF_ALPHA_SHARED 2.0

/* How long the segments of an exchange are taken to be when each rank knows its own only. */
#define GUESS_BYTES 16384u

/* What a piece is when an algorithm has no preference. */
#define CHUNK_DEFAULT 131072u

/* From here on a link is a long one; how large the pieces of a ring become over such, and how many a slice has at
 * least. */
#define ALPHA_FAR 1e-3
#define CHUNK_FAR (2u << 20)
#define FAR_PIECES 8u

rg_net_summary_t rg_net_plain(uint32_t size, uint32_t cores, int one_host) {
    rg_net_summary_t net = { .size = size, .cores = cores, .per_host = one_host ? size : 1, .levels = 1 };
    net.link[one_host ? 0 : 1].present = 1;
    return net;
}

/* Links between hosts are alike in what is not measured. */
void rg_cost_model(rg_cost_model_t *m, const rg_net_summary_t *net) {
    uint32_t levels = net->levels <= RG_LEVELS_MAX ? net->levels : RG_LEVELS_MAX, slowest = 0;
    int crowded = net->cores != 0 && net->per_host > net->cores;
    *m = (rg_cost_model_t){ .gamma = GAMMA, .sharing = crowded ? (double)net->per_host / net->cores : 1 };
    for (uint32_t l = 0; l <= levels; l++) {
        int host = l == 0 && levels != 0;
        double alpha = !host ? ALPHA_NET : net->shm ? ALPHA_SHM : ALPHA_HOST;
        double beta = !host ? BETA_NET : net->shm ? BETA_SHM : BETA_HOST;
        if (net->link[l].latency > 0) alpha = net->link[l].latency;
        if (net->link[l].bandwidth > 0) beta = 1 / net->link[l].bandwidth;
        if (host && crowded) alpha += net->shm ? ALPHA_SWITCH_SHM * m->sharing : ALPHA_SWITCH;
        m->level[l].alpha = alpha;
        m->level[l].beta = beta;
        if (net->link[l].present) slowest = l;
    }
    m->alpha = m->level[slowest].alpha;
    m->beta = m->level[slowest].beta;
    if (crowded && net->shm && slowest == 0 && levels != 0) m->work = WORK_SHM_SHARED;
}

double rg_cost(const rg_cost_model_t *m, double hops, double messages, double bytes, double reduced) {
    double sharing = m->sharing > 1 ? m->sharing : 1;
    double each = m->work > 0 ? m->work : m->alpha * (sharing > 1 ? WORK_OF_ALPHA_SHARED : WORK_OF_ALPHA);
    double work = messages * each + bytes * m->beta + reduced * m->gamma;
    return hops * m->alpha + sharing * work;
}

/* ---- The caller's choice --------------------------------------------------------------------------------------- */

typedef struct text {
    char *buf;
    size_t cap, len;
} text_t;

__attribute__((format(printf, 2, 3))) static void say(text_t *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    size_t room = t->len < t->cap ? t->cap - t->len : 0;
    int n = vsnprintf(room ? t->buf + t->len : NULL, room, fmt, ap);
    va_end(ap);
    if (n > 0) t->len += (size_t)n;
}

static void say_names(text_t *t, rg_kind_t kind) {
    const char *comma = "";
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++)
        if ((*a)->kind == kind) {
            say(t, "%s%s", comma, (*a)->name);
            comma = ", ";
        }
}

static void say_all(text_t *t) {
    for (int k = 0; k < RG_KIND_COUNT; k++) {
        say(t, "%s%s: ", k == 0 ? "" : "; ", rg_kind_name((rg_kind_t)k));
        say_names(t, (rg_kind_t)k);
    }
}

static int same(const char *name, const char *s, size_t len) {
    return strlen(name) == len && memcmp(name, s, len) == 0;
}

static const rg_algorithm_t *find(int kind, const char *name, size_t len) {
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++)
        if ((int)(*a)->kind == kind && same((*a)->name, name, len)) return *a;
    return NULL;
}

/* Of a name that is none, so that what follows it has room in the text. */
static int quoted(size_t len) { return len < 40 ? (int)len : 40; }

/* One item, "kind=name" or "name". Sets *found when it speaks of `kind`. Returns 0 with text when it names nothing. */
static int parse_item(const char *item, size_t len, rg_kind_t kind, const rg_algorithm_t **found, text_t *t) {
    const char *eq = memchr(item, '=', len);
    int known = 0;
    if (eq == NULL) {
        for (int k = 0; k < RG_KIND_COUNT; k++) {
            const rg_algorithm_t *a = find(k, item, len);
            known |= a != NULL;
            if (a != NULL && k == (int)kind) *found = a;
        }
        if (!known) {
            say(t, "algorithm (RG_ALGORITHM): there is no '%.*s'; there are ", quoted(len), item);
            say_all(t);
        }
        return known;
    }
    size_t left = (size_t)(eq - item), right = len - left - 1;
    for (int k = 0; k < RG_KIND_COUNT; k++) {
        if (!same(rg_kind_name((rg_kind_t)k), item, left)) continue;
        const rg_algorithm_t *a = find(k, eq + 1, right);
        if (a == NULL) {
            say(t, "algorithm (RG_ALGORITHM): %s has no '%.*s'; it has ", rg_kind_name((rg_kind_t)k), quoted(right),
                eq + 1);
            say_names(t, (rg_kind_t)k);
            return 0;
        }
        if (k == (int)kind) *found = a;
        return 1;
    }
    say(t,
        "algorithm (RG_ALGORITHM): '%.*s' is no operation; expected all_reduce=NAME, broadcast=NAME, ... or a NAME "
        "alone, separated by commas. There are ",
        quoted(left), item);
    say_all(t);
    return 0;
}

/* The whole list is checked, whatever the kind. */
static int parse(const char *list, rg_kind_t kind, const rg_algorithm_t **found, text_t *t) {
    while (*list != 0) {
        size_t len = strcspn(list, ",");
        const char *item = list;
        size_t n = len;
        while (n != 0 && (*item == ' ' || *item == '\t')) item++, n--;
        while (n != 0 && (item[n - 1] == ' ' || item[n - 1] == '\t')) n--;
        if (n != 0 && !parse_item(item, n, kind, found, t)) return 0;
        list += len;
        if (*list == ',') list++;
    }
    return 1;
}

int rg_sched_known(const char *list, char *text, size_t cap) {
    text_t t = { text, cap, 0 };
    const rg_algorithm_t *any = NULL;
    if (cap != 0) text[0] = 0;
    return list == NULL || parse(list, RG_KIND_COUNT, &any, &t);
}

/* ---- Choice ---------------------------------------------------------------------------------------------------- */

/* A ring passes on a piece when it has come, and some pieces are under way at a time: on a long way they have to be as
 * large as what the way holds, as long as there are enough of them to go one after the other. */
static uint64_t far_chunk(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    uint64_t elem = d->elem_size == 0 ? 1 : d->elem_size, part = rg_desc_bytes(d) / d->size / FAR_PIECES;
    if (m->alpha < ALPHA_FAR || !(m->beta > 0)) return 0;
    double held = 2 * m->alpha / m->beta;
    uint64_t bytes = held < CHUNK_FAR ? (uint64_t)held : CHUNK_FAR;
    return (bytes < part ? bytes : part) / elem;
}

static void set_chunk(rg_coll_desc_t *d, const rg_algorithm_t *a, const rg_cost_model_t *m, uint32_t chunk_bytes) {
    uint64_t elem = d->elem_size == 0 ? 1 : d->elem_size, far;
    if (chunk_bytes != 0) d->chunk = chunk_bytes / elem;
    else d->chunk = a->chunk != NULL && d->size > 0 ? a->chunk(d) : CHUNK_DEFAULT / elem;
    if (chunk_bytes == 0 && d->size > 0 && same("ring", a->name, strlen(a->name)) && (far = far_chunk(d, m)) > d->chunk)
        d->chunk = far;
    if (d->chunk == 0) d->chunk = 1;
}

/* What of a description is equal on all members, and so may be looked at. */
static rg_coll_desc_t known_to_all(const rg_coll_desc_t *d) {
    static const uint64_t not_told = 0;
    rg_coll_desc_t all = *d;
    all.offs = all.in_offs = NULL;
    all.rank = 0;
    all.in_place = 0;
    if (d->kind == RG_KIND_ALL_TO_ALL && (d->lens != NULL || d->in_lens != NULL)) {
        all.lens = NULL;
        all.in_lens = &not_told;
        all.count = GUESS_BYTES / (d->elem_size == 0 ? 1 : d->elem_size);
    }
    return all;
}

static int applies(const rg_algorithm_t *a, const rg_coll_desc_t *d) {
    return a->kind == d->kind && (a->applies == NULL || a->applies(d));
}

/* A barrier through one rank is not taken unless it is asked for: a member that called something else and waits would
 * get no message from anybody, and hear of the difference from the coordinator only, seconds later. */
static int hides_callers(const rg_algorithm_t *a) { return a->kind == RG_KIND_BARRIER && strcmp(a->name, "star") == 0; }

/* A small broadcast in which not everybody speaks is not taken unless it is asked for, either: where the root of some
 * expects data itself nobody would send anything. And what is large ends with the barrier anyway. */
static int fits_its_end(const rg_algorithm_t *a, const rg_coll_desc_t *d) {
    return a->kind != RG_KIND_BROADCAST || d->rule_l != (uint32_t)a->hears_all;
}

/* The first of least cost: a tie goes to the first of the table, which is sorted by name. */
static const rg_algorithm_t *cheapest(rg_coll_desc_t *all, const rg_cost_model_t *m, uint32_t chunk_bytes) {
    const rg_algorithm_t *best = NULL;
    uint64_t chunk = 1;
    double least = 0;
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++) {
        if (!applies(*a, all) || hides_callers(*a) || !fits_its_end(*a, all)) continue;
        set_chunk(all, *a, m, chunk_bytes);
        double cost = (*a)->cost(all, m);
        if (best != NULL && cost >= least) continue;
        best = *a;
        least = cost;
        chunk = all->chunk;
    }
    all->chunk = chunk;
    return best;
}

/* Which form the barrier at the end takes. In a reduce and a gather whoever has sent its part is done and hears of no
 * one: there the barrier is what tells a member that called something else. */
static uint32_t hub_is_cheaper(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    rg_coll_desc_t all = { .kind = RG_KIND_BARRIER, .size = d->size, .elem_size = 1, .acc_size = 1, .topo = d->topo };
    if (d->size < 2 || d->kind == RG_KIND_REDUCE || d->kind == RG_KIND_GATHER) return 0;
    const rg_algorithm_t *a = cheapest(&all, m, 0);
    for (const rg_algorithm_t *const *star = rg_algorithms; *star != NULL; star++)
        if (hides_callers(*star)) return a == NULL || (*star)->cost(&all, m) < a->cost(&all, m);
    return 0;
}

const rg_algorithm_t *rg_sched_choose(rg_coll_desc_t *d, const rg_cost_model_t *m, const rg_choice_t *how,
                                      rg_chosen_t *why, char *text, size_t cap) {
    text_t t = { text, cap, 0 };
    rg_chosen_t none;
    if (why == NULL) why = &none;
    *why = RG_CHOSEN_NONE;
    if (cap != 0) text[0] = 0;
    const rg_algorithm_t *best = NULL;
    rg_coll_desc_t all = known_to_all(d);
    if (how->forced != NULL && !parse(how->forced, d->kind, &best, &t)) return NULL;
    if (best != NULL && !applies(best, &all)) {
        say(&t,
            "algorithm: %s=%s was asked for, but it cannot do %llu elements of %u bytes on %u members%s; ask for "
            "another of ",
            rg_kind_name(d->kind), best->name, (unsigned long long)all.count, d->elem_size, d->size,
            d->rank_order ? " in rank order" : "");
        say_names(&t, d->kind);
        say(&t, ", or for none");
        return NULL;
    }
    const rg_tuning_entry_t *entry = best == NULL ? rg_tuning_find(how->tuning, &all) : NULL;
    if (best != NULL) {
        *why = RG_CHOSEN_FORCED;
        set_chunk(&all, best, m, how->chunk_bytes);
    } else if (entry != NULL) {
        *why = RG_CHOSEN_TUNING;
        best = entry->alg;
        set_chunk(&all, best, m, how->chunk_bytes != 0 ? how->chunk_bytes : entry->chunk_bytes);
    } else if ((best = cheapest(&all, m, how->chunk_bytes)) != NULL) {
        *why = RG_CHOSEN_COST;
    }
    d->hub = hub_is_cheaper(d, m);
    if (best == NULL) say(&t, "algorithm: none can do this operation");
    else d->chunk = all.chunk;
    return best;
}

const rg_algorithm_t *rg_sched_select(rg_coll_desc_t *d, const rg_cost_model_t *m, const char *forced,
                                      uint32_t chunk_bytes, char *text, size_t cap) {
    rg_choice_t how = { forced, NULL, chunk_bytes };
    return rg_sched_choose(d, m, &how, NULL, text, cap);
}

size_t rg_sched_explain(const rg_coll_desc_t *d, const rg_cost_model_t *m, const rg_choice_t *how, rg_prediction_t *out,
                        size_t cap) {
    size_t n = 0;
    rg_coll_desc_t all = known_to_all(d);
    for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++) {
        if ((*a)->kind != d->kind) continue;
        if (n < cap) {
            out[n] = (rg_prediction_t){ .alg = *a, .applies = applies(*a, &all) };
            if (out[n].applies) {
                set_chunk(&all, *a, m, how->chunk_bytes);
                out[n].seconds = (*a)->cost(&all, m);
                out[n].chunk = all.chunk;
            }
        }
        n++;
    }
    return n;
}
