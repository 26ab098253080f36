/* ops.c: the life of an operation: numbered, announced to the core, run, and ended as the core decides. The core's
 * verdicts are the only way to an outcome; this file carries them out on buffers. It relies on the group's lock. */
#include "assume.h"
#include "core/text.h"
#include "engine/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FETCH_STEP 0xffffffffu
#define COOKIE_SERVE (1ull << 63)
#define KEPT_MAX 64u /* copies that the core asks for at one time (W2 of docs/protocol.md) */

static uint64_t mix64(uint64_t a, uint64_t b) {
    uint64_t h = (a ^ b * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 31) * 0x94d049bb133111ebu;
    return h ^ h >> 29;
}

static uint32_t sig_hash(const rg_op_sig_t *s, uint32_t more) {
    uint64_t h = (uint64_t)s->kind | (uint64_t)s->dtype << 8 | (uint64_t)s->op << 16 | (uint64_t)s->on_fault << 24 |
                 (uint64_t)s->rule_l << 32;
    h = mix64(mix64(h, s->root), mix64(s->count, (uint64_t)s->variant << 32 | more));
    return (uint32_t)(h ^ h >> 32);
}

/* ---- Numbering --------------------------------------------------------------------------------------------------- */

static rg_tagseq_t *tag_slot(rg_group_t *h, uint64_t set, uint32_t tag) {
    uint32_t i = (uint32_t)(mix64(set, tag) >> 32) & (h->cap_tags - 1);
    while (h->tags[i].used && (h->tags[i].tag != tag || h->tags[i].set != set)) i = (i + 1) & (h->cap_tags - 1);
    return &h->tags[i];
}

static int tags_grow(rg_group_t *h) {
    uint32_t old = h->cap_tags;
    rg_tagseq_t *was = h->tags, *grown = calloc(old ? (size_t)old * 2 : 64, sizeof *grown);
    if (!grown) return 0;
    h->tags = grown;
    h->cap_tags = old ? old * 2 : 64;
    for (uint32_t i = 0; i < old; i++)
        if (was[i].used) *tag_slot(h, was[i].set, was[i].tag) = was[i];
    free(was);
    return 1;
}

/* The counter of a set and tag: in a root of this generation, in a child since it was made. NULL when memory is out. */
static uint32_t *seq_counter(rg_group_t *h, uint64_t set, uint32_t tag) {
    if (!tag && set == h->set) return &h->next_seq;
    if (h->n_tags * 2 >= h->cap_tags && !tags_grow(h)) return NULL;
    rg_tagseq_t *t = tag_slot(h, set, tag);
    if (!t->used) {
        *t = (rg_tagseq_t){ set, tag, 0, 1 };
        h->n_tags++;
    }
    return &t->seq;
}

/* ---- Objects ----------------------------------------------------------------------------------------------------- */

rg_request_t *rg_op_alloc(rg_group_t *h) {
    rg_group_t *g = h->root ? h->root : h;
    rg_request_t *op = g->free_ops;
    if (op) {
        g->free_ops = op->next_free;
    } else {
        if (g->n_ops == 0x7fff) return NULL;
        if (g->n_ops == g->cap_ops) {
            uint32_t cap = g->cap_ops ? g->cap_ops * 2 : 32;
            rg_request_t **grown = realloc(g->ops, cap * sizeof *grown);
            if (!grown) return NULL;
            g->ops = grown;
            g->cap_ops = cap;
        }
        op = calloc(1, sizeof *op);
        if (!op) return NULL;
        op->g = g;
        op->slot = g->n_ops;
        g->ops[g->n_ops++] = op;
    }
    op->next_free = NULL;
    op->h = h;
    op->taken = 1;
    op->blocking = op->failing = op->executing = op->spoiled = 0;
    op->presend = 0;
    op->pair = 0;
    op->orphan = 0;
    op->refused = RG_OK;
    op->in_place = op->covers = op->weighted = op->self = op->stale = op->saved_whole = 0;
    op->in.kind = op->out.kind = RG_LAYOUT_PLAIN;
    op->in.base = op->out.base = NULL;
    op->offs = op->lens = op->in_offs = op->in_lens = NULL;
    op->scale = op->scale_after = op->weight = 0;
    op->shape_n = op->tag = 0;
    op->keep_bytes = 0;
    op->key.set = h->set;
    op->batch = op->batch_first = op->batch_next = NULL;
    op->n_contributors = 0;
    op->frozen_at = 0;
    op->give_up_ns = 0;
    op->uid++;
    op->state = RG_OPS_NEW;
    memset(&op->res, 0, offsetof(rg_result_t, text) + 1);
    op->res.weight_sum = 0;
    return op;
}

/* Room that stays with the object for the next operation. */
static void *op_room(void *old, size_t *cap, size_t n, size_t elem) {
    if (n <= *cap) return old;
    void *p = n > SIZE_MAX / elem ? NULL : realloc(old, n * elem);
    if (p) *cap = n;
    return p;
}

uint64_t *rg_op_nums(rg_request_t *op, size_t n) {
    uint64_t *p = op_room(op->nums, &op->cap_nums, n, sizeof *p);
    if (p) op->nums = p;
    return p;
}

void **rg_op_ptrs(rg_request_t *op, size_t n) {
    void **p = op_room(op->ptrs, &op->cap_ptrs, n, sizeof *p);
    if (p) op->ptrs = p;
    return p;
}

void rg_op_free(rg_request_t *op) {
    op->taken = 0;
    op->next_free = op->g->free_ops;
    op->g->free_ops = op;
}

void rg_op_destroy(rg_request_t *op) {
    free(op->rem);
    free(op->ready);
    free(op->inflight);
    free(op->next_send);
    free(op->saved);
    free(op->sinks);
    free(op->nums);
    free(op->ptrs);
    free(op->contributors);
    free(op);
}

static uint32_t op_bucket(rg_op_key_t key) {
    return (uint32_t)(key.op * 0x9e3779b1u ^ key.op >> 32 ^ key.set * 0x85ebca6bu) & (RG_OP_HASH - 1);
}

static int same_key(rg_op_key_t a, rg_op_key_t b) { return a.op == b.op && a.gen == b.gen && a.set == b.set; }

rg_request_t *rg_op_find(rg_group_t *g, rg_op_key_t key) {
    rg_request_t *op = g->op_hash[op_bucket(key)];
    while (op && !same_key(op->key, key)) op = op->next_hash;
    return op;
}

void rg_op_link(rg_request_t *op) {
    rg_group_t *g = op->g;
    rg_request_t **bucket = &g->op_hash[op_bucket(op->key)];
    op->next_hash = *bucket;
    *bucket = op;
    op->prev = NULL;
    op->next = g->open_ops;
    if (op->next) op->next->prev = op;
    g->open_ops = op;
    g->n_open++;
    if (!op->blocking) g->async_work++;
}

static void op_unlink(rg_group_t *g, rg_request_t *op) {
    rg_request_t **at = &g->op_hash[op_bucket(op->key)];
    while (*at != op) at = &(*at)->next_hash;
    *at = op->next_hash;
    if (op->prev) op->prev->next = op->next;
    else g->open_ops = op->next;
    if (op->next) op->next->prev = op->prev;
    op->prev = op->next = NULL;
    g->n_open--;
    if (!op->blocking) g->async_work--;
}

/* ---- Submitting -------------------------------------------------------------------------------------------------- */

void rg_op_refuse(rg_request_t *op, rg_status_t st, const char *why) {
    op->refused = st;
    rg_text_copy(op->res.text, sizeof op->res.text, why);
    /* Nothing of the caller's is looked at from here on. */
    op->in.kind = op->out.kind = RG_LAYOUT_PLAIN;
    op->in.base = op->out.base = NULL;
    op->in_place = op->covers = 0;
    op->bytes = op->keep_bytes = 0;
}

/* Translates the caller's root rank into a member. Ranks mean the view in which the operation was first started by
 * anybody, so that a view change between two members' calls does not give them two roots. */
static rg_status_t op_root(rg_request_t *op) {
    rg_group_t *g = op->g;
    uint64_t epoch = rg_member_numbering(g->core, op->key);
    rg_roster_t *r = rg_roster_for(op->h, op->key.gen);
    if (!r) return RG_ERR_NOMEM;
    rg_status_t st = RG_OK;
    uint32_t n = r->n;
    uint64_t *past = NULL;
    const uint64_t *ids = r->ids;
    if (epoch && epoch != r->data_epoch) {
        n = rg_roster_past(op->h, epoch, op->key.gen, NULL, 0);
        ids = past = malloc((n + 1) * sizeof *past);
        if (past) rg_roster_past(op->h, epoch, op->key.gen, past, n);
        else st = RG_ERR_NOMEM;
    }
    if (st == RG_OK && op->root_arg < n) op->sig.root = ids[op->root_arg];
    else if (st == RG_OK && op->root_arg < op->h->told_n)
        op->sig.root = RG_ROOT_GONE; /* a rank of the group as the program knows it: others may have called the same */
    else if (st == RG_OK) st = RG_ERR_INVALID;
    free(past);
    if (st == RG_ERR_INVALID && op->refused == RG_OK)
        rg_group_set_errmsg(op->h, "root %u: this group has ranks 0 to %u", op->root_arg, r->n - 1);
    if (st == RG_ERR_INVALID && r->n > 1) {
        if (op->refused == RG_OK) rg_op_refuse(op, st, op->h->errmsg);
        st = RG_OK;
    }
    rg_roster_put(r);
    return st;
}

static const char stale_text[] =
    "a member was lost since this process was last told how many there are; call again with the shape of the new view";

/* Gives the operation its place in the order of calls. A child and a pair keep numbers of their own. */
static rg_status_t op_number(rg_request_t *op, uint32_t **seq) {
    rg_group_t *h = op->h, *g = op->g;
    uint32_t tag = op->tag;
    /* Messages between two members of a child must not be matched with those of its parent. */
    if (h->root && op->key.set != h->set) tag = (uint32_t)mix64(h->set, tag);
    *seq = seq_counter(h, op->key.set, tag);
    if (!*seq) return RG_ERR_NOMEM;
    if (**seq == UINT32_MAX) {
        rg_group_set_errmsg(h, "all numbers of operations are used up; call rg_group_boundary now and then");
        return RG_ERR_RESOURCE;
    }
    op->key.gen = h->root && op->key.set == h->set ? h->gen : g->gen;
    op->key.op = (uint64_t)tag << 32 | **seq;
    op->tag_gen = op->key.set ? mix64(op->key.set, op->key.gen) | 1ull << 63 : op->key.gen;
    op->sig.root = 0;
    return rg_kind_rooted((rg_kind_t)op->sig.kind) ? op_root(op) : RG_OK;
}

/* Who contributed is told with every success, so the list has its room before the operation is announced: no view that
 * its result can come from has more members than the largest of those that are remembered. */
static int contributors_reserve(rg_request_t *op) {
    uint32_t most = op->g->past_most;
    if (op->cap_contributors >= most) return 1;
    uint64_t *grown = realloc(op->contributors, most * sizeof *grown);
    if (!grown) return 0;
    op->contributors = grown;
    op->cap_contributors = most;
    return 1;
}

rg_status_t rg_handle_ended(rg_group_t *h) {
    rg_group_t *g = h->root ? h->root : h;
    int over = g->phase != RG_PHASE_MEMBER;
    if (!over && !g->leaving && !h->ended) return RG_OK;
    rg_status_t st = !over ? g->leaving ? RG_ERR_CLOSED : h->ended : g->over ? g->over : RG_ERR_CLOSED;
    int left = st == RG_ERR_CLOSED && (over || g->leaving);
    rg_group_set_errmsg(h, "%s",
                        left   ? "rg_group_leave was called: this member is no part of the group any more"
                        : over ? g->why_over
                               : h->why_over);
    return st;
}

/* Numbers the operation and announces it. After RG_OK its outcome comes by and by (perhaps before this returns). */
rg_status_t rg_op_submit(rg_request_t *op) {
    rg_group_t *g = op->g, *h = op->h;
    uint32_t *seq;
    if (rg_handle_ended(h) != RG_OK) return rg_handle_ended(h);
    rg_status_t st = contributors_reserve(op) ? op_number(op, &seq) : RG_ERR_NOMEM;
    if (st == RG_ERR_NOMEM) rg_group_set_errmsg(h, "no memory for this operation; free some and call again");
    if (st != RG_OK) return st;
    op->state = RG_OPS_NEW;
    g->now_ns = op->res.start_ns;
    rg_op_link(op);
    ++*seq;
    if (op->self) return rg_self_submit(op);
    rg_member_event_t ev = { .type = RG_MEV_OP_START, .now_ns = op->res.start_ns, .key = op->key, .sig = op->sig };
    st = rg_core_event(g, &ev);
    if (st == RG_OK || op->state == RG_OPS_FINISHED) return RG_OK; /* when the group ended the operation says why */
    /* The event was not taken: as if the call had not been made. */
    if (!h->root && !op->key.set && g->boundary_gen > g->gen)
        rg_group_set_errmsg(h, "boundary %llu has passed; take note of it with rg_group_boundary before you go on",
                            (unsigned long long)g->boundary_gen);
    else rg_group_set_errmsg(h, "%s", rg_member_why(g->core));
    --*seq;
    op_unlink(g, op);
    op->state = RG_OPS_FINISHED;
    return st;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static void op_drop_run(rg_request_t *op) {
    rg_exec_stop(op);
    rg_op_drop_buffers(op);
    rg_plan_put(op->plan);
    rg_roster_put(op->roster);
    op->plan = NULL;
    op->roster = NULL;
}

/* Another member issued this operation with other arguments: the text says who. With equal ones (same) it sends more or
 * less than is expected: counts that the two do not have alike. */
static void op_mismatch(rg_request_t *op, uint64_t id, int same) {
    char text[160];
    const char *what =
        same ? "sends another number of elements than is expected of it" : "called a different operation";
    uint32_t rank = UINT32_MAX;
    for (uint32_t i = 0; op->roster && i < op->roster->n; i++)
        if (op->roster->ids[i] == id) rank = i;
    if (rank == UINT32_MAX) snprintf(text, sizeof text, "member %llu %s", (unsigned long long)id, what);
    else snprintf(text, sizeof text, "rank %u (member %llu) %s", rank, (unsigned long long)id, what);
    rg_op_fail(op, RG_ERR_MISMATCH, id, text);
}

/* A message for this operation that came before it was started, with other arguments. */
static void op_check_strays(rg_request_t *op) {
    rg_group_t *g = op->g;
    for (uint32_t i = 0; i < 16; i++) {
        const rg_tag_t *t = &g->strays[i].tag;
        if (t->sig && t->op == op->key.op && t->gen == op->tag_gen && t->epoch == op->roster->data_epoch &&
            t->sig != op->tag_sig && t->ord < RG_SERVE_ORD)
            op_mismatch(op, g->strays[i].from, 0);
    }
}

/* The caller's buffers have a place for every member that took part when it called. */
static int op_fits(const rg_request_t *op) {
    return (!op->shape_n || op->shape_n == op->roster->n) && !op->stale &&
           (op->sig.kind != RG_KIND_P2P || op->roster->n == 2);
}

/* Records for the copies of all operations in flight, as many as the core lets be kept: at the commit itself nothing
 * can be refused any more, for the result is shown then, and the core relies on the copy. */
static int kept_reserve(rg_group_t *g) {
    uint32_t need = g->n_open < KEPT_MAX ? g->n_open : KEPT_MAX, n = 0;
    for (rg_kept_t *k = g->kept_free; k && n < need; k = k->next) n++;
    for (; n < need; n++) {
        rg_kept_t *k = calloc(1, sizeof *k);
        if (!k) return 0;
        k->next = g->kept_free;
        g->kept_free = k;
    }
    return 1;
}

/* It was refused here, for its arguments, and the others cannot know. */
static void op_end_refused(rg_request_t *op) {
    char text[RG_CORE_TEXT_MAX];
    if (op->roster)
        snprintf(text, sizeof text, "rank %u (member %llu) was refused this call: %.180s", op->roster->rank,
                 (unsigned long long)op->g->self_id, op->res.text);
    else snprintf(text, sizeof text, "a member was refused this call: %.180s", op->res.text);
    rg_op_fail(op, RG_ERR_MISMATCH, op->g->self_id, text);
}

/* What is to be run: plan and buffers, for op->roster. */
static rg_status_t op_prepare_run(rg_request_t *op, char *text, size_t cap) {
    rg_coll_desc_t d;
    rg_status_t st = RG_ERR_NOMEM;
    rg_op_describe(op, op->roster, &d);
    op->plan = rg_plan_get(op->g, &d, op->roster, &st, text, cap);
    if (!op->plan) return st;
    return op->sig.rule_l || kept_reserve(op->g) ? rg_op_buffers(op) : RG_ERR_NOMEM;
}

static void op_run(rg_request_t *op) {
    char text[RG_CORE_TEXT_MAX] = "";
    rg_status_t st = RG_ERR_NOMEM;
    uint32_t sent = op->presend;
    op->presend = 0; /* of this data epoch alone, however this run ends */
    op_drop_run(op);
    op->state = RG_OPS_RUNNING;
    op->roster = rg_roster_of(op);
    if (op->refused != RG_OK) {
        op_end_refused(op);
        return;
    }
    if (op->roster && !op_fits(op)) {
        rg_op_fail(op, RG_ERR_PEER_LOST, 0, stale_text);
        return;
    }
    if (op->roster) st = op_prepare_run(op, text, sizeof text);
    if (st == RG_OK || op->plan == NULL) op->tag_sig = op->plan ? sig_hash(&op->sig, op->plan->hash) | 1 : 0;
    if (op->plan && st == RG_OK) st = rg_exec_start(op);
    if (!op->plan || st != RG_OK) {
        rg_op_fail(op, st, 0, text[0] ? text : rg_strerror(st));
        return;
    }
    if (sent) rg_exec_sent(op, sent);
    else if (op->blocking) rg_quick_learn(op);
    op_check_strays(op);
    rg_exec_pump(op);
}

void rg_op_fetched(rg_request_t *op) {
    rg_member_event_t ev = { .type = RG_MEV_OP_FETCHED, .key = op->key };
    rg_core_event(op->g, &ev);
}

/* FORWARD of what two members run: the other one gives its message again, and here it runs as ever, but that what goes
 * the other way has been there. */
static void op_fetch_pair(rg_request_t *op) {
    char text[RG_CORE_TEXT_MAX] = "";
    op->roster = rg_roster_of(op);
    if (op->roster && !op_fits(op)) {
        rg_op_fail(op, RG_ERR_PEER_LOST, 0, stale_text);
        return;
    }
    rg_status_t st = op->roster ? op_prepare_run(op, text, sizeof text) : RG_ERR_NOMEM;
    op->tag_sig = sig_hash(&op->sig, 0);
    if (st == RG_OK) st = rg_exec_start(op);
    if (st != RG_OK) {
        rg_op_fail(op, st, 0, text[0] ? text : rg_strerror(st));
        return;
    }
    uint64_t bytes = op->res.bytes_sent;
    rg_exec_sent(op, 1u << (1 - op->roster->rank));
    op->res.bytes_sent = bytes; /* it is not sent twice */
    rg_exec_pump(op);
}

/* FORWARD: the others have the result; receive it instead of computing it. */
static void op_fetch(rg_request_t *op, uint64_t donor) {
    rg_group_t *g = op->g;
    op_drop_run(op);
    op->state = RG_OPS_FETCHING;
    if (op->pair && op->keep_bytes) {
        op_fetch_pair(op);
        return;
    }
    op->roster = rg_roster_of(op);
    uint32_t link = rg_link_of(g, donor);
    if (op->keep_bytes && !op->keep) op->keep = rg_block_get(g, op->keep_bytes);
    if (!op->roster || (op->keep_bytes && !op->keep) || !kept_reserve(g)) {
        rg_op_fail(op, RG_ERR_NOMEM, 0, rg_strerror(RG_ERR_NOMEM));
        return;
    }
    rg_tp_recv_t rcv = { .tag = { op->roster->data_epoch, op->key.gen, op->key.op, RG_SERVE_ORD,
                                  sig_hash(&op->sig, 0) },
                         .len = op->keep_bytes,
                         .dst = op->keep_bytes ? op->keep->p : NULL,
                         .cookie = (uint64_t)op->slot << 48 | (uint64_t)(op->uid & 0xffff) << 32 | FETCH_STEP };
    if (link == UINT32_MAX) return; /* the donor is lost again: another view change follows */
    int rc = g->tp_ops->recv(g->tp, link, &rcv);
    if (rc == RG_TP_DONE_NOW) rg_op_fetched(op); /* the donor was told first, and quick */
    else if (rc < 0) rg_op_fail(op, (rg_status_t)rc, 0, rg_strerror((rg_status_t)rc));
}

rg_kept_t *rg_kept_new(rg_group_t *g, uint64_t bytes, const rg_op_sig_t *sig) {
    rg_kept_t *k = g->kept_free;
    if (k) g->kept_free = k->next;
    else if (!(k = calloc(1, sizeof *k))) return NULL;
    *k = (rg_kept_t){ .len = bytes, .sig = sig_hash(sig, 0), .block = bytes ? rg_block_get(g, bytes) : NULL };
    if (k->block || !bytes) return k;
    rg_kept_put(g, k);
    return NULL;
}

void rg_kept_add(rg_group_t *g, rg_kept_t *k) {
    k->next = g->kept;
    g->kept = k;
}

void rg_kept_put(rg_group_t *g, rg_kept_t *k) {
    rg_block_put(g, k->block);
    k->block = NULL;
    k->next = g->kept_free;
    g->kept_free = k;
}

static rg_kept_t *kept_find(rg_group_t *g, rg_op_key_t key) {
    rg_kept_t *k = g->kept;
    while (k && !same_key(k->key, key)) k = k->next;
    return k;
}

static void kept_drop(rg_group_t *g, rg_kept_t *k) {
    rg_kept_t **at = &g->kept;
    while (*at != k) at = &(*at)->next;
    *at = k->next;
    rg_kept_put(g, k);
}

static void kept_serve(rg_group_t *g, rg_op_key_t key, uint64_t peer) {
    rg_kept_t *k = kept_find(g, key);
    uint32_t link = rg_link_of(g, peer);
    if (!k || link == UINT32_MAX) return;
    const rg_core_view_t *v = rg_member_view(g->core);
    rg_tp_send_t snd = { .tag = { v->data_epoch, key.gen, key.op, RG_SERVE_ORD, k->sig },
                         .buf = k->block ? k->block->p : NULL,
                         .len = k->len,
                         .cookie = COOKIE_SERVE | (uint64_t)(uintptr_t)k };
    if (g->tp_ops->send(g->tp, link, &snd) == RG_OK) k->serving++;
}

static void kept_release(rg_group_t *g, rg_op_key_t key) {
    rg_kept_t *k = kept_find(g, key);
    if (!k) return;
    k->released = 1;
    if (!k->serving) kept_drop(g, k);
}

void rg_kept_free_all(rg_group_t *g) {
    while (g->kept) kept_drop(g, g->kept);
    while (g->kept_free) {
        rg_kept_t *k = g->kept_free;
        g->kept_free = k->next;
        free(k);
    }
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

static void op_contributors(rg_request_t *op, uint64_t computed) {
    uint32_t n = rg_roster_past(op->h, computed, op->key.gen, op->contributors, op->cap_contributors);
    RG_ASSUME(n <= op->cap_contributors); /* contributors_reserve() */
    op->n_contributors = n < op->cap_contributors ? n : op->cap_contributors;
    op->res.contributors = n;
    op->res.epoch = computed;
}

/* What the program knows of the number of members, now that it has this outcome. */
static void op_tells(rg_request_t *op) {
    if (op->res.status != RG_ERR_PEER_LOST && op->res.status != RG_ERR_ROOT_LOST) return;
    rg_roster_t *r = op->g->phase == RG_PHASE_MEMBER ? rg_roster_for(op->h, op->h->gen) : NULL;
    if (r) op->h->told_n = r->n;
    rg_roster_put(r);
}

void rg_op_finish(rg_request_t *op, rg_status_t status, uint64_t blame, const char *text) {
    rg_group_t *g = op->g;
    char why[sizeof op->res.text];
    if (op->state == RG_OPS_FINISHED) return;
    if (op->refused != RG_OK) { /* whatever the others are told: the caller is told what is wrong with its call */
        memcpy(why, op->res.text, sizeof why);
        op->ended = status;
        status = op->refused, blame = 0, text = why;
    }
    op_drop_run(op);
    rg_block_put(g, op->undo);
    rg_block_put(g, op->keep);
    rg_block_put(g, op->result);
    op->undo = op->keep = op->result = NULL;
    op->saved_whole = 0;
    op->state = RG_OPS_FINISHED;
    op->res.status = status;
    op->res.end_ns = rg_os_now_ns();
    op->res.lost_member = blame;
    op->res.text[0] = 0;
    if (status == RG_OK) {
        g->operations++;
    } else {
        snprintf(op->res.text, sizeof op->res.text, "%s", text && *text ? text : rg_strerror(status));
        rg_log_tidy(op->res.text); /* others have a say in it */
        if (op->refused == RG_OK)  /* else it was told when it was refused */
            rg_group_set_errmsg(op->h, "operation %llu.%llu: %s", (unsigned long long)op->key.gen,
                                (unsigned long long)(op->key.op & 0xffffffffu), op->res.text);
        op_tells(op);
    }
    op_unlink(g, op);
    if (op->batch) rg_batch_part_ended(op->batch);
    if (op->orphan) rg_op_free(op);
    rg_wake_callers(g);
}

static void op_keep_copy(rg_request_t *op) {
    rg_group_t *g = op->g;
    rg_kept_t *k = g->kept_free; /* there is one: see kept_reserve() */
    if (!k) return;
    g->kept_free = k->next;
    *k = (rg_kept_t){ .key = op->key, .block = op->keep, .len = op->keep_bytes, .sig = sig_hash(&op->sig, 0) };
    op->keep = NULL;
    rg_kept_add(g, k);
}

static void op_commit(rg_request_t *op, uint64_t computed, int keep) {
    if (op->keep && op->pair && keep) rg_op_keep_sent(op); /* before the result covers it */
    if (op->keep && op->bytes) rg_op_take_out(op);
    if (op->roster && computed == op->roster->data_epoch && op->roster->n <= op->cap_contributors) {
        memcpy(op->contributors, op->roster->ids, op->roster->n * sizeof *op->contributors);
        op->n_contributors = op->res.contributors = op->roster->n;
        op->res.epoch = computed;
    } else {
        op_contributors(op, computed);
    }
    if (keep) op_keep_copy(op);
    rg_op_finish(op, RG_OK, 0, NULL);
}

void rg_op_complete(rg_request_t *op) {
    op->state = RG_OPS_COMPLETE;
    rg_member_event_t ev = { .type = RG_MEV_OP_COMPLETE, .now_ns = op->g->now_ns, .key = op->key };
    rg_core_event(op->g, &ev);
}

void rg_op_done(rg_request_t *op) {
    if (!op->sig.rule_l) return; /* committed at completion, or the core makes it wait for room to keep copies */
    rg_member_event_t ev = { .type = RG_MEV_OP_DONE, .now_ns = op->g->now_ns, .key = op->key };
    rg_core_event(op->g, &ev);
}

/* When a member stops waiting for somebody to decide: past what a coordinator needs to notice one more death. */
static uint64_t give_up_at(const rg_group_t *g) {
    return rg_os_now_ns() + (uint64_t)g->cfg.heartbeat_ms * 2000000ull + 1000000000ull;
}

/* Wants the operation ended everywhere with this status. */
void rg_op_fail(rg_request_t *op, rg_status_t status, uint64_t blame, const char *text) {
    rg_group_t *g = op->g;
    if (op->failing || op->state == RG_OPS_FINISHED) return;
    if (op->self) { /* nobody else has heard of it */
        rg_self_forget(op);
        rg_op_finish(op, status, blame, text);
        return;
    }
    op->failing = 1;
    op->give_up_ns = give_up_at(g);
    rg_member_event_t ev = { .type = RG_MEV_OP_FAIL, .key = op->key, .status = status, .peer = blame, .text = text };
    rg_core_event(g, &ev);
}

void rg_ops_finish_all(rg_group_t *g, rg_status_t status, const char *text) {
    while (g->open_ops) {
        rg_request_t *op = g->open_ops;
        rg_self_forget(op);
        rg_undo_restore(op);
        rg_op_finish(op, status, 0, text);
    }
}

/* Of one handle: ended everywhere, which takes as long as it takes the coordinator to say so. */
void rg_ops_fail_of(rg_group_t *h, rg_status_t status, const char *text) {
    rg_group_t *g = h->root ? h->root : h;
    for (int again = 1; again;) { /* failing one may end others */
        again = 0;
        for (rg_request_t *op = g->open_ops; op && !again; op = op->next)
            if (op->h == h && !op->failing) {
                rg_op_fail(op, status, g->self_id, text);
                again = 1;
            }
    }
}

int rg_ops_any_of(const rg_group_t *h) {
    const rg_group_t *g = h->root ? h->root : h;
    for (const rg_request_t *op = g->open_ops; op; op = op->next)
        if (op->h == h) return 1;
    return 0;
}

/* Whether the receive of another member's result is still posted: a fence has ended those of earlier data epochs. */
static int op_fetches_now(const rg_request_t *op) {
    const rg_core_view_t *v = rg_member_view(op->g->core);
    return op->state == RG_OPS_FETCHING && op->roster && v && op->roster->data_epoch == v->data_epoch;
}

void rg_op_verdict(rg_group_t *g, const rg_todo_t *t) {
    if (t->type == RG_MACT_OP_RELEASE) {
        kept_release(g, t->key);
        if (g->leaving) rg_wake_callers(g); /* rg_group_leave() waits for the last */
        return;
    }
    if (t->type == RG_MACT_OP_SERVE) {
        kept_serve(g, t->key, t->peer);
        return;
    }
    rg_request_t *op = rg_op_find(g, t->key);
    if (!op && t->type == RG_MACT_OP_COMMIT) rg_quick_commit(g, t->key, (int)t->keep);
    if (!op) return;
    if (op->frozen_at) {
        op->res.fault_ns += rg_os_now_ns() - op->frozen_at;
        op->frozen_at = 0;
    }
    switch (t->type) {
    case RG_MACT_OP_RUN:
        if (op->sig.root) op->sig.root = t->peer; /* called behind a fence: the same rank of the new view is meant */
        op_run(op);
        break;
    case RG_MACT_OP_RESTART:
        if (op->failing) op->give_up_ns = give_up_at(g); /* somebody does decide */
        rg_undo_restore(op);
        op->res.retries++;
        if (op->spoiled) { /* to compute on would be to add results to results */
            op_drop_run(op);
            op->state = RG_OPS_RUNNING;
            rg_op_fail(op, RG_ERR_PEER_LOST, 0,
                       "a member was lost, and the input is overwritten because undo is off: it cannot be done again");
        } else {
            op_run(op);
        }
        break;
    case RG_MACT_OP_FORWARD:
        if (op->failing) op->give_up_ns = give_up_at(g);
        rg_undo_restore(op);
        op_fetch(op, t->peer);
        break;
    case RG_MACT_OP_COMMIT: op_commit(op, t->computed, (int)t->keep); break;
    default: /* ABORT */
        /* Without a fence before it: the coordinator is lost and the operation ends here alone. The caller gets its
         * buffers back, so what is posted on them must end, and nobody may be sent what the caller writes there next.
         * Others of this data epoch stall with it, until the view change that the core asks for. After a fence nothing
         * is posted, and the present data epoch is a new one, which must not be cut off. */
        if (op->executing || op_fetches_now(op)) rg_data_fence(g);
        rg_exec_stop(op);
        rg_undo_restore(op);
        rg_op_finish(op, t->status, t->peer, t->text);
        break;
    }
}

/* ---- What the transport reports ---------------------------------------------------------------------------------- */

static rg_request_t *op_by_tag(rg_group_t *g, const rg_tag_t *tag) {
    if (!(tag->gen >> 63)) return rg_op_find(g, (rg_op_key_t){ tag->gen, tag->op, RG_SET_ALL });
    rg_request_t *op = g->open_ops;
    while (op && (op->tag_gen != tag->gen || op->key.op != tag->op)) op = op->next;
    return op;
}

/* A member has issued an operation with this tag; whoever has not called it yet compares when it does. */
void rg_op_heard(rg_group_t *g, uint64_t from, const rg_tag_t *tag) {
    rg_request_t *op = op_by_tag(g, tag);
    if (op && op->executing && op->roster->data_epoch == tag->epoch && op->tag_sig != tag->sig &&
        tag->ord < RG_SERVE_ORD) {
        op_mismatch(op, from, 0);
        return;
    }
    g->strays[g->stray_at % 16].from = from;
    g->strays[g->stray_at++ % 16].tag = *tag;
}

void rg_op_completion(rg_group_t *g, const rg_completion_t *c) {
    if (c->event == RG_TP_UNEXPECTED) {
        rg_op_heard(g, g->links[c->link].id, &c->tag);
        return;
    }
    if (c->cookie & COOKIE_SERVE) {
        rg_kept_t *k = (rg_kept_t *)(uintptr_t)(c->cookie & ~COOKIE_SERVE);
        if (--k->serving == 0 && k->released) kept_drop(g, k);
        return;
    }
    uint32_t slot = (uint32_t)(c->cookie >> 48), step = (uint32_t)c->cookie;
    rg_request_t *op = slot < g->n_ops ? g->ops[slot] : NULL;
    if (!op || (op->uid & 0xffff) != (uint32_t)(c->cookie >> 32 & 0xffff) || op->state == RG_OPS_FINISHED) return;
    if (c->event == RG_TP_FAILED) {
        if (c->status == RG_TP_MISMATCH) op_mismatch(op, g->links[c->link].id, c->tag.sig == op->tag_sig);
        return; /* GONE, BROKEN: the link's end is told by itself; FENCED: we asked for it */
    }
    if (step == FETCH_STEP) {
        if (op->state == RG_OPS_FETCHING) rg_op_fetched(op);
        return;
    }
    if (!op->executing) return;
    rg_exec_step_done(op, step);
    rg_exec_pump(op);
}

/* ---- Deadlines --------------------------------------------------------------------------------------------------- */

uint64_t rg_ops_next_deadline(const rg_group_t *g) {
    uint64_t at = UINT64_MAX;
    for (const rg_request_t *op = g->open_ops; op; op = op->next) {
        uint64_t d = op->failing ? op->give_up_ns : op->deadline_ns, compare = rg_compare_at(op);
        if (d < at) at = d;
        if (compare < at) at = compare;
    }
    return at;
}

static rg_request_t *op_overdue(rg_group_t *g, uint64_t now) {
    for (rg_request_t *op = g->open_ops; op; op = op->next)
        if (now >= (op->failing ? op->give_up_ns : op->deadline_ns)) return op;
    return NULL;
}

void rg_ops_check_deadlines(rg_group_t *g, uint64_t now) {
    rg_request_t *op;
    while ((op = op_overdue(g, now)) != NULL) {
        if (op->failing) { /* nobody decides: the last resort, which ends this member */
            rg_group_over(g, RG_ERR_COORDINATOR,
                          "an operation passed its deadline and the coordinator did not decide its outcome");
            return;
        }
        uint64_t id = rg_exec_waits_for(op);
        char text[128];
        uint32_t rank = UINT32_MAX;
        for (uint32_t i = 0; id && i < op->roster->n; i++)
            if (op->roster->ids[i] == id) rank = i;
        if (rank != UINT32_MAX)
            snprintf(text, sizeof text, "deadline passed while waiting for rank %u (member %llu)", rank,
                     (unsigned long long)id);
        else if (op->self)
            snprintf(text, sizeof text, "deadline passed while waiting for this member's own %s",
                     op->self == 1 ? "rg_recv" : "rg_send");
        else snprintf(text, sizeof text, "deadline passed");
        rg_op_fail(op, RG_ERR_TIMEOUT, id, text);
    }
    rg_compare_tick(g, now);
}
