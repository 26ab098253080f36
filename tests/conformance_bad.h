/* conformance_bad.h: a transport around another one that makes one mistake, for the exam in conformance.c to notice.
 * Part of that program and of nothing else: it uses its `nonce`. */
#ifndef CONFORMANCE_BAD_H
#define CONFORMANCE_BAD_H

typedef enum bug {
    BUG_NONE,
    BUG_LOSES_COMPLETION,
    BUG_TELLS_TWICE,
    BUG_IGNORES_SIG,
    BUG_NO_FENCE,
    BUG_WRITES_AFTER_FENCE,
    BUG_SILENT_DROP,
    BUG_NO_NOTE,
    BUG_NO_UNEXPECTED,
    BUG_ONE_UNEXPECTED,
    BUG_COPIES_INSTEAD,
    BUG_SILENT_DEATH,
    BUG_IN_ORDER_ONLY,
    BUG_FORGETS_FUTURE,
    BUG_WRITES_AFTER_DROP,
    BUG_UP_ALONE,
    BUG_LEAKS_FD,
    BUG_EPOCH_BLIND,
    BUG_NEVER_WAKES,
    BUG_SHORT_STATS,
    BUG_NO_TEXT,
    BUG_ANY_FAMILY
} bug_t;

static const rg_transport_t *inner;
static bug_t bug;
static uint8_t *victim; /* the last large buffer that a receive was posted for */
static int victim_armed, count_recv, count_unexpected, last_wake;

static int bad_recv(rg_tp_t *tp, uint32_t link, const rg_tp_recv_t *r) {
    rg_tp_recv_t x = *r;
    if (bug == BUG_IGNORES_SIG) x.tag.sig = 0;
    if (bug == BUG_COPIES_INSTEAD) x.reduce = NULL;
    if (bug == BUG_EPOCH_BLIND) x.tag.epoch = UINT64_MAX;
    if (bug == BUG_FORGETS_FUTURE && x.tag.epoch == 9) x.tag.epoch = 10;
    if (r->len > 1000) victim = r->dst;
    if (bug == BUG_IN_ORDER_ONLY && r->tag.op == 7 && r->tag.ord > 0)
        return RG_OK; /* would be posted when the one before has come, which it never does here */
    return inner->recv(tp, link, &x);
}

static int bad_send(rg_tp_t *tp, uint32_t link, const rg_tp_send_t *s) {
    rg_tp_send_t x = *s;
    if (bug == BUG_IGNORES_SIG) x.tag.sig = 0;
    if (bug == BUG_EPOCH_BLIND) x.tag.epoch = UINT64_MAX;
    return inner->send(tp, link, &x);
}

static int bad_poll(rg_tp_t *tp, rg_completion_t *out, int max) {
    int n = inner->poll(tp, out, bug == BUG_TELLS_TWICE ? max / 2 : max), k = 0;
    if (victim_armed && victim) {
        *victim ^= 0x55;
        victim_armed = 0;
    }
    if (bug == BUG_LEAKS_FD && count_recv++ % 4 == 0) (void)!dup(0);
    for (int i = 0; i < n; i++) {
        rg_completion_t c = out[i];
        if ((bug == BUG_LOSES_COMPLETION && c.event == RG_TP_RECEIVED && c.cookie == 3) ||
            (bug == BUG_NO_NOTE && c.event == RG_TP_NOTE) ||
            (bug == BUG_NO_UNEXPECTED && c.event == RG_TP_UNEXPECTED) ||
            (bug == BUG_ONE_UNEXPECTED && c.event == RG_TP_UNEXPECTED && count_unexpected++ > 0) ||
            (bug == BUG_SILENT_DEATH && c.event == RG_TP_LINK_DOWN) ||
            (bug == BUG_SILENT_DROP && c.status == RG_TP_GONE && c.event == RG_TP_FAILED))
            continue;
        if (bug == BUG_NO_TEXT) c.text = NULL;
        out[k++] = c;
        if (bug == BUG_TELLS_TWICE && c.event == RG_TP_RECEIVED) out[k++] = c;
    }
    return k;
}

static void bad_fence(rg_tp_t *tp, uint64_t epoch) {
    if (bug != BUG_NO_FENCE) inner->fence(tp, epoch);
    victim_armed = bug == BUG_WRITES_AFTER_FENCE;
}

static void bad_drop(rg_tp_t *tp, uint32_t link) {
    inner->drop(tp, link);
    victim_armed = bug == BUG_WRITES_AFTER_DROP;
}

static rg_status_t bad_open(const rg_tp_config_t *c, rg_tp_t **tp, uint8_t *addr, uint32_t *len, rg_error_t *err) {
    rg_tp_config_t x = *c;
    if (bug == BUG_UP_ALONE) memcpy(x.nonce, nonce, 16);
    return inner->open(&x, tp, addr, len, err);
}

static rg_status_t bad_connect(rg_tp_t *tp, uint32_t link, const rg_tp_peer_t *peer, rg_error_t *err) {
    rg_status_t st = inner->connect(tp, link, peer, err);
    return bug == BUG_ANY_FAMILY ? RG_OK : st;
}

static int bad_wake_fd(rg_tp_t *tp) {
    (void)tp;
    if (last_wake == 0) {
        int p[2];
        last_wake = pipe(p) == 0 ? p[0] : 0;
    }
    return last_wake;
}

static void bad_stats(rg_tp_t *tp, uint32_t link, uint64_t *s, uint64_t *r) {
    inner->stats(tp, link, s, r);
    *s -= 1;
}

/* The table of the one that makes mistake `b` over `t`. */
static rg_transport_t bad_transport(const rg_transport_t *t, bug_t b) {
    rg_transport_t bad = *t;
    inner = t;
    bug = b;
    victim = NULL;
    victim_armed = count_recv = count_unexpected = 0;
    bad.open = bad_open;
    bad.connect = bad_connect;
    bad.recv = bad_recv;
    bad.send = bad_send;
    bad.poll = bad_poll;
    bad.fence = bad_fence;
    bad.drop = bad_drop;
    if (bug == BUG_NEVER_WAKES) bad.wake_fd = bad_wake_fd;
    if (bug == BUG_SHORT_STATS) bad.stats = bad_stats;
    return bad;
}

#endif
