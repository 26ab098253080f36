/* window.h: a member's window, with what others want of it and what its program wants of others. Three files share it:
 * window.c has the program's calls, serve_window.c what the service's thread does, lent_window.c reads that need no
 * processor of the owner's. Nothing outside src/quorum may use it.
 *
 * Locks: `m` for the calls, held by whoever looks at one, for no longer than a copy of a chunk takes; `memory_lock` for
 * the window's elements, which the service's thread only tries, because the program may hold it for long. */
#ifndef RG_WINDOW_H
#define RG_WINDOW_H

#include "quorum/service.h"
#include "regroup_window.h"

#define RG_WINDOW_UNDER_WAY 4u /* chunks of one transfer */
#define RG_WINDOW_AGAIN_NS 5000000u

/* What the program of this member wants of another one. */
typedef struct rg_wcall {
    struct rg_wcall *next;
    int adds; /* else it reads */
    uint64_t peer, number, off, bytes;
    uint8_t *to;
    const uint8_t *from;
    float scale;
    uint64_t version;
    int asked; /* a first answer is awaited */
    uint32_t flying;
    uint64_t next_off, have, again_ns;
    rg_status_t status;
    atomic_int done;
} rg_wcall_t;

/* What another member adds, until it has come as a whole and been added. */
typedef struct rg_wadd {
    struct rg_wadd *next;
    rg_asked_t a;
    uint8_t *data;
    uint64_t next_off, have;
    uint32_t flying, turn;
} rg_wadd_t;

/* What another member reads in pieces, as it was when it asked. */
typedef struct rg_wcopy {
    struct rg_wcopy *next;
    uint64_t peer, number, bytes, version;
    uint8_t *data;
} rg_wcopy_t;

/* The last addition of a member that was done. */
typedef struct rg_wlast {
    uint64_t peer, number;
} rg_wlast_t;

struct rg_window {
    rg_port_t port; /* first */
    uint64_t bytes, self;
    float *memory;
    uint32_t forks; /* of the process that registered it */
    pthread_mutex_t memory_lock;
    atomic_ullong count;
    uint64_t *stamp; /* what others read before and after the memory (lent_window.c); NULL: it is not lent */

    pthread_mutex_t m;
    rg_wcall_t *calls, **last_call;
    uint64_t next_number;

    /* The thread's */
    uint64_t epoch;
    int ended;         /* calls have, of which those who wait have not been told */
    rg_asked_t *reads; /* that wait for the memory */
    uint32_t n_reads, cap_reads, turn;
    rg_wadd_t *adds;
    rg_wcopy_t *copies;
    rg_wlast_t *lasts;
    uint32_t n_lasts, cap_lasts;
    uint64_t *not_lent; /* members of this view to whom the memory cannot be lent */
    uint32_t n_not_lent, cap_not_lent;
};

extern const rg_port_ops_t rg_window_port;
void rg_window_forget(rg_window_t *w); /* what the thread owned */
/* to += scale * from */
void rg_window_add(float *to, const float *from, uint64_t n, float scale);

/* lent_window.c. Between the first two, with the memory locked, its elements may be written. */
void rg_window_lend(rg_window_t *w, rg_group_t *root); /* if it can be, to those who ask from now on */
void rg_window_changes(rg_window_t *w);
void rg_window_settled(rg_window_t *w);
void rg_window_lend_to(rg_window_t *w, uint64_t peer); /* the service's thread */
void rg_window_unlend(rg_window_t *w, rg_group_t *g);  /* the port is gone; g NULL: so is the group */
/* The elements of another member without its processor. 0: not so. */
int rg_window_peek(rg_window_t *w, uint64_t peer, uint64_t off, uint64_t bytes, void *to, uint64_t deadline_ns,
                   uint64_t *version);

#endif
