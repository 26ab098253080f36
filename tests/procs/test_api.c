/* test_api.c: the public interface over 1 to 4 real processes: every type and operator, sizes and pointers that are
 * awkward, requests in flight in different orders, deadlines, mismatches. What happens when members end or stall is in
 * test_faults.c. It relies on tools/pattern.h for results that are known without the library. */
#include "procs.h"

#include "tools/pattern.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static rg_status_t reduce(rg_group_t *g, const void *in, void *out, uint64_t count, rg_dtype_t dtype, rg_op_t op,
                          rg_result_t *res) {
    rg_opts_t opts = RG_OPTS_INIT;
    opts.result = res;
    return rg_all_reduce(g, in, out, count, dtype, op, &opts, NULL);
}

static int integer(rg_dtype_t t) { return t < RG_F16; }

/* ---- Types, operators, sizes ----------------------------------------------------------------------------------- */

static int one_reduce(rg_group_t *g, int rank, int n, rg_dtype_t t, rg_op_t op, uint64_t count, int in_place,
                      int skew) {
    size_t bytes = count * rg_dtype_size(t);
    uint8_t *in_mem = malloc(bytes + 16), *out_mem = malloc(bytes + 16), *in, *out = out_mem + skew;
    rg_result_t res = RG_RESULT_INIT;
    int rc = 1;
    in = in_place ? out : in_mem + skew;
    if (!in_mem || !out_mem) goto out;
    memset(out_mem, 0xee, bytes + 16);
    pattern_fill(t, op, (uint32_t)rank, in, count);
    rg_status_t s = reduce(g, in, out, count, t, op, &res);
    uint64_t wrong = s ? 0 : pattern_count_wrong(t, op, (uint32_t)n, out, count);
    if (s || wrong || res.contributors != (uint32_t)n) {
        procs_complain(__FILE__, __LINE__, "all_reduce",
                       "%s %s count %llu in place %d skew %d: %s %s, %llu wrong, %u in it", rg_dtype_name(t),
                       rg_op_name(op), (unsigned long long)count, in_place, skew, rg_status_name(s), res.text,
                       (unsigned long long)wrong, res.contributors);
        goto out;
    }
    if (out_mem[skew + bytes] != 0xee || (skew && out_mem[skew - 1] != 0xee)) {
        procs_complain(__FILE__, __LINE__, "bounds", "bytes around the result were written");
        goto out;
    }
    if (!in_place) { /* the input is as it was: write it once more over the output and compare */
        pattern_fill(t, op, (uint32_t)rank, out, count);
        if (bytes && memcmp(in, out, bytes)) {
            procs_complain(__FILE__, __LINE__, "input", "the input was changed");
            goto out;
        }
    }
    rc = 0;
out:
    free(in_mem);
    free(out_mem);
    return rc;
}

static int every_type(rg_group_t *g, int rank, int n, void *arg) {
    static const uint64_t counts[] = { 1, 5, 1000, 40001 };
    (void)arg;
    for (int t = 0; t < RG_DTYPE_COUNT; t++)
        for (int op = 0; op < RG_OP_COUNT; op++)
            for (size_t c = 0; c < 4; c++) {
                if (op == RG_AVG && integer((rg_dtype_t)t)) continue;
                if (one_reduce(g, rank, n, (rg_dtype_t)t, (rg_op_t)op, counts[c], (int)c & 1, 0)) return 1;
            }
    return rg_group_leave(g) != RG_OK;
}

static int integer_average(rg_group_t *g, int rank, int n, void *arg) {
    int32_t x = rank;
    (void)arg;
    rg_status_t s = reduce(g, &x, &x, 1, RG_I32, RG_AVG, NULL);
    PROCS_REQUIRE(s == RG_ERR_NOTSUP || s == RG_ERR_INVALID, "%s", rg_status_name(s));
    PROCS_REQUIRE(x == rank, "the input was changed");
    return one_reduce(g, rank, n, RG_I32, RG_SUM, 10, 0, 0);
}

static int odd_sizes(rg_group_t *g, int rank, int n, void *arg) {
    static const uint64_t counts[] = { 1, 2, 3, 4, 5, 7, 63, 64, 65, 1023, 4097, 16383, 16385, 100003, 1000003 };
    (void)arg;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int in_place = 0; in_place < 2; in_place++) {
            if (one_reduce(g, rank, n, RG_F32, RG_SUM, counts[c], in_place, 0)) return 1;
            if (one_reduce(g, rank, n, RG_BF16, RG_MAX, counts[c], in_place, 1)) return 1;
            if (one_reduce(g, rank, n, RG_F64, RG_SUM, counts[c], in_place, 3)) return 1;
        }
    return rg_group_leave(g) != RG_OK;
}

static int nothing_at_all(rg_group_t *g, int rank, int n, void *arg) {
    char byte = 'x';
    (void)arg;
    (void)rank;
    PROCS_REQUIRE(reduce(g, NULL, NULL, 0, RG_F32, RG_SUM, NULL) == RG_OK, "count 0 with NULL");
    PROCS_REQUIRE(reduce(g, &byte, &byte, 0, RG_F32, RG_SUM, NULL) == RG_OK, "count 0 with a pointer");
    PROCS_REQUIRE(rg_broadcast(g, NULL, 0, RG_F32, (uint32_t)n - 1, NULL, NULL) == RG_OK, "broadcast of nothing");
    PROCS_REQUIRE(byte == 'x', "written");
    rg_status_t s = reduce(g, NULL, NULL, 4, RG_F32, RG_SUM, NULL);
    PROCS_REQUIRE(s == RG_ERR_INVALID, "NULL with count 4: %s", rg_status_name(s));
    return rg_group_leave(g) != RG_OK;
}

static int broadcasts(rg_group_t *g, int rank, int n, void *arg) {
    static const uint64_t counts[] = { 1, 3, 1000, 16385, 500001 };
    (void)arg;
    for (int root = 0; root < n; root++)
        for (size_t c = 0; c < 5; c++) {
            rg_dtype_t t = (rg_dtype_t)((root + (int)c * 3) % RG_DTYPE_COUNT);
            uint8_t *buf = malloc(counts[c] * 8 + 1);
            PROCS_REQUIRE(buf, "memory");
            pattern_fill(t, RG_SUM, (uint32_t)rank, buf + 1, counts[c]);
            rg_status_t s = rg_broadcast(g, buf + 1, counts[c], t, (uint32_t)root, NULL, NULL);
            uint64_t wrong = pattern_count_as(t, (uint32_t)root, buf + 1, counts[c]);
            free(buf);
            PROCS_REQUIRE(!s && !wrong, "root %d count %llu: %s, %llu wrong", root, (unsigned long long)counts[c],
                          rg_status_name(s), (unsigned long long)wrong);
        }
    return rg_group_leave(g) != RG_OK;
}

static int barriers(rg_group_t *g, int rank, int n, void *arg) {
    volatile int *entered = arg;
    (void)rank;
    for (int i = 1; i <= 200; i++) {
        __atomic_add_fetch(entered, 1, __ATOMIC_SEQ_CST);
        PROCS_REQUIRE(rg_barrier(g, NULL, NULL) == RG_OK, "barrier %d", i);
        int seen = __atomic_load_n(entered, __ATOMIC_SEQ_CST);
        PROCS_REQUIRE(seen >= i * n, "barrier %d passed when %d had entered", i, seen);
    }
    return rg_group_leave(g) != RG_OK;
}

static int large(rg_group_t *g, int rank, int n, void *arg) {
    (void)arg;
    return one_reduce(g, rank, n, RG_F32, RG_SUM, 8u << 20, 1, 0) ||
           one_reduce(g, rank, n, RG_F16, RG_AVG, 3000001, 0, 0);
}

/* ---- Requests -------------------------------------------------------------------------------------------------- */

#define FLIGHT 8
static const uint64_t flight_counts[FLIGHT] = { 1, 300000, 7, 20000, 3, 100000, 1024, 50001 };

/* order[k] is the operation that is issued (or waited for) as k-th. */
static int flight(rg_group_t *g, int rank, int n, int tagged, const int *order, const int *wait_order, int by_test) {
    float *buf[FLIGHT];
    rg_request_t *req[FLIGHT] = { NULL };
    int bad = 0;
    for (int k = 0; k < FLIGHT; k++) {
        buf[k] = malloc(flight_counts[k] * 4);
        PROCS_REQUIRE(buf[k], "memory");
        pattern_fill(RG_F32, RG_SUM, (uint32_t)rank, buf[k], flight_counts[k]);
    }
    for (int k = 0; k < FLIGHT; k++) {
        int i = order[k];
        rg_opts_t opts = RG_OPTS_INIT;
        opts.tag = tagged ? (uint32_t)i + 1 : 0;
        rg_status_t s = rg_all_reduce(g, buf[i], buf[i], flight_counts[i], RG_F32, RG_SUM, &opts, &req[i]);
        PROCS_REQUIRE(s == RG_OK && req[i], "issue %d: %s", i, rg_status_name(s));
    }
    for (int k = 0; k < FLIGHT; k++) {
        int i = wait_order[k];
        rg_result_t res = RG_RESULT_INIT;
        rg_status_t s = RG_AGAIN;
        if (by_test) PROCS_REQUIRE(PROCS_WAIT((s = rg_test(req[i], &res)) != RG_AGAIN, 20), "test of %d never ends", i);
        else s = rg_wait(req[i], &res);
        bad += s != RG_OK || pattern_count_wrong(RG_F32, RG_SUM, (uint32_t)n, buf[i], flight_counts[i]) != 0;
        PROCS_REQUIRE(!bad, "operation %d: %s %s", i, rg_status_name(s), res.text);
        free(buf[i]);
    }
    return 0;
}

static int in_flight(rg_group_t *g, int rank, int n, void *arg) {
    int straight[FLIGHT], turned[FLIGHT], back[FLIGHT];
    (void)arg;
    for (int k = 0; k < FLIGHT; k++) {
        straight[k] = k;
        back[k] = FLIGHT - 1 - k;
        turned[k] = (k * 3 + rank * 2) % FLIGHT;
    }
    return flight(g, rank, n, 0, straight, straight, 0) || flight(g, rank, n, 0, straight, back, 0) ||
           flight(g, rank, n, 1, turned, straight, 0) || flight(g, rank, n, 1, turned, back, 1) ||
           flight(g, rank, n, 1, rank & 1 ? back : straight, turned, 1) || rg_group_leave(g) != RG_OK;
}

struct lane {
    rg_group_t *g;
    int rank, n, tag, bad;
};

static void *lane_main(void *arg) {
    struct lane *l = arg;
    float buf[3000];
    for (int i = 0; i < 50 && !l->bad; i++) {
        rg_opts_t opts = RG_OPTS_INIT;
        uint64_t count = 1 + (uint64_t)(i * 59 + l->tag * 7) % 3000;
        opts.tag = (uint32_t)l->tag;
        pattern_fill(RG_F32, RG_SUM, (uint32_t)l->rank, buf, count);
        l->bad |= rg_all_reduce(l->g, buf, buf, count, RG_F32, RG_SUM, &opts, NULL) != RG_OK;
        l->bad |= pattern_count_wrong(RG_F32, RG_SUM, (uint32_t)l->n, buf, count) != 0;
    }
    return NULL;
}

static int threads(rg_group_t *g, int rank, int n, void *arg) {
    struct lane lanes[4];
    pthread_t t[4];
    int bad = 0;
    (void)arg;
    for (int i = 0; i < 4; i++) {
        lanes[i] = (struct lane){ g, rank, n, i + 1, 0 };
        PROCS_REQUIRE(!pthread_create(&t[i], NULL, lane_main, &lanes[i]), "thread");
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        bad |= lanes[i].bad;
    }
    PROCS_REQUIRE(!bad, "a thread's operation failed");
    return rg_group_leave(g) != RG_OK;
}

/* ---- Facts ----------------------------------------------------------------------------------------------------- */

static int facts(rg_group_t *g, int rank, int n, void *arg) {
    uint64_t ids[8], id;
    float x[4] = { 1, 2, 3, 4 };
    rg_result_t res = RG_RESULT_INIT;
    rg_info_t info = RG_INFO_INIT;
    uint64_t before = procs_now();
    (void)arg;
    res.contributor_ids = ids;
    res.contributor_cap = 8;
    PROCS_REQUIRE(reduce(g, x, x, 4, RG_F32, RG_SUM, &res) == RG_OK, "%s", res.text);
    PROCS_REQUIRE(res.status == RG_OK && !res.text[0] && res.contributors == (uint32_t)n, "contributors %u",
                  res.contributors);
    for (int i = 0; i < n; i++) {
        PROCS_REQUIRE(rg_group_member(g, (uint32_t)i, &id) == RG_OK && id == ids[i], "member at rank %d", i);
        PROCS_REQUIRE(!i || ids[i] != ids[i - 1], "identities differ");
    }
    PROCS_REQUIRE(rg_group_member(g, (uint32_t)n, &id) == RG_ERR_INVALID, "there is no rank %d", n);
    PROCS_REQUIRE(res.start_ns >= before && res.end_ns >= res.start_ns && res.end_ns <= procs_now(), "times");
    PROCS_REQUIRE(n == 1 || (res.bytes_sent > 0 && res.bytes_received > 0), "bytes");
    PROCS_REQUIRE(rg_group_info(g, &info) == RG_OK, "info");
    PROCS_REQUIRE(info.member_id == ids[rank] && info.operations >= 1 && !info.coordinator_lost &&
                      info.epoch == res.epoch,
                  "id %llu operations %llu epoch %llu/%llu", (unsigned long long)info.member_id,
                  (unsigned long long)info.operations, (unsigned long long)info.epoch, (unsigned long long)res.epoch);
    return rg_group_leave(g) != RG_OK;
}

static int boundaries(rg_group_t *g, int rank, int n, void *arg) {
    rg_info_t info = RG_INFO_INIT;
    (void)arg;
    PROCS_REQUIRE(rg_group_info(g, &info) == RG_OK, "info");
    uint64_t at = info.boundary;
    for (int i = 0; i < 20; i++) {
        rg_change_t c = RG_CHANGE_INIT;
        if (i % 3 && one_reduce(g, rank, n, RG_F32, RG_SUM, 100, 0, 0)) return 1;
        rg_status_t s = rg_group_boundary(g, i % 2 ? &c : NULL);
        PROCS_REQUIRE(s == RG_OK, "boundary: %s", rg_status_name(s));
        at++;
        PROCS_REQUIRE(
            !(i % 2) || (c.boundary == at && !c.changed && c.world_size == (uint32_t)n && c.rank == (uint32_t)rank),
            "boundary %llu of %llu, changed %u", (unsigned long long)c.boundary, (unsigned long long)at, c.changed);
    }
    return rg_group_leave(g) != RG_OK;
}

static int wrong_calls(rg_group_t *g, int rank, int n, void *arg) {
    float x = 1;
    char text[256] = "";
    rg_opts_t small = RG_OPTS_INIT;
    rg_request_t *req = NULL;
    (void)arg;
    PROCS_REQUIRE(rg_all_reduce(NULL, &x, &x, 1, RG_F32, RG_SUM, NULL, NULL) == RG_ERR_INVALID, "no group");
    PROCS_REQUIRE(rg_all_reduce(g, &x, &x, 1, (rg_dtype_t)77, RG_SUM, NULL, NULL) == RG_ERR_INVALID, "type 77");
    PROCS_REQUIRE(rg_all_reduce(g, &x, &x, 1, RG_F32, (rg_op_t)77, NULL, NULL) == RG_ERR_INVALID, "operator 77");
    PROCS_REQUIRE(rg_broadcast(g, &x, 1, RG_F32, (uint32_t)n, NULL, NULL) == RG_ERR_INVALID, "root %d", n);
    PROCS_REQUIRE(rg_group_errmsg(g, text, sizeof text) > 0 && strlen(text) > 10, "no text for a wrong root");
    small.struct_size = 4;
    PROCS_REQUIRE(rg_barrier(g, &small, NULL) == RG_ERR_INVALID, "options that are too small");
    PROCS_REQUIRE(rg_all_reduce(g, &x, &x, UINT64_MAX / 2, RG_F64, RG_SUM, NULL, NULL) == RG_ERR_INVALID, "too many");
    PROCS_REQUIRE(rg_wait(NULL, NULL) == RG_ERR_INVALID && rg_cancel(NULL) == RG_ERR_INVALID, "no request");
    PROCS_REQUIRE(rg_barrier(g, NULL, &req) == RG_OK && rg_wait(req, NULL) == RG_OK, "the group is as before");
    return one_reduce(g, rank, n, RG_F32, RG_SUM, 10, 0, 0);
}

/* ---- Deadlines, cancelling, mismatches ------------------------------------------------------------------------- */

struct meet {
    volatile int ended;
    volatile int status[8];
};

/* Rank 0 comes late; the others' deadline passes within 20 % of what was asked for, and rank 0 gets the same answer. */
static int deadlines(rg_group_t *g, int rank, int n, void *arg) {
    struct meet *m = arg;
    float x[100], y[100];
    rg_opts_t opts = RG_OPTS_INIT;
    rg_result_t res = RG_RESULT_INIT;
    pattern_fill(RG_F32, RG_SUM, (uint32_t)rank, x, 100);
    memcpy(y, x, sizeof x);
    opts.timeout_ms = 1000;
    opts.result = &res;
    if (rank == 0) PROCS_REQUIRE(PROCS_WAIT(m->ended == n - 1, 20), "the others' deadlines never pass");
    uint64_t t = procs_now();
    rg_status_t s = rg_all_reduce(g, x, x, 100, RG_F32, RG_SUM, &opts, NULL);
    double ms = (double)(procs_now() - t) / 1e6;
    __atomic_add_fetch(&m->ended, 1, __ATOMIC_SEQ_CST);
    PROCS_REQUIRE(s == RG_ERR_TIMEOUT, "rank %d: %s %s", rank, rg_status_name(s), res.text);
    double most = 1200 + procs_late_ms(t);
    PROCS_REQUIRE(rank == 0 ? ms < most : ms > 800 && ms < most, "rank %d: after %.0f ms of 1000", rank, ms);
    PROCS_REQUIRE(!memcmp(x, y, sizeof x), "input");
    PROCS_REQUIRE(res.text[0], "no text");
    return one_reduce(g, rank, n, RG_F32, RG_SUM, 1000, 1, 0) || rg_group_leave(g) != RG_OK;
}

static int cancelled(rg_group_t *g, int rank, int n, void *arg) {
    struct meet *m = arg;
    float x[100], y[100];
    rg_request_t *req = NULL;
    pattern_fill(RG_F32, RG_SUM, (uint32_t)rank, x, 100);
    memcpy(y, x, sizeof x);
    if (rank == 0) PROCS_REQUIRE(PROCS_WAIT(m->ended == n - 1, 20), "the others never end");
    PROCS_REQUIRE(rg_all_reduce(g, x, x, 100, RG_F32, RG_SUM, NULL, &req) == RG_OK, "issue");
    if (rank == 1) PROCS_REQUIRE(rg_cancel(req) == RG_OK, "cancel");
    rg_status_t s = rg_wait(req, NULL);
    m->status[rank] = s;
    __atomic_add_fetch(&m->ended, 1, __ATOMIC_SEQ_CST);
    PROCS_REQUIRE(s == RG_ERR_CANCELLED, "rank %d: %s", rank,
                  rg_status_name(s)); /* rank 0 had not called: it cannot succeed */
    PROCS_REQUIRE(!memcmp(x, y, sizeof x), "input");
    return one_reduce(g, rank, n, RG_F32, RG_SUM, 1000, 1, 0) || rg_group_leave(g) != RG_OK;
}

static rg_status_t mismatched_call(rg_group_t *g, int odd, int what, float *x, const rg_opts_t *opts) {
    if (!odd) return rg_all_reduce(g, x, x, 1000, RG_F32, RG_SUM, opts, NULL);
    if (what == 0) return rg_all_reduce(g, x, x, 999, RG_F32, RG_SUM, opts, NULL);
    if (what == 1) return rg_all_reduce(g, x, x, 1000, RG_I32, RG_SUM, opts, NULL);
    if (what == 2) return rg_all_reduce(g, x, x, 1000, RG_F32, RG_MAX, opts, NULL);
    if (what == 3) return rg_broadcast(g, x, 1000, RG_F32, 0, opts, NULL);
    if (what == 4) return rg_barrier(g, opts, NULL);
    return rg_all_reduce(g, x, x, 40000, RG_F32, RG_SUM, opts, NULL);
}

static int mismatches(rg_group_t *g, int rank, int n, void *arg) {
    static float x[40000], y[40000];
    (void)arg;
    for (int what = 0; what < 6; what++)
        for (int odd = 0; odd < n; odd += n - 1) {
            rg_opts_t opts = RG_OPTS_INIT;
            rg_result_t res = RG_RESULT_INIT;
            opts.result = &res;
            pattern_fill(RG_F32, RG_SUM, (uint32_t)rank, x, 40000);
            memcpy(y, x, sizeof x);
            uint64_t t = procs_now();
            rg_status_t s = mismatched_call(g, rank == odd, what, x, &opts);
            double ms = (double)(procs_now() - t) / 1e6;
            PROCS_REQUIRE(s == RG_ERR_MISMATCH, "kind %d, rank %d differs: rank %d gets %s %s", what, odd, rank,
                          rg_status_name(s), res.text);
            PROCS_REQUIRE(strstr(res.text, "rank"), "the text names no rank: %s", res.text);
            PROCS_REQUIRE(!memcmp(x, y, sizeof x), "kind %d: something was overwritten", what);
            PROCS_REQUIRE(ms < 5000 + procs_late_ms(t), "it took %.0f ms", ms);
            if (one_reduce(g, rank, n, RG_F32, RG_SUM, 100, 1, 0)) return 1;
        }
    /* Everybody is the root, in its own eyes. */
    for (int count = 8; count <= 40000; count *= 5000) {
        rg_result_t res = RG_RESULT_INIT;
        rg_opts_t opts = RG_OPTS_INIT;
        opts.result = &res;
        pattern_fill(RG_F32, RG_SUM, (uint32_t)rank, x, 40000);
        memcpy(y, x, sizeof x);
        rg_status_t s = rg_broadcast(g, x, (uint64_t)count, RG_F32, (uint32_t)rank, &opts, NULL);
        PROCS_REQUIRE(s == RG_ERR_MISMATCH && strstr(res.text, "rank"), "%d elements: rank %d gets %s %s", count, rank,
                      rg_status_name(s), res.text);
        PROCS_REQUIRE(!memcmp(x, y, sizeof x), "%d elements: something was overwritten", count);
    }
    return one_reduce(g, rank, n, RG_F32, RG_SUM, 100, 1, 0) || rg_group_leave(g) != RG_OK;
}

/* What a forked child finds in the handles that it inherits: exit code 0 when all is refused and nothing hangs. */
static int child_is_refused(rg_group_t *g, rg_request_t *req) {
    rg_info_t info = RG_INFO_INIT;
    char text[256];
    float x = 1;
    alarm(20);
    if (rg_all_reduce(g, &x, &x, 1, RG_F32, RG_SUM, NULL, NULL) != RG_ERR_CLOSED) return 2;
    if (!rg_group_errmsg(g, text, sizeof text) || !strstr(text, "forked")) return 3;
    if (rg_wait(req, NULL) != RG_ERR_CLOSED || rg_test(req, NULL) != RG_ERR_CLOSED) return 4;
    if (rg_cancel(req) != RG_ERR_CLOSED || rg_group_info(g, &info) != RG_ERR_CLOSED) return 5;
    if (rg_group_boundary(g, NULL) != RG_ERR_CLOSED || rg_group_leave(g) != RG_ERR_CLOSED) return 6;
    if (rg_group_abort(g) != RG_ERR_CLOSED) return 7;
    rg_group_destroy(g);
    return 0;
}

/* A child that uses its parent's handle must neither hang nor touch the group. */
static int forked(rg_group_t *g, int rank, int n, void *arg) {
    rg_info_t info = RG_INFO_INIT;
    rg_request_t *req;
    (void)arg;
    PROCS_REQUIRE(rg_barrier(g, NULL, &req) == RG_OK, "no request");
    if (rank == 0) {
        pid_t pid = fork();
        if (pid == 0) _exit(child_is_refused(g, req));
        int rc = pid > 0 ? procs_end(pid, 20) : -1;
        PROCS_REQUIRE(rc == 0, "the child ends with %d", rc);
    }
    PROCS_REQUIRE(rg_wait(req, NULL) == RG_OK, "the parent's request does not succeed");
    if (one_reduce(g, rank, n, RG_F32, RG_SUM, 100000, 1, 0)) return 1;
    PROCS_REQUIRE(rg_group_info(g, &info) == RG_OK && info.view_changes <= 1, "the group noticed");
    return rg_group_leave(g) != RG_OK;
}

/* A planted wrong result must be found by what judges the results here. */
static int planted(void) {
    float x[1000];
    pattern_fill(RG_F32, RG_SUM, 0, x, 1000);
    if (pattern_count_wrong(RG_F32, RG_SUM, 1, x, 1000)) return 0;
    if (!pattern_count_wrong(RG_F32, RG_SUM, 2, x, 1000)) return 0;
    x[999] += 1;
    return pattern_count_wrong(RG_F32, RG_SUM, 1, x, 1000) == 1;
}

void test_api(void) {
    static const struct {
        const char *name;
        procs_body body;
        int min, max;
    } cases[] = {
        { "every_type_and_operator__right", every_type, 1, 4 },
        { "average_of_integers__refused_and_group_usable", integer_average, 2, 2 },
        { "odd_counts_and_pointers__right_and_in_bounds", odd_sizes, 1, 4 },
        { "count_zero__success_with_any_pointer", nothing_at_all, 1, 3 },
        { "broadcast__every_root_and_size", broadcasts, 1, 4 },
        { "barrier__nobody_leaves_before_all_came", barriers, 1, 4 },
        { "all_reduce__32_mib_in_place", large, 2, 4 },
        { "requests__different_orders_on_different_ranks", in_flight, 1, 4 },
        { "threads__four_with_a_tag_each", threads, 2, 3 },
        { "result_and_info__say_who_and_when", facts, 1, 4 },
        { "boundary__numbers_and_no_change", boundaries, 1, 4 },
        { "wrong_arguments__refused_with_text", wrong_calls, 2, 2 },
        { "deadline__kept_within_a_fifth_and_uniform", deadlines, 2, 4 },
        { "cancel__same_end_everywhere", cancelled, 2, 4 },
        { "mismatch__everywhere_and_names_the_rank", mismatches, 2, 3 },
        { "forked_child__handle_refused_and_group_untouched", forked, 1, 3 },
    };
    char name[128];
    procs_case("api__planted_wrong_result__found", planted());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int n = cases[i].min; n <= cases[i].max; n++) {
            void *arg = procs_shared(4096);
            snprintf(name, sizeof name, "api__%s__%d", cases[i].name, n);
            if (procs_wanted(name)) procs_case(name, procs_cluster(n, cases[i].body, arg, 60) == 0);
        }
}
