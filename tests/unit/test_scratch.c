/* test_scratch.c: how much scratch an operation may need, asked of the schedules themselves: no algorithm takes more
 * than docs/memory.md says, for any size, rank and count that is tried. PRINT_SCRATCH=1 in the environment prints the
 * table of that page. It must not run anything. */
#include "sched/sched.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#define CHUNK 32768u /* elements of a piece where an algorithm has no preference */

/* Elements of TMP, the most of all ranks; UINT64_MAX: it does not apply. */
static uint64_t scratch(const rg_algorithm_t *alg, uint32_t size, uint64_t count) {
    uint64_t most = 0;
    if (alg->kind == RG_KIND_P2P && size != 2) return UINT64_MAX;
    for (uint32_t rank = 0; rank < size; rank++) {
        rg_coll_desc_t d = { .kind = alg->kind,
                             .size = size,
                             .rank = rank,
                             .count = count,
                             .elem_size = 4,
                             .acc_size = 4,
                             .chunk = CHUNK,
                             .rule_l = 1 };
        rg_schedule_t *s = NULL;
        uint32_t hosts[32];
        const rg_topology_t two_hosts = { .levels = 1, .group = hosts };
        for (uint32_t i = 0; i < size; i++) hosts[i] = i % 2;
        if (alg->applies && !alg->applies(&d)) d.topo = &two_hosts; /* those that want to know where the ranks are */
        if (alg->applies && !alg->applies(&d)) return UINT64_MAX;
        if (alg->chunk) d.chunk = alg->chunk(&d);
        if (!d.chunk) d.chunk = 1;
        cr_assert_eq(rg_sched_build(alg, &d, &s), RG_OK, "%s %s %u", rg_kind_name(alg->kind), alg->name, size);
        if (s->tmp_elems > most) most = s->tmp_elems;
        rg_sched_free(s);
    }
    return most;
}

static const uint32_t sizes[] = { 2, 3, 8, 13, 32 };
static const uint64_t totals[] = { 1024, 65536, 4u << 20 }; /* elements of the operand: 4 KiB, 256 KiB, 16 MiB */

Test(scratch, algorithms__all_sizes_and_counts__within_what_is_documented) {
    const int print = getenv("PRINT_SCRATCH") != NULL;
    for (const rg_algorithm_t *const *a = rg_algorithms; *a; a++) {
        if (print) printf("| %s %s |", rg_kind_name((*a)->kind), (*a)->name);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t k = 0; k < sizeof totals / sizeof *totals; k++) {
                uint64_t n = sizes[i], count = rg_kind_segmented((*a)->kind) ? totals[k] / n : totals[k];
                uint64_t most = scratch(*a, sizes[i], count), whole = rg_kind_segmented((*a)->kind) ? count * n : count;
                if (print && (n == 8 || (n == 32 && k == 2))) {
                    if (most == UINT64_MAX) printf(" - |");
                    else printf(" %.2f |", (double)most / (double)whole);
                }
                if (most == UINT64_MAX) continue;
                /* Up to 256 KiB a copy from each rank; beyond, two operands. Parts are rounded up to cache lines. */
                uint64_t bound = (k < 2 ? n : 2) * whole + 64 * n;
                cr_assert_leq(most, bound, "%s %s: %u ranks, %llu elements: %llu of TMP", rg_kind_name((*a)->kind),
                              (*a)->name, sizes[i], (unsigned long long)count, (unsigned long long)most);
            }
        if (print) printf("\n");
    }
}
