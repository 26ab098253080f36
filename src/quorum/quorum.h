/* quorum.h: what the files of quorum reductions have in common. Each member has a port (service.h). The first member of
 * the view decides: it pulls the others' contributions, says which count (tally.h), reduces them, and keeps results,
 * which the others fetch. What it decides counts from then on; whoever becomes the first member asks all others what
 * they have before it decides anything (docs/protocol.md, section 12). Nothing outside src/quorum may use it.
 *
 * Who owns what: a field is the service's thread's, but for those under `lock` and the program's own. */
#ifndef RG_QUORUM_H
#define RG_QUORUM_H

#include "quorum/service.h"
#include "quorum/tally.h"
#include "regroup_quorum.h"

#define RG_QUORUM_CAP 4096u /* members in an answer, at most */
#define RG_QUORUM_WINDOW 4u /* chunks of one contribution or result that are under way */
#define RG_QUORUM_AGAIN_NS 5000000u
/* A weight that is not 0: sums of products with any floats then neither overflow nor lose bits as denormals. */
#define RG_QUORUM_WEIGHT_MIN 1e-250
#define RG_QUORUM_WEIGHT_MAX 1e250

/* What NEWS is asked for, in its `off`. */
enum {
    NEWS_TELL = 0,   /* what is known there */
    NEWS_FOLLOW = 1, /* the same, and to be followed from here on; `round` is the term */
    NEWS_PING = 2,
    NEWS_KEPT = 3 /* no question: the result of `round` is kept here */
};

/* What a member gives to a round. */
typedef struct rg_gift {
    atomic_int refs;
    uint64_t round, version;
    double weight; /* 0: nothing */
    void *data;    /* integers: multiplied by the weight already, so that what is late can be added to what comes */
} rg_gift_t;

/* How a round was decided. */
typedef struct rg_decided {
    atomic_int refs;
    uint64_t round, decider, waited_ns, epoch;
    rg_status_t status;
    uint32_t n;
    rg_qentry_t *e; /* all members, in rank order */
    double weight_sum;
    void *data; /* NULL without elements, and when status is an error */
} rg_decided_t;

/* The decider's view of a member. */
typedef struct rg_place {
    rg_seat_t seat;
    int heard, asking; /* what it has, before anything is decided */
    uint64_t news_round, news_kept;
    int pulling, loading;
    uint32_t turn, flying, pull_turn;
    uint64_t ahead; /* it is in a later round than the open one */
    uint64_t next_off, have, again_ns;
    void *data; /* its contribution; the decider's own is in its gift */
    uint64_t version;
    double weight;
    int doubtful; /* it says that it has another configuration: to be asked (1), asked (2) */
    int differs;  /* it has, as it says when it is asked */
    int differed; /* and it has called in the round that is open, or before it */
} rg_place_t;

/* A result that is being fetched. */
typedef struct rg_fetching {
    int on;
    uint64_t round, from, next_off, have;
    uint32_t turn, flying, cap;
    rg_decided_t *d;
} rg_fetching_t;

struct rg_quorum {
    rg_port_t port; /* first */
    rg_quorum_config_t c;
    uint64_t bytes, terms, self;
    uint64_t *set; /* members of a sub-group */
    uint32_t n_set;

    pthread_mutex_t lock; /* for these */
    rg_gift_t *given;     /* begun, and not seen by the thread yet */
    rg_decided_t *result;
    rg_status_t status; /* without a result */
    char text[256];
    uint64_t newest;
    atomic_int done;

    /* The program's */
    int begun, rejected; /* rejected: the program was told that it was late */
    uint64_t round;      /* of the next call, or of what is begun */
    rg_gift_t *mine;     /* what was given to it */
    rg_gift_t *carry;    /* what was late */
    char refusal[256];   /* why the last call was not begun */

    /* The thread's: as a member */
    uint64_t epoch, leader; /* whose decisions count in this view */
    uint32_t term;          /* how often, and by whom, that was taken over in this view; 0: it is the first */
    uint64_t fresh_epoch;   /* of the last view in which a result was decided that is kept here */
    int pinging;            /* the leader was asked whether it is there */
    uint64_t silent_ns, watched_ns, ping_ns;
    uint32_t patience, calm; /* doublings of the time for which the leader may be silent; rounds since that changed */
    rg_gift_t *gift;
    int waiting;
    rg_asked_t pull; /* that waits for the next gift */
    int pulled;
    int asking_news, ahead_refused; /* ahead_refused: a result that nobody waits for yet */
    uint64_t again_ns;
    rg_fetching_t fetch;
    rg_decided_t **kept; /* by round modulo history */

    /* The thread's: as the one who decides */
    int ready;
    uint64_t open;  /* the round that is being decided */
    uint64_t acked; /* rounds up to this one are known to somebody else, too */
    rg_tally_t tally;
    uint64_t prev_kth_ns;
    uint32_t n_places, cap_places;
    rg_place_t *places;
    rg_asked_t *held; /* those who wait for results that are not decided */
    uint32_t n_held, cap_held;
};

static inline uint32_t rg_quorum_chunk(const rg_quorum_t *q, uint64_t off) {
    uint64_t left = off < q->bytes ? q->bytes - off : 0;
    return left < RG_SERVICE_CHUNK ? (uint32_t)left : RG_SERVICE_CHUNK;
}

static inline int rg_quorum_weight_ok(double w) { return w >= RG_QUORUM_WEIGHT_MIN && w <= RG_QUORUM_WEIGHT_MAX; }

/* quorum.c */
rg_quorum_t *rg_quorum_new(const rg_quorum_config_t *c); /* without a group; NULL: no memory */
void rg_quorum_free(rg_quorum_t *q);

/* numbers.c: x times its weight is added to a block of at most RG_NUMBERS partial values; put divides by `by`, but not
 * integers. */
#define RG_NUMBERS 512u
typedef union rg_numbers {
    double f[RG_NUMBERS];
    uint64_t whole[RG_NUMBERS];
} rg_numbers_t;
int rg_numbers_known(rg_dtype_t t); /* can be reduced by quorum */
int rg_numbers_whole(rg_dtype_t t); /* is an integer */
void rg_numbers_clear(rg_numbers_t *b);
void rg_numbers_add(rg_dtype_t t, rg_numbers_t *b, const void *x, uint64_t at, uint64_t n, double weight);
void rg_numbers_put(rg_dtype_t t, const rg_numbers_t *b, void *to, uint64_t at, uint64_t n, double by);

/* objects.c */
rg_gift_t *rg_gift_new(uint64_t round, uint64_t bytes); /* bytes 0: nothing is given */
void rg_gift_put(rg_gift_t *g);
rg_decided_t *rg_decided_new(uint32_t n, uint64_t bytes);
void rg_decided_put(rg_decided_t *d);
rg_decided_t *rg_quorum_kept(const rg_quorum_t *q, uint64_t round); /* NULL: not kept */
void rg_quorum_keep(rg_quorum_t *q, rg_decided_t *d);               /* takes it over */
uint64_t rg_quorum_newest(const rg_quorum_t *q);                    /* that is kept; 0: none */
uint64_t rg_quorum_kept_bits(const rg_quorum_t *q);
void rg_quorum_forget(rg_quorum_t *q); /* frees what the thread owned */

/* member.c */
extern const rg_port_ops_t rg_quorum_port;
void rg_quorum_fetch(rg_quorum_t *q, rg_sask_kind_t kind, uint64_t round, uint64_t from);
void rg_quorum_fetch_stop(rg_quorum_t *q);
void rg_quorum_calm(rg_quorum_t *q);
void rg_quorum_follow(rg_quorum_t *q, uint64_t leader, uint32_t term);

/* decide.c */
void rg_decide_view(rg_quorum_t *q); /* the view has changed */
uint64_t rg_decide_step(rg_quorum_t *q, uint64_t now);
void rg_decide_answered(rg_quorum_t *q, uint64_t peer, const rg_sask_t *ask, const uint8_t *bytes, int refused);
void rg_decide_hold(rg_quorum_t *q, const rg_asked_t *a);
void rg_quorum_answer_result(rg_quorum_t *q, const rg_asked_t *a, const rg_decided_t *d);
void rg_decide_fetch_failed(rg_quorum_t *q, uint64_t from);
void rg_decide_step_down(rg_quorum_t *q); /* before it may decide again it asks the others what they have */
void rg_decide_claim(rg_quorum_t *q);
int rg_decide_term_of(const rg_quorum_t *q, uint64_t id, uint64_t term);
void rg_decide_ask_acks(rg_quorum_t *q, uint64_t now, uint64_t *at); /* the news that a result is there was lost */
void rg_decide_acked(rg_quorum_t *q, uint64_t peer, const uint8_t *bytes);
int rg_decide_may_show(const rg_quorum_t *q, uint64_t round);
void rg_decide_doubt(rg_quorum_t *q, uint64_t peer); /* it has called, with other terms */
void rg_decide_alike(rg_quorum_t *q, uint64_t peer); /* it asks for a result, with these terms */
void rg_decide_doubt_answered(rg_quorum_t *q, uint64_t peer, const uint8_t *bytes, int refused);
int rg_decide_position(const rg_quorum_t *q); /* of this member among those that are not the leader; -1: none */

#endif
