/* text.h: builds short texts without the C library, because the core may not call it (the purity check looks at
 * every symbol). A text that does not fit is cut, is always terminated, and never fails. */
#ifndef RG_CORE_TEXT_H
#define RG_CORE_TEXT_H

#include <stddef.h>
#include <stdint.h>

typedef struct rg_text {
    char *p;
    size_t cap, len;
} rg_text_t;

static inline rg_text_t rg_text_begin(char *p, size_t cap) {
    rg_text_t t = { p, cap, 0 };
    if (cap) p[0] = 0;
    return t;
}

void rg_text_str(rg_text_t *t, const char *s); /* s may be NULL */
void rg_text_u64(rg_text_t *t, uint64_t v);
void rg_text_hex(rg_text_t *t, uint32_t v);
void rg_text_time(rg_text_t *t, uint64_t ns); /* "412 us", "2000 ms" */

/* Length of s, looking at no more than max bytes. */
size_t rg_text_len(const char *s, size_t max);
/* Copies at most cap - 1 bytes of s (NULL: empty) and terminates. */
void rg_text_copy(char *dst, size_t cap, const char *s);
int rg_text_same(const char *a, const char *b, size_t max);

#endif
