/* tuning.c: the choices that somebody measured and wrote down. A pure reader of the text of a tuning file, the search
 * in it, and the writer of one line, so that whoever measures and whoever reads agree on the form: all_reduce size=4
 * hosts=1 bytes<=65536 algorithm=direct2 chunk=131072      # what follows the sign is a remark Only the collective and
 * the algorithm must be named. It relies on the table of algorithms and on malloc. It must not open files: the engine
 * reads them. */
#include "sched.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What was measured with so many times more or fewer members says nothing any more. */
#define FAR_MOST 2.0

struct rg_tuning {
    uint32_t n;
    rg_tuning_entry_t v[];
};

/* ---- Reading -------------------------------------------------------------------------------------------------- */

typedef struct reader {
    const char *at, *end; /* of the line */
    uint32_t line;
    char *text;
    size_t cap;
} reader_t;

__attribute__((format(printf, 2, 3))) static int wrong(const reader_t *x, const char *fmt, ...) {
    va_list ap;
    int n = snprintf(x->text, x->cap, "tuning file, line %u: ", x->line);
    if (n < 0 || (size_t)n >= x->cap) return 0;
    va_start(ap, fmt);
    vsnprintf(x->text + n, x->cap - (size_t)n, fmt, ap);
    va_end(ap);
    return 0;
}

static int blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* The next word of the line; 0 at its end. */
static int word(reader_t *x, const char **from, size_t *len) {
    while (x->at < x->end && blank(*x->at)) x->at++;
    *from = x->at;
    while (x->at < x->end && !blank(*x->at)) x->at++;
    *len = (size_t)(x->at - *from);
    return *len != 0;
}

static int is(const char *name, const char *s, size_t len) { return strlen(name) == len && memcmp(name, s, len) == 0; }

/* Digits, and K, M or G for powers of 1024. */
static int number(const char *s, size_t len, uint64_t most, uint64_t *out) {
    uint32_t shift = 0;
    if (len > 1 && s[len - 1] == 'K') shift = 10;
    if (len > 1 && s[len - 1] == 'M') shift = 20;
    if (len > 1 && s[len - 1] == 'G') shift = 30;
    len -= shift != 0;
    uint64_t x = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9' || x > (UINT64_MAX - 9) / 10) return 0;
        x = x * 10 + (uint64_t)(s[i] - '0');
    }
    if (len == 0 || x > most >> shift) return 0;
    *out = x << shift;
    return 1;
}

/* One word behind the collective. The algorithm's name is only kept: it may stand before or after others. */
static int setting(const reader_t *x, const char *s, size_t len, rg_tuning_entry_t *e) {
    static const struct {
        const char *key;
        uint64_t least, most;
    } keys[] = {
        { "size=", 1, UINT32_MAX },
        { "hosts=", 1, UINT32_MAX },
        { "bytes<=", 0, UINT64_MAX },
        { "chunk=", 1, UINT32_MAX },
    };
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        size_t n = strlen(keys[k].key);
        uint64_t v = 0;
        if (len < n || memcmp(s, keys[k].key, n) != 0) continue;
        if (!number(s + n, len - n, keys[k].most, &v) || v < keys[k].least)
            return wrong(x, "'%.*s' expects a number of %llu or more behind %s", (int)(len < 60 ? len : 60), s,
                         (unsigned long long)keys[k].least, keys[k].key);
        if (k == 0) e->size = (uint32_t)v;
        else if (k == 1) e->hosts = (uint32_t)v;
        else if (k == 2) e->bytes = v;
        else e->chunk_bytes = (uint32_t)v;
        return 1;
    }
    if (len > 10 && memcmp(s, "algorithm=", 10) == 0) {
        for (const rg_algorithm_t *const *a = rg_algorithms; *a != NULL; a++)
            if ((*a)->kind == e->kind && is((*a)->name, s + 10, len - 10)) e->alg = *a;
        return e->alg != NULL || wrong(x, "%s has no algorithm '%.*s'", rg_kind_name(e->kind),
                                       (int)(len - 10 < 60 ? len - 10 : 60), s + 10);
    }
    return wrong(x, "'%.*s' is not known; expected size=N, hosts=N, bytes<=N, chunk=N and algorithm=NAME",
                 (int)(len < 60 ? len : 60), s);
}

/* 1: *e is set; 0: it is wrong, with text; 2: nothing on this line. */
static int read_line(reader_t *x, rg_tuning_entry_t *e) {
    const char *s;
    size_t len;
    *e = (rg_tuning_entry_t){ .bytes = UINT64_MAX };
    if (!word(x, &s, &len)) return 2;
    int kind = 0;
    while (kind < RG_KIND_COUNT && !is(rg_kind_name((rg_kind_t)kind), s, len)) kind++;
    if (kind == RG_KIND_COUNT)
        return wrong(x, "'%.*s' is no collective; expected all_reduce, broadcast, ... with algorithm=NAME behind it",
                     (int)(len < 60 ? len : 60), s);
    e->kind = (rg_kind_t)kind;
    while (word(x, &s, &len))
        if (!setting(x, s, len, e)) return 0;
    if (e->alg == NULL) return wrong(x, "algorithm=NAME is missing");
    return 1;
}

rg_status_t rg_tuning_parse(const char *text, size_t len, rg_tuning_t **out, char *err, size_t cap) {
    uint32_t lines = 1;
    *out = NULL;
    if (cap != 0) err[0] = 0;
    for (size_t i = 0; i < len; i++) lines += text[i] == '\n' && lines < UINT32_MAX;
    rg_tuning_t *t = malloc(sizeof *t + lines * sizeof *t->v);
    if (t == NULL) {
        snprintf(err, cap, "out of memory for a tuning file of %u lines", lines);
        return RG_ERR_NOMEM;
    }
    t->n = 0;
    const char *at = text, *last = text + len;
    for (uint32_t line = 1; at < last; line++) {
        const char *end = at;
        while (end < last && *end != '\n') end++;
        const char *remark = at;
        while (remark < end && *remark != '#') remark++;
        reader_t x = { at, remark, line, err, cap };
        int what = read_line(&x, &t->v[t->n]);
        if (what == 0) {
            free(t);
            return RG_ERR_INVALID;
        }
        t->n += what == 1;
        at = end < last ? end + 1 : last;
    }
    *out = t;
    return RG_OK;
}

void rg_tuning_free(rg_tuning_t *t) { free(t); }

uint32_t rg_tuning_entries(const rg_tuning_t *t, const rg_tuning_entry_t **v) {
    *v = t == NULL ? NULL : t->v;
    return t == NULL ? 0 : t->n;
}

size_t rg_tuning_line(const rg_tuning_entry_t *e, char *buf, size_t cap) {
    char size[24] = "", hosts[24] = "", bytes[40] = "", chunk[24] = "";
    if (e->size != 0) snprintf(size, sizeof size, " size=%u", e->size);
    if (e->hosts != 0) snprintf(hosts, sizeof hosts, " hosts=%u", e->hosts);
    if (e->bytes != UINT64_MAX) snprintf(bytes, sizeof bytes, " bytes<=%llu", (unsigned long long)e->bytes);
    if (e->chunk_bytes != 0) snprintf(chunk, sizeof chunk, " chunk=%u", e->chunk_bytes);
    int n =
        snprintf(buf, cap, "%s%s%s%s algorithm=%s%s\n", rg_kind_name(e->kind), size, hosts, bytes, e->alg->name, chunk);
    return n < 0 ? 0 : (size_t)n;
}

/* ---- Searching ------------------------------------------------------------------------------------------------ */

static uint32_t hosts_of(const rg_coll_desc_t *d) {
    uint32_t hosts = 0;
    if (d->topo == NULL || d->topo->levels == 0) return 0;
    for (uint32_t r = 0; r < d->size; r++) {
        uint32_t q = 0;
        while (d->topo->group[q] != d->topo->group[r]) q++;
        hosts += q == r;
    }
    return hosts;
}

/* How far a measurement for `size` members is from a group of n, as a factor. */
static double far(uint32_t size, uint32_t n) {
    if (size == 0) return FAR_MOST; /* for any size: only where there is nothing that was measured nearby */
    return size > n ? (double)size / n : (double)n / size;
}

const rg_tuning_entry_t *rg_tuning_find(const rg_tuning_t *t, const rg_coll_desc_t *d) {
    const rg_tuning_entry_t *best = NULL;
    if (t == NULL || t->n == 0) return NULL;
    uint64_t bytes = rg_desc_bytes(d);
    uint32_t hosts = hosts_of(d);
    for (const rg_tuning_entry_t *e = t->v; e < t->v + t->n; e++) {
        if (e->kind != d->kind || bytes > e->bytes || far(e->size, d->size) > FAR_MOST) continue;
        if (e->hosts != 0 && hosts != 0 && e->hosts != hosts) continue;
        if (e->alg->applies != NULL && !e->alg->applies(d)) continue;
        double nearer = best == NULL ? -1 : far(e->size, d->size) - far(best->size, d->size);
        if (nearer > 0) continue;
        if (best == NULL || nearer < 0 || (e->hosts != 0) > (best->hosts != 0) ||
            ((e->hosts != 0) == (best->hosts != 0) && e->bytes < best->bytes))
            best = e;
    }
    return best;
}
