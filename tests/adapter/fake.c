/* fake.c: an adapter made of nothing, in place of libibverbs and librdmacm, so that the RDMA transport takes its
 * exam on hosts without a device. All ends live in one thread; each look for completions moves everything by a little,
 * so that work is under way when a case interferes. It is stricter than adapters are: keys, bounds, room in queues and
 * the order in which things end are checked, and a breach ends the program. It must not be linked into anything but
 * build/tests/conformance-adapter; tests/vm has the kernel's own soft-RoCE. */
#include "fake.h"

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define STEPS 2u      /* work requests of each queue pair that one look moves on */
#define READ_STEPS 3u /* a read takes so many, as it goes there and back */
#define RECVS_MAX 65536u
#define KEYS_MAX 4096u
#define DEPTH 16

extern const char *const conformance_subjects;
const char *const conformance_subjects = "rdma";

typedef struct fake_work {
    struct ibv_send_wr wr;
    struct ibv_sge sge[2];
    uint8_t inlined[512];
    uint32_t steps;
} fake_work_t;

typedef struct fake_qp {
    struct ibv_qp qp;
    struct fake_qp *next, *peer;
    fake_work_t *sq;
    uint32_t cap, first, n, used; /* used: until the completion is polled */
    uint64_t moved;               /* bytes */
    uint32_t left;                /* steps that it may do, see fake_hold() */
    int broken, dialled;          /* dialled: from elsewhere */
} fake_qp_t;

typedef struct fake_cq {
    struct ibv_cq cq;
    struct ibv_wc *wc;
    uint32_t *frees; /* places in the send queue that each gives back */
    fake_qp_t **of;
    uint32_t cap, n;
    int armed, fd;
} fake_cq_t;

typedef struct fake_srq {
    struct ibv_srq srq;
    struct ibv_sge sge[RECVS_MAX];
    uint64_t id[RECVS_MAX];
    uint32_t cap, first, n;
} fake_srq_t;

typedef struct fake_key { /* of a region, or of a window in one */
    struct ibv_mr *mr;
    struct ibv_mw *mw;
    fake_qp_t *qp;
    uint64_t from;
    uint64_t bytes;
    uint32_t key;
    int access, windows;
    uint8_t *pages; /* of a region that can be taken away: those that it had, as adapters hold them; or NULL */
} fake_key_t;

typedef struct fake_id {
    struct rdma_cm_id id;
    struct fake_id *next, *other;
    uint16_t port;
    int listens;
} fake_id_t;

typedef struct fake_event {
    struct rdma_cm_event e;
    struct fake_event *next;
    uint8_t data[64];
} fake_event_t;

#define DEVICES 2u
static struct ibv_device device[DEVICES] = { { .name = "fake0", .transport_type = IBV_TRANSPORT_IB },
                                             { .name = "fake1", .transport_type = IBV_TRANSPORT_IB } };
static struct ibv_context context[DEVICES] = { { .device = &device[0] }, { .device = &device[1] } };
static uint32_t n_binds;
static fake_qp_t *qps;
static fake_id_t *ids;
static fake_event_t *events;
static fake_key_t keys[KEYS_MAX];
static int n_armed; /* completion queues whose owner may sleep, and looks no more */
static uint32_t next_qpn = 17, next_key = 100;
static uint16_t next_port = 20000;

uint32_t fake_recvs;
int fake_two_devices;

static int is(const fake_qp_t *q, int end, uint32_t of) { return q->dialled == end && q->qp.context == &context[of]; }

void fake_hold(int end, uint32_t of, uint32_t steps) {
    for (fake_qp_t *q = qps; q; q = q->next)
        if (is(q, end, of)) q->left = steps;
}

void fake_iwarp(int on) { device[0].transport_type = on ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB; }

uint64_t fake_moved(int end, uint32_t of) {
    uint64_t sum = 0;
    for (const fake_qp_t *q = qps; q; q = q->next)
        if (is(q, end, of)) sum += q->moved;
    return sum;
}

static void breach(const char *what) {
    fprintf(stderr, "fake adapter: %s\n", what);
    abort();
}

static void *made(size_t bytes) {
    void *p = calloc(1, bytes);
    if (!p) breach("no memory");
    return p;
}

/* ---- Memory ---- */

static fake_key_t *key_new(void) {
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        if (!keys[i].mr && !keys[i].mw) return &keys[i];
    breach("too many keys");
    return NULL;
}

static fake_key_t *key_of_mr(const struct ibv_mr *mr) {
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        if (keys[i].mr == mr && !keys[i].mw) return &keys[i];
    breach("no such region");
    return NULL;
}

static fake_key_t *key_of_mw(const struct ibv_mw *mw) {
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        if (keys[i].mw == mw) return &keys[i];
    breach("no such window");
    return NULL;
}

static struct ibv_mr *region(struct ibv_pd *pd, void *addr, size_t length, int access) {
    struct ibv_mr *mr = made(sizeof *mr);
    fake_key_t *k = key_new();
    if (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC))
        breach("a whole region that peers may touch");
    next_key += 256;
    *mr = (struct ibv_mr){
        .context = pd->context, .pd = pd, .addr = addr, .length = length, .lkey = next_key, .rkey = next_key
    };
    *k = (fake_key_t){ .mr = mr, .from = (uintptr_t)addr, .bytes = length, .key = next_key, .access = access };
    if ((uintptr_t)addr % 4096 == 0) {
        void *p = mremap(addr, 0, length, MREMAP_MAYMOVE); /* of shared pages: once more */
        k->pages = p == MAP_FAILED ? NULL : p;
    }
    return mr;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
    return region(pd, addr, length, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access) {
    (void)iova;
    return region(pd, addr, length, (int)access);
}

/* Whoever has work under way there would lose it. */
static int in_use(const struct ibv_mr *mr) {
    for (const fake_qp_t *q = qps; q; q = q->next)
        for (uint32_t i = 0; i < q->n; i++) {
            const fake_work_t *w = &q->sq[(q->first + i) % q->cap];
            for (int k = 0; k < w->wr.num_sge; k++)
                if (!(w->wr.send_flags & IBV_SEND_INLINE) && w->sge[k].lkey == mr->lkey) return 1;
        }
    return 0;
}

int ibv_dereg_mr(struct ibv_mr *mr) {
    fake_key_t *k = key_of_mr(mr);
    if (k->windows) breach("a region ends before a window in it");
    if (in_use(mr)) breach("a region ends before work in it");
    if (k->pages) munmap(k->pages, k->bytes);
    *k = (fake_key_t){ 0 };
    free(mr);
    return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type) {
    struct ibv_mw *mw = made(sizeof *mw);
    next_key += 256;
    *mw = (struct ibv_mw){ .context = pd->context, .pd = pd, .type = type, .rkey = next_key };
    *key_new() = (fake_key_t){ .mw = mw, .key = next_key };
    return mw;
}

static void window_close(fake_key_t *k) {
    if (k->mr) key_of_mr(k->mr)->windows--;
    k->mr = NULL;
    k->qp = NULL;
}

static int dealloc_mw(struct ibv_mw *mw) {
    fake_key_t *k = key_of_mw(mw);
    window_close(k);
    *k = (fake_key_t){ 0 };
    free(mw);
    return 0;
}

static int inside(const fake_key_t *k, uint64_t from, uint64_t bytes) {
    return from >= k->from && bytes <= k->bytes && from - k->from <= k->bytes - bytes;
}

static void local(const struct ibv_sge *s, int access) {
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        if (keys[i].mr && !keys[i].mw && keys[i].key == s->lkey) {
            if (!inside(&keys[i], s->addr, s->length)) breach("beyond a region of our own");
            if ((keys[i].access & access) != access) breach("a region of our own does not allow that");
            return;
        }
    breach("no such region of our own");
}

/* Where the peer's bytes are. NULL: it has no such key, or not to all of that. */
static const uint8_t *remote(const fake_qp_t *peer, uint32_t key, uint64_t from, uint64_t bytes) {
    for (uint32_t i = 0; i < KEYS_MAX; i++) {
        if (!keys[i].mw || !keys[i].mr || keys[i].key != key) continue;
        if (keys[i].qp != peer || !inside(&keys[i], from, bytes)) return NULL;
        const fake_key_t *in = key_of_mr(keys[i].mr);
        return in->pages ? in->pages + (from - in->from) : (const uint8_t *)(uintptr_t)from;
    }
    return NULL;
}

/* ---- Completions ---- */

static void complete(struct ibv_cq *to, fake_qp_t *q, const struct ibv_wc *wc, uint32_t gives_back) {
    fake_cq_t *c = (fake_cq_t *)to;
    if (c->n == c->cap) breach("a completion queue is too short");
    c->wc[c->n] = *wc;
    c->wc[c->n].qp_num = q->qp.qp_num;
    c->of[c->n] = q;
    c->frees[c->n++] = gives_back;
    if (c->armed && eventfd_write(c->fd, 1) != 0) breach("eventfd");
    n_armed -= c->armed;
    c->armed = 0;
}

static void broken(fake_qp_t *q, enum ibv_wc_status first) {
    q->broken = 1;
    for (; q->n; q->n--, q->first = (q->first + 1) % q->cap) {
        struct ibv_wc wc = { .wr_id = q->sq[q->first].wr.wr_id, .status = first };
        complete(q->qp.send_cq, q, &wc, 0);
        first = IBV_WC_WR_FLUSH_ERR;
    }
}

static int arrive(fake_qp_t *q, const fake_work_t *w) {
    fake_srq_t *s = (fake_srq_t *)q->peer->qp.srq;
    uint32_t bytes = 0;
    if (!s->n) return 0; /* the adapter tries again */
    struct ibv_sge *to = &s->sge[s->first];
    local(to, IBV_ACCESS_LOCAL_WRITE);
    for (int i = 0; i < w->wr.num_sge; bytes += w->sge[i++].length) {
        int inlined = (w->wr.send_flags & IBV_SEND_INLINE) != 0;
        if (!inlined) local(&w->sge[i], 0);
        if (w->sge[i].length > to->length - bytes) breach("a message longer than the place for it");
        memcpy((uint8_t *)(uintptr_t)to->addr + bytes, inlined ? w->inlined : (void *)(uintptr_t)w->sge[i].addr,
               w->sge[i].length);
    }
    struct ibv_wc wc = { .wr_id = s->id[s->first], .byte_len = bytes, .opcode = IBV_WC_RECV };
    s->first = (s->first + 1) % RECVS_MAX;
    s->n--;
    complete(q->peer->qp.recv_cq, q->peer, &wc, 0);
    return 1;
}

static int fetched(fake_qp_t *q, fake_work_t *w) {
    if (++w->steps < READ_STEPS) return 0;
    const uint8_t *from = remote(q->peer, w->wr.wr.rdma.rkey, w->wr.wr.rdma.remote_addr, w->sge[0].length);
    if (!from) return -1;
    local(&w->sge[0], IBV_ACCESS_LOCAL_WRITE);
    memcpy((void *)(uintptr_t)w->sge[0].addr, from, w->sge[0].length);
    return 1;
}

static int bound(fake_qp_t *q, const struct ibv_send_wr *wr) {
    fake_key_t *k = key_of_mw(wr->bind_mw.mw), *in = key_of_mr(wr->bind_mw.bind_info.mr);
    if (k->mr || wr->bind_mw.rkey == k->key || wr->bind_mw.rkey >> 8 != k->key >> 8) return -1;
    if (!(in->access & IBV_ACCESS_MW_BIND) || !inside(in, wr->bind_mw.bind_info.addr, wr->bind_mw.bind_info.length))
        return -1;
    if (wr->bind_mw.bind_info.mw_access_flags != IBV_ACCESS_REMOTE_READ) breach("a window that peers may write to");
    k->mr = in->mr;
    k->qp = q;
    k->key = wr->bind_mw.rkey;
    k->from = wr->bind_mw.bind_info.addr;
    k->bytes = wr->bind_mw.bind_info.length;
    in->windows++;
    return 1;
}

static int closed(const fake_qp_t *q, uint32_t key) {
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        if (keys[i].mw && keys[i].mr && keys[i].key == key && keys[i].qp == q) return window_close(&keys[i]), 1;
    return -1;
}

/* 1: something was done. */
static int step(fake_qp_t *q) {
    if (!q->n || q->broken || !q->left) return 0;
    if (q->left != UINT32_MAX) q->left--;
    fake_work_t *w = &q->sq[q->first];
    struct ibv_wc wc = { .wr_id = w->wr.wr_id };
    int rc = -1;
    if (w->wr.opcode == IBV_WR_BIND_MW) rc = bound(q, &w->wr);
    else if (w->wr.opcode == IBV_WR_LOCAL_INV) rc = closed(q, w->wr.invalidate_rkey);
    else if (!q->peer || q->peer->broken) return broken(q, IBV_WC_RETRY_EXC_ERR), 1;
    else if (w->wr.opcode == IBV_WR_SEND) rc = arrive(q, w);
    else if (w->wr.opcode == IBV_WR_RDMA_READ) rc = fetched(q, w);
    else if (w->wr.opcode == IBV_WR_RDMA_WRITE && !w->wr.num_sge) rc = 1;
    if (rc == 0) return 0;
    if (rc < 0) return broken(q, IBV_WC_REM_ACCESS_ERR), 1;
    for (int i = 0; i < w->wr.num_sge; i++) q->moved += w->sge[i].length;
    q->first = (q->first + 1) % q->cap;
    q->n--;
    if (w->wr.send_flags & IBV_SEND_SIGNALED) complete(q->qp.send_cq, q, &wc, q->used - q->n);
    return 1;
}

/* 1: something was done. */
static int move(void) {
    int any = 0;
    for (fake_qp_t *q = qps; q; q = q->next)
        for (uint32_t i = 0; i < STEPS && step(q); i++) any = 1;
    return any;
}

static int poll_cq(struct ibv_cq *cq, int max, struct ibv_wc *out) {
    fake_cq_t *c = (fake_cq_t *)cq;
    int n = 0;
    (void)move();
    for (; n < max && (uint32_t)n < c->n; n++) {
        out[n] = c->wc[n];
        /* What was posted after it stays. */
        if (c->frees[n] && c->of[n]) c->of[n]->used = c->of[n]->used > c->frees[n] ? c->of[n]->used - c->frees[n] : 0;
        for (uint32_t k = (uint32_t)n + 1; k < c->n; k++)
            if (c->of[k] == c->of[n] && c->frees[k])
                c->frees[k] -= c->frees[n] < c->frees[k] ? c->frees[n] : c->frees[k];
    }
    c->n -= (uint32_t)n;
    memmove(c->wc, c->wc + n, c->n * sizeof *c->wc);
    memmove(c->frees, c->frees + n, c->n * sizeof *c->frees);
    memmove(c->of, c->of + n, c->n * sizeof(*c->of));
    return n;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited) {
    (void)solicited;
    n_armed += !((fake_cq_t *)cq)->armed;
    ((fake_cq_t *)cq)->armed = 1;
    return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    fake_qp_t *q = (fake_qp_t *)qp;
    *bad = wr;
    if (q->used >= q->cap) breach("a send queue is too short");
    if (wr->num_sge > 2) return EINVAL;
    fake_work_t *w = &q->sq[(q->first + q->n) % q->cap];
    w->wr = *wr;
    w->steps = 0;
    for (int i = 0; i < wr->num_sge; i++) w->sge[i] = wr->sg_list[i];
    if (wr->send_flags & IBV_SEND_INLINE) {
        if (w->sge[0].length > sizeof w->inlined) return EINVAL;
        memcpy(w->inlined, (void *)(uintptr_t)w->sge[0].addr, w->sge[0].length);
    }
    q->n++;
    q->used++;
    if (q->broken) broken(q, IBV_WC_WR_FLUSH_ERR);
    while (n_armed && move()) {}
    return 0;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    fake_srq_t *s = (fake_srq_t *)srq;
    uint32_t at = (s->first + s->n) % RECVS_MAX;
    *bad = wr;
    if (s->n == s->cap) breach("a receive queue is too short");
    s->sge[at] = wr->sg_list[0];
    s->id[at] = wr->wr_id;
    s->n++;
    return 0;
}

/* ---- What there is ---- */

struct ibv_device **ibv_get_device_list(int *n) {
    struct ibv_device **all = made((DEVICES + 1) * sizeof(*all));
    uint32_t have = fake_two_devices ? 2 : 1;
    for (uint32_t i = 0; i < have; i++) all[i] = &device[i];
    if (n) *n = (int)have;
    return all;
}
void ibv_free_device_list(struct ibv_device **all) { free(all); }
const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }

int ibv_fork_init(void) { return 0; }
enum ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }
const char *ibv_wc_status_str(enum ibv_wc_status status) {
    return status == IBV_WC_REM_ACCESS_ERR ? "remote access error" : "failed";
}

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a) {
    (void)c;
    *a = (struct ibv_device_attr){ .max_srq = 16,
                                   .max_srq_wr = fake_recvs ? (int)fake_recvs : (int)RECVS_MAX,
                                   .max_cqe = 1 << 20,
                                   .device_cap_flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B };
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) {
    struct ibv_pd *pd = made(sizeof *pd);
    pd->context = c;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd) {
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        if ((keys[i].mw && keys[i].mw->pd == pd) || (keys[i].mr && !keys[i].mw && keys[i].mr->pd == pd))
            breach("a region or window outlives its domain");
    free(pd);
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c) {
    struct ibv_comp_channel *ch = made(sizeof *ch);
    ch->context = c;
    ch->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return ch;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ch) {
    close(ch->fd);
    free(ch);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **user) {
    eventfd_t v;
    *cq = NULL;
    *user = NULL;
    return eventfd_read(ch->fd, &v);
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n) { (void)cq, (void)n; }

int ibv_resize_cq(struct ibv_cq *cq, int cqe) {
    fake_cq_t *c = (fake_cq_t *)cq;
    c->cap = (uint32_t)cqe;
    c->wc = realloc(c->wc, c->cap * sizeof *c->wc);
    c->frees = realloc(c->frees, c->cap * sizeof *c->frees);
    c->of = realloc(c->of, c->cap * sizeof(*c->of));
    if (!c->wc || !c->frees || !c->of) breach("no memory");
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *user, struct ibv_comp_channel *ch, int vector) {
    fake_cq_t *q = made(sizeof *q);
    (void)user, (void)vector;
    q->cq.context = c;
    q->fd = ch->fd;
    (void)ibv_resize_cq(&q->cq, cqe);
    return &q->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq) {
    fake_cq_t *c = (fake_cq_t *)cq;
    n_armed -= c->armed;
    free(c->wc);
    free(c->frees);
    free(c->of);
    free(c);
    return 0;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a) {
    fake_srq_t *s = made(sizeof *s);
    s->srq.context = pd->context;
    s->cap = a->attr.max_wr;
    return &s->srq;
}

int ibv_destroy_srq(struct ibv_srq *srq) {
    free(srq);
    return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init) {
    (void)qp, (void)mask, (void)init;
    *a = (struct ibv_qp_attr){ .max_rd_atomic = DEPTH, .max_dest_rd_atomic = DEPTH };
    return 0;
}

/* ---- Connections ---- */

static void tell(fake_id_t *id, fake_id_t *listener, enum rdma_cm_event_type type, int status, const void *data,
                 uint8_t len) {
    fake_event_t *v = made(sizeof *v), **tail = &events;
    v->e = (struct rdma_cm_event){ .id = &id->id, .event = type, .status = status };
    if (listener) v->e.listen_id = &listener->id;
    if (data && len <= sizeof v->data) {
        memcpy(v->data, data, len);
        v->e.param.conn.private_data = v->data;
        v->e.param.conn.private_data_len = len;
    }
    while (*tail) tail = &(*tail)->next;
    *tail = v;
    if (eventfd_write(id->id.channel->fd, 1) != 0) breach("eventfd");
}

struct rdma_event_channel *rdma_create_event_channel(void) {
    struct rdma_event_channel *ch = made(sizeof *ch);
    for (uint32_t i = 0; i < DEVICES; i++) {
        context[i].ops.poll_cq = poll_cq;
        context[i].ops.req_notify_cq = req_notify_cq;
        context[i].ops.post_send = post_send;
        context[i].ops.post_srq_recv = post_srq_recv;
        context[i].ops.alloc_mw = alloc_mw;
        context[i].ops.dealloc_mw = dealloc_mw;
    }
    ch->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return ch;
}

void rdma_destroy_event_channel(struct rdma_event_channel *ch) {
    close(ch->fd);
    free(ch);
}

int rdma_create_id(struct rdma_event_channel *ch, struct rdma_cm_id **out, void *user, enum rdma_port_space ps) {
    fake_id_t *id = made(sizeof *id);
    (void)ps;
    id->id.channel = ch;
    id->id.context = user;
    id->next = ids;
    ids = id;
    *out = &id->id;
    return 0;
}

int rdma_destroy_id(struct rdma_cm_id *which) {
    fake_id_t *id = (fake_id_t *)which, **at = &ids;
    if (which->qp) breach("a connection ends before its queue pair");
    while (*at != id) at = &(*at)->next;
    *at = id->next;
    if (id->other) id->other->other = NULL;
    for (fake_event_t **v = &events; *v;) {
        fake_event_t *gone = *v;
        if (gone->e.id != which) {
            v = &gone->next;
            continue;
        }
        *v = gone->next;
        free(gone);
    }
    free(id);
    return 0;
}

int rdma_bind_addr(struct rdma_cm_id *which, struct sockaddr *a) {
    fake_id_t *id = (fake_id_t *)which;
    if (ids == id && !id->next) n_binds = 0;
    which->verbs = &context[fake_two_devices ? n_binds++ % 2 : 0];
    memcpy(&which->route.addr.src_addr, a,
           a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    id->port = next_port++;
    which->route.addr.src_sin.sin_port = htons(id->port); /* in the same place for both families */
    return 0;
}

int rdma_listen(struct rdma_cm_id *which, int backlog) {
    (void)backlog;
    ((fake_id_t *)which)->listens = 1;
    return 0;
}

int rdma_resolve_addr(struct rdma_cm_id *which, struct sockaddr *src, struct sockaddr *dst, int ms) {
    const fake_id_t *l = ids;
    uint16_t port = ntohs(((struct sockaddr_in *)(void *)dst)->sin_port);
    (void)src, (void)ms;
    while (l && !(l->listens && l->port == port)) l = l->next;
    which->verbs = l ? l->id.verbs : &context[0];
    ((fake_id_t *)which)->port = port;
    tell((fake_id_t *)which, NULL, RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL, 0);
    return 0;
}

int rdma_resolve_route(struct rdma_cm_id *which, int ms) {
    (void)ms;
    tell((fake_id_t *)which, NULL, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, 0);
    return 0;
}

int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t len) {
    (void)id, (void)level, (void)name, (void)value, (void)len;
    return 0;
}

int rdma_create_qp(struct rdma_cm_id *which, struct ibv_pd *pd, struct ibv_qp_init_attr *a) {
    fake_qp_t *q = made(sizeof *q);
    q->qp = (struct ibv_qp){ .context = pd->context,
                             .pd = pd,
                             .send_cq = a->send_cq,
                             .recv_cq = a->recv_cq,
                             .srq = a->srq,
                             .qp_num = next_qpn++ };
    q->cap = a->cap.max_send_wr;
    q->left = UINT32_MAX;
    q->dialled = ((fake_id_t *)which)->other != NULL;
    q->sq = made(q->cap * sizeof *q->sq);
    q->next = qps;
    qps = q;
    which->qp = &q->qp;
    return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *which) {
    fake_qp_t *q = (fake_qp_t *)which->qp, **at = &qps;
    fake_cq_t *c = (fake_cq_t *)q->qp.send_cq;
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        if (keys[i].mw && keys[i].qp == q) breach("a queue pair ends before its windows");
    for (uint32_t i = 0; i < c->n; i++)
        if (c->of[i] == q) c->of[i] = NULL;
    if (q->peer) q->peer->peer = NULL;
    while (*at != q) at = &(*at)->next;
    *at = q->next;
    free(q->sq);
    free(q);
    which->qp = NULL;
}

int rdma_connect(struct rdma_cm_id *which, struct rdma_conn_param *p) {
    fake_id_t *id = (fake_id_t *)which, *l = ids;
    struct rdma_cm_id *made;
    while (l && !(l->listens && l->port == id->port)) l = l->next;
    if (!l) return tell(id, NULL, RDMA_CM_EVENT_REJECTED, 8, NULL, 0), 0;
    (void)rdma_create_id(l->id.channel, &made, NULL, RDMA_PS_TCP);
    made->verbs = l->id.verbs;
    id->other = (fake_id_t *)made;
    id->other->other = id;
    tell(id->other, l, RDMA_CM_EVENT_CONNECT_REQUEST, 0, p->private_data, p->private_data_len);
    return 0;
}

int rdma_accept(struct rdma_cm_id *which, struct rdma_conn_param *p) {
    fake_id_t *id = (fake_id_t *)which;
    if (!id->other || !id->other->id.qp) return errno = ECONNRESET, -1;
    fake_qp_t *here = (fake_qp_t *)which->qp, *there = (fake_qp_t *)id->other->id.qp;
    here->peer = there;
    there->peer = here;
    tell(id->other, NULL, RDMA_CM_EVENT_ESTABLISHED, 0, p->private_data, p->private_data_len);
    tell(id, NULL, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, 0);
    return 0;
}

int rdma_reject(struct rdma_cm_id *which, const void *data, uint8_t len) {
    fake_id_t *id = (fake_id_t *)which;
    if (id->other) tell(id->other, NULL, RDMA_CM_EVENT_REJECTED, 28, data, len);
    return 0;
}

int rdma_disconnect(struct rdma_cm_id *which) {
    fake_id_t *id = (fake_id_t *)which;
    if (id->other) tell(id->other, NULL, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0);
    return 0;
}

int rdma_get_cm_event(struct rdma_event_channel *ch, struct rdma_cm_event **out) {
    fake_event_t **at = &events;
    eventfd_t v;
    while (*at && (*at)->e.id->channel != ch) at = &(*at)->next;
    if (!*at) {
        (void)!eventfd_read(ch->fd, &v);
        return errno = EAGAIN, -1;
    }
    *out = &(*at)->e;
    *at = (*at)->next;
    return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *e) {
    free(e);
    return 0;
}
