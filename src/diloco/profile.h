/* profile.h: what the rest of the layer asks of profile.c. Relies on regroup_diloco.h; knows of no handle, and must not
 * reach members or memory. */
#ifndef RG_DILOCO_PROFILE_H
#define RG_DILOCO_PROFILE_H

#include "regroup_diloco.h"

/* A round is merged when the next one is sent. */
int rg_dl_is_late(rg_diloco_variant_t v);

/* Checks `in` (NULL: the plain profile) and copies it. INVALID, with the field in the text. */
rg_status_t rg_dl_config(const rg_diloco_config_t *in, rg_diloco_config_t *c, rg_error_t *err);

#endif
