/* train_bytes.c: a byte-level language model trained data-parallel by a group whose members come and go.
 *
 * The model looks at the last eight bytes: embedding -> one hidden layer (ReLU) -> softmax over the next byte, float32,
 * Adam. Every step each member computes gradients on its own shard of the text, one all-reduce averages them, and every
 * member makes the same update, so parameters stay equal bit by bit. A member that dies in mid step is left out of that
 * step's average; a newcomer enters at a boundary and gets parameters, optimiser and step from rank 0.
 * It relies on regroup.h alone and is written to be read; it must not reach into the library. */
#include <regroup.h>

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { CONTEXT = 8, EMBED = 16, INPUT = CONTEXT * EMBED, BYTES = 256, MAX_CHANGES = 64 };

typedef struct options {
    uint32_t steps, batch, hidden, every, rejoins;
    uint64_t seed, max_text;
    float rate;
} options_t;

typedef struct text {
    unsigned char *data;
    uint64_t size, cap;
    uint32_t files;
} text_t;

/* Everything that members share is one block, so that a newcomer gets it whole by one broadcast: the step, then
 * parameters and both moments of Adam, `params` floats each. */
typedef struct shared {
    uint64_t bytes, params;
    uint64_t *step;
    float *p, *m, *v;
} shared_t;

typedef struct model {
    options_t opt;
    text_t text;
    shared_t shared;
    uint32_t hidden;
    uint64_t at_w1, at_b1, at_w2, at_b2; /* offsets in the parameters; the embedding is at 0 */
    float *grad;                         /* params floats, then the loss: one all-reduce carries both */
    float *h, *dh;                       /* hidden activations and their gradients of one sample */
} model_t;

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

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* splitmix64: a hash good enough to draw samples and initial weights from. */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* ---- The text ---------------------------------------------------------------------------------------------- */

static int text_add_file(text_t *t, const char *path, uint64_t max) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        fprintf(stderr, "train_bytes: %s: %s\n", path, strerror(errno));
        return -1;
    }
    int failed = 0;
    while (t->size < max) {
        if (t->cap - t->size < 65536) {
            uint64_t cap = t->cap ? 2 * t->cap : 1u << 20;
            unsigned char *data = realloc(t->data, cap);
            if (!data) {
                failed = 1;
                break;
            }
            t->data = data;
            t->cap = cap;
        }
        uint64_t want = max - t->size < 65536 ? max - t->size : 65536;
        size_t got = fread(t->data + t->size, 1, want, f);
        if (got == 0) break;
        t->size += got;
    }
    if (failed || ferror(f)) {
        fprintf(stderr, "train_bytes: %s: cannot be read\n", path);
        failed = 1;
    }
    fclose(f);
    t->files++;
    return failed ? -1 : 0;
}

static int is_text_name(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && (!strcmp(dot, ".c") || !strcmp(dot, ".h") || !strcmp(dot, ".md"));
}

/* Sources and documents below a folder, in the order of their names so that every member has the same text. Hidden
 * folders and build folders are left out. */
static int text_add_folder(text_t *t, const char *folder, uint64_t max) {
    struct dirent **list;
    int n = scandir(folder, &list, NULL, alphasort);
    if (n < 0) {
        fprintf(stderr, "train_bytes: %s: %s\n", folder, strerror(errno));
        return -1;
    }
    int failed = 0;
    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;
        char path[4096];
        struct stat st;
        int length = snprintf(path, sizeof path, "%s/%s", folder, name);
        if (!failed && name[0] != '.' && strncmp(name, "build", 5) != 0 && length < (int)sizeof path &&
            lstat(path, &st) == 0) {
            if (S_ISDIR(st.st_mode)) failed = text_add_folder(t, path, max);
            else if (S_ISREG(st.st_mode) && is_text_name(name)) failed = text_add_file(t, path, max);
        }
        free(list[i]);
    }
    free(list);
    return failed;
}

static int text_load(text_t *t, char **paths, int n, uint64_t max) {
    char here[] = ".";
    char *default_paths[] = { here };
    if (n == 0) {
        paths = default_paths;
        n = 1;
    }
    for (int i = 0; i < n; i++) {
        struct stat st;
        int failed = stat(paths[i], &st) == 0 && S_ISDIR(st.st_mode) ? text_add_folder(t, paths[i], max)
                                                                     : text_add_file(t, paths[i], max);
        if (failed) return -1;
    }
    if (t->size < 1024) {
        fprintf(stderr,
                "train_bytes: %llu bytes of text in %u files: at least 1024 are needed; name text files or run in the "
                "repository\n",
                (unsigned long long)t->size, t->files);
        return -1;
    }
    return 0;
}

/* ---- The model --------------------------------------------------------------------------------------------- */

static int model_alloc(model_t *m) {
    uint64_t h = m->hidden = m->opt.hidden;
    m->at_w1 = BYTES * EMBED;
    m->at_b1 = m->at_w1 + INPUT * h;
    m->at_w2 = m->at_b1 + h;
    m->at_b2 = m->at_w2 + h * BYTES;
    shared_t *s = &m->shared;
    s->params = m->at_b2 + BYTES;
    s->bytes = sizeof(uint64_t) + 3 * s->params * sizeof(float);
    s->step = calloc(1, s->bytes);
    m->grad = calloc(s->params + 1, sizeof(float));
    m->h = calloc(h, sizeof(float));
    m->dh = calloc(h, sizeof(float));
    if (!s->step || !m->grad || !m->h || !m->dh) return -1;
    s->p = (float *)(void *)(s->step + 1);
    s->m = s->p + s->params;
    s->v = s->m + s->params;
    for (uint64_t i = 0; i < s->params; i++) {
        double unit = (double)(mix(m->opt.seed ^ (i << 1)) >> 11) / 9007199254740992.0 - 0.5;
        double scale = i < m->at_w1   ? 1.0
                       : i < m->at_b1 ? sqrt(24.0 / INPUT)
                       : i < m->at_w2 ? 0
                       : i < m->at_b2 ? sqrt(12.0 / (double)h)
                                      : 0;
        s->p[i] = (float)(unit * scale);
    }
    return 0;
}

static void model_free(model_t *m) {
    free(m->shared.step);
    free(m->grad);
    free(m->h);
    free(m->dh);
    free(m->text.data);
}

/* y += a * x, and the scalar product in eight lanes: the two loops that the time goes into. */
static void axpy(float *y, float a, const float *x, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) y[i] += a * x[i];
}

static float dot(const float *x, const float *y, uint64_t n) {
    float lane[8] = { 0 };
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) lane[k] += x[i + k] * y[i + k];
    for (; i < n; i++) lane[0] += x[i] * y[i];
    return ((lane[0] + lane[4]) + (lane[1] + lane[5])) + ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

/* Forward: leaves the hidden activations in m->h and the probabilities in z. Returns the loss in nats. */
static float forward(model_t *m, const unsigned char *ctx, unsigned char next, float *z) {
    const float *p = m->shared.p;
    uint64_t hidden = m->hidden;
    memcpy(m->h, p + m->at_b1, hidden * sizeof(float));
    for (uint64_t i = 0; i < INPUT; i++)
        axpy(m->h, p[ctx[i / EMBED] * EMBED + i % EMBED], p + m->at_w1 + i * hidden, hidden);
    memcpy(z, p + m->at_b2, BYTES * sizeof(float));
    for (uint64_t j = 0; j < hidden; j++) {
        if (m->h[j] < 0) m->h[j] = 0;
        else axpy(z, m->h[j], p + m->at_w2 + j * BYTES, BYTES);
    }
    float top = z[0], sum = 0;
    for (int k = 1; k < BYTES; k++) top = z[k] > top ? z[k] : top;
    for (int k = 0; k < BYTES; k++) sum += z[k] = expf(z[k] - top);
    for (int k = 0; k < BYTES; k++) z[k] /= sum;
    return -logf(z[next] > 1e-30f ? z[next] : 1e-30f);
}

/* Backward: adds the gradients of one sample, scaled, to m->grad. z has the probabilities and is used up. */
static void backward(model_t *m, const unsigned char *ctx, unsigned char next, float *z, float scale) {
    const float *p = m->shared.p;
    float *g = m->grad;
    uint64_t hidden = m->hidden;
    z[next] -= 1;
    for (int k = 0; k < BYTES; k++) z[k] *= scale;
    axpy(g + m->at_b2, 1, z, BYTES);
    for (uint64_t j = 0; j < hidden; j++) {
        m->dh[j] = 0;
        if (m->h[j] <= 0) continue;
        m->dh[j] = dot(p + m->at_w2 + j * BYTES, z, BYTES);
        axpy(g + m->at_w2 + j * BYTES, m->h[j], z, BYTES);
    }
    axpy(g + m->at_b1, 1, m->dh, hidden);
    for (uint64_t i = 0; i < INPUT; i++) {
        uint64_t e = ctx[i / EMBED] * EMBED + i % EMBED;
        g[e] += dot(p + m->at_w1 + i * hidden, m->dh, hidden);
        axpy(g + m->at_w1 + i * hidden, p[e], m->dh, hidden);
    }
}

/* Mean gradient and mean loss over this member's batch. What a member reads depends on rank and step only, so two
 * members never read the same shard and a rerun reads the same bytes. */
static void compute_gradients(model_t *m, uint32_t rank) {
    uint64_t step = *m->shared.step;
    memset(m->grad, 0, (m->shared.params + 1) * sizeof(float));
    float scale = 1.0f / (float)m->opt.batch, loss = 0, z[BYTES];
    for (uint32_t b = 0; b < m->opt.batch; b++) {
        uint64_t at = mix(mix(mix(m->opt.seed ^ step) ^ rank) ^ b) % (m->text.size - CONTEXT);
        const unsigned char *ctx = m->text.data + at;
        loss += forward(m, ctx, ctx[CONTEXT], z);
        backward(m, ctx, ctx[CONTEXT], z, scale);
    }
    m->grad[m->shared.params] = loss * scale;
}

/* Adam (Kingma and Ba, 2015, algorithm 1). Same inputs on every member, same bits out. */
static void update(model_t *m) {
    shared_t *s = &m->shared;
    const float b1 = 0.9f, b2 = 0.999f;
    float t = (float)(*s->step + 1), rate = m->opt.rate * sqrtf(1 - powf(b2, t)) / (1 - powf(b1, t));
    for (uint64_t i = 0; i < s->params; i++) {
        float g = m->grad[i];
        s->m[i] = b1 * s->m[i] + (1 - b1) * g;
        s->v[i] = b2 * s->v[i] + (1 - b2) * g * g;
        s->p[i] -= rate * s->m[i] / (sqrtf(s->v[i]) + 1e-8f);
    }
}

/* FNV-1a over the bytes of the parameters. */
static uint64_t hash_parameters(const shared_t *s) {
    const unsigned char *b = (const unsigned char *)s->p;
    uint64_t h = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < s->params * sizeof(float); i++) h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

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
static rg_status_t share_state(model_t *m, rg_group_t *group, double *took_ms) {
    double start = now_ms();
    rg_status_t status = rg_broadcast(group, m->shared.step, m->shared.bytes, RG_U8, 0, NULL, NULL);
    *took_ms += now_ms() - start;
    return status;
}

/* The place where members enter; `share` when some already did and still lack the state. Whoever dies while the state
 * is on its way to the newcomers is dealt with here: when it was rank 0, all members are told so alike, and at the next
 * boundary another one is rank 0. */
static rg_status_t boundary(model_t *m, rg_group_t *group, history_t *history, rg_change_t *at, int share) {
    double state_ms = 0;
    for (;;) {
        *at = (rg_change_t)RG_CHANGE_INIT;
        rg_status_t status = rg_group_boundary(group, at);
        if (status != RG_OK) return complain(group, "boundary", status);
        if (at->joined > 0) share = 1;
        if (share) status = share_state(m, group, &state_ms);
        if (status != RG_OK && status != RG_ERR_ROOT_LOST) return complain(group, "broadcast of the state", status);
        if (at->changed) {
            const change_t *c = history_add(history, group, *m->shared.step, at, state_ms);
            if (at->rank == 0) print_change("change", c);
        }
        if (status == RG_OK) return RG_OK;
    }
}

/* One step after the boundary: gradients, average, update, and rank 0's line. */
static rg_status_t train_step(model_t *m, rg_group_t *group, history_t *history, const rg_change_t *at) {
    double start = now_ms();
    compute_gradients(m, at->rank);
    double computed = now_ms();
    rg_result_t result = RG_RESULT_INIT;
    rg_opts_t opts = RG_OPTS_INIT;
    opts.on_fault = RG_RETRY;
    opts.result = &result;
    uint64_t count = m->shared.params + 1;
    rg_status_t status = rg_all_reduce(group, m->grad, m->grad, count, RG_F32, RG_AVG, &opts, NULL);
    if (status != RG_OK) return complain(group, "all-reduce of the gradients", status);
    double ms = now_ms() - computed, n = result.contributors;
    update(m);
    uint64_t step = (*m->shared.step)++;
    history->fault_ms += (double)result.fault_ns * 1e-6;
    if (at->rank == 0 && (step % m->opt.every == 0 || step + 1 == m->opt.steps || result.contributors < at->world_size))
        printf("step=%llu loss=%.4f world=%u step_ms=%.2f allreduce_ms=%.2f busbw_gbps=%.3f\n",
               (unsigned long long)step, m->grad[count - 1], result.contributors, now_ms() - start, ms,
               2 * (n - 1) / n * (double)(count * sizeof(float)) / (ms * 1e-3) * 1e-9);
    return RG_OK;
}

/* Smallest and largest hash over all members: equal only when all are. */
static rg_status_t compare_hashes(model_t *m, rg_group_t *group, uint32_t rank, int *equal) {
    uint64_t hash = hash_parameters(&m->shared), low = 0, high = 0;
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
static rg_status_t take_part(model_t *m, rg_group_t *group, int *equal) {
    history_t history = { .count = 0 };
    rg_info_t info = RG_INFO_INIT;
    rg_change_t at = RG_CHANGE_INIT;
    rg_status_t status = rg_group_info(group, &info);
    if (status != RG_OK) return complain(group, "info", status);
    at.rank = info.rank;
    at.world_size = info.world_size;
    /* A founder and a newcomer alike stand at a boundary now, and rank 0 shares the state with those who entered. */
    double state_ms = 0;
    status = share_state(m, group, &state_ms);
    if (status == RG_ERR_ROOT_LOST) status = boundary(m, group, &history, &at, 1);
    if (status != RG_OK) return complain(group, "state on entering", status);
    printf("joined: rank=%u world=%u step=%llu parameters=%llu text_bytes=%llu files=%u state_ms=%.2f\n", at.rank,
           at.world_size, (unsigned long long)*m->shared.step, (unsigned long long)m->shared.params,
           (unsigned long long)m->text.size, m->text.files, state_ms);
    while (*m->shared.step < m->opt.steps) {
        status = train_step(m, group, &history, &at);
        if (status == RG_OK) status = boundary(m, group, &history, &at, 0);
        if (status != RG_OK) return status;
    }
    status = compare_hashes(m, group, at.rank, equal);
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

/* A whole number in [low, high], or -1 with a text. */
static int number(const char *name, const char *text, uint64_t low, uint64_t high, uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || *end || end == text || text[0] == '-' || v < low || v > high) {
        fprintf(stderr, "train_bytes: --%s %s: expected a whole number from %llu to %llu\n", name, text,
                (unsigned long long)low, (unsigned long long)high);
        return -1;
    }
    *out = v;
    return 0;
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

int main(int argc, char **argv) {
    model_t m = { .opt = { .steps = 300,
                           .batch = 64,
                           .hidden = 128,
                           .every = 1,
                           .rejoins = 3,
                           .seed = 1,
                           .max_text = 16u << 20,
                           .rate = 0.003f } };
    setvbuf(stdout, NULL, _IOLBF, 0);
    int parsed = parse(argc, argv, &m.opt);
    if (parsed) return parsed == 1 ? 0 : 2;
    if (text_load(&m.text, argv + optind, argc - optind, m.opt.max_text) || model_alloc(&m)) {
        model_free(&m);
        return 1;
    }
    int equal = 0;
    rg_status_t status = RG_OK;
    for (uint32_t attempt = 0; attempt <= m.opt.rejoins; attempt++) {
        rg_config_t config = RG_CONFIG_INIT;
        rg_group_t *group = NULL;
        rg_error_t err = { 0 };
        status = rg_group_join(&config, &group, &err);
        if (status != RG_OK) {
            fprintf(stderr, "train_bytes: join: %s: %s\n", rg_status_name(status), err.text);
            break;
        }
        status = take_part(&m, group, &equal);
        rg_group_destroy(group);
        if (status != RG_ERR_EXPELLED) break;
        printf("expelled: joining again as a newcomer\n");
    }
    model_free(&m);
    return status == RG_OK && equal ? 0 : 1;
}
