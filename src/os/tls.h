/* tls.h: TLS 1.3 around a non-blocking socket, with the look of recv() and send(), so that whoever reads and writes a
 * connection needs one test for it and no second path. Both sides prove that they know the group's key, or have a
 * certificate of an authority that the other trusts, before any byte of theirs is handed on.
 * Relies on OpenSSL 3. A context is used by one thread at a time with all its connections (their owner locks). Nothing
 * here waits, and no text that leaves here has a secret in it. */
#ifndef RG_TLS_H
#define RG_TLS_H

#include "regroup.h"

#include <sys/socket.h>
#include <sys/types.h>

typedef struct rg_tls_ctx rg_tls_ctx_t; /* keys of an endpoint: made once, used by all its connections */
typedef struct rg_tls rg_tls_t;         /* a connection */

/* The files named by a resolved configuration (either kind has these fields): a group key, or three of certificates. */
typedef struct rg_tls_files {
    const char *tls, *psk, *ca, *cert, *key;
} rg_tls_files_t;
#define RG_TLS_FILES(c)                                                                                                \
    (rg_tls_files_t) { (c)->tls, (c)->tls_psk_file, (c)->tls_ca, (c)->tls_cert, (c)->tls_key }

/* *out is NULL, with RG_OK, when files->tls is not "on". Reads the files; INVALID or SYSTEM with a text that names the
 * one that cannot be used, and why. */
rg_status_t rg_tls_open(const rg_tls_files_t *files, rg_tls_ctx_t **out, rg_error_t *err);
/* The same keys or certificates for another thread, without a look at the files, on the thread of `from`. NULL of
 * NULL. */
rg_status_t rg_tls_copy(const rg_tls_ctx_t *from, rg_tls_ctx_t **out, rg_error_t *err);
void rg_tls_close(rg_tls_ctx_t *ctx);              /* after all its connections; NULL is fine */
const char *rg_tls_warning(const rg_tls_ctx_t *c); /* what to log about the files, or "" */
/* New keys for sending after so many bytes; by default long before AES-GCM would need them. */
void rg_tls_rekey_after(rg_tls_ctx_t *ctx, uint64_t bytes);

/* What an accepted connection says first, looked at without taking it: memory for TLS is spent only on a first message
 * that is whole. The socket becomes readable again only when the next look can tell more. */
typedef enum rg_tls_look {
    RG_TLS_LOOK_LATER, /* not enough yet */
    RG_TLS_LOOK_HELLO, /* a whole first message of TLS, of at most RG_TLS_HELLO_MAX bytes */
    RG_TLS_LOOK_OTHER, /* anything else */
    RG_TLS_LOOK_GONE   /* closed, or broken */
} rg_tls_look_t;
#define RG_TLS_HELLO_MAX 4096u
rg_tls_look_t rg_tls_look(int fd);
/* After LOOK_HELLO: 1 when the other side wants to speak to a coordinator, and not to a transport: so say those that
 * are made without `bulk`, in clear, before they prove anything. */
int rg_tls_is_control(int fd);
int rg_tls_is_hello(const uint8_t *bytes, size_t n); /* 1 when these 3 or more bytes begin TLS */

/* The server's side has limits: of handshakes that are under way, which cost some tens of KiB each (the owner closes
 * the oldest when there are so many), and of those that may begin in a second, which cost a fraction of a millisecond.
 */
#define RG_TLS_HALF_OPEN_MAX 64u
#define RG_TLS_BURST 4096u      /* at once, as when a large group comes back, */
#define RG_TLS_PER_SECOND 1000u /* and without end */
uint32_t rg_tls_half_open(const rg_tls_ctx_t *ctx);

/* bulk: much memory for speed, for connections that carry data. The descriptor stays the caller's. NULL: no memory, or
 * the limit of beginning handshakes. */
rg_tls_t *rg_tls_new(rg_tls_ctx_t *ctx, int fd, int server, int bulk);
void rg_tls_free(rg_tls_t *t); /* NULL is fine; says no farewell */

/* 1: established and the other side is who it must be; 0: wait for the socket (for writing too while rg_tls_unsent());
 * -1: over, rg_tls_why() has the cause. */
int rg_tls_handshake(rg_tls_t *t);

/* As recv(): fills as much as has come; 0 at the end of the stream, -1 and errno. Less than n: there is no more now,
 * unless rg_tls_more(). */
ssize_t rg_tls_recv(rg_tls_t *t, void *p, size_t n);
/* As sendmsg() of these two pieces (either may be empty): takes what it can, copies it, returns how much; -1 and EAGAIN
 * while something taken earlier has not left. What was taken has left when rg_tls_unsent() is 0. */
ssize_t rg_tls_send(rg_tls_t *t, const void *a, size_t an, const void *b, size_t bn);
int rg_tls_flush(rg_tls_t *t);             /* 1: all has left; 0: the socket is full; -1: broken, and errno */
size_t rg_tls_unsent(const rg_tls_t *t);   /* bytes that were taken and have not left */
int rg_tls_more(const rg_tls_t *t);        /* 1: recv may find something though the socket has nothing */
const char *rg_tls_why(const rg_tls_t *t); /* why it failed, or "" */
int rg_tls_unfit(const rg_tls_t *t);       /* 1: because of keys or certificates, so the same again would fail again */

/* The two ways as one: a connection without TLS has t NULL. */
static inline ssize_t rg_net_recv(int fd, rg_tls_t *t, void *p, size_t n) {
    return t ? rg_tls_recv(t, p, n) : recv(fd, p, n, MSG_DONTWAIT);
}
static inline ssize_t rg_net_send(int fd, rg_tls_t *t, const void *p, size_t n) {
    return t ? rg_tls_send(t, p, n, NULL, 0) : send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}
/* What is put off: 1 when the socket has to become writable for bytes that rg_net_send() has taken. */
static inline int rg_net_unsent(const rg_tls_t *t) { return t && rg_tls_unsent(t) > 0; }

#endif
