/* quick.c: small operations that are called again and again among members that share memory, without the machinery. The
 * message to each peer goes out before anything else is done, the result is made from the messages where they lie, and
 * the core hears of the operation afterwards, with others, before it hears of anything else (RG_MEV_OP_RAN): to it that
 * is as if each had been told in its time. What is sent is what the schedule of the operation says, so that peers which
 * run it otherwise notice nothing; and where the messages do not come at once, or anything is unusual, the operation
 * goes on as any other, with those sends behind it. It relies on rule S: a copy of each result is kept until all are
 * known to have theirs. Between the first send and the operation's start the core must take no event but those of
 * rg_quick_tell(). */
#include "config.h"
#include "engine/group.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define SPIN_NS 20000u /* after this the others are late, and waiting is somebody else's business */
#define LOOK_EVERY 64u /* polls between looks at the clock */
/* Where a peer needs this processor: where others compute a turn takes milliseconds, and nobody else drives. */
#define YIELDS_MOST 32u
#define YIELDS_NS 500000u
#define BYTES_MOST 32768u /* of a result, as all have it */
#define PART_MOST 16384u  /* of a message: longer ones may be fetched by their receiver */

extern const rg_algorithm_t rg_alg_all_reduce_direct, rg_alg_all_gather_direct, rg_alg_barrier_dissemination,
    rg_alg_broadcast_dissemination, rg_alg_all_to_all_direct, rg_alg_reduce_scatter_direct;

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

static void shape_drop(rg_quick_shape_t *s) {
    rg_roster_put(s->roster);
    rg_roster_put(s->base);
    s->roster = s->base = NULL;
}

/* One message to each peer, of equal length, the first between the two: how many bytes, or UINT64_MAX. What comes is as
 * long, but for a broadcast, where it is from the root only. */
static uint64_t message_bytes(const rg_request_t *op) {
    const rg_schedule_t *s = op->plan->s;
    uint64_t bytes = UINT64_MAX;
    uint32_t sends = 0, seen = 0;
    for (uint32_t i = 0; i < s->n_steps; i++) {
        const rg_step_t *st = &s->steps[i];
        if (st->kind != RG_STEP_SEND) continue;
        uint64_t n = st->a.len * op->buf_elem[st->a.buf];
        if (st->ord != 0 || (seen >> st->peer & 1) || (sends && n != bytes)) return UINT64_MAX;
        bytes = n;
        seen |= 1u << st->peer;
        sends++;
    }
    return sends == op->roster->n - 1 ? bytes : UINT64_MAX;
}

static int all_near(const rg_group_t *g, const rg_roster_t *r) {
    for (uint32_t i = 0; i < r->n; i++) {
        rg_tp_link_info_t info = { 0 };
        if (i == r->rank) continue;
        if (r->links[i] == UINT32_MAX || !g->tp_ops->link_info) return 0;
        g->tp_ops->link_info(g->tp, r->links[i], &info);
        if (!info.shared) return 0;
    }
    return 1;
}

/* The kernels of the schedule (all_reduce_direct.c, owner_fold.h), so that the bits are the same on whichever way they
 * are made. */
static rg_status_t fold_kernels(rg_quick_shape_t *s, int ordered) {
    uint32_t flags = RG_RED_FINAL | (ordered && s->roster->rank == 1 ? RG_RED_SWAP : 0);
    rg_dtype_t t = (rg_dtype_t)s->sig.dtype;
    rg_op_t how = (rg_op_t)s->sig.op;
    uint32_t n = s->roster->n;
    if (s->how == RG_QUICK_PAIR) return rg_red_init(&s->last, t, how, n, flags);
    rg_status_t st = rg_red_init(&s->own, t, how, n, RG_RED_DST_ACC);
    if (n == 2) {
        if (st == RG_OK)
            st = rg_red_init(&s->last, t, how, n,
                             RG_RED_B_ACC | RG_RED_FINAL | (s->roster->rank == 1 ? RG_RED_SWAP : 0));
        return st;
    }
    if (st == RG_OK) st = rg_red_init(&s->mid, t, how, n, RG_RED_A_ACC | RG_RED_B_ACC | RG_RED_DST_ACC);
    if (st == RG_OK) st = rg_red_init(&s->last, t, how, n, RG_RED_A_ACC | RG_RED_B_ACC | RG_RED_FINAL);
    return st;
}

/* Called where an operation begins to run: the next one like it may be quick. */
void rg_quick_learn(const rg_request_t *op) {
    rg_group_t *g = op->g;
    rg_quick_t *q = &g->quick;
    const rg_roster_t *r = op->roster;
    if (!g->tp_ops->peek || op->h != g || op->sig.rule_l || op->key.set != RG_SET_ALL || op->key.op >> 32) return;
    if (r->n < 2 || r->n > RG_QUICK_PEERS || !g->roster || op->keep_bytes > BYTES_MOST) return;
    if (r != g->roster && r != g->ordered) return; /* of an earlier view, or one that is being left */
    if (op->weighted || op->scale != 0 || op->scale_after != 0 || op->lens || op->sig.variant != g->variant) return;
    if (op->in.kind != RG_LAYOUT_PLAIN || op->out.kind != RG_LAYOUT_PLAIN) return;
    rg_quick_shape_t *s = &q->shape[q->next_shape % RG_QUICK_SHAPES];
    for (uint32_t i = 0; i < RG_QUICK_SHAPES; i++)
        if (q->shape[i].roster == r && q->shape[i].orders == g->orders && rg_sig_same(&q->shape[i].sig, &op->sig))
            return;
    const rg_algorithm_t *alg = op->plan->alg;
    rg_quick_how_t how = op->pair && op->keep_bytes               ? RG_QUICK_PAIR
                         : alg == &rg_alg_all_reduce_direct       ? RG_QUICK_FOLD
                         : alg == &rg_alg_all_gather_direct       ? RG_QUICK_GATHER
                         : alg == &rg_alg_barrier_dissemination   ? RG_QUICK_MEET
                         : alg == &rg_alg_broadcast_dissemination ? RG_QUICK_SPREAD
                                                                  : RG_QUICK_NOT;
    uint64_t bytes = message_bytes(op);
    if (how == RG_QUICK_NOT || bytes == UINT64_MAX || bytes > PART_MOST || !all_near(g, r)) return;
    shape_drop(s);
    *s = (rg_quick_shape_t){ .sig = op->sig,
                             .how = how,
                             .roster = op->roster,
                             .base = g->roster,
                             .tag_sig = op->tag_sig,
                             .elem = op->elem,
                             .root = op->plan->s->desc.root,
                             .bytes = bytes,
                             .keep_bytes = op->keep_bytes,
                             .acc = op->plan->s->desc.acc_size,
                             .orders = g->orders };
    s->roster->refs++;
    s->base->refs++;
    q->next_shape++;
    if (how == RG_QUICK_FOLD && !q->acc && !(q->acc = malloc(2 * BYTES_MOST))) shape_drop(s);
    else if ((how == RG_QUICK_FOLD || (how == RG_QUICK_PAIR && op->sig.kind == RG_KIND_REDUCE_SCATTER)) &&
             fold_kernels(s, op->plan->s->desc.rank_order != 0) != RG_OK)
        shape_drop(s);
}

void rg_quick_forget(rg_group_t *g) {
    for (uint32_t i = 0; i < RG_QUICK_SHAPES; i++) shape_drop(&g->quick.shape[i]);
    g->quick.note_of = 0;
}

/* ---- What the core has not heard of yet -------------------------------------------------------------------------- */

static void done_drop(rg_group_t *g, uint32_t n) {
    rg_quick_t *q = &g->quick;
    for (uint32_t i = 0; i < n; i++) {
        if (!q->done[i].kept) continue;
        rg_kept_put(g, q->done[i].kept);
    }
    q->n_done -= n;
    memmove(q->done, q->done + n, q->n_done * sizeof *q->done);
}

/* Tells the core, in order, and before that what the others have said: then it need not keep most of it. */
void rg_quick_tell(rg_group_t *g) {
    rg_quick_t *q = &g->quick;
    if (!q->n_done || q->telling) return;
    q->telling = 1;
    rg_tell_notes(g, rg_os_now_ns());
    for (uint32_t i = 0; i < q->n_done && g->phase != RG_PHASE_OVER; i++) {
        rg_member_event_t ev = { .type = RG_MEV_OP_RAN, .key = q->done[i].key, .sig = q->done[i].sig };
        rg_core_event(g, &ev);
    }
    done_drop(g, q->n_done);
    q->telling = 0;
}

/* The core's verdict on one of these: the copy is kept, or goes. */
void rg_quick_commit(rg_group_t *g, rg_op_key_t key, int keep) {
    rg_quick_t *q = &g->quick;
    for (uint32_t i = 0; keep && i < q->n_done; i++)
        if (q->done[i].kept && q->done[i].key.op == key.op && q->done[i].key.gen == key.gen) {
            rg_kept_add(g, q->done[i].kept);
            q->done[i].kept = NULL;
        }
}

void rg_say_note(rg_group_t *g, uint64_t note, int flush) {
    if (note > g->note) g->note = note;
    g->tp_ops->note(g->tp, RG_TP_ALL_LINKS, g->note, flush);
}

/* Those that all others have said to be past, but for the newest: it tells the core how far we are. */
static void forget_passed(rg_group_t *g, const rg_roster_t *r) {
    rg_quick_t *q = &g->quick;
    uint64_t low = UINT64_MAX;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n; i++)
        if (i != r->rank && q->note[i] < low) low = q->note[i];
    while (n + 1 < q->n_done && rg_key_note(q->done[n].key) < low) n++;
    if (n) done_drop(g, n);
}

void rg_quick_free(rg_group_t *g) {
    done_drop(g, g->quick.n_done);
    rg_quick_forget(g);
    free(g->quick.acc);
    g->quick.acc = NULL;
}

/* ---- One operation ----------------------------------------------------------------------------------------------- */

static uint64_t in_bytes(const rg_quick_shape_t *s) {
    uint64_t n = s->sig.count * s->elem;
    rg_kind_t k = (rg_kind_t)s->sig.kind;
    return k == RG_KIND_REDUCE_SCATTER || k == RG_KIND_ALL_TO_ALL ? n * s->roster->n : n;
}

static uint64_t out_bytes(const rg_quick_shape_t *s) {
    uint64_t n = s->sig.count * s->elem;
    rg_kind_t k = (rg_kind_t)s->sig.kind;
    return k == RG_KIND_ALL_GATHER || k == RG_KIND_ALL_TO_ALL ? n * s->roster->n : n;
}

/* Buffers that share bytes, but as operations in place do, and missing ones are for the general way to refuse. */
static int buffers_fit(const rg_quick_shape_t *s, const void *in, const void *out) {
    uintptr_t a = (uintptr_t)in, b = (uintptr_t)out;
    uint64_t n = in_bytes(s), m = out_bytes(s), part = s->sig.count * s->elem * s->roster->rank;
    if (!m) return 1;
    if (!in || !out) return 0;
    if (a + n <= b || b + m <= a) return 1;
    if (s->sig.kind == RG_KIND_ALL_GATHER) return a == b + part;
    if (s->sig.kind == RG_KIND_REDUCE_SCATTER) return b == a + part;
    return a == b;
}

static const rg_quick_shape_t *shape_of(const rg_group_t *g, const rg_quick_call_t *c) {
    for (uint32_t i = 0; i < RG_QUICK_SHAPES; i++) {
        const rg_quick_shape_t *s = &g->quick.shape[i];
        if (s->roster && s->base == g->roster && s->orders == g->orders && s->sig.kind == c->kind &&
            s->sig.count == c->count && s->sig.dtype == c->dtype && s->sig.op == c->op &&
            (rg_kind_shaped(c->kind) || s->sig.on_fault == c->on_fault) &&
            (!s->sig.root || (c->root < s->base->n && s->base->ids[c->root] == s->sig.root)))
            return s->base->gen == g->gen ? s : NULL;
    }
    return NULL;
}

/* Nothing is under way or about to change, and what is needed to go on in the general way is there. */
static int calm(rg_group_t *g, const rg_quick_shape_t *s) {
    rg_quick_t *q = &g->quick;
    if (q->test == 1 || g->phase != RG_PHASE_MEMBER || g->leaving || g->open_ops || g->driver != RG_DRIVER_NONE)
        return 0;
    if (g->next_seq == UINT32_MAX || (g->spin_us && g->spin_us * 1000u < SPIN_NS)) return 0;
    if (rg_kind_shaped((rg_kind_t)s->sig.kind) && g->told_n && g->told_n != s->roster->n) return 0;
    if (!g->free_ops || g->free_ops->cap_contributors < g->past_most || rg_wanted(g)) return 0;
    return rg_member_may_run(g->core, g->gen, q->n_done + 1);
}

/* Which peers have been sent to, as a map by rank. */
static uint32_t put_all(rg_group_t *g, const rg_quick_shape_t *s, const rg_tag_t *tag, const void *part) {
    const rg_roster_t *r = s->roster;
    uint32_t sent = 0;
    for (uint32_t i = 1; i < r->n; i++) {
        uint32_t to = r->rank + i < r->n ? r->rank + i : r->rank + i - r->n;
        const rg_tp_send_t snd = { .tag = *tag, .buf = part, .len = s->bytes };
        if (g->tp_ops->put(g->tp, r->links[to], &snd)) sent |= 1u << to;
    }
    return sent;
}

/* How long a message of rank i is. */
static uint64_t bytes_of(const rg_quick_shape_t *s, uint32_t i) {
    if (s->how != RG_QUICK_SPREAD) return s->bytes;
    return i == s->root ? s->keep_bytes : 0;
}

/* Waits a little until all are here: 1. A peer on this processor needs it; others are looked out for. */
static int all_come(rg_group_t *g, const rg_quick_shape_t *s, const rg_tag_t *tag, const void **part, uint64_t now) {
    const rg_roster_t *r = s->roster;
    uint32_t missing = ((1u << r->n) - 1) & ~(1u << r->rank), yields = 0;
    for (uint32_t turn = 1;; turn++) {
        for (uint32_t left = missing; left; left &= left - 1) {
            uint32_t i = (uint32_t)__builtin_ctz(left);
            part[i] = g->tp_ops->peek(g->tp, r->links[i], tag, bytes_of(s, i));
            if (part[i]) missing &= ~(1u << i);
        }
        if (!missing) return 1;
        if (g->polite_ns == 0) {
            if (rg_wanted(g)) return 0;
            if (g->quick.test != 2 && (++yields > YIELDS_MOST || rg_os_now_ns() - now > YIELDS_NS)) return 0;
            sched_yield();
        } else if (turn % LOOK_EVERY == 0) {
            if (rg_wanted(g)) return 0;
            if (rg_os_now_ns() - now > SPIN_NS && g->quick.test != 2) return 0;
        }
    }
}

static void fold(rg_quick_t *q, const rg_quick_shape_t *s, const void *in, const void **part, void *to) {
    uint64_t n = s->acc ? s->bytes / s->acc : 0;
    if (s->roster->n == 2) {
        rg_red_run(&s->last, to, in, part[1 - s->roster->rank], n);
        return;
    }
    const void *sum = part[0];
    for (uint32_t i = 1; i < s->roster->n; i++) {
        int last = i == s->roster->n - 1;
        rg_red_run(last ? &s->last : &s->mid, last ? to : q->acc, sum, part[i], n);
        sum = q->acc;
    }
}

/* The caller's part of what all have. */
static void hand_out(const rg_quick_shape_t *s, const uint8_t *all, uint8_t *out) {
    uint64_t n = s->sig.count * s->elem;
    uint32_t rank = s->roster->rank;
    if (s->sig.kind == RG_KIND_REDUCE_SCATTER) memcpy(out, all + rank * n, n);
    else if (s->sig.kind == RG_KIND_ALL_TO_ALL)
        for (uint32_t i = 0; i < s->roster->n; i++) memcpy(out + i * n, all + (i * s->roster->n + rank) * n, n);
    else if (s->keep_bytes) memcpy(out, all, s->keep_bytes);
}

/* Of two, each with a message for the other at `sent`: the copy that is kept, before the result may cover it. */
static void join_pair(const rg_quick_shape_t *s, const uint8_t *in, uint8_t *out, const void *sent, const void *came,
                      rg_kept_t *kept) {
    uint64_t n = s->bytes;
    uint32_t rank = s->roster->rank;
    memcpy(kept->block->p, sent, n);
    if (s->sig.kind == RG_KIND_REDUCE_SCATTER) {
        rg_red_run(&s->last, out, in + rank * n, came, s->sig.count);
        return;
    }
    const uint8_t *own = s->sig.kind == RG_KIND_ALL_GATHER ? in : in + rank * n;
    if (out + rank * n != own) memcpy(out + rank * n, own, n);
    memcpy(out + (1 - rank) * n, came, n);
}

/* What the peers say of how far they are is for the core as well, which is told it before the operations are. */
static void take_all(rg_group_t *g, const rg_roster_t *r) {
    rg_quick_t *q = &g->quick;
    if (q->note_of != r->data_epoch) memset(q->note, 0, sizeof q->note);
    q->note_of = r->data_epoch;
    for (uint32_t i = 0; i < r->n; i++) {
        if (i == r->rank) continue;
        uint64_t note = g->tp_ops->taken(g->tp, r->links[i]);
        if (note <= q->note[i]) continue;
        q->note[i] = note;
        g->links[r->links[i]].note = note;
        g->links[r->links[i]].noted = 1;
        g->notes_due++;
    }
}

static void finish(rg_group_t *g, const rg_quick_shape_t *s, const rg_tag_t *tag, rg_kept_t *kept) {
    rg_quick_t *q = &g->quick;
    take_all(g, s->roster);
    g->operations++;
    g->next_seq++;
    q->runs++;
    kept->key = (rg_op_key_t){ tag->gen, tag->op, RG_SET_ALL };
    q->done[q->n_done++] = (rg_quick_done_t){ kept->key, s->sig, kept };
    rg_say_note(g, rg_key_note((rg_op_key_t){ tag->gen, tag->op + 1, RG_SET_ALL }), 0);
    forget_passed(g, s->roster);
}

static void tell_result(rg_group_t *g, const rg_quick_shape_t *s, rg_result_t *to, uint64_t start) {
    const rg_roster_t *r = s->roster;
    rg_result_t res = RG_RESULT_INIT;
    res.contributors = r->n;
    res.epoch = r->data_epoch;
    res.bytes_sent = (r->n - 1) * s->bytes;
    for (uint32_t i = 0; i < r->n; i++)
        if (i != r->rank) res.bytes_received += bytes_of(s, i);
    res.start_ns = start;
    res.end_ns = rg_os_now_ns();
    rg_result_out(to, &res, r->ids, r->n);
    if (!rg_kind_shaped((rg_kind_t)s->sig.kind)) g->told_n = r->n; /* the program knows from here on */
}

/* 1: it is done. 0: it is to be called in the general way, which must take it that *sent have been sent to: then there
 * is nothing left that could refuse it. Locked. */
int rg_quick_run(rg_group_t *g, const rg_quick_call_t *c, uint32_t *sent) {
    rg_quick_t *q = &g->quick;
    *sent = 0;
    rg_let_others_in(g); /* a tight loop of these would keep the lock for itself */
    if (q->n_done == RG_QUICK_DONE) rg_quick_tell(g);
    const rg_quick_shape_t *s = shape_of(g, c);
    const void *part[RG_QUICK_PEERS];
    if (!s || !buffers_fit(s, c->in, c->out) || !calm(g, s)) return 0;
    rg_kept_t *kept = rg_kept_new(g, s->keep_bytes, &s->sig);
    if (!kept) return 0;
    const rg_roster_t *r = s->roster;
    const rg_tag_t tag = { r->data_epoch, g->gen, g->next_seq, 0, s->tag_sig };
    const void *own = c->in;
    if (s->how == RG_QUICK_FOLD && (s->acc != s->elem || s->sig.op == RG_AVG)) { /* an average's is scaled before */
        own = q->acc + BYTES_MOST;
        rg_red_copy(&s->own, q->acc + BYTES_MOST, c->in, s->bytes / s->acc);
    }
    if (s->how == RG_QUICK_PAIR && s->sig.kind != RG_KIND_ALL_GATHER)
        own = (const uint8_t *)c->in + (1 - r->rank) * s->bytes;
    uint64_t now = rg_os_now_ns();
    *sent = put_all(g, s, &tag, own);
    part[r->rank] = own;
    uint32_t all = ((1u << r->n) - 1) & ~(1u << r->rank);
    if (*sent != all || !all_come(g, s, &tag, part, now)) {
        rg_kept_put(g, kept);
        return 0;
    }
    uint8_t *to = kept->block ? kept->block->p : NULL;
    if (s->how == RG_QUICK_PAIR) join_pair(s, c->in, c->out, own, part[1 - r->rank], kept);
    else if (s->how == RG_QUICK_FOLD) fold(q, s, c->in, part, to);
    else if (s->how == RG_QUICK_GATHER)
        for (uint32_t i = 0; i < r->n; i++) memcpy(to + i * s->bytes, part[i], s->bytes);
    else if (s->how == RG_QUICK_SPREAD && to) memcpy(to, part[s->root], s->keep_bytes);
    /* The root's buffer is as it was, and may be one that cannot be written. */
    if (to && s->how != RG_QUICK_PAIR && (s->how != RG_QUICK_SPREAD || r->rank != s->root)) hand_out(s, to, c->out);
    finish(g, s, &tag, kept);
    if (c->result) tell_result(g, s, c->result, now);
    g->last_drive_ns = now;
    rg_progress_due(g, now);
    return 1;
}
