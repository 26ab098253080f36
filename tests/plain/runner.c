/* runner.c: runs the unit tests where Criterion cannot: each in a child, under a limit of time, judged by how the child
 * ends, so that a crash or a report of ThreadSanitizer counts. Arguments are parts of names ("suite.name"); none means
 * all. It relies on fork(); the parent has no threads. */
#include "criterion/criterion.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_S 600
#define SKIPPED 77

static plain_test_t *tests, **tail = &tests, *suites;
static int failures; /* of the test that runs in this child */

void plain_add(plain_test_t *t) {
    *tail = t;
    tail = &t->next;
}

void plain_add_suite(plain_test_t *s) {
    s->next = suites;
    suites = s;
}

void plain_failed(const char *file, int line, int fatal, const char *what, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "%s:%d: %s", file, line, what);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    failures++;
    if (fatal) exit(1);
}

void plain_skipped(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    exit(failures ? 1 : SKIPPED);
}

static int wanted(const plain_test_t *t, int n, char **parts) {
    char name[512];
    snprintf(name, sizeof name, "%s.%s", t->suite, t->name);
    for (int i = 0; i < n; i++)
        if (strstr(name, parts[i])) return 1;
    return n == 0;
}

static void run_here(const plain_test_t *t) {
    const plain_test_t *s = suites;
    while (s && strcmp(s->suite, t->suite)) s = s->next;
    alarm(t->timeout > 0 ? (unsigned)t->timeout * 10 : LIMIT_S);
    if (s && s->init) s->init();
    if (t->init) t->init();
    t->run();
    if (t->fini) t->fini();
    if (s && s->fini) s->fini();
    exit(failures != 0);
}

int main(int argc, char **argv) {
    int passed = 0, failed = 0, skipped = 0, status;
    struct timespec from, to;
    for (plain_test_t *t = tests; t; t = t->next) {
        if (!wanted(t, argc - 1, argv + 1)) continue;
        clock_gettime(CLOCK_MONOTONIC, &from);
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) run_here(t);
        if (pid < 0 || waitpid(pid, &status, 0) != pid) return 1;
        clock_gettime(CLOCK_MONOTONIC, &to);
        int ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        int skip = WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED;
        passed += ok;
        skipped += skip;
        failed += !ok && !skip;
        printf("%s %s.%s %.2f s",
               ok     ? "ok  "
               : skip ? "skip"
                      : "FAIL",
               t->suite, t->name, (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9);
        if (!ok && !skip)
            printf(WIFSIGNALED(status) ? " signal %d" : " exit %d",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        putchar('\n');
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
