/* tcp_internal.h: what the files of the TCP transport share. A link is a peer; a link has one or more rails, each a
 * TCP connection; each rail carries frames (a header, at most SEGMENT bytes of one message, and without TLS a mark that
 * says that they have ended).
 *   tcp.c        the table: open, close, send, recv, note, fence, drop, poll, arm
 *   tcp_conn.c   listening, dialling, the handshake, strangers, liveness, the end of a link
 *   tcp_send.c   cutting messages into frames and handing them to the kernel
 *   tcp_recv.c   taking frames apart, matching, sinks
 *   tcp_keep.c   what was sent and is not acknowledged, so that it can be sent again
 *   tcp_heal.c   connections that broke: made again, and continued from the byte where they stopped
 *   tcp_tune.c   congestion control, pacing and buffers, by measurement
 *   tcp_wire.c   bytes of headers and address blobs
 * Nothing here locks (rule T2) and nothing calls back (rule T1). */
#ifndef RG_TCP_INTERNAL_H
#define RG_TCP_INTERNAL_H

#include "observe/log.h"
#include "os/os.h"
#include "os/tls.h"
#include "regroup_transport.h"
#include "ring.h"

#include <netinet/in.h>

#define FRAME_BYTES 80
#define END_BYTES 8
#define HELLO_BYTES 80
#define SEGMENT (256u << 10)    /* most payload of one frame; a multiple of every element size */
#define READ_BUFFER (68u << 10) /* per rail: headers and small messages, several per read */
#define STAGING (256u << 10)    /* one per endpoint: large reductions pass through it while they are in cache */
#define PEEK_DIRECT (16u << 10) /* a copying receive from this size on is read straight into place */
#define UNASKED_MAX (16u << 20) /* per link: bytes kept of messages that nobody has asked for yet */
#define UNASKED_COUNT_MAX 4096u /* per link: their number, so that empty messages are bounded too */
#define STRANGERS_MAX 64
#define PARKED_MAX 64
#define VISITORS_MAX 64
#define RAILS_MAX 16
#define ADDRS_MAX 8
#define LINKS_MAX 65536u
#define DIRECT_RAILS 8 /* up to this many rails are read without asking epoll first */
#define STRANGER_NS (5 * 1000000000ull)
#define PARKED_NS (30 * 1000000000ull)
#define NEVER UINT64_MAX
#define RGT_BEGUN_ANEW "the peer has given this link up and begins it anew"

/* ---- Wire (tcp_wire.c) ---- */

/* ACK: `offset` bytes of the stream in the other direction have arrived; where no kernel can say so. */
enum { FRAME_DATA = 1, FRAME_NOTE = 2, FRAME_ACK = 3 };

typedef struct frame {
    uint8_t type;
    uint32_t len;      /* payload bytes that follow */
    uint32_t note_seq; /* rails overtake each other: the larger one is the newer note */
    uint64_t note;
    uint64_t mseq; /* number of the message on this link: what holds its segments together */
    uint64_t offset, total;
    uint64_t mark; /* of a header that came: what its end is told by */
    rg_tag_t tag;
} frame_t;

void rgt_frame_put(uint8_t out[FRAME_BYTES], const frame_t *f);
/* Returns NULL, or what is wrong with it. */
const char *rgt_frame_get(const uint8_t in[FRAME_BYTES], frame_t *f);
uint32_t rgt_frame_check(const uint8_t in[FRAME_BYTES]); /* 24 bits that must be in it */
/* What stands behind the payload, and whether it does. */
void rgt_frame_end(uint8_t out[END_BYTES], const uint8_t head[FRAME_BYTES]);
int rgt_frame_ends(const uint8_t in[END_BYTES], const frame_t *f);

/* DIAL is answered by ACK; RESUME, which continues the stream of a rail that broke, by RESUMED, by BUSY when the other
 * end is just doing the same the other way round, or by GONE when there is no such link any more. RELAY asks a third
 * process for its peer `to`, and is answered by RELAYED or, when that may not be or not yet, by BUSY. */
enum {
    HELLO_DIAL = 1,
    HELLO_ACK = 2,
    HELLO_RESUME = 3,
    HELLO_RESUMED = 4,
    HELLO_BUSY = 5,
    HELLO_GONE = 6,
    HELLO_RELAY = 7,
    HELLO_RELAYED = 8
};

typedef struct hello {
    uint8_t kind;
    uint8_t nonce[16];
    uint8_t from[16], to[16];
    uint64_t attempt; /* all rails of one connect() say the same */
    uint16_t rail, rails;
    uint64_t taken; /* RESUME, RESUMED: bytes of the rail's stream that have arrived there */
    uint32_t tries; /* RESUME: its number; RESUMED: of the last RESUME in the other direction, which is void now */
} hello_t;

void rgt_hello_put(uint8_t out[HELLO_BYTES], const hello_t *h);
int rgt_hello_get(const uint8_t in[HELLO_BYTES], hello_t *h); /* 0 when it is one */

/* outward: who has these addresses can only dial. */
uint32_t rgt_blob_put(uint8_t out[RG_TP_ADDR_MAX], const struct sockaddr_storage *a, int n, int outward);
int rgt_blob_outward(const uint8_t *blob, uint32_t len);
int rgt_blob_get(const uint8_t *blob, uint32_t len,
                 struct sockaddr_storage out[ADDRS_MAX]); /* how many; -1: not a blob */
socklen_t rgt_salen(const struct sockaddr_storage *a);

/* ---- Operations ---- */

typedef struct send_op {
    struct send_op *next;
    rg_tp_send_t s;
    uint64_t mseq;
    uint64_t next_off;  /* cut into frames up to here */
    uint32_t in_flight; /* frames of it that rails have not handed to the kernel yet */
    uint32_t cut;       /* all of it is in frames */
    uint32_t kept;      /* pieces of its buffer that rails may have to send again */
} send_op_t;

typedef struct recv_op {
    struct recv_op *next;
    rg_tp_recv_t r;
    uint64_t mseq;    /* once bound */
    uint64_t claimed; /* bytes of frames that were begun, on whatever rail: never more than the message has, so that */
    uint64_t got;     /* when all of it has come no rail is still writing */
    uint64_t cover;   /* where they begin and end: rgt_rx tells by it whether they cover the message once */
    uint32_t bound;
} recv_op_t;

/* A message, or the rest of one, that has no receive: kept, or thrown away as it comes. */
typedef struct unasked {
    struct unasked *next;
    rg_tag_t tag;
    uint64_t mseq, total, claimed, got, cover; /* as in recv_op */
    uint8_t *bytes;                            /* NULL: thrown away */
} unasked_t;

/* ---- Connections ---- */

typedef enum conn_state {
    CONN_DIALING,  /* connect() is under way, or waits for its next try (fd -1) */
    CONN_SECURING, /* connected, the TLS handshake is under way */
    CONN_GREETING, /* our HELLO is out, the answer is not in */
    CONN_STRANGER, /* accepted, has not said HELLO yet */
    CONN_PARKED,   /* said HELLO, but nobody here waits for it yet */
    CONN_VISITOR,  /* speaks the control protocol: waits to be taken by rgt_visitor() */
    CONN_RAIL,
    CONN_HALF,   /* at a relay: one that waits for the other */
    CONN_RELAY,  /* and one whose bytes go to its mate */
    CONN_BROKEN, /* a rail without a connection: it is being made again */
    CONN_DEAD    /* freed at the end of the poll: events of it may still be in hand */
} conn_state_t;

enum { EV_LISTENER = 1, EV_CONN = 2 };

struct link;

/* What is known of a connection's speed (tcp_tune.c). */
typedef struct tune {
    uint64_t sent, next_at;  /* payload bytes that left here; where the sample under way ends */
    uint64_t acked, busy_us; /* as the kernel counted when it began */
    double rate[2];          /* bytes per microsecond with each candidate */
    char name[2][16];
    int now; /* candidate in use; 0: reno, 1: the system's */
    int same, buffer, far;
    int untimed;    /* no round trip is known for sure: nothing is chosen */
    uint32_t frame; /* most payload of a frame; 0: SEGMENT */
    uint32_t trial;
    uint32_t rest; /* looks until the next trial */
} tune_t;

typedef struct tune_sample {
    uint64_t acked, busy_us;
    uint32_t min_rtt_us;
} tune_sample_t;

/* What a rail may have to send again (tcp_keep.c). Offsets count the bytes of the rail's stream, from its first on. */
typedef struct kept {
    uint64_t at;
    uint64_t pos; /* in the ring */
    uint32_t len;
    send_op_t *op;       /* its buffer, */
    const uint8_t *data; /* here; */
    struct segment *own; /* or memory of ours, at data; or, with neither, the ring */
} kept_t;

typedef struct segment {
    struct segment *next;
    uint8_t bytes[];
} segment_t;

typedef struct keep {
    kept_t *v; /* a queue; cap is 0 or a power of two */
    uint32_t cap, head, n;
    uint8_t *ring;
    uint64_t ring_cap, ring_from, ring_to; /* positions that only grow */
    uint64_t from, end;                    /* what is kept; the frame in hand begins at end */
} keep_t;

typedef struct conn {
    int ev; /* EV_CONN; first, epoll's pointer leads here */
    int fd;
    conn_state_t state;
    struct conn *next, **prev; /* list of all, oldest first */
    struct rg_tp *tp;
    rg_tls_t *tls;     /* NULL: without TLS, or a STRANGER whose first message has not come */
    struct link *link; /* DIALING, SECURING, GREETING, RAIL, BROKEN */
    uint32_t rail;
    uint32_t interest;             /* what epoll has been told */
    uint64_t deadline;             /* of the state; RAIL: when to look whether the peer still answers */
    uint64_t retry_at, backoff_ns; /* BROKEN: of the next try to make it again */
    struct conn *healer;           /* BROKEN: the connection that is to take its place; there: the rail */
    uint64_t patience_ns;          /* of one such try */
    struct conn *mate;             /* RELAY */
    uint8_t relayed, met;          /* it leads to a relay; which has brought us together with the peer */
    uint8_t probe;                 /* only to see whether the peer can be reached directly */
    uint8_t direct_next, turn;     /* BROKEN: it can; tries so far */
    uint32_t refused;              /* there: addresses at which nothing listens */
    int addr_index;
    hello_t hello; /* STRANGER, PARKED */
    uint8_t hello_bytes[HELLO_BYTES];
    uint32_t hello_n;
    uint8_t *rbuf; /* READ_BUFFER, of a RAIL */
    uint32_t rpos, rend;
    /* The frame being received. */
    uint8_t in_body, stalled, rx_eof;
    frame_t f;
    uint32_t done;     /* payload bytes of it that were taken */
    recv_op_t *rx;     /* sink; or */
    unasked_t *kept;   /* sink; or both NULL: thrown away */
    uint8_t carry[16]; /* the first bytes of an element whose rest has not come yet */
    uint32_t carry_n;
    /* The frame being sent. */
    uint8_t tx_busy, tx_blocked;
    uint32_t tx_head_sent, tx_len, tx_sent; /* sent: of the payload and its end */
    uint32_t tx_end;                        /* bytes of that: END_BYTES, or 0 */
    uint8_t tx_head[FRAME_BYTES], tx_tail[END_BYTES];
    const uint8_t *tx_data;
    uint8_t *tx_private; /* owns tx_data after a fence */
    send_op_t *tx_op;    /* NULL: a note, or an operation that was fenced */
    tune_t tune;
    /* What survives the connection. */
    uint32_t tries, peer_tries; /* to make it again: begun here; the last one of the peer that is void */
    uint8_t asked;              /* for a sign of life, at retry_at */
    uint8_t app_acks;           /* what arrives is acknowledged by FRAME_ACK: the kernel's word is not the peer's */
    uint8_t ack_owed;
    uint64_t ack_told;
    uint64_t rx_off; /* bytes of the stream taken from the kernel */
    uint8_t *saved;  /* those of them that the last connection still held when it was given up */
    uint32_t saved_n, saved_at;
    uint8_t replaying;  /* what is kept is being sent again, */
    uint64_t replay_at; /* from here on, before the frame in hand */
    uint64_t tx_base;   /* where this connection began */
    keep_t keep;
} conn_t;

typedef enum link_state { LINK_FREE, LINK_DIALING, LINK_WAITING, LINK_UP, LINK_DOWN } link_state_t;

typedef struct link {
    link_state_t state;
    uint32_t index;
    uint8_t identity[16];
    struct sockaddr_storage addr[ADDRS_MAX];
    int addrs;
    uint64_t deadline; /* DIALING, WAITING */
    uint32_t timeout_ms;
    uint64_t attempt;
    uint32_t rails, rails_up;
    uint8_t outward;      /* both ends can only dial */
    uint8_t dial, resume; /* this end dials; rails that break are made again */
    uint8_t lost;         /* told: a rail is broken; */
    uint8_t lost_dead;    /* and that the peer seems to be gone */
    uint64_t lost_at;
    uint8_t via; /* it is to be relayed, by: */
    uint8_t relay_identity[16];
    struct sockaddr_storage relay_addr[ADDRS_MAX];
    int relay_addrs;
    uint64_t look_direct; /* when to see again whether that is necessary */
    uint32_t acks_owed;   /* rails with ack_owed */
    conn_t *rail[RAILS_MAX];
    uint32_t rail_next;
    send_op_t *send_head, **send_tail;
    recv_op_t *recv_head, **recv_tail;
    uint32_t posted;   /* receives in the list */
    uint32_t stalled;  /* rails whose frame waits for a receive, */
    uint32_t patience; /* and for how many sweeps */
    unasked_t *unasked;
    uint64_t unasked_bytes;
    uint32_t unasked_count;
    uint64_t mseq_out;
    uint64_t note_in;
    uint32_t note_seq_in;
    uint8_t note_dirty, note_owed; /* to tell the caller; to send to the peer */
    uint64_t sent, received;       /* payload bytes */
    uint64_t looked;               /* both, when it was last asked where the peer runs */
    enum { NEAR_UNKNOWN, ELSEWHERE, THIS_HOST } near;
    char text[320];
    char lost_text[320]; /* of LINK_LOST */
} link_t;

typedef struct relayed {
    uint8_t a[16], b[16];
} relayed_t;

typedef struct listener {
    int ev; /* EV_LISTENER */
    int fd;
    int paused; /* no descriptors left: not watched until `resume` */
} listener_t;

struct rg_tp {
    rg_tp_config_t cfg;
    rg_config_t conf;
    char congestion[32];
    uint8_t nonce_known, armed;
    uint64_t secret;  /* of this endpoint: no peer can foretell what is made with it */
    uint8_t inward;   /* this process offers loopback: it is meant for its own host */
    uint8_t many;     /* more than DIRECT_RAILS rails: epoll says which to look at */
    uint8_t keep_now; /* rgt_make_way() is at work */
    int epoll, spare_fd;
    listener_t listen[2];
    int listeners;
    sa_family_t families[2];
    uint32_t rto_max_ms; /* what the kernel was told, or its own limit */
    uint32_t scope;      /* interface of our link-local address, 0 when there is none */
    conn_t *conns, **conns_tail;
    uint32_t n_strangers, n_parked, n_visitors, n_handshakes, n_rails;
    conn_t *grave;
    link_t **links;
    uint32_t n_links;
    uint32_t n_notes;   /* links with note_dirty */
    uint32_t n_saved;   /* rails with bytes of a former connection to read */
    relayed_t *relayed; /* pairs that may meet here */
    uint32_t n_relayed, cap_relayed;
    uint32_t n_relays; /* connections HALF or RELAY */
    segment_t *free_segments;
    uint32_t n_free_segments;
    uint64_t fence;
    uint64_t note;
    uint32_t note_seq;
    send_op_t *free_sends;
    recv_op_t *free_recvs;
    uint32_t n_ops;     /* sends and receives out */
    const void *now_op; /* the operation that send() or recv() is just posting, */
    int now_done;       /* and whether it finished at once */
    rg_ring_t ring;     /* completions in waiting: it has room for all that can still complete */
    uint8_t *staging;
    uint32_t polls;
    uint64_t next_timer, resume_listen;
    uint64_t log_at;
    uint32_t log_muted;
    uint64_t sent, received;
};

/* ---- tcp.c ---- */
int rgt_ring_reserve(rg_tp_t *tp, uint32_t more); /* 0 when `more` completions fit as well */
void rgt_send_done(rg_tp_t *tp, link_t *l, send_op_t *op, rg_tp_status_t st);
void rgt_recv_done(rg_tp_t *tp, link_t *l, recv_op_t *op, rg_tp_status_t st, const rg_tag_t *came);
void rgt_send_free(rg_tp_t *tp, send_op_t *op);
void rgt_recv_free(rg_tp_t *tp, recv_op_t *op);
void rgt_recv_unlink(link_t *l, recv_op_t *op);
void rgt_log(rg_tp_t *tp, rg_log_level_t level, int limited, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Those of the peer's addresses that this process can reach by family; a negative status with err filled if there is
 * none. */
int rgt_addresses(const rg_tp_t *tp, const rg_tp_peer_t *peer, struct sockaddr_storage out[ADDRS_MAX], rg_error_t *err);

/* ---- tcp_conn.c ---- */
rg_status_t rgt_listen(rg_tp_t *tp, const struct sockaddr_storage *addr, int n, uint8_t *blob, uint32_t *blob_len,
                       rg_error_t *err);
rg_status_t rgt_check_congestion(rg_tp_t *tp, rg_error_t *err);
rg_status_t rgt_dial(rg_tp_t *tp, link_t *l, rg_error_t *err);
void rgt_adopt_parked(rg_tp_t *tp, link_t *l);
void rgt_nonce_known(rg_tp_t *tp);
void rgt_accept(rg_tp_t *tp, listener_t *ls);
int rgt_visitor(rg_tp_t *tp, rg_tp_visitor_t *out);
void rgt_handshake(rg_tp_t *tp, conn_t *c, uint32_t events);
void rgt_timers(rg_tp_t *tp, uint64_t now);
void rgt_timer_at(rg_tp_t *tp, uint64_t when);
void rgt_conn_close(conn_t *c);
void rgt_bury(rg_tp_t *tp);
void rgt_interest(conn_t *c, uint32_t want);
void rgt_link_fail(rg_tp_t *tp, link_t *l, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Ends everything pending on the link and its connections; the caller tells. */
void rgt_link_clear(rg_tp_t *tp, link_t *l);

void rgt_set_state(conn_t *c, conn_state_t s);
conn_t *rgt_conn_new(rg_tp_t *tp, conn_state_t s, int fd);
void rgt_set_options(rg_tp_t *tp, int fd);
void rgt_dial_try(conn_t *c);
void rgt_dial_greet(conn_t *c);
void rgt_dial_later(conn_t *c, const char *why, int e); /* the next address, or a rest */
int rgt_begun_anew(rg_tp_t *tp, const link_t *l);       /* the peer dials it as a new link: it has given this one up */
int rgt_greeting_read(conn_t *c);
int rgt_greeting_fits(const conn_t *c, const hello_t *h); /* an answer: from the right process, about this link */
int rgt_hello_send(conn_t *c, const hello_t *h);          /* 0 when all of it is out */

/* ---- tcp_keep.c ---- */
int rgt_kept_header(conn_t *c, const uint8_t *bytes, uint32_t n); /* these and the next are called when a frame is */
int rgt_kept_payload(conn_t *c, send_op_t *op, const uint8_t *data, uint32_t n); /* out, in the order of the stream */
void rgt_kept_acked(conn_t *c, uint64_t off);
int rgt_window_open(const conn_t *c); /* another frame may be sent before what is out is acknowledged */
void rgt_kept_trim(conn_t *c);        /* forgets what the peer's kernel has */
void rgt_kept_detach(rg_tp_t *tp, link_t *l, send_op_t *op); /* nothing kept is in its buffer any more */
int rgt_kept_rewind(conn_t *c, uint64_t to); /* the next byte to send is this one; -1: it is not kept any more */
int rgt_replay(rg_tp_t *tp, conn_t *c);      /* 0: all is out; 1: blocked, or the connection broke */
uint64_t rgt_handed(const conn_t *c);        /* offset of the next byte for the kernel */
void rgt_kept_free(conn_t *c);
void rgt_segments_free(rg_tp_t *tp);

/* ---- tcp_heal.c ---- */
/* A connection of a link that is up has ended: the link is lost until it is made again, or fails if that may not be. */
void rgt_rail_lost(rg_tp_t *tp, conn_t *c, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void rgt_heal_timer(rg_tp_t *tp, conn_t *c, uint64_t now);
void rgt_heal_failed(conn_t *healer, const char *why, int e); /* what it tried did not work */
void rgt_heal_answered(rg_tp_t *tp, conn_t *healer, const hello_t *h);
void rgt_heal_asked(rg_tp_t *tp, conn_t *c); /* a stranger wants to continue a rail */
ssize_t rgt_saved_read(conn_t *c, void *to, size_t n);

void rgt_heal_now(conn_t *c);
void rgt_heal_later(conn_t *c);
void rgt_heal_probe(rg_tp_t *tp, conn_t *c, uint64_t now);

/* ---- tcp_relay.c ---- */
void rgt_redial(rg_tp_t *tp, link_t *l); /* of a link that is not up: its connections, by the way that is in force */
void rgt_route(rg_tp_t *tp, uint32_t link, const rg_tp_peer_t *relay);
void rgt_relay(rg_tp_t *tp, const uint8_t a[16], const uint8_t b[16], int on);
void rgt_relay_forget(rg_tp_t *tp, const uint8_t gone[16]);
void rgt_relay_asked(rg_tp_t *tp, conn_t *s);
void rgt_relay_event(rg_tp_t *tp, conn_t *c, uint32_t events);
void rgt_relay_held(rg_tp_t *tp); /* passes on what TLS still holds */
int rgt_relay_holds(const conn_t *c);
void rgt_relay_broken(conn_t *c);
uint32_t rgt_relay_wants(const conn_t *c);
void rgt_relay_met(rg_tp_t *tp, conn_t *c);
const struct sockaddr_storage *rgt_target(const conn_t *c,
                                          int *n); /* where it has to be dialled, and how many there are */

/* Something of the stream waits to be sent on this rail. */
static inline int rgt_tx_pending(const conn_t *c) { return c->tx_busy || c->replaying; }

/* ---- tcp_tune.c ---- */
void rgt_tune_begin(conn_t *c);                      /* a rail is up */
void rgt_tune(conn_t *c);                            /* tune.sent has reached tune.next_at */
void rgt_tune_by(conn_t *c, const tune_sample_t *s); /* the same by what the kernel says */

/* ---- tcp_send.c ---- */
void rgt_push(rg_tp_t *tp, link_t *l);                                 /* lets free rails take frames */
void rgt_tx(rg_tp_t *tp, conn_t *c);                                   /* goes on with the frame in hand */
ssize_t rgt_tx_bytes(rg_tp_t *tp, conn_t *c, const void *p, size_t n); /* taken; -1: blocked, or the connection broke */
int rgt_tx_flush(rg_tp_t *tp, conn_t *c); /* 1: TLS holds nothing that was taken; 0: blocked, or the connection broke */
int rgt_tx_fence(conn_t *c);              /* cuts the frame in hand loose from the caller's buffer; -1: no memory */

/* ---- tcp_recv.c ---- */
void rgt_rx(rg_tp_t *tp, conn_t *c);
void rgt_post(rg_tp_t *tp, link_t *l, recv_op_t *op);
int rgt_make_way(rg_tp_t *tp, link_t *l); /* looks among what has come already */
void rgt_restart(rg_tp_t *tp, link_t *l); /* looks again at frames that wait for a receive */
void rgt_rx_fence(rg_tp_t *tp, link_t *l);
void rgt_unasked_free(link_t *l, unasked_t *u);

#endif
