/* train_bytes.c: a byte-level language model trained data-parallel by a group whose members come and go.
 *
 * The model looks at the last eight bytes: embedding -> one hidden layer (ReLU) -> softmax over the next byte, float32,
 * Adam. Every step each member computes gradients on its own shard of the text, one all-reduce averages them, and every
 * member makes the same update, so parameters stay equal bit by bit. A member that dies in mid step is left out of that
 * step's average; a newcomer enters at a boundary and gets parameters, optimiser and step from rank 0.
 * It relies on regroup.h alone and is written to be read; it must not reach into the library. */
#include <regroup.h>

#define PROGRAM "train_bytes"
#include "bytes_model.h"

#include <getopt.h>

enum { MAX_CHANGES = 64 };

typedef struct options {
    uint32_t steps, batch, hidden, every, rejoins;
    uint64_t seed, max_text;
    float rate;
} options_t;

/* Everything that members share is one block, so that a newcomer gets it whole by one broadcast: the step, then
 * parameters and both moments of Adam. */
typedef struct train {
    options_t opt;
    text_t text;
    model_t model;
    uint64_t bytes, *step; /* of the block; its beginning */
} train_t;

/* What a membership change cost, for the table at the end: `fault_ms` inside operations, `boundary_ms` waiting where
 * newcomers enter, `state_ms` bringing the newcomers up to date; training stood still for their sum. `recovery_ms` is
 * how long the group took from freeze to the next view, which costs nothing while the members compute. */
typedef struct change {
    uint64_t step;
    uint32_t lost, joined, world;
    double fault_ms, boundary_ms, state_ms, recovery_ms;
} change_t;

typedef struct history {
    change_t list[MAX_CHANGES];
    uint32_t count;
    double fault_ms; /* met by operations since the last boundary */
} history_t;

/* ---- The group --------------------------------------------------------------------------------------------- */

/* Says what went wrong, with the group's own text. */
static rg_status_t complain(rg_group_t *group, const char *what, rg_status_t status) {
    char text[512] = "";
    rg_group_errmsg(group, text, sizeof text);
    fprintf(stderr, "train_bytes: %s: %s: %s (%s)\n", what, rg_status_name(status),
            text[0] ? text : rg_strerror(status), rg_status_advice(status));
    return status;
}

/* Enters a change into the table; the oldest makes room. */
static const change_t *history_add(history_t *h, rg_group_t *group, uint64_t step, const rg_change_t *at,
                                   double state_ms) {
    rg_info_t info = RG_INFO_INIT;
    int known = at->lost > 0 && rg_group_info(group, &info) == RG_OK;
    if (h->count == MAX_CHANGES) memmove(h->list, h->list + 1, --h->count * sizeof(change_t));
    change_t *c = &h->list[h->count++];
    *c = (change_t){
        .step = step, .lost = at->lost, .joined = at->joined, .world = at->world_size, .state_ms = state_ms
    };
    c->fault_ms = h->fault_ms;
    c->boundary_ms = (double)at->stalled_ns * 1e-6;
    c->recovery_ms = known ? (double)info.last_change_ns * 1e-6 : 0;
    h->fault_ms = 0;
    return c;
}

static void print_change(const char *what, const change_t *c) {
    printf("%s: step=%llu lost=%u joined=%u world=%u stalled_ms=%.2f (fault %.2f, boundary %.2f, state %.2f)", what,
           (unsigned long long)c->step, c->lost, c->joined, c->world, c->fault_ms + c->boundary_ms + c->state_ms,
           c->fault_ms, c->boundary_ms, c->state_ms);
    if (c->lost) printf(" recovery_ms=%.2f", c->recovery_ms);
    printf("\n");
}

/* Brings rank 0's step, parameters and optimiser to everybody. */
static rg_status_t share_state(train_t *t, rg_group_t *group, double *took_ms) {
    double start = now_ms();
    rg_status_t status = rg_broadcast(group, t->step, t->bytes, RG_U8, 0, NULL, NULL);
    *took_ms += now_ms() - start;
    return status;
}

/* The place where members enter; `share` when some already did and still lack the state. Whoever dies while the state
 * is on its way to the newcomers is dealt with here: when it was rank 0, all members are told so alike, and at the next
 * boundary another one is rank 0. */
static rg_status_t boundary(train_t *t, rg_group_t *group, history_t *history, rg_change_t *at, int share) {
    double state_ms = 0;
    for (;;) {
        *at = (rg_change_t)RG_CHANGE_INIT;
        rg_status_t status = rg_group_boundary(group, at);
        if (status != RG_OK) return complain(group, "boundary", status);
        if (at->joined > 0) share = 1;
        if (share) status = share_state(t, group, &state_ms);
        if (status != RG_OK && status != RG_ERR_ROOT_LOST) return complain(group, "broadcast of the state", status);
        if (at->changed) {
            const change_t *c = history_add(history, group, *t->step, at, state_ms);
            if (at->rank == 0) print_change("change", c);
        }
        if (status == RG_OK) return RG_OK;
    }
}

/* One step after the boundary: gradients, average, update, and rank 0's line. */
static rg_status_t train_step(train_t *t, rg_group_t *group, history_t *history, const rg_change_t *at) {
    model_t *m = &t->model;
    double start = now_ms();
    /* What a member reads depends on rank and step only, so two members never read the same and a rerun does. */
    uint64_t draw = mix(mix(t->opt.seed ^ *t->step) ^ at->rank);
    compute_gradients(m, &t->text, 0, t->text.size, draw, t->opt.batch);
    double computed = now_ms();
    rg_result_t result = RG_RESULT_INIT;
    rg_opts_t opts = RG_OPTS_INIT;
    opts.on_fault = RG_RETRY;
    opts.result = &result;
    uint64_t count = t->model.params + 1;
    rg_status_t status = rg_all_reduce(group, m->grad, m->grad, count, RG_F32, RG_AVG, &opts, NULL);
    if (status != RG_OK) return complain(group, "all-reduce of the gradients", status);
    double ms = now_ms() - computed, n = result.contributors;
    adam(m, *t->step + 1, t->opt.rate);
    uint64_t step = (*t->step)++;
    history->fault_ms += (double)result.fault_ns * 1e-6;
    if (at->rank == 0 && (step % t->opt.every == 0 || step + 1 == t->opt.steps || result.contributors < at->world_size))
        printf("step=%llu loss=%.4f world=%u step_ms=%.2f allreduce_ms=%.2f busbw_gbps=%.3f\n",
               (unsigned long long)step, m->grad[count - 1], result.contributors, now_ms() - start, ms,
               2 * (n - 1) / n * (double)(count * sizeof(float)) / (ms * 1e-3) * 1e-9);
    return RG_OK;
}

/* Smallest and largest hash over all members: equal only when all are. */
static rg_status_t compare_hashes(train_t *t, rg_group_t *group, uint32_t rank, int *equal) {
    uint64_t hash = hash_parameters(&t->model), low = 0, high = 0;
    rg_result_t result = RG_RESULT_INIT;
    rg_opts_t opts = RG_OPTS_INIT;
    opts.on_fault = RG_RETRY;
    opts.result = &result;
    rg_status_t status = rg_all_reduce(group, &hash, &low, 1, RG_U64, RG_MIN, &opts, NULL);
    if (status == RG_OK) status = rg_all_reduce(group, &hash, &high, 1, RG_U64, RG_MAX, &opts, NULL);
    if (status != RG_OK) return complain(group, "comparison of the hashes", status);
    *equal = low == high;
    if (low != high)
        printf("hashes differ: %016llx to %016llx, mine %016llx\n", (unsigned long long)low, (unsigned long long)high,
               (unsigned long long)hash);
    else if (rank == 0) printf("hashes equal: %016llx on %u members\n", (unsigned long long)hash, result.contributors);
    return RG_OK;
}

/* From joining to leaving. RG_ERR_EXPELLED means that the group went on without this process. */
static rg_status_t take_part(train_t *t, rg_group_t *group, int *equal) {
    history_t history = { .count = 0 };
    rg_info_t info = RG_INFO_INIT;
    rg_change_t at = RG_CHANGE_INIT;
    rg_status_t status = rg_group_info(group, &info);
    if (status != RG_OK) return complain(group, "info", status);
    at.rank = info.rank;
    at.world_size = info.world_size;
    /* A founder and a newcomer alike stand at a boundary now, and rank 0 shares the state with those who entered. */
    double state_ms = 0;
    status = share_state(t, group, &state_ms);
    if (status == RG_ERR_ROOT_LOST) status = boundary(t, group, &history, &at, 1);
    if (status != RG_OK) return complain(group, "state on entering", status);
    printf("joined: rank=%u world=%u step=%llu parameters=%llu text_bytes=%llu files=%u state_ms=%.2f\n", at.rank,
           at.world_size, (unsigned long long)*t->step, (unsigned long long)t->model.params,
           (unsigned long long)t->text.size, t->text.files, state_ms);
    while (*t->step < t->opt.steps) {
        status = train_step(t, group, &history, &at);
        if (status == RG_OK) status = boundary(t, group, &history, &at, 0);
        if (status != RG_OK) return status;
    }
    status = compare_hashes(t, group, at.rank, equal);
    if (status != RG_OK) return status;
    if (at.rank == 0) printf("membership changes seen by rank 0: %u\n", history.count);
    for (uint32_t i = 0; at.rank == 0 && i < history.count; i++) print_change("  stall", &history.list[i]);
    return rg_group_leave(group);
}

static void help(FILE *f) {
    fprintf(f, "Usage: train_bytes [OPTION]... [FILE or FOLDER]...\n"
               "Trains a small byte-level language model, data-parallel over the members of a group.\n"
               "The coordinator is found by RG_COORDINATOR, which `regroup run` sets:\n"
               "    build/regroup run -n 4 --kill 2@5s --join 10s -- build/train_bytes --steps 2000\n"
               "Without a FILE it reads the *.c, *.h and *.md files below the current folder.\n\n"
               "  --steps N       steps to train (300)\n"
               "  --batch N       samples of each member and step (64)\n"
               "  --hidden N      width of the hidden layer (128)\n"
               "  --rate X        learning rate of Adam (0.003)\n"
               "  --seed N        of the initial weights and of the order of samples (1)\n"
               "  --every N       print each Nth step (1)\n"
               "  --max-text N    bytes of text to read at most (16777216)\n"
               "  --rejoins N     times to join again after being expelled (3)\n"
               "  --help          this text\n\n"
               "All members must be started with the same options. Exit code: 0 when all members ended with equal\n"
               "parameters, 1 when they did not or the run failed, 2 for a wrong option.\n");
}

/* 0: go on; 1: help was asked for; 2: wrong. */
static int parse(int argc, char **argv, options_t *o) {
    static const struct option longs[] = { { "steps", 1, 0, 's' }, { "batch", 1, 0, 'b' },    { "hidden", 1, 0, 'd' },
                                           { "rate", 1, 0, 'r' },  { "seed", 1, 0, 'S' },     { "every", 1, 0, 'e' },
                                           { "help", 0, 0, 'h' },  { "max-text", 1, 0, 'm' }, { "rejoins", 1, 0, 'j' },
                                           { 0, 0, 0, 0 } };
    int c, index = 0;
    while ((c = getopt_long(argc, argv, "h", longs, &index)) != -1) {
        uint64_t v = 0;
        int bad = 0;
        char *end;
        switch (c) {
        case 's':
            bad = number("steps", optarg, 1, 1u << 30, &v);
            o->steps = (uint32_t)v;
            break;
        case 'b':
            bad = number("batch", optarg, 1, 1u << 20, &v);
            o->batch = (uint32_t)v;
            break;
        case 'd':
            bad = number("hidden", optarg, 1, 1u << 16, &v);
            o->hidden = (uint32_t)v;
            break;
        case 'S':
            bad = number("seed", optarg, 0, UINT64_MAX, &v);
            o->seed = v;
            break;
        case 'e':
            bad = number("every", optarg, 1, 1u << 30, &v);
            o->every = (uint32_t)v;
            break;
        case 'j':
            bad = number("rejoins", optarg, 0, 1000, &v);
            o->rejoins = (uint32_t)v;
            break;
        case 'm':
            bad = number("max-text", optarg, 1024, 1ull << 36, &v);
            o->max_text = v;
            break;
        case 'r':
            o->rate = strtof(optarg, &end);
            bad = *end || end == optarg || !(o->rate > 0 && o->rate < 10);
            if (bad) fprintf(stderr, "train_bytes: --rate %s: expected a number above 0 and below 10\n", optarg);
            break;
        case 'h': help(stdout); return 1;
        default: fprintf(stderr, "train_bytes: see --help\n"); return 2;
        }
        if (bad) return 2;
    }
    return 0;
}

static int train_begin(train_t *t) {
    model_size(&t->model, t->opt.hidden);
    t->bytes = sizeof(uint64_t) + 3 * t->model.params * sizeof(float);
    t->step = calloc(1, t->bytes);
    if (!t->step) return -1;
    t->model.p = (float *)(void *)(t->step + 1);
    t->model.m = t->model.p + t->model.params;
    t->model.v = t->model.m + t->model.params;
    return model_begin(&t->model, t->opt.seed);
}

static void train_end(train_t *t) {
    model_end(&t->model);
    free(t->step);
    free(t->text.data);
}

int main(int argc, char **argv) {
    train_t t = { .opt = { .steps = 300,
                           .batch = 64,
                           .hidden = 128,
                           .every = 1,
                           .rejoins = 3,
                           .seed = 1,
                           .max_text = 16u << 20,
                           .rate = 0.003f } };
    setvbuf(stdout, NULL, _IOLBF, 0);
    int parsed = parse(argc, argv, &t.opt);
    if (parsed) return parsed == 1 ? 0 : 2;
    if (text_load(&t.text, argv + optind, argc - optind, t.opt.max_text) || train_begin(&t)) {
        train_end(&t);
        return 1;
    }
    int equal = 0;
    rg_status_t status = RG_OK;
    for (uint32_t attempt = 0; attempt <= t.opt.rejoins; attempt++) {
        rg_config_t config = RG_CONFIG_INIT;
        rg_group_t *group = NULL;
        rg_error_t err = { 0 };
        status = rg_group_join(&config, &group, &err);
        if (status != RG_OK) {
            fprintf(stderr, "train_bytes: join: %s: %s\n", rg_status_name(status), err.text);
            break;
        }
        status = take_part(&t, group, &equal);
        rg_group_destroy(group);
        if (status != RG_ERR_EXPELLED) break;
        printf("expelled: joining again as a newcomer\n");
    }
    train_end(&t);
    return status == RG_OK && equal ? 0 : 1;
}
