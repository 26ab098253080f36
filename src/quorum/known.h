/* known.h: what a layer on top of quorum reductions may ask beside include/regroup_quorum.h. It relies on nothing,
 * waits for nothing and changes nothing. */
#ifndef RG_QUORUM_KNOWN_H
#define RG_QUORUM_KNOWN_H

#include "regroup_quorum.h"

/* The newest round that this member knows to be decided, be it one that its program has not come to; 0: none. */
uint64_t rg_quorum_known(rg_quorum_t *q);

#endif
