/* window.c: windows between guests: all add to all and read all, every read checked to show one moment; then a member
 * whose process is stopped is read all the same, which no message could do. Relies on the environment for the group,
 * and on inside.sh for stopping it. It must not wait for anything without a limit. */
#include "regroup_window.h"
#include "vm.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ELEMS 100000u
#define WAIT_MS 60000
#define READS 20

static int wrong(rg_group_t *g, const char *what, rg_status_t st) {
    char text[300] = "";
    rg_group_errmsg(g, text, sizeof text);
    fprintf(stderr, "WRONG: %s: %s: %s\n", what, rg_status_name(st), text);
    return 1;
}

static int wait_for(const char *folder, const char *name) {
    char path[512];
    const struct timespec t = { 0, 20000000 };
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (int i = 0; i < WAIT_MS / 20; i++) {
        if (access(path, F_OK) == 0) return 1;
        nanosleep(&t, NULL);
    }
    fprintf(stderr, "WRONG: waited in vain for %s\n", path);
    return 0;
}

static void leave_word(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (f) fclose(f);
}

static int one_moment(const float *x, uint64_t n, uint64_t version) {
    for (uint64_t i = 0; i < n; i++)
        if (x[i] != (float)version) {
            fprintf(stderr, "WRONG: element %llu is %g in version %llu\n", (unsigned long long)i, (double)x[i],
                    (unsigned long long)version);
            return 0;
        }
    return 1;
}

/* All but the first read the first one, whose process stands still. */
static int read_the_stopped(rg_group_t *g, rg_window_t *w, const char *folder, float *x, uint64_t added) {
    uint64_t owner = 0, version = 0;
    if (!wait_for(folder, "stopped")) return 1;
    rg_group_member(g, 0, &owner);
    for (int i = 0; i < READS; i++) {
        rg_status_t st = rg_window_get(w, owner, 0, ELEMS, x, 1500, &version);
        if (st != RG_OK) return wrong(g, "a member that stands still cannot be read", st);
        if (version != added || !one_moment(x, ELEMS, version)) return 1;
    }
    printf("windows: %d reads of a member that stood still\n", READS);
    leave_word(folder, "read");
    return 0;
}

int vm_window(const char *folder, uint64_t rounds) {
    rg_group_t *g = NULL;
    rg_window_t *w = NULL;
    rg_error_t err = { 0 };
    rg_info_t me = RG_INFO_INIT;
    void *p[2] = { NULL, NULL };
    rg_status_t st = rg_group_join(NULL, &g, &err);
    if (st != RG_OK) return fprintf(stderr, "WRONG: cannot join: %s\n", err.text), 1;
    for (int i = 0; st == RG_OK && i < 2; i++) st = rg_alloc(ELEMS * sizeof(float), &p[i], &err);
    float *x = p[1], *ones = malloc(ELEMS * sizeof *ones);
    if (st != RG_OK || !ones) return fprintf(stderr, "WRONG: no memory: %s\n", err.text), 1;
    memset(p[0], 0, ELEMS * sizeof(float));
    for (uint64_t i = 0; i < ELEMS; i++) ones[i] = 1;
    if (rg_window_register(g, 1, p[0], ELEMS, &w, &err) != RG_OK || rg_group_info(g, &me) != RG_OK)
        return fprintf(stderr, "WRONG: %s\n", err.text), 1;
    for (uint64_t r = 0; r < rounds; r++)
        for (uint32_t k = 0; k < me.world_size; k++) {
            uint64_t peer = 0, version = 0;
            rg_group_member(g, (me.rank + k) % me.world_size, &peer);
            st = rg_window_accumulate(w, peer, 0, ELEMS, ones, 1, 0);
            if (st != RG_OK) return wrong(g, "accumulate", st);
            for (int i = 0; i < 4; i++) {
                st = rg_window_get(w, peer, 0, ELEMS, x, 0, &version);
                if (st != RG_OK) return wrong(g, "get", st);
                if (version < r + 1 || !one_moment(x, ELEMS, version)) return 1;
            }
        }
    uint64_t all = rounds * me.world_size;
    st = rg_window_wait(w, all, 0);
    if (st != RG_OK) return wrong(g, "wait", st);
    if (me.rank == 0) leave_word(folder, "still");
    int bad = me.rank == 0 ? !wait_for(folder, "read") : read_the_stopped(g, w, folder, x, all);
    rg_window_destroy(w);
    if (!bad && (st = rg_group_leave(g)) != RG_OK) bad = wrong(g, "leave", st);
    rg_group_destroy(g);
    rg_free_memory(p[0]);
    rg_free_memory(p[1]);
    free(ones);
    if (!bad) printf("windows: all of one moment\n");
    return bad;
}
