/* wire.h: the messages between members and coordinator, and their codec. Everything is little-endian and explicit;
 * a reader never reads past its end: it goes bad, gives zeroes, and the caller looks at `bad` once at the end. The
 * length of a message is known to the transport that carries it (a length prefix outside the core). The format of
 * each message is in docs/protocol.md, section 10. */
#ifndef RG_CORE_WIRE_H
#define RG_CORE_WIRE_H

#include "core/core.h"

#define RG_WIRE_MAGIC 0x31435247u /* "GRC1" in memory order */
#define RG_WIRE_VERSION 4u
#define RG_WIRE_HEADER 8u
#define RG_DECISIONS_MAX 4096u /* decisions that one view can carry */
#define RG_SETS_IN_VIEW 1024u  /* sub-groups that they can speak of */

typedef enum rg_msg {
    RG_MSG_JOIN = 1,
    RG_MSG_REBIND,
    RG_MSG_WELCOME,
    RG_MSG_REFUSE,
    RG_MSG_WAITING,
    RG_MSG_PEERS,
    RG_MSG_READY,
    RG_MSG_PREPARE,
    RG_MSG_PROMISE,
    RG_MSG_FREEZE,
    RG_MSG_REPORT,
    RG_MSG_NACK,
    RG_MSG_INSTALL,
    RG_MSG_ACCEPT,
    RG_MSG_ACTIVATE,
    RG_MSG_EXPEL,
    RG_MSG_HEARTBEAT,
    RG_MSG_HEARTBEAT_ACK,
    RG_MSG_LINK,
    RG_MSG_ABORT_OP,
    RG_MSG_LEAVE,
    RG_MSG_PROBE,
    RG_MSG_VIEW,
    RG_MSG_PROPOSAL,
    RG_MSG_ROUTE,
    RG_MSG_END
} rg_msg_t;

typedef struct rg_w {
    uint8_t *p;
    size_t len, cap;
    int bad; /* something did not fit: the message must not be sent */
} rg_w_t;

typedef struct rg_r {
    const uint8_t *p;
    size_t len, pos;
    int bad;
} rg_r_t;

void rg_w_u8(rg_w_t *w, uint8_t v);
void rg_w_u16(rg_w_t *w, uint16_t v);
void rg_w_u32(rg_w_t *w, uint32_t v);
void rg_w_u64(rg_w_t *w, uint64_t v);
void rg_w_bytes(rg_w_t *w, const void *p, size_t n);
void rg_w_text(rg_w_t *w, const char *s, size_t max); /* u16 length and bytes; s may be NULL */
void rg_w_header(rg_w_t *w, rg_msg_t type);
void rg_w_patch_u32(rg_w_t *w, size_t at, uint32_t v); /* for counts that are known later */

uint8_t rg_r_u8(rg_r_t *r);
uint16_t rg_r_u16(rg_r_t *r);
uint32_t rg_r_u32(rg_r_t *r);
uint64_t rg_r_u64(rg_r_t *r);
void rg_r_bytes(rg_r_t *r, void *p, size_t n);
const uint8_t *rg_r_skip(rg_r_t *r, size_t n); /* where the n bytes are; NULL and bad when they are not there */
void rg_r_text(rg_r_t *r, char *dst, size_t cap);
int rg_r_end(const rg_r_t *r); /* 1: everything was read and nothing was missing */
/* Reads magic, version and type. Gives the type, or 0: not ours. */
uint32_t rg_r_header(rg_r_t *r, uint16_t *version);

typedef struct rg_term {
    uint64_t count, owner;
} rg_term_t;

typedef struct rg_msg_join {
    char group[RG_CORE_NAME_MAX], label[RG_CORE_NAME_MAX];
    uint8_t identity[16];
    uint64_t host, site;
    uint32_t cores, pid, min_size, order, fixed_n, fixed_rank;
    uint16_t addr_len;
    uint8_t addr[RG_CORE_ADDR_MAX];
} rg_msg_join_t;

#define RG_LINK_IS_UP 1u   /* bits of a LINK */
#define RG_LINK_LOST 4u    /* something that was on its way between the two did not come, and will not */
#define RG_LINK_IS_DEAD 2u /* there is evidence that the other side's process is gone */

#define RG_WAITS_FENCED 1u  /* for a round */
#define RG_WAITS_PROMISE 2u /* for any successor of the view: it has promised to pass no boundary before one */

/* What a member says of itself on a new connection. accepted: the epoch of the proposal that it has accepted, or 0. */
typedef struct rg_msg_rebind {
    char group[RG_CORE_NAME_MAX], label[RG_CORE_NAME_MAX];
    uint64_t id, epoch, accepted, upto;
    uint8_t nonce[16], waits; /* bits of RG_WAITS_* */
    uint32_t pid;
    rg_term_t term;
} rg_msg_rebind_t;

typedef struct rg_msg_heartbeat {
    uint64_t epoch, gen, watermark, bytes_sent, bytes_received, operations;
    uint8_t net[RG_CORE_NET];
} rg_msg_heartbeat_t;

/* What became of an operation at one member, as it is reported (docs/protocol.md, section 5). */
typedef enum rg_op_state {
    RG_OPS_NONE = 0,     /* S: not started; in a report: only a mark */
    RG_OPS_RUNNING = 1,  /* R */
    RG_OPS_COMPLETE = 2, /* C */
    RG_OPS_KEPT = 3,     /* X+ */
    RG_OPS_DONE = 4,     /* X, no copy: never listed, it follows from absence */
    RG_OPS_ABORTED = 5   /* B: aborted or abort-pending */
} rg_op_state_t;

typedef struct rg_op_report {
    rg_op_key_t key;
    rg_op_sig_t sig;
    uint8_t state; /* rg_op_state_t */
    uint64_t computed, numbering;
    int32_t status; /* B: as it was decided */
    uint64_t blame;
    char text[RG_CORE_TEXT_MAX];
} rg_op_report_t;

typedef enum rg_verdict {
    RG_VERDICT_NONE = 0,
    RG_COMMIT = 1,
    RG_FORWARD = 2,
    RG_RESTART = 3,
    RG_ABORT = 4
} rg_verdict_t;

/* What is not needed for the verdict is not on the wire and reads as zero: sig is there for FORWARD and RESTART,
 * computed for COMMIT and FORWARD, numbering for all but COMMIT. */
typedef struct rg_decision {
    rg_op_key_t key;
    rg_op_sig_t sig;
    uint8_t verdict;
    uint16_t set_at; /* operations of a sub-group: which set of the message */
    uint64_t computed, numbering;
    int32_t status;
    uint64_t blame;
    uint16_t map_len; /* FORWARD: bytes of each of the two maps over the ranks of the new view */
    const uint8_t *have, *donor;
    uint16_t text_len;
    const uint8_t *text; /* not terminated */
} rg_decision_t;

typedef struct rg_report_head {
    rg_term_t term, accepted_term;
    uint64_t base, accepted, gen, next0, floor;
} rg_report_head_t;

/* How far a member has come with the operations of one set and tag: they are numbered in the order of its calls, and
 * whatever is below (gen, next) and not among the entries is over there, for ever. The same holds for all streams below
 * generation `floor` of the report's head. */
typedef struct rg_stream_report {
    uint64_t set, gen;
    uint32_t tag, next;
} rg_stream_report_t;

/* A sub-group as ranks of the view that the message is about. hash: of all its ids in order, also of those who are
 * gone: two members that mean different sub-groups by one number have different hashes. */
typedef struct rg_set_report {
    uint64_t set, hash;
    uint16_t map_len;
    const uint8_t *map;
} rg_set_report_t;

#define RG_VIEW_WHOLE 1u   /* all members are listed; else what is different from the parent's */
#define RG_VIEW_RECORDS 2u /* those listed come with all that is known of them; else PEERS has told it before */

typedef struct rg_view_head {
    rg_term_t term;
    uint64_t epoch, parent, data_epoch, cut, witness;
    uint8_t kind, form; /* bits of RG_VIEW_WHOLE and RG_VIEW_RECORDS */
    uint32_t n;
} rg_view_head_t;

/* A member in a view: everything else of it has been told before by PEERS. */
typedef struct rg_view_member {
    uint64_t id, first_gen;
    uint8_t net[RG_CORE_NET];
} rg_view_member_t;

void rg_w_join(rg_w_t *w, const rg_msg_join_t *j);
void rg_r_join(rg_r_t *r, rg_msg_join_t *j);
void rg_w_rebind(rg_w_t *w, const rg_msg_rebind_t *b);
void rg_w_rebind_body(rg_w_t *w, const rg_msg_rebind_t *b); /* as VIEW has it, too */
void rg_r_rebind(rg_r_t *r, rg_msg_rebind_t *b);
void rg_w_peer(rg_w_t *w, const rg_core_member_t *m);
void rg_r_peer(rg_r_t *r, rg_core_member_t *m);
void rg_w_heartbeat(rg_w_t *w, const rg_msg_heartbeat_t *h);
void rg_r_heartbeat(rg_r_t *r, rg_msg_heartbeat_t *h);
void rg_w_term(rg_w_t *w, rg_term_t t);
rg_term_t rg_r_term(rg_r_t *r);
void rg_w_key(rg_w_t *w, rg_op_key_t k);
rg_op_key_t rg_r_key(rg_r_t *r);
void rg_w_sig(rg_w_t *w, const rg_op_sig_t *s);
void rg_r_sig(rg_r_t *r, rg_op_sig_t *s);
void rg_w_report_head(rg_w_t *w, const rg_report_head_t *h);
void rg_r_report_head(rg_r_t *r, rg_report_head_t *h);
void rg_w_op_report(rg_w_t *w, const rg_op_report_t *o);
void rg_r_op_report(rg_r_t *r, rg_op_report_t *o);
void rg_w_stream_report(rg_w_t *w, const rg_stream_report_t *s);
void rg_r_stream_report(rg_r_t *r, rg_stream_report_t *s);
void rg_w_set_report(rg_w_t *w, const rg_set_report_t *s);
void rg_r_set_report(rg_r_t *r, rg_set_report_t *s);
void rg_w_view_member(rg_w_t *w, const rg_view_member_t *m);
void rg_r_view_member(rg_r_t *r, rg_view_member_t *m);
void rg_w_view_head(rg_w_t *w, const rg_view_head_t *v);
void rg_r_view_head(rg_r_t *r, rg_view_head_t *v);
void rg_w_decision(rg_w_t *w, const rg_decision_t *d);
void rg_r_decision(rg_r_t *r, rg_decision_t *d);

int rg_term_cmp(rg_term_t a, rg_term_t b);
int rg_key_cmp(rg_op_key_t a, rg_op_key_t b);
/* Everything but tag 0 of the whole group: matched in any order with others, rule L only. */
static inline int rg_key_tagged(rg_op_key_t k) { return k.set != RG_SET_ALL || k.op >> 32 != 0; }
static inline int rg_set_is_pair(uint64_t set) { return set >> 63 != 0; }
static inline int rg_set_is_group(uint64_t set) { return set != RG_SET_ALL && !rg_set_is_pair(set); }
static inline uint64_t rg_pair_from(uint64_t set) { return set >> 31 & RG_SET_ID_MAX; }
static inline uint64_t rg_pair_to(uint64_t set) { return set & RG_SET_ID_MAX; }
static inline int rg_pair_has(uint64_t set, uint64_t id) { return rg_pair_from(set) == id || rg_pair_to(set) == id; }
/* Operations whose shape depends on who takes part: after a loss nothing can take their place. (src/sched has the same
 * as rg_kind_shaped(); the core stands on its own.) */
static inline int rg_sig_shaped(const rg_op_sig_t *s) {
    return s->kind == RG_KIND_ALL_GATHER || s->kind == RG_KIND_REDUCE_SCATTER || s->kind == RG_KIND_GATHER ||
           s->kind == RG_KIND_SCATTER || s->kind == RG_KIND_ALL_TO_ALL || s->kind == RG_KIND_P2P;
}
/* Those of them in which nobody has a result before all have given something: such a one may be small enough for rule
 * S, for everybody can be given, and keep, what all have given (docs/protocol.md, section 3). */
static inline int rg_sig_mutual(const rg_op_sig_t *s) {
    return s->kind == RG_KIND_ALL_GATHER || s->kind == RG_KIND_REDUCE_SCATTER || s->kind == RG_KIND_ALL_TO_ALL;
}
static inline int rg_map_bit(const uint8_t *map, uint32_t i) { return map[i / 8] >> (i % 8) & 1; }
static inline void rg_map_set(uint8_t *map, uint32_t i) { map[i / 8] |= (uint8_t)(1u << (i % 8)); }

#endif
