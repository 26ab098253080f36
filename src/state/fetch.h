/* fetch.h: a newcomer that fetches a state: whom it asks, what it wants, what is under way. Lives as long as the call
 * of rg_state_join(). Relies on serve.h for what is said; nothing but fetch.c and tests may use it. */
#ifndef RG_FETCH_H
#define RG_FETCH_H

#include "engine/lifecycle.h"
#include "state/serve.h"
#include "state/sync.h"

#define RG_FETCH_DONORS 16u /* members that are asked */
#define RG_FETCH_UNITS 32u  /* answers with pieces that are awaited, each of RG_TALK_UNIT bytes at most */
#define RG_FETCH_WINDOW 16u /* of those, from one member */
#define RG_FETCH_ROUNDS 8u
#define RG_FETCH_STRIKES 3u         /* pieces with another content than their hash says, until a member is left out */
#define RG_FETCH_BUDGET (64u << 20) /* bytes that are hashed here at a time */

typedef enum rg_donor_phase {
    RG_DONOR_OUT,
    RG_DONOR_ASKED, /* which content it has */
    RG_DONOR_HAS,   /* one */
    RG_DONOR_LISTS, /* tells its hashes */
    RG_DONOR_GIVES
} rg_donor_phase_t;

typedef struct rg_donor {
    uint64_t id, snapshot, revision, asked_ns; /* asked_ns: last question or answer */
    rg_donor_phase_t phase;
    rg_hash_t root, *list; /* list: NULL: has the content that was chosen */
    uint64_t *lacks;       /* bitmap; NULL: nothing */
    uint32_t listed, cursor, flying, strikes, whole, gave;
} rg_donor_t;

/* Pieces that were asked for. */
typedef struct rg_unit {
    uint32_t used, donor, first, n, bytes, turn;
} rg_unit_t;

typedef enum rg_fetch_phase {
    RG_FETCH_WAITS, /* for links */
    RG_FETCH_HEADS,
    RG_FETCH_LIST,
    RG_FETCH_PIECES,
    RG_FETCH_RESTS, /* has a whole content, and looks now and then whether there is a newer one */
    RG_FETCH_OVER
} rg_fetch_phase_t;

typedef struct rg_fetch {
    rg_group_t *g;
    rg_state_t *s;
    rg_state_rule_t rule;
    uint64_t side_limit, now, known_ns, start_ns, first_head_ns, progress_ns;
    rg_fetch_phase_t phase;
    uint32_t round, n_donors, target_donor, moved, moved_before, skipped;
    rg_donor_t donors[RG_FETCH_DONORS];
    rg_unit_t units[RG_FETCH_UNITS];

    /* The content that was chosen */
    rg_hash_t target_root, *target, *groups;
    uint64_t target_revision;
    int target_whole;
    uint64_t *need, *flying, *checked; /* bitmaps by piece */
    uint32_t left, low;                /* pieces that are needed; none below this one */
    uint64_t budget;

    rg_aside_t **aside; /* NULL: in place */
    uint64_t aside_bytes;
    int full;     /* nothing more is to be fetched: side_bytes, or no memory */
    int ready;    /* it may enter */
    int complete; /* what is here is a whole content, of complete_revision */
    uint64_t complete_revision, again_ns;
    rg_state_result_t r;
} rg_fetch_t;

rg_fetch_t *rg_fetch_new(rg_state_t *s, const rg_state_opts_t *o);
void rg_fetch_free(rg_fetch_t *f);
rg_join_first_t rg_fetch_errand(rg_fetch_t *f);

#endif
