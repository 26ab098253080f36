/* file.c: rg_state_save() and rg_state_load(): a whole state in one file. A header of fixed size, the tensors' names,
 * types and counts, the hashes of all pieces, each with a hash of its own; then the pieces, one after the other. Saving
 * writes a file beside the one that is named and renames it when it is on disk. Loading reads everything once to check
 * it and once more to take it, so that nothing is changed by a bad file. It must not know of groups. */
#include "state/load.h"
#include "state/serve.h"

#include "core/wire.h"
#include "observe/log.h"
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAGIC "RGSTATE\n"
#define FILE_VERSION 1u
#define HEADER 128u
#define DESC_FIXED 14u       /* of a tensor: type, count, length of the name */
#define DESC_MORE (1u << 20) /* descriptions longer than our own by more than this are not read: holes cost no disk */

typedef struct header {
    uint32_t version, n_tensors, n_pieces;
    uint64_t revision, desc_bytes, bytes;
    rg_hash_t layout, desc, hashes; /* desc: of the descriptions; hashes: of the pieces' hashes */
} header_t;

static void header_put(const header_t *h, uint8_t *to) {
    rg_w_t w = { to, 0, HEADER, 0 };
    memset(to, 0, HEADER);
    rg_w_bytes(&w, FILE_MAGIC, 8);
    rg_w_u32(&w, h->version);
    rg_w_u32(&w, h->n_tensors);
    rg_w_u32(&w, h->n_pieces);
    rg_w_u32(&w, RG_PIECE_BYTES);
    rg_w_u64(&w, h->revision);
    rg_w_u64(&w, h->desc_bytes);
    rg_w_u64(&w, h->bytes);
    rg_w_bytes(&w, h->layout.b, 16);
    rg_w_bytes(&w, h->desc.b, 16);
    rg_w_bytes(&w, h->hashes.b, 16);
    rg_hash_t own = rg_hash_of(to, HEADER - 16);
    memcpy(to + HEADER - 16, own.b, 16);
}

static rg_status_t header_get(header_t *h, const uint8_t *from, const char *path, rg_error_t *err) {
    rg_r_t r = { from, HEADER - 16, 0, 0 };
    char magic[8];
    rg_r_bytes(&r, magic, 8);
    if (memcmp(magic, FILE_MAGIC, 8) != 0)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_load: %s is not a file that rg_state_save wrote", path);
    h->version = rg_r_u32(&r);
    if (h->version != FILE_VERSION)
        return rg_fail(err, RG_ERR_NOTSUP, 0, "rg_state_load: %s has version %u of the format; this library knows %u",
                       path, h->version, FILE_VERSION);
    h->n_tensors = rg_r_u32(&r);
    h->n_pieces = rg_r_u32(&r);
    uint32_t piece = rg_r_u32(&r);
    h->revision = rg_r_u64(&r);
    h->desc_bytes = rg_r_u64(&r);
    h->bytes = rg_r_u64(&r);
    rg_r_bytes(&r, h->layout.b, 16);
    rg_r_bytes(&r, h->desc.b, 16);
    rg_r_bytes(&r, h->hashes.b, 16);
    rg_hash_t own = rg_hash_of(from, HEADER - 16);
    if (memcmp(own.b, from + HEADER - 16, 16) != 0 || piece != RG_PIECE_BYTES)
        return rg_fail(err, RG_ERR_SYSTEM, 0, "rg_state_load: %s is damaged in its header; use another copy", path);
    return RG_OK;
}

static size_t describe_bytes(const rg_state_t *s) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) n += DESC_FIXED + strlen(s->tensors[i].name);
    return n;
}

/* The descriptions of all tensors; NULL when memory is out. */
static uint8_t *describe(const rg_state_t *s, size_t *len) {
    size_t cap = describe_bytes(s);
    uint8_t *p = malloc(cap + 1);
    if (!p) return NULL;
    rg_w_t w = { p, 0, cap, 0 };
    for (uint32_t i = 0; i < s->n; i++) {
        rg_w_u32(&w, (uint32_t)s->tensors[i].dtype);
        rg_w_u64(&w, s->tensors[i].count);
        rg_w_text(&w, s->tensors[i].name, 255);
    }
    *len = w.len;
    return p;
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

static int write_all(int fd, const void *p, size_t n) {
    const uint8_t *at = p;
    while (n) {
        ssize_t done = write(fd, at, n < (64u << 20) ? n : (64u << 20));
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) {
            if (done == 0) errno = ENOSPC;
            return -1;
        }
        at += done;
        n -= (size_t)done;
    }
    return 0;
}

static int write_state(int fd, const rg_state_t *s, const uint8_t *desc, size_t desc_len) {
    uint8_t header[HEADER];
    const header_t h = { .version = FILE_VERSION,
                         .n_tensors = s->n,
                         .n_pieces = s->n_pieces,
                         .revision = s->revision,
                         .desc_bytes = desc_len,
                         .bytes = s->bytes,
                         .layout = s->layout,
                         .desc = rg_hash_of(desc, desc_len),
                         .hashes = rg_hash_of(s->hashes, s->n_pieces * sizeof *s->hashes) };
    header_put(&h, header);
    if (write_all(fd, header, HEADER) || write_all(fd, desc, desc_len) ||
        write_all(fd, s->hashes, s->n_pieces * sizeof *s->hashes))
        return -1;
    for (uint32_t i = 0; i < s->n; i++)
        if (write_all(fd, s->tensors[i].data, s->tensors[i].bytes)) return -1;
    return fsync(fd);
}

/* The name is not lost in a crash once the folder is on disk. Not all file systems can do this; then it is their way.
 */
static void sync_folder(const char *path) {
    char *folder = strdup(path);
    if (!folder) return;
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder ? 1 : 0] = 0;
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!fsync(fd);
        close(fd);
    }
    free(folder);
}

/* A file of our own beside the one that is named. */
static int open_beside(const char *path, char *name, size_t cap) {
    for (unsigned k = 0; k < 100; k++) {
        snprintf(name, cap, "%s.%ld-%u.new", path, (long)getpid(), k);
        int fd = rg_os_high(open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

static rg_status_t save_as(const rg_state_t *s, const char *path, char *name, size_t cap, rg_error_t *err) {
    size_t desc_len = 0;
    uint8_t *desc = describe(s, &desc_len);
    if (!desc) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_state_save: no memory to describe the tensors");
    int fd = open_beside(path, name, cap);
    if (fd < 0) {
        int e = errno;
        free(desc);
        return rg_fail(err, RG_ERR_SYSTEM, e, "rg_state_save: %s cannot be made", name);
    }
    rg_os_hush_t hush; /* a limit of file sizes is an error like a full disk, not the end of the program */
    rg_os_hush(&hush);
    int failed = write_state(fd, s, desc, desc_len), e = errno;
    rg_os_unhush(&hush);
    free(desc);
    if (close(fd) && !failed) failed = 1, e = errno;
    if (!failed && rename(name, path)) failed = 1, e = errno;
    if (!failed) {
        sync_folder(path);
        return RG_OK;
    }
    unlink(name);
    return rg_fail(err, RG_ERR_SYSTEM, e, "rg_state_save: %llu bytes cannot be written to %s, which is as it was",
                   (unsigned long long)s->bytes, path);
}

rg_status_t rg_state_save(rg_state_t *s, const char *path, rg_error_t *err) {
    RG_OS_STAY; /* it would leave a file behind */
    if (!s || !path || !*path)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_save: %s", s ? "path is empty; name a file" : "state is NULL");
    if (s->mixed)
        return rg_fail(
            err, RG_ERR_INVALID, 0,
            "rg_state_save: the content is mixed, as a call failed that wrote in place; bring it up to date, "
            "or vouch for it with rg_state_set_revision");
    const char *obstacle = rg_os_in_the_way(path);
    if (obstacle)
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "rg_state_save: %s is %s, which a state is not put in the place of; name a file", path,
                       obstacle);
    size_t cap = strlen(path) + 48;
    char *name = malloc(cap);
    if (!name) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_state_save: no memory");
    rg_state_hash(s, 0);
    rg_status_t st = save_as(s, path, name, cap, err);
    free(name);
    return st;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

typedef struct reader {
    int fd;
    const char *path;
    uint64_t at;
    rg_error_t *err;
    rg_state_look_fn look; /* NULL: contents are anything */
    void *arg;
} reader_t;

static rg_status_t read_all(reader_t *r, void *p, size_t n) {
    uint8_t *at = p;
    while (n) {
        ssize_t got = pread(r->fd, at, n, (off_t)r->at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return rg_fail(r->err, RG_ERR_SYSTEM, errno, "rg_state_load: %s cannot be read", r->path);
        if (got == 0)
            return rg_fail(r->err, RG_ERR_SYSTEM, 0, "rg_state_load: %s ends at byte %llu, cut short; use another copy",
                           r->path, (unsigned long long)r->at);
        at += got;
        r->at += (uint64_t)got;
        n -= (size_t)got;
    }
    return RG_OK;
}

static rg_status_t damaged(const reader_t *r, const char *what, uint64_t at) {
    return rg_fail(r->err, RG_ERR_SYSTEM, 0, "rg_state_load: %s is damaged: %s at byte %llu; use another copy", r->path,
                   what, (unsigned long long)at);
}

/* The first tensor that is another one in the file, by name if it can be told from n bytes of descriptions. */
static rg_status_t other_tensors(const rg_state_t *s, const reader_t *r, const header_t *h, const uint8_t *desc,
                                 size_t n) {
    rg_r_t d = { desc, n, 0, 0 };
    char name[256];
    for (uint32_t i = 0; i < s->n && i < h->n_tensors; i++) {
        const rg_tensor_t *t = &s->tensors[i];
        uint32_t dtype = rg_r_u32(&d);
        uint64_t count = rg_r_u64(&d);
        rg_r_text(&d, name, sizeof name);
        if (d.bad) break;
        if (dtype == (uint32_t)t->dtype && count == t->count && !strcmp(name, t->name)) continue;
        return rg_fail(r->err, RG_ERR_MISMATCH, 0,
                       "rg_state_load: tensor %u of %s is %.80s, %llu of %s; here it is %.80s, %llu of %s", i, r->path,
                       name, (unsigned long long)count, rg_dtype_name((rg_dtype_t)dtype), t->name,
                       (unsigned long long)t->count, rg_dtype_name(t->dtype));
    }
    return rg_fail(r->err, RG_ERR_MISMATCH, 0,
                   "rg_state_load: %s has %u tensors of %llu bytes, the state has %u of %llu", r->path, h->n_tensors,
                   (unsigned long long)h->bytes, s->n, (unsigned long long)s->bytes);
}

/* Header, descriptions and hashes. *hashes is the caller's to free. */
static rg_status_t read_front(const rg_state_t *s, reader_t *r, header_t *h, rg_hash_t **hashes) {
    uint8_t raw[HEADER];
    rg_status_t st = read_all(r, raw, HEADER);
    if (st == RG_OK) st = header_get(h, raw, r->path, r->err);
    if (st != RG_OK) return st;
    struct stat info;
    if (fstat(r->fd, &info) == 0 && h->desc_bytes > (uint64_t)info.st_size) return damaged(r, "descriptions", HEADER);
    if (h->desc_bytes > describe_bytes(s) + DESC_MORE) return other_tensors(s, r, h, NULL, 0);
    uint8_t *desc = malloc(h->desc_bytes + 1);
    if (!desc) return rg_fail(r->err, RG_ERR_NOMEM, 0, "rg_state_load: no memory for %s", r->path);
    st = read_all(r, desc, h->desc_bytes);
    rg_hash_t hash = rg_hash_of(desc, h->desc_bytes);
    if (st == RG_OK && !rg_hash_equal(&hash, &h->desc)) st = damaged(r, "descriptions", HEADER);
    if (st == RG_OK && (!rg_hash_equal(&h->layout, &s->layout) || h->n_pieces != s->n_pieces || h->bytes != s->bytes))
        st = other_tensors(s, r, h, desc, h->desc_bytes);
    free(desc);
    if (st != RG_OK) return st;
    *hashes = malloc((s->n_pieces + 1) * sizeof **hashes);
    if (!*hashes) return rg_fail(r->err, RG_ERR_NOMEM, 0, "rg_state_load: no memory for %s", r->path);
    uint64_t at = r->at;
    st = read_all(r, *hashes, s->n_pieces * sizeof **hashes);
    hash = rg_hash_of(*hashes, s->n_pieces * sizeof **hashes);
    return st == RG_OK && !rg_hash_equal(&hash, &h->hashes) ? damaged(r, "hashes", at) : st;
}

static rg_status_t look_at(const rg_state_t *s, const reader_t *r, uint32_t i, const uint8_t *bytes, uint32_t n) {
    uint32_t k = rg_piece_tensor(s, i);
    const rg_tensor_t *t = &s->tensors[k];
    const char *wrong = r->look ? r->look(r->arg, k, (uint64_t)(i - t->first) * RG_PIECE_BYTES, bytes, n) : NULL;
    if (!wrong) return RG_OK;
    return rg_fail(r->err, RG_ERR_INVALID, 0, "rg_state_load: %s: %.80s %s; use another copy", r->path, t->name, wrong);
}

/* All pieces, each by way of `buffer`, where it is checked. */
static rg_status_t read_pieces(rg_state_t *s, reader_t *r, const rg_hash_t *hashes, uint8_t *buffer, int take) {
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        rg_piece_t piece = rg_state_piece(s, i);
        uint64_t at = r->at;
        rg_status_t st = read_all(r, buffer, piece.bytes);
        if (st != RG_OK) return st;
        rg_hash_t hash = rg_hash_of(buffer, piece.bytes);
        if (!rg_hash_equal(&hash, &hashes[i])) return damaged(r, s->tensors[rg_piece_tensor(s, i)].name, at);
        if (!take && (st = look_at(s, r, i, buffer, piece.bytes)) != RG_OK) return st;
        if (!take) continue;
        memcpy(piece.data, buffer, piece.bytes);
        rg_serve_lock(s);
        s->hashes[i] = hash;
        rg_bit_clear(s->dirty, i);
        rg_serve_unlock(s);
    }
    return RG_OK;
}

static rg_status_t load_from(rg_state_t *s, reader_t *r, rg_hash_t **hashes, uint8_t *buffer) {
    header_t h;
    uint8_t more;
    rg_status_t st = read_front(s, r, &h, hashes);
    uint64_t data_at = r->at;
    if (st == RG_OK) st = read_pieces(s, r, *hashes, buffer, 0);
    if (st == RG_OK && pread(r->fd, &more, 1, (off_t)r->at) == 1) st = damaged(r, "more than there should be", r->at);
    if (st != RG_OK) return st;
    r->at = data_at;
    rg_serve_before_write(s, 0, UINT32_MAX);
    s->mixed = 1; /* the file was whole a moment ago, but disks fail at any time */
    st = read_pieces(s, r, *hashes, buffer, 1);
    if (st != RG_OK) return st;
    s->revision = h.revision;
    s->mixed = 0;
    rg_serve_settled(s);
    return RG_OK;
}

rg_status_t rg_state_load_looking(rg_state_t *s, const char *path, rg_state_look_fn look, void *arg, rg_error_t *err) {
    RG_OS_STAY;
    if (!s || !path || !*path)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_load: %s", s ? "path is empty; name a file" : "state is NULL");
    reader_t r = {
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), path, 0, err, look, arg
    }; /* a pipe must not make us wait */
    if (r.fd < 0) return rg_fail(err, RG_ERR_SYSTEM, errno, "rg_state_load: %s cannot be opened", path);
    rg_hash_t *hashes = NULL;
    uint8_t *buffer = malloc(RG_PIECE_BYTES);
    rg_status_t st = buffer ? load_from(s, &r, &hashes, buffer)
                            : rg_fail(err, RG_ERR_NOMEM, 0, "rg_state_load: no memory for %s", path);
    free(buffer);
    free(hashes);
    close(r.fd);
    return st;
}

rg_status_t rg_state_load(rg_state_t *s, const char *path, rg_error_t *err) {
    return rg_state_load_looking(s, path, NULL, NULL, err);
}
