/* test_subgroups.c: messages between two members, alone and in batches, and sub-groups: splits, use from several
 * threads in any order, faults that touch some children and leave others alone, the grid, and handles that outlive
 * their root. Members are threads (engine_rig.h). It must not sleep to order events. */
#include "engine_rig.h"

#include "engine/group.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

/* A ring in a batch, of growing sizes, with what came compared; and to oneself. */
static int ring_batches(rig_member_t *m, void *arg) {
    uint32_t n = m->rig->n, me = m->index, right = (me + 1) % n, left = (me + n - 1) % n;
    uint32_t *a = malloc(400000 * sizeof *a), *b = malloc(400000 * sizeof *b);
    (void)arg;
    for (uint64_t count = 0; count < 400000; count = count * 7 + 1) {
        for (uint64_t i = 0; i < count; i++) a[i] = me * 1000003u + (uint32_t)(i * 7 + count);
        memset(b, 0x55, count * sizeof *b);
        RIG_OK(m, rg_batch_begin(m->g));
        RIG_OK(m, rg_send(m->g, a, count, RG_U32, right, NULL, NULL));
        RIG_OK(m, rg_recv(m->g, b, count, RG_U32, left, NULL, NULL));
        RIG_OK(m, rg_batch_end(m->g, NULL));
        for (uint64_t i = 0; i < count; i++)
            RIG_NEED(m, b[i] == left * 1000003u + (uint32_t)(i * 7 + count), "element %llu of %llu",
                     (unsigned long long)i, (unsigned long long)count);
    }
    free(a);
    free(b);
    return rig_gate(m, 0, n); /* who goes before the last message is known to be everywhere is one that is lost */
}

Test(pairs, ring_in_a_batch__every_size__what_was_sent) {
    rig_run(1, "inproc", NULL, ring_batches, NULL);
    rig_run(2, "inproc", NULL, ring_batches, NULL);
    rig_run(4, "inproc", NULL, ring_batches, NULL);
    rig_run(3, "tcp", NULL, ring_batches, NULL);
}

/* Everybody to everybody, several each, as one request; with tags taken in another order than they were sent in. */
static int all_pairs(rig_member_t *m, void *arg) {
    enum { EACH = 3, MOST = 50 };
    uint32_t n = m->rig->n, me = m->index;
    static _Thread_local uint64_t out[RIG_MAX][EACH][MOST], in[RIG_MAX][EACH][MOST];
    rg_request_t *req;
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    for (uint32_t round = 0; round < 20; round++) {
        RIG_OK(m, rg_batch_begin(m->g));
        for (uint32_t k = 0; k < EACH; k++)
            for (uint32_t r = 0; r < n; r++) {
                for (uint32_t i = 0; i < MOST; i++) out[r][k][i] = me << 24 | r << 16 | k << 8 | (i + round);
                o.tag = 1 + k;
                RIG_OK(m, rg_send(m->g, out[r][k], MOST - k, RG_U64, r, &o, NULL));
            }
        for (uint32_t k = EACH; k-- > 0;)
            for (uint32_t r = n; r-- > 0;) {
                o.tag = 1 + k;
                RIG_OK(m, rg_recv(m->g, in[r][k], MOST - k, RG_U64, r, &o, NULL));
            }
        RIG_OK(m, rg_batch_end(m->g, &req));
        RIG_OK(m, rg_barrier(m->g, NULL, NULL)); /* something else meanwhile */
        rg_result_t res = RG_RESULT_INIT;
        RIG_OK(m, rg_wait(req, &res));
        RIG_NEED(m, res.bytes_sent == n * 8ull * (3 * MOST - 3), "%llu bytes", (unsigned long long)res.bytes_sent);
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t k = 0; k < EACH; k++)
                for (uint32_t i = 0; i < MOST - k; i++)
                    RIG_NEED(m, in[r][k][i] == (r << 24 | me << 16 | k << 8 | (i + round)), "from %u, tag %u, %u", r, k,
                             i);
    }
    return 0;
}

Test(pairs, everybody_to_everybody__tags_in_any_order__what_was_sent) {
    rig_run(1, "inproc", NULL, all_pairs, NULL);
    rig_run(4, "inproc", NULL, all_pairs, NULL);
    rig_run(3, "tcp", NULL, all_pairs, NULL);
}

static int wrong_pairs(rig_member_t *m, void *arg) {
    float x[8] = { 0 }, y[8];
    rg_request_t *req = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    uint32_t other = 1 - m->index;
    RIG_NEED(m, rg_batch_end(m->g, NULL) == RG_ERR_INVALID, "an end without a begin");
    RIG_OK(m, rg_batch_begin(m->g));
    RIG_NEED(m, rg_batch_begin(m->g) == RG_ERR_INVALID, "two begins");
    RIG_NEED(m, rg_send(m->g, x, 1, RG_F32, m->index, NULL, &req) == RG_ERR_INVALID && !req, "a request inside");
    RIG_OK(m, rg_send(m->g, x, 1, RG_F32, 7, NULL, NULL));
    RIG_NEED(m, rg_batch_end(m->g, NULL) == RG_ERR_INVALID && strstr(rig_errmsg(m), "ranks 0 to 1"), "%s",
             rig_errmsg(m));
    RIG_OK(m, rg_batch_begin(m->g));
    RIG_OK(m, rg_batch_end(m->g, NULL)); /* empty */
    /* Different lengths: both ends hear of it. */
    rg_status_t st =
        m->index ? rg_send(m->g, x, 4, RG_F32, other, NULL, NULL) : rg_recv(m->g, y, 5, RG_F32, other, NULL, NULL);
    RIG_NEED(m, st == RG_ERR_MISMATCH, "%s", rg_status_name(st));
    /* To oneself: lengths, deadline. */
    RIG_OK(m, rg_batch_begin(m->g));
    RIG_OK(m, rg_send(m->g, x, 4, RG_F32, m->index, NULL, NULL));
    RIG_OK(m, rg_recv(m->g, y, 5, RG_F32, m->index, NULL, NULL));
    RIG_NEED(m, rg_batch_end(m->g, NULL) == RG_ERR_MISMATCH, "lengths");
    o.timeout_ms = 50;
    RIG_NEED(m, rg_send(m->g, x, 4, RG_F32, m->index, &o, NULL) == RG_ERR_TIMEOUT, "nobody receives");
    RIG_OK(m, rg_recv(m->g, y, 4, RG_F32, m->index, NULL, &req));
    RIG_OK(m, rg_cancel(req));
    RIG_NEED(m, rg_wait(req, NULL) == RG_ERR_CANCELLED, "cancelled");
    /* Nobody sends: the one that gives up ends it for both. */
    st = m->index ? RG_ERR_TIMEOUT : rg_recv(m->g, y, 4, RG_F32, other, &o, NULL);
    RIG_NEED(m, st == RG_ERR_TIMEOUT, "%s", rg_status_name(st));
    if (rig_gate(m, 0, 2)) return 1;
    if (m->index) st = rg_send(m->g, x, 4, RG_F32, other, NULL, NULL);
    RIG_NEED(m, st == RG_ERR_TIMEOUT, "the other end: %s", rg_status_name(st));
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    return 0;
}

Test(pairs, wrong_and_different_and_late__an_error_at_both_ends) { rig_run(2, "inproc", NULL, wrong_pairs, NULL); }

/* Members 0 and 1 talk while 3 dies: they do not notice. 2 waits for 3, and is told. */
static int pair_and_death(rig_member_t *m, void *arg) {
    uint32_t *x = calloc(200000, sizeof *x);
    rg_status_t st = RG_OK;
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    (void)arg;
    o.result = &res;
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    if (m->index == 3) {
        RIG_OK(m, rg_group_abort(m->g));
    } else if (m->index == 2) {
        st = rg_recv(m->g, x, 200000, RG_U32, 3, &o, NULL);
        RIG_NEED(m, st == RG_ERR_PEER_LOST && res.lost_member, "%s: %s", rg_status_name(st), res.text);
    } else {
        for (uint32_t i = 0; i < 40 && st == RG_OK; i++)
            st = m->index ? rg_recv(m->g, x, 200000, RG_U32, 0, NULL, NULL)
                          : rg_send(m->g, x, 200000, RG_U32, 1, NULL, NULL);
        RIG_NEED(m, st == RG_OK, "%s: %s", rg_status_name(st), rig_errmsg(m));
    }
    free(x);
    return 0;
}

Test(pairs, death_of_another_member__goes_on__of_the_peer__lost) {
    rig_run(4, "inproc", NULL, pair_and_death, NULL);
    rig_run(4, "tcp", NULL, pair_and_death, NULL);
}

/* ---- Sub-groups -------------------------------------------------------------------------------------------------- */

static int sum_of(rig_member_t *m, rg_group_t *g, uint64_t count, uint32_t of, uint64_t mine, uint64_t *sum) {
    uint64_t *x = calloc(count + 1, sizeof *x);
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t o = RG_OPTS_INIT;
    char text[256] = "";
    o.result = &res;
    for (uint64_t i = 0; i < count; i++) x[i] = mine;
    rg_status_t st = rg_all_reduce(g, x, x, count, RG_U64, RG_SUM, &o, NULL);
    if (st != RG_OK) rg_group_errmsg(g, text, sizeof text);
    *sum = count ? x[0] : 0;
    int even = 1;
    for (uint64_t i = 1; i < count; i++) even &= x[i] == x[0];
    free(x);
    RIG_NEED(m, st == RG_OK && even && (!of || res.contributors == of), "%s (%s), %u contributors", rg_status_name(st),
             text, res.contributors);
    return 0;
}

/* 4 members as 2 x 2: rows by rank / 2, columns by rank % 2 in reversed order. */
static int grid_of_four(rig_member_t *m, void *arg) {
    rg_group_t *row, *col, *none, *inner;
    rg_info_t info = RG_INFO_INIT;
    rg_grid_t grid = RG_GRID_INIT;
    uint64_t sum;
    uint32_t me = m->index;
    (void)arg;
    RIG_NEED(m, rg_group_grid(m->g, &grid) == RG_ERR_INVALID, "a grid before any split");
    RIG_OK(m, rg_group_split(m->g, me / 2, 0, NULL, &row));
    RIG_OK(m, rg_group_split(m->g, me % 2, 10 - me, NULL, &col));
    RIG_OK(m, rg_group_split(m->g, me == 3 ? 7 : RG_NO_COLOUR, 0, NULL, &none));
    RIG_NEED(m, (none != NULL) == (me == 3), "no colour gives no child");
    RIG_OK(m, rg_group_grid(m->g, &grid));
    RIG_NEED(m,
             grid.colours == 8 && grid.present == 1 && grid.missing == 0 && !grid.complete && grid.without == 3 &&
                 grid.members == 4,
             "grid of one");
    RIG_OK(m, rg_group_info(col, &info));
    RIG_NEED(m, info.world_size == 2 && info.rank == (me < 2), "rank %u of %u in the column", info.rank,
             info.world_size);
    for (uint64_t count = 1; count < 100000; count *= 30) {
        if (sum_of(m, me & 1 ? row : col, count, 2, 1u << (8 * me), &sum)) return 1; /* each in an order of its own */
        if (sum_of(m, me & 1 ? col : row, count, 2, 1u << (8 * me), &sum)) return 1;
        if (sum_of(m, row, count, 2, 1u << (8 * me), &sum)) return 1;
        RIG_NEED(m, sum == (me < 2 ? 0x101u : 0x1010000u), "row: %llx", (unsigned long long)sum);
        if (sum_of(m, col, count, 2, 1u << (8 * me), &sum)) return 1;
        RIG_NEED(m, sum == (me % 2 ? 0x1000100u : 0x10001u), "column: %llx", (unsigned long long)sum);
        if (sum_of(m, m->g, count, 4, 1, &sum)) return 1;
    }
    /* A child of a child, and pairs in children by their ranks. */
    RIG_OK(m, rg_group_split(row, 0, 1 - me % 2, NULL, &inner));
    RIG_OK(m, rg_group_info(inner, &info));
    RIG_NEED(m, info.rank == 1 - me % 2 && info.world_size == 2, "rank %u of the inner one", info.rank);
    uint32_t a = me, b = 99, c = 99;
    RIG_OK(m, rg_batch_begin(inner));
    RIG_OK(m, rg_send(inner, &a, 1, RG_U32, 1 - info.rank, NULL, NULL));
    RIG_OK(m, rg_recv(inner, &b, 1, RG_U32, 1 - info.rank, NULL, NULL));
    RIG_OK(m, rg_batch_end(inner, NULL));
    RIG_NEED(m, b == (me ^ 1), "from %u", b);
    RIG_OK(m, rg_all_gather(col, &a, (uint32_t[2]){ 0 }, 1, RG_U32, NULL, NULL));
    RIG_OK(m, rg_broadcast(col, info.rank == 5 ? &c : &a, 1, RG_U32, 0, NULL, NULL));
    RIG_NEED(m, a == (me % 2 ? 3u : 2u), "the column's first is %u", a);
    RIG_NEED(m, rg_group_boundary(row, NULL) == RG_ERR_INVALID && rg_group_leave(row) == RG_ERR_INVALID, "root only");
    rg_group_destroy(inner);
    rg_group_destroy(none);
    if (sum_of(m, row, 10, 2, 1, &sum)) return 1;
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    rg_group_destroy(m->g); /* before its children */
    m->g = NULL;
    RIG_NEED(m, rg_barrier(row, NULL, NULL) == RG_ERR_ABORTED, "a child without a root");
    rg_group_destroy(row);
    rg_group_destroy(col);
    return 0;
}

Test(split, rows_and_columns__operations_of_each_in_any_order) {
    rig_run(4, "inproc", NULL, grid_of_four, NULL);
    rig_run(4, "tcp", NULL, grid_of_four, NULL);
}

/* A thread for each child of each member, all at once. */
struct user {
    rig_member_t *m;
    rg_group_t *g;
    uint32_t n, rounds;
    int bad;
};

static void *use_child(void *arg) {
    struct user *u = arg;
    uint64_t sum, s = u->n * 977 + 5;
    for (uint32_t i = 0; i < u->rounds && !u->bad; i++) {
        uint64_t count = rig_random(&s) % 3 ? rig_random(&s) % 100 : rig_random(&s) % 50000;
        u->bad = sum_of(u->m, u->g, count, u->n, 3, &sum);
        if (!u->bad && count && sum != 3 * u->n) u->bad = rig_complain(u->m, __FILE__, __LINE__, "a wrong sum");
    }
    return NULL;
}

static int threads_on_children(rig_member_t *m, void *arg) {
    struct user u[3] = { { m, NULL, 2, 60 / RIG_SLOW + 2, 0 },
                         { m, NULL, 2, 60 / RIG_SLOW + 2, 0 },
                         { m, m->g, 4, 60 / RIG_SLOW + 2, 0 } };
    pthread_t t[3];
    (void)arg;
    RIG_OK(m, rg_group_split(m->g, m->index / 2, 0, NULL, &u[0].g));
    RIG_OK(m, rg_group_split(m->g, m->index % 2, 0, NULL, &u[1].g));
    for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, use_child, &u[i]);
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    if (rig_gate(m, 0, 4)) return 1;
    for (int i = 0; i < 2; i++) rg_group_destroy(u[i].g);
    return u[0].bad || u[1].bad || u[2].bad;
}

Test(split, parent_and_children_in_threads__no_order_needed, .timeout = 120) {
    rig_run(4, "inproc", NULL, threads_on_children, NULL);
    rig_run(4, "tcp", NULL, threads_on_children, NULL);
}

/* Member 3 dies while the children {0, 1} and {2, 3} work: one does not notice, the other goes on with who is left. */
static int death_in_a_child(rig_member_t *m, void *arg) {
    rg_group_t *half;
    rg_grid_t grid = RG_GRID_INIT;
    rg_info_t info = RG_INFO_INIT;
    uint64_t sum, seen = 0;
    (void)arg;
    RIG_OK(m, rg_group_split(m->g, m->index / 2, 0, NULL, &half));
    RIG_OK(m, rg_group_grid(m->g, &grid));
    RIG_NEED(m, grid.complete && grid.colours == 2 && grid.smallest == 2 && grid.missing == RG_NO_COLOUR,
             "%u of %u colours, %u to %u, missing %u, complete %u", grid.present, grid.colours, grid.smallest,
             grid.largest, grid.missing, grid.complete);
    if (rig_gate(m, 0, 4)) return 1;
    for (uint32_t i = 0; i < 60; i++) {
        if (m->index == 3 && i == 20) break;
        rg_result_t res = RG_RESULT_INIT;
        rg_opts_t o = RG_OPTS_INIT;
        o.result = &res;
        uint64_t *x = malloc(20000 * sizeof *x);
        for (uint32_t k = 0; k < 20000; k++) x[k] = 1;
        rg_status_t st = rg_all_reduce(half, x, x, 20000, RG_U64, RG_SUM, &o, NULL);
        sum = x[19999];
        free(x);
        RIG_NEED(m, st == RG_OK && sum == res.contributors, "%u: %s %s", i, rg_status_name(st), res.text);
        RIG_NEED(m, m->index > 1 || res.contributors == 2, "%u contributors", res.contributors);
        if (m->index == 2) seen |= 1ull << res.contributors;
    }
    if (m->index == 3) {
        RIG_OK(m, rg_group_abort(m->g));
        rg_group_destroy(half);
        return 0;
    }
    RIG_NEED(m, m->index < 2 || seen == 6, "the death showed as %llx", (unsigned long long)seen);
    rg_status_t st;
    uint32_t a = m->index, all[4];
    do st = rg_all_gather(half, &a, all, 1, RG_U32, NULL, NULL); /* the shape has changed: said once */
    while (st == RG_ERR_PEER_LOST);
    RIG_NEED(m, st == RG_OK && all[0] == (m->index < 2 ? 0u : 2u), "%s", rg_status_name(st));
    RIG_OK(m, rg_group_info(half, &info));
    RIG_NEED(m, info.world_size == (m->index < 2 ? 2u : 1u), "%u left", info.world_size);
    do RIG_OK(m, rg_group_grid(m->g, &grid));
    while (grid.members == 4);
    RIG_NEED(m, !grid.complete && grid.smallest == 1 && grid.largest == 2 && grid.present == 2, "not complete");
    if (rig_gate(m, 1, 3)) return 1;
    rg_group_destroy(half);
    return 0;
}

Test(split, death_of_a_member__its_children_alone_notice) {
    rig_run(4, "inproc", NULL, death_in_a_child, NULL);
    rig_run(4, "tcp", NULL, death_in_a_child, NULL);
}

/* Splitting while somebody dies: those who are left make the same children. */
static int split_and_death(rig_member_t *m, void *arg) {
    rg_group_t *child = NULL;
    rg_info_t info = RG_INFO_INIT;
    uint64_t sum, spin = rig_seed(m->index + *(uint32_t *)arg), until;
    RIG_OK(m, rg_barrier(m->g, NULL, NULL));
    if (m->index == 1) {
        until = rig_now() + rig_random(&spin) % 100000;
        while (rig_now() < until) {}
        RIG_OK(m, rg_group_abort(m->g));
        return 0;
    }
    RIG_OK(m, rg_group_split(m->g, 5, 0, NULL, &child));
    do RIG_OK(m, rg_group_info(child, &info));
    while (info.world_size == 4);
    if (sum_of(m, child, 1000, 3, 1, &sum)) return 1;
    rg_group_destroy(child);
    return 0;
}

Test(split, death_of_a_member_meanwhile__the_rest_agrees, .timeout = 120) {
    for (uint32_t i = 0; i < 8; i++) rig_run(4, i % 2 ? "tcp" : "inproc", NULL, split_and_death, &i);
}

/* abort of a child ends what the others have in flight there, and nothing else. */
static int child_aborted(rig_member_t *m, void *arg) {
    rg_group_t *child;
    uint64_t sum;
    (void)arg;
    RIG_OK(m, rg_group_split(m->g, 0, 0, NULL, &child));
    if (m->index == 0) {
        rg_request_t *req;
        float x = 0;
        RIG_OK(m, rg_all_reduce(child, &x, &x, 1, RG_F32, RG_SUM, NULL, &req));
        RIG_OK(m, rg_group_abort(child));
        rg_status_t st = rg_wait(req, NULL);
        RIG_NEED(m, st == RG_ERR_ABORTED, "%s", rg_status_name(st));
        RIG_NEED(m, rg_barrier(child, NULL, NULL) == RG_ERR_ABORTED, "one more call");
    } else {
        float x = 0;
        if (m->index == 1) {
            rg_status_t st = rg_all_reduce(child, &x, &x, 1, RG_F32, RG_SUM, NULL, NULL);
            RIG_NEED(m, st == RG_ERR_ABORTED, "%s", rg_status_name(st));
        }
    }
    if (sum_of(m, m->g, 100, 3, 1, &sum)) return 1;
    rg_group_destroy(child);
    if (sum_of(m, m->g, 100, 3, 1, &sum)) return 1;
    return rig_gate(m, 0, 3); /* to go is to die, to those who have not finished */
}

Test(split, abort_of_a_child__ends_it_everywhere_and_nothing_else) { rig_run(3, "inproc", NULL, child_aborted, NULL); }
