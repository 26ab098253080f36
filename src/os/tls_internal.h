/* tls_internal.h: what the two files of TLS share: tls_ctx.c reads keys and certificates and answers OpenSSL's
 * questions about them, tls.c moves bytes. Only these two files include OpenSSL's headers in the library. It must not
 * be included elsewhere: everybody else knows tls.h. */
#ifndef RG_TLS_INTERNAL_H
#define RG_TLS_INTERNAL_H

#include "os/tls.h"

#include <openssl/ssl.h>

#define TLS_KEYS_MAX 8   /* group keys in one file: the first is used, all are accepted */
#define TLS_KEY_MIN 16   /* bytes */
#define TLS_KEY_MAX 64   /* bytes */
#define TLS_MARK 16      /* hexadecimal digits that tell keys apart without telling them */
#define TLS_IDENTITY 64  /* room for what a handshake calls a key: a prefix and the mark */
#define TLS_BATCH 32768u /* bytes that are encrypted before the kernel gets them: they are still in cache */

typedef struct tls_psk {
    char identity[TLS_IDENTITY];
    SSL_SESSION *session;
} tls_psk_t;

struct rg_tls_ctx {
    SSL_CTX *ssl;
    BIO_METHOD *bio;
    int psk; /* keys, not certificates */
    uint32_t n_keys;
    tls_psk_t key[TLS_KEYS_MAX];
    uint64_t rekey_bytes;
    uint32_t half_open; /* server: handshakes under way */
    double tokens;      /* server: handshakes that may begin, */
    uint64_t tokens_at; /* as of then */
    char warning[320];
};

/* One direction of a connection whose records are handled in tls_record.c. */
typedef struct tls_way {
    const EVP_CIPHER *cipher;
    const EVP_MD *md;
    EVP_CIPHER_CTX *c;
    struct rg_gcm *gcm; /* instead of it, where there is one */
    uint64_t seq;
    uint8_t iv[12], secret[EVP_MAX_MD_SIZE];
    size_t secret_len;
} tls_way_t;

struct rg_tls {
    SSL *ssl; /* NULL: the records are handled in tls_record.c */
    rg_tls_ctx_t *ctx;
    tls_way_t tx, rx;
    uint8_t *in, *held; /* encrypted, as it came; a record that was opened and did not fit where it was wanted */
    size_t in_off, in_len, held_off, held_len;
    int fd, server, bulk;
    int up, failed, more, unfit;
    uint8_t *out; /* encrypted, not sent yet */
    size_t out_off, out_len, out_cap;
    uint64_t keyed;               /* bytes sent with the present key, had every record been full */
    char their_key[TLS_MARK + 1]; /* server: mark of the key that the other side offered and nobody here knows */
    char why[256];
};

BIO_METHOD *rg_tls_bio(void); /* tls.c: how OpenSSL reads and writes a connection's bytes */

/* tls_record.c */
void rg_tls_secret(const SSL *ssl, const char *line);
int rg_tls_record_open(rg_tls_t *t); /* 0: no memory */
void rg_tls_record_close(rg_tls_t *t);
size_t rg_tls_record_write(rg_tls_t *t, const uint8_t *a, size_t an, const uint8_t *b, size_t bn);
enum { TLS_RECORD_WAIT = -1, TLS_RECORD_END = -2, TLS_RECORD_BROKEN = -3, TLS_RECORD_ERRNO = -4, TLS_RECORD_FULL = -5 };
int rg_tls_record_read(rg_tls_t *t, uint8_t *p, size_t n, size_t *got);
void rg_tls_why_alert(rg_tls_t *t, int alert); /* tls.c */
void rg_tls_why_is(rg_tls_t *t, const char *text);

#endif
