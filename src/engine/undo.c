/* undo.c: the undo log of an in-place operation: before a final value covers a part of the input, that part is saved,
 * so that an operation that does not succeed gives the input back (promise 2). It relies on every write to OUT coming
 * through here first. Blocks are saved whole and once; nothing is allocated while data move. */
#include "engine/group.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK 4096u
/* From this size the log is written past the cache: it is read only after a fault. Smaller logs stay in cache from one
 * operation to the next, where an ordinary copy is quicker. */
#define STREAM_FROM (4u << 20)
/* How much of an arriving piece is saved and then reduced: what the save has read is still in L1 for the reduction. */
#define BITE 16384u

static uint64_t blocks_of(const rg_request_t *op) { return (op->bytes + BLOCK - 1) / BLOCK; }

/* Readies the log for op->bytes. 0 when memory is out. */
int rg_undo_begin(rg_request_t *op) {
    uint64_t words = (blocks_of(op) + 63) / 64;
    if (words > op->cap_saved) {
        free(op->saved);
        op->saved = malloc(words * sizeof *op->saved);
        op->cap_saved = op->saved ? words : 0;
        if (!op->saved) return 0;
    }
    /* Last: a log without its bitmap cannot be read. */
    if (!op->undo && !(op->undo = rg_block_get_private(op->g, op->bytes))) return 0;
    memset(op->saved, 0, words * sizeof *op->saved);
    return 1;
}

/* Keeps all of OUT, because the input is changed at once. 0 when memory is out. */
int rg_undo_begin_whole(rg_request_t *op) {
    if (!op->undo && !(op->undo = rg_block_get_private(op->g, op->bytes))) return 0;
    rg_layout_read(&op->out, 0, op->undo->p, op->bytes / op->elem);
    op->saved_whole = 1;
    return 1;
}

static int is_saved(const rg_request_t *op, uint64_t b) { return (int)(op->saved[b >> 6] >> (b & 63) & 1); }

static void save_run(rg_request_t *op, uint64_t from, uint64_t to) {
    uint64_t off = from * BLOCK, end = to * BLOCK < op->bytes ? to * BLOCK : op->bytes;
    uint8_t *dst = (uint8_t *)op->undo->p + off;
    if (op->lay[RG_BUF_OUT]) rg_layout_read(op->lay[RG_BUF_OUT], off / op->elem, dst, (end - off) / op->elem);
    else if (op->bytes >= STREAM_FROM) rg_copy_past_cache(dst, op->buf[RG_BUF_OUT] + off, end - off);
    else memcpy(dst, op->buf[RG_BUF_OUT] + off, end - off);
    for (uint64_t b = from; b < to; b++) op->saved[b >> 6] |= 1ull << (b & 63);
}

/* To be called before bytes [off, off + len) of OUT are written. */
void rg_undo_cover(rg_request_t *op, uint64_t off, uint64_t len) {
    if (!op->undo || op->saved_whole || !len) return;
    uint64_t b = off / BLOCK, end = (off + len - 1) / BLOCK + 1;
    while (b < end) {
        while (b < end && is_saved(op, b)) b++;
        uint64_t from = b;
        while (b < end && !is_saved(op, b)) b++;
        if (b > from) save_run(op, from, b);
    }
}

/* Puts back what was covered. The log is empty afterwards. */
void rg_undo_restore(rg_request_t *op) {
    if (op->sig.kind == RG_KIND_ALL_TO_ALL && op->in_place && op->own_in && op->plan) {
        rg_op_input_back(op);
        return;
    }
    if (!op->undo) return;
    if (op->saved_whole) {
        rg_layout_write(&op->out, 0, op->undo->p, op->bytes / op->elem);
        op->saved_whole = 0;
        return;
    }
    for (uint64_t b = 0, n = blocks_of(op); b < n; b++) {
        if (!is_saved(op, b)) continue;
        uint64_t off = b * BLOCK, len = off + BLOCK <= op->bytes ? BLOCK : op->bytes - off;
        rg_layout_write(&op->out, off / op->elem, (uint8_t *)op->undo->p + off, len / op->elem);
        op->saved[b >> 6] &= ~(1ull << (b & 63));
    }
}

/* A reduction into OUT that saves what it covers just before: fits rg_reduce_fn with an rg_covered_t. */
void rg_undo_reduce(const void *ctx, void *dst, const void *a, const void *b, size_t n) {
    const rg_covered_t *c = ctx;
    uint8_t *d = dst;
    const uint8_t *pa = a, *pb = b;
    while (n) {
        size_t k = BITE / c->op->elem < n ? BITE / c->op->elem : n;
        rg_undo_cover(c->op, (uint64_t)(d - c->op->buf[RG_BUF_OUT]), k * c->op->elem);
        rg_red_run(c->red, d, pa, pb, k);
        d += k * c->op->elem;
        pa += k * c->a_elem;
        pb += k * c->b_elem;
        n -= k;
    }
}
