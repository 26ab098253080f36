/* compare.c: members find out whose content wins and where the others differ from it: heads first, then hashes of
 * groups of pieces, then of the pieces in groups that differ, each hash told by one of those who have it. All of it is
 * checked against the hash above it. Relies on public operations whose outcome is the same for all members, so that all
 * take the same way. It must not write to the tensors. */
#include "state/sync.h"

#include <stdlib.h>
#include <string.h>

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* For as many members as there are now: between boundaries they only become fewer. */
rg_status_t rg_sync_reserve_heads(rg_sync_t *x) {
    rg_info_t info = RG_INFO_INIT;
    rg_status_t st = rg_group_info(x->g, &info);
    if (st != RG_OK) return st;
    size_t n = x->cap_n = info.world_size, groups = rg_piece_groups(x->s->n_pieces) + 1;
    x->self_id = info.member_id;
    x->raw = calloc(n + 1, RG_STATE_HEAD_BYTES); /* ours is the first */
    x->heads = calloc(n, sizeof *x->heads);
    x->ids = calloc(n, sizeof *x->ids);
    x->counts = calloc(4 * n, sizeof *x->counts);
    x->sends = calloc(n, 1);
    x->groups = calloc(groups, sizeof *x->groups);
    x->target_groups = calloc(groups, sizeof *x->target_groups);
    x->told = calloc(8, n + 1 + 4 * RG_SYNC_FEW); /* a status takes 8 bytes, a hash 16; ours may be as many as all */
    return x->raw && x->heads && x->ids && x->counts && x->sends && x->groups && x->target_groups && x->told
               ? RG_OK
               : RG_ERR_NOMEM;
}

/* What a transfer needs. */
static rg_status_t reserve(rg_sync_t *x) {
    if (x->reserved) return RG_OK;
    size_t n = x->cap_n, p = x->s->n_pieces, words = p / 64 + 1;
    rg_deal_t *d = &x->deal;
    x->list = calloc(p, sizeof *x->list);
    x->sizes = calloc(p, sizeof *x->sizes);
    x->follows = calloc(p, 1);
    x->target = calloc(p, sizeof *x->target);
    x->share = calloc(p, sizeof *x->share);
    x->records = calloc(n * (words + 1), sizeof *x->records);
    x->mine = calloc(words + 1, sizeof *x->mine);
    x->wants = calloc(n * words, sizeof *x->wants);
    d->open = calloc(n * words, sizeof *d->open);
    d->cursor = calloc(n, sizeof *d->cursor);
    d->out = calloc(n, sizeof *d->out);
    d->in = calloc(n, sizeof *d->in);
    x->moves = calloc(RG_SYNC_MOVES, sizeof *x->moves);
    x->aside = calloc(p, sizeof *x->aside);
    x->buffers = malloc(x->o.buffer_bytes);
    x->reserved = x->list && x->sizes && x->follows && x->target && x->share && x->records && x->mine && x->wants &&
                  d->open && d->cursor && d->out && d->in && x->moves && x->aside && x->buffers;
    return x->reserved ? RG_OK : RG_ERR_NOMEM;
}

void rg_sync_free(rg_sync_t *x) {
    for (uint32_t i = 0; x->aside && i < x->s->n_pieces; i++) free(x->aside[i]);
    void *all[] = { x->raw,           x->heads,       x->ids,      x->counts, x->sends,  x->groups,
                    x->target_groups, x->list,        x->follows,  x->sizes,  x->target, x->share,
                    x->records,       x->mine,        x->wants,    x->moves,  x->aside,  x->buffers,
                    x->deal.open,     x->deal.cursor, x->deal.out, x->deal.in, x->told };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- Exchanges --------------------------------------------------------------------------------------------------- */

static rg_status_t exchange(rg_sync_t *x, const void *in, void *out, size_t bytes) {
    rg_status_t st;
    RG_SYNC_CALL(x, st, rg_all_gather(x->g, in, out, bytes, RG_U8, &x->op, NULL));
    if (st == RG_OK && x->op_result.contributors) x->r.compare_bytes += (x->op_result.contributors - 1) * bytes;
    return st;
}

/* Those who have the winning content share the telling of `items` hashes out among themselves. Says which are ours. */
static void shares(rg_sync_t *x, uint64_t items, uint64_t *begin, uint64_t *end) {
    uint32_t tellers = 0, k = 0;
    const rg_hash_t *root = &x->heads[x->c.winner].root;
    *begin = *end = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        x->counts[i] = x->sends[i] && rg_hash_equal(&x->heads[i].root, root);
        tellers += x->counts[i] != 0;
    }
    for (uint32_t i = 0; i < x->n; i++) {
        if (!x->counts[i]) continue;
        uint64_t from = items * k / tellers, to = items * (k + 1) / tellers;
        if (i == x->rank) *begin = from, *end = to;
        x->counts[i] = to - from;
        k++;
    }
}

/* counts[i] bytes of member i, in the order of ranks. */
static rg_status_t tell(rg_sync_t *x, const void *in, void *out, uint64_t total) {
    rg_status_t st;
    RG_SYNC_CALL(x, st, rg_all_gather_v(x->g, in, out, x->counts, NULL, RG_U8, &x->op, NULL));
    if (st == RG_OK) x->r.compare_bytes += total - x->counts[x->rank];
    return st;
}

/* ---- Heads ------------------------------------------------------------------------------------------------------- */

/* The operation says who took part, so ranks are those of its members whatever else happens meanwhile. */
static int place(rg_sync_t *x) {
    x->n = x->op_result.contributors;
    for (x->rank = 0; x->rank < x->n && x->rank < x->cap_n; x->rank++)
        if (x->ids[x->rank] == x->self_id) return 1;
    return 0;
}

rg_status_t rg_sync_compare(rg_sync_t *x) {
    rg_state_t *s = x->s;
    rg_info_t info = RG_INFO_INIT;
    char text[256];
    x->n_groups = rg_piece_groups(s->n_pieces);
    rg_hash_groups(s->hashes, s->n_pieces, x->groups);
    rg_state_head_t head = { .role = x->o.role,
                             .rule = x->o.rule,
                             .mixed = s->mixed != 0,
                             .buffer_bytes = x->o.buffer_bytes,
                             .n_tensors = s->n,
                             .apart = x->aside_bytes ||
                                      (!x->in_place && x->o.side_bytes && x->o.side_bytes < s->bytes),
                             .status = x->own,
                             .revision = s->revision,
                             .bytes = s->bytes,
                             .layout = s->layout,
                             .root = rg_hash_root(&s->layout, x->groups, x->n_groups) };
    x->n = 0;                                    /* until the exchange says who takes part */
    rg_status_t st = rg_group_info(x->g, &info); /* from here on the engine knows how many we know of */
    if (st != RG_OK) return st;
    rg_state_head_put(&head, x->raw);
    x->op_result.contributor_ids = x->ids;
    x->op_result.contributor_cap = x->cap_n;
    st = exchange(x, x->raw, x->raw + RG_STATE_HEAD_BYTES, RG_STATE_HEAD_BYTES);
    x->op_result.contributor_ids = NULL;
    x->op_result.contributor_cap = 0;
    if (st != RG_OK) return st;
    if (!place(x)) return rg_sync_fail(x, RG_ERR_BUG, UINT32_MAX, "this member is not among those that compared");
    for (uint32_t i = 0; i < x->n; i++) {
        if (!rg_state_head_get(&x->heads[i], x->raw + (size_t)(i + 1) * RG_STATE_HEAD_BYTES))
            return rg_sync_fail(x, RG_ERR_PROTOCOL, i, "rank %u does not speak of a state as this version does", i);
        x->sends[i] = x->heads[i].role != RG_STATE_RECEIVE_ONLY;
    }
    st = rg_state_choose(x->heads, x->n, &x->c, text);
    if (st != RG_OK) return rg_sync_fail(x, st, x->c.blame, "%s", text);
    x->r.members = x->n;
    x->r.holders = x->c.holders;
    x->r.revision = x->c.revision;
    return RG_OK;
}

/* ---- Where contents differ --------------------------------------------------------------------------------------- */

static rg_status_t learn_groups(rg_sync_t *x) {
    uint64_t begin, end;
    shares(x, x->n_groups, &begin, &end);
    for (uint32_t i = 0; i < x->n; i++) x->counts[i] *= sizeof(rg_hash_t);
    rg_status_t st = tell(x, x->groups + begin, x->target_groups, x->n_groups * sizeof(rg_hash_t));
    if (st != RG_OK) return st;
    rg_hash_t root = rg_hash_root(&x->s->layout, x->target_groups, x->n_groups);
    if (!rg_hash_equal(&root, &x->heads[x->c.winner].root))
        return rg_sync_fail(x, RG_ERR_PROTOCOL, UINT32_MAX, "the hashes that were told do not fit the content's");
    return RG_OK;
}

/* What every member has to tell, `bytes` of it, behind a word with what went wrong there. */
static rg_status_t exchange_words(rg_sync_t *x, void *mine, void *all, size_t bytes) {
    const uint64_t own = (uint64_t)(int64_t)x->own;
    memcpy(mine, &own, sizeof own);
    rg_status_t st = exchange(x, mine, all, sizeof own + bytes);
    for (uint32_t i = 0; st == RG_OK && i < x->n; i++) {
        int64_t status;
        memcpy(&status, (const uint8_t *)all + (size_t)i * (sizeof own + bytes), sizeof status);
        if (status == RG_OK) continue;
        rg_status_t what = status < 0 && status >= RG_ERR_BUG ? (rg_status_t)status : RG_ERR_PROTOCOL;
        return rg_sync_fail(x, what, i,
                            what == RG_ERR_RESOURCE
                                ? "rank %u may not keep so much aside (rg_state_opts.side_bytes): %s"
                            : what == RG_ERR_PROTOCOL
                                ? "rank %u got pieces again and again that do not fit their hashes: a content changed "
                                  "while it was read: %s"
                                : "rank %u: %s",
                            i, rg_strerror(what));
    }
    return st;
}

/* Every member tells its own `count` hashes. */
static rg_status_t exchange_hashes(rg_sync_t *x, uint32_t count) {
    size_t bytes = count * sizeof(rg_hash_t);
    return exchange_words(x, x->told, x->told + sizeof(uint64_t) + bytes, bytes);
}
static const rg_hash_t *hash_told(const rg_sync_t *x, uint32_t rank, uint32_t count, uint32_t at) {
    size_t bytes = sizeof(uint64_t) + count * sizeof(rg_hash_t);
    return (const rg_hash_t *)(const void *)(x->told + (rank + 1) * bytes + sizeof(uint64_t)) + at;
}

/* Which groups differ somewhere, from what each member says of its own. */
static rg_status_t learn_differing(rg_sync_t *x) {
    uint32_t words = x->n_groups / 64 + 1;
    memset(x->mine, 0, (words + 1) * sizeof *x->mine);
    for (uint32_t g = 0; g < x->n_groups; g++)
        if (!rg_hash_equal(&x->groups[g], &x->target_groups[g])) rg_bit_set(x->mine + 1, g);
    rg_status_t st = exchange_words(x, x->mine, x->records, words * sizeof *x->mine);
    for (uint32_t i = 0; st == RG_OK && i < x->n; i++)
        for (uint32_t w = 0; w < words; w++) x->mine[w + 1] |= x->records[(size_t)i * (words + 1) + w + 1];
    return st;
}

/* The short way to the same: every member tells the hashes of its groups. */
static rg_status_t learn_groups_of_all(rg_sync_t *x) {
    memcpy(x->told + sizeof(uint64_t), x->groups, x->n_groups * sizeof *x->groups);
    rg_status_t st = exchange_hashes(x, x->n_groups);
    if (st != RG_OK) return st;
    for (uint32_t i = 0; i < x->n; i++) {
        rg_hash_t root = rg_hash_root(&x->s->layout, hash_told(x, i, x->n_groups, 0), x->n_groups);
        if (!rg_hash_equal(&root, &x->heads[i].root))
            return rg_sync_fail(x, RG_ERR_PROTOCOL, i, "the hashes that rank %u told do not fit its content's", i);
    }
    memcpy(x->target_groups, hash_told(x, x->c.winner, x->n_groups, 0), x->n_groups * sizeof *x->target_groups);
    memset(x->mine + 1, 0, (x->n_groups / 64 + 1) * sizeof *x->mine);
    for (uint32_t i = 0; i < x->n; i++)
        for (uint32_t g = 0; g < x->n_groups; g++)
            if (!rg_hash_equal(hash_told(x, i, x->n_groups, g), &x->target_groups[g])) rg_bit_set(x->mine + 1, g);
    return RG_OK;
}

/* The pieces of every group in which somebody differs. */
static void list_pieces(rg_sync_t *x) {
    x->m = 0;
    for (uint32_t g = 0; g < x->n_groups; g++) {
        int differs = rg_bit(x->mine + 1, g);
        for (uint32_t p = g * RG_PIECE_GROUP; differs && p < (g + 1) * RG_PIECE_GROUP && p < x->s->n_pieces; p++) {
            x->sizes[x->m] = rg_state_piece(x->s, p).bytes;
            x->list[x->m++] = p;
        }
    }
    for (uint32_t k = 0; k < x->m; k++)
        x->follows[k] = k + 1 < x->m && x->list[k + 1] == x->list[k] + 1 &&
                        rg_piece_tensor(x->s, x->list[k]) == rg_piece_tensor(x->s, x->list[k + 1]);
    x->words = (x->m + 63) / 64;
}

/* What was told of the listed pieces must fit what is known of their groups. */
static rg_status_t fits(rg_sync_t *x) {
    rg_hash_groups(x->target, x->m, x->share); /* what was told is sent; the room serves again */
    for (uint32_t u = 0; u < rg_piece_groups(x->m); u++)
        if (!rg_hash_equal(&x->share[u], &x->target_groups[x->list[u * RG_PIECE_GROUP] / RG_PIECE_GROUP]))
            return rg_sync_fail(x, RG_ERR_PROTOCOL, UINT32_MAX, "the hashes that were told do not fit their group's");
    return RG_OK;
}

/* One after the other the groups in the list: each but the last of all has RG_PIECE_GROUP pieces. */
static rg_status_t learn_pieces(rg_sync_t *x) {
    uint64_t begin, end, units = rg_piece_groups(x->m), told = 0;
    shares(x, units, &begin, &end);
    for (uint32_t i = 0; i < x->n; i++) {
        uint64_t from = told, to = told += x->counts[i];
        from = from * RG_PIECE_GROUP < x->m ? from * RG_PIECE_GROUP : x->m;
        to = to * RG_PIECE_GROUP < x->m ? to * RG_PIECE_GROUP : x->m;
        x->counts[i] = (to - from) * sizeof(rg_hash_t);
    }
    uint32_t n = 0;
    for (uint64_t k = begin * RG_PIECE_GROUP; k < end * RG_PIECE_GROUP && k < x->m; k++)
        x->share[n++] = x->s->hashes[x->list[k]];
    rg_status_t st = tell(x, x->share, x->target, x->m * sizeof(rg_hash_t));
    return st == RG_OK ? fits(x) : st;
}

/* The short way: every member tells the hashes of its pieces, which is also what it wants. */
static rg_status_t learn_pieces_of_all(rg_sync_t *x) {
    for (uint32_t at = 0; at < x->m; at++)
        memcpy(x->told + sizeof(uint64_t) + at * sizeof(rg_hash_t), &x->s->hashes[x->list[at]], sizeof(rg_hash_t));
    rg_status_t st = exchange_hashes(x, x->m);
    if (st != RG_OK) return st;
    memcpy(x->target, hash_told(x, x->c.winner, x->m, 0), x->m * sizeof *x->target);
    st = fits(x);
    memset(x->wants, 0, (size_t)x->n * x->words * sizeof *x->wants);
    for (uint32_t i = 0; st == RG_OK && i < x->n; i++)
        for (uint32_t at = 0; at < x->m; at++)
            if (!rg_hash_equal(hash_told(x, i, x->m, at), &x->target[at]))
                rg_bit_set(x->wants + (size_t)i * x->words, at);
    x->known = st == RG_OK;
    return st;
}

/* Whether hashes say all there is to say about what members want. All see the same heads. */
static int hashes_tell_all(const rg_sync_t *x) {
    uint32_t apart = 0;
    for (uint32_t i = 0; i < x->n; i++) apart |= x->heads[i].apart;
    return !apart;
}

rg_status_t rg_sync_learn(rg_sync_t *x) {
    int all = hashes_tell_all(x), few = all && (uint64_t)x->n * x->n_groups <= RG_SYNC_FEW;
    rg_status_t st = few ? RG_OK : learn_groups(x);
    if (st != RG_OK) return st;
    st = reserve(x);
    if (st != RG_OK) {
        x->own = st;
        /* The others hear of it from a message that needs no memory but this. */
        if (!x->records) x->records = calloc(x->cap_n, (x->n_groups / 64 + 2) * sizeof *x->records);
        if (!x->mine) x->mine = calloc(1, (x->n_groups / 64 + 2) * sizeof *x->mine);
        if (!x->records || !x->mine) return rg_sync_fail(x, st, x->rank, "no memory to compare pieces");
    }
    st = few ? learn_groups_of_all(x) : learn_differing(x);
    if (st != RG_OK) return st;
    list_pieces(x);
    return all && (uint64_t)x->n * x->m <= RG_SYNC_FEW ? learn_pieces_of_all(x) : learn_pieces(x);
}

/* ---- Who wants what ---------------------------------------------------------------------------------------------- */

static int has(const rg_sync_t *x, uint32_t at) {
    uint32_t piece = x->list[at];
    if (rg_hash_equal(&x->s->hashes[piece], &x->target[at])) return 1;
    return x->aside[piece] && rg_hash_equal(&x->aside[piece]->hash, &x->target[at]);
}

rg_status_t rg_sync_wanted(rg_sync_t *x, int *any) {
    uint64_t bytes = 0;
    if (x->known) { /* nothing has moved since */
        x->known = 0;
        for (size_t w = *any = 0; w < (size_t)x->n * x->words; w++) *any |= x->wants[w] != 0;
        return RG_OK;
    }
    memset(x->mine, 0, (x->words + 1) * sizeof *x->mine);
    for (uint32_t at = 0; at < x->m; at++) {
        if (has(x, at)) continue;
        rg_bit_set(x->mine + 1, at);
        bytes += x->sizes[at];
    }
    if (!x->own && !x->in_place && x->o.side_bytes && bytes && bytes + x->aside_bytes > x->o.side_bytes)
        x->own = RG_ERR_RESOURCE;
    if (!x->own && x->bad_passes > RG_SYNC_BAD_PASSES) x->own = RG_ERR_PROTOCOL;
    rg_status_t st = exchange_words(x, x->mine, x->records, x->words * sizeof *x->mine);
    if (st != RG_OK) return st;
    *any = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        const uint64_t *from = x->records + (size_t)i * (x->words + 1) + 1;
        uint64_t *to = x->wants + (size_t)i * x->words;
        for (uint32_t w = 0; w < x->words; w++) {
            to[w] = from[w];
            if (w == x->words - 1 && x->m % 64) to[w] &= (1ull << (x->m % 64)) - 1; /* bits of no piece */
            *any |= to[w] != 0;
        }
    }
    return RG_OK;
}
