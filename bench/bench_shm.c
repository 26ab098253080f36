/* bench_shm.c: what shared memory gives on this host, without the library above it.
 *   bench_shm                        the transport between two processes: half a round trip of small messages, and the
 *                                    exchange that an all-reduce of two members is made of, from ordinary memory and
 *                                    from regions that the other maps
 *   bench_shm --bare                 bare loops, no library at all: lines "collective ranks bytes buffers us"
 *   bench_shm --bare KIND BYTES N [ordinary|alloc]     one such figure, the microseconds alone
 * A bare loop knows everybody's addresses, agrees on nothing and survives nothing: process_vm_readv in pieces of
 * 128 KiB, add, process_vm_writev; or, where all buffers lie in one shared mapping, adding and copying. It is what
 * there is to reach. Inputs are written anew before each call; results are checked; a figure is the median of the
 * slowest. Relies on the static library for kernels and clock. */
#include "kernels/kernels.h"
#include "os/os.h"
#include "os/shared.h"
#include "regroup_transport.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern const rg_transport_t rg_transport_shm;
static const rg_transport_t *const T = &rg_transport_shm;

#define RANKS 16
#define CALLS 400
#define PIECE (128u << 10) /* of the way through private memory */
#define HOT (32u << 10)    /* of the way through shared mappings: written and copied on while it is in L1 */

typedef struct control {
    uint32_t arrived, turn, calls;
    pid_t pid[RANKS];
    char *in[RANKS], *out[RANKS]; /* ordinary: in each rank's own address space */
    double us[RANKS][CALLS];
    uint32_t wrong;
    uint8_t addr[2][RG_TP_ADDR_MAX];
    uint32_t addr_len[2], ready[2];
} control_t;

typedef struct rank {
    control_t *c;
    int me, n, alloc;
    size_t bytes;
    float *scratch;
    rg_red_t red;
} rank_t;

static const char *const kinds[] = { "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all" };
#define KINDS 5

static void die(const char *what) {
    fprintf(stderr, "bench_shm: %s\n", what);
    exit(1);
}

static void meet(control_t *c, int n) {
    uint32_t turn = __atomic_load_n(&c->turn, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&c->arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)n) {
        __atomic_store_n(&c->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&c->turn, turn + 1, __ATOMIC_RELEASE);
        return;
    }
    uint32_t cores = rg_os_cores();
    for (uint64_t i = 0; __atomic_load_n(&c->turn, __ATOMIC_ACQUIRE) == turn; i++)
        if ((uint32_t)n > cores || i > 2000) sched_yield();
}

/* ---- Bare loops ---- */

static void from_peer(const rank_t *r, int peer, const char *there, void *here, size_t n) {
    struct iovec local = { here, n }, remote = { (void *)(uintptr_t)there, n };
    if (process_vm_readv(r->c->pid[peer], &local, 1, &remote, 1, 0) != (ssize_t)n) die("process_vm_readv");
}

static void to_peer(const rank_t *r, int peer, char *there, const void *here, size_t n) {
    struct iovec local = { (void *)(uintptr_t)here, n }, remote = { there, n };
    if (process_vm_writev(r->c->pid[peer], &local, 1, &remote, 1, 0) != (ssize_t)n) die("process_vm_writev");
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Everybody's inputs at [at, at + n) into my output at `to`, and from there into the others' if they are to have it. */
static void reduce_piece(const rank_t *r, size_t at, size_t to, size_t n, int spread) {
    control_t *c = r->c;
    char *out = c->out[r->me] + to;
    for (int k = 1; k < r->n; k++) {
        int peer = (r->me + k) % r->n;
        const void *theirs = c->in[peer] + at;
        if (!r->alloc) {
            from_peer(r, peer, c->in[peer] + at, r->scratch, n);
            theirs = r->scratch;
        }
        rg_red_run(&r->red, out, k == 1 ? c->in[r->me] + at : out, theirs, n / 4);
    }
    for (int k = 1; spread && k < r->n; k++) {
        int peer = (r->me + k) % r->n;
        if (r->alloc) memcpy(c->out[peer] + to, out, n);
        else to_peer(r, peer, c->out[peer] + to, out, n);
    }
}

static void get(const rank_t *r, int peer, size_t at, size_t to, size_t n) {
    control_t *c = r->c;
    if (r->alloc || peer == r->me) memcpy(c->out[r->me] + to, c->in[peer] + at, n);
    else from_peer(r, peer, c->in[peer] + at, c->out[r->me] + to, n);
}

static void bare_call(const rank_t *r, int kind) {
    size_t seg = r->bytes / (size_t)r->n, piece = r->alloc ? HOT : PIECE, mine = seg * (size_t)r->me;
    if (kind == 0 || kind == 2)
        for (size_t at = 0; at < seg; at += piece)
            reduce_piece(r, mine + at, kind == 0 ? mine + at : at, least(piece, seg - at), kind == 0);
    for (int k = 0; k < r->n && (kind == 1 || kind == 4); k++) {
        int peer = (r->me + k) % r->n;
        get(r, peer, kind == 1 ? 0 : mine, seg * (size_t)peer, seg);
    }
    if (kind == 3 && r->me != 0) get(r, 0, 0, 0, r->bytes);
    meet(r->c, r->n); /* nobody's input may change, nor output be believed, before all are done */
}

static float value(int rank, uint32_t call, size_t i) {
    return (float)((i * 3 + (size_t)rank * 5 + call * 7) % 16 + 1);
}

static float want(const rank_t *r, int kind, uint32_t call, size_t i) {
    size_t seg = r->bytes / 4 / (size_t)r->n, mine = seg * (size_t)r->me;
    float sum = 0;
    if (kind == 1) return value((int)(i / seg), call, i % seg);
    if (kind == 3) return value(0, call, i);
    if (kind == 4) return value((int)(i / seg), call, mine + i % seg);
    for (int k = 0; k < r->n; k++) sum += value(k, call, kind == 2 ? mine + i : i);
    return sum;
}

static void write_input(const rank_t *r, uint32_t call) {
    float block[1024];
    for (size_t i = 0; i < 1024; i++) block[i] = value(r->me, call, i);
    for (size_t at = 0; at < r->bytes; at += sizeof block)
        memcpy(r->c->in[r->me] + at, block, least(sizeof block, r->bytes - at));
}

/* One core for each, where there are enough: what is measured is the way between cores. */
static cpu_set_t cores; /* as we found it */
static void pin(int rank) {
    cpu_set_t one;
    CPU_ZERO(&one);
    if (!CPU_COUNT(&cores)) return;
    rank %= CPU_COUNT(&cores);
    for (int cpu = 0, k = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cores) && k++ == rank) CPU_SET(cpu, &one);
    if (CPU_COUNT(&one)) sched_setaffinity(0, sizeof one, &one);
}

static void bare_rank(rank_t *r, int kind, double budget_us) {
    control_t *c = r->c;
    uint32_t calls = 3;
    if (rg_red_init(&r->red, RG_F32, RG_SUM, (uint32_t)r->n, 0) != RG_OK) die("kernel");
    r->scratch = aligned_alloc(4096, PIECE);
    if (!r->scratch) die("memory");
    pin(r->me);
    c->pid[r->me] = getpid();
    if (!r->alloc) {
        char *p = mmap(NULL, 2 * r->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (p == MAP_FAILED) die("memory");
        c->in[r->me] = p;
        c->out[r->me] = p + r->bytes;
    }
    for (uint32_t i = 0; i < calls; i++) {
        meet(c, r->n);
        write_input(r, i);
        meet(c, r->n);
        uint64_t t = rg_os_now_ns();
        bare_call(r, kind);
        c->us[r->me][i] = (double)(rg_os_now_ns() - t) * 1e-3;
        if (i == 2 && calls == 3) { /* warm: rank 0 says how many the time allows */
            meet(c, r->n);
            if (r->me == 0) c->calls = (uint32_t)(budget_us / (c->us[0][2] * 2)) + 5;
            if (r->me == 0 && c->calls > CALLS) c->calls = CALLS;
            meet(c, r->n);
            calls = c->calls < 5 ? 5 : c->calls;
        }
    }
    size_t len = r->bytes / 4 / (kind == 2 ? (size_t)r->n : 1);
    const float *out = (const float *)(const void *)c->out[r->me];
    for (size_t i = 0; i < len && !(kind == 3 && r->me == 0); i += 1 + i / 999)
        if (out[i] != want(r, kind, calls - 1, i)) c->wrong = 1;
}

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double bare(int kind, size_t bytes, int n, int alloc, double budget_us) {
    control_t *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c == MAP_FAILED) die("memory");
    size_t all = 2 * bytes * (size_t)n;
    char *shared = NULL;
    if (alloc) {
        shared = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (shared == MAP_FAILED) die("memory");
        for (int k = 0; k < n; k++) {
            c->in[k] = shared + 2 * bytes * (size_t)k;
            c->out[k] = c->in[k] + bytes;
        }
    }
    pid_t parent = getpid(), child[RANKS];
    for (int k = 1; k < n; k++)
        if ((child[k] = fork()) == 0) {
            rank_t r = { .c = c, .me = k, .n = n, .alloc = alloc, .bytes = bytes };
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(1);
            bare_rank(&r, kind, budget_us);
            _exit(0);
        }
    rank_t r = { .c = c, .me = 0, .n = n, .alloc = alloc, .bytes = bytes };
    bare_rank(&r, kind, budget_us);
    int bad = (int)c->wrong;
    for (int k = 1; k < n; k++) {
        int status = 0;
        waitpid(child[k], &status, 0);
        bad |= status;
    }
    if (bad) die("a bare loop gave a wrong result, or a rank ended early");
    uint32_t calls = c->calls < 5 ? 5 : c->calls;
    for (uint32_t i = 0; i < calls; i++)
        for (int k = 1; k < n; k++)
            if (c->us[k][i] > c->us[0][i]) c->us[0][i] = c->us[k][i];
    qsort(c->us[0] + 2, calls - 2, sizeof(double), by_time); /* the first two warm up */
    double us = c->us[0][2 + (calls - 2) / 2];
    if (!alloc) munmap(c->in[0], 2 * bytes);
    if (shared) munmap(shared, all);
    munmap(c, sizeof *c);
    free(r.scratch);
    return us;
}

static int all_bare(void) {
    static const size_t sizes[] = { 64, 4096, 65536, 1 << 20, 16 << 20, 256 << 20 };
    for (int kind = 0; kind < KINDS; kind++)
        for (int n = 2; n <= 8; n *= 2)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
                for (int alloc = 0; alloc < 2; alloc++) {
                    double room = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
                    if ((double)sizes[s] * 2.5 * n > room) continue;
                    printf("%s %d %zu %s %.2f\n", kinds[kind], n, sizes[s], alloc ? "alloc" : "ordinary",
                           bare(kind, sizes[s], n, alloc, 60000));
                    fflush(stdout);
                }
    return 0;
}

static int one_bare(int argc, char **argv) {
    int kind = 0, n = argc > 4 ? atoi(argv[4]) : 2;
    size_t bytes = strtoull(argv[3], NULL, 10);
    while (kind < KINDS && strcmp(argv[2], kinds[kind]) != 0) kind++;
    int alloc = argc > 5 && strcmp(argv[5], "alloc") == 0;
    if (kind == KINDS || n < 2 || n > RANKS || bytes < 4u * (unsigned)n || bytes % (4u * (unsigned)n) ||
        (argc > 5 && !alloc && strcmp(argv[5], "ordinary") != 0))
        die("--bare KIND BYTES N [ordinary|alloc]: KIND is all_reduce, all_gather, reduce_scatter, broadcast or "
            "all_to_all, N from 2 to 16, BYTES a multiple of 4 N");
    printf("%.2f\n", bare(kind, bytes, n, alloc, 200000));
    return 0;
}

/* ---- The transport ---- */

static int pump(rg_tp_t *tp) {
    rg_completion_t c[16];
    int n = T->poll(tp, c, 16), ends = 0;
    for (int i = 0; i < n; i++) {
        if (c[i].event == RG_TP_LINK_DOWN || c[i].event == RG_TP_FAILED)
            die(c[i].text ? c[i].text : "a message failed");
        ends += c[i].event == RG_TP_SENT || c[i].event == RG_TP_RECEIVED || c[i].event == RG_TP_LINK_UP;
    }
    return ends;
}

static void post(rg_tp_t *tp, const rg_red_t *red, void *dst, const void *a, size_t n, uint64_t op, int *left) {
    rg_tp_recv_t r = { .tag = { 1, 0, op, 0, 7 }, .len = n, .dst = dst };
    if (red) {
        r.a = a;
        r.reduce = rg_red_run;
        r.reduce_ctx = red;
        r.wire_elem = r.dst_elem = r.a_elem = 4;
        r.anywhere = 1;
    }
    int st = T->recv(tp, 0, &r);
    if (st < 0) die("recv");
    *left += st != RG_TP_DONE_NOW;
}

static void put(rg_tp_t *tp, const void *buf, size_t n, uint64_t op, int *left) {
    rg_tp_send_t s = { .tag = { 1, 0, op, 0, 7 }, .buf = buf, .len = n };
    int st = T->send(tp, 0, &s);
    if (st < 0) die("send");
    *left += st != RG_TP_DONE_NOW;
}

/* Gives way after a while, as an engine does: whom it waits for may need this core. */
static void wait_for(rg_tp_t *tp, int left) {
    for (int idle = 0; left > 0;) {
        int n = pump(tp);
        left -= n;
        idle = n ? 0 : idle + 1;
        if (idle > 100) sched_yield();
    }
}

static void ping_pong(control_t *c, rg_tp_t *tp, int me, size_t n, int rounds, uint64_t *op) {
    char *buf = calloc(1, n);
    if (!buf) die("memory");
    meet(c, 2);
    uint64_t t = rg_os_now_ns();
    for (int i = 0; i < rounds; i++)
        for (int turn = 0; turn < 2; turn++) {
            int left = 0;
            if (turn == me) put(tp, buf, n, (*op)++, &left);
            else post(tp, NULL, buf, NULL, n, (*op)++, &left);
            wait_for(tp, left);
        }
    if (me == 0)
        printf("%10zu bytes, one way            %9.2f us\n", n, (double)(rg_os_now_ns() - t) * 1e-3 / rounds / 2);
    free(buf);
}

/* Two members' all-reduce: each reduces its half and hands the result to the other. */
static void exchange(control_t *c, rg_tp_t *tp, int me, size_t bytes, int alloc, int rounds, uint64_t *op) {
    float *in, *out;
    rg_red_t red;
    double *us = calloc((size_t)rounds, sizeof *us);
    if (!us || rg_red_init(&red, RG_F32, RG_SUM, 2, 0) != RG_OK) die("kernel");
    if (alloc) {
        void *p = NULL, *q = NULL;
        if (rg_shared_alloc(bytes, 0, &p, NULL) != RG_OK || rg_shared_alloc(bytes, 0, &q, NULL) != RG_OK) die("memory");
        in = p;
        out = q;
    } else {
        in = aligned_alloc(4096, bytes < 4096 ? 4096 : bytes);
        out = aligned_alloc(4096, bytes < 4096 ? 4096 : bytes);
        if (!in || !out) die("memory");
        memset(out, 0, bytes);
    }
    size_t half = bytes / 2, e = half / 4;
    float *my_in = in + (me ? e : 0), *my_out = out + (me ? e : 0), *other = me ? out : out + e;
    for (int i = 0; i < rounds; i++) {
        int left = 0;
        for (size_t k = 0; k < bytes / 4; k++) in[k] = (float)(i + me + (int)(k & 7));
        meet(c, 2);
        uint64_t t = rg_os_now_ns();
        post(tp, &red, my_out, my_in, half, *op, &left);
        put(tp, me ? in : in + e, half, *op, &left);
        wait_for(tp, left);
        (*op)++;
        left = 0;
        post(tp, NULL, other, NULL, half, *op, &left);
        put(tp, my_out, half, *op, &left);
        wait_for(tp, left);
        (*op)++;
        us[i] = (double)(rg_os_now_ns() - t) * 1e-3;
        for (size_t k = 0; k < bytes / 4; k += 1 + k / 777)
            if (out[k] != (float)(2 * i + 1 + 2 * (int)(k & 7))) die("a sum is wrong");
    }
    qsort(us, (size_t)rounds, sizeof *us, by_time);
    if (me == 0)
        printf("%10zu bytes, reduced by two  %9.2f us, least %9.2f us, %s\n", bytes, us[rounds / 2], us[0],
               alloc ? "regions" : "ordinary memory");
    meet(c, 2);
    if (alloc) rg_shared_free(in), rg_shared_free(out);
    else free(in), free(out);
    free(us);
}

static int transport(void) {
    rg_config_t cfg = RG_CONFIG_INIT;
    control_t *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c == MAP_FAILED) die("memory");
    pid_t child = fork();
    int me = child == 0;
    uint64_t op = 0;
    rg_tp_config_t tc = { .config = &cfg, .identity = { (uint8_t)(me + 1) }, .nonce = { 9 } };
    rg_tp_t *tp;
    rg_error_t err = { 0 };
    if (me) prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(me);
    if (T->open(&tc, &tp, c->addr[me], &c->addr_len[me], &err) != RG_OK) die(err.text);
    meet(c, 2);
    rg_tp_peer_t peer = { .identity = { (uint8_t)(!me + 1) },
                          .addr = c->addr[!me],
                          .addr_len = c->addr_len[!me],
                          .dial = (uint32_t)me,
                          .timeout_ms = 5000 };
    if (T->connect(tp, 0, &peer, &err) != RG_OK) die(err.text);
    wait_for(tp, 1);
    static const size_t small[] = { 8, 64, 1024, 4096, 8192, 16384, 32768, 65536 };
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) ping_pong(c, tp, me, small[i], 20000, &op);
    for (size_t bytes = 8192; bytes <= 64 << 20; bytes *= bytes < 1 << 20 ? 2 : 8)
        for (int alloc = 0; alloc < 2; alloc++)
            exchange(c, tp, me, bytes, alloc, bytes <= 1 << 20 ? 400 : bytes <= 16 << 20 ? 40 : 7, &op);
    meet(c, 2);
    T->close(tp);
    if (me) _exit(0);
    int status = 0;
    waitpid(child, &status, 0);
    return status != 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (sched_getaffinity(0, sizeof cores, &cores) != 0) CPU_ZERO(&cores);
    if (argc == 1) return transport();
    if (strcmp(argv[1], "--bare") == 0 && argc == 2) return all_bare();
    if (strcmp(argv[1], "--bare") == 0 && argc >= 4) return one_bare(argc, argv);
    printf("usage: bench_shm\n"
           "           the shared memory transport between two processes\n"
           "       bench_shm --bare\n"
           "           loops without a library; lines: KIND RANKS BYTES ordinary|alloc MICROSECONDS\n"
           "       bench_shm --bare KIND BYTES RANKS [ordinary|alloc]\n"
           "           one of them: the microseconds alone. BYTES are those of the whole vector.\n");
    return strcmp(argv[1], "--help") == 0 ? 0 : 2;
}
