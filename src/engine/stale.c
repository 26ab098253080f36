/* stale.c: the names of groups that have stopped or expelled this process, so that a handle which joins one of them
 * again can say that what the program kept may be behind. It relies on its own lock alone, since handles come and go in
 * any thread. It must not keep more than a few names: the oldest are forgotten. */
#include "engine/group.h"

#include <stdio.h>
#include <string.h>

#define STALE_NAMES 64

static pthread_mutex_t stale_lock = PTHREAD_MUTEX_INITIALIZER;
static char stale_names[STALE_NAMES][RG_CORE_NAME_MAX];
static uint32_t stale_at;

RG_OS_HELD_OVER_FORKS(stale_lock)

static int stale_find(const char *group) {
    for (int i = 0; i < STALE_NAMES; i++)
        if (stale_names[i][0] && strcmp(stale_names[i], group) == 0) return i;
    return -1;
}

void rg_stale_set(rg_group_t *g, int stale) {
    g->stale = stale;
    pthread_mutex_lock(&stale_lock);
    int i = stale_find(g->cfg.group);
    if (stale && i < 0) snprintf(stale_names[stale_at++ % STALE_NAMES], RG_CORE_NAME_MAX, "%s", g->cfg.group);
    else if (!stale && i >= 0) stale_names[i][0] = 0;
    pthread_mutex_unlock(&stale_lock);
}

int rg_stale_known(const char *group) {
    pthread_mutex_lock(&stale_lock);
    int known = stale_find(group) >= 0;
    pthread_mutex_unlock(&stale_lock);
    return known;
}
