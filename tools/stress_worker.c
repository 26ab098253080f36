/* stress_worker.c: the worker of `regroup stress`, a process of its own: joins, does one step after the other (what is
 * in a step follows from the seed and the boundary's index, so that all members know it), writes down how every call
 * ended, and joins again when it was expelled. It judges nothing but its own elements. It relies on regroup.h and on
 * the file that it shares with the driver, and ends with it. */
#include "stress.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TENSORS 3
#define STATE_STEPS 8 /* steps that a content lasts */
#define UNKNOWN (1ull << 62)

struct worker {
    struct stress_setup *setup;
    struct stress_seat *seat;
    uint32_t slot, life, index;
    int planted, newcomer, gone, spared;
    rg_group_t *group;
    uint64_t id, step, incarnation, dice, view_changes, sampled_ns;
    uint32_t fds, threads; /* before the first join */
    struct stress_call calls[STRESS_CALLS];
    rg_state_t *state;
    void *tensor[TENSORS];
};

static const uint64_t tensor_counts[TENSORS] = { 70000, 300000, 1 };
static const rg_dtype_t tensor_types[TENSORS] = { RG_F32, RG_F32, RG_U64 };

/* ---- Writing down ---------------------------------------------------------------------------------------------- */

static void begin(struct worker *w, struct stress_record *r, stress_kind_t kind, uint64_t ms) {
    memset(r, 0, sizeof *r);
    r->incarnation = w->incarnation;
    r->step = w->step;
    r->index = w->index;
    r->life = w->life;
    r->kind = kind;
    r->member_id = w->id;
    r->intact = 1;
    r->start_ns = tool_now_ns();
    r->deadline_ns = ms * 1000000u;
    w->seat->now.kind = kind;
    w->seat->now.index = w->index;
    w->seat->now.step = w->step;
    w->seat->now.deadline_ns = r->deadline_ns;
    __atomic_store_n(&w->seat->now.start_ns, r->start_ns, __ATOMIC_RELEASE);
}

/* The driver reads a ring that is larger than what it may be behind with, unless it is stopped. */
static void put(struct worker *w, const struct stress_record *r) {
    struct stress_seat *s = w->seat;
    w->seat->now.start_ns = 0;
    while (s->written - __atomic_load_n(&s->read, __ATOMIC_ACQUIRE) >= STRESS_RING) poll(NULL, 0, 1);
    s->ring[s->written % STRESS_RING] = *r;
    __atomic_store_n(&s->written, s->written + 1, __ATOMIC_RELEASE);
}

static void finish(struct worker *w, struct stress_record *r, rg_status_t s) {
    rg_info_t info = RG_INFO_INIT;
    r->end_ns = tool_now_ns();
    r->status = s;
    if (w->group && s && !r->text[0]) rg_group_errmsg(w->group, r->text, sizeof r->text);
    if (w->group && s) w->gone = rg_group_info(w->group, &info) != RG_OK;
    put(w, r);
}

static uint32_t count_entries(const char *path) {
    uint32_t n = 0;
    DIR *d = opendir(path);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void sample(struct stress_record *r) {
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &pages, &resident) == 2)
        r->rss_kb = (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
    if (f) fclose(f);
    r->fds = count_entries("/proc/self/fd") - 1; /* the folder's own */
    r->threads = count_entries("/proc/self/task");
}

/* ---- Shared state ---------------------------------------------------------------------------------------------- */

static uint64_t revision_at(uint64_t step) { return step / STATE_STEPS + 1; }

static float state_value(uint64_t revision, uint32_t tensor, uint64_t i) {
    return (float)((revision * 31 + tensor * 7 + i % 61 * 3) % 4093);
}

static void state_write(struct worker *w, uint64_t revision) {
    for (uint32_t t = 0; t < 2; t++) {
        float *p = w->tensor[t];
        for (uint64_t i = 0; i < tensor_counts[t]; i++) p[i] = i < 61 ? state_value(revision, t, i) : p[i - 61];
    }
    memcpy(w->tensor[2], &revision, sizeof revision);
    rg_state_set_revision(w->state, revision);
}

static uint64_t state_wrong(const struct worker *w, uint64_t revision) {
    uint64_t wrong = memcmp(w->tensor[2], &revision, sizeof revision) != 0;
    for (uint32_t t = 0; t < 2; t++) {
        const float *p = w->tensor[t];
        for (uint64_t i = 0; i < tensor_counts[t]; i++)
            wrong += i < 61 ? p[i] != state_value(revision, t, i) : p[i] != p[i - 61];
    }
    return wrong;
}

static int state_open(struct worker *w) {
    static const char *const names[TENSORS] = { "weights", "moments", "step" };
    rg_error_t err;
    if (rg_state_create(&w->state, &err)) return -1;
    for (uint32_t t = 0; t < TENSORS; t++) {
        w->tensor[t] = calloc(tensor_counts[t], rg_dtype_size(tensor_types[t]));
        if (!w->tensor[t] || rg_state_add(w->state, names[t], w->tensor[t], tensor_counts[t], tensor_types[t], &err))
            return -1;
    }
    return 0;
}

/* The content of a group is that of its newest revision; one that was just founded has none yet. */
static void sync_state(struct worker *w) {
    struct stress_record r;
    rg_state_opts_t o = RG_STATE_OPTS_INIT;
    rg_state_result_t res = RG_STATE_RESULT_INIT;
    uint64_t want = revision_at(w->step), founded = 0;
    o.rule = RG_STATE_NEWEST;
    for (int tries = 0; tries < 6; tries++) {
        begin(w, &r, STRESS_STATE, 6ull * w->setup->op_ms);
        res = (rg_state_result_t)RG_STATE_RESULT_INIT;
        rg_status_t s = rg_state_sync(w->group, w->state, &o, &res);
        r.contributors = res.members;
        r.retries = res.retries;
        r.count = res.bytes_received;
        snprintf(r.text, sizeof r.text, "%.150s", res.text);
        founded = !s && w->newcomer && (res.revision == 0 || w->step < 2);
        if (!s && !founded) {
            /* Newer than the group's own: somebody has come with what an earlier group of that name had. */
            r.wrong = res.revision < want ? 1 : state_wrong(w, res.revision);
            r.hash = stress_hash(w->tensor[1], tensor_counts[1] * sizeof(float));
            if (res.revision < want)
                snprintf(r.text, sizeof r.text, "revision %llu, expected %llu", (unsigned long long)res.revision,
                         (unsigned long long)want);
        }
        finish(w, &r, s);
        if (s != RG_ERR_PEER_LOST || w->gone) break;
    }
    if (!w->gone && (founded || rg_state_revision(w->state) != want)) state_write(w, want);
}

/* ---- Operations ------------------------------------------------------------------------------------------------ */

static struct stress_call *prepare(struct worker *w, uint32_t i, rg_group_t *g, stress_kind_t kind, uint32_t sub,
                                   uint32_t colour) {
    struct stress_call *c = &w->calls[i];
    int messages = stress_kind_is(kind, 'p');
    begin(w, &c->rec, kind, messages ? STRESS_MESSAGE_MS : w->setup->op_ms);
    c->group = g;
    c->id = w->id;
    c->key = stress_mix(w->setup->seed ^ stress_mix(w->step * 64 + w->index + 7));
    c->rec.sub = sub;
    c->rec.colour = colour;
    /* A newcomer that dies as it enters may have begun a comparison of states that nobody else will: with tags of their
     * own the others' operations have nothing to do with it. */
    c->tag = sub ? 0 : 1 + w->index;
    c->planted = w->planted;
    c->n = 0;
    stress_call_prepare(c);
    w->index++;
    return c;
}

static void conclude(struct worker *w, struct stress_call *c) {
    rg_info_t info = RG_INFO_INIT;
    struct stress_record *r = &c->rec;
    struct stress_now *now = &w->seat->now;
    now->kind = r->kind;
    now->index = r->index;
    now->deadline_ns = r->deadline_ns;
    __atomic_store_n(&now->start_ns, r->start_ns, __ATOMIC_RELEASE);
    stress_call_finish(c, now);
    if (w->planted && w->setup->plant == STRESS_PLANT_OUTCOME && r->step >= 3 && r->kind == STRESS_ALL_REDUCE &&
        r->on_fault == RG_RETURN)
        r->status = RG_ERR_PEER_LOST;
    else if (r->status) w->gone |= rg_group_info(w->group, &info) != RG_OK;
    put(w, r);
}

static stress_kind_t draw_kind(const struct worker *w, uint64_t h, int no_messages) {
    for (uint64_t k = 0;; k++) {
        stress_kind_t kind = (stress_kind_t)w->setup->kinds[(h + k) % w->setup->n_kinds];
        if (!no_messages || !stress_kind_is(kind, 'p')) return kind;
        if (k == w->setup->n_kinds) return STRESS_BARRIER;
    }
}

static void one(struct worker *w, uint64_t h) {
    struct stress_call *c = prepare(w, 0, w->group, draw_kind(w, h, 0), 0, 0);
    stress_call_start(c, 1);
    conclude(w, c);
}

/* Several at once, told apart by tags, so that one that has to be called again still finds its partners. */
static void burst(struct worker *w, uint64_t h) {
    uint32_t n = 2 + (uint32_t)(h >> 8) % (STRESS_CALLS - 1);
    for (uint32_t i = 0; i < n; i++) {
        struct stress_call *c = prepare(w, i, w->group, draw_kind(w, stress_mix(h + i), 1), 0, 0);
        c->rec.flying = 1;
        stress_call_start(c, 0);
    }
    for (uint32_t i = 0; i < n; i++) conclude(w, &w->calls[i]);
}

static void sub_groups(struct worker *w, uint64_t h, uint32_t split) {
    struct stress_record r;
    rg_group_t *child = NULL;
    uint32_t parts = 1 + (uint32_t)(h >> 8) % 3, colour = (uint32_t)(stress_mix(h ^ w->id) % parts);
    uint32_t n = 1 + (uint32_t)(h >> 12) % 2;
    begin(w, &r, STRESS_SUB_GROUP, w->setup->op_ms);
    r.colour = colour;
    rg_status_t s = rg_group_split(w->group, colour, (uint32_t)(stress_mix(w->id) % 1000), NULL, &child);
    finish(w, &r, s);
    w->index++;
    if (s || !child) {
        w->index += n;
        return;
    }
    for (uint32_t i = 0; i < n && !w->gone; i++) {
        struct stress_call *c = prepare(w, 0, child, draw_kind(w, stress_mix(h + i + 77), 0), split, colour);
        stress_call_start(c, 1);
        conclude(w, c);
    }
    rg_group_destroy(child);
}

/* Tells who is in the group: it ends well only with everybody of a view, and so confirms what came before. */
static void tally(struct worker *w) {
    struct stress_record r;
    rg_opts_t o = RG_OPTS_INIT;
    rg_result_t res = RG_RESULT_INIT;
    uint64_t in[2], out[2] = { 0, 0 };
    begin(w, &r, STRESS_TALLY, w->setup->op_ms);
    in[0] = w->incarnation ? w->incarnation : UNKNOWN | (stress_mix(w->dice++) & (UNKNOWN - 1)) | 1;
    in[1] = w->step;
    res.contributor_ids = r.ids;
    res.contributor_cap = STRESS_PEERS;
    o.result = &res;
    o.on_fault = RG_RETRY;
    o.tag = 1 + w->index;
    rg_status_t s = rg_all_reduce(w->group, in, out, 2, RG_U64, RG_MIN, &o, NULL);
    r.epoch = res.epoch;
    r.contributors = res.contributors;
    r.retries = res.retries;
    r.fault_ns = res.fault_ns;
    r.hash = out[0];
    r.wrong = !s && out[1] != w->step;
    snprintf(r.text, sizeof r.text, "%.150s", res.text);
    if (!s) r.incarnation = w->incarnation = out[0] & (UNKNOWN - 1);
    finish(w, &r, s);
    w->index++;
}

static void step(struct worker *w, int enter) {
    uint64_t h = stress_mix(w->setup->seed ^ stress_mix(w->step + 1)), blocks = 1 + h % 4;
    w->index = 0;
    if (w->setup->state) {
        if (!w->newcomer && rg_state_revision(w->state) != revision_at(w->step)) state_write(w, revision_at(w->step));
        if (enter || !(h >> 8 & 15)) sync_state(w);
    }
    w->index = 1; /* 0 is the state's, whether or not there was a reason to compare */
    for (uint64_t b = 0; b < blocks && !w->gone; b++) {
        uint64_t k = stress_mix(h + b + 1);
        if (k % 8 < 4 && w->setup->n_kinds) one(w, k >> 4);
        else if (k % 8 < 7 && w->setup->n_kinds) burst(w, k >> 4);
        else if (w->setup->sub_groups && w->setup->n_kinds) sub_groups(w, k >> 4, 1 + (uint32_t)b);
    }
    if (!w->gone) tally(w);
    w->newcomer = 0;
}

/* ---- Membership ------------------------------------------------------------------------------------------------ */

static int pass_boundary(struct worker *w, uint32_t *joined) {
    struct stress_record r;
    rg_change_t ch = RG_CHANGE_INIT;
    rg_info_t info = RG_INFO_INIT;
    begin(w, &r, STRESS_BOUNDARY, w->setup->op_ms);
    rg_status_t s = rg_group_boundary(w->group, &ch);
    w->seat->now.start_ns = 0;
    r.world = ch.world_size;
    r.rank = ch.rank;
    r.changed = ch.joined;
    r.lost = ch.lost;
    if (rg_group_info(w->group, &info) == RG_OK) {
        r.epoch = info.epoch;
        if (info.view_changes != w->view_changes) r.fault_ns = info.last_change_ns;
        w->view_changes = info.view_changes;
    }
    if (s == RG_OK && ch.boundary != w->step + 1) {
        r.wrong = 1;
        snprintf(r.text, sizeof r.text, "boundary %llu follows %llu", (unsigned long long)ch.boundary,
                 (unsigned long long)w->step);
    }
    if (r.start_ns - w->sampled_ns > 500000000ull) {
        w->sampled_ns = r.start_ns;
        sample(&r);
    }
    for (int i = 0; i < 4 && w->planted && w->setup->plant == STRESS_PLANT_FDS; i++)
        if (dup(0) < 0) return 0;
    finish(w, &r, s);
    if (s) return 0;
    w->step = ch.boundary;
    *joined = ch.joined;
    return 1;
}

static void leave(struct worker *w) {
    struct stress_record r;
    begin(w, &r, STRESS_LEAVE, w->setup->op_ms);
    rg_status_t s = rg_group_leave(w->group);
    finish(w, &r, s);
    w->gone = 1;
}

/* After a handle's end nothing of it may be left in the process. */
static void close_group(struct worker *w) {
    struct stress_record r;
    begin(w, &r, STRESS_GONE, w->setup->op_ms);
    rg_group_destroy(w->group);
    w->group = NULL;
    sample(&r);
    /* What is made once for a process and kept, as a library below may, is not a leak: the first time does not count.
     */
    if (!w->spared && r.fds > w->fds && r.fds <= w->fds + 2) {
        w->spared = 1;
        w->fds = r.fds;
    }
    r.wrong = r.fds > w->fds || r.threads > w->threads;
    if (r.wrong)
        snprintf(r.text, sizeof r.text, "%u descriptors and %u threads are left, there were %u and %u", r.fds,
                 r.threads, w->fds, w->threads);
    finish(w, &r, RG_OK);
}

static void *nothing(void *arg) { return arg; }

/* A sanitizer starts a thread of its own with the first one of the program: not one that a group left. */
static int first_thread(void) {
    pthread_t t;
    return pthread_create(&t, NULL, nothing, NULL) || pthread_join(t, NULL);
}

/* By the driver's clock, as in the journal. */
static void log_line(void *user, rg_log_level_t level, const char *line) {
    const struct stress_setup *s = user;
    (void)level;
    fprintf(stderr, "%.6f %s\n", (double)(int64_t)(tool_now_ns() - s->start_ns) / 1e9, line);
}

static int enter_group(struct worker *w) {
    struct stress_record r;
    rg_config_t cfg = RG_CONFIG_INIT;
    rg_error_t err = { RG_OK, 0, "" };
    rg_info_t info = RG_INFO_INIT;
    const struct stress_setup *s = w->setup;
    cfg.coordinator = s->coordinator;
    cfg.group = s->group;
    cfg.transport = s->transport;
    cfg.order = w->slot;
    /* Who comes back does not wait for the others: the group is there. */
    cfg.min_size = w->seat->ready == 1 && w->life == 0 ? s->peers : 1;
    cfg.join_timeout_ms = s->join_ms;
    cfg.op_timeout_ms = s->op_ms;
    cfg.heartbeat_ms = s->heartbeat_ms;
    cfg.log_level = (rg_log_level_t)s->log_level;
    cfg.log_fn = log_line;
    cfg.log_user = w->setup;
    w->incarnation = w->step = w->id = 0;
    w->index = 0;
    w->gone = 0;
    w->newcomer = 1;
    w->view_changes = 0;
    w->life++;
    begin(w, &r, STRESS_JOIN, s->join_ms);
    rg_status_t st = rg_group_join(&cfg, &w->group, &err);
    snprintf(r.text, sizeof r.text, "%.150s", err.text);
    if (!st && !(st = rg_group_info(w->group, &info))) {
        w->id = r.member_id = info.member_id;
        w->step = r.step = info.boundary;
        r.epoch = info.epoch;
        r.world = info.world_size;
        r.rank = info.rank;
        w->view_changes = info.view_changes;
    }
    finish(w, &r, st);
    if (st && w->group) close_group(w);
    return st == RG_OK;
}

static void live(struct worker *w) {
    uint32_t joined = 0;
    int patience = 0;
    while (!w->gone) {
        if (!joined) joined = (uint32_t)w->newcomer;
        step(w, joined > 0);
        if (w->gone) break;
        if (w->seat->leave) {
            leave(w);
            break;
        }
        poll(NULL, 0, (int)((w->setup->pace_us + 999) / 1000));
        for (joined = 0, patience = 0; !w->gone && !pass_boundary(w, &joined) && patience < 100; patience++)
            poll(NULL, 0, 10);
        if (patience == 100) break;
    }
    close_group(w);
}

static int work(struct worker *w) {
    struct stress_record r;
    size_t bytes = stress_buffer_bytes(w->setup);
    rg_error_t err;
    for (uint32_t i = 0; i < STRESS_CALLS; i++)
        for (int k = 0; k < 2; k++) {
            void *p = NULL;
            /* Every second one has memory that others can map. */
            if (w->slot & 1 ? !(p = malloc(bytes)) : rg_alloc(bytes, &p, &err) != RG_OK) return TOOL_FAILED;
            w->calls[i].mem[k] = p;
            w->calls[i].setup = w->setup;
        }
    if (state_open(w)) return TOOL_FAILED;
    if (first_thread()) return TOOL_FAILED;
    sample(&r);
    w->fds = r.fds;
    w->threads = r.threads;
    w->dice = tool_now_ns() ^ (uint64_t)getpid() << 40;
    while (!w->seat->leave) {
        if (enter_group(w)) live(w);
        else poll(NULL, 0, 100);
        if (w->life % 2) rg_state_set_revision(w->state, 0); /* else it comes back with what it has */
    }
    rg_state_destroy(w->state);
    for (uint32_t t = 0; t < TENSORS; t++) free(w->tensor[t]);
    for (uint32_t i = 0; i < STRESS_CALLS; i++)
        for (int k = 0; k < 2; k++) {
            if (w->slot & 1) free(w->calls[i].mem[k]);
            else rg_free_memory(w->calls[i].mem[k]);
        }
    return TOOL_OK;
}

int tool_stress_worker(int argc, char **argv) {
    static struct worker w;
    uint64_t slot = 0;
    int fd = argc == 3 ? open(argv[1], O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0 || !tool_number(argv[2], 0, STRESS_PEERS - 1, &slot))
        return tool_usage("stress", "a worker is started by the command itself");
    void *p = mmap(NULL, sizeof(struct stress_setup), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) return tool_failed("stress", "mmap: %s", strerror(errno));
    w.setup = p;
    w.slot = (uint32_t)slot;
    w.seat = &w.setup->seats[slot];
    w.planted = w.setup->plant && slot == w.setup->plant_slot;
    return work(&w);
}
