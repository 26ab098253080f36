/* model.h: what `regroup explain` and `regroup tune` know of a group beside its members' calls: where its members are,
 * what its links take, and which algorithms the library has. It relies on src/sched/sched.h, the library's pure part:
 * the very functions that members choose with, fed with the same numbers. It must not choose by itself. */
#ifndef RG_TOOL_MODEL_H
#define RG_TOOL_MODEL_H

#include "collective.h"
#include "sched/sched.h"

struct model {
    uint32_t n;
    rg_net_summary_t net;
    rg_cost_model_t cost;
    rg_topology_t topo;
    uint32_t *groups; /* of topo */
    int measured;     /* links as a coordinator knows them, else the library's constants */
};

/* n members on `hosts` hosts (as equal parts as can be, in rank order), which are on `sites` sites. 0 without memory.
 */
int model_plain(struct model *m, uint32_t n, uint32_t hosts, uint32_t sites, uint32_t cores, int shm);
/* The group's members and links as the coordinator at `address` tells them, on hosts with `cores` each. TOOL_OK, or
 * what went wrong is printed. */
int model_of_group(struct model *m, const char *command, const char *address, const char *group, uint32_t cores);
uint32_t model_cores(void); /* of this host */
void model_free(struct model *m);

/* How the library would describe the call to its algorithms, for one rank. `small`: RG_SMALL_BYTES. */
rg_coll_desc_t model_desc(const struct model *m, const struct coll *c, uint64_t count, uint32_t rank, uint64_t small,
                          int deterministic);
rg_kind_t model_kind(coll_kind_t kind);

#endif
