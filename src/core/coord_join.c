/* coord_join.c: growth: who may be a candidate, who tells whom about whom, and when a batch of candidates enters. It
 * relies on candidates to say which links they have (READY). It must not stop or slow running members: they are asked
 * only for a promise, and only for candidates that have just shown that they are alive. Section 6 of
 * docs/protocol.md. */
#include "core/coord.h"

#include <string.h>

#define NEVER UINT64_MAX
#define FLUSH_NS 2000000u /* in large groups news about candidates is collected for this long */
#define SMALL_GROUP 32u
#define CHECK_NS 20000000u /* a candidate that does not answer for this long is left out of the batch, at first */

/* ---- Admission (J1) -------------------------------------------------------------------------------------------- */

void rg_coord_refuse(rg_coord_t *c, uint64_t conn, rg_status_t status, const char *text) {
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_REFUSE);
    rg_w_u32(&w, (uint32_t)(int32_t)status);
    rg_w_text(&w, text, RG_CORE_TEXT_MAX - 1);
    rg_coord_send(c, conn, rg_coord_end(c, &w));
    rg_coord_close(c, conn);
}

static uint32_t fixed_size(const rg_coord_t *c, int *any) {
    uint32_t n = 0;
    *any = 0;
    for (uint32_t i = 0; i < c->population; i++) {
        const rg_seat_t *s = &c->seats[c->roster[i]];
        if (s->state != RG_SEAT_CANDIDATE) continue;
        *any = 1;
        if (s->fixed_n > n) n = s->fixed_n;
    }
    return n;
}

/* The reason why j may not wait for the first view, in text; 1 if there is one. */
static int refuse_fixed(const rg_coord_t *c, const rg_msg_join_t *j, rg_text_t *t) {
    if (c->have_view) {
        if (!j->fixed_n) return 0;
        rg_text_str(t, "the group has been formed already; ranks cannot be chosen any more: join without a rank");
        return 1;
    }
    int any;
    uint32_t n = fixed_size(c, &any);
    if (any && n != j->fixed_n) {
        rg_text_str(t, n ? "the others wait for a group of exactly "
                         : "the others do not choose their ranks; this process asked for a group of exactly ");
        rg_text_u64(t, n ? n : j->fixed_n);
        rg_text_str(t, n ? " ranks: start all processes with the same number"
                         : " ranks: start all processes in the same way");
        return 1;
    }
    if (j->fixed_n && (j->fixed_rank >= j->fixed_n || j->fixed_n > c->p.max_members)) {
        rg_text_str(t, "a rank must be below the number of ranks, and that at most ");
        rg_text_u64(t, c->p.max_members);
        return 1;
    }
    for (uint32_t i = 0; j->fixed_n && i < c->population; i++) {
        const rg_seat_t *s = &c->seats[c->roster[i]];
        if (s->state != RG_SEAT_CANDIDATE || s->fixed_rank != j->fixed_rank) continue;
        rg_text_str(t, "rank ");
        rg_text_u64(t, j->fixed_rank);
        rg_text_str(t, " is taken by ");
        rg_seat_name(t, s);
        return 1;
    }
    return 0;
}

static int refuse_join(rg_coord_t *c, const rg_msg_join_t *j, uint16_t version, rg_status_t *status, rg_text_t *t) {
    *status = RG_ERR_REFUSED;
    if (version != RG_WIRE_VERSION) {
        *status = RG_ERR_PROTOCOL;
        rg_text_str(t, "this process speaks protocol version ");
        rg_text_u64(t, version);
        rg_text_str(t, ", the coordinator version ");
        rg_text_u64(t, RG_WIRE_VERSION);
        rg_text_str(t, ": use the same release everywhere");
        return 1;
    }
    if (c->population >= c->p.max_members) {
        *status = RG_ERR_RESOURCE;
        rg_text_str(t, "the group is full: ");
        rg_text_u64(t, c->population);
        rg_text_str(t, " members and candidates; raise max_members of the coordinator");
        return 1;
    }
    if (j->min_size > c->p.max_members) {
        rg_text_str(t, "min_size is more than the coordinator allows in a group: ");
        rg_text_u64(t, c->p.max_members);
        return 1;
    }
    return refuse_fixed(c, j, t);
}

static void send_welcome(rg_coord_t *c, const rg_seat_t *s, uint64_t conn) {
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_WELCOME);
    rg_w_u64(&w, s->m.id);
    rg_w_bytes(&w, c->p.nonce, 16);
    rg_w_u64(&w, c->p.heartbeat_ns);
    rg_w_u8(&w, (uint8_t)c->p.mode);
    rg_w_u64(&w, c->p.takeover_ns);
    rg_w_u64(&w, c->p.reconnect_ns);
    rg_coord_send(c, conn, rg_coord_end(c, &w));
}

void rg_coord_flush_soon(rg_coord_t *c) {
    uint64_t at = c->population <= SMALL_GROUP || c->n_gone >= RG_GONE_MAX ? c->now : c->now + FLUSH_NS;
    if (at < c->flush_at) c->flush_at = at;
}

/* G6. The view has been chosen in which this process enters, and the coordinator that was to tell it died first. It
 * comes as it came before, so by its identity it has never been in a view. Where there is no quorum it takes its place,
 * and its vote with it: what is left of the voters may be too few for ever. Where there is one it comes as another, as
 * links that it has given up meanwhile could cost it that place again. 1: it was one of these. */
static int newcomer_returns(rg_coord_t *c, uint64_t conn, const rg_msg_join_t *j) {
    rg_seat_t *s = NULL;
    if (!rg_coord_succeeds(c) || !c->have_view || c->kind == RG_VIEW_RECOVERY) return 0;
    if (c->acting || !rg_claim_here(c)) return 0; /* what nobody here belongs to may be long over elsewhere */
    for (uint32_t i = 0; i < c->n && !s; i++) {
        rg_seat_t *x = &c->seats[c->rank_seat[i]];
        if (memcmp(x->m.identity, j->identity, 16) != 0 || x->suspect == RG_SUSPECT_FIRM) continue;
        if (x->m.addr_len == j->addr_len && memcmp(x->m.addr, j->addr, j->addr_len) == 0) s = x;
    }
    if (!s) return 0;
    if (c->round == RG_ROUND_INSTALL) { /* it comes again in a moment, and finds what has become of it */
        rg_coord_close(c, conn);
        return 1;
    }
    rg_msg_rebind_t b = { .id = s->m.id, .epoch = c->epoch, .pid = j->pid };
    memcpy(b.label, j->label, sizeof b.label);
    c->froze = 1; /* what was sent to it on links that it has given up is gone: a round lets all begin anew */
    send_welcome(c, s, conn);
    rg_coord_send_whole(c, conn);
    rg_coord_bind(c, s, conn, &b);
    return 1;
}

void rg_coord_on_join(rg_coord_t *c, uint64_t conn, rg_r_t *r, uint16_t version) {
    rg_msg_join_t j;
    char text[RG_CORE_TEXT_MAX];
    rg_text_t t = rg_text_begin(text, sizeof text);
    rg_status_t status;
    memset(&j, 0, sizeof j);
    if (version == RG_WIRE_VERSION) rg_r_join(r, &j);
    if (r->bad) {
        rg_coord_close(c, conn);
        return;
    }
    if (version == RG_WIRE_VERSION && newcomer_returns(c, conn, &j)) return;
    /* Who is hosted is here for a group that is, and founds none. Ids are given by one coordinator at a time. */
    if (rg_coord_succeeds(c) && (c->have_view ? !c->acting || !rg_coord_quorum(c, rg_vote_here) : c->p.hosted)) {
        c->turned_away_at = c->now;
        rg_coord_close(c, conn);
        return;
    }
    if (refuse_join(c, &j, version, &status, &t)) {
        rg_coord_refuse(c, conn, status, text);
        return;
    }
    rg_seat_t *s = rg_seat_new(c);
    if (!s) return;
    s->conn = conn;
    rg_idmap_put(&c->by_conn, conn, (uint64_t)(s - c->seats));
    s->m.host = j.host;
    s->m.site = j.site;
    s->m.cores = j.cores;
    memcpy(s->m.identity, j.identity, 16);
    s->m.addr_len = j.addr_len;
    memcpy(s->m.addr, j.addr, j.addr_len);
    memcpy(s->label, j.label, sizeof s->label);
    s->pid = j.pid;
    s->min_size = j.min_size;
    s->order = j.order;
    s->fixed_n = j.fixed_n;
    s->fixed_rank = j.fixed_rank;
    send_welcome(c, s, conn);
    c->waiting_dirty = c->grow_dirty = 1;
    rg_coord_flush_soon(c);
}

void rg_coord_bind(rg_coord_t *c, rg_seat_t *s, uint64_t conn, const rg_msg_rebind_t *b) {
    int behind = b->epoch != c->epoch;
    if (s->conn && s->conn != conn) {
        rg_idmap_del(&c->by_conn, s->conn);
        rg_coord_close(c, s->conn);
    }
    s->conn = conn;
    rg_idmap_put(&c->by_conn, conn, (uint64_t)(s - c->seats));
    s->last_heard = c->came_at = c->now;
    c->empty_at = NEVER;
    s->silent = 0;
    s->lost_due = s->waited = 0;
    s->pid = b->pid;
    if (b->label[0]) memcpy(s->label, b->label, sizeof s->label);
    if (s->suspect == RG_SUSPECT_SILENT) s->suspect = RG_SUSPECT_NO; /* C7: it lives, and its report is waited for */
    s->told = 0;
    s->base = b->epoch;
    if (rg_coord_succeeds(c)) {
        s->pending = (b->waits & RG_WAITS_FENCED) || b->accepted;
        if (b->waits & RG_WAITS_PROMISE && b->epoch == c->epoch) c->owed = c->grow_dirty = 1;
        if (b->upto > c->next_id && b->upto <= RG_SET_ID_MAX) c->next_id = b->upto;
        rg_claim_seen(c, b->term);
    }
    if (!c->acting) {
        rg_claim_say(c, conn);
        return;
    }
    rg_coord_flush_peers(c); /* before the view, which may name members that it has not been told of */
    if (behind) rg_coord_resend_view(c, conn);
    rg_coord_routes_tell(c, s);
    if (c->round == RG_ROUND_COLLECT && !s->reported) rg_coord_freeze(c, s);
    if (c->round == RG_ROUND_INSTALL && !s->accepted) rg_coord_send_install(c, conn);
    if (s->pending && c->round == RG_ROUND_NONE)
        rg_coord_collect(c); /* it waits for one that nobody else goes on with */
    if (c->growth == RG_GROW_PREPARE && !s->promised) {
        rg_w_t w = rg_coord_begin(c);
        rg_w_header(&w, RG_MSG_PREPARE);
        rg_w_term(&w, c->term);
        rg_w_u64(&w, c->epoch);
        rg_coord_send(c, conn, rg_coord_end(c, &w));
    }
}

/* A live member whose connection broke comes back. Whether it stays is decided by its report, like that of anybody
 * who was suspected (C7). With succession it may also know of a view that this coordinator does not know. */
void rg_coord_on_rebind(rg_coord_t *c, uint64_t conn, rg_r_t *r) {
    rg_msg_rebind_t b;
    rg_r_rebind(r, &b);
    if (r->bad) {
        rg_coord_close(c, conn);
        return;
    }
    int known = memcmp(b.nonce, c->p.nonce, 16) == 0;
    if (rg_coord_succeeds(c) && (known ? b.epoch > c->epoch : !c->have_view)) {
        rg_claim_ask(c, conn);
        return;
    }
    if (!known) {
        rg_coord_refuse(c, conn, RG_ERR_REFUSED, "this coordinator was started anew and does not know the group");
        return;
    }
    rg_seat_t *s = rg_seat_by_id(c, b.id);
    int behind = s && b.epoch != c->epoch;
    if (!s || s->state != RG_SEAT_MEMBER || (behind && b.epoch != c->parent)) {
        rg_coord_send_expelled(c, conn, b.id);
        return;
    }
    rg_coord_bind(c, s, conn, &b);
}

/* ---- PEERS and WAITING (J2) ------------------------------------------------------------------------------------ */

void rg_coord_gone(rg_coord_t *c, uint64_t id) {
    if (!c->acting) return; /* everybody is told everything when it acts again */
    if (c->n_gone == RG_GONE_MAX) rg_coord_flush_peers(c);
    if (c->n_gone < RG_GONE_MAX) c->gone[c->n_gone++] = id;
    else c->broken = 1;
    rg_coord_flush_soon(c);
}

static rg_sent_t write_peers(rg_coord_t *c, uint64_t told, uint64_t upto) {
    uint32_t first = c->population, n = 0;
    while (first && c->seats[c->roster[first - 1]].m.id > told) first--, n++;
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_PEERS);
    rg_w_u8(&w, told == 0);
    rg_w_u64(&w, upto);
    rg_w_u32(&w, n);
    rg_w_u32(&w, c->n_gone);
    for (uint32_t i = first; i < c->population; i++) rg_w_peer(&w, &c->seats[c->roster[i]].m);
    for (uint32_t i = 0; i < c->n_gone; i++) rg_w_u64(&w, c->gone[i]);
    return rg_coord_end(c, &w);
}

static uint32_t needed(const rg_coord_t *c, uint32_t *here) {
    uint32_t need = 1, fixed = 0;
    *here = 0;
    for (uint32_t i = 0; i < c->population; i++) {
        const rg_seat_t *s = &c->seats[c->roster[i]];
        if (s->state != RG_SEAT_CANDIDATE) continue;
        ++*here;
        if (s->fixed_n > fixed) fixed = s->fixed_n;
        if (s->min_size > need) need = s->min_size;
    }
    return fixed ? fixed : need;
}

static void missing_ranks(rg_coord_t *c, rg_text_t *t, uint32_t n) {
    rg_text_str(t, "; missing ranks:");
    for (uint32_t rank = 0, shown = 0; rank < n; rank++) {
        int taken = 0;
        for (uint32_t i = 0; i < c->population && !taken; i++)
            taken = c->seats[c->roster[i]].state == RG_SEAT_CANDIDATE && c->seats[c->roster[i]].fixed_rank == rank;
        if (taken) continue;
        if (shown == 16) {
            rg_text_str(t, " and more");
            return;
        }
        rg_text_str(t, shown++ ? ", " : " ");
        rg_text_u64(t, rank);
    }
}

static void send_waiting(rg_coord_t *c) {
    char text[RG_CORE_TEXT_MAX];
    rg_text_t t = rg_text_begin(text, sizeof text);
    uint32_t here, need = needed(c, &here);
    int any;
    c->waiting_dirty = 0;
    if (c->have_view) {
        rg_text_str(&t, "the group is running with ");
        rg_text_u64(&t, c->n);
        rg_text_str(&t, " members; this process enters when its links to all of them are up and they pass a boundary");
    } else {
        rg_text_u64(&t, here);
        rg_text_str(&t, " of ");
        rg_text_u64(&t, need);
        rg_text_str(&t, " members are here");
        if (here < need && fixed_size(c, &any)) missing_ranks(c, &t, need);
        if (here >= need) rg_text_str(&t, "; their links to each other are not all up");
    }
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_WAITING);
    rg_w_u32(&w, 0);
    rg_w_text(&w, text, RG_CORE_TEXT_MAX - 1);
    rg_sent_t msg = rg_coord_end(c, &w);
    for (uint32_t i = 0; i < c->population; i++)
        if (c->seats[c->roster[i]].state == RG_SEAT_CANDIDATE) rg_coord_send(c, c->seats[c->roster[i]].conn, msg);
}

/* Seats that were told up to the same id get the same bytes, so a crowd of newcomers costs one message to write. */
void rg_coord_flush_peers(rg_coord_t *c) {
    uint64_t upto = c->next_id, have_told[4] = { 0 };
    rg_sent_t have[4];
    uint32_t n_have = 0, next = 0;
    c->flush_at = NEVER;
    if (!c->acting) return;
    for (uint32_t i = 0; i < c->population; i++) {
        rg_seat_t *s = &c->seats[c->roster[i]];
        if (!s->conn || (s->told >= upto && !c->n_gone)) continue;
        uint32_t k = 0;
        while (k < n_have && have_told[k] != s->told) k++;
        if (k == n_have) {
            if (rg_coord_room(c) < c->population * (uint64_t)sizeof(rg_core_member_t)) {
                c->flush_at = c->now; /* goes on in the next step, which is asked for at once */
                return;
            }
            k = next;
            next = (next + 1) % 4;
            if (n_have < 4) n_have++;
            have_told[k] = s->told;
            have[k] = write_peers(c, s->told, upto);
        }
        rg_coord_send(c, s->conn, have[k]);
        s->told = upto;
    }
    c->n_gone = 0;
    if (c->waiting_dirty) send_waiting(c);
}

void rg_coord_drop_candidate(rg_coord_t *c, rg_seat_t *s, rg_status_t status, const char *text) {
    if (c->round != RG_ROUND_NONE && c->installed && s->batch) { /* it is in a view that may be chosen yet */
        if (s->conn) rg_idmap_del(&c->by_conn, s->conn);
        rg_coord_close(c, s->conn);
        s->conn = 0;
        s->ghost = 1;
        return;
    }
    char line[512];
    rg_text_t t = rg_text_begin(line, sizeof line);
    rg_text_str(&t, "group ");
    rg_text_str(&t, c->p.group);
    rg_text_str(&t, ": ");
    rg_seat_name(&t, s);
    rg_text_str(&t, " is gone: ");
    rg_text_str(&t, text);
    rg_coord_log(c, line);
    if (s->conn) rg_coord_refuse(c, s->conn, status, text);
    uint64_t id = s->m.id;
    rg_seat_free(c, s);
    rg_coord_gone(c, id);
    c->waiting_dirty = c->grow_dirty = 1;
}

/* ---- READY and PROMISE (J3, G2) -------------------------------------------------------------------------------- */

void rg_coord_on_ready(rg_coord_t *c, rg_seat_t *s, rg_r_t *r) {
    uint64_t upto = rg_r_u64(r);
    uint8_t net[RG_CORE_NET];
    rg_r_bytes(r, net, sizeof net);
    uint32_t n = rg_r_u32(r);
    if (n > RG_COORD_MISSING_MAX) r->bad = 1;
    if (r->bad || s->state != RG_SEAT_CANDIDATE) return;
    for (uint32_t i = 0; i < n; i++) s->missing[i] = rg_r_u64(r);
    s->n_missing = r->bad ? 0 : n;
    s->ready = !r->bad;
    s->ready_upto = upto;
    if (!s->n_missing) s->missing_since = 0;
    else if (!s->missing_since) s->missing_since = c->now;
    if (c->n_complaints) rg_coord_candidate_ready(c, s);
    memcpy(s->net, net, sizeof net);
    c->grow_dirty = 1;
}

void rg_coord_on_promise(rg_coord_t *c, rg_seat_t *s, rg_r_t *r) {
    rg_term_t t = rg_r_term(r);
    uint64_t base = rg_r_u64(r), p = rg_r_u64(r);
    uint64_t accepted = rg_coord_succeeds(c) ? rg_r_u64(r) : 0;
    if (r->bad || rg_term_cmp(t, c->term) != 0 || base != c->epoch || c->growth == RG_GROW_NONE) return;
    if (s->state == RG_SEAT_MEMBER && c->growth != RG_GROW_PREPARE) return;
    if (accepted && s->state == RG_SEAT_MEMBER) { /* C4 comes first: that proposal may have been chosen */
        s->pending = 1;
        rg_coord_collect(c);
        return;
    }
    s->promised = 1;
    s->promise = p;
    c->grow_dirty = 1;
}

/* ---- The batch (G2, G3) ---------------------------------------------------------------------------------------- */

/* Takes, in order of arrival, every ready candidate that has links to all members and to all candidates taken before
 * it. Returns how many. */
static uint32_t choose_batch(rg_coord_t *c, int promised_only) {
    uint64_t newest = c->list_from, known = NEVER;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->population; i++) c->seats[c->roster[i]].mark = 0;
    for (uint32_t i = 0; i < c->n; i++)
        if (c->seats[c->rank_seat[i]].m.id > newest) newest = c->seats[c->rank_seat[i]].m.id;
    for (uint32_t i = 0; i < c->population; i++) {
        rg_seat_t *s = &c->seats[c->roster[i]];
        if (s->state != RG_SEAT_CANDIDATE) continue;
        int ok = s->ready && !s->mute && s->conn && !s->mark && s->m.id <= known && newest <= s->ready_upto;
        if (promised_only && (!s->batch || !s->promised)) ok = 0;
        for (uint32_t k = 0; ok && k < s->n_missing; k++) {
            const rg_seat_t *other = rg_seat_by_id(c, s->missing[k]);
            ok = !other || (other->state != RG_SEAT_MEMBER && !(other->m.id < s->m.id && other->batch));
        }
        s->batch = (uint8_t)ok;
        if (!ok) continue;
        n++;
        if (s->ready_upto < known) known = s->ready_upto;
        if (s->m.id > newest) newest = s->m.id;
        for (uint32_t k = 0; k < s->n_missing; k++) {
            rg_seat_t *other = rg_seat_by_id(c, s->missing[k]);
            if (other) other->mark = 1;
        }
    }
    return n;
}

static void send_prepare(rg_coord_t *c, rg_seat_state_t to) {
    rg_w_t w = rg_coord_begin(c);
    rg_w_header(&w, RG_MSG_PREPARE);
    rg_w_term(&w, c->term);
    rg_w_u64(&w, c->epoch);
    rg_sent_t msg = rg_coord_end(c, &w);
    for (uint32_t i = 0; i < c->population; i++) {
        rg_seat_t *s = &c->seats[c->roster[i]];
        if (s->state != to || (to == RG_SEAT_CANDIDATE && !s->batch)) continue;
        s->promised = 0;
        rg_coord_send(c, s->conn, msg);
    }
}

static void start_check(rg_coord_t *c) {
    if (!c->population || (c->have_view && c->population == c->n)) return;
    if (!c->have_view && rg_coord_succeeds(c) && c->now < c->p.found_at_ns) {
        c->grow_at = c->p.found_at_ns;
        return;
    }
    uint32_t here, need = needed(c, &here);
    uint32_t n = c->have_view || here >= need ? choose_batch(c, 0) : 0;
    if (!n || (!c->have_view && n < need)) {
        for (uint32_t i = 0; i < c->population; i++) c->seats[c->roster[i]].batch = 0;
        return;
    }
    c->growth = RG_GROW_CHECK;
    uint64_t grace = c->p.heartbeat_ns / 8 < CHECK_NS ? c->p.heartbeat_ns / 8 : CHECK_NS;
    for (uint32_t i = 0; i < c->population; i++) {
        const rg_seat_t *s = &c->seats[c->roster[i]];
        if (s->batch && s->patience > grace) grace = s->patience;
    }
    c->check_due = c->grow_at = c->now + grace;
    send_prepare(c, RG_SEAT_CANDIDATE);
}

/* Ranks of the first view: as fixed by the callers, or by their order, and by arrival where that is equal. */
static void first_view(rg_coord_t *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->population; i++) {
        rg_seat_t *s = &c->seats[c->roster[i]];
        if (s->state != RG_SEAT_CANDIDATE || !s->batch) continue;
        uint32_t key = s->fixed_n ? s->fixed_rank : s->order, at = n++;
        for (; at; at--) {
            const rg_seat_t *before = &c->seats[c->next_rank[at - 1]];
            if ((before->fixed_n ? before->fixed_rank : before->order) <= key) break;
            c->next_rank[at] = c->next_rank[at - 1];
        }
        c->next_rank[at] = c->roster[i];
    }
    c->growth = RG_GROW_NONE;
    rg_coord_bump_view(c, RG_VIEW_FIRST, n, 0);
}

static void join_view(rg_coord_t *c) {
    uint64_t cut = 0;
    uint32_t n = c->n, added = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const rg_seat_t *s = &c->seats[c->rank_seat[i]];
        c->next_rank[i] = c->rank_seat[i];
        if (s->promised && s->promise > cut) cut = s->promise;
    }
    for (uint32_t i = 0; i < c->population; i++) {
        rg_seat_t *s = &c->seats[c->roster[i]];
        if (s->state != RG_SEAT_CANDIDATE || !s->batch) continue;
        c->next_rank[n + added++] = c->roster[i];
    }
    c->growth = RG_GROW_NONE;
    rg_coord_bump_view(c, RG_VIEW_JOIN, n + added, cut);
}

/* Everybody who will be in the view must have been told of everybody in it. 0: that needs another step. */
static int all_told(rg_coord_t *c) {
    uint64_t newest = 0;
    for (uint32_t i = 0; i < c->population; i++)
        if (c->seats[c->roster[i]].batch) newest = c->seats[c->roster[i]].m.id;
    for (int pass = 0; pass < 2; pass++) {
        uint32_t i = 0;
        while (i < c->n && c->seats[c->rank_seat[i]].told >= newest) i++;
        if (i == c->n) return 1;
        if (!pass) rg_coord_flush_peers(c);
    }
    int away = 0; /* told when it is back, or lost: then a round comes first */
    for (uint32_t i = 0; i < c->n; i++) away |= !c->seats[c->rank_seat[i]].conn;
    c->grow_at = c->now + (away ? c->p.heartbeat_ns / 16 : 0);
    return 0;
}

static void check_step(rg_coord_t *c) {
    uint32_t here, n;
    int due = c->now >= c->check_due;
    for (uint32_t i = 0; i < c->population; i++) {
        rg_seat_t *s = &c->seats[c->roster[i]];
        if (!s->batch || s->promised) continue;
        if (!due) return;
        s->mute = 1; /* until it says something; should it be alive and far away, it gets more time then */
        s->patience = 2 * (s->patience > CHECK_NS ? s->patience : CHECK_NS);
        if (s->patience > c->p.heartbeat_ns / 2) s->patience = c->p.heartbeat_ns / 2;
    }
    c->grow_at = NEVER;
    n = choose_batch(c, 1);
    if (!c->have_view && n >= needed(c, &here)) {
        first_view(c);
        return;
    }
    if (!c->have_view || !n) {
        c->growth = RG_GROW_NONE;
        return;
    }
    c->growth = RG_GROW_PREPARE;
    send_prepare(c, RG_SEAT_MEMBER);
}

/* When the whole batch is gone, a view without newcomers frees the members from their promises at once; with succession
 * only when all have said that they have accepted nothing, for that would have to be proposed first. */
static void prepare_step(rg_coord_t *c) {
    uint32_t n = choose_batch(c, 1);
    for (uint32_t i = 0; (n || rg_coord_succeeds(c)) && i < c->n; i++)
        if (!c->seats[c->rank_seat[i]].promised) return;
    if (all_told(c)) join_view(c);
}

void rg_coord_grow(rg_coord_t *c) {
    if (!c->grow_dirty || c->round != RG_ROUND_NONE || c->broken || !c->acting) return;
    c->grow_dirty = 0;
    if (c->growth == RG_GROW_CHECK) check_step(c);
    else if (c->growth == RG_GROW_PREPARE) prepare_step(c);
    if (c->growth != RG_GROW_NONE || c->round != RG_ROUND_NONE) return;
    if (c->owed && c->have_view) { /* the view that they wait for need not have newcomers */
        c->growth = RG_GROW_PREPARE;
        send_prepare(c, RG_SEAT_MEMBER);
    } else {
        start_check(c);
    }
}
