/* plane.c: what the engine and the caller's program do, reduced to what matters to agreement: an operation is whole at
 * a member when the data of all its participants in the same data epoch have come, in any order and after any delay;
 * rule L then waits for everybody's DONE. It obeys the contract of core.h: nothing happens behind a fence, old data
 * epochs are dropped, newer ones are held. */
#include "sim.h"

/* ---- Names ----------------------------------------------------------------------------------------------------- */

int proc_of(world_t *w, uint64_t id) { return id < MAXID ? w->slot_of_id[id] - 1 : -1; }

int ledger_of(world_t *w, int node, rg_op_key_t key) {
    uint64_t founded = w->procs[node].founded;
    uint32_t i = (uint32_t)sim_hash(key.gen, key.op ^ key.set * 31, founded) % (4 * MAXK);
    while (w->khash[i] &&
           (w->ledger[w->khash[i] - 1].founded != founded || rg_key_cmp(w->ledger[w->khash[i] - 1].key, key) != 0))
        i = (i + 1) % (4 * MAXK);
    if (w->khash[i]) return w->khash[i] - 1;
    if (w->n_ledger == MAXK) {
        sim_fail(w, "bounded programs", "more than %d operations", MAXK);
        return 0;
    }
    w->ledger[w->n_ledger].key = key;
    w->ledger[w->n_ledger].founded = founded;
    w->khash[i] = (int16_t)(w->n_ledger + 1);
    return w->n_ledger++;
}

/* Two groups of one name are told apart by it. */
uint64_t sim_nonce(const proc_t *p) {
    uint64_t n;
    memcpy(&n, p->core->nonce, sizeof n);
    return n;
}

/* True once in a run that has this fault planted, at a moment drawn from the seed. */
int planted(world_t *w, plant_t p, int node) {
    if (w->plant != p || w->plant_done || sim_below(w, 4)) return 0;
    w->plant_done = 1;
    w->plant_node = node;
    sim_trace(w, "PLANTED fault %d at process %d", p, node);
    return 1;
}

/* Processes that take part in an operation, as this one's view and sets have it. */
uint64_t proc_participants(world_t *w, const proc_t *p, rg_op_key_t key) {
    const rg_core_view_t *v = rg_member_view(p->core);
    uint64_t mask = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        int q = proc_of(w, v->members[i].id);
        if (q >= 0 && v->members[i].first_gen <= key.gen && rg_key_has(p->core, key, v->members[i].id))
            mask |= 1ull << q;
    }
    return mask;
}

open_op_t *proc_op(proc_t *p, rg_op_key_t key) {
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (rg_key_cmp(p->ops[i].key, key) == 0) return &p->ops[i];
    return NULL;
}

void proc_drop(proc_t *p, open_op_t *o) { *o = p->ops[--p->n_ops]; }

/* ---- Data ------------------------------------------------------------------------------------------------------ */

static uint64_t sig_hash(const rg_op_sig_t *s) { return sim_hash(s->kind, s->count + s->rule_l, s->root); }

static void fill(event_t *e, int ki, const open_op_t *o) {
    e->ki = (int16_t)ki;
    e->sig = sig_hash(&o->sig);
}

/* A new data epoch forgets what came in the old one. Two planted faults are just not doing so. */
static inbox_t *inbox_at(world_t *w, proc_t *p, int ki, uint64_t epoch) {
    inbox_t *b = &p->inbox[ki];
    if (b->epoch < epoch) {
        b->epoch = epoch;
        if (w->plant != PLANT_OLD_DATA) b->contrib = 0;
        if (w->plant != PLANT_OLD_DONE) b->done = 0;
        b->truth = 0;
    }
    return b;
}

static void op_advance(world_t *w, int node, open_op_t *o) {
    proc_t *p = &w->procs[node];
    inbox_t *b = inbox_at(w, p, o->ki, p->data_epoch);
    rg_op_key_t key = o->key;
    if (p->fenced || b->epoch != p->data_epoch) return;
    for (int q = 0; o->st == OP_RUN && q < w->n_procs; q++) {
        if (!(b->contrib >> q & 1) || q == node || b->sig[q] == (uint16_t)sig_hash(&o->sig)) continue;
        b->contrib &= ~(1ull << q);
        w->ledger[o->ki].asked = 1;
        rg_member_event_t ev = { .type = RG_MEV_OP_FAIL,
                                 .key = key,
                                 .status = RG_ERR_MISMATCH,
                                 .peer = w->procs[q].id,
                                 .text = "its data do not fit" };
        proc_event(w, node, &ev);
        return;
    }
    int enough = (b->contrib & o->expected) == o->expected;
    if (!enough && o->st == OP_RUN && b->contrib && planted(w, PLANT_EARLY, node)) enough = 1;
    if (o->st == OP_RUN && enough) {
        o->st = OP_WHOLE;
        o->computed = p->data_epoch;
        w->ledger[o->ki].whole[node] = p->data_epoch;
        if ((b->truth & o->expected) != o->expected)
            sim_fail(w, "a result has the data of all its contributors", "process %d, boundary %llu operation %llx",
                     node, (unsigned long long)key.gen, (unsigned long long)key.op);
        for (int q = 0; o->sig.rule_l && q < w->n_procs; q++)
            if (o->everybody >> q & 1) fill(data_send(w, node, q, D_DONE), o->ki, o);
        b->done |= 1ull << node;
        if (o->untold) {
            ran_complete(w, node, o);
            return;
        }
        rg_member_event_t ev = { .type = RG_MEV_OP_COMPLETE, .key = key };
        proc_event(w, node, &ev);
        o = proc_op(p, key);
        if (!o || o->st != OP_WHOLE) return;
    }
    if (o->st == OP_WHOLE && o->sig.rule_l && (b->done & o->everybody) == o->everybody) {
        rg_member_event_t ev = { .type = RG_MEV_OP_DONE, .key = key };
        proc_event(w, node, &ev);
    } else if (o->st == OP_FETCH && p->inbox[o->ki].result && p->inbox[o->ki].result_epoch == p->data_epoch) {
        rg_member_event_t ev = { .type = RG_MEV_OP_FETCHED, .key = key };
        proc_event(w, node, &ev);
    }
}

void proc_data(world_t *w, const event_t *e) {
    proc_t *p = &w->procs[e->node];
    if (!data_arrives(w, e)) return;
    if (e->note && w->plant != PLANT_NO_NOTES && !ran_hears(w, e->node, e->peer, e->note)) {
        rg_member_event_t ev = { .type = RG_MEV_WATERMARK, .peer = w->procs[e->peer].id, .note = e->note };
        if (p->n_kept && planted(w, PLANT_WATERMARK, e->node)) ev.note += 1000000000000ull;
        proc_event(w, e->node, &ev);
    }
    if (e->data == D_NOTE) return;
    int old = e->epoch < p->data_epoch || (p->fenced && e->epoch == p->data_epoch);
    if (old) return;
    inbox_t *b = inbox_at(w, p, e->ki, e->epoch);
    if (e->data == D_RESULT) {
        b->result = 1;
        b->result_epoch = e->epoch;
        b->computed = e->computed;
        b->mask = e->mask;
    } else if (b->epoch == e->epoch) {
        if (e->data == D_CONTRIB && b->truth >> e->peer & 1)
            sim_fail(w, "nothing is sent twice", "process %d: from %d", e->node, e->peer);
        if (e->data == D_DONE) b->done |= 1ull << e->peer;
        else b->contrib |= 1ull << e->peer, b->truth |= 1ull << e->peer, b->sig[e->peer] = (uint16_t)e->sig;
    }
    open_op_t *o = proc_op(p, w->ledger[e->ki].key);
    if (o) op_advance(w, e->node, o);
}

/* ---- Carrying out actions -------------------------------------------------------------------------------------- */

/* Whose data must have come before the operation is whole here, and whose are in its result. */
static void op_needs(world_t *w, int node, open_op_t *o) {
    int root = o->sig.root ? proc_of(w, o->sig.root) : -1;
    if (o->sig.kind == RG_KIND_P2P) root = proc_of(w, rg_pair_from(o->key.set));
    uint64_t of_root = root >= 0 ? 1ull << root : 0;
    o->contributors = o->expected = o->everybody;
    o->speaks = 1;
    switch (o->sig.kind) {
    case RG_KIND_BROADCAST:
        if (!o->sig.rule_l) { /* the root gives, but all speak */
            o->contributors = of_root;
            break;
        }
        /* fall through */
    case RG_KIND_SCATTER:
    case RG_KIND_P2P:
        o->contributors = o->expected = of_root;
        o->speaks = root == node;
        break;
    case RG_KIND_REDUCE:
    case RG_KIND_GATHER:
        if (root != node) o->expected = 1ull << node;
        break;
    default: break;
    }
}

void proc_run(world_t *w, int node, open_op_t *o) {
    proc_t *p = &w->procs[node];
    int sent = o->sent;
    o->st = OP_RUN;
    o->sent = 0;
    o->everybody = proc_participants(w, p, o->key);
    judge_run(w, node, o);
    op_needs(w, node, o);
    inbox_t *b = inbox_at(w, p, o->ki, p->data_epoch);
    if (b->epoch != p->data_epoch) return;
    b->contrib |= 1ull << node;
    b->truth |= 1ull << node;
    for (int q = 0; q < w->n_procs; q++)
        if (o->everybody >> q & 1 && o->speaks && !sent) fill(data_send(w, node, q, D_CONTRIB), o->ki, o);
    o->sent = o->untold; /* the machine will say that it is to run */
    op_advance(w, node, o);
}

static void act_commit(world_t *w, int node, const rg_member_action_t *a) {
    proc_t *p = &w->procs[node];
    open_op_t *o = proc_op(p, a->key);
    if (!o && ran_commit(w, node, a)) return;
    if (!o) {
        sim_fail(w, "an outcome is shown once", "process %d: success of what is over", node);
        return;
    }
    int fetched = o->st == OP_FETCH;
    outcome_t out = { .kind = 1, .computed = a->computed, .mask = fetched ? p->inbox[o->ki].mask : o->contributors };
    uint64_t computed = fetched ? p->inbox[o->ki].computed : o->computed;
    if (!fetched && o->st != OP_WHOLE) sim_fail(w, "success needs a whole result", "process %d", node);
    if (computed != a->computed)
        sim_fail(w, "success names the epoch of its result", "process %d: %llu, not %llu", node,
                 (unsigned long long)a->computed, (unsigned long long)computed);
    int ki = o->ki;
    uint64_t everybody = proc_participants(w, p, a->key);
    if (a->keep) {
        if (p->n_kept > RG_KEEP_MAX) sim_fail(w, "bounded copies", "process %d", node);
        else p->kept[p->n_kept++] = (kept_t){ ki, computed, out.mask };
    }
    proc_drop(p, o);
    w->commits++;
    judge_outcome(w, node, ki, out, fetched, everybody);
    proc_soon(w, node);
}

static void act_abort(world_t *w, int node, const rg_member_action_t *a, int local) {
    proc_t *p = &w->procs[node];
    open_op_t *o = proc_op(p, a->key);
    if (!o) {
        sim_fail(w, "an outcome is shown once", "process %d: error of what is over", node);
        return;
    }
    int ki = o->ki;
    if (local) {
        w->ledger[ki].local = 1;
        w->locals++;
    }
    proc_drop(p, o);
    w->aborts++;
    judge_outcome(w, node, ki, (outcome_t){ .kind = 2, .status = (int16_t)a->status }, 0, 0);
    proc_soon(w, node);
}

static kept_t *kept_find(proc_t *p, int ki) {
    for (uint32_t i = 0; i < p->n_kept; i++)
        if (p->kept[i].ki == ki) return &p->kept[i];
    return NULL;
}

static void act_release(world_t *w, int node, const rg_member_action_t *a) {
    proc_t *p = &w->procs[node];
    int ki = ledger_of(w, node, a->key);
    kept_t *k = kept_find(p, ki);
    if (!k) {
        sim_fail(w, "a copy is released once", "process %d", node);
        return;
    }
    *k = p->kept[--p->n_kept];
    judge_copy(w, node, ki);
}

static void act_op(world_t *w, int node, const rg_member_action_t *a) {
    proc_t *p = &w->procs[node];
    open_op_t *o = proc_op(p, a->key);
    if (!o) {
        sim_fail(w, "an outcome is final", "process %d: action %d on what is over: boundary %llu operation %llx", node,
                 a->type, (unsigned long long)a->key.gen, (unsigned long long)a->key.op);
        return;
    }
    if (a->type == RG_MACT_OP_FORWARD) {
        o->st = OP_FETCH;
        w->forwards++;
        if (proc_of(w, a->peer) < 0) sim_fail(w, "a fetch has a source", "process %d", node);
        op_advance(w, node, o);
        return;
    }
    if (a->type == RG_MACT_OP_RUN && o->sig.root) o->sig.root = a->peer;
    w->restarts += a->type == RG_MACT_OP_RESTART;
    proc_run(w, node, o);
}

static void act_serve(world_t *w, int node, const rg_member_action_t *a) {
    proc_t *p = &w->procs[node];
    int q = proc_of(w, a->peer), ki = ledger_of(w, node, a->key);
    kept_t *k = kept_find(p, ki);
    if (!k || q < 0) {
        sim_fail(w, "a holder has what it is to serve", "process %d", node);
        return;
    }
    event_t *e = data_send(w, node, q, D_RESULT);
    e->ki = (int16_t)ki;
    e->computed = k->computed;
    e->mask = k->mask;
}

static void act_view(world_t *w, int node, int joined, uint64_t gen) {
    proc_t *p = &w->procs[node];
    const rg_core_view_t *v = rg_member_view(p->core);
    p->data_epoch = v->data_epoch;
    p->fenced = rg_member_fenced(p->core);
    if (joined) {
        int elder = proc_of(w, v->members[0].id);
        p->joined = 1;
        if (p->holds && !p->fetched) sim_fail(w, "a newcomer enters with its state", "process %d", node);
        p->founded =
            v->kind == RG_VIEW_FIRST || elder < 0 ? sim_hash(sim_nonce(p), v->epoch, 3) : w->procs[elder].founded;
        p->gen = p->first_gen = gen;
        p->idx = 0;
        w->joins++;
        if (v->kind == RG_VIEW_JOIN && gen != v->cut)
            sim_fail(w, "a newcomer starts at the cut", "process %d: %llu, cut %llu", node, (unsigned long long)gen,
                     (unsigned long long)v->cut);
        proc_soon(w, node);
    }
    roster_t *r = (roster_t *)(uintptr_t)proc_roster(p, v->data_epoch);
    if (!r) r = &p->rosters[p->n_rosters < MAXROSTER ? p->n_rosters++ : MAXROSTER - 1];
    r->epoch = v->data_epoch;
    r->n = v->n;
    for (uint32_t i = 0; i < v->n && i < MAXP; i++) {
        r->id[i] = v->members[i].id;
        r->first_gen[i] = v->members[i].first_gen;
    }
    w->views++;
    judge_view(w, node);
    sim_trace(w, "process %d: view %llu of %u members, data epoch %llu", node, (unsigned long long)v->epoch, v->n,
              (unsigned long long)v->data_epoch);
}

static void act_note(world_t *w, int node, const rg_member_action_t *a) {
    proc_t *p = &w->procs[node];
    if (a->note > p->note) p->note = a->note; /* it may have said more already than the machine has heard of */
    for (int q = 0; a->flush && q < w->n_procs; q++)
        if (p->linked[q]) data_send(w, node, q, D_NOTE);
}

static void perform(world_t *w, int node, const rg_member_action_t *a, int local) {
    proc_t *p = &w->procs[node];
    switch (a->type) {
    case RG_MACT_SEND: conn_send(w, p->conn, 1, a->bytes, a->len); break;
    case RG_MACT_CONNECT: link_connect(w, node, a->member); break;
    case RG_MACT_DISCONNECT: link_disconnect(w, node, a->peer); break;
    case RG_MACT_WELCOME:
        /* A member that never heard that it was one comes as another, or is told then that it is one. */
        p->renamed |= p->id != 0 && p->id != a->peer;
        if (p->id) w->stale_id[p->id] |= 1ull << node;
        p->id = a->peer;
        w->slot_of_id[a->peer] = (int16_t)(node + 1);
        if (w->stale_id[a->peer] >> node & 1) link_wanted(w, node);
        break;
    case RG_MACT_JOINED: act_view(w, node, 1, a->gen); break;
    case RG_MACT_VIEW: act_view(w, node, 0, 0); break;
    case RG_MACT_FENCE: p->fenced = 1; break;
    case RG_MACT_OP_RUN:
    case RG_MACT_OP_RESTART:
    case RG_MACT_OP_FORWARD: act_op(w, node, a); break;
    case RG_MACT_OP_COMMIT: act_commit(w, node, a); break;
    case RG_MACT_OP_ABORT: act_abort(w, node, a, local); break;
    case RG_MACT_OP_RELEASE: act_release(w, node, a); break;
    case RG_MACT_OP_SERVE: act_serve(w, node, a); break;
    case RG_MACT_BOUNDARY:
        p->gen = a->gen;
        p->idx = 0;
        p->waiting_boundary = 0;
        proc_soon(w, node);
        break;
    case RG_MACT_NOTE: act_note(w, node, a); break;
    case RG_MACT_REFUSED:
    case RG_MACT_EXPELLED:
        judge_expelled(w, node, a->status, a->text);
        p->over = p->gone = 1;
        for (int q = 0; q < w->n_procs; q++)
            if (q != node && p->linked[q]) link_break(w, node, q, 0, 1);
        conn_break(w, p->conn, 1, 0);
        p->conn = 0;
        break;
    case RG_MACT_CONTROL: proc_dial(w, node, a->peer); break;
    case RG_MACT_OFFICE_OPEN:
        p->office = office_open(w, node, a->note);
        office_watch(w, node, a->on);
        break;
    case RG_MACT_OFFICE_CLOSE:
        office_end(w, p->office, 0);
        p->office = -1;
        break;
    case RG_MACT_ROUTE: link_route(w, node, a->peer, a->via); break;
    case RG_MACT_RELAY: link_relay(w, node, a->peer, a->via, (int)a->on); break;
    case RG_MACT_WAITING: break;
    }
}

static const char *action_name(rg_mact_t t) {
    static const char *const names[] = { "SEND",        "CONNECT",      "DISCONNECT", "WELCOME",    "JOINED",
                                         "REFUSED",     "WAITING",      "FENCE",      "VIEW",       "OP_RUN",
                                         "OP_COMMIT",   "OP_RELEASE",   "OP_RESTART", "OP_FORWARD", "OP_SERVE",
                                         "OP_ABORT",    "BOUNDARY",     "NOTE",       "EXPELLED",   "CONTROL",
                                         "OFFICE_OPEN", "OFFICE_CLOSE", "ROUTE",      "RELAY" };
    return names[t];
}

/* ---- A state that is fetched before entering ------------------------------------------------------------------- */

/* It begins when the links are there, goes on beside everything else, and takes as long as it takes. */
static void fetch_begins(world_t *w, int node) {
    proc_t *p = &w->procs[node];
    int early = w->plant == PLANT_NO_HOLD && p->id;
    if (!p->holds || p->fetching || (!early && rg_member_holding(p->core) != 2)) return;
    p->fetching = 1;
    w->fetches++;
    sim_trace(w, "process %d: fetches a state", node);
    sim_push(w, early ? w->now : w->now + sim_below(w, 4 * w->heartbeat), EV_FETCHED, node);
}

void proc_fetched(world_t *w, int node) {
    proc_t *p = &w->procs[node];
    rg_member_event_t ev = { .type = RG_MEV_RELEASE };
    p->fetched = w->plant != PLANT_NO_HOLD;
    proc_event(w, node, &ev);
}

/* The one door to a member's core. Actions are taken out first and carried out after, as an engine does, because
 * carrying them out feeds the core again. */
void proc_event(world_t *w, int node, rg_member_event_t *ev) {
    proc_t *p = &w->procs[node];
    if (!p->alive || p->over || w->failed) return;
    ran_tell(w, node);
    if (w->failed) return;
    ev->now_ns = w->now;
    /* Whose data went out before the machine heard of it may end alone at its start as later (K1): others may have its
     * result by then. */
    int begins = ev->type == RG_MEV_OP_START && !p->sent_before;
    int local = ev->type != RG_MEV_MESSAGE && !begins && !w->succession;
    rg_status_t st = rg_member_step(p->core, ev);
    if (st != RG_OK) sim_fail(w, "member: step failed", "process %d, event %d, status %d", node, ev->type, st);
    judge_step(w, node);
    rg_member_action_t list[256], a;
    uint32_t n = 0;
    while (rg_member_next(p->core, &a)) {
        if (n == 256) {
            sim_fail(w, "bounded actions", "process %d", node);
            return;
        }
        list[n] = a;
        if (a.type == RG_MACT_SEND) conn_send(w, p->conn, 1, a.bytes, a.len);
        else n++;
        if (a.type != RG_MACT_SEND && a.type != RG_MACT_NOTE)
            sim_trace(w, "process %d: %s gen %llu key %llu/%llx peer %llu status %d %s", node, action_name(a.type),
                      (unsigned long long)a.gen, (unsigned long long)a.key.gen, (unsigned long long)a.key.op,
                      (unsigned long long)a.peer, a.status, a.text);
    }
    uint64_t d = rg_member_deadline(p->core);
    if (d != NEVER && d < p->tick_at) {
        p->tick_at = d > w->now ? d : w->now;
        sim_push(w, p->tick_at, EV_TICK, node);
    }
    for (uint32_t i = 0; i < n && !w->failed; i++) perform(w, node, &list[i], local);
    fetch_begins(w, node);
}
