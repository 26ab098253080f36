/* conformance_lend.h: memory that peers read when they like (lend, reclaim, fetch, unfetch), for the exam in
 * conformance.c. Part of that program and of nothing else: it uses its tools. A transport that says no to all of it
 * passes: then messages are the way. */
#ifndef CONFORMANCE_LEND_H
#define CONFORMANCE_LEND_H

#define LEND_BYTES (1u << 20)
#define LEND_NAME 0x1e4dull

static uint64_t stamp_seen[2][RG_TP_STAMP];

static int do_lend(env_t *e, uint64_t name, const void *p, uint64_t bytes, const uint64_t *stamp) {
    const rg_tp_lend_t l = { .name = name, .memory = p, .bytes = bytes, .stamp = stamp };
    return e->t->lend(e->ep[0].tp, 0, &l);
}

static int do_fetch(env_t *e, uint64_t name, uint64_t off, uint64_t len, void *dst, uint64_t cookie) {
    const rg_tp_fetch_t f = { .name = name,
                              .off = off,
                              .len = len,
                              .dst = dst,
                              .before = stamp_seen[0],
                              .after = stamp_seen[1],
                              .cookie = cookie };
    e->ep[1].ends[cookie] = 0;
    return e->t->fetch(e->ep[1].tp, 0, &f);
}

/* As soon as the peer has heard that it may. */
static int fetches(env_t *e, uint64_t name, uint64_t off, uint64_t len, void *dst, uint64_t cookie) {
    int began = 0;
    return UNTIL(e, began || (began = do_fetch(e, name, off, len, dst, cookie)));
}

/* big_a lent by the first to the second; its stamp lies behind it. 0: it is not lent, and nobody can read it. */
static int lent(env_t *e, uint64_t **stamp) {
    *stamp = (uint64_t *)(void *)(big_a + LEND_BYTES);
    memset(*stamp, 0, 64);
    fill(big_a, LEND_BYTES, 3);
    if (couple(e) != 0) {
        snprintf(e->why, sizeof e->why, "no link");
        return 0;
    }
    if (!e->t->lend) return 0;
    if (do_fetch(e, LEND_NAME, 0, 8, big_b, 1)) snprintf(e->why, sizeof e->why, "reads what was not lent");
    if (e->why[0] || do_lend(e, LEND_NAME, big_a, LEND_BYTES, *stamp)) return !e->why[0];
    turns(e, 50);
    if (do_fetch(e, LEND_NAME, 0, 8, big_b, 1)) snprintf(e->why, sizeof e->why, "reads what it could not be lent");
    if (strstr(e->what, "-regions") && strstr(e->what, "rdma")) snprintf(e->why, sizeof e->why, "does not lend");
    return 0;
}

static void case_lend(env_t *e) {
    uint64_t *stamp;
    static uint8_t small[100]; /* what is given up in the middle may come until the end is closed */
    uint8_t *plain;
    if (!lent(e, &stamp)) return;
    CHECK(e, do_lend(e, LEND_NAME, big_a, LEND_BYTES, stamp)); /* it is */
    stamp[0] = 4, stamp[1] = 5, stamp[2] = 6;
    CHECK(e, fetches(e, LEND_NAME, 0, LEND_BYTES, big_b, 2));
    CHECK(e, UNTIL(e, ended(e, 1, 2, RG_TP_DONE)) && holds(big_b, LEND_BYTES, 3));
    for (int i = 0; i < 2; i++) CHECK(e, stamp_seen[i][0] == 4 && stamp_seen[i][1] == 5 && stamp_seen[i][2] == 6);
    CHECK(e, do_fetch(e, LEND_NAME, 1001, sizeof small, small, 3));
    CHECK(e, UNTIL(e, ended(e, 1, 3, RG_TP_DONE)) && holds(small, sizeof small, 3 + 1001));
    CHECK(e, do_fetch(e, LEND_NAME, LEND_BYTES, 0, NULL, 4));
    CHECK(e, UNTIL(e, ended(e, 1, 4, RG_TP_DONE)) && stamp_seen[0][0] == 4 && stamp_seen[1][2] == 6);
    CHECK(e, !do_fetch(e, LEND_NAME, LEND_BYTES, 1, small, 5) && !do_fetch(e, LEND_NAME, LEND_BYTES + 1, 0, small, 5));
    CHECK(e, !do_fetch(e, LEND_NAME, 1, UINT64_MAX, small, 5) && !do_fetch(e, LEND_NAME + 1, 0, 1, small, 5));
    plain = malloc(LEND_BYTES);
    int began = plain && do_fetch(e, LEND_NAME, 0, LEND_BYTES, plain, 6); /* it may say no */
    int good = !began || (UNTIL(e, ended(e, 1, 6, RG_TP_DONE)) && holds(plain, LEND_BYTES, 3));
    free(plain);
    CHECK(e, good);
    /* Many at once, of which some may be refused; and messages meanwhile. */
    for (uint64_t i = 0; i < 40; i++) began += do_fetch(e, LEND_NAME, 512 * i, 512, big_b + 512 * i, 100 + i);
    CHECK(e, do_send(e, 1, tag(1, 1, 0), big_b + BIG / 2, BIG / 4, 7) &&
                 do_recv(e, 0, tag(1, 1, 0), big_a + BIG / 2, BIG / 4, 7));
    CHECK(e, UNTIL(e, ended(e, 0, 7, RG_TP_DONE) && ended(e, 1, 7, RG_TP_DONE)) && began > 4);
    turns(e, 300);
    for (uint64_t i = 0; i < 40; i++)
        CHECK(e, !e->ep[1].ends[100 + i] ||
                     (ended(e, 1, 100 + i, RG_TP_DONE) && holds(big_b + 512 * i, 512, 3 + 512 * (uint32_t)i)));
    /* Views come and go; the link stays, and with it what was lent. */
    e->t->fence(e->ep[0].tp, 9);
    e->t->fence(e->ep[1].tp, 9);
    CHECK(e, do_fetch(e, LEND_NAME, 0, 64, big_b, 8) && UNTIL(e, ended(e, 1, 8, RG_TP_DONE)) && holds(big_b, 64, 3));
    /* It ends with the link. */
    (void)do_fetch(e, LEND_NAME, 0, LEND_BYTES, big_b, 9);
    e->t->drop(e->ep[1].tp, 0);
    memset(big_b, 0xee, LEND_BYTES);
    CHECK(e, UNTIL(e, e->ep[0].down[0]) && e->ep[1].ends[9] == 1);
    turns(e, 100);
    CHECK(e, big_b[0] == 0xee && memcmp(big_b, big_b + 1, LEND_BYTES - 1) == 0);
    CHECK(e, !do_fetch(e, LEND_NAME, 0, 8, big_b, 10) && !do_lend(e, LEND_NAME, big_a, LEND_BYTES, stamp));
    e->t->drop(e->ep[0].tp, 0);
    e->ep[0].up[0] = e->ep[1].up[0] = 0;
    CHECK(e, link_to(e, 0, 0, 1, 1, 10000) == 0 && link_to(e, 1, 0, 0, 0, 10000) == 0);
    CHECK(e, UNTIL(e, e->ep[0].up[0] && e->ep[1].up[0]));
    turns(e, 50);
    CHECK(e, !do_fetch(e, LEND_NAME, 0, 8, big_b, 10)); /* and does not come back with the next one */
    CHECK(e, do_lend(e, LEND_NAME, big_a, LEND_BYTES, stamp));
    CHECK(e, fetches(e, LEND_NAME, 0, 8, big_b, 10) && UNTIL(e, ended(e, 1, 10, RG_TP_DONE)));
}

/* The owner writes a row of equal words, in the middle of reads: those whose stamps say that they are of one moment
 * must be. */
static void case_lend_torn(env_t *e) {
    enum { WORDS = 40000 };
    uint64_t *stamp, *row = (uint64_t *)(void *)big_a, *seen = (uint64_t *)(void *)big_b;
    uint32_t whole = 0;
    if (!lent(e, &stamp)) return;
    memset(row, 0, sizeof *row * WORDS);
    for (uint32_t round = 0, step = 0; round < 400; round++) {
        CHECK(e, fetches(e, LEND_NAME, 0, sizeof *row * WORDS, seen, 1));
        for (uint32_t i = 0; i < 400 && !e->ep[1].ends[1]; i++) {
            turn(e);
            if (i % (1 + round % 23)) continue;           /* quick and slow ones */
            if (round % 4 < 2 && step % 4 == 0) continue; /* and some that no read meets */
            uint32_t from = step % 4 * (WORDS / 4), to = from + WORDS / 4;
            if (step % 4 == 0) stamp[0]++;
            for (uint32_t k = from; k < to; k++) row[k]++;
            if (step % 4 == 3) stamp[0]++, stamp[1] = row[0];
            step++;
        }
        CHECK(e, UNTIL(e, ended(e, 1, 1, RG_TP_DONE)));
        if (stamp_seen[0][0] % 2 || memcmp(stamp_seen[0], stamp_seen[1], sizeof stamp_seen[0]) != 0) continue;
        whole++;
        for (uint32_t k = 0; k < WORDS; k++) CHECK(e, seen[k] == stamp_seen[0][1]);
    }
    CHECK(e, whole > 0);
}

/* One that is given up touches nothing any more, at whatever moment that is. */
static void case_lend_stopped(env_t *e) {
    uint64_t *stamp;
    if (!lent(e, &stamp)) return;
    CHECK(e, fetches(e, LEND_NAME, 0, 8, big_b, 1) && UNTIL(e, ended(e, 1, 1, RG_TP_DONE)));
    for (int i = 0; i < 60; i++) {
        uint64_t len = i % 3 ? LEND_BYTES : 200;
        CHECK(e, do_fetch(e, LEND_NAME, 0, len, big_b, 2));
        turns(e, i / 2);
        e->t->unfetch(e->ep[1].tp, 0, 2);
        memset(big_b, 0xee, len);
        memset(stamp_seen, 0xee, sizeof stamp_seen);
        turns(e, 60);
        CHECK(e, e->ep[1].ends[2] == 1 && big_b[0] == 0xee && memcmp(big_b, big_b + 1, len - 1) == 0);
        CHECK(e, stamp_seen[0][0] == stamp_seen[1][2] && stamp_seen[0][0] == 0xeeeeeeeeeeeeeeeeu);
    }
    e->t->unfetch(e->ep[1].tp, 0, 77); /* there is none */
    CHECK(e, do_fetch(e, LEND_NAME, 0, 512, big_b, 1) && UNTIL(e, ended(e, 1, 1, RG_TP_DONE)) && holds(big_b, 512, 3));
}

/* The memory goes at once, also in the middle of a read, and the link stays; nothing of it is left behind. */
static void case_lend_taken_back(env_t *e) {
    uint64_t *stamp;
    void *p = NULL;
    if (!lent(e, &stamp)) return;
    for (uint64_t i = 0; i < 300; i++) {
        CHECK(e, rg_shared_alloc(LEND_BYTES, 0, &p, NULL) == RG_OK);
        uint64_t *own = (uint64_t *)p, name = 1 + i % 2;
        fill((uint8_t *)p + 64, 1024, (uint32_t)i);
        own[0] = 2 * i;
        int began = 0;
        CHECK(e, do_lend(e, name, p, LEND_BYTES, own));
        /* Under this name the one before may still be there: its stamp says whose it is. */
        uint64_t end = rg_os_now_ns() + patience_ns;
        while (!(began && stamp_seen[0][0] == 2 * i) && rg_os_now_ns() < end) {
            began = do_fetch(e, name, 64, 1024, big_b, 3);
            if (began && !UNTIL(e, e->ep[1].ends[3])) break;
            turn(e);
        }
        CHECK(e, began && ended(e, 1, 3, RG_TP_DONE) && stamp_seen[1][0] == 2 * i && holds(big_b, 1024, (uint32_t)i));
        int late = i % 5 == 0 && do_fetch(e, name, 0, LEND_BYTES, big_b, 4);
        own[0]++;
        e->t->reclaim(e->ep[0].tp, name);
        rg_shared_free(p);
        CHECK(e, !late || UNTIL(e, e->ep[1].ends[4] == 1));
        CHECK(e, !late || e->ep[1].status[4] != RG_TP_DONE || stamp_seen[1][0] != 2 * i || !strstr(e->what, "rdma"));
        CHECK(e, !e->ep[0].down[0] && !e->ep[1].down[0]);
    }
    CHECK(e, UNTIL(e, !do_fetch(e, 1, 0, 8, big_b, 5) && !do_fetch(e, 2, 0, 8, big_b, 5)));
    CHECK(e, do_fetch(e, LEND_NAME, 0, 64, big_b, 6) && UNTIL(e, ended(e, 1, 6, RG_TP_DONE)) && holds(big_b, 64, 3));
}

#endif
