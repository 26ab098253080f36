/* log.c: the library's own log. A line goes to the caller's function, or to standard error in one write(2) when the
 * RG_LOG variable asks for it; otherwise nothing is formatted and nothing printed. Relies on getenv, write, os/hush.c.
 * It must not allocate (it is called where memory has run out) and must not change errno. */
#include "observe/log.h"
#include "os/os.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024

static const char prefix[] = "regroup: ";

/* One write, so that lines of several processes on one terminal do not mix. A failed write has nobody to be told to,
 * and a program must not die because nobody reads what the library says. */
static void write_stderr(void *user, rg_log_level_t level, const char *line) {
    char buf[sizeof prefix + LINE_MAX_BYTES + 1];
    size_t n = strnlen(line, LINE_MAX_BYTES), at = sizeof prefix - 1;
    (void)user, (void)level;
    memcpy(buf, prefix, at);
    memcpy(buf + at, line, n);
    buf[at + n] = '\n';
    RG_OS_STAY;
    rg_os_hush_t hush;
    rg_os_hush(&hush);
    ssize_t put = write(STDERR_FILENO, buf, at + n + 1);
    rg_os_unhush(&hush);
    (void)put;
}

static int level_parse(const char *text, rg_log_level_t *level) {
    static const char *const names[] = { "none", "error", "warn", "info", "debug" };
    for (int i = 0; i < 5; i++)
        if (strcasecmp(text, names[i]) == 0) {
            *level = (rg_log_level_t)i;
            return 1;
        }
    return 0;
}

rg_status_t rg_log_init(rg_log_t *log, rg_log_level_t level, rg_log_fn fn, void *user, rg_error_t *err) {
    rg_log_level_t asked = RG_LOG_NONE;
    const char *text = getenv("RG_LOG");
    *log = (rg_log_t){ RG_LOG_NONE, NULL, NULL };
    if ((unsigned)level > RG_LOG_DEBUG)
        return rg_fail(err, RG_ERR_INVALID, 0, "log_level is %d: expected RG_LOG_NONE to RG_LOG_DEBUG (0 to 4)",
                       (int)level);
    if (text && *text && !level_parse(text, &asked))
        return rg_fail(err, RG_ERR_INVALID, 0, "RG_LOG is \"%.64s\": expected none, error, warn, info or debug", text);
    /* Standard error is used only because the variable asked, never because the program set a level alone. */
    if (!fn && asked != RG_LOG_NONE) fn = write_stderr, user = NULL;
    if (level == RG_LOG_NONE) level = asked;
    if (fn && level != RG_LOG_NONE) *log = (rg_log_t){ level, fn, user };
    return RG_OK;
}

size_t rg_log_char(const char *text) {
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) return p[0] >= 0x20 && p[0] != 0x7f;
    size_t n = p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    uint32_t c = n ? p[0] & (0x7fu >> n) : 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0; /* the end of the text among them */
        c = c << 6 | (p[i] & 0x3fu);
    }
    if (c < 0xa0 || (n == 3 && c < 0x800) || (n == 4 && c < 0x10000) || c > 0x10ffff) return 0;
    if ((c >= 0xd800 && c < 0xe000) || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069)) return 0;
    return n;
}

int rg_log_plain(const char *text) {
    for (size_t n; *text; text += n)
        if (!(n = rg_log_char(text))) return 0;
    return 1;
}

void rg_log_tidy(char *text) {
    for (size_t n; *text; text += n) {
        if ((n = rg_log_char(text))) continue;
        *text = (unsigned char)*text < 0x80 ? ' ' : '?';
        n = 1;
    }
}

void rg_log_write(const rg_log_t *log, rg_log_level_t level, const char *fmt, ...) {
    if (!log->fn || level == RG_LOG_NONE || level > log->level) return;
    int saved = errno;
    char line[LINE_MAX_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    /* "One line" is a promise to whoever reads the log: text from peers must not forge further lines. */
    rg_log_tidy(line);
    log->fn(log->user, level, line);
    errno = saved;
}

/* Formats aside first: callers wrap an error by formatting err->text into itself. The cause that the system gave is
 * added unless the text has it already. */
rg_status_t(rg_fail)(rg_error_t *err, rg_status_t status, int sys_errno, const char *fmt, ...) {
    if (!err) return status;
    int saved = errno;
    char text[sizeof err->text], cause[128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (sys_errno) {
        const char *why = strerror_r(sys_errno, cause, sizeof cause);
        size_t n = strlen(text);
        if (!strstr(text, why)) snprintf(text + n, sizeof text - n, "%s%s", n ? ": " : "", why);
    }
    rg_log_tidy(text); /* it may have words from a peer, or from a variable, and is shown on terminals */
    err->status = status;
    err->sys_errno = sys_errno;
    memcpy(err->text, text, strlen(text) + 1);
    errno = saved;
    return status;
}
