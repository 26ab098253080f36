/* rdma_internal.h: what the parts of the RDMA transport share. rdma.c has the table and what a user asks for,
 * rdma_msg.c sends and takes messages, rdma_watch.c misses what does not end, rdma_conn.c makes and ends connections,
 * rdma_wire.c has the bytes. It relies on
 * libibverbs and librdmacm, and on mbox.h for messages that come whole; rdma_mem.c knows memory of callers. No key that
 * a peer could write with is ever made: what lands in a caller's buffer has been fetched by our own adapter, or copied
 * by us, so that nothing remote can change one, whatever dies. What a peer may read ends with its link (rdma_lend.c:
 * what it may read for longer than a message). */
#ifndef RG_RDMA_INTERNAL_H
#define RG_RDMA_INTERNAL_H

#include "mbox.h"

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define RGR_SLOT 32768u /* of memory for one message, its header among it */
#define RGR_HEAD 96u
#define RGR_ROOM 32640u       /* payload of one message at most; a multiple of 64 */
#define RGR_READ (128u << 10) /* most that one read fetches, and */
#define RGR_READS 4u          /* so many at once of one peer: what a fence may have to wait for */
#define RGR_CREDITS 16u       /* messages that a peer may have on their way to us */
#define RGR_SQ 32u
#define RGR_CHUNK 16u /* slots that are registered together */
#define RGR_CHUNKS_MAX 128u
#define RGR_SEND_CHUNKS 4u
#define RGR_RTS_MAX 4096u /* large messages of one peer that nobody has asked for */
#define RGR_PENDING_MAX 64
#define RGR_PENDING_NS 5000000000ull
#define RGR_HELLO 56u /* what a connection request over InfiniBand and RoCE can carry */
#define RGR_NO_SLOT UINT32_MAX
#define RGR_HASH 256u

/* What a message is. */
typedef enum rgr_type {
    RGR_DATA = 1, /* whole */
    RGR_RTS,      /* a large one is here: `total` bytes, known as `sid`; with `key` it may be read, at `offset` */
    RGR_CTS,      /* send the message `sid` in pieces of `step` bytes, to `rid`; 0: nobody wants its bytes */
    RGR_PIECE,    /* bytes from `offset` of what is received as `rid` */
    RGR_NOTE,     /* note and credits, which all messages carry, alone */
    RGR_GOT,      /* all of `sid` has been read, as `rid` */
    RGR_DONE,     /* nothing of `rid` changed until all of it was on the other side: it is good */
    RGR_LEND,     /* `total` bytes at `offset` may be read with `key`, as often as you like, as `lent` and as `sid` */
    RGR_RECALL,   /* begin no more reads of `sid` */
    RGR_BACK      /* there will be no more of them */
} rgr_type_t;

typedef struct rgr_head {
    rgr_type_t type;
    uint32_t credits, len, sid, rid, step, key;
    rg_tag_t tag;
    uint64_t note, total, offset;
    uint64_t whole; /* RTS of a part: bytes of all parts together */
    int roomy;      /* the sender has a slot free for every message that it gave credits for */
    uint64_t lent, stamp; /* LEND: the name; where the stamp is (in place of a tag) */
    uint32_t stamp_key;
} rgr_head_t;

typedef struct rgr_hello {
    uint8_t nonce[16], from[16], to[16];
} rgr_hello_t;

/* rdma_wire.c: pure. get: NULL, or what is wrong. */
void rgr_head_put(uint8_t out[RGR_HEAD], const rgr_head_t *h);
const char *rgr_head_get(const uint8_t *in, uint32_t bytes, rgr_head_t *h);
void rgr_hello_put(uint8_t out[RGR_HELLO], const rgr_hello_t *h);
int rgr_hello_get(const uint8_t *in, uint32_t len, rgr_hello_t *h); /* 0 or -1 */
int rgr_hello_version(const uint8_t *in, uint32_t len);             /* of any version; 0: it is no greeting */
/* What to say of a request for a connection that was refused for this reason, with these bytes. */
void rgr_refusal(char *text, size_t cap, int reason, const uint8_t *data, uint32_t len);
uint32_t rgr_addr_put(uint8_t *out, const struct sockaddr_storage *a);
int rgr_addr_get(const uint8_t *in, uint32_t len, struct sockaddr_storage *a); /* 0 or -1 */
/* "device" or "device:port": 1 when this is it; 0: it is not; -1: it is no such name. */
int rgr_device_is(const char *wanted, const char *name, uint32_t port);

/* Memory for one message. */
typedef struct rgr_slot {
    struct rgr_slot *next;
    uint8_t *bytes;
    struct ibv_mr *mr;
    uint32_t index;
    uint32_t len; /* held: of the message */
    int told;     /* held: UNEXPECTED was reported */
} rgr_slot_t;

/* Memory of callers that the adapter knows. */
typedef struct rgr_mem {
    struct rgr_mem *next;
    uint64_t id; /* as in memory.h */
    uintptr_t from, to;
    struct ibv_mr *mr; /* NULL: the adapter would not have it */
    uint32_t uses;     /* windows in it, messages from and to it, and work of the adapter */
    int gone;          /* taken back by its owner: ends with its last use */
} rgr_mem_t;

/* Lets one peer read one message. */
typedef struct rgr_window {
    struct rgr_window *next;
    struct ibv_mw *mw;
    rgr_mem_t *mem; /* that it lies in, while it is open */
} rgr_window_t;

/* A message that is to be sent. One that was fenced stays, without its cookie, while the adapter or the peer may still
 * read it. */
typedef struct rgr_out {
    struct rgr_out *next;
    rg_tp_send_t s;
    uint32_t sid, rid, step; /* large ones */
    uint32_t busy;           /* pieces that the adapter has not delivered */
    int fenced;
    uint64_t offset, whole;
    rgr_mem_t *mem; /* NULL: it is copied */
    rgr_window_t *window;
} rgr_out_t;

typedef struct rgr_list {
    rgr_out_t *first, **tail;
} rgr_list_t;

/* A large message that comes in pieces, or is read. */
typedef struct rgr_in {
    struct rgr_in *next;
    rg_tp_recv_t r;
    uint64_t got, begun; /* begun: asked of the adapter */
    uint32_t rid, step;
    rgr_mem_t *mem; /* read: that it goes to; else NULL */
    uint64_t remote;
    uint32_t sid, key, busy; /* busy: reads under way */
    int told, fenced;        /* told: the peer knows that we need its memory no more */
} rgr_in_t;

/* Memory that the peer of a link may read when it likes (rdma_lend.c). */
typedef struct rgr_lease {
    struct rgr_lease *next;
    rg_tp_lend_t l;
    uint32_t sid;
    enum { RGR_LEASE_NEW, RGR_LEASE_TOLD, RGR_LEASE_ENDS, RGR_LEASE_RECALLED } state;
    rgr_mem_t *mem[2]; /* of the memory, of the stamp */
    rgr_window_t *window[2];
} rgr_lease_t;

/* Memory of the peer of a link that we may read. */
typedef struct rgr_lent {
    struct rgr_lent *next;
    uint64_t name, remote, bytes, stamp;
    uint32_t sid, key, stamp_key, uses;
    int recalled;
} rgr_lent_t;

/* A read of that: the stamp, the bytes, the stamp. */
typedef struct rgr_get {
    struct rgr_get *next;
    rg_tp_fetch_t f;
    rgr_lent_t *from;
    rgr_slot_t *slot; /* where the stamps arrive, and bytes that go to memory which is not registered */
    rgr_mem_t *mem;   /* that the bytes go to; NULL: to the slot */
    uint64_t begun;
    uint32_t part, busy;
    int stopped; /* its user has been told, and only the adapter is awaited */
} rgr_get_t;

/* What the adapter has been asked for. */
typedef struct rgr_work {
    uint32_t slot; /* RGR_NO_SLOT: none was needed */
    uint32_t bytes;
    int told; /* a completion says when it has ended */
    rgr_mem_t *mem;
    rgr_out_t *out;
    rgr_in_t *in;
    rgr_get_t *get;
    rgr_window_t *closes;
} rgr_work_t;

/* A large message that nobody has asked for; and an answer that waits for its turn. */
typedef struct rgr_rts {
    struct rgr_rts *next;
    rgr_type_t type; /* of an answer: CTS or GOT */
    rg_tag_t tag;
    uint64_t total, remote, whole;
    uint32_t sid, rid, step, key;
} rgr_rts_t;

/* What a link has beside its half of the mbox. */
typedef struct rgr_side {
    struct rdma_cm_id *id; /* NULL: no connection */
    uint32_t index, gen;   /* gen: of the connection, so that completions of an older one are known */
    uint32_t qpn, hash_next;
    int queue_pair, accepted, routed; /* routed: nothing but the group's nonce is missing to connect */
    uint32_t credits, owed;           /* messages that may be sent; that the peer has to hear may be sent again */
    uint32_t inline_max;
    uint32_t reads, reads_max, serves; /* under way; most at once; those of the peer that our adapter may answer */
    uint32_t sq_first, sq_n, unsignalled;
    uint32_t ended, ended_seen, stuck; /* work, in all; when it was looked at; looks since then */
    int peer_roomy;                    /* as in its last message */
    rgr_work_t sq[RGR_SQ];
    /* Not begun; announced; in pieces; all pieces are under way, or read by the peer; fenced, see rgr_out_t. */
    rgr_list_t queue, asked, flowing, ending, fenced;
    rgr_window_t *spent; /* to be closed */
    rgr_in_t *ins;
    rgr_rts_t *rts, *answers, **answers_tail;
    uint32_t n_rts, next_id;
    rgr_slot_t *held, **held_tail; /* messages that the mbox had no room for, in their order */
    uint32_t n_held;
    rgr_lease_t *leases;
    rgr_lent_t *lent;
    rgr_get_t *gets;
    uint32_t next_lease, lend_due,
        n_lent; /* lend_due: leases and what is lent to us of which the peer is to hear something */
    int note_due, turn, read_turn;
    uint64_t heard_by_ns, quiet_ns; /* something must be on its way every so often, or a dead peer is not noticed */
} rgr_side_t;

typedef struct rgr_pending { /* somebody who asked for a connection */
    struct rdma_cm_id *id;
    rgr_hello_t hello;
    uint64_t deadline;
} rgr_pending_t;

struct rg_tp {
    rg_mbox_t box;
    rgr_side_t **sides; /* as many as the box has links */
    uint32_t n_sides;
    uint8_t identity[16], nonce[16];
    int nonce_known;
    uint32_t heartbeat_ms;
    uint8_t traffic_class; /* 0: the system's */
    uint64_t note;
    uint64_t part_of; /* what is sent or received next is a part of so many bytes; 0: it is whole */
    int source;       /* connections begin at our address: the device was named */
    struct rdma_event_channel *events;
    struct rdma_cm_id *listener;
    struct ibv_context *device; /* the listener's */
    struct ibv_pd *pd;
    struct ibv_comp_channel *ready;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    int epoll;
    uint32_t next_gen, cq_room;
    int drained;                        /* the completion queue was empty when it was looked at last */
    int roomy;                          /* see rgr_head_t */
    rgr_slot_t *chunks[RGR_CHUNKS_MAX]; /* of slots to receive in */
    rgr_slot_t *send_chunks[RGR_SEND_CHUNKS];
    uint32_t n_chunks, n_send_chunks, srq_max;
    rgr_slot_t *free_sends;
    rgr_mem_t *mems;
    uint64_t mems_seen; /* generation of memory.h */
    rgr_window_t *windows;
    uint32_t n_windows, n_fenced; /* n_fenced: receives whose reads a fence waits for */
    uint32_t n_leases, n_gets;
    int direct, windowed;     /* memory of callers may be registered; and windows made in it */
    uint64_t copied, reduced; /* bytes, by the processor */
    void (*log)(void *user, rg_log_level_t level, const char *line);
    void *log_user;
    uint32_t by_qpn[RGR_HASH]; /* link + 1 */
    rgr_pending_t pending[RGR_PENDING_MAX];
    uint32_t n_pending;
    uint64_t looked_ns, next_timer;
};

/* rdma_conn.c */
rg_status_t rgr_open_device(rg_tp_t *tp, const rg_tp_config_t *c, uint8_t *addr, uint32_t *addr_len, rg_error_t *err);
void rgr_close_device(rg_tp_t *tp);
rg_status_t rgr_dial(rg_tp_t *tp, uint32_t link, const rg_tp_peer_t *peer, rg_error_t *err);
void rgr_accept_pending(rg_tp_t *tp, uint64_t now);
void rgr_nonce_known(rg_tp_t *tp);
void rgr_events(rg_tp_t *tp, uint64_t now);  /* of connections and of the device */
void rgr_unlink(rg_tp_t *tp, rgr_side_t *s); /* ends the connection, if there is one; no event is told */
void rgr_up(rg_tp_t *tp, uint32_t link);     /* if it is not up already */
void rgr_down(rg_tp_t *tp, uint32_t link, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
rgr_side_t *rgr_side_of_qpn(rg_tp_t *tp, uint32_t qpn);

/* rdma_msg.c */
int rgr_slots_grow(rg_tp_t *tp, uint32_t links); /* slots to receive in for so many; 0 or an errno */
int rgr_send_slots(rg_tp_t *tp);                 /* 0 or an errno */
void rgr_slots_free(rg_tp_t *tp);
void rgr_post_slot(rg_tp_t *tp, rgr_slot_t *slot);
void rgr_completions(rg_tp_t *tp);
void rgr_pump(rg_tp_t *tp, rgr_side_t *s); /* sends what can be sent */
void rgr_probe(rg_tp_t *tp, rgr_side_t *s);
/* 1: it meets a large one that has been announced. whole: see rgr_head_t. */
int rgr_want(rg_tp_t *tp, rgr_side_t *s, const rg_tp_recv_t *r, uint64_t whole);
void rgr_held_again(rg_tp_t *tp, rgr_side_t *s);
void rgr_cancel(rg_tp_t *tp, rgr_side_t *s, uint64_t below, rg_tp_status_t st); /* below 0: everything */
void rgr_list_init(rgr_list_t *l);
void rgr_fence_wait(rg_tp_t *tp);                 /* until no receive that was fenced can be written to */
void rgr_work_forget(rg_tp_t *tp, rgr_side_t *s); /* the queue pair is gone, and with it what it was asked for */

/* rdma_watch.c */
int rgr_given_up(rg_tp_t *tp, rgr_side_t *s); /* with each probe; 1: the link is down */

int rgr_room(const rgr_side_t *s, uint32_t n);
/* Of these three: 1: done; 0: not now; -1: the link is down, and what belonged to it is gone. */
int rgr_hand_over(rg_tp_t *tp, rgr_side_t *s, struct ibv_send_wr *wr, rgr_work_t work);
int rgr_post_head(rg_tp_t *tp, rgr_side_t *s, rgr_head_t *h);
/* Lets the peer read that: the adapter does it before it sends what comes behind. *at is filled in before. */
int rgr_window_open(rg_tp_t *tp, rgr_side_t *s, rgr_mem_t *mem, const void *from, uint64_t bytes, rgr_window_t **at);
void rgr_window_spent(rgr_side_t *s, rgr_window_t **at); /* nobody reads by it any more, or was ever told of it */

/* rdma_lend.c */
int rgr_lend(rg_tp_t *tp, uint32_t link, const rg_tp_lend_t *lend); /* as in the table, and so on */
void rgr_reclaim(rg_tp_t *tp, uint64_t name);
int rgr_fetch(rg_tp_t *tp, uint32_t link, const rg_tp_fetch_t *fetch);
void rgr_unfetch(rg_tp_t *tp, uint32_t link, uint64_t cookie);
int rgr_lend_tell(rg_tp_t *tp, rgr_side_t *s);  /* says one thing that is due, as above */
int rgr_lend_read(rg_tp_t *tp, rgr_side_t *s);  /* begins one read, as above */
void rgr_lend_ends(rg_tp_t *tp, rgr_side_t *s); /* the link does */
void rgr_get_read(rg_tp_t *tp, rgr_side_t *s, rgr_get_t *get);
const char *rgr_on_lending(rg_tp_t *tp, rgr_side_t *s, const rgr_head_t *h); /* NULL, or what is wrong */

/* rdma_mem.c */
rgr_mem_t *rgr_mem_get(rg_tp_t *tp, const void *p, uint64_t bytes); /* NULL: it is not registered, and is copied */
void rgr_mem_use(rgr_mem_t *m);
void rgr_mem_put(rg_tp_t *tp, rgr_mem_t *m);
void rgr_mem_look(rg_tp_t *tp); /* lets go what has been taken back */
void rgr_mem_free(rg_tp_t *tp);
rgr_window_t *rgr_window_new(rg_tp_t *tp); /* NULL: there is none */
void rgr_window_closed(rg_tp_t *tp, rgr_window_t *w);
void rgr_window_drop(rg_tp_t *tp, rgr_window_t *w); /* at once */

#endif
