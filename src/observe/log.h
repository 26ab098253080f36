/* log.h: the library's own log. Nothing is formatted unless somebody asked for the level. */
#ifndef RG_LOG_H
#define RG_LOG_H

#include "regroup.h"
#include <stddef.h>

typedef struct rg_log {
    rg_log_level_t level;
    rg_log_fn fn;
    void *user;
} rg_log_t;

/* Resolves level and sink: an explicit fn and level win, else RG_LOG in the environment with standard error. A level
 * without fn and without RG_LOG logs nowhere. INVALID with text for an unknown level name. */
rg_status_t rg_log_init(rg_log_t *log, rg_log_level_t level, rg_log_fn fn, void *user, rg_error_t *err);
void rg_log_write(const rg_log_t *log, rg_log_level_t level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define RG_LOGF(log, lvl, ...)                                                                                         \
    do {                                                                                                               \
        if ((log)->fn && (log)->level >= (lvl)) rg_log_write((log), (lvl), __VA_ARGS__);                               \
    } while (0)

/* What a name may have in it, and a log line or a terminal gets to see: whole characters of UTF-8 that are no control
 * characters (of ASCII, U+0080 to U+009F, which some terminals obey as well, and those that break lines or turn the
 * direction of writing). rg_log_char() tells how many bytes the character at p has, 0: it is not one of these. */
size_t rg_log_char(const char *p);
int rg_log_plain(const char *text); /* 1: nothing else is in it */
void rg_log_tidy(
    char *text); /* puts '?' in the place of each byte that is not of such a character, ' ' for ASCII's controls */

/* Fills err (may be NULL) and returns status, so that a failure is one line. The text of sys_errno is added where the
 * formatted text lacks it. The arguments may point into err itself: that is how text is wrapped going up. */
rg_status_t rg_fail(rg_error_t *err, rg_status_t status, int sys_errno, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
#ifdef __clang_analyzer__ /* it does not see that what comes back is what went in */
#define rg_fail(err, status, ...) (rg_fail((err), (status), __VA_ARGS__), (status))
#endif

#endif
