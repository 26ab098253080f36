/* text.c: the text builder of text.h. Pure: memory of the caller only, no call but mem*. */
#include "core/text.h"

#include <string.h>

void rg_text_str(rg_text_t *t, const char *s) {
    if (!s || !t->cap) return;
    while (*s && t->len + 1 < t->cap) t->p[t->len++] = *s++;
    t->p[t->len] = 0;
}

void rg_text_u64(rg_text_t *t, uint64_t v) {
    char digits[24];
    size_t at = sizeof digits;
    digits[--at] = 0;
    do {
        digits[--at] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    rg_text_str(t, digits + at);
}

void rg_text_hex(rg_text_t *t, uint32_t v) {
    char digits[9];
    for (int i = 7; i >= 0; i--, v >>= 4) digits[i] = "0123456789abcdef"[v & 15];
    digits[8] = 0;
    rg_text_str(t, digits);
}

void rg_text_time(rg_text_t *t, uint64_t ns) {
    uint64_t us = ns / 1000;
    rg_text_u64(t, us < 10000 ? us : us / 1000);
    rg_text_str(t, us < 10000 ? " us" : " ms");
}

size_t rg_text_len(const char *s, size_t max) {
    size_t n = 0;
    while (n < max && s[n]) n++;
    return n;
}

void rg_text_copy(char *dst, size_t cap, const char *s) {
    rg_text_t t = rg_text_begin(dst, cap);
    rg_text_str(&t, s);
}

int rg_text_same(const char *a, const char *b, size_t max) {
    for (size_t i = 0; i < max; i++) {
        if (a[i] != b[i]) return 0;
        if (!a[i]) return 1;
    }
    return 1;
}
