/* double_tree.h: two binary trees over the numbers 0 to m-1, each of logarithmic depth, in which a number that is inner
 * in one is a leaf in the other (but for one number where m is odd, which has one child in either). Half of the data
 * goes over each, so that everybody sends and receives equally much. The second tree is the first one mirrored, or
 * shifted by one where m is odd (Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction
 * and scan, 2009). Pure arithmetic: it must not know about schedules, so that reduction and broadcast share it. */
#ifndef RG_DOUBLE_TREE_H
#define RG_DOUBLE_TREE_H

#include "regroup_algorithm.h"

#define DTREE_NONE UINT32_MAX

typedef struct dtree_node {
    uint32_t parent, n_children, child[2];
} dtree_node_t;

/* Between a number and its place in tree `t`. */
static inline uint32_t dtree_place(uint32_t t, uint32_t m, uint32_t i) {
    return t == 0 ? i : m % 2 == 0 ? m - 1 - i : (i + m - 1) % m;
}

static inline uint32_t dtree_number(uint32_t t, uint32_t m, uint32_t place) {
    return t == 0 ? place : m % 2 == 0 ? m - 1 - place : (place + 1) % m;
}

/* Places are in order from left to right: an odd one is a leaf, and one that is divisible by 2^h has its children at
 * distance 2^(h-1). Place 0 is the root, with one child. What would lie beyond the end is passed over. */
static inline dtree_node_t dtree_node(uint32_t t, uint32_t m, uint32_t number) {
    dtree_node_t x = { DTREE_NONE, 0, { DTREE_NONE, DTREE_NONE } };
    uint32_t a = dtree_place(t, m, number), low = a & (~a + 1);
    if (a == 0) {
        uint32_t top = 1;
        while (top < m - top) top *= 2;
        if (m > 1) x.child[x.n_children++] = dtree_number(t, m, top);
        return x;
    }
    uint64_t up = (uint64_t)(a - low) | 2 * (uint64_t)low;
    x.parent = dtree_number(t, m, up < m ? (uint32_t)up : a - low);
    if (low > 1) x.child[x.n_children++] = dtree_number(t, m, a - low / 2);
    for (uint32_t h = low / 2; h > 0; h /= 2)
        if (h < m - a) {
            x.child[x.n_children++] = dtree_number(t, m, a + h);
            break;
        }
    return x;
}

static inline uint32_t dtree_root(uint32_t t, uint32_t m) { return dtree_number(t, m, 0); }

/* The most steps from a leaf to the root. */
static inline uint32_t dtree_depth(uint32_t m) {
    uint32_t depth = 0;
    while (m > 1 && (m - 1) >> depth != 0) depth++;
    return depth;
}

#endif
