/* mbox.h: the receiving half of a transport whose messages come whole: posted receives, messages kept until somebody
 * asks for them, completions in waiting. inproc and simnet are made of it. Relies on nothing but memory; the caller
 * locks. It must not know how messages travel. */
#ifndef RG_MBOX_H
#define RG_MBOX_H

#include "regroup_transport.h"
#include "ring.h"

typedef enum rg_mbox_state { MBOX_FREE, MBOX_CONNECTING, MBOX_UP, MBOX_DOWN } rg_mbox_state_t;

typedef struct rg_mbox_recv {
    struct rg_mbox_recv *next;
    rg_tp_recv_t r;
    uint64_t whole; /* the owner's; 0 when it is posted */
} rg_mbox_recv_t;

typedef struct rg_mbox_kept {
    struct rg_mbox_kept *next;
    rg_tag_t tag;
    uint64_t len;
    uint8_t bytes[];
} rg_mbox_kept_t;

typedef struct rg_mbox_link {
    rg_mbox_state_t state;
    rg_tp_peer_t peer; /* addr is not kept */
    uint64_t deadline; /* of CONNECTING */
    rg_mbox_recv_t *recvs;
    rg_mbox_kept_t *kept;
    uint64_t kept_bytes;
    uint32_t kept_count;
    uint64_t note;
    int note_dirty;
    uint64_t sent, received;
    char text[160];
} rg_mbox_link_t;

typedef struct rg_mbox {
    rg_mbox_link_t **links;
    uint32_t n_links;
    uint32_t n_ops; /* receives posted, and whatever else the owner counts in that still has to complete */
    rg_ring_t ring;
    uint32_t notes;
    uint64_t fence;
} rg_mbox_t;

rg_mbox_link_t *rg_mbox_link(rg_mbox_t *m, uint32_t index); /* NULL: free or out of range */
/* A fresh link in CONNECTING. */
rg_status_t rg_mbox_connect(rg_mbox_t *m, uint32_t index, const rg_tp_peer_t *peer, uint64_t now, rg_error_t *err);
void rg_mbox_up(rg_mbox_t *m, uint32_t index);
void rg_mbox_down(rg_mbox_t *m, uint32_t index, const char *text); /* completes its receives with GONE */
void rg_mbox_drop(rg_mbox_t *m, uint32_t index);
void rg_mbox_fence(rg_mbox_t *m, uint64_t epoch);
void rg_mbox_note(rg_mbox_t *m, uint32_t index, uint64_t note);

int rg_mbox_reserve(rg_mbox_t *m, uint32_t more);
void rg_mbox_push(rg_mbox_t *m, rg_tp_event_t ev, rg_tp_status_t st, uint32_t link, uint64_t cookie,
                  const rg_tag_t *tag);
int rg_mbox_take(rg_mbox_t *m, rg_completion_t *out, int max);
void rg_mbox_free(rg_mbox_t *m);

/* As the table's recv(). */
int rg_mbox_post(rg_mbox_t *m, uint32_t index, const rg_tp_recv_t *r);
/* A message has come. 1: it was taken (received, kept, or thrown away). 0: it must wait where it is; *told remembers
 * that UNEXPECTED was reported. */
int rg_mbox_offer(rg_mbox_t *m, uint32_t index, const rg_tag_t *tag, const void *buf, uint64_t len, int *told);

#endif
