/* coord_tally.c: adds up, operation by operation, what the members of the new view have reported. It relies on reports
 * that have been proved to be whole. The work grows with what the reports say and not with members times operations:
 * a thousand messages between pairs concern two thousand lines, not a million. Section 5 of docs/protocol.md. */
#include "core/coord.h"

#include <string.h>

#define HASH_MASK (4 * RG_TALLY_MAX - 1)

/* ---- Tables ---------------------------------------------------------------------------------------------------- */

static uint32_t tally_cell(const rg_coord_t *c, rg_op_key_t key) {
    uint64_t h = key.gen * 0x9e3779b97f4a7c15u ^ key.op * 0xc2b2ae3d27d4eb4fu ^ key.set * 0x165667b19e3779f9u;
    uint32_t i = (uint32_t)(h >> 40) & HASH_MASK;
    while (c->tally_hash[i] && rg_key_cmp(c->tally[c->tally_hash[i] - 1].key, key) != 0) i = (i + 1) & HASH_MASK;
    return i;
}

static uint32_t stream_cell(const rg_coord_t *c, uint64_t set, uint32_t tag) {
    uint32_t i = (uint32_t)((set * 0x9e3779b97f4a7c15u ^ tag * 0xc2b2ae3d27d4eb4fu) >> 40) & HASH_MASK;
    for (; c->stream_hash[i]; i = (i + 1) & HASH_MASK) {
        const rg_op_key_t *k = &c->tally[c->stream_hash[i] - 1].key;
        if (k->set == set && k->op >> 32 == tag) break;
    }
    return i;
}

static uint8_t *set_map(const rg_coord_t *c, const rg_tally_set_t *s) { return c->set_maps + s->map; }

static rg_tally_set_t *set_add(rg_coord_t *c, uint64_t id) {
    int64_t at = rg_idmap_get(&c->set_of, id);
    if (at >= 0) return &c->set[at];
    if (c->n_sets == RG_SETS_IN_VIEW) return NULL;
    rg_tally_set_t *s = &c->set[c->n_sets];
    *s = (rg_tally_set_t){ .id = id, .map = c->n_sets * 2 * c->map_len };
    memset(set_map(c, s), 0, c->map_len);
    rg_idmap_put(&c->set_of, id, c->n_sets++);
    return s;
}

/* Only the cells that were used are emptied: the tables are made for the worst round, not for the usual one. */
static void tally_clear(rg_coord_t *c) {
    for (uint32_t k = c->n_tally; k-- > 0;) {
        const rg_tally_t *t = &c->tally[k];
        c->tally_hash[t->cell] = 0;
        c->stream_hash[t->stream_cell] = 0;
    }
    for (uint32_t i = 0; i < c->n_sets; i++) rg_idmap_del(&c->set_of, c->set[i].id);
    c->n_tally = c->n_untagged = c->n_sets = 0;
}

static rg_tally_t *tally_add(rg_coord_t *c, const rg_op_report_t *o, const rg_seat_t *s) {
    uint32_t cell = tally_cell(c, o->key);
    rg_tally_set_t *set = rg_set_is_group(o->key.set) ? set_add(c, o->key.set) : NULL;
    if (rg_set_is_group(o->key.set) && !set) return NULL;
    if (set && !set->defined) rg_map_set(set_map(c, set), s->rank);
    if (c->tally_hash[cell]) return &c->tally[c->tally_hash[cell] - 1];
    int tagged = rg_key_tagged(o->key);
    if (c->n_tally == RG_TALLY_MAX || (!tagged && c->n_untagged == RG_UNTAGGED_MAX)) return NULL;
    rg_tally_t *t = &c->tally[c->n_tally++];
    memset(t, 0, sizeof *t);
    t->key = o->key;
    t->sig = o->sig;
    t->cell = cell;
    t->set_at = set ? (uint16_t)(set - c->set) : 0;
    c->tally_hash[cell] = (uint16_t)c->n_tally;
    t->stream_cell = stream_cell(c, o->key.set, (uint32_t)(o->key.op >> 32));
    if (tagged) {
        t->stream_next = c->stream_hash[t->stream_cell];
        c->stream_hash[t->stream_cell] = (uint16_t)c->n_tally;
    } else {
        t->map = c->n_untagged * 2 * c->map_len;
        memset(c->maps + t->map, 0, 2 * c->map_len);
        c->untagged[c->n_untagged++] = (uint16_t)(c->n_tally - 1);
    }
    return t;
}

int rg_tally_has(const rg_coord_t *c, const rg_tally_t *t, const rg_seat_t *s) {
    if (s->m.first_gen > t->key.gen) return 0;
    if (t->key.set == RG_SET_ALL) return 1;
    if (rg_set_is_pair(t->key.set)) return rg_pair_has(t->key.set, s->m.id);
    return rg_map_bit(set_map(c, &c->set[t->set_at]), s->rank);
}

static uint32_t participants(const rg_coord_t *c, const rg_tally_t *t, uint32_t n) {
    uint32_t count = 0;
    if (t->key.set == RG_SET_ALL) { /* newcomers are last */
        while (n && c->seats[c->next_rank[n - 1]].m.first_gen > t->key.gen) n--;
        return n;
    }
    if (rg_set_is_pair(t->key.set)) {
        uint64_t ids[2] = { rg_pair_from(t->key.set), rg_pair_to(t->key.set) };
        for (int i = 0; i < (ids[0] == ids[1] ? 1 : 2); i++) {
            const rg_seat_t *s = rg_seat_by_id(c, ids[i]);
            count += s && s->state == RG_SEAT_MEMBER && !s->suspect && rg_tally_has(c, t, s);
        }
        return count;
    }
    for (uint32_t i = 0; i < n; i++) count += (uint32_t)rg_tally_has(c, t, &c->seats[c->next_rank[i]]);
    return count;
}

/* ---- One report ------------------------------------------------------------------------------------------------ */

static rg_r_t report_open(const rg_coord_t *c, const rg_seat_t *s, rg_report_head_t *h) {
    rg_r_t r = { c->reports + s->report_off, s->report_len, 0, 0 };
    uint16_t version;
    rg_r_header(&r, &version);
    rg_r_report_head(&r, h);
    return r;
}

static void add_sig(rg_tally_t *t, const rg_op_report_t *o, const rg_seat_t *s) {
    if (!t->have_sig) {
        t->have_sig = 1;
        t->sig = o->sig;
        t->sig_rank = s->rank;
        t->sig_id = s->m.id;
    }
    if (rg_sig_same(&t->sig, &o->sig)) {
        t->like_sig++;
        return;
    }
    if (!t->mixed) {
        t->mixed = 1;
        t->other = o->sig;
        t->other_rank = s->rank;
        t->other_id = s->m.id;
    }
    t->like_other++;
}

static void touch(rg_coord_t *c, rg_tally_t *t, uint8_t state) {
    t->state = state;
    if (t->touched) return;
    t->touched = 1;
    c->touched[c->n_touched++] = (uint16_t)(t - c->tally);
}

/* What the streams say: everything below is over, unless an entry says otherwise. */
static void add_passed(rg_coord_t *c, const rg_report_head_t *h, rg_r_t *r) {
    for (uint32_t i = 0; i < c->n_untagged; i++) {
        rg_tally_t *t = &c->tally[c->untagged[i]];
        if (t->key.gen != h->gen ? t->key.gen < h->gen : t->key.op < h->next0) touch(c, t, RG_OPS_DONE);
    }
    for (uint32_t k = 0; h->floor && k < c->n_tally; k++)
        if (c->tally[k].key.gen < h->floor && rg_key_tagged(c->tally[k].key) && !rg_set_is_group(c->tally[k].key.set))
            touch(c, &c->tally[k], RG_OPS_DONE);
    uint32_t n = rg_r_u32(r);
    for (uint32_t i = 0; i < n; i++) {
        rg_stream_report_t st;
        rg_r_stream_report(r, &st);
        for (uint16_t k = c->stream_hash[stream_cell(c, st.set, st.tag)]; k; k = c->tally[k - 1].stream_next) {
            rg_tally_t *t = &c->tally[k - 1];
            if (t->key.gen != st.gen ? t->key.gen < st.gen : (uint32_t)t->key.op < st.next) touch(c, t, RG_OPS_DONE);
        }
    }
}

static void add_entry(rg_coord_t *c, const rg_op_report_t *o, const rg_seat_t *s, uint32_t new_rank) {
    rg_tally_t *t = &c->tally[c->tally_hash[tally_cell(c, o->key)] - 1u];
    if (!rg_tally_has(c, t, s)) return;
    touch(c, t, o->state);
    if (!t->numbering) t->numbering = o->numbering;
    uint8_t *have = c->maps + t->map;
    switch (o->state) {
    case RG_OPS_RUNNING: add_sig(t, o, s); break;
    case RG_OPS_COMPLETE:
        add_sig(t, o, s);
        if (!t->kept) t->computed = o->computed;
        if (!rg_key_tagged(t->key)) rg_map_set(have, new_rank);
        break;
    case RG_OPS_KEPT:
        add_sig(t, o, s);
        t->computed = o->computed;
        if (rg_key_tagged(t->key)) break;
        if (!t->kept) t->kept_sig = o->sig;
        rg_map_set(have, new_rank);
        rg_map_set(have + c->map_len, new_rank);
        break;
    case RG_OPS_ABORTED:
        if (t->status) break;
        t->status = o->status < 0 ? o->status : RG_ERR_ABORTED;
        t->blame = o->blame;
        memcpy(t->text, o->text, sizeof t->text);
        break;
    default: break;
    }
}

static void add_state(rg_coord_t *c, rg_tally_t *t, const rg_seat_t *s, uint32_t new_rank) {
    switch (t->state) {
    case RG_OPS_RUNNING: t->running++; break;
    case RG_OPS_COMPLETE: t->complete++; break;
    case RG_OPS_KEPT: t->kept++; break;
    case RG_OPS_ABORTED: t->aborted++; break;
    case RG_OPS_DONE:
        t->done++;
        t->done_rank = s->rank;
        t->done_id = s->m.id;
        if (!rg_key_tagged(t->key)) rg_map_set(c->maps + t->map, new_rank);
        break;
    default: t->marked++;
    }
}

static void add_report(rg_coord_t *c, const rg_seat_t *s, uint32_t new_rank) {
    rg_report_head_t h;
    rg_op_report_t o;
    rg_r_t r = report_open(c, s, &h), entries = r;
    c->n_touched = 0;
    uint32_t n = rg_r_u32(&r);
    for (uint32_t i = 0; i < n; i++) rg_r_op_report(&r, &o);
    add_passed(c, &h, &r);
    n = rg_r_u32(&entries);
    for (uint32_t i = 0; i < n; i++) {
        rg_r_op_report(&entries, &o);
        add_entry(c, &o, s, new_rank);
    }
    for (uint32_t i = 0; i < c->n_touched; i++) {
        rg_tally_t *t = &c->tally[c->touched[i]];
        t->touched = 0;
        if (rg_tally_has(c, t, s)) add_state(c, t, s, new_rank);
    }
}

/* ---- All reports ----------------------------------------------------------------------------------------------- */

/* Who says who is in a sub-group. Two that say different things use one number for two sub-groups. */
static void add_sets(rg_coord_t *c, const rg_seat_t *s, rg_r_t *r) {
    uint32_t n = rg_r_u32(r), len = (c->n + 7) / 8;
    for (uint32_t i = 0; i < n; i++) {
        rg_set_report_t d;
        rg_r_set_report(r, &d);
        int64_t at = rg_idmap_get(&c->set_of, d.set);
        if (at < 0) continue;
        rg_tally_set_t *set = &c->set[at];
        uint8_t *map = set_map(c, set);
        if (!set->defined) {
            memcpy(map, d.map, len);
            set->defined = 1;
            set->hash = d.hash;
            set->definer = s->rank;
        } else if (set->hash != d.hash) {
            if (!set->conflict) set->other = s->rank;
            set->conflict = 1;
            for (uint32_t k = 0; k < len; k++) map[k] |= d.map[k];
        }
    }
}

static int collect(rg_coord_t *c, const rg_seat_t *s) {
    rg_report_head_t h;
    rg_op_report_t o;
    rg_stream_report_t st;
    rg_r_t r = report_open(c, s, &h);
    uint32_t n = rg_r_u32(&r);
    for (uint32_t k = 0; k < n; k++) {
        rg_r_op_report(&r, &o);
        if (!tally_add(c, &o, s)) return 0;
    }
    n = rg_r_u32(&r);
    for (uint32_t k = 0; k < n; k++) rg_r_stream_report(&r, &st);
    add_sets(c, s, &r);
    return 1;
}

int rg_coord_tally(rg_coord_t *c, uint32_t n, uint32_t *bad) {
    tally_clear(c);
    for (uint32_t i = 0; i < n; i++) {
        if (collect(c, &c->seats[c->next_rank[i]])) continue;
        *bad = i;
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) add_report(c, &c->seats[c->next_rank[i]], i);
    for (uint32_t k = 0; k < c->n_tally; k++) {
        rg_tally_t *t = &c->tally[k];
        uint32_t told = t->running + t->complete + t->kept + t->aborted + t->done, all = participants(c, t, n);
        t->not_started = all > told ? all - told : 0;
    }
    return 1;
}
