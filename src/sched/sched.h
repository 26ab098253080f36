/* sched.h: schedules inside the library: building, proving, printing, the table of algorithms, and the choice.
 * Everything here is pure: no I/O, no clock; memory only from malloc/realloc/free in schedule.c, desc.c and verify*.c.
 */
#ifndef RG_SCHED_H
#define RG_SCHED_H

#include "regroup_algorithm.h"

/* What a description means for one rank. rg_desc_elems(): how many elements a buffer reaches to (0 for TMP, whose size
 * the schedule has). rg_desc_has(): whether this rank has the buffer at all: IN of a broadcast or scatter is the
 * root's, OUT of a reduce or gather too, and of P2P each side has one. rg_desc_ok(): 0 for a description that cannot be
 * built. rg_desc_copy() gives d arrays of its own, in *block, which the caller frees; 0 without memory. */
uint64_t rg_desc_elems(const rg_coll_desc_t *d, rg_buf_t buf);
int rg_desc_has(const rg_coll_desc_t *d, rg_buf_t buf);
int rg_desc_ok(const rg_coll_desc_t *d);
int rg_desc_copy(rg_coll_desc_t *d, void **block);

/* Bytes up to which a broadcast is one in which everybody speaks, so that its result may be shown at once (rule S).
 * Not more, for the root's data go to each rank by itself, however far. It must not depend on who takes part, for
 * broadcasts outlive the loss of a member. */
#define RG_SPOKEN_MAX 4096u

/* Builds alg's schedule for d and seals it (DONE barrier when d->rule_l). On success *out is the caller's; free it
 * with rg_sched_free(). */
rg_status_t rg_sched_build(const rg_algorithm_t *alg, const rg_coll_desc_t *d, rg_schedule_t **out);
void rg_sched_free(rg_schedule_t *s);

/* Appends the DONE barrier: dissemination with a radix that makes it one round up to 8 ranks, or with d->hub a star.
 * Zero-length messages. (Dissemination barrier: Hensgen, Finkel, Manber 1988.) */
void rg_sched_seal(rg_schedule_t *s);

/* One line per step into buf, at most cap bytes, terminated; returns the length it has. */
size_t rg_sched_print(const rg_schedule_t *s, char *buf, size_t cap);

/* Proof by symbolic execution of all ranks' schedules (s[0..n-1]) at once, in place and not. RG_OK, or ERR_INVALID
 * with what is wrong in text: wrong result, double count, read of garbage, deadlock, unmatched message, out of
 * bounds, race, partial value in OUT, zero-copy overwrite, early DONE. */
rg_status_t rg_sched_verify(rg_schedule_t *const *s, uint32_t n, char *text, size_t cap);

/* The table that the build makes from algorithms/. NULL-terminated. */
extern const rg_algorithm_t *const rg_algorithms[];

/* Bytes of the whole data of an operation, all segments together: what sizes in tuning files mean. */
uint64_t rg_desc_bytes(const rg_coll_desc_t *d);

/* Choices that were measured, from the text of a tuning file (tuning.c shows the form). Parsing gives INVALID with the
 * number of the line in err, or NOMEM. */
typedef struct rg_tuning rg_tuning_t;
typedef struct rg_tuning_entry {
    rg_kind_t kind;
    uint32_t size, hosts;      /* 0: any */
    uint64_t bytes;            /* for so many at most; UINT64_MAX: for all */
    uint32_t chunk_bytes;      /* 0: the algorithm's own */
    const rg_algorithm_t *alg; /* of rg_algorithms */
} rg_tuning_entry_t;
rg_status_t rg_tuning_parse(const char *text, size_t len, rg_tuning_t **out, char *err, size_t cap);
void rg_tuning_free(rg_tuning_t *t);
uint32_t rg_tuning_entries(const rg_tuning_t *t, const rg_tuning_entry_t **v);

/* One line of such a file, with its newline; returns the length it has. */
size_t rg_tuning_line(const rg_tuning_entry_t *e, char *buf, size_t cap);

/* The entry for d: of the same collective, for the same number of hosts or any, for at least so many bytes, whose
 * algorithm applies; of these the nearest in size (no further than a factor of 2), then the one that names the hosts,
 * then the least limit of bytes, then the first. NULL when there is none. */
const rg_tuning_entry_t *rg_tuning_find(const rg_tuning_t *t, const rg_coll_desc_t *d);

/* What the caller wants: `forced` names algorithms ("all_reduce=ring,broadcast=tree", or NULL), which goes before the
 * tuning file, which goes before the cost model; chunk_bytes (not 0) goes before everybody's own. */
typedef struct rg_choice {
    const char *forced;
    const rg_tuning_t *tuning;
    uint32_t chunk_bytes;
} rg_choice_t;
typedef enum rg_chosen { RG_CHOSEN_NONE, RG_CHOSEN_FORCED, RG_CHOSEN_TUNING, RG_CHOSEN_COST } rg_chosen_t;

/* Whether a list of the form of `forced` names nothing but algorithms that there are, if not for every group. 0: with
 * text, which names those. */
int rg_sched_known(const char *list, char *text, size_t cap);

/* The algorithm for d, and d->chunk and d->hub. NULL with text when forced names none that applies. why may be NULL.
 * Depends on nothing but what is equal on all members. */
const rg_algorithm_t *rg_sched_choose(rg_coll_desc_t *d, const rg_cost_model_t *m, const rg_choice_t *how,
                                      rg_chosen_t *why, char *text, size_t cap);

/* The same without a tuning file. */
const rg_algorithm_t *rg_sched_select(rg_coll_desc_t *d, const rg_cost_model_t *m, const char *forced,
                                      uint32_t chunk_bytes, char *text, size_t cap);

/* What is predicted for every algorithm of d's kind, in the order of the table: at most cap of them are written, and
 * how many there are is returned. */
typedef struct rg_prediction {
    const rg_algorithm_t *alg;
    int applies;
    double seconds; /* these two only if it applies */
    uint64_t chunk; /* elements */
} rg_prediction_t;
size_t rg_sched_explain(const rg_coll_desc_t *d, const rg_cost_model_t *m, const rg_choice_t *how, rg_prediction_t *out,
                        size_t cap);

/* What a view says about its links, equal on all members. Kinds of links: [0] inside a host, [1] inside a site, up to
 * [levels], the others (as in the topology; levels 0: one kind). latency is one way, in seconds, bandwidth in bytes per
 * second; 0: not measured, and the constants of select.c hold. */
typedef struct rg_net_summary {
    uint32_t size;     /* members */
    uint32_t per_host; /* of them on the fullest host */
    uint32_t cores;    /* of the smallest host; 0: not known */
    uint32_t levels;   /* of the topology: 0 to RG_LEVELS_MAX */
    uint32_t shm;      /* 1: the members of a host talk through shared memory */
    struct {
        uint32_t present; /* there is such a link */
        double latency, bandwidth;
    } link[RG_LEVELS_MAX + 1];
} rg_net_summary_t;

/* What one member measured: of its links to members on its host, elsewhere on its site, and on other sites. latency is
 * one way; 0: not known. In a view it has six bytes, because every member carries it: classes half an octave apart. */
#define RG_NET_KINDS 3
#define RG_NET_BYTES 6
typedef struct rg_net {
    struct {
        uint64_t latency_ns, bytes_per_s;
    } link[RG_NET_KINDS];
    uint32_t shared; /* 1: with all members on its host it shares memory */
} rg_net_t;
void rg_net_pack(const rg_net_t *net, uint8_t out[RG_NET_BYTES]);
void rg_net_unpack(const uint8_t in[RG_NET_BYTES], rg_net_t *net);
/* 0 for 0, else 1 + twice the binary logarithm, rounded; and the middle of a class. */
uint8_t rg_net_class(uint64_t value);
uint64_t rg_net_value(uint8_t class);

/* What was measured between n members, a row for each sender: KiB per second, and one way. */
#define RG_ORDER_MAX 64
#define RG_ORDER_EXACT 10
typedef struct rg_links {
    uint32_t n;
    const uint32_t *rate, *latency_us;
} rg_links_t;
typedef struct rg_ring {
    uint32_t slowest;    /* of its links */
    uint64_t latency_us; /* once round it */
} rg_ring_t;

/* The ring whose slowest link is the fastest, and of those the shortest way round: the best of all up to
 * RG_ORDER_EXACT members, a good one up to RG_ORDER_MAX. Begins with member 0. */
void rg_order_ring(const rg_links_t *l, uint32_t *order);
rg_ring_t rg_order_judge(const rg_links_t *l, const uint32_t *order);
int rg_order_pays(rg_ring_t now, rg_ring_t then); /* so much better that the change is worth it */

/* How much of an all-reduce by direct exchange each of n should own. A member that owns the share s sends and receives
 * 1 + (n - 2) s times the data, so the longest of these over the rates is the least when all are equal, or, where one
 * is so slow that it is the last although it owns nothing, when the others share by what they are faster. Gives the
 * sum. */
uint64_t rg_share_weights(const uint32_t *rate, uint32_t n, uint64_t *weight);

/* The model used for a view. Pure, so that all members have the same. */
void rg_cost_model(rg_cost_model_t *m, const rg_net_summary_t *net);

/* The summary of a view about which nothing was measured: of `size` members with `cores`, on one host or each on its
 * own. */
rg_net_summary_t rg_net_plain(uint32_t size, uint32_t cores, int one_host);

#endif
