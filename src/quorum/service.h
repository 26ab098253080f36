/* service.h: a thread of a group that answers other members, and asks them, while the program computes: what quorum
 * reductions and windows are made of. A port is one of those things; its functions run on that thread alone, one at a
 * time and without any lock, so they may take their time with memory but must wait for nothing. It relies on
 * engine/side.h for messages and on the core's view for who is a member. Nothing outside src/quorum may use it. */
#ifndef RG_SERVICE_H
#define RG_SERVICE_H

#include "engine/side.h"
#include "quorum/talk.h"

#include <pthread.h>

typedef struct rg_port rg_port_t;

/* A question that came. */
typedef struct rg_asked {
    uint64_t peer;
    uint32_t nr;
    rg_sask_t q;
} rg_asked_t;

typedef struct rg_port_ops {
    void (*asked)(rg_port_t *p, const rg_asked_t *a);
    /* bytes NULL: refused, or without `refused` the link is gone. */
    void (*answered)(rg_port_t *p, uint64_t peer, const rg_sask_t *q, const uint8_t *bytes, int refused);
    uint64_t (*step)(rg_port_t *p, uint64_t now); /* after all that; when it is to be called again at the latest */
    void (*gone)(rg_port_t *p); /* NULL, or: it is being removed, and refuses the questions that wait in it. On the
                                   thread that removes it, while the service's does nothing */
} rg_port_ops_t;

/* Bytes of answers to a peer that have not left. */
typedef struct rg_unsent {
    uint64_t peer, bytes;
} rg_unsent_t;

/* What carries questions and tells the time. */
typedef struct rg_service_line {
    int (*ask)(rg_port_t *p, uint64_t peer, const rg_sask_t *q, uint32_t answer_len);
    void (*answer)(rg_port_t *p, const rg_asked_t *a, uint8_t *answer, uint32_t len);
    void (*tell)(rg_port_t *p);
    uint64_t (*now)(const rg_port_t *p);
} rg_service_line_t;

typedef struct rg_service {
    rg_group_t *g;
    const rg_service_line_t *line; /* NULL: the group's links. Tests that play the time through have their own */
    pthread_mutex_t lock; /* for what follows; the group's lock may be held when it is taken, never the other way */
    pthread_cond_t cond;
    uint32_t refs;
    int stop, busy, dead; /* busy: the thread is in a port; dead: the group is gone */
    int woken, removing;  /* removing: programs that wait until it is not busy */
    struct rg_service_event *first, **last;
    struct rg_service_event *later; /* questions that were put off, the newest first */
    struct rg_service_pending *pending;
    rg_unsent_t *unsent;
    uint32_t n_unsent, cap_unsent;
    rg_port_t *ports;
    uint64_t serial; /* of the last port */
    pthread_t thread;
    /* The thread's own: the view when it last looked */
    uint64_t epoch;
    uint32_t n, cap;
    uint64_t *ids;
    rg_status_t over;                   /* the group is over for this process */
    struct rg_service_event *looked_at; /* a question */
    int again, answered;                /* it is put off; it was answered */
    struct rg_service_event *spare;     /* one for each question that a port holds */
} rg_service_t;

struct rg_port {
    rg_port_t *next;
    rg_service_t *sv;
    const rg_port_ops_t *ops;
    uint64_t name;
    uint64_t serial; /* the service's: answers to a port that had this name before are not this one's */
};

/* Of the root group. A port holds one of these; INVALID: the name is in use. */
rg_status_t rg_service_add(rg_group_t *root, rg_port_t *p, rg_error_t *err);
void rg_service_remove(rg_port_t *p); /* from any thread but the service's: nothing of it runs any more */

/* The port's functions: */
int rg_service_ask(rg_port_t *p, uint64_t peer, const rg_sask_t *q,
                   uint32_t answer_len); /* 0: it cannot be asked now */
/* Once for each question. NULL and 0: refused. NULL and a length: there was no memory for it, and the question comes to
 * the port once more. */
void rg_service_answer(rg_port_t *p, const rg_asked_t *a, uint8_t *answer, uint32_t len);
/* Room for an answer, with its head filled in. NULL without memory. */
uint8_t *rg_service_room(const rg_shead_t *h, uint64_t bytes);
uint64_t rg_service_now(const rg_port_t *p);
void rg_service_tell(rg_port_t *p); /* who waits in rg_service_wait() is to look again */

/* The program's: */
void rg_service_wake(rg_port_t *p); /* its step is to be called */
/* Until finished(arg) or the time is over, driving the group. Gives the group's status if it is over. */
rg_status_t rg_service_wait(rg_port_t *p, int (*finished)(void *arg), void *arg, uint64_t deadline_ns);

#endif
