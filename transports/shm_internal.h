/* shm_internal.h: what the files of the shared memory transport share. A link is a peer: a Unix socket that carries
 * the greeting, descriptors, doorbells and the news of death, and two segments of shared memory, one written by each
 * side. A segment is a ring of frames and a few words; the other side maps it for reading only.
 *   shm.c        the table: open, close, send, recv, note, fence, drop, poll, arm
 *   shm_conn.c   the listening socket, dialling, the handshake, strangers, the end of a link
 *   shm_map.c    segments, and regions of a peer that are mapped here
 *   shm_tx.c     frames going out
 *   shm_rx.c     frames coming in, matching, sinks
 *   shm_pull.c   large messages, which the receiver fetches out of the sender's memory
 *   shm_lent.c   what of our memory peers have read: the cache holds it in a way that is slow to write
 * Nothing here locks (rule T2), calls back (rule T1) or trusts what it reads from a peer. */
#ifndef RG_SHM_INTERNAL_H
#define RG_SHM_INTERNAL_H

#include "observe/log.h"
#include "os/os.h"
#include "os/shared.h"
#include "regroup_transport.h"
#include "ring.h"

#define RING_MOST (256u << 10)
#define RING_LEAST (64u << 10)
#define RING_ROOMY 8u          /* so many links have large rings; with more, memory counts */
#define INLINE_MAX (32u << 10) /* longer messages are fetched by the receiver; with small rings, an eighth of those */
#define REGION_INLINE_MAX (16u << 10)
#define PART_MAX (16u << 10) /* or go through the ring in such pieces; a frame is less than 3/8 of the least ring */
#define SLOTS 768u           /* large messages under way per link and direction: those that nobody asked for yet too */
#define REGIONS_MAX 256u     /* regions of a peer that are mapped */
#define UNASKED_MAX (16u << 20) /* per link: bytes kept of messages that nobody has asked for yet */
#define UNASKED_COUNT_MAX 4096u
#define STRANGERS_MAX 64
#define PARKED_MAX 64
#define LINKS_MAX 65536u
#define SCRATCH (128u << 10) /* stays in the second-level cache beside what it is reduced into */
#define TURN (1u << 20)      /* bytes fetched per link and poll: then others have their turn */
#define HOT (8u << 10)       /* of a reduction that is written past the cache: stays in L1 on its way */
#define LENT_MAX 32u
#define NAME_BYTES 16
#define STRANGER_NS (5 * 1000000000ull)
#define PARKED_NS (30 * 1000000000ull)
#define NEVER UINT64_MAX

/* ---- In shared memory ---- */

typedef enum frame_type {
    FRAME_DATA = 1, /* a whole message */
    FRAME_LARGE,    /* large_t: where it lies */
    FRAME_ACK,      /* slot_t[]: these were consumed, or thrown away */
    FRAME_PUSH,     /* tag.ord, sig: send the message of this slot through the ring; tag.epoch: in pieces of so many;
                     * tag.gen: from here on */
    FRAME_PART,     /* tag.ord, sig: slot; tag.epoch: offset */
    FRAME_GONE,     /* tag.epoch: a region that is no more */
    FRAME_NOTE,
    FRAME_PAD /* the rest of the ring is empty */
} frame_type_t;

/* The mark makes a frame valid. It is the writer's key plus the frame's position in the stream: what an older frame
 * left at this place cannot be mistaken for it, and the reader looks at one cache line only. */
typedef struct frame {
    uint64_t mark;
    uint32_t len; /* of the payload: in `tiny` when it fits, else from the next cache line on */
    uint8_t type;
    uint8_t zero[3];
    uint64_t note;
    rg_tag_t tag;
    uint8_t tiny[8];
} frame_t;
_Static_assert(sizeof(frame_t) == 64, "a frame's head is one cache line");

typedef struct slot_id {
    uint32_t slot, gen;
} slot_id_t;

typedef struct large {
    uint64_t total;
    uint64_t addr;        /* in the sender's address space */
    uint64_t region, off; /* 0: lies in none */
    slot_id_t id;
} large_t;

#define SEGMENT_MAGIC 0x31746e656d676552ull
#define SEGMENT_HEAD 4096u

/* One writer for all of it: the side that made it. */
typedef struct segment {
    uint64_t magic, key;
    uint8_t challenge[16];
    uint8_t pad0[32];
    uint8_t echo[16]; /* the other side's challenge, as read in its segment */
    uint8_t pad1[48];
    uint64_t consumed; /* how far the other side's ring has been read */
    uint8_t pad2[56];
    uint32_t sleep;   /* odd: asleep; ring the bell once for each value */
    uint32_t starved; /* asleep until there is room */
    uint32_t cpu;     /* where it last polled, + 1; 0: not said */
    uint8_t pad3[52];
    uint32_t gen[SLOTS]; /* of the large message in the slot: when it moves on, what was read meanwhile is void */
    uint8_t pad4[SEGMENT_HEAD - 256 - SLOTS * 4];
    uint8_t ring[];
} segment_t;
_Static_assert(sizeof(segment_t) == SEGMENT_HEAD, "the ring begins on a page");

#define LOAD(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define LOAD_ACQUIRE(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define STORE(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)
#define STORE_RELEASE(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
/* ThreadSanitizer has no fences, and gcc says so; an operation on memory of our own does as well, and costs more. */
#ifdef __SANITIZE_THREAD__
static inline void rgm_fence(void) {
    uint32_t own = 0;
    (void)__atomic_exchange_n(&own, 1, __ATOMIC_SEQ_CST);
}
#define FENCE() rgm_fence()
#define FENCE_READS() rgm_fence()
#else
#define FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define FENCE_READS() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#endif

/* ---- Sets of slots ---- */

/* A summary word says which of the others are not empty: the common questions cost one look. */
typedef struct slots {
    uint64_t any, word[SLOTS / 64];
} slots_t;

static inline void rgm_slots_add(slots_t *s, uint32_t slot) {
    s->word[slot / 64] |= 1ull << slot % 64;
    s->any |= 1ull << slot / 64;
}

static inline void rgm_slots_remove(slots_t *s, uint32_t slot) {
    s->word[slot / 64] &= ~(1ull << slot % 64);
    if (!s->word[slot / 64]) s->any &= ~(1ull << slot / 64);
}

/* The least one from `from` on; SLOTS when there is none. */
static inline uint32_t rgm_slots_next(const slots_t *s, uint32_t from) {
    for (; from < SLOTS; from = (from / 64 + 1) * 64) {
        uint64_t left = s->word[from / 64] >> from % 64;
        if (left) return from + (uint32_t)__builtin_ctzll(left);
        if (!(s->any >> from / 64 >> 1)) break;
    }
    return SLOTS;
}

/* ---- On the socket ---- */

enum { PACKET_HELLO = 1, PACKET_ACCEPT, PACKET_OFFER, PACKET_READY, PACKET_REGION };

/* Both sides run on one host, so its byte order is the wire's. A packet of one byte is the doorbell. */
typedef struct packet {
    char magic[4];
    uint8_t version, kind;
    uint16_t zero;
    uint32_t ring; /* ACCEPT, OFFER: bytes of the ring in the segment that comes with it */
    uint32_t zero2;
    uint8_t nonce[16], from[16], to[16];
    uint64_t witness_addr; /* ACCEPT, OFFER: where the bytes below lie in the sender's memory */
    uint8_t witness[16];
    uint64_t region, region_len;
} packet_t;
_Static_assert(sizeof(packet_t) == 104, "no holes");

/* ---- Operations ---- */

typedef struct send_op {
    struct send_op *next;
    rg_tp_send_t s;
    slot_id_t id;   /* of a large message that was announced */
    uint32_t piece; /* not 0: goes through the ring in such pieces, */
    uint64_t off;   /* and has come this far */
} send_op_t;

typedef enum pull_how { PULL_NONE, PULL_REGION, PULL_COPY, PULL_PUSHED } pull_how_t;

typedef struct recv_op {
    struct recv_op *next;
    rg_tp_recv_t r;
    pull_how_t how;
    uint8_t bound; /* no other message may fill it */
    uint8_t timed; /* counts for what the link learns of its ways */
    uint8_t past;  /* its sink is written past the cache */
    uint8_t dead;  /* its message was taken back while we read: ends with its epoch or its link */
    large_t large;
    const uint8_t *from; /* PULL_REGION */
    uint64_t got;
} recv_op_t;

typedef struct unasked {
    struct unasked *next;
    rg_tag_t tag;
    uint64_t len;
    uint8_t is_large;
    large_t large;
    uint8_t bytes[];
} unasked_t;

/* ---- Connections ---- */

enum { EV_LISTENER = 1, EV_CONN, EV_PROCESS };

struct link;

typedef enum conn_state {
    CONN_STRANGER, /* accepted, has not said HELLO yet */
    CONN_PARKED,   /* said HELLO, but nobody here waits for it yet */
    CONN_LINK,
    CONN_DEAD /* freed at the end of the poll: events of it may still be in hand */
} conn_state_t;

typedef struct conn {
    int ev; /* EV_CONN; first, epoll's pointer leads here */
    int fd;
    conn_state_t state;
    struct conn *next, **prev; /* list of all, oldest first */
    struct link *link;
    uint64_t deadline;
    packet_t hello; /* PARKED */
} conn_t;

typedef enum link_state {
    LINK_FREE,
    LINK_DIALING,   /* not connected yet: their queue is full, or we do not know the nonce yet */
    LINK_GREETING,  /* our HELLO is out */
    LINK_OFFERED,   /* our segment is out */
    LINK_WAITING,   /* for their HELLO */
    LINK_ACCEPTING, /* our segment is out, theirs is not in */
    LINK_UP,
    LINK_DOWN
} link_state_t;

/* Memory that a peer has read. */
typedef struct lent {
    uintptr_t from, to;
} lent_t;

#define WAY_SIZES 3 /* what is quicker for little need not be for much */
typedef struct way {
    uint8_t pushed, void_; /* this time: through the ring; and nothing is to be learnt from it */
    uint8_t size;          /* class of the first message of this time */
    uint32_t busy;         /* messages under way */
    uint64_t since, bytes;
    uint32_t periods[WAY_SIZES]; /* how often there were any */
    uint64_t cost[WAY_SIZES][2]; /* of 1 MiB in ns, fetched and pushed; 0: not known */
} way_t;

typedef struct mapped {
    uint64_t id;
    uint8_t *base; /* NULL: could not be mapped; fetched in another way */
    size_t len;
} mapped_t;

typedef struct link {
    int ev;    /* EV_PROCESS; first, epoll's pointer leads here */
    int pidfd; /* of the peer; -1: the socket alone tells */
    link_state_t state;
    uint32_t index;
    uint8_t identity[16], name[NAME_BYTES];
    uint64_t deadline, retry_at, backoff;
    uint32_t timeout_ms;
    conn_t *conn;
    int32_t pid;
    uint64_t witness_addr;
    uint8_t witness[16];
    uint8_t can_copy;                    /* process_vm_readv works */
    way_t way;                           /* of private memory while any of it is under way here: see shm_pull.c */
    uint64_t run_gen, run_op, run_bytes; /* of private memory that came for one operation: see is_bulk() there */
    /* Going out. */
    segment_t *out;
    uint32_t out_ring;
    uint64_t wpos, seen;               /* written; known to be read */
    uint32_t woken;                    /* the sleep we rang the bell for */
    send_op_t *send_head, **send_tail; /* not begun */
    send_op_t *slot[SLOTS];            /* announced */
    slots_t slots_used, slots_pushing;
    slots_t ack_owed;
    uint32_t ack_gen[SLOTS];
    slots_t push_owed; /* requests that found no room */
    uint64_t *told;    /* regions that the peer has been told of, */
    uint32_t n_told, told_hint;
    uint64_t told_generation;
    uint64_t *gone; /* and those it must still hear the end of */
    uint32_t n_gone;
    uint8_t note_owed;
    int8_t slow_lines; /* above 0: writing what both processors hold is slow between them */
    uint32_t fills;
    /* Coming in. */
    const segment_t *in;
    uint32_t in_ring;
    uint64_t in_key;
    uint64_t rpos, published;
    uint64_t told_at; /* rpos + 1 of a message that was told of */
    uint8_t stalled;  /* the frame at rpos waits for a receive */
    uint8_t broken;   /* something on the socket that no peer of ours sends */
    recv_op_t *recv_head, **recv_tail;
    uint32_t n_pulls;
    recv_op_t *pushed[SLOTS]; /* PULL_PUSHED */
    unasked_t *unasked, **unasked_tail;
    uint64_t unasked_bytes;
    uint32_t unasked_count;
    mapped_t *mapped;
    uint32_t n_mapped, mapped_hint;
    uint64_t note_in;
    uint8_t note_dirty;
    /* What rgm_peek() showed last. */
    frame_t shown;
    uint32_t shown_size;      /* in the ring; 0: nothing is shown */
    unasked_t *shown_unasked; /* not NULL: it is this one */
    uint64_t sent, received;
    char text[320];
} link_t;

struct rg_tp {
    rg_tp_config_t cfg;
    uint8_t nonce_known, armed;
    int ev_listener; /* EV_LISTENER */
    int listener, epoll;
    uint8_t name[NAME_BYTES];
    uint8_t *memory; /* begins with the witness: who can read it here reads our memory */
    conn_t *conns, **conns_tail;
    uint32_t n_strangers, n_parked, n_greeting;
    conn_t *grave;
    link_t **links;
    uint32_t n_links;
    link_t **up;          /* those that are up, dense */
    uint32_t n_up, cores; /* cores: that this process may use */
    uint32_t n_notes;
    uint64_t fence, note;
    uint8_t noted;
    send_op_t *free_sends;
    recv_op_t *free_recvs;
    uint32_t n_ops;
    const recv_op_t *now_op; /* the receive that recv() is just posting; NULL when it finished at once */
    rg_ring_t ring;
    uint8_t *scratch, *hot;
    lent_t lent[LENT_MAX];
    uint32_t n_lent, lent_next, lent_uses, lent_samples;
    double lent_ns; /* what a line of it costs more to write than another */
    uint32_t polls;
    uint64_t next_timer, resume_listen;
    uint64_t sent, received;
};

/* For tests: what a host may forbid, and the instant between reading a peer's memory and believing what was read. */
typedef struct rg_shm_hooks {
    int no_copy;     /* process_vm_readv does not work */
    int no_regions;  /* regions are not mapped */
    int never_push;  /* what can be fetched is */
    int no_validate; /* a planted bug: what was read is believed at once */
    void (*between)(void *arg);
    void *arg;
} rg_shm_hooks_t;
extern rg_shm_hooks_t rg_shm_hooks;

/* ---- shm.c ---- */
int rgm_ring_reserve(rg_tp_t *tp, uint32_t more);
void rgm_send_done(rg_tp_t *tp, link_t *l, send_op_t *op, rg_tp_status_t st);
void rgm_recv_done(rg_tp_t *tp, link_t *l, recv_op_t *op, rg_tp_status_t st, const rg_tag_t *came);
void rgm_recv_unlink(link_t *l, recv_op_t *op);
void rgm_log(rg_tp_t *tp, rg_log_level_t level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- shm_conn.c ---- */
rg_status_t rgm_listen(rg_tp_t *tp, uint8_t *blob, uint32_t *len, rg_error_t *err);
int rgm_blob_get(const uint8_t *blob, uint32_t len, uint8_t name[NAME_BYTES]);
void rgm_dial(rg_tp_t *tp, link_t *l);
void rgm_await(rg_tp_t *tp, link_t *l, int probe);
void rgm_nonce_known(rg_tp_t *tp);
void rgm_accept(rg_tp_t *tp);
void rgm_conn_event(rg_tp_t *tp, conn_t *c);
void rgm_process_event(rg_tp_t *tp, link_t *l);
int rgm_socket_drain(link_t *l); /* takes what lies on the link's socket; -1 at its end */
void rgm_timers(rg_tp_t *tp, uint64_t now);
void rgm_timer_at(rg_tp_t *tp, uint64_t when);
void rgm_conn_close(rg_tp_t *tp, conn_t *c);
void rgm_bury(rg_tp_t *tp);
void rgm_link_fail(rg_tp_t *tp, link_t *l, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Ends everything pending on the link, takes back its buffers, closes it; the caller tells. */
void rgm_link_clear(rg_tp_t *tp, link_t *l);

/* ---- shm_map.c ---- */
rg_status_t rgm_segment_make(link_t *l, uint32_t ring, int *fd, rg_error_t *err);
const char *rgm_segment_attach(link_t *l, int fd, uint32_t ring); /* NULL, or what is wrong with it */
void rgm_segments_free(link_t *l);
void rgm_try_copy(link_t *l);
/* The region that holds a buffer, told to the peer before; 0 when there is none. */
uint64_t rgm_region_tell(link_t *l, const void *p, uint64_t len, uint64_t *off);
void rgm_regions_check(link_t *l); /* looks for regions that are no more */
void rgm_region_learn(link_t *l, uint64_t id, uint64_t len, int fd);
void rgm_region_forget(link_t *l, uint64_t id);
mapped_t *rgm_region_find(link_t *l, uint64_t id);

/* ---- shm_tx.c ---- */
void rgm_bell(link_t *l);
int rgm_send_now(rg_tp_t *tp, link_t *l, const rg_tp_send_t *s); /* 1: done; it fitted in the ring */
int rgm_push(rg_tp_t *tp, link_t *l); /* whatever has to go out and fits; 1 when something did */
void rgm_acked(rg_tp_t *tp, link_t *l, slot_id_t id);
void rgm_push_asked(link_t *l, slot_id_t id, uint64_t piece, uint64_t from);
/* Takes back the buffers of announced messages of lower epochs (UINT64_MAX: all). */
void rgm_revoke(rg_tp_t *tp, link_t *l, uint64_t epoch, rg_tp_status_t st);
int rgm_tx_waits(const link_t *l);

/* ---- shm_rx.c ---- */
int rgm_rx(rg_tp_t *tp, link_t *l); /* frames taken; -1: the link is gone */
int rgm_rx_ready(const link_t *l);
const void *rgm_peek(rg_tp_t *tp, link_t *l, const rg_tag_t *tag, uint64_t len);
uint64_t rgm_taken(rg_tp_t *tp, link_t *l);
void rgm_publish(link_t *l);
int rgm_from_unasked(rg_tp_t *tp, link_t *l, recv_op_t *op); /* 1: its message is here already */
void rgm_unasked_fence(link_t *l, uint64_t epoch);
void rgm_unasked_free_all(link_t *l);
void rgm_sink(const rg_tp_recv_t *r, const void *p, uint64_t off, uint64_t n);
void rgm_owe_ack(link_t *l, slot_id_t id);

/* ---- shm_pull.c ---- */
void rgm_pull_begin(rg_tp_t *tp, link_t *l, recv_op_t *op, const large_t *m);
void rgm_pull_end(link_t *l, recv_op_t *op); /* nothing fills it any more */
void rgm_pulls(rg_tp_t *tp, link_t *l);
int rgm_part(rg_tp_t *tp, link_t *l, slot_id_t id, uint64_t off, const uint8_t *p, uint32_t n);

/* ---- shm_lent.c ---- */
void rgm_lent_add(rg_tp_t *tp, const void *p, uint64_t len);
int rgm_lent_take(rg_tp_t *tp, const void *p, uint64_t len); /* whether some of it was; none is any more */

#endif
