/* buffers.c: what one run of an operation works on: its description for the schedule, and IN, OUT, TMP and AUX. Where
 * the caller's input cannot be used as it is (it is scaled, or in pieces, or OUT covers it before it was sent) there is
 * one private copy, of which the caller never sees anything. It relies on undo.c to give the input back. */
#include "engine/group.h"

#include <math.h>
#include <string.h>

/* Everything that shapes the schedule; of the ranks alone, so that it can be asked for before the operation runs. */
void rg_op_describe(const rg_request_t *op, const rg_roster_t *r, rg_coll_desc_t *d) {
    memset(d, 0, sizeof *d);
    d->kind = (rg_kind_t)op->sig.kind;
    /* Nothing to move, yet calls must meet. What one sends and others expect is not known to all: that has to run. */
    if (!op->sig.count && !op->weighted && !(d->kind == RG_KIND_ALL_TO_ALL && op->lens)) d->kind = RG_KIND_BARRIER;
    d->size = r->n;
    d->rank = r->rank;
    d->count = op->sig.count;
    /* Under rule S all members have all of it: then anybody can give it to anybody else. Of two, each gives the other
     * again what it sent, and that one runs the operation with it; so it is one message each (plan.c). */
    int all = !op->sig.rule_l && !op->pair && d->kind != RG_KIND_BARRIER;
    if (all && (d->kind == RG_KIND_REDUCE_SCATTER || d->kind == RG_KIND_ALL_TO_ALL)) {
        d->kind = d->kind == RG_KIND_REDUCE_SCATTER ? RG_KIND_ALL_REDUCE : RG_KIND_ALL_GATHER;
        d->count *= op->shape_n;
    }
    d->elem_size = d->acc_size = op->elem;
    if (rg_op_reduces(op)) d->acc_size = (uint32_t)rg_acc_size((rg_dtype_t)op->sig.dtype);
    d->chunk = 1;
    d->rule_l = op->sig.rule_l;
    d->rank_order = op->g->cfg.deterministic == RG_ON;
    d->in_place = op->in_place && op->sig.rule_l && d->kind != RG_KIND_ALL_TO_ALL;
    d->prepare = op->weighted;
    d->topo = r->topo.levels ? &r->topo : NULL;
    if (d->kind != RG_KIND_BARRIER) {
        d->offs = op->offs;
        d->lens = op->lens;
        d->in_offs = op->in_offs;
        d->in_lens = op->in_lens;
    }
    for (uint32_t i = 0; op->sig.root && i < d->size; i++)
        if (r->ids[i] == op->sig.root) d->root = i;
}

static void set_layout(rg_request_t *op, rg_buf_t buf, const rg_layout_t *l) {
    op->lay[buf] = l->kind == RG_LAYOUT_PLAIN ? NULL : l;
    op->buf[buf] = l->kind == RG_LAYOUT_PLAIN ? l->base : NULL;
}

static void set_block(rg_request_t *op, rg_buf_t buf, const rg_block_t *b) {
    op->lay[buf] = NULL;
    op->buf[buf] = b ? b->p : NULL;
}

/* dst = the n elements of the input from `off` on, each times factor. Nothing of an input that counts for nothing gets
 * through, not even what is no number. */
static rg_status_t scaled(const rg_request_t *op, const rg_layout_t *src, const rg_layout_t *dst, uint64_t off,
                          uint64_t n, double factor) {
    for (uint64_t end = off + n; off < end;) {
        uint64_t a_run, b_run, k = end - off;
        const uint8_t *a = rg_layout_at(src, off, &a_run);
        uint8_t *b = rg_layout_at(dst, off, &b_run);
        if (a_run < k) k = a_run;
        if (b_run < k) k = b_run;
        rg_status_t st = RG_OK;
        if (factor == 0) memset(b, 0, k * op->elem);
        else if (factor != 1) st = rg_scale((rg_dtype_t)op->sig.dtype, b, a, k, factor);
        else if (a != b) memcpy(b, a, k * op->elem);
        if (st != RG_OK) return st;
        off += k;
    }
    return RG_OK;
}

/* The same for all of the input: segment by segment where segments differ, for what lies between them is not of the
 * operation and need not even be memory. */
static rg_status_t scaled_all(const rg_request_t *op, const rg_layout_t *src, const rg_layout_t *dst, double factor) {
    int pairs = op->sig.kind == RG_KIND_ALL_TO_ALL;
    const uint64_t *offs = pairs ? op->in_offs : op->offs, *lens = pairs ? op->in_lens : op->lens;
    rg_status_t st = RG_OK;
    if (!lens) return scaled(op, src, dst, 0, op->plan->s->elems[RG_BUF_IN], factor);
    for (uint32_t i = 0; i < op->shape_n && st == RG_OK; i++) st = scaled(op, src, dst, offs[i], lens[i], factor);
    return st;
}

/* Gives the caller's input back from the private copy that the operation worked on. */
void rg_op_input_back(const rg_request_t *op) {
    rg_layout_t own;
    rg_layout_plain(&own, op->own_in->p, op->elem);
    scaled_all(op, &own, &op->in, 1);
}

/* Whether the scaled input takes the place of the caller's, which the result covers anyway. A reduce-scatter leaves
 * most of its input alone. */
static int scales_in_out(const rg_request_t *op) {
    return op->in_place && op->sig.rule_l && op->sig.kind != RG_KIND_REDUCE_SCATTER;
}

/* Makes the input ready: what the steps read as IN is the caller's times factor. */
static rg_status_t make_input(rg_request_t *op, double factor) {
    if (!op->plan->s->elems[RG_BUF_IN]) return RG_OK;
    if (op->own_in) {
        rg_layout_t own;
        rg_layout_plain(&own, op->own_in->p, op->elem);
        return scaled_all(op, &op->in, &own, factor);
    }
    if (factor == 1) return RG_OK;
    if (op->g->cfg.undo == RG_ON && op->roster->n > 1) {
        if (!rg_undo_begin_whole(op)) return RG_ERR_NOMEM;
    } else {
        op->spoiled = 1;
    }
    return scaled_all(op, &op->in, &op->in, factor);
}

static double scale_of(const rg_request_t *op) { return op->scale != 0 ? op->scale : 1; }

static rg_status_t use_input(rg_request_t *op) {
    rg_group_t *g = op->g;
    uint64_t n = op->plan->s->elems[RG_BUF_IN];
    int changed = op->weighted || scale_of(op) != 1;
    set_layout(op, RG_BUF_IN, &op->in);
    if (!rg_desc_has(&op->plan->s->desc, RG_BUF_IN)) {
        op->buf[RG_BUF_IN] = NULL;
        op->lay[RG_BUF_IN] = NULL;
        return RG_OK;
    }
    int covered = op->sig.kind == RG_KIND_ALL_TO_ALL && op->in_place;
    int packed = !op->sig.rule_l && op->in.kind != RG_LAYOUT_PLAIN; /* small: quicker than a look at every piece */
    if (n && (covered || packed || (changed && !scales_in_out(op)))) {
        if (!op->own_in && !(op->own_in = rg_block_get(g, n * op->elem))) return RG_ERR_NOMEM;
        set_block(op, RG_BUF_IN, op->own_in);
    }
    if (op->weighted) return RG_OK; /* when all weights are here */
    return op->own_in || changed ? make_input(op, scale_of(op)) : RG_OK;
}

/* Under rule S the result is made in a private block, which is then the kept copy as well: the caller's memory is
 * written at commit only. Under rule L it is made in place, with an undo log where it covers the input. */
static rg_status_t use_output(rg_request_t *op) {
    rg_group_t *g = op->g;
    set_layout(op, RG_BUF_OUT, &op->out);
    if (!rg_desc_has(&op->plan->s->desc, RG_BUF_OUT)) {
        op->buf[RG_BUF_OUT] = NULL;
        op->lay[RG_BUF_OUT] = NULL;
        return RG_OK;
    }
    if (!op->sig.rule_l) {
        if (op->keep_bytes && !op->keep && !(op->keep = rg_block_get(g, op->keep_bytes))) return RG_ERR_NOMEM;
        if (op->pair && op->bytes && !op->result && !(op->result = rg_block_get(g, op->bytes))) return RG_ERR_NOMEM;
        set_block(op, RG_BUF_OUT, op->pair ? op->result : op->keep);
        return RG_OK;
    }
    int covers = op->covers && op->bytes && !op->saved_whole;
    if (covers && g->cfg.undo == RG_ON && op->roster->n > 1 && !rg_undo_begin(op)) return RG_ERR_NOMEM;
    return RG_OK;
}

static rg_status_t use_weights(rg_request_t *op) {
    uint32_t n = op->roster->n;
    set_block(op, RG_BUF_AUX, NULL);
    if (!op->weighted) return RG_OK;
    if (!op->aux && !(op->aux = rg_block_get(op->g, n * sizeof(double)))) return RG_ERR_NOMEM;
    set_block(op, RG_BUF_AUX, op->aux);
    memset(op->aux->p, 0, n * sizeof(double));
    ((double *)op->aux->p)[op->roster->rank] = op->weight;
    return RG_OK;
}

/* op->plan and op->roster are set. */
rg_status_t rg_op_buffers(rg_request_t *op) {
    const rg_schedule_t *s = op->plan->s;
    op->buf_elem[RG_BUF_IN] = op->buf_elem[RG_BUF_OUT] = op->elem;
    op->buf_elem[RG_BUF_TMP] = s->desc.acc_size;
    op->buf_elem[RG_BUF_AUX] = sizeof(double);
    rg_status_t st = use_input(op);
    if (st == RG_OK) st = use_output(op);
    if (st == RG_OK) st = use_weights(op);
    if (st == RG_OK && s->tmp_elems && !(op->tmp = rg_block_get(op->g, s->tmp_elems * s->desc.acc_size)))
        st = RG_ERR_NOMEM;
    set_block(op, RG_BUF_TMP, op->tmp);
    return st;
}

/* RG_STEP_PREPARE: every weight is here. The sum is taken in rank order, so that it is the same everywhere. Shares are
 * rounded to the type before they are added up: in a narrow one w / sum of a small number could be nothing, so there
 * they are w / (the greatest weight), and what is added up in f32 is multiplied by the rest at last. The range of bf16
 * is that of f32, so there a power of two keeps the sum within it. */
rg_status_t rg_op_prepare(rg_request_t *op) {
    const double *w = op->aux->p;
    double sum = 0, most = 0, whole = 1;
    for (uint32_t i = 0; i < op->roster->n; i++) {
        sum += w[i];
        if (w[i] > most) most = w[i];
    }
    if (!(sum > 0) || !isfinite(sum)) return RG_ERR_INVALID;
    op->res.weight_sum = sum;
    double own = w[op->roster->rank];
    if (op->elem > 2) return make_input(op, own == 0 ? 0 : scale_of(op) * (own / sum));
    while (op->sig.dtype == RG_BF16 && whole < op->roster->n) whole *= 2;
    op->share_after = most / sum * whole;
    return make_input(op, own == 0 ? 0 : scale_of(op) * (own / most / whole));
}

/* Of a pair: what it sent, as it sent it. */
void rg_op_keep_sent(rg_request_t *op) {
    uint64_t n = op->sig.count, off = op->sig.kind == RG_KIND_ALL_GATHER ? 0 : (1 - op->shape_rank) * n;
    memcpy(op->keep->p, op->buf[RG_BUF_IN] + off * op->elem, n * op->elem);
}

/* Of an all-to-all everybody has everybody's input, of a reduce-scatter all segments. The root of a broadcast has the
 * result in its buffer, which may be one that cannot be written. */
void rg_op_take_out(rg_request_t *op) {
    if (op->sig.kind == RG_KIND_BROADCAST && op->sig.root == op->g->self_id) return;
    if (op->pair) {
        rg_layout_write(&op->out, 0, op->result->p, op->bytes / op->elem);
        return;
    }
    const uint8_t *all = op->keep->p;
    uint64_t count = op->sig.count, segment = count * op->elem;
    if (op->sig.kind == RG_KIND_REDUCE_SCATTER) {
        rg_layout_write(&op->out, 0, all + op->shape_rank * segment, count);
    } else if (op->sig.kind == RG_KIND_ALL_TO_ALL) {
        for (uint32_t r = 0; r < op->shape_n; r++)
            rg_layout_write(&op->out, r * count, all + ((uint64_t)r * op->shape_n + op->shape_rank) * segment, count);
    } else {
        rg_layout_write(&op->out, 0, all, op->bytes / op->elem);
    }
}

void rg_op_drop_buffers(rg_request_t *op) {
    rg_group_t *g = op->g;
    rg_block_put(g, op->tmp);
    rg_block_put(g, op->own_in);
    rg_block_put(g, op->aux);
    op->tmp = op->own_in = op->aux = NULL;
    while (op->bounces) {
        rg_bounce_t *b = op->bounces;
        op->bounces = b->next;
        rg_block_put(g, b->block); /* which b is a part of */
    }
}
