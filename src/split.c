/* split.c: sub-groups. A child is a handle with a set of members, numbers of its own and nothing else: it lives on its
 * root's connections, lock and views. Splitting is one all-gather of colours and keys, from which everybody makes the
 * same children. It relies on the core to know the sets, so that a fault touches those operations alone that it must.
 */
#include "api.h"
#include "core/text.h"
#include "assume.h"
#include "config.h"
#include "engine/lifecycle.h"

#include <stdlib.h>
#include <string.h>

#define SPLIT_SALT 0x73706c69u /* an all-gather of the program must not be taken for one of ours */

typedef struct row {
    uint32_t colour, key, room, unused;
} row_t;

/* A member with the colour and key that it gave. */
typedef struct place {
    uint64_t id;
    uint32_t colour, key, rank;
} place_t;

static int by_key(const void *a, const void *b) {
    const place_t *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* ---- The exchange ------------------------------------------------------------------------------------------------ */

typedef struct split {
    row_t mine, *rows;
    uint64_t *ids, *set_ids; /* the latter for the child */
    place_t *places;
    uint32_t n, cap;
    rg_op_key_t key; /* of the exchange that succeeded: equal on all members, and never again */
} split_t;

/* All memory that is needed, before the others hear anything: after the exchange nobody could be told any more that
 * this member has no child. */
static int split_room(split_t *s, uint32_t n) {
    if (n <= s->cap) return 1;
    row_t *rows = realloc(s->rows, n * sizeof *rows);
    if (rows) s->rows = rows;
    uint64_t *ids = realloc(s->ids, n * sizeof *ids);
    if (ids) s->ids = ids;
    uint64_t *set_ids = realloc(s->set_ids, n * sizeof *set_ids);
    if (set_ids) s->set_ids = set_ids;
    place_t *places = realloc(s->places, n * sizeof *places);
    if (places) s->places = places;
    if (!rows || !ids || !set_ids || !places) return 0;
    s->cap = n;
    return 1;
}

/* One attempt. Locked. */
static rg_status_t exchange(rg_group_t *h, split_t *s, const rg_opts_t *o) {
    rg_group_t *g = rg_root(h);
    rg_roster_t *r = g->phase == RG_PHASE_MEMBER && !h->ended ? rg_roster_for(h, h->gen) : NULL;
    if (!r) {
        rg_status_t st = rg_handle_ended(h);
        return st != RG_OK ? st : RG_ERR_NOMEM;
    }
    h->told_n = r->n;
    int room = split_room(s, r->n);
    rg_roster_put(r);
    if (!room) return RG_ERR_NOMEM;
    const rg_call_t c = { .kind = RG_KIND_ALL_GATHER,
                          .in = &s->mine,
                          .out = s->rows,
                          .count = sizeof s->mine,
                          .dtype = RG_U8,
                          .salt = SPLIT_SALT };
    rg_request_t *op;
    rg_status_t st = rg_call_make(h, &c, o, &op);
    if (st != RG_OK) return st;
    op->blocking = 1;
    st = rg_op_submit(op);
    if (st != RG_OK) {
        rg_op_free(op);
        return st;
    }
    if (g->driver == RG_DRIVER_CALLER) rg_wake(g);
    s->key = op->key;
    rg_result_t res = RG_RESULT_INIT;
    res.contributor_ids = s->ids;
    res.contributor_cap = s->cap;
    st = rg_call_collect(op, &res);
    s->n = res.contributors < s->cap ? res.contributors : s->cap;
    return st;
}

/* The others may have begun: they are told, and this member's next call is not taken for this one. */
static rg_status_t refused(rg_group_t *h, rg_status_t st) {
    char text[RG_CORE_TEXT_MAX];
    rg_status_t all;
    rg_group_errmsg(h, text, sizeof text);
    do all = rg_call_refused(h, 0, st, text);
    while (all == RG_ERR_PEER_LOST); /* the others begin again */
    return all == RG_ERR_NOMEM || all == RG_ERR_RESOURCE ? all : st;
}

/* Until it succeeds on all: a loss ends it on all alike, and they try again without the one that was lost. */
static rg_status_t exchange_all(rg_group_t *h, split_t *s, const rg_opts_t *opts) {
    const rg_call_t c = { .kind = RG_KIND_ALL_GATHER, .dtype = RG_U8 };
    rg_opts_t o;
    rg_status_t st = rg_call_opts(h, &c, opts, 1, &o);
    if (st == RG_OK && (o.tag || o.in_strided || o.out_strided))
        st = rg_refuse(h, RG_ERR_INVALID, "rg_group_split: opts may have a timeout; leave tag and strides 0");
    if (st != RG_OK) return refused(h, st);
    rg_group_t *g = rg_root(h);
    uint64_t start = rg_os_now_ns(), limit = (uint64_t)o.timeout_ms * 1000000u;
    rg_lock(g);
    do {
        uint64_t gone = (rg_os_now_ns() - start) / 1000000u;
        o.timeout_ms = gone < limit / 1000000u ? (uint32_t)(limit / 1000000u - gone) : 1;
        st = exchange(h, s, &o);
    } while (st == RG_ERR_PEER_LOST && rg_os_now_ns() - start < limit);
    rg_unlock(g);
    return st;
}

/* ---- The child --------------------------------------------------------------------------------------------------- */

static uint64_t set_name(rg_op_key_t key, uint32_t colour) {
    uint64_t h = key.set * 0x9e3779b97f4a7c15u ^ key.gen;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u ^ key.op;
    h = (h ^ h >> 31) * 0x94d049bb133111ebu ^ colour;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 32) & ~RG_SET_PAIR;
    return h ? h : 1;
}

/* The members of a colour in rank order. Returns how many. */
static uint32_t members_of(const split_t *s, uint32_t colour, place_t *places) {
    uint32_t n = 0;
    RG_ASSUME(places); /* split_room() made them before the exchange that filled the rows */
    for (uint32_t i = 0; i < s->n; i++)
        if (s->rows[i].colour == colour) places[n++] = (place_t){ s->ids[i], colour, s->rows[i].key, i };
    qsort(places, n, sizeof *places, by_key);
    return n;
}

/* Sets whose handles are gone stay known for as long as there is room: others may still be busy with their last
 * operation, and a fault would ask this member about it. */
static rg_status_t define_set(rg_group_t *g, uint64_t set, const uint64_t *ids, uint32_t n) {
    rg_status_t st = rg_member_set_define(g->core, set, ids, n);
    while (st == RG_ERR_RESOURCE && g->n_dead_sets) {
        uint64_t oldest = g->dead_sets[0];
        g->n_dead_sets--;
        memmove(g->dead_sets, g->dead_sets + 1, g->n_dead_sets * sizeof *g->dead_sets);
        rg_member_set_drop(g->core, oldest);
        st = rg_member_set_define(g->core, set, ids, n);
    }
    return st;
}

static void bury_set(rg_group_t *g, uint64_t set) {
    if (g->n_dead_sets == sizeof g->dead_sets / sizeof *g->dead_sets) {
        rg_member_set_drop(g->core, g->dead_sets[0]);
        g->n_dead_sets--;
        memmove(g->dead_sets, g->dead_sets + 1, g->n_dead_sets * sizeof *g->dead_sets);
    }
    g->dead_sets[g->n_dead_sets++] = set;
}

static void child_free(rg_group_t *c) {
    if (!c) return;
    rg_roster_put(c->roster);
    free(c->set_ids);
    free(c->tags);
    free(c->grid);
    free(c);
}

/* Makes `c`, which is empty, the child of this colour. Locked. */
static rg_status_t child_fill(rg_group_t *h, rg_group_t *c, split_t *s) {
    rg_group_t *g = rg_root(h);
    c->root = g;
    c->set = set_name(s->key, s->mine.colour);
    c->gen = s->key.gen;
    c->n_set = members_of(s, s->mine.colour, s->places);
    c->set_ids = s->set_ids;
    s->set_ids = NULL;
    for (uint32_t i = 0; i < c->n_set; i++) c->set_ids[i] = s->places[i].id;
    rg_status_t st = define_set(g, c->set, c->set_ids, c->n_set);
    if (st != RG_OK) {
        rg_group_set_errmsg(h, "rg_group_split: %s", rg_member_why(g->core));
        return st;
    }
    rg_roster_t *r = rg_roster_for(c, c->gen);
    c->told_n = r ? r->n : c->n_set;
    rg_roster_put(r);
    c->next_child = g->children;
    g->children = c;
    return RG_OK;
}

static void remember_grid(rg_group_t *h, const split_t *s) {
    rg_grid_row_t *grid = realloc(h->grid, (s->n + 1) * sizeof *grid);
    if (!grid) return; /* rg_group_grid() then says what it knew before */
    h->grid = grid;
    h->n_grid = s->n;
    for (uint32_t i = 0; i < s->n; i++) grid[i] = (rg_grid_row_t){ s->ids[i], s->rows[i].colour };
}

static rg_status_t split_end(rg_group_t *h, split_t *s, rg_group_t *c, int *used) {
    for (uint32_t i = 0; i < s->n; i++)
        if (!s->rows[i].room) {
            rg_group_set_errmsg(h, "rg_group_split: rank %u has no room for one more sub-group", i);
            return RG_ERR_RESOURCE;
        }
    remember_grid(h, s);
    if (s->mine.colour == RG_NO_COLOUR) return RG_OK;
    RG_ASSUME(c); /* else this member said that it has no room, and nobody gets here */
    rg_status_t st = child_fill(h, c, s);
    *used = st == RG_OK;
    return st;
}

rg_status_t rg_group_split(rg_group_t *h, uint32_t colour, uint32_t key, const rg_opts_t *opts, rg_group_t **child) {
    rg_status_t st = rg_usable(h);
    if (child) *child = NULL;
    if (st != RG_OK) return st;
    if (!child) return refused(h, rg_refuse(h, RG_ERR_INVALID, "rg_group_split: child is NULL"));
    rg_group_t *g = rg_root(h), *c = colour == RG_NO_COLOUR ? NULL : calloc(1, sizeof *c);
    uint32_t live = 0;
    rg_lock(g);
    for (const rg_group_t *x = g->children; x; x = x->next_child) live++;
    rg_unlock(g);
    int room = colour == RG_NO_COLOUR || (c && live < RG_CORE_MAX_SETS);
    split_t s = { .mine = { colour, key, (uint32_t)room, 0 } };
    st = exchange_all(h, &s, opts);
    if (st == RG_OK) {
        int used = 0;
        rg_lock(g);
        st = g->over ? g->over : split_end(h, &s, c, &used);
        rg_unlock(g);
        if (used) {
            *child = c;
            c = NULL;
        }
    }
    if (st == RG_ERR_NOMEM) rg_group_set_errmsg(h, "no memory for a sub-group; free some and call again");
    child_free(c);
    free(s.rows);
    free(s.ids);
    free(s.set_ids);
    free(s.places);
    return st;
}

/* ---- Its end ----------------------------------------------------------------------------------------------------- */

void rg_child_end(rg_group_t *h, rg_status_t status, const char *text) {
    if (!h->ended) rg_text_copy(h->why_over, sizeof h->why_over, text);
    if (!h->ended) h->ended = status;
    rg_group_set_errmsg(h, "%s", text);
    if (rg_root(h)->phase == RG_PHASE_MEMBER) rg_ops_fail_of(h, status, text);
    rg_wake(rg_root(h));
}

static int all_ended(void *arg) { return !rg_ops_any_of(arg); }

void rg_child_destroy(rg_group_t *h) {
    rg_group_t *g = h->root;
    rg_lock(g);
    rg_child_end(h, RG_ERR_ABORTED, "the handle of the sub-group was destroyed");
    rg_drive(g, all_ended, h, UINT64_MAX); /* bounded: an operation that nobody decides ends the group */
    for (uint32_t i = 0; i < g->n_ops; i++)
        if (g->ops[i]->taken && g->ops[i]->h == h) rg_op_free(g->ops[i]);
    rg_group_t **at = &g->children;
    while (*at != h) at = &(*at)->next_child;
    *at = h->next_child;
    if (!g->gone && g->core) bury_set(g, h->set);
    int last = g->gone && !g->children;
    rg_unlock(g);
    child_free(h);
    if (last) rg_group_shell_free(g);
}

/* ---- What has become of it --------------------------------------------------------------------------------------- */

static uint32_t colours_given(const rg_group_t *h) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < h->n_grid; i++)
        if (h->grid[i].colour != RG_NO_COLOUR && h->grid[i].colour + 1 > most) most = h->grid[i].colour + 1;
    return most;
}

static uint32_t colour_of(const rg_group_t *h, uint64_t id) {
    for (uint32_t i = 0; i < h->n_grid; i++)
        if (h->grid[i].id == id) return h->grid[i].colour;
    return RG_NO_COLOUR;
}

static int by_number(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Members by colour, from their sorted colours: a colour may be any number, so nothing is indexed by it. */
static void grid_count(const uint32_t *colour, uint32_t n, uint32_t needed, rg_grid_t *out) {
    uint32_t expect = 0, given = 0;
    out->missing = RG_NO_COLOUR;
    out->smallest = UINT32_MAX;
    for (uint32_t i = 0; i < n;) {
        uint32_t k = i;
        while (k < n && colour[k] == colour[i]) k++;
        if (colour[i] < needed) {
            if (colour[i] != expect && out->missing == RG_NO_COLOUR) out->missing = expect;
            expect = colour[i] + 1;
            given++;
            if (k - i < out->smallest) out->smallest = k - i;
        }
        out->present++;
        if (k - i > out->largest) out->largest = k - i;
        i = k;
    }
    if (given < needed && out->missing == RG_NO_COLOUR) out->missing = expect;
    if (given < needed || !n) out->smallest = 0;
    out->complete = needed && given == needed && out->smallest == out->largest;
}

static rg_status_t grid_now(rg_group_t *h, rg_grid_t *out) {
    rg_group_t *g = rg_root(h);
    rg_roster_t *r = g->phase == RG_PHASE_MEMBER && !h->ended ? rg_roster_for(h, h->gen) : NULL;
    if (!r) {
        rg_status_t st = rg_handle_ended(h);
        return st != RG_OK ? st : RG_ERR_NOMEM;
    }
    uint32_t *colour = malloc((r->n + 1) * sizeof *colour), n = 0;
    for (uint32_t i = 0; colour && i < r->n; i++) {
        uint32_t c = colour_of(h, r->ids[i]);
        if (c == RG_NO_COLOUR) out->without++;
        else colour[n++] = c;
    }
    out->members = r->n;
    if (colour) {
        qsort(colour, n, sizeof *colour, by_number);
        if (!out->colours) out->colours = colours_given(h);
        grid_count(colour, n, out->colours, out);
    }
    rg_roster_put(r);
    free(colour);
    return colour ? RG_OK : RG_ERR_NOMEM;
}

rg_status_t rg_group_grid(rg_group_t *h, rg_grid_t *grid) {
    rg_grid_t now = RG_GRID_INIT;
    rg_status_t st = grid ? rg_usable(h) : RG_ERR_INVALID;
    if (st != RG_OK) return st;
    if (rg_struct_check(grid, RG_GRID_SIZE_FIRST, "rg_grid_t", NULL) != RG_OK)
        return rg_refuse(h, RG_ERR_INVALID, "rg_grid_t.struct_size is too small; initialise it with RG_GRID_INIT");
    now.colours = grid->colours;
    rg_lock(rg_root(h));
    st = h->grid ? grid_now(h, &now) : RG_ERR_INVALID;
    if (!h->grid) rg_group_set_errmsg(h, "rg_group_grid: this group has not been split");
    rg_unlock(rg_root(h));
    if (st == RG_OK) rg_struct_out(grid, &now, sizeof now, RG_GRID_SIZE_FIRST);
    return st;
}
