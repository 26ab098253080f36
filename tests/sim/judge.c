/* judge.c: what must hold whatever goes wrong, each with a name, and what must come to pass once nothing goes wrong
 * any more. It sees everything at once, as no process can. */
#include "sim.h"

/* All members that run an operation of one boundary in one data epoch agree who takes part: a newcomer is in for
 * everybody or for nobody. What the caller's buffers are shaped for stays as it was at the call. */
void judge_run(world_t *w, int node, const open_op_t *o) {
    uint64_t epoch = w->procs[node].data_epoch, mask = o->everybody;
    if (rg_sig_shaped(&o->sig) && mask != o->called)
        sim_fail(w, "a shape is kept", "process %d: called for %llx, run by %llx, boundary %llu operation %llx", node,
                 (unsigned long long)o->called, (unsigned long long)mask, (unsigned long long)o->key.gen,
                 (unsigned long long)o->key.op);
    for (uint32_t i = w->n_parts; i-- > 0;) {
        if (w->parts[i].founded != w->procs[node].founded) continue;
        if (w->parts[i].epoch != epoch || w->parts[i].gen != o->key.gen || w->parts[i].set != o->key.set) continue;
        if (w->parts[i].mask != mask)
            sim_fail(w, "participants are the same for all",
                     "process %d: %llx, others %llx, data epoch %llu, boundary %llu", node, (unsigned long long)mask,
                     (unsigned long long)w->parts[i].mask, (unsigned long long)epoch, (unsigned long long)o->key.gen);
        return;
    }
    if (w->n_parts == sizeof w->parts / sizeof w->parts[0]) return;
    w->parts[w->n_parts].founded = w->procs[node].founded;
    w->parts[w->n_parts].epoch = epoch;
    w->parts[w->n_parts].gen = o->key.gen;
    w->parts[w->n_parts].set = o->key.set;
    w->parts[w->n_parts++].mask = mask;
}

static int same(const outcome_t *a, const outcome_t *b) {
    return a->kind == b->kind && a->status == b->status && a->computed == b->computed && a->mask == b->mask;
}

void judge_outcome(world_t *w, int node, int ki, outcome_t o, int fetched, uint64_t everybody) {
    ledger_t *l = &w->ledger[ki];
    sim_trace(w, "process %d: boundary %llu operation %llx: %s %d, epoch %llu, contributors %llx", node,
              (unsigned long long)l->key.gen, (unsigned long long)l->key.op, o.kind == 1 ? "success" : "error",
              o.status, (unsigned long long)o.computed, (unsigned long long)o.mask);
    if (l->out[node].kind) sim_fail(w, "an outcome is shown once", "process %d", node);
    l->out[node] = o;
    if (o.kind != 1 || l->local) return;
    for (int q = 0; q < w->n_procs; q++) {
        /* Nothing is finished in two ways, not even by those who died or were expelled (rule L). */
        if (l->rule_l && l->out[q].kind == 1 && !same(&l->out[q], &o))
            sim_fail(w, "nothing is committed in two ways", "processes %d and %d, boundary %llu operation %llx", node,
                     q, (unsigned long long)l->key.gen, (unsigned long long)l->key.op);
        /* Rule L: a result is shown only when it is whole at all who take part. */
        if (l->rule_l && !fetched && (everybody & ~l->skipped) >> q & 1 && l->whole[q] != o.computed)
            sim_fail(w, "rule L waits for all",
                     "process %d committed boundary %llu operation %llx, process %d has no result of epoch %llu", node,
                     (unsigned long long)l->key.gen, (unsigned long long)l->key.op, q, (unsigned long long)o.computed);
    }
}

void judge_step(world_t *w, int node) {
    const char *bad = rg_member_check(w->procs[node].core);
    if (bad) sim_fail(w, bad, "process %d", node);
}

/* Everybody who is still in this process's view must be past it or hold the result. */
void judge_copy(world_t *w, int node, int ki) {
    proc_t *p = &w->procs[node];
    const rg_core_view_t *v = rg_member_view(p->core);
    const ledger_t *l = &w->ledger[ki];
    for (uint32_t i = 0; i < v->n && !rg_member_fenced(p->core) && !l->local && !p->core->told; i++) {
        int q = proc_of(w, v->members[i].id);
        const proc_t *x = &w->procs[q];
        if (v->members[i].first_gen > l->key.gen || !x->alive || x->over || l->out[q].kind || l->whole[q]) continue;
        sim_fail(w, "a copy is kept while somebody may need it",
                 "process %d released boundary %llu operation %llx, process %d has not finished it", node,
                 (unsigned long long)l->key.gen, (unsigned long long)l->key.op, q);
    }
}

/* ---- The end --------------------------------------------------------------------------------------------------- */

static int waits_for_founders(world_t *w, const proc_t *p) {
    uint32_t here = 0, need = 0;
    int k = w->conns[p->conn].office;
    const rg_coord_t *c = p->conn && w->offices[k].alive ? w->offices[k].core : NULL;
    if (!c || c->have_view) return 0;
    for (uint32_t i = 0; i < c->population; i++) {
        const rg_seat_t *s = &c->seats[c->roster[i]];
        here++;
        if (s->min_size > need) need = s->min_size;
    }
    return here < need;
}

/* The coordinator that acts for the group of this nonce, or NULL. */
const rg_coord_t *judge_office(world_t *w, uint64_t nonce) {
    const rg_coord_t *best = NULL;
    for (int k = 0; k < w->n_offices; k++) {
        const rg_coord_t *c = w->offices[k].alive ? w->offices[k].core : NULL;
        uint64_t n;
        if (!c || !c->have_view || !c->acting) continue;
        memcpy(&n, c->p.nonce, sizeof n);
        if (n == nonce && (!best || c->epoch > best->epoch)) best = c;
    }
    return best;
}

/* 1: those of its view who have not stopped would be enough. Who stops when one trouble follows another takes its vote
 * with it, and when there is peace again the rest may have nobody to meet. */
static int quorum_left(world_t *w, int node) {
    const rg_core_view_t *v = rg_member_view(w->procs[node].core);
    uint32_t voters, votes = 0;
    int first = 0;
    if (!v) return 1;
    voters = v->n + (v->witness != 0);
    for (uint32_t i = 0; i < v->n; i++) {
        int q = proc_of(w, v->members[i].id), here = q == node || (q >= 0 && w->procs[q].alive && !w->procs[q].over);
        votes += (uint32_t)here;
        first |= !i && here;
    }
    for (int k = 0; v->witness && k < w->n_offices; k++)
        votes += w->offices[k].alive && w->offices[k].host < 0 && w->offices[k].core->p.id == v->witness;
    return 2 * votes > voters || (2 * votes == voters && first);
}

/* Who leaves, where only paths were broken. */
void judge_expelled(world_t *w, int node, rg_status_t status, const char *text) {
    w->expelled += status == RG_ERR_EXPELLED;
    if (w->kind == RUN_GENTLE && status == RG_ERR_EXPELLED)
        sim_fail(w, "who can be reached stays", "process %d: %s", node, text);
    /* When one trouble follows another a member may run out of time to find an office, but not in peace. */
    int peace = w->now >= w->trouble_until + 3 * w->heartbeat && quorum_left(w, node);
    /* One that never heard that it was a member, came as another and gave its links up for that: without a reconnect
     * time they are gone for good when it is told (G6). */
    int unlinked = w->procs[node].renamed && !w->reconnect && status == RG_ERR_EXPELLED;
    if (w->kind == RUN_OFFICE && !(w->losers >> node & 1) && !unlinked &&
        (status == RG_ERR_EXPELLED || (status == RG_ERR_NO_QUORUM && peace)))
        sim_fail(w, "a coordinator's troubles cost no member", "process %d: status %d %s", node, status, text);
    if (w->kind == RUN_SPLIT && !(w->losers >> node & 1))
        sim_fail(w, "the larger part stays", "process %d: %s", node, text);
}

/* A process that ends is missed at once, however long a broken path has to come back. */
static void judge_death(world_t *w, int node) {
    uint64_t took = w->now - w->dead_at;
    if (!w->dead_at || took <= w->heartbeat / 2) return;
    w->dead_at = 0;
    sim_fail(w, "a death costs no reconnect time", "process %d: view after %llu ms", node,
             (unsigned long long)(took / MS));
}

/* No split brain: one successor for each view, and one view for each epoch, whoever activates it. */
void judge_view(world_t *w, int node) {
    const proc_t *p = &w->procs[node];
    const rg_core_view_t *v = rg_member_view(p->core);
    uint64_t members = v->n;
    judge_death(w, node);
    if (w->kind == RUN_DEATH && v->n < w->initial) w->dead_at = 0;
    for (uint32_t i = 0; i < v->n; i++) members = sim_hash(members, v->members[i].id, v->members[i].first_gen);
    for (uint32_t i = w->n_seen; i-- > 0;) {
        const seen_view_t *x = &w->seen[i];
        if (x->founded != p->founded || (x->epoch != v->epoch && x->parent != v->parent)) continue;
        if (x->epoch == v->epoch && x->parent == v->parent && x->members == members) return;
        sim_fail(w, "a view has one successor", "process %d: view %llu after %llu, others %llu after %llu", node,
                 (unsigned long long)v->epoch, (unsigned long long)v->parent, (unsigned long long)x->epoch,
                 (unsigned long long)x->parent);
        return;
    }
    if (w->n_seen < MAXVIEW) w->seen[w->n_seen++] = (seen_view_t){ p->founded, v->epoch, v->parent, members };
}

void judge_entry(world_t *w, int node) {
    const proc_t *p = &w->procs[node];
    entry_t *x = &w->entries[sim_hash(p->founded, p->gen, 11) % MAXENTRY];
    uint32_t n = rg_member_entered(p->core, p->gen);
    for (uint32_t i = 0; w->plant == PLANT_LEFT_ONLY && i < p->core->n_entered; i++)
        if (p->core->entered[i].gen == p->gen) n -= p->core->entered[i].n;
    if (x->founded != p->founded || x->gen != p->gen) *x = (entry_t){ .founded = p->founded, .gen = p->gen };
    x->n[node] = (uint8_t)(n + 1);
}

/* All members see the same newcomers enter at a boundary, whoever of them was lost by the time that they looked. */
static void judge_entries(world_t *w) {
    for (uint32_t i = 0; i < MAXENTRY; i++) {
        const entry_t *x = &w->entries[i];
        int first = -1;
        for (int q = 0; x->founded && q < w->n_procs; q++) {
            if (w->procs[q].gone || !x->n[q] || w->procs[q].founded != x->founded) continue;
            if (first < 0) first = q;
            else if (x->n[q] != x->n[first])
                sim_fail(w, "all see the same newcomers enter", "boundary %llu: process %d %d, process %d %d",
                         (unsigned long long)x->gen, first, x->n[first] - 1, q, x->n[q] - 1);
        }
    }
}

int judge_idle(world_t *w, const char **why, int *who) {
    for (int i = 0; i < w->n_procs; i++) {
        proc_t *p = &w->procs[i];
        *who = i;
        if (!p->alive || p->over) continue;
        if (!p->joined) {
            *why = "is not let in";
            if (waits_for_founders(w, p)) continue;
            return 0;
        }
        *why = p->waiting_boundary ? "waits at a boundary" : "has not come to the end";
        if (p->n_ops) {
            static char text[128];
            snprintf(text, sizeof text,
                     "has an operation that does not end (boundary %llu operation %llx, state %d, core state %d)",
                     (unsigned long long)p->ops[0].key.gen, (unsigned long long)p->ops[0].key.op, p->ops[0].st,
                     rg_ent_find(p->core, p->ops[0].key) ? rg_ent_find(p->core, p->ops[0].key)->state : -1);
            *why = text;
        }
        if (p->n_ops || p->gen < w->end_gen) return 0;
        *why = "does not tell of what has run";
        if (p->n_ran) return 0;
        *why = rg_member_fenced(p->core) ? "stays fenced" : "keeps copies that all have";
        if (rg_member_fenced(p->core) || !rg_member_drained(p->core)) return 0;
        *why = "is not in the view of the coordinator";
        const rg_coord_t *c = judge_office(w, sim_nonce(p));
        if (!c || rg_member_view(p->core)->epoch != c->epoch) return 0;
        *why = "has a coordinator that is in a round";
        if (c->round != RG_ROUND_NONE) return 0;
        *why = "has an operation in its table that is over";
        if (p->core->ents_own) return 0;
    }
    return 1;
}

/* What nobody gave up, and of whose participants nobody was lost, succeeds, whatever became of others. */
static void judge_untouched(world_t *w, const ledger_t *l) {
    if (l->asked || l->local || l->key.set == RG_SET_ALL) return;
    w->narrow++;
    for (int q = 0; q < w->n_procs; q++)
        if (l->called >> q & 1 && (w->procs[q].gone || w->procs[q].renamed)) return;
    for (int q = 0; q < w->n_procs; q++)
        if (l->out[q].kind == 2)
            sim_fail(w, "what no fault touches succeeds",
                     "process %d: status %d, boundary %llu operation %llx of set %llx", q, l->out[q].status,
                     (unsigned long long)l->key.gen, (unsigned long long)l->key.op, (unsigned long long)l->key.set);
}

void judge_end(world_t *w) {
    for (int q = 0; q < w->n_procs; q++)
        if (w->kind == RUN_SPLIT && w->losers >> q & 1 && !w->procs[q].gone)
            sim_fail(w, "the smaller part leaves", "process %d is still in", q);
    for (int k = 0; k < w->n_ledger; k++) {
        const ledger_t *l = &w->ledger[k];
        int first = -1;
        judge_untouched(w, l);
        for (int q = 0; q < w->n_procs && !l->local; q++) {
            if (w->procs[q].gone || !l->out[q].kind) continue;
            if (first < 0) first = q;
            else if (!same(&l->out[q], &l->out[first]))
                sim_fail(w, "one outcome for all who stay", "processes %d and %d, boundary %llu operation %llx", first,
                         q, (unsigned long long)l->key.gen, (unsigned long long)l->key.op);
        }
    }
    judge_entries(w);
    /* Whoever is alive and inside agrees on the view. */
    for (int q = 0; q < w->n_procs; q++) {
        const rg_core_view_t *v = w->procs[q].gone || !w->procs[q].joined ? NULL : rg_member_view(w->procs[q].core);
        if (!v) continue;
        const rg_coord_t *c = judge_office(w, sim_nonce(&w->procs[q]));
        if (!c || v->epoch != c->epoch)
            sim_fail(w, "all are in one view", "process %d: %llu, not %llu", q, (unsigned long long)v->epoch,
                     (unsigned long long)(c ? c->epoch : 0));
    }
}
