/* layout.c: where the elements of a user's buffer are when it is not one piece: rows with a pitch, or a list of
 * buffers. An operation counts its elements in one line; this file finds the memory of a place on that line and how far
 * it goes on without a break. It relies on what src/api*.c has checked; it must not read or write between the rows. */
#include "engine/group.h"

#include <string.h>

void rg_layout_plain(rg_layout_t *l, const void *base, uint32_t elem) {
    l->kind = RG_LAYOUT_PLAIN;
    l->elem = elem;
    l->base = (uint8_t *)(uintptr_t)base;
}

static uint8_t *list_at(const rg_layout_t *l, uint64_t off, uint64_t *run) {
    uint64_t seg = off / l->seg, in = off % l->seg;
    uint32_t low = 0, high = l->n; /* the last buffer that starts at or before `in`, of those that have elements */
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (l->starts[mid] <= in) low = mid;
        else high = mid;
    }
    uint64_t count = l->starts[low + 1] - l->starts[low];
    *run = l->starts[low + 1] - in;
    return l->ptrs[low] + (seg * count + in - l->starts[low]) * l->elem;
}

/* Element `off`, and in *run how many follow without a break, itself included. */
uint8_t *rg_layout_at(const rg_layout_t *l, uint64_t off, uint64_t *run) {
    if (l->kind == RG_LAYOUT_LIST) return list_at(l, off, run);
    if (l->kind == RG_LAYOUT_ROWS) {
        *run = l->row - off % l->row;
        return l->base + (off / l->row * l->pitch + off % l->row) * l->elem;
    }
    *run = UINT64_MAX;
    return l->base + off * l->elem;
}

/* The address of n elements from `off` on when they are one piece, else NULL. */
uint8_t *rg_layout_piece(const rg_layout_t *l, uint64_t off, uint64_t n) {
    uint64_t run;
    if (!n) return l->base; /* nothing to find: the place may be past the end */
    uint8_t *p = rg_layout_at(l, off, &run);
    return run >= n ? p : NULL;
}

void rg_layout_read(const rg_layout_t *l, uint64_t off, void *to, uint64_t n) {
    uint8_t *dst = to;
    while (n) {
        uint64_t run;
        const uint8_t *src = rg_layout_at(l, off, &run);
        if (run > n) run = n;
        memcpy(dst, src, run * l->elem);
        dst += run * l->elem;
        off += run;
        n -= run;
    }
}

void rg_layout_write(const rg_layout_t *l, uint64_t off, const void *from, uint64_t n) {
    const uint8_t *src = from;
    while (n) {
        uint64_t run;
        uint8_t *dst = rg_layout_at(l, off, &run);
        if (run > n) run = n;
        memcpy(dst, src, run * l->elem);
        src += run * l->elem;
        off += run;
        n -= run;
    }
}
