/* shm_map.c: what is mapped. Segments: one memory object per link and direction, made by its writer with all pages
 * there, sealed, and mapped by the other side for reading. Regions: memory of the peer (rg_alloc() and its library's
 * scratch) that it tells of before it first sends from it; mapped once, for reading, until it says that it is no more.
 * Relies on seals: memory that can shrink could end this process with a signal, so an object without the seal, too
 * short for what is said of it, or of a file system that can run out of pages later, is refused.
 * It must not keep a descriptor that it was given longer than it takes to map it. */
#include "shm_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define TMPFS 0x01021994      /* TMPFS_MAGIC, the file system of memory objects */
#define RING_LIMIT (8u << 20) /* a peer's ring is never larger */
#define POPULATE (64u << 20)  /* regions up to this size are touched at once, larger ones as they are used */

/* ---- Segments ---- */

rg_status_t rgm_segment_make(link_t *l, uint32_t ring, int *fd, rg_error_t *err) {
    size_t len = SEGMENT_HEAD + (size_t)ring;
    *fd = rg_os_high(memfd_create("regroup", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (*fd < 0) return rg_fail(err, RG_ERR_SYSTEM, errno, "no shared memory object");
    int rc = rg_shared_size(*fd, len);
    while (rc == 0 && (rc = fallocate(*fd, 0, 0, (off_t)len)) != 0 && errno == EINTR) rc = 0;
    void *p = rc == 0 ? mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, *fd, 0) : MAP_FAILED;
    if (p != MAP_FAILED && fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        int e = errno;
        munmap(p, len);
        p = MAP_FAILED;
        errno = e;
    }
    if (p == MAP_FAILED) {
        rg_fail(err, RG_ERR_NOMEM, errno, "%zu bytes of shared memory for a link", len);
        close(*fd);
        *fd = -1;
        return RG_ERR_NOMEM;
    }
    l->out = p;
    l->out_ring = ring;
    l->out->magic = SEGMENT_MAGIC;
    if (rg_os_random(&l->out->key, sizeof l->out->key) == RG_OK &&
        rg_os_random(l->out->challenge, sizeof l->out->challenge) == RG_OK)
        return RG_OK;
    close(*fd);
    *fd = -1;
    return rg_fail(err, RG_ERR_SYSTEM, errno, "no random numbers");
}

/* NULL when an object can be mapped without ever ending this process, else what is wrong. */
static const char *unsafe(int fd, uint64_t len) {
    struct stat st;
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0) return "is not a memory object";
    if (!(seals & F_SEAL_SHRINK)) return "can shrink: it is not sealed";
    if (fstat(fd, &st) != 0 || st.st_size < 0 || (uint64_t)st.st_size < len) return "is shorter than it was said to be";
    if (fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS) return "is of a kind that can run out of pages later";
    return NULL;
}

const char *rgm_segment_attach(link_t *l, int fd, uint32_t ring) {
    size_t len = SEGMENT_HEAD + (size_t)ring;
    if (ring < RING_LEAST || ring > RING_LIMIT || (ring & (ring - 1)))
        return "has a ring of a size that does not exist";
    const char *why = unsafe(fd, len);
    if (why) return why;
    const segment_t *s = mmap(NULL, len, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (s == MAP_FAILED) return strerror(errno);
    l->in = s;
    l->in_ring = ring;
    l->in_key = s->key;
    if (s->magic != SEGMENT_MAGIC) return "is not a segment of this version";
    return NULL;
}

void rgm_segments_free(link_t *l) {
    if (l->out) munmap(l->out, SEGMENT_HEAD + (size_t)l->out_ring);
    if (l->in) munmap((void *)(uintptr_t)l->in, SEGMENT_HEAD + (size_t)l->in_ring);
    l->out = NULL;
    l->in = NULL;
    for (uint32_t i = 0; i < l->n_mapped; i++)
        if (l->mapped[i].base) munmap(l->mapped[i].base, l->mapped[i].len);
    free(l->mapped);
    free(l->told);
    free(l->gone);
    l->mapped = NULL;
    l->told = l->gone = NULL;
    l->n_mapped = l->n_told = l->n_gone = 0;
}

/* ---- The way of private memory ---- */

/* Whether we may read the peer's memory, and whether that is what it says: a number means another process in another
 * namespace. A sandbox that only imitates the call may do it badly, which shm_pull.c finds out. */
void rgm_try_copy(link_t *l) {
    uint8_t w[16] = { 0 };
    struct iovec local = { w, sizeof w }, remote = { (void *)(uintptr_t)l->witness_addr, sizeof w };
    l->can_copy = !rg_shm_hooks.no_copy && l->pid > 0 &&
                  process_vm_readv(l->pid, &local, 1, &remote, 1, 0) == sizeof w &&
                  memcmp(w, l->witness, sizeof w) == 0;
}

/* ---- Regions: ours, as the peer knows them ---- */

static int send_region(const link_t *l, const rg_region_t *r) {
    packet_t p = { .magic = "RGsh", .version = 1, .kind = PACKET_REGION, .region = r->id, .region_len = r->len };
    union {
        char buf[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } c = { .buf = { 0 } };
    struct iovec io = { &p, sizeof p };
    struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = c.buf, .msg_controllen = sizeof c.buf };
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(h), &r->fd, sizeof(int));
    return sendmsg(l->conn->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof p ? 0 : -1;
}

static int told(link_t *l, uint64_t id) {
    if (l->told_hint < l->n_told && l->told[l->told_hint] == id) return 1;
    for (uint32_t i = 0; i < l->n_told; i++)
        if (l->told[i] == id) {
            l->told_hint = i;
            return 1;
        }
    return 0;
}

uint64_t rgm_region_tell(link_t *l, const void *p, uint64_t len, uint64_t *off) {
    rg_region_t r;
    if (rg_shm_hooks.no_regions || !rg_shared_find(p, len, &r)) return 0;
    rgm_regions_check(l);
    if (!told(l, r.id)) {
        if (!l->told) l->told = malloc(REGIONS_MAX * sizeof *l->told);
        if (!l->gone) l->gone = malloc(REGIONS_MAX * sizeof *l->gone);
        if (!l->told || !l->gone || l->n_told + l->n_gone >= REGIONS_MAX || send_region(l, &r) != 0) return 0;
        l->told[l->n_told++] = r.id;
    }
    *off = (uint64_t)((const uint8_t *)p - r.base);
    return r.id;
}

void rgm_regions_check(link_t *l) {
    uint64_t g = rg_shared_generation();
    if (g == l->told_generation) return;
    l->told_generation = g;
    for (uint32_t i = 0; i < l->n_told;) {
        if (rg_shared_alive(l->told[i])) {
            i++;
            continue;
        }
        l->gone[l->n_gone++] = l->told[i];
        l->told[i] = l->told[--l->n_told];
    }
}

/* ---- Regions of the peer ---- */

static mapped_t *find(link_t *l, uint64_t id) {
    if (l->mapped_hint < l->n_mapped && l->mapped[l->mapped_hint].id == id) return &l->mapped[l->mapped_hint];
    for (uint32_t i = 0; i < l->n_mapped; i++)
        if (l->mapped[i].id == id) {
            l->mapped_hint = i;
            return &l->mapped[i];
        }
    return NULL;
}

/* What cannot be mapped is noted without an address, and fetched like private memory. Takes the descriptor. */
void rgm_region_learn(link_t *l, uint64_t id, uint64_t len, int fd) {
    if (!l->mapped) l->mapped = malloc(REGIONS_MAX * sizeof *l->mapped);
    if (l->mapped && id && l->n_mapped < REGIONS_MAX && !find(l, id)) {
        mapped_t *m = &l->mapped[l->n_mapped++];
        *m = (mapped_t){ .id = id, .len = len };
        if (fd >= 0 && len && len <= (uint64_t)INT64_MAX && !rg_shm_hooks.no_regions && !unsafe(fd, len)) {
            void *p = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
            if (p != MAP_FAILED) m->base = p;
            if (m->base && len <= POPULATE) (void)madvise(p, len, MADV_POPULATE_READ);
        }
    }
    if (fd >= 0) close(fd);
}

mapped_t *rgm_region_find(link_t *l, uint64_t id) {
    mapped_t *m = find(l, id);
    if (m) return m;
    (void)rgm_socket_drain(l); /* it was told of before the message that lies in it; the end will show again */
    return find(l, id);
}

void rgm_region_forget(link_t *l, uint64_t id) {
    mapped_t *m = rgm_region_find(l, id);
    if (!m) return;
    /* Whoever still reads it reads for a message that was taken back: its owner frees nothing that is being sent. */
    for (recv_op_t *op = l->recv_head; op; op = op->next)
        if (op->how == PULL_REGION && op->large.region == id) {
            rgm_pull_end(l, op);
            op->dead = 1;
        }
    if (m->base) munmap(m->base, m->len);
    *m = l->mapped[--l->n_mapped];
}
