/* core.h: membership and agreement, as two pure state machines: rg_member_t in every member, rg_coord_t in the
 * coordinator (docs/protocol.md; rule numbers in the comments of the code). They do no I/O, read no clock, allocate
 * nothing and log nothing: events come in through rg_*_step(), actions are taken out with rg_*_next() until it returns
 * 0. Messages enter as undecoded bytes, so that network, simulator and fuzzer use one door. Time is event.now_ns.
 *
 * The caller of rg_member_step() executes the data plane: it runs operations, moves bytes, and tells the core what
 * became of them. The core decides what may be shown to a user. */
#ifndef RG_CORE_H
#define RG_CORE_H

#include "regroup.h"
#include "regroup_algorithm.h"

#define RG_CORE_ADDR_MAX 512
#define RG_CORE_NAME_MAX 64
#define RG_CORE_TEXT_MAX 256
#define RG_CORE_NET 6       /* latency and bandwidth class of links: same host, same site, elsewhere */
#define RG_CORE_MAX_OPS 512 /* operations of one member that are not finished everywhere */
#define RG_CORE_MAX_MESSAGE (1u << 20)

/* ---- Things that both sides and the wire know ------------------------------------------------------------------ */

/* Operations are named by the boundary generation in which they were issued, by tag and sequence number in it, and by
 * the set of members that take part: RG_SET_ALL, a pair (sender and receiver of a message), or a sub-group, whose
 * members the engine has told the core with rg_member_set_define(). Operations of a set other than ALL are matched
 * like tagged ones: rule L only, in any order with those of other sets. */
typedef struct rg_op_key {
    uint64_t gen, op, set;
} rg_op_key_t; /* op = tag << 32 | seq; tag 0: matched by order */
#define RG_SET_ALL 0u
#define RG_SET_PAIR (1ull << 63) /* | sender's id << 31 | receiver's id; sub-groups have this bit clear */
#define RG_SET_ID_MAX 0x7fffffffu
/* The watermark form of a key of tag 0: everything of tag 0 below it. */
static inline uint64_t rg_key_note(rg_op_key_t k) { return k.gen << 32 | (k.op & 0xffffffffu); }
#define RG_CORE_MAX_SETS 256
#define RG_ROOT_GONE 0x7fffffffu /* as the root of an operation: a rank that nobody has any more */
static inline uint64_t rg_set_pair(uint64_t from, uint64_t to) { return RG_SET_PAIR | from << 31 | to; }

/* The arguments that must be equal on all members. */
typedef struct rg_op_sig {
    uint8_t kind, dtype, op, on_fault; /* rg_kind_t, rg_dtype_t, rg_op_t, rg_on_fault_t (resolved) */
    uint8_t rule_l;                    /* 1: rule L, 0: rule S */
    uint64_t root;                     /* member id of the root, 0 if the operation has none */
    uint64_t count;
    uint32_t variant; /* hash of whatever else must agree (algorithm, chunk) */
} rg_op_sig_t;
int rg_sig_same(const rg_op_sig_t *a, const rg_op_sig_t *b);

typedef struct rg_core_member {
    uint64_t id;        /* unique in the group for ever; grows with joining order; never 0 */
    uint64_t first_gen; /* participates in operations of this generation and later */
    uint64_t host;      /* equal for members that run on one host */
    uint64_t site;      /* equal for members of one site; 0: not said */
    uint32_t cores;
    uint8_t net[RG_CORE_NET]; /* what this member measured when its links opened: see rg_net_pack() in sched.h */
    uint8_t identity[16];
    uint16_t addr_len;
    uint8_t addr[RG_CORE_ADDR_MAX];
} rg_core_member_t;

typedef enum rg_view_kind { RG_VIEW_FIRST = 0, RG_VIEW_RECOVERY = 1, RG_VIEW_JOIN = 2 } rg_view_kind_t;

typedef struct rg_core_view {
    uint64_t epoch, parent, term, term_owner;
    uint64_t witness;    /* the coordinator that has a vote on this view's successor; 0: only members have */
    uint64_t data_epoch; /* own epoch for FIRST and RECOVERY, the parent's for JOIN (G5) */
    rg_view_kind_t kind;
    uint64_t cut; /* JOIN: first generation of the newcomers */
    uint32_t n;
    rg_core_member_t *members; /* rank order: survivors keep theirs, newcomers are appended */
} rg_core_view_t;

/* ---- Member ---------------------------------------------------------------------------------------------------- */

typedef struct rg_member rg_member_t;

typedef struct rg_member_params {
    uint32_t max_members;
    uint8_t identity[16];
    char group[RG_CORE_NAME_MAX], label[RG_CORE_NAME_MAX];
    uint8_t addr[RG_CORE_ADDR_MAX];
    uint32_t addr_len;
    uint64_t host, site;
    uint32_t cores, pid;
    uint32_t min_size, order;     /* as in rg_config */
    uint32_t fixed_n, fixed_rank; /* rg_group_init_rank(): n (0: not used) and rank */
    uint32_t host_office;         /* 1: this process can run a coordinator when there is none (RG_MACT_OFFICE_OPEN) */
    uint64_t quorum_ns;           /* succession: after so long without a coordinator that has a quorum the member stops
                                     with NO_QUORUM; 0: only when an operation's end is asked for */
    uint32_t hold;                /* 1: makes its links, but does not say that it is ready before RG_MEV_RELEASE: it has
                                     something to fetch from the members first */
} rg_member_params_t;

size_t rg_member_size(uint32_t max_members); /* bytes of zeroed memory, aligned as malloc's, that rg_member_init()
                                                needs */
rg_status_t rg_member_init(rg_member_t *m, const rg_member_params_t *p);

typedef enum rg_mev {
    RG_MEV_TICK,         /* time passed; also call when rg_member_deadline() is reached */
    RG_MEV_CONTROL_UP,   /* connected to the coordinator */
    RG_MEV_CONTROL_DOWN, /* connection to the coordinator lost or refused */
    RG_MEV_MESSAGE,      /* from the coordinator: bytes, len */
    RG_MEV_LINK_UP,      /* data link to member `peer` is there; via: the member that relays it, 0: it is direct. It
                            goes on with no byte lost or doubled; fresh 1: it could not, because the other end or this
                            one had forgotten it, or keeps less than is missing: then a round makes all begin anew */
    RG_MEV_LINK_DOWN,    /* data link to member `peer`, or the relayed one that took its place, broke; text; dead: there
                            is evidence that the peer itself is gone (its process ended, its port refuses), not only
                            the path. Said as soon as it breaks, and again when such evidence comes later. The caller
                            goes on trying to resume the link until LINK_UP, ROUTE or DISCONNECT (section 7) */
    RG_MEV_BOUNDARY,     /* the caller wants to pass into generation `gen` (current + 1) */
    RG_MEV_OP_START,     /* the caller issued `key` with `sig` -> exactly one of ACT_OP_RUN/FORWARD/ABORT, now or, while
                            fenced, at activation. The keys of one set and tag ascend by generation and number; those
                            other than tag 0 of the whole group take rule L */
    RG_MEV_OP_COMPLETE,  /* the whole result of `key` is here -> ACT_OP_COMMIT at once under rule S */
    RG_MEV_OP_RAN,  /* what OP_START and OP_COMPLETE of `key` and `sig` together say, of an operation under rule S for
                       which rg_member_may_run() held when it was called, and before any other event: the commit
                       that follows may have been carried out already. Those from the last known one to this that
                       were not told of are over at all participants */
    RG_MEV_OP_DONE, /* rule L: the DONE barrier of `key` ended -> ACT_OP_COMMIT */
    RG_MEV_OP_FETCHED, /* the result of a FORWARDed `key` arrived -> ACT_OP_COMMIT */
    RG_MEV_OP_FAIL,    /* this member wants `key` ended with `status` (TIMEOUT, CANCELLED, MISMATCH); blame `peer` or
                          0; text */
    RG_MEV_WATERMARK,  /* member `peer` said by note that it has completed everything below `note` */
    RG_MEV_LEAVE,      /* the caller leaves */
    RG_MEV_NET,        /* measurements of this member's links: net */
    RG_MEV_RETURN,     /* a standalone coordinator answers again: an office that is hosted here gives way to it */
    RG_MEV_RELEASE     /* a candidate that was told to `hold` may enter now */
} rg_mev_t;

typedef struct rg_member_event {
    rg_mev_t type;
    uint64_t now_ns;
    const uint8_t *bytes;
    size_t len;
    uint64_t peer;
    uint64_t gen;
    uint64_t note;
    rg_op_key_t key;
    rg_op_sig_t sig;
    rg_status_t status;
    const char *text;
    uint64_t via;                                    /* LINK_UP */
    uint32_t fresh;                                  /* LINK_UP */
    uint32_t dead;                                   /* LINK_DOWN */
    uint64_t bytes_sent, bytes_received, operations; /* any event: counters for the next heartbeat */
    uint8_t net[RG_CORE_NET]; /* RG_MEV_NET: for the next message to the coordinator; they hold from the next view on */
} rg_member_event_t;

typedef enum rg_mact {
    RG_MACT_SEND,       /* bytes, len to the coordinator */
    RG_MACT_CONNECT,    /* establish the data link to `peer` (member->identity, addr); dial says who dials */
    RG_MACT_DISCONNECT, /* `peer` is gone for good: drop its link */
    RG_MACT_WELCOME,   /* the coordinator accepted us as a candidate: `peer` is our own member id, nonce is the group's,
                          heartbeat_ns, takeover_ns, mode, reconnect_ns (0: a link between members that breaks is not
                          resumed) */
    RG_MACT_JOINED,    /* first view active: rg_member_view() is valid; gen is our first generation */
    RG_MACT_REFUSED,   /* joining is refused: status, text */
    RG_MACT_WAITING,   /* still waiting for others; text says for whom (shown when join_timeout passes) */
    RG_MACT_FENCE,     /* stop the data plane of the present data epoch now (B1): cancel, touch nothing more */
    RG_MACT_VIEW,      /* a new view is active. After RECOVERY: the data plane starts anew with data_epoch; the OP_
                          actions that follow say how */
    RG_MACT_OP_RUN,    /* run `key` in the present data epoch. peer: member id of the root (0: none); it may differ from
                          the one in OP_START when the operation was started while fenced: the same rank of the new view
                          is meant */
    RG_MACT_OP_COMMIT, /* show success. keep != 0: keep a private copy of the result until OP_RELEASE. computed: data
                          epoch of the result */
    RG_MACT_OP_RELEASE,  /* drop the copy: every participant has it */
    RG_MACT_OP_RESTART,  /* restore the input and run `key` again in the present data epoch */
    RG_MACT_OP_FORWARD,  /* restore the input, then receive the finished result from `peer` -> OP_FETCHED; `computed` as
                            above */
    RG_MACT_OP_SERVE,    /* send the kept copy of `key` to `peer` (which got OP_FORWARD, or will when it starts); comes
                            last in a step */
    RG_MACT_OP_ABORT,    /* restore the input and show status, blame `peer` (0: nobody), text */
    RG_MACT_BOUNDARY,    /* generation `gen` may begin: the boundary call returns; rg_member_view() has who is in */
    RG_MACT_NOTE,        /* stamp `note` on messages to members (watermark); flush != 0: send it now to everybody */
    RG_MACT_EXPELLED,    /* we are out: status (EXPELLED, or CLOSED after LEAVE), text. Every open operation has got
                            OP_ABORT */
    RG_MACT_CONTROL,     /* (re)connect to the coordinator, giving up a connection that there may be. peer 0: to the
                            configured address, or the next of a list. Else (succession) to the office in the process of
                            member `peer`, whose record is `member`: its data port, or, when it is this process, the
                            machine that OFFICE_OPEN started. No office there: RG_MEV_CONTROL_DOWN */
    RG_MACT_OFFICE_OPEN, /* (succession, host_office) run an rg_coord_t in this process, with mode SUCCESSION, hosted =
                            1, id = note, heartbeat_ns, takeover_ns and reconnect_ns; it needs no other state: members
                            bring it. A CONTROL to it follows. on: how many times in a row a coordinator that RETURN
                            spoke of did not act for this member: it is to be trusted less soon */
    RG_MACT_OFFICE_CLOSE, /* end it: send what it still has to say, close its connections, free it */
    RG_MACT_ROUTE,        /* (reconnect_ns) the link to `peer` is to go through member `via`, to which there is a direct
                             link: the other end is told the same, `via` is told RELAY. LINK_UP with via when it does.
                             via 0: not any more; when the direct link is not there either, that is a LINK_DOWN */
    RG_MACT_RELAY         /* (reconnect_ns) on 1: pass on what members `peer` and `via` send each other through here,
                             until on 0 or the DISCONNECT of one of them. May come before the link to one is there */
} rg_mact_t;

typedef struct rg_member_action {
    rg_mact_t type;
    const uint8_t *bytes;
    size_t len;
    uint64_t peer;
    const rg_core_member_t *member;
    uint32_t dial;
    uint8_t nonce[16];
    uint64_t heartbeat_ns, takeover_ns, reconnect_ns;
    uint32_t mode; /* WELCOME: rg_mode_t of the coordinator */
    uint64_t gen, note, computed;
    uint64_t via; /* ROUTE, RELAY */
    uint32_t on;  /* RELAY, OFFICE_OPEN */
    uint32_t keep, flush;
    rg_op_key_t key;
    rg_status_t status;
    const char *text;
} rg_member_action_t;

/* RG_OK; ERR_RESOURCE (too many operations: the event was not taken); ERR_BUG: a broken invariant, the group is
 * over. */
rg_status_t rg_member_step(rg_member_t *m, const rg_member_event_t *ev);
/* Takes out the next action; its pointers are valid until the next step. All must be taken out before the next step. */
int rg_member_next(rg_member_t *m, rg_member_action_t *a);
uint64_t rg_member_deadline(const rg_member_t *m); /* when to send RG_MEV_TICK at the latest; UINT64_MAX: never */
const rg_core_view_t *rg_member_view(const rg_member_t *m); /* last activated; NULL before JOINED */
uint64_t rg_member_id(const rg_member_t *m);
int rg_member_fenced(const rg_member_t *m);
/* Of a candidate that holds: 0 before it knows whom to link to; 1 while links to them are missing; 2 when it would be
 * ready. Of anybody else: 0. */
int rg_member_holding(const rg_member_t *m);
int rg_member_coordinator_lost(const rg_member_t *m);
/* 1 when a newcomer has been announced (promise given or cut known) and has not entered. */
int rg_member_newcomers(const rg_member_t *m);
/* 1 when every operation that this member committed is known complete at all participants: leaving loses nothing. */
int rg_member_drained(const rg_member_t *m);
/* How many newcomers entered, or are to enter, at the present boundary or a later one: the same number at every member,
 * for it counts those that were lost since, too. A program decides by it what it calls next. */
uint32_t rg_member_entered(const rg_member_t *m, uint64_t gen);
/* Participants of operations of generation gen in the present view, in rank order. Returns how many; ids up to cap. */
uint32_t rg_member_participants(const rg_member_t *m, uint64_t gen, uint64_t *ids, uint32_t cap);
/* A sub-group: its members by id, in rank order, the same on all of them; this process is one of them. Operations with
 * key.set = set take part among those of them that are in the view. Numbers of sets are never used for another one.
 * ERR_RESOURCE: RG_CORE_MAX_SETS are defined, or more than 8 * max_members ids in all. ERR_INVALID: no such number or
 * list, or defined before with another list. Dropping one that still has operations is ERR_INVALID. */
rg_status_t rg_member_set_define(rg_member_t *m, uint64_t set, const uint64_t *ids, uint32_t n);
rg_status_t rg_member_set_drop(rg_member_t *m, uint64_t set);
/* 1 when an operation of tag 0 that is called now, of generation gen, would run at once, and would be committed as soon
 * as its result is here if nothing else happens until then; though it is the untold-th that the machine has not heard
 * of (RG_MEV_OP_RAN). */
int rg_member_may_run(const rg_member_t *m, uint64_t gen, uint32_t untold);
/* Why the last RG_MEV_OP_START or rg_member_set_define() was not taken: what was wrong, what to do. Never NULL. */
const char *rg_member_why(const rg_member_t *m);
/* For a rooted operation that others started before the last view change: the data epoch whose ranks its root argument
 * means (0: the present one). Ask before OP_START. */
uint64_t rg_member_numbering(const rg_member_t *m, rg_op_key_t key);

/* ---- Coordinator ----------------------------------------------------------------------------------------------- */

typedef struct rg_coord rg_coord_t;

/* AUTHORITY: the coordinator alone decides, any number of survivors goes on, and nobody can take its place. SUCCESSION:
 * a view's successor needs a quorum of the view, in which a standalone coordinator has a vote; another coordinator, or
 * one that was started anew, or a member, can take the office over. Members learn the mode by WELCOME. */
typedef enum rg_mode { RG_MODE_AUTHORITY = 0, RG_MODE_SUCCESSION = 1 } rg_mode_t;
#define RG_OFFICE_STANDALONE (1ull << 63) /* in the id of a coordinator that no member hosts */

typedef struct rg_coord_params {
    uint32_t max_members;
    uint64_t heartbeat_ns;
    uint8_t nonce[16]; /* random, of this group */
    uint64_t id;       /* of the coordinator: owner of its terms. SUCCESSION: never the same again, also not after a
                          restart: random with RG_OFFICE_STANDALONE set and the low 16 bits 0 (they count how often it
                          forgot a group), or as OFFICE_OPEN says */
    rg_mode_t mode;
    uint32_t hosted;       /* SUCCESSION: runs in a member's process, so it has no vote of its own */
    uint64_t takeover_ns;  /* SUCCESSION: members wait so long for a lost coordinator before they look for another; 0:
                              two heartbeats */
    uint64_t found_at_ns;  /* SUCCESSION: no first view before this time: members of a running group may be on their way
                              to a coordinator that was just started */
    uint64_t reconnect_ns; /* a link between two live members that breaks, and a control connection, have this long to
                              come back before the first is relayed and whoever is at the end of the second is taken for
                              lost. 0: they have not, and nothing is relayed (L2) */
    uint64_t first_id;     /* member ids start above this one */
    uint64_t host;         /* SUCCESSION: where the coordinator runs, as members say it (0: not said): it has no vote */
    uint32_t pid;          /* beside one member of its own process, whose fate it shares */
    char group[RG_CORE_NAME_MAX];
} rg_coord_params_t;

size_t rg_coord_size(uint32_t max_members);
rg_status_t rg_coord_init(rg_coord_t *c, const rg_coord_params_t *p);

typedef enum rg_cev { RG_CEV_TICK, RG_CEV_MESSAGE, RG_CEV_CLOSED } rg_cev_t;
typedef struct rg_coord_event {
    rg_cev_t type;
    uint64_t now_ns;
    uint64_t conn; /* chosen by the caller, never reused, never 0 */
    const uint8_t *bytes;
    size_t len;
} rg_coord_event_t;

typedef enum rg_cact {
    RG_CACT_SEND,  /* bytes, len to conn */
    RG_CACT_CLOSE, /* conn: after what was sent before */
    RG_CACT_LOG    /* text: one line per membership change */
} rg_cact_t;
typedef struct rg_coord_action {
    rg_cact_t type;
    uint64_t conn;
    const uint8_t *bytes;
    size_t len;
    const char *text;
} rg_coord_action_t;

rg_status_t rg_coord_step(rg_coord_t *c, const rg_coord_event_t *ev);
int rg_coord_next(rg_coord_t *c, rg_coord_action_t *a);
uint64_t rg_coord_deadline(const rg_coord_t *c);

/* The roll, for `regroup status`. */
typedef struct rg_roll_row {
    uint64_t id, first_gen, bytes_sent, bytes_received, operations, boundary, heartbeat_age_ns;
    uint32_t broken_links, relayed_links;     /* direct links that are down; those of them that somebody relays */
    uint32_t rank, pid, candidate, suspected; /* candidate: waiting to enter, rank is meaningless */
    uint64_t host, site;
    uint8_t net[RG_CORE_NET]; /* as last heard */
    uint8_t identity[16];
    char label[RG_CORE_NAME_MAX];
    uint64_t conn;
} rg_roll_row_t;
uint32_t rg_coord_roll(const rg_coord_t *c, uint64_t now_ns, rg_roll_row_t *rows, uint32_t cap, uint64_t *epoch);
typedef struct rg_office_row {
    uint64_t id, term, term_owner, witness;
    uint32_t acting, hosted, voters, votes; /* of the view's successor: how many there are, how many are here */
    rg_mode_t mode;
} rg_office_row_t;
void rg_coord_office(const rg_coord_t *c, rg_office_row_t *row);
/* 1: it serves a group, which is another one than that of this nonce, so that it refuses the members of that one. */
int rg_coord_other_group(const rg_coord_t *c, const uint8_t nonce[16]);
uint32_t rg_coord_population(const rg_coord_t *c); /* members and candidates; 0: the group can be forgotten */

/* What a first message of a connection is (wire.c): 1 and the group's name for a join or a rebind, 0 for anything
 * else. */
int rg_wire_peek_group(const uint8_t *bytes, size_t len, char group[RG_CORE_NAME_MAX]);

/* A refusal by a coordinator that has no core for the group. Returns its length, 0 when cap is too small. */
size_t rg_wire_refusal(uint8_t *out, size_t cap, rg_status_t status, const char *text);

/* Invariants by name (check.c), run after every step in tests: NULL or the name of the one that is broken. */
const char *rg_member_check(const rg_member_t *m);
const char *rg_coord_check(const rg_coord_t *c);

#endif
