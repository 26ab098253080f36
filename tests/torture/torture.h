/* torture.h: what the parts of the torture share: the calls that can be made to fail, one plan of a failure, and the
 * table in shared memory in which the processes of one case note what they saw. Calls are named by their place in the
 * program (an address relative to its start), so that "the third receive of this loop" is the same in every run. It
 * relies on the linker's --wrap; nothing here may allocate, for the allocator is among what fails. */
#ifndef RG_TORTURE_H
#define RG_TORTURE_H

#include "regroup.h"

#include <stdint.h>
#include <sys/types.h>

#define ROLES 5 /* three members, of which the last dies; one that joins; the coordinator */
#define ROLE_DIES 2
#define ROLE_JOINS 3
#define ROLE_COORDINATOR 4
#define OPS 16
#define SITES 1024

/* X(name, errors that it can give): errors below 0 are those of WHAT_. */
enum { WHAT_SHORT = -1, WHAT_LOST = -2, WHAT_NO_FDS = -3 };
#define CALL_LIST(X)                                                                                                   \
    X(malloc, ENOMEM)                                                                                                  \
    X(calloc, ENOMEM)                                                                                                  \
    X(realloc, ENOMEM)                                                                                                 \
    X(aligned_alloc, ENOMEM)                                                                                           \
    X(strdup, ENOMEM)                                                                                                  \
    X(socket, EMFILE, ENOBUFS)                                                                                         \
    X(accept4, EMFILE, ECONNABORTED, EINTR)                                                                            \
    X(bind, EADDRINUSE)                                                                                                \
    X(listen, EADDRINUSE)                                                                                              \
    X(connect, EINTR, ECONNREFUSED)                                                                                    \
    X(getsockname, ENOBUFS)                                                                                            \
    X(getpeername, ENOTCONN)                                                                                           \
    X(getsockopt, ENOBUFS)                                                                                             \
    X(setsockopt, ENOPROTOOPT)                                                                                         \
    X(recv, EINTR, WHAT_SHORT, WHAT_LOST)                                                                              \
    X(recvmsg, EINTR, WHAT_SHORT, WHAT_LOST, WHAT_NO_FDS)                                                              \
    X(send, EINTR, WHAT_SHORT, WHAT_LOST)                                                                              \
    X(sendmsg, EINTR, WHAT_SHORT, WHAT_LOST, ENOBUFS)                                                                  \
    X(read, EINTR, WHAT_SHORT, EIO)                                                                                    \
    X(readv, EINTR, WHAT_SHORT, WHAT_LOST)                                                                             \
    X(pread, EINTR, WHAT_SHORT, EIO)                                                                                   \
    X(write, EINTR, WHAT_SHORT, ENOSPC)                                                                                \
    X(open, EMFILE, EACCES)                                                                                            \
    X(fstat, EIO)                                                                                                      \
    X(fsync, EIO)                                                                                                      \
    X(rename, EIO)                                                                                                     \
    X(ftruncate, ENOSPC)                                                                                               \
    X(fallocate, ENOSPC)                                                                                               \
    X(fcntl, EMFILE)                                                                                                   \
    X(mmap, ENOMEM)                                                                                                    \
    X(memfd_create, EMFILE, ENOSYS)                                                                                    \
    X(process_vm_readv, EPERM, ESRCH)                                                                                  \
    X(epoll_create1, EMFILE)                                                                                           \
    X(epoll_ctl, ENOMEM)                                                                                               \
    X(epoll_wait, EINTR)                                                                                               \
    X(epoll_pwait2, EINTR)                                                                                             \
    X(eventfd, EMFILE)                                                                                                 \
    X(poll, EINTR)                                                                                                     \
    X(getrandom, EINTR)                                                                                                \
    X(getaddrinfo, ENOMEM)                                                                                             \
    X(getifaddrs, EMFILE)                                                                                              \
    X(pthread_create, EAGAIN)                                                                                          \
    X(sched_getaffinity, EINVAL)
#define CALL_ENUM(name, ...) CALL_##name,
enum { CALL_LIST(CALL_ENUM) CALLS };
#undef CALL_ENUM
#define ERRORS_MAX 4

struct call {
    const char *name;
    int error[ERRORS_MAX], errors;
};
extern const struct call calls[CALLS];

/* One place in the program that makes a call. */
struct site {
    volatile uint32_t at; /* 0: free */
    volatile uint32_t count, leaked;
    int call;
};

/* What a library with a mistake would do, once, in the victim: the judge must find it. */
enum { PLANT_NONE, PLANT_SWALLOWED, PLANT_CHANGED, PLANT_KEPT, PLANT_OPEN, PLANTS };

struct plan {
    uint32_t at;         /* which place; 0: nothing fails */
    uint32_t nth, times; /* the call with this number there, and so many in all */
    int error;
    int plant;
};

struct outcome {
    volatile int set;
    rg_status_t status;
    uint32_t contributors;
    uint64_t ids; /* hash of who contributed */
};

struct shared {
    char address[160];
    struct plan plan;
    int victim, storm, tcp;
    volatile int fired, rejoins;
    volatile int over[ROLES], ended[ROLES]; /* it gave up or was put out; it came to its end */
    volatile int reason[ROLES];             /* the status with which it is over */
    char bad[ROLES][512];                   /* what must not be */
    char text[ROLES][256];                  /* why it is over */
    struct outcome op[OPS][ROLES];
    struct site site[SITES];
};

extern struct shared *shared;

/* wrap.c: from here on calls of this process are counted, and the plan holds if it is for `role`. */
void torture_arm(int role);
void torture_disarm(void);
void torture_leaks(void); /* notes at each place how many allocations are still there */

/* script.c: what each role does; returns when it is through. */
void script_member(int role, int go_fd);
void script_coordinator(int ready_fd, int stop_fd);
void script_bad(int role, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The wrapped functions as they are; what the harness itself needs. */
extern ssize_t __real_read(int fd, void *p, size_t n);
extern ssize_t __real_write(int fd, const void *p, size_t n);

#endif
