/* engine_rig.h: groups whose members are threads of the test: each has an rg_group of its own over the transport that
 * the case names, and all share a coordinator in the same process. Relies on Criterion for the verdict only in the
 * test's own thread: members note what went wrong and the test asserts when all have ended. It must not sleep to order
 * events: members meet at gates, which have a limit so that a failure never becomes a hang. */
#ifndef ENGINE_RIG_H
#define ENGINE_RIG_H

#include "regroup.h"

#include <pthread.h>
#include <stdint.h>

#define RIG_MAX 8
#define RIG_GATES 64

#if defined(__SANITIZE_THREAD__)
#define RIG_SLOW 12 /* how many times longer than usual things may take, and how much less of them is done */
#elif defined(__SANITIZE_ADDRESS__)
#define RIG_SLOW 4
#else
#define RIG_SLOW 1
#endif

typedef struct rig rig_t;

typedef struct rig_member {
    rig_t *rig;
    uint32_t index; /* order of joining in the first view, so its rank there */
    rg_group_t *g;  /* destroyed by the rig; the body may destroy it and set NULL */
    int bad;
    char text[512];
    int ends; /* rig_ends_after() was called */
    uint64_t ends_ns;
    pthread_t ends_thread;
} rig_member_t;

/* 0: everything held. */
typedef int (*rig_body_fn)(rig_member_t *m, void *arg);

struct rig {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint32_t n, gate[RIG_GATES];
    int failed; /* somebody complained */
    rg_coordinator_t *coordinator;
    char address[96];
    rg_config_t config; /* of every member; coordinator, min_size, order are filled in, log_user (the member) if NULL */
    rig_member_t member[RIG_MAX];
    rig_body_fn body;
    void *arg;
};

/* Runs body in n members of one group. config: NULL or what the members have in common. Fails the test when a member
 * complains. */
void rig_run(uint32_t n, const char *transport, const rg_config_t *config, rig_body_fn body, void *arg);

/* Members with this many neighbouring indexes have one host's name; 0: that is left to the library. Set it before
 * rig_run(). */
extern uint32_t rig_per_host;

/* Joins the rig's group (again); for members that come later. */
rg_group_t *rig_join(rig_member_t *m, uint32_t min_size);

/* Counts a pass of this gate; waits until `count` were counted. 0, or 1 after a complaint when a minute has passed. */
int rig_gate(rig_member_t *m, uint32_t gate, uint32_t count);
void rig_pass(rig_member_t *m, uint32_t gate);              /* counts without waiting */
int rig_alike(rig_member_t *m, const float *v, uint64_t n); /* all members call it: the same bits everywhere? */

/* Ends the calling member as a fault would, in the middle of whatever it does by then. Once for each member: the rig
 * waits for it when the body has returned. */
void rig_ends_after(rig_member_t *m, uint64_t us);

int rig_complain(rig_member_t *m, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
uint64_t rig_now(void);
/* How late the host was from then until now, within rig_run(): a thread that naps for 5 ms again and again adds up what
 * it is late by, and that counts twice, as several threads may be late one after the other. A bound may have it on top:
 * a host whose processors others use makes everything late, and a promise about time is still kept there; on a quiet
 * host it is nothing. */
double rig_late_ms(uint64_t since_ns);
uint64_t rig_random(uint64_t *state);
uint64_t rig_seed(uint64_t base); /* RG_TEST_SEED in the environment gives other moments and victims */

/* In a body: complain and end it. */
#define RIG_NEED(m, cond, ...)                                                                                         \
    do {                                                                                                               \
        if (!(cond)) return rig_complain(m, __FILE__, __LINE__, __VA_ARGS__);                                          \
    } while (0)
#define RIG_OK(m, call)                                                                                                \
    do {                                                                                                               \
        rg_status_t rig_status_ = (call);                                                                              \
        RIG_NEED(m, rig_status_ == RG_OK, "%s: %s: %s", #call, rg_status_name(rig_status_), rig_errmsg(m));            \
    } while (0)
const char *rig_errmsg(rig_member_t *m);

#endif
