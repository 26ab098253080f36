/* fuzz_diloco.c: any bytes as the file of an outer optimiser, of two kinds that have all tensors between them. A file
 * is taken as a whole, with nothing in it that keeps rounds from being made, or nothing is changed. So that the fuzzer
 * gets past the hashes, the first byte says how the rest is used: as the file itself, or laid over what a good file has
 * behind its front, with all hashes made right. It relies on the layout that src/state/file.c writes, for the hashes
 * alone. */
#include "regroup_diloco.h"
#include "state/state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEED(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) abort();                                                                                             \
    } while (0)

enum { HEADER = 128, N = 40, KINDS = 2, ROOM = 1 << 16 };

typedef struct subject {
    rg_diloco_t *d;
    float p[N], q[N];
    uint8_t good[ROOM];
    size_t bytes, data_at; /* of a good file; where its hashes end */
} subject_t;

static subject_t subjects[KINDS];
static int file = -1;
static char path[64];

static uint32_t word(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void write_file(const uint8_t *p, size_t n) {
    NEED(ftruncate(file, 0) == 0 && pwrite(file, p, n, 0) == (ssize_t)n);
}

/* A good file of this kind, as rg_diloco_save() makes it, which writes beside the file that it is told. */
static void learn(subject_t *x) {
    char name[64];
    snprintf(name, sizeof name, "/tmp/fuzz-diloco-%d", (int)getpid());
    NEED(rg_diloco_save(x->d, name, NULL) == RG_OK);
    FILE *f = fopen(name, "rb");
    NEED(f);
    x->bytes = fread(x->good, 1, ROOM, f);
    fclose(f);
    unlink(name);
    NEED(x->bytes > HEADER && x->bytes < ROOM);
    x->data_at = HEADER + word(x->good + 32) + 16 * word(x->good + 16);
    NEED(x->data_at < x->bytes);
}

static void setup(void) {
    if (file >= 0) return;
    file = memfd_create("diloco", 0);
    NEED(file >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    for (int k = 0; k < KINDS; k++) {
        rg_diloco_config_t c;
        subject_t *x = &subjects[k];
        NEED(rg_diloco_profile(k ? RG_DILOCO_EAGER : RG_DILOCO_PLAIN, &c) == RG_OK);
        c.feedback = k ? 0.5f : 0;
        if (!k) c.momentum_every = 3, c.fragments = 2, c.wire = 0;
        NEED(rg_diloco_create(&c, &x->d, NULL) == RG_OK);
        NEED(rg_diloco_add(x->d, "p", x->p, N, 0, NULL) == RG_OK);
        NEED(rg_diloco_add(x->d, "q", x->q, N, 0, NULL) == RG_OK);
        learn(x);
    }
}

/* Pieces of such small tensors are the tensors themselves, in the order of the descriptions. */
static void make_right(uint8_t *p, size_t n, size_t data_at) {
    uint32_t tensors = word(p + 12);
    size_t desc = HEADER, hashes = HEADER + word(p + 32), data = data_at, made = 0;
    for (uint32_t i = 0; i < tensors; i++) {
        uint64_t bytes = (uint64_t)word(p + desc + 4) * rg_dtype_size((rg_dtype_t)word(p + desc));
        desc += 14 + ((size_t)p[desc + 12] | (size_t)p[desc + 13] << 8);
        if (!bytes) continue;
        NEED(data + bytes <= n);
        rg_hash_t h = rg_hash_of(p + data, bytes);
        memcpy(p + hashes + 16 * made++, h.b, 16);
        data += bytes;
    }
    NEED(data == n && made == word(p + 16));
    rg_hash_t all = rg_hash_of(p + hashes, 16 * made);
    memcpy(p + 80, all.b, 16);
    rg_hash_t own = rg_hash_of(p, HEADER - 16);
    memcpy(p + HEADER - 16, own.b, 16);
}

static uint64_t hash_of(const subject_t *x) {
    rg_diloco_stats_t s = RG_DILOCO_STATS_INIT;
    NEED(rg_diloco_info(x->d, &s) == RG_OK);
    return s.hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static uint8_t image[ROOM];
    setup();
    if (n < 1 || n > 8192) return 0;
    subject_t *x = &subjects[data[0] & 1];
    float before[2][N];
    rg_error_t err = { RG_OK, 0, "" };
    write_file(x->good, x->bytes);
    NEED(rg_diloco_load(x->d, path, NULL) == RG_OK); /* from one beginning, whatever came before */
    memcpy(before[0], x->p, sizeof x->p);
    memcpy(before[1], x->q, sizeof x->q);
    uint64_t hash = hash_of(x);
    if (data[0] & 2) {
        size_t len = n - 1 < x->bytes - x->data_at ? n - 1 : x->bytes - x->data_at;
        memcpy(image, x->good, x->bytes);
        memcpy(image + x->data_at, data + 1, len);
        make_right(image, x->bytes, x->data_at);
        write_file(image, x->bytes);
    } else write_file(data + 1, n - 1);
    rg_status_t st = rg_diloco_load(x->d, path, &err);
    if (st != RG_OK) {
        NEED(st < 0 && err.text[0] && hash_of(x) == hash);
        NEED(!memcmp(before[0], x->p, sizeof x->p) && !memcmp(before[1], x->q, sizeof x->q));
        return 0;
    }
    /* The parameters are anything; reset makes them the anchor's, which is finite, with what eager has beside it. */
    NEED(rg_diloco_reset(x->d) == RG_OK);
    for (uint32_t i = 0; i < N; i++) NEED(!isnan(x->p[i]) && !isnan(x->q[i]));
    return 0;
}
