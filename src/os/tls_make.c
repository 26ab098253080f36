/* tls_make.c: group keys, authorities and certificates as files. Certificates are of the plainest kind that OpenSSL
 * accepts for both sides of a connection: P-256, no names of hosts, since members are known by their group and not by
 * where they run.
 * Relies on OpenSSL and the file system. It must not keep a key in memory longer than it takes to write it. */
#include "os/tls_make.h"

#include "observe/log.h"
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_BYTES 32
#define BEFORE_S 300 /* clocks of hosts differ a little */

/* ---- Files ----------------------------------------------------------------------------------------------------- */

/* A new file, which nobody else can have opened before: what it replaces goes first, and no link is followed. */
static int file_new(const char *name, int force, rg_error_t *err) {
    if (force && unlink(name) != 0 && errno != ENOENT) {
        rg_fail(err, RG_ERR_SYSTEM, errno, "%.200s cannot be replaced: %s", name, strerror(errno));
        return -1;
    }
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        rg_fail(err, RG_ERR_SYSTEM, errno, "%.200s cannot be made: %s%s", name, strerror(errno),
                errno == EEXIST ? "; --force replaces it" : "");
    return fd;
}

static rg_status_t file_write(const char *name, const void *bytes, size_t n, int force, rg_error_t *err) {
    int fd = file_new(name, force, err);
    if (fd < 0) return RG_ERR_SYSTEM;
    const char *p = bytes;
    int bad = fchmod(fd, 0600) != 0; /* whatever the umask says */
    while (!bad && n) {
        ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            bad = 1;
            break;
        }
        p += put;
        n -= (size_t)put;
    }
    int e = errno;
    if (close(fd) != 0 && !bad) bad = 1, e = errno;
    if (!bad) return RG_OK;
    unlink(name);
    return rg_fail(err, RG_ERR_SYSTEM, e, "%.200s cannot be written: %s", name, strerror(e));
}

static rg_status_t bio_to_file(BIO *bio, const char *name, int force, rg_error_t *err) {
    char *bytes;
    long n = bio ? BIO_get_mem_data(bio, &bytes) : 0;
    rg_status_t st = n > 0 ? file_write(name, bytes, (size_t)n, force, err)
                           : rg_fail(err, RG_ERR_SYSTEM, 0, "%.200s cannot be made: OpenSSL failed", name);
    if (n > 0) OPENSSL_cleanse(bytes, (size_t)n);
    BIO_free(bio);
    return st;
}

static rg_status_t key_to_file(EVP_PKEY *key, const char *name, int force, rg_error_t *err) {
    BIO *bio = BIO_new(BIO_s_secmem());
    if (bio && !PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL)) {
        BIO_free(bio);
        bio = NULL;
    }
    return bio_to_file(bio, name, force, err);
}

static rg_status_t cert_to_file(X509 *cert, const char *name, int force, rg_error_t *err) {
    BIO *bio = BIO_new(BIO_s_mem());
    if (bio && !PEM_write_bio_X509(bio, cert)) {
        BIO_free(bio);
        bio = NULL;
    }
    return bio_to_file(bio, name, force, err);
}

/* A pair of files is made whole or not at all. */
static rg_status_t pair_to_files(X509 *cert, EVP_PKEY *key, const char *cert_file, const char *key_file, int force,
                                 rg_error_t *err) {
    rg_status_t st = key_to_file(key, key_file, force, err);
    if (st != RG_OK) return st;
    st = cert_to_file(cert, cert_file, force, err);
    if (st != RG_OK) unlink(key_file);
    return st;
}

rg_status_t rg_tls_make_key(const char *file, int force, rg_error_t *err) {
    static const char digits[] = "0123456789abcdef";
    uint8_t key[KEY_BYTES];
    char text[2 * KEY_BYTES + 1];
    if (rg_os_random(key, sizeof key) != RG_OK)
        return rg_fail(err, RG_ERR_SYSTEM, errno, "no random numbers: %s", strerror(errno));
    for (int i = 0; i < KEY_BYTES; i++) {
        text[2 * i] = digits[key[i] >> 4];
        text[2 * i + 1] = digits[key[i] & 15];
    }
    text[2 * KEY_BYTES] = '\n';
    rg_status_t st = file_write(file, text, sizeof text, force, err);
    OPENSSL_cleanse(key, sizeof key);
    OPENSSL_cleanse(text, sizeof text);
    return st;
}

/* ---- Certificates ---------------------------------------------------------------------------------------------- */

static int add_extension(X509 *cert, X509V3_CTX *ctx, int nid, const char *value) {
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, ctx, nid, value);
    int ok = e && X509_add_ext(cert, e, -1);
    X509_EXTENSION_free(e);
    return ok;
}

static int set_serial(X509 *cert) {
    uint8_t bytes[16];
    if (rg_os_random(bytes, sizeof bytes) != RG_OK) return 0;
    bytes[0] &= 0x7f;
    BIGNUM *n = BN_bin2bn(bytes, sizeof bytes, NULL);
    int ok = n && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(cert));
    BN_free(n);
    return ok;
}

/* issuer NULL: signed by itself. */
static X509 *cert_new(EVP_PKEY *key, const char *name, X509 *issuer, EVP_PKEY *issuer_key, int64_t from, int64_t to) {
    X509 *c = X509_new();
    X509_NAME *subject = c ? X509_get_subject_name(c) : NULL;
    X509V3_CTX ctx;
    int ok = c && X509_set_version(c, X509_VERSION_3) && set_serial(c) &&
             X509_gmtime_adj(X509_getm_notBefore(c), (long)from) && X509_gmtime_adj(X509_getm_notAfter(c), (long)to) &&
             X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, (const unsigned char *)name, -1, -1, 0) &&
             X509_set_issuer_name(c, issuer ? X509_get_subject_name(issuer) : subject) && X509_set_pubkey(c, key);
    X509V3_set_ctx(&ctx, issuer ? issuer : c, c, NULL, NULL, 0);
    X509V3_set_ctx_nodb(&ctx);
    ok = ok && add_extension(c, &ctx, NID_subject_key_identifier, "hash") &&
         add_extension(c, &ctx, NID_authority_key_identifier, "keyid:always");
    if (issuer)
        ok = ok && add_extension(c, &ctx, NID_basic_constraints, "critical,CA:FALSE") &&
             add_extension(c, &ctx, NID_key_usage, "critical,digitalSignature") &&
             add_extension(c, &ctx, NID_ext_key_usage, "serverAuth,clientAuth");
    else
        ok = ok && add_extension(c, &ctx, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
             add_extension(c, &ctx, NID_key_usage, "critical,keyCertSign,cRLSign");
    if (ok && X509_sign(c, issuer ? issuer_key : key, EVP_sha256())) return c;
    X509_free(c);
    return NULL;
}

static rg_status_t openssl_failed(const char *what, rg_error_t *err) {
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return rg_fail(err, RG_ERR_SYSTEM, 0, "%s: %s", what, why ? why : "OpenSSL failed");
}

rg_status_t rg_tls_check_name(const char *name, rg_error_t *err) {
    size_t n = strlen(name);
    if (n >= 1 && n <= 64) {
        for (const char *p = name; *p; p++)
            if ((unsigned char)*p <= 0x20 || *p == 0x7f || *p == '/') n = 0;
        if (n && rg_log_plain(name)) return RG_OK;
    }
    return rg_fail(err, RG_ERR_INVALID, 0, "name \"%.80s\": expected 1 to 64 characters without blanks and slashes",
                   name);
}

rg_status_t rg_tls_make_ca(const char *cert_file, const char *key_file, const char *name, uint32_t days, int force,
                           rg_error_t *err) {
    rg_status_t st = rg_tls_check_name(name, err);
    if (st != RG_OK) return st;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = key ? cert_new(key, name, NULL, NULL, -BEFORE_S, (int64_t)days * 86400) : NULL;
    st = cert ? pair_to_files(cert, key, cert_file, key_file, force, err)
              : openssl_failed("the authority cannot be made", err);
    X509_free(cert);
    EVP_PKEY_free(key);
    return st;
}

static int no_passphrase(char *buf, int size, int writing, void *user) {
    (void)buf, (void)size, (void)writing, (void)user;
    return 0;
}

static rg_status_t read_ca(const char *cert_file, const char *key_file, X509 **cert, EVP_PKEY **key, rg_error_t *err) {
    BIO *c = BIO_new_file(cert_file, "r"), *k = BIO_new_file(key_file, "r");
    *cert = c ? PEM_read_bio_X509(c, NULL, no_passphrase, NULL) : NULL;
    *key = k ? PEM_read_bio_PrivateKey(k, NULL, no_passphrase, NULL) : NULL;
    BIO_free(c);
    BIO_free(k);
    ERR_clear_error();
    if (!*cert) return rg_fail(err, RG_ERR_INVALID, 0, "%.200s cannot be read as a certificate (PEM)", cert_file);
    if (!*key)
        return rg_fail(err, RG_ERR_INVALID, 0, "%.200s cannot be read as a key (PEM, without a passphrase)", key_file);
    if (X509_check_private_key(*cert, *key) == 1) return RG_OK;
    ERR_clear_error();
    return rg_fail(err, RG_ERR_INVALID, 0, "%.200s is not the key of %.200s", key_file, cert_file);
}

rg_status_t rg_tls_make_member(const char *ca_cert, const char *ca_key, const char *cert_file, const char *key_file,
                               const char *name, int64_t from, int64_t to, int force, rg_error_t *err) {
    X509 *issuer = NULL, *cert = NULL;
    EVP_PKEY *issuer_key = NULL, *key = NULL;
    rg_status_t st = rg_tls_check_name(name, err);
    if (st == RG_OK) st = read_ca(ca_cert, ca_key, &issuer, &issuer_key, err);
    if (st == RG_OK) {
        key = EVP_EC_gen("P-256");
        cert = key ? cert_new(key, name, issuer, issuer_key, from, to) : NULL;
        st = cert ? pair_to_files(cert, key, cert_file, key_file, force, err)
                  : openssl_failed("the certificate cannot be made", err);
    }
    X509_free(cert);
    X509_free(issuer);
    EVP_PKEY_free(key);
    EVP_PKEY_free(issuer_key);
    return st;
}
