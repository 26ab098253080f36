/* coord_decide.c: what becomes of each operation after a fault (rules D of docs/protocol.md). It relies on
 * coord_tally.c, which has added up the reports of exactly the members of the new view: whoever is not in it decides
 * nothing. Each operation is decided on its own participants alone. The same reports always give the same decisions. */
#include "core/coord.h"

#include <string.h>

/* ---- Texts ----------------------------------------------------------------------------------------------------- */

/* The core stands on its own, so it has the names of kinds here; src/sched has them for all others. */
static const char *kind_word(uint8_t kind) {
    static const char *const words[] = { "all_reduce", "broadcast", "barrier", "all_gather", "reduce_scatter",
                                         "reduce",     "gather",    "scatter", "all_to_all", "send/recv" };
    return kind < sizeof words / sizeof words[0] ? words[kind] : "unknown operation";
}

static int kind_combines(uint8_t kind) {
    return kind == RG_KIND_ALL_REDUCE || kind == RG_KIND_REDUCE || kind == RG_KIND_REDUCE_SCATTER;
}

static void sig_words(const rg_coord_t *c, rg_text_t *t, const rg_op_sig_t *s, const rg_op_sig_t *beside) {
    rg_text_str(t, kind_word(s->kind));
    if (s->kind != RG_KIND_BARRIER) {
        rg_text_str(t, " ");
        rg_text_str(t, rg_dtype_name((rg_dtype_t)s->dtype));
        if (kind_combines(s->kind)) {
            rg_text_str(t, " ");
            rg_text_str(t, rg_op_name((rg_op_t)s->op));
        }
        rg_text_str(t, " count ");
        rg_text_u64(t, s->count);
    }
    if (s->root) {
        const rg_seat_t *root = rg_seat_by_id(c, s->root);
        rg_text_str(t, root ? " root rank " : " root member ");
        rg_text_u64(t, root ? root->rank : s->root);
    }
    if (s->on_fault != beside->on_fault)
        rg_text_str(t, s->on_fault == RG_RETURN ? " on_fault return" : " on_fault retry");
    if (s->rule_l != beside->rule_l) rg_text_str(t, s->rule_l ? " (large)" : " (small)");
    if (s->variant != beside->variant) {
        rg_text_str(t, " settings ");
        rg_text_hex(t, s->variant);
    }
}

static void set_abort(rg_decision_t *d, rg_status_t status, uint64_t blame, const char *text) {
    d->verdict = RG_ABORT;
    d->status = status;
    d->blame = blame;
    d->text = (const uint8_t *)text;
    d->text_len = (uint16_t)rg_text_len(text, RG_CORE_TEXT_MAX - 1);
}

static void abort_mismatch(const rg_coord_t *c, const rg_tally_t *t, rg_decision_t *d, char *text) {
    rg_text_t x = rg_text_begin(text, RG_CORE_TEXT_MAX);
    rg_text_str(&x, "rank ");
    rg_text_u64(&x, t->sig_rank);
    rg_text_str(&x, ": ");
    sig_words(c, &x, &t->sig, &t->other);
    rg_text_str(&x, "; rank ");
    rg_text_u64(&x, t->other_rank);
    rg_text_str(&x, ": ");
    sig_words(c, &x, &t->other, &t->sig);
    set_abort(d, RG_ERR_MISMATCH, t->like_other > t->like_sig ? t->sig_id : t->other_id, text);
}

/* One number for two sub-groups: nothing can be decided, for it is not known whose operation it is. */
static void abort_conflict(const rg_tally_set_t *set, rg_decision_t *d, char *text) {
    rg_text_t x = rg_text_begin(text, RG_CORE_TEXT_MAX);
    rg_text_str(&x, "rank ");
    rg_text_u64(&x, set->definer);
    rg_text_str(&x, " and rank ");
    rg_text_u64(&x, set->other);
    rg_text_str(&x, " have different members in one sub-group: all must split the group in the same order");
    set_abort(d, RG_ERR_MISMATCH, 0, text);
}

/* Cannot be while all members call the same operations (D4): somebody is past this one without having shared in it. */
static void abort_passed(const rg_tally_t *t, rg_decision_t *d, char *text) {
    rg_text_t x = rg_text_begin(text, RG_CORE_TEXT_MAX);
    rg_text_str(&x, "rank ");
    rg_text_u64(&x, t->done_rank);
    rg_text_str(&x, " (member ");
    rg_text_u64(&x, t->done_id);
    rg_text_str(&x,
                ") has gone past this operation, which others have not finished: all members must call the same ones");
    set_abort(d, RG_ERR_MISMATCH, t->done_id, text);
}

static void abort_lost(const rg_seat_t *s, rg_decision_t *d, rg_status_t status, char *text) {
    rg_text_t x = rg_text_begin(text, RG_CORE_TEXT_MAX);
    if (status == RG_ERR_ROOT_LOST) rg_text_str(&x, "the root, ");
    rg_text_str(&x, "rank ");
    rg_text_u64(&x, s->rank);
    rg_text_str(&x, " (member ");
    rg_text_u64(&x, s->m.id);
    rg_text_str(&x, status == RG_ERR_ROOT_LOST ? "), was lost: " : ") was lost: ");
    rg_text_str(&x, s->cause);
    set_abort(d, status, s->m.id, text);
}

/* ---- The rules ------------------------------------------------------------------------------------------------- */

static const rg_seat_t *lost_participant(const rg_coord_t *c, const rg_tally_t *t) {
    for (uint32_t i = 0; i < c->n_lost; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[c->lost[i]]];
        if (rg_tally_has(c, t, s)) return s;
    }
    return NULL;
}

/* E9: what is left of a message whose other end is gone is known at this end alone. */
static int widowed(const rg_coord_t *c, uint64_t set) {
    if (!rg_set_is_pair(set)) return 0;
    const rg_seat_t *a = rg_seat_by_id(c, rg_pair_from(set)), *b = rg_seat_by_id(c, rg_pair_to(set));
    return !a || !b || a->state != RG_SEAT_MEMBER || b->state != RG_SEAT_MEMBER || a->suspect || b->suspect;
}

static const rg_request_rec_t *request_for(const rg_coord_t *c, rg_op_key_t key) {
    for (uint32_t i = 0; i < c->n_requests; i++)
        if (rg_key_cmp(c->requests[i].key, key) == 0) return &c->requests[i];
    return NULL;
}

/* D5: some participant has started it and nobody can have shown a result. */
static void restart_or_abort(const rg_coord_t *c, const rg_tally_t *t, rg_decision_t *d, char *text) {
    const rg_request_rec_t *q = request_for(c, t->key);
    const rg_seat_t *lost = lost_participant(c, t);
    const rg_seat_t *root = t->sig.root ? rg_seat_by_id(c, t->sig.root) : NULL;
    if (t->mixed && !(q && q->status == RG_ERR_PEER_LOST)) {
        abort_mismatch(c, t, d, text);
    } else if (q) { /* a call for a shape that there was before a loss looks different from that of who knows of it */
        set_abort(d, (rg_status_t)q->status, q->blame, q->text);
    } else if (root && root->suspect) {
        abort_lost(root, d, RG_ERR_ROOT_LOST, text);
    } else if (t->sig.root && (!root || root->state != RG_SEAT_MEMBER)) {
        set_abort(d, RG_ERR_ROOT_LOST, t->sig.root, "the root of this operation is not a member any more");
    } else if (lost && (t->sig.on_fault == RG_RETURN || rg_sig_shaped(&t->sig))) {
        abort_lost(lost, d, RG_ERR_PEER_LOST, text);
    } else {
        d->verdict = RG_RESTART;
    }
}

static void decide_one(const rg_coord_t *c, const rg_tally_t *t, rg_decision_t *d, char *text) {
    int group = rg_set_is_group(t->key.set), started = t->running || t->complete;
    memset(d, 0, sizeof *d);
    d->key = t->key;
    d->set_at = t->set_at;
    d->sig = t->kept ? t->kept_sig : t->sig;
    d->numbering = t->numbering;
    d->computed = t->computed;
    if (t->aborted) { /* D1 */
        if (!widowed(c, t->key.set)) set_abort(d, (rg_status_t)t->status, t->blame, t->text);
    } else if (widowed(c, t->key.set)) {
        return;
    } else if (group && c->set[t->set_at].conflict && started) {
        abort_conflict(&c->set[t->set_at], d, text);
    } else if (!t->not_started && !t->running) { /* D2 */
        if (t->mixed && !t->kept && !t->done) abort_mismatch(c, t, d, text);
        else if (t->kept || t->complete) d->verdict = RG_COMMIT;
    } else if (t->kept && !t->kept_sig.rule_l) { /* D3 */
        d->verdict = RG_FORWARD;
        d->map_len = (uint16_t)c->map_len;
        d->have = c->maps + t->map;
        d->donor = d->have + c->map_len;
    } else if (started || (t->marked && t->sig.root)) { /* D6: who is to start it has been told what its root means */
        if (t->done) abort_passed(t, d, text);          /* D4 */
        else restart_or_abort(c, t, d, text);           /* D5 */
    }
    /* D7: nobody has started it: other marks of earlier decisions have lost their reason. */
}

/* Sub-groups as ranks of the new view: whoever is not in one need not keep what was decided on it. */
static void write_sets(rg_coord_t *c, rg_w_t *w, uint32_t n) {
    uint16_t len = (uint16_t)((n + 7) / 8);
    rg_w_u32(w, c->n_sets);
    for (uint32_t k = 0; k < c->n_sets; k++) {
        const uint8_t *old = c->set_maps + c->set[k].map;
        uint8_t *map = c->set_maps + c->set[k].map + c->map_len;
        memset(map, 0, len);
        for (uint32_t i = 0; i < n; i++)
            if (rg_map_bit(old, c->seats[c->next_rank[i]].rank)) rg_map_set(map, i);
        rg_set_report_t s = { .set = c->set[k].id, .hash = c->set[k].hash, .map_len = len, .map = map };
        rg_w_set_report(w, &s);
    }
}

/* 0: more than a view can carry. A restart that no root ties to a view is what happens without a decision, so it is
 * not written: after most faults most operations of a large group are restarted. */
int rg_coord_write_decisions(rg_coord_t *c, rg_w_t *w, uint32_t n) {
    uint32_t count = 0;
    uint16_t map_len = (uint16_t)((n + 7) / 8);
    c->n_lost = 0;
    for (uint32_t i = 0; i < c->n; i++)
        if (c->seats[c->rank_seat[i]].suspect) c->lost[c->n_lost++] = i;
    write_sets(c, w, n);
    size_t at = w->len;
    rg_w_u32(w, 0);
    for (uint32_t k = 0; k < c->n_tally && count < RG_DECISIONS_MAX && !w->bad; k++) {
        rg_decision_t d;
        char text[RG_CORE_TEXT_MAX];
        decide_one(c, &c->tally[k], &d, text);
        if (!d.verdict || (d.verdict == RG_RESTART && !d.sig.root)) continue;
        if (d.verdict == RG_FORWARD) d.map_len = map_len;
        rg_w_decision(w, &d);
        count++;
    }
    rg_w_patch_u32(w, at, count);
    return !w->bad && count < RG_DECISIONS_MAX;
}
