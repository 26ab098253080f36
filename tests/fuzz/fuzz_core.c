/* fuzz_core.c: the fuzzer chooses the order of events among one coordinator and three processes, and now and then
 * puts its own bytes in the place of a message. The coordinator's invariants must hold whatever members send; a
 * member's as long as nobody has spoken to it in the coordinator's name, or to the coordinator in its own: who is
 * said to have a whole result is told to commit it. It relies on src/core alone. */
#include "core/coord.h"
#include "core/member.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PROCS 3
#define QUEUE 64

typedef struct msg {
    uint8_t *p;
    size_t n;
} msg_t;
typedef struct queue {
    msg_t m[QUEUE];
    uint32_t head, n;
} queue_t;
typedef struct input {
    const uint8_t *p;
    size_t n;
} input_t;

static struct {
    rg_coord_t *coord;
    rg_member_t *member[PROCS];
    queue_t up[PROCS], down[PROCS];
    uint64_t conn[PROCS], conns, now, gen[PROCS], next0[PROCS];
    int lied_to[PROCS], lied, succession;
    uint64_t reconnect;
    uint64_t offices;
} f;

static uint8_t take(input_t *in) {
    if (!in->n) return 0;
    in->n--;
    return *in->p++;
}

static void put(queue_t *q, const uint8_t *p, size_t n) {
    if (q->n == QUEUE) return;
    msg_t *m = &q->m[(q->head + q->n++) % QUEUE];
    m->p = malloc(n ? n : 1);
    m->n = n;
    if (!m->p) abort();
    memcpy(m->p, p, n);
}

static msg_t get(queue_t *q) {
    msg_t m = q->m[q->head];
    q->head = (q->head + 1) % QUEUE;
    q->n--;
    return m;
}

static void clear(queue_t *q) {
    while (q->n) free(get(q).p);
}

static int proc_of(uint64_t conn) {
    for (int i = 0; i < PROCS; i++)
        if (f.conn[i] == conn) return i;
    return -1;
}

/* A coordinator to which one member has lied, or said what it was told by a lie, may tell another to commit what it has
 * not, and that one ends. */
static int excused(int i) { return f.lied_to[i] || (f.lied && f.member[i]->broken); }

static rg_status_t member(int i, rg_member_event_t *ev) {
    ev->now_ns = f.now;
    rg_status_t st = rg_member_step(f.member[i], ev);
    const char *bad = rg_member_check(f.member[i]);
    if (bad && !excused(i)) __builtin_trap();
    rg_member_action_t a;
    while (rg_member_next(f.member[i], &a)) {
        if (a.type == RG_MACT_SEND && f.conn[i]) put(&f.up[i], a.bytes, a.len);
        if (a.type == RG_MACT_JOINED || a.type == RG_MACT_BOUNDARY) f.gen[i] = a.gen, f.next0[i] = 0;
    }
    return st;
}

static void coord(rg_cev_t type, uint64_t conn, const uint8_t *p, size_t n) {
    rg_coord_event_t ev = { .type = type, .now_ns = f.now, .conn = conn, .bytes = p, .len = n };
    rg_coord_step(f.coord, &ev);
    if (rg_coord_check(f.coord)) __builtin_trap();
    rg_coord_action_t a;
    while (rg_coord_next(f.coord, &a)) {
        int i = proc_of(a.conn);
        if (i < 0) continue;
        if (a.type == RG_CACT_SEND) put(&f.down[i], a.bytes, a.len);
    }
}

static void connect_or_break(int i) {
    rg_member_event_t ev = { .type = f.conn[i] ? RG_MEV_CONTROL_DOWN : RG_MEV_CONTROL_UP };
    uint64_t old = f.conn[i];
    clear(&f.up[i]);
    clear(&f.down[i]);
    f.conn[i] = old ? 0 : ++f.conns;
    if (old) coord(RG_CEV_CLOSED, old, NULL, 0);
    member(i, &ev);
}

static void deliver(int i, int up, int lie, input_t *in) {
    queue_t *q = up ? &f.up[i] : &f.down[i];
    if (!q->n || !f.conn[i]) return;
    msg_t m = get(q);
    for (int k = 0; lie && m.n > 8 && k < lie; k++) m.p[8 + (take(in) | take(in) << 8) % (m.n - 8)] ^= take(in);
    f.lied_to[i] |= lie;
    f.lied |= lie;
    if (up) {
        coord(RG_CEV_MESSAGE, f.conn[i], m.p, m.n);
    } else {
        rg_member_event_t ev = { .type = RG_MEV_MESSAGE, .bytes = m.p, .len = m.n };
        member(i, &ev);
    }
    free(m.p);
}

/* The whole group, a pair of two of the first four members, or one of four sub-groups. */
static uint64_t set_of(uint8_t y) {
    if (y % 3 == 0) return RG_SET_ALL;
    return y % 3 == 1 ? rg_set_pair(1 + (y >> 2) % 4, 1 + (y >> 4) % 4) : 1u + (y >> 2) % 4;
}

static void sub_group(int i, uint8_t x, uint8_t y) {
    uint64_t ids[3] = { 1 + y % 5, 1 + (y >> 3) % 5, rg_member_id(f.member[i]) };
    if (x & 64) rg_member_set_drop(f.member[i], 1u + (x >> 2) % 4);
    else rg_member_set_define(f.member[i], 1u + (x >> 2) % 4, ids + y % 3, 3 - y % 3);
    if (rg_member_check(f.member[i]) && !excused(i)) __builtin_trap();
}

static void operation(int i, uint8_t what, uint8_t x, uint8_t y) {
    rg_member_event_t ev = { 0 };
    uint64_t tag = x % 5 == 0 ? 1 : 0, set = set_of(y);
    ev.key = (rg_op_key_t){ f.gen[i], tag << 32 | (tag || set ? x / 5 : what == 0 ? f.next0[i] : x % 8), set };
    tag |= set;
    ev.sig = (rg_op_sig_t){ .kind = (uint8_t)((x ^ y) % RG_KIND_COUNT),
                            .dtype = RG_F32,
                            .on_fault = x & 1 ? RG_RETURN : RG_RETRY,
                            .rule_l = tag || (x & 2),
                            .root = y & 128 ? 1 + y % 4 : 0,
                            .count = 4 };
    static const rg_mev_t types[] = { RG_MEV_OP_START, RG_MEV_OP_COMPLETE, RG_MEV_OP_DONE, RG_MEV_OP_FETCHED,
                                      RG_MEV_OP_FAIL,  RG_MEV_WATERMARK,   RG_MEV_BOUNDARY };
    ev.type = types[what % 7];
    ev.status = RG_ERR_TIMEOUT;
    ev.gen = f.gen[i] + 1;
    ev.peer = x % 6;
    ev.note = x;
    int shapeless = !rg_sig_shaped(&ev.sig) || ev.sig.rule_l;
    if (ev.type == RG_MEV_OP_START && !tag && shapeless && rg_member_view(f.member[i]) &&
        f.member[i]->ents_own < RG_CORE_MAX_OPS && !f.member[i]->told)
        f.next0[i]++;
    member(i, &ev);
}

/* Some operations in a row ran before the member hears of them: of those that all others are said to be past it does
 * not hear, but for the last. What is told by the rules is taken. */
static void ran(int i, uint8_t x, uint8_t y) {
    rg_member_t *m = f.member[i];
    uint32_t n = 0, passed;
    while (n < 1 + y % 8u && rg_member_may_run(m, f.gen[i], n + 1)) n++;
    if (!n) return;
    passed = (x >> 2) % n;
    const uint64_t gen = f.gen[i], first = m->next0;
    for (uint32_t k = 0; passed && k < m->view.n; k++) {
        rg_op_key_t key = { gen, first + passed, RG_SET_ALL };
        rg_member_event_t ev = { .type = RG_MEV_WATERMARK, .peer = m->view.members[k].id, .note = rg_key_note(key) };
        if (k != m->self_rank) member(i, &ev);
    }
    for (uint32_t k = passed; k < n; k++) {
        rg_member_event_t ev = { .type = RG_MEV_OP_RAN, .key = { gen, first + k, RG_SET_ALL } };
        ev.sig = (rg_op_sig_t){ .kind = RG_KIND_ALL_REDUCE, .dtype = RG_F32, .on_fault = x & 1, .count = 4 };
        if (member(i, &ev) != RG_OK && !excused(i)) __builtin_trap();
    }
    f.next0[i] = m->next0;
}

/* Fresh zeroed pages: the machines are large and touched in a few places only. */
static void *machine(size_t n) {
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

/* In place of the coordinator that there was: one that knows nothing, standalone or hosted. */
static void office(uint64_t hosted) {
    rg_coord_params_t cp = { .max_members = 4, .heartbeat_ns = 100000000, .id = 9 };
    cp.reconnect_ns = f.reconnect;
    memcpy(cp.group, "fuzz", 5);
    if (f.succession) {
        cp.mode = RG_MODE_SUCCESSION;
        cp.hosted = hosted != 0;
        cp.id = hosted ? hosted | ++f.offices << 32 : RG_OFFICE_STANDALONE | ++f.offices;
        cp.nonce[0] = (uint8_t)f.offices;
    }
    if (f.coord) munmap(f.coord, rg_coord_size(4));
    f.coord = machine(rg_coord_size(4));
    if (rg_coord_init(f.coord, &cp) != RG_OK) abort();
}

static void new_office(uint8_t x) {
    if (!f.succession) return;
    for (int i = 0; i < PROCS; i++) {
        rg_member_event_t ev = { .type = RG_MEV_CONTROL_DOWN };
        clear(&f.up[i]);
        clear(&f.down[i]);
        if (f.conn[i]) member(i, &ev);
        f.conn[i] = 0;
    }
    office(x & 64 ? 1 + x % 3u : 0);
}

static void one(input_t *in) {
    uint8_t op = take(in), x = take(in);
    int i = x % PROCS;
    rg_member_event_t ev = { 0 };
    uint8_t raw[256];
    size_t n;
    switch (op % 16) {
    case 0:
    case 1: deliver(i, 1, 0, in); break;
    case 2:
    case 3: deliver(i, 0, 0, in); break;
    case 4: connect_or_break(i); break;
    case 5:
        f.now += (uint64_t)(x + 1) * 1000000;
        coord(RG_CEV_TICK, 0, NULL, 0);
        ev.type = RG_MEV_TICK;
        member(i, &ev);
        break;
    case 6:
    case 7: {
        uint8_t what = take(in);
        if (what >= 224) ran(i, x, take(in));
        else operation(i, what, x, take(in));
        break;
    }
    case 8:
        ev.type = x & 64 ? RG_MEV_LINK_DOWN : RG_MEV_LINK_UP;
        ev.peer = 1 + (x >> 2) % 8;
        if (f.reconnect) x = take(in);
        if (f.reconnect && x & 1) ev.via = 1 + (x >> 1) % 6;
        ev.fresh = f.reconnect && x >> 7;
        ev.dead = f.reconnect && x >> 6 == 1;
        member(i, &ev);
        break;
    case 9: deliver(i, 1, 1 + x % 4, in); break;
    case 10: deliver(i, 0, 1 + x % 4, in); break;
    case 11: sub_group(i, x, take(in)); break;
    case 12:
        ev.type = RG_MEV_NET;
        memset(ev.net, x, sizeof ev.net);
        member(i, &ev);
        break;
    case 13: new_office(x); break;
    case 14:
        ev.type = x & 64 ? RG_MEV_RETURN : RG_MEV_LEAVE;
        member(i, &ev);
        break;
    default:
        for (n = 0; n < sizeof raw && in->n && n < 2u * x; n++) raw[n] = take(in);
        f.lied_to[i] |= f.conn[i] || x & 128;
        f.lied |= f.lied_to[i];
        if (x & 128) {
            ev = (rg_member_event_t){ .type = RG_MEV_MESSAGE, .bytes = raw, .len = n };
            member(i, &ev);
        } else if (f.conn[i]) {
            coord(RG_CEV_MESSAGE, f.conn[i], raw, n);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input_t in = { data, size };
    memset(&f, 0, sizeof f);
    f.now = 1000000;
    uint8_t how = take(&in);
    uint32_t min_size = 1 + how % 3;
    f.succession = how >> 7;
    f.reconnect = how & 64 ? 30000000 : 0;
    office(0);
    for (int i = 0; i < PROCS; i++) {
        rg_member_params_t mp = { .max_members = 4, .min_size = min_size, .cores = 1, .host_office = i != 2 };
        mp.quorum_ns = 2000000000;
        memcpy(mp.group, "fuzz", 5);
        f.member[i] = machine(rg_member_size(4));
        if (rg_member_init(f.member[i], &mp) != RG_OK) abort();
        connect_or_break(i);
    }
    for (int k = 0; in.n && k < 3000; k++) one(&in);
    for (int i = 0; i < PROCS; i++) {
        clear(&f.up[i]);
        clear(&f.down[i]);
        munmap(f.member[i], rg_member_size(4));
    }
    munmap(f.coord, rg_coord_size(4));
    return 0;
}
