/* cases.h: the cases that carry a number (tests/procs/README.md lists them) and those of a host's environment: their
 * parts, and a wall clock that they can set. It relies on env.h; the long forms run by `procs cases-long` only. */
#ifndef RG_TEST_CASES_H
#define RG_TEST_CASES_H

#include "env.h"

#define CASE(name, ok)                                                                                                 \
    do {                                                                                                               \
        if (procs_wanted(name)) procs_case(name, ok);                                                                  \
    } while (0)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CASES_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CASES_SANITIZED 1
#endif
#endif
#ifndef CASES_SANITIZED
#define CASES_SANITIZED 0
#endif

#if defined(__SANITIZE_THREAD__)
#define CASES_NO_THREADS_IN_CHILDREN 1 /* ThreadSanitizer ends a child of threads that starts one */
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CASES_NO_THREADS_IN_CHILDREN 1
#endif
#endif
#ifndef CASES_NO_THREADS_IN_CHILDREN
#define CASES_NO_THREADS_IN_CHILDREN 0
#endif

/* From now on, in this process and those forked from it, the wall clock is `seconds` off. 0 when it cannot be. */
int cases_clock_init(void);
void cases_clock_jump(int64_t seconds);

void cases_env(void);
void cases_limits(void);
void cases_numbers(void);
void cases_numbers_long(void);
void cases_faults(void);
void cases_faults_long(void);

#endif
