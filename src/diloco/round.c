/* round.c: one fragment's way through the group, in two operations. The first adds up a head from every member: how
 * many there are, how much they count, whether they have alike what they should. The second averages the shares, each
 * scaled by what the heads said, quantised if asked for. When a member is lost in the middle both are made again by
 * those who are left, and error feedback goes back to what it was. Relies on operations ending alike on all members. It
 * must not touch anchor, momentum or parameters. */
#include "diloco/internal.h"

#include "os/os.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A hash is told to all by sums: of its parts and of their squares. Of n members that hold h_i, n times the sum of
 * squares is the square of the sum exactly when all h_i are equal; parts of 20 bits keep this exact in f64. */
enum { HEAD_MEMBERS, HEAD_TAKING_PART, HEAD_WEIGHT, HEAD_LENGTH, HEAD_NOT_FINITE, HEAD_TOKENS, HEAD_HASH };
enum { PARTS = 3, HEAD = HEAD_HASH + 2 * PARTS };

static void fail(rg_dl_round_t *r, rg_status_t st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void fail(rg_dl_round_t *r, rg_status_t st, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->text, sizeof r->text, fmt, ap);
    va_end(ap);
    r->st = st;
}

static void head_fill(const rg_dl_round_t *r, double length, double *head) {
    head[HEAD_MEMBERS] = 1;
    head[HEAD_TAKING_PART] = r->weight > 0;
    head[HEAD_WEIGHT] = r->weight;
    head[HEAD_LENGTH] = r->weight * length;
    head[HEAD_NOT_FINITE] = !r->finite;
    head[HEAD_TOKENS] = (double)r->tokens;
    for (int k = 0; k < PARTS; k++) {
        double part = (double)(r->hash >> (20 * k) & 0xfffff);
        head[HEAD_HASH + 2 * k] = part;
        head[HEAD_HASH + 2 * k + 1] = part * part;
    }
}

/* Whether all members that are in the sum hold one hash; the same answer for all of them. */
static int head_alike(const double *sum) {
    for (int k = 0; k < PARTS; k++) {
        uint64_t one = (uint64_t)sum[HEAD_HASH + 2 * k], two = (uint64_t)sum[HEAD_HASH + 2 * k + 1];
        unsigned __int128 left = (unsigned __int128)(uint64_t)sum[HEAD_MEMBERS] * two;
        if (left != (unsigned __int128)one * one) return 0;
    }
    return 1;
}

/* What is left of the round's time, for its next operation. Nobody stays away when there is none: the others may have
 * some, and wait; the operation itself ends at once then. */
static void in_time(const rg_dl_round_t *r, uint64_t deadline, rg_opts_t *o) {
    uint64_t now = rg_os_now_ns(), left = deadline > now ? (deadline - now) / 1000000 : 0;
    if (r->timeout_ms) o->timeout_ms = left > 1 ? (uint32_t)left : 1;
}

static rg_status_t judge(rg_dl_round_t *r, const double *sum) {
    if (!head_alike(sum))
        fail(r, RG_ERR_MISMATCH,
             "members disagree on anchor, schedule or configuration of the outer optimiser; equal configurations and "
             "rg_diloco_start() on all members make it one again");
    else if (sum[HEAD_NOT_FINITE] > 0)
        fail(r, RG_ERR_INVALID,
             "%.0f of %.0f members have parameters that are not finite%s; rg_diloco_reset() gives them the anchor's",
             sum[HEAD_NOT_FINITE], sum[HEAD_MEMBERS], r->finite ? "" : ", this one too");
    return r->st;
}

/* What this member puts into the average: its weight makes up for dividing by the number of members. Not quantised and
 * of weight 1 it is D itself. */
static const float *share(const rg_dl_round_t *r, const double *sum, int merge, double length) {
    double by = r->weight * sum[HEAD_MEMBERS] / sum[HEAD_WEIGHT];
    if (merge == RG_DILOCO_RDA) by = length > 0 ? by * (sum[HEAD_LENGTH] / sum[HEAD_WEIGHT]) / length : 0;
    if (by == 1) return r->d;
    rg_outer_scale(r->d, by, r->n, r->scaled);
    return r->scaled;
}

static void feedback_back(const rg_dl_round_t *r) {
    float *kept = r->kept ? rg_dl_kept(r->z, r->top, r->n) : NULL;
    if (kept) memcpy(kept, r->kept, (size_t)r->n * sizeof *kept);
}

/* One attempt. RG_ERR_PEER_LOST: to be made again. */
static rg_status_t attempt(rg_dl_round_t *r, int merge, double length, uint64_t deadline) {
    double head[HEAD], sum[HEAD];
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    o.tag = r->tag;
    o.on_fault = RG_RETURN;
    o.result = &res;
    in_time(r, deadline, &o);
    head_fill(r, length, head);
    r->st = rg_all_reduce(r->g, head, sum, HEAD, RG_F64, RG_SUM, &o, NULL);
    if (r->st != RG_OK) {
        fail(r, r->st, "%.*s", (int)sizeof r->text - 1, res.text);
        return r->st;
    }
    if (judge(r, sum) != RG_OK) return r->st;
    r->contributors = (uint32_t)sum[HEAD_TAKING_PART];
    r->all_weight = sum[HEAD_WEIGHT];
    r->all_tokens = sum[HEAD_TOKENS] < 0x1p64 ? (uint64_t)sum[HEAD_TOKENS] : UINT64_MAX;
    if (!(sum[HEAD_WEIGHT] > 0)) { /* nobody has made a step */
        r->contributors = 0;
        return RG_OK;
    }
    const float *in = share(r, sum, merge, length);
    if (r->between) r->between(r->between_arg);
    in_time(r, deadline, &o);
    if (r->top) r->st = rg_topk_all_reduce(r->top, in, r->avg, r->n, RG_SPARSE_AVG_WORLD, &o);
    else if (r->z) r->st = rg_quant_all_reduce(r->z, in, r->avg, r->n, RG_AVG, &o);
    else r->st = rg_all_reduce(r->g, in, r->avg, r->n, RG_F32, RG_AVG, &o, NULL);
    /* The weights are those of the heads; a member lost in between has left none of its share behind. */
    if (r->st == RG_OK && res.contributors != (uint32_t)sum[HEAD_MEMBERS]) r->st = RG_ERR_PEER_LOST;
    if (r->st != RG_OK) fail(r, r->st, "%.*s", (int)sizeof r->text - 1, res.text);
    else if (merge == RG_DILOCO_RDA && !rg_outer_lengthen(r->avg, r->n, sum[HEAD_LENGTH] / sum[HEAD_WEIGHT])) {
        /* Directions cancel: what is known by all alike, from equal bits. The plain average is asked for instead. */
        feedback_back(r);
        return attempt(r, RG_DILOCO_AVG, length, deadline);
    }
    return r->st;
}

void rg_dl_round(rg_dl_round_t *r) {
    if (r->q) {
        rg_dl_quorum_round(r, 1);
        return;
    }
    uint64_t begin = rg_os_now_ns(), deadline = begin + (uint64_t)r->timeout_ms * 1000000;
    double length = r->merge == RG_DILOCO_RDA ? rg_outer_length(r->d, r->n) : 0;
    r->retries = 0;
    r->included = 1;
    r->text[0] = 0;
    if (!r->finite) length = 0;
    while (attempt(r, r->merge, length, deadline) == RG_ERR_PEER_LOST) {
        feedback_back(r);
        r->retries++;
    }
    if (r->st == RG_OK) r->text[0] = 0;
    else feedback_back(r);
    r->took_ns = rg_os_now_ns() - begin;
}
