/* quorum.c: rounds that do not wait for everybody. All fragments share one reduction, whose rounds take them by turns,
 * so that a member that was slow takes in what was decided without it in the order in which the others did. What a
 * member said too late stays in its parameters, and is said in its next round of that fragment. Relies on
 * regroup_quorum.h for one outcome of a round. It must not touch anchor, momentum or parameters. */
#include "diloco/internal.h"

#include "observe/log.h"
#include "os/os.h"

#include <stdio.h>
#include <string.h>

#define QUORUM_ID 0xd110u
#define HISTORY 16

/* Steps at which round r is sent, when nobody is slow; and how many rounds were sent until such a step. */
static uint64_t step_of_round(const rg_diloco_t *d, uint64_t r) {
    uint64_t p = (r - 1) % d->n;
    return (r - 1) / d->n * d->c.every + (p + 1) * d->c.every / d->n;
}

/* The step may be what another member, or a file, says: any number. */
static uint64_t rounds_until(const rg_diloco_t *d, uint64_t step) {
    uint64_t r = step / d->c.every * d->n, left = step % d->c.every;
    for (uint64_t p = 0; p < d->n && (p + 1) * d->c.every / d->n <= left; p++) r++;
    return r;
}

rg_status_t rg_dl_quorum_begin(rg_diloco_t *d, rg_error_t *err) {
    rg_quorum_config_t c = RG_QUORUM_CONFIG_INIT;
    if (d->c.quorum == 0) return RG_OK;
    c.id = QUORUM_ID;
    c.count = d->most + 1;
    c.op = RG_AVG;
    c.late = RG_LATE_DROP;
    c.at_least = d->c.quorum;
    c.grace_us = d->c.grace_ms * 1000;
    c.history = HISTORY;
    d->q_next = d->step >= d->c.overlap ? rounds_until(d, d->step - d->c.overlap) + 1 : 1;
    d->q_open = 0;
    c.first = d->q_next;
    rg_quorum_destroy(d->q);
    d->q = NULL;
    return rg_quorum_create(d->g, &c, &d->q, err);
}

/* A member that was slow goes on where those are whose rounds it has taken in. */
void rg_dl_quorum_passed(rg_diloco_t *d) {
    d->step = step_of_round(d, d->q_next) + d->c.overlap;
    d->q_next++;
    d->q_open = 0;
}

void rg_dl_quorum_round(rg_dl_round_t *r, int give) {
    uint64_t begin = rg_os_now_ns(), last = r->q_count - 1;
    rg_quorum_input_t in = RG_QUORUM_INPUT_INIT;
    rg_quorum_result_t res = RG_QUORUM_RESULT_INIT;
    double length = 0;
    r->text[0] = 0;
    r->retries = 0;
    give = give && r->finite && r->weight > 0;
    in.weighted = 1;
    in.weight = r->weight;
    if (give && !r->again) {
        memset(r->scaled + r->n, 0, (size_t)(r->q_count - r->n) * sizeof *r->scaled);
        length = r->merge == RG_DILOCO_RDA ? rg_outer_length(r->d, r->n) : 1;
        rg_outer_scale(r->d, length > 0 ? 1 / length : 0, r->n, r->scaled);
        r->scaled[last] = (float)length;
    }
    if (r->again) r->st = rg_quorum_wait(r->q, r->avg, r->timeout_ms, &res);
    else r->st = rg_quorum_reduce(r->q, give ? r->scaled : NULL, r->avg, &in, r->timeout_ms, &res);
    r->included = res.included != 0;
    r->newest = res.newest;
    r->decided = res.decided_by != 0;
    r->contributors = res.contributors;
    r->all_weight = res.weight_sum;
    r->all_tokens = r->included ? r->tokens : 0;
    if (r->st != RG_OK) snprintf(r->text, sizeof r->text, "%s", res.text[0] ? res.text : rg_strerror(r->st));
    if (r->st == RG_ERR_NO_QUORUM && res.decided_by) { /* of the round, not of the group */
        r->st = RG_ERR_INVALID;
        snprintf(r->text, sizeof r->text,
                 "fewer members than the quorum had a share to give: parameters are not finite (rg_diloco_reset() "
                 "gives them the anchor's), or no step was made since the last one");
    }
    if (r->st == RG_ERR_RESOURCE)
        snprintf(r->text, sizeof r->text, "%d rounds behind the others: leave, and join again by rg_diloco_join()",
                 HISTORY);
    if (r->st == RG_OK && r->merge == RG_DILOCO_RDA) rg_outer_lengthen(r->avg, r->n, (double)r->avg[last]);
    r->took_ns = rg_os_now_ns() - begin;
}
