/* lifecycle.h: what src/api.c calls to open, close and free a group, and to pass a boundary. */
#ifndef RG_LIFECYCLE_H
#define RG_LIFECYCLE_H

#include "engine/group.h"

/* How to join. n is 0 except for rg_group_init_rank(). */
typedef struct rg_join {
    rg_config_t config;
    uint32_t n, rank;
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
