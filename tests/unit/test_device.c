/* test_device.c: the contract of gpu/device.h, asked of the table for host memory. Written against the table, so that
 * a second kind of memory is examined by pointing `dev` at it. It relies on nothing but the table and the kernels. */
#include <criterion/criterion.h>

#include "gpu/device.h"

static const rg_device_ops_t *const dev = &rg_device_host;

/* Waits for a ticket the way the engine would: by asking. */
static void finish(uint64_t ticket) {
    rg_status_t status;
    do status = dev->poll(ticket);
    while (status == RG_AGAIN);
    cr_assert_eq(status, RG_OK);
}

Test(device, alloc__any_size__aligned_and_freed) {
    for (size_t bytes = 0; bytes < 200; bytes += 33) {
        void *p = NULL;
        cr_assert_eq(dev->alloc(bytes, &p), RG_OK);
        cr_assert_not_null(p);
        cr_assert_eq((uintptr_t)p % 64, 0);
        dev->free(p);
    }
    dev->free(NULL);
}

Test(device, alloc__impossible_size__nomem) {
    void *p = &p;
    cr_assert_eq(dev->alloc(SIZE_MAX - 8, &p), RG_ERR_NOMEM);
    cr_assert_null(p);
}

Test(device, copy__odd_sizes__every_byte_and_no_more) {
    enum { N = 4099 };
    unsigned char from[N], to[N + 1];
    for (size_t i = 0; i < N; i++) from[i] = (unsigned char)(i * 7 + 1);
    for (size_t n = 0; n <= N; n += 1 + n / 2) {
        uint64_t ticket = 99;
        memset(to, 0xee, sizeof to);
        cr_assert_eq(dev->copy(to, from, n, &ticket), RG_OK);
        finish(ticket);
        cr_assert_eq(memcmp(to, from, n), 0);
        cr_assert_eq(to[n], 0xee);
    }
}

Test(device, reduce__in_place__sum) {
    float a[37], b[37];
    for (int i = 0; i < 37; i++) a[i] = (float)i, b[i] = 2 * (float)i;
    rg_red_t r;
    uint64_t ticket = 99;
    cr_assert_eq(rg_red_init(&r, RG_F32, RG_SUM, 2, RG_RED_FINAL), RG_OK);
    cr_assert_eq(dev->reduce(&r, a, a, b, 37, &ticket), RG_OK);
    finish(ticket);
    for (int i = 0; i < 37; i++) cr_assert_float_eq(a[i], 3 * (float)i, 0);
    cr_assert_eq(dev->reduce(&r, NULL, NULL, NULL, 0, &ticket), RG_OK);
}

Test(device, poll__ticket_never_given__invalid) { cr_assert_eq(dev->poll(12345), RG_ERR_INVALID); }
