/* lifecycle.h: what src/api.c calls to open, close and free a group, and to pass a boundary. */
#ifndef RG_LIFECYCLE_H
#define RG_LIFECYCLE_H

#include "engine/group.h"

/* What a process does as a candidate, when it is linked to the members and before it may become one. Locked. */
struct rg_join_first {
    void *user;
    int (*pump)(void *user, rg_group_t *g, uint64_t now); /* called again and again, also after it has returned 1: it
                                                             may enter from here on */
    void (*end)(void *user, rg_group_t *g);               /* once: it is in, or there is no more time */
    const uint64_t *progress_ns;                          /* when it last got on */
};
typedef struct rg_join_first rg_join_first_t;

/* How to join. n is 0 except for rg_group_init_rank(). */
typedef struct rg_join {
    rg_config_t config;
    uint32_t n, rank;
    const rg_join_first_t *first; /* NULL: nothing */
} rg_join_t;

rg_status_t rg_group_open(const rg_join_t *j, rg_group_t **out, rg_error_t *err);
rg_status_t rg_group_close(rg_group_t *g); /* leave in order */
void rg_group_free(rg_group_t *g);
void rg_group_shell_free(rg_group_t *g); /* what is left of it when the last child's handle goes after it */
/* True in a process that was forked from the one that opened the group. It has neither its thread nor its locks, and
 * shares its connections: whatever it did would be done to the parent, which is the member. */
int rg_group_inherited(const rg_group_t *g);
rg_status_t rg_group_pass_boundary(rg_group_t *g, rg_change_t *c); /* locked */

#endif
