/* test_memory.c: rg_alloc() and rg_register(): what is refused and why, that nothing stays behind, and that idle
 * scratch of a group is bounded. Relies on the engine's group only as the place that holds blocks; no group is joined.
 */
#include "engine/group.h"
#include "memory.h"
#include "os/shared.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static int descriptors(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

Test(memory, alloc__any_size__zeroed_aligned_shared_and_gone_after) {
    static const size_t sizes[] = { 1, 4096, 100000, 5u << 20 };
    int before = descriptors();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        rg_error_t err = { RG_OK, 0, "" };
        rg_region_t r;
        uint8_t *p;
        void *v = NULL;
        cr_assert_eq(rg_alloc(sizes[i], &v, &err), RG_OK, "%s", err.text);
        p = v;
        cr_assert_eq((uintptr_t)p % 4096, 0);
        for (size_t k = 0; k < sizes[i]; k++) cr_assert_eq(p[k], 0);
        memset(p, 7, sizes[i]);
        cr_assert(rg_shared_find(p, sizes[i], &r) && r.base == p && r.len >= sizes[i]);
        if (i % 2) rg_free(p); /* either will do */
        else rg_free_memory(p);
        cr_assert(!rg_shared_find(p, 1, &r));
    }
    cr_assert_eq(descriptors(), before);
}

Test(memory, alloc__nothing_or_too_much__status_and_text) {
    rg_error_t err = { RG_OK, 0, "" };
    void *p = &err;
    cr_assert_eq(rg_alloc(0, &p, &err), RG_ERR_INVALID);
    cr_assert(!p && strstr(err.text, "0 bytes"), "%s", err.text);
    cr_assert_eq(rg_alloc(8, NULL, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_alloc(SIZE_MAX, &p, &err), RG_ERR_NOMEM);
    cr_assert(!p && err.text[0]);
    cr_assert_eq(rg_alloc((size_t)1 << 50, &p, NULL), RG_ERR_NOMEM);
    rg_free_memory(NULL);
    rg_free_memory(&err); /* not ours: nothing happens */
}

Test(memory, register__ranges__found_until_unregistered) {
    static char area[1000];
    rg_error_t err = { RG_OK, 0, "" };
    cr_assert_eq(rg_register(area + 100, 100, &err), RG_OK, "%s", err.text);
    cr_assert_eq(rg_register(area + 300, 100, &err), RG_OK);
    cr_assert_eq(rg_register(area + 200, 100, &err), RG_OK); /* between two, touching both */
    cr_assert(rg_memory_registered(area + 100, 100) && rg_memory_registered(area + 250, 50));
    cr_assert(!rg_memory_registered(area + 150, 100) && !rg_memory_registered(area, 1));
    cr_assert(!rg_memory_registered(area + 400, 1) && !rg_memory_registered(area + 350, SIZE_MAX));
    cr_assert_eq(rg_unregister(area + 200), RG_OK);
    cr_assert(!rg_memory_registered(area + 250, 1) && rg_memory_registered(area + 399, 1));
    cr_assert_eq(rg_unregister(area + 100), RG_OK);
    cr_assert_eq(rg_unregister(area + 300), RG_OK);
}

Test(memory, register__overlap_unknown_or_impossible__refused_with_text) {
    static char area[1000];
    rg_error_t err = { RG_OK, 0, "" };
    cr_assert_eq(rg_register(area + 100, 100, NULL), RG_OK);
    static const size_t bad[][2] = { { 0, 101 }, { 100, 100 }, { 150, 10 }, { 199, 500 }, { 0, 1000 } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err.text[0] = 0;
        cr_assert_eq(rg_register(area + bad[i][0], bad[i][1], &err), RG_ERR_INVALID);
        cr_assert(strstr(err.text, "overlap"), "%s", err.text);
    }
    cr_assert_eq(rg_register(NULL, 10, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_register(area, 0, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_register(area + 500, SIZE_MAX, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_unregister(area), RG_ERR_INVALID);
    cr_assert_eq(rg_unregister(area + 101), RG_ERR_INVALID);
    cr_assert_eq(rg_unregister(NULL), RG_ERR_INVALID);
    cr_assert_eq(rg_unregister(area + 100), RG_OK);
    cr_assert_eq(rg_unregister(area + 100), RG_ERR_INVALID);
}

/* ---- Scratch of a group ---- */

static size_t idle_bytes(const rg_group_t *g, uint32_t *n) {
    size_t bytes = 0;
    *n = 0;
    for (int i = 0; i < RG_BLOCK_CLASSES; i++)
        for (const rg_block_t *b = g->blocks[i]; b; b = b->next) {
            bytes += b->cap;
            ++*n;
        }
    return bytes;
}

Test(memory, blocks__many_sizes_in_use_at_once__idle_ones_stay_bounded) {
    rg_group_t *g = calloc(1, sizeof *g);
    rg_block_t *held[600];
    rg_region_t r;
    uint32_t n;
    int before = descriptors();
    cr_assert(g);
    for (int shared = 0; shared < 2; shared++) {
        g->blocks_shared = shared;
        for (size_t i = 0; i < 600; i++) {
            size_t bytes = i < 560 ? (i % 7 + 1) * 4000 : (i - 559) * 100000;
            held[i] = rg_block_get(g, bytes);
            cr_assert(held[i] && held[i]->cap >= bytes);
            memset(held[i]->p, 1, bytes);
            cr_assert_eq(rg_shared_find(held[i]->p, bytes, &r), shared && bytes >= 65536);
        }
        for (size_t i = 0; i < 600; i++) rg_block_put(g, held[i]);
        cr_assert_leq(idle_bytes(g, &n), (4u << 20) + 8 * (1u << 20) + 6 * (6u << 20));
        cr_assert_leq(descriptors(), before + (shared ? 14 : 0));
        rg_block_t *again = rg_block_get(g, 4u << 20); /* what was used last is used again */
        cr_assert_eq(again->p, held[599]->p);
        rg_block_put(g, again);
        rg_blocks_free(g);
    }
    cr_assert_eq(idle_bytes(g, &n), 0);
    cr_assert_null(rg_block_get(g, SIZE_MAX - 5));
    cr_assert_eq(descriptors(), before);
    free(g);
}
