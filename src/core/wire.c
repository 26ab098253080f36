/* wire.c: the codec of wire.h. It relies on nothing but the bytes it is given; it must not trust any of them: every
 * read is checked against the end, every text and array is cut to what the receiver can hold or refused. */
#include "assume.h"
#include "core/wire.h"
#include "core/text.h"

#include <string.h>

/* ---- Primitive values ------------------------------------------------------------------------------------------ */

void rg_w_bytes(rg_w_t *w, const void *p, size_t n) {
    if (w->bad || n > w->cap - w->len) {
        w->bad = 1;
        return;
    }
    RG_ASSUME(p || !n);
    if (n) memcpy(w->p + w->len, p, n);
    w->len += n;
}

static void w_le(rg_w_t *w, uint64_t v, unsigned n) {
    uint8_t b[8];
    for (unsigned i = 0; i < n; i++) b[i] = (uint8_t)(v >> (8 * i));
    rg_w_bytes(w, b, n);
}

void rg_w_u8(rg_w_t *w, uint8_t v) { w_le(w, v, 1); }
void rg_w_u16(rg_w_t *w, uint16_t v) { w_le(w, v, 2); }
void rg_w_u32(rg_w_t *w, uint32_t v) { w_le(w, v, 4); }
void rg_w_u64(rg_w_t *w, uint64_t v) { w_le(w, v, 8); }

void rg_w_text(rg_w_t *w, const char *s, size_t max) {
    size_t n = s ? rg_text_len(s, max < 0xffff ? max : 0xffff) : 0;
    rg_w_u16(w, (uint16_t)n);
    rg_w_bytes(w, s, n);
}

void rg_w_patch_u32(rg_w_t *w, size_t at, uint32_t v) {
    if (w->bad || at + 4 > w->len) return;
    for (unsigned i = 0; i < 4; i++) w->p[at + i] = (uint8_t)(v >> (8 * i));
}

const uint8_t *rg_r_skip(rg_r_t *r, size_t n) {
    if (r->bad || n > r->len - r->pos) {
        r->bad = 1;
        return NULL;
    }
    const uint8_t *p = r->p + r->pos;
    r->pos += n;
    return p;
}

void rg_r_bytes(rg_r_t *r, void *p, size_t n) {
    const uint8_t *from = rg_r_skip(r, n);
    if (from && n) memcpy(p, from, n);
    else if (n) memset(p, 0, n);
}

static uint64_t r_le(rg_r_t *r, unsigned n) {
    const uint8_t *p = rg_r_skip(r, n);
    uint64_t v = 0;
    if (p)
        for (unsigned i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

uint8_t rg_r_u8(rg_r_t *r) { return (uint8_t)r_le(r, 1); }
uint16_t rg_r_u16(rg_r_t *r) { return (uint16_t)r_le(r, 2); }
uint32_t rg_r_u32(rg_r_t *r) { return (uint32_t)r_le(r, 4); }
uint64_t rg_r_u64(rg_r_t *r) { return r_le(r, 8); }

/* A text of others is shown to users and logs, so control characters do not get through. */
void rg_r_text(rg_r_t *r, char *dst, size_t cap) {
    size_t n = rg_r_u16(r);
    const uint8_t *p = rg_r_skip(r, n);
    size_t keep = !p ? 0 : n < cap ? n : cap - 1;
    for (size_t i = 0; i < keep; i++) dst[i] = p[i] < 32 || p[i] == 127 ? '?' : (char)p[i];
    dst[keep] = 0;
}

int rg_r_end(const rg_r_t *r) { return !r->bad && r->pos == r->len; }

void rg_w_header(rg_w_t *w, rg_msg_t type) {
    rg_w_u32(w, RG_WIRE_MAGIC);
    rg_w_u16(w, RG_WIRE_VERSION);
    rg_w_u16(w, (uint16_t)type);
}

uint32_t rg_r_header(rg_r_t *r, uint16_t *version) {
    uint32_t magic = rg_r_u32(r);
    *version = rg_r_u16(r);
    uint32_t type = rg_r_u16(r);
    return r->bad || magic != RG_WIRE_MAGIC ? 0 : type;
}

/* ---- Parts that several messages share ------------------------------------------------------------------------- */

void rg_w_term(rg_w_t *w, rg_term_t t) {
    rg_w_u64(w, t.count);
    rg_w_u64(w, t.owner);
}

rg_term_t rg_r_term(rg_r_t *r) {
    rg_term_t t;
    t.count = rg_r_u64(r);
    t.owner = rg_r_u64(r);
    return t;
}

void rg_w_key(rg_w_t *w, rg_op_key_t k) {
    rg_w_u64(w, k.gen);
    rg_w_u64(w, k.op);
    rg_w_u64(w, k.set);
}

rg_op_key_t rg_r_key(rg_r_t *r) {
    rg_op_key_t k;
    k.gen = rg_r_u64(r);
    k.op = rg_r_u64(r);
    k.set = rg_r_u64(r);
    return k;
}

void rg_w_sig(rg_w_t *w, const rg_op_sig_t *s) {
    rg_w_u8(w, s->kind);
    rg_w_u8(w, s->dtype);
    rg_w_u8(w, s->op);
    rg_w_u8(w, s->on_fault);
    rg_w_u8(w, s->rule_l);
    rg_w_u64(w, s->root);
    rg_w_u64(w, s->count);
    rg_w_u32(w, s->variant);
}

void rg_r_sig(rg_r_t *r, rg_op_sig_t *s) {
    s->kind = rg_r_u8(r);
    s->dtype = rg_r_u8(r);
    s->op = rg_r_u8(r);
    s->on_fault = rg_r_u8(r);
    s->rule_l = rg_r_u8(r);
    s->root = rg_r_u64(r);
    s->count = rg_r_u64(r);
    s->variant = rg_r_u32(r);
}

/* ---- Messages -------------------------------------------------------------------------------------------------- */

/* The group's name comes first in JOIN and REBIND, in every version, so that a connection can be given to its group
 * (or be refused for its version) before anything else is understood. */
void rg_w_join(rg_w_t *w, const rg_msg_join_t *j) {
    rg_w_header(w, RG_MSG_JOIN);
    rg_w_text(w, j->group, RG_CORE_NAME_MAX - 1);
    rg_w_text(w, j->label, RG_CORE_NAME_MAX - 1);
    rg_w_bytes(w, j->identity, 16);
    rg_w_u64(w, j->host);
    rg_w_u64(w, j->site);
    rg_w_u32(w, j->cores);
    rg_w_u32(w, j->pid);
    rg_w_u32(w, j->min_size);
    rg_w_u32(w, j->order);
    rg_w_u32(w, j->fixed_n);
    rg_w_u32(w, j->fixed_rank);
    rg_w_u16(w, j->addr_len);
    rg_w_bytes(w, j->addr, j->addr_len);
}

static uint16_t r_addr(rg_r_t *r, uint8_t *addr) {
    uint16_t n = rg_r_u16(r);
    if (n > RG_CORE_ADDR_MAX) r->bad = 1;
    if (r->bad) return 0;
    rg_r_bytes(r, addr, n);
    return r->bad ? 0 : n;
}

void rg_r_join(rg_r_t *r, rg_msg_join_t *j) {
    rg_r_text(r, j->group, sizeof j->group);
    rg_r_text(r, j->label, sizeof j->label);
    rg_r_bytes(r, j->identity, 16);
    j->host = rg_r_u64(r);
    j->site = rg_r_u64(r);
    j->cores = rg_r_u32(r);
    j->pid = rg_r_u32(r);
    j->min_size = rg_r_u32(r);
    j->order = rg_r_u32(r);
    j->fixed_n = rg_r_u32(r);
    j->fixed_rank = rg_r_u32(r);
    j->addr_len = r_addr(r, j->addr);
}

void rg_w_rebind(rg_w_t *w, const rg_msg_rebind_t *b) {
    rg_w_header(w, RG_MSG_REBIND);
    rg_w_rebind_body(w, b);
}

void rg_w_rebind_body(rg_w_t *w, const rg_msg_rebind_t *b) {
    rg_w_text(w, b->group, RG_CORE_NAME_MAX - 1);
    rg_w_u64(w, b->id);
    rg_w_u64(w, b->epoch);
    rg_w_bytes(w, b->nonce, 16);
    rg_w_term(w, b->term);
    rg_w_u64(w, b->accepted);
    rg_w_u8(w, b->waits);
    rg_w_u64(w, b->upto);
    rg_w_u32(w, b->pid);
    rg_w_text(w, b->label, RG_CORE_NAME_MAX - 1);
}

void rg_r_rebind(rg_r_t *r, rg_msg_rebind_t *b) {
    rg_r_text(r, b->group, sizeof b->group);
    b->id = rg_r_u64(r);
    b->epoch = rg_r_u64(r);
    rg_r_bytes(r, b->nonce, 16);
    b->term = rg_r_term(r);
    b->accepted = rg_r_u64(r);
    b->waits = rg_r_u8(r);
    b->upto = rg_r_u64(r);
    b->pid = rg_r_u32(r);
    rg_r_text(r, b->label, sizeof b->label);
}

void rg_w_peer(rg_w_t *w, const rg_core_member_t *m) {
    rg_w_u64(w, m->id);
    rg_w_u64(w, m->first_gen);
    rg_w_u64(w, m->host);
    rg_w_u64(w, m->site);
    rg_w_u32(w, m->cores);
    rg_w_bytes(w, m->net, RG_CORE_NET);
    rg_w_bytes(w, m->identity, 16);
    rg_w_u16(w, m->addr_len);
    rg_w_bytes(w, m->addr, m->addr_len);
}

void rg_r_peer(rg_r_t *r, rg_core_member_t *m) {
    m->id = rg_r_u64(r);
    m->first_gen = rg_r_u64(r);
    m->host = rg_r_u64(r);
    m->site = rg_r_u64(r);
    m->cores = rg_r_u32(r);
    rg_r_bytes(r, m->net, RG_CORE_NET);
    rg_r_bytes(r, m->identity, 16);
    m->addr_len = r_addr(r, m->addr);
}

void rg_w_heartbeat(rg_w_t *w, const rg_msg_heartbeat_t *h) {
    rg_w_header(w, RG_MSG_HEARTBEAT);
    rg_w_u64(w, h->epoch);
    rg_w_u64(w, h->gen);
    rg_w_u64(w, h->watermark);
    rg_w_u64(w, h->bytes_sent);
    rg_w_u64(w, h->bytes_received);
    rg_w_u64(w, h->operations);
    rg_w_bytes(w, h->net, RG_CORE_NET);
}

void rg_r_heartbeat(rg_r_t *r, rg_msg_heartbeat_t *h) {
    h->epoch = rg_r_u64(r);
    h->gen = rg_r_u64(r);
    h->watermark = rg_r_u64(r);
    h->bytes_sent = rg_r_u64(r);
    h->bytes_received = rg_r_u64(r);
    h->operations = rg_r_u64(r);
    rg_r_bytes(r, h->net, RG_CORE_NET);
}

void rg_w_report_head(rg_w_t *w, const rg_report_head_t *h) {
    rg_w_header(w, RG_MSG_REPORT);
    rg_w_term(w, h->term);
    rg_w_u64(w, h->base);
    rg_w_term(w, h->accepted_term);
    rg_w_u64(w, h->accepted);
    rg_w_u64(w, h->gen);
    rg_w_u64(w, h->next0);
    rg_w_u64(w, h->floor);
}

void rg_r_report_head(rg_r_t *r, rg_report_head_t *h) {
    h->term = rg_r_term(r);
    h->base = rg_r_u64(r);
    h->accepted_term = rg_r_term(r);
    h->accepted = rg_r_u64(r);
    h->gen = rg_r_u64(r);
    h->next0 = rg_r_u64(r);
    h->floor = rg_r_u64(r);
}

/* The error of an aborted operation is there only when the operation was aborted: most reports are short. */
void rg_w_op_report(rg_w_t *w, const rg_op_report_t *o) {
    rg_w_key(w, o->key);
    rg_w_u8(w, o->state);
    rg_w_sig(w, &o->sig);
    rg_w_u64(w, o->computed);
    rg_w_u64(w, o->numbering);
    if (o->state != RG_OPS_ABORTED) return;
    rg_w_u32(w, (uint32_t)o->status);
    rg_w_u64(w, o->blame);
    rg_w_text(w, o->text, RG_CORE_TEXT_MAX - 1);
}

void rg_r_op_report(rg_r_t *r, rg_op_report_t *o) {
    o->key = rg_r_key(r);
    o->state = rg_r_u8(r);
    if (o->state > RG_OPS_ABORTED || o->state == RG_OPS_DONE) r->bad = 1;
    if (o->state == RG_OPS_KEPT && rg_key_tagged(o->key)) r->bad = 1; /* rule L keeps no copies */
    rg_r_sig(r, &o->sig);
    o->computed = rg_r_u64(r);
    o->numbering = rg_r_u64(r);
    o->status = 0;
    o->blame = 0;
    o->text[0] = 0;
    if (r->bad || o->state != RG_OPS_ABORTED) return;
    o->status = (int32_t)rg_r_u32(r);
    o->blame = rg_r_u64(r);
    rg_r_text(r, o->text, sizeof o->text);
}

void rg_w_stream_report(rg_w_t *w, const rg_stream_report_t *s) {
    rg_w_u64(w, s->set);
    rg_w_u64(w, s->gen);
    rg_w_u32(w, s->tag);
    rg_w_u32(w, s->next);
}

void rg_r_stream_report(rg_r_t *r, rg_stream_report_t *s) {
    s->set = rg_r_u64(r);
    s->gen = rg_r_u64(r);
    s->tag = rg_r_u32(r);
    s->next = rg_r_u32(r);
}

void rg_w_set_report(rg_w_t *w, const rg_set_report_t *s) {
    rg_w_u64(w, s->set);
    rg_w_u64(w, s->hash);
    rg_w_u16(w, s->map_len);
    rg_w_bytes(w, s->map, s->map_len);
}

void rg_r_set_report(rg_r_t *r, rg_set_report_t *s) {
    s->set = rg_r_u64(r);
    s->hash = rg_r_u64(r);
    s->map_len = rg_r_u16(r);
    s->map = rg_r_skip(r, s->map_len);
    if (!rg_set_is_group(s->set)) r->bad = 1;
}

void rg_w_view_member(rg_w_t *w, const rg_view_member_t *m) {
    rg_w_u64(w, m->id);
    rg_w_u64(w, m->first_gen);
    rg_w_bytes(w, m->net, RG_CORE_NET);
}

void rg_r_view_member(rg_r_t *r, rg_view_member_t *m) {
    m->id = rg_r_u64(r);
    m->first_gen = rg_r_u64(r);
    rg_r_bytes(r, m->net, RG_CORE_NET);
}

void rg_w_view_head(rg_w_t *w, const rg_view_head_t *v) {
    rg_w_term(w, v->term);
    rg_w_u64(w, v->epoch);
    rg_w_u64(w, v->parent);
    rg_w_u64(w, v->data_epoch);
    rg_w_u64(w, v->cut);
    rg_w_u64(w, v->witness);
    rg_w_u8(w, v->kind);
    rg_w_u8(w, v->form);
    rg_w_u32(w, v->n);
}

void rg_r_view_head(rg_r_t *r, rg_view_head_t *v) {
    v->term = rg_r_term(r);
    v->epoch = rg_r_u64(r);
    v->parent = rg_r_u64(r);
    v->data_epoch = rg_r_u64(r);
    v->cut = rg_r_u64(r);
    v->witness = rg_r_u64(r);
    v->kind = rg_r_u8(r);
    v->form = rg_r_u8(r);
    v->n = rg_r_u32(r);
    if (v->kind > RG_VIEW_JOIN || v->form > (RG_VIEW_WHOLE | RG_VIEW_RECORDS)) r->bad = 1;
}

void rg_w_decision(rg_w_t *w, const rg_decision_t *d) {
    rg_w_key(w, d->key);
    rg_w_u8(w, d->verdict);
    if (rg_set_is_group(d->key.set)) rg_w_u16(w, d->set_at);
    if (d->verdict == RG_FORWARD || d->verdict == RG_RESTART) rg_w_sig(w, &d->sig);
    if (d->verdict == RG_FORWARD || d->verdict == RG_COMMIT) rg_w_u64(w, d->computed);
    if (d->verdict != RG_COMMIT) rg_w_u64(w, d->numbering);
    if (d->verdict == RG_FORWARD) {
        rg_w_u16(w, d->map_len);
        rg_w_bytes(w, d->have, d->map_len);
        rg_w_bytes(w, d->donor, d->map_len);
    } else if (d->verdict == RG_ABORT) {
        rg_w_u32(w, (uint32_t)d->status);
        rg_w_u64(w, d->blame);
        rg_w_u16(w, d->text_len);
        rg_w_bytes(w, d->text, d->text_len);
    }
}

void rg_r_decision(rg_r_t *r, rg_decision_t *d) {
    memset(d, 0, sizeof *d);
    d->key = rg_r_key(r);
    d->verdict = rg_r_u8(r);
    if (d->verdict < RG_COMMIT || d->verdict > RG_ABORT) r->bad = 1;
    /* Copies are kept, and given, of operations that are matched by order alone. */
    if (d->verdict == RG_FORWARD && rg_key_tagged(d->key)) r->bad = 1;
    if (rg_set_is_group(d->key.set)) d->set_at = rg_r_u16(r);
    if (d->verdict == RG_FORWARD || d->verdict == RG_RESTART) rg_r_sig(r, &d->sig);
    if (d->verdict == RG_FORWARD || d->verdict == RG_COMMIT) d->computed = rg_r_u64(r);
    if (d->verdict != RG_COMMIT) d->numbering = rg_r_u64(r);
    if (r->bad) return;
    if (d->verdict == RG_FORWARD) {
        d->map_len = rg_r_u16(r);
        d->have = rg_r_skip(r, d->map_len);
        d->donor = rg_r_skip(r, d->map_len);
    } else if (d->verdict == RG_ABORT) {
        d->status = (int32_t)rg_r_u32(r);
        d->blame = rg_r_u64(r);
        d->text_len = rg_r_u16(r);
        d->text = rg_r_skip(r, d->text_len);
    }
}

/* ---- Small comparisons ----------------------------------------------------------------------------------------- */

int rg_term_cmp(rg_term_t a, rg_term_t b) {
    if (a.count != b.count) return a.count < b.count ? -1 : 1;
    return a.owner == b.owner ? 0 : a.owner < b.owner ? -1 : 1;
}

int rg_key_cmp(rg_op_key_t a, rg_op_key_t b) {
    if (a.gen != b.gen) return a.gen < b.gen ? -1 : 1;
    if (a.set != b.set) return a.set < b.set ? -1 : 1;
    return a.op == b.op ? 0 : a.op < b.op ? -1 : 1;
}

int rg_sig_same(const rg_op_sig_t *a, const rg_op_sig_t *b) {
    return a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->on_fault == b->on_fault &&
           a->rule_l == b->rule_l && a->root == b->root && a->count == b->count && a->variant == b->variant;
}

int rg_wire_peek_group(const uint8_t *bytes, size_t len, char group[RG_CORE_NAME_MAX]) {
    rg_r_t r = { bytes, len, 0, 0 };
    uint16_t version;
    uint32_t type = rg_r_header(&r, &version);
    if (type != RG_MSG_JOIN && type != RG_MSG_REBIND) return 0;
    rg_r_text(&r, group, RG_CORE_NAME_MAX);
    return !r.bad;
}

size_t rg_wire_refusal(uint8_t *out, size_t cap, rg_status_t status, const char *text) {
    rg_w_t w = { out, 0, cap, 0 };
    rg_w_header(&w, RG_MSG_REFUSE);
    rg_w_u32(&w, (uint32_t)(int32_t)status);
    rg_w_text(&w, text, RG_CORE_TEXT_MAX - 1);
    return w.bad ? 0 : w.len;
}
