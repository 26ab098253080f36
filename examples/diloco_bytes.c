/* diloco_bytes.c: the byte-level model of train_bytes.c trained by members that talk seldom: each on its own part of
 * the text, by the outer optimiser of regroup_diloco.h in the variant that --variant names, or, to compare with,
 * data-parallel with an all-reduce at every step. Rank 0 measures the loss on text that nobody trains on, and prints it
 * with the bytes that it has sent and the time; --csv keeps that. Members may be killed and may join at any time. It
 * relies on the public headers alone and is written to be read; it must not reach into the library. */
#include <regroup_diloco.h>

#define PROGRAM "diloco_bytes"
#include "bytes_model.h"

#include <getopt.h>

enum { PARALLEL = RG_DILOCO_VARIANT_COUNT };

typedef struct options {
    uint32_t variant, steps, batch, hidden, report, rejoins, shards, slow_ms, eval;
    uint64_t seed, max_text;
    float rate;
    const char *csv;
    rg_diloco_config_t outer;
} options_t;

typedef struct train {
    options_t opt;
    text_t text;
    model_t model;
    rg_group_t *group;
    rg_diloco_t *outer; /* NULL: data-parallel */
    rg_state_t *state;  /* data-parallel: what newcomers need */
    uint64_t own_steps; /* of this process's Adam, or all of the group's when data-parallel */
    uint32_t rank, world;
    double begin_ms, aside_ms, waited_ms; /* aside: for measuring the loss, which is no training */
    float loss;
} train_t;

static int complain(train_t *t, const char *what, rg_status_t status, const char *text) {
    char own[512] = "";
    if (!text[0] && t->group) rg_group_errmsg(t->group, own, sizeof own);
    fprintf(stderr, PROGRAM ": %s: %s: %s (%s)\n", what, rg_status_name(status),
            text[0]  ? text
            : own[0] ? own
                     : rg_strerror(status),
            rg_status_advice(status));
    return (int)status;
}

/* ---- Measuring --------------------------------------------------------------------------------------------- */

/* Mean loss in nats over samples of the last sixteenth of the text, the same ones every time. */
static double held_out_loss(train_t *t, uint32_t samples) {
    uint64_t from = t->text.size / 16 * 15, room = t->text.size - from - CONTEXT;
    double sum = 0;
    float z[BYTES];
    for (uint32_t i = 0; i < samples; i++) {
        const unsigned char *ctx = t->text.data + from + mix(i) % room;
        sum += (double)forward(&t->model, ctx, ctx[CONTEXT], z);
    }
    return sum / samples;
}

static uint64_t step_of(const train_t *t) {
    rg_diloco_stats_t s = RG_DILOCO_STATS_INIT;
    if (!t->outer) return t->own_steps;
    rg_diloco_info(t->outer, &s);
    return s.steps;
}

static void report(train_t *t, const char *what, uint32_t samples) {
    rg_info_t info = RG_INFO_INIT;
    double now = now_ms(), seconds = (now - t->begin_ms - t->aside_ms) * 1e-3;
    if (rg_group_info(t->group, &info) != RG_OK) return;
    const char *name = t->outer ? rg_diloco_variant_name(t->opt.outer.variant) : "parallel";
    double loss = held_out_loss(t, samples);
    printf("%s: variant=%s step=%llu held_out=%.4f loss=%.4f sent_bytes=%llu seconds=%.2f waited=%.3f world=%u\n", what,
           name, (unsigned long long)step_of(t), loss, (double)t->loss, (unsigned long long)info.bytes_sent, seconds,
           t->waited_ms * 1e-3 / (seconds > 0 ? seconds : 1), t->world);
    FILE *f = t->opt.csv ? fopen(t->opt.csv, "a") : NULL;
    if (f) {
        fprintf(f, "%s,%llu,%.5f,%.5f,%llu,%.3f,%u\n", name, (unsigned long long)step_of(t), loss, (double)t->loss,
                (unsigned long long)info.bytes_sent, seconds, t->world);
        fclose(f);
    }
    t->aside_ms += now_ms() - now;
}

/* ---- Training ---------------------------------------------------------------------------------------------- */

/* Gradients of this member's next batch, from its own part of the text. */
static void gradients(train_t *t, uint64_t step) {
    uint64_t all = t->text.size / 16 * 15, part = all / t->opt.shards, from = part * (t->rank % t->opt.shards);
    compute_gradients(&t->model, &t->text, from, from + part, mix(mix(t->opt.seed ^ step) ^ t->rank), t->opt.batch);
    if (t->opt.slow_ms) { /* plays a slower machine */
        struct timespec pause = { t->opt.slow_ms / 1000, (long)(t->opt.slow_ms % 1000) * 1000000 };
        nanosleep(&pause, NULL);
    }
}

/* Every step by itself; what comes from others, and how, is the layer's affair. */
static int outer_step(train_t *t) {
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    gradients(t, step_of(t));
    t->loss = t->model.grad[t->model.params];
    adam(&t->model, ++t->own_steps, t->opt.rate);
    rg_status_t status = rg_diloco_step(t->outer, (uint64_t)t->opt.batch, &r);
    t->waited_ms += (double)r.wait_ns * 1e-6;
    t->world = r.world_size;
    t->rank = r.rank;
    if (t->rank == 0 && (r.joined || r.lost))
        printf("change: step=%llu lost=%u joined=%u world=%u\n", (unsigned long long)step_of(t), r.lost, r.joined,
               r.world_size);
    /* A round that failed has changed nothing; the next one says it all. */
    if (status == RG_ERR_TIMEOUT) printf("round given up: %s\n", r.text);
    else if (status != RG_OK) return complain(t, "step", status, r.text);
    return 0;
}

/* Brings newcomers up to date where they enter. */
static int share_state(train_t *t) {
    rg_state_opts_t opts = RG_STATE_OPTS_INIT;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    opts.rule = RG_STATE_NEWEST;
    rg_status_t status = rg_state_sync(t->group, t->state, &opts, &r);
    if (status != RG_OK) return complain(t, "state", status, r.text);
    t->own_steps = r.revision ? r.revision - 1 : 0;
    rg_state_set_revision(t->state, t->own_steps + 1);
    return 0;
}

static int parallel_step(train_t *t) {
    model_t *m = &t->model;
    rg_change_t at = RG_CHANGE_INIT;
    gradients(t, t->own_steps);
    double before = now_ms();
    rg_status_t status = rg_all_reduce(t->group, m->grad, m->grad, m->params + 1, RG_F32, RG_AVG, NULL, NULL);
    if (status != RG_OK) return complain(t, "all-reduce of the gradients", status, "");
    t->waited_ms += now_ms() - before;
    t->loss = m->grad[m->params];
    adam(m, ++t->own_steps, t->opt.rate);
    rg_state_set_revision(t->state, t->own_steps + 1);
    status = rg_group_boundary(t->group, &at);
    if (status != RG_OK) return complain(t, "boundary", status, "");
    t->rank = at.rank;
    t->world = at.world_size;
    if (at.changed && t->rank == 0)
        printf("change: step=%llu lost=%u joined=%u world=%u\n", (unsigned long long)t->own_steps, at.lost, at.joined,
               at.world_size);
    return at.joined ? share_state(t) : 0;
}

/* Parameters of all members are equal, or somebody says so. */
static int compare(train_t *t, int *equal) {
    uint64_t hash = hash_parameters(&t->model), low = 0, high = 0;
    rg_status_t status = rg_all_reduce(t->group, &hash, &low, 1, RG_U64, RG_MIN, NULL, NULL);
    if (status == RG_OK) status = rg_all_reduce(t->group, &hash, &high, 1, RG_U64, RG_MAX, NULL, NULL);
    if (status != RG_OK) return complain(t, "comparison of the hashes", status, "");
    *equal = low == high;
    if (!*equal) printf("hashes differ: mine %016llx\n", (unsigned long long)hash);
    else if (t->rank == 0) printf("hashes equal: %016llx on %u members\n", (unsigned long long)hash, t->world);
    return 0;
}

/* Joins, and gets what the others have. */
static int enter(train_t *t) {
    rg_error_t err = { RG_OK, 0, "" };
    rg_info_t info = RG_INFO_INIT;
    rg_status_t status =
        t->outer ? rg_diloco_join(t->outer, NULL, &t->group, &err) : rg_group_join(NULL, &t->group, &err);
    if (status != RG_OK) return complain(t, "join", status, err.text);
    if (!t->outer && share_state(t)) return 1;
    status = rg_group_info(t->group, &info);
    if (status != RG_OK) return complain(t, "info", status, "");
    t->rank = info.rank;
    t->world = info.world_size;
    printf("joined: rank=%u world=%u step=%llu parameters=%llu text_bytes=%llu\n", t->rank, t->world,
           (unsigned long long)step_of(t), (unsigned long long)t->model.params, (unsigned long long)t->text.size);
    return 0;
}

static int take_part(train_t *t, int *equal) {
    rg_diloco_result_t r = RG_DILOCO_RESULT_INIT;
    int bad = enter(t);
    if (bad) return bad;
    t->begin_ms = now_ms();
    t->aside_ms = t->waited_ms = 0;
    while (!bad && step_of(t) < t->opt.steps) {
        bad = t->outer ? outer_step(t) : parallel_step(t);
        uint64_t step = step_of(t);
        if (!bad && t->rank == 0 && step % t->opt.report == 0 && step < t->opt.steps) report(t, "at", t->opt.eval);
    }
    if (!bad && t->outer) {
        rg_status_t status = rg_diloco_flush(t->outer, &r);
        if (status != RG_OK) bad = complain(t, "flush", status, r.text);
        t->waited_ms += (double)r.wait_ns * 1e-6;
        t->world = r.world_size;
    }
    if (!bad && t->rank == 0) report(t, "end", 8 * t->opt.eval);
    if (!bad) bad = compare(t, equal);
    return bad ? bad : (int)rg_group_leave(t->group);
}

/* ---- Setting up -------------------------------------------------------------------------------------------- */

static int train_begin(train_t *t) {
    model_t *m = &t->model;
    rg_error_t err = { RG_OK, 0, "" };
    model_size(m, t->opt.hidden);
    m->p = calloc(3 * m->params, sizeof(float));
    if (!m->p) return -1;
    m->m = m->p + m->params;
    m->v = m->m + m->params;
    if (model_begin(m, t->opt.seed)) return -1;
    rg_status_t st = RG_OK;
    if (t->opt.variant == PARALLEL) {
        st = rg_state_create(&t->state, &err);
        if (st == RG_OK) st = rg_state_add(t->state, "model", m->p, 3 * m->params, RG_F32, &err);
    } else {
        struct {
            const char *name;
            uint64_t from, to;
        } part[] = { { "embedding", 0, m->at_w1 },
                     { "w1", m->at_w1, m->at_b1 },
                     { "b1", m->at_b1, m->at_w2 },
                     { "w2", m->at_w2, m->at_b2 },
                     { "b2", m->at_b2, m->params } };
        st = rg_diloco_create(&t->opt.outer, &t->outer, &err);
        for (int i = 0; st == RG_OK && i < 5; i++)
            st = rg_diloco_add(t->outer, part[i].name, m->p + part[i].from, part[i].to - part[i].from, 0, &err);
    }
    return st == RG_OK ? 0 : complain(t, "set-up", st, err.text);
}

static void train_end(train_t *t) {
    rg_diloco_destroy(t->outer);
    rg_state_destroy(t->state);
    model_end(&t->model);
    free(t->model.p);
    free(t->text.data);
}

static void help(FILE *f) {
    fprintf(
        f,
        "Usage: diloco_bytes [OPTION]... [FILE or FOLDER]...\n"
        "Trains a small byte-level language model by members that average once in many steps.\n"
        "The coordinator is found by RG_COORDINATOR, which `regroup run` sets:\n"
        "    build/regroup run -n 4 --kill 2@5s --join 10s -- build/diloco_bytes --variant streaming\n"
        "Without a FILE it reads the *.c, *.h and *.md files below the current folder.\n\n"
        "  --variant NAME  parallel (an all-reduce at every step), plain, streaming, eager, delayed, co2,\n"
        "                  decoupled, fedavg, sparse (plain); the options below change its defaults\n"
        "  --every N       steps between two rounds of a fragment\n"
        "  --fragments N   fragments that are sent by turns\n"
        "  --overlap N     steps from sending a fragment to merging it\n"
        "  --wire NAME     what travels: f32, bf16, int8, int4, ... (docs/quantised.md)\n"
        "  --topk N        only N of 4096 elements travel; 0: all\n"
        "  --feedback X    of what quantising left out that is said later, 0 to 1\n"
        "  --quorum N      a round is over when N members have come and the others had their grace; needs --wire f32\n"
        "  --grace-ms N    that grace (0)\n"
        "  --lr X          learning rate of the outer optimiser\n"
        "  --momentum X    its momentum\n"
        "  --blend X       of a member's own parameters that stays at a merge, 0 to 1\n"
        "  --steps N       steps of each member (2000)\n"
        "  --batch N       samples of each member and step (32)\n"
        "  --hidden N      width of the hidden layer (128)\n"
        "  --rate X        learning rate of Adam (0.002)\n"
        "  --shards N      parts of the text; member r trains on part r modulo N (4)\n"
        "  --slow-ms N     pause in each step, to play a slow machine (0)\n"
        "  --report N      measure and print each Nth step (100)\n"
        "  --eval N        samples of a measurement; eight times as many at the end (1024)\n"
        "  --csv FILE      append variant, step, held-out loss, loss, bytes sent, seconds, members\n"
        "  --seed N        of the initial weights and of the order of samples (1)\n"
        "  --max-text N    bytes of text to read at most (16777216)\n"
        "  --rejoins N     times to join again after being expelled (3)\n"
        "  --help          this text\n\n"
        "All members must be started with the same options, but for --slow-ms and --csv. Exit code: 0 when all\n"
        "members ended with equal parameters, 1 when they did not or the run failed, 2 for a wrong option.\n");
}

static int real(const char *name, const char *text, float *out) {
    char *end;
    *out = strtof(text, &end);
    if (!*end && end != text && *out >= 0 && *out < 1e6f) return 0;
    fprintf(stderr, PROGRAM ": --%s %s: expected a number from 0\n", name, text);
    return -1;
}

static int wire(const char *text, rg_wire_t *out) {
    *out = rg_wire_by_name(text);
    if (*out || !strcmp(text, "f32")) return 0;
    fprintf(stderr, PROGRAM ": --wire %s: expected f32 or a wire form: bf16, int8, int4, mxfp4, ...\n", text);
    return -1;
}

static int variant(const char *text, options_t *o) {
    o->variant = (uint32_t)rg_diloco_variant_by_name(text);
    if (o->variant == PARALLEL && strcmp(text, "parallel") != 0) {
        fprintf(stderr, PROGRAM ": --variant %s: see --help for their names\n", text);
        return -1;
    }
    if (o->variant != PARALLEL) rg_diloco_profile((rg_diloco_variant_t)o->variant, &o->outer);
    return 0;
}

/* One option into o. 0, or -1 with a text. */
static int take(int c, const char *text, options_t *o) {
    static const struct {
        int c;
        const char *name;
        uint64_t low, high;
        size_t at; /* of an uint32_t, or */
        int wide;  /* an uint64_t */
    } whole[] = { { 'H', "every", 1, 1u << 30, offsetof(options_t, outer.every), 0 },
                  { 'P', "fragments", 1, 4096, offsetof(options_t, outer.fragments), 0 },
                  { 'o', "overlap", 0, 1u << 30, offsetof(options_t, outer.overlap), 0 },
                  { 'k', "topk", 0, 4096, offsetof(options_t, outer.topk), 0 },
                  { 'q', "quorum", 0, 1024, offsetof(options_t, outer.quorum), 0 },
                  { 'g', "grace-ms", 0, 3600000, offsetof(options_t, outer.grace_ms), 0 },
                  { 's', "steps", 1, 1u << 30, offsetof(options_t, steps), 0 },
                  { 'b', "batch", 1, 1u << 20, offsetof(options_t, batch), 0 },
                  { 'd', "hidden", 1, 1u << 16, offsetof(options_t, hidden), 0 },
                  { 'p', "shards", 1, 64, offsetof(options_t, shards), 0 },
                  { 'z', "slow-ms", 0, 60000, offsetof(options_t, slow_ms), 0 },
                  { 'e', "report", 1, 1u << 30, offsetof(options_t, report), 0 },
                  { 'E', "eval", 1, 1u << 20, offsetof(options_t, eval), 0 },
                  { 'j', "rejoins", 0, 1000, offsetof(options_t, rejoins), 0 },
                  { 'S', "seed", 0, UINT64_MAX, offsetof(options_t, seed), 1 },
                  { 'm', "max-text", 65536, 1ull << 36, offsetof(options_t, max_text), 1 } };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        uint64_t v = 0;
        if (whole[i].c != c) continue;
        if (number(whole[i].name, text, whole[i].low, whole[i].high, &v)) return -1;
        uint32_t narrow = (uint32_t)v;
        memcpy((char *)o + whole[i].at, whole[i].wide ? (void *)&v : (void *)&narrow, whole[i].wide ? 8 : 4);
        return 0;
    }
    switch (c) {
    case 'w': return wire(text, &o->outer.wire);
    case 'f': return real("feedback", text, &o->outer.feedback);
    case 'l': return real("lr", text, &o->outer.lr);
    case 'u': return real("momentum", text, &o->outer.momentum);
    case 'a': return real("blend", text, &o->outer.blend);
    case 'r': return real("rate", text, &o->rate);
    case 'c': o->csv = text; return 0;
    case 'V': return variant(text, o);
    default: fprintf(stderr, PROGRAM ": see --help\n"); return -1;
    }
}

/* The variant comes first, wherever it stands: it sets the defaults of the rest. 0: go on; 1: help; 2: wrong. */
static int parse(int argc, char **argv, options_t *o) {
    static const struct option longs[] = { { "variant", 1, 0, 'V' },   { "every", 1, 0, 'H' },
                                           { "fragments", 1, 0, 'P' }, { "overlap", 1, 0, 'o' },
                                           { "wire", 1, 0, 'w' },      { "quorum", 1, 0, 'q' },
                                           { "grace-ms", 1, 0, 'g' },  { "topk", 1, 0, 'k' },
                                           { "feedback", 1, 0, 'f' },  { "lr", 1, 0, 'l' },
                                           { "momentum", 1, 0, 'u' },  { "blend", 1, 0, 'a' },
                                           { "steps", 1, 0, 's' },     { "batch", 1, 0, 'b' },
                                           { "hidden", 1, 0, 'd' },    { "rate", 1, 0, 'r' },
                                           { "shards", 1, 0, 'p' },    { "slow-ms", 1, 0, 'z' },
                                           { "report", 1, 0, 'e' },    { "eval", 1, 0, 'E' },
                                           { "csv", 1, 0, 'c' },       { "seed", 1, 0, 'S' },
                                           { "max-text", 1, 0, 'm' },  { "rejoins", 1, 0, 'j' },
                                           { "help", 0, 0, 'h' },      { 0, 0, 0, 0 } };
    for (int pass = 0; pass < 2; pass++) {
        int c, index = 0;
        opterr = pass;
        optind = 1;
        while ((c = getopt_long(argc, argv, "h", longs, &index)) != -1) {
            if (c == 'h') {
                help(stdout);
                return 1;
            }
            if ((c == 'V') == (pass == 0) && take(c, optarg, o)) return 2;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    train_t t = { .opt = { .steps = 2000,
                           .batch = 32,
                           .hidden = 128,
                           .report = 100,
                           .rejoins = 3,
                           .shards = 4,
                           .eval = 1024,
                           .seed = 1,
                           .max_text = 16u << 20,
                           .rate = 0.002f } };
    setvbuf(stdout, NULL, _IOLBF, 0);
    rg_diloco_profile(RG_DILOCO_PLAIN, &t.opt.outer);
    int parsed = parse(argc, argv, &t.opt), equal = 0, bad = 1;
    if (parsed) return parsed == 1 ? 0 : 2;
    int ready = !text_load(&t.text, argv + optind, argc - optind, t.opt.max_text);
    if (ready && t.text.size < 65536) {
        fprintf(stderr, PROGRAM ": %llu bytes of text: at least 65536 are needed\n", (unsigned long long)t.text.size);
        ready = 0;
    }
    if (ready && !train_begin(&t))
        for (uint32_t attempt = 0; attempt <= t.opt.rejoins; attempt++) {
            bad = take_part(&t, &equal);
            rg_diloco_stop(t.outer);
            rg_group_destroy(t.group);
            t.group = NULL;
            if (bad != RG_ERR_EXPELLED) break;
            printf("expelled: joining again as a newcomer\n");
        }
    train_end(&t);
    return !bad && equal ? 0 : 1;
}
