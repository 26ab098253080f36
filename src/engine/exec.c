/* exec.c: runs one schedule over the transport: issues steps whose dependencies are finished, lowest first, keeps the
 * undo log, and tells ops.c when phase 1 (my result is whole) and phase 2 (everybody's is) end. It relies on the
 * group's lock and never waits. It must not touch a user's buffer while the operation is stopped by a fence. */
#include "engine/group.h"

#include <stdlib.h>
#include <string.h>

static int bit_test(const uint64_t *w, uint32_t i) { return (int)(w[i >> 6] >> (i & 63) & 1); }
static void bit_set(uint64_t *w, uint32_t i) { w[i >> 6] |= 1ull << (i & 63); }
static void bit_clear(uint64_t *w, uint32_t i) { w[i >> 6] &= ~(1ull << (i & 63)); }

/* The address of a span that is one piece of memory; NULL where it is not (or where there is nothing). */
static uint8_t *span_ptr(const rg_request_t *op, rg_span_t sp) {
    if (op->buf[sp.buf]) return op->buf[sp.buf] + sp.off * op->buf_elem[sp.buf];
    return op->lay[sp.buf] ? rg_layout_piece(op->lay[sp.buf], sp.off, sp.len) : NULL;
}

static int in_pieces(const rg_request_t *op, rg_span_t sp) {
    uint64_t run;
    if (!op->lay[sp.buf] || !sp.len) return 0;
    rg_layout_at(op->lay[sp.buf], sp.off, &run);
    return run < sp.len;
}

/* Element i of a span, and no more in *run than follow without a break. */
static uint8_t *span_at(const rg_request_t *op, rg_span_t sp, uint64_t i, uint64_t *run) {
    uint64_t here = sp.len - i;
    uint8_t *p = NULL;
    if (op->lay[sp.buf]) p = rg_layout_at(op->lay[sp.buf], sp.off + i, &here);
    else if (op->buf[sp.buf]) p = op->buf[sp.buf] + (sp.off + i) * op->buf_elem[sp.buf];
    if (here < *run) *run = here;
    return p;
}

/* Before a final value is written over an input. Without a log the input is lost from here on: only where undo is off,
 * because a group of one never starts anything again. */
static void exec_cover(rg_request_t *op, rg_span_t dst) {
    if (dst.buf != RG_BUF_OUT || !dst.len) return;
    if (op->undo) rg_undo_cover(op, dst.off * op->elem, dst.len * op->elem);
    else op->spoiled |= op->covers && op->sig.rule_l;
}

/* What the result is multiplied by before it is rounded. */
static double after_of(const rg_request_t *op) {
    double after = op->scale_after != 0 ? op->scale_after : 1;
    return op->weighted ? after * op->share_after : after;
}

/* The prepared kernel for a combination of raw and partial operands. */
static const rg_red_t *exec_red(rg_request_t *op, uint32_t flags) {
    rg_red_t *r = &op->red[flags & 31];
    if (op->red_have >> (flags & 31) & 1) return r;
    /* A weighted average is a sum of inputs that have been made shares of it. */
    rg_op_t how = op->weighted ? RG_SUM : (rg_op_t)op->sig.op;
    if (rg_red_init(r, (rg_dtype_t)op->sig.dtype, how, op->roster->n, flags) != RG_OK) return NULL;
    double after = after_of(op);
    if (after != 1 && rg_red_scale_after(r, after) != RG_OK) return NULL;
    op->red_have |= 1u << (flags & 31);
    return r;
}

/* Why there is no kernel: the call has been checked but for a factor that depends on how many take part. */
static rg_status_t no_red(const rg_request_t *op) { return op->scale_after != 0 ? RG_ERR_INVALID : RG_ERR_NOTSUP; }

static uint32_t red_flags(const rg_step_t *st, int b_acc) {
    return (st->a.buf == RG_BUF_TMP ? RG_RED_A_ACC : 0) | (b_acc ? RG_RED_B_ACC : 0) |
           (st->dst.buf == RG_BUF_TMP ? RG_RED_DST_ACC : 0) | (st->flags & RG_STEP_FINAL ? RG_RED_FINAL : 0) |
           (st->flags & RG_STEP_SWAP ? RG_RED_SWAP : 0);
}

static void mark_ready(rg_request_t *op, uint32_t i) {
    if (op->plan->s->steps[i].kind == RG_STEP_SEND) {
        op->any_send = 1; /* it goes when it is its peer's turn */
    } else {
        bit_set(op->ready, i);
        op->any_ready = 1;
    }
}

/* Sinks for receives into pieces. */
static rg_status_t exec_sinks(rg_request_t *op, uint32_t n_steps) {
    if (n_steps <= op->cap_sinks || (!op->lay[RG_BUF_IN] && !op->lay[RG_BUF_OUT])) return RG_OK;
    free(op->sinks);
    op->sinks = malloc(n_steps * sizeof *op->sinks);
    op->cap_sinks = op->sinks ? n_steps : 0;
    return op->sinks ? RG_OK : RG_ERR_NOMEM;
}

/* Room for a schedule's state; kept with the operation object for the next time. */
static rg_status_t exec_room(rg_request_t *op, uint32_t n_steps, uint32_t n_ranks, uint32_t n_peers) {
    if (n_steps > op->cap_steps) {
        uint32_t cap = (n_steps + 63) & ~63u;
        uint32_t *rem = malloc(cap * sizeof *rem);
        uint64_t *bits = malloc((size_t)cap / 64 * 2 * sizeof *bits);
        if (!rem || !bits) {
            free(rem);
            free(bits);
            return RG_ERR_NOMEM;
        }
        free(op->rem);
        free(op->ready);
        op->rem = rem;
        op->ready = bits;
        op->cap_steps = cap;
    }
    if (n_ranks > op->cap_ranks) {
        uint8_t *p = realloc(op->inflight, n_ranks);
        if (!p) return RG_ERR_NOMEM;
        op->inflight = p;
        op->cap_ranks = n_ranks;
    }
    if (n_peers > op->cap_peers) {
        uint32_t *p = realloc(op->next_send, n_peers * sizeof *p);
        if (!p) return RG_ERR_NOMEM;
        op->next_send = p;
        op->cap_peers = n_peers;
    }
    op->words = (n_steps + 63) / 64;
    op->posted = op->ready + op->words;
    if (n_steps) memset(op->ready, 0, (size_t)op->words * 2 * sizeof *op->ready);
    memset(op->inflight, 0, n_ranks);
    if (n_peers) memset(op->next_send, 0, n_peers * sizeof *op->next_send);
    return RG_OK;
}

/* op->plan, op->roster and op->buf are set. Nothing is issued yet: rg_exec_pump() does. */
rg_status_t rg_exec_start(rg_request_t *op) {
    const rg_schedule_t *s = op->plan->s;
    rg_status_t st = exec_room(op, s->n_steps, op->roster->n, op->plan->n_peers);
    if (st == RG_OK) st = exec_sinks(op, s->n_steps);
    if (st != RG_OK) return st;
    op->left = s->n_steps;
    op->left1 = s->phase1_steps;
    op->any_ready = op->any_send = 0;
    uint64_t red_key = 1 | (uint64_t)op->weighted << 1 | (uint64_t)op->sig.dtype << 8 | (uint64_t)op->sig.op << 16 |
                       (uint64_t)op->roster->n << 32;
    op->share_after = 1;
    if (rg_op_reduces(op) && (op->weighted || op->red_key != red_key || op->red_after != op->scale_after)) {
        op->red_have = 0;
        op->red_key = red_key;
        op->red_after = op->scale_after;
    }
    if (s->n_steps) memcpy(op->rem, op->plan->rem, s->n_steps * sizeof *op->rem);
    for (uint32_t i = 0; i < s->n_steps; i++)
        if (!op->rem[i]) mark_ready(op, i);
    op->executing = 1;
    return RG_OK;
}

void rg_exec_stop(rg_request_t *op) {
    op->executing = 0;
    op->uid++; /* whatever still completes is of no interest */
}

static uint64_t exec_cookie(const rg_request_t *op, uint32_t step) {
    return (uint64_t)(op->slot & 0x7fff) << 48 | (uint64_t)(op->uid & 0xffff) << 32 | step;
}

static rg_tag_t exec_tag(const rg_request_t *op, uint32_t ord) {
    if (op->state == RG_OPS_FETCHING) ord = RG_SERVE_ORD; /* a pair's only message, given again (ops.c) */
    return (rg_tag_t){ op->roster->data_epoch, op->tag_gen, op->key.op, ord, op->tag_sig };
}

/* Bookkeeping of a finished step, without issuing what it frees. */
static void exec_finish(rg_request_t *op, uint32_t i) {
    const rg_plan_t *p = op->plan;
    op->left--;
    if (i < p->s->phase1_steps) op->left1--;
    for (uint32_t k = p->first_out[i]; k < p->first_out[i + 1]; k++)
        if (--op->rem[p->outs[k]] == 0) mark_ready(op, p->outs[k]);
}

void rg_exec_sent(rg_request_t *op, uint32_t ranks) {
    const rg_plan_t *p = op->plan;
    for (uint32_t k = 0; k < p->n_peers; k++) {
        uint32_t i = p->sends[p->first_send[k]];
        if (p->peers[k] >= 32 || !(ranks >> p->peers[k] & 1)) continue;
        op->next_send[k]++;
        op->res.bytes_sent += p->s->steps[i].a.len * op->buf_elem[p->s->steps[i].a.buf];
        exec_finish(op, i);
    }
}

/* A message from several pieces is packed into a block of its own for as long as it is under way: a piece of the
 * pipeline, never the whole buffer. */
static uint8_t *exec_pack(rg_request_t *op, uint32_t i, rg_span_t a) {
    rg_block_t *block = rg_block_get(op->g, RG_BOUNCE_HEAD + a.len * op->elem);
    if (!block) return NULL;
    rg_bounce_t *b = block->p;
    *b = (rg_bounce_t){ op->bounces, block, i };
    op->bounces = b;
    uint8_t *to = (uint8_t *)block->p + RG_BOUNCE_HEAD;
    rg_layout_read(op->lay[a.buf], a.off, to, a.len);
    return to;
}

static void exec_unpack(rg_request_t *op, uint32_t i) {
    for (rg_bounce_t **at = &op->bounces; *at; at = &(*at)->next)
        if ((*at)->step == i) {
            rg_bounce_t *b = *at;
            *at = b->next;
            rg_block_put(op->g, b->block);
            return;
        }
}

static rg_status_t exec_send(rg_request_t *op, uint32_t i) {
    rg_group_t *g = op->g;
    const rg_step_t *st = &op->plan->s->steps[i];
    rg_tp_send_t snd = { .tag = exec_tag(op, st->ord), .buf = span_ptr(op, st->a), .cookie = exec_cookie(op, i) };
    if (in_pieces(op, st->a) && !(snd.buf = exec_pack(op, i, st->a))) return RG_ERR_NOMEM;
    snd.len = st->a.len * op->buf_elem[st->a.buf];
    op->res.bytes_sent += snd.len;
    int rc = g->tp_ops->send(g->tp, op->roster->links[st->peer], &snd);
    if (rc == RG_TP_DONE_NOW) {
        if (op->bounces) exec_unpack(op, i);
        exec_finish(op, i);
    } else if (rc == RG_OK) {
        op->inflight[st->peer]++;
    }
    return rc < 0 ? (rg_status_t)rc : RG_OK;
}

/* Fits rg_reduce_fn: takes what arrived to where it belongs, piece by piece. The transport believes that it writes to
 * the sink itself, one element after the other, which tells how far it is. */
static void exec_scatter(const void *ctx, void *dst, const void *a, const void *b, size_t n) {
    const rg_sink_t *k = ctx;
    rg_request_t *op = k->op;
    const rg_step_t *st = &op->plan->s->steps[k->step];
    uint32_t dst_elem = op->buf_elem[st->dst.buf];
    uint32_t wire = !k->red ? dst_elem : st->flags & RG_STEP_WIRE_ACC ? op->buf_elem[RG_BUF_TMP] : op->elem;
    uint64_t at = (uint64_t)((uintptr_t)dst - (uintptr_t)k) / dst_elem;
    const uint8_t *in = b;
    (void)a;
    while (n) {
        uint64_t run = n;
        uint8_t *to = span_at(op, st->dst, at, &run);
        const uint8_t *with = k->red ? span_at(op, st->a, at, &run) : NULL;
        if (k->red) rg_red_run(k->red, to, with, in, run);
        else memcpy(to, in, run * dst_elem);
        at += run;
        in += run * wire;
        n -= run;
    }
}

static void exec_sink(rg_request_t *op, uint32_t i, const rg_red_t *red, rg_tp_recv_t *rcv) {
    const rg_step_t *st = &op->plan->s->steps[i];
    rg_sink_t *k = &op->sinks[i];
    *k = (rg_sink_t){ op, red, i };
    rcv->reduce = exec_scatter;
    rcv->reduce_ctx = k;
    rcv->dst = k;
    rcv->a = k;
    rcv->dst_elem = op->buf_elem[st->dst.buf];
    rcv->a_elem = red ? op->buf_elem[st->a.buf] : rcv->dst_elem;
    if (!red) rcv->wire_elem = rcv->dst_elem;
}

static rg_status_t exec_recv_reduce(rg_request_t *op, uint32_t i, rg_tp_recv_t *rcv) {
    const rg_step_t *st = &op->plan->s->steps[i];
    int wire_acc = (st->flags & RG_STEP_WIRE_ACC) != 0;
    const rg_red_t *red = exec_red(op, red_flags(st, wire_acc));
    if (!red) return no_red(op);
    rcv->wire_elem = wire_acc ? op->buf_elem[RG_BUF_TMP] : op->elem;
    rcv->len = st->dst.len * rcv->wire_elem;
    if (in_pieces(op, st->dst) || in_pieces(op, st->a)) {
        exec_cover(op, st->dst);
        exec_sink(op, i, red, rcv);
        return RG_OK;
    }
    rcv->reduce = rg_red_run;
    rcv->reduce_ctx = red;
    rcv->a = span_ptr(op, st->a);
    rcv->dst_elem = op->buf_elem[st->dst.buf];
    rcv->a_elem = op->buf_elem[st->a.buf];
    if (op->undo && st->dst.buf == RG_BUF_OUT && !op->g->others_fill && !op->lay[RG_BUF_OUT]) {
        /* Saved as the data come, while what is read is in cache anyway. */
        rg_covered_t *c = &op->covered[red - op->red];
        *c = (rg_covered_t){ op, red, rcv->a_elem, rcv->wire_elem };
        rcv->reduce = rg_undo_reduce;
        rcv->reduce_ctx = c;
    } else {
        exec_cover(op, st->dst);
        rcv->anywhere = 1; /* unlike the others, it looks at nothing but the bytes it is given */
    }
    return RG_OK;
}

static rg_status_t exec_recv(rg_request_t *op, uint32_t i) {
    rg_group_t *g = op->g;
    const rg_step_t *st = &op->plan->s->steps[i];
    rg_tp_recv_t rcv = { .tag = exec_tag(op, st->ord), .cookie = exec_cookie(op, i), .dst = span_ptr(op, st->dst) };
    if (st->kind == RG_STEP_RECV_REDUCE) {
        rg_status_t st_red = exec_recv_reduce(op, i, &rcv);
        if (st_red != RG_OK) return st_red;
    } else {
        exec_cover(op, st->dst);
        rcv.len = st->dst.len * op->buf_elem[st->dst.buf];
        if (in_pieces(op, st->dst)) exec_sink(op, i, NULL, &rcv);
    }
    op->res.bytes_received += rcv.len;
    bit_set(op->posted, i);
    int rc = g->tp_ops->recv(g->tp, op->roster->links[st->peer], &rcv);
    if (rc == RG_TP_DONE_NOW) rg_exec_step_done(op, i);
    return rc < 0 ? (rg_status_t)rc : RG_OK;
}

/* Whether a final value differs from what is copied. */
static int final_changes(const rg_request_t *op, const rg_step_t *st) {
    return (st->flags & RG_STEP_FINAL) && rg_op_reduces(op) &&
           ((op->sig.op == RG_AVG && !op->weighted && op->roster->n > 1) || after_of(op) != 1);
}

static rg_status_t exec_local(rg_request_t *op, uint32_t i) {
    const rg_step_t *st = &op->plan->s->steps[i];
    if (st->kind == RG_STEP_PREPARE) {
        rg_status_t rc = rg_op_prepare(op);
        if (rc == RG_OK) exec_finish(op, i);
        return rc;
    }
    int copy = st->kind == RG_STEP_COPY, reduces = rg_op_reduces(op) && st->dst.buf != RG_BUF_AUX;
    const rg_red_t *red = reduces ? exec_red(op, red_flags(st, !copy && st->b.buf == RG_BUF_TMP)) : NULL;
    if (reduces && !red) return no_red(op);
    int alike = copy && op->buf_elem[st->dst.buf] == op->buf_elem[st->a.buf] && !final_changes(op, st);
    for (uint64_t at = 0; at < st->dst.len;) {
        uint64_t run = st->dst.len - at;
        uint8_t *dst = span_at(op, st->dst, at, &run), *a = span_at(op, st->a, at, &run);
        const uint8_t *b = copy ? NULL : span_at(op, st->b, at, &run);
        if (!(alike && dst == a)) { /* else it is in place, and nothing is to be moved */
            exec_cover(op, rg_span(st->dst.buf, st->dst.off + at, run));
            if (!copy) rg_red_run(red, dst, a, b, run);
            else if (reduces) rg_red_copy(red, dst, a, run);
            else memmove(dst, a, run * op->buf_elem[st->dst.buf]);
        }
        at += run;
    }
    exec_finish(op, i);
    return RG_OK;
}

static rg_status_t exec_issue_ready(rg_request_t *op) {
    const rg_step_t *steps = op->plan->s->steps;
    while (op->any_ready) {
        op->any_ready = 0;
        for (uint32_t w = 0; w < op->words; w++)
            while (op->ready[w]) {
                uint32_t i = w * 64 + (uint32_t)__builtin_ctzll(op->ready[w]);
                bit_clear(op->ready, i);
                rg_status_t rc = steps[i].kind == RG_STEP_RECV || steps[i].kind == RG_STEP_RECV_REDUCE
                                     ? exec_recv(op, i)
                                     : exec_local(op, i);
                if (rc != RG_OK) return rc;
            }
    }
    return RG_OK;
}

/* Each peer gets its messages in schedule order, and only so many at once that pieces of different phases stay
 * interleaved. DONE messages wait until this member's own result is whole, whatever the schedule's edges say. */
static rg_status_t exec_issue_sends(rg_request_t *op) {
    const rg_plan_t *p = op->plan;
    op->any_send = 0;
    for (uint32_t k = 0; k < p->n_peers; k++)
        while (p->first_send[k] + op->next_send[k] < p->first_send[k + 1]) {
            uint32_t i = p->sends[p->first_send[k] + op->next_send[k]];
            if (op->rem[i] || op->inflight[p->peers[k]] >= RG_SEND_WINDOW || (i >= p->s->phase1_steps && op->left1))
                break;
            op->next_send[k]++;
            rg_status_t rc = exec_send(op, i);
            if (rc != RG_OK) return rc;
        }
    return RG_OK;
}

/* Issues all that can be issued. A completion of phase 1 or of everything is told to ops.c, which may finish the
 * operation: the caller must not look at it afterwards. */
void rg_exec_pump(rg_request_t *op) {
    rg_status_t rc = RG_OK;
    uint32_t uid = op->uid;
    while (rc == RG_OK && op->executing && (op->any_ready || op->any_send)) {
        rc = exec_issue_ready(op);
        if (rc == RG_OK && op->any_send) rc = exec_issue_sends(op);
    }
    if (rc != RG_OK && rc != RG_ERR_PEER_LOST) {
        /* a lost peer is the core's business; anything else ends the operation, everywhere alike */
        rg_op_fail(op, rc, 0,
                   rc != RG_ERR_INVALID ? rg_strerror(rc)
                   : op->weighted       ? "the weights of all members add up to nothing, or to no finite number"
                                        : "scale_after is beyond what the average of so many members can be "
                                          "multiplied by in this type");
        return;
    }
    if (!op->executing) return;
    if (op->left1 == 0 && op->state == RG_OPS_FETCHING) {
        rg_exec_stop(op);
        rg_op_fetched(op);
        return;
    }
    if (op->left1 == 0 && op->state == RG_OPS_RUNNING) {
        rg_op_complete(op);
        if (op->uid != uid || !op->executing) return;
        op->any_send = 1; /* DONE messages may go now */
        rg_exec_pump(op); /* one level: phase 2 */
        return;
    }
    if (op->left == 0 && op->state == RG_OPS_COMPLETE) rg_op_done(op);
}

/* A receive or send of step i ended well. */
void rg_exec_step_done(rg_request_t *op, uint32_t i) {
    const rg_step_t *st = &op->plan->s->steps[i];
    if (st->kind == RG_STEP_SEND) {
        if (op->bounces) exec_unpack(op, i);
        op->inflight[st->peer]--;
        op->any_send |= 1;
    } else {
        bit_clear(op->posted, i);
    }
    exec_finish(op, i);
}

uint64_t rg_exec_waits_for(const rg_request_t *op) {
    if (!op->executing) return 0;
    for (uint32_t i = 0; i < op->plan->s->n_steps; i++)
        if (bit_test(op->posted, i)) return op->roster->ids[op->plan->s->steps[i].peer];
    for (uint32_t r = 0; r < op->roster->n; r++)
        if (op->inflight[r]) return op->roster->ids[r];
    return 0;
}
