/* test_hostile.c: calls that are wrong, or right in a way that is easily got wrong: buffers that overlap in disguise,
 * segments with no memory between them, batches that are left behind, more differing calls than fit into any table.
 * It relies on engine_rig.h. Whatever a call is refused for, nothing may be written: all memory is compared. */
#include "engine/group.h"
#include "engine_rig.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REFUSED(m, call, status, word)                                                                                 \
    do {                                                                                                               \
        rg_status_t got_ = (call);                                                                                     \
        RIG_NEED(m, got_ == (status) && strstr(rig_errmsg(m), word), "%s: %s (%s)", #call, rg_status_name(got_),       \
                 rig_errmsg(m));                                                                                       \
    } while (0)

/* ---- Overlaps ---------------------------------------------------------------------------------------------------- */

static int lists_overlap(rig_member_t *m, void *arg) {
    static const uint64_t long_short[2] = { 100, 10 }, ten_two[2] = { 10, 2 };
    float a[200], apart[100];
    (void)arg;
    for (int i = 0; i < 200; i++) a[i] = (float)i;
    /* The output lies in the first input, but the second input comes between them. */
    const void *in[2] = { a, a + 10 };
    void *out[2] = { apart, a + 50 };
    REFUSED(m, rg_all_reduce_list(m->g, in, out, long_short, 2, RG_F32, RG_SUM, NULL, NULL), RG_ERR_INVALID,
            "buffers 0 and 1");
    /* What the first pair writes in place is an input of the second. */
    uint64_t own = m->index * 10;
    const void *in2[2] = { a, a + own };
    void *out2[2] = { a + own, apart };
    REFUSED(m, rg_reduce_scatter_list(m->g, in2, out2, ten_two, 2, RG_F32, RG_SUM, NULL, NULL), RG_ERR_INVALID,
            "overlap");
    for (int i = 0; i < 200; i++) RIG_NEED(m, a[i] == (float)i, "element %d was written", i);
    /* Inputs that are only read may be the same. */
    const void *in3[2] = { a, a };
    void *out3[2] = { apart, apart + 10 };
    RIG_OK(m, rg_all_reduce_list(m->g, in3, out3, ten_two, 2, RG_F32, RG_SUM, NULL, NULL));
    RIG_NEED(m, apart[9] == 18 && apart[11] == 2, "%g, %g", (double)apart[9], (double)apart[11]);
    return 0;
}

Test(hostile, list__overlap_behind_another_buffer__refused) { rig_run(2, "inproc", NULL, lists_overlap, NULL); }

/* The own segment is one row, and so not in rows: in place all the same. One element beside it is not. */
static int one_row(rig_member_t *m, void *arg) {
    const rg_strided_t s = { 4, 8 };
    float a[24], *own = a + m->index * 8;
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    o.in_strided = o.out_strided = &s;
    for (int i = 0; i < 24; i++) a[i] = (float)(i / 8 == (int)m->index ? i : -i);
    RIG_OK(m, rg_all_gather(m->g, own, a, 4, RG_F32, &o, NULL));
    for (int i = 0; i < 24; i++)
        RIG_NEED(m, a[i] == (float)(i % 8 < 4 || i / 8 == (int)m->index ? i : -i), "gather: %d is %g", i, (double)a[i]);
    REFUSED(m, rg_all_gather(m->g, own + 1, a, 4, RG_F32, &o, NULL), RG_ERR_INVALID, "overlap");
    for (int i = 0; i < 24; i++) a[i] = (float)i;
    RIG_OK(m, rg_reduce_scatter(m->g, a, own, 4, RG_F32, RG_SUM, &o, NULL));
    for (int i = 0; i < 24; i++)
        RIG_NEED(m, a[i] == (float)(i % 8 < 4 && i / 8 == (int)m->index ? 3 * i : i), "reduce: %d is %g", i,
                 (double)a[i]);
    REFUSED(m, rg_reduce_scatter(m->g, a, own - 1 + 2 * !m->index, 4, RG_F32, RG_SUM, &o, NULL), RG_ERR_INVALID,
            "overlap");
    /* Who destroys its handle is lost to those whose last call, which is not one that is made again, still runs. */
    return rig_gate(m, 0, m->rig->n);
}

Test(hostile, rows__own_segment_is_one_row__in_place) { rig_run(3, "inproc", NULL, one_row, NULL); }

/* ---- Segments far apart ------------------------------------------------------------------------------------------ */

#define FAR ((size_t)1 << 20) /* elements from one segment to the other; between them nothing can be read */
#define NEAR 1000u

static int with_hole(rig_member_t *m, void *arg) {
    const uint64_t counts[2] = { NEAR, NEAR }, offs[2] = { 0, FAR };
    const size_t bytes = (FAR + NEAR) * sizeof(float), lit = 2 * NEAR * sizeof(float);
    rg_opts_t o = RG_OPTS_INIT;
    float out[NEAR];
    (void)arg;
    float *x = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RIG_NEED(m, x != MAP_FAILED, "mmap");
    RIG_NEED(m, !mprotect(x, lit, PROT_READ | PROT_WRITE) && !mprotect(x + FAR, lit / 2, PROT_READ | PROT_WRITE),
             "mprotect");
    for (uint32_t i = 0; i < NEAR; i++) {
        x[i] = (float)(m->index * 10000 + i);
        x[FAR + i] = (float)(m->index * 10000 + 5000 + i);
    }
    RIG_OK(m, rg_all_to_all_v(m->g, x, counts, offs, x, counts, offs, RG_F32, NULL, NULL));
    for (uint32_t i = 0; i < NEAR; i++)
        RIG_NEED(m, x[i] == (float)(m->index * 5000 + i) && x[FAR + i] == (float)(10000 + m->index * 5000 + i),
                 "element %u", i);
    o.scale = 2;
    RIG_OK(m, rg_reduce_scatter_v(m->g, x, out, counts, offs, RG_F32, RG_SUM, &o, NULL));
    /* In place: what a call that does not succeed gives back is the segments alone, too. */
    uint64_t odd[2] = { NEAR, m->index ? NEAR : NEAR - 1 }, *sent = m->index ? odd : (uint64_t *)(uintptr_t)counts;
    float first = x[0], last = x[FAR + NEAR - 1];
    rg_status_t st = m->index ? rg_all_to_all_v(m->g, x, sent, offs, x, sent, offs, RG_F32, NULL, NULL)
                              : rg_all_gather(m->g, x, out, 10, RG_F32, NULL, NULL);
    RIG_NEED(m, st == RG_ERR_MISMATCH && x[0] == first && x[FAR + NEAR - 1] == last, "%s", rg_status_name(st));
    munmap(x, bytes);
    return 0;
}

Test(hostile, segments__no_memory_between_them__never_touched_there) {
    rig_run(2, "inproc", NULL, with_hole, NULL);
    rig_run(2, "tcp", NULL, with_hole, NULL);
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static int to_oneself(rig_member_t *m, void *arg) {
    int32_t a = 7, b = 0;
    uint64_t id = 0, self;
    rg_request_t *req;
    rg_result_t res = RG_RESULT_INIT;
    (void)arg;
    res.contributor_ids = &id;
    res.contributor_cap = 1;
    RIG_OK(m, rg_group_member(m->g, 0, &self));
    RIG_OK(m, rg_send(m->g, &a, 1, RG_I32, 0, NULL, &req));
    RIG_OK(m, rg_recv(m->g, &b, 1, RG_I32, 0, NULL, NULL));
    RIG_OK(m, rg_wait(req, &res));
    RIG_NEED(m, b == 7 && res.contributors == 1 && id == self, "%d, %u, %llu", b, res.contributors,
             (unsigned long long)id);
    return 0;
}

Test(hostile, message_to_oneself__first_operation__result_has_the_id) { rig_run(1, "inproc", NULL, to_oneself, NULL); }

/* Without the other half the text says what was waited for: no other member. */
static int half_to_oneself(rig_member_t *m, void *arg) {
    int32_t a = 7;
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    o.timeout_ms = 1;
    o.result = &res;
    rg_status_t st = rg_send(m->g, &a, 1, RG_I32, m->index, &o, NULL);
    RIG_NEED(m, st == RG_ERR_TIMEOUT && strstr(res.text, "own rg_recv"), "%s: %s", rg_status_name(st), res.text);
    st = rg_recv(m->g, &a, 1, RG_I32, m->index, &o, NULL);
    RIG_NEED(m, st == RG_ERR_TIMEOUT && strstr(res.text, "own rg_send"), "%s: %s", rg_status_name(st), res.text);
    return rig_gate(m, 0, 2); /* ranks are what they are while both are here */
}

Test(hostile, message_to_oneself__no_other_half__timeout_says_so) { rig_run(2, "inproc", NULL, half_to_oneself, NULL); }

/* What others say goes into texts that are shown on terminals. */
static int said_by_others(rig_member_t *m, void *arg) {
    int32_t a = 7;
    rg_request_t *r = NULL;
    rg_result_t res = RG_RESULT_INIT;
    (void)arg;
    RIG_OK(m, rg_recv(m->g, &a, 1, RG_I32, m->index, NULL, &r));
    rg_lock(m->g);
    rg_ops_fail_of(m->g, RG_ERR_ABORTED, "it said \x1b[2J\xc2\x9bm");
    rg_unlock(m->g);
    RIG_NEED(m, rg_wait(r, &res) == RG_ERR_ABORTED && !strcmp(res.text, "it said  [2J??m"), "%s", res.text);
    RIG_NEED(m, strstr(rig_errmsg(m), "it said  [2J??m"), "%s", rig_errmsg(m));
    return 0;
}

Test(hostile, texts_of_others__in_results_and_messages__cannot_move_the_cursor) {
    rig_run(1, "inproc", NULL, said_by_others, NULL);
}

/* A batch that was begun and never ended goes with its handle; the same thread can begin another. */
static int left_behind(rig_member_t *m, void *arg) {
    int32_t a = 7, b = 0;
    uint32_t other = 1 - m->index;
    (void)arg;
    RIG_OK(m, rg_batch_begin(m->g));
    RIG_OK(m, rg_send(m->g, &a, 1, RG_I32, other, NULL, NULL));
    RIG_OK(m, rg_group_leave(m->g));
    rg_group_destroy(m->g);
    if (rig_gate(m, 0, 2)) return 1;
    m->g = rig_join(m, 2);
    if (!m->g) return 1;
    RIG_OK(m, rg_batch_begin(m->g));
    RIG_OK(m, rg_send(m->g, &a, 1, RG_I32, other, NULL, NULL));
    RIG_OK(m, rg_recv(m->g, &b, 1, RG_I32, other, NULL, NULL));
    RIG_OK(m, rg_batch_end(m->g, NULL));
    RIG_NEED(m, b == 7, "%d", b);
    return rig_gate(m, 1, 2);
}

Test(hostile, batch__handle_destroyed_before_its_end__forgotten) { rig_run(2, "inproc", NULL, left_behind, NULL); }

static void *destroys(void *g) {
    rg_group_destroy(g);
    return NULL;
}

/* The same when another thread destroys it: the next handle, which may well have its address, has no batch. */
static int left_by_another(rig_member_t *m, void *arg) {
    int32_t a = 7, b = 0;
    uint32_t other = 1 - m->index;
    pthread_t t;
    (void)arg;
    RIG_OK(m, rg_batch_begin(m->g));
    RIG_OK(m, rg_send(m->g, &a, 1, RG_I32, other, NULL, NULL));
    RIG_OK(m, rg_group_leave(m->g));
    RIG_NEED(m, !pthread_create(&t, NULL, destroys, m->g) && !pthread_join(t, NULL), "no thread");
    m->g = NULL;
    if (rig_gate(m, 0, 2)) return 1;
    m->g = rig_join(m, 2);
    if (!m->g) return 1;
    if (m->index) RIG_OK(m, rg_send(m->g, &a, 1, RG_I32, 0, NULL, NULL)); /* in no batch: it is sent */
    else RIG_OK(m, rg_recv(m->g, &b, 1, RG_I32, 1, NULL, NULL));
    RIG_NEED(m, m->index || b == 7, "%d", b);
    RIG_NEED(m, rg_batch_end(m->g, NULL) == RG_ERR_INVALID, "an end without a begin");
    RIG_OK(m, rg_batch_begin(m->g));
    RIG_OK(m, rg_send(m->g, &a, 1, RG_I32, other, NULL, NULL));
    RIG_OK(m, rg_recv(m->g, &b, 1, RG_I32, other, NULL, NULL));
    RIG_OK(m, rg_batch_end(m->g, NULL));
    return rig_gate(m, 1, 2);
}

Test(hostile, batch__handle_destroyed_by_another_thread__forgotten) {
    rig_run(2, "inproc", NULL, left_by_another, NULL);
}

/* What a call is told when the group is over is why it is, whatever was said between. */
static int says_why(rig_member_t *m, rg_group_t *h, rg_status_t want, const char *word) {
    int32_t x = 1;
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    rg_group_t *none;
    char text[256];
    o.result = &res;
    RIG_NEED(m, rg_all_reduce(h, &x, &x, 1, (rg_dtype_t)99, RG_SUM, NULL, NULL) == RG_ERR_INVALID, "type 99");
    rg_status_t st = rg_all_reduce(h, &x, &x, 1, RG_I32, RG_SUM, &o, NULL);
    RIG_NEED(m, st == want && res.status == want && strstr(res.text, word), "%s: %s", rg_status_name(st), res.text);
    RIG_NEED(m, rg_all_reduce(h, &x, &x, 1, (rg_dtype_t)99, RG_SUM, NULL, NULL) == RG_ERR_INVALID, "type 99");
    st = rg_group_split(h, 0, 0, NULL, &none);
    rg_group_errmsg(h, text, sizeof text);
    RIG_NEED(m, st == want && strstr(text, word), "split: %s: %s", rg_status_name(st), text);
    return 0;
}

static int over(rig_member_t *m, void *arg) {
    rg_group_t *a = NULL, *b = NULL;
    (void)arg;
    RIG_OK(m, rg_group_split(m->g, 0, 0, NULL, &a));
    RIG_OK(m, rg_group_split(m->g, 0, 0, NULL, &b));
    RIG_OK(m, rg_group_abort(a));
    int bad = says_why(m, a, RG_ERR_ABORTED, "abort of a sub-group");
    if (!bad && rig_gate(m, 0, 2)) bad = 1;
    if (!bad && rg_group_leave(m->g) != RG_OK) bad = rig_complain(m, __FILE__, __LINE__, "leave");
    bad = bad || says_why(m, m->g, RG_ERR_CLOSED, "rg_group_leave") || says_why(m, b, RG_ERR_CLOSED, "rg_group_leave");
    rg_group_destroy(a);
    rg_group_destroy(b);
    return bad;
}

Test(hostile, group_over__calls_say_why__not_what_was_said_last) { rig_run(2, "inproc", NULL, over, NULL); }

/* A call that is refused for its options says so in its result too. */
static int refused_by_options(rig_member_t *m, void *arg) {
    float a = 1, b = 2;
    (void)arg;
    for (int i = 0; i < 4; i++) {
        rg_result_t res = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &res;
        if (i == 0) o.on_fault = (rg_on_fault_t)9;
        if (i == 1) o.timeout_ms = UINT32_MAX;
        if (i == 2) o.flags = 1;
        if (i == 3) o.weighted = (rg_switch_t)5;
        rg_status_t st = rg_all_reduce(m->g, &a, &b, 1, RG_F32, RG_SUM, &o, NULL);
        RIG_NEED(m, st == (i == 2 ? RG_ERR_NOTSUP : RG_ERR_INVALID), "%d: %s", i, rg_status_name(st));
        RIG_NEED(m, res.status == st && !strcmp(res.text, rig_errmsg(m)), "%d: the result says %s: %s", i,
                 rg_status_name(res.status), res.text);
    }
    return 0;
}

Test(hostile, options__refused__the_result_says_why) { rig_run(1, "inproc", NULL, refused_by_options, NULL); }

/* ---- Factors ----------------------------------------------------------------------------------------------------- */

static int too_great(rig_member_t *m, void *arg) {
    float a[4] = { 1, 2, 3, 4 }, b[4] = { 0 };
    double x[4] = { 1, 2, 3, 4 };
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    o.scale = 1e300;
    REFUSED(m, rg_all_reduce(m->g, a, b, 4, RG_F32, RG_SUM, &o, NULL), RG_ERR_INVALID, "at most");
    RIG_OK(m, rg_all_reduce(m->g, x, x, 4, RG_F64, RG_SUM, &o, NULL));
    o.scale = 0;
    o.scale_after = -1e39;
    REFUSED(m, rg_all_reduce(m->g, a, b, 4, RG_F16, RG_SUM, &o, NULL), RG_ERR_INVALID, "at most");
    o.scale_after = 3e38; /* a third of a sum is more than half of it */
    REFUSED(m, rg_all_reduce(m->g, a, a, 4, RG_F32, RG_AVG, &o, NULL), RG_ERR_INVALID, "scale_after");
    RIG_NEED(m, a[3] == 4 && b[3] == 0, "something was written");
    return 0;
}

Test(hostile, factor__beyond_the_type__refused_with_the_reason) { rig_run(3, "inproc", NULL, too_great, NULL); }

/* ---- One member differs ------------------------------------------------------------------------------------------ */

typedef struct differing {
    rg_group_t *g;
    float *in, *out; /* equal in place */
    uint64_t n;
    uint32_t odd; /* 1 on the member that differs */
    uint32_t me;
} differing_t;

#define WAYS 18

/* In one way after the other: count, type, operator, root, what happens on a fault, factors, weights, kind. */
static rg_status_t differ(const differing_t *d, int way) {
    rg_group_t *g = d->g;
    float *in = d->in, *out = d->out, *own = in == out ? in + d->me * d->n : out;
    uint64_t n = d->n, less = n - d->odd, counts[3] = { n, n / 2 + !d->odd, 2 + d->odd };
    rg_opts_t o = RG_OPTS_INIT;
    switch (way) {
    case 0: return rg_all_reduce(g, in, out, less, RG_F32, RG_SUM, NULL, NULL);
    case 1: return rg_all_reduce(g, in, out, n, d->odd ? RG_I32 : RG_F32, RG_SUM, NULL, NULL);
    case 2: return rg_all_reduce(g, in, out, n, RG_F32, d->odd ? RG_MAX : RG_SUM, NULL, NULL);
    case 3: o.on_fault = d->odd ? RG_RETURN : RG_RETRY; return rg_all_reduce(g, in, out, n, RG_F32, RG_SUM, &o, NULL);
    case 4: o.tag = 9; return rg_all_reduce(g, in, out, less, RG_F32, RG_SUM, &o, NULL);
    case 5: o.scale_after = d->odd ? 2 : 0; return rg_all_reduce(g, in, out, n, RG_F32, RG_SUM, &o, NULL);
    case 6:
        o.weighted = d->odd ? RG_OFF : RG_ON;
        o.weight = 1;
        return rg_all_reduce(g, in, out, n, RG_F32, RG_AVG, &o, NULL);
    case 7: o.scale = 3; return rg_all_reduce(g, in, out, n, d->odd ? RG_F32 : RG_BF16, RG_SUM, &o, NULL);
    case 8: return rg_all_reduce(g, in, out, d->odd ? 0 : n, RG_F32, RG_SUM, NULL, NULL);
    case 9: return d->odd ? rg_barrier(g, NULL, NULL) : rg_all_reduce(g, in, out, n, RG_F32, RG_SUM, NULL, NULL);
    case 10: return rg_reduce(g, in, out, n, RG_F32, RG_SUM, d->odd * 2, NULL, NULL);
    case 11: o.scale_after = d->odd ? 2 : 0; return rg_reduce_scatter(g, in, own, n, RG_F32, RG_SUM, &o, NULL);
    case 12: return rg_reduce_scatter(g, in, d->out + 3 * n, less, RG_F32, RG_SUM, NULL, NULL);
    case 13: return rg_all_to_all(g, in, out, less, RG_F32, NULL, NULL);
    case 14: return rg_gather(g, in, d->out + 3 * n, less, RG_F32, 0, NULL, NULL);
    case 15: return rg_scatter(g, in, d->out + 3 * n, less, RG_F32, 0, NULL, NULL);
    case 16: return rg_all_gather_v(g, in, d->out + 3 * n, counts, NULL, RG_F32, NULL, NULL);
    default: return rg_reduce_scatter_v(g, in, d->out + 3 * n, counts, NULL, RG_F32, RG_SUM, NULL, NULL);
    }
}

static int one_differs(rig_member_t *m, void *arg) {
    const uint64_t n = *(const uint64_t *)arg, all = 7 * n;
    float *in = malloc(all * sizeof *in), *was = malloc(all * sizeof *was), *out = malloc(all * sizeof *out);
    differing_t d = { .g = m->g, .in = in, .n = n, .odd = m->index == 2, .me = m->index };
    int bad = 0;
    for (int i = 0; i < 2 * WAYS && !bad; i++) {
        for (uint64_t k = 0; k < all; k++) in[k] = was[k] = (float)(k + m->index);
        d.out = i % 2 ? in : out;
        rg_status_t st = differ(&d, i / 2);
        uint64_t judged = i / 2 >= 12 ? 3 * n : all; /* in place, what lies behind is an output */
        bad = st != RG_ERR_MISMATCH || !strstr(rig_errmsg(m), "; rank") || memcmp(in, was, judged * sizeof *in) ||
              rg_barrier(m->g, NULL, NULL) != RG_OK;
        if (bad) rig_complain(m, __FILE__, __LINE__, "way %d: %s (%s)", i, rg_status_name(st), rig_errmsg(m));
    }
    free(in);
    free(was);
    free(out);
    return bad ? 1 : rig_gate(m, 0, 3);
}

Test(hostile, one_member_differs_in_any_way__both_are_named_and_inputs_intact, .timeout = 60) {
    static const char *const over[] = { "inproc", "tcp", "shm" };
    for (int t = 0; t < 3; t++)
        for (uint64_t n = 8; n < 100000; n *= 100) rig_run(3, over[t], NULL, one_differs, &n);
}

/* ---- Many differing calls at once -------------------------------------------------------------------------------- */

#define MANY 60

/* Two members start when all of the third's messages have come, which are more than are remembered. */
static int many_differ(rig_member_t *m, void *arg) {
    rg_request_t *req[MANY];
    float in[64], out[MANY][64];
    int odd = m->index == 2, *rooted = arg;
    for (int k = 0; k < 64; k++) in[k] = (float)k;
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    if (!odd && rig_gate(m, 0, 3)) return 1;
    for (int i = 0; i < MANY; i++) {
        rg_status_t st = odd && *rooted ? rg_gather(m->g, in, out[i], 7, RG_F32, 0, NULL, &req[i])
                         : odd          ? rg_all_reduce(m->g, in, out[i], 3, RG_F32, RG_SUM, NULL, &req[i])
                         : *rooted      ? rg_scatter(m->g, in, out[i], 9, RG_F32, 1, NULL, &req[i])
                                        : rg_barrier(m->g, NULL, &req[i]);
        RIG_NEED(m, st == RG_OK, "%d is refused: %s", i, rg_status_name(st));
    }
    if (odd && rig_gate(m, 0, 3)) return 1;
    rg_status_t worst = RG_ERR_MISMATCH;
    for (int i = 0; i < MANY; i++) {
        rg_status_t st = rg_wait(req[i], NULL);
        if (st != RG_ERR_MISMATCH) worst = st;
    }
    RIG_NEED(m, worst == RG_ERR_MISMATCH && in[63] == 63, "%s", rg_status_name(worst));
    return rig_gate(m, 1, 3);
}

Test(hostile, many_calls_differ_at_once__mismatch_of_all, .timeout = 60) {
    for (int rooted = 0; rooted < 2; rooted++) {
        rig_run(3, "inproc", NULL, many_differ, &rooted);
        rig_run(3, "shm", NULL, many_differ, &rooted);
    }
}

/* ---- A root that is no rank any more ----------------------------------------------------------------------------- */

/* Member 0 goes. Two others, who were not told, call a rank that the group no longer has, and it ends; the last one
 * calls the same when a second round has passed, and must hear the same. */
static int late_root(rig_member_t *m, void *arg) {
    uint64_t id;
    float x = 1, y = 0;
    (void)arg;
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    if (m->index == 0) return 0;
    while (rg_group_member(m->g, 3, &id) == RG_OK) sched_yield();
    if (m->index == 3 && rig_gate(m, 0, 3)) return 1;
    rg_status_t st = rg_reduce(m->g, &x, &y, 1, RG_F32, RG_SUM, 3, NULL, NULL);
    RIG_NEED(m, st == RG_ERR_ROOT_LOST && y == 0, "%s (%s)", rg_status_name(st), rig_errmsg(m));
    if (m->index != 3) rig_pass(m, 0);
    REFUSED(m, rg_reduce(m->g, &x, &y, 1, RG_F32, RG_SUM, 3, NULL, NULL), RG_ERR_INVALID, "ranks 0 to 2");
    return rig_gate(m, 1, 3);
}

Test(hostile, root_beyond_the_group_since_a_loss__late_caller_hears_what_the_others_did) {
    rig_run(4, "inproc", NULL, late_root, NULL);
}
