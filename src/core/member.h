/* member.h: the state of a member's machine, shared by the member_*.c files, check.c and tests that look inside.
 * Everything lives in the one block of memory that the caller gave; arrays whose size depends on max_members follow
 * the structure. It must not be included outside src/core and tests. Rules named in comments: docs/protocol.md. */
#ifndef RG_CORE_MEMBER_H
#define RG_CORE_MEMBER_H

#include "core/idmap.h"
#include "core/text.h"
#include "core/wire.h"

#define RG_MARKS_MAX 1024u                          /* decisions that wait for operations not started here */
#define RG_ENT_MAX (RG_CORE_MAX_OPS + RG_MARKS_MAX) /* own operations, and marks */
#define RG_ENT_HASH 4096u
#define RG_KEEP_MAX 64u      /* copies of small results: the bits of kept_map */
#define RG_STREAMS_MAX 4096u /* pairs of set and tag that are remembered */
#define RG_STREAM_HASH 8192u
#define RG_DROPPED_MAX 256u                    /* sub-groups that were given up here, whose operations need no marks */
#define RG_SET_IDS_PER_MEMBER 8u               /* ids in all sub-groups together, as a multiple of max_members */
#define RG_TEXTS 64u                           /* error texts of marked and failing operations */
#define RG_MISSING_MAX 64u                     /* links that a READY can name as missing */
#define RG_FLUSH_EVERY 16u                     /* small operations between two forced watermarks */
#define RG_BOUNDARY_MEMORY 8u                  /* boundaries by which the next ones are foreseen */
#define RG_ENTERED_MAX 32u                     /* boundaries ahead at which newcomers enter that are lost already */
#define RG_OUT_BYTES (3 * RG_CORE_MAX_MESSAGE) /* a proposal, a report and what is said beside them */

typedef enum rg_ent_state {
    RG_ENT_FREE = 0,
    RG_ENT_QUEUED,   /* started while fenced: for the reports not started; acted upon at activation */
    RG_ENT_MARKED,   /* not started here: a decision waits for the start */
    RG_ENT_RUNNING,  /* R */
    RG_ENT_FETCHING, /* R, and a finished result is on its way from a holder */
    RG_ENT_COMPLETE, /* C */
    RG_ENT_KEPT,     /* X with a copy */
    RG_ENT_DOOMED,   /* R: it cannot run in the shape in which it was called; its end has been asked for (E8) */
    RG_ENT_DEAD /* B: ended here alone because the coordinator was lost; kept until a view change tells the others */
} rg_ent_state_t;

typedef struct rg_ent {
    rg_op_key_t key;
    rg_op_sig_t sig;
    uint64_t computed, numbering, donor, blame;
    uint16_t prev, next;   /* order of issue; 0 ends, else index + 1 */
    uint16_t oprev, onext; /* the same among tag 0 operations that are not over here */
    uint16_t decision;     /* during activation: index + 1 */
    int16_t status;        /* MARKED for abort, or wanted by OP_FAIL */
    uint8_t state, mark, open, wanted, keep, text;
} rg_ent_t;

typedef struct rg_peer {
    rg_core_member_t m;
    uint64_t redial_ns;    /* 0: not planned */
    int32_t rank;          /* in the view; -1: candidate */
    uint64_t via, down_ns; /* who relays the link, or did when it broke; when it broke */
    uint8_t used, link, dial, complained, dead, was_up, lost;
    uint8_t missed; /* a candidate that the last full list had not */
    char text[96];  /* why the link is down */
} rg_peer_t;

/* The operations of one set and tag. They are started in ascending order of (gen, sequence), so two numbers tell of
 * each whether it is over here, unless it is in the table. */
typedef struct rg_stream {
    uint64_t set, gen, told_gen; /* told_*: as a report knows it, before what was started behind the fence */
    uint32_t tag, next, told_next;
} rg_stream_t;

typedef struct rg_set {
    uint64_t id, hash;
    uint32_t first, n;   /* its members, in set_ids */
    uint64_t cached_gen; /* number of participants of this generation in the present view, */
    uint32_t cached_n;   /* kept because every end asks for it; 0: not known */
    uint8_t named;       /* already in the report that is being written */
} rg_set_t;

/* Somebody that the new view has not any more, while it is being activated. */
typedef struct rg_leaver {
    uint32_t rank; /* in the old view */
    size_t cause;  /* offset of the text in the message */
} rg_leaver_t;

typedef enum rg_link_state { RG_LINK_NONE = 0, RG_LINK_UP = 1, RG_LINK_DOWN = 2 } rg_link_state_t;

typedef struct rg_act {
    uint8_t type, dial, keep, flush, text_own, on;
    int16_t status;
    uint32_t off, len;
    uint64_t peer, via, gen, note, computed;
    rg_op_key_t key;
    const rg_core_member_t *member;
    const char *text;
} rg_act_t;

typedef enum rg_member_phase {
    RG_PH_NEW = 0, /* no connection yet, or JOIN not answered */
    RG_PH_CANDIDATE,
    RG_PH_MEMBER,
    RG_PH_OVER /* refused, expelled or left */
} rg_member_phase_t;

struct rg_member {
    rg_member_params_t p;
    rg_member_phase_t phase;
    int broken; /* an invariant broke: nothing is done any more */
    uint64_t now, last_step, last_heard, heartbeat_ns, id;
    uint64_t was; /* as which candidate it came before its JOIN was said again */
    uint8_t nonce[16];
    rg_term_t promised, accepted_term; /* T and A of A4 */
    uint64_t accepted;
    int control_up, control_ever, control_silent, asked_control;
    uint64_t control_at, control_since, backoff_ns, heartbeat_at, leave_at, ready_at, redial_at, flush_at;
    int fenced, told;

    /* Succession: whom to ask (member.c, S1), and what a coordinator that knows nothing needs. */
    int succession, heard; /* heard: the office at the other end of this connection has given a sign that it acts */
    uint64_t takeover_ns, reconnect_ns;
    uint64_t round_heard;  /* when a round last said something, or was asked for */
    uint64_t home, target; /* whose office acted when one last did, and whom the connection is to; 0: the coordinator */
    uint32_t walk, near;   /* how many places were looked at; the next one of those where an office is likely */
    int office;            /* one is open in this process */
    int probed, elder; /* there is an office at the other end, acting or not (2: of an older member); one of an older
                          member has been found since this one last thought of opening its own */
    int lacks;         /* the office that acted last has said since that it does not */
    uint32_t gathered; /* how many have come to the office at the other end, and when that was last said to be more */
    uint64_t gathered_at;
    uint32_t offices; /* how many have been: each has terms of its own */
    uint32_t returns; /* to a coordinator that was said to be back, since one acted */
    size_t prop_len, chosen_len;
    uint8_t *prop, *chosen; /* the accepted proposal, as in INSTALL after the term; the ACTIVATE of the view */
    uint64_t told_epoch;
    int32_t told_status;
    char told_text[RG_CORE_TEXT_MAX];
    uint64_t bytes_sent, bytes_received, operations;
    uint8_t net[RG_CORE_NET];

    rg_core_view_t view;
    int have_view;
    uint32_t self_rank;
    uint64_t *watermark;        /* by rank; own entry unused */
    uint64_t peer_min, ack_min; /* lowest watermark of the others; of all, by the coordinator */
    uint32_t peer_min_count;
    uint64_t cached_gen; /* number of participants of this generation, */
    uint32_t cached_n;   /* kept because every start and end asks for it */

    uint64_t gen, next0, report_gen, report_next0;
    uint64_t wanted_gen; /* boundary that waits; 0: none */
    int promise_on;
    uint64_t promise, boundary_ns, boundary_dt[RG_BOUNDARY_MEMORY];
    uint32_t boundaries;
    /* Who enters at a boundary is counted there, as all others count it, even if it was lost since. */
    struct {
        uint64_t gen;
        uint32_t n;
    } entered[RG_ENTERED_MAX];
    uint32_t n_entered;
    uint64_t noted; /* last watermark given to NOTE */
    uint32_t small_since_flush;
    int unflushed, noted_once;

    uint32_t ent_used, ent_free, ents_own, ents_marked;
    uint16_t first, last, ofirst, olast;
    uint32_t delayed, wanted_count;
    uint64_t kept_low;
    uint16_t keep_slot[RG_KEEP_MAX]; /* index + 1 */
    uint64_t kept_map;               /* the slots that are taken */
    uint64_t serve;                  /* bit: the copy in this slot has receivers to be served */
    uint32_t serve_at;
    const char *why; /* the last start was not taken */
    uint64_t floor;  /* tagged operations of earlier generations cannot be started here any more */
    uint32_t n_streams;
    int streams_dirty;
    rg_stream_t stream[RG_STREAMS_MAX];
    uint16_t stream_hash[RG_STREAM_HASH]; /* index + 1 */
    uint32_t n_sets, set_ids_n, set_ids_cap, dropped_at;
    rg_set_t set[RG_CORE_MAX_SETS];
    rg_idmap_t set_map;
    uint64_t *set_ids, dropped[RG_DROPPED_MAX];
    uint8_t *set_scratch; /* a map over the ranks of a view */
    uint32_t text_at;
    char texts[RG_TEXTS][RG_CORE_TEXT_MAX];
    rg_ent_t ent[RG_ENT_MAX];
    uint16_t hash[RG_ENT_HASH]; /* index + 1 */

    int full_known; /* the first PEERS has come */
    uint64_t upto;  /* highest id that PEERS told of */
    int ready_dirty;
    uint64_t ready_last;
    uint32_t peers_cap, peers_high;
    rg_peer_t *peers;
    rg_idmap_t peer_map;
    uint64_t *scratch_ids; /* max_members + 1 */
    uint8_t *serve_map;    /* RG_KEEP_MAX maps of serve_bytes */
    uint32_t serve_bytes;

    uint32_t act_n, act_at, act_cap;
    rg_act_t *acts;
    char act_text[RG_CORE_TEXT_MAX];
    size_t out_len;
    uint8_t out[RG_OUT_BYTES];
    rg_decision_t dec[RG_DECISIONS_MAX];
    rg_set_report_t dec_set[RG_SETS_IN_VIEW];
    uint32_t n_dec_sets;
    rg_leaver_t *leavers; /* of the activation that goes on, by rank */
    uint32_t n_leavers;
    rg_r_t activate;                /* its message */
    rg_core_member_t *next_members; /* the view under construction */
};

/* member.c */
rg_act_t *rg_member_act(rg_member_t *m, rg_mact_t type);
rg_w_t rg_member_begin(rg_member_t *m);               /* a message in the out buffer */
void rg_member_send(rg_member_t *m, const rg_w_t *w); /* ends and sends it */
void rg_member_expel(rg_member_t *m, rg_status_t status, const char *text, uint64_t epoch);
void rg_member_refused(rg_member_t *m, rg_status_t status, const char *text);
rg_msg_rebind_t rg_member_self(const rg_member_t *m);
static inline int rg_member_lost_long(const rg_member_t *m) {
    /* A connection that has just come back is given the time for an answer. */
    if (m->control_up && m->now - m->control_since < m->heartbeat_ns / 4) return 0;
    return m->heartbeat_ns && m->now - m->last_heard >= m->heartbeat_ns;
}

/* member_ops.c */
rg_ent_t *rg_ent_find(rg_member_t *m, rg_op_key_t key);
rg_ent_t *rg_ent_add(rg_member_t *m, rg_op_key_t key, rg_ent_state_t state);
void rg_ent_remove(rg_member_t *m, rg_ent_t *e); /* the operation is over here: it counts as passed */
uint8_t rg_member_intern(rg_member_t *m, const char *text);
void rg_op_commit(rg_member_t *m, rg_ent_t *e, uint64_t computed, int keep);
void rg_op_abort(rg_member_t *m, rg_ent_t *e, rg_status_t status, uint64_t blame, const char *text);
void rg_op_release(rg_member_t *m, rg_ent_t *e);
void rg_op_begin(rg_member_t *m, rg_ent_t *e); /* RUN, or the end of what has no chance in the present view */
void rg_op_rootless(rg_member_t *m, rg_ent_t *e, uint64_t root);
void rg_op_doom(rg_member_t *m, rg_ent_t *e, rg_status_t status, uint64_t blame, const char *text);
void rg_op_end_here(rg_member_t *m, rg_ent_t *e, rg_status_t status, uint64_t blame, const char *text);
void rg_ops_release(rg_member_t *m);
void rg_ops_commit_delayed(rg_member_t *m);
void rg_ops_local_aborts(rg_member_t *m);
static inline uint32_t rg_member_copies(const rg_member_t *m) { return (uint32_t)__builtin_popcountll(m->kept_map); }
int rg_ops_stuck(rg_member_t *m); /* something waits for an office */
void rg_ops_send_wanted(rg_member_t *m);
void rg_ops_abort_all(rg_member_t *m, rg_status_t status, const char *text);
void rg_ops_note(rg_member_t *m, int flush);
rg_status_t rg_ops_event(rg_member_t *m, const rg_member_event_t *ev);
void rg_ops_watermark(rg_member_t *m, uint64_t peer, uint64_t note);
void rg_ops_min(rg_member_t *m);

/* member_sets.c: who takes part in what, and how far each stream of operations has come */
uint32_t rg_ops_participants(rg_member_t *m, uint64_t gen);         /* of operations of the whole group */
void rg_entered_lost(rg_member_t *m, uint64_t gen);                 /* a newcomer of that boundary is lost */
uint64_t rg_entered_last(const rg_member_t *m);                     /* the last boundary that has newcomers */
uint32_t rg_key_participants(rg_member_t *m, rg_op_key_t key);      /* of any operation, in the present view */
int rg_key_has(const rg_member_t *m, rg_op_key_t key, uint64_t id); /* as the set was defined, whoever is left of it */
int rg_member_in_view(const rg_member_t *m, uint64_t id);
int rg_member_takes_part(const rg_member_t *m, uint64_t id, uint64_t gen); /* in the view, and old enough */
rg_set_t *rg_set_find(const rg_member_t *m, uint64_t set);
int rg_set_dropped(const rg_member_t *m, uint64_t set);
int rg_op_passed(const rg_member_t *m, rg_op_key_t key);
rg_status_t rg_start_allowed(rg_member_t *m, rg_op_key_t key, const rg_op_sig_t *sig);
void rg_start_taken(rg_member_t *m, rg_op_key_t key);
void rg_streams_told(rg_member_t *m); /* at an activation: what was started behind the fence is known from here on */
uint32_t rg_streams_write(const rg_member_t *m, rg_w_t *w);
void rg_sets_view_changed(rg_member_t *m);
int rg_set_write(rg_member_t *m, rg_w_t *w, uint64_t set); /* 1: the set is known, and was written */

/* member_links.c: JOIN, PEERS, READY, links */
void rg_links_join(rg_member_t *m);
void rg_links_peers(rg_member_t *m, rg_r_t *r);
void rg_links_ready(rg_member_t *m);
void rg_links_release(rg_member_t *m);
int rg_links_add(rg_member_t *m, const rg_core_member_t *rec); /* 0: there is no room */
void rg_links_event(rg_member_t *m, const rg_member_event_t *ev);
void rg_links_redial(rg_member_t *m);
void rg_links_complain_again(rg_member_t *m);
void rg_links_begin_anew(rg_member_t *m);
void rg_links_settle(rg_member_t *m);
void rg_links_route(rg_member_t *m, rg_r_t *r);
void rg_links_forget(rg_member_t *m, int but_up);
void rg_peer_forget(rg_member_t *m, rg_peer_t *p);
static inline rg_peer_t *rg_peer_find(const rg_member_t *m, uint64_t id) {
    int64_t slot = rg_idmap_get(&m->peer_map, id);
    return slot < 0 ? NULL : &m->peers[slot];
}

/* member_view.c: FREEZE, REPORT, INSTALL, ACTIVATE, PREPARE, boundaries */
void rg_view_freeze(rg_member_t *m, rg_r_t *r);
void rg_view_install(rg_member_t *m, rg_r_t *r);
void rg_view_activate(rg_member_t *m, rg_r_t *r);
void rg_view_prepare(rg_member_t *m, rg_r_t *r);
void rg_view_boundary(rg_member_t *m, uint64_t gen);
void rg_view_certify(rg_member_t *m); /* CERT(B) of B1: tells a coordinator that is behind what we know */
void rg_view_tell(rg_member_t *m);    /* the whole view, and how it came about */

#endif
