/* side.h: questions and answers between processes whose links are up, beside the operations: also with a candidate that
 * is no member yet. One party of a process answers (a host), any may ask. What they say is theirs; this knows only how
 * long it is. An answer comes once or not at all, so whoever asks minds the time. It relies on the group's lock where a
 * comment says "locked". It must never delay an operation: an answer is handed to the transport by whoever drives. */
#ifndef RG_SIDE_H
#define RG_SIDE_H

#include "engine/group.h"

#define RG_SIDE_ASK 64u               /* bytes of a question */
#define RG_SIDE_ANSWER_MAX (1u << 20) /* of an answer */

typedef enum rg_side_host_kind { RG_SIDE_STATE, RG_SIDE_SERVICE, RG_SIDE_HOSTS } rg_side_host_kind_t;
#define RG_SIDE_CALL_WORD 0x31435247u    /* "GRC1" in memory order: no question, but a call that waits (compare.c) */
#define RG_SIDE_SERVICE_WORD 0x31515247u /* "GRQ1" in memory order: what begins with it is for the service */

/* Who answers. What is called locked must neither block nor call the engine. */
typedef struct rg_side_host {
    void *user;
    /* Locked. 0: no answer will come. Below 0: there is no memory now, and it is asked again a little later. */
    int (*asked)(void *user, uint64_t peer, uint32_t nr, const uint8_t *ask);
    /* Locked: an answer of this length to this one is gone, or its link is. */
    void (*sent)(void *user, uint64_t peer, uint32_t len);
    void (*closing)(void *user); /* not locked: the handle is being freed, this is the last call */
} rg_side_host_t;

/* NULL: it was refused (rg_side_refused() says so during the call), or the link is gone. Locked. */
typedef void (*rg_side_answer_fn)(void *user, uint64_t cookie, const uint8_t *answer);

rg_status_t rg_side_open(rg_group_t *g);
void rg_side_close(rg_group_t *g); /* not locked: the host is told; nothing else may run on the group */
void rg_side_free(rg_group_t *g);  /* after the transport was closed */
int rg_side_completion(rg_group_t *g, const rg_completion_t *c); /* 1 when it was its own */
void rg_side_tick(rg_group_t *g);                                /* locked: hands answers over */

/* INVALID when there is such a host. NULL: none any more. Locked. */
rg_status_t rg_side_host(rg_group_t *g, rg_side_host_kind_t kind, const rg_side_host_t *host);
/* From any thread, not locked, by the host, once for each question that it said it would answer: the answer to question
 * nr of this peer, made with malloc, which is this file's from here on. NULL: refused. It needs no memory. */
void rg_side_answer(rg_group_t *g, rg_side_host_kind_t kind, uint64_t peer, uint32_t nr, uint8_t *answer, uint32_t len);

/* Asks a peer whose link is up. answer_len 0: nothing is awaited. Locked. Errors: PEER_LOST, NOMEM; RESOURCE: as many
 * as may be are not answered yet. */
rg_status_t rg_side_ask(rg_group_t *g, uint64_t peer, const uint8_t ask[RG_SIDE_ASK], uint32_t answer_len,
                        rg_side_answer_fn fn, void *user, uint64_t cookie);
int rg_side_refused(const rg_group_t *g); /* in an answer function that got NULL. Locked */
/* Nobody is to be told of answers that are still to come. Locked. */
void rg_side_forget(rg_group_t *g, const void *user);

#endif
