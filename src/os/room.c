/* room.c: how much memory there is left for this process: what the host says, and the control groups that it is in,
 * each of which may be allowed less. Relies on /proc and /sys/fs/cgroup, both as version 1 and as version 2; what is
 * not there, or cannot be understood, is no limit. Nobody knows the future, so the answer is good for refusing what
 * cannot be, and for nothing else. */
#include "os.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_MOST 4096

/* The whole text of root/path/name, as far as it fits; 0 where it cannot be read. */
static int text_of(const char *root, const char *path, const char *name, char *out, size_t cap) {
    char full[PATH_MOST + 512];
    int n = snprintf(full, sizeof full, "%s%s/%s", root, path, name);
    int fd = n > 0 && (size_t)n < sizeof full ? rg_os_high(open(full, O_RDONLY | O_CLOEXEC)) : -1;
    if (fd < 0) return 0;
    ssize_t got = read(fd, out, cap - 1);
    close(fd);
    out[got > 0 ? got : 0] = 0;
    return got > 0;
}

/* The number behind `name`, which begins a line; 0 where it is not there. */
static uint64_t line_of(const char *text, const char *name) {
    size_t len = strlen(name);
    for (const char *at = text; at; at = strchr(at, '\n'), at += at != NULL)
        if (!strncmp(at, name, len)) return strtoull(at + len, NULL, 10);
    return 0;
}

/* A file that holds one number; UINT64_MAX for "max" and where it is not there. */
static uint64_t number_in(const char *root, const char *path, const char *name) {
    char text[64], *end;
    if (!text_of(root, path, name, text, sizeof text)) return UINT64_MAX;
    uint64_t v = strtoull(text, &end, 10);
    return end == text ? UINT64_MAX : v;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
static uint64_t rest(uint64_t limit, uint64_t used) {
    return limit == UINT64_MAX ? UINT64_MAX : used < limit ? limit - used : 0;
}

/* What one group may still take, `swap` being what the host could swap out: pages of files make room, and swap does
 * where the group has some. */
static uint64_t left_in(const char *root, const char *path, int version, uint64_t swap) {
    char text[8192] = "";
    uint64_t used = number_in(root, path, version == 2 ? "memory.current" : "memory.usage_in_bytes");
    if (used == UINT64_MAX) return UINT64_MAX;
    uint64_t limit = version == 2 ? least(number_in(root, path, "memory.max"), number_in(root, path, "memory.high"))
                                  : number_in(root, path, "memory.limit_in_bytes");
    uint64_t left = rest(limit, used);
    if (left == UINT64_MAX) return left;
    text_of(root, path, "memory.stat", text, sizeof text);
    const char *const files[2][2] = { { "total_inactive_file ", "total_active_file " },
                                      { "inactive_file ", "active_file " } };
    for (int k = 0; k < 2; k++) left = sum(left, line_of(text, files[version - 1][k]));
    if (version == 2) {
        uint64_t gone = number_in(root, path, "memory.swap.current");
        return sum(left, gone == UINT64_MAX ? 0 : least(swap, rest(number_in(root, path, "memory.swap.max"), gone)));
    }
    /* Of both together, so the rest of it bounds what is left; without accounting of swap it is not there. */
    uint64_t both = number_in(root, path, "memory.memsw.usage_in_bytes");
    uint64_t with_swap = both == UINT64_MAX ? 0 : rest(number_in(root, path, "memory.memsw.limit_in_bytes"), both);
    return sum(left, both == UINT64_MAX ? swap : least(swap, with_swap));
}

/* The group and all that it is in. In a container the name may be one of the host, of which nothing shows here: then
 * what shows is the container's own group. */
static uint64_t left_up_from(const char *root, const char *mount, char *name, int version, uint64_t swap) {
    uint64_t left = UINT64_MAX;
    for (;;) {
        char path[PATH_MOST + 64];
        snprintf(path, sizeof path, "%s%s", mount, strcmp(name, "/") ? name : "");
        left = least(left, left_in(root, path, version, swap));
        char *slash = strrchr(name, '/');
        if (!slash || !*name) return left;
        *slash = 0;
    }
}

static uint64_t left_in_groups(const char *root, uint64_t swap) {
    char text[PATH_MOST] = "", *save = NULL;
    uint64_t left = UINT64_MAX;
    if (!text_of(root, "/proc/self", "cgroup", text, sizeof text)) return left;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *kinds = strchr(line, ':'), *name = kinds ? strchr(kinds + 1, ':') : NULL;
        if (!name) continue;
        *name++ = 0;
        kinds++;
        char list[256];
        snprintf(list, sizeof list, ",%s,", kinds);
        if (!*kinds) {
            char again[PATH_MOST];
            snprintf(again, sizeof again, "%s", name);
            left = least(left, left_up_from(root, "/sys/fs/cgroup", name, 2, swap));
            left = least(left, left_up_from(root, "/sys/fs/cgroup/unified", again, 2, swap));
        } else if (strstr(list, ",memory,"))
            left = least(left, left_up_from(root, "/sys/fs/cgroup/memory", name, 1, swap));
    }
    return left;
}

uint64_t rg_os_memory_left_under(const char *root) {
    char text[8192] = "";
    text_of(root, "/proc", "meminfo", text, sizeof text);
    uint64_t free_kib = line_of(text, "MemAvailable:"), swap = line_of(text, "SwapFree:") * 1024;
    uint64_t host = free_kib ? sum(free_kib * 1024, swap) : UINT64_MAX;
    return least(host, left_in_groups(root, swap));
}

uint64_t rg_os_memory_left(void) { return rg_os_memory_left_under(""); }
