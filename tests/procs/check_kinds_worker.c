/* check_kinds_worker.c: the member in the kill test over all kinds. For every round it makes the shape from the round's
 * index and from what it knows of the group, writes its inputs, calls, and records what came of it: the outcome,
 * whether every element is what the contributors gave, whether the input is intact. It judges nothing else. Inputs are
 * small integers, so that sums are exact in any order; a value tells member, round, segment and place. */
#include "check_kinds.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD 8
#define SENTINEL (-1.0f)

/* ---- Kinds ----------------------------------------------------------------------------------------------------- */

const char *kind_name(enum kind k) {
    static const char *const names[] = {
#define KINDS_TEXT(name, text, flags) text,
        KINDS_LIST(KINDS_TEXT)
#undef KINDS_TEXT
    };
    return k < KIND_COUNT ? names[k] : "?";
}

int kind_is(enum kind k, char flag) {
    static const char *const flags_of[] = {
#define KINDS_FLAGS(name, text, flags) flags,
        KINDS_LIST(KINDS_FLAGS)
#undef KINDS_FLAGS
    };
    return strchr(flags_of[k], flag) != NULL;
}

int kinds_choose(const char *wanted) {
    char name[64];
    for (const char *w = wanted; *w;) {
        size_t len = strcspn(w, ",");
        uint32_t before = kinds_sh->n_kinds;
        snprintf(name, sizeof name, "%.*s", (int)len, w);
        for (int k = 0; k < KIND_COUNT && kinds_sh->n_kinds < KIND_COUNT; k++)
            if (!strcmp(name, "all") || strstr(kind_name((enum kind)k), name))
                kinds_sh->kinds[kinds_sh->n_kinds++] = (enum kind)k;
        if (kinds_sh->n_kinds == before) {
            fprintf(stderr, "KINDS: there is no kind \"%s\"; there are:", name);
            for (int k = 0; k < KIND_COUNT; k++) fprintf(stderr, " %s", kind_name((enum kind)k));
            fprintf(stderr, "\n");
            return 1;
        }
        w += len + (w[len] == ',');
    }
    return kinds_sh->n_kinds == 0;
}

enum kind kinds_of(uint64_t gen) { return kinds_sh->kinds[gen % kinds_sh->n_kinds]; }

/* The collective that a kind is a form of. */
enum base { ALL_REDUCE, BROADCAST, REDUCE, BARRIER, ALL_GATHER, REDUCE_SCATTER, GATHER, SCATTER, ALL_TO_ALL, MESSAGES };

static enum base base_of(enum kind k) {
    static const enum base bases[KIND_COUNT] = { [KIND_BROADCAST] = BROADCAST,
                                                 [KIND_REDUCE] = REDUCE,
                                                 [KIND_BARRIER] = BARRIER,
                                                 [KIND_ALL_GATHER] = ALL_GATHER,
                                                 [KIND_ALL_GATHER_V] = ALL_GATHER,
                                                 [KIND_REDUCE_SCATTER] = REDUCE_SCATTER,
                                                 [KIND_REDUCE_SCATTER_V] = REDUCE_SCATTER,
                                                 [KIND_GATHER] = GATHER,
                                                 [KIND_GATHER_V] = GATHER,
                                                 [KIND_SCATTER] = SCATTER,
                                                 [KIND_SCATTER_V] = SCATTER,
                                                 [KIND_ALL_TO_ALL] = ALL_TO_ALL,
                                                 [KIND_ALL_TO_ALL_V] = ALL_TO_ALL,
                                                 [KIND_MESSAGES] = MESSAGES,
                                                 [KIND_BATCH] = MESSAGES,
                                                 [KIND_ALL_GATHER_LIST] = ALL_GATHER,
                                                 [KIND_REDUCE_SCATTER_LIST] = REDUCE_SCATTER,
                                                 [KIND_SUB_BROADCAST] = BROADCAST,
                                                 [KIND_SUB_ALL_GATHER] = ALL_GATHER,
                                                 [KIND_SUB_REDUCE_SCATTER] = REDUCE_SCATTER,
                                                 [KIND_SUB_ALL_TO_ALL] = ALL_TO_ALL };
    return bases[k];
}

/* ---- The shape of a round -------------------------------------------------------------------------------------- */

struct round {
    struct kinds_worker *w;
    struct kinds_record *r;
    rg_group_t *g;
    enum base base;
    uint64_t gen, turn; /* turn: how often all kinds have been called before it */
    uint32_t n, me, root;
    size_t c; /* elements of the vector, or of a plain segment */
    int own_in_place;
    float *mem[2], *in, *out;
    uint64_t lens[2][KINDS_N], offs[2][KINDS_N]; /* segments: 0 of the input or of all, 1 of an all-to-all's output */
};

static float value(uint64_t id, uint64_t gen, uint64_t seg, uint64_t i) {
    return (float)((id * 977 + gen * 131 + seg * 37 + i % PERIOD * (1 + id % 3)) % 4093);
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ull;
    return x ^ x >> 29;
}

/* Half of the rounds are small, a few are of the largest size. */
static size_t vector_of(uint64_t turn) {
    uint64_t h = mix(turn + 1) % 8;
    size_t most = kinds_sh->elems;
    return h < 4 ? 1000 + h : h < 7 ? (most < 40000 ? most : 40000) : most;
}

static int segmented(enum base b) { return b >= ALL_GATHER && b <= ALL_TO_ALL; }

static uint64_t segment_len(const struct round *q, uint32_t from, uint32_t to) {
    if (!kind_is(q->r->kind, 'v')) return q->c;
    if (q->base == ALL_TO_ALL) return (from + 2 * to + q->turn) % 5 == 0 ? 0 : q->c / 2 + 13 * from + 7 * to;
    return (to + q->turn) % 4 == 0 ? 0 : q->c + 17 * to;
}

static void lay_out(struct round *q) {
    uint64_t at[2] = { 0, 0 };
    for (uint32_t s = 0; s < q->n; s++) {
        q->lens[0][s] = q->base == ALL_TO_ALL ? segment_len(q, q->me, s) : segment_len(q, s, s);
        q->lens[1][s] = q->base == ALL_TO_ALL ? segment_len(q, s, q->me) : q->lens[0][s];
        for (int k = 0; k < 2; k++) {
            q->offs[k][s] = at[k];
            at[k] += q->lens[k][s];
        }
    }
}

/* In place where the kind has that form, and where this member has both ends of it. */
static void place(struct round *q) {
    int at_root = q->me == q->root, b = (int)q->base;
    q->in = q->mem[0];
    q->out = q->mem[1];
    q->own_in_place = 0;
    if (b == BROADCAST) q->in = q->out;
    if (!q->r->in_place || b == BROADCAST || b == BARRIER || b == MESSAGES || q->r->kind == KIND_ALL_TO_ALL_V) return;
    if ((b == REDUCE || b == GATHER || b == SCATTER) && !at_root) return;
    q->own_in_place = 1;
    q->in = q->out;
    if (b == ALL_GATHER || b == GATHER) q->in = q->out + q->offs[0][q->me];
    if (b == REDUCE_SCATTER || b == SCATTER) q->out = q->in + q->offs[0][q->me];
}

static int whole_in(enum base b) { return b == REDUCE_SCATTER || b == SCATTER || b == ALL_TO_ALL; }

static void fill_segment(float *p, uint64_t n, uint64_t id, uint64_t gen, uint64_t seg) {
    float block[128 * PERIOD];
    uint64_t per = 128 * PERIOD;
    for (uint64_t i = 0; i < PERIOD; i++)
        for (uint64_t k = 0; k < 128; k++) block[k * PERIOD + i] = value(id, gen, seg, i);
    for (uint64_t i = 0; i < n; i += per) memcpy(p + i, block, (n - i < per ? n - i : per) * sizeof *p);
}

/* Elements of p that are not the sum of what the members of ids gave for the segment. */
static uint64_t differ(const float *p, uint64_t n, const uint64_t *ids, uint32_t k, uint64_t gen, uint64_t seg) {
    float want[PERIOD] = { 0 };
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < PERIOD; i++)
        for (uint32_t j = 0; j < k; j++) want[i] += value(ids[j], gen, seg, i);
    for (uint64_t i = 0; i < n; i++) wrong += p[i] != want[i % PERIOD];
    return wrong;
}

static void write_inputs(struct round *q) {
    uint64_t total = 0;
    for (uint32_t s = 0; s < q->n; s++) total += q->lens[1][s];
    if (!segmented(q->base)) total = q->c;
    for (uint64_t i = 0; i < total; i++) q->mem[1][i] = SENTINEL;
    if (q->base == BARRIER) return;
    if (!whole_in(q->base)) {
        fill_segment(q->in, segmented(q->base) ? q->lens[0][q->me] : q->c, q->w->id, q->gen, 0);
        return;
    }
    for (uint32_t s = 0; s < q->n; s++) fill_segment(q->in + q->offs[0][s], q->lens[0][s], q->w->id, q->gen, s);
}

static uint64_t input_wrong(const struct round *q) {
    uint64_t wrong = 0, id = q->w->id;
    if (q->base == BARRIER || (q->base == BROADCAST && q->me != q->root)) return 0;
    if (q->base == SCATTER && q->me != q->root) return 0;
    if (!whole_in(q->base)) return differ(q->in, segmented(q->base) ? q->lens[0][q->me] : q->c, &id, 1, q->gen, 0);
    for (uint32_t s = 0; s < q->n; s++) wrong += differ(q->in + q->offs[0][s], q->lens[0][s], &id, 1, q->gen, s);
    return wrong;
}

/* Whose data a broadcast brought: told by the first element, then compared whole. */
static uint64_t broadcast_wrong(struct round *q) {
    const struct kinds_record *r = q->r;
    uint64_t id = 0;
    for (uint32_t k = 0; k < q->n && !id; k++)
        if (!differ(q->out, q->c, &r->members[k], 1, q->gen, 0)) id = r->members[k];
    q->r->root_id = id;
    return id ? 0 : q->c;
}

/* Of a round that succeeded: elements that are not what the contributors gave. A result that only the root has is
 * looked at where it arrived, because a root named by rank may have moved up meanwhile. */
static uint64_t result_wrong(struct round *q) {
    const struct kinds_record *r = q->r;
    uint64_t wrong = 0, root_id = r->members[q->root];
    if (q->base == BARRIER || q->base == MESSAGES) return 0;
    if (q->base == BROADCAST) return broadcast_wrong(q);
    if ((q->base == REDUCE || q->base == GATHER) && !q->own_in_place && (q->me != q->root || q->out[0] == SENTINEL))
        return 0;
    /* Took itself for the root and was not: the ranks of the call were those before a loss. Nothing was written. */
    if (q->base == REDUCE && q->own_in_place && !input_wrong(q)) return 0;
    if (q->base == ALL_REDUCE || q->base == REDUCE) return differ(q->out, q->c, r->ids, r->contributors, q->gen, 0);
    if (q->base == REDUCE_SCATTER) return differ(q->out, q->lens[0][q->me], r->ids, r->contributors, q->gen, q->me);
    if (q->base == SCATTER) return differ(q->out, q->lens[0][q->me], &root_id, 1, q->gen, q->me);
    for (uint32_t s = 0; s < q->n; s++)
        wrong +=
            differ(q->out + q->offs[1][s], q->lens[1][s], &r->ids[s], 1, q->gen, q->base == ALL_TO_ALL ? q->me : 0);
    return wrong;
}

/* ---- Calls ----------------------------------------------------------------------------------------------------- */

/* A list is the plain form over three buffers that lie in the same vectors, one of them empty. */
static rg_status_t call_list(struct round *q, const rg_opts_t *o) {
    uint64_t counts[3] = { q->c / 3, 0, q->c - q->c / 3 };
    const void *in[3] = { q->in, q->in, q->in + counts[0] };
    void *out[3] = { q->out, q->out, q->out + counts[0] };
    return rg_all_reduce_list(q->g, in, out, counts, 3, RG_F32, RG_SUM, o, NULL);
}

/* The buffers of a list of gathers lie one after the other in memory of their own; what arrives is sorted into the
 * plain order, so that it is looked at like any other. */
static rg_status_t call_segment_list(struct round *q, const rg_opts_t *o) {
    uint64_t counts[2] = { q->c / 4, q->c - q->c / 4 };
    float *spare = malloc(q->c * q->n * sizeof *spare + 1);
    if (!spare) return RG_ERR_NOMEM;
    float *part[2] = { spare, spare + counts[0] * q->n };
    rg_status_t s;
    int gather = q->base == ALL_GATHER;
    if (!gather)
        for (uint32_t r = 0; r < q->n; r++)
            for (int k = 0; k < 2; k++)
                memcpy(part[k] + r * counts[k], q->in + r * q->c + (k ? counts[0] : 0), counts[k] * sizeof *spare);
    const void *in[2] = { gather ? q->in : part[0], gather ? q->in + counts[0] : part[1] };
    void *out[2] = { gather ? part[0] : q->out, gather ? part[1] : q->out + counts[0] };
    if (gather) s = rg_all_gather_list(q->g, in, out, counts, 2, RG_F32, o, NULL);
    else s = rg_reduce_scatter_list(q->g, in, out, counts, 2, RG_F32, RG_SUM, o, NULL);
    if (gather && !s)
        for (uint32_t r = 0; r < q->n; r++)
            for (int k = 0; k < 2; k++)
                memcpy(q->out + r * q->c + (k ? counts[0] : 0), part[k] + r * counts[k], counts[k] * sizeof *spare);
    free(spare);
    return s;
}

/* Everybody to the next and from the one before. Each message has a status of its own, unless a batch sums them up. */
static rg_status_t call_messages(struct round *q, const rg_opts_t *o) {
    uint32_t next = (q->me + 1) % q->n, prev = (q->me + q->n - 1) % q->n;
    rg_request_t *req[2] = { NULL, NULL };
    struct kinds_record *r = q->r;
    rg_status_t s[2];
    if (q->n < 2) return RG_OK;
    r->sent_to = r->members[next];
    r->got_from = r->members[prev];
    if (r->kind == KIND_BATCH) {
        if ((s[0] = rg_batch_begin(q->g))) return s[0];
        s[0] = rg_send(q->g, q->in, q->c, RG_F32, next, o, NULL);
        s[1] = rg_recv(q->g, q->out, q->c, RG_F32, prev, o, NULL);
        rg_status_t end = rg_batch_end(q->g, NULL);
        return s[0] ? s[0] : s[1] ? s[1] : end;
    }
    s[0] = rg_send(q->g, q->in, q->c, RG_F32, next, o, &req[0]);
    s[1] = rg_recv(q->g, q->out, q->c, RG_F32, prev, o, &req[1]);
    for (int i = 0; i < 2; i++)
        if (!s[i]) s[i] = rg_wait(req[i], NULL);
    r->sent_status = (uint32_t)-s[0];
    r->got_status = (uint32_t)-s[1];
    return s[0] ? s[0] : s[1];
}

static rg_status_t call(struct round *q, rg_opts_t *o) {
    rg_group_t *g = q->g;
    const rg_dtype_t f = RG_F32;
    int v = kind_is(q->r->kind, 'v');
    const uint64_t *lens = q->lens[0], *offs = q->turn & 4 ? q->offs[0] : NULL;
    if (q->r->kind == KIND_ALL_REDUCE_LIST) return call_list(q, o);
    if (kind_is(q->r->kind, 'l')) return call_segment_list(q, o);
    switch (q->base) {
    case ALL_REDUCE: return rg_all_reduce(g, q->in, q->out, q->c, f, RG_SUM, o, NULL);
    case BROADCAST: return rg_broadcast(g, q->out, q->c, f, q->root, o, NULL);
    case REDUCE: return rg_reduce(g, q->in, q->out, q->c, f, RG_SUM, q->root, o, NULL);
    case BARRIER: return rg_barrier(g, o, NULL);
    case ALL_GATHER:
        return v ? rg_all_gather_v(g, q->in, q->out, lens, offs, f, o, NULL)
                 : rg_all_gather(g, q->in, q->out, q->c, f, o, NULL);
    case REDUCE_SCATTER:
        return v ? rg_reduce_scatter_v(g, q->in, q->out, lens, offs, f, RG_SUM, o, NULL)
                 : rg_reduce_scatter(g, q->in, q->out, q->c, f, RG_SUM, o, NULL);
    case GATHER:
        return v ? rg_gather_v(g, q->in, q->out, lens, offs, f, q->root, o, NULL)
                 : rg_gather(g, q->in, q->out, q->c, f, q->root, o, NULL);
    case SCATTER:
        return v ? rg_scatter_v(g, q->in, q->out, lens, offs, f, q->root, o, NULL)
                 : rg_scatter(g, q->in, q->out, q->c, f, q->root, o, NULL);
    case ALL_TO_ALL:
        return v ? rg_all_to_all_v(g, q->in, q->lens[0], q->offs[0], q->out, q->lens[1], q->offs[1], f, o, NULL)
                 : rg_all_to_all(g, q->in, q->out, q->c, f, o, NULL);
    default: return call_messages(q, o);
    }
}

/* An average by weights that are powers of two of small members; told by the sum of weights, which comes back. */
static rg_status_t call_weighted(struct round *q, rg_opts_t *o, uint64_t *wrong) {
    struct kinds_record *r = q->r;
    rg_result_t *res = o->result;
    double sum = 0;
    o->weighted = RG_ON;
    o->weight = (double)(1 + q->w->id % 3);
    rg_status_t s = rg_all_reduce(q->g, q->in, q->out, q->c, RG_F32, RG_AVG, o, NULL);
    *wrong = 0;
    if (s) return s;
    for (uint32_t k = 0; k < res->contributors && k < KINDS_N; k++) sum += (double)(1 + r->ids[k] % 3);
    *wrong += res->weight_sum != sum;
    for (uint64_t i = 0; i < q->c; i++) {
        double want = 0;
        if (i >= PERIOD && q->out[i] == q->out[i - PERIOD]) continue;
        for (uint32_t k = 0; k < res->contributors && k < KINDS_N; k++)
            want += (double)(1 + r->ids[k] % 3) * (double)value(r->ids[k], q->gen, 0, i);
        want /= sum;
        double off = (double)q->out[i] - want;
        *wrong += off > want * 1e-6 || off < -want * 1e-6;
    }
    return s;
}

/* ---- A round --------------------------------------------------------------------------------------------------- */

/* What this member knows of the group; once more when it changes under the eyes. */
static int look_around(struct round *q) {
    struct kinds_record *r = q->r;
    rg_info_t a = RG_INFO_INIT, b = RG_INFO_INIT;
    do {
        int ok = rg_group_info(q->g, &a) == RG_OK && a.world_size <= KINDS_N;
        for (uint32_t k = 0; ok && k < a.world_size; k++)
            ok = rg_group_member(q->g, k, &r->members[k]) == RG_OK || rg_group_info(q->g, &b) == RG_OK;
        if (!ok || rg_group_info(q->g, &b)) return 1;
    } while (b.epoch != a.epoch || b.world_size != a.world_size);
    for (uint32_t k = a.world_size; k < KINDS_N; k++) r->members[k] = 0;
    q->n = r->world = a.world_size;
    q->me = r->rank = a.rank;
    return 0;
}

/* From here on a kill hits the operation; of a sub-group it is part that it is made. */
static void begin(struct round *q) {
    if (q->w->started > q->w->finished) return;
    q->r->start_ns = procs_now();
    __atomic_store_n(&q->w->started, q->w->started + 1, __ATOMIC_RELEASE);
}

static int one_call(struct round *q) {
    struct kinds_record *r = q->r;
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t opts = RG_OPTS_INIT;
    uint64_t weighted = 0, ids[KINDS_N] = { 0 };
    rg_status_t s;
    /* INVALID: the place of the segments was that of a member's old rank. Nothing was started: once more. */
    for (int tries = 0;; tries++) {
        PROCS_REQUIRE(look_around(q) == 0, "info");
        q->c = vector_of(q->turn);
        if (segmented(q->base)) q->c = q->c / KINDS_N + 1;
        /* The same for all, whatever they know of who is there; sub-groups may be as small as one. */
        q->root = q->r->sub ? 0 : (uint32_t)(q->turn % 3);
        lay_out(q);
        place(q);
        write_inputs(q);
        res.contributor_ids = r->kind == KIND_WEIGHTED ? r->ids : ids;
        res.contributor_cap = KINDS_N;
        opts.result = &res;
        opts.on_fault = (rg_on_fault_t)r->on_fault;
        if (q->base == MESSAGES) opts.timeout_ms = 5000; /* a host may be busy */
        r->count = q->c;
        begin(q);
        s = r->kind == KIND_WEIGHTED ? call_weighted(q, &opts, &weighted) : call(q, &opts);
        r->end_ns = procs_now();
        if (s != RG_ERR_INVALID || tries == 4) break;
    }
    r->status = (uint32_t)-s;
    snprintf(r->text, sizeof r->text, "%.150s", res.text);
    r->retries = res.retries;
    if (kind_pairs(r->kind)) {
        uint64_t from = q->n > 1 ? r->members[(q->me + q->n - 1) % q->n] : 0;
        if (q->n > 1 && r->got_status == 0 && s == RG_OK) r->wrong = differ(q->out, q->c, &from, 1, q->gen, 0);
    } else if (s == RG_OK) {
        r->epoch = res.epoch;
        r->contributors = res.contributors;
        memcpy(r->ids, res.contributor_ids == r->ids ? r->ids : ids, sizeof ids);
        int shape = !kind_shaped(r->kind) || r->contributors == q->n;
        r->wrong = r->kind == KIND_WEIGHTED ? weighted : shape ? result_wrong(q) : 0;
    }
    r->intact = (s == RG_OK && q->own_in_place) || (s == RG_OK && q->base == BROADCAST) || input_wrong(q) == 0;
    return 0;
}

static int one_round(rg_group_t *g, struct kinds_worker *w, uint64_t gen, float *mem[2]) {
    struct round q = { .w = w, .g = g, .gen = gen, .turn = gen / kinds_sh->n_kinds, .mem = { mem[0], mem[1] } };
    struct kinds_record *r = q.r = &w->log[w->started % KINDS_LOG];
    rg_info_t info = RG_INFO_INIT;
    rg_group_t *child = NULL;
    int rc = 0;
    memset(r, 0, sizeof *r);
    r->gen = gen;
    r->kind = kinds_of(gen);
    q.base = base_of(r->kind);
    r->on_fault = q.turn & 1 ? RG_RETURN : RG_RETRY;
    r->in_place = (uint32_t)(q.turn >> 1 & 1) && !kind_is(r->kind, 'l');
    if (r->kind == KIND_ALL_REDUCE_LIST) r->in_place = (uint32_t)(q.turn >> 1 & 1);
    PROCS_REQUIRE(rg_group_info(g, &info) == RG_OK, "info");
    r->everybody = info.world_size;
    if (kind_is(r->kind, 'g')) {
        r->sub = 1;
        r->colour = kinds_colour(w->id);
        begin(&q);
        rg_status_t s = rg_group_split(g, r->colour, 1000 - info.rank, NULL, &child);
        char text[256];
        rg_group_errmsg(g, text, sizeof text);
        PROCS_REQUIRE(s == RG_OK, "split in round %llu: %s: %s", (unsigned long long)gen, rg_status_name(s), text);
        q.g = child;
    }
    rc = one_call(&q);
    if (child) rg_group_destroy(child);
    __atomic_store_n(&w->finished, w->started, __ATOMIC_RELEASE);
    return rc;
}

/* Rounds begin when the test lets them; who waits gives way, and sleeps only when it takes long. */
static int may_go(uint64_t gen) {
    for (int i = 0; i < 20000; i++) {
        if (gen <= __atomic_load_n(&kinds_sh->limit_gen, __ATOMIC_ACQUIRE)) return 1;
        sched_yield();
    }
    return PROCS_WAIT(gen <= __atomic_load_n(&kinds_sh->limit_gen, __ATOMIC_ACQUIRE), 90);
}

static int worker_loop(struct kinds_worker *w, rg_group_t *g, float *mem[2]) {
    rg_info_t info = RG_INFO_INIT;
    PROCS_REQUIRE(rg_group_info(g, &info) == RG_OK, "info");
    w->id = info.member_id;
    uint64_t gen = info.boundary;
    for (;;) {
        rg_change_t change = RG_CHANGE_INIT;
        char text[256];
        w->gen = gen;
        PROCS_REQUIRE(may_go(gen), "the test does not follow");
        if (one_round(g, w, gen, mem)) return 1;
        if (kinds_sh->stop_gen && gen >= kinds_sh->stop_gen) break;
        rg_status_t s = rg_group_boundary(g, &change);
        rg_group_errmsg(g, text, sizeof text);
        PROCS_REQUIRE(s == RG_OK, "boundary after %llu: %s: %s", (unsigned long long)gen, rg_status_name(s), text);
        PROCS_REQUIRE(change.boundary == gen + 1, "boundary %llu follows %llu", (unsigned long long)change.boundary,
                      (unsigned long long)gen);
        gen = change.boundary;
    }
    return rg_group_leave(g) != RG_OK;
}

/* Members with even numbers use memory that others can map. */
int kinds_worker_body(int slot, void *first) {
    struct kinds_worker *w = &kinds_sh->workers[slot];
    rg_config_t cfg = procs_config(kinds_sh->address, "kinds", first ? KINDS_N : 1, (uint32_t)slot);
    size_t bytes = (kinds_sh->elems * 2 + 4096) * sizeof(float);
    rg_group_t *g = NULL;
    rg_error_t err;
    float *mem[2] = { NULL, NULL };
    int rc = 0;
    for (int i = 0; i < 2; i++) {
        void *p = NULL;
        if (slot & 1) p = malloc(bytes);
        else if (rg_alloc(bytes, &p, &err)) p = NULL;
        mem[i] = p;
        if (!p) rc = 1;
    }
    if (rc) procs_complain(__FILE__, __LINE__, "memory", "%zu bytes", bytes);
    if (!rc && rg_group_join(&cfg, &g, &err)) {
        procs_complain(__FILE__, __LINE__, "join", "%s", err.text);
        rc = 1;
    }
    if (!rc) rc = worker_loop(w, g, mem);
    rg_group_destroy(g);
    for (int i = 0; i < 2; i++) {
        if (slot & 1) free(mem[i]);
        else rg_free_memory(mem[i]);
    }
    if (rc) w->failed = 1;
    return rc;
}
