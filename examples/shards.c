/* shards.c: a training step whose parameters are spread over shards and copied between replicas, with sub-groups:
 * members of one colour hold the same shard. Parameters are gathered, gradients reduced and scattered along the rows,
 * and averaged along the columns; neighbours pass a message round. Start it with: build/regroup run -n 4 --
 * build/shards It relies on an even number of members and on nothing but regroup.h. */
#include <regroup.h>
#include <stdio.h>
#include <stdlib.h>

#define SHARDS 2
#define ELEMENTS 1000 /* of a shard */

static void check(rg_group_t *group, const char *what, rg_status_t status) {
    char text[256] = "";
    if (status == RG_OK) return;
    rg_group_errmsg(group, text, sizeof text);
    fprintf(stderr, "shards: %s: %s (%s); %s\n", what, rg_strerror(status), text, rg_status_advice(status));
    exit(1);
}

int main(void) {
    rg_config_t config = RG_CONFIG_INIT;
    rg_group_t *all, *row, *column;
    rg_error_t err;
    rg_info_t me = RG_INFO_INIT;
    rg_grid_t grid = RG_GRID_INIT;
    if (rg_group_join(&config, &all, &err) != RG_OK) {
        fprintf(stderr, "shards: %s\n", err.text);
        return 1;
    }
    check(all, "info", rg_group_info(all, &me));
    uint32_t shard = me.rank % SHARDS, replica = me.rank / SHARDS;
    check(all, "split into rows", rg_group_split(all, replica, shard, NULL, &row));
    check(all, "split into columns", rg_group_split(all, shard, replica, NULL, &column));
    grid.colours = SHARDS;
    check(all, "grid", rg_group_grid(all, &grid)); /* of the last split: does every shard have as many replicas? */
    if (!grid.complete) fprintf(stderr, "shards: %u members do not fill %u shards\n", grid.members, SHARDS);

    static float mine[ELEMENTS], whole[SHARDS * ELEMENTS], gradient[SHARDS * ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) mine[i] = (float)shard;
    check(row, "all_gather", rg_all_gather(row, mine, whole, ELEMENTS, RG_F32, NULL, NULL));
    for (int i = 0; i < SHARDS * ELEMENTS; i++) gradient[i] = whole[i] + (float)me.rank;
    check(row, "reduce_scatter", rg_reduce_scatter(row, gradient, mine, ELEMENTS, RG_F32, RG_SUM, NULL, NULL));

    /* The replicas saw different numbers of samples: the average is weighted, and says how many there were. */
    rg_result_t result = RG_RESULT_INIT;
    rg_opts_t opts = RG_OPTS_INIT;
    opts.result = &result;
    opts.weighted = RG_ON;
    opts.weight = 100 + replica;
    check(column, "all_reduce", rg_all_reduce(column, mine, mine, ELEMENTS, RG_F32, RG_AVG, &opts, NULL));

    uint32_t from = 0, right = (me.rank + 1) % me.world_size, left = (me.rank + me.world_size - 1) % me.world_size;
    check(all, "batch", rg_batch_begin(all));
    check(all, "send", rg_send(all, &me.rank, 1, RG_U32, right, NULL, NULL));
    check(all, "recv", rg_recv(all, &from, 1, RG_U32, left, NULL, NULL));
    check(all, "batch", rg_batch_end(all, NULL));
    printf("rank %u of %u: shard %u, replica %u: gradient %g over %g samples; heard from %u\n", me.rank, me.world_size,
           shard, replica, mine[0], result.weight_sum, from);
    rg_group_destroy(row);
    rg_group_destroy(column);
    check(all, "leave", rg_group_leave(all));
    rg_group_destroy(all);
    return 0;
}
