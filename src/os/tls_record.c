/* tls_record.c: the records of TLS 1.3 (RFC 8446, section 5) on connections that carry data, once OpenSSL has done the
 * handshake. OpenSSL's own way copies every byte three times on its way between the caller and the socket; here a
 * record is sealed from the caller's memory into what the kernel gets, and opened from what the kernel gave into the
 * caller's. The other side may do it either way. Relies on OpenSSL's ciphers and key derivation. It must hand on
 * nothing that has not been authenticated but into memory that its owner does not look at unless the call says how much
 * of it is valid. */
#include "os/gcm.h"
#include "os/tls_internal.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <stdlib.h>
#include <string.h>

#define HEAD 5u
#define TAG 16u
#define CONTENT_MAX 16384u
#define SEALED_MAX (CONTENT_MAX + 256u) /* what a header may announce */
#define IN_BYTES (4 * (SEALED_MAX + HEAD))

enum { TYPE_ALERT = 21, TYPE_HANDSHAKE = 22, TYPE_DATA = 23 };
enum { KEY_UPDATE = 24 };

/* ---- Keys ------------------------------------------------------------------------------------------------------- */

/* HKDF-Expand-Label with an empty context. */
static int expand(const tls_way_t *w, const char *label, uint8_t *out, size_t n) {
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "TLS13-KDF", NULL);
    EVP_KDF_CTX *c = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
    OSSL_PARAM p[] = {
        OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)(uintptr_t)EVP_MD_get0_name(w->md), 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)(uintptr_t)w->secret, w->secret_len),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_PREFIX, (void *)(uintptr_t) "tls13 ", 6),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_LABEL, (void *)(uintptr_t)label, strlen(label)),
        OSSL_PARAM_construct_end(),
    };
    int ok = c && EVP_KDF_derive(c, out, n, p) > 0;
    EVP_KDF_CTX_free(c);
    EVP_KDF_free(kdf);
    return ok;
}

static int way_key(tls_way_t *w, int sealing) {
    uint8_t key[EVP_MAX_KEY_LENGTH];
    size_t n = (size_t)EVP_CIPHER_get_key_length(w->cipher);
    int ok = expand(w, "key", key, n) && expand(w, "iv", w->iv, sizeof w->iv);
    rg_gcm_free(w->gcm);
    w->gcm = ok && !EVP_CIPHER_is_a(w->cipher, "ChaCha20-Poly1305") ? rg_gcm_new(key, n) : NULL;
    if (!w->gcm) ok = ok && EVP_CipherInit_ex(w->c, w->cipher, NULL, key, NULL, sealing);
    OPENSSL_cleanse(key, sizeof key);
    w->seq = 0;
    return ok;
}

/* The next generation of a direction's keys. */
static int way_update(tls_way_t *w, int sealing) {
    uint8_t next[EVP_MAX_MD_SIZE];
    int ok = expand(w, "traffic upd", next, w->secret_len);
    memcpy(w->secret, next, w->secret_len);
    OPENSSL_cleanse(next, sizeof next);
    return ok && way_key(w, sealing);
}

static int unhex(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* OpenSSL tells the secrets in the form in which others write them into files: a word, the client's random number, the
 * secret. They stay here. */
void rg_tls_secret(const SSL *ssl, const char *line) {
    static const char client[] = "CLIENT_TRAFFIC_SECRET_0 ", server[] = "SERVER_TRAFFIC_SECRET_0 ";
    rg_tls_t *t = SSL_get_app_data(ssl);
    int from_client = strncmp(line, client, sizeof client - 1) == 0;
    if (!t || !t->bulk || (!from_client && strncmp(line, server, sizeof server - 1) != 0)) return;
    const char *p = strchr(line + sizeof client - 1, ' ');
    tls_way_t *w = from_client == !t->server ? &t->tx : &t->rx;
    size_t n = 0;
    for (p = p ? p + 1 : ""; n < sizeof w->secret; n++, p += 2) {
        int a = unhex(p[0]), b = a < 0 ? -1 : unhex(p[1]);
        if (b < 0) break;
        w->secret[n] = (uint8_t)(a << 4 | b);
    }
    w->secret_len = n;
}

static int way_open(tls_way_t *w, const SSL_CIPHER *cipher, int sealing) {
    const char *name = SSL_CIPHER_get_name(cipher);
    w->md = SSL_CIPHER_get_handshake_digest(cipher);
    w->cipher = strstr(name, "AES_128_GCM")         ? EVP_aes_128_gcm()
                : strstr(name, "AES_256_GCM")       ? EVP_aes_256_gcm()
                : strstr(name, "CHACHA20_POLY1305") ? EVP_chacha20_poly1305()
                                                    : NULL;
    w->c = EVP_CIPHER_CTX_new();
    return w->md && w->cipher && w->c && w->secret_len == (size_t)EVP_MD_get_size(w->md) && way_key(w, sealing);
}

static void way_close(tls_way_t *w) {
    EVP_CIPHER_CTX_free(w->c);
    rg_gcm_free(w->gcm);
    OPENSSL_cleanse(w, sizeof *w);
}

int rg_tls_record_open(rg_tls_t *t) {
    const SSL_CIPHER *cipher = SSL_get_current_cipher(t->ssl);
    t->in = malloc(IN_BYTES);
    t->held = malloc(SEALED_MAX);
    return t->in && t->held && cipher && way_open(&t->tx, cipher, 1) && way_open(&t->rx, cipher, 0);
}

void rg_tls_record_close(rg_tls_t *t) {
    way_close(&t->tx);
    way_close(&t->rx);
    free(t->in);
    free(t->held);
}

static void nonce(tls_way_t *w, uint8_t out[12]) {
    memcpy(out, w->iv, 12);
    for (int i = 0; i < 8; i++) out[11 - i] ^= (uint8_t)(w->seq >> (8 * i));
    w->seq++;
}

/* ---- Sealing ---------------------------------------------------------------------------------------------------- */

/* What a record has behind its head, by OpenSSL: two pieces, the type, the tag. */
static int seal_evp(EVP_CIPHER_CTX *c, const uint8_t *iv, uint8_t *head, uint8_t type, const void *a, size_t an,
                    const void *b, size_t bn) {
    uint8_t *at = head + HEAD;
    int k, ok = EVP_EncryptInit_ex(c, NULL, NULL, NULL, iv) && EVP_EncryptUpdate(c, NULL, &k, head, HEAD);
    if (ok && an) ok = EVP_EncryptUpdate(c, at, &k, a, (int)an);
    if (ok && bn) ok = EVP_EncryptUpdate(c, at + an, &k, b, (int)bn);
    at += an + bn;
    return ok && EVP_EncryptUpdate(c, at, &k, &type, 1) && EVP_EncryptFinal_ex(c, at + 1, &k) &&
           EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, TAG, at + 1);
}

static void seal_gcm(rg_gcm_t *g, const uint8_t *iv, uint8_t *head, uint8_t type, const void *a, size_t an,
                     const void *b, size_t bn) {
    uint8_t *at = head + HEAD;
    rg_gcm_begin(g, iv, head, HEAD);
    if (an) rg_gcm_seal(g, at, a, an);
    if (bn) rg_gcm_seal(g, at + an, b, bn);
    at += an + bn;
    rg_gcm_seal(g, at, &type, 1);
    rg_gcm_end(g, at + 1);
}

/* One record of the two pieces behind what is in `out` already, which has room. */
static int seal(rg_tls_t *t, uint8_t type, const void *a, size_t an, const void *b, size_t bn) {
    uint8_t iv[12], *head = t->out + t->out_len;
    size_t n = an + bn + 1 + TAG;
    tls_way_t *w = &t->tx;
    int ok = 1;
    head[0] = TYPE_DATA;
    head[1] = head[2] = 3;
    head[3] = (uint8_t)(n >> 8);
    head[4] = (uint8_t)n;
    nonce(w, iv);
    if (w->gcm) seal_gcm(w->gcm, iv, head, type, a, an, b, bn);
    else ok = seal_evp(w->c, iv, head, type, a, an, b, bn);
    if (ok) t->out_len += HEAD + n;
    return ok;
}

static int out_room(rg_tls_t *t) {
    size_t cap = TLS_BATCH + 4 * (HEAD + 1 + TAG) + 64;
    if (t->out_cap >= cap) return 1;
    uint8_t *more = realloc(t->out, cap);
    if (!more) return 0;
    t->out = more;
    t->out_cap = cap;
    return 1;
}

/* `out` is empty. Returns how much was taken, 0 when it failed. */
size_t rg_tls_record_write(rg_tls_t *t, const uint8_t *a, size_t an, const uint8_t *b, size_t bn) {
    static const uint8_t update[5] = { KEY_UPDATE, 0, 0, 1, 0 };
    size_t taken = 0;
    if (!out_room(t)) return 0;
    if (t->keyed >= t->ctx->rekey_bytes) {
        if (!seal(t, TYPE_HANDSHAKE, update, sizeof update, NULL, 0) || !way_update(&t->tx, 1)) return 0;
        t->keyed = 0;
    }
    while (taken < TLS_BATCH && an + bn > 0) {
        size_t k = an < CONTENT_MAX ? an : CONTENT_MAX;
        if (k > TLS_BATCH - taken) k = TLS_BATCH - taken;
        size_t m = CONTENT_MAX - k < TLS_BATCH - taken - k ? CONTENT_MAX - k : TLS_BATCH - taken - k;
        if (k < an) m = 0;
        if (m > bn) m = bn;
        if (!seal(t, TYPE_DATA, a, k, b, m)) return 0;
        if (k) a += k, an -= k;
        if (m) b += m, bn -= m;
        taken += k + m;
        t->keyed += CONTENT_MAX; /* what wears a key out is records, however small */
    }
    return taken;
}

/* ---- Opening ---------------------------------------------------------------------------------------------------- */

/* Opens the whole record at `in`: `content` bytes go to `to`, the type behind them comes back. 0: it is not genuine. */
static int unseal(tls_way_t *w, const uint8_t *head, size_t content, uint8_t *to) {
    uint8_t iv[12], tag[TAG], type = 0;
    const uint8_t *tail = head + HEAD + content;
    int k;
    nonce(w, iv);
    if (w->gcm) {
        rg_gcm_begin(w->gcm, iv, head, HEAD);
        if (content) rg_gcm_open(w->gcm, to, head + HEAD, content);
        rg_gcm_open(w->gcm, &type, tail, 1);
        rg_gcm_end(w->gcm, tag);
        return CRYPTO_memcmp(tag, tail + 1, TAG) == 0 ? type : 0;
    }
    memcpy(tag, tail + 1, TAG);
    int ok = EVP_DecryptInit_ex(w->c, NULL, NULL, NULL, iv) && EVP_DecryptUpdate(w->c, NULL, &k, head, HEAD);
    if (ok && content) ok = EVP_DecryptUpdate(w->c, to, &k, head + HEAD, (int)content);
    ok = ok && EVP_DecryptUpdate(w->c, &type, &k, tail, 1) &&
         EVP_CIPHER_CTX_ctrl(w->c, EVP_CTRL_AEAD_SET_TAG, TAG, tag) && EVP_DecryptFinal_ex(w->c, iv, &k) > 0;
    return ok ? type : 0;
}

/* Something that is not data. Returns what rg_tls_record_read() is to return, or 1 to go on. */
static int not_data(rg_tls_t *t, int type, const uint8_t *p, size_t n) {
    if (type == TYPE_HANDSHAKE && n == 5 && p[0] == KEY_UPDATE && !p[1] && !p[2] && p[3] == 1 && p[4] <= 1) {
        if (p[4]) t->keyed = UINT64_MAX; /* it wants ours to be renewed as well */
        if (way_update(&t->rx, 0)) return 1;
    }
    if (type == TYPE_ALERT && n == 2) {
        if (p[1] == SSL_AD_CLOSE_NOTIFY) return TLS_RECORD_END;
        rg_tls_why_alert(t, p[1]);
        return TLS_RECORD_BROKEN;
    }
    rg_tls_why_is(t, type == 0 ? "a record was changed on the way, or is not of this connection"
                               : "the other side sent what has no place here");
    return TLS_RECORD_BROKEN;
}

/* The next record, when it is whole: straight to `to` when it fits there, else into `held`. */
static int next_record(rg_tls_t *t, uint8_t *to, size_t room, int first, size_t *got) {
    const uint8_t *head = t->in + t->in_off;
    size_t have = t->in_len - t->in_off, sealed = have < HEAD ? 0 : (size_t)head[3] << 8 | head[4];
    *got = 0;
    if (have >= HEAD &&
        (head[0] != TYPE_DATA || head[1] != 3 || head[2] != 3 || sealed < 1 + TAG || sealed > SEALED_MAX)) {
        rg_tls_why_is(t, "what comes is no record of TLS");
        return TLS_RECORD_BROKEN;
    }
    if (have < HEAD || have < HEAD + sealed) return TLS_RECORD_WAIT;
    size_t content = sealed - 1 - TAG;
    int straight = content <= room;
    if (!straight && !first) return TLS_RECORD_FULL; /* next time it will fit, and be copied once less */
    int type = unseal(&t->rx, head, content, straight ? to : t->held);
    t->in_off += HEAD + sealed;
    if (type != TYPE_DATA) return not_data(t, type, straight ? to : t->held, content);
    if (straight) {
        *got = content;
        return 1;
    }
    t->held_off = room;
    t->held_len = content;
    memcpy(to, t->held, room);
    *got = room;
    return 1;
}

/* Reads what the socket has behind what is there: 1; else how that ended. */
static int fill(rg_tls_t *t) {
    if (t->in_off == t->in_len) t->in_off = t->in_len = 0;
    if (IN_BYTES - t->in_len < SEALED_MAX + HEAD) {
        memmove(t->in, t->in + t->in_off, t->in_len - t->in_off);
        t->in_len -= t->in_off;
        t->in_off = 0;
    }
    ssize_t n;
    do n = recv(t->fd, t->in + t->in_len, IN_BYTES - t->in_len, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n == 0) return TLS_RECORD_END;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? TLS_RECORD_WAIT : TLS_RECORD_ERRNO;
    t->in_len += (size_t)n;
    return 1;
}

/* Fills p as far as there is something. *got is valid whatever comes back: 1 when p is full,
 * TLS_RECORD_FULL when what comes next does not fit into the rest of it. */
int rg_tls_record_read(rg_tls_t *t, uint8_t *p, size_t n, size_t *got) {
    size_t part = t->held_len - t->held_off;
    *got = part < n ? part : n;
    if (*got) memcpy(p, t->held + t->held_off, *got);
    t->held_off += *got;
    while (*got < n) {
        int rc = next_record(t, p + *got, n - *got, *got == 0, &part);
        *got += part;
        if (rc == TLS_RECORD_WAIT) rc = fill(t);
        if (rc != 1) return rc;
    }
    return 1;
}
