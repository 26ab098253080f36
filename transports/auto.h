/* auto.h: what a test may put in the place of the two transports that auto.c joins. */
#ifndef RG_AUTO_H
#define RG_AUTO_H

#include "regroup_transport.h"

/* near is tried first, where the peer seems to be on this host; far goes everywhere. For endpoints opened from now on;
 * NULL, NULL: shared memory and TCP again. */
void rg_auto_parts(const rg_transport_t *near, const rg_transport_t *far);

/* The fabric that takes part in endpoints opened from now on, between hosts; NULL: the host's own, if it has one. */
void rg_auto_fabric(const rg_transport_t *fabric);

extern const rg_transport_t rg_transport_auto;
extern const rg_transport_t rg_transport_fabric; /* the fabric and TCP alone; only where there is a fabric */

#endif
