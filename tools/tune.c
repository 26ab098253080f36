/* tune.c: `regroup tune`: measures every algorithm that applies, for each collective and size, on the group as it is,
 * and writes the best ones into a file that RG_TUNING_FILE names. It prints what the cost model would have chosen and
 * how far that is from the best. Members come together anew for every algorithm, under a name of its own, because an
 * algorithm is a member's setting; all go through the same list, and every decision on the way is made from figures
 * that an all-reduce has made equal on all of them.
 * It must not write a file that it has not measured to the end. */
#include "collective.h"
#include "model.h"
#include "os/os.h"
#include "tool.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TUNE_SIZES 24
#define TUNE_CHUNKS 4
#define TUNE_WAYS 128 /* algorithm and piece */
#define TUNE_CALLS 200
#define TUNE_LARGE (512u << 10) /* from here on the size of the pieces matters */
#define TUNE_TIE 1.03           /* figures closer than that are one, and then the model's choice stays */

static const char tune_help[] =
    "usage: regroup tune -n N [options]\n"
    "\n"
    "Measures all algorithms for each collective and size on N processes of this host, or, without -n, as one member "
    "of\n"
    "the group that RG_COORDINATOR, RG_GROUP and RG_MIN_SIZE name (start it on every host), and writes the best into "
    "a\n"
    "file for RG_TUNING_FILE. The table shows them beside what the cost model would have chosen.\n"
    "\n"
    "  -n, --peers N            local processes to start\n"
    "  -c, --coordinator A:P    coordinator to join instead (RG_COORDINATOR)\n"
    "  -o, --output FILE        where to write (regroup.tuning); \"-\": standard output alone\n"
    "  -k, --collectives LIST   names with commas between (all but barrier)\n"
    "  -b, --min-bytes SIZE     smallest size (64)\n"
    "  -e, --max-bytes SIZE     largest size (16M)\n"
    "  -f, --factor F           from one size to the next (8)\n"
    "      --budget S           seconds of calls for one algorithm and size (0.05)\n"
    "      --rounds N           times that everything is measured; the best counts (2)\n"
    "      --chunks LIST        pieces to try for large sizes (64K,256K,1M); \"-\": none\n"
    "      --alloc              buffers from rg_alloc()\n"
    "      --transport NAME     auto, tcp, shm (RG_TRANSPORT)\n"
    "      --no-verify          do not measure once more with the file\n"
    "  -j, --json               one JSON object instead of the table\n"
    "  -h, --help               this text\n"
    "\n"
    "Columns: the best algorithm and its time; the cost model's choice, its time, and how many times the best that "
    "is;\n"
    "the time with the file in use. Exit code: 0 success, 1 failure, 2 wrong usage.\n"
    "\n"
    "examples:\n"
    "  regroup tune -n 4 -o /etc/regroup.tuning\n"
    "  RG_COORDINATOR=10.0.0.1:7000 RG_MIN_SIZE=8 regroup tune -k all_reduce,all_gather      (on every host)\n";

struct way {
    const rg_algorithm_t *alg;
    uint32_t chunk; /* bytes; 0: what the algorithm prefers */
    double us[TUNE_SIZES];
};

struct tune {
    uint64_t peers, min, max, factor, rounds;
    double budget_s, load; /* load: of this host before anything was measured */
    uint32_t chunks[TUNE_CHUNKS], n_chunks;
    int alloc, json, verify, rank, world;
    const char *coordinator, *output, *transport, *only;
    char group[48];
    uint64_t sizes[TUNE_SIZES];
    uint32_t n_sizes, meetings;
    struct model model;
    struct coll c; /* of the collective and group at work */
    FILE *file;    /* rank 0 */
    char path[1024];
    json_t *rows;
    uint32_t points, near, off; /* of the model's choice: all, within 10 % of the best, beyond */
    char *exceptions;
    size_t exceptions_len;
};

/* One collective's results. */
struct field {
    struct way ways[TUNE_WAYS];
    uint32_t n;
    int best[TUNE_SIZES], choice[TUNE_SIZES]; /* index of a way; choice: the cost model's */
    double with_file[TUNE_SIZES];
};

/* ---- Meeting --------------------------------------------------------------------------------------------------- */

static int tune_meet(struct tune *t, const char *algorithm, uint32_t chunk, const char *tuning_file) {
    rg_config_t cfg = RG_CONFIG_INIT;
    rg_error_t err = { RG_OK, 0, "" };
    rg_info_t info = RG_INFO_INIT;
    char name[64];
    snprintf(name, sizeof name, "%.40s.%u", t->group, t->meetings++);
    cfg.coordinator = t->coordinator;
    cfg.group = name;
    cfg.transport = t->transport;
    cfg.algorithm = algorithm;
    cfg.chunk_bytes = chunk;
    cfg.tuning_file = tuning_file;
    if (rg_group_join(&cfg, &t->c.g, &err)) return tool_failed("tune", "%s", err.text);
    t->c.info = info;
    rg_group_info(t->c.g, &t->c.info);
    if (!t->world) {
        t->world = (int)t->c.info.world_size;
        t->rank = (int)t->c.info.rank;
    }
    if ((int)t->c.info.world_size == t->world) return TOOL_OK;
    return tool_failed("tune", "%u members came, %d were there before", t->c.info.world_size, t->world);
}

static void tune_part(struct tune *t) {
    if (t->c.g) rg_group_leave(t->c.g);
    rg_group_destroy(t->c.g);
    t->c.g = NULL;
}

/* ---- Measuring ------------------------------------------------------------------------------------------------- */

static int tune_less(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static rg_status_t tune_call(struct tune *t, uint64_t count, int check, double *us) {
    rg_result_t res = RG_RESULT_INIT;
    coll_fill(&t->c, count);
    rg_status_t s = rg_barrier(t->c.g, NULL, NULL);
    if (!s) s = coll_call(&t->c, count, &res, us);
    if (!s && check && coll_wrong(&t->c, count)) s = RG_ERR_BUG;
    return s;
}

/* Median of the slowest member's times; NOTSUP where the algorithm does not apply. */
static rg_status_t tune_measure(struct tune *t, uint64_t bytes, double *median) {
    double us[TUNE_CALLS], first = 0;
    uint64_t count = coll_count(&t->c, bytes);
    rg_status_t s = tune_call(t, count, 1, &first);
    for (int i = 0; i < 2 && !s; i++) s = tune_call(t, count, 0, &first);
    if (!s) s = rg_all_reduce(t->c.g, &first, &first, 1, RG_F64, RG_MAX, NULL, NULL);
    uint64_t calls = (uint64_t)(t->budget_s * 1e6 / (first + 20));
    calls = calls < 5 ? 5 : calls > TUNE_CALLS ? TUNE_CALLS : calls;
    for (uint64_t i = 0; i < calls && !s; i++) s = tune_call(t, count, 0, &us[i]);
    if (!s) s = rg_all_reduce(t->c.g, us, us, calls, RG_F64, RG_MAX, NULL, NULL);
    if (s) return s;
    qsort(us, calls, sizeof *us, tune_less);
    *median = us[calls / 2];
    return RG_OK;
}

static int tune_fail(struct tune *t, const struct way *w, uint64_t bytes, rg_status_t s) {
    char text[400] = "";
    rg_group_errmsg(t->c.g, text, sizeof text);
    return tool_failed("tune", "rank %d: %s, %s, %llu bytes: %s: %s", t->rank, coll_name(t->c.kind),
                       w ? w->alg->name : "with the file", (unsigned long long)bytes,
                       s == RG_ERR_BUG ? "wrong result" : rg_strerror(s), text);
}

static int tune_way(struct tune *t, struct way *w, uint64_t from) {
    char algorithm[96];
    snprintf(algorithm, sizeof algorithm, "%s=%s", rg_kind_name(w->alg->kind), w->alg->name);
    int rc = tune_meet(t, algorithm, w->chunk, NULL);
    for (uint32_t i = 0; i < t->n_sizes && !rc; i++) {
        double us = 0;
        if (t->sizes[i] < from) continue;
        rg_status_t s = tune_measure(t, t->sizes[i], &us);
        if (s == RG_ERR_NOTSUP) continue;
        if (s) rc = tune_fail(t, w, t->sizes[i], s);
        else if (!w->us[i] || us < w->us[i]) w->us[i] = us;
    }
    if (!rc && t->rank == 0 && isatty(2))
        fprintf(stderr, "\r%-14s %-24s %8u bytes a piece ", coll_name(t->c.kind), w->alg->name, w->chunk);
    tune_part(t);
    return rc;
}

/* ---- What the library would do --------------------------------------------------------------------------------- */

static void tune_choices(struct tune *t, struct field *f) {
    for (uint32_t i = 0; i < t->n_sizes; i++) {
        char text[256];
        rg_coll_desc_t d = model_desc(&t->model, &t->c, coll_count(&t->c, t->sizes[i]), 0, 65536, 0);
        const rg_algorithm_t *a = rg_sched_select(&d, &t->model.cost, NULL, 0, text, sizeof text);
        f->choice[i] = -1;
        for (uint32_t k = 0; k < f->n; k++)
            if (f->ways[k].alg == a && !f->ways[k].chunk) f->choice[i] = (int)k;
    }
}

static void tune_best(const struct tune *t, struct field *f) {
    for (uint32_t i = 0; i < t->n_sizes; i++) {
        int best = -1;
        for (uint32_t k = 0; k < f->n; k++)
            if (f->ways[k].us[i] > 0 && (best < 0 || f->ways[k].us[i] < f->ways[best].us[i])) best = (int)k;
        f->best[i] = best;
    }
}

/* The way to write down: the best, or the model's choice where that is no worse. */
static int tune_pick(const struct field *f, uint32_t i) {
    int b = f->best[i], c = f->choice[i];
    if (b >= 0 && c >= 0 && f->ways[c].us[i] > 0 && f->ways[c].us[i] <= f->ways[b].us[i] * TUNE_TIE) return c;
    return b;
}

/* For large sizes the two best algorithms of each are tried with other pieces. */
static int tune_add_chunks(struct tune *t, struct field *f) {
    uint32_t plain = f->n;
    for (uint32_t k = 0; k < plain; k++) {
        int good = 0;
        for (uint32_t i = 0; i < t->n_sizes; i++) {
            uint32_t better = 0;
            if (t->sizes[i] < TUNE_LARGE || f->ways[k].us[i] <= 0) continue;
            for (uint32_t j = 0; j < plain; j++) better += f->ways[j].us[i] > 0 && f->ways[j].us[i] < f->ways[k].us[i];
            good |= better < 2;
        }
        for (uint32_t c = 0; c < t->n_chunks && good && f->n < TUNE_WAYS; c++)
            f->ways[f->n++] = (struct way){ .alg = f->ways[k].alg, .chunk = t->chunks[c] };
    }
    return f->n > plain;
}

/* ---- Results --------------------------------------------------------------------------------------------------- */

static void tune_exception(struct tune *t, const struct field *f, uint32_t i) {
    const struct way *b = &f->ways[f->best[i]], *c = &f->ways[f->choice[i]];
    char line[256];
    int n = snprintf(line, sizeof line, "#   %s, %llu bytes: %s takes %.1f us, %s %.1f us: %.2f times\n",
                     coll_name(t->c.kind), (unsigned long long)t->sizes[i], c->alg->name, c->us[i], b->alg->name,
                     b->us[i], c->us[i] / b->us[i]);
    char *p = realloc(t->exceptions, t->exceptions_len + (size_t)n + 1);
    if (!p) return;
    memcpy(p + t->exceptions_len, line, (size_t)n + 1);
    t->exceptions = p;
    t->exceptions_len += (size_t)n;
}

static void tune_show(struct tune *t, const struct field *f) {
    for (uint32_t i = 0; i < t->n_sizes; i++) {
        int b = f->best[i], c = f->choice[i];
        if (b < 0) continue;
        double best = f->ways[b].us[i], chosen = c >= 0 ? f->ways[c].us[i] : 0, off = chosen > 0 ? chosen / best : 0;
        t->points++;
        if (off > 0 && off <= 1.1) t->near++;
        else if (off > 0) {
            t->off++;
            tune_exception(t, f, i);
        }
        if (t->json) {
            json_t *ways = json_array();
            for (uint32_t k = 0; k < f->n; k++)
                if (f->ways[k].us[i] > 0)
                    json_array_append_new(ways,
                                          json_pack("{s:s s:I s:f}", "algorithm", f->ways[k].alg->name, "chunk_bytes",
                                                    (json_int_t)f->ways[k].chunk, "us", f->ways[k].us[i]));
            json_array_append_new(
                t->rows, json_pack("{s:s s:I s:s s:I s:f s:s s:f s:f s:f s:o}", "collective", coll_name(t->c.kind),
                                   "bytes", (json_int_t)t->sizes[i], "best", f->ways[b].alg->name, "best_chunk_bytes",
                                   (json_int_t)f->ways[b].chunk, "best_us", best, "model",
                                   c >= 0 ? f->ways[c].alg->name : "?", "model_us", chosen, "model_times_best", off,
                                   "with_file_us", f->with_file[i], "measured", ways));
            continue;
        }
        char piece[24] = "", file[24] = "-";
        if (f->ways[b].chunk) snprintf(piece, sizeof piece, "/%uK", f->ways[b].chunk >> 10);
        if (f->with_file[i] > 0) snprintf(file, sizeof file, "%.1f", f->with_file[i]);
        printf("%-14s %10llu %20s%-6s %12.1f %20s %12.1f %7.2f%s %12s\n", coll_name(t->c.kind),
               (unsigned long long)t->sizes[i], f->ways[b].alg->name, piece, best, c >= 0 ? f->ways[c].alg->name : "?",
               chosen, off, off > 1.1 ? "!" : " ", file);
    }
    fflush(stdout);
}

/* A line holds up to the geometric middle between its last size and the next, the last one for all beyond. */
static void tune_write(struct tune *t, const struct field *f) {
    uint32_t hosts = 0;
    for (uint32_t i = 0; i < t->model.n; i++) hosts += t->model.groups[i] == i;
    for (uint32_t i = 0; i < t->n_sizes; i++) {
        int last = i + 1 == t->n_sizes, p = tune_pick(f, i), next = last ? -1 : tune_pick(f, i + 1);
        char line[256];
        if (p < 0 || p == next) continue;
        rg_tuning_entry_t e = {
            model_kind(t->c.kind), t->model.n, hosts, UINT64_MAX, f->ways[p].chunk, f->ways[p].alg
        };
        if (!last) e.bytes = (uint64_t)sqrt((double)t->sizes[i] * (double)t->sizes[i + 1]);
        rg_tuning_line(&e, line, sizeof line);
        fputs(line, t->file);
    }
    fflush(t->file);
}

/* ---- The whole ------------------------------------------------------------------------------------------------- */

static int tune_collective(struct tune *t, coll_kind_t kind, struct field *f) {
    int rc = TOOL_OK;
    memset(f, 0, sizeof *f);
    t->c.kind = kind;
    t->c.info.world_size = (uint32_t)t->world;
    for (const rg_algorithm_t *const *a = rg_algorithms; *a && f->n < TUNE_WAYS; a++)
        if ((*a)->kind == model_kind(kind)) f->ways[f->n++].alg = *a;
    for (uint64_t r = 0; r < t->rounds; r++)
        for (uint32_t k = 0; k < f->n && !rc; k++) rc = tune_way(t, &f->ways[k], 0);
    uint32_t plain = f->n;
    if (!rc && tune_add_chunks(t, f))
        for (uint64_t r = 0; r < t->rounds; r++)
            for (uint32_t k = plain; k < f->n && !rc; k++) rc = tune_way(t, &f->ways[k], TUNE_LARGE);
    if (rc) return rc;
    tune_best(t, f);
    tune_choices(t, f);
    if (t->file) tune_write(t, f);
    return rc;
}

/* Nobody reads the file before rank 0 has come to a meeting after writing it. */
static int tune_with_file(struct tune *t, struct field *f, const coll_kind_t *kinds, uint32_t n) {
    int rc = tune_meet(t, NULL, 0, NULL);
    tune_part(t);
    if (!rc) rc = tune_meet(t, NULL, 0, t->path);
    for (uint32_t k = 0; k < n && !rc; k++)
        for (uint64_t r = 0; r < t->rounds; r++)
            for (uint32_t i = 0; i < t->n_sizes && !rc; i++) {
                double us = 0;
                t->c.kind = kinds[k];
                rg_status_t s = tune_measure(t, t->sizes[i], &us);
                if (s) rc = tune_fail(t, NULL, t->sizes[i], s);
                else if (!f[k].with_file[i] || us < f[k].with_file[i]) f[k].with_file[i] = us;
            }
    tune_part(t);
    return rc;
}

static uint32_t tune_kinds(const struct tune *t, coll_kind_t *kinds) {
    uint32_t n = 0;
    for (int k = 0; k < COLL_COUNT; k++) {
        const char *name = coll_name((coll_kind_t)k), *at = t->only ? strstr(t->only, name) : name;
        size_t len = strlen(name);
        while (t->only && at && ((at != t->only && at[-1] != ',') || (at[len] && at[len] != ',')))
            at = strstr(at + 1, name);
        if (at && (t->only || k != COLL_BARRIER)) kinds[n++] = (coll_kind_t)k;
    }
    return n;
}

static int tune_report(struct tune *t, struct field *f, const coll_kind_t *kinds, uint32_t n) {
    if (t->rank) return TOOL_OK;
    if (!t->json) {
        printf("# regroup %s, tune, %d members, %llu rounds%s\n", rg_version(), t->world, (unsigned long long)t->rounds,
               t->alloc ? ", memory of rg_alloc" : "");
        printf("%-14s %10s %26s %12s %20s %12s %8s %12s\n", "# collective", "bytes", "best", "us", "cost model", "us",
               "times", "with file");
    }
    for (uint32_t k = 0; k < n; k++) {
        t->c.kind = kinds[k];
        tune_show(t, &f[k]);
    }
    if (t->load > (double)model_cores() / 2)
        fprintf(stderr, "regroup tune: this host was busy with other things (load %.1f): the figures are rough\n",
                t->load);
    if (t->json) {
        json_t *all = json_pack("{s:s s:I s:I s:I s:I s:s s:O}", "version", rg_version(), "ranks", (json_int_t)t->world,
                                "points", (json_int_t)t->points, "within_10_percent", (json_int_t)t->near, "beyond",
                                (json_int_t)t->off, "file", t->output, "rows", t->rows);
        json_dumpf(all, stdout, JSON_INDENT(2));
        printf("\n");
        json_decref(all);
        return TOOL_OK;
    }
    printf("# the cost model's choice is within 10 %% of the best at %u of %u points%s\n%s", t->near, t->points,
           t->off ? "; not at:" : "", t->exceptions ? t->exceptions : "");
    if (strcmp(t->output, "-") != 0) printf("# written: %s\n", t->output);
    return TOOL_OK;
}

/* The file takes its name when it is whole. */
static int tune_open(struct tune *t) {
    int only_out = !strcmp(t->output, "-");
    t->verify = t->verify && !only_out && t->peers;
    snprintf(t->path, sizeof t->path, "%s.new", t->output);
    if (t->rank) return TOOL_OK;
    const char *obstacle = only_out ? NULL : rg_os_in_the_way(t->output);
    if (obstacle)
        return tool_failed("tune", "%s is %s, which a file is not put in the place of; name another", t->output,
                           obstacle);
    t->file = only_out ? stdout : fopen(t->path, "w");
    if (!t->file) return tool_failed("tune", "%s: %s", t->path, strerror(errno));
    fprintf(t->file, "# What `regroup tune` measured: %d members. RG_TUNING_FILE names it, the same on all members.\n",
            t->world);
    return TOOL_OK;
}

static int tune_close(struct tune *t, int rc) {
    int bad = t->file && ferror(t->file);
    if (t->file && t->file != stdout) bad |= fclose(t->file) != 0;
    if (!t->file || t->file == stdout) return rc;
    if (!rc && bad) rc = tool_failed("tune", "%s: %s", t->path, strerror(errno));
    if (rc) remove(t->path);
    else if (rename(t->path, t->output)) rc = tool_failed("tune", "%s: %s", t->output, strerror(errno));
    return rc;
}

static int tune_run(struct tune *t, struct field *fields) {
    coll_kind_t kinds[COLL_COUNT];
    uint32_t n = tune_kinds(t, kinds);
    int rc = tune_meet(t, NULL, 0, NULL);
    char name[64];
    snprintf(name, sizeof name, "%.40s.0", t->group);
    if (!rc) rc = model_of_group(&t->model, "tune", t->coordinator, name, model_cores());
    if (!rc && rg_barrier(t->c.g, NULL, NULL)) rc = tool_failed("tune", "the members do not stay together");
    tune_part(t);
    if (!rc) rc = tune_open(t);
    for (uint32_t k = 0; k < n && !rc; k++) rc = tune_collective(t, kinds[k], &fields[k]);
    if (!rc && t->verify) rc = tune_with_file(t, fields, kinds, n);
    rc = tune_close(t, rc);
    if (t->rank == 0 && isatty(2)) fprintf(stderr, "\r%64s\r", "");
    return rc ? rc : tune_report(t, fields, kinds, n);
}

static int tune_member(void *arg) {
    struct tune *t = arg;
    const char *group = getenv("RG_GROUP"), *address = getenv("RG_COORDINATOR");
    struct field *fields = calloc(COLL_COUNT, sizeof *fields);
    int rc = TOOL_OK;
    snprintf(t->group, sizeof t->group, "%s", group && *group ? group : "tune");
    if (!t->coordinator) t->coordinator = address;
    if (!t->coordinator) rc = tool_usage("tune", "-n N, or a coordinator: -c or RG_COORDINATOR");
    t->rows = json_array();
    t->c.dtype = RG_F32;
    t->c.op = RG_SUM;
    t->c.alloc = t->alloc;
    if (!rc) {
        if (!fields || coll_open(&t->c, t->max))
            rc = tool_failed("tune", "out of memory: two buffers of %llu bytes", (unsigned long long)t->max);
        else rc = tune_run(t, fields);
    }
    rg_group_destroy(t->c.g);
    coll_close(&t->c);
    model_free(&t->model);
    json_decref(t->rows);
    free(t->exceptions);
    free(fields);
    return rc;
}

/* ---- Options --------------------------------------------------------------------------------------------------- */

enum { BUDGET = 256, ROUNDS, CHUNKS, ALLOC, TRANSPORT, NO_VERIFY };

static const struct option tune_long[] = { { "peers", required_argument, NULL, 'n' },
                                           { "coordinator", required_argument, NULL, 'c' },
                                           { "output", required_argument, NULL, 'o' },
                                           { "collectives", required_argument, NULL, 'k' },
                                           { "min-bytes", required_argument, NULL, 'b' },
                                           { "max-bytes", required_argument, NULL, 'e' },
                                           { "factor", required_argument, NULL, 'f' },
                                           { "budget", required_argument, NULL, BUDGET },
                                           { "rounds", required_argument, NULL, ROUNDS },
                                           { "chunks", required_argument, NULL, CHUNKS },
                                           { "alloc", no_argument, NULL, ALLOC },
                                           { "transport", required_argument, NULL, TRANSPORT },
                                           { "no-verify", no_argument, NULL, NO_VERIFY },
                                           { "json", no_argument, NULL, 'j' },
                                           { "help", no_argument, NULL, 'h' },
                                           { 0, 0, 0, 0 } };

static int tune_chunks(struct tune *t, const char *text) {
    char one[32];
    t->n_chunks = 0;
    if (!strcmp(text, "-")) return 1;
    while (*text) {
        uint64_t v;
        size_t len = strcspn(text, ",");
        snprintf(one, sizeof one, "%.*s", (int)len, text);
        if (t->n_chunks == TUNE_CHUNKS || !tool_bytes(one, &v) || !v || v > UINT32_MAX) return 0;
        t->chunks[t->n_chunks++] = (uint32_t)v;
        text += len + (text[len] == ',');
    }
    return 1;
}

static int tune_option(struct tune *t, int o, const char *text) {
    uint64_t ns = 0;
    switch (o) {
    case 'n': return tool_number(text, 1, 1024, &t->peers);
    case 'b': return tool_bytes(text, &t->min) && t->min;
    case 'e': return tool_bytes(text, &t->max) && t->max;
    case 'f': return tool_number(text, 2, 1u << 30, &t->factor);
    case ROUNDS: return tool_number(text, 1, 100, &t->rounds);
    case BUDGET:
        if (!tool_duration(text, &ns) || !ns) return 0;
        t->budget_s = (double)ns / 1e9;
        return 1;
    case CHUNKS: return tune_chunks(t, text);
    case 'c': t->coordinator = text; return 1;
    case 'o': t->output = text; return strlen(text) < 1000;
    case 'k': t->only = text; return 1;
    case 'j': t->json = 1; return 1;
    case ALLOC: t->alloc = 1; return 1;
    case TRANSPORT: t->transport = text; return 1;
    case NO_VERIFY: t->verify = 0; return 1;
    default: return 0;
    }
}

static int tune_options(struct tune *t, int argc, char **argv) {
    coll_kind_t kinds[COLL_COUNT];
    int o, at = 0;
    uint32_t commas = 1;
    while ((o = getopt_long(argc, argv, "n:c:o:k:b:e:f:jh", tune_long, NULL)) != -1) {
        if (o == '?') return tool_wrong_option("tune", argv);
        if (o == 'h') {
            fputs(tune_help, stdout);
            return -1;
        }
        if (tune_option(t, o, optarg)) continue;
        for (at = 0; tune_long[at].val != o;) at++;
        return tool_bad_value("tune", tune_help, tune_long[at].name, optarg);
    }
    if (optind < argc) return tool_usage("tune", "unexpected argument \"%s\"", argv[optind]);
    if (t->min > t->max) return tool_usage("tune", "the smallest size is larger than the largest");
    if (t->peers && t->coordinator) return tool_usage("tune", "-n starts its own coordinator: leave out -c");
    for (const char *s = t->only; s && *s; s++) commas += *s == ',';
    if (t->only && tune_kinds(t, kinds) != commas)
        return tool_usage("tune", "--collectives \"%s\": not all of these are collectives", t->only);
    for (uint64_t b = t->min;
         b <= t->max && t->n_sizes<TUNE_SIZES; b = b> t->max / t->factor ? t->max + 1 : b * t->factor)
        t->sizes[t->n_sizes++] = b;
    return TOOL_OK;
}

int tool_tune(int argc, char **argv) {
    struct tune t = { .min = 64, .max = 16u << 20, .factor = 8, .rounds = 2, .budget_s = 0.05, .verify = 1 };
    t.output = "regroup.tuning";
    if (getloadavg(&t.load, 1) != 1) t.load = 0;
    tune_chunks(&t, "64K,256K,1M");
    int rc = tune_options(&t, argc, argv);
    if (rc) return rc < 0 ? TOOL_OK : rc;
    return t.peers ? tool_local("tune", t.peers, tune_member, &t) : tune_member(&t);
}
