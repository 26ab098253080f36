/* test_tune.c: what a program may set of TCP connections that all traffic goes by: the cap of the rate to each other
 * member, whatever the number of connections. Here the cap makes things slow, so that nothing else has to be. */
#include "engine_rig.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define BYTES (12u << 20)
#define CAP_MBIT 200u

static int cap_body(rig_member_t *m, void *arg) {
    uint8_t *v = malloc(BYTES);
    (void)arg;
    memset(v, m->index == 0, BYTES);
    rg_status_t warm = rg_broadcast(m->g, v, 1000, RG_U8, 0, NULL, NULL);
    uint64_t start = rig_now();
    rg_status_t st = rg_broadcast(m->g, v, BYTES, RG_U8, 0, NULL, NULL);
    double seconds = (double)(rig_now() - start) / 1e9, least = BYTES * 8.0 / (CAP_MBIT * 1e6);
    int right = v[0] == 1 && v[BYTES - 1] == 1;
    free(v);
    RIG_OK(m, warm);
    RIG_OK(m, st);
    RIG_NEED(m, right, "wrong bytes");
    /* About a megabyte of a connection goes before the pacer counts. */
    RIG_NEED(m, seconds > 0.6 * least, "%.3f s, which is faster than the cap allows: %.3f s", seconds, least);
    RIG_NEED(m, seconds < (2 + RIG_SLOW) * least + 2 + rig_late_ms(start) / 1000, "%.3f s where the cap allows %.3f s",
             seconds, least);
    return 0;
}

Test(tune, max_rate__of_any_number_of_connections__is_kept, .timeout = 60) {
    for (uint32_t rails = 1; rails <= 4; rails += 3) {
        rg_config_t c = RG_CONFIG_INIT;
        c.max_rate_mbit = CAP_MBIT;
        c.rails = rails;
        rig_run(2, "tcp", &c, cap_body, NULL);
    }
}
