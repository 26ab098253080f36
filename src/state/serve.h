/* serve.h: what a newcomer that fetches a state and the members that serve it say to each other, and what the rest of
 * src/state must tell a state that is served: before a piece is written, and when the content is whole again. Relies on
 * state.h and on engine/side.h, which carries questions and answers. Nothing outside src/state may use it, except
 * tests. */
#ifndef RG_SERVE_H
#define RG_SERVE_H

#include "state/state.h"

#define RG_TALK_BYTES 64u       /* of a question */
#define RG_TALK_HEAD_BYTES 80u  /* of the answer to HEAD */
#define RG_TALK_LIST 16384u     /* hashes in one answer, at most */
#define RG_TALK_UNIT (1u << 20) /* bytes of pieces in one answer, at most */

typedef enum rg_talk {
    RG_TALK_HEAD = 1, /* which content is it? Makes a snapshot if there is none, or only the one that is named */
    RG_TALK_LIST_OF,  /* the hashes of `count` pieces from `first` on */
    RG_TALK_PIECES,   /* their contents; `bytes` in all */
    RG_TALK_END       /* this newcomer asks no more. Has no answer */
} rg_talk_t;

typedef struct rg_question {
    rg_talk_t kind;
    uint64_t snapshot; /* HEAD: the one that is known already, 0 for none; else the one that is meant */
    uint32_t first, count, bytes;
    uint32_t low;     /* pieces below this one are not wanted any more */
    rg_hash_t layout; /* of the state that is meant */
} rg_question_t;

typedef struct rg_answer {
    uint64_t snapshot, revision, bytes;
    uint32_t n_pieces, whole; /* whole: every piece of it can be had */
    rg_hash_t layout, root;
} rg_answer_t;

/* talk.c, pure. The getters: 0 when these are not the bytes of one. */
void rg_question_put(const rg_question_t *q, uint8_t to[RG_TALK_BYTES]);
int rg_question_get(rg_question_t *q, const uint8_t from[RG_TALK_BYTES]);
void rg_answer_put(const rg_answer_t *a, uint8_t to[RG_TALK_HEAD_BYTES]);
int rg_answer_get(rg_answer_t *a, const uint8_t from[RG_TALK_HEAD_BYTES]);

/* serve.c. For a state that nobody serves these do nothing, at the cost of a look. */
void rg_serve_before_write(rg_state_t *s, uint32_t first, uint32_t last);
void rg_serve_settled(rg_state_t *s); /* what is there now is the content of s->revision, and is not being written */
void rg_serve_lock(rg_state_t *s);    /* for s->hashes and s->dirty */
void rg_serve_unlock(rg_state_t *s);
void rg_serve_end(rg_state_t *s);

#endif
