/* fetch.c: rg_state_join(): a candidate, linked to the members and not yet one of them, fetches a state from those that
 * serve it, in rounds: it asks which content they have, chooses one, learns its hashes, and asks for the pieces that
 * differ here, from all members that have them at once, in ascending order. What comes counts when its hash is right. A
 * next round fetches what has changed meanwhile, as long as that becomes less. It relies on engine/side.h for questions
 * and on the group's lock, which is held whenever anything here runs but rg_state_join() itself. It must not prevent
 * the join: what it cannot get is left to rg_state_sync(). */
#include "state/fetch.h"

#include "api.h"
#include "config.h"
#include "engine/lifecycle.h"
#include "engine/side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN_NS 4000000u    /* between two rounds while it waits for the members to let it in */
#define HEADS_NS 300000000u  /* after the first usable answer the others have so long */
#define LINKS_NS 1000000000u /* so long all links are waited for, before those there are have to do */
#define DEAF_NS 5000000000u  /* a member that has been asked for pieces and says nothing for so long is left out */
#define HEAD_NS 20000000000u /* the same for its first answer, for which it may have to hash its state */

static uint64_t cookie_of(const rg_fetch_t *f, rg_talk_t kind, uint32_t donor, uint32_t unit) {
    uint32_t turn = kind == RG_TALK_PIECES ? f->units[unit].turn : f->round;
    return (uint64_t)kind << 56 | (uint64_t)(turn & 0xffffff) << 32 | (uint64_t)donor << 16 | unit;
}

static void on_answer(void *user, uint64_t cookie, const uint8_t *bytes);

static int ask(rg_fetch_t *f, uint32_t donor, const rg_question_t *q, uint32_t answer_len, uint32_t unit) {
    uint8_t raw[RG_TALK_BYTES];
    rg_question_put(q, raw);
    f->donors[donor].asked_ns = f->now;
    return rg_side_ask(f->g, f->donors[donor].id, raw, answer_len, on_answer, f, cookie_of(f, q->kind, donor, unit)) ==
           RG_OK;
}

/* ---- Donors ------------------------------------------------------------------------------------------------------ */

static void unit_back(rg_fetch_t *f, rg_unit_t *u) {
    for (uint32_t k = 0; k < u->n; k++) rg_bit_clear(f->flying, u->first + k);
    for (uint32_t i = 0; i < f->n_donors; i++)
        if (f->donors[i].cursor > u->first) f->donors[i].cursor = u->first;
    f->donors[u->donor].flying--;
    u->used = 0;
}

/* Nothing more is expected of it in this round. */
static void donor_out(rg_fetch_t *f, uint32_t at, int lost) {
    rg_donor_t *d = &f->donors[at];
    if (d->phase == RG_DONOR_OUT) return;
    for (uint32_t k = 0; k < RG_FETCH_UNITS; k++)
        if (f->units[k].used && f->units[k].donor == at) unit_back(f, &f->units[k]);
    if (lost && d->gave) f->r.retries++;
    d->phase = RG_DONOR_OUT;
}

static void donor_forget_list(rg_donor_t *d) {
    free(d->list);
    free(d->lacks);
    d->list = NULL;
    d->lacks = NULL;
    d->listed = 0;
}

static void ask_head(rg_fetch_t *f, uint32_t at) {
    rg_donor_t *d = &f->donors[at];
    const rg_question_t q = { .kind = RG_TALK_HEAD, .snapshot = d->snapshot, .layout = f->s->layout };
    donor_forget_list(d);
    d->phase = RG_DONOR_ASKED;
    d->cursor = d->flying = d->strikes = 0;
    if (!ask(f, at, &q, RG_TALK_HEAD_BYTES, 0)) donor_out(f, at, 1);
}

/* Everybody whose link is up, or some of them where there are many: who is asked first differs by member. */
static void round_begin(rg_fetch_t *f) {
    rg_group_t *g = f->g;
    if (!f->round++) f->start_ns = f->now;
    f->phase = RG_FETCH_HEADS;
    f->first_head_ns = 0;
    f->left = f->s->n_pieces; /* until somebody has said what they are */
    f->moved = 0;
    for (uint32_t i = 0; i < f->n_donors; i++) f->donors[i].phase = RG_DONOR_OUT;
    for (uint32_t k = 0, asked = 0; k < g->n_links && asked < RG_FETCH_DONORS; k++) {
        const rg_link_t *l = &g->links[(k + g->self_id) % g->n_links];
        if (!l->id || !l->up) continue;
        uint32_t at = 0;
        while (at < f->n_donors && f->donors[at].id != l->id) at++;
        for (uint32_t i = 0; at == RG_FETCH_DONORS && i < f->n_donors; i++) /* in the place of one whose link is gone */
            if (rg_link_of(g, f->donors[i].id) == UINT32_MAX) at = i;
        if (at == RG_FETCH_DONORS) continue;
        if (at == f->n_donors) f->n_donors++;
        if (f->donors[at].id != l->id) {
            donor_forget_list(&f->donors[at]);
            f->donors[at] = (rg_donor_t){ .id = l->id };
        }
        ask_head(f, at);
        asked++;
    }
}

static void take_head(rg_fetch_t *f, uint32_t at, const uint8_t *bytes) {
    rg_donor_t *d = &f->donors[at];
    rg_answer_t a;
    if (!rg_answer_get(&a, bytes) || a.n_pieces != f->s->n_pieces || a.bytes != f->s->bytes ||
        !rg_hash_equal(&a.layout, &f->s->layout)) {
        donor_out(f, at, 0);
        return;
    }
    d->phase = RG_DONOR_HAS;
    d->snapshot = a.snapshot;
    d->revision = a.revision;
    d->root = a.root;
    d->whole = a.whole;
    if (!f->first_head_ns) f->first_head_ns = f->now;
}

/* ---- Whose content it is to be ----------------------------------------------------------------------------------- */

/* Donors that have what the one at `at` has. */
static uint32_t holders(const rg_fetch_t *f, uint32_t at) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_donors; i++)
        n += f->donors[i].phase == RG_DONOR_HAS && rg_hash_equal(&f->donors[i].root, &f->donors[at].root);
    return n;
}

static int better(const rg_fetch_t *f, uint32_t a, uint32_t b) {
    const rg_donor_t *x = &f->donors[a], *y = &f->donors[b];
    uint32_t nx = holders(f, a), ny = holders(f, b);
    if (x->whole != y->whole) return x->whole > y->whole;
    if (f->rule == RG_STATE_NEWEST && x->revision != y->revision) return x->revision > y->revision;
    return nx != ny ? nx > ny : x->revision > y->revision;
}

static void take_list(rg_fetch_t *f, uint32_t at, const uint8_t *bytes);

/* From the one that was chosen, and from each whose content is another: it may have most of it all the same. A question
 * for no hashes at all would have no answer. */
static void ask_list(rg_fetch_t *f, uint32_t at) {
    rg_donor_t *d = &f->donors[at];
    uint32_t n = f->s->n_pieces - d->listed;
    if (n > RG_TALK_LIST) n = RG_TALK_LIST;
    if (!d->list) d->list = calloc(f->s->n_pieces + 1, sizeof *d->list);
    const rg_question_t q = { RG_TALK_LIST_OF, d->snapshot, d->listed, n, 0, 0, f->s->layout };
    d->phase = RG_DONOR_LISTS;
    if (d->list && !n) take_list(f, at, d->list->b);
    else if (!d->list || !ask(f, at, &q, n * (uint32_t)sizeof(rg_hash_t), 0)) donor_out(f, at, 1);
}

static int choose(rg_fetch_t *f) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < f->n_donors; i++)
        if (f->donors[i].phase == RG_DONOR_HAS && (best == UINT32_MAX || better(f, i, best))) best = i;
    if (best == UINT32_MAX) return 0;
    f->target_donor = best;
    f->target_root = f->donors[best].root;
    f->target_revision = f->donors[best].revision;
    f->target_whole = f->donors[best].whole != 0;
    f->phase = RG_FETCH_LIST;
    ask_list(f, best);
    return 1;
}

/* 1: these are the hashes that its answer stood for. */
static int list_fits(rg_fetch_t *f, const rg_donor_t *d) {
    rg_hash_groups(d->list, f->s->n_pieces, f->groups);
    rg_hash_t root = rg_hash_root(&f->s->layout, f->groups, rg_piece_groups(f->s->n_pieces));
    return rg_hash_equal(&root, &d->root);
}

static void pieces_begin(rg_fetch_t *f, const rg_donor_t *d) {
    uint32_t n = f->s->n_pieces;
    f->phase = RG_FETCH_PIECES;
    if (f->aside) f->complete = 0; /* what is aside is not this content before the round has ended */
    memcpy(f->target, d->list, n * sizeof *f->target);
    memset(f->flying, 0, (n / 64 + 1) * sizeof *f->flying);
    memset(f->checked, 0, (n / 64 + 1) * sizeof *f->checked);
    memset(f->need, 0, (n / 64 + 1) * sizeof *f->need);
    for (uint32_t p = 0; p < n; p++) rg_bit_set(f->need, p);
    f->left = n;
    f->low = 0;
    f->moved = 0;
}

static void take_list(rg_fetch_t *f, uint32_t at, const uint8_t *bytes) {
    rg_donor_t *d = &f->donors[at];
    uint32_t n = f->s->n_pieces - d->listed;
    if (n > RG_TALK_LIST) n = RG_TALK_LIST;
    memcpy(d->list + d->listed, bytes, n * sizeof *d->list);
    d->listed += n;
    f->r.compare_bytes += n * sizeof *d->list;
    if (d->listed < f->s->n_pieces) {
        ask_list(f, at);
        return;
    }
    if (!list_fits(f, d)) {
        f->r.rejected++;
        donor_out(f, at, 0);
        return;
    }
    d->phase = RG_DONOR_GIVES;
    if (f->phase == RG_FETCH_LIST && at == f->target_donor) pieces_begin(f, d);
}

/* ---- What is here ------------------------------------------------------------------------------------------------ */

static void done_with(rg_fetch_t *f, uint32_t p) {
    if (!rg_bit(f->need, p)) return;
    rg_bit_clear(f->need, p);
    f->left--;
    while (f->low < f->s->n_pieces && !rg_bit(f->need, f->low)) f->low++;
}

/* Looks once at each piece whether its content is here. 0: it is not. */
static int here(rg_fetch_t *f, uint32_t p) {
    static const rg_hash_t none;
    rg_state_t *s = f->s;
    rg_bit_set(f->checked, p);
    if (rg_hash_equal(&f->target[p], &none)) { /* nobody could say what it is; it is not fetched */
        f->skipped++;
        return 1;
    }
    if (rg_bit(s->dirty, p)) {
        rg_piece_t piece = rg_state_piece(s, p);
        s->hashes[p] = rg_hash_of(piece.data, piece.bytes);
        rg_bit_clear(s->dirty, p);
        f->budget = f->budget > piece.bytes ? f->budget - piece.bytes : 0;
    }
    if (f->aside && f->aside[p] && rg_hash_equal(&f->aside[p]->hash, &f->target[p])) return 1;
    if (!rg_hash_equal(&s->hashes[p], &f->target[p])) return 0;
    if (f->aside && f->aside[p]) { /* an earlier round wanted another content */
        f->aside_bytes -= f->aside[p]->bytes;
        free(f->aside[p]);
        f->aside[p] = NULL;
    }
    return 1;
}

static int keep(rg_fetch_t *f, uint32_t p, const uint8_t *data) {
    rg_state_t *s = f->s;
    rg_piece_t piece = rg_state_piece(s, p);
    f->complete = 0; /* no more what it was, and not yet what it is to be */
    if (!f->aside) {
        s->mixed = 1;
        memcpy(piece.data, data, piece.bytes);
        s->hashes[p] = f->target[p];
        rg_bit_clear(s->dirty, p);
        f->r.changed = 1;
        return 1;
    }
    if (!f->aside[p]) {
        f->aside[p] = malloc(sizeof **f->aside + piece.bytes);
        if (!f->aside[p]) return 0;
        f->aside[p]->bytes = piece.bytes;
        f->aside_bytes += piece.bytes;
    }
    f->aside[p]->hash = f->target[p];
    memcpy(f->aside[p]->data, data, piece.bytes);
    return 1;
}

/* ---- Pieces ------------------------------------------------------------------------------------------------------ */

static int donor_has(const rg_fetch_t *f, const rg_donor_t *d, uint32_t p) {
    if (d->lacks && rg_bit(d->lacks, p)) return 0;
    return !d->list || rg_hash_equal(&d->list[p], &f->target[p]);
}

/* The next pieces, one after the other, that this donor can give, as much as one answer takes. 0: none, for now. */
static uint32_t next_pieces(rg_fetch_t *f, rg_donor_t *d, uint32_t *first, uint32_t *bytes) {
    uint32_t n = 0;
    *bytes = 0;
    for (uint32_t p = d->cursor; p < f->s->n_pieces && f->budget; p++) {
        int open = rg_bit(f->need, p) && !rg_bit(f->flying, p);
        if (open && !rg_bit(f->checked, p) && here(f, p)) {
            done_with(f, p);
            open = 0;
        }
        uint32_t size = open ? rg_state_piece(f->s, p).bytes : 0;
        int takes = open && donor_has(f, d, p) && *bytes + size <= RG_TALK_UNIT;
        if (n && !takes) break;
        if (!n) d->cursor = p; /* nothing for this donor before it */
        if (!takes) continue;
        if (!n) *first = p;
        n++;
        *bytes += size;
    }
    if (n) d->cursor = *first + n;
    return n;
}

static int ask_pieces(rg_fetch_t *f, uint32_t at) {
    rg_donor_t *d = &f->donors[at];
    uint32_t k = 0, first = 0, bytes = 0;
    while (k < RG_FETCH_UNITS && f->units[k].used) k++;
    if (k == RG_FETCH_UNITS) return 0;
    uint32_t n = next_pieces(f, d, &first, &bytes);
    if (!n) return 0;
    if (f->aside && f->side_limit && f->aside_bytes + bytes > f->side_limit) {
        f->full = 1;
        return 0;
    }
    rg_unit_t *u = &f->units[k];
    *u = (rg_unit_t){ .used = 1, .donor = at, .first = first, .n = n, .bytes = bytes, .turn = u->turn + 1 };
    for (uint32_t i = 0; i < n; i++) rg_bit_set(f->flying, first + i);
    d->flying++;
    const rg_question_t q = { RG_TALK_PIECES, d->snapshot, first, n, bytes, f->low, f->s->layout };
    if (ask(f, at, &q, bytes, k)) return 1;
    donor_out(f, at, 1);
    return 0;
}

/* It could not give these: they were overwritten there. */
static void note_lack(rg_fetch_t *f, rg_donor_t *d, const rg_unit_t *u) {
    if (!d->lacks) d->lacks = calloc(f->s->n_pieces / 64 + 1, sizeof *d->lacks);
    if (!d->lacks) d->strikes = RG_FETCH_STRIKES;
    for (uint32_t k = 0; d->lacks && k < u->n; k++) rg_bit_set(d->lacks, u->first + k);
}

static void take_pieces(rg_fetch_t *f, uint32_t at, uint32_t unit, const uint8_t *bytes) {
    rg_donor_t *d = &f->donors[at];
    rg_unit_t u = f->units[unit];
    unit_back(f, &f->units[unit]);
    if (!bytes) {
        note_lack(f, d, &u);
        return;
    }
    for (uint32_t k = 0; k < u.n; k++) {
        uint32_t p = u.first + k, size = rg_state_piece(f->s, p).bytes;
        rg_hash_t hash = rg_hash_of(bytes, size);
        f->r.pieces_received++;
        f->r.bytes_received += size;
        if (!rg_hash_equal(&hash, &f->target[p])) {
            f->r.rejected++;
            d->strikes++;
        } else if (!keep(f, p, bytes)) {
            f->full = 1;
        } else {
            done_with(f, p);
            f->moved++;
            f->r.holders += !d->gave;
            d->gave = 1;
        }
        bytes += size;
    }
    if (d->strikes >= RG_FETCH_STRIKES) donor_out(f, at, 0);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

static void on_answer(void *user, uint64_t cookie, const uint8_t *bytes) {
    rg_fetch_t *f = user;
    rg_talk_t kind = (rg_talk_t)(cookie >> 56);
    uint32_t at = (uint32_t)(cookie >> 16 & 0xffff), unit = (uint32_t)(cookie & 0xffff);
    f->now = rg_os_now_ns();
    if (at >= f->n_donors || unit >= RG_FETCH_UNITS || cookie != cookie_of(f, kind, at, unit)) return;
    rg_donor_t *d = &f->donors[at];
    d->asked_ns = f->now;
    int lost = rg_link_of(f->g, d->id) == UINT32_MAX || !f->g->links[rg_link_of(f->g, d->id)].up;
    if (bytes && (kind != RG_TALK_PIECES || f->units[unit].used)) f->progress_ns = f->now;
    if (kind == RG_TALK_PIECES) {
        if (!f->units[unit].used || f->units[unit].donor != at) return;
        if (!bytes && lost) donor_out(f, at, 1);
        else take_pieces(f, at, unit, bytes);
    } else if (!bytes) {
        donor_out(f, at, lost);
    } else if (kind == RG_TALK_HEAD && d->phase == RG_DONOR_ASKED) {
        f->r.compare_bytes += RG_TALK_HEAD_BYTES;
        take_head(f, at, bytes);
    } else if (kind == RG_TALK_LIST_OF && d->phase == RG_DONOR_LISTS) {
        take_list(f, at, bytes);
    }
}

/* ---- The order of things ----------------------------------------------------------------------------------------- */

static uint32_t donors_in(const rg_fetch_t *f, rg_donor_phase_t phase) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_donors; i++) n += f->donors[i].phase == phase;
    return n;
}

static void leave_out_the_deaf(rg_fetch_t *f) {
    for (uint32_t i = 0; i < f->n_donors; i++) {
        const rg_donor_t *d = &f->donors[i];
        uint64_t limit = d->phase == RG_DONOR_ASKED                     ? HEAD_NS
                         : d->phase == RG_DONOR_LISTS || d->flying != 0 ? DEAF_NS
                                                                        : UINT64_MAX;
        uint32_t link = rg_link_of(f->g, d->id);
        if (d->phase == RG_DONOR_OUT) continue;
        if (link == UINT32_MAX || !f->g->links[link].up || (limit != UINT64_MAX && f->now - d->asked_ns > limit))
            donor_out(f, i, 1);
    }
}

/* When this round has got what it can get: another one, for what has changed since, while it pays. */
static void round_end(rg_fetch_t *f) {
    int whole = f->left == 0 && !f->skipped && f->target_whole;
    f->complete = whole || (f->complete && !f->aside); /* nothing was changed since it was */
    if (whole) f->complete_revision = f->target_revision;
    uint32_t few = f->s->n_pieces / 256 + 2, before = f->moved_before;
    int more = f->round < RG_FETCH_ROUNDS && !f->full;
    if (f->left == 0) more = more && f->moved > few && (f->round == 1 || f->moved < before - before / 8);
    else more = more && f->moved > 0; /* somebody is lost, or has written over it; there may be others */
    f->moved_before = f->moved;
    f->skipped = 0;
    if (!more && !f->ready) f->r.total_ns = f->now - f->start_ns;
    f->ready |= !more;
    f->again_ns = f->now + AGAIN_NS;
    if (more && !f->ready) round_begin(f);
    else f->phase = whole && !f->aside ? RG_FETCH_RESTS : RG_FETCH_OVER;
}

/* Members whose heads came late, or whose content is not the one that was chosen, may help all the same. */
static void engage(rg_fetch_t *f) {
    for (uint32_t i = 0; i < f->n_donors; i++) {
        if (f->donors[i].phase != RG_DONOR_HAS) continue;
        if (rg_hash_equal(&f->donors[i].root, &f->target_root)) f->donors[i].phase = RG_DONOR_GIVES;
        else ask_list(f, i);
    }
}

static void pump_pieces(rg_fetch_t *f) {
    engage(f);
    uint32_t gives = donors_in(f, RG_DONOR_GIVES), window = gives ? RG_FETCH_UNITS / gives : 0, asked = 1;
    if (window > RG_FETCH_WINDOW) window = RG_FETCH_WINDOW;
    if (window < 2) window = 2;
    f->budget = RG_FETCH_BUDGET;
    while (asked && f->left && !f->full && f->budget) {
        asked = 0;
        for (uint32_t i = 0; i < f->n_donors; i++)
            if (f->donors[i].phase == RG_DONOR_GIVES && f->donors[i].flying < window)
                asked += (uint32_t)ask_pieces(f, i);
    }
    uint32_t flying = 0;
    for (uint32_t i = 0; i < f->n_donors; i++) flying += f->donors[i].flying;
    if (flying || !f->budget) return;
    if (f->left == 0 || f->full || !donors_in(f, RG_DONOR_LISTS)) round_end(f);
}

static int pump(void *user, rg_group_t *g, uint64_t now) {
    rg_fetch_t *f = user;
    f->g = g;
    f->now = now;
    if (f->phase == RG_FETCH_OVER) return 1;
    int holding = rg_member_holding(g->core);
    if (holding && !f->known_ns) f->known_ns = now;
    if (!f->known_ns || (!holding && !f->ready)) return 0; /* a candidate whose connection broke begins anew */
    leave_out_the_deaf(f);
    if (f->phase == RG_FETCH_RESTS && now >= f->again_ns) round_begin(f);
    if (f->phase == RG_FETCH_WAITS && (holding == 2 || now - f->known_ns > LINKS_NS)) round_begin(f);
    if (f->phase == RG_FETCH_HEADS) {
        uint32_t has = donors_in(f, RG_DONOR_HAS), open = donors_in(f, RG_DONOR_ASKED);
        if (!open || (has && now - f->first_head_ns > HEADS_NS))
            if (!choose(f)) f->phase = RG_FETCH_OVER;
    }
    if (f->phase == RG_FETCH_LIST && f->donors[f->target_donor].phase == RG_DONOR_OUT)
        if (!choose(f)) round_end(f);
    if (f->phase == RG_FETCH_PIECES) pump_pieces(f);
    return f->phase == RG_FETCH_OVER || f->ready;
}

/* What was kept aside goes to its place if it is a whole content. */
static void commit(rg_fetch_t *f) {
    rg_state_t *s = f->s;
    for (uint32_t p = 0; f->aside && f->complete && p < s->n_pieces; p++) {
        if (!f->aside[p] || !rg_hash_equal(&f->aside[p]->hash, &f->target[p])) continue;
        memcpy(rg_state_piece(s, p).data, f->aside[p]->data, f->aside[p]->bytes);
        s->hashes[p] = f->aside[p]->hash;
        rg_bit_clear(s->dirty, p);
        f->r.changed = 1;
    }
    if (f->r.changed) { /* no member of the group yet, it must not outvote those who have gone on since */
        s->revision = 0;
        s->mixed = !f->complete;
    }
    f->r.revision = f->complete ? f->complete_revision : 0;
}

static void end(void *user, rg_group_t *g) {
    rg_fetch_t *f = user;
    for (uint32_t i = 0; g->phase != RG_PHASE_OVER && i < f->n_donors; i++) {
        const rg_question_t q = { .kind = RG_TALK_END, .layout = f->s->layout };
        if (f->donors[i].snapshot) (void)ask(f, i, &q, 0, 0);
    }
    rg_side_forget(g, f);
    commit(f);
    if (f->start_ns && !f->r.total_ns) f->r.total_ns = rg_os_now_ns() - f->start_ns;
    RG_LOGF(&g->log, RG_LOG_INFO, "state: fetched %llu pieces from %u members in %u rounds: %s",
            (unsigned long long)f->r.pieces_received, f->r.holders, f->round,
            f->complete ? "whole" : "the rest is left to rg_state_sync");
}

/* ---- The call ---------------------------------------------------------------------------------------------------- */

void rg_fetch_free(rg_fetch_t *f) {
    if (!f) return;
    for (uint32_t i = 0; i < f->n_donors; i++) donor_forget_list(&f->donors[i]);
    for (uint32_t p = 0; f->aside && p < f->s->n_pieces; p++) free(f->aside[p]);
    void *all[] = { f->target, f->groups, f->need, f->flying, f->checked, f->aside, f };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

rg_fetch_t *rg_fetch_new(rg_state_t *s, const rg_state_opts_t *o) {
    rg_fetch_t *f = calloc(1, sizeof *f);
    size_t n = s->n_pieces, words = n / 64 + 1;
    if (!f) return NULL;
    f->s = s;
    f->rule = o->rule;
    f->side_limit = o->side_bytes;
    f->r = (rg_state_result_t)RG_STATE_RESULT_INIT;
    f->target = calloc(n + 1, sizeof *f->target);
    f->groups = calloc(rg_piece_groups(s->n_pieces) + 1, sizeof *f->groups);
    f->need = calloc(words, sizeof *f->need);
    f->flying = calloc(words, sizeof *f->flying);
    f->checked = calloc(words, sizeof *f->checked);
    int in_place = o->in_place == RG_ON || (o->in_place == RG_SWITCH_DEFAULT && rg_state_revision(s) == 0);
    if (!in_place) f->aside = calloc(n + 1, sizeof *f->aside);
    if (f->target && f->groups && f->need && f->flying && f->checked && (in_place || f->aside)) return f;
    rg_fetch_free(f);
    return NULL;
}

rg_join_first_t rg_fetch_errand(rg_fetch_t *f) { return (rg_join_first_t){ f, pump, end, &f->progress_ns }; }

rg_status_t rg_state_join(const rg_config_t *config, rg_state_t *s, const rg_state_opts_t *opts, rg_group_t **out,
                          rg_state_result_t *result, rg_error_t *err) {
    rg_state_opts_t o;
    if (!out || !s) return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_join: %s is NULL", out ? "state" : "out");
    *out = NULL;
    rg_status_t st = rg_struct_check(result, RG_STATE_RESULT_SIZE_FIRST, "rg_state_result", err);
    if (st == RG_OK) st = rg_state_opts_resolve(opts, &o, err);
    if (st != RG_OK) return st;
    if (o.role == RG_STATE_SEND_ONLY)
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "rg_state_join: a member of RG_STATE_SEND_ONLY takes nothing over; use rg_group_join");
    if (s->serve) return rg_fail(err, RG_ERR_INVALID, 0, "rg_state_join: the state is served in another group");
    rg_fetch_t *f = rg_fetch_new(s, &o);
    if (!f) return rg_fail(err, RG_ERR_NOMEM, 0, "rg_state_join: no memory to fetch a state of %u pieces", s->n_pieces);
    const rg_join_first_t first = rg_fetch_errand(f);
    st = rg_join_with(config, &first, out, err);
    f->r.status = st;
    rg_struct_out(result, &f->r, sizeof f->r, RG_STATE_RESULT_SIZE_FIRST);
    rg_fetch_free(f);
    return st;
}
