/* shm_pull.c: large messages. The sender says where its bytes lie and the receiver fetches them: out of a region that
 * it has mapped, where a reduction reads the peer's memory as its operand and nothing is copied; or with
 * process_vm_readv in pieces that stay in cache; or, where a host forbids that, the sender pushes pieces through the
 * ring. Meanwhile the sender may take its buffer back at any instant (a fence, a drop) and its user may overwrite it.
 * So what was read is believed only after the slot's generation was seen unchanged, read after the bytes were. Until
 * then the sink holds bytes that mean nothing, and the receive is not finished.
 * It must not tell RECEIVED, nor acknowledge, before that, and must never wait for the sender. */
#include "shm_internal.h"
#include "kernels/kernels.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#define LENT_SAMPLE 8     /* of so many sinks that peers have read, one tells what that costs */
#define LENT_PAYS_NS 5.0  /* a line: less is lost again when the peer has to fetch it from further away */
#define STEP (256u << 10) /* between two looks at the generation */

rg_shm_hooks_t rg_shm_hooks;

/* ---- Fetched or pushed ---- */

/* Which of the two ways through private memory is quicker depends on how near two cores are, on whether they take
 * turns on one, and on how a sandbox does the call; and it changes when the host moves us. So it is measured on real
 * traffic, from when something is under way to when nothing is, and the other way is tried now and then. */
#define TRY_FIRST 6 /* the first two teach nothing: pages are touched for the first time */
#define TRY_EVERY 32

static void way_begin(link_t *l, uint64_t len) {
    way_t *w = &l->way;
    if (w->busy++) return;
    w->size = len < 192u << 10 ? 0 : len < 1536u << 10 ? 1 : 2;
    w->bytes = 0;
    const uint64_t *cost = w->cost[w->size];
    uint32_t k = w->periods[w->size]++;
    w->void_ = k < 2;
    w->pushed = cost[0] > cost[1];
    if (k < TRY_FIRST) w->pushed = k & 1;
    else if (k % TRY_EVERY == 0) w->pushed = !w->pushed;
    if (!l->can_copy || rg_shm_hooks.never_push) w->pushed = !l->can_copy;
    w->since = rg_os_now_ns();
}

/* bytes 0: the message was not finished. */
static void way_end(link_t *l, uint64_t bytes) {
    way_t *w = &l->way;
    w->bytes += bytes;
    w->void_ |= bytes == 0;
    if (--w->busy || w->void_) return;
    uint64_t ns = rg_os_now_ns() - w->since, now = (uint64_t)((double)ns / (double)w->bytes * (1 << 20)),
             *cost = &w->cost[w->size][w->pushed];
    if (*cost && now > 2 * *cost)
        now = 2 * *cost; /* somebody was interrupted, as happens: it counts, but not for all */
    *cost = *cost ? (*cost + now) / 2 : now;
}

/* Much at once goes through the ring, whatever was measured for less: both processes then work on each byte while it is
 * in cache, where fetching has one of them do all of it from memory, and pin every page besides (16 MiB between two
 * members: 4 ms instead of 6). What is measured cannot tell, because it is quick only when both directions do it.
 * Where processes take turns on cores all of it does: fetching takes the turn of the one, and the other has none. */
#define BULK (768u << 10)

static int is_bulk(const rg_tp_t *tp, link_t *l, const recv_op_t *op, uint64_t len) {
    if (l->run_gen != op->r.tag.gen || l->run_op != op->r.tag.op) {
        l->run_gen = op->r.tag.gen;
        l->run_op = op->r.tag.op;
        l->run_bytes = 0;
    }
    l->run_bytes += len;
    return (tp->n_up >= tp->cores || l->run_bytes > BULK) && !rg_shm_hooks.never_push;
}

static void ask_push(link_t *l, recv_op_t *op) {
    uint32_t slot = op->large.id.slot;
    op->how = PULL_PUSHED;
    l->pushed[slot] = op;
    rgm_slots_add(&l->push_owed, slot);
}

void rgm_pull_begin(rg_tp_t *tp, link_t *l, recv_op_t *op, const large_t *m) {
    op->bound = 1;
    op->large = *m;
    op->got = 0;
    uint64_t n = op->r.reduce ? op->r.len / op->r.wire_elem * op->r.dst_elem : op->r.len;
    op->past = (!op->r.reduce || op->r.anywhere) && rgm_lent_take(tp, op->r.dst, n);
    const mapped_t *map = m->region ? rgm_region_find(l, m->region) : NULL;
    if (map && map->base && m->off <= map->len && m->total <= map->len - m->off) {
        op->how = PULL_REGION;
        op->from = map->base + m->off;
        l->n_pulls++;
        return;
    }
    int bulk = is_bulk(tp, l, op, m->total);
    op->timed = !bulk;
    if (!bulk) way_begin(l, m->total);
    if (bulk || l->way.pushed) {
        ask_push(l, op);
    } else {
        op->how = PULL_COPY;
        l->n_pulls++;
    }
}

void rgm_pull_end(link_t *l, recv_op_t *op) {
    if (op->how == PULL_REGION || op->how == PULL_COPY) l->n_pulls--;
    if (op->how == PULL_PUSHED && l->pushed[op->large.id.slot] == op) {
        l->pushed[op->large.id.slot] = NULL;
        rgm_slots_remove(&l->push_owed, op->large.id.slot);
    }
    if (op->timed) way_end(l, op->got == op->r.len ? op->got : 0);
    op->timed = 0;
    op->how = PULL_NONE;
}

/* Whether the sender still stood by its message when everything read so far had been read. */
static int still_valid(const link_t *l, const recv_op_t *op) {
    if (rg_shm_hooks.between) rg_shm_hooks.between(rg_shm_hooks.arg);
    FENCE_READS();
    return LOAD(&l->in->gen[op->large.id.slot]) == op->large.id.gen || rg_shm_hooks.no_validate;
}

static void give_up(link_t *l, recv_op_t *op) {
    rgm_pull_end(l, op);
    op->dead = 1; /* and bound: nothing else may fill it. A fence or the end of the link completes it. */
}

/* Copies n bytes of the sender's memory. The witness comes with them in the same call: that it is right shows that
 * this is still the process that the link was made with, and not another one that got its number. */
static int copy_from(const link_t *l, void *to, uint64_t addr, size_t n) {
    uint8_t w[16];
    struct iovec local[2] = { { to, n }, { w, sizeof w } };
    struct iovec remote[2] = { { (void *)(uintptr_t)addr, n }, { (void *)(uintptr_t)l->witness_addr, sizeof w } };
    ssize_t got = process_vm_readv(l->pid, local, 2, remote, 2, 0);
    if (got == (ssize_t)(n + sizeof w)) {
        if (memcmp(w, l->witness, sizeof w) == 0) return 0;
        errno = ESRCH;
    } else if (got >= 0) {
        errno = EFAULT;
    }
    return -1;
}

/* Elements [i, i + k) of a sink: into their place, or by way of `hot`, which stays in L1, past the cache. */
static void bite(rg_tp_t *tp, const rg_tp_recv_t *r, const uint8_t *p, uint64_t i, uint64_t k, int past) {
    uint64_t e = r->reduce ? r->dst_elem : 1;
    uint8_t *dst = (uint8_t *)r->dst + i * e;
    if (r->reduce) r->reduce(r->reduce_ctx, past ? tp->hot : dst, (const uint8_t *)r->a + i * r->a_elem, p, k);
    else if (!past) memcpy(dst, p, k);
    if (past) rg_copy_past_cache(dst, r->reduce ? tp->hot : p, k * e);
}

/* What a line that peers have read costs more to write than one that is ours: between the threads of one core nothing,
 * between distant cores 30 ns. One bite each way tells; the larger the difference the more is to be gained. */
static void sample_lent(rg_tp_t *tp, const rg_tp_recv_t *r, const uint8_t *p, uint64_t k) {
    uint64_t e = r->reduce ? r->dst_elem : 1, w = r->reduce ? r->wire_elem : 1, t0 = rg_os_now_ns();
    bite(tp, r, p, 0, k, 0);
    uint64_t t1 = rg_os_now_ns();
    if (r->reduce) r->reduce(r->reduce_ctx, tp->hot, (const uint8_t *)r->a + k * r->a_elem, p + k * w, k);
    else memcpy(tp->hot, p + k, k);
    uint64_t t2 = rg_os_now_ns();
    rg_copy_past_cache((uint8_t *)r->dst + k * e, tp->hot, k * e);
    double lines = (double)(k * e) / 64, ns = ((double)(t1 - t0) - (double)(t2 - t1)) / lines;
    if (ns < 0) ns = 0;
    if (ns > 2 * tp->lent_ns + 10) ns = 2 * tp->lent_ns + 10; /* an interrupt */
    tp->lent_ns = tp->lent_samples++ ? (tp->lent_ns * 3 + ns) / 4 : ns;
}

/* As rgm_sink(), past the cache if the sink lies in what peers have read and that pays. */
static void pour(rg_tp_t *tp, recv_op_t *op, const uint8_t *p, uint64_t off, uint64_t n) {
    const rg_tp_recv_t *r = &op->r;
    if (!op->past) {
        rgm_sink(r, p, off, n);
        return;
    }
    uint64_t e = r->reduce ? r->dst_elem : 1, w = r->reduce ? r->wire_elem : 1, most = HOT / (e > w ? e : w);
    uint64_t i = off / w, end = i + n / w;
    if (i == 0 && end >= 2 * most && tp->lent_uses++ % LENT_SAMPLE == 0) {
        sample_lent(tp, r, p, most);
        i = 2 * most;
        p += i * w;
    }
    op->past = tp->lent_ns > LENT_PAYS_NS;
    if (!op->past) {
        rgm_sink(r, p, i * w, (end - i) * w);
        return;
    }
    for (uint64_t k; i < end; i += k, p += k * w) {
        k = end - i < most ? end - i : most;
        bite(tp, r, p, i, k, 1);
    }
}

static uint64_t step_bytes(const recv_op_t *op, uint64_t most) {
    uint64_t left = op->r.len - op->got, e = op->r.reduce ? op->r.wire_elem : 1;
    return left <= most ? left : most / e * e;
}

/* One piece. 0, or -1 when there is nothing more to fetch for this receive. */
static int fetch(rg_tp_t *tp, link_t *l, recv_op_t *op, uint64_t *budget) {
    int staged = op->how == PULL_COPY && (op->r.reduce || op->past);
    uint64_t n = step_bytes(op, staged ? SCRATCH : STEP);
    if (op->how == PULL_REGION) {
        pour(tp, op, op->from + op->got, op->got, n);
    } else {
        void *to = staged ? tp->scratch : (uint8_t *)op->r.dst + op->got;
        if (copy_from(l, to, op->large.addr + op->got, n) != 0) {
            int e = errno;
            /* Taken back and unmapped already. */
            if (!still_valid(l, op)) {
                give_up(l, op);
                return -1;
            }
            /* Memory that only its owner can read (a device's, say); a permission that was withdrawn; or no process of
             * that number with that memory: its end, which we are about to hear of, or only that of its first thread,
             * through which the kernel looks at it. */
            if (e == EPERM || e == ENOSYS || e == ESRCH) l->can_copy = 0;
            l->n_pulls--;
            l->way.void_ = 1;
            ask_push(l, op);
            return -1;
        }
        if (staged) pour(tp, op, to, op->got, n);
    }
    if (!still_valid(l, op)) {
        give_up(l, op);
        return -1;
    }
    op->got += n;
    *budget -= n < *budget ? n : *budget;
    return 0;
}

static void finish(rg_tp_t *tp, link_t *l, recv_op_t *op) {
    rgm_owe_ack(l, op->large.id);
    rgm_pull_end(l, op);
    rgm_recv_unlink(l, op);
    rgm_recv_done(tp, l, op, RG_TP_DONE, NULL);
}

void rgm_pulls(rg_tp_t *tp, link_t *l) {
    uint64_t budget = TURN;
    recv_op_t *next;
    for (recv_op_t *op = l->recv_head; op && l->n_pulls && budget; op = next) {
        next = op->next;
        if (op->how != PULL_REGION && op->how != PULL_COPY) continue;
        int rc = 0;
        while (rc == 0 && op->got < op->r.len && budget) rc = fetch(tp, l, op, &budget);
        if (rc == 0 && op->got == op->r.len) finish(tp, l, op);
    }
}

int rgm_part(rg_tp_t *tp, link_t *l, slot_id_t id, uint64_t off, const uint8_t *p, uint32_t n) {
    if (id.slot >= SLOTS) return -1;
    recv_op_t *op = l->pushed[id.slot];
    if (!op || op->large.id.gen != id.gen) return 1; /* of a receive that ended */
    uint32_t e = op->r.reduce ? op->r.wire_elem : 1;
    if (off != op->got || n == 0 || n > op->r.len - op->got || n % e) return -1;
    rgm_sink(&op->r, p, op->got, n);
    op->got += n;
    if (op->got < op->r.len) return 1;
    rgm_pull_end(l, op);
    rgm_recv_unlink(l, op);
    rgm_recv_done(tp, l, op, RG_TP_DONE, NULL);
    return 1;
}
