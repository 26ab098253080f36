/* rdma_rails.h: RDMA over one adapter or several. Relies on nothing. */
#ifndef RG_RDMA_RAILS_H
#define RG_RDMA_RAILS_H

#include "regroup_transport.h"

extern const rg_transport_t rg_transport_rdma, rg_transport_rdma_rails;

/* The table for what rdma_device names: a device, or a list. */
const rg_transport_t *rg_rdma_for(const rg_config_t *c);

/* Of rg_transport_rdma: the next send() or recv() is a part of a message of so many bytes, and meets only such a part.
 */
void rgr_part_of(rg_tp_t *tp, uint64_t whole);

#endif
