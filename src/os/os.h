/* os.h: clock, randomness, sockets, interfaces. With transports/, src/engine/coordinator.c and src/engine/control.c the
 * only code that touches the system. */
#ifndef RG_OS_H
#define RG_OS_H

#include "regroup.h"
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

uint64_t rg_os_now_ns(void);                 /* CLOCK_MONOTONIC */
rg_status_t rg_os_random(void *p, size_t n); /* getrandom, EINTR-safe */
/* Moves the calling thread from processor `cpu` to another one that it may use and that is not among the n in `taken`.
 * What it may use is afterwards what it was. Where it is then; -1: there is no such place, or it cannot be moved. */
int rg_os_leave_cpu(int cpu, const uint32_t *taken, uint32_t n);
uint32_t rg_os_cores(void); /* that this process may use (affinity), at least 1 */

/* Forks between the first call in the first process and this process. What is opened remembers it: where it differs the
 * caller is a child of whoever opened it. */
uint32_t rg_os_forks(void);

/* In a file with a lock of its own: it is held over a fork, so that no other thread of the parent is in the middle of a
 * change then; parent and child both give it back. For plain mutexes: of others a child may not give back what its
 * parent took. */
#define RG_OS_HELD_OVER_FORKS(lock)                                                                                    \
    static void hold_over_fork(void) { pthread_mutex_lock(&(lock)); }                                                  \
    static void let_go_after_fork(void) { pthread_mutex_unlock(&(lock)); }                                             \
    __attribute__((constructor)) static void survive_forks(void) {                                                     \
        (void)pthread_atfork(hold_over_fork, let_go_after_fork, let_go_after_fork);                                    \
    }

/* A thread of the library's own: no signal of the program's comes to it, and its stack is large enough whatever the
 * program's default is. 0, or an error number. */
int rg_os_thread(pthread_t *thread, void *(*body)(void *), void *arg);

/* From here to the end of the block the calling thread is not cancelled (pthread_cancel()): it would take a lock, an
 * operation's buffers or the office of driving the group with it, and all others would wait for them. What was asked
 * for meanwhile happens after the call. May be nested. */
#define RG_OS_STAY __attribute__((cleanup(rg_os_may_go), unused)) const int rg_os_stayed = rg_os_stay()
int rg_os_stay(void);
void rg_os_may_go(const int *was);

/* A name as a number, never 0; NULL and "": 0. */
uint64_t rg_os_name_hash(const char *name);
/* Equal for processes on one running kernel, in whatever container; and what counts as one host: the name, if one is
 * given, else the kernel together with the network that the process sees, because members in different network
 * namespaces reach each other by a network only. Never 0. */
uint64_t rg_os_machine(void);
uint64_t rg_os_host(const char *name);

/* "host:port", "[v6]:port", ":port" -> socket address. Numeric or by name; a name gives the first usable of up to max
 * addresses, IPv6 and IPv4. Returns how many were written, or a negative rg_status_t with err filled. */
int rg_os_resolve(const char *text, struct sockaddr_storage *out, int max, rg_error_t *err);
/* Several with commas between ("a:1,b:2"): the addresses of each in turn. One that cannot be resolved is passed over
 * when another can; what is not an address at all is an error. */
int rg_os_resolve_list(const char *text, struct sockaddr_storage *out, int max, rg_error_t *err);
/* "10.0.0.1:80", "[::1]:80" */
const char *rg_os_addr_text(const struct sockaddr *sa, char *buf, size_t cap);

/* Non-blocking, close-on-exec. Listening: backlog 1024; "address in use" names address and port in err. On success
 * returns the descriptor and the bound address. */
int rg_os_listen(const struct sockaddr *sa, socklen_t len, struct sockaddr_storage *bound, rg_error_t *err);
/* This process or host lacks descriptors or memory: what failed says nothing of the other end. */
int rg_os_shortage(int e);
/* Starts a non-blocking connect; returns the descriptor or a negative rg_status_t (RESOURCE: a shortage). */
int rg_os_connect(const struct sockaddr *sa, socklen_t len, rg_error_t *err);

/* A program may close its standard streams and print all the same: no descriptor of the library's has one of their
 * numbers, or such a line would go to a peer, into a file or into shared memory. Takes any new one, or -1 with errno;
 * what comes back is above 2, or -1 with errno. Close-on-exec. */
int rg_os_high(int fd);
/* The same for what others open: between the two no number below 3 is free, as far as that can be had. */
int rg_os_hold_stdio(void);
void rg_os_free_stdio(int held);

/* What `path` names that a file must not be put in the place of: a rename would take that of a device, too. A link is
 * replaced by the file, but one that leads nowhere may be that of a stream which is closed just now (/dev/stdout), and
 * one that leads to a standard stream of this process is where others expect theirs. Static; NULL: nothing is. */
const char *rg_os_in_the_way(const char *path);

/* Raises the soft descriptor limit to at least `need` if the hard one allows. RESOURCE with text otherwise. */
rg_status_t rg_os_need_fds(uint32_t need, rg_error_t *err);

/* Bytes that this process could still take, by what the host and its control groups say now: file pages that would make
 * room and swap are counted in. UINT64_MAX: nobody says. under: the same with /proc and /sys below another root. */
uint64_t rg_os_memory_left(void);
uint64_t rg_os_memory_left_under(const char *root);

/* Between the two no write() of this thread raises SIGPIPE or SIGXFSZ, whatever the program does with them; it fails
 * with EPIPE or EFBIG. Allocates nothing and leaves errno alone. */
typedef struct rg_os_hush {
    sigset_t mask, pending;
} rg_os_hush_t;
void rg_os_hush(rg_os_hush_t *h);
void rg_os_unhush(const rg_os_hush_t *h);

/* Interface choice. Grammar: comma list; "eth0" exact or prefix "eth"; "^lo,docker" excludes; "10.0.0.0/8" or
 * "fd00::/8" network; bare IP address. NULL selector: the way towards `remote` (numeric text, may be NULL). Never gives
 * loopback unless the selector or `remote` is loopback. Writes up to max addresses (port 0); returns how many, or a
 * negative status whose text lists the interfaces there are. */
int rg_os_local_addresses(const char *selector, const char *remote, struct sockaddr_storage *out, int max,
                          rg_error_t *err);
int rg_os_is_loopback(const struct sockaddr *sa);
int rg_os_is_local_address(const struct sockaddr *sa); /* 1 when it is an address of this host */

#endif
