/* regroup_window.h: memory of a member that the others read and add to when they want to, without its program taking
 * part: for training in which members fetch parameters on demand and push their gradients to whoever owns them, each at
 * its own pace (docs/quorum.md).
 *
 * A window is a row of f32 elements. It is served by a thread of its member, one request after the other; where memory
 * and links allow it, members read without that thread (docs/rdma.md). Conventions, thread-safety and errors are those
 * of regroup.h. The group needs its progress thread. */
#ifndef REGROUP_WINDOW_H
#define REGROUP_WINDOW_H

#include "regroup.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

typedef struct rg_window rg_window_t;

/* Lets the members of `group` get at memory[0..count) under this id until it is destroyed. Each member that takes part,
 * also one that only asks others, registers a window of that id, with a count of its own, which may be 0. The memory
 * stays the program's; where it is registered (rg_alloc(), rg_register()) others may read it without this process.
 * Destroy it before the group. Errors: INVALID (the id is in use here), NOMEM, SYSTEM. */
rg_status_t rg_window_register(rg_group_t *group, uint32_t id, float *memory, uint64_t count, rg_window_t **out,
                               rg_error_t *err);
void rg_window_destroy(rg_window_t *w);

/* While it is locked nobody gets at this member's memory, and those who ask wait, until their time is over: for the
 * program's own reads and writes. That includes this member's own gets and accumulations, of whatever thread: between
 * lock and unlock use the memory itself. Keep it short. */
void rg_window_lock(rg_window_t *w);
void rg_window_unlock(rg_window_t *w);

/* to[0..count) = elements first.. of the window of the member with this id (rg_group_member() gives that of a rank;
 * this member's own is fine), as they were at one time: *version, when not NULL, is how many accumulations were
 * complete then. Errors: INVALID (beyond its end there), TIMEOUT (also: it has no such window; 0: the configuration's
 * op_timeout_ms), PEER_LOST (it is no member, or not any more), NOMEM, and those of a group that is over. */
rg_status_t rg_window_get(rg_window_t *w, uint64_t member_id, uint64_t first, uint64_t count, float *to,
                          uint32_t timeout_ms, uint64_t *version);

/* Adds scale * from[0..count) to elements first.. of the window of that member, as a whole or not at all, and once:
 * success means that it was done. After TIMEOUT and PEER_LOST it may have been done there, too. `from` is read during
 * the call. Errors: as rg_window_get(). */
rg_status_t rg_window_accumulate(rg_window_t *w, uint64_t member_id, uint64_t first, uint64_t count, const float *from,
                                 float scale, uint32_t timeout_ms);

/* Accumulations into this member's window that are complete, since it was registered. */
uint64_t rg_window_count(rg_window_t *w);

/* Waits until there are at least so many. Errors: TIMEOUT, and those of a group that is over. */
rg_status_t rg_window_wait(rg_window_t *w, uint64_t count, uint32_t timeout_ms);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
