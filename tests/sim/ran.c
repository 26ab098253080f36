/* ran.c: operations under rule S that the machine hears of when they have run (RG_MEV_OP_RAN, W4), as the engine's
 * quick.c has them: the messages go out at the call, success is shown as soon as the result is whole, and right before
 * the machine hears of anything else it hears of these, first of what the others have said, then of each in order, but
 * for those that all others are past, and at last of one that still runs. It relies on plane.c for the data; it must
 * not let the machine hear of anything else before. */
#include "sim.h"

/* An operation that is called now goes this way: so would not all be in an engine, nor the same ones at all members. */
int ran_may(world_t *w, int node, rg_op_key_t key, const rg_op_sig_t *sig) {
    proc_t *p = &w->procs[node];
    if (!w->afterwards || sig->rule_l || rg_key_tagged(key) || p->untold) return 0;
    if (sig->root == RG_ROOT_GONE) return 0; /* a shape has a root that is a member */
    if (sim_hash(w->seed, (uint64_t)node << 32 | key.gen, key.op) % 8 == 0) return 0;
    if (p->n_ran == MAXRAN) ran_tell(w, node);
    return rg_member_may_run(p->core, key.gen, p->n_ran + 1);
}

void ran_begin(world_t *w, int node, open_op_t *o) {
    o->untold = 1;
    w->procs[node].untold = 1;
    proc_run(w, node, o);
}

/* Those that all others have said to be past, but for the newest, from which the machine learns how far we are. */
static void forget_passed(world_t *w, int node) {
    proc_t *p = &w->procs[node];
    uint64_t low = UINT64_MAX, others = proc_participants(w, p, p->ran[0].key) & ~(1ull << node);
    uint32_t n = 0;
    for (int q = 0; q < w->n_procs; q++)
        if (others >> q & 1 && p->said[q] < low) low = p->said[q];
    while (n + 1 < p->n_ran && rg_key_note(p->ran[n].key) < low) judge_copy(w, node, p->ran[n++].ki);
    p->n_ran -= n;
    w->passed += n;
    memmove(p->ran, p->ran + n, p->n_ran * sizeof *p->ran);
}

static void said_anew(proc_t *p) {
    if (p->said_of != p->data_epoch) memset(p->said, 0, sizeof p->said);
    p->said_of = p->data_epoch;
}

/* Success is shown here: nothing that happens later may take it back. */
void ran_complete(world_t *w, int node, open_op_t *o) {
    proc_t *p = &w->procs[node];
    ran_t *r = &p->ran[p->n_ran++];
    uint64_t note = rg_key_note((rg_op_key_t){ o->key.gen, o->key.op + 1, RG_SET_ALL }), everybody = o->everybody;
    *r = (ran_t){ .ki = o->ki, .key = o->key, .sig = o->sig, .computed = o->computed, .mask = o->contributors };
    outcome_t out = { .kind = 1, .computed = r->computed, .mask = r->mask };
    proc_drop(p, o);
    p->untold = 0;
    if (note > p->note) p->note = note;
    w->commits++;
    w->ran++;
    judge_outcome(w, node, r->ki, out, 0, everybody);
    said_anew(p);
    forget_passed(w, node);
    proc_soon(w, node);
}

/* What somebody says of whom the machine knows nothing yet is lost on it, so it counts for nothing here. */
int ran_hears(world_t *w, int node, int peer, uint64_t note) {
    proc_t *p = &w->procs[node];
    if (!w->afterwards || !p->joined) return 0;
    said_anew(p);
    const rg_core_view_t *v = rg_member_view(p->core);
    for (uint32_t i = 0; i < v->n; i++)
        if (proc_of(w, v->members[i].id) == peer && note > p->said[peer]) p->said[peer] = note;
    if (!p->n_ran && !p->untold) return 0;
    if (note > p->pending[peer]) p->pending[peer] = note;
    return 1;
}

/* It goes on as any other, with what it sends behind it. */
static void tell_start(world_t *w, int node) {
    proc_t *p = &w->procs[node];
    open_op_t *o = p->ops;
    while (!o->untold) o++;
    rg_op_key_t key = o->key;
    rg_member_event_t ev = { .type = RG_MEV_OP_START, .key = key, .sig = o->sig };
    o->untold = p->untold = 0;
    int sent = p->sent_before = o->sent;
    proc_event(w, node, &ev);
    p->sent_before = 0;
    o = proc_op(p, key);
    if (o && sent && (o->st != OP_RUN || o->sent))
        sim_fail(w, "what may run at once does", "process %d: boundary %llu operation %llx", node,
                 (unsigned long long)key.gen, (unsigned long long)key.op);
    proc_soon(w, node);
}

void ran_tell(world_t *w, int node) {
    proc_t *p = &w->procs[node];
    if (p->telling || (!p->n_ran && !p->untold)) return;
    p->telling = 1;
    for (int q = 0; q < w->n_procs; q++) {
        if (!p->pending[q]) continue;
        rg_member_event_t ev = { .type = RG_MEV_WATERMARK, .peer = w->procs[q].id, .note = p->pending[q] };
        p->pending[q] = 0;
        proc_event(w, node, &ev);
    }
    for (uint32_t i = 0; i < p->n_ran && !w->failed; i++) {
        ran_t *r = &p->ran[i];
        rg_member_event_t ev = { .type = RG_MEV_OP_RAN, .key = r->key, .sig = r->sig };
        proc_event(w, node, &ev);
        if (!r->told)
            sim_fail(w, "what has run is a success", "process %d: boundary %llu operation %llx", node,
                     (unsigned long long)r->key.gen, (unsigned long long)r->key.op);
    }
    p->n_ran = 0;
    if (p->untold && !w->failed) tell_start(w, node);
    p->telling = 0;
}

/* The machine's word on one of these: the copy is kept, or goes. */
int ran_commit(world_t *w, int node, const rg_member_action_t *a) {
    proc_t *p = &w->procs[node];
    for (uint32_t i = 0; i < p->n_ran; i++) {
        ran_t *r = &p->ran[i];
        if (rg_key_cmp(r->key, a->key) != 0 || r->told) continue;
        r->told = 1;
        if (r->computed != a->computed)
            sim_fail(w, "success names the epoch of its result", "process %d: %llu, not %llu", node,
                     (unsigned long long)a->computed, (unsigned long long)r->computed);
        if (!a->keep) judge_copy(w, node, r->ki);
        else if (p->n_kept > RG_KEEP_MAX) sim_fail(w, "bounded copies", "process %d", node);
        else p->kept[p->n_kept++] = (kept_t){ r->ki, r->computed, r->mask };
        return 1;
    }
    return 0;
}
