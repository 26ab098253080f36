/* bench_state.c: what shared states cost: the hash pass beside what the machine reads, a sync of equal states, one
 * changed byte in a large state, and a newcomer that needs all of it, from one, two and three donors, beside a
 * broadcast of as many bytes. Members are threads with groups of their own. Relies on the library's internals for the
 * hash pass alone. It must not check results beyond their status: that is what the tests are for. */
#include "state/state.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (1u << 20)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What this thread itself used. */
static double used(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static uint64_t sum_of(const uint64_t *p, uint64_t words) {
    uint64_t a[8] = { 0 };
    for (uint64_t i = 0; i + 8 <= words; i += 8)
        for (int k = 0; k < 8; k++) a[k] += p[i + (uint64_t)k];
    for (int k = 1; k < 8; k++) a[0] += a[k];
    return a[0];
}

static int hash_pass(uint64_t bytes) {
    rg_state_t *s = NULL;
    uint64_t *p = malloc(bytes);
    double hash[5], sum[5];
    uint64_t sink = 0;
    if (!p || rg_state_create(&s, NULL) != RG_OK || rg_state_add(s, "w", p, bytes, RG_U8, NULL) != RG_OK) {
        rg_state_destroy(s);
        free(p);
        return 1;
    }
    for (uint64_t i = 0; i < bytes / 8; i++) p[i] = i * 0x9e3779b97f4a7c15u;
    for (int k = 0; k < 5; k++) {
        double a = used();
        rg_state_hash(s, 0);
        double b = used();
        sink += sum_of(p, bytes / 8);
        hash[k] = b - a;
        sum[k] = used() - b;
    }
    double h = median(hash, 5), r = median(sum, 5);
    printf("hash pass over %llu MiB, one core: %.1f GB/s; a loop that only reads: %.1f GB/s\n",
           (unsigned long long)(bytes / MIB), (double)bytes / h / 1e9, (double)bytes / r / 1e9);
    if (sink == 1) puts(""); /* the sums are wanted */
    rg_state_destroy(s);
    free(p);
    return 0;
}

/* ---- Members ----------------------------------------------------------------------------------------------------- */

typedef struct member {
    pthread_t thread;
    uint32_t index, n, failed;
    uint64_t bytes;
    const char *address, *transport;
    double equal_ms, byte_ms, fetch_gbs, broadcast_gbs;
    rg_state_result_t byte, fetch;
} member_t;

static rg_status_t sync_now(rg_group_t *g, rg_state_t *s, rg_state_result_t *r, double *seconds) {
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    o.in_place = RG_ON;
    rg_status_t st = rg_barrier(g, NULL, NULL);
    double start = now();
    if (st == RG_OK) st = rg_state_sync(g, s, &o, r);
    *seconds = now() - start;
    return st;
}

static int measure(member_t *m, rg_group_t *g, rg_state_t *s, uint8_t *p) {
    double t;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    memset(p, 1, m->bytes);
    rg_state_set_revision(s, 1);
    if (sync_now(g, s, &r, &t) != RG_OK) return 1;
    m->equal_ms = t * 1e3;
    if (m->index == m->n - 1) p[m->bytes / 2] ^= 1;
    m->byte = r;
    if (sync_now(g, s, &m->byte, &t) != RG_OK) return 1;
    m->byte_ms = t * 1e3;
    if (m->index == m->n - 1) { /* a newcomer */
        memset(p, 2, m->bytes);
        rg_state_set_revision(s, 0);
    }
    m->fetch = r;
    if (sync_now(g, s, &m->fetch, &t) != RG_OK) return 1;
    m->fetch_gbs = (double)m->bytes / (t - (double)m->fetch.hash_ns * 1e-9) / 1e9;
    if (rg_barrier(g, NULL, NULL) != RG_OK) return 1;
    double start = now();
    if (rg_broadcast(g, p, m->bytes, RG_U8, 0, NULL, NULL) != RG_OK) return 1;
    m->broadcast_gbs = (double)m->bytes / (now() - start) / 1e9;
    return 0;
}

static void *run(void *arg) {
    member_t *m = arg;
    rg_group_t *g = NULL;
    rg_state_t *s = NULL;
    rg_error_t err = { RG_OK, 0, "" };
    rg_config_t c = RG_CONFIG_INIT;
    uint8_t *p = malloc(m->bytes);
    c.coordinator = m->address;
    c.transport = m->transport;
    c.min_size = m->n;
    c.order = m->index + 1;
    m->failed = !p || rg_group_join(&c, &g, &err) != RG_OK || rg_state_create(&s, &err) != RG_OK ||
                rg_state_add(s, "w", p, m->bytes, RG_U8, &err) != RG_OK || measure(m, g, s, p);
    if (m->failed) {
        char text[256] = "";
        if (g) rg_group_errmsg(g, text, sizeof text);
        fprintf(stderr, "member %u: %s %s\n", m->index, err.text, text);
    }
    rg_group_leave(g);
    rg_group_destroy(g);
    rg_state_destroy(s);
    free(p);
    return NULL;
}

static int group(uint32_t n, uint64_t bytes, const char *transport) {
    member_t m[8] = { 0 };
    rg_coordinator_t *co;
    rg_error_t err = { RG_OK, 0, "" };
    if (rg_coordinator_start(NULL, &co, &err) != RG_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int failed = 0;
    for (uint32_t i = 0; i < n; i++) {
        m[i] = (member_t){ .index = i, .n = n, .bytes = bytes, .transport = transport };
        m[i].address = rg_coordinator_address(co);
        if (pthread_create(&m[i].thread, NULL, run, &m[i])) return 1;
    }
    for (uint32_t i = 0; i < n; i++) pthread_join(m[i].thread, NULL);
    for (uint32_t i = 0; i < n; i++) failed |= (int)m[i].failed;
    rg_coordinator_stop(co);
    if (failed) return 1;
    const member_t *last = &m[n - 1];
    printf("%-6s %u members, %llu MiB: equal %.1f ms; one byte %.1f ms (hash pass %.1f ms, %llu piece, %llu bytes to "
           "compare); newcomer from %u donors %.2f GB/s (%llu MiB), broadcast %.2f GB/s\n",
           transport, n, (unsigned long long)(bytes / MIB), last->equal_ms, last->byte_ms,
           (double)last->byte.hash_ns * 1e-6, (unsigned long long)last->byte.pieces_received,
           (unsigned long long)last->byte.compare_bytes, n - 1, last->fetch_gbs,
           (unsigned long long)(last->fetch.bytes_received / MIB), last->broadcast_gbs);
    return 0;
}

int main(int argc, char **argv) {
    uint64_t mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 256;
    if (mib < 1 || mib > 1u << 20) {
        fprintf(stderr, "usage: bench_state [MiB of state per member; 256]\n");
        return 2;
    }
    int failed = hash_pass(mib * MIB);
    static const char *transports[] = { "tcp", "auto" };
    for (int t = 0; t < 2 && !failed; t++)
        for (uint32_t n = 2; n <= 4 && !failed; n++) failed = group(n, mib * MIB, transports[t]);
    return failed;
}
