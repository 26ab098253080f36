/* schedule.c: the builder. Algorithms append steps here; the builder numbers messages, keeps dependencies backward
 * (so no schedule can have a local cycle), and seals the schedule with the DONE barrier of rule L.
 * Relies on nothing but malloc. Must not: do I/O, read a clock, keep state between calls, or look at data. The
 * first error sticks in s->error and later calls do nothing, so that algorithms need not check every call. */
#include "sched.h"

#include <stdlib.h>
#include <string.h>

/* About what a schedule may grow to by pipelining; 64 Ki steps are 6 MiB. */
#define STEPS_TARGET 65536u
/* Up to this many ranks a dissemination is one round in which everybody writes to everybody. */
#define ONE_ROUND 8u
/* More dependencies than this are joined by a step of no length first. */
#define JOIN_ABOVE 4u

/* What rg_sched_scratch() gives, chained so that sealing can free it. */
typedef struct scratch {
    struct scratch *next;
    _Alignas(8) uint32_t ids[];
} scratch_t;

rg_span_t rg_span(rg_buf_t buf, uint64_t off, uint64_t len) {
    rg_span_t s = { buf, off, len };
    return s;
}

rg_span_t rg_span_part(rg_span_t whole, uint64_t parts, uint64_t index) {
    uint64_t unit = whole.len / parts >= 512 ? 64 : 1;
    uint64_t units = whole.len / unit + (whole.len % unit != 0);
    uint64_t each = units / parts, more = units % parts;
    uint64_t first = each * index + (index < more ? index : more);
    uint64_t last = first + each + (index < more);
    uint64_t from = first * unit, to = last * unit;
    if (from > whole.len) from = whole.len;
    if (to > whole.len) to = whole.len;
    return rg_span(whole.buf, whole.off + from, to - from);
}

uint32_t rg_sched_pieces(uint64_t len, uint64_t chunk, uint64_t steps_per_piece) {
    uint64_t pieces = chunk == 0 ? 1 : len / chunk + (len % chunk != 0);
    uint64_t most = steps_per_piece == 0 ? RG_PIECES_MAX : STEPS_TARGET / steps_per_piece;
    if (most > RG_PIECES_MAX) most = RG_PIECES_MAX;
    if (pieces > most) pieces = most;
    return pieces == 0 ? 1 : (uint32_t)pieces;
}

uint32_t *rg_sched_scratch(rg_schedule_t *s, size_t n) {
    if (s->error != RG_OK) return NULL;
    scratch_t *block =
        n > (SIZE_MAX - sizeof *block) / sizeof(uint32_t) ? NULL : malloc(sizeof *block + n * sizeof(uint32_t));
    if (block == NULL) {
        s->error = RG_ERR_NOMEM;
        return NULL;
    }
    memset(block->ids, 0xff, n * sizeof(uint32_t)); /* RG_NO_STEP */
    block->next = s->scratch;
    s->scratch = block;
    return block->ids;
}

static void scratch_free(rg_schedule_t *s) {
    while (s->scratch != NULL) {
        scratch_t *block = s->scratch;
        s->scratch = block->next;
        free(block);
    }
}

static int grow(rg_schedule_t *s, void **array, uint32_t *cap, uint64_t need, size_t elem) {
    if (need <= *cap) return 1;
    uint64_t size = *cap == 0 ? 64 : (uint64_t)*cap * 2;
    while (size < need) size *= 2;
    void *p = size < RG_NO_STEP ? realloc(*array, (size_t)size * elem) : NULL;
    if (p == NULL) {
        s->error = RG_ERR_NOMEM;
        return 0;
    }
    *array = p;
    *cap = (uint32_t)size;
    return 1;
}

static int span_ok(const rg_schedule_t *s, rg_span_t x) {
    if (x.off > UINT64_MAX - x.len) return 0;
    return x.len == 0 || x.buf == RG_BUF_TMP || x.off + x.len <= s->elems[x.buf];
}

/* Whether a step looks at this rank's input, which a gate may have to make ready first. */
static int reads_in(const rg_step_t *x) {
    return (x->a.buf == RG_BUF_IN && x->a.len != 0) || (x->b.buf == RG_BUF_IN && x->b.len != 0);
}

static void use_tmp(rg_schedule_t *s, rg_span_t x) {
    if (x.buf == RG_BUF_TMP && x.len != 0 && x.off + x.len > s->tmp_elems) s->tmp_elems = x.off + x.len;
}

/* Appends `step`, which has everything but its dependencies, and gives its index. */
static uint32_t append(rg_schedule_t *s, const rg_step_t *step, const uint32_t *deps, uint32_t n_deps) {
    if (s->error != RG_OK) return RG_NO_STEP;
    if (n_deps >= RG_MAX_DEPS || !span_ok(s, step->dst) || !span_ok(s, step->a) || !span_ok(s, step->b)) {
        s->error = RG_ERR_INVALID;
        return RG_NO_STEP;
    }
    if (!grow(s, (void **)&s->steps, &s->cap_steps, (uint64_t)s->n_steps + 1, sizeof *s->steps) ||
        !grow(s, (void **)&s->deps, &s->cap_deps, (uint64_t)s->n_deps + n_deps + 1, sizeof *s->deps))
        return RG_NO_STEP;
    rg_step_t *x = &s->steps[s->n_steps];
    *x = *step;
    x->first_dep = s->n_deps;
    for (uint32_t i = 0; i < n_deps; i++) {
        if (deps[i] == RG_NO_STEP) continue;
        if (deps[i] >= s->n_steps) {
            s->error = RG_ERR_INVALID;
            return RG_NO_STEP;
        }
        s->deps[s->n_deps++] = deps[i];
    }
    if (s->gate != RG_NO_STEP && reads_in(step)) s->deps[s->n_deps++] = s->gate;
    x->n_deps = (uint16_t)(s->n_deps - x->first_dep);
    use_tmp(s, x->dst);
    use_tmp(s, x->a);
    use_tmp(s, x->b);
    return s->n_steps++;
}

/* The same, for messages: checks the peer and takes the next ordinal of its direction. */
static uint32_t append_message(rg_schedule_t *s, rg_step_t *step, uint32_t *ord, const uint32_t *deps,
                               uint32_t n_deps) {
    if (s->error != RG_OK) return RG_NO_STEP;
    if (step->peer >= s->desc.size || step->peer == s->desc.rank) {
        s->error = RG_ERR_INVALID;
        return RG_NO_STEP;
    }
    step->ord = ord[step->peer];
    uint32_t id = append(s, step, deps, n_deps);
    if (id != RG_NO_STEP) ord[step->peer]++;
    return id;
}

uint32_t rg_sched_send(rg_schedule_t *s, uint32_t peer, rg_span_t a, const uint32_t *deps, uint32_t n_deps) {
    rg_step_t step = { .kind = RG_STEP_SEND, .peer = peer, .a = a };
    return append_message(s, &step, s->send_ord, deps, n_deps);
}

uint32_t rg_sched_recv(rg_schedule_t *s, uint32_t peer, rg_span_t dst, uint32_t flags, const uint32_t *deps,
                       uint32_t n_deps) {
    rg_step_t step = { .kind = RG_STEP_RECV, .flags = (uint8_t)flags, .peer = peer, .dst = dst };
    return append_message(s, &step, s->recv_ord, deps, n_deps);
}

uint32_t rg_sched_recv_reduce(rg_schedule_t *s, uint32_t peer, rg_span_t dst, rg_span_t a, uint32_t flags,
                              const uint32_t *deps, uint32_t n_deps) {
    rg_step_t step = { .kind = RG_STEP_RECV_REDUCE, .flags = (uint8_t)flags, .peer = peer, .dst = dst, .a = a };
    return append_message(s, &step, s->recv_ord, deps, n_deps);
}

uint32_t rg_sched_reduce(rg_schedule_t *s, rg_span_t dst, rg_span_t a, rg_span_t b, uint32_t flags,
                         const uint32_t *deps, uint32_t n_deps) {
    rg_step_t step = { .kind = RG_STEP_REDUCE, .flags = (uint8_t)flags, .dst = dst, .a = a, .b = b };
    return append(s, &step, deps, n_deps);
}

uint32_t rg_sched_copy(rg_schedule_t *s, rg_span_t dst, rg_span_t a, uint32_t flags, const uint32_t *deps,
                       uint32_t n_deps) {
    rg_step_t step = { .kind = RG_STEP_COPY, .flags = (uint8_t)flags, .dst = dst, .a = a };
    return append(s, &step, deps, n_deps);
}

/* One step of no length that follows all of deps, which may be more than one step can name. */
static uint32_t join(rg_schedule_t *s, const uint32_t *deps, uint32_t n_deps) {
    rg_span_t none = rg_span(RG_BUF_TMP, 0, 0);
    uint32_t last = RG_NO_STEP;
    for (uint32_t i = 0; i < n_deps;) {
        /* A chain: each link names the one before it and as many others as fit. */
        rg_step_t step = { .kind = RG_STEP_COPY, .dst = none, .a = rg_span(RG_BUF_IN, 0, 0) };
        uint32_t some = n_deps - i < RG_MAX_DEPS - 1 ? n_deps - i : RG_MAX_DEPS - 1;
        uint32_t *list = rg_sched_scratch(s, (size_t)some + 1);
        if (list == NULL) return RG_NO_STEP;
        memcpy(list, deps + i, some * sizeof *list);
        list[some] = last;
        last = append(s, &step, list, some + 1);
        i += some;
    }
    return last;
}

/* The smallest radix that needs no more rounds than radix ONE_ROUND would. */
static uint32_t radix_for(uint32_t n) {
    uint32_t rounds = 0;
    for (uint64_t reach = 1; reach < n; reach *= ONE_ROUND) rounds++;
    for (uint32_t radix = 2;; radix++) {
        uint64_t reach = 1;
        for (uint32_t i = 0; i < rounds; i++) reach *= radix;
        if (reach >= n) return radix;
    }
}

/* What goes along from rank `from` to the rank `far` behind it, in the round of this stride, when all that the root has
 * is to spread: whoever is less than a stride behind the root has it by then, and gives it to those who do not. */
static uint64_t carries(const rg_coll_desc_t *d, int spread, uint32_t from, uint64_t stride, uint64_t far) {
    uint32_t behind = (from + d->size - d->root) % d->size;
    return spread && behind < stride && behind + far < d->size ? d->count : 0;
}

static void disseminate(rg_schedule_t *s, int spread, const uint32_t *deps, uint32_t n_deps) {
    uint32_t n = s->desc.size, r = s->desc.rank;
    if (n < 2 || s->error != RG_OK) return;
    uint32_t radix = radix_for(n);
    rg_buf_t have = spread && r != s->desc.root ? RG_BUF_OUT : RG_BUF_IN;
    uint32_t got[ONE_ROUND + 1], n_got = 0, joined = RG_NO_STEP;
    if (n_deps > JOIN_ABOVE) {
        joined = join(s, deps, n_deps);
        deps = &joined;
        n_deps = 1;
    }
    for (uint64_t stride = 1; stride < n; stride *= radix) {
        /* A round says: whoever I have heard of has finished, and I have, so it follows both. Receives wait for
         * nothing: they are posted early and the messages find them. */
        uint32_t after[ONE_ROUND + JOIN_ABOVE], n_after = 0;
        for (uint32_t i = 0; i < n_deps; i++) after[n_after++] = deps[i];
        for (uint32_t i = 0; i < n_got; i++) after[n_after++] = got[i];
        for (uint32_t i = 1; i < radix && i * stride < n; i++)
            rg_sched_send(s, (uint32_t)((r + i * stride) % n),
                          rg_span(have, 0, carries(&s->desc, spread, r, stride, i * stride)), after, n_after);
        /* Hearing of a later round does not prove the earlier ones: keep what was heard in all of them. */
        uint32_t heard[ONE_ROUND + 1], n_heard = 0;
        for (uint32_t i = 1; i < radix && i * stride < n; i++) {
            uint32_t from = (uint32_t)((r + n - i * stride) % n);
            rg_span_t out = rg_span(RG_BUF_OUT, 0, carries(&s->desc, spread, from, stride, i * stride));
            heard[n_heard++] = rg_sched_recv(s, from, out, 0, NULL, 0);
        }
        if (n_got != 0 && stride * radix < n) {
            uint32_t both[2 * ONE_ROUND + 2];
            memcpy(both, got, n_got * sizeof *both);
            memcpy(both + n_got, heard, n_heard * sizeof *both);
            got[0] = join(s, both, n_got + n_heard);
            n_got = 1;
        } else {
            memcpy(got, heard, n_heard * sizeof *got);
            n_got = n_heard;
        }
    }
}

void rg_sched_disseminate(rg_schedule_t *s, const uint32_t *deps, uint32_t n_deps) { disseminate(s, 0, deps, n_deps); }

void rg_sched_star(rg_schedule_t *s, const uint32_t *deps, uint32_t n_deps) {
    uint32_t n = s->desc.size;
    rg_span_t none_in = rg_span(RG_BUF_IN, 0, 0), none_out = rg_span(RG_BUF_OUT, 0, 0);
    if (n < 2 || s->error != RG_OK) return;
    if (s->desc.rank != 0) {
        uint32_t own = n_deps > JOIN_ABOVE ? join(s, deps, n_deps) : RG_NO_STEP;
        rg_sched_send(s, 0, none_in, own != RG_NO_STEP ? &own : deps, own != RG_NO_STEP ? 1 : n_deps);
        rg_sched_recv(s, 0, none_out, 0, NULL, 0);
        return;
    }
    uint32_t *all = rg_sched_scratch(s, (size_t)n_deps + n);
    if (all == NULL) return;
    if (n_deps != 0) memcpy(all, deps, n_deps * sizeof *all);
    for (uint32_t r = 1; r < n; r++) all[n_deps + r - 1] = rg_sched_recv(s, r, none_out, 0, NULL, 0);
    uint32_t here = join(s, all, n_deps + n - 1);
    for (uint32_t r = 1; r < n; r++) rg_sched_send(s, r, none_in, &here, 1);
}

void rg_sched_spread(rg_schedule_t *s) {
    rg_span_t out = rg_span(RG_BUF_OUT, 0, s->desc.count), in = rg_span(RG_BUF_IN, 0, s->desc.count);
    disseminate(s, 1, NULL, 0);
    if (s->desc.rank == s->desc.root) rg_sched_copy(s, out, in, 0, NULL, 0);
    s->flags |= RG_SCHED_ZERO_COPY;
}

/* Everybody to everybody. */
static void tell_all(rg_schedule_t *s, const uint32_t *deps, uint32_t n_deps) {
    uint32_t n = s->desc.size, r = s->desc.rank, here = join(s, deps, n_deps);
    for (uint32_t i = 1; i < n; i++) rg_sched_send(s, (r + i) % n, rg_span(RG_BUF_IN, 0, 0), &here, 1);
    for (uint32_t i = 1; i < n; i++) rg_sched_recv(s, (r + n - i) % n, rg_span(RG_BUF_OUT, 0, 0), 0, NULL, 0);
}

/* Steps that no other step waits for: when they are done, all are. Returns how many were written to *out. */
static uint32_t sinks(rg_schedule_t *s, uint32_t **out) {
    uint32_t n = 0, *list = rg_sched_scratch(s, s->n_steps);
    uint32_t *waited = rg_sched_scratch(s, s->n_steps);
    *out = list;
    if (list == NULL || waited == NULL) return 0;
    for (uint32_t i = 0; i < s->n_deps; i++) waited[s->deps[i]] = 1;
    for (uint32_t i = 0; i < s->n_steps; i++)
        if (waited[i] != 1) list[n++] = i;
    return n;
}

void rg_sched_seal(rg_schedule_t *s) {
    s->phase1_steps = s->n_steps;
    /* A result that is shown at once is shown when all have spoken. By anything but a broadcast they have. */
    int unheard = s->desc.kind == RG_KIND_BROADCAST && !(s->flags & RG_SCHED_HEARD);
    if (s->desc.rule_l || unheard) {
        uint32_t *ends, n = sinks(s, &ends);
        /* Where lengths are given, one that sends nothing to somebody who expects something is found out by the DONE
         * message that comes in its place. */
        if (s->desc.in_lens && s->desc.size > ONE_ROUND) tell_all(s, ends, n);
        else if (s->desc.hub && !s->desc.in_lens) rg_sched_star(s, ends, n);
        else rg_sched_disseminate(s, ends, n);
    }
    /* Under rule S the result is shown when phase 1 is over, so there the barrier is a part of it. */
    if (!s->desc.rule_l) s->phase1_steps = s->n_steps;
    for (uint32_t i = s->phase1_steps; i < s->n_steps; i++) s->steps[i].flags |= RG_STEP_PHASE2;
    /* Without the barrier nobody knows at the end whether the last bytes were consumed, and the caller may write over
     * them at once. */
    if (!s->desc.rule_l) s->flags &= ~RG_SCHED_ZERO_COPY;
    scratch_free(s);
}

void rg_sched_free(rg_schedule_t *s) {
    if (s == NULL) return;
    scratch_free(s);
    free(s->steps);
    free(s->deps);
    free(s->send_ord);
    free(s->recv_ord);
    free(s->copies);
    free(s);
}

/* Alone there is nobody to talk to, whatever the algorithm. */
static rg_status_t build_alone(rg_schedule_t *s, const rg_coll_desc_t *d) {
    rg_span_t in = rg_span(RG_BUF_IN, 0, d->count), out = rg_span(RG_BUF_OUT, 0, d->count);
    switch (d->kind) {
    case RG_KIND_BARRIER: in.len = out.len = 0; break;
    case RG_KIND_ALL_GATHER:
    case RG_KIND_GATHER:
        out = rg_seg(d, RG_BUF_OUT, 0);
        in.len = out.len;
        break;
    case RG_KIND_REDUCE_SCATTER:
    case RG_KIND_SCATTER:
        in = rg_seg(d, RG_BUF_IN, 0);
        out.len = in.len;
        break;
    case RG_KIND_ALL_TO_ALL:
        in = rg_seg_in(d, 0);
        out = rg_seg(d, RG_BUF_OUT, 0);
        if (in.len != out.len) return RG_ERR_INVALID;
        break;
    default: break;
    }
    if (in.len != 0) rg_sched_copy(s, out, in, rg_kind_reduces(d->kind) ? RG_STEP_FINAL : 0, NULL, 0);
    s->flags |= RG_SCHED_ZERO_COPY;
    return RG_OK;
}

/* The weights go round before anything else: an all-gather of one 8-byte element from each rank, in as few rounds as
 * the DONE barrier takes. After the round of a stride a rank has what `stride * radix` ranks from itself upwards gave.
 * What wraps around the end of AUX goes in two messages. (Bruck et al. 1997.) */
static void exchange_aux(rg_schedule_t *s) {
    uint32_t n = s->desc.size, r = s->desc.rank, radix = n < 2 ? 2 : radix_for(n), n_got = 0;
    uint32_t *got = rg_sched_scratch(s, 2 * (size_t)n + 2);
    for (uint64_t stride = 1; got != NULL && stride < n; stride *= radix) {
        uint32_t before = n_got;
        for (uint32_t i = 1; i < radix && i * stride < n; i++) {
            uint32_t far = (uint32_t)(i * stride), len = n - far < stride ? n - far : (uint32_t)stride;
            uint32_t to = (r + n - far) % n, from = (r + far) % n;
            uint32_t mine = r + len > n ? n - r : len, theirs = from + len > n ? n - from : len;
            rg_sched_send(s, to, rg_span(RG_BUF_AUX, r, mine), got, before);
            if (mine < len) rg_sched_send(s, to, rg_span(RG_BUF_AUX, 0, len - mine), got, before);
            got[n_got++] = rg_sched_recv(s, from, rg_span(RG_BUF_AUX, from, theirs), 0, NULL, 0);
            if (theirs < len) got[n_got++] = rg_sched_recv(s, from, rg_span(RG_BUF_AUX, 0, len - theirs), 0, NULL, 0);
        }
    }
    rg_step_t step = { .kind = RG_STEP_PREPARE };
    s->gate = append(s, &step, got, n_got);
}

static rg_status_t build(const rg_algorithm_t *alg, const rg_coll_desc_t *d, rg_schedule_t **out) {
    *out = NULL;
    if (d->kind != alg->kind || !rg_desc_ok(d) || (alg->applies != NULL && !alg->applies(d))) return RG_ERR_INVALID;
    rg_schedule_t *s = calloc(1, sizeof *s);
    if (s == NULL) return RG_ERR_NOMEM;
    rg_status_t status = RG_ERR_NOMEM;
    s->desc = *d;
    s->gate = RG_NO_STEP;
    s->send_ord = calloc(d->size, sizeof *s->send_ord);
    s->recv_ord = calloc(d->size, sizeof *s->recv_ord);
    if (s->send_ord == NULL || s->recv_ord == NULL || !rg_desc_copy(&s->desc, &s->copies)) goto failed;
    for (int b = 0; b < RG_BUFS; b++) s->elems[b] = rg_desc_elems(&s->desc, (rg_buf_t)b);
    if (d->prepare) exchange_aux(s);
    status = d->size == 1 ? build_alone(s, &s->desc) : alg->build(s, &s->desc);
    if (status == RG_OK) status = s->error;
    if (status != RG_OK) goto failed;
    if (alg->hears_all) s->flags |= RG_SCHED_HEARD;
    rg_sched_seal(s);
    status = s->error;
    if (status != RG_OK) goto failed;
    *out = s;
    return RG_OK;

failed:
    rg_sched_free(s);
    return status;
}

/* ---- Rings in an order that was measured ------------------------------------------------------------------------- */

/* Weights are told by rank, so there the ranks keep their places. */
static int has_order(const rg_algorithm_t *alg, const rg_coll_desc_t *d) {
    return d->topo != NULL && d->topo->ring != NULL && d->prepare == 0 && d->size > 2 && strcmp(alg->name, "ring") == 0;
}

/* The description as it is for the ranks in that order; arrays: two of a word for each rank. */
static rg_coll_desc_t in_order(const rg_coll_desc_t *d, uint64_t *arrays) {
    rg_coll_desc_t x = *d;
    const uint32_t *ring = d->topo->ring;
    x.topo = NULL;
    for (uint32_t i = 0; i < d->size; i++) {
        if (ring[i] == d->rank) x.rank = i;
        if (ring[i] == d->root) x.root = i;
    }
    if (!rg_kind_segmented(d->kind)) return x;
    for (uint32_t i = 0; i < d->size; i++) {
        rg_span_t seg = rg_seg(d, RG_BUF_OUT, ring[i]);
        arrays[i] = seg.off;
        arrays[d->size + i] = seg.len;
    }
    x.offs = arrays;
    x.lens = arrays + d->size;
    x.count = d->lens != NULL ? d->count : rg_seg_total(d);
    return x;
}

rg_status_t rg_sched_build(const rg_algorithm_t *alg, const rg_coll_desc_t *d, rg_schedule_t **out) {
    if (!has_order(alg, d) || !rg_desc_ok(d)) return build(alg, d, out);
    *out = NULL;
    uint64_t *arrays = malloc(2 * (size_t)d->size * sizeof *arrays);
    if (arrays == NULL) return RG_ERR_NOMEM;
    const rg_coll_desc_t x = in_order(d, arrays);
    rg_status_t status = build(alg, &x, out);
    free(arrays);
    if (status != RG_OK) return status;
    rg_schedule_t *s = *out;
    for (uint32_t i = 0; i < s->n_steps; i++) {
        rg_step_t *step = &s->steps[i];
        if (step->kind == RG_STEP_SEND || step->kind == RG_STEP_RECV || step->kind == RG_STEP_RECV_REDUCE)
            step->peer = d->topo->ring[step->peer];
    }
    free(s->copies);
    s->copies = NULL;
    s->desc = *d;
    if (rg_desc_copy(&s->desc, &s->copies)) return RG_OK;
    rg_sched_free(s);
    *out = NULL;
    return RG_ERR_NOMEM;
}
