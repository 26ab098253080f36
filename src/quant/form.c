/* form.c: which way a quantised reduction goes: names, the list that a user may give, and the choice by predicted time.
 * Pure: the same answer for the same arguments on all members. It must not look at anything that only one of them
 * knows. */
#include "quant/parts.h"

#include <stdio.h>
#include <string.h>

static const char *const names[RG_QUANT_FORM_COUNT] = { "auto", "direct", "ring", "two-level", "integer" };

const char *rg_quant_form_name(uint32_t form) { return form < RG_QUANT_FORM_COUNT ? names[form] : NULL; }

static int same(const char *name, const char *s, size_t len) {
    return strlen(name) == len && memcmp(name, s, len) == 0;
}

static uint32_t form_named(const char *s, size_t len) {
    for (uint32_t f = 0; f < RG_QUANT_FORM_COUNT; f++)
        if (same(names[f], s, len)) return f;
    return UINT32_MAX;
}

/* What a list, "ring" or "all_reduce=ring,reduce_scatter=direct", says of one kind of call: 0 for nothing. The whole
 * list is checked. */
uint32_t rg_form_of_list(const char *list, const char *kind, char *text, size_t cap) {
    uint32_t found = RG_QUANT_AUTO;
    for (const char *item = list; *item != 0; item += *item == ',') {
        size_t len = strcspn(item, ",");
        const char *eq = memchr(item, '=', len), *name = eq != NULL ? eq + 1 : item;
        size_t left = eq != NULL ? (size_t)(eq - item) : 0;
        uint32_t form = form_named(name, len - (size_t)(name - item));
        int known = eq == NULL || same("all_reduce", item, left) || same("reduce_scatter", item, left);
        if (len != 0 && (form == UINT32_MAX || !known)) {
            snprintf(text, cap,
                     "RG_QUANT_ALGORITHM: '%.*s' is not understood; expected all_reduce=NAME, reduce_scatter=NAME or a "
                     "NAME for both, with commas between, and of the names auto, direct, ring, two-level, integer",
                     (int)len, item);
            return UINT32_MAX;
        }
        if (len != 0 && (eq == NULL || same(kind, item, left))) found = form;
        item += len;
    }
    return found;
}

/* ---- Choice ------------------------------------------------------------------------------------------------- */

/* Seconds for a byte of f32 that is encoded, and decoded: what any level of vectors manages (bench_codecs). */
#define ENCODE 0.15e-9
#define DECODE 0.06e-9

/* Between the direct form and that of two levels, by the time of the reduction; what follows it is the same. The ring
 * moves as many bytes as the direct form in more hops and with more error, and integers are another result: they are
 * for those who ask. */
uint32_t rg_form_choose(const rg_near_t *near, uint32_t n, uint64_t elems, uint64_t bytes, const rg_cost_model_t *m) {
    double raw = (double)elems * sizeof(float), coded = (double)bytes, wide = near->widest, all = n;
    double hosts = near->hosts, sharing = m->sharing > 1 ? m->sharing : 1, hop = m->alpha * (1 + 0.4 * (all - 1));
    if (near->widest < 2) return RG_QUANT_DIRECT;
    /* A host's link carries what all of its members send. */
    double far = hosts > 1 ? wide * (all - wide) / all : 0;
    double direct = hop + coded * (far * m->beta + (wide - 1) / all * m->level[0].beta) +
                    sharing * raw * (all - 1) / all * (ENCODE + DECODE);
    double inside = hop + raw * (wide - 1) / wide * (m->level[0].beta + sharing * 2 * m->gamma);
    double outside = hosts > 1 ? hop + coded * (hosts - 1) / hosts * m->beta +
                                     sharing * raw * (hosts - 1) / hosts / wide * (ENCODE + DECODE)
                               : 0;
    return inside + outside < direct ? RG_QUANT_TWO_LEVEL : RG_QUANT_DIRECT;
}
