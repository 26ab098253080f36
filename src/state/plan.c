/* plan.c: what follows from what members told each other: whose content wins, and who sends which pieces to whom. Pure:
 * every member computes it from the same bytes and gets the same, which is what makes one outcome of many. It must not
 * look at anything but its arguments. */
#include "state/state.h"

#include "core/wire.h"

#include <stdio.h>
#include <string.h>

#define HEAD_MAGIC 0x31534752u /* "RGS1" */
#define HEAD_VERSION 2u

/* ---- Heads ------------------------------------------------------------------------------------------------------- */

void rg_state_head_put(const rg_state_head_t *h, uint8_t *to) {
    rg_w_t w = { to, 0, RG_STATE_HEAD_BYTES, 0 };
    memset(to, 0, RG_STATE_HEAD_BYTES);
    rg_w_u32(&w, HEAD_MAGIC);
    rg_w_u32(&w, HEAD_VERSION);
    rg_w_u32(&w, h->role);
    rg_w_u32(&w, h->rule);
    rg_w_u32(&w, h->mixed);
    rg_w_u32(&w, (uint32_t)h->status);
    rg_w_u32(&w, h->buffer_bytes);
    rg_w_u32(&w, h->n_tensors);
    rg_w_u64(&w, h->bytes);
    rg_w_u64(&w, h->revision);
    rg_w_bytes(&w, h->layout.b, sizeof h->layout.b);
    rg_w_bytes(&w, h->root.b, sizeof h->root.b);
    rg_w_u32(&w, h->apart);
}

int rg_state_head_get(rg_state_head_t *h, const uint8_t *from) {
    rg_r_t r = { from, RG_STATE_HEAD_BYTES, 0, 0 };
    uint32_t magic = rg_r_u32(&r);
    h->version = rg_r_u32(&r);
    h->role = rg_r_u32(&r);
    h->rule = rg_r_u32(&r);
    h->mixed = rg_r_u32(&r);
    h->status = (int32_t)rg_r_u32(&r);
    h->buffer_bytes = rg_r_u32(&r);
    h->n_tensors = rg_r_u32(&r);
    h->bytes = rg_r_u64(&r);
    h->revision = rg_r_u64(&r);
    rg_r_bytes(&r, h->layout.b, sizeof h->layout.b);
    rg_r_bytes(&r, h->root.b, sizeof h->root.b);
    h->apart = rg_r_u32(&r);
    return magic == HEAD_MAGIC && h->version == HEAD_VERSION && h->role <= RG_STATE_RECEIVE_ONLY && h->mixed <= 1 &&
           h->apart <= 1 && h->buffer_bytes >= RG_STATE_BUFFER_MIN;
}

/* ---- The choice -------------------------------------------------------------------------------------------------- */

#define TEXT 256

static rg_status_t agree(const rg_state_head_t *heads, uint32_t n, rg_state_choice_t *c, char *text) {
    const rg_state_head_t *a = &heads[0];
    for (uint32_t i = 0; i < n; i++) {
        const rg_state_head_t *h = &heads[i];
        c->blame = i;
        if (h->status != RG_OK) {
            snprintf(text, TEXT, "rank %u: %s; nothing was changed", i, rg_strerror((rg_status_t)h->status));
            return h->status < 0 ? (rg_status_t)h->status : RG_ERR_PROTOCOL;
        }
        if (!rg_hash_equal(&h->layout, &a->layout)) {
            snprintf(
                text, TEXT,
                "rank %u has %u tensors of %llu bytes, rank 0 has %u of %llu: names, types, counts and their order "
                "must be equal on all members",
                i, h->n_tensors, (unsigned long long)h->bytes, a->n_tensors, (unsigned long long)a->bytes);
            return RG_ERR_MISMATCH;
        }
        if (h->rule != a->rule) {
            snprintf(text, TEXT, "rank %u has rule %u, rank 0 has %u: rg_state_opts.rule must be equal on all members",
                     i, h->rule, a->rule);
            return RG_ERR_MISMATCH;
        }
        if (h->buffer_bytes < c->buffer_bytes) c->buffer_bytes = h->buffer_bytes;
    }
    c->blame = n;
    return RG_OK;
}

typedef struct best {
    uint32_t votes, rank;
    uint64_t revision;
} best_t;

static int is_better(const best_t *a, const best_t *b, uint32_t rule) {
    if (rule == RG_STATE_NEWEST && a->revision != b->revision) return a->revision > b->revision;
    if (a->votes != b->votes) return a->votes > b->votes;
    if (a->revision != b->revision) return a->revision > b->revision;
    return a->rank < b->rank;
}

/* Whose contents count: those of members that only send, if there are any; else of all that may send and have a
 * revision; else of all that may send. */
static int counts(const rg_state_head_t *h, int only, int revised) {
    if (h->mixed || h->role == RG_STATE_RECEIVE_ONLY) return 0;
    if (only) return h->role == RG_STATE_SEND_ONLY;
    return !revised || h->revision != 0;
}

static int elect(const rg_state_head_t *heads, uint32_t n, int only, int revised, best_t *best) {
    int found = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!counts(&heads[i], only, revised)) continue;
        best_t b = { 0, i, 0 };
        int first = 1;
        for (uint32_t k = 0; k < n; k++) {
            if (!counts(&heads[k], only, revised) || !rg_hash_equal(&heads[k].root, &heads[i].root)) continue;
            if (k < i) first = 0; /* looked at already */
            b.votes++;
            if (heads[k].revision > b.revision) b.revision = heads[k].revision;
        }
        if (first && (!found || is_better(&b, best, heads[0].rule))) *best = b;
        found = 1;
    }
    return found;
}

static rg_status_t nobody(const rg_state_head_t *heads, uint32_t n, rg_state_choice_t *c, char *text) {
    int mixed = 0;
    for (uint32_t i = 0; i < n; i++) mixed |= heads[i].mixed != 0;
    c->blame = n;
    snprintf(text, TEXT, "%s",
             mixed ? "no member that may send has a whole content: load a file, or vouch for one with "
                     "rg_state_set_revision"
                   : "no member may send: all have the role RG_STATE_RECEIVE_ONLY");
    return RG_ERR_INVALID;
}

rg_status_t rg_state_choose(const rg_state_head_t *heads, uint32_t n, rg_state_choice_t *c, char *text) {
    best_t best = { 0 };
    int only = 0, revised = 0;
    *c = (rg_state_choice_t){ .buffer_bytes = UINT32_MAX };
    rg_status_t st = agree(heads, n, c, text);
    if (st != RG_OK) return st;
    for (uint32_t i = 0; i < n; i++) {
        only |= heads[i].role == RG_STATE_SEND_ONLY;
        revised |= counts(&heads[i], 0, 1);
    }
    if (!elect(heads, n, only, revised, &best)) return nobody(heads, n, c, text);
    c->winner = best.rank;
    c->revision = best.revision;
    for (uint32_t i = 0; i < n; i++) {
        int has = rg_hash_equal(&heads[i].root, &heads[best.rank].root);
        if (has) c->holders++;
        else c->receivers++;
        if (has || heads[i].role != RG_STATE_SEND_ONLY) continue;
        c->blame = i;
        snprintf(text, TEXT,
                 "ranks %u and %u both only send but have different contents: at most one content can have the role "
                 "RG_STATE_SEND_ONLY",
                 best.rank, i);
        return RG_ERR_MISMATCH;
    }
    return RG_OK;
}

/* ---- Who sends what ---------------------------------------------------------------------------------------------- */

/* The first open position from `from` on, or m. */
static uint32_t next_open(const rg_deal_t *d, const uint64_t *open, uint32_t from) {
    for (uint32_t w = from / 64; w < d->words; w++) {
        uint64_t bits = open[w];
        if (w == from / 64) bits &= ~0ull << (from % 64);
        if (bits) return w * 64 + (uint32_t)__builtin_ctzll(bits);
    }
    return d->m;
}

/* A member that has the piece and room in this round, beginning with another one each time. */
static uint32_t next_sender(rg_deal_t *d, uint32_t at) {
    for (uint32_t k = 0; k < d->n; k++) {
        uint32_t i = (d->turn + k) % d->n;
        if (!d->sends[i] || rg_bit(d->wants + (size_t)i * d->words, at) || d->out[i] + d->sizes[at] > d->limit)
            continue;
        d->turn = i + 1;
        return i;
    }
    return d->n;
}

static void give(rg_deal_t *d, uint32_t at, uint32_t from, uint32_t to, rg_move_t *move) {
    rg_bit_clear(d->open + (size_t)to * d->words, at);
    d->cursor[to] = at + 1 < d->m ? at + 1 : 0;
    d->in[to] += d->sizes[at];
    d->out[from] += d->sizes[at];
    *move = (rg_move_t){ at, from, to };
}

/* A stretch of pieces for member r in this round, all from one member; how many. What nobody can send in this round is
 * tried again in the next. */
static uint32_t deal_stretch(rg_deal_t *d, uint32_t r, rg_move_t *moves, uint32_t cap) {
    uint64_t *open = d->open + (size_t)r * d->words;
    uint32_t at = next_open(d, open, d->cursor[r]), n = 0, bytes = 0;
    if (at >= d->m) at = next_open(d, open, 0);
    if (at >= d->m || d->in[r] + d->sizes[at] > d->limit) return 0;
    uint32_t from = next_sender(d, at);
    if (from == d->n) return 0;
    for (;;) {
        bytes += d->sizes[at];
        give(d, at, from, r, &moves[n++]);
        if (n == cap || at + 1 >= d->m || !d->follows[at]) return n;
        at++;
        uint32_t size = d->sizes[at];
        if (bytes + size > d->stretch || d->in[r] + size > d->limit || d->out[from] + size > d->limit) return n;
        if (!rg_bit(open, at) || rg_bit(d->wants + (size_t)from * d->words, at)) return n;
    }
}

/* Stretches so long that every member that has all can serve every one that wants some in one round. */
static uint32_t stretch_of(const rg_deal_t *d) {
    uint32_t want = 0, have = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        int wants = next_open(d, d->wants + (size_t)i * d->words, 0) < d->m;
        want += wants != 0;
        have += !wants && d->sends[i];
    }
    uint32_t most = want > have ? want : have;
    return most ? d->limit / most : d->limit;
}

uint32_t rg_state_deal(rg_deal_t *d, rg_move_t *moves, uint32_t cap, uint32_t *ends) {
    uint32_t n_moves = 0, round = 0;
    d->stretch = stretch_of(d);
    memcpy(d->open, d->wants, (size_t)d->n * d->words * sizeof *d->open);
    /* Members that want the same begin at different pieces, so that they can serve each other afterwards. */
    for (uint32_t r = 0; r < d->n; r++) d->cursor[r] = (uint32_t)((uint64_t)d->m * r / d->n);
    for (; round < d->rounds; round++) {
        uint32_t before = n_moves;
        memset(d->out, 0, d->n * sizeof *d->out);
        memset(d->in, 0, d->n * sizeof *d->in);
        for (int dealt = 1; dealt;) {
            dealt = 0;
            for (uint32_t r = 0; r < d->n && n_moves < cap; r++) {
                uint32_t more = deal_stretch(d, r, moves + n_moves, cap - n_moves);
                n_moves += more;
                dealt |= more != 0;
            }
        }
        ends[round] = n_moves;
        if (n_moves == before) break;
    }
    return round;
}
