/* script.c: what each process of a case does: join, operations of every rule, a sub-group, messages, shared state, a
 * death in the middle, a newcomer, files, leaving. Every result is computed from who contributed, so that each byte is
 * checked; every input is looked at after a failure. It relies on the public interface alone. A call that fails for
 * want of something is made again, as its advice says; any other end of the group ends this process's part in it. */
#include "torture.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define TRIES 5
#define SMALL 48u
#define LARGE 60000u
#define STATE_BYTES (1300u * 1024)

static int me, wanting;
static rg_group_t *group;
static int in[LARGE], out[4 * LARGE];
static uint8_t tensor[STATE_BYTES], other[STATE_BYTES];

void script_bad(int role, const char *fmt, ...) {
    if (shared->bad[role][0]) return; /* the first says most */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(shared->bad[role], sizeof shared->bad[role], fmt, ap);
    va_end(ap);
}

static int value(uint64_t id, int op, uint32_t j) { return (int)((id * 31 + (uint64_t)op * 7 + j) % 1000); }

/* ---- Errors ----------------------------------------------------------------------------------------------------- */

static int wants(rg_status_t st) { return st == RG_ERR_NOMEM || st == RG_ERR_SYSTEM || st == RG_ERR_RESOURCE; }

static int is_over(rg_status_t st) {
    return st == RG_ERR_EXPELLED || st == RG_ERR_CLOSED || st == RG_ERR_ABORTED || st == RG_ERR_NO_QUORUM ||
           st == RG_ERR_COORDINATOR || st == RG_ERR_BUG;
}

/* Every error has a text, and none is a mistake of the library. */
static void judge_error(const char *what, rg_status_t st, const char *text) {
    char own[256] = "";
    if (!text || !text[0]) {
        if (group) rg_group_errmsg(group, own, sizeof own);
        text = own;
    }
    if (!text[0]) script_bad(me, "%s: %s without a text", what, rg_status_name(st));
    /* A process that had to join again is elsewhere in the script than the others. */
    if (st == RG_ERR_BUG || (st == RG_ERR_MISMATCH && !shared->rejoins) || st == RG_ERR_INVALID)
        script_bad(me, "%s: %s: %s", what, rg_status_name(st), text);
}

static int gives_up(const char *what, rg_status_t st, const char *text) {
    /* Where a call of its own does not help the group is over with that status: the handle is destroyed then. */
    wanting = wants(st) ? wanting + 1 : 0;
    if (!is_over(st) && wanting <= TRIES) return 0;
    char own[256] = "";
    if (!text || !text[0]) rg_group_errmsg(group, own, sizeof own), text = own;
    shared->over[me] = 1;
    shared->reason[me] = st;
    snprintf(shared->text[me], sizeof shared->text[me], "%s: %s: %.180s", what, rg_status_name(st), text);
    return 1;
}

/* ---- Joining ---------------------------------------------------------------------------------------------------- */

static int join(void) {
    rg_config_t c = RG_CONFIG_INIT;
    rg_error_t err;
    c.coordinator = shared->address;
    c.group = "torture";
    c.transport = shared->tcp ? "tcp" : "auto";
    c.order = (uint32_t)me;
    c.join_timeout_ms = 8000;
    c.op_timeout_ms = 6000;
    c.heartbeat_ms = 3000;
    for (int i = 0; i < 3; i++) {
        memset(&err, 0, sizeof err);
        c.min_size = me == ROLE_JOINS ? 1 : 3;
        rg_status_t st = rg_group_join(&c, &group, &err);
        if (st == RG_OK) return 1;
        if (group) script_bad(me, "join: %s, and a handle", rg_status_name(st));
        judge_error("join", st, err.text);
        snprintf(shared->text[me], sizeof shared->text[me], "join: %s: %.200s", rg_status_name(st), err.text);
        shared->reason[me] = st;
        shared->rejoins++;
    }
    shared->over[me] = 1;
    return 0;
}

/* ---- Operations ------------------------------------------------------------------------------------------------- */

static void note(int op, const rg_result_t *r, const uint64_t *ids) {
    struct outcome *o = &shared->op[op][me];
    uint64_t h = 1469598103934665603u;
    for (uint32_t i = 0; i < r->contributors && i < 4; i++) h = (h ^ ids[i]) * 1099511628211u;
    o->status = r->status;
    o->contributors = r->status == RG_OK ? r->contributors : 0;
    o->ids = r->status == RG_OK ? h : 0;
    o->set = 1;
}

typedef rg_status_t (*call_fn)(int op, rg_opts_t *opts);

/* One operation to its end. 0: the group is over for this process. */
static int operate(int op, const char *what, call_fn call, rg_result_t *r, uint64_t ids[4]) {
    rg_info_t info = RG_INFO_INIT;
    rg_group_info(group, &info);
    for (;;) {
        rg_opts_t o = RG_OPTS_INIT;
        *r = (rg_result_t)RG_RESULT_INIT;
        r->contributor_ids = ids;
        r->contributor_cap = 4;
        o.result = r;
        rg_status_t st = call(op, &o);
        r->status = st;
        if (st != RG_OK) judge_error(what, st, r->text);
        if (gives_up(what, st, r->text)) return 0;
        if (!wants(st)) break;
    }
    note(op, r, ids);
    return 1;
}

/* Different for each, so that members who are not in the same one find out. */
static uint32_t count_of(int op) { return (op == 1 || op == 8 ? LARGE - 64 : SMALL - 16) + (uint32_t)op; }

static uint64_t my_id(void) {
    rg_info_t info = RG_INFO_INIT;
    rg_group_info(group, &info);
    return info.member_id;
}

static int expected(int op, uint32_t j, const rg_result_t *r, const uint64_t *ids) {
    int sum = 0;
    for (uint32_t i = 0; i < r->contributors; i++) sum += value(ids[i], op, j);
    return sum;
}

static rg_status_t reduce_apart(int op, rg_opts_t *o) {
    return rg_all_reduce(group, in, out, count_of(op), RG_I32, RG_SUM, o, NULL);
}
static rg_status_t reduce_in_place(int op, rg_opts_t *o) {
    return rg_all_reduce(group, in, in, count_of(op), RG_I32, RG_SUM, o, NULL);
}
static rg_status_t gather(int op, rg_opts_t *o) { return rg_all_gather(group, in, out, count_of(op), RG_I32, o, NULL); }
static rg_status_t spread(int op, rg_opts_t *o) { return rg_broadcast(group, in, count_of(op), RG_I32, 0, o, NULL); }

static void fill(int op, uint64_t id) {
    for (uint32_t j = 0; j < count_of(op); j++) in[j] = value(id, op, j);
}

static int reduce(int op, int in_place) {
    rg_result_t r;
    uint64_t ids[4], id = my_id();
    fill(op, id);
    if (!operate(op, in_place ? "all_reduce in place" : "all_reduce", in_place ? reduce_in_place : reduce_apart, &r,
                 ids))
        return 0;
    const int *got = in_place ? in : out;
    for (uint32_t j = 0; j < count_of(op); j++) {
        if (r.status == RG_OK && got[j] != expected(op, j, &r, ids)) {
            script_bad(me, "operation %d: element %u is %d, not %d", op, j, got[j], expected(op, j, &r, ids));
            break;
        }
        if ((r.status != RG_OK || !in_place) && in[j] != value(id, op, j)) {
            script_bad(me, "operation %d (%s): the input was changed", op, rg_status_name(r.status));
            break;
        }
    }
    return 1;
}

static int collect(int op) {
    rg_result_t r;
    uint64_t ids[4];
    fill(op, my_id());
    if (!operate(op, "all_gather", gather, &r, ids)) return 0;
    uint32_t n = count_of(op);
    for (uint32_t i = 0; r.status == RG_OK && i < r.contributors; i++)
        for (uint32_t j = 0; j < n; j++)
            if (out[i * n + j] != value(ids[i], op, j)) script_bad(me, "all_gather: part %u is wrong", i);
    return 1;
}

static int announce(int op) {
    rg_result_t r;
    uint64_t ids[4], root = 0;
    rg_info_t info = RG_INFO_INIT;
    rg_group_info(group, &info);
    rg_group_member(group, 0, &root);
    fill(op, info.member_id);
    if (!operate(op, "broadcast", spread, &r, ids)) return 0;
    for (uint32_t j = 0; r.status == RG_OK && j < count_of(op); j++)
        if (in[j] != value(root, op, j)) script_bad(me, "broadcast: element %u is wrong", j);
    return 1;
}

/* Two requests at once, then a message to the next rank and one from the one before. */
static int requests(int op) {
    static int a[2][SMALL], b[2][SMALL];
    rg_request_t *req[2];
    rg_result_t r[2];
    uint64_t ids[2][4], id = my_id();
    for (int k = 0; k < 2; k++) {
        for (uint32_t j = 0; j < SMALL; j++) a[k][j] = value(id, op + k, j);
        for (int i = 0; i < TRIES; i++) {
            rg_opts_t o = RG_OPTS_INIT;
            o.tag = 5 + (uint32_t)k;
            r[k].status = rg_all_reduce(group, a[k], b[k], SMALL, RG_I32, RG_SUM, &o, &req[k]);
            if (r[k].status == RG_OK) break;
            judge_error("all_reduce with a request", r[k].status, NULL);
            if (gives_up("all_reduce with a request", r[k].status, NULL) || !wants(r[k].status)) return 0;
        }
        if (r[k].status != RG_OK) req[k] = NULL;
    }
    int goes_on = 1;
    for (int k = 0; k < 2; k++) {
        if (!req[k]) continue;
        r[k] = (rg_result_t)RG_RESULT_INIT;
        r[k].contributor_ids = ids[k];
        r[k].contributor_cap = 4;
        rg_status_t st = rg_wait(req[k], &r[k]);
        if (st != RG_OK) judge_error("rg_wait", st, r[k].text);
        if (gives_up("rg_wait", st, r[k].text)) goes_on = 0;
        for (uint32_t j = 0; st == RG_OK && j < SMALL; j++)
            if (b[k][j] != expected(op + k, j, &r[k], ids[k])) script_bad(me, "a request's result is wrong");
        if (goes_on && !wants(st)) note(op + k, &r[k], ids[k]);
    }
    return goes_on;
}

static int messages(void) {
    rg_info_t info = RG_INFO_INIT;
    rg_group_info(group, &info);
    if (info.world_size < 2 || info.rank > 1) return 1;
    static int letter[SMALL];
    for (uint32_t j = 0; j < SMALL; j++) letter[j] = info.rank == 0 ? (int)j : -1;
    rg_opts_t o = RG_OPTS_INIT;
    rg_result_t r = RG_RESULT_INIT;
    o.result = &r;
    for (int i = 0; i < TRIES; i++) {
        rg_status_t st = info.rank == 0 ? rg_send(group, letter, SMALL, RG_I32, 1, &o, NULL)
                                        : rg_recv(group, letter, SMALL, RG_I32, 0, &o, NULL);
        if (st != RG_OK) judge_error("a message", st, r.text);
        if (gives_up("a message", st, r.text)) return 0;
        for (uint32_t j = 0; st == RG_OK && j < SMALL; j++)
            if (letter[j] != (int)j) script_bad(me, "a message arrived wrong");
        if (!wants(st)) break;
    }
    return 1;
}

/* A child of all members, and a barrier in it. */
static int child(void) {
    rg_group_t *c = NULL;
    rg_status_t st = RG_OK;
    for (int i = 0; i < TRIES; i++) {
        st = rg_group_split(group, 0, 0, NULL, &c);
        if (st == RG_OK || !wants(st)) break;
        judge_error("split", st, NULL);
    }
    if (st != RG_OK) {
        if (c) script_bad(me, "split: %s, and a handle", rg_status_name(st));
        judge_error("split", st, NULL);
        return !gives_up("split", st, NULL);
    }
    rg_opts_t o = RG_OPTS_INIT;
    rg_result_t r = RG_RESULT_INIT;
    o.result = &r;
    st = rg_barrier(c, &o, NULL);
    if (st != RG_OK) judge_error("barrier of the child", st, r.text);
    rg_group_destroy(c);
    return !gives_up("barrier of the child", st, r.text);
}

/* ---- Shared state ----------------------------------------------------------------------------------------------- */

static uint8_t state_byte(uint32_t i, int version) { return (uint8_t)(i * 2654435761u >> 24 ^ (uint32_t)version); }

static int state_is(const uint8_t *t, int version) {
    for (uint32_t i = 0; i < STATE_BYTES; i++)
        if (t[i] != state_byte(i, version)) return 0;
    return 1;
}

static rg_state_t *state_of(uint8_t *t, uint64_t revision) {
    rg_state_t *s = NULL;
    rg_error_t err = { 0 };
    for (int i = 0; i < TRIES; i++) {
        rg_status_t st = rg_state_create(&s, &err);
        if (st == RG_OK) st = rg_state_add(s, "t", t, STATE_BYTES, RG_U8, &err);
        if (st == RG_OK) st = rg_state_set_revision(s, revision);
        if (st == RG_OK) return s;
        judge_error("state", st, err.text);
        rg_state_destroy(s);
        s = NULL;
    }
    return NULL;
}

/* A member that has the content, or one that has nothing yet. Whoever has it never loses it. */
static int state(int op, int has, int version) {
    for (uint32_t i = 0; i < STATE_BYTES; i++) tensor[i] = has ? state_byte(i, version) : 0;
    rg_state_t *s = state_of(tensor, has ? 5 : 0);
    if (!s) return 1;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    rg_status_t st = RG_OK;
    for (int i = 0; i < TRIES; i++) {
        r = (rg_state_result_t)RG_STATE_RESULT_INIT;
        st = rg_state_sync(group, s, NULL, &r);
        if (st != RG_OK) judge_error("state sync", st, r.text);
        if (has && !state_is(tensor, version)) script_bad(me, "state sync: %s: content lost", rg_status_name(st));
        if (!wants(st)) break;
    }
    /* Revision 0: nobody was there who had anything. */
    if (st == RG_OK && (has || r.revision) && !state_is(tensor, version))
        script_bad(me, "state sync: success with another content");
    shared->op[op][me].status = st;
    shared->op[op][me].contributors = r.members;
    shared->op[op][me].ids = 0;
    int goes_on = !gives_up("state sync", st, r.text);
    if (goes_on) shared->op[op][me].set = 1;
    rg_state_destroy(s);
    return goes_on;
}

/* The file always holds one whole version, the old or the new one. */
static void files(int role) {
    char path[64];
    rg_error_t err = { 0 };
    snprintf(path, sizeof path, "/tmp/torture-%d-%d", (int)getpid(), role);
    int have = 0;
    for (int version = 1; version <= 2; version++) {
        for (uint32_t i = 0; i < STATE_BYTES; i++) tensor[i] = state_byte(i, version);
        rg_state_t *s = state_of(tensor, (uint64_t)version), *t = state_of(other, 0);
        rg_status_t st = s ? rg_state_save(s, path, &err) : RG_ERR_NOMEM;
        if (s && st != RG_OK) judge_error("save", st, err.text);
        if (!state_is(tensor, version)) script_bad(me, "save: the content was changed");
        memset(other, 0, sizeof other);
        rg_status_t ld = t ? rg_state_load(t, path, &err) : RG_ERR_NOMEM;
        if (t && ld != RG_OK && (st == RG_OK || have)) judge_error("load", ld, err.text);
        if (ld == RG_OK && !state_is(other, st == RG_OK ? version : have) && !state_is(other, version))
            script_bad(me, "load: success with another content");
        for (uint32_t i = 0; ld != RG_OK && i < STATE_BYTES; i++)
            if (other[i]) {
                script_bad(me, "load: %s, and the tensor was changed", rg_status_name(ld));
                break;
            }
        if (st == RG_OK) have = version;
        rg_state_destroy(s);
        rg_state_destroy(t);
    }
    unlink(path);
}

/* ---- The roles -------------------------------------------------------------------------------------------------- */

static int before_death(void) {
    return reduce(0, 0) && reduce(1, 1) && collect(2) && announce(3) && requests(4) && child() && messages() &&
           state(7, me != 1, 3);
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* All pass the same number of boundaries, and agree that it is enough: somebody came, nobody comes any more, or one of
 * them has waited for very long. Were that sooner, a newcomer on a busy host would find the group ended, and found
 * another. */
static int wait_for_newcomer(int came) {
    for (int64_t end = now_ms() + 30000;;) {
        int late = came || shared->over[ROLE_JOINS] || shared->ended[ROLE_JOINS] || now_ms() > end, any = 0;
        rg_opts_t o = RG_OPTS_INIT;
        rg_result_t r = RG_RESULT_INIT;
        rg_status_t st = RG_OK;
        o.result = &r;
        for (int i = 0; i < TRIES; i++) {
            st = rg_all_reduce(group, &late, &any, 1, RG_I32, RG_MAX, &o, NULL);
            if (st != RG_OK) judge_error("waiting", st, r.text);
            if (!wants(st)) break;
        }
        if (gives_up("waiting", st, r.text)) return 0;
        if (any) return 1;
        rg_change_t c = RG_CHANGE_INIT;
        for (int i = 0; i < TRIES; i++) {
            st = rg_group_boundary(group, &c);
            if (st != RG_OK) judge_error("boundary", st, NULL);
            if (!wants(st)) break;
        }
        if (gives_up("boundary", st, NULL)) return 0;
        came |= c.joined != 0;
    }
}

static void die(void) {
    rg_request_t *req;
    rg_opts_t o = RG_OPTS_INIT;
    fill(8, my_id());
    rg_all_reduce(group, in, in, count_of(8), RG_I32, RG_SUM, &o, &req);
    shared->ended[me] = 1;
    _exit(0);
}

static void after_join(void) {
    if (reduce(9, 0) && reduce(10, 1) && collect(11) && state(12, me != ROLE_JOINS, 4)) {
        rg_status_t st = rg_group_leave(group);
        if (st != RG_OK) judge_error("leave", st, NULL);
    }
}

/* A member whose first attempt failed late may have been in the first view already; then it comes as a newcomer. */
static int in_first_view(void) {
    rg_info_t info = RG_INFO_INIT;
    rg_group_info(group, &info);
    return info.epoch == 1 && info.boundary == 0;
}

static int fds(void) {
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) n += lseek(fd, 0, SEEK_CUR) >= 0 || errno == ESPIPE;
    return n;
}

static void nothing_left(int before) {
    torture_disarm();
    if (me == shared->victim) torture_leaks();
    int after = fds();
    if (after > before) script_bad(me, "%d descriptors are left open", after - before);
}

static void on_alarm(int sig) { (void)sig; }

static void storm(void) {
    struct sigaction a = { .sa_handler = on_alarm }; /* without SA_RESTART */
    struct itimerval every = { { 0, 1000 }, { 0, 1000 } }, none = { 0 };
    sigaction(SIGALRM, &a, NULL);
    setitimer(ITIMER_REAL, shared->storm ? &every : &none, NULL);
}

void script_member(int role, int go_fd) {
    me = role;
    storm();
    int before = fds();
    torture_arm(role);
    if (join()) {
        if (role == ROLE_JOINS) {
            if (wait_for_newcomer(1)) after_join();
        } else if (in_first_view() ? before_death() : (wait_for_newcomer(1) && (after_join(), 0))) {
            if (role == ROLE_DIES) die();
            if (reduce(8, 1)) {
                __real_write(go_fd, "g", 1);
                if (wait_for_newcomer(0)) after_join();
            }
        }
        rg_group_destroy(group);
    }
    group = NULL;
    if (role <= 1) files(role);
    nothing_left(before);
    shared->ended[me] = 1;
}

void script_coordinator(int ready_fd, int stop_fd) {
    me = ROLE_COORDINATOR;
    storm();
    rg_coordinator_t *c = NULL;
    rg_coordinator_config_t config = RG_COORDINATOR_CONFIG_INIT;
    config.listen = "127.0.0.1:0";
    config.heartbeat_ms = 3000;
    config.max_members = 8;
    rg_coordinator_start(&config, &c, NULL); /* libuv opens a pipe when it is first used, for good */
    rg_coordinator_stop(c);
    c = NULL;
    int before = fds();
    torture_arm(me);
    for (int i = 0; i < TRIES && !c; i++) {
        rg_error_t err = { 0 };
        rg_status_t st = rg_coordinator_start(&config, &c, &err);
        if (st != RG_OK) judge_error("coordinator", st, err.text);
        if (st != RG_OK && c) script_bad(me, "coordinator: %s, and a handle", rg_status_name(st));
    }
    if (c) {
        snprintf(shared->address, sizeof shared->address, "%s", rg_coordinator_address(c));
        char end;
        while (__real_write(ready_fd, "r", 1) < 0 && errno == EINTR) continue;
        while (__real_read(stop_fd, &end, 1) < 0 && errno == EINTR) continue;
        rg_coordinator_stop(c);
    } else {
        script_bad(me, "the coordinator did not start in %d tries", TRIES);
    }
    nothing_left(before);
    shared->ended[me] = 1;
}
