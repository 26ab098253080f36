/* random_ops.h: random operations among real processes that are killed now and then: what its rig (random_ops.c) and
 * the kinds of operations (check_quant.c, check_sparse.c) share. A round is named by the boundary index, which alone
 * says what is called. Workers write what they see into shared memory; the process that kills judges. */
#ifndef RG_TEST_RANDOM_OPS_H
#define RG_TEST_RANDOM_OPS_H

#include "procs.h"

#define RANDOM_N 4
#define RANDOM_CLASSES 8

/* What a member saw of a round. */
struct random_record {
    uint64_t gen, epoch;
    uint64_t hash;   /* of a result that all have alike; 0: there is none */
    uint64_t unlike; /* elements that are not, bit for bit, what the reference gives */
    uint64_t wrong;  /* elements beyond the bound that the library gives */
    uint64_t ids[RANDOM_N];
    uint32_t status, contributors, world, retries;
    uint32_t intact;   /* what must not be touched was not */
    uint32_t compared; /* the result was compared with the reference */
    int must;          /* the status when nobody is lost; 1: not known */
    uint64_t failed;   /* what a call that failed says beside its status, which all have alike */
    uint64_t failing;  /* what that must be when nobody is lost; 0: not known */
    char text[256];
};

struct random_member {
    rg_group_t *g;
    uint64_t id;
    int slot;
    void *state;
};

struct random_kind {
    const char *name;
    uint32_t classes; /* rounds are counted by class */
    const char *(*class_name)(uint32_t k);
    uint32_t (*class_of)(uint64_t gen);
    int (*allows)(uint64_t gen, int status); /* while members come and go */
    int (*is_long)(uint64_t gen);
    void (*describe)(uint64_t gen, char *text, size_t cap);
    int (*begin)(struct random_member *m); /* makes m->state */
    void (*end)(struct random_member *m);
    /* Calls random_calls() before and random_called() after the call; fills r, but for gen and world. 0, or 1 when the
     * test itself cannot go on. */
    int (*run)(struct random_member *m, uint64_t gen, struct random_record *r);
};

void random_calls(struct random_member *m, uint64_t gen);
void random_called(struct random_member *m, uint64_t gen);
int random_slot_of(uint64_t id); /* of any member that has ever been there */

uint64_t random_draw(uint64_t gen); /* what a round is made of; other seeds make other rounds */
uint64_t random_spread(uint64_t v);
float random_unit(uint64_t id, uint64_t gen, uint64_t i); /* in [-1, 1] */
uint64_t random_hash(const void *p, uint64_t bytes);

/* `rounds` of them, with a kill after each `every` or so; the last line is JSON. 0 when everything held. */
int random_check(const struct random_kind *k, uint64_t rounds, unsigned every, unsigned seed);
int random_planted(const struct random_kind *k, uint64_t gen); /* 1 when each planted fault is found */

#endif
