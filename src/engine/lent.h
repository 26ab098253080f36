/* lent.h: memory of a member that others read without its processor, over links whose transport can do that: the
 * entries lend, reclaim, fetch and unfetch of its table. Any thread, not locked. What it says no to goes by messages.
 */
#ifndef RG_LENT_H
#define RG_LENT_H

#include "engine/group.h"

/* Whether any link of this group could; memory that no transport could lend is not worth asking for. */
int rg_lent_possible(rg_group_t *g, const void *memory, uint64_t bytes);
int rg_lent_to(rg_group_t *g, uint64_t peer, const rg_tp_lend_t *lend); /* 0: it cannot be; 1: it is, perhaps was */
void rg_lent_back(rg_group_t *g, uint64_t name);                        /* from all */

/* Reads memory that this member of the view has lent: 1: f's buffers are filled; 0: they are not, and nothing touches
 * them any more. The cookie is this function's. */
int rg_lent_fetch(rg_group_t *g, uint64_t peer, rg_tp_fetch_t *f, uint64_t deadline_ns);

/* Locked. 1 when it was its own. */
int rg_lent_completion(rg_group_t *g, const rg_completion_t *c);

#endif
