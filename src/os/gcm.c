/* gcm.c: see gcm.h. With RG_HAVE_IPSEC_MB (the Makefile looks for the header) it calls intel-ipsec-mb, whose functions
 * for one message at a time keep nothing in the manager, so one of these serves all threads. Relies on the library's
 * choice of code for the processor. It must not write a key anywhere but into memory that rg_gcm_free() wipes. */
#include "os/gcm.h"

static int off;

void rg_gcm_use(int on) { off = !on; }

#ifdef RG_HAVE_IPSEC_MB

#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdlib.h>

struct rg_gcm {
    struct gcm_key_data key;
    struct gcm_context_data state;
    int wide; /* 256 bits */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static IMB_MGR *manager; /* NULL: not here; made once, kept until the process ends */

static void make_manager(void) {
    static const uint64_t wanted = IMB_FEATURE_AVX512_SKX | IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ;
    IMB_MGR *m = alloc_mb_mgr(0);
    IMB_ARCH arch;
    if (!m) return;
    init_mb_mgr_auto(m, &arch);
    if (imb_get_errno(m) == 0 && (m->features & wanted) == wanted) manager = m;
    else free_mb_mgr(m);
}

rg_gcm_t *rg_gcm_new(const uint8_t *key, size_t bytes) {
    if (off || (bytes != 16 && bytes != 32)) return NULL;
    pthread_once(&once, make_manager);
    if (!manager) return NULL;
    rg_gcm_t *g = aligned_alloc(64, (sizeof *g + 63) / 64 * 64);
    if (!g) return NULL;
    g->wide = bytes == 32;
    if (g->wide) IMB_AES256_GCM_PRE(manager, key, &g->key);
    else IMB_AES128_GCM_PRE(manager, key, &g->key);
    return g;
}

void rg_gcm_free(rg_gcm_t *g) {
    if (g) OPENSSL_cleanse(g, sizeof *g);
    free(g);
}

void rg_gcm_begin(rg_gcm_t *g, const uint8_t iv[RG_GCM_IV], const uint8_t *also, size_t also_bytes) {
    if (g->wide) IMB_AES256_GCM_INIT(manager, &g->key, &g->state, iv, also, also_bytes);
    else IMB_AES128_GCM_INIT(manager, &g->key, &g->state, iv, also, also_bytes);
}

void rg_gcm_seal(rg_gcm_t *g, uint8_t *out, const uint8_t *in, size_t n) {
    if (g->wide) IMB_AES256_GCM_ENC_UPDATE(manager, &g->key, &g->state, out, in, n);
    else IMB_AES128_GCM_ENC_UPDATE(manager, &g->key, &g->state, out, in, n);
}

void rg_gcm_open(rg_gcm_t *g, uint8_t *out, const uint8_t *in, size_t n) {
    if (g->wide) IMB_AES256_GCM_DEC_UPDATE(manager, &g->key, &g->state, out, in, n);
    else IMB_AES128_GCM_DEC_UPDATE(manager, &g->key, &g->state, out, in, n);
}

/* To end is the same in both directions: the tag is of what was sealed. */
void rg_gcm_end(rg_gcm_t *g, uint8_t tag[RG_GCM_TAG]) {
    if (g->wide) IMB_AES256_GCM_ENC_FINALIZE(manager, &g->key, &g->state, tag, RG_GCM_TAG);
    else IMB_AES128_GCM_ENC_FINALIZE(manager, &g->key, &g->state, tag, RG_GCM_TAG);
}

#else

rg_gcm_t *rg_gcm_new(const uint8_t *key, size_t bytes) {
    (void)key;
    (void)bytes;
    return NULL;
}

void rg_gcm_free(rg_gcm_t *g) { (void)g; }

void rg_gcm_begin(rg_gcm_t *g, const uint8_t iv[RG_GCM_IV], const uint8_t *also, size_t also_bytes) {
    (void)g;
    (void)iv;
    (void)also;
    (void)also_bytes;
}

void rg_gcm_seal(rg_gcm_t *g, uint8_t *out, const uint8_t *in, size_t n) {
    (void)g;
    (void)out;
    (void)in;
    (void)n;
}

void rg_gcm_open(rg_gcm_t *g, uint8_t *out, const uint8_t *in, size_t n) { rg_gcm_seal(g, out, in, n); }

void rg_gcm_end(rg_gcm_t *g, uint8_t tag[RG_GCM_TAG]) {
    (void)g;
    (void)tag;
}

#endif
