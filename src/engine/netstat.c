/* netstat.c: how fast the links of this member are, told to the core as six bytes that the next view carries. Round
 * trips and delivery rates come from the transport, which mostly has them from the kernel. So that the first view knows
 * rates as well, the end that dials a link to another host sends some bursts over it before it tells the core that the
 * link is up; the other end sends each one's receipt. Later, real traffic corrects what the bursts showed. Links inside
 * a host are not timed: there the members' turns on the processors would be measured, and the cost model's constants
 * are better. It relies on the group's lock and on a few tags that no operation has. It must not delay a link for
 * longer than PROBE_NS, and not touch what the operations send. */
#include "engine/group.h"

#include <stdlib.h>
#include <string.h>

#define PROBE_BYTES (256u << 10)
#define PROBE_ROUNDS 4
#define PROBE_NS 250000000u
#define PROBES 4          /* links of a kind that are probed; the others are taken to be like them */
#define SOFTWARE_NS 5000u /* what a message costs beside the way through the network */
#define TICK_NS 1000000000u
#define TICK_LINKS 16
#define TRAFFIC (4u << 20) /* bytes that say something about a link */

#define TAG_EPOCH (UINT64_MAX - 1) /* fenced by no view */
#define OP_PROBE 0x70726f6265u
#define OP_RECEIPT 0x72656370u
#define COOKIE (0xc0deull << 48) /* no operation's, and no kept copy's */
enum { PROBE_SENT, RECEIPT_TAKEN, PROBE_TAKEN, RECEIPT_SENT };

typedef struct measured {
    uint8_t up, kind, shared, probing, round;
    uint8_t latency, rate; /* classes */
    uint64_t began, sent_at, last_ns, best_ns, traffic;
} measured_t;

struct rg_netstat {
    measured_t *links;
    uint32_t n_links, probing, far, at; /* far: links to other hosts */
    uint32_t probed[RG_NET_KINDS];
    uint64_t next_tick;
    uint8_t told[RG_CORE_NET];
    uint8_t *burst, *sink; /* PROBE_BYTES each, made when first needed */
};

rg_status_t rg_netstat_open(rg_group_t *g) {
    g->netstat = calloc(1, sizeof *g->netstat);
    return g->netstat ? RG_OK : RG_ERR_NOMEM;
}

void rg_netstat_free(rg_group_t *g) {
    struct rg_netstat *s = g->netstat;
    if (!s) return;
    free(s->links);
    free(s->burst);
    free(s->sink);
    free(s);
    g->netstat = NULL;
}

static measured_t *link_stat(const struct rg_netstat *s, uint32_t link) {
    return link < s->n_links && s->links[link].up ? &s->links[link] : NULL;
}

static uint64_t cookie(int what, uint32_t link) { return COOKIE | (uint64_t)what << 32 | link; }

static rg_tag_t tag(uint64_t op, uint32_t ord) {
    return (rg_tag_t){ .epoch = TAG_EPOCH, .gen = UINT64_MAX, .op = op, .ord = ord, .sig = 1 };
}

/* ---- Telling ----------------------------------------------------------------------------------------------------- */

static uint8_t middle(const uint32_t of[256]) {
    uint32_t known = 0, below = 0;
    for (int c = 1; c < 256; c++) known += of[c];
    for (int c = 1; c < 256; c++) {
        below += of[c];
        if (known && 2 * below >= known) return (uint8_t)c;
    }
    return 0;
}

static void summarise(const struct rg_netstat *s, uint8_t out[RG_CORE_NET]) {
    rg_net_t net = { .shared = 1 };
    uint32_t near = 0;
    for (int k = 0; k < RG_NET_KINDS; k++) {
        uint32_t latency[256] = { 0 }, rate[256] = { 0 };
        for (uint32_t i = 0; i < s->n_links; i++) {
            const measured_t *m = &s->links[i];
            if (!m->up || m->kind != k) continue;
            latency[m->latency]++;
            rate[m->rate]++;
            near += k == 0;
            if (k == 0) net.shared &= m->shared;
        }
        net.link[k].latency_ns = rg_net_value(middle(latency));
        net.link[k].bytes_per_s = rg_net_value(middle(rate));
    }
    if (!near) net.shared = 0;
    rg_net_pack(&net, out);
}

/* by: how many classes something must have moved to be worth a message. */
static void tell(rg_group_t *g, uint64_t now, int by) {
    rg_member_event_t ev = { .type = RG_MEV_NET, .now_ns = now };
    int moved = 0;
    summarise(g->netstat, ev.net);
    for (int i = 0; i < RG_CORE_NET; i++) moved |= abs(ev.net[i] - g->netstat->told[i]) >= by;
    if (!moved) return;
    memcpy(g->netstat->told, ev.net, sizeof ev.net);
    rg_core_event(g, &ev);
}

static void learn(const rg_group_t *g, uint32_t link, measured_t *m, uint64_t at_least) {
    rg_tp_link_info_t info = { 0 };
    if (g->tp_ops->link_info) g->tp_ops->link_info(g->tp, link, &info);
    m->shared = info.shared != 0;
    if (m->kind == 0) return;
    if (info.rtt_ns) m->latency = rg_net_class(info.rtt_ns / 2 + SOFTWARE_NS);
    if (info.bytes_per_s < at_least) info.bytes_per_s = at_least;
    if (info.bytes_per_s) m->rate = rg_net_class(info.bytes_per_s);
}

/* ---- Bursts ------------------------------------------------------------------------------------------------------ */

static int send_burst(rg_group_t *g, uint32_t link, measured_t *m, uint64_t now) {
    struct rg_netstat *s = g->netstat;
    if (!s->burst && !(s->burst = calloc(1, PROBE_BYTES))) return 0;
    const rg_tp_recv_t r = { .tag = tag(OP_RECEIPT, m->round), .cookie = cookie(RECEIPT_TAKEN, link) };
    const rg_tp_send_t b = {
        .tag = tag(OP_PROBE, m->round), .buf = s->burst, .len = PROBE_BYTES, .cookie = cookie(PROBE_SENT, link)
    };
    m->sent_at = now;
    return g->tp_ops->recv(g->tp, link, &r) == RG_OK && g->tp_ops->send(g->tp, link, &b) >= 0;
}

static void report_up(rg_group_t *g, uint32_t link, uint64_t now) {
    rg_member_event_t ev = { .type = RG_MEV_LINK_UP, .now_ns = now, .peer = g->links[link].id };
    if (g->links[link].relayed) ev.via = g->links[link].via;
    ev.fresh = (uint32_t)g->links[link].fresh;
    g->links[link].fresh = 0;
    rg_core_event(g, &ev);
}

static void probe_end(rg_group_t *g, uint32_t link, measured_t *m, uint64_t now) {
    m->probing = 0;
    g->netstat->probing--;
    /* Both the kernel and the clock here can only have seen too little. */
    learn(g, link, m, m->best_ns ? PROBE_BYTES * 1000000000ull / m->best_ns : 0);
    tell(g, now, 1);
    report_up(g, link, now);
}

static void receipt_taken(rg_group_t *g, uint32_t link, measured_t *m, uint64_t now) {
    uint64_t took = now - m->sent_at;
    int better = m->round == 0 || took < m->best_ns - m->best_ns / 5;
    if (!m->best_ns || took < m->best_ns) m->best_ns = took;
    m->round++;
    if (better && m->round < PROBE_ROUNDS && now - m->began + 2 * took < PROBE_NS && send_burst(g, link, m, now))
        return;
    probe_end(g, link, m, now);
}

static void send_receipt(rg_group_t *g, uint32_t link, uint32_t ord) {
    const rg_tp_send_t r = { .tag = tag(OP_RECEIPT, ord), .cookie = cookie(RECEIPT_SENT, link) };
    (void)g->tp_ops->send(g->tp, link, &r);
}

/* The round is in bits 40 on of the cookie: what completes says no tag. */
static void take_burst(rg_group_t *g, uint32_t link, uint32_t ord) {
    struct rg_netstat *s = g->netstat;
    if (!s->sink && !(s->sink = malloc(PROBE_BYTES))) return;
    const rg_tp_recv_t r = { .tag = tag(OP_PROBE, ord),
                             .dst = s->sink,
                             .len = PROBE_BYTES,
                             .cookie = cookie(PROBE_TAKEN, link) | (uint64_t)(ord & 0xff) << 40 };
    if (g->tp_ops->recv(g->tp, link, &r) == RG_TP_DONE_NOW) send_receipt(g, link, ord);
}

int rg_netstat_completion(rg_group_t *g, const rg_completion_t *c) {
    if (c->event == RG_TP_UNEXPECTED) {
        if (c->tag.epoch != TAG_EPOCH || c->tag.gen != UINT64_MAX) return 0;
        if (c->tag.op == OP_PROBE && c->tag.ord < PROBE_ROUNDS) take_burst(g, c->link, c->tag.ord);
        return 1;
    }
    if (c->cookie >> 48 != COOKIE >> 48) return 0;
    int what = (int)(c->cookie >> 32 & 0xff);
    measured_t *m = link_stat(g->netstat, c->link);
    if (c->event == RG_TP_RECEIVED && what == PROBE_TAKEN) send_receipt(g, c->link, (uint32_t)(c->cookie >> 40 & 0xff));
    else if (c->event == RG_TP_RECEIVED && what == RECEIPT_TAKEN && m && m->probing)
        receipt_taken(g, c->link, m, rg_os_now_ns());
    return 1;
}

/* ---- Links ------------------------------------------------------------------------------------------------------- */

static int make_room(struct rg_netstat *s, uint32_t link) {
    if (link < s->n_links) return 1;
    uint32_t n = s->n_links ? s->n_links : 16;
    while (n <= link) n *= 2;
    measured_t *more = realloc(s->links, n * sizeof *more);
    if (!more) return 0;
    memset(more + s->n_links, 0, (n - s->n_links) * sizeof *more);
    s->links = more;
    s->n_links = n;
    return 1;
}

int rg_netstat_up(rg_group_t *g, uint32_t link, uint64_t now) {
    struct rg_netstat *s = g->netstat;
    const rg_link_t *l = &g->links[link];
    if (!make_room(s, link)) return 0; /* the link works all the same */
    measured_t *m = &s->links[link];
    rg_netstat_down(g, link);
    *m = (measured_t){ .up = 1, .began = now };
    m->kind = l->host == g->host ? 0 : l->site == g->site ? 1 : 2;
    s->far += m->kind != 0;
    learn(g, link, m, 0);
    m->probing = m->kind != 0 && l->dial && s->probed[m->kind] < PROBES && send_burst(g, link, m, now);
    s->probing += m->probing;
    s->probed[m->kind] += m->probing;
    tell(g, now, 1);
    return m->probing;
}

void rg_netstat_down(rg_group_t *g, uint32_t link) {
    struct rg_netstat *s = g->netstat;
    measured_t *m = link_stat(s, link);
    if (!m) return;
    s->probing -= m->probing;
    s->far -= m->kind != 0;
    *m = (measured_t){ 0 };
}

/* Bursts that take too long end here; now and then what the operations sent says more than the bursts did. */
void rg_netstat_tick(rg_group_t *g, uint64_t now) {
    struct rg_netstat *s = g->netstat;
    for (uint32_t i = 0; s->probing && i < s->n_links; i++)
        if (s->links[i].probing && now - s->links[i].began >= PROBE_NS) probe_end(g, i, &s->links[i], now);
    if (!s->far || now < s->next_tick) return;
    s->next_tick = now + TICK_NS;
    int learned = 0;
    for (uint32_t k = 0; k < TICK_LINKS && k < s->n_links; k++) {
        uint64_t sent = 0, received = 0;
        measured_t *m = link_stat(s, s->at++ % s->n_links);
        if (!m || m->kind == 0 || m->probing) continue;
        uint32_t link = (uint32_t)(m - s->links);
        g->tp_ops->stats(g->tp, link, &sent, &received);
        if (sent - m->traffic < TRAFFIC) continue;
        m->traffic = sent;
        learn(g, link, m, 0);
        learned = 1;
    }
    if (learned) tell(g, now, 2);
}
