/* test_diloco_file.c: files of outer optimisers that are damaged, forged or of another one, and calls that come in the
 * wrong order. Whatever is refused has changed nothing. A forged file has all hashes right: it is made from a good one.
 * Relies on the layout that src/state/file.c writes, for the hashes, and on engine_rig.h. */
#include "engine_rig.h"

#include "diloco/internal.h"
#include "state/load.h"
#include "state/state.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N = 40, HEADER = 128, ROOM = 1 << 16 };

typedef struct box {
    rg_diloco_t *d;
    float p[N], q[N];
    char path[64];
    uint8_t good[ROOM];
    size_t bytes;
} box_t;

static rg_diloco_config_t config_of(rg_diloco_variant_t v) {
    rg_diloco_config_t c;
    rg_diloco_profile(v, &c);
    if (v == RG_DILOCO_PLAIN) c.momentum_every = 3, c.fragments = 2;
    else c.feedback = 0.5f;
    return c;
}

static void read_back(box_t *x) {
    FILE *f = fopen(x->path, "rb");
    cr_assert(f);
    x->bytes = fread(x->good, 1, ROOM, f);
    fclose(f);
    cr_assert(x->bytes > HEADER && x->bytes < ROOM);
}

static void write_back(const box_t *x, const uint8_t *p, size_t n) {
    FILE *f = fopen(x->path, "wb");
    cr_assert(f && fwrite(p, 1, n, f) == n);
    fclose(f);
}

/* A handle with two tensors, and a file of it. */
static void box_open(box_t *x, const rg_diloco_config_t *c) {
    rg_error_t err = { RG_OK, 0, "" };
    memset(x, 0, sizeof *x);
    for (int i = 0; i < N; i++) x->p[i] = (float)i, x->q[i] = -1;
    cr_assert_eq(rg_diloco_create(c, &x->d, &err), RG_OK, "%s", err.text);
    cr_assert_eq(rg_diloco_add(x->d, "p", x->p, N, 0, &err), RG_OK, "%s", err.text);
    cr_assert_eq(rg_diloco_add(x->d, "q", x->q, N, 0, &err), RG_OK, "%s", err.text);
    snprintf(x->path, sizeof x->path, "/tmp/rg-diloco-file-%d", (int)getpid());
    cr_assert_eq(rg_diloco_save(x->d, x->path, &err), RG_OK, "%s", err.text);
    read_back(x);
}

static void box_close(box_t *x) {
    rg_diloco_destroy(x->d);
    unlink(x->path);
}

static uint64_t hash_of(const rg_diloco_t *d) {
    rg_diloco_stats_t s = RG_DILOCO_STATS_INIT;
    cr_assert_eq(rg_diloco_info((rg_diloco_t *)d, &s), RG_OK);
    return s.hash;
}

static uint32_t word(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Makes the hashes of a file right whose contents were changed. *at becomes where tensor `name` begins; 0: there is
 * none.
 */
static void make_right(uint8_t *p, const char *name, size_t *at) {
    size_t desc = HEADER, hashes = HEADER + word(p + 32), data = hashes + 16 * word(p + 16), made = 0;
    *at = 0;
    for (uint32_t i = 0; i < word(p + 12); i++) {
        uint64_t bytes = (uint64_t)word(p + desc + 4) * rg_dtype_size((rg_dtype_t)word(p + desc));
        size_t len = (size_t)p[desc + 12] | (size_t)p[desc + 13] << 8;
        if (len == strlen(name) && !memcmp(p + desc + 14, name, len)) *at = data;
        desc += 14 + len;
        if (!bytes) continue;
        rg_hash_t h = rg_hash_of(p + data, bytes);
        memcpy(p + hashes + 16 * made++, h.b, 16);
        data += bytes;
    }
    rg_hash_t all = rg_hash_of(p + hashes, 16 * made);
    memcpy(p + 80, all.b, 16);
    rg_hash_t own = rg_hash_of(p, HEADER - 16);
    memcpy(p + HEADER - 16, own.b, 16);
}

/* With these bytes at byte `off` of the tensor, and all hashes right. */
static rg_status_t load_forged(box_t *x, const char *tensor, size_t off, const void *bytes, size_t n, rg_error_t *err) {
    static uint8_t image[ROOM];
    size_t at;
    memcpy(image, x->good, x->bytes);
    make_right(image, tensor, &at);
    cr_assert(at, "there is no tensor %s", tensor);
    memcpy(image + at + off, bytes, n);
    make_right(image, tensor, &at);
    write_back(x, image, x->bytes);
    *err = (rg_error_t){ RG_OK, 0, "" };
    return rg_diloco_load(x->d, x->path, err);
}

static int untouched(const box_t *x, uint64_t hash) {
    for (int i = 0; i < N; i++)
        if (x->p[i] != 100 || x->q[i] != 200) return 0;
    return hash_of(x->d) == hash;
}

static void mark(box_t *x) {
    for (int i = 0; i < N; i++) x->p[i] = 100, x->q[i] = 200;
}

Test(diloco_file, load__any_byte_is_wrong_or_missing__refused_and_untouched, .timeout = 100) {
    static box_t x;
    static uint8_t bad[ROOM];
    rg_diloco_config_t c = config_of(RG_DILOCO_EAGER);
    box_open(&x, &c);
    uint64_t hash = hash_of(x.d);
    mark(&x);
    for (size_t i = 0; i < x.bytes; i++) {
        rg_error_t err = { RG_OK, 0, "" };
        memcpy(bad, x.good, x.bytes);
        bad[i] ^= (uint8_t)(1 << i % 8);
        write_back(&x, bad, x.bytes);
        cr_assert(rg_diloco_load(x.d, x.path, &err) < 0 && err.text[0] && untouched(&x, hash), "byte %zu flipped", i);
        write_back(&x, x.good, i);
        cr_assert(rg_diloco_load(x.d, x.path, &err) < 0 && err.text[0] && untouched(&x, hash), "%zu bytes", i);
    }
    write_back(&x, x.good, x.bytes);
    cr_assert_eq(rg_diloco_load(x.d, x.path, NULL), RG_OK);
    cr_assert(x.p[7] == 7 && x.q[7] == -1);
    box_close(&x);
}

/* What would keep every round from being made, from now on and for all members. */
Test(diloco_file, load__numbers_that_no_round_leaves__refused_and_untouched, .timeout = 60) {
    static const char *const eager[] = { "anchor", "momentum", "own", "own-momentum", "said", "kept", "carry" };
    static const char *const plain[] = { "anchor", "momentum", "arrivals" };
    const float bad[] = { NAN, INFINITY, -INFINITY };
    const double lengths[] = { (double)NAN, (double)INFINITY, -1 };
    const uint64_t many = 3, any = UINT64_MAX;
    static box_t x;
    for (int k = 0; k < 2; k++) {
        rg_diloco_config_t c = config_of(k ? RG_DILOCO_EAGER : RG_DILOCO_PLAIN);
        rg_error_t err;
        char name[64];
        box_open(&x, &c);
        uint64_t hash = hash_of(x.d);
        mark(&x);
        for (size_t i = 0; i < (k ? 7 : 3); i++)
            for (int b = 0; b < 3; b++) {
                snprintf(name, sizeof name, "diloco.%s.%d", k ? eager[i] : plain[i], k ? 0 : 1);
                cr_expect_eq(load_forged(&x, name, 4 * 11, &bad[b], 4, &err), RG_ERR_INVALID, "%s: %s", name, err.text);
                cr_expect(strstr(err.text, name) && strstr(err.text, "finite"), "%s", err.text);
            }
        for (int b = 0; b < 3; b++)
            for (size_t at = 24; at <= 32; at += 8)
                cr_expect_eq(load_forged(&x, "diloco.shared", at, &lengths[b], 8, &err), RG_ERR_INVALID, "%s",
                             err.text);
        cr_expect_eq(load_forged(&x, "diloco.shared", 16, &many, 8, &err), RG_ERR_INVALID, "%s", err.text);
        cr_expect(untouched(&x, hash), "something was taken");
        /* Parameters are the program's, and the step may be any. */
        cr_expect_eq(load_forged(&x, "parameter.p", 8, &bad[0], 4, &err), RG_OK, "%s", err.text);
        cr_expect(isnan(x.p[2]) && rg_diloco_reset(x.d) == RG_OK && x.p[2] == 2);
        cr_expect_eq(load_forged(&x, "diloco.shared", 0, &any, 8, &err), RG_OK, "%s", err.text);
        box_close(&x);
    }
}

Test(diloco_file, load__of_another_optimiser_or_no_file__refused_and_untouched, .timeout = 60) {
    static box_t x;
    rg_diloco_config_t c = config_of(RG_DILOCO_PLAIN), late = config_of(RG_DILOCO_DELAYED), three = c;
    const char *const places[] = { "/tmp", "/dev/null", "/dev/zero", "/nowhere/at/all", "" };
    rg_error_t err = { RG_OK, 0, "" };
    three.fragments = 3;
    box_open(&x, &late);
    rg_diloco_destroy(x.d);
    static box_t y;
    box_open(&y, &c); /* writes over the file of x */
    write_back(&y, x.good, x.bytes);
    uint64_t hash = hash_of(y.d);
    mark(&y);
    cr_expect_eq(rg_diloco_load(y.d, y.path, &err), RG_ERR_MISMATCH, "%s", err.text);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        cr_expect(rg_diloco_load(y.d, places[i], &err) < 0 && err.text[0], "%s", places[i]);
    unlink(y.path);
    cr_assert_eq(mkfifo(y.path, 0600), 0);
    cr_expect(rg_diloco_load(y.d, y.path, &err) < 0 && err.text[0]);
    unlink(y.path);
    cr_expect(untouched(&y, hash));
    box_close(&y);
    box_open(&x, &three);
    box_open(&y, &c);
    write_back(&y, x.good, x.bytes);
    cr_expect_eq(rg_diloco_load(y.d, y.path, &err), RG_ERR_MISMATCH, "%s", err.text);
    rg_diloco_destroy(x.d);
    box_close(&y);
}

/* A file of holes that says to have 64 GiB of descriptions takes no memory and no time. */
Test(diloco_file, load__sixty_four_gib_of_descriptions__refused_at_once, .timeout = 5) {
    static box_t x;
    uint8_t image[HEADER];
    rg_diloco_config_t c = config_of(RG_DILOCO_PLAIN);
    rg_error_t err = { RG_OK, 0, "" };
    box_open(&x, &c);
    memcpy(image, x.good, HEADER);
    memset(image + 32, 0, 8);
    image[32 + 4] = 16; /* 2^36 */
    rg_hash_t own = rg_hash_of(image, HEADER - 16);
    memcpy(image + HEADER - 16, own.b, 16);
    write_back(&x, image, HEADER);
    if (truncate(x.path, 1ll << 37) == 0) /* not where files are not that long */
        cr_expect_eq(rg_diloco_load(x.d, x.path, &err), RG_ERR_MISMATCH, "%s", err.text);
    box_close(&x);
}

static const char *cut_it(void *arg, uint32_t tensor, uint64_t at, const void *bytes, uint32_t n) {
    (void)at, (void)bytes, (void)n;
    return tensor == 2 && truncate(arg, 400) != 0 ? "cannot be cut" : NULL;
}

/* The one case in which something is changed by a load that fails: it is never shown as anybody's content. */
Test(diloco_file, load__file_vanishes_between_the_looks__content_is_mixed_and_says_so, .timeout = 60) {
    float a[30] = { 0 }, b[30] = { 0 }, c[30] = { 0 };
    char path[64];
    rg_error_t err = { RG_OK, 0, "" };
    rg_state_t *s = NULL;
    snprintf(path, sizeof path, "/tmp/rg-diloco-cut-%d", (int)getpid());
    cr_assert_eq(rg_state_create(&s, NULL), RG_OK);
    rg_state_add(s, "a", a, 30, RG_F32, NULL);
    rg_state_add(s, "b", b, 30, RG_F32, NULL);
    rg_state_add(s, "c", c, 30, RG_F32, NULL);
    rg_state_set_revision(s, 1);
    cr_assert_eq(rg_state_save(s, path, &err), RG_OK, "%s", err.text);
    cr_expect_eq(rg_state_load_looking(s, path, cut_it, path, &err), RG_ERR_SYSTEM, "%s", err.text);
    cr_expect_eq(rg_state_revision(s), 0);
    cr_expect_eq(rg_state_save(s, path, &err), RG_ERR_INVALID);
    rg_state_destroy(s);
    unlink(path);
}

Test(diloco_file, handle__half_of_a_file_was_taken__refused_until_a_whole_one_is, .timeout = 60) {
    static box_t x;
    rg_diloco_config_t c = config_of(RG_DILOCO_PLAIN);
    rg_error_t err = { RG_OK, 0, "" };
    rg_group_t *g = NULL;
    rg_config_t join = RG_CONFIG_INIT;
    box_open(&x, &c);
    x.d->torn = 1;
    cr_expect_eq(rg_diloco_save(x.d, x.path, &err), RG_ERR_INVALID);
    cr_expect(strstr(err.text, "load a whole file"), "%s", err.text);
    cr_expect_eq(rg_diloco_join(x.d, &join, &g, &err), RG_ERR_INVALID);
    cr_expect_eq(rg_diloco_load(x.d, x.path, &err), RG_OK, "%s", err.text);
    cr_expect_eq(rg_diloco_save(x.d, x.path, &err), RG_OK, "%s", err.text);
    box_close(&x);
}

/* ---- Calls out of order ------------------------------------------------------------------------------------------ */

/* Each in the middle of what overlaps; what is refused leaves the training as it was, and a destroyed handle waits for
 * what is in flight. */
static int out_of_order(rig_member_t *m, void *arg) {
    rg_diloco_variant_t v = *(const rg_diloco_variant_t *)arg;
    rg_diloco_config_t c;
    rg_diloco_t *d = NULL;
    float p[N] = { 0 }, more[N] = { 0 };
    char path[64];
    rg_error_t err = { RG_OK, 0, "" };
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    rg_diloco_profile(v, &c);
    c.every = 8;
    c.fragments = 1;
    if (v == RG_DILOCO_STREAMING) c.overlap = 3;
    c.weight = RG_DILOCO_TOKENS;
    snprintf(path, sizeof path, "/tmp/rg-diloco-order-%d-%u", (int)getpid(), m->index);
    RIG_OK(m, rg_diloco_create(&c, &d, &err));
    RIG_OK(m, rg_diloco_add(d, "p", p, N, 0, &err));
    RIG_NEED(m, rg_diloco_add(d, "p", more, N, 0, &err) == RG_ERR_INVALID, "registered twice");
    RIG_NEED(m, rg_diloco_flush(d, &r) == RG_ERR_INVALID, "a flush before the start");
    RIG_OK(m, rg_diloco_start(d, m->g, &err));
    for (int k = 0; k < 9; k++) {
        for (int i = 0; i < N; i++) p[i] += 0.25f * (float)(m->index + 1);
        RIG_NEED(m, rg_diloco_step(d, UINT64_MAX / 64, &r) == RG_OK, "step %d: %s", k, r.text);
    }
    rg_diloco_stats_t s = RG_DILOCO_STATS_INIT;
    RIG_OK(m, rg_diloco_info(d, &s));
    RIG_NEED(m, s.in_flight == 1, "nothing is in flight");
    RIG_NEED(m, rg_diloco_add(d, "more", more, N, 0, &err) == RG_ERR_INVALID, "added in the middle");
    RIG_OK(m, rg_diloco_save(d, path, &err));
    RIG_NEED(m, rg_diloco_load(d, path, &err) == RG_ERR_INVALID && strstr(err.text, "has started"), "%s", err.text);
    RIG_NEED(m, rg_diloco_start(d, NULL, &err) == RG_ERR_INVALID, "in no group");
    RIG_NEED(m, rg_diloco_flush(d, &r) == RG_OK && r.merged == 1 && r.tokens > 0, "%s", r.text);
    RIG_NEED(m, rig_alike(m, p, N), "parameters differ");
    for (int k = 0; k < 9; k++) RIG_NEED(m, rg_diloco_step(d, 5, &r) == RG_OK, "%s", r.text);
    rg_diloco_destroy(d); /* in the middle */
    unlink(path);
    return rig_gate(m, 0, m->rig->n);
}

Test(diloco_file, calls__in_the_middle_of_what_overlaps__refused_and_nothing_lost, .timeout = 60) {
    for (rg_diloco_variant_t v = RG_DILOCO_STREAMING; v <= RG_DILOCO_CO2; v++)
        rig_run(2, "inproc", NULL, out_of_order, &v);
}

/* Tokens of one member alone, of none, and more than there are numbers for: those who count nothing get the result. */
static int odd_tokens(rig_member_t *m, void *arg) {
    const uint64_t tokens[3][2] = { { 0, 7 }, { UINT64_MAX, UINT64_MAX }, { 0, 0 } };
    (void)arg;
    for (int k = 0; k < 3; k++) {
        rg_diloco_config_t c;
        rg_diloco_t *d = NULL;
        float p[4] = { 0 };
        rg_error_t err = { RG_OK, 0, "" };
        rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
        rg_diloco_profile(RG_DILOCO_FEDAVG, &c);
        c.every = 2;
        c.wire = (rg_wire_t)0;
        RIG_OK(m, rg_diloco_create(&c, &d, &err));
        RIG_OK(m, rg_diloco_add(d, "p", p, 4, 0, &err));
        RIG_OK(m, rg_diloco_start(d, m->g, &err));
        for (int i = 0; i < 2; i++) {
            for (int j = 0; j < 4; j++) p[j] += m->index ? 3.0f : 1.0f;
            RIG_NEED(m, rg_diloco_step(d, tokens[k][m->index], &r) == RG_OK, "case %d: %s", k, r.text);
        }
        float want = k == 0 ? 6 : k == 1 ? 4 : m->index ? 6 : 2; /* of nobody's tokens nothing is merged */
        RIG_NEED(m,
                 p[3] == want && r.contributors == (k == 0   ? 1u
                                                    : k == 1 ? 2u
                                                             : 0u),
                 "case %d: %g of %u", k, (double)p[3], r.contributors);
        if (k == 1) RIG_NEED(m, r.tokens == UINT64_MAX, "%llu tokens", (unsigned long long)r.tokens);
        rg_diloco_destroy(d);
        if (rig_gate(m, 1 + (uint32_t)k, m->rig->n)) return 1;
    }
    return 0;
}

Test(diloco_file, tokens__none_or_beyond_all_numbers__weights_stay_right, .timeout = 60) {
    rig_run(2, "inproc", NULL, odd_tokens, NULL);
}
