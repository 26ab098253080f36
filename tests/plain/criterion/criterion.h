/* criterion.h: the few words of Criterion that the unit tests use, for builds that Criterion cannot run in: its sandbox
 * maps memory where ThreadSanitizer allows none. Found before the real header by the include path of those builds only.
 * It relies on runner.c, which runs each test in a child process. It must not grow anything that Criterion lacks. */
#ifndef PLAIN_CRITERION_H
#define PLAIN_CRITERION_H

#include <math.h>
#include <string.h>

typedef struct plain_test {
    const char *suite, *name;
    void (*run)(void);
    double timeout; /* taken from Test(..., .timeout = seconds); the other options of Criterion are not here */
    void (*init)(void), (*fini)(void);
    struct plain_test *next;
} plain_test_t;

void plain_add(plain_test_t *t);
void plain_add_suite(plain_test_t *s);
/* Notes a failure; ends the test when fatal. */
void plain_failed(const char *file, int line, int fatal, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Ends the test, which is neither passed nor failed. */
void plain_skipped(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

#define PLAIN_REGISTER(id, add, ...)                                                                                   \
    __attribute__((constructor)) static void plain_register_##id(void) {                                               \
        static plain_test_t t = { __VA_ARGS__ };                                                                       \
        add(&t);                                                                                                       \
    }
#define Test(s, n, ...)                                                                                                \
    static void s##_##n##_impl(void);                                                                                  \
    PLAIN_REGISTER(s##_##n, plain_add, .suite = #s, .name = #n, .run = s##_##n##_impl, __VA_ARGS__)                    \
    static void s##_##n##_impl(void)
#define TestSuite(s, ...) PLAIN_REGISTER(suite_##s, plain_add_suite, .suite = #s, __VA_ARGS__)

#define PLAIN_CHECK(fatal, cond, what, ...)                                                                            \
    do {                                                                                                               \
        if (!(cond)) plain_failed(__FILE__, __LINE__, fatal, what, " " __VA_ARGS__);                                   \
    } while (0)
#define cr_assert(c, ...) PLAIN_CHECK(1, c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...) PLAIN_CHECK(1, !(c), "!" #c, __VA_ARGS__)
#define cr_assert_eq(a, b, ...) PLAIN_CHECK(1, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) PLAIN_CHECK(1, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) PLAIN_CHECK(1, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) PLAIN_CHECK(1, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) PLAIN_CHECK(1, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) PLAIN_CHECK(1, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_null(a, ...) PLAIN_CHECK(1, (a) == NULL, #a " == NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...) PLAIN_CHECK(1, (a) != NULL, #a " != NULL", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) PLAIN_CHECK(1, strcmp(a, b) == 0, #a " is " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, e, ...) PLAIN_CHECK(1, fabs((a) - (b)) <= (e), #a " == " #b, __VA_ARGS__)
#define cr_assert_str_empty(a, ...) PLAIN_CHECK(1, (a)[0] == 0, #a " is empty", __VA_ARGS__)
#define cr_assert_str_not_empty(a, ...) PLAIN_CHECK(1, (a)[0] != 0, #a " is not empty", __VA_ARGS__)
#define cr_assert_fail(...) PLAIN_CHECK(1, 0, "not to be reached", __VA_ARGS__)
#define cr_skip_test(...) plain_skipped("" __VA_ARGS__)
#define cr_expect(c, ...) PLAIN_CHECK(0, c, #c, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) PLAIN_CHECK(0, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) PLAIN_CHECK(0, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) PLAIN_CHECK(0, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) PLAIN_CHECK(0, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_expect_null(a, ...) PLAIN_CHECK(0, (a) == NULL, #a " == NULL", __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) PLAIN_CHECK(0, strcmp(a, b) == 0, #a " is " #b, __VA_ARGS__)

#endif
