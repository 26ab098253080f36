/* tls_ctx.c: keys and certificates: reads the files, checks them while their names can still be told, and answers
 * OpenSSL's questions about group keys. A group key is an external pre-shared key of TLS 1.3, with a Diffie-Hellman
 * exchange beside it, so that a key that gets out later opens no recorded traffic.
 * Relies on OpenSSL alone. It must not keep key bytes beyond what OpenSSL holds, nor name them in any text. */
#include "os/tls_internal.h"

#include "observe/log.h"
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TLS_FILE_MAX 8192       /* of a file with group keys */
#define TLS_PEM_MAX (4ll << 20) /* of certificates: all authorities of a system are far less */
/* AES-GCM wants a new key after 2^24.5 records of at most 16 KiB (RFC 8446, 5.5); this is a sixth of that. */
#define TLS_REKEY_BYTES (1ull << 36)

static const char identity_prefix[] = "regroup-key-";
static const unsigned char protocol[] = "\x09regroup/1";

/* Where the processor has no instructions for AES, ChaCha20 is several times faster. */
static const char *ciphers(void) {
#if defined(__x86_64__) || defined(__i386__)
    int aes = __builtin_cpu_supports("aes") != 0;
#else
    int aes = 1;
#endif
    return aes ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384"
               : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384";
}

static const char *openssl_text(void) {
    unsigned long e = ERR_peek_last_error();
    const char *text = e ? ERR_reason_error_string(e) : NULL;
    return text ? text : "unknown cause";
}

/* ---- Files ----------------------------------------------------------------------------------------------------- */

static void note_readable(rg_tls_ctx_t *ctx, const char *name, const struct stat *st) {
    if (!(st->st_mode & 077) || ctx->warning[0]) return;
    snprintf(ctx->warning, sizeof ctx->warning, "%.200s can be read by others than its owner (mode %03o): chmod 600 it",
             name, st->st_mode & 0777u);
}

/* Reads a file of keys into buf. Only regular files: a name that leads to a pipe must not make this wait. */
static rg_status_t read_keys(rg_tls_ctx_t *ctx, const char *name, char *buf, size_t cap, rg_error_t *err) {
    struct stat st;
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        int e = errno;
        if (fd >= 0) close(fd);
        return rg_fail(err, RG_ERR_INVALID, e, "the group key cannot be read: RG_TLS_PSK_FILE %.200s: %s", name,
                       strerror(e));
    }
    ssize_t n = S_ISREG(st.st_mode) ? read(fd, buf, cap - 1) : -1;
    close(fd);
    if (n < 0 || (size_t)n == cap - 1)
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "RG_TLS_PSK_FILE %.200s is not a file of group keys (a regular file below %zu bytes); `regroup "
                       "keygen` makes one",
                       name, cap);
    buf[n] = 0;
    note_readable(ctx, name, &st);
    return RG_OK;
}

/* ---- Group keys ------------------------------------------------------------------------------------------------ */

static int hex(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* What a key is called: a hash for this purpose alone, which tells nothing of a key that is random. */
static int key_identity(char out[TLS_IDENTITY], const uint8_t *key, size_t len) {
    static const char purpose[] = "regroup group key, its mark";
    uint8_t digest[32];
    unsigned n = sizeof digest;
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    int ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) && EVP_DigestUpdate(md, purpose, sizeof purpose) &&
             EVP_DigestUpdate(md, key, len) && EVP_DigestFinal_ex(md, digest, &n);
    EVP_MD_CTX_free(md);
    strcpy(out, identity_prefix);
    for (int i = 0; ok && i < TLS_MARK / 2; i++)
        snprintf(out + sizeof identity_prefix - 1 + 2 * i, 3, "%02x", digest[i]);
    return ok;
}

static int key_session(rg_tls_ctx_t *ctx, tls_psk_t *k, const uint8_t *key, size_t len) {
    static const unsigned char suite[] = { 0x13,
                                           0x01 }; /* its hash goes with the key; any cipher with it may be used */
    SSL *ssl = SSL_new(ctx->ssl);
    const SSL_CIPHER *cipher = ssl ? SSL_CIPHER_find(ssl, suite) : NULL;
    k->session = cipher ? SSL_SESSION_new() : NULL;
    int ok = k->session && SSL_SESSION_set1_master_key(k->session, key, len) &&
             SSL_SESSION_set_cipher(k->session, cipher) &&
             SSL_SESSION_set_protocol_version(k->session, TLS1_3_VERSION) &&
             SSL_SESSION_set1_id_context(k->session, protocol, sizeof protocol - 1);
    SSL_free(ssl);
    return ok && key_identity(k->identity, key, len);
}

/* One line: hexadecimal digits. Returns its bytes, or -1. */
static int parse_key(const char *line, size_t n, uint8_t key[TLS_KEY_MAX]) {
    if (n % 2 || n / 2 < TLS_KEY_MIN || n / 2 > TLS_KEY_MAX) return -1;
    for (size_t i = 0; i < n / 2; i++) {
        int a = hex(line[2 * i]), b = hex(line[2 * i + 1]);
        if (a < 0 || b < 0) return -1;
        key[i] = (uint8_t)(a << 4 | b);
    }
    return (int)(n / 2);
}

static rg_status_t add_keys(rg_tls_ctx_t *ctx, const char *name, const char *text, rg_error_t *err) {
    uint8_t key[TLS_KEY_MAX];
    uint32_t number = 0;
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, "\n"), skip = n + (at[n] == '\n');
        number++;
        while (n && (at[n - 1] == ' ' || at[n - 1] == '\r' || at[n - 1] == '\t')) n--;
        if (n && *at != '#') {
            int len = parse_key(at, n, key);
            if (len < 0)
                return rg_fail(
                    err, RG_ERR_INVALID, 0,
                    "RG_TLS_PSK_FILE %.200s, line %u: expected a key of %d to %d bytes in hexadecimal digits "
                    "(`regroup keygen` makes one of 32)",
                    name, number, TLS_KEY_MIN, TLS_KEY_MAX);
            if (ctx->n_keys == TLS_KEYS_MAX)
                return rg_fail(err, RG_ERR_INVALID, 0, "RG_TLS_PSK_FILE %.200s has more than %d keys", name,
                               TLS_KEYS_MAX);
            int ok = key_session(ctx, &ctx->key[ctx->n_keys++], key, (size_t)len);
            OPENSSL_cleanse(key, sizeof key);
            if (!ok) return rg_fail(err, RG_ERR_NOMEM, 0, "the group key cannot be set up: %s", openssl_text());
        }
        at += skip;
    }
    return ctx->n_keys ? RG_OK
                       : rg_fail(err, RG_ERR_INVALID, 0,
                                 "RG_TLS_PSK_FILE %.200s has no key in it; `regroup keygen` makes one", name);
}

/* Client: the first key is the one to be used. */
static int psk_use(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_len, SSL_SESSION **session) {
    rg_tls_ctx_t *ctx = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    const SSL_CIPHER *cipher = SSL_SESSION_get0_cipher(ctx->key[0].session);
    *session = NULL;
    *id = NULL;
    *id_len = 0;
    if (md && SSL_CIPHER_get_handshake_digest(cipher) != md) return 1; /* asked again for another hash: we have none */
    SSL_SESSION_up_ref(ctx->key[0].session);
    *session = ctx->key[0].session;
    *id = (const unsigned char *)ctx->key[0].identity;
    *id_len = strlen(ctx->key[0].identity);
    return 1;
}

/* Server: every key of the file is accepted. */
static int psk_find(SSL *ssl, const unsigned char *id, size_t id_len, SSL_SESSION **session) {
    rg_tls_ctx_t *ctx = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    rg_tls_t *t = SSL_get_app_data(ssl);
    size_t prefix = sizeof identity_prefix - 1;
    *session = NULL;
    for (uint32_t i = 0; i < ctx->n_keys; i++)
        if (strlen(ctx->key[i].identity) == id_len && memcmp(ctx->key[i].identity, id, id_len) == 0) {
            SSL_SESSION_up_ref(ctx->key[i].session);
            *session = ctx->key[i].session;
            return 1;
        }
    if (id_len == prefix + TLS_MARK && memcmp(id, identity_prefix, prefix) == 0)
        for (int i = 0; i < TLS_MARK; i++) /* it goes into texts: nothing but what it must be */
            t->their_key[i] = hex((char)id[prefix + (size_t)i]) < 0 ? '?' : (char)id[prefix + (size_t)i];
    return 1;
}

static void use_keys(rg_tls_ctx_t *ctx) {
    ctx->psk = 1;
    SSL_CTX_set_psk_use_session_callback(ctx->ssl, psk_use);
    SSL_CTX_set_psk_find_session_callback(ctx->ssl, psk_find);
    /* A server that does not know the key has to show a certificate then, which nothing here trusts. */
    SSL_CTX_set_verify(ctx->ssl, SSL_VERIFY_PEER, NULL);
}

static rg_status_t open_psk(rg_tls_ctx_t *ctx, const char *name, rg_error_t *err) {
    char text[TLS_FILE_MAX];
    rg_status_t st = read_keys(ctx, name, text, sizeof text, err);
    if (st == RG_OK) st = add_keys(ctx, name, text, err);
    OPENSSL_cleanse(text, sizeof text);
    use_keys(ctx);
    return st;
}

/* ---- Certificates ---------------------------------------------------------------------------------------------- */

/* Nobody is there to be asked for a passphrase. */
static int no_passphrase(char *buf, int size, int writing, void *user) {
    (void)buf, (void)size, (void)writing, (void)user;
    return 0;
}

static rg_status_t file_wrong(const char *variable, const char *name, const char *what, rg_error_t *err) {
    return rg_fail(err, RG_ERR_INVALID, 0, "%s %.200s: expected %s: %s", variable, name, what, openssl_text());
}

/* OpenSSL would wait for a pipe's other end, and read a device for ever. */
static rg_status_t check_file(const char *variable, const char *name, rg_error_t *err) {
    struct stat st;
    if (stat(name, &st) != 0)
        return rg_fail(err, RG_ERR_INVALID, errno, "%s %.200s cannot be read: %s", variable, name, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size > TLS_PEM_MAX)
        return rg_fail(err, RG_ERR_INVALID, 0, "%s %.200s: expected a regular file (PEM) of at most %lld bytes",
                       variable, name, TLS_PEM_MAX);
    return RG_OK;
}

/* A certificate that is of no use now is told now, and not by a stranger in a handshake. */
static void note_dates(rg_tls_ctx_t *ctx, const char *name) {
    const X509 *own = SSL_CTX_get0_certificate(ctx->ssl);
    int late = X509_cmp_current_time(X509_get0_notAfter(own)) < 0;
    if (!late && X509_cmp_current_time(X509_get0_notBefore(own)) <= 0) return;
    snprintf(ctx->warning, sizeof ctx->warning, "the certificate RG_TLS_CERT %.200s %s: others will refuse it", name,
             late ? "has expired" : "is not valid yet");
}

static void use_certificates(rg_tls_ctx_t *ctx) {
    SSL_CTX_set_verify(ctx->ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_verify_depth(ctx->ssl, 4);
}

static rg_status_t open_certificates(rg_tls_ctx_t *ctx, const rg_tls_files_t *f, rg_error_t *err) {
    struct stat st;
    rg_status_t rc = check_file("RG_TLS_CA", f->ca, err);
    if (rc == RG_OK) rc = check_file("RG_TLS_CERT", f->cert, err);
    if (rc == RG_OK) rc = check_file("RG_TLS_KEY", f->key, err);
    if (rc != RG_OK) return rc;
    SSL_CTX_set_default_passwd_cb(ctx->ssl, no_passphrase);
    if (!SSL_CTX_load_verify_file(ctx->ssl, f->ca))
        return file_wrong("RG_TLS_CA", f->ca, "certificates of authorities (PEM)", err);
    if (SSL_CTX_use_certificate_chain_file(ctx->ssl, f->cert) != 1)
        return file_wrong("RG_TLS_CERT", f->cert, "a certificate (PEM)", err);
    if (SSL_CTX_use_PrivateKey_file(ctx->ssl, f->key, SSL_FILETYPE_PEM) != 1)
        return file_wrong("RG_TLS_KEY", f->key, "the private key of RG_TLS_CERT (PEM, without a passphrase)", err);
    if (SSL_CTX_check_private_key(ctx->ssl) != 1)
        return rg_fail(err, RG_ERR_INVALID, 0, "RG_TLS_KEY %.200s is not the key of RG_TLS_CERT %.200s", f->key,
                       f->cert);
    use_certificates(ctx);
    if (stat(f->key, &st) == 0) note_readable(ctx, f->key, &st);
    note_dates(ctx, f->cert);
    return RG_OK;
}

/* ---- The context ----------------------------------------------------------------------------------------------- */

static pthread_once_t library_once = PTHREAD_ONCE_INIT;
/* Its clean-up at exit is left out: it would pull the tables from under threads that still run. */
static void library_init(void) { OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL); }

/* Other programs that trust the same authorities speak other protocols. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *len, const unsigned char *in, unsigned n,
                           void *user) {
    unsigned char *found;
    (void)ssl, (void)user;
    if (SSL_select_next_proto(&found, len, protocol, sizeof protocol - 1, in, n) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = found;
    return SSL_TLSEXT_ERR_OK;
}

static int set_up(SSL_CTX *c) {
    SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION |
                               SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_max_cert_list(c, 16384);
    SSL_CTX_set_alpn_select_cb(c, choose_protocol, NULL);
    SSL_CTX_set_keylog_callback(c, rg_tls_secret);
    return SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) && SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) &&
           SSL_CTX_set_ciphersuites(c, ciphers()) && SSL_CTX_set_num_tickets(c, 0) &&
           SSL_CTX_set_session_id_context(c, protocol, sizeof protocol - 1) &&
           SSL_CTX_set_alpn_protos(c, protocol, sizeof protocol - 1) == 0;
}

/* Without keys or certificates yet. */
static rg_status_t ctx_new(rg_tls_ctx_t **out, rg_error_t *err) {
    pthread_once(&library_once, library_init);
    ERR_clear_error();
    rg_tls_ctx_t *ctx = *out = calloc(1, sizeof *ctx);
    if (!ctx) return rg_fail(err, RG_ERR_NOMEM, 0, "no memory for TLS");
    ctx->rekey_bytes = TLS_REKEY_BYTES;
    ctx->tokens = RG_TLS_BURST;
    ctx->tokens_at = rg_os_now_ns();
    ctx->ssl = SSL_CTX_new(TLS_method());
    ctx->bio = rg_tls_bio();
    if (!ctx->ssl || !ctx->bio || !set_up(ctx->ssl))
        return rg_fail(err, RG_ERR_SYSTEM, 0, "TLS 1.3 cannot be set up: %s", openssl_text());
    SSL_CTX_set_app_data(ctx->ssl, ctx);
    return RG_OK;
}

static rg_status_t ctx_made(rg_tls_ctx_t **ctx, rg_status_t st) {
    ERR_clear_error();
    if (st != RG_OK) {
        rg_tls_close(*ctx);
        *ctx = NULL;
    }
    return st;
}

rg_status_t rg_tls_open(const rg_tls_files_t *files, rg_tls_ctx_t **out, rg_error_t *err) {
    *out = NULL;
    if (!files->tls || strcmp(files->tls, "on") != 0) return RG_OK;
    rg_status_t st = ctx_new(out, err);
    if (st == RG_OK) st = files->psk ? open_psk(*out, files->psk, err) : open_certificates(*out, files, err);
    return ctx_made(out, st);
}

static int copy_keys(rg_tls_ctx_t *to, const rg_tls_ctx_t *from) {
    for (uint32_t i = 0; i < from->n_keys; i++) {
        to->key[i].session = SSL_SESSION_dup(from->key[i].session);
        if (!to->key[i].session) return 0;
        to->n_keys = i + 1;
        memcpy(to->key[i].identity, from->key[i].identity, sizeof to->key[i].identity);
    }
    use_keys(to);
    return 1;
}

/* They are counted by reference, and nothing changes them any more. */
static int copy_certificates(rg_tls_ctx_t *to, const rg_tls_ctx_t *from) {
    STACK_OF(X509) *chain = NULL;
    SSL_CTX_set1_cert_store(to->ssl, SSL_CTX_get_cert_store(from->ssl));
    use_certificates(to);
    return SSL_CTX_use_certificate(to->ssl, SSL_CTX_get0_certificate(from->ssl)) == 1 &&
           SSL_CTX_get0_chain_certs(from->ssl, &chain) && SSL_CTX_set1_chain(to->ssl, chain) &&
           SSL_CTX_use_PrivateKey(to->ssl, SSL_CTX_get0_privatekey(from->ssl)) == 1;
}

rg_status_t rg_tls_copy(const rg_tls_ctx_t *from, rg_tls_ctx_t **out, rg_error_t *err) {
    *out = NULL;
    if (!from) return RG_OK;
    rg_status_t st = ctx_new(out, err);
    if (st == RG_OK && !(from->psk ? copy_keys(*out, from) : copy_certificates(*out, from)))
        st = rg_fail(err, RG_ERR_NOMEM, 0, "keys cannot be used a second time: %s", openssl_text());
    return ctx_made(out, st);
}

void rg_tls_close(rg_tls_ctx_t *ctx) {
    if (!ctx) return;
    for (uint32_t i = 0; i < ctx->n_keys; i++) SSL_SESSION_free(ctx->key[i].session);
    SSL_CTX_free(ctx->ssl);
    BIO_meth_free(ctx->bio);
    free(ctx);
}

const char *rg_tls_warning(const rg_tls_ctx_t *ctx) { return ctx ? ctx->warning : ""; }

void rg_tls_rekey_after(rg_tls_ctx_t *ctx, uint64_t bytes) { ctx->rekey_bytes = bytes; }
