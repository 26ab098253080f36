/* env.h: what the tests of hostile environments share: members that work without end, each perhaps in a network
 * namespace, under the eyes of the test; a coordinator wherever it is wanted; and watching what every member noticed.
 * It relies on procs.h and net.h, and it must not judge: the tests do. */
#ifndef RG_TEST_ENV_H
#define RG_TEST_ENV_H

#include "net.h"
#include "procs.h"

#include <string.h>

#define ENV_MEMBERS 4

struct env_member {
    volatile uint64_t ops, boundaries;
    volatile uint64_t changed_ns; /* when it first knew that somebody is missing */
    volatile uint64_t called_ns;  /* the last call of an operation */
    volatile uint64_t ended_ns;   /* when a call failed */
    volatile uint64_t worst_ns;   /* longest operation */
    volatile uint32_t contributors, rank;
    volatile int joined, joins, status, idles, wrong;
    volatile long rss_kb;
    char text[512]; /* of a failed join or call */
};

/* In shared memory. Strings of the configuration are those of the test: members are forked from it. */
struct env {
    char address[160], group[64];
    rg_config_t cfg;
    uint32_t n, count;      /* members of the first view; floats of an operation */
    uint32_t op_timeout_ms; /* of each operation; 0: the configuration's */
    pid_t ns[ENV_MEMBERS];
    const char *interface[ENV_MEMBERS], *coordinator[ENV_MEMBERS], *hostname[ENV_MEMBERS], *hosts[ENV_MEMBERS];
    uint32_t port[ENV_MEMBERS];
    volatile int idle, end;
    volatile int rejoin; /* a member whose call failed joins again once this is set */
    struct env_member m[ENV_MEMBERS];
};

#define ENV_SEEN(cond, ...)                                                                                            \
    ((cond) || (fprintf(stderr, "%s: %s: ", __func__, #cond), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), 0))

struct env *env_new(const char *group, uint32_t n, uint32_t count);
void env_free(struct env *e);

/* A coordinator in namespace ns (0: here) on `listen`; its address is left in co->address. */
int env_coordinator(struct procs_coordinator *co, pid_t ns, const char *listen, uint32_t heartbeat_ms);
void env_coordinator_kill(struct procs_coordinator *co);

/* A member: joins, works, leaves. Ends with 0 when it left in order, with 3 when a call failed and it may not rejoin
 * (m->status says how), with 4 when it could not join. */
int env_member(int index, void *env);
void env_start(struct env *e, pid_t *pids);                     /* all n */
int env_running(struct env *e, uint64_t ops, double seconds);   /* all have done at least so many more */
int env_end(struct env *e, pid_t *pids, unsigned expected_bad); /* 1 when all others ended well; bit per member */
void env_kill(pid_t *pids, uint32_t n);

void env_skip(const char *name, const char *reason);

/* The parts. */
void env_host_cases(void);
void env_net_cases(void);
void env_address_cases(void);
void env_coordinator_cases(void);

#endif
