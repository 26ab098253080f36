/* profile.c: the variants, their names and defaults, and what a configuration may say. Pure: it knows of no handle. */
#include "diloco/profile.h"

#include "config.h"
#include "observe/log.h"

#include <math.h>
#include <string.h>

static const char *const names[RG_DILOCO_VARIANT_COUNT] = { "plain", "streaming", "eager",  "delayed",
                                                            "co2",   "decoupled", "fedavg", "sparse" };

const char *rg_diloco_variant_name(rg_diloco_variant_t v) {
    return (unsigned)v < RG_DILOCO_VARIANT_COUNT ? names[v] : NULL;
}

rg_diloco_variant_t rg_diloco_variant_by_name(const char *name) {
    int v = 0;
    while (v < RG_DILOCO_VARIANT_COUNT && (name == NULL || strcmp(name, names[v]) != 0)) v++;
    return (rg_diloco_variant_t)v;
}

int rg_dl_is_late(rg_diloco_variant_t v) {
    return v == RG_DILOCO_EAGER || v == RG_DILOCO_DELAYED || v == RG_DILOCO_CO2;
}

rg_status_t rg_diloco_profile(rg_diloco_variant_t variant, rg_diloco_config_t *config) {
    if (config == NULL || rg_diloco_variant_name(variant) == NULL) return RG_ERR_INVALID;
    rg_diloco_config_t c = { .struct_size = sizeof c,
                             .variant = variant,
                             .every = 500,
                             .fragments = 1,
                             .momentum_every = 1,
                             .lr = 0.7f,
                             .momentum = 0.9f,
                             .wire = RG_WIRE_BF16,
                             .tag = 0xd110,
                             .serve = RG_ON };
    switch (variant) {
    case RG_DILOCO_STREAMING:
        c.every = 100;
        c.fragments = 4;
        c.overlap = 5;
        c.lr = 0.4f;
        break;
    case RG_DILOCO_EAGER:
        c.every = 100;
        c.lr = 0.4f;
        break;
    case RG_DILOCO_DELAYED: /* momentum 0.9 with a delay of a round diverges on small models */
        c.every = 100;
        c.lr = 0.4f;
        c.momentum = 0.6f;
        break;
    case RG_DILOCO_CO2:
        c.every = 48;
        c.lr = 1;
        c.momentum = 0.5f;
        break;
    case RG_DILOCO_DECOUPLED:
        c.every = 24;
        c.fragments = 8;
        c.overlap = 2;
        c.weight = RG_DILOCO_RATE;
        c.merge = RG_DILOCO_RDA;
        break;
    case RG_DILOCO_FEDAVG:
        c.every = 100;
        c.lr = 1;
        c.momentum = 0;
        c.weight = RG_DILOCO_TOKENS;
        break;
    case RG_DILOCO_SPARSE:
        c.every = 30;
        c.lr = 1;
        c.momentum = 0;
        c.feedback = 0.95f;
        c.topk = 64;
        break;
    default: break;
    }
    *config = c;
    return RG_OK;
}

/* A number that is finite and within. */
static int within(float v, float low, float high) { return v >= low && v <= high; }

rg_status_t rg_dl_config(const rg_diloco_config_t *in, rg_diloco_config_t *c, rg_error_t *err) {
    const char *wrong = NULL;
    rg_diloco_profile(RG_DILOCO_PLAIN, c);
    if (in == NULL) return RG_OK;
    rg_status_t st = rg_struct_in(c, sizeof *c, sizeof *c, in, "rg_diloco_config", err);
    if (st != RG_OK) return st;
    int late = rg_dl_is_late(c->variant);
    if (rg_diloco_variant_name(c->variant) == NULL) wrong = "variant is none of rg_diloco_variant_t";
    else if (c->every == 0) wrong = "every is 0: fill the configuration by rg_diloco_profile()";
    else if (c->fragments == 0 || c->fragments > c->every || c->fragments > 4096)
        wrong = "fragments: from 1 to `every`, and at most 4096";
    else if (late && (c->fragments != 1 || c->overlap != 0))
        wrong = "eager, delayed and co2 overlap a whole round: fragments is 1 and overlap is 0";
    else if (late && c->momentum_every != 1)
        wrong = "eager, delayed and co2 update momentum every round: momentum_every is 1";
    else if (c->overlap != 0 && c->overlap >= c->every / c->fragments)
        wrong = "overlap: less than every / fragments, so that a fragment is merged before the next one is sent";
    else if (c->momentum_every == 0) wrong = "momentum_every: 1 or more";
    else if (!within(c->lr, 0, 1e6f) || c->lr == 0) wrong = "lr: above 0, and at most a million";
    else if (!(c->momentum >= 0 && c->momentum < 1)) wrong = "momentum: from 0 to below 1";
    else if (!within(c->blend, 0, 1)) wrong = "blend: from 0 to 1";
    else if (late && c->blend != 0) wrong = "eager, delayed and co2 take the anchor as it is: blend is 0";
    else if (!within(c->clip, 0, 1e30f)) wrong = "clip: 0 or above, and finite";
    else if (c->clip != 0 && c->variant != RG_DILOCO_CO2) wrong = "clip is for co2";
    else if (!within(c->feedback, 0, 1)) wrong = "feedback: from 0 to 1";
    else if (c->feedback != 0 && c->wire == 0 && c->topk == 0)
        wrong = "feedback needs a quantised wire form; f32 leaves nothing unsaid";
    else if ((unsigned)c->weight > RG_DILOCO_RATE) wrong = "weight is none of rg_diloco_weight_t";
    else if ((unsigned)c->merge > RG_DILOCO_RDA) wrong = "merge is none of rg_diloco_merge_t";
    else if (c->wire != 0 && rg_wire_name(c->wire) == NULL) wrong = "wire is none of rg_wire_t, nor 0 for f32";
    else if (c->topk > 4096) wrong = "topk: at most 4096 of 4096";
    else if (c->quorum != 0 && (late || c->wire != 0 || c->topk != 0))
        wrong = "quorum is for f32 (wire 0, topk 0), and not for eager, delayed and co2";
    else if (c->grace_ms != 0 && c->quorum == 0) wrong = "grace_ms is for a quorum";
    else if (c->grace_ms > 3600000) wrong = "grace_ms: at most an hour";
    else if (c->timeout_ms > INT32_MAX) wrong = "timeout_ms: at most 2147483647";
    else if (c->flags != 0) wrong = "flags: 0";
    else if ((unsigned)c->serve > RG_OFF) wrong = "serve is none of rg_switch_t";
    return wrong ? rg_fail(err, RG_ERR_INVALID, 0, "rg_diloco_create: %s", wrong) : RG_OK;
}
