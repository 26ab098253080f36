/* regroup_transport.h: the table that a transport fills. A transport moves tagged messages between this process and
 * its peers over links, and knows nothing of groups, views, ranks or operations.
 *
 * Rules that every transport keeps (tests/conformance.c checks them):
 *  T1  Nothing calls back. Everything that happens is a completion, returned by poll().
 *  T2  A transport is used by one thread at a time (the caller locks). Only `wake_fd` readiness is looked at unlocked.
 *  T3  drop(link) is a fence: when it returns, no buffer posted for that link is touched any more, and each operation
 *      that was pending on it has been or will be completed exactly once with RG_TP_GONE.
 *  T4  fence(epoch) does the same, on all links, for operations whose tag.epoch is lower; they complete with
 *      RG_TP_FENCED. The links stay up. Messages of a lower epoch that arrive later are discarded unseen; those of a
 *      higher epoch wait until a receive is posted for them.
 *  T5  Tags are compared, never interpreted, except tag.epoch for T4.
 *  T6  A message that nobody has asked for waits, with bounded memory, and must not stop another message that
 *      somebody has asked for (while the bound allows).
 *  T7  Hostile bytes on a listening port cost a bounded amount of memory and never disturb established links. */
#ifndef REGROUP_TRANSPORT_H
#define REGROUP_TRANSPORT_H

#include "regroup.h"

#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rg_tp rg_tp_t; /* each transport has its own definition */

/* What a message is. Sender and receiver name the same tag; `sig` is compared too, and a message whose other fields
 * match but whose sig differs completes the receive with RG_TP_MISMATCH and touches no buffer. */
typedef struct rg_tag {
    uint64_t epoch; /* data epoch */
    uint64_t gen;   /* boundary generation */
    uint64_t op;    /* operation within the generation: user tag << 32 | sequence number */
    uint32_t ord;   /* message within the operation, from this sender to this receiver */
    uint32_t sig;   /* hash of the operation's arguments */
} rg_tag_t;

typedef enum rg_tp_event {
    RG_TP_SENT,       /* send finished: the buffer is the caller's again, and what it writes there reaches nobody */
    RG_TP_RECEIVED,   /* receive finished, all bytes are in the sink */
    RG_TP_LINK_UP,    /* connect() succeeded, every rail is there; or, after LINK_LOST, they are there again */
    RG_TP_LINK_DOWN,  /* the link failed; cause in `text`. All pending operations complete with RG_TP_GONE as well */
    RG_TP_NOTE,       /* a peer's note() arrived (value in `note`), or changed with a message */
    RG_TP_UNEXPECTED, /* told once per message: a message waits for which no receive is posted (tag says which) */
    RG_TP_FAILED,     /* a send or receive ended without success: status in `status` */
    RG_TP_LINK_LOST   /* only with peer.resume: a link that was up lost its connection; cause in `text`. What is pending
                         waits, and the transport makes the connection again until LINK_UP (which says that not a byte
                         was lost or doubled), LINK_DOWN or drop(). status RG_TP_GONE, perhaps in a second event: there
                         is evidence that the peer itself is gone, not only the path */
} rg_tp_event_t;

typedef enum rg_tp_status {
    RG_TP_DONE = 0,
    RG_TP_GONE = 1,
    RG_TP_FENCED = 2,
    RG_TP_MISMATCH = 3,
    RG_TP_BROKEN = 4
} rg_tp_status_t;

typedef struct rg_completion {
    rg_tp_event_t event;
    rg_tp_status_t status;
    uint32_t link;
    uint64_t cookie;  /* of the send or receive */
    uint64_t note;    /* RG_TP_NOTE */
    rg_tag_t tag;     /* RG_TP_UNEXPECTED; for MISMATCH the tag that came */
    const char *text; /* cause, valid until the next call into the transport; NULL when there is nothing to say */
} rg_completion_t;

/* Combines `n` elements that arrived (in `b`, any alignment) with `a` into `dst`: dst = a op b. */
typedef void (*rg_reduce_fn)(const void *ctx, void *dst, const void *a, const void *b, size_t n);

typedef struct rg_tp_send {
    rg_tag_t tag;
    const void *buf; /* the caller's, untouched by it until RG_TP_SENT or RG_TP_FAILED */
    uint64_t len;
    uint64_t cookie;
} rg_tp_send_t;

typedef struct rg_tp_recv {
    rg_tag_t tag;
    uint64_t len; /* exact length expected; a message of another length is RG_TP_MISMATCH */
    uint64_t cookie;
    void *dst; /* the transport's until RG_TP_RECEIVED or RG_TP_FAILED */
    /* When reduce is not NULL the sink is dst[i] = a[i] op incoming[i], else a plain copy. `a` may equal dst. */
    rg_reduce_fn reduce;
    const void *reduce_ctx; /* alive until completion */
    const void *a;
    uint32_t wire_elem; /* bytes of an incoming element (reduce only) */
    uint32_t dst_elem;  /* bytes of an element of dst */
    uint32_t a_elem;    /* bytes of an element of a */
    uint32_t anywhere;  /* 1: reduce may be given other memory for its result, which the transport then copies to dst */
} rg_tp_recv_t;

/* Who is at the other end of a link. */
typedef struct rg_tp_peer {
    uint8_t identity[16];
    const uint8_t *addr; /* address blob that the peer's own transport made (`addr` below) */
    uint32_t addr_len;
    uint32_t dial;       /* 1: connect to it; 0: it connects to us */
    uint32_t timeout_ms; /* give up after this long: RG_TP_LINK_DOWN */
    uint32_t silence_ms; /* once it is up: a peer that acknowledges nothing for this long is gone; 0: the
                          * configuration's heartbeat_ms, which is not yet the group's when a transport is opened */
    uint32_t resume; /* 1: a connection that breaks is made again (RG_TP_LINK_LOST), if the transport can do that; 0:
                      * that is LINK_DOWN */
} rg_tp_peer_t;

typedef struct rg_tp_config {
    const rg_config_t *config; /* resolved: every field has its value */
    uint8_t identity[16];      /* of this process */
    uint8_t nonce[16];         /* of the group: a peer that does not know it is a stranger */
    struct rg_tls_ctx *tls;    /* NULL: plain; else whatever leaves this host goes through it (src/os/tls.h). The
                                * caller's, alive until close() */
    const char *remote_hint;   /* numeric address towards which the interface is chosen (the coordinator's), or NULL */
    void (*log)(void *user, rg_log_level_t level, const char *line);
    void *log_user;
} rg_tp_config_t;

/* What a transport knows of a link that is up; 0: not known. */
typedef struct rg_tp_link_info {
    uint32_t shared;      /* 1: both ends share memory */
    uint64_t rtt_ns;      /* least round trip seen */
    uint64_t bytes_per_s; /* rate of what was delivered while there was enough to send */
} rg_tp_link_info_t;

/* A connection that was not meant for the transport. */
typedef struct rg_tp_visitor {
    int fd; /* non-blocking, close-on-exec */
    uint32_t len;
    uint8_t head[80]; /* its first bytes, which have been read */
} rg_tp_visitor_t;

/* Memory that a peer may read when it wants to. */
#define RG_TP_STAMP 3u /* words */
typedef struct rg_tp_lend {
    uint64_t name; /* the caller's; the peer asks for it by that */
    const void *memory;
    uint64_t bytes;
    const uint64_t *stamp; /* RG_TP_STAMP words, which every read begins and ends with */
} rg_tp_lend_t;

typedef struct rg_tp_fetch {
    uint64_t name, off, len;
    void *dst;                /* the transport's until the end */
    uint64_t *before, *after; /* likewise: the stamp as it was before the first byte was read, and after the last */
    uint64_t cookie;
} rg_tp_fetch_t;

#define RG_TP_ADDR_MAX 512
#define RG_TP_ALL_LINKS UINT32_MAX

typedef struct rg_transport {
    size_t struct_size;
    const char *name;

    /* Opens an endpoint that accepts peers. addr/addr_len: what others need to reach it (RG_TP_ADDR_MAX bytes). The
     * nonce may be set later by set_nonce (the endpoint must listen before the coordinator has told it); until then
     * every peer is a stranger that waits. Does not block. Safe to close() after a failed open (*tp is NULL). */
    rg_status_t (*open)(const rg_tp_config_t *config, rg_tp_t **tp, uint8_t *addr, uint32_t *addr_len, rg_error_t *err);
    void (*set_nonce)(rg_tp_t *tp, const uint8_t nonce[16]);

    /* Begins to establish link number `link` (chosen by the caller, small and dense, reusable after drop). Ends with
     * RG_TP_LINK_UP or RG_TP_LINK_DOWN. Does not block. A link with peer.resume that went down may be
     * begun anew under its number without drop(), where the transport can do that: it is a new stream, but routes, and
     * what is relayed for the peer, stay as they are. A call that fails leaves it down. */
    rg_status_t (*connect)(rg_tp_t *tp, uint32_t link, const rg_tp_peer_t *peer, rg_error_t *err);

    /* Queue a message. Messages on one link start in the order of the calls. Do not block. May complete within the
     * call: return RG_OK and deliver the completion by poll(), or return RG_TP_DONE_NOW when it is done already and
     * no completion will follow. */
    int (*send)(rg_tp_t *tp, uint32_t link, const rg_tp_send_t *send);
    int (*recv)(rg_tp_t *tp, uint32_t link, const rg_tp_recv_t *recv);

    /* Stamps `note` into every later message to every peer; with flush set also sends it now, as a frame of its own,
     * to `link` (or RG_TP_ALL_LINKS). The receiver gets RG_TP_NOTE when the value changes. */
    void (*note)(rg_tp_t *tp, uint32_t link, uint64_t note, int flush);

    /* Moves bytes; returns how many completions it wrote (0..max). Never blocks. */
    int (*poll)(rg_tp_t *tp, rg_completion_t *out, int max);

    /* Called before the caller sleeps on wake_fd: makes it become readable when poll() has something to do. Returns
     * 0 when poll() should be called again at once instead, else 1; *timeout_ns is lowered to the transport's next
     * timer. */
    int (*arm)(rg_tp_t *tp, int64_t *timeout_ns);

    void (*fence)(rg_tp_t *tp, uint64_t epoch); /* T4 */
    void (*drop)(rg_tp_t *tp, uint32_t link);   /* T3; also forgets the link number */
    /* Payload; ALL_LINKS: the sum. */
    void (*stats)(rg_tp_t *tp, uint32_t link, uint64_t *bytes_sent, uint64_t *bytes_received);
    int (*wake_fd)(rg_tp_t *tp); /* descriptor for epoll, readable when armed and there is work */
    void (*close)(rg_tp_t *tp);  /* drops everything and frees it; NULL is fine; never blocks */
    void (*link_info)(rg_tp_t *tp, uint32_t link, rg_tp_link_info_t *out); /* may be NULL: nothing is known */

    /* Who comes to the endpoint's port and speaks the control protocol instead of the transport's. 1: the connection is
     * the caller's from here on, with what was read of it already; 0: nobody is there. NULL: such visitors are
     * strangers. At most 64 wait, for 5 seconds each. */
    int (*visitor)(rg_tp_t *tp, rg_tp_visitor_t *out);
    /* Where a visitor of the endpoint that made this address can connect to: returns how many, at most `max`. NULL with
     * visitor. */
    int (*places)(rg_tp_t *tp, const uint8_t *addr, uint32_t addr_len, struct sockaddr_storage *out, int max);

    /* Both may be NULL, where a path between two peers either is there or is not. route: what the link carries goes
     * through a third peer (identity and address; NULL: not any more), which has been told relay() of the two; whatever
     * the link's state is, it goes on from there, and LINK_UP says in `note` 1 when it is relayed, 0 when it is direct.
     * relay: lets these two peers meet here, until on is 0 or the link of one is dropped. */
    void (*route)(rg_tp_t *tp, uint32_t link, const rg_tp_peer_t *relay);
    void (*relay)(rg_tp_t *tp, const uint8_t a[16], const uint8_t b[16], int on);

    /* Payload, in bytes, that the processor has moved on the way since open(): copied from one place to another, and
     * reduced from where it arrived. May be NULL: it is not counted. */
    void (*work)(rg_tp_t *tp, uint64_t *copied, uint64_t *reduced);

    /* Small messages without a completion, for peers that share memory. All three may be NULL, and each may always say
     * no: then send() and recv() are the way, and what put() has sent is received by either.
     * Sends now and is done with the buffer, 1; or has done nothing, 0. */
    int (*put)(rg_tp_t *tp, uint32_t link, const rg_tp_send_t *send);
    /* Where the payload of the message with this tag and signature, and of this length, lies; NULL when it has not
     * come, or cannot be shown. It stays there until it is taken, or until anything is called but put(), and peek() and
     * taken() of other links. Nobody may read a message of no bytes. */
    const void *(*peek)(rg_tp_t *tp, uint32_t link, const rg_tag_t *tag, uint64_t len);
    /* The message that peek() showed last on this link is used up. Gives the newest note of the peer, which poll() does
     * not report any more. */
    uint64_t (*taken)(rg_tp_t *tp, uint32_t link);

    /* Reads of a peer's memory in which the peer's processor takes no part. All four may be NULL, and each may always
     * say no: then messages are the way. The owner changes that memory when it likes: it counts in the stamp, before
     * and after, and who has read tells from both stamps whether all of it is of one moment.
     * lend: from now on the peer of this link, and nobody else, may read that memory under that name, 1, also when it
     * may already; or nothing has been done, 0. It ends with reclaim() or with the link, whatever fences there are.
     * reclaim: of all links. The memory is the caller's at once, and may even go. What a peer reads until it has heard
     * of it is what was there before or anything else, so the stamp says first that it is over. */
    int (*lend)(rg_tp_t *tp, uint32_t link, const rg_tp_lend_t *lend);
    void (*reclaim)(rg_tp_t *tp, uint64_t name);
    /* Begins to read, 1: it ends with RG_TP_RECEIVED or RG_TP_FAILED. 0: the peer has lent nothing of that name, or not
     * that much, or it cannot be read into dst. unfetch() ends one with RG_TP_FAILED that has not ended: when it
     * returns nothing of it is touched any more. */
    int (*fetch)(rg_tp_t *tp, uint32_t link, const rg_tp_fetch_t *fetch);
    void (*unfetch)(rg_tp_t *tp, uint32_t link, uint64_t cookie);

    /* The processor of this host, + 1, on which the peer of the link ran lately; 0: not known, or on another host.
     * Asked every 50 us, so it must be cheap. May be NULL. */
    uint32_t (*peer_cpu)(rg_tp_t *tp, uint32_t link);
} rg_transport_t;
#define RG_TP_DONE_NOW 1

#ifdef __cplusplus
}
#endif
#endif
