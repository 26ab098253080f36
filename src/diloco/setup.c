/* setup.c: the handle: its tensors, their fragments, and all the memory that the layer will need, taken before the
 * first round so that no round fails for want of it. Relies on the packer and on rg_state_*. It must not reach other
 * members. */
#include "diloco/internal.h"
#include "diloco/profile.h"

#include "config.h"
#include "observe/log.h"
#include "os/os.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

rg_status_t rg_dl_not_mine(const rg_diloco_t *d, const char *call, rg_error_t *err) {
    return d ? RG_OK : rg_fail(err, RG_ERR_INVALID, 0, "%s: d is NULL; make one with rg_diloco_create", call);
}

rg_status_t rg_dl_not_forked(const rg_diloco_t *d, const char *call, rg_error_t *err) {
    if (!d || d->forks == rg_os_forks()) return rg_dl_not_mine(d, call, err);
    return rg_fail(err, RG_ERR_CLOSED, 0,
                   "%s: this process was forked from the member, which alone may use the handle; make one here", call);
}

rg_status_t rg_dl_whole(const rg_diloco_t *d, const char *call, rg_error_t *err) {
    rg_status_t st = rg_dl_not_forked(d, call, err);
    if (st != RG_OK || !d->torn) return st;
    return rg_fail(err, RG_ERR_INVALID, 0,
                   "%s: rg_diloco_load() could read only a part of its file the second time; load a whole file", call);
}

rg_status_t rg_diloco_create(const rg_diloco_config_t *config, rg_diloco_t **out, rg_error_t *err) {
    if (!out) return rg_fail(err, RG_ERR_INVALID, 0, "rg_diloco_create: out is NULL; pass the address of a pointer");
    rg_diloco_config_t c;
    rg_status_t st = rg_dl_config(config, &c, err);
    if (st != RG_OK) return st;
    rg_diloco_t *d = calloc(1, sizeof *d);
    if (!d) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_diloco_create: no memory");
    d->c = c;
    d->late = rg_dl_is_late(c.variant);
    d->eager = c.variant == RG_DILOCO_EAGER;
    d->outer = (rg_outer_t){ c.lr, c.momentum, c.clip, c.momentum_every, c.variant == RG_DILOCO_CO2 };
    d->flying = -1;
    d->forks = rg_os_forks();
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->cond, NULL);
    *out = d;
    return RG_OK;
}

void rg_diloco_destroy(rg_diloco_t *d) {
    if (!d || d->forks != rg_os_forks()) return; /* a forked child has not the thread, and its locks may be taken */
    rg_diloco_stop(d);
    rg_dl_thread_end(d);
    rg_state_destroy(d->state);
    for (uint32_t p = 0; p < d->n && d->fragment; p++) {
        rg_quantiser_destroy(d->fragment[p].z);
        rg_topk_reducer_destroy(d->fragment[p].top);
    }
    for (uint32_t i = 0; i < d->n_tensors; i++) free(d->tensor[i].name);
    float *floats[] = { d->anchor, d->buf, d->acc, d->off,    d->offbuf,     d->said,     d->carry,   d->kept,
                        d->d,      d->d2,  d->avg, d->scaled, d->theta_next, d->buf_next, d->acc_next };
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) free(floats[i]);
    free(d->tensor);
    free(d->fragment);
    free(d->piece);
    free(d->shared);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->cond);
    free(d);
}

rg_status_t rg_diloco_add(rg_diloco_t *d, const char *name, float *data, uint64_t count, uint32_t flags,
                          rg_error_t *err) {
    rg_status_t st = rg_dl_not_mine(d, "rg_diloco_add", err);
    if (st != RG_OK) return st;
    size_t len = name ? strlen(name) : 0;
    if (len < 1 || len > 200)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_diloco_add: a name of %zu bytes; expected 1 to 200", len);
    if (d->prepared)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_diloco_add: %s: all tensors are added before starting or loading",
                       name);
    if ((count && !data) || flags & ~RG_DILOCO_ALONE || count > (UINT64_MAX >> 12) - d->elements)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_diloco_add: %s: %s", name,
                       count && !data             ? "data is NULL"
                       : flags & ~RG_DILOCO_ALONE ? "unknown flags; RG_DILOCO_ALONE or 0"
                                                  : "more elements than any memory has");
    for (uint32_t i = 0; i < d->n_tensors; i++)
        if (!strcmp(d->tensor[i].name, name))
            return rg_fail(err, RG_ERR_INVALID, 0, "rg_diloco_add: %s is there already; names are unique", name);
    if (d->n_tensors == 1u << 20)
        return rg_fail(err, RG_ERR_RESOURCE, 0, "rg_diloco_add: %s: at most 1048576 tensors", name);
    char *copy = strdup(name);
    if (d->n_tensors == d->cap_tensors && copy) {
        uint32_t cap = d->cap_tensors ? 2 * d->cap_tensors : 16;
        rg_dl_tensor_t *more = realloc(d->tensor, cap * sizeof *more);
        if (more) {
            d->tensor = more;
            d->cap_tensors = cap;
        }
    }
    if (!copy || d->n_tensors == d->cap_tensors) {
        free(copy);
        return rg_fail(err, RG_ERR_NOMEM, 0, "rg_diloco_add: no memory for %s", name);
    }
    d->tensor[d->n_tensors++] = (rg_dl_tensor_t){ copy, data, count, flags };
    d->elements += count;
    return RG_OK;
}

/* ---- Fragments ---------------------------------------------------------------------------------------------- */

static void lay_out(rg_diloco_t *d, const uint64_t *sizes) {
    uint64_t at = 0;
    uint32_t piece = 0;
    for (uint32_t p = 0; p < d->n; p++) {
        rg_dl_fragment_t *f = &d->fragment[p];
        *f = (rg_dl_fragment_t){ .at = at, .count = sizes[p], .first_piece = piece, .merge = (int)d->c.merge };
        for (; piece < d->n_pieces && d->piece[piece].fragment == p; piece++) f->pieces++;
        if (f->pieces && d->tensor[d->piece[f->first_piece].tensor].flags & RG_DILOCO_ALONE) f->merge = RG_DILOCO_AVG;
        at += sizes[p];
        d->most = sizes[p] > d->most ? sizes[p] : d->most;
    }
}

static rg_status_t pack(rg_diloco_t *d, rg_error_t *err) {
    uint32_t most = d->n_tensors + d->c.fragments;
    rg_pack_tensor_t *t = calloc(d->n_tensors + 1, sizeof *t);
    uint64_t *sizes = calloc(most, sizeof *sizes);
    if (!d->piece) d->piece = calloc(d->n_tensors + 16 * (size_t)d->c.fragments, sizeof *d->piece);
    if (!d->fragment) d->fragment = calloc(most, sizeof *d->fragment);
    rg_status_t st = RG_OK;
    if (t && sizes && d->piece && d->fragment) {
        for (uint32_t i = 0; i < d->n_tensors; i++)
            t[i] = (rg_pack_tensor_t){ d->tensor[i].count, XXH3_64bits(d->tensor[i].name, strlen(d->tensor[i].name)),
                                       d->tensor[i].flags & RG_DILOCO_ALONE };
        d->n = rg_pack(t, d->n_tensors, d->c.fragments, d->piece, &d->n_pieces, sizes);
        lay_out(d, sizes);
    } else st = rg_fail(err, RG_ERR_NOMEM, 0, "rg_diloco: no memory for the list of fragments");
    free(t);
    free(sizes);
    if (st != RG_OK) return st;
    if (d->n == 0) return rg_fail(err, RG_ERR_INVALID, 0, "rg_diloco: there is nothing to train; see rg_diloco_add");
    if (d->late && d->n != 1)
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "rg_diloco: eager, delayed and co2 have one fragment; no tensor can be RG_DILOCO_ALONE");
    if (d->n > d->c.every || (d->c.overlap && d->c.overlap >= d->c.every / d->n))
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "rg_diloco: %u fragments, those alone counted, each every %u steps and merged %u later: a "
                       "fragment must be merged before the next one is sent",
                       d->n, d->c.every, d->c.overlap);
    return RG_OK;
}

/* ---- Memory ------------------------------------------------------------------------------------------------- */

static int floats(float **p, uint64_t n) {
    if (*p) return 1;
    *p = n <= SIZE_MAX / sizeof **p ? calloc((size_t)n, sizeof **p) : NULL;
    return *p != NULL;
}

static int memory(rg_diloco_t *d) {
    uint64_t n = d->elements, most = d->most;
    int ok = floats(&d->anchor, n) && floats(&d->buf, n) && floats(&d->d, most) && floats(&d->avg, most + 1) &&
             floats(&d->scaled, most + 1) && floats(&d->theta_next, most) && floats(&d->buf_next, most);
    if (ok && d->c.momentum_every > 1) ok = floats(&d->acc, n) && floats(&d->acc_next, most);
    if (ok && d->late) ok = floats(&d->carry, n) && floats(&d->d2, most);
    if (ok && d->eager)
        ok = floats(&d->off, n) && floats(&d->offbuf, n) && floats(&d->said, n) && floats(&d->acc_next, most);
    if (ok && d->c.feedback != 0) ok = floats(&d->kept, n);
    if (ok && !d->shared) d->shared = calloc(1, sizeof *d->shared + d->n * sizeof(rg_dl_meta_t));
    return ok && d->shared;
}

/* What members have alike, as a state. */
static rg_status_t make_state(rg_diloco_t *d, rg_error_t *err) {
    rg_status_t st = d->state ? RG_OK : rg_state_create(&d->state, err);
    uint64_t words = 1 + d->n * (sizeof(rg_dl_meta_t) / sizeof(uint64_t));
    if (st == RG_OK) st = rg_state_add(d->state, "diloco.shared", d->shared, words, RG_U64, err);
    for (uint32_t p = 0; st == RG_OK && p < d->n; p++) {
        const rg_dl_fragment_t *f = &d->fragment[p];
        struct {
            const char *what;
            float *data;
        } kind[] = { { "anchor", d->anchor }, { "momentum", d->buf }, { "arrivals", d->acc } };
        for (int k = 0; st == RG_OK && k < 3; k++) {
            char name[64];
            if (!kind[k].data) continue;
            snprintf(name, sizeof name, "diloco.%s.%u", kind[k].what, p);
            st = rg_state_add(d->state, name, kind[k].data + f->at, f->count, RG_F32, err);
        }
    }
    if (st != RG_OK) { /* anew the next time */
        rg_state_destroy(d->state);
        d->state = NULL;
    }
    return st;
}

static void take_anchor(rg_diloco_t *d, uint64_t at, float *local, uint64_t n, void *arg) {
    (void)arg;
    memcpy(d->anchor + at, local, (size_t)n * sizeof *local);
}

rg_status_t rg_dl_prepare(rg_diloco_t *d, rg_error_t *err) {
    if (d->prepared) return RG_OK;
    rg_status_t st = pack(d, err);
    if (st != RG_OK) return st;
    if (!memory(d))
        return rg_fail(err, RG_ERR_NOMEM, 0, "rg_diloco: no memory for the outer optimiser of %llu elements",
                       (unsigned long long)d->elements);
    st = make_state(d, err);
    if (st == RG_OK && (d->late || d->c.overlap)) st = rg_dl_thread(d, err);
    if (st != RG_OK) return st;
    for (uint32_t p = 0; p < d->n; p++) rg_dl_pieces(d, p, take_anchor, NULL);
    d->prepared = 1;
    return RG_OK;
}

rg_status_t rg_diloco_info(rg_diloco_t *d, rg_diloco_stats_t *info) {
    if (!d || rg_struct_check(info, sizeof *info, "rg_diloco_stats", NULL) != RG_OK || !info) return RG_ERR_INVALID;
    rg_diloco_stats_t i = RG_DILOCO_STATS_INIT;
    i.steps = d->step;
    i.failed = d->failed;
    i.wait_ns = d->wait_ns;
    i.flight_ns = d->flight_ns;
    i.elements = d->elements;
    i.in_flight = d->flying >= 0;
    for (uint32_t p = 0; d->prepared && p < d->n; p++) {
        const rg_dl_fragment_t *f = &d->fragment[p];
        int alone = (d->tensor[d->piece[f->first_piece].tensor].flags & RG_DILOCO_ALONE) != 0;
        i.fragments++;
        i.rounds += rg_dl_meta(d, p)->version;
        i.hash = XXH3_64bits_withSeed(&i.hash, sizeof i.hash, rg_dl_hash(d, p));
        if (!alone && f->count > i.largest) i.largest = f->count;
        if (!alone && (i.smallest == 0 || f->count < i.smallest)) i.smallest = f->count;
    }
    rg_struct_out(info, &i, sizeof i, sizeof i);
    return RG_OK;
}
