/* api.h: what the files of the public functions share: a call as it was made, and the way from there to an operation.
 * Relies on the engine; nothing outside src/api*.c, src/split.c, src/measure.c, src/state/, src/quant/,
 * src/sparse/ and src/quorum/ may use it. */
#ifndef RG_API_H
#define RG_API_H

#include "engine/group.h"

typedef struct rg_call {
    rg_kind_t kind;
    const void *in;
    void *out;
    uint64_t count;
    rg_dtype_t dtype;
    rg_op_t op;
    uint32_t root;  /* P2P: the other one */
    uint32_t sends; /* P2P: 1 for the sender */
    /* The forms with segments that differ */
    uint32_t v;
    const uint64_t *counts, *offs, *in_counts, *in_offs;
    /* The forms over a list: n buffers; in, out and count are not used */
    uint32_t list, n;
    const void *const *ins;
    void *const *outs;
    const uint64_t *list_counts;
    uint32_t salt; /* tells operations of the library itself from the program's */
} rg_call_t;

static inline rg_group_t *rg_root(rg_group_t *h) { return h->root ? h->root : h; }

/* INVALID for NULL, CLOSED in a forked child. To be called before anything takes the lock. */
rg_status_t rg_usable(rg_group_t *h);
void rg_caught_up(rg_group_t *h); /* the program's state is that of the group again (rg_info_t, stale) */
/* For whom the next operation is, and the epoch that its result will name unless a member is lost: that of the data,
 * which newcomers do not change, unlike the view's in rg_info_t. The program counts as told how many there are. */
rg_status_t rg_shape(rg_group_t *h, uint32_t *n, uint32_t *rank, uint64_t *epoch);
/* The same, and who they are, by rank: the first cap of them. */
rg_status_t rg_shape_ids(rg_group_t *h, uint32_t *n, uint32_t *rank, uint64_t *epoch, uint64_t *ids, uint32_t cap);
/* Where the n members are: host[r] is the first rank on rank r's host; and what links are like. Members of which it is
 * not known, or that are not n any more, are each on a host of its own: the operation that follows then ends as one
 * that a loss came before. */
void rg_shape_hosts(rg_group_t *h, uint32_t *host, uint32_t n, rg_cost_model_t *m);
/* Notes why a call is refused; gives st back. */
rg_status_t rg_refuse(rg_group_t *h, rg_status_t st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* rg_group_join(), with something that is done before this process may enter (NULL: nothing). */
typedef struct rg_join_first rg_join_first_t;
rg_status_t rg_join_with(const rg_config_t *config, const rg_join_first_t *first, rg_group_t **out, rg_error_t *err);

/* Checks a call and makes it an operation: blocking without req. */
rg_status_t rg_call_run(rg_group_t *h, const rg_call_t *c, const rg_opts_t *opts, rg_request_t **req);
/* The parts of it, for batches. Locked: make, submit. o is resolved. */
rg_status_t rg_call_opts(rg_group_t *h, const rg_call_t *c, const rg_opts_t *opts, int blocking, rg_opts_t *o);
rg_status_t rg_call_make(rg_group_t *h, const rg_call_t *c, const rg_opts_t *o, rg_request_t **op);
/* RG_OK, too, for a call whose arguments are wrong where others may have made it: op->refused says what its caller is
 * to be told, and it is to be submitted like any other (rg_op_refuse). The second form: what had to be known before is
 * wrong already; opts as the caller gave them, text NULL: the handle's. It gives `why` back where there is nobody to
 * tell. */
rg_status_t rg_call_make_refused(rg_group_t *h, const rg_call_t *c, const rg_opts_t *opts, rg_status_t why,
                                 const char *text, rg_request_t **op);
int rg_refused_for_all(rg_status_t st);
/* For calls that are made of operations: refused before their first one, they take the place of one (an all-gather, for
 * the text) all the same. Blocks until it is ended for all, and gives what with: MISMATCH, unless something came
 * between; `why` where there was nobody to tell. NOMEM, RESOURCE: it has no place, and is to be refused with that. */
rg_status_t rg_call_refused(rg_group_t *h, uint32_t tag, rg_status_t why, const char *text);
/* Waits for a submitted operation, hands out its result and frees it. Locked. */
rg_status_t rg_call_collect(rg_request_t *op, rg_result_t *result);
/* After a submission that nobody waits for yet. Locked. */
void rg_call_started(rg_request_t *op);

/* Where the segments, rows and pieces of the caller's buffers are; op->sig.kind, count and elem are set. Texts are left
 * with the handle. Locked. */
rg_status_t rg_call_buffers(rg_request_t *op, const rg_call_t *c, const rg_opts_t *o, const rg_roster_t *r);

/* api_pairs.c: a message to or from a member by its id, as ranks may move between looking one up and the call (c->root
 * is filled in). PEER_LOST: it is no member now. */
rg_status_t rg_call_pair(rg_group_t *h, uint64_t id, rg_call_t *c, const rg_opts_t *opts, rg_request_t **req);
/* Returns when one of n requests is finished; NULL ones do not count. */
void rg_wait_any(rg_group_t *h, rg_request_t *const *reqs, uint32_t n);
/* api_pairs.c: a batch of this thread on a handle that is destroyed. */
void rg_batch_forget(rg_group_t *h);

/* split.c. Locked: a child takes no more calls, and what it has in flight ends everywhere. */
void rg_child_end(rg_group_t *h, rg_status_t status, const char *text);
void rg_child_destroy(rg_group_t *h); /* not locked */

#endif
