/* coord.h: the state of a group's coordinator, shared by the coord_*.c files, check.c and tests that look inside. One
 * block of memory given by the caller; arrays follow the structure. It must not be included outside src/core and
 * tests. Rules named in comments: docs/protocol.md. */
#ifndef RG_CORE_COORD_H
#define RG_CORE_COORD_H

#include "core/idmap.h"
#include "core/text.h"
#include "core/wire.h"

#define RG_REQUESTS_MAX 256u    /* operations that members want ended, in one round */
#define RG_COMPLAINTS_MAX 1024u /* broken links that are being looked at */
#define RG_RELAYS_TRIED 4u      /* relays that a pair is given before it is given up */
#define RG_GONE_MAX 128u        /* departed candidates that the others have not been told of */
#define RG_EXPELLED_MAX 256u    /* expelled members that are remembered with the reason */
#define RG_TALLY_MAX 16384u     /* operations that reports can speak of in one round */
#define RG_UNTAGGED_MAX 1024u   /* of those, with tag 0 of the whole group */
#define RG_COORD_MISSING_MAX 64u
#define RG_CAUSE_MAX 96u

typedef enum rg_seat_state { RG_SEAT_FREE = 0, RG_SEAT_CANDIDATE = 1, RG_SEAT_MEMBER = 2 } rg_seat_state_t;

/* Why a member is in F (C7). Only a member that was merely not heard of can be taken out again by its report. */
typedef enum rg_suspect { RG_SUSPECT_NO = 0, RG_SUSPECT_SILENT = 1, RG_SUSPECT_FIRM = 2 } rg_suspect_t;

typedef struct rg_seat {
    rg_core_member_t m;
    uint8_t net[RG_CORE_NET]; /* as last heard; m.net is what the view says */
    uint64_t conn, last_heard, suspect_at, told, base;
    uint64_t bytes_sent, bytes_received, operations, gen, watermark, promise;
    uint64_t ready_upto, missing[RG_COORD_MISSING_MAX];
    uint64_t lost_due, lost_at; /* its connection closed at lost_at, and it has until lost_due to come back; 0: it has
                                   not closed, or it did come back */
    uint64_t waited;            /* for how long an office that acts has waited for it since it was heard */
    uint64_t missing_since;     /* a candidate that has not had all its links since then; 0: it has */
    uint64_t patience;          /* what a check allows this candidate; grows each time it answers, but too late */
    uint32_t pid, min_size, order, fixed_n, fixed_rank, rank, old_rank, n_missing;
    uint32_t report_off, report_len, mark, part, load; /* the last three for the length of a step */
    uint8_t state, suspect, reported, ready, mute, batch, promised;
    uint8_t silent;                   /* not heard for a heartbeat, whatever its connection says */
    uint8_t absent;                   /* lost_due runs since it was this coordinator that could not be reached */
    uint8_t accepted, pending, ghost; /* it accepted the proposal; it waits for a round, because it is fenced or has
                                         accepted something; a candidate of the proposal that nobody hears any more */
    int16_t cause_status;
    char cause[RG_CAUSE_MAX], label[RG_CORE_NAME_MAX];
} rg_seat_t;

typedef struct rg_cact_rec {
    uint8_t type;
    uint64_t conn;
    uint32_t off, len;
} rg_cact_rec_t;

typedef struct rg_request_rec {
    rg_op_key_t key;
    uint64_t blame;
    int32_t status;
    char text[RG_CORE_TEXT_MAX];
} rg_request_rec_t;

/* A pair whose direct link is broken, or, with AUTHORITY and no reconnect time, is being looked at. */
typedef enum rg_path_state {
    RG_PATH_WAIT = 0, /* until due it may come back by itself */
    RG_PATH_TRY,      /* via has been asked to relay; until due */
    RG_PATH_RELAYED   /* via relays */
} rg_path_state_t;

typedef struct rg_complaint {
    uint64_t a, b, since, due, via;
    uint64_t dead, dead_at; /* who is said to be dead, and since when */
    uint64_t tried[RG_RELAYS_TRIED];
    uint8_t state, n_tried;
    char text[RG_CAUSE_MAX];
} rg_complaint_t;

typedef struct rg_expelled {
    uint64_t id, epoch;
    int16_t status;
    char text[RG_CORE_TEXT_MAX];
} rg_expelled_t;

/* A sub-group that reports speak of, as ranks of the view that ends. While nobody has said who is in it, it is whoever
 * knows of one of its operations. */
typedef struct rg_tally_set {
    uint64_t id, hash;
    uint32_t map; /* offset in set_maps: one over the old ranks, one over the new */
    uint32_t definer, other;
    uint8_t defined, conflict;
} rg_tally_set_t;

/* What the reports say about one operation, summed over its participants in the new view. */
typedef struct rg_tally {
    rg_op_key_t key;
    rg_op_sig_t sig, other,
        kept_sig; /* of the first participant that started it; of the first that differs; of a holder */
    uint32_t not_started, marked, running, complete, kept, done, aborted;
    uint32_t like_sig, like_other, sig_rank, other_rank, done_rank;
    uint64_t sig_id, other_id, done_id, computed, numbering, blame;
    int32_t status;
    uint32_t map; /* offset of the two maps of FORWARD; only where there can be one */
    uint32_t cell, stream_cell;
    uint16_t stream_next; /* of the same set and tag: index + 1 */
    uint16_t set_at;
    uint8_t have_sig, mixed, state, touched; /* state: of the member being looked at, when touched */
    char text[RG_CORE_TEXT_MAX];
} rg_tally_t;

typedef enum rg_round { RG_ROUND_NONE = 0, RG_ROUND_COLLECT = 1, RG_ROUND_INSTALL = 2 } rg_round_t;

/* The view that is proposed: its seats are in next_rank. */
typedef struct rg_next {
    rg_term_t term; /* in which it was made */
    uint64_t epoch, parent, data_epoch, cut, witness;
    rg_view_kind_t kind;
    uint32_t n;
} rg_next_t;

typedef enum rg_growth { RG_GROW_NONE = 0, RG_GROW_CHECK = 1, RG_GROW_PREPARE = 2 } rg_growth_t;

struct rg_coord {
    rg_coord_params_t p;
    int broken;
    uint64_t woke_until; /* after a sleep of this machine itself: members that hung up meanwhile may still come back */
    uint64_t came_at;    /* when a member last came by a new connection */
    uint64_t empty_at;   /* when the last member's connection closed; UINT64_MAX: one is here */
    uint64_t woke_at;    /* when it last went on after it had slept, as its scans saw it; 0: never */
    uint64_t now, last_scan, scan_at, retransmit_at, complaint_at, lost_at, flush_at, grow_at, check_due, vacant_at;
    rg_term_t term;
    uint64_t next_id;
    uint64_t list_from; /* a READY for the list up to a lower id was given before seats below it were filled (J2) */

    /* The view: seats in rank order. */
    int have_view;
    uint64_t epoch, parent, data_epoch, cut, witness;
    rg_term_t view_term; /* in which the view was made */
    rg_view_kind_t kind;
    uint32_t n;
    uint32_t *rank_seat, *next_rank;
    uint64_t low; /* lowest watermark of all members, as last computed */
    uint32_t low_count;

    rg_round_t round;
    uint64_t round_ns;
    rg_next_t next;

    /* Succession (coord_claim.c). */
    int acting;              /* this coordinator serves: it has founded the group, or a quorum of the view is with it */
    int owed;                /* members have promised another coordinator to wait for a view */
    int lost_data;           /* a link between members has lost something: all must begin anew (L9) */
    int froze;               /* members may be fenced at the present view */
    int renewed;             /* the term is above all that members had promised when they came */
    int installed;           /* prop has been sent out as a proposal of this coordinator */
    rg_term_t seen;          /* highest term heard of */
    uint32_t said_here;      /* most that have been here since it does not act, as members were told */
    uint64_t lack_at;        /* when an office without a quorum falls silent */
    uint64_t turned_away_at; /* last time that a newcomer was, because the view that is known has no quorum here */
    rg_term_t prop_term;     /* in which prop was accepted, by those who sent it, or here */
    size_t prop_len;
    uint8_t *prop; /* the proposal, as the ACTIVATE that it would become */
    rg_growth_t growth;
    int grow_dirty, waiting_dirty;

    uint32_t population, members, seats_high;
    rg_seat_t *seats;
    uint32_t *roster; /* seats by id, ascending: order of arrival */
    rg_idmap_t by_conn, by_id;

    rg_request_rec_t requests[RG_REQUESTS_MAX];
    uint32_t n_requests;
    rg_complaint_t complaints[RG_COMPLAINTS_MAX];
    uint32_t n_complaints;
    uint64_t gone[RG_GONE_MAX];
    uint32_t n_gone;
    rg_expelled_t expelled[RG_EXPELLED_MAX];
    uint32_t expelled_at;

    rg_tally_t tally[RG_TALLY_MAX];
    uint32_t n_tally, n_untagged, n_touched, n_sets, n_lost, *lost;
    uint16_t tally_hash[4 * RG_TALLY_MAX], stream_hash[4 * RG_TALLY_MAX]; /* index + 1 */
    uint16_t untagged[RG_UNTAGGED_MAX], touched[RG_TALLY_MAX];
    rg_tally_set_t set[RG_SETS_IN_VIEW];
    rg_idmap_t set_of;
    uint8_t *set_maps; /* two per set */
    uint8_t *maps;     /* two per untagged tally */
    uint32_t map_len;

    size_t reports_len, reports_cap;
    uint8_t *reports;
    size_t activate_len, activate_cap;
    uint8_t *activate; /* the last ACTIVATE, for members that come back */
    size_t out_len, out_cap;
    uint8_t *out;
    uint32_t act_n, act_at, act_cap;
    rg_cact_rec_t *acts;
};

/* coord.c */
rg_w_t rg_coord_begin(rg_coord_t *c);
/* Ends a message; it can then be sent to any number of connections. */
typedef struct rg_sent {
    uint32_t off, len;
} rg_sent_t;
rg_sent_t rg_coord_end(rg_coord_t *c, const rg_w_t *w);
void rg_coord_send(rg_coord_t *c, uint64_t conn, rg_sent_t msg);
void rg_coord_close(rg_coord_t *c, uint64_t conn);
void rg_coord_log(rg_coord_t *c, const char *text);
uint64_t rg_coord_room(const rg_coord_t *c);
static inline rg_seat_t *rg_seat_by_id(const rg_coord_t *c, uint64_t id) {
    int64_t s = rg_idmap_get(&c->by_id, id);
    return s < 0 ? NULL : &c->seats[s];
}
void rg_seat_free(rg_coord_t *c, rg_seat_t *s);
rg_seat_t *rg_seat_new(rg_coord_t *c);
rg_seat_t *rg_seat_insert(rg_coord_t *c, const rg_core_member_t *m); /* of a member that another coordinator let in */
void rg_coord_low(rg_coord_t *c);
void rg_coord_low_moved(rg_coord_t *c, uint64_t old);
void rg_seat_name(rg_text_t *t, const rg_seat_t *s); /* "rank 2 (id 3, host label, pid 1234)" */
void rg_coord_log_view(rg_coord_t *c, const char *change);

/* coord_join.c */
void rg_coord_on_join(rg_coord_t *c, uint64_t conn, rg_r_t *r, uint16_t version);
void rg_coord_on_rebind(rg_coord_t *c, uint64_t conn, rg_r_t *r);
void rg_coord_on_ready(rg_coord_t *c, rg_seat_t *s, rg_r_t *r);
void rg_coord_on_promise(rg_coord_t *c, rg_seat_t *s, rg_r_t *r);
void rg_coord_drop_candidate(rg_coord_t *c, rg_seat_t *s, rg_status_t status, const char *text);
void rg_coord_grow(rg_coord_t *c);
void rg_coord_flush_peers(rg_coord_t *c);
void rg_coord_refuse(rg_coord_t *c, uint64_t conn, rg_status_t status, const char *text);
void rg_coord_flush_soon(rg_coord_t *c);
void rg_coord_gone(rg_coord_t *c, uint64_t id);

/* coord_round.c */
void rg_coord_suspect(rg_coord_t *c, rg_seat_t *s, rg_suspect_t how, rg_status_t status, const char *cause);
void rg_coord_collect(rg_coord_t *c);
void rg_coord_on_report(rg_coord_t *c, rg_seat_t *s, const uint8_t *bytes, size_t len);
void rg_coord_on_abort_op(rg_coord_t *c, rg_r_t *r);
void rg_coord_retransmit(rg_coord_t *c);
void rg_coord_try_decide(rg_coord_t *c);
void rg_coord_expel(rg_coord_t *c, rg_seat_t *s, rg_status_t status, const char *text);
void rg_coord_send_expelled(rg_coord_t *c, uint64_t conn, uint64_t id);
void rg_coord_bump_view(rg_coord_t *c, rg_view_kind_t kind, uint32_t n, uint64_t cut); /* members: next_rank[0..n) */
void rg_coord_freeze(rg_coord_t *c, const rg_seat_t *s);
void rg_coord_resend_view(rg_coord_t *c, uint64_t conn);
void rg_coord_send_whole(rg_coord_t *c, uint64_t conn);
void rg_coord_send_install(rg_coord_t *c, uint64_t conn);
void rg_coord_choose(rg_coord_t *c); /* the proposal is the present view from here on */
int rg_coord_read_prop(rg_coord_t *c, int apply);

/* coord_paths.c: broken links */
void rg_coord_on_link(rg_coord_t *c, rg_seat_t *s, rg_r_t *r);
void rg_coord_complaints(rg_coord_t *c);
void rg_coord_conn_lost(rg_coord_t *c, rg_seat_t *s); /* its control connection closed */
void rg_coord_lost_due(rg_coord_t *c);
void rg_coord_absent(rg_coord_t *c, rg_seat_t *s);            /* it is not here, and that is no sign of its death */
void rg_coord_waited(const rg_coord_t *c, rg_seat_t *s);      /* it is not waited for any more */
void rg_coord_routes_tell(rg_coord_t *c, const rg_seat_t *s); /* the routes that it has a part in, again */
void rg_coord_candidate_paths(rg_coord_t *c);
void rg_coord_candidate_ready(rg_coord_t *c, const rg_seat_t *s);

/* coord_claim.c: succession */
int rg_coord_quorum(const rg_coord_t *c, int (*vote)(const rg_seat_t *s));
int rg_vote_here(const rg_seat_t *s);
int rg_vote_reported(const rg_seat_t *s);
int rg_vote_accepted(const rg_seat_t *s);
void rg_claim_office(rg_coord_t *c); /* after every event: does a quorum of the view follow this coordinator? */
void rg_claim_seen(rg_coord_t *c, rg_term_t t);
void rg_claim_over(rg_coord_t *c, rg_term_t t); /* members have promised t to somebody else: a new claim above it */
void rg_claim_on_view(rg_coord_t *c, uint64_t conn, rg_r_t *r);
void rg_claim_on_proposal(rg_coord_t *c, rg_r_t *r);
void rg_claim_on_accept(rg_coord_t *c, rg_seat_t *s, rg_r_t *r);
void rg_claim_ask(rg_coord_t *c, uint64_t conn); /* for the view that the other side has */
void rg_claim_say(rg_coord_t *c, uint64_t conn); /* that there is an office here, which knows the view */
uint32_t rg_claim_here(const rg_coord_t *c);     /* how many members of its view are */
void rg_claim_gathering(rg_coord_t *c);          /* more have come to an office that does not act */
void rg_claim_forget_group(rg_coord_t *c);
void rg_coord_bind(rg_coord_t *c, rg_seat_t *s, uint64_t conn, const rg_msg_rebind_t *b);
static inline int rg_coord_succeeds(const rg_coord_t *c) { return c->p.mode == RG_MODE_SUCCESSION; }

/* coord_tally.c: adds up the reports of the seats in next_rank[0..n); 0: seat *bad reported more than can be decided on
 * and must go. */
int rg_coord_tally(rg_coord_t *c, uint32_t n, uint32_t *bad);
int rg_tally_has(const rg_coord_t *c, const rg_tally_t *t, const rg_seat_t *s); /* s takes part, by the old view */

/* coord_decide.c: rules D. 0: there are more than a view can carry. */
int rg_coord_write_decisions(rg_coord_t *c, rg_w_t *w, uint32_t n);

#endif
