/* test_model.c: which figures of the links hold for operations of which generation. It relies on src/engine/model.c and
 * on views made by hand. */
#include "engine/group.h"

#include <criterion/criterion.h>
#include <string.h>

static rg_core_member_t members[3];

static rg_core_view_t view_of(rg_view_kind_t kind, uint64_t cut, uint32_t n, uint8_t figure) {
    for (uint32_t i = 0; i < n; i++) {
        members[i].id = i + 1;
        memset(members[i].net, figure, sizeof members[i].net);
    }
    return (rg_core_view_t){ .kind = kind, .cut = cut, .n = n, .members = members };
}

static int figure_at(const rg_nets_t *list, uint64_t gen, uint64_t id) {
    const uint8_t *p = rg_nets_at(list, gen, id);
    return p ? p[0] : -1;
}

Test(model, newcomers_enter_while_operations_run__members_choose_by_the_same_figures) {
    rg_nets_t *early = NULL, *late = NULL;
    rg_core_view_t v = view_of(RG_VIEW_FIRST, 0, 2, 10);
    cr_assert(rg_nets_add(&early, &v, 0));
    cr_assert(rg_nets_add(&late, &v, 0));
    /* One of the two hears of the newcomer before it begins an operation of generation 4, the other one after. */
    v = view_of(RG_VIEW_JOIN, 5, 3, 20);
    cr_assert(rg_nets_add(&early, &v, 4));
    cr_expect_eq(figure_at(early, 4, 1), 10);
    cr_expect_eq(figure_at(late, 4, 1), 10);
    cr_assert(rg_nets_add(&late, &v, 4));
    cr_expect_eq(figure_at(late, 5, 1), 20);
    cr_expect_eq(figure_at(early, 5, 1), 20);
    cr_expect_eq(figure_at(early, 4, 3), -1, "the newcomer has no part in generation 4");
    /* Two more views of newcomers before generation 5 is left. */
    v = view_of(RG_VIEW_JOIN, 6, 3, 30);
    cr_assert(rg_nets_add(&early, &v, 5));
    v = view_of(RG_VIEW_JOIN, 9, 3, 40);
    cr_assert(rg_nets_add(&early, &v, 5));
    cr_expect_eq(figure_at(early, 5, 1), 20);
    cr_expect_eq(figure_at(early, 8, 1), 30);
    cr_expect_eq(figure_at(early, 9, 1), 40);
    rg_nets_free(&early);
    rg_nets_free(&late);
    cr_expect_null(early);
}

Test(model, recovery__new_figures_for_everything) {
    rg_nets_t *list = NULL;
    rg_core_view_t v = view_of(RG_VIEW_FIRST, 0, 2, 10);
    cr_assert(rg_nets_add(&list, &v, 0));
    v = view_of(RG_VIEW_JOIN, 5, 3, 20);
    cr_assert(rg_nets_add(&list, &v, 4));
    v = view_of(RG_VIEW_RECOVERY, 0, 2, 30);
    cr_assert(rg_nets_add(&list, &v, 4));
    cr_expect_eq(figure_at(list, 4, 1), 30);
    cr_expect_null(list->older);
    rg_nets_free(&list);
}

Test(model, generations_that_are_over__their_figures_are_forgotten) {
    rg_nets_t *list = NULL;
    uint32_t kept = 0;
    for (uint64_t gen = 1; gen < 100; gen++) {
        rg_core_view_t v = view_of(RG_VIEW_JOIN, gen, 3, (uint8_t)gen);
        cr_assert(rg_nets_add(&list, &v, gen));
    }
    for (rg_nets_t *s = list; s; s = s->older) kept++;
    cr_expect_eq(kept, 1);
    cr_expect_eq(figure_at(list, 3, 1), 99, "what is too old to be known is what is oldest now");
    rg_nets_free(&list);
}
