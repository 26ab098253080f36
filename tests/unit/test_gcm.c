/* test_gcm.c: the fast AES-GCM gives what OpenSSL's gives, however a message is cut into pieces. */
#include "os/gcm.h"

#include <criterion/criterion.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define MOST 40000u

static void by_openssl(const uint8_t *key, size_t bytes, const uint8_t *iv, const uint8_t *in, size_t n, uint8_t *out,
                       uint8_t *tag) {
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    int k;
    cr_assert(EVP_EncryptInit_ex(c, bytes == 16 ? EVP_aes_128_gcm() : EVP_aes_256_gcm(), NULL, key, iv) &&
              EVP_EncryptUpdate(c, NULL, &k, (const uint8_t *)"\27\3\3\0\5", 5) &&
              EVP_EncryptUpdate(c, out, &k, in, (int)n) && EVP_EncryptFinal_ex(c, out + n, &k) &&
              EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, RG_GCM_TAG, tag));
    EVP_CIPHER_CTX_free(c);
}

static void message(rg_gcm_t *g, const uint8_t *key, size_t bytes, size_t n, size_t piece) {
    static uint8_t in[MOST], out[MOST], back[MOST], want[MOST + 16];
    uint8_t iv[RG_GCM_IV], tag[RG_GCM_TAG], want_tag[RG_GCM_TAG];
    for (size_t i = 0; i < n; i++) in[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t i = 0; i < sizeof iv; i++) iv[i] = (uint8_t)(n + 3 * i + piece);
    by_openssl(key, bytes, iv, in, n, want, want_tag);
    rg_gcm_begin(g, iv, (const uint8_t *)"\27\3\3\0\5", 5);
    for (size_t at = 0; at < n; at += piece) rg_gcm_seal(g, out + at, in + at, n - at < piece ? n - at : piece);
    rg_gcm_end(g, tag);
    cr_assert(memcmp(out, want, n) == 0 && memcmp(tag, want_tag, sizeof tag) == 0, "%zu bytes by %zu", n, piece);
    rg_gcm_begin(g, iv, (const uint8_t *)"\27\3\3\0\5", 5);
    for (size_t at = 0; at < n; at += piece) rg_gcm_open(g, back + at, out + at, n - at < piece ? n - at : piece);
    rg_gcm_end(g, tag);
    cr_assert(memcmp(back, in, n) == 0 && memcmp(tag, want_tag, sizeof tag) == 0, "%zu bytes by %zu", n, piece);
    if (!n) return;
    out[n / 2] ^= 1;
    rg_gcm_begin(g, iv, (const uint8_t *)"\27\3\3\0\5", 5);
    rg_gcm_open(g, back, out, n);
    rg_gcm_end(g, tag);
    cr_assert(memcmp(tag, want_tag, sizeof tag) != 0, "a changed byte of %zu was not noticed", n);
}

Test(gcm, any_length_and_pieces__what_openssl_gives) {
    static const size_t lengths[] = { 0, 1, 15, 16, 17, 255, 256, 4097, 16385, MOST };
    static const size_t pieces[] = { 1, 16, 100, MOST };
    uint8_t key[32];
    for (size_t i = 0; i < sizeof key; i++) key[i] = (uint8_t)(7 * i + 1);
    for (size_t bytes = 16; bytes <= 32; bytes += 16) {
        rg_gcm_t *g = rg_gcm_new(key, bytes);
        if (!g) cr_skip_test("intel-ipsec-mb is not in this build, or the processor lacks VAES");
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) message(g, key, bytes, lengths[i], pieces[k]);
        rg_gcm_free(g);
    }
}

Test(gcm, what_it_is_not_for__null) {
    uint8_t key[32] = { 1 };
    cr_assert_null(rg_gcm_new(key, 24));
    rg_gcm_use(0);
    cr_assert_null(rg_gcm_new(key, 16));
    rg_gcm_use(1);
    rg_gcm_free(NULL);
}
