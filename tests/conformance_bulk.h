/* conformance_bulk.h: large messages and many of them, and what the processor did for them, of transports that count
 * it: each byte of memory that is registered at both ends is moved by the adapter alone, or reduced in one pass. Part
 * of conformance.c and of nothing else, whose tools it uses. */
#ifndef CONFORMANCE_BULK_H
#define CONFORMANCE_BULK_H

static void case_large_both_ways(env_t *e) {
    uint8_t *c = malloc(BIG / 2);
    CHECK(e, c && couple(e) == 0);
    fill(big_a, BIG, 5);
    memset(big_b, 0, BIG);
    fill(c, BIG / 2, 9);
    int ok = do_recv(e, 1, tag(1, 1, 0), big_b, BIG, 1) && do_send(e, 0, tag(1, 1, 0), big_a, BIG, 1) &&
             do_send(e, 1, tag(1, 1, 0), c, BIG / 2, 2);
    uint8_t *d = malloc(BIG / 2);
    ok = ok && d && do_recv(e, 0, tag(1, 1, 0), d, BIG / 2, 2);
    ok = ok && UNTIL(e, ended(e, 1, 1, RG_TP_DONE) && ended(e, 0, 1, RG_TP_DONE) && ended(e, 0, 2, RG_TP_DONE) &&
                            ended(e, 1, 2, RG_TP_DONE));
    ok = ok && holds(big_b, BIG, 5) && holds(d, BIG / 2, 9);
    uint64_t sent = 0, received = 0;
    e->t->stats(e->ep[0].tp, 0, &sent, &received);
    free(c);
    free(d);
    CHECK(e, ok);
    CHECK(e, sent == BIG && received == BIG / 2);
}

static void case_many_small(env_t *e) {
    CHECK(e, couple(e) == 0);
    for (int round = 0; round < 4; round++) {
        memset(e->ep[0].ends, 0, sizeof e->ep[0].ends);
        memset(e->ep[1].ends, 0, sizeof e->ep[1].ends);
        for (uint32_t i = 0; i < 2000; i++) {
            size_t n = i % 301;
            fill(big_a + i * 512, n, i);
            CHECK(e, do_recv(e, 1, tag(1, (uint64_t)round, i), big_b + i * 512, n, i));
            CHECK(e, do_send(e, 0, tag(1, (uint64_t)round, i), big_a + i * 512, n, i));
        }
        for (uint32_t i = 0; i < 2000; i++) {
            CHECK(e, UNTIL(e, ended(e, 1, i, RG_TP_DONE) && ended(e, 0, i, RG_TP_DONE)));
            CHECK(e, holds(big_b + i * 512, i % 301, i));
        }
    }
}

/* What the processor did for one large message each way, of which one is reduced. */
static void case_work(env_t *e) {
    uint64_t copied[2][2], reduced[2][2];
    size_t n = 4 << 20;
    CHECK(e, couple(e) == 0);
    if (!e->t->work) return;
    fill(big_a, n, 5);
    for (int i = 0; i < 2; i++) e->t->work(e->ep[i].tp, &copied[i][0], &reduced[i][0]);
    rg_tp_recv_t r = { .tag = tag(1, 2, 0), .len = n, .cookie = 2, .dst = big_a + 2 * n, .a = big_a + 2 * n };
    r.reduce = add_i32;
    r.wire_elem = r.dst_elem = r.a_elem = 4;
    memset(big_a + 2 * n, 0, n);
    CHECK(e, do_recv(e, 1, tag(1, 1, 0), big_b, n, 1) && do_send(e, 0, tag(1, 1, 0), big_a, n, 1));
    CHECK(e, do_recv_op(e, 0, &r) && do_send(e, 1, tag(1, 2, 0), big_b + n, n, 2));
    CHECK(e, UNTIL(e, ended(e, 1, 1, RG_TP_DONE) && ended(e, 0, 1, RG_TP_DONE) && ended(e, 0, 2, RG_TP_DONE) &&
                          ended(e, 1, 2, RG_TP_DONE)));
    for (int i = 0; i < 2; i++) e->t->work(e->ep[i].tp, &copied[i][1], &reduced[i][1]);
    uint64_t all = copied[0][1] - copied[0][0] + copied[1][1] - copied[1][0];
    CHECK(e, holds(big_b, n, 5));
    CHECK(e, strstr(e->what, "rdma") == NULL || (reduced[0][1] - reduced[0][0] == n && reduced[1][1] == reduced[1][0]));
    CHECK(e, strcmp(e->what, "rdma") != 0 || all == 3 * n);
    CHECK(e, strcmp(e->what, "rdma-regions") != 0 || all == 0);
}

#endif
