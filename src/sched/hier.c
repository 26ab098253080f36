/* hier.c: the trees of hier.h and the schedule over them. It relies on the topology being equal on all ranks and
 * nested. What a rank sends and receives is found once, as a list of edges; the pieces then go through the levels one
 * behind the other: while one is on the slow link the next is reduced inside the hosts. TMP holds WINDOW pieces of the
 * items that this rank adds up. Must order the messages between two ranks by level and item alone, which both see
 * alike. */
#include "hier.h"
#include "assume.h"

#include <stdlib.h>
#include <string.h>

#define NOBODY UINT32_MAX
#define LEVELS (RG_LEVELS_MAX + 2) /* with the one group of all ranks, and the way to and from a root */
#define WINDOW (2 * LEVELS + 2)    /* pieces under way: no fewer than the stages, or a stage would wait for the last */
#define MERGE_MAX 64               /* items that one message carries */

/* ---- Groups ----------------------------------------------------------------------------------------------------- */

/* Level l has groups of elements: ranks at level 0, groups of the level below above it. Level `levels` is one group. */
typedef struct tree {
    const rg_coll_desc_t *d;
    uint32_t levels;
    uint32_t *of[LEVELS];    /* group of an element */
    uint32_t *place[LEVELS]; /* of an element in its group */
    uint32_t *first[LEVELS]; /* of a group: where its elements begin in list */
    uint32_t *list[LEVELS];
    uint32_t elements[LEVELS];
} tree_t;

/* Numbers the groups of a level by first appearance and lists their elements. key[e]: what the topology calls the
 * group of element e. */
static int level_build(rg_schedule_t *s, tree_t *t, uint32_t l, uint32_t n, const uint32_t *key) {
    uint32_t *of = rg_sched_scratch(s, n), *place = rg_sched_scratch(s, n), *list = rg_sched_scratch(s, n);
    uint32_t *first = rg_sched_scratch(s, (size_t)n + 1), *seen = rg_sched_scratch(s, n), groups = 0;
    if (!of || !place || !list || !first || !seen) return 0;
    for (uint32_t e = 0; e < n; e++) {
        uint32_t g = 0;
        while (g < groups && seen[g] != key[e]) g++;
        if (g == groups) {
            seen[groups] = key[e];
            first[groups++] = 0;
        }
        of[e] = g;
        place[e] = first[g]++;
    }
    for (uint32_t g = 0, at = 0; g <= groups; g++) {
        uint32_t size = g < groups ? first[g] : 0;
        first[g] = at;
        at += size;
    }
    for (uint32_t e = 0; e < n; e++) list[first[of[e]] + place[e]] = e;
    t->of[l] = of;
    t->place[l] = place;
    t->list[l] = list;
    t->first[l] = first;
    t->elements[l] = n;
    if (l + 1 < LEVELS) t->elements[l + 1] = groups;
    return 1;
}

static int tree_build(rg_schedule_t *s, const rg_coll_desc_t *d, tree_t *t) {
    *t = (tree_t){ .d = d, .levels = d->topo->levels };
    uint32_t n = d->size, *key = rg_sched_scratch(s, n);
    for (uint32_t l = 0; key && l <= t->levels; l++) {
        /* A group of the level below is where its first rank is. */
        for (uint32_t e = 0; e < n; e++) {
            uint32_t r = e;
            for (uint32_t k = l; k-- > 0;) r = t->list[k][t->first[k][r]];
            key[e] = l < t->levels ? d->topo->group[(size_t)l * d->size + r] : 0;
        }
        if (!level_build(s, t, l, n, key)) return 0;
        n = t->elements[l + 1];
    }
    return key != NULL;
}

/* The group of rank r at level l. */
static uint32_t group_of(const tree_t *t, uint32_t r, uint32_t l) {
    uint32_t e = t->of[0][r];
    for (uint32_t k = 1; k <= l; k++) e = t->of[k][e];
    return e;
}

static uint32_t group_size(const tree_t *t, uint32_t l, uint32_t g) { return t->first[l][g + 1] - t->first[l][g]; }

/* Who stands for group g of level l where `owner` owns the item: the owner in its own group; elsewhere whoever has the
 * same place, which spreads the items of one group over all members of the others. */
static uint32_t stands_for(const tree_t *t, uint32_t l, uint32_t g, uint32_t owner) {
    if (group_of(t, owner, l) == g) return owner;
    for (;; l--) {
        uint32_t place = t->place[l][l == 0 ? owner : group_of(t, owner, l - 1)];
        uint32_t e = t->list[l][t->first[l][g] + place % group_size(t, l, g)];
        if (l == 0) return e;
        g = e;
    }
}

/* The element of level l, in group g, that comes `by` places after element e, in a circle; and how far e is from the
 * one that has the group's value first. */
static uint32_t beside(const tree_t *t, uint32_t l, uint32_t g, uint32_t e, uint32_t by) {
    return t->list[l][t->first[l][g] + (t->place[l][e] + by) % group_size(t, l, g)];
}

static uint32_t distance(const tree_t *t, uint32_t l, uint32_t g, uint32_t e, uint32_t lead) {
    uint32_t k = group_size(t, l, g);
    return (t->place[l][e] + k - t->place[l][group_of(t, lead, l - 1)]) % k;
}

/* The parent of r, and the level at which they meet; NOBODY for the owner. With `chain` the groups that meet at a level
 * hand on from one to the next, else all turn to the one that has the value first. */
static uint32_t parent_of(const tree_t *t, int chain, uint32_t owner, uint32_t r, uint32_t *level) {
    for (uint32_t l = 0; r != owner && l <= t->levels; l++) {
        uint32_t g = group_of(t, r, l), x = stands_for(t, l, g, owner);
        *level = l;
        if (x == r) continue;
        if (l == 0 || !chain) return x;
        uint32_t own = group_of(t, r, l - 1);
        return stands_for(t, l - 1, beside(t, l, g, own, group_size(t, l, g) - 1), owner);
    }
    return NOBODY;
}

/* ---- Edges ------------------------------------------------------------------------------------------------------ */

typedef struct edge {
    uint32_t level, peer, item;
    uint32_t leaf; /* to_child: the child has no children of its own, so its value comes as it was put in */
} edge_t;

typedef struct work {
    rg_schedule_t *s;
    const rg_hier_plan_t *p;
    tree_t t;
    uint32_t r, pieces;
    edge_t *to_parent, *to_child;
    uint32_t n_parent, n_child;
    uint32_t *children; /* of this rank, by item */
    uint64_t *tmp;      /* by item: where its place in TMP begins within a piece's */
    uint64_t tmp_piece; /* elements of TMP of a piece */
    uint32_t *left;     /* by window and item: children whose values are still to come */
    uint32_t *acc;      /* last step that added to the item */
    uint32_t *up;       /* the item left for the parent, or is final here */
    uint32_t *down;     /* its final value is here */
} work_t;

static uint32_t cell(const work_t *w, uint32_t piece, uint32_t item) { return piece % WINDOW * w->p->n_items + item; }

/* The messages between two ranks go by level, and within a level by item from the child's number on. Different peers
 * come in different order on every rank, so that not all turn to one at once. */
static uint64_t edge_key(const work_t *w, const edge_t *e, uint32_t child) {
    uint32_t n = w->t.d->size, m = w->p->n_items;
    RG_ASSUME(m); /* there is an edge, so there is an item */
    uint64_t turn = (e->peer + n - w->r) % n, item = (e->item + m - (child + 1) % m) % m;
    return (uint64_t)e->level << 60 | turn << 30 | item;
}

typedef struct keyed {
    uint64_t key;
    edge_t e;
} keyed_t;

static int by_key(const void *a, const void *b) {
    const keyed_t *x = a, *y = b;
    return x->key < y->key ? -1 : x->key > y->key;
}

static void sort_edges(const work_t *w, keyed_t *k, edge_t *e, uint32_t n, int up) {
    for (uint32_t i = 0; i < n; i++) k[i] = (keyed_t){ edge_key(w, &e[i], up ? w->r : e[i].peer), e[i] };
    qsort(k, n, sizeof *k, by_key);
    for (uint32_t i = 0; i < n; i++) e[i] = k[i].e;
}

/* Counts the children of a rank for an item and, with `out`, lists them. */
static uint32_t children_of(const work_t *w, uint32_t r, uint32_t item, edge_t *out) {
    const tree_t *t = &w->t;
    uint32_t owner = w->p->items[item].owner, n = 0;
    for (uint32_t l = 0; l <= t->levels; l++) {
        uint32_t g = group_of(t, r, l), own = l == 0 ? r : group_of(t, r, l - 1), k = group_size(t, l, g);
        uint32_t lead = stands_for(t, l, g, owner), from = 1, to = lead == r ? k : 1;
        if (l != 0 && w->p->chain) to = distance(t, l, g, own, lead) + 1 < k ? 2 : 1;
        for (uint32_t i = from; i < to; i++) {
            uint32_t e = beside(t, l, g, own, i), child = l == 0 ? e : stands_for(t, l - 1, e, owner);
            if (child == w->p->root) continue;
            if (out) out[n] = (edge_t){ l, child, item, 0 };
            n++;
        }
        if (lead != r) break;
    }
    /* Beyond the tree: the owner is the root's child on the way up, its parent's place on the way down. */
    if (r == w->p->root && owner != r) {
        if (out) out[n] = (edge_t){ t->levels + 1, owner, item, 0 };
        n++;
    }
    return n;
}

static uint32_t parent_edge(const work_t *w, uint32_t item, edge_t *out) {
    uint32_t owner = w->p->items[item].owner, level = 0;
    if (w->r == w->p->root) return 0;
    uint32_t x = parent_of(&w->t, w->p->chain, owner, w->r, &level);
    if (x == NOBODY && (w->p->root == NOBODY || w->p->root == owner)) return 0;
    *out = x == NOBODY ? (edge_t){ w->t.levels + 1, w->p->root, item, 0 } : (edge_t){ level, x, item, 0 };
    return 1;
}

static void *room(rg_schedule_t *s, size_t n, size_t size) {
    return rg_sched_scratch(s, n * (size / sizeof(uint32_t)) + 2);
}

static int find_edges(work_t *w) {
    uint32_t items = w->p->n_items, total = 0;
    w->children = rg_sched_scratch(w->s, items);
    w->to_parent = room(w->s, items, sizeof(edge_t));
    if (!w->children || !w->to_parent) return 0;
    for (uint32_t i = 0; i < items; i++) {
        w->children[i] = children_of(w, w->r, i, NULL);
        total += w->children[i];
        w->n_parent += parent_edge(w, i, &w->to_parent[w->n_parent]);
    }
    w->to_child = room(w->s, total, sizeof(edge_t));
    keyed_t *k = room(w->s, total > items ? total : items, sizeof(keyed_t));
    if (!w->to_child || !k) return 0;
    for (uint32_t i = 0; i < items; i++) w->n_child += children_of(w, w->r, i, w->to_child + w->n_child);
    for (uint32_t i = 0; i < w->n_child; i++)
        w->to_child[i].leaf = children_of(w, w->to_child[i].peer, w->to_child[i].item, NULL) == 0;
    sort_edges(w, k, w->to_parent, w->n_parent, 1);
    sort_edges(w, k, w->to_child, w->n_child, 0);
    return 1;
}

/* ---- Places ----------------------------------------------------------------------------------------------------- */

static rg_span_t piece_of(const work_t *w, rg_buf_t buf, uint32_t item, uint32_t piece) {
    const rg_hier_item_t *x = &w->p->items[item];
    uint64_t off = buf == RG_BUF_IN ? x->in : x->out;
    if (buf == RG_BUF_IN && w->p->in_at_owner) off = 0;
    if (buf == RG_BUF_OUT && w->p->out_at_owner) off = 0;
    return rg_span_part(rg_span(buf, off, x->len), w->pieces, piece);
}

static rg_span_t tmp_of(const work_t *w, uint32_t item, uint32_t piece, uint64_t len) {
    return rg_span(RG_BUF_TMP, piece % WINDOW * w->tmp_piece + w->tmp[item], len);
}

static int find_places(work_t *w) {
    uint32_t items = w->p->n_items;
    size_t cells = (size_t)WINDOW * items;
    w->tmp = room(w->s, items, sizeof *w->tmp);
    w->left = rg_sched_scratch(w->s, cells);
    w->acc = rg_sched_scratch(w->s, cells);
    w->up = rg_sched_scratch(w->s, cells);
    w->down = rg_sched_scratch(w->s, cells);
    if (!w->tmp || !w->left || !w->acc || !w->up || !w->down) return 0;
    for (uint32_t i = 0; i < items; i++) {
        w->tmp[i] = w->tmp_piece;
        if (w->children[i] && (w->p->flow & RG_HIER_UP)) w->tmp_piece += piece_of(w, RG_BUF_IN, i, 0).len;
    }
    return 1;
}

/* How many edges from `at` on one message carries: items that lie side by side, between a rank that only hands on and
 * one that does not own them, both of which see that alike. */
static uint32_t run_length(const work_t *w, const edge_t *e, uint32_t n, uint32_t at, int up) {
    uint32_t parent = up ? e[at].peer : w->r, run = 1;
    if (e[at].level != 0 || w->pieces != 1 || w->p->in_at_owner || w->p->out_at_owner || w->p->root != NOBODY) return 1;
    while (at + run < n && run < MERGE_MAX) {
        const edge_t *a = &e[at + run - 1], *b = &e[at + run];
        const rg_hier_item_t *x = &w->p->items[a->item], *y = &w->p->items[b->item];
        if (b->level != 0 || b->peer != a->peer || x->in + x->len != y->in || x->out + x->len != y->out ||
            x->len == 0 || y->len == 0 || x->owner == parent || y->owner == parent)
            break;
        run++;
    }
    return run;
}

static rg_span_t longer(rg_span_t a, rg_span_t b) {
    a.len += b.len;
    return a;
}

/* ---- Up --------------------------------------------------------------------------------------------------------- */

static void send_up(work_t *w, uint32_t piece, const edge_t *e, uint32_t run) {
    uint32_t deps[MERGE_MAX], n = 0;
    int leaf = w->children[e->item] == 0;
    rg_span_t a = piece_of(w, RG_BUF_IN, e->item, piece);
    if (!leaf) a = tmp_of(w, e->item, piece, a.len);
    for (uint32_t i = 0; i < run; i++) {
        if (i) a = longer(a, piece_of(w, RG_BUF_IN, e[i].item, piece));
        deps[n++] = w->acc[cell(w, piece, e[i].item)];
    }
    if (a.len == 0) return;
    uint32_t step = rg_sched_send(w->s, e->peer, a, deps, n);
    for (uint32_t i = 0; i < run; i++) w->up[cell(w, piece, e[i].item)] = step;
}

/* A child's value comes in. */
static void add_child(work_t *w, uint32_t piece, const edge_t *e, uint32_t run) {
    uint32_t deps[2 * MERGE_MAX], n = 0, first = cell(w, piece, e->item);
    int began = w->acc[first] != RG_NO_STEP, last = 1;
    rg_span_t in = piece_of(w, RG_BUF_IN, e->item, piece), tmp = tmp_of(w, e->item, piece, in.len);
    if (in.len == 0) return;
    for (uint32_t i = 0; i < run; i++) {
        uint32_t c = cell(w, piece, e[i].item);
        if (i) {
            uint64_t more = piece_of(w, RG_BUF_IN, e[i].item, piece).len;
            in.len += more;
            tmp.len += more;
        }
        /* Before the first one the place in TMP has to be free of what an earlier piece left in it. */
        deps[n++] = began ? w->acc[c] : w->up[c];
        last &= --w->left[c] == 0;
    }
    int ends_here = w->p->root == NOBODY ? w->p->items[e->item].owner == w->r : w->p->root == w->r;
    int final = last && ends_here;
    rg_span_t dst = final ? piece_of(w, RG_BUF_OUT, e->item, piece) : tmp;
    uint32_t flags = (final ? RG_STEP_FINAL : 0) | (e->leaf ? 0 : RG_STEP_WIRE_ACC);
    uint32_t step = rg_sched_recv_reduce(w->s, e->peer, dst, began ? tmp : in, flags, deps, n);
    for (uint32_t i = 0; i < run; i++) {
        uint32_t c = cell(w, piece, e[i].item);
        w->acc[c] = step;
        if (final) w->up[c] = w->down[c] = step;
    }
}

static void begin_piece(work_t *w, uint32_t piece) {
    for (uint32_t i = 0; i < w->p->n_items; i++) {
        uint32_t c = cell(w, piece, i);
        w->left[c] = w->children[i];
        w->acc[c] = RG_NO_STEP;
    }
}

/* Receives first: in a chain what comes at a level goes on at the same one. */
static void stage_up(work_t *w, uint32_t piece, uint32_t level) {
    if (level == 0) begin_piece(w, piece);
    for (uint32_t i = 0, run; i < w->n_child; i += run) {
        const edge_t *e = &w->to_child[i];
        run = run_length(w, w->to_child, w->n_child, i, 0);
        if (e->level == level) add_child(w, piece, e, run);
    }
    for (uint32_t i = 0, run; i < w->n_parent; i += run) {
        run = run_length(w, w->to_parent, w->n_parent, i, 1);
        if (w->to_parent[i].level == level) send_up(w, piece, &w->to_parent[i], run);
    }
}

/* ---- Down ------------------------------------------------------------------------------------------------------- */

/* Where the final value is sent from: who has it to begin with has it in IN. */
static int begins_here(const work_t *w, uint32_t item) {
    if (w->p->flow & RG_HIER_UP) return 0;
    return w->p->root == NOBODY ? w->p->items[item].owner == w->r : w->p->root == w->r;
}

static void receive_down(work_t *w, uint32_t piece, const edge_t *e, uint32_t run) {
    uint32_t deps[2 * MERGE_MAX], n = 0;
    rg_span_t out = piece_of(w, RG_BUF_OUT, e->item, piece);
    for (uint32_t i = 0; i < run; i++) {
        uint32_t c = cell(w, piece, e[i].item);
        if (i) out = longer(out, piece_of(w, RG_BUF_OUT, e[i].item, piece));
        deps[n++] = w->up[c];   /* in place it covers what was sent up */
        deps[n++] = w->down[c]; /* bounds the receives that are posted ahead */
    }
    if (out.len == 0) return;
    uint32_t step = rg_sched_recv(w->s, e->peer, out, 0, deps, n);
    for (uint32_t i = 0; i < run; i++) w->down[cell(w, piece, e[i].item)] = step;
}

static void send_down(work_t *w, uint32_t piece, const edge_t *e, uint32_t run) {
    uint32_t deps[MERGE_MAX], n = 0;
    int own = begins_here(w, e->item);
    rg_span_t a = piece_of(w, own ? RG_BUF_IN : RG_BUF_OUT, e->item, piece);
    for (uint32_t i = 0; i < run; i++) {
        if (i) a = longer(a, piece_of(w, RG_BUF_OUT, e[i].item, piece));
        if (!own) deps[n++] = w->down[cell(w, piece, e[i].item)];
    }
    if (a.len != 0) rg_sched_send(w->s, e->peer, a, deps, n);
}

/* The edge between a root and an owner points up: on the way down it is walked the other way, like all others. */
static void stage_down(work_t *w, uint32_t piece, uint32_t level) {
    for (uint32_t i = 0, run; i < w->n_parent; i += run) {
        run = run_length(w, w->to_parent, w->n_parent, i, 1);
        if (w->to_parent[i].level == level) receive_down(w, piece, &w->to_parent[i], run);
    }
    for (uint32_t i = 0, run; i < w->n_child; i += run) {
        run = run_length(w, w->to_child, w->n_child, i, 0);
        if (w->to_child[i].level == level) send_down(w, piece, &w->to_child[i], run);
    }
}

/* What this rank has to begin with goes to its own OUT. */
static void keep_own(work_t *w) {
    for (uint32_t i = 0; i < w->p->n_items; i++)
        if (begins_here(w, i))
            for (uint32_t p = 0; p < w->pieces; p++) {
                rg_span_t out = piece_of(w, RG_BUF_OUT, i, p);
                if (out.len) rg_sched_copy(w->s, out, piece_of(w, RG_BUF_IN, i, p), 0, NULL, 0);
            }
}

/* ---- All of it -------------------------------------------------------------------------------------------------- */

rg_status_t rg_hier_build(rg_schedule_t *s, const rg_hier_plan_t *plan) {
    work_t w = { .s = s, .p = plan, .r = s->desc.rank };
    uint64_t longest = 0;
    for (uint32_t i = 0; i < plan->n_items; i++)
        if (plan->items[i].len > longest) longest = plan->items[i].len;
    w.pieces = rg_sched_pieces(longest, s->desc.chunk, 4 * (uint64_t)s->desc.size);
    if (!tree_build(s, &s->desc, &w.t) || !find_edges(&w) || !find_places(&w)) return s->error;
    uint32_t way = w.t.levels + 1 + (plan->root != NOBODY), up = plan->flow & RG_HIER_UP ? way : 0;
    uint32_t stages = up + (plan->flow & RG_HIER_DOWN ? way : 0);
    if (!up) keep_own(&w);
    for (uint32_t tick = 0; tick < w.pieces + stages - 1; tick++)
        for (uint32_t st = 0; st < stages && st <= tick; st++) {
            if (tick - st >= w.pieces) continue;
            if (st < up) stage_up(&w, tick - st, st);
            else stage_down(&w, tick - st, way - 1 - (st - up));
        }
    /* On the way up places in TMP are used again when what was sent from them has left, not when it has been consumed.
     */
    if (!up) s->flags |= RG_SCHED_ZERO_COPY;
    return s->error;
}

static rg_hier_item_t *items_of(rg_schedule_t *s, uint32_t n) { return room(s, n, sizeof(rg_hier_item_t)); }

rg_status_t rg_hier_build_rooted(rg_schedule_t *s, uint32_t flow) {
    const rg_coll_desc_t *d = &s->desc;
    uint32_t parts = rg_hier_widest_host(d);
    rg_hier_item_t *items = items_of(s, parts);
    if (!items) return s->error;
    for (uint32_t p = 0; p < parts; p++) {
        rg_span_t part = rg_span_part(rg_span(RG_BUF_IN, 0, d->count), parts, p);
        items[p] = (rg_hier_item_t){ rg_hier_host_member(d, d->root, p), part.off, part.off, part.len };
    }
    const rg_hier_plan_t plan = { .items = items, .n_items = parts, .flow = flow, .root = d->root, .chain = 1 };
    return rg_hier_build(s, &plan);
}

rg_status_t rg_hier_build_segments(rg_schedule_t *s, uint32_t flow) {
    const rg_coll_desc_t *d = &s->desc;
    int up = flow == RG_HIER_UP;
    rg_hier_item_t *items = items_of(s, d->size);
    if (!items) return s->error;
    for (uint32_t r = 0; r < d->size; r++) {
        uint64_t off = rg_seg(d, up ? RG_BUF_IN : RG_BUF_OUT, r).off;
        items[r] = (rg_hier_item_t){ r, up ? off : 0, up ? 0 : off, rg_seg_len(d, r) };
    }
    const rg_hier_plan_t plan = {
        .items = items, .n_items = d->size, .flow = flow, .root = NOBODY, .in_at_owner = !up, .out_at_owner = up
    };
    return rg_hier_build(s, &plan);
}

/* ---- Questions about the topology ------------------------------------------------------------------------------- */

int rg_hier_applies(const rg_coll_desc_t *d) {
    if (!d->topo || d->topo->levels == 0 || d->size < 3 || d->rank_order) return 0;
    for (uint32_t l = 0; l < d->topo->levels; l++) {
        const uint32_t *g = d->topo->group + (size_t)l * d->size;
        uint32_t one = 1, alone = 1;
        for (uint32_t r = 1; r < d->size; r++) one &= g[r] == g[0];
        for (uint32_t r = 0; r < d->size && alone; r++)
            for (uint32_t q = r + 1; q < d->size && alone; q++) alone = g[q] != g[r];
        if (!one && !alone) return 1;
    }
    return 0;
}

uint32_t rg_hier_host_size(const rg_coll_desc_t *d, uint32_t rank) {
    uint32_t n = 0;
    for (uint32_t r = 0; r < d->size; r++) n += d->topo->group[r] == d->topo->group[rank];
    return n;
}

uint32_t rg_hier_host_place(const rg_coll_desc_t *d, uint32_t rank) {
    uint32_t n = 0;
    for (uint32_t r = 0; r < rank; r++) n += d->topo->group[r] == d->topo->group[rank];
    return n;
}

uint32_t rg_hier_widest_host(const rg_coll_desc_t *d) {
    uint32_t most = 1;
    for (uint32_t r = 0; r < d->size; r++) {
        uint32_t n = rg_hier_host_size(d, r);
        if (n > most) most = n;
    }
    return most;
}

uint32_t rg_hier_host_member(const rg_coll_desc_t *d, uint32_t rank, uint32_t place) {
    uint32_t nth = place % rg_hier_host_size(d, rank);
    for (uint32_t r = 0; r < d->size; r++)
        if (d->topo->group[r] == d->topo->group[rank] && nth-- == 0) return r;
    return rank;
}

/* A group's link to the others carries each byte once, whoever of its members sends it. */
double rg_hier_cost(const rg_coll_desc_t *d, const rg_cost_model_t *m, double bytes, uint32_t flow) {
    double ways = (flow & RG_HIER_UP ? 1 : 0) + (flow & RG_HIER_DOWN ? 1 : 0), time = 0;
    uint32_t host = rg_hier_widest_host(d);
    for (uint32_t l = 0; l <= d->topo->levels && l <= RG_LEVELS_MAX; l++) {
        double parts; /* groups that meet at this level, roughly alike in size */
        if (l == 0) {
            parts = host;
        } else {
            uint32_t groups = 0;
            const uint32_t *g = d->topo->group + (size_t)(l - 1) * d->size;
            for (uint32_t r = 0; r < d->size; r++) {
                uint32_t q = 0;
                while (q < r && g[q] != g[r]) q++;
                groups += q == r;
            }
            parts = groups;
        }
        if (parts < 2) continue;
        double moved = ways * (parts - 1) / parts * bytes;
        time += ways * m->level[l].alpha * (1 + 0.4 * (parts - 1)) + moved * m->level[l].beta;
        if (l == 0) time += (m->sharing > 1 ? m->sharing : 1) * moved * m->gamma;
    }
    return time;
}
