/* procs.h: what the tests with real processes share: a coordinator and members as forked processes, memory that they
 * share with the test, conditions with a deadline, and a count of what passed. The process that tests stays single
 * threaded, so that fork() is safe at any time.
 * It must not hide a hang: everything that waits has a deadline, and what is left over is killed and reported. */
#ifndef RG_TEST_PROCS_H
#define RG_TEST_PROCS_H

#include "regroup.h"

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* ---- Counting -------------------------------------------------------------------------------------------------- */

extern int procs_passed, procs_failed, procs_skipped;
void procs_case(const char *name, int ok); /* counts and prints one case */
int procs_wanted(const char *name);        /* 0: PROCS_ONLY in the environment names a part of other names */
#define PROCS_RUN(name, call)                                                                                          \
    do {                                                                                                               \
        if (procs_wanted(name)) procs_case(name, call);                                                                \
    } while (0)
/* In a member: prints where and what and makes the enclosing int function return 1. */
#define PROCS_REQUIRE(cond, ...)                                                                                       \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            procs_complain(__FILE__, __LINE__, #cond, __VA_ARGS__);                                                    \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)
void procs_complain(const char *file, int line, const char *cond, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- Time and conditions --------------------------------------------------------------------------------------- */

uint64_t procs_now(void);
unsigned procs_draw(unsigned *seed); /* the next of a row of random numbers of 24 bits */
void procs_pause_ns(uint64_t ns);    /* until the random moment of a kill; not to wait for anything */
void procs_nap(void);                /* a millisecond between two looks at a condition */
/* True as soon as cond is; false when `seconds` have passed, and as much on top as the host was late meanwhile. */
#define PROCS_WAIT(cond, seconds)                                                                                      \
    ({                                                                                                                 \
        uint64_t procs_until_ = procs_now() + (uint64_t)((seconds)*1e9), procs_was_ = procs_late_ns();                 \
        int procs_met_;                                                                                                \
        while (!(procs_met_ = (cond)) && procs_now() < procs_until_ + (procs_late_ns() - procs_was_)) procs_nap();     \
        procs_met_;                                                                                                    \
    })

/* A host whose processors others use makes everything late, and a promise about time is still kept there. How late it
 * is is noted by a process that does nothing but nap for 5 ms again and again: what it is late by, all added up, is
 * what a bound may have on top, twice over, as what is promised takes several processes, which are late one after the
 * other. On a host that is quiet that is nothing. Whatever is late by itself is late beyond that. */
void procs_host_watch(void);             /* before anything else; ends with this process */
uint64_t procs_late_ns(void);            /* in all so far */
double procs_late_ms(uint64_t since_ns); /* from then (by procs_now()) until now */
int procs_host_planted(void);            /* 1 when a host that is late is seen */

/* ---- Processes ------------------------------------------------------------------------------------------------- */

void *procs_shared(size_t bytes); /* zeroed memory that children share; never fails */

struct procs_coordinator {
    pid_t pid;
    int hold; /* the coordinator ends when this is closed */
    char address[128];
};
/* A coordinator in a process of its own. */
int procs_coordinator_start(struct procs_coordinator *c, uint32_t heartbeat_ms);
int procs_coordinator_stop(struct procs_coordinator *c); /* 0 when it ended well */

/* Forks a process that runs body(index, arg) and exits with what it returns. It is killed with its parent. */
pid_t procs_fork(int (*body)(int index, void *arg), int index, void *arg);
/* Waits for pid; its exit code, 256 + signal, or -1 after it had to be killed at the deadline. */
int procs_end(pid_t pid, double seconds);

/* n members of a new group on a new coordinator, member i with order i. body gets the joined group. Returns how many
 * members did not end with 0. */
typedef int (*procs_body)(rg_group_t *g, int rank, int n, void *arg);
int procs_cluster(int n, procs_body body, void *arg, double seconds);
/* The same with a configuration; coordinator, group, min_size and order are filled in. */
int procs_cluster_with(const rg_config_t *cfg, int n, procs_body body, void *arg, double seconds);

/* A port that is free on all addresses and that nobody is given who does not ask for it by its number. 0: none. */
int procs_free_port(void);

/* The configuration of member `order` of a group of n. */
rg_config_t procs_config(const char *address, const char *group, uint32_t n, uint32_t order);

/* ---- Looking at a process -------------------------------------------------------------------------------------- */

int procs_count_fds(pid_t pid);
int procs_count_threads(pid_t pid);
long procs_rss_kb(pid_t pid);

/* ---- The tests ------------------------------------------------------------------------------------------------- */

void test_api(void);
void test_api_faults(void);
void test_stop(void);
void test_join(void);
void test_garbage(void);
void test_security(void);
void test_env(void);
void test_state(void);
void test_quorum(void);
void test_shm(void);
void test_paths(void);
void test_cases(void);
void test_cases_long(void); /* takes many minutes; not one of those that run without a name */
int check_kinds_planted(void);
/* wanted: "all" or names of kinds; elems: of the largest vectors. 0 when everything held. */
int check_kinds(int kills, unsigned seed, const char *wanted, size_t elems);
/* Random quantised collectives, `rounds` of them, with a kill after each `every` or so. 0 when everything held. */
int check_quant(uint64_t rounds, unsigned every, unsigned seed);
int check_sparse(uint64_t rounds, unsigned every, unsigned seed); /* the same of sparse ones */
int check_sparse_planted(void);
int check_quant_planted(void);                                      /* 1 when planted disagreements are found */
int check_kills_planted(void);                                      /* 1 when planted disagreements are found */
int check_kills(int kills, unsigned seed, size_t bytes, int timed); /* 0 when everything held */

/* A connection of somebody who does not belong, to a port of this host; -1: refused. */
int procs_stranger(int port);

/* What a process holds, and whether it has come to hold more, memory beyond the slack. */
struct procs_usage {
    int fds, threads;
    long rss_kb;
};
struct procs_usage procs_usage_of(pid_t pid);
int procs_grown(struct procs_usage was, struct procs_usage is, long slack_kb);
/* The same of a process that goes on: a descriptor that is open for a moment is not kept. is: what was seen last. */
int procs_keeps(pid_t pid, struct procs_usage was, struct procs_usage *is, long slack_kb);

#endif
