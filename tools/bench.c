/* bench.c: `regroup bench`: times a collective over a range of sizes and checks its results, in the manner of
 * nccl-tests. Either it forks N local processes with a coordinator of its own, or this process joins the group that the
 * environment names. Before each call the inputs are written anew and everybody meets in a barrier, outside the timed
 * part. The time of a call is that of the slowest member. It must not measure what it does itself: no output and no
 * allocation between the two clock readings. */
#include "collective.h"
#include "tool.h"

#include <getopt.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BENCH_MAX_ITERS 100000u

static const char bench_help[] =
    "usage: regroup bench COLLECTIVE [options]\n"
    "\n"
    "COLLECTIVE: all_reduce all_gather reduce_scatter broadcast reduce gather scatter all_to_all send_recv barrier\n"
    "Times it from MIN to MAX bytes and checks the results. With -n it starts N processes on this host; without, this\n"
    "process joins the group named by RG_COORDINATOR, RG_GROUP and RG_MIN_SIZE, and is one of its members.\n"
    "\n"
    "  -n, --peers N            local processes to start\n"
    "  -c, --coordinator A:P    coordinator to join instead (RG_COORDINATOR)\n"
    "  -b, --min-bytes SIZE     smallest size (4K); sizes are like 4096, 64K, 16M, 1G\n"
    "  -e, --max-bytes SIZE     largest size (64M, or MIN if that is larger)\n"
    "  -f, --factor F           from one size to the next (4)\n"
    "  -w, --warmup N           untimed calls per size (5), at most 100000\n"
    "  -i, --iters N            timed calls per size (20), at most 100000\n"
    "  -t, --type TYPE          i8 u8 i32 u32 i64 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2 (f32)\n"
    "  -o, --op OP              sum prod min max avg (sum)\n"
    "  -r, --root RANK          where there is one (0)\n"
    "      --in-place           results over inputs\n"
    "      --alloc              buffers from rg_alloc(), which members on one host read without a copy\n"
    "      --algorithm NAME     instead of the one that is chosen (RG_ALGORITHM); `regroup explain` lists them\n"
    "      --transport NAME     auto, tcp, shm, rdma (RG_TRANSPORT)\n"
    "      --tls                with -n: TLS with a key for this run alone (--transport tcp: all bytes go through it)\n"
    "      --measure            measure the links first (rg_group_measure)\n"
    "      --check              check the result of every call (default: of the first of each size)\n"
    "      --no-check           check nothing\n"
    "  -j, --json               one JSON object instead of the table\n"
    "  -h, --help               this text\n"
    "\n"
    "Sizes are those of the whole vector, as nccl-tests counts: what a member holds before an all_reduce, a\n"
    "reduce_scatter, an all_to_all, a scatter, or after an all_gather, a gather. send_recv: between ranks 0 and 1, "
    "half\n"
    "of the time there and back.\n"
    "Columns: time of the slowest member per call; algbw = size / median time, in GB/s; busbw = algbw * 2(n-1)/n for\n"
    "all_reduce, (n-1)/n where every member has a segment, else algbw: it compares to the speed of the links whatever "
    "n\n"
    "is; errors = wrong elements, over all members.\n"
    "Exit code: 0 success, 1 wrong results or a failed call, 2 wrong usage.\n"
    "\n"
    "examples:\n"
    "  regroup bench all_reduce -n 4 -b 1M -e 128M -f 2 --in-place\n"
    "  regroup bench all_to_all -n 4 --alloc --type bf16\n"
    "  regroup run -n 3 -- regroup bench broadcast -b 64K -e 64K --json\n";

struct bench {
    struct coll c;
    uint64_t peers, min, max, factor, warmup, iters;
    int check, json, tls, measure; /* check: 0 nothing, 1 first call, 2 every call */
    const char *coordinator, *transport;
    char algorithm[128];
    /* while it runs */
    double *us;
    json_t *rows;
    uint64_t errors; /* of all sizes and members */
    uint32_t changes;
};

static int bench_fail(struct bench *b, rg_status_t status) {
    char text[512] = "";
    rg_group_errmsg(b->c.g, text, sizeof text);
    return tool_failed("bench", "rank %u: %s: %s%s%s", b->c.info.rank, coll_name(b->c.kind), rg_strerror(status),
                       text[0] ? ": " : "", text);
}

/* One call with fresh inputs; its own time in *us. Counts wrong elements into *wrong when asked to. A collective whose
 * shape depends on the number of members ends when one is lost: it is called again in the new shape. */
static rg_status_t bench_call(struct bench *b, uint64_t bytes, int check, double *us, uint64_t *wrong) {
    struct coll *c = &b->c;
    for (;;) {
        rg_result_t res = RG_RESULT_INIT;
        uint64_t count = coll_count(c, bytes);
        rg_status_t s = RG_OK;
        if (c->kind != COLL_BARRIER) {
            coll_fill(c, count);
            s = rg_barrier(c->g, NULL, NULL);
        }
        if (!s) s = coll_call(c, count, &res, us);
        if (s == RG_ERR_PEER_LOST && b->changes < 1024) {
            b->changes++;
            if (!rg_group_info(c->g, &c->info) && c->info.world_size > 1) continue;
        }
        if (s || !check) return s;
        /* After a loss the expected value is that of other members: such a call is not judged but counted. */
        if (coll_reduces(c->kind) && res.contributors != c->info.world_size) b->changes++;
        else if (!b->changes) *wrong += coll_wrong(c, count);
        return s;
    }
}

static int bench_less(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void bench_report(struct bench *b, uint64_t bytes, uint64_t count, uint64_t wrong) {
    uint64_t n = b->iters;
    coll_kind_t kind = b->c.kind;
    qsort(b->us, n, sizeof *b->us, bench_less);
    double median = n & 1 ? b->us[n / 2] : (b->us[n / 2 - 1] + b->us[n / 2]) / 2;
    double alg = median > 0 ? (double)bytes / median / 1e3 : 0;
    double bus = alg * coll_bus_factor(kind, b->c.info.world_size);
    if (b->c.info.rank) return;
    if (b->json) {
        json_array_append_new(b->rows, json_pack("{s:I s:I s:f s:f s:f s:f s:f s:I}", "bytes", (json_int_t)bytes,
                                                 "count", (json_int_t)count, "median_us", median, "min_us", b->us[0],
                                                 "max_us", b->us[n - 1], "algbw_gbps", alg, "busbw_gbps", bus, "errors",
                                                 (json_int_t)wrong));
        return;
    }
    printf("%12llu %12llu %6s %5s %12.2f %12.2f %12.2f %9.3f %9.3f %8llu\n", (unsigned long long)bytes,
           (unsigned long long)count, kind == COLL_BARRIER ? "-" : rg_dtype_name(b->c.dtype),
           coll_reduces(kind) ? rg_op_name(b->c.op) : "-", median, b->us[0], b->us[n - 1], alg, bus,
           (unsigned long long)wrong);
    fflush(stdout);
}

static int bench_size(struct bench *b, uint64_t bytes) {
    uint64_t wrong = 0;
    int progress = b->c.info.rank == 0 && isatty(2) && bytes >= 1 << 20;
    rg_status_t s = RG_OK;
    double us;
    for (uint64_t i = 0; i < b->warmup && !s; i++)
        s = bench_call(b, bytes, b->check == 2 || (b->check && !i), &us, &wrong);
    for (uint64_t i = 0; i < b->iters && !s; i++) {
        s = bench_call(b, bytes, b->check == 2 || (b->check && !b->warmup && !i), &b->us[i], &wrong);
        if (progress)
            fprintf(stderr, "\r%llu bytes: %llu of %llu ", (unsigned long long)bytes, (unsigned long long)i + 1,
                    (unsigned long long)b->iters);
    }
    if (progress) fprintf(stderr, "\r%48s\r", "");
    if (!s) s = rg_all_reduce(b->c.g, b->us, b->us, b->iters, RG_F64, RG_MAX, NULL, NULL);
    if (!s) s = rg_all_reduce(b->c.g, &wrong, &wrong, 1, RG_U64, RG_SUM, NULL, NULL);
    if (s) return bench_fail(b, s);
    uint64_t count = coll_count(&b->c, bytes);
    b->errors += wrong;
    bench_report(b, coll_bytes(&b->c, count), count, wrong);
    return TOOL_OK;
}

static void bench_head(struct bench *b) {
    if (b->c.info.rank || b->json) return;
    printf("# regroup %s, bench %s, %u members, %llu warm-up and %llu timed calls per size, %s%s%s%s\n", rg_version(),
           coll_name(b->c.kind), b->c.info.world_size, (unsigned long long)b->warmup, (unsigned long long)b->iters,
           b->c.in_place ? "in place" : "out of place", b->c.alloc ? ", memory of rg_alloc" : "",
           b->algorithm[0] ? ", " : "", b->algorithm);
    printf("#%11s %12s %6s %5s %12s %12s %12s %9s %9s %8s\n", "bytes", "count", "type", "op", "median(us)", "min(us)",
           "max(us)", "algbw", "busbw", "errors");
    fflush(stdout);
}

static void bench_tail(struct bench *b) {
    if (b->c.info.rank) return;
    if (b->json) {
        json_t *all =
            json_pack("{s:s s:s s:I s:s s:s s:b s:b s:s s:I s:I s:O}", "collective", coll_name(b->c.kind), "version",
                      rg_version(), "ranks", (json_int_t)b->c.info.world_size, "dtype", rg_dtype_name(b->c.dtype), "op",
                      rg_op_name(b->c.op), "in_place", b->c.in_place, "alloc", b->c.alloc, "algorithm", b->algorithm,
                      "errors", (json_int_t)b->errors, "changes", (json_int_t)b->changes, "rows", b->rows);
        json_dumpf(all, stdout, JSON_INDENT(2));
        printf("\n");
        json_decref(all);
    } else {
        if (!rg_group_info(b->c.g, &b->c.info) && (b->c.info.bytes_copied || b->c.info.bytes_reduced))
            printf(
                "# over RDMA the first member sent %llu bytes and received %llu; its processor copied %llu and reduced "
                "%llu\n",
                (unsigned long long)b->c.info.bytes_sent, (unsigned long long)b->c.info.bytes_received,
                (unsigned long long)b->c.info.bytes_copied, (unsigned long long)b->c.info.bytes_reduced);
        printf("# errors: %llu%s\n", (unsigned long long)b->errors,
               b->changes ? "; the group lost members, some results were not checked" : "");
    }
    fflush(stdout);
}

static int bench_sizes(struct bench *b) {
    int rc = TOOL_OK;
    if (coll_rooted(b->c.kind) && b->c.root >= b->c.info.world_size)
        return tool_usage("bench", "--root %u: there are %u members", b->c.root, b->c.info.world_size);
    if (b->c.kind == COLL_SEND_RECV && b->c.info.world_size < 2)
        return tool_usage("bench", "send_recv needs two members");
    bench_head(b);
    if (b->c.kind == COLL_BARRIER) rc = bench_size(b, 0);
    else
        for (uint64_t bytes = b->min; bytes <= b->max && !rc;
             bytes = bytes > b->max / b->factor ? b->max + 1 : bytes * b->factor)
            rc = bench_size(b, bytes);
    if (!rc) bench_tail(b);
    return !rc && b->errors ? TOOL_FAILED : rc;
}

/* One member: joins, measures, leaves. */
static int bench_member(void *arg) {
    struct bench *b = arg;
    rg_config_t cfg = RG_CONFIG_INIT;
    rg_error_t err = { RG_OK, 0, "" };
    rg_info_t info = RG_INFO_INIT;
    uint64_t bytes = b->c.kind == COLL_BARRIER ? 0 : b->max;
    int rc = TOOL_OK;
    cfg.coordinator = b->coordinator;
    cfg.transport = b->transport;
    cfg.algorithm = b->algorithm[0] ? b->algorithm : NULL;
    b->c.info = info;
    b->rows = json_array();
    b->us = calloc(b->iters, sizeof *b->us);
    if (coll_open(&b->c, bytes) || !b->us)
        rc = tool_failed("bench", "out of memory: two buffers of %llu bytes", (unsigned long long)bytes);
    if (!rc && rg_group_join(&cfg, &b->c.g, &err)) rc = tool_failed("bench", "%s", err.text);
    if (!rc) {
        rg_group_info(b->c.g, &b->c.info);
        rg_status_t s = b->measure ? rg_group_measure(b->c.g) : RG_OK;
        rc = s ? bench_fail(b, s) : bench_sizes(b);
        if (rc == TOOL_OK || b->errors) rg_group_leave(b->c.g);
    }
    rg_group_destroy(b->c.g);
    coll_close(&b->c);
    json_decref(b->rows);
    free(b->us);
    return rc;
}

/* ---- Options
 * ---------------------------------------------------------------------------------------------------
 */

enum { IN_PLACE = 256, CHECK, NO_CHECK, ALLOC, ALGORITHM, TRANSPORT, TLS, MEASURE };

static int bench_option(struct bench *b, int o, const char *text, const char **algorithm) {
    uint64_t v = 0;
    switch (o) {
    case 'n': return tool_number(text, 1, 1024, &b->peers);
    case 'b': return tool_bytes(text, &b->min);
    case 'e': return tool_bytes(text, &b->max) && b->max;
    case 'f': return tool_number(text, 2, 1u << 30, &b->factor);
    case 'w': return tool_number(text, 0, BENCH_MAX_ITERS, &b->warmup);
    case 'i': return tool_number(text, 1, BENCH_MAX_ITERS, &b->iters);
    case 'r':
        if (!tool_number(text, 0, UINT32_MAX, &v)) return 0;
        b->c.root = (uint32_t)v;
        return 1;
    case 't': return tool_dtype(text, &b->c.dtype);
    case 'o': return tool_op(text, &b->c.op);
    case 'c': b->coordinator = text; return 1;
    case 'j': b->json = 1; return 1;
    case IN_PLACE: b->c.in_place = 1; return 1;
    case ALLOC: b->c.alloc = 1; return 1;
    case CHECK: b->check = 2; return 1;
    case NO_CHECK: b->check = 0; return 1;
    case MEASURE: b->measure = 1; return 1;
    case ALGORITHM: *algorithm = text; return 1;
    case TRANSPORT: b->transport = text; return 1;
    case TLS: b->tls = 1; return 1;
    default: return 0;
    }
}

/* What only the whole of the options tells. */
static int bench_finish(struct bench *b, const char *algorithm, int argc, char **argv) {
    if (optind >= argc) return tool_usage("bench", "which collective? all_reduce, all_gather, ... or barrier");
    if (!coll_find(argv[optind], &b->c.kind)) return tool_usage("bench", "there is no collective \"%s\"", argv[optind]);
    if (optind + 1 < argc) return tool_usage("bench", "unexpected argument \"%s\"", argv[optind + 1]);
    if (!b->min) return tool_usage("bench", "-b 0: sizes start at one byte");
    if (!b->max) b->max = b->min > 64u << 20 ? b->min : 64u << 20;
    if (b->min > b->max) return tool_usage("bench", "the smallest size is larger than the largest");
    if (b->peers && b->coordinator) return tool_usage("bench", "-n starts its own coordinator: leave out -c");
    if (b->tls && !b->peers)
        return tool_usage("bench", "--tls needs -n: a group that is there has its own keys (RG_TLS)");
    if (coll_reduces(b->c.kind) && b->c.op == RG_AVG && b->c.dtype < RG_F16)
        return tool_usage("bench", "there is no average of integers: --type f32, for example");
    if (b->c.in_place && (b->c.kind == COLL_SEND_RECV || b->c.kind == COLL_BARRIER))
        return tool_usage("bench", "--in-place means nothing to %s", coll_name(b->c.kind));
    if (algorithm) snprintf(b->algorithm, sizeof b->algorithm, "%s=%s", coll_name(b->c.kind), algorithm);
    return TOOL_OK;
}

static int bench_options(struct bench *b, int argc, char **argv) {
    static const struct option options[] = { { "peers", required_argument, NULL, 'n' },
                                             { "coordinator", required_argument, NULL, 'c' },
                                             { "min-bytes", required_argument, NULL, 'b' },
                                             { "max-bytes", required_argument, NULL, 'e' },
                                             { "factor", required_argument, NULL, 'f' },
                                             { "warmup", required_argument, NULL, 'w' },
                                             { "iters", required_argument, NULL, 'i' },
                                             { "type", required_argument, NULL, 't' },
                                             { "dtype", required_argument, NULL, 't' },
                                             { "op", required_argument, NULL, 'o' },
                                             { "root", required_argument, NULL, 'r' },
                                             { "in-place", no_argument, NULL, IN_PLACE },
                                             { "alloc", no_argument, NULL, ALLOC },
                                             { "algorithm", required_argument, NULL, ALGORITHM },
                                             { "transport", required_argument, NULL, TRANSPORT },
                                             { "tls", no_argument, NULL, TLS },
                                             { "check", no_argument, NULL, CHECK },
                                             { "no-check", no_argument, NULL, NO_CHECK },
                                             { "measure", no_argument, NULL, MEASURE },
                                             { "json", no_argument, NULL, 'j' },
                                             { "help", no_argument, NULL, 'h' },
                                             { 0, 0, 0, 0 } };
    const char *algorithm = NULL;
    int o, at = 0;
    while ((o = getopt_long(argc, argv, "n:c:b:e:f:w:i:t:o:r:jh", options, &at)) != -1) {
        if (o == '?') return tool_wrong_option("bench", argv);
        if (o == 'h') {
            fputs(bench_help, stdout);
            return -1;
        }
        if (bench_option(b, o, optarg, &algorithm)) continue;
        for (at = 0; options[at].val != o;) at++;
        return tool_bad_value("bench", bench_help, options[at].name, optarg);
    }
    return bench_finish(b, algorithm, argc, argv);
}

int tool_bench(int argc, char **argv) {
    struct bench b = { .min = 4096, .factor = 4, .warmup = 5, .iters = 20, .check = 1 };
    b.c.dtype = RG_F32;
    b.c.op = RG_SUM;
    int rc = bench_options(&b, argc, argv);
    if (rc) return rc < 0 ? TOOL_OK : rc;
    if (b.tls && (rc = tool_try_tls("bench"))) return rc;
    return b.peers ? tool_local("bench", b.peers, bench_member, &b) : bench_member(&b);
}
