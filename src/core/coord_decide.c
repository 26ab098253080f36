/* coord_decide.c: what becomes of each operation after a fault (rules D of docs/protocol.md). It relies on reports that
 * have been proved to be whole, from exactly the members of the new view: whoever is not in it decides nothing. The
 * same reports always give the same decisions. */
#include "core/coord.h"

#include <string.h>

#define NOT_PARTICIPANT 0xff

/* ---- Adding up the reports ------------------------------------------------------------------------------------- */

static uint32_t tally_cell(const rg_coord_t *c, rg_op_key_t key) {
    const uint32_t mask = 4 * RG_DECISIONS_MAX - 1;
    uint32_t i = (uint32_t)(((key.gen * 0x9e3779b97f4a7c15u) ^ (key.op * 0xc2b2ae3d27d4eb4fu)) >> 40) & mask;
    while (c->tally_hash[i] && rg_key_cmp(c->tally[c->tally_hash[i] - 1].key, key) != 0) i = (i + 1) & mask;
    return i;
}

static rg_tally_t *tally_add(rg_coord_t *c, const rg_op_report_t *o) {
    uint32_t cell = tally_cell(c, o->key);
    if (c->tally_hash[cell]) return &c->tally[c->tally_hash[cell] - 1];
    if (c->n_tally == RG_DECISIONS_MAX) return NULL;
    rg_tally_t *t = &c->tally[c->n_tally++];
    memset(t, 0, sizeof *t);
    t->key = o->key;
    t->sig = o->sig;
    t->map = (c->n_tally - 1) * 2 * c->map_len;
    memset(c->maps + t->map, 0, 2 * c->map_len);
    c->tally_hash[cell] = (uint16_t)c->n_tally;
    return t;
}

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

static void add_entry(rg_coord_t *c, const rg_op_report_t *o, const rg_seat_t *s, uint32_t new_rank) {
    uint32_t k = c->tally_hash[tally_cell(c, o->key)] - 1u;
    rg_tally_t *t = &c->tally[k];
    if (s->m.first_gen > o->key.gen) return;
    c->state_of[k] = o->state;
    if (!t->numbering) t->numbering = o->numbering;
    uint8_t *have = c->maps + t->map, *donor = have + c->map_len, bit = (uint8_t)(1u << (new_rank % 8));
    switch (o->state) {
    case RG_OPS_RUNNING: add_sig(t, o, s); break;
    case RG_OPS_COMPLETE:
        add_sig(t, o, s);
        if (!t->kept) t->computed = o->computed;
        have[new_rank / 8] |= bit;
        break;
    case RG_OPS_KEPT:
        add_sig(t, o, s);
        if (!t->kept) t->kept_sig = o->sig;
        t->computed = o->computed;
        have[new_rank / 8] |= bit;
        donor[new_rank / 8] |= bit;
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

/* What a member that does not list an operation knows of it. */
static uint8_t absent_state(const rg_seat_t *s, rg_op_key_t key, const rg_report_head_t *h) {
    if (s->m.first_gen > key.gen) return NOT_PARTICIPANT;
    if (rg_key_tagged(key)) return RG_OPS_NONE; /* unless it is among the finished ones */
    if (key.gen != h->gen) return key.gen < h->gen ? RG_OPS_DONE : RG_OPS_NONE;
    return key.op < h->next0 ? RG_OPS_DONE : RG_OPS_NONE;
}

static void add_report(rg_coord_t *c, const rg_seat_t *s, uint32_t new_rank) {
    rg_report_head_t h;
    rg_op_report_t o;
    rg_r_t r = report_open(c, s, &h), entries = r;
    for (uint32_t k = 0; k < c->n_tally; k++) c->state_of[k] = absent_state(s, c->tally[k].key, &h);
    uint32_t n = rg_r_u32(&r);
    for (uint32_t i = 0; i < n; i++) rg_r_op_report(&r, &o);
    uint32_t fin = rg_r_u32(&r);
    for (uint32_t i = 0; i < fin; i++) {
        uint32_t k = c->tally_hash[tally_cell(c, rg_r_key(&r))];
        if (k && c->state_of[k - 1] != NOT_PARTICIPANT) c->state_of[k - 1] = RG_OPS_DONE;
    }
    n = rg_r_u32(&entries);
    for (uint32_t i = 0; i < n; i++) {
        rg_r_op_report(&entries, &o);
        add_entry(c, &o, s, new_rank);
    }
    for (uint32_t k = 0; k < c->n_tally; k++) {
        rg_tally_t *t = &c->tally[k];
        if (c->state_of[k] == NOT_PARTICIPANT) continue;
        t->n++;
        switch (c->state_of[k]) {
        case RG_OPS_RUNNING: t->running++; break;
        case RG_OPS_COMPLETE: t->complete++; break;
        case RG_OPS_KEPT: t->kept++; break;
        case RG_OPS_ABORTED: t->aborted++; break;
        case RG_OPS_DONE:
            t->done++;
            t->done_rank = s->rank;
            t->done_id = s->m.id;
            (c->maps + t->map)[new_rank / 8] |= (uint8_t)(1u << (new_rank % 8));
            break;
        default: t->not_started++;
        }
    }
}

int rg_coord_tally(rg_coord_t *c, uint32_t n, uint32_t *bad) {
    rg_report_head_t h;
    rg_op_report_t o;
    c->n_tally = 0;
    memset(c->tally_hash, 0, sizeof c->tally_hash);
    for (uint32_t i = 0; i < n; i++) {
        rg_r_t r = report_open(c, &c->seats[c->next_rank[i]], &h);
        uint32_t entries = rg_r_u32(&r);
        for (uint32_t k = 0; k < entries; k++) {
            rg_r_op_report(&r, &o);
            if (tally_add(c, &o)) continue;
            *bad = i;
            return 0;
        }
    }
    for (uint32_t i = 0; i < n; i++) add_report(c, &c->seats[c->next_rank[i]], i);
    return 1;
}

/* ---- Texts ----------------------------------------------------------------------------------------------------- */

static void sig_words(const rg_coord_t *c, rg_text_t *t, const rg_op_sig_t *s, const rg_op_sig_t *beside) {
    static const char *const kinds[] = { "all_reduce", "broadcast", "barrier" };
    rg_text_str(t, s->kind < RG_KIND_COUNT ? kinds[s->kind] : "unknown operation");
    if (s->kind != RG_KIND_BARRIER) {
        rg_text_str(t, " ");
        rg_text_str(t, rg_dtype_name((rg_dtype_t)s->dtype));
        if (s->kind == RG_KIND_ALL_REDUCE) {
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

static const rg_seat_t *lost_participant(const rg_coord_t *c, uint64_t gen) {
    for (uint32_t i = 0; i < c->n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        if (s->suspect && s->m.first_gen <= gen) return s;
    }
    return NULL;
}

static const rg_request_rec_t *request_for(const rg_coord_t *c, rg_op_key_t key) {
    for (uint32_t i = 0; i < c->n_requests; i++)
        if (rg_key_cmp(c->requests[i].key, key) == 0) return &c->requests[i];
    return NULL;
}

/* D5: some participant has started it and nobody can have shown a result. */
static void restart_or_abort(const rg_coord_t *c, const rg_tally_t *t, rg_decision_t *d, char *text) {
    const rg_request_rec_t *q = request_for(c, t->key);
    const rg_seat_t *lost = lost_participant(c, t->key.gen);
    const rg_seat_t *root = t->sig.root ? rg_seat_by_id(c, t->sig.root) : NULL;
    if (t->mixed) {
        abort_mismatch(c, t, d, text);
    } else if (q) {
        set_abort(d, (rg_status_t)q->status, q->blame, q->text);
    } else if (root && root->suspect) {
        abort_lost(root, d, RG_ERR_ROOT_LOST, text);
    } else if (t->sig.root && (!root || root->state != RG_SEAT_MEMBER)) {
        set_abort(d, RG_ERR_ROOT_LOST, t->sig.root, "the root of this operation is not a member any more");
    } else if (t->sig.on_fault == RG_RETURN && lost) {
        abort_lost(lost, d, RG_ERR_PEER_LOST, text);
    } else {
        d->verdict = RG_RESTART;
    }
}

static void decide_one(const rg_coord_t *c, const rg_tally_t *t, rg_decision_t *d, char *text) {
    memset(d, 0, sizeof *d);
    d->key = t->key;
    d->sig = t->kept ? t->kept_sig : t->sig;
    d->numbering = t->numbering;
    d->computed = t->computed;
    if (t->aborted) { /* D1 */
        set_abort(d, (rg_status_t)t->status, t->blame, t->text);
    } else if (!t->not_started && !t->running) { /* D2 */
        if (t->mixed && !t->kept && !t->done) abort_mismatch(c, t, d, text);
        else if (t->kept || t->complete) d->verdict = RG_COMMIT;
    } else if (t->kept && !t->kept_sig.rule_l) { /* D3 */
        d->verdict = RG_FORWARD;
        d->map_len = (uint16_t)c->map_len;
        d->have = c->maps + t->map;
        d->donor = d->have + c->map_len;
    } else if (t->running || t->complete) {
        if (t->done) abort_passed(t, d, text); /* D4 */
        else restart_or_abort(c, t, d, text);  /* D5 */
    }
    /* D6: nobody has started it: marks of earlier decisions have lost their reason. */
}

void rg_coord_write_decisions(rg_coord_t *c, rg_w_t *w, uint32_t n) {
    size_t at = w->len;
    uint32_t count = 0;
    uint16_t map_len = (uint16_t)((n + 7) / 8);
    rg_w_u32(w, 0);
    for (uint32_t k = 0; k < c->n_tally; k++) {
        rg_decision_t d;
        char text[RG_CORE_TEXT_MAX];
        decide_one(c, &c->tally[k], &d, text);
        if (!d.verdict) continue;
        if (d.verdict == RG_FORWARD) d.map_len = map_len;
        rg_w_decision(w, &d);
        count++;
    }
    rg_w_patch_u32(w, at, count);
}
