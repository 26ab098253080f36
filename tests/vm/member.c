/* member.c: one member that calls collectives of random kinds and sizes, the same on all, and looks at every element of
 * every result, at the inputs of what failed, and at memory that no call uses. Members may be killed and new ones may
 * join at any time. Relies on rounds that succeed or fail alike everywhere, which is what it is there to find out; a
 * round that failed for a loss is called again. It must write down a call's outcome before it makes the next. */
#include "vm.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CONTROL 8 /* every so many rounds all agree on where they are, and on whether to stop */
#define AGAIN_MAX 200

#define KIND_LIST(X)                                                                                                   \
    X(ALL_REDUCE, "all_reduce")                                                                                        \
    X(BROADCAST, "broadcast")                                                                                          \
    X(REDUCE, "reduce")                                                                                                \
    X(ALL_GATHER, "all_gather")                                                                                        \
    X(REDUCE_SCATTER, "reduce_scatter")                                                                                \
    X(GATHER, "gather")                                                                                                \
    X(SCATTER, "scatter")                                                                                              \
    X(ALL_TO_ALL, "all_to_all") X(BARRIER, "barrier") X(MESSAGES, "messages") X(SEVERAL, "several")
enum kind {
#define KIND_NAME(name, text) K_##name,
    KIND_LIST(KIND_NAME) K_COUNT
#undef KIND_NAME
};
static const char *const kind_names[] = {
#define KIND_NAME(name, text) text,
    KIND_LIST(KIND_NAME)
#undef KIND_NAME
};

typedef struct work {
    const vm_options_t *o;
    rg_group_t *group;
    FILE *record;
    uint64_t round, attempt, id;
    uint64_t longest_ns, faults, failed;
    int planted;
    /* This call: */
    enum kind kind;
    uint64_t dice, count;
    rg_dtype_t type;
    uint32_t n, me, root;
    uint64_t members[VM_MEMBERS], ids[VM_MEMBERS];
    char *in, *out;
    size_t in_bytes, out_bytes;
    int in_place;
    rg_result_t result;
} work_t;

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

#define CYCLE 251

/* What member `id` gives as element i of segment seg: whole numbers small enough that sums are exact in any order. */
static uint32_t value(uint64_t id, uint64_t round, uint64_t seg, uint64_t i) {
    return (uint32_t)((id * 31 + round * 7 + seg * 5 + i * 3) % CYCLE);
}

static void put(char *p, uint64_t i, rg_dtype_t type, uint32_t v) {
    float f = (float)v;
    memcpy(p + 4 * i, type == RG_F32 ? (void *)&f : (void *)&v, 4);
}

static void fill(const work_t *w, char *p, uint64_t count, uint64_t seg) {
    for (uint64_t i = 0; i < count && i < CYCLE; i++) put(p, i, w->type, value(w->id, w->round, seg, i));
    for (uint64_t i = CYCLE; i < count; i += CYCLE) memcpy(p + 4 * i, p, 4 * (count - i < CYCLE ? count - i : CYCLE));
}

/* 1 when p has what the members of ids gave for segment seg, added up. */
static int holds(const work_t *w, const char *p, uint64_t count, const uint64_t *ids, uint32_t n, uint64_t seg) {
    char want[4 * CYCLE];
    for (uint64_t i = 0; i < CYCLE; i++) {
        uint32_t sum = 0;
        for (uint32_t k = 0; k < n; k++) sum += value(ids[k], w->round, seg, i);
        put(want, i, w->type, sum);
    }
    for (uint64_t i = 0; i < count; i += CYCLE)
        if (memcmp(p + 4 * i, want, 4 * (count - i < CYCLE ? count - i : CYCLE)) != 0) return 0;
    return 1;
}

static uint64_t hash_of(const void *p, size_t n) {
    const unsigned char *c = p;
    uint64_t h = n, word;
    for (; n >= 8; n -= 8, c += 8) {
        memcpy(&word, c, 8);
        h = mix(h ^ word);
    }
    for (; n; n--) h = mix(h ^ *c++);
    return h;
}

/* ---- The shape of a call ------------------------------------------------------------------------------------------
 */

static int segments_in(const work_t *w) {
    return w->kind == K_REDUCE_SCATTER || w->kind == K_ALL_TO_ALL || (w->kind == K_SCATTER && w->me == w->root);
}

static int segments_out(const work_t *w) {
    return w->kind == K_ALL_GATHER || w->kind == K_ALL_TO_ALL || (w->kind == K_GATHER && w->me == w->root);
}

/* Half are small, a few of the largest size. */
static uint64_t count_of(const work_t *w) {
    uint64_t d = w->dice >> 16, most = w->o->bytes / 4, size = d % 8;
    if (size < 4) return (d >> 8) % 300;
    if (size < 7) return (d >> 8) % (most < 20000 ? most : 20000);
    return most - (d >> 8) % 64;
}

static int prepare(work_t *w) {
    rg_info_t info = RG_INFO_INIT;
    if (rg_group_info(w->group, &info) != RG_OK || info.world_size > VM_MEMBERS) return 0;
    w->dice = mix(w->o->seed * 1000003 + w->round);
    w->kind = (enum kind)(w->dice % K_COUNT);
    w->type = w->dice >> 8 & 1 ? RG_F32 : RG_I32;
    w->in_place = (w->dice >> 9 & 3) == 0 && (w->kind == K_ALL_REDUCE || w->kind == K_ALL_TO_ALL);
    w->n = info.world_size;
    w->me = info.rank;
    w->id = info.member_id;
    w->root = (uint32_t)(w->dice >> 40) % w->n;
    for (uint32_t r = 0; r < w->n; r++)
        if (rg_group_member(w->group, r, &w->members[r]) != RG_OK) w->members[r] = 0;
    w->count = w->kind == K_BARRIER ? 0 : count_of(w);
    if (segments_in(w) || segments_out(w) || w->kind == K_SCATTER || w->kind == K_GATHER) w->count /= w->n;
    w->in_bytes = 4 * w->count * (segments_in(w) ? w->n : 1);
    w->out_bytes = 4 * w->count * (segments_out(w) ? w->n : 1);
    unsigned turn = (unsigned)(2 * w->round + 5 * w->attempt);
    w->in = vm_take(w->in_bytes, turn);
    w->out = w->in_place ? w->in : vm_take(w->out_bytes, turn + 1);
    if (!w->in || !w->out) return 0;
    uint64_t segs = segments_in(w) ? w->n : 1;
    for (uint64_t s = 0; s < segs; s++) fill(w, w->in + 4 * w->count * s, w->count, s);
    if (w->kind == K_BROADCAST && w->me == w->root) memcpy(w->out, w->in, w->in_bytes);
    w->result = (rg_result_t)RG_RESULT_INIT;
    w->result.contributor_ids = w->ids;
    w->result.contributor_cap = VM_MEMBERS;
    return 1;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Each to the next and from the one before, with requests: both succeed or are called again. */
static rg_status_t call_messages(work_t *w, const rg_opts_t *o) {
    rg_request_t *req[2] = { NULL, NULL };
    rg_status_t s[2];
    rg_opts_t own = *o;
    own.timeout_ms = 5000; /* where members see different views, one may wait for what nobody sends */
    if (w->n < 2) return RG_OK;
    s[0] = rg_send(w->group, w->in, w->count, w->type, (w->me + 1) % w->n, &own, &req[0]);
    s[1] = rg_recv(w->group, w->out, w->count, w->type, (w->me + w->n - 1) % w->n, &own, &req[1]);
    for (int i = 0; i < 2; i++)
        if (s[i] == RG_OK) s[i] = rg_wait(req[i], NULL);
    return s[0] != RG_OK ? s[0] : s[1];
}

/* The vector in three parts, each an operation of its own, at once. */
static rg_status_t call_several(work_t *w, const rg_opts_t *o) {
    rg_request_t *req[3] = { NULL, NULL, NULL };
    rg_status_t s[3], first = RG_OK;
    uint64_t at[4] = { 0, w->count / 5, w->count / 2, w->count };
    for (int i = 0; i < 3; i++)
        s[i] = rg_all_reduce(w->group, w->in + 4 * at[i], w->out + 4 * at[i], at[i + 1] - at[i], w->type, RG_SUM, o,
                             &req[i]);
    for (int i = 0; i < 3; i++) {
        if (s[i] == RG_OK) s[i] = rg_wait(req[i], &w->result);
        if (first == RG_OK) first = s[i];
    }
    return first;
}

static rg_status_t call(work_t *w) {
    rg_opts_t o = RG_OPTS_INIT;
    rg_group_t *g = w->group;
    o.result = &w->result;
    o.on_fault = w->dice >> 12 & 1 || w->kind == K_SEVERAL ? RG_RETURN : RG_RETRY;
    switch (w->kind) {
    case K_ALL_REDUCE: return rg_all_reduce(g, w->in, w->out, w->count, w->type, RG_SUM, &o, NULL);
    case K_BROADCAST: return rg_broadcast(g, w->out, w->count, w->type, w->root, &o, NULL);
    case K_REDUCE: return rg_reduce(g, w->in, w->out, w->count, w->type, RG_SUM, w->root, &o, NULL);
    case K_ALL_GATHER: return rg_all_gather(g, w->in, w->out, w->count, w->type, &o, NULL);
    case K_REDUCE_SCATTER: return rg_reduce_scatter(g, w->in, w->out, w->count, w->type, RG_SUM, &o, NULL);
    case K_GATHER: return rg_gather(g, w->in, w->out, w->count, w->type, w->root, &o, NULL);
    case K_SCATTER: return rg_scatter(g, w->in, w->out, w->count, w->type, w->root, &o, NULL);
    case K_ALL_TO_ALL: return rg_all_to_all(g, w->in, w->out, w->count, w->type, &o, NULL);
    case K_BARRIER: return rg_barrier(g, &o, NULL);
    case K_SEVERAL: return call_several(w, &o);
    default: return call_messages(w, &o);
    }
}

/* ---- What came of it --------------------------------------------------------------------------------------------- */

static int input_holds(const work_t *w) {
    uint64_t segs = segments_in(w) ? w->n : 1;
    for (uint64_t s = 0; s < segs; s++)
        if (!holds(w, w->in + 4 * w->count * s, w->count, &w->id, 1, s)) return 0;
    return 1;
}

/* A root named by rank may have become another member's while the call began, and then nothing came here. */
static int view_changed(const work_t *w) {
    rg_info_t info = RG_INFO_INIT;
    return rg_group_info(w->group, &info) != RG_OK || info.world_size != w->n || info.rank != w->me;
}

static int result_holds(const work_t *w) {
    const rg_result_t *r = &w->result;
    uint64_t size = w->count;
    uint32_t me = 0; /* the rank that this member had in the call: one may have been lost while it began */
    while (me < r->contributors && w->ids[me] != w->id) me++;
    switch (w->kind) {
    case K_BARRIER: return 1;
    case K_MESSAGES:
        return w->n < 2 || holds(w, w->out, size, &w->members[(w->me + w->n - 1) % w->n], 1, 0) || view_changed(w);
    case K_BROADCAST:
        for (uint32_t k = 0; k < w->n; k++)
            if (holds(w, w->out, size, &w->members[k], 1, 0)) return 1;
        return 0;
    case K_ALL_REDUCE:
    case K_SEVERAL: return holds(w, w->out, size, w->ids, r->contributors, 0);
    case K_REDUCE:
        if (w->me != w->root || (view_changed(w) && vm_is_pattern(w->out, w->out_bytes))) return 1;
        return holds(w, w->out, size, w->ids, r->contributors, 0);
    case K_REDUCE_SCATTER: return holds(w, w->out, size, w->ids, r->contributors, me);
    case K_SCATTER: return holds(w, w->out, size, &w->members[w->root], 1, w->me) || view_changed(w);
    default: break;
    }
    if (w->kind == K_GATHER && w->me != w->root) return 1;
    for (uint32_t k = 0; k < r->contributors; k++)
        if (!holds(w, w->out + 4 * size * k, size, &w->ids[k], 1, w->kind == K_ALL_TO_ALL ? me : 0)) return 0;
    return r->contributors == w->n || view_changed(w);
}

/* Faults that this program commits, once, after a while. */
static int plant(work_t *w, const char *what) {
    if (w->planted || !w->o->plant || strcmp(w->o->plant, what) != 0 || w->round < 20 || w->count == 0) return 0;
    w->planted = 1;
    return 1;
}

/* Bits are compared where all get all of them. */
static void write_down(work_t *w, rg_status_t s) {
    uint64_t bits = 0;
    int ids = s == RG_OK && w->kind != K_BARRIER && w->kind != K_MESSAGES;
    if (s == RG_OK && (w->kind <= K_BROADCAST || w->kind == K_ALL_GATHER || w->kind == K_SEVERAL))
        bits = hash_of(w->out, w->out_bytes);
    if (s == RG_OK && w->kind == K_ALL_REDUCE && plant(w, "outcome")) bits ^= 1;
    fprintf(w->record, "%" PRIu64 " %" PRIu64 " %s %s %u %016" PRIx64 " %016" PRIx64 "\n", w->round, w->attempt,
            kind_names[w->kind], rg_status_name(s), ids ? w->result.contributors : 0,
            ids ? hash_of(w->ids, w->result.contributors * sizeof *w->ids) : 0, bits);
    fflush(w->record);
}

static int wrong(const work_t *w, const char *what) {
    char text[300] = "";
    rg_group_errmsg(w->group, text, sizeof text);
    fprintf(stderr,
            "WRONG: member %" PRIu64 " round %" PRIu64 " attempt %" PRIu64 " %s, %" PRIu64 " elements: %s (%s)\n",
            w->id, w->round, w->attempt, kind_names[w->kind], w->count, what, text);
    return 0;
}

/* Of what failed the input is intact, in place too. */
static int look_at(work_t *w, rg_status_t s) {
    int ok = 1;
    if (s == RG_OK && plant(w, "value")) w->out[0] ^= 1;
    if (s == RG_OK && plant(w, "input") && !w->in_place) w->in[0] ^= 1;
    if (s == RG_OK && !result_holds(w)) ok = wrong(w, "the result has other elements");
    if ((s != RG_OK || !w->in_place) && !input_holds(w)) ok = wrong(w, "the input has changed");
    if (s != RG_OK && w->kind == K_BROADCAST && w->me == w->root && !view_changed(w) &&
        !holds(w, w->out, w->count, &w->id, 1, 0))
        ok = wrong(w, "the root's buffer has changed");
    if (plant(w, "guard")) w->out[w->out_bytes + 5] ^= 1;
    return ok;
}

static int again(rg_status_t s) { return s == RG_ERR_PEER_LOST || s == RG_ERR_ROOT_LOST || s == RG_ERR_MISMATCH; }

/* One call of the present round: 1 done, 0 to be called again, 2 not begun, as the arguments were for a view that is
 * over, -1 an end, whose status is in *ended. Messages have an outcome for each pair: whatever it is, all go on. */
static int round_once(work_t *w, rg_status_t *ended) {
    char *late;
    int ok = 1;
    *ended = RG_ERR_BUG;
    if (!prepare(w)) return -1;
    uint64_t begin = now_ns(), took;
    rg_status_t s = call(w);
    took = now_ns() - begin;
    if (took > w->longest_ns) w->longest_ns = took;
    w->failed += s != RG_OK;
    w->faults += s != RG_OK || w->result.fault_ns > 0;
    int stale = s == RG_ERR_INVALID && view_changed(w);
    if (w->kind == K_MESSAGES && (again(s) || s == RG_ERR_TIMEOUT)) s = RG_OK;
    else ok = look_at(w, s);
    if (ok && (s == RG_OK || again(s))) write_down(w, s);
    late = w->out;
    if (!w->in_place) ok &= vm_give(w->out);
    ok &= vm_give(w->in);
    if (plant(w, "late")) late[0] ^= 1;
    if (!ok) return -1;
    if (s == RG_OK) return 1;
    if (stale) return 2;
    if (again(s) && w->attempt < AGAIN_MAX) return 0;
    *ended = s;
    if (s != RG_ERR_EXPELLED && s != RG_ERR_COORDINATOR) wrong(w, rg_status_name(s));
    return -1;
}

/* Where the group is, and whether it is to end; newcomers have nothing to say but that. */
static rg_status_t agree(work_t *w, int known, int *stop) {
    rg_opts_t o = RG_OPTS_INIT;
    int64_t v[3] = { known ? (int64_t)(w->round << 16 | w->attempt) : 0, 0, 0 }, all[3] = { 0, 0, 0 };
    v[1] = (w->o->stop && access(w->o->stop, F_OK) == 0) || (known && w->o->rounds && w->round >= w->o->rounds);
    o.on_fault = RG_RETRY;
    rg_status_t s = rg_all_reduce(w->group, v, all, 3, RG_I64, RG_MAX, &o, NULL);
    w->round = (uint64_t)all[0] >> 16;
    w->attempt = (uint64_t)all[0] & 0xffff;
    *stop = all[1] != 0;
    return s;
}

static rg_status_t work(work_t *w) {
    struct timespec pause = { .tv_nsec = (long)(w->o->pace_ms % 1000) * 1000000 };
    int stop = 0;
    rg_status_t s = agree(w, 0, &stop);
    while (s == RG_OK && !stop) {
        int done = round_once(w, &s);
        if (done < 0) return s;
        s = RG_OK;
        if (done == 2) continue;
        if (done) w->round++;
        w->attempt = done ? 0 : w->attempt + 1;
        if (pause.tv_nsec) nanosleep(&pause, NULL);
        if (!vm_untouched()) return RG_ERR_BUG;
        rg_change_t change = RG_CHANGE_INIT;
        s = rg_group_boundary(w->group, &change);
        if (s == RG_OK && (change.joined || w->round % CONTROL == 0)) s = agree(w, 1, &stop);
    }
    return s;
}

int vm_member(const vm_options_t *o) {
    work_t w = { .o = o };
    rg_error_t err = { RG_OK, 0, "" };
    char text[300] = "";
    w.record = fopen(o->record, "w");
    if (!w.record || !vm_buffers(o->bytes + 4096)) return fprintf(stderr, "cannot write %s\n", o->record), 1;
    rg_status_t s = rg_group_join(NULL, &w.group, &err);
    if (s != RG_OK) return fprintf(stderr, "cannot join: %s\n", err.text), 1;
    s = work(&w);
    if (s != RG_OK) rg_group_errmsg(w.group, text, sizeof text);
    if (s == RG_OK) s = rg_group_leave(w.group);
    rg_group_destroy(w.group);
    int ok = vm_untouched();
    const char *word = s == RG_OK                ? "ok"
                       : s == RG_ERR_EXPELLED    ? "expelled"
                       : s == RG_ERR_COORDINATOR ? "expelled"
                                                 : "failed";
    fprintf(w.record, "end %s %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", ok ? word : "wrong", w.longest_ns / 1000000,
            w.faults, w.failed);
    fclose(w.record);
    vm_buffers_free();
    if (s == RG_OK && ok) return 0;
    fprintf(stderr, "ended: %s: %s\n", rg_status_name(s), text);
    return !ok ? 1 : s == RG_ERR_EXPELLED ? 3 : s == RG_ERR_COORDINATOR ? 4 : 1;
}
