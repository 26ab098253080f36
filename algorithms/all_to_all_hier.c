/* all_to_all_hier.c: what the members of one host have for those of another goes in few messages: one member gathers
 * all that goes to a part of the other host, sends it to one member there, and that one scatters it. Which members they
 * are goes around with hosts and parts, so that all share the work; there are as many parts as give every member one
 * message. So about n messages cross between hosts instead of n^2: for small and middle data on many ranks. Inside a
 * host blocks go straight to their ranks.
 * It knows hosts only, level 0 of the topology, in any numbering of ranks and with uneven hosts. Given lengths do not
 * go: a rank would have to know those of all the others. TMP holds what is on its way, each place of it used once: with
 * even hosts up to 5 times what a rank sends, so it is for no more than BYTES_MAX. */
#include "assume.h"
#include "segments.h"

#define BYTES_MAX 4194304.0
/* A message between hosts follows the copies of all its blocks, at most one for each pair of members. */
#define MEMBERS_MAX 128u

typedef struct hier {
    rg_schedule_t *s;
    const rg_coll_desc_t *d;
    uint32_t hosts, mine, self; /* how many there are; this rank's; its number among the members */
    uint32_t split;             /* a host's members are so many parts, if they are enough */
    uint32_t *member, *first;   /* ranks, host by host; where those of a host begin */
    uint64_t len, tmp;          /* elements of a block; elements of TMP in use */
    uint32_t *deps;
} hier_t;

/* Members lo to end-1 of a host. */
typedef struct part {
    uint32_t host, number, lo, end;
} part_t;

static uint32_t size_of(const hier_t *x, uint32_t host) {
    uint32_t n = x->first[host + 1] - x->first[host];
    RG_ASSUME(n > 0); /* a host is known by its members */
    return n;
}

static uint32_t rank_of(const hier_t *x, uint32_t host, uint32_t i) { return x->member[x->first[host] + i]; }

static uint32_t parts_of(const hier_t *x, uint32_t host) {
    RG_ASSUME(x->split > 0); /* the largest host has members */
    return x->split < size_of(x, host) ? x->split : size_of(x, host);
}

static part_t part_of(const hier_t *x, uint32_t host, uint32_t number) {
    uint64_t n = size_of(x, host), parts = parts_of(x, host);
    return (part_t){ host, number, (uint32_t)(n * number / parts), (uint32_t)(n * (number + 1) / parts) };
}

/* The member of `host` that speaks with `other` about part `number` of whichever of them is the receiver. */
static uint32_t speaker(const hier_t *x, uint32_t host, uint32_t other, uint32_t number) {
    return rank_of(x, host, (uint32_t)(((uint64_t)other * x->split + number) % size_of(x, host)));
}

static rg_span_t take_tmp(hier_t *x, uint64_t blocks) {
    rg_span_t span = rg_span(RG_BUF_TMP, x->tmp, blocks * x->len);
    x->tmp += span.len;
    return span;
}

static rg_span_t block(const hier_t *x, rg_span_t area, uint64_t i) {
    return rg_span(area.buf, area.off + i * x->len, x->len);
}

/* Whether the blocks of some members lie in one place, in the order of members. */
static int in_one_place(const hier_t *x, part_t p, const uint64_t *offs) {
    return offs == NULL && rank_of(x, p.host, p.end - 1) - rank_of(x, p.host, p.lo) == p.end - 1 - p.lo;
}

/* This rank's blocks for a part of a host, to the one who speaks with that. */
static void hand_over(hier_t *x, part_t p) {
    uint32_t n = p.end - p.lo, n_deps = 0;
    rg_span_t all = rg_seg_in(x->d, rank_of(x, p.host, p.lo));
    all.len = n * x->len;
    if (!in_one_place(x, p, x->d->in_offs)) {
        all = take_tmp(x, n);
        for (uint32_t i = 0; i < n; i++)
            x->deps[n_deps++] =
                rg_sched_copy(x->s, block(x, all, i), rg_seg_in(x->d, rank_of(x, p.host, p.lo + i)), 0, NULL, 0);
    }
    rg_sched_send(x->s, speaker(x, x->mine, p.host, p.number), all, x->deps, n_deps);
}

/* The speaker's part: what all members here have for a part of a host, put in the order of those there, and sent. */
static void speak(hier_t *x, part_t p) {
    uint32_t here = size_of(x, x->mine), there = p.end - p.lo, n_deps = 0;
    rg_span_t all = take_tmp(x, (uint64_t)here * there);
    for (uint32_t i = 0; i < here; i++) {
        uint32_t came = RG_NO_STEP;
        rg_span_t some = rg_span(RG_BUF_IN, 0, 0);
        if (i != x->self) {
            some = take_tmp(x, there);
            came = rg_sched_recv(x->s, rank_of(x, x->mine, i), some, 0, NULL, 0);
        }
        for (uint32_t k = 0; k < there; k++) {
            rg_span_t src = i == x->self ? rg_seg_in(x->d, rank_of(x, p.host, p.lo + k)) : block(x, some, k);
            x->deps[n_deps++] = rg_sched_copy(x->s, block(x, all, (uint64_t)k * here + i), src, 0, &came, 1);
        }
    }
    rg_sched_send(x->s, speaker(x, p.host, x->mine, p.number), all, x->deps, n_deps);
}

/* What the members of a host have for this rank, in `all` when `came` is done, to its places. */
static void put(hier_t *x, uint32_t host, rg_span_t all, uint32_t came) {
    part_t from = { host, 0, 0, size_of(x, host) };
    rg_span_t out = rg_seg(x->d, RG_BUF_OUT, rank_of(x, host, 0));
    out.len = all.len;
    if (in_one_place(x, from, x->d->offs)) {
        rg_sched_copy(x->s, out, all, 0, &came, 1);
        return;
    }
    for (uint32_t i = 0; i < from.end; i++)
        rg_sched_copy(x->s, rg_seg(x->d, RG_BUF_OUT, rank_of(x, host, i)), block(x, all, i), 0, &came, 1);
}

/* The same from the member here that has it. */
static void receive(hier_t *x, uint32_t host, uint32_t by) {
    part_t from = { host, 0, 0, size_of(x, host) };
    rg_span_t out = rg_seg(x->d, RG_BUF_OUT, rank_of(x, host, 0));
    out.len = from.end * x->len;
    if (in_one_place(x, from, x->d->offs)) {
        rg_sched_recv(x->s, by, out, 0, NULL, 0);
        return;
    }
    rg_span_t all = take_tmp(x, from.end);
    put(x, host, all, rg_sched_recv(x->s, by, all, 0, NULL, 0));
}

/* The other speaker's part: what came from a host for a part of this one, each member's share to that member. */
static void listen(hier_t *x, uint32_t host, part_t p) {
    uint32_t there = size_of(x, host);
    rg_span_t all = take_tmp(x, (uint64_t)there * (p.end - p.lo));
    uint32_t came = rg_sched_recv(x->s, speaker(x, host, x->mine, p.number), all, 0, NULL, 0);
    for (uint32_t i = p.lo; i < p.end; i++) {
        rg_span_t share = rg_span(RG_BUF_TMP, all.off + (uint64_t)(i - p.lo) * there * x->len, there * x->len);
        if (i == x->self) put(x, host, share, came);
        else rg_sched_send(x->s, rank_of(x, x->mine, i), share, &came, 1);
    }
}

static void inside(hier_t *x) {
    uint32_t n = size_of(x, x->mine);
    for (uint32_t i = 1; i < n; i++) {
        uint32_t to = rank_of(x, x->mine, (x->self + i) % n), from = rank_of(x, x->mine, (x->self + n - i) % n);
        rg_sched_send(x->s, to, rg_seg_in(x->d, to), NULL, 0);
        rg_sched_recv(x->s, from, rg_seg(x->d, RG_BUF_OUT, from), 0, NULL, 0);
    }
    rg_sched_copy(x->s, rg_seg(x->d, RG_BUF_OUT, x->d->rank), rg_seg_in(x->d, x->d->rank), 0, NULL, 0);
}

/* Hosts in the order of their lowest ranks; returns 0 without memory. */
static int find_hosts(hier_t *x) {
    const uint32_t *group = x->d->topo->group;
    uint32_t n = x->d->size, *host_of = rg_sched_scratch(x->s, n), *lowest = rg_sched_scratch(x->s, n), most = 0;
    x->member = rg_sched_scratch(x->s, n);
    x->first = rg_sched_scratch(x->s, (size_t)n + 1);
    if (host_of == NULL || lowest == NULL || x->member == NULL || x->first == NULL) return 0;
    for (uint32_t r = 0; r < n; r++) {
        uint32_t h = 0;
        while (h < x->hosts && group[lowest[h]] != group[r]) h++;
        if (h == x->hosts) lowest[x->hosts++] = r;
        host_of[r] = h;
    }
    for (uint32_t h = 0, at = 0; h < x->hosts; h++) {
        x->first[h] = at;
        for (uint32_t r = lowest[h]; r < n; r++) {
            if (host_of[r] != h) continue;
            if (r == x->d->rank) x->self = at - x->first[h];
            x->member[at++] = r;
        }
        x->first[h + 1] = at;
        if (size_of(x, h) > most) most = size_of(x, h);
    }
    x->mine = host_of[x->d->rank];
    RG_ASSUME(x->hosts > 1); /* else applies() had said no */
    x->split = (most + x->hosts - 2) / (x->hosts - 1);
    x->deps = rg_sched_scratch(x->s, (size_t)size_of(x, x->mine) * most);
    return x->deps != NULL;
}

/* How many hosts there are, and the members of the largest. */
static uint32_t count_hosts(const rg_coll_desc_t *d, uint32_t *largest) {
    const uint32_t *group = d->topo->group;
    uint32_t hosts = 0;
    *largest = 0;
    for (uint32_t r = 0; r < d->size; r++) {
        uint32_t members = 0, earlier = r > 0 && group[r] == group[r - 1];
        for (uint32_t q = 0; q < r && !earlier; q++) earlier = group[q] == group[r];
        if (earlier) continue;
        for (uint32_t q = r; q < d->size; q++) members += group[q] == group[r];
        hosts++;
        if (members > *largest) *largest = members;
    }
    return hosts;
}

static int applies(const rg_coll_desc_t *d) {
    uint32_t largest;
    if (d->topo == NULL || d->topo->levels == 0 || d->lens != NULL || d->in_lens != NULL) return 0;
    if (seg_bytes(d) > BYTES_MAX || count_hosts(d, &largest) < 2) return 0;
    return largest > 1 && largest <= MEMBERS_MAX;
}

static double cost(const rg_coll_desc_t *d, const rg_cost_model_t *m) {
    uint32_t largest, hosts = count_hosts(d, &largest);
    double n = d->size, here = largest, away = n > here ? (n - here) / n * seg_bytes(d) : 0;
    rg_cost_model_t near = *m, far = *m;
    if (m->level[0].alpha > 0) near.alpha = m->level[0].alpha, near.beta = m->level[0].beta;
    if (m->level[d->topo->levels].alpha > 0) {
        far.alpha = m->level[d->topo->levels].alpha;
        far.beta = m->level[d->topo->levels].beta;
    }
    /* Each byte that leaves crosses the host on either side, and is put in order once. What goes to a host goes in as
     * many parts as give every member something to say. */
    double parts = here > hosts - 1.0 ? here : hosts - 1.0;
    return rg_cost(&near, 2, 2 * parts + here - 1, 2 * away + here / n * seg_bytes(d), 2 * away) +
           rg_cost(&far, 1, parts / here, away, 0);
}

static rg_status_t build(rg_schedule_t *s, const rg_coll_desc_t *d) {
    hier_t x = { .s = s, .d = d, .len = d->count };
    if (d->count == 0 || !find_hosts(&x)) return s->error;
    for (uint32_t h = 0; h < x.hosts; h++)
        for (uint32_t k = 0; h != x.mine && k < parts_of(&x, h); k++) {
            if (speaker(&x, x.mine, h, k) == d->rank) speak(&x, part_of(&x, h, k));
            else hand_over(&x, part_of(&x, h, k));
        }
    /* While that is on its way. */
    inside(&x);
    for (uint32_t h = 0; h < x.hosts; h++)
        for (uint32_t k = 0; h != x.mine && k < parts_of(&x, x.mine); k++) {
            part_t p = part_of(&x, x.mine, k);
            uint32_t by = speaker(&x, x.mine, h, k);
            if (by == d->rank) listen(&x, h, p);
            else if (x.self >= p.lo && x.self < p.end) receive(&x, h, by);
        }
    s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

const rg_algorithm_t rg_alg_all_to_all_hier = {
    .name = "hier",
    .kind = RG_KIND_ALL_TO_ALL,
    .source = "Nie, Zhao, Miao, Zhao, Cui: HetuMoE: an efficient trillion-scale mixture-of-expert distributed "
              "training system, 2022",
    .applies = applies,
    .cost = cost,
    .build = build,
};
