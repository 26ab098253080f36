/* test_stack.c: threads with little stack call the library: what regroup.h says of the stack that a call takes. It
 * relies on engine_rig.h for the group, and on a page behind the stack that nobody may touch: a call that takes more
 * ends the test. It must not look at results more closely than that they are there; other tests do. */
#include "engine_rig.h"

#include "regroup_diloco.h"
#include "regroup_quant.h"
#include "regroup_quorum.h"
#include "regroup_sparse.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define N 20000u

typedef struct small {
    rig_member_t *m;
    int (*const *calls)(rig_member_t *m);
    int bad;
} small_t;

static int plain(rig_member_t *m) {
    float *x = calloc(N * m->rig->n, sizeof *x), *y = calloc(N * m->rig->n, sizeof *y);
    rg_request_t *r = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    RIG_OK(m, rg_all_reduce(m->g, x, x, N, RG_BF16, RG_SUM, NULL, NULL));
    RIG_OK(m, rg_reduce_scatter(m->g, x, y, N, RG_F32, RG_AVG, &o, NULL));
    RIG_OK(m, rg_all_gather(m->g, x, y, N, RG_F32, NULL, &r));
    RIG_OK(m, rg_wait(r, NULL));
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    free(x), free(y);
    return 0;
}

static int quantised(rig_member_t *m) {
    const rg_quant_form_t forms[] = { RG_QUANT_DIRECT, RG_QUANT_RING };
    float *x = calloc(N, sizeof *x);
    for (int i = 0; i < 2; i++) {
        rg_quant_t q = RG_QUANT_INIT(i ? RG_WIRE_E4M3 : RG_WIRE_I8);
        rg_feedback_t f = RG_FEEDBACK_INIT;
        rg_quantiser_t *z;
        q.form = forms[i];
        RIG_OK(m, rg_quantiser_create(m->g, &q, &f, &z, NULL));
        RIG_OK(m, rg_quant_all_reduce(z, x, x, N, RG_SUM, NULL));
        rg_quantiser_destroy(z);
    }
    free(x);
    return 0;
}

static int largest(rig_member_t *m) {
    float *x = calloc(N, sizeof *x);
    rg_topk_t t = RG_TOPK_INIT;
    rg_feedback_t f = RG_FEEDBACK_INIT;
    rg_topk_reducer_t *z;
    t.flags = RG_TOPK_DCT;
    for (uint32_t i = 0; i < N; i += 7) x[i] = (float)i;
    RIG_OK(m, rg_topk_reducer_create(m->g, &t, &f, &z, NULL));
    RIG_OK(m, rg_topk_all_reduce(z, x, x, N, RG_SPARSE_SUM, NULL));
    rg_topk_reducer_destroy(z);
    free(x);
    return 0;
}

static int sparse(rig_member_t *m) {
    rg_sparse_t in = RG_SPARSE_INIT, out = RG_SPARSE_INIT;
    float *x = calloc(N, sizeof *x);
    rg_sparse_reducer_t *z;
    for (uint32_t i = m->index; i < N; i += 9) x[i] = (float)i;
    in.index = out.index = RG_INDEX_U32;
    in.dtype = out.dtype = RG_F32;
    in.n = out.n = in.values = out.values = N;
    in.idx = malloc(N * 4), in.val = malloc(N * 4);
    out.idx = malloc(N * 4), out.val = malloc(N * 4);
    RIG_OK(m, rg_sparse_from_dense(x, &in, NULL));
    RIG_OK(m, rg_sparse_reducer_create(m->g, &z, NULL));
    for (int i = 0; i < 3; i++) {
        rg_sparse_how_t how = RG_SPARSE_HOW_INIT;
        rg_quant_t q = RG_QUANT_INIT(RG_WIRE_I8);
        how.quant = i == 1 ? &q : NULL;
        how.result = i == 2 ? RG_SPARSE_TOPK : how.result;
        how.topk = i == 2 ? 100 : 0;
        out.values = N;
        RIG_OK(m, rg_sparse_all_reduce(z, &in, &out, &how, NULL));
    }
    RIG_OK(m, rg_sparse_to_dense(&out, x, NULL));
    rg_sparse_reducer_destroy(z);
    free(x), free(in.idx), free(in.val), free(out.idx), free(out.val);
    return 0;
}

static int beside(rig_member_t *m) {
    rg_quorum_config_t qc = RG_QUORUM_CONFIG_INIT;
    rg_diloco_config_t dc;
    rg_quorum_t *q;
    rg_diloco_t *d;
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    float *x = calloc(N, sizeof *x);
    qc.count = N;
    RIG_OK(m, rg_quorum_create(m->g, &qc, &q, NULL));
    RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    rg_quorum_destroy(q);
    rg_diloco_profile(RG_DILOCO_PLAIN, &dc);
    dc.every = 2;
    RIG_OK(m, rg_diloco_create(&dc, &d, NULL));
    RIG_OK(m, rg_diloco_add(d, "x", x, N, 0, NULL));
    RIG_OK(m, rg_diloco_start(d, m->g, NULL));
    RIG_OK(m, rg_diloco_step(d, 1, &r));
    RIG_OK(m, rg_diloco_step(d, 1, &r));
    rg_diloco_destroy(d);
    free(x);
    return 0;
}

static _Thread_local small_t *running;

static void small_main(void) {
    small_t *s = running;
    for (int i = 0; s->calls[i] && !s->bad; i++) s->bad = s->calls[i](s->m);
}

static int with_stack(rig_member_t *m, size_t bytes, int (*const *calls)(rig_member_t *m)) {
    static _Thread_local ucontext_t here, there;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    small_t s = { .m = m, .calls = calls };
    uint8_t *stack = mmap(NULL, page + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RIG_NEED(m, stack != MAP_FAILED && mprotect(stack, page, PROT_NONE) == 0, "no stack");
    RIG_NEED(m, getcontext(&there) == 0, "getcontext");
    there.uc_stack.ss_sp = stack + page;
    there.uc_stack.ss_size = bytes;
    there.uc_link = &here;
    running = &s;
    makecontext(&there, small_main, 0);
    RIG_NEED(m, swapcontext(&here, &there) == 0, "swapcontext");
    munmap(stack, page + bytes);
    return s.bad;
}

/* Less than is promised: other C libraries and compilers take more than these. */
static int little_stack(rig_member_t *m, void *arg) {
    static int (*const most[])(rig_member_t *) = { plain, quantised, beside, NULL };
    static int (*const chosen[])(rig_member_t *) = { largest, NULL };
    static int (*const lists[])(rig_member_t *) = { sparse, NULL };
    (void)arg;
    return with_stack(m, 32u << 10, most) || with_stack(m, 64u << 10, chosen) || with_stack(m, 112u << 10, lists);
}

Test(stack, calls__with_as_little_as_the_header_says__have_enough) {
    static const char *transports[] = { "inproc", "tcp", "shm" };
    if (RIG_SLOW > 1) cr_skip_test("a sanitizer makes frames larger than they are");
    for (int t = 0; t < 3; t++) rig_run(2, transports[t], NULL, little_stack, NULL);
}
