/* bytes_model.h: the byte-level language model of the examples, and the text that it learns: the last eight bytes ->
 * embedding -> one hidden layer (ReLU) -> softmax over the next byte, float32, Adam. It relies on the C library alone
 * and must not know of groups. A program defines PROGRAM, its name in messages, before it includes this. */
#ifndef BYTES_MODEL_H
#define BYTES_MODEL_H

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { CONTEXT = 8, EMBED = 16, INPUT = CONTEXT * EMBED, BYTES = 256 };

typedef struct text {
    unsigned char *data;
    uint64_t size, cap;
    uint32_t files;
} text_t;

typedef struct model {
    uint32_t hidden;
    uint64_t params, at_w1, at_b1, at_w2, at_b2; /* offsets in the parameters; the embedding is at 0 */
    float *p, *m, *v; /* parameters and both moments of Adam, params floats each; the program's memory */
    float *grad;      /* params floats, then the loss */
    float *h, *dh;    /* hidden activations and their gradients of one sample */
} model_t;

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
        fprintf(stderr, PROGRAM ": %s: %s\n", path, strerror(errno));
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
        fprintf(stderr, PROGRAM ": %s: cannot be read\n", path);
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
        fprintf(stderr, PROGRAM ": %s: %s\n", folder, strerror(errno));
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
                PROGRAM ": %llu bytes of text in %u files: at least 1024 are needed; name text files or run in the "
                        "repository\n",
                (unsigned long long)t->size, t->files);
        return -1;
    }
    return 0;
}

/* ---- The model --------------------------------------------------------------------------------------------- */

/* Sizes and offsets; the program then gives p, m and v. */
static void model_size(model_t *m, uint32_t hidden) {
    uint64_t h = m->hidden = hidden;
    m->at_w1 = BYTES * EMBED;
    m->at_b1 = m->at_w1 + INPUT * h;
    m->at_w2 = m->at_b1 + h;
    m->at_b2 = m->at_w2 + h * BYTES;
    m->params = m->at_b2 + BYTES;
}

/* Initial values, and the memory that is no member's business but its own. */
static int model_begin(model_t *m, uint64_t seed) {
    m->grad = calloc(m->params + 1, sizeof(float));
    m->h = calloc(m->hidden, sizeof(float));
    m->dh = calloc(m->hidden, sizeof(float));
    if (!m->grad || !m->h || !m->dh) return -1;
    for (uint64_t i = 0; i < m->params; i++) {
        double unit = (double)(mix(seed ^ (i << 1)) >> 11) / 9007199254740992.0 - 0.5;
        double scale = i < m->at_w1   ? 1.0
                       : i < m->at_b1 ? sqrt(24.0 / INPUT)
                       : i < m->at_w2 ? 0
                       : i < m->at_b2 ? sqrt(12.0 / (double)m->hidden)
                                      : 0;
        m->p[i] = (float)(unit * scale);
    }
    return 0;
}

static void model_end(model_t *m) {
    free(m->grad);
    free(m->h);
    free(m->dh);
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
    const float *p = m->p;
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
    const float *p = m->p;
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

/* Mean gradient and mean loss over a batch of samples that `draw` names, out of text[from..to). */
static void compute_gradients(model_t *m, const text_t *text, uint64_t from, uint64_t to, uint64_t draw,
                              uint32_t batch) {
    memset(m->grad, 0, (m->params + 1) * sizeof(float));
    float scale = 1.0f / (float)batch, loss = 0, z[BYTES];
    for (uint32_t b = 0; b < batch; b++) {
        const unsigned char *ctx = text->data + from + mix(draw ^ b) % (to - from - CONTEXT);
        loss += forward(m, ctx, ctx[CONTEXT], z);
        backward(m, ctx, ctx[CONTEXT], z, scale);
    }
    m->grad[m->params] = loss * scale;
}

/* Adam (Kingma and Ba, 2015, algorithm 1), step t from 1. Same inputs on every member, same bits out. */
static void adam(model_t *m, uint64_t t, float rate) {
    const float b1 = 0.9f, b2 = 0.999f;
    rate *= sqrtf(1 - powf(b2, (float)t)) / (1 - powf(b1, (float)t));
    for (uint64_t i = 0; i < m->params; i++) {
        float g = m->grad[i];
        m->m[i] = b1 * m->m[i] + (1 - b1) * g;
        m->v[i] = b2 * m->v[i] + (1 - b2) * g * g;
        m->p[i] -= rate * m->m[i] / (sqrtf(m->v[i]) + 1e-8f);
    }
}

/* FNV-1a over the bytes of the parameters. */
static uint64_t hash_parameters(const model_t *m) {
    const unsigned char *b = (const unsigned char *)m->p;
    uint64_t h = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < m->params * sizeof(float); i++) h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

/* ---- Options ----------------------------------------------------------------------------------------------- */

/* A whole number in [low, high], or -1 with a text. */
static int number(const char *name, const char *text, uint64_t low, uint64_t high, uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || *end || end == text || text[0] == '-' || v < low || v > high) {
        fprintf(stderr, PROGRAM ": --%s %s: expected a whole number from %llu to %llu\n", name, text,
                (unsigned long long)low, (unsigned long long)high);
        return -1;
    }
    *out = v;
    return 0;
}

#endif
