/* tally.c: see tally.h. It relies on nothing but its arguments, and must stay that way: the unit tests play its times
 * through without waiting for them. */
#include "quorum/tally.h"

void rg_tally_open(rg_tally_t *t) {
    t->first_ns = t->kth_ns = 0;
    t->arrived = 0;
}

void rg_tally_arrive(rg_tally_t *t, rg_seat_t *s, int gives) {
    s->arrived = 1;
    s->gives = gives;
    s->nth = t->arrived++;
}

uint32_t rg_tally_needs(const rg_tally_t *t, uint32_t n) { return t->at_least ? t->at_least : n / 2 + 1; }

/* at_most where it is not 0, and never fewer than a round needs, which may grow with the members. */
static uint32_t most(const rg_tally_t *t, uint32_t n) {
    uint32_t needs = rg_tally_needs(t, n);
    return t->at_most && t->at_most < needs ? needs : t->at_most;
}

/* The first at_most to come. */
static void take(const rg_tally_t *t, rg_seat_t *const *seats, uint32_t n) {
    uint32_t at_most = most(t, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t before = 0;
        for (uint32_t k = 0; k < n; k++) before += seats[k]->gives && seats[k]->nth < seats[i]->nth;
        seats[i]->taken = seats[i]->gives && (!at_most || before < at_most);
    }
}

rg_tally_verdict_t rg_tally_judge(rg_tally_t *t, rg_seat_t *const *seats, uint32_t n, uint64_t now, uint64_t *at) {
    uint32_t gives = 0, arrived = 0, awaited = 0;
    for (uint32_t i = 0; i < n; i++) {
        gives += seats[i]->gives != 0;
        arrived += seats[i]->arrived != 0;
        awaited += !seats[i]->arrived && !seats[i]->lagging;
    }
    int enough = gives >= rg_tally_needs(t, n);
    if (gives && !t->first_ns) t->first_ns = now;
    if (enough && !t->kth_ns) t->kth_ns = now;
    uint64_t until = UINT64_MAX;
    if (enough) until = !awaited || (t->at_most && gives >= t->at_most) ? now : t->kth_ns + t->grace_ns;
    else if (arrived == n) return RG_TALLY_TOO_FEW;
    if (gives && t->max_wait_ns && t->first_ns + t->max_wait_ns < until) until = t->first_ns + t->max_wait_ns;
    if (now < until) {
        if (until < *at) *at = until;
        return RG_TALLY_WAIT;
    }
    take(t, seats, n);
    return RG_TALLY_DECIDE;
}

void rg_tally_close(rg_seat_t *s) {
    s->lagging = !s->arrived;
    s->arrived = s->gives = s->taken = 0;
}

int rg_tally_forgives(const rg_tally_t *t, uint64_t prev_kth_ns, uint64_t now) {
    return prev_kth_ns && now <= prev_kth_ns + t->grace_ns;
}
