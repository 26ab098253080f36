/* join_with_state.c: a member of a training group whose newcomers fetch the parameters while the others go on. Start
 * any number of them at any time, each with the address of the same coordinator:
 *     build/regroup coordinator --listen 127.0.0.1:7000 &
 *     RG_COORDINATOR=127.0.0.1:7000 build/join_with_state 1000 &
 * It relies on nothing but regroup.h. */
#include <regroup.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PARAMETERS (16u << 20)

static void check(const char *what, rg_status_t status, const char *text) {
    if (status == RG_OK) return;
    fprintf(stderr, "join_with_state: %s: %s (%s); %s\n", what, rg_strerror(status), text, rg_status_advice(status));
    exit(1);
}

int main(int argc, char **argv) {
    uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 100;
    float *w = calloc(PARAMETERS, sizeof *w);
    rg_config_t config = RG_CONFIG_INIT;
    rg_state_opts_t opts = RG_STATE_OPTS_INIT;
    rg_state_result_t r = RG_STATE_RESULT_INIT;
    rg_change_t change = RG_CHANGE_INIT;
    rg_group_t *group;
    rg_state_t *state;
    rg_error_t err = { RG_OK, 0, "" };
    if (!w) return 1;
    check("state", rg_state_create(&state, &err), err.text);
    check("add", rg_state_add(state, "weights", w, PARAMETERS, RG_F32, &err), err.text);

    /* Where nobody serves the state, as for the first member, this joins as rg_group_join() does. */
    check("join", rg_state_join(&config, state, NULL, &group, &r, &err), err.text);
    printf("fetched %llu MiB of revision %llu from %u members before entering\n",
           (unsigned long long)(r.bytes_received >> 20), (unsigned long long)r.revision, r.holders);

    opts.touched_only = RG_ON; /* the touches below tell all that changes */
    opts.rule = RG_STATE_NEWEST;
    for (change.joined = 1; rg_state_revision(state) < steps;) {
        if (change.joined) { /* what has changed since the newcomer's snapshot */
            check("sync", rg_state_sync(group, state, &opts, &r), r.text);
            printf("%u members at revision %llu; %llu pieces came\n", r.members, (unsigned long long)r.revision,
                   (unsigned long long)r.pieces_received);
            if (r.revision == 0) check("revision", rg_state_set_revision(state, 1), ""); /* a group of newcomers */
            static int serving;
            if (!serving++) check("serve", rg_state_serve(group, state, NULL), "");
        }
        struct timespec pause = { 0, 10000000 }; /* as while a device computes */
        nanosleep(&pause, NULL);
        float gradient = 1, *row = w + rg_state_revision(state) % 16 * (PARAMETERS / 16);
        check("all_reduce", rg_all_reduce(group, &gradient, &gradient, 1, RG_F32, RG_AVG, NULL, NULL), "");
        check("touch", rg_state_touch(state, "weights", (uint64_t)(row - w), 1000), ""); /* before it is written */
        for (int i = 0; i < 1000; i++) row[i] += gradient;
        check("revision", rg_state_set_revision(state, rg_state_revision(state) + 1), "");
        check("boundary", rg_group_boundary(group, &change), "");
    }
    rg_group_leave(group);
    rg_group_destroy(group);
    rg_state_destroy(state);
    free(w);
    return 0;
}
