/* test_room.c: what is left of memory, told from files as they are on hosts and in containers. Relies on a folder of
 * its own that plays /proc and /sys. It must not take any memory to speak of. */
#include "os/os.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char root[] = "/tmp/rg-room-XXXXXX";

/* Makes a file, and the folders that lead there. */
static void put(const char *path, const char *fmt, ...) {
    char full[512];
    va_list ap;
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; *p; p++)
        if (*p == '/') *p = 0, mkdir(full, 0700), *p = '/';
    FILE *f = fopen(full, "w");
    cr_assert(f, "%s", full);
    va_start(ap, fmt);
    vfprintf(f, fmt, ap);
    va_end(ap);
    fclose(f);
}

static void begin(void) {
    cr_assert(mkdtemp(root));
    put("/proc/meminfo",
        "MemTotal:  9999 kB\nMemFree: 1 kB\nMemAvailable:    8000 kB\nSwapTotal: 9 kB\nSwapFree: 1000 kB\n");
}

static void end(void) {
    char line[128];
    snprintf(line, sizeof line, "rm -r %s", root);
    cr_assert_eq(system(line), 0);
}

TestSuite(room, .init = begin, .fini = end);

#define KIB 1024ull

Test(room, host_alone__what_is_available_and_swap) { cr_expect_eq(rg_os_memory_left_under(root), 9000 * KIB); }

Test(room, nothing_known__no_limit) {
    put("/proc/meminfo", "nothing\n");
    cr_expect_eq(rg_os_memory_left_under(root), UINT64_MAX);
}

/* Version 2: the least of all levels, the limit that throttles among them; file pages make room. */
Test(room, version_2__a_group_above_allows_less__counts) {
    put("/proc/self/cgroup", "0::/job.slice/task.scope\n");
    put("/sys/fs/cgroup/job.slice/task.scope/memory.current", "%llu\n", 100 * KIB);
    put("/sys/fs/cgroup/job.slice/task.scope/memory.max", "max\n");
    put("/sys/fs/cgroup/job.slice/memory.current", "%llu\n", 1000 * KIB);
    put("/sys/fs/cgroup/job.slice/memory.max", "%llu\n", 4000 * KIB);
    put("/sys/fs/cgroup/job.slice/memory.high", "max\n");
    cr_expect_eq(rg_os_memory_left_under(root), 3000 * KIB);
    put("/sys/fs/cgroup/job.slice/memory.high", "%llu\n", 1500 * KIB);
    cr_expect_eq(rg_os_memory_left_under(root), 500 * KIB);
    put("/sys/fs/cgroup/job.slice/memory.stat", "anon 77\ninactive_file %llu\nactive_file %llu\n", 20 * KIB, 5 * KIB);
    cr_expect_eq(rg_os_memory_left_under(root), 525 * KIB);
    put("/sys/fs/cgroup/job.slice/memory.swap.current", "0\n");
    put("/sys/fs/cgroup/job.slice/memory.swap.max", "%llu\n", 100 * KIB);
    cr_expect_eq(rg_os_memory_left_under(root), 625 * KIB);
    put("/sys/fs/cgroup/job.slice/memory.swap.max", "max\n"); /* but no more than the host has */
    cr_expect_eq(rg_os_memory_left_under(root), 1525 * KIB);
    put("/sys/fs/cgroup/job.slice/task.scope/memory.max", "%llu\n", 50 * KIB); /* above it already */
    cr_expect_eq(rg_os_memory_left_under(root), 0);
}

/* In a container that is told its name on the host, of which nothing shows. */
Test(room, version_2__name_of_the_host__what_shows_is_the_own_group) {
    put("/proc/self/cgroup", "0::/system.slice/docker-0123.scope\n");
    put("/sys/fs/cgroup/memory.current", "%llu\n", 10 * KIB);
    put("/sys/fs/cgroup/memory.max", "%llu\n", 30 * KIB);
    cr_expect_eq(rg_os_memory_left_under(root), 20 * KIB);
    put("/proc/self/cgroup", "0::/\n");
    cr_expect_eq(rg_os_memory_left_under(root), 20 * KIB);
}

Test(room, version_1__memory_among_other_controllers__counts) {
    put("/proc/self/cgroup", "12:cpu,cpuacct:/a\n5:pids,memory:/job\n0::/none\n");
    put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "%llu\n", 1000 * KIB);
    put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "%llu\n", 1400 * KIB);
    put("/sys/fs/cgroup/memory/job/memory.stat", "cache 1\ninactive_file 7\ntotal_inactive_file %llu\n", 10 * KIB);
    put("/sys/fs/cgroup/memory/job/memory.memsw.usage_in_bytes", "%llu\n", 1000 * KIB);
    put("/sys/fs/cgroup/memory/job/memory.memsw.limit_in_bytes", "%llu\n", 1000 * KIB);
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "%llu\n", 1000 * KIB);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* what version 1 has for none */
    cr_expect_eq(rg_os_memory_left_under(root), 410 * KIB);
}

/* Lines that are no lines, names without an end. */
Test(room, files_that_make_no_sense__no_limit_but_the_host) {
    char *longest = malloc(9001);
    cr_assert(longest);
    memset(longest, '/', 9000);
    longest[9000] = 0;
    put("/proc/self/cgroup", "\n::\n0:\n0::\n0:::::\n7:memory\nx:memory:\n0::%s", longest);
    put("/sys/fs/cgroup/memory.current", "soon\n");
    put("/sys/fs/cgroup/memory.max", "-\n");
    cr_expect_eq(rg_os_memory_left_under(root), 9000 * KIB);
    free(longest);
}

Test(room, this_host__has_some) { cr_expect(rg_os_memory_left() > 0); }
