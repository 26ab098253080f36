/* test_rdma_wire.c: the bytes of the RDMA transport: what is written is read as it was, and nothing else is taken. */
#ifdef RG_HAVE_RDMA
#include "transports/rdma_internal.h"

#include <criterion/criterion.h>
#include <netinet/in.h>
#include <string.h>

static const rgr_head_t piece = { .type = RGR_PIECE,
                                  .credits = 3,
                                  .len = 500,
                                  .sid = 7,
                                  .rid = 9,
                                  .step = 11,
                                  .tag = { 1, 2, 0x300000004u, 5, 6 },
                                  .note = 0x1122334455667788u,
                                  .total = 70000,
                                  .offset = 1000,
                                  .roomy = 1 };
static const rgr_head_t readable = {
    .type = RGR_RTS, .sid = 4, .key = 0xa1b2c3d4u, .total = 1 << 20, .offset = 1ull << 40
};

Test(rdma_wire, head__written_and_read__the_same) {
    uint8_t b[RGR_HEAD];
    rgr_head_t h;
    memset(&h, 0, sizeof h);
    rgr_head_put(b, &piece);
    cr_assert_eq(b[0], 'R'); /* little endian, whatever the machine */
    cr_assert_null(rgr_head_get(b, RGR_HEAD + 500, &h));
    cr_assert(h.type == RGR_PIECE && h.credits == 3 && h.len == 500 && h.sid == 7 && h.rid == 9 && h.step == 11);
    cr_assert(h.tag.epoch == 1 && h.tag.gen == 2 && h.tag.op == 0x300000004u && h.tag.ord == 5 && h.tag.sig == 6);
    cr_assert(h.note == piece.note && h.total == 70000 && h.offset == 1000 && h.roomy);
    rgr_head_put(b, &readable);
    cr_assert_null(rgr_head_get(b, RGR_HEAD, &h));
    cr_assert(!h.roomy); /* as from one that does not know of it */
}

static const char *refused(rgr_head_t h, uint32_t bytes) {
    uint8_t b[RGR_HEAD];
    rgr_head_t got;
    rgr_head_put(b, &h);
    return rgr_head_get(b, bytes, &got);
}

Test(rdma_wire, head__that_lies__is_refused) {
    uint8_t b[RGR_HEAD] = { 'R', 'G', 'x', '1' };
    rgr_head_t h;
    for (uint32_t n = 0; n < RGR_HEAD; n++) cr_assert_not_null(rgr_head_get(b, n, &h), "%u bytes", n);
    cr_assert_not_null(rgr_head_get(b, RGR_HEAD, &h));
    cr_assert_not_null(refused(piece, RGR_HEAD + 499));
    cr_assert_not_null(refused(piece, RGR_HEAD + 501));
    cr_assert_not_null(refused((rgr_head_t){ .type = 0 }, RGR_HEAD));
    cr_assert_not_null(refused((rgr_head_t){ .type = (rgr_type_t)8 }, RGR_HEAD));
    cr_assert_not_null(refused((rgr_head_t){ .type = RGR_NOTE, .credits = RGR_CREDITS + 1 }, RGR_HEAD));
    cr_assert_not_null(refused((rgr_head_t){ .type = RGR_NOTE, .len = 1 }, RGR_HEAD + 1));
    cr_assert_not_null(refused((rgr_head_t){ .type = RGR_DATA, .len = RGR_ROOM + 1 }, RGR_HEAD + RGR_ROOM + 1));
    cr_assert_not_null(refused((rgr_head_t){ .type = RGR_RTS, .total = RGR_ROOM }, RGR_HEAD));
    cr_assert_not_null(refused((rgr_head_t){ .type = RGR_CTS, .rid = 1, .step = RGR_ROOM + 1 }, RGR_HEAD));
    cr_assert_not_null(refused((rgr_head_t){ .type = RGR_CTS, .rid = 1 }, RGR_HEAD));
    cr_assert_not_null(refused((rgr_head_t){ .type = RGR_CTS, .step = 64 }, RGR_HEAD));
    cr_assert_not_null(refused((rgr_head_t){ .type = RGR_PIECE, .rid = 1 }, RGR_HEAD));
    cr_assert_not_null(refused((rgr_head_t){ .type = RGR_PIECE, .len = 1 }, RGR_HEAD + 1));
    cr_assert_null(refused((rgr_head_t){ .type = RGR_NOTE, .credits = RGR_CREDITS }, RGR_HEAD));
}

Test(rdma_wire, key__to_what_cannot_be_read__is_refused) {
    uint8_t b[RGR_HEAD];
    rgr_head_t h = readable, got;
    rgr_head_put(b, &h);
    cr_assert_null(rgr_head_get(b, RGR_HEAD, &got));
    cr_assert(got.key == readable.key && got.offset == readable.offset && got.total == readable.total);
    h.offset = UINT64_MAX - h.total; /* ends with the address space */
    cr_assert_null(refused(h, RGR_HEAD));
    h.offset++;
    cr_assert_not_null(refused(h, RGR_HEAD));
    for (int t = RGR_DATA; t <= RGR_BACK; t++) { /* only what announces or lends something has one */
        h = (rgr_head_t){ .type = (rgr_type_t)t, .sid = 1, .rid = 1, .step = 64, .total = 1 << 20, .key = 1 };
        h.stamp_key = 1;
        h.len = t == RGR_DATA || t == RGR_PIECE ? 64 : 0;
        cr_assert((refused(h, RGR_HEAD + h.len) == NULL) == (t == RGR_RTS || t == RGR_LEND), "type %d", t);
    }
    cr_assert_not_null(refused((rgr_head_t){ .type = RGR_GOT, .sid = 1 }, RGR_HEAD));
    cr_assert_not_null(refused((rgr_head_t){ .type = RGR_GOT, .rid = 1 }, RGR_HEAD));
    cr_assert_not_null(refused((rgr_head_t){ .type = RGR_DONE }, RGR_HEAD));
    cr_assert_not_null(refused((rgr_head_t){ .type = RGR_DONE, .rid = 1, .len = 1 }, RGR_HEAD + 1));
}

Test(rdma_wire, lent_memory__all_that_it_takes__or_refused) {
    uint8_t b[RGR_HEAD];
    const rgr_head_t good = { .type = RGR_LEND,
                              .sid = 7,
                              .key = 0xa1b2c3d4u,
                              .offset = 1ull << 44,
                              .total = 3ull << 32,
                              .lent = 0x1122334455667788u,
                              .stamp = 0x99aabbccddeeff00u,
                              .stamp_key = 0x55667788u };
    rgr_head_t h = good, got;
    rgr_head_put(b, &h);
    cr_assert_null(rgr_head_get(b, RGR_HEAD, &got));
    cr_assert(got.sid == good.sid && got.key == good.key && got.offset == good.offset && got.total == good.total);
    cr_assert(got.lent == good.lent && got.stamp == good.stamp && got.stamp_key == good.stamp_key);
    for (int i = 0; i < 5; i++) {
        h = good;
        if (i == 0) h.sid = 0;
        if (i == 1) h.key = 0;
        if (i == 2) h.total = 0;
        if (i == 3) h.stamp_key = 0;
        if (i == 4) h.offset = UINT64_MAX - h.total + 1;
        cr_assert_not_null(refused(h, RGR_HEAD), "%d", i);
    }
    for (int t = RGR_RECALL; t <= RGR_BACK; t++) {
        cr_assert_null(refused((rgr_head_t){ .type = (rgr_type_t)t, .sid = 1 }, RGR_HEAD));
        cr_assert_not_null(refused((rgr_head_t){ .type = (rgr_type_t)t }, RGR_HEAD));
    }
    cr_assert_not_null(refused((rgr_head_t){ .type = (rgr_type_t)(RGR_BACK + 1), .sid = 1 }, RGR_HEAD));
}

Test(rdma_wire, hello__cut_or_of_another_version__is_refused) {
    uint8_t b[RGR_HELLO];
    rgr_hello_t h = { { 1 }, { 2 }, { 3 } }, got;
    rgr_hello_put(b, &h);
    cr_assert(rgr_hello_get(b, RGR_HELLO, &got) == 0 && memcmp(&h, &got, sizeof h) == 0);
    for (uint32_t n = 0; n < RGR_HELLO; n++) cr_assert_eq(rgr_hello_get(b, n, &got), -1);
    cr_assert_eq(rgr_hello_get(NULL, 0, &got), -1);
    for (int i = 0; i < 8; i++) { /* magic, and the sizes that both ends must share */
        b[i] ^= 1;
        cr_assert_eq(rgr_hello_get(b, RGR_HELLO, &got), -1, "byte %d", i);
        b[i] ^= 1;
    }
    int own = rgr_hello_version(b, RGR_HELLO);
    cr_assert_geq(own, 2);
    b[3] = '1'; /* of another version: not taken, but told from rubbish */
    cr_assert(rgr_hello_get(b, RGR_HELLO, &got) == -1 && rgr_hello_version(b, RGR_HELLO) == 1);
    b[0] ^= 1;
    cr_assert_eq(rgr_hello_version(b, RGR_HELLO), 0);
    cr_assert_eq(rgr_hello_version(NULL, 0), 0);
}

static const char *refusal(int reason, const uint8_t *data, uint32_t len) {
    static char text[240];
    rgr_refusal(text, sizeof text, reason, data, len);
    return text;
}

Test(rdma_wire, refusal__of_each_kind__says_what_it_can_be) {
    static const rgr_hello_t nobody;
    uint8_t b[RGR_HELLO];
    rgr_hello_put(b, &nobody); /* as it answers to a request of another group */
    cr_assert(strstr(refusal(28, b, sizeof b), "of another group"), "%s", refusal(28, b, sizeof b));
    b[3] = '1';
    cr_assert(strstr(refusal(28, b, sizeof b), "version 1"), "%s", refusal(28, b, sizeof b));
    b[0] ^= 1;
    cr_assert(strstr(refusal(28, b, sizeof b), "no resources"), "%s", refusal(28, b, sizeof b));
    cr_assert(strstr(refusal(8, NULL, 0), "nobody listens"), "%s", refusal(8, NULL, 0));
    cr_assert(strstr(refusal(5, NULL, 0), "reason 5"), "%s", refusal(5, NULL, 0));
}

Test(rdma_wire, address__of_both_families__comes_back) {
    uint8_t b[64];
    struct sockaddr_storage a = { 0 }, got;
    struct sockaddr_in *v4 = (void *)&a;
    v4->sin_family = AF_INET;
    v4->sin_port = htons(4711);
    v4->sin_addr.s_addr = htonl(0x0a4d0001);
    uint32_t n = rgr_addr_put(b, &a);
    cr_assert(rgr_addr_get(b, n, &got) == 0 && memcmp(&a, &got, sizeof a) == 0);
    for (uint32_t k = 0; k < n; k++) cr_assert_eq(rgr_addr_get(b, k, &got), -1);
    b[4] = 5;
    cr_assert_eq(rgr_addr_get(b, n, &got), -1);
    memset(&a, 0, sizeof a);
    struct sockaddr_in6 *v6 = (void *)&a;
    v6->sin6_family = AF_INET6;
    v6->sin6_addr.s6_addr[0] = 0xfd;
    v6->sin6_port = htons(1);
    n = rgr_addr_put(b, &a);
    cr_assert(rgr_addr_get(b, n, &got) == 0 && memcmp(&a, &got, sizeof a) == 0);
    b[6] = b[7] = 0; /* no port */
    cr_assert_eq(rgr_addr_get(b, n, &got), -1);
}

Test(rdma_wire, device_name__with_or_without_port__is_compared) {
    cr_assert_eq(rgr_device_is("mlx5_0", "mlx5_0", 2), 1);
    cr_assert_eq(rgr_device_is("mlx5_0:2", "mlx5_0", 2), 1);
    cr_assert_eq(rgr_device_is("mlx5_0:12", "mlx5_0", 12), 1);
    cr_assert_eq(rgr_device_is("mlx5_0:1", "mlx5_0", 2), 0);
    cr_assert_eq(rgr_device_is("mlx5_0", "mlx5_01", 1), 0);
    cr_assert_eq(rgr_device_is("mlx5_01", "mlx5_0", 1), 0);
    static const char *const bad[] = { "",         ":",         ":1",         "mlx5_0:",   "mlx5_0:0",
                                       "mlx5_0:x", "mlx5_0:1x", "mlx5_0:1:2", "mlx5_0:300" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) cr_assert_eq(rgr_device_is(bad[i], "", 0), -1, "%s", bad[i]);
}
#else
typedef int rdma_is_not_built; /* a translation unit needs a declaration */
#endif
