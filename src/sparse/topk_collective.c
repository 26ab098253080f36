/* topk_collective.c: an all-reduce of which the bytes of chunked top-k travel: every member's, behind a head that says
 * what it takes the call for, in an all-gather, so that all come to one conclusion from the same heads and to the same
 * sums from the same bytes. Relies on frame.h and topk.h; must not touch the caller's output, or what is kept, before
 * the all-gather has ended well on all members. */
#include "sparse/reducer.h"
#include "sparse/topk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct head {
    uint64_t call;    /* hash of what is done with how many elements */
    uint64_t members; /* for whom it is */
    uint32_t finite, pad;
} head_t;

struct rg_topk_reducer {
    rg_group_t *g;
    rg_topk_t t;
    rg_feedback_t f;
    int feeds;
    float *kept, *next; /* next: m, and then what will be kept */
    uint64_t n_kept, n_next;
    rg_room_t out, in, sum, counts;
    rg_later_t *queue; /* NULL before the first request */
};

rg_status_t rg_topk_reducer_create(rg_group_t *group, const rg_topk_t *t, const rg_feedback_t *feedback,
                                   rg_topk_reducer_t **out, rg_error_t *err) {
    static const char *const name = "rg_topk_reducer_create";
    if (out == NULL || group == NULL || t == NULL)
        return rg_fail(err, RG_ERR_INVALID, 0, "%s: %s is NULL", name,
                       out == NULL     ? "out"
                       : group == NULL ? "group"
                                       : "t");
    if (t->size != sizeof *t || (feedback != NULL && feedback->size != sizeof *feedback))
        return rg_fail(err, RG_ERR_INVALID, 0, "%s: %s is not initialised: use %s", name,
                       t->size != sizeof *t ? "t" : "feedback",
                       t->size != sizeof *t ? "RG_TOPK_INIT" : "RG_FEEDBACK_INIT");
    if (rg_topk_wrong(t))
        return rg_fail(err, RG_ERR_INVALID, 0, "%s: k %u (1 to %u), values %u, flags %#x: one of them is not allowed",
                       name, t->k, RG_TOPK_CHUNK, t->values, t->flags);
    if (feedback != NULL && (!isfinite(feedback->beta) || !(feedback->clip >= 0) || isinf(feedback->clip)))
        return rg_fail(err, RG_ERR_INVALID, 0, "%s: beta and clip are finite, and clip is not negative", name);
    rg_topk_reducer_t *z = calloc(1, sizeof *z);
    if (z == NULL) return rg_fail(err, RG_ERR_NOMEM, 0, "%s: no memory", name);
    z->g = group;
    z->t = *t;
    z->feeds = feedback != NULL;
    if (feedback != NULL) z->f = *feedback;
    if (z->f.beta == 0.0f) z->f.beta = 1.0f;
    *out = z;
    return RG_OK;
}

void rg_topk_reducer_destroy(rg_topk_reducer_t *z) {
    if (z == NULL) return;
    rg_later_end(z->queue);
    free(z->kept);
    free(z->next);
    free(z->out.p);
    free(z->in.p);
    free(z->sum.p);
    free(z->counts.p);
    free(z);
}

rg_group_t *rg_topk_group(const rg_topk_reducer_t *z) { return z->g; }

rg_later_t **rg_topk_queue(rg_topk_reducer_t *z) { return &z->queue; }

float *rg_topk_kept(rg_topk_reducer_t *z, uint64_t *n) {
    if (n != NULL) *n = z != NULL && z->kept != NULL ? z->n_kept : 0;
    return z != NULL ? z->kept : NULL;
}

rg_status_t rg_topk_keep(rg_topk_reducer_t *z, uint64_t n) {
    if (z == NULL || !z->feeds) return RG_ERR_INVALID;
    return rg_floats_for(&z->kept, &z->n_kept, n) ? RG_OK : RG_ERR_NOMEM;
}

/* ---- One attempt ------------------------------------------------------------------------------------------------- */

typedef struct job {
    rg_topk_reducer_t *z;
    rg_frame_t f;
    const float *in;
    float *out;
    uint64_t count, bytes; /* of what a member says, without the head */
    rg_sparse_op_t op;
} job_t;

static uint64_t call_of(const job_t *j) {
    const rg_topk_t *t = &j->z->t;
    uint64_t h = rg_frame_mix(0x746f706bu, j->count);
    return rg_frame_mix(rg_frame_mix(h, (uint64_t)t->k << 32 | t->values), (uint64_t)t->flags << 32 | (uint32_t)j->op);
}

static uint64_t whole(uint64_t n) { return (n + RG_TOPK_CHUNK - 1) / RG_TOPK_CHUNK * RG_TOPK_CHUNK; }

/* Everything that the call needs, before anything is sent. */
static int memory_for(job_t *j) {
    rg_topk_reducer_t *z = j->z;
    uint64_t each = sizeof(head_t) + j->bytes, all = whole(j->count);
    return rg_room_for(&z->out, each) && rg_room_for(&z->in, each * j->f.n) &&
           rg_room_for(&z->sum, all * sizeof(float)) && rg_room_for(&z->counts, all * sizeof(uint16_t)) &&
           (!z->feeds || rg_floats_for(&z->next, &z->n_next, j->count));
}

/* m = beta * kept + in, and what is said of it. z->next gets what will be kept of it. */
static void say(job_t *j, head_t *h) {
    rg_topk_reducer_t *z = j->z;
    uint8_t *w = z->out.p + sizeof *h;
    const float *m = j->in;
    if (z->feeds) {
        int has = z->kept != NULL && z->n_kept == j->count;
        for (uint64_t i = 0; i < j->count; i++) z->next[i] = has ? z->f.beta * z->kept[i] + j->in[i] : j->in[i];
        m = z->next;
    }
    h->finite = rg_topk_encode(&z->t, m, j->count, w) == RG_OK;
    memcpy(z->out.p, h, sizeof *h);
    if (!z->feeds || !h->finite) return;
    float *said = (float *)z->sum.p, clip = z->f.clip;
    rg_topk_decode(&z->t, w, j->count, said);
    for (uint64_t i = 0; i < j->count; i++) {
        float left = z->next[i] - said[i];
        if (!isfinite(left)) left = 0;
        if (clip > 0.0f) left = left < -clip ? -clip : left > clip ? clip : left;
        z->next[i] = left;
    }
}

/* What the heads say; they are the same for everybody. */
static rg_status_t judge(job_t *j, const head_t *mine) {
    rg_status_t st = RG_OK;
    for (uint32_t r = 0; r < j->f.n; r++) {
        head_t h;
        memcpy(&h, j->z->in.p + r * (sizeof h + j->bytes), sizeof h);
        if (h.members != j->f.members) return rg_frame_apart(&j->f, r);
        if (h.call != mine->call && st != RG_ERR_MISMATCH)
            st = rg_frame_refuse(
                &j->f, RG_ERR_MISMATCH,
                "%s: rank %u calls it with another count, operator, k, form of values or flag than rank %u", j->f.name,
                r, j->f.rank);
        else if (!h.finite && st == RG_OK)
            st = rg_frame_refuse(&j->f, RG_ERR_INVALID, "%s: rank %u has a value that is not finite", j->f.name, r);
    }
    return st;
}

/* The sums of what all have said, in the order of ranks. All make the same ones, so all see alike where one is not
 * finite; nothing is written then. */
static rg_status_t add_up(job_t *j) {
    rg_topk_reducer_t *z = j->z;
    float *sum = (float *)z->sum.p;
    uint16_t *counts = j->op == RG_SPARSE_AVG_OWNERS ? (uint16_t *)z->counts.p : NULL;
    uint64_t all = whole(j->count);
    for (uint64_t i = 0; i < all; i++) sum[i] = 0;
    if (counts != NULL) memset(counts, 0, (size_t)all * sizeof *counts);
    for (uint32_t r = 0; r < j->f.n; r++)
        rg_topk_gather(&z->t, z->in.p + r * (sizeof(head_t) + j->bytes) + sizeof(head_t), j->count, sum, counts);
    if (j->op == RG_SPARSE_AVG_WORLD)
        for (uint64_t i = 0; i < all; i++) sum[i] /= (float)j->f.n;
    for (uint64_t i = 0; counts != NULL && i < all; i++)
        if (counts[i] > 1) sum[i] /= (float)counts[i];
    if (z->t.flags & RG_TOPK_DCT) rg_topk_dct_inverse(sum, all / RG_TOPK_CHUNK, sum);
    for (uint64_t i = 0; i < j->count; i++)
        if (!isfinite(sum[i]))
            return rg_frame_refuse(&j->f, RG_ERR_INVALID, "%s: the sum of element %llu is not finite", j->f.name,
                                   (unsigned long long)i);
    if (j->count != 0) memcpy(j->out, sum, (size_t)j->count * sizeof *sum);
    return RG_OK;
}

static rg_status_t attempt(job_t *j) {
    rg_topk_reducer_t *z = j->z;
    rg_status_t st = rg_frame_shape(&j->f);
    if (st != RG_OK) return st;
    if (!memory_for(j)) return rg_frame_no_memory(&j->f);
    head_t h = { .call = call_of(j), .members = j->f.members };
    say(j, &h);
    st = rg_frame_ended(&j->f, rg_all_gather(z->g, z->out.p, z->in.p, sizeof h + j->bytes, RG_U8, rg_frame_opts(&j->f),
                                             rg_frame_req(&j->f)));
    if (st == RG_OK) st = judge(j, &h);
    if (st == RG_OK) st = add_up(j);
    return st;
}

static rg_status_t check(job_t *j) {
    rg_sparse_op_t op = j->op;
    if (op != RG_SPARSE_SUM && op != RG_SPARSE_AVG_WORLD && op != RG_SPARSE_AVG_OWNERS)
        return rg_frame_refuse(&j->f, RG_ERR_NOTSUP, "%s %s: top-k reductions are sums and averages", j->f.name,
                               rg_sparse_op_name(op));
    if (j->count != 0 && (j->in == NULL || j->out == NULL))
        return rg_frame_refuse(&j->f, RG_ERR_INVALID, "%s: %s is NULL", j->f.name, j->in == NULL ? "in" : "out");
    if (j->count > UINT64_MAX / 64 / (1u << 20))
        return rg_frame_refuse(&j->f, RG_ERR_INVALID, "%s: %llu elements are more than any memory", j->f.name,
                               (unsigned long long)j->count);
    return RG_OK;
}

rg_status_t rg_topk_run(rg_topk_reducer_t *z, const float *in, float *out, uint64_t count, rg_sparse_op_t op,
                        const rg_opts_t *opts, rg_stop_t *stop) {
    job_t j = { .z = z, .in = in, .out = out, .count = count, .op = op, .bytes = rg_topk_bytes(&z->t, count) };
    rg_status_t st = rg_frame_open(&j.f, z->g, "top-k all_reduce", opts);
    j.f.stop = stop;
    if (st == RG_OK) st = check(&j);
    if (st != RG_OK) return rg_frame_refused(&j.f, st, 1);
    do st = attempt(&j);
    while (rg_frame_more(&j.f, st, 1));
    if (st == RG_OK && z->feeds) {
        float *t = z->kept;
        uint64_t n = z->n_kept;
        z->kept = z->next, z->n_kept = z->n_next;
        z->next = t, z->n_next = n;
    }
    return rg_frame_close(&j.f, st);
}
