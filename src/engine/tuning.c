/* tuning.c: reads the tuning file that the configuration names, once, when a group is opened. Its text becomes part of
 * what members compare with every operation, so that members with different files learn it. It relies on the pure
 * parser in src/sched/tuning.c, and must not guess: a file that cannot be read or understood is an error. */
#include "engine/group.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Some ten thousand lines. */
#define FILE_MOST (1u << 20)

static ssize_t read_all(int fd, char *buf, size_t cap) {
    size_t n = 0;
    while (n < cap) {
        ssize_t got = read(fd, buf + n, cap - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        n += (size_t)got;
    }
    return (ssize_t)n;
}

rg_status_t rg_tuning_load(rg_group_t *g, rg_error_t *err) {
    const char *path = g->cfg.tuning_file;
    if (!path || !*path) return RG_OK;
    char text[256], *buf = malloc(FILE_MOST + 1);
    if (!buf) return rg_fail(err, RG_ERR_NOMEM, 0, "no memory for tuning_file");
    struct stat info;
    /* Not to wait for somebody at the other end of a pipe. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), e = errno;
    ssize_t n = -1;
    if (fd >= 0) {
        if (fstat(fd, &info) == 0 && !S_ISREG(info.st_mode)) e = EINVAL;
        else if ((n = read_all(fd, buf, FILE_MOST + 1)) < 0) e = errno;
        close(fd);
    }
    rg_status_t st = RG_OK;
    if (n < 0) {
        st = rg_fail(err, RG_ERR_INVALID, e, "tuning_file %s cannot be read; expected what `regroup tune` wrote", path);
    } else if (n > (ssize_t)FILE_MOST) {
        st = rg_fail(err, RG_ERR_INVALID, 0,
                     "tuning_file %s is longer than %u bytes; expected what `regroup tune` wrote", path, FILE_MOST);
    } else {
        st = rg_tuning_parse(buf, (size_t)n, &g->tuning, text, sizeof text);
        if (st != RG_OK) rg_fail(err, st, 0, "tuning_file %s: %s", path, text);
        for (ssize_t i = 0; i < n; i++) g->tuning_hash = (g->tuning_hash ^ (uint8_t)buf[i]) * 16777619u;
    }
    free(buf);
    return st;
}
