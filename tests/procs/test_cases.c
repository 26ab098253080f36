/* test_cases.c: failures that users of such libraries have reported, by number. tests/procs/README.md says which test
 * stands for which case; those that other tests cover are not here. This file only runs the parts. */
#include "cases.h"

void test_cases(void) {
    cases_numbers();
    cases_faults();
    cases_env();
    cases_limits();
}

void test_cases_long(void) {
    cases_numbers_long();
    cases_faults_long();
}
