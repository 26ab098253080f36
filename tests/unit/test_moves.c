/* test_moves.c: placements: the plan, by carrying it out on paper for random placements and hosts, and gathers and
 * reductions on groups of threads: contents, bytes, chunks that are ready early, plans at the same time, members that
 * differ, cancel, are late or die. Relies on engine_rig.h and moves.h. */
#include "engine_rig.h"
#include "regroup_sparse.h"
#include "sparse/moves.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNKS = 40 };

typedef struct world {
    uint64_t bytes[CHUNKS];
    uint32_t owner[CHUNKS], host[RIG_MAX * 4];
    uint8_t present[RIG_MAX * 4 * ((CHUNKS + 7) / 8)];
    rg_placement_t p;
} world_t;

/* A random placement among n members; unit: what all sizes are multiples of. */
static void make_world(world_t *w, uint32_t n, uint32_t chunks, uint64_t most, uint64_t unit, uint64_t seed) {
    rg_placement_t none = RG_PLACEMENT_INIT;
    memset(w, 0, sizeof *w);
    w->p = none;
    w->p.chunks = chunks, w->p.bytes = w->bytes, w->p.owner = w->owner;
    uint64_t want = rig_random(&seed) % 4;
    for (uint32_t r = 0; r < n; r++) w->host[r] = r > 0 && rig_random(&seed) % 2 ? w->host[rig_random(&seed) % r] : r;
    uint8_t *rows = w->present;
    w->p.present = rows;
    for (uint32_t c = 0; c < chunks; c++) {
        w->bytes[c] = rig_random(&seed) % 8 == 0 ? 0 : rig_random(&seed) % most / unit * unit;
        w->owner[c] = (uint32_t)(rig_random(&seed) % n);
        for (uint32_t r = 0; r < n; r++)
            if (r == w->owner[c] || rig_random(&seed) % 4 <= want)
                rows[r * ((chunks + 7) / 8) + c / 8] |= (uint8_t)(1u << c % 8);
    }
}

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

typedef struct paper {
    const world_t *w;
    uint32_t n;
    uint64_t has[RIG_MAX * 4][CHUNKS]; /* bytes from the beginning that are there */
    uint64_t into[CHUNKS];             /* bytes that crossed from host to host */
    uint64_t sent_away[CHUNKS];        /* of them by the owner */
    uint64_t moves;
} paper_t;

static void write_down(void *ctx, const rg_move_t *m) {
    paper_t *p = ctx;
    const world_t *w = p->w;
    cr_assert(m->from < p->n && m->to < p->n && m->from != m->to && m->len > 0);
    cr_assert(rg_placed(&w->p, m->to, m->chunk), "sent to one that is not to have it");
    cr_assert_geq(p->has[m->from][m->chunk], m->at + m->len, "passed on before it was there");
    cr_assert_eq(p->has[m->to][m->chunk], m->at, "twice, or out of order");
    p->has[m->to][m->chunk] += m->len;
    p->moves++;
    if (w->host[m->from] == w->host[m->to]) return;
    p->into[m->chunk] += m->len;
    if (m->from == w->owner[m->chunk]) p->sent_away[m->chunk] += m->len;
}

Test(moves, plan__random_placements_and_hosts__every_copy_once_and_one_to_a_host, .timeout = 60) {
    static world_t w;
    static paper_t p;
    uint64_t seed = rig_seed(21);
    uint32_t scratch[RIG_MAX * 16];
    for (int round = 0; round < 3000 / RIG_SLOW; round++) {
        uint32_t n = 1 + (uint32_t)(rig_random(&seed) % (RIG_MAX * 4));
        make_world(&w, n, 1 + (uint32_t)(rig_random(&seed) % CHUNKS), round % 2 ? 5000 : 9000000, 1, rig_random(&seed));
        cr_assert_null(rg_placement_flaw(&w.p, n));
        memset(&p, 0, sizeof p);
        p.w = &w, p.n = n;
        for (uint32_t c = 0; c < w.p.chunks; c++) p.has[w.owner[c]][c] = w.bytes[c];
        rg_plan_gather(&w.p, n, w.host, scratch, write_down, &p);
        for (uint32_t c = 0; c < w.p.chunks; c++) {
            uint32_t hosts = 0;
            for (uint32_t r = 0; r < n; r++) {
                int first = w.host[r] != w.host[w.owner[c]] && rg_placed(&w.p, r, c);
                cr_assert_eq(p.has[r][c], rg_placed(&w.p, r, c) ? w.bytes[c] : 0);
                for (uint32_t k = 0; k < r; k++) first &= w.host[k] != w.host[r] || !rg_placed(&w.p, k, c);
                hosts += (uint32_t)first;
            }
            cr_assert_eq(p.into[c], hosts * w.bytes[c], "a host got a chunk twice");
            uint32_t times = hosts > 2 && w.bytes[c] >= 262144 ? 1 : hosts;
            cr_assert_eq(p.sent_away[c], times * w.bytes[c], "the owner sends it %u times", times);
        }
    }
}

/* ---- Gathers and reductions -------------------------------------------------------------------------------------- */

static uint8_t content(uint32_t chunk, uint64_t i) { return (uint8_t)(chunk * 31 + i * 7 + (i >> 8) * 13 + 1); }

typedef struct held {
    void *chunk[CHUNKS];
} held_t;

static void hold(held_t *h, const world_t *w, uint32_t rank) {
    for (uint32_t c = 0; c < w->p.chunks; c++) {
        h->chunk[c] = rg_placed(&w->p, rank, c) ? calloc(1, w->bytes[c] + 1) : NULL;
        if (w->owner[c] != rank) continue;
        for (uint64_t i = 0; i < w->bytes[c]; i++) ((uint8_t *)h->chunk[c])[i] = content(c, i);
    }
}

static void let_go(held_t *h) {
    for (uint32_t c = 0; c < CHUNKS; c++) free(h->chunk[c]);
    memset(h, 0, sizeof *h);
}

/* Whether what is here of chunk c is right. */
static int right(const held_t *h, const world_t *w, uint32_t c) {
    for (uint64_t i = 0; i < w->bytes[c]; i++)
        if (((const uint8_t *)h->chunk[c])[i] != content(c, i)) return 0;
    return 1;
}

static int gathers(rig_member_t *m, void *arg) {
    uint32_t n = m->rig->n;
    (void)arg;
    for (uint64_t round = 0; round < 12; round += 1 + RIG_SLOW / 4) {
        world_t w;
        held_t h = { { 0 } };
        rg_moves_t *z = NULL;
        rg_result_t r = RG_RESULT_INIT;
        make_world(&w, n, 1 + (uint32_t)round * 3, round % 3 ? 3000 : 700000, 1, rig_seed(100 * n + round));
        RIG_OK(m, rg_moves_create_on(m->g, &w.p, w.host, NULL, &z));
        uint64_t want = 0;
        for (uint32_t c = 0; c < w.p.chunks; c++)
            want += rg_placed(&w.p, m->index, c) && w.owner[c] != m->index ? w.bytes[c] : 0;
        RIG_NEED(m, rg_moves_gather_bytes(z) == want, "%u bytes are planned", (unsigned)rg_moves_gather_bytes(z));
        for (int again = 0; again < 2; again++) {
            hold(&h, &w, m->index);
            RIG_NEED(m, rg_moves_ready(z, 0) == (again && rg_placed(&w.p, m->index, 0)), "ready before it began");
            RIG_OK(m, rg_moves_gather(z, h.chunk, NULL));
            RIG_NEED(m, rg_moves_gather(z, h.chunk, NULL) == RG_ERR_INVALID, "twice at once");
            rg_status_t st;
            while (again && (st = rg_moves_test(z, &r)) == RG_AGAIN)
                for (uint32_t c = 0; c < w.p.chunks; c++)
                    RIG_NEED(m, !rg_moves_ready(z, c) || right(&h, &w, c), "chunk %u is ready, and is not right", c);
            if (!again) st = rg_moves_wait(z, &r);
            RIG_NEED(m, st == RG_OK, "%s: %s", rg_status_name(st), r.text);
            RIG_NEED(m, r.bytes_received == want && r.contributors == n, "%u bytes for %u", (unsigned)r.bytes_received,
                     (unsigned)want);
            for (uint32_t c = 0; c < w.p.chunks; c++) {
                RIG_NEED(m, rg_moves_ready(z, c) == rg_placed(&w.p, m->index, c), "chunk %u is not ready", c);
                RIG_NEED(m, !h.chunk[c] || right(&h, &w, c), "chunk %u is not right", c);
            }
            let_go(&h);
        }
        rg_moves_destroy(z);
    }
    return rig_gate(m, 9, m->rig->n); /* who goes is lost to those whose last call still runs */
}

Test(moves, gather__random_placements__all_have_what_they_are_to_have, .timeout = 100) {
    for (uint32_t n = 1; n <= 5; n++) rig_run(n, "inproc", NULL, gathers, NULL);
    rig_run(4, "tcp", NULL, gathers, NULL);
}

static int reduces(rig_member_t *m, void *arg) {
    uint32_t n = m->rig->n;
    (void)arg;
    for (uint64_t round = 0; round < 10; round++) {
        world_t w;
        void *in[CHUNKS] = { 0 }, *out[CHUNKS] = { 0 };
        rg_moves_t *z = NULL;
        rg_result_t r = RG_RESULT_INIT;
        rg_op_t op = round % 3 == 0 ? RG_SUM : round % 3 == 1 ? RG_MAX : RG_AVG;
        int ints = round % 2 == 0 && op != RG_AVG;
        make_world(&w, n, 1 + (uint32_t)round * 3, 40000, 4, rig_seed(300 * n + round));
        RIG_OK(m, rg_moves_create(m->g, &w.p, NULL, &z));
        for (uint32_t c = 0; c < w.p.chunks; c++) {
            if (!rg_placed(&w.p, m->index, c)) continue;
            in[c] = malloc(w.bytes[c] + 1);
            out[c] = round % 4 == 0 ? in[c] : calloc(1, w.bytes[c] + 1);
            for (uint64_t i = 0; i < w.bytes[c] / 4; i++) {
                if (ints) ((int32_t *)in[c])[i] = (int32_t)(i % 1000 * (m->index + 1));
                else ((float *)in[c])[i] = (float)(i % 1000) * 0.1f + (float)m->index * 1e-3f;
            }
        }
        RIG_OK(m, rg_moves_reduce(z, (const void *const *)in, out, ints ? RG_I32 : RG_F32, op, NULL));
        rg_status_t st = rg_moves_wait(z, &r);
        RIG_NEED(m, st == RG_OK, "%s: %s", rg_status_name(st), r.text);
        RIG_NEED(m, r.bytes_received == rg_moves_reduce_bytes(z), "%u bytes", (unsigned)r.bytes_received);
        for (uint32_t c = 0; c < w.p.chunks; c++) {
            for (uint64_t i = 0; w.owner[c] == m->index && i < w.bytes[c] / 4; i++) {
                double sum = 0, most = -1e30, copies = 0;
                float exact = (float)(i % 1000) * 0.1f + (float)m->index * 1e-3f;
                for (uint32_t q = 0; q < n; q++) {
                    if (!rg_placed(&w.p, q, c)) continue;
                    float f = (float)(i % 1000) * 0.1f + (float)q * 1e-3f;
                    double v = ints ? (double)(i % 1000 * (q + 1)) : (double)f;
                    if (q != m->index) exact += f;
                    sum += v, copies++;
                    most = v > most ? v : most;
                }
                double want = op == RG_SUM ? sum : op == RG_MAX ? most : sum / copies;
                double got = ints ? (double)((int32_t *)out[c])[i] : (double)((float *)out[c])[i];
                RIG_NEED(m, got - want < 1e-4 && want - got < 1e-4, "%s, chunk %u: %g for %g", rg_op_name(op), c, got,
                         want);
                if (op == RG_SUM && !ints)
                    RIG_NEED(m, ((float *)out[c])[i] == exact, "not in the order of owner and ranks");
            }
            if (out[c] != in[c]) free(out[c]);
            free(in[c]);
        }
        rg_moves_destroy(z);
    }
    return rig_gate(m, 9, m->rig->n); /* who goes is lost to those whose last call still runs */
}

Test(moves, reduce__random_placements__owners_have_what_the_copies_come_to, .timeout = 100) {
    for (uint32_t n = 1; n <= 5; n++) rig_run(n, "inproc", NULL, reduces, NULL);
}

/* Two plans at once, which members go through in different orders. */
static int together(rig_member_t *m, void *arg) {
    world_t a, b;
    held_t x = { { 0 } }, y = { { 0 } };
    rg_moves_t *p = NULL, *q = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    rg_status_t s = RG_AGAIN, t = RG_AGAIN;
    (void)arg;
    make_world(&a, m->rig->n, 20, 400000, 1, rig_seed(5));
    make_world(&b, m->rig->n, 9, 100000, 1, rig_seed(6));
    RIG_OK(m, rg_moves_create_on(m->g, &a.p, a.host, NULL, &p));
    RIG_OK(m, rg_moves_create_on(m->g, &b.p, b.host, NULL, &q));
    hold(&x, &a, m->index);
    hold(&y, &b, m->index);
    for (int k = 0; k < 2; k++) {
        o.tag = 1 + ((uint32_t)k + m->index) % 2;
        RIG_OK(m, rg_moves_gather(o.tag == 1 ? p : q, o.tag == 1 ? x.chunk : y.chunk, &o));
    }
    while (s == RG_AGAIN || t == RG_AGAIN) {
        if (s == RG_AGAIN) s = rg_moves_test(p, NULL);
        if (t == RG_AGAIN) t = rg_moves_test(q, NULL);
    }
    RIG_NEED(m, s == RG_OK && t == RG_OK, "%s, %s: %s", rg_status_name(s), rg_status_name(t), rig_errmsg(m));
    for (uint32_t c = 0; c < 20; c++) RIG_NEED(m, !x.chunk[c] || right(&x, &a, c), "chunk %u is not right", c);
    for (uint32_t c = 0; c < 9; c++) RIG_NEED(m, !y.chunk[c] || right(&y, &b, c), "chunk %u is not right", c);
    rg_moves_destroy(p);
    rg_moves_destroy(q);
    let_go(&x), let_go(&y);
    return rig_gate(m, 9, m->rig->n); /* who goes is lost to those whose last call still runs */
}

Test(moves, gather__two_plans_with_tags__both_succeed, .timeout = 60) { rig_run(4, "inproc", NULL, together, NULL); }

static int wrong(rig_member_t *m, void *arg) {
    world_t w;
    held_t h = { { 0 } };
    rg_moves_t *z = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    rg_result_t r = RG_RESULT_INIT;
    int odd = m->index == 1;
    (void)arg;
    o.timeout_ms = 1000;
    make_world(&w, m->rig->n, 12, 300000, 4, rig_seed(8));
    for (uint32_t c = 0; c < 12; c++) w.bytes[c] += 4; /* none is empty */
    memset(w.present, 0xff, sizeof w.present);
    if (odd) w.bytes[3]++;
    RIG_NEED(m, rg_moves_create(m->g, &w.p, NULL, &z) == RG_ERR_MISMATCH && z == NULL, "placements: %s", rig_errmsg(m));
    if (odd) w.bytes[3]--;
    if (odd) w.owner[2] += m->rig->n;
    RIG_NEED(m, rg_moves_create(m->g, &w.p, NULL, &z) == RG_ERR_INVALID && z == NULL, "owners: %s", rig_errmsg(m));
    if (odd) w.owner[2] -= m->rig->n;
    uint64_t was = w.bytes[3];
    if (odd) w.bytes[3] = UINT64_MAX;
    RIG_NEED(m, rg_moves_create(m->g, &w.p, NULL, &z) == RG_ERR_INVALID && z == NULL, "bytes: %s", rig_errmsg(m));
    w.bytes[3] = was;
    RIG_OK(m, rg_moves_create(m->g, &w.p, NULL, &z));
    hold(&h, &w, m->index);
    RIG_NEED(m, rg_moves_gather(z, NULL, NULL) == RG_ERR_INVALID, "NULL: %s", rig_errmsg(m));
    RIG_NEED(m, rg_moves_reduce(z, NULL, NULL, RG_I32, RG_AVG, NULL) == RG_ERR_NOTSUP, "average: %s", rig_errmsg(m));
    RIG_NEED(m, rg_moves_wait(z, NULL) == RG_ERR_INVALID, "nothing is in flight");
    /* One cancels: all end with it, whoever was how far. */
    RIG_OK(m, rg_moves_gather(z, h.chunk, NULL));
    if (odd) rg_moves_cancel(z);
    rg_status_t st = rg_moves_wait(z, &r);
    RIG_NEED(m, st == RG_ERR_CANCELLED || st == RG_OK, "%s: %s", rg_status_name(st), r.text);
    uint64_t code = (uint64_t)-st, low, high;
    RIG_OK(m, rg_all_reduce(m->g, &code, &low, 1, RG_U64, RG_MIN, NULL, NULL));
    RIG_OK(m, rg_all_reduce(m->g, &code, &high, 1, RG_U64, RG_MAX, NULL, NULL));
    RIG_NEED(m, low == high, "ended differently: %u to %u", (unsigned)low, (unsigned)high);
    /* One reduces by another operator. */
    rg_op_t op = odd ? RG_MAX : RG_SUM;
    RIG_OK(m, rg_moves_reduce(z, (const void *const *)h.chunk, h.chunk, RG_U8, op, &o));
    st = rg_moves_wait(z, &r);
    RIG_NEED(m, st == RG_ERR_MISMATCH, "operators: %s: %s", rg_status_name(st), r.text);
    /* One comes too late: the others are done by their deadline. */
    if (!odd) {
        uint64_t from = rig_now();
        RIG_OK(m, rg_moves_gather(z, h.chunk, &o));
        st = rg_moves_wait(z, &r);
        uint64_t took = (rig_now() - from) / 1000000;
        RIG_NEED(m, st == RG_ERR_TIMEOUT, "late: %s: %s", rg_status_name(st), r.text);
        RIG_NEED(m, (double)took < 1000 + 2000 * RIG_SLOW + rig_late_ms(from), "after %u ms", (unsigned)took);
    }
    RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    let_go(&h);
    rg_moves_destroy(z);
    return rig_gate(m, 9, m->rig->n); /* who goes is lost to those whose last call still runs */
}

/* A plan goes on where an operation, or a gather of its own, was cancelled: nobody is lost by that. */
static int after_cancelled(rig_member_t *m, void *arg) {
    world_t w;
    held_t h = { { 0 } };
    rg_moves_t *z = NULL;
    rg_opts_t o = RG_OPTS_INIT;
    rg_result_t r = RG_RESULT_INIT;
    rg_request_t *odd = NULL;
    (void)arg;
    o.tag = 9;
    make_world(&w, m->rig->n, 12, 300000, 4, rig_seed(9));
    RIG_OK(m, rg_moves_create(m->g, &w.p, NULL, &z));
    if (m->index == 2) RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    RIG_OK(m, rg_barrier(m->g, &o, &odd));
    if (m->index == 1) RIG_OK(m, rg_cancel(odd));
    RIG_NEED(m, rg_wait(odd, NULL) == RG_ERR_CANCELLED, "%s", rig_errmsg(m));
    if (m->index != 2) RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    for (int k = 0; k < 13; k++) {
        hold(&h, &w, m->index);
        RIG_OK(m, rg_moves_gather(z, h.chunk, NULL));
        /* At another moment each time. */
        for (uint64_t until = rig_now() + (uint64_t)k * 30000; k % 2 == 1 && m->index == 0 && rig_now() < until;)
            continue;
        if (k % 2 == 1 && m->index == 0) rg_moves_cancel(z);
        rg_status_t st = rg_moves_wait(z, &r);
        RIG_NEED(m, st == RG_OK || (k % 2 == 1 && st == RG_ERR_CANCELLED), "gather %d: %s: %s", k, rg_status_name(st),
                 r.text);
        for (uint32_t c = 0; st == RG_OK && c < 12; c++)
            RIG_NEED(m, !h.chunk[c] || right(&h, &w, c), "gather %d: chunk %u is not right", k, c);
        let_go(&h);
    }
    rg_moves_destroy(z);
    return rig_gate(m, 9, m->rig->n);
}

Test(moves, gather__after_something_was_cancelled__goes_on, .timeout = 60) {
    rig_run(4, "inproc", NULL, after_cancelled, NULL);
}

/* One member is refused a call, in one way after the other: the others end with an error, too, and what all call next
 * is not taken for it. */
static int refused(rig_member_t *m, void *arg) {
    world_t w;
    held_t h = { { 0 } };
    rg_moves_t *z = NULL;
    rg_opts_t o = RG_OPTS_INIT, odd = RG_OPTS_INIT;
    rg_result_t r = RG_RESULT_INIT;
    (void)arg;
    odd.on_fault = (rg_on_fault_t)99;
    odd.result = &r;
    make_world(&w, m->rig->n, 12, 100000, 4, rig_seed(11));
    for (uint32_t c = 0; c < 12; c++) w.bytes[c] += 4;
    memset(w.present, 0xff, sizeof w.present);
    RIG_OK(m, rg_moves_create(m->g, &w.p, NULL, &z));
    for (int how = 0; how < 4; how++) {
        hold(&h, &w, m->index);
        const void *const *in = (const void *const *)h.chunk;
        if (m->index == 1) {
            r = (rg_result_t)RG_RESULT_INIT;
            rg_status_t st = how == 0   ? rg_moves_gather(z, NULL, &o)
                             : how == 1 ? rg_moves_gather(z, h.chunk, &odd)
                             : how == 2 ? rg_moves_reduce(z, NULL, NULL, RG_I32, RG_SUM, &o)
                                        : rg_moves_reduce(z, in, h.chunk, RG_I32, RG_AVG, &o);
            RIG_NEED(m, st == (how == 3 ? RG_ERR_NOTSUP : RG_ERR_INVALID), "%d: %s", how, rig_errmsg(m));
            RIG_NEED(m, strstr(rig_errmsg(m), how == 1 ? "on_fault" : how == 3 ? "avg" : "NULL"), "%s", rig_errmsg(m));
            RIG_NEED(m, how != 1 || r.status == st, "its result: %s", rg_status_name(r.status));
        } else {
            RIG_OK(m, how < 2 ? rg_moves_gather(z, h.chunk, &o) : rg_moves_reduce(z, in, h.chunk, RG_I32, RG_SUM, &o));
            rg_status_t st = rg_moves_wait(z, NULL);
            RIG_NEED(m, st == (how == 3 ? RG_ERR_MISMATCH : RG_ERR_INVALID), "%d: %s", how, rg_status_name(st));
        }
        RIG_OK(m, rg_moves_gather(z, h.chunk, &o));
        RIG_OK(m, rg_moves_wait(z, NULL));
        for (uint32_t c = 0; c < 12; c++) RIG_NEED(m, right(&h, &w, c), "%d: chunk %u is not right", how, c);
        let_go(&h);
    }
    rg_moves_destroy(z);
    return rig_gate(m, 9, m->rig->n);
}

Test(moves, calls__one_member_is_refused__the_others_too_and_the_next_is_whole, .timeout = 60) {
    rig_run(3, "inproc", NULL, refused, NULL);
}

Test(moves, calls__that_differ_cancel_or_are_late__end_alike, .timeout = 60) {
    rig_run(4, "inproc", NULL, wrong, NULL);
}

/* ---- Deaths ------------------------------------------------------------------------------------------------------ */

typedef struct death {
    uint64_t after_us;
    int reduces;
} death_t;

static int loses(rig_member_t *m, void *arg) {
    const death_t *d = arg;
    world_t w;
    held_t h = { { 0 } };
    rg_moves_t *z = NULL;
    int dies = m->index == 1;
    rg_status_t st = RG_OK;
    rg_result_t r = RG_RESULT_INIT;
    make_world(&w, m->rig->n, 24, 300000, 4, rig_seed(d->after_us));
    RIG_OK(m, rg_moves_create_on(m->g, &w.p, w.host, NULL, &z));
    hold(&h, &w, m->index);
    RIG_NEED(m, rig_gate(m, 0, m->rig->n) == 0, "gate");
    if (dies) rig_ends_after(m, d->after_us);
    while (st == RG_OK) {
        st = d->reduces ? rg_moves_reduce(z, (const void *const *)h.chunk, h.chunk, RG_U8, RG_MAX, NULL)
                        : rg_moves_gather(z, h.chunk, NULL);
        if (st == RG_OK) st = rg_moves_wait(z, &r);
        if (dies) continue;
        for (uint32_t c = 0; c < w.p.chunks; c++) {
            int there = d->reduces ? w.owner[c] == m->index : rg_moves_ready(z, c);
            RIG_NEED(m, !there || right(&h, &w, c), "chunk %u is not right after %s", c, rg_status_name(st));
        }
    }
    if (!dies) {
        uint32_t lost[CHUNKS], many = 0, told = rg_moves_lost(z, lost, CHUNKS);
        RIG_NEED(m, st == RG_ERR_PEER_LOST, "%s: %s", rg_status_name(st), r.text);
        for (uint32_t c = 0; c < w.p.chunks; c++) {
            if (w.owner[c] != 1) continue;
            RIG_NEED(m, many < told && lost[many] == c, "chunk %u is lost, and not told (%u are)", c, told);
            many++;
        }
        RIG_NEED(m, many == told, "%u for %u: %s", told, many, r.text);
        /* Who goes is lost to those who do not know the outcome yet. */
        RIG_NEED(m, rig_gate(m, 1, m->rig->n - 1) == 0, "gate");
    }
    let_go(&h);
    rg_moves_destroy(z);
    return 0;
}

Test(moves, gather_and_reduce__a_member_dies_at_any_moment__the_others_know_what_is_lost, .timeout = 100) {
    for (uint64_t k = 0; k < 16; k++) {
        death_t d = { 30 + k * 211, k % 2 };
        rig_run(4, "inproc", NULL, loses, &d);
    }
}

/* A member goes and another comes for it: there are as many as the plan was made for, and one of them has no plan. */
static int replaced(rig_member_t *m, void *arg) {
    world_t *w = arg;
    held_t h;
    rg_moves_t *plan = NULL;
    rg_result_t r = RG_RESULT_INIT;
    const uint32_t n = m->rig->n;
    const uint64_t until = rig_now() + 30000000000u;
    uint64_t old = 0, now = 0;
    rg_info_t info = RG_INFO_INIT;
    RIG_OK(m, rg_moves_create(m->g, &w->p, NULL, &plan));
    rg_group_member(m->g, n - 1, &old);
    if (rig_gate(m, 0, n)) return 1;
    if (m->index == n - 1) {
        rg_moves_destroy(plan);
        rg_group_destroy(m->g);
        m->g = rig_join(m, 1);
        RIG_NEED(m, m->g, "cannot join");
        return rig_gate(m, 1, n);
    }
    uint32_t want = 0;
    for (uint32_t i = 0; i < CHUNKS; i++) want += w->owner[i] == n - 1;
    do {
        RIG_OK(m, rg_group_boundary(m->g, NULL));
        RIG_OK(m, rg_group_info(m->g, &info));
        if (info.world_size == n) rg_group_member(m->g, n - 1, &now);
    } while ((info.world_size != n || now == 0 || now == old) && rig_now() < until);
    hold(&h, w, m->index);
    uint64_t begun = rig_now();
    RIG_OK(m, rg_moves_gather(plan, h.chunk, NULL));
    rg_status_t st = rg_moves_wait(plan, &r);
    RIG_NEED(m, st == RG_ERR_PEER_LOST && (double)(rig_now() - begun) / 1e6 < 5000 + rig_late_ms(begun),
             "%s after %u ms: %s", rg_status_name(st), (unsigned)((rig_now() - begun) / 1000000), r.text);
    uint32_t lost = rg_moves_lost(plan, NULL, 0);
    RIG_NEED(m, lost == want, "%u chunks lost, not %u", lost, want);
    let_go(&h);
    rg_moves_destroy(plan);
    return rig_gate(m, 1, n);
}

Test(moves, gather__a_member_was_replaced__peer_lost_at_once, .timeout = 60) {
    world_t *w = malloc(sizeof *w);
    rg_config_t config = RG_CONFIG_INIT;
    config.op_timeout_ms = 10000 * RIG_SLOW;
    for (uint32_t n = 2; n <= 4; n++) {
        make_world(w, n, CHUNKS, 1000, 1, n);
        rig_run(n, "tcp", &config, replaced, w);
    }
    free(w);
}
