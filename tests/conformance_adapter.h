/* conformance_adapter.h: links of the RDMA transport whose adapter falls silent, and others that only look like it, for
 * the exam in conformance.c with the adapter of tests/adapter. Part of that program and of nothing else: it uses its
 * tools. What must not happen is waited for through several silences, which are short here. */
#ifndef CONFORMANCE_ADAPTER_H
#define CONFORMANCE_ADAPTER_H

#define SILENCE_MS 200u

static void turns_for(env_t *e, uint64_t ms) {
    for (uint64_t end = rg_os_now_ns() + ms * 1000000; rg_os_now_ns() < end;) turn(e);
}

/* As couple(), and both have heard of each other. */
static int couple_watched(env_t *e) {
    for (int i = 0; i < e->n; i++) e->t->close(e->ep[i].tp), e->ep[i].tp = NULL;
    e->conf.heartbeat_ms = SILENCE_MS;
    if (couple(e) != 0) return -1;
    turns(e, 50);
    return 0;
}

static uint32_t devices(const env_t *e) { return e->conf.rdma_device ? 2 : 1; }

/* Whichever end's, with nothing to do but a probe, a small message, a large one begun. */
static void case_silent_adapter(env_t *e) {
    for (int k = 0; k < 6; k++) {
        int which = k % 2, busy = k / 2, other = !which;
        size_t n = busy == 2 ? 32 << 20 : 10;
        CHECK(e, couple_watched(e) == 0);
        fill(big_a, n, 1);
        if (busy) CHECK(e, do_recv(e, 1, tag(1, 1, 0), big_b, n, 1));
        if (busy < 2) fake_hold(which, devices(e) - 1, 0);
        if (busy) CHECK(e, do_send(e, 0, tag(1, 1, 0), big_a, n, 1));
        turns(e, 12); /* some of the large one is there */
        fake_hold(which, devices(e) - 1, 0);
        uint64_t before = rg_os_now_ns();
        CHECK(e, UNTIL(e, e->ep[which].down[0]) && strstr(e->ep[which].text, "reported nothing"));
        CHECK(e, rg_os_now_ns() - before > (SILENCE_MS - 50) * 1000000ull); /* for what was posted just before */
        CHECK(e, UNTIL(e, e->ep[other].down[0]));
        if (busy) CHECK(e, UNTIL(e, e->ep[0].ends[1] && e->ep[1].ends[1]));
        if (busy == 2) CHECK(e, ended(e, 1, 1, RG_TP_GONE));
    }
}

/* Its adapter takes what comes, and answers, while the process sleeps: TCP would wait, too. */
static void case_stopped_peer(env_t *e) {
    static uint8_t in[14][64];
    CHECK(e, couple_watched(e) == 0);
    for (uint32_t i = 0; i < 14; i++) CHECK(e, do_recv(e, 1, tag(1, 1, i), in[i], 64, i));
    rg_tp_t *asleep = e->ep[1].tp;
    e->ep[1].tp = NULL;
    fill(big_a, 64, 3);
    for (uint32_t i = 0; i < 14; i++) CHECK(e, do_send(e, 0, tag(1, 1, i), big_a, 64, i));
    turns_for(e, SILENCE_MS * 5);
    int down = e->ep[0].down[0];
    e->ep[1].tp = asleep;
    CHECK(e, !down);
    for (uint32_t i = 0; i < 14; i++)
        CHECK(e, UNTIL(e, ended(e, 1, i, RG_TP_DONE) && ended(e, 0, i, RG_TP_DONE)) && holds(in[i], 64, 3));
    CHECK(e, !e->ep[0].down[0] && !e->ep[1].down[0]);
}

/* More come to it than it has slots for while it sleeps, so their adapters try again and again. */
static void case_peer_short_of_slots(env_t *e) {
    static uint8_t in[2][14][64];
    e->conf.heartbeat_ms = SILENCE_MS;
    fake_recvs = 16;
    int rc = start(e, 0, nonce);
    fake_recvs = 0;
    CHECK(e, rc == 0 && start(e, 1, nonce) == 0 && start(e, 2, nonce) == 0);
    for (int i = 1; i <= 2; i++) {
        CHECK(e, link_to(e, i, 0, 0, 1, 10000) == 0 && link_to(e, 0, (uint32_t)i, i, 0, 10000) == 0);
        CHECK(e, UNTIL(e, e->ep[0].up[i] && e->ep[i].up[0]));
        turns(e, 50);
    }
    fill(big_a, 64, 4);
    for (uint32_t i = 0; i < 28; i++) {
        rg_tp_recv_t r = { .tag = tag(1, 1, i % 14), .dst = in[i / 14][i % 14], .len = 64, .cookie = i };
        CHECK(e, e->t->recv(e->ep[0].tp, i / 14 + 1, &r) >= 0);
    }
    rg_tp_t *asleep = e->ep[0].tp;
    e->ep[0].tp = NULL;
    for (uint32_t i = 0; i < 28; i++) CHECK(e, do_send(e, (int)(i / 14) + 1, tag(1, 1, i % 14), big_a, 64, i));
    turns_for(e, SILENCE_MS * 5);
    int down = e->ep[1].down[0] + e->ep[2].down[0];
    e->ep[0].tp = asleep;
    CHECK(e, !down);
    for (uint32_t i = 0; i < 28; i++)
        CHECK(e, UNTIL(e, ended(e, 0, i, RG_TP_DONE)) && holds(in[i / 14][i % 14], 64, 4));
}

/* It delivers a message in each half of a silence, for several; of these completions tell, as they are not small. */
static void case_slow_adapter(env_t *e) {
    static uint8_t in[15][1000];
    CHECK(e, couple_watched(e) == 0);
    fill(big_a, 1000, 6);
    fake_hold(0, 0, 0);
    for (uint32_t i = 0; i < 15; i++)
        CHECK(e, do_recv(e, 1, tag(1, 1, i), in[i], 1000, i) && do_send(e, 0, tag(1, 1, i), big_a, 1000, i));
    for (uint32_t i = 0; i < 15; i++) {
        turns_for(e, SILENCE_MS / 2);
        fake_hold(0, 0, 1);
    }
    CHECK(e, !e->ep[0].down[0] && !e->ep[1].down[0]);
    fake_hold(0, 0, UINT32_MAX);
    for (uint32_t i = 0; i < 15; i++) CHECK(e, UNTIL(e, ended(e, 1, i, RG_TP_DONE)) && holds(in[i], 1000, 6));
}

static int untouched(const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0xee) return 0;
    return 1;
}

/* Of what goes in parts, at both ends or at one: whichever of them comes first, nothing is written. */
static void case_other_length(env_t *e) {
    static const size_t lens[][2] = { { 4 << 20, (4 << 20) + 64 },
                                      { (4 << 20) + 64, 4 << 20 },
                                      { 2 << 20, 1 << 20 },
                                      { 1 << 20, 100000 },
                                      { 100000, 1 << 20 },
                                      { 100, 1 << 20 },
                                      { 1 << 20, 100 },
                                      { 4 << 20, 8 << 20 } };
    CHECK(e, couple_watched(e) == 0);
    fill(big_a, 8 << 20, 1);
    for (uint64_t k = 0; k < 2 * sizeof lens / sizeof *lens; k++) {
        size_t sent = lens[k / 2][0], wanted = lens[k / 2][1];
        memset(big_b, 0xee, wanted);
        if (k % 2) CHECK(e, do_recv(e, 1, tag(1, k, 0), big_b, wanted, k));
        CHECK(e, do_send(e, 0, tag(1, k, 0), big_a, sent, k));
        turns(e, 30);
        if (k % 2 == 0) CHECK(e, do_recv(e, 1, tag(1, k, 0), big_b, wanted, k));
        CHECK(e, UNTIL(e, e->ep[1].ends[k]) && ended(e, 1, k, RG_TP_MISMATCH));
        turns(e, 30);
        CHECK(e, e->ep[1].ends[k] == 1 && untouched(big_b, wanted));
    }
    CHECK(e, do_recv(e, 1, tag(1, 99, 0), big_b, 4 << 20, 99) && do_send(e, 0, tag(1, 99, 0), big_a, 4 << 20, 99));
    CHECK(e, UNTIL(e, ended(e, 1, 99, RG_TP_DONE)) && holds(big_b, 4 << 20, 1));
    e->t->fence(e->ep[0].tp, 2);
    e->t->fence(e->ep[1].tp, 2);
    for (uint64_t k = 0; k < 2 * sizeof lens / sizeof *lens; k++)
        CHECK(e, UNTIL(e, e->ep[0].ends[k]) && e->ep[0].ends[k] == 1 && e->ep[1].ends[k] == 1);
    CHECK(e, !e->ep[0].down[0] && !e->ep[1].down[0]);
}

/* Each carries its part of a large message. */
static void case_every_device(env_t *e) {
    size_t n = 8 << 20;
    CHECK(e, couple_watched(e) == 0);
    fill(big_a, n, 7);
    CHECK(e, do_recv(e, 1, tag(1, 1, 0), big_b, n, 1) && do_send(e, 0, tag(1, 1, 0), big_a, n, 1));
    CHECK(e, UNTIL(e, ended(e, 1, 1, RG_TP_DONE) && ended(e, 0, 1, RG_TP_DONE)) && holds(big_b, n, 7));
    for (uint32_t i = 0; i < devices(e); i++) {
        uint64_t moved = fake_moved(0, i) + fake_moved(1, i);
        CHECK(e, moved >= n / devices(e) && moved < n / devices(e) + (n >> 5));
    }
}

/* Lists that name nothing are refused, and one with fewer devices is met on those. */
static void case_device_lists(env_t *e) {
    static const char *const bad[] = { "fake0,", ",fake0", "fake0,,fake1", "fake0,none1", "a,b,c,d,e,f,g,h,i" };
    if (devices(e) == 1) return;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e->conf.rdma_device = bad[i];
        CHECK(e, start(e, 0, nonce) != 0);
        if (!strstr(e->why, "RG_RDMA_DEVICE")) return;
        e->why[0] = 0;
    }
    for (int fewer = 0; fewer < 2; fewer++) {
        for (int i = 0; i < e->n; i++) e->t->close(e->ep[i].tp), e->ep[i].tp = NULL;
        for (int i = 0; i < 2; i++) {
            e->conf.rdma_device = i == fewer ? "fake0" : "fake0,fake1";
            CHECK(e, start(e, i, nonce) == 0);
        }
        CHECK(e, link_to(e, 0, 0, 1, 1, 10000) == 0 && link_to(e, 1, 0, 0, 0, 10000) == 0);
        CHECK(e, UNTIL(e, e->ep[0].up[0] && e->ep[1].up[0]));
        fill(big_a, 4 << 20, 9);
        CHECK(e, do_recv(e, 1, tag(1, 1, 0), big_b, 4 << 20, 1) && do_send(e, 0, tag(1, 1, 0), big_a, 4 << 20, 1));
        CHECK(e, UNTIL(e, ended(e, 1, 1, RG_TP_DONE) && ended(e, 0, 1, RG_TP_DONE)) && holds(big_b, 4 << 20, 9));
        CHECK(e, fake_moved(0, 1) + fake_moved(1, 1) == 0);
    }
}

/* There a message has ended before its peer has it, and nothing here allows for that. */
static void case_iwarp(env_t *e) {
    fake_iwarp(1);
    int rc = start(e, 0, nonce);
    fake_iwarp(0);
    CHECK(e, rc != 0 && strstr(e->why, "iWARP"));
    e->why[0] = 0;
    CHECK(e, start(e, 0, nonce) == 0);
}

/* For the list of cases. */
#define ADAPTER_CASE(name)                                                                                             \
    { #name, case_##name, 0, 1 }

/* Mistakes, and the case that must notice each. The adapter is never quicker than it should be. */
static const struct {
    int *hook;
    const char *name, *notices;
} planted_adapter[] = {
    { &rgr_hooks.no_fence_wait, "fence does not wait for the adapter", "fence" },
    { &rgr_hooks.no_fence_wait, "unfetch does not wait for the adapter", "lend_stopped" },
    { &rgr_hooks.early_stamp, "the last stamp is read too early", "lend_torn" },
    { &rgr_hooks.keeps_lent, "what was lent is not given back", "lend_taken_back" },
    { &rgr_hooks.no_watch, "does not miss what never ends", "silent_adapter" },
    { &rgr_hooks.watch_always, "takes a full peer for a lost one", "peer_short_of_slots" },
    { &rgr_hooks.watch_blind, "takes a slow adapter for a silent one", "slow_adapter" },
};
#define N_PLANTED_ADAPTER ((int)(sizeof planted_adapter / sizeof *planted_adapter))

#endif
