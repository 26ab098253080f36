/* seeded.c: all-reduces of elements that all members choose alike from a seed. Heads are compared first, since members
 * with different seeds would add up different elements without noticing; then values travel as in any all-reduce.
 * Relies on frame.h; must not write to the caller's output before the all-reduce has ended well. */
#include "sparse/reducer.h"
#include "regroup_sparse.h"

#include <string.h>

/* Spreads a number over 64 bits (the finaliser of SplitMix64: Steele, Lea, Flood 2014). */
static uint64_t spread(uint64_t v) {
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9ull;
    v = (v ^ v >> 27) * 0x94d049bb133111ebull;
    return v ^ v >> 31;
}

/* The bounds of the stretches are multiples of n / count, rounded down. */
static void at_random(uint64_t seed, uint64_t n, uint64_t count, uint64_t *at) {
    uint64_t each = n / count, rest = n % count, owed = 0, first = 0, key = spread(seed + 0x9e3779b97f4a7c15ull);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t len = each;
        owed += rest;
        if (owed >= count) owed -= count, len++;
        at[i] = first + spread(key + (i + 1) * 0x9e3779b97f4a7c15ull) % len;
        first += len;
    }
}

rg_status_t rg_seeded_places(rg_seeded_t pattern, uint64_t seed, uint64_t n, uint64_t count, uint64_t *at) {
    if (count > n || (unsigned)pattern > RG_SEEDED_SLICE || (count != 0 && at == NULL)) return RG_ERR_INVALID;
    if (count == 0) return RG_OK;
    if (pattern == RG_SEEDED_RANDOM) {
        at_random(seed, n, count, at);
        return RG_OK;
    }
    uint64_t step = pattern == RG_SEEDED_STRIDE ? n / count : 1, first;
    if (pattern == RG_SEEDED_STRIDE) first = seed % (n - (count - 1) * step);
    else first = seed % (n / count + (n % count != 0)) * count;
    if (first > n - 1 - (count - 1) * step) first = n - 1 - (count - 1) * step;
    for (uint64_t i = 0; i < count; i++) at[i] = first + i * step;
    return RG_OK;
}

typedef struct head {
    uint64_t call, members;
} head_t;

/* Whether all members mean the same elements; they all see the same heads. */
static rg_status_t agree(rg_frame_t *f, rg_sparse_reducer_t *z, uint64_t call) {
    rg_status_t st = rg_frame_shape(f);
    if (st != RG_OK) return st;
    head_t mine = { call, f->members };
    if (!rg_room_for(&z->small, f->n * sizeof mine)) return rg_frame_no_memory(f);
    const head_t *all = (const head_t *)z->small.p;
    st = rg_frame_ended(f,
                        rg_all_gather(f->g, &mine, z->small.p, sizeof mine, RG_U8, rg_frame_opts(f), rg_frame_req(f)));
    for (uint32_t r = 0; st == RG_OK && r < f->n; r++)
        if (all[r].members != f->members) st = rg_frame_apart(f, r);
    for (uint32_t r = 0; st == RG_OK && r < f->n; r++)
        if (all[r].call != call)
            st = rg_frame_refuse(
                f, RG_ERR_MISMATCH,
                "%s: rank %u calls it with another seed, pattern, count, length, type or operator than rank "
                "%u",
                f->name, r, f->rank);
    return st;
}

rg_status_t rg_seeded_run(rg_sparse_reducer_t *z, const void *in, void *out, uint64_t n, rg_dtype_t dtype,
                          const rg_seeded_how_t *how, const rg_opts_t *opts, rg_stop_t *stop) {
    rg_frame_t f;
    rg_status_t st = rg_frame_open(&f, z->g, "seeded all_reduce", opts);
    if (st != RG_OK) return rg_frame_refused(&f, st, 1);
    f.stop = stop;
    uint64_t width = rg_dtype_size(dtype);
    if (how == NULL || how->size != sizeof *how || width == 0 || (unsigned)how->pattern > RG_SEEDED_SLICE ||
        how->count > n || n > UINT64_MAX / 16)
        st = rg_frame_refuse(&f, RG_ERR_INVALID,
                             "%s: how is not initialised (RG_SEEDED_HOW_INIT), its pattern or the type unknown, or its "
                             "count more than n",
                             f.name);
    else if (how->count != 0 && (in == NULL || out == NULL))
        st = rg_frame_refuse(&f, RG_ERR_INVALID, "%s: %s is NULL", f.name, in == NULL ? "in" : "out");
    if (st != RG_OK) return rg_frame_refused(&f, st, 1);
    uint64_t call = rg_frame_mix(rg_frame_mix(0x73656564u, n), how->seed);
    call = rg_frame_mix(rg_frame_mix(call, how->count), (uint64_t)how->pattern << 32 | (uint64_t)dtype << 8 | how->op);
    int memory = rg_room_for(&z->places, how->count * 8) && rg_room_for(&z->out, how->count * width) &&
                 rg_room_for(&z->in, how->count * width);
    do {
        if (memory) st = agree(&f, z, call);
        else if ((st = rg_frame_shape(&f)) == RG_OK) st = rg_frame_no_memory(&f);
    } while (rg_frame_more(&f, st, 1));
    if (st != RG_OK) return rg_frame_close(&f, st);
    uint64_t *at = (uint64_t *)z->places.p;
    rg_seeded_places(how->pattern, how->seed, n, how->count, at);
    for (uint64_t i = 0; i < how->count; i++)
        memcpy(z->out.p + i * width, (const uint8_t *)in + at[i] * width, (size_t)width);
    rg_frame_opts(&f);
    f.o.on_fault = f.on_fault;
    st = rg_frame_done(&f, rg_all_reduce(z->g, z->out.p, z->in.p, how->count, dtype, how->op, &f.o, rg_frame_req(&f)));
    f.again += f.r.retries;
    f.sent += f.r.bytes_sent;
    f.received += f.r.bytes_received;
    for (uint64_t i = 0; st == RG_OK && i < how->count; i++)
        memcpy((uint8_t *)out + at[i] * width, z->in.p + i * width, (size_t)width);
    return rg_frame_close(&f, st);
}
