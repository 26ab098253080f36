/* test_shared.c: memory that others can map: what a region is, what is found in it, what is left of it. Relies on
 * nothing but Linux' memfd. It must not touch memory after it gave it back. */
#include "os/shared.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int descriptors(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

Test(shared, alloc__odd_size__whole_pages_zeroed_and_sealed) {
    void *p;
    rg_error_t err;
    rg_region_t r;
    struct stat st;
    cr_assert_eq(rg_shared_alloc(12345, 0, &p, &err), RG_OK);
    cr_assert_eq((uintptr_t)p % 4096, 0);
    cr_assert_eq(rg_shared_find(p, 12345, &r), 1);
    cr_assert_eq(r.len, 16384);
    cr_assert(r.base == p && r.id != 0);
    for (size_t i = 0; i < r.len; i++) cr_assert_eq(((uint8_t *)p)[i], 0);
    cr_assert(fstat(r.fd, &st) == 0 && st.st_size == 16384);
    cr_assert(ftruncate(r.fd, 4096) == -1 && errno == EPERM);
    cr_assert(ftruncate(r.fd, 1 << 20) == -1 && errno == EPERM);
    /* Who maps it sees the same bytes. */
    uint8_t *q = mmap(NULL, r.len, PROT_READ, MAP_SHARED, r.fd, 0);
    cr_assert(q != MAP_FAILED);
    ((uint8_t *)p)[12344] = 0x5a;
    cr_assert_eq(q[12344], 0x5a);
    munmap(q, r.len);
    rg_shared_free(p);
}

Test(shared, find__spans_around_regions__only_what_lies_whole_inside) {
    void *p[3];
    rg_region_t r;
    char stack[64] = { 0 };
    cr_assert_eq(rg_shared_find(stack, sizeof stack, &r), 0);
    for (int i = 0; i < 3; i++) cr_assert_eq(rg_shared_alloc(8192, 0, &p[i], NULL), RG_OK);
    for (int i = 0; i < 3; i++) {
        uint8_t *b = p[i];
        cr_assert(rg_shared_find(b, 8192, &r) && r.base == b);
        cr_assert(rg_shared_find(b + 4000, 192, &r) && r.base == b);
        cr_assert(rg_shared_find(b + 8191, 1, &r) && r.base == b);
        cr_assert_eq(rg_shared_find(b + 1, 8192, &r), 0);
        cr_assert_eq(rg_shared_find(b, SIZE_MAX, &r), 0);
    }
    cr_assert_eq(rg_shared_find(stack, sizeof stack, &r), 0);
    for (int i = 0; i < 3; i++) rg_shared_free(p[i]);
}

Test(shared, free__regions_gone__generation_moves_and_nothing_is_left) {
    void *p[20];
    rg_region_t r[20], other;
    int before = descriptors();
    for (int i = 0; i < 20; i++) {
        cr_assert_eq(rg_shared_alloc(4096, 0, &p[i], NULL), RG_OK);
        cr_assert(rg_shared_find(p[i], 4096, &r[i]));
        for (int k = 0; k < i; k++) cr_assert(r[k].id != r[i].id);
    }
    uint64_t g = rg_shared_generation();
    rg_shared_free(p[7]);
    cr_assert(rg_shared_generation() != g);
    cr_assert(!rg_shared_alive(r[7].id) && rg_shared_alive(r[8].id) && rg_shared_alive(r[6].id));
    cr_assert_eq(rg_shared_find(p[7], 1, &other), 0);
    g = rg_shared_generation();
    rg_shared_free(NULL);
    cr_assert_eq(rg_shared_generation(), g);
    for (int i = 0; i < 20; i++)
        if (i != 7) rg_shared_free(p[i]);
    cr_assert_eq(descriptors(), before);
}

Test(shared, alloc__too_much__a_status_and_nothing_left) {
    void *p;
    rg_error_t err;
    int before = descriptors();
    cr_assert_eq(rg_shared_alloc(SIZE_MAX, 0, &p, &err), RG_ERR_NOMEM);
    cr_assert(p == NULL && err.text[0]);
    cr_assert_eq(rg_shared_alloc((size_t)1 << 60, 0, &p, &err), RG_ERR_NOMEM);
    cr_assert(p == NULL && strstr(err.text, "shared memory"));
    cr_assert_eq(descriptors(), before);
}

/* What the address space and the kernel would promise, but no host has: it must not be tried, as all processes here
 * would lose their memory to it first. */
Test(shared, alloc__more_than_the_host_has__refused_before_anything_is_taken, .timeout = 3) {
    void *p;
    rg_error_t err;
    int before = descriptors();
    for (int huge = 0; huge < 2; huge++) {
        cr_assert_eq(rg_shared_alloc((size_t)1 << 44, huge, &p, &err), RG_ERR_NOMEM);
        cr_assert(p == NULL && strstr(err.text, "shared memory"));
    }
    cr_assert_eq(descriptors(), before);
}

Test(shared, alloc__large_pages_asked__works_wherever_they_are_missing) {
    void *p;
    rg_region_t r;
    cr_assert_eq(rg_shared_alloc(3 << 20, 1, &p, NULL), RG_OK);
    cr_assert(rg_shared_find(p, 3 << 20, &r) && r.len == 4 << 20);
    memset(p, 1, 3 << 20);
    rg_shared_free(p);
}

/* The kernel ends a process with a signal that makes a file larger than it may, and memory objects count as files. */
Test(shared, alloc__limit_of_file_sizes__a_status_that_names_it_and_no_signal) {
    void *p;
    rg_error_t err;
    struct rlimit was, low;
    int before = descriptors();
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &was), 0);
    low = (struct rlimit){ 1 << 20, was.rlim_max };
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &low), 0);
    for (int huge = 0; huge < 2; huge++) {
        cr_expect_eq(rg_shared_alloc((4 << 20) + 1, huge, &p, &err), RG_ERR_NOMEM);
        cr_expect(p == NULL && strstr(err.text, "ulimit -f"), "%s", err.text);
    }
    cr_expect_eq(rg_shared_alloc(1 << 20, 0, &p, &err), RG_OK);
    rg_shared_free(p);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &was), 0);
    cr_expect_eq(descriptors(), before);
}

/* A limit of the address space is met before anything is taken. Not with a sanitizer, whose own memory is beyond it. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
Test(shared, alloc__limit_of_the_address_space__a_status_and_nothing_left) {
    void *p;
    rg_error_t err;
    struct rlimit was, low;
    int before = descriptors();
    cr_assert_eq(getrlimit(RLIMIT_AS, &was), 0);
    low = (struct rlimit){ 1ull << 30, was.rlim_max };
    cr_assert_eq(setrlimit(RLIMIT_AS, &low), 0);
    for (int huge = 0; huge < 2; huge++) {
        cr_expect_eq(rg_shared_alloc((size_t)1 << 30, huge, &p, &err), RG_ERR_NOMEM);
        cr_expect(p == NULL && err.text[0], "%s", err.text);
    }
    cr_expect_eq(rg_shared_alloc(1 << 20, 0, &p, &err), RG_OK);
    rg_shared_free(p);
    cr_assert_eq(setrlimit(RLIMIT_AS, &was), 0);
    cr_expect_eq(descriptors(), before);
}
#endif

static void *come_and_go(void *arg) {
    int *wrong = arg;
    for (int i = 0; i < 200; i++) {
        void *p;
        rg_region_t r;
        if (rg_shared_alloc(4096, 0, &p, NULL) != RG_OK) continue;
        *wrong += !rg_shared_find(p, 4096, &r) || r.base != p || !rg_shared_alive(r.id);
        rg_shared_free(p);
    }
    return NULL;
}

Test(shared, alloc_and_free__four_threads__each_finds_its_own) {
    pthread_t t[4];
    int wrong[4] = { 0 };
    for (int i = 0; i < 4; i++) cr_assert_eq(pthread_create(&t[i], NULL, come_and_go, &wrong[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        cr_assert_eq(wrong[i], 0);
    }
}
