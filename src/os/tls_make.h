/* tls_make.h: makes what TLS needs: a group key, or an authority and the certificates that it signs. `regroup keygen`
 * and the tests call it; the library itself only reads such files. It relies on OpenSSL. It must not overwrite a file
 * unless told to, nor leave one that others can read. */
#ifndef RG_TLS_MAKE_H
#define RG_TLS_MAKE_H

#include "regroup.h"

/* Every file is made with mode 0600. One that is there already is an error (SYSTEM, EEXIST), unless force is set. */

/* A name goes into certificates, into file names of the command and into tables: 1 to 64 bytes of UTF-8 without blanks,
 * slashes and what moves a cursor. INVALID otherwise. */
rg_status_t rg_tls_check_name(const char *name, rg_error_t *err);

/* A key of 32 random bytes for RG_TLS_PSK_FILE. */
rg_status_t rg_tls_make_key(const char *file, int force, rg_error_t *err);

/* An authority: its certificate for RG_TLS_CA, and the key that signs, which no member needs. */
rg_status_t rg_tls_make_ca(const char *cert_file, const char *key_file, const char *name, uint32_t days, int force,
                           rg_error_t *err);

/* A member's certificate and key for RG_TLS_CERT and RG_TLS_KEY, signed by such an authority; valid from `from` to `to`
 * seconds from now, either of which may be negative. */
rg_status_t rg_tls_make_member(const char *ca_cert, const char *ca_key, const char *cert_file, const char *key_file,
                               const char *name, int64_t from, int64_t to, int force, rg_error_t *err);

#endif
