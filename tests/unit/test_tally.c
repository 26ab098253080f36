/* test_tally.c: when a round of a quorum reduction is decided and who is in it, played through with made-up times. It
 * relies on src/quorum/tally.h alone. */
#include "quorum/tally.h"

#include <criterion/criterion.h>

#define MS 1000000ull

typedef struct table {
    rg_tally_t t;
    rg_seat_t s[5], *seats[5];
    uint64_t at;
} table_t;

static void sit(table_t *x, uint32_t at_least, uint32_t at_most, uint64_t grace_ms, uint64_t max_wait_ms) {
    *x = (table_t){
        .t = { .at_least = at_least, .at_most = at_most, .grace_ns = grace_ms * MS, .max_wait_ns = max_wait_ms * MS }
    };
    for (uint32_t i = 0; i < 5; i++) {
        x->s[i].id = i + 1;
        x->seats[i] = &x->s[i];
    }
    rg_tally_open(&x->t);
}

static rg_tally_verdict_t judge(table_t *x, uint32_t n, uint64_t ms) {
    x->at = UINT64_MAX;
    return rg_tally_judge(&x->t, x->seats, n, ms * MS, &x->at);
}

static void come(table_t *x, uint32_t i) { rg_tally_arrive(&x->t, &x->s[i], 1); }

Test(tally, k_of_n_without_grace__decided_with_the_k_th) {
    table_t x;
    sit(&x, 2, 0, 0, 0);
    cr_assert_eq(judge(&x, 4, 1), RG_TALLY_WAIT);
    cr_assert_eq(x.at, UINT64_MAX);
    come(&x, 2);
    cr_assert_eq(judge(&x, 4, 2), RG_TALLY_WAIT);
    come(&x, 0);
    cr_assert_eq(judge(&x, 4, 3), RG_TALLY_DECIDE);
    cr_assert(x.s[0].taken && !x.s[1].taken && x.s[2].taken && !x.s[3].taken);
}

Test(tally, grace__the_rest_is_waited_for_once_and_no_longer) {
    table_t x;
    sit(&x, 2, 0, 20, 0);
    come(&x, 0);
    come(&x, 1);
    cr_assert_eq(judge(&x, 4, 100), RG_TALLY_WAIT);
    cr_assert_eq(x.at, 120 * MS);
    come(&x, 2);
    cr_assert_eq(judge(&x, 4, 110), RG_TALLY_WAIT);
    cr_assert_eq(judge(&x, 4, 120), RG_TALLY_DECIDE);
    for (int i = 0; i < 4; i++) rg_tally_close(&x.s[i]);
    rg_tally_open(&x.t);
    for (uint32_t i = 0; i < 3; i++) come(&x, i);
    cr_assert_eq(judge(&x, 4, 121), RG_TALLY_DECIDE, "the one that was late is not waited for");
    cr_assert(rg_tally_forgives(&x.t, 121 * MS, 130 * MS));
    cr_assert_not(rg_tally_forgives(&x.t, 121 * MS, 142 * MS));
}

Test(tally, all_have_come__decided_within_the_grace) {
    table_t x;
    sit(&x, 2, 0, 20, 0);
    for (uint32_t i = 0; i < 4; i++) come(&x, i);
    cr_assert_eq(judge(&x, 4, 1), RG_TALLY_DECIDE);
}

Test(tally, at_most__the_first_to_come_are_taken) {
    table_t x;
    sit(&x, 2, 2, 1000, 0);
    come(&x, 3);
    come(&x, 1);
    come(&x, 0);
    cr_assert_eq(judge(&x, 5, 1), RG_TALLY_DECIDE);
    cr_assert(x.s[3].taken && x.s[1].taken && !x.s[0].taken);
}

Test(tally, at_most_below_the_half_that_is_needed__the_half_is_taken) {
    table_t x;
    sit(&x, 0, 2, 1000, 0);
    come(&x, 3);
    come(&x, 1);
    cr_assert_eq(judge(&x, 5, 1), RG_TALLY_WAIT);
    come(&x, 0);
    cr_assert_eq(judge(&x, 5, 1), RG_TALLY_DECIDE);
    cr_assert(x.s[3].taken && x.s[1].taken && x.s[0].taken);
}

Test(tally, max_wait__decided_with_fewer) {
    table_t x;
    sit(&x, 3, 0, 1000, 50);
    cr_assert_eq(judge(&x, 5, 1000), RG_TALLY_WAIT);
    come(&x, 4);
    cr_assert_eq(judge(&x, 5, 1010), RG_TALLY_WAIT);
    cr_assert_eq(x.at, 1060 * MS);
    cr_assert_eq(judge(&x, 5, 1060), RG_TALLY_DECIDE);
    cr_assert(x.s[4].taken);
}

Test(tally, everybody_came_and_too_few_gave__too_few) {
    table_t x;
    sit(&x, 0, 0, 0, 0);
    cr_assert_eq(rg_tally_needs(&x.t, 5), 3);
    cr_assert_eq(rg_tally_needs(&x.t, 4), 3);
    cr_assert_eq(rg_tally_needs(&x.t, 1), 1);
    come(&x, 0);
    come(&x, 1);
    rg_tally_arrive(&x.t, &x.s[2], 0);
    rg_tally_arrive(&x.t, &x.s[3], 0);
    cr_assert_eq(judge(&x, 5, 1), RG_TALLY_WAIT);
    rg_tally_arrive(&x.t, &x.s[4], 0);
    cr_assert_eq(judge(&x, 5, 1), RG_TALLY_TOO_FEW);
}
