/* roll.h: a group as JSON, for the coordinator's thread (coordinator.c). It relies on the caller to know connections;
 * it must not be included outside src/engine. */
#ifndef RG_ROLL_H
#define RG_ROLL_H

#include "core/core.h"

#include <jansson.h>

/* Where a member's connection comes from; 0 when there is none. */
typedef int (*rg_address_fn)(void *arg, uint64_t conn, char *out, size_t cap);

json_t *rg_roll_json(const rg_coord_t *core, const char *group, rg_address_fn address_of, void *arg);

#endif
