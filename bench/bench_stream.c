/* bench_stream.c: how long training stands still for rounds that travel meanwhile (RG_DILOCO_STREAMING). N processes
 * make steps of equal time (they sleep, as while a device computes) over TCP connections whose rate is capped. First it
 * measures how long a fragment travels when nothing else happens, then it makes steps so long that this is `share`
 * percent of the overlap window, and says for how much of the time rg_diloco_step() kept the programs. Usage:
 *   bench_stream [members 4] [Mbit/s 100] [elements of a fragment 250000] [fragments 4] [overlap 8] [share 78]
 *                [rounds 60] [wire f32, or bf16, int8, ...]
 * It relies on nothing but the public interface. The last line is JSON. */
#include "regroup.h"
#include "regroup_diloco.h"
#include "regroup_quant.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define MEMBERS 16
#define CALIBRATE 8u /* rounds, of which the first half warms the connections up */

typedef struct settings {
    uint32_t n, rate, elements, fragments, overlap, share, rounds;
    rg_wire_t wire;
} settings_t;

typedef struct shared {
    double step_s, alone_s; /* of a step; of a round when nothing else happens */
    struct {
        double total_s, wait_s, flight_s, longest_s;
        uint64_t rounds, bytes, failed;
        int equal;
    } of[MEMBERS];
} shared_t;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void until(double s) {
    struct timespec t = { (time_t)s, (long)((s - (double)(time_t)s) * 1e9) };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
}

static int failed(const char *what, rg_status_t st, const char *text) {
    if (st != RG_OK) fprintf(stderr, "bench_stream: %s: %s: %s\n", what, rg_status_name(st), text);
    return st != RG_OK;
}

static void learn(float *p, uint64_t n, uint32_t rank, uint64_t step) {
    for (uint64_t i = step % 64; i < n; i += 64)
        p[i] += 1e-3f * (float)(rank + 1); /* little, for that is not measured */
}

static rg_diloco_config_t outer(const settings_t *s, uint32_t overlap) {
    rg_diloco_config_t c;
    rg_diloco_profile(RG_DILOCO_STREAMING, &c);
    c.fragments = s->fragments;
    c.every = s->fragments * (overlap + 2);
    c.overlap = overlap;
    c.wire = s->wire;
    c.serve = RG_OFF;
    return c;
}

static int open_outer(const settings_t *s, uint32_t overlap, rg_group_t *g, float *p, rg_diloco_t **d) {
    rg_error_t err = { RG_OK, 0, "" };
    rg_diloco_config_t c = outer(s, overlap);
    rg_status_t st = rg_diloco_create(&c, d, &err);
    if (st == RG_OK) st = rg_diloco_add(*d, "p", p, (uint64_t)s->elements * s->fragments, 0, &err);
    if (st == RG_OK) st = rg_diloco_start(*d, g, &err);
    return failed("start", st, err.text);
}

/* Rounds that are waited for: how long one takes. */
static int calibrate(const settings_t *s, rg_group_t *g, float *p, double *alone_s) {
    rg_diloco_t *d = NULL;
    rg_diloco_stats_t half = RG_DILOCO_STATS_INIT, all = RG_DILOCO_STATS_INIT;
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    uint64_t step = 0;
    int bad = open_outer(s, 0, g, p, &d);
    while (!bad && all.rounds < CALIBRATE) {
        bad = failed("calibration", rg_diloco_step(d, 1, &r), r.text);
        learn(p, (uint64_t)s->elements * s->fragments, r.rank, ++step);
        rg_diloco_info(d, &all);
        if (all.rounds == CALIBRATE / 2) half = all;
    }
    double mine = (double)(all.flight_ns - half.flight_ns) * 1e-9 / (CALIBRATE - CALIBRATE / 2);
    rg_diloco_destroy(d);
    return bad || failed("agreeing", rg_all_reduce(g, &mine, alone_s, 1, RG_F64, RG_MAX, NULL, NULL), "");
}

static int train(const settings_t *s, shared_t *sh, rg_group_t *g, float *p, uint32_t rank) {
    rg_diloco_t *d = NULL;
    rg_diloco_stats_t is = RG_DILOCO_STATS_INIT, was = RG_DILOCO_STATS_INIT;
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    rg_info_t info = RG_INFO_INIT;
    int bad = open_outer(s, s->overlap, g, p, &d);
    double begin = 0, at = now_s();
    for (uint64_t step = 1; !bad && is.rounds < was.rounds + s->rounds; step++) {
        if (!was.rounds && is.rounds >= s->fragments) { /* connections are warm, everybody is in step */
            was = is;
            begin = now_s();
            rg_group_info(g, &info);
            sh->of[rank].bytes = info.bytes_sent;
        }
        learn(p, (uint64_t)s->elements * s->fragments, rank, step);
        until(at + sh->step_s);
        double before = now_s();
        bad = failed("step", rg_diloco_step(d, 1, &r), r.text);
        at = now_s();
        if (was.rounds && at - before > sh->of[rank].longest_s) sh->of[rank].longest_s = at - before;
        rg_diloco_info(d, &is);
    }
    rg_group_info(g, &info);
    sh->of[rank].bytes = info.bytes_sent - sh->of[rank].bytes;
    sh->of[rank].total_s = now_s() - begin;
    sh->of[rank].rounds = is.rounds - was.rounds;
    sh->of[rank].failed = is.failed;
    sh->of[rank].wait_s = (double)(is.wait_ns - was.wait_ns) * 1e-9;
    sh->of[rank].flight_s = (double)(is.flight_ns - was.flight_ns) * 1e-9 / s->rounds;
    bad |= failed("flush", rg_diloco_flush(d, &r), r.text);
    rg_diloco_destroy(d);
    return bad;
}

static int member(const settings_t *s, shared_t *sh, const char *address, uint32_t rank) {
    rg_config_t config = RG_CONFIG_INIT;
    rg_error_t err;
    rg_group_t *g = NULL;
    float *p = calloc((size_t)s->elements * s->fragments, sizeof *p);
    config.coordinator = address;
    config.min_size = s->n;
    config.order = rank + 1;
    config.transport = "tcp";
    config.max_rate_mbit = s->rate;
    double alone_s = 0;
    if (!p || failed("join", rg_group_join(&config, &g, &err), err.text)) return 1;
    int bad = calibrate(s, g, p, &alone_s);
    sh->alone_s = alone_s; /* the same on all */
    sh->step_s = alone_s / s->overlap * 100 / s->share;
    bad = bad || failed("barrier", rg_barrier(g, NULL, NULL), "") || train(s, sh, g, p, rank);
    if (!bad) bad = failed("leave", rg_group_leave(g), "");
    rg_group_destroy(g);
    free(p);
    return bad;
}

static int say(const settings_t *s, const shared_t *sh) {
    double total = 0, wait = 0, flight = 0, longest = 0, bytes = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        total += sh->of[i].total_s;
        wait += sh->of[i].wait_s;
        flight += sh->of[i].flight_s / s->n;
        bytes += (double)sh->of[i].bytes / (double)sh->of[i].rounds / s->n;
        if (sh->of[i].longest_s > longest) longest = sh->of[i].longest_s;
    }
    double window = sh->step_s * s->overlap;
    printf(
        "a fragment of %u elements travels for %.1f ms alone, %.1f ms while training goes on; window %u steps of %.1f "
        "ms = %.1f ms\n",
        s->elements, sh->alone_s * 1e3, flight * 1e3, s->overlap, sh->step_s * 1e3, window * 1e3);
    printf("%u rounds: training stood still for %.2f %% of the time, the longest call %.1f ms\n", s->rounds,
           100 * wait / total, longest * 1e3);
    printf("{\"members\":%u,\"mbit\":%u,\"elements\":%u,\"fragments\":%u,\"overlap\":%u,\"share\":%u,\"rounds\":%u,"
           "\"wire\":%d,\"alone_ms\":%.2f,\"flight_ms\":%.2f,\"window_ms\":%.2f,\"flight_percent\":%.1f,"
           "\"bytes_a_round\":%.0f,\"stalled_percent\":%.3f,\"longest_ms\":%.2f}\n",
           s->n, s->rate, s->elements, s->fragments, s->overlap, s->share, s->rounds, (int)s->wire, sh->alone_s * 1e3,
           flight * 1e3, window * 1e3, 100 * flight / window, bytes, 100 * wait / total, longest * 1e3);
    return 0;
}

static uint32_t number(int argc, char **argv, int at, uint32_t fallback) {
    return argc > at ? (uint32_t)strtoul(argv[at], NULL, 10) : fallback;
}

int main(int argc, char **argv) {
    settings_t s = { number(argc, argv, 1, 4),      number(argc, argv, 2, 100),
                     number(argc, argv, 3, 250000), number(argc, argv, 4, 4),
                     number(argc, argv, 5, 8),      number(argc, argv, 6, 78),
                     number(argc, argv, 7, 60),     argc > 8 ? rg_wire_by_name(argv[8]) : (rg_wire_t)0 };
    shared_t *sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    rg_coordinator_config_t cc = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co;
    rg_error_t err;
    pid_t pid[MEMBERS];
    int pipes[2], bad = 0;
    char address[128] = "";
    if (sh == MAP_FAILED || s.n < 2 || s.n > MEMBERS || !s.overlap || !s.share || !s.rounds || pipe(pipes)) return 2;
    for (uint32_t i = 0; i < s.n; i++)
        if ((pid[i] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            ssize_t got = read(pipes[0], address, sizeof address);
            _exit(got == sizeof address ? member(&s, sh, address, i) : 1);
        }
    if (failed("coordinator", rg_coordinator_start(&cc, &co, &err), err.text)) return 1;
    snprintf(address, sizeof address, "%s", rg_coordinator_address(co));
    for (uint32_t i = 0; i < s.n; i++)
        if (write(pipes[1], address, sizeof address) != sizeof address) return 1;
    for (uint32_t i = 0; i < s.n; i++) {
        int status = 0;
        waitpid(pid[i], &status, 0);
        bad |= status;
    }
    rg_coordinator_stop(co);
    return bad ? 1 : say(&s, sh);
}
