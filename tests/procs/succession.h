/* succession.h: what the tests of the coordinator's office share: a group of processes that works without end, any of
 * which can be killed and replaced, coordinators at fixed ports, and what every member saw, in shared memory.
 * It relies on procs.h. It must not judge: the tests do. */
#ifndef RG_TEST_SUCCESSION_H
#define RG_TEST_SUCCESSION_H

#include "procs.h"

#define SUCC_N 4
#define SUCC_SLOTS (SUCC_N + 1)
#define SUCC_HEARTBEAT_MS (succ_heartbeat_ms())
#define SUCC_TAKEOVER_MS (2 * SUCC_HEARTBEAT_MS)
uint32_t succ_heartbeat_ms(void); /* HEARTBEAT in the environment, or 1000: the machine may be busy with other things */

struct succ_member {
    pid_t pid; /* 0: nobody */
    uint32_t port;
    volatile uint64_t ops;
    volatile uint32_t contributors, rank, holds_office, stale, founder;
    volatile int status, ended, wrong;
    char text[640];
};

/* In shared memory. */
struct succ {
    char list[512], group[64]; /* addresses of coordinators */
    struct succ_member m[SUCC_SLOTS];
    pid_t co[2]; /* 0: none */
    int port[2];
    pid_t ns[SUCC_SLOTS + 2]; /* of members, then of coordinators; 0: here */
    char host[SUCC_SLOTS + 2][64];
    uint32_t elems, quorum_timeout_ms, host_office_off;
    volatile int end;
    int started; /* members so far: the first SUCC_N found the group */
    unsigned seed;
};

struct succ *succ_new(const char *group, unsigned seed);
void succ_list(struct succ *s, int with_members); /* fills s->list: both coordinators, and the members' ports */
void succ_free(struct succ *s);                   /* ends all processes */
int succ_coordinator(struct succ *s, int which, int standby); /* starts it; 0 when it listens */
void succ_kill_coordinator(struct succ *s, int which);
void succ_member(struct succ *s, int slot); /* starts one */
void succ_kill_member(struct succ *s, int slot);
int succ_up(struct succ *s, uint32_t n, double seconds); /* all that live have n contributors, and go on */
int succ_moves(struct succ *s, uint64_t ops, double seconds);
int succ_clean(struct succ *s);        /* nobody that lives has failed; says who has */
int succ_office(const struct succ *s); /* slot that holds the office; -1: none */
uint32_t succ_random(struct succ *s, uint32_t below);

/* check_coordinator_kills.c */
enum { KILL_RESTART = 1, KILL_STANDBY = 2, KILL_TAKEOVER = 4 };
int check_coordinator_kills(int kills, unsigned seed, int modes); /* 0 when everything held */
int check_coordinator_kills_planted(void);                        /* 1 when planted faults are found */
void test_succession(void);

#endif
