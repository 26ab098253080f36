/* bench.c: `regroup bench`: times a collective over a range of sizes and checks its results, in the manner of
 * nccl-tests. Either it forks N local processes with a coordinator of its own, or this process joins the group that
 * the environment names. Before each call the inputs are written anew and everybody meets in a barrier, outside the
 * timed part. The time of a call is that of the slowest member.
 * It must not measure what it does itself: no output and no allocation between the two clock readings. */
#include "pattern.h"
#include "tool.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define BENCH_MAX_ITERS 100000u

static const char bench_help[] =
    "usage: regroup bench all_reduce|broadcast|barrier [options]\n"
    "\n"
    "Times a collective from MIN to MAX bytes and checks the results. With -n it starts N processes on this host; "
    "without,\n"
    "this process joins the group named by RG_COORDINATOR, RG_GROUP and RG_MIN_SIZE, and is one of its members.\n"
    "\n"
    "  -n, --peers N            local processes to start\n"
    "  -c, --coordinator A:P    coordinator to join instead (RG_COORDINATOR)\n"
    "  -b, --min-bytes SIZE     smallest size (4K); sizes are like 4096, 64K, 16M, 1G\n"
    "  -e, --max-bytes SIZE     largest size (64M)\n"
    "  -f, --factor F           from one size to the next (4)\n"
    "  -w, --warmup N           untimed calls per size (5)\n"
    "  -i, --iters N            timed calls per size (20)\n"
    "  -t, --dtype TYPE         i8 u8 i32 u32 i64 u64 f16 bf16 f32 f64 (f32)\n"
    "  -o, --op OP              sum prod min max avg (sum)\n"
    "  -r, --root RANK          root of a broadcast (0)\n"
    "      --in-place           results over inputs\n"
    "      --check              check the result of every call (default: of the first of each size)\n"
    "      --no-check           check nothing\n"
    "  -j, --json               one JSON object instead of the table\n"
    "  -h, --help               this text\n"
    "\n"
    "Columns: time of the slowest member per call; algbw = size / median time; busbw = algbw * 2(n-1)/n for "
    "all_reduce,\n"
    "which compares to the speed of the links whatever n is; errors = wrong elements, over all members.\n"
    "Exit code: 0 success, 1 wrong results or a failed call, 2 wrong usage.\n"
    "\n"
    "examples:\n"
    "  regroup bench all_reduce -n 4 -b 1M -e 128M -f 2 --in-place\n"
    "  regroup run -n 3 -- regroup bench broadcast -b 64K -e 64K --json\n";

enum bench_kind { BENCH_ALL_REDUCE, BENCH_BROADCAST, BENCH_BARRIER };
static const char *const bench_names[] = { "all_reduce", "broadcast", "barrier" };

struct bench {
    enum bench_kind kind;
    uint64_t peers, min, max, factor, warmup, iters, root;
    rg_dtype_t dtype;
    rg_op_t op;
    int in_place, check, json; /* check: 0 nothing, 1 first call, 2 every call */
    const char *coordinator;
    /* while it runs */
    rg_group_t *g;
    rg_info_t info;
    uint8_t *in, *out;
    double *us;
    json_t *rows;
    uint64_t errors; /* of all sizes and members */
    uint32_t changes;
};

static int bench_fail(struct bench *b, const char *what, rg_status_t status) {
    char text[512] = "";
    rg_group_errmsg(b->g, text, sizeof text);
    return tool_failed("bench", "rank %u: %s: %s%s%s", b->info.rank, what, rg_strerror(status), text[0] ? ": " : "",
                       text);
}

/* One call with fresh inputs; its own time in *us. Counts wrong elements into *wrong when asked to. */
static rg_status_t bench_call(struct bench *b, uint64_t count, int check, double *us, uint64_t *wrong) {
    rg_result_t res = RG_RESULT_INIT;
    rg_opts_t opts = RG_OPTS_INIT;
    uint8_t *in = b->in_place ? b->out : b->in;
    rg_op_t as = b->kind == BENCH_BROADCAST ? RG_SUM : b->op;
    rg_status_t s;
    opts.result = &res;
    if (b->kind != BENCH_BARRIER) {
        pattern_fill(b->dtype, as, b->info.rank, b->kind == BENCH_BROADCAST ? b->out : in, count);
        if ((s = rg_barrier(b->g, NULL, NULL))) return s;
    }
    uint64_t t = tool_now_ns();
    if (b->kind == BENCH_ALL_REDUCE) s = rg_all_reduce(b->g, in, b->out, count, b->dtype, b->op, &opts, NULL);
    else if (b->kind == BENCH_BROADCAST)
        s = rg_broadcast(b->g, b->out, count, b->dtype, (uint32_t)b->root, &opts, NULL);
    else s = rg_barrier(b->g, &opts, NULL);
    *us = (double)(tool_now_ns() - t) / 1e3;
    if (s || !check || b->kind == BENCH_BARRIER) return s;
    /* After a loss the expected value is that of other members: such a call is not judged but counted as a change. */
    if (res.contributors != b->info.world_size) b->changes++;
    else if (b->kind == BENCH_BROADCAST) *wrong += pattern_count_as(b->dtype, (uint32_t)b->root, b->out, count);
    else *wrong += pattern_count_wrong(b->dtype, b->op, b->info.world_size, b->out, count);
    return s;
}

static int bench_less(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void bench_report(struct bench *b, uint64_t bytes, uint64_t count, uint64_t wrong) {
    uint64_t n = b->iters;
    uint32_t ranks = b->info.world_size;
    qsort(b->us, n, sizeof *b->us, bench_less);
    double median = n & 1 ? b->us[n / 2] : (b->us[n / 2 - 1] + b->us[n / 2]) / 2;
    double alg = median > 0 ? (double)bytes / median / 1e3 : 0;
    double bus = b->kind == BENCH_ALL_REDUCE ? alg * 2 * (ranks - 1) / ranks : alg;
    if (b->info.rank) return;
    if (b->json) {
        json_array_append_new(b->rows, json_pack("{s:I s:I s:f s:f s:f s:f s:f s:I}", "bytes", (json_int_t)bytes,
                                                 "count", (json_int_t)count, "median_us", median, "min_us", b->us[0],
                                                 "max_us", b->us[n - 1], "algbw_gbps", alg, "busbw_gbps", bus, "errors",
                                                 (json_int_t)wrong));
        return;
    }
    printf("%12llu %12llu %6s %5s %12.2f %12.2f %12.2f %9.3f %9.3f %8llu\n", (unsigned long long)bytes,
           (unsigned long long)count, b->kind == BENCH_BARRIER ? "-" : rg_dtype_name(b->dtype),
           b->kind == BENCH_ALL_REDUCE ? rg_op_name(b->op) : "-", median, b->us[0], b->us[n - 1], alg, bus,
           (unsigned long long)wrong);
    fflush(stdout);
}

static int bench_size(struct bench *b, uint64_t bytes) {
    uint64_t count = bytes / rg_dtype_size(b->dtype), wrong = 0;
    int progress = b->info.rank == 0 && isatty(2);
    rg_status_t s = RG_OK;
    double us;
    for (uint64_t i = 0; i < b->warmup && !s; i++)
        s = bench_call(b, count, b->check == 2 || (b->check && !i), &us, &wrong);
    for (uint64_t i = 0; i < b->iters && !s; i++) {
        s = bench_call(b, count, b->check == 2 || (b->check && !b->warmup && !i), &b->us[i], &wrong);
        if (progress && bytes >= 1 << 20)
            fprintf(stderr, "\r%llu bytes: %llu of %llu ", (unsigned long long)bytes, (unsigned long long)i + 1,
                    (unsigned long long)b->iters);
    }
    if (progress && bytes >= 1 << 20) fprintf(stderr, "\r%48s\r", "");
    if (!s) s = rg_all_reduce(b->g, b->us, b->us, b->iters, RG_F64, RG_MAX, NULL, NULL);
    if (!s) s = rg_all_reduce(b->g, &wrong, &wrong, 1, RG_U64, RG_SUM, NULL, NULL);
    if (s) return bench_fail(b, bench_names[b->kind], s);
    b->errors += wrong;
    bench_report(b, b->kind == BENCH_BARRIER ? 0 : count * rg_dtype_size(b->dtype), count, wrong);
    return TOOL_OK;
}

static void bench_head(struct bench *b) {
    if (b->info.rank || b->json) return;
    printf("# regroup %s, bench %s, %u members, %llu warm-up and %llu timed calls per size, %s\n", rg_version(),
           bench_names[b->kind], b->info.world_size, (unsigned long long)b->warmup, (unsigned long long)b->iters,
           b->in_place ? "in place" : "out of place");
    printf("#%11s %12s %6s %5s %12s %12s %12s %9s %9s %8s\n", "bytes", "count", "type", "op", "median(us)", "min(us)",
           "max(us)", "algbw", "busbw", "errors");
    fflush(stdout);
}

static void bench_tail(struct bench *b) {
    if (b->info.rank) return;
    if (b->json) {
        json_t *all = json_pack("{s:s s:s s:I s:s s:s s:b s:I s:I s:O}", "collective", bench_names[b->kind], "version",
                                rg_version(), "ranks", (json_int_t)b->info.world_size, "dtype", rg_dtype_name(b->dtype),
                                "op", rg_op_name(b->op), "in_place", b->in_place, "errors", (json_int_t)b->errors,
                                "changes", (json_int_t)b->changes, "rows", b->rows);
        json_dumpf(all, stdout, JSON_INDENT(2));
        printf("\n");
        json_decref(all);
    } else {
        printf("# errors: %llu%s\n", (unsigned long long)b->errors,
               b->changes ? "; the group lost members, some results were not checked" : "");
    }
    fflush(stdout);
}

/* One member: joins, measures, leaves. */
static int bench_member(struct bench *b) {
    rg_config_t cfg = RG_CONFIG_INIT;
    rg_error_t err = { RG_OK, 0, "" };
    rg_info_t info = RG_INFO_INIT;
    uint64_t bytes = b->kind == BENCH_BARRIER ? 0 : b->max;
    int rc = TOOL_OK;
    cfg.coordinator = b->coordinator;
    b->rows = json_array();
    b->us = calloc(b->iters, sizeof *b->us);
    if (posix_memalign((void **)&b->in, 4096, bytes + 4096)) b->in = NULL;
    if (posix_memalign((void **)&b->out, 4096, bytes + 4096)) b->out = NULL;
    if (!b->us || !b->in || !b->out)
        rc = tool_failed("bench", "out of memory: two buffers of %llu bytes", (unsigned long long)bytes);
    if (!rc) {
        memset(b->in, 0, bytes + 4096);
        memset(b->out, 0, bytes + 4096);
        if (rg_group_join(&cfg, &b->g, &err)) rc = tool_failed("bench", "%s", err.text);
    }
    if (!rc) {
        b->info = info;
        rg_group_info(b->g, &b->info);
        if (b->root >= b->info.world_size && b->kind == BENCH_BROADCAST)
            rc = tool_usage("bench", "--root %llu: there are %u members", (unsigned long long)b->root,
                            b->info.world_size);
    }
    if (!rc) {
        bench_head(b);
        if (b->kind == BENCH_BARRIER) rc = bench_size(b, rg_dtype_size(b->dtype));
        else
            for (bytes = b->min; bytes <= b->max && !rc;
                 bytes = bytes > b->max / b->factor ? b->max + 1 : bytes * b->factor)
                rc = bench_size(b, bytes);
        if (!rc) bench_tail(b);
        if (!rc && b->errors) rc = TOOL_FAILED;
        if (!rc) rg_group_leave(b->g);
    }
    rg_group_destroy(b->g);
    json_decref(b->rows);
    free(b->us);
    free(b->in);
    free(b->out);
    return rc;
}

/* Forks the members before this process has a second thread; they learn the coordinator's address through pipes. */
static int bench_spawn(struct bench *b) {
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co = NULL;
    rg_error_t err = { RG_OK, 0, "" };
    char address[128] = "", number[24];
    int rc = TOOL_OK, status, p[2];
    pid_t parent = getpid();
    if (pipe(p)) return tool_failed("bench", "pipe: %s", strerror(errno));
    for (uint64_t i = 0; i < b->peers; i++) {
        pid_t pid = fork();
        if (pid < 0) {
            close(p[1]); /* those that exist find no address and end */
            return tool_failed("bench", "fork: %s", strerror(errno));
        }
        if (pid) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(p[1]);
        if (getppid() != parent || read(p[0], address, sizeof address) != (ssize_t)sizeof address) _exit(TOOL_FAILED);
        close(p[0]);
        snprintf(number, sizeof number, "%llu", (unsigned long long)i);
        setenv("RG_ORDER", number, 1);
        snprintf(number, sizeof number, "%llu", (unsigned long long)b->peers);
        setenv("RG_MIN_SIZE", number, 1);
        setenv("RG_GROUP", "bench", 1);
        b->coordinator = address;
        exit(bench_member(b));
    }
    close(p[0]);
    cfg.listen = "127.0.0.1:0";
    if (rg_coordinator_start(&cfg, &co, &err)) rc = tool_failed("bench", "%s", err.text);
    snprintf(address, sizeof address, "%s", co ? rg_coordinator_address(co) : "");
    for (uint64_t i = 0; co && i < b->peers; i++)
        if (write(p[1], address, sizeof address) != (ssize_t)sizeof address)
            rc = TOOL_FAILED; /* atomic: below PIPE_BUF */
    close(p[1]);
    while (wait(&status) > 0 || errno == EINTR) {
        if (WIFSIGNALED(status))
            rc = tool_failed("bench", "a member was killed by signal %d (%s)", WTERMSIG(status),
                             strsignal(WTERMSIG(status)));
        else if (WEXITSTATUS(status) && !rc) rc = WEXITSTATUS(status);
    }
    rg_coordinator_stop(co);
    return rc;
}

static int bench_enum(struct bench *b, int o, const char *text) {
    if (o == 't')
        for (int i = 0; i < RG_DTYPE_COUNT; i++)
            if (!strcmp(text, rg_dtype_name((rg_dtype_t)i))) return b->dtype = (rg_dtype_t)i, 1;
    if (o == 'o')
        for (int i = 0; i < RG_OP_COUNT; i++)
            if (!strcmp(text, rg_op_name((rg_op_t)i))) return b->op = (rg_op_t)i, 1;
    return 0;
}

static int bench_options(struct bench *b, int argc, char **argv) {
    enum { IN_PLACE = 256, CHECK, NO_CHECK };
    static const struct option options[] = { { "peers", required_argument, NULL, 'n' },
                                             { "coordinator", required_argument, NULL, 'c' },
                                             { "min-bytes", required_argument, NULL, 'b' },
                                             { "max-bytes", required_argument, NULL, 'e' },
                                             { "factor", required_argument, NULL, 'f' },
                                             { "warmup", required_argument, NULL, 'w' },
                                             { "iters", required_argument, NULL, 'i' },
                                             { "dtype", required_argument, NULL, 't' },
                                             { "op", required_argument, NULL, 'o' },
                                             { "root", required_argument, NULL, 'r' },
                                             { "in-place", no_argument, NULL, IN_PLACE },
                                             { "check", no_argument, NULL, CHECK },
                                             { "no-check", no_argument, NULL, NO_CHECK },
                                             { "json", no_argument, NULL, 'j' },
                                             { "help", no_argument, NULL, 'h' },
                                             { 0, 0, 0, 0 } };
    int o;
    while ((o = getopt_long(argc, argv, "n:c:b:e:f:w:i:t:o:r:jh", options, NULL)) != -1) {
        int ok = 1;
        if (o == '?') return tool_usage("bench", "wrong option");
        if (o == 'h') {
            fputs(bench_help, stdout);
            return -1;
        }
        if (o == 'n') ok = tool_number(optarg, 1, 1024, &b->peers);
        if (o == 'c') b->coordinator = optarg;
        if (o == 'b') ok = tool_bytes(optarg, &b->min);
        if (o == 'e') ok = tool_bytes(optarg, &b->max);
        if (o == 'f') ok = tool_number(optarg, 2, 1u << 30, &b->factor);
        if (o == 'w') ok = tool_number(optarg, 0, BENCH_MAX_ITERS, &b->warmup);
        if (o == 'i') ok = tool_number(optarg, 1, BENCH_MAX_ITERS, &b->iters);
        if (o == 'r') ok = tool_number(optarg, 0, UINT32_MAX, &b->root);
        if (o == 't' || o == 'o') ok = bench_enum(b, o, optarg);
        if (o == IN_PLACE) b->in_place = 1;
        if (o == CHECK) b->check = 2;
        if (o == NO_CHECK) b->check = 0;
        if (o == 'j') b->json = 1;
        if (!ok) return tool_usage("bench", "\"%s\" is not what -%c takes", optarg, o);
    }
    for (int k = 0; optind < argc && k < 3; k++)
        if (!strcmp(argv[optind], bench_names[k])) {
            b->kind = (enum bench_kind)k;
            if (optind + 1 < argc) return tool_usage("bench", "unexpected argument \"%s\"", argv[optind + 1]);
            if (b->min > b->max) return tool_usage("bench", "the smallest size is larger than the largest");
            if (!b->min) return tool_usage("bench", "-b 0: sizes start at one byte");
            if (b->peers && b->coordinator) return tool_usage("bench", "-n starts its own coordinator: leave out -c");
            return TOOL_OK;
        }
    return tool_usage("bench",
                      optind < argc ? "there is no collective \"%s\""
                                    : "which collective? all_reduce, broadcast or barrier%s",
                      optind < argc ? argv[optind] : "");
}

int tool_bench(int argc, char **argv) {
    struct bench b = {
        .min = 4096, .max = 64u << 20, .factor = 4, .warmup = 5, .iters = 20, .dtype = RG_F32, .op = RG_SUM, .check = 1
    };
    int rc = bench_options(&b, argc, argv);
    if (rc) return rc < 0 ? TOOL_OK : rc;
    return b.peers ? bench_spawn(&b) : bench_member(&b);
}
