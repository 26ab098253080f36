/* bench_quorum.c: what a member that is stopped costs the others. N processes compute for a while (they sleep) and then
 * merge by quorum, again and again; one is stopped by SIGSTOP in the middle and continued. Says how many steps a second
 * the others made before, meanwhile and after, how long merges waited, and whether all results were alike. Usage:
 *   bench_quorum [members 4] [K 2] [stopped rank 3] [stop s 30] [step ms 20] [grace ms 10] [heartbeat ms 2000]
 * [elements 10000] [takeover ms 0: the default; -1: never] With a heartbeat longer than the stop the stopped member
 * stays in the group and catches up. It relies on nothing but the public interface. The last line is JSON. */
#include "regroup.h"
#include "regroup_quorum.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MEMBERS 16
#define ROUNDS 200000

typedef struct shared {
    volatile int end;
    volatile uint64_t steps[MEMBERS]; /* merged */
    volatile uint64_t worst_wait_ns;  /* of the merges, since it was reset */
    volatile uint32_t included[MEMBERS];
    uint64_t hash[MEMBERS][ROUNDS];
} shared_t;

static int number(int argc, char **argv, int at, int fallback) { return argc > at ? atoi(argv[at]) : fallback; }

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pause_ns(uint64_t ns) {
    struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
    nanosleep(&t, NULL);
}

static uint64_t hash_of(const float *x, uint64_t n, const rg_quorum_result_t *r) {
    uint64_t h = 14695981039346656037u ^ r->contributors ^ r->decided_by << 8;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t b;
        memcpy(&b, &x[i], sizeof b);
        h = (h ^ b) * 1099511628211u;
    }
    return h | 1;
}

static int steps(rg_quorum_t *q, shared_t *s, uint32_t rank, uint64_t count, uint64_t step_ns) {
    float *x = malloc(count * sizeof *x), *out = malloc(count * sizeof *out);
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    rg_status_t st = x && out ? RG_OK : RG_ERR_NOMEM;
    while (!s->end && st == RG_OK) {
        if (r.newest <= r.round) pause_ns(step_ns);
        for (uint64_t i = 0; i < count; i++) x[i] = (float)(rank + 1) + (float)(i % 10) / 16;
        const float *in = r.newest > r.round ? NULL : x; /* first what it lacks */
        st = rg_quorum_reduce(q, in, out, NULL, 60000, &r);
        if (st == RG_ERR_RESOURCE) { /* far behind: a real program brings its parameters up to date here */
            st = rg_quorum_seek(q, r.newest + 1);
            r.newest = 0;
            continue;
        }
        if (st != RG_OK || s->end) break; /* some have left by now: what they saw last they may have seen alone */
        if (r.round < ROUNDS) s->hash[rank][r.round] = hash_of(out, count, &r);
        s->included[rank] += r.included;
        if (r.waited_ns > s->worst_wait_ns) s->worst_wait_ns = r.waited_ns;
        s->steps[rank]++;
    }
    if (st != RG_OK && !s->end) fprintf(stderr, "member %u: %s: %s\n", rank, rg_status_name(st), r.text);
    free(x);
    free(out);
    return st == RG_OK || s->end ? 0 : 2;
}

static int member(const char *address, uint32_t n, uint32_t rank, shared_t *s, const rg_quorum_config_t *c,
                  uint64_t step_ns) {
    rg_config_t config = RG_CONFIG_INIT;
    rg_group_t *g;
    rg_quorum_t *q;
    rg_error_t err;
    config.coordinator = address;
    config.min_size = n;
    config.order = rank + 1;
    if (rg_group_join(&config, &g, &err) != RG_OK || rg_quorum_create(g, c, &q, &err) != RG_OK) {
        fprintf(stderr, "member %u: %s\n", rank, err.text);
        return 1;
    }
    int rc = steps(q, s, rank, c->count, step_ns);
    while (!s->end) pause_ns(10000000);
    rg_quorum_destroy(q);
    rg_group_destroy(g);
    return rc;
}

/* Steps a second of the others during `seconds`. */
static double rate(const shared_t *s, uint32_t n, uint32_t without, double seconds, uint64_t *worst) {
    uint64_t was = 0, is = 0, t = now_ns();
    ((shared_t *)(uintptr_t)s)->worst_wait_ns = 0;
    for (uint32_t i = 0; i < n; i++) was += i == without ? 0 : s->steps[i];
    pause_ns((uint64_t)(seconds * 1e9));
    for (uint32_t i = 0; i < n; i++) is += i == without ? 0 : s->steps[i];
    *worst = s->worst_wait_ns;
    return (double)(is - was) / (n - 1) / ((double)(now_ns() - t) / 1e9);
}

static uint64_t differing(const shared_t *s, uint32_t n, uint64_t *rounds) {
    uint64_t differ = 0;
    for (uint64_t r = 1; r < ROUNDS; r++) {
        uint64_t h = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (s->hash[i][r] && h && s->hash[i][r] != h) {
                fprintf(stderr, "round %llu differs at member %u\n", (unsigned long long)r, i);
                differ++;
            }
            if (s->hash[i][r]) h = s->hash[i][r];
        }
        *rounds += h != 0;
    }
    return differ;
}

int main(int argc, char **argv) {
    uint32_t n = (uint32_t)number(argc, argv, 1, 4), k = (uint32_t)number(argc, argv, 2, 2);
    uint32_t stopped = (uint32_t)number(argc, argv, 3, 3), stop_s = (uint32_t)number(argc, argv, 4, 30);
    uint32_t step_ms = (uint32_t)number(argc, argv, 5, 20), grace_ms = (uint32_t)number(argc, argv, 6, 10);
    uint32_t heartbeat_ms = (uint32_t)number(argc, argv, 7, 2000), count = (uint32_t)number(argc, argv, 8, 10000);
    shared_t *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    rg_coordinator_config_t cc = RG_COORDINATOR_CONFIG_INIT;
    rg_quorum_config_t c = RG_QUORUM_CONFIG_INIT;
    rg_coordinator_t *co;
    rg_error_t err;
    pid_t pid[MEMBERS];
    if (s == MAP_FAILED || n < 2 || n > MEMBERS || stopped >= n || k > n) return 2;
    c.count = count;
    c.op = RG_AVG;
    c.at_least = k;
    c.grace_us = grace_ms * 1000;
    int takeover_ms = number(argc, argv, 9, 0);
    c.takeover_us = takeover_ms < 0 ? RG_QUORUM_NO_TAKEOVER : (uint32_t)takeover_ms * 1000;
    cc.heartbeat_ms = heartbeat_ms;
    int pipes[2];
    char address[128];
    if (pipe(pipes)) return 1;
    for (uint32_t i = 0; i < n; i++)
        if ((pid[i] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            ssize_t got = read(pipes[0], address, sizeof address);
            _exit(got == sizeof address ? member(address, n, i, s, &c, step_ms * 1000000ull) : 1);
        }
    if (rg_coordinator_start(&cc, &co, &err) != RG_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    snprintf(address, sizeof address, "%s", rg_coordinator_address(co));
    for (uint32_t i = 0; i < n; i++)
        if (write(pipes[1], address, sizeof address) != sizeof address) return 1;
    uint64_t worst[3], begin = now_ns();
    while (s->steps[0] < 10 && now_ns() - begin < 20000000000u) pause_ns(1000000);
    double before = rate(s, n, stopped, stop_s > 10 ? 10 : stop_s, &worst[0]);
    kill(pid[stopped], SIGSTOP);
    double during = rate(s, n, stopped, stop_s, &worst[1]);
    uint32_t included = s->included[stopped];
    kill(pid[stopped], SIGCONT);
    double after = rate(s, n, stopped, stop_s > 10 ? 10 : stop_s, &worst[2]);
    uint64_t rounds = 0;
    uint32_t back = s->included[stopped] - included;
    s->end = 1;
    for (uint32_t i = 0; i < n; i++) waitpid(pid[i], NULL, 0);
    uint64_t differ = differing(s, n, &rounds);
    printf("steps a second: %.1f before, %.1f while member %u was stopped for %u s (%.1f %%), %.1f after\n", before,
           during, stopped, stop_s, 100 * during / before, after);
    printf("longest wait of a merge: %.1f ms before, %.1f ms meanwhile, %.1f ms after; grace %u ms\n",
           (double)worst[0] / 1e6, (double)worst[1] / 1e6, (double)worst[2] / 1e6, grace_ms);
    printf("%llu rounds, %llu differ; the stopped member contributes to %u of those after it\n",
           (unsigned long long)rounds, (unsigned long long)differ, back);
    printf("{\"members\":%u,\"k\":%u,\"stopped\":%u,\"stop_s\":%u,\"step_ms\":%u,\"grace_ms\":%u,\"heartbeat_ms\":%u,"
           "\"takeover_ms\":%d,\"elements\":%u,\"before\":%.2f,\"during\":%.2f,\"percent\":%.1f,\"after\":%.2f,\"worst_"
           "wait_ms\":%.1f,"
           "\"rounds\":%llu,\"differ\":%llu,\"back\":%u}\n",
           n, k, stopped, stop_s, step_ms, grace_ms, heartbeat_ms, takeover_ms, count, before, during,
           100 * during / before, after, (double)worst[1] / 1e6, (unsigned long long)rounds, (unsigned long long)differ,
           back);
    rg_coordinator_stop(co);
    return differ != 0;
}
