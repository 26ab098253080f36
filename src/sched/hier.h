/* hier.h: trees along a hierarchy (hosts in sites, or any nesting of groups), for algorithms that reduce inside,
 * exchange between and spread inside. The data are items; every item has a tree of its own, whose root is its owner:
 * inside each group one rank stands for the group, another one for every item, so that all members of a host share the
 * work of the slow link and each byte crosses it once each way. Items are cut into pieces, which follow one another
 * through the levels. Pure. Used by the algorithms/<kind>_hier.c files, which say what the items are. (Grouped as in
 * Karonis et al. 2000 and Jia et al. 2018; the sharing as in the two-level reductions of NCCL.) */
#ifndef RG_HIER_H
#define RG_HIER_H

#include "regroup_algorithm.h"

typedef struct rg_hier_item {
    uint32_t owner;   /* who has the final value first, or has the item to begin with */
    uint64_t in, out; /* where it begins in IN and OUT */
    uint64_t len;
} rg_hier_item_t;

#define RG_HIER_UP 1u   /* values are reduced on the way to the owner */
#define RG_HIER_DOWN 2u /* and its value spreads from there */

typedef struct rg_hier_plan {
    const rg_hier_item_t *items;
    uint32_t n_items;
    uint32_t flow;
    uint32_t root;    /* UP alone: the owners hand on to it (reduce); DOWN alone: they have it from there (broadcast);
                         UINT32_MAX: no such rank */
    int in_at_owner;  /* 1: IN of an owner holds its own items only, from 0 (all-gather) */
    int out_at_owner; /* 1: OUT likewise (reduce-scatter) */
    int chain; /* 1: above the host groups hand on from one to the next, so that no link carries anything twice where
                  all items begin or end in one place (broadcast, reduce); 0: directly, in one step */
} rg_hier_plan_t;

/* 1 when the topology has a group of more than one rank at some level that is not all ranks. */
int rg_hier_applies(const rg_coll_desc_t *d);

/* Ranks of the host of `rank`, and its place among them. */
uint32_t rg_hier_host_size(const rg_coll_desc_t *d, uint32_t rank);
uint32_t rg_hier_host_place(const rg_coll_desc_t *d, uint32_t rank);
uint32_t rg_hier_widest_host(const rg_coll_desc_t *d);
/* The member of the host of `rank` whose place is `place` modulo the size of the host. */
uint32_t rg_hier_host_member(const rg_coll_desc_t *d, uint32_t rank, uint32_t place);

rg_status_t rg_hier_build(rg_schedule_t *s, const rg_hier_plan_t *plan);

/* What broadcast and reduce are: the data in as many parts as the widest host has members, each owned by another member
 * of the root's host. What all-gather and reduce-scatter are: the segments, owned by their ranks. flow is the way. */
rg_status_t rg_hier_build_rooted(rg_schedule_t *s, uint32_t flow);
rg_status_t rg_hier_build_segments(rg_schedule_t *s, uint32_t flow);

/* Predicted seconds, by level, when `bytes` go up and as many down (flow says which of them). */
double rg_hier_cost(const rg_coll_desc_t *d, const rg_cost_model_t *m, double bytes, uint32_t flow);

#endif
