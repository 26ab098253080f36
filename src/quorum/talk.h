/* talk.h: what ports (service.h) ask each other and how they answer, as bytes. It knows neither the engine nor memory,
 * so that the codec can be tested, and fed with anything, alone. Nothing outside src/quorum may use it, except tests.
 */
#ifndef RG_QUORUM_TALK_H
#define RG_QUORUM_TALK_H

#include <stdint.h>

#define RG_SERVICE_CHUNK (256u << 10) /* bytes of elements in one answer */
#define RG_SASK_BYTES 64u             /* of a question */
#define RG_SERVICE_HEAD 64u           /* bytes of what stands before them */

typedef enum rg_sask_kind {
    RG_SASK_NEWS = 1, /* what do you know of this reduction: an answer of a head */
    RG_SASK_PULL,     /* your next contribution of this round or a later one: answered when there is one */
    RG_SASK_DATA,     /* more of that contribution */
    RG_SASK_GET,      /* the result of this round: answered when it is decided */
    RG_SASK_MORE,     /* more of that result; of any that is kept */
    RG_SASK_READ,     /* elements of your window */
    RG_SASK_READ_MORE,
    RG_SASK_ADD, /* I have something to add to your window: fetch it. Answered when it is done */
    RG_SASK_ADD_DATA,
    RG_SASK_KINDS
} rg_sask_kind_t;

/* A question. `name` says which port; `terms` is a hash of what must be equal on both sides. */
typedef struct rg_sask {
    rg_sask_kind_t kind;
    uint64_t name, terms;
    uint64_t round; /* or number */
    uint64_t off;   /* bytes */
    uint32_t len;   /* bytes of elements in the answer, or to be added */
    uint32_t cap;   /* members that the answer has room for; PULL: the term */
    uint64_t epoch; /* of the view */
    float scale;
    uint32_t turn; /* of whoever asks, who gets it back with the answer: it does not travel */
} rg_sask_t;

void rg_sask_put(const rg_sask_t *q, uint8_t to[RG_SASK_BYTES]);
int rg_sask_get(rg_sask_t *q, const uint8_t from[RG_SASK_BYTES]); /* 0: these are not the bytes of a question */

/* What stands before the elements of an answer, and is all of one to NEWS. */
typedef struct rg_shead {
    uint64_t terms;
    uint64_t round;   /* of the contribution or result; NEWS: the newest that is kept there. Windows: additions */
    uint64_t first;   /* NEWS: whose decisions are followed there. Result: who decided */
    uint64_t kept;    /* NEWS: bit i: the result of round - i is kept there. Result: waited ns */
    uint64_t version; /* Result: the newest round that is kept there. NEWS: the term there */
    double weight;    /* Contribution: 0: nothing is given */
    uint32_t n;       /* Result: members that it lists. Windows: rg_status_t */
    uint32_t status;  /* NEWS: 1: a result of this view is kept there */
    uint64_t epoch;   /* NEWS: of the view. Result: of the view in which it was decided */
} rg_shead_t;

void rg_shead_put(const rg_shead_t *h, uint8_t to[RG_SERVICE_HEAD]);
void rg_shead_get(rg_shead_t *h, const uint8_t from[RG_SERVICE_HEAD]);

/* A member in the answer about a result. */
typedef struct rg_qentry {
    uint64_t id, version;
    double weight;
    uint32_t came, contributes; /* came: RG_QUORUM_DIFFERS: with another configuration */
} rg_qentry_t;
#define RG_QUORUM_ENTRY 32u
#define RG_QUORUM_DIFFERS 2u

void rg_entries_put(const rg_qentry_t *e, uint32_t n, uint8_t *to);
void rg_entries_get(rg_qentry_t *e, uint32_t n, const uint8_t *from);

#endif
