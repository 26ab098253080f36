/* wrap.c: every call of the library that can fail, with a chance to fail as planned. Calls count by their place in the
 * program; allocations are remembered, so that what a failure leaves behind shows. It relies on the linker's --wrap of
 * exactly the names in CALL_LIST and of free(). It must not fail what cannot fail, and an error must look as the
 * kernel's does: a connection that is reset is dead from then on, a short read leaves the rest for the next one. */
#include "torture.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define CALL_ROW(name, ...) { #name, { __VA_ARGS__ }, sizeof((int[]){ __VA_ARGS__ }) / sizeof(int) },
const struct call calls[CALLS] = { CALL_LIST(CALL_ROW) };
#undef CALL_ROW

extern char __executable_start;

static atomic_int armed, mine;
static atomic_uint met;

/* ---- The plan --------------------------------------------------------------------------------------------------- */

static uint32_t site_of(const void *from) { return (uint32_t)((uintptr_t)from - (uintptr_t)&__executable_start); }

static struct site *site_find(uint32_t at, int call) {
    for (uint32_t i = at * 2654435761u >> 22, n = 0; n < SITES; n++, i++) {
        struct site *s = &shared->site[i % SITES];
        uint32_t none = 0;
        if (s->at == at) return s;
        if (!__atomic_compare_exchange_n(&s->at, &none, at, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            if (none == at) return s;
            continue;
        }
        s->call = call;
        return s;
    }
    return NULL;
}

/* The error that this call has to give; 0: none. */
static int fails(int call, const void *from) {
    if (!armed) return 0;
    uint32_t at = site_of(from);
    if (!mine) return 0;
    struct site *s = site_find(at, call);
    if (s) __atomic_add_fetch(&s->count, 1, __ATOMIC_RELAXED);
    if (at != shared->plan.at) return 0;
    uint32_t n = ++met;
    if (n < shared->plan.nth || n >= shared->plan.nth + shared->plan.times) return 0;
    shared->fired = 1;
    if (shared->plan.error > 0) errno = shared->plan.error;
    return shared->plan.error;
}

/* Whether the planted mistake happens here: the first time only. */
static int planted(int which) {
    static atomic_int done;
    return armed && mine && shared->plan.plant == which && !atomic_exchange(&done, 1);
}

/* A changed byte in what came, if that is long: a part of an operation. */
static ssize_t changed(void *p, ssize_t n) {
    if (n >= 2048 && planted(PLANT_CHANGED)) ((uint8_t *)p)[n / 2] ^= 0x10;
    return n;
}

#define FAILS(name) fails(CALL_##name, __builtin_return_address(0))

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

#define HELD (1u << 16)
static struct {
    const void *p;
    uint32_t at;
    int call;
} held[HELD];
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t held_cell(const void *p) {
    uint32_t i = (uint32_t)((uintptr_t)p * 0x9e3779b97f4a7c15u >> 48) % HELD;
    while (held[i].p && held[i].p != p) i = (i + 1) % HELD;
    return i;
}

static void *hold(void *p, int call, const void *from) {
    if (!p || !armed) return p;
    pthread_mutex_lock(&held_lock);
    uint32_t i = held_cell(p);
    held[i].p = p;
    held[i].at = site_of(from);
    held[i].call = call;
    pthread_mutex_unlock(&held_lock);
    return p;
}

static int is_held(const void *p) {
    pthread_mutex_lock(&held_lock);
    int held_here = p && held[held_cell(p)].p;
    pthread_mutex_unlock(&held_lock);
    return held_here;
}

static void let_go(const void *p) {
    if (!p) return;
    pthread_mutex_lock(&held_lock);
    uint32_t i = held_cell(p);
    if (held[i].p) {
        held[i].p = NULL;
        for (uint32_t k = (i + 1) % HELD; held[k].p; k = (k + 1) % HELD) { /* what was pushed on comes back */
            const void *q = held[k].p;
            uint32_t at = held[k].at;
            int call = held[k].call;
            held[k].p = NULL;
            uint32_t to = held_cell(q);
            held[to].p = q;
            held[to].at = at;
            held[to].call = call;
        }
    }
    pthread_mutex_unlock(&held_lock);
}

void torture_leaks(void) {
    for (uint32_t i = 0; i < HELD; i++) {
        if (!held[i].p) continue;
        struct site *s = site_find(held[i].at, held[i].call);
        if (s) s->leaked++;
    }
}

void torture_arm(int role) {
    mine = role == shared->victim;
    armed = 1;
}

void torture_disarm(void) { armed = 0; }

#define REAL(type, name, ...)                                                                                          \
    extern type __real_##name(__VA_ARGS__);                                                                            \
    extern type __wrap_##name(__VA_ARGS__);                                                                            \
    type __wrap_##name(__VA_ARGS__)

REAL(void *, malloc, size_t n) {
    if (FAILS(malloc)) return NULL;
    return hold(__real_malloc(n), CALL_malloc, __builtin_return_address(0));
}

REAL(void *, calloc, size_t n, size_t m) {
    if (FAILS(calloc)) return NULL;
    return hold(__real_calloc(n, m), CALL_calloc, __builtin_return_address(0));
}

REAL(void *, realloc, void *p, size_t n) {
    if (FAILS(realloc)) return NULL;
    let_go(p);
    void *q = __real_realloc(p, n);
    return hold(q ? q : p, CALL_realloc, __builtin_return_address(0)), q;
}

REAL(void *, aligned_alloc, size_t a, size_t n) {
    if (FAILS(aligned_alloc)) return NULL;
    return hold(__real_aligned_alloc(a, n), CALL_aligned_alloc, __builtin_return_address(0));
}

REAL(char *, strdup, const char *s) {
    if (FAILS(strdup)) return NULL;
    return hold(__real_strdup(s), CALL_strdup, __builtin_return_address(0));
}

REAL(void, free, void *p) {
    if (armed && is_held(p) && planted(PLANT_KEPT)) return;
    let_go(p);
    __real_free(p);
}

/* ---- Sockets ---------------------------------------------------------------------------------------------------- */

static int is_stream(int fd) {
    int type = 0;
    socklen_t len = sizeof type;
    extern int __real_getsockopt(int, int, int, void *, socklen_t *);
    return __real_getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_STREAM;
}

static ssize_t lose(int fd) {
    shutdown(fd, SHUT_RDWR);
    errno = ECONNRESET;
    return -1;
}

REAL(int, socket, int d, int t, int p) {
    if (planted(PLANT_OPEN)) __real_socket(d, t, p);
    return FAILS(socket) ? -1 : __real_socket(d, t, p);
}
REAL(int, accept4, int fd, struct sockaddr *a, socklen_t *n, int f) {
    return FAILS(accept4) ? -1 : __real_accept4(fd, a, n, f);
}
REAL(int, bind, int fd, const struct sockaddr *a, socklen_t n) { return FAILS(bind) ? -1 : __real_bind(fd, a, n); }
REAL(int, listen, int fd, int n) { return FAILS(listen) ? -1 : __real_listen(fd, n); }
REAL(int, connect, int fd, const struct sockaddr *a, socklen_t n) {
    int e = FAILS(connect);
    if (e == EINTR) { /* it goes on by itself */
        int rc = __real_connect(fd, a, n);
        if (rc == 0 || errno == EINPROGRESS) {
            errno = EINTR;
            rc = -1;
        }
        return rc;
    }
    return e ? -1 : __real_connect(fd, a, n);
}
REAL(int, getsockname, int fd, struct sockaddr *a, socklen_t *n) {
    return FAILS(getsockname) ? -1 : __real_getsockname(fd, a, n);
}
REAL(int, getpeername, int fd, struct sockaddr *a, socklen_t *n) {
    return FAILS(getpeername) ? -1 : __real_getpeername(fd, a, n);
}
REAL(int, getsockopt, int fd, int l, int o, void *v, socklen_t *n) {
    return FAILS(getsockopt) ? -1 : __real_getsockopt(fd, l, o, v, n);
}
REAL(int, setsockopt, int fd, int l, int o, const void *v, socklen_t n) {
    return FAILS(setsockopt) ? -1 : __real_setsockopt(fd, l, o, v, n);
}

REAL(ssize_t, recv, int fd, void *p, size_t n, int f) {
    int e = FAILS(recv);
    if (e == WHAT_LOST) return lose(fd);
    if (e > 0) return -1;
    return changed(p, __real_recv(fd, p, e == WHAT_SHORT && n > 1 && is_stream(fd) ? 1 : n, f));
}

REAL(ssize_t, send, int fd, const void *p, size_t n, int f) {
    int e = FAILS(send);
    if (e == WHAT_LOST) return lose(fd);
    if (e > 0) return -1;
    return __real_send(fd, p, e == WHAT_SHORT && n > 1 && is_stream(fd) ? 1 : n, f);
}

/* The first byte alone. */
static struct iovec first_byte(const struct iovec *v, size_t n) {
    size_t i = 0;
    while (i < n && v[i].iov_len == 0) i++;
    return (struct iovec){ i < n ? v[i].iov_base : NULL, i < n ? 1 : 0 };
}

static void close_passed(struct msghdr *m) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            close(fd);
        }
    }
    m->msg_controllen = 0;
    m->msg_flags |= MSG_CTRUNC;
}

REAL(ssize_t, recvmsg, int fd, struct msghdr *m, int f) {
    int e = FAILS(recvmsg);
    if (e == WHAT_LOST) return lose(fd);
    if (e > 0) return -1;
    if (e == WHAT_NO_FDS) { /* as with a full table of descriptors */
        ssize_t n = __real_recvmsg(fd, m, f);
        if (n >= 0 && m->msg_controllen) close_passed(m);
        return n;
    }
    if (e != WHAT_SHORT || !is_stream(fd)) return __real_recvmsg(fd, m, f);
    struct iovec one = first_byte(m->msg_iov, m->msg_iovlen);
    struct msghdr less = *m;
    less.msg_iov = &one;
    less.msg_iovlen = 1;
    ssize_t n = __real_recvmsg(fd, &less, f);
    m->msg_controllen = less.msg_controllen;
    m->msg_flags = less.msg_flags;
    m->msg_namelen = less.msg_namelen;
    return n;
}

REAL(ssize_t, sendmsg, int fd, const struct msghdr *m, int f) {
    int e = FAILS(sendmsg);
    if (e == WHAT_LOST) return lose(fd);
    if (e > 0) return -1;
    size_t all = 0;
    for (size_t i = 0; i < m->msg_iovlen; i++) all += m->msg_iov[i].iov_len;
    if (all >= 2048 && planted(PLANT_SWALLOWED)) return (ssize_t)all; /* it failed, and nobody looked */
    if (e != WHAT_SHORT || !is_stream(fd)) return __real_sendmsg(fd, m, f);
    struct iovec one = first_byte(m->msg_iov, m->msg_iovlen);
    struct msghdr less = *m;
    less.msg_iov = &one;
    less.msg_iovlen = 1;
    return __real_sendmsg(fd, &less, f);
}

REAL(ssize_t, readv, int fd, const struct iovec *v, int n) {
    int e = FAILS(readv);
    if (e == WHAT_LOST) return lose(fd);
    if (e > 0) return -1;
    struct iovec one = first_byte(v, n < 0 ? 0 : (size_t)n);
    if (e == WHAT_SHORT) return __real_readv(fd, &one, 1);
    ssize_t got = __real_readv(fd, v, n);
    if (got > 0) changed(v[0].iov_base, (size_t)got < v[0].iov_len ? got : (ssize_t)v[0].iov_len);
    return got;
}

/* ---- Files and descriptors -------------------------------------------------------------------------------------- */

/* Eight bytes are a counter of the kernel's, which has no halves. */
REAL(ssize_t, read, int fd, void *p, size_t n) {
    int e = FAILS(read);
    if (e > 0) return -1;
    return __real_read(fd, p, e == WHAT_SHORT && n > 8 ? 1 : n);
}

REAL(ssize_t, pread, int fd, void *p, size_t n, off_t at) {
    int e = FAILS(pread);
    if (e > 0) return -1;
    return __real_pread(fd, p, e == WHAT_SHORT && n > 1 ? 1 : n, at);
}

REAL(ssize_t, write, int fd, const void *p, size_t n) {
    int e = FAILS(write);
    if (e > 0) return -1;
    return __real_write(fd, p, e == WHAT_SHORT && n > 8 ? 1 : n);
}

extern int __real_open(const char *path, int flags, ...);
extern int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, int) : 0;
    va_end(ap);
    return FAILS(open) ? -1 : __real_open(path, flags, mode);
}

extern int __real_fcntl(int fd, int cmd, ...);
extern int __wrap_fcntl(int fd, int cmd, ...);
int __wrap_fcntl(int fd, int cmd, ...) {
    va_list ap;
    va_start(ap, cmd);
    long arg = va_arg(ap, long);
    va_end(ap);
    return FAILS(fcntl) ? -1 : __real_fcntl(fd, cmd, arg);
}

REAL(int, fstat, int fd, struct stat *s) { return FAILS(fstat) ? -1 : __real_fstat(fd, s); }
REAL(int, fsync, int fd) { return FAILS(fsync) ? -1 : __real_fsync(fd); }
REAL(int, rename, const char *a, const char *b) { return FAILS(rename) ? -1 : __real_rename(a, b); }
REAL(int, ftruncate, int fd, off_t n) { return FAILS(ftruncate) ? -1 : __real_ftruncate(fd, n); }
REAL(int, fallocate, int fd, int m, off_t a, off_t n) { return FAILS(fallocate) ? -1 : __real_fallocate(fd, m, a, n); }
REAL(int, memfd_create, const char *n, unsigned f) { return FAILS(memfd_create) ? -1 : __real_memfd_create(n, f); }
REAL(void *, mmap, void *a, size_t n, int p, int f, int fd, off_t o) {
    return FAILS(mmap) ? MAP_FAILED : __real_mmap(a, n, p, f, fd, o);
}
REAL(ssize_t, process_vm_readv, pid_t pid, const struct iovec *l, unsigned long nl, const struct iovec *r,
     unsigned long nr, unsigned long f) {
    return FAILS(process_vm_readv) ? -1 : __real_process_vm_readv(pid, l, nl, r, nr, f);
}

/* ---- Waiting ---------------------------------------------------------------------------------------------------- */

REAL(int, epoll_create1, int f) { return FAILS(epoll_create1) ? -1 : __real_epoll_create1(f); }
REAL(int, epoll_ctl, int fd, int op, int of, struct epoll_event *e) {
    extern int __real_epoll_ctl(int, int, int, struct epoll_event *);
    return op == EPOLL_CTL_ADD && FAILS(epoll_ctl) ? -1 : __real_epoll_ctl(fd, op, of, e);
}
REAL(int, epoll_wait, int fd, struct epoll_event *e, int n, int ms) {
    return FAILS(epoll_wait) ? -1 : __real_epoll_wait(fd, e, n, ms);
}
REAL(int, epoll_pwait2, int fd, struct epoll_event *e, int n, const struct timespec *t, const sigset_t *s) {
    return FAILS(epoll_pwait2) ? -1 : __real_epoll_pwait2(fd, e, n, t, s);
}
REAL(int, eventfd, unsigned n, int f) { return FAILS(eventfd) ? -1 : __real_eventfd(n, f); }
REAL(int, poll, struct pollfd *p, nfds_t n, int ms) { return FAILS(poll) ? -1 : __real_poll(p, n, ms); }

/* ---- The rest --------------------------------------------------------------------------------------------------- */

REAL(ssize_t, getrandom, void *p, size_t n, unsigned f) { return FAILS(getrandom) ? -1 : __real_getrandom(p, n, f); }
REAL(int, getaddrinfo, const char *h, const char *s, const struct addrinfo *i, struct addrinfo **o) {
    return FAILS(getaddrinfo) ? EAI_MEMORY : __real_getaddrinfo(h, s, i, o);
}
REAL(int, getifaddrs, struct ifaddrs **o) { return FAILS(getifaddrs) ? -1 : __real_getifaddrs(o); }
REAL(int, pthread_create, pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x) {
    return FAILS(pthread_create) ? EAGAIN : __real_pthread_create(t, a, f, x);
}
REAL(int, sched_getaffinity, pid_t p, size_t n, cpu_set_t *s) {
    return FAILS(sched_getaffinity) ? -1 : __real_sched_getaffinity(p, n, s);
}
