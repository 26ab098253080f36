/* reduce.c: an all-reduce of sparse lists. Heads tell every member what every other takes the call for, whether its
 * list is sound and how large its parts are; then the parts travel to the members that add them up, and the sums to
 * everybody. What a member alone has is not sent back to it: it has it already, and knows from its not being mentioned
 * that nobody else has it. So the bytes are never more than those of sending every list to everybody, and nothing has
 * to be guessed about how much the lists have in common. Relies on frame.h and list.h; must not write to the caller's
 * result before the last operation has ended well on all members. */
#include "sparse/frame.h"
#include "sparse/list.h"
#include "sparse/reducer.h"

#include "assume.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a member says to another before the parts travel. kind_bytes: of the part, the kind in the upper 8 bits.
 * count_flaw: elements of the part, and what is wrong with the sender's list, likewise. */
typedef struct head {
    uint64_t call, members, room, kind_bytes, count_flaw;
} head_t;

/* And before the sums do. */
typedef struct told {
    uint64_t kind_bytes, count_flaw; /* count: of the whole part, what is left out for the receiver included */
    uint64_t sent;                   /* elements that travel */
} told_t;

#define TOP_SHIFT 56
#define TOP_MASK ((1ull << TOP_SHIFT) - 1)

typedef struct job {
    rg_sparse_reducer_t *z;
    rg_frame_t f;
    const rg_sparse_t *in;
    rg_sparse_t *to;
    rg_sparse_how_t how;
    rg_casts_t casts;
    rg_flaw_t flaw; /* of this member's list */
    uint64_t room;  /* of this member; UINT64_MAX: any */
    uint32_t block;
    int gather; /* everybody gets everybody's list */
    /* Of an attempt; in z->small */
    head_t *heads_out, *heads_in;
    told_t *told_out, *told_in;
    uint64_t *counts_out, *at_out, *counts_in, *at_in;
    uint64_t *alone; /* elements of the part that a rank alone has */
    rg_slice_t *slices;
    rg_cursor_t *cursors;
    rg_merged_t part;                  /* what this member adds up */
    rg_merged_t pick;                  /* of all parts, for TOPK */
    uint64_t found, total, least_room; /* total: values of the result */
    const rg_quant_t *q;               /* how values travel; NULL: as they are */
    double bound;                      /* of what is encoded of this member's part; in the end of all parts */
} job_t;

rg_status_t rg_sparse_reducer_create(rg_group_t *group, rg_sparse_reducer_t **out, rg_error_t *err) {
    if (group == NULL || out == NULL)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_sparse_reducer_create: %s is NULL", out == NULL ? "out" : "group");
    rg_sparse_reducer_t *z = calloc(1, sizeof *z);
    if (z == NULL) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_sparse_reducer_create: no memory");
    z->g = group;
    *out = z;
    return RG_OK;
}

void rg_sparse_reducer_destroy(rg_sparse_reducer_t *z) {
    if (z == NULL) return;
    rg_later_end(z->queue);
    rg_room_t *rooms[] = { &z->places,   &z->small,   &z->out,      &z->in,      &z->part_at,  &z->part_val,
                           &z->part_who, &z->some_at, &z->some_val, &z->pick_at, &z->pick_val, &z->pick_who,
                           &z->mag,      &z->cuts,    &z->elements, &z->said,    &z->heard,    &z->own };
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) free(rooms[i]->p);
    free(z);
}

/* ---- Parts ------------------------------------------------------------------------------------------------------- */

/* Whether the vector is so long that parts begin at whole windows. */
static int is_long(const job_t *j) {
    RG_ASSUME(j->f.n); /* a frame has this member at least */
    return j->in->n / j->f.n >= 64 * RG_WINDOW;
}

static int has_cuts(const job_t *j) { return is_long(j) && j->z->cuts_len == j->in->n && j->z->cuts_n == j->f.n; }

/* Parts begin at whole blocks and whole words of bitmaps; those of long vectors at whole windows, and where the last
 * result says. */
static uint64_t part_at(const job_t *j, uint32_t r) {
    if (has_cuts(j)) return r < j->f.n ? ((const uint64_t *)j->z->cuts.p)[r] : j->in->n;
    uint64_t unit = is_long(j) ? RG_WINDOW : j->block > 64 ? j->block : 64;
    uint64_t units = j->in->n / unit + (j->in->n % unit != 0), each = units / j->f.n, more = units % j->f.n;
    uint64_t at = (each * r + (r < more ? r : more)) * unit;
    return at < j->in->n ? at : j->in->n;
}

/* Where parts begin next time: so that each takes about as many bytes, if elements lie as they do now. The result is
 * the same everywhere, so these are too. */
static void make_cuts(job_t *j) {
    rg_sparse_reducer_t *z = j->z;
    uint64_t windows = (j->in->n + RG_WINDOW - 1) / RG_WINDOW, all = 0, sum = 0;
    const uint32_t *elements = (const uint32_t *)z->elements.p;
    uint64_t *cuts = (uint64_t *)z->cuts.p, dense = (uint64_t)RG_WINDOW * j->casts.width;
    uint32_t r = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint64_t w = 0; w < windows; w++) {
            uint64_t bytes = (uint64_t)elements[w] * (j->casts.width + 1) + 1;
            bytes = bytes < dense ? bytes : dense;
            if (pass == 0) all += bytes;
            for (; pass == 1 && r < j->f.n && sum >= all / j->f.n * r; r++) cuts[r] = w * RG_WINDOW;
            if (pass == 1) sum += bytes;
        }
    for (; r < j->f.n; r++) cuts[r] = j->in->n;
    z->cuts_len = j->in->n;
    z->cuts_n = j->f.n;
}

static uint32_t cuts_hash(const job_t *j) {
    uint64_t h = 1;
    for (uint32_t r = 0; has_cuts(j) && r < j->f.n; r++) h = rg_frame_mix(h, part_at(j, r));
    return (uint32_t)(h >> 7);
}

/* The first of this member's elements that is not before `from`. */
static uint64_t first_at(const job_t *j, uint64_t from) {
    const uint64_t *at = (const uint64_t *)j->z->places.p;
    uint64_t low = 0, high = j->in->values;
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        if (at[mid] < from) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* This member's elements of part r, or, to gather, of everything. */
static rg_part_t own_part(const job_t *j, uint32_t r) {
    uint64_t base = j->gather ? 0 : part_at(j, r), end = j->gather ? j->in->n : part_at(j, r + 1);
    rg_part_t p = { .base = base, .len = end - base, .width = j->casts.width, .block = j->block, .q = j->q };
    if (j->flaw != RG_FLAW_NONE) return p;
    uint64_t first = first_at(j, base);
    p.k = first_at(j, end) - first;
    p.at = (const uint64_t *)j->z->places.p + first;
    p.val = (const uint8_t *)j->in->val + first * p.width;
    p.op = j->z->calls, p.first = first;
    return p;
}

/* The same, as what the others take its values for. */
static rg_part_t own_said(const job_t *j, uint32_t r) {
    rg_part_t p = own_part(j, r);
    if (j->q != NULL && p.k != 0) p.val = j->z->said.p + p.first * sizeof(float);
    return p;
}

static rg_slice_t slice_for(const rg_part_t *p, rg_sparse_algorithm_t algorithm, int back) {
    int dense = algorithm == RG_SPARSE_FULL || (algorithm == RG_SPARSE_HYBRID && back);
    return rg_slice_choose(p, dense                                                             ? RG_SLICE_ONLY_DENSE
                              : algorithm == RG_SPARSE_BY_SIZE || algorithm == RG_SPARSE_GATHER ? RG_SLICE_ANY
                                                                                                : RG_SLICE_SPARSE);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static void *cut(uint8_t **p, uint64_t bytes) {
    void *v = *p;
    *p += (bytes + 15) / 16 * 16;
    return v;
}

static int small_memory(job_t *j) {
    uint64_t n = j->f.n, all = n * (2 * sizeof(head_t) + 2 * sizeof(told_t) + 5 * sizeof(uint64_t) +
                                    sizeof(rg_slice_t) + sizeof(rg_cursor_t)) +
                               16 * 16;
    uint64_t windows = (j->in->n + RG_WINDOW - 1) / RG_WINDOW;
    if (!rg_room_for(&j->z->small, all)) return 0;
    /* What grows loses its content, and the others may still have theirs: the heads tell. */
    if (j->z->cuts.cap < n * 8) j->z->cuts_len = 0;
    if (is_long(j) && (!rg_room_for(&j->z->cuts, n * 8) || !rg_room_for(&j->z->elements, windows * 4))) return 0;
    uint8_t *p = j->z->small.p;
    j->heads_out = cut(&p, n * sizeof(head_t)), j->heads_in = cut(&p, n * sizeof(head_t));
    j->told_out = cut(&p, n * sizeof(told_t)), j->told_in = cut(&p, n * sizeof(told_t));
    j->counts_out = cut(&p, n * 8), j->at_out = cut(&p, n * 8);
    j->counts_in = cut(&p, n * 8), j->at_in = cut(&p, n * 8), j->alone = cut(&p, n * 8);
    j->slices = cut(&p, n * sizeof(rg_slice_t)), j->cursors = cut(&p, n * sizeof(rg_cursor_t));
    return 1;
}

static int part_memory(job_t *j, uint64_t cap) {
    rg_sparse_reducer_t *z = j->z;
    if (!rg_room_for(&z->part_at, cap * 8) || !rg_room_for(&z->part_val, cap * j->casts.width) ||
        !rg_room_for(&z->part_who, cap * 2))
        return 0;
    if (j->how.result == RG_SPARSE_TOPK && !rg_room_for(&z->mag, cap * 4)) return 0;
    j->part = (rg_merged_t){ 0, cap, (uint64_t *)z->part_at.p, z->part_val.p, (uint16_t *)z->part_who.p };
    return 1;
}

/* For the candidates of all parts, and for what the values of any of them decode to. */
static int pick_memory(job_t *j) {
    rg_sparse_reducer_t *z = j->z;
    uint64_t cap = j->found, most = 0;
    for (uint32_t r = 0; j->q != NULL && r < j->f.n; r++) {
        uint64_t count = j->told_in[r].count_flaw & TOP_MASK;
        most = count > most ? count : most;
    }
    if (!rg_room_for(&z->heard, most * sizeof(float))) return 0;
    if (j->how.result != RG_SPARSE_TOPK) return 1;
    if (!rg_room_for(&z->pick_at, cap * 8) || !rg_room_for(&z->pick_val, cap * j->casts.width) ||
        !rg_room_for(&z->pick_who, cap * 2) || !rg_room_for(&z->mag, cap * 4))
        return 0;
    j->pick = (rg_merged_t){ 0, cap, (uint64_t *)z->pick_at.p, z->pick_val.p, (uint16_t *)z->pick_who.p };
    return 1;
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

/* `each` bytes to and from every other member. */
static rg_status_t exchange(job_t *j, const void *out, void *in, uint64_t each) {
    for (uint32_t r = 0; r < j->f.n; r++) {
        j->counts_out[r] = j->counts_in[r] = r == j->f.rank ? 0 : each;
        j->at_out[r] = j->at_in[r] = r * each;
    }
    return rg_frame_ended(&j->f, rg_all_to_all_v(j->f.g, out, j->counts_out, j->at_out, in, j->counts_in, j->at_in,
                                                 RG_U8, rg_frame_opts(&j->f), rg_frame_req(&j->f)));
}

/* Whether a size is one that a part of so many elements can have: sums of such sizes are far from overflowing. */
static int can_be(const job_t *j, uint64_t kind_bytes, uint64_t count, uint64_t len) {
    return (kind_bytes & TOP_MASK) <= len * (j->casts.width + 9) + 128 && count <= len;
}

/* What is in slices[] to the others, and what they said they would send, to z->in. */
static rg_status_t travel(job_t *j, int back) {
    uint64_t all = 0;
    for (uint32_t r = 0; r < j->f.n; r++) {
        uint64_t size = back ? j->told_in[r].kind_bytes : j->heads_in[r].kind_bytes;
        j->counts_in[r] = r == j->f.rank ? 0 : size & TOP_MASK;
        j->at_in[r] = all;
        all += j->counts_in[r];
    }
    if (!rg_room_for(&j->z->in, all)) return rg_frame_no_memory(&j->f);
    return rg_frame_ended(&j->f,
                          rg_all_to_all_v(j->f.g, j->z->out.p, j->counts_out, j->at_out, j->z->in.p, j->counts_in,
                                          j->at_in, RG_U8, rg_frame_opts(&j->f), rg_frame_req(&j->f)));
}

static uint64_t call_of(const job_t *j) {
    uint64_t h = rg_frame_mix(rg_frame_mix(0x73706172u, j->in->n), (uint64_t)j->in->dtype << 32 | j->how.op);
    h = rg_frame_mix(h, (uint64_t)j->how.result << 32 | j->how.algorithm);
    h = rg_frame_mix(rg_frame_mix(h, j->how.result == RG_SPARSE_TOPK ? j->how.topk : 0), j->block);
    if (j->q != NULL) {
        uint32_t scale;
        memcpy(&scale, &j->q->scale, sizeof scale);
        h = rg_frame_mix(rg_frame_mix(h, (uint64_t)j->q->wire << 32 | j->q->flags), scale);
    }
    return h << 32 | cuts_hash(j);
}

/* ---- There ------------------------------------------------------------------------------------------------------- */

/* Chooses the forms of this member's parts and tells everybody. */
static rg_status_t say_heads(job_t *j) {
    for (uint32_t r = 0; r < j->f.n; r++) {
        rg_part_t p = own_part(j, r);
        rg_slice_t *s = &j->slices[r];
        if (j->gather && r != 0) *s = j->slices[0];
        else *s = slice_for(&p, j->how.algorithm, 0);
        if (r == j->f.rank && !j->gather) *s = (rg_slice_t){ RG_SLICE_NONE, 0, 0 };
        j->heads_out[r] = (head_t){ call_of(j), j->f.members, j->room, s->bytes | (uint64_t)s->kind << TOP_SHIFT,
                                    p.k | (uint64_t)j->flaw << TOP_SHIFT };
    }
    j->heads_in[j->f.rank] = j->heads_out[j->f.rank];
    return exchange(j, j->heads_out, j->heads_in, sizeof(head_t));
}

/* What the heads say; all members come to the same. AGAIN: parts begin elsewhere for others, as somebody is new. */
static rg_status_t judge_heads(job_t *j) {
    rg_status_t st = RG_OK;
    uint64_t cuts = 0;
    j->least_room = UINT64_MAX;
    for (uint32_t r = 0; r < j->f.n; r++) {
        const head_t *h = &j->heads_in[r];
        rg_flaw_t flaw = (rg_flaw_t)(h->count_flaw >> TOP_SHIFT);
        if (h->members != j->f.members) return rg_frame_apart(&j->f, r);
        cuts |= h->call ^ j->heads_out[j->f.rank].call;
        j->least_room = h->room < j->least_room ? h->room : j->least_room;
        if (h->call >> 32 != j->heads_out[j->f.rank].call >> 32 && st != RG_ERR_MISMATCH)
            st = rg_frame_refuse(
                &j->f, RG_ERR_MISMATCH,
                "%s: rank %u calls it with another length, type, block, operator, result, algorithm or wire "
                "form than rank %u",
                j->f.name, r, j->f.rank);
        else if (flaw != RG_FLAW_NONE && st == RG_OK)
            st = rg_frame_refuse(&j->f,
                                 flaw == RG_FLAW_MEMORY ? RG_ERR_NOMEM
                                 : flaw == RG_FLAW_ROOM ? RG_ERR_CAPACITY
                                 : flaw == RG_FLAW_TYPE ? RG_ERR_NOTSUP
                                                        : RG_ERR_INVALID,
                                 "%s of %s: rank %u has %s", j->f.name, rg_dtype_name(j->in->dtype), r,
                                 rg_flaw_text(flaw));
        if (flaw == RG_FLAW_ROOM) j->total = j->in->n;
    }
    if (st == RG_OK && (uint32_t)cuts != 0 && !j->gather) return RG_AGAIN;
    uint64_t len = own_part(j, j->f.rank).len;
    for (uint32_t r = 0; st == RG_OK && r < j->f.n; r++)
        if (!can_be(j, j->heads_in[r].kind_bytes, j->heads_in[r].count_flaw & TOP_MASK, len))
            st = rg_frame_refuse(&j->f, RG_ERR_PROTOCOL, "%s: rank %u sends what no list can be", j->f.name, r);
    return st;
}

/* Room for what values decode to, others' and this member's own. 0: no memory. */
static int coded_memory(job_t *j) {
    rg_part_t mine = own_part(j, j->f.rank);
    uint64_t heard = 0;
    for (uint32_t r = 0; r < j->f.n; r++) heard += j->heads_in[r].count_flaw & TOP_MASK;
    return j->q == NULL ||
           (rg_room_for(&j->z->heard, heard * sizeof(float)) &&
            rg_room_for(&j->z->said, j->in->values * sizeof(float)) && rg_room_for(&j->z->own, rg_part_values(&mine)));
}

/* How far sums may be off by what was said of the values that they are made of. */
static void hear_bound(job_t *j, const uint8_t *values, uint64_t k) {
    double b = rg_quant_bound(j->q, values, k);
    int sums = j->how.op == RG_SPARSE_SUM || j->how.op == RG_SPARSE_AVG_WORLD;
    if (!(b >= 0)) b = INFINITY; /* which no sender of this library makes */
    if (j->how.op == RG_SPARSE_AVG_WORLD) b /= j->f.n;
    j->bound = sums ? j->bound + b : fmax(j->bound, b);
}

/* Writes what this member says of part r, and notes what its values stand for then. Its own part is encoded too, though
 * it does not travel: what a member says of an element does not depend on who adds it up. */
static void say_part(job_t *j, uint32_t r) {
    rg_part_t p = own_part(j, r);
    const rg_slice_t *s = &j->slices[r];
    uint8_t *to = j->z->out.p + j->at_out[r];
    const uint8_t *values = to + (s->bytes - (s->bytes != 0 ? rg_part_values(&p) : 0));
    if (j->q != NULL && r == j->f.rank && !j->gather) {
        values = j->z->own.p;
        rg_quant_encode(j->q, p.op, p.first, (const float *)(const void *)p.val, p.k, j->z->own.p);
    } else {
        rg_slice_write(&p, s, to);
    }
    if (j->q == NULL || p.k == 0) return;
    rg_quant_decode(j->q->wire, values, p.k, (float *)j->z->said.p + p.first);
    if (r == j->f.rank || j->gather) hear_bound(j, values, p.k);
}

/* Everybody's elements of this member's part, brought together. 0: what arrived was wrong. */
static int bring_together(job_t *j) {
    rg_part_t mine = own_said(j, j->f.rank);
    float *room = (float *)j->z->heard.p;
    for (uint32_t r = 0; r < j->f.n; r++) {
        const head_t *h = &j->heads_in[r];
        rg_part_t p = mine;
        if (r == j->f.rank) {
            rg_cursor_open(&j->cursors[r], &p, RG_SLICE_LIST, NULL, 0, &j->casts);
            continue;
        }
        const uint8_t *bytes = j->z->in.p + j->at_in[r];
        uint64_t n = h->kind_bytes & TOP_MASK;
        p.k = h->count_flaw & TOP_MASK;
        p.room = room;
        room += p.k;
        rg_cursor_open(&j->cursors[r], &p, (rg_slice_kind_t)(h->kind_bytes >> TOP_SHIFT), bytes, n, &j->casts);
        if (h->kind_bytes >> TOP_SHIFT >= RG_SLICE_LIST) j->cursors[r].bad = 1;
        if (j->q != NULL && p.k != 0 && !j->cursors[r].bad) hear_bound(j, bytes + (n - rg_part_values(&p)), p.k);
    }
    if (!rg_merge(j->cursors, j->f.n, mine.base, mine.len, j->how.op, &j->casts, &j->part)) return 0;
    mine.at = j->part.at, mine.k = j->part.n;
    return j->block == 0 || rg_part_in_blocks(&mine);
}

/* arrived: what was wrong with what came. */
static rg_status_t there(job_t *j, rg_flaw_t *arrived) {
    uint64_t all = 0, cap = 0, len = own_part(j, j->f.rank).len;
    for (uint32_t r = 0; r < j->f.n; r++) {
        uint64_t k = j->heads_in[r].count_flaw & TOP_MASK;
        cap = k < len - cap ? cap + k : len;
        j->counts_out[r] = r == j->f.rank ? 0 : j->slices[r].bytes;
        j->at_out[r] = j->gather ? 0 : all;
        all += j->counts_out[r];
    }
    if (!part_memory(j, cap) || !coded_memory(j) || !rg_room_for(&j->z->out, j->gather ? j->slices[0].bytes : all))
        return rg_frame_no_memory(&j->f);
    j->bound = 0;
    for (uint32_t r = 0; r < (j->gather ? 1 : j->f.n); r++) say_part(j, r);
    rg_status_t st = j->f.n == 1 ? RG_OK : travel(j, 0);
    if (st != RG_OK) return st;
    *arrived = bring_together(j) ? RG_FLAW_NONE : RG_FLAW_BYTES;
    if (j->how.result == RG_SPARSE_TOPK) rg_merged_topk(&j->part, j->how.topk, &j->casts, (uint32_t *)j->z->mag.p);
    return RG_OK;
}

/* ---- The largest ------------------------------------------------------------------------------------------------- */

/* Few of the largest are not worth a round of their own. */
#define TOPK_ASKS 1024u

typedef struct sample {
    uint64_t n;
    uint32_t mag[RG_SAMPLES];
} sample_t;

/* How many elements of all parts reach a magnitude, at least. */
static uint64_t reaching(const sample_t *all, uint32_t parts, uint32_t mag) {
    uint64_t sum = 0;
    for (uint32_t r = 0; r < parts; r++)
        for (uint32_t i = RG_SAMPLES; i != 0; i--)
            if (all[r].n != 0 && all[r].mag[i - 1] >= mag) {
                sum += rg_sample_reach(all[r].n, i - 1);
                break;
            }
    return sum;
}

/* Leaves of each part what may be among the largest of all: the members tell each other how their magnitudes lie, from
 * which all find one that `topk` elements reach. */
static rg_status_t narrow(job_t *j) {
    rg_sparse_reducer_t *z = j->z;
    sample_t mine = { j->part.n, { 0 } };
    if (!rg_room_for(&z->in, j->f.n * sizeof mine)) return rg_frame_no_memory(&j->f);
    rg_merged_sample(&j->part, &j->casts, (uint32_t *)z->mag.p, mine.mag);
    rg_status_t st = rg_frame_ended(
        &j->f, rg_all_gather(j->f.g, &mine, z->in.p, sizeof mine, RG_U8, rg_frame_opts(&j->f), rg_frame_req(&j->f)));
    if (st != RG_OK) return st;
    const sample_t *all = (const sample_t *)z->in.p;
    uint32_t least = 0;
    for (uint32_t r = 0; r < j->f.n; r++)
        for (uint32_t i = 0; i < RG_SAMPLES; i++)
            if (all[r].mag[i] > least && reaching(all, j->f.n, all[r].mag[i]) >= j->how.topk) least = all[r].mag[i];
    rg_merged_reaching(&j->part, least, &j->casts, (uint32_t *)z->mag.p);
    return RG_OK;
}

/* ---- And back ---------------------------------------------------------------------------------------------------- */

/* What rank r is told of this member's part: everything but what it alone had, of which it knows. */
static rg_part_t told_part(job_t *j, uint32_t r) {
    const rg_merged_t *m = &j->part;
    uint64_t base = part_at(j, j->f.rank);
    rg_part_t p = { .base = base, .len = part_at(j, j->f.rank + 1) - base, .width = j->casts.width, .block = j->block };
    p.at = m->at, p.val = m->val, p.k = m->n;
    p.q = j->q, p.op = j->z->calls + 1, p.first = base;
    if (j->how.result == RG_SPARSE_TOPK || j->alone[r] == 0 || j->q != NULL) return p;
    uint64_t *at = (uint64_t *)j->z->some_at.p, have = 0;
    uint8_t *val = j->z->some_val.p;
    for (uint64_t i = 0; i < m->n; i++) {
        if (m->who[i] == r) continue;
        at[have] = m->at[i];
        if (p.width == 4) memcpy(val + 4 * have, m->val + 4 * i, 4);
        else memcpy(val + 2 * have, m->val + 2 * i, 2);
        have++;
    }
    p.at = at, p.val = val, p.k = have;
    return p;
}

/* The form for rank r; where all of the part's values are the fewest bytes, they are told as they are. */
static rg_slice_t told_slice(job_t *j, uint32_t r, rg_part_t *p) {
    const rg_merged_t *m = &j->part;
    *p = told_part(j, r);
    rg_slice_t s = slice_for(p, j->how.algorithm, 1);
    if (s.kind != RG_SLICE_DENSE) return s;
    p->at = m->at, p->val = m->val, p->k = m->n;
    return slice_for(p, RG_SPARSE_FULL, 1);
}

/* Sums that travel quantised are encoded once, for all, who had a value that nobody else had included, since it comes
 * back otherwise than it went. Who added them up takes what they decode to as well. */
static rg_status_t back_coded(job_t *j, rg_flaw_t arrived) {
    rg_part_t p = told_part(j, j->f.rank);
    rg_slice_t s = slice_for(&p, j->how.algorithm, 1);
    if (!rg_room_for(&j->z->out, s.bytes)) return rg_frame_no_memory(&j->f);
    if (arrived == RG_FLAW_NONE && !rg_slice_write(&p, &s, j->z->out.p)) arrived = RG_FLAW_FINITE;
    if (arrived == RG_FLAW_NONE && p.k != 0) {
        const uint8_t *values = j->z->out.p + (s.bytes - rg_part_values(&p));
        j->bound += rg_quant_bound(j->q, values, p.k);
        rg_quant_decode(j->q->wire, values, p.k, (float *)(void *)j->part.val);
    }
    uint64_t bound;
    memcpy(&bound, &j->bound, sizeof bound);
    for (uint32_t r = 0; r < j->f.n; r++) {
        j->slices[r] = r != j->f.rank && arrived == RG_FLAW_NONE ? s : (rg_slice_t){ RG_SLICE_NONE, 0, 0 };
        j->told_out[r] = (told_t){ j->slices[r].bytes | (uint64_t)j->slices[r].kind << TOP_SHIFT,
                                   j->part.n | (uint64_t)arrived << TOP_SHIFT, bound };
    }
    return RG_OK;
}

static rg_status_t back_plain(job_t *j, rg_flaw_t arrived) {
    uint64_t all = 0, wide = j->part.n;
    if (!rg_room_for(&j->z->some_at, wide * 8) || !rg_room_for(&j->z->some_val, wide * j->casts.width))
        return rg_frame_no_memory(&j->f);
    memset(j->alone, 0, j->f.n * sizeof *j->alone);
    for (uint64_t i = 0; i < j->part.n; i++)
        if (j->part.who[i] < j->f.n) j->alone[j->part.who[i]]++;
    for (uint32_t r = 0; r < j->f.n; r++) {
        rg_part_t p = { 0 };
        rg_slice_t s = { RG_SLICE_NONE, 0, 0 };
        if (r != j->f.rank && arrived == RG_FLAW_NONE) s = told_slice(j, r, &p);
        j->slices[r] = s;
        all += s.bytes;
        j->told_out[r] =
            (told_t){ s.bytes | (uint64_t)s.kind << TOP_SHIFT, j->part.n | (uint64_t)arrived << TOP_SHIFT, p.k };
    }
    return rg_room_for(&j->z->out, all) ? RG_OK : rg_frame_no_memory(&j->f);
}

static rg_status_t back(job_t *j, rg_flaw_t arrived) {
    rg_status_t st = j->q != NULL ? back_coded(j, arrived) : back_plain(j, arrived);
    j->told_in[j->f.rank] = j->told_out[j->f.rank];
    if (st == RG_OK) st = exchange(j, j->told_out, j->told_in, sizeof(told_t));
    if (st != RG_OK) return st;
    j->found = 0;
    for (uint32_t r = 0; r < j->f.n; r++) {
        const told_t *t = &j->told_in[r];
        uint64_t count = t->count_flaw & TOP_MASK, len = part_at(j, r + 1) - part_at(j, r);
        rg_flaw_t flaw = (rg_flaw_t)(t->count_flaw >> TOP_SHIFT);
        double bound;
        if (flaw == RG_FLAW_FINITE)
            return rg_frame_refuse(&j->f, RG_ERR_INVALID, "%s: the sums of rank %u have %s", j->f.name, r,
                                   rg_flaw_text(flaw));
        if (flaw != RG_FLAW_NONE || !can_be(j, t->kind_bytes, count, len) || (j->q == NULL && t->sent > count))
            return rg_frame_refuse(&j->f, RG_ERR_PROTOCOL, "%s: rank %u has %s", j->f.name, r,
                                   rg_flaw_text(RG_FLAW_BYTES));
        memcpy(&bound, &t->sent, sizeof bound);
        if (j->q != NULL) j->bound = fmax(j->bound, bound >= 0 ? bound : INFINITY);
        j->found += count;
    }
    return RG_OK;
}

static rg_status_t sums_travel(job_t *j) {
    uint64_t all = 0;
    for (uint32_t r = 0; r < j->f.n; r++) {
        rg_part_t p;
        j->counts_out[r] = j->slices[r].bytes;
        j->at_out[r] = j->q != NULL ? 0 : all;
        if (j->q == NULL && r != j->f.rank && j->slices[r].bytes != 0) {
            rg_slice_t s = told_slice(j, r, &p);
            rg_slice_write(&p, &s, j->z->out.p + all);
        }
        all += j->counts_out[r];
    }
    return travel(j, 1);
}

/* ---- The result -------------------------------------------------------------------------------------------------- */

/* The first window from `first` on that is to be gone over, where the next element lies at `next`: empty ones are
 * looked at one by one only where a dense vector is written. */
static uint64_t next_window(const rg_writer_t *w, uint64_t first, uint64_t next, uint64_t len) {
    if (w != NULL && w->s->index == RG_INDEX_DENSE) return first;
    if (next >= len) return len;
    next -= next % RG_WINDOW;
    return next > first ? next : first;
}

/* Goes over a part: this member's own elements, where those that nobody else has are not told, and over them what was
 * told. Without a writer it is only looked whether the bytes are sound and as many as was said, which the room for the
 * result was judged by. */
static int part_to(job_t *j, uint32_t r, rg_writer_t *w) {
    rg_window_t own = { { 0 }, { 0 } }, told;
    rg_cursor_t mine, theirs;
    rg_part_t p = own_part(j, r);
    uint64_t count = 0;
    uint32_t block = j->how.result == RG_SPARSE_TOPK ? 0 : j->block; /* the largest are not whole blocks */
    if (j->how.result == RG_SPARSE_TOPK || j->q != NULL) p.k = 0;    /* everything is told */
    rg_cursor_open(&mine, &p, RG_SLICE_LIST, NULL, 0, &j->casts);
    const told_t *t = &j->told_in[r];
    p.k = j->q != NULL ? t->count_flaw & TOP_MASK : t->sent;
    p.room = (float *)j->z->heard.p;
    rg_slice_kind_t kind = (rg_slice_kind_t)(t->kind_bytes >> TOP_SHIFT);
    if (kind >= RG_SLICE_LIST) return 0;
    rg_cursor_open(&theirs, &p, kind, j->z->in.p + j->at_in[r], t->kind_bytes & TOP_MASK, &j->casts);
    for (uint64_t first = 0; first < p.len; first += RG_WINDOW) {
        uint64_t next = rg_cursor_next(&theirs), next_own = rg_cursor_next(&mine);
        first = next_window(w, first, next < next_own ? next : next_own, p.len);
        if (first == p.len) break;
        uint32_t len = p.len - first < RG_WINDOW ? (uint32_t)(p.len - first) : RG_WINDOW;
        rg_cursor_window(&theirs, first, len, &told);
        rg_cursor_window(&mine, first, len, &own);
        if (w != NULL) rg_merge_alone(own.v, len, j->how.op, j->f.n);
        for (uint32_t k = 0; k < (len + 63) / 64; k++) {
            if (w != NULL && told.has[k] == UINT64_MAX) memcpy(own.v + 64 * k, told.v + 64 * k, 64 * sizeof *own.v);
            else if (w != NULL)
                for (uint64_t b = told.has[k]; b != 0; b &= b - 1) {
                    uint32_t i = 64 * k + (uint32_t)__builtin_ctzll(b);
                    own.v[i] = told.v[i];
                }
            own.has[k] |= told.has[k];
        }
        if (w != NULL) rg_writer_window(w, p.base + first, len, &own);
        else count += rg_window_values(block, len, &own);
    }
    return rg_cursor_good(&theirs) && (w != NULL || count == (t->count_flaw & TOP_MASK));
}

/* What was brought together, of [base, base + len). */
static void merged_to(const job_t *j, const rg_merged_t *m, uint64_t base, uint64_t len, rg_writer_t *w) {
    rg_window_t win;
    rg_cursor_t c;
    rg_part_t p = { .base = base, .len = len, .k = m->n, .at = m->at, .val = m->val, .width = j->casts.width };
    rg_cursor_open(&c, &p, RG_SLICE_LIST, NULL, 0, &j->casts);
    for (uint64_t first = 0; first < len; first += RG_WINDOW) {
        first = next_window(w, first, rg_cursor_next(&c), len);
        if (first == len) break;
        uint32_t some = len - first < RG_WINDOW ? (uint32_t)(len - first) : RG_WINDOW;
        rg_cursor_window(&c, first, some, &win);
        rg_writer_window(w, base + first, some, &win);
    }
}

static void parts_to(job_t *j, rg_writer_t *w) {
    for (uint32_t r = 0; r < j->f.n; r++) {
        if (r != j->f.rank) part_to(j, r, w);
        else merged_to(j, &j->part, part_at(j, r), part_at(j, r + 1) - part_at(j, r), w);
    }
}

/* The largest of the candidates of all parts, which are the same everywhere. */
static void largest(job_t *j) {
    rg_sparse_t list = { .index = RG_INDEX_U64, .dtype = j->in->dtype, .n = j->in->n };
    rg_writer_t w;
    list.idx = j->pick.at, list.val = j->pick.val;
    rg_writer_begin(&w, &list, &j->casts);
    parts_to(j, &w);
    rg_writer_end(&w);
    j->pick.n = list.values;
    memset(j->pick.who, 0, (size_t)list.values * sizeof *j->pick.who);
    rg_merged_topk(&j->pick, j->how.topk, &j->casts, (uint32_t *)j->z->mag.p);
}

static int goes_dense(const job_t *j) {
    uint64_t width = j->casts.width;
    return j->how.result == RG_SPARSE_AUTO && j->total * (4 + width) > j->in->n * width && j->least_room >= j->in->n;
}

/* How many values the result has, and whether there is room for them on all members. */
static rg_status_t fits(job_t *j) {
    j->total = j->how.result == RG_SPARSE_TOPK && j->how.topk < j->found ? j->how.topk : j->found;
    if (goes_dense(j) || j->total <= j->least_room) return RG_OK;
    return rg_frame_refuse(&j->f, RG_ERR_CAPACITY,
                           "%s: the result has %llu values; one of the members has room for %llu", j->f.name,
                           (unsigned long long)j->total, (unsigned long long)j->least_room);
}

/* What is left of `many` elements from number i on: of those that are not in the result all, of the others what their
 * values are more than what was said of them. kept: the result, where not everything is in it; *k: how far it has been
 * gone through. */
static void left_of(const job_t *j, uint64_t i, uint32_t many, const rg_merged_t *kept, uint64_t *k, float *left) {
    const uint64_t *at = (const uint64_t *)j->z->places.p + i;
    const float *said = (const float *)j->z->said.p + i;
    rg_red_copy(&j->casts.in, left, (const uint8_t *)j->in->val + i * j->casts.width, many);
    for (uint32_t e = 0; e < many; e++) {
        while (kept != NULL && *k < kept->n && kept->at[*k] < at[e]) ++*k;
        if (kept != NULL && (*k == kept->n || kept->at[*k] != at[e])) continue;
        left[e] = j->q != NULL ? left[e] - said[e] : 0.0f;
        if (!isfinite(left[e])) left[e] = 0.0f;
    }
}

/* Before the result, which may lie where the input does. */
static void write_rest(job_t *j, const rg_merged_t *kept) {
    rg_sparse_t *to = j->how.rest;
    const uint64_t *at = (const uint64_t *)j->z->places.p;
    uint64_t i = 0, k = 0;
    rg_writer_t w;
    if (to == NULL) return;
    rg_writer_begin(&w, to, &j->casts);
    for (uint64_t first = 0; first < j->in->n; first += RG_WINDOW) {
        rg_window_t win = { { 0 }, { 0 } };
        float left[RG_WINDOW];
        first = next_window(&w, first, i < j->in->values ? at[i] : j->in->n, j->in->n);
        if (first == j->in->n) break;
        uint32_t len = j->in->n - first < RG_WINDOW ? (uint32_t)(j->in->n - first) : RG_WINDOW, many = 0;
        while (i + many < j->in->values && at[i + many] < first + len) many++;
        if (many != 0) left_of(j, i, many, kept, &k, left);
        for (uint32_t e = 0; e < many; e++) {
            uint64_t place = at[i + e] - first;
            win.v[place] = left[e];
            if (left[e] != 0.0f) win.has[place / 64] |= 1ull << place % 64;
        }
        rg_writer_window(&w, first, len, &win);
        i += many;
    }
    rg_writer_end(&w);
}

/* m: what has been brought together of the whole vector; NULL: the parts. */
static void write_result(job_t *j, const rg_merged_t *m) {
    rg_writer_t w;
    write_rest(j, j->how.result == RG_SPARSE_TOPK ? m : NULL);
    if (goes_dense(j)) j->to->index = RG_INDEX_DENSE;
    rg_writer_begin(&w, j->to, &j->casts);
    if (is_long(j)) {
        w.elements = (uint32_t *)j->z->elements.p;
        memset(w.elements, 0, (size_t)((j->in->n + RG_WINDOW - 1) / RG_WINDOW) * sizeof *w.elements);
    }
    if (m != NULL) merged_to(j, m, 0, j->in->n, &w);
    else parts_to(j, &w);
    rg_writer_end(&w);
    if (is_long(j) && !j->gather) make_cuts(j);
}

/* Sums of quantised values that nobody encodes again are looked at here, as encoding looks at all others. All members
 * have the same. 0: one is not finite, and is not to be made so. */
static int sums_finite(const job_t *j) {
    float *v = (float *)(void *)j->part.val;
    for (uint64_t i = 0; j->q != NULL && i < j->part.n; i++) {
        if (isfinite(v[i])) continue;
        if (!(j->q->flags & RG_QUANT_SATURATE)) return 0;
        v[i] = isnan(v[i]) ? 0.0f : copysignf(FLT_MAX, v[i]);
    }
    return 1;
}

/* Everybody has everybody's list. */
static rg_status_t gathered(job_t *j, rg_flaw_t arrived) {
    if (arrived != RG_FLAW_NONE)
        return rg_frame_refuse(&j->f, RG_ERR_PROTOCOL, "%s: %s", j->f.name, rg_flaw_text(arrived));
    if (!sums_finite(j))
        return rg_frame_refuse(&j->f, RG_ERR_INVALID, "%s: the sums of all %u ranks have %s", j->f.name, j->f.n,
                               rg_flaw_text(RG_FLAW_FINITE));
    j->found = j->part.n;
    rg_status_t st = fits(j);
    if (st == RG_OK) write_result(j, &j->part);
    return st;
}

static rg_status_t attempt(job_t *j) {
    rg_status_t st = rg_frame_shape(&j->f);
    if (st != RG_OK) return st;
    if (!small_memory(j)) return rg_frame_no_memory(&j->f);
    rg_sparse_algorithm_t a = j->how.algorithm;
    j->gather = a == RG_SPARSE_GATHER || (a == RG_SPARSE_BY_SIZE && j->f.n <= 2) || j->f.n == 1;
    rg_flaw_t arrived = RG_FLAW_NONE;
    st = say_heads(j);
    if (st == RG_OK) st = judge_heads(j);
    if (st == RG_AGAIN) { /* equal parts, which all can tell */
        j->z->cuts_len = 0;
        st = say_heads(j);
        if (st == RG_OK) st = judge_heads(j);
    }
    if (st == RG_AGAIN) st = RG_ERR_PROTOCOL;
    if (st == RG_OK) st = there(j, &arrived);
    if (st == RG_OK && j->gather) return gathered(j, arrived);
    if (st == RG_OK && j->how.result == RG_SPARSE_TOPK && j->how.topk >= TOPK_ASKS) st = narrow(j);
    if (st == RG_OK) st = back(j, arrived);
    if (st == RG_OK) st = fits(j);
    if (st == RG_OK && !pick_memory(j)) return rg_frame_no_memory(&j->f);
    if (st == RG_OK) st = sums_travel(j);
    if (st != RG_OK) return st;
    for (uint32_t r = 0; r < j->f.n; r++)
        if (r != j->f.rank && !part_to(j, r, NULL))
            return rg_frame_refuse(&j->f, RG_ERR_PROTOCOL, "%s: %s", j->f.name, rg_flaw_text(RG_FLAW_BYTES));
    if (j->how.result == RG_SPARSE_TOPK) largest(j);
    write_result(j, j->how.result == RG_SPARSE_TOPK ? &j->pick : NULL);
    return RG_OK;
}

/* ---- The call ---------------------------------------------------------------------------------------------------- */

static rg_flaw_t look_rest(const job_t *j) {
    if (j->how.rest == NULL) return RG_FLAW_NONE;
    rg_sparse_t to = *j->how.rest;
    to.values = to.index == RG_INDEX_DENSE ? to.n : j->in->values;
    return to.size != sizeof to || to.n != j->in->n || to.dtype != j->in->dtype || to.index == RG_INDEX_BLOCKS ||
                   j->how.rest->values < to.values || rg_list_form(&to) != RG_FLAW_NONE
               ? RG_FLAW_REST
               : RG_FLAW_NONE;
}

static rg_flaw_t look_finite(const job_t *j) {
    const float *v = (const float *)(const void *)j->in->val;
    int finite = 1;
    if (j->q == NULL || (j->q->flags & RG_QUANT_SATURATE)) return RG_FLAW_NONE;
    for (uint64_t i = 0; i < j->in->values; i++) finite &= isfinite(v[i]) != 0;
    return finite ? RG_FLAW_NONE : RG_FLAW_FINITE;
}

/* What is wrong here is told to the others, who are told what they have wrong in turn, so that all end alike. */
static rg_flaw_t look(job_t *j) {
    const rg_sparse_t *in = j->in;
    rg_flaw_t flaw = rg_list_form(in);
    if (flaw == RG_FLAW_NONE && j->q != NULL && in->dtype != RG_F32) flaw = RG_FLAW_TYPE;
    if (flaw != RG_FLAW_NONE) return flaw;
    rg_sparse_t to = *j->to;
    to.values = to.index == RG_INDEX_DENSE ? to.n : to.values < to.n ? to.values : to.n;
    int blocks = to.index == RG_INDEX_BLOCKS;
    if (to.n != in->n || to.dtype != in->dtype || (blocks && in->index != RG_INDEX_BLOCKS) ||
        (blocks && (rg_sparse_block(&to) != rg_sparse_block(in) || j->how.result == RG_SPARSE_TOPK)))
        return RG_FLAW_FORM;
    flaw = rg_list_form(&to);
    if (flaw != RG_FLAW_NONE) return flaw;
    if (to.index == RG_INDEX_DENSE && j->to->values < to.n) return RG_FLAW_ROOM;
    flaw = look_rest(j);
    if (flaw == RG_FLAW_NONE) flaw = look_finite(j);
    if (flaw != RG_FLAW_NONE) return flaw;
    if (!rg_room_for(&j->z->places, in->values * 8)) return RG_FLAW_MEMORY;
    return rg_list_places(in, (uint64_t *)j->z->places.p);
}

rg_status_t rg_sparse_how_in(rg_group_t *g, const rg_sparse_how_t *how, rg_sparse_how_t *out) {
    static const rg_sparse_how_t plain = RG_SPARSE_HOW_INIT;
    static const char *const name = "sparse all_reduce";
    *out = plain;
    if (how == NULL) return RG_OK;
    /* Programs that were built before values could be quantised know of nothing from there on. */
    if (how->size != sizeof *how && how->size != offsetof(rg_sparse_how_t, quant))
        return rg_refuse(g, RG_ERR_INVALID, "%s: how is not initialised: use RG_SPARSE_HOW_INIT", name);
    memcpy(out, how, how->size);
    if ((unsigned)out->op > RG_SPARSE_MIN || (unsigned)out->result > RG_SPARSE_AUTO ||
        (unsigned)out->algorithm > RG_SPARSE_FULL)
        return rg_refuse(g, RG_ERR_INVALID, "%s: operator %d, result %d, algorithm %d: one of them is unknown", name,
                         (int)out->op, (int)out->result, (int)out->algorithm);
    const rg_quant_t *q = out->quant;
    float x = 0;
    uint8_t w[128];
    if (q == NULL) return RG_OK;
    if (q->size != sizeof *q || rg_quant_encode(q, 0, 0, &x, 1, w) != RG_OK)
        return rg_refuse(
            g, RG_ERR_INVALID,
            "%s: how->quant is not initialised (RG_QUANT_INIT), or its wire form, flags or scale unknown or "
            "not allowed",
            name);
    if (q->form != RG_QUANT_AUTO)
        return rg_refuse(g, RG_ERR_NOTSUP, "%s: how->quant names the form %s; lists have algorithms instead", name,
                         rg_quant_form_name(q->form) != NULL ? rg_quant_form_name(q->form) : "?");
    return RG_OK;
}

double rg_sparse_bound(const rg_sparse_reducer_t *z) { return z != NULL ? z->bound : 0; }

rg_status_t rg_sparse_run(rg_sparse_reducer_t *z, const rg_sparse_t *in, rg_sparse_t *out, const rg_sparse_how_t *how,
                          const rg_opts_t *opts, rg_stop_t *stop) {
    job_t j = { .z = z, .in = in, .to = out };
    rg_status_t st = rg_frame_open(&j.f, z->g, "sparse all_reduce", opts);
    if (st == RG_OK) st = rg_sparse_how_in(z->g, how, &j.how);
    j.f.stop = stop;
    if (st == RG_OK && (in == NULL || in->size != sizeof *in || out == NULL || out->size != sizeof *out))
        st = rg_frame_refuse(&j.f, RG_ERR_INVALID, "%s: in or out is not initialised: use RG_SPARSE_INIT", j.f.name);
    if (st != RG_OK) return rg_frame_refused(&j.f, st, 1);
    j.q = j.how.quant;
    if (!rg_casts_init(&j.casts, in->dtype)) rg_casts_init(&j.casts, RG_F32);
    j.block = in->index == RG_INDEX_BLOCKS ? rg_sparse_block(in) : 0;
    j.flaw = look(&j);
    j.room = out->index == RG_INDEX_DENSE ? UINT64_MAX : out->values;
    do st = attempt(&j);
    while (rg_frame_more(&j.f, st, 1));
    z->calls += 2; /* what is begun again is rounded as it was */
    if (st == RG_OK) z->bound = j.q != NULL ? j.bound : 0;
    if (st == RG_ERR_CAPACITY) out->values = j.total;
    return rg_frame_close(&j.f, st);
}
