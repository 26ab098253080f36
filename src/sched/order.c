/* order.c: what follows for a group from rates and latencies between its members: the order of a ring whose slowest
 * link is as fast as can be, and how much of a reduction each member should own where some are slower than others.
 * Whole numbers only, so that all members come to the same answer from the same figures. Pure; must accept any
 * figures, since they come from other members. */
#include "sched.h"

#include "assume.h"

#include <string.h>

#define EXACT RG_ORDER_EXACT
#define SETS (1u << (EXACT - 1))
#define FAR UINT64_MAX

static uint32_t rate_of(const rg_links_t *l, uint32_t a, uint32_t b) { return l->rate[(size_t)a * l->n + b]; }
static uint32_t late_of(const rg_links_t *l, uint32_t a, uint32_t b) { return l->latency_us[(size_t)a * l->n + b]; }

rg_ring_t rg_order_judge(const rg_links_t *l, const uint32_t *order) {
    rg_ring_t r = { UINT32_MAX, 0 };
    for (uint32_t i = 0; i < l->n && l->n > 1; i++) {
        uint32_t a = order[i], b = order[(i + 1) % l->n], rate = rate_of(l, a, b);
        if (rate < r.slowest) r.slowest = rate;
        r.latency_us += late_of(l, a, b);
    }
    return r;
}

static int better(rg_ring_t a, rg_ring_t b) {
    return a.slowest != b.slowest ? a.slowest > b.slowest : a.latency_us < b.latency_us;
}

/* ---- Few members: all rings ------------------------------------------------------------------------------------ */

/* Shortest way from the last member through the members of `set` to b, over links of at least `least`. */
typedef struct ways {
    uint32_t len[SETS][EXACT - 1]; /* UINT32_MAX: none */
} ways_t;

static uint32_t longer(uint32_t way, uint32_t by) {
    uint64_t sum = (uint64_t)way + by;
    return way == UINT32_MAX ? way : sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX - 1;
}

/* Fills w and gives the length of the best ring; UINT32_MAX: there is none. (Held, Karp 1962.) */
static uint32_t find_ways(const rg_links_t *l, uint32_t least, ways_t *w) {
    uint32_t m = l->n - 1, best = UINT32_MAX;
    memset(w, 0xff, sizeof *w);
    for (uint32_t b = 0; b < m; b++)
        if (rate_of(l, m, b) >= least) w->len[1u << b][b] = late_of(l, m, b);
    for (uint32_t set = 1; set < 1u << m; set++)
        for (uint32_t a = 0; a < m; a++) {
            if (w->len[set][a] == UINT32_MAX) continue;
            for (uint32_t b = 0; b < m; b++) {
                uint32_t more = set | 1u << b, len = longer(w->len[set][a], late_of(l, a, b));
                if (more != set && rate_of(l, a, b) >= least && len < w->len[more][b]) w->len[more][b] = len;
            }
        }
    for (uint32_t a = 0; a < m; a++) {
        uint32_t len = longer(w->len[(1u << m) - 1][a], late_of(l, a, m));
        if (rate_of(l, a, m) >= least && len < best) best = len;
    }
    return best;
}

/* Goes the way back that gave `len`. */
static void trace(const rg_links_t *l, uint32_t least, const ways_t *w, uint32_t len, uint32_t *order) {
    uint32_t m = l->n - 1, set = (1u << m) - 1, to = m;
    order[0] = m;
    for (uint32_t at = m; at > 0; at--) {
        uint32_t a = 0;
        while (!(set >> a & 1) || rate_of(l, a, to) < least || w->len[set][a] == UINT32_MAX ||
               longer(w->len[set][a], late_of(l, a, to)) != len)
            a++;
        order[at] = a;
        len = w->len[set][a];
        set &= ~(1u << a);
        to = a;
    }
}

/* The fastest link that a ring need not go below: by halving, over the rates that there are. */
static void exact(const rg_links_t *l, uint32_t *order) {
    ways_t w;
    uint32_t low = 0, high = UINT32_MAX;
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        if (find_ways(l, middle, &w) != UINT32_MAX) low = middle;
        else high = middle - 1;
    }
    trace(l, low, &w, find_ways(l, low, &w), order);
}

/* ---- Many members: a good ring --------------------------------------------------------------------------------- */

/* From `first` on always to the fastest of the links to those that are left, and of equal ones the shortest. */
static void nearest(const rg_links_t *l, uint32_t first, uint32_t *order) {
    for (uint32_t i = 0; i < l->n; i++) order[i] = i;
    order[0] = first;
    order[first] = 0;
    for (uint32_t i = 1; i < l->n; i++) {
        uint32_t at = i, from = order[i - 1];
        for (uint32_t k = i + 1; k < l->n; k++) {
            rg_ring_t here = { rate_of(l, from, order[at]), late_of(l, from, order[at]) };
            rg_ring_t there = { rate_of(l, from, order[k]), late_of(l, from, order[k]) };
            if (better(there, here)) at = k;
        }
        uint32_t took = order[at];
        order[at] = order[i];
        order[i] = took;
    }
}

/* Moves one member elsewhere, or turns a stretch around, as long as that makes the ring better. */
static void improve(const rg_links_t *l, uint32_t *order) {
    uint32_t n = l->n, tried[RG_ORDER_MAX];
    rg_ring_t is = rg_order_judge(l, order);
    for (int more = 1, rounds = 0; more && rounds < 16; rounds++) {
        more = 0;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < n; k++)
                for (int turn = 0; turn < 2; turn++) {
                    if (i == k || (turn && i > k)) continue;
                    memcpy(tried, order, n * sizeof *tried);
                    if (turn) {
                        for (uint32_t a = i; a <= k; a++) tried[a] = order[k - (a - i)];
                    } else {
                        uint32_t x = order[i];
                        if (i < k) memmove(tried + i, order + i + 1, (k - i) * sizeof *tried);
                        else memmove(tried + k + 1, order + k, (i - k) * sizeof *tried);
                        tried[k] = x;
                    }
                    rg_ring_t now = rg_order_judge(l, tried);
                    if (!better(now, is)) continue;
                    memcpy(order, tried, n * sizeof *tried);
                    is = now;
                    more = 1;
                }
    }
}

static void heuristic(const rg_links_t *l, uint32_t *order) {
    uint32_t tried[RG_ORDER_MAX];
    for (uint32_t i = 0; i < l->n; i++) order[i] = i;
    for (uint32_t first = 0; first < l->n && first < 4; first++) {
        nearest(l, first, tried);
        improve(l, tried);
        if (better(rg_order_judge(l, tried), rg_order_judge(l, order))) memcpy(order, tried, l->n * sizeof *order);
    }
}

void rg_order_ring(const rg_links_t *l, uint32_t *order) {
    if (l->n <= 3 || l->n > RG_ORDER_MAX) {
        for (uint32_t i = 0; i < l->n; i++) order[i] = i;
        if (l->n != 3) return;
        const uint32_t other[3] = { 0, 2, 1 };
        if (better(rg_order_judge(l, other), rg_order_judge(l, order))) memcpy(order, other, sizeof other);
    } else if (l->n <= EXACT) {
        exact(l, order);
    } else {
        heuristic(l, order);
    }
    /* It begins with the first member, whatever found it. */
    uint32_t turned[RG_ORDER_MAX], at = 0;
    while (order[at] != 0) at++;
    for (uint32_t i = 0; i < l->n; i++) turned[i] = order[(at + i) % l->n];
    memcpy(order, turned, l->n * sizeof *order);
}

int rg_order_pays(rg_ring_t now, rg_ring_t then) {
    uint64_t a = now.slowest, b = then.slowest;
    if (b * 10 > a * 11) return 1;
    return b * 11 >= a * 10 && then.latency_us * 5 < now.latency_us * 4;
}

/* ---- Shares ----------------------------------------------------------------------------------------------------- */

uint64_t rg_share_weights(const uint32_t *rate, uint32_t n, uint64_t *weight) {
    uint64_t all = 0, least = FAR, sum = 0, factor = 2 * ((uint64_t)n - 1);
    for (uint32_t i = 0; i < n; i++) {
        all += rate[i];
        if (rate[i] < least) least = rate[i];
    }
    int slow = n > 2 && least * factor < all; /* what the slowest must do anyway takes longer than all the rest */
    for (uint32_t i = 0; i < n; i++) {
        weight[i] = n <= 2 ? 1 : slow ? rate[i] - least : rate[i] * factor - all;
        sum += weight[i];
    }
    for (uint32_t i = 0; i < n && sum == 0; i++) weight[i] = 1;
    return sum != 0 ? sum : n;
}

rg_span_t rg_share_part(rg_span_t whole, const uint32_t *rate, uint32_t n, uint32_t index) {
    uint64_t weight[RG_ORDER_MAX], below = 0;
    if (rate == NULL || n > RG_ORDER_MAX) return rg_span_part(whole, n, index);
    RG_ASSUME(n && index < n);
    uint64_t sum = rg_share_weights(rate, n, weight);
    for (uint32_t i = 0; i < index; i++) below += weight[i];
    /* In 65536ths: products stay within 64 bits, and a share is exact to a thousandth of the least that matters. */
    uint64_t from = below * 65536 / sum, to = (below + weight[index]) * 65536 / sum, unit = whole.len / 65536;
    uint64_t rest = whole.len % 65536;
    from = from * unit + from * rest / 65536;
    to = to * unit + to * rest / 65536;
    uint64_t align = whole.len / n >= 4096 ? 64 : 1; /* no two parts share a cache line */
    if (from != whole.len) from -= from % align;
    if (to != whole.len) to -= to % align;
    return rg_span(whole.buf, whole.off + from, to - from);
}

double rg_share_seconds(const uint32_t *rate, uint32_t n, double bytes) {
    double all = 0, least = 0;
    for (uint32_t i = 0; i < n; i++) {
        all += rate[i];
        if (i == 0 || rate[i] < least) least = rate[i];
    }
    if (!(least > 0)) least = 1;
    double together = 2 * ((double)n - 1) / (all > 0 ? all : 1), alone = (n > 1 ? 1 : 0) / least;
    return bytes / 1024 * (together > alone ? together : alone);
}
