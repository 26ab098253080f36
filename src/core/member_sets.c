/* member_sets.c: who takes part in an operation (the whole group, a pair, a sub-group), and how far each stream of
 * operations, that is one set and tag, has come at this member. It relies on the view and on the sets that the engine
 * defines. It must not scan more than one set for an operation, and nothing at all for one of the whole group.
 * Sections 1 and 5 of docs/protocol.md. */
#include "core/member.h"

#include <string.h>

/* ---- Participants ---------------------------------------------------------------------------------------------- */

int rg_member_in_view(const rg_member_t *m, uint64_t id) {
    if (id == m->id) return 1;
    const rg_peer_t *p = rg_peer_find(m, id);
    return p && p->rank >= 0;
}

int rg_member_takes_part(const rg_member_t *m, uint64_t id, uint64_t gen) {
    const rg_peer_t *p = id == m->id ? NULL : rg_peer_find(m, id);
    if (id == m->id) return m->view.members[m->self_rank].first_gen <= gen;
    return p && p->rank >= 0 && m->view.members[p->rank].first_gen <= gen;
}

/* Newcomers are appended and their first generations grow, so participants are the first members of the view. */
uint32_t rg_ops_participants(rg_member_t *m, uint64_t gen) {
    if (m->cached_n && m->cached_gen == gen) return m->cached_n;
    uint32_t n = m->view.n;
    while (n && m->view.members[n - 1].first_gen > gen) n--;
    m->cached_gen = gen;
    m->cached_n = n;
    return n;
}

/* Of boundaries that this member has behind it nobody asks. Beyond the bound a newcomer counts for another boundary
 * than its own: a member would have to stand still while 32 batches of newcomers die out. */
void rg_entered_lost(rg_member_t *m, uint64_t gen) {
    uint32_t n = 0, i = 0;
    for (uint32_t k = 0; k < m->n_entered; k++)
        if (m->entered[k].gen >= m->gen) m->entered[n++] = m->entered[k];
    m->n_entered = n;
    if (gen < m->gen) return;
    while (i < n && m->entered[i].gen != gen) i++;
    if (i == n && n == RG_ENTERED_MAX) i--;
    else if (i == n) m->entered[m->n_entered++].n = 0;
    m->entered[i].gen = gen;
    m->entered[i].n++;
}

uint64_t rg_entered_last(const rg_member_t *m) {
    uint64_t last = m->view.members[m->view.n - 1].first_gen;
    for (uint32_t i = 0; i < m->n_entered; i++)
        if (m->entered[i].gen > last) last = m->entered[i].gen;
    return last;
}

uint32_t rg_member_entered(const rg_member_t *m, uint64_t gen) {
    uint32_t n = 0;
    for (uint32_t i = 0; m->have_view && i < m->view.n; i++) n += m->view.members[i].first_gen == gen;
    for (uint32_t i = 0; i < m->n_entered; i++)
        if (m->entered[i].gen == gen) n += m->entered[i].n;
    return n;
}

uint32_t rg_key_participants(rg_member_t *m, rg_op_key_t key) {
    if (key.set == RG_SET_ALL) return rg_ops_participants(m, key.gen);
    if (rg_set_is_pair(key.set)) {
        uint64_t from = rg_pair_from(key.set), to = rg_pair_to(key.set);
        return (uint32_t)rg_member_takes_part(m, from, key.gen) +
               (uint32_t)(from != to && rg_member_takes_part(m, to, key.gen));
    }
    rg_set_t *s = rg_set_find(m, key.set);
    if (!s) return 1;
    if (s->cached_n && s->cached_gen == key.gen) return s->cached_n;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) n += (uint32_t)rg_member_takes_part(m, m->set_ids[s->first + i], key.gen);
    s->cached_gen = key.gen;
    s->cached_n = n;
    return n;
}

int rg_key_has(const rg_member_t *m, rg_op_key_t key, uint64_t id) {
    if (key.set == RG_SET_ALL) return 1;
    if (rg_set_is_pair(key.set)) return rg_pair_has(key.set, id);
    const rg_set_t *s = rg_set_find(m, key.set);
    for (uint32_t i = 0; s && i < s->n; i++)
        if (m->set_ids[s->first + i] == id) return 1;
    return 0;
}

/* ---- Sub-groups ------------------------------------------------------------------------------------------------ */

rg_set_t *rg_set_find(const rg_member_t *m, uint64_t set) {
    int64_t at = rg_idmap_get(&m->set_map, set);
    return at < 0 ? NULL : (rg_set_t *)(uintptr_t)&m->set[at];
}

int rg_set_dropped(const rg_member_t *m, uint64_t set) {
    for (uint32_t i = 0; i < RG_DROPPED_MAX; i++)
        if (m->dropped[i] == set) return 1;
    return 0;
}

void rg_sets_view_changed(rg_member_t *m) {
    for (uint32_t i = 0; i < m->n_sets; i++) m->set[i].cached_n = 0;
}

static uint64_t set_hash(const uint64_t *ids, uint32_t n) {
    uint64_t h = 0xcbf29ce484222325u ^ n;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ ids[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

static int set_refused(rg_member_t *m, const char *why) {
    m->why = why;
    return 1;
}

static int set_wrong(rg_member_t *m, uint64_t set, const uint64_t *ids, uint32_t n) {
    int self = 0;
    if (!rg_set_is_group(set)) return set_refused(m, "the number of a sub-group must be from 1 to 2^63 - 1");
    if (!ids || !n) return set_refused(m, "a sub-group must have members");
    for (uint32_t i = 0; i < n; i++) {
        self |= ids[i] == m->id;
        if (!ids[i] || ids[i] > RG_SET_ID_MAX) return set_refused(m, "a sub-group names a member that cannot be");
        for (uint32_t k = 0; k < i; k++)
            if (ids[k] == ids[i]) return set_refused(m, "a sub-group names a member twice");
    }
    return self ? 0 : set_refused(m, "this process is not a member of the sub-group that it defines");
}

rg_status_t rg_member_set_define(rg_member_t *m, uint64_t set, const uint64_t *ids, uint32_t n) {
    if (!m->have_view || m->told) {
        m->why = "this process is not in the group";
        return RG_ERR_CLOSED;
    }
    if (n > m->set_ids_cap || set_wrong(m, set, ids, n)) return RG_ERR_INVALID;
    rg_set_t *s = rg_set_find(m, set);
    if (s) {
        if (s->n == n && memcmp(&m->set_ids[s->first], ids, n * sizeof *ids) == 0) return RG_OK;
        m->why = "this number is that of another sub-group";
        return RG_ERR_INVALID;
    }
    if (m->n_sets == RG_CORE_MAX_SETS || n > m->set_ids_cap - m->set_ids_n) {
        m->why = m->n_sets == RG_CORE_MAX_SETS ? "there are 256 sub-groups here already: destroy some"
                                               : "the sub-groups here have too many members in all: destroy some";
        return RG_ERR_RESOURCE;
    }
    s = &m->set[m->n_sets];
    *s = (rg_set_t){ .id = set, .hash = set_hash(ids, n), .first = m->set_ids_n, .n = n };
    memcpy(&m->set_ids[s->first], ids, n * sizeof *ids);
    m->set_ids_n += n;
    rg_idmap_put(&m->set_map, set, m->n_sets++);
    return RG_OK;
}

rg_status_t rg_member_set_drop(rg_member_t *m, uint64_t set) {
    rg_set_t *s = rg_set_find(m, set);
    if (!s) return RG_ERR_INVALID;
    for (uint16_t i = m->first; i; i = m->ent[i - 1].next) {
        const rg_ent_t *e = &m->ent[i - 1];
        if (e->key.set == set && e->state != RG_ENT_MARKED && e->state != RG_ENT_DEAD) return RG_ERR_INVALID;
    }
    for (uint16_t i = m->ents_marked ? m->first : 0; i;) {
        rg_ent_t *e = &m->ent[i - 1];
        i = e->next;
        if (e->key.set == set && e->state == RG_ENT_MARKED) rg_ent_remove(m, e);
    }
    uint32_t at = (uint32_t)(s - m->set), first = s->first, n = s->n;
    m->set_ids_n -= n;
    memmove(&m->set_ids[first], &m->set_ids[first + n], (m->set_ids_n - first) * sizeof *m->set_ids);
    rg_idmap_del(&m->set_map, set);
    m->set[at] = m->set[--m->n_sets];
    if (at < m->n_sets) rg_idmap_put(&m->set_map, m->set[at].id, at);
    for (uint32_t i = 0; i < m->n_sets; i++)
        if (m->set[i].first > first) m->set[i].first -= n;
    m->dropped[m->dropped_at] = set;
    m->dropped_at = (m->dropped_at + 1) % RG_DROPPED_MAX;
    return RG_OK;
}

const char *rg_member_why(const rg_member_t *m) { return m->why; }

/* The members that are left of it, as ranks of the present view. */
int rg_set_write(rg_member_t *m, rg_w_t *w, uint64_t set) {
    const rg_set_t *s = rg_set_find(m, set);
    uint32_t len = (m->view.n + 7) / 8;
    if (!s) return 0;
    uint8_t *map = m->set_scratch;
    memset(map, 0, len);
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t id = m->set_ids[s->first + i];
        const rg_peer_t *p = rg_peer_find(m, id);
        if (id == m->id) rg_map_set(map, m->self_rank);
        else if (p && p->rank >= 0) rg_map_set(map, (uint32_t)p->rank);
    }
    rg_set_report_t r = { .set = set, .hash = s->hash, .map_len = (uint16_t)len, .map = map };
    rg_w_set_report(w, &r);
    return 1;
}

/* ---- Streams --------------------------------------------------------------------------------------------------- */

static uint32_t stream_cell(const rg_member_t *m, uint64_t set, uint32_t tag) {
    uint32_t i = (uint32_t)((set * 0x9e3779b97f4a7c15u ^ tag * 0xc2b2ae3d27d4eb4fu) >> 40) & (RG_STREAM_HASH - 1);
    for (; m->stream_hash[i]; i = (i + 1) & (RG_STREAM_HASH - 1)) {
        const rg_stream_t *s = &m->stream[m->stream_hash[i] - 1];
        if (s->set == set && s->tag == tag) break;
    }
    return i;
}

static uint32_t key_tag(rg_op_key_t k) { return (uint32_t)(k.op >> 32); }
static uint32_t key_seq(rg_op_key_t k) { return (uint32_t)k.op; }

static rg_stream_t *stream_of(const rg_member_t *m, rg_op_key_t key) {
    uint16_t at = m->stream_hash[stream_cell(m, key.set, key_tag(key))];
    return at ? (rg_stream_t *)(uintptr_t)&m->stream[at - 1] : NULL;
}

/* Whether an operation that is not in the table is over here (as opposed to not started). */
int rg_op_passed(const rg_member_t *m, rg_op_key_t key) {
    if (!rg_key_tagged(key)) return key.gen != m->gen ? key.gen < m->gen : key.op < m->next0;
    if (key.gen < m->floor && !rg_set_is_group(key.set)) return 1;
    const rg_stream_t *s = stream_of(m, key);
    if (!s) return 0;
    return key.gen != s->gen ? key.gen < s->gen : key_seq(key) < s->next;
}

/* Streams of earlier generations give way when the table is full: nothing of those generations is started here any
 * more, so that what is not in the table is over, without a stream that says so. A sub-group is older than the
 * boundaries that have passed since, and its operations keep the generation in which it was made. */
static void streams_forget(rg_member_t *m) {
    uint32_t kept = 0;
    m->floor = m->gen;
    memset(m->stream_hash, 0, sizeof m->stream_hash);
    for (uint32_t i = 0; i < m->n_streams; i++) {
        rg_stream_t s = m->stream[i];
        if (s.gen < m->gen && !(rg_set_is_group(s.set) && rg_set_find(m, s.set))) continue;
        uint32_t cell = stream_cell(m, s.set, s.tag);
        m->stream[kept] = s;
        m->stream_hash[cell] = (uint16_t)++kept;
    }
    m->n_streams = kept;
}

static rg_status_t start_tagged(rg_member_t *m, rg_op_key_t key, const rg_op_sig_t *sig) {
    m->why = "operations with a tag, of pairs and of sub-groups take rule L";
    if (!sig->rule_l) return RG_ERR_INVALID;
    m->why = "this process takes no part in an operation of that set";
    if (rg_set_is_pair(key.set) && !rg_pair_has(key.set, m->id)) return RG_ERR_INVALID;
    if (rg_set_is_group(key.set) && !rg_set_find(m, key.set)) return RG_ERR_INVALID;
    const rg_stream_t *s = stream_of(m, key);
    m->why = "operations of one set and tag are numbered in the order of the calls";
    if (key_seq(key) == UINT32_MAX || (key.gen < m->floor && !rg_set_is_group(key.set)) ||
        (s && (key.gen < s->gen || (key.gen == s->gen && key_seq(key) < s->next))))
        return RG_ERR_INVALID;
    if (s || m->n_streams < RG_STREAMS_MAX) return RG_OK;
    if (!m->fenced && key.gen >= m->gen) streams_forget(m);
    m->why = "more than 4096 different tags and peers were used since the last boundary: use fewer, or pass a boundary";
    return m->n_streams < RG_STREAMS_MAX ? RG_OK : RG_ERR_RESOURCE;
}

/* Whether this start keeps to the rules; nothing is changed by it. */
rg_status_t rg_start_allowed(rg_member_t *m, rg_op_key_t key, const rg_op_sig_t *sig) {
    m->why = "this operation belongs to a boundary that has not come yet, or that has passed";
    if (key.gen > m->gen) return RG_ERR_INVALID;
    if (rg_sig_shaped(sig) && !rg_sig_mutual(sig) && !sig->rule_l) {
        m->why = "a gather, a scatter and a message between two take rule L";
        return RG_ERR_INVALID;
    }
    if (rg_key_tagged(key)) return start_tagged(m, key, sig);
    return key.gen != m->gen || key.op != m->next0 ? RG_ERR_INVALID : RG_OK;
}

void rg_start_taken(rg_member_t *m, rg_op_key_t key) {
    if (!rg_key_tagged(key)) {
        m->next0++;
        return;
    }
    uint32_t cell = stream_cell(m, key.set, key_tag(key));
    if (!m->stream_hash[cell]) {
        m->stream[m->n_streams] = (rg_stream_t){ .set = key.set, .tag = key_tag(key) };
        m->stream_hash[cell] = (uint16_t)++m->n_streams;
    }
    rg_stream_t *s = &m->stream[m->stream_hash[cell] - 1];
    s->gen = key.gen;
    s->next = key_seq(key) + 1;
    if (m->fenced) {
        m->streams_dirty = 1;
        return;
    }
    s->told_gen = s->gen;
    s->told_next = s->next;
}

void rg_streams_told(rg_member_t *m) {
    for (uint32_t i = 0; m->streams_dirty && i < m->n_streams; i++) {
        m->stream[i].told_gen = m->stream[i].gen;
        m->stream[i].told_next = m->stream[i].next;
    }
    m->streams_dirty = 0;
}

uint32_t rg_streams_write(const rg_member_t *m, rg_w_t *w) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_streams; i++) {
        const rg_stream_t *s = &m->stream[i];
        if (!s->told_next) continue; /* begun behind the fence */
        rg_stream_report_t r = { .set = s->set, .gen = s->told_gen, .tag = s->tag, .next = s->told_next };
        rg_w_stream_report(w, &r);
        n++;
    }
    return n;
}
