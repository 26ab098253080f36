/* file.c: a member's whole training in one file: what all have alike, and what is its own. What is in flight is written
 * as not yet sent, so that no file depends on how a round ends. Relies on rg_state_save() and rg_state_load(), which
 * write and read a file wholly or not at all. It must not wait for a round. */
#include "diloco/internal.h"

#include "observe/log.h"
#include "state/load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What else belongs into the file, copied because it is scattered, or differs while something is in flight. */
typedef struct extra {
    uint64_t *counts; /* tokens and steps of each fragment */
    float *carry;
} extra_t;

static rg_status_t add(rg_state_t *s, rg_status_t st, const char *name, void *data, uint64_t n, rg_dtype_t type,
                       rg_error_t *err) {
    return st == RG_OK && data ? rg_state_add(s, name, data, n, type, err) : st;
}

/* The layout of the file. Fragments are tensors of their own, so that a file of another packing does not fit. */
static rg_status_t list(rg_diloco_t *d, rg_state_t *s, const extra_t *x, rg_error_t *err) {
    uint64_t words = 1 + d->n * (sizeof(rg_dl_meta_t) / sizeof(uint64_t));
    rg_status_t st = add(s, RG_OK, "diloco.shared", d->shared, words, RG_U64, err);
    st = add(s, st, "diloco.counts", x->counts, 2 * (uint64_t)d->n, RG_U64, err);
    struct {
        const char *what;
        float *data;
    } kind[] = { { "anchor", d->anchor },       { "momentum", d->buf }, { "arrivals", d->acc }, { "own", d->off },
                 { "own-momentum", d->offbuf }, { "said", d->said },    { "kept", d->kept },    { "carry", x->carry } };
    for (uint32_t p = 0; p < d->n; p++)
        for (size_t k = 0; k < sizeof kind / sizeof *kind; k++) {
            const rg_dl_fragment_t *f = &d->fragment[p];
            char name[64];
            snprintf(name, sizeof name, "diloco.%s.%u", kind[k].what, p);
            st = add(s, st, name, kind[k].data ? kind[k].data + f->at : NULL, f->count, RG_F32, err);
        }
    for (uint32_t i = 0; i < d->n_tensors; i++) {
        char name[256];
        snprintf(name, sizeof name, "parameter.%s", d->tensor[i].name);
        st = add(s, st, name, d->tensor[i].data, d->tensor[i].count, RG_F32, err);
    }
    return st;
}

static rg_status_t open_list(rg_diloco_t *d, rg_state_t **s, extra_t *x, rg_error_t *err) {
    *s = NULL;
    x->counts = calloc(2 * (size_t)d->n, sizeof *x->counts);
    x->carry = d->carry ? malloc((size_t)d->elements * sizeof *x->carry) : NULL;
    if (!x->counts || (d->carry && !x->carry)) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_diloco: no memory for a file");
    rg_status_t st = rg_state_create(s, err);
    return st == RG_OK ? list(d, *s, x, err) : st;
}

static void close_list(rg_state_t *s, extra_t *x) {
    rg_state_destroy(s);
    free(x->counts);
    free(x->carry);
}

rg_status_t rg_diloco_save(rg_diloco_t *d, const char *path, rg_error_t *err) {
    rg_status_t st = rg_dl_whole(d, "rg_diloco_save", err);
    if (st == RG_OK) st = rg_dl_prepare(d, err);
    if (st != RG_OK) return st;
    rg_state_t *s;
    extra_t x;
    st = open_list(d, &s, &x, err);
    for (uint32_t p = 0; st == RG_OK && p < d->n; p++) {
        const rg_dl_fragment_t *f = &d->fragment[p];
        int flies = d->flying == (int64_t)p;
        /* In flight, who keeps it is in use, and d->kept is what was kept before. */
        const float *kept = d->kept && !flies ? rg_dl_kept(f->z, f->top, f->count) : NULL;
        if (kept) memcpy(d->kept + f->at, kept, (size_t)f->count * sizeof *kept);
        x.counts[2 * p] = f->tokens;
        x.counts[2 * p + 1] = f->steps;
        for (uint64_t i = f->at; x.carry && i < f->at + f->count; i++)
            x.carry[i] = d->carry[i] + (flies && d->round.taken ? d->d[i - f->at] : 0);
    }
    if (st == RG_OK) st = rg_state_set_revision(s, rg_state_revision(d->state) ? rg_state_revision(d->state) : 1);
    if (st == RG_OK) st = rg_state_save(s, path, err);
    close_list(s, &x);
    return st;
}

/* ---- Loading ---------------------------------------------------------------------------------------------------- */

/* What a round writes is known to be finite before it is written, so a file has no other numbers unless something is
 * wrong with it; and one taken from it would keep all members from making rounds, for reasons that none of them could
 * tell. Parameters are the program's, and may be anything. Tensors come in the order of list(). */
static const char *look(void *arg, uint32_t tensor, uint64_t at, const void *bytes, uint32_t n) {
    const rg_diloco_t *d = arg;
    uint32_t kinds = 2 + (d->acc != NULL) + (d->off ? 3 : 0) + (d->kept != NULL) + (d->carry != NULL);
    if (tensor == 1 || tensor >= 2 + (uint64_t)d->n * kinds) return NULL;
    if (tensor > 1) {
        const float *v = bytes;
        for (uint32_t i = 0; i < n / sizeof *v; i++)
            if (!isfinite(v[i])) return "has a number that is not finite";
        return NULL;
    }
    const uint64_t *words = bytes;
    for (uint32_t i = 0; i < n / sizeof *words; i++) {
        uint64_t place = at / sizeof *words + i;
        double length;
        if (place == 0) continue; /* the step may be any */
        memcpy(&length, &words[i], sizeof length);
        switch ((place - 1) * sizeof *words % sizeof(rg_dl_meta_t)) {
        case offsetof(rg_dl_meta_t, arrivals):
            if (words[i] >= d->c.momentum_every) return "has more arrivals than momentum_every";
            break;
        case offsetof(rg_dl_meta_t, way):
        case offsetof(rg_dl_meta_t, usual):
            if (!(length >= 0) || isinf(length)) return "has a length that is none";
            break;
        default: break;
        }
    }
    return NULL;
}

rg_status_t rg_diloco_load(rg_diloco_t *d, const char *path, rg_error_t *err) {
    rg_status_t st = rg_dl_not_forked(d, "rg_diloco_load", err);
    if (st != RG_OK) return st;
    if (d->g)
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "rg_diloco_load: this member has started; load before rg_diloco_start() or rg_diloco_join()");
    st = rg_dl_prepare(d, err);
    if (st != RG_OK) return st;
    rg_state_t *s;
    extra_t x;
    st = open_list(d, &s, &x, err);
    if (st == RG_OK) st = rg_state_set_revision(s, 1);
    if (st == RG_OK) st = rg_state_load_looking(s, path, look, d, err);
    if (st == RG_OK) {
        d->torn = 0;
        for (uint32_t p = 0; p < d->n; p++) {
            d->fragment[p].tokens = x.counts[2 * p];
            d->fragment[p].steps = x.counts[2 * p + 1];
        }
        if (x.carry) memcpy(d->carry, x.carry, (size_t)d->elements * sizeof *x.carry);
        d->step = d->shared[0];
        rg_state_touch(d->state, NULL, 0, 0);
        rg_state_set_revision(d->state, rg_state_revision(s));
    } else if (s && rg_state_revision(s) == 0) { /* it could be read once, and then no more */
        d->torn = 1;
        rg_fail(err, st, 0, "%s; what is here is mixed now: load a whole file", err ? err->text : "");
    }
    close_list(s, &x);
    return st;
}
