/* program.c: what the caller's program does: every process runs the same one, which follows from the seed alone, but
 * for what depends on who is there. That, who is in a sub-group and who sends to whom, is settled by the first process
 * that comes to it, as a program would settle it by an operation of its own before. Everything is drawn from the
 * seed; nothing here knows of faults. */
#include "sim.h"

/* ---- What is called -------------------------------------------------------------------------------------------- */

typedef enum { OF_ALL, OF_PAIR, OF_GROUP } set_type;

/* Where machines hear of operations afterwards there are longer runs of such that can be told of so. */
static uint32_t ops_of(world_t *w, uint64_t gen) {
    uint64_t h = sim_hash(w->seed, gen, 11);
    return (uint32_t)(w->afterwards && (h >> 8) % 4 == 0 ? h % 16 : h % 4);
}
static uint64_t op_hash(world_t *w, uint64_t gen, uint32_t i) { return sim_hash(w->seed, gen * 16 + i, 12); }

static set_type op_set(world_t *w, uint64_t h) {
    if (!w->sets || (h >> 48) % 8 < 4) return OF_ALL;
    return (h >> 48) % 8 < 6 ? OF_PAIR : OF_GROUP;
}

static uint64_t op_tag(uint64_t h) { return h % 4 ? 0 : 1 + (h >> 8) % 2; }

/* The plan of a place in the program: made by whoever comes first. */
static plan_t *plan_of(world_t *w, int node, uint64_t at) {
    const proc_t *p = &w->procs[node];
    for (uint32_t i = w->n_plans; i-- > 0;)
        if (w->plans[i].at == at && w->plans[i].founded == p->founded) return &w->plans[i];
    if (w->n_plans == MAXPLAN) {
        sim_fail(w, "bounded programs", "more than %d plans", MAXPLAN);
        return NULL;
    }
    plan_t *plan = &w->plans[w->n_plans++];
    memset(plan, 0, sizeof *plan);
    plan->at = at;
    plan->founded = p->founded;
    plan->n = rg_member_participants(p->core, p->gen, plan->ids, MAXP);
    return plan;
}

/* Who sends to whom: two of those who are there; the same when there is only one. */
static uint64_t pair_of(world_t *w, int node, uint64_t gen, uint32_t i) {
    const plan_t *plan = plan_of(w, node, 1 + gen * 16 + i);
    if (!plan || !plan->n) return 0;
    uint64_t h = sim_hash(w->seed, gen * 16 + i, 13), a = h % plan->n, b = (h >> 8) % plan->n;
    if (a == b) b = (b + 1) % plan->n;
    return rg_set_pair(plan->ids[a], plan->ids[b]);
}

/* Sub-groups last for four boundaries. There are two halves of the group, by a draw for each member. Gives the set
 * of this process's half, or 0: it is in neither. */
static uint64_t group_of(world_t *w, int node, uint64_t gen, uint64_t *ids, uint32_t *n) {
    const plan_t *plan = plan_of(w, node, gen / 4 << 32 | 1ull << 31);
    uint64_t own = w->procs[node].id;
    int here = 0;
    *n = 0;
    if (!plan) return 0;
    uint64_t half = sim_hash(w->seed, own, gen / 4) % 2;
    for (uint32_t i = 0; i < plan->n; i++) {
        if (sim_hash(w->seed, plan->ids[i], gen / 4) % 2 != half) continue;
        ids[(*n)++] = plan->ids[i];
        here |= plan->ids[i] == own;
    }
    return here ? 1 + 2 * (gen / 4) + half : 0;
}

static void define(world_t *w, int node, uint64_t set, const uint64_t *ids, uint32_t n) {
    rg_member_t *core = w->procs[node].core;
    for (uint64_t old = set > 17 ? set - 17 : 1; old + 9 < set; old++) rg_member_set_drop(core, old);
    if (rg_member_set_define(core, set, ids, n) != RG_OK)
        sim_fail(w, "a sub-group can be defined", "process %d, set %llu: %s", node, (unsigned long long)set,
                 rg_member_why(core));
}

static uint8_t kind_of(set_type type, uint64_t h) {
    static const uint8_t more[] = { RG_KIND_REDUCE,  RG_KIND_ALL_GATHER, RG_KIND_GATHER,
                                    RG_KIND_SCATTER, RG_KIND_ALL_TO_ALL, RG_KIND_REDUCE_SCATTER };
    if (type == OF_PAIR) return RG_KIND_P2P;
    if ((h >> 16) % 4 == 0) return RG_KIND_BROADCAST;
    if ((h >> 16) % 7 == 1) return RG_KIND_BARRIER;
    return (h >> 16) % 5 == 2 ? more[(h >> 20) % 6] : RG_KIND_ALL_REDUCE;
}

static int rooted(const rg_op_sig_t *s) {
    return s->kind == RG_KIND_BROADCAST || s->kind == RG_KIND_REDUCE || s->kind == RG_KIND_GATHER ||
           s->kind == RG_KIND_SCATTER;
}

/* Operation i of a generation; 0: this process has no part in it. */
static int program_op(world_t *w, int node, uint64_t gen, uint32_t i, rg_op_key_t *key, rg_op_sig_t *sig) {
    uint64_t h = op_hash(w, gen, i), tag = op_tag(h), seq = 0, set = RG_SET_ALL, ids[MAXP];
    set_type type = op_set(w, h);
    uint32_t n = 0;
    memset(sig, 0, sizeof *sig);
    if (type == OF_PAIR) set = pair_of(w, node, gen, i);
    if (type == OF_GROUP) set = group_of(w, node, gen, ids, &n);
    for (uint32_t k = 0; k < i; k++) {
        uint64_t g = op_hash(w, gen, k);
        if (op_tag(g) != tag || op_set(w, g) != type) continue;
        seq += type != OF_PAIR || pair_of(w, node, gen, k) == set;
    }
    *key = (rg_op_key_t){ gen, tag << 32 | seq, set };
    sig->kind = kind_of(type, h);
    sig->dtype = RG_F32;
    sig->rule_l = rg_key_tagged(*key) || (rg_sig_shaped(sig) && !rg_sig_mutual(sig)) || sig->kind == RG_KIND_REDUCE ||
                  (h >> 32) % (w->afterwards ? 8 : 2) == 1;
    sig->on_fault = rg_sig_shaped(sig) || (h >> 24) % 3 == 0 ? RG_RETURN : RG_RETRY;
    sig->count = 10 + (h >> 40) % 10;
    if (type == OF_PAIR) return set && rg_pair_has(set, w->procs[node].id);
    if (type == OF_GROUP && set) define(w, node, set, ids, n);
    return type == OF_ALL || set;
}

const roster_t *proc_roster(const proc_t *p, uint64_t epoch) {
    for (uint32_t i = p->n_rosters; i-- > 0;)
        if (p->rosters[i].epoch == epoch) return &p->rosters[i];
    return NULL;
}

/* Root 0, 1 or, seldom, 2, counted among the participants of the view that numbering names. Where there are not so many
 * it is nobody: somebody who has not heard of a loss may mean a member by that rank. */
static uint64_t root_of(world_t *w, int node, rg_op_key_t key, uint64_t h) {
    proc_t *p = &w->procs[node];
    uint64_t numbering = rg_member_numbering(p->core, key), ids[MAXP];
    const roster_t *r = proc_roster(p, numbering ? numbering : p->data_epoch);
    if (!r) {
        sim_fail(w, "numbering names a view that the member has seen", "process %d, epoch %llu", node,
                 (unsigned long long)numbering);
        return 0;
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n && r->first_gen[i] <= key.gen; i++)
        if (rg_key_has(p->core, key, r->id[i])) ids[n++] = r->id[i];
    if (h % 4 == 1 && n) return ids[n - 1]; /* the last, as this process knows it */
    uint64_t rank = h % 16 == 3 ? 2 : h % 2;
    return rank < n ? ids[rank] : rank == 2 ? RG_ROOT_GONE : ids[0];
}

/* ---- Calling it ------------------------------------------------------------------------------------------------ */

static void issue(world_t *w, int node) {
    proc_t *p = &w->procs[node];
    rg_op_sig_t sig;
    rg_op_key_t key;
    int mine = program_op(w, node, p->gen, p->idx++, &key, &sig);
    if (!mine || w->failed) return;
    int ki = ledger_of(w, node, key);
    if (w->failed) return;
    ledger_t *l = &w->ledger[ki];
    l->rule_l = sig.rule_l;
    if (rooted(&sig)) sig.root = root_of(w, node, key, sim_hash(w->seed, key.gen, key.op));
    if (sig.root == RG_ROOT_GONE) l->asked = 1;
    if (w->mismatch_key == key.gen && node % 3 == 1) sig.count++;
    if (w->mismatch_key == key.gen) l->asked = 1;
    if (w->skip_key == key.gen && rg_key_tagged(key)) {
        l->asked = 1;
        if (node % 3 == 1) {
            l->skipped |= 1ull << node;
            return;
        }
        event_t *e = sim_push(w, w->now + 30 * MS, EV_EXPIRE, node);
        e->ki = (int16_t)ki;
    }
    int afterwards = ran_may(w, node, key, &sig);
    open_op_t *o = &p->ops[p->n_ops++];
    *o = (open_op_t){ .st = OP_ISSUED, .ki = ki, .key = key, .sig = sig };
    o->called = proc_participants(w, p, key);
    l->called |= o->called;
    if (rg_set_is_pair(key.set)) /* also an end that was gone already */
        l->called |= 1ull << proc_of(w, rg_pair_from(key.set)) | 1ull << proc_of(w, rg_pair_to(key.set));
    sim_trace(w, "process %d: calls boundary %llu operation %llx of set %llx: kind %d root %llu, rule %s", node,
              (unsigned long long)key.gen, (unsigned long long)key.op, (unsigned long long)key.set, sig.kind,
              (unsigned long long)sig.root, sig.rule_l ? "L" : "S");
    if (afterwards) {
        ran_begin(w, node, o);
        return;
    }
    rg_member_event_t ev = { .type = RG_MEV_OP_START, .key = key, .sig = sig };
    proc_event(w, node, &ev);
}

void proc_program(world_t *w, int node) {
    proc_t *p = &w->procs[node];
    if (!p->alive || p->over || !p->joined || p->waiting_boundary || p->program_set) return;
    if (w->healed && p->gen >= w->end_gen) return;
    /* Mostly it waits for what is to be told of afterwards. */
    if (p->untold && sim_hash(w->seed, (uint64_t)node, p->gen * 16 + p->idx) % 8) return;
    if (!p->idx) judge_entry(w, node);
    if (p->idx < ops_of(w, p->gen)) {
        if (p->n_ops >= w->window) return;
        issue(w, node);
    } else if (p->n_ops && (!w->overlap || p->n_ops >= w->window)) {
        return;
    } else {
        p->waiting_boundary = 1;
        rg_member_event_t ev = { .type = RG_MEV_BOUNDARY, .gen = p->gen + 1 };
        proc_event(w, node, &ev);
        return;
    }
    proc_soon(w, node);
}

void proc_soon(world_t *w, int node) {
    proc_t *p = &w->procs[node];
    if (p->program_set) return;
    p->program_set = 1;
    sim_push(w, w->now + sim_below(w, w->gap_us) * US, EV_PROGRAM, node);
}

void proc_expire(world_t *w, int node, int ki) {
    proc_t *p = &w->procs[node];
    open_op_t *o = proc_op(p, w->ledger[ki].key);
    if (!p->alive || p->over || !o) return;
    rg_member_event_t ev = {
        .type = RG_MEV_OP_FAIL, .key = o->key, .status = RG_ERR_TIMEOUT, .text = "deadline passed"
    };
    proc_event(w, node, &ev);
}

void proc_fail_some(world_t *w, int node) {
    proc_t *p = &w->procs[node];
    if (!p->n_ops) return;
    const open_op_t *o = &p->ops[sim_below(w, p->n_ops)];
    w->ledger[o->ki].asked = 1;
    rg_member_event_t ev = { .type = RG_MEV_OP_FAIL, .key = o->key, .status = RG_ERR_CANCELLED, .text = "cancelled" };
    sim_trace(w, "process %d gives up boundary %llu operation %llx", node, (unsigned long long)ev.key.gen,
              (unsigned long long)ev.key.op);
    proc_event(w, node, &ev);
}
