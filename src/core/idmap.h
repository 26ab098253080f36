/* idmap.h: a map from 64-bit ids to slots, open addressing with linear probing, in memory of the caller. The key 0
 * is never stored. The table has a power of two of cells, at least twice the number of entries, so that probing
 * ends; the owner of the map sees to that. Deletion moves later entries back, so there are no tombstones. */
#ifndef RG_CORE_IDMAP_H
#define RG_CORE_IDMAP_H

#include <stdint.h>

typedef struct rg_idcell {
    uint64_t key;
    uint64_t value;
} rg_idcell_t;

typedef struct rg_idmap {
    rg_idcell_t *cells;
    uint32_t mask;
} rg_idmap_t;

static inline uint32_t rg_idmap_cells(uint32_t entries) {
    uint32_t n = 8;
    while (n < 2 * entries + 2) n *= 2;
    return n;
}

static inline uint32_t rg_idmap_hash(const rg_idmap_t *m, uint64_t key) {
    return (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) & m->mask;
}

/* The slot of key, or -1. */
static inline int64_t rg_idmap_get(const rg_idmap_t *m, uint64_t key) {
    if (!key) return -1;
    for (uint32_t i = rg_idmap_hash(m, key); m->cells[i].key; i = (i + 1) & m->mask)
        if (m->cells[i].key == key) return (int64_t)m->cells[i].value;
    return -1;
}

static inline void rg_idmap_put(rg_idmap_t *m, uint64_t key, uint64_t value) {
    uint32_t i = rg_idmap_hash(m, key);
    while (m->cells[i].key && m->cells[i].key != key) i = (i + 1) & m->mask;
    m->cells[i].key = key;
    m->cells[i].value = value;
}

static inline void rg_idmap_del(rg_idmap_t *m, uint64_t key) {
    uint32_t i = rg_idmap_hash(m, key);
    while (m->cells[i].key && m->cells[i].key != key) i = (i + 1) & m->mask;
    if (!m->cells[i].key) return;
    for (uint32_t j = (i + 1) & m->mask; m->cells[j].key; j = (j + 1) & m->mask) {
        uint32_t home = rg_idmap_hash(m, m->cells[j].key);
        /* The entry at j may move to i when its home is not in the cyclic interval (i, j]. */
        if (((j - home) & m->mask) >= ((j - i) & m->mask)) {
            m->cells[i] = m->cells[j];
            i = j;
        }
    }
    m->cells[i].key = 0;
}

#endif
