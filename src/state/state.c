/* state.c: the tensors of a shared state: their names, places and pieces, the revision, and what was touched. Relies on
 * pieces.c for hashes. It must not write to the tensors, nor know of groups or files. */
#include "state/serve.h"

#include "observe/log.h"

#include <stdlib.h>
#include <string.h>

rg_status_t rg_state_create(rg_state_t **out, rg_error_t *err) {
    if (!out) return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_create: out is NULL; pass the address of a pointer");
    *out = calloc(1, sizeof **out);
    if (!*out) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_state_create: no memory");
    return RG_OK;
}

void rg_state_destroy(rg_state_t *s) {
    if (!s) return;
    rg_serve_end(s);
    for (uint32_t i = 0; i < s->n; i++) free(s->tensors[i].name);
    free(s->tensors);
    free(s->hashes);
    free(s->dirty);
    free(s);
}

static rg_tensor_t *find(const rg_state_t *s, const char *name) {
    for (uint32_t i = 0; i < s->n; i++)
        if (!strcmp(s->tensors[i].name, name)) return &s->tensors[i];
    return NULL;
}

/* Room for one more tensor and so many pieces. What was enlarged stays so when the rest fails, which does no harm. */
static int make_room(rg_state_t *s, uint32_t pieces) {
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? 2 * s->cap : 16;
        rg_tensor_t *more = realloc(s->tensors, cap * sizeof *more);
        if (!more) return 0;
        s->tensors = more;
        s->cap = cap;
    }
    if (pieces <= s->cap_pieces) return 1;
    uint32_t cap = pieces < 32 ? 64 : pieces + pieces / 2, words = (cap + 63) / 64;
    rg_hash_t *hashes = realloc(s->hashes, cap * sizeof *hashes);
    if (!hashes) return 0;
    s->hashes = hashes;
    uint64_t *dirty = realloc(s->dirty, words * sizeof *dirty);
    if (!dirty) return 0;
    uint32_t old = (s->cap_pieces + 63) / 64;
    memset(dirty + old, 0xff, (words - old) * sizeof *dirty);
    s->dirty = dirty;
    s->cap_pieces = cap;
    return 1;
}

static rg_status_t check_tensor(const rg_state_t *s, const char *name, const void *data, uint64_t count,
                                rg_dtype_t dtype, rg_error_t *err) {
    size_t elem = rg_dtype_size(dtype), len = name ? strlen(name) : 0;
    if (!s) return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_add: state is NULL; make one with rg_state_create");
    if (len < 1 || len > 255)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_add: a name of %zu bytes; expected 1 to 255", len);
    if (!elem) return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_add: %s: unknown element type; see rg_dtype_t", name);
    if (count && !data) return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_add: %s: data is NULL", name);
    if (count > (uint64_t)(INTPTR_MAX - 1) / elem || count * elem > UINTPTR_MAX - (uintptr_t)data)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_add: %s: %llu elements reach beyond the address space", name,
                       (unsigned long long)count);
    if (s->serve)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_add: %s: the state is served; add all tensors before", name);
    if (find(s, name))
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_add: %s is there already; names are unique", name);
    return RG_OK;
}

rg_status_t rg_state_add(rg_state_t *s, const char *name, void *data, uint64_t count, rg_dtype_t dtype,
                         rg_error_t *err) {
    rg_status_t st = check_tensor(s, name, data, count, dtype, err);
    if (st != RG_OK) return st;
    uint64_t bytes = count * rg_dtype_size(dtype), pieces = (bytes + RG_PIECE_BYTES - 1) / RG_PIECE_BYTES;
    if (pieces > RG_STATE_PIECES_MAX - s->n_pieces || s->n == RG_STATE_PIECES_MAX)
        return rg_fail(err, RG_ERR_RESOURCE, 0, "rg_state_add: %s: a state has at most %u pieces of 1 MiB", name,
                       RG_STATE_PIECES_MAX);
    char *copy = strdup(name);
    if (!copy || !make_room(s, s->n_pieces + (uint32_t)pieces)) {
        free(copy);
        return rg_fail(err, RG_ERR_NOMEM, 0, "rg_state_add: no memory for %s", name);
    }
    s->tensors[s->n++] = (rg_tensor_t){ copy, data, count, bytes, dtype, s->n_pieces, (uint32_t)pieces };
    s->n_pieces += (uint32_t)pieces;
    s->bytes += bytes;
    s->layout = rg_hash_layout(s->layout, name, dtype, count);
    return RG_OK;
}

rg_status_t rg_state_set_revision(rg_state_t *s, uint64_t revision) {
    if (!s) return RG_ERR_INVALID;
    s->revision = revision;
    s->mixed = 0;
    rg_serve_settled(s);
    return RG_OK;
}

uint64_t rg_state_revision(const rg_state_t *s) { return s && !s->mixed ? s->revision : 0; }

rg_status_t rg_state_touch(rg_state_t *s, const char *name, uint64_t first, uint64_t count) {
    if (!s) return RG_ERR_INVALID;
    if (!name) {
        rg_serve_before_write(s, 0, UINT32_MAX);
        rg_serve_lock(s);
        rg_state_touch_all(s);
        rg_serve_unlock(s);
        return RG_OK;
    }
    const rg_tensor_t *t = find(s, name);
    if (!t || first > t->count || count > t->count - first) return RG_ERR_INVALID;
    if (!count) return RG_OK;
    uint64_t elem = rg_dtype_size(t->dtype), last = ((first + count) * elem - 1) / RG_PIECE_BYTES;
    uint64_t from = first * elem / RG_PIECE_BYTES;
    rg_serve_before_write(s, (uint32_t)(t->first + from), (uint32_t)(t->first + last));
    rg_serve_lock(s);
    for (uint64_t i = from; i <= last; i++) rg_bit_set(s->dirty, t->first + i);
    rg_serve_unlock(s);
    return RG_OK;
}
