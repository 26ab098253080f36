/* runner_leaks.c: where LeakSanitizer looks. The process that Criterion starts first only forks the others and adds
 * up; no line of ours runs in it, and its reporter may still hold a few bytes when it ends, which would be called a
 * leak of the whole run. So leaks are looked for where the tests are: in the processes that have BXFI_MAP, the name of
 * what they share with the first one. It must not turn off anything there: tests/run counts each report in the log as
 * a failure. */
#include <stdlib.h>

int __lsan_is_turned_off(void);

int __lsan_is_turned_off(void) { return getenv("BXFI_MAP") == NULL; }
