/* test_log.c: who gets which line, what standard error sees and when it sees nothing, and how an error is filled. */
#include "observe/log.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char seen[2048];
static int calls;
static rg_log_level_t seen_level;

static void sink(void *user, rg_log_level_t level, const char *line) {
    *(int *)user += 1;
    calls++;
    seen_level = level;
    snprintf(seen, sizeof seen, "%s", line);
    errno = EIO;
}

/* What `log` writes to standard error for one line at `level`. */
static size_t stderr_of(const rg_log_t *log, rg_log_level_t level, const char *text, char *out, size_t cap) {
    int pipe_fds[2], saved = dup(STDERR_FILENO);
    cr_assert_eq(pipe2(pipe_fds, O_NONBLOCK), 0);
    dup2(pipe_fds[1], STDERR_FILENO);
    RG_LOGF(log, level, "%s", text);
    dup2(saved, STDERR_FILENO);
    ssize_t n = read(pipe_fds[0], out, cap - 1);
    close(pipe_fds[0]), close(pipe_fds[1]), close(saved);
    out[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

Test(log, log__nobody_asked__silent) {
    rg_log_t log;
    char out[256];
    unsetenv("RG_LOG");
    cr_assert_eq(rg_log_init(&log, RG_LOG_NONE, NULL, NULL, NULL), RG_OK);
    cr_assert(!log.fn);
    cr_assert_eq(stderr_of(&log, RG_LOG_ERROR, "x", out, sizeof out), 0);
    cr_assert_eq(rg_log_init(&log, RG_LOG_DEBUG, NULL, NULL, NULL), RG_OK);
    cr_assert_eq(stderr_of(&log, RG_LOG_ERROR, "x", out, sizeof out), 0, "a level alone must not open standard error");
}

Test(log, log__variable_asks__one_prefixed_line_on_standard_error) {
    rg_log_t log;
    char out[2048];
    setenv("RG_LOG", "Warn", 1);
    cr_assert_eq(rg_log_init(&log, RG_LOG_NONE, NULL, NULL, NULL), RG_OK);
    cr_assert_eq(stderr_of(&log, RG_LOG_WARN, "peer 3\nforged\x1b[0m line", out, sizeof out), strlen(out));
    cr_assert_str_eq(out, "regroup: peer 3 forged [0m line\n");
    cr_assert_eq(stderr_of(&log, RG_LOG_INFO, "x", out, sizeof out), 0);
    char longer[3000];
    memset(longer, 'y', sizeof longer);
    longer[2999] = 0;
    size_t n = stderr_of(&log, RG_LOG_ERROR, longer, out, sizeof out);
    cr_assert(n > 1000 && n < 1100 && out[n - 1] == '\n');
}

Test(log, log__function_and_level__win_over_the_variable) {
    rg_log_t log;
    int user = 0;
    char out[256];
    setenv("RG_LOG", "debug", 1);
    cr_assert_eq(rg_log_init(&log, RG_LOG_WARN, sink, &user, NULL), RG_OK);
    errno = EPIPE;
    RG_LOGF(&log, RG_LOG_WARN, "value %d", 7);
    cr_assert_eq(errno, EPIPE);
    RG_LOGF(&log, RG_LOG_INFO, "not wanted");
    rg_log_write(&log, RG_LOG_INFO, "not wanted either");
    rg_log_write(&log, RG_LOG_NONE, "nor this");
    cr_assert(calls == 1 && user == 1 && seen_level == RG_LOG_WARN);
    cr_assert_str_eq(seen, "value 7");
    cr_assert_eq(stderr_of(&log, RG_LOG_ERROR, "x", out, sizeof out), 0);
}

Test(log, log__function_without_level__level_of_the_variable) {
    rg_log_t log, again;
    int user = 0;
    setenv("RG_LOG", "info", 1);
    cr_assert_eq(rg_log_init(&log, RG_LOG_NONE, sink, &user, NULL), RG_OK);
    cr_assert(log.level == RG_LOG_INFO && log.fn == sink && log.user == &user);
    cr_assert_eq(rg_log_init(&again, log.level, log.fn, log.user, NULL), RG_OK);
    cr_assert(again.level == log.level && again.fn == log.fn && again.user == log.user);
}

Test(log, log__unknown_level__invalid_with_text) {
    rg_log_t log;
    rg_error_t err;
    setenv("RG_LOG", "loud", 1);
    cr_assert_eq(rg_log_init(&log, RG_LOG_NONE, NULL, NULL, &err), RG_ERR_INVALID);
    cr_assert(strstr(err.text, "RG_LOG is \"loud\": expected none, error, warn, info or debug"));
    cr_assert(!log.fn);
    unsetenv("RG_LOG");
    cr_assert_eq(rg_log_init(&log, (rg_log_level_t)9, NULL, NULL, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_log_init(&log, (rg_log_level_t)-1, NULL, NULL, NULL), RG_ERR_INVALID);
}

Test(log, fail__words_of_others__cannot_move_the_cursor) {
    rg_error_t err;
    rg_fail(&err, RG_ERR_REFUSED, 0, "it said \"%s\"", "a\x1b[2J\nb\xc2\x9b\xff\xe2\x80\xae\xc3\xbc\xc3");
    cr_assert_str_eq(err.text, "it said \"a [2J b????"
                               "??"
                               "\xc3\xbc?\"");
}

Test(log, fail__null_error__status_only) { cr_assert_eq(rg_fail(NULL, RG_ERR_TIMEOUT, 0, "x"), RG_ERR_TIMEOUT); }

Test(log, fail__system_cause__added_once) {
    rg_error_t err;
    cr_assert_eq(rg_fail(&err, RG_ERR_SYSTEM, ECONNRESET, "tcp: rank %d", 3), RG_ERR_SYSTEM);
    cr_assert_str_eq(err.text, "tcp: rank 3: Connection reset by peer");
    cr_assert(err.status == RG_ERR_SYSTEM && err.sys_errno == ECONNRESET);
    rg_fail(&err, RG_ERR_PEER_LOST, ECONNRESET, "allreduce 41: %s", err.text);
    cr_assert_str_eq(err.text, "allreduce 41: tcp: rank 3: Connection reset by peer");
}

Test(log, fail__long_text__cut_and_terminated) {
    rg_error_t err;
    char longer[2000];
    memset(longer, 'z', sizeof longer);
    longer[1999] = 0;
    rg_fail(&err, RG_ERR_INVALID, EIO, "%s", longer);
    cr_assert_eq(strlen(err.text), sizeof err.text - 1);
}
