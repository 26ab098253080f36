/* tls.c: the bytes of TLS connections. OpenSSL encrypts into a buffer of ours, from where several records leave with
 * one call of the kernel; it reads the socket itself. Every failure ends in a text that a person can act on, because
 * the other side sees little more than a closed connection. Relies on tls_ctx.c for keys. It must not wait, and must
 * not report bytes as sent that only OpenSSL has taken. */
#include "os/tls_internal.h"

#include "os/os.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_MAX 16384u /* payload of a record */
#define HEAD_MAX 256u     /* a first piece up to here travels in one record with the beginning of the second */

/* ---- Between OpenSSL and the socket ----------------------------------------------------------------------------- */

static int bio_write(BIO *bio, const char *p, int n) {
    rg_tls_t *t = BIO_get_data(bio);
    if (n <= 0) return 0;
    if (t->out_off == t->out_len) t->out_off = t->out_len = 0;
    size_t need = t->out_len + (size_t)n;
    if (need > t->out_cap) {
        size_t cap = need < 2048 ? 2048 : need;
        uint8_t *more = realloc(t->out, cap);
        if (!more) return -1;
        t->out = more;
        t->out_cap = cap;
    }
    memcpy(t->out + t->out_len, p, (size_t)n);
    t->out_len = need;
    return n;
}

static int bio_read(BIO *bio, char *p, int n) {
    const rg_tls_t *t = BIO_get_data(bio);
    ssize_t got;
    BIO_clear_retry_flags(bio);
    do got = recv(t->fd, p, (size_t)n, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) BIO_set_retry_read(bio);
    return (int)got;
}

static long bio_control(BIO *bio, int what, long n, void *p) {
    (void)bio, (void)n, (void)p;
    return what == BIO_CTRL_FLUSH || what == BIO_CTRL_DUP;
}

BIO_METHOD *rg_tls_bio(void) {
    BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "regroup");
    if (!m) return NULL;
    BIO_meth_set_write(m, bio_write);
    BIO_meth_set_read(m, bio_read);
    BIO_meth_set_ctrl(m, bio_control);
    return m;
}

/* ---- What an accepted connection says first --------------------------------------------------------------------- */

int rg_tls_is_hello(const uint8_t *b, size_t n) { return n >= 3 && b[0] == 0x16 && b[1] == 3 && b[2] <= 4; }

static void wake_at(int fd, int bytes) { setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes); }

/* With the other side's end behind it, what is there is all that comes. */
static int ended(int fd) {
    struct tcp_info info;
    socklen_t len = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state != TCP_ESTABLISHED;
}

rg_tls_look_t rg_tls_look(int fd) {
    uint8_t b[RG_TLS_HELLO_MAX];
    ssize_t n;
    do n = recv(fd, b, sizeof b, MSG_PEEK | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) return RG_TLS_LOOK_GONE;
    if (n > 0 && (b[0] != 0x16 || (n >= 3 && !rg_tls_is_hello(b, (size_t)n)))) return RG_TLS_LOOK_OTHER;
    int need = n < 5 ? 5 : 5 + (b[3] << 8 | b[4]);
    if (need > (int)RG_TLS_HELLO_MAX) return RG_TLS_LOOK_OTHER;
    if (n >= 5 && n >= need) {
        wake_at(fd, 1);
        return RG_TLS_LOOK_HELLO;
    }
    if (ended(fd)) return RG_TLS_LOOK_GONE;
    wake_at(fd, need);
    return RG_TLS_LOOK_LATER;
}

/* The protocols that are offered, each behind its length: what all of the library speaks, and a word for whoever
 * listens for several things at one port. */
static const uint8_t control_protocols[] = "\x09regroup/1\x0fregroup-control";

int rg_tls_is_control(int fd) {
    uint8_t b[RG_TLS_HELLO_MAX];
    ssize_t n = recv(fd, b, sizeof b, MSG_PEEK | MSG_DONTWAIT);
    return n > 0 && memmem(b, (size_t)n, control_protocols, sizeof control_protocols - 1) != NULL;
}

/* ---- Texts ------------------------------------------------------------------------------------------------------ */

static const char *alert_text(const rg_tls_t *t, int alert) {
    switch (alert) {
    case SSL_AD_HANDSHAKE_FAILURE:
        return t->ctx->psk ? "the other side does not know this process's group key (RG_TLS_PSK_FILE), or uses "
                             "certificates"
                           : "the other side does not accept certificates: it probably uses a group key";
    case SSL_AD_DECRYPT_ERROR: return "the other side's key is not this process's: RG_TLS_PSK_FILE must be the same";
    case SSL_AD_UNKNOWN_CA:
        return t->ctx->psk
                   ? "the other side uses a group key that this process does not know"
                   : "the other side does not know the authority of this process's certificate (its RG_TLS_CA), "
                     "or uses a group key";
    case SSL_AD_CERTIFICATE_EXPIRED:
        return "the other side refused this process's certificate (RG_TLS_CERT): it has expired or is not valid yet";
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_BAD_CERTIFICATE: return "the other side refused this process's certificate (RG_TLS_CERT)";
    case TLS13_AD_CERTIFICATE_REQUIRED: return "the other side wants a certificate";
    case SSL_AD_PROTOCOL_VERSION: return "the other side does not offer TLS 1.3";
    case SSL_AD_NO_APPLICATION_PROTOCOL: return "the other side speaks TLS, but is no part of a group";
    default: return NULL;
    }
}

void rg_tls_why_is(rg_tls_t *t, const char *text) { snprintf(t->why, sizeof t->why, "TLS: %s", text); }

void rg_tls_why_alert(rg_tls_t *t, int alert) {
    const char *text = alert_text(t, alert);
    t->unfit = 1;
    if (text) rg_tls_why_is(t, text);
    else snprintf(t->why, sizeof t->why, "TLS: the other side ended the connection (alert %d)", alert);
}

static void why_certificate(rg_tls_t *t, long result) {
    if (t->ctx->psk) {
        snprintf(t->why, sizeof t->why,
                 "the other side does not know this process's group key and shows a certificate instead");
        return;
    }
    const char *hint = result == X509_V_ERR_CERT_HAS_EXPIRED || result == X509_V_ERR_CERT_NOT_YET_VALID
                           ? ""
                           : "; RG_TLS_CA must name the authority that signed it";
    snprintf(t->why, sizeof t->why, "the other side's certificate is refused: %s%s",
             X509_verify_cert_error_string(result), hint);
}

/* The server could not go on with what the client has offered. */
static void why_nothing_shared(rg_tls_t *t) {
    if (!t->ctx->psk)
        snprintf(t->why, sizeof t->why, "the other side offers nothing that certificates could be checked with");
    else if (t->their_key[0])
        snprintf(t->why, sizeof t->why,
                 "the other side has another group key (its mark is %s, this one's is %s): RG_TLS_PSK_FILE must be the "
                 "same",
                 t->their_key, strrchr(t->ctx->key[0].identity, '-') + 1);
    else
        snprintf(t->why, sizeof t->why,
                 "the other side offers no group key: it uses certificates, or another program speaks there");
}

static void explain(rg_tls_t *t) {
    unsigned long e = ERR_peek_error();
    int reason = e ? ERR_GET_REASON(e) : 0;
    long verified = SSL_get_verify_result(t->ssl);
    const char *text = NULL;
    t->unfit = 1;
    if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
        why_certificate(t, verified);
        return;
    }
    if (reason == SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM || reason == SSL_R_NO_SHARED_CIPHER ||
        reason == SSL_R_NO_SUITABLE_KEY_SHARE || reason == SSL_R_NO_CERTIFICATE_SET) {
        why_nothing_shared(t);
        return;
    }
    if (reason > SSL_AD_REASON_OFFSET) text = alert_text(t, reason - SSL_AD_REASON_OFFSET);
    else if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
             reason == SSL_R_PACKET_LENGTH_TOO_LONG || reason == SSL_R_UNEXPECTED_MESSAGE)
        text = t->server ? "the other side does not speak TLS"
                         : "the other side answers without TLS: set RG_TLS=off here, or on there with the same key";
    else if (reason == SSL_R_UNSUPPORTED_PROTOCOL) text = "the other side does not offer TLS 1.3";
    else if (reason == SSL_R_BINDER_DOES_NOT_VERIFY) text = "the other side has not proved that it knows the group key";
    else if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) text = "the other side shows no certificate";
    else if (reason == SSL_R_NO_APPLICATION_PROTOCOL) text = "the other side is no part of a group";
    if (!text) text = e ? ERR_reason_error_string(e) : NULL;
    snprintf(t->why, sizeof t->why, "TLS: %s", text ? text : "failed");
}

/* The connection is over. What OpenSSL still wanted to say of it (an alert, which tells the other side why) is sent if
 * the socket takes it. */
static int fail(rg_tls_t *t, int e) {
    t->failed = e ? e : EPROTO;
    t->more = 0;
    rg_tls_flush(t);
    errno = t->failed;
    return -1;
}

/* ---- Life ------------------------------------------------------------------------------------------------------- */

/* One handshake more that strangers make this process work for. */
static int may_begin(rg_tls_ctx_t *ctx) {
    uint64_t now = rg_os_now_ns();
    ctx->tokens += (double)(now - ctx->tokens_at) * 1e-9 * RG_TLS_PER_SECOND;
    ctx->tokens_at = now;
    if (ctx->tokens > RG_TLS_BURST) ctx->tokens = RG_TLS_BURST;
    if (ctx->tokens < 1) return 0;
    ctx->tokens -= 1;
    return 1;
}

uint32_t rg_tls_half_open(const rg_tls_ctx_t *ctx) { return ctx->half_open; }

rg_tls_t *rg_tls_new(rg_tls_ctx_t *ctx, int fd, int server, int bulk) {
    if (server && !may_begin(ctx)) return NULL;
    ERR_clear_error();
    rg_tls_t *t = calloc(1, sizeof *t);
    BIO *bio = t ? BIO_new(ctx->bio) : NULL;
    if (t) t->ssl = SSL_new(ctx->ssl);
    if (!t || !bio || !t->ssl) {
        BIO_free(bio);
        if (t) SSL_free(t->ssl);
        free(t);
        return NULL;
    }
    t->ctx = ctx;
    t->fd = fd;
    t->server = server;
    t->bulk = bulk;
    ctx->half_open += server != 0;
    BIO_set_data(bio, t);
    BIO_set_init(bio, 1);
    SSL_set_bio(t->ssl, bio, bio);
    SSL_set_app_data(t->ssl, t);
    SSL_set_mode(t->ssl, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    if (server) SSL_set_accept_state(t->ssl);
    else SSL_set_connect_state(t->ssl);
    if (!server && !bulk) SSL_set_alpn_protos(t->ssl, control_protocols, sizeof control_protocols - 1);
    return t;
}

void rg_tls_free(rg_tls_t *t) {
    if (!t) return;
    if (t->server && !t->up) t->ctx->half_open--;
    SSL_free(t->ssl);
    rg_tls_record_close(t);
    free(t->out);
    free(t);
}

const char *rg_tls_why(const rg_tls_t *t) { return t ? t->why : ""; }

int rg_tls_unfit(const rg_tls_t *t) { return t && t->unfit; }

size_t rg_tls_unsent(const rg_tls_t *t) { return t->out_len - t->out_off; }

int rg_tls_more(const rg_tls_t *t) { return t->up && !t->failed && (t->more || (t->ssl && SSL_pending(t->ssl) > 0)); }

int rg_tls_flush(rg_tls_t *t) {
    while (t->out_off < t->out_len) {
        ssize_t n = send(t->fd, t->out + t->out_off, t->out_len - t->out_off, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM ? 0 : -1;
        t->out_off += (size_t)n;
    }
    t->out_off = t->out_len = 0;
    return 1;
}

/* The other side has proved what it must; asked again here, so that no option forgotten elsewhere lets anybody in. */
static int proved(rg_tls_t *t) {
    if (t->ctx->psk) {
        if (SSL_session_reused(t->ssl)) return 1;
    } else {
        X509 *x = SSL_get1_peer_certificate(t->ssl);
        X509_free(x);
        if (x && SSL_get_verify_result(t->ssl) == X509_V_OK) return 1;
    }
    snprintf(t->why, sizeof t->why, "the other side has not proved that it belongs here");
    return 0;
}

int rg_tls_handshake(rg_tls_t *t) {
    if (t->failed) return -1;
    if (t->up) return 1;
    ERR_clear_error();
    int rc = SSL_do_handshake(t->ssl);
    int what = rc == 1 ? SSL_ERROR_NONE : SSL_get_error(t->ssl, rc);
    if (what == SSL_ERROR_NONE) {
        if (!proved(t)) return fail(t, EPROTO);
        t->up = 1;
        if (t->server) t->ctx->half_open--;
        if (t->bulk) {
            if (!rg_tls_record_open(t)) {
                snprintf(t->why, sizeof t->why, "no memory for TLS");
                return fail(t, ENOMEM);
            }
            SSL_free(t->ssl); /* it has read nothing behind the handshake */
            t->ssl = NULL;
        }
        t->more = 1; /* what came behind the handshake */
    } else if (what == SSL_ERROR_SSL) {
        explain(t);
        return fail(t, EPROTO);
    } else if (what != SSL_ERROR_WANT_READ) {
        int e = what == SSL_ERROR_SYSCALL ? errno : 0;
        snprintf(t->why, sizeof t->why,
                 t->server ? "the other side broke the TLS handshake off%s%s"
                           : "the other side closed the connection in the TLS handshake%s%s: it runs without TLS, or "
                             "does not want this process",
                 e ? ": " : "", e ? strerror(e) : "");
        return fail(t, e);
    }
    if (rg_tls_flush(t) < 0) {
        snprintf(t->why, sizeof t->why, "the connection broke in the TLS handshake: %s", strerror(errno));
        return fail(t, errno);
    }
    return t->up;
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------ */

static ssize_t recv_records(rg_tls_t *t, void *p, size_t n) {
    size_t got;
    int rc = rg_tls_record_read(t, p, n, &got), e = errno;
    t->more = rc == 1 || rc == TLS_RECORD_FULL;
    if (rc == TLS_RECORD_BROKEN || rc == TLS_RECORD_ERRNO) fail(t, rc == TLS_RECORD_ERRNO ? e : EPROTO);
    /* What came before it counts; the next call tells the rest. */
    if (got || rc == TLS_RECORD_END || rc == 1) return (ssize_t)got;
    if (rc == TLS_RECORD_WAIT) errno = EAGAIN;
    return -1;
}

ssize_t rg_tls_recv(rg_tls_t *t, void *p, size_t n) {
    size_t got = 0, part;
    if (t->failed) {
        errno = t->failed;
        return -1;
    }
    if (!t->ssl) return recv_records(t, p, n);
    while (got < n) {
        ERR_clear_error();
        if (SSL_read_ex(t->ssl, (uint8_t *)p + got, n - got, &part)) {
            got += part;
            continue;
        }
        int what = SSL_get_error(t->ssl, 0), e = errno;
        t->more = 0;
        if (rg_tls_unsent(t)) rg_tls_flush(t); /* answers to questions about keys */
        if (what == SSL_ERROR_WANT_READ) {
            if (got) return (ssize_t)got;
            errno = EAGAIN;
            return -1;
        }
        /* What was read before it counts; the next call tells the rest. */
        if (what == SSL_ERROR_ZERO_RETURN || (what == SSL_ERROR_SYSCALL && e == 0)) return (ssize_t)got;
        if (what == SSL_ERROR_SSL) {
            explain(t);
            fail(t, EPROTO);
        } else {
            fail(t, e);
        }
        return got ? (ssize_t)got : -1;
    }
    t->more = 1;
    return (ssize_t)got;
}

static int write_all(rg_tls_t *t, const void *p, size_t n) {
    size_t put;
    if (n == 0) return 1;
    ERR_clear_error();
    if (SSL_write_ex(t->ssl, p, n, &put) && put == n) {
        t->keyed += RECORD_MAX; /* what wears a key out is records, however small */
        return 1;
    }
    explain(t);
    return 0;
}

ssize_t rg_tls_send(rg_tls_t *t, const void *a, size_t an, const void *b, size_t bn) {
    if (t->failed) {
        errno = t->failed;
        return -1;
    }
    int left = rg_tls_flush(t);
    if (left <= 0) {
        if (left == 0) errno = EAGAIN;
        return -1;
    }
    if (an + bn == 0) return 0;
    if (!t->ssl) {
        size_t taken = rg_tls_record_write(t, a, an, b, bn);
        if (!taken) {
            rg_tls_why_is(t, "a record could not be made");
            return fail(t, ENOMEM);
        }
        return rg_tls_flush(t) < 0 ? -1 : (ssize_t)taken;
    }
    if (t->keyed >= t->ctx->rekey_bytes && SSL_key_update(t->ssl, SSL_KEY_UPDATE_NOT_REQUESTED)) t->keyed = 0;
    size_t batch = RECORD_MAX, taken = 0;
    int ok = 1;
    if (an && an <= HEAD_MAX && bn) { /* one record instead of two for a header and what it heads */
        uint8_t first[RECORD_MAX];
        size_t with = bn < RECORD_MAX - an ? bn : RECORD_MAX - an;
        memcpy(first, a, an);
        memcpy(first + an, b, with);
        ok = write_all(t, first, an + with);
        taken = an + with;
        b = (const uint8_t *)b + with;
        bn -= with;
    } else if (an) {
        taken = an < batch ? an : batch;
        ok = write_all(t, a, taken);
        if (taken < an) bn = 0;
    }
    size_t rest = bn < batch - taken ? bn : batch - taken;
    if (ok && rest) ok = write_all(t, b, rest);
    if (!ok) return fail(t, EPROTO);
    if (rg_tls_flush(t) < 0) return -1;
    return (ssize_t)(taken + rest);
}
