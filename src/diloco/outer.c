/* outer.c: the equations of the outer optimisers, element by element, each float operation one IEEE operation. Relies
 * on being compiled without contraction. It must not allocate or know of groups. */
#include "diloco/outer.h"

#include "regroup_diloco.h"

#include <float.h>
#include <math.h>

/* Not finite is the same as: x - x is not 0. Sums of such differences are looked at once, which the compiler can turn
 * into vectors. */
#define CHECKED 64

static int all_finite(const float *x, uint64_t n) {
    uint64_t i = 0;
    for (; i + CHECKED <= n; i += CHECKED) {
        uint32_t bad = 0;
        for (int k = 0; k < CHECKED; k++) bad |= !(fabsf(x[i + (uint64_t)k]) <= FLT_MAX);
        if (bad) return 0;
    }
    for (; i < n; i++)
        if (!(fabsf(x[i]) <= FLT_MAX)) return 0;
    return 1;
}

int rg_outer_delta(const float *anchor, const float *off, const float *local, const float *carry, uint64_t n,
                   float *d) {
    for (uint64_t i = 0; i < n; i++) d[i] = (off ? anchor[i] + off[i] : anchor[i]) - local[i];
    if (carry)
        for (uint64_t i = 0; i < n; i++) d[i] += carry[i];
    return all_finite(d, n);
}

/* Eight sums side by side, in an order that does not depend on the machine. */
double rg_outer_distance(const float *x, const float *y, uint64_t n) {
    double lane[8] = { 0 };
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) {
            double v = (double)x[i + (uint64_t)k] - (y ? (double)y[i + (uint64_t)k] : 0.0);
            lane[k] += v * v;
        }
    for (; i < n; i++) {
        double v = (double)x[i] - (y ? (double)y[i] : 0.0);
        lane[i % 8] += v * v;
    }
    return sqrt(((lane[0] + lane[4]) + (lane[1] + lane[5])) + ((lane[2] + lane[6]) + (lane[3] + lane[7])));
}

double rg_outer_length(const float *x, uint64_t n) { return rg_outer_distance(x, 0, n); }

/* What cut-off leaves of v; NaN stays, and is found afterwards. */
static float clipped(float v, float clip) {
    if (clip == 0.0f) return v;
    return v > clip ? clip : v < -clip ? -clip : v;
}

int rg_outer_step(const rg_outer_t *o, const rg_outer_place_t *at, const float *d, uint64_t n, uint32_t arrivals,
                  double gap) {
    const float lr = o->lr, mu = o->momentum, k = (float)o->momentum_every;
    if (o->heavy) {
        const float stale = (float)gap;
        for (uint64_t i = 0; i < n; i++) {
            float buf = clipped(mu * at->buf[i] + d[i] / stale, o->clip);
            at->buf_out[i] = buf;
            at->theta_out[i] = at->theta[i] - lr * buf;
        }
    } else if (o->momentum_every == 1) {
        for (uint64_t i = 0; i < n; i++) {
            float buf = mu * at->buf[i] + d[i];
            at->buf_out[i] = buf;
            at->theta_out[i] = at->theta[i] - lr * (d[i] + mu * buf);
        }
    } else if (arrivals + 1 < o->momentum_every) {
        for (uint64_t i = 0; i < n; i++) {
            at->acc_out[i] = at->acc[i] + d[i];
            at->buf_out[i] = at->buf[i];
            at->theta_out[i] = at->theta[i] - lr * (d[i] / k);
        }
    } else {
        for (uint64_t i = 0; i < n; i++) {
            float buf = mu * at->buf[i] + (at->acc[i] + d[i]) / k;
            at->acc_out[i] = 0;
            at->buf_out[i] = buf;
            at->theta_out[i] = at->theta[i] - lr * (d[i] / k + mu * buf);
        }
    }
    int keeps = !o->heavy && o->momentum_every > 1; /* arrivals, which are part of the next momentum */
    return all_finite(at->theta_out, n) && all_finite(at->buf_out, n) && (!keeps || all_finite(at->acc_out, n));
}

void rg_outer_eager(const float *d, double m, const float *said, uint64_t n, float *say, float *x) {
    const float by = (float)(1 / m);
    for (uint64_t i = 0; i < n; i++) {
        say[i] = d[i] * by;
        x[i] = say[i] - said[i];
    }
}

void rg_outer_blend(float *local, const float *anchor, const float *off, float alpha, uint64_t n) {
    /* Without a blend nothing of the own parameters may show, not even as a rounding, so that all members are equal. */
    if (alpha == 0.0f)
        for (uint64_t i = 0; i < n; i++) local[i] = off ? anchor[i] + off[i] : anchor[i];
    else
        for (uint64_t i = 0; i < n; i++)
            local[i] = alpha * local[i] + (1 - alpha) * (off ? anchor[i] + off[i] : anchor[i]);
}

double rg_outer_weight(int kind, uint64_t tokens, uint64_t steps) {
    if (steps == 0) return 0;
    if (kind == RG_DILOCO_TOKENS) return (double)tokens;
    if (kind == RG_DILOCO_RATE) return (double)tokens * (double)tokens / (double)steps;
    return 1;
}

double rg_outer_gap(double way, double usual) { return usual > 0 ? 1 + way / usual : 1; }

void rg_outer_scale(const float *x, double by, uint64_t n, float *out) {
    const float f = (float)by;
    for (uint64_t i = 0; i < n; i++) out[i] = x[i] * f;
}

int rg_outer_lengthen(float *u, uint64_t n, double length) {
    double have = rg_outer_length(u, n);
    if (!(have > 1e-12 * length)) return 0;
    rg_outer_scale(u, length / have, n, u);
    return 1;
}
