/* hello.c: the whole interface in thirty lines. Each member adds its number; everyone gets the sum, and goes on getting
 * it when members die or join. Start it with: build/regroup run -n 4 -- build/hello
 * It relies on RG_COORDINATOR, which that command sets, and on nothing but regroup.h. */
#include <regroup.h>
#include <stdio.h>

int main(void) {
    rg_config_t config = RG_CONFIG_INIT; /* every field zero: from the environment, or the default */
    rg_group_t *group;
    rg_error_t err;
    if (rg_group_join(&config, &group, &err) != RG_OK) {
        fprintf(stderr, "hello: %s\n", err.text);
        return 1;
    }
    rg_status_t status = RG_OK;
    for (int round = 0; round < 3 && status == RG_OK; round++) {
        rg_info_t me = RG_INFO_INIT;
        rg_result_t result = RG_RESULT_INIT;
        rg_opts_t opts = RG_OPTS_INIT;
        opts.result = &result;
        rg_group_info(group, &me);
        float one = (float)(me.rank + 1), sum = 0;
        status = rg_all_reduce(group, &one, &sum, 1, RG_F32, RG_SUM, &opts, NULL);
        if (status == RG_OK) {
            printf("round %d: rank %u of %u: sum %g of %u members\n", round, me.rank, me.world_size, sum,
                   result.contributors);
            status = rg_group_boundary(group, NULL); /* newcomers may enter here; free when nobody waits */
        }
    }
    if (status != RG_OK) fprintf(stderr, "hello: %s: %s\n", rg_strerror(status), rg_status_advice(status));
    if (status == RG_OK) status = rg_group_leave(group);
    rg_group_destroy(group);
    return status == RG_OK ? 0 : 1;
}
