/* bench_tcp.c: what the TCP transport alone reaches between two processes over loopback, through the transport table:
 * the exchange that an all-reduce of two members is made of (each sends its half and reduces the other's into its own).
 * Relies on the static library. It checks the sums of the last round and exits non-zero when they are wrong.
 * Usage: bench_tcp [rails] */
#include "kernels/kernels.h"
#include "os/os.h"
#include "regroup_transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern const rg_transport_t rg_transport_tcp;
static const rg_transport_t *const T = &rg_transport_tcp;

typedef struct shared {
    uint8_t addr[2][RG_TP_ADDR_MAX];
    uint32_t len[2];
    int ready[2];
} shared_t;

static void die(const char *what) {
    fprintf(stderr, "bench_tcp: %s\n", what);
    exit(1);
}

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

/* One exchange of `bytes` in pieces of `chunk`: receives are posted first, as an engine does it. */
static void exchange(rg_tp_t *tp, const rg_red_t *red, const char *out, float *acc, size_t bytes, size_t chunk,
                     uint64_t op) {
    int left = 0;
    uint32_t ord = 0;
    for (size_t at = 0; at < bytes; at += chunk, ord++) {
        rg_tp_recv_t r = { .tag = { 1, 0, op, ord, 7 },
                           .len = bytes - at < chunk ? bytes - at : chunk,
                           .dst = (char *)acc + at,
                           .a = (char *)acc + at,
                           .reduce = rg_red_run,
                           .reduce_ctx = red,
                           .wire_elem = 4,
                           .dst_elem = 4,
                           .a_elem = 4 };
        int st = T->recv(tp, 0, &r);
        if (st < 0) die("recv");
        left += st != RG_TP_DONE_NOW;
    }
    ord = 0;
    for (size_t at = 0; at < bytes; at += chunk, ord++) {
        rg_tp_send_t s = { .tag = { 1, 0, op, ord, 7 },
                           .buf = out + at,
                           .len = bytes - at < chunk ? bytes - at : chunk };
        int st = T->send(tp, 0, &s);
        if (st < 0) die("send");
        left += st != RG_TP_DONE_NOW;
    }
    while (left > 0) left -= pump(tp);
}

static double cpu_s(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Waits until the other side has come as far. */
static void meet(rg_tp_t *tp, uint64_t op) {
    rg_tp_recv_t r = { .tag = { 1, 0, op, 0, 8 } };
    rg_tp_send_t s = { .tag = { 1, 0, op, 0, 8 } };
    int left = (T->recv(tp, 0, &r) != RG_TP_DONE_NOW) + (T->send(tp, 0, &s) != RG_TP_DONE_NOW);
    while (left > 0) left -= pump(tp);
}

static void measure(rg_tp_t *tp, int me, size_t bytes, size_t chunk, int rounds) {
    static uint64_t op;
    rg_red_t red;
    if (rg_red_init(&red, RG_F32, RG_SUM, 2, 0) != RG_OK) die("kernel");
    float *out = malloc(bytes), *acc = malloc(bytes);
    double *t = malloc((size_t)rounds * sizeof *t);
    if (!out || !acc || !t) die("memory");
    for (size_t i = 0; i < bytes / 4; i++) out[i] = 1, acc[i] = 0;
    for (int i = 0; i < 3; i++) exchange(tp, &red, (char *)out, acc, bytes, chunk, op++);
    double c0 = cpu_s();
    for (int i = 0; i < rounds; i++) {
        uint64_t t0 = rg_os_now_ns();
        exchange(tp, &red, (char *)out, acc, bytes, chunk, op++);
        t[i] = (double)(rg_os_now_ns() - t0) * 1e-3;
    }
    double cpu = (cpu_s() - c0) / rounds;
    /* Neither goes on, or away, while the other still measures. */
    meet(tp, op++);
    for (size_t i = 0; i < bytes / 4; i++)
        if (acc[i] != (float)(rounds + 3)) die("a sum is wrong");
    qsort(t, (size_t)rounds, sizeof *t, by_time);
    double median = t[rounds / 2];
    if (me == 0)
        printf("%10zu bytes, pieces of %8zu: median %10.1f us, least %10.1f us, %6.2f GB/s each way, %5.2f CPU s/GB "
               "and end\n",
               bytes, chunk, median, t[0], (double)bytes / median * 1e-3, cpu / (double)bytes * 1e9);
    free(out);
    free(acc);
    free(t);
}

int main(int argc, char **argv) {
    rg_config_t cfg = RG_CONFIG_INIT;
    cfg.interface = "lo";
    cfg.rails = argc > 1 ? (uint32_t)atoi(argv[1]) : 1;
    cfg.heartbeat_ms = 2000;
    shared_t *sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (sh == MAP_FAILED) die("mmap");
    pid_t child = fork();
    int me = child == 0;
    rg_tp_config_t tc = { .config = &cfg, .identity = { (uint8_t)(me + 1) }, .nonce = { 9 } };
    rg_tp_t *tp;
    rg_error_t err = { 0 };
    if (T->open(&tc, &tp, sh->addr[me], &sh->len[me], &err) != RG_OK) die(err.text);
    __atomic_store_n(&sh->ready[me], 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&sh->ready[!me], __ATOMIC_ACQUIRE)) usleep(100);
    rg_tp_peer_t peer = { .identity = { (uint8_t)(!me + 1) },
                          .addr = sh->addr[!me],
                          .addr_len = sh->len[!me],
                          .dial = (uint32_t)me,
                          .timeout_ms = 5000 };
    if (T->connect(tp, 0, &peer, &err) != RG_OK) die(err.text);
    while (pump(tp) == 0)
        ;
    measure(tp, me, 64, 64, 20000);
    measure(tp, me, 4096, 4096, 20000);
    measure(tp, me, 65536, 65536, 3000);
    measure(tp, me, 512 << 10, 512 << 10, 500);
    measure(tp, me, 8 << 20, 256 << 10, 40);
    measure(tp, me, 64 << 20, 512 << 10, 8);
    if (me) {
        T->close(tp);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    T->close(tp);
    return status != 0;
}
