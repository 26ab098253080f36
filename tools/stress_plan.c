/* stress_plan.c: what `regroup stress` does to its workers, and when: drawn from a seed and nothing else, so that a run
 * can be planned again. It keeps books of who is there by the plan, so that a group always keeps enough members that
 * are left in peace: a majority that is alive and in touch is what the library's promises are about. It must read no
 * clock and look at no process. */
#include "stress.h"

#include <stdlib.h>
#include <string.h>

#define MS 1000000ull
#define SECOND 1000000000ull
#define HARMS 64

struct draft {
    const struct stress_plan_opts *o;
    struct stress_plan *plan;
    uint64_t dice, now;
    uint8_t present[STRESS_PEERS];
    uint64_t busy[STRESS_PEERS]; /* until then nothing else is done to it */
    uint64_t host_busy[STRESS_PEERS];
    uint64_t coord_busy, coord_away; /* away: nobody gets in before then */
    uint64_t counts[STRESS_PEERS];   /* from then on it is taken for a member */
    struct {
        uint64_t until;
        uint32_t members;
    } harm[HARMS]; /* members that the group may be about to lose */
};

const char *stress_action_name(stress_action_t a) {
    static const char *const names[] = {
#define STRESS_ACTION_TEXT(name, text, weight) text,
        STRESS_ACTIONS(STRESS_ACTION_TEXT)
#undef STRESS_ACTION_TEXT
    };
    return a < STRESS_ACTION_COUNT ? names[a] : "?";
}

int stress_action_is_net(stress_action_t a) {
    return a == STRESS_ACT_DROP || a == STRESS_ACT_DROP_ONE_WAY || a == STRESS_ACT_DELAY || a == STRESS_ACT_RESET ||
           a == STRESS_ACT_CUT_COORDINATOR;
}

static uint64_t draw(struct draft *d) {
    d->dice += 0x9e3779b97f4a7c15ull;
    return stress_mix(d->dice);
}

static uint64_t between(struct draft *d, uint64_t min, uint64_t max) {
    return max > min ? min + draw(d) % (max - min + 1) : min;
}

static int add(struct draft *d, struct stress_event e) {
    struct stress_plan *p = d->plan;
    if (p->n == p->cap) {
        uint32_t cap = p->cap ? p->cap * 2 : 256;
        struct stress_event *grown = realloc(p->events, cap * sizeof *grown);
        if (!grown) return -1;
        p->events = grown;
        p->cap = cap;
    }
    p->events[p->n++] = e;
    return 0;
}

/* ---- Books ----------------------------------------------------------------------------------------------------- */

static uint32_t present(const struct draft *d) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->o->peers; i++) n += d->present[i] && d->counts[i] <= d->now;
    return n;
}

static uint32_t harmed(const struct draft *d) {
    uint32_t n = 0;
    for (int i = 0; i < HARMS; i++)
        if (d->harm[i].until > d->now) n += d->harm[i].members;
    return n;
}

/* A third of the members may be in trouble at once, and one always. */
static int may_harm(const struct draft *d, uint32_t members) {
    uint32_t most = present(d) / 3;
    return harmed(d) + members <= (most ? most : 1);
}

static void harm(struct draft *d, uint32_t members, uint64_t until) {
    for (int i = 0; i < HARMS; i++)
        if (d->harm[i].until <= d->now) {
            d->harm[i].until = until;
            d->harm[i].members = members;
            return;
        }
}

static uint32_t members_of(const struct draft *d, uint32_t host) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->o->peers; i++) n += d->present[i] && d->o->host_of[i] == host;
    return n;
}

/* The last slot is never killed and never leaves: what grows with time or with faults has to show on somebody. */
static uint32_t pick_present(struct draft *d, int may_end) {
    uint32_t from = (uint32_t)(draw(d) % d->o->peers), last = d->o->peers - 1;
    for (uint32_t k = 0; k < d->o->peers; k++) {
        uint32_t i = (from + k) % d->o->peers;
        if (d->present[i] && d->busy[i] <= d->now && d->host_busy[d->o->host_of[i]] <= d->now &&
            !(may_end && i == last))
            return i;
    }
    return UINT32_MAX;
}

static uint32_t pick_absent(struct draft *d) {
    for (uint32_t i = 0; i < d->o->peers; i++)
        if (!d->present[i] && d->busy[i] <= d->now) return i;
    return UINT32_MAX;
}

/* ---- One action each: 1 when it was planned, 0 when it does not fit now, -1 without memory ---------------------- */

static int plan_end(struct draft *d, stress_action_t a) {
    uint32_t least = (d->o->peers * 3 + 4) / 5, i;
    if (least < 2) least = 2;
    if (present(d) <= least || !may_harm(d, 1)) return 0;
    if ((i = pick_present(d, 1)) == UINT32_MAX) return 0;
    d->present[i] = 0;
    d->busy[i] = d->now + SECOND;
    harm(d, 1, d->now + 2 * SECOND);
    return add(d, (struct stress_event){ .at_ns = d->now, .action = a, .a = i }) ? -1 : 1;
}

/* Half of them are over before anybody suspects anything, the others long enough to be expelled. */
static int plan_stop(struct draft *d) {
    int brief = draw(d) & 1;
    uint64_t beat = d->o->heartbeat_ns;
    uint64_t last = brief ? between(d, 20 * MS, beat / 2) : between(d, beat + beat / 4, 3 * beat);
    uint32_t i;
    if (!brief && !may_harm(d, 1)) return 0;
    if ((i = pick_present(d, 0)) == UINT32_MAX) return 0;
    d->busy[i] = d->now + last + (brief ? SECOND / 2 : 2 * SECOND);
    if (!brief) harm(d, 1, d->busy[i]);
    struct stress_event e = { .at_ns = d->now, .action = STRESS_ACT_STOP, .a = i, .for_ns = last };
    struct stress_event c = { .at_ns = d->now + last, .action = STRESS_ACT_CONTINUE, .a = i };
    return add(d, e) || add(d, c) ? -1 : 1;
}

static int plan_join(struct draft *d) {
    uint32_t i = pick_absent(d);
    if (i == UINT32_MAX) return 0;
    d->present[i] = 1;
    d->busy[i] = d->now + SECOND;
    d->counts[i] = (d->coord_away > d->now ? d->coord_away : d->now) + 2 * SECOND;
    return add(d, (struct stress_event){ .at_ns = d->now, .action = STRESS_ACT_JOIN, .a = i }) ? -1 : 1;
}

static int plan_coordinator(struct draft *d, stress_action_t a) {
    int kills = a == STRESS_ACT_COORDINATOR_KILL;
    uint32_t which = (uint32_t)(draw(d) % d->o->coordinators);
    if (d->coord_busy > d->now) return 0;
    uint64_t beat = d->o->heartbeat_ns;
    uint64_t last = kills ? between(d, 0, 3 * SECOND) : between(d, SECOND / 10, 2 * beat);
    /* Back before anybody has missed it, or only after somebody has taken its office. */
    if (d->o->succession && draw(d) % 3 == 0) last = between(d, 3 * beat, 6 * beat);
    d->coord_busy = d->now + last + 5 * beat; /* so that members come to rest under an office */
    d->coord_away = d->now + last + SECOND;
    struct stress_event e = { .at_ns = d->now, .action = a, .a = which, .for_ns = last };
    struct stress_event c = { .at_ns = d->now + last,
                              .action = kills ? STRESS_ACT_COORDINATOR_START : STRESS_ACT_COORDINATOR_CONTINUE,
                              .a = which };
    return add(d, e) || add(d, c) ? -1 : 1;
}

static int plan_pair(struct draft *d, stress_action_t a) {
    uint32_t x = (uint32_t)(draw(d) % d->o->hosts), y = (uint32_t)(draw(d) % d->o->hosts), worst;
    uint64_t beat = d->o->heartbeat_ns, last = a == STRESS_ACT_RESET   ? 300 * MS
                                               : a == STRESS_ACT_DELAY ? between(d, SECOND, 5 * SECOND)
                                               : draw(d) & 1           ? between(d, 50 * MS, beat / 2)
                                                                       : between(d, beat, 3 * beat);
    uint64_t extra = a == STRESS_ACT_DELAY ? between(d, MS, 60 * MS) : 0;
    if (x == y || d->host_busy[x] > d->now || d->host_busy[y] > d->now) return 0;
    if (!members_of(d, x) || !members_of(d, y)) return 0;
    worst = members_of(d, x) > members_of(d, y) ? members_of(d, x) : members_of(d, y);
    if (a != STRESS_ACT_DELAY && !may_harm(d, worst)) return 0;
    d->host_busy[x] = d->host_busy[y] = d->now + last + 2 * SECOND;
    if (a != STRESS_ACT_DELAY) harm(d, worst, d->now + last + 2 * SECOND);
    struct stress_event e = { .at_ns = d->now, .action = a, .a = x, .b = y, .for_ns = last, .extra_ns = extra };
    struct stress_event c = { .at_ns = d->now + last, .action = STRESS_ACT_HEAL, .a = x, .b = y };
    return add(d, e) || (a != STRESS_ACT_RESET && add(d, c)) ? -1 : 1;
}

/* One host loses the coordinator's host, or the coordinator everybody. */
static int plan_cut(struct draft *d) {
    uint32_t which = (uint32_t)(draw(d) % d->o->coordinators), host = (uint32_t)(draw(d) % d->o->hosts);
    uint64_t last = between(d, 50 * MS, 2 * d->o->heartbeat_ns);
    int all = draw(d) % 3 == 0;
    if (d->coord_busy > d->now || d->host_busy[host] > d->now) return 0;
    if (!all && (!members_of(d, host) || !may_harm(d, members_of(d, host)))) return 0;
    d->coord_busy = d->now + last + 5 * d->o->heartbeat_ns;
    d->coord_away = d->now + last + SECOND;
    if (!all) {
        d->host_busy[host] = d->now + last + 2 * SECOND;
        harm(d, members_of(d, host), d->now + last + 2 * SECOND);
    }
    uint32_t b = all ? UINT32_MAX : host;
    struct stress_event e = {
        .at_ns = d->now, .action = STRESS_ACT_CUT_COORDINATOR, .a = which, .b = b, .for_ns = last
    };
    struct stress_event c = { .at_ns = d->now + last, .action = STRESS_ACT_HEAL, .a = STRESS_PEERS + which, .b = b };
    return add(d, e) || add(d, c) ? -1 : 1;
}

static int plan_one(struct draft *d, stress_action_t a) {
    switch (a) {
    case STRESS_ACT_KILL:
    case STRESS_ACT_LEAVE: return plan_end(d, a);
    case STRESS_ACT_STOP: return plan_stop(d);
    case STRESS_ACT_JOIN: return plan_join(d);
    case STRESS_ACT_COORDINATOR_KILL:
    case STRESS_ACT_COORDINATOR_STOP: return plan_coordinator(d, a);
    case STRESS_ACT_CUT_COORDINATOR: return plan_cut(d);
    default: return plan_pair(d, a);
    }
}

/* ---- The plan -------------------------------------------------------------------------------------------------- */

static stress_action_t draw_action(struct draft *d) {
    static const uint32_t weights[] = {
#define STRESS_ACTION_WEIGHT(name, text, weight) weight,
        STRESS_ACTIONS(STRESS_ACTION_WEIGHT)
#undef STRESS_ACTION_WEIGHT
    };
    uint32_t sum = 0;
    for (int i = 0; i < STRESS_ACTION_COUNT; i++) sum += d->o->allowed[i] ? weights[i] : 0;
    uint64_t at = sum ? draw(d) % sum : 0;
    for (int i = 0; i < STRESS_ACTION_COUNT; i++) {
        uint32_t w = d->o->allowed[i] ? weights[i] : 0;
        if (at < w) return (stress_action_t)i;
        at -= w;
    }
    return STRESS_ACTION_COUNT;
}

static int by_time(const void *x, const void *y) {
    const struct stress_event *a = x, *b = y;
    if (a->at_ns != b->at_ns) return a->at_ns < b->at_ns ? -1 : 1;
    return a->action != b->action ? (a->action < b->action ? -1 : 1) : a->a < b->a ? -1 : a->a > b->a;
}

int stress_plan_make(struct stress_plan *p, const struct stress_plan_opts *o) {
    struct draft d = { .o = o, .plan = p, .dice = stress_mix(o->seed ^ 0x5354524553530000ull) };
    int rc = 0;
    memset(d.present, 1, o->peers);
    /* The group is given time to form. */
    for (d.now = 2 * SECOND; d.now < o->length_ns && rc >= 0; d.now += between(&d, o->every_min_ns, o->every_max_ns)) {
        rc = 0;
        for (int tries = 0; tries < 40 && rc == 0; tries++) {
            stress_action_t a = draw_action(&d);
            if (a == STRESS_ACTION_COUNT) return 0;
            rc = plan_one(&d, a);
        }
    }
    if (rc < 0) return -1;
    if (p->n) qsort(p->events, p->n, sizeof *p->events, by_time);
    return 0;
}

void stress_plan_free(struct stress_plan *p) {
    free(p->events);
    memset(p, 0, sizeof *p);
}

void stress_event_text(const struct stress_event *e, char *buf, size_t cap) {
    char more[64] = "", who[64] = "";
    int coordinator = e->action >= STRESS_ACT_COORDINATOR_KILL && e->action <= STRESS_ACT_COORDINATOR_CONTINUE;
    int pair = stress_action_is_net(e->action) || e->action == STRESS_ACT_HEAL;
    if (e->action == STRESS_ACT_CUT_COORDINATOR || (e->action == STRESS_ACT_HEAL && e->a >= STRESS_PEERS)) {
        uint32_t which = e->a % STRESS_PEERS;
        if (e->b == UINT32_MAX) snprintf(who, sizeof who, "coordinator %u from all hosts", which);
        else snprintf(who, sizeof who, "coordinator %u from host %u", which, e->b);
    } else if (pair) snprintf(who, sizeof who, "hosts %u and %u", e->a, e->b);
    else snprintf(who, sizeof who, "%s %u", coordinator ? "coordinator" : "worker", e->a);
    if (e->extra_ns) snprintf(more, sizeof more, " by %.1f ms", (double)e->extra_ns / 1e6);
    size_t at = strlen(more);
    if (e->for_ns) snprintf(more + at, sizeof more - at, " for %.3f s", (double)e->for_ns / 1e9);
    snprintf(buf, cap, "%s %s%s", stress_action_name(e->action), who, more);
}
