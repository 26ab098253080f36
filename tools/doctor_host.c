/* doctor_host.c: the part of `regroup doctor` about this process and its machine: variables, processor, clock, limits,
 * shared memory. Relies on Linux' /proc and /sys; what cannot be read there is passed over. It must not change limits
 * or leave anything behind. */
#include "config.h"
#include "doctor.h"
#include "kernels/kernels.h"
#include "os/gcm.h"
#include "os/os.h"
#include "os/tls.h"
#include "tool.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- Variables --------------------------------------------------------------------------------------------------- */

/* Letters to change, insert or leave out between two names. */
static size_t distance(const char *a, size_t an, const char *b) {
    size_t row[64], bn = strlen(b);
    if (an >= 63 || bn >= 63) return 63;
    for (size_t j = 0; j <= bn; j++) row[j] = j;
    for (size_t i = 1; i <= an; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= bn; j++) {
            size_t best = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[bn];
}

/* A variable that the library does not know is most likely one that was misspelt, and then without effect. */
static int unknown_variable(struct doctor *d, const char *entry) {
    size_t n = strcspn(entry, "="), nearest = 63;
    const char *name, *meant = NULL;
    char fix[128];
    for (uint32_t i = 0; (name = rg_config_variable(i)) != NULL; i++) {
        size_t far = distance(entry, n, name);
        if (far < nearest) nearest = far, meant = name;
    }
    if (nearest == 0) return 0;
    if (nearest <= 3) snprintf(fix, sizeof fix, "did you mean %s? If not, unset it", meant);
    else snprintf(fix, sizeof fix, "unset it; docs and include/regroup.h name those there are");
    doctor_say(d, DOCTOR_WARN, "variables", fix, "%.*s is none of the library's: it has no effect", (int)n, entry);
    return 1;
}

static void tls_files(struct doctor *d) {
    rg_tls_files_t files = RG_TLS_FILES(&d->cfg);
    rg_tls_ctx_t *tls = NULL;
    rg_error_t err = { RG_OK, 0, "" };
    uint8_t key[16] = { 0 };
    if (rg_tls_open(&files, &tls, &err)) {
        doctor_say(d, DOCTOR_BAD, "tls", "`regroup keygen` makes keys and certificates (docs/security.md)", "%s",
                   err.text);
        return;
    }
    rg_gcm_t *gcm = tls ? rg_gcm_new(key, sizeof key) : NULL;
    if (!tls) doctor_say(d, DOCTOR_NOTE, "tls", NULL, "off: whoever reaches a port can join, and traffic is readable");
    else if (*rg_tls_warning(tls))
        doctor_say(d, DOCTOR_WARN, "tls", "make new ones with `regroup keygen`", "%s", rg_tls_warning(tls));
    else
        doctor_say(d, DOCTOR_OK, "tls", NULL, "on, with %s; records by %s", files.psk ? "a group key" : "certificates",
                   gcm ? "intel-ipsec-mb" : "OpenSSL");
    rg_gcm_free(gcm);
    rg_tls_close(tls);
}

void doctor_config(struct doctor *d) {
    int set = 0, unknown = 0;
    for (char **e = environ; *e; e++) {
        if (strncmp(*e, "RG_", 3)) continue;
        set++;
        unknown += unknown_variable(d, *e);
    }
    if (!d->configured) return;
    if (!unknown) doctor_say(d, DOCTOR_OK, "variables", NULL, "%d RG_ variables are set, all of them are known", set);
    tls_files(d);
}

/* ---- Processor and clock ----------------------------------------------------------------------------------------- */

static void processor(struct doctor *d) {
    char line[256], model[128] = "";
    uint32_t cores = rg_os_cores(), nodes = 0;
    double quota = 0, period = 0;
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "model name", 10) && strchr(line, ':'))
            snprintf(model, sizeof model, "%.100s", strchr(line, ':') + 2);
    if (f) fclose(f);
    model[strcspn(model, "\n")] = 0;
    DIR *dir = opendir("/sys/devices/system/node");
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        nodes += !strncmp(e->d_name, "node", 4) && e->d_name[4] >= '0' && e->d_name[4] <= '9';
    if (dir) closedir(dir);
    const char *simd = rg_simd_name();
    doctor_say(d, strcmp(simd, "scalar") ? DOCTOR_OK : DOCTOR_WARN, "processor",
               "reductions are slow without vector instructions; look whether RG_SIMD holds them back",
               "%s, %u cores for this process, %u NUMA node%s, kernels for %s", *model ? model : "unknown", cores,
               nodes ? nodes : 1, nodes > 1 ? "s" : "", simd);
    if (sscanf(doctor_line("/sys/fs/cgroup/cpu.max", line, sizeof line), "%lf %lf", &quota, &period) == 2 &&
        quota > 0 && quota < period * cores)
        doctor_say(
            d, DOCTOR_WARN, "processor", "raise the limit (docker --cpus, Kubernetes limits.cpu), or expect pauses",
            "its control group gets %.1f of %u cores: members pause when that is used up", quota / period, cores);
}

static void clock_source(struct doctor *d) {
    char source[64];
    enum { READS = 20000 };
    uint64_t start = tool_now_ns(), now = start;
    for (int i = 0; i < READS; i++) now = rg_os_now_ns();
    double each = (double)(now - start) / READS;
    doctor_line("/sys/devices/system/clocksource/clocksource0/current_clocksource", source, sizeof source);
    doctor_say(d, each > 300 ? DOCTOR_WARN : DOCTOR_OK, "clock",
               "choose the clock source tsc or kvm-clock; others need a system call or a device for each look",
               "%s, %.0f ns to read", *source ? source : "unknown", each);
}

void doctor_host(struct doctor *d) {
    struct utsname u;
    if (uname(&u) == 0)
        doctor_say(d, DOCTOR_OK, "version", NULL, "libregroup %s on %s %s, %s", rg_version(), u.sysname, u.release,
                   u.machine);
    processor(d);
    clock_source(d);
}

/* ---- Limits and shared memory ------------------------------------------------------------------------------------ */

static void limit_text(char *buf, size_t cap, rlim_t v) {
    if (v == RLIM_INFINITY) snprintf(buf, cap, "no limit");
    else snprintf(buf, cap, "%llu KiB", (unsigned long long)v / 1024);
}

static void limits(struct doctor *d) {
    struct rlimit files, locked, space;
    char text[32];
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        doctor_say(d,
                   files.rlim_max < 256    ? DOCTOR_BAD
                   : files.rlim_max < 4096 ? DOCTOR_WARN
                                           : DOCTOR_OK,
                   "files",
                   "ulimit -n 65536 (LimitNOFILE= of a service): a member has a few for each other member and rail",
                   "%llu descriptors at once, up to %llu on request", (unsigned long long)files.rlim_cur,
                   (unsigned long long)files.rlim_max);
    if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0) {
        limit_text(text, sizeof text, locked.rlim_cur);
        doctor_say(d, DOCTOR_NOTE, "memlock", NULL, "%s may be locked; only network cards that reach memory need it",
                   text);
    }
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
        limit_text(text, sizeof text, space.rlim_cur);
        doctor_say(d, DOCTOR_WARN, "memory", "ulimit -v unlimited",
                   "%s of address space: shared regions of other members are mapped into it too", text);
    }
}

/* Whether a process of this host may read another one's memory, as members do for large messages: asked of two
 * children, since a parent may do more. 1, 0, or -1 when it could not be found out. */
static int may_read_others(void) {
    static char secret[8] = "regroup";
    int up[2], status;
    if (pipe(up)) return -1;
    pid_t other = fork();
    if (other == 0) {
        char c;
        close(up[1]);
        _exit(read(up[0], &c, 1) < 0);
    }
    pid_t reader = other > 0 ? fork() : -1;
    if (reader == 0) {
        char got[8] = "";
        struct iovec to = { got, sizeof got }, from = { secret, sizeof secret };
        ssize_t n = process_vm_readv(other, &to, 1, &from, 1, 0);
        _exit(n == sizeof got && !strcmp(got, secret) ? 0 : 1);
    }
    int read_it = reader > 0 && waitpid(reader, &status, 0) == reader && WIFEXITED(status) ? !WEXITSTATUS(status) : -1;
    close(up[0]);
    close(up[1]); /* which ends the other one */
    if (other > 0) waitpid(other, NULL, 0);
    return read_it;
}

static void shared_memory(struct doctor *d) {
    char line[128];
    int fd = memfd_create("regroup-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, 1 << 20)) {
        doctor_say(d, DOCTOR_WARN, "shm", "allow memfd_create in the container's profile; until then members use TCP",
                   "no shared memory (%s)", strerror(errno));
    } else {
        int reads = may_read_others();
        int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
        doctor_say(d, DOCTOR_OK, "shm", NULL, "anonymous regions work; the death of a process is %s",
                   pidfd >= 0 ? "seen at once" : "seen by its silence (no pidfd_open)");
        if (pidfd >= 0) close(pidfd);
        doctor_say(d, reads == 0 ? DOCTOR_NOTE : DOCTOR_OK, "shm", NULL, "%s",
                   reads == 0
                       ? "processes may not read each other's memory (kernel.yama.ptrace_scope, or a container): "
                         "large messages are copied twice; buffers from rg_alloc() need no copy at all"
                   : reads < 0 ? "it could not be found out whether processes may read each other's memory"
                               : "processes may read each other's memory: large messages are copied once");
    }
    if (fd >= 0) close(fd);
    doctor_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line);
    if (*line) doctor_say(d, strstr(line, "[never]") ? DOCTOR_NOTE : DOCTOR_OK, "pages", NULL, "large pages: %s", line);
}

void doctor_memory(struct doctor *d) {
    char line[64];
    unsigned long long most;
    limits(d);
    if (sscanf(doctor_line("/sys/fs/cgroup/memory.max", line, sizeof line), "%llu", &most) == 1)
        doctor_say(d, most < 1ull << 30 ? DOCTOR_WARN : DOCTOR_NOTE, "memory", "raise the container's limit",
                   "its control group has %llu MiB: beyond them the kernel kills processes", most >> 20);
    shared_memory(d);
}
