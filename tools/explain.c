/* explain.c: `regroup explain`: which algorithm a collective of some size takes, what the cost model says of all of
 * them, and the schedule of one rank. It measures nothing and joins nothing: it asks the library's own pure functions,
 * with the links of a running group when a coordinator is named. */
#include "model.h"
#include "tool.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define EXPLAIN_LINES 48

static const char explain_help[] =
    "usage: regroup explain COLLECTIVE BYTES [options]\n"
    "\n"
    "Says which algorithm a collective takes, what is predicted for all of them, and prints the steps of one rank.\n"
    "COLLECTIVE and BYTES are as in `regroup bench`: BYTES is the whole vector.\n"
    "\n"
    "  -n, --peers N            members (4)\n"
    "      --hosts H            on so many hosts, in equal parts by rank (1)\n"
    "      --sites S            which are on so many sites (1)\n"
    "      --cores C            of a host (as many as this one has)\n"
    "      --tcp                members on one host use TCP, not shared memory\n"
    "  -c, --coordinator A:P    instead of these: the group that this coordinator knows, with the links as measured\n"
    "  -g, --group NAME         which of its groups (\"default\")\n"
    "  -t, --type TYPE          of the elements (f32)\n"
    "  -r, --root RANK          where there is one (0)\n"
    "      --in-place           results over inputs\n"
    "      --deterministic      only algorithms that add up in rank order\n"
    "  -a, --algorithm LIST     as RG_ALGORITHM, which counts as well\n"
    "      --chunk SIZE         as RG_CHUNK_BYTES, which counts as well\n"
    "      --tuning-file FILE   as RG_TUNING_FILE, which counts as well\n"
    "      --rank RANK          whose steps are printed (0)\n"
    "      --steps              print all of them, not only the first 48\n"
    "  -j, --json               choice and predictions as one JSON object\n"
    "  -h, --help               this text\n"
    "\n"
    "Exit code: 0 success, 1 failure, 2 wrong usage.\n"
    "\n"
    "examples:\n"
    "  regroup explain all_reduce 16M -n 8 --hosts 2\n"
    "  regroup explain all_gather 4K -c 10.0.0.1:7000 --group train\n";

struct explain {
    struct coll c;
    struct model m;
    uint64_t bytes, count, small, n, hosts, sites, cores, rank, chunk;
    int tcp, deterministic, steps, json;
    const char *coordinator, *group, *forced, *tuning_file;
    rg_tuning_t *tuning;
    rg_chosen_t why; /* who has chosen */
};

/* One algorithm of the table, looked at for this call. */
struct candidate {
    const rg_algorithm_t *alg;
    rg_coll_desc_t d;
    rg_schedule_t *s; /* NULL: it does not apply, or cannot be built */
    double seconds;
    uint64_t sends, sent;
};

/* The steps of the rank looked at, and what it sends. */
static void consider(struct explain *e, const rg_prediction_t *p, uint32_t hub, struct candidate *k) {
    memset(k, 0, sizeof *k);
    k->alg = p->alg;
    if (!p->applies) return;
    k->d = model_desc(&e->m, &e->c, e->count, (uint32_t)e->rank, e->small, e->deterministic);
    k->d.chunk = p->chunk;
    k->d.hub = hub;
    k->seconds = p->seconds;
    if (rg_sched_build(p->alg, &k->d, &k->s) != RG_OK) k->s = NULL;
    for (uint32_t i = 0; k->s && i < k->s->n_steps; i++) {
        const rg_step_t *x = &k->s->steps[i];
        if (x->kind != RG_STEP_SEND) continue;
        k->sends++;
        k->sent += x->a.len * (x->a.buf == RG_BUF_TMP ? k->d.acc_size : x->a.buf == RG_BUF_AUX ? 8 : k->d.elem_size);
    }
}

static void print_link(const struct explain *e, uint32_t l, const char *name) {
    if (!e->m.net.link[l].present) return;
    printf("# %-16s %9.2f us, %7.2f GB/s%s\n", name, e->m.cost.level[l].alpha * 1e6, 1e-9 / e->m.cost.level[l].beta,
           l == 0 && e->m.net.shm ? ", shared memory" : "");
}

static void print_head(const struct explain *e) {
    uint32_t hosts = 0;
    for (uint32_t i = 0; i < e->m.n; i++) hosts += e->m.groups[i] == i;
    printf("# %s of %llu bytes, %s, %u members on %u host%s; links %s:\n", coll_name(e->c.kind),
           (unsigned long long)coll_bytes(&e->c, e->count), rg_dtype_name(e->c.dtype), e->m.n, hosts,
           hosts == 1 ? "" : "s", e->m.measured ? "as measured" : "as the library takes them without measurements");
    print_link(e, 0, "on one host");
    print_link(e, 1, e->m.net.levels > 1 ? "on one site" : "between hosts");
    print_link(e, 2, "between sites");
    if (e->m.cost.sharing > 1) printf("# %.1f members share a core\n", e->m.cost.sharing);
}

static void print_candidate(const struct explain *e, const struct candidate *k, const rg_algorithm_t *chosen) {
    char mark = k->alg == chosen ? '*' : ' ';
    if (!k->s) {
        printf("%c %-22s %14s\n", mark, k->alg->name, "does not apply");
        return;
    }
    (void)e;
    printf("%c %-22s %14.2f %12llu %8u %8llu %14llu %14llu\n", mark, k->alg->name, k->seconds * 1e6,
           (unsigned long long)(k->d.chunk * k->d.elem_size), k->s->n_steps, (unsigned long long)k->sends,
           (unsigned long long)k->sent, (unsigned long long)(k->s->tmp_elems * k->d.acc_size));
}

static int print_schedule(const struct explain *e, const struct candidate *k) {
    size_t len = rg_sched_print(k->s, NULL, 0);
    char *text = malloc(len + 1), *at = text;
    int lines = 0;
    if (!text) return tool_failed("explain", "out of memory: %zu bytes", len);
    rg_sched_print(k->s, text, len + 1);
    printf("\n# rank %u of %u by %s (%s), %u steps, %llu bytes of scratch\n", k->d.rank, k->d.size, k->alg->name,
           k->alg->source, k->s->n_steps, (unsigned long long)(k->s->tmp_elems * k->d.acc_size));
    while (*at && (e->steps || lines++ < EXPLAIN_LINES)) {
        char *nl = strchr(at, '\n');
        size_t n = nl ? (size_t)(nl - at) + 1 : strlen(at);
        fwrite(at, 1, n, stdout);
        at += n;
    }
    if (*at) printf("# ...; --steps prints all\n");
    free(text);
    return TOOL_OK;
}

static json_t *candidate_json(const struct candidate *k, const rg_algorithm_t *chosen) {
    json_t *o = json_pack("{s:s s:b s:b s:s}", "algorithm", k->alg->name, "chosen", k->alg == chosen, "applies",
                          k->s != NULL, "source", k->alg->source);
    if (!k->s) return o;
    json_object_set_new(o, "predicted_us", json_real(k->seconds * 1e6));
    json_object_set_new(o, "chunk_bytes", json_integer((json_int_t)(k->d.chunk * k->d.elem_size)));
    json_object_set_new(o, "steps", json_integer(k->s->n_steps));
    json_object_set_new(o, "sends", json_integer((json_int_t)k->sends));
    json_object_set_new(o, "sent_bytes", json_integer((json_int_t)k->sent));
    json_object_set_new(o, "scratch_bytes", json_integer((json_int_t)(k->s->tmp_elems * k->d.acc_size)));
    return o;
}

static int by_cost(const void *x, const void *y) {
    const struct candidate *a = x, *b = y;
    if (!a->s != !b->s) return !a->s - !b->s;
    return (a->seconds > b->seconds) - (a->seconds < b->seconds);
}

static const char *explain_why(const struct explain *e) {
    static const char *const texts[] = { "nobody", "the caller (RG_ALGORITHM)", "the tuning file", "the cost model" };
    return texts[e->why];
}

static int explain_show(struct explain *e, struct candidate *k, uint32_t n, const rg_algorithm_t *chosen) {
    int rc = TOOL_OK;
    if (e->json) {
        json_t *list = json_array();
        for (uint32_t i = 0; i < n; i++) json_array_append_new(list, candidate_json(&k[i], chosen));
        json_t *all = json_pack("{s:s s:I s:I s:b s:s s:s s:o}", "collective", coll_name(e->c.kind), "bytes",
                                (json_int_t)coll_bytes(&e->c, e->count), "ranks", (json_int_t)e->m.n, "measured",
                                e->m.measured, "choice", chosen->name, "chosen_by", explain_why(e), "algorithms", list);
        json_dumpf(all, stdout, JSON_INDENT(2));
        printf("\n");
        json_decref(all);
        return rc;
    }
    print_head(e);
    printf("# %s is the choice of %s\n", chosen->name, explain_why(e));
    printf("# %-22s %14s %12s %8s %8s %14s %14s   (steps of rank %llu)\n", "algorithm", "predicted (us)", "piece",
           "steps", "sends", "bytes sent", "scratch", (unsigned long long)e->rank);
    for (uint32_t i = 0; i < n; i++) print_candidate(e, &k[i], chosen);
    for (uint32_t i = 0; i < n; i++)
        if (k[i].alg == chosen && k[i].s) rc = print_schedule(e, &k[i]);
    return rc;
}

static int explain_run(struct explain *e) {
    char text[512] = "";
    const rg_choice_t how = { e->forced && *e->forced ? e->forced : NULL, e->tuning, (uint32_t)e->chunk };
    e->c.info.world_size = e->m.n;
    e->count = coll_count(&e->c, e->bytes);
    if (e->rank >= e->m.n || e->c.root >= e->m.n)
        return tool_usage("explain", "rank %llu and root %u: there are %u members", (unsigned long long)e->rank,
                          e->c.root, e->m.n);
    rg_coll_desc_t d = model_desc(&e->m, &e->c, e->count, (uint32_t)e->rank, e->small, e->deterministic);
    const rg_algorithm_t *chosen = rg_sched_choose(&d, &e->m.cost, &how, &e->why, text, sizeof text);
    if (!chosen) return tool_failed("explain", "%s", text);
    size_t n = rg_sched_explain(&d, &e->m.cost, &how, NULL, 0);
    rg_prediction_t *p = calloc(n + 1, sizeof *p);
    struct candidate *k = calloc(n + 1, sizeof *k);
    int rc = TOOL_OK;
    if (!p || !k) {
        rc = tool_failed("explain", "out of memory");
    } else {
        rg_sched_explain(&d, &e->m.cost, &how, p, n);
        for (size_t i = 0; i < n; i++) {
            if (p[i].alg == chosen) p[i].chunk = d.chunk; /* the tuning file may have its own */
            consider(e, &p[i], d.hub, &k[i]);
        }
        qsort(k, n, sizeof *k, by_cost);
        rc = explain_show(e, k, (uint32_t)n, chosen);
    }
    for (size_t i = 0; k && i < n; i++) rg_sched_free(k[i].s);
    free(k);
    free(p);
    return rc;
}

static int explain_tuning(struct explain *e) {
    char why[256], *text = NULL;
    size_t len = 0, cap = 0;
    if (!e->tuning_file || !*e->tuning_file) return TOOL_OK;
    FILE *f = fopen(e->tuning_file, "r");
    if (!f) return tool_failed("explain", "%s: %s", e->tuning_file, strerror(errno));
    ssize_t got = getdelim(&text, &cap, 0, f);
    if (got > 0) len = (size_t)got;
    fclose(f);
    rg_status_t s = rg_tuning_parse(text ? text : "", len, &e->tuning, why, sizeof why);
    free(text);
    return s ? tool_failed("explain", "%s: %s", e->tuning_file, s == RG_ERR_INVALID ? why : rg_strerror(s)) : TOOL_OK;
}

/* ---- Options --------------------------------------------------------------------------------------------------- */

enum { HOSTS = 256, SITES, CORES, TCP, IN_PLACE, DETERMINISTIC, CHUNK, RANK, STEPS, TUNING };

static const struct option explain_long[] = { { "peers", required_argument, NULL, 'n' },
                                              { "hosts", required_argument, NULL, HOSTS },
                                              { "sites", required_argument, NULL, SITES },
                                              { "cores", required_argument, NULL, CORES },
                                              { "tcp", no_argument, NULL, TCP },
                                              { "coordinator", required_argument, NULL, 'c' },
                                              { "group", required_argument, NULL, 'g' },
                                              { "type", required_argument, NULL, 't' },
                                              { "root", required_argument, NULL, 'r' },
                                              { "in-place", no_argument, NULL, IN_PLACE },
                                              { "deterministic", no_argument, NULL, DETERMINISTIC },
                                              { "algorithm", required_argument, NULL, 'a' },
                                              { "chunk", required_argument, NULL, CHUNK },
                                              { "tuning-file", required_argument, NULL, TUNING },
                                              { "rank", required_argument, NULL, RANK },
                                              { "steps", no_argument, NULL, STEPS },
                                              { "json", no_argument, NULL, 'j' },
                                              { "help", no_argument, NULL, 'h' },
                                              { 0, 0, 0, 0 } };

static int explain_option(struct explain *e, int o, const char *text) {
    uint64_t v = 0;
    switch (o) {
    case 'n': return tool_number(text, 1, 4096, &e->n);
    case HOSTS: return tool_number(text, 1, 4096, &e->hosts);
    case SITES: return tool_number(text, 1, 4096, &e->sites);
    case CORES: return tool_number(text, 1, 65535, &e->cores);
    case RANK: return tool_number(text, 0, UINT32_MAX, &e->rank);
    case CHUNK: return tool_bytes(text, &e->chunk) && e->chunk <= UINT32_MAX;
    case 'r':
        if (!tool_number(text, 0, UINT32_MAX, &v)) return 0;
        e->c.root = (uint32_t)v;
        return 1;
    case 't': return tool_dtype(text, &e->c.dtype);
    case 'c': e->coordinator = text; return 1;
    case 'g': e->group = text; return 1;
    case 'a': e->forced = text; return 1;
    case TUNING: e->tuning_file = text; return 1;
    case 'j': e->json = 1; return 1;
    case TCP: e->tcp = 1; return 1;
    case IN_PLACE: e->c.in_place = 1; return 1;
    case DETERMINISTIC: e->deterministic = 1; return 1;
    case STEPS: e->steps = 1; return 1;
    default: return 0;
    }
}

static int explain_options(struct explain *e, int argc, char **argv) {
    int o, at = 0;
    while ((o = getopt_long(argc, argv, "n:c:g:t:r:a:jh", explain_long, NULL)) != -1) {
        if (o == '?') return tool_wrong_option("explain", argv);
        if (o == 'h') {
            fputs(explain_help, stdout);
            return -1;
        }
        if (explain_option(e, o, optarg)) continue;
        for (at = 0; explain_long[at].val != o;) at++;
        return tool_bad_value("explain", explain_help, explain_long[at].name, optarg);
    }
    if (argc - optind != 2) return tool_usage("explain", "COLLECTIVE and BYTES, for example: all_reduce 16M");
    if (!coll_find(argv[optind], &e->c.kind))
        return tool_usage("explain", "there is no collective \"%s\"", argv[optind]);
    if (!tool_bytes(argv[optind + 1], &e->bytes))
        return tool_usage("explain", "\"%s\" is no size: 4096, 64K, 16M", argv[optind + 1]);
    if (e->hosts > e->n || e->sites > e->hosts)
        return tool_usage("explain", "%llu members on %llu hosts on %llu sites", (unsigned long long)e->n,
                          (unsigned long long)e->hosts, (unsigned long long)e->sites);
    return TOOL_OK;
}

int tool_explain(int argc, char **argv) {
    struct explain e = { .n = 4, .hosts = 1, .sites = 1, .small = 65536, .group = "default" };
    e.c.dtype = RG_F32;
    e.cores = model_cores();
    tool_env_bytes("RG_CHUNK_BYTES", &e.chunk);
    tool_env_bytes("RG_SMALL_BYTES", &e.small);
    e.forced = getenv("RG_ALGORITHM");
    e.tuning_file = getenv("RG_TUNING_FILE");
    int rc = explain_options(&e, argc, argv);
    if (rc) return rc < 0 ? TOOL_OK : rc;
    if (e.coordinator) rc = model_of_group(&e.m, "explain", e.coordinator, e.group, (uint32_t)e.cores);
    else if (!model_plain(&e.m, (uint32_t)e.n, (uint32_t)e.hosts, (uint32_t)e.sites, (uint32_t)e.cores, !e.tcp))
        rc = tool_failed("explain", "out of memory");
    if (!rc) rc = explain_tuning(&e);
    if (!rc) rc = explain_run(&e);
    rg_tuning_free(e.tuning);
    model_free(&e.m);
    return rc;
}
