/* test_status.c: names, texts and sizes are there for every code, type and operator, distinct, and harmless for values
 * that do not exist. */
#include "regroup.h"

#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct row {
    int value;
    const char *name, *text, *action;
} row_t;
static const row_t rows[] = {
#define ROW(name, value, text, action) { value, "RG_" #name, text, action },
    RG_STATUS_LIST(ROW)
};
#define N_ROWS (sizeof rows / sizeof rows[0])

/* Index of the first of two rows that share a value or a name, or -1. */
static int first_twin(const row_t *r, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++)
            if (r[i].value == r[k].value || !strcmp(r[i].name, r[k].name) || !strcmp(r[i].text, r[k].text))
                return (int)i;
    return -1;
}

Test(status, list__codes_names_and_texts__all_distinct) { cr_assert_eq(first_twin(rows, N_ROWS), -1); }

Test(status, checker__planted_twin__found) {
    row_t planted[] = { { 0, "A", "a", "" }, { -1, "B", "b", "" }, { -1, "C", "c", "" } };
    cr_assert_eq(first_twin(planted, 3), 1);
}

Test(status, texts__every_code__those_of_the_list) {
    for (size_t i = 0; i < N_ROWS; i++) {
        cr_assert_str_eq(rg_status_name((rg_status_t)rows[i].value), rows[i].name);
        cr_assert_str_eq(rg_strerror((rg_status_t)rows[i].value), rows[i].text);
        cr_assert_str_eq(rg_status_advice((rg_status_t)rows[i].value), rows[i].action);
        cr_assert(rows[i].value <= 1 && strlen(rows[i].action) > 0);
    }
    cr_assert_eq(RG_OK, 0);
}

Test(status, texts__unknown_code__says_so) {
    int unknown[] = { 2, -20, -32767, 12345 };
    for (size_t i = 0; i < 4; i++) {
        cr_assert_str_eq(rg_status_name((rg_status_t)unknown[i]), "RG_?");
        cr_assert_str_eq(rg_strerror((rg_status_t)unknown[i]), "unknown status");
        cr_assert(strlen(rg_status_advice((rg_status_t)unknown[i])) > 0);
    }
}

Test(status, types__every_one__size_and_lower_case_name_of_the_list) {
    int n = 0;
#define CHECK(name, value, bytes)                                                                                      \
    {                                                                                                                  \
        char lower[8] = "";                                                                                            \
        for (size_t i = 0; i < strlen(#name); i++) lower[i] = (char)tolower((unsigned char)#name[i]);                  \
        cr_assert_str_eq(rg_dtype_name(RG_##name), lower);                                                             \
        cr_assert_eq(rg_dtype_size(RG_##name), bytes);                                                                 \
        cr_assert_eq((int)RG_##name, n);                                                                               \
        n++;                                                                                                           \
    }
    RG_DTYPE_LIST(CHECK)
    cr_assert_eq(n, RG_DTYPE_COUNT);
    cr_assert_eq(rg_dtype_size((rg_dtype_t)n), 0);
    cr_assert_eq(rg_dtype_size((rg_dtype_t)-1), 0);
    cr_assert_str_eq(rg_dtype_name((rg_dtype_t)n), "?");
    cr_assert_str_eq(rg_dtype_name((rg_dtype_t)-1), "?");
}

Test(status, operators__every_one__named) {
    const char *names[] = { "sum", "prod", "min", "max", "avg" };
    for (int i = 0; i < RG_OP_COUNT; i++) cr_assert_str_eq(rg_op_name((rg_op_t)i), names[i]);
    cr_assert_str_eq(rg_op_name(RG_OP_COUNT), "?");
    cr_assert_str_eq(rg_op_name((rg_op_t)-1), "?");
}

Test(status, version__text__the_numbers_of_the_header) {
    char want[32];
    snprintf(want, sizeof want, "%d.%d.%d", RG_VERSION_MAJOR, RG_VERSION_MINOR, RG_VERSION_PATCH);
    cr_assert_str_eq(rg_version(), want);
}
