/* core_rig.h: one coordinator and a few members wired together in memory for the tests of the core. Messages are
 * delivered in order until all is quiet; links come up as soon as both sides want them; operations are driven by the
 * test. Every action of a member is written down, so that a test can ask what it was told. */
#ifndef CORE_RIG_H
#define CORE_RIG_H

#include "core/coord.h"
#include "core/member.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define RIG_MAX 8
#define RIG_NOTES 512
#define RIG_QUEUE 1024
#define RIG_HEARTBEAT 80000000ull

typedef struct rig_note {
    rg_mact_t type;
    rg_op_key_t key;
    rg_status_t status;
    uint64_t peer, gen, computed;
    uint32_t keep, on;
    uint64_t via;
    char text[RG_CORE_TEXT_MAX];
    uint64_t note;
    uint32_t flush;
} rig_note_t;

typedef struct rig_msg {
    int to_coord, node;
    uint64_t conn;
    size_t len;
    uint8_t *bytes;
} rig_msg_t;

typedef struct rig {
    rg_coord_t *coord;
    rg_member_t *m[RIG_MAX];
    uint64_t conn[RIG_MAX], conns, now, reconnect;
    uint8_t wants[RIG_MAX][RIG_MAX], up[RIG_MAX][RIG_MAX], cut[RIG_MAX]; /* cut: its messages are lost both ways */
    rig_note_t note[RIG_MAX][RIG_NOTES];
    uint32_t notes[RIG_MAX];
    rig_msg_t queue[RIG_QUEUE];
    uint32_t head, tail;
    char log[4096];
} rig_t;

static inline void rig_push(rig_t *r, int to_coord, int node, uint64_t conn, const uint8_t *bytes, size_t len) {
    rig_msg_t *m = &r->queue[r->tail++ % RIG_QUEUE];
    cr_assert(r->tail - r->head <= RIG_QUEUE);
    *m = (rig_msg_t){ to_coord, node, conn, len, malloc(len) };
    memcpy(m->bytes, bytes, len);
}

static inline void rig_member(rig_t *r, int i, rg_member_event_t ev);

static inline void rig_links(rig_t *r, int i) {
    for (int k = 0; k < RIG_MAX; k++) {
        if (k == i || !r->wants[i][k] || !r->wants[k][i] || r->up[i][k] || !r->m[k]) continue;
        r->up[i][k] = r->up[k][i] = 1;
        rig_member(r, i, (rg_member_event_t){ .type = RG_MEV_LINK_UP, .peer = rg_member_id(r->m[k]) });
        rig_member(r, k, (rg_member_event_t){ .type = RG_MEV_LINK_UP, .peer = rg_member_id(r->m[i]) });
    }
}

static inline rg_status_t rig_step(rig_t *r, int i, rg_member_event_t ev) {
    ev.now_ns = r->now;
    rg_status_t st = rg_member_step(r->m[i], &ev);
    const char *bad = rg_member_check(r->m[i]);
    cr_assert(!bad, "member %d: %s", i, bad);
    rg_member_action_t a;
    while (rg_member_next(r->m[i], &a)) {
        if (a.type == RG_MACT_SEND) {
            if (r->conn[i] && !r->cut[i]) rig_push(r, 1, i, r->conn[i], a.bytes, a.len);
            continue;
        }
        rig_note_t *n = &r->note[i][r->notes[i]++];
        cr_assert(r->notes[i] < RIG_NOTES);
        *n = (rig_note_t){
            a.type, a.key, a.status, a.peer, a.gen, a.computed, a.keep, a.on, a.via, "", a.note, a.flush
        };
        strncpy(n->text, a.text, sizeof n->text - 1);
        if (a.type == RG_MACT_CONNECT) r->wants[i][a.member->identity[0]] = 1;
        if (a.type == RG_MACT_DISCONNECT)
            for (int k = 0; k < RIG_MAX; k++)
                if (r->m[k] && rg_member_id(r->m[k]) == a.peer) r->wants[i][k] = r->up[i][k] = r->up[k][i] = 0;
    }
    rig_links(r, i);
    return st;
}

static inline void rig_member(rig_t *r, int i, rg_member_event_t ev) { cr_assert(rig_step(r, i, ev) == 0); }

static inline void rig_coord(rig_t *r, rg_cev_t type, uint64_t conn, const uint8_t *bytes, size_t len) {
    rg_coord_event_t ev = { .type = type, .now_ns = r->now, .conn = conn, .bytes = bytes, .len = len };
    cr_assert(rg_coord_step(r->coord, &ev) == 0);
    const char *bad = rg_coord_check(r->coord);
    cr_assert(!bad, "%s", bad);
    rg_coord_action_t a;
    while (rg_coord_next(r->coord, &a)) {
        int node = -1;
        for (int i = 0; i < RIG_MAX; i++)
            if (r->conn[i] == a.conn && a.conn) node = i;
        if (a.type == RG_CACT_SEND && node >= 0 && !r->cut[node]) rig_push(r, 0, node, a.conn, a.bytes, a.len);
        if (a.type == RG_CACT_LOG) {
            strncat(r->log, a.text, sizeof r->log - strlen(r->log) - 2);
            strcat(r->log, "\n");
        }
    }
}

/* Delivers until nothing is under way. */
static inline void rig_settle(rig_t *r) {
    while (r->head != r->tail) {
        rig_msg_t m = r->queue[r->head++ % RIG_QUEUE];
        if (m.to_coord) rig_coord(r, RG_CEV_MESSAGE, m.conn, m.bytes, m.len);
        else if (r->conn[m.node] == m.conn)
            rig_member(r, m.node, (rg_member_event_t){ .type = RG_MEV_MESSAGE, .bytes = m.bytes, .len = m.len });
        free(m.bytes);
    }
}

/* Lets time pass in small steps, so that heartbeats are on time. */
static inline void rig_pass(rig_t *r, uint64_t ns) {
    for (uint64_t end = r->now + ns; r->now < end;) {
        r->now += RIG_HEARTBEAT / 16;
        rig_coord(r, RG_CEV_TICK, 0, NULL, 0);
        for (int i = 0; i < RIG_MAX; i++)
            if (r->m[i]) rig_member(r, i, (rg_member_event_t){ .type = RG_MEV_TICK });
        rig_settle(r);
    }
}

/* id 0: authority. Else succession, and this is who owns its terms. In place of the coordinator that there was. */
static inline void rig_office(rig_t *r, uint32_t max, uint64_t id) {
    free(r->coord);
    r->coord = calloc(1, rg_coord_size(max));
    rg_coord_params_t p = { .max_members = max, .heartbeat_ns = RIG_HEARTBEAT, .id = id ? id : 1 };
    p.reconnect_ns = r->reconnect;
    p.mode = id ? RG_MODE_SUCCESSION : RG_MODE_AUTHORITY;
    p.hosted = id && id < RG_OFFICE_STANDALONE;
    memcpy(p.group, "default", 8);
    memset(p.nonce, id ? (int)(id & 255) : 3, 16);
    cr_assert(rg_coord_init(r->coord, &p) == 0);
}

static inline void rig_start(rig_t *r, uint32_t max) {
    memset(r, 0, sizeof *r);
    r->now = 1000000000;
    rig_office(r, max, 0);
}

static inline rg_member_params_t rig_params(int i, uint32_t min_size) {
    rg_member_params_t p = {
        .max_members = RIG_MAX, .host = 1, .cores = 2, .pid = 100u + (uint32_t)i, .min_size = min_size
    };
    p.identity[0] = (uint8_t)i;
    memcpy(p.group, "default", 8);
    memcpy(p.label, "box", 4);
    return p;
}

static inline void rig_connect(rig_t *r, int i) {
    r->conn[i] = ++r->conns;
    rig_member(r, i, (rg_member_event_t){ .type = RG_MEV_CONTROL_UP });
    rig_settle(r);
}

static inline void rig_join(rig_t *r, int i, rg_member_params_t p) {
    r->m[i] = calloc(1, rg_member_size(RIG_MAX));
    cr_assert(rg_member_init(r->m[i], &p) == 0);
    rig_connect(r, i);
}

static inline void rig_fill(rig_t *r, int n) {
    for (int i = 0; i < n; i++) rig_join(r, i, rig_params(i, (uint32_t)n));
    for (int i = 0; i < n; i++) cr_assert(rg_member_view(r->m[i]) != NULL, "member %d is not in", i);
    for (int i = 0; i < n; i++) r->notes[i] = 0;
}

/* n members in one first view, ranks 0 to n - 1. */
static inline void rig_group(rig_t *r, int n) {
    rig_start(r, RIG_MAX);
    rig_fill(r, n);
}

static inline void rig_kill(rig_t *r, int i) {
    uint64_t c = r->conn[i];
    r->conn[i] = 0;
    free(r->m[i]);
    r->m[i] = NULL;
    rig_coord(r, RG_CEV_CLOSED, c, NULL, 0);
    rig_settle(r);
}

static inline void rig_end(rig_t *r) {
    while (r->head != r->tail) free(r->queue[r->head++ % RIG_QUEUE].bytes);
    for (int i = 0; i < RIG_MAX; i++) free(r->m[i]);
    free(r->coord);
}

static inline rg_op_key_t key_of(uint64_t gen, uint64_t tag, uint64_t seq) {
    return (rg_op_key_t){ gen, tag << 32 | seq, RG_SET_ALL };
}

static inline rg_op_sig_t sig_of(int rule_l, rg_on_fault_t f) {
    return (rg_op_sig_t){ .kind = RG_KIND_ALL_REDUCE,
                          .dtype = RG_F32,
                          .op = RG_SUM,
                          .on_fault = (uint8_t)f,
                          .rule_l = (uint8_t)rule_l,
                          .count = 10 };
}

static inline void rig_op(rig_t *r, int i, rg_mev_t type, rg_op_key_t key, rg_op_sig_t sig) {
    rig_member(r, i, (rg_member_event_t){ .type = type, .key = key, .sig = sig });
}

/* The last action of this type about this operation (or about nothing: gen 0, op 0), or NULL. */
static inline const rig_note_t *told(rig_t *r, int i, rg_mact_t type, rg_op_key_t key) {
    for (uint32_t k = r->notes[i]; k-- > 0;)
        if (r->note[i][k].type == type && rg_key_cmp(r->note[i][k].key, key) == 0) return &r->note[i][k];
    return NULL;
}

static inline const rig_note_t *told_any(rig_t *r, int i, rg_mact_t type) {
    for (uint32_t k = r->notes[i]; k-- > 0;)
        if (r->note[i][k].type == type) return &r->note[i][k];
    return NULL;
}

#endif
