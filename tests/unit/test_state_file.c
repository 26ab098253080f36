/* test_state_file.c: states in files: what was saved is loaded, byte by byte; whatever is wrong with a file is found
 * before anything is changed, at every byte of its front and in every piece; a write that fails leaves the file that
 * was there. Also what is refused of tensors and touches. It relies on no group. */
#include "state/state.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES ((1u << 20) + 100000u)

typedef struct box {
    rg_state_t *s;
    uint8_t *a;
    double b[3];
    char folder[64], path[96];
    rg_error_t err;
} box_t;

static void box_open(box_t *x, int seed) {
    memset(x, 0, sizeof *x);
    strcpy(x->folder, "/tmp/regroup-state-XXXXXX");
    cr_assert(mkdtemp(x->folder) != NULL);
    snprintf(x->path, sizeof x->path, "%s/model", x->folder);
    x->a = malloc(BYTES);
    for (uint32_t i = 0; i < BYTES; i++) x->a[i] = (uint8_t)(i * 31 + (i >> 8) + (uint32_t)seed);
    for (int i = 0; i < 3; i++) x->b[i] = seed + i;
    cr_assert_eq(rg_state_create(&x->s, &x->err), RG_OK);
    cr_assert_eq(rg_state_add(x->s, "weights", x->a, BYTES, RG_U8, &x->err), RG_OK);
    cr_assert_eq(rg_state_add(x->s, "none", NULL, 0, RG_U8, &x->err), RG_OK);
    cr_assert_eq(rg_state_add(x->s, "rates", x->b, 3, RG_F64, &x->err), RG_OK);
    rg_state_set_revision(x->s, 100 + (uint64_t)seed);
}

static int box_is(const box_t *x, int seed) {
    for (uint32_t i = 0; i < BYTES; i++)
        if (x->a[i] != (uint8_t)(i * 31 + (i >> 8) + (uint32_t)seed)) return 0;
    for (int i = 0; i < 3; i++)
        if (x->b[i] != seed + i) return 0;
    return rg_state_revision(x->s) == 100 + (uint64_t)seed;
}

static int files_in(const char *folder) {
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void box_close(box_t *x) {
    unlink(x->path);
    cr_expect(files_in(x->folder) == 0, "something stayed in %s", x->folder);
    rmdir(x->folder);
    rg_state_destroy(x->s);
    free(x->a);
}

static void set_byte(const char *path, off_t at, int flip) {
    int fd = open(path, O_RDWR);
    uint8_t c = 0;
    cr_assert(fd >= 0 && pread(fd, &c, 1, at) == 1);
    c ^= (uint8_t)flip;
    cr_assert(pwrite(fd, &c, 1, at) == 1);
    close(fd);
}

/* Another state with the same tensors, and its own content until it loads. */
static void reader(box_t *y, const box_t *from) {
    box_open(y, 7);
    rmdir(y->folder);
    memcpy(y->path, from->path, sizeof y->path);
}
static void reader_close(box_t *y) {
    rg_state_destroy(y->s);
    free(y->a);
}

Test(state_file, save__then_load__same_content_and_revision, .timeout = 60) {
    box_t x;
    box_open(&x, 1);
    cr_assert_eq(rg_state_save(x.s, x.path, &x.err), RG_OK, "%s", x.err.text);
    cr_assert_eq(files_in(x.folder), 1);
    box_t y;
    reader(&y, &x);
    cr_assert(box_is(&y, 7));
    cr_assert_eq(rg_state_load(y.s, y.path, &y.err), RG_OK, "%s", y.err.text);
    cr_assert(box_is(&y, 1));
    x.a[5]++; /* saved again over the first */
    cr_assert_eq(rg_state_save(x.s, x.path, &x.err), RG_OK, "%s", x.err.text);
    cr_assert_eq(rg_state_load(y.s, y.path, &y.err), RG_OK, "%s", y.err.text);
    cr_assert_eq(y.a[5], x.a[5]);
    reader_close(&y);
    box_close(&x);
}

/* Every byte of the front, and some of the pieces; each flip is found, says so, and changes nothing. */
Test(state_file, load__one_bit_is_wrong__refused_and_untouched, .timeout = 120) {
    box_t x;
    box_open(&x, 1);
    cr_assert_eq(rg_state_save(x.s, x.path, &x.err), RG_OK, "%s", x.err.text);
    box_t y;
    reader(&y, &x);
    struct stat st;
    cr_assert_eq(stat(x.path, &st), 0);
    off_t front = st.st_size - (off_t)(BYTES + sizeof x.b);
    for (off_t at = 0; at < st.st_size; at += at < front + 3 ? 1 : 99991) {
        set_byte(x.path, at, 1 << (at % 8));
        rg_error_t err = { RG_OK, 0, "" };
        rg_status_t got = rg_state_load(y.s, y.path, &err);
        cr_assert(got == RG_ERR_SYSTEM || got == RG_ERR_INVALID || got == RG_ERR_NOTSUP, "byte %lld: %s", (long long)at,
                  rg_status_name(got));
        cr_assert(err.text[0] && box_is(&y, 7), "byte %lld: changed, or no text", (long long)at);
        set_byte(x.path, at, 1 << (at % 8));
    }
    set_byte(x.path, st.st_size - 1, 1);
    cr_assert_eq(rg_state_load(y.s, y.path, &y.err), RG_ERR_SYSTEM);
    cr_assert(strstr(y.err.text, "rates"), "the damaged tensor is not named: %s", y.err.text);
    set_byte(x.path, st.st_size - 1, 1);
    cr_assert_eq(rg_state_load(y.s, y.path, &y.err), RG_OK, "%s", y.err.text);
    cr_assert(box_is(&y, 1));
    reader_close(&y);
    box_close(&x);
}

Test(state_file, load__cut_short_or_too_long__refused_and_untouched, .timeout = 120) {
    box_t x;
    box_open(&x, 1);
    cr_assert_eq(rg_state_save(x.s, x.path, &x.err), RG_OK, "%s", x.err.text);
    box_t y;
    reader(&y, &x);
    struct stat st;
    cr_assert_eq(stat(x.path, &st), 0);
    cr_assert_eq(truncate(x.path, st.st_size + 1), 0);
    cr_assert_eq(rg_state_load(y.s, y.path, &y.err), RG_ERR_SYSTEM);
    for (off_t len = st.st_size - 1;; len = len > 600 ? len - 99991 > 600 ? len - 99991 : 600 : len - 1) {
        cr_assert_eq(truncate(x.path, len), 0);
        rg_error_t err = { RG_OK, 0, "" };
        cr_assert_eq(rg_state_load(y.s, y.path, &err), RG_ERR_SYSTEM, "%lld bytes", (long long)len);
        cr_assert(strstr(err.text, "cut short"), "%s", err.text);
        if (len == 0) break;
    }
    cr_assert(box_is(&y, 7));
    reader_close(&y);
    box_close(&x);
}

Test(state_file, load__other_tensors_or_no_state__refused_with_the_difference, .timeout = 60) {
    box_t x;
    rg_state_t *s;
    float w[4] = { 1, 2, 3, 4 };
    box_open(&x, 1);
    cr_assert_eq(rg_state_save(x.s, x.path, &x.err), RG_OK);
    cr_assert_eq(rg_state_create(&s, NULL), RG_OK);
    cr_assert_eq(rg_state_load(s, x.path, &x.err), RG_ERR_MISMATCH);
    cr_assert_eq(rg_state_add(s, "weights", w, 4, RG_F32, NULL), RG_OK);
    cr_assert_eq(rg_state_load(s, x.path, &x.err), RG_ERR_MISMATCH);
    cr_assert(strstr(x.err.text, "weights") && strstr(x.err.text, "f32"), "%s", x.err.text);
    cr_assert_eq(w[0], 1);
    rg_state_destroy(s);
    cr_assert_eq(rg_state_load(x.s, "/tmp", &x.err), RG_ERR_SYSTEM);
    cr_assert_eq(rg_state_load(x.s, "/nowhere/at/all", &x.err), RG_ERR_SYSTEM);
    cr_assert_eq(x.err.sys_errno, ENOENT);
    cr_assert_eq(rg_state_load(x.s, "/etc/passwd", &x.err), RG_ERR_INVALID);
    char pipe_path[96];
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", x.folder);
    cr_assert_eq(mkfifo(pipe_path, 0600), 0);
    cr_assert_eq(rg_state_load(x.s, pipe_path, &x.err), RG_ERR_SYSTEM); /* and does not wait for a writer */
    unlink(pipe_path);
    cr_assert_eq(rg_state_save(x.s, "/nowhere/at/all", &x.err), RG_ERR_SYSTEM);
    cr_assert_eq(rg_state_save(x.s, "", &x.err), RG_ERR_INVALID);
    cr_assert_eq(rg_state_save(NULL, x.path, &x.err), RG_ERR_INVALID);
    cr_assert_eq(rg_state_load(NULL, x.path, NULL), RG_ERR_INVALID);
    box_close(&x);
}

Test(state_file, save__no_room_for_it__the_old_file_stays, .timeout = 60) {
    box_t x;
    box_open(&x, 1);
    cr_assert_eq(rg_state_save(x.s, x.path, &x.err), RG_OK);
    x.a[0] ^= 1;
    struct rlimit old, small = { 500000, RLIM_INFINITY };
    signal(SIGXFSZ, SIG_DFL); /* which would end the program */
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    rg_status_t st = rg_state_save(x.s, x.path, &x.err);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    cr_assert_eq(st, RG_ERR_SYSTEM);
    cr_assert_eq(x.err.sys_errno, EFBIG);
    cr_assert(strstr(x.err.text, x.path), "%s", x.err.text);
    cr_assert_eq(files_in(x.folder), 1, "a part of a file stayed");
    box_t y;
    reader(&y, &x);
    cr_assert_eq(rg_state_load(y.s, y.path, &y.err), RG_OK, "%s", y.err.text);
    cr_assert(box_is(&y, 1));
    reader_close(&y);
    box_close(&x);
}

/* What is there and no file is not taken the place of, whoever may do that. */
Test(state_file, save__place_of_a_pipe_or_a_folder__refused_and_still_there, .timeout = 60) {
    box_t x;
    struct stat is;
    box_open(&x, 1);
    cr_assert_eq(mkfifo(x.path, 0600), 0);
    cr_assert_eq(rg_state_save(x.s, x.path, &x.err), RG_ERR_INVALID);
    cr_assert(strstr(x.err.text, "a pipe") && strstr(x.err.text, x.path), "%s", x.err.text);
    cr_assert(stat(x.path, &is) == 0 && S_ISFIFO(is.st_mode) && files_in(x.folder) == 1);
    unlink(x.path);
    cr_assert_eq(rg_state_save(x.s, x.folder, &x.err), RG_ERR_INVALID);
    cr_assert(strstr(x.err.text, "a folder") != NULL, "%s", x.err.text);
    cr_assert_eq(files_in(x.folder), 0);
    box_close(&x);
}

/* /dev/stdout is a link to what standard output is: a file if it was redirected to one, nothing if it is closed. */
Test(state_file, save__place_of_a_link_to_a_standard_stream__refused_and_still_there, .timeout = 60) {
    box_t x;
    struct stat is;
    char log[128];
    box_open(&x, 1);
    snprintf(log, sizeof log, "%s/log", x.folder);
    int was = dup(STDIN_FILENO), fd = open(log, O_RDWR | O_CREAT, 0600);
    cr_assert(fd >= 0 && dup2(fd, STDIN_FILENO) == STDIN_FILENO && symlink("/proc/self/fd/0", x.path) == 0);
    for (int closed = 0; closed < 2; closed++) {
        cr_assert_eq(rg_state_save(x.s, x.path, &x.err), RG_ERR_INVALID);
        cr_assert(strstr(x.err.text, closed ? "leads nowhere" : "a standard stream"), "%s", x.err.text);
        cr_assert(lstat(x.path, &is) == 0 && S_ISLNK(is.st_mode) && files_in(x.folder) == 2);
        close(STDIN_FILENO);
    }
    if (was >= 0) dup2(was, STDIN_FILENO), close(was);
    close(fd);
    unlink(log);
    unlink(x.path);
    cr_assert_eq(symlink(log, x.path), 0);
    cr_assert_eq(rg_state_save(x.s, x.path, &x.err), RG_ERR_INVALID); /* and nobody says when it will lead somewhere */
    box_close(&x);
}

Test(state_file, add_and_touch__bad_arguments__refused_with_a_text, .timeout = 60) {
    rg_state_t *s;
    rg_error_t err = { RG_OK, 0, "" };
    float w[4] = { 0 };
    char name[300];
    memset(name, 'n', sizeof name);
    name[256] = 0;
    cr_assert_eq(rg_state_create(NULL, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_state_create(&s, &err), RG_OK);
    cr_assert_eq(rg_state_add(NULL, "a", w, 4, RG_F32, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_state_add(s, NULL, w, 4, RG_F32, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_state_add(s, "", w, 4, RG_F32, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_state_add(s, name, w, 4, RG_F32, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_state_add(s, "a", NULL, 4, RG_F32, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_state_add(s, "a", w, 4, (rg_dtype_t)99, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_state_add(s, "a", w, UINT64_MAX / 4, RG_F32, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_state_add(s, "a", w, 1ull << 47, RG_U8, &err), RG_ERR_RESOURCE);
    cr_assert(err.text[0]);
    name[255] = 0;
    cr_assert_eq(rg_state_add(s, name, w, 4, RG_F32, &err), RG_OK);
    cr_assert_eq(rg_state_add(s, name, w, 4, RG_F32, &err), RG_ERR_INVALID);
    cr_assert_eq(rg_state_touch(s, "b", 0, 1), RG_ERR_INVALID);
    cr_assert_eq(rg_state_touch(s, name, 3, 2), RG_ERR_INVALID);
    cr_assert_eq(rg_state_touch(s, name, UINT64_MAX, 2), RG_ERR_INVALID);
    cr_assert_eq(rg_state_touch(s, name, 4, 0), RG_OK);
    cr_assert_eq(rg_state_touch(s, NULL, 0, 0), RG_OK);
    cr_assert_eq(rg_state_touch(NULL, NULL, 0, 0), RG_ERR_INVALID);
    cr_assert_eq(rg_state_set_revision(NULL, 1), RG_ERR_INVALID);
    cr_assert_eq(rg_state_revision(NULL), 0);
    rg_state_destroy(s);
    rg_state_destroy(NULL);
}

/* The pieces of a tensor: what is touched is exactly what a range covers. */
Test(state_file, touch__ranges_of_elements__the_pieces_that_have_them, .timeout = 60) {
    rg_state_t *s;
    static uint32_t w[3 << 18]; /* three pieces */
    cr_assert_eq(rg_state_create(&s, NULL), RG_OK);
    cr_assert_eq(rg_state_add(s, "w", w, 3 << 18, RG_U32, NULL), RG_OK);
    static const struct {
        uint64_t first, count;
        uint64_t bits;
    } cases[] = { { 0, 1, 1 },       { (1 << 18) - 1, 1, 1 }, { (1 << 18) - 1, 2, 3 }, { 1 << 18, 1 << 18, 2 },
                  { 0, 3 << 18, 7 }, { (3 << 18) - 1, 1, 4 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rg_state_hash(s, 0);
        cr_assert_eq(s->dirty[0] & 7, 0);
        cr_assert_eq(rg_state_touch(s, "w", cases[i].first, cases[i].count), RG_OK);
        cr_assert_eq(s->dirty[0] & 7, cases[i].bits, "case %zu", i);
    }
    rg_state_destroy(s);
}
