/* stress_ops.c: one operation of a worker of `regroup stress`: its shape from a key that all members have alike and
 * from what the caller knows of the group, its inputs, the call, and the comparison of every element with what the
 * contributors gave, which anybody can compute: small integers, exact in any order of adding, that tell key, member,
 * segment and place. The period is a prime, so that what lands a power of two away does not look right. It relies on
 * regroup.h only and must not judge a result by what the library says about it, but for who contributed. */
#include "pattern.h"
#include "stress.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD 61u
#define SENTINEL 0xa5

enum base { ALL_REDUCE, BROADCAST, REDUCE, BARRIER, ALL_GATHER, REDUCE_SCATTER, GATHER, SCATTER, ALL_TO_ALL, MESSAGES };

const char *stress_kind_name(stress_kind_t k) {
    static const char *const names[] = {
#define STRESS_TEXT(name, text, flags) text,
        STRESS_KINDS(STRESS_TEXT)
#undef STRESS_TEXT
    };
    return k < STRESS_KIND_COUNT ? names[k] : "?";
}

int stress_kind_is(stress_kind_t k, char flag) {
    static const char *const all[] = {
#define STRESS_FLAGS(name, text, flags) flags,
        STRESS_KINDS(STRESS_FLAGS)
#undef STRESS_FLAGS
    };
    return k < STRESS_KIND_COUNT && strchr(all[k], flag) != NULL;
}

uint64_t stress_mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

uint64_t stress_hash(const void *p, size_t bytes) {
    const uint8_t *b = p;
    uint64_t h = 0x9e3779b97f4a7c15ull ^ bytes, v;
    for (; bytes >= 8; bytes -= 8, b += 8) {
        memcpy(&v, b, 8);
        h = (h ^ v) * 0xbf58476d1ce4e5b9ull;
        h ^= h >> 29;
    }
    for (; bytes; bytes--) h = (h ^ *b++) * 0x100000001b3ull;
    return stress_mix(h);
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

static double value(const struct stress_call *c, uint64_t id, uint64_t seg, uint64_t p) {
    uint64_t h = stress_mix(c->key ^ stress_mix(id * 64 + seg + 1) ^ (p + 1) * 0x9e3779b97f4a7c15ull);
    if (c->op == RG_PROD) return (double)(1 + h % 2);
    return (double)(c->elem == 1 ? h % 4 : c->elem == 2 ? h % 8 : h % 4093); /* sums of 32 stay exact */
}

static double weight_of(uint64_t id) { return (double)(1 + id % 3); }

/* What the reduction over the members of ids is, at place p. */
static double reduced(const struct stress_call *c, const uint64_t *ids, uint32_t k, uint64_t seg, uint64_t p) {
    int weighted = c->rec.kind == STRESS_WEIGHTED;
    double v = weighted ? 0 : value(c, ids[0], seg, p), sum = 0;
    for (uint32_t j = weighted ? 0 : 1; j < k; j++) {
        double w = value(c, ids[j], seg, p);
        if (weighted) v += w * weight_of(ids[j]);
        else if (c->op == RG_PROD) v *= w;
        else if (c->op == RG_MIN) v = w < v ? w : v;
        else if (c->op == RG_MAX) v = w > v ? w : v;
        else v += w;
    }
    for (uint32_t j = 0; weighted && j < k; j++) sum += weight_of(ids[j]);
    return weighted ? v / sum : c->op == RG_AVG ? v / k : v;
}

/* Elements of p that are not `want`, a period of values. Averages may be rounded once more on the way. */
static uint64_t differ_from(const struct stress_call *c, const uint8_t *p, uint64_t n, const double *want) {
    uint8_t block[PERIOD * 16 * 8];
    size_t whole = PERIOD * 16 * c->elem;
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < PERIOD * 16; i++) pattern_store(c->dtype, block + i * c->elem, want[i % PERIOD]);
    for (uint64_t at = 0; at < n; at += PERIOD * 16) {
        size_t bytes = (n - at) * c->elem < whole ? (n - at) * c->elem : whole;
        if (!memcmp(p + at * c->elem, block, bytes)) continue;
        for (uint64_t i = 0; i * c->elem < bytes; i++) {
            double got = pattern_load(c->dtype, p + (at + i) * c->elem), w = want[i % PERIOD];
            double off = got > w ? got - w : w - got;
            wrong += !(c->op == RG_AVG ? off <= w * 1e-6 : off == 0);
        }
    }
    return wrong;
}

static uint64_t differ(const struct stress_call *c, const uint8_t *p, uint64_t n, const uint64_t *ids, uint32_t k,
                       uint64_t seg) {
    double want[PERIOD];
    if (!k) return n;
    for (uint64_t i = 0; i < PERIOD; i++) want[i] = reduced(c, ids, k, seg, i);
    return differ_from(c, p, n, want);
}

/* One member's own data, as it gave or sent them. */
static uint64_t differ_own(const struct stress_call *c, const uint8_t *p, uint64_t n, uint64_t id, uint64_t seg) {
    double want[PERIOD];
    for (uint64_t i = 0; i < PERIOD; i++) want[i] = value(c, id, seg, i);
    return differ_from(c, p, n, want);
}

static void fill(const struct stress_call *c, uint8_t *p, uint64_t n, uint64_t seg) {
    uint8_t block[PERIOD * 16 * 8];
    uint64_t per = PERIOD * 16;
    for (uint64_t i = 0; i < per; i++) pattern_store(c->dtype, block + i * c->elem, value(c, c->id, seg, i % PERIOD));
    for (uint64_t i = 0; i < n; i += per) memcpy(p + i * c->elem, block, (n - i < per ? n - i : per) * c->elem);
}

/* ---- Shape ----------------------------------------------------------------------------------------------------- */

static enum base base_of(stress_kind_t k) {
    static const uint8_t bases[STRESS_KIND_COUNT] = { [STRESS_BROADCAST] = BROADCAST,
                                                      [STRESS_REDUCE] = REDUCE,
                                                      [STRESS_BARRIER] = BARRIER,
                                                      [STRESS_ALL_GATHER] = ALL_GATHER,
                                                      [STRESS_ALL_GATHER_V] = ALL_GATHER,
                                                      [STRESS_REDUCE_SCATTER] = REDUCE_SCATTER,
                                                      [STRESS_REDUCE_SCATTER_V] = REDUCE_SCATTER,
                                                      [STRESS_GATHER] = GATHER,
                                                      [STRESS_GATHER_V] = GATHER,
                                                      [STRESS_SCATTER] = SCATTER,
                                                      [STRESS_SCATTER_V] = SCATTER,
                                                      [STRESS_ALL_TO_ALL] = ALL_TO_ALL,
                                                      [STRESS_ALL_TO_ALL_V] = ALL_TO_ALL,
                                                      [STRESS_MESSAGES] = MESSAGES,
                                                      [STRESS_BATCH] = MESSAGES };
    return (enum base)bases[k];
}

static int segmented(uint32_t b) { return b >= ALL_GATHER && b <= ALL_TO_ALL; }
static int whole_in(uint32_t b) { return b == REDUCE_SCATTER || b == SCATTER || b == ALL_TO_ALL; }

/* Uneven segments are a little longer than even ones, by number. */
size_t stress_buffer_bytes(const struct stress_setup *s) {
    return s->bytes + 8ull * (64 + (size_t)s->peers * (1 + 20u * s->peers));
}

static rg_dtype_t draw_dtype(uint64_t h, int floats) {
    static const rg_dtype_t all[] = { RG_F32, RG_F64, RG_I32, RG_U64, RG_F32, RG_U8, RG_BF16, RG_F16, RG_I64, RG_U32 };
    return all[h % (floats ? 2 : sizeof all / sizeof *all)];
}

void stress_call_prepare(struct stress_call *c) {
    struct stress_record *r = &c->rec;
    uint64_t h = stress_mix(c->key), most = c->setup->bytes / 8, size = h % 16;
    c->base = base_of((stress_kind_t)r->kind);
    int reduces = c->base == ALL_REDUCE || c->base == REDUCE || c->base == REDUCE_SCATTER;
    c->op = (rg_op_t)(reduces ? (h >> 8) % RG_OP_COUNT : RG_SUM);
    if (r->kind == STRESS_WEIGHTED) c->op = RG_AVG;
    c->dtype = draw_dtype(h >> 12, c->op == RG_AVG || r->kind == STRESS_WEIGHTED);
    c->elem = rg_dtype_size(c->dtype);
    if (c->op == RG_PROD && c->elem < 4) c->op = RG_MAX;
    /* Most are small, some of a middle size, a few as large as they come. */
    c->c = size == 0 ? 0 : size < 9 ? 1 + (h >> 20) % 1000 : size < 14 ? (h >> 20) % 40000 : most - (h >> 20) % 64;
    if (c->c > most) c->c = most;
    if (segmented(c->base)) c->c = c->c / c->setup->peers + (size != 0);
    /* The same for all, whatever they know of who is there. */
    r->root = c->root = (uint32_t)(r->sub ? 0 : (h >> 40) % (c->setup->peers >= 6 ? 3 : 2));
    r->in_place = (h >> 44) % 3 == 0;
    r->on_fault = (h >> 48) & 1 ? RG_RETURN : RG_RETRY;
    r->dtype = c->dtype;
    r->op = c->op;
    r->count = c->c;
}

static uint64_t segment_len(const struct stress_call *c, uint32_t from, uint32_t to) {
    if (!stress_kind_is((stress_kind_t)c->rec.kind, 'v')) return c->c;
    if (c->base == ALL_TO_ALL) return (from + 2 * to + c->key) % 5 == 0 ? 0 : c->c / 2 + 13 * from + 7 * to;
    return (to + c->key) % 4 == 0 ? 0 : c->c + 17 * to;
}

static void lay_out(struct stress_call *c) {
    uint64_t at[2] = { 0, 0 };
    for (uint32_t s = 0; s < c->n; s++) {
        c->lens[0][s] = c->base == ALL_TO_ALL ? segment_len(c, c->me, s) : segment_len(c, s, s);
        c->lens[1][s] = c->base == ALL_TO_ALL ? segment_len(c, s, c->me) : c->lens[0][s];
        for (int k = 0; k < 2; k++) {
            c->offs[k][s] = at[k];
            at[k] += c->lens[k][s];
        }
    }
}

/* In place where the kind has that form, and where this member has both ends of it. */
static void place(struct stress_call *c) {
    int at_root = c->me == c->root;
    uint32_t b = c->base;
    c->in = c->mem[0];
    c->out = c->mem[1];
    c->own_in_place = 0;
    if (b == BROADCAST) c->in = c->out;
    if (!c->rec.in_place || b == BROADCAST || b == BARRIER || b == MESSAGES || c->rec.kind == STRESS_ALL_TO_ALL_V)
        return;
    if ((b == REDUCE || b == GATHER || b == SCATTER) && !at_root) return;
    c->own_in_place = 1;
    c->in = c->out;
    if (b == ALL_GATHER || b == GATHER) c->in = c->out + c->offs[0][c->me] * c->elem;
    if (b == REDUCE_SCATTER || b == SCATTER) c->out = c->in + c->offs[0][c->me] * c->elem;
}

static void write_inputs(struct stress_call *c) {
    uint64_t total = 0;
    for (uint32_t s = 0; s < c->n; s++) total += c->lens[1][s];
    if (!segmented(c->base)) total = c->c;
    memset(c->mem[1], SENTINEL, total * c->elem);
    if (c->base == BARRIER) return;
    if (!whole_in(c->base)) {
        fill(c, c->in, segmented(c->base) ? c->lens[0][c->me] : c->c, 0);
        return;
    }
    for (uint32_t s = 0; s < c->n; s++) fill(c, c->in + c->offs[0][s] * c->elem, c->lens[0][s], s);
}

static uint64_t input_wrong(const struct stress_call *c) {
    uint64_t wrong = 0;
    if (c->base == BARRIER || (c->base == BROADCAST && c->me != c->root)) return 0;
    if (c->base == SCATTER && c->me != c->root) return 0;
    if (!whole_in(c->base)) return differ_own(c, c->in, segmented(c->base) ? c->lens[0][c->me] : c->c, c->id, 0);
    for (uint32_t s = 0; s < c->n; s++)
        wrong += differ_own(c, c->in + c->offs[0][s] * c->elem, c->lens[0][s], c->id, s);
    return wrong;
}

/* ---- Results --------------------------------------------------------------------------------------------------- */

/* Whose data a broadcast brought: a root named by rank may have moved up meanwhile. */
static uint64_t broadcast_wrong(struct stress_call *c) {
    if (c->c == 0) return 0;
    for (uint32_t k = 0; k < c->n; k++)
        if (!differ_own(c, c->out, c->c, c->rec.members[k], 0)) {
            c->rec.root_id = c->rec.members[k];
            return 0;
        }
    return c->c;
}

static int untouched(const struct stress_call *c, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i++)
        if (c->out[i] != SENTINEL) return 0;
    return 1;
}

/* Of an operation that succeeded: elements that are not what the contributors gave. A result that only the root has is
 * looked at where it arrived. */
static uint64_t result_wrong(struct stress_call *c) {
    const struct stress_record *r = &c->rec;
    uint64_t wrong = 0, root_id = r->members[c->root];
    if (c->base == BARRIER || c->base == MESSAGES) return 0;
    if (c->base == BROADCAST) return broadcast_wrong(c);
    if ((c->base == REDUCE || c->base == GATHER) && !c->own_in_place &&
        untouched(c, (c->base == REDUCE ? c->c : c->offs[0][c->n - 1] + c->lens[0][c->n - 1]) * c->elem))
        return 0;
    /* Took itself for the root and was not: the ranks of the call were those before a loss. Nothing was written. */
    if (c->base == REDUCE && c->own_in_place && !input_wrong(c)) return 0;
    if (c->base == ALL_REDUCE || c->base == REDUCE) return differ(c, c->out, c->c, r->ids, r->contributors, 0);
    if (c->base == REDUCE_SCATTER) return differ(c, c->out, c->lens[0][c->me], r->ids, r->contributors, c->me);
    if (c->base == SCATTER) return differ_own(c, c->out, c->lens[0][c->me], root_id, c->me);
    for (uint32_t s = 0; s < c->n; s++)
        wrong += differ_own(c, c->out + c->offs[1][s] * c->elem, c->lens[1][s], r->ids[s],
                            c->base == ALL_TO_ALL ? c->me : 0);
    return wrong;
}

static size_t result_bytes(const struct stress_call *c) {
    if (c->base == BARRIER || c->base == MESSAGES) return 0;
    if (c->base == REDUCE_SCATTER || c->base == SCATTER) return c->lens[0][c->me] * c->elem;
    if (!segmented(c->base)) return c->c * c->elem;
    return (c->offs[1][c->n - 1] + c->lens[1][c->n - 1]) * c->elem;
}

/* ---- Calls ----------------------------------------------------------------------------------------------------- */

/* A list is the plain form over three buffers that lie in the same vectors, one of them empty. */
static rg_status_t call_list(struct stress_call *c, rg_request_t **req) {
    uint64_t counts[3] = { c->c / 3, 0, c->c - c->c / 3 };
    const void *in[3] = { c->in, c->in, c->in + counts[0] * c->elem };
    void *out[3] = { c->out, c->out, c->out + counts[0] * c->elem };
    return rg_all_reduce_list(c->group, in, out, counts, 3, c->dtype, c->op, &c->opts, req);
}

/* Everybody to the next and from the one before. Each message has a status of its own, unless a batch sums them up. */
static rg_status_t call_messages(struct stress_call *c) {
    uint32_t next = (c->me + 1) % c->n, prev = (c->me + c->n - 1) % c->n;
    rg_request_t *req[2] = { NULL, NULL };
    struct stress_record *r = &c->rec;
    rg_opts_t o = c->opts;
    rg_status_t s[2];
    if (c->n < 2) return RG_OK;
    r->sent_to = r->members[next];
    r->got_from = r->members[prev];
    if (r->kind == STRESS_BATCH) {
        o.result = NULL;
        if ((s[0] = rg_batch_begin(c->group))) return s[0];
        s[0] = rg_send(c->group, c->in, c->c, c->dtype, next, &o, NULL);
        s[1] = rg_recv(c->group, c->out, c->c, c->dtype, prev, &o, NULL);
        rg_status_t end = rg_batch_end(c->group, NULL);
        rg_group_errmsg(c->group, r->text, sizeof r->text);
        return s[0] ? s[0] : s[1] ? s[1] : end;
    }
    o.result = NULL;
    s[0] = rg_send(c->group, c->in, c->c, c->dtype, next, &o, &req[0]);
    s[1] = rg_recv(c->group, c->out, c->c, c->dtype, prev, &o, &req[1]);
    for (int i = 0; i < 2; i++) {
        rg_result_t res = RG_RESULT_INIT;
        if (!s[i]) s[i] = rg_wait(req[i], &res);
        if (s[i]) snprintf(c->res.text, sizeof c->res.text, "%s", res.text);
    }
    r->sent_status = s[0];
    r->got_status = s[1];
    return s[0] ? s[0] : s[1];
}

static rg_status_t call(struct stress_call *c, rg_request_t **req) {
    rg_group_t *g = c->group;
    const rg_opts_t *o = &c->opts;
    rg_dtype_t t = c->dtype;
    int v = stress_kind_is((stress_kind_t)c->rec.kind, 'v');
    const uint64_t *lens = c->lens[0], *offs = c->key & 4 ? c->offs[0] : NULL;
    if (stress_kind_is((stress_kind_t)c->rec.kind, 'l')) return call_list(c, req);
    switch ((enum base)c->base) {
    case ALL_REDUCE: return rg_all_reduce(g, c->in, c->out, c->c, t, c->op, o, req);
    case BROADCAST: return rg_broadcast(g, c->out, c->c, t, c->root, o, req);
    case REDUCE: return rg_reduce(g, c->in, c->out, c->c, t, c->op, c->root, o, req);
    case BARRIER: return rg_barrier(g, o, req);
    case ALL_GATHER:
        return v ? rg_all_gather_v(g, c->in, c->out, lens, offs, t, o, req)
                 : rg_all_gather(g, c->in, c->out, c->c, t, o, req);
    case REDUCE_SCATTER:
        return v ? rg_reduce_scatter_v(g, c->in, c->out, lens, offs, t, c->op, o, req)
                 : rg_reduce_scatter(g, c->in, c->out, c->c, t, c->op, o, req);
    case GATHER:
        return v ? rg_gather_v(g, c->in, c->out, lens, offs, t, c->root, o, req)
                 : rg_gather(g, c->in, c->out, c->c, t, c->root, o, req);
    case SCATTER:
        return v ? rg_scatter_v(g, c->in, c->out, lens, offs, t, c->root, o, req)
                 : rg_scatter(g, c->in, c->out, c->c, t, c->root, o, req);
    case ALL_TO_ALL:
        return v ? rg_all_to_all_v(g, c->in, lens, c->offs[0], c->out, c->lens[1], c->offs[1], t, o, req)
                 : rg_all_to_all(g, c->in, c->out, c->c, t, o, req);
    case MESSAGES: break;
    }
    return call_messages(c);
}

/* What this member knows of the group; once more when it changes under the eyes. */
static rg_status_t look_around(struct stress_call *c) {
    struct stress_record *r = &c->rec;
    rg_info_t a = RG_INFO_INIT, b = RG_INFO_INIT;
    rg_status_t s;
    do {
        if ((s = rg_group_info(c->group, &a))) return s;
        for (uint32_t k = 0; k < a.world_size && k < STRESS_PEERS; k++)
            if (rg_group_member(c->group, k, &r->members[k])) break; /* there are fewer now: seen below */
        if ((s = rg_group_info(c->group, &b))) return s;
    } while (b.epoch != a.epoch || b.world_size != a.world_size);
    for (uint32_t k = a.world_size; k < STRESS_PEERS; k++) r->members[k] = 0;
    c->n = r->world = a.world_size;
    c->me = r->rank = a.rank;
    return a.world_size > STRESS_PEERS || !a.world_size ? RG_ERR_BUG : RG_OK;
}

/* INVALID: the place of a segment was that of a member's old rank. Nothing was started: once more. */
void stress_call_start(struct stress_call *c, int blocking) {
    struct stress_record *r = &c->rec;
    rg_status_t s;
    for (int tries = 0;; tries++) {
        if (!r->start_ns) r->start_ns = tool_now_ns();
        if ((s = look_around(c))) break;
        lay_out(c);
        place(c);
        write_inputs(c);
        c->res = (rg_result_t)RG_RESULT_INIT;
        c->opts = (rg_opts_t)RG_OPTS_INIT;
        c->res.contributor_ids = r->ids;
        c->res.contributor_cap = STRESS_PEERS;
        c->opts.result = blocking ? &c->res : NULL;
        c->opts.on_fault = (rg_on_fault_t)r->on_fault;
        c->opts.tag = c->tag;
        if (r->kind == STRESS_WEIGHTED) {
            c->opts.weighted = RG_ON;
            c->opts.weight = weight_of(c->id);
        }
        if (c->base == MESSAGES) c->opts.timeout_ms = STRESS_MESSAGE_MS;
        c->req = NULL;
        s = call(c, blocking ? NULL : &c->req);
        if (s != RG_ERR_INVALID || tries == 4) break;
    }
    r->status = s;
    if (s == RG_ERR_INVALID) rg_group_errmsg(c->group, c->res.text, sizeof c->res.text);
}

/* Plants the faults that the checks have to find. */
static void plant(struct stress_call *c, size_t bytes, int looked_at) {
    enum stress_plant p = c->setup->plant;
    if (c->rec.step < 3) return;
    if (p == STRESS_PLANT_INPUT && !looked_at && c->base == ALL_REDUCE && !c->own_in_place && c->c) c->in[0] ^= 1;
    if (c->rec.status || !bytes) return;
    if (p == STRESS_PLANT_VALUE && !looked_at) c->out[bytes / 2] ^= 4;
    if (p == STRESS_PLANT_RESULT && looked_at) c->out[bytes / 2] ^= 4;
}

static void look_at_result(struct stress_call *c, int planted) {
    struct stress_record *r = &c->rec;
    rg_status_t s = (rg_status_t)r->status;
    size_t bytes = c->n ? result_bytes(c) : 0;
    if (planted) plant(c, bytes, 0);
    if (c->base == MESSAGES) {
        uint64_t from = c->n > 1 ? r->members[(c->me + c->n - 1) % c->n] : 0;
        if (c->n > 1 && s == RG_OK) r->wrong = differ_own(c, c->out, c->c, from, 0);
    } else if (s == RG_OK) {
        r->epoch = c->res.epoch;
        r->contributors = c->res.contributors;
        int shape = !stress_kind_is((stress_kind_t)r->kind, 's') || r->contributors == c->n;
        r->wrong = shape && r->contributors <= STRESS_PEERS ? result_wrong(c) : 0;
        if (r->kind == STRESS_WEIGHTED) {
            double sum = 0;
            for (uint32_t k = 0; k < r->contributors; k++) sum += weight_of(r->ids[k]);
            r->wrong += c->res.weight_sum != sum;
        }
    }
    r->intact = !c->n || (s == RG_OK && (c->own_in_place || c->base == BROADCAST)) || input_wrong(c) == 0;
    if (planted) plant(c, bytes, 1);
    if (s == RG_OK && bytes) r->hash = stress_hash(c->out, bytes);
}

void stress_call_finish(struct stress_call *c, struct stress_now *now) {
    struct stress_record *r = &c->rec;
    if (c->req) {
        r->status = rg_wait(c->req, &c->res);
        c->req = NULL;
        if (r->status == RG_ERR_INVALID) stress_call_start(c, 1);
    }
    r->end_ns = tool_now_ns();
    now->start_ns = 0; /* what follows is this program's own time */
    r->retries = c->res.retries;
    r->fault_ns = c->res.fault_ns;
    if (c->res.text[0]) snprintf(r->text, sizeof r->text, "%.150s", c->res.text);
    look_at_result(c, c->planted);
    if (c->planted && c->setup->plant == STRESS_PLANT_HANG && r->step >= 3) {
        now->start_ns = r->start_ns - 60000000000ull; /* as if it had been in it for a minute */
        for (;;) poll(NULL, 0, 1000);
    }
}
