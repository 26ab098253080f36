/* gcm.h: AES-GCM by Intel's multi-buffer library, where the build has found it and the processor has the wide
 * instructions that make it several times faster than OpenSSL 3.0 there. Only tls_record.c uses it. It must not be
 * needed: whoever gets NULL from rg_gcm_new() goes on with OpenSSL. */
#ifndef RG_GCM_H
#define RG_GCM_H

#include <stddef.h>
#include <stdint.h>

#define RG_GCM_TAG 16u
#define RG_GCM_IV 12u

typedef struct rg_gcm rg_gcm_t;

/* A key of 16 or 32 bytes. NULL: not in this build, not on this processor, turned off, or no memory. */
rg_gcm_t *rg_gcm_new(const uint8_t *key, size_t bytes);
void rg_gcm_free(rg_gcm_t *g); /* wipes it; NULL is allowed */

/* One message in pieces: rg_gcm_begin(), rg_gcm_seal() or rg_gcm_open() for each, rg_gcm_end(), which gives the tag. */
void rg_gcm_begin(rg_gcm_t *g, const uint8_t iv[RG_GCM_IV], const uint8_t *also, size_t also_bytes);
void rg_gcm_seal(rg_gcm_t *g, uint8_t *out, const uint8_t *in, size_t n);
void rg_gcm_open(rg_gcm_t *g, uint8_t *out, const uint8_t *in, size_t n);
void rg_gcm_end(rg_gcm_t *g, uint8_t tag[RG_GCM_TAG]);

/* 0: keys that are made from now on are OpenSSL's, so that tests and benchmarks see both. Not thread-safe. */
void rg_gcm_use(int on);

#endif
