/* collective.c: see collective.h. Reductions are fed with the small integers of pattern.h; where data are only moved,
 * bytes that tell member and place apart are better at finding what went astray. It must not judge a result by what the
 * library says about it. */
#include "collective.h"
#include "pattern.h"
#include "tool.h"

#include <stdlib.h>
#include <string.h>

#define COLL_PERIOD 251u /* bytes; prime, so that segments do not look alike */

const char *coll_name(coll_kind_t kind) {
    static const char *const names[] = {
#define COLL_TEXT(name, text) text,
        COLL_LIST(COLL_TEXT)
#undef COLL_TEXT
    };
    return kind < COLL_COUNT ? names[kind] : "?";
}

int coll_find(const char *name, coll_kind_t *kind) {
    for (int k = 0; k < COLL_COUNT; k++)
        if (!strcmp(name, coll_name((coll_kind_t)k))) return *kind = (coll_kind_t)k, 1;
    return 0;
}

int coll_reduces(coll_kind_t kind) {
    return kind == COLL_ALL_REDUCE || kind == COLL_REDUCE || kind == COLL_REDUCE_SCATTER;
}

int coll_rooted(coll_kind_t kind) {
    return kind == COLL_BROADCAST || kind == COLL_REDUCE || kind == COLL_GATHER || kind == COLL_SCATTER;
}

static int coll_segmented(coll_kind_t kind) {
    return kind == COLL_ALL_GATHER || kind == COLL_REDUCE_SCATTER || kind == COLL_GATHER || kind == COLL_SCATTER ||
           kind == COLL_ALL_TO_ALL;
}

double coll_bus_factor(coll_kind_t kind, uint32_t n) {
    if (kind == COLL_ALL_REDUCE) return 2.0 * (n - 1) / n;
    return coll_segmented(kind) ? (double)(n - 1) / n : 1;
}

/* ---- Shapes
 * ----------------------------------------------------------------------------------------------------
 */

uint64_t coll_count(const struct coll *c, uint64_t bytes) {
    uint64_t count = bytes / rg_dtype_size(c->dtype);
    if (c->kind == COLL_BARRIER) return 0;
    if (!coll_segmented(c->kind)) return count;
    count /= c->info.world_size;
    return count ? count : 1;
}

uint64_t coll_bytes(const struct coll *c, uint64_t count) {
    return count * rg_dtype_size(c->dtype) * (coll_segmented(c->kind) ? c->info.world_size : 1);
}

/* Bytes of one segment, and of all that a buffer holds. */
static size_t coll_part(const struct coll *c, uint64_t count) { return count * rg_dtype_size(c->dtype); }

static int coll_whole_in(coll_kind_t k) {
    return k == COLL_REDUCE_SCATTER || k == COLL_SCATTER || k == COLL_ALL_TO_ALL;
}

static int coll_whole_out(coll_kind_t k) { return k == COLL_ALL_GATHER || k == COLL_GATHER || k == COLL_ALL_TO_ALL; }

/* Who has an input to write, and who has a result. */
static int coll_has_in(const struct coll *c) {
    if (c->kind == COLL_BROADCAST || c->kind == COLL_SCATTER) return c->info.rank == c->root;
    return c->kind == COLL_SEND_RECV ? c->info.rank == 0 : c->kind != COLL_BARRIER;
}

static int coll_has_out(const struct coll *c) {
    if (c->kind == COLL_REDUCE || c->kind == COLL_GATHER) return c->info.rank == c->root;
    return c->kind == COLL_SEND_RECV ? c->info.rank < 2 : c->kind != COLL_BARRIER;
}

static void coll_buffers(const struct coll *c, uint64_t count, uint8_t **in, uint8_t **out) {
    size_t own = c->info.rank * coll_part(c, count);
    int at_root = !coll_rooted(c->kind) || c->info.rank == c->root;
    *in = c->mem[0];
    *out = c->mem[1];
    if (c->kind == COLL_BROADCAST) *in = *out;
    if (!c->in_place || c->kind == COLL_SEND_RECV || !at_root) return;
    *in = *out = c->mem[1];
    if (c->kind == COLL_ALL_GATHER || c->kind == COLL_GATHER) *in += own;
    if (c->kind == COLL_REDUCE_SCATTER || c->kind == COLL_SCATTER) *out += own;
}

int coll_open(struct coll *c, uint64_t bytes) {
    uint64_t least = 8ull * 1024 + 4096; /* one element for everybody */
    if (bytes < least) bytes = least;
    for (int i = 0; i < 2; i++) {
        void *p = NULL;
        if (c->alloc ? rg_alloc(bytes, &p, NULL) != RG_OK : posix_memalign(&p, 4096, bytes) != 0) return -1;
        c->mem[i] = p;
        memset(p, 0, bytes);
    }
    return 0;
}

void coll_close(struct coll *c) {
    for (int i = 0; i < 2; i++) {
        if (c->alloc) rg_free_memory(c->mem[i]);
        else free(c->mem[i]);
        c->mem[i] = NULL;
    }
}

/* ---- Inputs and results
 * ----------------------------------------------------------------------------------------
 */

/* Byte i of what member `rank` owns, from byte `first` on. */
static void coll_block(uint8_t *block, uint32_t rank, size_t first) {
    for (size_t i = 0; i < COLL_PERIOD; i++) block[i] = (uint8_t)((first + i) % COLL_PERIOD + rank * 37u);
}

static void coll_spread(uint8_t *p, size_t len, uint32_t rank) {
    uint8_t block[16 * COLL_PERIOD];
    for (size_t k = 0; k < 16; k++) coll_block(block + k * COLL_PERIOD, rank, 0);
    for (size_t i = 0; i < len; i += sizeof block)
        memcpy(p + i, block, len - i < sizeof block ? len - i : sizeof block);
}

/* Elements of `elem` bytes in which p differs from what `rank` owns at `first`. / */
static uint64_t coll_differ(const uint8_t *p, size_t len, size_t elem, uint32_t rank, size_t first) {
    uint8_t block[8 * COLL_PERIOD]; /* a whole number of elements and of periods */
    uint64_t wrong = 0;
    for (size_t k = 0; k < 8; k++) coll_block(block + k * COLL_PERIOD, rank, first);
    for (size_t i = 0; i < len; i += sizeof block) {
        size_t n = len - i < sizeof block ? len - i : sizeof block;
        if (!memcmp(p + i, block, n)) continue;
        for (size_t k = 0; k < n; k += elem) wrong += memcmp(p + i + k, block + k, elem) != 0;
    }
    return wrong;
}

void coll_fill(struct coll *c, uint64_t count) {
    uint64_t all = count * (coll_whole_in(c->kind) ? c->info.world_size : 1);
    uint8_t *in, *out;
    if (!coll_has_in(c)) return;
    coll_buffers(c, count, &in, &out);
    if (coll_reduces(c->kind)) pattern_fill(c->dtype, c->op, c->info.rank, in, all);
    else coll_spread(in, coll_part(c, all), c->info.rank);
}

uint64_t coll_wrong(const struct coll *c, uint64_t count) {
    size_t part = coll_part(c, count), elem = rg_dtype_size(c->dtype);
    uint32_t n = c->info.world_size, me = c->info.rank;
    uint64_t wrong = 0;
    uint8_t *in, *out;
    if (!coll_has_out(c)) return 0;
    coll_buffers(c, count, &in, &out);
    if (coll_reduces(c->kind))
        return pattern_count_wrong_at(c->dtype, c->op, n, c->kind == COLL_REDUCE_SCATTER ? me * count : 0, out, count);
    if (!coll_whole_out(c->kind))
        return coll_differ(out, part, elem, c->kind == COLL_SEND_RECV ? 0 : c->root,
                           c->kind == COLL_SCATTER ? me * part : 0);
    for (uint32_t r = 0; r < n; r++)
        wrong += coll_differ(out + r * part, part, elem, r, c->kind == COLL_ALL_TO_ALL ? me * part : 0);
    return wrong;
}

/* ---- The call
 * --------------------------------------------------------------------------------------------------
 */

/* There and back between the first two; whoever comes after them has nothing to do. */
static rg_status_t coll_ping(struct coll *c, const uint8_t *in, uint8_t *out, uint64_t count, const rg_opts_t *o) {
    rg_status_t s = RG_OK;
    if (c->info.rank == 0) {
        s = rg_send(c->g, in, count, c->dtype, 1, o, NULL);
        return s ? s : rg_recv(c->g, out, count, c->dtype, 1, o, NULL);
    }
    if (c->info.rank == 1) {
        s = rg_recv(c->g, out, count, c->dtype, 0, o, NULL);
        return s ? s : rg_send(c->g, out, count, c->dtype, 0, o, NULL);
    }
    return s;
}

rg_status_t coll_call(struct coll *c, uint64_t count, rg_result_t *res, double *us) {
    rg_opts_t opts = RG_OPTS_INIT;
    rg_status_t s = RG_ERR_NOTSUP;
    uint8_t *in, *out;
    coll_buffers(c, count, &in, &out);
    opts.result = res;
    uint64_t t = tool_now_ns();
    switch (c->kind) {
    case COLL_ALL_REDUCE: s = rg_all_reduce(c->g, in, out, count, c->dtype, c->op, &opts, NULL); break;
    case COLL_ALL_GATHER: s = rg_all_gather(c->g, in, out, count, c->dtype, &opts, NULL); break;
    case COLL_REDUCE_SCATTER: s = rg_reduce_scatter(c->g, in, out, count, c->dtype, c->op, &opts, NULL); break;
    case COLL_BROADCAST: s = rg_broadcast(c->g, out, count, c->dtype, c->root, &opts, NULL); break;
    case COLL_REDUCE: s = rg_reduce(c->g, in, out, count, c->dtype, c->op, c->root, &opts, NULL); break;
    case COLL_GATHER: s = rg_gather(c->g, in, out, count, c->dtype, c->root, &opts, NULL); break;
    case COLL_SCATTER: s = rg_scatter(c->g, in, out, count, c->dtype, c->root, &opts, NULL); break;
    case COLL_ALL_TO_ALL: s = rg_all_to_all(c->g, in, out, count, c->dtype, &opts, NULL); break;
    case COLL_SEND_RECV: s = coll_ping(c, in, out, count, &opts); break;
    case COLL_BARRIER: s = rg_barrier(c->g, &opts, NULL); break;
    case COLL_COUNT: break;
    }
    *us = (double)(tool_now_ns() - t) / 1e3 / (c->kind == COLL_SEND_RECV ? 2 : 1);
    return s;
}
