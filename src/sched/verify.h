/* verify.h: what the parts of the verifier share. verify.c checks form, messages, order and the barrier; verify_races.c
 * races and zero copy; verify_values.c follows the values. Nothing outside src/sched/verify*.c may include it. */
#ifndef RG_VERIFY_H
#define RG_VERIFY_H

#include "sched.h"

#define NOBODY UINT32_MAX

/* What rank r's buffers are. In place, where both exist, IN and OUT are parts of one memory: an element of each is at
 * its own offset plus the shift. */
typedef struct rg_sight {
    int has_in, has_out, one;
    uint64_t shift_in, shift_out;
    uint64_t elems[RG_BUFS]; /* how far they reach */
} rg_sight_t;

/* One proof. Steps of all ranks are numbered through: step i of rank r is base[r] + i. */
typedef struct rg_proof {
    rg_schedule_t *const *s;
    uint32_t n, total;
    uint32_t *base;    /* n + 1 */
    uint32_t *owner;   /* rank of a step */
    uint32_t *mate;    /* the other end of a message, else NOBODY */
    uint32_t *order;   /* all steps, each after what it depends on and what it receives */
    rg_sight_t *sight; /* by rank */
    int in_place;      /* IN and OUT are one memory in this pass */
    int rereads;       /* some rank reads its input where, in place, something was written before */
    char *text;
    size_t cap;
    rg_status_t status;
} rg_proof_t;

static inline const rg_step_t *proof_step(const rg_proof_t *p, uint32_t g) {
    uint32_t r = p->owner[g];
    return &p->s[r]->steps[g - p->base[r]];
}

/* Where a span of rank r's is, in a memory that is told by a number: in place OUT is seen as IN. */
static inline rg_span_t proof_place(const rg_proof_t *p, uint32_t r, rg_span_t x) {
    const rg_sight_t *v = &p->sight[r];
    if (!p->in_place || !v->one || x.buf > RG_BUF_OUT) return x;
    x.off += x.buf == RG_BUF_IN ? v->shift_in : v->shift_out;
    x.buf = RG_BUF_IN;
    return x;
}

/* A copy from IN to OUT that is from and to one place: in place it touches nothing. */
static inline int proof_idle(const rg_proof_t *p, uint32_t r, const rg_step_t *x) {
    return x->kind == RG_STEP_COPY && x->a.buf == RG_BUF_IN && x->dst.buf == RG_BUF_OUT && p->in_place &&
           p->sight[r].one && proof_place(p, r, x->a).off == proof_place(p, r, x->dst).off;
}

/* Records the first thing that is wrong, says at which step (NOBODY: at none), and returns 0. */
int rg_proof_fail(rg_proof_t *p, uint32_t g, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int rg_proof_nomem(rg_proof_t *p);
#ifdef __clang_analyzer__ /* it does not see that both return 0 */
#define rg_proof_fail(p, g, ...) (rg_proof_fail((p), (g), __VA_ARGS__), 0)
#define rg_proof_nomem(p) (rg_proof_nomem(p), 0)
#endif

const char *rg_proof_kind(const rg_step_t *x);

/* Which steps of a rank come before which by its own dependencies: a row of bits for every step. */
typedef struct rg_before {
    uint64_t *bits;
    size_t words;
} rg_before_t;

/* Proves that no rank has a race and that zero copy is what it says. Shows `visit` each rank's order on the way,
 * because the bits of all ranks together would be too many to keep. */
typedef void (*rg_proof_visit_fn)(const rg_proof_t *p, uint32_t r, const rg_before_t *b, void *user);
int rg_proof_races(rg_proof_t *p, rg_proof_visit_fn visit, void *user);

/* Sorts by key; equal ones keep their order. spare has room for n. */
typedef struct rg_proof_key {
    uint64_t key;
    uint32_t a, b;
} rg_proof_key_t;
void rg_proof_sort(rg_proof_key_t *v, rg_proof_key_t *spare, size_t n);

/* Executes all steps in p->order on symbols and checks what is in OUT. 1 when it is right. */
int rg_proof_values(rg_proof_t *p);

#endif
