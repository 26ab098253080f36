/* host.c: which machine and which host this process is on, as numbers that processes compare. Relies on /proc where it
 * is there; without it a host's own name has to do. It must not be taken as proof that two processes share memory: that
 * is for the transport to prove. */
#include "os.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define BASIS 14695981039346656037ull

static uint64_t hash(uint64_t h, const void *p, size_t n) { /* FNV-1a */
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)p)[i]) * 1099511628211ull;
    return h;
}

uint64_t rg_os_name_hash(const char *name) {
    size_t n = 0;
    if (!name || !*name) return 0;
    while (name[n]) n++;
    return hash(BASIS, name, n) | 1;
}

/* The identity of the kernel's boot stays the same whatever the container. */
uint64_t rg_os_machine(void) {
    char buf[256] = { 0 };
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, buf, sizeof buf - 1) : -1;
    if (fd >= 0) close(fd);
    if (n <= 0 && gethostname(buf, sizeof buf - 1) != 0) buf[0] = '?';
    return rg_os_name_hash(buf);
}

uint64_t rg_os_host(const char *name) {
    struct stat st;
    uint64_t named = rg_os_name_hash(name);
    if (named) return named;
    uint64_t net = stat("/proc/thread-self/ns/net", &st) == 0 ? (uint64_t)st.st_ino : 0;
    return hash(rg_os_machine(), &net, sizeof net) | 1;
}
